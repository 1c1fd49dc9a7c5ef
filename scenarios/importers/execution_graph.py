"""Execution graphs of PyTorch: the operators of a program, with their tensors, and the cost of each.

They contain no times, so they are read beside a profiler's trace of the program: ``workload: {kineto:
trace.json, execution_graph: et.json}``. `scenarios.importers.kineto.execution_kernels` applies them to
kernels. The sizes of operators in a trace alone come from here, too (`sizes_of`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

import numpy as np

from devices.describe.field_types import dtype_bits, sized_dtype
from scenarios.importers import torch_export as aten
from scenarios.importers.files import parts, read_json
from scenarios.importers.tensor_flow import Tensor, written_arguments
from scenarios.ops.attributes import FLOATING, math_dtype
from scenarios.ops.op_costs import ELEMENTWISE, cost_of
from scenarios.ops.op_formulas import Cost, OpFacts, TensorFacts, convolution_sizes, measured_shape
from sim.base.errors import InputError
from sim.base.files import StrPath
from sim.graph.views import VIEWS, WITHOUT_DATA

# ----------------------------------------------------------------------------------------------------------
# Execution graphs of PyTorch (ET JSON, ``ExecutionTraceObserver``): operators with their tensors.
#
# A file has one node per call of an operator, with the enclosing call, its inputs and
# its outputs. A tensor is ``[id, storage, offset, elements, bytes per element, device]``, with shape and
# type beside it. Two layouts are read::
#
#   1.0.1              {id, name, parent, rf_id, tid, inputs, input_shapes, input_types, outputs, ...}
#   1.0.2-chakra ...   {id, name, ctrl_deps, inputs: {values, shapes, types}, outputs, attrs: [{name, value}]}
#
# Source: torch/csrc/profiler/standalone/execution_trace_observer.cpp (``writeJsonNode``).

_MAX_SIZE: Final = 2**48
"""Largest dimension, or bytes of a tensor; larger numbers mean a damaged file."""

_FORMULA_ERRORS: Final = InputError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError
"""Exceptions of formulas for arguments that no such operator has."""


class TensorValue(NamedTuple):
    """A tensor given to or returned by an operator."""

    tensor: Tensor
    shape: tuple[int, ...]
    dtype: str | None


Argument = Any
"""A `TensorValue`, a list of arguments, None, a number or a text."""


@dataclass(frozen=True)
class Operator:
    """A call of an operator.

    Attributes
    ----------
    id, parent : int
    name, schema : str
    rf_id : int
        Number of the call, as the profiler counts calls.
    thread : int
    inputs, outputs : list
        Arguments.
    """

    id: int
    parent: int
    name: str
    schema: str
    rf_id: int
    thread: int
    inputs: list[Argument]
    outputs: list[Argument]

    @cached_property
    def reads(self) -> list[Tensor]:
        """Tensors that it was given."""
        return [value.tensor for value in tensors(self.inputs)]

    @cached_property
    def writes(self) -> list[Tensor]:
        """Tensors that it returned, and those that its schema marks as written in place."""
        placed = [self.inputs[i] for i in written_arguments(self.schema) if i < len(self.inputs)]
        return [value.tensor for value in tensors([*self.outputs, *placed])]


def tensors(arguments: Sequence[Argument]) -> Iterator[TensorValue]:
    """Yield the tensors in arguments, including those in lists."""
    for argument in arguments:
        if isinstance(argument, TensorValue):
            yield argument
        elif isinstance(argument, list):
            yield from tensors(argument)


def read_operators(path: StrPath) -> list[Operator]:
    """Return the operators of an execution graph, in the order in which they began.

    Raises
    ------
    InputError
        There is no such file, it is not an execution graph, or a node lacks a field (with its index).
    """
    data = read_json(path)
    nodes = data.get("nodes") if isinstance(data, dict) else None
    if not isinstance(nodes, list) or not nodes or "schema" not in data:
        raise InputError(f"{path}: not an execution graph of PyTorch (it has no schema, or no list nodes)")
    if any(isinstance(node, dict) and "cat" in node for node in nodes):
        raise InputError(f"{path}: was linked with a trace; give the trace, and PyTorch's own graph")
    operators = []
    for index, node in enumerate(nodes):
        try:
            operators.append(_operator(node))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            name = node.get("name") if isinstance(node, dict) else None
            raise InputError(f"{path}: nodes[{index}] ({str(name)[:60]}): {reason}") from None
    if len({operator.id for operator in operators}) < len(operators):
        raise InputError(f"{path}: not an execution graph of PyTorch: two nodes have one id")
    return sorted(operators, key=lambda operator: operator.id)


_SIDES: Final = ("input", "output")


def _operator(node: Any) -> Operator:
    if "attrs" in node:
        attributes, parent = {item["name"]: item.get("value") for item in node["attrs"]}, node["ctrl_deps"]
        sides = [[node[f"{side}s"][key] for key in ("values", "shapes", "types")] for side in _SIDES]
    else:
        attributes, parent = node, node["parent"]
        sides = [[node[f"{side}{key}"] for key in ("s", "_shapes", "_types")] for side in _SIDES]
    inputs, outputs = (
        [_argument(*item) for item in zip(*map(_parse_list, side), strict=True)] for side in sides
    )
    if _to_int(parent) > _to_int(node["id"]):
        raise ValueError(f"is called by node {parent}, which began later")
    call, thread = _to_int(attributes.get("rf_id", 0)), _to_int(attributes.get("tid", 0))
    schema = str(attributes.get("op_schema") or "")
    return Operator(node["id"], parent, str(node["name"]), schema, call, thread, inputs, outputs)


def _parse_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError(f"{str(value)[:40]!r} is no list of arguments")
    return value


def _to_int(value: Any, limit: int = 2**64) -> int:
    if type(value) is not int or not 0 <= value < limit:
        raise ValueError(f"{str(value)[:40]!r} is no number of this kind")
    return value


def _argument(value: Any, shape: Any, kind: Any) -> Argument:
    if isinstance(kind, str) and kind.startswith("Tensor("):
        _, storage, _, elements, size, device = value
        nbytes = _to_int(elements, _MAX_SIZE) * _to_int(size, 1025)
        dimensions = tuple(_to_int(n, _MAX_SIZE) for n in _parse_list(shape))
        dtype = kind.removeprefix("Tensor(").removesuffix(")")
        return TensorValue(Tensor((str(device), _to_int(storage)), nbytes), dimensions, sized_dtype(dtype))
    if isinstance(kind, str) and kind.startswith("GenericList[") and "Tensor(" in kind:
        kinds = parts(kind.removeprefix("GenericList[").removesuffix("]"))
        return [_argument(*item) for item in zip(_parse_list(value), _parse_list(shape), kinds, strict=True)]
    return None if value == "<None>" else value


# ----------------------------------------------------------------------------------------------------------
# Costs of an execution graph's operators, by the same formulas as for PyTorch modules.

_OUTER_NAMES: Final = {
    "cudnn_convolution": "conv2d", "_convolution": "conv2d", "convolution_overrideable": "conv2d",
    "cudnn_batch_norm": "batch_norm", "native_batch_norm": "batch_norm",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
    "_softmax_backward_data": "softmax_grad", "_log_softmax_backward_data": "softmax_grad",
    "threshold_backward": "relu_grad", "tanh_backward": "tanh_grad", "sigmoid_backward": "sigmoid_grad",
    "gelu_backward": "gelu_grad", "native_batch_norm_backward": "batch_norm_grad",
    "cudnn_batch_norm_backward": "batch_norm_grad",
}  # fmt: skip
"""Operators inside others, and the outer ones whose formula applies to them."""

_NO_WORK: Final = frozenset({
    "as_strided", "empty", "empty_like", "empty_strided", "is_pinned", "is_same_size", "new_empty",
    "new_empty_strided", "record_stream", "resize", "resolve_conj", "resolve_neg", "result_type", "set_",
    "set", "_local_scalar_dense", "item",
})  # fmt: skip
"""Operators that only view tensors, allocate them, or read one number back."""

_FREE: Final = frozenset(("", *VIEWS, *WITHOUT_DATA))


class CostedOperator(NamedTuple):
    """An operator with a formula."""

    cost: Cost
    dtype: str | None
    attributes: dict[str, Any]


def known_cost(operator: Operator) -> CostedOperator | None:
    """Return the cost of an operator; None if it has no formula, or moves nothing."""
    name = aten.plain_name(operator.name)
    try:
        if name == "convolution_backward":
            return _convolution_backward(operator)
        facts = _op_facts(operator)
        if facts.kind in _FREE or name in _NO_WORK:
            return None
        dtype = math_dtype([value.dtype for value in tensors(operator.inputs) if value.dtype is not None])
        return CostedOperator(cost_of(facts), dtype, {**facts.attributes, **measured_shape(facts)})
    except _FORMULA_ERRORS:
        return None


def _op_facts(operator: Operator) -> OpFacts:
    """Return the facts for formulas; of an operator without one the kind is empty."""
    name = aten.plain_name(operator.name)
    positional = name in aten.WINDOWS or name in aten.CAUSAL  # their arguments have other positions
    attributes = aten.attributes_of(name if positional else _OUTER_NAMES.get(name, name), _node(operator))
    operands = aten.order_tensors(name, list(tensors(operator.inputs)))
    read, written = (tuple(map(_facts, side)) for side in (operands, tensors(operator.outputs)))
    return OpFacts(_kind(operator) or "", read, written, attributes)


_PRODUCTS: Final = ("mm", "addmm", "bmm", "baddbmm", "linear")
_CONVOLUTIONS: Final = tuple(name for name in aten.WINDOWS if "transpose" not in name)
_BY_FIRST: Final = ("_softmax", "_log_softmax", "native_layer_norm", "native_batch_norm", "cudnn_batch_norm",
    "_softmax_backward_data", "_log_softmax_backward_data", "native_batch_norm_backward",
    "cudnn_batch_norm_backward", *aten.CAUSAL)  # fmt: skip
"""Operators whose sizes follow from their first inputs."""
_FUSED: Final = {
    "_flash_attention_forward": (0, 8),
    "_efficient_attention_forward": (0, 9),
    "_flash_attention_backward": (1, 11),
    "_efficient_attention_backward": (1, 14),
}
"""Attention in one kernel, on (batch, length, heads, width): position of queries, and of the mask."""
_SIZED: Final = frozenset(
    f"aten::{name}"
    for name in (*_PRODUCTS, *_CONVOLUTIONS, *_BY_FIRST, *_FUSED, "index_select", "convolution_backward")
)
_IN_PLACE: Final = "copy", "fill", "zero"
"""Operators that write their first input without reading it."""
_BOOLEAN: Final = re.compile("(not_)?equal|(greater|less)(_or_equal)?|and|or|not|xor")
"""Kinds whose output has one byte per element."""


@cache
def is_sized(name: str) -> bool:
    """Whether the inputs of an operator, as a profiler notes them, determine its sizes or its bytes.

    Examples
    --------
    >>> is_sized("aten::addmm"), is_sized("aten::mul_"), is_sized("aten::view")
    (True, True, False)
    """
    return name in _SIZED or aten.plain_name(name) in _IN_PLACE or _streaming_kind(name) is not None


@cache
def _streaming_kind(name: str) -> str | None:
    """Return the kind of an operator that reads its inputs once, and whose output they determine."""
    kind = _kind(Operator(0, 0, name, "", 0, 0, [], []))
    alike = kind in ELEMENTWISE or kind in ("where", "trilu") or str(kind)[:7] == "reduce_"
    return kind if alike else None


def sizes_of(
    name: str, shapes: bytes, values: bytes, types: bytes = b"", strides: bytes = b""
) -> dict[str, Any]:
    """Return the sizes of an operator in a profiler's trace, or ``bytes_read``, ``bytes_written`` and
    ``columnwise``, and its data type as ``dtype``; empty if the notes do not determine them.

    Parameters
    ----------
    name : str
        A name for which `is_sized` holds.
    shapes, values, types, strides : bytes
        Its ``Input Dims``, ``Concrete Inputs``, ``Input type`` and ``Input Strides`` as JSON; older profilers
        note only the first.

    Examples
    --------
    >>> sizes_of("aten::addmm", b"[[7], [3, 5], [5, 7]]", b"", b'["float", "float", "float"]')
    {'m': 3, 'n': 7, 'k': 5, 'dtype': 'fp32'}
    >>> sizes_of("aten::mul", b"[[3, 5], [5]]", b"", b'["c10::Half", "c10::Half"]')
    {'bytes_read': 40, 'bytes_written': 30, 'dtype': 'fp16'}
    """
    listed, words, steps = (json.loads(text) if text else [] for text in (shapes, types, strides))
    dtypes = [sized_dtype(str(word)) for word in (words if isinstance(words, list) else [])]
    try:
        sizes = _sizes_of(name, listed, values) if name in _SIZED else _bytes_of(name, listed, dtypes)
        if name not in _SIZED and steps and _is_columnwise(listed, steps):
            sizes["columnwise"] = True
    except _FORMULA_ERRORS:
        return {}
    dtype = next((dtype for dtype in dtypes if dtype in FLOATING), None)
    return {**sizes, "dtype": dtype} if sizes and dtype else sizes


_MIN_STRIDE: Final = 32  # in elements: the threads of a warp share no access to neighbours this far apart


def _is_columnwise(shapes: Sequence[Any], strides: Sequence[Any]) -> bool:
    """Whether an operand is contiguous along another axis than the first one: columns instead of rows."""
    for shape, stride in zip(shapes[1:], strides[1:], strict=False):
        axes = [axis for axis in zip(shape, stride, strides[0], strict=False) if axis[0] > 1]
        differs = any(first == 1 < step for _, step, first in axes)
        if differs and any(step == 1 and first >= _MIN_STRIDE for _, step, first in axes):
            return True
    return False


def _bytes_of(name: str, shapes: Sequence[Any], dtypes: Sequence[str | None]) -> dict[str, int]:
    """Return the bytes that an operator reads and writes; raise `InputError` if a type is missing.

    A third tensor, of most operators, is that of `out=`, which is written.
    """
    kind = _streaming_kind(name) or ""
    n_inputs = 3 if kind == "where" else 2
    operands = [
        (tuple(_to_int(n, _MAX_SIZE) for n in shape), dtype_bits(dtype or "") // 8)
        for shape, dtype in [*zip(shapes, dtypes, strict=True)][:n_inputs]
        if shape
    ]
    nbytes = [math.prod(shape) * size for shape, size in operands]
    if aten.plain_name(name) in _IN_PLACE:
        return {"bytes_read": sum(nbytes[1:]), "bytes_written": nbytes[0]}
    size = 1 if _BOOLEAN.fullmatch(kind) else max(size for _, size in operands)
    output_bytes = math.prod(np.broadcast_shapes(*(shape for shape, _ in operands))) * size
    return {"bytes_read": sum(nbytes), "bytes_written": 0 if kind[:7] == "reduce_" else output_bytes}


def _sizes_of(name: str, shapes: Sequence[Any], values: bytes) -> dict[str, Any]:
    texts = json.loads(values) if values else []
    inputs = [_read_input(shape, *texts[i : i + 1]) for i, shape in enumerate(shapes)]
    operator = Operator(0, 0, name, "", 0, 0, inputs, inputs[:1])  # for now the output is as the first input
    plain = aten.plain_name(name)
    dims = [tensor.shape for tensor in tensors(inputs)]
    if plain == "convolution_backward":
        return _gradients_sizes(inputs)
    if plain in _FUSED:
        return _attention_sizes(inputs, *_FUSED[plain])
    facts = _op_facts(operator)
    shape = facts.input(0).shape
    if plain in _PRODUCTS:
        shape = (*shape[:-1], dims[1][0] if plain == "linear" else facts.input(1).shape[-1])
    elif plain == "index_select":
        axis = facts.attributes["axis"]
        shape = (*shape[:axis], *dims[1], *shape[axis:][1:])
    elif plain in _CONVOLUTIONS:
        shape = _convolve(dims[0], dims[1], facts.attributes)
    return measured_shape(facts._replace(outputs=(TensorFacts(shape, 0),)))


def _read_input(shape: Any, value: str = "") -> Argument:
    """Return an input: a tensor by its shape, a number or a list of numbers by its value as text."""
    if shape and not isinstance(shape[0], list):
        return TensorValue(Tensor(("", 0), 0), tuple(_to_int(n, _MAX_SIZE) for n in shape), None)
    try:
        return json.loads(value.lower()) if value else None
    except ValueError:  # a word, or "0."
        return value


def _attention_sizes(inputs: Sequence[Argument], first: int, mask: int) -> dict[str, Any]:
    """Return the sizes of attention in one kernel; its operands hold the heads of a token together."""
    shapes = [tensor.shape for tensor in inputs[first : first + 2]]
    operands = [TensorFacts((b, heads, s, d), 0) for b, s, heads, d in shapes]
    causal = inputs[mask]
    sizes = measured_shape(OpFacts("attention", tuple(operands), (), {"is_causal": causal}))
    return sizes if causal is not None else {key: sizes[key] for key in sizes if key != "causal"}


def _convolve(x: tuple[int, ...], weight: tuple[int, ...], windows: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the output shape of a convolution."""
    axes = len(x) - 2
    strides, pads, dilations = (
        windows[key] * (axes // len(windows[key]) or 1) for key in ("strides", "pads", "dilations")
    )
    return (x[0], weight[0], *convolution_sizes(x[2:], weight[2:], strides, pads, dilations))


def _gradients_sizes(inputs: Sequence[Argument]) -> dict[str, Any]:
    """Return the sizes of a convolution from its backward's inputs; what is missing is inferred."""
    axes, listed = len(inputs[2].shape) - 2, [x if isinstance(x, list) else [] for x in inputs[4:7]]
    stride, padding, dilation = listed
    pads = padding * (2 * axes // len(padding)) if padding else []
    facts = tuple(map(_facts, inputs[:3]))
    return measured_shape(
        OpFacts("conv_grad", facts, (), {"strides": stride, "pads": pads, "dilations": dilation})
    )


def bytes_of(operator: Operator) -> Cost:
    """Return the bytes read and written by an operator without a formula."""
    return Cost(0, *(sum(tensor.nbytes for tensor in side) for side in (operator.reads, operator.writes)))


def _kind(operator: Operator) -> str | None:
    name = aten.plain_name(operator.name)
    if not operator.name.startswith("aten::"):
        return None
    try:
        return aten.kind_of(_OUTER_NAMES.get(name, name), _node(operator))
    except (AttributeError, LookupError, TypeError):
        return None


def _convolution_backward(operator: Operator) -> CostedOperator | None:
    """Each gradient is as much work as the forward: (gradient, input, weight, ..., output mask)."""
    inputs = operator.inputs
    if len(inputs) < 11 or not all(isinstance(value, TensorValue) for value in inputs[:3]) or inputs[7]:
        return None
    gradient, weight, mask = inputs[0], inputs[2], inputs[10]
    if not isinstance(mask, list):
        return None
    macs = _facts(gradient).elements * _facts(weight).elements // max(1, weight.shape[0])
    flops = 2 * macs * sum(map(bool, mask[:2])) + _facts(gradient).elements * any(mask[2:3])
    cost = bytes_of(operator)._replace(flops=flops)
    return CostedOperator(cost, gradient.dtype, _gradients_sizes(inputs))


def _facts(value: TensorValue) -> TensorFacts:
    return TensorFacts(value.shape, value.tensor.nbytes)


def _node(operator: Operator) -> Any:
    """Return an operator in the form that `torch_export` reads: a node of torch.fx."""
    output = next(tensors(operator.outputs), None)
    args = tuple(SimpleNamespace(meta=_meta(x)) if isinstance(x, TensorValue) else x for x in operator.inputs)
    return SimpleNamespace(args=args, kwargs={}, meta={} if output is None else _meta(output))


def _meta(value: TensorValue) -> dict[str, Any]:
    return {"val": SimpleNamespace(shape=value.shape, dtype=value.dtype, is_contiguous=lambda: True)}
