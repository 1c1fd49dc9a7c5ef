"""Why was this device idle? Every idle nanosecond gets one reason.

A device is idle at time t because of one task: among the tasks that it has still to run, the one whose
inputs arrive first. Before they arrive, nothing could run, whatever the policy::

    idle     ├─────────────────────────────────────────────────────────────────────────┤
    its life │ dependency │ transfer │ issue, policy │ stream │ launch │ event, resources │ start
             │            └ its tensor is made       │        └ the lane is free          │
             │                       └ its data is there      │                           │
             └ the last producer runs                └ it is issued

dependency
    No task of the device has its inputs: the last producer (anywhere) has not ended.
host
    As dependency, on a device that a host launches on, if the last producer is an op of a host's CPU.
release
    Its inputs are there, but its release time has not come.
transfer
    The last input is made and travels, or waits for a link (or for the request for it,
    `sim.readiness.rendezvous`).
issue
    The inputs are there, and every issuer that serves the device is busy or blocked.
policy
    An issuer is free, and the policy holds the task back: head-of-line blocking, a window, an order.
stream
    It is issued and stands behind another task of its stream, which cannot start.
launch
    Launch latency, or the gap between two tasks of a stream.
event
    An event of another stream has to travel.
resources, memory
    It cannot start now: cores, SMs or resources of the machine are taken, or memory is full. The time that an
    issuer spends on calls for memory also counts as memory.
communicator
    It is a collective, and an earlier one of its communicator is under way.
unexplained
    In a recording it was late for no recorded reason (an op ``delay`` stands before it on its stream).
recovery
    A part of the machine failed, so nothing more ended here until the restart or the end.
late rank
    It is a collective that has started, and another rank has not. The device counts as idle until they have
    met.
finished
    The device has no more tasks.
unused
    It never had a task.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, IntArray
from sim.base.intervals import complement, union
from sim.explain.derived import DerivedColumns
from sim.record.record import RECORDED_REASONS, WAITS, Record, Wait

WORDS_OF_REASONS: Final[Mapping[str, tuple[str, str]]] = {
    "dependency": ("waiting for inputs", "{device} waits for inputs"),
    "transfer": ("waiting for transfers", "{device} waits for transfers"),
    "issue": ("waiting for the host", "the host launches too slowly for {device}: it is launch-bound"),
    "policy": ("held back by {policy}", "{policy} holds ready ops back"),
    "stream": ("queued on a stream", "ops queue on their streams"),
    "launch": ("launching", "launch latency is exposed"),
    "event": ("waiting for an event", "ops wait for events"),
    "resources": ("waiting for resources of the device", "ops wait for resources of the device"),
    "memory": ("waiting for memory", "ops wait for memory"),
    "communicator": ("queued on a communicator", "collectives queue on their communicators"),
    "late rank": ("waiting for a late rank", "collectives wait for late ranks"),
    "unexplained": ("idle, and nothing recorded says why", "more of a recording is unexplained"),
    "recovery": ("stopped by a failure", "parts of the machine fail"),
    "host": ("waiting for ops of the host", "{device} waits for ops of its host"),
    "release": ("waiting for a release", "ops of {device} are released late"),
    "finished": ("after its last op", "{device} has no work left"),
    "unused": ("unused", "{device} has no work"),
}
"""Reason → its name, and why a run with more of it is slower."""

REASONS: Final = tuple(WORDS_OF_REASONS)


_START_WAITS: Final = (Wait.EVENT, Wait.MEMORY, Wait.RESOURCES, Wait.COMMUNICATOR)
"""What may hold up a task that is issued, whose lane is free and whose launch has arrived."""

_SIMULATED_ONLY: Final = ("event", "policy", "resources")
"""Reasons for the rest of a wait in a simulated run; a recording has no evidence for them."""


Waits = Iterator[tuple[str, IntArray, IntArray]]
"""One after the other: a reason, and for each of some tasks since when it waits for it, and how long."""


class IdlePieces(NamedTuple):
    """Stretches of idle time with one reason each.

    A stretch in which the issuers were busy for part of the time appears twice, for ``issue`` and for
    ``policy``, with the same start; lengths add up to the idle time of the device.

    Attributes
    ----------
    device, start_ns, length_ns, reason : arrays of int64
        `reason` is an index into `REASONS`.
    row : array of int64
        The task that the device was idle for; -1 if it had finished, or had none.
    """

    device: IntArray
    start_ns: IntArray
    length_ns: IntArray
    reason: IntArray
    row: IntArray


def idle_reasons(run: Record | DerivedColumns) -> dict[str, dict[str, int]]:
    """Return, for each device, its idle ns by reason; they sum to its idle time.

    Reasons that never occurred are left out.

    Parameters
    ----------
    run : Trace or DerivedColumns
        The latter may be of a part of a run; for a lane, the idle time is the lane's own.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("ping")
    >>> _ = b.op("a", duration_ns=10, device="gpu0")
    >>> _ = b.op("b", duration_ns=7, device="gpu1", inputs=["a"])
    >>> trace = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1", issue_ns=2))), ReadyQueue())
    >>> idle_reasons(trace)
    {'gpu0': {'finished': 9}, 'gpu1': {'dependency': 10, 'issue': 2}}
    """
    f = DerivedColumns.of(run)
    pieces = idle_pieces(f)
    total = np.zeros((len(f.devices), len(REASONS)), np.int64)
    np.add.at(total, (pieces.device, pieces.reason), pieces.length_ns)
    return {
        device.name: {reason: ns for reason, ns in zip(REASONS, total[d].tolist(), strict=True) if ns}
        for d, device in enumerate(f.devices)
        if f.at_device in (None, d)
    }


def idle_pieces(f: DerivedColumns) -> IdlePieces:
    """Return every idle stretch of every device with its reason, by device and time.

    The ends of a part of a run cut stretches. A lane is idle because of its own tasks.
    """
    if f.idle_pieces is None:
        f.idle_pieces = _pieces(f)
    pieces: IdlePieces = f.idle_pieces
    return pieces


def _pieces(f: DerivedColumns) -> IdlePieces:
    tasks = np.flatnonzero(f.counts)
    device, start, end, row = _gaps(f, tasks)
    start, end = (np.clip(time, f.from_ns, f.to_ns) for time in (start, end))
    real = end > start if f.at_device is None else (end > start) & (device == f.at_device)
    device, start, end, row = device[real], start[real], end[real], row[real]
    no_task = row == UNSET
    used = np.isin(device, f.device[tasks])
    aborted = f.trace.attempts and f.trace.attempts[-1].trace.detection is not None
    after = "recovery" if aborted else "finished"
    parts = [
        _part(device, start, np.where(no_task & used, end - start, 0), after, row),
        _part(device, start, np.where(no_task & ~used, end - start, 0), "unused", row),
    ]
    device, start, end, row = device[~no_task], start[~no_task], end[~no_task], row[~no_task]
    parts += [_part(device, time, length, reason, row) for reason, time, length in waits(f, row, start, end)]
    pieces = IdlePieces(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    order = np.lexsort((pieces.reason, pieces.start_ns, pieces.device))
    return IdlePieces(*(column[order] for column in pieces))


def waits(f: DerivedColumns, row: IntArray, since: IntArray, end: IntArray) -> Waits:
    """Divide by reason the time in which tasks do not start, like `held_up`, but also before their data."""
    restart = np.clip(f.restarted[row], since, end)
    last = f.last_producer[row]
    produced = np.clip(np.where(last >= f.n, f.data[last], f.data[row]), restart, end)
    arrived = np.clip(f.data[row], produced, end)
    by_host = f.by_host[row]
    yield "recovery", since, restart - since
    yield "dependency", restart, np.where(by_host, 0, produced - restart)
    yield "host", restart, np.where(by_host, produced - restart, 0)
    yield "transfer", produced, arrived - produced
    yield from held_up(f, row, arrived, end)


def held_up(f: DerivedColumns, row: IntArray, since: IntArray, end: IntArray) -> Waits:
    """Divide by reason the time in which tasks have their data but do not start.

    Parameters
    ----------
    f : DerivedColumns
    row : array of int
        The tasks.
    since, end : array of int
        The time to divide, for each task.

    Yields
    ------
    reason, begin_ns, length_ns
        They follow one another; every bound is clipped to the time, so that the lengths add up.
    """
    worker, wait = f.by_worker[row], f.wait[row]
    cursor = since

    def translate(reason: str) -> str:
        return "unexplained" if f.recorded and reason in _SIMULATED_ONLY else reason

    def until(bound: IntArray) -> tuple[IntArray, IntArray]:
        nonlocal cursor
        begin, cursor = cursor, np.clip(bound, cursor, end)
        return begin, cursor - begin

    yield "release", *until(f.released[row])
    begin, length = until(f.taken[row])
    busy = f.issuers_busy.between(begin, begin + length, f.group[row])
    yield "issue", begin, busy
    yield translate("policy"), begin, length - busy
    called = f.taken[row] + f.calls[row]
    yield "memory", *until(called)
    begin, length = until(np.where(worker, called + f.cost[row], f.issue[row]))
    starved = ~worker & (wait == Wait.MEMORY)  # taken, but not issued before its memory was there
    yield "issue", begin, np.where(starved, 0, length)
    yield "memory", begin, np.where(starved, length, 0)
    yield "stream", *until(np.where(worker, 0, f.lane_end[row]))
    yield "launch", *until(np.where(worker, 0, f.launch_end[row]))
    begin, length = until(f.start[row])
    reason = np.where(worker, Wait.RESOURCES, Wait.EVENT)
    reason = np.where(np.isin(wait, RECORDED_REASONS), wait, reason)
    for code in _START_WAITS:
        yield translate(WAITS[code]), begin, np.where(reason == code, length, 0)
    begin, length = until(end)
    delay = f.trace.is_delay[row]
    yield "late rank", begin, np.where(delay, 0, length)
    yield "unexplained", begin, np.where(delay, length, 0)


def _part(device: IntArray, start: IntArray, length: IntArray, reason: str, row: IntArray) -> IdlePieces:
    some = length > 0
    code = np.full(np.count_nonzero(some), REASONS.index(reason))
    return IdlePieces(device[some], start[some], length[some], code, row[some])


def _gaps(f: DerivedColumns, tasks: IntArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return (device, start, end, row) of every idle gap: `row` is the task that could run first, or -1.

    Only `tasks` count. A task that takes no time ends one gap and begins another.
    """
    makespan = f.trace.makespan_ns
    spacing, of_task = makespan + 1, f.device[tasks]
    occupied, from_ns = f.trace.occupied_until_ns[tasks], f.begins[tasks]
    idle = complement(union(from_ns, occupied, of_task), makespan, len(f.devices))
    start, end = idle.start + idle.group * spacing, idle.end + idle.group * spacing
    instant = np.flatnonzero(occupied == from_ns)
    split = from_ns[instant] + of_task[instant] * spacing
    gap = np.searchsorted(start, split, side="left") - 1  # the last gap that begins before it
    splits = gap >= 0
    splits[splits] = split[splits] < end[gap[splits]]
    start, end = np.sort(np.append(start, split[splits])), np.sort(np.append(end, split[splits]))
    device = start // spacing

    by_device = np.argsort(of_task, kind="stable")  # rows are in start order
    if f.meetings is not None or f.trace.is_delay.any():
        by_device = np.lexsort((from_ns, of_task))
    begins = from_ns[by_device] + of_task[by_device] * spacing
    first = np.searchsorted(begins, end, side="left")  # the next task to start
    # Among it and all later ones, which had its data first? Devices do not mix: later ones have larger keys.
    by_device = tasks[by_device]
    key = (np.maximum(f.data[: f.n], f.released)[by_device] + f.device[by_device] * spacing)[::-1]
    record = key == np.minimum.accumulate(key)
    best = np.maximum.accumulate(np.where(record, np.arange(len(key)), 0))[::-1]
    chosen = np.append(by_device[len(key) - 1 - best], UNSET)[first]
    # UNSET, no task, reads the entry that is appended: it is on no device.
    chosen = np.where(np.append(f.device, UNSET)[chosen] == device, chosen, UNSET)
    return device, start - device * spacing, end - device * spacing, chosen


# ----------------------------------------------------------------------------------------------------------
# The column `wait` in its final form: what held a task back between ready and start.
#
# The engine knows that a task was not taken at once. Whether its issuers were busy or the policy held it back
# can be determined only after the run.


def final_waits(run: Record | DerivedColumns) -> IntArray:
    """Return the code of `sim.record.record.Wait` of every task.

    ``ISSUER`` becomes ``POLICY`` if some issuer of the group was free for more than half of the time from
    ready until the task was taken. The cost of issuing that a worker pays counts as ``ISSUER``.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.program_order import InOrder
    >>> b = GraphBuilder("head of line")
    >>> _ = b.op("a", duration_ns=10, device="gpu0")
    >>> _ = b.op("b", duration_ns=10, device="gpu1", inputs=["a"])
    >>> _ = b.op("c", duration_ns=10, device="gpu1")
    >>> trace = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), InOrder())
    >>> trace.tasks["op"].tolist(), final_waits(trace).tolist(), Wait.POLICY
    ([0, 1, 2], [0, 0, 2], 2)
    """
    f = DerivedColumns.of(run)
    by_issuer = (f.wait == Wait.ISSUER) | (f.by_worker & (f.wait == Wait.STREAM))
    waited = f.taken - f.ready
    busy = f.issuers_busy.between(f.ready, f.taken, f.group)
    held_back = (waited > 0) & (2 * busy < waited)
    return np.where(by_issuer, np.where(held_back, Wait.POLICY, Wait.ISSUER), f.wait)
