"""Chakra execution traces (.et): the ops of one rank with their dependencies and measured times.

A file is a sequence of protobuf messages, one of metadata and then one a node
(https://github.com/mlcommons/chakra, ``schema/protobuf/et_def.proto``)::

    node 216  aten::flatten_dense_tensors  COMP        is_cpu_op, tid 1          318 us
    node 430  CatArrayBatchedCopy...       COMP        GPU, tid 7, data_deps 216   4 us
    node 435  ncclKernel_Broadcast...      COMM_COLL   BROADCAST of 212480 bytes  28 us

* Every node is an op, named after its node and id, pinned to ``cpu`` or ``gpu``, with its measured
  duration; ``data_deps`` are control edges, as a trace does not say which tensor they are about.
* A collective has the kind of what it does (``all_reduce``, ...); its size is what it reads and writes.
* In a trace made from PyTorch (its nodes say ``is_cpu_op``), ``ctrl_deps`` is the call that encloses a
  node, often the node itself: no order, and many name nodes that are not there. It becomes the attribute
  ``parent``. In any other trace ``ctrl_deps`` are control edges as well.
* ``tid`` is the attribute ``stream`` on a GPU and ``thread`` on the host.
* Dependencies on nodes that are not in the file are reported, never dropped in silence.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field
from typing import Any, Literal

from scenarios.importers.files import StrPath, choice, fixed_batch, in_file, read_bytes, stem
from scenarios.importers.traces.kernel_names import kind_of, short_name
from scenarios.importers.traces.protobuf_wire import delimited, fields, packed, signed, text
from sim.graph.builder import GraphBuilder
from sim.graph.graph import Graph
from sim.words.errors import GraphError, InputError

__all__ = ["Node", "load", "read_nodes", "recognises"]

_TYPES = (
    "metadata", "mem_load", "mem_store", "comp", "send", "recv", "collective", "storage", "batch",
    "checkpoint",
)  # fmt: skip
"""Types of node, numbered from 1."""
_COLLECTIVES = (
    "all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all", "reduce_scatter",
    "reduce_scatter", "barrier",
)  # fmt: skip
"""Types of collective, numbered from 0."""
_TENSOR = re.compile(r"\[\d+, \d+, \d+, (\d+), (\d+), '[^']*'\]")
"""A tensor in the recorded inputs and outputs: id, storage, offset, elements, bytes of one, device."""


@dataclass
class Node:
    """One node, as recorded.

    Attributes
    ----------
    id : int
    name, type : str
        `type` is ``"comp"``, ``"collective"``, ``"send"``, ...
    ctrl_deps, data_deps : list of int
        Ids of other nodes.
    duration_ns : int
    bytes_read, bytes_written : int
        Of the tensors recorded as inputs and outputs.
    attributes : dict
        Numbers and texts only.
    """

    id: int = -1
    name: str = ""
    type: str = "comp"
    ctrl_deps: list[int] = field(default_factory=list)
    data_deps: list[int] = field(default_factory=list)
    duration_ns: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)


def recognises(name: str, head: bytes) -> bool:
    """Whether the file is a Chakra trace: by its name, as a protobuf has no mark of its own."""
    return name.removesuffix(".gz").endswith((".et", ".chakra"))


def load(path: StrPath, *, batch: int | None = None, dangling: Literal["warn", "error"] = "warn") -> Graph:
    """Return the graph of a trace.

    Parameters
    ----------
    path : path
    batch : int, optional
        Not possible: the times were measured at one batch size.
    dangling : {"warn", "error"}
        What to do about dependencies on nodes that are not in the file.

    Raises
    ------
    InputError
        No trace, `batch` given, or dangling dependencies with ``dangling="error"``.
    GraphError
        Two nodes of one id, or a cycle.

    Warns
    -----
    UserWarning
        The number of dangling dependencies, and some of the ids.
    """
    fixed_batch(path, batch, "its times were measured at one batch size")
    choice("dangling", dangling, ("warn", "error"))
    nodes = read_nodes(path)
    by_id = {node.id: node for node in nodes}
    if len(by_id) < len(nodes):
        raise GraphError(f"{path}: {len(nodes) - len(by_id)} node id(s) are there twice")
    pytorch = any("is_cpu_op" in node.attributes for node in nodes)
    _report(path, nodes, by_id, dangling)
    names = {node.id: f"{short_name(node.name) if node.name else node.type}#{node.id}" for node in nodes}
    builder = GraphBuilder(stem(path, ".et"))
    for node in nodes:
        attributes = dict(node.attributes)
        before = dict.fromkeys(node.data_deps)
        if pytorch:
            parents = [parent for parent in node.ctrl_deps if parent != node.id and parent in by_id]
            attributes |= {"parent": names[parents[0]]} if parents else {}
        else:
            before |= dict.fromkeys(node.ctrl_deps)
        on_cpu = bool(attributes.pop("is_cpu_op", False))
        if "tid" in attributes:
            attributes["thread" if on_cpu else "stream"] = attributes.pop("tid")
        if names[node.id] != f"{node.name}#{node.id}":
            attributes["full_name"] = node.name
        size = int(attributes.get("comm_size", 0))
        builder.op(
            names[node.id],
            kind=_kind(node, on_cpu),
            after=[names[other] for other in before if other in by_id],
            duration_ns=node.duration_ns,
            bytes_read=size or node.bytes_read,
            bytes_written=size or node.bytes_written,
            device="cpu" if on_cpu else "gpu",
            attributes=attributes,
        )
    with in_file(path):
        return builder.build()


def _kind(node: Node, on_cpu: bool) -> str:
    """Return what a node does: the collective, the kernel's kind, or a host op."""
    comm_type = node.attributes.get("comm_type")
    if isinstance(comm_type, int) and 0 <= comm_type < len(_COLLECTIVES):
        return _COLLECTIVES[comm_type]
    if on_cpu:
        return "host"
    return kind_of(node.name) if node.type == "comp" else node.type


def _report(path: StrPath, nodes: list[Node], by_id: dict[int, Node], dangling: str) -> None:
    """Warn of, or refuse, dependencies on nodes that are not there."""
    for what in ("data_deps", "ctrl_deps"):
        missing = [(node.id, other) for node in nodes for other in getattr(node, what) if other not in by_id]
        if not missing:
            continue
        some = ", ".join(f"{node} on {other}" for node, other in missing[:4])
        message = (
            f"{path}: {len(missing)} {what} name nodes that are not in the file ({some}"
            f"{', ...' if len(missing) > 4 else ''})"
        )
        if dangling == "error":
            raise InputError(f"{message}; import without them by dangling='warn'")
        warnings.warn(f"{message}; the ops do not wait for them", stacklevel=3)


# -- messages -------------------------------------------------------------------------------------


def read_nodes(path: StrPath) -> list[Node]:
    """Return the nodes of a trace, in the order of the file.

    Raises
    ------
    InputError
        No such file, or it is no Chakra trace.
    """
    content = read_bytes(path)
    try:
        messages = list(delimited(content))
        nodes = [_node(message) for message in messages[1:]]
    except InputError as error:
        raise InputError(f"{path}: not a Chakra trace: {error}") from None
    if not nodes:
        raise InputError(f"{path}: not a Chakra trace: no node in it")
    return nodes


def _node(message: bytes) -> Node:
    node = Node()
    for number, _, value in fields(message):
        if number == 1 and isinstance(value, int):
            node.id = value
        elif number == 2:
            node.name = text(value)
        elif number == 3 and isinstance(value, int):
            node.type = _TYPES[value - 1] if 0 < value <= len(_TYPES) else f"type{value}"
        elif number == 4:
            node.ctrl_deps += packed(value)
        elif number == 5:
            node.data_deps += packed(value)
        elif number == 7 and isinstance(value, int):
            node.duration_ns = 1000 * value
        elif number == 8:
            node.bytes_read = _nbytes(value)
        elif number == 9:
            node.bytes_written = _nbytes(value)
        elif number == 10 and isinstance(value, bytes):
            _attribute(value, node.attributes)
    if node.id < 0:
        raise InputError("a node without an id")
    return node


def _nbytes(value: int | bytes) -> int:
    """Return the bytes of the tensors in an ``IOInfo`` message."""
    if isinstance(value, int):
        raise InputError("a node's inputs or outputs are a number")
    values = [text(found) for number, _, found in fields(value) if number == 1]
    return sum(int(n) * int(size) for found in values for n, size in _TENSOR.findall(found))


def _attribute(message: bytes, into: dict[str, Any]) -> None:
    """Add an ``AttributeProto`` that holds a whole number, a truth value or a text."""
    name = ""
    for number, wire, value in fields(message):
        if number == 1:
            name = text(value)
        elif wire == 0 and isinstance(value, int):
            into[name] = bool(value) if number == 27 else signed(value)
        elif number == 29:
            into[name] = text(value)
