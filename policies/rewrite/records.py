"""Conversion of a graph to records that a rewrite may change, and back.

Columns suit reading a million ops fast; a rewrite needs to rename an input or drop an op. So a rewrite step
turns the graph into `OpEntry` values by name, changes those, and builds a new graph from them.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any, Final

from sim import Graph, GraphBuilder
from sim.base.arrays import UNSET, Csr, IntArray
from sim.base.errors import GraphError
from sim.graph.frames import CONTROL_FLOW_KINDS, FrameStructure
from sim.graph.graph import Role, output_name, split_output

# ----------------------------------------------------------------------------------------------------------
# Stateful kinds of op: a closed list, by the names that importers give (``stateful_kinds.json``).
#
# No step merges, folds or repeats them, even with identical inputs: two random numbers differ, and a variable
# may have changed between two reads.
#
# TensorFlow's kinds are those that Grappler does not consider free of side effects (``IsFreeOfSideEffect`` in
# tensorflow/core/grappler/op_types.cc): ops that the registry of TensorFlow 2.21 marks as stateful (all that
# touch a resource), that take a reference, update their input in place, send, or are a placeholder; and ops
# with ``Queue`` in their name.

IN_PLACE: Final = frozenset({"inplace_add", "inplace_sub", "inplace_update"})
"""Kinds that write into their inputs."""

STATEFUL: Final = CONTROL_FLOW_KINDS.union(
    *json.loads(Path(__file__).with_name("stateful_kinds.json").read_text(encoding="utf-8")).values()
)
"""Kinds that no step removes, merges or repeats."""


# ----------------------------------------------------------------------------------------------------------

Edge = tuple[str, int]
"""A tensor that an op reads, or an op that it follows, and the distance in iterations."""


@dataclass
class OpEntry:
    """One op; fields as in `GraphBuilder.op`, inputs as (tensor name, distance)."""

    name: str
    kind: str
    inputs: list[Edge]
    after: list[Edge]
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
        """Whether running the op has side effects (a variable, a random number, a send)."""
        return bool(self.attributes.get("stateful", False)) or self.kind in STATEFUL or self.in_place

    @property
    def in_place(self) -> bool:
        """Whether the op writes into its inputs."""
        return self.kind in IN_PLACE or any(self.attributes.get(key) for key in ("inplace", "in_place"))

    def tensor(self, k: int = 0) -> str:
        """Return the name of output `k`."""
        return output_name(self.name, k)

    @property
    def tensors(self) -> list[str]:
        """The names of all outputs."""
        return [self.tensor(k) for k in range(len(self.outputs))]

    @property
    def reads(self) -> list[str]:
        """The names of all inputs."""
        return [tensor for tensor, _ in self.inputs]

    def like(
        self, name: str, kind: str, reads: Iterable[str], outputs: Sequence[int], **facts: Any
    ) -> OpEntry:
        """Return a new op with this one's device, data type, stage, micro-batch and phase."""
        where = {key: getattr(self, key) for key in ("device", "dtype", "stage", "micro_batch", "phase")}
        values = {"after": [], "bytes_written": sum(outputs), **where, **facts}
        return OpEntry(name, kind, [(tensor, 0) for tensor in reads], outputs=tuple(outputs), **values)

    def part(self, factor: Fraction) -> OpEntry:
        """Return an op with `factor` times the work and duration, and the same bytes."""
        n, d = factor.numerator, factor.denominator
        return replace(
            self,
            flops=proportion(self.flops, n, d),
            duration_ns=None if self.duration_ns is None else proportion(self.duration_ns, n, d),
            duration_by_kind={kind: proportion(ns, n, d) for kind, ns in self.duration_by_kind.items()},
        )

    def scale(self, factor: Fraction) -> OpEntry:
        """Return an op with `factor` times the work, bytes and duration."""
        scaled, n, d = self.part(factor), factor.numerator, factor.denominator
        scaled.bytes_read = proportion(self.bytes_read, n, d)
        scaled.bytes_written = proportion(self.bytes_written, n, d)
        return scaled


def proportion(value: int, new: int, old: int) -> int:
    """Return value · new / old, rounded half up; `value` itself if `old` is 0.

    Examples
    --------
    >>> proportion(5, 1, 2), proportion(5, 1, 0)
    (3, 5)
    """
    return (2 * value * new + old) // (2 * old) if old else value


@dataclass(frozen=True)
class ExternalTensor:
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
    ops : dict of str to OpEntry
        Ops in graph order.
    externals : dict of str to ExternalTensor
    device_facts : mapping
        The graph's own.
    """

    name: str
    ops: dict[str, OpEntry]
    externals: dict[str, ExternalTensor]
    device_facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def in_order(self, graph: Graph) -> list[OpEntry]:
        """Return the ops of the graph that was read, in topological order."""
        return [self.ops[graph.op_names[op]] for op in graph.topological_order.tolist()]

    def make(self, record: OpEntry) -> OpEntry:
        """Add an op under a name that others rely on.

        Raises
        ------
        GraphError
            If an op or a tensor already has this name.
        """
        if record.name in self.ops or record.name in self.externals:
            message = f"two ops would be called {record.name!r}, the graph's and one that the rewrite makes"
            raise GraphError(f"{message}; give the graph's another name").about(record.name)
        self.ops[record.name] = record
        return record

    def make_all(self, ops: Iterable[OpEntry]) -> None:
        """Replace all ops by `ops`, in this order."""
        self.ops = {}
        for record in ops:
            self.make(record)

    def free(self, name: str) -> str:
        """Return a free name for a new op; see `free_name`."""
        return free_name(name, self.ops, self.externals)

    def producer(self, tensor: str) -> OpEntry | None:
        """Return the op that produces a tensor; None for a graph input or parameter."""
        if tensor in self.ops:
            return self.ops[tensor]
        output = split_output(tensor)
        return None if output is None else self.ops.get(output[0])

    def maker(self, tensor: str) -> OpEntry:
        """Return the op that produces a tensor that is neither a graph input nor a parameter."""
        return self.ops[tensor if tensor in self.ops else tensor.rpartition(":")[0]]

    def makers(self, edges: Iterable[Edge]) -> list[OpEntry]:
        """Return the producer of each edge that comes from an op."""
        producers = (self.producer(name) for name, _ in edges)
        return [producer for producer in producers if producer is not None]

    def is_parameter(self, tensor: str) -> bool:
        """Whether a tensor is a parameter."""
        external = self.externals.get(tensor)
        return external is not None and external.role == Role.PARAMETER

    def parameters(self) -> list[str]:
        """Return the names of all parameters."""
        return [name for name in self.externals if self.is_parameter(name)]

    def readers(self) -> dict[str, list[OpEntry]]:
        """Return op name → the ops that read any of its outputs, once for each read."""
        return self._users([(record, record.inputs) for record in self.ops.values()])

    def followers(self) -> dict[str, list[OpEntry]]:
        """Return op name → the ops that follow it by a control edge."""
        return self._users([(record, record.after) for record in self.ops.values()])

    def _users(self, edges: Iterable[tuple[OpEntry, list[Edge]]]) -> dict[str, list[OpEntry]]:
        users: dict[str, list[OpEntry]] = {name: [] for name in self.ops}
        for record, row in edges:
            for producer in self.makers(row):
                users[producer.name].append(record)
        return users

    def find_unused(self) -> list[str]:
        """Return the ops that no other reads or follows."""
        readers, followers = self.readers(), self.followers()
        return [name for name in self.ops if not readers[name] and not followers[name]]

    def nbytes(self, tensor: str) -> int:
        """Return the size of a tensor."""
        producer = self.producer(tensor)
        if producer is None:
            return self.externals[tensor].nbytes
        _, k = (tensor, 0) if tensor == producer.name else split_output(tensor) or (tensor, 0)
        return producer.outputs[k]

    def remove(self, names: Iterable[str]) -> None:
        """Drop ops; ops that followed one by a control edge follow its predecessors instead."""
        followers = self.followers()
        for name in names:
            before = [edge for edge in self.ops.pop(name).after if edge[0] != name]
            for record in followers.pop(name, ()):
                edges = [edge for edge in record.after if edge[0] != name]
                record.after = list(dict.fromkeys([*edges, *before]))
                for first, _ in before:
                    followers[first].append(record)

    def remove_unused(self, names: Iterable[str]) -> None:
        """Drop those of `names` that no other op reads or follows, until all the rest are needed."""
        candidates = set(names)
        users = {name: len(row) for name, row in self.readers().items()}
        for name, row in self.followers().items():
            users[name] += len(row)
        unused = [name for name in self.ops if name in candidates and not users[name]]
        while unused:
            gone = self.ops.pop(unused.pop())
            for producer in self.makers((*gone.inputs, *gone.after)):
                users[producer.name] -= 1
                if producer.name in candidates and not users[producer.name]:
                    unused.append(producer.name)


def free_name(name: str, *used: Container[str]) -> str:
    """Return `name`, or a variant of it if an op or a tensor already has that name.

    Examples
    --------
    >>> free_name("a/update", {"a/update", "a/update.2"})
    'a/update.3'
    """
    names = chain([name], (f"{name}.{k}" for k in count(2)))
    return next(candidate for candidate in names if not any(candidate in row for row in used))


def read(graph: Graph) -> Records:
    """Return the records of `graph`.

    Examples
    --------
    >>> b = GraphBuilder("g")
    >>> _ = b.input("x", 4), b.op("a", inputs=["x"], outputs=8)
    >>> read(b.build()).ops["a"].inputs
    [('x', 0)]
    """
    tensors = [graph.tensor_name(t) for t in range(graph.n_tensors)]
    by_kind = graph.duration_by_kind.items()
    columns = zip(
        graph.op_names,
        [graph.kinds[code] for code in graph.kind_code.tolist()],
        _edges(graph.inputs, graph.input_distance, tensors),
        _edges(graph.after, graph.after_distance, graph.op_names),
        [tuple(graph.tensor_nbytes[row].tolist()) for row in graph.outputs.lists()],
        *(column.tolist() for column in (graph.flops, graph.bytes_read, graph.bytes_written)),
        numbers_of(graph.duration_ns),
        [{kind: int(ns[op]) for kind, ns in by_kind if ns[op] != UNSET} for op in range(len(graph))],
        words_of(graph.pins, graph.pin_code),
        words_of(graph.dtypes, graph.dtype_code),
        numbers_of(graph.stage),
        numbers_of(graph.micro_batch),
        words_of(graph.phases, graph.phase_code),
        [dict(graph.attributes.get(op, {})) for op in range(len(graph))],
        strict=True,
    )
    ops = {name: OpEntry(name, *facts) for name, *facts in columns}
    pins = words_of(graph.pins, graph.tensor_pin)
    rows = zip(graph.tensor_nbytes.tolist(), graph.tensor_role.tolist(), pins, strict=False)
    externals = {
        name: ExternalTensor(*facts) for name, facts in zip(graph.external_names, rows, strict=False)
    }
    return Records(graph.name, ops, externals, graph.device_facts)


def _edges(rows: Csr, distance: IntArray, names: Sequence[str]) -> list[list[Edge]]:
    pairs = list(zip([names[i] for i in rows.indices.tolist()], distance.tolist(), strict=True))
    return [pairs[a:b] for a, b in pairwise(rows.indptr.tolist())]


def numbers_of(column: IntArray) -> list[int | None]:
    """Return the numbers of a column, None where there is none."""
    return [None if value == UNSET else value for value in column.tolist()]


def words_of(words: Sequence[str], codes: IntArray) -> list[str | None]:
    """Return the words of a column, None where there is none."""
    return [None if code == UNSET else words[code] for code in codes.tolist()]


def write(records: Records) -> Graph:
    """Build a graph from records.

    Raises
    ------
    GraphError
        If the records no longer form a valid graph (a bug in a step).
    """
    builder = GraphBuilder(records.name)
    for name, external in records.externals.items():
        add = builder.parameter if external.role == Role.PARAMETER else builder.input
        add(name, external.nbytes, device=external.device)
    for r in records.ops.values():
        builder.op(**vars(r))
    return replace(builder.build(), device_facts=records.device_facts)


def frames_given(graph: Graph, structure: FrameStructure) -> list[int]:
    """Return the frame of each op's outputs; for an enter, the frame that it opens."""
    frames = list(structure.frame_of)
    for op in range(len(graph)):
        if graph.kind(op) == "exit":
            frames[op] = structure.parent[frames[op]]
    for enter, frame in structure.child_of.items():
        frames[enter] = frame
    return frames
