"""Timelines for Perfetto and chrome://tracing, in the form that tools for PyTorch profiles read.

::

    hosts     gpu0/host   ▇launch▇▇launch▇          one process for the host threads
                             │ac2g   ╲ac2g
    gpu0      stream 0       ▇▇▇▇conv▇▇▇            one process a device, one thread a stream (a worker
              stream 1                │▇▇▇matmul▇   of a CPU), counters: memory, tasks running
                                  data└►
    links     wire        ▇a▇                       one thread a link; a second one if transfers
              wire (2)      ▇b▇                     overlap on a link that they share

Slices have the categories that PyTorch's profiler writes (``cuda_runtime`` for a launch, ``kernel`` and
``gpu_memcpy`` for launched work, ``cpu_op`` for a worker's ops); a launch is tied to its kernel by
``correlation`` and a flow of category ``ac2g``. Flows of category ``data`` lead from producers to
consumers on other lanes.

The argument ``stream`` is counted over the machine, because tools that expect one GPU per file would merge
streams of the same number.

Format: "Trace Event Format" (Google, 2016); times in µs with three decimals, so whole ns. Requirements of
viewers: threads numbered from 1 (Perfetto takes 0 for the idle thread), nested slices per thread, the end
of a flow with ``"bp": "e"``, the blank in ``"distributedInfo": {"rank": 0}`` (HTA looks for that text).

Every event is a line. Lines are built from strings, which is many times faster than encoding dictionaries;
names are encoded once for every op.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, BoolArray, Csr, IntArray, distinct_rows, group_pairs
from sim.base.errors import InputError
from sim.base.files import atomic_text
from sim.base.intervals import in_use, levels
from sim.base.units import NS_PER_S
from sim.explain.communication import moving_ops, traffic_on_links, transfers_on_links
from sim.explain.idle import final_waits
from sim.explain.memory_use import memory_use
from sim.graph.failures import STATUSES
from sim.job.costs import issue_costs_ns
from sim.job.job import Job
from sim.record.dependencies import edges_among
from sim.record.record import WAITS, Record, recorded_delays

SIMULATOR: Final = "graph-schedule-sim"
"""The writer named in such a file."""


_quoted: Final = json.JSONEncoder().encode

_BATCH: Final = 10_000
"""Lines held in memory."""

_DECIMALS: Final = [f".{part:03d}" for part in range(1000)]

_MAX_ARROWS: Final = 20_000
"""Maximum number of arrows from producers to consumers of a run; a viewer is slow with more."""

_FLOWS_PER_RUN: Final = 1 << 40
"""Flows of one run are numbered below this; no run has as many tasks."""

_HOSTS, _LINKS, _FIRST_DEVICE = 1, 2, 10
_PROCESSES_PER_RUN: Final = 10_000
"""Processes of one run are numbered below this; no machine has so many devices."""

_PIECE: Final = 20_000
"""Number of rows whose columns are held at once as Python numbers."""


def in_pieces(rows: IntArray) -> Iterator[IntArray]:
    """Yield rows in pieces of some thousands."""
    return (rows[begin : begin + _PIECE] for begin in range(0, len(rows), _PIECE))


def write_chrome(trace: Record | Mapping[str, Record], path: str | os.PathLike[str]) -> None:
    """Write one or several traces as Chrome JSON, gzipped if the name ends in ``.gz``.

    Parameters
    ----------
    trace : Trace, or mapping of str to Trace
        If there are several, each gets its own processes, whose names begin with its label.
    path : path
        ``.json`` or ``.json.gz``.

    Raises
    ------
    InputError
        The directory does not exist.
    """
    traces = {"": trace} if isinstance(trace, Record) else trace
    timelines = [Timeline(record, run) for run, record in enumerate(traces.values())]
    lines = (
        line
        for run, (label, timeline) in enumerate(zip(traces, timelines, strict=True))
        for line in lines_of(timeline, run, label)
    )
    _write(path, _head(timelines), lines)


def write_ranks(trace: Record, folder: str | os.PathLike[str]) -> list[str]:
    """Write a trace as Chrome JSON, one file per GPU with its host (a rank); return the files.

    Parameters
    ----------
    trace : Trace
    folder : path
        Directory for ``rank0.json.gz``, ``rank1.json.gz``, ...; created if missing. Tools that take one GPU
        per file read such a folder, as does the importer of such traces.

    Raises
    ------
    InputError
        No GPU ran anything, or the folder has a trace of a rank that this run does not have.
    """
    folder, timeline = Path(folder), Timeline(trace)
    check_folder(folder)
    names = [f"rank{rank}.json.gz" for rank in range(len(timeline.gpus))]
    if not names:
        raise InputError(f"{folder}: a folder has a file for each GPU that ran something, and none did")
    existing = os.listdir(folder) if folder.is_dir() else []
    strange = sorted(file for file in existing if file.endswith((".json", ".json.gz")) and file not in names)
    if strange:
        raise InputError(f"{folder}: {strange[0]} is there, and is not of this run")
    folder.mkdir(exist_ok=True)
    for rank, name in enumerate(names):
        _write(folder / name, _head([timeline], rank, len(names)), lines_of(timeline, rank=rank))
    return [str(folder / name) for name in names]


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Raise if a path cannot be a folder of traces; create nothing.

    Raises
    ------
    InputError
        There is a file of that name, or the parent directory does not exist.
    """
    path = Path(folder)
    if not path.parent.is_dir():
        raise InputError(f"{folder}: the directory {path.parent} does not exist")
    if path.exists() and not path.is_dir():
        raise InputError(f"{folder}: is a file, not a folder")


def lines_of(
    timeline: Timeline, run: int = 0, label: str = "", rank: int | None = None, most: int = _MAX_ARROWS
) -> Iterator[str]:
    """Yield the events of one run as JSON.

    Parameters
    ----------
    timeline : Timeline
    run : int
        Number of the run in its file; it keeps processes and flows of two runs apart.
    label : str
        Prefix of the names of its processes.
    rank : int, optional
        The only rank whose events are wanted.
    most : int
        Maximum number of arrows from producers to consumers.
    """
    visible = np.array([rank is None or timeline.rank_of(lane) == rank for lane in timeline.lanes])
    rows, crossed = timeline.rows_shown(), timeline.crossed
    rows, crossings = rows[visible[timeline.lane[rows]]], np.flatnonzero(visible[crossed])
    named = {lane for lane, is_visible in zip(timeline.lanes, visible.tolist(), strict=True) if is_visible}
    issuers = np.unique(timeline.trace.tasks["issuer"][rows]).tolist()
    yield from _names(timeline, label, named.union(timeline.issuer[issuer] for issuer in issuers))
    yield from _task_lines(timeline, run, rows)
    yield from _transfer_lines(timeline, crossings)
    yield from _arrow_lines(timeline, run, *timeline.arrows(most, visible))
    yield from _counter_lines(timeline, rank)


def _write(path: str | os.PathLike[str], head: str, lines: Iterator[str]) -> None:
    with atomic_text(path) as file:
        file.write(head)
        file.write(next(lines, ""))
        while piece := list(itertools.islice(lines, _BATCH)):
            file.write(",\n" + ",\n".join(piece))
        file.write("\n]}\n")


def _head(timelines: Sequence[Timeline], rank: int = 0, ranks: int = 1) -> str:
    """Return the text before the events; tools look for the blank in ``"rank": 0``."""
    properties: list[dict[str, object]] = []
    simulated: dict[str, str | int] = {"by": SIMULATOR, "runs": len(timelines)}
    if len(timelines) == 1:
        one = timelines[0].trace
        for number, d in enumerate(timelines[0].gpus):  # in Kineto's terms, as far as they are known
            device = one.job.machine.devices[d]
            facts = {"totalGlobalMem": device.memory_bytes, "numSms": device.details.sms}
            specified = {key: value for key, value in facts.items() if value is not None}
            launch_facts = {"launch_latency": device.launch_latency_ns, "gap": device.gap_ns}
            named = {"id": number, "name": device.name, "kind": device.kind}
            properties.append({**named, **specified, **launch_facts, "event_hop": device.event_ns})
        simulated |= {"synchronisation": one.synchronisation, "graph": one.job.graph.name}
        simulated |= {"tasks": len(one), "makespan_ns": one.makespan_ns}
    return (
        f'{{"schemaVersion":1,"distributedInfo": {{"rank": {rank}, "world_size": {ranks}}},'
        f'"simulated":{json.dumps(simulated)},"deviceProperties":{json.dumps(properties)},'
        '"displayTimeUnit":"ns","traceEvents":[\n'
    )


def _us(ns: IntArray) -> list[str]:
    """Return times as µs with three decimals."""
    whole, part = np.divmod(ns, 1000)
    return [f"{a}{_DECIMALS[b]}" for a, b in zip(whole.tolist(), part.tolist(), strict=True)]


# -- names --------------------------------------------------------------------------------------


def _names(timeline: Timeline, label: str, only: Set[Lane]) -> Iterator[str]:
    visible = [(name, [lane for lane in lanes if lane in only]) for name, lanes in timeline.processes()]
    for index, (name, lanes) in enumerate(visible, timeline.base):
        if lanes:
            title = f"{label}: {name}" if label else name
            yield from _name_events("process", Lane(lanes[0].pid, 0, title), index)
    for lane in itertools.chain.from_iterable(lanes for _, lanes in visible):
        yield from _name_events("thread", lane, lane.tid - 1)


def _name_events(kind: str, lane: Lane, index: int) -> Iterator[str]:
    yield f'{{"ph":"M","name":"{kind}_name",{lane},"args":{{"name":{json.dumps(lane.name)}}}}}'
    yield f'{{"ph":"M","name":"{kind}_sort_index",{lane},"args":{{"sort_index":{index}}}}}'


# -- slices -------------------------------------------------------------------------------------


def _task_lines(timeline: Timeline, run: int, visible: IntArray) -> Iterator[str]:
    """Yield the slice of every task and, if launched, that of its launch, tied together by a flow."""
    job = timeline.trace.job
    graph, devices, (titles, category_of) = job.graph, job.machine.devices, titles_of(job)
    facts, fact_of = distinct_rows(graph.kind_code, graph.stage + 1, graph.micro_batch + 1)
    fact_args = [
        f'"kind":{_quoted(graph.kinds[kind])}'
        + (f',"stage":{stage - 1}' if stage else "")
        + (f',"micro_batch":{micro_batch - 1}' if micro_batch else "")
        for kind, stage, micro_batch in facts
    ]
    meets = _collective_args(job)
    waits = [f',"waited for":"{word}"' if word else "" for word in WAITS]
    statuses = ["", *(f',"status":"{word}"' for word in STATUSES[1:])]
    cost = issue_costs_ns(job)
    lane_text, issuer_text = [str(lane) for lane in timeline.lanes], [str(lane) for lane in timeline.issuer]
    heads = [f'"ph":"X","cat":"{category}","name":' for category in _CATEGORIES]
    # Tools take anything with a stream for work of the GPU.
    streams = ["on stream" if category == "delay" else "stream" for category in _CATEGORIES]
    trace, columns, several = timeline.trace, timeline.trace.tasks, job.iterations > 1
    names = ("op", "ready_ns", "issue_ns", "start_ns", "end_ns")
    more = (columns["iteration"], columns["issuer"], trace.status, timeline.waits, trace.device)
    for rows in in_pieces(visible):  # for a million tasks at once, these numbers would take a gigabyte
        ops, ready_ns, issue_ns, start_ns, end_ns = (columns[name][rows] for name in names)
        spans = (ready_ns, start_ns, end_ns - start_ns, issue_ns - cost[ops], cost[ops])
        by_op = (column[ops].tolist() for column in (fact_of, category_of))
        by_row = (column[rows].tolist() for column in (*more, timeline.lane))
        tasks = zip(rows.tolist(), ops.tolist(), *by_row, strict=True)
        entries = zip(tasks, *map(_us, spans), *by_op, timeline.feeds.take(rows).lists(), strict=True)
        for task, ready, begin, length, call_begin, call_length, fact, category, fed_by in entries:
            row, op, n, issuer, status, wait, d, lane = task
            number, name, op_arg = row + 1, _quoted(graph.op_names[op]), ""
            title = name
            if titles[op] != graph.op_names[op]:
                title, op_arg = _quoted(titles[op]), f'"op":{name},'
            iteration = f',"iteration":{n}' if several else ""
            args = (
                f'{op_arg}{fact_args[fact]},"ready (us)":{ready}{iteration}{waits[wait]}{statuses[status]}'
                f"{meets.get(op, '')}{_feeds_arg(fed_by)}"
            )
            span = f'{heads[category]}{title},{lane_text[lane]},"ts":{begin},"dur":{length}'
            if category == 0:
                yield f'{{{span},"args":{{"External id":{number},{args}}}}}'
                continue
            tied = f'"External id":{number},"correlation":{number}'
            stream_args = f'"device":{timeline.ranks[d]},"{streams[category]}":{lane + 1}'
            yield f'{{{span},"args":{{{tied},{stream_args},{args}}}}}'
            call = _LAUNCHES[category] if devices[d].kind == "gpu" else "launch"
            yield (
                f'{{"ph":"X","cat":"cuda_runtime","name":"{call}",{issuer_text[issuer]},"ts":{call_begin},'
                f'"dur":{call_length},"args":{{{tied},"op":{name}}}}}'
            )
            flow = f'"cat":"ac2g","name":"ac2g","id":{run * _FLOWS_PER_RUN + number}'
            yield f'{{"ph":"s",{flow},{issuer_text[issuer]},"ts":{call_begin}}}'
            yield f'{{"ph":"f","bp":"e",{flow},{lane_text[lane]},"ts":{begin}}}'


def _feeds_arg(rows: Sequence[int]) -> str:
    """Return the argument that lists the tasks whose ends a task waited for, by ``External id``."""
    return f',"after":[{",".join(str(row + 1) for row in rows)}]' if rows else ""


def _collective_args(job: Job) -> dict[int, str]:
    """Return for each op of a communicator the arguments on its partners; the first name is Kineto's."""
    names = {"communicator": "Process Group Name", "peer": "peer", "group": "group", "pair": "pair"}
    return {
        op: "".join(
            f",{json.dumps(names[key])}:{json.dumps(value)}"
            for key, value in job.graph.attributes[op].items()
            if key in names
        )
        for op in ([] if job.collectives is None else job.collectives.op.tolist())
    }


def _transfer_lines(timeline: Timeline, crossing: IntArray) -> Iterator[str]:
    """Yield a slice for every link that a transfer crosses; the first also gives its endpoints."""
    transfers, graph, n = timeline.trace.transfers, timeline.trace.job.graph, len(timeline.trace)
    devices = [_quoted(device.name) for device in timeline.trace.job.machine.devices]
    names = ("tensor", "nbytes", "source", "destination")
    for piece in in_pieces(crossing):
        rows = timeline.crossing[piece]
        columns = (rows, timeline.crossed[piece], *(transfers[name][rows] for name in names))
        start = transfers["start_ns"][rows]
        spans = (start, transfers["end_ns"][rows] - start)
        after = timeline.feeds.take(n + rows).lists()
        entries = zip(*(column.tolist() for column in columns), *map(_us, spans), after, strict=True)
        for row, lane, tensor, nbytes, source, destination, begin, length, fed_by in entries:
            name, more = graph.tensor_name(tensor), _feeds_arg(fed_by)
            if lane == timeline.lane[n + row]:
                ends = f'"source":{devices[source]},"destination":{devices[destination]}'
                more = f',"tensor":{_quoted(name)},{ends}{more}'
            span = f'{timeline.lanes[lane]},"ts":{begin},"dur":{length}'
            args = f'"External id":{n + row + 1},"bytes":{nbytes}{more}'
            title = _quoted(f"transfer {name}")
            yield f'{{"ph":"X","cat":"gpu_memcpy","name":{title},{span},"args":{{{args}}}}}'


# -- flows and counters -------------------------------------------------------------------------


def _arrow_lines(timeline: Timeline, run: int, source: IntArray, target: IntArray) -> Iterator[str]:
    """Yield flows from producers to consumers."""
    start, end = timeline.trace.of_rows("start_ns"), timeline.trace.of_rows("end_ns")
    # Ids of their own, so that they do not join the flows of launches.
    first = run * _FLOWS_PER_RUN + len(timeline.trace) + 1
    # A flow begins in a slice, not behind it.
    leaves, arrives = _us(np.maximum(start[source], end[source] - 1)), _us(start[target])
    lanes = (timeline.lane[rows].tolist() for rows in (source, target))
    for number, (p, c, begin, arrive) in enumerate(zip(*lanes, leaves, arrives, strict=True), first):
        flow = f'"cat":"data","name":"data","id":{number}'
        yield f'{{"ph":"s",{flow},{timeline.lanes[p]},"ts":{begin}}}'
        yield f'{{"ph":"f","bp":"e",{flow},{timeline.lanes[c]},"ts":{arrive}}}'


def _counter_lines(timeline: Timeline, rank: int | None) -> Iterator[str]:
    for lane, title, key, times, values in timeline.counters():
        if rank is not None and timeline.rank_of(lane) != rank:
            continue
        head = f'{{"ph":"C","name":{json.dumps(title)},{lane},"ts":'
        tail = f',"args":{{{json.dumps(key)}:'
        for piece in in_pieces(np.arange(len(times))):
            for time, value in zip(_us(times[piece]), values[piece].tolist(), strict=True):
                yield f"{head}{time}{tail}{value}}}}}"


# ----------------------------------------------------------------------------------------------------------
# The lanes of a run, and what they show: tasks and the calls that launched them, arrows, counters.


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
        self.trace, self.base = trace, run * _PROCESSES_PER_RUN
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
        rows = np.flatnonzero(trace.alone)
        tasks, d = trace.tasks, trace.device[rows]
        depth, threads = levels(tasks["start_ns"][rows], tasks["end_ns"][rows], d, len(machine.devices))
        first_lane = len(self.lanes) + np.cumsum(threads) - threads
        self.lane = np.concatenate((tasks["stream"], np.full(len(trace.transfers["id"]), UNSET)))
        self.lane[rows] = first_lane[d] + depth
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
            channel.name if level == 0 else f"{channel.name} ({level + 1})"
            for channel, n in zip(machine.links, threads.tolist(), strict=True)
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
        ranks = {d: k * len(self.gpus) // len(cpus) for k, d in enumerate(cpus)}
        ranks |= {d: rank for rank, d in enumerate(self.gpus)}
        return [ranks.get(d, 0) for d in range(len(devices))]

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
        return [(names[pid], members) for pid, members in lanes.items()]

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
        pairs = np.unique(consumer * len(self.lane) + producer)
        consumer, producer = np.divmod(pairs, max(1, len(self.lane)))
        return Csr(np.searchsorted(consumer, np.arange(len(self.lane) + 1)), producer)

    def arrows(self, limit: int, visible: BoolArray) -> tuple[IntArray, IntArray]:
        """Return the earliest producers and consumers on different lanes, through transfers, by start.

        Only arrows between the lanes in the mask `visible` count.
        """
        producer, consumer = self._edges
        source, target = self.lane[producer], self.lane[consumer]
        crossing = np.flatnonzero((source != target) & visible[source] & visible[target])
        start = self.trace.of_rows("start_ns")[consumer[crossing]]
        crossing = crossing[np.argsort(start, kind="stable")[:limit]]
        return producer[crossing], consumer[crossing]

    def counters(self) -> Iterator[Counter]:
        """Yield the bytes in use (if any) and running tasks of every device, then the traffic of links.

        For a link that is bytes per second, each transfer at its mean rate, and, if there were several
        at once, their number.
        """
        trace = self.trace
        for d, (name, use) in enumerate(memory_use(trace, holders=0).items()):
            if use.peak_bytes:
                yield Counter(self.device(d), "memory", "in use (bytes)", use.times_ns, use.in_use_bytes)
            rows = np.flatnonzero(trace.device == d)
            start, end = trace.tasks["start_ns"][rows], trace.tasks["end_ns"][rows]
            times, running = in_use(start, end, np.ones(len(rows), np.int64))
            moves = np.diff(running, prepend=0) != 0
            if moves.any():
                yield Counter(self.device(d), "running", f"tasks on {name}", times[moves], running[moves])
        machine, lane, traffic = trace.job.machine, Lane(self.base + _LINKS, 0), traffic_on_links(trace)
        first, end = traffic.first_ns, traffic.end_ns
        rate = (traffic.nbytes * (NS_PER_S / np.maximum(end - first, 1))).astype(np.int64)
        bounds = np.searchsorted(traffic.link, np.arange(len(machine.links) + 1))
        for link, a, b in zip(machine.links, bounds, bounds[1:], strict=False):
            rows = a + np.flatnonzero(end[a:b] > first[a:b])
            if len(rows):
                rates = in_use(first[rows], end[rows], rate[rows])
                yield Counter(lane, f"{link.name} rate", "bytes/s", *rates)
                times, n = in_use(traffic.start_ns[rows], end[rows], np.ones(len(rows), np.int64))
                if n.max() > 1:
                    yield Counter(lane, f"{link.name} at once", "transfers", times, n)


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

_CATEGORIES: Final = ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "delay")

_WORKER, _KERNEL, _COPY, _FILL, _DELAY = range(5)

_LAUNCHES: Final = ("", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync", "launch")
"""Calls that launch ops of each category on a GPU; tools count CUDA's by these names."""


def titles_of(job: Job) -> tuple[list[str], IntArray]:
    """Return the title of every op, and its category, an index into `_CATEGORIES`."""
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
