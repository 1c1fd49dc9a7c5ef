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
from typing import Literal

from pydantic import TypeAdapter

from scenarios.importers import checked_json
from scenarios.importers.files import StrPath, choice, in_file, read_bytes
from scenarios.importers.tensorflow.tensorflow_nodes import File, Recorded, op_facts, plain_attributes
from scenarios.ops.op_costs import COSTS, op_arguments
from sim.graph.builder import GraphBuilder
from sim.graph.frames import CONTROL_FLOW_KINDS
from sim.graph.graph import Graph, output_name
from sim.words.errors import GraphError, InputError, hint

__all__ = ["import_tensorflow_json", "load", "recognises"]

_FILE = TypeAdapter(File)


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
    recorded = Recorded(file, batch)
    _check(recorded, unknown)
    builder = GraphBuilder(file["name"])
    for name in recorded.externals:
        if name in recorded.variables:
            builder.parameter(name, recorded.variables[name].nbytes, device=recorded.pin(name))
        else:
            nbytes = recorded.tensors[name][0].nbytes if recorded.tensors[name] else 0
            builder.input(name, nbytes, device=recorded.pin(name))
    in_place = recorded.variables if CONTROL_FLOW_KINDS.isdisjoint(recorded.kinds.values()) else {}
    for name, node in recorded.nodes.items():
        if name not in recorded.externals:
            after: list[str | tuple[str, int]] = [
                before for before in node.get("control", []) if before not in recorded.externals
            ]
            read = recorded.sources[name][0][0] if recorded.sources[name] else ""
            if recorded.kinds[name] == "read_variable" and read in in_place:
                after += [(writer, 1) for writer in in_place[read].writers]
            _add(builder, recorded, name, after)
    return builder.build()


def _add(builder: GraphBuilder, recorded: Recorded, name: str, after: list[str | tuple[str, int]]) -> None:
    """Add the op of one node."""
    node, sources = recorded.nodes[name], recorded.sources[name]
    variables, tensors = recorded.variables, recorded.tensors
    given = tuple(None if source in variables else tensors[source][k] for source, k in sources)
    written = tuple(tensors[name])
    attributes = node.get("attributes", {})
    facts = op_facts(node["op"], given, written, attributes)
    sized = recorded.open.keys().isdisjoint([*sources, *((name, k) for k in range(len(written)))])
    known, where = facts.kind in COSTS and sized, f"node {name!r} ({node['op']})"
    builder.op(
        name,
        inputs=[
            (output_name(source, k), int(recorded.kinds[source] == "next_iteration")) for source, k in sources
        ],
        after=after,
        **op_arguments(facts, where, plain_attributes(attributes), known=known),
        device=recorded.pin(name),
        dtype=recorded.dtype(name),
    )


# -- what cannot be --------------------------------------------------------------------------------


def _check(recorded: Recorded, unknown: str) -> None:
    """Refuse inputs from nowhere and loops; refuse or warn of what has no cost."""
    kinds: Counter[str] = Counter()
    for name, node in recorded.nodes.items():
        if name not in recorded.externals and recorded.kinds[name] not in COSTS:
            kinds[node["op"]] += 1
        for source, k in [*recorded.sources[name], *((before, -1) for before in node.get("control", []))]:
            if source not in recorded.nodes:
                near = hint(source, recorded.nodes)
                raise GraphError(f"node {name!r} has an unknown input {source!r}{near}")
            n_outputs = len(recorded.tensors[source])
            if k >= n_outputs:
                raise GraphError(f"node {name!r} reads output {k} of {source!r}, which has {n_outputs}")
    faults = []
    if kinds:
        listed = ", ".join(f"{op} ({count})" for op, count in sorted(kinds.items()))
        faults.append(f"operators without a cost formula: {listed}")
    if recorded.open:
        some = ", ".join([*recorded.open.values()][:5]) + (", ..." if len(recorded.open) > 5 else "")
        faults.append(f"{len(recorded.open)} tensor(s) without a size: {some}")
    if faults and unknown == "error":
        raise InputError(
            "; ".join(faults) + "; give batch= if the batch size is missing, or count known bytes with "
            "--set unknown=bytes of sim import, or unknown='bytes' in Python"
        )
    for fault in faults:
        warnings.warn(f"counted by their known bytes, with no flop: {fault}", stacklevel=4)
