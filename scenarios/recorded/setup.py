"""The machine and the policy under which a recording runs as it was recorded.

::

    graph of a recording      gpu: streams 7, 20        cpu: thread0, thread1
                                      │                         │
    machine               gpu: {kind: gpu, streams: 2}  cpu: {kind: cpu, cores: 2}
    policy                each op on its own stream (`policies.streams`), launched ahead

A device for each pin, as many streams or workers as were recorded, and the gaps and latencies that the
recording shows (`Graph.device_facts`). Durations are measured, so that nothing is shared and nothing else
costs anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from devices.machine import make_machine
from devices.preset_overlay import described_devices
from policies.issue.ready_queue import ReadyQueue
from policies.streams import Recorded
from scenarios.recorded.as_recorded import recorded_lanes
from sim import Graph, simulate
from sim.base.errors import InputError
from sim.base.plugins import NOWHERE, Origin
from sim.job.noise import Noise
from sim.trace import Trace

AS_RECORDED: Final = {"preset": "recorded"}
"""The description of the machine on which something was recorded."""

POLICY: Final = {"name": "ready-queue", "synchronisation": "issue", "streams": "recorded"}
"""What decides when a recording runs as it was recorded."""


class Setup(NamedTuple):
    """Where and how a recording runs, in the words of a scenario.

    Attributes
    ----------
    machine : dict
        The section ``machine:``.
    policy : dict
        The section ``policy:``.
    """

    machine: dict[str, Any]
    policy: dict[str, Any]


def recorded_setup(graph: Graph) -> Setup:
    """Return the machine and the policy under which a recording runs as it was recorded.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("recorded")
    >>> for name, device, where in (("a", "gpu", "stream"), ("b", "cpu", "thread")):
    ...     _ = b.op(name, device=device, attributes={where: 7})
    >>> recorded_setup(b.build()).machine
    {'devices': {'gpu': {'kind': 'gpu', 'streams': 1}, 'cpu': {'kind': 'cpu', 'cores': 1}}}
    """
    lanes: dict[tuple[str, str], set[object]] = {}
    streams = graph.attribute("stream")
    for op, (device, lane) in enumerate(recorded_lanes(graph)):
        if lane is not None:
            lanes.setdefault((device, "stream" if op in streams else "thread"), set()).add(lane)
    devices = {
        device: {"kind": "gpu", "streams": len(used), **graph.device_facts.get(device, {})}
        if where == "stream"
        else {"kind": "cpu", "cores": len(used)}
        for (device, where), used in lanes.items()
    }
    return Setup({"devices": devices}, dict(POLICY))


def run_recorded(graph: Graph, *, noise: Noise | None = None) -> Trace:
    """Run a recording as it was recorded.

    Parameters
    ----------
    graph : Graph
    noise : Noise, optional
        ``Noise(devices={"gpu": 0.01})`` is a GPU 100 times faster.
    """
    machine = make_machine(recorded_setup(graph).machine)
    policy = ReadyQueue(synchronisation="issue")
    return simulate(graph, machine, policy, streams=Recorded(), noise=noise)


# ----------------------------------------------------------------------------------------------------------
# What a recording knows of its machine, for what a scenario leaves open.
#
#     machine: {preset: recorded}                              all of it; so does a scenario without a machine
#     machine: {preset: recorded, devices: {gpu: {gap: 0}}}    all of it, but for the gap
#     machine: {devices: {gpu0: {kind: gpu, streams: 4}}}      gap, event_hop and launch_latency of gpu0
#
# A key that a description has, itself or by its preset, is never changed.


def as_recorded_machine(spec: Mapping[str, Any], graph: Graph) -> dict[str, Any]:
    """Return a description whose preset is the machine of a recording, written out; any other as it is.

    Raises
    ------
    InputError
        The graph is no recording: none of its ops has a stream or a thread.

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
    devices = dict(recorded_setup(graph).machine["devices"])
    if not devices:
        raise InputError(
            f"{graph.name!r} is no recording: none of its ops has a stream or a thread",
            path=("machine", "preset"),
        )
    for name, over in spec.get("devices", {}).items():
        devices[name] = {**devices.get(name, {}), **over}
    return {key: value for key, value in spec.items() if key != "preset"} | {"devices": devices}


def with_facts(spec: Mapping[str, Any], graph: Graph, origin: Origin = NOWHERE) -> dict[str, Any]:
    """Return a description with what a recording knows of its GPUs, where the description says nothing.

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
        known = graph.device_facts.get(name, graph.device_facts.get(values.get("kind", ""), {}))
        missing = {key: value for key, value in known.items() if key not in values}
        if missing and values.get("kind") == "gpu" and not values.get("ideal"):
            devices[name] = {**devices.get(name, {}), **missing}
    return {**spec, "devices": devices}
