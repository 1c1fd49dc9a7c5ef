"""Fusion: one kernel where an op's only reader can be computed along with it.

Two families of patterns::

    remapper      matmul or conv  + bias_add            (+ relu, relu6, elu, tanh, sigmoid, gelu)
                  conv            + batch_norm          (+ relu ...)
    elementwise   any chain of elementwise ops; and, where that is faster, an elementwise op into each of
                  several readers, which then compute it again instead of reading it:

                        ┌► b                 a·b
                  x ─► a ┤        becomes  x ┤        when  t(a) + t(b) + t(c) > t(a·b) + t(a·c)
                        └► c                 a·c

The fused op keeps the name of the last one, does the work of all, and neither writes nor reads the tensors
in between: launch overhead and memory traffic are what is saved. Each op in between must have one reader,
on the same device, and nothing may depend on it in another way.

Source of the patterns: tensorflow/core/grappler/optimizers/remapper.cc.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from policies.compile.records import Record, Records, read, write
from policies.option_checks import one_of
from sim import Graph
from sim.words.errors import InputError

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
    bytes_per_ns, flop_per_ns : float
        What a device moves and computes in a ns (GB/s, GFLOP/s), to weigh computing again against reading: an
        op takes ``launch_ns`` and the longer of the two. 0: no op is fused into several readers.
    launch_ns : int
        What each kernel costs besides.

    Raises
    ------
    InputError
        Another word, a negative number, or one rate without the other.
    """

    def __init__(
        self, patterns: str = "all", bytes_per_ns: float = 0, flop_per_ns: float = 0, launch_ns: int = 0
    ) -> None:
        if min(bytes_per_ns, flop_per_ns, launch_ns) < 0 or bool(bytes_per_ns) != bool(flop_per_ns):
            raise InputError(
                "fusion: bytes_per_ns and flop_per_ns are rates > 0, given together, and launch is >= 0; "
                f"found {bytes_per_ns}, {flop_per_ns} and {launch_ns} ns"
            )
        self.bytes_per_ns, self.flop_per_ns, self.launch_ns = bytes_per_ns, flop_per_ns, launch_ns
        self.patterns = one_of("fusion", "patterns", patterns, ("remapper", "elementwise", "all"))

    def apply(self, graph: Graph) -> Graph:
        """Return the graph with fused ops, whose attribute ``fused`` lists the kinds in them."""
        records = read(graph)
        for op in graph.topological_order.tolist():
            record = records.ops[graph.op_names[op]]
            producer = self._partner(record, records)
            if producer is not None:
                _fuse(producer, record, records)
                del records.ops[producer.name]
        if self.bytes_per_ns and self.patterns != "remapper":
            for name in list(records.ops):
                self._into_all_readers(records.ops[name], records)
        return write(records)

    def _into_all_readers(self, producer: Record, records: Records) -> None:
        """Let every reader compute `producer` itself, where that takes less time in all."""
        readers = list({r.name: r for r in records.readers()[producer.name]}.values())
        followed = records.is_followed(producer.name)
        if len(readers) < 2 or followed or len(producer.outputs) != 1 or producer.duration_ns is not None:
            return
        for reader in readers:
            kinds = [*_kinds(producer), *_kinds(reader)]
            once = [edge for edge in reader.inputs if edge[0] == producer.name] == [(producer.name, 0)]
            alike = reader.device == producer.device and reader.duration_ns is None and not reader.stateful
            if not (once and alike and all(kind in ELEMENTWISE for kind in kinds)):
                return
        before = self._ns(producer) + sum(map(self._ns, readers))
        copies = {reader.name: replace(reader, inputs=[*reader.inputs]) for reader in readers}
        for reader in readers:
            _fuse(producer, reader, records)
        if sum(map(self._ns, readers)) < before:
            del records.ops[producer.name]
        else:
            records.ops.update(copies)

    def _ns(self, record: Record) -> float:
        moved = (record.bytes_read + record.bytes_written) / self.bytes_per_ns
        return self.launch_ns + max(moved, record.flops / self.flop_per_ns)

    def _partner(self, record: Record, records: Records) -> Record | None:
        """Return the producer that `record` can be fused with."""
        for tensor, distance in record.inputs:
            producer = records.producer(tensor)
            if producer is None or distance or tensor != producer.name or len(producer.outputs) != 1:
                continue
            if producer.device != record.device or not self._fits(producer, record):
                continue
            if [r.name for r in records.readers()[tensor]] != [record.name] or records.is_followed(tensor):
                continue
            others = [records.producer(t) for t, _ in record.inputs if t != tensor]
            others += [records.ops[name] for name, d in record.after if not d]
            if not any(other is not None and records.depends_on(other.name, tensor) for other in others):
                return producer  # else the fused op would wait for itself
        return None

    def _fits(self, producer: Record, record: Record) -> bool:
        for one in (producer, record):  # what is not strict starts with the first of its own inputs
            if one.stateful or not one.attributes.get("strict", True):
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
    """Let `record` do the work of both; `producer` itself stays."""
    between = producer.outputs[0]
    kinds = [*_kinds(producer), *_kinds(record)]
    record.kind = kinds[0] if kinds[0] in PRODUCTS else "elementwise"
    at = next(k for k, (tensor, _) in enumerate(record.inputs) if tensor == producer.name)
    rest = [edge for k, edge in enumerate(record.inputs) if k != at and edge[0] != producer.name]
    record.inputs = [*producer.inputs, *rest]
    record.after = list(dict.fromkeys([*producer.after, *record.after]))
    record.flops += producer.flops
    record.bytes_read = producer.bytes_read + max(0, record.bytes_read - between)
    record.bytes_written = max(0, producer.bytes_written - between) + record.bytes_written
    record.duration_ns = _sum(producer.duration_ns, record.duration_ns)
    theirs, own = producer.duration_by_kind, record.duration_by_kind
    record.duration_by_kind = {kind: theirs[kind] + own[kind] for kind in sorted(theirs.keys() & own.keys())}
    record.attributes = {**producer.attributes, **record.attributes, "fused": kinds}


def _sum(a: int | None, b: int | None) -> int | None:
    """Return the sum of two explicit durations; when only one is given the cost model decides on both."""
    return None if a is None or b is None else a + b
