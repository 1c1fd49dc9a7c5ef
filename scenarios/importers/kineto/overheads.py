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

import numpy as np

from scenarios.importers.kineto.kineto_rows import RecordedTrace
from scenarios.importers.kineto.stream_waits import Streams
from sim.base.arrays import IntArray
from sim.base.units import round_half_up

_CAUSES: Final = ("launch_latency", "gap", "event_hop")
_NEVER: Final = -(2**61)
"""In a column of times: it did not happen."""
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


def overheads(trace: RecordedTrace, streams: Streams) -> Overheads:
    """Return what the GPUs of a process took themselves."""
    ends = {call.correlation: call.end_ns for call in trace.calls}
    launches = trace.correlation.tolist()
    causes = _causes(trace, streams, [ends.get(launch, _NEVER) for launch in launches])
    *_, second_ns, last_ns = np.sort(causes, axis=0)
    late_ns, which = trace.start_ns - last_ns, np.argmax(causes, axis=0)
    known = np.flatnonzero(last_ns != _NEVER)
    _, begun = np.unique(trace.correlation[known], return_index=True)
    shows = (causes[1:] != _NEVER).any(axis=0)  # of the tasks of a CUDA graph only the first shows a latency
    shows[known[begun]] = True
    shows &= (last_ns - second_ns >= _CERTAIN_NS) & (late_ns <= _LONG_NS)
    shows &= late_ns >= np.where(which == _CAUSES.index("gap"), -OVERLAP_NS, 0)
    samples = {name: late_ns[shows & (which == n)].tolist() for n, name in enumerate(_CAUSES)}
    samples["event_hop"] = samples["event_hop"] or samples["gap"]
    return Overheads(**{name: _usual(late) for name, late in samples.items()})


def delays(
    trace: RecordedTrace, streams: Streams, issued_ns: Mapping[int, int], begin_ns: int, known: Overheads
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
    n = len(trace.tasks)
    causes = _causes(trace, streams, [issued_ns.get(i, _NEVER) for i in range(n)])
    since_ns, jitter_ns = np.full(n, begin_ns), np.zeros(n, np.int64)
    for name, came_ns in zip(_CAUSES, causes, strict=True):
        usual_ns, most_ns = getattr(known, name)
        later = came_ns + usual_ns >= since_ns
        since_ns[later], jitter_ns[later] = came_ns[later] + usual_ns, most_ns - usual_ns
    late_ns = trace.start_ns - since_ns
    held = np.flatnonzero(late_ns > np.maximum(jitter_ns, known.gap.usual_ns))
    lasts_ns = late_ns[held] - known.gap.usual_ns
    found = map(Delay, since_ns[held].tolist(), lasts_ns.tolist())
    return dict(zip(held.tolist(), found, strict=True))


def _causes(trace: RecordedTrace, streams: Streams, issued_ns: Sequence[int]) -> IntArray:
    """Return since when each of `_CAUSES` let each task start; `_NEVER` where it was none."""
    tasks, others, same = streams.edges
    causes = np.full((len(_CAUSES), len(trace.tasks)), _NEVER)
    causes[0] = issued_ns
    for row, which in zip(causes[1:], (same, ~same), strict=True):
        row[tasks[which]] = 0
        np.maximum.at(row, tasks[which], trace.end_ns[others[which]])
    return causes


def _usual(samples: Sequence[int]) -> Usual:
    late = sorted(ns for ns in samples if ns >= 0)
    if not late:
        return Usual()
    most = 3 * late[(len(late) - 1) // 2]  # of an even number the lower median: what is odd is long
    kept = [ns for ns in samples if ns <= most]
    return Usual(max(0, round_half_up(sum(kept) / len(kept))), most)
