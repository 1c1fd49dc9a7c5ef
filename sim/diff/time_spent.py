"""Where the time of two schedules went: idle devices by reason, and what the critical path consists of."""

from __future__ import annotations

from typing import Final, NamedTuple

from sim.diff.blockers import OF_NO_RECORDING, UNEXPLAINED
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
    parts : dict of str to (int, int)
        What a path consists of -> ns in A and in B: ``task``, ``transfer``, ``issue``, ``wait: reason``,
        ``unexplained``. They add up to the makespans.
    only_a, only_b : list of int
        Rows of ops that are on the path in one of them only, the longest first.
    both : int
        How many ops are on both.
    """

    parts: dict[str, Both]
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
        left = sum(why.pop(reason, 0) for reason in OF_NO_RECORDING) if schedule.recorded else 0
        if filled:
            why.pop(UNEXPLAINED, None)
            left = makespan - ns - sum(why.values())
        found[name] = why | ({UNEXPLAINED: left} if left else {})
    return found


def path_change(d: Differences) -> PathChange | None:
    """Return how the critical paths differ; None where one of the two is a table, whose path nobody knows."""
    if d.a.facts is None or d.b.facts is None:
        return None
    parts_a, rows_a = _path(d.a)
    parts_b, rows_b = _path(d.b)
    every = dict.fromkeys((*parts_a, *parts_b))
    parts = {what: (parts_a.get(what, 0), parts_b.get(what, 0)) for what in every}
    partner = dict(zip(d.pairs.a.tolist(), d.pairs.b.tolist(), strict=True))
    on_b = set(rows_b)
    common = {row for row in rows_a if partner.get(row, -1) in on_b}
    also = {partner[row] for row in common}
    return PathChange(
        parts,
        [row for row in rows_a if row not in common],
        [row for row in rows_b if row not in also],
        len(common),
    )


def _path(schedule: OpSchedule) -> tuple[dict[str, int], list[int]]:
    """Return what the path consists of, and the rows of its ops, the longest first."""
    facts = schedule.facts
    assert facts is not None
    parts: dict[str, int] = {}
    rows: dict[int, int] = {}
    for step in executed_path(facts.trace, facts):
        ns = step.end_ns - step.start_ns
        what = f"wait: {step.reason}" if step.kind == "wait" else step.kind
        if schedule.recorded and step.reason in OF_NO_RECORDING:
            what = UNEXPLAINED
        if step.kind == "task":
            if schedule.compared[step.row]:
                rows[step.row] = ns
            else:
                what = UNEXPLAINED
        parts[what] = parts.get(what, 0) + ns
    return parts, sorted(rows, key=lambda row: (-rows[row], row))
