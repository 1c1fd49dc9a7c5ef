# cython: language_level=3, annotation_typing=False, initializedcheck=False
# cython: boundscheck=False, wraparound=False, cdivision=True
"""The longest chain of ops: one pass over all inputs, op after op in topological order.

::

    iteration 0    a ─► b ─┐ distance 1        an op ends its own time after the last of what it waits for,
    iteration 1            └─► a ─► b          or, where it is not strict, after the first of its inputs

This is plain Python on int64 columns; `longest.pxd` gives Cython the types.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any

import numpy as np

ALL, FIRST, NO_DATA, NOTHING = 0, 1, 2, 3
"""What an op waits for: all inputs, the first one, no input, or not even for control edges."""

COMPILED = not __file__.endswith(".py")


def longest_ns(iterations: int, *columns: Any) -> int:
    """Return the latest end of any op.

    Parameters
    ----------
    iterations : int
    *columns : array of int64
        The topological order; for each op its duration and what it waits for (`ALL`, ...); the bounds of its
        inputs, and of each input the producer (-1: from outside), the iterations between and the travel time;
        the bounds of its control edges, and of each the producer and the iterations between.
    """
    end = np.zeros(iterations * len(columns[0]), np.int64)
    # Python reads lists faster, and their numbers have no limit.
    as_read: Any = np.ascontiguousarray if COMPILED else np.ndarray.tolist
    read = list(map(as_read, [end, *columns]))
    sweep(*read)
    return int(np.max(read[0]))


def sweep(
    end: MutableSequence[int],
    order: Sequence[int],
    own: Sequence[int],
    waits: Sequence[int],
    first_input: Sequence[int],
    producer: Sequence[int],
    distance: Sequence[int],
    travel: Sequence[int],
    first_after: Sequence[int],
    follows: Sequence[int],
    behind: Sequence[int],
) -> None:
    """Fill in the ends of all ops in all iterations."""
    n = len(order)
    for base in range(0, len(end), n):
        for i in range(n):
            op = order[i]
            at, first, wait = 0, -1, waits[op]
            for j in range(first_input[op], first_input[op + 1]):
                from_end = base - distance[j] * n
                there = travel[j] if from_end >= 0 else 0  # it was there before the first iteration
                if producer[j] >= 0 and from_end >= 0:
                    there += end[from_end + producer[j]]
                if wait == ALL and there > at:
                    at = there
                elif wait == FIRST and (there < first or first < 0):
                    first = there
            for j in range(first_after[op], first_after[op + 1]):
                from_end = base - behind[j] * n
                if wait != NOTHING and from_end >= 0 and end[from_end + follows[j]] > at:
                    at = end[from_end + follows[j]]
            end[base + op] = max(at, first) + own[op]
