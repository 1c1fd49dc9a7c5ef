"""Pins of ops: the devices that they allow, and the placement that only follows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from sim.base.arrays import UNSET, BoolArray, Csr, IntArray
from sim.base.errors import hint
from sim.graph.graph import Graph, Role
from sim.job.job import Job, Placement
from sim.machine.machine import Machine

_LAST_CHOICE: Final = {"cpu": 1, "switch": 2}
"""Kinds of device that get a free op only if no other device can run it, in this order."""


class PinnedPlacement(Placement):
    """Put each op where it is pinned, and a free op on the first accelerator that can run it, else on a CPU.

    An accelerator is any device but a CPU. Frameworks do the same: TensorFlow's placer prefers a GPU
    to a CPU (core/common_runtime/device_set.cc, `DeviceTypeOrder`).

    Examples
    --------
    >>> from sim import Device, GraphBuilder, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("two")
    >>> _ = b.op("free", duration_ns=10), b.op("host", duration_by_kind={"cpu": 10})
    >>> machine = Machine((Device("cpu0", "cpu", workers=1), Device("gpu0"), Device("gpu1")))
    >>> simulate(b.build(), machine, ReadyQueue()).job.device_of.tolist()
    [1, 0]
    """

    def place(self, graph: Graph, machine: Machine, cost_ns: Sequence[IntArray]) -> Sequence[int]:
        """Return one device index per op (see `Placement`)."""
        device_of: list[int] = first_able(graph, machine, cost_ns).tolist()
        return device_of


def first_able(
    graph: Graph, machine: Machine, cost_ns: Sequence[IntArray], *, pinned: bool = True
) -> IntArray:
    """Return the preferred device of each op among those that can run it; -1: none can.

    A machine may have as many devices as the graph has pins, so the work here is not their product: ops of
    one pin have few devices, and devices with equal costs are examined once.

    Parameters
    ----------
    graph, machine
    cost_ns : sequence of array of int64
        See `Placement.place`.
    pinned : bool
        Whether pins are respected.
    """
    allowed: list[Sequence[int]] = [range(len(cost_ns))]  # by pin, those of ops without one first
    code = np.zeros(len(graph), np.int64)
    if pinned:
        allowed += _devices_of_pins(graph, machine)
        code = graph.pin_code - UNSET
    ops_of = Csr.group(code, np.arange(len(graph)), len(allowed))
    device_of = np.full(len(graph), UNSET)
    for pin, devices in enumerate(allowed):
        ops = ops_of.row(pin)
        best: dict[int, int] = {}  # the first of the devices with equal costs
        for device in sorted(devices, key=lambda d: _LAST_CHOICE.get(machine.devices[d].kind, 0)):
            best.setdefault(id(cost_ns[device]), device)
        for device in reversed(best.values()):  # the first one is written last, so it stays
            device_of[ops[cost_ns[device][ops] != UNSET]] = device
    return device_of


def _devices_of_pins(graph: Graph, machine: Machine) -> list[list[int]]:
    """Return the devices that each pin allows: the one of that name, or those of that kind.

    Raises
    ------
    InputError
        A pin names neither a device nor a kind of device of the machine.
    """
    by_word: dict[str, list[int]] = {}
    for d, device in enumerate(machine.devices):
        by_word.setdefault(device.kind, []).append(d)
    by_word |= {device.name: [d] for d, device in enumerate(machine.devices)}
    for code, pin in enumerate(graph.pins):
        if pin not in by_word and (graph.pin_code == code).any():
            op = int((graph.pin_code == code).argmax())
            unknown = f"is pinned to {pin!r}, which is no device of the machine{hint(pin, by_word)}"
            raise graph.fault(op, unknown, "device")
    return [by_word.get(pin, []) for pin in graph.pins]


def off_its_pin(graph: Graph, machine: Machine, device_of: IntArray) -> int | None:
    """Return an op that is on a device that its pin does not allow; None: there is none."""
    n, devices_of = len(machine.devices), _devices_of_pins(graph, machine)
    fits = [code * n + device for code, devices in enumerate(devices_of) for device in devices]
    misplaced = np.flatnonzero((graph.pin_code != UNSET) & ~np.isin(graph.pin_code * n + device_of, fits))
    return int(misplaced[0]) if misplaced.size else None


def allowed_devices(graph: Graph, machine: Machine) -> BoolArray:
    """Return, per device and op, whether the op's pin (a device's name or kind) allows the device.

    Raises
    ------
    InputError
        A pin names neither a device nor a kind of device of the machine.
    """
    fits = np.zeros((len(machine.devices), len(graph.pins) + 1), dtype=bool)
    fits[:, -1] = True  # no pin, code -1
    for code, devices in enumerate(_devices_of_pins(graph, machine)):
        fits[devices, code] = True
    return np.asarray(fits[:, graph.pin_code])


# ----------------------------------------------------------------------------------------------------------
# Where tensors are: graph inputs before time 0, and outputs of ops once they have run.


def input_devices(graph: Graph, machine: Machine) -> IntArray:
    """Return, for each tensor, the device that holds it before time 0, if it is a graph input pinned to one.

    Returns
    -------
    array of int64, one entry per tensor
        -1 for outputs of ops, and for tensors available wherever they are read: parameters and free inputs.

    Raises
    ------
    UnknownNameError
        An input is pinned to a device that the machine does not have.
    """
    home = np.full(graph.n_tensors, UNSET)
    pinned = (graph.tensor_pin != UNSET) & (graph.tensor_role == Role.INPUT)
    for code in sorted(set(graph.tensor_pin[pinned].tolist())):
        home[pinned & (graph.tensor_pin == code)] = machine.device_index(graph.pins[code])
    return home


def tensor_devices(job: Job) -> IntArray:
    """Return, for each tensor, the device on which it appears; -1: it is available wherever it is read.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two devices")
    >>> _ = b.op("a", outputs=8, duration_ns=1, device="gpu0"), b.op("b", duration_ns=1, device="gpu1")
    >>> tensor_devices(make_job(b.build(), Machine((Device("gpu0"), Device("gpu1"))))).tolist()
    [0, 1]
    """
    home = input_devices(job.graph, job.machine)
    produced = job.graph.tensor_producer != UNSET
    home[produced] = job.device_of[job.graph.tensor_producer[produced]]
    return home


def crossing_reads(job: Job) -> tuple[BoolArray, IntArray, IntArray]:
    """Return a mask of the ``graph.inputs`` that cross links, the device of each read, and of each tensor.

    The last array has one entry per tensor, -1 if it is available wherever it is read: parameters, and graph
    inputs that are not pinned. On a machine without links nothing crosses.
    """
    graph, home = job.graph, tensor_devices(job)
    reader = np.repeat(job.device_of, graph.inputs.counts())
    tensor = graph.inputs.indices
    crosses = (home[tensor] != UNSET) & (home[tensor] != reader) & bool(job.machine.links)
    return crosses, reader, home
