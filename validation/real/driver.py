"""Who decides during a real run: a policy object (`Driver`), or a plan (`validation.real.follow.Follower`).

A policy is a state machine: events in, decisions out, no clock, no threads. Here the events are real: a
kernel ended, a launch is on its stream. The threads of a run report them under one lock and carry out what
comes back::

    kernel ends ─► completed(task) ─► readiness ─► policy.ended ─┐
    launch done ─► issued(task)    ─► readiness ─► policy.ended ─┤
                                                                 └─► free issuers are asked, in machine order,
                                                                     until none takes a task ─► assignments

Readiness (`sim.readiness.counters`) and asking (`sim.policy.issuers`) are those of the simulator's engine, so
that a difference between the two worlds is a difference of times, never of rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sim.graph.csr import Csr
from sim.graph.frames import has_control_flow
from sim.job.job import Job
from sim.job.transfers import make_flow
from sim.machine.task import Issuer, Task
from sim.policy.issuers import Issuers, refuse_wrong
from sim.policy.policy import Policy
from sim.readiness.counters import CounterReadiness
from sim.words.errors import InputError

__all__ = ["Assignments", "Brain", "Driver", "predecessors"]

Assignments = list[tuple[Issuer, Task]]
"""Who shall take what now (its `stream` is set); an issuer is named again only after its last report."""


class Brain(Protocol):
    """Tells the threads of a run what to do. Called by one thread at a time."""

    total: int
    """Tasks that have to end."""

    def prepare(self) -> None:
        """Do what is done before the clock starts."""

    def begin(self) -> Assignments:
        """Return the first assignments."""

    def issued(self, task: Task) -> Assignments:
        """`task` is on its stream and its issuer is free."""

    def completed(self, task: Task) -> Assignments:
        """`task` ended; the worker that ran it, if one did, is free."""

    def waits(self, task: Task) -> list[int]:
        """Return the ids of the tasks whose ends `task` has to wait for on its stream."""


def predecessors(job: Job) -> Callable[[int], list[int]]:
    """Return a function from a task's id to the ids of the tasks that it depends on.

    Parameters
    ----------
    job : Job
    """
    edges, n = job.graph.edges, len(job.graph)
    producer = Csr.group(edges.consumer, edges.producer, n).lists()
    distance = Csr.group(edges.consumer, edges.distance, n).lists()

    def of(id: int) -> list[int]:
        op = id % n
        ids = [id - op + p - d * n for p, d in zip(producer[op], distance[op], strict=True)]
        return [i for i in dict.fromkeys(ids) if i >= 0]

    return of


class Driver:
    """Lets a policy drive.

    Parameters
    ----------
    job : Job
        On a machine without links: bytes move by ops that copy.
    policy : Policy
        Any object that the simulator takes; the very same object may be used in both.
    now : callable
        ``now()`` returns ns since the beginning of the run.

    Raises
    ------
    InputError
        The graph has control flow, or tensors that the runtime would have to move between devices.
    """

    def __init__(self, job: Job, policy: Policy, now: Callable[[], int]) -> None:
        refuse_unsupported(job)
        self.job, self.policy, self.now = job, policy, now
        self.readiness = CounterReadiness(job, make_flow(job), policy.synchronisation)
        self.asynchronous = self.readiness.asynchronous
        self.total = self.readiness.total
        self.issuers = Issuers(job.machine, policy, {})
        self.executed: list[bool] = (~job.launched).tolist()
        self.stream_of = [] if all(self.executed) else job.stream_of.tolist()
        self.predecessors = predecessors(job)

    def prepare(self) -> None:
        """Let the policy look at the job."""
        self.policy.prepare(self.job)

    def begin(self) -> Assignments:
        """Tell the policy of the tasks that nothing holds back, and ask."""
        for task in self._stamp(self.readiness.roots()):
            self.policy.ready(task)
        return self._ask()

    def issued(self, task: Task) -> Assignments:
        """A launch is done: its issuer is free, and under ``"issue"`` its consumers may be eligible."""
        self.issuers.free(task.issuer)
        if self.asynchronous:
            self.policy.ended(task, self._stamp(self.readiness.issued(task)), task.issuer)
        return self._ask()

    def completed(self, task: Task) -> Assignments:
        """A task ended."""
        executed = self.executed[task.op]
        if executed:
            self.issuers.free(task.issuer)
        now_ready = self._stamp(self.readiness.ended(task))
        if now_ready or executed or not self.asynchronous:
            self.policy.ended(task, now_ready, task.issuer)
        return self._ask()

    def waits(self, task: Task) -> list[int]:
        """Return what a launched task depends on, when it may be launched before that has ended."""
        return self.predecessors(task.id) if self.asynchronous else []

    def _stamp(self, tasks: list[Task]) -> list[Task]:
        now = self.now()
        for task in tasks:
            task.ready_ns = now
            self.issuers.changed.add(task.group)
        return tasks

    def _ask(self) -> Assignments:
        taken: Assignments = []

        def take(issuer: Issuer, task: Task) -> None:
            refuse_wrong(self.policy, self.job.graph, issuer, task)
            task.issuer = issuer
            task.stream = issuer.stream if self.executed[task.op] else self.stream_of[task.op]
            taken.append((issuer, task))

        self.issuers.ask(take)
        return taken


def refuse_unsupported(job: Job) -> None:
    """Refuse, before anything runs, what real execution does not do.

    Raises
    ------
    InputError
        Control flow, or links of the machine (copies are ops here).
    """
    if has_control_flow(job.graph):
        raise InputError(f"graph {job.graph.name!r} has control flow, which the real backends do not execute")
    if job.machine.links:
        raise InputError("the real backends move bytes by ops that copy: leave the machine's links out")
