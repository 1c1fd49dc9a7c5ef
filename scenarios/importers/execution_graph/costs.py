"""What an operator of an execution graph costs, by the formulas that PyTorch modules are costed by."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from scenarios.importers.execution_graph.operators import Argument, Operator, TensorValue, tensors
from scenarios.importers.torch.torch_ops import attributes_of, kind_of, operator_name, ordered
from scenarios.ops.op_costs import VIEWS, WITHOUT_DATA, Cost, OpFacts, TensorFacts, cost_of
from scenarios.ops.op_formulas import measured_shape
from sim.words.errors import InputError

__all__ = ["Known", "bytes_of", "is_view", "known_cost", "plain_name"]

_SAME: Final = {
    "cudnn_convolution": "conv2d", "_convolution": "conv2d", "convolution_overrideable": "conv2d",
    "cudnn_batch_norm": "batch_norm", "native_batch_norm": "batch_norm",
    "_scaled_dot_product_flash_attention": "scaled_dot_product_attention",
    "_scaled_dot_product_efficient_attention": "scaled_dot_product_attention",
    "_softmax_backward_data": "softmax_grad", "_log_softmax_backward_data": "softmax_grad",
    "threshold_backward": "relu_grad", "tanh_backward": "tanh_grad", "sigmoid_backward": "sigmoid_grad",
    "gelu_backward": "gelu_grad", "native_batch_norm_backward": "batch_norm_grad",
    "cudnn_batch_norm_backward": "batch_norm_grad",
}  # fmt: skip
"""Operators inside others, and the ones whose formula is theirs."""

_NO_WORK: Final = frozenset({
    "as_strided", "empty", "empty_like", "empty_strided", "is_pinned", "is_same_size", "new_empty",
    "new_empty_strided", "record_stream", "resize", "resolve_conj", "resolve_neg", "result_type", "set_",
    "set", "_local_scalar_dense", "item",
})  # fmt: skip
"""Operators that only look at tensors, give them memory, or read one number back."""

_FREE: Final = frozenset(VIEWS) | frozenset(WITHOUT_DATA.split())


class Known(NamedTuple):
    """An operator with a formula."""

    kind: str
    cost: Cost
    dtype: str | None
    attributes: dict[str, Any]


def plain_name(operator: Operator) -> str:
    """Return the name of an operator without its namespace and the mark of in-place."""
    return operator_name(SimpleNamespace(_schema=SimpleNamespace(name=operator.name)))


def is_view(operator: Operator) -> bool:
    """Whether an operator only looks at its input in another way, or has no work."""
    return plain_name(operator) in _NO_WORK or _kind(operator) in _FREE


def known_cost(operator: Operator) -> Known | None:
    """Return what an operator costs; None: it has no formula, or moves nothing."""
    name = plain_name(operator)
    if name == "convolution_backward":
        return _convolution_backward(operator)
    kind = _kind(operator)
    if kind is None or is_view(operator):
        return None
    given, made = list(tensors(operator.inputs)), list(tensors(operator.outputs))
    try:
        attributes = attributes_of(_SAME.get(name, name), _node(operator))
        facts = OpFacts(kind, tuple(map(_facts, ordered(name, given))), tuple(map(_facts, made)), attributes)
        return Known(kind, cost_of(facts), _dtype(given), {**attributes, **measured_shape(facts)})
    except (InputError, AttributeError, LookupError, TypeError, ValueError):  # other arguments than expected
        return None


def bytes_of(operator: Operator) -> Cost:
    """Return the bytes that an operator without a formula reads and writes."""
    read = sum(one.nbytes for one in operator.reads)
    return Cost(0, read, sum(one.nbytes for one in operator.writes))


def _kind(operator: Operator) -> str | None:
    name = plain_name(operator)
    if not operator.name.startswith("aten::"):
        return None
    try:
        return kind_of(_SAME.get(name, name), _node(operator))
    except (AttributeError, LookupError, TypeError):
        return None


def _convolution_backward(operator: Operator) -> Known | None:
    """Each gradient is as much work as the forward: (gradient, input, weight, ..., output mask)."""
    given = operator.inputs
    if len(given) < 11 or not all(isinstance(one, TensorValue) for one in given[:3]) or given[7]:
        return None
    gradient, weight, wanted = given[0], given[2], given[10]
    if not isinstance(wanted, list):
        return None
    macs = _facts(gradient).elements * _facts(weight).elements // max(1, weight.shape[0])
    flops = 2 * macs * sum(map(bool, wanted[:2])) + _facts(gradient).elements * any(wanted[2:3])
    moved = bytes_of(operator)
    return Known("conv_grad", Cost(flops, moved.bytes_read, moved.bytes_written), gradient.dtype, {})


def _facts(value: TensorValue) -> TensorFacts:
    return TensorFacts(value.shape, value.tensor.nbytes)


def _dtype(values: list[TensorValue]) -> str | None:
    named = [value.dtype for value in values if value.dtype is not None]
    return next((name for name in named if name.startswith(("fp", "bf"))), next(iter(named), None))


def _node(operator: Operator) -> Any:
    """Return an operator as `torch_ops` looks at one: a node of torch.fx."""
    made = next(tensors(operator.outputs), None)
    args = tuple(_as_argument(one) for one in operator.inputs)
    return SimpleNamespace(args=args, kwargs={}, meta={} if made is None else _meta(made))


def _as_argument(one: Argument) -> Any:
    return SimpleNamespace(meta=_meta(one)) if isinstance(one, TensorValue) else one


def _meta(value: TensorValue) -> dict[str, Any]:
    return {"val": SimpleNamespace(shape=value.shape, dtype=value.dtype, is_contiguous=lambda: True)}
