"""A search in parts of a solution that is known: large neighbourhood search over windows in time.

::

    ▇▇▇▇▇▇▇▇▇┊▒▒▒▒▒▒▒▒▒▒▒┊▇▇▇▇▇▇▇▇▇▇▇       what is in the window is free; what is before stays where it
             └── window ─┘                 is, what is after stays as far from the end of all

The solver looks for an earlier end, in little time, since little is unknown. Windows overlap by half of their
width; where none of a width helps, the next ones are twice as wide (Shaw 1998, "Using constraint programming
and local search methods to solve vehicle routing problems", CP; windows in time for schedules: Laborie and
Godard 2007, "Self-adapting large neighborhood search", MISTA).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final

from policies.cp_sat.known import Known
from policies.cp_sat.part import Part, Touching
from policies.cp_sat.search import solve
from policies.cp_sat.words import Problem, Time

__all__ = ["windows"]

_FIRST: Final = 32
"""So many activities are in the first windows."""

_EFFORT: Final = 0.002
"""So much of the solver's deterministic time goes to each activity of a window; 1 is a second or more."""

Values = Callable[[Any], int]


def windows(
    problem: Problem, activities: Sequence[Sequence[Time]], until: float, seed: int = 0
) -> Generator[Values, None, None]:
    """Yield better solutions, each from the one that the hints of a problem give when it is asked for.

    It ends when the next window would be all there is, or with its time. Only that depends on a clock: with
    more time the same solutions come first.

    Parameters
    ----------
    problem : Problem
    activities : sequence of sequence of Time
        Times that are free together; the first tells where in the schedule they are.
    until : float
        Of `time.monotonic`.
    seed : int
        In which order windows are tried.
    """
    rng = random.Random(seed)
    size = _FIRST
    touching = Touching(problem)
    while size < len(activities):
        known = Known(problem)
        best = known.end_ns
        places = list(range(0, len(activities) - size // 2, size // 2))
        rng.shuffle(places)
        for place in places:
            order = sorted(range(len(activities)), key=lambda k: (known.at(activities[k][0]), k))
            window, behind = (
                [each.index for k in part for each in activities[k]]
                for part in (order[place : place + size], order[place + size :])
            )
            left = until - time.monotonic()
            if left <= 0:
                return
            found = _solve(Part(known, touching, window, behind), _EFFORT * size, left, seed)
            if found is not None:
                yield found
                known = Known(problem)
        if known.end_ns == best:
            size *= 2


def _solve(part: Part, effort: float, left_s: float, seed: int) -> Values | None:
    """Return an earlier solution, which differs from what is known in a window."""
    from ortools.sat.python import cp_model

    if not part.possible:
        return None
    solver: Any = cp_model.CpSolver()
    solver.parameters.max_deterministic_time = effort
    solver.parameters.max_time_in_seconds = left_s
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    written = part.written()
    if solve(solver, written.model) in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return written.reader(solver)
    return None
