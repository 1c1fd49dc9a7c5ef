"""The least arena there is, on small graphs: what the heuristics are measured against.

Placing tensors with given lifetimes is strip packing with one coordinate fixed ("dynamic storage
allocation"), strongly NP-hard (Garey and Johnson, problem SR2). Two ways to the optimum:

* `plan_cp_sat`: rectangles that must not overlap, handed to OR-Tools' CP-SAT (the extra ``opt``); dozens to
  hundreds of tensors;
* `plan_branch_and_bound`: own search, without any package; about a dozen tensors.

Both return the best plan found and the bound proved; `Plan.optimal` tells whether they meet. Both are
deterministic: they stop after an amount of work, not of time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from devices.memory.blocks import round_up
from devices.memory.plan.greedy_by_size import plan_greedy
from devices.memory.plan.plan_problem import Lifetime, Plan
from sim.words.errors import MissingExtraError, extra

__all__ = ["plan_branch_and_bound", "plan_cp_sat", "plan_optimal"]


def plan_optimal(lifetimes: Sequence[Lifetime], alignment: int = 1) -> Plan:
    """Return the best plan of CP-SAT where it is installed, of the own search where it is not.

    Examples
    --------
    >>> plan_optimal([Lifetime(4, 0, 1), Lifetime(6, 1, 2), Lifetime(5, 2, 3)]).nbytes
    11
    """
    try:
        return plan_cp_sat(lifetimes, alignment)
    except MissingExtraError:
        return plan_branch_and_bound(lifetimes, alignment)


def plan_cp_sat(lifetimes: Sequence[Lifetime], alignment: int = 1, *, effort: float = 10.0) -> Plan:
    """Return the best plan that CP-SAT finds.

    Parameters
    ----------
    lifetimes : sequence of Lifetime
        What to place.
    alignment : int
        Of every offset, in bytes.
    effort : float
        CP-SAT's deterministic time; about that many seconds of one core.

    Raises
    ------
    InputError
        A lifetime makes no sense.
    MissingExtraError
        OR-Tools is not installed.
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
    solver.parameters.max_deterministic_time = effort
    status = solver.solve(model)
    bound = max(start.bound, round(solver.best_objective_bound) * unit)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return replace(start, bound=bound, planner="cp-sat")
    found = tuple(solver.value(offset) * unit for offset in offsets)
    nbytes = solver.value(height) * unit
    return replace(start, offsets=found, nbytes=nbytes, bound=bound, planner="cp-sat")


def plan_branch_and_bound(
    lifetimes: Sequence[Lifetime], alignment: int = 1, *, max_nodes: int = 200_000
) -> Plan:
    """Return the best plan of a search over the orders in which tensors are piled up.

    In some best plan no tensor can be lowered, so that each lies on the floor or on one that it lives with:
    dropping the tensors in ascending order of offset onto a skyline (a height for each step) makes that plan.
    So the search drops tensors in every order whose offsets ascend, and turns back where what must still go
    on top of some step cannot stay below the best pile known.

    Parameters
    ----------
    lifetimes : sequence of Lifetime
        What to place; the search takes about 12 tensors.
    alignment : int
        Of every offset, in bytes.
    max_nodes : int
        Give up proving after so many partial piles; the best found is returned, with a lower bound.

    Raises
    ------
    InputError
        A lifetime makes no sense.

    Examples
    --------
    Greedy by size piles up 8 bytes here: the tensor of 4 lifts the one that lives longest.

    >>> tensors = [Lifetime(2, 4, 4), Lifetime(3, 4, 4), Lifetime(4, 3, 3), Lifetime(2, 2, 4)]
    >>> plan_greedy(tensors).nbytes, plan_branch_and_bound(tensors).nbytes
    (8, 7)
    """
    start = plan_greedy(lifetimes, alignment)
    search = _Search(start, max_nodes)
    search.run()
    bound = start.bound if search.nodes > max_nodes else search.best
    offsets = tuple(search.offsets)
    return replace(start, offsets=offsets, nbytes=search.best, bound=bound, planner="branch-and-bound")


class _Search:
    """Depth-first search over orders of dropping; `best` and `offsets` are the answer."""

    def __init__(self, start: Plan, max_nodes: int) -> None:
        self.best = start.nbytes
        self.offsets = list(start.offsets)
        self.nodes = 0
        self._bound = start.bound
        self._max_nodes = max_nodes
        edges = sorted({edge for row in start.lifetimes for edge in (row.first, row.last + 1)})
        slot = {edge: i for i, edge in enumerate(edges)}
        self._sizes = [round_up(row.nbytes, start.alignment) for row in start.lifetimes]
        self._slots = [range(slot[row.first], slot[row.last + 1]) for row in start.lifetimes]
        self._heights = [0] * max(len(edges) - 1, 0)
        self._left = [0] * len(self._heights)
        self._placed = [0] * len(self._sizes)
        self._todo = [i for i, size in enumerate(self._sizes) if size]
        for i in self._todo:
            for t in self._slots[i]:
                self._left[t] += self._sizes[i]

    def run(self, floor: int = 0, latest: int = -1) -> None:
        """Try every tensor as the next one, at an offset not below `floor` (of tensor `latest`)."""
        if self.best == self._bound or self.nodes > self._max_nodes:
            return
        self.nodes += 1
        if not self._todo:
            # Whatever could not stay below the best was cut off, so this pile is lower.
            self.best = max(self._heights, default=0)
            self.offsets = list(self._placed)
            return
        needed = (
            max(high, floor) + left for high, left in zip(self._heights, self._left, strict=True) if left
        )
        if max(needed) >= self.best:
            return
        drops = sorted((max(self._heights[t] for t in self._slots[i]), i) for i in self._todo)
        for offset, i in drops:
            if offset < floor or (offset == floor and i < latest):
                continue
            slots, size = self._slots[i], self._sizes[i]
            before = [self._heights[t] for t in slots]
            for t in slots:
                self._heights[t] = offset + size
                self._left[t] -= size
            self._todo.remove(i)
            self._placed[i] = offset
            self.run(offset, i)
            self._todo.append(i)
            for t, high in zip(slots, before, strict=True):
                self._heights[t] = high
                self._left[t] += size
