"""Arithmetic simplification: the same value for fewer operations.

::

    x + x + x                     3 · x                    (a product with a scalar constant)
    (a + s1) + (b + s2)           (a + b) + (s1 + s2)      (s scalars: one large sum fewer)

Only sums that nobody else reads are taken apart. The second rule and its cost argument are from the
TensorFlow white paper's successor, "TensorFlow Graph Optimizations" (Larsen and Shpeisman, 2019).
"""

from __future__ import annotations

from typing import NamedTuple

from policies.compile.records import Record, Records, read, write
from sim import Graph

__all__ = ["Arithmetic"]

SCALAR_BYTES = 8


class Arithmetic:
    """Simplify sums."""

    def apply(self, graph: Graph) -> Graph:
        """Return the simplified graph."""
        records = read(graph)
        _repeated_sums(records, [graph.op_names[op] for op in graph.topological_order.tolist()])
        _scalar_sums(records)
        return write(records)


def _is_sum(record: Record) -> bool:
    return record.kind == "add" and len(record.inputs) == 2 and all(d == 0 for _, d in record.inputs)


class _Tree(NamedTuple):
    """A tree of sums whose leaves are all one tensor, so many times."""

    term: str
    times: int


def _repeated_sums(records: Records, order: list[str]) -> None:
    """Turn x + x + ... + x into n·x; `order` is one in which ops come after what they read."""
    readers, followers = records.readers(), records.followers()

    def inner(tensor: str, reader: Record) -> Record | None:
        """Return the sum that makes a tensor, where nobody but the sum that reads it needs it."""
        below = records.producer(tensor)
        if below is None or below.kind != "add" or any(d for _, d in below.inputs):
            return None
        alone = len(readers[below.name]) == 1 and not below.after
        return below if alone and below.device == reader.device else None

    trees: dict[str, _Tree | None] = {}  # by the sum at the top; None: of several tensors
    for name in order:
        record = records.ops[name]
        if record.kind != "add" or any(d for _, d in record.inputs):
            continue
        parts = [
            trees[below.name] if (below := inner(tensor, record)) is not None else _Tree(tensor, 1)
            for tensor, _ in record.inputs
        ]
        terms = {None if part is None else part.term for part in parts}
        times = sum(part.times for part in parts if part is not None)
        term = terms.pop() if len(terms) == 1 else None
        trees[name] = None if term is None else _Tree(term, times)

    for name in reversed(order):  # a sum before those that it is made of
        tree = trees.get(name)
        if tree is None or tree.times < 3 or name not in records.ops or not _is_sum(records.ops[name]):
            continue
        record, gone = records.ops[name], []
        stack = [record]
        while stack:
            reader = stack.pop()
            sums = [op for tensor, _ in reader.inputs if (op := inner(tensor, reader)) is not None]
            gone += [op.name for op in sums]
            stack += sums
        factor, value = records.free(f"{record.name}/times"), {"value": tree.times}
        records.ops[factor] = Record(
            factor, "const", [], [], (SCALAR_BYTES,), duration_ns=0, device=record.device, attributes=value
        )
        record.kind = "mul"
        record.inputs = [(tree.term, 0), (factor, 0)]
        record.bytes_read = records.nbytes(tree.term) + SCALAR_BYTES
        records.remove(gone, followers)


def _scalar_sums(records: Records) -> None:
    """Add scalars to one another before they are added to tensors."""
    readers = records.readers()
    for record in list(records.ops.values()):
        sides = [records.producer(tensor) for tensor, _ in record.inputs] if _is_sum(record) else []
        parts = [
            part
            for side in sides
            if side is not None and len(readers[side.name]) == 1 and side.device == record.device
            if (part := _tensor_and_scalar(side, records)) is not None
        ]
        if len(parts) != 2:
            continue
        (left, a, s1), (right, b, s2) = parts
        left.inputs = [(a, 0), (b, 0)]
        left.bytes_read = records.nbytes(a) + records.nbytes(b)
        right.inputs = [(s1, 0), (s2, 0)]
        right.outputs = (SCALAR_BYTES,)
        right.flops, right.bytes_read, right.bytes_written = 1, 2 * SCALAR_BYTES, SCALAR_BYTES
        if right.duration_ns is not None:
            right.duration_ns = 0
        right.duration_by_kind = dict.fromkeys(right.duration_by_kind, 0)
        record.bytes_read = left.outputs[0] + SCALAR_BYTES


def _tensor_and_scalar(record: Record, records: Records) -> tuple[Record, str, str] | None:
    """Return a sum of a tensor and a scalar constant with the two; None where it is none."""
    if not _is_sum(record):
        return None
    sides: dict[bool, str] = {}
    for tensor, _ in record.inputs:
        producer = records.producer(tensor)
        constant = producer is not None and producer.kind == "const"
        sides[constant and records.nbytes(tensor) <= SCALAR_BYTES] = tensor
    return (record, sides[False], sides[True]) if len(sides) == 2 else None
