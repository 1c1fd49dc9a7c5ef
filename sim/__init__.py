"""The words and the engine: graph, machine, policy, simulate(), trace.

>>> from sim import Device, GraphBuilder, Machine, simulate
"""

from sim.engine import simulate
from sim.graph import Graph
from sim.graph_builder import GraphBuilder
from sim.job import Job
from sim.model import Device, Host, Issuer, Link, Machine, Policy, Task
from sim.trace import Trace

__all__ = [
    "Device",
    "Graph",
    "GraphBuilder",
    "Host",
    "Issuer",
    "Job",
    "Link",
    "Machine",
    "Policy",
    "Task",
    "Trace",
    "simulate",
]
