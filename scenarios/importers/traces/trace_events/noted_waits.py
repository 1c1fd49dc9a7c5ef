"""What the profiler noted about waits for events, and what the numbers of events tell where it could not.

::

    "args" of a wait           wait_on_stream   wait_on_cuda_event_record_corr_id   wait_on_cuda_event_id
    as it should be                         7                                  12                       5
    before September 2023                   7                              (none)                       5
    it could not tell                      -1                                  -1                       5

A wait is for what was launched before the event was recorded last. So two waits for event 5 are for one
and the same recording if nobody called ``cudaEventRecord`` between them, and a wait is for what a later one
names if that had been recorded by then. Where a trace does not have these calls, an older profiler wrote it,
and each wait stands for itself: for its stream as it was then.

Sources: pytorch/kineto, pull requests 808 (the correlation and the calls), 1318 and 1552 (what was lost).
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from scenarios.importers.traces.trace_events.event_fields import whole

__all__ = ["Noted", "noted_wait", "resolved"]

_EVENT, _RECORD = "wait_on_cuda_event_id", "wait_on_cuda_event_record_corr_id"


class Noted(NamedTuple):
    """A wait as it was noted.

    Attributes
    ----------
    call : int
        Correlation.
    device, stream : int
        What waits; stream -1 is the host.
    on_stream : int
        Of the event; -1: unknown.
    recorded : int
        Correlation of the call that recorded the event; -1: unknown, so `on_stream` as it was at `asked`.
    event : int or None
    asked : int
        The call, or the first that waited for the same recording.
    """

    call: int
    device: int
    stream: int
    on_stream: int
    recorded: int
    event: int | None
    asked: int


def noted_wait(args: Mapping[str, Any]) -> Noted:
    """Return what is noted of a wait; KeyError or ValueError where it lacks what it must have."""
    device, stream, call = (whole(args, key) for key in ("device", "stream", "correlation"))
    event = whole(args, _EVENT) if _EVENT in args else None
    recorded = whole(args, _RECORD) if _RECORD in args or event is None else -1
    return Noted(call, device, stream, whole(args, "wait_on_stream"), recorded, event, call)


def resolved(noted: Iterable[Noted], records: Sequence[int]) -> Iterator[Noted]:
    """Yield, in order of calls, the waits of which it is known what for.

    Parameters
    ----------
    noted : iterable of Noted
    records : sequence of int
        Correlations of the calls that recorded events, in order.
    """
    waits = sorted(noted, key=lambda wait: wait.call)
    later: dict[tuple[int, int | None], Noted] = {}
    for n, wait in reversed([*enumerate(waits)]):
        key = wait.device, wait.event
        if wait.recorded >= 0:
            later[key] = wait
        elif key in later and wait.event is not None and later[key].recorded <= wait.call:
            waits[n] = wait._replace(on_stream=later[key].on_stream, recorded=later[key].recorded)
    before: dict[tuple[int, int | None], Noted] = {}
    for wait in waits:
        same = before.get((wait.device, wait.event)) if records and wait.event is not None else None
        if wait.recorded < 0 and same is not None and not _between(records, same.call, wait.call):
            wait = wait._replace(on_stream=same.on_stream, recorded=same.recorded, asked=same.asked)
        if wait.on_stream >= 0:
            before[wait.device, wait.event] = wait
            yield wait


def _between(calls: Sequence[int], first: int, then: int) -> bool:
    """Whether one of some calls was after the first of two and before the other."""
    return bisect.bisect(calls, first) < bisect.bisect(calls, then)
