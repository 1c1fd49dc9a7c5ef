"""CPOP: the critical path on one processor.

Topcuoglu, Hariri and Wu 2002 (TPDS 13(3)), figure 4: an op's priority is its upward plus its downward
rank. The ops of a critical path all go to the device that runs them fastest, the others where they end
first; of the ready ops the one with the highest priority is next. On the paper's ten tasks: 86.
"""

from __future__ import annotations

from fractions import Fraction

from policies.placement.lists.list_schedule import Builder, ListPlacement, Schedule
from policies.placement.lists.ranks import downward_ranks, upward_ranks
from policies.placement.problem import Problem
from sim.graph.walks import least_first

__all__ = ["Cpop"]


class Cpop(ListPlacement):
    """The critical path on the device that runs it fastest, every other op where it finishes first (CPOP)."""

    def schedule(self, problem: Problem) -> Schedule:
        """Return the CPOP schedule."""
        up = upward_ranks(problem)
        priority = [a + b for a, b in zip(up, downward_ranks(problem), strict=True)]
        path = _critical_path(problem, up)
        device = _fastest(problem, path)
        on_path = set(path)
        builder = Builder(problem)
        for op in least_first(problem.graph.dag(), [-p for p in priority]):
            slots = builder.slots(op)
            here = [slot for slot in slots if slot.device == device] if op in on_path else []
            builder.put(op, min(here or slots))
        return builder.schedule()


def _critical_path(problem: Problem, up: list[Fraction]) -> list[int]:
    """Return the ops of the longest path of mean costs and travels, from a source to a sink."""
    sources = [op for op in range(problem.n) if not problem.producers[op]]
    at = max(sources, key=lambda op: (up[op], -op))
    path = [at]
    while problem.consumers[at]:
        ways = [(problem.mean_travel_ns(nbytes) + up[c], -c) for c, nbytes in problem.consumers[at]]
        at = -max(ways)[1]
        path.append(at)
    return path


def _fastest(problem: Problem, path: list[int]) -> int:
    """Return the device that can run most of `path`, and of those the one that takes least time."""

    def cost(d: int) -> tuple[int, int]:
        able = [op for op in path if d in problem.devices_of[op]]
        return len(path) - len(able), sum(problem.cost_ns[op][d] for op in able)

    return min(range(problem.n_devices), key=cost)
