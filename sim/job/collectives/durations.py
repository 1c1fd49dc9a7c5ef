"""How long collectives take that do not say it themselves: what the machine's model says of each call."""

from __future__ import annotations

import numpy as np

from sim.graph.graph import Graph
from sim.job.collectives.members import Collectives
from sim.machine.communicators import Call, ToldCollectives, even_nbytes
from sim.machine.device import Device
from sim.machine.machine import Machine
from sim.words.answers import whole_numbers
from sim.words.arrays import UNSET, BoolArray, IntArray
from sim.words.errors import InputError
from sim.words.limits import LATEST_NS

__all__ = ["call_of", "is_modelled", "modelled_ns", "modelled_ops", "told_of"]


def modelled_ops(graph: Graph, machine: Machine, device: Device) -> IntArray:
    """Return the ops of communicators of which the machine's model says how long they take on a device.

    They give no duration there, and the machine has a model.
    """
    ops = np.array(graph.in_communicators if machine.collectives is not None else [], np.int64)
    given = graph.duration_ns[ops] != UNSET
    by_kind = graph.duration_by_kind.get(device.kind)
    if by_kind is not None:
        given |= by_kind[ops] != UNSET
    missing: IntArray = ops[~given]
    return missing


def is_modelled(graph: Graph, machine: Machine, c: Collectives) -> BoolArray:
    """Return which collectives take the time that the machine's model says."""
    found = np.zeros(len(c.op), dtype=bool)
    for kind, device in {device.kind: device for device in machine.devices}.items():
        here = np.array([device.kind == kind for device in machine.devices])[c.device]
        found |= here & np.isin(c.op, modelled_ops(graph, machine, device))
    return found


def told_of(graph: Graph, machine: Machine, c: Collectives | None, model: object) -> str | None:
    """Return in a line which model says how long collectives take, if it is one that nobody chose.

    Folded ranks say themselves how long theirs take, as the model of the whole machine did.
    """
    if c is None or not isinstance(model, ToldCollectives):
        return None
    return model.told if machine.folding is not None or is_modelled(graph, machine, c).any() else None


def call_of(graph: Graph, c: Collectives, entry: int) -> Call:
    """Return what a collective asks the machine's model for."""
    kind = graph.kind(int(c.op[entry]))
    kind = {"recv": "send", "alltoall": "all_to_all"}.get(kind, kind)
    name = c.names[int(c.communicator[entry])]
    sends = c.sends[int(c.exchange[entry])] if c.exchange[entry] != UNSET else ()
    nbytes = even_nbytes(sends) if sends else int(c.nbytes[entry])
    return Call(kind, nbytes, c.members[int(c.party[entry])], int(c.root[entry]), name, sends)


def modelled_ns(graph: Graph, machine: Machine, c: Collectives, wanted: BoolArray) -> IntArray:
    """Return how long the `wanted` collectives take by the machine's model.

    Raises
    ------
    InputError
        The model does not know a call, or says what is no time.
    """
    model = machine.collectives
    assert model is not None
    sized = np.where(c.exchange == UNSET, c.nbytes, 0)
    keys = np.stack((c.party, c.signature, sized, c.exchange))[:, wanted]
    _, first, which = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    times = []
    for entry in np.flatnonzero(wanted)[first].tolist():
        try:
            took = model.time_ns(call_of(graph, c, entry), machine)
        except InputError as error:
            raise (error if error.op is not None else error.about(graph.op_names[int(c.op[entry])])) from None
        whose, op = f"{type(model).__name__}.time_ns", graph.op_names[int(c.op[entry])]
        times += whole_numbers([took], whose, below=LATEST_NS, of=[op]).tolist()
    return np.array(times, np.int64)[which.ravel()]
