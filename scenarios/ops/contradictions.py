"""Ops whose sizes say something else than their flop and bytes, told in one line.

::

    a: {kind: matmul, flops: 8GFLOP, attributes: {m: 1000, n: 1000, k: 1000}}

    op 'a' (matmul): m, n and k say 2 GFLOP, its flops are 8 GFLOP

A cost model that knows shapes goes by sizes, a roofline by flop and bytes. Within a factor of two they may
differ: so much are a bias, a result in a wider type, scores that a mask hides. What else is counted in
several ways, as what a backward reads again, is a least and a most here. Ops that have a duration are not
looked at, nor are bytes of an op without a data type.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from devices.describe.field_types import BITS, dtype_name
from sim.base.arrays import UNSET
from sim.base.units import format_bytes, format_flops
from sim.graph.graph import Graph

_FACTOR: Final = 2
_WIDEST: Final = 4
"""Bytes of an element of a result, at most, where less is computed in fewer."""

Sizes = Mapping[str, Any]
Range = tuple[int, int]


class SizeRule(NamedTuple):
    """What the sizes of some kinds of op say.

    Attributes
    ----------
    needs : tuple of str
        The sizes that have to be there; lists have one number for each axis.
    flops : callable or None
        The least and the most flop.
    elements : callable
        The least and the most elements that are read and written.
    """

    needs: tuple[str, ...]
    flops: Callable[[Sizes], Range] | None
    elements: Callable[[Sizes], Range]


def warn_of_contradictions(graph: Graph) -> None:
    """Warn, once, of ops whose sizes contradict their flop or bytes.

    Warns
    -----
    UserWarning
        About the first of them, with the number of others.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", kind="matmul", flops=8 * 10**9, attributes={"m": 1000, "n": 1000, "k": 1000})
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_of_contradictions(b.build())
    >>> print(caught[0].message)
    op 'a' (matmul): m, n and k say 2 GFLOP, its flops are 8 GFLOP; it contradicts itself more than ...
    """
    rules = [_RULES.get(kind) for kind in graph.kinds]
    if not any(rules):
        return
    each = [BITS.get(dtype_name(dtype), 0) / 8 for dtype in graph.dtypes]
    timed = graph.duration_ns != UNSET
    for by_kind in graph.duration_by_kind.values():
        timed = timed | (by_kind != UNSET)
    columns = graph.kind_code, graph.dtype_code, graph.flops, graph.bytes_read + graph.bytes_written, timed
    kinds, dtypes, flops, nbytes, has_time = (column.tolist() for column in columns)
    first, found = "", 0
    for op, sizes in graph.attributes.items():
        rule = rules[kinds[op]]
        if rule is None or has_time[op] or not all(_is_size(sizes.get(name)) for name in rule.needs):
            continue
        said = ""
        try:
            if flops[op] and rule.flops is not None:
                low, high = rule.flops(sizes)
                said = _said(flops[op], low, high, "its flops are", format_flops)
            if not said and nbytes[op] and dtypes[op] != UNSET and (size := each[dtypes[op]]):
                low, high = rule.elements(sizes)
                said = _said(nbytes[op], low * size, high * max(size, _WIDEST), "its bytes are", format_bytes)
        except (TypeError, IndexError, ZeroDivisionError):  # other attributes of these names
            continue
        if said:
            found += 1
            *names, last = rule.needs
            kind = graph.kinds[kinds[op]]
            first = first or f"op {graph.op_names[op]!r} ({kind}): {', '.join(names)} and {last} say {said}"
    if found:
        count = "it contradicts itself" if found == 1 else f"{found} ops contradict themselves"
        warnings.warn(
            f"{first}; {count} more than twofold, and cost models that know shapes go by sizes, others by "
            "flops and bytes",
            stacklevel=2,
        )


def _said(has: int, low: float, high: float, what: str, text: Callable[..., str]) -> str:
    """Return what sizes say and what an op has, if that is out of their range; else nothing."""
    if low <= _FACTOR * has and has <= _FACTOR * high:
        return ""
    return f"{text(round(high if has > high else low))}, {what} {text(has)}"


def _is_size(value: Any) -> bool:
    if type(value) is int:
        return value >= 0
    listed = isinstance(value, list | tuple) and len(value) > 0
    return listed and all(type(n) is int and n >= 0 for n in value)


# -- what sizes say -------------------------------------------------------------------------------


def _product(of: Sizes) -> Range:
    flops = 2 * of.get("batch", 1) * of["m"] * of["n"] * of["k"]
    return flops, flops


def _matrices(of: Sizes) -> Range:
    """All three for each product; or one left matrix with all the right ones."""
    batch, left = of.get("batch", 1), of["m"] * of["k"]
    others = batch * (of["k"] + of["m"]) * of["n"]
    return left + others, batch * left + others


def _scores(of: Sizes) -> int:
    keys = of.get("kv_len", of["seq_len"])
    seen = min(keys, of.get("window") or keys)
    return int(of["batch"] * of["heads"] * of["seq_len"] * seen)


def _attention(of: Sizes, least: int = 4, most: int = 4) -> Range:
    """Two products forward, five in the backward; at most of all scores, though a mask hides some."""
    low = least * _scores(of) * of["head_dim"] // (2 if of.get("causal") else 1)
    return low, (most * of["head_dim"] + 11) * _scores({**of, "window": 0})


def _heads(of: Sizes, most: int = 1) -> Range:
    keys = of.get("kv_len", of["seq_len"]) * of.get("kv_heads", of["heads"])
    rows = of["seq_len"] * of["heads"] + keys
    elements = 2 * of["batch"] * rows * of["head_dim"]
    return elements, most * elements


def _image(of: Sizes) -> list[int]:
    """Return the sizes of the axes of what a convolution makes."""
    axes = len(of["input_shape"])
    pads, strides, dilations = (
        of.get(name) or [usual] * count
        for name, usual, count in (("pads", 0, 2 * axes), ("strides", 1, axes), ("dilations", 1, axes))
    )
    return [
        (size + pads[i] + pads[axes + i] - dilations[i] * (of["kernel_shape"][i] - 1) - 1) // strides[i] + 1
        for i, size in enumerate(of["input_shape"])
    ]


def _conv(of: Sizes, times: int = 1) -> Range:
    each = math.prod(of["kernel_shape"]) * of["in_channels"] // (of.get("group") or 1)
    flops = 2 * of["batch"] * of["out_channels"] * math.prod(_image(of)) * each
    return flops, times * flops


def _images(of: Sizes, times: int = 1) -> Range:
    weights = math.prod(of["kernel_shape"]) * of["in_channels"] * of["out_channels"] // (of.get("group") or 1)
    read = of["batch"] * of["in_channels"] * math.prod(of["input_shape"])
    elements = read + weights + of["batch"] * of["out_channels"] * math.prod(_image(of))
    return elements, times * elements


def _rows(of: Sizes) -> Range:
    """A loss writes little, a backward may read and write four."""
    return of["rows"] * of["columns"], 4 * of["rows"] * of["columns"]


_OF_ATTENTION: Final = ("batch", "seq_len", "heads", "head_dim")
_OF_CONV: Final = ("batch", "in_channels", "out_channels", "input_shape", "kernel_shape")
_ON_ROWS: Final = """softmax log_softmax softmax_grad layer_norm rms_norm layer_norm_grad batch_norm
    batch_norm_grad instance_norm group_norm softmax_cross_entropy sparse_softmax_cross_entropy cum_sum"""

_RULES: Final = {
    **dict.fromkeys(("matmul", "gemm", "linear"), SizeRule(("m", "n", "k"), _product, _matrices)),
    "attention": SizeRule(_OF_ATTENTION, _attention, _heads),
    "attention_grad": SizeRule(_OF_ATTENTION, lambda of: _attention(of, 8, 10), lambda of: _heads(of, 3)),
    **dict.fromkeys(
        ("conv", "depthwise_conv", "conv_input_grad", "conv_weight_grad"), SizeRule(_OF_CONV, _conv, _images)
    ),
    "conv_grad": SizeRule(_OF_CONV, lambda of: _conv(of, 2), lambda of: _images(of, 2)),
    **dict.fromkeys(_ON_ROWS.split(), SizeRule(("rows", "columns"), None, _rows)),
}
