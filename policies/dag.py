"""The graph as decisions before time 0 see it: edges within one iteration, as plain lists.

An edge of distance 1 or more feeds a later iteration, so it orders nothing within one; whoever
orders, places or streams ops walks over the edges of distance 0, which form no cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Any, NamedTuple

from sim import Graph
from sim.graph.csr import Csr

__all__ = ["Dag", "dag_of", "least_first"]


class Dag(NamedTuple):
    """Edges of distance 0, data before control, in the order in which they were added.

    An op that reads two tensors of a producer is there twice, in both directions.

    Attributes
    ----------
    successors, predecessors : list of list of int
        One row per op.
    """

    successors: list[list[int]]
    predecessors: list[list[int]]

    def pending(self) -> list[int]:
        """Return the number of edges into each op."""
        return [len(row) for row in self.predecessors]

    def sources(self) -> list[int]:
        """Return the ops without predecessor, by index."""
        return [op for op, row in enumerate(self.predecessors) if not row]


def dag_of(graph: Graph) -> Dag:
    """Return the edges of distance 0 of `graph`.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("v")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": ["a"]}.items():
    ...     _ = b.op(name, inputs=inputs)
    >>> dag_of(b.build())
    Dag(successors=[[1, 2], [], []], predecessors=[[], [0], [0]])
    """
    edges, n = graph.edges, len(graph)
    now = edges.distance == 0
    producer, consumer = edges.producer[now], edges.consumer[now]
    return Dag(Csr.group(producer, consumer, n).lists(), Csr.group(consumer, producer, n).lists())


def least_first(dag: Dag, keys: Sequence[Any]) -> list[int]:
    """Return the topological order that takes, of the ops whose producers are placed, the least key.

    This is Kahn's algorithm (1962, CACM 5(11)) with a heap; equal keys go by index.

    Parameters
    ----------
    dag : Dag
    keys : sequence
        One comparable key per op.

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
        for s in dag.successors[op]:
            pending[s] -= 1
            if not pending[s]:
                heappush(heap, (keys[s], s))
    return order
