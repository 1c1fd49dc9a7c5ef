"""The words and the engine: graph, machine, policy, `simulate`, trace.

Names are imported when they are first used, so that ``import sim`` is cheap, and so that a machine
which only measures real kernels needs none of the simulator's dependencies.

>>> from sim import Device, GraphBuilder, Machine, simulate
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sim.graph import Graph
    from sim.graph_builder import GraphBuilder
    from sim.job import Job
    from sim.model import Device, Host, Issuer, Link, Machine, Policy, Task
    from sim.plan import Plan
    from sim.simulation import simulate
    from sim.trace import Trace

_WHERE: Final = {
    "Device": "sim.device",
    "Graph": "sim.graph",
    "GraphBuilder": "sim.graph_builder",
    "Host": "sim.machine",
    "Issuer": "sim.task",
    "Job": "sim.job",
    "Link": "sim.machine",
    "Machine": "sim.machine",
    "Plan": "sim.plan",
    "Policy": "sim.policy",
    "Task": "sim.task",
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
