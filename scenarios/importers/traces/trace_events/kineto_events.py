"""What a PyTorch profiler trace records, read event by event: only what matters here is kept.

Kineto writes Chrome trace events: slices (``"ph": "X"``) with ``ts`` and ``dur`` in microseconds and a
category. Four kinds of slice matter here::

    host thread    ──[cudaLaunchKernel corr 7]─[cudaStreamWaitEvent]──[cudaDeviceSynchronize      ]──
    stream 7                     └──────►[ kernel, corr 7 ][ kernel ]
    stream 20                                     [ nccl kernel             ]

``correlation`` ties a task to its launch, and the time of the launch to the operator around it
(``aten::addmm``; `operators`). The categories changed their names once ("Kernel" became "kernel"); both are
read. Names of keys are Kineto's (https://github.com/pytorch/kineto, libkineto/src/output_json.cpp and
CuptiActivity.cpp).

Two of three events play no part. So they are read some hundred at a time, of which only the tasks, the calls
and the times of operators stay.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from scenarios.importers.files import StrPath, in_file
from scenarios.importers.streamed_json import lists
from scenarios.importers.traces.trace_events.event_fields import (
    arguments,
    span,
    spans,
    text,
    texts,
    thread_of,
    whole,
    wholes,
)
from scenarios.importers.traces.trace_events.gradients import NODE, SEQUENCE, Numbered, callers, is_gradient
from scenarios.importers.traces.trace_events.kineto_rows import (
    GpuTask,
    HostCall,
    HostWait,
    StreamWait,
    Thread,
    Trace,
)
from scenarios.importers.traces.trace_events.messages import given, message, taken
from scenarios.importers.traces.trace_events.noted_waits import Noted, noted_wait, resolved
from scenarios.importers.traces.trace_events.operators import UNNUMBERED, Operators
from scenarios.importers.traces.trace_events.wanted import wanted
from sim.words.errors import InputError

__all__ = ["RECORD", "read_events"]

Event = Mapping[str, Any]

RECORD: Final = re.compile(r"(cuda|hip|cu)EventRecord")
"""The call that records an event."""

_GPU, _HOST, _OPERATOR, _SYNC = "gpu", "host", "operator", "sync"
_ROLES: Final[Mapping[object, str | None]] = {
    **dict.fromkeys(("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"), _GPU),
    **dict.fromkeys(("cuda_runtime", "cuda_driver", "runtime", "hip_runtime"), _HOST),
    **dict.fromkeys(("cpu_op", "operator"), _OPERATOR),
    "cuda_sync": _SYNC,
}
"""What events are, by their category."""
_COLLECTIVE: Final = ("c10d::", "nccl:", "record_param_comms")
"""How operators begin in which a process group launches its kernels."""
_FACTS: Final = {
    "grid": "grid", "block": "block", "registers": "registers per thread", "shared_memory": "shared memory",
}  # fmt: skip
"""Our names of what is recorded about a kernel."""


_WRONG: Final = (KeyError, TypeError, ValueError)


def read_events(path: StrPath) -> Trace:
    """Return the tasks, calls and waits of a trace, in order of time.

    Raises
    ------
    InputError
        No such file, not JSON, no ``traceEvents``, or an event without what it must have (with its index).
    """
    others: dict[str, Any] = {}
    reader, before = _Reader(), 0
    for events in lists(path, "a trace", "traceEvents", others, wanted()):
        try:
            reader.take(events)
        except _WRONG:
            raise _first_wrong(path, events, before) from None
        before += len(events)
    rank, world_size = _place(path, others)
    with in_file(path):
        return replace(reader.trace(rank, world_size), gpus=_names(others.get("deviceProperties")))


def _names(properties: Any) -> dict[int, str]:
    """Return what the driver calls each GPU, by its number; what is not written as expected is not there."""
    every = [each for each in properties if isinstance(each, dict)] if isinstance(properties, list) else []
    return {
        each["id"]: each["name"]
        for each in every
        if isinstance(each.get("id"), int) and isinstance(each.get("name"), str)
    }


def _first_wrong(path: StrPath, events: Sequence[Any], before: int) -> InputError:
    """Return what is wrong with the first event of some that is."""
    fine, wrong = 0, len(events)
    reason: Any = ""
    while fine < wrong:
        middle = (fine + wrong) // 2
        try:
            _Reader().take(events[fine : middle + 1])
        except _WRONG as error:
            wrong, reason = middle, f"no {error}" if isinstance(error, KeyError) else error
        else:
            fine = middle + 1
    event = events[fine]
    name = f" ({event['name']!s:.60})" if isinstance(event, dict) and "name" in event else ""
    return InputError(f"{path}: traceEvents[{before + fine}]{name}: {reason}")


class _Reader:
    """Takes events in any order, and makes rows of them."""

    def __init__(self) -> None:
        self._tasks: list[GpuTask] = []
        self._calls: list[HostCall] = []
        self._noted: list[Noted] = []
        self._host_waits: dict[int, HostWait] = {}
        self._inside: dict[Thread, list[tuple[int, int]]] = defaultdict(list)
        self._operators = Operators()
        self._collectives = Operators()  # what process groups call them, with the bytes that they take
        self._external: dict[int, int] = {}  # task → number of its operator, if it has one of its own
        self._numbered: list[Numbered] = []
        self._nodes: dict[Thread, list[tuple[int, int]]] = defaultdict(list)
        self._roles = {**_ROLES}

    def take(self, events: Sequence[Any]) -> None:
        """Keep what matters of some events."""
        of_role: dict[str | None, list[Event]] = {role: [] for role in (_GPU, _HOST, _OPERATOR)}
        for event in events:
            if (role := self._role(event)) is not None:
                of_role[role].append(event)
        self._take_operators(of_role[_OPERATOR])
        self._take_calls(of_role[_HOST])
        self._take_tasks(of_role[_GPU])

    def _role(self, event: Any) -> str | None:
        """Return what an event is that is taken with others; take what is rare."""
        if not isinstance(event, dict):
            raise ValueError(f"a {type(event).__name__} is no event")
        category, phase = event.get("cat", ""), event.get("ph")
        if category.__class__ is not str or category not in self._roles:
            self._roles[category] = _ROLES.get(text(event, "cat").lower() if "cat" in event else "")
        role = self._roles[category]
        if phase != "X":
            if role is _GPU or role is _HOST:
                raise ValueError(f"a {category.lower()} with ph {phase!r:.40}; the profiler writes 'X'")
            return None
        if role is _SYNC:
            self._note(event)
            return None
        if role is not _GPU and role is not _HOST and str(event.get("name")).startswith(_COLLECTIVE):
            self._inside[_thread_of(event)].append(span(event))
            if role is None and (nbytes := taken(event)):
                name = text(event, "name")
                self._collectives.add([_thread_of(event)], [(*span(event), name, nbytes)])
        return role

    def _note(self, event: Event) -> None:
        args, name = arguments(event), event["name"]
        if name == "Stream Wait Event" or (name == "Event Sync" and "wait_on_stream" in args):
            self._noted.append(noted_wait({**args, "stream": -1} if name == "Event Sync" else args))
        elif name in ("Event Sync", "Stream Sync", "Context Sync"):
            call = whole(args, "correlation")
            stream = -1 if name == "Context Sync" else whole(args, "stream")
            self._host_waits[call] = HostWait(whole(args, "device"), stream, call)

    def _take_operators(self, events: Sequence[Event]) -> None:
        try:
            times = spans(events)
        except (KeyError, ValueError):  # of one that never ended the profiler makes up an end
            events = [event for event in events if _has_span(event)]
            times = spans(events)
        args = [arguments(event) if "args" in event else {} for event in events]
        names, threads = texts(events, "name"), [_thread_of(event) for event in events]
        numbers = wholes(args, "External id", UNNUMBERED)
        self._operators.add(threads, zip(*times, names, numbers, strict=True))
        counted = [n for n, own in enumerate(args) if SEQUENCE in own]
        sequence = wholes([args[n] for n in counted], SEQUENCE)
        self._numbered += [
            Numbered(times[0][n], threads[n], number, is_gradient(names[n], args[n]))
            for n, number in zip(counted, sequence, strict=True)
        ]
        for name, thread, start_ns, end_ns in zip(names, threads, *times, strict=True):
            if NODE.match(name):
                self._nodes[thread].append((start_ns, end_ns))

    def _take_calls(self, events: Sequence[Event]) -> None:
        if events:
            correlations = wholes([arguments(event) for event in events], "correlation")
            threads = zip(wholes(events, "pid"), wholes(events, "tid"), strict=True)
            columns = texts(events, "name"), threads, correlations, *spans(events)
            self._calls += map(HostCall, *columns)

    def _take_tasks(self, events: Sequence[Event]) -> None:
        noted = [arguments(event) for event in events]
        numbers = (wholes(noted, key) for key in ("device", "stream", "correlation"))
        nbytes, sizes = (wholes(noted, key, 0) for key in ("bytes", "Group size"))
        starts, ends = spans(events)
        columns = texts(events, "name"), *numbers, starts, ends, nbytes, sizes, noted
        for name, device, stream, correlation, start_ns, end_ns, copied, size, args in zip(
            *columns, strict=True
        ):
            place = name, device, stream, correlation, start_ns, end_ns - start_ns
            self._tasks.append(
                GpuTask(*place, copied, _facts(args), _group(args), _is_pair(args), message(args), size)
            )
        for key in ("External id", "external id"):
            has = [args for args in noted if key in args]
            numbered = zip(wholes(has, "correlation"), wholes(has, key), strict=True)
            self._external |= {n: external for n, external in numbered if external != n}

    def trace(self, rank: int | None, world_size: int | None) -> Trace:
        """Return all rows, sorted."""
        self._tasks.sort(key=lambda task: (task.start_ns, task.device, task.stream, task.correlation))
        self._calls.sort(key=lambda call: (call.start_ns, call.thread, call.correlation, -call.end_ns))
        launches = self._launches()
        self._calls = [call for call in self._calls if launches.get(call.correlation, call) is call]
        self._add_messages(launches)
        operators = self._operators_of(launches)
        inside = defaultdict(list, {thread: _apart(spans) for thread, spans in self._inside.items()})
        waits = []
        records = [call.correlation for call in self._calls if RECORD.match(call.name)]
        for wait in resolved(self._noted, sorted(records)):
            recorded = wait.recorded if wait.recorded >= 0 else wait.asked
            if wait.stream < 0:
                self._host_waits[wait.call] = HostWait(wait.device, wait.on_stream, recorded)
            else:
                sure = wait.recorded >= 0
                waits.append(StreamWait(wait.device, wait.stream, wait.call, wait.on_stream, recorded, sure))
        host = self._host_waits, *callers(self._numbered, self._nodes, self._calls)
        return Trace(self._tasks, self._calls, waits, operators, *host, inside, rank, world_size)

    def _add_messages(self, launches: Mapping[int, HostCall]) -> None:
        """Add what collectives take, where it is not noted with their kernels."""
        taken_by = self._collectives.around(launches.values())
        for i, task in enumerate(self._tasks):
            if task.communicates and task.message == (0, 0) and task.correlation in taken_by:
                self._tasks[i] = task._replace(message=given(*taken_by[task.correlation], task.group_size))

    def _operators_of(self, launches: Mapping[int, HostCall]) -> list[str | None]:
        """Return the operator of each task: around its launch, or by number if that is not in the trace."""
        found = {n: name for n, (name, _) in self._operators.around(launches.values()).items()}
        lost = {n: external for n, external in self._external.items() if n not in launches}
        if lost:
            numbered = self._operators.numbered()
            found |= {n: numbered[external] for n, external in lost.items() if external in numbered}
        return [found.get(task.correlation) for task in self._tasks]

    def _launches(self) -> dict[int, HostCall]:
        """Return the calls that launched tasks, by correlation; a call inside another one is no second."""
        launched = {task.correlation: task for task in self._tasks}
        launch_of: dict[int, HostCall] = {}
        for call in self._calls:
            if call.correlation in launched:
                first = launch_of.setdefault(call.correlation, call)
                if call.thread != first.thread or call.start_ns > first.end_ns:
                    raise InputError(
                        f"{first.name} and {call.name} both have correlation {call.correlation}, so that "
                        f"nobody knows which launched {launched[call.correlation].name:.60}; of several "
                        "processes each needs a trace of its own"
                    )
        return launch_of


def _apart(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in order of time, those that overlap as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _place(path: StrPath, others: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Return rank and world size of what was recorded, where the trace has them."""
    info = others.get("distributedInfo", {})
    if not isinstance(info, dict):
        raise InputError(f"{path}: distributedInfo is no object but {info!r:.40}")
    if not {"rank", "world_size"} <= info.keys():
        return None, None  # a tool may add the rank alone, as Holistic Trace Analysis does
    rank, size = info["rank"], info["world_size"]
    if type(rank) is not int or type(size) is not int or not 0 <= rank < size:
        raise InputError(f"{path}: distributedInfo: rank {rank!r:.40} of {size!r:.40} is no rank of a job")
    return rank, size


# -- one event ------------------------------------------------------------------------------------


def _facts(args: Event) -> dict[str, Any]:
    return {key: args[name] for key, name in _FACTS.items() if name in args}


def _group(args: Event) -> tuple[str, str] | None:
    """Return name and ranks of the process group of a collective."""
    if "Process Group Name" not in args:
        return None
    return str(args["Process Group Name"]), str(args.get("Process Group Ranks", ""))


def _is_pair(args: Event) -> bool:
    return args.get("Collective name") in ("send", "recv")


def _thread_of(event: Event) -> Thread:
    """Return process and thread of an operator; of one that has none, a thread that calls nothing."""
    process, thread = event.get("pid"), event.get("tid")
    if type(process) is int and type(thread) is int:
        return process, thread
    known = str(process).isdecimal() and str(thread).isdecimal()
    return thread_of(event) if known else (-1, -1)


def _has_span(event: Event) -> bool:
    try:
        span(event)
    except (KeyError, ValueError):
        return False
    return True
