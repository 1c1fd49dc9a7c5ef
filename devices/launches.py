"""Launches on a GPU other than one by one: CUDA graphs, the legacy default stream, calls for events.

All are changes to a job, made before time 0::

    eager        host  [c][c][c][c]               one launch cost c per op; the GPU waits for the host
                 gpu      ▇  ▇  ▇  ▇              if c is longer than a kernel and the gap after it

    CUDA graph   host  [c]                        one launch cost for all ops,
                 gpu      ▇▇▇▇                    then only gaps

    legacy       stream 0       ▇▇▇               a kernel on the default stream waits for all launched
                 stream 1  ▇▇▇▇▇   ▇▇▇            before it, and all launched after it wait for it
                 stream 2    ▇▇▇   ▇▇▇▇▇

Sources: CUDA C++ Programming Guide, "CUDA Graphs" and "Default Stream"; a graph is launched as a whole into a
stream, and two launches of it into one stream run one after the other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sim.base.arrays import BoolArray, Csr, IntArray
from sim.base.errors import InputError
from sim.job.costs import issue_costs_ns
from sim.job.job import Decided, Job


def add_launches(job: Job, synchronisation: str, *, as_graph: bool = False) -> Job:
    """Return `job` with the launch behaviour of its devices and runtime.

    Parameters
    ----------
    job : Job
    synchronisation : str
        Synchronisation of the policy (`sim.policy.Policy`).
    as_graph : bool
        Whether the ops of a device are launched as one CUDA graph.

    Raises
    ------
    InputError
        If a CUDA graph runs under a policy that waits for completion, or cannot be captured.
    """
    if any(device.details.legacy_stream for device in job.machine.devices):
        job = with_legacy_streams(job)
    if not as_graph:
        return with_event_calls(job) if synchronisation == "issue" else job
    if synchronisation != "issue":
        raise InputError(
            "cuda_graph: one is launched without waiting for anything; it needs synchronisation: issue"
        )
    return as_cuda_graphs(job)


def as_cuda_graphs(job: Job) -> Job:
    """Return `job` with the ops of each device without workers launched as one CUDA graph per process.

    An iteration costs the host of a process ``graph_launch`` once (default: the issue cost of the first op),
    kernels of a stream are ``graph_gap`` apart (default: the device's gap), and the launch queue is
    unlimited, because a graph takes one place in it. Launch latency counts once. Iterations run in turn.

    Parameters
    ----------
    job : Job
        Job whose policy issues in program order, without waiting for completion.

    Raises
    ------
    InputError
        If an op of the device waits for work of the host that waits for the device, which cannot be
        captured.

    Examples
    --------
    >>> from devices.machine import make_device
    >>> from sim import GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("chain")
    >>> _ = b.op("a", duration_ns=10)
    >>> _ = b.op("b", duration_ns=10, inputs=["a"])
    >>> gpu = make_device("gpu0", {"kind": "gpu", "issue_cost": "5us"})
    >>> job = as_cuda_graphs(make_job(b.build(), Machine((gpu,))))
    >>> job.issue_ns.tolist()
    [5000, 0]
    """
    machine = job.machine
    launched = np.array([not device.workers for device in machine.devices])
    if job.failures is not None:
        raise InputError(
            "some ops may fail, and a CUDA graph is launched as a whole; launch ops one by one "
            "(cuda_graph: false)"
        )
    _refuse_round_trips(job, launched)
    eager_ns = issue_costs_ns(job)
    issue_ns = np.where(launched[job.device_of], 0, eager_ns)
    captured = job.order[launched[job.device_of[job.order]]]
    part_of = _process_of(job) * len(machine.devices) + job.device_of
    parts, first = np.unique(part_of[captured], return_index=True)
    for op in captured[first].tolist():
        own_ns = machine.devices[int(job.device_of[op])].details.graph_launch_ns
        issue_ns[op] = eager_ns[op] if own_ns is None else own_ns
    devices = list(machine.devices)
    for d in np.flatnonzero(launched).tolist():
        own_ns, device = devices[d].details.graph_gap_ns, devices[d]
        gap_ns = device.gap_ns if own_ns is None else own_ns
        devices[d] = replace(device, issue_ns=0, issue_ns_by_kind={}, queue_depth=None, gap_ns=gap_ns)
    edges = [edge for part in parts.tolist() for edge in _iteration_edges(job, part_of == part)]
    return _add_edges(job, edges, issue_ns=issue_ns, machine=replace(machine, devices=tuple(devices)))


def with_legacy_streams(job: Job) -> Job:
    """Return `job` with the first stream of each device that has ``legacy_stream`` as CUDA's default stream.

    An op on it waits for the last op launched before it on every other stream, and the next op on each other
    stream waits for it, both within an iteration and from one iteration to the next. Each process
    (`sim.issuers`) has its own default stream and other streams.
    """
    machine = job.machine
    edges: list[tuple[int, int, int]] = []
    lane_of = (job.stream_of - np.array(machine.first_stream)[job.device_of]).tolist()
    for d, device in enumerate(machine.devices):
        if not device.details.legacy_stream or device.lanes == 1:
            continue
        order = job.order[job.device_of[job.order] == d]
        process = _process_of(job)[order]
        programs = [order[process == k].tolist() for k in np.unique(process)]  # per process
        for k, program in enumerate(programs):
            default = k * (device.lanes // len(programs))
            last: dict[int, tuple[int, int]] = {}  # lane → (op, iteration) launched on it last
            for iteration in range(min(job.iterations, 2)):
                for op in program:
                    lane = lane_of[op]
                    for other, (before, since) in last.items():
                        if not since and other != lane and default in (lane, other):
                            edges.append((before, op, iteration))
                    last[lane] = (op, iteration)
    return _add_edges(job, sorted(set(edges))) if edges else job


def _process_of(job: Job) -> IntArray:
    return np.zeros(len(job.graph), np.int64) if job.process_of is None else job.process_of


def with_event_calls(job: Job) -> Job:
    """Return `job` with the launching host's cost of recording events and waiting for them.

    ::

        host   [launch a][record]   [wait][launch b]        a on stream 0 is read by b on stream 1

    After launching an op on which ops of other streams of its device depend, the host is busy for
    ``event_record`` longer, and only then may those be launched. An op that depends on ops of other streams
    costs ``event_wait`` more before its launch for each of these streams, since waiting for the last op of
    each is enough. (The delay on the *device* from one to the other is its ``event_hop``.)

    Examples
    --------
    >>> from devices.machine import make_device
    >>> from sim import GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> class InTurns:
    ...     def assign(self, job):
    ...         return [0, 1, 0]
    >>> b = GraphBuilder("chain")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": ["b"]}.items():
    ...     _ = b.op(name, duration_ns=10, inputs=inputs)
    >>> spec = {"kind": "gpu", "streams": 2, "issue_cost": "5us", "event_record": "1us", "event_wait": "2us"}
    >>> machine = Machine((make_device("gpu0", spec),))
    >>> job = with_event_calls(make_job(b.build(), machine, streams=InTurns()))
    >>> job.issue_ns.tolist(), job.record_ns.tolist()
    ([5000, 7000, 7000], [1000, 1000, 0])
    """
    devices = job.machine.devices
    record = np.array([0 if device.workers else device.details.event_record_ns for device in devices])
    wait = np.array([0 if device.workers else device.details.event_wait_ns for device in devices])
    if not (record.any() or wait.any()):
        return job
    device_of, stream_of = job.device_of, job.stream_of
    consumer = job.graph.predecessors.rows()
    producer = job.graph.predecessors.indices
    crosses = (device_of[producer] == device_of[consumer]) & (stream_of[producer] != stream_of[consumer])
    producer, consumer = producer[crosses], consumer[crosses]
    issue_ns = issue_costs_ns(job)
    recorded = np.unique(producer)
    record_ns = np.zeros_like(issue_ns)
    record_ns[recorded] = record[device_of[recorded]]
    waits = np.unique(np.stack((consumer, stream_of[producer])), axis=1)[0]
    np.add.at(issue_ns, waits, wait[device_of[waits]])
    return replace(job, issue_ns=issue_ns, record_ns=record_ns)


def _iteration_edges(job: Job, chosen: BoolArray) -> list[tuple[int, int, int]]:
    """Return edges from the last of some ops of a device to the first ops of the next iteration."""
    if job.iterations == 1 or len(np.unique(job.stream_of[chosen])) < 2:
        return []  # the stream ensures it
    edges = job.graph.edges.within_iteration()
    within = chosen[edges.producer] & chosen[edges.consumer]
    first, last = chosen.copy(), chosen.copy()
    first[edges.consumer[within]] = False
    last[edges.producer[within]] = False
    return [(a, b, 1) for b in np.flatnonzero(first).tolist() for a in np.flatnonzero(last).tolist()]


def _refuse_round_trips(job: Job, launched: BoolArray) -> None:
    graph = job.graph
    on_gpu = launched[job.device_of].tolist()
    waits = [False] * len(graph)  # for work of the host that waits for a device
    predecessors = graph.dag().predecessors
    for op in graph.topological_order.tolist():
        if not on_gpu[op]:
            waits[op] = any(on_gpu[p] or waits[p] for p in predecessors[op])
            continue
        host = next((p for p in predecessors[op] if waits[p]), None)
        if host is not None:
            raise InputError(
                f"op {graph.op_names[op]!r} cannot be part of a CUDA graph: it waits for "
                f"{graph.op_names[host]!r}, which a CPU executes after it has waited for the device"
            ).about(graph.op_names[op])


def _add_edges(job: Job, edges: list[tuple[int, int, int]], **more: object) -> Job:
    """Return `job` with control edges (before, after, distance) added and its decisions unchanged."""
    graph, first = job.graph, np.array(job.machine.first_stream)[job.device_of]
    if edges:
        before, after, distance = (np.array(column, np.int64) for column in zip(*edges, strict=True))
        owner = np.concatenate((graph.after.rows(), after))
        producers = Csr.group(owner, np.concatenate((graph.after.indices, before)), len(graph))
        distances = Csr.group(owner, np.concatenate((graph.after_distance, distance)), len(graph)).indices
        graph = replace(graph, after=producers, after_distance=distances)
    return replace(
        job,
        graph=graph,
        linearize=Decided(job.order.tolist()),
        streams=Decided((job.stream_of - first).tolist()),
        **more,  # type: ignore[arg-type]
    )
