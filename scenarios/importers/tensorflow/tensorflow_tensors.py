"""What a recorded TensorFlow graph holds: its nodes, the sizes of their tensors, its variables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from scenarios.importers.tensorflow.tensorflow_ops import PARAMETERS, kind_of
from scenarios.ops import dtypes
from scenarios.ops.op_costs import TensorFacts
from sim.words.errors import InputError

__all__ = [
    "File",
    "Node",
    "Tensors",
    "Variable",
    "is_external",
    "is_variable",
    "split_reference",
    "variables_of",
]

_STRICT = ConfigDict(extra="forbid", strict=True)


@with_config(_STRICT)
class Node(TypedDict):
    """One node."""

    name: str
    op: str
    inputs: NotRequired[list[str]]
    control: NotRequired[list[str]]
    shapes: NotRequired[list[list[int | None] | None]]
    dtypes: NotRequired[list[str]]
    device: NotRequired[str | None]
    attributes: NotRequired[dict[str, Any]]


@with_config(_STRICT)
class File(TypedDict):
    """A whole file."""

    name: str
    source: NotRequired[str]
    nodes: list[Node]


class Tensors:
    """Shape and size of every tensor; `open` has those that are not known, counted as nothing."""

    def __init__(self, nodes: Iterable[Node], batch: int | None) -> None:
        self.of: dict[str, list[TensorFacts]] = {}
        self.open: dict[tuple[str, int], str] = {}
        self.dtypes: dict[str, list[str]] = {}
        filled = False
        for node in nodes:
            names, shapes = node.get("dtypes", []), node.get("shapes", [])
            if len(names) != len(shapes):
                raise InputError(f"node {node['name']!r} has {len(shapes)} shapes and {len(names)} dtypes")
            self.dtypes[node["name"]] = [name.removesuffix("_ref") for name in names]
            facts = []
            for k, (dtype, shape) in enumerate(zip(self.dtypes[node["name"]], shapes, strict=True)):
                known = None if shape is None else [None if n is None or n < 0 else n for n in shape]
                if known and known[0] is None and batch is not None:
                    known[0], filled = batch, True
                facts.append(self._sized(node["name"], k, dtype, known))
            self.of[node["name"]] = facts
        if batch is not None and not filled:
            raise InputError(f"its shapes are those of one batch size, so batch={batch} cannot be set")

    def _sized(self, name: str, k: int, dtype: str, shape: list[int | None] | None) -> TensorFacts:
        if dtype == "resource":  # a handle; what it stands for is a parameter
            return TensorFacts((), 0)
        if dtype not in dtypes.TENSORFLOW or shape is None or None in shape:
            self.open[name, k] = f"{name}:{k} ({dtype} {'of unknown rank' if shape is None else shape})"
            return TensorFacts((0,), 0)
        whole = tuple(n for n in shape if n is not None)
        return TensorFacts(whole, dtypes.nbytes(whole, dtypes.TENSORFLOW[dtype]))

    def dtype(self, node: Node, sources: list[tuple[str, int]]) -> str | None:
        """Return the type a node computes in: that of its result, or of what it compares or assigns."""
        results = [dtype for dtype in self.dtypes[node["name"]][:1] if dtype != "bool"]
        for theirs in [*results, *(self.dtypes[name][k] for name, k in sources)]:
            if theirs in dtypes.TENSORFLOW:
                return dtypes.TENSORFLOW[theirs]
        return None


class Variable(NamedTuple):
    """A variable: its size, and the ops that assign to it."""

    nbytes: int
    writers: list[str]


def variables_of(
    nodes: Iterable[Node], externals: Mapping[str, Node], tensors: Tensors
) -> dict[str, Variable]:
    """Return each variable: as large as what is read from it or assigned to it, and who assigns to it."""
    sizes = {
        name: sum(t.nbytes for t in tensors.of[name]) for name, node in externals.items() if is_variable(node)
    }
    writers: dict[str, list[str]] = {name: [] for name in sizes}
    for node in nodes:
        sources = [split_reference(text) for text in node.get("inputs", [])]
        if not sources or sources[0][0] not in sizes:
            continue
        variable, kind = sources[0][0], kind_of(node["op"])
        if kind == "read_variable":
            sizes[variable] = max(sizes[variable], *(t.nbytes for t in tensors.of[node["name"]]))
        elif kind.startswith("assign"):
            name, k = sources[-1]
            sizes[variable] = max(sizes[variable], tensors.of[name][k].nbytes)
            writers[variable].append(node["name"])
    return {name: Variable(size, writers[name]) for name, size in sizes.items()}


def is_variable(node: Node) -> bool:
    """Whether a node stands for a variable."""
    return node["op"] in PARAMETERS or "resource" in node.get("dtypes", [])


def is_external(node: Node) -> bool:
    """Whether a node stands for a tensor that is there before time 0."""
    waits = node.get("inputs") or node.get("control")
    return (node["op"].startswith("Placeholder") or node["op"] in PARAMETERS) and not waits


def split_reference(text: str) -> tuple[str, int]:
    """Return node and output of ``name:k``."""
    name, colon, k = text.rpartition(":")
    return (name, int(k)) if colon and k.isdigit() else (text, 0)
