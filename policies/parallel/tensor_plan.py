"""The products to split over tensor-parallel ranks, inferred from how they feed one another.

::

    x ──► qkv ──► attention ──► proj ──► add ──► norm ──► up ──► gelu ──► down ──► ...
          column  local         row                       column local    row

A *row* is a product with a weight whose data comes, through ops that treat each column (or head) separately,
from other products with weights; these are its *columns*. All outputs of columns must end in rows. So ranks
need one sum per pair, after the row. The remaining last product, the *head*, is split by columns (words) if
only the loss reads it, and embedding tables by rows (words).

Sources: Shoeybi et al., "Megatron-LM", arXiv 1909.08053, section 3; megatron/core/tensor_parallel/layers.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from policies.option_checks import pattern_of
from policies.rewrite.backward import CUT, OPTIMIZERS, elements
from policies.rewrite.records import OpEntry, Records
from sim.base.arrays import group_pairs
from sim.base.errors import GraphError, InputError, error_path
from sim.base.units import format_count

PRODUCTS: Final = frozenset({"matmul", "gemm"})

LOSSES: Final = frozenset({"softmax_cross_entropy", "sparse_softmax_cross_entropy"})

_VIEWS: Final = frozenset(
    {"identity", "read_variable", "reshape", "transpose", "cast", "squeeze", "unsqueeze"}
)

_ON_COLUMNS = """
    relu relu6 sigmoid tanh gelu silu elu leaky_relu softplus exp sqrt square neg erf mish hard_swish
    add sub mul div bias_add add_n where softmax attention matmul dropout copy flatten slice
    strided_slice split unpack concat pack expand rotary_embedding masked_fill
"""

_LOCAL: Final = _VIEWS | frozenset(_ON_COLUMNS.split())
"""Kinds that treat each column or head separately (a matmul of heads, without a weight)."""

_WITH_COLUMNS: Final = frozenset({"add", "sub", "mul", "div", "bias_add"})
"""Kinds whose parameter has one number per column."""


def data_and_weight(records: Records, record: OpEntry) -> tuple[str, str] | None:
    """Return the data and the weight of a product; None: it has no weight."""
    if record.kind not in PRODUCTS or len(record.inputs) < 2:
        return None
    (a, _), (b, _) = record.inputs[:2]
    for data, other in ((a, b), (b, a)):
        name: str | None = other
        while name is not None and name not in records.externals:
            producer = records.producer(name)
            name = producer.inputs[0][0] if producer is not None and producer.kind in _VIEWS else None
        if name is not None and records.is_parameter(name):
            return data, name
    return None


class TensorPlan:
    """The ops and parameters of a forward that are split.

    Parameters
    ----------
    records : Records
    order : list of OpEntry
        Ops in topological order.
    t : int
        Number of ranks.
    listed : mapping of str to str
        Regular expression for names of products → column or row; empty: inferred.
    vocabulary : bool
        Whether embeddings and head are split.

    Attributes
    ----------
    role : dict of str to str
        Product → ``"column"``, ``"row"`` or ``"head"``.
    split : set of str
        Parameters of which every rank has a part.
    whole : dict of str to str
        Op that stays as it is → why.
    """

    def __init__(
        self, records: Records, order: list[OpEntry], t: int, listed: Mapping[str, str], vocabulary: bool
    ) -> None:
        self.records, self.order, self.t = records, order, t
        if any(op.kind in OPTIMIZERS for op in order) and all(op.phase is None for op in order):
            raise GraphError(f"graph {records.name!r} does not say which ops are its forward (phase: F)")
        self.forward = [op for op in order if op.phase in (None, "F") and op.kind not in OPTIMIZERS]
        self.readers = group_pairs((tensor, op) for op in order for tensor, d in op.inputs if not d)
        self.names = {record.name for record in self.forward}
        self.trained = set(records.parameters())
        """Parameters, and the tensors that depend on them."""
        for record in self.forward:
            if record.kind not in CUT and not self.trained.isdisjoint(record.reads):
                self.trained.update(record.tensors)
        pairs = {record.name: data_and_weight(records, record) for record in self.forward}
        self.product = {name: pair for name, pair in pairs.items() if pair is not None}
        self.role: dict[str, str] = {}
        self.split: set[str] = set()
        self.whole: dict[str, str] = {}
        if listed:
            self._take_listed(listed)
        else:
            for name in self.product:
                self._pair(name)
        if vocabulary:
            self._split_vocabulary(listed=bool(listed))
        for name, role in self.role.items():
            self.split.add(self.product[name][1])
            if role != "row":
                self._split_with(name)
        for name in self.product:
            if name not in self.role and (vocabulary or listed or not self._is_head(name)):
                self.whole.setdefault(name, "nothing that is split follows it")

    # -- pairs ----------------------------------------------------------------------------------

    def _pair(self, name: str) -> None:
        """Make a product a row if columns lead to it."""
        columns = list(self._find_products(self.product[name][0]))
        if name in self.role or not columns:
            return
        ahead = list(self._find_readers(columns))
        rows = [name, *(op.name for op, tensor in ahead if tensor == self._data(op) and op.name != name)]
        reason = self._find_obstacle(columns, ahead)
        for product in (*columns, *rows):
            reason = reason or self._find_remainder(product, "row" if product in rows else "column")
        if reason is None:
            self.role |= {**dict.fromkeys(columns, "column"), **dict.fromkeys(rows, "row")}
            for product in (*columns, *rows):
                self.whole.pop(product, None)
        else:
            self.whole |= {product: reason for product in (*columns, name) if product not in self.role}

    def _find_products(self, tensor: str) -> Iterator[str]:
        """Yield the products with weights, not rows, from which local ops compute a tensor."""
        stack, seen = [tensor], set[str]()
        while stack:
            producer = self.records.producer(stack.pop())
            if producer is None or producer.name in seen:
                continue
            seen.add(producer.name)
            if producer.name in self.product:
                if self.role.get(producer.name, "column") == "column":
                    yield producer.name
            elif producer.kind in _LOCAL:
                stack += [source for source, distance in producer.inputs if not distance]

    def _find_readers(self, products: Sequence[str]) -> Iterator[tuple[OpEntry, str]]:
        """Yield the forward ops reached from products through local ops, with the tensor each reads."""
        stack = [self.records.ops[name] for name in products]
        seen = {record.name for record in stack}
        while stack:
            record = stack.pop()
            for tensor in record.tensors:
                for reader in self.readers.get(tensor, []):
                    if reader.name not in self.names:
                        continue
                    yield reader, tensor
                    product = reader.name in self.product
                    if reader.kind in _LOCAL and not product and reader.name not in seen:
                        seen.add(reader.name)
                        stack.append(reader)

    def _data(self, record: OpEntry) -> str | None:
        return self.product[record.name][0] if record.name in self.product else None

    def _find_obstacle(self, columns: Sequence[str], ahead: Sequence[tuple[OpEntry, str]]) -> str | None:
        """Return why the outputs of columns cannot stay split up to the rows."""
        local = [reader for reader, _ in ahead if reader.name not in self.product]
        split = {op.tensor(k) for op in local for k in range(len(op.outputs))} | {*columns}
        for reader, tensor in ahead:
            if tensor == self._data(reader):
                if self.role.get(reader.name, "row") != "row":
                    return f"it feeds {reader.name!r}, which is split already"
            elif reader.kind not in _LOCAL:
                return f"it feeds {reader.name!r} ({reader.kind}), which needs all of it"
            elif (heads := reader.attributes.get("heads", self.t)) % self.t:
                return f"{format_count(heads, 'head')} cannot be shared by {self.t} ranks"
            if reader in local:
                for other, _ in reader.inputs:
                    if other not in split and other in self.trained and other not in self.records.externals:
                        return f"it meets {other!r}, which is not split"
        return None

    def _find_remainder(self, name: str, role: str) -> str | None:
        """Return why a weight cannot be split evenly."""
        record, weight = self.records.ops[name], self.product[name][1]
        n = elements(self.records.externals[weight].nbytes, record.dtype)
        if n % self.t or record.attributes.get("k" if role == "row" else "n", 0) % self.t:
            return f"its weight cannot be shared evenly by {self.t} ranks"
        readers = [reader for reader in self.readers.get(weight, []) if reader.name in self.names]
        return "other ops read its weight" if len(readers) > 1 else None

    def _split_with(self, name: str) -> None:
        """Split the parameters that have one number per column of a product."""
        record = self.records.ops[name]
        biases = [tensor for tensor, _ in record.inputs[2:]]
        for reader, _ in self._find_readers([name]):
            if reader.kind in _WITH_COLUMNS:
                biases += [tensor for tensor, _ in reader.inputs]
        for tensor in biases:
            if self.records.is_parameter(tensor):
                n = elements(self.records.externals[tensor].nbytes, record.dtype)
                if n >= self.t and n % self.t == 0:
                    self.split.add(tensor)

    # -- lists, embeddings and heads ------------------------------------------------------------

    def _take_listed(self, listed: Mapping[str, str]) -> None:
        """Take the roles that the user lists."""
        for pattern, role in listed.items():
            names = list(filter(pattern_of(pattern, "split").search, self.product))
            with error_path("split", pattern):
                if not names:
                    raise InputError(f"no product with a weight has a name that matches {pattern}")
                for name in names:
                    if self.role.get(name, role) != role:
                        raise InputError(f"{name!r} is both a column and a row")
                    if (reason := self._find_remainder(name, role)) is not None:
                        raise InputError(f"{name!r}: {reason}")
                    self.role[name] = role
        for name, role in self.role.items():
            columns = list(self._find_products(self.product[name][0])) if role == "row" else [name]
            if not any(self.role.get(column) == "column" for column in columns):
                raise InputError(f"no column leads to {name!r}", path=("split",))

    def _split_vocabulary(self, *, listed: bool) -> None:
        """Split heads and embedding tables by words."""
        lookups = [op for op in self.forward if op.kind == "gather" and len(op.inputs) > 1]
        tables = {op.name: op.reads[0] for op in lookups if self.records.is_parameter(op.reads[0])}
        unassigned = [] if listed else [name for name in self.product if name not in self.role]
        heads = [name for name in unassigned if self._is_head(name)]
        weights = [self.product[name][1] for name in heads]
        for weight in dict.fromkeys((*weights, *tables.values())):
            users = {record.name for record in self.readers.get(weight, []) if record.name in self.names}
            even = elements(self.records.externals[weight].nbytes, None) % self.t == 0
            if users <= {*heads, *tables} and even:
                self.split.add(weight)
                sharing = [name for name in heads if self.product[name][1] == weight]
                self.role |= dict.fromkeys(sharing, "head")
            elif users & {*tables}:
                self.whole |= dict.fromkeys(users & {*tables}, "not all ops that read its table can be split")
        for name in self.role:
            self.whole.pop(name, None)

    def _is_head(self, name: str) -> bool:
        """Return whether only losses, or no ops, read the output of a product."""
        if self.records.ops[name].attributes.get("n", 0) % self.t:
            return False
        for reader, _ in self._find_readers([name]):
            unsplit = [t for t in reader.reads if t in self.trained and t not in self.split]
            if reader.kind not in (*LOSSES, *_VIEWS, "bias_add", "add") or len(unsplit) > 2:
                return False
        return True
