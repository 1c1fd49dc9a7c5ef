"""Devices in turn: the baseline that looks at nothing, and spreads the work all the same."""

from __future__ import annotations

from collections.abc import Sequence

from policies.placement.colocation import colocation_groups
from policies.placement.feasible import feasible_devices
from sim import Graph, Machine
from sim.job.job import Placement
from sim.words.arrays import IntArray

__all__ = ["RoundRobin"]


class RoundRobin(Placement):
    """Ops in topological order on the devices in turn, skipping devices that cannot run an op.

    Examples
    --------
    >>> from sim import Device, GraphBuilder
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("four, the second pinned")
    >>> _ = b.op("a"), b.op("b", device="gpu0"), b.op("c"), b.op("d")
    >>> machine = Machine((Device("gpu0"), Device("gpu1")))
    >>> make_job(b.build(), machine, placement=RoundRobin()).device_of.tolist()
    [0, 0, 1, 0]
    """

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `sim.job.job.Placement`).

        Raises
        ------
        InfeasibleError
            An op, or a colocation group, that no device may run.
        """
        group_of = colocation_groups(graph)
        choices = feasible_devices(graph, machine, cost_ns, group_of)
        n_devices = len(machine.devices)
        device_of_group: dict[int, int] = {}
        turn = 0
        for op in graph.topological_order.tolist():
            if group_of[op] not in device_of_group:
                device = min(choices[op], key=lambda d: (d - turn) % n_devices)
                device_of_group[group_of[op]] = device
                turn = (device + 1) % n_devices
        return [device_of_group[group] for group in group_of]
