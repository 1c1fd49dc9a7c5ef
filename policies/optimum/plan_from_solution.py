"""From the times of a solution to decisions: who takes which task when, and on which stream.

Each host thread or worker takes its tasks in the order of the solution, as soon as it can. Nothing then
begins later than in the solution, as long as tasks only keep one another waiting: whoever is early is out of
the way earlier.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.issue.program_order import ProgramOrder
from policies.optimum.job_model import Timetable
from sim import Job
from sim.job.costs import issue_costs_ns
from sim.policy import Order


class Follow(ProgramOrder):
    """A policy, a stream assignment and a program order from a timetable.

    Parameters
    ----------
    timetable : Timetable
    synchronisation : str
        As of the policy that the timetable was made for.
    by_start : bool
        Whether tasks are taken in the order in which they start: a solution may have a host take one long
        before its stream is free, and then what is to start there earlier would stand behind it.
    """

    def __init__(self, timetable: Timetable, synchronisation: str, *, by_start: bool = False) -> None:
        self.timetable, self.synchronisation, self.by_start = timetable, synchronisation, by_start

    def as_data(self, job: Job) -> Order:
        """Return the tasks of every issuer: each goes to one that is free then."""
        n, costs = len(job.graph), issue_costs_ns(job).tolist()
        issuers = job.machine.issuers()
        of_group: list[list[int]] = [[] for _ in range(job.n_groups)]
        for issuer in issuers:
            of_group[issuer.group].append(issuer.index)
        programs: list[list[int]] = [[] for _ in issuers]
        free = [0] * len(issuers)
        launched, group_of = job.launched.tolist(), job.group_of.tolist()
        for taken, i, op in self._tasks(job):
            own = of_group[group_of[op]]
            who = next((k for k in own if free[k] <= taken), min(own, key=lambda k: (free[k], k)))
            programs[who].append(i * n + op)
            ns = 0 if launched[op] else self._ns(job, i, op)
            free[who] = max(free[who], taken + costs[op] + ns)
        return Order("place", [np.array(keys, np.int64) for keys in programs], 1, "issuer")

    def order(self, job: Job) -> Sequence[int]:
        """Return the ops as they are first taken (see `sim.job.job.Linearizer`)."""
        return list(dict.fromkeys(op for _, _, op in self._tasks(job)))

    def assign(self, job: Job) -> Sequence[int]:
        """Return a stream for each op: one that is free, rather that of a producer, or that was free last."""
        first: dict[int, tuple[int, int]] = {}
        until = [[0] * device.lanes for device in job.machine.devices]
        last = [[-1] * device.lanes for device in job.machine.devices]
        before = [set(row) for row in job.graph.predecessors.lists()]
        for _, i, op in self._tasks(job):
            d = int(job.device_of[op])
            start = self.timetable.start_ns[i][op]
            if op not in first:
                free = [k for k, ns in enumerate(until[d]) if ns <= start] or range(len(until[d]))
                lane = max(
                    free, key=lambda k: (last[d][k] in before[op], until[d][k] <= start, until[d][k], -k)
                )
                first[op] = d, lane
            lane = first[op][1]
            until[d][lane] = max(until[d][lane], start + self._ns(job, i, op) + job.machine.devices[d].gap_ns)
            last[d][lane] = op
        return [first[op][1] for op in range(len(job.graph))]

    @staticmethod
    def _ns(job: Job, i: int, op: int) -> int:
        return int((job.duration_ns if job.noisy_ns is None else job.noisy_ns[i])[op])

    def _tasks(self, job: Job) -> list[tuple[int, int, int]]:
        """Return when each task is taken, its iteration and op, in this order; producers before consumers."""
        rank = np.argsort(job.graph.topological_order).tolist()
        table = self.timetable
        tasks = [
            (table.taken_ns[i][op], table.start_ns[i][op], i, rank[op], op)
            for i in range(job.iterations)
            for op in range(len(job.graph))
        ]
        if self.by_start:
            tasks.sort(key=lambda task: (task[1], task[0], *task[2:]))
        else:
            tasks.sort()
        return [(taken, i, op) for taken, _, i, _, op in tasks]
