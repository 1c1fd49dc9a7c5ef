# cython: language_level=3, annotation_typing=False, infer_types=True, boundscheck=False
# cython: wraparound=False, initializedcheck=False, cdivision=True
"""Eligible tasks that issuers keep for themselves, and may steal from one another.

::

    of the tasks that an issuer           cheap ──► back of its own queue
    makes eligible                        the last of the others ──► its own queue, if that is empty
                                          other ──► front of its own deque
    takes     front of its queue, else front of its deque, else back of the deque of another of its pool

Each task is in at most one list, so all lists together need two columns. `policies.issue` names the
framework that has this executor.
"""

from __future__ import annotations

from collections.abc import Sequence

from sim.base.arrays import IntArray
from sim.kernel.maxmin import Column, column, zeros

NOBODY = -1
FROM_THE_START = -2  # maker of tasks that wait for nothing: the first of its pool that asks


class Stealing:
    """The queues and deques of all issuers.

    Parameters
    ----------
    n_tasks, n_nodes : int
    cheap, pool : sequences of int
        For each op: whether it is cheap, and the pool that takes it.
    pool_of : sequence of int
        Pool of each issuer, -1: none. Those of one pool are neighbours.

    Examples
    --------
    Issuer 0 makes three tasks eligible, and goes on with the last of them; issuer 1 steals the first:

    >>> some = Stealing(4, 4, [0] * 4, [0] * 4, [0, 0])
    >>> some.begin(0)
    >>> for task in (1, 2, 3):
    ...     some.add(task, task)
    >>> some.finish()
    >>> some.take(0), some.take(1), some.take(1), some.take(0)
    (3, 1, 2, -1)
    """

    def __init__(
        self,
        n_tasks: int,
        n_nodes: int,
        cheap: Sequence[int] | IntArray,
        pool: Sequence[int] | IntArray,
        pool_of: Sequence[int] | IntArray,
    ) -> None:
        nobody = [-1] * len(pool_of)
        n_pools = max(pool_of) + 1
        self.n_nodes = n_nodes
        self.cheap, self.pool, self.pool_of = column(cheap), column(pool), column(pool_of)
        # For each pool: its first issuer, and its number of issuers.
        self.first, self.size = zeros(n_pools), zeros(n_pools)
        for issuer, own_pool in enumerate(pool_of):
            if own_pool >= 0:
                if self.size[own_pool] == 0:
                    self.first[own_pool] = issuer
                self.size[own_pool] += 1
        # For each task: the tasks before and after it.
        self.before, self.behind = zeros(n_tasks), zeros(n_tasks)
        # First and last of each queue, of each deque, and of each pool's tasks from the start.
        self.queue, self.queue_last = column(nobody), column(nobody)
        self.deque, self.deque_last = column(nobody), column(nobody)
        self.root, self.root_last = column([-1] * n_pools), column([-1] * n_pools)
        self.n_queued = zeros(n_pools)  # in the deques of each pool
        self.maker = FROM_THE_START
        self.held = NOBODY  # the last task so far of the current maker that is not cheap

    def begin(self, maker: int) -> None:
        """Set the maker of tasks added from now on: an issuer, or `NOBODY`."""
        self.maker = maker

    def add(self, task: int, op: int) -> None:
        """Take a task that has become eligible."""
        pool = self.pool[op]
        issuer = self.maker
        if issuer == FROM_THE_START:
            self.append(self.root, self.root_last, pool, task)
        elif issuer < 0 or self.pool_of[issuer] != pool:
            self.append(self.deque, self.deque_last, self.first[pool], task)
            self.n_queued[pool] += 1
        elif self.cheap[op]:
            self.append(self.queue, self.queue_last, issuer, task)
        else:
            if self.held >= 0:
                self.push(issuer, self.held)
            self.held = task

    def finish(self) -> None:
        """Finish what `begin` began: the last task that is not cheap goes where it is taken next."""
        if self.held >= 0:
            if self.queue[self.maker] < 0:
                self.append(self.queue, self.queue_last, self.maker, self.held)
            else:
                self.push(self.maker, self.held)
            self.held = NOBODY

    def take(self, issuer: int) -> int:
        """Return the task that an issuer takes now; -1: none."""
        pool = self.pool_of[issuer]
        if pool < 0:
            return NOBODY
        if self.root[pool] >= 0:
            self.begin(issuer)
            task = self.root[pool]
            self.root[pool] = NOBODY
            while task >= 0:
                behind = self.behind[task]
                self.add(task, task % self.n_nodes)
                task = behind
            self.finish()
        task = self.queue[issuer]
        if task >= 0:
            self.queue[issuer] = self.behind[task]
            return task
        if self.n_queued[pool] == 0:
            return NOBODY
        self.n_queued[pool] -= 1
        task = self.deque[issuer]
        if task >= 0:
            self.deque[issuer] = self.behind[task]
            if self.deque[issuer] >= 0:
                self.before[self.deque[issuer]] = NOBODY
            return task
        victim = issuer
        while task < 0:  # one of them has a task
            victim += 1
            if victim == self.first[pool] + self.size[pool]:
                victim = self.first[pool]
            if self.deque[victim] >= 0:
                task = self.deque_last[victim]
        if self.before[task] < 0:
            self.deque[victim] = NOBODY
        else:
            self.behind[self.before[task]] = NOBODY
        self.deque_last[victim] = self.before[task]
        return task

    def append(self, head: Column, last: Column, index: int, task: int) -> None:
        """Append a task to a list."""
        self.behind[task] = NOBODY
        self.before[task] = NOBODY
        if head[index] < 0:
            head[index] = task
        else:
            self.before[task] = last[index]
            self.behind[last[index]] = task
        last[index] = task

    def push(self, issuer: int, task: int) -> None:
        """Put a task at the front of an issuer's deque."""
        self.before[task] = NOBODY
        self.behind[task] = self.deque[issuer]
        if self.deque[issuer] < 0:
            self.deque_last[issuer] = task
        else:
            self.before[self.deque[issuer]] = task
        self.deque[issuer] = task
        self.n_queued[self.pool_of[issuer]] += 1
