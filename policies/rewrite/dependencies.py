"""Dependencies: fewer control edges, and no ops that only pass something on.

::

    a ╌► no_op ╌► b              a ╌► b                   a NoOp between few
    x ─► identity ─► y           x ─► y                   an Identity or StopGradient, likewise
    a ─► b ╌► c,  a ╌► c         a ─► b ╌► c              a control edge that a path makes superfluous
    const ╌► c                   const  c                 constants are there before anything runs
    a ─► c (nobody reads c) ╌► d a ╌► no_op ╌► d          what nobody reads need not be computed
    2 ops on gpu0 ╌► c on cpu0   ╌► no_op on gpu0 ╌► c    one control edge between two devices

An op is bypassed if that makes edges no more, neither in all nor between devices. What nobody reads or
follows is fetched and stays, and so do Identities behind a variable or a Recv, and ops with an outcome. Of an
op without a kind it is not known whether it has effects: it stays, too.

As tensorflow/core/grappler/optimizers/dependency_optimizer.cc, which runs twice; StopGradient is removed by
model_pruner.cc of the same folder, here on the terms of an Identity.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from policies.rewrite.records import Edge, OpEntry, Records, read, write
from sim import Graph
from sim.graph.graph import Role

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
        if record.kind in MOVES_FRAMES:
            continue
        for edges, control in ((record.inputs, False), (record.after, True)):
            for name, distance in edges:
                maker = records.producer(name)
                if maker is None or distance or maker.kind in MOVES_FRAMES or maker.kind == "merge":
                    continue
                after[place[maker.name]].append(k)
                if control:
                    followers[place[maker.name]].append(k)
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
        makers = [self.records.producer(tensor) for tensor, _ in record.inputs]
        if any(maker is not None and maker.kind == "switch" for maker in makers):
            return False  # whose control edge would not say which side
        return not any(self._reads(user, record) for user in self._users(record))

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
        makers = [m for name, _ in (*record.inputs, *record.after) if (m := self.records.producer(name))]
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
            read_by_user = {
                m.name for t, d in inputs if not d and (m := self.records.producer(t)) is not None
            }
            more = [edge for edge in record.after if edge[0] not in read_by_user]
            self._change(user, inputs, list(dict.fromkeys([*after, *more])))
        self._change(record, [], [])
        del self.records.ops[record.name], self.users[record.name]

    def _users(self, record: OpEntry) -> list[OpEntry]:
        return [self.records.ops[name] for name in self.users[record.name]]

    def _reads(self, user: OpEntry, record: OpEntry) -> bool:
        return any(self.records.producer(tensor) is record for tensor, _ in user.inputs)

    def _change(self, record: OpEntry, inputs: list[Edge], after: list[Edge]) -> None:
        """Give an op other edges; look again at it and at those that it waited for."""
        for maker in self._makers(record):
            self.users[maker].pop(record.name, None)
            self.todo[maker] = None
        record.inputs, record.after = inputs, after
        self._use(record)
        self.todo[record.name] = None

    def _use(self, record: OpEntry) -> None:
        for maker in self._makers(record):
            self.users[maker][record.name] = None

    def _makers(self, record: OpEntry) -> Iterable[str]:
        makers = (self.records.producer(name) for name, _ in (*record.inputs, *record.after))
        return [maker.name for maker in makers if maker is not None]


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
