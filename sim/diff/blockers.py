"""What kept a row from starting at some time, as far as its schedule tells.

A trace has all the information: reasons and sentences are those of `sim.explain`. A table of ops has the
times at which each was ready, issued and started, and why it waited; the blocker is then the op that ended at
that instant, or ran before it on its lane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from sim.base.arrays import UNSET
from sim.base.units import format_duration
from sim.diff.schedule import OpSchedule, RowNotes
from sim.explain.derived import DerivedColumns
from sim.explain.idle import waits
from sim.explain.sentences import Blame, blame, row_text

UNEXPLAINED: Final = "unexplained"
"""In a recording: no recorded reason held the op up any more."""


def waits_of(schedule: OpSchedule, row: int) -> dict[str, int]:
    """Return how long a row waited before its start, by reason; the times add up to its start.

    Parameters
    ----------
    schedule : OpSchedule
    row : int
    """
    waited = Counter[str]()
    for reason, _, ns in _pieces(schedule, row):
        waited[reason] += ns
    return dict(+waited)


def issued_ns(schedule: OpSchedule, row: int) -> int | None:
    """Return when a row was issued, if known."""
    if schedule.told is not None:
        return int(schedule.told.issue_ns[row])
    f = schedule.facts
    return None if f is None or row >= f.n else int(f.trace.tasks["issue_ns"][row])


def held_at(schedule: OpSchedule, row: int, at_ns: int) -> Blame | None:
    """Return why a row had not started at a time; None if it had.

    Parameters
    ----------
    schedule : OpSchedule
    row : int
    at_ns : int
    """
    reason = next((word for word, begin, ns in _pieces(schedule, row) if begin <= at_ns < begin + ns), None)
    if reason is None:
        return None
    f = schedule.facts
    if f is None:
        return _held_in_table(schedule, row, at_ns, reason)
    if row >= f.n:
        return _held_transfer(f, row, at_ns, reason)
    if reason in ("issue", "policy") and at_ns < f.taken[row]:  # the reason may alternate
        busy = f.issuers_busy.between(np.array([at_ns]), np.array([at_ns + 1]), f.group[[row]])
        reason = "issue" if busy[0] else "policy"
    return blame(f, reason, row, at_ns)


def _pieces(schedule: OpSchedule, row: int) -> Iterator[tuple[str, int, int]]:
    """Yield (reason, begin, length) of a row's waits until its start; they follow one another."""
    f, start, at = schedule.facts, int(schedule.start_ns[row]), 0
    if f is None:
        pieces = _pieces_in_table(schedule, row)
    elif row >= f.n:
        made, anew = min(int(f.data[row]), start), int(f.restarted[row])
        pieces = iter((("recovery", anew), ("dependency", made - anew), ("transfer", start - made)))
    else:
        found = waits(f, np.array([row]), np.array([0]), np.array([start]))
        pieces = ((reason, int(ns[0])) for reason, _, ns in found)
    for reason, ns in pieces:
        yield reason, at, ns
        at += ns


def _held_transfer(f: DerivedColumns, row: int, at_ns: int, reason: str) -> Blame:
    name = row_text(f, row)
    cause = int(f.last_producer[row])
    if reason != "transfer" and cause != UNSET:
        verb = "runs" if f.row_start[cause] <= at_ns else "has not started yet"
        return Blame(reason, f"{name} carries what {row_text(f, cause)} makes, which {verb}", cause)
    other = f.transfer_that_ended(row, int(f.row_start[row]))
    if other == UNSET:
        return Blame(reason, f"{name} waits for a link, or for its request", UNSET)
    return Blame(reason, f"{name} waits for {row_text(f, other)} on its way", other)


# -- tables -----------------------------------------------------------------------------------------


_IN_TABLE: Final = {
    "issue": "is ready, and its issuer is busy",
    "policy": "is ready, and the policy holds it back",
    "stream": "is issued and queued on its stream",
    "event": "waits for an event of another stream",
    "launch": "is being launched",
    "resources": "waits for resources of the device",
    "memory": "waits for memory",
    "communicator": "waits for an earlier collective of its communicator",
}


def _pieces_in_table(schedule: OpSchedule, row: int) -> Iterator[tuple[str, int]]:
    """Yield (reason, length) of a row's waits."""
    told = schedule.told
    start = int(schedule.start_ns[row])
    if told is None:
        yield UNEXPLAINED, start
        return
    ready = min(int(told.ready_ns[row]), start)
    issue = min(max(int(told.issue_ns[row]), ready), start)
    word = told.wait[row] or "stream"
    by_issuer = "policy" if word == "policy" else "memory" if word == "memory" else "issue"
    cause = _producer_in_table(schedule, told, row)
    works = [schedule.lane_of(each) == told.issuer[each] for each in (cause, row)]
    yield "host" if cause != UNSET and works == [True, False] else "dependency", ready
    yield by_issuer, issue - ready
    yield ("stream" if word in ("issuer", "policy") else word), start - issue


def _producer_in_table(schedule: OpSchedule, told: RowNotes, row: int) -> int:
    ready = int(told.ready_ns[row])
    ended = np.flatnonzero((schedule.end_ns == ready) & (schedule.start_ns < ready))
    return int(ended[0]) if len(ended) else UNSET


def _held_in_table(schedule: OpSchedule, row: int, at_ns: int, reason: str) -> Blame:
    name = schedule.name_of(row)
    told = schedule.told
    if told is None or reason == UNEXPLAINED:
        return Blame(UNEXPLAINED, f"{name} does not start; the file does not say why", UNSET)
    if reason in ("dependency", "host"):
        cause = _producer_in_table(schedule, told, row)
        when = f"{name} is ready at {format_duration(int(told.ready_ns[row]))}"
        return Blame(
            reason, when if cause == UNSET else f"{when}, when {schedule.name_of(cause)} ends", cause
        )
    if reason == "stream":
        on_lane, start = schedule.lane == schedule.lane[row], schedule.start_ns
        if len(before := np.flatnonzero(on_lane & (start < start[row]))):
            ahead = int(before[schedule.end_ns[before].argmax()])
            told_so = f"{name} is issued and queued behind {schedule.name_of(ahead)}"
            return Blame(reason, f"{told_so} on {schedule.lane_of(row)}", ahead)
    if reason == "issue" and (others := _issued_first(schedule, told, row, at_ns)):
        return Blame(reason, f"{name} is ready, and {told.issuer[row]} {others}", UNSET)
    return Blame(reason, f"{name} {_IN_TABLE.get(reason, f'waits ({reason})')}", UNSET)


def _issued_first(schedule: OpSchedule, told: RowNotes, row: int, at_ns: int) -> str:
    """Return what the issuer of a row issues, or executes, from a time until it takes it; empty: unknown."""
    if not told.issuer[row]:
        return ""
    mine = np.array([issuer == told.issuer[row] for issuer in told.issuer]) & schedule.compared
    executes = schedule.lane_of(row) == told.issuer[row]  # a worker
    until = schedule.end_ns if executes else told.issue_ns
    before = np.flatnonzero(mine & (until > at_ns) & (told.issue_ns < told.issue_ns[row]))
    if not len(before):
        return "issues it"
    first = int(before[told.issue_ns[before].argmin()])
    more = f" and {len(before) - 1} more" if len(before) > 1 else ""
    return f"{'executes' if executes else 'issues'} {schedule.name_of(first)}{more} first"
