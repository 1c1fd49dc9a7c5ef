"""What a placement is decided from: costs per device, edges with their bytes, travel times.

All times are whole ns. A tensor travels from device to device in

    latency of the route + bytes / bandwidth of its slowest link, or of a host that copies pageable memory,

rounded up, and in no time when the devices are the same, when the edge is a control edge, or when
the machine has no links. That is what one transfer takes that meets no other; contention is the
simulator's business, not the placement's. A worker of a CPU pays for issuing an op with its own time, so
that this is part of the op's cost there; what a host pays to launch on other devices is the simulator's, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import cached_property

import numpy as np

from policies.placement.feasible import colocation_groups, feasible_devices, soft_devices
from sim import Graph, Job, Machine
from sim.base.arrays import UNSET, IntArray
from sim.base.errors import InfeasibleError
from sim.job.costs import issue_costs_by_kind
from sim.job.places import input_devices
from sim.job.transfers import Travel

NEVER = 1 << 62
"""A time that is never reached: no route leads there."""

_CONTROL = -1


class Problem:
    """A graph, a machine and what every op costs on every device.

    Parameters
    ----------
    graph : Graph
    machine : Machine
    cost_ns : sequence of array of int64
        ``cost_ns[d][op]``, -1 where device d cannot run op: what may be known of it.
    placed : sequence of int, optional
        The device of every op when that is decided already, and only the order is not.

    Attributes
    ----------
    n, n_devices : int
    cost_ns : list of list of int
        ``cost_ns[op][d]``, with what issuing costs a worker, -1 where the op cannot run on the device.
    devices_of : list of list of int
        Devices that each op may be placed on: able to run it, allowed by its pin, and both for
        everything it is colocated with.
    group_of : list of int
        Colocation group (see `colocation_groups`).
    producers, consumers : list of list of (int, int)
        Edges within an iteration: op at the other end, and bytes (-1: a control edge).
    arrivals : list of list of (int, int)
        Graph inputs that lie on a device: (device, bytes) for each that the op reads.

    Raises
    ------
    InfeasibleError
        An op, or a colocation group, that no device may run.
    """

    def __init__(
        self,
        graph: Graph,
        machine: Machine,
        cost_ns: Sequence[IntArray],
        placed: Sequence[int] | None = None,
    ) -> None:
        self.graph, self.machine, self.placed = graph, machine, placed
        self.n, self.n_devices = len(graph), len(machine.devices)
        executes = np.array([bool(device.workers) for device in machine.devices])
        paid = np.where(executes[:, None], issue_costs_by_kind(graph, machine), 0)[:, graph.kind_code]
        known = np.array(cost_ns)
        self.cost_ns: list[list[int]] = np.where(known == UNSET, UNSET, known + paid).T.tolist()
        self.group_of = colocation_groups(graph)
        choose = feasible_devices if placed is None else soft_devices
        self.devices_of = choose(graph, machine, cost_ns, self.group_of)
        for op, device in enumerate(placed or ()):  # whoever placed it may not have minded groups
            if device not in self.devices_of[op]:
                self.devices_of[op].append(device)
        self.producers: list[list[tuple[int, int]]] = [[] for _ in range(self.n)]
        self.consumers: list[list[tuple[int, int]]] = [[] for _ in range(self.n)]
        edges = graph.edges.within_iteration()
        size = np.where(edges.tensor == UNSET, _CONTROL, graph.tensor_nbytes[edges.tensor])
        for p, c, nbytes in zip(edges.producer.tolist(), edges.consumer.tolist(), size.tolist(), strict=True):
            self.producers[c].append((p, nbytes))
            self.consumers[p].append((c, nbytes))
        home, nbytes_of = input_devices(graph, machine).tolist(), graph.tensor_nbytes.tolist()
        self.arrivals: list[list[tuple[int, int]]] = [
            [(home[t], nbytes_of[t]) for t in read if home[t] != UNSET] for read in graph.inputs.lists()
        ]
        self._mean_travel: dict[int, Fraction] = {}

    @classmethod
    def of_job(cls, job: Job) -> Problem:
        """Return the problem that `job` was placed from, with that placement."""
        return cls(job.graph, job.machine, job.known_costs_ns, job.device_of.tolist())

    @cached_property
    def topological_rank(self) -> list[int]:
        """Position of each op in the topological order; ties in every rank break by it."""
        rank: list[int] = np.argsort(self.graph.topological_order).tolist()
        return rank

    # -- travel -----------------------------------------------------------------------------

    @cached_property
    def _travel(self) -> list[list[Travel | None]]:
        """How each device sends to each other, None where no route leads."""
        return [[self._between(a, b) for b in range(self.n_devices)] for a in range(self.n_devices)]

    def _between(self, a: int, b: int) -> Travel | None:
        try:
            return Travel.between(self.machine, a, b)
        except InfeasibleError:
            return None

    def travel_ns(self, a: int, b: int, nbytes: int) -> int:
        """Return how long `nbytes` (-1: a control edge) travel from device `a` to device `b`."""
        if a == b or nbytes == _CONTROL:
            return 0
        travel = self._travel[a][b]
        return NEVER if travel is None else travel.ns(nbytes)

    def mean_travel_ns(self, nbytes: int) -> Fraction:
        """Return the mean of `travel_ns` over all pairs of different devices with a route, exactly."""
        if nbytes not in self._mean_travel:
            devices = range(self.n_devices)
            times = [self.travel_ns(a, b, nbytes) for a in devices for b in devices if a != b]
            times = [ns for ns in times if ns < NEVER]
            self._mean_travel[nbytes] = Fraction(sum(times), len(times) or 1)
        return self._mean_travel[nbytes]

    def mean_cost_ns(self, op: int) -> Fraction:
        """Return the mean cost of `op` over the devices it may be placed on, exactly."""
        return Fraction(sum(self.cost_ns[op][d] for d in self.devices_of[op]), len(self.devices_of[op]))
