"""From the words of a schedule to a model of CP-SAT: all that was said, and the hints to begin with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from policies.cp_sat.words import LONGEST, Literal, Problem, Time

__all__ = ["Written", "at_most", "translate"]


class Written(NamedTuple):
    """A model of CP-SAT.

    Attributes
    ----------
    model : CpModel
    times, literals : list
        What stands for each: a variable, or its value where that is known; an expression of the end of all.
    """

    model: Any
    times: list[Any]
    literals: list[Any]

    def reader(self, solver: Any) -> Callable[[Time | Literal | int], int]:
        """Return what reads the values of a solution."""

        def read(unknown: Time | Literal | int) -> int:
            if isinstance(unknown, Time):
                return int(solver.value(self.times[unknown.index])) + unknown.offset
            if isinstance(unknown, Literal):
                return int(solver.value(self.literals[unknown.index]))
            return unknown

        return read


def translate(problem: Problem) -> Written:
    """Return the whole of a problem as a model."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    times: list[Any] = []
    literals: list[Any] = []
    for unknown in problem.unknowns:  # in the order in which they were made, which is that of the search
        if isinstance(unknown, Time):
            times.append(model.new_int_var(0, problem.horizon_ns, problem.times[unknown.index]))
        else:
            literals.append(model.new_bool_var(problem.literals[unknown.index]))
    written = Written(model, times, literals)

    def at(time: Time | int) -> Any:
        return time if isinstance(time, int) else _plus(times[time.index], time.offset)

    for later, earlier, given in problem.after:
        constraint = model.add(at(later) >= at(earlier))
        if given:
            constraint.only_enforce_if([literals[literal.index] for literal in given])
    for begin, ns, end, literal in problem.last:
        constraint = model.add(at(end) == at(begin) + ns)
        if literal is not None:
            constraint.only_enforce_if(literals[literal.index])
    for choices in problem.one_of:
        model.add_exactly_one([literals[literal.index] for literal in choices])
    for clause in problem.any_of:
        model.add_bool_or([literals[a.index] if holds else ~literals[a.index] for a, holds in clause])
    for resource, capacity in problem.capacity.items():
        _limit(problem, written, resource, capacity, at)
    for index, value in problem.time_hints.items():
        model.add_hint(times[index], value)
    for index, holds in problem.literal_hints.items():
        model.add_hint(literals[index], holds)
    model.minimize(times[LONGEST.index])
    return written


def _plus(time: Any, ns: int) -> Any:
    return time + ns if ns else time


def _limit(
    problem: Problem, written: Written, resource: Any, capacity: int, at: Callable[[Time | int], Any]
) -> None:
    """Limit what is taken of a resource at once.

    That its work takes at least so long follows, and has to be said: the solver hardly proves anything
    without.
    """
    model = written.model
    intervals: list[Any] = []
    amounts: list[int] = []
    work: list[Any] = []
    for begin, ns, given, amount, gap_ns in problem.taken.get(resource, ()):
        name = f"{resource} {len(intervals)}"
        if given is None:
            interval = model.new_fixed_size_interval_var(at(begin), ns + gap_ns, name)
            work.append(ns * amount)
        else:
            chosen = written.literals[given.index]
            interval = model.new_optional_fixed_size_interval_var(at(begin), ns + gap_ns, chosen, name)
            work.append(ns * amount * chosen)
        intervals.append(interval)
        amounts.append(amount)
    for begin, end, amount in problem.held.get(resource, ()):
        ns = model.new_int_var(0, problem.horizon_ns, f"{resource} held")
        intervals.append(model.new_interval_var(at(begin), ns, at(end), f"{resource} hold"))
        amounts.append(amount)
    at_most(model, intervals, amounts, capacity)
    model.add(capacity * written.times[LONGEST.index] >= sum(work))


def at_most(model: Any, intervals: Sequence[Any], amounts: Sequence[int], capacity: int) -> None:
    """Limit what intervals take at once."""
    if capacity == 1 and max(amounts, default=0) == 1:
        model.add_no_overlap(intervals)
    elif sum(amounts) > capacity:
        model.add_cumulative(intervals, amounts, capacity)
