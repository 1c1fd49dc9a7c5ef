"""Greedy search for a good order under a memory limit (the heuristic behind ZB-1p and ZB-2p).

The order is built in simulated time, with one F and one I per rank and turn:

1. Warm-up. Every rank runs F of micro-batch 0. Then, from the last rank to the first, each adds
   forwards while memory lasts and the first gradient has not arrived. The switch
   ``delay_first_gradient`` decides whether the last may still be running when the gradient arrives.
2. Turns. In each, first the ranks run one F, then, from the last to the first, one I. A W fills the
   time until the input arrives if it fits completely. If it does not, it runs only if the gap would
   give this rank the longest bubble of all; for smaller gaps the switch ``fill_small_gaps`` decides.
   A W also runs when memory is short.
   A rank at least two forwards ahead of the next one may skip its F, if that is cheaper than
   making a gradient wait: switch ``skip_forwards``.
3. The remaining W.

::

    rank 0  F F F F I . W F I W ...        warm-up until the gradient of micro-batch 0 arrives
    rank 1    F F I F I W F I W ...        then F, I and W as above

All eight settings of the three switches are tried and the cheapest order is taken.

Source: Qi et al., arXiv 2401.10241, section 3.1 (the rules, in words).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import product

from policies.pipeline.pipeline_schedule import Action, Programs
from policies.pipeline.zb_optimal import ZeroBubbleProblem
from sim.base.errors import InfeasibleError

# ----------------------------------------------------------------------------------------------------------
# State of the ranks in both greedy zero-bubble searches: clocks, memory, bubbles, pending W.
#
# A micro-batch travels over the ranks in legs, down on the even ones and up on the odd:
#
#     straight   leg 0   F                        rank 0 → p-1     down
#                leg 1   I                        rank p-1 → 0     up
#
#     V          leg 0   F of the first chunk     rank 0 → p-1     down
#                leg 1   F of the second chunk    rank p-1 → 0     up
#                leg 2   I of the second chunk    rank 0 → p-1     down
#                leg 3   I of the first chunk     rank p-1 → 0     up


def input_of_leg(leg: int, rank: int, ranks: int) -> tuple[int, int] | None:
    """Return the (leg, rank) that computes the input of a leg on a rank; None at the pipeline's start.

    Examples
    --------
    >>> input_of_leg(1, 0, 4), input_of_leg(1, 3, 4), input_of_leg(0, 0, 4)
    ((1, 1), (0, 3), None)
    """
    source = rank + 1 if leg % 2 else rank - 1
    if 0 <= source < ranks:
        return leg, source
    return (leg - 1, rank) if leg else None


def action_of_leg(leg: int, rank: int, ranks: int, legs: int, micro_batch: int) -> Action:
    """Return the action of a micro-batch on a rank, for one of its `legs` legs.

    Examples
    --------
    >>> [str(action_of_leg(leg, 1, 4, 4, 0)) for leg in range(4)]
    ['1F0', '6F0', '6I0', '1I0']
    """
    stage = rank if leg in (0, legs - 1) else 2 * ranks - 1 - rank
    return Action(stage, "F" if 2 * leg < legs else "I", micro_batch)


class GreedyRanks:
    """The programs so far, and the state of each rank.

    Attributes
    ----------
    ends : list of list of list of int
        End of each micro-batch, by leg and rank.
    program : list of list of Action
        One per rank.
    pending : list of deque of Action
        Pending W, whose I has run, oldest first.
    clock, memory, bubble : list of int
        Per rank: time at which it is free, memory in use, and time waited since its start.
    longest_bubble : int
        The largest of `bubble` so far.
    """

    def __init__(self, problem: ZeroBubbleProblem) -> None:
        self.problem = problem
        ranks = problem.ranks
        self.program: list[list[Action]] = [[] for _ in range(ranks)]
        self.pending: list[deque[Action]] = [deque() for _ in range(ranks)]
        self.clock = [0] * ranks
        self.memory = [0] * ranks
        self.bubble = [0] * ranks
        self.longest_bubble = 0
        self.ends: list[list[list[int]]] = [[[] for _ in range(ranks)] for _ in range(2 * problem.chunks)]

    def programs(self) -> Programs:
        """Run the remaining W and return the program of each rank."""
        for rank in range(self.problem.ranks):
            while self.pending[rank]:
                self.run_weight_grad(rank)
        return tuple(map(tuple, self.program))

    def count(self, leg: int, rank: int) -> int:
        """Return the number of micro-batches that have done a leg on a rank."""
        return len(self.ends[leg][rank])

    def arrival(self, leg: int, rank: int) -> int | None:
        """Return when the input of the next action of `leg` on `rank` arrives; None: not computed yet."""
        made_by = input_of_leg(leg, rank, self.problem.ranks)
        if made_by is None:
            return 0
        before, source = made_by
        number, ends = self.count(leg, rank), self.ends[before][source]
        if number >= len(ends):
            return None
        return 0 if source == rank else ends[number] + self.problem.transfer

    def run_leg(self, leg: int, rank: int) -> None:
        """Run the next action of `leg` on `rank`."""
        number = self.count(leg, rank)
        action = action_of_leg(leg, rank, self.problem.ranks, len(self.ends), number)
        self.append(rank, action, self.arrival(leg, rank) or 0)
        self.ends[leg][rank].append(self.clock[rank])

    def append(self, rank: int, action: Action, arrival: int) -> None:
        """Run `action`, whose input arrives at `arrival`."""
        start = max(self.clock[rank], arrival)
        if self.program[rank]:
            self.bubble[rank] += start - self.clock[rank]
            self.longest_bubble = max(self.longest_bubble, self.bubble[rank])
        self.clock[rank] = start + self.problem.duration(action.stage, action.phase)
        self.memory[rank] += self.problem.memory_change(action.stage, action.phase)
        self.program[rank].append(action)
        if action.phase == "I":
            self.pending[rank].append(action._replace(phase="W"))

    def run_weight_grad(self, rank: int) -> None:
        """Run the oldest W."""
        self.append(rank, self.pending[rank].popleft(), 0)

    def make_room(self, rank: int) -> None:
        """Run W until the next forward's activation fits.

        Raises
        ------
        InfeasibleError
            If it does not fit even with all W done.
        """
        size = self.problem.memory_change(rank, "F")
        while self.memory[rank] + size > self.problem.limit:
            if not self.pending[rank]:
                raise InfeasibleError(
                    f"no order fits: rank {rank} may hold {self.problem.limit} of activations and would need "
                    f"{self.memory[rank] + size} for its next micro-batch; raise in_flight or limit"
                )
            self.run_weight_grad(rank)

    def fill(self, leg: int, rank: int, allowed: int | None) -> None:
        """Run every W that ends before the input of `leg` arrives.

        If the remaining gap is longer than `allowed`, run one more W; None allows any gap.
        """
        arrival = self.arrival(leg, rank) or 0
        pending, duration = self.pending[rank], self.problem.duration
        while pending and self.clock[rank] + duration(pending[0].stage, "W") <= arrival:
            self.run_weight_grad(rank)
        if pending and allowed is not None and arrival - self.clock[rank] > allowed:
            self.run_weight_grad(rank)


# ----------------------------------------------------------------------------------------------------------

_F, _I = 0, 1
"""The legs of a straight pipeline."""


def greedy_searches(problem: ZeroBubbleProblem) -> list[Callable[[], Programs]]:
    """Return a search for each setting of the switches: it raises if no order keeps to the memory limit."""
    if problem.chunks == 1:
        return [_Search(problem, *setting).run for setting in product((False, True), repeat=3)]
    return [partial(_learn, problem, *setting) for setting in product((True, False), repeat=2)]


class _Search(GreedyRanks):
    """One greedy run; everything is indexed by rank, which is also the stage."""

    def __init__(
        self,
        problem: ZeroBubbleProblem,
        delay_first_gradient: bool,
        skip_forwards: bool,
        fill_small_gaps: bool,
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
        """Return the number of forwards that each rank can run before the first gradient arrives."""
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
            # Each rank stays behind the previous one, unless that one runs all its forwards.
            before = extra[rank - 1]
            at_most = before if 1 + before == problem.micro_batches else max(0, before - 1)
            extra[rank] = min(extra[rank], at_most)
        return extra

    def _ranks_that_forward(self) -> list[bool]:
        """Return, for each rank, whether it runs a forward in this turn."""
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


# ----------------------------------------------------------------------------------------------------------
# Greedy search for a good order of a V under a memory limit (the heuristic behind ZB-V).
#
# A micro-batch travels four legs over the ranks of a V, and each rank works on all four:
#
#     leg 0   F of the first chunk     rank 0 → p-1     down
#     leg 1   F of the second chunk    rank p-1 → 0     up
#     leg 2   I of the second chunk    rank 0 → p-1     down
#     leg 3   I of the first chunk     rank p-1 → 0     up
#
# The order is built in simulated time:
#
# 1. Warm-up. Micro-batch 0 goes down; on its way up, each rank (with the ranks above it) adds leg 0
#    while memory lasts and micro-batch 0 has not come back. Then, alternating leg 0 and leg 1, each
#    rank catches up with the one above it.
# 2. Turns. In each, every rank runs one I (leg 3 if its gradient has arrived, else leg 2), then one F
#    (leg 1 if its input has arrived, else leg 0), if it has one to run. A W fills the time until the
#    input arrives if it fits completely; otherwise it runs only if the gap would give this rank the
#    longest bubble. The switches ``fill_before_forward`` and ``fill_before_leg_2`` turn the second
#    rule off there.
# 3. The remaining W.
#
# A run shows the bubble of each rank. Since one rank's bubble is longest anyway, the others need not
# fill gaps up to that length: the search repeats with this knowledge while the longest bubble shrinks.
#
# Source: Qi et al., arXiv 2401.10241, section 6 and appendix (the rules, in words).


def _learn(problem: ZeroBubbleProblem, before_forward: bool, before_leg_2: bool) -> Programs:
    """Repeat the search with the slack that the last one left, while that shortens the bubble."""
    best = _VSearch(problem, before_forward, before_leg_2, [0] * problem.ranks).run()
    while True:
        try:
            slack = [best.longest_bubble - bubble for bubble in best.bubble]
            again = _VSearch(problem, before_forward, before_leg_2, slack).run()
        except InfeasibleError:
            break
        if again.longest_bubble >= best.longest_bubble:
            break
        best = again
    return best.programs()


class _VSearch(GreedyRanks):
    """One greedy run of the V."""

    def __init__(
        self, problem: ZeroBubbleProblem, before_forward: bool, before_leg_2: bool, slack: list[int]
    ) -> None:
        super().__init__(problem)
        self.before_forward, self.before_leg_2 = before_forward, before_leg_2
        self.granted = slack
        self.next_leg = 0

    def run(self) -> _VSearch:
        """Build the order, except the remaining W at the end."""
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
                    f"the greedy search is stuck within {self.problem.limit}; raise in_flight or limit"
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
        """Alternate leg 0 and leg 1 on `rank` and all below, until it is not behind the rank above."""
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
        """Return whether `rank` has time and memory for another leg 0 before micro-batch 0 comes back."""
        size = self.problem.memory_change(rank, "F")
        return (
            self.count(0, rank) < self.problem.micro_batches
            and self.memory[rank] + (2 + 2 * rank) * size <= self.problem.limit
            and self.clock[rank] + self.problem.duration(rank, "F") <= (self.arrival(1, rank) or 0)
        )

    def _is_behind(self, rank: int) -> bool:
        """Return whether `rank` has run fewer forwards than the rank above it."""
        above = rank - 1
        forwards = self.count(0, rank) + self.count(1, rank)
        return forwards < self.count(0, above) + self.count(1, above) or (
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
