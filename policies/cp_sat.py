"""A schedule as a constraint problem: times, what they wait for, and what one of them has for itself.

::

    time     s ─────────── begins when?                       after     s(b) >= s(a) + 10
    occupy   [s, s + 10) on a resource                         limit     at most so many at once
                                                               solve     least end of the last

Who models something (a job, a placement, a pipeline) says it in these words, and what was said is kept as
data: OR-tools' CP-SAT searches in it as a whole (`policies.cp_sat`), or, from a solution that is
known, in one part of it after another (`policies.optimum_windows`).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import ceil, gcd, inf
from time import monotonic
from typing import Any, Final, NamedTuple

from policies.schedule_problem import (
    LONGEST,
    NEVER,
    After,
    Covered,
    CoveringSpan,
    Last,
    LevelChange,
    Literal,
    ScheduleProblem,
    Taken,
    Time,
)
from sim.base.errors import extra
from sim.base.units import NS_PER_S, format_duration

# ----------------------------------------------------------------------------------------------------------
# From the words of a schedule to a model of CP-SAT: all that was said, and the hints to begin with.


class Written(NamedTuple):
    """A model of CP-SAT.

    Attributes
    ----------
    model : CpModel
    times, literals : list
        What stands for each: a variable, or its value where that is known; an expression of the end of all.
    cost : expression
        What is minimised.
    unit_ns : int
        What one of the model's times is.
    """

    model: Any
    times: list[Any]
    literals: list[Any]
    cost: Any
    unit_ns: int = 1

    def value(self, solver: Any, unknown: Time | Literal | int) -> int:
        """Return the value of a time or literal in the solution that a solver has."""
        if isinstance(unknown, Time):
            return int(solver.value(self.times[unknown.index])) * self.unit_ns + unknown.offset
        if isinstance(unknown, Literal):
            return int(solver.value(self.literals[unknown.index]))
        return unknown

    def begin_with(self, solver: Any, status: Any) -> None:
        """Let another search begin with what one knows: a bound, and the best solution, if there is one."""
        from ortools.sat.python import cp_model

        self.model.add(self.cost >= _bound(solver))
        if status == cp_model.FEASIBLE:
            self.model.add(self.cost <= round(solver.objective_value))
            self.model.clear_hints()
            for variable in (*self.times, *self.literals):
                self.model.add_hint(variable, solver.value(variable))


def unit_of(problem: ScheduleProblem) -> int:
    """Return the greatest common divisor of all times that a problem says, in ns.

    A schedule in which nothing can begin earlier without another order, and so one that is best, is made of
    sums of them. What is only a bound of the end of all, the horizon, and hints, make no time of it.

    Examples
    --------
    >>> problem = ScheduleProblem(100)
    >>> problem.last += [Last(Time(1), 30, Time(2), None), Last(Time(3, 12), 18, Time(4), None)]
    >>> unit_of(problem)
    6
    """
    said: set[int] = set()
    for later, earlier, given in problem.after:
        if given or later != LONGEST or isinstance(earlier, Time):
            said |= {_offset(later), _offset(earlier)}
    for begin, ns, end, _ in problem.last:
        said |= {_offset(begin), ns, _offset(end)}
    for taken in problem.taken.values():
        for begin, ns, _, _, gap_ns in taken:
            said |= {_offset(begin), ns, gap_ns}
    for changes in problem.changes.values():
        said |= {_offset(at) for at, _ in changes}
    return gcd(*said) or 1


def _offset(time: Time | int) -> int:
    return time.offset if isinstance(time, Time) else time


def translate(problem: ScheduleProblem, unit: int = 1) -> Written:
    """Return the whole of a problem as a model, its times in a unit of so many ns (`unit_of`)."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    times: list[Any] = []
    literals: list[Any] = []
    for unknown in problem.unknowns:  # in the order in which they were made, which is that of the search
        if isinstance(unknown, Time):
            times.append(model.new_int_var(0, problem.horizon_ns // unit, problem.times[unknown.index]))
        else:
            literals.append(model.new_bool_var(problem.literals[unknown.index]))
    cost = sum(
        times[what.index] * n if isinstance(what, Time) else literals[what.index] * (n // unit)
        for what, n in (problem.charged or {LONGEST: 1}).items()
    )
    written = Written(model, times, literals, cost, unit)

    def at(time: Time | int) -> Any:
        if isinstance(time, int):
            return -(-time // unit)
        return times[time.index] + time.offset // unit if time.offset else times[time.index]

    for later, earlier, given in problem.after:
        constraint = model.add(at(later) >= at(earlier))
        if given:
            constraint.only_enforce_if([literals[literal.index] for literal in given])
    for begin, ns, end, literal in problem.last:
        constraint = model.add(at(end) == at(begin) + ns // unit)
        if literal is not None:
            constraint.only_enforce_if(literals[literal.index])
    for choices in problem.one_of:
        model.add_exactly_one([literals[literal.index] for literal in choices])
    for clause in problem.any_of:
        model.add_bool_or([literals[a.index] if holds else ~literals[a.index] for a, holds in clause])
    for resource, capacity in problem.capacity.items():
        _limit(problem, written, resource, capacity, at)
    for covered in problem.covered:
        _cover(problem, written, covered, at)
    for index, value in problem.time_hints.items():
        model.add_hint(times[index], value // unit)
    for index, holds in problem.literal_hints.items():
        model.add_hint(literals[index], holds)
    if problem.most is not None:
        model.add(cost <= problem.most // unit)
    model.minimize(cost)
    return written


def _limit(
    problem: ScheduleProblem, written: Written, resource: Any, capacity: int, at: Callable[[Time | int], Any]
) -> None:
    """Limit what is taken of a resource at once.

    That its work takes at least so long follows, and has to be said: the solver hardly proves anything
    without.
    """
    model, unit = written.model, written.unit_ns
    intervals: list[Any] = []
    amounts: list[int] = []
    work: list[Any] = []
    for begin, long_ns, given, amount, gap_ns in problem.taken.get(resource, ()):
        ns, gap = long_ns // unit, gap_ns // unit
        name = f"{resource} {len(intervals)}"
        if given is None:
            interval = model.new_fixed_size_interval_var(at(begin), ns + gap, name)
            work.append(ns * amount)
        else:
            chosen = written.literals[given.index]
            interval = model.new_optional_fixed_size_interval_var(at(begin), ns + gap, chosen, name)
            work.append(ns * amount * chosen)
        intervals.append(interval)
        amounts.append(amount)
    if changes := problem.changes.get(resource):
        sizes, least = [each.amount for each in changes], -sum(abs(each.amount) for each in changes)
        model.add_reservoir_constraint([at(each.at) for each in changes], sizes, least, capacity)
    at_most(model, intervals, amounts, capacity)
    model.add(capacity * written.times[LONGEST.index] >= sum(work))
    taken = problem.taken.get(resource, ())
    alike = {*amounts} == {1} and len(taken) == len(amounts)
    if 1 < capacity <= _LANES and capacity < len(taken) <= _ON_LANES and alike:
        _on_lanes(written, taken, capacity, at)


_LANES: Final = 4
_ON_LANES: Final = 64
"""With more lanes, or more to be done on them, what is gained is less than the lanes cost."""


def _on_lanes(written: Written, taken: Sequence[Taken], lanes: int, at: Callable[[Time | int], Any]) -> None:
    """Let each have one of some equal lanes for itself; the first go to the first lanes.

    It follows from the limit, but a sum of what is on one lane proves what no sum over all can: that an odd
    rest has to be somewhere.
    """
    model, unit = written.model, written.unit_ns
    on: list[list[Any]] = [[] for _ in range(lanes)]
    work: list[list[Any]] = [[] for _ in range(lanes)]
    for n, (begin, ns, given, _, gap_ns) in enumerate(taken):
        own = [model.new_bool_var(f"{n} on {lane}") for lane in range(min(lanes, n + 1))]
        model.add(sum(own) == (1 if given is None else written.literals[given.index]))
        for lane, here in enumerate(own):
            size = ns // unit + gap_ns // unit
            on[lane].append(model.new_optional_fixed_size_interval_var(at(begin), size, here, ""))
            work[lane].append(ns // unit * here)
    for intervals, sums in zip(on, work, strict=True):
        model.add_no_overlap(intervals)
        model.add(written.times[LONGEST.index] >= sum(sums))


MOST_COVERED: Final = 24
"""With more spans what they cover is only known to be no less than their share of the lanes."""


def _cover(
    problem: ScheduleProblem, written: Written, covered: Covered, at: Callable[[Time | int], Any]
) -> None:
    """Let a time be no less than what spans cover: each is in one of some blocks, of which none overlap.

    A block is called after the first span that is in it, in the order in which they are given.
    """
    model, unit, horizon = written.model, written.unit_ns, problem.horizon_ns // written.unit_ns
    holds = [1 if each.given is None else written.literals[each.given.index] for each in covered.spans]
    time = at(covered.time)
    work = sum(each.ns // unit * held for each, held in zip(covered.spans, holds, strict=True))
    model.add(covered.lanes * time >= work)
    if len(covered.spans) > MOST_COVERED:
        return
    blocks: list[tuple[Any, ...]] = []
    for n, (each, held) in enumerate(zip(covered.spans, holds, strict=True)):
        begin, ns, end = (model.new_int_var(0, horizon, f"{what} {n}") for what in ("from", "for", "to"))
        opens = model.new_bool_var(f"opens {n}")
        interval = model.new_optional_interval_var(begin, ns, end, opens, f"block {n}")
        model.add(ns == 0).only_enforce_if(~opens)
        blocks.append((begin, ns, end, opens, interval))
        own = [opens, *(model.new_bool_var(f"{n} in {k}") for k in range(n))]
        model.add(sum(own) == held)
        for (first, _, last, there, _), here in zip((blocks[n], *blocks[:n]), own, strict=True):
            model.add_implication(here, there)
            model.add(first <= at(each.begin)).only_enforce_if(here)
            model.add(last >= at(each.end)).only_enforce_if(here)
    model.add_no_overlap([block[-1] for block in blocks])
    model.add(time >= sum(block[1] for block in blocks))


def at_most(model: Any, intervals: Sequence[Any], amounts: Sequence[int], capacity: int) -> None:
    """Limit what intervals take at once."""
    if capacity == 1 and max(amounts, default=0) == 1:
        model.add_no_overlap(intervals)
    elif sum(amounts) > capacity:
        model.add_cumulative(intervals, amounts, capacity)


# ----------------------------------------------------------------------------------------------------------
# A search by CP-SAT that Ctrl-C ends at once.
#
# The solver keeps the interpreter from seeing the signal, or answers it itself and goes on as if its time
# were up. So it searches in a thread of its own, and the main thread waits for it or for Ctrl-C.


def solve(solver: Any, written: Written) -> Any:
    """Return the status of a search; the objective of the model is a time.

    Parameters
    ----------
    solver : CpSolver
    written : Written

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C; it tells what was found so far.
    """
    if threading.current_thread() is not threading.main_thread():  # which alone is told of signals
        return solver.solve(written.model)
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as pool:
        search = pool.submit(solver.solve, written.model)
        try:
            return search.result()
        except KeyboardInterrupt:
            solver.stop_search()
            raise KeyboardInterrupt(_told(solver, search.result(), written.unit_ns)) from None


def _bound(solver: Any) -> int:
    """Return what nothing can be below: whole units."""
    return int(max(0, ceil(solver.best_objective_bound - 1e-6)))


def _told(solver: Any, status: Any, unit_ns: int) -> str:
    """Say what an interrupted search knows."""
    from ortools.sat.python import cp_model

    bound = format_duration(_bound(solver) * unit_ns)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return f"the search has found nothing yet, and nothing can take less than {bound}"
    best = format_duration(round(solver.objective_value) * unit_ns)
    return f"the best that the search has found takes {best}, and nothing can take less than {bound}"


# ----------------------------------------------------------------------------------------------------------


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
        The end of all, which is minimised if nothing else is charged.

    Raises
    ------
    MissingExtraError
        OR-tools is not installed.
    """

    def __init__(self, purpose: str, horizon_ns: int) -> None:
        with extra("opt", purpose):
            from ortools.sat.python import cp_model
        self._cp = cp_model
        self.problem = ScheduleProblem(horizon_ns)
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

    def asked(self, literal: Literal, *given: Literal | None) -> None:
        """Let a literal hold if all that is `given` does."""
        unless = [(each, False) for each in given if each is not None]
        self.problem.any_of.append([*unless, (literal, True)])

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

    def delayed(self, later: Time, earlier: Time | int, delay_ns: int, *given: Literal | None) -> None:
        """Let `later` be so long after `earlier`, if all that is `given` holds; so long may be never."""
        if delay_ns >= NEVER:
            self.problem.any_of.append([(literal, False) for literal in given if literal is not None])
        else:
            self.after(later, earlier + delay_ns, *given)

    def together(self, one: Mapping[int, Any], other: Mapping[int, Any]) -> None:
        """Let the same of each of two choices hold."""
        for name, literal in one.items():
            if literal is not None:
                self.asked(other[name], literal)
                self.asked(literal, other[name])

    def last(self, begin: Time | int, ns: int, end: Time, given: Literal | None = None) -> None:
        """Let `end` be so long after `begin`, if what is `given` holds."""
        self.problem.last.append(Last(begin, ns, end, given))

    def charge(self, what: Time | Literal, n: int) -> None:
        """Minimise a time, or (in ns) that a literal holds, with a weight, among what else is charged."""
        self.problem.charged[what] = self.problem.charged.get(what, 0) + n

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

    def change(self, resource: Hashable, at: Time, amount: int) -> None:
        """Take so much more of a resource from a time on, or less."""
        self.problem.changes.setdefault(resource, []).append(LevelChange(at, amount))

    def limit(self, resource: Hashable, capacity: int) -> None:
        """Let no more of a resource be taken at once than there is."""
        self.problem.capacity[resource] = capacity

    def cover(self, time: Time, lanes: int, spans: Sequence[CoveringSpan]) -> None:
        """Let a time be no less than what spans cover, of which at most so many are at once."""
        self.problem.covered.append(Covered(time, lanes, spans))

    def solve(self, limit_ns: int, workers: int = 1, seed: int = 0) -> Solved:
        """Return the times with the least `longest` that are found within a time limit on the wall.

        One of the solver's strategies searches after another, briefly with a linear relaxation, which gives a
        bound, and then without one, which is faster; where it is open who does something, a relaxation finds
        more, and they take longer and longer turns. Or several `workers` take turns. It is the same for the
        same problem, however many take turns, unless its time is up before it is sure.
        """
        until = monotonic() + limit_ns / NS_PER_S
        written = translate(self.problem, unit_of(self.problem))
        values, bound, finished = None, 0, False
        for level, effort in self._turns() if workers == 1 else ((1, inf),):
            solver: Any = self._cp.CpSolver()
            solver.parameters.num_workers = workers
            solver.parameters.interleave_search = workers > 1  # deterministic, with however many workers
            solver.parameters.linearization_level = level
            solver.parameters.random_seed = seed
            solver.parameters.max_deterministic_time = effort
            solver.parameters.max_time_in_seconds = max(0.0, until - monotonic())
            status = solve(solver, written)
            bound = max(bound, _bound(solver) * written.unit_ns)
            if status in (self._cp.OPTIMAL, self._cp.FEASIBLE):
                values = partial(written.value, solver)
            finished = status in (self._cp.OPTIMAL, self._cp.INFEASIBLE)
            if finished or monotonic() >= until:
                break
            written.begin_with(solver, status)
        return Solved(values, bound, finished)

    def _turns(self) -> Iterator[tuple[int, float]]:
        """Yield whether a search has a linear relaxation (1) or none (0), and its deterministic time."""
        yield 1, _RELAXED
        effort, taken = _RELAXED, itertools.chain(*self.problem.taken.values())
        is_open = any(each.given is not None for each in taken)
        while is_open:
            yield 0, effort
            effort *= 2
            yield 1, effort
        yield 0, inf


_RELAXED: Final = 0.1
"""So much of the solver's deterministic time goes to a first search with a relaxation: about a second."""
