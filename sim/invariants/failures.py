"""Failing ops prevent what needs them from running, and nothing else except as the policy says.

`sim.invariants.data` checks that no consumer of a failed op ran, as its input was never made. This module
checks the converse: every task without a row has a reason, and every reason leads back to a failed op::

    never ran   because   an input was never made or sent, or an op that it follows never ended well
                          the issuers of its group have stopped
                          it is a Recv, and nothing was sent
                          it stands, in a program, behind an op that never ran for one of these reasons
                          it is of a call that comes after one that is not over (runs in turn)
    never sent  because   the tensor was never made
                          it was made when its step had been aborted
                          the host that has to copy it has stopped
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Any

import numpy as np

from sim.base.arrays import UNSET, BoolArray, Codes, IntArray, least_by
from sim.base.errors import InvariantError
from sim.faults import Failed
from sim.graph.failures import ABORTED, DONE, FAILED
from sim.invariants.checked_columns import Columns, refuse
from sim.invariants.data import (
    NEVER,
    control_rows,
    moved_keys,
    needed_transfers,
    never_sent,
    reads_of,
    suppliers,
    transfer_key,
    transfer_of_key,
)
from sim.job.transfers import host_groups
from sim.record.record import Attempt, Record


def decided_before(c: Columns) -> None:
    """The ops that fail are those decided before time 0; of the rest, only Sends and Recvs may abort."""
    failures = c.job.failures
    if failures is None:
        refuse(~c.done & ~c.cut, lambda r: f"{c.task(r)} did not end well, and no op may fail")
        return
    frames = [""] * len(c.op)
    if c.trace.frames:
        frames = [c.trace.frames[code] for code in c.trace.tasks["frame"].tolist()]
    due = np.array(
        [failures.fails(*task) for task in zip(c.op.tolist(), c.iteration.tolist(), frames, strict=True)],
        bool,
    )
    refuse((c.trace.status == FAILED) & ~(due & ~c.dead), lambda r: f"{c.task(r)} failed, and was not to")
    refuse(due & ~c.dead & (c.trace.status == DONE), lambda r: f"{c.task(r)} was to fail, and did not")
    transmits = np.isin(c.op, [*c.keys.sends, *c.keys.recvs])
    since = _aborted_since(c)[_step_of(c, c.op, c.iteration)]
    refuse(
        (c.trace.status == ABORTED) & (~transmits | (c.end < since)),
        lambda r: f"{c.task(r)} was aborted at {c.end[r]} ns; no failure before then does that",
    )


def stopped_take_nothing(c: Columns) -> None:
    """Stopped issuers take nothing more; launches that may have been parked are not checked."""
    launched = c.live & ~c.by_worker
    begin = np.where(launched, c.issue - c.cost, c.issue)
    since = _stopped_since(c)[c.job.group_of[c.op]]
    parks = np.array([device.queue_depth is not None for device in c.machine.devices])[c.device] & launched
    refuse(
        ~parks & (begin > since),
        lambda r: f"{c.issuer_name(r)} took {c.task(r)} at {begin[r]} ns, and has stopped at {since[r]} ns",
    )


def aborted_steps_send_nothing(c: Columns) -> None:
    """In an aborted step no transfer begins, and no Recv gets its tensor."""
    moved, since = c.moved, _aborted_since(c)
    made_by = c.graph.tensor_producer[moved["tensor"]]
    produced = np.flatnonzero(made_by != UNSET)
    late = moved["ready_ns"][produced] > since[_step_of(c, made_by[produced], moved["iteration"][produced])]
    refuse(late, lambda k: f"{c.transfer(produced[k])} was ready when its step had been aborted")
    source, recv = c.trace.met_rows.T
    by_op = source < len(c.op)
    source, recv = source[by_op], recv[by_op]
    offered = np.where(c.by_worker[source], c.end[source], c.issue[source])
    refuse(
        offered > since[_step_of(c, c.op[source], c.iteration[source])],
        lambda k: f"{c.task(recv[k])} received what was sent when its step had been aborted",
    )


def calls_in_turn(c: Columns) -> None:
    """If runs are calls, none begins before the previous one is over, and none after one that failed."""
    if not c.trace.in_turn:
        return
    step = _step_of(c, c.op, c.iteration)
    end_ns = np.zeros((_sessions(c).max(initial=-1) + 1, c.iterations), np.int64)
    np.maximum.at(end_ns.ravel(), step, np.where(c.trace.status == FAILED, c.trace.makespan_ns + 1, c.end))
    before = np.maximum.accumulate(np.pad(end_ns, ((0, 0), (1, 0))), axis=1)[:, :-1].ravel()
    refuse(
        c.ready < before[step],
        lambda r: f"{c.task(r)} was ready at {c.ready[r]} ns, before the call before its own was over",
    )


def queued_work_runs(c: Columns) -> None:
    """A task that never ran lacks an input, or no issuer is left to take it."""
    if not c.static or not c.trace.failed or c.trace.detection is not None:
        return
    missing = c.row_of == UNSET
    excused = _lacks_input(c)
    first, second = control_rows(c)
    excused[second[first == UNSET]] = True
    stopped: BoolArray = np.asarray(_stopped_since(c) <= c.trace.makespan_ns)
    excused |= np.tile(stopped[c.job.group_of], c.iterations)
    asks = np.zeros(c.n, bool)
    asks[list(c.keys.recvs)] = True
    excused |= np.tile(asks, c.iterations) & ~np.isin(_ids(c), c.trace.met[:, 1])
    not_begun = _never_begun(c)
    excused |= not_begun.ravel()
    if c.trace.on_failure == "stop-group":
        for program in c.job.programs:
            places = (np.arange(c.iterations)[:, None] * c.n + np.array(program, np.int64)).ravel()
            excused[places] |= np.cumsum((missing & excused)[places]) > 0
    refuse(missing & ~excused, lambda k: f"{c.task_of(k)} never ran, and nothing kept it from running")
    key = needed_transfers(c)
    iteration, tensor, destination = transfer_of_key(c, key)
    producer = c.graph.tensor_producer[tensor]
    producer_row = np.where(producer == UNSET, UNSET, c.done_row_of[iteration * c.n + producer])
    made_ns = np.where(producer_row == UNSET, 0, c.end[producer_row])
    late = (producer_row != UNSET) & (made_ns >= _aborted_since(c)[_step_of(c, producer, iteration)])
    home = np.where(producer == UNSET, destination, c.job.device_of[producer])
    copier = host_groups(c.job, tensor, home, destination)
    no_host = (copier != UNSET) & stopped[copier]
    reads = reads_of(c)
    reads = reads.where(reads.crosses)
    step, read = np.nonzero(~not_begun[:, reads.reader])
    needed = transfer_key(c, reads.tensor[read], c.job.device_of[reads.reader[read]], step)
    gone = np.where(producer == UNSET, ~np.isin(key, needed), producer_row == UNSET)
    excused = np.isin(key, moved_keys(c)) | gone | late | no_host
    refuse(~excused, lambda k: never_sent(c, int(key[k])))


def _lacks_input(c: Columns) -> BoolArray:
    """Return which tasks lack an input for good; a non-strict task, all of its inputs."""
    reader, supplier = suppliers(c, reads_of(c))
    never = supplier == NEVER
    lacks = np.zeros(c.n * c.iterations, bool)
    lacks[reader[never]] = True
    has = np.zeros_like(lacks)
    has[reader[~never]] = True
    return lacks & ~(has & np.tile(c.non_strict, c.iterations))


def _ids(c: Columns) -> IntArray:
    """Return the id of each task."""
    ids = np.arange(c.iterations)[:, None] * c.trace.flow.n_nodes + np.arange(c.n)
    return ids.ravel()


# -- times of failures -------------------------------------------------------------------------------


def _sessions(c: Columns) -> IntArray:
    """Return a number for the session of each op."""
    return Codes[Any]().of(map(c.graph.attribute("session").get, range(c.n)))


def _step_of(c: Columns, op: IntArray, iteration: IntArray) -> IntArray:
    """Return a number for each op's step: its session and iteration."""
    return _sessions(c)[op] * c.iterations + iteration


def _aborted_since(c: Columns) -> IntArray:
    """Return when each step was aborted; a time after the end: never."""
    step = _step_of(c, c.op, c.iteration)
    return _first_failure(c, step, c.n * c.iterations, c.trace.on_failure == "abort")


def _stopped_since(c: Columns) -> IntArray:
    """Return when each group of issuers stopped; a time after the end: never."""
    n_groups, reaction = c.job.n_groups, c.trace.on_failure
    if reaction == "stop-machine":
        process = np.zeros(c.n, np.int64) if c.job.process_of is None else c.job.process_of
        stopped = _first_failure(c, process[c.op], c.n, True)[process]
        return least_by(c.job.group_of, stopped, n_groups, c.trace.makespan_ns + 1)
    return _first_failure(c, c.job.group_of[c.op], n_groups, reaction == "stop-group")


def _first_failure(c: Columns, key: IntArray, n: int, counts: bool) -> IntArray:
    failed = np.flatnonzero((c.trace.status == FAILED) & counts)
    return least_by(key[failed], c.end[failed], n, c.trace.makespan_ns + 1)


def _never_begun(c: Columns) -> BoolArray:
    """Return, per iteration, the ops whose call never began because the previous one was not over."""
    done, session = c.done_row_of.reshape(c.iterations, c.n) != UNSET, _sessions(c)
    never = np.zeros((c.iterations, c.n), bool)
    if c.trace.in_turn:
        for session_id in np.unique(session).tolist():
            members = session == session_id
            complete = np.logical_and.accumulate(done[:, members].all(axis=1))
            never[1:, members] = ~complete[:-1, None]
    return never


# ----------------------------------------------------------------------------------------------------------
# Parts of the machine fail as planned, nothing goes on there, and the step ends upon a detection.
#
# Each attempt (`sim.record.record.Attempt`) is checked by itself, as a run of its own. The checks here are
# for a single attempt, and for the composition of the whole run.


def failures_come_as_foreseen(c: Columns) -> None:
    """The parts that had failed when an attempt ended are those that its conditions say."""
    conditions, end_ns = c.trace.conditions, c.trace.makespan_ns
    if conditions is None:
        return
    due = list(takewhile(lambda failed: failed.time_ns < end_ns, conditions.failures()))
    reported = [failed for failed in c.trace.broken if failed.time_ns < end_ns]
    if due != reported:
        raise InvariantError(f"{len(reported)} parts failed before {end_ns} ns, and {len(due)} were to")


def nothing_goes_on_where_a_part_failed(c: Columns) -> None:
    """On a failed device nothing starts or ends any more; running tasks are cut off at that instant."""
    failed_ns = _failed_ns(c)[c.device]
    refuse(
        c.start >= failed_ns, lambda r: f"{c.tell_start(r)}, and its device had failed at {failed_ns[r]} ns"
    )
    refuse(c.end > failed_ns, lambda r: f"{c.tell_end(r)}, and its device had failed at {failed_ns[r]} ns")
    if c.trace.detection is not None:
        refuse(
            (c.trace.status == FAILED) & (c.end != failed_ns),
            lambda r: f"{c.tell_end(r)} as failed; its device failed at {failed_ns[r]} ns",
        )
    transfers = c.moved
    first = np.minimum(_failed_ns(c)[transfers["source"]], _failed_ns(c)[transfers["destination"]])
    refuse(
        transfers["end_ns"] > first,
        lambda k: (
            f"{c.transfer(k)} arrived at {transfers['end_ns'][k]} ns; one of its ends failed at {first[k]} ns"
        ),
    )


def an_aborted_step_ends_at_once(c: Columns) -> None:
    """When a step is aborted, all running tasks are cut off; no detection comes before a failure."""
    detection = c.trace.detection
    if detection is None:
        return
    at_ns = detection.time_ns
    aborted = c.trace.status == ABORTED
    refuse(aborted & (c.end != at_ns), lambda r: f"{c.tell_end(r)} as aborted; the step was at {at_ns} ns")
    refuse(c.start > at_ns, lambda r: f"{c.tell_start(r)}, after its step was aborted at {at_ns} ns")
    refuse(c.end > at_ns, lambda r: f"{c.tell_end(r)}, after its step was aborted at {at_ns} ns")
    if not any(_match_detections(c)):
        raise InvariantError(
            f"{detection.by} noticed by {detection.how} at {at_ns} ns, and nothing was wrong then"
        )


def _match_detections(c: Columns) -> Iterator[bool]:
    """Yield, for each failure that could have been noticed, whether it matches the detection and its time."""
    detection, conditions = c.trace.detection, c.trace.conditions
    assert detection is not None
    assert conditions is not None
    faults, at_ns = conditions.faults, detection.time_ns
    if detection.how == "timeout":
        meets, timeout_ns = c.job.meets[c.op], faults.collective_timeout_ns
        rows, to_meet = np.flatnonzero(meets & c.cut), c.iterations * c.job.meets.sum()
        if timeout_ns is not None:  # one was launched then; of one that has not begun no row tells when
            yield bool((c.issue[rows] == at_ns - timeout_ns).any()) or not len(rows) or meets.sum() < to_meet
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


def _failed_ns(c: Columns) -> IntArray:
    """Return when each device failed; a time after the end: it has not."""
    first = np.full(len(c.machine.devices), c.trace.makespan_ns + 1)
    for failed in c.trace.broken:
        for device in _devices(c, failed):
            first[device] = min(first[device], failed.time_ns)
    return first


def _devices(c: Columns, failed: Failed) -> list[int]:
    if failed.kind == "worker":
        return [c.machine.device_index(name) for name in c.machine.hosts_in_order[failed.part].serves]
    return [failed.part] if failed.kind == "device" else []


def check_attempts(trace: Record, check: Callable[[Record], None]) -> None:
    """Check each attempt, that they follow one another, and that together they have the trace's rows."""
    before: Attempt | None = None
    rows = 0
    for attempt in trace.attempts:
        check(attempt.trace)
        conditions = attempt.trace.conditions
        if conditions is None or conditions.from_ns != attempt.begin_ns:
            raise InvariantError(f"the attempt at {attempt.begin_ns} ns met the conditions of another time")
        if before is not None:
            _follows(before, attempt)
        n = len(attempt.trace)
        for name in ("start_ns", "end_ns"):
            if (trace.tasks[name][rows : rows + n] != attempt.trace.tasks[name] + attempt.begin_ns).any():
                raise InvariantError(
                    f"the rows of the attempt at {attempt.begin_ns} ns differ from its own in {name}"
                )
        rows += n
        before = attempt
    if rows != len(trace):
        raise InvariantError(f"the attempts have {rows} rows, and the trace {len(trace)}")


def _follows(before: Attempt, after: Attempt) -> None:
    """Raise on an attempt that begins too early, or with a step for which there is no checkpoint."""
    conditions, detection = before.trace.conditions, before.trace.detection
    if conditions is None or detection is None:
        raise InvariantError("there is an attempt after one in which no step was aborted")
    faults = conditions.faults
    restore_ns = faults.restore_ns if after.step else 0
    least_ns = before.begin_ns + detection.time_ns + (faults.restart_ns or 0) + restore_ns
    if after.begin_ns < least_ns:
        raise InvariantError(f"an attempt began at {after.begin_ns} ns; starting took until {least_ns} ns")
    every, reached = faults.every_steps, before.step + before.done
    if after.step != (0 if every is None else reached - reached % every):
        raise InvariantError(f"an attempt began with step {after.step}, and {reached} steps were done before")
    if after.run != before.run + before.trace.job.iterations:
        raise InvariantError(f"an attempt began with iteration {after.run}, which is not the next one")
