"""Objectives of a schedule besides its makespan: tardiness, flow time, energy.

::

    release  ▇▇▇▇▇▇▇▇▇▇▇▇ end          flow time   end - release, of a job
                    due ├────┤ tardiness           max(0, end - due), of an op with a due date

    energy   of each device: its busy power while it executes, its idle power for the rest of the makespan

These are the definitions of scheduling theory (Pinedo, "Scheduling: Theory, Algorithms, and Systems",
section 2.1). A job is a connected component of the graph: in a job shop a chain of ops, in a project all ops.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Final

import numpy as np

from sim.base.arrays import LATEST_NS, IntArray, least_by
from sim.base.intervals import union
from sim.graph.graph import Graph
from sim.job.job import Job
from sim.record.record import Record


def due_ops(graph: Graph) -> dict[int, tuple[int, int]]:
    """Return the due date in ns of each op that has one, and its weight, by default 1."""
    weights = graph.attribute("weight")
    return {op: (due_ns, weights.get(op, 1)) for op, due_ns in graph.attribute("due").items()}


def jobs_of(graph: Graph) -> IntArray:
    """Return the number of each op's job: ops that edges connect within an iteration are one job.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("two jobs")
    >>> _ = b.op("a"), b.op("x"), b.op("b", after=["a"])
    >>> jobs_of(b.build()).tolist()
    [0, 1, 0]
    """
    edges = graph.edges.within_iteration()
    first = np.arange(len(graph))
    while True:  # an op takes its neighbours' least number, then the number of that op
        smallest = first.copy()
        for one, other in ((edges.producer, edges.consumer), (edges.consumer, edges.producer)):
            np.minimum.at(smallest, one, first[other])
        smallest = np.minimum(smallest, smallest[smallest])
        if np.array_equal(smallest, first):
            return np.unique(first, return_inverse=True)[1]
        first = smallest


def released_ns(graph: Graph) -> IntArray:
    """Return when each job is released: the earliest release of its ops without predecessors."""
    job = jobs_of(graph)
    first = np.ones(len(graph), bool)
    first[graph.edges.within_iteration().consumer] = False
    release, n = graph.column("release")[first], int(job.max(initial=-1)) + 1
    return least_by(job[first], release, n, LATEST_NS)


def weighted_tardiness_ns(trace: Record) -> int | None:
    """Return the sum of weight x tardiness over ops with a due date; None: there are none."""
    due = due_ops(trace.job.graph)
    if not due:
        return None
    devices = trace.job.machine.stands_for[trace.device]
    rows = trace.counts[trace.tasks["iteration"]]
    columns = (column[rows].tolist() for column in (trace.tasks["op"], trace.tasks["end_ns"], devices))
    late = ((end, n, *due[op]) for op, end, n in zip(*columns, strict=True) if op in due)
    return int(sum(n * weight * max(0, end - due_ns) for end, n, due_ns, weight in late))


def total_flow_time_ns(trace: Record) -> int:
    """Return the sum, over jobs and iterations, of the time from release to last end."""
    job = jobs_of(trace.job.graph)
    released = released_ns(trace.job.graph)
    ends = np.zeros((trace.job.iterations, len(released)), np.int64)
    np.maximum.at(ends, (trace.tasks["iteration"], job[trace.tasks["op"]]), trace.tasks["end_ns"])
    return int(((ends - released) * _copies_of_jobs(trace.job))[trace.counts].sum())


def n_jobs(job: Job) -> int:
    """Return the number of jobs in all iterations."""
    return job.iterations * int(_copies_of_jobs(job).sum())


def _copies_of_jobs(job: Job) -> IntArray:
    """Return the number of devices that run each job: several if ranks are folded."""
    number = jobs_of(job.graph)
    copies = np.ones(int(number.max(initial=-1)) + 1, np.int64)
    copies[number] = job.machine.stands_for[job.device_of]
    return copies


def mean_flow_time_ns(trace: Record) -> int | float | None:
    """Return the mean time from the release of a job to its last end; None: no step was done."""
    jobs = int(trace.counts.sum() * _copies_of_jobs(trace.job).sum())
    if not jobs:
        return None
    mean = Fraction(total_flow_time_ns(trace), jobs)
    return int(mean) if mean.denominator == 1 else float(mean)


def energy_pj(trace: Record) -> int | None:
    """Return the energy of the devices until the makespan, in pJ (mW times ns); None: no power is given."""
    machine, makespan = trace.job.machine, trace.makespan_ns
    unused = () if machine.folding is None else machine.folding.unused
    lengths = union(trace.begins_ns, trace.occupied_until_ns, trace.device).lengths(len(machine.devices))
    rows = [*zip(machine.devices, lengths.tolist(), machine.stands_for.tolist(), strict=True)]
    rows += [(device, 0, 1) for device in unused]
    drawn = [
        devices * (power.idle * makespan + (power.busy - power.idle) * busy_ns)
        for device, busy_ns, devices in rows
        if (power := device.details.power)
    ]
    return int(sum(drawn)) if drawn else None


OBJECTIVES: Final[Mapping[str, tuple[Callable[[Record], Any], str]]] = {
    "weighted_tardiness_ns": (
        weighted_tardiness_ns,
        "no op has a due date: attributes: {due: 5ms, weight: 2}",
    ),
    "mean_flow_time_ns": (mean_flow_time_ns, "no step was done"),
    "energy_pj": (energy_pj, "no device has a power: {busy: 300W, idle: 60W}"),
}
"""Key of a summary → the function that computes it, and why it may be unknown."""


def objectives(trace: Record) -> dict[str, Any]:
    """Return the objectives that the attributes of ops and devices call for."""
    constraints = [*map(trace.job.graph.attribute, ("release", "due", "weight"))]
    values = {
        key: function(trace)
        for key, (function, _) in OBJECTIVES.items()
        if key != "mean_flow_time_ns" or any(constraints)
    }
    return {key: value for key, value in values.items() if value is not None}
