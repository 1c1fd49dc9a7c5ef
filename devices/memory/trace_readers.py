"""Readers of allocation traces: neutral JSON lines, and PyTorch's memory snapshots.

The form is recognised by the content, not by the name: a pickle begins with the byte 0x80, and either may be
compressed by gzip.

One JSON object a line; `devices.memory.trace_readers` has all of them::

    {"op": "alloc", "id": "conv1/out", "nbytes": 3211264, "stream": 0}
    {"op": "free", "id": "conv1/out"}
    {"op": "empty_cache"}
"""

from __future__ import annotations

import io
import json
import os
import pickle
import pickletools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, NoReturn

from sim.base.arrays import group_pairs
from sim.base.errors import InputError, UnknownNameError, clip_repr, error_path
from sim.base.files import loads_once, read_bytes

# ----------------------------------------------------------------------------------------------------------
# The neutral form of an allocation trace: what a program asked of its allocator, in order.
#
# ::
#
#   {"op": "alloc", "id": "x", "nbytes": 4096, "stream": 0}
#   {"op": "record_stream", "id": "x", "stream": 1}   stream 1 uses x, too: its free waits for stream 1
#   {"op": "free", "id": "x"}
#   {"op": "synchronise", "stream": 1}                the program waited for stream 1; without one, for all
#   {"op": "reached", "id": "x"}                      one of the streams that x's free waits for came that far
#   {"op": "empty_cache"}                             cached memory goes back to the device
#   {"op": "oom", "nbytes": 4096, "stream": 0}        a request failed, even after that; the program went on
#   {"op": "segment_alloc", "nbytes": 2097152}        what the recorded allocator asked of the device, and
#   {"op": "segment_free", "nbytes": 2097152}         gave back; with expandable segments segment_map, _unmap
#
# The words are PyTorch's: ``torch.cuda.empty_cache``, ``Tensor.record_stream``, the actions of a snapshot.

_SEGMENT_FIELDS: Final = (("nbytes",), ("stream",))

FIELDS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "alloc": (("id", "nbytes"), ("stream",)),
    "free": (("id",), ("nbytes", "stream")),
    "record_stream": (("id", "stream"), ()),
    "synchronise": ((), ("stream",)),
    "reached": (("id",), ()),
    "empty_cache": ((), ()),
    "oom": (("nbytes",), ("stream",)),
    "segment_alloc": _SEGMENT_FIELDS,
    "segment_free": _SEGMENT_FIELDS,
    "segment_map": _SEGMENT_FIELDS,
    "segment_unmap": _SEGMENT_FIELDS,
}
"""What each op needs besides its name, and what it may have."""

HELD: Final[Mapping[str, int]] = {
    "segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1,
}  # fmt: skip
"""What the recorded allocator asked of the device → whether it then holds more (1) or less (-1)."""

EVERY_STREAM: Final = -1
"""As the stream of ``synchronise``: all of them."""


class MemoryEvent(NamedTuple):
    """One line of a trace; `FIELDS` says which of these have a meaning for which op.

    A free needs no more than the id; its stream has no meaning. What a planner may want to know besides is
    the `dtype` of a tensor, and whether the program returns it.
    """

    op: str
    id: str | int = ""
    nbytes: int = 0
    stream: int = 0
    dtype: str = ""
    returned: bool = False


_MOST_BYTES: Final = 2**60


def checked_events(events: Iterable[tuple[str, MemoryEvent]]) -> Iterator[MemoryEvent]:
    """Yield the events of a trace, refusing one that cannot have happened.

    Parameters
    ----------
    events : iterable of (str, MemoryEvent)
        Where each stands (``"trace.jsonl:17"``), and the event.

    Raises
    ------
    InputError
        An id is allocated while it lives, freed or used while it does not, freed with another size, or
        reached before it was freed; or more is alive than any device has.

    Examples
    --------
    >>> list(checked_events([("t:1", MemoryEvent("free", "x"))]))
    Traceback (most recent call last):
    sim.base.errors.InputError: t:1: 'x' is freed, and was never allocated
    """
    live: dict[str | int, tuple[str, int]] = {}
    freed: dict[str | int, str] = {}
    total = 0
    for where, event in events:
        if event.op == "alloc":
            if event.id in live:
                since, _ = live[event.id]
                raise InputError(f"{where}: {event.id!r} is allocated, and lives already, since {since}")
            live[event.id] = (where, event.nbytes)
            total += event.nbytes
            if total > _MOST_BYTES:
                raise InputError(f"{where}: {event.id!r} makes {total:,} bytes alive, more than there is")
        elif event.op in ("free", "record_stream"):
            if event.id not in live:
                done = "freed" if event.op == "free" else "used on another stream"
                past = f"freed already, {freed[event.id]}" if event.id in freed else "never allocated"
                raise InputError(f"{where}: {event.id!r} is {done}, and was {past}")
            if event.op == "free":
                since, nbytes = live.pop(event.id)
                total -= nbytes
                if event.nbytes not in (0, nbytes):
                    sizes = f"{event.nbytes} bytes, and was allocated with {nbytes}"
                    raise InputError(f"{where}: {event.id!r} is freed with {sizes}, {since}")
                freed[event.id] = where
        elif event.op == "reached" and event.id not in freed:
            raise InputError(f"{where}: {event.id!r} is reached, and was never freed")
        yield event


# ----------------------------------------------------------------------------------------------------------
# Allocation traces as JSON lines, which `devices.memory.trace_readers` reads.


def json_lines(events: Iterable[MemoryEvent]) -> Iterator[str]:
    """Yield one line an event, with what it needs, and what else is not its default.

    Examples
    --------
    >>> for line in json_lines([MemoryEvent("alloc", "x", 8, 2), MemoryEvent("free", "x")]):
    ...     print(line)
    {"op": "alloc", "id": "x", "nbytes": 8, "stream": 2}
    {"op": "free", "id": "x"}
    """
    usual = MemoryEvent._field_defaults
    for event in events:
        needed, optional = FIELDS[event.op]
        extra = [key for key in optional if getattr(event, key) != usual[key]]
        yield json.dumps({"op": event.op, **{key: getattr(event, key) for key in (*needed, *extra)}})


# ----------------------------------------------------------------------------------------------------------
# PyTorch's memory snapshots, read without torch and without running anything.
#
# A snapshot (``torch.cuda.memory._snapshot()`` or ``_dump_snapshot(path)``) is a pickle of plain containers:
#
#     {"segments":      [{"address", "device", "stream", "total_size",
#                         "blocks": [{"address", "size", "requested_size", "state"}, ...]}, ...],
#      "device_traces": [[{"action", "addr", "size", "stream", "frames"}, ...], ... one list a device]}
#
# A pickle can name any function and have it called. This reader refuses a pickle that names anything at all,
# and so can only ever make Python's own containers, texts, numbers, booleans and None. What is read of them
# has to be of the type that PyTorch writes.
#
# The trace becomes neutral events: ``alloc`` is an allocation of the size asked for, ``free_completed`` a
# free (the block can be reused from then on; ``free_requested`` comes earlier when other streams still use
# it). What the recorded allocator took from the device and gave back (``segment_alloc``, ``segment_free``,
# and pages of expandable segments, ``segment_map`` and ``segment_unmap``) stays under these names; what it
# held before the recording began, which is what it holds at the end less all changes, comes first, as one
# ``segment_alloc``. What was allocated before is allocated next, in address order. Without a trace, the live
# blocks are the events. The format: PyTorch, ``torch/cuda/memory.py``, ``torch/cuda/_memory_viz.py`` and
# ``TraceEntry`` in ``c10/cuda/CUDACachingAllocator.h``.

_IGNORED_ACTIONS: Final = ("free_requested", "oom", "snapshot", "user_defined")
"""What changes no memory: ``oom`` comes after the ``segment_free`` of all that its retry gave back."""

_LENGTHS: Final = {pickletools.TAKEN_FROM_ARGUMENT1: 1, pickletools.TAKEN_FROM_ARGUMENT4: 4} | {
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_ARGUMENTS: Final = {
    opcode.code.encode("latin-1"): 0 if opcode.arg is None else opcode.arg.n for opcode in pickletools.opcodes
}
_LENGTH_BYTES: Final = {code: _LENGTHS[n] for code, n in _ARGUMENTS.items() if n in _LENGTHS}
_TEXT_CODES: Final = {code for code, n in _ARGUMENTS.items() if n == pickletools.UP_TO_NEWLINE} - {b"c", b"i"}
_BY_LENGTH: Final = group_pairs(
    (n, re.escape(code)) for code, n in _ARGUMENTS.items() if n >= 0 and code not in (b".", b"r")
)
_FIXED_LENGTH: Final = re.compile(
    b"(?:%s)*+" % b"|".join(b"[%s].{%d}" % (b"".join(codes), n) for n, codes in _BY_LENGTH.items()),
    re.DOTALL,
)
"""A run of opcodes whose arguments are of a fixed length."""


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that refuses every class and every function."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise InputError(f"names {module}.{name}; a memory snapshot holds plain containers only")


def load_plain_pickle(data: bytes, source: str) -> Any:
    """Return what `data` holds, if that is plain containers of texts, numbers, booleans and the like.

    Raises
    ------
    InputError
        It is no pickle, a broken one, or one that names a class or function.

    Examples
    --------
    >>> load_plain_pickle(pickle.dumps({"a": [1, (2.5, None)]}), "x.pickle")
    {'a': [1, (2.5, None)]}
    >>> load_plain_pickle(pickle.dumps(print), "x.pickle")
    Traceback (most recent call last):
    sim.base.errors.InputError: x.pickle: names builtins.print; a memory snapshot holds plain containers only
    """
    try:
        _check_memo(data)
        return _PlainUnpickler(io.BytesIO(data)).load()
    except InputError as error:
        raise InputError(f"{source}: {error}") from None
    except Exception as error:  # a broken pickle may raise nearly anything (see pickle.PickleError)
        raise InputError(f"{source}: not a readable pickle: {error}") from error


def _check_memo(data: bytes) -> None:
    """Refuse a pickle that puts something at a place of its memo with fewer bytes before it than places.

    The table for it is made as long as the highest place: nine bytes could ask for gigabytes.
    """
    offset = 0
    while (offset := _FIXED_LENGTH.match(data, offset).end()) < len(data):  # type: ignore[union-attr]
        code = data[offset : offset + 1]
        if code in _LENGTH_BYTES:
            n = _LENGTH_BYTES[code]
            offset += 1 + n + int.from_bytes(data[offset + 1 : offset + 1 + n], "little")
        elif code == b"r":  # LONG_BINPUT
            _check_slot(int.from_bytes(data[offset + 1 : offset + 5], "little"), offset)
            offset += 5
        elif code in _TEXT_CODES:
            end = data.find(b"\n", offset) + 1 or len(data)  # 0: there is no other line
            if code == b"p":  # PUT
                _check_slot(int(data[offset + 1 : end]), offset)
            offset = end
        else:  # the end, a name, or no pickle: loading it reports that
            return


def _check_slot(slot: int, before: int) -> None:
    if slot > before:
        raise InputError(f"puts something at place {slot:,} of its memo, and begins with {before} bytes")


def events_of_snapshot(snapshot: Any, source: str, *, device: int | None = None) -> list[MemoryEvent]:
    """Turn a loaded snapshot into events.

    Parameters
    ----------
    snapshot : dict
        As loaded.
    source : str
        Its file, in error messages.
    device : int, optional
        Whose events; needed when several devices have some.

    Raises
    ------
    InputError
        It is no snapshot, it has no events for that device, or it does not say which device is meant.
    """
    segments = _field(snapshot, "segments", list, source)
    traces = snapshot.get("device_traces", [])
    if not isinstance(traces, list):
        raise InputError(f"{source}: device_traces: {type(traces).__name__}, expected a list for each device")
    chosen = _device(segments, traces, device, source)
    trace = traces[chosen] if chosen < len(traces) else []
    of_device = [s for s in segments if _field(s, "device", int, f"{source}: a segment") == chosen]
    live = _live_blocks(of_device, source)
    if not isinstance(trace, list):
        raise InputError(f"{source}: device_traces[{chosen}]: {type(trace).__name__}, expected a list")
    events = _events(trace, live, f"{source}: device_traces[{chosen}]")
    reserved = sum(block["size"] for segment in of_device for block in segment["blocks"])
    reserved -= sum(HELD.get(event.op, 0) * event.nbytes for event in events)
    before = [MemoryEvent("segment_alloc", nbytes=reserved)] if reserved > 0 else []
    return [*before, *events]


def _events(trace: list[Any], live: dict[int, tuple[int, int]], where: str) -> list[MemoryEvent]:
    """Return the events of one device: what was there before, then what was recorded."""
    recorded: list[MemoryEvent] = []
    before: dict[int, MemoryEvent] = {}
    names: dict[int, str] = {}
    for i, entry in enumerate(trace):
        path = f"{where}[{i}]"
        action = _field(entry, "action", str, path)
        if action in _IGNORED_ACTIONS:
            continue
        nbytes = _field(entry, "size", int, path)
        stream = _field(entry, "stream", int, path)
        if action in HELD:
            recorded.append(MemoryEvent(action, nbytes=nbytes, stream=stream))
            continue
        if action not in ("alloc", "free_completed"):
            accepted = ("alloc", "free_completed", *_IGNORED_ACTIONS, *HELD)
            raise InputError(f"{path}: action: {action[:40]!r}; accepted: {', '.join(sorted(accepted))}")
        address = _field(entry, "addr", int, path)
        if action == "alloc":
            if address in names:
                raise InputError(f"{path}: allocates address {address:#x}, where {names[address]!r} lives")
            names[address] = f"{i}{_frame(entry)}"
            recorded.append(MemoryEvent("alloc", names[address], nbytes, stream))
        else:
            if address not in names:
                name = f"before {address:#x}"
                if address in before:
                    raise InputError(f"{path}: frees address {address:#x}, where nothing lives")
                before[address] = MemoryEvent("alloc", name, nbytes, stream)
                names[address] = name
            recorded.append(MemoryEvent("free", names.pop(address)))
    for address, (nbytes, stream) in live.items():
        if address not in names and address not in before:
            before[address] = MemoryEvent("alloc", f"before {address:#x}", nbytes, stream)
    return [*(before[address] for address in sorted(before)), *recorded]


def _live_blocks(segments: list[Any], source: str) -> dict[int, tuple[int, int]]:
    """Return address → (bytes asked for, stream) of the blocks in use at the time of the snapshot."""
    blocks = {}
    for segment in segments:
        where = f"{source}: segment at {_field(segment, 'address', int, f'{source}: a segment'):#x}"
        stream = _field(segment, "stream", int, where)
        address = segment["address"]
        for block in _field(segment, "blocks", list, where):
            size = _field(block, "size", int, where)
            if _field(block, "state", str, where).startswith("active"):
                requested = _field(block, "requested_size", int, where) if "requested_size" in block else size
                blocks[address] = (requested, stream)
            address += size
    return blocks


def _device(segments: list[Any], traces: list[Any], device: int | None, source: str) -> int:
    """Return the device that is meant."""
    with_events = {i for i, trace in enumerate(traces) if trace}
    with_events.update(_field(segment, "device", int, f"{source}: a segment") for segment in segments)
    devices = sorted(with_events)
    if not devices:
        raise InputError(
            f"{source}: the snapshot is empty; call torch.cuda.memory._record_memory_history() before the run"
        )
    names = ", ".join(map(str, devices))
    if device is None and len(devices) > 1:
        raise InputError(f"{source}: {len(devices)} devices have events; say which one of {names}")
    if device not in (None, *devices):
        raise InputError(f"{source}: nothing was recorded on device {device}; devices with events: {names}")
    return devices[0] if device is None else device


def _field(row: Any, key: str, kind: type, where: str) -> Any:
    """Return ``row[key]``, verified to be of the kind."""
    if not isinstance(row, dict):
        raise InputError(f"{where}: {type(row).__name__}, expected a dict with {key!r}")
    if key not in row:
        raise InputError(f"{where}: no {key!r}; is this a PyTorch memory snapshot?")
    value = row[key]
    if type(value) is not kind:
        raise InputError(f"{where}: {key}: {type(value).__name__}, expected {kind.__name__}")
    return value


def _frame(entry: dict[str, Any]) -> str:
    """Return who asked, from the innermost Python frame that was recorded."""
    frames = entry.get("frames")
    for frame in frames if isinstance(frames, list) else ():
        if isinstance(frame, dict) and str(frame.get("filename", "")).endswith(".py"):
            file = str(frame["filename"]).rpartition("/")[2]
            return f" {frame.get('name', '?')} ({file}:{frame.get('line', '?')})"
    return ""


# ----------------------------------------------------------------------------------------------------------


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
    source = os.fspath(path)
    data = read_bytes(path)
    if data[:1] == b"\x80":
        return events_of_snapshot(load_plain_pickle(data, source), source, device=device)
    if device is not None:
        raise InputError(f"{source}: no device {device} to choose in JSON lines, which are of one device")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{source}: neither JSON lines nor a pickled memory snapshot (byte {error.start} is not UTF-8)"
        ) from error
    return read_json_lines(text, source)


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
    sim.base.errors.UnknownNameError: t:1: unknown key 'bytes'; did you mean 'nbytes'? Known: id, nbytes, op,
    stream
    """
    return list(checked_events(_lines(text, source)))


def _lines(text: str, source: str) -> Iterator[tuple[str, MemoryEvent]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{source}:{number}"
        with error_path(where):
            event = _event(line)
        yield where, event


def _event(line: str) -> MemoryEvent:
    try:
        row = loads_once(line)
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(
            f"the line is not JSON: {reason} (a trace is JSON lines, or a pickled memory snapshot)"
        ) from error
    if not isinstance(row, dict):
        raise InputError(f"no object; expected one such as {_EXAMPLE}")
    op = str(row.get("op", ""))[:40]
    if op not in FIELDS:
        raise UnknownNameError("op", op, FIELDS)
    needed, optional = FIELDS[op]
    for key in row:
        if key not in ("op", *needed, *optional):
            raise UnknownNameError("key", key, ("op", *needed, *optional))
    for key in needed:
        if key not in row:
            raise InputError(f"no {key!r}; expected a line such as {_EXAMPLE}")
    identity = row.get("id", "")
    if not isinstance(identity, str | int) or isinstance(identity, bool):
        raise InputError(f"id: {clip_repr(identity, 40)} is neither a text nor a whole number")
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
        raise InputError(f"{key}: {clip_repr(value, 40)} is no whole number")
    if not -(2**63) <= value < 2**63:
        raise InputError(f"{key}: {clip_repr(value, 40)} does not fit 64 bits")
    return value
