"""Optimal orders for small sizes, by CP-SAT (extra ``opt``).

Every action is an interval of fixed length with a free start, such that

* the actions of a rank do not overlap;
* F, I and W wait for their inputs, with the transfer time between ranks;
* each rank starts with F of micro-batch 0 as early as it can, since waiting never helps;
* a rank's memory never exceeds its limit (a reservoir: F takes ``full`` at its start; at their ends I
  returns all but ``kept_for_weight_grad``, and W returns that);
* each phase of a stage takes the micro-batches in order, which loses no solution because they are alike.

The greedy order is the first hint. The sum of a rank's actions is a lower bound of its span, without
which the solver rarely proves anything.

Source: Qi et al., arXiv 2401.10241, section 3.2 and appendix (as an integer program).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, product, starmap
from typing import Literal

from policies.cp_sat import least
from policies.pipeline.evaluate import StageActivations, StageTimes, evaluate
from policies.pipeline.pipeline_schedule import Action, Phase, Placement, Programs, Schedule, loop, vee
from policies.schedule_problem import LONGEST, ScheduleProblem, Time
from sim.base.errors import InfeasibleError
from sim.base.units import NS_PER_S, format_duration

# ----------------------------------------------------------------------------------------------------------
# The zero-bubble authors' problem: the best order for given times and a memory limit.
#
# Given F, I, W of each stage, the transfer time c and a rank's limit of activation memory, find the order
# of all actions with the least time. The greedy searches (`policies.pipeline.zb_greedy`) and the exact
# solver take the same `ZeroBubbleProblem`, and `cost` evaluates them all.
#
# Source: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 3.

Objective = Literal["span", "makespan"]
"""``span``: the longest time of a rank from its first start to its last end; ``makespan``: of all ranks."""


@dataclass(frozen=True)
class ZeroBubbleProblem:
    """The constraints and the objective of an order.

    Attributes
    ----------
    ranks, chunks, micro_batches : int
        Sizes; 1 chunk is a straight pipeline, 2 chunks are a V.
    times : tuple of StageTimes
        F, I and W of each stage.
    transfer : int
        Time between two ranks.
    held : tuple of StageActivations
        Activation memory of one micro-batch on each stage.
    limit : int
        The most a rank may hold, in the unit of `held`.
    objective : {"span", "makespan"}
        Quantity to minimise.
    durations, memory_changes : dict of str to list of int
        The same numbers by phase, then stage, for fast look-up.
    """

    ranks: int
    chunks: int
    micro_batches: int
    times: tuple[StageTimes, ...]
    transfer: int
    held: tuple[StageActivations, ...]
    limit: int
    objective: Objective = "span"

    @cached_property
    def placement(self) -> Placement:
        """Stage → rank."""
        return vee(self.ranks) if self.chunks == 2 else loop(self.ranks)

    @cached_property
    def durations(self) -> dict[str, list[int]]:
        return {phase: [stage.of(phase) for stage in self.times] for phase in "FIW"}

    @cached_property
    def memory_changes(self) -> dict[str, list[int]]:
        return {
            "F": [stage.full for stage in self.held],
            "I": [stage.kept - stage.full for stage in self.held],
            "W": [-stage.kept for stage in self.held],
        }

    def duration(self, stage: int, phase: str) -> int:
        """Return the time of one action."""
        return self.durations[phase][stage]

    def memory_change(self, stage: int, phase: str) -> int:
        """Return the change of memory in use by one action; negative if it frees memory."""
        return self.memory_changes[phase][stage]


def cost(problem: ZeroBubbleProblem, schedule: Schedule) -> int:
    """Return the objective's value for an order, by the longest-path evaluation."""
    run = evaluate(schedule, problem.times, transfer=problem.transfer)
    return max(run.spans) if problem.objective == "span" else run.makespan


_PHASES: tuple[Phase, ...] = ("F", "I", "W")


def all_actions(problem: ZeroBubbleProblem) -> Iterator[Action]:
    """Yield every action: by stage, then phase, then micro-batch."""
    stages, ks = range(problem.ranks * problem.chunks), range(problem.micro_batches)
    return starmap(Action, product(stages, _PHASES, ks))


def first_starts(problem: ZeroBubbleProblem) -> list[int]:
    """Return the start of each rank's first action, which in any order is F of micro-batch 0."""
    forwards = (problem.duration(rank, "F") + problem.transfer for rank in range(problem.ranks - 1))
    return list(accumulate(forwards, initial=0))


def input_of(problem: ZeroBubbleProblem, action: Action) -> Action | None:
    """Return the input of an action; None for F of the first stage."""
    stage, phase, k = action
    if phase == "F":
        return Action(stage - 1, "F", k) if stage else None
    if phase == "W":
        return Action(stage, "I", k)
    return Action(stage + 1, "I", k) if stage + 1 < len(problem.times) else Action(stage, "F", k)


def lag_of(problem: ZeroBubbleProblem, action: Action) -> int:
    """Return the transfer time of an action's input."""
    need, rank_of = input_of(problem, action), problem.placement
    return problem.transfer if need is not None and rank_of[need.stage] != rank_of[action.stage] else 0


def least_cost(problem: ZeroBubbleProblem) -> int:
    """Return a lower bound: the work of a rank, or the round trip of a micro-batch."""
    first, ends, stages = first_starts(problem), dict[Action, int](), range(len(problem.times))
    work = list(first)
    phases: tuple[tuple[Phase, Sequence[int]], ...] = (("F", stages), ("I", stages[::-1]), ("W", stages))
    for action in (Action(stage, phase, 0) for phase, order in phases for stage in order):
        need, ns = input_of(problem, action), problem.duration(action.stage, action.phase)
        ends[action] = ns + (0 if need is None else ends[need] + lag_of(problem, action))
        work[problem.placement[action.stage]] += problem.micro_batches * ns
    rank_ends = [(problem.placement[action.stage], end) for action, end in ends.items()]
    return max(
        end - (first[r] if problem.objective == "span" else 0) for r, end in (*rank_ends, *enumerate(work))
    )


# ----------------------------------------------------------------------------------------------------------


def optimal_programs(
    problem: ZeroBubbleProblem, hint: Schedule | None, *, time_limit_ns: int = 60 * NS_PER_S
) -> tuple[Programs, int, int]:
    """Return the best order found, its span or makespan, and a lower bound.

    Parameters
    ----------
    problem : ZeroBubbleProblem
        Sizes, times and limits.
    hint : Schedule, optional
        A good order to start from.
    time_limit_ns : int
        Time in ns after which to stop and return the best so far.

    Raises
    ------
    MissingExtraError
        If ortools is not installed.
    InfeasibleError
        If no order fits the memory limit, or none was found in time.
    """
    if min(map(min, problem.durations.values())) == 0:  # actions of zero duration may also come first
        n = 1 + len(list(all_actions(problem)))
        longer = (StageTimes(*(max(1, n * t.of(phase)) for phase in "FBIW")) for t in problem.times)
        scaled = replace(problem, times=tuple(longer), transfer=n * problem.transfer)
        programs, value, bound = optimal_programs(scaled, hint, time_limit_ns=time_limit_ns)
        return programs, value // n, bound // n
    horizon = 2 * problem.transfer * problem.micro_batches * problem.ranks * problem.chunks
    horizon += sum(problem.duration(a.stage, a.phase) for a in all_actions(problem))  # one after another
    run = evaluate(hint, problem.times, transfer=problem.transfer) if hint is not None else None
    if run is not None:
        horizon = first_starts(problem)[-1] + max(run.spans)
    times = ScheduleProblem("the optimal order of zb-auto", horizon)
    start = _constrain(times, problem)
    if hint is not None and run is not None:
        times.suppose(LONGEST, cost(problem, hint))
        for rank, program in enumerate(hint.programs):
            for slot, begins in zip(program, run.starts[rank], strict=True):
                times.suppose(start[slot.parts[0]], begins)
    solved = least(times, time_limit_ns)
    if solved.values is None and hint is not None:
        return hint.programs, cost(problem, hint), solved.bound_ns
    if solved.values is None and solved.finished:
        raise InfeasibleError(
            f"no order fits: the memory limit {problem.limit} is too small; raise in_flight or limit"
        )
    if solved.values is None:
        raise InfeasibleError(
            f"no order found in {format_duration(time_limit_ns)}; raise time_limit, or use solver: greedy"
        )
    by_rank: list[list[tuple[int, Action]]] = [[] for _ in range(problem.ranks)]
    for action, variable in start.items():
        by_rank[problem.placement[action.stage]].append((solved.values(variable), action))
    programs = tuple(tuple(action for _, action in sorted(starts)) for starts in by_rank)
    return programs, solved.values(LONGEST), solved.bound_ns


def _constrain(times: ScheduleProblem, problem: ZeroBubbleProblem) -> dict[Action, Time]:
    """State the constraints, and the longest time by the objective; return the start of each action."""
    first, rank_of = first_starts(problem), problem.placement
    start = {a: times.time(str(a)) for a in all_actions(problem)}
    end = {a: begin + problem.duration(a.stage, a.phase) for a, begin in start.items()}
    for action, begin in start.items():
        stage, phase, k = action
        times.occupy(rank_of[stage], begin, problem.duration(stage, phase))
        time = begin if phase == "F" else end[action]
        times.change(("memory", rank_of[stage]), time, problem.memory_change(stage, phase))
        if (need := input_of(problem, action)) is not None:
            times.after(begin, end[need] + lag_of(problem, action))
        if k:
            times.after(begin, end[action._replace(micro_batch=k - 1)])
    for action, stop in end.items():
        if action.micro_batch == problem.micro_batches - 1:  # the last one ends each phase
            times.after(LONGEST, stop - (first[rank_of[action.stage]] if problem.objective == "span" else 0))
    for rank, earliest in enumerate(first):
        times.capacity[rank] = 1
        times.last(earliest, 0, start[Action(rank, "F", 0)])
    times.capacity |= {("memory", rank): problem.limit for rank in range(problem.ranks)}
    return start
