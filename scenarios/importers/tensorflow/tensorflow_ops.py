"""TensorFlow's operators in our words: their kinds, and what the cost formulas need to know of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from scenarios.ops.op_costs import OpFacts, TensorFacts

__all__ = ["PARAMETERS", "kind_of", "op_facts", "plain_attributes"]

PARAMETERS = frozenset({"VarHandleOp", "VariableV2", "Variable"})
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
    facts: dict[str, Any] = {
        "weight_output_axis": -1,
        "mode": "linear" if op == "ResizeBilinear" else "nearest",
    }
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
