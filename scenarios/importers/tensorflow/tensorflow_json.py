"""TensorFlow graphs as JSON: nodes with their shapes, as recorded from a `tf.function` or a Keras model.

::

    {"name": "ResNet50",
     "nodes": [{"name": "conv", "op": "Conv2D", "inputs": ["x:0", "w/read:0"], "control": ["init"],
                "shapes": [[32, 112, 112, 64]], "dtypes": ["float32"],
                "device": "/device:GPU:0", "attributes": {}}, ...]}

Every node that TensorFlow's executor would run is an op, the cheap ones (Const, NoOp, Identity) too, and
every control edge is kept; costs come from `scenarios.ops.op_costs`.

* A Placeholder is an input of the graph; one of a resource is a variable: a parameter, as large as what
  is read from it or assigned to it.
* What is assigned to a variable in one iteration is read in the next: a control edge of distance 1 leads
  from every assignment to every read (in a graph without Switch and loops, where a distance means just that).
* Loops (Enter, Merge, Switch, Exit, NextIteration) are kept: what a NextIteration gives to a Merge has
  distance 1, as `sim.readiness.tokens` wants it.
* ``/device:GPU:0`` becomes the pin ``gpu0``, ``/device:GPU:*`` the pin ``gpu``.
* A dimension that is not known (null or -1) is the batch, where it is the first one and `batch` is given.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from pydantic import TypeAdapter

from scenarios.importers import checked_json
from scenarios.importers.files import StrPath, choice, in_file, read_bytes
from scenarios.importers.tensorflow.tensorflow_ops import kind_of, op_facts, plain_attributes
from scenarios.importers.tensorflow.tensorflow_tensors import (
    File,
    Node,
    Tensors,
    Variable,
    is_external,
    split_reference,
    variables_of,
)
from scenarios.ops.op_costs import COSTS, op_arguments
from sim.graph.builder import GraphBuilder
from sim.graph.frames import CONTROL_FLOW_KINDS
from sim.graph.graph import Graph
from sim.words.errors import GraphError, InputError, nearest

__all__ = ["import_tensorflow_json", "load", "recognises"]

_FILE = TypeAdapter(File)
_DEVICE = re.compile(r"(?:^|/)(?:device:(\w+)|(CPU|GPU|TPU|NPU)):(\d+|\*)$", re.IGNORECASE)


def recognises(name: str, head: bytes) -> bool:
    """Whether `head` begins a list of nodes, each with an ``op``."""
    return re.search(rb'"nodes"\s*:\s*\[\s*\{[^{}]*"op"\s*:', head) is not None


def import_tensorflow_json(
    path: StrPath, *, batch: int | None = None, unknown: Literal["error", "bytes"] = "error"
) -> Graph:
    """Return the graph that a file holds.

    Parameters
    ----------
    path : path
    batch : int, optional
        Size of the first dimension where the file leaves it open.
    unknown : {"error", "bytes"}
        What to do about operators without a cost formula and tensors without a size: refuse them, or
        count no flop and what bytes are known, with a warning that names them.

    Raises
    ------
    InputError
        A wrong file, something unknown, or a `batch` for a file that leaves none open.
    GraphError
        An input that no node writes, or a cycle without a NextIteration in it.

    Examples
    --------
    >>> import_tensorflow_json("ResNet50_train_b32.json.gz")  # doctest: +SKIP
    """
    choice("unknown", unknown, ("error", "bytes"))
    file = checked_json.parse(_FILE, read_bytes(path), path)
    with in_file(path):
        return _graph(file, batch, unknown)


load = import_tensorflow_json


def _graph(file: File, batch: int | None, unknown: str) -> Graph:
    nodes = {node["name"]: node for node in file["nodes"]}
    if len(nodes) < len(file["nodes"]):
        twice = Counter(node["name"] for node in file["nodes"]).most_common(1)[0][0]
        raise GraphError(f"the node {twice!r} is there twice")
    externals = {name: node for name, node in nodes.items() if is_external(node)}
    tensors = Tensors(file["nodes"], batch)
    _check(file["nodes"], nodes, tensors, externals, unknown)
    variables = variables_of(file["nodes"], externals, tensors)
    control_flow = {
        name: kind_of(node["op"]) for name, node in nodes.items() if kind_of(node["op"]) in CONTROL_FLOW_KINDS
    }
    builder = GraphBuilder(file["name"])
    for name, node in externals.items():
        if name in variables:
            builder.parameter(name, variables[name].nbytes, device=_pin(node))
        else:
            builder.input(name, tensors.of[name][0].nbytes if tensors.of[name] else 0, device=_pin(node))
    for node in file["nodes"]:
        if node["name"] not in externals:
            _add(builder, node, tensors, externals, variables, control_flow)
    return builder.build()


def _add(
    builder: GraphBuilder,
    node: Node,
    tensors: Tensors,
    externals: Mapping[str, Node],
    variables: Mapping[str, Variable],
    control_flow: Mapping[str, str],
) -> None:
    """Add the op of one node; `control_flow` are the nodes that move tokens, with their kinds."""
    sources = [split_reference(text) for text in node.get("inputs", [])]
    given = tuple(None if name in variables else tensors.of[name][k] for name, k in sources)
    written = tuple(tensors.of[node["name"]])
    facts = op_facts(node["op"], given, written, node.get("attributes", {}))
    sized = not any(
        key in tensors.open for key in [*sources, *((node["name"], k) for k in range(len(written)))]
    )
    where, attributes = f"node {node['name']!r} ({node['op']})", plain_attributes(node.get("attributes", {}))
    after: list[str | tuple[str, int]] = [name for name in node.get("control", []) if name not in externals]
    if facts.kind == "read_variable" and sources and sources[0][0] in variables and not control_flow:
        after.extend((writer, 1) for writer in variables[sources[0][0]].writers)
    builder.op(
        node["name"],
        inputs=[
            (f"{name}:{k}" if k else name, int(control_flow.get(name) == "next_iteration"))
            for name, k in sources
        ],
        after=after,
        **op_arguments(facts, where, attributes, known=facts.kind in COSTS and sized),
        device=_pin(node),
        dtype=tensors.dtype(node, sources),
    )


def _pin(node: Node) -> str | None:
    """Return our name of a device: gpu0 of ``/job:worker/device:GPU:0``, gpu of ``/device:GPU:*``."""
    text = node.get("device") or ""
    match = _DEVICE.search(text)
    return (match[1] or match[2]).lower() + match[3].removesuffix("*") if match else text or None


# -- what cannot be --------------------------------------------------------------------------------


def _check(
    nodes: Iterable[Node],
    by_name: Mapping[str, Node],
    tensors: Tensors,
    externals: Mapping[str, Node],
    unknown: str,
) -> None:
    """Refuse inputs from nowhere and loops; refuse or warn of what has no cost."""
    kinds: Counter[str] = Counter()
    for node in nodes:
        kind = kind_of(node["op"])
        if node["name"] not in externals and kind not in COSTS:
            kinds[node["op"]] += 1
        for name, k in [
            *map(split_reference, node.get("inputs", [])),
            *((name, -1) for name in node.get("control", [])),
        ]:
            if name not in by_name:
                close = nearest(name, by_name)
                hint = f"; did you mean {close!r}?" if close else ""
                raise GraphError(f"node {node['name']!r} has an unknown input {name!r}{hint}")
            if k >= len(tensors.of[name]):
                raise GraphError(
                    f"node {node['name']!r} reads output {k} of {name!r}, which has {len(tensors.of[name])}"
                )
    faults = []
    if kinds:
        faults.append(
            "operators without a cost formula: " + ", ".join(f"{op} ({n})" for op, n in sorted(kinds.items()))
        )
    if tensors.open:
        some = ", ".join([*tensors.open.values()][:5]) + (", ..." if len(tensors.open) > 5 else "")
        faults.append(f"{len(tensors.open)} tensor(s) without a size: {some}")
    if faults and unknown == "error":
        raise InputError(
            "; ".join(faults) + "; give batch= if the batch size is missing, or count known bytes with "
            "--set unknown=bytes of sim import, or unknown='bytes' in Python"
        )
    for fault in faults:
        warnings.warn(f"counted by their known bytes, with no flop: {fault}", stacklevel=4)
