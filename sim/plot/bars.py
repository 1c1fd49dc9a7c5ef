"""The content of a Gantt chart: its lanes from top to bottom, and one bar per task, launch or transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, IntArray, sums_by
from sim.base.intervals import levels
from sim.explain.derived import DerivedColumns
from sim.explain.path import executed_path
from sim.graph.graph import Graph
from sim.job.costs import issue_costs_ns
from sim.plot.figure import time_text
from sim.plot.theme import LAUNCH, TRANSFER, WAITING
from sim.record.dependencies import edges_among
from sim.record.record import Record

_PICTURE_COLUMNS: Final = 4_000
"""A bar narrower than the makespan over this has no width of its own in any picture."""


@dataclass(frozen=True)
class Bars:
    """Bars and their lanes.

    Attributes
    ----------
    lanes : list of str
        Names, from top to bottom.
    kinds : list of str
        Vocabulary of `kind`: kinds of op, then ``launch`` and ``transfer``.
    lane, kind, start, end : arrays of int64
        Lane, kind and times (ns) of each bar.
    level, n_levels : arrays of int64
        If bars of a lane overlap in time, it is divided into `n_levels`, of which this bar is at `level`.
    row : array of int64
        Its row, with transfers after tasks; -1 for a launch and for a bar that stands for several.
    """

    lanes: list[str]
    kinds: list[str]
    lane: IntArray
    kind: IntArray
    start: IntArray
    end: IntArray
    level: IntArray
    n_levels: IntArray
    row: IntArray

    def __len__(self) -> int:
        """Return the number of bars."""
        return len(self.lane)

    def select(self, rows: IntArray) -> Bars:
        """Return the bars at some positions, or where a mask is true."""
        return Bars(self.lanes, self.kinds, *(column[rows] for column in self._columns))

    @property
    def _columns(self) -> tuple[IntArray, ...]:
        return self.lane, self.kind, self.start, self.end, self.level, self.n_levels, self.row

    def empty_last(self) -> tuple[Bars, int]:
        """Return the bars with visibly empty lanes last, and the number of the other lanes.

        Ops that take no time are invisible.
        """
        visible = np.zeros(len(self.lanes), bool)
        visible[self.lane[self.end > self.start]] = True
        order = np.argsort(~visible, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        return replace(self, lanes=[self.lanes[k] for k in order], lane=rank[self.lane]), int(visible.sum())

    def without_empty_lanes(self) -> Bars:
        """Return the bars without visibly empty lanes."""
        bars, n = self.empty_last()
        return replace(bars.select(np.flatnonzero(bars.lane < n)), lanes=bars.lanes[:n])

    def pack(self, until_ns: int, limit: int = 10_000) -> Bars:
        """Return fewer bars that look the same, if more than `limit` are too narrow to be seen.

        The narrow ones of one lane, kind and column of the picture become one bar with their total width,
        side by side in that column, so the column keeps its colours and their shares.
        """
        column_ns = until_ns // _PICTURE_COLUMNS
        narrow = self.end - self.start <= column_ns
        if int(narrow.sum()) <= limit or column_ns < 2:
            return self
        thin = self.select(np.flatnonzero(narrow))
        column = thin.start // column_ns
        key = (thin.lane * (until_ns // column_ns + 2) + column) * len(self.kinds) + thin.kind
        keys, first, key_of = np.unique(key, return_index=True, return_inverse=True)
        width = sums_by(key_of, thin.end - thin.start, len(keys))
        spot = keys // len(self.kinds)
        before = np.cumsum(width) - width
        leader = np.searchsorted(spot, spot)  # the first kind of the column
        start = column[first] * column_ns + before - before[leader]
        merged = replace(thin.select(first), start=start, end=start + width, row=np.full(len(keys), UNSET))
        wide = self.select(np.flatnonzero(~narrow))
        pairs = zip(wide._columns, merged._columns, strict=True)
        return Bars(self.lanes, self.kinds, *map(np.concatenate, pairs))


_MAX_COLOURED_OPS: Final = 12
"""Maximum number of ops that get a colour each, if nothing else distinguishes them."""


def coloured_by(graph: Graph) -> tuple[Sequence[str], IntArray]:
    """Return what the colours of bars stand for, and the index of each op's: its kind, or, for few ops
    without kinds, its name.
    """
    if graph.kinds == ("op",) and len(graph) <= _MAX_COLOURED_OPS:
        return graph.op_names, np.arange(len(graph))
    return graph.kinds, graph.kind_code


def bars_of(trace: Record, *, links: bool = True, issuers: bool = False) -> Bars:
    """Return the bars of a trace, with lanes for the streams that were used, in machine order.

    Parameters
    ----------
    trace : Trace
    links : bool
        Whether transfers get lanes, one per pair of devices, below the streams.
    issuers : bool
        Whether host threads get lanes with their launches, above the streams.
    """
    graph, machine, tasks = trace.job.graph, trace.job.machine, trace.tasks
    op_kinds, code = coloured_by(graph)
    kinds = [*op_kinds, WAITING, LAUNCH, TRANSFER]
    ran = np.flatnonzero(trace.executed)
    lanes: list[str] = []
    parts: list[tuple[IntArray, ...]] = []

    def add(
        group: IntArray, names: Sequence[str], kind: IntArray, start: IntArray, end: IntArray, row: IntArray
    ) -> None:
        used, lane_of = np.unique(group, return_inverse=True)
        level, n_levels = levels(start, end, lane_of, len(used))
        parts.append((lane_of + len(lanes), kind, start, end, level, n_levels[lane_of], row))
        lanes.extend(names[k] for k in used.tolist())

    if issuers:
        launched = ran[trace.job.launched[tasks["op"][ran]]]
        cost = issue_costs_ns(trace.job)[tasks["op"][launched]]
        by_issue = np.argsort(tasks["issue_ns"][launched], kind="stable")  # streams start them otherwise
        by_issue = by_issue[cost[by_issue] > 0]
        launched, cost = launched[by_issue], cost[by_issue]
        issue = tasks["issue_ns"][launched]
        issuer_names = [issuer.name for issuer in machine.issuers()]
        kind, nobody = (np.full(len(launched), code) for code in (len(kinds) - 2, UNSET))
        add(tasks["issuer"][launched], issuer_names, kind, issue - cost, issue, nobody)
    streams, lane = trace.lanes
    kind, row, begins = code[tasks["op"][ran]], ran, trace.begins_ns
    start, end = begins[ran], tasks["end_ns"][ran]
    meets = trace.job.meets[tasks["op"]]
    early = np.flatnonzero(meets & (tasks["start_ns"] < begins))  # their ranks had not met yet
    if len(early):
        ran, row = np.concatenate((ran, early)), np.concatenate((ran, np.full(len(early), UNSET)))
        kind = np.concatenate((kind, np.full(len(early), len(op_kinds))))
        start = np.concatenate((start, tasks["start_ns"][early]))
        end = np.concatenate((end, begins[early]))
        by_start = np.lexsort((end, start))
        ran, row, kind, start, end = (column[by_start] for column in (ran, row, kind, start, end))
    add(lane[ran], streams, kind, start, end, row)
    transfers = trace.transfers
    if links and len(transfers["tensor"]):
        names = [device.name for device in machine.devices]
        pairs = [f"{source}→{destination}" for source in names for destination in names]
        rows = np.arange(len(transfers["tensor"]))
        pair = transfers["source"] * len(names) + transfers["destination"]
        transfer_kind = np.full(len(rows), len(kinds) - 1)
        add(pair, pairs, transfer_kind, transfers["start_ns"], transfers["end_ns"], len(trace) + rows)
    return Bars(lanes, kinds, *(np.concatenate(column) for column in zip(*parts, strict=True)))


def title_of(name: str, trace: Record, until_ns: int) -> str:
    """Return the title of a run: its name, if it has one, its makespan, and whether ranks are folded."""
    folding = trace.job.machine.folding
    folded = "" if folding is None else f"; {folding.describe()}"
    return f"{f'{name}: ' if name else ''}{time_text(trace.makespan_ns, until_ns)}{folded}"


def micro_batches(trace: Record, bars: Bars) -> IntArray:
    """Return the micro-batch of each bar that is a slot of a pipeline's schedule; -1 for others."""
    graph, batch = trace.job.graph, np.full(len(bars), UNSET)
    of_task = np.flatnonzero((bars.row != UNSET) & (bars.row < len(trace)))
    op = trace.tasks["op"][bars.row[of_task]]
    is_slot = np.array([kind in graph.phases for kind in graph.kinds], bool)[graph.kind_code[op]]
    batch[of_task[is_slot]] = graph.micro_batch[op[is_slot]]
    return batch


def arrows_of(trace: Record, bars: Bars) -> tuple[IntArray, IntArray]:
    """Return (bar of the producer, bar of the consumer) for every edge between two lanes.

    Where a transfer is not shown, an arrow leads from its producer straight to the consumer.
    """
    bar = np.full(len(trace) + len(trace.transfers["tensor"]), UNSET)
    named = np.flatnonzero(bars.row != UNSET)
    bar[bars.row[named]] = named
    source, target = (bar[rows] for rows in edges_among(trace, bar != UNSET))
    crossing = bars.lane[source] != bars.lane[target]
    return source[crossing], target[crossing]


class PathSteps(NamedTuple):
    """Steps of the executed critical path that have a place in a chart, in order of time.

    Attributes
    ----------
    lane, start, end : arrays of int64
    bar : array of int64
        The bar that executes or travels; -1: the step is an issue or a wait, or its bar is not shown
        separately.
    """

    lane: IntArray
    start: IntArray
    end: IntArray
    bar: IntArray


def path_of(derived: DerivedColumns, all_bars: Bars, drawn: Bars) -> PathSteps:
    """Return the executed critical path through a chart.

    A step that is a wait or an issue is on the lane of the task that waits or is issued.

    Parameters
    ----------
    derived : DerivedColumns
        Derived columns of the trace.
    all_bars, drawn : Bars
        All bars of the trace, and those drawn (`Bars.pack`).
    """
    trace = derived.trace
    lane_of, bar_of = (np.full(len(trace) + len(trace.transfers["tensor"]), UNSET) for _ in range(2))
    for bars, column, values in ((all_bars, lane_of, all_bars.lane), (drawn, bar_of, np.arange(len(drawn)))):
        named = bars.row != UNSET
        column[bars.row[named]] = values[named]
    steps = [step for step in executed_path(derived) if lane_of[step.row] != UNSET]
    columns = [(step.row, step.start_ns, step.end_ns, step.kind in ("task", "transfer")) for step in steps]
    row, start, end, runs = np.array(columns, np.int64).reshape(-1, 4).T
    return PathSteps(lane_of[row], start, end, np.where(runs == 1, bar_of[row], UNSET))
