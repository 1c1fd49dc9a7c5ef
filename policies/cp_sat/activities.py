"""A schedule as a constraint problem: times, what they wait for, and what one of them has for itself.

::

    time     s ─────────── begins when?                       after     s(b) >= s(a) + 10
    occupy   [s, s + 10) on a resource                         limit     at most so many at once
                                                               solve     least end of the last

Who models something (a job, a placement, a pipeline) says it in these words, and what was said is kept as
data: OR-tools' CP-SAT searches in it as a whole (`policies.cp_sat.translate`), or, from a solution that is
known, in one part of it after another (`policies.cp_sat.windows`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import ceil
from time import monotonic
from typing import Any, NamedTuple

from policies.cp_sat.search import solve
from policies.cp_sat.translate import translate
from policies.cp_sat.words import LONGEST, After, Held, Last, Literal, Problem, Taken, Time
from sim.words.errors import extra
from sim.words.units import NS_PER_S

__all__ = ["Activities", "Solved"]


class Solved(NamedTuple):
    """What a search came to.

    Attributes
    ----------
    values : callable or None
        The value of each time and literal in the best solution; None: none was found in time.
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
    problem : Problem
        What was said.
    longest : Time
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
        self.problem = Problem(horizon_ns)
        self.longest = LONGEST

    def time(self, name: str) -> Time:
        """Return an unknown time."""
        self.problem.times.append(name)
        time = Time(len(self.problem.times) - 1)
        self.problem.unknowns.append(time)
        return time

    def literal(self, name: str) -> Literal:
        """Return something that holds or does not."""
        self.problem.literals.append(name)
        literal = Literal(len(self.problem.literals) - 1)
        self.problem.unknowns.append(literal)
        return literal

    def some(self, literals: Sequence[Literal]) -> None:
        """Let one of them hold at least."""
        self.problem.any_of.append([(literal, True) for literal in literals])

    def implies(self, one: Literal, other: Literal) -> None:
        """Let `other` hold if `one` does."""
        self.problem.any_of.append([(one, False), (other, True)])

    def choice(self, names: Sequence[str]) -> list[Any]:
        """Return a literal for each of some names, one of which holds; where there is one alone, None."""
        if len(names) == 1:
            return [None]
        literals = [self.literal(name) for name in names]
        self.problem.one_of.append(literals)
        return literals

    def after(self, later: Time | int, earlier: Time | int, *given: Literal | None) -> None:
        """Let `later` not be before `earlier`, if all that is `given` holds."""
        literals = tuple(literal for literal in given if literal is not None)
        self.problem.after.append(After(later, earlier, literals))

    def never(self, *given: Literal | None) -> None:
        """Let not all that is `given` hold."""
        self.problem.any_of.append([(literal, False) for literal in given if literal is not None])

    def together(self, one: Mapping[int, Any], other: Mapping[int, Any]) -> None:
        """Let the same of each of two choices hold."""
        for name, literal in one.items():
            if literal is not None:
                self.implies(literal, other[name])
                self.implies(other[name], literal)

    def last(self, begin: Time | int, ns: int, end: Time, given: Literal | None = None) -> None:
        """Let `end` be so long after `begin`, if what is `given` holds."""
        self.problem.last.append(Last(begin, ns, end, given))

    def suppose(self, unknown: Time | Literal | None, value: int) -> None:
        """Let the search begin with a value of a time or literal."""
        if isinstance(unknown, Time):
            self.problem.time_hints[unknown.index] = value - unknown.offset
        elif unknown is not None:
            self.problem.literal_hints[unknown.index] = bool(value)

    def within(self, ns: int) -> None:
        """Let all be over by then, which the search begins with."""
        self.problem.horizon_ns = ns
        self.suppose(self.longest, ns)

    def occupy(
        self,
        resource: Hashable,
        begin: Time,
        ns: int,
        given: Literal | None = None,
        *,
        amount: int = 1,
        gap_ns: int = 0,
    ) -> None:
        """Take a part of a resource from `begin` on for so long, and for a gap before what follows."""
        self.problem.taken.setdefault(resource, []).append(Taken(begin, ns, given, amount, gap_ns))

    def hold(self, resource: Hashable, begin: Time, end: Time, amount: int) -> None:
        """Take a part of a resource from one time to another."""
        self.problem.held.setdefault(resource, []).append(Held(begin, end, amount))

    def limit(self, resource: Hashable, capacity: int) -> None:
        """Let no more of a resource be taken at once than there is."""
        self.problem.capacity[resource] = capacity

    def solve(self, limit_ns: int, workers: int = 1, seed: int = 0) -> Solved:
        """Return the times with the least `longest` that are found within a time limit on the wall.

        One of the solver's strategies is enough for most; of several `workers` each has a turn after another.
        It is the same for the same problem, however many strategies take turns, unless its time is up before
        it is sure.
        """
        until = monotonic() + limit_ns / NS_PER_S
        written = translate(self.problem)
        solver: Any = self._cp.CpSolver()
        solver.parameters.max_time_in_seconds = max(0.0, until - monotonic())
        solver.parameters.num_workers = workers
        solver.parameters.interleave_search = workers > 1  # deterministic, with however many workers
        solver.parameters.random_seed = seed
        status = solve(solver, written.model)
        bound = max(0, ceil(solver.best_objective_bound - 1e-6))
        if status in (self._cp.OPTIMAL, self._cp.FEASIBLE):
            return Solved(written.reader(solver), bound, status == self._cp.OPTIMAL)
        return Solved(None, bound, status == self._cp.INFEASIBLE)
