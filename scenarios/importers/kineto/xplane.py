"""Recordings of XLA's profiler (JAX, TensorFlow, PyTorch/XLA): planes with lines of events, as columns.

::

    XSpace               a process
    └─ XPlane            /device:GPU:0, /device:TPU:0, /host:CPU
       ├─ XLine          Stream #13(Compute), XLA Ops, a thread of the host
       │  └─ XEvent      number of its name, offset and duration in ps, stats (correlation_id, hlo_op ...)
       └─ names          of events, and of stats

    GPU    events of streams are its tasks; host events with the same ``correlation_id`` launched them
    TPU    events of the line "XLA Ops" are its tasks, one after the other
    CPU    events of threads with an ``hlo_op`` are its tasks, if there is no GPU or TPU

If events are nested, such as the steps of a loop in the loop, the innermost are tasks. Tasks have as
attributes their HLO op and their scope in the program.

Sources: openxla/xla, third_party/tsl/tsl/profiler/protobuf/xplane.proto; xla/tsl/profiler/utils,
xplane_schema.cc (names of planes, lines and stats); xla/backends/profiler/gpu, cupti_collector.cc (notes
on a task).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from scenarios.importers.chakra_nodes import as_signed, fields, last_number, last_text, members
from scenarios.importers.kineto.event_columns import EventColumns
from scenarios.importers.kineto.gradients import UNNUMBERED
from scenarios.importers.kineto.kineto_rows import GpuTask
from scenarios.importers.kineto.nsight_systems import Report
from sim.base.arrays import LATEST_NS
from sim.base.errors import InputError, in_file
from sim.base.files import StrPath, read_bytes

_NUMBER: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
HEAD: Final = re.compile(rb"\A\n%b(?:\x08%b)?\x12[\x01-\x7f]/(host|device):" % (_NUMBER, _NUMBER))
"""Beginning of a recording: the name of a plane, possibly after a number."""

_DEVICE: Final = re.compile(r"/device:(GPU|TPU):(\d{1,9})$")
_STREAM: Final = re.compile(r"Stream #(\d{1,18})\b")
_OPS: Final = "XLA Ops"
_COPY: Final = re.compile(r"Memcpy([HDP])(?:2|to)([HDP])")
_NUMBERS: Final = re.compile(r"(\w+):(\d+(?:,\d+)*)")
"""Notes on a kernel or copy: ``regs:32 static_shared:0 grid:8,1,1 block:256,1,1``."""
_UNLAUNCHED: Final = -(2**62)
_MEMORY: Final = {"pageable": "Pageable", "pinned": "Pinned", "device": "Device", "managed": "Managed"}


class _Event(NamedTuple):
    name: str
    start_ns: int
    end_ns: int
    stats: dict[str, Any]


def is_xplane(path: StrPath) -> bool:
    """Whether a file is a recording of XLA's profiler, compressed or not."""
    return HEAD.match(read_bytes(path, head=64)) is not None


def read_xplane(path: StrPath) -> list[Report]:
    """Return the recorded traces of a process.

    Raises
    ------
    InputError
        The file is damaged, or has no op of a GPU, TPU or CPU.
    """
    with in_file(path):
        planes = [*map(_Plane, members(read_bytes(path))[1])]
        devices = [(match, plane) for plane in planes if (match := _DEVICE.match(plane.name))]
        kinds = {match[1].lower() for match, plane in devices if plane.lines}
        kind = "tpu" if kinds == {"tpu"} else "gpu" if kinds else "cpu"
        events, gpus = EventColumns(), {}
        for match, plane in devices:
            gpus[int(match[2])] = str(plane.stats.get("device_type_string", ""))
            for line in plane.lines:
                _add_tasks(events, plane, line, int(match[2]), kind)
        hosts = [(plane, line) for plane in planes if plane.name.startswith("/host:") for line in plane.lines]
        for thread, (plane, line) in enumerate(hosts):
            if kind == "cpu":
                ops = [event for event in plane.events(line) if "hlo_op" in event.stats]
                _add_ops(events, ops, 0, thread)
            else:
                _add_calls(events, plane, line, thread)
        if not events.tasks:
            found_planes = ", ".join(plane.name for plane in planes[:5]) or "none"
            raise InputError(f"no op of a GPU, TPU or CPU in the recording; its planes are {found_planes}")
        return [Report(events, None, gpus, kind)]


# -- messages -------------------------------------------------------------------------------------


def _text(values: list[Any]) -> str:
    return sys.intern(last_text(values))


def _entry(message: bytes) -> tuple[int, Mapping[int, list[Any]]]:
    """Return key and value of an entry of a map."""
    values = members(message)
    return last_number(values[1]), members(values[2][-1] if values[2] else b"")


class _Plane:
    """A plane: its name, its stats, and its lines, whose events are read on demand."""

    def __init__(self, message: bytes) -> None:
        values = members(message)
        self.name, self.lines = _text(values[2]), values[3]
        self._names = {key: (_text(entry[2]), entry[5]) for key, entry in map(_entry, values[4])}
        self._stats = {key: _text(entry[2]) for key, entry in map(_entry, values[5])}
        self.stats = self._read_stats(values[6])

    def events(self, line: bytes) -> list[_Event]:
        """Return the events of a line that have a duration, in order of time, outer ones first."""
        values = members(line)
        start_ps = 1000 * as_signed(last_number(values[3]))
        events = [event for row in values[4] if (event := self._event(members(row), start_ps)) is not None]
        return sorted(events, key=lambda event: (event.start_ns, -event.end_ns))

    def _event(self, values: Mapping[int, list[Any]], start_ps: int) -> _Event | None:
        name, shared = self._names.get(last_number(values[1]), ("", []))
        start, length = start_ps + as_signed(last_number(values[2])), as_signed(last_number(values[3]))
        end = start + length
        if not 0 <= start <= end <= 1000 * LATEST_NS:
            raise InputError(f"{name or 'an event':.60}: from {start} to {end} ps is no span of time")
        if not length:
            return None
        return _Event(name, start // 1000, end // 1000, self._read_stats([*shared, *values[4]]))

    def _read_stats(self, stats: list[bytes]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for stat in stats:  # most of a file: read without collecting its fields
            key = 0
            value: int | str | None = None
            for number, _, field in fields(stat):
                if number == 1:
                    key = last_number([field])
                elif number in (3, 4):
                    value = as_signed(field)
                elif number == 5:
                    value = _text([field])
                elif number == 7:
                    value = self._stats.get(last_number([field]), "")
            if value is not None and key in self._stats:
                result[self._stats[key]] = value
        return result


# -- meaning of the messages ----------------------------------------------------------------------


def _add_tasks(columns: EventColumns, plane: _Plane, line: bytes, device: int, kind: str) -> None:
    """Add the tasks of a line of a device: the tasks of a stream, or a TPU's ops."""
    name = _text(members(line)[2])
    if kind == "tpu" and name == _OPS:
        _add_ops(columns, plane.events(line), device, 0)
    elif kind == "gpu" and (stream := _STREAM.match(name)):
        for event in plane.events(line):
            called, nbytes, facts = event.name, 0, {}
            if noted := event.stats.get("kernel_details"):
                facts = _shape(str(noted))
            elif noted := event.stats.get("memcpy_details", event.stats.get("memset_details")):
                called, nbytes = _copy_of(called, str(noted))
            _add(columns, event, called, (device, int(stream[1])), nbytes, facts)


def _add_ops(columns: EventColumns, ops: list[_Event], device: int, stream: int) -> None:
    """Add the innermost HLO ops."""
    for n, op in enumerate(ops):
        following = ops[n + 1] if n + 1 < len(ops) else op
        if following is op or following.end_ns > op.end_ns or following.start_ns >= op.end_ns:
            _add(columns, op, op.name, (device, stream), 0, {})


def _add(
    columns: EventColumns, event: _Event, name: str, lane: tuple[int, int], nbytes: int, facts: dict[str, Any]
) -> None:
    stats = event.stats
    names = {"operator": stats.get("hlo_op"), "module": stats.get("tf_op", stats.get("annotation"))}
    facts |= {key: value for key, value in names.items() if isinstance(value, str) and value}
    launch = stats.get("correlation_id")  # tasks without a launch get their own numbers, in order
    number = launch if isinstance(launch, int) else _UNLAUNCHED + len(columns.tasks)
    columns.tasks.append(
        GpuTask(name, *lane, number, event.start_ns, event.end_ns - event.start_ns, nbytes, facts)
    )


def _shape(noted: str) -> dict[str, Any]:
    """Return grid, block, registers and shared memory of a kernel, if they are plausible."""
    notes = {key: [*map(int, value.split(","))] for key, value in _NUMBERS.findall(noted)}
    grid, block = notes.get("grid", []), notes.get("block", [])
    if [len(grid), len(block)] != [3, 3] or not 0 < np.prod(block) <= 1024 or not min(grid) > 0:
        return {}  # TensorFlow 2.2 wrote uninitialised memory
    shared = sum(notes.get(key, [0])[0] for key in ("static_shared", "dynamic_shared", "shm"))
    return {"grid": grid, "block": block, "registers": notes.get("regs", [0])[0], "shared_memory": shared}


def _copy_of(name: str, noted: str) -> tuple[str, int]:
    """Return the usual name of a copy or fill, and its bytes."""
    notes = dict(re.findall(r"(\w+):(\S+)", noted))
    size = str(notes.get("size", notes.get("num_bytes", "0")))
    nbytes = int(size) if size.isdecimal() and len(size) < 19 else 0
    way = _COPY.match(name)
    if way is None:
        return ("Memset (Device)" if name.lower().startswith("memset") else name), nbytes
    ends = [_MEMORY.get(notes.get(key, ""), "") for key in ("kind_src", "kind_dst")]
    return f"Memcpy {way[1]}to{way[2]}" + (f" ({ends[0]} -> {ends[1]})" if all(ends) else ""), nbytes


def _add_calls(columns: EventColumns, plane: _Plane, line: bytes, thread: int) -> None:
    """Add the calls of a thread, and the named ranges around them."""
    events, calls, ranges = plane.events(line), list[_Event](), list[_Event]()
    for event in events:
        (calls if isinstance(event.stats.get("correlation_id"), int) else ranges).append(event)
    if not calls:
        return
    names = []
    for call in calls:
        copied = str(call.stats.get("memcpy_details", ""))
        name = f"cuMemcpy{'' if 'async:0' in copied else 'Async'}" if copied else call.name
        names.append("cuLaunchKernel" if "kernel_details" in call.stats else name)
    lane = (0, thread)
    rows = [(call.stats["correlation_id"], call.start_ns, call.end_ns) for call in calls]
    columns.add_calls(names, [lane] * len(calls), *np.array(rows, np.int64).T)
    named = [span for span in ranges if not span.name.startswith("$")]  # excludes functions of Python
    start, end = np.array([(span.start_ns, span.end_ns) for span in named], np.int64).reshape(-1, 2).T
    threads, numbers = columns.threads.of([lane] * len(named)), np.full(len(named), UNNUMBERED)
    columns.operators.add(threads, start, end, [span.name for span in named], numbers)
