"""Prune: keep only the ancestors of the fetches; a feed cuts the graph.

::

    x ─► a ─► b ─► loss          fetches: [loss]      x ─► a ─► b ─► loss
              └──► summary       feeds: [a]           (fed)  ─► b ─► loss

    with explicit: true          ┌╌► arg/a ─► b ─► loss ─► retval/loss ╌╌┐
                                 source                                sink
                                 └╌╌► an op without inputs ╌╌► ...  ╌╌╌╌╌┘

Reachability runs backwards over data and control edges, and from a Recv to the Sends of its key. A fed tensor
becomes a graph input. With explicit nodes it becomes an Arg instead, and a RetVal reads each fetch; ops
without incoming edges follow the Source, and the Sink follows ops without outgoing edges, so that the graph
has one beginning and one end. (An op that ends inside a loop ends with each iteration, so the Sink does not
follow it.)

As ``RewriteGraphForExecution`` and ``PruneForReverseReachability`` in tensorflow/core/graph/subgraph.cc, and
``FixupSourceAndSinkEdges`` in tensorflow/core/graph/algorithm.cc. As there, a fed op still runs if another
op follows it by a control edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from policies.option_checks import name_list
from policies.rewrite.records import Edge, ExternalTensor, OpEntry, Records, frames_given, read, write
from sim import Graph
from sim.base.arrays import group_pairs
from sim.base.errors import GraphError, UnknownNameError
from sim.graph.frames import frame_structure, has_control_flow
from sim.graph.graph import Role

SOURCE: Final = "_source"
SINK: Final = "_sink"


@dataclass(eq=False)
class Prune:
    """Keep only ops that the fetches need.

    Parameters
    ----------
    fetches : sequence of str
        Ops or tensors to keep; by default, without `targets`, the ops that no other reads or follows, so
        that nothing is pruned.
    feeds : sequence of str
        Tensors that are given, so that their producers need not run.
    targets : sequence of str
        Ops to run although their outputs are not fetched.
    explicit : bool
        Whether feeds become Arg nodes and fetches RetVal nodes, and Source and Sink tie loose ends.
    device : str, optional
        Device or kind of device of those nodes (the client's CPU). By default placement decides.

    Raises
    ------
    InputError
        If `fetches`, `feeds` or `targets` is a single text.
    UnknownNameError
        If the graph lacks a name (when applied).
    GraphError
        If every fetch is fed, or an op of the graph has the name of an explicit node.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("g")
    >>> _ = b.input("x"), b.op("a", inputs=["x"]), b.op("b", inputs=["a"]), b.op("summary", inputs=["a"])
    >>> Prune(fetches=["b"], feeds=["a"]).apply(b.build()).op_names
    ('b',)
    >>> Prune(fetches=["b"], feeds=["a"], explicit=True).apply(b.build()).op_names
    ('_source', 'arg/a', 'b', 'retval/b', '_sink')
    """

    fetches: Sequence[str] = ()
    feeds: Sequence[str] = ()
    targets: Sequence[str] = ()
    explicit: bool = False
    device: str | None = None

    def __post_init__(self) -> None:
        """Refuse a single text."""
        for option in ("fetches", "feeds", "targets"):
            name_list("prune", option, getattr(self, option))

    def apply(self, graph: Graph) -> Graph:
        """Return the pruned graph; fed tensors are graph inputs or Args, fetched ones are read by RetVals."""
        if not (self.fetches or self.feeds or self.targets or self.explicit):
            return graph
        records = read(graph)
        fetches, feeds, targets = (
            [_tensor(records, name) for name in names] for names in (self.fetches, self.feeds, self.targets)
        )
        fed = self._feed(records, feeds)
        roots = [*fetches, *targets] or records.find_unused()
        keep = _ancestors(records, [name for name in roots if name not in fed])
        if not keep:
            raise GraphError(f"graph {graph.name!r}: everything that is fetched is fed, nothing left to run")
        records.ops = {name: record for name, record in records.ops.items() if name in keep}
        args, retvals = list[OpEntry](), list[OpEntry]()
        for index, name in enumerate(dict.fromkeys(fetches if self.explicit else ())):
            retvals.append(self._node(f"retval/{name}", "retval", [(fed.get(name, name), 0)], index=index))
        used = {tensor for record in (*records.ops.values(), *retvals) for tensor in record.reads}
        if self.explicit:
            for index, feed in enumerate(fed.values()):
                external = records.externals.pop(feed)
                if feed in used:
                    args.append(self._node(feed, "arg", [], external.nbytes, index=index))
            self._tie(records, args, retvals)
        records.externals = {name: external for name, external in records.externals.items() if name in used}
        return write(records)

    def _feed(self, records: Records, feeds: Sequence[str]) -> dict[str, str]:
        """Replace fed tensors by graph inputs; return tensor → graph input."""
        fed = {
            name: f"arg/{name}" if self.explicit else f"feed of {name}"
            for name in feeds
            if self.explicit or name not in records.externals
        }
        for name, feed in fed.items():
            records.externals[feed] = ExternalTensor(records.nbytes(name), Role.INPUT, None)
        for record in records.ops.values():
            record.inputs = [(fed.get(tensor, tensor), d) for tensor, d in record.inputs]
        return fed

    def _node(self, name: str, kind: str, inputs: list[Edge], nbytes: int = 0, **attributes: int) -> OpEntry:
        node = OpEntry(name, kind, inputs, [], (nbytes,), duration_ns=0, device=self.device)
        node.attributes |= attributes
        return node

    def _tie(self, records: Records, args: list[OpEntry], retvals: list[OpEntry]) -> None:
        """Put Args before all ops and RetVals after them, and tie loose ends to Source and Sink."""
        new = [SOURCE, *(r.name for r in (*args, *retvals)), SINK]
        for name in new:
            if name in records.ops or name in records.externals:
                raise GraphError(f"the graph has an op {name!r} already: it was pruned with explicit nodes")
        records.ops = {record.name: record for record in (*args, *records.ops.values(), *retvals)}
        loose, graph = records.find_unused(), write(records)
        if has_control_flow(graph):  # what ends inside a loop is not loose
            frames = dict(zip(graph.op_names, frames_given(graph, frame_structure(graph)), strict=True))
            loose = [name for name in loose if not frames[name]]
        source, sink = self._node(SOURCE, "no_op", []), self._node(SINK, "control_trigger", [])
        for record in records.ops.values():
            if not record.after and not records.makers(record.inputs):
                record.after = [(SOURCE, 0)]
        sink.after = [(name, 0) for name in loose]
        records.ops = {SOURCE: source, **records.ops, SINK: sink}


def _tensor(records: Records, name: str) -> str:
    """Return the tensor's name as used by edges: ``a`` for ``a:0``."""
    producer = records.producer(name)
    if producer is None and name not in records.externals:
        raise UnknownNameError("op or tensor", name, [*records.ops, *records.externals])
    return name.removesuffix(":0") if producer is not None and name not in records.ops else name


def _ancestors(records: Records, names: Sequence[str]) -> set[str]:
    """Return the wanted ops and all their ancestors."""
    sends = group_pairs((r.attributes.get("key"), r.name) for r in records.ops.values() if r.kind == "send")
    keep: set[str] = set()
    stack = [record.name for record in map(records.producer, names) if record is not None]
    while stack:
        name = stack.pop()
        if name in keep:
            continue
        keep.add(name)
        record = records.ops[name]
        stack += [maker.name for maker in records.makers((*record.inputs, *record.after))]
        if record.kind == "recv":
            stack += sends.get(record.attributes.get("key", ""), ())
    return keep
