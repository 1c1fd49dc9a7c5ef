"""Fusion: one kernel for ops and their only reader, where they can be computed together.

Two families of patterns::

    remapper      matmul or conv  + bias_add            (+ relu, relu6, elu, tanh, sigmoid, gelu)
                  conv            + batch_norm          (+ relu ...)
    elementwise   any tree of elementwise ops

The fused op keeps the name of the last op, does the work of all, and neither writes nor reads the tensors
in between, which saves launch overhead and memory traffic. Each op in between must have one reader, on the
same device, and nothing else may depend on it. ``torch.compile`` fuses elementwise ops alone: products and
convolutions stay kernels of libraries, the latter in NHWC, whose bias (torch/_inductor/kernel/conv.py) the
next kernel adds.

Source of the patterns: tensorflow/core/grappler/optimizers/remapper.cc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from policies.option_checks import one_of
from policies.rewrite.records import OpEntry, Records, read, write
from sim import Graph
from sim.base.errors import GraphError
from sim.graph.attributes import SIZES

ACTIVATIONS: Final = frozenset({"relu", "relu6", "elu", "tanh", "sigmoid", "gelu", "leaky_relu"})
ELEMENTWISE: Final = ACTIVATIONS | {
    "add", "sub", "mul", "div", "bias_add", "batch_norm", "exp", "sqrt", "rsqrt", "neg", "square",
    "cast", "scale", "maximum", "minimum", "dropout", "erf", "silu", "hard_swish", "mish", "softplus", "log",
    "abs", "pow", "reciprocal", "clip", "where",
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
        If `patterns` is unknown.
    """

    def __init__(self, patterns: str = "all") -> None:
        self.patterns = one_of("fusion", "patterns", patterns, ("remapper", "elementwise", "all"))

    def apply(self, graph: Graph) -> Graph:
        """Return the graph with fused ops, whose attribute ``fused`` lists the kinds in them."""
        records = read(graph)
        followed = {name for record in records.ops.values() for name, _ in record.after}  # these stay
        place = {record.name: k for k, record in enumerate(records.in_order(graph))}
        readers = records.readers()
        alone = {name for name, row in readers.items() if len(row) == 1 and name not in followed}
        chains: dict[str, list[OpEntry]] = {}  # by the last op; each other op is read only by a later one
        for name in place:
            record, chain = records.ops[name], list[OpEntry]()
            if not _feeds_itself(record, records, place):
                for tensor, distance in record.inputs:
                    if tensor in alone and not distance and self._fits(chain, chains.get(tensor, ()), record):
                        chain += chains.pop(tensor)
            chain.append(record)
            chains[name] = chain
        for chain in chains.values():
            *gone, last = chain
            if gone:
                records.ops[last.name] = _fuse(chain)
            elif last.kind.startswith("conv"):  # alone, but in the layout that the compiler wants
                last.attributes["fused"] = _kinds(last)
            for record in gone:
                del records.ops[record.name]
        return write(records)

    def _fits(self, joined: Sequence[OpEntry], chain: Sequence[OpEntry], record: OpEntry) -> bool:
        """Return whether a chain can be computed with its reader, besides what that has joined before."""
        if not chain or len(chain[-1].outputs) != 1 or chain[-1].device != record.device:
            return False
        for one in (chain[-1], record):  # a non-strict op starts with the first of its own inputs
            if one.stateful or not one.attributes.get("strict", True):
                return False
        kinds = [kind for op in chain[:3] for kind in _kinds(op)]
        if self.patterns != "elementwise" and not joined and _remapper([*kinds[:3], record.kind]):
            return True
        kinds += [kind for op in joined[:1] for kind in _kinds(op)]  # if these are elementwise, all are
        return self.patterns != "remapper" and ELEMENTWISE.issuperset([*kinds, record.kind])


def _feeds_itself(record: OpEntry, records: Records, place: Mapping[str, int]) -> bool:
    """Return whether an op reads, from an earlier iteration, a tensor that depends on it.

    `place` is a topological order. No other input can depend on a producer that only this op reads.
    """
    above = records.makers(edge for edge in record.inputs if edge[1])
    seen: set[str] = set()
    while above:
        one = above.pop()
        if one is record:
            return True
        if place[one.name] > place[record.name] and one.name not in seen:
            seen.add(one.name)
            above += records.makers(edge for edge in (*one.inputs, *one.after) if not edge[1])
    return False


def _kinds(record: OpEntry) -> list[str]:
    return list(record.attributes.get("fused", [record.kind]))


def _remapper(kinds: list[str]) -> bool:
    product, *after = kinds
    if product not in PRODUCTS or not 1 <= len(after) <= 2:
        return False
    first = after[0] == "bias_add" or (after[0] == "batch_norm" and product == "conv")
    return first and (len(after) == 1 or after[1] in ACTIVATIONS)


def _fuse(ops: Sequence[OpEntry]) -> OpEntry:
    """Return the last op with the work of all; each other op is read only by a later one."""
    kinds = [kind for op in ops for kind in _kinds(op)]
    first, last = ops[0], ops[-1]
    inside = {op.name: op.outputs[0] for op in ops[:-1]}
    attributes = {**first.attributes, "fused": kinds}
    for op in ops[1:]:
        attributes |= {key: value for key, value in op.attributes.items() if key not in (*SIZES, "fused")}
    # If only some have explicit durations, the cost model decides for all.
    durations = [op.duration_ns for op in ops if op.duration_ns is not None]
    everywhere = set(first.duration_by_kind).intersection(*(op.duration_by_kind for op in ops))
    return replace(
        last,
        kind=kinds[0] if kinds[0] in PRODUCTS else "elementwise",
        inputs=[edge for op in ops for edge in op.inputs if edge[0] not in inside],
        after=list(dict.fromkeys(edge for op in ops for edge in op.after)),
        flops=sum(op.flops for op in ops),
        bytes_read=sum(max(0, op.bytes_read - sum(inside.get(t, 0) for t in {*op.reads})) for op in ops),
        bytes_written=sum(max(0, op.bytes_written - inside.get(op.name, 0)) for op in ops),
        duration_ns=sum(durations) if len(durations) == len(ops) else None,
        duration_by_kind={kind: sum(op.duration_by_kind[kind] for op in ops) for kind in sorted(everywhere)},
        attributes=attributes,
    )


_PRODUCTS: Final = frozenset({"matmul", "gemm"})
_KINDS: Final = """
    mul div add sub where cast copy identity dropout reshape expand view masked_fill maximum clip
"""
_BETWEEN: Final = frozenset(_KINDS.split())
"""Kinds that work on each score separately."""


class FuseAttention:
    """Fuse each product, softmax and product into one op.

    Attention that an exporter wrote as two products around a softmax becomes one op of kind attention.

    ::

        q k ──matmul──mul──add──softmax──dropout──┐            q k v mask ──attention──► y
        v ────────────────── ▲ ───────────────────┴matmul──► y
                            mask

    The products multiply data, not parameters; between them and the softmax every op has one reader and
    works on each score separately. The attention op also reads their other inputs (a mask, a scale). It has
    the name and outputs of the last product, the work of all ops, and only the bytes that enter and leave it,
    like a fused kernel (Dao et al., "FlashAttention", arXiv 2205.14135). ``context-parallel`` and
    ``tensor-parallel`` need attention in this form; apply it before ``training``, which adds its gradient.

    Parameters
    ----------
    causal : bool
        Whether a token sees only earlier tokens; the graph does not hold a mask's values.

    Raises
    ------
    GraphError
        If there is no such attention (when applied).

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
    (('mixed',), [1009], [240])
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
                found |= self._fuse(records, record)
        if not found:
            message = "has no softmax between two products of data, with nothing else that reads the scores"
            raise GraphError(f"graph {graph.name!r} {message}")
        return write(records)

    def _fuse(self, records: Records, softmax: OpEntry) -> bool:
        """Fuse the ops around a softmax; return whether that was possible."""
        readers = records.readers()
        chain, besides = [softmax], list[tuple[str, int]]()
        while chain[0].kind not in _PRODUCTS:
            fitting = (op for op in records.makers(chain[0].inputs) if op.kind in (*_PRODUCTS, *_BETWEEN))
            before = next(fitting, None)
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
        if len(of) < 3 or any(records.is_parameter(tensor) for tensor, _ in of):
            return False
        inputs = list(dict.fromkeys([*of, *besides]))
        inside = {record.name for record in chain}
        records.ops[last.name] = replace(
            _fuse(chain),
            kind="attention",
            inputs=inputs,
            after=[edge for record in chain for edge in record.after if edge[0] not in inside],
            bytes_read=sum(records.nbytes(tensor) for tensor, _ in inputs),
            bytes_written=sum(last.outputs),
            duration_by_kind={},
            attributes={"is_causal": True} if self.causal else {},
        )
        records.remove([record.name for record in chain[:-1]])
        return True
