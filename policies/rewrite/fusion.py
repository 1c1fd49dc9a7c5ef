"""Fusion: one kernel for ops that can be computed together.

Two families of patterns::

    remapper      matmul or conv  + bias_add            (+ relu, relu6, elu, tanh, sigmoid, gelu)
                  conv            + batch_norm          (+ relu ...)
    elementwise   any tree of elementwise ops; reductions (norms, softmax, sums) with what makes or takes
                  their rows; an op that reads nothing else, even if others read the same

        a ──┐               a ──┐ ┌─────────────┐ ┌─► norm            the sum leaves the kernel, too,
        b ──┴► sum ─► norm  b ──┴─┤ sum and norm├─┴─► sum ─► ...      if others read it

The fused op keeps the name of the last op, does the work of all, and neither reads the tensors in between
nor writes those that only it reads, which saves launch overhead and memory traffic. All are on the same
device. No op waits for more than before, except readers of a tensor that leaves besides the last one. Views
are index arithmetic. ``torch.compile`` fuses elementwise: products and convolutions stay kernels of
libraries, the latter mostly in NHWC, whose bias (torch/_inductor/kernel/conv.py) the next kernel adds.

Source of the patterns: tensorflow/core/grappler/optimizers/remapper.cc.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
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
    "abs", "pow", "reciprocal", "clip", "where", "hard_sigmoid", "sin", "cos", "addcmul",
    "add_n", "copy", "transpose", "concat", "pad", "slice", "tile", "reverse",
}  # fmt: skip
REDUCTIONS: Final = frozenset({
    "softmax", "log_softmax", "layer_norm", "rms_norm", "group_norm", "instance_norm",
    "reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod", "reduce_l1", "reduce_l2",
})  # fmt: skip
"""Kinds that sum rows: computed with what makes the rows, and with readers that have as many numbers."""
JOINS: Final = ELEMENTWISE | REDUCTIONS
STARTS: Final = frozenset({"gather", "max_pool", "average_pool", "resize"})
"""Kinds computed with their readers only, as each number reads several, or others than its neighbour."""
PRODUCTS: Final = frozenset({"matmul", "gemm", "conv"})
_MOST_SIZE_RATIO: Final = 4
"""Tensors whose bytes differ by more than this factor differ in their elements' number, not only in type."""


@dataclass(eq=False)
class _Kernel:
    """Ops that are computed together, in topological order."""

    ops: list[OpEntry]
    reads: int  # of their tensors by others
    stays: bool  # the last one is fetched or followed
    rows: set[str]  # numbers in each that a reduction sums, or its name
    waits: bool  # for another op


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
        index_of = {record.name: k for k, record in enumerate(records.in_order(graph))}
        readers, followers = records.readers(), records.followers()
        read_all = {tensor for record in records.ops.values() for tensor in record.reads}
        kernels, views, compiled = dict[str, _Kernel](), dict[str, str](), self.patterns != "remapper"
        for name in index_of:
            record, users = records.ops[name], len(readers[name])
            sources: dict[_Kernel, list[str]] = {}
            for tensor, distance in record.inputs:
                maker = records.producer(tensor)
                if maker is not None and maker.name in kernels and not distance:
                    sources.setdefault(kernels[maker.name], []).append(tensor)
            rows = {str(record.attributes.get("columns", name))} if REDUCTIONS & {*_kinds(record)} else set()
            stays = not users or bool(followers[name]) or not read_all.isdisjoint(record.tensors[1:])
            kernel = _Kernel([record], users, stays, rows, bool(sources or record.after))
            elsewhere = any(source.ops[-1].device != record.device for source in sources)
            if compiled and _is_view(record) and not stays and not elsewhere:
                views[name] = views.get(record.reads[0], record.reads[0])
                for source in sources:  # none, if it shows a parameter
                    kernels[name] = source
                    source.reads += users - 1
                continue
            late = [source for source in sources if source.waits] or list(sources)
            alone = len(late) == 1 and not record.after and not any(d for _, d in record.inputs)
            ordered = sorted(sources.items(), key=lambda item: alone and item[0] is late[0])
            for source, tensors in () if _feeds_itself(record, records, index_of) else ordered:
                sole, waits = source.reads == len(tensors), not alone or source is not late[0]
                if not (sole or not waits) or not self._fits(kernel, source, records, tensors, sole):
                    continue  # other readers would wait for what this op waits for, which may be themselves
                source.rows |= kernel.rows
                if waits:
                    kernel.ops[-1:-1], source.ops, kernel.rows = source.ops, [], source.rows
                else:
                    source.ops += kernel.ops
                    source.reads += users - len(tensors)
                    source.stays, kernel = kernel.stays, source
            kernels[name] = kernel
        _join(records, [entry.ops for entry in dict.fromkeys(kernels.values()) if entry.ops], views, compiled)
        if compiled:
            _lay_out([record for record in records.ops.values() if record.kind.startswith("conv")])
        return write(records)

    def _fits(
        self, kernel: _Kernel, source: _Kernel, records: Records, tensors: list[str], sole: bool
    ) -> bool:
        """Return whether a kernel that ends with the reader of these tensors can compute them, too."""
        before, record = source.ops[-1], kernel.ops[-1]
        if source.stays or before.device != record.device:
            return False
        for one in (before, record):  # a non-strict op starts with the first of its own inputs
            if one.stateful or not one.attributes.get("strict", True):
                return False
        kinds = [kind for op in source.ops[:3] for kind in _kinds(op)]
        first = sole and kernel.ops[0] is record and tensors[0] == record.inputs[0][0]
        if self.patterns != "elementwise" and first and _remapper([*kinds[:3], record.kind]):
            return True
        if record.kind in REDUCTIONS and _has_several_axes(record):  # in NHWC its loops have another order
            return False
        starts = {kinds[0], *([] if kernel.ops[0] is record else _kinds(kernel.ops[0])[:1])}
        if self.patterns == "remapper" or record.kind not in JOINS or not (JOINS | STARTS).issuperset(starts):
            return False  # if these are computed with others, all are
        rows = kernel.rows | source.rows
        size = record.bytes_read if record.kind in REDUCTIONS else sum(record.outputs)
        sizes = size, max(map(records.nbytes, tensors))
        return len(rows) < 2 and (max(sizes) <= _MOST_SIZE_RATIO * min(sizes) or (sole and not rows))


def _is_view(record: OpEntry) -> bool:
    """Return whether an op does nothing but show its first input under another name."""
    work = record.flops, record.bytes_read, record.bytes_written, record.duration_ns, record.duration_by_kind
    plain = not any(work) and not record.after and not record.stateful and len(record.outputs) == 1
    return plain and record.attributes.get("view_of") == 0 and [k for _, k in record.inputs[:1]] == [0]


def _has_several_axes(record: OpEntry) -> bool:
    arguments = record.attributes.get("arguments")
    candidates = [record.attributes.get("axes"), *(arguments if isinstance(arguments, list | tuple) else ())]
    return any(isinstance(axes, list | tuple) and len(axes) > 1 for axes in candidates)


def _join(records: Records, kernels: Sequence[list[OpEntry]], views: Mapping[str, str], lone: bool) -> None:
    """Make each kernel one op (`lone`: a lone reduction, too), and drop views that only ops inside read."""
    for *inner, last in kernels:
        if inner or (lone and last.kind in REDUCTIONS):
            records.ops[last.name] = _fuse([*inner, last], records, views)
    ends = {ops[-1].name for ops in kernels} | views.keys()
    records.ops = {name: record for name, record in records.ops.items() if name in ends}
    records.remove_unused(views)
    read_outside = {tensor for record in records.ops.values() for tensor in record.reads}
    renamed: dict[str, str] = {}
    for *inner, last in kernels:
        fused = records.ops[last.name]
        for record in inner:
            if record.name in read_outside:
                renamed[record.name] = fused.tensor(len(fused.outputs))
                fused.outputs += record.outputs[:1]
                fused.bytes_written += min(record.outputs[0], record.bytes_written)
    for record in records.ops.values():
        record.inputs = [(renamed.get(tensor, tensor), distance) for tensor, distance in record.inputs]


def _lay_out(convs: Sequence[OpEntry]) -> None:
    """Mark convolutions as compiled, in NHWC unless this would slow them down.

    Grouped ones take 1.36 times as long in NHWC, others 0.82 times (inductor's ``decide_layout_opt``).
    """
    groups = ((op, op.attributes.get("group", 0), op.attributes.get("in_channels", 0)) for op in convs)
    grouped = (op for op, n, k in groups if all(isinstance(x, Integral) for x in (n, k)) and 1 < n < k)
    layout = "NHWC" if 3 * sum(op.flops for op in grouped) <= sum(op.flops for op in convs) else "NCHW"
    for op in convs:
        op.attributes |= {"fused": _kinds(op), "data_format": layout}


def _feeds_itself(record: OpEntry, records: Records, index_of: Mapping[str, int]) -> bool:
    """Return whether an op reads, from an earlier iteration, a tensor that depends on it.

    `index_of` is a topological order. No other input can depend on a producer that only this op reads.
    """
    above = records.makers(edge for edge in record.inputs if edge[1])
    seen: set[str] = set()
    while above:
        one = above.pop()
        if one is record:
            return True
        if index_of[one.name] > index_of[record.name] and one.name not in seen:
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


def _fuse(ops: Sequence[OpEntry], records: Records, views: Mapping[str, str]) -> OpEntry:
    """Return the last op with the work of all, whose tensors do not leave it but for the last one's."""
    kinds = [kind for op in ops for kind in _kinds(op)]
    first, last = ops[0], ops[-1]
    inner, loaded = {op.name for op in ops[:-1]}, set[str]()
    attributes = {**first.attributes, "fused": kinds}
    bytes_read = 0
    for op in ops:
        again = {t for t in op.reads if t in loaded or views.get(t, t) in inner}
        bytes_read += max(0, op.bytes_read - sum(map(records.nbytes, again)))
        if op.kind in ("group_norm", "instance_norm") or op.attributes.get("training_mode"):
            # Once for the sums, and again: an image, and even more a batch, is a large row.
            bytes_read += min(bytes_read, op.bytes_read)
        loaded.update(op.reads)
        if op is not first:
            attributes |= {key: value for key, value in op.attributes.items() if key not in (*SIZES, "fused")}
    # If only some have explicit durations, the cost model decides for all.
    durations = [op.duration_ns for op in ops if op.duration_ns is not None]
    everywhere = set(first.duration_by_kind).intersection(*(op.duration_by_kind for op in ops))
    edges = dict.fromkeys(edge for op in ops for edge in op.inputs)
    return replace(
        last,
        kind=kinds[0] if kinds[0] in PRODUCTS else "elementwise",
        inputs=[edge for edge in edges if edge[1] or views.get(edge[0], edge[0]) not in inner],
        after=list(dict.fromkeys(edge for op in ops for edge in op.after)),
        flops=sum(op.flops for op in ops),
        bytes_read=bytes_read,
        bytes_written=sum(max(0, op.bytes_written - sum(op.outputs[:1])) for op in ops[:-1])
        + last.bytes_written,
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
        fused = False
        for name in graph.op_names:
            record = records.ops.get(name)
            if record is not None and record.kind == "softmax":
                fused |= self._fuse(records, record)
        if not fused:
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
        operands = [*first.inputs[:2], *values[:1]]
        if len(operands) < 3 or any(records.is_parameter(tensor) for tensor, _ in operands):
            return False
        inputs = list(dict.fromkeys([*operands, *besides]))
        names = {record.name for record in chain}
        records.ops[last.name] = replace(
            _fuse(chain, records, {}),
            kind="attention",
            inputs=inputs,
            after=[edge for record in chain for edge in record.after if edge[0] not in names],
            bytes_read=sum(records.nbytes(tensor) for tensor, _ in inputs),
            bytes_written=sum(last.outputs),
            duration_by_kind={},
            attributes={"is_causal": True} if self.causal else {},
        )
        records.remove([record.name for record in chain[:-1]])
        return True
