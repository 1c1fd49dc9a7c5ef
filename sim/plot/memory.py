"""Memory over time: what one device holds, band by band, and what was reserved for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from sim.analysis.memory_bands import RESIDENT
from sim.plot.colours import colour_of
from sim.plot.figure import new_figure, scale_time
from sim.plot.strips import CAPACITY, IN_VAIN, RESERVED, Scale, Strip, byte_unit, strip_of
from sim.plot.theme import hatches, ink, paper, plain, shade
from sim.record.record import Record
from sim.words.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_bands", "draw_strip", "memory"]


def memory(
    trace: Record,
    device: str,
    ax: Axes | None = None,
    *,
    title: str | None = None,
    size: Scale | None = None,
    until_ns: int | None = None,
    legend: bool = True,
) -> Axes:
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
    size : Scale, optional
        The vertical axis, where several plots are compared (`sim.plot.strips.scales_of`); else its own.
    until_ns : int, optional
        Right end of the time axis; by default the makespan.
    legend : bool
        Whether to explain the colours, beside the plot.

    Returns
    -------
    Axes

    Raises
    ------
    UnknownNameError
        There is no such device.
    """
    strip = strip_of(trace, device)
    if ax is None:
        _, (ax,) = new_figure(height=2.6)
    until = until_ns or max(trace.makespan_ns, 1)
    scale = scale_time(ax, until)
    top, unit, name = size or Scale(strip.top_bytes, *byte_unit(strip.top_bytes))
    colours = {label: colour_of(label) for label in strip.bands}
    draw_bands(ax, strip, colours, scale=scale, unit=unit)
    late, peak = strip.peak_ns > until / 2, f"{strip.peak_bytes / unit:,.4g} {name}"
    _mark_peak(ax, strip, peak, scale, top / unit, late=late, size=8)
    ax.set_ylabel(f"{device} ({name})")
    ax.set_xlim(0, until / scale)
    ax.set_ylim(0, 1.18 * top / unit)  # room for the peak's label
    plain(ax, title)
    if legend:
        ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    return ax


def draw_strip(ax: Axes, strip: Strip, colours: Mapping[str, str], size: Scale, until_ns: int) -> None:
    """Draw one device below a Gantt chart: low, without a legend, and its name where lanes have theirs.

    Parameters
    ----------
    ax : Axes
        Shares its time axis with the chart.
    strip : Strip
    colours : mapping of str to str
        Label of a band → colour (`sim.plot.strips.coloured_strips`).
    size : Scale
        Of all strips that are compared with this one.
    until_ns : int
        Right end of the time axis.
    """
    scale = scale_time(ax, until_ns)
    draw_bands(ax, strip.seen(until_ns), colours, scale=scale, unit=size.unit)
    if strip.is_nearly_full and strip.capacity_bytes is not None:
        ax.axhline(strip.capacity_bytes / size.unit, color=shade(CAPACITY), linewidth=1, linestyle="--")
    late, peak = strip.peak_ns > until_ns / 2, format_bytes(strip.peak_bytes, iec=True)
    _mark_peak(ax, strip, peak, scale, size.top_bytes / size.unit, late=late, size=7)
    ax.set_ylabel(f"{strip.device}\n({size.name})", rotation=0, ha="right", va="center", fontsize=8)
    ax.set_ylim(0, 1.35 * size.top_bytes / size.unit)  # room for the peak's label
    ax.locator_params(axis="y", nbins=3)
    ax.tick_params(axis="y", labelsize=7)
    plain(ax)
    ax.grid(axis="x", linewidth=0.4, alpha=0.5)
    ax.set_axisbelow(True)


def draw_bands(ax: Axes, strip: Strip, colours: Mapping[str, str], *, scale: int, unit: int) -> None:
    """Draw what is in use, band upon band, and what is reserved: all that plots of memory have in common.

    Parameters
    ----------
    ax : Axes
    strip : Strip
    colours : mapping of str to str
        Label of a band → colour.
    scale, unit : int
        Nanoseconds and bytes in the units of the axes.
    """
    times, below = strip.times_ns / scale, np.zeros(len(strip.times_ns), np.int64)
    hatch = hatches(colours)
    computed = [label for label in strip.bands if label != RESIDENT]
    for label, held in strip.bands.items():
        ax.fill_between(
            times,
            below / unit,
            (below + held) / unit,
            step="post",
            color=shade(colours[label]),
            alpha=0.8,
            linewidth=0,
            hatch=hatch[label] or None,
            edgecolor=paper(),
            label="in use" if computed == [label] else label,
        )
        below = below + held
    if strip.reserved is not None:
        kept = strip.reserved / unit
        ax.fill_between(times, below / unit, kept, step="post", color=shade(IN_VAIN), linewidth=0)
        ax.step(times, kept, where="post", color=shade(RESERVED), linewidth=1, label="reserved")


def _mark_peak(ax: Axes, strip: Strip, peak: str, scale: int, top: float, *, late: bool, size: int) -> None:
    """Mark the instant at which most is in use, and say how much, on the side that has more room."""
    ax.axvline(strip.peak_ns / scale, color=ink(), linewidth=0.7, linestyle=":")
    ax.annotate(
        f"peak {peak}",
        (strip.peak_ns / scale, top),
        textcoords="offset points",
        xytext=(-4, 3) if late else (4, 3),
        ha="right" if late else "left",
        fontsize=size,
    )
