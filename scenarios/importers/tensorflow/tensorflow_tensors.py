"""What a recorded TensorFlow graph holds: its nodes, the sizes of their tensors, its variables."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from scenarios.importers.tensorflow.tensorflow_ops import PARAMETERS, kind_of
from scenarios.ops import dtypes
from scenarios.ops.op_costs import TensorFacts
from sim.words.errors import GraphError, InputError

__all__ = ["File", "Node", "Recorded", "Variable"]

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


class Variable(NamedTuple):
    """A variable: its size, and the ops that assign to it."""

    nbytes: int
    writers: list[str]


class Recorded:
    """The nodes of a file, with what is known of each by name.

    Attributes
    ----------
    nodes : dict of str to Node
    kinds : dict of str to str
        What each is in our words.
    sources : dict of str to list of (str, int)
        What each reads: node and output.
    tensors : dict of str to list of TensorFacts
        Shape and size of what each writes.
    open : dict
        (node, output) → in words, of each whose size is not known; it is counted as nothing.
    externals : dict of str to Node
        Those that stand for a tensor that is there before time 0.
    """

    def __init__(self, file: File, batch: int | None) -> None:
        self.nodes = {node["name"]: node for node in file["nodes"]}
        if len(self.nodes) < len(file["nodes"]):
            twice = Counter(node["name"] for node in file["nodes"]).most_common(1)[0][0]
            raise GraphError(f"the node {twice!r} is there twice")
        self.kinds = {name: kind_of(node["op"]) for name, node in self.nodes.items()}
        self.sources = {
            name: [_split(text) for text in node.get("inputs", [])] for name, node in self.nodes.items()
        }
        self.externals = {name: node for name, node in self.nodes.items() if _is_external(node)}
        self.tensors: dict[str, list[TensorFacts]] = {}
        self.open: dict[tuple[str, int], str] = {}
        filled = False
        for name, node in self.nodes.items():
            dtypes_, shapes = _dtypes(node), node.get("shapes", [])
            if len(dtypes_) != len(shapes):
                raise InputError(f"node {name!r} has {len(shapes)} shapes and {len(dtypes_)} dtypes")
            self.tensors[name] = []
            for dtype, shape in zip(dtypes_, shapes, strict=True):
                known = None if shape is None else [None if n is None or n < 0 else n for n in shape]
                if known and known[0] is None and batch is not None:
                    known[0], filled = batch, True
                self.tensors[name].append(self._sized(name, len(self.tensors[name]), dtype, known))
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

    def dtype(self, name: str) -> str | None:
        """Return the type a node computes in: that of its result, or of what it compares or assigns."""
        results = [dtype for dtype in _dtypes(self.nodes[name])[:1] if dtype != "bool"]
        for theirs in [*results, *(_dtypes(self.nodes[source])[k] for source, k in self.sources[name])]:
            if theirs in dtypes.TENSORFLOW:
                return dtypes.TENSORFLOW[theirs]
        return None

    def variables(self) -> dict[str, Variable]:
        """Return each variable: as large as what is read from it or assigned to it, and who assigns to it."""
        sizes = {
            name: sum(tensor.nbytes for tensor in self.tensors[name])
            for name, node in self.externals.items()
            if node["op"] in PARAMETERS or "resource" in node.get("dtypes", [])
        }
        writers: dict[str, list[str]] = {name: [] for name in sizes}
        for name, sources in self.sources.items():
            variable = sources[0][0] if sources else ""
            if variable not in sizes:
                continue
            if self.kinds[name] == "read_variable":
                sizes[variable] = max(sizes[variable], *(tensor.nbytes for tensor in self.tensors[name]))
            elif self.kinds[name].startswith("assign"):
                source, k = sources[-1]
                sizes[variable] = max(sizes[variable], self.tensors[source][k].nbytes)
                writers[variable].append(name)
        return {name: Variable(size, writers[name]) for name, size in sizes.items()}


def _dtypes(node: Node) -> list[str]:
    return [dtype.removesuffix("_ref") for dtype in node.get("dtypes", [])]


def _is_external(node: Node) -> bool:
    waits = node.get("inputs") or node.get("control")
    return (node["op"].startswith("Placeholder") or node["op"] in PARAMETERS) and not waits


def _split(text: str) -> tuple[str, int]:
    """Return node and output of ``name:k``."""
    name, colon, k = text.rpartition(":")
    return (name, int(k)) if colon and k.isdigit() else (text, 0)
