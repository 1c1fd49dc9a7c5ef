"""Arithmetic simplification: the same value for fewer operations.

::

    x + x + x                     3 · x                    (a product with a scalar constant)
    (a + s1) + (b + s2)           (a + b) + (s1 + s2)      (s scalars: one large sum fewer)

Only sums that nobody else reads are taken apart. The second rule and its cost argument are from the
TensorFlow white paper's successor, "TensorFlow Graph Optimizations" (Larsen and Shpeisman, 2019).
"""

from __future__ import annotations

from policies.compile.records import Record, Records, read, write
from sim import Graph

__all__ = ["Arithmetic"]

SCALAR_BYTES = 8


class Arithmetic:
    """Simplify sums."""

    def apply(self, graph: Graph) -> Graph:
        """Return the simplified graph."""
        records = read(graph)
        _repeated_sums(records)
        _scalar_sums(records)
        return write(records)


def _terms(record: Record, records: Records, readers: dict[str, list[Record]]) -> tuple[list[str], list[str]]:
    """Return the leaves of a tree of sums, and the inner sums that only this tree reads."""
    terms: list[str] = []
    inner: list[str] = []
    for tensor, _ in record.inputs:
        below = records.producer(tensor)
        if (
            below is not None
            and below.kind == "add"
            and len(readers[below.name]) == 1
            and below.device == record.device
            and not below.after
            and all(d == 0 for _, d in below.inputs)
        ):
            more, sums = _terms(below, records, readers)
            terms += more
            inner += [*sums, below.name]
        else:
            terms.append(tensor)
    return terms, inner


def _is_sum(record: Record) -> bool:
    return record.kind == "add" and len(record.inputs) == 2 and all(d == 0 for _, d in record.inputs)


def _repeated_sums(records: Records) -> None:
    """Turn x + x + ... + x into n·x."""
    readers = records.readers()
    for record in reversed(list(records.ops.values())):  # a sum before those that it is made of
        if record.name not in records.ops or not _is_sum(record):
            continue
        terms, inner = _terms(record, records, readers)
        if len(terms) < 3 or len(set(terms)) != 1:
            continue
        factor = f"{record.name}/times"
        records.ops[factor] = Record(
            factor, "const", [], [], (SCALAR_BYTES,), bytes_written=0, duration_ns=0, device=record.device,
            attributes={"value": len(terms)},
        )  # fmt: skip
        record.kind = "mul"
        record.inputs = [(terms[0], 0), (factor, 0)]
        record.bytes_read = records.nbytes(terms[0]) + SCALAR_BYTES
        records.remove(inner)


def _scalar(tensor: str, records: Records) -> bool:
    producer = records.producer(tensor)
    return producer is not None and producer.kind == "const" and records.nbytes(tensor) <= SCALAR_BYTES


def _scalar_sums(records: Records) -> None:
    """Add scalars to one another before they are added to tensors."""
    readers = records.readers()
    for record in list(records.ops.values()):
        if record.name not in records.ops or not _is_sum(record):
            continue
        sides = [records.producer(tensor) for tensor, _ in record.inputs]
        if any(
            side is None or not _is_sum(side) or len(readers[side.name]) != 1 or side.device != record.device
            for side in sides
        ):
            continue
        parts = []
        for side in sides:
            assert side is not None
            scalars = [t for t, _ in side.inputs if _scalar(t, records)]
            tensors = [t for t, _ in side.inputs if not _scalar(t, records)]
            if len(scalars) != 1 or len(tensors) != 1:
                break
            parts.append((tensors[0], scalars[0]))
        if len(parts) != 2:
            continue
        left, right = sides
        assert left is not None
        assert right is not None
        (a, s1), (b, s2) = parts
        left.inputs = [(a, 0), (b, 0)]
        left.bytes_read = records.nbytes(a) + records.nbytes(b)
        right.inputs = [(s1, 0), (s2, 0)]
        right.outputs = (SCALAR_BYTES,)
        right.flops, right.bytes_read, right.bytes_written = 1, 2 * SCALAR_BYTES, SCALAR_BYTES
        if right.duration_ns is not None:
            right.duration_ns = 0
        right.duration_by_kind = dict.fromkeys(right.duration_by_kind, 0)
        record.bytes_read = left.outputs[0] + SCALAR_BYTES
