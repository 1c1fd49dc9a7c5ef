"""Readers of allocation traces: neutral JSON lines, and PyTorch's memory snapshots.

The form is told by the content, not by the name: a pickle begins with the byte 0x80, and either may be
compressed by gzip.

One JSON object a line; `devices.memory.memory_event` has all of them::

    {"op": "alloc", "id": "conv1/out", "nbytes": 3211264, "stream": 0}
    {"op": "free", "id": "conv1/out"}
    {"op": "empty_cache"}
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from devices.memory.memory_event import EVERY_STREAM, FIELDS, MemoryEvent, checked_events
from devices.memory.trace.snapshot import events_of_snapshot, load_plain_pickle
from sim.files.reading import read_bytes
from sim.words.errors import InputError, UnknownNameError, located, nearest

__all__ = ["read_events", "read_json_lines"]


def read_events(path: str | os.PathLike[str], *, device: int | None = None) -> list[MemoryEvent]:
    """Read an allocation trace of any known form.

    Parameters
    ----------
    path : path
        JSON lines or a PyTorch memory snapshot (``torch.cuda.memory._dump_snapshot``), or one of them
        compressed by gzip.
    device : int, optional
        Which device of a snapshot; needed when several have events.

    Raises
    ------
    InputError
        The file cannot be read, or it is not such a trace; the message begins with the file and line.
    """
    shown = os.fspath(path)
    data = read_bytes(path)
    if data[:1] == b"\x80":
        return events_of_snapshot(load_plain_pickle(data, shown), shown, device=device)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{shown}: neither JSON lines nor a pickled memory snapshot (byte {error.start} is not UTF-8)"
        ) from error
    return read_json_lines(text, shown)


def read_json_lines(text: str, source: str) -> list[MemoryEvent]:
    """Read a trace from text with one JSON object a line; empty lines are skipped.

    Parameters
    ----------
    text : str
        The trace.
    source : str
        Its file, in error messages.

    Raises
    ------
    InputError
        A line is wrong in itself, or after those before it; the message begins with ``source:line:``.

    Examples
    --------
    >>> read_json_lines('{"op": "alloc", "id": 7, "nbytes": 512}', "trace.jsonl")
    [MemoryEvent(op='alloc', id=7, nbytes=512, stream=0, dtype='', returned=False)]
    >>> read_json_lines('{"op": "alloc", "id": 7, "bytes": 512}', "t")
    Traceback (most recent call last):
    sim.words.errors.UnknownNameError: t:1: unknown key 'bytes'; did you mean 'nbytes'? Known: id, nbytes, op,
    stream
    """
    return list(checked_events(_lines(text, source)))


def _lines(text: str, source: str) -> Iterator[tuple[str, MemoryEvent]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{source}:{number}"
        with located(where):
            event = _event(line)
        yield where, event


def _event(line: str) -> MemoryEvent:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(f"not JSON: {why}") from error
    if not isinstance(row, dict):
        raise InputError(f"no object; expected one such as {_EXAMPLE}")
    op = row.get("op")
    if not isinstance(op, str) or op not in FIELDS:
        near = nearest(op, FIELDS) if isinstance(op, str) else None
        guess = f"; did you mean {near!r}?" if near else ";"
        raise InputError(f"op: {_shown(op)}{guess} accepted: {', '.join(map(repr, FIELDS))}")
    needed, optional = FIELDS[op]
    for key in row:
        if key not in ("op", *needed, *optional):
            raise UnknownNameError("key", key, ("op", *needed, *optional))
    for key in needed:
        if key not in row:
            raise InputError(f"no {key!r}; expected a line such as {_EXAMPLE}")
    identity = row.get("id", "")
    if not isinstance(identity, str | int) or isinstance(identity, bool):
        raise InputError(f"id: {_shown(identity)} is neither a text nor a whole number")
    nbytes = _whole(row.get("nbytes", 0), "nbytes")
    if nbytes < 0:
        raise InputError(f"nbytes: {nbytes} is negative")
    waits = op == "synchronise"
    stream = _whole(row.get("stream", EVERY_STREAM if waits else 0), "stream")
    if waits and stream < 0 and "stream" in row:
        raise InputError(f"stream: {stream} is no stream; leave it out to wait for all of them")
    return MemoryEvent(op, identity, nbytes, stream)


_EXAMPLE = '{"op": "alloc", "id": "x", "nbytes": 4096, "stream": 0}'


def _whole(value: Any, key: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{key}: {_shown(value)} is no whole number")
    if not -(2**63) <= value < 2**63:
        raise InputError(f"{key}: {_shown(value)} does not fit 64 bits")
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
