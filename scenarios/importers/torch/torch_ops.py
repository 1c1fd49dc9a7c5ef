"""Operators of PyTorch's ATen, in the words of the cost table: kind, inputs in its order, attributes.

Most are called there what they are called here (``aten.relu`` is ``relu``); the tables hold the others.
What only changes strides, such as ``permute`` or ``expand``, is a view in PyTorch and moves nothing.
"""

from __future__ import annotations

import math
from typing import Any

from scenarios.ops.op_costs import COSTS

__all__ = ["LISTS", "attributes_of", "kind_of", "operator_name", "ordered", "plain_arguments"]

LISTS = frozenset({"split", "split_with_sizes", "chunk", "unbind", "tensor_split"})
"""Operators whose outputs are views of their input, one after another."""

_VIEWS = """view reshape _unsafe_view flatten unflatten squeeze unsqueeze permute transpose t mT movedim
    swapaxes expand expand_as view_as slice select narrow detach alias identity lift_fresh_copy lift_fresh
    diagonal unfold real"""

_RENAMED = {
    "mm": "matmul", "bmm": "matmul", "addmm": "gemm", "baddbmm": "gemm",
    "conv1d": "conv", "conv2d": "conv", "conv3d": "conv", "convolution": "conv",
    "conv_transpose1d": "conv_transpose", "conv_transpose2d": "conv_transpose",
    "conv_transpose3d": "conv_transpose",
    "scaled_dot_product_attention": "attention",
    "max_pool1d": "max_pool", "max_pool2d": "max_pool", "max_pool3d": "max_pool",
    "avg_pool1d": "average_pool", "avg_pool2d": "average_pool", "avg_pool3d": "average_pool",
    "adaptive_avg_pool1d": "average_pool", "adaptive_avg_pool2d": "average_pool",
    "adaptive_max_pool2d": "max_pool",
    "embedding": "gather", "index": "gather", "index_select": "gather", "cat": "concat", "stack": "concat",
    "clone": "copy", "repeat": "tile", "roll": "copy", "flip": "reverse", "constant_pad_nd": "pad",
    "to": "cast", "_to_copy": "cast", "type_as": "cast", "float": "cast",
    "sum": "reduce_sum", "mean": "reduce_mean", "amax": "reduce_max", "amin": "reduce_min",
    "prod": "reduce_prod", "all": "reduce_all", "any": "reduce_any",
    "cumsum": "cum_sum", "clamp": "clip", "clamp_min": "relu", "clamp_max": "relu", "hardtanh": "clip",
    "hardswish": "hard_swish", "hardsigmoid": "hard_sigmoid", "_softmax": "softmax",
    "_log_softmax": "log_softmax", "native_layer_norm": "layer_norm", "rsub": "sub", "remainder": "mod",
    "eq": "equal", "ne": "not_equal", "gt": "greater", "lt": "less", "ge": "greater_or_equal",
    "le": "less_or_equal", "logical_and": "and", "logical_or": "or", "logical_not": "not",
    "logical_xor": "xor", "masked_fill": "where", "tril": "trilu", "triu": "trilu", "sgn": "sign",
    "upsample_nearest2d": "resize", "upsample_bilinear2d": "resize", "upsample_bicubic2d": "resize",
    "full": "fill", "zeros": "fill", "ones": "fill", "empty": "fill", "full_like": "fill",
    "zeros_like": "fill", "ones_like": "fill", "scalar_tensor": "fill", "arange": "fill",
    "new_zeros": "fill", "new_ones": "fill",
    "new_full": "fill", "cross_entropy_loss": "sparse_softmax_cross_entropy",
}  # fmt: skip

_RESIZE = {"nearest2d": "nearest", "bilinear2d": "linear", "bicubic2d": "cubic"}


def operator_name(target: Any) -> str:
    """Return the plain name of what a node calls, without namespace, overload and the mark of in-place.

    Examples
    --------
    >>> import types
    >>> operator_name(types.SimpleNamespace(_schema=types.SimpleNamespace(name="aten::relu_")))
    'relu'
    """
    schema = getattr(target, "_schema", None)
    name = str(schema.name) if schema is not None else str(getattr(target, "__name__", target))
    namespace, colons, plain = name.partition("::")
    if not colons or namespace != "aten":
        return name
    return plain if plain.startswith("_") or not plain.endswith("_") else plain[:-1]


def kind_of(name: str, node: Any) -> str | None:
    """Return the kind of op of an operator, or None when the cost table has none for it.

    Parameters
    ----------
    name : str
        As `operator_name` gives it.
    node : torch.fx.Node
        Arguments, and tensors in its ``meta``, decide what a name leaves open.
    """
    if name in _VIEWS.split():
        return "identity"
    source = node.args[0].meta.get("val") if node.args and hasattr(node.args[0], "meta") else None
    if name == "contiguous":
        return "identity" if source is not None and source.is_contiguous() else "copy"
    if name == "dropout":  # in training a mask is drawn and multiplied with
        return "mul" if node.args[2] else "identity"
    if name == "linear":
        return "gemm" if len(node.args) > 2 and node.args[2] is not None else "matmul"
    kind = _RENAMED.get(name, name)
    if kind == "cast" and source is not None and source.dtype == node.meta["val"].dtype:
        return "identity"
    return kind if kind in COSTS else None


def ordered(name: str, tensors: list[Any]) -> list[Any]:
    """Return the tensors that an operator reads in the order that its formula expects."""
    if name in ("addmm", "baddbmm"):  # (bias, a, b)
        return [*tensors[1:], tensors[0]]
    return tensors


def plain_arguments(argument: Any) -> Any:
    """Return arguments as JSON has them, without the tensors: what tells ``x * 2`` from ``x * 3``.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> x = SimpleNamespace(meta={})
    >>> plain_arguments((x, 2, [x, None], ("dim", 1)))
    ['tensor', 2, ['tensor', None], ['dim', 1]]
    """
    if isinstance(argument, list | tuple):
        return [plain_arguments(item) for item in argument]
    if hasattr(argument, "meta"):
        return "tensor"
    plain = argument is None or isinstance(argument, bool | int | str)
    return argument if plain or (isinstance(argument, float) and math.isfinite(argument)) else str(argument)


def attributes_of(name: str, node: Any) -> dict[str, Any]:
    """Return what a formula has to know besides the shapes."""
    args, given = node.args, node.kwargs
    if name.startswith(("max_pool", "avg_pool")):
        window = args[1] if isinstance(args[1], list | tuple) else [args[1]]
        return {"kernel_shape": [int(n) for n in window]}
    if name == "scaled_dot_product_attention":
        return {"is_causal": bool(args[5] if len(args) > 5 else given.get("is_causal", False))}
    if name == "batch_norm":
        return {"training_mode": True} if args[5] else {}
    if name == "einsum":
        return {"equation": str(args[0])}
    if name.startswith("upsample_"):
        return {"mode": _RESIZE[name.removeprefix("upsample_")]}
    return {}
