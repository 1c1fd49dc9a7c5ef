"""Searches for the best solution of a `policies.schedule_problem` with CP-SAT of OR-tools."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from math import ceil, gcd, inf
from time import monotonic
from typing import Any, Final, NamedTuple

from policies.schedule_problem import LONGEST, After, Covered, Last, Literal, ScheduleProblem, Taken, Time
from sim.base.errors import extra
from sim.base.units import NS_PER_S, format_duration

# ----------------------------------------------------------------------------------------------------------
# From the words of a schedule to a model of CP-SAT: all that was said, and the hints to begin with.


@dataclass
class Written:
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

    def at(self, time: Time | int) -> Any:
        """Return what stands for a time."""
        if isinstance(time, int):
            return -(-time // self.unit_ns)
        return self.times[time.index] + time.offset // self.unit_ns

    def holds(self, literal: Literal | None) -> Any:
        """Return what stands for a literal."""
        return True if literal is None else self.literals[literal.index]

    def interval(self, usage: Taken, *, inner: bool = False) -> Any:
        """Return for how long something is taken, the gap included, if it is at all.

        Its `inner` part, in half units, leaves out begin and end; what takes no time takes half a unit.
        """
        begin, size = self.at(usage.begin), (usage.ns + usage.gap_ns) // self.unit_ns
        if inner:
            begin, size = 2 * begin + (size > 0), max(1, 2 * size - 1)
        if (present := self.holds(usage.given)) is True:
            return self.model.new_fixed_size_interval_var(begin, size, "")
        return self.model.new_optional_fixed_size_interval_var(begin, size, present, "")

    def order(self, order: After) -> None:
        """State that a time is not before another one."""
        conditions = [self.holds(literal) for literal in order.given]
        if any(condition is False for condition in conditions):
            return
        open_ = [condition for condition in conditions if condition is not True]
        later, earlier = self.at(order.later), self.at(order.earlier)
        if not isinstance(later, int) or not isinstance(earlier, int):
            constraint = self.model.add(later >= earlier)
            if open_:
                constraint.only_enforce_if(open_)
        elif later < earlier:
            self.model.add_bool_or([~condition for condition in open_])

    def duration(self, last: Last) -> None:
        """State that a time is so long after another one."""
        if (condition := self.holds(last.given)) is not False:
            constraint = self.model.add(self.at(last.end) == self.at(last.begin) + last.ns // self.unit_ns)
            if condition is not True:
                constraint.only_enforce_if(condition)

    def clause(self, clause: Sequence[tuple[Literal, bool]]) -> None:
        """State that one at least of some literals has the value that it should have."""
        pairs = [(self.holds(literal), value) for literal, value in clause]
        if not any(holds is value for holds, value in pairs):
            open_ = [holds if value else ~holds for holds, value in pairs if not isinstance(holds, bool)]
            self.model.add_bool_or(open_)

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

        self.model.add(self.cost >= _whole_bound(solver))
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
    >>> problem = ScheduleProblem("an example", 100)
    >>> problem.last(Time(1), 30, Time(2))
    >>> problem.last(Time(3, 12), 18, Time(4))
    >>> unit_of(problem)
    6
    """
    times: set[int] = set()
    for later, earlier, conditions in problem.orders:
        if conditions or later != LONGEST or isinstance(earlier, Time):
            times |= {_offset(later), _offset(earlier)}
    for begin, ns, end, _ in problem.durations:
        times |= {_offset(begin), ns, _offset(end)}
    for usages in problem.taken.values():
        for begin, ns, _, _, gap_ns in usages:
            times |= {_offset(begin), ns, gap_ns}
    for changes in problem.changes.values():
        times |= {_offset(time) for time, _ in changes}
    return gcd(*times) or 1


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
        times[item.index] * n if isinstance(item, Time) else literals[item.index] * (n // unit)
        for item, n in (problem.charged or {LONGEST: 1}).items()
    )
    written = Written(model, times, literals, cost, unit)

    for order in problem.orders:
        written.order(order)
    for last in problem.durations:
        written.duration(last)
    for choices in problem.one_of:
        model.add_exactly_one(map(written.holds, choices))
    for clause in problem.any_of:
        written.clause(clause)
    for resource, capacity in problem.capacity.items():
        _limit(problem, written, resource, capacity)
    for covered in problem.covered:
        _cover(written, covered, problem.horizon_ns // unit)
    for index, value in problem.time_hints.items():
        model.add_hint(times[index], value // unit)
    for index, holds in problem.literal_hints.items():
        model.add_hint(literals[index], holds)
    if problem.most is not None:
        model.add(cost <= problem.most // unit)
    model.minimize(cost)
    return written


def _limit(problem: ScheduleProblem, written: Written, resource: Any, capacity: int) -> None:
    """Limit what is taken of a resource at once.

    That its work takes at least so long follows, and has to be said: the solver hardly proves anything
    without.
    """
    model, unit, usages = written.model, written.unit_ns, problem.taken.get(resource, ())
    intervals, amounts = [*map(written.interval, usages)], [usage.amount for usage in usages]
    if changes := problem.changes.get(resource):
        sizes, lowest = [change.amount for change in changes], -sum(abs(change.amount) for change in changes)
        model.add_reservoir_constraint([written.at(change.at) for change in changes], sizes, lowest, capacity)
    at_most(model, intervals, amounts, capacity)
    work = sum(usage.ns // unit * usage.amount * written.holds(usage.given) for usage in usages)
    model.add(capacity * written.times[LONGEST.index] >= work)
    if 1 < capacity <= _MOST_LANES and capacity < len(usages) <= _MOST_ON_LANES and {*amounts} == {1}:
        _on_lanes(written, usages, capacity)
    elif capacity > 1 and 0 < len(moments := moments_of(usages)) * len(usages) <= MOST_PASSED:
        inner = [written.interval(usage, inner=True) for usage in usages]
        for k in moments:  # which the limit ignores
            members = [j for j, usage in enumerate(usages) if j == k or usage.ns + usage.gap_ns]
            at_most(model, [inner[j] for j in members], [amounts[j] for j in members], capacity)


MOST_PASSED: Final = 20_000
"""With more pairs of a task and one that takes no time, the latter is not kept waiting by others."""


def moments_of(usages: Sequence[Taken]) -> list[int]:
    """Return the numbers of those that take no time."""
    return [k for k, usage in enumerate(usages) if usage.ns + usage.gap_ns == 0]


_MOST_LANES: Final = 4
_MOST_ON_LANES: Final = 64
"""With more lanes, or more to be done on them, what is gained is less than the lanes cost."""


def _on_lanes(written: Written, usages: Sequence[Taken], lanes: int) -> None:
    """Let each have one of some equal lanes for itself; the first go to the first lanes.

    It follows from the limit, but a sum of what is on one lane proves what no sum over all can: that an odd
    rest has to be somewhere.
    """
    model, unit = written.model, written.unit_ns
    on_lane: list[list[Any]] = [[] for _ in range(lanes)]
    work: list[list[Any]] = [[] for _ in range(lanes)]
    for n, usage in enumerate(usages):
        choices = [model.new_bool_var(f"{n} on {lane}") for lane in range(min(lanes, n + 1))]
        model.add(sum(choices) == written.holds(usage.given))
        begin, size = written.at(usage.begin), (usage.ns + usage.gap_ns) // unit
        for lane, literal in enumerate(choices):
            on_lane[lane].append(model.new_optional_fixed_size_interval_var(begin, size, literal, ""))
            work[lane].append(usage.ns // unit * literal)
    for intervals, sums in zip(on_lane, work, strict=True):
        model.add_no_overlap(intervals)
        model.add(written.times[LONGEST.index] >= sum(sums))


MOST_COVERED: Final = 24
"""With more spans what they cover is only known to be no less than their share of the lanes."""


def _cover(written: Written, covered: Covered, horizon: int) -> None:
    """Let a time be no less than what spans cover: each is in one of some blocks, of which none overlap.

    A block is called after the first span that is in it, in the order in which they are given.
    """
    model, unit, expr, time = written.model, written.unit_ns, written.at, written.at(covered.time)
    holds = [written.holds(span.given) for span in covered.spans]
    work = sum(span.ns // unit * present for span, present in zip(covered.spans, holds, strict=True))
    model.add(covered.lanes * time >= work)
    if len(covered.spans) > MOST_COVERED:
        return
    blocks: list[tuple[Any, ...]] = []
    for n, (span, present) in enumerate(zip(covered.spans, holds, strict=True)):
        begin, ns, end = (model.new_int_var(0, horizon, f"{word} {n}") for word in ("from", "for", "to"))
        opens = model.new_bool_var(f"opens {n}")
        interval = model.new_optional_interval_var(begin, ns, end, opens, f"block {n}")
        model.add(ns == 0).only_enforce_if(~opens)
        blocks.append((begin, ns, end, opens, interval))
        choices = [opens, *(model.new_bool_var(f"{n} in {k}") for k in range(n))]
        model.add(sum(choices) == present)
        for (first, _, last, opened, _), in_block in zip((blocks[n], *blocks[:n]), choices, strict=True):
            model.add_implication(in_block, opened)
            model.add(first <= expr(span.begin)).only_enforce_if(in_block)
            model.add(last >= expr(span.end)).only_enforce_if(in_block)
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


def solver_of(level: int, effort: float, left_s: float, seed: int, workers: int = 1) -> Any:
    """Return a solver with a level of linearization, and limits of deterministic time and of seconds."""
    from ortools.sat.python import cp_model

    solver: Any = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.interleave_search = workers > 1  # deterministic, with however many workers
    solver.parameters.linearization_level = level
    solver.parameters.random_seed = seed
    solver.parameters.max_deterministic_time = effort
    solver.parameters.max_time_in_seconds = max(0.0, left_s)
    return solver


def solve(solver: Any, written: Written) -> Any:
    """Return the status of a search; the objective of the model is a time.

    Parameters
    ----------
    solver : CpSolver
    written : Written

    Raises
    ------
    KeyboardInterrupt
        Ctrl-C; the message says what was found so far.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread receives signals
        return solver.solve(written.model)
    solver.parameters.catch_sigint_signal = False
    with ThreadPoolExecutor(1) as pool:
        search = pool.submit(solver.solve, written.model)
        try:
            return search.result()
        except KeyboardInterrupt:
            solver.stop_search()
            raise KeyboardInterrupt(_describe(solver, search.result(), written.unit_ns)) from None


def _whole_bound(solver: Any) -> int:
    """Return what nothing can be below: whole units."""
    return int(max(0, ceil(solver.best_objective_bound - 1e-6)))


def _describe(solver: Any, status: Any, unit_ns: int) -> str:
    """Say what an interrupted search knows."""
    from ortools.sat.python import cp_model

    bound = format_duration(_whole_bound(solver) * unit_ns)
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


def least(problem: ScheduleProblem, limit_ns: int, workers: int = 1, seed: int = 0) -> Solved:
    """Return the least solution that is found within a time limit on the wall.

    One of the solver's strategies searches after another, briefly with a linear relaxation, which gives a
    bound, and then without one, which is faster; where it is open who does something, a relaxation finds
    more, and they take longer and longer turns. Or several `workers` take turns. It is the same for the
    same problem, however many take turns, unless its time is up before it is sure.

    Raises
    ------
    MissingExtraError
        OR-tools is not installed.
    """
    with extra("opt", problem.purpose):  # it takes a second to import, which is none of the search's
        from ortools.sat.python import cp_model

    deadline = monotonic() + limit_ns / NS_PER_S
    written = translate(problem, unit_of(problem))
    values, bound, finished = None, 0, False
    for level, effort in _turns(problem) if workers == 1 else ((1, inf),):
        solver = solver_of(level, effort, deadline - monotonic(), seed, workers)
        status = solve(solver, written)
        bound = max(bound, _whole_bound(solver) * written.unit_ns)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            values = partial(written.value, solver)
        finished = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
        if finished or monotonic() >= deadline:
            break
        written.begin_with(solver, status)
    return Solved(values, bound, finished)


_RELAXED_EFFORT: Final = 0.1
"""So much of the solver's deterministic time goes to a first search with a relaxation: about a second."""


def _turns(problem: ScheduleProblem) -> Iterator[tuple[int, float]]:
    """Yield whether a search has a linear relaxation (1) or none (0), and its deterministic time."""
    yield 1, _RELAXED_EFFORT
    effort, usages = _RELAXED_EFFORT, itertools.chain(*problem.taken.values())
    is_open = any(usage.given is not None for usage in usages)
    while is_open:
        yield 0, effort
        effort *= 2
        yield 1, effort
    yield 0, inf
