"""Two figures: predicted against measured, and the worst case as two Gantt charts, one above the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from devices.cost.calibration import Calibration
from validation.cases import step_files
from validation.experiments.predict import predict_case, simulate_case
from validation.experiments.prediction_errors import rebuild

_BAND: Final = 5
"""Shaded range in percent: the bound of most goals."""


def draw_scatter(report: Mapping[str, Any], path: Path) -> bool:
    """Draw every point, one colour per experiment, and its error below; return whether there were any."""
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    from sim.plot.figure import new_figure, save
    from sim.plot.theme import OKABE_ITO, ink, shade

    shown = [result for result in report["experiments"] if result.get("points")]
    if not shown:
        return False
    figure, (above, below) = new_figure(2, width=6.0, height=7.0)
    low, high = float("inf"), 0.0
    for k, result in enumerate(shown):
        x = [point[2] / 1e6 for point in result["points"]]
        y = [point[1] / 1e6 for point in result["points"]]
        errors = [100 * point[3] for point in result["points"]]
        low, high = min(low, *x, *y), max(high, *x, *y)
        for ax, values in ((above, y), (below, errors)):
            colour = shade(OKABE_ITO[k % len(OKABE_ITO)])
            ax.scatter(x, values, s=12, color=colour, alpha=0.7, linewidths=0, label=result["experiment"])
    above.plot([low, high], [low, high], linewidth=0.8, color=ink())
    below.axhspan(-_BAND, _BAND, color=ink(), alpha=0.07, linewidth=0)
    below.axhline(0, linewidth=0.8, color=ink())
    above.set(xscale="log", yscale="log", ylabel="predicted makespan, ms")
    below.set(xlabel="measured makespan, ms", ylabel="error of the prediction, %")
    for axis in (above.xaxis, above.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
    above.legend(fontsize="small")
    save(figure, path)
    return True


def draw_worst(report: Mapping[str, Any], out: Path, calibration: Calibration, path: Path) -> bool:
    """Draw the run with the largest error and its prediction above; return whether there is one."""
    from sim.plot import compare_gantt
    from sim.plot.figure import save

    worst: tuple[float, str, str, int] | None = None
    for result in report["experiments"]:
        for case, _, measured_ns, error, *_ in result.get("points", ()):
            if worst is None or abs(error) > worst[0]:
                worst = (abs(error), result["experiment"], case, measured_ns)
    if worst is None:
        return False
    error, experiment, name, measured_ns = worst
    plans, measurements = (step_files.read(out, step, experiment) for step in ("plans", "measurements"))
    assert plans is not None
    assert measurements is not None
    case, _ = next(step_files.read_case(entry) for entry in plans["cases"] if entry["name"] == name)
    runs = next(entry["runs"] for entry in measurements["cases"] if entry["name"] == name)
    run = next(run for run in runs if run["clean"] and run["makespan_ns"] == measured_ns)
    predicted = simulate_case(case, predict_case(case, calibration)["duration_ns"], calibration)
    figure = compare_gantt(
        {f"{name}, predicted ({100 * error:.1f} % off)": predicted, f"{name}, measured": rebuild(case, run)}
    )
    save(figure, path)
    return True
