"""No resource is used twice at once, and nothing is faster than it can be."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sim.base.arrays import UNSET, IntArray
from sim.base.errors import InvariantError
from sim.base.intervals import most_at_once, union
from sim.explain.bounds import bounds, least_cores_of_ops, least_durations_ns
from sim.explain.communication import traffic_on_links
from sim.explain.memory_use import lifetimes
from sim.invariants.checked_columns import Columns, neighbours, refuse
from sim.job.transfers import host_groups
from sim.machine.device import Device


def cores(c: Columns) -> None:
    """No more cores of a CPU are in use than it has.

    A CPU that slices time may run more ops than it has cores for, each slower: then its completed work
    (in core ns) is at most its cores times its busy time. The cores of a collective, which mostly waits, are
    up to the device; what a task had done that was cut off is unknown.
    """
    of_op = least_cores_of_ops(c.job)
    for d, device in enumerate(c.machine.devices):
        if not device.cores:
            continue
        rows = np.flatnonzero((c.device == d) & ~c.alone & ~c.cut & ~c.job.meets[c.op])
        start, end, need = c.start[rows], c.end[rows], of_op[c.op[rows]]
        alone_ns = c.trace.alone_ns[rows]
        if (end - start > alone_ns).any():
            work = int((np.minimum(alone_ns, end - start) * need).sum())
            busy = int(union(start, end, np.zeros(len(rows), np.int64)).lengths(1)[0])
            if work > device.cores * busy:
                raise InvariantError(
                    f"{device.name} did {work} core ns of work in {busy} ns on {device.cores} cores"
                )
            continue
        used, k = most_at_once(start, end, need)
        if used > device.cores:
            raise InvariantError(
                f"{c.tell_start(rows[k])}; then {used} of {device.cores} cores of {device.name} are in use"
            )


def named_resources(c: Columns) -> None:
    """No more of a resource of the machine is taken than there is."""
    needs = c.graph.attribute("resources")
    for name, capacity in c.machine.resources.items():
        need = np.zeros(c.n, np.int64)
        for op, n in needs.items():
            need[op] = n.get(name, 0)
        rows = np.flatnonzero((need[c.op] > 0) & c.live)
        used, k = most_at_once(c.start[rows], c.end[rows], need[c.op[rows]])
        if used > capacity:
            raise InvariantError(f"{c.tell_start(rows[k])}; then {used} of {capacity} {name} are in use")


def serial_links(c: Columns) -> None:
    """On a link that is not shared, a transfer or message holds it from its start to its end."""
    moved = traffic_on_links(c.trace)
    link = np.array(c.machine.channels, np.int64)[moved.link]  # a medium is held as one
    serial = np.array([entry.sharing == "serial" for entry in c.machine.links], bool)[link]
    if not c.static:
        serial &= moved.end_ns > moved.start_ns  # dead transfers do not hold it
    row, link, start, end = moved.row[serial], link[serial], moved.start_ns[serial], moved.end_ns[serial]
    first, second = neighbours(np.lexsort((row, end, start, link)), link)

    def tell_carried(k: int) -> str:
        return c.transfer(row[k]) if row[k] < len(c.moved["tensor"]) else "a message of a collective"

    refuse(
        start[second] < end[first],
        lambda k: (
            f"{tell_carried(second[k])} started at {start[second[k]]} ns on link "
            f"{c.machine.links[link[first[k]]].name}, "
            f"which {tell_carried(first[k])} held until {end[first[k]]} ns"
        ),
    )


def host_threads(c: Columns) -> None:
    """Threads that copy pageable memory do nothing else: a group does no more at once than it has issuers."""
    copier = host_groups(c.job, c.moved["tensor"], c.moved["source"], c.moved["destination"])
    if (copier < 0).all():
        return
    group_of = np.array([issuer.group for issuer in c.issuers])
    for group in np.unique(copier[copier >= 0]).tolist():
        copied = np.flatnonzero(copier == group)
        rows = np.flatnonzero((group_of[c.issuer] == group) & c.live)
        begin = np.where(c.by_worker, c.issue, c.issue - c.cost)[rows]
        end = np.where(c.by_worker & ~c.alone, c.end, c.issue)[rows]
        start = np.concatenate((c.moved["start_ns"][copied], begin))
        finish = np.concatenate((c.moved["end_ns"][copied], end))
        busiest, k = most_at_once(start, finish, np.ones(len(start), np.int64))
        if busiest > int((group_of == group).sum()):
            subject = c.transfer(copied[k]) if k < len(copied) else c.task(int(rows[k - len(copied)]))
            raise InvariantError(
                f"{subject} began at {start[k]} ns; then its host does {busiest} things at once, copies of "
                f"pageable memory among them, with {(group_of == group).sum()} threads"
            )


def lower_bounds(c: Columns) -> None:
    """The makespan is at least every lower bound, for the actual durations."""
    fastest = least_durations_ns(c.trace).copy()
    live = np.flatnonzero(c.live)
    np.minimum.at(fastest, c.op[live], (c.end - c.start)[live])  # if the device decides the durations
    limits = bounds(c.trace, fastest)
    if c.trace.makespan_ns < limits.lower_bound_ns:
        raise InvariantError(
            f"the makespan of {c.trace.makespan_ns} ns is below the lower bound of "
            f"{limits.lower_bound_ns} ns ({limits.binding})"
        )


def memory(c: Columns) -> None:
    """Bytes in use are never below 0 nor above capacity, nor are reserved ones; only resident ones remain.

    (An allocator with a static plan keeps parameters apart: then nothing remains.)
    """
    if c.trace.memory is None:
        return
    lives = lifetimes(c.trace)
    for d, device in enumerate(c.machine.devices):
        resident = int(lives.nbytes[(lives.device == d) & (lives.iteration == UNSET)].sum())
        _memory_of(c, device, c.trace.log_of(d), resident)


def _memory_of(c: Columns, device: Device, log: Mapping[str, IntArray], resident: int) -> None:
    time_ns, in_use, reserved = log["time_ns"], log["in_use"], log["reserved"]
    refuse(
        in_use < 0, lambda k: f"{device.name} had given back more bytes than were taken at {time_ns[k]} ns"
    )
    if device.memory_bytes is not None:
        refuse(
            np.maximum(in_use, reserved) > device.memory_bytes,
            lambda k: (
                f"{device.name} held more bytes than it has at {time_ns[k]} ns: "
                f"{in_use[k]} in use, {reserved[k]} reserved"
            ),
        )
    final = int(log["requested"][-1:].sum())
    # A run that takes no time holds nothing for long
    if final not in (resident, 0) and c.trace.makespan_ns:
        raise InvariantError(f"{final} bytes of {device.name} were left at the end; {resident} are resident")
    # Allocators round up: resident tensors hold as much as they were given at the beginning.
    blocks = int(log["change"][log["iteration"] == UNSET].sum())
    final = int(log["change"].sum())
    if final not in (blocks, 0):
        raise InvariantError(
            f"{final} bytes of {device.name}, rounded up, were left at the end; {blocks} are resident"
        )


# ----------------------------------------------------------------------------------------------------------
# Streams start their tasks in order, one at a time; issuers do one thing at a time and pay for it.


def one_at_a_time(c: Columns) -> None:
    """Tasks of a lane start in issue order, each after the previous one and the gap between them."""
    live = np.flatnonzero(c.live & ~c.alone)  # rows are in start order
    one, following = neighbours(live[np.argsort(c.stream[live], kind="stable")], c.stream)
    refuse(
        c.issue[following] < c.issue[one],
        lambda k: (
            f"{c.tell_start(following[k])} on {c.lane(following[k])} after {c.task(one[k])}, "
            f"and was issued before it, at {c.issue[following[k]]} ns"
        ),
    )
    gap = c.job.gap_ns[c.op[one]]
    refuse(
        c.start[following] < c.end[one] + gap,
        lambda k: (
            f"{c.tell_start(following[k])} on {c.lane(following[k])}, where {c.tell_end(one[k])}"
            + (f" and a gap of {gap[k]} ns is due" if gap[k] else "")
        ),
    )


def launches_take_time(c: Columns) -> None:
    """A launch takes at least its latency; a worker pays for issuing before it executes."""
    latency = np.array([d.launch_latency_ns for d in c.machine.devices])[c.device]
    minimum = np.where(c.live & ~c.alone, np.where(c.by_worker, c.cost, latency), 0)
    refuse(
        c.start < c.issue + minimum,
        lambda r: f"{c.tell_start(r)}, issued at {c.issue[r]} ns; launching it takes {minimum[r]} ns",
    )


def issuers_do_one_thing_at_a_time(c: Columns) -> None:
    """An issuer pays for every launch, executes a worker's tasks, and never does two things at once.

    A task that goes on without it takes only the cost of issuing.
    """
    launch = c.live & ~c.by_worker
    refuse(
        launch & (c.issue < c.ready + c.cost),
        lambda r: (
            f"{c.task(r)} was ready at {c.ready[r]} ns and issued at {c.issue[r]} ns; "
            f"issuing it takes {c.cost[r]} ns"
        ),
    )
    begin = np.where(launch, c.issue - c.cost, c.issue)
    end = np.where(launch, c.issue + c.record, np.where(c.alone, c.issue + c.cost, c.end))
    one, following = neighbours(np.lexsort((end, begin, c.issuer)), c.issuer)
    refuse(
        begin[following] < end[one],
        lambda k: (
            f"{c.issuer_name(one[k])} was busy with {c.task(one[k])} until {end[one[k]]} ns, and "
            f"began with {c.task(following[k])} at {begin[following[k]]} ns"
        ),
    )


def launch_queues_hold_what_they_can(c: Columns) -> None:
    """A device has no more outstanding launches than its queue is deep; tasks off any stream do not count."""
    for d, device in enumerate(c.machine.devices):
        if device.queue_depth is None or device.workers:
            continue
        rows = np.flatnonzero(c.live & ~c.alone & (c.device == d))
        rows = rows[np.argsort(c.issue[rows], kind="stable")]
        ended = np.searchsorted(np.sort(c.end[rows]), c.issue[rows], side="right")
        outstanding = np.searchsorted(c.issue[rows], c.issue[rows], side="right") - ended
        k = int(outstanding.argmax()) if len(rows) else 0
        if len(rows) and outstanding[k] > device.queue_depth:
            raise InvariantError(
                f"{outstanding[k]} launches were outstanding when {c.task(rows[k])} was issued at "
                f"{c.issue[rows[k]]} ns; the queue of {device.name} holds fewer"
            )
