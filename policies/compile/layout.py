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

from policies.compile.records import Record, Records, read, write
from sim import Graph
from sim.words.errors import InputError

__all__ = ["Layout"]

FORMATS: Final = ("NHWC", "NCHW")
AGNOSTIC: Final = frozenset(
    {"relu", "add", "mul", "sigmoid", "tanh", "identity", "batch_norm", "dropout", "gelu"}
)
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
        if prefer not in FORMATS:
            message = f"layout: prefer must be one of {', '.join(FORMATS)}; found {prefer!r}"
            raise InputError(message, path=("prefer",))
        self.prefer = prefer

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
        tensor, distance = record.inputs[0]
        before = _transpose(
            f"{record.name}/to_{self.prefer}", tensor, distance, current, self.prefer, record, records
        )
        after = f"{record.name}/to_{current}"
        records.redirect({record.name: after})
        for other in records.ops.values():  # whoever followed the op still follows the op itself
            other.after = [(record.name if name == after else name, d) for name, d in other.after]
        _transpose(after, record.name, 0, self.prefer, current, record, records)
        record.inputs[0] = (before, 0)


def _transpose(
    name: str, tensor: str, distance: int, source: str, target: str, like: Record, records: Records
) -> str:
    nbytes = records.nbytes(tensor)
    records.ops[name] = Record(
        name,
        "transpose",
        [(tensor, distance)],
        [],
        (nbytes,),
        bytes_read=nbytes,
        bytes_written=nbytes,
        device=like.device,
        dtype=like.dtype,
        attributes={"from": source, "to": target},
    )
    return name


def _is_transpose(record: Record | None) -> bool:
    return record is not None and record.kind == "transpose" and {"from", "to"} <= set(record.attributes)


def _sink(records: Records) -> bool:
    """Move one transpose below an op that does not care, when all its inputs are transposed alike."""
    readers = records.readers()
    for record in records.ops.values():
        if record.kind not in AGNOSTIC or not record.inputs or len(record.outputs) != 1:
            continue
        above = [records.producer(tensor) for tensor, _ in record.inputs]
        if not all(_is_transpose(p) for p in above) or not readers[record.name]:
            continue
        ways = {(p.attributes["from"], p.attributes["to"]) for p in above if p is not None}
        if len(ways) != 1 or any(p is not None and (len(readers[p.name]) > 1 or p.after) for p in above):
            continue
        ((source, target),) = ways
        record.inputs = [(p.inputs[0][0], p.inputs[0][1]) for p in above if p is not None]
        records.remove(dict.fromkeys(p.name for p in above if p is not None))
        below = f"{record.name}/to_{target}"
        for reader in readers[record.name]:
            reader.inputs = [(below if t == record.name else t, d) for t, d in reader.inputs]
        _transpose(below, record.name, 0, source, target, record, records)
        return True
    return False


def _cancel(records: Records) -> bool:
    """Remove one pair of transposes that undo one another."""
    for record in records.ops.values():
        if not _is_transpose(record):
            continue
        above = records.producer(record.inputs[0][0])
        if above is None or not _is_transpose(above) or record.inputs[0][1]:
            continue
        if above.attributes["from"] != record.attributes["to"]:
            continue
        records.redirect({record.name: above.inputs[0][0]})
        records.remove([record.name])
        if not records.readers()[above.name]:
            records.remove([above.name])
        return True
    return False
