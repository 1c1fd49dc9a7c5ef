"""Communicators and their collectives: which ops belong to which, and which ops meet, before time 0.

::

    communicator dp    gpu0: all_reduce a0, all_reduce b0     the first ops of all ranks meet,
                       gpu1: all_reduce a1, all_reduce b1     and so do the second ones

An op belongs to a communicator by its attribute ``communicator``; the ranks are the devices of all ops that
name it, in machine order. Each rank has a *line*: a queue of its collectives in the order in which its host
issued them, whatever their streams; one at a time is under way. The ranks that meet are a *party*: all ranks,
or for ``send`` and ``recv``, which name the other side as ``peer``, those two. The n-th op that a rank issues
for a party meets the n-th of every other rank of the party: they form one *meeting*.

Sends and recvs that a rank issues one after another with the same attribute ``group`` are one group call:
they share one place in line and run side by side, each on a stream of its own (``ncclGroupStart``,
``ncclGroupEnd``, PyTorch's ``batch_isend_irecv``); those with the same peer and direction still run one after
another.

If ranks are folded (`sim.machine.machine`), one may meet itself, and sends to several ranks may go to the
same one: then the attribute ``pair``, a number, tells parties apart.

Source: NCCL's user guide (https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/usage.html), "Using
multiple NCCL communicators concurrently" and "Point-to-point communication": all ranks issue the collectives
of a communicator in one order, and the device runs them in that order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from sim.base.arrays import LATEST_NS, UNSET, BoolArray, Codes, Csr, IntArray, by_first_use
from sim.base.errors import GraphError, InputError, hint
from sim.base.options import whole_numbers
from sim.base.units import format_bytes
from sim.graph.frames import has_control_flow
from sim.graph.graph import Graph
from sim.machine.communicators import Call, ToldCollectives, even_nbytes
from sim.machine.device import Device
from sim.machine.machine import Machine

_ROOTED: Final = frozenset({"broadcast", "reduce"})
_PAIRED: Final = frozenset({"send", "recv"})
_UNEVEN: Final = frozenset({"all_to_all", "alltoall"})
"""Kinds in which the sizes may differ between ranks."""

COLLECTIVE_KINDS: Final = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "barrier", "collective", *_ROOTED, *_PAIRED, *_UNEVEN}
)
"""Kinds of op that may belong to a communicator."""


@dataclass(frozen=True, eq=False)
class Collectives:
    """The ops of a job that belong to communicators.

    Attributes
    ----------
    names : tuple of str
        The communicators, in the order of their first ops.
    ranks : tuple of tuple of int
        Devices of each communicator, in machine order.
    op, communicator, device, nbytes : arrays of int64
        One entry per such op, in graph order. `nbytes` is the size in the sense of nccl-tests: the attribute
        ``nbytes``, by default the larger of the bytes that the op reads and writes.
    root : array of int64
        Device that sends (``broadcast``) or gets the result (``reduce``), by default the first rank; -1 for
        all other kinds.
    line, party, seat : arrays of int64
        The line that the op stands in, the party that it meets, and its seat: a rank of a party.
    signature : array of int64
        A number for what has to be the same on all ranks: kind, size, root, exchange.
    group : array of int64
        A number for the op's group call; -1: none.
    exchange : array of int64
        Index in `sends` of the exchange of an uneven ``all_to_all``; -1: none.
    sends : tuple of tuple of tuple of int
        For each such exchange: the bytes from each rank to each.
    members : tuple of tuple of int
        Devices of each party, in machine order; for a pair, the sender first.
    party_of_seat : array of int64
    """

    names: tuple[str, ...]
    ranks: tuple[tuple[int, ...], ...]
    op: IntArray
    communicator: IntArray
    device: IntArray
    nbytes: IntArray
    root: IntArray
    line: IntArray
    party: IntArray
    seat: IntArray
    signature: IntArray
    group: IntArray
    exchange: IntArray
    sends: tuple[tuple[tuple[int, ...], ...], ...]
    members: tuple[tuple[int, ...], ...]
    party_of_seat: IntArray


def collectives_of(graph: Graph, machine: Machine, device_of: IntArray) -> Collectives | None:
    """Return the communicators of a placed graph; None if there are none.

    Parameters
    ----------
    graph : Graph
    machine : Machine
    device_of : array of int64
        Device of every op.

    Raises
    ------
    InputError
        An op has a kind that is no collective, no peer, a root that is no rank, ...; ranks do not have the
        same collectives; or the graph has control flow.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> b = GraphBuilder("two ranks")
    >>> for gpu in ("gpu0", "gpu1"):
    ...     of = {"kind": "all_reduce", "attributes": {"communicator": "dp"}}
    ...     _ = b.op(f"{gpu}/a", device=gpu, bytes_read=8, **of)
    >>> found = collectives_of(b.build(), Machine((Device("gpu0"), Device("gpu1"))), np.array([0, 1]))
    >>> found.names, found.ranks, found.nbytes.tolist()
    (('dp',), ((0, 1),), [8, 8])
    """
    ops = graph.in_communicators
    _refuse_strays(graph, "peer", _PAIRED)
    _refuse_strays(graph, "root", _ROOTED)
    if not ops:
        return None
    if has_control_flow(graph):
        message = "nobody knows before time 0 how often it runs, as the graph has control flow"
        raise graph.fault(ops[0], f"belongs to a communicator, and {message}", "communicator")
    op = np.array(ops, np.int64)
    device = device_of[op]
    n = len(machine.devices)
    names = Codes[str]()
    communicator = names.of(_name_of(graph, k) for k in ops)
    codes = communicator.tolist()
    lines, line = np.unique(communicator * n + device, return_inverse=True)
    ranks: list[list[int]] = [[] for _ in names]
    for c, d in zip(*np.divmod(lines, n), strict=True):
        ranks[c].append(int(d))
    nbytes = np.maximum(graph.bytes_read[op], graph.bytes_written[op]) * ~graph.is_kind("barrier")[op]
    root, peer, pair = (np.full(len(op), UNSET) for _ in range(3))
    for i, k in enumerate(ops):
        attrs = graph.attributes[k]
        nbytes[i] = attrs.get("nbytes", sum(attrs["sends"].values()) if "sends" in attrs else nbytes[i])
        root[i] = _rank(graph, machine, k, "root", _ROOTED, ranks[codes[i]])
        peer[i] = _rank(graph, machine, k, "peer", _PAIRED, ranks[codes[i]])
        pair[i] = attrs.get("pair", UNSET)
        if peer[i] == device[i] and pair[i] == UNSET:
            raise graph.fault(k, "has itself as its peer", "peer")
    sends, paired = graph.is_kind("send")[op], peer != UNSET
    source, sink = np.where(sends, device, peer), np.where(sends, peer, device)
    ends = np.where(paired, 1 + source * n + sink, 0)
    key = (communicator * (n * n + 1) + ends) * (pair.max() + 2) + pair + 1  # a number for all three
    party, _, first = by_first_use(key)
    members = tuple(
        (int(source[i]), int(sink[i])) if paired[i] else tuple(ranks[codes[i]]) for i in first.tolist()
    )
    beside = np.where(sends & (source == sink), n, 0)  # a rank that meets itself has two seats
    seats, seat = np.unique(party * 2 * n + beside + device, return_inverse=True)
    kind_codes = {kind: code for code, kind in enumerate(sorted(COLLECTIVE_KINDS))}
    kind_code = np.array([kind_codes[graph.kind(k)] for k in ops])
    sized = ~graph.is_kind(*_UNEVEN)[op]
    exchange, exchanged = _exchanges(graph, machine, ops, seat, seats, members)
    facts = np.stack((np.where(paired, 0, kind_code), np.where(sized, nbytes, 0), root, exchange))
    signature = np.unique(facts, axis=1, return_inverse=True)[1].ravel()
    collectives = Collectives(
        tuple(names),
        tuple(tuple(row) for row in ranks),
        *(op, communicator, device, nbytes, root, line, party, seat, signature),
        _groups(graph, ops),
        exchange,
        exchanged,
        members,
        seats // (2 * n),
    )
    _check_ranks(graph, machine, collectives)
    return collectives


def _groups(graph: Graph, ops: Sequence[int]) -> IntArray:
    """Return the number of each op's group call; -1: none."""
    numbers = Codes[str | int]()
    groups = np.full(len(ops), UNSET)
    for i, op in enumerate(ops):
        group = graph.attributes[op].get("group")
        if group is None:
            continue
        if graph.kind(op) not in _PAIRED:
            raise graph.fault(op, "is in a group; only recv and send can be", "group")
        if isinstance(group, bool) or not isinstance(group, str | int):
            raise graph.fault(op, f"has the group {group!r}; give it a name or a number", "group")
        groups[i] = numbers[group]
    return groups


def _exchanges(
    graph: Graph,
    machine: Machine,
    ops: list[int],
    seat: IntArray,
    seats: IntArray,
    members: tuple[tuple[int, ...], ...],
) -> tuple[IntArray, tuple[tuple[tuple[int, ...], ...], ...]]:
    """Return the exchange that each op belongs to, and for each exchange the bytes from each rank to each.

    The attribute ``sends`` of an op gives the bytes to each rank. The k-th op of one rank that has it (in
    graph order) matches the k-th of every other rank.
    """
    exchange = np.full(len(ops), UNSET)
    numbers: dict[tuple[int, int], int] = {}
    sends: list[list[tuple[int, ...]]] = []
    count: dict[int, int] = {}
    for i, op in enumerate(ops):
        sizes = graph.attributes[op].get("sends")
        if sizes is None:
            continue
        if "nbytes" in graph.attributes[op]:
            raise graph.fault(op, "says what it sends to whom, which is its size; leave out nbytes", "nbytes")
        if graph.kind(op) not in _UNEVEN:
            raise graph.fault(op, "does not say what it sends to whom; only all_to_all does", "sends")
        party, device = divmod(int(seats[seat[i]]), 2 * len(machine.devices))
        ranks = members[party]
        names = [machine.devices[d].name for d in ranks]
        for name in sizes:
            if name not in names:
                where = f"communicator {graph.attributes[op]['communicator']!r}{hint(name, names)}"
                raise graph.fault(op, f"sends to {name!r}, which is no rank of {where}", "sends")
        k = count[int(seat[i])] = count.get(int(seat[i]), 0) + 1
        index = numbers.setdefault((party, k), len(sends))
        if index == len(sends):
            sends.append([(0,) * len(ranks)] * len(ranks))
        exchange[i] = index
        sends[index][ranks.index(device)] = tuple(sizes.get(name, 0) for name in names)
    return exchange, tuple(tuple(rows) for rows in sends)


def _refuse_strays(graph: Graph, role: str, kinds: frozenset[str]) -> None:
    """Raise on a peer or root that has no effect because no communicator is named."""
    for op in np.flatnonzero(graph.is_kind(*kinds)).tolist():
        attributes = graph.attributes.get(op, {})
        if role in attributes and "communicator" not in attributes:
            raise graph.fault(op, f"has a {role} and belongs to no communicator; name it", role)


def _name_of(graph: Graph, op: int) -> str:
    """Return the communicator of an op, after checks."""
    attributes, kind = graph.attributes[op], graph.kind(op)
    name: str = attributes["communicator"]
    if kind not in COLLECTIVE_KINDS:
        allowed = ", ".join(sorted(COLLECTIVE_KINDS))
        message = f"is no collective, and belongs to communicator {name!r}; kinds that may: {allowed}"
        raise graph.fault(op, message, "communicator")
    if "key" in attributes:
        raise graph.fault(op, "has a key and a communicator; it meets by one of the two", "key")
    return name


def _rank(graph: Graph, machine: Machine, op: int, role: str, kinds: frozenset[str], ranks: list[int]) -> int:
    """Return the device that an op names as its root or peer, or the default root; -1: it has none."""
    kind, attributes = graph.kind(op), graph.attributes[op]
    if role in attributes and kind not in kinds:
        raise graph.fault(op, f"has no {role}; only {' and '.join(sorted(kinds))} have one", role)
    if role in attributes:
        name = attributes[role]
        device = machine.positions.get(name, UNSET)
        position = bisect_left(ranks, device)
        if ranks[position : position + 1] != [device]:
            names = [machine.devices[d].name for d in ranks]
            where = f"is no rank of communicator {attributes['communicator']!r}{hint(name, names)}"
            raise graph.fault(op, f"names {name!r} as its {role}, which {where}", role)
        return device
    if role == "peer" and kind in kinds:
        side = "to" if kind == "send" else "from"
        raise graph.fault(op, f"does not say {side} whom; give its attribute peer: DEVICE", "communicator")
    return ranks[0] if kind in kinds else UNSET


def describe_collective(graph: Graph, op: int, nbytes: int) -> str:
    """Return a description of a collective for messages: ``all_reduce 'gpu0/a' of 4 MB``."""
    size = f" of {format_bytes(nbytes)}" if nbytes else ""
    return f"{graph.kind(op)} {graph.op_names[op]!r}{size}"


def _check_ranks(graph: Graph, machine: Machine, c: Collectives) -> None:
    """Raise if the ranks of a party do not have the same collectives.

    The order in which each rank issues them is known only at run time.
    """
    n_seats, by_signature = len(c.party_of_seat), np.argsort(c.signature, kind="stable")
    entries = Csr.group(c.seat[by_signature], by_signature, n_seats).lists()
    seats = Csr.group(c.party_of_seat, np.arange(n_seats), len(c.members)).lists()
    for party, of_party in enumerate(seats):
        of_rank = [entries[seat] for seat in of_party]
        first = of_rank[0]
        name = c.names[int(c.communicator[first[0]])]
        devices = [machine.devices[int(c.device[other[0]])].name for other in of_rank]
        for absent in (machine.devices[d].name for d in c.members[party]):
            if absent not in devices:
                problem = f"is on {devices[0]}, and {absent} has nothing that it could meet"
                raise graph.fault(int(c.op[first[0]]), f"of communicator {name!r} {problem}", "communicator")
        for device, other in zip(devices, of_rank, strict=True):
            if len(first) != len(other):
                clash = f"{devices[0]} has {len(first)} and {device} has {len(other)}"
                message = f"of communicator {name!r} must be as often on every rank as on the others: {clash}"
                longer = max(other, first, key=len)
                raise graph.fault(int(c.op[longer[-1]]), message, "communicator")
            differ = c.signature[first] != c.signature[other]
            if differ.any():
                k = int(differ.argmax())
                pair = (i[k] for i in (first, other))
                a, b = (describe_collective(graph, int(c.op[i]), int(c.nbytes[i])) for i in pair)
                clash = f"{devices[0]} has {a} and {device} has {b}, which do not fit"
                message = f"the ranks of communicator {name!r} must have the same collectives; {clash}"
                raise GraphError(message).about(graph.op_names[int(c.op[other[k]])], "communicator")


# ----------------------------------------------------------------------------------------------------------
# Durations of collectives that give none themselves: the machine's model gives the time of each call.


def modelled_ops(graph: Graph, machine: Machine, device: Device) -> IntArray:
    """Return the ops of communicators whose duration on a device comes from the machine's model.

    Those are the ops without a duration there, if the machine has a model.
    """
    ops = np.array(graph.in_communicators if machine.collectives is not None else [], np.int64)
    return np.asarray(ops[graph.given_ns(device.kind, device.name)[ops] == UNSET])


def is_modelled(graph: Graph, machine: Machine, c: Collectives) -> BoolArray:
    """Return a mask of the collectives whose duration comes from the machine's model."""
    return _give_no_duration(graph, machine, c) & (machine.collectives is not None)


def _give_no_duration(graph: Graph, machine: Machine, c: Collectives) -> BoolArray:
    mask = np.zeros(len(c.op), dtype=bool)
    alike = [(d.kind, d.name if d.name in graph.duration_by_kind else "") for d in machine.devices]
    for key in dict.fromkeys(alike):
        on_device = np.array([other == key for other in alike])[c.device]
        mask |= on_device & (graph.given_ns(*key)[c.op] == UNSET)
    return mask


_NO_NETWORK: Final = "collectives cross no network: the machine has neither links nor machine.collectives"


def model_notice(graph: Graph, machine: Machine, c: Collectives | None, model: object) -> str | None:
    """Return a line that names the model of collectives (or says that there is none), if no model was chosen.

    Folded ranks carry durations of their own, which the model gave for the whole machine.
    """
    if c is not None and model is None:
        return _NO_NETWORK if _give_no_duration(graph, machine, c).any() else None
    if c is None or not isinstance(model, ToldCollectives):
        return None
    return model.told if machine.folding is not None or is_modelled(graph, machine, c).any() else None


def call_of(graph: Graph, c: Collectives, entry: int) -> Call:
    """Return the call of a collective, as the machine's model takes it."""
    kind = graph.kind(int(c.op[entry]))
    kind = {"recv": "send", "alltoall": "all_to_all"}.get(kind, kind)
    name = c.names[int(c.communicator[entry])]
    sends = c.sends[int(c.exchange[entry])] if c.exchange[entry] != UNSET else ()
    nbytes = even_nbytes(sends) if sends else int(c.nbytes[entry])
    return Call(kind, nbytes, c.members[int(c.party[entry])], int(c.root[entry]), name, sends)


def modelled_ns(graph: Graph, machine: Machine, c: Collectives, selected: BoolArray) -> IntArray:
    """Return how long the `selected` collectives take by the machine's model.

    Raises
    ------
    InputError
        The model does not support a call, or returns an invalid time.
    """
    model = machine.collectives
    assert model is not None
    sized = np.where(c.exchange == UNSET, c.nbytes, 0)
    keys = np.stack((c.party, c.signature, sized, c.exchange))[:, selected]
    _, first, index = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    times = []
    for entry in np.flatnonzero(selected)[first].tolist():
        try:
            ns = model.time_ns(call_of(graph, c, entry), machine)
        except InputError as error:
            raise (error if error.op is not None else error.about(graph.op_names[int(c.op[entry])])) from None
        source, op = f"{type(model).__name__}.time_ns", graph.op_names[int(c.op[entry])]
        times += whole_numbers([ns], source, below=LATEST_NS, of=[op]).tolist()
    return np.array(times, np.int64)[index.ravel()]
