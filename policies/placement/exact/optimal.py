"""The optimum, by constraint programming: how far from it a heuristic is.

The same model as the list placements have (costs per device, travel times, no contention), solved by
CP-SAT of OR-tools (extra ``opt``): one interval per op and device of which one is chosen, no overlap on
a device's lanes, a delay for every edge that crosses. A search that runs out of time returns the best so far
and warns how far it may be from the optimum; what it had found by then depends on the machine.
For the ten tasks of Topcuoglu et al. 2002 it proves 73, where HEFT finds 80.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from policies.cp_sat.activities import Activities
from policies.option_checks import whole
from policies.placement.lists.heft import Heft
from policies.placement.lists.list_schedule import ListPlacement, Schedule
from policies.placement.problem import NEVER, Problem
from sim.words.units import format_duration

__all__ = ["Optimal", "Optimum", "UnprovenWarning"]


@dataclass(frozen=True)
class Optimum:
    """The best schedule that was found, and what no schedule can be better than.

    Attributes
    ----------
    schedule : Schedule
    lower_bound_ns : int
        Of the makespan, over all placements and orders.
    proven : bool
        Whether the schedule's makespan is the lower bound.
    """

    schedule: Schedule
    lower_bound_ns: int

    @property
    def proven(self) -> bool:
        """Whether nothing can be better than the schedule."""
        return self.schedule.makespan_ns == self.lower_bound_ns

    @property
    def gap(self) -> float:
        """Which part of the schedule's makespan a better one could save at most."""
        return 1 - self.lower_bound_ns / max(1, self.schedule.makespan_ns) if not self.proven else 0.0


class UnprovenWarning(UserWarning):
    """A search ran out of time: what it found may not be the best."""


class Optimal(ListPlacement):
    """The best placement and order that CP-SAT finds, starting from HEFT's (needs the extra ``opt``).

    Parameters
    ----------
    time_limit_ns : int
        How long to search, by the clock on the wall.
    workers : int
        Search strategies of the solver that take turns. One is enough for tens of ops; harder problems
        are proven with 8 or more, which takes as many times longer where there are no cores for them.
    seed : int
        Of the solver: the same seed searches in the same way.

    Attributes
    ----------
    optimum : Optimum or None
        What the last search found, with its bound.

    Raises
    ------
    InputError
        A time limit or number of workers that is not positive.
    """

    def __init__(self, time_limit_ns: int = 30_000_000_000, workers: int = 1, seed: int = 0) -> None:
        self.time_limit_ns = whole("optimal", "time_limit_ns", time_limit_ns)
        self.workers = whole("optimal", "workers", workers, most=10_000)
        self.seed = whole("optimal", "seed", seed, least=0, most=2**31 - 1)
        self.optimum: Optimum | None = None

    def schedule(self, problem: Problem) -> Schedule:
        """Return the best schedule found.

        Warns
        -----
        UnprovenWarning
            The time limit came first.
        """
        found = self.optimum = self.solve(problem)
        if not found.proven:
            limit, makespan, bound = map(
                format_duration, (self.time_limit_ns, found.schedule.makespan_ns, found.lower_bound_ns)
            )
            message = (
                f"optimal: not proven within {limit}. The best schedule found takes {makespan}, and none "
                f"takes less than {bound} (gap {found.gap:.1%}). Raise time_limit, or use heft"
            )
            warnings.warn(message, UnprovenWarning, stacklevel=2)
        return found.schedule

    def solve(self, problem: Problem) -> Optimum:
        """Return the best schedule found, with a lower bound.

        Raises
        ------
        MissingExtraError
            OR-tools is not installed.
        """
        start = Heft().schedule(problem)
        model = _Model(problem, start)
        found = model.times.solve(self.time_limit_ns, self.workers, self.seed)
        bound = max(_least_ns(problem), found.bound_ns)
        if found.values is None:  # out of time before anything better
            return Optimum(start, bound)
        return Optimum(model.schedule(found.values), bound)


def _least_ns(problem: Problem) -> int:
    """Return what all ops take at least, each where it is fastest, and every lane busy all the time."""
    work = sum(
        min(costs[d] for d in devices)
        for costs, devices in zip(problem.cost_ns, problem.devices_of, strict=True)
    )
    return -(-work // sum(device.lanes for device in problem.machine.devices))


class _Model:
    """The constraints. Horizon and hint are those of a schedule that is known to work."""

    def __init__(self, problem: Problem, known: Schedule) -> None:
        self.problem = problem
        self.times = times = Activities("searching for the optimal placement", known.makespan_ns)
        self.start = [times.time(f"start {op}") for op in range(problem.n)]
        self.end = [times.time(f"end {op}") for op in range(problem.n)]
        self.on: list[dict[int, Any]] = [
            dict(zip(own, times.choice([f"{op} on {d}" for d in own]), strict=True))
            for op, own in enumerate(problem.devices_of)
        ]
        self._devices()
        self._edges()
        for op, (begin, device) in enumerate(zip(known.start_ns, known.device, strict=True)):
            times.suppose(self.start[op], begin)
            for d, chosen in self.on[op].items():
                times.suppose(chosen, d == device)

    def _devices(self) -> None:
        """Each op on one device, one op on a lane; the load of a device is at most the makespan."""
        times, problem = self.times, self.problem
        for op, on in enumerate(self.on):
            times.after(times.longest, self.end[op])
            for d, chosen in on.items():
                times.last(self.start[op], problem.cost_ns[op][d], self.end[op], chosen)
                times.occupy(d, self.start[op], problem.cost_ns[op][d], chosen)
            leader = problem.group_of[op]
            if leader != op:
                times.together(on, self.on[leader])
        for d, device in enumerate(problem.machine.devices):
            times.limit(d, device.lanes)

    def _edges(self) -> None:
        """No op before its inputs are there."""
        problem = self.problem
        for op in range(problem.n):
            for b, there in self.on[op].items():
                for home, nbytes in problem.arrivals[op]:
                    self._delay(0, self.start[op], problem.travel_ns(home, b, nbytes), there)
            for producer, nbytes in problem.producers[op]:
                self.times.after(self.start[op], self.end[producer])
                for a, here in self.on[producer].items():
                    for b, there in self.on[op].items():
                        delay = problem.travel_ns(a, b, nbytes)
                        if delay:
                            self._delay(self.end[producer], self.start[op], delay, here, there)

    def _delay(self, from_ns: Any, to_ns: Any, delay_ns: int, *given: Any) -> None:
        if delay_ns >= NEVER:
            self.times.never(*given)
        else:
            self.times.after(to_ns, from_ns + delay_ns, *given)

    def schedule(self, value: Callable[[Any], int]) -> Schedule:
        """Read the solution, giving each op the first lane that is free at its start."""
        problem = self.problem
        start = [value(var) for var in self.start]
        device = [next(d for d, chosen in row.items() if chosen is None or value(chosen)) for row in self.on]
        end = [begin + problem.cost_ns[op][device[op]] for op, begin in enumerate(start)]
        free = [[0] * d.lanes for d in problem.machine.devices]
        lane = [0] * problem.n
        for op in sorted(range(problem.n), key=lambda op: (start[op], end[op], problem.topological_rank[op])):
            lanes = free[device[op]]
            lane[op] = next(k for k, until in enumerate(lanes) if until <= start[op])
            lanes[lane[op]] = end[op]
        return Schedule(device, lane, start, end)
