"""Methods to search settings: each asks for points, one batch after another, and is sent their costs.

::

    axes     batch = 1, 8, 32        streams = 1, 2, 4            a point: the index of a value on each axis
    grid     every point                                          for spaces within the budget
    random   points drawn without repetition
    local    random points; from the best of them to neighbours, of which slightly worse ones are accepted,
             less and less so; then from the next best
    halving  many points at a cheap level, the best third of them at the next, ... (Jamieson and Talwalkar
             2016, "Non-stochastic best arm identification and hyperparameter optimization", AISTATS)
    optuna   the tree-structured Parzen estimator of Optuna, an extra (Bergstra et al. 2011, NeurIPS 24)

A method never asks for the same point twice at one level, and depends on nothing but the seed and the costs.
"""

from __future__ import annotations

import itertools
import math
import random
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from sim.base.errors import extra

GridPoint = tuple[int, ...]
"""A point: the index of a value on each axis."""


class Ask(NamedTuple):
    """A request for the cost of a point, and the fidelity of its run: `level` 0 is the cheapest."""

    point: GridPoint
    level: int = 0


Search = Generator[list[Ask], Iterator[float | None], None]
"""Yields points; is sent an iterator of their costs in turn (less is better; None: the point is no answer).

Costs are computed as they are taken: a search that has seen enough stops, and nothing more is run. The costs
end with the budget.
"""

Method = Callable[[Sequence[int], int, int, int], Search]
"""``method(sizes of the axes, levels, budget, seed)``."""

_REDUCTION: Final = 3
"""One in this many points goes on to the next level of `halving`."""

_TOLERANCE: Final = 0.05
"""Relative amount by which a neighbour may be worse in `local` at first; it shrinks."""

_DRAWN_SHARE: Final = 0.4
_LEAST_DRAWN: Final = 8
"""Part of the budget, and least number of points, that `local` draws: neighbours of bad points are bad."""

AHEAD: Final = 8
"""Number of neighbours in one request, fixed so that the search does not depend on parallelism."""


def _grid(sizes: Sequence[int], levels: int, budget: int, seed: int) -> Search:
    yield from _all(range(min(math.prod(sizes), budget)), sizes, levels)


def _random(sizes: Sequence[int], levels: int, budget: int, seed: int) -> Search:
    yield from _all(_draw_points(sizes, budget, random.Random(seed)), sizes, levels)


def _all(numbers: Sequence[int], sizes: Sequence[int], levels: int) -> Search:
    for _ in (yield [Ask(_point_at(number, sizes), levels - 1) for number in numbers]):
        pass


def _halving(sizes: Sequence[int], levels: int, budget: int, seed: int) -> Search:
    rounds = [_REDUCTION**level for level in range(levels)]
    first = max(1, int(budget / sum(1 / factor for factor in rounds)))
    points = [_point_at(number, sizes) for number in _draw_points(sizes, first, random.Random(seed))]
    for level in range(levels):
        costs = yield [Ask(point, level) for point in points]
        ranked = [(cost, point) for point, cost in zip(points, costs, strict=False) if cost is not None]
        points = [point for _, point in sorted(ranked)[: max(1, len(points) // _REDUCTION)]]


def _local(sizes: Sequence[int], levels: int, budget: int, seed: int) -> Search:
    rng = random.Random(seed)
    size, patience = math.prod(sizes), 4 * sum(sizes)
    drawn = _draw_points(sizes, min(budget, max(_LEAST_DRAWN, int(_DRAWN_SHARE * budget))), rng)
    points = [_point_at(number, sizes) for number in drawn]
    costs = yield [Ask(point, levels - 1) for point in points]
    starts = sorted((cost, point) for point, cost in zip(points, costs, strict=False) if cost is not None)
    seen = set(points)
    while len(seen) < min(budget, size):
        now: float | None
        if starts:
            now, point = starts.pop(0)
        else:
            point = _unseen(sizes, seen, rng)
            seen.add(point)
            now = next((yield [Ask(point, levels - 1)]), None)
        failed = 0
        while len(seen) < budget and failed < patience:
            near_by = (_neighbour(point, sizes, rng) for _ in range(patience - failed))
            ahead = list(itertools.islice(dict.fromkeys(near for near in near_by if near not in seen), AHEAD))
            if not ahead:
                break
            for near, cost in zip(ahead, (yield [Ask(near, levels - 1) for near in ahead]), strict=False):
                seen.add(near)
                share = 1 - len(seen) / budget
                if cost is not None and (now is None or cost <= now + abs(now) * _TOLERANCE * share):
                    failed = 0 if now is None or cost < now else failed + 1
                    point, now = near, cost
                    break
                failed += 1


def _optuna(sizes: Sequence[int], levels: int, budget: int, seed: int) -> Search:
    with extra("optuna", "--method optuna"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    costs: dict[GridPoint, float | None] = {}
    for _ in range(20 * budget):  # Optuna repeats points once it is sure of them
        if len(costs) >= min(budget, math.prod(sizes)):
            return
        trial = study.ask()
        point = tuple(trial.suggest_int(str(axis), 0, size - 1) for axis, size in enumerate(sizes))
        if point not in costs:
            costs[point] = next((yield [Ask(point, levels - 1)]), None)
        cost = costs[point]
        if cost is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, cost)


METHODS: Final[Mapping[str, Method]] = {
    "grid": _grid,
    "random": _random,
    "local": _local,
    "halving": _halving,
    "optuna": _optuna,
}
"""Name -> method."""


def _point_at(number: int, sizes: Sequence[int]) -> GridPoint:
    """Return a point by its number, the last axis varying fastest."""
    digits = []
    for size in reversed(sizes):
        number, digit = divmod(number, size)
        digits.append(digit)
    return tuple(reversed(digits))


def _draw_points(sizes: Sequence[int], count: int, rng: random.Random) -> list[int]:
    """Return the numbers of up to `count` different points in random order."""
    size = math.prod(sizes)
    if size > sys.maxsize:  # no `range` is as long, and hardly any number is drawn twice
        return [*dict.fromkeys(rng.randrange(size) for _ in range(count))]
    return rng.sample(range(size), min(size, count))


def _unseen(sizes: Sequence[int], tried: set[GridPoint], rng: random.Random) -> GridPoint:
    """Return a point that is not in `tried`: the first one after a random number."""
    size = math.prod(sizes)
    number = rng.randrange(size)
    while _point_at(number, sizes) in tried:
        number = (number + 1) % size
    return _point_at(number, sizes)


def _neighbour(point: GridPoint, sizes: Sequence[int], rng: random.Random) -> GridPoint:
    """Return a point with another value on one axis, half of the time an adjacent value."""
    axis = rng.choice([k for k, size in enumerate(sizes) if size > 1] or [0])
    others = [value for value in range(sizes[axis]) if value != point[axis]] or [point[axis]]
    near = [value for value in others if abs(value - point[axis]) == 1]
    value = rng.choice(near if near and rng.random() < 0.5 else others)
    return (*point[:axis], value, *point[axis + 1 :])
