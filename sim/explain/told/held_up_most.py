"""What held the executed critical path up most, in one sentence: the first thing to know of a run.

::

    '0F1' is issued and queued behind '2RECV_F0' on rank0/0, for 22 us; '2RECV_F0' waits on communicator 'pp'
    for rank1, whose '1SEND_F0' is the last to start, for 10 us

The path says what took the time. Where it is a chain of tasks without a gap, the cause is not on it: a task
that stands on it may have been ready long before, behind another one. So of each task of the path the time
between its data and its start is cut into reasons, and the longest piece is told; to queue on a stream counts
behind a collective only, as behind a kernel it is what streams are for. Of a collective the rank that started
last counts. If what stood ahead waited for a late rank itself, that is told, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from sim.explain.facts.derived_columns import Facts
from sim.explain.idle import held_up
from sim.explain.path import Step
from sim.explain.told.sentences import blame
from sim.words.arrays import UNSET
from sim.words.units import format_duration

__all__ = ["held_up_most"]

_AHEAD: Final = {"stream": "before_on_lane", "communicator": "before_in_line"}
"""Reason -> the column of what stands ahead."""

_LEAST: Final = 0.05
"""What is a smaller part of the makespan is not worth a line."""


class _Piece(NamedTuple):
    ns: int
    row: int
    reason: str
    begin_ns: int


def held_up_most(f: Facts, path: Sequence[Step]) -> str:
    """Return the sentence; empty where nothing on the path was held up, or there are no communicators.

    Parameters
    ----------
    f : Facts
    path : sequence of Step
        The executed path.
    """
    if f.meetings is None:
        return ""
    rows = [int(f.met_last[step.row]) for step in path if step.kind in ("task", "issue") and step.row < f.n]
    first = _longest(f, list(dict.fromkeys(rows)))
    if first is None or first.ns < _LEAST * f.trace.makespan_ns:
        return ""
    told = f"{blame(f, first.reason, first.row, first.begin_ns)}, for {format_duration(first.ns)}"
    ahead = int(getattr(f, _AHEAD[first.reason])[first.row]) if first.reason in _AHEAD else UNSET
    behind = None if ahead == UNSET else _longest(f, [ahead], ("late rank",))
    if behind is not None:
        told += f"; {blame(f, 'late rank', behind.row, behind.begin_ns).partition(';')[0]}"
        told += f", for {format_duration(behind.ns)}"
    return told


def _longest(f: Facts, rows: list[int], reasons: tuple[str, ...] = ()) -> _Piece | None:
    """Return the longest time in which one of these tasks had its data and did not start, for one reason."""
    at = np.array(rows, np.int64)
    best: _Piece | None = None
    for reason, begin, length in held_up(f, at, f.data[at], f.begins[at]) if rows else ():
        if reasons and reason not in reasons:
            continue
        if reason == "stream":
            met = () if f.meetings is None else f.meetings.row
            length = np.where(np.isin(f.before_on_lane[at], met), length, 0)
        k = int(length.argmax())
        if length[k] > (best.ns if best else 0):
            best = _Piece(int(length[k]), rows[k], reason, int(np.broadcast_to(begin, length.shape)[k]))
    return best
