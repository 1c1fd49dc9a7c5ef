"""A graph as records that a rewrite may change, and back.

Columns are for reading a million ops fast; a rewrite wants to rename an input or drop an op. So a step
turns the graph into `Record` values by name, changes those, and builds a new graph from them.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count, pairwise
from typing import Any

from policies.compile.stateful_kinds import IN_PLACE, STATEFUL
from sim import Graph, GraphBuilder
from sim.graph.csr import Csr
from sim.graph.frames import FrameStructure
from sim.graph.graph import Role, output_name, split_output
from sim.words.arrays import UNSET, IntArray
from sim.words.errors import GraphError

__all__ = ["Edge", "External", "Record", "Records", "by_name", "frames_given", "free_name", "read", "write"]


Edge = tuple[str, int]
"""A tensor that an op reads, or an op that it follows, and how many iterations earlier."""


@dataclass
class Record:
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
        """Whether running it has effects of its own (a variable, a random number, a send)."""
        return bool(self.attributes.get("stateful", False)) or self.kind in STATEFUL or self.in_place

    @property
    def in_place(self) -> bool:
        """Whether it writes into what it reads."""
        return self.kind in IN_PLACE or any(
            self.attributes.get(key, False) for key in ("inplace", "in_place")
        )

    def tensor(self, k: int = 0) -> str:
        """Return the name of output `k`."""
        return output_name(self.name, k)

    @property
    def tensors(self) -> list[str]:
        """The names of all outputs."""
        return [self.tensor(k) for k in range(len(self.outputs))]


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
    device_facts : mapping
        As of the graph.
    """

    name: str
    ops: dict[str, Record]
    externals: dict[str, External]
    device_facts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def make(self, record: Record) -> Record:
        """Add an op under a name that others count on.

        Raises
        ------
        GraphError
            An op or a tensor has this name.
        """
        if record.name in self.ops or record.name in self.externals:
            raise _taken(record.name)
        self.ops[record.name] = record
        return record

    def free(self, name: str) -> str:
        """Return a name for a new op: see `free_name`."""
        return free_name(name, self.ops, self.externals)

    def producer(self, tensor: str) -> Record | None:
        """Return the op that makes a tensor; None for a graph input or parameter."""
        if tensor in self.ops:
            return self.ops[tensor]
        made = split_output(tensor)
        return None if made is None else self.ops.get(made[0])

    def readers(self) -> dict[str, list[Record]]:
        """Return op name → the ops that read any of its outputs, once for each read."""
        return self._users([(record, record.inputs) for record in self.ops.values()])

    def followers(self) -> dict[str, list[Record]]:
        """Return op name → the ops that follow it by a control edge."""
        return self._users([(record, record.after) for record in self.ops.values()])

    def _users(self, edges: Iterable[tuple[Record, list[Edge]]]) -> dict[str, list[Record]]:
        out: dict[str, list[Record]] = {name: [] for name in self.ops}
        for record, row in edges:
            for tensor, _ in row:
                producer = self.producer(tensor)
                if producer is not None:
                    out[producer.name].append(record)
        return out

    def unused(self) -> list[str]:
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

    def redirect(self, moved: Mapping[str, str]) -> None:
        """Let whoever reads tensor `a` (or follows op `a`) read (follow) ``moved[a]`` instead."""

        def followed(name: str) -> str:
            producer = self.producer(moved.get(name, name))
            return name if producer is None else producer.name

        for record in self.ops.values():
            record.inputs = [(moved.get(tensor, tensor), d) for tensor, d in record.inputs]
            after = dict.fromkeys((followed(name), d) for name, d in record.after)
            record.after = [edge for edge in after if edge[0] != record.name]

    def remove(self, names: Iterable[str], followers: dict[str, list[Record]] | None = None) -> None:
        """Drop ops; those that followed one by a control edge follow what it followed instead.

        `followers`, which is kept up to date, saves finding them anew in each of several calls.
        """
        followers = self.followers() if followers is None else followers
        for name in names:
            before = [edge for edge in self.ops.pop(name).after if edge[0] != name]
            for record in followers.pop(name, ()):
                edges = [edge for edge in record.after if edge[0] != name]
                record.after = list(dict.fromkeys([*edges, *before]))
                for first, _ in before:
                    followers[first].append(record)

    def remove_unused(self, names: Iterable[str]) -> None:
        """Drop those of some ops that no other reads or follows, until each left is needed."""
        candidates = set(names)
        users = {name: len(row) for name, row in self.readers().items()}
        for name, row in self.followers().items():
            users[name] += len(row)
        unused = [name for name in self.ops if name in candidates and not users[name]]
        while unused:
            gone = self.ops.pop(unused.pop())
            for tensor, _ in (*gone.inputs, *gone.after):
                if (producer := self.producer(tensor)) is not None:
                    users[producer.name] -= 1
                    if producer.name in candidates and not users[producer.name]:
                        unused.append(producer.name)


def free_name(name: str, *taken: Container[str]) -> str:
    """Return a name for an op that a rewrite makes: another one if an op or a tensor has this one.

    Examples
    --------
    >>> free_name("a/update", {"a/update", "a/update.2"})
    'a/update.3'
    """
    names = chain([name], (f"{name}.{k}" for k in count(2)))
    return next(each for each in names if not any(each in row for row in taken))


def by_name(made: Iterable[Record]) -> dict[str, Record]:
    """Return ops by name, in their order.

    Raises
    ------
    GraphError
        Two have the same name.
    """
    found: dict[str, Record] = {}
    for record in made:
        if record.name in found:
            raise _taken(record.name)
        found[record.name] = record
    return found


def _taken(name: str) -> GraphError:
    message = f"two ops would be called {name!r}, the graph's and one that the rewrite makes"
    return GraphError(f"{message}; give the graph's another name").about(name)


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
        _given(graph.duration_ns),
        [{kind: int(ns[op]) for kind, ns in by_kind if ns[op] != UNSET} for op in range(len(graph))],
        _words(graph.pins, graph.pin_code),
        _words(graph.dtypes, graph.dtype_code),
        _given(graph.stage),
        _given(graph.micro_batch),
        _words(graph.phases, graph.phase_code),
        [dict(graph.attributes.get(op, {})) for op in range(len(graph))],
        strict=True,
    )
    ops = {name: Record(name, *facts) for name, *facts in columns}
    pins = _words(graph.pins, graph.tensor_pin)
    given = zip(graph.tensor_nbytes.tolist(), graph.tensor_role.tolist(), pins, strict=False)
    externals = {name: External(*facts) for name, facts in zip(graph.external_names, given, strict=False)}
    return Records(graph.name, ops, externals, graph.device_facts)


def _edges(rows: Csr, distance: IntArray, names: Sequence[str]) -> list[list[Edge]]:
    pairs = list(zip([names[i] for i in rows.indices.tolist()], distance.tolist(), strict=True))
    return [pairs[a:b] for a, b in pairwise(rows.indptr.tolist())]


def _given(column: IntArray) -> list[int | None]:
    return [None if value == UNSET else value for value in column.tolist()]


def _words(words: Sequence[str], codes: IntArray) -> list[str | None]:
    return [None if code == UNSET else words[code] for code in codes.tolist()]


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
    return replace(builder.build(), device_facts=records.device_facts)


def frames_given(graph: Graph, structure: FrameStructure) -> list[int]:
    """Return for each op the frame into which it gives its outputs: of an enter the one that it opens."""
    frames = list(structure.frame_of)
    for op in range(len(graph)):
        if graph.kind(op) == "exit":
            frames[op] = structure.parent[frames[op]]
    for enter, frame in structure.child_of.items():
        frames[enter] = frame
    return frames
