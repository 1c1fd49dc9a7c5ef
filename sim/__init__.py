"""The words and the engine: graph, machine, policy, `simulate`, trace.

Names are imported when they are first used, so that ``import sim`` is cheap, and so that a machine
which only measures real kernels needs none of the simulator's dependencies.

>>> from sim import Device, GraphBuilder, Machine, simulate
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sim.graph.builder import GraphBuilder
    from sim.graph.graph import Graph
    from sim.job.job import Job
    from sim.machine.device import Device
    from sim.machine.link import Link
    from sim.machine.machine import Host, Machine
    from sim.machine.task import Issuer, Task
    from sim.policy.policy import Policy
    from sim.record.plan import Plan
    from sim.simulation import simulate
    from sim.trace import Trace

_WHERE: Final = {
    "Device": "sim.machine.device",
    "Graph": "sim.graph.graph",
    "GraphBuilder": "sim.graph.builder",
    "Host": "sim.machine.machine",
    "Issuer": "sim.machine.task",
    "Job": "sim.job.job",
    "Link": "sim.machine.link",
    "Machine": "sim.machine.machine",
    "Plan": "sim.record.plan",
    "Policy": "sim.policy.policy",
    "Task": "sim.machine.task",
    "Trace": "sim.trace",
    "simulate": "sim.simulation",
}

__all__ = [
    "Device",
    "Graph",
    "GraphBuilder",
    "Host",
    "Issuer",
    "Job",
    "Link",
    "Machine",
    "Plan",
    "Policy",
    "Task",
    "Trace",
    "simulate",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*globals(), *__all__]
