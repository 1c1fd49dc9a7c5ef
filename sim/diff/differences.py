"""Two schedules compared, op by op.

::

    A   ▇a▇▇b▇▇▇▇c▇       moved    b starts later, and c with it
    B   ▇a▇▇▇▇b▇▇▇▇c▇     first    b, the first op whose start moved: `sim.diff.propagated_delays` says why
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from sim.base.arrays import BoolArray, Codes, IntArray
from sim.diff.schedule import FILLERS, TRANSFER, UNEXPLAINED, OpSchedule
from sim.explain.idle import idle_reasons
from sim.explain.path import executed_path

# ----------------------------------------------------------------------------------------------------------
# The longest common subsequence of two sequences: which events of two recordings correspond.
#
# Each column of the textbook table grows by 0 or 1 from row to row, so that a column is a row of bits, and
# one addition of long integers makes the next (Hyyrö, "Bit-parallel LCS-length computation revisited",
# 2004):
#
#         a b c a b      bits of a column: 0 where it grows
#     c   0 0 1 1 1      1 1 0 1 1
#     a   1 1 1 2 2      0 1 1 0 1
#
# Long sequences are aligned in windows, of which the first half counts: time is linear in their length, and
# no event is paired with one further away than a window.

_WINDOW: Final = 8_192


def common_subsequence(a: IntArray, b: IntArray, window: int = _WINDOW) -> tuple[IntArray, IntArray]:
    """Return positions in `a` and in `b` of equal entries, both ascending, as many as possible.

    Parameters
    ----------
    a, b : array of int64
        Codes.
    window : int
        Longer sequences are aligned piece by piece.

    Examples
    --------
    >>> common_subsequence(np.array([1, 2, 3, 1, 2]), np.array([3, 1, 2, 2]))
    (array([2, 3, 4]), array([0, 1, 2]))
    """
    if (len(b), b.tolist()) < (len(a), a.tolist()):  # so that the answer does not depend on the order
        in_b, in_a = common_subsequence(b, a, window)
        return in_a, in_b
    chunks = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
    half = max(window // 2, 1)
    i = j = 0
    while (n := min(len(a) - i, len(b) - j)) > 0:
        differ = np.flatnonzero(a[i : i + n] != b[j : j + n])
        equal = int(differ[0]) if len(differ) else n
        if equal:
            chunks.append((np.arange(i, i + equal), np.arange(j, j + equal)))
            i, j = i + equal, j + equal
            continue
        last = len(a) - i <= window and len(b) - j <= window
        in_a, in_b = _align(a[i : i + window], b[j : j + window])
        if not last:
            count = int(np.searchsorted(np.maximum(in_a, in_b), half))
            in_a, in_b = in_a[:count], in_b[:count]
        chunks.append((i + in_a, j + in_b))
        if last:
            break
        steps = (int(in_a[-1]) + 1, int(in_b[-1]) + 1) if len(in_a) else (half, half)
        i, j = i + steps[0], j + steps[1]
    return np.concatenate([pair[0] for pair in chunks]), np.concatenate([pair[1] for pair in chunks])


def _align(a: IntArray, b: IntArray) -> tuple[IntArray, IntArray]:
    """Return a longest common subsequence of two sequences no longer than a window."""
    where: dict[int, int] = {}
    for position, code in enumerate(a.tolist()):
        where[code] = where.get(code, 0) | 1 << position
    full = (1 << len(a)) - 1
    column, columns = full, []
    for code in b.tolist():
        grows = column & where.get(code, 0)
        column = ((column + grows) | (column - grows)) & full
        columns.append(column)
    pairs = []
    i, j = len(a), len(b)
    while i and j:
        if columns[j - 1] >> i - 1 & 1:
            i -= 1
        else:
            j -= 1
            if not j or columns[j - 1] >> i - 1 & 1:
                i -= 1
                pairs.append((i, j))
    pairs.reverse()
    in_a, in_b = np.array(pairs, np.int64).reshape(-1, 2).T
    return in_a, in_b


# ----------------------------------------------------------------------------------------------------------
# Which rows of two schedules are the same op.
#
# Rows are matched by name, iteration and loop; the n-th row with equal ones matches the n-th of the other. A
# recording tells no iteration or loop, and numbers ops that ran again (``conv#2``): then by name alone.
# Importers number recorded kernels (``gemm.17``), so one extra kernel renames all that follow: then rows are
# matched by label (kernel, or operator) and order on a lane, if that matches more of them.


class Pairs(NamedTuple):
    """Rows that are the same op.

    Attributes
    ----------
    a, b : array of int64
        Rows, in the order of `a`.
    by : str
        ``name`` or ``order``.
    """

    a: IntArray
    b: IntArray
    by: str


_AGAIN: Final = re.compile(r"#\d+$")


def match_rows(a: OpSchedule, b: OpSchedule) -> Pairs:
    """Return the pairs of rows of two schedules that are the same op, with each row at most once."""
    n_a, n_b = int(a.compared.sum()), int(b.compared.sum())
    with_loops = (a.iterations > 1, bool(a.frames)) == (b.iterations > 1, bool(b.frames))
    of_b = _keys(b, with_loops)
    named = _pairs([(row, of_b[key]) for key, row in _keys(a, with_loops).items() if key in of_b], "name")
    if len(named.a) < min(n_a, n_b) and a.numbered and b.numbered:
        ordered = _by_order(a, b)
        if len(ordered.a) > len(named.a):
            return ordered
    return named


def _keys(schedule: OpSchedule, with_loops: bool) -> dict[tuple[object, ...], int]:
    """Return key → compared row; iteration and loop are part of a key if `with_loops`."""
    rows = np.flatnonzero(schedule.compared)
    rows = rows[np.argsort(schedule.start_ns[rows], kind="stable")].tolist()
    iteration = schedule.iteration.tolist()
    moves = (schedule.kind == schedule.kinds.index(TRANSFER)).tolist() if TRANSFER in schedule.kinds else None
    keys: dict[tuple[object, ...], int] = {}
    times = Counter[tuple[object, ...]]()
    for row in rows:
        route = schedule.lane_of(row) if moves and moves[row] else ""
        key: tuple[object, ...] = (schedule.names[row], iteration[row], schedule.frame_of(row), route)
        if not with_loops:
            key = (_AGAIN.sub("", schedule.names[row]) if schedule.recorded else schedule.names[row], route)
        keys[(*key, times[key])] = row
        times[key] += 1
    return keys


def _by_order(a: OpSchedule, b: OpSchedule) -> Pairs:
    """Match by kernels; if less than half match, as on GPUs of two vendors, by operators if that is more."""
    half = min(int(a.compared.sum()), int(b.compared.sum())) / 2
    candidates: list[Pairs] = []
    for key in ("kernel", "operator"):
        of_a, of_b = a.labels_by(key), b.labels_by(key)
        if of_a is not None and of_b is not None and all(len(one.a) < half for one in candidates):
            candidates.append(_by_labels(a, b, of_a, of_b))
    return max(candidates or [_by_labels(a, b, a.labels, b.labels)], key=lambda one: len(one.a))


def _by_labels(a: OpSchedule, b: OpSchedule, labels_a: list[str], labels_b: list[str]) -> Pairs:
    codes = {label: k for k, label in enumerate(sorted({*labels_a, *labels_b}))}  # independent of order
    of_a, of_b = (np.array([codes[label] for label in labels], np.int64) for labels in (labels_a, labels_b))
    pairs: list[tuple[int, int]] = []
    for rows, others in _lanes_that_correspond(_rows_of_lanes(a), _rows_of_lanes(b), of_a, of_b):
        in_a, in_b = common_subsequence(of_a[rows], of_b[others])
        pairs += zip(rows[in_a].tolist(), others[in_b].tolist(), strict=True)
    return _pairs(pairs, "order")


def _rows_of_lanes(schedule: OpSchedule) -> dict[str, dict[str, IntArray]]:
    """Return device → lane → the rows on it in order of time, with devices and lanes in their own order."""
    rows = np.flatnonzero(schedule.compared)
    rows = rows[np.lexsort((rows, schedule.start_ns[rows], schedule.lane[rows]))]
    used, first = np.unique(schedule.lane[rows], return_index=True)
    by_device: dict[str, dict[str, IntArray]] = {}
    for lane, part in zip(used.tolist(), np.split(rows, first[1:]), strict=True):
        device = int(schedule.device[part[0]])
        lanes = by_device.setdefault(schedule.devices[device] if device >= 0 else "", {})
        lanes[schedule.lanes[lane]] = part
    return by_device


def _lanes_that_correspond(
    a: dict[str, dict[str, IntArray]], b: dict[str, dict[str, IntArray]], of_a: IntArray, of_b: IntArray
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the rows of corresponding lanes of one device, those with most events in common first.

    Two recordings number their streams and threads differently. Devices are matched by name; the others, by
    order, if there are equally many.
    """
    left, right = [name for name in a if name not in b], [name for name in b if name not in a]
    devices = [(name, name) for name in a if name in b]
    devices += zip(left, right, strict=True) if len(left) == len(right) else ()
    for device, other in devices:
        counts_a, counts_b = (
            {lane: Counter(codes[rows].tolist()) for lane, rows in lanes.items()}
            for lanes, codes in ((a[device], of_a), (b[other], of_b))
        )
        common = sorted(
            (-(counts_a[x] & counts_b[y]).total(), x != y, *sorted((x, y)), x, y)
            for x in counts_a
            for y in counts_b
        )
        for shared, _, _, _, x, y in common:
            if shared and x in counts_a and y in counts_b:
                del counts_a[x], counts_b[y]
                yield a[device][x], b[other][y]


def _pairs(pairs: list[tuple[int, int]], criterion: str) -> Pairs:
    a, b = np.array(sorted(pairs), np.int64).reshape(-1, 2).T
    return Pairs(a, b, criterion)


# ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Differences:
    """The differences between two schedules.

    Attributes
    ----------
    a, b : OpSchedule
    pairs : Pairs
        Rows that are the same op.
    over_ns : int
        Starts and durations that differ by no more count as equal.
    """

    a: OpSchedule
    b: OpSchedule
    pairs: Pairs
    over_ns: int = 0

    @cached_property
    def moved_ns(self) -> IntArray:
        """How much later each pair starts in B."""
        return self.b.start_ns[self.pairs.b] - self.a.start_ns[self.pairs.a]

    @cached_property
    def longer_ns(self) -> IntArray:
        """How much longer each pair lasts in B."""
        return self.b.lasted_ns[self.pairs.b] - self.a.lasted_ns[self.pairs.a]

    @cached_property
    def moved(self) -> BoolArray:
        """Which pairs start at another time."""
        return np.asarray(np.abs(self.moved_ns) > self.over_ns)

    @cached_property
    def resized(self) -> BoolArray:
        """Which pairs last longer, or shorter."""
        return np.asarray(np.abs(self.longer_ns) > self.over_ns)

    @cached_property
    def relaned(self) -> BoolArray:
        """Which pairs run on another stream or worker; none if lanes were matched by their contents."""
        if self.pairs.by == "order":
            return np.zeros(len(self.pairs.a), bool)
        codes = Codes[str]()
        of_a, of_b = (codes.of(schedule.lanes) for schedule in (self.a, self.b))
        return np.asarray(of_a[self.a.lane[self.pairs.a]] != of_b[self.b.lane[self.pairs.b]])

    @cached_property
    def only_a(self) -> IntArray:
        """Rows that are only in A, in order of time."""
        return _rows_left(self.a, self.pairs.a)

    @cached_property
    def only_b(self) -> IntArray:
        """Rows that are only in B, in order of time."""
        return _rows_left(self.b, self.pairs.b)

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        changed = (self.moved | self.resized | self.relaned).any()
        lost = len(self.only_a) or len(self.only_b)
        return not changed and not lost and abs(self.b.makespan_ns - self.a.makespan_ns) <= self.over_ns

    @cached_property
    def first(self) -> int | None:
        """Position of the first op whose start moved; of those of one instant, the one that moved least."""
        moved = np.flatnonzero(self.moved)
        return int(moved[self._rank[moved].argmin()]) if len(moved) else None

    @cached_property
    def _rank(self) -> IntArray:
        """Place of each pair in an order by its earlier start, its later start, and names.

        The order is the same if A and B change places.
        """
        a, b = self.a, self.b
        index = {name: k for k, name in enumerate(sorted({*a.names, *b.names, *a.lanes, *b.lanes}))}
        sides = []
        for schedule, rows in ((a, self.pairs.a), (b, self.pairs.b)):
            names = np.array([index[schedule.names[row]] for row in rows.tolist()], np.int64)
            lanes = np.array([index[lane] for lane in schedule.lanes], np.int64)[schedule.lane[rows]]
            sides.append((schedule.start_ns[rows], names, schedule.iteration[rows], lanes))
        keys = [pick(x, y) for x, y in zip(*sides, strict=True) for pick in (np.minimum, np.maximum)]
        rank = np.empty(len(self.pairs.a), np.int64)
        rank[np.lexsort(keys[::-1])] = np.arange(len(rank))
        return rank

    def moves(self, top: int) -> list[dict[str, int]]:
        """Return the largest moves, at most `top`; ops that moved by the same time form one entry.

        Returns
        -------
        list of dict
            ``by_ns``: how much later they start in B; ``ops``: their number; ``first``: position in `pairs`
            of the one that starts first.
        """
        moved = np.flatnonzero(self.moved)
        moved = moved[np.argsort(self._rank[moved])]
        ns, first, count = np.unique(self.moved_ns[moved], return_index=True, return_counts=True)
        largest = np.lexsort((first, -np.abs(ns)))[:top].tolist()
        return [{"by_ns": int(ns[k]), "ops": int(count[k]), "first": int(moved[first[k]])} for k in largest]

    def largest(self, ns: IntArray, top: int) -> list[int]:
        """Return the positions of the pairs with the largest differences, without those of 0.

        Parameters
        ----------
        ns : array of int64
            The difference for each pair.
        top : int
            Maximum number of positions.
        """
        pairs = np.flatnonzero(ns)
        order: list[int] = pairs[np.lexsort((self._rank[pairs], -np.abs(ns[pairs])))][:top].tolist()
        return order

    def kinds(self, top: int) -> list[dict[str, Any]]:
        """Return the kinds whose ops last longer or shorter, at most `top`, the largest total change first.

        Returns
        -------
        list of dict
            ``kind``; ``ops``: how many last longer or shorter; ``a_ns``, ``b_ns``: total duration of all ops
            of the kind; ``changed_most``: position in `pairs` of the op that changed most.
        """
        entries: list[dict[str, Any]] = []
        kind_of_pair = self.a.kind[self.pairs.a]
        for kind in np.unique(kind_of_pair[self.resized]).tolist():
            of_kind = kind_of_pair == kind
            changed = of_kind & self.resized
            (position,) = self.largest(np.where(changed, self.longer_ns, 0), 1)
            entry = {"kind": self.a.kinds[kind], "ops": int(changed.sum())}
            entry["a_ns"] = int(self.a.lasted_ns[self.pairs.a[of_kind]].sum())
            entry["b_ns"] = int(self.b.lasted_ns[self.pairs.b[of_kind]].sum())
            entries.append(entry | {"changed_most": position})
        entries.sort(key=lambda one: (-abs(one["b_ns"] - one["a_ns"]), one["kind"]))
        return entries[:top]


def differences(a: OpSchedule, b: OpSchedule, *, over_ns: int = 0) -> Differences:
    """Compare two schedules.

    Parameters
    ----------
    a, b : OpSchedule
    over_ns : int
        Starts and durations that differ by no more count as equal.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> from sim.diff.schedule import schedule_of
    >>> def run(ns):
    ...     b = GraphBuilder("chain")
    ...     _ = b.op("a", duration_ns=ns)
    ...     _ = b.op("b", duration_ns=10, inputs=["a"])
    ...     return simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue())
    >>> found = differences(schedule_of(run(5), "A"), schedule_of(run(8), "B"))
    >>> found.moved_ns.tolist(), found.longer_ns.tolist(), found.first
    ([0, 3], [3, 0], 1)
    """
    if a.derived is None or b.derived is None:  # a table does not say when ranks met
        a, b = (replace(schedule, begin_ns=schedule.start_ns) for schedule in (a, b))
    return Differences(a, b, match_rows(a, b), over_ns)


def _rows_left(schedule: OpSchedule, paired: IntArray) -> IntArray:
    unpaired = schedule.compared.copy()
    unpaired[paired] = False
    rows = np.flatnonzero(unpaired)
    return rows[np.argsort(schedule.start_ns[rows], kind="stable")]


# ----------------------------------------------------------------------------------------------------------
# How the use of time differs between two schedules: idle devices by reason, and the critical path.

IDLE: Final = "idle"
"""The only reason in a table, which has no others."""

Both = tuple[int, int]
"""ns in A and in B."""


class PathChange(NamedTuple):
    """The difference between the critical paths of two schedules.

    Attributes
    ----------
    only_a, only_b : list of int
        Rows of ops that are on the path in only one of them, the longest first.
    both : int
        Number of ops that are on both.
    """

    only_a: list[int]
    only_b: list[int]
    both: int


def idle_change(d: Differences) -> dict[str, dict[str, Both]]:
    """Return device → reason → its idle time for that reason in A and in B, in ns.

    If one of the two is a table, which has no reasons, all idle time is ``idle``. A table has only devices
    on which something ran: others are left out.
    """
    plain = d.a.derived is None or d.b.derived is None
    of_a, of_b = (_idle(schedule, plain) for schedule in (d.a, d.b))
    change: dict[str, dict[str, Both]] = {}
    tables = [idle for idle, schedule in ((of_a, d.a), (of_b, d.b)) if schedule.derived is None]
    for device in dict.fromkeys((*of_a, *of_b)):
        if not all(device in idle for idle in tables):
            continue
        a, b = of_a.get(device, {}), of_b.get(device, {})
        change[device] = {reason: (a.get(reason, 0), b.get(reason, 0)) for reason in dict.fromkeys((*a, *b))}
    return change


def _idle(schedule: OpSchedule, plain: bool) -> dict[str, dict[str, int]]:
    busy, makespan = schedule.busy_ns.tolist(), schedule.makespan_ns
    if plain or schedule.derived is None:
        return {
            name: {IDLE: makespan - ns} if makespan > ns else {}
            for name, ns in zip(schedule.devices, busy, strict=True)
        }
    reasons = idle_reasons(schedule.derived)
    filled = any(kind in schedule.kinds for kind in FILLERS)
    idle = {}
    for (name, by_reason), ns in zip(reasons.items(), busy, strict=True):
        if filled:
            by_reason.pop(UNEXPLAINED, None)
            unexplained = makespan - ns - sum(by_reason.values())
            by_reason |= {UNEXPLAINED: unexplained} if unexplained else {}
        idle[name] = by_reason
    return idle


def path_change(d: Differences) -> PathChange | None:
    """Return how the critical paths differ; None if either is a table, whose path is unknown."""
    if d.a.derived is None or d.b.derived is None:
        return None
    rows_a, rows_b = _path(d.a), _path(d.b)
    partner = dict(zip(d.pairs.a.tolist(), d.pairs.b.tolist(), strict=True))
    on_b = set(rows_b)
    common = {row for row in rows_a if partner.get(row, -1) in on_b}
    twins = {partner[row] for row in common}
    return PathChange(
        [row for row in rows_a if row not in common], [row for row in rows_b if row not in twins], len(common)
    )


def _path(schedule: OpSchedule) -> list[int]:
    """Return the ops on the path, the longest first."""
    assert schedule.derived is not None
    steps = executed_path(schedule.derived)
    rows = {step.row: step.end_ns - step.start_ns for step in steps if step.kind == "task"}
    return sorted((row for row in rows if schedule.compared[row]), key=lambda row: (-rows[row], row))
