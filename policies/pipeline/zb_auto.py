"""Search for an order given F, I, W, transfer times and a memory limit (``zb-auto``).

The handwritten schedules assume F = I = W and free transfers. Real stages differ, and then a search
finds better orders: ZB-1p (memory limit p, that of 1F1B), ZB-2p (limit 2p), and with ``chunks=2``
ZB-V (a V, limit 2p half-size stages, that of 1F1B).

``zb-auto`` with 3 ranks, 4 micro-batches, F=3, I=2, W=1, memory limit 4:

    rank 0  F0 -- -- F1 -- -- F2 -- -- F3 -- -- .  I0 -- W0 .  .  I1 -- W1 .  .  I2 -- W2 .  .  I3 -- W3
    rank 1  .  .  .  F0 -- -- F1 -- -- .  .  I0 -- F2 -- -- I1 -- F3 -- -- I2 -- W0 W1 W2 I3 -- W3 .  .
    rank 2  .  .  .  .  .  .  F0 -- -- I0 -- F1 -- -- I1 -- F2 -- -- I2 -- F3 -- -- I3 -- W0 W1 W2 W3 .

``solver="greedy"`` searches as the authors do (`policies.pipeline.zb_greedy`);
from the published times it reproduces their published bubble rates.
``solver="best"`` also considers the published fixed orders of the same shape (ZB-H1, ZB-H2; ZB-V, V-Half,
V-Min) that fit the limit: for some times, especially uneven ones, one of them is shorter. For small
sizes it then improves the best one (by annealing).
``solver="cp-sat"`` proves the optimum for small sizes.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv 2401.10241, section 3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, product
from math import exp
from random import Random
from typing import Any, Final, Literal, get_args

from policies.option_checks import one_of, whole
from policies.pipeline.evaluate import StageActivations, StageTimes, one_a_stage, peak_activations
from policies.pipeline.folded_schedules import v_half, v_min, zb_v
from policies.pipeline.pipeline_schedule import Programs, Schedule, one_pipeline
from policies.pipeline.straight_schedules import zb_h1, zb_h2
from policies.pipeline.zb_greedy import greedy_searches
from policies.pipeline.zb_optimal import (
    Objective,
    ZeroBubbleProblem,
    all_actions,
    cost,
    first_starts,
    input_of,
    lag_of,
    least_cost,
    optimal_programs,
)
from sim.base.errors import InfeasibleError, InputError
from sim.base.units import NS_PER_S, format_count

Solver = Literal["best", "greedy", "cp-sat"]


def zb_auto(
    ranks: int,
    micro_batches: int,
    chunks: int,
    *,
    forward: int | Sequence[int] = 1,
    input_grad: int | Sequence[int] = 1,
    weight_grad: int | Sequence[int] = 1,
    transfer: int = 0,
    in_flight: int | None = None,
    limit: int | None = None,
    kept: int | Sequence[int] | Mapping[Literal["backward", "weight_grad"], int | Sequence[int]] = 1,
    objective: Objective = "span",
    solver: Solver = "best",
    time_limit_ns: int = 60 * NS_PER_S,
) -> Schedule:
    """Return an order with few bubbles, found by search.

    Parameters
    ----------
    ranks, micro_batches : int
        Sizes.
    chunks : int
        1 for a straight pipeline, 2 for a V.
    forward, input_grad, weight_grad : int or sequence of int
        Times of F, I, W in any unit, common to all stages or one per stage. In a scenario the workload
        gives them, the transfer time and the memory held.
    transfer : int
        Time between two ranks, in the same unit.
    in_flight : int, optional
        Micro-batches that a rank may hold, each of the stage that keeps most; by default ``ranks * chunks``,
        as many as 1F1B holds on its first rank.
    limit : int, optional
        In place of `in_flight`: the most that a rank may hold, in the unit of `kept`. In a scenario, a size
        for everything that a rank holds, including parameters, gradients and optimizer state.
    kept : int or sequence of int or mapping
        Amount that a micro-batch holds on a stage from F to I; or a mapping with that as ``backward`` and
        the amount left from I to W as ``weight_grad``. For a transformer layer see
        `policies.pipeline.evaluate.transformer_activations`.
    objective : {"span", "makespan"}
        Quantity to minimise: the longest span of a rank, or the time from first start to last end.
    solver : {"best", "greedy", "cp-sat"}
        The best of the authors' search and the fixed orders, improved further for small sizes; the authors'
        search alone (a fixed order only if it finds none); or an exact search with proof (small sizes; needs
        the extra ``opt``).
    time_limit_ns : int
        Wall-clock time limit of CP-SAT.

    Returns
    -------
    Schedule
        With ``meta``: ``objective``, ``bound`` (a lower bound) and ``proven`` (the two are equal).

    Raises
    ------
    InputError
        If there are more than two chunks, or an option is wrong.
    InfeasibleError
        If no order fits the memory limit.
    MissingExtraError
        If CP-SAT is requested and ortools is not installed.

    Examples
    --------
    >>> schedule = zb_auto(4, 12, 1, forward=5, input_grad=6, weight_grad=4, in_flight=8)
    >>> schedule.meta["objective"] - 12 * (5 + 6 + 4)
    5
    """
    if chunks > 2:
        message = "zb-auto knows straight pipelines (chunks 1) and the V (chunks 2)"
        raise InputError(f"{message}, not {format_count(chunks, 'chunk')}")
    one_of("zb-auto", "objective", objective, get_args(Objective))
    one_of("zb-auto", "solver", solver, get_args(Solver))
    whole("zb-auto", "time_limit", time_limit_ns)
    whole("zb-auto", "transfer", transfer, least=0)
    stages = ranks * chunks

    def per_stage(option: str, values: int | Sequence[int], least: int = 0) -> tuple[int, ...]:
        numbers = one_a_stage(values, stages, f"numbers of {option}")
        return tuple(whole("zb-auto", option, number, least=least) for number in numbers)

    if in_flight is not None and limit is not None:
        raise InputError("in_flight and limit both say what a rank may hold; give one of them")
    amounts = kept if isinstance(kept, Mapping) else {"backward": kept}
    sizes = per_stage("kept", amounts.get("backward", 1), least=1)
    in_flight = whole("zb-auto", "in_flight", stages if in_flight is None else in_flight)
    limit = whole("zb-auto", "limit", in_flight * max(sizes) if limit is None else limit)
    remaining = per_stage("kept", amounts.get("weight_grad", sizes))
    if any(part > size for part, size in zip(remaining, sizes, strict=True)):
        raise InputError("what W reads is a part of what is kept and cannot exceed it")
    phases = {"forward": forward, "input_grad": input_grad, "weight_grad": weight_grad}
    times = [per_stage(name, time) for name, time in phases.items()]
    problem = ZeroBubbleProblem(
        ranks=ranks,
        chunks=chunks,
        micro_batches=micro_batches,
        times=tuple(StageTimes(**dict(zip(phases, row, strict=True))) for row in zip(*times, strict=True)),
        transfer=transfer,
        held=tuple(StageActivations(full, part) for full, part in zip(sizes, remaining, strict=True)),
        limit=limit,
        objective=objective,
    )
    if solver != "cp-sat":
        return _search(problem, with_fixed=solver == "best")
    try:
        hint = _search(problem, with_fixed=True)
    except InfeasibleError:
        hint = None
    programs, value, bound = optimal_programs(problem, hint, time_limit_ns=time_limit_ns)
    return replace(_schedule(problem, programs), meta=_describe(value, bound))


def _search(problem: ZeroBubbleProblem, *, with_fixed: bool) -> Schedule:
    """Return the cheapest of the orders found and the fixed ones that fit; the first of equals.

    Raises
    ------
    InfeasibleError
        If the search finds no order within the memory limit and no fixed order fits.
    """
    schedules: list[Schedule] = []
    for search in greedy_searches(problem):
        try:
            schedules.append(_schedule(problem, search()))
        except InfeasibleError as error:
            failure = error
    if with_fixed or not schedules:
        schedules += _fixed_that_fit(problem)
    if not schedules:
        raise failure
    value, _, best = min((cost(problem, schedule), i, schedule) for i, schedule in enumerate(schedules))
    bound = least_cost(problem)
    if with_fixed and sum(map(len, best.programs)) <= MOST_ACTIONS:
        best = _schedule(problem, anneal(problem, best.programs, bound))
        value = cost(problem, best)
    return replace(best, meta=_describe(value, bound))


def _describe(value: int, bound: int) -> dict[str, Any]:
    return {"objective": value, "bound": bound, "proven": value == bound}


def _fixed_that_fit(problem: ZeroBubbleProblem) -> Iterator[Schedule]:
    """Yield the published orders of this shape within the memory limit; they may suit uneven times better."""
    sizes = (problem.ranks, problem.micro_batches)
    for make in (zb_h1, zb_h2) if problem.chunks == 1 else (zb_v, v_half, v_min):
        fixed = make(*sizes)
        if max(peak_activations(fixed, problem.held)) <= problem.limit:
            yield _schedule(problem, fixed.programs)


def _schedule(problem: ZeroBubbleProblem, programs: Programs) -> Schedule:
    return one_pipeline("zb-auto", programs, problem.micro_batches, problem.placement)


# ----------------------------------------------------------------------------------------------------------
# Simulated annealing that improves a good order of a small zero-bubble schedule.
#
#     rank 0   F0 F1 [F2][I0 W0] I1 ...      one to three actions move ahead of others on their rank, mostly
#     rank 0   F0 F1 [I0 W0][F2] I1 ...      one on the critical path, to the edge of its block
#
# Worse orders are accepted too, at first more often than later. The order of a rank keeps each action after
# its input on the same rank and within the memory limit; an order that deadlocks with other ranks is dropped.
#
# Sources: van Laarhoven, Aarts, Lenstra, "Job shop scheduling by simulated annealing", Operations Research
# 40(1), 1992 (changes on the longest path); Nowicki and Smutnicki, "A fast taboo search algorithm for the job
# shop problem", Management Science 42(6), 1996 (edges of blocks).

MOST_ACTIONS: Final = 256
"""Most actions of a schedule to anneal; for larger ones too few changes would be tried."""

_MOST_TRIES: Final = 400
"""Changes tried per action of a schedule with few actions, ..."""

_MOST_EVALUATIONS: Final = 4_000_000
"""... and fewer for many actions, to take about a second: changes times actions is at most this."""

_RUNS: Final = 3
"""So many times they are tried, each time from the first order, if none before reaches the bound."""

_START_TEMPERATURE: Final = 0.6
"""Fraction of an action by which an order may be longer to be accepted at first with probability 1/e."""

_UNKNOWN: Final = -1


class Annealing:
    """The actions of a problem by number, with the inputs of each.

    Parameters
    ----------
    problem : ZeroBubbleProblem
    """

    def __init__(self, problem: ZeroBubbleProblem) -> None:
        self.problem, self.actions = problem, list(all_actions(problem))
        self.number = {action: k for k, action in enumerate(self.actions)}
        self.before = [k - 1 if action.micro_batch else _UNKNOWN for k, action in enumerate(self.actions)]
        self.rank = [problem.placement[action.stage] for action in self.actions]
        self.duration = [problem.duration(action.stage, action.phase) for action in self.actions]
        self.memory = [problem.memory_change(action.stage, action.phase) for action in self.actions]
        inputs = [input_of(problem, action) for action in self.actions]
        self.input = [len(inputs) if need is None else self.number[need] for need in inputs]
        self.lag = [lag_of(problem, action) for action in self.actions]
        span = problem.objective == "span"
        self.begins = first_starts(problem) if span else [0] * problem.ranks

    def ends(self, order: Sequence[Sequence[int]]) -> list[int] | None:
        """Return the end of each action, then 0 for actions without input; None: the ranks deadlock."""
        total = len(self.actions)
        ends = [_UNKNOWN] * total + [0]
        position, free, remaining = [0] * len(order), [0] * len(order), total
        ranks = list(range(len(order)))
        while remaining:
            before = remaining
            for rank in ranks:
                program, k, now = order[rank], position[rank], free[rank]
                while k < len(program):
                    action = program[k]
                    arrival = ends[self.input[action]]
                    if arrival == _UNKNOWN:
                        break
                    now = max(now, arrival + self.lag[action]) + self.duration[action]
                    ends[action] = now
                    k += 1
                remaining -= k - position[rank]
                position[rank], free[rank] = k, now
            if remaining == before:
                return None
            ranks.reverse()
        return ends

    def cost(self, order: Sequence[Sequence[int]], ends: Sequence[int]) -> int:
        """Return the objective's value for an order."""
        return max(ends[program[-1]] - first for program, first in zip(order, self.begins, strict=True))

    def critical(self, order: Sequence[Sequence[int]], ends: Sequence[int]) -> list[int]:
        """Return the actions on the critical path, from the last to the first."""
        before = {b: a for program in order for a, b in pairwise(program)}
        slowest = max(range(len(order)), key=lambda rank: ends[order[rank][-1]] - self.begins[rank])
        path, action = [], order[slowest][-1]
        while action < len(self.actions):
            path.append(action)
            start, previous = ends[action] - self.duration[action], before.get(action)
            action = previous if previous is not None and ends[previous] == start else self.input[action]
        return path

    def move_action(
        self, program: list[int], action: int, ends: Sequence[int], path: Collection[int], rng: Random
    ) -> list[int] | None:
        """Return a rank's program with an action, and maybe its followers, moved; None: it cannot move.

        A critical action mostly moves to the start or end of its block, or beyond, since only that can help.
        """
        index = program.index(action)
        first, last = index, index + 1
        if action in path and rng.random() < 0.8:
            while first > 1 and program[first - 1] in path and self._follows(program, first, ends):
                first -= 1
            while last < len(program) and program[last] in path and self._follows(program, last, ends):
                last += 1
            if first == index:  # it starts its block: beyond that
                first -= 1
            if last == index + 1:  # it ends its block
                last += 1
            then = index + 1
        else:
            then = index + rng.choice((1, 1, 1, 2, 3))
            far = 1 + int(rng.expovariate(0.7))
            first, last = max(1, index - far), then + far
        cut = (first, index, then) if rng.random() < 0.5 else (index, then, last)
        if not 0 < cut[0] < cut[1] < cut[2] <= len(program):
            return None  # the first F stays where it is
        back, forth = program[cut[0] : cut[1]], program[cut[1] : cut[2]]
        if any(self.input[k] in back or self.before[k] in back for k in forth):
            return None
        new = program[: cut[0]] + forth + back + program[cut[2] :]
        fits = max(accumulate(self.memory[k] for k in new)) <= self.problem.limit
        return new if fits else None

    def _follows(self, program: Sequence[int], index: int, ends: Sequence[int]) -> bool:
        """Return whether an action starts when the previous one on its rank ends."""
        return ends[program[index - 1]] == ends[program[index]] - self.duration[program[index]]


def anneal(problem: ZeroBubbleProblem, programs: Programs, bound: int) -> Programs:
    """Return the best order found from a good one, deterministically.

    Parameters
    ----------
    problem : ZeroBubbleProblem
    programs : Programs
        An order within the memory limit.
    bound : int
        Lower bound; the search ends when an order reaches it.
    """
    search = Annealing(problem)
    best_order = first = [[search.number[slot.parts[0]] for slot in program] for program in programs]
    begun = search.ends(first)
    assert begun is not None, "a schedule can run"
    best, n = search.cost(first, begun), len(search.actions)
    tries, worse = min(_MOST_TRIES * n, _MOST_EVALUATIONS // n), _START_TEMPERATURE * sum(search.duration) / n
    for seed, k in product(range(_RUNS), range(tries)):
        if best <= bound:
            break
        if not k:
            order, ends, rng = first, begun, Random(seed)
            cost, path = search.cost(order, ends), search.critical(order, ends)
        action = rng.choice(path) if rng.random() < 0.8 else rng.randrange(n)
        rank = search.rank[action]
        new = search.move_action(order[rank], action, ends, path, rng)
        if new is None:
            continue
        changed = [*order[:rank], new, *order[rank + 1 :]]
        then = search.ends(changed)
        if then is None:
            continue
        changed_cost = search.cost(changed, then)
        if changed_cost <= cost or rng.random() < exp((cost - changed_cost) / (worse * (1 - k / tries) or 1)):
            order, ends, cost, path = changed, then, changed_cost, search.critical(changed, then)
            if cost < best:
                best, best_order = cost, order
    return tuple(tuple(search.actions[k] for k in program) for program in best_order)
