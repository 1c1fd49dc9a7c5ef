"""Layout: run convolutions in the format the device prefers, and cancel transposes that meet.

::

    NHWC:  x ─► conv ─► relu ─► conv ─► y

    1. a transpose on both sides of each op that cares       x ─►T─► conv ─►T'─► relu ─►T─► conv ─►T'─► y
    2. transposes sink through ops that do not care          x ─►T─► conv ─► relu ─►T'─►T─► conv ─►T'─► y
    3. T' followed by T is nothing                           x ─►T─► conv ─► relu ─► conv ─►T'─► y

As tensorflow/core/grappler/optimizers/generic_layout_optimizer.cc. An op says its format by its attribute
``data_format`` (``"NHWC"`` or ``"NCHW"``); a transpose reads and writes its tensor once.
"""

from __future__ import annotations

from typing import Final

from policies.compile.records import Edge, Record, Records, read, write
from policies.option_checks import one_of
from sim import Graph

__all__ = ["Layout"]

FORMATS: Final = ("NHWC", "NCHW")
AGNOSTIC: Final = ("relu", "add", "mul", "sigmoid", "tanh", "identity", "batch_norm", "dropout", "gelu")
"""Kinds that compute the same in any format (all inputs in one)."""


class Layout:
    """Convert every op with a ``data_format`` to one format.

    Parameters
    ----------
    prefer : str
        ``"NCHW"`` (GPU convolutions in 32 bit) or ``"NHWC"`` (CPU, tensor cores).

    Raises
    ------
    InputError
        Another word.
    """

    def __init__(self, prefer: str = "NCHW") -> None:
        self.prefer = one_of("layout", "prefer", prefer, FORMATS)

    def apply(self, graph: Graph) -> Graph:
        """Return the graph in the preferred format."""
        records = read(graph)
        for record in list(records.ops.values()):
            current = record.attributes.get("data_format")
            if current in FORMATS and current != self.prefer:
                self._surround(record, current, records)
        while _sink(records) or _cancel(records):
            pass
        return write(records)

    def _surround(self, record: Record, current: str, records: Records) -> None:
        """Put a transpose before the first input and after the first output of an op."""
        record.attributes["data_format"] = self.prefer
        before, after = f"{record.name}/to_{self.prefer}", f"{record.name}/to_{current}"
        _transpose(before, record.inputs[0], (current, self.prefer), record, records)
        records.redirect({record.name: after})
        for other in records.ops.values():  # whoever followed the op still follows the op itself
            other.after = [(record.name if name == after else name, d) for name, d in other.after]
        _transpose(after, (record.name, 0), (self.prefer, current), record, records)
        record.inputs[0] = (before, 0)


def _transpose(name: str, edge: Edge, way: tuple[str, str], like: Record, records: Records) -> None:
    """Add a transpose of what an edge brings, from one format to another, on the device of an op."""
    nbytes, attributes = records.nbytes(edge[0]), dict(zip(("from", "to"), way, strict=True))
    new = Record(name, "transpose", [edge], [], (nbytes,), device=like.device, dtype=like.dtype)
    new.bytes_read, new.bytes_written, new.attributes = nbytes, nbytes, attributes
    records.ops[name] = new


def _way(record: Record | None) -> tuple[str, str] | None:
    """Return from which format to which a transpose leads; None where an op is none."""
    if record is None or record.kind != "transpose" or not {"from", "to"} <= record.attributes.keys():
        return None
    return record.attributes["from"], record.attributes["to"]


def _sink(records: Records) -> bool:
    """Move one transpose below an op that does not care, when all its inputs are transposed alike."""
    readers = records.readers()
    for record in records.ops.values():
        if record.kind not in AGNOSTIC or len(record.outputs) != 1 or not readers[record.name]:
            continue
        above = [op for tensor, _ in record.inputs if (op := records.producer(tensor)) is not None]
        ways = {_way(producer) for producer in above}
        way = ways.pop() if len(ways) == 1 and len(above) == len(record.inputs) else None
        if way is None or any(len(readers[producer.name]) > 1 or producer.after for producer in above):
            continue
        record.inputs = [producer.inputs[0] for producer in above]
        records.remove(dict.fromkeys(producer.name for producer in above))
        below = f"{record.name}/to_{way[1]}"
        for reader in readers[record.name]:
            reader.inputs = [(below if t == record.name else t, d) for t, d in reader.inputs]
        _transpose(below, (record.name, 0), way, record, records)
        return True
    return False


def _cancel(records: Records) -> bool:
    """Remove one pair of transposes that undo one another."""
    for record in records.ops.values():
        way = _way(record)
        above = records.producer(record.inputs[0][0]) if way is not None and not record.inputs[0][1] else None
        first = _way(above)
        if way is None or above is None or first is None or first[0] != way[1]:
            continue
        records.redirect({record.name: above.inputs[0][0]})
        records.remove([record.name])
        if not records.readers()[above.name]:
            records.remove([above.name])
        return True
    return False
