"""The time of a collective by latency and bandwidth: the sum of its steps, each as long as its slowest part.

::

    a step     latency of the route + bytes / bandwidth of the route, the largest of all messages;
               where several messages of the step use a link, it carries them all;
               over fifo links + the first chunk / bandwidth of each link but the slowest
    ring       all_reduce 2 (n-1) steps of S/n: 2 (n-1)/n S/B + 2 (n-1) alpha
               all_gather, reduce_scatter  (n-1)/n S/B + (n-1) alpha
    tree       all_reduce 2 ceil(log2 n) (S/B + alpha), broadcast and reduce half of it
    halving-doubling    all_reduce 2 (n-1)/n S/B + 2 log2(n) alpha
    double-tree, p pieces    broadcast and reduce (2 (p-1) + depth) (S/2p/B + alpha), all_reduce twice that

The alpha-beta model of Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994, with
the step counts of Thakur et al. (`devices.collectives.schedules`). alpha and B come from the links between
the ranks that exchange messages, so one slow link in a ring is what counts. What else goes over the links
does not: for that there are flows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Final, Literal, NamedTuple

from annotated_types import Ge

from devices.collectives.schedules import ALGORITHMS, Step, Steps, steps_of
from devices.describe.field_types import Bandwidth
from sim.machine.communicators import Call
from sim.machine.machine import Machine
from sim.words.errors import InputError
from sim.words.units import NS_PER_S, round_half_up

__all__ = ["Formula"]


class _Part(NamedTuple):
    """What may be slowest in a step: latency, ns per byte of the call, and what the first chunk takes again.

    That is `again` for each byte of a message, of which there are at most `first`, the size of a chunk.
    """

    latency_ns: int
    per_byte: Fraction
    again: Fraction = Fraction(0)
    first: int | None = None

    def ns(self, nbytes: int, share: Fraction) -> Fraction:
        """Return how long it takes in a call of `nbytes`, whose messages have this share of them."""
        ns = self.latency_ns + self.per_byte * nbytes
        if self.again:
            message = share * nbytes
            ns += self.again * (message if self.first is None else min(message, Fraction(self.first)))
        return ns


_Times = list[tuple[Step, int, list[_Part]]]
"""Of each step: how often it comes, and what may be slowest in it."""

_ALL: Final = "auto"

_FEW: Final = 32
"""More ranks do not send to one another all at once unless they are told to: messages would be too many."""


@dataclass(frozen=True)
class Formula:
    """Collectives by latency and bandwidth (alpha-beta), of an algorithm or of the best one.

    Parameters
    ----------
    algorithm : str
        ``ring``, ``tree`` (binomial), ``halving-doubling``, ``direct``, ``hierarchical`` or ``double-tree``;
        a collective for which it has no form runs as a ring, or directly. ``auto``: the fastest for each call
        (directly among 32 ranks at most).
    group : int
        Of ``hierarchical``: how many neighbouring ranks form a group, such as the GPUs of a node.
    pieces : int
        Of ``double-tree``: into how many pieces each tree cuts its half of the bytes.
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

    algorithm: Literal[
        "auto", "ring", "tree", "halving-doubling", "direct", "hierarchical", "double-tree"
    ] = "auto"
    group: Annotated[int, Ge(2)] | None = None
    pieces: Annotated[int, Ge(1)] | None = None
    latency_ns: int = 0
    bandwidth: Bandwidth | None = None
    _known: dict[Hashable, tuple[Machine, list[_Times]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Refuse a group or pieces that have no effect, and those of unknown size."""
        for algorithm, key, what in (
            ("hierarchical", "group", "how many ranks form one"),
            ("double-tree", "pieces", "into how many each tree cuts its half"),
        ):
            given = getattr(self, key)
            if self.algorithm == algorithm and given is None:
                raise InputError(f"the algorithm {algorithm} needs the option {key}: {what}")
            if given is not None and self.algorithm not in (algorithm, _ALL):
                raise InputError(f"it has no effect with algorithm: {self.algorithm}", path=(key,))

    def time_ns(self, call: Call, machine: Machine) -> int:
        """Return the ns that a call takes once all its ranks are there."""
        self._check_links(machine)
        return round_half_up(min(_total(times, call.nbytes) for times in self._ways_ns(call, machine)))

    def _check_links(self, machine: Machine) -> None:
        if not machine.links and self.bandwidth is None and not self.latency_ns:
            raise InputError(
                "the machine has no links that could say how long a collective takes; give links, or "
                "bandwidth and latency to its collectives"
            )

    def best(self, call: Call, machine: Machine) -> Steps:
        """Return the steps of a call by the algorithm that `time_ns` is of."""
        ns = [_total(times, call.nbytes) for times in self._ways_ns(call, machine)]
        return self.ways(call)[ns.index(min(ns))][1]

    def _ways_ns(self, call: Call, machine: Machine) -> list[_Times]:
        key = (id(machine), call.kind, call.ranks, call.root)
        if key not in self._known:
            self._known[key] = machine, [self._times(steps, call, machine) for _, steps in self.ways(call)]
        return self._known[key][1]

    def ways(self, call: Call) -> list[tuple[str, Steps]]:
        """Return the algorithms that may run a call, and the steps of each."""
        root = call.ranks.index(call.root) if call.root in call.ranks else 0
        names: tuple[str, ...] = (self.algorithm,)
        if self.algorithm == _ALL:
            left_out = {"direct"} if len(call.ranks) > _FEW else set()
            left_out |= {"double-tree"} if self.pieces is None else set()
            names = tuple(name for name in ALGORITHMS if name not in left_out)
        for some in (names, ("ring", "direct")):
            found = [
                (name, steps)
                for name in some
                if (
                    steps := steps_of(
                        name, call.kind, len(call.ranks), root, self.group or 0, self.pieces or 1
                    )
                )
                is not None
            ]
            if found:
                return found if names is some else found[:1]
        raise InputError(f"nothing is known of how ranks carry out a {call.kind}; give it a duration")

    def _times(self, steps: Steps, call: Call, machine: Machine) -> _Times:
        alike = Counter(id(step) for step in steps)
        different = {id(step): step for step in steps}.values()
        return [
            (step, alike[id(step)] * step.times, self._slowest(step, call.ranks, machine))
            for step in different
        ]

    def _slowest(self, step: Step, ranks: tuple[int, ...], machine: Machine) -> list[_Part]:
        """Return what may be slowest: each message of a step, and each link that they crowd."""
        found: set[_Part] = set()
        users: dict[Hashable, list[_Part]] = {}
        for a, b in zip(step.source.tolist(), step.destination.tolist(), strict=True):
            route = machine.route(ranks[a], ranks[b])
            rates: dict[Hashable, int | None] = {
                machine.channels[k]: machine.links[k].bandwidth_bytes_per_s for k in route
            }
            rates |= {("out", a): self.bandwidth, ("in", b): self.bandwidth}
            slowest = min((rate for rate in rates.values() if rate is not None), default=None)
            latency_ns = self.latency_ns + machine.latency_ns(route)
            alone = _Part(latency_ns, Fraction(0) if slowest is None else step.share * NS_PER_S / slowest)
            queues = [machine.links[k] for k in route if machine.links[k].sharing == "fifo"]
            each = [Fraction(NS_PER_S, q.bandwidth_bytes_per_s) for q in queues if q.bandwidth_bytes_per_s]
            if len(each) > 1:
                chunks = (queue.chunk_bytes for queue in queues)
                first = min((chunk for chunk in chunks if chunk is not None), default=None)
                alone = alone._replace(again=sum(each, Fraction(0)) - max(each), first=first)
            found.add(alone)
            for what, rate in rates.items():
                if rate is not None:
                    users.setdefault(what, []).append(alone)
        for what, messages in users.items():
            sharing = machine.links[what].sharing if isinstance(what, int) else "shared"
            if len(messages) > 1 and sharing == "serial":  # one after the other, latencies included
                whole = sum((each.per_byte for each in messages), Fraction(0))
                found.add(_Part(sum(each.latency_ns for each in messages), whole))
            elif len(messages) > 1 and sharing in ("shared", "fifo"):
                rate = machine.links[what].bandwidth_bytes_per_s if isinstance(what, int) else self.bandwidth
                per_byte = len(messages) * step.share * NS_PER_S / Fraction(rate or 1)
                latest = max(messages, key=lambda each: (each.latency_ns, each.again))
                found.add(latest._replace(per_byte=per_byte))
        return list(found)


def _total(times: _Times, nbytes: int) -> Fraction:
    """Return the ns of all steps."""
    return sum(
        (
            n * max((part.ns(nbytes, step.share) for part in slowest), default=Fraction(0))
            for step, n, slowest in times
        ),
        Fraction(0),
    )
