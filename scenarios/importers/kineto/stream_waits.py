"""What tasks of a GPU wait for on it: the one before them on their stream, and events of other streams.

::

    calls       launch a    record e    launch b    wait for e    launch c
    stream 7    a ────────── e ──────── b
    stream 20                                       ( a )         c            c waits for a, not for b

A stream's *position* at a call is what has to end before the stream is through with all that it was told so
far: the task launched last, or that one and the positions of events that it waits for since.

Which event a stream waits for is in newer traces (``cuda_sync``, profiled with
``enable_cuda_sync_events``; what was lost of it tells `noted_waits`); for others `unnoted` infers it.
"""

from __future__ import annotations

import bisect
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from functools import cached_property, lru_cache
from itertools import repeat
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np

from scenarios.importers.kineto.kineto_rows import HostCall, RecordedTrace
from sim.base.arrays import BoolArray, Csr, IntArray

_QUEUE: Final = 900
"""A queue of NVIDIA's GPUs holds about 1,024 launches (1,022 at most in public recordings)."""
_RETURN_NS: Final = 10_000
"""So soon after a place was free the call returned that waited for it."""


class EventWait(NamedTuple):
    """A wait of a stream for an event of another one.

    Attributes
    ----------
    key : tuple
        Which wait of the process it is, and for which stream: the same on all ranks of one program.
    at : int
        Correlation of the call.
    device, stream, on_stream : int
    recorded : int
        Correlation of the call that recorded the event.
    fits : bool
        Whether the next task of the stream was recorded to start after what it waits for had ended.
    """

    key: tuple[int, int]
    at: int
    device: int
    stream: int
    on_stream: int
    recorded: int
    fits: bool = True


class Streams:
    """The positions of all streams, call by call.

    Parameters
    ----------
    trace : Trace
    waits : iterable of EventWait

    Attributes
    ----------
    before : list of tuple of int
        What each task waits for.
    """

    def __init__(self, trace: RecordedTrace, waits: Iterable[EventWait] = ()) -> None:
        self._lane = trace.lane
        self.before: list[tuple[int, ...]] = [()] * len(trace.tasks)
        self._history: dict[tuple[int, int], list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
        order = np.argsort(trace.correlation, kind="stable")
        told: list[tuple[int, int, EventWait | None]]
        told = [*zip(trace.correlation[order].tolist(), order.tolist(), repeat(None))]
        if own := [(wait.at, -1, wait) for wait in waits]:
            told = sorted([*told, *own], key=itemgetter(0, 1))
        for correlation, i, wait in told:
            on = trace.tasks[i] if wait is None else wait
            stream = on.device, on.stream
            history = self._history[stream]
            position = history[-1][1] if history else ()
            if wait is None:
                self.before[i], position = position, (i,)
            else:
                other = self.at((wait.device, wait.on_stream), wait.recorded)
                position = tuple(dict.fromkeys((*position, *other)))
            history.append((correlation, position))

    @cached_property
    def edges(self) -> tuple[IntArray, IntArray, BoolArray]:
        """Tasks, what each waits for, and whether that is on its own stream: columns."""
        rows = Csr.of_rows(self.before)
        tasks, others = rows.rows(), rows.indices
        return tasks, others, self._lane[tasks] == self._lane[others]

    @property
    def known(self) -> list[tuple[int, int]]:
        """The streams, as device and number."""
        return [*self._history]

    def at(self, stream: tuple[int, int], correlation: int) -> tuple[int, ...]:
        """Return the position of a stream of a device before a call."""
        history = self._history.get(stream, [])
        known = bisect.bisect_left(history, (correlation,))
        return history[known - 1][1] if known else ()

    def fits(self, trace: RecordedTrace, wait: EventWait) -> bool:
        """Whether the next task of the stream that waits was recorded to start after what it waits for."""
        history = self._history.get((wait.device, wait.stream), [])
        following = bisect.bisect_right(history, (wait.at, (sys.maxsize,)))
        if following == len(history):
            return True
        (task,) = history[following][1]
        return self._end_ns(trace, wait) <= trace.tasks[task].start_ns

    def _end_ns(self, trace: RecordedTrace, wait: EventWait) -> int:
        awaited = self.at((wait.device, wait.on_stream), wait.recorded)
        return max((trace.tasks[i].end_ns for i in awaited), default=0)

    def all_at(self, correlation: int, device: int | None = None) -> tuple[int, ...]:
        """Return the positions of all streams, or of those of a device, before a call."""
        known = (stream for stream in self.known if device is None or stream[0] == device)
        return tuple(dict.fromkeys(i for stream in known for i in self.at(stream, correlation)))


class RecordedLaunchQueue:
    """The launches that have not ended: if there are too many, the next one waits until one has.

    ::

        host       [launch 1023                ][launch 1024    ]
        stream 7   [ kernel 1                ][ kernel 2     ][ kernel 3

    How many there may be is the most that there were, if these are as many as a queue holds.

    Parameters
    ----------
    trace : Trace
    """

    def __init__(self, trace: RecordedTrace) -> None:
        order = np.lexsort((trace.end_ns, trace.correlation))
        launched = trace.correlation[order]
        last = order[np.append(launched[1:] != launched[:-1], True)]  # of all that one call launched
        self._launches = trace.correlation[last]
        self._tasks = last[np.lexsort((last, trace.end_ns[last]))]
        self._ends = trace.end_ns[self._tasks]
        calls = [(call.correlation, call.start_ns) for call in trace.calls]
        launched, began_ns = np.array(calls, np.int64).reshape(-1, 2).T
        is_launch = np.isin(launched, self._launches)
        most = int(self._left(launched[is_launch], began_ns[is_launch]).max(initial=0))
        self._full = 0.95 * most if most >= _QUEUE else None

    def _left(self, correlation: IntArray | int, at_ns: IntArray | int) -> IntArray:
        """Return how many launches before a call had not ended at a time."""
        launched = np.searchsorted(self._launches, correlation)
        return np.asarray(launched - np.searchsorted(self._ends, at_ns, side="right"))

    def freed_by(self, call: HostCall) -> int | None:
        """Return the task that made a place for a launch that waited for one, as it was recorded."""
        if self._full is None or self._left(call.correlation, call.end_ns) < self._full:
            return None
        ended = int(np.searchsorted(self._ends, call.end_ns, side="right"))
        end_ns, task = (int(self._ends[ended - 1]), int(self._tasks[ended - 1])) if ended else (0, 0)
        return task if call.start_ns < end_ns and call.end_ns - end_ns <= _RETURN_NS else None


# ----------------------------------------------------------------------------------------------------------
# What calls of the CUDA, HIP and SYCL runtimes and drivers do, by their names.

APART_NS: Final = 10_000
"""What the clocks of host and device may be apart; on an MI300X, tasks ended 8.5 us after calls that wait."""
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
    """Whether a call of this name, which launches a task of that name, returns only when it has ended."""
    waits = _COPY.match(call) and not ON_DEVICE.search(task)
    return bool(waits or _WITH_STREAM.match(call) or _TO_PAGEABLE.search(task))
