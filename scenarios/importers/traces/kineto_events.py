"""What a PyTorch profiler trace records, as plain rows: host calls, GPU tasks, and who launched what.

Kineto writes Chrome trace events: slices (``"ph": "X"``) with ``ts`` and ``dur`` in microseconds and a
category. Four kinds of slice matter here::

    host thread    ──[cudaLaunchKernel corr 7]─[cudaStreamWaitEvent]──[cudaDeviceSynchronize      ]──
    stream 7                     └──────►[ kernel, corr 7 ][ kernel ]
    stream 20                                     [ nccl kernel             ]

``correlation`` ties a task to its launch; ``External id`` ties both to the operator (``aten::addmm``).
The categories changed their names once ("Kernel" became "kernel"); both are read. Names of keys are
Kineto's (https://github.com/pytorch/kineto, libkineto/src/output_json.cpp and CuptiActivity.cpp).

Autograd runs the backward on a thread of its own, while the one that called ``backward`` waits. An operator
and its gradient have one ``Sequence number``, which tells whose forward a thread runs backward.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scenarios.importers.files import StrPath, read_json
from sim.words.errors import InputError

__all__ = ["GpuTask", "HostCall", "HostWait", "StreamWait", "Thread", "Trace", "read_events"]

Thread = tuple[int, int]
"""Process and thread, as the system numbers them."""

_GPU = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"})
_HOST = frozenset({"cuda_runtime", "cuda_driver", "runtime", "hip_runtime"})
_OPERATOR = frozenset({"cpu_op", "operator"})
_GRADIENT = "autograd::engine::evaluate_function"
_FORWARD_THREAD = "Fwd thread id"
"""0, unless the operator is a gradient. Older traces have no `_GRADIENT` around it."""
_COLLECTIVE = ("c10d::", "nccl:", "record_param_comms")
"""How operators begin in which a process group launches its kernels."""
_FACTS = {
    "grid": "grid", "block": "block", "registers": "registers per thread", "shared_memory": "shared memory",
}  # fmt: skip
"""Our names of what is recorded about a kernel."""


@dataclass(frozen=True)
class GpuTask:
    """A kernel, copy or fill that ran.

    Attributes
    ----------
    name : str
    device, stream : int
    correlation : int
        Number of the launch.
    start_ns, duration_ns : int
    nbytes : int
        Of a copy or fill.
    operator : str or None
        What launched it (``"aten::addmm"``), if the trace says.
    facts : dict
        ``grid``, ``block``, ``registers``, ``shared_memory``, where recorded.
    group : tuple of str, optional
        Name and ranks of the process group of a collective, where recorded.
    pair : bool
        Whether it is a ``send`` or ``recv``, by what is recorded.
    """

    name: str
    device: int
    stream: int
    correlation: int
    start_ns: int
    duration_ns: int
    nbytes: int
    operator: str | None
    facts: dict[str, Any]
    group: tuple[str, str] | None = None
    pair: bool = False

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.duration_ns

    @property
    def communicates(self) -> bool:
        """Whether it is a kernel of NCCL (or RCCL, whose kernels have the same names)."""
        return self.name.startswith("nccl")


@dataclass(frozen=True)
class HostCall:
    """A call of the CUDA runtime or driver."""

    name: str
    thread: Thread
    correlation: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class StreamWait:
    """A recorded wait of a stream for an event of another one."""

    device: int
    stream: int
    after: int
    """Tasks of the stream launched after this correlation wait,"""
    on_stream: int
    recorded: int | None
    """for those of the other stream launched before this one; None: nobody knows when."""


@dataclass(frozen=True)
class HostWait:
    """What a recorded call of the host waits for."""

    device: int
    stream: int
    """-1: all streams."""
    recorded: int | None
    """The event was recorded by this correlation; None: it waits for all that was launched before."""


@dataclass(frozen=True)
class Trace:
    """Everything that matters here, in order of time.

    Attributes
    ----------
    tasks, calls, waits
    notes_waits : bool
        Whether the profiler noted waits, if only that it could not tell what for.
    host_waits : dict
        By correlation of the call.
    callers : dict
        Thread that only runs gradients → the thread that waits for it meanwhile.
    inside : dict
        By thread: begin and end of every operator in which a process group launches its kernels.
    rank, world_size : int or None
        Of a distributed job.
    """

    tasks: list[GpuTask] = field(default_factory=list)
    calls: list[HostCall] = field(default_factory=list)
    waits: list[StreamWait] = field(default_factory=list)
    notes_waits: bool = False
    host_waits: dict[int, HostWait] = field(default_factory=dict)
    callers: dict[Thread, Thread] = field(default_factory=dict)
    inside: dict[Thread, list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    rank: int | None = None
    world_size: int | None = None

    @property
    def begin_ns(self) -> int:
        """When the first task or call began."""
        starts = [task.start_ns for task in self.tasks[:1]] + [call.start_ns for call in self.calls[:1]]
        return min(starts)

    def later(self, ns: int) -> Trace:
        """Return it by a clock that shows `ns` more."""
        return replace(
            self,
            tasks=[replace(task, start_ns=task.start_ns + ns) for task in self.tasks],
            calls=[replace(one, start_ns=one.start_ns + ns, end_ns=one.end_ns + ns) for one in self.calls],
        )


def read_events(path: StrPath) -> Trace:
    """Return the tasks, calls and waits of a trace.

    Raises
    ------
    InputError
        No such file, not JSON, no ``traceEvents``, or a slice without what it must have (with its index).
    """
    data = read_json(path)
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise InputError(f"{path}: not a trace (it has no list traceEvents)")
    events = [event if isinstance(event, dict) else {} for event in events]
    categories = [str(event.get("cat", "")).lower() for event in events]
    operators = [event for event, category in zip(events, categories, strict=True) if category in _OPERATOR]
    names: dict[int, str] = {}
    for event in operators:
        if "External id" in event.get("args", {}):
            names.setdefault(event["args"]["External id"], event["name"])
    rank, world_size = _place(path, data)
    noted = "cuda_sync" in categories
    trace = Trace(callers=_callers(operators), rank=rank, world_size=world_size, notes_waits=noted)
    for index, (event, category) in enumerate(zip(events, categories, strict=True)):
        if event.get("ph") != "X":
            continue
        try:
            if category in _GPU:
                trace.tasks.append(_task(event, names))
            elif category in _HOST:
                trace.calls.append(_call(event))
            elif str(event.get("name")).startswith(_COLLECTIVE):
                start = _ns(event["ts"])
                trace.inside[_thread(event)].append((start, start + _ns(event["dur"])))
            elif category == "cuda_sync" and event["name"] == "Stream Wait Event":
                trace.waits.extend(_wait(event["args"]))
            elif category == "cuda_sync" and event["name"] in ("Event Sync", "Stream Sync"):
                trace.host_waits.update(_host_wait(event["args"]))
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise InputError(f"{path}: traceEvents[{index}] ({event.get('name')}): {reason}") from None
    trace.tasks.sort(key=lambda task: (task.start_ns, task.device, task.stream, task.correlation))
    trace.calls.sort(key=lambda call: (call.start_ns, call.thread, call.correlation))
    for thread, spans in trace.inside.items():
        trace.inside[thread] = _apart(spans)
    return trace


def _apart(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans in order of time, those that overlap as one."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def _place(path: StrPath, data: Any) -> tuple[int | None, int | None]:
    """Return rank and world size of what was recorded, where the trace has them."""
    info = data.get("distributedInfo") if isinstance(data, dict) else None
    if not isinstance(info, dict) or not {"rank", "world_size"} <= info.keys():
        return None, None  # a tool may add the rank alone, as Holistic Trace Analysis does
    rank, size = info["rank"], info["world_size"]
    if not isinstance(rank, int) or not isinstance(size, int) or not 0 <= rank < size:
        raise InputError(f"{path}: distributedInfo: rank {rank!r} of {size!r} is no rank of a job")
    return rank, size


def _callers(operators: Sequence[Any]) -> dict[Thread, Thread]:
    """Return the threads that only run gradients, and for whom: the thread of the forward operators.

    A process with several such threads, one a GPU, runs them at once; then nobody waits for one alone.
    """
    forward: dict[tuple[Any, Any], Thread] = {}
    gradients: dict[Thread, Counter[Thread]] = defaultdict(Counter)
    numbered = [each for each in operators if "Sequence number" in each.get("args", {})]
    for event in sorted(numbered, key=lambda each: each.get("ts", 0)):
        thread, number = _thread(event), event["args"]["Sequence number"]
        whose = forward.setdefault((thread[0], number), thread)
        if str(event.get("name")).startswith(_GRADIENT) or event["args"].get(_FORWARD_THREAD):
            gradients[thread][whose] += 1
    waits_for: dict[Thread, list[Thread]] = defaultdict(list)
    for thread, owners in gradients.items():
        (whose, _), *_ = owners.most_common(1)
        if whose != thread:
            waits_for[whose].append(thread)
    return {threads[0]: whose for whose, threads in waits_for.items() if len(threads) == 1}


def _task(event: Any, operators: dict[int, str]) -> GpuTask:
    args = event["args"]
    facts = {key: args[name] for key, name in _FACTS.items() if name in args}
    return GpuTask(
        str(event["name"]),
        int(args["device"]),
        int(args["stream"]),
        int(args["correlation"]),
        _ns(event["ts"]),
        _ns(event["dur"]),
        int(args.get("bytes", 0)),
        operators.get(args.get("External id", args.get("external id"))),
        facts,
        (str(args["Process Group Name"]), str(args.get("Process Group Ranks", "")))
        if "Process Group Name" in args
        else None,
        args.get("Collective name") in ("send", "recv"),
    )


def _call(event: Any) -> HostCall:
    start = _ns(event["ts"])
    thread = (int(event["pid"]), int(event["tid"]))
    end, correlation = start + _ns(event["dur"]), int(event["args"]["correlation"])
    return HostCall(str(event["name"]), thread, correlation, start, end)


def _thread(event: Any) -> Any:
    """Return process and thread of an operator, which older traces write as strings, like a call's."""
    given = event.get("pid"), event.get("tid")
    return tuple(int(each) if isinstance(each, str) and each.isdigit() else each for each in given)


def _wait(args: Any) -> Iterator[StreamWait]:
    """Yield the wait, unless the profiler could not tell what for (-1)."""
    on_stream, recorded = int(args["wait_on_stream"]), _recorded(args)
    device, stream, after = (int(args[key]) for key in ("device", "stream", "correlation"))
    if on_stream >= 0 and (recorded is None or recorded >= 0):
        yield StreamWait(device, stream, after, on_stream, recorded)


def _host_wait(args: Any) -> Iterator[tuple[int, HostWait]]:
    """Yield the call's correlation and what it waits for, as far as the profiler could tell."""
    device, correlation = int(args["device"]), int(args["correlation"])
    if "wait_on_stream" not in args:
        yield correlation, HostWait(device, int(args["stream"]), None)
    for wait in _wait(args) if "wait_on_stream" in args else ():
        yield correlation, HostWait(device, wait.on_stream, wait.recorded)


def _recorded(args: Any) -> int | None:
    """Return the correlation of the call that recorded an event; None: the profiler is too old to say it."""
    key = "wait_on_cuda_event_record_corr_id"
    return int(args[key]) if key in args or "wait_on_cuda_event_id" not in args else None


def _ns(microseconds: Any) -> int:
    """Return whole ns, rounded half up, exactly."""
    if isinstance(microseconds, bool) or not isinstance(microseconds, int | float):
        raise ValueError(f"{microseconds!r} is no time in microseconds")
    if not 0 <= microseconds < math.inf:
        raise ValueError(f"{microseconds!r} is no time in microseconds")
    above, below = microseconds.as_integer_ratio()
    return (2000 * above + below) // (2 * below)
