"""Which ops moved by themselves, and which were carried along by what they wait for.

Where an op starts later, it waits for whatever ended last before it: an input, the op before it on its lane
or on its communicator, or its issuer. As far as that moved the same way, the op was carried along; the rest
is its own::

    A   ▇a▇▇b▇▇c▇          b is 3 later by itself (it was launched late)
    B   ▇a▇   ▇b▇▇c▇       c is 3 later, and 0 by itself
"""

from __future__ import annotations

import numpy as np

from sim.diff.differences import Differences
from sim.diff.schedule import Schedule
from sim.explain.facts.derived_columns import Facts
from sim.words.arrays import UNSET, BoolArray, IntArray

__all__ = ["own_ns"]


def own_ns(d: Differences) -> IntArray | None:
    """Return how much of each pair's move is its own; None where one of the schedules is a table.

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
    if d.a.facts is None or d.b.facts is None:
        return None
    moved = d.moved_ns
    carried = np.zeros(len(moved), np.int64)
    for late, early, to_late, to_early, sign in (
        (d.b, d.a, d.pairs.b, d.pairs.a, 1),
        (d.a, d.b, d.pairs.a, d.pairs.b, -1),
    ):
        at = np.flatnonzero(sign * moved > 0)
        partner = np.full(len(late) + 1, UNSET)
        partner[to_late] = to_early
        cause, by_issuer = _causes(late, to_late[at])
        other = partner[cause]
        known = other != UNSET
        at, cause, other, by_issuer = at[known], cause[known], other[known], by_issuer[known]
        shift = _freed(late, cause, by_issuer) - _freed(early, other, by_issuer)
        carried[at] = sign * np.clip(shift, 0, np.abs(moved[at]))
    return np.where(d.moved, moved - carried, 0)


def _causes(schedule: Schedule, rows: IntArray) -> tuple[IntArray, BoolArray]:
    """Return what freed rows last before they started, -1 for nothing, and whether that was as an issuer."""
    f = schedule.facts
    assert f is not None
    start = schedule.start_ns[rows]
    none = np.full(len(schedule), UNSET)
    cause, latest, issues = np.full(len(rows), UNSET), np.full(len(rows), -1), np.zeros(len(rows), bool)
    for column, by_issuer in (
        (f.last_producer, False),
        (f.before_on_lane, False),
        (f.before_in_line, False),
        (f.before_at_issuer, True),
    ):
        whole = none.copy()
        whole[: len(column)] = column
        candidate = whole[rows]
        freed = _freed(schedule, candidate, np.full(len(rows), by_issuer))
        better = (candidate != UNSET) & (freed <= start) & (freed > latest)
        cause[better], latest[better], issues[better] = candidate[better], freed[better], by_issuer
    return cause, issues


def _freed(schedule: Schedule, rows: IntArray, by_issuer: BoolArray) -> IntArray:
    """Return when rows ended, or when their issuers were done with them."""
    f: Facts | None = schedule.facts
    assert f is not None
    tasks = np.minimum(rows, f.n - 1)
    return np.where(by_issuer & (rows < f.n), f.let_go[tasks], schedule.end_ns[rows])
