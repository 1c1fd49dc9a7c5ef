"""The record of a run: flat columns, one row per task and one per transfer.

Rows are in the order in which tasks started: by start, round of that instant, lane and id
(`sim.record.record`). Integer columns are numpy arrays of ns, bytes or indices; words (op, kind,
device, stream, ...) are looked up only when a table is requested. Computing on a trace is in `sim.metrics`,
`sim.explain` and `sim.explain.bounds`, drawing in `sim.plot`, files in `sim.export`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

import numpy as np

from sim.base.arrays import UNSET, BoolArray, IntArray
from sim.base.errors import InputError
from sim.faults import Conditions, Detection, Failed
from sim.graph.failures import DONE, FAILED
from sim.graph.graph import Graph
from sim.graph.rendezvous_keys import rendezvous_keys
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.machine.task import BACKGROUND, Task
from sim.policy import Policy

# ----------------------------------------------------------------------------------------------------------
# Meetings on communicators, reconstructed from a trace.
#
#     rows of a seat (a rank of a party), in the order in which they started:   a0  b0  c0
#     meeting                                                                    0   1   2
#
# On a line one collective is under way at a time, so the n-th to start is the n-th that was issued
# (`sim.job.collectives`). The sends and recvs of a group call share one place in line; on a seat they,
# too, go one after another.


class Meetings(NamedTuple):
    """The collectives that met.

    Attributes
    ----------
    row, entry, meeting, ahead : arrays of int64
        One entry per collective that ran, in row order: its row, its entry in `Job.collectives`, its
        meeting, and the row of the previous one in its line, -1 for the first; if that was a group call,
        the row of its op that ended last.
    party, met_ns, last, size : arrays of int64
        One entry per meeting: the party, when its last op started, the row of that op (of several, the
        first), and the number of ops.
    """

    row: IntArray
    entry: IntArray
    meeting: IntArray
    ahead: IntArray
    party: IntArray
    met_ns: IntArray
    last: IntArray
    size: IntArray


def meetings_of(job: Job, tasks: Mapping[str, IntArray], restarts: Sequence[int] = ()) -> Meetings | None:
    """Return the meetings of a run; None if no op belongs to a communicator.

    Parameters
    ----------
    job : Job
    tasks : mapping of str to array
        Columns of the trace.
    restarts : sequence of int
        Iterations at which everything restarted after a part of the machine failed: no meeting spans a
        restart. A collective that never met its ranks counts as meeting when its step was aborted.
    """
    c = job.collectives
    if c is None:
        return None
    entry_of = np.full(len(job.graph), UNSET)
    entry_of[c.op] = np.arange(len(c.op))
    entry = entry_of[tasks["op"]]
    row = np.flatnonzero(entry != UNSET)
    entry, start = entry[row], tasks["start_ns"][row]
    since = np.searchsorted(restarts, tasks["iteration"][row], side="right")
    number, _ = _number_by_key(since * len(c.op) + c.seat[entry])
    parties = since * len(c.op) + c.party[entry]
    key, meeting = np.unique(parties * (len(row) + 1) + number, return_inverse=True)
    party = key // (len(row) + 1) % len(c.op)
    met_ns, last = np.zeros(len(party), np.int64), np.full(len(party), UNSET)
    np.maximum.at(met_ns, meeting, start)
    latest = np.flatnonzero(start == met_ns[meeting])[::-1]
    last[meeting[latest]] = row[latest]  # the last assignment wins, which is that of the first row
    _, ahead = _number_by_key(since * len(c.op) + c.line[entry])
    if (c.group != UNSET).any():
        ahead = _before_groups(c.group[entry], tasks["iteration"][row], ahead, tasks["end_ns"][row])
    ahead = np.where(ahead == UNSET, UNSET, row[ahead])
    size = np.bincount(meeting, minlength=len(party))
    incomplete = (size < np.array([len(members) for members in c.members])[party])[meeting]
    np.maximum.at(met_ns, meeting[incomplete], tasks["end_ns"][row[incomplete]])
    return Meetings(row, entry, meeting, ahead, party, met_ns, last, size)


def _number_by_key(key: IntArray) -> tuple[IntArray, IntArray]:
    """Return for each entry how many before it have the same key, and the index of the last of them, or -1.

    Examples
    --------
    >>> number, before = _number_by_key(np.array([5, 3, 5, 5]))
    >>> number.tolist(), before.tolist()
    ([0, 0, 1, 2], [-1, -1, 0, 2])
    """
    order = np.argsort(key, kind="stable")
    first = np.ones(len(key), bool)
    first[1:] = np.diff(key[order]) != 0
    begin = np.maximum.accumulate(np.where(first, np.arange(len(key)), 0))
    number, before = np.empty(len(key), np.int64), np.full(len(key), UNSET)
    number[order] = np.arange(len(key)) - begin
    before[order[1:]] = np.where(first[1:], UNSET, order[:-1])
    return number, before


def _before_groups(group: IntArray, iteration: IntArray, ahead: IntArray, end_ns: IntArray) -> IntArray:
    """Return for each entry the one before its group call (of several, the last to end), or -1.

    Examples
    --------
    >>> group, ahead = np.array([0, 0, 1, -1]), np.array([-1, 0, 1, 2])
    >>> _before_groups(group, np.zeros(4, int), ahead, np.array([9, 7, 20, 30])).tolist()
    [-1, -1, 0, 2]
    """
    before, last = ahead.copy(), np.arange(len(ahead))  # last: the last to end of the call so far
    for k, previous in enumerate(ahead.tolist()):
        if previous == UNSET:
            continue
        if group[k] != UNSET and group[k] == group[previous] and iteration[k] == iteration[previous]:
            before[k] = before[previous]
            last[k] = last[previous] if end_ns[last[previous]] >= end_ns[k] else k
        else:
            before[k] = last[previous]
    return before


# ----------------------------------------------------------------------------------------------------------

TASK_COLUMNS: Final = ("stream", "ready_ns", "issue_ns", "start_ns", "end_ns", "wait", "issuer")
"""What every engine records of a task, besides its id: attributes of `sim.machine.task.Task`, and columns of
the kernel, named without the unit. `Record.from_columns` adds the columns that follow from these."""

TRANSFER_COLUMNS: Final = ("ready_ns", "start_ns", "end_ns")
"""... and of a transfer."""

_FLOW_COLUMNS: Final = ("tensor", "source", "destination", "nbytes")


class Wait:
    """Why a task did not start when it was ready (codes of the column `wait`)."""

    NONE: Final = 0
    ISSUER: Final = 1
    POLICY: Final = 2
    STREAM: Final = 3
    EVENT: Final = 4
    LAUNCH: Final = 5
    RESOURCES: Final = 6
    MEMORY: Final = 7
    COMMUNICATOR: Final = 8


WAITS: Final = ("", "issuer", "policy", "stream", "event", "launch", "resources", "memory", "communicator")
"""Words of `Wait`: the issuer was busy; it was free but the policy held the task back (head-of-line
blocking); earlier tasks of the stream; an event of another stream; launch latency or the gap between
kernels; cores, SMs or bandwidth; memory; an earlier collective of its communicator."""

RECORDED_REASONS: Final = (Wait.MEMORY, Wait.RESOURCES, Wait.COMMUNICATOR)
"""What the engine itself records as the last reason of a wait."""


class Attempt(NamedTuple):
    """A run of steps, from the start or a restart to the end or to the abort of a step.

    Attributes
    ----------
    begin_ns : int
        When it begins.
    run : int
        Its first iteration, counted over all attempts.
    step : int
        The training step of its first iteration.
    done, lost : int
        The number of steps that it completes, and how many of these no checkpoint has when it is aborted.
    trace : Record
        Its own trace: times and iterations count from its begin.
    """

    begin_ns: int
    run: int
    step: int
    done: int
    lost: int
    trace: Record


@dataclass(frozen=True, eq=False)
class Record:
    """The outcome of a run.

    Attributes
    ----------
    job : Job
        The job that ran, with the decisions made before.
    flow : Flow
        Ops and transfers with the edges between them.
    policy : str
        Name of the policy's class.
    tasks : mapping of str to array of int64
        One row per executed task, in start order: ``id, op, iteration, stream`` (counted over the
        machine; `BACKGROUND`: on none), ``issuer`` (index), ``ready_ns, issue_ns, start_ns, end_ns, wait``
        (`Wait`) and ``dead`` (1: skipped by control flow). With control flow also ``frame`` (index into
        `frames`), if allocator calls took an issuer's time ``calls_ns`` (the time spent before
        the issue), and if ops may fail ``status`` (`sim.graph.failures.STATUSES`).
    transfers : mapping of str to array of int64
        One row per transfer, in start order: ``id, op`` (its number in `flow`), ``iteration, tensor, source,
        destination`` (device indices), ``nbytes, ready_ns, start_ns, end_ns``; with control flow also
        ``frame``.
    memory : mapping of str to array of int64, optional
        One row per allocation (``change`` > 0) or free (< 0), in order, if an allocator was used:
        ``time_ns, device, change, in_use, requested, reserved`` (bytes, after the change), and the
        ``tensor`` with its ``iteration`` (-1: there from the beginning).
    frames : tuple of str
        Loops and their iterations in which tasks ran (``outer:2/inner:0``; empty: outside all loops).
    met : array of int64, shape (pairs, 2)
        Pairs that met by key: id of the Send, or of the transfer that it caused, and of the Recv.
    taken : array of int64, shape (switches, 2)
        The live output of each switch that ran: id of its task, and the output.
    synchronisation : str
        When ops became eligible (`sim.policy.Policy`).
    engine : str
        The engine that ran it: ``kernel``, ``kernel (pure Python)``, or ``simpy`` and why not the kernel.
    on_failure : str, optional
        The policy's reaction to a failing op (`sim.policy.Policy.on_failure`), if some op may fail.
    in_turn : bool
        Whether iterations were calls, one after another (`sim.readiness.counters`).
    conditions : Conditions, optional
        When parts of the machine were to fail, and how fast they were (of one attempt).
    detection : Detection, optional
        The detection that a step could not go on, which aborted it (of one attempt).
    broken : tuple of Failed
        The parts that had failed by the end (of one attempt).
    attempts : tuple of Attempt
        If parts of the machine may fail: the runs, from one restart to the next, that make up this one.
    not_before_ns : array of int64, optional
        Time before which the policy lets no issuer take each task (`sim.policy.Policy.not_before_ns`).
    messages : array of int64, shape (messages, 6)
        Other traffic on links: messages of collectives, in order of arrival, with the columns of
        `sim.machine.links.Message`.
    """

    job: Job
    flow: Flow
    policy: str
    tasks: Mapping[str, IntArray]
    transfers: Mapping[str, IntArray]
    memory: Mapping[str, IntArray] | None = None
    frames: tuple[str, ...] = ()
    met: IntArray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    taken: IntArray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    synchronisation: str = "completion"
    engine: str = "simpy"
    on_failure: str | None = None
    in_turn: bool = False
    conditions: Conditions | None = None
    detection: Detection | None = None
    broken: tuple[Failed, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    not_before_ns: IntArray | None = None
    messages: IntArray = field(default_factory=lambda: np.empty((0, 6), np.int64))

    @classmethod
    def from_columns(
        cls,
        job: Job,
        flow: Flow,
        policy: Policy,
        tasks: dict[str, IntArray],
        transfers: dict[str, IntArray],
        **more: Any,
    ) -> Self:
        """Return the record of an engine's columns; `more` are further attributes.

        Parameters
        ----------
        job : Job
        flow : Flow
        policy : Policy
        tasks : dict of str to array
            ``id`` and `TASK_COLUMNS`, in the order of starts; with control flow also ``op``, ``iteration``,
            ``dead`` and ``frame``.
        transfers : dict of str to array
            ``id`` and `TRANSFER_COLUMNS`, likewise.
        """
        for columns in (tasks, transfers):
            if "op" not in columns:
                columns["iteration"], columns["op"] = np.divmod(columns["id"], flow.n_nodes)
        tasks.setdefault("dead", np.zeros(len(tasks["id"]), np.int64))
        if "calls_ns" in tasks and not tasks["calls_ns"].any():
            del tasks["calls_ns"]
        late = (tasks["wait"] == Wait.NONE) & (tasks["start_ns"] > tasks["ready_ns"])
        by_issuer = tasks["issue_ns"] > tasks["ready_ns"]
        tasks["wait"] = np.where(late, np.where(by_issuer, Wait.ISSUER, Wait.STREAM), tasks["wait"])
        transfer = transfers["op"] - flow.n_ops
        transfers |= {name: getattr(flow, name)[transfer] for name in _FLOW_COLUMNS}
        more["synchronisation"] = policy.synchronisation
        return cls(job, flow, type(policy).__name__, tasks, transfers, **more)

    def __len__(self) -> int:
        """Return the number of tasks that ran."""
        return len(self.tasks["op"])

    def __repr__(self) -> str:
        """Return the size and the makespan."""
        return f"<{type(self).__name__} {self.job.graph.name!r}: {len(self)} tasks, {self.makespan_ns} ns>"

    @cached_property
    def makespan_ns(self) -> int:
        """Time from 0 to the end of the last task or transfer, or to the abort of the last step."""
        ends = [self.tasks["end_ns"].max(initial=0), self.transfers["end_ns"].max(initial=0)]
        if self.detection is not None:
            ends.append(self.detection.time_ns)
        if self.attempts:
            ends.append(self.attempts[-1].begin_ns + self.attempts[-1].trace.makespan_ns)
        return int(max(ends))

    @cached_property
    def counts(self) -> BoolArray:
        """Whether each iteration is a step that was done and not lost to a failure of the machine."""
        if not self.attempts:
            return np.ones(self.job.iterations, bool)
        counted = np.zeros(self.job.iterations, bool)
        for attempt in self.attempts:
            counted[attempt.run : attempt.run + attempt.done - attempt.lost] = True
        return counted

    @property
    def steps_done(self) -> int:
        """Number of iterations that count."""
        return int(self.counts.sum())

    @cached_property
    def device(self) -> IntArray:
        """Device index of every task."""
        return self.job.device_of[self.tasks["op"]]

    @cached_property
    def alone(self) -> BoolArray:
        """Whether each task ran on no stream and no worker: a host started it and went on without it."""
        return np.asarray(self.tasks["stream"] == BACKGROUND)

    @cached_property
    def status(self) -> IntArray:
        """Status of each task (`sim.graph.failures.STATUSES`)."""
        return self.tasks.get("status", np.zeros(len(self), np.int64))

    @cached_property
    def failed(self) -> bool:
        """Whether an op, or a part of the machine, failed, so that some ops may not have run."""
        if self.detection is not None or any(attempt.trace.detection for attempt in self.attempts):
            return True
        return self.on_failure is not None and bool((self.status == FAILED).any())

    @cached_property
    def at_once(self) -> BoolArray:
        """Whether each task took no time because it was dead and not `executed`, or failed before it began.

        The latter is a launch that returned an error, or a Recv that had nothing to receive any more.
        """
        dead: BoolArray = ~self.executed
        if not self.failed:
            return dead
        op = self.tasks["op"]
        asks = np.isin(op, list(rendezvous_keys(self.job.graph).recvs))
        fails: BoolArray = (self.status != DONE) & self.alone & (self.job.launched[op] | asks)
        return dead | fails

    @cached_property
    def alone_ns(self) -> IntArray:
        """Undisturbed duration of each task; one that happens `at_once` takes no time."""
        tasks, frame = self.tasks, []
        if self.job.drawn is not None:
            frame = [self.frames[code] for code in tasks["frame"].tolist()]
        return np.where(self.at_once, 0, self.job.task_ns(tasks["op"], tasks["iteration"], frame))

    @cached_property
    def executed(self) -> BoolArray:
        """Whether each task executed: all live ones, and dead Sends and Recvs that took their time."""
        tasks = self.tasks
        return np.asarray((tasks["dead"] == 0) | (tasks["end_ns"] > tasks["start_ns"]))

    @cached_property
    def occupied_until_ns(self) -> IntArray:
        """The time until which each task kept a stream or a worker of its device busy, from its start."""
        return np.where(self.alone, self.tasks["start_ns"], self.tasks["end_ns"])

    @cached_property
    def meetings(self) -> Meetings | None:
        """The meetings of collectives; None: no op belongs to a communicator."""
        return meetings_of(self.job, self.tasks, [attempt.run for attempt in self.attempts[1:]])

    @cached_property
    def is_delay(self) -> BoolArray:
        """Which tasks are idle time of a recorded stream that nothing explains."""
        return recorded_delays(self.job.graph)[self.tasks["op"]]

    @cached_property
    def begins_ns(self) -> IntArray:
        """The start of each task's actual work: for a collective, when its ranks met; for a delay, never."""
        begins: IntArray = self.tasks["start_ns"]
        if self.is_delay.any():
            begins = np.where(self.is_delay, self.occupied_until_ns, begins)
        if self.meetings is not None:
            begins = begins.copy()
            row, met_ns = self.meetings.row, self.meetings.met_ns[self.meetings.meeting]
            begins[row] = np.minimum(met_ns, self.tasks["end_ns"][row])
        return begins

    @cached_property
    def lanes(self) -> tuple[list[str], IntArray]:
        """The names of all lanes, and the index of each task's.

        That is ``gpu0/1`` for the second stream of gpu0, ``cpu0/async`` for a task on no lane of cpu0.
        """
        machine = self.job.machine
        streams = [machine.stream_name(s) for s in range(machine.first_stream[-1])]
        lane = np.where(self.alone, len(streams) + self.device, self.tasks["stream"])
        return streams + [f"{device.name}/async" for device in machine.devices], lane

    def lane_name(self, row: int) -> str:
        """Return the name of a task's lane."""
        names, lane = self.lanes
        return names[int(lane[row])]

    def name_of(self, row: int) -> str:
        """Return the name of the op or, after the tasks, of the transferred tensor at a row."""
        graph = self.job.graph
        if row < len(self):
            return graph.op_names[int(self.tasks["op"][row])]
        return graph.tensor_name(int(self.transfers["tensor"][row - len(self)]))

    def log_of(self, device: int) -> dict[str, IntArray]:
        """Return the rows of `memory` for one device; empty without an allocator."""
        log = self.memory or {}
        return {name: column[log["device"] == device] for name, column in log.items()}

    def of_rows(self, column: str) -> IntArray:
        """Return a column shared by tasks and transfers, for all rows: tasks first, then transfers."""
        return np.concatenate((self.tasks[column], self.transfers[column]))

    @cached_property
    def met_rows(self) -> IntArray:
        """The pairs of `met` as rows; a Recv that never ran, as its program ended early, has none."""
        ids = self.of_rows("id")
        met = self.met[np.isin(self.met, ids).all(axis=1)] if self.failed else self.met
        by_id = np.argsort(ids)
        return by_id[np.searchsorted(ids[by_id], met)]


def recorded_delays(graph: Graph) -> BoolArray:
    """Return a mask of the ops that are idle time of a recorded stream that nothing explains."""
    recorded = np.zeros(len(graph), np.bool_)
    recorded[[*graph.attribute("recorded_start_ns")]] = True
    return recorded & graph.is_kind("delay")


# ----------------------------------------------------------------------------------------------------------
# Tasks are turned into columns a few thousand at a time, while the run goes on.
#
# A run of a million tasks that kept them all would hold a million objects until its end, and touching that
# much memory for the first time costs more than the numbers in it. So ended tasks are written down while they
# are still in the processor's cache, and then released.
#
# Rows come out in the order of starts: by ``start_ns``, then the round of that instant, the lane (transfers
# have none) and the id. Tasks that end at one instant end in this order, too.

AT_ONCE: Final = 4096
"""Tasks written at a time: enough that numpy's calls cost nothing, few enough to stay in the cache."""


class ColumnWriter:
    """Writes ended tasks into columns.

    Parameters
    ----------
    names : iterable of str
        Columns besides ``id`` and ``round``: attributes of tasks.
    expected : int
        Number of tasks to make room for; more are possible.
    frames : dict of str to int, optional
        With control flow, where ids are tags: filled with the loop iterations in which tasks run, and their
        numbers in the column ``frame``.
    """

    def __init__(self, names: Iterable[str], expected: int, frames: dict[str, int] | None = None) -> None:
        names = ("id", "round", *names, *(() if frames is None else ("op", "iteration")))
        self._readers: dict[str, Callable[[Task], int]] = {name: attrgetter(name) for name in names}
        if "issuer" in names:
            self._readers["issuer"] = attrgetter("issuer.index")
        if frames is not None:
            self._readers["frame"] = lambda task: frames.setdefault(str(task.frame or ""), len(frames))
        self._columns = {name: np.empty(expected, np.int64) for name in self._readers}
        self._tasks: list[Task] = []  # not written yet
        self._n = 0

    def __len__(self) -> int:
        """Return the number of tasks added."""
        return self._n + len(self._tasks)

    def add(self, task: Task) -> None:
        """Record an ended task."""
        self._tasks.append(task)
        if len(self._tasks) == AT_ONCE:
            self._write()

    def columns(self) -> dict[str, IntArray]:
        """Return the columns, sorted by start, round, lane and id; ``round`` itself is left out."""
        self._write()
        columns = {name: column[: self._n] for name, column in self._columns.items()}
        lane = columns.get("stream", columns["id"])
        order = np.lexsort((columns["id"], lane, columns.pop("round"), columns["start_ns"]))
        return {name: column[order] for name, column in columns.items()}

    def _write(self) -> None:
        n, after = self._n, self._n + len(self._tasks)
        for name, value_of in self._readers.items():
            column = self._columns[name]
            if after > len(column):
                self._columns[name] = column = np.resize(column, max(after, 2 * len(column)))
            try:
                column[n:after] = np.fromiter(map(value_of, self._tasks), np.int64, len(self._tasks))
            except OverflowError:
                raise InputError(f"a task's {name} does not fit 64 bits: the run takes too long") from None
        self._tasks.clear()
        self._n = after
