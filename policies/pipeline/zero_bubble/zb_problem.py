"""The problem of the zero-bubble authors: in which order, given times and a memory limit?

Given F, I, W of each stage, the transfer time c and how much activation memory a rank may hold, find
the order of all actions with the least time. The greedy searches (`policies.pipeline.zero_bubble.zb_greedy`
for a straight pipeline, `policies.pipeline.zero_bubble.zb_greedy_v` for a V) and the exact solver
(`policies.pipeline.zero_bubble.zb_optimal`) take the same `Problem`, and `cost` judges them all.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from policies.pipeline.orders.pipeline_schedule import Placement, Programs, Schedule, loop, vee
from policies.pipeline.timing.activations import StageActivations
from policies.pipeline.timing.evaluate import StageTimes, evaluate
from sim.words.errors import InfeasibleError

__all__ = ["Objective", "Problem", "cost", "those_found"]

Objective = Literal["span", "makespan"]
"""``span``: the longest a rank takes from its first start to its last end; ``makespan``: first to last."""


@dataclass(frozen=True)
class Problem:
    """What an order has to respect, and what it is judged by.

    Attributes
    ----------
    ranks, chunks, micro_batches : int
        Sizes; 1 chunk is a straight pipeline, 2 chunks are a V.
    times : tuple of StageTimes
        F, I and W of each stage.
    transfer : int
        Time between two ranks.
    held : tuple of StageActivations
        What one micro-batch holds on each stage.
    limit : int
        The most a rank may hold, in the unit of `held`.
    objective : {"span", "makespan"}
        What to make small.
    durations, memory_changes : dict of str to list of int
        By phase, then stage: the same numbers, where the searches look them up.
    """

    ranks: int
    chunks: int
    micro_batches: int
    times: tuple[StageTimes, ...]
    transfer: int
    held: tuple[StageActivations, ...]
    limit: int
    objective: Objective = "span"

    @property
    def placement(self) -> Placement:
        """Stage → rank."""
        return vee(self.ranks) if self.chunks == 2 else loop(self.ranks)

    @cached_property
    def durations(self) -> dict[str, list[int]]:
        return {phase: [each.of(phase) for each in self.times] for phase in "FIW"}

    @cached_property
    def memory_changes(self) -> dict[str, list[int]]:
        return {
            "F": [each.full for each in self.held],
            "I": [each.kept - each.full for each in self.held],
            "W": [-each.kept for each in self.held],
        }

    def duration(self, stage: int, phase: str) -> int:
        """Return the time of one action."""
        return self.durations[phase][stage]

    def memory_change(self, stage: int, phase: str) -> int:
        """Return what one action adds to (or, negative, takes from) the memory in use."""
        return self.memory_changes[phase][stage]


def cost(problem: Problem, schedule: Schedule) -> int:
    """Return what the objective says of an order, by the longest-path evaluation."""
    run = evaluate(schedule, problem.times, transfer=problem.transfer)
    return max(run.spans) if problem.objective == "span" else run.makespan


def those_found(searches: Iterable[Callable[[], Programs]]) -> Iterator[Programs]:
    """Yield what each search finds; those that find no order within the memory limit are passed over.

    Raises
    ------
    InfeasibleError
        None of them finds any.
    """
    failure: InfeasibleError | None = None
    found = 0
    for search in searches:
        try:
            programs = search()
        except InfeasibleError as error:
            failure = error
        else:
            found += 1
            yield programs
    if failure is not None and not found:
        raise failure
