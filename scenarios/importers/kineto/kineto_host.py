"""The host of a recorded process: the work of its calls, and what they wait for.

A host op begins at the end of the one before it on its thread, so that the time between launches, in
Python and the framework, counts. A call that waits for the device becomes an edge from what it waits for, and
an op for the rest of the call; in a simulation it waits as long as it has to, and no longer::

    recorded    thread   [launch][ cudaMemcpy, device to host         ]──[launch]
                stream          [ kernel                       ][copy]      [ kernel

    simulated   thread   [launch][launch]                         [sync]─[launch]
                                     │ issues the copy          ▲
                stream          [ kernel                       ][copy]      [ kernel

====================================  ==========================================================
call                                  waits for
====================================  ==========================================================
DeviceSynchronize, CtxSynchronize     all that was launched before it, on the device that the profiler
                                      noted (``cuda_sync``), or else on any
cudaFree, cudaFreeHost, hipFree       the same, if all of it was recorded to end by then
StreamSynchronize, EventSynchronize   the stream, or what was launched before the event, that the profiler
                                      noted, or that `waits.unnoted` infers
copies that are synchronous           the copy, but for one within the device (``hipMemcpyWithStream``: any)
copies from the device to pageable    the copy
``hipMemcpyAsync``, from or to a host  the copy, if it was recorded to be held and to end before the call did:
                                      AMD's profiler does not tell pageable memory
copies from pageable to the device    the task before the copy on its stream, if the call was recorded to
                                      return after the copy had begun (only large ones do)
calls that launch                     a place in the launch queue, where it is full (`RecordedLaunchQueue`)
====================================  ==========================================================

For its task, a launching call is over when the task begins: the rest of the call belongs to the next op.
Attributes say which part of an op is its own launch call (``call_ns``), and which the rest of the previous
one (``rest_of_call_ns``); its remaining time is work of the host between calls.

The overhead of a call that only waits is known from calls that were recorded to wait. One that takes three
times as long, and 100 us, waited for something that is not in the trace: that time is an op ``delay``.

A copy that waits was issued at the beginning of its call. How long that takes is visible only if there was
nothing to wait for; otherwise it is the median of such copies, or of all launches in the trace.

The thread that runs gradients and the one that called ``backward`` take turns, because one waits for the
other: here they are one.

Sources: CUDA driver API, "API synchronization behavior"
(https://docs.nvidia.com/cuda/cuda-driver-api/api-sync-behavior.html); "Using the NVIDIA CUDA Stream-Ordered
Memory Allocator, Part 1" (NVIDIA technical blog, 2021: ``cudaFree`` synchronizes); HIP API, ``hipFree``,
``hipFreeHost`` ("an implicit hipDeviceSynchronize() call"), ``hipMemcpyWithStream`` ("akin to hipMemcpyAsync
+ hipStreamSynchronize"), ``hipMemcpyAsync`` ("If host or dst are not pinned, the memory copy will be
performed synchronously"); PyTorch's autograd engine (torch/csrc/autograd/engine.cpp: ``Engine::execute``
waits for the graph's future).
"""

from __future__ import annotations

import bisect
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Any, Final

import numpy as np

from scenarios.importers.kineto.kineto_rows import (
    EventWait,
    GpuTask,
    HostCall,
    HostWait,
    RecordedTrace,
    Thread,
)
from sim.base.arrays import BoolArray, Csr, IntArray, group_pairs

# ----------------------------------------------------------------------------------------------------------
# What tasks of a GPU wait for on it: the task before them on their stream, and events of other streams.
#
# ::
#
#     calls       launch a    record e    launch b    wait for e    launch c
#     stream 7    a ────────── e ──────── b
#     stream 20                                       ( a )         c            c waits for a, not for b
#
# A stream's *position* at a call is what has to end before the stream has done everything issued to it so
# far: the task launched last, or that one and the positions of events that it has waited for since.
#
# Newer traces name the event that a stream waits for (``cuda_sync``, profiled with
# ``enable_cuda_sync_events``; `resolve_waits` restores what was lost); for others `inferred_waits` infers it.

_QUEUE: Final = 900
"""The queue of an NVIDIA GPU holds about 1,024 launches (at most 1,022 in public recordings)."""
_RETURN_NS: Final = 10_000
"""Maximum time from a place becoming free to the return of the call that waited for it."""


class Streams:
    """The positions of all streams, call by call.

    Parameters
    ----------
    trace : RecordedTrace
    waits : iterable of EventWait

    Attributes
    ----------
    before : list of tuple of int
        The tasks that each task waits for.
    """

    def __init__(self, trace: RecordedTrace, waits: Iterable[EventWait] = ()) -> None:
        self._lane = trace.lane
        self.before: list[tuple[int, ...]] = [()] * len(trace.tasks)
        self._history: dict[tuple[int, int], list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
        order = np.argsort(trace.correlation, kind="stable")
        events: list[tuple[int, int, EventWait | None]]
        events = [*zip(trace.correlation[order].tolist(), order.tolist(), repeat(None))]
        if waiting := [(wait.call, -1, wait) for wait in waits]:
            events = sorted([*events, *waiting], key=itemgetter(0, 1))
        for correlation, i, wait in events:
            source = trace.tasks[i] if wait is None else wait
            stream = source.device, source.stream
            history = self._history[stream]
            position = history[-1][1] if history else ()
            if wait is None:
                self.before[i], position = position, (i,)
            else:
                other = self.position((wait.device, wait.on_stream), wait.recorded)
                position = tuple(dict.fromkeys((*position, *other)))
            history.append((correlation, position))

    @cached_property
    def edges(self) -> tuple[IntArray, IntArray, BoolArray]:
        """Columns: tasks, a task that each waits for, and whether that is on the same stream."""
        rows = Csr.of_rows(self.before)
        tasks, others = rows.rows(), rows.indices
        return tasks, others, self._lane[tasks] == self._lane[others]

    def position(self, stream: tuple[int, int], correlation: int) -> tuple[int, ...]:
        """Return the position of a stream of a device before a call."""
        history = self._history.get(stream, [])
        index = bisect.bisect_left(history, (correlation,))
        return history[index - 1][1] if index else ()

    def fits(self, trace: RecordedTrace, wait: EventWait) -> bool:
        """Whether the waiting stream's next task was recorded to start after what the wait is for."""
        history = self._history.get((wait.device, wait.stream), [])
        following = bisect.bisect_right(history, (wait.call, (sys.maxsize,)))
        if following == len(history):
            return True
        (task,) = history[following][1]
        awaited = self.position((wait.device, wait.on_stream), wait.recorded)
        return all(trace.tasks[i].end_ns <= trace.tasks[task].start_ns for i in awaited)

    def all_positions(self, correlation: int, device: int | None = None) -> tuple[int, ...]:
        """Return the positions of all streams, or of those of a device, before a call."""
        streams = (stream for stream in self._history if device is None or stream[0] == device)
        return tuple(dict.fromkeys(i for stream in streams for i in self.position(stream, correlation)))


class RecordedLaunchQueue:
    """The launches that have not ended; if there are too many, the next one waits until one has ended.

    ::

        host       [launch 1023                ][launch 1024    ]
        stream 7   [ kernel 1                ][ kernel 2     ][ kernel 3

    The limit is the largest number observed, if it is as large as a queue's capacity.

    Parameters
    ----------
    trace : RecordedTrace
    """

    def __init__(self, trace: RecordedTrace) -> None:
        order = np.lexsort((trace.end_ns, trace.correlation))
        launched = trace.correlation[order]
        last = order[np.append(launched[1:] != launched[:-1], True)]  # the last task that each call launched
        self._launches = trace.correlation[last]
        self._tasks = last[np.lexsort((last, trace.end_ns[last]))]
        self._ends = trace.end_ns[self._tasks]
        calls = [(call.correlation, call.start_ns) for call in trace.calls]
        launched, began_ns = np.array(calls, np.int64).reshape(-1, 2).T
        is_launch = np.isin(launched, self._launches)
        longest = int(self._pending_launches(launched[is_launch], began_ns[is_launch]).max(initial=0))
        self._full = 0.95 * longest if longest >= _QUEUE else None

    def _pending_launches(self, correlation: IntArray | int, at_ns: IntArray | int) -> IntArray:
        """Return how many launches before a call had not ended at a time."""
        launched = np.searchsorted(self._launches, correlation)
        return np.asarray(launched - np.searchsorted(self._ends, at_ns, side="right"))

    def freed_by(self, call: HostCall) -> int | None:
        """Return the task whose end made room for a launch that was recorded to wait for it, or None."""
        if self._full is None or self._pending_launches(call.correlation, call.end_ns) < self._full:
            return None
        ended = int(np.searchsorted(self._ends, call.end_ns, side="right"))
        end_ns, task = (int(self._ends[ended - 1]), int(self._tasks[ended - 1])) if ended else (0, 0)
        return task if call.start_ns < end_ns and call.end_ns - end_ns <= _RETURN_NS else None


# ----------------------------------------------------------------------------------------------------------
# Classification of calls of the CUDA, HIP and SYCL runtimes and drivers by name.

APART_NS: Final = 10_000
"""Maximum offset between the clocks of host and device; on an MI300X, tasks ended 8.5 us after waits."""
ALL: Final = re.compile(r"(cuda|hip)DeviceSynchronize|cuCtxSynchronize")
FREE: Final = re.compile(r"(cuda|hip)(Host)?Free(?!Async)|cuMemFree(?!Async)")
STREAM: Final = re.compile(r"(cuda|hip|cu)StreamSynchronize|ur(QueueFinish|EventWait)$")
EVENT: Final = re.compile(r"(cuda|hip|cu)EventSynchronize")
STREAM_WAIT: Final = re.compile(r"(cuda|hip|cu)StreamWaitEvent")
ON_DEVICE: Final = re.compile(r"DtoD|DeviceToDevice|PtoP")
COPY_FROM_PAGEABLE: Final = re.compile(r"Pageable -> Device")
_COPY: Final = re.compile(r"(cuda|hip|cu)Memcpy(?!.*(Async|Peer))")
_WITH_STREAM: Final = re.compile(r"hipMemcpyWithStream")
_TO_PAGEABLE: Final = re.compile(r"Device -> Pageable")


@lru_cache(maxsize=4096)
def waits_for_copy(call: str, task: str) -> bool:
    """Whether a call of this name that launches a task of that name returns only when the task has ended."""
    waits = _COPY.match(call) and not ON_DEVICE.search(task)
    return bool(waits or _WITH_STREAM.match(call) or _TO_PAGEABLE.search(task))


Record = dict[str, Any]
"""Arguments of `GraphBuilder.op`."""

_MAX_CALL_NS: Final = 100_000
"""Maximum time of a call that waits for nothing; a host may still lose its core for some time."""


@dataclass
class HostOps:
    """The host's ops, in order of time.

    Parameters
    ----------
    trace : RecordedTrace
    names : list of str
        Names of the ops of its tasks.
    streams : Streams
        What tasks and streams wait for on the GPU.
    host_waits : mapping
        What calls wait for, by correlation.
    begin_ns : int
        Time 0 of every thread. An op ``before.thread0`` lasts until the trace begins, if that is later.
    latency_ns : int
        From the end of a launch to the earliest start of its task.
    prefix : str
        Prefix of the names of ops.
    device : str
        Device to which they are pinned.

    Attributes
    ----------
    ops : list of (int, Record)
        Ops with their starts.
    launcher : dict
        Task → the op that launches it.
    issued_ns : dict
        Task → the end of that op.
    """

    trace: RecordedTrace
    names: list[str]
    streams: Streams
    host_waits: Mapping[int, HostWait]
    begin_ns: int
    latency_ns: int
    prefix: str
    device: str
    ops: list[tuple[int, Record]] = field(default_factory=list)
    launcher: dict[int, str] = field(default_factory=dict)
    issued_ns: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Add the ops, call by call."""
        self._point: dict[Thread, int] = {}  # end of the last op of each thread
        self._last: dict[Thread, str] = {}
        self._called: dict[Thread, int] = {}  # end of the last launch call of each thread
        self._threads: dict[Thread, str] = {}
        self._launches = group_pairs((task.correlation, i) for i, task in enumerate(self.trace.tasks))
        self._queue = RecordedLaunchQueue(self.trace)
        self._waits: list[int] = []  # which of the ops are calls that only wait
        for call in self.trace.calls:
            self._take(call)
        self._split_waits()

    def _take(self, call: HostCall) -> None:
        if tasks := self._launches.get(call.correlation, []):
            self._add_launch(call, tasks)
        elif (awaited := self._awaited_tasks(call)) is not None:
            self._fill_until(call)
            self._add_wait(call, awaited)
            if not FREE.match(call.name):  # such a call also does work
                self._waits.append(len(self.ops) - 1)

    # -- launches ----------------------------------------------------------------------------------

    def _add_launch(self, call: HostCall, tasks: list[int]) -> None:
        """Add a launch, and its wait."""
        first = tasks[0]
        after: list[int] = []
        task, name, waits = self.trace.tasks[first], f"launch.{call.number}", None
        end_ns = self._issue_ns(call, task)
        blocks = waits_for_copy(call.name, task.name) or self._was_unpinned(call, first)
        awaited = self._in_time(call, tasks) if blocks else []
        if awaited and self._is_held(call, first):
            end_ns = min(end_ns, call.start_ns + self._issuing_ns)
        elif not awaited and call.end_ns >= task.start_ns and COPY_FROM_PAGEABLE.search(task.name):
            self._fill_until(call)
            after = self._in_time(call, self.streams.position((task.device, task.stream), call.correlation))
            if waited_ns := self._pass_time(call, after):
                waits = {"recorded_wait_ns": waited_ns}
        elif not awaited and (freed := self._queue.freed_by(call)) is not None:
            self._fill_until(call)
            after, waits = [freed], {"recorded_wait_ns": self._pass_time(call, [freed])}
        self._add(call, name, end_ns, after, waits)
        self._called[self._thread_of(call)] = 0 if awaited else call.end_ns
        issued_ns = self._point[self._thread_of(call)]
        for i in tasks:
            self.launcher[i], self.issued_ns[i] = self.prefix + name, issued_ns
        if awaited:
            self._add_wait(call, awaited)

    def _issue_ns(self, call: HostCall, task: GpuTask) -> int:
        """Return when a launch took effect: a latency before its task began, if that was within the call."""
        if task.start_ns >= call.end_ns:
            return call.end_ns
        return max(min(call.start_ns, task.start_ns), task.start_ns - self.latency_ns)

    def _is_held(self, call: HostCall, task: int) -> bool:
        """Whether a task was recorded to wait for another task when its call began."""
        return any(self.trace.tasks[i].end_ns > call.start_ns for i in self.streams.before[task])

    def _was_unpinned(self, call: HostCall, task: int) -> bool:
        """Whether AMD's profiler recorded a copy to be waited for, as copies of pageable memory are."""
        copy = self.trace.tasks[task]
        is_copy = call.name.startswith("hipMemcpy") and not ON_DEVICE.search(copy.name)
        return is_copy and call.end_ns >= copy.end_ns and self._is_held(call, task)

    @cached_property
    def _issuing_ns(self) -> int:
        """Return the time to issue a copy that waits: that of copies without a wait, or of any launch."""
        copies, launches = [], []
        for call in self.trace.calls:
            for i in self._launches.get(call.correlation, [])[:1]:
                task = self.trace.tasks[i]
                issue_ns = max(0, self._issue_ns(call, task) - call.start_ns)
                if not waits_for_copy(call.name, task.name):
                    launches.extend([] if self._was_unpinned(call, i) else [issue_ns])
                elif not self._is_held(call, i):
                    copies.append(issue_ns)
        times = sorted(copies or launches)
        return times[len(times) // 2] if times else 0

    # -- waits -------------------------------------------------------------------------------------

    def _awaited_tasks(self, call: HostCall) -> list[int] | None:
        """Return the tasks awaited by a call that launches nothing; None if it does not wait."""
        noted = self.host_waits.get(call.correlation)
        if ALL.match(call.name) or (noted is not None and noted.stream < 0):
            device = None if noted is None else noted.device
            return self._in_time(call, self.streams.all_positions(call.correlation, device))
        if noted is not None:
            return self._in_time(call, self.streams.position((noted.device, noted.stream), noted.recorded))
        if FREE.match(call.name):
            tasks = self.streams.all_positions(call.correlation)
            ended = self._in_time(call, tasks)
            return ended if ended and len(ended) == len(tasks) else None  # all of them, or it did not wait
        return [] if STREAM.match(call.name) or EVENT.match(call.name) else None

    def _in_time(self, call: HostCall, tasks: Iterable[int]) -> list[int]:
        """Return the tasks that had ended when a call returned: it cannot have waited for others."""
        return [i for i in tasks if self.trace.tasks[i].end_ns <= call.end_ns + APART_NS]

    def _add_wait(self, call: HostCall, awaited: list[int]) -> None:
        """Add a wait; it lasts for the rest of its call after what it waits for has ended."""
        attributes: dict[str, Any] = {"recorded_wait_ns": self._pass_time(call, awaited)}
        inferred = call.correlation in self.host_waits and call.correlation not in self.trace.host_waits
        if inferred and awaited and not attributes["recorded_wait_ns"]:
            attributes["inferred_wait"] = True
        self._add(call, f"synchronize.{call.number}", call.end_ns, awaited, attributes)

    def _split_waits(self) -> None:
        """Put a delay before each call that waited for something not in the trace."""
        waits = [self.ops[index][1] for index in self._waits]
        durations = sorted(op["duration_ns"] for op in waits if op["attributes"]["recorded_wait_ns"])
        usual_ns = durations[len(durations) // 2] if durations else 0
        most_ns = max(3 * usual_ns, _MAX_CALL_NS)
        for index in reversed(self._waits):
            start_ns, op = self.ops[index]
            attributes = op["attributes"]
            if op["duration_ns"] <= most_ns or "rest_of_call_ns" in attributes:
                continue
            held_ns = op["duration_ns"] - usual_ns
            name = op["name"].replace("synchronize.", "delay.call")
            delay = op | {"name": name, "kind": "delay", "duration_ns": held_ns}
            later = {"recorded_start_ns": attributes["recorded_start_ns"] + held_ns, "recorded_wait_ns": 0}
            op = op | {"duration_ns": usual_ns, "after": [name], "attributes": attributes | later}
            self.ops[index : index + 1] = (start_ns, delay), (start_ns + held_ns, op)

    # -- threads -----------------------------------------------------------------------------------

    def _thread_of(self, call: HostCall) -> Thread:
        return self.trace.callers.get(call.thread, call.thread)

    def _fill_until(self, call: HostCall) -> None:
        """Account for the host's own time until a call begins."""
        if call.start_ns > self._point.get(self._thread_of(call), self.begin_ns):
            self._add(call, f"host.{call.number}", call.start_ns)

    def _pass_time(self, call: HostCall, awaited: list[int]) -> int:
        """Account for the time until tasks have ended; return how long that is."""
        thread = self._thread_of(call)
        since = self._point.get(thread, self.begin_ns)
        self._point[thread] = max([since, *(self.trace.tasks[i].end_ns for i in awaited)])
        return self._point[thread] - since

    def _add(
        self, call: HostCall, name: str, end_ns: int, awaited: Iterable[int] = (), more: Record | None = None
    ) -> None:
        """Add an op of a call's thread: it lasts from where the thread was until `end_ns`."""
        thread, kind = self._thread_of(call), name.partition(".")[0]
        if thread not in self._threads:
            self._threads[thread] = f"thread{len(self._threads)}"
            if self.trace.begin_ns > self.begin_ns:
                self._add(call, f"before.{self._threads[thread]}", self.trace.begin_ns)
        start = self._point.get(thread, self.begin_ns)
        attributes: dict[str, Any] = {
            "thread": self._threads[thread],
            "recorded_start_ns": start - self.begin_ns,
        }
        if kind == "launch":
            attributes["call_ns"] = max(0, end_ns - max(start, call.start_ns))
        called_ns = self._called.get(thread, 0)
        own_ns = call.start_ns if kind == "launch" else end_ns
        if called_ns > start and (rest_ns := min(called_ns, own_ns, end_ns) - start) > 0:
            attributes["rest_of_call_ns"] = rest_ns
        if kind not in ("host", "before"):
            attributes["call"] = call.name
        if kind != "before":
            attributes |= self.trace.around.get(call.correlation, {})
        if more:
            attributes |= more
        after = [self._last[thread]] if thread in self._last else []
        after += [self.names[i] for i in awaited]
        op: Record = {
            "name": self.prefix + name,
            "kind": kind,
            "duration_ns": max(0, end_ns - start),
            "after": after,
            "device": self.device,
            "attributes": attributes,
        }
        self.ops.append((start, op))
        self._point[thread], self._last[thread] = max(start, end_ns), op["name"]
