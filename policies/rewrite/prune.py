"""Prune: keep the ancestors of what is fetched; a feed cuts the graph.

::

    x ─► a ─► b ─► loss          fetches: [loss]      x ─► a ─► b ─► loss
              └──► summary       feeds: [a]           (fed)  ─► b ─► loss

As ``RewriteGraphForExecution`` and ``PruneForReverseReachability`` in
tensorflow/core/graph/subgraph.cc: reachability runs backwards over data and control edges.
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.rewrite.records import External, Records, read, write
from sim import Graph
from sim.errors import GraphError, UnknownNameError
from sim.graph import Role

__all__ = ["Prune"]


class Prune:
    """Keep what the fetches need.

    Parameters
    ----------
    fetches : sequence of str
        Ops or tensors that are wanted; by default the ops that nobody reads or follows, so that
        nothing is pruned.
    feeds : sequence of str
        Tensors that are given: their producers need not run.

    Raises
    ------
    UnknownNameError
        A name that the graph does not have (when applied).
    GraphError
        Everything that is fetched is fed.
    """

    def __init__(self, fetches: Sequence[str] = (), feeds: Sequence[str] = ()) -> None:
        self.fetches, self.feeds = tuple(fetches), tuple(feeds)

    def apply(self, graph: Graph) -> Graph:
        """Return the pruned graph; fed tensors become graph inputs of the same name."""
        records = read(graph)
        for name in (*self.fetches, *self.feeds):
            if records.producer(name) is None and name not in records.externals:
                raise UnknownNameError("op or tensor", name, [*records.ops, *records.externals])
        fed = {name: f"feed of {name}" for name in self.feeds if name not in records.externals}
        for name, feed in fed.items():
            records.externals[feed] = External(records.nbytes(name), Role.INPUT, None)
        for record in records.ops.values():
            record.inputs = [(fed.get(tensor, tensor), d) for tensor, d in record.inputs]
        if not self.fetches and not fed:
            return graph
        wanted = self.fetches or [n for n, uses in _uses(records).items() if not uses]
        keep: set[str] = set()
        stack = [r.name for r in map(records.producer, wanted) if r is not None and r.name not in fed]
        while stack:
            name = stack.pop()
            if name in keep:
                continue
            keep.add(name)
            record = records.ops[name]
            for tensor, _ in (*record.inputs, *record.after):
                producer = records.producer(tensor)
                if producer is not None:
                    stack.append(producer.name)
        if not keep:
            raise GraphError(
                f"graph {graph.name!r}: everything that is fetched is fed, nothing is left to run"
            )
        records.ops = {name: record for name, record in records.ops.items() if name in keep}
        used = {tensor for record in records.ops.values() for tensor, _ in record.inputs}
        records.externals = {name: e for name, e in records.externals.items() if name in used}
        return write(records)


def _uses(records: Records) -> dict[str, int]:
    """Return how often each op is read or followed."""
    readers, followers = records.readers(), records.followers()
    return {name: len(readers[name]) + len(followers[name]) for name in records.ops}
