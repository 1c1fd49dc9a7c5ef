"""A good order of a V under a memory limit, found greedily (the heuristic behind ZB-V).

A micro-batch travels four legs over the ranks of a V, and each rank works on all four:

    leg 0   F of the first chunk     rank 0 → p-1     down
    leg 1   F of the second chunk    rank p-1 → 0     up
    leg 2   I of the second chunk    rank 0 → p-1     down
    leg 3   I of the first chunk     rank p-1 → 0     up

The order is built with the clock running:

1. Warm-up. Micro-batch 0 goes down; on its way up, each rank (with the ranks above it) adds leg 0
   while memory lasts and micro-batch 0 has not come back. Then, alternating leg 0 and leg 1, each
   rank catches up with the one above it.
2. Turns. In each, every rank runs one I (leg 3 where its gradient is there, else leg 2), then one F
   (leg 1 where its input is there, else leg 0), if it has one to run. A W fills the time until the
   input arrives wherever it fits whole; where it does not, it is run when the gap would make this
   rank the one with the longest bubble. Switches ``fill_before_forward`` and
   ``fill_before_leg_2`` turn that second rule off there.
3. The W that are left.

A run tells how long the bubble of each rank became. Where one rank's bubble is longest anyway, the
others need not fill gaps up to that length: the search runs again with what it learnt, as long as
the longest bubble shrinks.

Source: Qi et al., arXiv 2401.10241, section 6 and appendix (the rules, in words).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product

from policies.pipeline.orders.pipeline_schedule import Programs
from policies.pipeline.zero_bubble.greedy_ranks import GreedyRanks
from policies.pipeline.zero_bubble.zb_problem import Problem, those_found
from sim.words.errors import InfeasibleError

__all__ = ["greedy_v_programs"]


def greedy_v_programs(problem: Problem) -> Iterator[Programs]:
    """Return the best programs of a V for each setting of the switches that finds some.

    Raises
    ------
    InfeasibleError
        No setting finds an order within the memory limit.
    """
    return those_found(partial(_learn, problem, *switches) for switches in product((True, False), repeat=2))


def _learn(problem: Problem, before_forward: bool, before_leg_2: bool) -> Programs:
    """Search again with the slack that the last search left, as long as that shortens the bubble."""
    best = _Search(problem, before_forward, before_leg_2, [0] * problem.ranks).run()
    while True:
        try:
            again = _Search(problem, before_forward, before_leg_2, best.slack()).run()
        except InfeasibleError:
            break
        if again.longest_bubble >= best.longest_bubble:
            break
        best = again
    return best.programs()


class _Search(GreedyRanks):
    """One greedy run of the V."""

    def __init__(self, problem: Problem, before_forward: bool, before_leg_2: bool, slack: list[int]) -> None:
        super().__init__(problem)
        self.before_forward, self.before_leg_2 = before_forward, before_leg_2
        self.granted = slack
        self.next_leg = 0

    def slack(self) -> list[int]:
        """Return for each rank how much shorter its bubble was than the longest."""
        return [self.longest_bubble - own for own in self.bubble]

    def run(self) -> _Search:
        """Build the order, but for the W that are left at the end."""
        ranks = range(self.problem.ranks)
        self._warm_up()
        while any(self.count(3, rank) < self.problem.micro_batches for rank in ranks):
            before = sum(map(len, self.program))
            self._turn_of_gradients()
            for rank in ranks:
                leg = self._forward_leg(rank)
                if leg is not None:
                    self.make_room(rank)
                    self.fill(leg, rank, self._allowed_gap(rank) if self.before_forward else None)
                    self.run_leg(leg, rank)
            if sum(map(len, self.program)) == before:
                raise InfeasibleError(
                    f"the greedy search got stuck under memory_limit {self.problem.limit}; raise it"
                )
        return self

    def _warm_up(self) -> None:
        problem, last = self.problem, self.problem.ranks - 1
        for rank in range(problem.ranks):
            self.make_room(rank)
            self.run_leg(0, rank)
        for rank in range(last, -1, -1):
            while rank < last and self._one_more_fits(rank):
                for above in range(rank + 1):
                    self.run_leg(0, above)
            self.make_room(rank)
            self.run_leg(1, rank)
        for rank in range(1, problem.ranks):
            self._catch_up(rank)

    def _catch_up(self, rank: int) -> None:
        """Run leg 0 and leg 1 in turn on `rank` and all below, until it is not behind the rank above."""
        idle_passes = 0
        while self._is_behind(rank) and idle_passes < 2:
            idle_passes += 1
            for below in range(self.problem.ranks - 1, rank - 1, -1):
                leg, open_ = self.next_leg, self.count(self.next_leg, below) < self.problem.micro_batches
                if open_ and self.arrival(leg, below) is not None:
                    self.make_room(below)
                    self.run_leg(leg, below)
                    idle_passes = 0
            self.next_leg = 1 - self.next_leg

    def _one_more_fits(self, rank: int) -> bool:
        """Tell whether `rank` can run another leg 0 before micro-batch 0 comes back, and has the memory."""
        size = self.problem.memory_change(rank, "F")
        return (
            self.count(0, rank) < self.problem.micro_batches
            and self.memory[rank] + (2 + 2 * rank) * size <= self.problem.limit
            and self.clock[rank] + self.problem.duration(rank, "F") <= (self.arrival(1, rank) or 0)
        )

    def _is_behind(self, rank: int) -> bool:
        """Tell whether `rank` has run fewer forwards than the rank above it."""
        above = rank - 1
        own = self.count(0, rank) + self.count(1, rank)
        return own < self.count(0, above) + self.count(1, above) or (
            self.count(1, rank) <= self.count(1, above) < self.problem.micro_batches
        )

    def _turn_of_gradients(self) -> None:
        legs = [self._gradient_leg(rank) for rank in range(self.problem.ranks)]
        for rank in reversed(range(self.problem.ranks)):
            if legs[rank] == 3 and self.arrival(3, rank) is not None:
                self.fill(3, rank, self._allowed_gap(rank))
                self.run_leg(3, rank)
        for rank in range(self.problem.ranks):
            if legs[rank] == 2 and self.arrival(2, rank) is not None:
                self.fill(2, rank, self._allowed_gap(rank) if self.before_leg_2 else None)
                self.run_leg(2, rank)

    def _gradient_leg(self, rank: int) -> int | None:
        micro_batches = self.problem.micro_batches
        if self.count(3, rank) == micro_batches:
            return None
        if self.count(3, rank) < self.count(2, rank) and (
            self.arrival(3, rank) is not None or self.count(2, rank) == micro_batches
        ):
            return 3
        return 2

    def _forward_leg(self, rank: int) -> int | None:
        micro_batches = self.problem.micro_batches
        if self.count(1, rank) == micro_batches:
            return None
        if self.count(1, rank) < self.count(0, rank) and self.arrival(1, rank) is not None:
            return 1
        if self.count(0, rank) < micro_batches and self.arrival(0, rank) is not None:
            return 0
        return None

    def _allowed_gap(self, rank: int) -> int:
        return max(self.longest_bubble, self.granted[rank]) - self.bubble[rank]
