"""What a recorded TensorFlow graph holds, in our words: its nodes, their kinds, sizes and variables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple, NotRequired

from pydantic import ConfigDict, with_config
from typing_extensions import TypedDict

from scenarios.ops import dtypes
from scenarios.ops.op_costs import OpFacts, TensorFacts
from sim.graph.graph import split_output
from sim.words.errors import GraphError, InputError

__all__ = ["File", "Node", "Recorded", "Variable", "kind_of", "op_facts", "plain_attributes"]

_DEVICE = re.compile(r"(?:^|/)(?:device:(\w+)|(CPU|GPU|TPU|NPU)):(\d+|\*)$", re.IGNORECASE)
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
        nodes = self.nodes.items()
        self.kinds = {name: kind_of(node["op"]) for name, node in nodes}
        self.sources = {name: [_split(text) for text in node.get("inputs", [])] for name, node in nodes}
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

    def pin(self, name: str) -> str | None:
        """Return our name of a device: gpu0 of ``/job:worker/device:GPU:0``, gpu of ``/device:GPU:*``."""
        text = self.nodes[name].get("device") or ""
        match = _DEVICE.search(text)
        return (match[1] or match[2]).lower() + match[3].removesuffix("*") if match else text or None

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """Each variable: as large as what is read from it or assigned to it, and who assigns to it."""
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


def _dtypes(node: Node) -> list[str]:
    return [dtype.removesuffix("_ref") for dtype in node.get("dtypes", [])]


def _is_external(node: Node) -> bool:
    waits = node.get("inputs") or node.get("control")
    return (node["op"].startswith("Placeholder") or node["op"] in _PARAMETERS) and not waits


def _split(text: str) -> tuple[str, int]:
    """Return node and output of ``name:k``."""
    return split_output(text) or (text, 0)


# -- TensorFlow's words in ours -----------------------------------------------------------------

_PARAMETERS = frozenset({"VarHandleOp", "VariableV2", "Variable"})
"""Operators that stand for a variable, besides a Placeholder of a resource."""

_KINDS = {
    "Conv": "conv", "Conv2D": "conv", "Conv3D": "conv", "Conv2DBackpropInput": "conv_input_grad",
    "Conv3DBackpropInput": "conv_input_grad", "Conv2DBackpropFilter": "conv_weight_grad",
    "Conv3DBackpropFilter": "conv_weight_grad", "DepthwiseConv2dNative": "depthwise_conv",
    "MatMul": "matmul", "BatchMatMul": "matmul", "RealDiv": "div", "DivNoNan": "div", "FloorMod": "mod",
    "Mean": "reduce_mean", "Sum": "reduce_sum", "Max": "reduce_max", "Min": "reduce_min",
    "Prod": "reduce_prod", "All": "reduce_all", "Any": "reduce_any", "ArgMax": "argmax",
    "ArgMin": "argmin", "MaxPool3D": "max_pool", "AvgPool": "average_pool", "AvgPool3D": "average_pool",
    "AvgPoolGrad": "average_pool_grad", "FusedBatchNorm": "batch_norm",
    "FusedBatchNormGrad": "batch_norm_grad", "SoftmaxCrossEntropyWithLogits": "softmax_cross_entropy",
    "SparseSoftmaxCrossEntropyWithLogits": "sparse_softmax_cross_entropy", "ExpandDims": "unsqueeze",
    "IdentityN": "identity", "ReadVariableOp": "read_variable", "AssignVariableOp": "assign",
    "AssignAddVariableOp": "assign_add", "AssignSubVariableOp": "assign_sub", "ShapeN": "shape",
    "BroadcastGradientArgs": "shape", "ConcatOffset": "shape", "BroadcastTo": "expand", "MirrorPad": "pad",
    "SplitV": "split", "Select": "where", "Relu6Grad": "relu_grad", "ResizeBilinear": "resize",
    "ResizeNearestNeighbor": "resize", "LogicalAnd": "and", "LogicalOr": "or", "LogicalNot": "not",
    "GreaterEqual": "greater_or_equal", "LessEqual": "less_or_equal", "_Arg": "arg", "_Retval": "retval",
    "_Send": "send", "_HostSend": "send", "_Recv": "recv", "_HostRecv": "recv", "RefSwitch": "switch",
    "RefMerge": "merge", "RefEnter": "enter", "RefExit": "exit", "RefNextIteration": "next_iteration",
}  # fmt: skip


def kind_of(op: str) -> str:
    """Return the kind of op that a TensorFlow operator is; versions (``ConcatV2``) do not matter.

    Examples
    --------
    >>> [kind_of(op) for op in ("Conv2D", "ConcatV2", "FusedBatchNormV3", "NextIteration", "NoOp", "Mean")]
    ['conv', 'concat', 'batch_norm', 'next_iteration', 'no_op', 'reduce_mean']
    """
    for name in (op, re.sub(r"V\d+$", "", op)):
        if name in _KINDS:
            return _KINDS[name]
    words = re.sub(r"V\d+$", "", op)
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", words).lower()


def op_facts(
    op: str,
    inputs: tuple[TensorFacts | None, ...],
    outputs: tuple[TensorFacts, ...],
    attributes: Mapping[str, Any],
) -> OpFacts:
    """Return what the cost formulas look at; filters are height x width x in x out here."""
    mode = "linear" if op == "ResizeBilinear" else "nearest"
    facts: dict[str, Any] = {"weight_output_axis": -1, "mode": mode}
    if "ksize" in attributes:
        facts["kernel_shape"] = attributes["ksize"]
    if op.startswith("FusedBatchNorm"):
        facts["training_mode"] = attributes.get("is_training", True)  # TensorFlow's default
    if op == "LRN":
        facts["size"] = 2 * int(attributes.get("depth_radius", 5)) + 1
    if op == "Split":  # (axis, value)
        inputs = inputs[::-1]
    return OpFacts(kind_of(op), inputs, outputs, facts)


_NAMES = {"frame_name": "frame", "is_constant": "constant", "_class": "colocate"}


def plain_attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes under the names that the rest of the project knows.

    Examples
    --------
    >>> plain_attributes({"frame_name": "while", "is_constant": True, "_class": ["loc:@a"]})
    {'frame': 'while', 'constant': True, 'colocate': ['a']}
    """
    plain = {_NAMES.get(key, key): value for key, value in attributes.items()}
    if "_class" in attributes:
        plain["colocate"] = [str(group).removeprefix("loc:@") for group in attributes["_class"] or ()]
    if "tensor_name" in attributes:  # of a Send or a Recv: they meet by this
        ends = (attributes.get("send_device", ""), attributes.get("recv_device", ""))
        plain["key"] = ";".join((*map(str, ends), str(attributes["tensor_name"])))
    return plain
