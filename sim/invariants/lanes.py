"""Streams start their tasks in order, one at a time; issuers do one thing at a time and pay for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from sim.graph import UNSET, IntArray
from sim.invariants.columns import Columns, refuse

__all__ = ["LANES"]


def _neighbours(order: IntArray, key: IntArray) -> tuple[IntArray, IntArray]:
    """Return (one, next) for rows that are neighbours in `order` and have the same `key`."""
    one, following = order[:-1], order[1:]
    same = key[one] == key[following]
    return one[same], following[same]


def one_at_a_time(c: Columns) -> None:
    """Tasks of a lane start in issue order, and each after the one before it and the gap between them."""
    one, following = _neighbours(np.argsort(c.stream, kind="stable"), c.stream)  # rows are in start order
    refuse(
        c.issue[following] < c.issue[one],
        lambda k: (
            f"{c.started(int(following[k]))} on {c.lane(int(following[k]))} after {c.task(int(one[k]))}, "
            f"and was issued before it, at {c.issue[following[k]]} ns"
        ),
    )
    gap = np.array([0 if d.workers else d.gap_ns for d in c.machine.devices])[c.device[following]]
    refuse(
        c.start[following] < c.end[one] + gap,
        lambda k: (
            f"{c.started(int(following[k]))} on {c.lane(int(following[k]))}, where {c.ended(int(one[k]))}"
            + (f" and a gap of {gap[k]} ns is due" if gap[k] else "")
        ),
    )


def launches_take_time(c: Columns) -> None:
    """A launch takes the latency; a worker pays for issuing before it executes."""
    latency = np.array([d.launch_latency_ns for d in c.machine.devices])[c.device]
    least = np.where(c.by_worker, c.cost, latency)
    refuse(
        c.start < c.issue + least,
        lambda r: f"{c.started(r)}, issued at {c.issue[r]} ns; launching it takes {least[r]} ns",
    )


def hosts_issue_one_by_one(c: Columns) -> None:
    """A host thread pays for every op that it issues, one after another."""
    mine = np.flatnonzero(~c.by_worker & (c.issuer != UNSET))
    refuse(
        c.issue[mine] < c.ready[mine] + c.cost[mine],
        lambda k: (
            f"{c.task(int(mine[k]))} was ready at {c.ready[mine[k]]} ns and issued at "
            f"{c.issue[mine[k]]} ns; issuing it takes {c.cost[mine[k]]} ns"
        ),
    )
    # Of several issues at one instant only the first can have cost anything.
    order = mine[np.lexsort((-c.cost[mine], c.issue[mine], c.issuer[mine]))]
    one, following = _neighbours(order, c.issuer)
    refuse(
        c.issue[following] < c.issue[one] + c.cost[following],
        lambda k: (
            f"{c.issuer_name(int(one[k]))} issued {c.task(int(one[k]))} at {c.issue[one[k]]} ns and "
            f"{c.task(int(following[k]))}, which takes it {c.cost[following[k]]} ns, at "
            f"{c.issue[following[k]]} ns"
        ),
    )


def workers_take_one_by_one(c: Columns) -> None:
    """A worker takes nothing while it executes."""
    mine = np.flatnonzero(c.by_worker & (c.issuer != UNSET))
    one, following = _neighbours(mine[np.argsort(c.issuer[mine], kind="stable")], c.issuer)
    refuse(
        c.issue[following] < c.end[one],
        lambda k: (
            f"{c.issuer_name(int(one[k]))} took {c.task(int(following[k]))} at {c.issue[following[k]]} ns, "
            f"before {c.ended(int(one[k]))}"
        ),
    )


def launch_queues_hold_what_they_can(c: Columns) -> None:
    """No more launches are outstanding on a device than its queue is deep."""
    for d, device in enumerate(c.machine.devices):
        if device.queue_depth is None or device.workers:
            continue
        here = np.flatnonzero(c.device == d)
        here = here[np.argsort(c.issue[here], kind="stable")]
        over = np.searchsorted(np.sort(c.end[here]), c.issue[here], side="right")
        outstanding = np.searchsorted(c.issue[here], c.issue[here], side="right") - over

        def tell(k: int, rows: IntArray = here, count: IntArray = outstanding) -> str:
            return (
                f"{count[k]} launches were outstanding when {c.task(int(rows[k]))} was issued at "
                f"{c.issue[rows[k]]} ns; the queue of {c.device_name(c.device[rows[k]])} holds fewer"
            )

        refuse(outstanding > device.queue_depth, tell)


LANES: Final[tuple[Callable[[Columns], None], ...]] = (
    one_at_a_time,
    launches_take_time,
    hosts_issue_one_by_one,
    workers_take_one_by_one,
    launch_queues_hold_what_they_can,
)
