"""A schedule as a constraint problem: times, what they wait for, and what one of them has for itself.

::

    time     s ─────────── begins when?                       after     s(b) >= s(a) + 10
    occupy   [s, s + 10) on a resource                         limit     at most so many at once
                                                               solve     least end of the last

Who models something (a job, a placement, a pipeline) says it in these words; OR-tools' CP-SAT searches. It is
the same for the same problem, however many strategies take turns, unless its time is up before it is sure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import ceil
from typing import Any, NamedTuple

from policies.cp_sat.search import solve
from sim.words.errors import extra
from sim.words.units import NS_PER_S

__all__ = ["Activities", "Solved"]


class Solved(NamedTuple):
    """What a search came to.

    Attributes
    ----------
    values : callable or None
        The value of each variable in the best solution; None: none was found in time.
    bound_ns : int
        No solution is below it.
    finished : bool
        The best solution is proven to be that, or there is none at all.
    """

    values: Any
    bound_ns: int
    finished: bool


class Activities:
    """Times within a horizon, and constraints between them.

    Parameters
    ----------
    purpose : str
        What OR-tools is needed for, if it is missing.
    horizon_ns : int
        All is over by then.

    Attributes
    ----------
    model : CpModel
        For constraints of one's own.
    longest : IntVar
        What is minimised.

    Raises
    ------
    MissingExtraError
        OR-tools is not installed.
    """

    def __init__(self, purpose: str, horizon_ns: int) -> None:
        with extra("opt", purpose):
            from ortools.sat.python import cp_model
        self._cp = cp_model
        self.model: Any = cp_model.CpModel()
        self.horizon_ns = horizon_ns
        self.longest = self.time("longest")
        self._taken: dict[Hashable, list[tuple[Any, int, Any]]] = {}

    def time(self, name: str) -> Any:
        """Return an unknown time."""
        return self.model.new_int_var(0, self.horizon_ns, name)

    def literal(self, name: str) -> Any:
        """Return something that holds or does not."""
        return self.model.new_bool_var(name)

    def some(self, literals: Sequence[Any]) -> None:
        """Let one of them hold at least."""
        self.model.add_bool_or(literals)

    def implies(self, one: Any, other: Any) -> None:
        """Let `other` hold if `one` does."""
        self.model.add_implication(one, other)

    def choice(self, names: Sequence[str]) -> list[Any]:
        """Return a literal for each of some names, one of which holds; where there is one alone, None."""
        if len(names) == 1:
            return [None]
        literals = [self.literal(name) for name in names]
        self.model.add_exactly_one(literals)
        return literals

    def after(self, later: Any, earlier: Any, *given: Any) -> None:
        """Let `later` not be before `earlier` (times, or sums with numbers), if all that is `given` holds."""
        literals = [literal for literal in given if literal is not None]
        constraint = self.model.add(later >= earlier)
        if literals:
            constraint.only_enforce_if(literals)

    def never(self, *given: Any) -> None:
        """Let not all that is `given` hold."""
        self.model.add_bool_or([literal.negated() for literal in given if literal is not None])

    def together(self, one: Mapping[int, Any], other: Mapping[int, Any]) -> None:
        """Let the same of each of two choices hold."""
        for name, literal in one.items():
            if literal is not None:
                self.model.add(literal == other[name])

    def last(self, begin: Any, ns: int, end: Any, given: Any = None) -> None:
        """Let `end` be so long after `begin`, if what is `given` holds."""
        constraint = self.model.add(end == begin + ns)
        if given is not None:
            constraint.only_enforce_if(given)

    def suppose(self, unknown: Any, value: int) -> None:
        """Let the search begin with a value of a time or literal; what is no unknown follows from others."""
        if isinstance(unknown, self._cp.IntVar):
            self.model.add_hint(unknown, value)

    def occupy(
        self, resource: Hashable, begin: Any, ns: int, given: Any = None, *, amount: int = 1, gap_ns: int = 0
    ) -> None:
        """Take a part of a resource from `begin` on for so long, and for a gap before what follows."""
        taken = self._taken.setdefault(resource, [])
        name = f"{resource} {len(taken)}"
        if given is None:
            interval = self.model.new_fixed_size_interval_var(begin, ns + gap_ns, name)
        else:
            interval = self.model.new_optional_fixed_size_interval_var(begin, ns + gap_ns, given, name)
        taken.append((interval, amount, ns * amount * (1 if given is None else given)))

    def hold(self, resource: Hashable, begin: Any, end: Any, amount: int) -> None:
        """Take a part of a resource from one time to another."""
        ns = self.time(f"{resource} held")
        interval = self.model.new_interval_var(begin, ns, end, f"{resource} hold")
        self._taken.setdefault(resource, []).append((interval, amount, 0))

    def limit(self, resource: Hashable, capacity: int) -> None:
        """Let no more of a resource be taken at once than there is.

        That its work takes at least so long follows, and has to be said: the solver hardly proves anything
        without.
        """
        if resource not in self._taken:
            return
        intervals, amounts, work = zip(*self._taken[resource], strict=True)
        if capacity == 1 and max(amounts) == 1:
            self.model.add_no_overlap(intervals)
        elif sum(amounts) > capacity:
            self.model.add_cumulative(intervals, amounts, capacity)
        self.model.add(capacity * self.longest >= sum(work))

    def solve(self, limit_ns: int, workers: int = 1, seed: int = 0) -> Solved:
        """Return the times with the least `longest` that are found within a time limit on the wall.

        One of the solver's strategies is enough for most; of several `workers` each has a turn after another.
        """
        self.model.minimize(self.longest)
        solver: Any = self._cp.CpSolver()
        solver.parameters.max_time_in_seconds = limit_ns / NS_PER_S
        solver.parameters.num_workers = workers
        solver.parameters.interleave_search = workers > 1  # deterministic, with however many workers
        solver.parameters.random_seed = seed
        status = solve(solver, self.model)
        bound = max(0, ceil(solver.best_objective_bound - 1e-6))
        if status in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            return Solved(solver.value, bound, status == self._cp.OPTIMAL)
        return Solved(None, bound, status == self._cp.INFEASIBLE)
