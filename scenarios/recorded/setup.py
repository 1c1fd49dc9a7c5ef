"""The machine and the policy under which a recording runs as it was recorded.

::

    graph of a recording      gpu: streams 7, 20        cpu: thread0, thread1
                                      │                         │
    machine               gpu: {kind: gpu, streams: 2}  cpu: {kind: cpu, cores: 2}
    policy                each op on its own stream (`policies.streams`), launched ahead

The machine has a device for each pin, as many streams or workers as were recorded, and the gaps and latencies
that the recording shows (`Graph.device_facts`). Durations are measured, so nothing is shared and nothing else
costs time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np

from devices.machine import described_devices, make_machine
from policies.issue.ready_queue import ReadyQueue
from policies.streams import Recorded
from sim import Graph, simulate
from sim.base.arrays import UNSET, Codes, Csr, IntArray, group_pairs
from sim.base.errors import InputError
from sim.base.plugins import NOWHERE, Origin
from sim.trace import Trace

AS_RECORDED: Final = {"preset": "recorded"}
"""The description of the machine on which a recording was made."""

POLICY: Final = {"name": "ready-queue", "synchronisation": "issue", "streams": "recorded"}
"""The policy under which a recording runs as it was recorded."""


def recorded_machine(graph: Graph) -> dict[str, Any]:
    """Return the machine on which a recording runs as it was recorded, in the form of a scenario.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("recorded")
    >>> for name, device, where in (("a", "gpu", "stream"), ("b", "cpu", "thread")):
    ...     _ = b.op(name, device=device, attributes={where: 7})
    >>> recorded_machine(b.build())
    {'devices': {'gpu': {'kind': 'gpu', 'streams': 1}, 'cpu': {'kind': 'cpu', 'cores': 1}}}
    """
    if graph.machine:
        return dict(graph.machine)
    lanes: dict[tuple[str, str], set[object]] = {}
    streams = graph.attribute("stream")
    for op, (device, lane) in enumerate(recorded_lanes(graph)):
        if lane is not None:
            lanes.setdefault((device, "stream" if op in streams else "thread"), set()).add(lane)
    devices = {
        device: {"kind": "gpu", "streams": len(used), **graph.device_facts.get(device, {})}
        if where == "stream"
        else {"kind": "cpu", "cores": len(used)}
        for (device, where), used in sorted(lanes.items(), key=lambda lane: _rank_of(lane[0][0]))
    }
    return {"devices": devices}


def _rank_of(device: str) -> int:
    """Return the number at the end of a device's name; devices of a rank share it and are grouped."""
    match = re.search(r"\d+$", device)
    return int(match[0]) if match else UNSET


def with_threads_in_turn(graph: Graph) -> Graph:
    """Return a graph to be repeated: a recorded thread begins an iteration when it has ended the last one.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("recorded")
    >>> for name in "ab":
    ...     _ = b.op(name, device="cpu", attributes={"thread": 7})
    >>> again = with_threads_in_turn(b.build())
    >>> again.after.lists(), again.after_distance.tolist()
    ([[1], []], [1])
    """
    if not (threaded := graph.attribute("thread").items()):
        return graph
    threads = group_pairs(((int(graph.pin_code[op]), thread), op) for op, thread in threaded)
    first, last = ([ops[end] for ops in threads.values()] for end in (0, -1))
    rows, before = np.append(graph.after.rows(), first), np.append(graph.after.indices, last)
    distance = np.append(graph.after_distance, np.ones(len(first), np.int64))
    after, distances = (Csr.group(rows, values, len(graph)) for values in (before, distance))
    return replace(graph, after=after, after_distance=distances.indices)


def run_recorded(graph: Graph) -> Trace:
    """Simulate a recording as it was recorded."""
    machine = make_machine(recorded_machine(graph))
    policy = ReadyQueue(synchronisation="issue")
    return simulate(graph, machine, policy, streams=Recorded())


# ----------------------------------------------------------------------------------------------------------
# Facts about its machine from a recording, for keys that a scenario leaves open.
#
#     machine: {preset: recorded}                              all of it; the default without a machine
#     machine: {preset: recorded, devices: {gpu: {gap: 0}}}    all of it, except for the gap
#     machine: {devices: {gpu0: {kind: gpu, streams: 4}}}      gap, event_hop and launch_latency of gpu0
#
# A key given by a description, directly or through its preset, is never changed.


def as_recorded_machine(spec: Mapping[str, Any], graph: Graph) -> dict[str, Any]:
    """Return a description with preset ``recorded`` written out; return any other one unchanged.

    Raises
    ------
    InputError
        The graph is not a recording: none of its ops has a stream or a thread.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("recorded")
    >>> _ = b.op("a", device="gpu", attributes={"stream": 7})
    >>> as_recorded_machine({"preset": "recorded", "devices": {"gpu": {"gap": "1us"}}}, b.build())
    {'devices': {'gpu': {'kind': 'gpu', 'streams': 1, 'gap': '1us'}}}
    """
    if spec.get("preset") != AS_RECORDED["preset"]:
        return dict(spec)
    machine = recorded_machine(graph)
    devices = dict(machine["devices"])
    if not devices:
        raise InputError(
            f"{graph.name!r} is no recording: none of its ops has a stream or a thread",
            path=("machine", "preset"),
        )
    for name, changes in spec.get("devices", {}).items():
        devices[name] = {**devices.get(name, {}), **changes}
    others = {key: value for key, value in spec.items() if key != "preset"}
    return {**machine, **others, "devices": devices}


def with_facts(spec: Mapping[str, Any], graph: Graph, origin: Origin = NOWHERE) -> dict[str, Any]:
    """Return a description extended by the recording's facts about its GPUs, for keys that are not given.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("recorded")
    >>> _ = b.op("a", device="gpu")
    >>> graph = replace(b.build(), device_facts={"gpu": {"gap": "1200ns", "event_hop": "2us"}})
    >>> with_facts({"devices": {"gpu0": {"kind": "gpu", "gap": "0ns"}}}, graph)
    {'devices': {'gpu0': {'kind': 'gpu', 'gap': '0ns', 'event_hop': '2us'}}}
    """
    if not graph.device_facts:
        return dict(spec)
    devices = dict(spec.get("devices", {}))
    for name, values in described_devices(spec, origin).items():
        facts = graph.device_facts.get(name, graph.device_facts.get(values.get("kind", ""), {}))
        missing = {key: value for key, value in facts.items() if key not in values}
        if missing and values.get("kind") == "gpu" and not values.get("ideal"):
            devices[name] = {**devices.get(name, {}), **missing}
    return {**spec, "devices": devices}


# ----------------------------------------------------------------------------------------------------------
# The recorded schedule: when and where each op of a recording ran.
#
# ::
#
#     graph, every op with ``recorded_start_ns``       as_recorded(graph)
#       launch.1   cpu   thread0     0   5             op  lane            start_ns  end_ns
#       gemm.0     gpu   stream 7    9  30      ──►     0  (cpu, thread0)         0    5000
#       ...                                             1  (gpu, 7)            9000   39000
#
# An op ends ``recorded_ns`` after it starts, or else after its duration. A collective of ranks has both: its
# duration is only the transfer, and the recorded time includes its waiting. The same holds for a kernel that
# began before the previous one ended.

Lane = tuple[str, object]
"""A device, by the op's pin, and the stream or thread on it."""


@dataclass(frozen=True)
class RecordedTimes:
    """A recorded schedule: one entry per recorded op, in order of ops.

    Attributes
    ----------
    op : array
        Indices of ops.
    lane : array
        Index into `lanes` for each op.
    start_ns, end_ns : array
    lanes : tuple of Lane
        In order of first use.
    """

    op: IntArray
    lane: IntArray
    start_ns: IntArray
    end_ns: IntArray
    lanes: tuple[Lane, ...]


def recorded_lanes(graph: Graph) -> list[Lane]:
    """Return where each op was recorded: only the device if neither stream nor thread is known."""
    lane = {**graph.attribute("thread"), **graph.attribute("stream")}
    pins = [*graph.pins, ""]  # the last, -1, is for ops without a pin
    return [(pins[code], lane.get(op)) for op, code in enumerate(graph.pin_code.tolist())]


def as_recorded(graph: Graph) -> RecordedTimes:
    """Return the recorded schedule of the ops with an attribute ``recorded_start_ns``.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("recorded")
    >>> _ = b.op("a", duration_ns=5, device="gpu", attributes={"stream": 7, "recorded_start_ns": 9})
    >>> times = as_recorded(b.build())
    >>> times.lanes, times.start_ns.tolist(), times.end_ns.tolist()
    ((('gpu', 7),), [9], [14])
    """
    started = graph.attribute("recorded_start_ns")
    op, start = np.array([*started], np.int64), np.array([*started.values()], np.int64)
    lanes, op_lanes = Codes[Lane](), recorded_lanes(graph)
    lane = lanes.of(op_lanes[number] for number in started)
    recorded_ns = graph.column("recorded_ns", graph.duration_ns)
    return RecordedTimes(op, lane, start, start + recorded_ns[op], (*lanes,))


# ----------------------------------------------------------------------------------------------------------
# How much of a makespan is unexplained: the delays of a recording on the executed path.
#
#     stream 7    [a][ delay.1 ][b]                          b was held up by a delay, which nothing in the
#     stream 20   [c                ][ delay.2 ][d]          trace explains; the path goes back from d: c
#
# A *delay* is idle time of a stream that no launch, task or event explains, beyond the overhead of the GPU
# itself (`scenarios.importers.kineto.kineto`). The executed path (`sim.explain.path`) leads from time 0 to
# the end of the run without a gap: delays on it are part of the makespan, other delays held nothing up.


class Residue(NamedTuple):
    """The unexplained part of a run.

    Attributes
    ----------
    ns : int
        Delays on the executed path.
    share : float
        Their part of the makespan, from 0 to 1.
    delays : int
        Number of all delays.
    delays_ns : int
        Their total duration, on all streams.
    """

    ns: int
    share: float
    delays: int
    delays_ns: int


def residue(trace: Trace) -> Residue | None:
    """Return the unexplained part of a recording's run, or None if it is not a recording."""
    if not trace.is_delay.any():
        return Residue(0, 0.0, 0, 0) if trace.job.graph.device_facts else None
    from sim.explain.path import executed_path

    lengths = trace.tasks["end_ns"] - trace.tasks["start_ns"]
    path = executed_path(trace)
    on_path = sum(step.end_ns - step.start_ns for step in path if step.reason == "unexplained")
    share = on_path / trace.makespan_ns if trace.makespan_ns else 0.0
    return Residue(on_path, share, int(trace.is_delay.sum()), int(lengths[trace.is_delay].sum()))
