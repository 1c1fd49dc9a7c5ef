"""Memory over time: what one device holds, and what was reserved for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sim.memory_use import memory_use
from sim.plot.figure import OKABE_ITO, new_figure, scale_time
from sim.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["memory"]


def memory(trace: Trace, device: str, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Draw the bytes in use on a device, instant by instant, and mark the peak.

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
    use = memory_use(trace)[device]
    if ax is None:
        _, (ax,) = new_figure(height=2.6)
    scale = scale_time(ax, max(trace.makespan_ns, 1))
    log = trace.memory
    mine = slice(0, 0) if log is None else np.flatnonzero(log["device"] == index)
    reserved = 0 if log is None else int(log["reserved"][mine].max(initial=0))
    top = max(use.peak_bytes, reserved, 1)
    unit, name = next(
        ((u, n) for u, n in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")) if top >= u), (1, "B")
    )
    times, held = use.times_ns / scale, use.in_use_bytes / unit
    ax.fill_between(times, held, step="post", color=OKABE_ITO[4], alpha=0.7, linewidth=0, label="in use")
    if use.resident_bytes:
        ax.axhspan(0, use.resident_bytes / unit, color=OKABE_ITO[0], linewidth=0, label="resident")
    if log is not None:
        ax.step(
            log["time_ns"][mine] / scale,
            log["reserved"][mine] / unit,
            where="post",
            color=OKABE_ITO[5],
            linewidth=1,
            label="reserved",
        )
    ax.axvline(use.peak_ns / scale, color="black", linewidth=0.7, linestyle=":")
    late = use.peak_ns > trace.makespan_ns / 2
    ax.annotate(
        f"peak {use.peak_bytes / unit:,.4g} {name}",
        (use.peak_ns / scale, use.peak_bytes / unit),
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
