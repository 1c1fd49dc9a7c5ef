"""Half-open intervals of time ``[start, end)`` as arrays: unions, lengths, overlaps.

Everything measured on a trace comes down to a few questions about sets of intervals, asked for all
devices (or streams, or links) at once. The trick is the same each time: shift every group far enough
that groups cannot touch, and treat them as one time line::

    group 0   ▇▇  ▇▇▇▇                      ▇▇  ▇▇▇▇ · · · ▇▇▇  ▇
    group 1      ▇▇▇  ▇        becomes      └ group 0 ┘    └ group 1 ┘

Zero-length intervals cover nothing and have no effect.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from sim.base.arrays import IntArray, most_by, sums_by


class Intervals(NamedTuple):
    """Intervals of several groups, as parallel arrays."""

    start: IntArray
    end: IntArray
    group: IntArray

    def lengths(self, n_groups: int) -> IntArray:
        """Return the total length per group (exact for disjoint intervals)."""
        return sums_by(self.group, self.end - self.start, n_groups)


def union(start: IntArray, end: IntArray, group: IntArray) -> Intervals:
    """Merge the intervals of each group into disjoint ones that do not touch, sorted by group and time.

    Parameters
    ----------
    start, end, group : arrays of int64
        ``end >= start >= 0``; any order.

    Examples
    --------
    >>> merged = union(np.array([0, 5, 8]), np.array([6, 7, 9]), np.array([0, 0, 0]))
    >>> merged.start.tolist(), merged.end.tolist()
    ([0, 8], [7, 9])
    """
    real = end > start
    start, end, group = start[real], end[real], group[real]
    if not len(start):
        return Intervals(start, end, group)
    offset = group * (int(end.max()) + 1)
    order = np.argsort(start + offset, kind="stable")
    start, end, group, offset = start[order], end[order], group[order], offset[order]
    reach = np.maximum.accumulate(end + offset)
    first = np.ones(len(start), dtype=bool)
    first[1:] = (start + offset)[1:] > reach[:-1]
    last = np.append(np.flatnonzero(first)[1:] - 1, len(start) - 1)
    return Intervals(start[first], (reach - offset)[last], group[first])


def complement(intervals: Intervals, horizon_ns: int, n_groups: int) -> Intervals:
    """Return the rest of ``[0, horizon_ns)`` in each group, for disjoint sorted intervals within it.

    Examples
    --------
    >>> rest = complement(union(np.array([2]), np.array([4]), np.array([0])), 9, 2)
    >>> list(zip(*(column.tolist() for column in rest)))
    [(0, 2, 0), (4, 9, 0), (0, 9, 1)]
    """
    groups = np.arange(n_groups)
    start = np.concatenate((np.zeros(n_groups, np.int64), intervals.end))
    end = np.concatenate((intervals.start, np.full(n_groups, horizon_ns)))
    by_start = np.lexsort((start, np.concatenate((groups, intervals.group))))
    group = np.concatenate((intervals.group, groups))
    by_end = np.lexsort((end, group))
    start, end, group = start[by_start], end[by_end], group[by_end]
    real = end > start
    return Intervals(start[real], end[real], group[real])


def overlap_of_at_least(start: IntArray, end: IntArray, group: IntArray, minimum: IntArray) -> Intervals:
    """Return when at least ``least[g]`` intervals of group g overlap.

    Parameters
    ----------
    start, end, group : arrays of int64
        Intervals in any order.
    minimum : array of int64
        One positive number per group.

    Examples
    --------
    >>> both = overlap_of_at_least(np.array([0, 3]), np.array([5, 9]), np.array([0, 0]), np.array([2]))
    >>> both.start.tolist(), both.end.tolist()
    ([3], [5])
    """
    if (minimum == 1).all():
        return union(start, end, group)
    time, owner = np.concatenate((start, end)), np.concatenate((group, group))
    step = np.repeat(np.array([1, -1]), len(start))
    order = np.lexsort((time, owner))
    time, owner = time[order], owner[order]
    count = np.cumsum(step[order])  # back at 0 where a group ends
    enough = np.flatnonzero(count[:-1] >= minimum[owner[:-1]]) if len(count) else np.zeros(0, np.int64)
    return union(time[enough], time[enough + 1], owner[enough])


class Cover:
    """Measures how much of any stretch of time a set of disjoint intervals covers, per group.

    Parameters
    ----------
    intervals : Intervals
        The result of `union`.
    horizon_ns : int
        The latest time to ask for.

    Examples
    --------
    >>> cover = Cover(union(np.array([2, 6]), np.array([4, 9]), np.array([0, 0])), 10)
    >>> cover.between(np.array([0, 3]), np.array([10, 7]), np.array([0, 0])).tolist()
    [5, 2]
    """

    def __init__(self, intervals: Intervals, horizon_ns: int) -> None:
        self._spacing = horizon_ns + 1
        self._start = intervals.start + intervals.group * self._spacing
        length = intervals.end - intervals.start
        self._length = np.append(length, 0)
        self._before = np.concatenate((np.zeros(1, np.int64), np.cumsum(length)))

    def _covered_before(self, time: IntArray, group: IntArray) -> IntArray:
        """Return the length covered before `time`, including all groups with lower numbers."""
        shifted = time + group * self._spacing
        k = np.searchsorted(self._start, shifted, side="right") - 1
        partial = np.minimum(shifted - np.append(self._start, 0)[k], self._length[k])
        return np.where(k < 0, 0, self._before[k] + partial)

    def between(self, start: IntArray, end: IntArray, group: IntArray) -> IntArray:
        """Return the length covered in each ``[start, end)``; 0 where `end` is not after `start`."""
        return np.where(end > start, self._covered_before(end, group) - self._covered_before(start, group), 0)


def most_at_once(start: IntArray, end: IntArray, weight: IntArray) -> tuple[int, int]:
    """Return the maximum total weight at any instant, and the index of an interval that begins then.

    Intervals that end at an instant are gone before others begin at it. Without intervals: ``(0, -1)``.

    Examples
    --------
    >>> most_at_once(np.array([0, 2, 5]), np.array([5, 6, 7]), np.array([1, 1, 1]))
    (2, 1)
    """
    times, total = in_use(start, end, weight)
    if not total.any():
        return 0, -1
    begin = (start == times[total.argmax()]) & (end > start) & (weight > 0)
    return int(total.max()), int(np.flatnonzero(begin)[-1])


def in_use(start: IntArray, end: IntArray, weight: IntArray) -> tuple[IntArray, IntArray]:
    """Return the instants at which intervals begin or end, and the total weight from each on.

    Examples
    --------
    >>> times, weight = in_use(np.array([0, 2]), np.array([5, 6]), np.array([1, 3]))
    >>> times.tolist(), weight.tolist()
    ([0, 2, 5, 6], [1, 4, 3, 0])
    """
    times, index = np.unique(np.concatenate((start, end)), return_inverse=True)
    return times, np.cumsum(sums_by(index, np.concatenate((weight, -weight)), len(times)))


def most_in_use(start: IntArray, end: IntArray, weight: IntArray, group: IntArray, n_groups: int) -> IntArray:
    """Return the maximum total weight of each group of intervals at any instant.

    Examples
    --------
    >>> group = np.array([0, 0, 1])
    >>> most_in_use(np.array([0, 2, 3]), np.array([5, 6, 4]), np.array([1, 3, 7]), group, 3).tolist()
    [4, 7, 0]
    """
    time, owner = np.concatenate((start, end)), np.concatenate((group, group))
    order = np.lexsort((time, owner))
    time, owner = time[order], owner[order]
    last = np.ones(len(time), dtype=bool)  # of the changes of an instant
    last[:-1] = (time[1:] != time[:-1]) | (owner[1:] != owner[:-1])
    total = np.cumsum(np.concatenate((weight, -weight))[order])[last]  # 0 where a group is over
    return most_by(owner[last], total, n_groups)


def levels(start: IntArray, end: IntArray, group: IntArray, n_groups: int) -> tuple[IntArray, IntArray]:
    """Return for each interval the lowest level of its group that is free from its start on, for drawing.

    Parameters
    ----------
    start, end, group : array of int64
        In order of start.
    n_groups : int

    Returns
    -------
    level : array of int64
    count : array of int64, shape (n_groups,)
        Number of levels of each group.

    Examples
    --------
    >>> group = np.zeros(4, np.int64)
    >>> level, count = levels(np.array([0, 1, 3, 5]), np.array([5, 3, 9, 6]), group, 1)
    >>> level.tolist(), count.tolist()
    ([0, 1, 1, 0], [2])
    """
    level = np.zeros(len(group), np.int64)
    by_group = np.argsort(group, kind="stable")
    one, following = by_group[:-1], by_group[1:]
    crowded = np.unique(group[following][(group[one] == group[following]) & (start[following] < end[one])])
    for k in crowded.tolist():
        free: list[int] = []
        busy: list[tuple[int, int]] = []
        for row in np.flatnonzero(group == k).tolist():
            while busy and busy[0][0] <= start[row]:
                heappush(free, heappop(busy)[1])
            level[row] = heappop(free) if free else len(busy)
            heappush(busy, (end[row], level[row]))
    return level, most_by(group, level + 1, n_groups)
