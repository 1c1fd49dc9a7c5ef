# cython: language_level=3, annotation_typing=False, initializedcheck=False
# cython: boundscheck=False, wraparound=False, cdivision=True
"""The ways to and from each node of a flow: one pass over its edges, and one back.

::

    head   ──────────►│ taken ─cost─► latency ─► start ▇▇▇▇ end │      edges in the order of their consumers
    tail      over │◄── tail ── end ▇▇▇▇ start ◄── issued │             ... and in the reverse order

This is plain Python on int64 columns; `ways.pxd` gives Cython the types.
"""

from __future__ import annotations

from collections.abc import MutableSequence, Sequence
from typing import Any

import numpy as np

from sim.base.arrays import IntArray

COMPILED = not __file__.endswith(".py")


def heads_and_tails(*columns: IntArray) -> list[IntArray]:
    """Return when each node is taken and may begin, and what follows its issue and its end, by edges alone.

    Parameters
    ----------
    *columns : array of int64
        Of each node its duration, what issuing it costs and its launch latency; of each edge, in the order of
        consumers, the producer, the consumer, and 1 where it counts when the producer is issued.
    """
    found = [np.zeros(len(columns[0]), np.int64) for _ in range(4)]
    # Python reads lists faster, and its numbers have no limit.
    as_read: Any = np.ascontiguousarray if COMPILED else np.ndarray.tolist
    read = list(map(as_read, [*columns, *found]))
    sweep(*read)
    return [np.asarray(column, np.int64) for column in read[len(columns) :]]


def sweep(
    ns: Sequence[int],
    cost: Sequence[int],
    latency: Sequence[int],
    producer: Sequence[int],
    consumer: Sequence[int],
    early: Sequence[int],
    taken: MutableSequence[int],
    begin: MutableSequence[int],
    issued: MutableSequence[int],
    tail: MutableSequence[int],
) -> None:
    """Fill in the last four columns."""
    edges = len(producer)
    for i in range(edges):
        p, c = producer[i], consumer[i]
        paid = taken[p] + cost[p]
        end = max(begin[p], paid + latency[p]) + ns[p]
        taken[c] = max(taken[c], paid if early[i] else end)
        begin[c] = max(begin[c], end)
    for back in range(edges):
        i = edges - 1 - back
        p, c = producer[i], consumer[i]
        executed = ns[c] + tail[c]
        whole = cost[c] + max(issued[c], latency[c] + executed)
        if early[i]:
            issued[p] = max(issued[p], whole)
            tail[p] = max(tail[p], executed)
        else:
            tail[p] = max(tail[p], whole)
