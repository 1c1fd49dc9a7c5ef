"""How near to the best possible: the least makespan (tardiness, flow time, energy), proven as time allows.

::

    policies ───────┐
    list schedules ─┼─► the best ──► CP-SAT makes windows of it shorter ──► run that ──┐
    CP-SAT, orders ─┘      ▲  └──► changed a little, as long as that helps ────────────┤
         │                 └───────────────────────────────────────────────────────────┘
         └─► no run takes less than ... ──► gap

The search is over orders and streams, on the devices that the scenario's policy has chosen, or over devices,
too. What it finds is run as any scenario is, and only that counts: the bound is the solver's, the makespan
the simulator's. `policies.optimum_model` says what the solver knows of a job.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

import numpy as np

from policies.issue.program_order import InOrder, OutOfOrder
from policies.issue.ready_queue import CriticalPath
from policies.optimum_model import OBJECTIVES, Follow, JobModel, Timetable, objective_named, refuse_unmodelled
from policies.placement.list_schedule import Heft
from policies.placement.problem import Problem
from policies.placement.simple import Given
from scenarios.fields.results import result_of_run, shown_result
from scenarios.run.execute import Result
from scenarios.run.scenario import Case
from scenarios.variants.schedules import ListedOrder, SearchSchedule, Space, refuse_decided
from scenarios.variants.variant import attempt
from sim.base.arrays import LATEST_NS
from sim.base.units import NS_PER_S, format_duration
from sim.explain.bounds import bounds
from sim.graph.walks import least_first
from sim.job.job import Job
from sim.objectives import due_ops
from sim.trace import Trace

# ----------------------------------------------------------------------------------------------------------
# Schedules to begin a search with: cheap to make, and often within a few percent of the best.
#
#  heft       by the longest way to the end, each op into the first gap of a stream     its order and streams
#  in order, or whatever is ready of it                                                 ... issued two ways
#  critical path, shortest first, due first                                             ... on its streams
#
# HEFT (`policies.placement.list_schedule`) keeps the devices that a job has, or chooses them.


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
    sync = case.decisions.policy.synchronisation
    problem = Problem.of_job(job) if placed else Problem(job.graph, job.machine, job.known_costs_ns)
    heft = Heft().schedule(problem)
    listed = case.deciding(streams=heft, linearize=heft)
    if not placed:
        listed = listed.deciding(placement=heft)
    yield listed.deciding(policy=InOrder(synchronisation=sync))
    yield listed.deciding(policy=OutOfOrder(synchronisation=sync))
    yield listed.deciding(policy=CriticalPath(synchronisation=sync))
    urgent = [due_ops(job.graph).get(op, (LATEST_NS, 0))[0] for op in range(len(job.graph))]
    due = [_inherit_due(job, urgent)] if job.graph.attribute("due") else []
    for keys in (job.known_ns.tolist(), *due):
        first = ListedOrder(list(least_first(job.graph.dag(), keys)))
        yield listed.deciding(policy=OutOfOrder(synchronisation=sync), linearize=first)


def _inherit_due(job: Job, due_ns: list[int]) -> list[int]:
    """Return how early each op is due, for its own sake or that of what follows it."""
    for op in reversed(job.graph.topological_order.tolist()):
        follow = (due_ns[other] for other in job.graph.dag().successors[op])
        due_ns[op] = min(due_ns[op], *follow, LATEST_NS)
    return due_ns


# ----------------------------------------------------------------------------------------------------------

OPTIMUM_SCHEMA: Final = "sim.optimum/1"
"""What ``"schema"`` says in the output of ``sim optimum --json``."""

_EVEN_TASKS: Final = 400
"""Number of tasks for which the search of the whole gets as much time as that of windows; fewer get more."""

_TRIES_PER_OP: Final = 100
"""Number of changes per op, all without gain, that end the search around the best run."""

_MOST_MISSES: Final = 10
"""Number of windows in a row that are better only in the solver's model; more end the search of windows."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """The best known run, and a lower bound of all runs.

    Attributes
    ----------
    base : Result
        Run under the scenario's own policy; the optimum is that of its job.
    results : list of Result
        Runs under all requested policies.
    found : Result or None
        Run of the best schedule that the search found; None if it found none that runs.
    why_not : str or None
        Why there is no such run; None if there is one.
    lower_bound : int
        Lower bound of the goal, in ns; of an energy in pJ; of a mean flow time that of the sum over jobs.
    left_out : tuple of str
        Properties of the job that the solver's model leaves out.
    placed : bool
        Whether ops stay on the devices that the scenario's policy chose.
    searched : bool
        Whether the search ended before its time limit.
    goal : str
        Result to minimize, by its name in ``expect:``.
    """

    base: Result
    results: Sequence[Result]
    found: Result | None
    why_not: str | None
    lower_bound: int
    left_out: tuple[str, ...]
    placed: bool
    searched: bool
    goal: str = "makespan"

    @property
    def best(self) -> Result:
        """The best of the runs for which the bound holds."""
        runs = [self.found] if self.found else []
        runs += [result for result in self.results if self.unlike(result) is None]
        return min(runs, key=self.cost)

    def cost(self, result: Result) -> int:
        """Return the cost of a run: its value of the goal."""
        return OBJECTIVES[self.goal].of(result.trace)

    def cost_text(self, cost: int) -> str:
        """Return a cost as text with its unit."""
        value = Fraction(cost, OBJECTIVES[self.goal].parts(self.base.trace.job))
        return shown_result(self.goal, int(value) if value.denominator == 1 else float(value))

    @property
    def proven(self) -> bool:
        """Whether no run can be better."""
        return self.cost(self.best) == self.lower_bound

    @property
    def gap(self) -> float | None:
        """Relative distance of the best from the bound; None if the bound is 0 and the best is not."""
        if self.lower_bound > 0:
            return self.cost(self.best) / self.lower_bound - 1
        return 0.0 if self.proven else None

    def unlike(self, result: Result) -> str | None:
        """Return in two words why the bound does not hold for a run, or None if it does."""
        return None if result in (self.base, self.found) else _unlike(self.base, result, self.placed)

    def sentence(self, limit_ns: int) -> str:
        """Return a sentence on how good the best is known to be; see `find_optimum` for the limit."""
        best, bound = self.cost_text(self.cost(self.best)), self.cost_text(max(0, self.lower_bound))
        gap = "" if self.gap is None else f" (gap {self.gap:.1%})"
        words = self.goal.replace("_", " ")
        if self.goal != "makespan":
            proven = f"the least {words} is {best}: no order has less"
            text = f"the best known {words} is {best}, and none is below {bound}{gap}"
        else:
            proven = f"the optimum is {best}: no order takes less"
            text = f"the best known takes {best}, and nothing takes less than {bound}{gap}"
        if self.proven:
            return proven
        if self.searched:
            return f"{text}; the search is over"
        return f"{text}; after {format_duration(limit_ns)}, and a longer search may know more"

    def to_json(self) -> dict[str, Any]:
        """Return what ``sim optimum --json`` prints; value and bound are in ns, of an energy in pJ."""
        parts, best = OBJECTIVES[self.goal].parts(self.base.trace.job), self.cost(self.best)
        return {
            "schema": OPTIMUM_SCHEMA,
            "scenario": self.base.scenario,
            "policy": self.base.policy,
            "placement": "fixed" if self.placed else "free",
            "makespan_ns": self.best.trace.makespan_ns,
            "objective": self.goal,
            "value": best / parts,
            "lower_bound": self.lower_bound / parts,
            "lower_bound_ns": self.lower_bound if self.goal == "makespan" else None,
            "gap": self.gap,
            "proven": self.proven,
            "searched": self.searched,
            "found_by": "search" if self.best is self.found else self.best.policy,
            "left_out": list(self.left_out),
            "why_not": self.why_not,
            "policies": [
                {
                    "policy": result.policy,
                    "makespan_ns": result.trace.makespan_ns,
                    "above_best": self.cost(result) / best - 1 if best and not self.unlike(result) else None,
                    "unlike": self.unlike(result),
                }
                for result in self.results
            ],
        }


def bound_of_placed(run: Result) -> int:
    """Return a lower bound in ns of every order and all streams on the same devices; it needs no solver."""
    synchronisation = run.case.decisions.policy.synchronisation
    limits = bounds(run.trace, synchronisation=synchronisation, exact=True).by_source
    return max(ns for source, ns in limits.items() if not source.startswith("stream "))


def find_optimum(
    results: Sequence[Result],
    *,
    limit_ns: int,
    placed: bool = True,
    seed: int = 0,
    goal: str = "makespan",
    jobs: int = 1,
) -> Optimum:
    """Search for a schedule with the least makespan of the first run's job, or the least of another goal.

    Parameters
    ----------
    results : sequence of Result
        Runs of the scenario; the optimum is that of the first one's job.
    limit_ns : int
        Time limit of the search, by the wall clock. What is proven before it is always the same.
    placed : bool
        Whether ops stay on their devices in the first run.
    seed : int
        Seed of the solver.
    goal : str
        One of `policies.optimum_model.OBJECTIVES`.
    jobs : int
        Number of strategies with which the solver searches in parallel.

    Raises
    ------
    InputError
        The goal needs due times or powers, and there are none; or there can be no bound, because of control
        flow, ops that may fail, or folds.
    MissingExtraError
        OR-tools is not installed.
    """
    deadline = time.monotonic() + limit_ns / NS_PER_S
    base = results[0]
    job, policy = base.trace.job, base.case.decisions.policy
    refuse_decided(base)
    refuse_unmodelled(job, placed)
    objective = objective_named(goal)
    result_of_run(goal, base.numbers, base.trace)
    alike = [base, *(other for other in results[1:] if not _unlike(base, other, placed))]
    search = _Search(base.case, alike, placed, objective.of)
    trace = search.known.trace
    for case in list_schedules(base.case, job, placed):
        search.run(case)
    least_ns = bound_of_placed(base) if placed else 0
    memory = base.trace.memory is not None
    model = JobModel(job, policy, trace, placed=placed, memory=memory, least_ns=least_ns, objective=objective)
    bound = max(least_ns, model.least_ns) if model.is_makespan else 0
    if model.is_makespan and model.lists.suits and search.known_cost > bound:
        model.begin_with(search.known.trace)
        until_lists = (time.monotonic() + 2 * deadline) / 3  # two thirds of the time that is left
        for listed in model.by_lists(until_lists, seed):
            search.follow(listed)
        model.begin_with(search.known.trace)
    searched = search.known_cost == bound
    if not searched:
        tasks = len(job.graph) * job.iterations
        left_ns = (deadline - time.monotonic()) * NS_PER_S
        part_ns = left_ns * _EVEN_TASKS / (tasks + _EVEN_TASKS) if model.is_makespan else left_ns
        solved, timetable = model.solve(max(1, round(part_ns)), jobs, seed)
        bound, searched = max(bound, solved.bound_ns), solved.finished
        if timetable is not None:
            search.follow(timetable)
    if model.is_makespan and not searched and search.known_cost > bound:
        _improve(search, model, bound, deadline, seed)
    searched = search.known_cost == bound or (search.look_around(bound, deadline, seed) and searched)
    why_not = search.why_not if search.found is None else None
    return Optimum(base, results, search.found, why_not, bound, model.left_out, placed, searched, goal)


def _improve(search: _Search, model: JobModel, least_ns: int, deadline: float, seed: int) -> None:
    """Run schedules improved in windows, until too many in a row are no better or the bound is reached."""
    misses = 0
    model.begin_with(search.known.trace)
    for timetable in model.improve(deadline, seed):
        better = search.follow(timetable)
        misses = 0 if better else misses + 1
        if search.known_cost == least_ns or misses > _MOST_MISSES:
            return
        if better:
            model.begin_with(better.trace)


class _Search:
    """The best run so far, among the given ones and those that the search makes."""

    def __init__(
        self, case: Case, alike: Sequence[Result], placed: bool, cost: Callable[[Trace], int]
    ) -> None:
        self.case, self.placed, self.cost = case, placed, cost
        self.known = min(alike, key=lambda result: cost(result.trace))
        self.known_cost = cost(self.known.trace)
        self.found: Result | None = None
        self.why_not: str | None = "the search found no schedule in time"

    def run(self, case: Case) -> int | None:
        """Run a case, which may be the best so far; return its cost, or None if it cannot run."""
        case = replace(case.deciding(label="optimum"), expectations=())
        run = attempt(case)
        if run.error is not None or (result := run.result) is None:
            self.why_not = f"what the search found cannot run: {run.line}"
            return None
        cost = self.cost(result.trace)
        if self.found is None or cost < self.cost(self.found.trace):
            self.found = result
        if cost < self.known_cost:
            self.known, self.known_cost = result, cost
        return cost

    def follow(self, timetable: Timetable) -> Result | None:
        """Run what a solver found, on streams that suit it or the scenario's; return the best run, if new."""
        before, sync = self.known, self.case.decisions.policy.synchronisation
        for by_start, waits in ((True, False), (False, False), (False, True)):
            if waits and self.known_cost <= timetable.cost:
                break
            follow = Follow(timetable, sync, by_start=by_start, waits=waits)
            case = self.case.deciding(policy=follow, linearize=follow)
            if not self.placed:
                case = case.deciding(placement=Given(timetable.device))
            self.run(case.deciding(streams=follow))
        if self.known is before:
            self.run(case)
        return None if self.known is before else self.known

    def look_around(self, bound: int, deadline: float, seed: int) -> bool:
        """Change the best run in some places, in more after more failures, and go on from what is no worse.

        Return whether the search ended before its deadline because nothing helped any more (variable
        neighbourhoods: Mladenović and Hansen 1997, Computers & Operations Research 24(11)).
        """
        job, sync = self.known.trace.job, self.case.decisions.policy.synchronisation
        space = Space(job, None if self.placed else Problem(job.graph, job.machine, job.known_costs_ns))
        current, cost = SearchSchedule.of(self.known.trace), self.known_cost
        rng, programs, failures = random.Random(seed), {current.by_host(job)}, 0
        patience = _TRIES_PER_OP * len(job.graph)
        while failures < patience and self.known_cost > bound:
            near = current
            for _ in range(rng.randint(1, 2 + 6 * failures // patience)):
                _, near = next(space.neighbours(near, rng), (None, near))
            failures += 1
            if (program := near.by_host(job)) in programs:
                continue
            if time.monotonic() >= deadline:
                return False
            programs.add(program)
            case = self.case.deciding(policy=InOrder(synchronisation=sync), linearize=ListedOrder(near.order))
            if not self.placed:
                case = case.deciding(placement=Given(near.device))
            new_cost = self.run(case.deciding(streams=near))
            if new_cost is not None and new_cost <= cost:
                failures = 0 if new_cost < cost else failures
                current, cost = near, new_cost
        return True


def _unlike(base: Result, other: Result, placed: bool) -> str | None:
    """Return the difference by which a bound of one run does not hold for the other, or None."""
    a, b = base.trace.job, other.trace.job
    one, two = (result.case.decisions.policy.synchronisation for result in (base, other))
    if base.case.scenario.machine_spec != other.case.scenario.machine_spec:
        return "another machine"
    if a.graph.op_names != b.graph.op_names or a.iterations != b.iterations:
        return "another graph"
    sizes = (a.graph.tensor_nbytes, b.graph.tensor_nbytes)
    if _differ(sizes, *zip(a.graph.edges, b.graph.edges, strict=True)):
        return "another graph"
    if one != two:
        return f"synchronisation: {two}"
    if placed and _differ((a.device_of, b.device_of)):
        return "other devices"
    costs = [(a.duration_ns, b.duration_ns)]
    if not placed:
        costs = list(zip(a.known_costs_ns, b.known_costs_ns, strict=True))
    times = [(a.noisy_ns, b.noisy_ns), (a.issue_ns, b.issue_ns), (a.record_ns, b.record_ns)]
    return "other times" if _differ(*costs, *times) else None


def _differ(*columns: tuple[Any, Any]) -> bool:
    return not all(
        (one is None) == (two is None) and (one is None or np.array_equal(one, two)) for one, two in columns
    )
