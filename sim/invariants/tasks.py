"""Every task ran once, where it belongs, for as long as it takes."""

from __future__ import annotations

import numpy as np

from sim.invariants.checked_columns import Columns, refuse
from sim.words.arrays import UNSET

__all__ = ["TASKS"]


def each_once(c: Columns) -> None:
    """Every op of every iteration has exactly one row; with control flow, it may have any number.

    Where an op has failed, others may have none (`sim.invariants.failures`).
    """
    outside = (c.op < 0) | (c.op >= c.n) | (c.iteration < 0) | (c.iteration >= c.iterations)
    refuse(outside, lambda r: f"row {r} is op {c.op[r]} of iteration {c.iteration[r]}: no such task")
    if not c.static:
        return
    count = np.bincount(c.iteration * c.n + c.op, minlength=c.n * c.iterations)

    def tell(k: int) -> str:
        iteration, op = divmod(k, c.n)
        return f"op {c.graph.op_names[op]!r} of iteration {iteration} ran {count[k]} times, not once"

    refuse(count > 1 if c.trace.failed else count != 1, tell)


def times_in_order(c: Columns) -> None:
    """0 ≤ ready ≤ issue ≤ start ≤ end, and rows are in start order."""
    refuse(c.ready < 0, lambda r: f"{c.task(r)} was ready at {c.ready[r]} ns, before time 0")
    refuse(
        c.issue < c.ready,
        lambda r: f"{c.task(r)} was issued at {c.issue[r]} ns, before it was ready at {c.ready[r]} ns",
    )
    refuse(c.start < c.issue, lambda r: f"{c.started(r)}, before it was issued at {c.issue[r]} ns")
    refuse(c.end < c.start, lambda r: f"{c.ended(r)}, before it started at {c.start[r]} ns")
    refuse(np.diff(c.start) < 0, lambda r: f"{c.started(r + 1)} and stands after a later one, {c.task(r)}")


def places(c: Columns) -> None:
    """A task runs on a lane of its device, issued by someone who serves it."""
    lanes = np.array(c.machine.first_stream)
    refuse(
        c.live & ~c.alone & ((c.stream < lanes[c.device]) | (c.stream >= lanes[c.device + 1])),
        lambda r: f"{c.task(r)} ran on lane {c.stream[r]}, which {c.device_name(c.device[r])} does not have",
    )
    serves = np.zeros((len(c.issuers), len(c.machine.devices)), dtype=bool)
    devices = range(len(c.machine.devices))
    own_lane = np.array([[issuer.lane_on(d) for d in devices] for issuer in c.issuers])
    for issuer in c.issuers:
        serves[issuer.index, list(issuer.devices)] = True
    refuse(
        ~serves[c.issuer, c.device],
        lambda r: (
            f"{c.task(r)} was issued by {c.issuer_name(r)}, who does not serve {c.device_name(c.device[r])}"
        ),
    )
    refuse(
        c.live & c.by_worker & ~c.alone & (own_lane[c.issuer, c.device] != c.stream),
        lambda r: f"{c.issuer_name(r)} took {c.task(r)}, and {c.lane(r)} ran it",
    )


def durations(c: Columns) -> None:
    """A task takes its duration, unless its device shares something out; a dead one takes no time.

    A collective that waits for others is the business of `sim.invariants.communicators`, and what was cut
    short that of `sim.invariants.breakdowns`. On a device that is slow at times it takes that much longer.
    """
    refuse(
        c.dead & c.live & ~c.graph.is_kind("send", "recv")[c.op],
        lambda r: f"{c.task(r)} is dead and took {c.end[r] - c.start[r]} ns",
    )
    fixed = np.array([device.processor is None for device in c.machine.devices])[c.device] | c.alone
    fixed &= ~c.job.meets[c.op] & ~c.cut
    took, due = c.end - c.start, c.trace.alone_ns.copy()
    conditions = c.trace.conditions
    for device, pace in conditions.paces.items() if conditions is not None else ():
        for row in np.flatnonzero((c.device == device) & fixed & ~c.alone).tolist():
            end_ns = pace.end_ns(int(c.start[row]), int(due[row]))
            due[row] = UNSET if end_ns is None else end_ns - c.start[row]
    refuse(
        (fixed | ~c.live) & (took != due),
        lambda r: f"{c.task(r)} took {took[r]} ns on {c.device_name(c.device[r])}, where it takes {due[r]}",
    )


TASKS = (each_once, times_in_order, places, durations)
