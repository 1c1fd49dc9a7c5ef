"""Layout: run convolutions in the format the device prefers, and cancel transposes that meet.

::

    NHWC:  x ─► conv ─► relu ─► conv ─► y

    1. a transpose on both sides of each op with a format    x ─►T─► conv ─►T'─► relu ─►T─► conv ─►T'─► y
    2. transposes sink through format-agnostic ops           x ─►T─► conv ─► relu ─►T'─►T─► conv ─►T'─► y
    3. T' followed by T cancels                              x ─►T─► conv ─► relu ─► conv ─►T'─► y

All in one walk: a tensor is known to be a transpose of another one, and is made where it is read as it was.

As in tensorflow/core/grappler/optimizers/generic_layout_optimizer.cc. An op's attribute ``data_format``
(``"NHWC"`` or ``"NCHW"``) is its format; a transpose reads and writes its tensor once.
"""

from __future__ import annotations

from typing import Final

from policies.option_checks import one_of
from policies.rewrite.records import Edge, OpEntry, read, write
from sim import Graph
from sim.base.arrays import group_pairs

FORMATS: Final = ("NHWC", "NCHW")
AGNOSTIC: Final = ("relu", "add", "mul", "sigmoid", "tanh", "identity", "batch_norm", "dropout", "gelu")
"""Format-agnostic kinds: they compute the same in any format, with all inputs in the same one."""
_OF_TWO_IMAGES: Final = ("conv_weight_grad", "batch_norm_grad")  # they keep their format


class Layout:
    """Convert every op with a ``data_format`` to one format.

    Parameters
    ----------
    format : str
        ``"NCHW"`` (GPU convolutions in 32 bit) or ``"NHWC"`` (CPU, tensor cores).

    Raises
    ------
    InputError
        If `format` is any other word.
    """

    def __init__(self, format: str = "NCHW") -> None:
        self.format = one_of("layout", "format", format, FORMATS)

    def apply(self, graph: Graph) -> Graph:
        """Return the graph in the preferred format."""
        return _Walk(graph, self.format).graph()


_Way = tuple[str, str]
"""A transpose's source and target formats."""


class _Walk:
    """Hands transposes down from op to op, and adds one where a tensor itself is read."""

    def __init__(self, graph: Graph, format: str) -> None:
        self.records, self.format = read(graph), format
        ops = self.records.ops
        self.order = self.records.in_order(graph)
        self.readers = group_pairs(
            (tensor, (op, k, d)) for op in ops.values() for k, (tensor, d) in enumerate(op.inputs)
        )
        back = format, FORMATS[1 - FORMATS.index(format)]
        images = (op for op in ops.values() if op.kind not in (*AGNOSTIC, *_OF_TWO_IMAGES))
        converted = [op.name for op in images if op.attributes.get("data_format") == back[1]]
        self.given = {op.name: way for op in self.order if (way := self._way_of(op)) is not None}
        """The graph's own transposes that may sink or cancel."""
        self.undoes = {name: way[::-1] for name, way in self.given.items()} | dict.fromkeys(converted, back)
        """Op → the transpose that its first input need not be: of those ops and of converted ones."""
        self.moved: dict[str, tuple[str, _Way | None]] = {}
        """Tensor → the tensor that stands for it, and the transpose of that which it is, if it is one."""
        self.made = {name: name for name in self.given}
        """Tensor → the transpose that makes it."""

    def graph(self) -> Graph:
        """Return the graph after the walk."""
        for record in self.order:
            self._visit(record)
        for name in self.undoes:
            if name not in self.readers:  # a result of the graph
                self._current_name(name)
        for record in [*self.records.ops.values()]:  # what is read of an earlier iteration may come later
            record.inputs = [(self._current_name(tensor) if d else tensor, d) for tensor, d in record.inputs]
        self._drop_unread()
        return write(self.records)

    def _way_of(self, record: OpEntry) -> _Way | None:
        """Return the formats of a transpose that others read, and that waits for nothing else."""
        is_one = record.kind == "transpose" and {"from", "to"} <= record.attributes.keys()
        if not is_one or record.after or record.inputs[0][1] or record.name not in self.readers:
            return None
        return record.attributes["from"], record.attributes["to"]

    def _visit(self, record: OpEntry) -> None:
        """Let an op read what it needs, once its producers have been visited."""
        name, old = record.name, record.inputs
        stands = [(t, None) if d else self.moved.get(t, (t, None)) for t, d in old]
        source, before = stands[0] if stands else ("", None)
        undone = self.undoes.get(name)
        if name in self.given and before == undone:
            self.moved[name] = source, None
        elif undone is not None and name not in self.given:
            record.attributes["data_format"] = self.format
            if before != undone:
                source = self._transpose(f"{name}/to_{self.format}", self._read(old[0]), undone[::-1], record)
            record.inputs = [(source, 0), *map(self._read, old[1:])]
            self.moved[name] = name, undone
        elif before is not None and {way for _, way in stands} == {before} and self._sinks(before, record):
            record.inputs = [(source, 0) for source, _ in stands]
            if "data_format" in record.attributes:
                record.attributes["data_format"] = self.format
            self.moved[name] = name, before
        else:
            record.inputs = [*map(self._read, old)]
            if undone is not None:
                self.moved[name] = record.inputs[0][0], undone[::-1]

    def _sinks(self, way: _Way, record: OpEntry) -> bool:
        """Return whether an op computes the same in any format, and alone reads transposes that stay."""
        if record.kind not in AGNOSTIC or len(record.outputs) != 1 or record.name not in self.readers:
            return False
        rows = [self.readers[tensor] for tensor in record.reads]
        return all(
            sum(bool(d or k) or self.undoes.get(op.name) != way for op, k, d in row) == 1 for row in rows
        )

    def _read(self, edge: Edge) -> Edge:
        return edge if edge[1] else (self._current_name(edge[0]), 0)

    def _current_name(self, tensor: str) -> str:
        """Return the op or tensor to read for a tensor as the graph has it."""
        source, way = self.moved.get(tensor, (tensor, None))
        if way is None:
            return source
        if tensor not in self.made:
            name, like = f"{tensor}/to_{way[1]}", self.records.maker(tensor)
            self.made[tensor] = self._transpose(name, (source, 0), way, like)
        return self.made[tensor]

    def _transpose(self, name: str, edge: Edge, way: _Way, like: OpEntry) -> str:
        """Add a transpose of an edge's tensor from one format to another, on the device of `like`."""
        name, nbytes = self.records.free(name), self.records.nbytes(edge[0])
        new = OpEntry(name, "transpose", [edge], [], (nbytes,), device=like.device, dtype=like.dtype)
        new.bytes_read = new.bytes_written = nbytes
        new.attributes = dict(zip(("from", "to"), way, strict=True))
        self.records.ops[name] = new
        return name

    def _drop_unread(self) -> None:
        """Remove the graph's transposes that no op reads now; what follows one will follow its producer."""
        ops = self.records.ops
        read_ = {tensor for op in ops.values() if op.name not in self.given for tensor in op.reads}
        for name in reversed(self.given):
            if name in read_:
                read_.update(ops[name].reads)
        unread = [name for name in self.given if name not in read_]
        follows: dict[str, str | None] = {}
        for name in unread:
            producer = self.records.producer(ops[name].reads[0])
            follows[name] = None if producer is None else follows.get(producer.name, producer.name)
        for record in ops.values():
            after = dict.fromkeys((follows.get(name, name), d) for name, d in record.after)
            record.after = [(name, d) for name, d in after if name is not None]
        for name in unread:
            del ops[name]
