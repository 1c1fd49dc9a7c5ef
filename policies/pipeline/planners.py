"""Planners that cut a sequence of layers into stages: torchgpipe's and PipeDream's.

Source of the block partition: kakaobrain/torchgpipe, ``torchgpipe/balance/blockpartition.py``, which its
``balance_by_time`` and ``balance_by_size`` use. It follows Bárány and Grinberg, "Block partitions of
sequences", Israel Journal of Mathematics 206 (2015): blocks can always be found whose sums differ by at most
the largest element.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, get_args

from sim.base.errors import InputError, UnknownNameError
from sim.base.units import NS_PER_S, format_count

Balance = tuple[int, ...]
"""Number of elements in each block."""


def check_balance(balance: Sequence[int], layers: int) -> Balance:
    """Return a balance given by the user.

    Raises
    ------
    InputError
        If a block is empty, or the blocks do not add up to the number of layers.

    Examples
    --------
    >>> check_balance([2, 3], 5)
    (2, 3)
    """
    if any(count < 1 for count in balance) or sum(balance) != layers:
        text = "+".join(map(str, balance))
        raise InputError(
            f"the balance {text} = {sum(balance)} does not fit {layers} layers; every stage needs one"
        )
    return tuple(balance)


def _totals(costs: Sequence[int], blocks: int) -> list[int]:
    """Return the sums of the first 0, 1, 2, ... costs; raise if there are fewer costs than blocks."""
    if not 1 <= blocks <= len(costs):
        raise InputError(f"{format_count(len(costs), 'layer')} cannot be cut into {blocks} stages")
    return [0, *accumulate(costs)]


def min_max(costs: Sequence[int], blocks: int) -> Balance:
    """Return the balance with the smallest largest block; of several, the one that cuts earliest.

    Dynamic programming over prefixes, ``O(blocks · n²)``.

    Parameters
    ----------
    costs : sequence of int
        None negative.
    blocks : int

    Raises
    ------
    InputError
        There are fewer costs than blocks.

    Examples
    --------
    >>> min_max([4, 1, 3, 2, 2, 4], 3)
    (2, 2, 2)
    """
    n, total = len(costs), _totals(costs, blocks)
    best = [*total[1:]]  # smallest largest block of the first j + 1 elements in b blocks
    cuts: list[list[int]] = []
    for b in range(1, blocks):
        row, cut = [0] * n, [0] * n
        for j in range(b, n):
            choice = min((max(best[i - 1], total[j + 1] - total[i]), i) for i in range(b, j + 1))
            row[j], cut[j] = choice
        cuts.append(cut)
        best = row
    bounds = [n]
    for cut in reversed(cuts):
        bounds.append(cut[bounds[-1] - 1])
    return _balance([0, *reversed(bounds)])


def block_partition(costs: Sequence[int], blocks: int) -> Balance:
    """Return torchgpipe's balance: blocks with nearly equal sums, if its rule terminates.

    Costs are first normalised to (cost - least) / (largest - least), and every block starts with n // blocks
    of them. While the largest block is more than 1 larger than the smallest, the smallest takes an element
    from its neighbour on the side of the largest. Of equal blocks the last counts as largest and the first as
    smallest; the largest stays the same until it has given an element away. Sums are floating-point numbers,
    added from left to right, because ties depend on their rounding.

    Bárány and Grinberg take the smallest block nearest to the largest. Taking the first one instead may take
    an element from an empty block, so that for some costs the rule leaves an empty block or never ends.

    Parameters
    ----------
    costs : sequence of int
        None negative.
    blocks : int

    Raises
    ------
    InputError
        There are fewer costs than blocks, or the rule leaves a block empty or does not end.

    Examples
    --------
    >>> block_partition([4, 1, 3, 2, 2, 4], 3)
    (2, 2, 2)
    """
    n, _ = len(costs), _totals(costs, blocks)
    lowest, spread = min(costs), max(costs) - min(costs)
    normal = [(cost - lowest) / spread if spread else 0.0 for cost in costs]
    bounds = [n // blocks * b for b in range(blocks)] + [n]

    def size(b: int) -> float:
        total = 0.0
        for cost in normal[bounds[b] : bounds[b + 1]]:
            total += cost  # `sum` rounds otherwise from Python 3.12 on
        return total

    sizes = [size(b) for b in range(blocks)]
    seen = set()
    while True:
        largest, p = max((size, b) for b, size in enumerate(sizes))
        giver = None
        while giver != p:
            smallest, q = min((size, b) for b, size in enumerate(sizes))
            if largest <= smallest + 1:
                balance = _balance(bounds)
                if min(balance) < 1:
                    raise InputError(
                        f"torchgpipe's block partition leaves stage {balance.index(min(balance))} without a "
                        "layer, which torchgpipe refuses; take min-max, or give the number of layers of each "
                        "stage"
                    )
                return balance
            state = (p, largest, *bounds)
            if state in seen or min(bounds) < 0 or max(bounds) > n:
                raise InputError(
                    f"torchgpipe's block partition of these {n} costs into {blocks} stages does not end; "
                    "take min-max, or give the number of layers of each stage"
                )
            seen.add(state)
            giver = q - 1 if p < q else q + 1
            bounds[max(q, giver)] += -1 if p < q else 1  # the bound between the two
            sizes[q], sizes[giver] = size(q), size(giver)


def _balance(bounds: Sequence[int]) -> Balance:
    return tuple(b - a for a, b in pairwise(bounds))


# ----------------------------------------------------------------------------------------------------------
# A planner's view of a layer. torchgpipe's two plans are block partitions, by time and by size.


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer of a chain, for one micro-batch.

    Attributes
    ----------
    time_ns : int
        Time of forward and backward.
    boundary_nbytes : int
        Bytes across a cut right after it: its output, and earlier tensors that later layers read.
    parameter_nbytes : int
    kept_nbytes : int
        Bytes kept for its backward.
    """

    time_ns: int
    boundary_nbytes: int = 0
    parameter_nbytes: int = 0
    kept_nbytes: int = 0


def by_size(layers: Sequence[LayerCost], stages: int) -> tuple[int, ...]:
    """Return the block partition by twice the parameters (weights, gradients) + a micro-batch's activations.

    Source: kakaobrain/torchgpipe, ``torchgpipe.balance.balance_by_size``, with its default ``param_scale``.

    Examples
    --------
    >>> by_size([LayerCost(0, parameter_nbytes=n) for n in (6, 1, 1)], 2)
    (1, 2)
    """
    return block_partition([2 * layer.parameter_nbytes + layer.kept_nbytes for layer in layers], stages)


# ----------------------------------------------------------------------------------------------------------
# PipeDream's planner: the layers of each stage, and the number of workers that replicate it.
#
#     A(i..j, m) = min over the last stage k+1..j on m' of the m workers of
#                      max( A(i..k, m - m'),  sent(k, m'),  T(k+1..j, m') )
#     A(i..j, m) = T(i..j, m)                                       if one stage is best
#
#                      ``paper``                                    ``optimizer``
#     T(i..j, m)       max( time, 2·(m-1)·parameters / B ) / m      ( time + 4·(m-1)·parameters / (B·m) ) / m
#     sent(k, m')      2·a_k / B                                    2·a_k / (B·m'), and 2·a_j / (B·m')
#
# a_k is the data sent across the cut after layer k (once forward, once back), and the second term of T is the
# synchronisation of m replicas. With several levels (GPUs in a server, servers in a rack) the plan of one
# level is a "worker" of the next, which has its own bandwidth. The optimizer also sends nothing after the
# last layer, and divides the synchronisation of the first stage of layers i..j by the number of workers of
# the level below.
#
# Sources: ``paper`` is Narayanan et al., "PipeDream", SOSP 2019, section 3.1. ``optimizer`` is the program
# published with it, msr-fiddle/pipedream, ``optimizer/optimizer_graph_hierarchical.py``, run with
# ``--activation_compression_ratio 1``: without this option it ignores ``sent``.

Rule = Literal["paper", "optimizer"]
"""Source of the costs: the paper or the published program."""


@dataclass(frozen=True, slots=True)
class Level:
    """A level of the machine: its number of workers (or whole lower levels) and their bandwidth."""

    workers: int
    bandwidth_bytes_per_s: int


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A stage: layers ``first..last`` (both included) and its number of workers."""

    first: int
    last: int
    replicas: int


@dataclass(frozen=True, slots=True)
class PipedreamPlan:
    """PipeDream's plan.

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
        """Number of layers of each stage."""
        return tuple(stage.last - stage.first + 1 for stage in self.stages)

    @property
    def replicas(self) -> tuple[int, ...]:
        """Number of workers of each stage."""
        return tuple(stage.replicas for stage in self.stages)


def plan_pipedream(
    layers: Sequence[LayerCost], levels: Sequence[Level], rule: Rule = "paper"
) -> PipedreamPlan:
    """Return the plan whose slowest part is fastest; of equal plans, the one with fewer stages.

    Parameters
    ----------
    layers : sequence of LayerCost
        Layers in order, with times and sizes of one mini-batch.
    levels : sequence of Level
        Levels from the innermost out.
    rule : {"paper", "optimizer"}
        Cost rule of replicas and transfers.

    Raises
    ------
    InputError
        If there are no layers or no levels.
    UnknownNameError
        If the rule is unknown.

    Examples
    --------
    Two workers: it is better not to replicate a layer with heavy weights.

    >>> layers = [LayerCost(6_000_000, 10**6), LayerCost(4_000_000, 10**3, 10**9)]
    >>> plan_pipedream(layers, [Level(2, 10**10)]).replicas
    (1, 1)
    """
    if not layers or not levels:
        raise InputError("PipeDream's planner needs layers, and a level of workers with its bandwidth")
    if rule not in get_args(Rule):
        raise UnknownNameError("rule of PipeDream's planner", str(rule), get_args(Rule))
    n = len(layers)
    total = [0, *accumulate(layer.time_ns for layer in layers)]
    plans: _Plans = {
        (i, j): (float(total[j + 1] - total[i]), (StagePlan(i, j, 1),)) for i in range(n) for j in range(i, n)
    }
    inner = 1
    for depth, level in enumerate(levels):
        starts = range(n) if depth + 1 < len(levels) else range(1)
        costs = (_Paper if rule == "paper" else _Optimizer)(layers, level, inner)
        plans = _level(plans, starts, n, level.workers, costs)
        inner = level.workers
    slowest, stages = plans[0, n - 1]
    return PipedreamPlan(stages, slowest)


_Plans = dict[tuple[int, int], tuple[float, tuple[StagePlan, ...]]]


class _Paper:
    """Costs of replicas and transfers on a level, in ns, by the paper."""

    def __init__(self, layers: Sequence[LayerCost], level: Level, inner: int) -> None:
        self.per_byte = NS_PER_S / level.bandwidth_bytes_per_s
        self.weights = [0, *accumulate(layer.parameter_nbytes for layer in layers)]
        self.twice = [2 * layer.boundary_nbytes * self.per_byte for layer in layers]
        self.inner = inner

    def replica_time(self, time: float, i: int, j: int, m: int, *, first: bool) -> float:
        """Return the time of layers i..j on m replicas; `first`: no planned layer is before them."""
        return max(time, 2 * (m - 1) * (self.weights[j + 1] - self.weights[i]) * self.per_byte) / m

    def transfer_time(self, k: int, j: int, m: int) -> float:
        """Return the transfer time of a last stage k+1..j on m replicas."""
        return self.twice[k]


class _Optimizer(_Paper):
    """The same costs by the published program."""

    def replica_time(self, time: float, i: int, j: int, m: int, *, first: bool) -> float:
        """Return the time of layers i..j on m replicas."""
        sync = 4 * (m - 1) * (self.weights[j + 1] - self.weights[i]) * self.per_byte / m
        return (time + (sync / self.inner if first else sync)) / m

    def transfer_time(self, k: int, j: int, m: int) -> float:
        """Return the time of the transfers before and after a last stage k+1..j on m replicas."""
        behind = self.twice[j] if j < len(self.twice) - 1 else 0
        return max(self.twice[k], behind) / m


def _level(below: _Plans, starts: Sequence[int], n: int, workers: int, costs: _Paper) -> _Plans:
    """Return the best plan of every span of layers on one level."""
    plans: _Plans = {}
    for i in starts:
        # best[m][j]: time, and the first layer and replicas of the last stage.
        best: list[dict[int, tuple[float, int, int]]] = [{} for _ in range(workers + 1)]
        for m in range(1, workers + 1):
            for j in range(i, n):
                choice = (costs.replica_time(below[i, j][0], i, j, m, first=True), i, m)
                for last in range(1, m):
                    for k in range(i, j):
                        before = max(best[m - last][k][0], costs.transfer_time(k, j, last))
                        if before >= choice[0]:
                            continue
                        time = costs.replica_time(below[k + 1, j][0], k + 1, j, last, first=False)
                        if max(before, time) < choice[0]:
                            choice = (max(before, time), k + 1, last)
                best[m][j] = choice
        for j in range(i, n):
            plans[i, j] = (best[workers][j][0], _stages(below, best, i, j, workers))
    return plans


def _stages(
    below: _Plans, best: Sequence[dict[int, tuple[float, int, int]]], i: int, j: int, m: int
) -> tuple[StagePlan, ...]:
    """Return the stages, by following the choices back from the last one."""
    stages: tuple[StagePlan, ...] = ()
    while j >= i:
        _, first, replicas = best[m][j]
        inner = below[first, j][1]
        stages = (*(StagePlan(s.first, s.last, s.replicas * replicas) for s in inner), *stages)
        m, j = m - replicas, first - 1
    return stages
