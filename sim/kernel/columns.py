"""A job as the columns that the kernel runs over, the interfaces that give them, and the obstacles to that.

Everything here uses array operations: a loop over ops in Python would cost more than the run itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np

from sim.base.arrays import UNSET, Csr, IntArray
from sim.graph.frames import has_control_flow
from sim.graph.rendezvous_keys import rendezvous_keys
from sim.job.costs import issue_costs_ns
from sim.job.job import Job
from sim.job.transfers import Flow, check_routes, holding_ops, host_groups
from sim.machine.device import Device
from sim.policy import Order, Policy
from sim.readiness.eligibility import edges_at_issue, non_strict_ops

# ----------------------------------------------------------------------------------------------------------
# The routes of a job's transfers, as the columns that the kernel's network runs over.

NEVER: Final = (1 << 62) - 1
"""A time later than any instant."""

LARGEST: Final = 1 << 60
"""Upper limit, exclusive, of work, bandwidths and spans of time."""


class RouteColumns(NamedTuple):
    """Routes of transfers, in columns. A *way* is what transfers between the same two devices have in common.

    Attributes
    ----------
    way : sequence of int
        The way of each move (a transfer of the graph).
    work : sequence of int
        Demand of each move on shared links, in units of work; 0 if it is alone or has nothing to send.
    alone_ns : sequence of int
        Duration of each move if it does not use shared links, including the latency.
    latency_ns : sequence of int
        Latency of each way.
    held_first, held : sequences of int
        Way w holds the keys ``held[held_first[w]:held_first[w + 1]]`` (serial links, copy engines).
    route : sequence of int
        The route over shared links of each way, -1 if it is alone.
    first, links : sequences of int
        Route r uses the shared links ``links[first[r]:first[r + 1]]``.
    capacity : sequence of int
        Units of work per ns of each shared link.
    """

    way: Sequence[int] | IntArray
    work: Sequence[int] | IntArray
    alone_ns: Sequence[int] | IntArray
    latency_ns: Sequence[int]
    held_first: Sequence[int]
    held: Sequence[int]
    route: Sequence[int]
    first: Sequence[int]
    links: Sequence[int]
    capacity: Sequence[int]


@runtime_checkable
class InColumns(Protocol):
    """A factory for the network of a run (`sim.Machine.network`) that the kernel can run too."""

    def columns(self, job: Job, flow: Flow) -> RouteColumns | str:
        """Return the routes of a job's transfers, or in words why the kernel cannot simulate them."""


# ----------------------------------------------------------------------------------------------------------
# Shared resources of a device's tasks, in columns: the description that a processor gives to the kernel.


class SharedSms(NamedTuple):
    """Kernels get SMs in the order of their arrival, and nothing changes that afterwards.

    Attributes
    ----------
    sms : sequence of int
        Number of SMs of each partition.
    partition_of : sequence of int
        Partition of each of the device's streams.
    op, loads, waves : arrays of int64
        Ops of the device; the number of SMs that each fills, at once or in sequence, and its waves on all
        SMs; with 0 waves, loads of 1 ns fill that many SMs for the duration of the op.
    """

    sms: Sequence[int]
    partition_of: Sequence[int]
    op: IntArray
    loads: IntArray
    waves: IntArray


class SharedCores(NamedTuple):
    """Workers take cores from the start to the end of an op, first come, first served.

    Attributes
    ----------
    cores : int
        Number of cores.
    op, need : arrays of int64
        Ops of the device, and the number of cores that each takes.
    """

    cores: int
    op: IntArray
    need: IntArray


@runtime_checkable
class ProcessorInColumns(Protocol):
    """A factory for the processor of a device (`sim.Device.processor`) that the kernel can do without."""

    def columns(self, device: Device, job: Job) -> SharedSms | SharedCores | str:
        """Return the shared resource of the device's tasks, or in words why the kernel cannot simulate it."""


# ----------------------------------------------------------------------------------------------------------

Columns: TypeAlias = dict[str, "int | IntArray"]

Shared: TypeAlias = SharedSms | SharedCores | None
"""The shared resource of a device's tasks."""

TOO_LONG: Final = "the run may last longer than 64 bits can count"

_LATEST: Final = 2.0**61
"""Times stay below this, in ns: the kernel counts in 64 bits, sometimes in half nanoseconds."""

_MAX_COUNT: Final = 2**31 - 1
"""Numbers of tasks, and of edges, stay below this."""

_NARROW: Final = (
    *("device", "lane_of", "first_edge", "edge", "pending", "running", "follower"),
    *("stream", "issuer", "wait", "slots", "program", "place", "rows", "last"),
    *("line", "seat", "signature", "in_line", "members"),
)
"""Columns of 32 bits: much of a task's cost is fetching it from memory."""


_COUNTERS: Final = """now round something n_touched n_asked n_events n_ended n_paid n_rows n_done n_placed
    n_released n_last n_unhosted n_retried n_made n_noted cores_freed mismatched"""
"""What is 0, or false, at time 0."""


def obstacle(job: Job, *, memory: object = None, observers: Iterable[Any] = ()) -> str | None:
    """Return the first obstacle to running a job on the kernel, in words; None: there is none."""
    return next((reason for stands, reason in _obstacles(job, memory, observers) if stands), None)


def _obstacles(job: Job, memory: object, observers: Iterable[Any]) -> Iterator[tuple[bool, str]]:
    """Yield whether each obstacle exists, with its description; nothing is evaluated too early."""
    graph, machine = job.graph, job.machine
    yield has_control_flow(graph), "the graph has control flow"
    yield bool(rendezvous_keys(graph).recvs), "the graph has Sends and Recvs that meet by key"
    first = bool(graph.attributes) and bool(non_strict_ops(graph).any())
    yield first, "the graph has ops that start with the first of their inputs (strict: false)"
    yield job.failures is not None, "some of the ops may fail"
    yield job.faults is not None, "parts of the machine fail, or become slow"
    grouped = job.collectives is not None and bool((job.collectives.group != UNSET).any())
    yield grouped, "sends and recvs are grouped"
    yield bool(job.carried.any()), "collectives go over the links message by message"
    custom = memory is not None and not isinstance(memory, MemoryAfterwards)
    yield custom, "the memory of the run is of your own"
    yield any(True for _ in observers), "an observer watches the run"
    records = job.record_ns is not None and bool(job.record_ns.any())
    yield records, "recording an event takes a host time after the launch"
    yield bool(graph.attribute("resources")), "ops take resources beside their device"
    yield job.process_of is not None, "several processes launch on the same devices"
    several = any(issuer.other_lanes for issuer in machine.issuers())
    yield several, "threads of a host run the ops of several CPUs"
    for device in machine.devices:
        shares = device.processor is not None and not isinstance(device.processor, ProcessorInColumns)
        yield shares, f"the tasks of {device.name} share its cores, SMs or bandwidth"
    yield _longest_ns(job) > _LATEST, TOO_LONG
    nodes = len(graph) + 2 * len(graph.edges.producer)  # with transfers
    tasks = nodes * (job.iterations + 1) + int(machine.first_stream[-1])
    yield tasks > _MAX_COUNT, "the run may have more tasks than 32 bits can count"


def _longest_ns(job: Job) -> float:
    """Return an upper bound on the duration of the run: its length if nothing overlaps."""
    devices = job.machine.devices
    ns = job.duration_ns.astype(float).sum() * job.iterations
    if job.noisy_ns is not None:
        ns = job.noisy_ns.astype(float).sum()
    ns += max(job.graph.attribute("release").values(), default=0)
    extra = max(float(d.launch_latency_ns) + d.gap_ns + d.event_ns for d in devices)
    return float(ns + (issue_costs_ns(job).astype(float).sum() + extra * len(job.graph)) * job.iterations)


def routes_of(job: Job, flow: Flow) -> RouteColumns | str | None:
    """Return the routes of the transfers, or why the kernel cannot carry them; None if there are none."""
    if flow.n_nodes == flow.n_ops:
        return None
    network: object = job.machine.network
    if not isinstance(network, InColumns):
        return "tensors are transferred over a network that is not given in columns"
    check_routes(job, flow)
    routes = network.columns(job, flow)
    if isinstance(routes, str):
        return routes
    # An upper bound on the time of one iteration's transfers: one after another.
    carried_ns = np.array(routes.latency_ns, float)[np.array(routes.way, np.int64)]
    carried_ns += np.array(routes.work, float) / min(routes.capacity, default=1) + routes.alone_ns
    return TOO_LONG if _longest_ns(job) + carried_ns.sum() * job.iterations > _LATEST else routes


def shared_of(job: Job) -> list[Shared] | str:
    """Return the shared resource of each device's tasks (or None), or why the kernel cannot simulate it."""
    shared, longest_ns = list[Shared](), _longest_ns(job)
    for device in job.machine.devices:
        processor: object = device.processor
        if not isinstance(processor, ProcessorInColumns):
            shared.append(None)  # no processor: `obstacle` refuses those that are not in columns
            continue
        columns_of = partial(processor.columns, device, job)
        description = job.once(("shared", device.name), columns_of)
        if isinstance(description, str):
            return description
        if isinstance(description, SharedCores) and job.meets[description.op].any():
            return f"collectives wait for cores of {device.name}"
        if isinstance(description, SharedSms) and longest_ns * _largest_factor(description) > _LATEST:
            return f"blocks on {device.name} may need longer numbers than 64 bits"
        shared.append(description)
    return shared


def _largest_factor(sms: SharedSms) -> int:
    """Return the greatest number by which the kernel multiplies times."""
    return int(max(*sms.sms, sms.loads.max(initial=1), sms.waves.max(initial=1)))


def _cores(flow: Flow, shared: Sequence[Shared]) -> Columns:
    """Return the cores of the devices that count them, and the need of each op."""
    free, counts = np.zeros(len(shared), np.int64), any(isinstance(use, SharedCores) for use in shared)
    cores = np.zeros(flow.n_nodes if counts else 1, np.int64)
    for d, use in enumerate(shared):
        if isinstance(use, SharedCores):
            free[d], cores[use.op] = use.cores, use.need
    return {"n_devices": len(shared), "counts_cores": counts, "cores": cores, "free_cores": free}


def sms_of(job: Job, shared: Sequence[Shared]) -> tuple[list[int], IntArray, IntArray]:
    """Return the number of SMs of each partition, over all devices, and the loads and waves of each op."""
    sms = [count for use in shared if isinstance(use, SharedSms) for count in use.sms]
    loads, waves = np.ones((2, len(job.graph) if sms else 0), np.int64)
    for use in shared:
        if isinstance(use, SharedSms):
            loads[use.op], waves[use.op] = use.loads, use.waves
    return sms, loads, waves


def _partitions(job: Job, shared: Sequence[Shared]) -> IntArray:
    """Return the partition of SMs that each lane uses, counted as in `sms_of`; -1: none."""
    partition, n = np.full(job.machine.first_stream[-1], -1), 0
    for first, use in zip(job.machine.first_stream, shared, strict=False):
        if isinstance(use, SharedSms):
            partition[first : first + len(use.partition_of)] = n + np.array(use.partition_of)
            n += len(use.sms)
    return partition


def columns(
    job: Job,
    flow: Flow,
    policy: Policy,
    order: Order,
    shared: Sequence[Shared],
    memory: MemoryAfterwards | None = None,
) -> Columns:
    """Return the columns of a run, by the names of `sim.kernel.loop.Run`'s attributes."""
    key = ("columns", policy.synchronisation, policy.scope)
    base = job.once(key, lambda: _fixed_columns(job, flow, policy, shared))
    if job.once_results is not None:  # the kernel writes into them
        base = {name: col.copy() if isinstance(col, np.ndarray) else col for name, col in base.items()}
    base |= {"drawn": job.noisy_ns is not None, "ns": _durations(job, flow)}
    takes = 0 if memory is None else AT_ISSUE if memory.at_issue else AT_START
    noted = np.zeros(2 * int(base["n_tasks"]) if takes else 0, np.int64)
    base |= {"takes": takes, "noted": noted.astype(np.int32), "noted_ns": noted}
    return base | _narrow_columns(_queues(job, flow, order))


def _narrow_columns(columns: Columns) -> Columns:
    return {name: np.asarray(col, np.int32) if name in _NARROW else col for name, col in columns.items()}


def _fixed_columns(job: Job, flow: Flow, policy: Policy, shared: Sequence[Shared]) -> Columns:
    """Return the columns that depend on neither seed nor order, in their state at time 0."""
    n_tasks, n_ops = flow.n_nodes * job.iterations, flow.n_ops * job.iterations
    n_lanes, n_issuers = job.machine.first_stream[-1], len(job.machine.issuers())
    release = job.graph.column("release") if job.graph.attribute("release") else np.zeros(1, np.int64)
    host_group = host_groups(job, flow.tensor, flow.source, flow.destination)
    hosting = bool((host_group >= 0).any())
    result: Columns = {
        "n": flow.n_nodes,
        "n_ops": flow.n_ops,
        "n_tasks": n_tasks,
        "once": job.iterations == 1,
        "by_group": policy.scope == "group",
        "networked": n_tasks > n_ops,
        "n_groups": job.n_groups,
        "hosting": hosting,
        "host_group": host_group,
        "host": np.zeros(n_tasks if hosting else 1, np.int64),
        "releasing": bool(release.any()),
        "release": release,
        # Streams to be woken are numbered after the tasks.
        "start": np.full(n_tasks + n_lanes, -1),
        "turn": np.concatenate((np.zeros(n_tasks, np.int64), np.arange(n_lanes))),
        "partition": _partitions(job, shared),
    }
    n_transfers = n_tasks - n_ops
    n_events = 2 * n_lanes + n_issuers + n_transfers + int(np.count_nonzero(release)) * job.iterations
    result |= _nodes(job, flow) | _edges(job, flow, policy.synchronisation) | _devices(job)
    result |= _cores(flow, shared) | _communicators(job) | dict.fromkeys(_COUNTERS.split(), 0)
    result |= _blank_columns(
        (n_tasks, "ready issue end stream issuer", "wait follower"),
        (n_tasks + 1, "", "last"),
        (n_ops + 1, "", "rows"),
        (n_transfers + 1, "", "released"),
        (n_events + 1, "", "event_key event_task ended paid"),
        (n_lanes, "head tail waking", "busy free touched is_touched"),
        (len(shared), "parked parked_last waits waits_last", "outstanding"),
        (n_issuers, "kept", "idle placed"),
        (job.n_groups, "unhosted unhosted_last", "n_idle asked is_asked"),
    )
    return _narrow_columns(result)


def _blank_columns(*columns: tuple[int, str, str]) -> Columns:
    """Return columns of some sizes: those with -1 everywhere at time 0, and those with 0."""
    return {
        name: np.full(size, value, np.int32 if name in _NARROW else np.int64)
        for size, unset, zero in columns
        for names, value in ((unset, UNSET), (zero, 0))
        for name in names.split()
    }


def _communicators(job: Job) -> Columns:
    """Return the lines, seats and parties of a run."""
    c, runs = job.collectives, job.iterations
    if c is None:  # the loop looks at no other
        return {"meeting": False}
    party_size = np.array([len(members) for members in c.members])
    in_line, in_seat = np.bincount(c.line) * runs, np.bincount(c.seat) * runs
    in_party = np.zeros(len(party_size), np.int64)
    in_party[c.party_of_seat] = in_seat  # meetings: as many as each of its ranks has
    of_op = {name: np.full(len(job.graph), UNSET) for name in ("line", "seat", "signature")}
    for name, column in of_op.items():
        column[c.op] = getattr(c, name)
    result: Columns = {
        "meeting": True,
        "line_first": np.cumsum(in_line) - in_line,
        "party": c.party_of_seat,
        "party_size": party_size,
        "party_meetings": np.cumsum(in_party) - in_party,
        "party_members": np.cumsum(in_party * party_size) - in_party * party_size,
        **of_op,
    }
    return result | _blank_columns(
        (in_line.sum(), "", "in_line"),
        (len(in_line), "", "line_issued line_done retried"),
        (len(in_seat), "", "seat_issued seat_started"),
        (in_party.sum(), "agreed", "n_there longest"),
        (in_party @ party_size, "", "members"),
    )


def _nodes(job: Job, flow: Flow) -> Columns:
    """Return the columns of ops, followed by transfers."""
    devices, device = job.machine.devices, job.device_of
    more = flow.n_nodes - flow.n_ops

    def pad(ops: IntArray, transfers: int = 0) -> IntArray:
        return np.concatenate((ops.astype(np.int64), np.full(more, transfers)))

    lane, holds = np.full(flow.n_ops, UNSET), np.zeros(flow.n_ops, bool)
    if job.launched.any():
        lane = np.where(job.launched, job.stream_of, UNSET)
    holds[list(holding_ops(job))] = True
    cost, no = issue_costs_ns(job), np.zeros(1, np.int64)
    return {
        "device": pad(device, len(devices)),
        "charged": bool(cost.any()),
        "cost": pad(cost) if cost.any() else no,
        "lane_of": pad(lane, -2),
        "gap": job.gap_ns if job.launched.any() else no,
        "holding": bool(holds.any()),
        "holds": pad(holds) if holds.any() else no,
    }


def _durations(job: Job, flow: Flow) -> IntArray:
    """Return the duration of each task; that of a transfer comes from the network."""
    ns = job.duration_ns[None] if job.noisy_ns is None else job.noisy_ns
    transfers = np.zeros((len(ns), flow.n_nodes - flow.n_ops), np.int64)
    return np.concatenate((ns.astype(np.int64), transfers), axis=1).ravel()


def _edges(job: Job, flow: Flow, synchronisation: str) -> Columns:
    """Return the edges that count at issue and at the end, and the number that each task waits for."""
    mask = edges_at_issue(synchronisation, job, flow)
    at_issue = mask is not None
    early = np.zeros(len(flow.producer), bool) if mask is None else mask
    ends = flow.n_nodes if at_issue else 0
    row = np.where(early, flow.producer, ends + flow.producer)
    distance = np.minimum(flow.distance, job.iterations)  # more distant consumers are not in this run
    edges = Csr.group(row, distance * flow.n_nodes + flow.consumer, ends + flow.n_nodes)
    return {
        "at_issue": at_issue,
        "ends": ends,
        "first_edge": edges.indptr,
        "edge": edges.indices,
        "pending": flow.counts(np.ones(len(early), bool), job.iterations).ravel(),
        "running": flow.counts(early, job.iterations).ravel() if at_issue else np.zeros(1, np.int64),
    }


def _devices(job: Job) -> Columns:
    """Return the columns of devices, lanes, issuers and groups of issuers."""
    machine = job.machine
    devices, issuers = machine.devices, machine.issuers()
    lane_device = np.repeat(np.arange(len(devices)), [d.lanes for d in devices])
    depths = [d.queue_depth for d in devices]
    group = np.array([issuer.group for issuer in issuers])
    return {
        "n_lanes": len(lane_device),
        "n_issuers": len(issuers),
        "limited": any(depth is not None for depth in depths),
        "latency": np.array([d.launch_latency_ns for d in devices])[lane_device],
        "lane_device": lane_device,
        "group": np.append(machine.group_of, UNSET),
        "executed": np.array([d.workers > 0 for d in devices] + [False]).astype(np.int64),
        "hop": np.array([d.event_ns for d in devices] + [0]),
        "depth": np.array([1 << 62 if depth is None else depth for depth in depths]),
        "issuer_group": group,
        "issuer_lane": np.array([issuer.stream for issuer in issuers]),
        # Issuers of a group are neighbours, so the heap of its idle issuers has one slot for each.
        "idle_first": np.searchsorted(group, np.arange(job.n_groups)),
    }


def _queues(job: Job, flow: Flow, order: Order) -> Columns:
    """Return the queues of eligible tasks, and the programs that order them."""
    group = np.array([issuer.group for issuer in job.machine.issuers()])
    place, program, queue_of = np.zeros(1, np.int64), np.zeros(0, np.int64), group
    if order.kind == "place":
        place, program, sizes, queue_of = _programs(flow, order, group)
    elif order.kind == "keep":
        assert order.pool is not None
        assert order.pool_of_issuer is not None
        # After the others, an empty queue for issuers that take nothing.
        sizes = np.append(np.bincount(order.pool, minlength=int(order.pool_of_issuer.max()) + 1), 0)
        queue_of = np.where(order.pool_of_issuer < 0, len(sizes) - 1, order.pool_of_issuer)
    elif order.kind == "steal":  # it has its own lists
        sizes = np.zeros(job.n_groups, np.int64)
    else:
        sizes = np.bincount(job.group_of, minlength=job.n_groups)
    total = sizes * (1 if order.per == "issuer" else job.iterations)
    windowed = order.kind == "place" and order.window != 1
    longest = int(total.max(initial=1))
    window = longest if order.window is None else min(order.window, longest)
    # Slots of idle issuers come first, then those in which lanes or groups are sorted.
    after = len(group) + max(int(job.machine.first_stream[-1]), job.n_groups)
    first = after + np.concatenate((np.zeros(1, np.int64), np.cumsum(total)))
    zeros, nothing = np.zeros(len(sizes), np.int64), np.zeros(1, np.int64)
    most_in_flight = 0 if order.in_flight is None else min(order.in_flight, flow.n_nodes * job.iterations)
    return {
        "keeping": order.kind == "keep",
        "stealing": order.kind == "steal",
        "keep_first": order.label is None,
        "label": nothing if order.label is None else order.label,
        "pool": nothing if order.pool is None else order.pool,
        "maker_label": -1,
        "fifo": order.kind in ("fifo", "keep"),
        "lifo": order.kind == "lifo",
        "windowed": windowed,
        "issuer_queue": queue_of,
        "slots": np.zeros(int(first[-1]) if order.kind != "place" or windowed else after, np.int64),
        "queue_first": first,
        "queue_head": zeros,
        "queue_tail": total if order.kind == "place" and not windowed else zeros.copy(),
        "program": program,
        "program_first": np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes))),
        "place": place,
        "stride": flow.n_nodes,
        "window": window,
        "window_end": np.minimum(window, total),
        "in_flight": zeros.copy(),
        "most_in_flight": most_in_flight,
    }


def _programs(flow: Flow, order: Order, group: IntArray) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return the place of each op, all programs, their lengths, and the program of each issuer."""
    programs = list(order.programs)
    sizes = np.array([len(program) for program in programs])
    program = np.concatenate([np.zeros(0, np.int64), *programs])
    place = np.zeros(flow.n_nodes, np.int64)
    if order.per == "issuer":
        iteration, op = np.divmod(program, flow.n_ops)
        return place, iteration * flow.n_nodes + op, sizes, np.arange(len(group))
    place[program] = np.arange(len(program)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return place, program, sizes, group if order.per == "group" else np.zeros_like(group)


# ----------------------------------------------------------------------------------------------------------
# Memory on the kernel: a run in which no task waits for memory, but allocations and frees are still recorded.
#
# Memory that holds no task up changes nothing in a run. So the kernel only notes takes and ends::
#
#     journal      a   b   ~a   c   ~b   ~c          a task takes, or (~) it has ended, as it happens
#
# and after the run, the memory model works out all allocations and frees
# (`MemoryAfterwards`). If a task would have had to wait, it reports that, and the run is discarded.

AT_ISSUE: Final = 1
AT_START: Final = 2
"""Codes of the time when an op takes its memory; 0: there is no memory model."""


class Journal(NamedTuple):
    """Takes of memory and ends of tasks, in the order in which they happened.

    Attributes
    ----------
    task : array of int64
        A task that takes its memory; or, as ``~task``, one that ended. Each does both once.
    time_ns : array of int64
    """

    task: IntArray
    time_ns: IntArray


Afterwards: TypeAlias = "Callable[[Journal], dict[str, IntArray] | str]"
"""Function from the journal of a run to the log of its memory (`sim.Trace.memory`), or why there is none."""


@runtime_checkable
class MemoryAfterwards(Protocol):
    """A factory for the memory of a run (``memory`` of `sim.simulate`) that the kernel can do without."""

    @property
    def at_issue(self) -> bool:
        """Whether an op takes its memory when it is issued, rather than when it starts."""

    def afterwards(self, job: Job, flow: Flow) -> Afterwards | str:
        """Return the function from journal to log, or the reason, in words, why there is none.

        Raises
        ------
        InputError, OutOfMemoryError
            The job is refused before time 0.
        """
