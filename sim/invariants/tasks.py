"""Every task ran once, on its device, for its duration."""

from __future__ import annotations

import numpy as np

from sim.base.arrays import UNSET, IntArray, most_by
from sim.graph.failures import ABORTED
from sim.invariants.checked_columns import Columns, refuse


def each_once(c: Columns) -> None:
    """Every op of every iteration has exactly one row; with control flow, it may have any number.

    If an op has failed, others may have none (`sim.invariants.failures`).
    """
    outside = (c.op < 0) | (c.op >= c.n) | (c.iteration < 0) | (c.iteration >= c.iterations)
    refuse(outside, lambda r: f"row {r} is op {c.op[r]} of iteration {c.iteration[r]}: no such task")
    if not c.static:
        return
    count = np.bincount(c.iteration * c.n + c.op, minlength=c.n * c.iterations)
    wrong = count > 1 if c.trace.failed else count != 1
    refuse(wrong, lambda k: f"{c.task_of(k)} ran {count[k]} times, not once")


def times_in_order(c: Columns) -> None:
    """0 ≤ ready ≤ issue ≤ start ≤ end, and rows are in start order."""
    refuse(c.ready < 0, lambda r: f"{c.task(r)} was ready at {c.ready[r]} ns, before time 0")
    refuse(
        c.issue < c.ready,
        lambda r: f"{c.task(r)} was issued at {c.issue[r]} ns, before it was ready at {c.ready[r]} ns",
    )
    refuse(c.start < c.issue, lambda r: f"{c.tell_start(r)}, before it was issued at {c.issue[r]} ns")
    refuse(c.end < c.start, lambda r: f"{c.tell_end(r)}, before it started at {c.start[r]} ns")
    refuse(np.diff(c.start) < 0, lambda r: f"{c.tell_start(r + 1)} and stands after a later one, {c.task(r)}")


def releases(c: Columns) -> None:
    """No task is ready before its op is released."""
    released = c.graph.column("release")
    refuse(
        c.live & (c.ready < released[c.op]),
        lambda r: f"{c.task(r)} was ready at {c.ready[r]} ns, before its release at {released[c.op[r]]} ns",
    )


def places(c: Columns) -> None:
    """A task runs on a lane of its device, issued by an issuer that serves it."""
    lanes = np.array(c.machine.first_stream)
    refuse(
        c.live & ~c.alone & ((c.stream < lanes[c.device]) | (c.stream >= lanes[c.device + 1])),
        lambda r: f"{c.task(r)} ran on lane {c.stream[r]}, which {c.device_name(c.device[r])} does not have",
    )
    n = len(c.machine.devices)
    pairs, pair = np.unique(c.issuer * n + c.device, return_inverse=True)
    by_pair = [(c.issuers[code // n], code % n) for code in pairs.tolist()]
    served = {(issuer.index, d) for issuer in c.issuers for d in issuer.devices}
    serves = np.array([(issuer.index, d) in served for issuer, d in by_pair], bool)
    own_lane = np.array([issuer.lane_on(d) for issuer, d in by_pair], np.int64)
    refuse(
        ~serves[pair],
        lambda r: (
            f"{c.task(r)} was issued by {c.issuer_name(r)}, who does not serve {c.device_name(c.device[r])}"
        ),
    )
    refuse(
        c.live & c.by_worker & ~c.alone & (own_lane[pair] != c.stream),
        lambda r: f"{c.issuer_name(r)} took {c.task(r)}, and {c.lane(r)} ran it",
    )


def durations(c: Columns) -> None:
    """A task takes its duration, unless its device divides its capacity; a dead one takes no time.

    Collectives that wait for others are checked elsewhere in `sim.invariants.tasks`, and tasks that were cut
    off in `sim.invariants.failures`. On a device that is slow at times a task takes correspondingly longer.
    """
    refuse(
        c.dead & c.live & ~c.graph.is_kind("send", "recv")[c.op],
        lambda r: f"{c.task(r)} is dead and took {c.end[r] - c.start[r]} ns",
    )
    fixed = np.array([device.keeps_durations for device in c.machine.devices])[c.device] | c.alone
    fixed &= ~c.job.meets[c.op] & ~c.cut
    ns, due, rows = c.end - c.start, c.trace.alone_ns.copy(), np.flatnonzero(fixed)
    due[rows] = _due_ends(c, rows, c.start[rows]) - c.start[rows]
    refuse(
        (fixed | ~c.live) & (ns != due),
        lambda r: f"{c.task(r)} took {ns[r]} ns on {c.device_name(c.device[r])}, where it takes {due[r]}",
    )


def _due_ends(c: Columns, rows: IntArray, start: IntArray) -> IntArray:
    """Return when tasks that begin at `start` and share nothing end: their devices may be slow meanwhile."""
    ends = start + c.trace.alone_ns[rows]
    if (conditions := c.trace.conditions) is not None:
        slow = np.isin(c.device[rows], list(conditions.paces)) & ~c.alone[rows]
        for k in np.flatnonzero(slow).tolist():
            ends[k] = conditions.end_ns(int(c.device[rows[k]]), int(start[k]), int(ends[k] - start[k]))
    return ends


# ----------------------------------------------------------------------------------------------------------
# Ties depend on what happened, not on how it was computed: rows are by start, round, lane and id.
#
# Tasks that start, and tasks that end, at one instant go in the order of rows. An instant has a second round
# only if something took no time: its consequences come after everything that began in the first:
#
#     instant 10      round 0   lane 0  a (5 ns)      lane 2  b (0 ns)
#                     round 1   lane 1  c, which reads b


def rows_are_in_order(c: Columns) -> None:
    """Within a round of an instant, rows are ordered by lane, then id."""
    start = c.moved["start_ns"]
    at_once = np.concatenate((c.start[c.start == c.end], start[start == c.moved["end_ns"]]))
    ids = c.trace.tasks["id"]
    back = (c.start[1:] == c.start[:-1]) & (
        (c.stream[1:] < c.stream[:-1]) | ((c.stream[1:] == c.stream[:-1]) & (ids[1:] < ids[:-1]))
    )
    refuse(
        back & ~np.isin(c.start[1:], at_once),
        lambda k: (
            f"{c.tell_start(k + 1)} on {c.lane(k + 1)}, after {c.task(k)} on {c.lane(k)}; "
            "at one instant tasks start in the order of lanes, unless something took no time"
        ),
    )


def transfers_are_in_order(c: Columns) -> None:
    """Transfers are ordered by start, and within a round of an instant by id."""
    start = c.moved["start_ns"]
    refuse(
        np.diff(start) < 0,
        lambda k: f"{c.transfer(k + 1)} began at {start[k + 1]} ns; its row comes after one of {start[k]} ns",
    )


# ----------------------------------------------------------------------------------------------------------
# Ranks meet: collectives of a communicator run in order, one at a time, and all members end together.


def one_at_a_time_in_line(c: Columns) -> None:
    """On a rank, calls of a communicator start in the order of their issue, one after the other."""
    met = c.trace.meetings
    if met is None:
        return
    following = met.row[met.ahead != UNSET]
    one = met.ahead[met.ahead != UNSET]
    refuse(
        (c.issue[following] < c.issue[one]) | (c.start[following] < c.end[one]),
        lambda k: (
            f"{c.tell_start(following[k])}, issued at {c.issue[following[k]]} ns; {c.task(one[k])}, "
            f"before it on its communicator, was issued at {c.issue[one[k]]} and ended at {c.end[one[k]]} ns"
        ),
    )


def members_fit(c: Columns) -> None:
    """A meeting is complete, of one kind and size, and of distinct ranks."""
    met, collectives = c.trace.meetings, c.job.collectives
    if met is None or collectives is None:
        return
    due = np.array([len(members) for members in collectives.members])[met.party]
    who = met.last
    complete = np.ones(len(met.party), bool)  # unless the step was aborted before all came
    complete[met.meeting[c.cut[met.row]]] = False
    refuse(complete & (met.size != due), lambda k: f"{c.task(who[k])} met {met.size[k]} ranks, not {due[k]}")
    first = np.unique(met.meeting, return_index=True)[1][met.meeting]
    other = collectives.signature[met.entry] != collectives.signature[met.entry[first]]
    refuse(other, lambda k: f"{c.task(met.row[k])} met {c.task(met.row[first[k]])}, of another kind")


def members_end_together(c: Columns) -> None:
    """A collective lasts, from the latest start of its members, as long as the longest of them takes."""
    met = c.trace.meetings
    if met is None:
        return
    n = len(met.party)
    due = most_by(met.meeting, _due_ends(c, met.row, met.met_ns[met.meeting]), n)
    fixed = np.zeros(n, dtype=bool)  # otherwise the network decides when they end
    fixed[met.meeting[~c.job.carried[met.entry]]] = True
    end = np.where(fixed, due, most_by(met.meeting, c.end[met.row], n))[met.meeting]
    refuse(
        (c.end[met.row] != end) & ~c.cut[met.row],
        lambda k: (
            f"{c.tell_end(met.row[k])}; its ranks met at {met.met_ns[met.meeting[k]]} ns, and it takes "
            f"{due[met.meeting[k]] - met.met_ns[met.meeting[k]]} ns"
        ),
    )


# ----------------------------------------------------------------------------------------------------------
# Pairs that meet by key have the same key, frame and iteration, and no Recv runs before it has its tensor.


def pairs_have_one_key(c: Columns) -> None:
    """Every Recv met one Send of its key, frame and iteration, and every Send at most one Recv."""
    if not c.keys.recvs:
        return
    n, transfers = len(c.op), c.moved
    recvs = np.flatnonzero(np.isin(c.op, list(c.keys.recvs)) & (c.trace.status != ABORTED))
    carried = np.isin(transfers["tensor"], list(c.sent))
    source, recv = c.trace.met_rows.T
    refuse(~np.isin(recvs, recv), lambda k: f"{c.tell_start(recvs[k])} and met no send")
    rows = np.concatenate((source, recv))
    repeated = np.ones(len(rows), dtype=bool)
    repeated[np.unique(rows, return_index=True)[1]] = False
    refuse(repeated, lambda k: f"{c.either(rows[k])} met twice")
    brought = np.isin(transfers["id"][carried], c.trace.met[:, 0])
    refuse(~brought, lambda k: f"{c.transfer(int(np.flatnonzero(carried)[k]))} was not asked for")

    keys = {**c.keys.sends, **c.keys.recvs}
    op = np.concatenate((c.op, c.graph.tensor_producer[transfers["tensor"]]))
    iteration = c.trace.of_rows("iteration")
    frame = c.trace.tasks.get("frame", np.zeros(n, np.int64))
    sender = source < n  # a transfer has no frame of its own in a trace
    wrong = np.array([keys.get(a) != keys.get(b) for a, b in zip(op[source], op[recv], strict=True)], bool)
    wrong |= iteration[source] != iteration[recv]
    wrong[sender] |= frame[source[sender]] != frame[recv[sender]]
    refuse(wrong, lambda k: f"{c.tell_start(recv[k])} and met {c.either(source[k])}, of another key")
    refuse(
        (c.start[recv] < c.row_end[source]) & c.live[recv] & (c.done[recv] | ~c.trace.at_once[recv]),
        lambda k: f"{c.tell_start(recv[k])}, before {c.tell_end(source[k])}",
    )
