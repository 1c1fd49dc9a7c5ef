"""Fusion: one kernel where an op's only reader can be computed along with it.

Two families of patterns::

    remapper      matmul or conv  + bias_add            (+ relu, relu6, elu, tanh, sigmoid, gelu)
                  conv            + batch_norm          (+ relu ...)
    elementwise   any chain of elementwise ops, as long as the fused kernel is not slower

The fused op keeps the name of the last one, does the work of all, and neither writes nor reads the tensors
in between: launch overhead and memory traffic are what is saved. Each op in between must have one reader,
on the same device, and nothing may depend on it in another way.

Source of the patterns: tensorflow/core/grappler/optimizers/remapper.cc.
"""

from __future__ import annotations

from typing import Final

from policies.rewrite.records import Record, Records, read, write
from sim import Graph
from sim.errors import InputError

__all__ = ["Fusion"]

ACTIVATIONS: Final = frozenset({"relu", "relu6", "elu", "tanh", "sigmoid", "gelu", "leaky_relu"})
ELEMENTWISE: Final = ACTIVATIONS | {
    "add", "sub", "mul", "div", "bias_add", "batch_norm", "exp", "sqrt", "rsqrt", "neg", "square",
    "cast", "scale", "maximum", "minimum", "dropout",
}  # fmt: skip
PRODUCTS: Final = frozenset({"matmul", "gemm", "conv"})


class Fusion:
    """Fuse ops.

    Parameters
    ----------
    patterns : str
        ``"remapper"``, ``"elementwise"`` or ``"all"``.

    Raises
    ------
    InputError
        Another word.
    """

    def __init__(self, patterns: str = "all") -> None:
        if patterns not in ("remapper", "elementwise", "all"):
            raise InputError(f"fusion: patterns must be remapper, elementwise or all; found {patterns!r}")
        self.patterns = patterns

    def apply(self, graph: Graph) -> Graph:
        """Return the graph with fused ops, whose attribute ``fused`` lists the kinds in them."""
        records = read(graph)
        for op in graph.topological_order.tolist():
            record = records.ops[graph.op_names[op]]
            producer = self._partner(record, records)
            if producer is not None:
                _fuse(producer, record, records)
        return write(records)

    def _partner(self, record: Record, records: Records) -> Record | None:
        """Return the producer that `record` can be fused with."""
        readers = None
        for tensor, distance in record.inputs:
            producer = records.producer(tensor)
            if producer is None or distance or tensor != producer.name or len(producer.outputs) != 1:
                continue
            if not self._fits(producer, record):
                continue
            readers = records.readers() if readers is None else readers
            if [r.name for r in readers[producer.name]] != [record.name] or producer.device != record.device:
                continue
            if any(producer.name == name for other in records.ops.values() for name, _ in other.after):
                continue
            others = [records.producer(t) for t, _ in record.inputs if t != tensor]
            others += [records.ops[name] for name, d in record.after if not d]
            if any(o is not None and records.depends_on(o.name, producer.name) for o in others):
                continue  # the fused op would wait for itself
            return producer
        return None

    def _fits(self, producer: Record, record: Record) -> bool:
        if producer.stateful or record.stateful:
            return False
        kinds = [*_kinds(producer), record.kind]
        if self.patterns != "elementwise" and kinds[0] in PRODUCTS and _remapper(kinds):
            return True
        return self.patterns != "remapper" and all(kind in ELEMENTWISE for kind in kinds)


def _kinds(record: Record) -> list[str]:
    return list(record.attributes.get("fused", [record.kind]))


def _remapper(kinds: list[str]) -> bool:
    after = kinds[1:]
    first = after[0] == "bias_add" or (after[0] == "batch_norm" and kinds[0] == "conv")
    return first and len(after) <= 2 and (len(after) == 1 or after[1] in ACTIVATIONS)


def _fuse(producer: Record, record: Record, records: Records) -> None:
    """Let `record` do the work of both."""
    between = producer.outputs[0]
    kinds = [*_kinds(producer), record.kind]
    record.kind = kinds[0] if kinds[0] in PRODUCTS else "elementwise"
    at = next(k for k, (tensor, _) in enumerate(record.inputs) if tensor == producer.name)
    rest = [edge for k, edge in enumerate(record.inputs) if k != at and edge[0] != producer.name]
    record.inputs = [*producer.inputs, *rest]
    record.after = list(dict.fromkeys([*producer.after, *record.after]))
    record.flops += producer.flops
    record.bytes_read = producer.bytes_read + max(0, record.bytes_read - between)
    record.bytes_written = max(0, producer.bytes_written - between) + record.bytes_written
    record.duration_ns = _sum(producer.duration_ns, record.duration_ns)
    known = producer.duration_by_kind.keys() & record.duration_by_kind.keys()
    record.duration_by_kind = {
        k: producer.duration_by_kind[k] + record.duration_by_kind[k] for k in sorted(known)
    }
    record.attributes = {**producer.attributes, **record.attributes, "fused": kinds}
    del records.ops[producer.name]


def _sum(a: int | None, b: int | None) -> int | None:
    """Return the sum of two explicit durations; when only one is given the cost model decides on both."""
    return None if a is None or b is None else a + b
