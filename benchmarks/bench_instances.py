"""A direct model of CP-SAT on instances of schedulers' benchmarks, beside `sim bench FOLDER... --limit 10s`.

    python benchmarks/bench_instances.py FOLDER... [--limit 10s]

The direct model is what a textbook writes: an interval an op, one for each device where it may run elsewhere,
no overlap on a device, a cumulative constraint a resource. Both search in one thread, within the same time.
Neither knows communication. What is not proven depends on how fast the machine is.
"""

from __future__ import annotations

from collections import defaultdict
from math import ceil
from typing import Any

from scenarios.run.prepare_job import job_of
from scenarios.run.scenario import scenario_of
from scenarios.variants.bench import OPTIMUM, Point, document_of, instances_in, known_of
from sim.base.units import NS_PER_S, parse_duration
from sim.job.job import Job
from studies.program import run

UNIT_NS = 1000
"""Times of files are whole microseconds here."""


def direct(job: Job, limit_ns: int) -> tuple[int | None, int]:
    """Return the least makespan that a direct model finds within a time, and its bound, in ns."""
    from ortools.sat.python import cp_model

    model, graph, machine = cp_model.CpModel(), job.graph, job.machine
    given = list(graph.duration_by_kind.items())
    horizon = sum(max(int(ns), *(int(by[op]) for _, by in given), 0) for op, ns in enumerate(job.duration_ns))
    horizon //= UNIT_NS
    on: dict[int, list[Any]] = defaultdict(list)
    need: dict[str, list[tuple[Any, int]]] = defaultdict(list)
    start, end = [], []
    for op in range(len(graph)):
        begin, stop = model.new_int_var(0, horizon, ""), model.new_int_var(0, horizon, "")
        ways = [(machine.positions[name], int(by[op])) for name, by in given if int(by[op]) >= 0]
        if not ways or graph.duration_ns[op] >= 0:
            ways = [(int(job.device_of[op]), int(job.duration_ns[op]))]
        chosen = [model.new_bool_var("") for _ in ways]
        model.add_exactly_one(chosen)
        for (device, ns), here in zip(ways, chosen, strict=True):
            on[device].append(model.new_optional_interval_var(begin, ns // UNIT_NS, stop, here, ""))
        for name, n in graph.attribute("resources").get(op, {}).items():
            need[name].append((on[ways[0][0]][-1], n))
        start.append(begin)
        end.append(stop)
    for a, b in zip(graph.edges.producer.tolist(), graph.edges.consumer.tolist(), strict=True):
        model.add(start[b] >= end[a])
    for device, intervals in on.items():
        if (lanes := machine.devices[device].lanes) == 1:
            model.add_no_overlap(intervals)
        elif lanes < len(intervals):
            model.add_cumulative(intervals, [1] * len(intervals), lanes)
    for name, taken in need.items():
        model.add_cumulative([each for each, _ in taken], [n for _, n in taken], machine.resources[name])
    last = model.new_int_var(0, horizon, "")
    model.add_max_equality(last, end)
    model.minimize(last)
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = limit_ns / NS_PER_S
    solver.parameters.num_workers = 1
    found = solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    bound = ceil(solver.best_objective_bound - 1e-6) * UNIT_NS
    return (round(solver.objective_value) * UNIT_NS if found else None), bound


def main(folders: list[str], limit: str = "10s") -> None:
    """Print the best known makespan of each instance, what CP-SAT finds within a time, and its bound."""
    print("instance,best_known_ns,makespan_ns,lower_bound_ns")
    for path in instances_in(folders):
        job = job_of(scenario_of(document_of(Point(path, OPTIMUM))).case())
        print(path, known_of(path).upper_ns, *direct(job, parse_duration(limit)), sep=",", flush=True)


if __name__ == "__main__":
    run(main)
