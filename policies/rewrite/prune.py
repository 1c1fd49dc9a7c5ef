"""Prune: keep the ancestors of what is fetched; a feed cuts the graph.

::

    x ─► a ─► b ─► loss          fetches: [loss]      x ─► a ─► b ─► loss
              └──► summary       feeds: [a]           (fed)  ─► b ─► loss

    with explicit: true          ┌╌► arg/a ─► b ─► loss ─► retval/loss ╌╌┐
                                 source                                sink
                                 └╌╌► an op without inputs ╌╌► ...  ╌╌╌╌╌┘

Reachability runs backwards over data and control edges, and from a Recv to the Sends of its key. A fed tensor
becomes a graph input. With explicit nodes it becomes an Arg instead, and what is fetched is read by a RetVal;
whatever has no edge into it follows the Source, and the Sink follows whatever has none out of it, so that the
graph has one beginning and one end. (What ends inside a loop ends with each of its iterations, and the Sink
does not follow it.)

As ``RewriteGraphForExecution`` and ``PruneForReverseReachability`` in tensorflow/core/graph/subgraph.cc, and
``FixupSourceAndSinkEdges`` in tensorflow/core/graph/algorithm.cc. As there, an op that is fed still runs
where another follows it by a control edge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from policies.rewrite.records import Edge, ExternalTensor, OpEntry, Records, frames_given, read, write
from sim import Graph
from sim.base.errors import GraphError, UnknownNameError
from sim.graph.frames import frame_structure, has_control_flow
from sim.graph.graph import Role

SOURCE: Final = "_source"
SINK: Final = "_sink"


class Prune:
    """Keep what the fetches need.

    Parameters
    ----------
    fetches : sequence of str
        Ops or tensors that are wanted; by default, without `targets` too, the ops that nobody reads or
        follows, so that nothing is pruned.
    feeds : sequence of str
        Tensors that are given: their producers need not run.
    targets : sequence of str
        Ops that are to run although nothing of them is wanted.
    explicit : bool
        Whether feeds become Arg nodes and fetches RetVal nodes, and Source and Sink tie loose ends.
    device : str, optional
        Where those nodes are: a device, or kind of device (the client's CPU). By default placement decides.

    Raises
    ------
    UnknownNameError
        A name that the graph does not have (when applied).
    GraphError
        Everything that is fetched is fed; an op of the graph has the name of an explicit node.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("g")
    >>> _ = b.input("x"), b.op("a", inputs=["x"]), b.op("b", inputs=["a"]), b.op("summary", inputs=["a"])
    >>> Prune(fetches=["b"], feeds=["a"]).apply(b.build()).op_names
    ['b']
    >>> Prune(fetches=["b"], feeds=["a"], explicit=True).apply(b.build()).op_names
    ['_source', 'arg/a', 'b', 'retval/b', '_sink']
    """

    def __init__(
        self,
        fetches: Sequence[str] = (),
        feeds: Sequence[str] = (),
        targets: Sequence[str] = (),
        explicit: bool = False,
        device: str | None = None,
    ) -> None:
        self.fetches, self.feeds, self.targets = tuple(fetches), tuple(feeds), tuple(targets)
        self.explicit, self.device = explicit, device

    def apply(self, graph: Graph) -> Graph:
        """Return the pruned graph; fed tensors are graph inputs or Args, fetched ones are read by RetVals."""
        if not (self.fetches or self.feeds or self.targets or self.explicit):
            return graph
        records = read(graph)
        fetches, feeds, targets = (
            [_tensor(records, name) for name in names] for names in (self.fetches, self.feeds, self.targets)
        )
        fed = self._feed(records, feeds)
        wanted = [*fetches, *targets] or records.unused()
        keep = _ancestors(records, [name for name in wanted if name not in fed])
        if not keep:
            raise GraphError(f"graph {graph.name!r}: everything that is fetched is fed, nothing left to run")
        records.ops = {name: record for name, record in records.ops.items() if name in keep}
        retvals = [
            self._node(f"retval/{name}", "retval", [(fed.get(name, name), 0)], index=index)
            for index, name in enumerate(dict.fromkeys(fetches) if self.explicit else ())
        ]
        used = {tensor for record in (*records.ops.values(), *retvals) for tensor, _ in record.inputs}
        args = []
        for index, feed in enumerate(fed.values() if self.explicit else ()):
            given = records.externals.pop(feed)
            if feed in used:
                args.append(self._node(feed, "arg", [], given.nbytes, index=index))
        records.externals = {name: given for name, given in records.externals.items() if name in used}
        if self.explicit:
            self._tie(records, args, retvals)
        return write(records)

    def _feed(self, records: Records, feeds: Sequence[str]) -> dict[str, str]:
        """Let whoever reads a fed tensor read a graph input instead; return tensor → that input."""
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
        """Put Args before all ops and RetVals behind them, and tie loose ends to Source and Sink."""
        new = [SOURCE, *(r.name for r in (*args, *retvals)), SINK]
        for name in new:
            if name in records.ops or name in records.externals:
                raise GraphError(f"the graph has an op {name!r} already: it was pruned with explicit nodes")
        records.ops = {record.name: record for record in (*args, *records.ops.values(), *retvals)}
        in_loops = _in_loops(records)
        loose = [name for name in records.unused() if name not in in_loops]
        source, sink = self._node(SOURCE, "no_op", []), self._node(SINK, "control_trigger", [])
        for record in records.ops.values():
            if not record.after and not records.makers(record.inputs):
                record.after = [(SOURCE, 0)]
        sink.after = [(name, 0) for name in loose]
        records.ops = {SOURCE: source, **records.ops, SINK: sink}


def _tensor(records: Records, name: str) -> str:
    """Return the tensor's name as edges have it: ``a`` for ``a:0``."""
    producer = records.producer(name)
    if producer is None and name not in records.externals:
        raise UnknownNameError("op or tensor", name, [*records.ops, *records.externals])
    return name.removesuffix(":0") if producer is not None and name not in records.ops else name


def _ancestors(records: Records, wanted: Sequence[str]) -> set[str]:
    """Return the ops that come before what is wanted, those of that among them."""
    sends: dict[str, list[str]] = {}
    for record in records.ops.values():
        if record.kind == "send" and "key" in record.attributes:
            sends.setdefault(record.attributes["key"], []).append(record.name)
    keep: set[str] = set()
    stack = [record.name for record in map(records.producer, wanted) if record is not None]
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


def _in_loops(records: Records) -> set[str]:
    """Return the ops whose outputs are in a loop."""
    graph = write(records)
    if not has_control_flow(graph):
        return set()
    frames = frames_given(graph, frame_structure(graph))
    return {name for name, frame in zip(graph.op_names, frames, strict=True) if frame}


# ----------------------------------------------------------------------------------------------------------
# Dependencies: fewer control edges, and no ops that only pass something on.
#
# ::
#
#     a ╌► no_op ╌► b              a ╌► b                   a NoOp between few
#     x ─► identity ─► y           x ─► y                   an Identity or StopGradient, likewise
#     a ─► b ╌► c,  a ╌► c         a ─► b ╌► c              a control edge that a path makes superfluous
#     const ╌► c                   const  c                 constants are there before anything runs
#     a ─► c (nobody reads c) ╌► d a ╌► no_op ╌► d          what nobody reads need not be computed
#     2 ops on gpu0 ╌► c on cpu0   ╌► no_op on gpu0 ╌► c    one control edge between two devices
#
# An op is bypassed if that makes edges no more, neither in all nor between devices. What nobody reads or
# follows is fetched and stays, and so do Identities behind a variable or a Recv, and ops with an outcome.
# Of an op without a kind it is not known whether it has effects: it stays, too.
#
# As tensorflow/core/grappler/optimizers/dependency_optimizer.cc, which runs twice; StopGradient is removed by
# model_pruner.cc of the same folder, here on the terms of an Identity.

PASSES_ON: Final = frozenset({"identity", "stop_gradient"})
MOVES_FRAMES: Final = frozenset({"enter", "exit", "next_iteration"})
NEVER_A_NO_OP: Final = frozenset({"op", "no_op", "control_trigger", "check_numerics", "assert"})
SOURCES_OF_COPIES: Final = frozenset({"variable", "auto_reload_variable", "var_handle_op", "recv"})
"""Kinds behind which an Identity stands for a read."""

_TIMES = 2


class DependencyPruning:
    """Drop superfluous control edges, and ops that only pass something on.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("g")
    >>> _ = b.op("a"), b.op("i", kind="identity", inputs=["a"]), b.op("n", kind="no_op", after=["a"])
    >>> _ = b.op("y", inputs=["i"], after=["n"])
    >>> DependencyPruning().apply(b.build()).op_names
    ['a', 'y']
    """

    def apply(self, graph: Graph) -> Graph:
        """Return the graph with fewer dependencies."""
        records = read(graph)
        fetched = frozenset(records.unused())
        for _ in range(_TIMES):
            _reduce(records, write(records))
            _Bypass(records, fetched).settle()
            _group(records)
        return write(records)


def _reduce(records: Records, graph: Graph) -> None:
    """Drop control edges between ops that a longer path connects."""
    order = graph.topological_order.tolist()
    place = {graph.op_names[op]: k for k, op in enumerate(order)}
    ops = [records.ops[graph.op_names[op]] for op in order]
    after: list[list[int]] = [[] for _ in ops]
    followers: list[list[int]] = [[] for _ in ops]
    for k, record in enumerate(ops):
        for edges, rows in ((record.inputs, [after]), (record.after, [after, followers])):
            for maker in records.makers(edge for edge in edges if not edge[1]):
                if not {record.kind, maker.kind} & MOVES_FRAMES and maker.kind != "merge":
                    for row in rows:
                        row[place[maker.name]].append(k)
    for k, targets in enumerate(followers):
        if not targets:
            continue
        last = max(targets)
        reached = set(after[k])  # by one edge
        further: set[int] = set()
        stack = list(reached)
        while stack:
            for there in after[stack.pop()]:
                if there <= last and there not in further:
                    further.add(there)
                    stack.append(there)
        twice = {target for target in targets if after[k].count(target) > 1}  # it reads the op, too
        for target in twice | further.intersection(targets):
            ops[target].after = [edge for edge in ops[target].after if edge != (ops[k].name, 0)]


class _Bypass:
    """Removes NoOps and Identities, and makes NoOps of what nobody reads, until nothing is left to do."""

    def __init__(self, records: Records, fetched: frozenset[str]) -> None:
        self.records, self.fetched = records, fetched
        self.users: dict[str, dict[str, None]] = {name: {} for name in records.ops}
        for record in records.ops.values():
            self._use(record)
        self.todo = dict.fromkeys(records.ops)

    def settle(self) -> None:
        """Work through all ops, the last first, and those whose surroundings have changed."""
        while self.todo:
            name, _ = self.todo.popitem()
            record = self.records.ops.get(name)
            if record is None:
                continue
            if record.kind == "const" and not record.inputs and not record.after:
                self._free_constant(record)
            elif self._may_become_no_op(record):
                self._make_no_op(record)
            elif self._may_go(record):
                self._remove(record)

    def _free_constant(self, const: OpEntry) -> None:
        """Drop control edges from a constant, and one that nobody reads."""
        for user in self._users(const):
            if (const.name, 0) in user.after:
                self._change(user, user.inputs, [edge for edge in user.after if edge != (const.name, 0)])
        if not self.users[const.name] and const.name not in self.fetched:
            del self.records.ops[const.name], self.users[const.name]

    def _may_become_no_op(self, record: OpEntry) -> bool:
        if record.name in self.fetched or record.kind in NEVER_A_NO_OP or not record.outputs:
            return False
        if record.stateful or "outcome" in record.attributes or not self._is_safe(record):
            return False
        if any(maker.kind == "switch" for maker in self.records.makers(record.inputs)):
            return False  # whose control edge would not say which side
        return not any(record in self.records.makers(user.inputs) for user in self._users(record))

    def _make_no_op(self, record: OpEntry) -> None:
        """Let an op that nobody reads only wait."""
        makers = [(self.records.producer(tensor), d) for tensor, d in record.inputs]
        waits = [(maker.name, d) for maker, d in makers if maker is not None]
        record.kind, record.outputs, record.attributes, record.dtype = "no_op", (), {}, None
        record.flops = record.bytes_read = record.bytes_written = 0
        record.duration_ns, record.duration_by_kind = 0, {}
        self._change(record, [], list(dict.fromkeys([*record.after, *waits])))
        self.todo[record.name] = None

    def _is_safe(self, record: OpEntry) -> bool:
        """Whether an Identity does not stand for a read, nor for one side of a switch. Others are safe."""
        if record.kind not in PASSES_ON:
            return True
        if len(record.inputs) != 1 or len(record.outputs) != 1:
            return False
        tensor = record.inputs[0][0]
        maker = self.records.producer(tensor)
        if maker is None:
            return self.records.externals[tensor].role != Role.PARAMETER
        users = self._users(record)
        if record.after and any(user.kind in ("retval", "merge") for user in users):
            return False
        follows = any(name == record.name for user in users for name, _ in user.after)
        return maker.kind not in SOURCES_OF_COPIES and not (maker.kind == "switch" and follows)

    def _may_go(self, record: OpEntry) -> bool:
        """Whether a NoOp or an Identity can be bypassed, and that makes no more edges."""
        if record.kind != "no_op" and record.kind not in PASSES_ON:
            return False
        if record.name in self.fetched or "outcome" in record.attributes or record.attributes.get("stateful"):
            return False
        users = self._users(record)
        of_users = [edge for user in users for edge in (*user.inputs, *user.after)]
        edges = [*record.inputs, *record.after, *(e for e in of_users if e[0] == record.name)]
        if any(distance for _, distance in edges) or not self._is_safe(record):
            return False
        makers = self.records.makers((*record.inputs, *record.after))
        n_in, n_out = len(record.inputs) + len(record.after), len(users)
        if n_in * n_out > n_in + n_out:
            return False
        here = record.device
        if n_in == 1 and n_out > 1 and any(maker.device != here for maker in makers):
            return False
        if n_in > 1 and n_out == 1 and users[0].device != here:
            return False
        into = sum(maker.device != here for maker in makers)
        out = sum(user.device != here for user in users)
        then = sum(maker.device != user.device for maker in makers for user in users)
        return then <= into + out and not (record.kind in PASSES_ON and into and out and then)

    def _remove(self, record: OpEntry) -> None:
        """Bypass an op: who reads it reads what it reads, who follows it follows what it waits for."""
        source = record.inputs[0] if record.inputs else None
        maker = self.records.producer(source[0]) if source is not None else None
        waits: list[Edge] = [(maker.name, 0)] if maker is not None else []
        for user in self._users(record):
            inputs = [
                source if edge[0] == record.name and source is not None else edge for edge in user.inputs
            ]
            after = list(user.after)
            if (record.name, 0) in after:
                after = [edge for edge in after if edge[0] != record.name] + waits
            read_by_user = {m.name for m in self.records.makers(edge for edge in inputs if not edge[1])}
            more = [edge for edge in record.after if edge[0] not in read_by_user]
            self._change(user, inputs, list(dict.fromkeys([*after, *more])))
        self._change(record, [], [])
        del self.records.ops[record.name], self.users[record.name]

    def _users(self, record: OpEntry) -> list[OpEntry]:
        return [self.records.ops[name] for name in self.users[record.name]]

    def _change(self, record: OpEntry, inputs: list[Edge], after: list[Edge]) -> None:
        """Give an op other edges; look again at it and at those that it waited for."""
        for maker in self.records.makers((*record.inputs, *record.after)):
            self.users[maker.name].pop(record.name, None)
            self.todo[maker.name] = None
        record.inputs, record.after = inputs, after
        self._use(record)
        self.todo[record.name] = None

    def _use(self, record: OpEntry) -> None:
        for maker in self.records.makers((*record.inputs, *record.after)):
            self.users[maker.name][record.name] = None


def _group(records: Records) -> None:
    """Put one NoOp on a device from which several ops precede one of another device."""
    for record in list(records.ops.values()):
        if record.device is None:
            continue
        by_device: dict[str, list[Edge]] = {}
        for edge in record.after:
            there = records.ops[edge[0]].device
            if there is not None and there != record.device and not edge[1]:
                by_device.setdefault(there, []).append(edge)
        for there, edges in by_device.items():
            if len(edges) > 1:
                name = records.free(f"{record.name}/after_{there}")
                records.ops[name] = OpEntry(name, "no_op", [], edges, (), duration_ns=0, device=there)
                record.after = [*(edge for edge in record.after if edge not in edges), (name, 0)]
