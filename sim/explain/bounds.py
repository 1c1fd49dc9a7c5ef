"""Lower bounds: no schedule of this job, under any policy, ends earlier.

Five reasons why a job takes time, each with a bound of its own::

    critical path   the longest chain of ops and transfers        a ──► b ──► c
    device          its work, spread over all its lanes or cores  ──► ▇▇▇▇ / 2 lanes ──►
    stream, host    work that must go one after another           ──► ▇ ▇ ▇ ▇ ──►
    link            its bytes at full bandwidth                   ──► ▇▇▇ ──►
    resource        the work of the ops that take it, divided by its capacity

All but the first also count the time that has to pass before and after any subset of their work.
They hold for the job as it was placed and assigned to streams; another placement has other bounds.
List scheduling is never worse than (2 - 1/m) times the greatest of the first two on m equal lanes
(Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import Final, NamedTuple

import numpy as np

from sim.base import edge_passes
from sim.base.arrays import BoolArray, Csr, IntArray, distinct_rows, group_pairs, least_by, sums_by
from sim.base.compiled import load
from sim.base.units import NS_PER_S
from sim.graph.frames import has_control_flow
from sim.graph.rendezvous_keys import rendezvous_keys
from sim.job.costs import issue_costs_ns
from sim.job.job import Job
from sim.job.places import crossing_reads
from sim.job.transfers import Flow, Travel, make_flow, travel_ns
from sim.readiness.eligibility import edges_at_issue, non_strict_ops
from sim.record.record import Record

# ----------------------------------------------------------------------------------------------------------
# The critical path of a job: the longest chain of ops and of the transfers between them.
#
#     gpu0:  a ──►──┐ transfer            iteration 0    a ─► b ─┐ distance 1
#     gpu1:         └──► b ──► c          iteration 1            └─► a ─► b
#
# Here only inputs hold an op back: every device has all the lanes it needs, deciding and launching cost
# nothing, and every transfer has its links to itself. Edges into later iterations chain the iterations
# together. A non-strict op waits for the earliest of its inputs.

_MAX_NS: Final = 2**62


def longest_chain_ns(job: Job, ns: IntArray) -> int:
    """Return the end of the last op if only inputs and transfers hold ops back."""
    graph = job.graph
    crossing, device, home = crossing_reads(job)
    tensor, device = graph.inputs.indices[crossing], device[crossing]
    travel = np.zeros(len(crossing), np.int64)
    travel[crossing] = travel_ns(job.machine, home[tensor], device, tensor, graph.tensor_nbytes[tensor])
    waits = np.where(non_strict_ops(graph), edge_passes.FIRST, edge_passes.ALL)
    if has_control_flow(graph):  # a merge waits for one of its inputs, but which one is unknown
        waits[waits == edge_passes.FIRST] = edge_passes.NO_DATA  # its inputs may be dead
        waits[graph.is_kind("merge")] = edge_passes.NOTHING
        travel = np.zeros_like(travel)  # a dead tensor travels in no time
    producer = graph.tensor_producer[graph.inputs.indices]
    chained = graph.input_distance.any() or graph.after_distance.any()
    iterations = job.iterations if chained else 1
    # C integers wrap around where Python's grow.
    small = iterations * (ns.sum(dtype=float) + travel.sum(dtype=float)) < _MAX_NS
    longest_ns: Callable[..., int] = (load("edge_passes", "base") if small else edge_passes).longest_ns
    inputs = (graph.inputs.indptr, producer, graph.input_distance, travel)
    after = (graph.after.indptr, graph.after.indices, graph.after_distance)
    return longest_ns(iterations, [graph.topological_order, ns, waits, *inputs, *after])


class Bounds(NamedTuple):
    """Lower bounds of the makespan, in ns.

    Attributes
    ----------
    by_source : mapping of str to int
        ``"critical path"``: the longest chain of durations and transfers, over all iterations, without
        overheads. ``"device gpu0"``, ``"stream gpu0/0"``, ``"issuer gpu0/host"``, ``"link nvlink"``,
        ``"resource crane"``: its work, plus the time needed before and after; overheads that no policy can
        avoid (issue costs, launch latency, gaps) count here. ``"critical path with launches"``: the longest
        chain, including issue and launch costs on the way, and releases. All 0 if an op failed.
    loops_counted_once : bool
        Whether control flow repeated ops. Their work counts as often as they ran; the critical path counts
        them once, because the repetitions need not have followed one another. The bound holds, but a
        makespan's distance from it says little.
    failed : bool
        Whether an op failed, or a step was aborted.
    """

    by_source: Mapping[str, int]
    loops_counted_once: bool = False
    failed: bool = False

    @property
    def critical_path_ns(self) -> int:
        """The longest chain of durations and transfers."""
        return self.by_source["critical path"]

    @property
    def lower_bound_ns(self) -> int:
        """The greatest of the bounds."""
        return max(self.by_source.values())

    @property
    def binding(self) -> str:
        """The source of the greatest bound."""
        return max(self.by_source, key=self.by_source.__getitem__)

    @property
    def no_gap(self) -> str | None:
        """Why the distance from the bound says nothing about a run; None: it does.

        Examples
        --------
        >>> Bounds({"critical path": 0}).no_gap
        'no op has to take any time'
        """
        if self.failed:
            return "an op or a device failed, so that others never ran or ran again"
        if self.loops_counted_once:
            return "chains through loops count once, however often they ran"
        return None if self.lower_bound_ns else "no op has to take any time"

    def gap(self, makespan_ns: int) -> float | None:
        """Return the relative distance of a makespan above the bound; None: see `no_gap`.

        Examples
        --------
        >>> Bounds({"critical path": 80}).gap(100)
        0.25
        """
        return None if self.no_gap else makespan_ns / self.lower_bound_ns - 1


def bounds(
    work: Job | Record,
    duration_ns: IntArray | None = None,
    synchronisation: str | None = None,
    *,
    exact: bool = False,
) -> Bounds:
    """Return all lower bounds of a job, or of the job that a trace ran.

    Parameters
    ----------
    work : Job or Trace
        How often control flow runs an op is known only from a trace; for a job with control flow, ops
        count for nothing.
    duration_ns : array of int64, optional
        One duration per op instead of the job's.
    synchronisation : str, optional
        When ops become eligible (`sim.policy.Policy`), if the bounds are to hold only for policies with
        that value: a host that waits for each kernel pays for the next one after it.
    exact : bool
        Whether all sets of tasks of a machine are considered, which takes longer.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("four")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": [], "d": []}.items():
    ...     _ = b.op(name, inputs=inputs, duration_ns=10)
    >>> limits = bounds(make_job(b.build(), Machine((Device("cpu0", "cpu", workers=2),))))
    >>> limits.critical_path_ns, limits.lower_bound_ns, limits.binding
    (20, 20, 'critical path')
    """
    job, trace = (work.job, work) if isinstance(work, Record) else (work, None)
    if trace is not None and trace.failed:
        return Bounds({"critical path": 0}, failed=True)
    compute = partial(_bounds, job, trace, duration_ns, synchronisation, exact)
    varies = has_control_flow(job.graph) or job.noisy_ns is not None or job.drawn is not None
    if varies or duration_ns is not None or (trace is not None and trace.alone.any()):
        return compute()
    return job.once(("bounds", synchronisation, exact), compute)


def _bounds(
    job: Job, trace: Record | None, duration_ns: IntArray | None, synchronisation: str | None, exact: bool
) -> Bounds:
    graph = job.graph
    static = not has_control_flow(graph)
    ns = least_durations_ns(job if trace is None else trace) if duration_ns is None else duration_ns
    runs, off_lane, cost = _runs_of_ops(job, trace), _runs_off_lanes(trace), issue_costs_ns(job)
    flow = None  # of heads and tails, if ops wait for all their inputs and all that is sent is asked for
    if static and not non_strict_ops(graph).any() and not rendezvous_keys(graph).unsure:
        flow = make_flow(job) if trace is None else trace.flow
    around = heads_and_tails(job, flow, ns, cost, synchronisation)
    launches_ns = 0 if flow is None else int((around.start + around.ns + around.tail).max(initial=0))
    total = (runs - off_lane) * ns
    if duration_ns is None:
        total = np.maximum(total, _drawn_ns(job, trace))
    load = _Load(job, ns, total, cost, runs - off_lane, around, exact)
    by_source = {
        "critical path": longest_chain_ns(job, np.where(runs > 0, ns, 0)),
        **_devices(load),
        **(_streams(load) | _hosts(load) if job.launched.any() else {}),
        **(_links(job, load, flow) if static else {}),
        **_resources(load),
        "critical path with launches": launches_ns,
    }
    return Bounds(by_source, not static and bool((runs > job.iterations).any()))


def _runs_of_ops(job: Job, trace: Record | None) -> IntArray:
    """Return how often each op executes; 0 for a job with control flow, where this is unknown."""
    n = len(job.graph)
    if not has_control_flow(job.graph):
        return np.full(n, job.iterations)
    return np.zeros(n, np.int64) if trace is None else _count(trace, trace.executed)


def _runs_off_lanes(trace: Record | None) -> IntArray | int:
    """Return how many runs of each op kept no worker and no stream busy."""
    return 0 if trace is None else _count(trace, trace.alone)


def _count(trace: Record, mask: BoolArray) -> IntArray:
    return np.bincount(trace.tasks["op"][mask], minlength=len(trace.job.graph))


def least_durations_ns(work: Job | Record) -> IntArray:
    """Return the duration of each op, the shortest of its tasks if noise makes them differ."""
    job, trace = (work.job, work) if isinstance(work, Record) else (work, None)
    if job.drawn is not None and trace is not None:
        ran = np.flatnonzero(trace.executed)
        shortest = least_by(trace.tasks["op"][ran], trace.alone_ns[ran], len(job.graph), _MAX_NS)
        return np.where(_runs_of_ops(job, trace) > 0, shortest, job.duration_ns)
    ns = job.duration_ns if job.noisy_ns is None else job.noisy_ns.min(axis=0)
    if job.collectives is not None and job.carried.any():  # their time depends on other traffic
        ns = ns.copy()
        ns[job.collectives.op[job.carried]] = 0
    return ns


def _drawn_ns(job: Job, trace: Record | None) -> IntArray:
    """Return the total duration of the tasks of each op if noise drew them; 0: it did not."""
    total = np.zeros(len(job.graph), np.int64)
    if job.drawn is not None and trace is not None:
        ran = np.flatnonzero(trace.executed & ~trace.alone)
        total = sums_by(trace.tasks["op"][ran], trace.alone_ns[ran], len(job.graph))
    elif job.noisy_ns is not None:
        total = np.where(_runs_off_lanes(trace), 0, job.noisy_ns.sum(axis=0))
    return np.where(job.meets, 0, total)  # the duration of a collective depends on all its ranks


def cores_of_ops(job: Job) -> IntArray:
    """Return the number of cores that each op occupies: its device's default, or its ``cores`` if counted."""
    devices, device_of = job.machine.devices, job.device_of
    cores = np.array([device.cores_per_op for device in devices])[device_of]
    for op, count in job.graph.attribute("cores").items():
        if devices[device_of[op]].counts_cores:
            cores[op] = count
    return cores


def least_cores_of_ops(job: Job) -> IntArray:
    """Return the minimum number of cores of each op, averaged over its duration.

    For ops that share a pool of threads it is one: with fewer threads each thread does more.
    """
    pooled = np.array([device.details.intra_op_pool is not None for device in job.machine.devices])
    return np.where(pooled[job.device_of], 1, cores_of_ops(job))


# -- work ---------------------------------------------------------------------------------------


class _Load(NamedTuple):
    """The demand of each op: minimum duration, total duration of its tasks, issue cost and number of runs;
    with the heads and tails around it.

    `exact` bounds are over all sets of tasks of a machine.
    """

    job: Job
    ns: IntArray
    total_ns: IntArray
    cost: IntArray
    runs: IntArray
    around: HeadsAndTails
    exact: bool

    @property
    def around_ops(self) -> HeadsAndTails:
        """The heads and tails of ops, without transfers."""
        return HeadsAndTails(*(column[: len(self.ns)] for column in self.around))

    def between(self, head: IntArray, body: IntArray, tail: IntArray, capacity: int = 1) -> int:
        """Return the least time of a machine with some tasks."""
        if self.exact:
            return between_ns(head.tolist(), body.tolist(), tail.tolist(), capacity)
        return around_ns(head, body, tail, capacity)

    def least_ns(
        self,
        machine_of: IntArray,
        capacity: Sequence[int],
        *,
        head: IntArray,
        extra: IntArray | int,
        times: IntArray | int,
        tail: IntArray,
    ) -> list[int]:
        """Return the least time of each of some machines, 0 without capacity.

        `machine_of` gives each op's machine. A task keeps it busy for `times` its duration, plus `extra`.
        """
        ran = np.flatnonzero(self.runs > 0)
        rows = Csr.group(machine_of[ran], ran, len(capacity))
        body = extra * self.runs + times * self.total_ns
        result = []
        for k, units in enumerate(capacity):
            ops = rows.row(k)
            result.append(self.between(head[ops], body[ops], tail[ops], units) if units else 0)
        return result


def _devices(load: _Load) -> dict[str, int]:
    """Bound each device by its work over its lanes, over its cores, and over its SMs and their bandwidth.

    A worker pays for issuing with its own time, a stream does not.
    """
    job, devices, around, result = load.job, load.job.machine.devices, load.around_ops, {}
    device_of = job.device_of
    extra = np.where(job.launched, job.gap_ns, load.cost)
    begin = np.where(job.launched, around.start, around.taken)
    of_lanes = [device.lanes for device in devices]
    lanes = load.least_ns(device_of, of_lanes, head=begin, extra=extra, times=1, tail=around.tail)
    times = np.where(job.meets, 0, least_cores_of_ops(job))  # a collective need not use its cores
    of_cores = [device.cores for device in devices]
    cores = load.least_ns(device_of, of_cores, head=around.start, extra=0, times=times, tail=around.tail)
    ops = np.bincount(device_of, minlength=len(devices)).tolist()
    for d, device in enumerate(devices):
        bound = max(0, lanes[d] - (0 if device.workers else device.gap_ns), cores[d])
        if device.least_ns is not None and ops[d]:
            bound = max(bound, device.least_ns(device, job, load.ns, load.runs))
        result[f"device {device.name}"] = bound
    return result


def _streams(load: _Load) -> dict[str, int]:
    """Bound each stream by its tasks, the gaps between them, and the time before and after them."""
    job, machine, around, result = load.job, load.job.machine, load.around_ops, {}
    one = [1] * machine.first_stream[-1]
    bound = load.least_ns(job.stream_of, one, head=around.start, extra=job.gap_ns, times=1, tail=around.tail)
    for d, device in enumerate(machine.devices):
        if device.workers:
            continue
        for stream in range(machine.first_stream[d], machine.first_stream[d + 1]):
            if ns := bound[stream]:
                result[f"stream {machine.stream_name(stream)}"] = max(0, ns - device.gap_ns)
    return result


def _hosts(load: _Load) -> dict[str, int]:
    """Bound each group of issuers that launch by its issue costs, and the time before and after them.

    If workers of a CPU are the issuers, they also execute.
    """
    job, around = load.job, load.around_ops
    members = group_pairs((issuer.group, issuer.name) for issuer in job.machine.issuers())
    launches = np.bincount(job.group_of[job.launched & (load.runs > 0)], minlength=job.n_groups)
    issuers = [len(members[group]) for group in range(job.n_groups)]
    times, tail = np.where(job.launched, 0, 1), np.where(job.launched, around.issued, around.tail)
    bound = load.least_ns(job.group_of, issuers, head=around.taken, extra=load.cost, times=times, tail=tail)
    return {f"issuer {names[0]}": bound[group] for group, names in members.items() if launches[group]}


def _resources(load: _Load) -> dict[str, int]:
    """Bound each resource by the work of the ops that take it, times the amount that they take."""
    around, result = load.around_ops, {}
    for name, capacity in load.job.machine.resources.items():
        needs = {op: n[name] for op, n in load.job.graph.attribute("resources").items() if name in n}
        ops = np.array([*needs], np.int64)
        work = load.total_ns[ops] * np.array([*needs.values()], np.int64)
        result[f"resource {name}"] = load.between(around.start[ops], work, around.tail[ops], capacity)
    return result


def _links(job: Job, load: _Load, flow: Flow | None) -> dict[str, int]:
    """Bound each link by the traffic that must cross it.

    A serial link is held by one transfer at a time, latency included. On a shared or fifo link only the bytes
    add up, and the last byte arrives a latency after it was sent. On an independent one nothing adds up.
    """
    machine, graph = job.machine, job.graph
    if not machine.links:
        return {}
    crossing, reader, home = crossing_reads(job)
    n_devices = len(machine.devices)
    # Faster than `np.unique`, which hashes
    keys = np.sort((graph.inputs.indices * n_devices + reader)[crossing])
    keys = keys[np.diff(keys, prepend=-1) != 0]
    tensor, reader = np.divmod(keys, n_devices)
    routes, route_of = machine.distinct_routes(home[tensor], reader, tensor)
    travels = [Travel.along(machine, *index) for index in routes]
    moves, move_of = distinct_rows(route_of, graph.tensor_nbytes[tensor])
    busy, nbytes, longest = ([0] * len(machine.links) for _ in range(3))
    used: set[int] = set()
    for (index, size), count in zip(moves, np.bincount(move_of).tolist(), strict=True):
        ns, channels = travels[index].ns(size), {machine.channels[link] for link in routes[index][2]}
        used |= channels
        for k in channels:
            busy[k] += ns * count * job.iterations
            longest[k] = max(longest[k], ns)
            nbytes[k] += size * count * job.iterations
    result = {}
    for k in sorted(used):
        link, rate = machine.links[k], machine.links[k].bandwidth_bytes_per_s
        flowing = 0 if rate is None else -(-nbytes[k] * NS_PER_S // rate)
        flows = link.latency_ns + flowing
        by_sharing = {"serial": busy[k], "shared": flows, "fifo": flows, "independent": longest[k]}
        result[k] = by_sharing[link.sharing]
    if flow is not None:
        for k, ns in _serial_links(load, flow).items():
            result[k] = max(result.get(k, 0), ns)
    return {f"link {machine.links[k].name}": ns for k, ns in result.items()}


def _serial_links(load: _Load, flow: Flow) -> dict[int, int]:
    """Bound each serial link by its transfers, and by the time before and after them."""
    job, around = load.job, load.around
    routes, route_of = job.machine.distinct_routes(flow.source, flow.destination, flow.tensor)
    transfers = Csr.group(route_of, np.arange(flow.n_ops, flow.n_nodes), len(routes))
    by_link: dict[int, list[IntArray]] = {}
    for index, (_, _, route) in enumerate(routes):
        for k in {job.machine.channels[link] for link in route}:
            if job.machine.links[k].sharing == "serial":
                by_link.setdefault(k, []).append(transfers.row(index))
    result = {}
    for k, parts in by_link.items():
        nodes = np.sort(np.concatenate(parts))
        result[k] = load.between(around.start[nodes], around.ns[nodes] * job.iterations, around.tail[nodes])
    return result


# ----------------------------------------------------------------------------------------------------------
# Work between heads and tails: a machine cannot begin before its tasks can, nor end last of all.
#
#     head 2   ▇▇▇ body   tail 4          for any set of tasks of a machine:
#     head 0      ▇▇▇▇▇   tail 1          least head + sum of bodies / capacity + least tail
#
# The greatest over all sets is the makespan of Jackson's preemptive schedule: whenever a task arrives or
# ends, the machine goes on with the task that has the longest tail (Jackson 1955, "Scheduling a production
# line to minimize maximum tardiness"; for the proof see Carlier 1982, "The one-machine sequencing problem",
# EJOR 11(1)). A machine of capacity m is no faster than one that is m times as fast.


def around_ns(head: IntArray, body: IntArray, tail: IntArray, capacity: int = 1) -> int:
    """Return a bound like `between_ns`, over fewer sets of tasks, by array operations.

    The sets are all tasks from some head on, and all from some tail on.

    Examples
    --------
    >>> around_ns(np.array([2, 0]), np.array([3, 5]), np.array([4, 1]))
    9
    """
    if not len(head):
        return 0
    longest = 0
    for one, other in ((head, tail), (tail, head)):
        order = np.argsort(one, kind="stable")[::-1]
        work = np.cumsum(body[order])
        margins = one[order] + np.minimum.accumulate(other[order])
        longest = max(longest, int((margins - -work // capacity).max()))
    return longest


def between_ns(head: Sequence[int], body: Sequence[int], tail: Sequence[int], capacity: int = 1) -> int:
    """Return the least time for the tasks of a machine, from 0 to the end of the longest tail.

    Parameters
    ----------
    head, body, tail : sequence of int
        For each task: its earliest begin, its demand in ns of one unit of the capacity, and the least time
        that has to follow it.
    capacity : int
        The number of units that work at once.

    Examples
    --------
    >>> between_ns([2, 0], [3, 5], [4, 1])
    9
    >>> between_ns([0, 0, 0], [10, 10, 10], [0, 0, 0], capacity=2)
    15
    """
    tasks = sorted((h * capacity, b, t * capacity) for h, b, t in zip(head, body, tail, strict=True))
    waiting: list[tuple[int, int]] = []  # minus the tail, and the remaining demand
    now = longest = k = 0
    while k < len(tasks) or waiting:
        if not waiting:
            now = max(now, tasks[k][0])
        while k < len(tasks) and tasks[k][0] <= now:
            heappush(waiting, (-tasks[k][2], tasks[k][1]))
            k += 1
        tail_ns, remaining = heappop(waiting)
        stop = tasks[k][0] if k < len(tasks) else now + remaining
        done = min(remaining, stop - now)
        now += done
        if done < remaining:
            heappush(waiting, (tail_ns, remaining - done))
        else:
            longest = max(longest, now - tail_ns)
    return -(-longest // capacity)


# ----------------------------------------------------------------------------------------------------------
# The earliest time of each task, and the least time that has to follow it, whatever else is going on.
#
#     head  ──────────►│ taken ─issue─► launch ─► start ▇▇▇▇ end │◄────────── tail
#
# Only costs that no policy can avoid count: durations, transfers, and costs paid between an op's inputs and
# its start. A worker always pays these; a host pays them for each op of a chain only if none is issued before
# its inputs are computed (`synchronisation`). Heads are of the first iteration and tails of the last, so they
# hold for every iteration.


class HeadsAndTails(NamedTuple):
    """Times before and after each node of a flow (ops, then transfers), in ns.

    Attributes
    ----------
    taken, start : array of int64
        Earliest time at which an issuer takes it, and its earliest start.
    ns : array of int64
        Its duration.
    issued, tail : array of int64
        Least time from the end of its issue, and from its own end, to the end of everything.
    """

    taken: IntArray
    start: IntArray
    ns: IntArray
    issued: IntArray
    tail: IntArray


def heads_and_tails(
    job: Job, flow: Flow | None, ns: IntArray, cost: IntArray, synchronisation: str | None
) -> HeadsAndTails:
    """Return the heads and tails of a job.

    Parameters
    ----------
    job : Job
    flow : Flow or None
        None: of a job with control flow, or with ops that are not strict; only an op's own launch counts.
    ns, cost : array of int64
        For each op: its least duration, and the cost of issuing it.
    synchronisation : str or None
        None: unknown, so the costs of a host count only once.
    """
    devices = job.machine.devices
    latency = np.array([0 if d.workers else d.launch_latency_ns for d in devices])[job.device_of]
    if flow is None:
        none = np.zeros(len(ns), np.int64)
        return HeadsAndTails(none, cost + latency, ns, latency + ns, none)
    n, none = flow.n_ops, np.zeros(len(flow.tensor), np.int64)
    travel = travel_ns(job.machine, flow.source, flow.destination, flow.tensor, flow.nbytes)
    length, paid = np.concatenate((ns, travel)), np.concatenate((cost, none))
    latency = np.concatenate((latency, none))
    same_iteration = flow.distance == 0
    at_issue = edges_at_issue(synchronisation or "issue", job, flow)
    early = (np.zeros(len(same_iteration), bool) if at_issue is None else at_issue)[same_iteration]
    producer, consumer = flow.producer[same_iteration], flow.consumer[same_iteration]
    rank = np.zeros(flow.n_nodes, np.int64)  # a transfer comes right after the op whose output it carries
    rank[job.graph.topological_order] = 2 * np.arange(n) + 1
    is_transfer = consumer >= n
    np.maximum.at(rank, consumer[is_transfer], rank[producer[is_transfer]] + 1)
    if releases := job.graph.attribute("release"):  # as if each were the end of a node of its own
        more = np.arange(flow.n_nodes, flow.n_nodes + len(releases))
        producer, consumer = np.append(producer, more), np.append(consumer, [*releases])
        early = np.append(early, np.zeros(len(releases), bool))
        length = np.append(length, [*releases.values()])
        paid, latency = (np.append(column, np.zeros_like(more)) for column in (paid, latency))
    order = np.argsort(rank[consumer], kind="stable")
    edges = (column[order] for column in (producer, consumer, early.astype(np.int64)))
    results = load("edge_passes", "base").heads_and_tails([length, paid, latency, *edges])
    length, paid, latency, *results = (column[: flow.n_nodes] for column in (length, paid, latency, *results))
    taken, begin, issued, tail = results
    start = np.maximum(begin, taken + paid + latency)
    return HeadsAndTails(taken, start, length, np.maximum(issued, latency + length + tail), tail)
