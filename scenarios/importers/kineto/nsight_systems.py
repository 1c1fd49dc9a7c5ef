"""Recordings of Nsight Systems: tables written by ``nsys export --type sqlite``, as columns of events.

::

    CUPTI_ACTIVITY_KIND_                     becomes
    RUNTIME                                  calls, by thread (``globalTid`` holds process and thread)
    KERNEL, MEMCPY, MEMSET, GRAPH_TRACE      tasks of a GPU, each with the call of its ``correlationId``
    SYNCHRONIZATION                          what calls and streams wait for: all, a stream, an event
      └─ CUDA_EVENT                          where that event was last recorded (``eventId``, ``eventSyncId``)
    NVTX_EVENTS, MPI_*_EVENTS                ranges around calls
    StringIds                                names, by their numbers

Empty tables are missing in an export, and columns came and went: an older one has no
``SYNCHRONIZATION`` or ``eventSyncId``. Missing data are inferred, as for other recordings. All times are
ns. A graph that was recorded as a whole (``--cuda-graph-trace=graph``) is one task.

The file is untrusted: it is opened read-only, only plain tables are read, by names given here, and
no more rows than it can hold.

Sources: Nsight Systems, "SQLite Schema Reference"; CUPTI, ``CUpti_ActivitySynchronizationType``.
"""

from __future__ import annotations

import bisect
import os
import re
import sqlite3
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from scenarios.importers.kineto.event_columns import EventColumns, wholes
from scenarios.importers.kineto.gradients import UNNUMBERED
from scenarios.importers.kineto.kineto_rows import GpuTask, HostWait, Noted, Thread
from sim.base.arrays import LATEST_NS, UNSET, IntArray, group_pairs
from sim.base.errors import InputError, in_file
from sim.base.files import MOST_BYTES, FileTooLargeError, StrPath, read_bytes

MAGIC: Final = b"SQLite format 3\0"
"""Signature of every SQLite database."""

_STRINGS, _CUPTI = "StringIds", "CUPTI_ACTIVITY_KIND_"
_MPI: Final = ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
_PUSH_POP: Final = (59, 70)
"""Event types of NVTX ranges that nest on their thread."""
_MPI_RANK: Final = re.compile(r"MPI Rank (\d{1,6})")
"""Prefix of the name that Nsight Systems gave to a rank's thread before there was a table."""
_SPAN: Final = ("start", "end")
_PLACE: Final = (*_SPAN, "deviceId", "streamId", "correlationId")
_SHAPE: Final = (
    *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
    *("registersPerThread", "staticSharedMemory", "dynamicSharedMemory"),
)
_TASKS: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "KERNEL": (("demangledName",), _SHAPE),
    "MEMCPY": (("bytes", "copyKind"), ("srcKind", "dstKind")),
    "MEMSET": (("bytes",), ()),
    "GRAPH_TRACE": (("graphId",), ()),
}
"""Tables of tasks, with the required and the optional columns besides those of all."""
_COPIES: Final = ("HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP")
"""Kinds of copies, from 1 on."""
_MIGRATION: Final = 11
"""The first of the kinds of copy by which unified memory migrates."""
_MEMORY: Final = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static")
_OF_EVENT, _STREAM_WAIT, _OF_STREAM, _OF_CONTEXT = 1, 2, 3, 4
"""Types of synchronisation."""
_HOST, _ALL = -1, -1
"""No waiting stream, and no single stream that is waited for."""

_VERSION: Final = re.compile(r"(_v\d+)?(_ptsz|_ptds)?$")
"""Suffix that Nsight Systems adds to the name of a call: ``cudaMemcpy_v3020``."""
_MIN_ROW_BYTES: Final = 4
"""Minimum size of a row, in bytes."""
_MAX_ROW_BYTES: Final = 2**24
"""Maximum size of a row, in bytes."""


_Columns = dict[str, IntArray]
"""Columns of a table, by name."""


class Report(NamedTuple):
    """What was recorded of a process."""

    events: EventColumns
    rank: int | None
    """Rank according to MPI."""
    gpus: dict[int, str]
    """The driver's name of each GPU, by number."""
    kind: str = "gpu"
    """Kind of its devices."""


def is_report(path: StrPath) -> bool:
    """Whether a file is an SQLite database, compressed or not."""
    return read_bytes(path, head=len(MAGIC)) == MAGIC


def read_report(path: StrPath) -> list[Report]:
    """Return what was recorded of each process that used a GPU, in order of GPUs and processes.

    Raises
    ------
    InputError
        The database is damaged or of something else; a row lacks a required value; there is no task of a GPU;
        or an old recording of several processes does not say which task belongs to which.

    Warns
    -----
    UserWarning
        Unified memory migrated by itself, which is omitted.
    """
    nbytes = os.path.getsize(path)
    if nbytes > MOST_BYTES:
        raise FileTooLargeError(f"{path}: is larger than {MOST_BYTES // 2**30} GiB")
    packed = read_bytes(path, head=len(MAGIC), unpack=False) != MAGIC
    content = read_bytes(path) if packed else b""
    address = f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"
    with in_file(path):
        try:
            with closing(sqlite3.connect(":memory:" if packed else address, uri=True)) as database:
                if packed:
                    database.deserialize(content)
                    nbytes = len(content)
                return _read(_Tables(path, database, nbytes // _MIN_ROW_BYTES))
        except (sqlite3.Error, UnicodeDecodeError) as error:  # names in messages may not be text
            raise InputError(f"a damaged SQLite database ({error})") from None


class _Tables:
    """The tables of a database, read as columns by name."""

    def __init__(self, path: StrPath, database: sqlite3.Connection, most_rows: int) -> None:
        self.path, self._database, self._most_rows = path, database, most_rows
        database.text_factory = lambda text: sys.intern(text.decode("utf-8", "replace"))
        database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MAX_ROW_BYTES)
        database.execute("PRAGMA trusted_schema = OFF")
        self.columns_of: dict[str, set[str]] = defaultdict(set)
        for table, column in database.execute(
            "SELECT one.name, each.name FROM sqlite_master AS one, pragma_table_info(one.name) AS each "
            "WHERE one.type = 'table' AND one.rootpage > 0"  # no view, and no virtual table
        ):
            self.columns_of[table].add(column)
        if _STRINGS not in self.columns_of:
            tables = ", ".join(sorted(self.columns_of)[:5]) or "no table"
            problem = "is no export of Nsight Systems (`nsys export --type sqlite`)"
            raise InputError(f"{problem}: no table {_STRINGS}, but {tables:.80}")
        ids, texts = self.values(_STRINGS, ("id", "value"))
        self._strings = dict(zip(ids, texts, strict=True))

    def values(
        self, table: str, required: Sequence[str], optional: Sequence[str] = ()
    ) -> list[Sequence[Any]]:
        """Return columns; without rows if the table is missing, of None if an optional column is missing."""
        columns = self.columns_of.get(table)
        if columns is None:
            return [[]] * (len(required) + len(optional))
        if missing := [column for column in required if column not in columns]:
            raise InputError(f"{table} has no column {missing[0]}")
        read = ", ".join(f'"{name}"' if name in columns else "NULL" for name in (*required, *optional))
        cursor = self._database.execute(f'SELECT {read} FROM "{table}"')
        rows: list[tuple[Any, ...]] = []
        while more := cursor.fetchmany(2**14):
            rows += more
            if len(rows) > self._most_rows:
                raise InputError(f"a damaged SQLite database ({table} has more rows than its bytes hold)")
        return [*zip(*rows, strict=True)] or [[]] * (len(required) + len(optional))

    def numbers(self, table: str, required: Sequence[str], optional: Sequence[str] = ()) -> _Columns:
        """Return columns of non-negative whole numbers, by name; in an optional one, -1 means none."""
        columns = zip((*required, *optional), self.values(table, required, optional), strict=True)
        result = {}
        for column, values in columns:
            if column in optional:
                values = [UNSET if value is None else value for value in values]
            result[column] = _wholes(table, column, values, UNSET if column in optional else 0)
        if "end" in required:
            start, end = result["start"], result["end"]
            for n in np.flatnonzero((end < start) | (end > LATEST_NS))[:1].tolist():
                raise InputError(f"{table}, row {n + 1}: from {start[n]} to {end[n]} ns is no span of time")
        return result

    def texts(self, table: str, column: str, ids: IntArray, rows: Sequence[int] | None = None) -> list[str]:
        """Return the names to which the numbers of a column refer, in all rows or in some."""
        rows = range(len(ids)) if rows is None else rows
        names = [self._strings.get(ids[n]) for n in rows]
        for n, name in zip(rows, names, strict=True):
            if not isinstance(name, str):
                raise InputError(f"{table}, row {n + 1}: {column}: no string has the number {ids[n]}")
        return names  # type: ignore[return-value]


def _wholes(table: str, column: str, values: Sequence[Any], minimum: int) -> IntArray:
    """Return whole numbers; raise if one is below `minimum`."""
    with suppress(ValueError):
        if ((numbers := wholes(values, column)) >= minimum).all():
            return numbers
    rows = enumerate(values, 1)
    n, value = next(row for row in rows if not isinstance(row[1], int) or not minimum <= row[1] < 2**63)
    raise InputError(f"{table}, row {n}: {column}: {value!r:.40} is no whole number from 0 on")


def _process(serial: IntArray) -> IntArray:
    """Return the process of global numbers of processes or threads; -1: not recorded."""
    return np.where(serial < 0, UNSET, serial >> 24 & 0xFFFFFF)


def _read(tables: _Tables) -> list[Report]:
    tasks = group_pairs(row for kind in _TASKS for row in _tasks(tables, kind))
    if not tasks:
        raise InputError("no kernel, copy or fill of a GPU in the recording (`nsys profile --trace=cuda`)")
    calls = tables.numbers(f"{_CUPTI}RUNTIME", (*_SPAN, "correlationId", "globalTid", "nameId"))
    unsaid = tasks.pop(UNSET, [])  # as in older recordings
    if unsaid:
        launched = np.isin(calls["correlationId"], [task.correlation for task in unsaid])
        processes = {*_process(calls["globalTid"][launched]).tolist(), *tasks} or {UNSET}
        if len(processes) > 1:
            several = ", ".join(map(str, sorted(processes)[:5]))
            raise InputError(
                f"has GPU tasks of {len(processes)} processes ({several}) and does not say whose is whose "
                "(no globalPid); record each by itself (`mpirun ... nsys profile ...`), and give the folder"
            )
        tasks.setdefault(processes.pop(), []).extend(unsaid)
    names = [_VERSION.sub("", name) for name in tables.texts(f"{_CUPTI}RUNTIME", "nameId", calls["nameId"])]
    gpus, reports, single = _gpus(tables), list[Report](), len(tasks) == 1
    for process in sorted(tasks, key=lambda number: (min(task.device for task in tasks[number]), number)):
        events = EventColumns()
        events.tasks += tasks[process]
        _add_calls(events, names, calls, process)
        _add_waits(events, tables, process, single=single)
        _add_ranges(events, tables, process)
        reports.append(Report(events, _rank(tables, process, single=single), gpus))
    return reports


# -- tasks ----------------------------------------------------------------------------------------


def _tasks(tables: _Tables, kind: str) -> Iterator[tuple[int, GpuTask]]:
    """Yield the tasks of a table, each with its process."""
    table, (required, optional) = _CUPTI + kind, _TASKS[kind]
    data = tables.numbers(table, (*_PLACE, *required), ("globalPid", *optional))
    start, end = data["start"], data["end"]
    nothing = np.zeros(len(start), np.int64)
    shapes: list[dict[str, Any]] = [{} for _ in nothing]
    if kind == "KERNEL":
        names = tables.texts(table, "demangledName", data["demangledName"])
        shapes = [*map(_shape, *(data[fact].tolist() for fact in _SHAPE))]
    elif kind == "MEMCPY":
        names = [*map(_copy, *(data[key].tolist() for key in ("copyKind", "srcKind", "dstKind")))]
    elif kind == "MEMSET":
        names = ["Memset (Device)"] * len(start)
    else:
        names = [f"CUDA graph {number}" for number in data["graphId"].tolist()]
    left_out = {
        f"task(s) of {table} are left out: their times were not recorded": end == 0,
        "move(s) of unified memory are left out: kernels that waited for them have that in their time": (
            data.get("copyKind", nothing) >= _MIGRATION
        ),
    }
    for text, mask in left_out.items():
        if mask.any():
            warnings.warn(f"{tables.path}: {mask.sum()} {text}", stacklevel=2)
    columns = (*(data[key] for key in _PLACE[2:]), start, end - start, data.get("bytes", nothing))
    rows = zip(names, *(column.tolist() for column in columns), shapes, strict=True)
    skipped = np.any([*left_out.values()], axis=0).tolist()
    for row, skip, process in zip(rows, skipped, _process(data["globalPid"]).tolist(), strict=True):
        if not skip:
            yield process, GpuTask(*row)


def _copy(kind: int, source: int, target: int) -> str:
    """Return the name of a copy: ``Memcpy HtoD (Pageable -> Device)``."""
    name = _COPIES[kind - 1] if 0 < kind <= len(_COPIES) else "of unknown kind"
    named = {source, target} <= {*range(len(_MEMORY))}
    return f"Memcpy {name}" + (f" ({_MEMORY[source]} -> {_MEMORY[target]})" if named else "")


def _shape(*facts: int) -> dict[str, Any]:
    """Return grid, block, registers and shared memory of a kernel, if they are recorded."""
    if UNSET in facts:
        return {}
    registers, *shared = facts[6:]
    grid, block = [*facts[:3]], [*facts[3:6]]
    return {"grid": grid, "block": block, "registers": registers, "shared_memory": sum(shared)}


# -- the host -------------------------------------------------------------------------------------


def _add_calls(events: EventColumns, names: Sequence[str], calls: _Columns, process: int) -> None:
    """Add the calls of a process; of nested calls with one number, only the outer one."""
    order = np.lexsort((-calls["end"], calls["start"], calls["correlationId"], calls["globalTid"]))
    start, end, correlation, thread, _ = (column[order] for column in calls.values())
    chosen = (_process(thread) == process) & (end > 0)  # 0: not recorded
    nested = (thread[1:] == thread[:-1]) & (correlation[1:] == correlation[:-1])
    chosen[1:] &= ~(nested & (start[1:] < end[:-1]))
    named = [names[n] for n in order[chosen].tolist()]
    events.add_calls(named, _threads(thread[chosen]), correlation[chosen], start[chosen], end[chosen])


def _threads(serial: IntArray) -> list[Thread]:
    return [*zip(_process(serial).tolist(), (serial & 0xFFFFFF).tolist(), strict=True)]


def _add_waits(events: EventColumns, tables: _Tables, process: int, *, single: bool) -> None:
    """Add the recorded waits of calls and streams of a process."""

    def rows(table: str, required: Sequence[str], optional: Sequence[str]) -> list[IntArray]:
        *columns, processes = tables.numbers(_CUPTI + table, required, (*optional, "globalPid")).values()
        chosen = _process(processes) == process if not single else np.ones(len(processes), bool)
        return [column[chosen] for column in columns]

    records = rows("CUDA_EVENT", ("correlationId", "contextId", "streamId", "eventId"), ("eventSyncId",))
    recorded: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    by_sync: dict[int, tuple[int, int]] = {}
    for call, context, stream, event, sync in _rows(*(column[np.argsort(records[0])] for column in records)):
        recorded[context, event].append((call, stream))
        by_sync[sync] = call, stream
    columns = rows(
        "SYNCHRONIZATION",
        ("syncType", "deviceId", "contextId", "streamId"),
        ("correlationId", "eventId", "eventSyncId"),
    )
    for kind, device, context, stream, call, event, sync in _rows(*columns):
        if kind in (_OF_STREAM, _OF_CONTEXT):
            events.host_waits[call] = HostWait(device, stream if kind == _OF_STREAM else _ALL, call)
        elif kind in (_OF_EVENT, _STREAM_WAIT):
            calls = recorded[context, event]
            before = calls[: bisect.bisect_left(calls, (call,))][-1:]  # a new recording makes another event
            for record, on_stream in [by_sync[sync]] if sync > 0 and sync in by_sync else before:
                waits = stream if kind == _STREAM_WAIT else _HOST
                events.noted.append(Noted(call, device, waits, on_stream, record, event, call))


def _add_ranges(events: EventColumns, tables: _Tables, process: int) -> None:
    """Add ranges that the program and its libraries named, and calls of MPI."""
    for table in ("NVTX_EVENTS", *_MPI):
        columns = tables.numbers(table, ("start",), ("end", "globalTid", "textId", "eventType"))
        start, end, thread, number, kind = columns.values()
        (texts,) = tables.values(table, (), ("text",))
        chosen = (end >= start) & (_process(thread) == process) & np.isin(kind, (UNSET, *_PUSH_POP))
        rows = [n for n in np.flatnonzero(chosen).tolist() if texts[n] is not None or number[n] != UNSET]
        named = [n for n in rows if texts[n] is None]
        names = {n: str(texts[n]) for n in rows}
        names |= dict(zip(named, tables.texts(table, "textId", number, named), strict=True))
        threads = events.threads.of(_threads(thread[rows]))
        events.modules.add(threads, start[rows], end[rows], names.values(), np.full(len(rows), UNNUMBERED))


def _rank(tables: _Tables, process: int, *, single: bool) -> int | None:
    """Return the MPI rank of a process; older recordings give it in a name, if there is only one."""
    threads, ranks = tables.numbers("MPI_RANKS", ("globalTid", "rank")).values()
    own_ranks = ranks[_process(threads) == process].tolist()
    (texts,) = tables.values("NVTX_EVENTS", (), ("text",)) if single else ([],)
    named = (_MPI_RANK.fullmatch(text) for text in texts if isinstance(text, str))
    return next(chain(own_ranks, (int(match[1]) for match in named if match)), None)


def _gpus(tables: _Tables) -> dict[int, str]:
    """Return the name of each GPU."""
    columns = tables.values("TARGET_INFO_GPU", ("name",), ("id", "cuDevice"))
    names = {(gpu if device is None else device): name for name, gpu, device in zip(*columns, strict=True)}
    return {n: name for n, name in names.items() if isinstance(n, int) and isinstance(name, str)}


def _rows(*columns: IntArray) -> Iterator[list[int]]:
    yield from np.stack(columns, axis=1).tolist()
