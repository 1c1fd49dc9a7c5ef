"""The sizes of an op by which cost models know it, as attributes under the same names from every source.

::

    matmul          (2, 3, 5) x (5, 7)               m 6, n 7, k 5           one right matrix: all rows
                    (2, 3, 5) x (2, 5, 7)   batch 2, m 3, n 7, k 5           a product for each right matrix
    attention       batch, seq_len, kv_len, heads, kv_heads, head_dim, causal, window (where there is one)
    conv, pools     batch, in_channels, out_channels, group, and of each axis of the image input_shape,
                    kernel_shape, strides, dilations, pads (all begins, then all ends)
    rows            rows, columns: softmax, norms, losses, top_k, cum_sum work along columns; a reduction
                    makes each of its rows of so many; gather copies rows

A right matrix stored (n, k) has ``transposed`` (of a square one only where its operator says so). Gradients
have the sizes of their forward: those of products are products and have their own. What bytes tell, as of
elementwise ops and copies, has none. Names and order of axes are ONNX's
(https://onnx.ai/onnx/operators/onnx__Conv.html), whatever the framework stores last.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from scenarios.ops.op_formulas import OpFacts, einsum_sizes, inner_length

Sizes = dict[str, Any]
Shape = tuple[int, ...]


def measured_shape(op: OpFacts) -> Sizes:
    """Return the sizes of an op; none where its kind has none, or its operands do not tell them.

    Besides shapes it looks at the attributes ``channels_last``, ``axis``, ``num_groups``, ``transposed`` (or
    ``transB``), ``strides``, ``pads``, ``dilations``, ``is_causal``, ``kv_num_heads``, ``window``.

    Examples
    --------
    >>> from scenarios.ops.op_formulas import TensorFacts
    >>> x, w = TensorFacts((2, 3, 5), 60), TensorFacts((5, 7), 70)
    >>> measured_shape(OpFacts("matmul", (x, w), (TensorFacts((2, 3, 7), 84),)))
    {'m': 6, 'n': 7, 'k': 5}
    """
    rule = _RULES.get(op.kind)
    if rule is None:
        return {}
    try:
        return rule(op)
    except (IndexError, ZeroDivisionError):  # fewer axes than it takes, or nothing in one
        return {}


# -- products -------------------------------------------------------------------------------------


def _product(op: OpFacts) -> Sizes:
    right, out = op.input(1).shape, op.output
    n = out.shape[-1] if len(right) > 1 and out.shape else 1
    batch, k = math.prod(right[:-2]), inner_length(op)
    found = {"m": out.elements // max(1, n * batch), "n": n, "k": k}
    if len(right) != 2:
        found["batch"] = batch
    said = op.attributes.get("transposed", op.attributes.get("transB"))
    if len(right) > 1 and (right[-2:] != (k, n) or said):
        found["transposed"] = True
    return found


def _einsum(op: OpFacts) -> Sizes:
    labels, size = einsum_sizes(op)
    if len(labels) != 2:
        return {}
    left, right = labels
    _, arrow, result = str(op.attributes["equation"]).replace(" ", "").partition("->")
    kept = {*result} | {label for label in size if label[0] == "."} if arrow else left ^ right

    def of(those: set[str]) -> int:
        return math.prod(size[label] for label in those)

    both = left & right
    sizes = {"m": of((left - right) & kept), "n": of((right - left) & kept), "k": of(both - kept)}
    return {**sizes, "batch": of(both & kept)}


def _attention(op: OpFacts) -> Sizes:
    q, k = op.input(0).shape, op.input(1).shape
    split, given = len(q) == 4, op.attributes
    if not split and "q_num_heads" not in given:
        return {}
    heads = q[1] if split else int(given["q_num_heads"])
    past = op.input(4).shape[-2] if op.kind == "attention" and op.has_input(4) else 0
    found = {
        "batch": q[0],
        "seq_len": q[-2],
        "kv_len": k[-2] + past,
        "heads": heads,
        "kv_heads": k[1] if split else int(given.get("kv_num_heads", heads)),
        "head_dim": q[-1] if split else q[-1] // heads,
        "causal": bool(given.get("is_causal")),
    }
    return found | ({"window": given["window"]} if given.get("window") else {})


# -- windows over an image --------------------------------------------------------------------------


def _conv(op: OpFacts) -> Sizes:
    x, w, y = _OPERANDS[op.kind](op)
    last = _channels_last(op)
    if op.kind == "depthwise_conv":  # window x channels x multiplier
        window, group = w[:-2], w[-2]
    elif op.kind == "conv_transpose":
        window, group = w[2:], _channels(y, last) // w[1]
    elif last:
        window, group = w[:-2], _channels(x, last) // w[-2]
    else:
        window, group = w[2:], _channels(x, last) // w[1]
    return _windows(op, x, y, window, group)


def _pool(op: OpFacts) -> Sizes:
    gradient = op.kind.endswith("_grad")
    x = op.output.shape if gradient else op.input(0).shape
    y = op.input(len(op.inputs) - 1).shape if gradient else op.output.shape
    window = op.attributes.get("kernel_shape")
    found = None if window is None else tuple(map(int, window))
    return _windows(op, x, y, found, _channels(x, _channels_last(op)))


def _windows(op: OpFacts, x: Shape, y: Shape, window: Shape | None, group: int) -> Sizes:
    """Return the sizes of windows that make `y` of `x`; side by side, where it is not said how large."""
    last = _channels_last(op)
    image, made = (shape[1:-1] if last else shape[2:] for shape in (x, y))
    wide, narrow = (made, image) if op.kind == "conv_transpose" else (image, made)
    strides, dilations = (
        _each(op, "strides", len(image)),
        _each(op, "dilations", len(image)) or [1] * len(image),
    )
    if window is None:
        strides = [a // b for a, b in zip(wide, narrow, strict=True)]
        window = tuple(a - (b - 1) * s for a, b, s in zip(wide, narrow, strides, strict=True))
    if not len(wide) == len(narrow) == len(window) == len(dilations):
        return {}
    spans = [1 + d * (n - 1) for n, d in zip(window, dilations, strict=True)]
    if len(strides) != len(image):  # the least that make no more than there is
        strides = [max(1, math.ceil((a - n + 1) / b)) for a, b, n in zip(wide, narrow, spans, strict=True)]
    pads = [int(n) for n in op.attributes.get("pads") or ()]
    if len(pads) != 2 * len(image):  # as many as make all that there is
        sizes = zip(wide, narrow, spans, strides, strict=True)
        both = [max(0, (b - 1) * s + n - a) for a, b, n, s in sizes]
        pads = [n // 2 for n in both] + [n - n // 2 for n in both]
    return {
        "batch": x[0],
        "in_channels": _channels(x, last),
        "out_channels": _channels(y, last),
        "input_shape": [*image],
        "kernel_shape": [*window],
        "strides": strides,
        "pads": pads,
        "dilations": dilations,
        "group": group,
    }


def _each(op: OpFacts, name: str, axes: int) -> list[int]:
    """Return what an attribute says of each axis; nothing where it is not there."""
    given = [int(n) for n in op.attributes.get(name) or ()]
    return given * axes if len(given) == 1 else given


def _channels_last(op: OpFacts) -> bool:
    return bool(op.attributes.get("channels_last"))


def _channels(shape: Shape, last: bool) -> int:
    return shape[-1] if last else shape[1]


_OPERANDS: Final[Mapping[str, Callable[[OpFacts], tuple[Shape, Shape, Shape]]]] = {
    **dict.fromkeys(
        ("conv", "depthwise_conv", "conv_transpose"),
        lambda op: (op.input(0).shape, op.input(1).shape, op.output.shape),
    ),
    "conv_input_grad": lambda op: (op.output.shape, op.input(1).shape, op.input(2).shape),
    "conv_weight_grad": lambda op: (op.input(0).shape, op.output.shape, op.input(2).shape),
    "conv_grad": lambda op: (op.input(1).shape, op.input(2).shape, op.input(0).shape),
}
"""Kind -> input, filter and output of the convolution."""

# -- rows -----------------------------------------------------------------------------------------


def _rows(elements: int, columns: int) -> Sizes:
    return {"rows": elements // columns, "columns": columns} if elements % columns == 0 and elements else {}


def _along(default: int) -> Callable[[OpFacts], Sizes]:
    """Rows along one axis of the first input."""
    return lambda op: _rows(op.input(0).elements, op.input(0).shape[_axis(op, default)])


def _axis(op: OpFacts, default: int) -> int:
    axis = op.attributes.get("axis", default)
    return axis if isinstance(axis, int) else default


def _behind(op: OpFacts) -> Sizes:
    """All axes from one on are a row."""
    return _rows(op.input(0).elements, math.prod(op.input(0).shape[_axis(op, -1) :]))


def _by_channel(op: OpFacts) -> Sizes:
    x = op.input(0)
    return _rows(x.elements, x.shape[-1] if _channels_last(op) or len(x.shape) == 1 else x.shape[1])


def _by_group(op: OpFacts) -> Sizes:
    x = op.input(0)
    each = int(op.attributes.get("num_groups", _channels(x.shape, _channels_last(op))))
    return _rows(x.elements, x.elements // (x.shape[0] * each))


def _reduction(op: OpFacts) -> Sizes:
    return _rows(op.input(0).elements, op.input(0).elements // op.output.elements)


def _gather(op: OpFacts) -> Sizes:
    table = op.input(0).shape
    return _rows(op.output.elements, math.prod(table[_axis(op, 0) % len(table) + 1 :]))


def _kinds(rule: Callable[[OpFacts], Sizes], kinds: str) -> dict[str, Callable[[OpFacts], Sizes]]:
    return dict.fromkeys(kinds.split(), rule)


_RULES: Final[Mapping[str, Callable[[OpFacts], Sizes]]] = {
    **_kinds(_product, "matmul gemm"),
    "einsum": _einsum,
    **_kinds(_attention, "attention attention_grad"),
    **_kinds(_conv, " ".join(_OPERANDS)),
    **_kinds(_pool, "max_pool average_pool global_max_pool global_average_pool max_pool_grad"),
    "average_pool_grad": _pool,
    **_kinds(_along(-1), "softmax log_softmax softmax_grad sparse_softmax_cross_entropy top_k cum_sum"),
    "softmax_cross_entropy": _along(1),
    **_kinds(_behind, "layer_norm rms_norm layer_norm_grad"),
    **_kinds(_by_channel, "batch_norm batch_norm_grad mean_variance_norm"),
    **_kinds(_by_group, "instance_norm group_norm"),
    **_kinds(_reduction, "reduce_sum reduce_mean reduce_max reduce_min reduce_prod reduce_all reduce_any"),
    **_kinds(_reduction, "reduce_l1 reduce_l2 reduce_sum_square reduce_log_sum reduce_log_sum_exp"),
    **_kinds(_reduction, "argmax argmin"),
    "gather": _gather,
    "bias_add_grad": lambda op: _rows(op.input(0).elements, op.output.elements),
    "embedding_grad": lambda op: _rows(op.input(1).elements, op.input(1).shape[-1]),
}
