"""PEFT: predict the earliest finish time, by a table of what comes after.

Arabnejad and Barbosa 2014, "List scheduling algorithm for heterogeneous systems by an optimistic cost
table", IEEE TPDS 25(3). The table says how long the way to the end is at best, after op i on device d:

    oct(i, d) = max over consumers j of  min over devices e of  oct(j, e) + w(j, e) + (c(i, j) if e ≠ d)

Of the ready ops the one with the highest mean of its row is next, on the device where its finish time
plus the table's entry is least: a device that is good now and bad for what follows loses.
"""

from __future__ import annotations

from fractions import Fraction

from policies.placement.lists.list_schedule import Builder, ListPlacement, Schedule
from policies.placement.problem import Problem
from sim.graph.walks import least_first

__all__ = ["Peft", "optimistic_costs"]


class Peft(ListPlacement):
    """Each op where it and what follows would finish first, by an optimistic cost table (PEFT)."""

    def schedule(self, problem: Problem) -> Schedule:
        """Return the PEFT schedule."""
        table = optimistic_costs(problem)
        rank = [Fraction(sum(row.values())) / len(row) for row in table]
        builder = Builder(problem)
        for op in least_first(problem.graph.dag(), [-r for r in rank]):
            row = table[op]
            builder.put(op, min(builder.slots(op), key=lambda slot: (slot.end_ns + row[slot.device], slot)))
        return builder.schedule()


def optimistic_costs(problem: Problem) -> list[dict[int, Fraction]]:
    """Return for each op, by device that may run it, the least time from its end to the end of all, in ns."""
    table: list[dict[int, Fraction]] = [{} for _ in range(problem.n)]
    for op in reversed(problem.graph.topological_order.tolist()):
        # For each consumer: what it and the rest take if it stays on each device, or wherever is best.
        ways = []
        for c, nbytes in problem.consumers[op]:
            stay = {e: table[c][e] + problem.cost_ns[c][e] for e in table[c]}
            ways.append((stay, min(stay.values()) + problem.mean_travel_ns(nbytes)))
        for d in problem.devices_of[op]:
            costs = [min(stay.get(d, move), move) for stay, move in ways]
            table[op][d] = max(costs, default=Fraction(0))
    return table
