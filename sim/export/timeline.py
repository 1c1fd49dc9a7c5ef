"""What every timeline shows, before it is put into the words of a format.

::

    trace ──► lanes      hosts, devices, links; the streams, workers, threads under them
              rows       lane, start and end of every task and transfer
              arrows     (producer, consumer) on different lanes, the earliest ones
              counters   bytes in use and tasks running, by device
                 │
                 ├──► sim.export.chrome_lines   JSON, for many tools
                 └──► sim.export.perfetto       protobuf, for Perfetto
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from sim.analysis.memory_use import memory_use
from sim.analysis.transfers_on_links import transfers_on_links
from sim.explain.waits import final_waits
from sim.machine.device import Device
from sim.record.dependencies import dependencies
from sim.record.record import Record
from sim.words.arrays import IntArray
from sim.words.intervals import levels

__all__ = [
    "Counter",
    "Group",
    "Lane",
    "Lanes",
    "Rows",
    "arrows",
    "counters",
    "groups",
    "launch_call",
    "rows_of",
    "tasks_of",
]

_HOSTS, _LINKS, _FIRST_DEVICE = 1, 2, 10
_APART: Final = 10_000
"""Processes of one run are numbered below this; no machine has as many devices."""

_LAUNCHES: Final = {"gpu": ("cudaLaunchKernel", "cudaMemcpyAsync")}
"""What a launch and a copy are called, by kind of device; tools count CUDA's by these names."""


class Lane(NamedTuple):
    """One line of a timeline: a thread of a process."""

    pid: int
    tid: int

    def __str__(self) -> str:
        return f'"pid":{self.pid},"tid":{self.tid}'


class Lanes:
    """Process and thread of every stream, issuer and link.

    Parameters
    ----------
    trace : Trace
    run : int
        Number of the run in its file: lanes of two runs never meet.
    """

    def __init__(self, trace: Record, run: int = 0) -> None:
        machine = trace.job.machine
        self.base = run * _APART
        self.stream = [
            Lane(self.base + _FIRST_DEVICE + d, lane + 1)
            for d, device in enumerate(machine.devices)
            for lane in range(device.lanes)
        ]
        self.issuers = machine.issuers()
        self.issuer = [
            self.stream[issuer.stream] if issuer.executes else Lane(self.base + _HOSTS, issuer.index + 1)
            for issuer in self.issuers
        ]
        # Where transfers overlap on a shared link, each goes to the first thread that is free.
        self.row, link = (column.tolist() for column in transfers_on_links(trace))
        self.link: list[Lane] = []
        self.link_names: list[str] = []
        start, end = trace.transfers["start_ns"].tolist(), trace.transfers["end_ns"].tolist()
        for k, each in enumerate(machine.links):
            rows = [row for row, used in zip(self.row, link, strict=True) if used == k]
            depth = levels([(start[row], end[row]) for row in rows])
            first = len(self.link_names) + 1
            self.link += [Lane(self.base + _LINKS, first + d) for d in depth]
            for d in range(max(depth, default=-1) + 1):
                self.link_names.append(each.name if d == 0 else f"{each.name} ({d + 1})")

    def device(self, d: int) -> Lane:
        """Return the process of a device, as a lane that no stream has."""
        return Lane(self.base + _FIRST_DEVICE + d, 0)


class Group(NamedTuple):
    """Lanes that belong together, named, in the order in which they are shown."""

    pid: int
    name: str
    lanes: list[tuple[Lane, str]]


def groups(trace: Record, lanes: Lanes) -> list[Group]:
    """Return the hosts that issued something, the devices, and the links, each with its lanes."""
    machine = trace.job.machine
    used = set(trace.tasks["issuer"].tolist())
    hosts = [
        (lanes.issuer[issuer.index], issuer.name)
        for issuer in lanes.issuers
        if not issuer.executes and issuer.index in used
    ]
    found = [Group(lanes.base + _HOSTS, "hosts", hosts)] if hosts else []
    for d, device in enumerate(machine.devices):
        what = "worker" if device.workers else "stream"
        first = machine.first_stream[d]
        named = [(lanes.stream[first + lane], f"{what} {lane}") for lane in range(device.lanes)]
        found.append(Group(lanes.device(d).pid, device.name, named))
    if lanes.link_names:
        pid = lanes.base + _LINKS
        found.append(Group(pid, "links", [(Lane(pid, k + 1), n) for k, n in enumerate(lanes.link_names)]))
    return found


def tasks_of(trace: Record) -> Iterator[tuple[int, ...]]:
    """Return for each task: op, iteration, stream, issuer, ready, issue, start, end, dead, wait, device."""
    columns = ("op", "iteration", "stream", "issuer", "ready_ns", "issue_ns", "start_ns", "end_ns", "dead")
    return zip(
        *(trace.tasks[name].tolist() for name in columns),
        final_waits(trace).tolist(),
        trace.device.tolist(),
        strict=True,
    )


def launch_call(device: Device, *, copy: bool) -> str:
    """Return the name of the call that launches work on a device.

    Examples
    --------
    >>> launch_call(Device("gpu0"), copy=True), launch_call(Device("npu0", "npu"), copy=False)
    ('cudaMemcpyAsync', 'launch')
    """
    return _LAUNCHES.get(device.kind, ("launch", "launch"))[copy]


class Rows(NamedTuple):
    """Tasks, and behind them transfers, numbered as in `sim.record.dependencies`.

    Attributes
    ----------
    lane : list of Lane or None
        None: not shown. Of the several links that a transfer crosses, the first.
    start_ns, end_ns : array of int64
    """

    lane: list[Lane | None]
    start_ns: IntArray
    end_ns: IntArray


def rows_of(trace: Record, lanes: Lanes) -> Rows:
    """Return where and when everything is shown that arrows join."""
    n = len(trace)
    lane: list[Lane | None] = [lanes.stream[s] if s >= 0 else None for s in trace.tasks["stream"].tolist()]
    for row in np.flatnonzero(trace.tasks["dead"]).tolist():
        lane[row] = None
    lane += [None] * len(trace.transfers["tensor"])
    for row, place in zip(lanes.row, lanes.link, strict=True):
        lane[n + row] = lane[n + row] or place
    return Rows(lane, trace.of_rows("start_ns"), trace.of_rows("end_ns"))


def arrows(trace: Record, rows: Rows, most: int) -> Iterator[tuple[int, int]]:
    """Yield (producer, consumer) on different lanes, through transfers, by start; the earliest `most`."""
    if not most:
        return
    producer, consumer, _ = dependencies(trace)
    drawn = 0
    for edge in np.argsort(rows.start_ns[consumer], kind="stable").tolist():
        p, c = int(producer[edge]), int(consumer[edge])
        source, target = rows.lane[p], rows.lane[c]
        if source is None or target is None or source == target:
            continue
        if drawn == most:
            return
        drawn += 1
        yield p, c


class Counter(NamedTuple):
    """A number over time, on a device: `values[k]` from `times_ns[k]` on."""

    device: int
    title: str
    key: str
    times_ns: IntArray
    values: IntArray


def counters(trace: Record) -> Iterator[Counter]:
    """Yield, for every device, the bytes in use (if any) and the number of tasks running."""
    for d, (name, use) in enumerate(memory_use(trace, holders=0).items()):
        if use.peak_bytes:
            yield Counter(d, "memory", "in use (bytes)", use.times_ns, use.in_use_bytes)
        here = np.flatnonzero(trace.device == d)
        times, running = _running(trace.tasks["start_ns"][here], trace.tasks["end_ns"][here])
        if len(times):
            yield Counter(d, "running", f"tasks on {name}", times, running)


def _running(start: IntArray, end: IntArray) -> tuple[IntArray, IntArray]:
    """Return the instants at which the number of running tasks changes, and the number from then on."""
    times, which = np.unique(np.concatenate((start, end)), return_inverse=True)
    change = np.zeros(len(times), np.int64)
    np.add.at(change, which, np.repeat(np.array([1, -1]), len(start)))
    moves = change != 0
    return times[moves], np.cumsum(change)[moves]
