"""The machine and the policy under which a recording runs as it was recorded.

::

    graph of a recording      gpu: streams 7, 20        cpu: thread0, thread1
                                      │                         │
    machine               gpu: {kind: gpu, streams: 2}  cpu: {kind: cpu, cores: 2}
    policy                each op on its own stream (`policies.streams.recorded`), launched ahead

A device for each pin, as many streams or workers as were recorded, and the gaps and latencies that the
recording shows (`Graph.device_facts`). Durations are measured, so that nothing is shared and nothing else
costs anything.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from devices.machine import make_machine
from policies.issue.ready_queue import ReadyQueue
from policies.streams.recorded import Recorded
from scenarios.recorded.as_recorded import recorded_lanes
from sim import Graph, simulate
from sim.job.noise import Noise
from sim.trace import Trace

__all__ = ["AS_RECORDED", "POLICY", "Setup", "recorded_setup", "run_recorded"]

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
