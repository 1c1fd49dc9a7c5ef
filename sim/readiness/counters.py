"""Which tasks become eligible when one is issued or ends.

On a static graph one counter per task is enough: every edge counts its consumer down once, and at zero the
consumer is eligible. An edge counts when its producer has ended or, if the policy's synchronisation says so
(`sim.readiness.eligibility`), when it is issued. For edges of the second kind, another counter, of producers
that have not ended, is the event wait at the head of the consumer's stream.

A task's id is ``iteration * n_nodes + node``, so an edge of distance d is the offset
``d * n_nodes + consumer`` in every iteration. Edges that lead past the last iteration never count.

Of the inputs of an op that starts with the first of them (`sim.readiness.eligibility`), only that one counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Set
from itertools import repeat
from operator import itemgetter
from typing import Any, Protocol

import numpy as np

from sim.base.arrays import UNSET, BoolArray, Csr
from sim.graph.frames import has_control_flow
from sim.job.job import Job
from sim.job.transfers import Flow, node_name
from sim.machine.task import Task
from sim.readiness.eligibility import edges_at_issue, inputs_from_the_start, non_strict_ops, refuse_launched

_NEVER = 1 << 60


class Readiness(Protocol):
    """What the engine asks about eligibility; ids and frames are up to each implementation."""

    asynchronous: bool
    """Whether a task may be issued before its inputs are computed; if not, only its end is reported."""

    @property
    def total(self) -> int:
        """Number of tasks that have to end: all of a static graph, those that became eligible otherwise."""

    def roots(self) -> list[Task]:
        """Return the tasks that are eligible at time 0, by iteration and op."""

    def on_issue(self, task: Task) -> list[Task]:
        """Return what became eligible because `task` was issued."""

    def on_end(self, task: Task) -> list[Task]:
        """Return what became eligible because `task` ended, in edge order."""

    def may_start(self, task: Task) -> bool:
        """Whether all producers of an issued task have ended; if not, `take_released` returns it later."""

    def take_released(self) -> list[Task]:
        """Return and clear the tasks that `may_start` refused and that may start now."""

    def find_unfinished(self, finished: Set[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield (task id, ids of the producers it waits for) for every task that is not `finished`."""

    def name(self, id: int) -> str:
        """Return the name of the task with that id, for messages."""


class CounterReadiness:
    """Readiness of a static graph (see the module docstring).

    Parameters
    ----------
    job : Job
    flow : Flow
        Nodes and edges, transfers included.
    synchronisation : str
        The policy's synchronisation, which says when edges count.
    off_stream : collection of int
        Launched ops that will be on no stream: the host reports their end to their consumers.

    Raises
    ------
    InfeasibleError
        A non-strict op would be launched on a stream.
    UnknownNameError
        There is no such synchronisation.
    """

    def __init__(
        self, job: Job, flow: Flow, synchronisation: str = "completion", off_stream: Collection[int] = ()
    ) -> None:
        self.job, self.flow = job, flow
        self.n = flow.n_nodes
        self.total = self.n * job.iterations
        self.group_of: list[int] = [*job.group_of.tolist(), *([-1] * (flow.n_nodes - flow.n_ops))]
        non_strict = np.append(non_strict_ops(job.graph), np.zeros(flow.n_nodes - flow.n_ops, bool))
        refuse_launched(job, non_strict[: flow.n_ops])
        reaches = flow.distance < job.iterations
        self.one_of_many = non_strict[flow.consumer] & (flow.carries != UNSET)
        self.pending = self._counts(reaches & ~self.one_of_many)
        self.served: set[int] = set()  # ids of non-strict tasks that have one of their inputs
        ops = np.flatnonzero(non_strict).tolist()
        for iteration in range(job.iterations if ops else 0):
            available = inputs_from_the_start(job.graph, flow, iteration)
            for op in ops:
                if available[op]:
                    self.served.add(iteration * self.n + op)
                else:
                    self.pending[iteration * self.n + op] += 1
        early = edges_at_issue(synchronisation, job, flow)
        self.asynchronous = early is not None
        if early is None:
            self.at_end = self._edges(reaches)
            return
        self.at_issue, self.at_end = self._edges(reaches & early), self._edges(reaches & ~early)
        self.running = self._counts(reaches & early)  # producers whose events are awaited
        self.refused: dict[int, Task] = {}
        self.free: list[Task] = []
        self.hops_ns = self._hops(reaches & early, off_stream)
        self.floor_ns: dict[int, int] = {}

    def _edges(self, mask: BoolArray) -> list[list[int]]:
        """Return for each node the offsets of its consumers' ids; ``~offset`` if only one of many counts."""
        flow = self.flow
        offset = flow.distance * self.n + flow.consumer
        offset = np.where(self.one_of_many, ~offset, offset)
        return Csr.group(flow.producer[mask], offset[mask], self.n).lists()

    def _hops(self, mask: BoolArray, off_stream: Collection[int]) -> list[list[int]] | None:
        """Return how long the event of each edge out of each node travels; None: all arrive at once.

        Events travel between different streams; transfers and `off_stream` ops are on none. Events to a
        transfer, and those of `off_stream` ops, take no time.
        """
        flow, job = self.flow, self.job
        event_ns = np.array([device.event_ns for device in job.machine.devices])
        if not event_ns.any():
            return None
        transfers = np.zeros(flow.n_nodes - flow.n_ops, np.int64)
        hop_ns = np.concatenate((event_ns[job.device_of], transfers))
        stream = np.concatenate((job.stream_of, transfers + UNSET))
        none = np.isin(np.arange(self.n), list(off_stream))
        stream[none] = UNSET
        producer, consumer = flow.producer[mask], flow.consumer[mask]
        hop = np.where(none[producer] | (stream[producer] == stream[consumer]), 0, hop_ns[consumer])
        return Csr.group(producer, hop, self.n).lists()

    def _counts(self, edges: BoolArray) -> list[int]:
        """Return one count per task, plus dummies for edges past the last iteration to count down."""
        flow, iterations = self.flow, self.job.iterations
        past = self.n * min(iterations - 1, int(flow.distance.max(initial=0)))
        return [*flow.counts(edges, iterations).ravel().tolist(), *([_NEVER] * past)]

    def _task(self, id: int) -> Task:
        iteration, node = divmod(id, self.n) if id >= self.n else (0, id)
        return Task(id, node, iteration, self.group_of[node])

    def roots(self) -> list[Task]:
        """Return the tasks that are eligible at time 0."""
        return [self._task(id) for id in range(self.total) if self.pending[id] == 0]

    def on_issue(self, task: Task) -> list[Task]:
        """Return what became eligible because `task` was issued."""
        return self._count_down(self.at_issue, task)

    def on_end(self, task: Task) -> list[Task]:
        """Return what became eligible because `task` ended; its event may release refused tasks."""
        if self.asynchronous:
            self._record(task)
        return self._count_down(self.at_end, task)

    def _count_down(self, edges: list[list[int]], task: Task) -> list[Task]:
        """Return the consumers that waited only for `task`, in edge order."""
        pending, base, now_ready = self.pending, task.id - task.op, []
        for offset in edges[task.op]:
            if offset < 0:
                offset = ~offset
                if base + offset in self.served:
                    continue
                self.served.add(base + offset)
            pending[base + offset] = remaining = pending[base + offset] - 1
            if not remaining:
                now_ready.append(self._task(base + offset))
        return now_ready

    def _record(self, task: Task) -> None:
        """Record the event of an ended task for the tasks issued behind it."""
        running, base = self.running, task.id - task.op
        hops_ns = repeat(0) if self.hops_ns is None else self.hops_ns[task.op]
        for offset, hop_ns in zip(self.at_issue[task.op], hops_ns, strict=False):
            id = base + offset
            if hop_ns:
                self.floor_ns[id] = task.end_ns + hop_ns
            running[id] = remaining = running[id] - 1
            if not remaining and id in self.refused:
                self.free.append(self.refused.pop(id))

    def may_start(self, task: Task) -> bool:
        """Whether all events that `task` waits for have arrived."""
        if self.running[task.id]:
            self.refused[task.id] = task
            return False
        if task.id in self.floor_ns:
            task.floor_ns = max(task.floor_ns, self.floor_ns.pop(task.id))
        return True

    def take_released(self) -> list[Task]:
        """Return and clear the refused tasks whose events have all arrived since."""
        free, self.free = self.free, []
        return free

    def find_unfinished(self, finished: Set[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield every task that is not `finished`, with the producers it waits for."""
        flow = self.flow
        edges = Csr.group(flow.consumer, np.arange(len(flow.consumer)), self.n)
        distance = np.minimum(flow.distance, self.job.iterations)
        for id in range(self.total):
            if id not in finished:
                node = id % self.n
                incoming = edges.row(node)
                if id in self.served:
                    incoming = incoming[flow.carries[incoming] == UNSET]
                sources = id - node + flow.producer[incoming] - distance[incoming] * self.n
                yield id, [s for s in dict.fromkeys(sources.tolist()) if s >= 0 and s not in finished]

    def name(self, id: int) -> str:
        """Return the op (or transfer), with the iteration if there are several."""
        iteration, node = divmod(id, self.n)
        name = node_name(self.job, self.flow, node)
        return f"{name}[{iteration}]" if self.job.iterations > 1 else name


# ----------------------------------------------------------------------------------------------------------
# Runs of a graph one after another: no run begins before the previous one is over.
#
# ::
#
#     session.run()      [ iteration 0 ]  [ iteration 1 ]  [ iteration 2 ]
#                              everything has ended ┘ the next call puts its roots into the pool
#
# A program does this if it runs a whole graph by one call, in a loop: each call returns when everything that
# the graph ran, devices included, has ended (`policies.issue.program_order` names the executors and the
# sources; for TensorFlow ``DirectSession::RunInternal`` in tensorflow/core/common_runtime/direct_session.cc).
# Runs of one session (the ops' attribute ``session``) follow one another; those of different sessions do not
# wait for each other. The batches of a session (``session_step``) also follow one another: edges order them
# too, but not on a device that is launched ahead.
#
# A run in which an op fails is never over: independent and queued work still ends, as the policy says, but
# the caller gets the error and begins no further run of its session.
#
# This wraps the readiness of a job with several runs, if the policy says so
# (`sim.policy.Policy.runs_in_turn`).


def has_runs(job: Job) -> bool:
    """Whether a job has runs, or batches of a session, that edges alone do not put in order."""
    ahead = bool(job.launched.any()) or has_control_flow(job.graph)
    return job.iterations > 1 or (ahead and bool(job.graph.attribute("session_step")))


def sessions_of(job: Job, flow: Flow) -> list[tuple[object, int]]:
    """Return the session and batch of each node: the op's own, else those of its latest predecessor.

    A node without predecessors, such as a Recv or the transfer of a parameter, has its first successor's.
    """
    attributes = job.graph.attributes
    labels: list[tuple[object, int] | None] = [None] * flow.n_nodes
    for op, session in job.graph.attribute("session").items():
        labels[op] = session, attributes[op].get("session_step", 0)
    pairs = list(zip(flow.producer.tolist(), flow.consumer.tolist(), strict=True)) if any(labels) else []
    backwards = [(b, a) for a, b in reversed(pairs)]
    while new := _propagate(labels, pairs, max) or _propagate(labels, backwards, min):
        for node, label in new.items():
            labels[node] = label
    return [label or (None, 0) for label in labels]


def _propagate(
    labels: list[tuple[object, int] | None], pairs: list[tuple[int, int]], pick: Callable[..., Any]
) -> dict[int, tuple[object, int]]:
    """Return what nodes without session and batch get from others: of several, what `pick` takes by batch."""
    new: dict[int, tuple[object, int]] = {}
    for source, node in pairs:
        if labels[node] is None and (label := labels[source]) is not None:
            new[node] = pick(new.get(node, label), label, key=itemgetter(1))
    return new


class RunsInTurn:
    """A `sim.readiness.counters.Readiness` that holds back tasks of later runs (see the module).

    Parameters
    ----------
    inner : Readiness
        The readiness of all iterations.
    job : Job
    flow : Flow
        Nodes beyond it (transfers that only a Recv requests) hold up no run.
    """

    def __init__(self, inner: Readiness, job: Job, flow: Flow) -> None:
        self.inner, self.asynchronous = inner, inner.asynchronous
        self.may_start, self.take_released = inner.may_start, inner.take_released
        self.find_unfinished, self.name = inner.find_unfinished, inner.name
        self._n = flow.n_nodes
        self._session_of = sessions_of(job, flow)
        self._batches: dict[object, int] = {}
        for session, batch in self._session_of:
            self._batches[session] = max(batch + 1, self._batches.get(session, 1))
        self._current: dict[object, int] = defaultdict(int)
        self._outstanding: dict[object, int] = defaultdict(int)  # tasks of the current run that are not over
        self._held: dict[tuple[object, int], list[Task]] = defaultdict(list)
        self._begun: list[Task] = []

    @property
    def total(self) -> int:
        """Tasks that have to end."""
        return self.inner.total

    def roots(self) -> list[Task]:
        """Return the tasks that are eligible at time 0: those of the first run."""
        return self._hold_later_runs(self.inner.roots())

    def on_issue(self, task: Task) -> list[Task]:
        """Return what became eligible because `task` was issued."""
        return self._hold_later_runs(self.inner.on_issue(task))

    def on_end(self, task: Task) -> list[Task]:
        """Return what became eligible because `task` ended; `take_begun` has those of the next run."""
        now_ready = self._hold_later_runs(self.inner.on_end(task))
        if task.op < self._n:
            session, _ = self._session_of[task.op]
            self._outstanding[session] -= 1
            if not self._outstanding[session]:
                self._current[session] += 1
                self._begun += self._hold_later_runs(self._held.pop((session, self._current[session]), []))
        return now_ready

    def take_begun(self) -> list[Task]:
        """Return and clear the tasks that became eligible because a new run has begun."""
        begun, self._begun = self._begun, []
        return begun

    def _hold_later_runs(self, tasks: list[Task]) -> list[Task]:
        """Return the tasks of runs that have begun, and hold back the others."""
        begun = []
        for task in tasks:
            if task.op >= self._n:
                begun.append(task)
                continue
            session, batch = self._session_of[task.op]
            run = task.iteration * self._batches[session] + batch
            if run <= self._current[session]:  # less: a distant producer delayed it
                self._outstanding[session] += 1
                begun.append(task)
            else:
                self._held[session, run].append(task)
        return begun
