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
        See `policies.placement.colocation.colocation_groups`.

    Raises
    ------
    InputError
        A pin that names neither a device nor a kind of device of the machine.
    InfeasibleError
        There is none for some op; the message names the op and its group.
    """
    able = (np.array(cost_ns) != UNSET) & allowed_devices(graph, machine)
    leader = np.array(group_of)
    together = _with_group(able, leader)
    nowhere = ~together.any(axis=0)
    if nowhere.any():
        op = int(nowhere.argmax())
        group = [graph.op_names[k] for k in np.flatnonzero(leader == leader[op]).tolist()]
        names = ", ".join(group[:6]) + (", ..." if len(group) > 6 else "")
        why = f"with what it is colocated with ({names})" if len(group) > 1 else "under its pin"
        name = graph.op_names[op]
        raise InfeasibleError(f"no device of the machine can run op {name!r} {why}").about(name)
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
    chosen = able
    for better in (wanted, _with_group(able, leader), _with_group(wanted, leader)):
        chosen = np.where(better.any(axis=0), better, chosen)
    return [np.flatnonzero(column).tolist() for column in chosen.T]


def _with_group(able: _Bools, leader: IntArray) -> _Bools:
    """Return, per device and op, whether the device is able to take every op of the group."""
    together = able.copy()
    for op in np.flatnonzero(leader != np.arange(len(leader))).tolist():
        together[:, leader[op]] &= able[:, op]
    return together[:, leader]


def _pinned(graph: Graph, machine: Machine) -> _Bools:
    """Return, per device and op, whether the pin allows the device; one that names nothing allows none."""
    fits = [[pin in (d.name, d.kind) for pin in graph.pins] + [True] for d in machine.devices]
    return np.array(fits)[:, graph.pin_code]  # without a pin, -1: the last column
