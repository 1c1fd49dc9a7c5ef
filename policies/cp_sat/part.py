"""A part of a schedule as a model of CP-SAT, the rest being as it is known.

::

    before            in the window     behind
    at known times    unknown           so long before the end of all as is known, and the end is unknown

Of what is before and behind, only what may touch the window is written down. A solution is looked for that
ends earlier than the known one. That it can be run has to be tried: of what is before and behind, not every
pair is compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np

from policies.cp_sat.known import Known
from policies.cp_sat.translate import Written, at_most
from policies.cp_sat.words import LONGEST, Literal, Problem, Time

__all__ = ["Part", "Touching"]


class Touching:
    """Which constraints speak of each time and of each literal, by their numbers in ``problem.after``."""

    def __init__(self, problem: Problem) -> None:
        self.times: list[list[int]] = [[] for _ in problem.times]
        self.literals: list[list[int]] = [[] for _ in problem.literals]
        self.choices: list[list[int]] = [[] for _ in problem.literals]
        self.clauses: list[list[int]] = [[] for _ in problem.literals]
        for k, (later, earlier, given) in enumerate(problem.after):
            for time in (later, earlier):
                if isinstance(time, Time):
                    self.times[time.index].append(k)
            for literal in given:
                self.literals[literal.index].append(k)
        for k, choices in enumerate(problem.one_of):
            for literal in choices:
                self.choices[literal.index].append(k)
        for k, clause in enumerate(problem.any_of):
            for literal, _ in clause:
                self.clauses[literal.index].append(k)


class Part:
    """What is free of a solution that is known.

    Parameters
    ----------
    known : Known
    touching : Touching
    window, behind : sequence of int
        The times that are free, and those that keep their distance from the end.
    """

    def __init__(
        self, known: Known, touching: Touching, window: Sequence[int], behind: Sequence[int]
    ) -> None:
        from ortools.sat.python import cp_model

        self.known, self.problem, self.touching = known, known.problem, touching
        n = len(self.problem.times)
        self.free, self.behind = np.zeros(n, bool), np.zeros(n, bool)
        self.free[list(window)] = True
        self.behind[list(behind)] = True
        self.behind[LONGEST.index] = self.free[LONGEST.index] = False
        at = np.flatnonzero(self.free)
        early, late = np.array(known.early)[at], np.array(known.late)[at]
        self.begin = int(early.min())
        self.saved = int(early.max()) - self.begin  # at most: what is behind does not move by more
        least = max(known.end_ns - self.saved, known.least_ns(~self.free & ~self.behind, self.behind))
        self.model = cp_model.CpModel()
        self.possible = least < known.end_ns
        self.longest = self.model.new_int_var(
            min(least, known.end_ns - 1), known.end_ns - 1, "the end of all"
        )
        self.unknown: dict[int, Any] = {LONGEST.index: self.longest}
        for k in at.tolist():
            self.unknown[k] = self.model.new_int_var(self.begin, int(late.max()), self.problem.times[k])
            self.model.add_hint(self.unknown[k], known.early[k])
        self.chosen: dict[int, Any] = {}

    def at(self, time: Time | int) -> Any:
        """Return what stands for a time."""
        if isinstance(time, int):
            return time
        k, offset = time.index, time.offset
        if k in self.unknown:
            return self.unknown[k] + offset if offset else self.unknown[k]
        if self.behind[k]:
            return self.longest - (self.known.end_ns - self.known.late[k] - offset)
        return self.known.early[k] + offset

    def holds(self, literal: Literal | None) -> Any:
        """Return what stands for a literal."""
        if literal is None:
            return True
        return self.chosen.get(literal.index, self.known.holds[literal.index])

    def written(self) -> Written:
        """Return the model."""
        self._choose()
        about = {k for time in self.unknown if time for k in self.touching.times[time]}
        about |= {k for literal in self.chosen for k in self.touching.literals[literal]}
        for k in sorted(about):
            self._after(k)
        for begin, ns, end, literal in self.problem.last:
            given = self.holds(literal)
            if given is not False and self._is_free(begin) and self._is_free(end):
                constraint = self.model.add(self.at(end) == self.at(begin) + ns)
                if given is not True:
                    constraint.only_enforce_if(given)
        for resource, capacity in self.problem.capacity.items():
            self._limit(resource, capacity)
        self.model.minimize(self.longest)
        times = [self.at(Time(k)) for k in range(len(self.problem.times))]
        return Written(self.model, times, [self.holds(Literal(k)) for k in range(len(self.problem.literals))])

    def _is_free(self, time: Time | int) -> bool:
        return isinstance(time, Time) and bool(self.free[time.index])

    def _is_behind(self, time: Time | int) -> bool:
        return isinstance(time, Time) and bool(self.behind[time.index])

    def _choose(self) -> None:
        """Free the literals that are about the window, and about nothing behind it."""
        problem, about = self.problem, dict.fromkeys(self._about())
        for k in about:
            told = [problem.after[c] for c in self.touching.literals[k]]
            if not any(self._is_behind(a) or self._is_behind(b) for a, b, _ in told):
                self.chosen[k] = self.model.new_bool_var(problem.literals[k])
        for k in dict.fromkeys(c for literal in self.chosen for c in self.touching.choices[literal]):
            self.model.add_exactly_one([self.holds(literal) for literal in problem.one_of[k]])
        for k in dict.fromkeys(c for literal in self.chosen for c in self.touching.clauses[literal]):
            clause = [(self.holds(literal), as_told) for literal, as_told in problem.any_of[k]]
            if not any(holds is as_told for holds, as_told in clause):
                told_of = [
                    (holds if as_told else ~holds) for holds, as_told in clause if not isinstance(holds, bool)
                ]
                self.model.add_bool_or(told_of)

    def _about(self) -> Iterator[int]:
        """Yield the literals that constraints of the window depend on."""
        for time in self.unknown:
            for k in self.touching.times[time] if time else ():
                yield from (literal.index for literal in self.problem.after[k].given)
        for taken in self.problem.taken.values():
            for each in taken:
                if each.given is not None and self.free[each.begin.index]:
                    yield each.given.index

    def _after(self, k: int) -> None:
        later, earlier, given = self.problem.after[k]
        if_all = [self.holds(literal) for literal in given]
        if any(holds is False for holds in if_all) or (
            self._is_behind(earlier) and not self._is_behind(later)
        ):
            return  # what is behind stays there
        enforced = [holds for holds in if_all if holds is not True]
        a, b = self.at(later), self.at(earlier)
        if isinstance(a, int) and isinstance(b, int):
            if a < b:
                self.model.add_bool_or([~holds for holds in enforced])
            return
        if not enforced and not self._is_free(later) and not self._is_free(earlier):
            return
        constraint = self.model.add(a >= b)
        if enforced:
            constraint.only_enforce_if(enforced)

    def _limit(self, resource: Hashable, capacity: int) -> None:
        """Limit what the window takes of a resource, beside what of the rest reaches into it."""
        taken = [each for each in self.problem.taken.get(resource, ()) if self.holds(each.given) is not False]
        known, free = self.known, [each for each in taken if self.free[each.begin.index]]
        if not free:
            return
        reach = max(known.late[begin.index] + begin.offset + ns + gap for begin, ns, _, _, gap in free)
        intervals, amounts = [], []
        for begin, ns, literal, amount, gap_ns in taken:
            k = begin.index
            if self.behind[k]:
                if known.late[k] + begin.offset - self.saved >= reach:
                    continue
            elif not self.free[k] and known.at(begin) + ns + gap_ns <= self.begin:
                continue
            given, size = self.holds(literal), ns + gap_ns
            new = self.model
            intervals.append(
                new.new_fixed_size_interval_var(self.at(begin), size, "")
                if given is True
                else new.new_optional_fixed_size_interval_var(self.at(begin), size, given, "")
            )
            amounts.append(amount)
        at_most(self.model, intervals, amounts, capacity)
