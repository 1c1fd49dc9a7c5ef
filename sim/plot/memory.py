"""Memory over time: what one device holds, band by band, and what was reserved for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.analysis.memory_bands import RESIDENT
from sim.plot.colours import colour_of
from sim.plot.figure import elided, new_figure, scale_time
from sim.plot.legend import add_legend, handles_of, with_bands
from sim.plot.strips import (
    CAPACITY,
    IN_VAIN,
    RESERVED,
    Scale,
    Strip,
    Strips,
    band_labels,
    byte_unit,
    strip_of,
)
from sim.plot.theme import hatches, ink, paper, plain, shade
from sim.record.record import Record
from sim.words.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw_bands", "draw_strip", "memory", "memory_handles"]


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
    ax.set_ylabel(f"{elided(device)} ({name})")
    ax.set_xlim(0, until / scale)
    ax.set_ylim(0, 1.18 * top / unit)  # room for the peak's label
    plain(ax, title)
    if legend:
        add_legend(ax, memory_handles([strip]), alone=True)
    return ax


def memory_handles(strips: Sequence[Strip]) -> dict[str, Any]:
    """Return what a legend says of plots of memory: their bands, one entry a colour, and what is reserved.

    Parameters
    ----------
    strips : sequence of Strip
        All that the legend stands beside.
    """
    from matplotlib.lines import Line2D

    labels = band_labels([Strips(list(strips), [])])
    colours = {label: colour_of(label) for label in labels}
    entries = with_bands([], labels, colours)
    computed = [k for k, entry in enumerate(entries) if entry.kinds != (RESIDENT,)]
    if len(computed) == 1:
        (k,) = computed
        entries[k] = entries[k]._replace(label="in use")
    handles = handles_of(entries, colours)
    if any(strip.reserved is not None for strip in strips):
        handles["reserved"] = Line2D([], [], color=shade(RESERVED), linewidth=1)
    return handles


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
    ax.set_ylabel(f"{elided(strip.device)}\n({size.name})", rotation=0, ha="right", va="center", fontsize=8)
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
    for label, held in strip.bands.items():
        ax.fill_between(
            times,
            below / unit,
            (below + held) / unit,
            step="post",
            facecolor=shade(colours[label]),
            linewidth=0,
            hatch=hatch[label] or None,
            edgecolor=paper(),
        )
        below = below + held
    if strip.reserved is not None:
        kept = strip.reserved / unit
        ax.fill_between(times, below / unit, kept, step="post", color=shade(IN_VAIN), linewidth=0)
        ax.step(times, kept, where="post", color=shade(RESERVED), linewidth=1)


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
