"""Every task ran once, where it belongs, for as long as it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from sim.graph import UNSET
from sim.invariants.columns import Columns, refuse

__all__ = ["TASKS"]


def each_once(c: Columns) -> None:
    """Every op of every iteration has exactly one row."""
    outside = (c.op < 0) | (c.op >= c.n) | (c.iteration < 0) | (c.iteration >= c.iterations)
    refuse(outside, lambda r: f"row {r} is op {c.op[r]} of iteration {c.iteration[r]}: no such task")
    count = np.bincount(c.iteration * c.n + c.op, minlength=c.n * c.iterations)

    def tell(k: int) -> str:
        iteration, op = divmod(k, c.n)
        return f"op {c.graph.op_names[op]!r} of iteration {iteration} ran {count[k]} times, not once"

    refuse(count != 1, tell)


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
        (c.stream < lanes[c.device]) | (c.stream >= lanes[c.device + 1]),
        lambda r: f"{c.task(r)} ran on lane {c.stream[r]}, which {c.device_name(c.device[r])} does not have",
    )
    serves = np.zeros((len(c.issuers) + 1, len(c.machine.devices)), dtype=bool)
    serves[UNSET] = True  # nobody: the engine itself
    own_lane = np.full(len(c.issuers) + 1, UNSET)
    for issuer in c.issuers:
        serves[issuer.index, list(issuer.devices)] = True
        own_lane[issuer.index] = issuer.stream
    refuse(
        ~serves[c.issuer, c.device],
        lambda r: (
            f"{c.task(r)} was issued by {c.issuer_name(r)}, who does not serve {c.device_name(c.device[r])}"
        ),
    )
    refuse(
        (own_lane[c.issuer] != UNSET) & (own_lane[c.issuer] != c.stream),
        lambda r: f"{c.issuer_name(r)} took {c.task(r)}, and {c.lane(r)} ran it",
    )


def durations(c: Columns) -> None:
    """A task takes its duration, unless its device says how its tasks share what they share."""
    fixed = np.array([device.processor is None for device in c.machine.devices])[c.device]
    took, due = c.end - c.start, c.job.duration_ns[c.op]
    refuse(
        fixed & (took != due),
        lambda r: f"{c.task(r)} took {took[r]} ns on {c.device_name(c.device[r])}, where it takes {due[r]}",
    )


TASKS: Final[tuple[Callable[[Columns], None], ...]] = (each_once, times_in_order, places, durations)
