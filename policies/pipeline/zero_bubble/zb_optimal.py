"""The best order there is, for small sizes: the problem handed to CP-SAT (extra ``opt``).

Every action is an interval of fixed length with a free start; then

* the actions of a rank do not overlap;
* F, I and W wait for their inputs, with the transfer time between ranks;
* each rank starts with F of micro-batch 0, as early as it can: no order is better for waiting;
* what a rank holds never exceeds its limit: a micro-batch holds ``full`` from the start of F to the
  end of I, and ``for_weight_grad`` from there to the end of W;
* micro-batches are alike, so each phase of a stage takes them in order (no solution is lost).

The greedy order is the first hint, and the sum of a rank's actions a lower bound of its span, without
which the solver hardly ever proves anything.

Source: Qi et al., arXiv 2401.10241, section 3.2 and appendix (as an integer program).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from policies.cp_sat.activities import Activities
from policies.pipeline.orders.action import Action, Phase
from policies.pipeline.orders.pipeline_schedule import Programs, Schedule
from policies.pipeline.timing.evaluate import evaluate
from policies.pipeline.zero_bubble.zb_problem import Problem
from sim.words.errors import InfeasibleError
from sim.words.units import NS_PER_S, format_duration

__all__ = ["Optimum", "optimal_programs"]

_PHASES: tuple[Phase, ...] = ("F", "I", "W")


@dataclass(frozen=True, slots=True)
class Optimum:
    """What the solver found.

    Attributes
    ----------
    programs : tuple of tuple of Action
        One program a rank.
    objective : int
        The span or makespan of the order found.
    bound : int
        No order can be shorter than this.
    """

    programs: Programs
    objective: int
    bound: int

    @property
    def proven(self) -> bool:
        """Whether the order found is known to be the best."""
        return self.objective == self.bound


def optimal_programs(
    problem: Problem, hint: Schedule | None, *, time_limit_ns: int = 60 * NS_PER_S
) -> Optimum:
    """Search for the best order.

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
            f"no order fits: the memory limit {problem.limit} is too small; raise memory_limit"
        )
    if found.values is None:
        raise InfeasibleError(
            f"no order found in {format_duration(time_limit_ns)}; raise time_limit, or use solver: greedy"
        )
    by_rank: list[list[tuple[int, Action]]] = [[] for _ in range(problem.ranks)]
    for action, variable in start.items():
        by_rank[problem.placement[action.stage]].append((found.values(variable), action))
    programs = tuple(tuple(action for _, action in sorted(own)) for own in by_rank)
    return Optimum(programs, found.values(times.longest), found.bound_ns)


def _actions(problem: Problem) -> Iterator[Action]:
    for stage in range(problem.ranks * problem.chunks):
        for phase in _PHASES:
            for k in range(problem.micro_batches):
                yield Action(stage, phase, k)


def _first_starts(problem: Problem) -> list[int]:
    """Return when each rank runs its first action, which is F of micro-batch 0 in any order."""
    forwards = (problem.duration(rank, "F") + problem.transfer for rank in range(problem.ranks - 1))
    return list(accumulate(forwards, initial=0))


def _serial(problem: Problem) -> int:
    """Return a time within which everything can run one after the other."""
    work = sum(problem.duration(a.stage, a.phase) for a in _actions(problem))
    return work + 2 * problem.transfer * problem.micro_batches * problem.ranks * problem.chunks


def _wait_for_inputs(times: Activities, problem: Problem, start: dict[Action, Any]) -> None:
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


def _within_memory(times: Activities, problem: Problem, start: dict[Action, Any]) -> None:
    for (stage, phase, k), begin in start.items():
        if phase == "F":
            grad = start[Action(stage, "I", k)] + problem.duration(stage, "I")
            end = start[Action(stage, "W", k)] + problem.duration(stage, "W")
            memory, held = ("memory", problem.placement[stage]), problem.held[stage]
            times.hold(memory, begin, grad, held.full)
            times.hold(memory, grad, end, held.kept)
    for rank in range(problem.ranks):
        times.limit(("memory", rank), problem.limit)


def _ends(times: Activities, problem: Problem, start: dict[Action, Any], first: Sequence[int]) -> None:
    """Let the longest be what the objective says; the last micro-batch ends each phase."""
    for action, begin in start.items():
        if action.micro_batch == problem.micro_batches - 1:
            end = begin + problem.duration(action.stage, action.phase)
            span = problem.objective == "span"
            times.after(times.longest, end - first[problem.placement[action.stage]] if span else end)
