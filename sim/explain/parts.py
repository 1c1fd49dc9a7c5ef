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

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sim.explain.facts.communication import communicates, computes_until_ns
from sim.explain.facts.derived_columns import Facts
from sim.explain.idle import held_up
from sim.words.arrays import UNSET, BoolArray, FloatArray, IntArray
from sim.words.intervals import Cover, union

__all__ = ["Chain"]


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
        Whether the task's lane executes then.
    """

    part: str
    ns: IntArray
    begin_ns: IntArray
    length_ns: IntArray
    lanes: bool


class Chain:
    """The tasks and transfers that lead to the end of a run, each the last input of the next.

    Parameters
    ----------
    facts : Facts
    """

    def __init__(self, facts: Facts) -> None:
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

    def longer(self, other: Facts) -> dict[str, int]:
        """Return how much of each part is there because the same ops last longer than in another run, in ns.

        What an op took there counts, on average over its executions; of one that communicates nothing does.
        In another graph no op is the same: stages of the same name may have other layers.
        """
        longer = self._longer_than_in(other)
        if not len(longer):
            return {}
        found: dict[str, int] = {}
        for piece in self._pieces:
            if piece.lanes:
                ns = self._between(longer, piece.begin_ns, piece.length_ns)
                found[piece.part] = found.get(piece.part, 0) + round(float(ns.sum()))
        return {part: ns for part, ns in found.items() if ns}

    @cached_property
    def _pieces(self) -> list[_Piece]:
        return list(self._cut())

    def _cut(self) -> Iterator[_Piece]:
        f, tasks = self.f, self.tasks
        begins, lasted = f.begins[tasks], f.end[tasks] - f.begins[tasks]
        exposed = self._exposed(begins, lasted)
        yield _Piece("executing", lasted - exposed, begins, lasted, True)
        yield _Piece("communication", exposed, begins, lasted, False)
        launched = ~f.by_worker[tasks] & self.on_lane
        for reason, begin, ns in held_up(f, tasks, f.data[tasks], begins):
            if reason == "policy" and ns.any():
                behind = np.where(launched, self._busy.between(begin, begin + ns, self.which), 0)
                exposed = np.where(launched, self._exposed(begin, ns), 0)
                yield _Piece("policy", ns - behind, begin, np.where(launched, 0, ns), False)
                yield _Piece("stream", behind - exposed, begin, np.where(launched, ns, 0), True)
                yield _Piece("communication", exposed, begin, ns, False)
            elif reason == "stream" and ns.any():
                exposed = self._exposed(begin, ns)
                yield _Piece("stream", ns - exposed, begin, ns, True)
                yield _Piece("communication", exposed, begin, ns, False)
            elif reason == "issue":
                yield _Piece("issuer", ns, begin, np.where(launched, 0, ns), True)
            else:
                yield _Piece(reason, ns, begin, ns, False)

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

    def _longer_than_in(self, other: Facts) -> FloatArray:
        """Return for each task on these lanes how much longer it lasts than in another run, in ns."""
        rows, _ = self._on_these
        names = self.f.job.graph.op_names
        if sorted(names) != sorted(other.job.graph.op_names):
            return np.zeros(0)
        lasted, times = (np.zeros(len(other.job.graph)) for _ in range(2))
        ran = np.flatnonzero(other.trace.executed)
        np.add.at(lasted, other.trace.tasks["op"][ran], (other.end - other.begins)[ran])
        np.add.at(times, other.trace.tasks["op"][ran], 1)
        number = {name: op for op, name in enumerate(other.job.graph.op_names)}
        ops = self.f.trace.tasks["op"][rows]
        there = np.array([number[names[op]] for op in ops.tolist()], np.int64)
        counts = ~communicates(self.f.trace)[rows] & (times[there] > 0)
        took = (self.f.end - self.f.begins)[rows]
        longer = np.zeros(len(rows))
        longer[counts] = took[counts] - lasted[there[counts]] / times[there[counts]]
        return longer if longer.any() else np.zeros(0)

    def _between(self, longer: FloatArray, begin: IntArray, ns: IntArray) -> FloatArray:
        """Return how much of that lies in each stretch of the lane of each task of the chain."""
        rows, lane = self._on_these
        apart = lane * (self.f.trace.makespan_ns + 1)
        knots = np.stack((self.f.begins[rows] + apart, self.f.end[rows] + apart), axis=1).ravel()
        total = np.cumsum(longer)
        values = np.stack((total - longer, total), axis=1).ravel()
        begin = begin + self.which * (self.f.trace.makespan_ns + 1)
        found = np.interp(begin + ns, knots, values) - np.interp(begin, knots, values)
        return np.where(self.on_lane, found, 0.0)
