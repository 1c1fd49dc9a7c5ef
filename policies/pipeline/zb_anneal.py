"""Simulated annealing that improves a good order of a small zero-bubble schedule.

::

    rank 0   F0 F1 [F2][I0 W0] I1 ...      one to three actions move ahead of others on their rank, mostly
    rank 0   F0 F1 [I0 W0][F2] I1 ...      one on the critical path, to the edge of its block

Worse orders are accepted too, at first more often than later. The order of a rank keeps each action after its
input on the same rank and within the memory limit; an order that deadlocks with other ranks is dropped.

Sources: van Laarhoven, Aarts, Lenstra, "Job shop scheduling by simulated annealing", Operations Research
40(1), 1992 (changes on the longest path); Nowicki and Smutnicki, "A fast taboo search algorithm for the job
shop problem", Management Science 42(6), 1996 (edges of blocks).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise, product
from math import exp
from random import Random
from typing import Final

from policies.pipeline.pipeline_schedule import Programs
from policies.pipeline.zb_optimal import ZeroBubbleProblem, all_actions, first_starts, input_of, lag_of

MOST_ACTIONS: Final = 256
"""Most actions of a schedule to anneal; for larger ones too few changes would be tried."""

_MOST_TRIES: Final = 400
"""Changes tried per action of a schedule with few actions, ..."""

_TIMED: Final = 4_000_000
"""... and fewer for many actions, to take about a second: changes times actions is at most this."""

_RUNS: Final = 3
"""So many times they are tried, each time from the first order, if none before reaches the bound."""

_WORSE: Final = 0.6
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
        at, free, left = [0] * len(order), [0] * len(order), total
        ranks = list(range(len(order)))
        while left:
            before = left
            for rank in ranks:
                program, k, now = order[rank], at[rank], free[rank]
                while k < len(program):
                    action = program[k]
                    there = ends[self.input[action]]
                    if there == _UNKNOWN:
                        break
                    now = max(now, there + self.lag[action]) + self.duration[action]
                    ends[action] = now
                    k += 1
                left -= k - at[rank]
                at[rank], free[rank] = k, now
            if left == before:
                return None
            ranks.reverse()
        return ends

    def cost(self, order: Sequence[Sequence[int]], ends: Sequence[int]) -> int:
        """Return the objective's value for an order."""
        return max(ends[program[-1]] - first for program, first in zip(order, self.begins, strict=True))

    def critical(self, order: Sequence[Sequence[int]], ends: Sequence[int]) -> list[int]:
        """Return the actions on the critical path, from the last to the first."""
        before = {b: a for program in order for a, b in pairwise(program)}
        last = max(zip(order, self.begins, strict=True), key=lambda of: ends[of[0][-1]] - of[1])[0][-1]
        path, action = [], last
        while action < len(self.actions):
            path.append(action)
            start, here = ends[action] - self.duration[action], before.get(action)
            action = here if here is not None and ends[here] == start else self.input[action]
        return path

    def move_action(
        self, program: list[int], action: int, ends: Sequence[int], path: Collection[int], rng: Random
    ) -> list[int] | None:
        """Return a rank's program with an action, and maybe its followers, moved; None: it cannot move.

        A critical action mostly moves to the start or end of its block, or beyond, since only that can help.
        """
        here = program.index(action)
        first, last = here, here + 1
        if action in path and rng.random() < 0.8:
            while first > 1 and program[first - 1] in path and self._follows(program, first, ends):
                first -= 1
            while last < len(program) and program[last] in path and self._follows(program, last, ends):
                last += 1
            first, then = first - (first == here), here + 1
            last += last == here + 1
        else:
            then = here + rng.choice((1, 1, 1, 2, 3))
            far = 1 + int(rng.expovariate(0.7))
            first, last = max(1, here - far), then + far
        cut = (first, here, then) if rng.random() < 0.5 else (here, then, last)
        if not 0 < cut[0] < cut[1] < cut[2] <= len(program):
            return None  # the first F stays where it is
        back, forth = program[cut[0] : cut[1]], program[cut[1] : cut[2]]
        if any(self.input[k] in back or self.before[k] in back for k in forth):
            return None
        held, new = 0, program[: cut[0]] + forth + back + program[cut[2] :]
        for k in new:
            held += self.memory[k]
            if held > self.problem.limit:
                return None
        return new

    def _follows(self, program: Sequence[int], place: int, ends: Sequence[int]) -> bool:
        """Return whether an action starts when the previous one on its rank ends."""
        return ends[program[place - 1]] == ends[program[place]] - self.duration[program[place]]


def anneal(problem: ZeroBubbleProblem, programs: Programs, least: int) -> Programs:
    """Return the best order found from a good one, deterministically.

    Parameters
    ----------
    problem : ZeroBubbleProblem
    programs : Programs
        An order within the memory limit.
    least : int
        Lower bound; the search ends when an order reaches it.
    """
    of = Annealing(problem)
    found = first = [[of.number[slot.parts[0]] for slot in program] for program in programs]
    begun = of.ends(first)
    assert begun is not None, "a schedule can run"
    best, n = of.cost(first, begun), len(of.actions)
    tries, worse = min(_MOST_TRIES * n, _TIMED // n), _WORSE * sum(of.duration) / n
    for seed, k in product(range(_RUNS), range(tries)):
        if best <= least:
            break
        if not k:
            order, ends, rng = first, begun, Random(seed)
            cost, path = of.cost(order, ends), of.critical(order, ends)
        action = rng.choice(path) if rng.random() < 0.8 else rng.randrange(n)
        rank = of.rank[action]
        new = of.move_action(order[rank], action, ends, path, rng)
        if new is None:
            continue
        changed = [*order[:rank], new, *order[rank + 1 :]]
        then = of.ends(changed)
        if then is None:
            continue
        there = of.cost(changed, then)
        if there <= cost or rng.random() < exp((cost - there) / (worse * (1 - k / tries) or 1)):
            order, ends, cost, path = changed, then, there, of.critical(changed, then)
            if cost < best:
                best, found = cost, order
    return tuple(tuple(of.actions[k] for k in program) for program in found)
