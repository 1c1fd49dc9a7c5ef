"""How every device spent its time: computing, communicating, waiting by reason, idle."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, FloatArray, IntArray, group_pairs, sums_by
from sim.base.errors import InputError, list_names
from sim.base.units import NS_PER_S, format_bytes, format_count, format_flops
from sim.explain.communication import LinkLoad, link_loads
from sim.explain.derived import DerivedColumns
from sim.explain.idle import REASONS, idle_reasons
from sim.explain.time_use import WORD_OF_REASON, time_use
from sim.machine.device import CostModel, Device
from sim.plot.bar_polygons import name_lanes, points_of
from sim.plot.figure import axes_or_new, elide, scale_time, show_x
from sim.plot.legend import SLICES, add_legend, entries_of
from sim.plot.theme import OKABE_ITO, colour_of, hatches, ink, is_dark, is_print, paper, plain, shade
from sim.record.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WAITS: Final = tuple(reason for reason in REASONS if reason not in WORD_OF_REASON)
_PARTS: Final = ("compute", "communicate", *(f"wait: {reason}" for reason in _WAITS), "idle")
_EXTRA_COLOURS: Final = (
    *("black", "#332288", "#8C510A", "#882255", "#999933"),
    *("#B0D0A0", "#DDCC77", "#661100", "#7722FF", "#EEEEEE"),
)
USE_COLOURS: Final = dict(zip(_PARTS, (*OKABE_ITO, *_EXTRA_COLOURS), strict=True))
"""Colour of each part, the same in every picture; ``idle`` has no cause and is pale."""


def use_of_devices(run: Record | DerivedColumns) -> dict[str, dict[str, int]]:
    """Return, for each device, the ns of every part of `USE_COLOURS`; they add up to the makespan."""
    f = DerivedColumns.of(run)
    reasons = idle_reasons(f)
    return {
        name: {
            part: use[part] if part in use else reasons[name].get(part.removeprefix("wait: "), 0)
            for part in _PARTS
        }
        for name, use in time_use(f).items()
    }


def utilisation(trace: Record, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Draw one bar per device: its shares of the makespan (`sim.explain.time_use`), with waits by reason.

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
    ax = axes_or_new(ax, height=min(20.0, 1.0 + 0.36 * max(2, len(names))))
    total = max(trace.makespan_ns, 1)
    left, hatch = [0.0] * len(names), hatches(USE_COLOURS)
    for part, colour in USE_COLOURS.items():
        share = [100.0 * times[part] / total for times in parts]
        if any(share):
            look: dict[str, Any] = {"color": shade(colour), "hatch": hatch[part] or None}
            look |= {"edgecolor": paper(), "linewidth": 0}
            ax.barh(range(len(names)), share, 0.7, left, label=part, **look)
        left = [a + b for a, b in zip(left, share, strict=True)]
    name_lanes(ax, names, points_of(ax, len(names))[1])
    show_x(ax, "share of the makespan (%)", 100)
    plain(ax, title)
    add_legend(ax, alone=True)
    return ax


# ----------------------------------------------------------------------------------------------------------
# The load of each link over time, as a heat map.
#
#     node0/up      ░░▒▒▓▓██▓▓░░░░░░     a row for each link that carried bytes; if there are many, for those
#     node1/up      ░░░░░░▒▒▓▓██▓▓░░     with the highest mean load
#                   0    time (ms)       paper: nothing, full colour: all of its bandwidth

MOST_LINKS: Final = 32
"""Maximum number of links shown."""
_COLUMNS: Final = 1_200


def most_used(loads: Sequence[LinkLoad]) -> tuple[list[LinkLoad], int]:
    """Return the links to show, in machine order, and how many are left out."""
    ranked = sorted(range(len(loads)), key=lambda k: -loads[k].mean)[:MOST_LINKS]
    return [loads[k] for k in sorted(ranked)], len(loads) - len(ranked)


def link_heat_map(
    trace: Record, ax: Axes | None = None, *, title: str | None = None, until_ns: int | None = None
) -> Axes:
    """Draw the share of its bandwidth that each link uses (`sim.explain.communication.link_loads`).

    Parameters
    ----------
    trace : Trace
    ax : Axes, optional
    title : str, optional
    until_ns : int, optional
        Right end of the time axis; by default the makespan.

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        No link with a bandwidth carried anything.
    """
    from matplotlib.colors import LinearSegmentedColormap

    loads = link_loads(trace)
    if not loads:
        raise InputError("there is nothing to draw: no link with a bandwidth carries anything")
    links, left_out = most_used(loads)
    ax = axes_or_new(ax, height=1.2 + 0.24 * max(3, len(links)))
    end_ns = until_ns or max(trace.makespan_ns, 1)
    scale = scale_time(ax, end_ns)
    edges = np.unique(np.linspace(0, max(trace.makespan_ns, 1), _COLUMNS + 1).round().astype(np.int64))
    shares = np.stack([load.means(edges) for load in links])
    blues = [OKABE_ITO[0], OKABE_ITO[4]] if is_dark() else [OKABE_ITO[4], OKABE_ITO[0]]
    colours = LinearSegmentedColormap.from_list("load", [paper(), *blues])
    rows = np.arange(len(links) + 1) - 0.5
    drawn = ax.pcolormesh(edges / scale, rows, 100 * shares, cmap=colours, vmin=0, vmax=100, rasterized=True)
    ax.hlines(rows[1:-1], 0, end_ns / scale, color=ink(), linewidth=0.2, alpha=0.5)
    names = [f"{elide(load.link)}  {100 * load.mean:.1f} %" for load in links]
    ax.set_yticks(range(len(links)), names, fontsize=8, parse_math=False)
    ax.set_ylim(len(links) - 0.5, -0.5)
    note = f"not shown: {format_count(left_out, 'link')} used less" if left_out else ""
    plain(ax, "; ".join(part for part in (title, note) if part))
    figure = ax.get_figure(root=True)
    if figure is not None:
        figure.colorbar(drawn, ax=ax, label="bandwidth in use (%)", pad=0.01, fraction=0.03, extend="max")
    return ax


# ----------------------------------------------------------------------------------------------------------
# Ops under the roofs of their devices: flop per byte, and the rate that was reached.
#
# ::
#
#     flop/s │          ________________ bf16: 989 TFLOP/s
#            │         /   ● ●              a point for each op, in the colour of its kind; the larger, the
#            │        / ●                   more of the time it takes
#            │       /●   ____________ fp32
#            │      / ○
#            └───────────────────────────── flop per byte
#
# Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009. The roofs come from cost models
# (`sim.machine.device.CostModel.roofs`): the slope is the memory bandwidth.

_MARKERS: Final = "osD^v<>Ph"
"""Markers of the sorts of device; in print, of kinds of op."""


class OpPoints(NamedTuple):
    """Ops with flop and bytes that took some time, on devices of one sort.

    Attributes
    ----------
    devices : list of str
    op : array of int64
        The ops, one entry each.
    intensity, flop_per_s : arrays of float
        Flop per byte read or written, and the rate reached, over all executions of the op.
    ns : array of int64
        Its total time on these devices.
    roof_flop_per_s : array of float
        The peak for its data type; NaN: the cost model gives none.
    roof_bytes_per_s : float
        The memory bandwidth; NaN: none.
    """

    devices: list[str]
    op: IntArray
    intensity: FloatArray
    flop_per_s: FloatArray
    ns: IntArray
    roof_flop_per_s: FloatArray
    roof_bytes_per_s: float


def op_points(trace: Record) -> list[OpPoints]:
    """Return the points of the roofline, separately for each sort of device.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", duration_ns=1000, flops=6000, bytes_read=1000, bytes_written=500)
    >>> (points,) = op_points(simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue()))
    >>> points.devices, points.intensity.tolist(), points.flop_per_s.tolist()
    (['gpu0'], [4.0], [6000000000.0])
    """
    graph, device, ran = trace.job.graph, trace.device, trace.tasks["op"]
    nbytes = graph.bytes_read + graph.bytes_written
    duration = trace.tasks["end_ns"] - trace.begins_ns
    counts = trace.executed & (duration > 0) & (graph.flops[ran] > 0) & (nbytes[ran] > 0)
    points = []
    devices = trace.job.machine.devices
    for members in _alike(devices):
        rows = np.flatnonzero(counts & np.isin(device, members))
        if not len(rows):
            continue
        op, index = np.unique(ran[rows], return_inverse=True)
        ns, flops = sums_by(index, duration[rows], len(op)), graph.flops[op]
        rate = flops * np.bincount(index) * float(NS_PER_S) / ns
        names, first = [devices[d].name for d in members], devices[members[0]]
        peaks, bandwidth = (first.cost or CostModel()).roofs(graph, first)
        points.append(OpPoints(names, op, flops / nbytes[op], rate, ns, peaks[op], bandwidth))
    return points


def _alike(devices: Sequence[Device]) -> list[list[int]]:
    """Return groups of positions of devices of one kind with one cost model."""
    sorts = [(device.kind, device.cost) for device in devices]  # not all have a hash
    return list(group_pairs((sorts.index(sort), d) for d, sort in enumerate(sorts)).values())


def roofline(trace: Record, ax: Axes | None = None, *, title: str | None = None) -> Axes:
    """Draw ops by flop per byte and by the rate that they reached.

    A dotted roof is drawn for each peak that a device's cost model gives for the ops that ran there. For an
    op above its roof, the measured or given duration disagrees with the roof.

    Parameters
    ----------
    trace : Trace
    ax : Axes, optional
    title : str, optional

    Returns
    -------
    Axes

    Raises
    ------
    InputError
        No op has both flop and bytes.
    """
    from matplotlib.lines import Line2D

    sorts = op_points(trace)
    if not sorts:
        raise InputError("there is nothing to draw: no op that took some time has both flop and bytes")
    ax = axes_or_new(ax, width=9.0, height=5.0)
    graph = trace.job.graph
    time_ns = np.zeros(len(graph.kinds), np.int64)
    for points in sorts:
        np.add.at(time_ns, graph.kind_code[points.op], points.ns)
    colours = {kind: colour_of(kind) for kind in graph.kinds}
    entries = entries_of({graph.kinds[k]: ns for k, ns in enumerate(time_ns.tolist()) if ns}, colours)
    handles: dict[str, Any] = {}
    look: dict[str, Any] = {"alpha": 0.7, "edgecolors": ink(), "linewidths": 0.2, "zorder": 3}
    for rank, entry in enumerate(entries):
        for kind in entry.kinds:
            colour, k = shade(colours[kind]), graph.kinds.index(kind)
            for number, points in enumerate(sorts):
                mask = graph.kind_code[points.op] == k
                marker = _MARKERS[(rank if is_print() else number) % len(_MARKERS)]
                xy, area = (points.intensity[mask], points.flop_per_s[mask]), 250 * points.ns[mask]
                look["rasterized"] = len(points.op) > 5_000
                ax.scatter(*xy, 18 + area / points.ns.sum(), colour, marker=marker, **look)
        dots = [
            Line2D([], [], color=shade(item), marker=marker, linestyle="none", markersize=6)
            for item in entry.colours[:SLICES]
        ]
        handles[entry.label] = dots[0] if len(dots) == 1 else tuple(dots)
    if len(sorts) > 1 and not is_print():
        shape: dict[str, Any] = {"color": ink(), "markerfacecolor": "none", "linestyle": "none"}
        for number, points in enumerate(sorts):
            marker = _MARKERS[number % len(_MARKERS)]
            handles[elide(list_names(points.devices))] = Line2D([], [], marker=marker, **shape)
    ax.set(xscale="log", yscale="log", xlabel="flop per byte of memory", ylabel="")
    ax.margins(0.08)
    ax.autoscale_view()
    _roofs(ax, trace, sorts)
    left_out = len(np.unique(trace.tasks["op"])) - len(np.unique(np.concatenate([item.op for item in sorts])))
    note = f"not shown: {format_count(left_out, 'op')} without flop or bytes" if left_out else ""
    plain(ax, "; ".join(part for part in (title, note) if part), "both")
    add_legend(ax, handles, alone=True)
    return ax


def _roofs(ax: Axes, trace: Record, sorts: Sequence[OpPoints]) -> None:
    """Draw the roofs within the limits of the axes, each with its name where it is flat."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter, StrMethodFormatter

    graph = trace.job.graph
    roofs: dict[tuple[float, float], dict[str, None]] = {}
    for points in sorts:
        for peak in np.unique(points.roof_flop_per_s[~np.isnan(points.roof_flop_per_s)]).tolist():
            dtypes = np.unique(graph.dtype_code[points.op[points.roof_flop_per_s == peak]]).tolist()
            names = [graph.dtypes[code] for code in dtypes if code != UNSET]
            roofs.setdefault((peak, points.roof_bytes_per_s), {}).update(dict.fromkeys(names))
        if not (points.roof_flop_per_s > 0).any() and points.roof_bytes_per_s > 0:
            roofs.setdefault((math.inf, points.roof_bytes_per_s), {})
    left, right = ax.get_xlim()
    for peak, slope in roofs:  # so that the ridges are visible
        if not math.isnan(slope) and math.isfinite(peak):
            left, right = min(left, peak / slope / 2), max(right, peak / slope * 4)
    top = ax.get_ylim()[1]
    style: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "fontsize": 8}
    x = np.geomspace(left, right, 400)
    for (peak, slope), of_types in roofs.items():
        y = np.full(len(x), peak) if math.isnan(slope) else np.minimum(peak, slope * x)
        ax.plot(x, y, color=ink(), linewidth=0.9, linestyle=":", zorder=2)
        if math.isfinite(peak):
            prefix = f"{', '.join(of_types)}: " if of_types else ""
            name = f"{prefix}{format_flops(peak, digits=3)}/s"
            ax.annotate(name, (right, peak), (-2, 10), **style)  # above the largest dot on the roof
            top = max(top, peak * 2)
        if not math.isnan(slope):
            above = float(x[60]), float(y[60])  # the roof, where no op is
            ax.annotate(f"{format_bytes(slope, digits=3)}/s", above, (-3, 3), **style)
    ax.set_xlim(left, right)
    ax.set_ylim(top=top)
    for axis, (low, high), unit in ((ax.xaxis, ax.get_xlim(), ""), (ax.yaxis, ax.get_ylim(), "FLOP/s")):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
        axis.set_major_formatter(EngFormatter(unit) if unit else StrMethodFormatter("{x:g}"))
        axis.set_minor_formatter(NullFormatter())
