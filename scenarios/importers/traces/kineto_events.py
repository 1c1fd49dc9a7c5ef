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

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from scenarios.importers.files import StrPath
from scenarios.importers.streamed_json import items
from scenarios.importers.traces.kineto_rows import GpuTask, HostCall, HostWait, StreamWait, Thread, Trace
from sim.words.errors import InputError
from sim.words.limits import LATEST_NS

__all__ = ["read_events"]

_GPU: Final = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_HOST: Final = frozenset({"cuda_runtime", "cuda_driver", "runtime", "hip_runtime"})
_OPERATOR: Final = frozenset({"cpu_op", "operator"})
_GRADIENT: Final = "autograd::engine::evaluate_function"
_FORWARD_THREAD: Final = "Fwd thread id"
"""0, unless the operator is a gradient; PyTorch 1.8 has no `_GRADIENT` around it."""
_COLLECTIVE: Final = ("c10d::", "nccl:", "record_param_comms")
"""How operators begin in which a process group launches its kernels."""
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
            name = f" ({event.get('name')})" if isinstance(event, dict) else ""
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise InputError(f"{path}: traceEvents[{index}]{name}: {reason}") from None
    rank, world_size = _place(path, others)
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
        self._waits: list[StreamWait] = []
        self._notes_waits = False
        self._host_waits: dict[int, HostWait] = {}
        self._inside: dict[Thread, list[tuple[int, int]]] = defaultdict(list)
        self._operators: dict[Any, str] = {}  # by External id
        self._early: list[tuple[int, Any]] = []  # tasks before their operators, and its External id
        self._numbered: list[_Numbered] = []

    def take(self, event: Any) -> None:
        """Keep what matters of an event."""
        if not isinstance(event, dict):
            raise ValueError(f"{str(event)[:40]!r} is no event")
        category, phase = str(event.get("cat", "")).lower(), event.get("ph")
        if category in _OPERATOR:
            self._operator(event)
        if phase != "X":
            if category in _GPU or category in _HOST:
                raise ValueError(f"a {category} with ph {phase!r}; the profiler writes 'X'")
        elif category in _GPU:
            self._task(event)
        elif category in _HOST:
            self._calls.append(_call(event))
        elif category == "cuda_sync":
            self._notes_waits = True
            if event["name"] == "Stream Wait Event":
                self._waits.extend(_wait(_args(event)))
            elif event["name"] in ("Event Sync", "Stream Sync"):
                self._host_waits.update(_host_wait(_args(event)))
        elif category != "gpu_user_annotation" and str(event.get("name")).startswith(_COLLECTIVE):
            start = _ns(event["ts"])
            self._inside[_thread(event)].append((start, start + _ns(event["dur"])))

    def _operator(self, event: Mapping[str, Any]) -> None:
        args = _args(event) if "args" in event else {}
        if "External id" in args:
            self._operators.setdefault(args["External id"], sys.intern(str(event["name"])))
        if "Sequence number" in args:
            is_gradient = str(event["name"]).startswith(_GRADIENT) or bool(args.get(_FORWARD_THREAD))
            number = _whole(args["Sequence number"])
            self._numbered.append(_Numbered(_ns(event["ts"]), _thread(event), number, is_gradient))

    def _task(self, event: Mapping[str, Any]) -> None:
        args = _args(event)
        external = args.get("External id", args.get("external id"))
        operator = self._operators.get(external)
        if operator is None and external is not None:
            self._early.append((len(self._tasks), external))
        self._tasks.append(_task(event, args, operator))

    def trace(self, rank: int | None, world_size: int | None) -> Trace:
        """Return all rows, sorted."""
        for i, external in self._early:
            self._tasks[i] = replace(self._tasks[i], operator=self._operators.get(external))
        self._tasks.sort(key=lambda task: (task.start_ns, task.device, task.stream, task.correlation))
        self._calls.sort(key=lambda call: (call.start_ns, call.thread, call.correlation))
        inside = defaultdict(list, {thread: _apart(spans) for thread, spans in self._inside.items()})
        callers = _callers(self._numbered)
        return Trace(
            self._tasks,
            self._calls,
            self._waits,
            self._notes_waits,
            self._host_waits,
            callers,
            inside,
            rank,
            world_size,
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
    info = others.get("distributedInfo")
    if not isinstance(info, dict) or not {"rank", "world_size"} <= info.keys():
        return None, None  # a tool may add the rank alone, as Holistic Trace Analysis does
    rank, size = info["rank"], info["world_size"]
    if not isinstance(rank, int) or not isinstance(size, int) or not 0 <= rank < size:
        raise InputError(f"{path}: distributedInfo: rank {rank!r} of {size!r} is no rank of a job")
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
    start, duration = _span(event)
    facts = {key: args[name] for key, name in _FACTS.items() if name in args}
    return GpuTask(
        sys.intern(str(event["name"])),
        _whole(args["device"]),
        _whole(args["stream"]),
        _whole(args["correlation"]),
        start,
        duration,
        _whole(args.get("bytes", 0)),
        operator,
        facts,
        (str(args["Process Group Name"]), str(args.get("Process Group Ranks", "")))
        if "Process Group Name" in args
        else None,
        args.get("Collective name") in ("send", "recv"),
    )


def _call(event: Mapping[str, Any]) -> HostCall:
    start, duration = _span(event)
    correlation = _whole(_args(event)["correlation"])
    return HostCall(sys.intern(str(event["name"])), _thread(event), correlation, start, start + duration)


def _wait(args: Mapping[str, Any]) -> Iterator[StreamWait]:
    """Yield the wait, unless the profiler could not tell what for (-1)."""
    on_stream, recorded = _whole(args["wait_on_stream"]), _recorded(args)
    device, stream, after = (_whole(args[key]) for key in ("device", "stream", "correlation"))
    if on_stream >= 0 and (recorded is None or recorded >= 0):
        yield StreamWait(device, stream, after, on_stream, recorded)


def _host_wait(args: Mapping[str, Any]) -> Iterator[tuple[int, HostWait]]:
    """Yield the call's correlation and what it waits for, as far as the profiler could tell."""
    device, correlation = _whole(args["device"]), _whole(args["correlation"])
    if "wait_on_stream" not in args:
        yield correlation, HostWait(device, _whole(args["stream"]), None)
    for wait in _wait(args) if "wait_on_stream" in args else ():
        yield correlation, HostWait(device, wait.on_stream, wait.recorded)


def _recorded(args: Mapping[str, Any]) -> int | None:
    """Return the correlation of the call that recorded an event; None: the profiler is too old to say it."""
    key = "wait_on_cuda_event_record_corr_id"
    return _whole(args[key]) if key in args or "wait_on_cuda_event_id" not in args else None


def _args(event: Mapping[str, Any]) -> Mapping[str, Any]:
    args = event["args"]
    if not isinstance(args, dict):
        raise ValueError(f"args is no object but {str(args)[:40]!r}")
    return args


def _thread(event: Mapping[str, Any]) -> Thread:
    return _whole(event["pid"]), _whole(event["tid"])


def _span(event: Mapping[str, Any]) -> tuple[int, int]:
    """Return begin and duration in ns."""
    start, duration = _ns(event["ts"]), _ns(event["dur"])
    if start + duration > LATEST_NS:
        raise ValueError(f"ends after {LATEST_NS // 1000} us")
    return start, duration


def _whole(value: Any) -> int:
    """Return a whole number of 64 bits; text with one is one."""
    number = int(value) if isinstance(value, str) else value
    if isinstance(number, float) and number.is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or not -(2**63) <= number < 2**63:
        raise ValueError(f"{str(value)[:40]!r} is no whole number")
    return number


def _ns(microseconds: Any) -> int:
    """Return whole ns, rounded half up, exactly."""
    if isinstance(microseconds, bool) or not isinstance(microseconds, int | float):
        raise ValueError(f"{microseconds!r} is no time in microseconds")
    if not 0 <= microseconds < math.inf:
        raise ValueError(f"{microseconds!r} is no time in microseconds")
    above, below = microseconds.as_integer_ratio()
    return (2000 * above + below) // (2 * below)
