"""Arithmetic simplification: the same value from fewer operations.

::

    x + x + x                     3 · x                    (a product with a scalar constant)
    (a + s1) + (b + s2)           (a + b) + (s1 + s2)      (s scalars: one large sum fewer)

Only sums with no other reader are taken apart. The second rule and its cost argument are from the
TensorFlow white paper's successor, "TensorFlow Graph Optimizations" (Larsen and Shpeisman, 2019).
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from policies.rewrite.backward import elements
from policies.rewrite.records import Edge, OpEntry, Records, read, write
from sim import Graph

SCALAR_BYTES = 8


class Arithmetic:
    """Simplify sums."""

    def apply(self, graph: Graph) -> Graph:
        """Return the simplified graph."""
        records = read(graph)
        _repeated_sums(records, records.in_order(graph))
        _scalar_sums(records)
        return write(records)


def _is_sum(record: OpEntry) -> bool:
    return record.kind == "add" and len(record.inputs) == 2 and all(d == 0 for _, d in record.inputs)


class _Tree(NamedTuple):
    """A tree of sums whose leaves are all the same tensor, with their number."""

    term: str
    times: int


def _repeated_sums(records: Records, order: list[OpEntry]) -> None:
    """Turn x + x + ... + x into n·x; `order` is a topological order."""
    readers, gone = records.readers(), dict[str, None]()

    def inner(tensor: str, reader: OpEntry) -> OpEntry | None:
        """Return the sum that produces `tensor`, if only the sum `reader` needs it."""
        below = records.producer(tensor)
        if below is None or below.kind != "add" or any(d for _, d in below.inputs):
            return None
        sole_reader = len(readers[below.name]) == 1 and not below.after
        return below if sole_reader and below.device == reader.device else None

    trees: dict[str, _Tree | None] = {}  # by top sum; None: several different tensors
    nested: dict[str, list[str]] = {}  # the sums that only a sum needs
    for record in order:
        if record.kind != "add" or any(d for _, d in record.inputs):
            continue
        below = [inner(tensor, record) for tensor in record.reads]
        nested[record.name] = [op.name for op in below if op is not None]
        parts = [
            _Tree(tensor, 1) if op is None else trees[op.name]
            for tensor, op in zip(record.reads, below, strict=True)
        ]
        terms = {None if part is None else part.term for part in parts}
        times = sum(part.times for part in parts if part is not None)
        term = terms.pop() if len(terms) == 1 else None
        trees[record.name] = None if term is None else _Tree(term, times)

    for record in reversed(order):  # a sum before its terms
        tree = trees.get(record.name)
        if tree is None or tree.times < 3 or record.name in gone or not _is_sum(record):
            continue
        below_it = [*nested[record.name]]
        for name in below_it:
            below_it += nested[name]
        gone |= dict.fromkeys(below_it)
        factor, value = records.free(f"{record.name}/times"), {"value": tree.times}
        facts: dict[str, Any] = {"duration_ns": 0, "device": record.device, "attributes": value}
        records.ops[factor] = OpEntry(factor, "const", [], [], (SCALAR_BYTES,), **facts)
        record.kind = "mul"
        record.inputs = [(tree.term, 0), (factor, 0)]
        record.bytes_read = records.nbytes(tree.term) + SCALAR_BYTES
    records.remove(gone)


def _scalar_sums(records: Records) -> None:
    """Add scalars to one another before they are added to tensors."""
    readers = records.readers()
    for record in list(records.ops.values()):
        if not _is_sum(record):
            continue
        sides = [side for side in records.makers(record.inputs) if len(readers[side.name]) == 1]
        matches = [_tensor_and_scalar(side, records) for side in sides if side.device == record.device]
        parts = [part for part in matches if part is not None]
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


def _tensor_and_scalar(record: OpEntry, records: Records) -> tuple[OpEntry, str, str] | None:
    """Return a sum of a tensor and a scalar constant, with the two; None: it is not such a sum."""
    tensors, scalars = list[str](), list[str]()
    for tensor in record.reads if _is_sum(record) else []:
        scalar = _is_constant(tensor, records) and records.nbytes(tensor) <= SCALAR_BYTES
        (scalars if scalar else tensors).append(tensor)
    return (record, tensors[0], scalars[0]) if len(tensors) == len(scalars) == 1 else None


MAX_CONSTANT_BYTES: Final = 10 << 20
SHAPE_KINDS: Final = frozenset({"shape", "rank", "size"})
"""Kinds that read only the shape of their input, which is known before the run."""


class ConstantFolding:
    """Fold constants, and products with constants.

    Constant folding: ops that depend only on constants are computed before the run.

    ::

        const ─► reshape ─► matmul        const' ─► matmul
        shape(x) ─► fill ─►               (the shape of x is known, and so is everything derived from it)

        mul(c1, mul(x, c2))               mul(x, c1·c2)

    Folded ops become ``const`` ops without cost that keep name and size. As in
    tensorflow/core/grappler/optimizers/constant_folding.cc, an op is not folded when its result would be
    larger than 10 MiB.
    """

    def apply(self, graph: Graph) -> Graph:
        """Return the folded graph."""
        records = read(graph)
        for record in records.in_order(graph):
            if self._foldable(record, records):
                _make_constant(record, records)
        _fold_products(records)
        was_read = {graph.op_names[op] for op in graph.edges.producer.tolist()}
        factors = (name for name, record in records.ops.items() if record.kind in ("const", "mul"))
        records.remove_unused(was_read.intersection(factors))
        return write(records)

    def _foldable(self, record: OpEntry, records: Records) -> bool:
        if record.stateful or record.kind == "const" or sum(record.outputs) > MAX_CONSTANT_BYTES:
            return False
        if record.kind in SHAPE_KINDS:
            return True
        return bool(record.inputs) and all(_is_constant(tensor, records) for tensor, _ in record.inputs)


def _make_constant(record: OpEntry, records: Records) -> None:
    """Turn an op into a constant with control edges from all its former predecessors."""
    for tensor, distance in record.inputs:
        producer = records.producer(tensor)
        if producer is not None:
            record.after += producer.after if producer.kind == "const" else [(producer.name, distance)]
    record.after = list(dict.fromkeys(record.after))
    record.kind = "const"
    record.inputs = []
    record.attributes.pop("value", None)  # for a fill, only one of many elements
    record.flops = record.bytes_read = record.bytes_written = 0
    record.duration_ns, record.duration_by_kind = 0, {}


def _fold_products(records: Records) -> None:
    """Rewrite ``mul(c1, mul(x, c2))`` to ``mul(x, c)`` if nothing else reads the inner product."""
    readers = records.readers()
    for outer in list(records.ops.values()):
        split = _constant_and_other(outer, records)
        inner = records.producer(split[1][0]) if split is not None and not split[1][1] else None
        below = _constant_and_other(inner, records) if inner is not None else None
        if split is None or inner is None or below is None:
            continue
        if len(readers[inner.name]) == 1 and inner.device == outer.device:
            outer.inputs = [below[1], split[0]]
            outer.after = list(dict.fromkeys([*outer.after, *inner.after]))
            outer.bytes_read = sum(records.nbytes(tensor) for tensor, _ in outer.inputs)


def _constant_and_other(record: OpEntry, records: Records) -> tuple[Edge, Edge] | None:
    """Return (constant input, other input) of a product; None unless exactly one is constant."""
    if record.kind != "mul" or len(record.inputs) != 2:
        return None
    constant = [edge for edge in record.inputs if _is_constant(edge[0], records)]
    other = [edge for edge in record.inputs if not _is_constant(edge[0], records)]
    return (constant[0], other[0]) if len(constant) == 1 else None


def _is_constant(tensor: str, records: Records) -> bool:
    producer = records.producer(tensor)
    return producer is not None and producer.kind == "const"


_COMMUTATIVE = """add mul add_n accumulate_nv2 approximate_equal bitwise_and bitwise_or bitwise_xor equal
    not_equal and or squared_difference"""
COMMUTATIVE: Final = frozenset(_COMMUTATIVE.split())
"""Kinds that TensorFlow's op registry marks as commutative."""

MERGED_ANYWAY: Final = frozenset({"assert", "print"})
"""Kinds marked stateful in TensorFlow's registry, "mistakenly" according to Grappler."""

RESULT_LEFT_OUT: Final = frozenset({"reshape", "expand", "resize", "constant_of_shape"})
"""Kinds with an operand that determines the result and that importers omit if it is constant."""


class CommonSubexpressions:
    """Merge equal ops.

    Common subexpression elimination: one op in place of several that compute the same from the same inputs.

    Two ops are equal if kind, inputs, control inputs, attributes, sizes, data type and device are; the first
    in program order stays. The operands of a commutative op may be in any order.

    Ops not known to be equal stay: stateful ops (`policies.rewrite.records`), ops whose results an in-place
    op may overwrite, and ops whose value the graph does not hold::

        const (no value)    const (no value)        two constants
        const (value: 3)    const (value: 3)        one
        reshape(x)          reshape(x)              two, where importers leave out the shape

    As in tensorflow/core/grappler/optimizers/common_subgraph_elimination.cc, which also merges ``Assert``
    and ``Print``. There a constant always has a value.
    """

    def apply(self, graph: Graph) -> Graph:
        """Return the graph with equal ops merged."""
        records = read(graph)
        overwritten = _overwritten(records)
        first: dict[str, str] = {}
        moved: dict[str, str] = {}

        def redirect(record: OpEntry) -> None:
            record.inputs = [(moved.get(tensor, tensor), d) for tensor, d in record.inputs]
            after = dict.fromkeys((moved.get(name, name), d) for name, d in record.after)
            record.after = [edge for edge in after if edge != (record.name, 0)]

        for record in records.in_order(graph):
            redirect(record)
            if record.name in overwritten or not _is_known(record):
                continue
            original = first.setdefault(_key(record), record.name)
            if original != record.name:
                for k in range(len(record.outputs)):
                    moved[record.tensor(k)] = records.ops[original].tensor(k)
        records.ops = {name: record for name, record in records.ops.items() if name not in moved}
        for record in records.ops.values():  # what is read of an earlier iteration may come later
            redirect(record)
        return write(records)


def _is_known(record: OpEntry) -> bool:
    """Return whether the record determines the op's result and the op has no side effects."""
    if record.stateful and record.kind not in MERGED_ANYWAY:
        return False
    if not record.inputs:
        return "value" in record.attributes
    return record.kind not in RESULT_LEFT_OUT or len(record.inputs) > 1


def _overwritten(records: Records) -> set[str]:
    """Return the ops whose results an in-place op may overwrite: all its ancestors."""
    ancestors: set[str] = set()
    stack = [record.name for record in records.ops.values() if record.in_place]
    while stack:
        new = {maker.name for maker in records.makers(records.ops[stack.pop()].inputs)} - ancestors
        ancestors |= new
        stack += new
    return ancestors


def _key(record: OpEntry) -> str:
    """Return, as text, everything that decides whether two ops are equal."""
    inputs = sorted(record.inputs) if record.kind in COMMUTATIVE else record.inputs
    facts = {**vars(record), "name": "", "inputs": inputs, "after": sorted(record.after)}
    return json.dumps(facts, sort_keys=True, default=repr)


class BatchNorm:
    """Merge each batch norm written out with running statistics into one op.

    Batch norm: one op in place of the sums and products that inference graphs contain.

    ::

        x ────────► mul ─────────► add ─► y                   x ─► batch_norm ─► y
        var ─► add ─► rsqrt ┤       │            becomes           ▲ ▲ ▲ ▲
              (eps)  (─► mul│gamma) │                          (gamma) beta mean var
        mean ─────────► mul ─► sub ─┘
        beta ──────────────────┘

    As TensorFlow's remapper and ONNX exporters do for Keras models. The op multiplies and adds once per
    element (2 flop, scale and shift folded) and reads x and the four vectors; `training` knows its gradient
    with batch statistics.

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
        parts = {name: match for name, match in matched.items() if match is not None}
        if not parts:
            return graph
        for name, (reads, _) in parts.items():
            op = records.ops[name]
            op.kind, op.inputs = "batch_norm", [(tensor, 0) for tensor in reads]
            op.flops = 2 * elements(op.outputs[0], op.dtype)
            op.bytes_read = sum(map(records.nbytes, reads))
            op.bytes_written = op.outputs[0]
        records.remove_unused(name for _, ops in parts.values() for name in ops)
        return write(records)


_WRITTEN_OUT = ("add", ("mul", "x", "scale"), ("sub", "beta", ("mul", "mean", "scale")))
_ROOT = ("rsqrt", ("add", "var", "eps"))
_SCALES = (("mul", _ROOT, "gamma"), _ROOT)
"""A kind with its inputs in order; a word stands for the same tensor wherever it occurs."""


def _match(records: Records, last: OpEntry) -> tuple[list[str], list[str]] | None:
    """Return the inputs and other ops of the batch norm that ends with `last`; None: it is not one."""
    bound: dict[str, str] = {}
    ops: list[OpEntry] = []

    def fits(tensor: str, pattern: Any) -> bool:
        if isinstance(pattern, str):
            return bound.setdefault(pattern, tensor) == tensor
        op, (kind, *operands) = records.producer(tensor), pattern
        if op is None or op.kind != kind or len(op.inputs) != len(operands) or (op.after and op is not last):
            return False
        ops.append(op)
        return all(fits(name, part) for (name, _), part in zip(op.inputs, operands, strict=True))

    if any(distance for _, distance in last.inputs) or not fits(last.name, _WRITTEN_OUT):
        return None
    if not any(fits(bound["scale"], scale) for scale in _SCALES):
        return None
    reads = [bound[name] for name in ("x", "gamma", "beta", "mean", "var") if name in bound]
    return reads, [op.name for op in ops[1:]]
