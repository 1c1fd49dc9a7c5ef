"""Chains, exactly: dynamic programming over (op, device).

::

    op        a        b        c            best(c, gpu) = cost(c, gpu) +
    gpu0      o───────►o───────►o              min over e of best(b, e) + travel(b → c, e → gpu)
    cpu0      o───────►o───────►o
              (every edge between the columns is a travel time)

A chain runs one op at a time, so its makespan is the sum of costs and travel times and the least one is
a shortest path through the (op, device) pairs (Bellman 1957; Bokhari 1979, "Dual processor scheduling
with dynamic reassignment", IEEE TSE 5(4), uses it for program modules).
"""

from __future__ import annotations

from collections.abc import Sequence

from policies.placement.problem import NEVER, Problem
from sim import Graph, Machine
from sim.job.job import Placement
from sim.words.arrays import IntArray
from sim.words.errors import InfeasibleError, InputError

__all__ = ["ChainDp"]


class ChainDp(Placement):
    """The placement of a chain of ops with the least sum of costs and travel times.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Link
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("not worth the way back")
    >>> for name, inputs, cpu, gpu in (("a", [], 9, 1), ("b", ["a"], 3, 5), ("c", ["b"], 9, 1)):
    ...     _ = b.op(name, inputs=inputs, outputs=2, duration_by_kind={"cpu": cpu, "gpu": gpu})
    >>> links = (Link("up", "cpu0", "gpu0", 0, 10**9), Link("down", "gpu0", "cpu0", 0, 10**9))
    >>> machine = Machine((Device("cpu0", "cpu", workers=1), Device("gpu0")), links)
    >>> make_job(b.build(), machine, placement=ChainDp()).device_of.tolist()
    [1, 1, 1]
    """

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `sim.job.job.Placement`).

        Raises
        ------
        InputError
            The graph is no chain, or asks for colocation.
        InfeasibleError
            No device for some op, or no links to it.
        """
        problem = Problem(graph, machine, cost_ns)
        _require_chain(problem)
        order = graph.topological_order.tolist()
        devices = range(problem.n_devices)
        best = [NEVER] * problem.n_devices  # the end of the op before, per device
        came_from: list[list[int]] = []
        for k, op in enumerate(order):
            sizes = [nbytes for _, nbytes in problem.producers[op]]
            row, source = [NEVER] * problem.n_devices, [-1] * problem.n_devices
            for d in problem.devices_of[op]:
                there = [problem.travel_ns(home, d, size) for home, size in problem.arrivals[op]]
                arrival = 0
                if k:
                    travel = [max(problem.travel_ns(e, d, size) for size in sizes) for e in devices]
                    arrival, source[d] = min((best[e] + travel[e], e) for e in devices)
                row[d] = min(NEVER, max([arrival, *there]) + problem.cost_ns[op][d])
            best = row
            came_from.append(source)
            if min(best) >= NEVER:
                name = graph.op_names[op]
                raise InfeasibleError(f"no links lead to a device that can run op {name!r}").about(name)
        at = min(devices, key=lambda d: (best[d], d))
        placed = [0] * problem.n
        for op, source in zip(reversed(order), reversed(came_from), strict=True):
            placed[op], at = at, source[at]
        return placed


def _require_chain(problem: Problem) -> None:
    names = problem.graph.op_names
    way_out = "; use heft or auto-tune for graphs with branches"
    order = problem.graph.topological_order.tolist()
    for before, op in zip([None, *order], order, strict=False):
        found = {p for p, _ in problem.producers[op]}
        if found != ({before} if before is not None else set()):
            after = "nothing" if before is None else repr(names[before])
            message = f"chain-dp: op {names[op]!r} should follow {after} and nothing else{way_out}"
            raise InputError(message).about(names[op])
    if any(group != op for op, group in enumerate(problem.group_of)):
        raise InputError(f"chain-dp places each op for itself and cannot keep ops together{way_out}")
