"""Attention as one op: what exporters write as two products around a softmax becomes an op of kind attention.

::

    q k ──matmul──mul──add──softmax──dropout──┐            q k v mask ──attention──► y
    v ────────────────── ▲ ───────────────────┴matmul──► y
                        mask

The products multiply data, not parameters; between them and the softmax every op has one reader and works on
each score by itself. What it reads besides (a mask, a scale) the attention reads, too. It has the name and
the outputs of the last product, the work of all, and the bytes that cross its border, as a fused kernel has
(Dao et al., "FlashAttention", arXiv 2205.14135). ``context-parallel`` and ``tensor-parallel`` need attention
so, and ``training`` makes its gradient: this comes before it.
"""

from __future__ import annotations

from typing import Final

from policies.rewrite.records import OpEntry, Records, read, write
from sim import Graph
from sim.base.errors import GraphError
from sim.graph.graph import Role

_PRODUCTS: Final = frozenset({"matmul", "gemm"})
_KINDS: Final = """
    mul div add sub where cast copy identity dropout reshape expand view masked_fill maximum clip
"""
_BETWEEN: Final = frozenset(_KINDS.split())
"""Kinds that work on each score by itself."""


class FuseAttention:
    """Make one op of each product, softmax and product.

    Parameters
    ----------
    causal : bool
        Whether a token sees those before it only; a mask's values are not in the graph.

    Raises
    ------
    GraphError
        There is none (when applied).

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("attention")
    >>> _ = [b.input(name, 80) for name in "qkv"]
    >>> _ = b.op("scores", kind="matmul", inputs=["q", "k"], outputs=160, flops=500)
    >>> _ = b.op("softmax", kind="softmax", inputs=["scores"], outputs=160, flops=9)
    >>> _ = b.op("mixed", kind="matmul", inputs=["softmax", "v"], outputs=80, flops=500)
    >>> fused = FuseAttention().apply(b.build())
    >>> fused.op_names, fused.flops.tolist(), fused.bytes_read.tolist()
    (['mixed'], [1009], [240])
    """

    def __init__(self, causal: bool = False) -> None:
        self.causal = causal

    def apply(self, graph: Graph) -> Graph:
        """Return the graph with attention as single ops."""
        records = read(graph)
        found = False
        for name in graph.op_names:
            record = records.ops.get(name)
            if record is not None and record.kind == "softmax":
                found |= self._fused(records, record)
        if not found:
            message = "has no softmax between two products of data, with nothing else that reads the scores"
            raise GraphError(f"graph {graph.name!r} {message}")
        return write(records)

    def _fused(self, records: Records, softmax: OpEntry) -> bool:
        """Make one op of all around a softmax; return whether that was possible."""
        readers = records.readers()
        chain, besides = [softmax], list[tuple[str, int]]()
        while chain[0].kind not in _PRODUCTS:
            before = self._maker(records, chain[0])
            if before is None or len(readers[before.name]) != 1:
                return False
            besides += [edge for edge in chain[0].inputs if records.producer(edge[0]) is not before]
            chain.insert(0, before)
        first = chain[0]
        while chain[-1].kind not in _PRODUCTS or chain[-1] is first:
            after = readers[chain[-1].name]
            if len(after) != 1 or after[0].kind not in (*_PRODUCTS, *_BETWEEN):
                return False
            if after[0].kind not in _PRODUCTS:
                besides += [edge for edge in after[0].inputs if records.producer(edge[0]) is not chain[-1]]
            chain.append(after[0])
        last = chain[-1]
        values = [edge for edge in last.inputs if records.producer(edge[0]) is not chain[-2]]
        of = [*first.inputs[:2], *values[:1]]
        if len(of) < 3 or any(self._is_parameter(records, tensor) for tensor, _ in of):
            return False
        durations = [record.duration_ns for record in chain]
        inputs = list(dict.fromkeys([*of, *besides]))
        inside = {record.name for record in chain}
        records.ops[last.name] = OpEntry(
            last.name,
            "attention",
            inputs,
            [edge for record in chain for edge in record.after if edge[0] not in inside],
            last.outputs,
            flops=sum(record.flops for record in chain),
            bytes_read=sum(records.nbytes(tensor) for tensor, _ in inputs),
            bytes_written=sum(last.outputs),
            duration_ns=None if None in durations else sum(ns or 0 for ns in durations),
            device=last.device,
            dtype=last.dtype,
            stage=last.stage,
            micro_batch=last.micro_batch,
            phase=last.phase,
            attributes={"is_causal": True} if self.causal else {},
        )
        records.remove([record.name for record in chain[:-1]])
        return True

    def _maker(self, records: Records, record: OpEntry) -> OpEntry | None:
        """Return the op whose scores an op works on, if it is one that may stand before a softmax."""
        for tensor, _ in record.inputs:
            producer = records.producer(tensor)
            if producer is not None and producer.kind in (*_PRODUCTS, *_BETWEEN):
                return producer
        return None

    def _is_parameter(self, records: Records, tensor: str) -> bool:
        given = records.externals.get(tensor)
        return given is not None and given.role == Role.PARAMETER
