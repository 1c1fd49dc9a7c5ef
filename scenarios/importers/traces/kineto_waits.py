"""What tasks of a GPU wait for on it: the one before them on their stream, and events of other streams.

::

    calls       launch a    record e    launch b    wait for e    launch c
    stream 7    a ────────── e ──────── b
    stream 20                                       ( a )         c            c waits for a, not for b

A stream's *position* at a call is what has to end before the stream is through with all that it was told so
far: the task launched last, or that one and the positions of events that it waits for since.

Which event a stream waits for is in newer traces (``cuda_sync``, profiled with
``enable_cuda_sync_events``). An older one has the calls of ``cudaStreamWaitEvent`` only: then the stream on
which the thread launches next is taken to wait for all other streams as they are at the call, unless the
recorded times say otherwise. One in between tells the stream of the event, and not when it was recorded: then
it is taken as it is at the call, or at the first that waits for the same event, under the same condition
(`noted_waits`).
"""

from __future__ import annotations

import bisect
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from scenarios.importers.traces.trace_events.kineto_rows import Trace
from sim.graph.csr import Csr
from sim.words.arrays import UNSET

__all__ = ["EventWait", "Streams", "event_waits"]

_STREAM_WAIT = re.compile(r"(cuda|hip|cu)StreamWaitEvent")


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
    before : Csr
        What each task waits for: first the one before it on its stream.
    """

    def __init__(self, trace: Trace, waits: Iterable[EventWait] = ()) -> None:
        before: list[tuple[int, ...]] = [()] * len(trace.tasks)
        self._history: dict[tuple[int, int], list[tuple[int, tuple[int, ...]]]] = defaultdict(list)
        order = np.lexsort((np.arange(len(before)), trace.correlation))
        told: list[tuple[int, int, EventWait | None]]
        told = [*zip(trace.correlation[order].tolist(), order.tolist(), repeat(None))]
        if own := [(wait.at, -1, wait) for wait in waits]:
            told = sorted([*own, *told], key=lambda step: step[:2])
        streams = [(task.device, task.stream) for task in trace.tasks]
        for correlation, i, wait in told:
            stream = streams[i] if wait is None else (wait.device, wait.stream)
            history = self._history[stream]
            position = history[-1][1] if history else ()
            if wait is None:
                before[i], position = position, (i,)
            else:
                other = self.at((wait.device, wait.on_stream), wait.recorded)
                position = tuple(dict.fromkeys((*position, *other)))
            history.append((correlation, position))
        self.before = Csr.of_rows(before)

    @property
    def known(self) -> list[tuple[int, int]]:
        """The streams, as device and number."""
        return [*self._history]

    def at(self, stream: tuple[int, int], correlation: int) -> tuple[int, ...]:
        """Return the position of a stream of a device before a call."""
        history = self._history.get(stream, [])
        known = bisect.bisect_left(history, (correlation,))
        return history[known - 1][1] if known else ()

    def fits(self, trace: Trace, wait: EventWait) -> bool:
        """Whether the next task of the stream that waits was recorded to start after what it waits for."""
        history = self._history.get((wait.device, wait.stream), [])
        following = bisect.bisect_right(history, (wait.at, (sys.maxsize,)))
        if following == len(history):
            return True
        (task,) = history[following][1]
        start_ns = trace.tasks[task].start_ns
        awaited = self.at((wait.device, wait.on_stream), wait.recorded)
        return all(trace.tasks[i].end_ns <= start_ns for i in awaited)

    def all_at(self, correlation: int) -> tuple[int, ...]:
        """Return the positions of all streams before a call."""
        return tuple(dict.fromkeys(i for stream in self.known for i in self.at(stream, correlation)))


def event_waits(traces: Sequence[Trace]) -> list[list[EventWait]]:
    """Return the waits between streams of each rank of a program (or of one process).

    A wait that one rank cannot have had is none on the others, if all ranks call it as often.
    """
    found = [list(_waits(trace)) for trace in traces]
    if len({int(trace.calls.named(_STREAM_WAIT).sum()) for trace in traces}) == 1:
        wrong = {wait.key for waits in found for wait in waits if not wait.fits}
        return [[wait for wait in waits if wait.key not in wrong] for waits in found]
    return [[wait for wait in waits if wait.fits] for waits in found]


def _waits(trace: Trace) -> Iterator[EventWait]:
    """Yield every wait, as recorded or, without a record, as inferred."""
    calls = np.flatnonzero(trace.calls.named(_STREAM_WAIT)).tolist()
    if not (trace.waits or calls):
        return
    streams = Streams(trace)
    if trace.waits:
        for n, told in enumerate(trace.waits):
            key = n, told.on_stream
            wait = EventWait(key, told.after, told.device, told.stream, told.on_stream, told.recorded)
            yield wait if told.sure else wait._replace(fits=streams.fits(trace, wait))
        return
    launched = _launched_by(trace)
    for n, call in enumerate(map(trace.calls.__getitem__, calls)):
        mine = launched.get(int(trace.control[call.thread]), [])
        at = bisect.bisect_left(mine, call.correlation, key=trace.correlation.__getitem__)
        if at == len(mine):
            continue
        if at and trace.tasks[mine[at - 1]].communicates:
            launch_ns = int(trace.calls.start_ns[trace.launch[mine[at - 1]]])
            if _in_one(trace.inside.get(call.thread, ()), launch_ns, call.start_ns):
                continue
        waiting = trace.tasks[mine[at]]
        for device, stream in streams.known:
            if device == waiting.device and stream != waiting.stream:
                key, now = (n, stream), call.correlation
                wait = EventWait(key, now, device, waiting.stream, stream, now)
                if streams.at((device, stream), now):
                    yield wait._replace(fits=streams.fits(trace, wait))


def _launched_by(trace: Trace) -> dict[int, list[int]]:
    """Return the tasks that each thread launched, in that order.

    A thread that runs gradients goes on with the streams of the one that waits for it, and the other way.
    """
    tasks = np.flatnonzero(trace.launch != UNSET)
    tasks = tasks[np.argsort(trace.correlation[tasks], kind="stable")]
    control = trace.control[trace.calls.thread[trace.launch[tasks]]]
    return {thread: tasks[control == thread].tolist() for thread in np.unique(control).tolist()}


def _in_one(spans: Sequence[tuple[int, int]], first_ns: int, then_ns: int) -> bool:
    """Whether two instants are in one of several spans, which are apart and in order.

    Of a process group's operator: what waits there after the kernel's launch are streams of its own. NCCL
    lets its internal stream wait for the one it launched on (nccl, src/enqueue.cc, ``ncclLaunchPrepare``),
    PyTorch runs callbacks on a stream from the pool (aten/src/ATen/core/ivalue_inl.h, ``invokeCallback``).
    The stream that uses the result waits later, outside.
    """
    at = bisect.bisect_right(spans, (then_ns, sys.maxsize)) - 1
    return at >= 0 and spans[at][0] <= first_ns and then_ns < spans[at][1]
