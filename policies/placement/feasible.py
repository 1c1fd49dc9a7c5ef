"""Where each op may be placed: what can run it, what its pin allows, what its group shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sim import Graph, Machine
from sim.base.arrays import UNSET, IntArray
from sim.base.errors import InfeasibleError
from sim.job.places import allowed_devices

# ----------------------------------------------------------------------------------------------------------
# Colocation groups: ops that must share a device, found by union-find.
#
# ``attributes["colocate"]`` of an op is a label or a list of labels. Ops with a common label are
# together, and so is the op whose name is the label (as TensorFlow's ``_class: loc:@name``). Groups that
# share an op are one group (TensorFlow, core/common_runtime/colocation_graph.cc).

_T = TypeVar("_T")


def colocation_groups(graph: Graph) -> list[int]:
    """Return for each op the least index among the ops it must share a device with (often its own).

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("variable and its update")
    >>> _ = b.op("other"), b.op("w"), b.op("update", attributes={"colocate": "w"})
    >>> colocation_groups(b.build())
    [0, 1, 1]
    """
    groups = _Groups(len(graph))
    for op, other in _together(graph):
        groups.join(op, other)
    return [groups.find(op) for op in range(len(graph))]


def merged_in_groups(graph: Graph, given: list[_T], merge: Callable[[_T, _T], _T]) -> list[_T]:
    """Return for each op what its group makes of what is given for its ops, two at a time.

    Groups come together in the order of ``ColocateAllNodes`` in the same file: an op joins the groups of its
    labels, then that of its own name. It matters where `merge` is not associative.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("three")
    >>> _ = [b.op(name, attributes={"colocate": "g"}) for name in "abc"]
    >>> merged_in_groups(b.build(), ["1", "2", "3"], lambda x, y: f"({x}{y})")
    ['((12)3)', '((12)3)', '((12)3)']
    """
    groups = _Groups(len(graph))
    values = list(given)
    for op, other in _together(graph):
        a, b = groups.find(op), groups.find(other)
        if a != b:
            values[min(a, b)] = merge(values[b], values[a])
            groups.join(a, b)
    return [values[groups.find(op)] for op in range(len(graph))]


class _Groups:
    """Union-find; the leader of a group is its least op."""

    def __init__(self, n: int) -> None:
        self.leader = list(range(n))

    def find(self, op: int) -> int:
        leader = self.leader
        while leader[op] != op:
            leader[op] = leader[leader[op]]
            op = leader[op]
        return op

    def join(self, op: int, other: int) -> None:
        a, b = self.find(op), self.find(other)
        self.leader[max(a, b)] = min(a, b)


def _together(graph: Graph) -> Iterator[tuple[int, int]]:
    """Yield pairs of ops that share a device: each op, and the first with one of its labels."""
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
        See `policies.placement.feasible.colocation_groups`.

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

    The pins of a group are merged in the order in which its ops join: two devices of one kind leave the kind,
    two kinds leave nothing, and a pin that comes after them counts again. Pins that cannot be met count for
    nothing, and if no device can run the whole group, its ops go where each wants. (``MergeDevNames`` with
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
    alone = _fits(pins, machine)
    merged = _fits(merged_in_groups(graph, pins, _Pin.merged), machine)
    together = _with_group(able, np.array(group_of))
    chosen = able
    for better in (able & alone, together, together & merged):
        chosen = np.where(better.any(axis=0), better, chosen)
    return [np.flatnonzero(column).tolist() for column in chosen.T]


class _Pin(NamedTuple):
    """The kind of device, and the device, that an op asks for; empty: any."""

    kind: str = ""
    device: str = ""

    @classmethod
    def of(cls, pin: str, kind_of: Mapping[str, str]) -> _Pin:
        """Return what a pin asks for: a device, a kind, or what the machine does not have."""
        if pin in kind_of:
            return cls(kind_of[pin], pin)
        if pin in kind_of.values():
            return cls(pin)
        kind = pin.rstrip("0123456789")
        return cls(kind, pin if pin != kind else "")

    def merged(self, other: _Pin) -> _Pin:
        """Return what is left when a pin comes to this one."""
        if not self.kind or not other.kind:
            return other if other.kind else self
        if self.kind != other.kind:
            return _Pin()
        clash = self.device and other.device and self.device != other.device
        return _Pin(self.kind, "" if clash else self.device or other.device)


def _with_group(able: _Bools, leader: IntArray) -> _Bools:
    """Return, per device and op, whether the device is able to take every op of the group."""
    together = able.copy()
    for op in np.flatnonzero(leader != np.arange(len(leader))).tolist():
        together[:, leader[op]] &= able[:, op]
    return together[:, leader]


def _fits(pins: Sequence[_Pin], machine: Machine) -> _Bools:
    """Return, per device and op, whether the pin of the op allows the device."""
    rows = [
        [pin.kind in ("", d.kind) and pin.device in ("", d.name) for pin in pins] for d in machine.devices
    ]
    return np.array(rows)
