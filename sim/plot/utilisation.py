"""Where the time of every device went: busy, and idle by reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.explain import idle_reasons
from sim.plot.figure import OKABE_ITO, OTHER, new_figure
from sim.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["utilisation"]


def utilisation(trace: Trace, ax: Axes | None = None, *, title: str | None = None) -> Axes:
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
        _, (ax,) = new_figure(height=1.2 + 0.4 * len(names))
    total = max(trace.makespan_ns, 1)
    words = sorted({word for idle in reasons.values() for word, ns in idle.items() if ns})
    left = [100.0 * (total - sum(idle.values())) / total for idle in reasons.values()]
    ax.barh(names, left, color=OKABE_ITO[0], label="busy")
    for k, word in enumerate(words):
        share = [100.0 * idle.get(word, 0) / total for idle in reasons.values()]
        colour = OKABE_ITO[k + 1] if k + 1 < len(OKABE_ITO) and word != "finished" else OTHER
        ax.barh(names, share, left=left, color=colour, label=f"idle: {word}")
        left = [a + b for a, b in zip(left, share, strict=True)]
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of the makespan (%)")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    if title:
        ax.set_title(title, loc="left", fontsize=10)
    return ax
