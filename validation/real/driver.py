"""Decisions during a real run: from a policy object (`Driver`), or from a plan that is replayed (`Follower`).

A policy is a state machine: events in, decisions out, no clock, no threads. Here the events are real: a
kernel ended, a launch is on its stream. The threads of a run report them under one lock and carry out what
comes back::

    kernel ends ─► completed(task) ─► readiness ─► policy.ended ─┐
    launch done ─► issued(task)    ─► readiness ─► policy.ended ─┤
                                                                 └─► free issuers are asked, in machine order,
                                                                     until none takes a task ─► assignments

Readiness (`sim.readiness.counters`) and asking (`sim.issuers`) are those of the simulator's engine, so
that a difference between simulation and reality is a difference of times, never of rules.
"""

from __future__ import annotations

from collections.abc import Callable

from policies.issue.replay import Planned, ReplayPlan
from sim.base.arrays import Csr
from sim.base.errors import InputError
from sim.graph.frames import has_control_flow
from sim.issuers import Issuers, refuse_wrong
from sim.job.job import Job
from sim.job.transfers import make_flow
from sim.machine.task import Issuer, Task
from sim.policy import Policy
from sim.readiness.counters import CounterReadiness
from sim.record.plan import Plan
from validation.real.clock import now_ns

Assignments = list[tuple[Issuer, Task]]
"""Issuers and their tasks (with `stream` set); an issuer is named again only after its last report."""


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
    """Lets a policy drive one run. Called by one thread at a time.

    Parameters
    ----------
    job : Job
        On a machine without links: bytes move by ops that copy.
    policy : Policy
        Any policy of the simulator; the very same object may be used in both.

    Attributes
    ----------
    decided_by : str
        For the column ``policy`` of the trace.
    total : int
        Number of tasks that have to end.

    Raises
    ------
    InputError
        The graph has control flow, or tensors that the runtime would have to move between devices.
    """

    def __init__(self, job: Job, policy: Policy) -> None:
        refuse_unsupported(job)
        self.job, self.policy, self.decided_by = job, policy, type(policy).__name__
        self.zero_ns = 0
        self.readiness = CounterReadiness(job, make_flow(job), policy.synchronisation)
        self.asynchronous = self.readiness.asynchronous
        self.total = self.readiness.total
        self.issuers = Issuers(job.machine, policy, {})
        self.executed: list[bool] = (~job.launched).tolist()
        self.stream_of: list[int] = [] if all(self.executed) else job.stream_of.tolist()
        self.predecessors = predecessors(job)

    def now(self) -> int:
        """Return ns since the beginning of the run."""
        return now_ns() - self.zero_ns

    def prepare(self) -> None:
        """Let the policy prepare for the job, before the clock starts."""
        self.policy.prepare(self.job)

    def begin(self) -> Assignments:
        """Start the clock, tell the policy of the tasks without predecessors, and ask it for assignments."""
        self.zero_ns = now_ns()
        for task in self._stamp(self.readiness.roots()):
            self.policy.ready(task)
        return self._ask()

    def issued(self, task: Task) -> Assignments:
        """Report a finished launch: its issuer is free, and under ``"issue"`` consumers may be eligible."""
        self.issuers.free(task.issuer)
        if self.asynchronous:
            self.policy.ended(task, self._stamp(self.readiness.on_issue(task)), task.issuer)
        return self._ask()

    def completed(self, task: Task) -> Assignments:
        """Report that a task ended."""
        executed = self.executed[task.op]
        if executed:
            self.issuers.free(task.issuer)
        now_ready = self._stamp(self.readiness.on_end(task))
        if now_ready or executed or not self.asynchronous:
            self.policy.ended(task, now_ready, task.issuer)
        return self._ask()

    def waits(self, task: Task) -> list[int]:
        """Return the ids of earlier-launched tasks whose ends `task` has to wait for on its stream."""
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
            refuse_wrong(self.policy, self.job, len(self.job.graph), issuer, task)
            task.issuer = issuer
            task.stream = issuer.stream if self.executed[task.op] else self.stream_of[task.op]
            taken.append((issuer, task))

        self.issuers.ask(take)
        return taken


class Follower(Driver):
    """Executes a plan exactly: its order of issue, its streams, and only its own waits.

    Parameters
    ----------
    job : Job
        Its graph and machine are those of the plan.
    plan : Plan

    Raises
    ------
    InputError, UnknownNameError
        The plan does not fit the job (`policies.issue.replay`; partly checked only by `prepare`), or two
        issuers feed one stream.
    """

    def __init__(self, job: Job, plan: Plan) -> None:
        super().__init__(job, ReplayPlan(plan, synchronisation="issue"))
        self.decided_by = "plan"
        issuer_of: dict[int, int] = {}
        for stream, issuer in zip(plan.stream.tolist(), plan.issuer.tolist(), strict=True):
            if issuer_of.setdefault(stream, issuer) != issuer:
                one, other = plan.issuers[issuer_of[stream]], plan.issuers[issuer]
                raise InputError(f"two issuers feed {plan.streams[stream]}: {one} and {other}")
        first = job.machine.first_stream
        lanes = zip(job.device_of.tolist(), Planned(plan).assign(job), strict=True)
        self.stream_of = [first[device] + lane for device, lane in lanes]
        op = [job.graph.index(name) for name in plan.ops]
        ids = [
            iteration * len(job.graph) + op[k]
            for iteration, k in zip(plan.iteration.tolist(), plan.op.tolist(), strict=True)
        ]
        self.before = {id: [ids[k] for k in plan.waits.row(n).tolist()] for n, id in enumerate(ids)}

    def waits(self, task: Task) -> list[int]:
        """Return the tasks whose events the plan lets `task` wait for."""
        return self.before[task.id]

    def launches(self) -> list[Task]:
        """Return the tasks in the order in which they are launched, if no launch waits for an end."""
        todo = self.begin()
        for _, task in todo:  # which grows meanwhile
            todo += self.issued(task)
        return [task for _, task in todo]


def refuse_unsupported(job: Job) -> None:
    """Raise, before anything runs, if a job needs what real execution does not support.

    Raises
    ------
    InputError
        Control flow, or links of the machine (copies are ops here).
    """
    if has_control_flow(job.graph):
        raise InputError(f"graph {job.graph.name!r} has control flow, which the real backends do not execute")
    if job.machine.links:
        raise InputError("the real backends move bytes by ops that copy: leave the machine's links out")
