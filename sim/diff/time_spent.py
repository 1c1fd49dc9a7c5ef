"""Where the time of two schedules went: idle devices by reason, and what the critical path consists of."""

from __future__ import annotations

from typing import Final, NamedTuple

from sim.diff.blockers import UNEXPLAINED
from sim.diff.differences import Differences
from sim.diff.schedule import FILLERS, OpSchedule
from sim.explain.idle import idle_reasons
from sim.explain.path import executed_path

IDLE: Final = "idle"
"""The one reason of a table, which knows no others."""

Both = tuple[int, int]
"""ns in A and in B."""


class PathChange(NamedTuple):
    """How the critical paths of two schedules differ.

    Attributes
    ----------
    only_a, only_b : list of int
        Rows of ops that are on the path in one of them only, the longest first.
    both : int
        How many ops are on both.
    """

    only_a: list[int]
    only_b: list[int]
    both: int


def idle_change(d: Differences) -> dict[str, dict[str, Both]]:
    """Return device -> reason -> how long it was idle for that reason in A and in B, in ns.

    Where one of the two is a table, which says no reasons, all idle time is ``idle``. A table knows devices
    on which something ran, no others: those are left out.
    """
    plain = d.a.facts is None or d.b.facts is None
    of_a, of_b = (_idle(each, plain) for each in (d.a, d.b))
    found: dict[str, dict[str, Both]] = {}
    every = dict.fromkeys((*of_a, *of_b))
    for known, each in ((of_a, d.a), (of_b, d.b)):
        if each.facts is None:
            every = {device: None for device in every if device in known}
    for device in every:
        a, b = of_a.get(device, {}), of_b.get(device, {})
        found[device] = {reason: (a.get(reason, 0), b.get(reason, 0)) for reason in dict.fromkeys((*a, *b))}
    return found


def _idle(schedule: OpSchedule, plain: bool) -> dict[str, dict[str, int]]:
    busy, makespan = schedule.busy_ns.tolist(), schedule.makespan_ns
    if plain or schedule.facts is None:
        return {
            name: {IDLE: makespan - ns} if makespan > ns else {}
            for name, ns in zip(schedule.devices, busy, strict=True)
        }
    reasons = idle_reasons(schedule.facts.trace, schedule.facts)
    filled = any(kind in schedule.kinds for kind in FILLERS)
    found = {}
    for (name, why), ns in zip(reasons.items(), busy, strict=True):
        if filled:
            why.pop(UNEXPLAINED, None)
            left = makespan - ns - sum(why.values())
            why |= {UNEXPLAINED: left} if left else {}
        found[name] = why
    return found


def path_change(d: Differences) -> PathChange | None:
    """Return how the critical paths differ; None where one of the two is a table, whose path nobody knows."""
    if d.a.facts is None or d.b.facts is None:
        return None
    rows_a, rows_b = _path(d.a), _path(d.b)
    partner = dict(zip(d.pairs.a.tolist(), d.pairs.b.tolist(), strict=True))
    on_b = set(rows_b)
    common = {row for row in rows_a if partner.get(row, -1) in on_b}
    also = {partner[row] for row in common}
    return PathChange(
        [row for row in rows_a if row not in common],
        [row for row in rows_b if row not in also],
        len(common),
    )


def _path(schedule: OpSchedule) -> list[int]:
    """Return the ops of the path, the longest first."""
    facts = schedule.facts
    assert facts is not None
    steps = executed_path(facts.trace, facts)
    rows = {step.row: step.end_ns - step.start_ns for step in steps if step.kind == "task"}
    return sorted((row for row in rows if schedule.compared[row]), key=lambda row: (-rows[row], row))
