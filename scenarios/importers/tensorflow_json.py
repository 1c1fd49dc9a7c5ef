"""TensorFlow graphs as JSON: nodes with their shapes, as recorded from a `tf.function` or a Keras model.

::

    {"name": "ResNet50",
     "nodes": [{"name": "conv", "op": "Conv2D", "inputs": ["x:0", "w/read:0"], "control": ["init"],
                "shapes": [[32, 112, 112, 64]], "dtypes": ["float32"],
                "device": "/device:GPU:0", "attributes": {}}, ...]}

Every node that TensorFlow's executor would run is an op, including cheap ones (Const, NoOp, Identity), and
every control edge is kept; costs come from `scenarios.ops.op_costs`.

* A Placeholder is an input of the graph; if it is a resource, it is a variable: a parameter, as large as
  what is read from it or assigned to it.
* A value assigned to a variable in one iteration is read in the next: a control edge of distance 1 leads
  from every assignment to every read (in a graph without Switch and loops, where a distance means just that).
* Loops (Enter, Merge, Switch, Exit, NextIteration) are kept: the edge from a NextIteration to a Merge has
  distance 1, as `sim.readiness.tokens` requires.
* ``/device:GPU:0`` becomes the pin ``gpu0``, ``/device:GPU:*`` the pin ``gpu``.
* An unknown dimension (null or -1) is the batch, if it is the first one and `batch` is given.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple, NotRequired

from pydantic import ConfigDict, TypeAdapter, with_config
from typing_extensions import TypedDict

from devices.describe.field_types import sized_dtype
from scenarios.importers import files as checked_json
from scenarios.ops import attributes as dtypes
from scenarios.ops.op_costs import COSTS, op_arguments
from scenarios.ops.op_formulas import OpFacts, TensorFacts
from sim.base.errors import GraphError, InputError, hint, in_file
from sim.base.files import StrPath, read_bytes
from sim.graph.builder import GraphBuilder
from sim.graph.frames import CONTROL_FLOW_KINDS
from sim.graph.graph import Graph, output_name, split_output

# ----------------------------------------------------------------------------------------------------------
# Content of a recorded TensorFlow graph in our terms: its nodes, their kinds, sizes and variables.

_DEVICE = re.compile(r"(?:^|/)(?:device:(\w+)|(CPU|GPU|TPU|NPU)):(\d+|\*)$", re.IGNORECASE)
_STRICT = ConfigDict(extra="forbid", strict=True)


@with_config(_STRICT)
class TensorflowNode(TypedDict):
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
    nodes: list[TensorflowNode]


class Variable(NamedTuple):
    """A variable: its size, and the ops that assign to it."""

    nbytes: int
    writers: list[str]


class RecordedNodes:
    """The nodes of a file, with their properties by name.

    Attributes
    ----------
    nodes : dict of str to Node
    kinds : dict of str to str
        Op kind of each, in our terms.
    sources : dict of str to list of (str, int)
        Inputs of each: node and output.
    tensors : dict of str to list of TensorFacts
        Shape and size of its outputs.
    open : dict
        (node, output) → description, for each output of unknown size; it is counted as nothing.
    externals : dict of str to Node
        Nodes for tensors that exist before time 0.
    """

    def __init__(self, file: File, batch: int | None) -> None:
        self.nodes = {node["name"]: node for node in file["nodes"]}
        if len(self.nodes) < len(file["nodes"]):
            twice = Counter(node["name"] for node in file["nodes"]).most_common(1)[0][0]
            raise GraphError(f"the node {twice!r} is there twice")
        nodes = self.nodes.items()
        self.kinds = {name: kind_of(node["op"]) for name, node in nodes}
        self.sources = {
            name: [split_output(text) or (text, 0) for text in node.get("inputs", [])] for name, node in nodes
        }
        for name in (name for name, node in nodes if node["op"] == "ScatterNd"):  # (indices, updates, shape)
            self.sources[name][:2] = self.sources[name][1::-1]
        self.externals = {name: node for name, node in nodes if _is_external(node)}
        self.tensors: dict[str, list[TensorFacts]] = {}
        self.open: dict[tuple[str, int], str] = {}
        filled = False
        for name, node in nodes:
            dtypes_, shapes = _dtypes(node), node.get("shapes", [])
            if len(dtypes_) != len(shapes):
                raise InputError(f"node {name!r} has {len(shapes)} shapes and {len(dtypes_)} dtypes")
            self.tensors[name] = []
            for dtype, shape in zip(dtypes_, shapes, strict=True):
                sizes = None if shape is None else [None if n is None or n < 0 else n for n in shape]
                if sizes and sizes[0] is None and batch is not None:
                    sizes[0], filled = batch, True
                self.tensors[name].append(self._add_size(name, len(self.tensors[name]), dtype, sizes))
        if batch is not None and not filled:
            raise InputError(f"its shapes are those of one batch size, so batch={batch} cannot be set")

    def _add_size(self, name: str, k: int, dtype: str, shape: list[int | None] | None) -> TensorFacts:
        if dtype == "resource":  # a handle; the variable itself is a parameter
            return TensorFacts((), 0)
        own_dtype = sized_dtype(dtype)
        if own_dtype is None or shape is None or None in shape:
            self.open[name, k] = f"{name}:{k} ({dtype} {'of unknown rank' if shape is None else shape})"
            return TensorFacts((0,), 0)
        sizes = tuple(n for n in shape if n is not None)
        return TensorFacts(sizes, dtypes.nbytes(sizes, own_dtype))

    def dtype(self, name: str) -> str | None:
        """Return the type in which a node computes: that of its result, or of what it compares or assigns."""
        results = [dtype for dtype in _dtypes(self.nodes[name])[:1] if dtype != "bool"]
        operands = [_dtypes(self.nodes[source])[k] for source, k in self.sources[name]]
        return next(filter(None, map(sized_dtype, [*results, *operands])), None)

    def pin(self, name: str) -> str | None:
        """Return our name of a device: gpu0 for ``/job:worker/device:GPU:0``, gpu for ``/device:GPU:*``."""
        text = self.nodes[name].get("device") or ""
        match = _DEVICE.search(text)
        return (match[1] or match[2]).lower() + match[3].removesuffix("*") if match else text or None

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """Each variable: as large as what is read from or assigned to it, and the ops that assign to it."""
        sizes = {
            name: sum(tensor.nbytes for tensor in self.tensors[name])
            for name, node in self.externals.items()
            if node["op"] in _PARAMETERS or "resource" in node.get("dtypes", [])
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


def _dtypes(node: TensorflowNode) -> list[str]:
    return [dtype.removesuffix("_ref") for dtype in node.get("dtypes", [])]


def _is_external(node: TensorflowNode) -> bool:
    waits = node.get("inputs") or node.get("control")
    return (node["op"].startswith("Placeholder") or node["op"] in _PARAMETERS) and not waits


# -- TensorFlow's terms in ours -----------------------------------------------------------------

_PARAMETERS = frozenset({"VarHandleOp", "VariableV2", "Variable"})
"""Operators that stand for a variable, besides a Placeholder of a resource."""

_KINDS = {
    "ConvBackpropInput": "conv_input_grad", "ConvBackpropFilter": "conv_weight_grad",
    "DepthwiseConv2dNative": "depthwise_conv", "MatMul": "matmul", "BatchMatMul": "matmul", "RealDiv": "div",
    "DivNoNan": "div", "FloorMod": "mod", "Mean": "reduce_mean", "Sum": "reduce_sum", "Max": "reduce_max",
    "Min": "reduce_min", "Prod": "reduce_prod", "All": "reduce_all", "Any": "reduce_any", "ArgMax": "argmax",
    "ArgMin": "argmin", "AvgPool": "average_pool", "AvgPoolGrad": "average_pool_grad",
    "FusedBatchNorm": "batch_norm", "FusedBatchNormGrad": "batch_norm_grad",
    "SoftmaxCrossEntropyWithLogits": "softmax_cross_entropy", "ExpandDims": "unsqueeze",
    "SparseSoftmaxCrossEntropyWithLogits": "sparse_softmax_cross_entropy", "IdentityN": "identity",
    "ReadVariableOp": "read_variable", "AssignVariableOp": "assign", "AssignAddVariableOp": "assign_add",
    "AssignSubVariableOp": "assign_sub", "ShapeN": "shape", "BroadcastGradientArgs": "shape",
    "ConcatOffset": "shape", "BroadcastTo": "expand", "MirrorPad": "pad", "Select": "where",
    "Relu6Grad": "relu_grad", "ResizeBilinear": "resize", "ResizeNearestNeighbor": "resize",
    "LogicalAnd": "and", "LogicalOr": "or", "LogicalNot": "not", "GreaterEqual": "greater_or_equal",
    "LessEqual": "less_or_equal",
}  # fmt: skip
_DECORATION = re.compile(r"^(_Host|_|Ref(?=[A-Z]))|[23]D(?=Backprop|$)|V\d*$")
"""Ends of names that do not matter: where, in how many axes, in which version."""


def kind_of(op: str) -> str:
    """Return the op kind of a TensorFlow operator; its version (``ConcatV2``) and axes do not matter.

    Examples
    --------
    >>> [kind_of(op) for op in ("Conv2D", "ConcatV2", "FusedBatchNormV3", "NextIteration", "NoOp", "Mean")]
    ['conv', 'concat', 'batch_norm', 'next_iteration', 'no_op', 'reduce_mean']
    """
    plain = _DECORATION.sub("", op)
    return _KINDS.get(plain) or dtypes.snake_case(plain)


def op_facts(
    op: str,
    inputs: tuple[TensorFacts | None, ...],
    outputs: tuple[TensorFacts, ...],
    attributes: Mapping[str, Any],
) -> OpFacts:
    """Return the facts for cost formulas; filters are height x width x in x out here."""
    mode = "linear" if op == "ResizeBilinear" else "nearest"
    last = not str(attributes.get("data_format") or "NHWC").startswith("NC")
    facts: dict[str, Any] = {"weight_output_axis": -1, "mode": mode, "channels_last": last}
    image = slice(1, -1) if last else slice(2, None)  # windows and steps are given for all axes
    for key, name in (("ksize", "kernel_shape"), ("strides", "strides"), ("dilations", "dilations")):
        if attributes.get(key):
            facts[name] = list(attributes[key])[image]
    if attributes.get("transpose_b") or attributes.get("adj_y"):
        facts["transposed"] = True
    if op.startswith("FusedBatchNorm"):
        facts["training_mode"] = attributes.get("is_training", True)  # TensorFlow's default
    if op == "LRN":
        facts["size"] = 2 * int(attributes.get("depth_radius", 5)) + 1
    if op == "Split":  # (axis, value)
        inputs = inputs[::-1]
    return OpFacts(kind_of(op), inputs, outputs, facts)


_NAMES = {"frame_name": "frame", "is_constant": "constant", "_class": "colocate"}


def plain_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes under the names used in the rest of the project.

    Examples
    --------
    >>> plain_attributes({"frame_name": "while", "is_constant": True, "_class": ["loc:@a"]})
    {'frame': 'while', 'constant': True, 'colocate': ['a']}
    """
    plain = {_NAMES.get(key, key): value for key, value in attributes.items()}
    if "_class" in attributes:
        plain["colocate"] = [str(group).removeprefix("loc:@") for group in attributes["_class"] or ()]
    if "tensor_name" in attributes:  # the key by which a Send and a Recv meet
        ends = (attributes.get("send_device", ""), attributes.get("recv_device", ""))
        plain["key"] = ";".join((*map(str, ends), str(attributes["tensor_name"])))
    return plain


# ----------------------------------------------------------------------------------------------------------

_FILE = TypeAdapter(File)


def recognises(name: str, head: bytes) -> bool:
    """Whether `head` begins a list of nodes that each have an ``op``."""
    return re.search(rb'"nodes"\s*:\s*\[\s*\{[^{}]*"op"\s*:', head) is not None


def import_tensorflow_json(
    path: StrPath, *, batch: int | None = None, unknown: Literal["error", "bytes"] = "error"
) -> Graph:
    """Return the graph that a file holds.

    Parameters
    ----------
    path : path
    batch : int, optional
        Size of the first dimension if the file leaves it open.
    unknown : {"error", "bytes"}
        What to do about operators without a cost formula and tensors without a size: refuse them, or
        count no flop and only known bytes, with a warning that names them.

    Raises
    ------
    InputError
        The file is wrong, something is unknown, or `batch` is given for a file that leaves none open.
    GraphError
        There is an input that no node writes, or a cycle without a NextIteration.

    Examples
    --------
    >>> import_tensorflow_json("ResNet50_train_b32.json.gz")  # doctest: +SKIP
    """
    file = checked_json.parse(_FILE, read_bytes(path), path)
    with in_file(path):
        return _graph(file, batch, unknown)


load = import_tensorflow_json


def _graph(file: File, batch: int | None, unknown: str) -> Graph:
    recorded = RecordedNodes(file, batch)
    _check(recorded, unknown)
    builder = GraphBuilder(file["name"])
    for name in recorded.externals:
        if name in recorded.variables:
            builder.parameter(name, recorded.variables[name].nbytes, device=recorded.pin(name))
        else:
            nbytes = recorded.tensors[name][0].nbytes if recorded.tensors[name] else 0
            builder.input(name, nbytes, device=recorded.pin(name))
    in_place = recorded.variables if CONTROL_FLOW_KINDS.isdisjoint(recorded.kinds.values()) else {}
    variables, tensors = recorded.variables, recorded.tensors
    for name, node in recorded.nodes.items():
        if name in recorded.externals:
            continue
        sources = recorded.sources[name]
        after: list[str | tuple[str, int]] = [
            before for before in node.get("control", []) if before not in recorded.externals
        ]
        read = sources[0][0] if sources else ""
        if recorded.kinds[name] == "read_variable" and read in in_place:
            after += [(writer, 1) for writer in in_place[read].writers]
        inputs = tuple(None if source in variables else tensors[source][k] for source, k in sources)
        written = tuple(tensors[name])
        facts = op_facts(node["op"], inputs, written, node.get("attributes", {}))
        sized = recorded.open.keys().isdisjoint([*sources, *((name, k) for k in range(len(written)))])
        has_formula, where = facts.kind in COSTS and sized, f"node {name!r} ({node['op']})"
        arguments = op_arguments(
            facts, where, plain_attributes(node.get("attributes", {})), has_formula=has_formula
        )
        reads = [(output_name(s, k), int(recorded.kinds[s] == "next_iteration")) for s, k in sources]
        pin, dtype = recorded.pin(name), recorded.dtype(name)
        builder.op(name, inputs=reads, after=after, **arguments, device=pin, dtype=dtype)
    return builder.build()


# -- checks ----------------------------------------------------------------------------------------


def _check(recorded: RecordedNodes, unknown: str) -> None:
    """Raise if an input has no producer or there is an invalid loop; raise or warn if there is no cost."""
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
