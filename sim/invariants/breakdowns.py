"""Parts of the machine fail when they are to, nothing goes on there, and the step ends when somebody notices.

Each attempt (`sim.record.record.Attempt`) is checked by itself, as a run of its own. Here stands what holds
in one of them, and that the whole is made of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile

import numpy as np

from sim.faults.faults import Failed
from sim.graph.failures import ABORTED, FAILED
from sim.invariants.checked_columns import Columns, refuse
from sim.record.record import Attempt, Record
from sim.words.arrays import IntArray
from sim.words.errors import InvariantError

__all__ = ["BREAKDOWNS", "whole_of_attempts"]


def failures_come_as_foreseen(c: Columns) -> None:
    """What had failed when an attempt ended is what its conditions say."""
    conditions, end_ns = c.trace.conditions, c.trace.makespan_ns
    if conditions is None:
        return
    due = list(takewhile(lambda failed: failed.time_ns < end_ns, conditions.failures()))
    told = [failed for failed in c.trace.broken if failed.time_ns < end_ns]
    if due != told:
        raise InvariantError(f"{len(told)} parts failed before {end_ns} ns, and {len(due)} were to")


def nothing_goes_on_where_a_part_failed(c: Columns) -> None:
    """On a device that has failed nothing starts any more or ends; what ran is cut at that instant."""
    failed_ns = _failed_ns(c)[c.device]
    refuse(c.start >= failed_ns, lambda r: f"{c.started(r)}, and its device had failed at {failed_ns[r]} ns")
    refuse(c.end > failed_ns, lambda r: f"{c.ended(r)}, and its device had failed at {failed_ns[r]} ns")
    if c.trace.detection is not None:
        refuse(
            (c.trace.status == FAILED) & (c.end != failed_ns),
            lambda r: f"{c.ended(r)} as failed; its device failed at {failed_ns[r]} ns",
        )
    moved = c.moved
    first = np.minimum(_failed_ns(c)[moved["source"]], _failed_ns(c)[moved["destination"]])
    refuse(
        moved["end_ns"] > first,
        lambda k: (
            f"{c.transfer(k)} arrived at {moved['end_ns'][k]} ns; one of its ends failed at {first[k]} ns"
        ),
    )


def an_aborted_step_ends_at_once(c: Columns) -> None:
    """When a step is aborted all that runs is cut; nobody notices before something is wrong."""
    detection = c.trace.detection
    if detection is None:
        return
    at_ns = detection.time_ns
    aborted = c.trace.status == ABORTED
    refuse(aborted & (c.end != at_ns), lambda r: f"{c.ended(r)} as aborted; the step was at {at_ns} ns")
    refuse(c.start > at_ns, lambda r: f"{c.started(r)}, after its step was aborted at {at_ns} ns")
    refuse(c.end > at_ns, lambda r: f"{c.ended(r)}, after its step was aborted at {at_ns} ns")
    if not any(_noticed(c)):
        raise InvariantError(
            f"{detection.by} noticed by {detection.how} at {at_ns} ns, and nothing was wrong then"
        )


def _noticed(c: Columns) -> Iterator[bool]:
    """Yield whether each thing that could have been noticed fits to who noticed it, and when."""
    detection, conditions = c.trace.detection, c.trace.conditions
    assert detection is not None
    assert conditions is not None
    faults, at_ns = conditions.faults, detection.time_ns
    if detection.how == "timeout":
        rows = np.flatnonzero(c.job.meets[c.op] & c.cut)
        timeout_ns = faults.collective_timeout_ns
        yield timeout_ns is not None and _late(c, rows, at_ns - timeout_ns)
        return
    for failed in c.trace.broken:
        if detection.how == "health-check" and faults.health_check is not None and failed.kind != "link":
            interval_ns, timeout_ns = faults.health_check
            check_ns = at_ns - timeout_ns
            missed = 0 <= check_ns - failed.time_ns < interval_ns
            yield missed and (check_ns + conditions.from_ns) % interval_ns == 0
        elif detection.how == "send-recv":
            wait_ns = faults.connection_timeout_ns if failed.silent else 0
            yield wait_ns is not None and failed.time_ns + wait_ns <= at_ns


def _late(c: Columns, rows: IntArray, launched_ns: int) -> bool:
    """Whether a collective that was cut was launched then, or none of those that were launched has begun."""
    return bool((c.issue[rows] == launched_ns).any()) or not len(rows)


def _failed_ns(c: Columns) -> IntArray:
    """Return when each device failed; after the end: not yet."""
    machine = c.machine
    first = np.full(len(machine.devices), c.trace.makespan_ns + 1)
    for failed in c.trace.broken:
        for device in _devices(c, failed):
            first[device] = min(first[device], failed.time_ns)
    return first


def _devices(c: Columns, failed: Failed) -> list[int]:
    if failed.kind == "worker":
        return [c.machine.device_index(name) for name in c.machine.hosts_in_order[failed.part].serves]
    return [failed.part] if failed.kind == "device" else []


BREAKDOWNS = (
    failures_come_as_foreseen,
    nothing_goes_on_where_a_part_failed,
    an_aborted_step_ends_at_once,
)


def whole_of_attempts(trace: Record, check: Callable[[Record], None]) -> None:
    """Check each attempt, that they follow one another, and that the trace has their rows and no others."""
    before: Attempt | None = None
    rows = 0
    for each in trace.attempts:
        check(each.trace)
        conditions = each.trace.conditions
        if conditions is None or conditions.from_ns != each.begin_ns:
            raise InvariantError(f"the attempt at {each.begin_ns} ns met the conditions of another time")
        if before is not None:
            _follows(before, each)
        n = len(each.trace)
        for name in ("start_ns", "end_ns"):
            if (trace.tasks[name][rows : rows + n] != each.trace.tasks[name] + each.begin_ns).any():
                raise InvariantError(
                    f"the rows of the attempt at {each.begin_ns} ns differ from its own in {name}"
                )
        rows += n
        before = each
    if rows != len(trace):
        raise InvariantError(f"the attempts have {rows} rows, and the trace {len(trace)}")


def _follows(before: Attempt, each: Attempt) -> None:
    """Refuse an attempt that begins too early, or with a step of which there is no checkpoint."""
    conditions, detection = before.trace.conditions, before.trace.detection
    if conditions is None or detection is None:
        raise InvariantError("there is an attempt after one in which no step was aborted")
    faults = conditions.faults
    restore_ns = faults.restore_ns if each.step else 0
    least_ns = before.begin_ns + detection.time_ns + (faults.restart_ns or 0) + restore_ns
    if each.begin_ns < least_ns:
        raise InvariantError(f"an attempt began at {each.begin_ns} ns; starting took until {least_ns} ns")
    every, reached = faults.every_steps, before.step + before.done
    if each.step != (0 if every is None else reached - reached % every):
        raise InvariantError(f"an attempt began with step {each.step}, and {reached} steps were done before")
    if each.run != before.run + before.trace.job.iterations:
        raise InvariantError(f"an attempt began with iteration {each.run}, which is not the next one")
