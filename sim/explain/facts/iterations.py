"""Which iteration of a loop had to be over before another could begin.

A loop has at most ``parallel_iterations`` (p) under way, so what enters iteration i + p waits until all of
iteration i has ended, whether it reads anything of that or not::

    p = 1    slow 0 ─────────────────┐
             count 0 ──► next ───────┴─► merge 1        ready when `slow 0` has ended, not when `next` has

The trace says when it was let in; the last task of iteration i, or of one before, that ended just then let it
in. Each part of a graph that is cut by keys has a window of its own (`sim.readiness.parts`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Final

import numpy as np

from sim.graph.frames import frame_structure
from sim.readiness.parts import parts
from sim.record.dependencies import Dependencies
from sim.record.record import Record
from sim.words.arrays import UNSET

__all__ = ["with_iterations"]

_LEVEL: Final = re.compile(r"(.+?):(\d+)(?:/|$)")


def with_iterations(trace: Record, edges: Dependencies) -> Dependencies:
    """Return `edges` and one more for each task that a full window of iterations held back.

    Parameters
    ----------
    trace : Trace
    edges : Dependencies
        Of this trace.
    """
    if not trace.frames:
        return edges
    ends = trace.of_rows("end_ns")
    fed = np.zeros(len(ends), np.int64)
    np.maximum.at(fed, edges.consumer, ends[edges.producer])
    ready, frame = trace.tasks["ready_ns"], trace.tasks["frame"]
    path = [_levels(text) for text in trace.frames]
    held = [row for row in np.flatnonzero(ready > fed[: len(trace)]).tolist() if path[frame[row]]]
    if not held:
        return edges
    at = set(ready[held].tolist())
    over = defaultdict(list)
    for row in np.flatnonzero(np.isin(trace.tasks["end_ns"], sorted(at))).tolist():
        over[int(trace.tasks["end_ns"][row])].append(row)
    op, repetition = trace.tasks["op"], trace.tasks["iteration"]
    part, structure = np.array(parts(trace.job))[op], frame_structure(trace.job.graph)
    producer, consumer = [], []
    for row in held:
        own, window = path[frame[row]], structure.parallel_iterations[structure.frame_of[op[row]]]
        before = [
            other
            for other in over[int(ready[row])]
            if other < row
            and repetition[other] == repetition[row]
            and part[other] == part[row]
            and _is_earlier(path[frame[other]], own, window)
        ]
        if before:
            producer.append(before[-1])
            consumer.append(row)
    new = (np.array(producer, np.int64), np.array(consumer, np.int64), np.full(len(producer), UNSET))
    return Dependencies(*(np.concatenate(pair) for pair in zip(edges, new, strict=True)))


def _levels(frame: str) -> tuple[tuple[str, int], ...]:
    """Return loops and iterations of a frame, outermost first.

    Examples
    --------
    >>> _levels("model/outer:2/inner:0")
    (('model/outer', 2), ('inner', 0))
    """
    return tuple((name, int(number)) for name, number in _LEVEL.findall(frame))


def _is_earlier(one: tuple[tuple[str, int], ...], other: tuple[tuple[str, int], ...], by: int) -> bool:
    """Whether `one` is, or lies in, an iteration of the same loop as `other`, and earlier `by` so many."""
    depth = len(other) - 1
    if len(one) <= depth or one[:depth] != other[:depth]:
        return False
    return one[depth][0] == other[depth][0] and one[depth][1] + by <= other[depth][1]
