"""Where the time of every device went: computing, communicating, waiting by reason, idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sim.explain.idle import REASONS, idle_reasons
from sim.explain.time_use import WORD_OF_REASON, time_use
from sim.plot.colours import OKABE_ITO, WAITING, colour_of
from sim.plot.figure import new_figure
from sim.record.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["utilisation"]

_WAITS: Final = tuple(reason for reason in REASONS if reason not in WORD_OF_REASON)
_PARTS: Final = ("compute", "communicate", *(f"wait: {reason}" for reason in _WAITS), "idle")
_MORE: Final = (
    *("#000000", "#555555", "#8C510A", "#882255", "#999933", "#44AA99"),
    *(colour_of(WAITING), "#EEEEEE"),
)
_COLOURS: Final = dict(zip(_PARTS, (*OKABE_ITO, *_MORE), strict=True))
"""A part has the same colour in every picture; ``idle`` is nobody's fault and pale."""


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
    reasons = idle_reasons(trace)
    parts = [
        use | {f"wait: {reason}": reasons[name].get(reason, 0) for reason in _WAITS}
        for name, use in time_use(trace, reasons).items()
    ]
    names = list(reasons)
    if ax is None:
        _, (ax,) = new_figure(height=min(20.0, 1.0 + 0.36 * max(2, len(names))))
    total = max(trace.makespan_ns, 1)
    left = [0.0] * len(names)
    for part, colour in _COLOURS.items():
        share = [100.0 * of[part] / total for of in parts]
        if any(share):
            ax.barh(names, share, left=left, color=colour, label=part, height=0.7)
        left = [a + b for a, b in zip(left, share, strict=True)]
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the makespan (%)")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    if title:
        ax.set_title(title, loc="left", fontsize=10)
    return ax
