"""What tasks of a GPU wait for on it: the one before them on their stream, and events of other streams.

Waits between streams are those that the trace has (``cuda_sync``, profiled with
``enable_cuda_sync_events``). An older trace has the calls of ``cudaStreamWaitEvent`` only, not for what
they wait: then the task that the thread launches next is taken to wait for the last task launched before
the call on each other stream, unless the recorded times say otherwise.
"""

from __future__ import annotations

import bisect
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from scenarios.importers.traces.kineto_events import Thread, Trace

__all__ = ["EventWait", "Launched", "awaited_tasks", "event_waits"]

_STREAM_WAIT = re.compile(r"(cuda|hip|cu)StreamWaitEvent")


class Launched:
    """The tasks of each stream in order of launch.

    Parameters
    ----------
    trace : Trace
    """

    def __init__(self, trace: Trace) -> None:
        self.streams: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for correlation, i in sorted((task.correlation, i) for i, task in enumerate(trace.tasks)):
            self.streams[trace.tasks[i].device, trace.tasks[i].stream].append((correlation, i))

    def before(self, stream: tuple[int, int], correlation: int) -> int | None:
        """Return the last task of a stream of a device launched before a correlation."""
        return _last_before(self.streams.get(stream, []), correlation)

    def after(self, stream: tuple[int, int], correlation: int) -> int | None:
        """Return the first task of a stream of a device launched after a correlation."""
        return _first_after(self.streams.get(stream, []), correlation)


class EventWait(NamedTuple):
    """A wait of a stream for an event of another one.

    Attributes
    ----------
    key : tuple
        Which wait of the process it is, and for which stream: the same on all ranks of one program.
    producer, consumer : int
        Tasks.
    fits : bool
        Whether the consumer was recorded to start after the producer had ended.
    """

    key: tuple[int, int]
    producer: int
    consumer: int
    fits: bool


def awaited_tasks(trace: Trace, waits: Iterable[EventWait]) -> list[list[int]]:
    """Return for each task those that it waits for on the GPU: the one before it on its stream, others."""
    last: dict[tuple[int, int], int] = {}
    before: list[list[int]] = []
    for i, task in enumerate(trace.tasks):
        stream = (task.device, task.stream)
        before.append([last[stream]] if stream in last else [])
        last[stream] = i
    for wait in waits:
        if wait.producer not in before[wait.consumer]:
            before[wait.consumer].append(wait.producer)
    return before


def event_waits(traces: Sequence[Trace]) -> list[list[EventWait]]:
    """Return the waits between streams of each rank of a program (or of one process).

    A wait that one rank cannot have had is none on the others, if all ranks call it as often.
    """
    found = [list(_waits(trace)) for trace in traces]
    calls = [sum(_STREAM_WAIT.match(call.name) is not None for call in trace.calls) for trace in traces]
    if len(set(calls)) == 1:
        wrong = {wait.key for waits in found for wait in waits if not wait.fits}
        return [[wait for wait in waits if wait.key not in wrong] for waits in found]
    return [[wait for wait in waits if wait.fits] for waits in found]


def _waits(trace: Trace) -> Iterator[EventWait]:
    """Yield every wait, as recorded or, without a record, as inferred."""
    launched = Launched(trace)
    if trace.waits:
        for n, wait in enumerate(trace.waits):
            producer = launched.before((wait.device, wait.on_stream), wait.recorded)
            consumer = launched.after((wait.device, wait.stream), wait.after)
            if producer is not None and consumer is not None:
                yield EventWait((n, wait.on_stream), producer, consumer, True)
        return
    threads, call_of = _launched_by(trace), {call.correlation: call for call in trace.calls}
    calls = (call for call in trace.calls if _STREAM_WAIT.match(call.name))
    for n, call in enumerate(calls):
        mine = threads[trace.callers.get(call.thread, call.thread)]
        consumer = _first_after(mine, call.correlation)
        latest = _last_before(mine, call.correlation)
        if consumer is None:
            continue
        if latest is not None and trace.tasks[latest].communicates:
            launch = call_of[trace.tasks[latest].correlation]
            if _in_one(trace.inside.get(call.thread, []), launch.start_ns, call.start_ns):
                continue
        waiting = trace.tasks[consumer]
        for device, stream in launched.streams:
            producer = launched.before((device, stream), call.correlation)
            if producer is not None and device == waiting.device and stream != waiting.stream:
                fits = trace.tasks[producer].end_ns <= waiting.start_ns
                yield EventWait((n, stream), producer, consumer, fits)


def _launched_by(trace: Trace) -> dict[Thread, list[tuple[int, int]]]:
    """Return the tasks that each thread launched, in that order, with their correlations.

    A thread that runs gradients goes on with the streams of the one that waits for it, and the other way.
    """
    thread_of = {call.correlation: trace.callers.get(call.thread, call.thread) for call in trace.calls}
    threads: dict[Thread, list[tuple[int, int]]] = defaultdict(list)
    for correlation, i in sorted((task.correlation, i) for i, task in enumerate(trace.tasks)):
        if correlation in thread_of:
            threads[thread_of[correlation]].append((correlation, i))
    return threads


def _in_one(spans: list[tuple[int, int]], first_ns: int, then_ns: int) -> bool:
    """Whether two instants are in one of several spans, which are apart and in order.

    Of a process group's operator: what waits there after the kernel's launch are streams of its own. NCCL
    joins its internal stream to the one it launched on, and PyTorch gives callbacks a stream from the pool
    (nccl, src/misc/strongstream.cc; torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, ``collective``). The
    stream that uses the result waits later, outside.
    """
    at = bisect.bisect_right(spans, (then_ns, sys.maxsize)) - 1
    return at >= 0 and spans[at][0] <= first_ns and then_ns < spans[at][1]


def _last_before(launched: list[tuple[int, int]], correlation: int) -> int | None:
    at = bisect.bisect_left(launched, (correlation, -1))
    return launched[at - 1][1] if at else None


def _first_after(launched: list[tuple[int, int]], correlation: int) -> int | None:
    at = bisect.bisect_right(launched, (correlation, sys.maxsize))
    return launched[at][1] if at < len(launched) else None
