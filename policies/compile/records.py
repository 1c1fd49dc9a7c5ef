"""A graph as records that a rewrite may change, and back.

Columns are for reading a million ops fast; a rewrite wants to rename an input or drop an op. So a step
turns the graph into `Record` values by name, changes those, and builds a new graph from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from sim import Graph, GraphBuilder
from sim.graph.frames import CONTROL_FLOW_KINDS
from sim.graph.graph import Role
from sim.words.arrays import UNSET

__all__ = ["External", "Record", "Records", "read", "write"]


@dataclass
class Record:
    """One op; fields as in `GraphBuilder.op`, inputs as (tensor name, distance)."""

    name: str
    kind: str
    inputs: list[tuple[str, int]]
    after: list[tuple[str, int]]
    outputs: tuple[int, ...]
    flops: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    duration_ns: int | None = None
    duration_by_kind: dict[str, int] = field(default_factory=dict)
    device: str | None = None
    dtype: str | None = None
    stage: int | None = None
    micro_batch: int | None = None
    phase: str | None = None
    attributes: dict[str, Any] = field(default_factory=dict)

    @property
    def stateful(self) -> bool:
        """Whether running it has effects of its own (a variable, a random number, a send)."""
        return bool(self.attributes.get("stateful", False)) or self.kind in STATEFUL

    def tensor(self, k: int = 0) -> str:
        """Return the name of output `k`."""
        return f"{self.name}:{k}" if k else self.name


STATEFUL = CONTROL_FLOW_KINDS | {
    *("variable", "assign", "read", "queue", "random", "dropout", "print"),
    *("send", "recv", "arg", "retval", "all_reduce"),
}
"""Kinds that no step removes or merges although their inputs look alike."""


@dataclass(frozen=True)
class External:
    """A graph input or parameter."""

    nbytes: int
    role: int
    device: str | None


@dataclass
class Records:
    """A graph under change.

    Attributes
    ----------
    name : str
    ops : dict of str to Record
        In graph order.
    externals : dict of str to External
    """

    name: str
    ops: dict[str, Record]
    externals: dict[str, External]

    def producer(self, tensor: str) -> Record | None:
        """Return the op that makes a tensor; None for a graph input or parameter."""
        if tensor in self.ops:
            return self.ops[tensor]
        base, colon, k = tensor.rpartition(":")
        return self.ops.get(base) if colon and k.isdigit() else None

    def readers(self) -> dict[str, list[Record]]:
        """Return op name → the ops that read any of its outputs, once for each read."""
        out: dict[str, list[Record]] = {name: [] for name in self.ops}
        for record in self.ops.values():
            for tensor, _ in record.inputs:
                producer = self.producer(tensor)
                if producer is not None:
                    out[producer.name].append(record)
        return out

    def followers(self) -> dict[str, list[Record]]:
        """Return op name → the ops that follow it by a control edge."""
        out: dict[str, list[Record]] = {name: [] for name in self.ops}
        for record in self.ops.values():
            for name, _ in record.after:
                out[name].append(record)
        return out

    def nbytes(self, tensor: str) -> int:
        """Return the size of a tensor."""
        producer = self.producer(tensor)
        if producer is None:
            return self.externals[tensor].nbytes
        k = 0 if tensor == producer.name else int(tensor.rpartition(":")[2])
        return producer.outputs[k]

    def redirect(self, moved: Mapping[str, str]) -> None:
        """Let whoever reads tensor `a` (or follows op `a`) read (follow) ``moved[a]`` instead."""
        if not moved:
            return
        for record in self.ops.values():
            record.inputs = [(moved.get(tensor, tensor), d) for tensor, d in record.inputs]
            follows = [(self._op(moved.get(name, name)), d) for name, d in record.after]
            record.after = [edge for edge in dict.fromkeys(follows) if edge[0] != record.name]

    def _op(self, tensor: str) -> str:
        producer = self.producer(tensor)
        return producer.name if producer is not None else tensor

    def remove(self, names: Iterable[str]) -> None:
        """Drop ops; those that followed one by a control edge follow what it followed instead."""
        for name in names:
            gone = self.ops.pop(name)
            before = [*gone.after]
            for record in self.ops.values():
                if any(follows == name for follows, _ in record.after):
                    edges = [e for e in record.after if e[0] != name]
                    record.after = list(dict.fromkeys([*edges, *before]))

    def depends_on(self, name: str, target: str) -> bool:
        """Whether op `name` comes after op `target` within an iteration."""
        seen = {name}
        stack = [name]
        while stack:
            record = self.ops[stack.pop()]
            for tensor, distance in [*record.inputs, *record.after]:
                producer = self.producer(tensor) if not distance else None
                if producer is None or producer.name in seen:
                    continue
                if producer.name == target:
                    return True
                seen.add(producer.name)
                stack.append(producer.name)
        return False


def read(graph: Graph) -> Records:
    """Return the records of `graph`.

    Examples
    --------
    >>> b = GraphBuilder("g")
    >>> _ = b.input("x", 4), b.op("a", inputs=["x"], outputs=8)
    >>> read(b.build()).ops["a"].inputs
    [('x', 0)]
    """
    tensor = [graph.tensor_name(t) for t in range(graph.n_tensors)]
    read_, written = graph.bytes_read.tolist(), graph.bytes_written.tolist()
    rows = [
        (graph.inputs, graph.input_distance.tolist(), tensor),
        (graph.after, graph.after_distance.tolist(), graph.op_names),
    ]
    edges = []
    for csr, distance, names in rows:
        ptr, indices = csr.indptr.tolist(), csr.indices.tolist()
        pairs = list(zip([names[i] for i in indices], distance, strict=True))
        edges.append([pairs[a:b] for a, b in pairwise(ptr)])
    ops = {}
    for op, name in enumerate(graph.op_names):
        ops[name] = Record(
            name,
            graph.kind(op),
            edges[0][op],
            edges[1][op],
            tuple(graph.tensor_nbytes[graph.outputs.row(op)].tolist()),
            int(graph.flops[op]),
            read_[op],
            written[op],
            _given(int(graph.duration_ns[op])),
            {k: int(v[op]) for k, v in graph.duration_by_kind.items() if v[op] != UNSET},
            _word(graph.pins, int(graph.pin_code[op])),
            _word(graph.dtypes, int(graph.dtype_code[op])),
            _given(int(graph.stage[op])),
            _given(int(graph.micro_batch[op])),
            _word(graph.phases, int(graph.phase_code[op])),
            dict(graph.attributes.get(op, {})),
        )
    externals = {
        name: External(
            int(graph.tensor_nbytes[k]),
            int(graph.tensor_role[k]),
            _word(graph.pins, int(graph.tensor_pin[k])),
        )
        for k, name in enumerate(graph.external_names)
    }
    return Records(graph.name, ops, externals)


def write(records: Records) -> Graph:
    """Build a graph from records.

    Raises
    ------
    GraphError
        The records are no graph any more (a step has a bug).
    """
    builder = GraphBuilder(records.name)
    for name, external in records.externals.items():
        add = builder.parameter if external.role == Role.PARAMETER else builder.input
        add(name, external.nbytes, device=external.device)
    for r in records.ops.values():
        builder.op(**vars(r))
    return builder.build()


def _given(value: int) -> int | None:
    return None if value == UNSET else value


def _word(words: tuple[str, ...], code: int) -> str | None:
    return None if code == UNSET else words[code]
