"""Which rows of two schedules are the same op.

By name, iteration and loop; the n-th of such rows is the n-th of the other. Importers number what was
recorded (``gemm.17``), so that one kernel more gives other names to all that follow: there rows are the same
that do the same in the same order on a lane (`sim.diff.in_order`), if that finds more of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sim.diff.in_order import common_subsequence
from sim.diff.schedule import TRANSFER, Schedule
from sim.words.arrays import IntArray

__all__ = ["Pairs", "matched"]


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


def matched(a: Schedule, b: Schedule) -> Pairs:
    """Return which rows of two schedules are the same op, each row at most once."""
    n_a, n_b = int(a.compared.sum()), int(b.compared.sum())
    named = _by_name(a, b)
    if len(named.a) < min(n_a, n_b) and a.numbered and b.numbered:
        ordered = _by_order(a, b)
        if len(ordered.a) > len(named.a):
            return ordered
    return named


def _by_name(a: Schedule, b: Schedule) -> Pairs:
    of_b = _keys(b)
    pairs = [(row, of_b[key]) for key, row in _keys(a).items() if key in of_b]
    return _pairs(pairs, "name")


def _keys(schedule: Schedule) -> dict[tuple[object, ...], int]:
    """Return what identifies each row that is compared -> the row."""
    rows = np.flatnonzero(schedule.compared)
    rows = rows[np.argsort(schedule.start_ns[rows], kind="stable")].tolist()
    iteration = schedule.iteration.tolist()
    moves = (schedule.kind == schedule.kinds.index(TRANSFER)).tolist() if TRANSFER in schedule.kinds else None
    keys: dict[tuple[object, ...], int] = {}
    times: dict[tuple[object, ...], int] = {}
    for row in rows:
        way = schedule.lane_of(row) if moves and moves[row] else ""
        key: tuple[object, ...] = (schedule.names[row], iteration[row], schedule.frame_of(row), way)
        n = times.get(key, 0)
        times[key] = n + 1
        keys[(*key, n)] = row
    return keys


def _by_order(a: Schedule, b: Schedule) -> Pairs:
    labels = (a.kernels, b.kernels) if a.kernels and b.kernels else (a.labels, b.labels)
    codes: dict[str, int] = {}
    of_a, of_b = (
        np.array([codes.setdefault(label, len(codes)) for label in each], np.int64) for each in labels
    )
    pairs: list[tuple[int, int]] = []
    lanes_a, lanes_b = _rows_of_lanes(a), _rows_of_lanes(b)
    for lane, other in _lanes_that_correspond(list(lanes_a), list(lanes_b)):
        rows, others = lanes_a[lane], lanes_b[other]
        mine, theirs = common_subsequence(of_a[rows], of_b[others])
        pairs += zip(rows[mine].tolist(), others[theirs].tolist(), strict=True)
    return _pairs(pairs, "order")


def _rows_of_lanes(schedule: Schedule) -> dict[str, IntArray]:
    """Return lane -> the rows on it in order of time, lanes in their own order."""
    rows = np.flatnonzero(schedule.compared)
    rows = rows[np.lexsort((rows, schedule.start_ns[rows], schedule.lane[rows]))]
    used, first = np.unique(schedule.lane[rows], return_index=True)
    parts = np.split(rows, first[1:])
    return {schedule.lanes[lane]: part for lane, part in zip(used.tolist(), parts, strict=True)}


def _lanes_that_correspond(a: Sequence[str], b: Sequence[str]) -> list[tuple[str, str]]:
    """Return lanes of the same name, and the others in order, if they are as many."""
    left, right = [lane for lane in a if lane not in b], [lane for lane in b if lane not in a]
    same = [(lane, lane) for lane in a if lane in b]
    return same + list(zip(left, right, strict=True)) if len(left) == len(right) else same


def _pairs(pairs: list[tuple[int, int]], by: str) -> Pairs:
    a, b = np.array(sorted(pairs), np.int64).reshape(-1, 2).T
    return Pairs(a, b, by)
