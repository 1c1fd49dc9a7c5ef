"""The words and the engine: graph, machine, policy, `simulate`, trace.

Names are imported when they are first used, so that ``import sim`` is cheap, and so that a machine
which only measures real kernels needs none of the simulator's dependencies.

>>> from sim import Device, GraphBuilder, Machine, simulate
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sim.base.startup import lazy

if TYPE_CHECKING:
    from sim.base.errors import OutOfMemoryError as OutOfMemoryError
    from sim.graph.builder import GraphBuilder as GraphBuilder
    from sim.graph.graph import Graph as Graph
    from sim.job.job import Job as Job
    from sim.machine.device import Device as Device
    from sim.machine.links import Link as Link
    from sim.machine.machine import Host as Host
    from sim.machine.machine import Machine as Machine
    from sim.machine.task import Issuer as Issuer
    from sim.machine.task import Task as Task
    from sim.policy import Policy as Policy
    from sim.record.plan import Plan as Plan
    from sim.simulation import simulate as simulate
    from sim.trace import Trace as Trace

_WHERE: Final = {
    "Device": "sim.machine.device",
    "Graph": "sim.graph.graph",
    "GraphBuilder": "sim.graph.builder",
    "Host": "sim.machine.machine",
    "Issuer": "sim.machine.task",
    "Job": "sim.job.job",
    "Link": "sim.machine.links",
    "Machine": "sim.machine.machine",
    "OutOfMemoryError": "sim.base.errors",
    "Plan": "sim.record.plan",
    "Policy": "sim.policy",
    "Task": "sim.machine.task",
    "Trace": "sim.trace",
    "simulate": "sim.simulation",
}

__all__ = sorted(_WHERE)

__getattr__ = lazy(__name__, _WHERE)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
