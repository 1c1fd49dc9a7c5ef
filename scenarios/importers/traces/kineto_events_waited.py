"""Which events streams wait for: as the profiler noted it, or, where it did not, by what fits.

Which event a stream waits for is in newer traces (``cuda_sync``, profiled with
``enable_cuda_sync_events``). Most have the calls of ``cudaStreamWaitEvent`` only::

    calls       launch x  record 1  wait      launch y  record 2  ...  wait      launch b
    stream 20     x ──────── 1                  y ──────── 2
    stream 7                         for 1                             for 2        b

Then it is the stream on which the thread launches next that waits, for all other streams on which it
launches. A call right after an event was recorded waits for that one (``Stream.wait_stream``, a process
group that takes its input), and so does the next one that another stream makes (a fork). Any later one waits
for the oldest event that nobody waited for yet, of those that stand for work that this stream does not wait
for already: results are waited for in the order in which they were asked for (a list of collectives).

The recorded times overrule that: for an event that was over after the next task began, nobody waited. And if
that task began just when what comes before another event was over, and nothing else had held it, it was that
one (collectives of which the next has been launched already; FSDP). Where several are possible and the times
do not tell, the wait is not `EventWait.sure`.

A wait of which only the stream was noted is for that stream as it is at the call, or at the first that waits
for the same event, unless the recorded times say otherwise (`noted_waits`).
"""

from __future__ import annotations

import bisect
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from typing import Final, NamedTuple

from scenarios.importers.traces.kineto_waits import EventWait, Streams
from scenarios.importers.traces.trace_events.kineto_events import RECORD
from scenarios.importers.traces.trace_events.kineto_rows import Thread, Trace

__all__ = ["event_waits"]

_RECORDS: Final = 64
"""Of so many recorded events one is the one that a call waits for, if the profiler did not note which."""
_STREAM_WAIT: Final = re.compile(r"(cuda|hip|cu)StreamWaitEvent")
_DEVICE: Final = re.compile(r"(cuda|hip)DeviceSynchronize|cuCtxSynchronize")

_Stream = tuple[int, int]


def event_waits(traces: Sequence[Trace]) -> list[tuple[list[EventWait], list[str]]]:
    """Return the waits between streams of each rank (or of one process), and the calls that are not sure.

    A wait that one rank cannot have had is none on the others, if all ranks call it as often.
    """
    found = [list(_waits(trace)) for trace in traces]
    calls = [[call.name for call in trace.calls if _STREAM_WAIT.match(call.name)] for trace in traces]
    if len({len(each) for each in calls}) == 1:
        wrong = {wait.key for waits in found for wait in waits if not wait.fits}
    else:
        wrong = set()
    return [
        (
            [wait for wait in waits if wait.fits and wait.key not in wrong],
            [names[n] for n in sorted({wait.key[0] for wait in waits if not wait.sure})],
        )
        for waits, names in zip(found, calls, strict=True)
    ]


def _waits(trace: Trace) -> Iterator[EventWait]:
    """Yield every wait, as recorded or, without a record, as inferred."""
    streams = Streams(trace)
    if trace.waits:
        for n, told in enumerate(trace.waits):
            key = n, told.on_stream
            wait = EventWait(key, told.after, told.device, told.stream, told.on_stream, told.recorded)
            yield wait if told.sure else wait._replace(fits=streams.fits(trace, wait))
        return
    yield from _inferred(trace, streams)


class _Call(NamedTuple):
    """A call that lets a stream wait for an event, it is not known for which.

    Attributes
    ----------
    number : int
        Which of them it is.
    at : int
        Correlation.
    stream : (int, int)
        The one that waits, with its device.
    task : int
        The next one of it.
    issued_ns : int
        When the launch of that was done.
    streams : set
        Those that the thread launches on.
    records : list of int
        Calls that recorded events before it, the last one last; itself, if there is none.
    after_record : bool
        Whether the thread recorded an event just before.
    since : int
        The last call before it that waited for the whole device.
    """

    number: int
    at: int
    stream: _Stream
    task: int
    issued_ns: int
    streams: set[_Stream]
    records: list[int]
    after_record: bool
    since: int


def _inferred(trace: Trace, streams: Streams) -> Iterator[EventWait]:
    """Yield what each call waits for, by what other calls wait for and by the recorded times."""
    awaited: dict[_Stream, dict[_Stream, int]] = defaultdict(
        dict
    )  # up to which launch a stream waits for others
    taken: set[int] = set()  # recorded events for which a stream waits
    for call in _calls(trace):
        known, choices = awaited[call.stream], {}
        for stream in streams.known:
            if stream[0] == call.stream[0] and stream != call.stream:
                last = EventWait((call.number, stream[1]), call.at, *call.stream, stream[1], call.records[-1])
                if streams.at(stream, last.recorded):
                    since = max(known.get(stream, -1), call.since)
                    choices[stream] = last, _choices(trace, streams, last, call, since, taken)
        own = {stream: found for stream, found in choices.items() if stream in call.streams and found[1]}
        newest = call.after_record or call.records[-1] in taken
        chosen = [_chosen(trace, streams, call, newest, *found) for found in (own or choices).values()]
        possible = sum(len(found) for _, found in choices.values())
        sure = possible <= 1 or any(streams.held(trace, each, call.task, call.issued_ns) for each in chosen)
        for wait in chosen:
            if wait.fits:
                taken.add(wait.recorded)
                (task,) = streams.at((wait.device, wait.on_stream), wait.recorded)
                stream = wait.device, wait.on_stream
                known[stream] = max(known.get(stream, -1), trace.tasks[task].correlation)
            yield wait._replace(sure=sure)


def _calls(trace: Trace) -> Iterator[_Call]:
    threads, call_of = _launched_by(trace), {call.correlation: call for call in trace.calls}
    used = {
        thread: {(trace.tasks[i].device, trace.tasks[i].stream) for _, i in mine}
        for thread, mine in threads.items()
    }
    records = sorted(call.correlation for call in trace.calls if RECORD.match(call.name))
    launched = sorted(task.correlation + 1 for task in trace.tasks)
    recording: dict[Thread, bool] = {}
    since, number = -1, -1
    for call in trace.calls:
        thread = trace.callers.get(call.thread, call.thread)
        if not _STREAM_WAIT.match(call.name):
            recording[thread] = RECORD.match(call.name) is not None
            since = call.correlation if _DEVICE.match(call.name) else since
            continue
        number += 1
        mine = threads[thread]
        at = bisect.bisect_left(mine, (call.correlation, -1))
        if at == len(mine):
            continue
        if at and trace.tasks[mine[at - 1][1]].communicates:
            launch = call_of[mine[at - 1][0]]
            if _in_one(trace.inside.get(call.thread, []), launch.start_ns, call.start_ns):
                continue
        task, issued_ns = mine[at][1], call_of[mine[at][0]].end_ns
        last = bisect.bisect(records or launched, call.correlation)
        before = [*(records or launched)[max(0, last - _RECORDS) : last]]
        if not records or not before:
            before.append(call.correlation)
        on = trace.tasks[task].device, trace.tasks[task].stream
        after_record = not records or recording.get(thread, False)
        yield _Call(number, call.correlation, on, task, issued_ns, used[thread], before, after_record, since)


def _choices(
    trace: Trace, streams: Streams, last: EventWait, call: _Call, since: int, taken: Set[int]
) -> list[EventWait]:
    """Return the waits that are possible, the first event of each position, for more than is waited for."""
    stream, found = (last.device, last.on_stream), []
    for recorded in call.records[bisect.bisect(call.records, since) :]:
        if recorded == last.recorded or recorded not in taken:
            (task,) = streams.at(stream, recorded) or (-1,)
            wait = last._replace(recorded=recorded)
            if task >= 0 and trace.tasks[task].correlation > since and streams.fits(trace, wait):
                since = trace.tasks[task].correlation
                found.append(wait)
    return found


def _chosen(
    trace: Trace, streams: Streams, call: _Call, newest: bool, last: EventWait, possible: Sequence[EventWait]
) -> EventWait:
    """Return the likeliest of some waits for a stream."""
    if possible and not newest:
        held = (each for each in reversed(possible) if streams.held(trace, each, call.task, call.issued_ns))
        return next(held, possible[0])
    if streams.fits(trace, last):
        return last
    if call.records[-1] == call.at:
        return last._replace(fits=False)
    earlier = (last._replace(recorded=at) for at in call.records[-2::-1])
    held = (each for each in earlier if streams.held(trace, each, call.task, call.issued_ns))
    return next(held, last._replace(fits=False))


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
    lets its internal stream wait for the one it launched on (nccl, src/enqueue.cc, ``ncclLaunchPrepare``),
    PyTorch runs callbacks on a stream from the pool (aten/src/ATen/core/ivalue_inl.h, ``invokeCallback``).
    The stream that uses the result waits later, outside.
    """
    at = bisect.bisect_right(spans, (then_ns, sys.maxsize)) - 1
    return at >= 0 and spans[at][0] <= first_ns and then_ns < spans[at][1]
