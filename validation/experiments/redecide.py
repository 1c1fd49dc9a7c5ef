"""The decisions of a real run, made again in the simulator.

A plan says who runs what, in which order on each stream; where workers take their tasks themselves, that
leaves out who was held back by whom. In-order issue, for one, lets nobody pass: a decision is made after the
decisions before it. So decisions are made again in the order in which they were made, which a plan has too:
its tasks are numbered in order of issue.
"""

from __future__ import annotations

from sim.job.job import Job
from sim.machine.task import Issuer, Task
from sim.policy import Policy
from sim.record.plan import Plan


class Redecide(Policy):
    """Every task to its issuer of the plan, in the plan's order of issue within a group.

    Parameters
    ----------
    plan : Plan
    synchronisation : str
        Of the policy that decided.

    Notes
    -----
    Unlike `policies.issue.replay.ReplayPlan`, which lets each issuer go its own way through its list.
    """

    def __init__(self, plan: Plan, synchronisation: str) -> None:
        self.plan, self.synchronisation = plan, synchronisation
        self._todo: list[list[tuple[int, int]]] = []
        self._eligible: dict[int, Task] = {}
        self._n = 0

    def prepare(self, job: Job) -> None:
        """Line the decisions up, one line a group."""
        self._n = len(job.graph)
        self._eligible = {}
        self._todo = [[] for _ in range(job.n_groups)]
        issuers = {issuer.name: issuer for issuer in job.machine.issuers()}
        for task in self.plan:
            issuer = issuers[task.issuer]
            key = task.iteration * self._n + job.graph.index(task.op)
            self._todo[issuer.group].append((issuer.index, key))
        for line in self._todo:
            line.reverse()

    def ready(self, task: Task) -> None:
        """Note that `task` is eligible."""
        self._eligible[task.iteration * self._n + task.op] = task

    def next(self, issuer: Issuer) -> Task | None:
        """Return the task of the group's next decision, if it is this issuer's and eligible."""
        line = self._todo[issuer.group]
        if not line or line[-1][0] != issuer.index or line[-1][1] not in self._eligible:
            return None
        return self._eligible.pop(line.pop()[1])
