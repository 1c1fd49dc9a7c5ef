"""Infer what calls wait for if the profiler did not note it: the stream, and which of its events.

::

    calls       launch a    record    launch b    record    wait     launch c
    stream 7    a ───────────── e1 ──── b ──────────── e2
    stream 20                                               ( ? )    c            for e2, and so for a and b

Without ``enable_cuda_sync_events`` a trace has only the calls: ``cudaEventRecord``,
``cudaStreamWaitEvent``, ``cudaEventSynchronize`` and ``cudaStreamSynchronize`` do not name their event or
stream. The order of calls and the times of tasks determine most of them:

- A thread records events on the stream on which it launched last, and makes the stream wait on which it
  launches next. If that is the same one, the event is another stream's.
- A wait is for something that the stream, or the thread, does not yet know to be over.
- A task begins, and a call returns, after what it waits for. If nothing else held it, and that ended just
  then, it waited for that.
- A record directly followed by a wait concern the same event (``Stream.wait_stream``). Streams wait for
  other events in the order of their records, and the host that many records later, if this shows.

If another event fits as well, the call is *in doubt*: it makes no difference as recorded, but may with
other durations. So the number of such calls is reported.
"""

from __future__ import annotations

import bisect
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from scenarios.importers.kineto import kineto_host as host
from scenarios.importers.kineto.kineto_events import RECORD
from scenarios.importers.kineto.kineto_host import Streams
from scenarios.importers.kineto.kineto_rows import EventWait, HostCall, HostWait, RecordedTrace, Thread
from sim.base.arrays import group_pairs

_MAX_RECORDS: Final = 64
"""A call waits for one of this many recorded events."""
_HOLD_NS: Final = 20_000
"""Maximum time from the end of what a task waited for to the start of the task."""

_MAX_AHEAD: Final = 64
"""Maximum number of launches ahead for which a thread may make a stream wait."""
_COPY: Final = re.compile("Memcpy|Copy")

Lane = tuple[int, int]
"""A device and a stream."""
Reach = Mapping[Lane, int]
"""What has to end before an event is over: the number of tasks of each stream."""


@dataclass
class Waits:
    """What the calls of a process wait for."""

    streams: list[EventWait] = field(default_factory=list)
    host: dict[int, HostWait] = field(default_factory=dict)
    """By correlation of the call, noted or inferred."""
    doubts: dict[int, HostCall] = field(default_factory=dict)
    """Calls, by correlation, that may have waited for something else."""


def waits_of(traces: Sequence[RecordedTrace]) -> list[Waits]:
    """Return the waits of each rank of a program (or of one process).

    A wait between streams that one rank cannot have had is removed on all, if all call it equally often.
    """
    waits = [_Reader(trace).found for trace in traces]
    calls = [sum(host.STREAM_WAIT.match(call.name) is not None for call in trace.calls) for trace in traces]
    misfits = {wait.key for rank in waits for wait in rank.streams if not wait.fits}
    for rank in waits:
        dropped = misfits if len(set(calls)) == 1 else {wait.key for wait in rank.streams if not wait.fits}
        rank.streams = [wait for wait in rank.streams if wait.key not in dropped]
    return waits


class _Event(NamedTuple):
    """An event that a call may wait for."""

    lane: Lane
    recorded: int
    reach: Reach
    end_ns: int


def _furthest(one: Reach, other: Reach) -> Reach:
    return {stream: max(one.get(stream, 0), other.get(stream, 0)) for stream in {**one, **other}}


class _Reader:
    """Processes the calls in their order."""

    def __init__(self, trace: RecordedTrace) -> None:
        self.found = Waits(host=dict(trace.host_waits))
        self._trace = trace
        self._launched: dict[Lane, list[int]] = defaultdict(list)  # correlations, in order
        self._tasks: dict[Lane, list[int]] = defaultdict(list)
        self._first: dict[int, int] = {}  # the task that a call launched first
        for correlation, i in sorted((task.correlation, i) for i, task in enumerate(trace.tasks)):
            lane = self._lane(i)
            self._launched[lane].append(correlation)
            self._tasks[lane].append(i)
            self._first.setdefault(correlation, i)
        self._joined: dict[Lane, list[tuple[int, Reach]]] = defaultdict(list)  # reach of others, since a call
        self._events: dict[tuple[Lane, int], _Event] = {}
        self._known: dict[Thread, Reach] = defaultdict(dict)  # what each thread knows to be over
        self._home: dict[Thread, Lane] = {}  # lane of each thread's last launch
        self._used: dict[Thread, set[Lane]] = defaultdict(set)  # lanes of each thread's launches so far
        self._records: dict[Thread, list[tuple[int, Lane | None]]] = defaultdict(list)
        self._all: list[int] = []  # calls that recorded events
        self._lag: dict[Thread, int] = {}  # by how many records each thread's waits lag
        self._copied: set[Thread] = set()  # threads whose last call copied, and so waits for the copy
        self._behind: set[Thread] = set()  # threads whose last call recorded an event
        self._lags: list[int] = []  # sorted times from the end of what calls waited for to their return
        self._waits = -1  # the number of the last wait of a stream
        self._in_doubt: dict[int, list[HostCall]] = {}  # waits in doubt of the same task
        self._calls = sorted(trace.calls, key=lambda call: call.correlation)
        self._call = {call.correlation: call for call in trace.calls}
        launches = (call for call in self._calls if call.correlation in self._first)
        self._next = group_pairs((self._thread(call), call.correlation) for call in launches)
        noted = self._noted_waits(Streams(trace)) if trace.waits else {}
        for call in self._calls:
            self._take(call, noted)
        for calls in self._in_doubt.values():
            self.found.doubts |= {call.correlation: call for call in calls}

    def _thread(self, call: HostCall) -> Thread:
        return self._trace.callers.get(call.thread, call.thread)

    def _noted_waits(self, streams: Streams) -> dict[int, EventWait]:
        """Return what the profiler noted, by call."""
        noted = {}
        for reported in self._trace.waits:
            wait = reported if reported.fits else reported._replace(fits=streams.fits(self._trace, reported))
            self.found.streams.append(wait)
            noted[wait.call] = wait
        return noted

    def _take(self, call: HostCall, noted: Mapping[int, EventWait]) -> None:
        thread, corr = self._thread(call), call.correlation
        after_record = thread in self._behind
        self._behind.discard(thread)
        copied = thread in self._copied
        self._copied.discard(thread)
        if corr in self._first:
            task = self._trace.tasks[self._first[corr]]
            lane = self._home[thread] = self._lane(self._first[corr])
            self._used[thread].add(lane)
            if _COPY.match(task.name):
                self._copied.add(thread)
            if host.waits_for_copy(call.name, task.name) and task.end_ns <= call.end_ns + host.APART_NS:
                self._mark_known(thread, self._reach(lane, corr + 1))
        elif RECORD.match(call.name):
            self._records[thread].append((corr, self._home.get(thread)))
            self._all.append(corr)
            self._behind.add(thread)
        elif host.STREAM_WAIT.match(call.name):
            if corr in noted:
                wait = noted[corr]
                self._join((wait.device, wait.stream), corr, (wait.device, wait.on_stream), wait.recorded)
            elif not noted:
                self._take_stream_wait(call, thread, after_record)
        elif host.ALL.match(call.name):
            lane_events = [self._event(lane, corr) for lane in self._launched]
            self._event_waited_for(call, sorted(lane_events, key=lambda event: event.end_ns)[-1:])
            for lane_event in lane_events:
                self._mark_known(thread, lane_event.reach)
        elif corr in self.found.host:
            wait_of = self.found.host[corr]
            if wait_of.stream >= 0:
                self._mark_known(thread, self._reach((wait_of.device, wait_of.stream), wait_of.recorded))
        elif (event := self._awaited_event(call, thread, copied)) is not None:
            self.found.host[corr] = HostWait(*event.lane, event.recorded)
            self._mark_known(thread, event.reach)

    # -- what an event covers ----------------------------------------------------------------------

    def _reach(self, lane: Lane, corr: int) -> Reach:
        joined = self._joined.get(lane, [])
        n = bisect.bisect_left(joined, corr, key=lambda entry: entry[0])
        return {**(joined[n - 1][1] if n else {}), lane: bisect.bisect_left(self._launched[lane], corr)}

    def _event(self, lane: Lane, corr: int) -> _Event:
        """Return an event of a stream; later calls do not change what it covers."""
        if (lane, corr) not in self._events:
            reach = self._reach(lane, corr)
            ends = (self._trace.tasks[self._tasks[stream][n - 1]].end_ns for stream, n in reach.items() if n)
            self._events[lane, corr] = _Event(lane, corr, reach, max(ends, default=0))
        return self._events[lane, corr]

    def _join(self, lane: Lane, corr: int, other: Lane, recorded: int) -> None:
        joined = _furthest(self._reach(lane, corr), self._reach(other, recorded))
        self._joined[lane].append((corr, joined))

    def _mark_known(self, thread: Thread, reach: Reach) -> None:
        self._known[thread] = _furthest(self._known[thread], reach)

    def _drop_known(self, events: Iterable[_Event], *known: Reach) -> list[_Event]:
        """Return the events, one per stream, that cover a task not known to be over."""
        fresh: dict[tuple[Lane, int], _Event] = {}
        for event in events:
            if any(all(n > reach.get(stream, 0) for reach in known) for stream, n in event.reach.items()):
                fresh.setdefault((event.lane, event.reach[event.lane]), event)
        return [*fresh.values()]

    def _recent(self, thread: Thread) -> list[tuple[int, Lane | None]]:
        """Return the events that a thread recorded, the newest first."""
        return self._records[thread][: -_MAX_RECORDS - 1 : -1]

    # -- streams -----------------------------------------------------------------------------------

    def _take_stream_wait(self, call: HostCall, thread: Thread, after_record: bool) -> None:
        """Infer what a stream waits for.

        Parameters
        ----------
        call : HostCall
        thread : Thread
        after_record : bool
            Whether the previous call recorded an event.
        """
        self._waits += 1
        launches = self._next.get(thread, [])
        following = bisect.bisect_left(launches, call.correlation)
        if following and self._is_internal(call, launches[following - 1]):
            return
        for launch in self._first_on_streams(launches[following : following + _MAX_AHEAD]):
            task = self._first[launch]
            lane = self._lane(task)
            if events := self._candidates(call, thread, lane, after_record):
                self._choose(call, thread, task, launch, events, after_record)
            if events or not after_record:
                return

    def _first_on_streams(self, launches: Sequence[int]) -> Iterator[int]:
        """Yield the first launch on each stream."""
        seen: set[Lane] = set()
        for launch in launches:
            if (lane := self._lane(self._first[launch])) not in seen:
                seen.add(lane)
                yield launch

    def _lane(self, task: int) -> Lane:
        return self._trace.tasks[task].device, self._trace.tasks[task].stream

    def _is_internal(self, call: HostCall, launch: int) -> bool:
        """Whether a wait is on one of a process group's own streams, after the launch of its kernel.

        NCCL makes its internal stream wait for the one it launched on (nccl, src/enqueue.cc,
        ``ncclLaunchPrepare``), PyTorch runs callbacks on a stream from the pool
        (aten/src/ATen/core/ivalue_inl.h, ``invokeCallback``). The stream that uses the result waits later,
        outside.
        """
        if not self._trace.tasks[self._first[launch]].communicates:
            return False
        spans = self._trace.inside.get(call.thread, [])
        index = bisect.bisect_right(spans, (call.start_ns, sys.maxsize)) - 1
        launched_ns = self._call[launch].start_ns
        return index >= 0 and spans[index][0] <= launched_ns and call.start_ns < spans[index][1]

    def _candidates(self, call: HostCall, thread: Thread, lane: Lane, after_record: bool) -> list[_Event]:
        """Return the events that a stream may wait for, the newest first."""
        known = self._known[thread], self._reach(lane, call.correlation)
        others = [other for other in self._launched if other[0] == lane[0] and other != lane]
        records = self._recent(thread)
        recorded = [self._event(home, corr) for corr, home in records if home in others]
        if after_record and records[0][1] == lane:  # the event just recorded is another stream's
            recorded = []
        last = records[0][0] if records else self._all[-1] if self._all else call.correlation
        if not (events := self._drop_known(recorded, *known)):
            used = [other for other in others if other in self._used[thread] or not records]
            events = self._drop_known((self._event(other, last) for other in used), *known)
        return events

    def _choose(
        self, call: HostCall, thread: Thread, task: int, launch: int, events: list[_Event], after_record: bool
    ) -> None:
        corr, lane, start_ns = call.correlation, self._lane(task), self._trace.tasks[task].start_ns
        before = self._reach(lane, corr)
        fits = [event for event in events if event.end_ns <= start_ns]
        others_ns = max(self._call[launch].end_ns, self._event(lane, corr).end_ns, self._last_end_ns(task))
        holding = self._holding_events(fits, others_ns, start_ns)
        if not fits:
            records = self._all[: -_MAX_RECORDS - 1 : -1]
            lanes = {event.lane for event in events}
            earlier = (
                self._event(other, record) for record in records for other in self._launched if other in lanes
            )
            fits = holding = self._holding_events(earlier, others_ns, start_ns)[:1]
            missed = {event.lane: event for event in reversed(events)} if not holding else {}
            for event in missed.values():
                self._add_wait(call, lane, event, fits=False)
            if not holding and any(self._may_be_earlier(thread, before, event) for event in events):
                self._in_doubt.setdefault(task, []).append(call)
        if not fits:
            return
        if not self._all:
            chosen = fits
        elif holding:
            chosen = holding[:1]
        elif after_record and fits[0].recorded == self._recent(thread)[0][0] and len(fits) > 1:
            chosen = fits[:1]
        elif len({event.recorded for event in fits}) > 1:
            chosen = fits[-1:]
        else:
            chosen = [max(fits, key=lambda event: self._launched[event.lane][event.reach[event.lane] - 1])]
        for event in chosen:
            self._add_wait(call, lane, event)
        doubtful = self._drop_known(fits, self._known[thread], self._reach(lane, corr + 1))
        if len(fits) > 1 and not holding and (after_record or not self._all):
            doubtful = fits
        if not self._all and not holding:
            doubtful = [other for other in fits if self._may_be_earlier(thread, before, other)] or doubtful
        if not doubtful:
            self._in_doubt.pop(task, None)
        elif not holding:
            self._in_doubt.setdefault(task, []).append(call)

    def _may_be_earlier(self, thread: Thread, before: Reach, event: _Event) -> bool:
        """Whether an event may have been recorded before the last task of its stream was launched."""
        n_known = max(self._known[thread].get(event.lane, 0), before.get(event.lane, 0))
        return event.reach[event.lane] > n_known + 1

    def _add_wait(self, call: HostCall, lane: Lane, event: _Event, fits: bool = True) -> None:
        key = self._waits, event.lane[1]
        wait = EventWait(key, call.correlation, *lane, event.lane[1], event.recorded, fits)
        self.found.streams.append(wait)
        if fits:
            self._join(lane, call.correlation, event.lane, event.recorded)

    def _last_end_ns(self, task: int) -> int:
        """Return when the task before this one on its stream ended."""
        lane = self._lane(task)
        n = bisect.bisect_left(self._launched[lane], self._trace.tasks[task].correlation)
        return self._trace.tasks[self._tasks[lane][n - 1]].end_ns if n else 0

    def _holding_events(self, events: Iterable[_Event], others_ns: int, start_ns: int) -> list[_Event]:
        """Return the events that were over last of all that may have held a task, and just before it."""
        return [event for event in events if others_ns <= event.end_ns <= start_ns <= event.end_ns + _HOLD_NS]

    # -- the host ----------------------------------------------------------------------------------

    def _awaited_event(self, call: HostCall, thread: Thread, copied: bool) -> _Event | None:
        """Return what a call of the host waits for."""
        if host.STREAM.match(call.name):
            events = [self._event(self._home[thread], call.correlation)] if thread in self._home else []
            all_events = (self._event(lane, call.correlation) for lane in self._launched)
        elif host.EVENT.match(call.name):
            events = [self._event(home, corr) for corr, home in self._recent(thread) if home is not None]
            recent = self._all[: -_MAX_RECORDS - 1 : -1]
            all_events = (self._event(lane, corr) for corr in recent for lane in self._launched)
        else:
            return None
        ended, others = self._newly_ended(call, thread, events), self._newly_ended(call, thread, all_events)
        if (event := self._event_waited_for(call, ended)) is not None:
            self._note_lag(thread, event)
            if any(other.lane != event.lane and self._ended_in(call, other) for other in others):
                self.found.doubts[call.correlation] = call
            return event
        if copied and not ended and events:  # PyTorch reading a value; the copy's own call waited for it
            return events[0]
        if (event := self._event_waited_for(call, others)) is not None:
            return event
        if host.EVENT.match(call.name):
            lag = self._lag.get(thread, 0)
            if 0 < lag <= len(self._records[thread]):
                recorded = self._records[thread][-lag][0]
                return next((event for event in ended if event.recorded == recorded), None)
            if len(ended) > 1:
                self.found.doubts[call.correlation] = call
        elif not events or events[0].end_ns > call.end_ns + host.APART_NS:
            ended = others
            if len(others) > 1:
                self.found.doubts[call.correlation] = call
        elif len(others) > len(ended) and not copied:
            self.found.doubts[call.correlation] = call
        return ended[0] if ended else None

    def _newly_ended(self, call: HostCall, thread: Thread, events: Iterable[_Event]) -> list[_Event]:
        """Return the events that were over when a call returned, but not known to its thread to be over."""
        events = self._drop_known(events, self._known[thread])
        return [event for event in events if event.end_ns <= call.end_ns + host.APART_NS]

    def _event_waited_for(self, call: HostCall, events: Sequence[_Event]) -> _Event | None:
        """Return the event that ended during a call, and as long before its end as others usually do."""
        ended = [event for event in events if self._ended_in(call, event)]
        if not ended:
            return None
        usual_ns = self._lags[len(self._lags) // 2] if self._lags else 0
        lags = [call.end_ns - event.end_ns for event in ended]
        best = min(range(len(lags)), key=lambda n: (lags[n] < 0 and not self._lags, abs(lags[n] - usual_ns)))
        if lags[best] < 0 <= self._lags[0] if self._lags else len(ended) > 1:
            self.found.doubts[call.correlation] = call
        elif len({event.end_ns for event in ended}) == 1:
            bisect.insort(self._lags, lags[best])
        return ended[best]

    def _ended_in(self, call: HostCall, event: _Event) -> bool:
        """Whether an event was over just before a call returned, and not before it began."""
        return event.end_ns > call.start_ns and call.end_ns - event.end_ns <= host.APART_NS

    def _note_lag(self, thread: Thread, event: _Event) -> None:
        records = [corr for corr, _ in self._records[thread]]
        if event.recorded in records[-_MAX_RECORDS:]:
            self._lag[thread] = records[::-1].index(event.recorded) + 1
