"""The host of a recorded process: what its calls do themselves, and what they wait for.

A host op lasts from the end of the one before it on its thread, so that the time between launches, in
Python and the framework, counts. A call that waits for the device is an edge from what it waits for, and
what is left of it then; so it waits in a simulation as long as it has to, and no longer::

    recorded    thread   [launch][ cudaMemcpy, device to host         ]──[launch]
                stream          [ kernel                       ][copy]      [ kernel

    simulated   thread   [launch][launch]                         [sync]─[launch]
                                     │ issues the copy          ▲
                stream          [ kernel                       ][copy]      [ kernel

====================================  ==========================================================
call                                  waits for
====================================  ==========================================================
DeviceSynchronize, CtxSynchronize     all that was launched before it
StreamSynchronize                     the stream that the profiler noted (``cuda_sync``), or else the one
                                      on which its thread launched last
EventSynchronize                      what was launched before the event that the profiler noted was
                                      recorded, or else before its thread recorded one last
copies that are synchronous           the copy
copies from the device to pageable    the copy
copies from pageable to the device    the task before the copy on its stream, if the call was recorded to
                                      return after the copy had begun (only large ones do)
====================================  ==========================================================

A call that launches is done, for its task, when the task begins: what is left of it then is the next op's.

A copy that waits was issued at the beginning of its call. How long that takes shows only where nothing had to
be waited for; elsewhere it is the median of such copies, or of all launches in the trace.

The thread that runs gradients and the one that called ``backward`` take turns, as one waits for the other:
here they are one.

Sources: CUDA driver API, "API synchronization behavior"
(https://docs.nvidia.com/cuda/cuda-driver-api/api-sync-behavior.html); PyTorch's autograd engine
(torch/csrc/autograd/engine.cpp: ``Engine::execute`` waits for the graph's future).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import numpy as np

from scenarios.importers.traces.host_ops import COPY, HOST, LAUNCH, PASS, SYNC, Steps, last_of_thread
from scenarios.importers.traces.kineto_waits import Streams
from scenarios.importers.traces.trace_events.kineto_events import RECORD
from scenarios.importers.traces.trace_events.kineto_rows import NEVER, Trace
from sim.words.arrays import UNSET, IntArray

__all__ = ["host_steps"]

_APART_NS: Final = 10_000
"""What the clocks of host and device may be apart; on an MI300X, tasks ended 8.5 us after calls that wait."""
_ALL: Final = re.compile(r"(cuda|hip)DeviceSynchronize|cuCtxSynchronize")
_STREAM: Final = re.compile(r"(cuda|hip|cu)StreamSynchronize")
_EVENT: Final = re.compile(r"(cuda|hip|cu)EventSynchronize")
_COPY: Final = re.compile(r"(cuda|hip|cu)Memcpy(?!.*(Async|Peer))")
_ON_DEVICE: Final = re.compile(r"DtoD|DeviceToDevice|PtoP")
_TO_PAGEABLE: Final = re.compile(r"Device -> Pageable")
_FROM_PAGEABLE: Final = re.compile(r"Pageable -> Device")


def host_steps(trace: Trace, streams: Streams, latency_ns: int = 0) -> Steps:
    """Return what the calls of a process do to their threads.

    Parameters
    ----------
    trace : Trace
    streams : Streams
        What tasks, and streams, wait for on the GPU.
    latency_ns : int
        From the end of a launch to the earliest start of its task.
    """
    calls, host = trace.calls, _Host(trace, streams)
    launches = np.flatnonzero(host.first != UNSET)
    task = host.first[launches]
    copies = (calls.named(_COPY)[launches] & ~trace.named(_ON_DEVICE)[task]) | trace.named(_TO_PAGEABLE)[task]
    buffered = trace.named(_FROM_PAGEABLE)[task] & (calls.end_ns[launches] >= trace.start_ns[task])
    issued_ns = _issued(trace, launches, task, latency_ns)
    took_ns = np.maximum(0, issued_ns - calls.start_ns[launches])
    free = [k for k in np.flatnonzero(copies).tolist() if not host.holds(int(launches[k]), int(task[k]))]
    usual_ns = _median(took_ns[free] if free else took_ns[~copies])
    rows = np.stack((launches, np.full(len(launches), LAUNCH), issued_ns))
    parts, awaited = [rows[:, ~(copies | buffered)]], {}
    for k in np.flatnonzero(copies | buffered).tolist():
        n, i, until_ns = int(launches[k]), int(task[k]), int(issued_ns[k])
        tasks = host.ended(n, np.flatnonzero(trace.correlation == trace.correlation[i])) if copies[k] else []
        if tasks:  # what it issued, and waits for
            if host.holds(n, i):
                until_ns = min(until_ns, int(calls.start_ns[n]) + usual_ns)
            end_ns = int(calls.end_ns[n])
            steps = [(LAUNCH, until_ns), (PASS, host.end_ns(tasks)), (COPY, end_ns)]
        elif buffered[k]:  # what the copy waits for, too
            tasks = host.ended(n, streams.at(host.stream_of(i), int(trace.correlation[i])))
            steps = [(HOST, int(calls.start_ns[n])), (PASS, host.end_ns(tasks)), (LAUNCH, until_ns)]
        else:
            steps = [(LAUNCH, until_ns)]
        awaited[n] = tasks
        parts.append(np.array([(n, *step) for step in steps], np.int64).T)
    for n in host.may_wait():
        if (found := host.awaited(n)) is not None:
            awaited[n] = found
            begin_ns, end_ns = int(calls.start_ns[n]), int(calls.end_ns[n])
            steps = [(HOST, begin_ns), (PASS, host.end_ns(found)), (SYNC, end_ns)]
            parts.append(np.array([(n, *step) for step in steps], np.int64).T)
    call, kind, until = np.concatenate(parts, axis=1)
    order = np.argsort(call, kind="stable")
    return Steps(call[order], kind[order], until[order], awaited)


class _Host:
    """What calls launched, and wait for.

    Attributes
    ----------
    first : array
        Call → the first of the tasks that it launched; `UNSET`: none.
    """

    def __init__(self, trace: Trace, streams: Streams) -> None:
        self._trace, self._streams = trace, streams
        calls = trace.calls
        correlation, first = np.unique(trace.correlation, return_index=True)
        at = np.minimum(np.searchsorted(correlation, calls.correlation), len(correlation) - 1)
        self.first: IntArray = np.where(correlation[at] == calls.correlation, first[at], UNSET)
        self._records = calls.named(RECORD) & (self.first == UNSET)
        self._launched = last_of_thread(calls.thread, self.first != UNSET)
        self._recorded = last_of_thread(calls.thread, self._records)

    def stream_of(self, task: int) -> tuple[int, int]:
        """Return device and stream of a task."""
        return self._trace.tasks[task].device, self._trace.tasks[task].stream

    def holds(self, call: int, task: int) -> bool:
        """Whether a task was recorded to wait for another one when its call began."""
        before = self._streams.before.row(task)
        return bool((self._trace.end_ns[before] > self._trace.calls.start_ns[call]).any())

    def ended(self, call: int, tasks: Iterable[int]) -> list[int]:
        """Return the tasks that had ended when a call returned: for others it cannot have waited."""
        latest_ns = self._trace.calls.end_ns[call] + _APART_NS
        return [int(i) for i in tasks if self._trace.end_ns[i] <= latest_ns]

    def end_ns(self, tasks: Iterable[int]) -> int:
        """Return when the last of some tasks ended."""
        return max((int(self._trace.end_ns[i]) for i in tasks), default=NEVER)

    def may_wait(self) -> list[int]:
        """Return the calls that may wait for something that they did not launch."""
        calls = self._trace.calls
        noted = np.isin(calls.correlation, [*self._trace.host_waits])
        named = calls.named(_ALL) | calls.named(_STREAM) | calls.named(_EVENT)
        return np.flatnonzero((noted | named) & (self.first == UNSET)).tolist()

    def awaited(self, n: int) -> list[int] | None:
        """Return the tasks that a call waits for that launches nothing; None: it does not wait."""
        call = self._trace.calls[n]
        stream, recorded = self._launched_on(n), call.correlation
        if self._records[n] and stream is not None:
            return None
        if _ALL.match(call.name):
            return self.ended(n, self._streams.all_at(call.correlation))
        if (noted := self._trace.host_waits.get(call.correlation)) is not None:
            stream, recorded = (noted.device, noted.stream), noted.recorded
        elif _EVENT.match(call.name):
            record = int(self._recorded[n])
            stream = None if record == UNSET else self._launched_on(record)
            recorded = int(self._trace.calls.correlation[record])
        elif not _STREAM.match(call.name):
            return None
        return [] if stream is None else self.ended(n, self._streams.at(stream, recorded))

    def _launched_on(self, n: int) -> tuple[int, int] | None:
        """Return the stream on which the thread of a call launched last."""
        last = self._launched[n]
        return None if last == UNSET else self.stream_of(int(self.first[last]))


def _issued(trace: Trace, calls: IntArray, tasks: IntArray, latency_ns: int) -> IntArray:
    """Return when launches took effect: a latency before their tasks began, if that was within the call."""
    start_ns, end_ns, began_ns = trace.calls.start_ns[calls], trace.calls.end_ns[calls], trace.start_ns[tasks]
    within: IntArray = np.maximum(np.minimum(start_ns, began_ns), began_ns - latency_ns)
    return np.where(began_ns >= end_ns, end_ns, within)


def _median(values: IntArray) -> int:
    return int(np.sort(values)[len(values) // 2]) if len(values) else 0
