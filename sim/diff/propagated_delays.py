"""The reason why the first op that moved has moved.

At the earlier of its two starts it starts in one schedule and not in the other: what held it up there is the
cause. The op in its way ran at another time, or longer, or ahead of it, or is not in the other schedule at
all; or nothing about that op changed, and in the other schedule the first op does not wait for it::

    A   ▇a▇▇b▇         at 4 b starts in A; in B it needs a, which still runs
    B   ▇a▇▇▇▇b▇       a lasts 4 in A, 7 in B
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, BoolArray, IntArray
from sim.base.files import StrPath
from sim.base.units import format_count, format_duration
from sim.diff.differences import Differences, differences
from sim.diff.schedule import UNEXPLAINED, OpSchedule, read_ops_table, runs_in, schedule_of, schedule_of_table
from sim.explain.derived import DerivedColumns
from sim.explain.idle import waits
from sim.explain.sentences import Blame, blame, row_text
from sim.record.record import Record

_MAX_CHAIN: Final = 8
"""Maximum length of a chain; it is short, as nothing before the first op that moved has moved."""


_LANE_REASONS: Final = ("issue", "policy", "stream", "launch")
"""Reasons that no longer apply on another lane."""


class Why(NamedTuple):
    """Why an op moved.

    Attributes
    ----------
    later : str
        ``a`` or ``b``: the schedule in which it starts later.
    reason : str
        What holds it up there: one of `sim.explain.idle.REASONS`, or ``unexplained``.
    root : str
        What changed: ``duration``, ``order``, ``only`` (the op in its way is not in the other schedule),
        ``wait`` (it does not wait for that op there), ``cost`` (of issuing or launching it), or ``unknown``.
    chain : tuple of str
        Sentences: what holds it up, then what has changed.
    waited_a, waited_b : dict of str to int
        How long it waited before its start, by reason, in ns.
    """

    later: str
    reason: str
    root: str
    chain: tuple[str, ...]
    waited_a: dict[str, int]
    waited_b: dict[str, int]


def why_first_moved(d: Differences, names: tuple[str, str] = ("A", "B")) -> Why | None:
    """Return why the first op that moved has moved; None if none has moved.

    Parameters
    ----------
    d : Differences
    names : (str, str)
        The names of the two schedules in sentences.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> from sim.diff.differences import differences
    >>> from sim.diff.schedule import schedule_of
    >>> def run(title, ns):
    ...     b = GraphBuilder("chain")
    ...     _ = b.op("a", duration_ns=ns, device="gpu0")
    ...     _ = b.op("b", duration_ns=10, inputs=["a"], device="gpu1")
    ...     machine = Machine((Device("gpu0"), Device("gpu1")))
    ...     return schedule_of(simulate(b.build(), machine, ReadyQueue()), title)
    >>> for sentence in why_first_moved(differences(run("A", 4), run("B", 7))).chain:
    ...     print(sentence)
    in B at 4 ns 'b' needs 'a', which runs on gpu0/0
    'a' lasts 4 ns in A, 7 ns in B
    """
    if d.first is None:
        return None
    a, b = int(d.pairs.a[d.first]), int(d.pairs.b[d.first])
    return _Chain(d, "b" if d.moved_ns[d.first] > 0 else "a", names).explain(a, b)


def distinct_durations(a_ns: int, b_ns: int) -> tuple[str, str]:
    """Return two times as text, with as many digits as needed to distinguish them.

    Examples
    --------
    >>> distinct_durations(14_990_172, 14_991_344), distinct_durations(5, 5)
    (('14.990172 ms', '14.991344 ms'), ('5 ns', '5 ns'))
    """
    short = format_duration(a_ns), format_duration(b_ns)
    if short[0] != short[1] or a_ns == b_ns:
        return short
    return format_duration(a_ns, digits=None), format_duration(b_ns, digits=None)


class _Change(NamedTuple):
    """What changed, as a word and a sentence; and, if that is not all, the rows and time to examine next."""

    root: str
    sentence: str = ""
    next: tuple[int, int, int] | None = None


class _Chain:
    """Follows the ops that stood in the way, from the schedule in which an op starts later."""

    def __init__(self, d: Differences, later: str, names: tuple[str, str]) -> None:
        forth = dict(zip(d.pairs.a.tolist(), d.pairs.b.tolist(), strict=True))
        self.d, self.later = d, later
        self.late, self.early = (d.b, d.a) if later == "b" else (d.a, d.b)
        self.names = names
        self.in_early, self.in_late = names if later == "b" else names[::-1]
        self.partner = {b: a for a, b in forth.items()} if later == "b" else forth

    def explain(self, a: int, b: int) -> Why:
        late, early = (b, a) if self.later == "b" else (a, b)
        at_ns = int(self.early.start_ns[early])
        sentences: list[str] = []
        reason, root = "", "unknown"
        visited: set[tuple[int, int]] = set()
        while (late, at_ns) not in visited and len(visited) < _MAX_CHAIN:
            visited.add((late, at_ns))
            cause = held_at(self.late, late, at_ns)
            if cause is None:
                break
            reason = reason or cause.reason
            sentences.append(f"in {self.in_late} at {format_duration(at_ns)} {cause.sentence}")
            change = self._find_change(late, early, cause, at_ns)
            root = change.root
            if change.sentence:
                sentences.append(change.sentence)
            if change.next is None:
                break
            late, early, at_ns = change.next
        waited = waits_of(self.d.a, a), waits_of(self.d.b, b)
        return Why(self.later, reason, root, tuple(sentences), *waited)

    def _find_change(self, late: int, early: int, cause: Blame, at_ns: int) -> _Change:
        """Return what differs about the row that held another one up."""
        row, reason = cause.row, cause.reason
        if row == UNSET or not self.late.compared[row]:  # the latter fills a gap of a recording
            return _Change("unknown")
        if row == late:
            overtaken = self._find_overtaken(late, early) if reason == "issue" else None
            return overtaken or self._compare_costs(late, early, reason)
        name = self.late.name_of(row)
        other = self.partner.get(row)
        if other is None:
            return _Change("only", f"{name} runs in {self.in_late} only")
        x = self.late.name_of(late)
        started = int(self.late.start_ns[row]), int(self.early.start_ns[other])
        if started[1] > at_ns or (started[1] == at_ns and started[0] < started[1]):
            when = f"starts at {format_duration(started[1])} there"
            return _Change("order", f"in {self.in_early} {x} comes before {name}, which {when}")
        tolerance = self.d.over_ns
        durations = int(self.late.lasted_ns[row]), int(self.early.lasted_ns[other])
        if abs(started[0] - started[1]) > tolerance:
            return _Change("unknown", f"{name} starts at {self._in_both(*started)}", (row, other, started[1]))
        if abs(durations[0] - durations[1]) > tolerance:
            return _Change("duration", f"{name} lasts {self._in_both(*durations)}")
        lanes = self.late.lane_of(late), self.early.lane_of(early)
        elsewhere = lanes[0] != lanes[1] and reason in _LANE_REASONS
        where = f"but {x} runs on {lanes[1]}" if elsewhere else f"and {x} does not wait for it"
        return _Change("wait", f"in {self.in_early} {name} runs at the same time, {where}")

    def _find_overtaken(self, late: int, early: int) -> _Change | None:
        """Return the op that its issuer takes before it here but after it in the other schedule, if any."""
        f = self.late.derived
        ahead = UNSET if f is None or late >= f.n else int(f.before_at_issuer[late])
        other = self.partner.get(ahead)
        if ahead == UNSET or other is None:
            return None
        issue, other_issue = issued_ns(self.early, early), issued_ns(self.early, other)
        if issue is None or other_issue is None or other_issue <= issue:
            return None
        x, name = self.late.name_of(late), self.late.name_of(ahead)
        when = f"is issued at {format_duration(other_issue)} there"
        return _Change("order", f"in {self.in_early} {x} comes before {name}, which {when}")

    def _compare_costs(self, late: int, early: int, reason: str) -> _Change:
        """Compare the costs of issuing or launching."""
        waits = waits_of(self.late, late), waits_of(self.early, early)
        costs = waits[0].get(reason, 0), waits[1].get(reason, 0)
        if costs[0] == costs[1]:
            return _Change("unknown")
        verb = "launching" if reason == "launch" else "issuing"
        return _Change("cost", f"{verb} {self.late.name_of(late)} takes {self._in_both(*costs)}")

    def _in_both(self, late: int, early: int) -> str:
        """Return two times as text, that in A first."""
        a, b = (early, late) if self.later == "b" else (late, early)
        texts = distinct_durations(a, b)
        return f"{texts[0]} in {self.names[0]}, {texts[1]} in {self.names[1]}"


# ----------------------------------------------------------------------------------------------------------
# Which ops moved by themselves, and which because of what they wait for.
#
# An op that starts later waits for whatever ended last before it: an input, the previous op on its lane or
# communicator, or its issuer. As far as that moved in the same direction, the op was carried along; the rest
# of its move is its own:
#
#     A   ▇a▇▇b▇▇c▇          b is 3 later by itself (it was launched late)
#     B   ▇a▇   ▇b▇▇c▇       c is 3 later, and 0 by itself


def own_ns(d: Differences) -> IntArray | None:
    """Return how much of each pair's move is its own; None if one of the schedules is a table.

    Parameters
    ----------
    d : Differences

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> from sim.diff.differences import differences
    >>> from sim.diff.schedule import schedule_of
    >>> def run(ns, latency_ns):
    ...     b = GraphBuilder("chain")
    ...     for name, inputs in {"a": [], "b": ["a"], "c": ["b"]}.items():
    ...         _ = b.op(name, duration_ns=ns, device="gpu1" if name == "b" else "gpu0", inputs=inputs)
    ...     machine = Machine((Device("gpu0"), Device("gpu1", launch_latency_ns=latency_ns)))
    ...     return schedule_of(simulate(b.build(), machine, ReadyQueue()), "")
    >>> d = differences(run(10, 0), run(10, 3))
    >>> d.moved_ns.tolist(), own_ns(d).tolist()
    ([0, 3, 3], [0, 3, 0])
    """
    if d.a.derived is None or d.b.derived is None:
        return None
    moved = d.moved_ns
    carried = np.zeros(len(moved), np.int64)
    for late, early, to_late, to_early, sign in (
        (d.b, d.a, d.pairs.b, d.pairs.a, 1),
        (d.a, d.b, d.pairs.a, d.pairs.b, -1),
    ):
        rows = np.flatnonzero(sign * moved > 0)
        partner = np.full(len(late) + 1, UNSET)
        partner[to_late] = to_early
        cause, by_issuer = _causes(late, to_late[rows])
        other = partner[cause]
        matched = other != UNSET
        rows, cause, other, by_issuer = rows[matched], cause[matched], other[matched], by_issuer[matched]
        shift = _freed_ns(late, cause, by_issuer) - _freed_ns(early, other, by_issuer)
        carried[rows] = sign * np.clip(shift, 0, np.abs(moved[rows]))
    return np.where(d.moved, moved - carried, 0)


def _causes(schedule: OpSchedule, rows: IntArray) -> tuple[IntArray, BoolArray]:
    """Return the row that freed each row last before its start (-1: none), and whether by its issuer."""
    f = schedule.derived
    assert f is not None
    start = schedule.start_ns[rows]
    cause, latest, issues = np.full(len(rows), UNSET), np.full(len(rows), -1), np.zeros(len(rows), bool)
    on_the_way = np.full(len(schedule), UNSET)  # the transfer that a transfer waited for
    for row in rows[(rows >= f.n) & (f.data[rows] < start)].tolist():
        on_the_way[row] = f.transfer_that_ended(row, int(schedule.start_ns[row]))
    for column, by_issuer in (
        (f.last_producer, False),
        (f.before_on_lane, False),
        (f.before_in_line, False),
        (on_the_way, False),
        (f.before_at_issuer, True),
    ):
        padded = np.append(column, np.full(len(schedule) - len(column), UNSET))
        candidate = padded[rows]
        freed = _freed_ns(schedule, candidate, np.full(len(rows), by_issuer))
        better = (candidate != UNSET) & (freed <= start) & (freed > latest)
        cause[better], latest[better], issues[better] = candidate[better], freed[better], by_issuer
    return cause, issues


def _freed_ns(schedule: OpSchedule, rows: IntArray, by_issuer: BoolArray) -> IntArray:
    """Return when rows ended, or when their issuers were done with them."""
    f: DerivedColumns | None = schedule.derived
    assert f is not None
    return np.where(by_issuer & (rows < f.n), f.issuer_done[np.minimum(rows, f.n - 1)], schedule.end_ns[rows])


# ----------------------------------------------------------------------------------------------------------
# What kept a row from starting at some time, as far as its schedule tells.
#
# A trace has all the information: reasons and sentences are those of `sim.explain`. A table of ops has the
# times at which each was ready, issued and started, and why it waited; the blocker is then the op that ended
# at that instant, or ran before it on its lane.


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
    if schedule.table_columns is not None:
        return int(schedule.table_columns["issue_ns"][row])
    f = schedule.derived
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
    f = schedule.derived
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
    f, start, begin = schedule.derived, int(schedule.start_ns[row]), 0
    if f is None:
        pieces = _pieces_in_table(schedule, row)
    elif row >= f.n:
        data, restart = min(int(f.data[row]), start), int(f.restarted[row])
        pieces = iter((("recovery", restart), ("dependency", data - restart), ("transfer", start - data)))
    else:
        parts = waits(f, np.array([row]), np.array([0]), np.array([start]))
        pieces = ((reason, int(ns[0])) for reason, _, ns in parts)
    for reason, ns in pieces:
        yield reason, begin, ns
        begin += ns


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
    columns = schedule.table_columns
    start = int(schedule.start_ns[row])
    if columns is None:
        yield UNEXPLAINED, start
        return
    ready = min(int(columns["ready_ns"][row]), start)
    issue = min(max(int(columns["issue_ns"][row]), ready), start)
    word = columns["wait"][row] or "stream"
    by_issuer = word if word in ("policy", "memory") else "issue"
    cause = _producer_in_table(schedule, int(columns["ready_ns"][row]))
    works = [schedule.lane_of(index) == columns["issuer"][index] for index in (cause, row)]
    yield "host" if cause != UNSET and works == [True, False] else "dependency", ready
    yield by_issuer, issue - ready
    yield ("stream" if word in ("issuer", "policy") else word), start - issue


def _producer_in_table(schedule: OpSchedule, ready: int) -> int:
    """Return the row that ended when another one became ready, or -1."""
    ended = np.flatnonzero((schedule.end_ns == ready) & (schedule.start_ns < ready))
    return int(ended[0]) if len(ended) else UNSET


def _held_in_table(schedule: OpSchedule, row: int, at_ns: int, reason: str) -> Blame:
    name = schedule.name_of(row)
    columns = schedule.table_columns
    if columns is None or reason == UNEXPLAINED:
        return Blame(UNEXPLAINED, f"{name} does not start; the file does not say why", UNSET)
    if reason in ("dependency", "host"):
        ready = int(columns["ready_ns"][row])
        cause, when = _producer_in_table(schedule, ready), f"{name} is ready at {format_duration(ready)}"
        when += "" if cause == UNSET else f", when {schedule.name_of(cause)} ends"
        return Blame(reason, when, cause)
    if reason == "stream":
        on_lane, start = schedule.lane == schedule.lane[row], schedule.start_ns
        if len(before := np.flatnonzero(on_lane & (start < start[row]))):
            ahead = int(before[schedule.end_ns[before].argmax()])
            queued = f"{name} is issued and queued behind {schedule.name_of(ahead)}"
            return Blame(reason, f"{queued} on {schedule.lane_of(row)}", ahead)
    return Blame(reason, f"{name} {_IN_TABLE.get(reason, f'waits ({reason})')}", UNSET)


# ----------------------------------------------------------------------------------------------------------
# Comparison of a run with a table of the ops of an earlier one: what changed, and the first op that moved.
#
#     the makespan is 80 us, not 50 us
#     of 4 ops in both 2 start at another time
#     the first to move is 'c', which starts at 40 us, not 0 ns:
#       in this run at 0 ns 'c' is ready and an issuer is free, but in-order runs 'b' first

_NAMED: Final = 5
"""Maximum number of new or missing ops that are named."""


def has_run(path: StrPath, policy: str) -> bool:
    """Whether a table exists and holds one unnamed run, or a run of that name.

    Raises
    ------
    InputError
        The file is something else.
    """
    if not os.path.exists(path):
        return False
    runs = runs_in(read_ops_table(path))
    return not runs or policy in runs


def against_table(trace: Record, path: StrPath, policy: str | None = None, *, over_ns: int = 0) -> list[str]:
    """Return the differences between a run and the table of an earlier one, as lines; empty if none.

    Parameters
    ----------
    trace : Trace
    path : path
        A table written by `sim run --ops`.
    policy : str, optional
        The name of the run. In a table of several runs, it selects the run of that name.
    over_ns : int
        Starts, durations and makespans that differ by no more count as equal.

    Raises
    ------
    InputError
        No such file, not a table of ops, or it holds several runs and none of that name.
    """
    table = read_ops_table(path)
    golden = schedule_of_table(path, table, policy if len(runs_in(table)) > 1 else None)
    d = differences(golden, schedule_of(trace, "", policy=policy), over_ns=over_ns)
    return [] if d.same else [*_count_lines(d), *_first_move_lines(d, Path(path).name)]


def _count_lines(d: Differences) -> list[str]:
    makespan = distinct_durations(d.b.makespan_ns, d.a.makespan_ns)
    lines = []
    if abs(d.b.makespan_ns - d.a.makespan_ns) > d.over_ns:
        lines.append(f"the makespan is {makespan[0]}, not {makespan[1]}")
    changes = [
        (int(d.moved.sum()), "starts", "start", " at another time"),
        (int(d.resized.sum()), "lasts", "last", " longer or shorter"),
        (int(d.relaned.sum()), "runs", "run", " on another lane"),
    ]
    changed = ", ".join(f"{n:,} {one if n == 1 else many}{detail}" for n, one, many, detail in changes if n)
    if changed:
        lines.append(f"of {format_count(len(d.pairs.a), 'op')} in both {changed}")
    for schedule, only, detail in ((d.b, d.only_b, "new"), (d.a, d.only_a, "gone")):
        if len(only):
            names = ", ".join(schedule.name_of(row) for row in only[:_NAMED].tolist())
            more = ", ..." if len(only) > _NAMED else ""
            verb = "is" if len(only) == 1 else "are"
            lines.append(f"{format_count(len(only), 'op')} {verb} {detail}: {names}{more}")
    return lines


def _first_move_lines(d: Differences, golden: str) -> list[str]:
    """Return the first op that moved, and why; if none has, one that lasts longer or runs elsewhere."""
    cause = why_first_moved(d, (golden, "this run"))
    if cause is not None:
        a, b = int(d.pairs.a[d.first]), int(d.pairs.b[d.first])
        now, then = distinct_durations(int(d.b.start_ns[b]), int(d.a.start_ns[a]))
        colon = ":" if cause.chain else ""
        headline = f"the first to move is {d.b.name_of(b)}, which starts at {now}, not {then}{colon}"
        return [headline, *(f"  {line}" for line in cause.chain)]
    if d.resized.any():
        k = d.kinds(1)[0]["changed_most"]
        a, b = int(d.pairs.a[k]), int(d.pairs.b[k])
        now, then = distinct_durations(int(d.b.lasted_ns[b]), int(d.a.lasted_ns[a]))
        return [f"{d.b.name_of(b)} lasts {now}, not {then}"]
    lanes = np.flatnonzero(d.relaned)
    if len(lanes):
        a, b = int(d.pairs.a[lanes[0]]), int(d.pairs.b[lanes[0]])
        return [f"{d.b.name_of(b)} runs on {d.b.lane_of(b)}, not {d.a.lane_of(a)}"]
    return []
