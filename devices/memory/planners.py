"""Memory plans: the offset of every tensor, decided before the run.

Planners by name, each a function of lifetimes and an alignment:

===========  ===========================================================================
``relay``    TVM's rule: tensors in turn share storage tokens
``relax``    the same in TVM's successor of Relay, for each data type apart
``greedy``   the largest tensor first, each at the best fitting offset
``optimal``  the least arena there is, on small graphs: the bound for the others
===========  ===========================================================================
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from devices.memory.device_memory import round_up
from sim.base.arrays import IntArray
from sim.base.errors import extra
from sim.base.intervals import in_use

# ----------------------------------------------------------------------------------------------------------
# What a planner is given, and what it answers.
#
# A tensor is a rectangle: as wide as it lives, as high as it is large. A plan shifts the rectangles up and
# down, never sideways, so that no two overlap, and wants the pile low::
#
#     offset
#       ▲  ┌─────────┐
#       │  │    c    │ ┌──────┐
#       │  ├──────┬──┘ │      │      lower bound: the most bytes alive at one step,
#       │  │  a   │┌───┤  d   │      whatever the plan
#       │  │      ││ b │      │
#       └──┴──────┴┴───┴──────┴──► step


class Lifetime(NamedTuple):
    """A tensor of `nbytes`, alive from step `first` through step `last`, both included.

    Some planners look at its `dtype` (empty: not known), and at whether the program returns it.
    """

    nbytes: int
    first: int
    last: int
    dtype: str = ""
    returned: bool = False


@dataclass(frozen=True)
class ArenaPlan:
    """Where each tensor lies in one arena.

    Attributes
    ----------
    lifetimes : tuple of Lifetime
        What was planned.
    offsets : tuple of int
        First byte of each, in the same order; multiples of `alignment`.
    nbytes : int
        Size of the arena.
    bound : int
        No plan takes fewer bytes, as far as the planner knows; at least the most alive at one step.
    planner : str
        Who made it.
    alignment : int
        In bytes.
    """

    lifetimes: tuple[Lifetime, ...]
    offsets: tuple[int, ...]
    nbytes: int
    bound: int
    planner: str
    alignment: int = 1

    @property
    def optimal(self) -> bool:
        """Whether it is known that no plan takes fewer bytes."""
        return self.nbytes == self.bound


def peak_live(lifetimes: Iterable[Lifetime], alignment: int = 1) -> int:
    """Return the most bytes alive at one step: a lower bound of every plan.

    Examples
    --------
    >>> peak_live([Lifetime(4, 0, 1), Lifetime(2, 1, 2), Lifetime(5, 2, 2)])
    7
    """
    return int(_live_at_steps(lifetimes, alignment)[1].max(initial=0))


def fullest_step(lifetimes: Iterable[Lifetime]) -> int:
    """Return the first step at which most bytes are alive; 0 without lifetimes.

    Examples
    --------
    >>> fullest_step([Lifetime(4, 0, 1), Lifetime(2, 1, 2), Lifetime(5, 2, 2)])
    2
    """
    steps, live = _live_at_steps(lifetimes, alignment=1)
    return int(steps[live.argmax()]) if len(steps) else 0


def _live_at_steps(lifetimes: Iterable[Lifetime], alignment: int) -> tuple[IntArray, IntArray]:
    """Return the steps at which it changes what is alive, and the bytes alive from each on."""
    rows = [(first, last + 1, round_up(nbytes, alignment)) for nbytes, first, last, *_ in lifetimes]
    return in_use(*np.array(rows, np.int64).reshape(-1, 3).T)


# ----------------------------------------------------------------------------------------------------------
# Greedy by size: the largest tensor first, each into the tightest gap that holds it.
#
# The heuristic of Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference" (MLSys
# workshop 2020, arXiv 2001.03288, algorithm 3), which TensorFlow Lite uses. Large tensors are placed while
# there is freedom; the small ones fill what is left between those that live at the same time.


def plan_greedy(lifetimes: Sequence[Lifetime], alignment: int = 1) -> ArenaPlan:
    """Place tensors by descending size (then by first step, then in order), each at the best fitting offset.

    Parameters
    ----------
    lifetimes : sequence of Lifetime
        n tensors; O(n²) comparisons, in numpy.
    alignment : int
        Of every offset, in bytes.

    Examples
    --------
    >>> plan = plan_greedy([Lifetime(4, 0, 1), Lifetime(6, 1, 2), Lifetime(5, 2, 3)])
    >>> plan.offsets, plan.nbytes, plan.optimal
    ((6, 0, 6), 11, True)
    """
    rows = tuple(lifetimes)
    # What is placed so far, in order of first step, so that those which begin later are not looked at.
    first_of = np.array([row.first for row in rows], np.int64)
    order = first_of.argsort(kind="stable")
    begins, rank = first_of[order], order.argsort().tolist()
    starts, ends, until = np.zeros((3, len(rows)), np.int64) - 1
    for i in sorted(range(len(rows)), key=lambda i: (-rows[i].nbytes, rows[i].first, i)):
        nbytes, first, last, *_ = rows[i]
        if not nbytes:
            continue
        size = round_up(nbytes, alignment)
        beside = np.flatnonzero(until[: begins.searchsorted(last, "right")] >= first)
        beside = beside[starts[beside].argsort()]
        tops = np.maximum.accumulate(np.concatenate(([0], ends[beside])))
        gaps = starts[beside] - tops[:-1]
        fitting = np.flatnonzero(gaps >= size)
        best = fitting[np.argmin(gaps[fitting])] if len(fitting) else -1
        offset = int(tops[best])
        starts[rank[i]], ends[rank[i]], until[rank[i]] = offset, offset + size, last
    offsets = tuple(starts.clip(0)[rank].tolist())
    return ArenaPlan(rows, offsets, int(ends.max(initial=0)), peak_live(rows, alignment), "greedy", alignment)


# ----------------------------------------------------------------------------------------------------------
# TVM's two plans: tensors share storage tokens in turn.
#
# A token is a buffer that one tensor after the other uses whole. In program order, an op's outputs request
# tokens before its inputs are released (an op never writes where it reads). A request of s bytes takes
#
# 1. the smallest free token of s to 16·s bytes, the one released first among equals; else
# 2. the largest free token below s, down to s/16, the one released last among equals, and enlarges it; else
# 3. a new token.
#
# Parameters and inputs have tokens of their own for good. What the program returns never releases its token.
#
# =========  ==========================  ========================================  =======================
# planner    an output that nobody reads  tensors of different data types            what the program returns
# =========  ==========================  ========================================  =======================
# ``relay``  is released first            share tokens                               takes a token like others
# ``relax``  is released last             have a pool each                           is allocated apart
# =========  ==========================  ========================================  =======================
#
# Source: `TokenAllocator1D` and `StorageAllocator` of TVM, in src/relay/backend/graph_plan_memory.cc
# and src/relax/transform/static_plan_block_memory.cc. In Relax an op's output is its last argument.

MATCH_RANGE = 16


class TokenPool:
    """Tokens by size; those that are free can be requested.

    Examples
    --------
    >>> pool = TokenPool()
    >>> a = pool.request(100)
    >>> pool.release(a)
    >>> pool.request(200), pool.request(50), pool.sizes  # the first enlarges it, the second finds none free
    (0, 1, [200, 50])
    """

    def __init__(self) -> None:
        self.sizes: list[int] = []
        """Bytes of each token; its index is its identity."""
        self._free: dict[Hashable, list[tuple[int, int, int]]] = {}
        self._released = 0

    def request(self, nbytes: int, kind: Hashable = None) -> int:
        """Return a token for `nbytes`, of those of the same `kind` (device, scope, dtype)."""
        free = self._free.get(kind, [])
        at = bisect_left(free, (nbytes,))
        if at < len(free) and free[at][0] <= nbytes * MATCH_RANGE:
            return free.pop(at)[2]
        if at and free[at - 1][0] >= nbytes // MATCH_RANGE:
            token = free.pop(at - 1)[2]
            self.sizes[token] = nbytes
            return token
        return self.new(nbytes)

    def new(self, nbytes: int) -> int:
        """Return a token that did not exist before."""
        self.sizes.append(nbytes)
        return len(self.sizes) - 1

    def release(self, token: int, kind: Hashable = None) -> None:
        """Make a token free for others of its kind."""
        insort(self._free.setdefault(kind, []), (self.sizes[token], self._released, token))
        self._released += 1


def plan_relay(lifetimes: Sequence[Lifetime], alignment: int = 1) -> ArenaPlan:
    """Plan lifetimes as Relay does; at each step the new tensors request before the dying ones release.

    Examples
    --------
    >>> plan_relay([Lifetime(4, 0, 1), Lifetime(4, 1, 2), Lifetime(4, 2, 2, "int32")]).offsets
    (0, 4, 0)
    """
    rows = tuple(lifetimes)
    return _plan([row._replace(dtype="") for row in rows], rows, alignment, "relay")


def plan_relax(lifetimes: Sequence[Lifetime], alignment: int = 1) -> ArenaPlan:
    """Plan lifetimes as Relax does.

    Examples
    --------
    >>> plan_relax([Lifetime(4, 0, 1), Lifetime(4, 1, 2), Lifetime(4, 2, 2, "int32")]).offsets
    (0, 4, 8)
    """
    rows = tuple(lifetimes)
    apart = [row._replace(dtype=f"returned {i}") if row.returned else row for i, row in enumerate(rows)]
    return _plan(apart, rows, alignment, "relax")


def _plan(told: Sequence[Lifetime], rows: tuple[Lifetime, ...], alignment: int, planner: str) -> ArenaPlan:
    """Plan lifetimes; those `told` say whose tokens each may have."""
    turns = [(row.first, False, tensor) for tensor, row in enumerate(rows)]
    turns += [(row.last, True, tensor) for tensor, row in enumerate(rows)]
    pool = TokenPool()
    token_of = [-1] * len(rows)
    for _, dies, tensor in sorted(turns):
        row = told[tensor]
        if not dies:
            token_of[tensor] = pool.request(row.nbytes, row.dtype)
        elif not row.returned:
            pool.release(token_of[tensor], row.dtype)
    starts = [0, *accumulate(round_up(nbytes, alignment) for nbytes in pool.sizes)]
    offsets = tuple(starts[token] for token in token_of)
    return ArenaPlan(rows, offsets, starts[-1], peak_live(rows, alignment), planner, alignment)


# ----------------------------------------------------------------------------------------------------------
# The least arena there is, on small graphs: what the heuristics are measured against.
#
# Placing tensors with given lifetimes is strip packing with one coordinate fixed ("dynamic storage
# allocation"), strongly NP-hard (Garey and Johnson, problem SR2): rectangles that must not overlap, handed to
# OR-Tools' CP-SAT (the extra ``opt``), dozens to hundreds of them. What comes back is the best plan found and
# the bound proved; `ArenaPlan.optimal` tells whether they meet. It stops after some work, not some time.


def plan_optimal(lifetimes: Sequence[Lifetime], alignment: int = 1) -> ArenaPlan:
    """Return the best plan that CP-SAT finds in a deterministic time of 10, some 10 s of one core.

    Parameters
    ----------
    lifetimes : sequence of Lifetime
        What to place.
    alignment : int
        Of every offset, in bytes.

    Raises
    ------
    MissingExtraError
        OR-Tools is not installed.

    Examples
    --------
    Greedy by size piles up 8 bytes here: the tensor of 4 lifts the one that lives longest.

    >>> tensors = [Lifetime(2, 4, 4), Lifetime(3, 4, 4), Lifetime(4, 3, 3), Lifetime(2, 2, 4)]
    >>> plan_greedy(tensors).nbytes, plan_optimal(tensors).nbytes
    (8, 7)
    """
    with extra("opt", "planning memory with CP-SAT"):
        from ortools.sat.python import cp_model
    start = plan_greedy(lifetimes, alignment)
    if start.optimal:
        return replace(start, planner="cp-sat")
    rows = start.lifetimes
    # In the largest unit that divides every size: the smaller the numbers, the easier the search.
    sizes = [round_up(row.nbytes, alignment) for row in rows]
    unit = math.gcd(*sizes)
    most = start.nbytes // unit
    model = cp_model.CpModel()
    height = model.new_int_var(start.bound // unit, most, "height")
    offsets = []
    lives, places = [], []
    for i, (row, size) in enumerate(zip(rows, sizes, strict=True)):
        high = size // unit
        offset = model.new_int_var(0, most - high, f"offset{i}")
        model.add(offset + high <= height)
        model.add_hint(offset, min(start.offsets[i] // unit, most - high))
        offsets.append(offset)
        if high:
            lives.append(model.new_fixed_size_interval_var(row.first, row.last + 1 - row.first, f"life{i}"))
            places.append(model.new_fixed_size_interval_var(offset, high, f"place{i}"))
    model.add_no_overlap_2d(lives, places)
    model.minimize(height)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # several would race, and return another optimum each time
    solver.parameters.random_seed = 0
    solver.parameters.max_deterministic_time = 10.0
    status = solver.solve(model)
    bound = max(start.bound, round(solver.best_objective_bound) * unit)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return replace(start, bound=bound, planner="cp-sat")
    found = tuple(solver.value(offset) * unit for offset in offsets)
    return replace(start, offsets=found, nbytes=solver.value(height) * unit, bound=bound, planner="cp-sat")


# ----------------------------------------------------------------------------------------------------------

Planner = Callable[[Sequence[Lifetime], int], ArenaPlan]
"""A planner: lifetimes and an alignment in bytes → a plan."""

PLANNERS: dict[str, Planner] = {
    "relay": plan_relay,
    "relax": plan_relax,
    "greedy": plan_greedy,
    "optimal": plan_optimal,
}
