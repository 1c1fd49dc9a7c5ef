"""PipeDream's planner: which layers make a stage, and on how many workers each stage is replicated.

::

    A(j, m) = min over the last stage i+1..j on m' of the m workers of
                  max( A(i, m - m'),  2·a_i / B,  T(i+1..j, m') )

    T(i..j, m) = max( time of the layers, 2·(m-1)·parameters / B ) / m

a_i is what crosses the cut behind layer i (once forward, once back), and the second term of T the
synchronisation of m replicas. With several levels (GPUs in a server, servers in a rack) the plan of a level
is the "worker" of the next one, whose bandwidth is another.

Source: Narayanan et al., "PipeDream", SOSP 2019, section 3.1; msr-fiddle/pipedream, ``optimizer/``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from policies.pipeline.planners.layers import LayerCost
from sim.words.errors import InputError
from sim.words.units import NS_PER_S

__all__ = ["Level", "PipedreamPlan", "StagePlan", "plan_pipedream"]


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the machine: so many workers (or whole lower levels), and the bandwidth between them."""

    workers: int
    bandwidth_bytes_per_s: int


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A stage: layers ``first..last`` (both included), on so many workers."""

    first: int
    last: int
    replicas: int


@dataclass(frozen=True, slots=True)
class PipedreamPlan:
    """A plan.

    Attributes
    ----------
    stages : tuple of StagePlan
    slowest_ns : float
        Time of the slowest stage or transfer for one mini-batch: 1 / throughput.
    """

    stages: tuple[StagePlan, ...]
    slowest_ns: float

    @property
    def balance(self) -> tuple[int, ...]:
        """How many layers each stage has."""
        return tuple(stage.last - stage.first + 1 for stage in self.stages)

    @property
    def replicas(self) -> tuple[int, ...]:
        """On how many workers each stage is."""
        return tuple(stage.replicas for stage in self.stages)


def plan_pipedream(layers: Sequence[LayerCost], levels: Sequence[Level]) -> PipedreamPlan:
    """Return the plan whose slowest part is fastest; of equal ones, that with fewer stages.

    Parameters
    ----------
    layers : sequence of LayerCost
        In order, with times and sizes of one mini-batch.
    levels : sequence of Level
        From the innermost.

    Raises
    ------
    InputError
        No layers or no levels.

    Examples
    --------
    Two workers: one heavy layer of weights is better not replicated.

    >>> layers = [LayerCost(6_000_000, 10**6), LayerCost(4_000_000, 10**3, 10**9)]
    >>> plan_pipedream(layers, [Level(2, 10**10)]).replicas
    (1, 1)
    """
    if not layers or not levels:
        raise InputError("PipeDream's planner needs layers, and a level of workers with its bandwidth")
    n = len(layers)
    total = [0, *accumulate(layer.time_ns for layer in layers)]
    weights = [0, *accumulate(layer.parameter_nbytes for layer in layers)]
    plans: _Plans = {
        (i, j): (float(total[j + 1] - total[i]), (StagePlan(i, j, 1),)) for i in range(n) for j in range(i, n)
    }
    for depth, level in enumerate(levels):
        starts = range(n) if depth + 1 < len(levels) else range(1)
        plans = _level(plans, starts, layers, weights, level)
    slowest, stages = plans[0, n - 1]
    return PipedreamPlan(stages, slowest)


_Plans = dict[tuple[int, int], tuple[float, tuple[StagePlan, ...]]]


def _level(
    below: _Plans, starts: Sequence[int], layers: Sequence[LayerCost], weights: Sequence[int], level: Level
) -> _Plans:
    """Return the best plan of every span of layers on one whole level."""
    n = len(layers)
    per_byte = NS_PER_S / level.bandwidth_bytes_per_s
    cross = [2 * layer.boundary_nbytes * per_byte for layer in layers]

    def replicated(i: int, j: int, m: int) -> float:
        sync = 2 * (m - 1) * (weights[j + 1] - weights[i]) * per_byte
        return max(below[i, j][0], sync) / m

    found: _Plans = {}
    for i in starts:
        # best[m][j]: time, and the last stage's (first layer, replicas) with what is before it.
        best: list[dict[int, tuple[float, int, int]]] = [{} for _ in range(level.workers + 1)]
        for m in range(1, level.workers + 1):
            for j in range(i, n):
                choice = (replicated(i, j, m), i, m)
                for last in range(1, m):
                    for s in range(i, j):
                        before = best[m - last][s][0]
                        if before >= choice[0] or cross[s] >= choice[0]:
                            continue
                        time = max(before, cross[s], replicated(s + 1, j, last))
                        if time < choice[0]:
                            choice = (time, s + 1, last)
                best[m][j] = choice
        for j in range(i, n):
            found[i, j] = (best[level.workers][j][0], _stages(below, best, i, j, level.workers))
    return found


def _stages(
    below: _Plans, best: Sequence[dict[int, tuple[float, int, int]]], i: int, j: int, m: int
) -> tuple[StagePlan, ...]:
    """Follow the choices back from the last stage."""
    stages: tuple[StagePlan, ...] = ()
    while True:
        _, first, replicas = best[m][j]
        inside = below[first, j][1]
        stages = (*(StagePlan(s.first, s.last, s.replicas * replicas) for s in inside), *stages)
        if first == i:
            return stages
        m, j = m - replicas, first - 1
