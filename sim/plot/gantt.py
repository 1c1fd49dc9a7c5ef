"""The Gantt chart: one lane per stream, one bar per task, for any number of tasks.

::

    gpu0/host   ▇▇▇▇▇▇                              launches, on request
    gpu0/0        ▇▇conv▇▇▇▇pool▇▇   ▇▇concat▇▇     bars coloured by kind, named where there is room
    gpu0/1               ▇▇conv▇▇▇▇▇▇▇              arrows (on request) from producer to consumer
    gpu0→gpu1                     ▇▇                transfers

Its parts are in `sim.plot`, its colours in `sim.plot.theme` and its legend in `sim.plot.legend`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final

import numpy as np

from sim.base.arrays import UNSET
from sim.explain.derived import DerivedColumns
from sim.plot.bar_polygons import draw_arrows, draw_bars, draw_path, name_lanes, names_in_bars, points_of
from sim.plot.bars import Bars, bars_of, path_of, title_of
from sim.plot.figure import axes_or_new, new_figure, scale_time, time_unit
from sim.plot.legend import add_legend, colours_of, handles_of, legend_of
from sim.plot.memory import coloured_strips, draw_strip, memory_handles
from sim.plot.theme import ink, paper, plain, shade
from sim.record.record import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


_LANE_INCHES: Final = 0.36
_STRIP_INCHES: Final = 0.7
_ENTRY_INCHES: Final = 0.17
"""Height of a line of the legend."""
_MAX_INCHES: Final = 40.0
"""Maximum height of a figure; with more lanes each is lower."""
_MIN_BUSY: Final = 50
"""Transfers are not drawn if they keep no pair of devices busy for the makespan over this ..."""
_MIN_LENGTH: Final = 2_500
"""... and none takes as long as the makespan over this, about a pixel."""
_CUT: Final = "× failed or aborted"
_TOO_SHORT: Final = "transfers too short to be seen"


def gantt(
    trace: Record,
    ax: Axes | None = None,
    *,
    links: bool = True,
    issuers: bool = False,
    arrows: bool = False,
    critical_path: bool = False,
    title: str | None = None,
    until_ns: int | None = None,
) -> Axes:
    """Draw a trace, without its memory: `compare_gantt` shows both.

    Parameters
    ----------
    trace : Trace
    ax : Axes, optional
        The axes to draw into; by default a new figure of suitable height.
    links : bool
        Whether transfers get lanes of their own, one per pair of devices.
    issuers : bool
        Whether host threads get lanes with the launches that cost time.
    arrows : bool
        Whether arrows lead from producers to consumers on other lanes.
    critical_path : bool
        Whether the executed critical path (`sim.explain.path`) is shown: bars off it are pale, and a line
        leads from each step to the next, along the lane of the task that is issued or waits.
    title : str, optional
    until_ns : int, optional
        Right end of the time axis; by default the makespan.

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
    bars, note = _visible_bars(trace, links, issuers)
    ax = axes_or_new(ax, height=min(20.0, 0.9 + _LANE_INCHES * max(2, len(bars.lanes))))
    end_ns, colours = until_ns or max(trace.makespan_ns, 1), colours_of([trace])
    points = points_of(ax, len(bars.lanes))[1]
    notes = [title or "", note]
    _draw(ax, trace, bars, colours, end_ns, points, notes, arrows=arrows, critical_path=critical_path)
    add_legend(ax, handles_of(legend_of([bars], colours), colours))
    return ax


def _visible_bars(trace: Record, links: bool, issuers: bool) -> tuple[Bars, str]:
    """Return the bars of a chart, and a note if its transfers are left out."""
    unseen = links and _negligible(trace)
    bars = bars_of(trace, links=links and not unseen, issuers=issuers)
    return bars.without_empty_lanes(), _TOO_SHORT if unseen else ""


def _draw(
    ax: Axes,
    trace: Record,
    bars: Bars,
    colours: Mapping[str, str],
    end_ns: int,
    lane_points: float,
    notes: Sequence[str],
    *,
    arrows: bool,
    critical_path: bool,
) -> None:
    """Draw the bars of a trace, with lanes of some height in points, up to a time, under some notes."""
    scale = scale_time(ax, end_ns)
    drawn, marked = bars.pack(end_ns), None
    if critical_path:
        path = path_of(DerivedColumns(trace), bars, drawn)
        marked = np.isin(np.arange(len(drawn)), path.bar)
    draw_bars(ax, drawn, colours, end_ns, marked)
    name_lanes(ax, bars.lanes, lane_points)
    fills = [shade(colours[kind]) for kind in bars.kinds]
    on_path = None if marked is None else drawn.row[marked]
    names_in_bars(ax, trace, bars, fills, end_ns, lane_points, on_path)
    if critical_path:
        draw_path(ax, path, end_ns)
    if arrows:
        draw_arrows(ax, trace, bars, scale)
    tasks = bars.select(np.flatnonzero((bars.row != UNSET) & (bars.row < len(trace))))
    cut = tasks.select(np.flatnonzero(trace.status[tasks.row]))
    if len(cut):
        ax.plot(cut.end / scale, cut.lane, "X", color=ink(), markeredgecolor=paper(), clip_on=False)
    title, *others = notes
    plain(ax, "; ".join(part for part in (title, _CUT if len(cut) else "", *others) if part), "x")


def compare_gantt(
    traces: Record | Mapping[str, Record],
    *,
    links: bool = True,
    issuers: bool = False,
    arrows: bool = False,
    critical_path: bool = False,
    memory: bool = True,
) -> Figure:
    r"""Draw one or several traces, one above the other, on one time axis and with one set of colours.

    If an allocator kept a log of a run, memory over time is drawn below its lanes: a strip for each device
    whose memory changes (if more than eight, those with the highest peaks). Memory in use is stacked by the
    kind of op that made it, in the colours of the chart; a line shows the reserved memory, and a dashed one
    the capacity, if three quarters of it were held. Strips of devices of one kind have the same scale in
    bytes, over all runs.

    Parameters
    ----------
    traces : Trace, or mapping of str to Trace
        Title → trace, from top to bottom.
    links, issuers, arrows, critical_path : bool
        As for `gantt`.
    memory : bool
        Whether memory is drawn if a run has a log of it. Without any log this has no effect; runs without a
        log beside others that have one show what their tensors need.

    Returns
    -------
    Figure

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from devices.memory.run_memory import tensor_memory
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
    end_ns = max(max(trace.makespan_ns for trace in runs), 1)
    charts = [_visible_bars(trace, links, issuers) for trace in runs]
    run_strips, colours, tops = coloured_strips(runs, colours_of(runs), memory=memory)
    every = [strip for run in run_strips for strip in run.shown]
    handles = memory_handles(legend_of([bars for bars, _ in charts], colours), every, colours)

    lanes = [_LANE_INCHES * max(1, len(bars.lanes)) for bars, _ in charts]
    n_strips = len(every)
    height = 0.6 + sum(0.4 + h for h in lanes) + n_strips * (0.08 + _STRIP_INCHES)
    legend_inches = 0.3 + _ENTRY_INCHES * len(handles) if len(handles) > 1 else 0.0
    figure_inches = min(_MAX_INCHES, max(height, legend_inches))  # a low chart may be lower than its legend
    figure, axes = new_figure(len(lanes) + n_strips, height=figure_inches)
    add_legend(figure, handles)  # first, as names in bars have what room it leaves
    if (grid := axes[0].get_gridspec()) is not None:
        rows = zip(lanes, run_strips, strict=True)
        grid.set_height_ratios(
            [inches for h, run in rows for inches in (h, *(_STRIP_INCHES for _ in run.shown))]
        )
    free, points = iter(axes), 72 * _LANE_INCHES * figure_inches / height
    for (name, trace), (bars, note), run in zip(named.items(), charts, run_strips, strict=True):
        ax, strips = next(free), list(islice(free, len(run.shown)))
        notes = [title_of(name, trace, end_ns), note]
        _draw(ax, trace, bars, colours, end_ns, points, notes, arrows=arrows, critical_path=critical_path)
        for below, strip in zip(strips, run.shown, strict=True):
            draw_strip(below, strip, colours, tops[strip.kind], end_ns)
        if run.note:
            strips[0].set_title(run.note, loc="left", fontsize=8, parse_math=False)
        ax.axvline(trace.makespan_ns / time_unit(end_ns)[0], color=ink(), linewidth=0.8, linestyle=":")
        for panel in (ax, *strips):
            panel.label_outer()
    return figure


def _negligible(trace: Record) -> bool:
    """Whether there are transfers, but all are too short to be seen."""
    transfers = trace.transfers
    if not len(transfers["tensor"]):
        return False
    pair = transfers["source"] * len(trace.job.machine.devices) + transfers["destination"]
    ns = transfers["end_ns"] - transfers["start_ns"]
    busy = np.bincount(pair, ns)
    return bool(busy.max() * _MIN_BUSY < trace.makespan_ns and ns.max() * _MIN_LENGTH < trace.makespan_ns)
