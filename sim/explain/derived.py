"""Derived columns of a trace that all explanations of "why not earlier?" use, one array per fact.

The life of a task, divided as the explanations need it, for a launched task and for one of a worker
(`data` is the end of its last producer; it can lie after the issue if streams keep the order)::

    launched   data ──issuer──► taken ──calls, cost──► issued ──stream──► lane free ──launch, gap──► ──event,
               resources, communicator──► start
    worker     data ──issuer──► taken ──calls, cost──► ──resources, memory──► start

Calls are those of an allocator (``lifetime: issue``), cost is that of issuing. A collective that has started
then waits for other ranks before its work begins.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from copy import copy
from functools import cached_property
from typing import Any, Final

import numpy as np

from sim.base.arrays import UNSET, BoolArray, Csr, IntArray, group_pairs, most_by
from sim.base.errors import InputError
from sim.base.intervals import Cover, overlap_of_at_least
from sim.base.units import format_duration
from sim.graph.failures import ABORTED
from sim.graph.frames import frame_structure
from sim.job.costs import issue_costs_ns
from sim.job.transfers import awaited_ops, host_groups
from sim.readiness.eligibility import parts
from sim.record.dependencies import TaskEdges, dependencies, waited_for
from sim.record.record import Record, Wait

# ----------------------------------------------------------------------------------------------------------
# Which iteration of a loop had to be over before another could begin.
#
# A loop has at most ``parallel_iterations`` (p) under way, so a token that enters iteration i + p waits until
# all of iteration i has ended, whether or not it reads anything from there:
#
#     p = 1    slow 0 ─────────────────┐
#              count 0 ──► next ───────┴─► merge 1        ready when `slow 0` has ended, not when `next` has
#
# The trace gives the time of entry; the task of iteration i, or an earlier one, that ended last at that time
# let it in. Each part of a graph that keys divide has a window of its own (`sim.readiness.eligibility`).

_LOOP_LEVEL: Final = re.compile(r"(.+?):(\d+)(?:/|$)")


def with_iterations(trace: Record, edges: TaskEdges) -> TaskEdges:
    """Return `edges` plus one for each task that a full window of iterations held back.

    Parameters
    ----------
    trace : Trace
    edges : TaskEdges
        Edges of this trace.
    """
    if not trace.frames:
        return edges
    ends = trace.of_rows("end_ns")
    fed = most_by(edges.consumer, ends[edges.producer], len(ends))
    ready, frame = trace.tasks["ready_ns"], trace.tasks["frame"]
    path = [_levels(text) for text in trace.frames]
    delayed = [row for row in np.flatnonzero(ready > fed[: len(trace)]).tolist() if path[frame[row]]]
    if not delayed:
        return edges
    ready_times = set(ready[delayed].tolist())
    ended = np.flatnonzero(np.isin(trace.tasks["end_ns"], sorted(ready_times)))
    by_end = group_pairs(zip(trace.tasks["end_ns"][ended].tolist(), ended.tolist(), strict=True))
    op, repetition = trace.tasks["op"], trace.tasks["iteration"]
    part, structure = np.array(parts(trace.job))[op], frame_structure(trace.job.graph)
    producer, consumer = [], []
    for row in delayed:
        current, window = path[frame[row]], structure.parallel_iterations[structure.frame_of[op[row]]]
        before = [
            other
            for other in by_end.get(int(ready[row]), ())
            if other < row
            and repetition[other] == repetition[row]
            and part[other] == part[row]
            and _is_earlier(path[frame[other]], current, window)
        ]
        if before:
            producer.append(before[-1])
            consumer.append(row)
    new = (np.array(producer, np.int64), np.array(consumer, np.int64), np.full(len(producer), UNSET))
    return TaskEdges(*(np.concatenate(pair) for pair in zip(edges, new, strict=True)))


def _levels(frame: str) -> tuple[tuple[str, int], ...]:
    """Return the loops and iterations of a frame, outermost first.

    Examples
    --------
    >>> _levels("model/outer:2/inner:0")
    (('model/outer', 2), ('inner', 0))
    """
    return tuple((name, int(number)) for name, number in _LOOP_LEVEL.findall(frame))


def _is_earlier(one: tuple[tuple[str, int], ...], other: tuple[tuple[str, int], ...], lead: int) -> bool:
    """Whether `one` is, or lies in, an iteration of the same loop as `other`, earlier by at least `lead`."""
    depth = len(other) - 1
    if len(one) <= depth or one[:depth] != other[:depth]:
        return False
    return one[depth][0] == other[depth][0] and one[depth][1] + lead <= other[depth][1]


# ----------------------------------------------------------------------------------------------------------


class DerivedColumns:
    """Derived columns of a trace, one entry per task unless stated otherwise, computed on demand.

    Rows count tasks first, then transfers, as in `sim.record.dependencies`. Sentences call the policy
    `policy`; by default that is the name of its class. If the times of a trace were `recorded`, it is unknown
    what a policy, an event or a shortage held up. Questions are of a part of the run: by default, all of it.
    """

    def __init__(self, trace: Record, policy: str | None = None, recorded: bool = False) -> None:
        self.trace, self.job, self.recorded = trace, trace.job, recorded
        # The part of the run that counts: a device, a lane of it, and a time; None: all
        self.at_device: int | None = None
        self.at_lane: int | None = None
        self.from_ns, self.to_ns = 0, trace.makespan_ns
        self.policy = policy or trace.policy
        self.idle_pieces: Any = None  # once `sim.explain.idle` has found them
        self._by_time: dict[str, tuple[list[int], list[int]]] = {}
        self._last_over: dict[int, dict[str, int]] = {}  # instant → resource → last transfer that ended
        self.machine = trace.job.machine
        self.devices, self.issuers = self.machine.devices, self.machine.issuers()
        tasks = trace.tasks
        live = trace.executed
        self.ready, self.issue = tasks["ready_ns"], tasks["issue_ns"]
        self.start, self.end = tasks["start_ns"], tasks["end_ns"]
        self.meetings, self.begins = trace.meetings, trace.begins_ns
        on_lane = live & ~trace.alone
        self.lane = np.where(on_lane, tasks["stream"], -2 - np.arange(len(trace)))
        self.issuer, self.wait = tasks["issuer"], tasks["wait"]
        self.device = trace.device
        self.group = self.job.group_of[tasks["op"]]  # of issuers
        self.n = len(trace)
        self.cost = np.where(live, issue_costs_ns(self.job)[tasks["op"]], 0)
        self.calls = tasks.get("calls_ns", np.zeros(self.n, np.int64))
        # An issuer passes over a dead task as a worker would execute one that takes no time.
        self.by_worker = ~self.job.launched[tasks["op"]] | ~on_lane

    @classmethod
    def of(cls, run: Record | DerivedColumns) -> DerivedColumns:
        """Return the derived columns of a trace, or given ones."""
        return cls(run) if isinstance(run, Record) else run

    # -- the part of the run ------------------------------------------------------------------

    def within(
        self, device: str | None = None, stream: int | None = None, from_ns: int = 0, to_ns: int | None = None
    ) -> DerivedColumns:
        """Return the same columns, for questions of a part of the run; by default of the whole.

        Parameters
        ----------
        device : str or None
        stream : int, optional
            Number of a stream, or of a worker, of that device.
        from_ns, to_ns : int
            The time range; the end is optional.

        Raises
        ------
        UnknownNameError
            There is no such device.
        InputError
            The device has no such stream, a stream is given without a device, or the time range is empty.
        """
        part, makespan_ns = copy(self), self.trace.makespan_ns
        end = makespan_ns if to_ns is None else min(to_ns, makespan_ns)
        if from_ns >= end and makespan_ns:
            span = f"from {format_duration(from_ns)} to {format_duration(end if to_ns is None else to_ns)}"
            raise InputError(f"{span} there is no time; the run lasts {format_duration(makespan_ns)}")
        if device is None and stream is not None:
            raise InputError(f"stream {stream}: of which device?")
        part.idle_pieces, part.from_ns, part.to_ns = None, from_ns, end
        part.at_device = None if device is None else self.machine.device_index(device)
        part.at_lane = None
        if part.at_device is not None and stream is not None:
            lanes = self.devices[part.at_device].lanes
            if not 0 <= stream < lanes:
                raise InputError(f"{device} has no stream {stream}; its streams are 0 to {lanes - 1}")
            part.at_lane = self.machine.first_stream[part.at_device] + stream
        return part

    @property
    def counts(self) -> BoolArray:
        """Which tasks are on the device or lane that counts, at any time."""
        device, lane = self.at_device, self.at_lane
        if lane is not None:
            return np.asarray(self.lane == lane)
        return np.ones(self.n, bool) if device is None else np.asarray(self.device == device)

    @property
    def part(self) -> str:
        """A description of the part; empty for the whole run."""
        texts = []
        if self.from_ns > 0 or self.to_ns < self.trace.makespan_ns:
            texts.append(f"from {format_duration(self.from_ns)} to {format_duration(self.to_ns)}")
        device, lane = self.at_device, self.at_lane
        if device is not None:
            stream = "" if lane is None else f"/{lane - self.machine.first_stream[device]}"
            texts.append(f"on {self.devices[device].name}{stream}")
        return " ".join(texts)

    # -- data ---------------------------------------------------------------------------------

    @cached_property
    def edges(self) -> TaskEdges:
        """Edges between rows that held their consumer back, including transfers."""
        return with_iterations(self.trace, waited_for(self.trace, dependencies(self.trace)))

    @cached_property
    def restarted(self) -> IntArray:
        """Time of the last restart after a failure before each row; 0: none."""
        if len(self.trace.attempts) < 2:
            return np.zeros(len(self.row_end), np.int64)
        first, begins = np.array([(record.run, record.begin_ns) for record in self.trace.attempts]).T
        attempt = np.searchsorted(first, self.trace.of_rows("iteration"), side="right") - 1
        return np.asarray(begins[attempt], np.int64)

    @cached_property
    def row_end(self) -> IntArray:
        """End of every row, tasks then transfers."""
        return self.trace.of_rows("end_ns")

    @cached_property
    def row_start(self) -> IntArray:
        """Start of every row."""
        return self.trace.of_rows("start_ns")

    @cached_property
    def producers(self) -> Csr:
        """row → rows of its producers."""
        return Csr.group(self.edges.consumer, self.edges.producer, len(self.row_end))

    @cached_property
    def last_producer(self) -> IntArray:
        """The producer of each row that ended last (the first such edge); -1 without producers."""
        last = np.full(len(self.row_end), UNSET)
        producer, consumer, _ = self.edges
        end = self.row_end[producer]
        first = np.flatnonzero(end == most_by(consumer, end, len(last))[consumer])[::-1]
        last[consumer[first]] = producer[first]  # the last assignment wins, which is that of the first edge
        return last

    @cached_property
    def data(self) -> IntArray:
        """When each row had all inputs: 0, or the restart, without producers; its start if aborted."""
        last = self.last_producer
        data: IntArray = np.where(last == UNSET, self.restarted, self.row_end[last])
        aborted = np.flatnonzero((self.trace.status == ABORTED) & self.trace.at_once)
        data[aborted] = self.start[aborted]
        return data

    @cached_property
    def released(self) -> IntArray:
        """Time before which each task may not be eligible; 0: no such limit."""
        return self.job.graph.column("release")[self.trace.tasks["op"]]

    def needs_of(self, row: int) -> Mapping[str, int]:
        """Return a task's needs of the machine's resources."""
        needs: Mapping[str, int] = self.job.graph.attribute("resources").get(self.trace.tasks["op"][row], {})
        return needs

    # -- lanes and issuers --------------------------------------------------------------------

    @cached_property
    def before_on_lane(self) -> IntArray:
        """The previous task on each task's lane, or -1."""
        return _before(np.argsort(self.lane, kind="stable"), self.lane)

    @cached_property
    def lane_end(self) -> IntArray:
        """End of the previous task on the lane; 0 for the first."""
        before = self.before_on_lane
        return np.where(before == UNSET, 0, self.end[before])

    @cached_property
    def launch_end(self) -> IntArray:
        """Earliest start of a launched task by its launch latency and the gap of its stream."""
        latency = np.array([d.launch_latency_ns for d in self.devices])[self.device]
        before = self.before_on_lane
        gap = np.where(before == UNSET, 0, self.job.gap_ns[self.trace.tasks["op"][before]])
        return np.asarray(np.maximum(self.issue + latency, self.lane_end + gap))

    @cached_property
    def keeps_issuer(self) -> BoolArray:
        """Whether each task keeps its issuer busy until it ends.

        A worker executes it; a host thread waits for it (to read a value back), or makes the copy itself.
        """
        return np.asarray(self.by_worker | np.isin(self.trace.tasks["op"], awaited_ops(self.job.graph)))

    @cached_property
    def issuer_done(self) -> IntArray:
        """When its issuer was done with each task."""
        op = self.trace.tasks["op"]
        after = np.where(self.trace.alone & ~self.job.launched[op], self.cost, 0)
        if self.job.record_ns is not None:
            after = after + self.job.record_ns[op]
        return np.where(self.keeps_issuer & ~self.trace.alone, self.end, self.issue + after)

    @cached_property
    def copied_by(self) -> IntArray:
        """Group of issuers of which one makes each transfer; -1: none has to."""
        transfers = self.trace.transfers
        return host_groups(self.job, transfers["tensor"], transfers["source"], transfers["destination"])

    @cached_property
    def before_at_issuer(self) -> IntArray:
        """The previous task that kept the same issuer busy, or -1."""
        return _before(np.lexsort((self.issuer_done, self._paid_from, self.issuer)), self.issuer)

    @cached_property
    def _paid_from(self) -> IntArray:
        return np.where(self.by_worker, self.issue, self.issue - self.cost - self.calls)

    @cached_property
    def taken(self) -> IntArray:
        """When its issuer took each task.

        A task that had to wait for memory, or for a place in the launch queue, was taken as soon as it was
        ready and its issuer free: from then on the issuer was blocked.
        """
        before = self.before_at_issuer
        free_since = np.where(before == UNSET, 0, self.issuer_done[before])
        blocked = ~self.by_worker & ((self.wait == Wait.MEMORY) | self.queue_was_full)
        return np.where(blocked, np.maximum(self.ready, free_since), self._paid_from)

    @cached_property
    def issuers_busy(self) -> Cover:
        """When all issuers of a group are busy: issuing, executing, copying pageable memory, or blocked."""
        size = np.bincount([issuer.group for issuer in self.issuers])
        transfers, copied = self.trace.transfers, self.copied_by >= 0
        start = np.concatenate((self.taken, transfers["ready_ns"][copied]))
        end = np.concatenate((self.issuer_done, transfers["end_ns"][copied]))
        group = np.concatenate((self.group, self.copied_by[copied]))
        return Cover(overlap_of_at_least(start, end, group, size), self.trace.makespan_ns)

    @cached_property
    def by_host(self) -> BoolArray:
        """Whether the last producer of a launched task (looking through a transfer) is an op of a CPU."""
        last = self.last_producer[: self.n]
        producer = np.where(last >= self.n, self.last_producer[last], last)
        return np.asarray((producer != UNSET) & self.by_worker[producer] & ~self.by_worker)

    @cached_property
    def queue_was_full(self) -> BoolArray:
        """Whether a launch was put on its stream at the moment when another one left a full queue."""
        full = np.zeros(self.n, dtype=bool)
        for d, device in enumerate(self.devices):
            if device.queue_depth is not None and not device.workers:
                rows = np.flatnonzero(self.device == d)
                issue_ns = self.issue[rows]
                issued = np.searchsorted(np.sort(issue_ns), issue_ns, side="left")
                ended = np.searchsorted(np.sort(self.end[rows]), issue_ns, side="left")
                full[rows] = issued - ended >= device.queue_depth
        return full

    # -- communicators ------------------------------------------------------------------------

    @cached_property
    def met_last(self) -> IntArray:
        """The last task to start in each task's meeting; the task itself if it has none."""
        last = np.arange(self.n)
        if (c := self.meetings) is not None:
            last[c.row] = c.last[c.meeting]
        return last

    def absent_ranks(self, row: int) -> list[int]:
        """Return the devices that a collective waited for until its step was aborted."""
        c, collectives = self.meetings, self.job.collectives
        assert c is not None
        assert collectives is not None
        meeting = int(c.meeting[np.searchsorted(c.row, row)])
        members = collectives.members[int(c.party[meeting])]
        if c.size[meeting] >= len(members):
            return []
        present = set(self.device[c.row[c.meeting == meeting]].tolist())
        return [device for device in members if device not in present]

    @cached_property
    def before_in_line(self) -> IntArray:
        """The previous collective in each task's line, or -1."""
        before = np.full(self.n, UNSET)
        if (c := self.meetings) is not None:
            before[c.row] = c.ahead
        return before

    def communicator(self, row: int) -> str:
        """Return the name of the communicator that a task belongs to."""
        assert self.meetings is not None
        assert self.job.collectives is not None
        position = int(np.searchsorted(self.meetings.row, row))
        c = self.job.collectives
        return c.names[int(c.communicator[self.meetings.entry[position]])]

    # -- tasks that made room -----------------------------------------------------------------

    @cached_property
    def _by_end(self) -> tuple[list[int], list[int]]:
        """(ends, rows) of all tasks and transfers that took some time, by end."""
        rows = np.flatnonzero(self.row_end > np.concatenate((self.begins, self.row_start[self.n :])))
        return _sort_times(self.row_end[rows], rows)

    def ended_at(self, time_ns: int) -> list[int]:
        """Return the rows that took some time and ended at an instant, in row order."""
        return _rows_at(self._by_end, time_ns)

    def task_that_ended(self, device: int, time_ns: int) -> int:
        """Return the last task of a device that took some time and ended at an instant, or -1."""
        ended = reversed(self.ended_at(time_ns))
        return next((row for row in ended if row < self.n and self.device[row] == device), UNSET)

    def last_holder(self, row: int) -> int:
        """Return the last task to end at a task's start that held a resource which it needs, or -1."""
        needs = self.needs_of(row).keys()
        ended = reversed(self.ended_at(int(self.start[row]))) if needs else ()
        holders = (row for row in ended if row < self.n and needs & self.needs_of(row).keys())
        return next(holders, UNSET)

    def unblocked_by(self, row: int) -> int:
        """Return the task that ended at a task's start and freed what that one waited for, or -1."""
        other = self.last_holder(row)
        return other if other != UNSET else self.task_that_ended(int(self.device[row]), int(self.start[row]))

    def transfer_that_ended(self, row: int, time_ns: int) -> int:
        """Return the last transfer that ended at an instant and shares the path of a given one, or -1."""
        if (last := self._last_over.get(time_ns)) is None:
            ended = [other for other in self.ended_at(time_ns) if other >= self.n]
            last = self._last_over[time_ns] = {r: other for other in ended for r in self.uses(other - self.n)}
        return max(last.get(resource, UNSET) for resource in self.uses(row - self.n))

    def tasks_at(self, column: str, time_ns: int, below: int) -> list[int]:
        """Return the tasks whose ``taken`` or ``issue`` is an instant, of rows below `below`, last first."""
        if column not in self._by_time:
            self._by_time[column] = _sort_times(getattr(self, column), np.arange(self.n))
        return [row for row in reversed(_rows_at(self._by_time[column], time_ns)) if row < below]

    def taken_next(self, row: int, time_ns: int) -> int:
        """Return the task of the same group that is taken first after an instant; itself if there is none."""
        later = np.flatnonzero((self.group == self.group[row]) & (self.taken > time_ns))
        return int(later[np.lexsort((later, self.taken[later]))[0]]) if len(later) else row

    def uses(self, transfer: int) -> set[str]:
        """Return what a transfer occupies: links, or their medium, the devices at its ends, its host."""
        transfers, machine = self.trace.transfers, self.machine
        source, destination = int(transfers["source"][transfer]), int(transfers["destination"][transfer])
        flow = int(transfers["tensor"][transfer])
        links = {f"link {machine.channels[k]}" for k in machine.route(source, destination, flow)}
        host = int(self.copied_by[transfer])
        return links | {f"out of {source}", f"into {destination}", *([] if host < 0 else [f"host {host}"])}


def _sort_times(times: IntArray, rows: IntArray) -> tuple[list[int], list[int]]:
    """Return sorted times and their rows, as lists, which are faster for single look-ups."""
    order = np.argsort(times, kind="stable")
    return times[order].tolist(), rows[order].tolist()


def _rows_at(sorted_times: tuple[list[int], list[int]], time_ns: int) -> list[int]:
    """Return the rows at a time, in order."""
    times, rows = sorted_times
    return rows[bisect_left(times, time_ns) : bisect_right(times, time_ns)]


def _before(order: IntArray, key: IntArray) -> IntArray:
    """Return for each row the previous one in `order` if both have the same key, else -1."""
    before = np.full(len(order), UNSET)
    mask = key[order[1:]] == key[order[:-1]]
    before[order[1:][mask]] = order[:-1][mask]
    return before
