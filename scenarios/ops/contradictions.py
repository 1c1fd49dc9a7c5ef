"""Warn of ops whose sizes contradict their flop and bytes.

::

    a: {kind: matmul, flops: 8GFLOP, attributes: {m: 1000, n: 1000, k: 1000}}

    op 'a' (matmul): m, n and k say 2 GFLOP, its flops are 8 GFLOP

A cost model that knows shapes uses sizes, a roofline uses flop and bytes. They may differ by a factor of two,
to allow for a bias, a result in a wider type, or scores that a mask hides. Quantities with several ways of
counting, such as what a backward reads again, have a minimum and a maximum. Ops with a duration are
not checked, nor are the bytes of an op without a data type.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from devices.describe.field_types import BITS, dtype_name
from scenarios.ops.op_formulas import convolved
from sim.base.arrays import UNSET
from sim.base.units import format_bytes, format_flops
from sim.graph.graph import Graph

_FACTOR: Final = 2
_WIDEST: Final = 4
"""Most bytes per element of a result; its inputs may have fewer."""

Sizes = Mapping[str, Any]
Said = tuple[tuple[float, float], tuple[float, float]]
"""Minimum and maximum of the flop, and of the elements that are read and written."""


def warn_of_contradictions(graph: Graph) -> None:
    """Warn once of ops whose sizes contradict their flop or bytes.

    Warns
    -----
    UserWarning
        Names the first such op and the number of others.

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
        if rule is None or has_time[op] or not all(_is_size(sizes.get(name)) for name in rule[0].split()):
            continue
        try:
            (least, most), (low, high) = rule[1](sizes)
        except (TypeError, IndexError, ZeroDivisionError):  # attributes with other meanings of these names
            continue
        said = _said(flops[op], least, most, "its flops are", format_flops)
        if not said and dtypes[op] != UNSET and (size := each[dtypes[op]]):
            said = _said(nbytes[op], low * size, high * max(size, _WIDEST), "its bytes are", format_bytes)
        if said:
            found += 1
            *names, last = rule[0].split()
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
    """Return what the sizes imply and what the op has, if they contradict; "" if not, or if it has 0."""
    if not has or (low <= _FACTOR * has and has <= _FACTOR * high):
        return ""
    return f"{text(round(high if has > high else low))}, {what} {text(has)}"


def _is_size(value: Any) -> bool:
    if type(value) is int:
        return value >= 0
    listed = isinstance(value, list | tuple) and len(value) > 0
    return listed and all(type(n) is int and n >= 0 for n in value)


# -- flop and elements implied by sizes -----------------------------------------------------------


def _product(of: Sizes) -> Said:
    """Each product reads its own three matrices; or one left matrix is shared by all the right ones."""
    m, n, k, batch = of["m"], of["n"], of["k"], of.get("batch", 1)
    flops, others = 2 * batch * m * n * k, batch * (k + m) * n
    return (flops, flops), (m * k + others, batch * m * k + others)


def _attention(of: Sizes, least: int = 4, most: int = 4, times: int = 1) -> Said:
    """Two products forward, five backward; the maximum counts all scores even if a mask hides some."""
    keys, width = of.get("kv_len", of["seq_len"]), of["head_dim"]
    rows, seen = of["heads"] * of["seq_len"], min(keys, of.get("window") or keys)
    low = least * of["batch"] * rows * seen * width // (2 if of.get("causal") else 1)
    high = (most * width + 11) * of["batch"] * rows * keys
    elements = 2 * of["batch"] * (rows + keys * of.get("kv_heads", of["heads"])) * width
    return (low, high), (elements, times * elements)


def _conv(of: Sizes, times: int = 1) -> Said:
    image, kernel, axes = of["input_shape"], of["kernel_shape"], len(of["input_shape"])
    usual = {"strides": [1] * axes, "pads": [0] * 2 * axes, "dilations": [1] * axes}
    made = convolved(image, kernel, **{name: of.get(name) or given for name, given in usual.items()})
    weights = math.prod(kernel) * of["in_channels"] // (of.get("group") or 1)
    written = of["batch"] * of["out_channels"] * math.prod(made)
    elements = of["batch"] * of["in_channels"] * math.prod(image) + weights * of["out_channels"] + written
    flops = 2 * weights * written
    return (flops, times * flops), (elements, times * elements)


def _rows(of: Sizes) -> Said:
    """A loss may write little, a backward may read and write four tensors."""
    return (0, math.inf), (of["rows"] * of["columns"], 4 * of["rows"] * of["columns"])


_OF_ATTENTION: Final = "batch seq_len heads head_dim"
_OF_CONV: Final = "batch in_channels out_channels input_shape kernel_shape"
_ON_ROWS: Final = """softmax log_softmax softmax_grad layer_norm rms_norm layer_norm_grad batch_norm
    batch_norm_grad instance_norm group_norm softmax_cross_entropy sparse_softmax_cross_entropy cum_sum"""

_RULES: Final[Mapping[str, tuple[str, Callable[[Sizes], Said]]]] = {
    **dict.fromkeys(("matmul", "gemm", "linear"), ("m n k", _product)),
    "attention": (_OF_ATTENTION, _attention),
    "attention_grad": (_OF_ATTENTION, partial(_attention, least=8, most=10, times=3)),
    **dict.fromkeys(("conv", "depthwise_conv", "conv_input_grad", "conv_weight_grad"), (_OF_CONV, _conv)),
    "conv_grad": (_OF_CONV, partial(_conv, times=2)),
    **dict.fromkeys(_ON_ROWS.split(), ("rows columns", _rows)),
}
"""Op kind -> the sizes that it must have (lists have one number per axis), and what they imply."""
