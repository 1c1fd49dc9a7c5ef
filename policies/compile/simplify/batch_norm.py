"""Batch norm: one op where inference has written it out in sums and products.

::

    x ────────► mul ─────────► add ─► y                   x ─► batch_norm ─► y
    var ─► add ─► rsqrt ┤       │            becomes           ▲ ▲ ▲ ▲
          (eps)  (─► mul│gamma) │                          (gamma) beta mean var
    mean ─────────► mul ─► sub ─┘
    beta ──────────────────┘

As TensorFlow's remapper and ONNX exporters do for what Keras writes out. The op multiplies and adds once an
element (2 flop, scale and shift folded), reads x and the four vectors, and is what `training` knows how to
differentiate with the statistics of a batch.
"""

from __future__ import annotations

from typing import NamedTuple

from policies.compile.records import Record, Records, read, write
from policies.compile.training.backward import elements
from sim import Graph

__all__ = ["BatchNorm"]


class _Parts(NamedTuple):
    """What a written-out batch norm reads, and the ops that it is made of besides the last."""

    reads: list[str]
    ops: list[str]


class BatchNorm:
    """Merge each batch norm that is written out with running statistics into one op.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("bn")
    >>> for name in ("x", "beta", "mean", "var", "eps"):
    ...     _ = b.parameter(name, 4)
    >>> _ = b.op("v", kind="add", inputs=["var", "eps"], outputs=4)
    >>> _ = b.op("r", kind="rsqrt", inputs=["v"], outputs=4)
    >>> _ = b.op("p", kind="mul", inputs=["x", "r"], outputs=4)
    >>> _ = b.op("q", kind="mul", inputs=["mean", "r"], outputs=4)
    >>> _ = b.op("s", kind="sub", inputs=["beta", "q"], outputs=4)
    >>> _ = b.op("y", kind="add", inputs=["p", "s"], outputs=4)
    >>> read(BatchNorm().apply(b.build())).ops["y"].inputs
    [('x', 0), ('beta', 0), ('mean', 0), ('var', 0)]
    """

    def apply(self, graph: Graph) -> Graph:
        """Return the graph with fused batch norms."""
        records = read(graph)
        matched = {name: _match(records, record) for name, record in records.ops.items()}
        parts = {name: found for name, found in matched.items() if found is not None}
        if not parts:
            return graph
        for name, found in parts.items():
            op = records.ops[name]
            op.kind, op.inputs = "batch_norm", [(tensor, 0) for tensor in found.reads]
            op.flops = 2 * elements(op.outputs[0], op.dtype)
            op.bytes_read = sum(records.nbytes(tensor) for tensor in found.reads)
            op.bytes_written = op.outputs[0]
        records.remove_unused(name for found in parts.values() for name in found.ops)
        return write(records)


def _match(records: Records, last: Record) -> _Parts | None:
    """Return the parts of the batch norm that ends with op `last`; None: it is none."""

    def made(tensor: str, kind: str, n: int) -> Record | None:
        op = records.producer(tensor)
        return op if op is not None and op.kind == kind and len(op.inputs) == n and not op.after else None

    if last.kind != "add" or len(last.inputs) != 2 or any(distance for _, distance in last.inputs):
        return None
    (scaled, _), (shift, _) = last.inputs
    product, difference = made(scaled, "mul", 2), made(shift, "sub", 2)
    if product is None or difference is None:
        return None
    (x, _), (scale, _) = product.inputs
    beta, moved = (tensor for tensor, _ in difference.inputs)
    mean_scaled = made(moved, "mul", 2)
    if mean_scaled is None or mean_scaled.inputs[1][0] != scale:
        return None
    mean = mean_scaled.inputs[0][0]
    with_gamma = made(scale, "mul", 2)
    root = made(with_gamma.inputs[0][0] if with_gamma is not None else scale, "rsqrt", 1)
    variance = made(root.inputs[0][0], "add", 2) if root is not None else None
    if root is None or variance is None:
        return None
    gamma = [with_gamma.inputs[1][0]] if with_gamma is not None else []
    ops = [
        product,
        difference,
        mean_scaled,
        root,
        variance,
        *([with_gamma] if with_gamma is not None else []),
    ]
    return _Parts([x, *gamma, beta, mean, variance.inputs[0][0]], [op.name for op in ops])
