"""Which tasks become eligible when one is issued or ends.

On a static graph a counter per task is enough: every edge counts its consumer down once, and at
zero the consumer is eligible. Two variants stand behind one interface (`Readiness`):

`CompletionReadiness`
    An edge counts when its producer has *ended* (TensorFlow on CPU, TVM).
`IssueReadiness`
    An edge between two tasks that are launched on streams counts when its producer is *issued*;
    a second counter, of producers that have not ended, is the event wait at the stream's head.

Where the graph has ops that start with the first of their inputs (`sim.readiness.strictness`), a countdown of
its own counts for them; other graphs know nothing of it.

A task's id is ``iteration * n_nodes + node``, so an edge of distance d is the offset
``d * n_nodes + consumer`` whatever the iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sim.graph.csr import Csr
from sim.job.job import Job
from sim.job.transfers import Flow, node_name
from sim.machine.task import Task
from sim.readiness.strictness import inputs_from_the_start, non_strict_ops, refuse_launched
from sim.words.arrays import UNSET, IntArray

__all__ = ["CompletionReadiness", "IssueReadiness", "Readiness"]

_NEVER = 1 << 60


class Readiness(Protocol):
    """What the engine asks; ids and frames are the variant's own business."""

    asynchronous: bool
    """Whether `issued` has to be called."""

    @property
    def total(self) -> int:
        """Tasks that have to end: all of a static graph, those that became eligible of a dynamic one."""

    def roots(self) -> list[Task]:
        """Return the tasks that are eligible at time 0, by iteration and op."""

    def issued(self, task: Task) -> list[Task]:
        """Return what became eligible because `task` was issued."""

    def ended(self, task: Task) -> list[Task]:
        """Return what became eligible because `task` ended, in edge order."""

    def may_start(self, task: Task) -> bool:
        """Whether all producers of an issued task have ended; if not, it is `released` later."""

    def released(self) -> list[Task]:
        """Return (and forget) the tasks that were refused by `may_start` and may start now."""

    def unfinished(self, over: Set[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield (task id, ids of the producers it waits for) for every task that is not `over`."""

    def name(self, id: int) -> str:
        """Return what the task with that id is called in messages."""


class _Countdown:
    """Counts the consumers of a task down, along some of the edges; `run` is what the hot loop calls."""

    __slots__ = ("group_of", "n", "once", "pending", "successors")

    def __init__(
        self, successors: list[list[int]], pending: list[int], group_of: list[int], n: int, once: bool
    ) -> None:
        self.successors, self.pending = successors, pending
        self.group_of, self.n, self.once = group_of, n, once

    def task(self, id: int) -> Task:
        """Make the task with that id."""
        iteration, node = divmod(id, self.n)
        return Task(id, node, iteration, self.group_of[node])

    def run(self, task: Task) -> list[Task]:
        """Return the consumers that waited for nothing but `task`, in edge order."""
        pending = self.pending
        now_ready = []
        base = task.id - task.op
        for offset in self.successors[task.op]:
            id = base + offset
            left = pending[id] - 1
            pending[id] = left
            if not left:
                now_ready.append(Task(id, id, 0, self.group_of[id]) if self.once else self.task(id))
        return now_ready


class _FirstCountdown(_Countdown):
    """The same where some consumers are non-strict; `steps` is parallel to `successors`.

    An edge takes 1 from a strict consumer. Of a non-strict one, a control edge takes 2, and a data edge
    (step 0) clears the lowest bit.
    """

    __slots__ = ("steps",)
    steps: list[list[int]]

    def run(self, task: Task) -> list[Task]:
        """Return the consumers that waited for nothing but `task`, in edge order."""
        pending = self.pending
        now_ready = []
        base = task.id - task.op
        for offset, step in zip(self.successors[task.op], self.steps[task.op], strict=True):
            id = base + offset
            before = pending[id]
            left = pending[id] = before - step if step else before & ~1
            if before and not left:
                now_ready.append(self.task(id))
        return now_ready


class CompletionReadiness:
    """Edges count when the producer has ended.

    Parameters
    ----------
    job : Job
    flow : Flow
        Nodes and edges, transfers included.

    Raises
    ------
    InfeasibleError
        A non-strict op that would be launched on a stream.
    """

    asynchronous = False
    ended: Callable[[Task], list[Task]]
    issued: Callable[[Task], list[Task]]

    def __init__(self, job: Job, flow: Flow) -> None:
        self.job, self.flow = job, flow
        self.n = flow.n_nodes
        self.total = self.n * job.iterations
        self.group_of: list[int] = [*job.group_of.tolist(), *([-1] * (flow.n_nodes - flow.n_ops))]
        self.non_strict = np.zeros(self.n, dtype=bool)
        self.non_strict[: flow.n_ops] = non_strict_ops(job.graph)
        refuse_launched(job, self.non_strict[: flow.n_ops])
        every = np.ones(len(flow.producer), dtype=bool)
        self.pending = self._counts(every)
        self._prepare(every)

    def _prepare(self, every: npt.NDArray[np.bool_]) -> None:
        self.last = self._countdown(every)
        self.ended = self.last.run  # without a method in between: this is called for every task
        self.issued = lambda task: []  # issuing makes nothing eligible here

    def _countdown(self, edges: npt.NDArray[np.bool_]) -> _Countdown:
        flow = self.flow
        offset = flow.distance * flow.n_nodes + flow.consumer
        successors = Csr.group(flow.producer[edges], offset[edges], flow.n_nodes).lists()
        once = self.job.iterations == 1
        to_non_strict = self.non_strict[flow.consumer[edges]]
        if not to_non_strict.any():
            return _Countdown(successors, self.pending, self.group_of, self.n, once)
        step = np.where(to_non_strict, np.where(flow.carries[edges] == UNSET, 2, 0), 1)
        countdown = _FirstCountdown(successors, self.pending, self.group_of, self.n, once)
        countdown.steps = Csr.group(flow.producer[edges], step, flow.n_nodes).lists()
        return countdown

    def _counts(self, edges: npt.NDArray[np.bool_]) -> list[int]:
        """Return one count per task; an edge of distance d does not hold back the first d iterations."""
        consumer, distance = self.flow.consumer[edges], self.flow.distance[edges]
        farthest = int(distance.max(initial=0))
        control = self.flow.carries[edges] == UNSET
        first = np.flatnonzero(self.non_strict & (np.bincount(consumer, minlength=self.n) > 0))
        rows: list[IntArray] = []
        for iteration in range(min(self.job.iterations, farthest + 1)):
            now = distance <= iteration
            rows.append(np.bincount(consumer[now], minlength=self.n))
            if len(first):
                controls = np.bincount(consumer[now & control], minlength=self.n)[first]
                there = inputs_from_the_start(self.job.graph, self.flow, iteration)[first]
                rows[-1][first] = 2 * controls + ~there
        counts: list[int] = np.concatenate(rows + [rows[-1]] * (self.job.iterations - len(rows))).tolist()
        return counts + [_NEVER] * (farthest * self.n)  # edges that lead past the last iteration

    def roots(self) -> list[Task]:
        """Return the tasks that are eligible at time 0."""
        return [self.last.task(id) for id in range(self.total) if self.pending[id] == 0]

    def may_start(self, task: Task) -> bool:
        """Return True: an eligible task has all its inputs."""
        return True

    def released(self) -> list[Task]:
        """Return nothing: nothing is ever refused."""
        return []

    def unfinished(self, over: Set[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield every task that is not `over`, with the producers it waits for."""
        flow = self.flow
        producers = Csr.group(flow.consumer, flow.producer, self.n)
        distances = Csr.group(flow.consumer, flow.distance, self.n)
        carried = Csr.group(flow.consumer, flow.carries, self.n)
        for id in range(self.total):
            if id not in over:
                node = id % self.n
                sources = producers.row(node) + (id - node) - distances.row(node) * self.n
                if self.non_strict[node] and not self.pending[id] & 1:  # one of its inputs is there
                    sources = sources[carried.row(node) == UNSET]
                yield id, [s for s in dict.fromkeys(sources.tolist()) if s >= 0 and s not in over]

    def name(self, id: int) -> str:
        """Return op (or transfer), with the iteration when there are several."""
        iteration, node = divmod(id, self.n)
        name = node_name(self.job, self.flow, node)
        return f"{name}[{iteration}]" if self.job.iterations > 1 else name


class IssueReadiness(CompletionReadiness):
    """Edges between launched tasks count when the producer is issued; events hold back the start.

    Parameters
    ----------
    job, flow
        As for `CompletionReadiness`.

    Notes
    -----
    A CPU worker executes what it takes, so an edge into or out of a worker's task counts at the
    producer's end: the host cannot read what the device has not computed yet.
    """

    asynchronous = True

    def _prepare(self, every: npt.NDArray[np.bool_]) -> None:
        job, flow = self.job, self.flow
        launched = np.append(job.launched, np.ones(flow.n_nodes - flow.n_ops, dtype=bool))
        early = launched[flow.producer] & launched[flow.consumer]
        self.first, self.last = self._countdown(early), self._countdown(~early)
        self.on_issue, self.on_end = self.first.successors, self.last.successors
        self.issued = self.first.run
        self.ended = self._ended
        self.running = self._counts(early)
        self.refused: dict[int, Task] = {}
        self.free: list[Task] = []
        hop = np.array([device.event_ns for device in job.machine.devices])
        self.hop_ns: list[int] | None = None
        if hop.any():
            self.hop_ns = [*hop[job.device_of].tolist(), *([0] * (flow.n_nodes - flow.n_ops))]
            self.stream_of = [*job.stream_of.tolist(), *([-2] * (flow.n_nodes - flow.n_ops))]
        self.floor_ns: dict[int, int] = {}

    def _ended(self, task: Task) -> list[Task]:
        """Return what became eligible because `task` ended; remember whom its event releases."""
        running, refused, hop_ns = self.running, self.refused, self.hop_ns
        base, stream = task.id - task.op, task.stream
        for offset in self.on_issue[task.op]:
            id = base + offset
            running[id] = left = running[id] - 1
            if hop_ns is not None:
                node = offset % self.n
                if self.stream_of[node] != stream and hop_ns[node]:
                    self.floor_ns[id] = task.end_ns + hop_ns[node]
            if not left and id in refused:
                self.free.append(refused.pop(id))
        return self.last.run(task) if self.on_end[task.op] else []

    def may_start(self, task: Task) -> bool:
        """Whether the events that `task` waits for are all there."""
        if self.running[task.id]:
            self.refused[task.id] = task
            return False
        if self.floor_ns:
            task.floor_ns = max(task.floor_ns, self.floor_ns.pop(task.id, 0))
        return True

    def released(self) -> list[Task]:
        """Return (and forget) the tasks whose events have all arrived since they were refused."""
        free, self.free = self.free, []
        return free
