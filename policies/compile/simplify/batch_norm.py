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

from typing import Any, NamedTuple

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


_WRITTEN_OUT = ("add", ("mul", "x", "scale"), ("sub", "beta", ("mul", "mean", "scale")))
_ROOT = ("rsqrt", ("add", "var", "eps"))
_SCALES = (("mul", _ROOT, "gamma"), _ROOT)
"""A kind with what it reads, in order; a word stands for a tensor, the same wherever it occurs."""


def _match(records: Records, last: Record) -> _Parts | None:
    """Return the parts of the batch norm that ends with op `last`; None: it is none."""
    found: dict[str, str] = {}
    ops: list[Record] = []

    def fits(tensor: str, pattern: Any) -> bool:
        if isinstance(pattern, str):
            return found.setdefault(pattern, tensor) == tensor
        op, (kind, *operands) = records.producer(tensor), pattern
        if op is None or op.kind != kind or len(op.inputs) != len(operands) or (op.after and op is not last):
            return False
        ops.append(op)
        return all(fits(given, part) for (given, _), part in zip(op.inputs, operands, strict=True))

    if any(distance for _, distance in last.inputs) or not fits(last.name, _WRITTEN_OUT):
        return None
    if not any(fits(found["scale"], scale) for scale in _SCALES):
        return None
    reads = [found[name] for name in ("x", "gamma", "beta", "mean", "var") if name in found]
    return _Parts(reads, [op.name for op in ops[1:]])
