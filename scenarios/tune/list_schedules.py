"""Schedules to begin a search with: cheap to make, and often within a few percent of the best.

::

    heft       by the longest way to the end, each op into the first gap of a stream     its order and streams
    in order, or whatever is ready of it                                                 ... issued two ways
    critical path, shortest first                                                        ... on its streams

HEFT (`policies.placement.lists.heft`) keeps the devices that a job has, or chooses them.
"""

from __future__ import annotations

from collections.abc import Iterator

from policies.issue.critical_path import CriticalPath
from policies.issue.in_order import InOrder
from policies.issue.out_of_order import OutOfOrder
from policies.placement.lists.heft import Heft
from policies.placement.problem import Problem
from scenarios.run.scenario import Case
from scenarios.tune.schedules import Order
from sim.graph.walks import least_first
from sim.job.job import Job

__all__ = ["list_schedules"]


def list_schedules(case: Case, job: Job, placed: bool) -> Iterator[Case]:
    """Yield the same work with other decisions.

    Parameters
    ----------
    case : Case
    job : Job
        That of the case.
    placed : bool
        Whether ops stay on the devices of the job.
    """
    how = case.decisions.policy.synchronisation
    problem = Problem.of_job(job) if placed else Problem(job.graph, job.machine, job.known_costs_ns)
    heft = Heft().schedule(problem)
    there = case.deciding(streams=heft, linearize=heft)
    if not placed:
        there = there.deciding(placement=heft)
    yield there.deciding(policy=InOrder(synchronisation=how))
    yield there.deciding(policy=OutOfOrder(synchronisation=how))
    yield there.deciding(policy=CriticalPath(synchronisation=how))
    shortest = Order(list(least_first(job.graph.dag(), job.known_ns.tolist())))
    yield there.deciding(policy=OutOfOrder(synchronisation=how), linearize=shortest)
