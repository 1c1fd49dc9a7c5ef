"""What both greedy searches for zero bubble keep of their ranks: clocks, memory, bubbles, waiting W."""

from __future__ import annotations

from collections import deque

from policies.pipeline.orders.action import Action
from policies.pipeline.zero_bubble.zb_problem import Problem
from sim.words.errors import InfeasibleError

__all__ = ["GreedyRanks"]


class GreedyRanks:
    """The programs so far, and where each rank stands.

    Attributes
    ----------
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

    def fill(self, rank: int, arrival: int) -> int:
        """Run every W that is over before `arrival`; return the gap that is left."""
        while self.pending[rank]:
            oldest = self.pending[rank][0]
            if self.clock[rank] + self.problem.duration(oldest.stage, "W") > arrival:
                break
            self.run_weight_grad(rank)
        return arrival - self.clock[rank]
