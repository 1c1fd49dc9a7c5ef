"""Walks over the edges within one iteration: precedence, orders, cycles.

An edge of distance 1 or more feeds a later iteration, so it orders nothing within one. Code that orders,
places or streams ops walks over the edges of distance 0, which form no cycle in a graph that was built.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

import numpy as np

from sim.base.arrays import Csr, IntArray


class Edges(NamedTuple):
    """Edges as parallel arrays; `tensor` is -1 for a control edge."""

    producer: IntArray
    consumer: IntArray
    distance: IntArray
    tensor: IntArray

    def within_iteration(self) -> Edges:
        """Return the edges of distance 0."""
        same_iteration = self.distance == 0
        return Edges(*(column[same_iteration] for column in self))


class Dag(NamedTuple):
    """Edges of distance 0, data before control, in the order in which they were added.

    An op that reads two tensors of a producer appears twice, in both directions.

    Attributes
    ----------
    successors, predecessors : list of list of int
        One row per op.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("v")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": ["a"]}.items():
    ...     _ = b.op(name, inputs=inputs)
    >>> b.build().dag()
    Dag(successors=[[1, 2], [], []], predecessors=[[], [0], [0]])
    """

    successors: list[list[int]]
    predecessors: list[list[int]]

    @classmethod
    def of(cls, edges: Edges, n: int) -> Dag:
        """Return the edges of distance 0 among `n` ops."""
        producer, consumer, _, _ = edges.within_iteration()
        return cls(Csr.group(producer, consumer, n).lists(), Csr.group(consumer, producer, n).lists())

    def pending(self) -> list[int]:
        """Return the number of edges into each op."""
        return [len(row) for row in self.predecessors]

    def sources(self) -> list[int]:
        """Return the ops without predecessor, by index."""
        return [op for op, row in enumerate(self.predecessors) if not row]

    def freed_by(self, op: int, pending: list[int]) -> list[int]:
        """Remove the edges out of `op` from `pending`; return the ops that become free, in edge order.

        This is the step of Kahn's algorithm (1962, CACM 5(11)).
        """
        freed = []
        for successor in self.successors[op]:
            pending[successor] -= 1
            if not pending[successor]:
                freed.append(successor)
        return freed


def least_first(dag: Dag, keys: Sequence[Any]) -> list[int]:
    """Return the topological order that takes, among the ops whose producers are placed, the least key.

    Ops on a cycle, and the ops after one, are left out.

    Parameters
    ----------
    dag : Dag
    keys : sequence
        One comparable key per op; ties break by index.

    Examples
    --------
    >>> least_first(Dag([[2], [], []], [[], [], [0]]), [5, 9, 7])
    [0, 2, 1]
    """
    pending = dag.pending()
    heap = [(keys[op], op) for op in dag.sources()]
    heapify(heap)
    order = []
    while heap:
        op = heappop(heap)[1]
        order.append(op)
        for freed in dag.freed_by(op, pending):
            heappush(heap, (keys[freed], freed))
    return order


def least_index_first(edges: Edges, n: int) -> IntArray | None:
    """Return the topological order of `n` ops with the least index first; None if there is a cycle."""
    if bool(((edges.producer < edges.consumer) | (edges.distance > 0)).all()):
        return np.arange(n)  # the usual case: ops were added in such an order
    order = least_first(Dag.of(edges, n), range(n))
    return np.array(order, dtype=np.int64) if len(order) == n else None


def a_cycle(predecessors: Mapping[int, Sequence[int]]) -> list[int]:
    """Return one cycle, from its least op back to it; empty if there is none.

    Examples
    --------
    >>> a_cycle({0: [], 1: [0, 2], 2: [1]}), a_cycle({0: [], 1: [0]})
    ([1, 2, 1], [])
    """
    try:
        TopologicalSorter(predecessors).prepare()
    except CycleError as error:
        cycle: list[int] = error.args[1][:-1]
        first = cycle.index(min(cycle))
        return cycle[first:] + cycle[: first + 1]
    return []
