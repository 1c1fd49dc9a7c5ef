"""The content of every timeline, before it is written in a particular format.

::

    trace ──► lanes      hosts, devices, links; the streams, workers, threads under them
              tasks      tasks that ran, and the call that launched each
              arrows     (producer, consumer) on different lanes, the earliest ones
              counters   bytes in use and tasks running, by device
                 │
                 └──► sim.export.chrome    JSON, for many tools
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, BoolArray, Csr, IntArray, group_pairs
from sim.base.intervals import in_use, levels
from sim.base.units import NS_PER_S
from sim.explain.communication import moving_ops, traffic_on_links, transfers_on_links
from sim.explain.idle import final_waits
from sim.explain.memory_use import memory_use
from sim.job.job import Job
from sim.record.dependencies import edges_among
from sim.record.record import Record, recorded_delays

_HOSTS, _LINKS, _FIRST_DEVICE = 1, 2, 10
_APART: Final = 10_000
"""Processes of one run are numbered below this; no machine has so many devices."""

_PIECE: Final = 20_000
"""Number of rows whose columns are held at once as Python numbers."""


def in_pieces(rows: IntArray) -> Iterator[IntArray]:
    """Yield rows in pieces of some thousands."""
    return (rows[at : at + _PIECE] for at in range(0, len(rows), _PIECE))


class Lane(NamedTuple):
    """One line of a timeline: a thread of a process, and its name."""

    pid: int
    tid: int
    name: str = ""

    def __str__(self) -> str:
        return f'"pid":{self.pid},"tid":{self.tid}'


class Counter(NamedTuple):
    """A number over time; in Chrome's terms, the counter `title` of a lane counts `key`."""

    lane: Lane
    title: str
    key: str
    times_ns: IntArray
    values: IntArray


class Timeline:
    """A run with the process and thread of every stream, issuer and link.

    Parameters
    ----------
    trace : Trace
    run : int
        Number of the run in its file; it keeps lanes of two runs apart.

    Attributes
    ----------
    lanes : list of Lane
        Lanes of streams and workers, of tasks that run on none of them, and of links.
    lane : array of int64
        Index of the lane that shows each task and, after the tasks, each transfer; -1: none. For a transfer
        over several links it is that of the first.
    crossing, crossed : array of int64
        Transfers, as rows, and the lanes of the links that they cross.
    issuer : list of Lane
        The lane of each issuer.
    """

    def __init__(self, trace: Record, run: int = 0) -> None:
        machine = trace.job.machine
        self.trace, self.base = trace, run * _APART
        self.lanes = [
            Lane(self.device(d).pid, lane + 1, f"{'worker' if device.workers else 'stream'} {lane}")
            for d, device in enumerate(machine.devices)
            for lane in range(device.lanes)
        ]
        self.issuer = [
            self.lanes[issuer.stream]
            if issuer.executes
            else Lane(self.base + _HOSTS, issuer.index + 1, issuer.name)
            for issuer in machine.issuers()
        ]
        # Tasks that run on no stream have threads of their own after those of their device.
        alone = np.flatnonzero(trace.alone)
        tasks, d = trace.tasks, trace.device[alone]
        depth, threads = levels(tasks["start_ns"][alone], tasks["end_ns"][alone], d, len(machine.devices))
        here = len(self.lanes) + np.cumsum(threads) - threads
        self.lane = np.concatenate((tasks["stream"], np.full(len(trace.transfers["id"]), UNSET)))
        self.lane[alone] = here[d] + depth
        self.lane[: len(trace)][~trace.executed] = UNSET
        self.lanes += [
            Lane(self.device(k).pid, device.lanes + 1 + level, f"async {level}")
            for k, (device, n) in enumerate(zip(machine.devices, threads.tolist(), strict=True))
            for level in range(n)
        ]
        # If transfers overlap on a shared link, each goes to the first free thread.
        row, link = transfers_on_links(trace)
        moved = trace.transfers
        depth, threads = levels(moved["start_ns"][row], moved["end_ns"][row], link, len(machine.links))
        self.crossing = row
        self.crossed = len(self.lanes) + (np.cumsum(threads) - threads)[link] + depth
        self.lane[len(trace) + row[::-1]] = self.crossed[::-1]
        links = (
            each.name if level == 0 else f"{each.name} ({level + 1})"
            for each, n in zip(machine.links, threads.tolist(), strict=True)
            for level in range(n)
        )
        self.lanes += [Lane(self.base + _LINKS, k, name) for k, name in enumerate(links, 1)]

    @cached_property
    def gpus(self) -> list[int]:
        """The devices on which something was launched."""
        ran = np.unique(self.trace.device[self.rows_shown()]).tolist()
        return [d for d in ran if not self.trace.job.machine.devices[d].workers]

    @cached_property
    def ranks(self) -> list[int]:
        """Rank of each device: each of `gpus` is one; CPUs are distributed evenly, in order."""
        devices = self.trace.job.machine.devices
        cpus = [d for d, device in enumerate(devices) if device.workers]
        found = [0] * len(devices)
        for rank, d in enumerate(self.gpus):
            found[d] = rank
        for k, d in enumerate(cpus):
            found[d] = k * len(self.gpus) // len(cpus)
        return found

    def rank_of(self, lane: Lane) -> int:
        """Return the rank that shows a lane of a device or, for all links the first, of a link."""
        process = lane.pid - self.base
        return 0 if process == _LINKS else self.ranks[process - _FIRST_DEVICE]

    def device(self, d: int) -> Lane:
        """Return the process of a device, as a lane that no stream has."""
        return Lane(self.base + _FIRST_DEVICE + d, 0)

    def processes(self) -> list[tuple[str, list[Lane]]]:
        """Return the processes, by name, with their lanes: hosts that issued something, devices, links."""
        machine = self.trace.job.machine
        used = set(np.unique(self.trace.tasks["issuer"]).tolist())
        hosts = [lane for k, lane in enumerate(self.issuer) if k in used and lane.pid == self.base + _HOSTS]
        names = {self.base + _HOSTS: "hosts", self.base + _LINKS: "links"}
        for d, device in enumerate(machine.devices):
            folded = machine.folding
            names[self.device(d).pid] = device.name if folded is None else folded.stands_for(device.name)
        lanes = group_pairs((lane.pid, lane) for lane in (*hosts, *self.lanes))
        return [(names[pid], of) for pid, of in lanes.items()]

    def rows_shown(self) -> IntArray:
        """Return the rows of the tasks that ran."""
        return np.flatnonzero(self.lane[: len(self.trace)] != UNSET)

    @cached_property
    def waits(self) -> IntArray:
        """Why each task did not start when it was ready."""
        return final_waits(self.trace)

    @cached_property
    def _edges(self) -> tuple[IntArray, IntArray]:
        return edges_among(self.trace, self.lane != UNSET)

    @cached_property
    def feeds(self) -> Csr:
        """By row, the visible rows that each task and transfer had to wait for.

        A transfer over no link is not visible: its consumers waited for its producer.
        """
        producer, consumer = self._edges
        both = np.unique(consumer * len(self.lane) + producer)
        consumer, producer = np.divmod(both, max(1, len(self.lane)))
        return Csr(np.searchsorted(consumer, np.arange(len(self.lane) + 1)), producer)

    def arrows(self, most: int, shown: BoolArray) -> tuple[IntArray, IntArray]:
        """Return the earliest producers and consumers on different lanes, through transfers, by start.

        Only arrows between the lanes in the mask `shown` count.
        """
        producer, consumer = self._edges
        source, target = self.lane[producer], self.lane[consumer]
        apart = np.flatnonzero((source != target) & shown[source] & shown[target])
        start = self.trace.of_rows("start_ns")[consumer[apart]]
        apart = apart[np.argsort(start, kind="stable")[:most]]
        return producer[apart], consumer[apart]

    def counters(self) -> Iterator[Counter]:
        """Yield the bytes in use (if any) and running tasks of every device, then the traffic of links.

        For a link that is bytes per second, each transfer at its mean rate, and, if there were several
        at once, their number.
        """
        trace = self.trace
        for d, (name, use) in enumerate(memory_use(trace, holders=0).items()):
            if use.peak_bytes:
                yield Counter(self.device(d), "memory", "in use (bytes)", use.times_ns, use.in_use_bytes)
            here = np.flatnonzero(trace.device == d)
            start, end = trace.tasks["start_ns"][here], trace.tasks["end_ns"][here]
            times, running = in_use(start, end, np.ones(len(here), np.int64))
            moves = np.diff(running, prepend=0) != 0
            if moves.any():
                yield Counter(self.device(d), "running", f"tasks on {name}", times[moves], running[moves])
        machine, lane, moved = trace.job.machine, Lane(self.base + _LINKS, 0), traffic_on_links(trace)
        first, end = moved.first_ns, moved.end_ns
        rate = (moved.nbytes * (NS_PER_S / np.maximum(end - first, 1))).astype(np.int64)
        bounds = np.searchsorted(moved.link, np.arange(len(machine.links) + 1))
        for each, a, b in zip(machine.links, bounds, bounds[1:], strict=False):
            here = a + np.flatnonzero(end[a:b] > first[a:b])
            if len(here):
                yield Counter(
                    lane, f"{each.name} rate", "bytes/s", *in_use(first[here], end[here], rate[here])
                )
                times, n = in_use(moved.start_ns[here], end[here], np.ones(len(here), np.int64))
                if n.max() > 1:
                    yield Counter(lane, f"{each.name} at once", "transfers", times, n)


# ----------------------------------------------------------------------------------------------------------
# Names of slices, chosen so that tools for PyTorch's profiles recognise them.
#
#     op                            category      title
#     of a worker                   cpu_op        its name
#     kind copy, of a GPU           gpu_memcpy    Memcpy (op)
#     collective, of a GPU          kernel        ncclDevKernel_AllReduce(op)
#     recorded (attribute kernel)   by its name   as recorded: Memset (Device), void at::native::...
#     delay, of a recording         delay         its name; it is no work of the GPU
#     any other                     kernel        its name
#
# Holistic Trace Analysis goes by names alone: a name that begins with ``nccl`` and contains ``Kernel`` is
# communication, ``Memcpy`` and ``Memset`` are memory, all others compute (``get_kernel_type`` in
# hta/utils/utils.py of https://github.com/facebookresearch/HolisticTraceAnalysis).

CATEGORIES: Final = ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "delay")

_WORKER, _KERNEL, _COPY, _FILL, _DELAY = range(5)

LAUNCHES: Final = ("", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync", "launch")
"""Calls that launch ops of each category on a GPU; tools count CUDA's by these names."""


def titles_of(job: Job) -> tuple[list[str], IntArray]:
    """Return the title of every op, and its category, an index into `CATEGORIES`."""
    graph, devices = job.graph, job.machine.devices
    worker = np.array([device.workers > 0 for device in devices])[job.device_of]
    gpu = np.array([device.kind == "gpu" for device in devices])[job.device_of] & ~worker
    copies = graph.is_kind("copy")
    category = np.where(worker, _WORKER, np.where(copies, _COPY, _KERNEL))
    category[recorded_delays(graph) & ~worker] = _DELAY
    titles = list(graph.op_names)
    kinds = ["".join(word.capitalize() for word in kind.split("_")) for kind in graph.kinds]
    for op in np.flatnonzero(gpu & (moving_ops(job) | copies)).tolist():
        call = "Memcpy " if copies[op] else f"ncclDevKernel_{kinds[graph.kind_code[op]]}"
        titles[op] = f"{call}({titles[op]})"
    for op, kernel in graph.attribute("kernel").items():
        if not worker[op]:
            titles[op] = str(kernel)
            category[op] = {"Memcpy": _COPY, "Memset": _FILL}.get(titles[op][:6], _KERNEL)
    return titles, category
