"""Work between heads and tails: a machine cannot begin before its tasks can, nor be the last thing needed.

::

    head 2   ▇▇▇ body   tail 4          of any of the tasks of a machine together:
    head 0      ▇▇▇▇▇   tail 1          least head + sum of bodies / capacity + least tail

The greatest over all sets of tasks is the makespan of Jackson's preemptive schedule: whenever a task arrives
or is done, the machine goes on with the one that has the longest tail (Jackson 1955, "Scheduling a
production line to minimize maximum tardiness"; that it is the greatest: Carlier 1982, "The one-machine
sequencing problem", EJOR 11(1)). A machine of capacity m is no faster than one that is m times as fast.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np

from sim.words.arrays import IntArray

__all__ = ["around_ns", "between_ns"]


def around_ns(head: IntArray, body: IntArray, tail: IntArray, capacity: int = 1) -> int:
    """Return as `between_ns` what the tasks of a machine take at least; of fewer sets, in array operations.

    These are all tasks from some head on, and all from some tail on.

    Examples
    --------
    >>> around_ns(np.array([2, 0]), np.array([3, 5]), np.array([4, 1]))
    9
    """
    if not len(head):
        return 0
    longest = 0
    for one, other in ((head, tail), (tail, head)):
        order = np.argsort(one, kind="stable")[::-1]
        work = np.cumsum(body[order])
        least = one[order] + np.minimum.accumulate(other[order])
        longest = max(longest, int((least - -work // capacity).max()))
    return longest


def between_ns(head: Sequence[int], body: Sequence[int], tail: Sequence[int], capacity: int = 1) -> int:
    """Return how long the tasks of a machine take at least, from 0 to the end of the longest tail.

    Parameters
    ----------
    head, body, tail : sequence of int
        Of each task: when it begins at the earliest, what it asks for, in ns of one unit of the capacity, and
        how long all takes after it at least.
    capacity : int
        How much is done at once.

    Examples
    --------
    >>> between_ns([2, 0], [3, 5], [4, 1])
    9
    >>> between_ns([0, 0, 0], [10, 10, 10], [0, 0, 0], capacity=2)
    15
    """
    tasks = sorted((h * capacity, b, t * capacity) for h, b, t in zip(head, body, tail, strict=True))
    waiting: list[tuple[int, int]] = []  # minus the tail, and what is left to do
    now = longest = at = 0
    while at < len(tasks) or waiting:
        if not waiting:
            now = max(now, tasks[at][0])
        while at < len(tasks) and tasks[at][0] <= now:
            heappush(waiting, (-tasks[at][2], tasks[at][1]))
            at += 1
        tail_ns, left = heappop(waiting)
        until = tasks[at][0] if at < len(tasks) else now + left
        done = min(left, until - now)
        now += done
        if done < left:
            heappush(waiting, (tail_ns, left - done))
        else:
            longest = max(longest, now - tail_ns)
    return -(-longest // capacity)
