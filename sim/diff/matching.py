"""Which rows of two schedules are the same op.

By name, iteration and loop; the n-th of such rows is the n-th of the other. Importers number what was
recorded (``gemm.17``), so that one kernel more gives other names to all that follow: there rows are the same
that do the same in the same order on a lane (`sim.diff.in_order`), if that finds more of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
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
    labels = (a.labels, b.labels)
    if a.kernels is not None and b.kernels is not None:
        labels = (a.kernels, b.kernels)
    codes = {label: k for k, label in enumerate(sorted({*labels[0], *labels[1]}))}  # whichever comes first
    of_a, of_b = (np.array([codes[label] for label in each], np.int64) for each in labels)
    pairs: list[tuple[int, int]] = []
    for rows, others in _lanes_that_correspond(_rows_of_lanes(a), _rows_of_lanes(b), of_a, of_b):
        mine, theirs = common_subsequence(of_a[rows], of_b[others])
        pairs += zip(rows[mine].tolist(), others[theirs].tolist(), strict=True)
    return _pairs(pairs, "order")


def _rows_of_lanes(schedule: Schedule) -> dict[str, dict[str, IntArray]]:
    """Return device -> lane -> the rows on it in order of time; all in their own order."""
    rows = np.flatnonzero(schedule.compared)
    rows = rows[np.lexsort((rows, schedule.start_ns[rows], schedule.lane[rows]))]
    used, first = np.unique(schedule.lane[rows], return_index=True)
    found: dict[str, dict[str, IntArray]] = {}
    for lane, part in zip(used.tolist(), np.split(rows, first[1:]), strict=True):
        device = int(schedule.device[part[0]])
        lanes = found.setdefault(schedule.devices[device] if device >= 0 else "", {})
        lanes[schedule.lanes[lane]] = part
    return found


def _lanes_that_correspond(
    a: dict[str, dict[str, IntArray]], b: dict[str, dict[str, IntArray]], of_a: IntArray, of_b: IntArray
) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield the rows of lanes that do the same: of one device, with most events in common first.

    Two recordings number their streams and threads differently. Devices go by name; those of other names by
    their order, if they are as many.
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
        for same, _, _, _, x, y in common:
            if same and x in counts_a and y in counts_b:
                del counts_a[x], counts_b[y]
                yield a[device][x], b[other][y]


def _pairs(pairs: list[tuple[int, int]], by: str) -> Pairs:
    a, b = np.array(sorted(pairs), np.int64).reshape(-1, 2).T
    return Pairs(a, b, by)
