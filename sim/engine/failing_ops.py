"""The effects of failing ops on the rest of a run.

::

    op fails ─┬─ skip           its consumers never become eligible; everything else runs
              ├─ abort          ... and the step's outstanding Sends and Recvs never complete
              ├─ stop-group     ... and the issuers of its group take nothing more
              └─ stop-machine   ... and no issuer of its process takes anything more

If runs are calls, one after another (`sim.readiness.counters`), the caller gets the error in all four cases,
and later runs of the session never begin.

Nothing that has begun is undone: a task on a worker, stream or link runs to its end, and the run is over
when all of them have ended. `sim.graph.failures` determines which ops fail and the policy
(`sim.policy.Policy.on_failure`) what follows; this module records failures and their consequences.

A step is a run of a session: an iteration of the graph, and ops with the same attribute ``session``.
TensorFlow has one rendezvous for each step, which all its executors share. The first executor that sees an
error aborts it, and from then on every Send and Recv of that step returns the error, waiting ones at once
(tensorflow/core/common_runtime/executor.cc: ``ExecutorState::NodeDone``;
tensorflow/core/framework/local_rendezvous.cc: ``StartAbort``). Tensors whose Send and Recv had met are copied
and arrive. A transfer without ops of its own is both Send and Recv.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

import numpy as np

from sim.base.errors import InputError
from sim.graph.failures import ABORTED, DONE, FAILED, Failures
from sim.graph.rendezvous_keys import rendezvous_keys
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.machine.task import Task
from sim.policy import Policy
from sim.readiness.counters import sessions_of


def refuse_unknown(job: Job, policy: Policy) -> None:
    """Raise if the behaviour of a run is unknown when an op fails.

    Raises
    ------
    InputError
        The policy does not say; or collectives would wait for ranks that may never come, until a timeout
        that is not modelled; or an exception ends one of several processes that share threads.
    """
    if policy.on_failure is None:
        raise InputError(
            f"some ops may fail, and nobody knows what {type(policy).__name__} does then; choose "
            "tensorflow-executor, tfrt, ready-queue, sequential or in-order, or give a policy of your own "
            "the attribute on_failure"
        )
    if job.collectives is not None:
        raise InputError(
            "some ops may fail, and nobody knows how long the other ranks of a collective then wait; leave "
            "the communicators out, or let no op fail"
        )
    if job.process_of is not None and policy.on_failure in ("stop-group", "stop-machine"):
        pairs = np.unique(np.stack((job.group_of, job.process_of)), axis=1)
        if len(np.unique(pairs[0])) < pairs.shape[1]:
            raise InputError(
                f"some ops may fail, and {type(policy).__name__} then ends their process; but threads of a "
                "CPU are shared by several: say processes: one, or let no op fail"
            )


class Failing:
    """The failures of one run, and their consequences.

    Parameters
    ----------
    job : Job
    flow : Flow
    policy : Policy
    failures : Failures
        The failures of the job.
    with_memory : bool
        Whether allocators are simulated, which is refused.

    Raises
    ------
    InputError
        The behaviour is unknown when an op fails (`refuse_unknown`), or allocators are simulated.
    """

    def __init__(
        self, job: Job, flow: Flow, policy: Policy, failures: Failures, *, with_memory: bool = False
    ) -> None:
        refuse_unknown(job, policy)
        if with_memory:
            raise InputError(
                "an allocator cannot follow a step in which an op fails: leave memory out, or no op may fail"
            )
        assert policy.on_failure is not None
        self._failures, self._on_failure = failures, policy.on_failure
        self._job, self._session = job, sessions_of(job, flow)
        self._sends = frozenset(rendezvous_keys(job.graph).sends)
        self._aborted: set[tuple[object, int]] = set()
        self._any = False

    def verdict(self, task: Task) -> int:
        """Return the status of an op whose kernel returns now (`sim.graph.failures.STATUSES`)."""
        if not task.dead and self._failures.fails(task.op, task.iteration, str(task.frame or "")):
            return FAILED
        return ABORTED if task.op in self._sends and self.is_aborted(task) else DONE

    def on_failure(self, task: Task) -> Set[int]:
        """Record that `task` has failed; return the groups of issuers that stop."""
        self._any = True
        if self._on_failure == "abort":
            self._aborted.add((self._session[task.op], task.iteration))
        if self._on_failure == "stop-group":
            return {task.group}
        if self._on_failure != "stop-machine":
            return frozenset()
        job = self._job
        if job.process_of is None:
            return frozenset(range(job.n_groups))
        return frozenset(job.group_of[job.process_of == job.process_of[task.op]].tolist())

    def is_aborted(self, task: Task) -> bool:
        """Whether the step of a task, or of a transfer, has been aborted."""
        return (self._session[task.op], task.iteration) in self._aborted

    def is_unexplained(self, tasks: Mapping[int, Task], stopped: Set[int], copies: Mapping[int, int]) -> bool:
        """Whether anything is left that no failure explains, once nothing can happen any more.

        Parameters
        ----------
        tasks : mapping of int to Task
            Id → task that is eligible and has not ended.
        stopped : set of int
            Groups of issuers that take nothing more.
        copies : mapping of int to int
            Transfer (node) → group whose issuer has to make it.
        """
        if not self._any:
            return True
        remaining: Iterable[Task] = tasks.values()
        if self._on_failure == "stop-group":  # a program may wait for the output of a stopped one
            remaining = [task for task in remaining if task.group < 0 or task.issuer is not None]
        return any(copies.get(task.op, task.group) not in stopped for task in remaining)
