"""The Gantt chart: one lane per stream, one bar per task, as many as there are.

::

    gpu0/0  ▇▇conv▇▇▇▇pool▇▇      ▇▇concat▇▇       bars coloured by kind, named where there is room
    gpu0/1           ▇▇conv▇▇▇▇▇▇▇                 arrows (on request) from producer to consumer

All bars of a chart are one collection of polygons: 20,000 of them draw in well under a second, and get no
edges, which would be all that one sees.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from sim.graph import IntArray
from sim.plot.figure import OKABE_ITO, OTHER, new_figure, scale_time, time_unit
from sim.trace import Trace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["colours_of", "compare_gantt", "gantt"]

TRANSFER: Final = "transfer"
_HEIGHT: Final = 0.8


def gantt(
    trace: Trace,
    ax: Axes | None = None,
    *,
    colours: Mapping[str, str] | None = None,
    links: bool = True,
    arrows: bool = False,
    title: str | None = None,
    until_ns: int | None = None,
    legend: bool = True,
) -> Axes:
    """Draw a trace.

    Parameters
    ----------
    trace : Trace
    ax : Axes, optional
        Where; by default a new figure of fitting height.
    colours : mapping of str to str, optional
        Kind of op → colour; by default `colours_of` the trace.
    links : bool
        Whether transfers get lanes of their own, one per pair of devices.
    arrows : bool
        Whether arrows lead from producers to consumers on other lanes.
    title : str, optional
    until_ns : int, optional
        Right end of the time axis; by default the makespan.
    legend : bool
        Whether to explain the colours, beside the chart.

    Returns
    -------
    Axes
    """
    rows = _Rows(trace, links)
    if ax is None:
        _, (ax,) = new_figure(height=min(16.0, 1.2 + 0.38 * len(rows.names)))
    until = until_ns or max(trace.makespan_ns, 1)
    scale = scale_time(ax, until)
    colours = colours or colours_of([trace])
    _bars(ax, rows, colours, scale, until)
    _names(ax, rows, scale, until)
    if arrows:
        _arrows(ax, trace, rows, scale)
    ax.set_yticks(range(len(rows.names)), rows.names)
    ax.set_ylim(len(rows.names) - 0.5, -0.5)
    ax.set_xlim(0, until / scale)
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="x", linewidth=0.4, alpha=0.5)
    ax.set_axisbelow(True)
    if title:
        ax.set_title(title, loc="left", fontsize=10)
    if legend:
        _legend(ax, set(rows.kind), colours)
    return ax


def compare_gantt(traces: Mapping[str, Trace], *, links: bool = True) -> Figure:
    """Draw several traces one above the other, on one time axis and with one set of colours.

    Parameters
    ----------
    traces : mapping of str to Trace
        Title → trace, from top to bottom.
    links : bool
        As for `gantt`.

    Returns
    -------
    Figure
    """
    until = max(max(trace.makespan_ns for trace in traces.values()), 1)
    heights = [max(2, len(_Rows(trace, links).names)) for trace in traces.values()]
    figure, axes = new_figure(len(traces), height=min(24.0, 0.6 + sum(0.75 + 0.36 * h for h in heights)))
    grid = axes[0].get_gridspec()
    if grid is not None:
        grid.set_height_ratios([0.75 + 0.36 * h for h in heights])
    colours = colours_of(list(traces.values()))
    ns, unit = time_unit(until)
    for k, (ax, (name, trace)) in enumerate(zip(axes, traces.items(), strict=True)):
        title = f"{name}: {trace.makespan_ns / ns:,.4g} {unit}"
        gantt(trace, ax, colours=colours, links=links, title=title, until_ns=until, legend=False)
        ax.axvline(trace.makespan_ns / ns, color="black", linewidth=0.8, linestyle=":")
        if k < len(traces) - 1:
            ax.set_xlabel("")
    _legend(axes[0], {kind for trace in traces.values() for kind in _Rows(trace, links).kind}, colours)
    return figure


def colours_of(traces: Sequence[Trace]) -> dict[str, str]:
    """Return kind → colour: the kinds that take most time get colours of their own, in that order.

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
    by_time = sorted(busy, key=lambda kind: (-busy[kind], kind))
    return {kind: OKABE_ITO[k] if k < len(OKABE_ITO) else OTHER for k, kind in enumerate(by_time)} | {
        TRANSFER: "#444444"
    }


class _Rows:
    """What to draw: lanes from top to bottom, and per bar its lane, times, kind and name."""

    def __init__(self, trace: Trace, links: bool) -> None:
        graph, machine = trace.job.graph, trace.job.machine
        alive = trace.tasks["dead"] == 0
        op = trace.tasks["op"][alive]
        stream = trace.tasks["stream"][alive]
        used = np.unique(stream[stream >= 0]).tolist()
        every = range(machine.first_stream[-1])
        shown = [s for s in every if s in set(used)] or [0]
        self.names = [machine.stream_name(s) for s in shown]
        lane_of = np.full(machine.first_stream[-1] + 1, -1)
        lane_of[shown] = np.arange(len(shown))
        self.lane: IntArray = lane_of[stream]
        self.start, self.end = trace.tasks["start_ns"][alive], trace.tasks["end_ns"][alive]
        self.kind = [graph.kinds[k] for k in graph.kind_code[op].tolist()]
        self.label = [graph.op_names[o] for o in op.tolist()]
        self.node: IntArray = trace.tasks["iteration"][alive] * len(graph) + op
        moved = trace.transfers
        if links and len(moved["tensor"]):
            pairs = sorted(set(zip(moved["source"].tolist(), moved["destination"].tolist(), strict=True)))
            first = len(self.names)
            devices = machine.devices
            self.names += [f"{devices[a].name}→{devices[b].name}" for a, b in pairs]
            at = {pair: first + k for k, pair in enumerate(pairs)}
            rows = zip(moved["source"].tolist(), moved["destination"].tolist(), strict=True)
            self.lane = np.concatenate((self.lane, [at[pair] for pair in rows]))
            self.start = np.concatenate((self.start, moved["start_ns"]))
            self.end = np.concatenate((self.end, moved["end_ns"]))
            self.kind += [TRANSFER] * len(moved["tensor"])
            self.label += [graph.tensor_name(t) for t in moved["tensor"].tolist()]


def _bars(ax: Axes, rows: _Rows, colours: Mapping[str, str], scale: int, until: int) -> None:
    from matplotlib.collections import PolyCollection

    left, right = rows.start / scale, rows.end / scale
    bottom, top = rows.lane - _HEIGHT / 2, rows.lane + _HEIGHT / 2
    corners = np.stack(
        [
            np.stack(corner, axis=-1)
            for corner in ((left, bottom), (right, bottom), (right, top), (left, top))
        ],
        axis=1,
    )
    wide = (rows.end - rows.start) > until / 400  # an edge around a thinner bar would hide it
    faces = np.array([colours.get(kind, OTHER) for kind in rows.kind])
    for some, width in ((wide, 0.5), (~wide, 0.0)):
        ax.add_collection(
            PolyCollection(
                list(corners[some]), facecolors=faces[some].tolist(), edgecolors="white", linewidths=width
            )
        )


def _names(ax: Axes, rows: _Rows, scale: int, until: int) -> None:
    """Write names into the bars that have room for theirs."""
    width_pt = (
        ax.get_position().width * ax.figure.dpi_scale_trans.inverted().transform(ax.figure.bbox.size)[0] * 61
    )
    for k in np.flatnonzero(rows.end - rows.start > until / 60).tolist():
        room = (rows.end[k] - rows.start[k]) / until * width_pt
        text = rows.label[k]
        if len(text) * 4.6 > room:
            text = text.rpartition("/")[2]
        if len(text) * 4.6 <= room:
            middle = (rows.start[k] + rows.end[k]) / 2 / scale
            ax.text(
                middle, rows.lane[k], text, ha="center", va="center", fontsize=7, color="white", clip_on=True
            )


def _arrows(ax: Axes, trace: Trace, rows: _Rows, scale: int) -> None:
    graph = trace.job.graph
    n = len(graph)
    row_of = {node: k for k, node in enumerate(rows.node.tolist())}
    edges = graph.edges
    for iteration in range(trace.job.iterations):
        for a, b, d in zip(
            edges.producer.tolist(), edges.consumer.tolist(), edges.distance.tolist(), strict=True
        ):
            p, c = row_of.get(iteration * n + a), row_of.get((iteration + d) * n + b)
            if p is None or c is None or rows.lane[p] == rows.lane[c]:
                continue
            ax.annotate(
                "",
                (rows.start[c] / scale, rows.lane[c]),
                (rows.end[p] / scale, rows.lane[p]),
                arrowprops={
                    "arrowstyle": "->",
                    "linewidth": 0.6,
                    "color": "#555555",
                    "shrinkA": 0,
                    "shrinkB": 0,
                },
            )


def _legend(ax: Axes, present: set[str], colours: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    own = [kind for kind in colours if kind in present and colours[kind] != OTHER]
    handles = [Patch(color=colours[kind], label=kind) for kind in own]
    if any(colours.get(kind, OTHER) == OTHER for kind in present):
        handles.append(Patch(color=OTHER, label="other"))
    if len(handles) > 1:
        ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
