"""List scheduling by bottom level: of the ready ops, the one with the longest way to go first.

The *bottom level* of an op is the longest path from it to the end of the graph, its own duration
included (`sim.Job.bottom_level_ns`). Taking the highest level first is Hu's rule (Hu 1961, "Parallel
sequencing and assembly line problems", Operations Research 9(6)); with durations that differ it is
the HLFET list schedule of Adam, Chandy and Dickson (1974, CACM 17(12)). It is a heuristic: never worse
than 2 - 1/m times the optimum on m equal workers (Graham 1969), and usually within a few percent.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from policies.option_checks import SYNCHRONISATIONS, one_of
from sim import Issuer, Job, Policy, Task
from sim.policy.order import Order
from sim.words.arrays import IntArray

__all__ = ["CriticalPath"]

_ID_BITS = 40
"""A heap's entry is one number, which compares faster than a tuple: rank, then the task's id."""


class CriticalPath(Policy):
    """Issue the ready op with the longest path to the end.

    Ties break by op index. An earlier iteration comes before a later one: otherwise the beginning of
    the next iteration, which has the whole graph before it, would keep the present one from ending.

    Parameters
    ----------
    synchronisation : str
        ``"completion"``: an op is ready when its inputs are computed. ``"issue"``: when they are issued.

    Raises
    ------
    InputError
        Another word.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> b = GraphBuilder("the long chain is added last")
    >>> for name, inputs, ns in (("a", [], 20), ("b", [], 20), ("c", [], 20), ("d", ["c"], 20)):
    ...     _ = b.op(name, inputs=inputs, duration_ns=ns)
    >>> simulate(b.build(), Machine((Device("cpu0", "cpu", workers=2),)), CriticalPath()).makespan_ns
    40
    """

    scope = "group"

    def __init__(self, synchronisation: str = "completion") -> None:
        self.synchronisation = one_of("critical-path", "synchronisation", synchronisation, SYNCHRONISATIONS)
        self._heaps: list[list[int]] = []
        self._tasks: dict[int, Task] = {}
        self._rank: list[int] = []

    def prepare(self, job: Job) -> None:
        """Rank the ops: highest bottom level first, then least index."""
        self._heaps = [[] for _ in range(job.n_groups)]
        self._tasks = {}
        self._rank = _ranks(job).tolist()

    def as_data(self, job: Job) -> Order:
        """Return the order of the ranks."""
        return Order.by_rank(job, _ranks(job))

    def ready(self, task: Task) -> None:
        """Queue `task` by its rank."""
        rank = self._rank
        entry = (task.iteration * len(rank) + rank[task.op]) << _ID_BITS | task.id
        self._tasks[entry] = task
        heappush(self._heaps[task.group], entry)

    def ended(self, task: Task, now_ready: Sequence[Task], issuer: Issuer | None) -> None:
        """Queue what became eligible."""
        rank = self._rank
        for t in now_ready:
            entry = (t.iteration * len(rank) + rank[t.op]) << _ID_BITS | t.id
            self._tasks[entry] = t
            heappush(self._heaps[t.group], entry)

    def next(self, issuer: Issuer) -> Task | None:
        """Return the eligible task of the highest level."""
        heap = self._heaps[issuer.group]
        return self._tasks.pop(heappop(heap)) if heap else None


def _ranks(job: Job) -> IntArray:
    """Return the place of each op: highest bottom level first, then least index."""
    by_level = np.argsort(-job.bottom_level_ns, kind="stable")
    rank = np.empty(len(by_level), dtype=np.int64)
    rank[by_level] = np.arange(len(by_level))
    return rank
