"""What a schedule is judged by, in the words of a constraint problem.

::

    makespan             the end of all
    weighted tardiness   weight x late, for each op with a due date          late >= end - due, late >= 0
    mean flow time       done, for each job                                  done >= each end of it
    energy               idle power x the end of all + (busy - idle) x what ops cover, for each device

A solver minimises a sum of times with weights; what is always added to it is left to who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from policies.cp_sat import MOST_COVERED
from policies.optimum_tasks import Tasks
from policies.schedule_problem import LONGEST, Covered, CoveringSpan, Time
from sim.base.errors import UnknownNameError
from sim.objectives import (
    due_ops,
    energy_pj,
    jobs_of,
    n_jobs,
    released_ns,
    total_flow_time_ns,
    weighted_tardiness_ns,
)
from sim.record.record import Record
from sim.trace import Trace


class Later(NamedTuple):
    """A time that is not before any of some others."""

    time: Time
    others: list[Any]

    def value(self, at: Callable[[Any], int]) -> int:
        """Return the least that it can be."""
        return max(0, *map(at, self.others))


def _makespan(tasks: Tasks) -> tuple[int, list[Later]]:
    tasks.times.charge(LONGEST, 1)
    return 0, []


def _tardiness(tasks: Tasks) -> tuple[int, list[Later]]:
    later = []
    for op, (due_ns, weight) in due_ops(tasks.job.graph).items():
        for i in range(tasks.job.iterations):
            later.append(_not_before(tasks, f"late {op} {i}", [tasks.end[i][op] - due_ns], weight))
    return 0, later


def _flow_time(tasks: Tasks) -> tuple[int, list[Later]]:
    graph, later = tasks.job.graph, []
    job, released = jobs_of(graph).tolist(), released_ns(graph)
    last = [not consumers for consumers in graph.dag().successors]
    for i in range(tasks.job.iterations):
        for j in range(len(released)):
            ends = [tasks.end[i][op] for op in range(len(graph)) if job[op] == j and last[op]]
            later.append(_not_before(tasks, f"job {j} {i}", ends, 1))
    return -int(released.sum()) * tasks.job.iterations, later


def _energy(tasks: Tasks) -> tuple[int, list[Later]]:
    """Charge for the time of each device in which something runs."""
    always = idle = 0
    for d, device in enumerate(tasks.machine.devices):
        if (power := device.details.power) is None:
            continue
        idle += power.idle
        more = power.busy - power.idle
        spans = [
            CoveringSpan(tasks.start[i][op], tasks.end[i][op], tasks.duration[i][op][d], on[d])
            for op, on in enumerate(tasks.on)
            if d in on
            for i in range(tasks.job.iterations)
        ]
        if device.lanes > 1 and more > 0:
            busy = tasks.times.time(f"busy {device.name}")
            tasks.times.covered.append(Covered(busy, device.lanes, spans))
            tasks.times.charge(busy, more)
            tasks.note(len(spans) > MOST_COVERED, "how much of their time ops overlap", device.name)
            continue
        for span in spans:
            if span.given is None:
                always += more * span.ns
            else:
                tasks.times.charge(span.given, more * span.ns)
    tasks.times.charge(LONGEST, idle)
    return always, []


def _not_before(tasks: Tasks, name: str, others: list[Any], weight: int) -> Later:
    time = tasks.times.time(name)
    for other in others:
        tasks.times.after(time, other)
    tasks.times.charge(time, weight)
    return Later(time, others)


class Objective(NamedTuple):
    """How a schedule is judged.

    Attributes
    ----------
    cost : callable
        ``cost(trace)`` returns what is to be small, a whole number; None: nothing says it of this job.
    write : callable
        ``write(tasks)`` says it of tasks; returns what is always added, and the times that it made.
    parts : callable
        ``parts(job)`` returns by what a cost is divided to be what people call it.
    """

    cost: Callable[[Record], int | None]
    write: Callable[[Tasks], tuple[int, list[Later]]]
    parts: Callable[[Any], int] = lambda job: 1

    def of(self, trace: Trace) -> int:
        """Return the cost of a run that is known to have one."""
        cost = self.cost(trace)
        assert cost is not None
        return cost


OBJECTIVES: Final[Mapping[str, Objective]] = {
    "makespan": Objective(lambda trace: trace.makespan_ns, _makespan),
    "weighted_tardiness": Objective(weighted_tardiness_ns, _tardiness),
    "mean_flow_time": Objective(total_flow_time_ns, _flow_time, n_jobs),
    "energy": Objective(energy_pj, _energy),
}
"""By the names that `expect:` has."""


def objective_named(name: str) -> Objective:
    """Return an objective, or raise `UnknownNameError`."""
    if name not in OBJECTIVES:
        raise UnknownNameError("objective", name, OBJECTIVES)
    return OBJECTIVES[name]
