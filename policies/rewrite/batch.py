"""Batch: run a graph recorded with one sample on more samples.

::

    x (1 sample) ─► conv ─► ...        x (32 samples) ─► conv ─► ...     32 times the flop and bytes of x
                     ▲                                    ▲
                     w                                    w              and w once

Everything that depends on a graph input grows in proportion; parameters and everything computed from them
alone do not. So an op that reads both reads its parameters once. That is exact if samples are independent,
as in inference; build a training step from the larger forward (`policies.rewrite.backward`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from policies.option_checks import whole
from policies.rewrite.records import OpEntry, Records, read, write
from sim import Graph
from sim.base.errors import GraphError
from sim.graph.graph import Role

_NO_DATA: Final = frozenset({"shape", "size", "rank", "const", "no_op", "range"})
"""Kinds whose output does not grow with their inputs."""


class Batch:
    """Run a graph on `factor` times as many samples.

    Parameters
    ----------
    factor : int
        Number of samples per recorded sample.

    Raises
    ------
    InputError
        If `factor` is below one.
    GraphError
        If an op that grows has a measured duration: its time with more samples is unknown (when applied).

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("layer")
    >>> _ = b.input("x", 400), b.parameter("w", 800)
    >>> _ = b.op("a", kind="matmul", inputs=["x", "w"], outputs=400, flops=1000)
    >>> record = read(Batch(factor=3).apply(b.build())).ops["a"]
    >>> record.flops, record.bytes_read, record.bytes_written
    (3000, 2000, 1200)
    """

    def __init__(self, factor: int) -> None:
        self.factor = whole("batch", "factor", factor, least=1)

    def apply(self, graph: Graph) -> Graph:
        """Return the graph at the larger batch."""
        if self.factor == 1:
            return graph
        records = read(graph)
        records.name += f" x {self.factor}"
        grows = {name for name, external in records.externals.items() if external.role == Role.INPUT}
        for record in records.in_order(graph):
            if record.kind not in _NO_DATA and not grows.isdisjoint(record.reads):
                grows.update(record.tensors)
        growing = [record for record in records.ops.values() if record.name in grows]
        for record in growing:
            self._grow(records, record, grows)
        for record in growing:
            record.outputs = tuple(nbytes * self.factor for nbytes in record.outputs)
        for name in grows & records.externals.keys():
            external = records.externals[name]
            records.externals[name] = replace(external, nbytes=external.nbytes * self.factor)
        return write(records)

    def _grow(self, records: Records, record: OpEntry, grows: set[str]) -> None:
        if record.duration_ns or any(record.duration_by_kind.values()):
            problem = f"which is not known with {self.factor} times the samples"
            message = f"op {record.name!r} has a duration, {problem}; import flop and bytes alone"
            raise GraphError(message).about(record.name)
        more = self.factor - 1
        size = {tensor: records.nbytes(tensor) for tensor in record.reads}
        growing = sum(nbytes for tensor, nbytes in size.items() if tensor in grows)
        whole_inputs = record.bytes_read == sum(size.values())
        record.flops *= self.factor
        record.bytes_read += more * (growing if whole_inputs else record.bytes_read)
        record.bytes_written *= self.factor
        # Samples are products or images, else rows.
        for key in [key for key in ("batch", "m", "rows") if key in record.attributes][:1]:
            record.attributes[key] *= self.factor
