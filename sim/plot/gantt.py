"""The Gantt chart: one lane per stream, one bar per task, as many as there are.

::

    gpu0/host   ▇▇▇▇▇▇                              launches, on request
    gpu0/0        ▇▇conv▇▇▇▇pool▇▇   ▇▇concat▇▇     bars coloured by kind, named where there is room
    gpu0/1               ▇▇conv▇▇▇▇▇▇▇              arrows (on request) from producer to consumer
    gpu0→gpu1                     ▇▇                transfers

All bars of a chart are one collection of polygons: 20,000 of them draw in well under a second. Narrow
ones get no edges, which would be all that one sees, and are blended, not snapped to pixels, so that a
column of the picture has the colours of what ran then, as strong as the lane was busy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from sim.explain.facts.derived_columns import Facts
from sim.plot.bars import Bars, PathSteps, arrows_of, bars_of, folded_note, name_of, path_of
from sim.plot.colours import LAUNCH, TRANSFER, WAITING, kind_colours
from sim.plot.figure import new_figure, scale_time, time_unit
from sim.plot.memory import draw_strip
from sim.plot.strips import CAPACITY, IN_VAIN, RESERVED, Strips, band_labels, coloured_strips
from sim.plot.theme import hatches, ink, paper, plain, printed, shade
from sim.record.record import Record
from sim.words.arrays import UNSET, BoolArray, IntArray

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["colours_of", "compare_gantt", "draw_bars", "gantt", "ink_on", "legend_of"]

_HEIGHT = 0.8
_LANE_INCHES = 0.36
_STRIP_INCHES = 0.7
_LABELS = 1_500
"""Bars of one chart that get their name; more take longer to draw than the rest of the picture."""
_LETTER = 4.5
"""Points that a letter takes at size 7."""
_PALE = 0.2
"""Opacity of bars that are not on the critical path."""
_SEEN = 200
"""Transfers are not drawn where they keep no pair of devices busy for the makespan over this."""


def gantt(
    trace: Record,
    ax: Axes | None = None,
    *,
    colours: Mapping[str, str] | None = None,
    links: bool = True,
    issuers: bool = False,
    arrows: bool = False,
    critical_path: bool = False,
    title: str | None = None,
    until_ns: int | None = None,
    legend: bool = True,
) -> Axes:
    """Draw a trace, without its memory: `compare_gantt` shows both.

    Parameters
    ----------
    trace : Trace
    ax : Axes, optional
        Where; by default a new figure of fitting height.
    colours : mapping of str to str, optional
        Kind of op → colour; by default `colours_of` the trace.
    links : bool
        Whether transfers get lanes of their own, one per pair of devices.
    issuers : bool
        Whether host threads get lanes, on which launches that cost time are seen.
    arrows : bool
        Whether arrows lead from producers to consumers on other lanes.
    critical_path : bool
        Whether the executed critical path (`sim.explain.path`) is shown: all that is not on it is pale, and a
        line leads from each step to the next, along the lane of what is issued or waits.
    title : str, optional
    until_ns : int, optional
        Right end of the time axis; by default the makespan.
    legend : bool
        Whether to explain the colours, beside the chart.

    Returns
    -------
    Axes

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", duration_ns=1500)
    >>> ax = gantt(simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue()))
    >>> [label.get_text() for label in ax.get_yticklabels()], ax.get_xlabel()
    (['gpu0/0'], 'time (ns)')
    """
    folded = links and _negligible(trace)
    bars = bars_of(trace, links=links and not folded, issuers=issuers).seen()
    if ax is None:
        _, (ax,) = new_figure(height=min(20.0, 0.9 + _LANE_INCHES * max(2, len(bars.lanes))))
    until = until_ns or max(trace.makespan_ns, 1)
    scale = scale_time(ax, until)
    colours = colours or colours_of([trace])
    shown, marked = bars.packed(until), None
    if critical_path:
        path = path_of(Facts(trace), bars, shown)
        marked = np.isin(np.arange(len(shown)), path.bar)
    draw_bars(ax, shown, colours, scale, until, marked)
    _names(ax, trace, bars, colours, scale, until, None if marked is None else shown.row[marked])
    if critical_path:
        _path(ax, path, scale, until)
    if arrows:
        _arrows(ax, trace, bars, scale)
    ax.set_yticks(range(len(bars.lanes)), bars.lanes, fontsize=8 if len(bars.lanes) > 24 else None)
    ax.set_ylim(len(bars.lanes) - 0.5, -0.5)
    ax.set_xlim(0, until / scale)
    ax.grid(axis="x", linewidth=0.4, alpha=0.5)
    ax.set_axisbelow(True)
    plain(ax, title)
    if legend:
        _legend(ax, legend_of([bars], colours), colours, folded=folded)
    return ax


def compare_gantt(
    traces: Record | Mapping[str, Record],
    *,
    links: bool = True,
    issuers: bool = False,
    arrows: bool = False,
    critical_path: bool = False,
    memory: bool = True,
) -> Figure:
    r"""Draw one trace or several one above the other, on one time axis and with one set of colours.

    Where an allocator kept a log of a run, memory over time is drawn below the lanes of all: a strip for each
    device whose memory changes (of more than eight, those with the highest peaks). What is in use is
    stacked by the kind of op that made it, in the colours of the chart; a line is what is reserved, and a
    dashed one all the memory there is, where three quarters of it are held. Strips of devices of one kind
    have one scale in bytes, over all runs.

    Parameters
    ----------
    traces : Trace, or mapping of str to Trace
        Title → trace, from top to bottom.
    links, issuers, arrows, critical_path : bool
        As for `gantt`.
    memory : bool
        Whether memory is drawn where a run has a log of it. Without one nothing is different; runs without a
        log beside others that have one show what their tensors need.

    Returns
    -------
    Figure

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from devices.memory.run.tensors import tensor_memory
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("chain")
    >>> _ = b.op("a", duration_ns=10, outputs=100)
    >>> _ = b.op("b", duration_ns=10, outputs=70, inputs=["a"])
    >>> trace = simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue(), memory=tensor_memory())
    >>> chart, strip = compare_gantt(trace).axes
    >>> strip.get_ylabel(), strip.get_xlim() == chart.get_xlim(), strip.texts[0].get_text()
    ('gpu0\n(B)', True, 'peak 170 B')
    """
    named = {"": traces} if isinstance(traces, Record) else traces
    runs = list(named.values())
    until = max(max(trace.makespan_ns for trace in runs), 1)
    folded = [links and _negligible(trace) for trace in runs]
    bars = [
        bars_of(trace, links=links and not fold, issuers=issuers).seen()
        for trace, fold in zip(runs, folded, strict=True)
    ]
    held, colours, sizes = coloured_strips(runs, colours_of(runs), memory=memory)
    labels = legend_of(bars, colours)
    more = _legend_of_memory(held, colours, [label for label, _ in labels])

    lanes = [_LANE_INCHES * max(2, len(each.lanes)) for each in bars]
    n_strips = sum(len(run.shown) for run in held)
    height = 0.6 + sum(0.4 + h for h in lanes) + n_strips * (0.08 + _STRIP_INCHES)
    if more:  # a low chart may be lower than its legend
        height = max(height, 0.3 + 0.17 * (len(labels) + len(more)))
    figure, axes = new_figure(len(lanes) + n_strips, height=min(40.0, height))
    if (grid := axes[0].get_gridspec()) is not None:
        rows = zip(lanes, held, strict=True)
        grid.set_height_ratios(
            [inches for h, run in rows for inches in (h, *(_STRIP_INCHES for _ in run.shown))]
        )
    free = iter(axes)
    ns, unit = time_unit(until)
    for (name, trace), run in zip(named.items(), held, strict=True):
        ax, strips = next(free), list(islice(free, len(run.shown)))
        gantt(
            trace,
            ax,
            colours=colours,
            links=links,
            issuers=issuers,
            arrows=arrows,
            critical_path=critical_path,
            title=f"{name}: " * bool(name) + f"{trace.makespan_ns / ns:,.4g} {unit}{folded_note(trace)}",
            until_ns=until,
            legend=False,
        )
        for below, strip in zip(strips, run.shown, strict=True):
            draw_strip(below, strip, colours, sizes[strip.kind], until)
        if run.note:
            strips[0].set_title(run.note, loc="left", fontsize=8)
        ax.axvline(trace.makespan_ns / ns, color=ink(), linewidth=0.8, linestyle=":")
        for each in (ax, *strips):
            each.label_outer()
    _legend(figure, labels, colours, folded=any(folded), more=more)
    return figure


def _legend_of_memory(
    runs: Sequence[Strips], colours: Mapping[str, str], named: Sequence[str]
) -> list[Artist]:
    """Return handles for what only the strips show: what stays, kinds that take no time, lines."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Artist] = [_patch(label, colours) for label in band_labels(runs) if label not in named]
    strips = [strip for run in runs for strip in run.shown]
    if strips:
        handles.append(Line2D([], [], color=shade(RESERVED), linewidth=1, label="reserved"))
        handles.append(Patch(color=shade(IN_VAIN), label="reserved, not in use"))
    if any(strip.is_nearly_full for strip in strips):
        handles.append(Line2D([], [], color=CAPACITY, linewidth=1, linestyle="--", label="capacity"))
    return handles


def _negligible(trace: Record) -> bool:
    """Return whether there are transfers, and none of their lanes would show any."""
    moved = trace.transfers
    if not len(moved["tensor"]):
        return False
    pair = moved["source"] * len(trace.job.machine.devices) + moved["destination"]
    busy = np.bincount(pair, moved["end_ns"] - moved["start_ns"])
    return bool(busy.max() * _SEEN < trace.makespan_ns)


def colours_of(traces: Sequence[Record]) -> dict[str, str]:
    """Return kind → colour of all that is seen, the kinds that take most time first.

    Which colour, follows from the name alone (`sim.plot.colours`): a kind looks alike in all figures.

    Parameters
    ----------
    traces : sequence of Trace
        All that will be seen together.
    """
    busy: dict[str, int] = {}
    for trace in traces:
        kinds = trace.job.graph.kinds
        code = trace.job.graph.kind_code[trace.tasks["op"]]
        lasted = np.zeros(len(kinds), np.int64)
        np.add.at(lasted, code, trace.tasks["end_ns"] - trace.tasks["start_ns"])
        for kind, ns in zip(kinds, lasted.tolist(), strict=True):
            busy[kind] = busy.get(kind, 0) + ns
    return kind_colours([WAITING, LAUNCH, TRANSFER, *sorted(busy, key=lambda kind: (-busy[kind], kind))])


def draw_bars(
    ax: Axes,
    bars: Bars,
    colours: Mapping[str, str],
    scale: int,
    until: int,
    marked: BoolArray | None = None,
) -> None:
    """Draw bars into axes whose unit of time has `scale` ns, and which end at `until` ns.

    Where some are `marked`, the others are pale.
    """
    from matplotlib.collections import PolyCollection
    from matplotlib.colors import to_rgba_array

    palette = to_rgba_array([shade(colours[kind]) for kind in bars.kinds])
    hatch = hatches(colours)
    face = palette[bars.kind]
    if marked is not None:
        face[~marked, 3] = _PALE
    height = _HEIGHT / bars.n_levels
    top = bars.lane - _HEIGHT / 2 + bars.level * height
    left, right, bottom = bars.start / scale, bars.end / scale, top + height
    corners = np.stack((left, top, left, bottom, right, bottom, right, top), axis=-1).reshape(-1, 4, 2)
    wide = bars.end - bars.start > until / 400  # an edge around a thinner bar would hide it
    groups: list[tuple[BoolArray, float, Any, str]] = [(~wide, 0.0, "none", "")]
    for pattern in sorted(set(hatch.values())):
        kinds = [k for k, kind in enumerate(bars.kinds) if hatch[kind] == pattern]
        here = wide & np.isin(bars.kind, kinds)
        groups.append((here, 0.5, paper(), pattern))
        if marked is not None:
            groups.append((here & marked, 1.0, ink(), pattern))
    for some, edge, colour, pattern in groups:
        if some.any():
            collection = PolyCollection(
                corners[some],  # type: ignore[arg-type]  # an array is drawn much faster than a list
                facecolors=face[some],
                edgecolors=colour,
                linewidths=edge,
                hatch=pattern or None,
            )
            collection.set_snap(bool(edge))
            ax.add_collection(collection, autolim=False)


def _names(
    ax: Axes,
    trace: Record,
    bars: Bars,
    colours: Mapping[str, str],
    scale: int,
    until: int,
    marked: IntArray | None = None,
) -> None:
    """Write names into the bars that have room for theirs: the whole one, or what follows the last slash.

    In a pipeline whose slots are too narrow for all their names (``3F12``), all have the number of their
    micro-batch: the lane says the stage, the colour the phase. Where some rows are `marked`, the names of
    the others are as pale as their bars. In print hatches take the room of names.
    """
    if printed():
        return
    strong = None if marked is None else set(marked.tolist())
    points = ax.get_position().width * ax.get_figure(root=True).get_size_inches()[0] * 72  # type: ignore[union-attr]
    length = bars.end - bars.start
    roomy = np.flatnonzero((length * points > until * 6) & (bars.row != UNSET))
    of_task, rows = trace.job.graph.micro_batch[trace.tasks["op"]], bars.row[roomy].tolist()
    found = (of_task[row] if row < len(trace) else UNSET for row in rows)
    slots = [None if slot == UNSET else str(slot) for slot in found]
    rooms = length[roomy] / until * points
    numbered = any(
        slot is not None and len(name_of(trace, int(bars.row[k]))) * _LETTER > room - 3
        for k, slot, room in zip(roomy.tolist(), slots, rooms.tolist(), strict=True)
    )
    number = dict(zip(roomy.tolist(), slots, strict=True)) if numbered else {}
    for k in _by_turns(roomy, bars.kind[roomy], length[roomy])[:_LABELS].tolist():
        room = length[k] / until * points - 3
        name = name_of(trace, int(bars.row[k]))
        size = 7.0
        if (slot := number.get(k)) is not None:
            shown, size = slot, min(7.0, 7 * (room + 2) / (len(slot) * _LETTER))
        else:
            fits = (text for text in (name, name.rpartition("/")[2]) if len(text) * _LETTER <= room)
            shown = next(fits, "")
        if not shown or size < 5:
            continue
        height = _HEIGHT / bars.n_levels[k]
        y = bars.lane[k] - _HEIGHT / 2 + (bars.level[k] + 0.5) * height
        faint = strong is not None and int(bars.row[k]) not in strong
        colour = ink() if faint else ink_on(shade(colours[bars.kinds[bars.kind[k]]]))
        middle = (bars.start[k] + bars.end[k]) / 2 / scale
        where: dict[str, Any] = {"ha": "center", "va": "center", "clip_on": True}
        ax.text(middle, y, shown, fontsize=size, color=colour, alpha=0.4 if faint else 1.0, **where)


def _by_turns(bars: IntArray, kind: IntArray, length: IntArray) -> IntArray:
    """Return bars in the order in which they are named: the longest of each kind, the second of each, ..."""
    order = np.lexsort((-length, kind))
    sizes = np.bincount(kind[order])
    first = np.cumsum(sizes) - sizes
    turn = np.arange(len(order)) - first[kind[order]]
    return bars[order[np.lexsort((-length[order], turn))]]


def ink_on(colour: str) -> str:
    """Return black or white, whichever is read more easily on `colour` (its relative luminance, WCAG 2)."""
    from matplotlib.colors import to_rgb

    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return "black" if 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.3 else "white"


def _path(ax: Axes, path: PathSteps, scale: int, until: int) -> None:
    """Draw a line from each step of the critical path to the next, from edge to edge of wide bars."""
    lines: list[list[tuple[float, float]]] = [[]]
    wide = (path.bar != UNSET) & (path.end - path.start > until / 400)
    for lane, start, end, ends_line in zip(path.lane, path.start, path.end, wide, strict=True):
        lines[-1].append((start / scale, lane))
        if ends_line:
            lines.append([])
        lines[-1].append((end / scale, lane))
    for k, line in enumerate(lines):
        for at, other in ((0, 1), (-1, -2)):  # all but the outermost ends are at bars
            if len(line) > 1 and (k > 0 or at) and (k < len(lines) - 1 or not at):
                (x, y), (_, towards) = line[at], line[other]
                line[at] = x, y + _HEIGHT / 2 * np.sign(towards - y)
    for colour, width in ((paper(), 2.8), (ink(), 1.2)):  # a rim sets it off from bars of any colour
        for line in lines:
            if len(line) > 1:
                ax.plot(*zip(*line, strict=True), color=colour, linewidth=width, solid_capstyle="butt")


def _arrows(ax: Axes, trace: Record, bars: Bars, scale: int) -> None:
    """Draw arrows from the facing side of the producer's bar to that of the consumer's."""
    from matplotlib.collections import LineCollection

    source, target = arrows_of(trace, bars)
    if not len(source):
        return
    down = bars.lane[target] > bars.lane[source]
    side = np.where(down, _HEIGHT / 2, -_HEIGHT / 2)
    begin = np.stack((bars.end[source] / scale, bars.lane[source] + side), axis=-1)
    end = np.stack((bars.start[target] / scale, bars.lane[target] - side), axis=-1)
    faint = float(np.clip(40 / len(source), 0.25, 0.9))  # the more there are
    lines = LineCollection(
        np.stack((begin, end), axis=1),  # type: ignore[arg-type]
        colors=ink(),
        linewidths=0.7,
        alpha=faint,
    )
    ax.add_collection(lines, autolim=False)
    for heads, marker in ((down, "v"), (~down, "^")):
        ax.scatter(
            end[heads, 0],
            end[heads, 1],
            s=9,
            marker=marker,
            color=ink(),
            alpha=faint,
            linewidths=0,
            zorder=3,
        )


def legend_of(bars: Sequence[Bars], colours: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (label, colour) of what is seen, in the order of a legend.

    Parameters
    ----------
    bars : sequence of Bars
        All charts that the legend stands beside; only bars of some width are seen.
    colours : mapping of str to str
        Of `colours_of`.
    """
    present = {each.kinds[k] for each in bars for k in np.unique(each.kind[each.end > each.start]).tolist()}
    others = [kind for kind in (WAITING, LAUNCH, TRANSFER) if kind in present]
    ops = [kind for kind in colours if kind in present and kind not in others]
    return [(kind, colours[kind]) for kind in (*ops, *others)]


def _patch(label: str, colours: Mapping[str, str]) -> Artist:
    from matplotlib.patches import Patch

    hatch = hatches(colours)[label]
    return Patch(
        facecolor=shade(colours[label]), edgecolor=paper(), hatch=2 * hatch, linewidth=0, label=label
    )


def _legend(
    where: Axes | Figure,
    labels: Sequence[tuple[str, str]],
    colours: Mapping[str, str],
    *,
    folded: bool = False,
    more: Sequence[Artist] = (),
) -> None:
    """Name the colours beside `where`; beside a figure a long list takes no height from the first axes."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    handles: list[Artist] = [_patch(label, colours) for label, _ in labels]
    if folded:
        handles.append(Patch(color="none", label="(transfers too short to be seen)"))
    if more:
        handles += [Patch(color="none", label="memory: by kind, as above"), *more]
    if len(handles) > 1:
        if isinstance(where, Figure):
            where.legend(handles=handles, loc="outside right upper", frameon=False, fontsize=8)
        else:
            corner = (1.0, 1.0)
            where.legend(handles=handles, frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=corner)
