"""What both greedy searches for zero bubble keep of their ranks: clocks, memory, bubbles, waiting W.

A micro-batch travels over the ranks in legs, down on the even ones and up on the odd:

    straight   leg 0   F                        rank 0 → p-1     down
               leg 1   I                        rank p-1 → 0     up

    V          leg 0   F of the first chunk     rank 0 → p-1     down
               leg 1   F of the second chunk    rank p-1 → 0     up
               leg 2   I of the second chunk    rank 0 → p-1     down
               leg 3   I of the first chunk     rank p-1 → 0     up
"""

from __future__ import annotations

from collections import deque

from policies.pipeline.orders.action import Action
from policies.pipeline.orders.pipeline_schedule import Programs
from policies.pipeline.zero_bubble.zb_problem import Problem
from sim.words.errors import InfeasibleError

__all__ = ["GreedyRanks", "action_of_leg", "input_of_leg"]


def input_of_leg(leg: int, rank: int, ranks: int) -> tuple[int, int] | None:
    """Return the (leg, rank) that makes the input of a leg on a rank; None where the pipeline begins.

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
    """Return what a micro-batch does on a rank, on one of its `legs` legs.

    Examples
    --------
    >>> [str(action_of_leg(leg, 1, 4, 4, 0)) for leg in range(4)]
    ['1F0', '6F0', '6I0', '1I0']
    """
    stage = rank if leg in (0, legs - 1) else 2 * ranks - 1 - rank
    return Action(stage, "F" if 2 * leg < legs else "I", micro_batch)


class GreedyRanks:
    """The programs so far, and where each rank stands.

    Attributes
    ----------
    ends : list of list of list of int
        By leg and rank: when each micro-batch was done.
    program : list of list of Action
        One a rank.
    pending : list of deque of Action
        W of what had its I, the oldest first.
    clock, memory, bubble : list of int
        Of each rank: when it is free, what it holds, and how long it has waited since it began.
    longest_bubble : int
        The largest of `bubble` so far.
    """

    def __init__(self, problem: Problem) -> None:
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
        """Run the W that are left; return the program of each rank."""
        for rank in range(self.problem.ranks):
            while self.pending[rank]:
                self.run_weight_grad(rank)
        return tuple(map(tuple, self.program))

    def count(self, leg: int, rank: int) -> int:
        """Return how many micro-batches have done a leg on a rank."""
        return len(self.ends[leg][rank])

    def arrival(self, leg: int, rank: int) -> int | None:
        """Return when the input of the next action of `leg` on `rank` arrives, None if it is not made."""
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
        """Run `action`, whose input arrives then."""
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
            It does not fit, with all W done.
        """
        size = self.problem.memory_change(rank, "F")
        while self.memory[rank] + size > self.problem.limit:
            if not self.pending[rank]:
                raise InfeasibleError(
                    f"no order fits: rank {rank} may hold {self.problem.limit} of activations and would need "
                    f"{self.memory[rank] + size} for its next micro-batch; raise memory_limit"
                )
            self.run_weight_grad(rank)

    def fill(self, leg: int, rank: int, allowed: int | None) -> None:
        """Run every W that is over before the input of `leg` arrives.

        If the gap that is left is longer than `allowed`, run one W more; None allows any gap.
        """
        arrival = self.arrival(leg, rank) or 0
        pending, duration = self.pending[rank], self.problem.duration
        while pending and self.clock[rank] + duration(pending[0].stage, "W") <= arrival:
            self.run_weight_grad(rank)
        if pending and allowed is not None and arrival - self.clock[rank] > allowed:
            self.run_weight_grad(rank)
