"""A solution that is known, seen from both ends: as early as it is, and as late as its end allows.

::

    lane 0   [a ][ b  ]····[ d ]          as it is
    lane 1   [  c   ]···········

    lane 0   [a ]····[ b  ][ d ]          as late as possible, in the same order on each lane
    lane 1   ···········[  c   ]

A part of it can then be taken out (`policies.cp_sat.windows`): what is before it ends early, and what is
after begins late, so that what saves time in between saves it in all.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from policies.cp_sat.words import LONGEST, Literal, Problem, Time
from sim.words.arrays import BoolArray

__all__ = ["Known"]


class Known:
    """The solution that the hints of a problem give: one of each time, and of literals as far as they go.

    Attributes
    ----------
    end_ns : int
        When all is over.
    early, late : list of int
        When each time is, and when it could be.
    holds : list of bool
        Of each literal. One that no hint tells holds if what it asks for does.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.end_ns = problem.time_hints[LONGEST.index]
        self.early = [problem.time_hints.get(k, 0) for k in range(len(problem.times))]
        self.holds = self._literals()
        later, earlier, lag = [], [], []
        for constraint in problem.after:
            if all(self.holds[literal.index] for literal in constraint.given):
                a, b = _parts(constraint.later), _parts(constraint.earlier)
                later.append(a[0])
                earlier.append(b[0])
                lag.append(b[1] - a[1])
        self.later, self.earlier, self.lag = (np.array(each, np.int64) for each in (later, earlier, lag))
        self.late = self._as_late_as_possible()

    def at(self, time: Time | int) -> int:
        """Return the value of a time."""
        return time if isinstance(time, int) else self.early[time.index] + time.offset

    def given(self, literal: Literal | None) -> bool:
        """Return whether a literal holds; None does."""
        return literal is None or self.holds[literal.index]

    def least_ns(self, before: BoolArray, behind: BoolArray) -> int:
        """Return how long all takes at least, if `before` stays as it is and `behind` as far from the end."""
        known = (self.earlier >= 0) & (self.later >= 0)
        a, b, lag = self.later[known], self.earlier[known], self.lag[known]
        from_before = before[b] & behind[a]
        late, early = np.array(self.late), np.array(self.early)
        ends = early[b] + lag + self.end_ns - late[a]
        return int(ends[from_before].max(initial=0))

    def _literals(self) -> list[bool]:
        problem = self.problem
        told = problem.literal_hints
        holds = [told.get(k, True) for k in range(len(problem.literals))]
        for later, earlier, given in problem.after:
            unknown = [literal.index for literal in given if literal.index not in told]
            asked = all(told.get(literal.index, True) for literal in given)
            if unknown and asked and self.at(later) < self.at(earlier):
                for k in unknown:
                    holds[k] = False
        for choices in problem.one_of:  # where more than one would do
            first = next((c.index for c in choices if holds[c.index]), choices[0].index)
            for choice in choices:
                holds[choice.index] = choice.index == first
        return holds

    def _as_late_as_possible(self) -> list[int]:
        """Return the latest times, what is in line on a resource staying in line."""
        edges = [
            (a, b, lag)
            for a, b, lag in zip(self.later.tolist(), self.earlier.tolist(), self.lag.tolist(), strict=True)
            if b >= 0
        ]
        edges += self._in_line()
        edges += [
            (end.index, begin.index, ns + begin.offset - end.offset)
            for begin, ns, end, literal in self.problem.last
            if isinstance(begin, Time) and isinstance(end, Time) and self.given(literal)
        ]
        edges.sort(key=lambda edge: -self.early[edge[1]])
        late = [self.end_ns] * len(self.early)
        changed = True
        while changed:
            changed = False
            for a, b, lag in edges:
                latest = (late[a] if a >= 0 else 0) - lag
                if latest < late[b]:
                    late[b] = latest
                    changed = True
        return late

    def _in_line(self) -> list[tuple[int, int, int]]:
        """Return who follows whom on each lane of each resource, and how long after."""
        lines: list[tuple[int, int, int]] = []
        for resource, capacity in self.problem.capacity.items():
            taken = [each for each in self.problem.taken.get(resource, ()) if self.given(each.given)]
            if resource in self.problem.held or sum(each.amount for each in taken) <= capacity:
                continue
            taken.sort(key=lambda each: (self.at(each.begin), each.ns))
            lanes: list[tuple[int, int, int, int]] = [(0, lane, -1, 0) for lane in range(capacity)]
            heapify(lanes)
            for begin, ns, _, amount, gap_ns in taken:
                last = ns + gap_ns + begin.offset
                for lane, before, so_long in [heappop(lanes)[1:] for _ in range(amount)]:
                    if before >= 0:
                        lines.append((begin.index, before, so_long - begin.offset))
                    heappush(lanes, (self.early[begin.index] + last, lane, begin.index, last))
        return lines


def _parts(time: Time | int) -> tuple[int, int]:
    """Return the index of a time and what is added to it; of a number, -1 and the number."""
    return (-1, time) if isinstance(time, int) else (time.index, time.offset)
