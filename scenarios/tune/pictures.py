"""A search as a picture: the best so far by trial, and the front of the goal against another result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scenarios.fields.results import RESULTS, column_of_result, shown_result
from scenarios.tune.tune import Tuning

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["front_plot", "progress_plot", "tuning_figure"]


def tuning_figure(tuning: Tuning, against: str | None = None) -> Figure:
    """Return the picture of a search; with `against` a second one beside it.

    Parameters
    ----------
    tuning : Tuning
    against : str, optional
        Another result, which is to be small.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12.0 if against else 7.0, 4.2), layout="constrained")
    axes = figure.subplots(1, 2 if against else 1, squeeze=False)[0]
    progress_plot(tuning, axes[0])
    if against:
        front_plot(tuning, against, axes[1])
    return figure


def progress_plot(tuning: Tuning, ax: Axes | None = None) -> Axes:
    """Draw every trial, and the best so far as a line."""
    from sim.plot.colours import OKABE_ITO
    from sim.plot.figure import new_figure
    from sim.plot.theme import plain

    if ax is None:
        _, (ax,) = new_figure(width=7.0, height=4.2)
    goal = tuning.goal
    at: list[int] = []
    values: list[float] = []
    best: list[float] = []
    for k, trial in enumerate(tuning.trials):
        if trial.level is None and goal.allows(trial.row):
            at.append(k + 1)
            values.append(trial.row[goal.column])
            best.append((max if goal.most else min)(values[-1], best[-1] if best else values[-1]))
    ax.plot(at, values, ".", color="0.7", markersize=3, label="trials", rasterized=True)
    ax.step(at, best, where="post", color=OKABE_ITO[4], label="best so far")
    ax.set_xlabel("trial")
    pad = 0.08 * abs(best[0] - best[-1]) or 0.01 * abs(best[-1]) or 1.0
    ax.set_ylim(min(best) - pad, max(best) + pad)  # trials that are far worse would hide what happened
    _values_along(ax.yaxis, ax, goal.what)
    ax.legend(frameon=False)
    plain(ax)
    return ax


def front_plot(tuning: Tuning, against: str, ax: Axes | None = None) -> Axes:
    """Draw the goal against another result, and the trials that no other beats in both."""
    from sim.plot.colours import OKABE_ITO
    from sim.plot.figure import new_figure
    from sim.plot.theme import plain

    if ax is None:
        _, (ax,) = new_figure(width=7.0, height=4.2)
    goal, column = tuning.goal, column_of_result(against)
    rows = [t.row for t in tuning.trials if t.level is None and goal.allows(t.row) and column in t.row]
    ax.plot([r[column] for r in rows], [r[goal.column] for r in rows], ".", color="0.7", markersize=4)
    front = [tuning.trials[k].row for k in tuning.front(against)]
    ax.plot(
        [r[column] for r in front],
        [r[goal.column] for r in front],
        "o-",
        color=OKABE_ITO[4],
        label="Pareto front",
    )
    _values_along(ax.xaxis, ax, against)
    _values_along(ax.yaxis, ax, goal.what)
    ax.legend(frameon=False)
    plain(ax)
    return ax


def _values_along(axis: Any, ax: Axes, what: str) -> None:
    """Label an axis with a result, in its units."""
    axis.set_label_text(what)
    axis.get_major_locator().set_params(nbins=5 if axis.axis_name == "x" else 8)
    if RESULTS[what.partition(".")[0]].is_amount:
        axis.set_major_formatter(lambda value, _: shown_result(what, round(value) if value > 100 else value))
