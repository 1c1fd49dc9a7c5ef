"""Which ops communicate, for all or part of their time.

An op that computes and communicates in turn (a layer of a tensor-parallel model, as one op) gives its
communication time, if it is known, in the attribute ``communicates_ns``. When it communicates is not
known; it is shown as the last part of the op.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, BoolArray, Csr, FloatArray, IntArray
from sim.base.intervals import Cover, Intervals, union
from sim.base.units import NS_PER_S
from sim.explain.derived import DerivedColumns
from sim.explain.idle import Waits, held_up, idle_reasons
from sim.graph.graph import Graph
from sim.job.job import Job
from sim.record.record import Record

COMMUNICATION: Final = frozenset(
    {"all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "collective", "copy", "recv"}
    | {"reduce_scatter", "send", "synchronise", "transfer"}
)
"""Kinds of op that move data and compute nothing; for recorded ops see `moving_kinds`."""

INSIDE: Final = "communicates_ns"
"""Attribute of an op that computes: how much of its duration is communication that nothing hides."""


def communicates(trace: Record) -> BoolArray:
    """Return a mask of the tasks that move data and compute nothing."""
    return np.asarray(moving_ops(trace.job)[trace.tasks["op"]])


def inside_ns(graph: Graph) -> IntArray:
    """Return for how many ns of its duration each op communicates, by its attribute (`INSIDE`)."""
    return graph.column(INSIDE)


def computes_until_ns(trace: Record) -> IntArray:
    """Return when each task stops computing: its end, minus the communication inside.

    If a task took longer or shorter than its op, the same share is communication.
    """
    communicating = inside_ns(trace.job.graph)
    end: IntArray = trace.tasks["end_ns"]
    if not communicating.any():
        return end
    op = trace.tasks["op"]
    tasks = np.flatnonzero(communicating[op] > 0)
    actual, planned = end[tasks] - trace.begins_ns[tasks], trace.job.duration_ns[op[tasks]]
    part = communicating[op[tasks]]
    other = actual != planned
    if other.any():
        share = part[other] / np.maximum(planned[other], 1)
        part[other] = np.round(share * actual[other]).astype(np.int64)
    stop = end.copy()
    stop[tasks] -= np.clip(part, 0, actual)
    return stop


def moving_ops(job: Job) -> BoolArray:
    """Return a mask of the ops of a job that move data and compute nothing."""
    return moving_kinds(job.graph) | job.meets


def moving_kinds(graph: Graph) -> BoolArray:
    """Return a mask of the ops that move data and compute nothing, as far as the graph alone shows it.

    A ``copy`` is a memcpy, as in every export. Recorded ones are recognised by name (``Memcpy``, ``Memset``):
    those that cast, concatenate or transpose are copies by kind, but compute.
    """
    moves = graph.is_kind(*COMMUNICATION)
    for op in np.flatnonzero(graph.is_kind("copy", "fill")).tolist():
        kernel = graph.attributes.get(op, {}).get("kernel")
        if kernel is not None:
            moves[op] = str(kernel).startswith(("Memcpy", "Memset"))
    return moves


# ----------------------------------------------------------------------------------------------------------
# Exposed communication: the time in which a device communicates and computes nothing, and why.
#
#     compute      ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇
#     all_reduce            ◄ready ····queued····▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇
#                           └──── delay ────────┘               └──┘ exposed: the queue's, as without it ...
#                           ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇ ... computing would have hidden it
#
# A transfer that had begun earlier might have been hidden. So the delays of a collective are removed, the
# last one first, and each is charged with the exposed time that this saves, with the computing unchanged;
# time still exposed without any delay is needed for the transfer itself: bandwidth. The exposed time in which
# it waits for a late rank is charged to that rank. Time that two collectives expose at once is charged to the
# one that began first, and a transfer comes before a wait. Communication inside a computing op
# (`sim.explain.communication`) cannot be moved. All parts together are the ``communicate`` of
# `sim.explain.time_use` and the exposed waiting.
#
# A copy that only communication reads prepares it, and moves with it. So the delays of a collective include
# those of the copy that made its data:
#
#     host         ├compute┤├others┤├copy in┤├gather┤
#     compute               ▇▇▇▇▇▇▇▇▇▇▇▇
#     copy in                                ▇
#     gather                                         ▇▇▇▇▇▇▇▇   late, as the host launched the copy late
#                               ▇▇▇▇▇▇▇▇                        early enough
#
# A delay may reach back to before any computing: parameters are there at time 0. So it may also be removed
# in part, just enough for the transfer to end with the computing before it.

PARTS: Final = (
    *("straggler", "host late", "communicator order", "stream order", "other waits", "bandwidth"),
    *("inside ops", "transfers"),
)
"""Parts of exposed communication; "transfers" are those over links for which a device is idle."""

_PART_OF: Final = {
    "issue": "host late",
    "policy": "host late",
    "launch": "host late",
    "communicator": "communicator order",
    "stream": "stream order",
    "late rank": "straggler",
}
"""Reason of a delay (`sim.explain.idle.REASONS`) → the part; otherwise "other waits"."""

_COPIES: Final = ("copy_in", "concat", "copy", "cast")
"""Kinds of op that may prepare communication: they bring data into the place or form that it reads."""


def exposed_communication(f: DerivedColumns) -> dict[str, dict[str, int]]:
    """Return, for each device that communicates, the exposed ns by part, without parts of 0.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("late host")
    >>> _ = b.op("forward", duration_ns=50)
    >>> _ = b.op("gather", kind="all_gather", duration_ns=60)
    >>> machine = Machine((Device("gpu0", issue_ns=20, streams=2),))
    >>> exposed_communication(DerivedColumns(simulate(b.build(), machine, ReadyQueue())))
    {'gpu0': {'host late': 20, 'stream order': 30, 'bandwidth': 10}}
    """
    moves = communicates(f.trace)
    rows = np.flatnonzero(f.counts & moves & ~f.trace.alone)
    started, begun, ended = (np.clip(time, f.from_ns, f.to_ns) for time in (f.start, f.begins, f.end))
    prepares = _prepares(f, moves)

    def beside(computes: BoolArray) -> _Exclusive:
        hidden = Intervals(begun[computes], ended[computes], f.device[computes])
        return _Exclusive(Intervals(begun[rows], ended[rows], f.device[rows]), hidden, f)

    everything = Intervals(begun, np.where(f.trace.alone & moves, begun, ended), f.device)
    waiting = _Exclusive(Intervals(started[rows], begun[rows], f.device[rows]), everything, f).exposed_ns(0)
    transfers = beside(~moves)
    moving = transfers.exposed_ns(0)
    if prepares.any():
        transfers = beside(~moves & ~prepares)

    parts = {part: np.zeros(len(f.devices), np.int64) for part in PARTS}
    np.add.at(parts["straggler"], f.device[rows], waiting)
    earlier, enough = np.zeros(len(rows), np.int64), transfers.to_computing
    for reason, tasks, ns in _delays(f, rows, prepares):
        earlier[tasks] += ns
        exposed = moving
        for shift in (np.minimum(earlier, enough), earlier):
            exposed = np.minimum(exposed, transfers.exposed_ns(shift))
        np.add.at(parts[_PART_OF.get(reason, "other waits")], f.device[rows], moving - exposed)
        moving = exposed
    np.add.at(parts["bandwidth"], f.device[rows], moving)
    stop = np.clip(computes_until_ns(f.trace), begun, ended)
    if (mixed := np.flatnonzero(~moves & f.counts & (stop < ended))).size:
        computing = Intervals(begun[~moves], stop[~moves], f.device[~moves])
        communicating = Intervals(stop[mixed], ended[mixed], f.device[mixed])
        np.add.at(parts["inside ops"], f.device[mixed], _Exclusive(communicating, computing, f).exposed_ns(0))
    for name, by_reason in idle_reasons(f).items():
        parts["transfers"][f.machine.device_index(name)] += by_reason.get("transfer", 0)
    return {
        device.name: by_part
        for d, device in enumerate(f.devices)
        if (by_part := {part: int(ns[d]) for part, ns in parts.items() if ns[d]})
    }


def _prepares(f: DerivedColumns, moves: BoolArray) -> BoolArray:
    """Return a mask of the tasks that copy data that only communication reads."""
    copies: BoolArray = f.job.graph.is_kind(*_COPIES)[f.trace.tasks["op"]]
    if copies.any():
        producer, consumer, _ = f.edges
        rows = len(f.row_end)
        moving = np.append(moves, np.zeros(rows - f.n, bool))  # readers over links are not seen here
        read, otherwise = np.zeros(rows, bool), np.zeros(rows, bool)
        read[producer] = True
        otherwise[producer[~moving[consumer]]] = True
        copies &= (read & ~otherwise)[: f.n]
    return copies


def _delays(f: DerivedColumns, rows: IntArray, prepares: BoolArray) -> Waits:
    """Yield the delays of tasks and of the copies that prepared them, last first: reason, tasks, ns."""
    tasks = np.arange(len(rows))
    while len(rows):
        for reason, _, ns in reversed(list(held_up(f, rows, f.data[rows], f.begins[rows]))):
            if ns.any():
                yield reason, tasks, ns
        before = f.last_producer[rows]
        copies = (before != UNSET) & (before < f.n)
        copies[copies] = prepares[before[copies]] & (f.device[before[copies]] == f.device[rows[copies]])
        rows, tasks = before[copies], tasks[copies]


class _Exclusive:
    """Parts of intervals in which no earlier one runs, and how much of them the others leave uncovered."""

    def __init__(self, intervals: Intervals, others: Intervals, f: DerivedColumns) -> None:
        start, self.end, self.device = intervals
        self.spacing = f.trace.makespan_ns + 1
        offset = self.device * self.spacing
        order = np.lexsort((start, self.device))
        reach = np.maximum.accumulate((self.end + offset)[order])
        later = order[1:]
        self.start = start.copy()
        self.start[later] = np.clip(reach[:-1] - offset[later], start[later], self.end[later])
        self.merged = union(*others)
        self.others = Cover(self.merged, f.trace.makespan_ns)

    @property
    def to_computing(self) -> IntArray:
        """How much earlier each would have to be to end with the last of the others that began before it."""
        start, end, device = self.merged
        if not len(start):
            return np.zeros(len(self.start), np.int64)
        k = np.searchsorted(start + device * self.spacing, self.start + self.device * self.spacing) - 1
        return np.where((k >= 0) & (device[k] == self.device), np.maximum(self.end - end[k], 0), 0)

    def exposed_ns(self, earlier: IntArray | int) -> IntArray:
        """Return how much of each would be uncovered if it were `earlier`."""
        covered = self.others.between(self.start - earlier, self.end - earlier, self.device)
        return np.asarray(self.end - self.start - covered)


# ----------------------------------------------------------------------------------------------------------
# What collectives wait for on each communicator: the previous one in line, and late ranks.
#
#     dp    4 ranks, 12 meetings   late ranks 35 us   in line 14 us, most 'gpu0/AG1', 14 us behind 'gpu0/RS3'


class Waited(NamedTuple):
    """A wait over all ranks: its total, the row that waited longest, and for how long."""

    total_ns: int
    row: int
    longest_ns: int


def communicator_waits(f: DerivedColumns) -> list[tuple[str, int, int, Waited, Waited]]:
    """Return the waits of collectives by communicator, over all its ranks, in the order of their first ops.

    Returns
    -------
    list of (name, ranks, meetings, late, in_line)
        Numbers of its ranks and meetings; the waits for late ranks, and in line.
    """
    met, collectives = f.meetings, f.job.collectives
    if met is None or collectives is None:
        return []
    waits = {reason: ns for reason, _, ns in held_up(f, met.row, f.data[met.row], f.begins[met.row])}
    communicator = collectives.communicator[met.entry]
    machine = f.job.machine
    times = machine.stands_for[collectives.device[met.entry]]
    ranks = {} if machine.folding is None else machine.folding.ranks
    entries = []
    for k, name in enumerate(collectives.names):
        rows = np.flatnonzero(communicator == k)
        if not len(rows):
            continue  # none of them had started when a part of the machine failed
        late, in_line = (
            Waited(int((ns * times)[rows].sum()), int(met.row[rows[ns[rows].argmax()]]), int(ns[rows].max()))
            for ns in (waits["late rank"], waits["communicator"])
        )
        size, n_meetings = ranks.get(name, len(collectives.ranks[k])), len(np.unique(met.meeting[rows]))
        entries.append((name, size, n_meetings, late, in_line))
    return entries


# ----------------------------------------------------------------------------------------------------------
# The traffic on links: which transfers use which link, other messages, and its load over time.


class Traffic(NamedTuple):
    """Traffic on links, transfers and messages of collectives: one entry for each link on their routes.

    Attributes
    ----------
    row, link, nbytes : arrays of int64
        Sorted by link, then row; messages have the rows after those of the transfers.
    start_ns, first_ns, end_ns : arrays of int64
        When it started, when its first byte arrived, and when the last had.
    """

    row: IntArray
    link: IntArray
    nbytes: IntArray
    start_ns: IntArray
    first_ns: IntArray
    end_ns: IntArray


def traffic_on_links(trace: Record) -> Traffic:
    """Return all traffic on links."""
    machine, transfers = trace.job.machine, trace.transfers
    names = ("source", "destination", "nbytes", "start_ns", "end_ns")
    pairs = zip((transfers[name] for name in names), trace.messages.T[[0, 1, 2, 4, 5]], strict=True)
    source, destination, nbytes, start, end = (np.concatenate(pair) for pair in pairs)
    tensor = np.concatenate((transfers["tensor"], np.zeros(len(trace.messages), np.int64)))
    routes, route_of = machine.distinct_routes(source, destination, tensor)
    latency = np.array([machine.latency_ns(route) for _, _, route in routes], np.int64)[route_of]
    used = Csr.of_rows([route for _, _, route in routes]).take(route_of)
    order = np.argsort(used.indices, kind="stable")
    row, link = used.rows()[order], used.indices[order]
    first = np.minimum(start + latency, end)
    return Traffic(row, link, nbytes[row], start[row], first[row], end[row])


def transfers_on_links(trace: Record) -> tuple[IntArray, IntArray]:
    """Return (row of the transfer, link) for every link that a transfer crosses, by link, then row."""
    traffic = traffic_on_links(trace)
    is_transfer = traffic.row < len(trace.transfers["id"])
    return traffic.row[is_transfer], traffic.link[is_transfer]


class LinkLoad(NamedTuple):
    """The used share of a link's bandwidth over time.

    Attributes
    ----------
    link : str
    bytes_per_s : int
        Its bandwidth.
    nbytes : int
        Total bytes that crossed it.
    times_ns : array of int64
        From 0 to the makespan.
    share : array of float
        Share of the bandwidth from ``times_ns[k]`` to the next, to four decimals; the last is 0.
    mean : float
        Mean share over the makespan.
    """

    link: str
    bytes_per_s: int
    nbytes: int
    times_ns: IntArray
    share: FloatArray
    mean: float

    def means(self, edges_ns: IntArray) -> FloatArray:
        """Return the mean share between each edge and the next."""
        integral = np.concatenate(([0.0], np.cumsum(self.share[:-1] * np.diff(self.times_ns))))
        return np.asarray(np.diff(np.interp(edges_ns, self.times_ns, integral)) / np.diff(edges_ns))


def link_loads(trace: Record) -> list[LinkLoad]:
    """Return the load of each link that carried bytes and has a bandwidth, in machine order.

    The bytes of each transfer or message are spread evenly over the time from the arrival of its first byte
    to that of its last, on all links of its route: traces do not record the rates in between.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Link, Machine, simulate
    >>> from devices.network import make_network
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("moved")
    >>> _ = b.op("a", duration_ns=100, device="x", outputs=1000)
    >>> _ = b.op("b", duration_ns=100, device="y", inputs=["a"])
    >>> link = Link("xy", "x", "y", 0, 10**9)
    >>> machine = Machine((Device("x"), Device("y")), (link,), network=make_network)
    >>> (load,) = link_loads(simulate(b.build(), machine, ReadyQueue()))
    >>> load.link, load.times_ns.tolist(), load.share.tolist(), load.nbytes
    ('xy', [0, 100, 1100, 1200], [0.0, 1.0, 0.0, 0.0], 1000)
    """
    traffic, horizon_ns = traffic_on_links(trace), max(trace.makespan_ns, 1)
    travels = traffic.end_ns > traffic.first_ns
    loads = []
    for k, link in enumerate(trace.job.machine.links):
        mask, bandwidth = travels & (traffic.link == k), link.bandwidth_bytes_per_s
        if bandwidth is None or not mask.any():
            continue
        first, end = traffic.first_ns[mask], traffic.end_ns[mask]
        rate = traffic.nbytes[mask] * (NS_PER_S / bandwidth) / (end - first)
        times, index = np.unique(np.concatenate((first, end, [0, horizon_ns])), return_inverse=True)
        change = np.zeros(len(times))
        np.add.at(change, index[: 2 * len(rate)], np.concatenate((rate, -rate)))
        share = np.round(np.cumsum(change), 4).astype(np.float64) + 0.0  # no -0
        nbytes = int(traffic.nbytes[mask].sum())
        mean = nbytes * NS_PER_S / bandwidth / horizon_ns
        loads.append(LinkLoad(link.name, bandwidth, nbytes, times, share, mean))
    return loads
