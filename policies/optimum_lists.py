"""Orders of tasks on several equal workers: lower bounds, annealing, and sums that are met exactly.

::

    order ─► what is ready and first of it starts, as soon as there is room ─► another order, ...
    lane 0   [a ][  b  ][c]····     some of lane 1 for some of lane 0, so that
    lane 1   [ d  ][  e   ][ f ]    both end where nothing can end before

A solver is weak where much is alike: of forty tasks on four cores almost any order is within a percent, and
the best one is a matter of sums. Only problems are searched in which no choice is open but the order.

Sources: lists of tasks: Graham 1966; two sets of sums that are searched for a pair: Horowitz and Sahni 1974;
the first and last tasks of several machines: Carlier 1987, "Scheduling jobs with release dates and tails on
identical machines to minimize the makespan", EJOR 29(3).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, cached_property, partial
from heapq import heapreplace
from itertools import islice
from math import gcd, log2, prod
from random import Random
from time import monotonic
from typing import Final

import numpy as np

from policies.cp_sat import unit_of
from policies.schedule_problem import ScheduleProblem, Time
from sim.base.arrays import LATEST_NS, FloatArray, IntArray
from sim.base.compiled import load
from sim.graph.walks import Dag, Edges, least_first

_TRIES_PER_TASK: Final = 100
"""Number of exchanges tried per task."""

_ANNEALING_ORDERS: Final = 160_000
"""Number of orders tried by an annealing."""

_TASKS_PER_TEMPERATURE: Final = 20_000
"""Number of tasks that are scheduled at one temperature, over all its orders."""

_HOT_PARTS: Final = 2500
"""An annealing first accepts losses of one part in so many of the least end; in the end, of one unit."""

_UNCHANGED: Final = np.zeros((3, 1), np.int64)
"""Changes that try one list, as it is."""

_ROUNDS: Final = 20
"""Number of rounds: each balances lanes, from the first schedule on, and then anneals the order found."""

_MOST_EXCHANGED: Final = 16
"""Most tasks of a lane of which some go to another lane: all sets of them are compared."""

_RUN_TASKS: Final = 3
"""Number of tasks that make a run long enough to exchange some."""

_BEST_EXCHANGES: Final = 8
"""An exchange is the best of all, or, half of the time, any of so many best ones."""

_TOLERANCE_UNITS: Final = 50
_TOLERANCE_PARTS: Final = 1000
"""A little is so many units, but at most one part in so many of the least end: lanes may be longer by it in
between, and a schedule that is so near to the least is tried for long."""

_P_CHANGE: Final = 0.25
"""Probability that a lane that ends at the least already may be changed."""

_MOST_SETS: Final = 16
"""A bound looks at sets of tasks with so many different first starts, and as many last ends."""

_MOST_JOIN_TASKS: Final = 500
"""Up to so many tasks, the bound of what precedes each one is computed; of more, only that of the end."""

_MOST_SUMS: Final = 1 << 20
"""Most sums of half of the tasks, and most pairs of sizes of two halves, that are looked at."""

_FEW_SUMS: Final = 1 << 12
"""Up to so many sums, the lane of each task is looked at, and not only that of the longest one."""

_MOST_WAYS: Final = 300
"""Most ways to fill a lane that are followed."""

_MOST_CALLS: Final = 1000
"""Most ways that are followed in all, in one bound."""

_Follow = list[list[tuple[int, int]]]


class Lists:
    """The tasks of a problem, their durations, and what follows them.

    Parameters
    ----------
    problem : ScheduleProblem

    Attributes
    ----------
    suits : bool
        Whether only the order is open: each task takes one of several lanes and nothing else.
    """

    def __init__(self, problem: ScheduleProblem) -> None:
        self.problem, n = problem, len(problem.times)
        self.ns, self.release, waits = (np.zeros(n, np.int64) for _ in range(3))
        self.follow: _Follow = [[] for _ in range(n)]
        self.lanes = max(problem.capacity.values(), default=0)
        limited = [usage for resource in problem.capacity for usage in problem.taken.get(resource, ())]
        for begin, ns, _, _, gap_ns in limited:
            self.ns[begin.index] = ns + gap_ns
        for later, earlier, _ in problem.orders:
            if not isinstance(later, Time):
                continue
            if not isinstance(earlier, Time):
                self.release[later.index] = max(self.release[later.index], earlier - later.offset)
            else:
                self.follow[earlier.index].append((later.index, earlier.offset - later.offset))
                waits[later.index] += 1
        first = np.cumsum([0, *map(len, self.follow)])
        follow = np.array([edge for row in self.follow for edge in row], np.int64).reshape(-1, 2)
        self.columns = self.release, waits, self.ns, first, *follow.T.copy()
        constrained = problem.literals or problem.durations or problem.changes or problem.covered
        alike = all(begin.offset == 0 and amount == 1 for begin, _, _, amount, _ in limited)
        each_one = sorted(begin.index for begin, *_ in limited) == list(range(1, n))
        self.suits = len(problem.capacity) == 1 and self.lanes > 1 and alike and each_one and not constrained

    @cached_property
    def order(self) -> list[int]:
        """The tasks, each after all that it follows, and the end of all."""
        _, _, _, first, later, _ = self.columns
        earlier, now = np.repeat(np.arange(len(self.ns)), np.diff(first)), np.zeros_like(later)
        return least_first(Dag.of(Edges(earlier, later, now, now), len(self.ns)), range(len(self.ns)))

    def starts(
        self, key: FloatArray, bound: int = 0, changes: IntArray = _UNCHANGED
    ) -> tuple[IntArray, IntArray, FloatArray]:
        """Return start and lane of each task by list scheduling, and the last list; see `list_schedule`."""
        schedule: tuple[IntArray, IntArray, FloatArray] = load("edge_passes", "base").list_schedule(
            key, self.lanes, [*self.columns], bound, changes
        )
        return schedule

    @cached_property
    def left(self) -> list[int]:
        """Least time from the end of each task to the end of all, in ns."""
        ns = self.ns.tolist()
        back: _Follow = [[] for _ in ns]
        for k, row in enumerate(self.follow):
            for later, lag in row:
                back[later].append((k, lag + ns[later] - ns[k]))
        bound = [tail - duration for tail, duration in zip(_tails(self.order, self.follow), ns, strict=True)]
        return self._heads(self.order[::-1], back, bound)

    def least_ns(self) -> int:
        """Return a lower bound of the makespan, from what precedes and follows each task."""
        head = self._heads(self.order, self.follow, self.release.tolist())
        return max(head[0], _least_ns(np.array(head[1:]), self.ns[1:], np.array(self.left[1:]), self.lanes))

    def _heads(self, order: Sequence[int], follow: _Follow, head: list[int]) -> list[int]:
        """Return the earliest start of each task, `head` being a bound of it; backwards: the time left."""
        n, before, waits = len(order), [0] * len(order), Counter(later for row in follow for later, _ in row)
        for k in order:
            if not k or (n <= _MOST_JOIN_TASKS and waits[k] > 1):
                tail, earlier = _tails(order, follow, k), [p for p in order if before[k] >> p & 1]
                body = self.ns[earlier]
                after = np.array([tail[p] for p in earlier], np.int64) - body
                since = np.array([head[p] for p in earlier], np.int64)
                head[k] = max(head[k], _least_ns(since, body, after, self.lanes))
            for later, lag in follow[k]:
                head[later] = max(head[later], head[k] + lag)
                before[later] |= before[k] | 1 << k
        return head

    def better(self, bound: int, deadline: float, seed: int) -> Iterator[IntArray]:
        """Yield schedules, each better than the one before, from that of the hints on, to the least."""
        rng, hints, n = Random(seed), self.problem.time_hints, len(self.ns)
        unit = unit_of(self.problem)
        bound = -(-bound // unit) * unit
        first = np.array([hints.get(k, 0) for k in range(n)])
        end = first[0]
        for tried in range(_ROUNDS):
            noise = [rng.random() * tried / _ROUNDS for _ in range(n)]
            schedule = first + np.array(noise) * first[0]
            for way in (partial(self._balance, few=tried % 2 * unit), self._anneal):
                if end <= bound or monotonic() >= deadline:
                    return
                schedule = way(schedule, bound, unit, deadline, rng)
                if schedule[0] < end:
                    end = schedule[0]
                    yield schedule

    def _anneal(self, first: IntArray, bound: int, unit: int, deadline: float, rng: Random) -> IntArray:
        """Return the best schedule of many orders, each a little different from one before."""
        n, draw = len(first), np.random.default_rng(rng.getrandbits(32))
        size, hot = max(2, _TASKS_PER_TEMPERATURE // n), max(1, bound / _HOT_PARTS / unit)
        best, key = first, np.argsort(np.argsort(first, kind="stable")).astype(float)
        for part in np.arange(0, 1, size / _ANNEALING_ORDERS):
            if best[0] <= bound or monotonic() >= deadline:
                break
            worse = draw.exponential(unit * hot ** (1 - part), size)
            changes = np.hstack([_UNCHANGED, [*draw.integers(1, n, (2, size)), worse.astype(np.int64)]])
            schedule, _, key = self.starts(key, bound, changes)
            best = min(best, schedule, key=lambda starts: int(starts[0]))
        return best

    def _balance(
        self, first: IntArray, bound: int, unit: int, deadline: float, rng: Random, few: int
    ) -> IntArray:
        """Return a schedule whose lanes end nearer to the least end."""
        tail, (start, lane, _) = (self.left + self.ns).tolist(), self.starts(first.astype(float))
        lanes, excess = self._lanes(start, lane, tail, bound)
        best, in_vain, tolerance = start, 0, min(_TOLERANCE_UNITS * unit, bound // _TOLERANCE_PARTS)
        while best[0] > bound and len(lanes) > 1 and monotonic() < deadline:
            in_vain += 1
            if in_vain > _TRIES_PER_TASK * len(tail) * (3 if best[0] - bound <= tolerance else 0.25):
                break
            a = rng.choice([lane for lane, much in enumerate(excess) if much > 0] or [0])
            others = [lane for lane in range(len(lanes)) if lane != a]
            b = rng.choice([lane for lane in others if excess[lane] or rng.random() < _P_CHANGE] or others)
            new, lane, _ = self.starts(self._exchange(lanes[a], lanes[b], start, excess[a], unit, few, rng))
            runs, above = self._lanes(new, lane, tail, bound)
            if sum(max(0, x) for x in above) <= max(tolerance, sum(max(0, x) for x in excess)):
                start, lanes, excess = new, runs, above
                if start[0] < best[0]:
                    best, in_vain = start, 0
        return best

    def _lanes(
        self, start: IntArray, lane: IntArray, tail: Sequence[int], bound: int
    ) -> tuple[list[list[int]], list[int]]:
        """Return the last run without a gap of each lane, if it is of some length, and the lane's excess."""
        runs: list[list[list[int]]] = [[[]] for _ in range(self.lanes)]
        free, starts, lane_of, ns = [0] * len(runs), start.tolist(), lane.tolist(), self.ns.tolist()
        for k in (np.argsort(start[1:], kind="stable") + 1).tolist():
            if starts[k] > free[lane_of[k]]:
                runs[lane_of[k]].append([])
            runs[lane_of[k]][-1].append(k)
            free[lane_of[k]] = starts[k] + ns[k]
        lanes = [max(lane_runs[::-1], key=lambda run: min(len(run), _RUN_TASKS)) for lane_runs in runs]
        return lanes, [max((starts[k] + tail[k] for k in lane), default=0) - bound for lane in lanes]

    def _exchange(
        self, a: list[int], b: list[int], start: IntArray, much: int, unit: int, few: int, rng: Random
    ) -> FloatArray:
        """Return keys with some tasks of two lanes exchanged, so that the first gets shorter by so much."""
        enough = log2(4 * int(self.ns[a + b].sum()) / unit + 1)  # so many pairs of sets, and some are exact
        first, second = (_draw_tasks(lane, rng, min(_MOST_EXCHANGED, round(enough / 2))) for lane in (a, b))
        sums_a, sums_b = (_subset_sums(self.ns[tasks].tolist()) for tasks in (first, second))
        (sums, out_sets, fewer), (others, in_sets, more) = sums_a, sums_b
        index = np.searchsorted(sums, others + much)
        fits = int(np.searchsorted(index, len(sums)))
        key = start.astype(float)
        if not fits:
            return key
        excess = sums[index[:fits]] - others[:fits] + few * (fewer[index[:fits]] + more[:fits])
        best = min(fits, 1 if rng.random() < 0.5 else _BEST_EXCHANGES)
        pick = rng.choice(np.argpartition(excess, best - 1)[:best].tolist())
        gone = (
            {k for i, k in enumerate(first) if out_sets[index[pick]] >> i & 1},
            {k for i, k in enumerate(second) if in_sets[pick] >> i & 1},
        )
        for lane, leave, enter in ((a, gone[0], gone[1]), (b, gone[1], gone[0])):
            now = min((start[k] for k in lane), default=0)
            for k in sorted((set(lane) - leave) | enter, key=lambda k: (start[k], k)):
                key[k] = now
                now += self.ns[k]
        return key


def _tails(order: Sequence[int], follow: _Follow, target: int = 0) -> list[int]:
    """Return how long after each task's start another starts at least; -1: that does not wait."""
    tail = [-1] * len(order)
    tail[target] = 0
    for k in reversed(order):
        for later, lag in follow[k]:
            if tail[later] >= 0:
                tail[k] = max(tail[k], tail[later] + lag)
    return tail


def _draw_tasks(lane: Sequence[int], rng: Random, limit: int) -> list[int]:
    """Return some tasks of a lane, often as many as there may be."""
    limit = min(len(lane), limit)
    return rng.sample(lane, limit if rng.random() < 0.5 else rng.randint(limit // 2, limit))


def _subset_sums(values: Sequence[int]) -> tuple[IntArray, IntArray, IntArray]:
    """Return the sum of each set of some values, the least first, the sets (bit i: value i), and their sizes.

    Examples
    --------
    >>> _subset_sums([5, 3])
    (array([0, 3, 5, 8]), array([0, 2, 1, 3]), array([0, 1, 1, 2]))
    """
    sums, sizes = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for value in values:
        sums, sizes = np.concatenate([sums, sums + value]), np.concatenate([sizes, sizes + 1])
    order = np.argsort(sums, kind="stable")
    return sums[order], order, sizes[order]


def _least_ns(head: IntArray, body: IntArray, tail: IntArray, lanes: int) -> int:
    """Return a lower bound of the time of some tasks on equal lanes, from 0 to the end of the last tail.

    Of any set of them each lane has a first and a last one, and some lane has as many as any, or more.

    Examples
    --------
    >>> _least_ns(np.zeros(5, int), np.array([10, 11, 12, 13, 14]), np.zeros(5, int), 2)
    33
    """
    longest, order = int((head + body + tail).max(initial=0)), np.argsort(-tail, kind="stable")
    head, body, tail = head[order], body[order], tail[order]
    for subset in [*(head >= since for since in _pick(head)), *(tail >= end for end in _pick(tail))]:
        first, ns, last = head[subset], body[subset], np.cumsum(np.append(0, tail[subset]))
        if len(ns) > lanes:
            work = np.cumsum(ns)[lanes - 1 :] + last[lanes:] - last[:-lanes]
            shared = int((np.partition(first, lanes - 1)[:lanes].sum() + work).max())
            largest = np.cumsum(np.append(0, np.sort(ns)[::-1]))
            count = np.arange(lanes + 1, len(largest), lanes)
            one = int((largest[count] - largest[count - count // lanes - 1]).max())
            around, unit = int(first.min() + tail[subset].min()), gcd(*ns.tolist()) or 1
            longest = max(longest, -(-shared // lanes), around + one)
            tasks, bound = Counter((ns[ns > 0] // unit).tolist()), (longest - around) // unit
            longest = max(longest, around + unit * _least_lane(tasks, lanes, bound, iter(range(_MOST_CALLS))))
    return longest


class _Fillings:
    """All ways to fill a lane with some tasks: a long one among them, or (0) so many of them at least.

    Sums of one half of the tasks, and of the other; equal tasks count as one that may come several times.
    """

    def __init__(self, tasks: Counter[int], at_least: int, ns: int) -> None:
        self.own, self.at_least = Counter([ns] if ns else []), 0 if ns else at_least
        counts = (tasks - self.own).most_common()  # so that no half is much larger than the other
        self.parts = counts[::2], counts[1::2]
        self.halves = [_sums(part, by_size=not ns) for part in self.parts]

    def between(self, low: int, high: int) -> Iterator[Counter[int]]:
        """Yield the ways that take so long."""
        low, high = low - sum(self.own.elements()), high - sum(self.own.elements())
        (some, others), (left, right) = self.halves, self.parts
        for n, (sums, codes) in enumerate(some):
            for more, other_codes in others[max(0, self.at_least - n) :]:
                near = slice(*np.searchsorted(sums, (low - more[-1], high - more[0] + 1)))
                first = np.searchsorted(more, low - sums[near])
                last = np.searchsorted(more, high - sums[near], "right")
                for i in np.flatnonzero(first < last).tolist():
                    for code in other_codes[first[i] : last[i]].tolist():
                        yield self.own + _some_tasks(left, int(codes[near][i])) + _some_tasks(right, code)


def _sums(tasks: Sequence[tuple[int, int]], *, by_size: bool) -> list[tuple[IntArray, IntArray]]:
    """Return all sums of tasks, given as (ns, count), with a number for each that says which tasks it has.

    The digits of this number are the counts. With `by_size`, there is an entry for each number of tasks.

    Examples
    --------
    >>> [sums.tolist() for sums, _ in _sums([(5, 2), (3, 1)], by_size=True)]
    [[0], [3, 5], [8, 10], [13]]
    """
    sums, codes, size = (np.zeros(1, np.int64) for _ in range(3))
    for ns, n in tasks:
        counts = np.arange(n + 1)[:, None]
        columns = (sums + ns * counts, codes * (n + 1) + counts, size + counts * by_size)
        sums, codes, size = (column.ravel() for column in columns)
    order = np.split(np.lexsort((sums, size)), np.cumsum(np.bincount(size))[:-1])
    return [(sums[group], codes[group]) for group in order]


def _some_tasks(tasks: Sequence[tuple[int, int]], code: int) -> Counter[int]:
    """Return the tasks of a sum by its number in `_sums`."""
    some = Counter[int]()
    for ns, n in reversed(tasks):
        code, some[ns] = divmod(code, n + 1)
    return some


def _least_lane(
    tasks: Counter[int], lanes: int, bound: int, effort: Iterator[int], limit: int = LATEST_NS
) -> int:
    """Return the time of the longest lane, at least `bound`; a lower bound if that is too much effort.

    Examples
    --------
    >>> _least_lane(Counter([7, 7, 7, 7, 7, 5]), 3, 14, iter(range(10)))
    14
    >>> _least_lane(Counter([7, 7, 7, 6, 1, 1]), 2, 0, iter(range(10)))
    15
    """
    work, free, width = sum(tasks.elements()), [0] * lanes, 0
    for ns in sorted(tasks.elements(), reverse=True):
        heapreplace(free, free[0] + ns)
    bound, limit = max(bound, -(-work // lanes), max(tasks, default=0)), min(limit, max(free))
    half = prod(n + 1 for _, n in tasks.most_common()[::2])
    if bound >= limit or max(half, tasks.total() ** 2 // 4) > _MOST_SUMS or next(effort, None) is None:
        return bound
    # The lane of the longest task, the one that has most tasks, and, where there are few sums, that of each.
    others = sorted(tasks)[:-1] if half <= _FEW_SUMS else []
    ways_with = cache(partial(_Fillings, tasks, -(-tasks.total() // lanes)))
    while bound < limit:
        high = min(bound + width, limit - 1)
        low = work - (lanes - 1) * high
        ways = (ways_with(ns).between(low, high) for ns in (max(tasks), 0, *others))
        candidates = ([*islice(some, _MOST_WAYS + 1)] for some in ways)
        some = next((few for few in candidates if len(few) <= _MOST_WAYS), None)
        if some is None and not width:
            break
        best = high + 1
        for lane in some or ():
            if best > bound:
                ns = max(bound, sum(lane.elements()))
                best = min(best, _least_lane(tasks - lane, lanes - 1, ns, effort, best))
        if best <= high:
            return best
        bound, width = (bound, 0) if some is None else (high + 1, 2 * width + 1)
    return bound


def _pick(values: IntArray) -> IntArray:
    """Return at most `_MOST_SETS` of the different values, the least among them."""
    distinct = np.unique(values)
    return distinct[:: max(1, -(-len(distinct) // _MOST_SETS))]
