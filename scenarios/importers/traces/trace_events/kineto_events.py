"""What a PyTorch profiler trace records, read event by event: only what matters here is kept.

Kineto writes Chrome trace events: slices (``"ph": "X"``) with ``ts`` and ``dur`` in microseconds and a
category. Four kinds of slice matter here::

    host thread    ──[cudaLaunchKernel corr 7]─[cudaStreamWaitEvent]──[cudaDeviceSynchronize      ]──
    stream 7                     └──────►[ kernel, corr 7 ][ kernel ]
    stream 20                                     [ nccl kernel             ]

``correlation`` ties a task to its launch; ``External id`` ties both to the operator (``aten::addmm``).
The categories changed their names once ("Kernel" became "kernel"); both are read. Names of keys are
Kineto's (https://github.com/pytorch/kineto, libkineto/src/output_json.cpp and CuptiActivity.cpp).

Nine of ten events play no part. So they are read one at a time, and a million of them take no more memory
than the tasks and calls among them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from scenarios.importers.files import StrPath, in_file
from scenarios.importers.streamed_json import items
from scenarios.importers.traces.trace_events.event_fields import arguments, ns, span, text, thread_of, whole
from scenarios.importers.traces.trace_events.kineto_rows import (
    GpuTask,
    HostCall,
    HostWait,
    StreamWait,
    Thread,
    Trace,
)
from scenarios.importers.traces.trace_events.noted_waits import Noted, noted_wait, resolved
from sim.words.errors import InputError

__all__ = ["RECORD", "read_events"]

RECORD: Final = re.compile(r"(cuda|hip|cu)EventRecord")
"""The call that records an event."""

_GPU: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_HOST: Final = frozenset({"cuda_runtime", "cuda_driver", "runtime", "hip_runtime"})
_OPERATOR: Final = frozenset({"cpu_op", "operator"})
_GRADIENT: Final = "autograd::engine::evaluate_function"
_FORWARD_THREAD: Final = "Fwd thread id"
"""0, unless the operator is a gradient. Older traces have no `_GRADIENT` around it."""
_COLLECTIVE: Final = ("c10d::", "nccl:", "record_param_comms")
"""How operators begin in which a process group launches its kernels."""
_ELEMENT = {
    "Byte": 1, "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Half": 2, "BFloat16": 2,
    "Short": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8, "ComplexFloat": 8, "ComplexDouble": 16,
}  # fmt: skip
"""Bytes of an element, by what PyTorch calls its type there (c10/core/ScalarType.h)."""
_FACTS: Final = {
    "grid": "grid", "block": "block", "registers": "registers per thread", "shared_memory": "shared memory",
}  # fmt: skip
"""Our names of what is recorded about a kernel."""


def read_events(path: StrPath) -> Trace:
    """Return the tasks, calls and waits of a trace, in order of time.

    Raises
    ------
    InputError
        No such file, not JSON, no ``traceEvents``, or an event without what it must have (with its index).
    """
    others: dict[str, Any] = {}
    reader = _Reader()
    for index, event in enumerate(items(path, "a trace", "traceEvents", others)):
        try:
            reader.take(event)
        except (KeyError, TypeError, ValueError) as error:
            name = f" ({event['name']!s:.60})" if isinstance(event, dict) and "name" in event else ""
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise InputError(f"{path}: traceEvents[{index}]{name}: {reason}") from None
    rank, world_size = _place(path, others)
    with in_file(path):
        return reader.trace(rank, world_size)


class _Numbered(NamedTuple):
    """An operator with a sequence number: one of forward, or its gradient."""

    start_ns: int
    thread: Thread
    number: int
    is_gradient: bool


class _Reader:
    """Takes events in any order, and makes rows of them."""

    def __init__(self) -> None:
        self._tasks: list[GpuTask] = []
        self._calls: list[HostCall] = []
        self._noted: list[Noted] = []
        self._host_waits: dict[int, HostWait] = {}
        self._inside: dict[Thread, list[tuple[int, int]]] = defaultdict(list)
        self._operators: dict[int, str] = {}  # by External id
        self._early: list[tuple[int, int]] = []  # tasks before their operators, and External id
        self._numbered: list[_Numbered] = []

    def take(self, event: Any) -> None:
        """Keep what matters of an event."""
        if not isinstance(event, dict):
            raise ValueError(f"a {type(event).__name__} is no event")
        category, phase = text(event, "cat").lower() if "cat" in event else "", event.get("ph")
        if category in _OPERATOR:
            self._operator(event)
        if phase != "X":
            if category in _GPU or category in _HOST:
                raise ValueError(f"a {category} with ph {phase!r:.40}; the profiler writes 'X'")
        elif category in _GPU:
            self._task(event)
        elif category in _HOST:
            self._calls.append(_call(event))
        elif category == "cuda_sync":
            self._note(event)
        elif str(event.get("name")).startswith(_COLLECTIVE):
            begin, took = span(event)
            self._inside[_thread_of(event)].append((begin, begin + took))

    def _note(self, event: Mapping[str, Any]) -> None:
        args, name = arguments(event), event["name"]
        if name == "Stream Wait Event" or (name == "Event Sync" and "wait_on_stream" in args):
            self._noted.append(noted_wait({**args, "stream": -1} if name == "Event Sync" else args))
        elif name in ("Event Sync", "Stream Sync"):
            call = whole(args, "correlation")
            self._host_waits[call] = HostWait(whole(args, "device"), whole(args, "stream"), call)

    def _operator(self, event: Mapping[str, Any]) -> None:
        args = arguments(event) if "args" in event else {}
        if "External id" in args:
            self._operators.setdefault(whole(args, "External id"), text(event, "name"))
        if "Sequence number" in args:
            is_gradient = text(event, "name").startswith(_GRADIENT) or bool(args.get(_FORWARD_THREAD))
            number = whole(args, "Sequence number")
            self._numbered.append(_Numbered(ns(event, "ts"), _thread_of(event), number, is_gradient))

    def _task(self, event: Mapping[str, Any]) -> None:
        args = arguments(event)
        operator = None
        if key := next((key for key in ("External id", "external id") if key in args), None):
            external = whole(args, key)
            operator = self._operators.get(external)
            if operator is None:
                self._early.append((len(self._tasks), external))
        self._tasks.append(_task(event, args, operator))

    def trace(self, rank: int | None, world_size: int | None) -> Trace:
        """Return all rows, sorted."""
        for i, external in self._early:
            self._tasks[i] = replace(self._tasks[i], operator=self._operators.get(external))
        self._tasks.sort(key=lambda task: (task.start_ns, task.device, task.stream, task.correlation))
        self._calls.sort(key=lambda call: (call.start_ns, call.thread, call.correlation))
        self._refuse_shared_launches()
        inside = defaultdict(list, {thread: _apart(spans) for thread, spans in self._inside.items()})
        callers = _callers(self._numbered)
        waits = []
        records = [call.correlation for call in self._calls if RECORD.match(call.name)]
        for wait in resolved(self._noted, sorted(records)):
            recorded = wait.recorded if wait.recorded >= 0 else wait.asked
            if wait.stream < 0:
                self._host_waits[wait.call] = HostWait(wait.device, wait.on_stream, recorded)
            else:
                sure = wait.recorded >= 0
                waits.append(StreamWait(wait.device, wait.stream, wait.call, wait.on_stream, recorded, sure))
        return Trace(self._tasks, self._calls, waits, self._host_waits, callers, inside, rank, world_size)

    def _refuse_shared_launches(self) -> None:
        """Refuse tasks that two calls launched; a call inside another one is no second."""
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


def _callers(numbered: list[_Numbered]) -> dict[Thread, Thread]:
    """Return the threads that only run gradients, and for whom: the thread of the forward operators.

    Autograd runs the backward on a thread of its own, while the one that called ``backward`` waits. An
    operator and its gradient have one ``Sequence number``, which tells whose forward a thread runs backward.
    A process with several such threads, one a GPU, runs them at once; then nobody waits for one alone.
    """
    forward: dict[tuple[int, int], Thread] = {}
    gradients: dict[Thread, Counter[Thread]] = defaultdict(Counter)
    for each in sorted(numbered, key=lambda each: each.start_ns):
        process, _ = each.thread
        whose = forward.setdefault((process, each.number), each.thread)
        if each.is_gradient:
            gradients[each.thread][whose] += 1
    waits_for: dict[Thread, list[Thread]] = defaultdict(list)
    for thread, owners in gradients.items():
        (whose, _), *_ = owners.most_common(1)
        if whose != thread:
            waits_for[whose].append(thread)
    return {threads[0]: whose for whose, threads in waits_for.items() if len(threads) == 1}


# -- one event ------------------------------------------------------------------------------------


def _task(event: Mapping[str, Any], args: Mapping[str, Any], operator: str | None) -> GpuTask:
    start, duration = span(event)
    facts = {key: args[name] for key, name in _FACTS.items() if name in args}
    return GpuTask(
        text(event, "name"),
        whole(args, "device"),
        whole(args, "stream"),
        whole(args, "correlation"),
        start,
        duration,
        whole(args, "bytes") if "bytes" in args else 0,
        operator,
        facts,
        (str(args["Process Group Name"]), str(args.get("Process Group Ranks", "")))
        if "Process Group Name" in args
        else None,
        args.get("Collective name") in ("send", "recv"),
        _message(args),
        whole(args, "Group size") if "Group size" in args else 0,
    )


def _message(args: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many bytes a collective takes and gives."""
    size = _ELEMENT.get(str(args.get("dtype")), 0)
    given, made = (whole(args, key) if key in args else 0 for key in ("In msg nelems", "Out msg nelems"))
    return size * given, size * made


def _call(event: Mapping[str, Any]) -> HostCall:
    start, duration = span(event)
    correlation = whole(arguments(event), "correlation")
    return HostCall(text(event, "name"), thread_of(event), correlation, start, start + duration)


def _thread_of(event: Mapping[str, Any]) -> Thread:
    """Return process and thread of an operator; of one that has none, a thread that calls nothing."""
    known = str(event.get("pid")).isdecimal() and str(event.get("tid")).isdecimal()
    return thread_of(event) if known else (-1, -1)
