"""HEFT: heterogeneous earliest finish time.

Topcuoglu, Hariri and Wu 2002, "Performance-effective and low-complexity task scheduling for
heterogeneous computing", IEEE TPDS 13(3), figure 3: ops by descending upward rank, each on the device
where it ends first, in a gap between others where it fits. On the paper's ten tasks: 80.
"""

from __future__ import annotations

from policies.placement.lists.list_schedule import Builder, ListPlacement, Schedule
from policies.placement.lists.ranks import upward_ranks
from policies.placement.problem import Problem

__all__ = ["Heft"]


class Heft(ListPlacement):
    """Ops by upward rank, each on the device where it finishes first, gaps included (HEFT)."""

    def schedule(self, problem: Problem) -> Schedule:
        """Return the HEFT schedule."""
        rank = upward_ranks(problem)
        order = sorted(range(problem.n), key=lambda op: (-rank[op], problem.topological_rank[op]))
        return Builder(problem).put_all(order)
