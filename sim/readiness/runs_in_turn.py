"""Runs of a graph one after another: nothing of a run begins before the one before it is over.

::

    session.run()      [ iteration 0 ]  [ iteration 1 ]  [ iteration 2 ]
                             everything has ended ┘ the next call puts its roots into the pool

That is what a program does that runs a whole graph by one call, in a loop: each call returns when all that
the graph ran, devices included, has ended (`policies.issue.program_order` names the executors, and the
sources; for TensorFlow ``DirectSession::RunInternal`` in tensorflow/core/common_runtime/direct_session.cc).
Runs of one session (the ops' attribute ``session``) follow one another; those of different sessions do not
wait for each other.

A run in which an op fails is never over: what was independent or already queued still ends, by the rule of
the policy, but the caller gets the error, and begins no further run of its session.

It stands in front of the readiness of a job with several iterations, where the policy says so
(`sim.policy.Policy.runs_in_turn`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Set

from sim.job.job import Job
from sim.job.transfers import Flow
from sim.machine.task import Task
from sim.readiness.counters import Readiness


def sessions_of(job: Job, flow: Flow) -> list[object]:
    """Return the session of each node; a transfer is of the session whose tensor it moves."""
    attributes = job.graph.attributes
    ops = [attributes.get(op, {}).get("session") for op in range(flow.n_ops)]
    session: list[object] = ops + [None] * (flow.n_nodes - flow.n_ops)
    for producer, consumer in zip(flow.producer.tolist(), flow.consumer.tolist(), strict=True):
        if consumer >= flow.n_ops:
            session[consumer] = session[producer]
        elif producer >= flow.n_ops and session[producer] is None:
            session[producer] = session[consumer]
    return session


class RunsInTurn:
    """A `sim.readiness.counters.Readiness` that keeps back tasks of later runs (see the module).

    Parameters
    ----------
    inner : Readiness
        Which knows of all iterations.
    job : Job
    flow : Flow
        Nodes beyond it (transfers that only a Recv asks for) hold up no run.
    """

    def __init__(self, inner: Readiness, job: Job, flow: Flow) -> None:
        self.inner, self.asynchronous = inner, inner.asynchronous
        self._n = flow.n_nodes
        self._session = sessions_of(job, flow)
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
        return self._of_current(self.inner.roots())

    def issued(self, task: Task) -> list[Task]:
        """Return what became eligible because `task` was issued."""
        return self._of_current(self.inner.issued(task))

    def ended(self, task: Task) -> list[Task]:
        """Return what became eligible because `task` ended; what begins with the next run is in `begun`."""
        now_ready = self._of_current(self.inner.ended(task))
        if task.op < self._n:
            session = self._session[task.op]
            self._outstanding[session] -= 1
            if not self._outstanding[session]:
                self._current[session] += 1
                self._begun += self._of_current(self._held.pop((session, self._current[session]), []))
        return now_ready

    def begun(self) -> list[Task]:
        """Return (and forget) what is eligible since a new run has begun."""
        begun, self._begun = self._begun, []
        return begun

    def _of_current(self, tasks: list[Task]) -> list[Task]:
        """Return the tasks of runs that have begun, and keep the others."""
        out = []
        for task in tasks:
            if task.op >= self._n:
                out.append(task)
                continue
            session = self._session[task.op]
            if task.iteration == self._current[session]:
                self._outstanding[session] += 1
                out.append(task)
            else:
                self._held[session, task.iteration].append(task)
        return out

    def may_start(self, task: Task) -> bool:
        """Whether all producers of an issued task have ended."""
        return self.inner.may_start(task)

    def released(self) -> list[Task]:
        """Return (and forget) the tasks that were refused by `may_start` and may start now."""
        return self.inner.released()

    def unfinished(self, over: Set[int]) -> Iterator[tuple[int, list[int]]]:
        """Yield (task id, ids of the producers it waits for) for every task that is not `over`."""
        return self.inner.unfinished(over)

    def name(self, id: int) -> str:
        """Return what the task with that id is called in messages."""
        return self.inner.name(id)
