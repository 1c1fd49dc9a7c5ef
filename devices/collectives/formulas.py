"""The time of a collective by latency and bandwidth: the sum of its steps, each as long as its slowest part.

::

    a step     latency of the route + bytes / bandwidth of the route, the largest of all messages;
               where several messages of the step use a link, it carries them all;
               over fifo links + the first chunk / bandwidth of each link but the slowest
    ring       all_reduce 2 (n-1) steps of S/n: 2 (n-1)/n S/B + 2 (n-1) alpha
               all_gather, reduce_scatter  (n-1)/n S/B + (n-1) alpha
    tree       all_reduce 2 ceil(log2 n) (S/B + alpha), broadcast and reduce half of it
    halving-doubling    all_reduce 2 (n-1)/n S/B + 2 log2(n) alpha

The alpha-beta model of Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994, with
the step counts of Thakur et al. (`devices.collectives.schedules`). alpha and B come from the links between
the ranks that exchange messages, so one slow link in a ring is what counts. What else goes over the links
does not: for that there are flows (`Flows`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from itertools import pairwise
from math import ceil
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np
from annotated_types import Ge

from devices.collectives.schedules import ALGORITHMS, CollectiveStep, Steps, steps_of, uneven
from devices.describe.field_types import Bandwidth
from sim.base.arrays import IntArray, group_pairs
from sim.base.errors import InputError
from sim.base.units import NS_PER_S, round_half_up
from sim.job.context import Context
from sim.machine.communicators import Call
from sim.machine.links import Network
from sim.machine.machine import Machine

# ----------------------------------------------------------------------------------------------------------
# Which node of a cluster a device is on: what its name begins with.
#
#     node3/gpu5    of `nodes: 16`: on node3
#     rank3/gpu0    a rank of a recorded job, its node was not recorded: on none

_NODE_PREFIX: Final = re.compile(r"node\d+(?=/)")


def node_of(name: str) -> str:
    """Return the node of a device by its name; empty: it names none.

    Examples
    --------
    >>> node_of("node3/gpu5"), node_of("rank3/gpu0"), node_of("gpu0")
    ('node3', '', '')
    """
    match = _NODE_PREFIX.match(name)
    return "" if match is None else match[0]


def by_node(call: Call, machine: Machine) -> list[list[int]]:
    """Return the positions of the ranks on each node, or whatever the names of its devices begin with."""
    names = [machine.devices[rank].name.rpartition("/")[0] for rank in call.ranks]
    return list(group_pairs(zip(names, range(len(names)), strict=True)).values())


# ----------------------------------------------------------------------------------------------------------
# The order in which a ring goes through its ranks, so that its hops are short and share no link.
#
#     0 ─ 1 ─ 2       torus or grid: from neighbour to neighbour, the other columns row by row,
#     │       │       there and back, and home along the first one
#     3   4 ─ 5
#     │   │           nodes on rails: every second node in reverse, so that a ring leaves a node where
#     6   7 ─ 8       the next one is entered, from GPU 7 to GPU 7, from GPU 0 to GPU 0
#     │       │
#     9 ─ 10─ 11      anything else: in the order of ranks
#
# A grid has such a cycle where one of its dimensions is even, or else one wraps around. In a grid of odd
# dimensions without wraps the places have two colours, as on a chessboard, and one of them is on more places:
# there one hop takes two links. On rails all hops between nodes would go from the last GPU to the first
# otherwise, and share the links between their rails. NCCL has each ring keep to a network card, too
# (NCCL_CROSS_NIC in its documentation).
#
# Cycles of two-dimensional grids: Itai, Papadimitriou and Szwarcfiter, "Hamilton paths in grid graphs", SIAM
# Journal on Computing 11(4), 1982. More dimensions are two: one of them, and a path through the others.

_IN_ANY_ORDER: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "barrier"})
"""What a ring does whatever the order of its ranks is: all of them do the same."""


class _Side(NamedTuple):
    """A dimension of a grid: how many ranks, how far apart in their order; is last linked to first."""

    size: int
    stride: int
    wraps: bool


def ring_order(call: Call, machine: Machine) -> IntArray:
    """Return the positions of ranks, one behind another, with the root in its own place.

    Parameters
    ----------
    call : Call
    machine : Machine

    Examples
    --------
    >>> from devices.machine import make_machine
    >>> described = {"devices": {"tpu": {"kind": "npu", "count": 6}}}
    >>> grid = make_machine({**described, "topology": {"kind": "torus", "shape": [2, 3], "wrap": False}})
    >>> ring_order(Call("all_reduce", 6, tuple(range(6))), grid).tolist()
    [0, 1, 2, 5, 4, 3]
    """
    order = _by_rails(call, machine) if call.kind in _IN_ANY_ORDER else list(range(len(call.ranks)))
    sides = _sides(call.ranks, machine)
    if len(sides) > 1:
        order = min(order, _find_ring(sides), key=lambda ring: _hops(ring, call.ranks, machine))
    root = call.ranks.index(call.root) if call.root in call.ranks else 0
    return np.roll(order, root - order.index(root))


def _by_rails(call: Call, machine: Machine) -> list[int]:
    nodes = by_node(call, machine)
    turned = 1 < len(nodes) < len(call.ranks)
    return [position for k, node in enumerate(nodes) for position in _turn(node, k if turned else 0)]


def _turn(row: list[int], k: int) -> list[int]:
    """Return the k-th of several rows as it is walked there and back: every second one in reverse."""
    return row[::-1] if k % 2 else row


def _sides(ranks: tuple[int, ...], machine: Machine) -> list[_Side]:
    """Return the dimensions of the grid that links make of ranks, the last one counting fastest; or none."""

    def are_linked(a: int, b: int) -> bool:
        return len(machine.route(ranks[a], ranks[b])) == 1

    sides: list[_Side] = []
    stride = 1
    while stride < len(ranks):
        size = 1
        while size * stride < len(ranks) and are_linked((size - 1) * stride, size * stride):
            size += 1
        if size == 1:
            return []
        sides.insert(0, _Side(size, stride, are_linked((size - 1) * stride, 0)))
        stride *= size
    return sides if stride == len(ranks) else []


def _find_ring(sides: list[_Side]) -> list[int]:
    """Return the positions in a grid of two dimensions or more, all but one hop at most to a neighbour."""
    even = [side for side in sides if side.size % 2 == 0]
    wrapping = [side for side in sides if side.wraps]
    one = (*even, *wrapping, sides[-1])[0]
    rows, columns = [one], [side for side in sides if side is not one]
    if not even:  # so many rows end on the far side, from which a wrap leads home
        rows, columns = columns, rows
    down, (_, *across) = _snake(rows), _snake(columns)
    zigzag = down[-2:] if not even and not wrapping else []  # there a wrap is missing
    order = [0]
    for k, row in enumerate(down[: len(down) - len(zigzag)]):
        order += [row + column for column in _turn(across, k)]
    for k, column in enumerate(reversed(across)):
        order += [row + column for row in _turn(zigzag, k)]
    return order + down[:0:-1]  # home along the first column


def _snake(sides: list[_Side]) -> list[int]:
    """Return the positions along a path from neighbour to neighbour."""
    path = [0]
    for size, stride, _ in reversed(sides):
        path = [k * stride + position for k in range(size) for position in _turn(path, k)]
    return path


def _hops(order: list[int], ranks: tuple[int, ...], machine: Machine) -> int:
    """Return over how many links a ring goes."""
    return sum(len(machine.route(ranks[a], ranks[b])) for a, b in pairwise([*order, order[0]]))


class _Part(NamedTuple):
    """What may be slowest in a step: latency, ns per byte of the call, and what the first chunk takes again.

    That is `again` for each byte of a message, of which there are at most `first`, the size of a chunk; a
    message has `share` of the call's bytes.
    """

    latency_ns: int
    per_byte: Fraction
    again: Fraction = Fraction(0)
    first: int | None = None
    share: Fraction = Fraction(0)

    def ns(self, nbytes: int) -> Fraction:
        """Return how long it takes in a call of `nbytes`."""
        ns = self.latency_ns + self.per_byte * nbytes
        if self.again:
            message = self.share * nbytes
            ns += self.again * (message if self.first is None else min(message, Fraction(self.first)))
        return ns


_Times = list[tuple[int, list[_Part]]]
"""Of each step: how often it comes, and what may be slowest in it."""


class RunBy(NamedTuple):
    """An algorithm that may run a call, its steps and how long they take."""

    algorithm: str
    steps: Steps
    times: _Times


_AUTO: Final = "auto"

_MOST_DIRECT_RANKS: Final = 32
"""Above this, ``auto`` does not let all ranks send to one another at once: messages would be too many."""


@dataclass(frozen=True)
class Formula:
    """Collectives by latency and bandwidth (alpha-beta), of an algorithm or of the best one.

    Parameters
    ----------
    algorithm : str
        ``ring``, ``tree`` (binomial), ``halving-doubling``, ``direct`` or ``hierarchical``; a collective for
        which it has no form runs as a ring, or directly. ``auto``: the fastest for each call (directly among
        32 ranks at most).
    group : int, optional
        Of ``hierarchical``: how many neighbouring ranks form a group, such as the GPUs of a node; ``auto``
        takes those of a node where the ranks are on several nodes, equally many on each.
    latency_ns : int
        What each message takes besides the latencies of its links.
    bandwidth : int, optional
        Bytes/s that a rank sends, and that it receives, at most, whatever the links are.

    Examples
    --------
    >>> from sim import Device
    >>> machine = Machine(tuple(Device(f"gpu{k}") for k in range(4)))
    >>> ring = Formula(algorithm="ring", latency_ns=1000, bandwidth=10**9)
    >>> ring.time_ns(Call("all_reduce", 4_000_000, (0, 1, 2, 3)), machine)
    6006000
    """

    algorithm: Literal["auto", "ring", "tree", "halving-doubling", "direct", "hierarchical"] = "auto"
    group: Annotated[int, Ge(2)] | None = None
    latency_ns: int = 0
    bandwidth: Bandwidth | None = None
    _known: dict[Hashable, tuple[Machine, list[RunBy]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Refuse a group that has no effect, and one of unknown size."""
        if self.algorithm == "hierarchical" and self.group is None:
            raise InputError("the algorithm hierarchical needs the option group: how many ranks form one")
        if self.group is not None and self.algorithm not in ("hierarchical", _AUTO):
            raise InputError(f"it has no effect with algorithm: {self.algorithm}", path=("group",))

    def time_ns(self, call: Call, machine: Machine) -> int:
        """Return the ns that a call takes once all its ranks are there."""
        if not machine.links and self.bandwidth is None and not self.latency_ns:
            raise InputError(
                "the machine has no links that could say how long a collective takes; give links, or "
                "bandwidth and latency to its collectives"
            )
        return round_half_up(_total(self.best(call, machine).times, call.nbytes))

    def best(self, call: Call, machine: Machine) -> RunBy:
        """Return the algorithm that is over first."""
        sends = (call.sends, call.nbytes) if call.sends else None  # else the steps are those of all sizes
        key = (id(machine), call.kind, call.ranks, call.root, sends)
        if key not in self._known:
            forms = self._forms(call, machine).items()
            timed = [RunBy(name, steps, self._times(steps, call, machine)) for name, steps in forms]
            self._known[key] = machine, timed
        return min(self._known[key][1], key=lambda run: _total(run.times, call.nbytes))

    def _forms(self, call: Call, machine: Machine) -> dict[str, Steps]:
        """Return the algorithms that may run a call, and the steps of each."""
        if call.sends:
            return {"direct": uneven(call.sends, call.nbytes)}
        root = call.ranks.index(call.root) if call.root in call.ranks else 0
        group, n = self.group or _ranks_of_a_node(call, machine), len(call.ranks)
        form = partial(steps_of, kind=call.kind, ranks=n, root=root, group=group)
        names: tuple[str, ...] = (self.algorithm,)
        if call.kind in ("send", "recv"):
            names = ("direct",)
        elif self.algorithm == _AUTO:
            names = tuple(name for name in ALGORITHMS if name != "direct" or n <= _MOST_DIRECT_RANKS)
        for some in (names, ("ring",), ("direct",)):
            forms = {name: steps for name in some if (steps := form(name)) is not None}
            if "ring" in forms:
                forms["ring"] = _in_order(forms["ring"], ring_order(call, machine))
            if forms:
                return forms
        raise InputError(f"nothing is known of how ranks carry out a {call.kind}; give it a duration")

    def _times(self, steps: Steps, call: Call, machine: Machine) -> _Times:
        alike = Counter(id(step) for step in steps)
        distinct = {id(step): step for step in steps}.values()
        return [(alike[id(step)] * step.times, self._slowest(step, call.ranks, machine)) for step in distinct]

    def _slowest(self, step: CollectiveStep, ranks: tuple[int, ...], machine: Machine) -> list[_Part]:
        """Return what may be slowest: each message of a step, and each link that they crowd."""
        parts: dict[Hashable, _Part] = {}  # by the numbers of which they are made: most messages are alike
        users: dict[Hashable, list[_Part]] = {}
        for a, b, share in zip(step.source.tolist(), step.destination.tolist(), step.shares, strict=True):
            links = [(k, machine.links[k]) for k in machine.route(ranks[a], ranks[b])]
            rates: dict[Hashable, int] = {
                machine.channels[k]: link.bandwidth_bytes_per_s
                for k, link in links
                if link.bandwidth_bytes_per_s is not None
            }
            if self.bandwidth is not None:
                rates["out", a] = rates["in", b] = self.bandwidth
            limits = [rate for _, link in links if (rate := link.connection_bytes_per_s) is not None]
            if limits:
                rates["connection", a, b] = min(limits)
            slowest = min(rates.values(), default=None)
            latency_ns = self.latency_ns + machine.latency_ns([k for k, _ in links])
            fifo = [link for _, link in links if link.sharing == "fifo"]
            queues = tuple([(link.bandwidth_bytes_per_s, link.chunk_bytes) for link in fifo])
            queues += ((min(limits), None),) if fifo and limits else ()
            key = latency_ns, slowest, queues, share
            if (part := parts.get(key)) is None:
                part = parts[key] = _lone_message(latency_ns, slowest, queues, share)
            for channel in rates:
                users.setdefault(channel, []).append(part)
        for channel, messages in users.items():
            link_used = machine.links[channel] if isinstance(channel, int) else None
            sharing = link_used.sharing if link_used else "shared"
            if len(messages) > 1 and sharing == "serial":  # one after the other, latencies included
                per_byte = sum((message.per_byte for message in messages), Fraction(0))
                parts[channel] = _Part(sum(message.latency_ns for message in messages), per_byte)
            elif len(messages) > 1 and sharing in ("shared", "fifo"):
                rate = link_used.bandwidth_bytes_per_s if link_used else self.bandwidth
                alike, times = {id(message): message for message in messages}, Counter(map(id, messages))
                latest = max(alike.values(), key=lambda message: (message.latency_ns, message.again))
                shares = sum((n * alike[k].share for k, n in times.items()), Fraction(0))
                if (crowd := (id(latest), rate, shares)) not in parts:
                    parts[crowd] = latest._replace(per_byte=shares * NS_PER_S / Fraction(rate or 1))
        return list(parts.values())


def _ranks_of_a_node(call: Call, machine: Machine) -> int:
    """Return how many neighbouring ranks are on each node; 0: not equally many, or all on one."""
    nodes = by_node(call, machine)
    per_node = len(nodes[0])
    alike = all(node == list(range(k * per_node, (k + 1) * per_node)) for k, node in enumerate(nodes))
    return per_node if alike and 1 < per_node < len(call.ranks) else 0


def _in_order(steps: Steps, order: IntArray) -> Steps:
    """Return the steps of a ring that goes through its ranks in an order."""
    return [step._replace(source=order[step.source], destination=order[step.destination]) for step in steps]


def _lone_message(
    latency_ns: int, slowest: int | None, queues: tuple[tuple[int | None, int | None], ...], share: Fraction
) -> _Part:
    """Return the time of a message that shares no link; `queues` have (bytes/s, bytes of a chunk)."""
    per_byte = Fraction(0) if slowest is None else share * NS_PER_S / slowest
    queue_ns = [Fraction(NS_PER_S, rate) for rate, _ in queues if rate]
    if len(queue_ns) < 2:
        return _Part(latency_ns, per_byte, share=share)
    first = min((chunk for _, chunk in queues if chunk is not None), default=None)
    return _Part(latency_ns, per_byte, sum(queue_ns, Fraction(0)) - max(queue_ns), first, share)


def _total(times: _Times, nbytes: int) -> Fraction:
    """Return the ns of all steps."""
    return sum(
        (n * max((part.ns(nbytes) for part in slowest), default=Fraction(0)) for n, slowest in times),
        Fraction(0),
    )


# ----------------------------------------------------------------------------------------------------------
# Collectives as messages over the machine's links, which they share with all other traffic.
#
# ::
#
#     ring, step k      0 ──► 1 ──► 2      a message goes when both its ends are through with their earlier
#                                          steps; how fast it goes, the network says
#
# Alone on uniform links a collective takes the time of the formula, except for rounding each step to whole ns
# and each message to whole bytes. Two of them on one link, or a transfer beside one, take longer: this is the
# purpose of flows.


@dataclass(frozen=True)
class Flows(Formula):
    """Collectives as messages that share the machine's links with all else that travels there.

    Parameters
    ----------
    algorithm, group, latency_ns
        As for the model ``formula``; ``auto`` takes what is the fastest alone.
    """

    bandwidth: None = field(default=None, init=False, repr=False)  # the links say it

    def time_ns(self, call: Call, machine: Machine) -> int:
        """Return the ns that a call takes where nothing else travels."""
        if not machine.links:
            raise InputError("flows need links between the devices, and the machine has none")
        return super().time_ns(call, machine)

    def carrier(self, machine: Machine, context: Context, network: Network) -> _Carrier:
        """Return what carries the collectives of a run."""
        return _Carrier(self, machine, context, network)


class _Carrier:
    """A `sim.machine.communicators.CollectiveCarrier`."""

    def __init__(self, model: Flows, machine: Machine, context: Context, network: Network) -> None:
        self._model, self._machine, self.context, self._network = model, machine, context, network

    def begin(self, call: Call, done: Callable[[], None]) -> None:
        steps = self._model.best(call, self._machine).steps
        if steps:
            _Run(steps, call, self, done).begin()
        else:
            self.context.call_at(self.context.now_ns, lambda _: done())

    def send(self, source: int, destination: int, nbytes: int, arrived: Callable[[], None]) -> None:
        send = partial(self._network.send, source, destination, nbytes, arrived)
        if self._model.latency_ns:
            self.context.call_at(self.context.now_ns + self._model.latency_ns, lambda _: send())
        else:
            send()


class _Messages:
    """The messages of a step, and the indices of those that each rank sends or receives."""

    def __init__(self, step: CollectiveStep, nbytes: int) -> None:
        self.nbytes = [ceil(share * nbytes) for share in step.shares]
        self.ends = list(zip(step.source.tolist(), step.destination.tolist(), strict=True))
        self.by_rank = group_pairs((rank, k) for k, ends in enumerate(self.ends) for rank in ends)


class _Run:
    """One call: each rank goes through its steps, one after the other."""

    def __init__(self, steps: Steps, call: Call, carrier: _Carrier, done: Callable[[], None]) -> None:
        parts = {id(step): _Messages(step, call.nbytes) for step in steps}
        self._parts = [parts[id(step)] for step in steps for _ in range(step.times)]
        self._ranks, self._carrier, self._done = call.ranks, carrier, done
        self._going: list[tuple[int, int]] = []  # messages that begin at this instant
        self._step = [0] * len(call.ranks)  # of each rank
        self._left = [0] * len(call.ranks)  # messages of that step
        self._ready: set[tuple[int, int]] = set()  # step and index of messages for which one end is ready
        self._under_way = len(call.ranks)

    def begin(self) -> None:
        for rank in range(len(self._ranks)):
            self._enter_step(rank)

    def _send_ready(self) -> None:
        """Send the messages of an instant in the algorithm's order, in which not all go to one rank first."""
        messages, self._going = sorted(self._going), []
        for number, k in messages:
            part = self._parts[number]
            source, destination = (self._ranks[end] for end in part.ends[k])
            self._carrier.send(source, destination, part.nbytes[k], partial(self._on_arrival, *part.ends[k]))

    def _enter_step(self, rank: int) -> None:
        """Begin the next step in which a rank has messages; each goes when its other end is there, too."""
        while self._step[rank] < len(self._parts):
            number = self._step[rank]
            messages = self._parts[number].by_rank.get(rank, ())
            self._left[rank] = len(messages)
            if messages:
                ready = [(number, k) for k in messages if (number, k) in self._ready]
                self._ready ^= {(number, k) for k in messages}
                if ready and not self._going:
                    self._carrier.context.when_settled(self._send_ready)
                self._going += ready
                return
            self._step[rank] += 1
        self._under_way -= 1
        if not self._under_way:
            self._done()

    def _on_arrival(self, source: int, destination: int) -> None:
        for rank in (source, destination):
            self._left[rank] -= 1
            if not self._left[rank]:
                self._step[rank] += 1
                self._enter_step(rank)
