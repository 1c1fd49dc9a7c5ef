"""What a recording and a simulated run have in common to be compared: span, busy time, idle time, step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scenarios.recorded.setup import as_recorded
from sim import Graph
from sim.base.arrays import IntArray
from sim.base.errors import InputError
from sim.base.intervals import union
from sim.trace import Trace


class Measures(NamedTuple):
    """How long a run took, in ns.

    Attributes
    ----------
    span : int
        From the first op to the end of the last, of host and GPU.
    busy : int
        The GPU ran something; of several GPUs, together.
    step : int
        What was asked for: the whole span, or the median time from one kernel of a name to the next.
    """

    span: int
    busy: int
    step: int

    @property
    def idle(self) -> int:
        """The GPU ran nothing."""
        return self.span - self.busy


def recorded(graph: Graph, step: str | None = None) -> Measures:
    """Return what was recorded."""
    was = as_recorded(graph)
    return _measures(graph, was.op, was.start_ns, was.end_ns, step)


def simulated(trace: Trace, step: str | None = None) -> Measures:
    """Return what happened in a run."""
    tasks = trace.tasks
    return _measures(trace.job.graph, tasks["op"], tasks["start_ns"], tasks["end_ns"], step)


def _measures(graph: Graph, op: IntArray, start: IntArray, end: IntArray, step: str | None) -> Measures:
    kernels = [str(graph.attributes.get(each, {}).get("kernel", "")) for each in op.tolist()]
    on_gpu = np.array([name != "" for name in kernels])
    busy = int(union(start[on_gpu], end[on_gpu], graph.pin_code[op][on_gpu]).lengths(len(graph.pins)).sum())
    span = int(end.max() - start.min())
    if step is None:
        return Measures(span, busy, span)
    marks = np.sort(start[[step in name for name in kernels]])
    if len(marks) < 2:
        raise InputError(f"{graph.name}: {len(marks)} kernels are called *{step}*, so there is no step")
    return Measures(span, busy, int(np.median(np.diff(marks))))
