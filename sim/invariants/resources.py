"""Nothing that is there once is used twice, and nothing is done faster than it can be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from sim.bounds import bounds, cores_of_ops
from sim.errors import InvariantError
from sim.graph import IntArray
from sim.intervals import most_at_once, union
from sim.invariants.columns import Columns, refuse

__all__ = ["RESOURCES"]


def cores(c: Columns) -> None:
    """No more cores of a CPU are in use than it has.

    A CPU that slices time may run more ops than it has cores for, each slower: then the work that it
    got done (in core ns) is at most its cores times the time in which it was busy.
    """
    of_op = cores_of_ops(c.job)
    for d, device in enumerate(c.machine.devices):
        if not device.cores:
            continue
        rows = np.flatnonzero(c.device == d)
        start, end, need = c.start[rows], c.end[rows], of_op[c.op[rows]]
        alone = c.job.duration_ns[c.op[rows]]
        if (end - start > alone).any():
            work = int((np.minimum(alone, end - start) * need).sum())
            busy = int(union(start, end, np.zeros(len(rows), np.int64)).lengths(1)[0])
            if work > device.cores * busy:
                raise InvariantError(
                    f"{device.name} did {work} core ns of work in {busy} ns on {device.cores} cores"
                )
            continue
        used, k = most_at_once(start, end, need)
        if used > device.cores:
            raise InvariantError(
                f"{c.started(int(rows[k]))}; then {used} of {device.cores} cores of {device.name} are in use"
            )


def serial_links(c: Columns) -> None:
    """Where a link is not shared, a transfer holds it from its start to its end."""
    n_devices = len(c.machine.devices)
    pair = c.moved["source"] * n_devices + c.moved["destination"]
    rows_on: list[list[IntArray]] = [[] for _ in c.machine.links]
    for p in np.unique(pair).tolist():
        for k in c.machine.route(*divmod(p, n_devices)):
            rows_on[k].append(np.flatnonzero(pair == p))
    start, end = c.moved["start_ns"], c.moved["end_ns"]
    for link, parts in zip(c.machine.links, rows_on, strict=True):
        if not parts or link.sharing != "serial":
            continue
        rows = np.concatenate(parts)
        rows = rows[np.lexsort((end[rows], start[rows]))]

        def tell(k: int, rows: IntArray = rows, name: str = link.name) -> str:
            one, following = int(rows[k]), int(rows[k + 1])
            return (
                f"{c.transfer(following)} started at {start[following]} ns on link {name}, "
                f"which {c.transfer(one)} held until {end[one]} ns"
            )

        refuse(start[rows[1:]] < end[rows[:-1]], tell)


def lower_bounds(c: Columns) -> None:
    """The makespan is at least every lower bound, for durations as they were."""
    fastest = c.job.duration_ns.copy()
    np.minimum.at(fastest, c.op, c.end - c.start)  # where the device decides them
    limits = bounds(c.job, fastest)
    if c.trace.makespan_ns < limits.lower_bound_ns:
        raise InvariantError(
            f"the makespan of {c.trace.makespan_ns} ns is below the lower bound of "
            f"{limits.lower_bound_ns} ns ({limits.binding})"
        )


RESOURCES: Final[tuple[Callable[[Columns], None], ...]] = (cores, serial_links, lower_bounds)
