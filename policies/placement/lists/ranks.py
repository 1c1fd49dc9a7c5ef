"""Upward and downward ranks: how long the way to the end and from the beginning is, on the average.

    up(i)   = w(i) + max over consumers j of  c(i, j) + up(j)
    down(i) =        max over producers h of  down(h) + w(h) + c(h, i)

w is the mean cost over the devices and c the mean travel time over pairs of devices (Topcuoglu, Hariri
and Wu 2002, equations 2, 3, 5 and 6). Ranks are exact fractions, so that a tie is one and breaks by the
topological order: n3 and n4 of the paper's example both have 80, and in floating point n4 has more. HEFT's 80
needs that tie only where equal finish times go to the last device: n4, put first, ends at 26 on P2 and on P3,
of which P3 leads to 86 and P2, the first, as here, to 80 all the same.
"""

from __future__ import annotations

from fractions import Fraction

from policies.placement.problem import Problem

__all__ = ["downward_ranks", "upward_ranks"]


def upward_ranks(problem: Problem) -> list[Fraction]:
    """Return the upward rank of each op, in ns."""
    rank = [Fraction(0)] * problem.n
    for op in reversed(problem.graph.topological_order.tolist()):
        way = [problem.mean_travel_ns(nbytes) + rank[c] for c, nbytes in problem.consumers[op]]
        rank[op] = problem.mean_cost_ns(op) + max(way, default=Fraction(0))
    return rank


def downward_ranks(problem: Problem) -> list[Fraction]:
    """Return the downward rank of each op, in ns."""
    rank = [Fraction(0)] * problem.n
    for op in problem.graph.topological_order.tolist():
        way = [
            rank[p] + problem.mean_cost_ns(p) + problem.mean_travel_ns(nbytes)
            for p, nbytes in problem.producers[op]
        ]
        rank[op] = max(way, default=Fraction(0))
    return rank
