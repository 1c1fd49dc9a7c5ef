"""The best order there is, for small sizes: the problem handed to CP-SAT (extra ``opt``).

Every action is an interval of fixed length with a free start; then

* the actions of a rank do not overlap;
* F, I and W wait for their inputs, with the transfer time between ranks;
* each rank starts with F of micro-batch 0, as early as it can: no order is better for waiting;
* what a rank holds never exceeds its limit: a micro-batch holds ``full`` from the start of F to the
  end of I, and ``kept_for_weight_grad`` from there to the end of W;
* micro-batches are alike, so each phase of a stage takes them in order (no solution is lost).

The greedy order is the first hint, and the sum of a rank's actions a lower bound of its span, without
which the solver hardly ever proves anything.

Source: Qi et al., arXiv 2401.10241, section 3.2 and appendix (as an integer program).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, product, starmap
from typing import Any, Literal

from policies.cp_sat import Activities
from policies.pipeline.evaluate import StageActivations, StageTimes, evaluate
from policies.pipeline.pipeline_schedule import Action, Phase, Placement, Programs, Schedule, loop, vee
from sim.base.errors import InfeasibleError
from sim.base.units import NS_PER_S, format_duration

# ----------------------------------------------------------------------------------------------------------
# The problem of the zero-bubble authors: in which order, given times and a memory limit?
#
# Given F, I, W of each stage, the transfer time c and how much activation memory a rank may hold, find
# the order of all actions with the least time. The greedy searches (`policies.pipeline.zb_greedy`)
# and the exact solver take the same `ZeroBubbleProblem`, and `cost` judges them all.
#
# Source: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 3.

Objective = Literal["span", "makespan"]
"""``span``: the longest a rank takes from its first start to its last end; ``makespan``: first to last."""


@dataclass(frozen=True)
class ZeroBubbleProblem:
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


def cost(problem: ZeroBubbleProblem, schedule: Schedule) -> int:
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


# ----------------------------------------------------------------------------------------------------------

_PHASES: tuple[Phase, ...] = ("F", "I", "W")


def optimal_programs(
    problem: ZeroBubbleProblem, hint: Schedule | None, *, time_limit_ns: int = 60 * NS_PER_S
) -> tuple[Programs, int, int]:
    """Search for the best order; return it, its span or makespan, and a bound below which none can be.

    Parameters
    ----------
    problem : Problem
        Sizes, times and limits.
    hint : Schedule, optional
        A good order to start from.
    time_limit_ns : int
        When to stop, in ns, and return the best so far.

    Raises
    ------
    MissingExtraError
        ortools is not installed.
    InfeasibleError
        No order fits the memory limit, or none was found in time.
    """
    run = evaluate(hint, problem.times, transfer=problem.transfer) if hint is not None else None
    first = _first_starts(problem)
    times = Activities(
        "the optimal order of zb-auto", first[-1] + max(run.spans) if run is not None else _serial(problem)
    )
    start = {a: times.time(str(a)) for a in _actions(problem)}
    _wait_for_inputs(times, problem, start)
    for action, begin in start.items():
        ns = problem.duration(action.stage, action.phase)
        times.occupy(problem.placement[action.stage], begin, ns)
    for rank, at in enumerate(first):
        times.limit(rank, 1)
        times.last(at, 0, start[Action(rank, "F", 0)])
    _within_memory(times, problem, start)
    _ends(times, problem, start, first)
    if hint is not None and run is not None:
        for rank, program in enumerate(hint.programs):
            for slot, begins in zip(program, run.starts[rank], strict=True):
                times.suppose(start[slot.parts[0]], begins)
    found = times.solve(time_limit_ns)
    if found.values is None and found.finished:
        raise InfeasibleError(
            f"no order fits: the memory limit {problem.limit} is too small; raise in_flight or limit"
        )
    if found.values is None:
        raise InfeasibleError(
            f"no order found in {format_duration(time_limit_ns)}; raise time_limit, or use solver: greedy"
        )
    by_rank: list[list[tuple[int, Action]]] = [[] for _ in range(problem.ranks)]
    for action, variable in start.items():
        by_rank[problem.placement[action.stage]].append((found.values(variable), action))
    programs = tuple(tuple(action for _, action in sorted(own)) for own in by_rank)
    return programs, found.values(times.longest), found.bound_ns


def _actions(problem: ZeroBubbleProblem) -> Iterator[Action]:
    stages, ks = range(problem.ranks * problem.chunks), range(problem.micro_batches)
    return starmap(Action, product(stages, _PHASES, ks))


def _first_starts(problem: ZeroBubbleProblem) -> list[int]:
    """Return when each rank runs its first action, which is F of micro-batch 0 in any order."""
    forwards = (problem.duration(rank, "F") + problem.transfer for rank in range(problem.ranks - 1))
    return list(accumulate(forwards, initial=0))


def _serial(problem: ZeroBubbleProblem) -> int:
    """Return a time within which everything can run one after the other."""
    work = sum(problem.duration(a.stage, a.phase) for a in _actions(problem))
    return work + 2 * problem.transfer * problem.micro_batches * problem.ranks * problem.chunks


def _wait_for_inputs(times: Activities, problem: ZeroBubbleProblem, start: dict[Action, Any]) -> None:
    last = problem.ranks * problem.chunks - 1
    for action, begin in start.items():
        stage, phase, k = action
        inputs: list[Action] = [Action(stage, phase, k - 1)] if k else []
        if phase == "F" and stage:
            inputs.append(Action(stage - 1, "F", k))
        elif phase == "I":
            inputs.append(Action(stage + 1, "I", k) if stage < last else Action(stage, "F", k))
        elif phase == "W":
            inputs.append(Action(stage, "I", k))
        for need in inputs:
            moved = problem.placement[need.stage] != problem.placement[stage]
            lag = problem.duration(need.stage, need.phase) + (problem.transfer if moved else 0)
            times.after(begin, start[need] + lag)


def _within_memory(times: Activities, problem: ZeroBubbleProblem, start: dict[Action, Any]) -> None:
    for (stage, phase, k), begin in start.items():
        if phase == "F":
            grad = start[Action(stage, "I", k)] + problem.duration(stage, "I")
            end = start[Action(stage, "W", k)] + problem.duration(stage, "W")
            memory, held = ("memory", problem.placement[stage]), problem.held[stage]
            times.hold(memory, begin, grad, held.full)
            times.hold(memory, grad, end, held.kept)
    for rank in range(problem.ranks):
        times.limit(("memory", rank), problem.limit)


def _ends(
    times: Activities, problem: ZeroBubbleProblem, start: dict[Action, Any], first: Sequence[int]
) -> None:
    """Let the longest be what the objective says; the last micro-batch ends each phase."""
    for action, begin in start.items():
        if action.micro_batch == problem.micro_batches - 1:
            end = begin + problem.duration(action.stage, action.phase)
            span = problem.objective == "span"
            times.after(times.longest, end - first[problem.placement[action.stage]] if span else end)
