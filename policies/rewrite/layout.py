"""Layout: run convolutions in the format the device prefers, and cancel transposes that meet.

::

    NHWC:  x ─► conv ─► relu ─► conv ─► y

    1. a transpose on both sides of each op with a format    x ─►T─► conv ─►T'─► relu ─►T─► conv ─►T'─► y
    2. transposes sink through format-agnostic ops           x ─►T─► conv ─► relu ─►T'─►T─► conv ─►T'─► y
    3. T' followed by T cancels                              x ─►T─► conv ─► relu ─► conv ─►T'─► y

As in tensorflow/core/grappler/optimizers/generic_layout_optimizer.cc. An op's attribute ``data_format``
(``"NHWC"`` or ``"NCHW"``) is its format; a transpose reads and writes its tensor once.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from policies.option_checks import one_of
from policies.rewrite.records import Edge, OpEntry, Records, read, write
from sim import Graph

FORMATS: Final = ("NHWC", "NCHW")
AGNOSTIC: Final = ("relu", "add", "mul", "sigmoid", "tanh", "identity", "batch_norm", "dropout", "gelu")
"""Format-agnostic kinds: they compute the same in any format, with all inputs in the same one."""


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
        records = read(graph)
        other = FORMATS[1 - FORMATS.index(self.format)]
        differing = [op for op in records.ops.values() if op.attributes.get("data_format") == other]
        if differing:
            self._surround(differing, other, records)
        _Transposes(records).settle()
        return write(records)

    def _surround(self, differing: list[OpEntry], current: str, records: Records) -> None:
        """Put a transpose before the first input and after the first output of ops in the other format."""
        nbytes = [records.nbytes(record.inputs[0][0]) for record in differing]
        moved = {record.name: records.free(f"{record.name}/to_{current}") for record in differing}
        for reader in records.ops.values():  # control edges still follow the op itself
            reader.inputs = [(moved.get(tensor, tensor), d) for tensor, d in reader.inputs]
        for record, size in zip(differing, nbytes, strict=True):
            record.attributes["data_format"] = self.format
            before = records.free(f"{record.name}/to_{self.format}")
            _transpose(before, record.inputs[0], (current, self.format), size, record, records)
            record.inputs[0] = (before, 0)
            size = record.outputs[0]
            _transpose(moved[record.name], (record.name, 0), (self.format, current), size, record, records)


def _transpose(
    name: str, edge: Edge, way: tuple[str, str], nbytes: int, like: OpEntry, records: Records
) -> None:
    """Add a transpose of an edge's tensor from one format to another, on the device of `like`."""
    new = OpEntry(name, "transpose", [edge], [], (nbytes,), device=like.device, dtype=like.dtype)
    new.bytes_read = new.bytes_written = nbytes
    new.attributes = dict(zip(("from", "to"), way, strict=True))
    records.ops[name] = new


def _way(record: OpEntry | None) -> tuple[str, str] | None:
    """Return a transpose's source and target formats; None: the op is not a transpose."""
    if record is None or record.kind != "transpose" or not {"from", "to"} <= record.attributes.keys():
        return None
    return record.attributes["from"], record.attributes["to"]


class _Transposes:
    """Sinks and cancels transposes until none can move: the first that can, sinking before cancelling.

    Only ops that a change may have affected are looked at again.
    """

    def __init__(self, records: Records) -> None:
        self.records, self.followers = records, records.followers()
        self.readers: dict[str, dict[str, int]] = {}  # readers of each op, with counts
        self.place: dict[str, int] = {}  # in op order; a reused name gets a new place
        self.count = 0
        self.to_sink: list[tuple[int, str]] = []
        self.to_cancel: list[tuple[int, str]] = []
        for name in records.ops:
            self._add(name)
        for record in records.ops.values():
            self._note(record, 1)
        for name in records.ops:
            self._look_at(name)

    def settle(self) -> None:
        """Sink and cancel until nothing changes."""
        while self.to_sink or self.to_cancel:
            todo = self.to_sink or self.to_cancel
            place, name = heappop(todo)
            if self.place.get(name) == place:
                (self._sink if todo is self.to_sink else self._cancel)(self.records.ops[name])

    def _sink(self, record: OpEntry) -> None:
        """Move transposes below a format-agnostic op if all its inputs are transposed alike."""
        above = [self.records.producer(tensor) for tensor, distance in record.inputs if not distance]
        ways = {_way(producer) for producer in above}
        way = ways.pop() if len(ways) == 1 and len(above) == len(record.inputs) else None
        transposes = [producer for producer in above if producer is not None]
        if way is None or len(record.outputs) != 1 or not self.readers[record.name]:
            return
        if any(producer.after or not self._read_once(producer) for producer in transposes):
            return
        readers = [self.records.ops[name] for name in self.readers[record.name]]
        self._read(record, [producer.inputs[0] for producer in transposes])
        for producer in transposes:
            self._drop(producer)
        below = self.records.free(f"{record.name}/to_{way[1]}")
        _transpose(below, (record.name, 0), way, record.outputs[0], record, self.records)
        self._add(below)
        self.followers[below] = []
        self._hand_over(readers, record.name, below)
        self._note(self.records.ops[below], 1)
        for name in (record.name, below):
            self._look_at(name)

    def _cancel(self, record: OpEntry) -> None:
        """Remove a pair of transposes that undo one another; readers of the second read the first's input."""
        way, (tensor, distance) = _way(record), record.inputs[0]
        above = self.records.producer(tensor)
        first = _way(above)
        if above is None or way is None or first is None or first[0] != way[1]:
            return
        (source, before), readers = above.inputs[0], [*self.readers[record.name]]
        if distance or before or record.after or above.after or not readers:
            return
        self._hand_over([self.records.ops[name] for name in readers], record.name, source)
        self._drop(record)
        if not self.readers[above.name]:
            self._drop(above)
        for left in (self.records.ops.get(above.name), self.records.producer(source)):
            if left is not None and self._read_once(left):  # which lets it sink
                self._look_at(next(iter(self.readers[left.name])))

    def _hand_over(self, readers: list[OpEntry], old: str, new: str) -> None:
        """Make ops read one tensor in place of another, and queue them to be looked at again."""
        for reader in readers:
            self._read(reader, [(new if tensor == old else tensor, d) for tensor, d in reader.inputs])
            self._look_at(reader.name)

    def _look_at(self, name: str) -> None:
        """Queue an op to be looked at."""
        record = self.records.ops[name]
        if record.kind in AGNOSTIC:
            heappush(self.to_sink, (self.place[name], name))
        elif _way(record) is not None:
            heappush(self.to_cancel, (self.place[name], name))

    # -- readers ---------------------------------------------------------------------------------

    def _add(self, name: str) -> None:
        self.readers[name] = {}
        self.place[name] = self.count
        self.count += 1

    def _read_once(self, record: OpEntry) -> bool:
        return sum(self.readers[record.name].values()) == 1

    def _read(self, record: OpEntry, inputs: list[Edge]) -> None:
        """Replace the inputs of an op."""
        self._note(record, -1)
        record.inputs = inputs
        self._note(record, 1)

    def _note(self, record: OpEntry, times: int) -> None:
        for producer in self.records.makers(record.inputs):
            row = self.readers[producer.name]
            row[record.name] = row.get(record.name, 0) + times
            if not row[record.name]:
                del row[record.name]

    def _drop(self, transpose: OpEntry) -> None:
        """Remove a transpose; its followers follow the producer of its input instead."""
        self._note(transpose, -1)
        tensor, distance = transpose.inputs[0]
        producer = self.records.producer(tensor)
        if producer is not None:
            for follower in self.followers[transpose.name]:
                edges = [
                    (producer.name, d + distance) for name, d in follower.after if name == transpose.name
                ]
                follower.after = list(dict.fromkeys([*follower.after, *edges]))
                self.followers[producer.name].append(follower)
        self.records.remove([transpose.name], self.followers)
        del self.readers[transpose.name], self.place[transpose.name]
