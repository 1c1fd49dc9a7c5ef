"""A search over orders of tasks on several equal workers: annealing, and then sums that are met exactly.

::

    order ─► what is ready and first of it starts, as soon as there is room ─► another order, ...
    lane 0   [a ][  b  ][c]····     some of lane 1 for some of lane 0, so that
    lane 1   [ d  ][  e   ][ f ]    both end where nothing can end before

A solver is weak where much is alike: of forty tasks on four cores almost any order is within a percent, and
the best one is a matter of sums. Only problems are searched in which no choice is open but the order.

Sources: lists of tasks: Graham 1966; two sets of sums that are searched for a pair: Horowitz and Sahni 1974.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from math import exp
from random import Random
from time import monotonic
from typing import Final

import numpy as np

from policies.cp_sat import unit_of
from policies.schedule_problem import LONGEST, ScheduleProblem, Time

_TRIES: Final = 100
"""So many orders are tried for each task."""

_ROUNDS: Final = 5
"""So many times orders are tried from the first one on, and then the lanes of the best of them."""

_EXCHANGED: Final = 12
"""Of so many tasks of a lane some go to another lane: all sets of them are compared."""

_RUN: Final = 3
"""So many tasks make a run long enough to exchange some."""

_NEAR: Final = 8
"""One of so many exchanges that are nearest to what is wanted is made, half of the time not the nearest."""

_LITTLE: Final = 50
"""By so many units lanes may be too long in between; what is as near to the least is tried for long."""


class Lists:
    """The tasks of a problem, what they take, and what follows them.

    Parameters
    ----------
    problem : ScheduleProblem

    Attributes
    ----------
    suits : bool
        Whether nothing but the order is open, and each task takes one of several lanes and nothing else.
    """

    def __init__(self, problem: ScheduleProblem) -> None:
        self.problem, n = problem, len(problem.times)
        self.ns = [0] * n
        self.follow: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        self.waits, self.release = [0] * n, [0] * n
        self.lanes = max(problem.capacity.values(), default=0)
        limited = [each for resource in problem.capacity for each in problem.taken.get(resource, ())]
        for begin, ns, _, _, gap_ns in limited:
            self.ns[begin.index] = ns + gap_ns
        for later, earlier, _ in problem.after:
            if not isinstance(later, Time):
                continue
            if not isinstance(earlier, Time):
                self.release[later.index] = max(self.release[later.index], earlier - later.offset)
            else:
                self.follow[earlier.index].append((later.index, earlier.offset - later.offset))
                self.waits[later.index] += 1
        self.least = self.release[LONGEST.index]
        self.first = [k for k, count in enumerate(self.waits) if k and not count]
        told = problem.literals or problem.last or problem.changes or problem.covered
        alike = all(begin.offset == 0 and amount == 1 for begin, _, _, amount, _ in limited)
        each_one = sorted(begin.index for begin, *_ in limited) == list(range(1, n))
        self.suits = len(problem.capacity) == 1 and self.lanes > 1 and alike and each_one and not told

    def starts(self, key: Sequence[float]) -> list[int]:
        """Return when each task starts if of what is ready the one with the least key is first."""
        room, waits, start = self.lanes, list(self.waits), list(self.release)
        later = [(start[k], k) for k in self.first]  # what becomes ready; 0: a lane is free again
        heapify(later)
        ready: list[tuple[float, int]] = []
        while later:
            now = later[0][0]
            while later and later[0][0] == now:
                _, k = heappop(later)
                if k:
                    heappush(ready, (key[k], k))
                else:
                    room += 1
            while ready and room:
                _, k = heappop(ready)
                start[k] = now
                room -= 1
                heappush(later, (now + self.ns[k], 0))
                for other, ns in self.follow[k]:
                    start[other] = max(start[other], now + ns)
                    waits[other] -= 1
                    if other and not waits[other]:
                        heappush(later, (start[other], other))
        return start

    def better(self, until: float, seed: int) -> Iterator[list[int]]:
        """Yield schedules, each better than the one before, from the one that the hints give."""
        rng, hints, n = Random(seed), self.problem.time_hints, len(self.ns)
        unit = unit_of(self.problem)
        least = -(-self.least // unit) * unit
        first: list[int] = [hints.get(k, 0) for k in range(n)]
        end = first[0]
        for _ in range(_ROUNDS):
            found = first
            for way in (self._annealed, self._balanced):
                if end <= least or monotonic() >= until:
                    return
                found = way(found, least, unit, until, rng)
                if found[0] < end:
                    end = found[0]
                    yield found

    def _annealed(self, first: list[int], least: int, unit: int, until: float, rng: Random) -> list[int]:
        """Return the best schedule of many orders, each a little different from one before."""
        n = len(first)
        key: list[float] = [0.0] * n
        for place, k in enumerate(sorted(range(n), key=first.__getitem__)):
            key[k] = place
        start = best = self.starts(key)
        tries, worse = _TRIES * n, 0.01 * best[0]
        for tried in range(tries):
            if best[0] <= least or monotonic() >= until:
                break
            a, b, before = rng.randrange(1, n), rng.randrange(1, n), list(key)
            if rng.random() < 0.5:
                key[a], key[b] = key[b], key[a]
            else:
                key[a] = rng.random() * n
            new = self.starts(key)
            lost = new[0] - start[0]
            if lost > 0 and rng.random() >= exp(-lost / (worse * (1 - tried / tries) ** 2 + unit)):
                key = before
                continue
            start = new
            if start[0] < best[0]:
                best = start
        return best

    def _balanced(self, start: list[int], least: int, unit: int, until: float, rng: Random) -> list[int]:
        """Return a schedule of which lanes end nearer to the least there can be."""
        tail = self._tails()
        lanes, over = self._lanes(start, tail, least)
        best, in_vain = start, 0
        while best[0] > least and len(lanes) > 1 and monotonic() < until:
            in_vain += 1
            if in_vain > _TRIES * len(tail) * (3 if best[0] - least <= _LITTLE * unit else 0.25):
                break
            a = rng.choice([lane for lane, much in enumerate(over) if much > 0] or [0])
            b = rng.choice([lane for lane in range(len(lanes)) if lane != a])
            moved = self._exchanged(lanes[a], lanes[b], start, over[a], rng)
            new = self.starts(moved)
            there, above = self._lanes(new, tail, least)
            if sum(max(0, x) for x in above) <= max(_LITTLE * unit, sum(max(0, x) for x in over)):
                start, lanes, over = new, there, above
                if start[0] < best[0]:
                    best, in_vain = start, 0
        return best

    def _tails(self) -> list[int]:
        """Return how long after the start of each task all is over at least."""
        tail = [0] * len(self.ns)
        order = sorted(range(1, len(tail)), key=self.starts([0.0] * len(tail)).__getitem__, reverse=True)
        for k in order:
            tail[k] = max((tail[other] + ns for other, ns in self.follow[k]), default=0)
        return tail

    def _lanes(
        self, start: Sequence[int], tail: Sequence[int], least: int
    ) -> tuple[list[list[int]], list[int]]:
        """Return the last run of each lane without a gap, if it is of some length, and its excess."""
        runs: list[list[list[int]]] = [[[]] for _ in range(self.lanes)]
        free = [(0, lane) for lane in range(len(runs))]
        for k in sorted(range(1, len(start)), key=lambda k: (start[k], k)):
            since, lane = max((each for each in free if each[0] <= start[k]), default=min(free))
            free[lane] = start[k] + self.ns[k], lane
            if start[k] > since:
                runs[lane].append([])
            runs[lane][-1].append(k)
        lanes = [max(own[::-1], key=lambda run: min(len(run), _RUN)) for own in runs]
        return lanes, [max((start[k] + tail[k] for k in lane), default=0) - least for lane in lanes]

    def _exchanged(
        self, a: list[int], b: list[int], start: Sequence[int], much: int, rng: Random
    ) -> list[float]:
        """Return keys with some tasks of two lanes exchanged, so that the first gets shorter by so much."""
        mine, other = (_some(lane, rng) for lane in (a, b))
        sums = [_subset_sums([self.ns[k] for k in each]) for each in (mine, other)]
        order = np.argsort(sums[0], kind="stable")
        at = np.searchsorted(sums[0][order], sums[1] + much)
        fits = np.flatnonzero(at < len(order))
        key: list[float] = list(start)
        if not len(fits):
            return key
        excess = sums[0][order][at[fits]] - sums[1][fits]
        few = min(len(fits), 1 if rng.random() < 0.5 else _NEAR)
        pick = fits[rng.choice(np.argpartition(excess, few - 1)[:few].tolist())]
        out, into = int(order[at[pick]]), int(pick)
        gone = (
            {k for i, k in enumerate(mine) if out >> i & 1},
            {k for i, k in enumerate(other) if into >> i & 1},
        )
        for lane, leave, enter in ((a, gone[0], gone[1]), (b, gone[1], gone[0])):
            now = min((start[k] for k in lane), default=0)
            for k in sorted((set(lane) - leave) | enter, key=lambda k: (start[k], k)):
                key[k] = now
                now += self.ns[k]
        return key


def _some(lane: Sequence[int], rng: Random) -> list[int]:
    """Return some tasks of a lane, often all."""
    most = min(len(lane), _EXCHANGED)
    return rng.sample(lane, most if rng.random() < 0.5 else rng.randint(most // 2, most))


def _subset_sums(values: Sequence[int]) -> np.ndarray:
    """Return the sum of each set of some values: bit i of its number tells whether value i is in it.

    Examples
    --------
    >>> _subset_sums([3, 5]).tolist()
    [0, 3, 5, 8]
    """
    sums = np.zeros(1, np.int64)
    for value in values:
        sums = np.concatenate([sums, sums + value])
    return sums
