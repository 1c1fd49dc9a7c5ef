"""Where the time of every device went: busy, and idle by reason."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sim.explain.idle import REASONS, idle_reasons
from sim.plot.figure import OKABE_ITO, new_figure
from sim.record.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["utilisation"]

_BUSY, *_IDLE = OKABE_ITO
_COLOURS: Final = dict(
    zip(REASONS, (*_IDLE, "#000000", "#555555", "#8C510A", "#DDDDDD", "#EEEEEE"), strict=True)
)
"""A reason has the same colour in every picture; ``finished`` and ``unused`` are nobody's fault and pale."""


def utilisation(trace: Record, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Draw one bar per device: the share of the makespan it was busy, and why it was not.

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
    names = list(reasons)
    if ax is None:
        _, (ax,) = new_figure(height=min(20.0, 1.0 + 0.36 * max(2, len(names))))
    total = max(trace.makespan_ns, 1)
    left = [100.0 * (total - sum(idle.values())) / total for idle in reasons.values()]
    ax.barh(names, left, color=_BUSY, label="busy", height=0.7)
    for word, colour in _COLOURS.items():
        share = [100.0 * idle.get(word, 0) / total for idle in reasons.values()]
        if any(share):
            ax.barh(names, share, left=left, color=colour, label=f"idle: {word}", height=0.7)
        left = [a + b for a, b in zip(left, share, strict=True)]
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the makespan (%)")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    if title:
        ax.set_title(title, loc="left", fontsize=10)
    return ax
