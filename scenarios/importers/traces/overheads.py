"""What a GPU itself takes between two tasks, estimated from a recording; what it does not take is a delay.

::

    host       [launch b][launch c]                                  [launch d]
    stream 7   [ a                      ]  [ b         ]  [ c ]                  [ d ]
                                         gap            gap           launch latency

A task starts a little after its launch, the task before it on its stream and the events that its stream waits
for allow it. How much shows where one of the three came long after the others: b and c were launched long
before, so theirs is the *gap*; d found an idle stream, and has the *launch latency*; behind a task of another
stream it is the *event hop*. What is usual is the mean of those that are no longer than three medians, so
that all usual ones together keep their length; a gap that is less than none, in a CUDA graph, counts with its
sign.

What starts later was held by something that the trace does not show (a kernel that the profiler left out, SMs
that another kernel had, a launch before the trace): the time stays, as a delay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from scenarios.importers.traces.kineto_waits import Streams
from scenarios.importers.traces.trace_events.kineto_rows import Trace
from sim.words.units import round_half_up

__all__ = ["OVERLAP_NS", "Delay", "Overheads", "Usual", "delays", "overheads"]

_LONG_NS: Final = 20_000
"""No GPU takes longer; what does says nothing about it."""
OVERLAP_NS: Final = 1_000
"""In a CUDA graph a kernel may begin before the last blocks of the one before end: by less than that."""
_CERTAIN_NS: Final = 10_000
"""A cause that came so much later than all others held a task alone."""


class Usual(NamedTuple):
    """How long something takes: usually, and at most when nothing else is in the way."""

    usual_ns: int = 0
    most_ns: int = 0


class Overheads(NamedTuple):
    """What a GPU takes itself; the names are those of a device's description."""

    gap: Usual = Usual()
    event_hop: Usual = Usual()
    launch_latency: Usual = Usual()

    def described(self) -> dict[str, str]:
        """Return them in the words of a device's description.

        Examples
        --------
        >>> Overheads(gap=Usual(1200, 3000)).described()
        {'gap': '1200ns', 'event_hop': '0ns', 'launch_latency': '0ns'}
        """
        return {name: f"{one.usual_ns}ns" for name, one in zip(self._fields, self, strict=True)}


class Delay(NamedTuple):
    """Idle time of a stream before a task that nothing in the trace explains."""

    since_ns: int
    duration_ns: int


def overheads(trace: Trace, streams: Streams) -> Overheads:
    """Return what the GPUs of a process took themselves."""
    samples: dict[str, list[int]] = {name: [] for name in Overheads._fields}
    ends = {call.correlation: call.end_ns for call in trace.calls}
    begun: set[int] = (
        set()
    )  # launches whose first task has started: the others of a CUDA graph show no latency
    for i, task in enumerate(trace.tasks):
        causes = _causes(trace, streams, i, ends.get(task.correlation))
        if not causes or (task.correlation in begun and causes.keys() == {"launch_latency"}):
            continue
        begun.add(task.correlation)
        name = max(causes, key=causes.__getitem__)
        late_ns = task.start_ns - causes[name]
        certain = all(causes[name] - ns >= _CERTAIN_NS for other, ns in causes.items() if other != name)
        if certain and (-OVERLAP_NS if name == "gap" else 0) <= late_ns <= _LONG_NS:
            samples[name].append(late_ns)
    if not samples["event_hop"]:
        samples["event_hop"] = samples["gap"]
    return Overheads(*map(_usual, samples.values()))


def delays(
    trace: Trace, streams: Streams, issued_ns: Mapping[int, int], begin_ns: int, known: Overheads
) -> dict[int, Delay]:
    """Return what held tasks that the trace does not show, by task.

    Parameters
    ----------
    trace : Trace
    streams : Streams
        What tasks wait for on the GPU.
    issued_ns : mapping
        Task → the end of its launch; those of others were before the trace.
    begin_ns : int
        When the first task may start.
    known : Overheads
        What the GPU takes itself, once more behind the delay.
    """
    found = {}
    for i, task in enumerate(trace.tasks):
        since_ns, jitter_ns = begin_ns, 0
        for name, ns in _causes(trace, streams, i, issued_ns.get(i)).items():
            one: Usual = getattr(known, name)
            if ns + one.usual_ns >= since_ns:
                since_ns, jitter_ns = ns + one.usual_ns, one.most_ns - one.usual_ns
        late_ns = task.start_ns - since_ns
        if late_ns > max(jitter_ns, known.gap.usual_ns):
            found[i] = Delay(since_ns, late_ns - known.gap.usual_ns)
    return found


def _causes(trace: Trace, streams: Streams, i: int, issued_ns: int | None) -> dict[str, int]:
    """Return since when each of the three let a task start, as far as it is known."""
    task = trace.tasks[i]
    causes = {} if issued_ns is None else {"launch_latency": issued_ns}
    for p in streams.before[i]:
        other = trace.tasks[p]
        name = "gap" if (other.device, other.stream) == (task.device, task.stream) else "event_hop"
        causes[name] = max(causes.get(name, 0), other.end_ns)
    return causes


def _usual(samples: Sequence[int]) -> Usual:
    late = sorted(ns for ns in samples if ns >= 0)
    if not late:
        return Usual()
    most = 3 * late[(len(late) - 1) // 2]  # of an even number the lower median: what is odd is long
    kept = [ns for ns in samples if ns <= most]
    return Usual(max(0, round_half_up(sum(kept) / len(kept))), most)
