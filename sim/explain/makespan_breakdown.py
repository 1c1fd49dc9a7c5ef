"""What the makespan consists of, followed back over data: the last input, its last input, and so on.

::

    gpu0   ▇▇▇x▇▇▇▇▇▇y▇▇▇▇▇▇▇▇▇d▇▇▇     d was ready when c had ended: it stands behind x and y on its stream
    gpu1   ▇▇c▇▇
           └───┘└─ stream ────┘└──┘
           executing           executing

Each step back splits the time between an input and the start of its reader as `sim.explain.idle.held_up`
does, with two differences. While a launched task's own stream executes others, it waits for the stream,
whether the policy has put it there yet or not. And while its device communicates and computes nothing, be it
the task itself or one that its stream executes before it, that is ``communication``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, BoolArray, FloatArray, IntArray
from sim.base.intervals import Cover, union
from sim.explain.communication import communicates, computes_until_ns
from sim.explain.derived import DerivedColumns
from sim.explain.idle import held_up
from sim.explain.path import executed_path

_Until = Callable[[IntArray], FloatArray]
"""A time for each task of the chain -> how much there was until then."""

_FOR_OTHERS: Final = ("resources", "communicator", "late rank")
"""Reasons to wait, beside an order, for which tasks of other lanes have to end."""


class _Piece(NamedTuple):
    """A part of the makespan, for some tasks of the chain at once.

    Attributes
    ----------
    part : str
    ns : array of int
        For each task.
    begin_ns, length_ns : array of int
        When each has that part, among others.
    lanes : bool
        Whether it lasts while the task's lane executes,
    others : bool
        and whether while the lane is idle, until tasks elsewhere have ended.
    """

    part: str
    ns: IntArray
    begin_ns: IntArray
    length_ns: IntArray
    lanes: bool = False
    others: bool = False


class Chain:
    """The tasks and transfers that lead to the end of a run, each the last input of the next.

    Parameters
    ----------
    facts : Facts
    """

    def __init__(self, facts: DerivedColumns) -> None:
        self.f = f = facts
        rows = []
        row = int(f.row_end.argmax()) if len(f.row_end) else UNSET
        while row != UNSET:
            rows.append(row)
            row = int(f.last_producer[row])
        chain = np.array(rows, dtype=np.int64)
        self.tasks, self.moves = chain[chain < f.n], chain[chain >= f.n]
        self.on_lane: BoolArray = f.lane[self.tasks] >= 0
        lanes = f.lane[self.tasks[self.on_lane]]
        self.lanes, first, which = np.unique(lanes, return_index=True, return_inverse=True)
        self.device_of_lane = f.device[self.tasks[self.on_lane]][first]
        self.which = np.zeros(len(self.tasks), np.int64)
        self.which[self.on_lane] = which

    def parts(self) -> dict[str, int]:
        """Return the ns of each part; they add up to the makespan."""
        f, found = self.f, dict[str, int]()
        started = f.trace.transfers["start_ns"][self.moves - f.n]
        found["transfer"] = int((f.row_end[self.moves] - started).sum())
        found["link"] = int((started - f.data[self.moves]).sum())
        for piece in self._pieces:
            found[piece.part] = found.get(piece.part, 0) + int(piece.ns.sum())
        return {part: ns for part, ns in found.items() if ns}

    def longer(self, other: DerivedColumns) -> dict[str, int]:
        """Return how much of each part is there because the same ops last longer than in another run, in ns.

        While a task's lane executes, these are its ops. While it is idle, for an order in which another task
        comes first, say, they are those of the executed critical path.

        What an op took there counts, on average over its executions; of one that communicates nothing does.
        In another graph no op is the same: stages of the same name may have other layers.
        """
        longer = self._longer_than_in(other)
        if not longer.any():
            return {}
        by_lanes = self._by_lanes(longer)
        waits = any(piece.others and piece.length_ns.any() for piece in self._pieces)
        by_others = self._by_others(longer) if waits else None
        found: dict[str, int] = {}
        for piece in self._pieces:
            stretch = piece.begin_ns, piece.begin_ns + piece.length_ns
            ns = 0.0
            if piece.lanes:
                ns += float((by_lanes(stretch[1]) - by_lanes(stretch[0])).sum())
            if piece.others and by_others is not None:
                ns += float((by_others(stretch[1]) - by_others(stretch[0])).sum())
            found[piece.part] = found.get(piece.part, 0) + round(ns)
        return {part: ns for part, ns in found.items() if ns}

    @cached_property
    def _pieces(self) -> list[_Piece]:
        return list(self._cut())

    def _cut(self) -> Iterator[_Piece]:
        f, tasks = self.f, self.tasks
        begins, lasted = f.begins[tasks], f.end[tasks] - f.begins[tasks]
        exposed = self._exposed(begins, lasted)
        yield _Piece("executing", lasted - exposed, begins, lasted, lanes=True)
        yield _Piece("communication", exposed, begins, lasted)
        launched = ~f.by_worker[tasks] & self.on_lane
        for reason, begin, ns in held_up(f, tasks, f.data[tasks], begins):
            if reason == "policy" and ns.any():
                behind = np.where(launched, self._busy.between(begin, begin + ns, self.which), 0)
                exposed = np.where(launched, self._exposed(begin, ns), 0)
                yield _Piece("policy", ns - behind, begin, ns, others=True)
                yield _Piece("stream", behind - exposed, begin, np.where(launched, ns, 0), lanes=True)
                yield _Piece("communication", exposed, begin, ns)
            elif reason == "stream" and ns.any():
                exposed = self._exposed(begin, ns)
                yield _Piece("stream", ns - exposed, begin, ns, lanes=True, others=True)
                yield _Piece("communication", exposed, begin, ns)
            elif reason == "issue":
                yield _Piece("issuer", ns, begin, np.where(launched, 0, ns), lanes=True)
            else:
                yield _Piece(reason, ns, begin, ns, others=reason in _FOR_OTHERS)

    # -- what the lanes of the chain do meanwhile --------------------------------------------------------

    @cached_property
    def _on_these(self) -> tuple[IntArray, IntArray]:
        """Tasks that execute on the lanes of the chain, by time, and the index of the lane of each."""
        f = self.f
        rows = np.flatnonzero(f.trace.executed & (f.end > f.begins) & np.isin(f.lane, self.lanes))
        lane = np.searchsorted(self.lanes, f.lane[rows])
        order = np.lexsort((f.begins[rows], lane))
        return rows[order], lane[order]

    @cached_property
    def _busy(self) -> Cover:
        rows, lane = self._on_these
        return Cover(union(self.f.begins[rows], self.f.end[rows], lane), self.f.trace.makespan_ns)

    @cached_property
    def _computing(self) -> tuple[Cover, Cover] | None:
        """When the device of each lane computes, and when it or the lane executes; None: all computes."""
        f = self.f
        until, moves = computes_until_ns(f.trace), communicates(f.trace)
        if until is f.end and not moves.any():
            return None
        compute = np.flatnonzero(f.trace.executed & ~moves & ~f.trace.is_delay & (until > f.begins))
        of_device = [compute[f.device[compute] == device] for device in self.device_of_lane.tolist()]
        rows = np.concatenate([np.zeros(0, np.int64), *of_device])
        lane = np.repeat(np.arange(len(of_device)), [len(each) for each in of_device])
        start, end = f.begins[rows], until[rows]
        own, own_lane = self._on_these
        either = (np.append(start, f.begins[own]), np.append(end, f.end[own]), np.append(lane, own_lane))
        horizon = f.trace.makespan_ns
        return Cover(union(start, end, lane), horizon), Cover(union(*either), horizon)

    def _exposed(self, begin: IntArray, ns: IntArray) -> IntArray:
        """Return how long the lane of each task of the chain executes while its device computes nothing."""
        if self._computing is None:
            return np.zeros(len(self.tasks), np.int64)
        alone, either = self._computing
        stretch = (begin, begin + ns, self.which)
        return np.where(self.on_lane, either.between(*stretch) - alone.between(*stretch), 0)

    # -- what they would do if ops took what they take in another run ------------------------------------

    def _longer_than_in(self, other: DerivedColumns) -> FloatArray:
        """Return for each task how much longer it lasts than in another run, in ns."""
        names, longer = self.f.job.graph.op_names, np.zeros(self.f.n)
        if sorted(names) != sorted(other.job.graph.op_names):
            return longer
        lasted, times = (np.zeros(len(other.job.graph)) for _ in range(2))
        ran = np.flatnonzero(other.trace.executed)
        np.add.at(lasted, other.trace.tasks["op"][ran], (other.end - other.begins)[ran])
        np.add.at(times, other.trace.tasks["op"][ran], 1)
        number = {name: op for op, name in enumerate(other.job.graph.op_names)}
        there = np.array([number[name] for name in names], np.int64)[self.f.trace.tasks["op"]]
        counts = self.f.trace.executed & ~communicates(self.f.trace) & (times[there] > 0)
        took = self.f.end - self.f.begins
        longer[counts] = took[counts] - lasted[there[counts]] / times[there[counts]]
        return longer

    def _by_lanes(self, longer: FloatArray) -> _Until:
        """Return how much of that the lanes of the chain's tasks have spent until a time, of each."""
        rows, lane = self._on_these
        apart = self.f.trace.makespan_ns + 1
        knots = np.stack((self.f.begins[rows], self.f.end[rows]), axis=1) + (lane * apart)[:, None]
        total = np.cumsum(longer[rows])
        values = np.stack((total - longer[rows], total), axis=1)

        def until(time: IntArray) -> FloatArray:
            found = np.interp(time + self.which * apart, knots.ravel(), values.ravel())
            return np.where(self.on_lane, found, 0.0)

        return until

    def _by_others(self, longer: FloatArray) -> _Until:
        """Return how much of it the executed path has spent until a time while the lane of each was idle."""
        steps = [step for step in executed_path(self.f.trace, self.f) if step.kind == "task"]
        row, start, end = np.array([(step.row, step.start_ns, step.end_ns) for step in steps]).T
        lasted = (self.f.end - self.f.begins)[row]
        total = np.cumsum(longer[row] * (end - start) / lasted)
        knots = np.stack((start, end), axis=1).ravel()
        values = np.stack((np.append(0.0, total[:-1]), total), axis=1).ravel()

        def on_path(time: IntArray) -> FloatArray:
            spent: FloatArray = np.interp(time, knots, values)
            return spent

        rows, lane = self._on_these
        busy, apart = union(self.f.begins[rows], self.f.end[rows], lane), self.f.trace.makespan_ns + 1
        begins = busy.start + busy.group * apart
        spent = np.append(0.0, np.cumsum(on_path(busy.end) - on_path(busy.start)))

        def until(time: IntArray) -> FloatArray:
            at = np.maximum(np.searchsorted(begins, time + self.which * apart, side="right") - 1, 0)
            within = np.where(busy.group[at] == self.which, np.minimum(time, busy.end[at]), busy.end[at])
            beside = spent[at] + on_path(np.maximum(within, busy.start[at])) - on_path(busy.start[at])
            return np.where(self.on_lane, on_path(time) - beside, 0.0)

        return until
