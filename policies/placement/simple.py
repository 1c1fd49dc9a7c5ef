"""Placements that ignore costs: one device, each in turn, or the first capable kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policies.placement.problem import colocation_groups, feasible_devices, soft_devices
from sim import Graph, Machine
from sim.base.arrays import UNSET, IntArray
from sim.base.errors import InputError
from sim.job.job import Placement
from sim.job.places import allowed_devices


class Given(Placement):
    """A placement on listed devices, one for each op."""

    def __init__(self, devices: Sequence[int]) -> None:
        self.devices = devices

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return the devices (see `sim.job.job.Placement`)."""
        return self.devices


class SinglePlacement(Placement):
    """All ops on one device, except those pinned to another.

    Parameters
    ----------
    device : str, optional
        Name of the device; by default the machine's first.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, simulate
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two")
    >>> _ = b.op("a", duration_ns=1), b.op("b", duration_ns=1)
    >>> machine = Machine((Device("gpu0"), Device("gpu1")))
    >>> make_job(b.build(), machine, placement=SinglePlacement("gpu1")).device_of.tolist()
    [1, 1]
    """

    def __init__(self, device: str | None = None) -> None:
        self.device = device

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `sim.job.job.Placement`).

        Raises
        ------
        UnknownNameError
            If the machine has no such device.
        """
        chosen = 0 if self.device is None else machine.device_index(self.device)
        allowed = allowed_devices(graph, machine)
        able = allowed & (np.array(cost_ns) != UNSET)
        return np.where(allowed[chosen], chosen, able.argmax(axis=0)).tolist()  # type: ignore[no-any-return]


class RoundRobinPlacement(Placement):
    """Ops in topological order on the devices in turn, skipping devices that cannot run an op.

    Devices in turn: the baseline that ignores everything but still spreads the work.

    Examples
    --------
    >>> from sim import Device, GraphBuilder
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("four, the second pinned")
    >>> for name, pin in {"a": None, "b": "gpu0", "c": None, "d": None}.items():
    ...     _ = b.op(name, duration_ns=1, device=pin)
    >>> machine = Machine((Device("gpu0"), Device("gpu1")))
    >>> make_job(b.build(), machine, placement=RoundRobinPlacement()).device_of.tolist()
    [0, 0, 1, 0]
    """

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `sim.job.job.Placement`).

        Raises
        ------
        InfeasibleError
            If no device may run an op or a colocation group.
        """
        group_of = colocation_groups(graph)
        choices = feasible_devices(graph, machine, cost_ns, group_of)
        n_devices = len(machine.devices)
        device_of_group: dict[int, int] = {}
        turn = 0
        for op in graph.topological_order.tolist():
            if group_of[op] not in device_of_group:
                device = min(choices[op], key=lambda d: (d - turn) % n_devices)
                device_of_group[group_of[op]], turn = device, device + 1
        return [device_of_group[group] for group in group_of]


_METADATA = frozenset(("shape", "size", "rank"))


class DeviceKind(Placement):
    """Each op on the first device that can run it, in order of device kind.

    Placement by kind of device, as in TensorFlow's placer: a GPU before a CPU, if there is a kernel for it.

    Two passes over the ops in topological order (TensorFlow, core/common_runtime/placer.cc)::

        1. each op on the most preferred device that can run it and its pin and colocation group allow;
           an op that reads only shapes stays with its input, if that is already placed
        2. sources (no input, one output), skipped before, go where all their consumers are

    so that constants are not transferred and reading a shape moves no tensor. A colocation group goes where
    the first of its ops does.

    Parameters
    ----------
    order : sequence of str
        Kinds of device, most preferred first; other kinds come after them. Devices of one kind are
        tried in machine order: everything goes to the first that can run it.
    soft : bool
        Whether to ignore a pin or a colocation that cannot be met (first the pins of a group that
        cannot be met or contradict one another, then the colocation); otherwise raise.

    Raises
    ------
    InputError
        If `order` is not a list of kinds.

    Examples
    --------
    >>> from sim import Device, GraphBuilder
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("the tokenizer runs on the CPU alone")
    >>> _ = b.op("constant", duration_ns=1), b.op("table", duration_ns=1)
    >>> _ = b.op("tokens", inputs=["table"], duration_by_kind={"cpu": 9})
    >>> _ = b.op("embed", inputs=["tokens", "constant"], duration_ns=9)
    >>> machine = Machine((Device("cpu0", "cpu", workers=1), Device("gpu0", "gpu")))
    >>> make_job(b.build(), machine, placement=DeviceKind()).device_of.tolist()
    [1, 0, 0, 1]
    """

    def __init__(self, order: Sequence[str] = ("gpu", "npu", "cpu"), soft: bool = False) -> None:
        if isinstance(order, str) or not all(isinstance(kind, str) for kind in order):
            message = f"device-kind: order must be a list of kinds of device, found {order!r}"
            raise InputError(message, path=("order",))
        self.preference, self.soft = list(order), soft

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `sim.job.job.Placement`).

        Raises
        ------
        InfeasibleError
            If a pin or colocation cannot be met, unless `soft`.
        """
        group_of = colocation_groups(graph)
        choices = (soft_devices if self.soft else feasible_devices)(graph, machine, cost_ns, group_of)
        order_of = {kind: k for k, kind in reversed([*enumerate(self.preference)])}
        rank = [order_of.get(device.kind, len(order_of)) for device in machine.devices]
        first = [min(devices, key=lambda d: (rank[d], d)) for devices in choices]
        return self._follow(graph, group_of, choices, first)

    def _follow(
        self, graph: Graph, group_of: list[int], choices: list[list[int]], first: list[int]
    ) -> list[int]:
        """Place shape ops with their input and sources with their consumers."""
        metadata = [graph.kinds[code].lower() in _METADATA for code in graph.kind_code.tolist()]
        source = ((graph.inputs.counts() == 0) & (graph.outputs.counts() == 1)).tolist()
        device, of_group = list(first), dict[int, int]()

        def put(op: int, liked: set[int]) -> None:
            """Put an op where its group is, else on the one liked device, else leave it where it is."""
            for devices in ({of_group.get(group_of[op], UNSET)}, liked):
                if len(devices) == 1 and devices <= set(choices[op]):
                    device[op] = devices.pop()
                    break
            of_group.setdefault(group_of[op], device[op])

        for op in graph.topological_order.tolist():
            if not source[op]:
                reads = graph.inputs.row(op) if metadata[op] else graph.inputs.row(op)[:0]
                read = int(graph.tensor_producer[reads[0]]) if len(reads) else UNSET
                put(op, {device[read]} if read >= 0 and not source[read] else set())
        for op, consumers in enumerate(graph.dag().successors):
            if source[op]:
                put(op, {device[c] for c in consumers})
        return device
