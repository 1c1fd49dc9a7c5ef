"""Where the time of every device went: computing, communicating, waiting by reason, idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sim.explain.facts.derived_columns import Facts
from sim.explain.idle import REASONS, idle_reasons
from sim.explain.time_use import WORD_OF_REASON, time_use
from sim.plot.chart.drawn import name_lanes, points_of
from sim.plot.colours import OKABE_ITO
from sim.plot.figure import new_figure
from sim.plot.legend import add_legend
from sim.plot.theme import hatches, paper, plain, shade
from sim.record.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["USE_COLOURS", "use_of_devices", "utilisation"]

_WAITS: Final = tuple(reason for reason in REASONS if reason not in WORD_OF_REASON)
_PARTS: Final = ("compute", "communicate", *(f"wait: {reason}" for reason in _WAITS), "idle")
_MORE: Final = ("black", "#332288", "#8C510A", "#882255", "#999933", "#B0D0A0", "#DDCC77", "#EEEEEE")
USE_COLOURS: Final = dict(zip(_PARTS, (*OKABE_ITO, *_MORE), strict=True))
"""A part has the same colour in every picture; ``idle`` is nobody's fault and pale."""


def use_of_devices(trace: Record, facts: Facts | None = None) -> dict[str, dict[str, int]]:
    """Return, for each device, the ns of every part of `USE_COLOURS`; they add up to the makespan.

    Parameters
    ----------
    trace : Trace
    facts : Facts, optional
        Of this trace, when the caller has them already.
    """
    reasons = idle_reasons(trace, facts)
    return {
        name: {
            part: use[part] if part in use else reasons[name].get(part.removeprefix("wait: "), 0)
            for part in _PARTS
        }
        for name, use in time_use(trace, reasons).items()
    }


def utilisation(trace: Record, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Draw one bar per device: the shares of the makespan of `sim.explain.time_use`, waiting by reason.

    Parameters
    ----------
    trace : Trace
    ax : Axes, optional
    title : str, optional

    Returns
    -------
    Axes
    """
    use = use_of_devices(trace)
    names, parts = list(use), list(use.values())
    if ax is None:
        _, (ax,) = new_figure(height=min(20.0, 1.0 + 0.36 * max(2, len(names))))
    total = max(trace.makespan_ns, 1)
    left, hatch = [0.0] * len(names), hatches(USE_COLOURS)
    for part, colour in USE_COLOURS.items():
        share = [100.0 * of[part] / total for of in parts]
        if any(share):
            ax.barh(
                *(range(len(names)), share),
                left=left,
                color=shade(colour),
                edgecolor=paper(),
                linewidth=0,
                hatch=hatch[part] or None,
                label=part,
                height=0.7,
            )
        left = [a + b for a, b in zip(left, share, strict=True)]
    name_lanes(ax, names, points_of(ax, len(names))[1])
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the makespan (%)")
    plain(ax, title)
    handles, labels = ax.get_legend_handles_labels()
    add_legend(ax, dict(zip(labels, handles, strict=True)), alone=True)
    return ax
