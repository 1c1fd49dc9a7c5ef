"""A good order under a memory limit, found greedily (the heuristic behind ZB-1p and ZB-2p).

The order is built with the clock running, one F and one I a rank and turn:

1. Warm-up. Every rank runs F of micro-batch 0. Then, from the last rank to the first, each adds
   forwards while memory lasts and the first gradient has not arrived. Whether the last of them may
   still run when the gradient arrives is switch ``delay_first_gradient``.
2. Turns. In each, first the ranks run one F, then, from the last to the first, one I. A W fills the
   time until the input arrives wherever it fits whole. Where it does not fit whole, it is run when
   the gap would make this rank the one with the longest bubble of all; for smaller gaps switch
   ``fill_small_gaps`` decides. A W is also run when memory is short.
   A rank that is two forwards or more ahead of the next one may skip its F, if that is cheaper than
   making a gradient wait: switch ``skip_forwards``.
3. The W that are left.

::

    rank 0  F F F F I . W F I W ...        warm-up until the gradient of micro-batch 0 arrives
    rank 1    F F I F I W F I W ...        then F, I and W as above

All eight settings of the three switches are tried and the cheapest order is taken.

Source: Qi et al., arXiv 2401.10241, section 3.1 (the rules, in words).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from policies.pipeline.orders.pipeline_schedule import Programs
from policies.pipeline.zero_bubble.greedy_ranks import GreedyRanks
from policies.pipeline.zero_bubble.zb_problem import Problem, those_found

__all__ = ["greedy_programs"]

_F, _I = 0, 1
"""The legs of a straight pipeline."""


def greedy_programs(problem: Problem) -> Iterator[Programs]:
    """Return the programs of a straight pipeline for each setting of the switches that finds some.

    Raises
    ------
    InfeasibleError
        No setting finds an order within the memory limit.
    """
    return those_found(_Search(problem, *setting).run for setting in product((False, True), repeat=3))


class _Search(GreedyRanks):
    """One greedy run. Everything is indexed by rank, which is also the stage."""

    def __init__(
        self, problem: Problem, delay_first_gradient: bool, skip_forwards: bool, fill_small_gaps: bool
    ) -> None:
        super().__init__(problem)
        self.delay_first_gradient, self.skip_forwards = delay_first_gradient, skip_forwards
        self.fill_small_gaps = fill_small_gaps

    def run(self) -> Programs:
        ranks, micro_batches = range(self.problem.ranks), self.problem.micro_batches
        self._warm_up()
        for _ in range(1, micro_batches):
            going = self._ranks_that_forward()
            for rank in ranks:
                if going[rank]:
                    self.make_room(rank)
                    self.fill(_F, rank, self._allowed_gap(rank))
                    self.run_leg(_F, rank)
            for rank in reversed(ranks):
                self.fill(_I, rank, self._allowed_gap(rank))
                if rank == 0 and self.count(_F, 0) == micro_batches:
                    while self.pending[0]:
                        self.run_weight_grad(0)
                self.run_leg(_I, rank)
        return self.programs()

    def _warm_up(self) -> None:
        ranks = range(self.problem.ranks)
        for rank in ranks:
            self.make_room(rank)
            self.run_leg(_F, rank)
        extra = self._extra_forwards()
        for rank in ranks:
            for _ in range(extra[rank]):
                self.run_leg(_F, rank)
        for rank in reversed(ranks):
            self.run_leg(_I, rank)

    def _extra_forwards(self) -> list[int]:
        """Count the forwards that each rank can run before the first gradient arrives."""
        problem, last = self.problem, self.problem.ranks - 1
        extra = [0] * problem.ranks
        gradient = self.clock[last] + problem.duration(last, "I")
        for rank in range(last - 1, -1, -1):
            arrival, now = gradient + problem.transfer, self.clock[rank]
            forward, size = problem.duration(rank, "F"), problem.memory_change(rank, "F")
            while 1 + extra[rank] < problem.micro_batches:
                too_late = now >= arrival if self.delay_first_gradient else now + forward > arrival
                if too_late or self.memory[rank] + (extra[rank] + 1) * size > problem.limit:
                    break
                now += forward
                extra[rank] += 1
            gradient = max(now, arrival) + problem.duration(rank, "I")
        for rank in range(1, problem.ranks):
            # Each rank stays behind the one before it, except where that one runs all its forwards.
            before = extra[rank - 1]
            at_most = before if 1 + before == problem.micro_batches else max(0, before - 1)
            extra[rank] = min(extra[rank], at_most)
        return extra

    def _ranks_that_forward(self) -> list[bool]:
        """Decide for each rank whether it runs a forward in this turn."""
        problem = self.problem
        going = [self.count(_F, rank) < problem.micro_batches for rank in range(problem.ranks)]
        if self.skip_forwards:
            for rank in range(problem.ranks - 1):
                ahead = self.count(_F, rank) - self.count(_F, rank + 1)
                going[rank] = going[rank] and not (ahead >= 2 and self._skip_is_cheaper(rank))
        for rank in range(problem.ranks - 2, -1, -1):
            going[rank] = going[rank] and going[rank + 1]
        return going

    def _skip_is_cheaper(self, rank: int) -> bool:
        problem, after = self.problem, rank + 1
        gradient = (
            self.clock[after] + problem.duration(after, "F") + problem.duration(after, "I") + problem.transfer
        )
        if self.clock[rank] >= gradient:
            return True
        done = self.clock[rank] + problem.duration(rank, "F") + self._time_to_make_room(rank)
        if done <= gradient:
            return False
        return gradient - self.clock[rank] <= self.longest_bubble - self.bubble[rank]

    def _time_to_make_room(self, rank: int) -> int:
        need = self.memory[rank] + self.problem.memory_change(rank, "F")
        pending = 0
        while need > self.problem.limit and pending < len(self.pending[rank]):
            need += self.problem.memory_change(rank, "W")
            pending += 1
        return pending * self.problem.duration(rank, "W")

    def _allowed_gap(self, rank: int) -> int:
        return 0 if self.fill_small_gaps else self.longest_bubble - self.bubble[rank]
