"""Two pictures: predicted against measured, and the worst case as two Gantt charts one above the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from devices.cost.calibration import Calibration
from scenarios.validate import files
from scenarios.validate.beside import own_calibration
from scenarios.validate.errors import rebuild
from scenarios.validate.predict import predict_case, simulate_case

__all__ = ["draw_scatter", "draw_worst"]


def draw_scatter(report: Mapping[str, Any], path: Path) -> bool:
    """Draw every point, one colour an experiment; return whether there were any."""
    from sim.plot.figure import OKABE_ITO, new_figure, save

    shown = [result for result in report["experiments"] if result.get("points")]
    if not shown:
        return False
    figure, (ax,) = new_figure(width=6.0, height=5.0)
    low, high = float("inf"), 0.0
    for k, result in enumerate(shown):
        x = [point[2] / 1e6 for point in result["points"]]
        y = [point[1] / 1e6 for point in result["points"]]
        low, high = min(low, *x, *y), max(high, *x, *y)
        ax.scatter(x, y, s=12, label=result["experiment"], color=OKABE_ITO[k % len(OKABE_ITO)])
    ax.plot([low, high], [low, high], linewidth=0.8, color="black")
    ax.set(xscale="log", yscale="log", xlabel="measured makespan, ms", ylabel="predicted makespan, ms")
    ax.legend(fontsize="small")
    save(figure, path)
    return True


def draw_worst(report: Mapping[str, Any], out: Path, calibration: Calibration, path: Path) -> bool:
    """Draw the run with the largest error and, above it, what was predicted; return whether there is one."""
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
    plans, measurements = (files.read(out, step, experiment) for step in ("plans", "measurements"))
    assert plans is not None
    assert measurements is not None
    case = next(case for case in files.read_cases(plans) if case.name == name)
    runs = next(entry["runs"] for entry in measurements["cases"] if entry["name"] == name)
    run = next(run for run in runs if run["clean"] and run["makespan_ns"] == measured_ns)
    calibration = own_calibration(out, experiment) or calibration
    predicted = simulate_case(case, predict_case(case, calibration)["duration_ns"], calibration)
    figure = compare_gantt(
        {f"{name}, predicted ({100 * error:.1f} % off)": predicted, f"{name}, measured": rebuild(case, run)}
    )
    save(figure, path)
    return True
