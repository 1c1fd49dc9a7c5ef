"""Constant folding: what depends on constants only is computed before the run.

::

    const ─► reshape ─► matmul        const' ─► matmul
    shape(x) ─► fill ─►               (the shape of x is known: so is all that follows from it)

    mul(c1, mul(x, c2))               mul(x, c1·c2)

Folded ops become ``const`` ops of no cost that keep name and size. As in
tensorflow/core/grappler/optimizers/constant_folding.cc, an op is not folded when its result would be
larger than 10 MiB.
"""

from __future__ import annotations

from typing import Final

from policies.compile.records import Record, Records, read, write
from sim import Graph

__all__ = ["ConstantFolding"]

MAX_CONSTANT_BYTES: Final = 10 << 20
SHAPE_KINDS: Final = frozenset({"shape", "rank", "size"})
"""Kinds that read only the shape of their input, which is known before the run."""


class ConstantFolding:
    """Fold constants, and products with constants.

    Parameters
    ----------
    shapes : bool
        Whether shapes are known before the run, so that ``shape``, ``rank`` and ``size`` are constants.
    """

    def __init__(self, shapes: bool = True) -> None:
        self.shapes = shapes

    def apply(self, graph: Graph) -> Graph:
        """Return the folded graph."""
        records = read(graph)
        for name in [records.ops[graph.op_names[op]].name for op in graph.topological_order.tolist()]:
            record = records.ops[name]
            if self._foldable(record, records):
                _make_constant(record, records)
        _fold_products(records)
        _drop_unread(records, graph)
        return write(records)

    def _foldable(self, record: Record, records: Records) -> bool:
        if record.stateful or record.kind == "const" or sum(record.outputs) > MAX_CONSTANT_BYTES:
            return False
        if self.shapes and record.kind in SHAPE_KINDS:
            return True
        if not record.inputs:
            return False
        producers = [records.producer(tensor) for tensor, _ in record.inputs]
        return all(p is not None and p.kind == "const" for p in producers)


def _make_constant(record: Record, records: Records) -> None:
    """Turn an op into a constant that comes after all that it came after before."""
    for tensor, distance in record.inputs:
        producer = records.producer(tensor)
        if producer is not None:
            record.after += producer.after if producer.kind == "const" else [(producer.name, distance)]
    record.after = list(dict.fromkeys(record.after))
    record.kind = "const"
    record.inputs = []
    record.flops = record.bytes_read = record.bytes_written = 0
    record.duration_ns, record.duration_by_kind = 0, {}


def _fold_products(records: Records) -> None:
    """Rewrite ``mul(c1, mul(x, c2))`` to ``mul(x, c)`` where nobody else reads the inner product."""
    readers = records.readers()
    for outer in list(records.ops.values()):
        if outer.kind != "mul" or len(outer.inputs) != 2:
            continue
        split = _constant_and_other(outer, records)
        if split is None:
            continue
        constant, other = split
        inner = records.producer(other[0])
        if inner is None or inner.kind != "mul" or len(inner.inputs) != 2 or other[1]:
            continue
        below = _constant_and_other(inner, records)
        if below is None or len(readers[inner.name]) != 1 or inner.device != outer.device:
            continue
        outer.inputs = [below[1], constant]
        outer.after = list(dict.fromkeys([*outer.after, *inner.after]))
        outer.bytes_read = sum(records.nbytes(tensor) for tensor, _ in outer.inputs)


def _constant_and_other(record: Record, records: Records) -> tuple[tuple[str, int], tuple[str, int]] | None:
    """Return (the constant input, the other one) of a product, None when not exactly one is constant."""
    first, second = record.inputs
    constant = [
        (p := records.producer(tensor)) is not None and p.kind == "const" for tensor, _ in (first, second)
    ]
    if constant == [True, False]:
        return first, second
    if constant == [False, True]:
        return second, first
    return None


def _drop_unread(records: Records, graph: Graph) -> None:
    """Remove constants and inner products that nobody reads any more; what nobody read before stays."""
    was_read = {graph.op_names[int(op)] for op in graph.edges.producer}
    while True:
        readers, followers = records.readers(), records.followers()
        dead = [
            name
            for name, record in records.ops.items()
            if record.kind in ("const", "mul")
            and name in was_read
            and not readers[name]
            and not followers[name]
        ]
        if not dead:
            return
        records.remove(dead)
