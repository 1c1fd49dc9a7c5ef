"""The input of a placement: costs per device, edges with their bytes, travel times.

All times are whole ns. A tensor travels from device to device in

    latency of the route + bytes / bandwidth of its slowest link (or of a host that copies pageable memory),

rounded up, and in no time if the devices are the same, the edge is a control edge, or the machine has
no links. This is the time of one transfer without contention, which only the simulator models. A CPU
worker pays for issuing an op with its own time, so issue cost is part of the op's cost there; the
simulator alone models what a host pays to launch on other devices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from policies.schedule_problem import NEVER
from sim import Graph, Job, Machine
from sim.base.arrays import UNSET, IntArray
from sim.base.errors import InfeasibleError
from sim.job.costs import issue_costs_by_kind
from sim.job.places import allowed_devices, input_devices
from sim.job.transfers import Travel

_CONTROL = -1


class Problem:
    """A graph, a machine and the cost of every op on every device.

    Parameters
    ----------
    graph : Graph
    machine : Machine
    cost_ns : sequence of array of int64
        ``cost_ns[d][op]``, as far as it may be known; -1 if device d cannot run op.
    placed : sequence of int, optional
        Device of every op, if only the order is still to be decided.

    Attributes
    ----------
    n, n_devices : int
    cost_ns : list of list of int
        ``cost_ns[op][d]``, including a worker's issue cost; -1 if the op cannot run on the device.
    devices_of : list of list of int
        Devices that each op may be placed on: able to run it and everything colocated with it, and
        allowed by all their pins.
    group_of : list of int
        Colocation group (see `colocation_groups`).
    producers, consumers : list of list of (int, int)
        Edges within an iteration: op at the other end, and bytes (-1: a control edge).
    arrivals : list of list of (int, int)
        Graph inputs that are stored on a device: (device, bytes) for each one that the op reads.

    Raises
    ------
    InfeasibleError
        If no device may run an op or a colocation group.
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
        costs = np.array(cost_ns)
        self.cost_ns: list[list[int]] = np.where(costs == UNSET, UNSET, costs + paid).T.tolist()
        self.group_of = colocation_groups(graph)
        choose = feasible_devices if placed is None else soft_devices
        self.devices_of = choose(graph, machine, cost_ns, self.group_of)
        for op, device in enumerate(placed or ()):  # the given placement may ignore groups
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
        """Return the problem of `job` with its placement."""
        return cls(job.graph, job.machine, job.known_costs_ns, job.device_of.tolist())

    @cached_property
    def topological_rank(self) -> list[int]:
        """Position of each op in the topological order, which breaks ties in every rank."""
        rank: list[int] = np.argsort(self.graph.topological_order).tolist()
        return rank

    # -- travel -----------------------------------------------------------------------------

    @cached_property
    def _travel(self) -> list[list[Travel | None]]:
        """How each device sends to each other one; None: there is no route."""
        return [[self._travel_between(a, b) for b in range(self.n_devices)] for a in range(self.n_devices)]

    def _travel_between(self, a: int, b: int) -> Travel | None:
        try:
            return Travel.between(self.machine, a, b)
        except InfeasibleError:
            return None

    def travel_ns(self, a: int, b: int, nbytes: int) -> int:
        """Return how long `nbytes` (-1: a control edge) take from device `a` to device `b`."""
        if a == b or nbytes == _CONTROL:
            return 0
        travel = self._travel[a][b]
        return NEVER if travel is None else travel.ns(nbytes)

    def mean_travel_ns(self, nbytes: int) -> Fraction:
        """Return the exact mean of `travel_ns` over all pairs of different devices with a route."""
        if nbytes not in self._mean_travel:
            devices = range(self.n_devices)
            times = [self.travel_ns(a, b, nbytes) for a in devices for b in devices if a != b]
            times = [ns for ns in times if ns < NEVER]
            self._mean_travel[nbytes] = Fraction(sum(times), len(times) or 1)
        return self._mean_travel[nbytes]

    def mean_cost_ns(self, op: int) -> Fraction:
        """Return the exact mean cost of `op` over the devices it may be placed on."""
        return Fraction(sum(self.cost_ns[op][d] for d in self.devices_of[op]), len(self.devices_of[op]))


# ----------------------------------------------------------------------------------------------------------
# Devices each op may be placed on: able to run it, allowed by its pin, shared with its group.

_T = TypeVar("_T")


def colocation_groups(graph: Graph) -> list[int]:
    """Return, for each op, the least index among the ops it must share a device with (often its own).

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("variable and its update")
    >>> _ = b.op("other"), b.op("w"), b.op("update", attributes={"colocate": "w"})
    >>> colocation_groups(b.build())
    [0, 1, 1]
    """
    return merged_in_groups(graph, list(range(len(graph))), min)


def merged_in_groups(graph: Graph, initial: list[_T], merge: Callable[[_T, _T], _T]) -> list[_T]:
    """Return, for each op, the values of its group merged pairwise.

    Groups are merged in the order of ``ColocateAllNodes`` in the same file: an op joins the groups of its
    labels, then that of its own name. The order matters if `merge` is not associative.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("three")
    >>> _ = [b.op(name, attributes={"colocate": "g"}) for name in "abc"]
    >>> merged_in_groups(b.build(), ["1", "2", "3"], lambda x, y: f"({x}{y})")
    ['((12)3)', '((12)3)', '((12)3)']
    """
    leader, values = list(range(len(graph))), list(initial)  # of a group: its least op

    def find(op: int) -> int:
        while leader[op] != op:
            leader[op] = leader[leader[op]]
            op = leader[op]
        return op

    for op, other in _colocated_pairs(graph):
        a, b = find(op), find(other)
        if a != b:
            values[min(a, b)] = merge(values[b], values[a])
            leader[max(a, b)] = min(a, b)
    return [values[find(op)] for op in range(len(graph))]


def _colocated_pairs(graph: Graph) -> Iterator[tuple[int, int]]:
    """Yield pairs of ops that share a device: each op and the first op with one of its labels."""
    labels = graph.attribute("colocate")
    first_with: dict[str, int] = {}
    if not any(labels.values()):
        return
    for op, name in enumerate(graph.op_names):
        for label in (*labels.get(op, ()), name):
            first = first_with.setdefault(label, op)
            if first != op:
                yield op, first


# ----------------------------------------------------------------------------------------------------------

_Bools = npt.NDArray[np.bool_]


def feasible_devices(
    graph: Graph, machine: Machine, cost_ns: Sequence[IntArray], group_of: Sequence[int]
) -> list[list[int]]:
    """Return the devices that each op may be placed on.

    Parameters
    ----------
    graph : Graph
    machine : Machine
    cost_ns : sequence of array of int64
        ``cost_ns[d][op]``, -1 where device d cannot run op.
    group_of : sequence of int
        See `policies.placement.problem.colocation_groups`.

    Raises
    ------
    InputError
        If a pin names neither a device nor a kind of device of the machine.
    InfeasibleError
        If an op has no such device; the message names the op and its group.
    """
    able = (np.array(cost_ns) != UNSET) & allowed_devices(graph, machine)
    leader = np.array(group_of)
    together = _with_group(able, leader)
    nowhere = ~together.any(axis=0)
    if nowhere.any():
        op = int(nowhere.argmax())
        group = [graph.op_names[k] for k in np.flatnonzero(leader == leader[op]).tolist()]
        names = ", ".join(group[:6]) + (", ..." if len(group) > 6 else "")
        reason = f"with what it is colocated with ({names})" if len(group) > 1 else "under its pin"
        name = graph.op_names[op]
        raise InfeasibleError(f"no device of the machine can run op {name!r} {reason}").about(name)
    return [np.flatnonzero(column).tolist() for column in together.T]


def soft_devices(
    graph: Graph, machine: Machine, cost_ns: Sequence[IntArray], group_of: Sequence[int]
) -> list[list[int]]:
    """Return the devices of each op, dropping pins and then colocation constraints that cannot be met.

    The pins of a group are merged in the order in which its ops join: two devices of one kind leave the kind,
    two kinds leave nothing, and a later pin counts again. Pins that cannot be met are ignored, and if no
    device can run the whole group, each of its ops is placed by itself. (``MergeDevNames`` with
    `allow_soft_placement` in tensorflow/core/util/device_name_utils.cc, measured with TensorFlow 2.21.)

    Parameters
    ----------
    graph, machine, cost_ns, group_of
        See `feasible_devices`. A pin may name anything.
    """
    able = np.array(cost_ns) != UNSET
    kind_of = {device.name: device.kind for device in machine.devices}
    pins = [
        _Pin.of(graph.pins[code], kind_of) if code != UNSET else _Pin() for code in graph.pin_code.tolist()
    ]
    single = _fits(pins, machine)
    merged = _fits(merged_in_groups(graph, pins, _Pin.merge), machine)
    together = _with_group(able, np.array(group_of))
    chosen = able
    for better in (able & single, together, together & merged):
        chosen = np.where(better.any(axis=0), better, chosen)
    return [np.flatnonzero(column).tolist() for column in chosen.T]


class _Pin(NamedTuple):
    """The kind of device and the device that an op asks for; empty: any."""

    kind: str = ""
    device: str = ""

    @classmethod
    def of(cls, pin: str, kind_of: Mapping[str, str]) -> _Pin:
        """Return what a pin asks for: a device, a kind, or one that the machine lacks."""
        if pin in kind_of:
            return cls(kind_of[pin], pin)
        if pin in kind_of.values():
            return cls(pin)
        kind = pin.rstrip("0123456789")
        return cls(kind, pin if pin != kind else "")

    def merge(self, other: _Pin) -> _Pin:
        """Return this pin merged with another."""
        if not self.kind or not other.kind:
            return other if other.kind else self
        if self.kind != other.kind:
            return _Pin()
        clash = self.device and other.device and self.device != other.device
        return _Pin(self.kind, "" if clash else self.device or other.device)


def _with_group(able: _Bools, leader: IntArray) -> _Bools:
    """Return, per device and op, whether the device can run every op of the op's group."""
    together = able.copy()
    for op in np.flatnonzero(leader != np.arange(len(leader))).tolist():
        together[:, leader[op]] &= able[:, op]
    return together[:, leader]


def _fits(pins: Sequence[_Pin], machine: Machine) -> _Bools:
    """Return, per device and op, whether the op's pin allows the device."""
    rows = [
        [pin.kind in ("", d.kind) and pin.device in ("", d.name) for pin in pins] for d in machine.devices
    ]
    return np.array(rows)
