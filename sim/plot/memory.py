"""Memory over time: what one device holds, band by band, and what was reserved for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.graph import IntArray
from sim.memory_bands import OTHER, RESIDENT, memory_bands
from sim.plot.figure import OKABE_ITO, new_figure, scale_time
from sim.plot.figure import OTHER as OTHER_COLOUR
from sim.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["memory"]

_COLOURS = (OKABE_ITO[0], OKABE_ITO[4], OKABE_ITO[1], OKABE_ITO[2], OKABE_ITO[3], OKABE_ITO[6])


def memory(trace: Trace, device: str, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Draw the bytes in use on a device, instant by instant, and mark the peak.

    One band is what stays (parameters and inputs), one each the outputs of the kinds of op that hold
    most; with an allocator, a line is what it reserved, and the grey below it what it reserved in vain.

    Parameters
    ----------
    trace : Trace
    device : str
        Name of a device.
    ax : Axes, optional
    title : str, optional

    Returns
    -------
    Axes

    Raises
    ------
    UnknownNameError
        There is no such device.
    """
    index = trace.job.machine.device_index(device)
    bands = memory_bands(trace, device)
    total = np.sum([*bands.nbytes.values(), np.zeros(len(bands.times_ns), np.int64)], axis=0)
    log = trace.memory
    mine = slice(0, 0) if log is None else np.flatnonzero(log["device"] == index)
    reserved = 0 if log is None else int(log["reserved"][mine].max(initial=0))
    peak = int(total.max(initial=0))
    peak_ns = int(bands.times_ns[total.argmax()]) if len(total) else 0
    top = max(peak, reserved, 1)
    if ax is None:
        _, (ax,) = new_figure(height=2.6)
    scale = scale_time(ax, max(trace.makespan_ns, 1))
    unit, name = next(
        ((u, n) for u, n in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")) if top >= u), (1, "B")
    )
    times, below = bands.times_ns / scale, np.zeros(len(bands.times_ns), np.int64)
    computed = [label for label in bands.nbytes if label != RESIDENT]
    for k, (label, held) in enumerate(bands.nbytes.items()):
        ax.fill_between(
            times,
            below / unit,
            (below + held) / unit,
            step="post",
            color=OTHER_COLOUR if label == OTHER else _COLOURS[k % len(_COLOURS)],
            alpha=0.8,
            linewidth=0,
            label="in use" if computed == [label] else label,
        )
        below = below + held
    if log is not None:
        when = bands.times_ns / scale
        kept, used = (_held_to_the_end(log[name][mine]) / unit for name in ("reserved", "in_use"))
        ax.fill_between(when, used, kept, step="post", color="#eeeeee", linewidth=0)
        ax.step(when, kept, where="post", color=OKABE_ITO[5], linewidth=1, label="reserved")
    ax.axvline(peak_ns / scale, color="black", linewidth=0.7, linestyle=":")
    late = peak_ns > trace.makespan_ns / 2
    ax.annotate(
        f"peak {peak / unit:,.4g} {name}",
        (peak_ns / scale, top / unit),
        textcoords="offset points",
        xytext=(-4, 3) if late else (4, 3),
        ha="right" if late else "left",
        fontsize=8,
    )
    ax.set_ylabel(f"{device} ({name})")
    ax.set_xlim(0, max(trace.makespan_ns, 1) / scale)
    ax.set_ylim(0, 1.18 * top / unit)  # room for the peak's label
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    if title:
        ax.set_title(title, loc="left", fontsize=10)
    return ax


def _held_to_the_end(steps: IntArray) -> IntArray:
    return np.append(steps, steps[-1:] if len(steps) else 0)
