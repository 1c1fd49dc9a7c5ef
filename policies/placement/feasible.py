"""Where each op may be placed: what can run it, what its pin allows, what its group shares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sim import Graph, Machine
from sim.job.pins import allowed_devices
from sim.words.arrays import UNSET, IntArray
from sim.words.errors import InfeasibleError

__all__ = ["feasible_devices", "soft_devices"]


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
        See `policies.placement.colocation.colocation_groups`.

    Raises
    ------
    InputError
        A pin that names neither a device nor a kind of device of the machine.
    InfeasibleError
        There is none for some op; the message names the op and its group.
    """
    able = (np.array(cost_ns) != UNSET) & allowed_devices(graph, machine)
    together = able.copy()
    leader = np.array(group_of)
    for op in np.flatnonzero(leader != np.arange(len(leader))).tolist():
        together[:, leader[op]] &= able[:, op]
    together = together[:, leader]
    nowhere = ~together.any(axis=0)
    if nowhere.any():
        op = int(nowhere.argmax())
        group = [graph.op_names[k] for k in np.flatnonzero(leader == leader[op]).tolist()]
        names = ", ".join(group[:6]) + (", ..." if len(group) > 6 else "")
        why = f"with what it is colocated with ({names})" if len(group) > 1 else "under its pin"
        raise InfeasibleError(f"no device of the machine can run op {graph.op_names[op]!r} {why}")
    return [np.flatnonzero(column).tolist() for column in together.T]


def soft_devices(
    graph: Graph, machine: Machine, cost_ns: Sequence[IntArray], group_of: Sequence[int]
) -> list[list[int]]:
    """Return the devices of each op when pins, and then colocation, give way where they must.

    Parameters
    ----------
    graph, machine, cost_ns, group_of
        See `feasible_devices`. A pin may name anything.
    """
    able = np.array(cost_ns) != UNSET
    wanted = able & _pinned(graph, machine)
    leader = np.array(group_of)
    first = np.argsort(leader, kind="stable")
    devices: list[list[int]] = [[] for _ in range(len(graph))]
    for members in np.split(first, np.flatnonzero(np.diff(leader[first])) + 1):
        masks = (wanted[:, members].all(axis=1), able[:, members].all(axis=1))
        together = next((mask for mask in masks if mask.any()), None)
        for op in members.tolist():
            alone = wanted[:, op] if wanted[:, op].any() else able[:, op]
            devices[op] = np.flatnonzero(alone if together is None else together).tolist()
    return devices


def _pinned(graph: Graph, machine: Machine) -> npt.NDArray[np.bool_]:
    """Return, per device and op, whether the pin allows the device; one that names nothing allows none."""
    allowed = np.ones((len(machine.devices), len(graph)), dtype=bool)
    for code, pin in enumerate(graph.pins):
        fits = np.array([pin in (device.name, device.kind) for device in machine.devices])
        allowed[:, graph.pin_code == code] = fits[:, None]
    return allowed
