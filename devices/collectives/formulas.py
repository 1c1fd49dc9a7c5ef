"""The time of a collective by latency and bandwidth: the sum of its steps, each as long as its slowest part.

::

    a step     latency of the route + bytes / bandwidth of the route, the largest of all messages;
               where several messages of the step use a link, it carries them all
    ring       all_reduce 2 (n-1) steps of S/n: 2 (n-1)/n S/B + 2 (n-1) alpha
               all_gather, reduce_scatter  (n-1)/n S/B + (n-1) alpha
    tree       all_reduce 2 ceil(log2 n) (S/B + alpha), broadcast and reduce half of it
    halving-doubling    all_reduce 2 (n-1)/n S/B + 2 log2(n) alpha

The alpha-beta model of Hockney, "The communication challenge for MPP", Parallel Computing 20(3), 1994, with
the step counts of Thakur et al. (`devices.collectives.schedules`). alpha and B come from the links between
the ranks that exchange messages, so one slow link in a ring is what counts. What else goes over the links
does not: for that there are flows.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Final, Literal

from annotated_types import Ge

from devices.collectives.schedules import ALGORITHMS, Step, Steps, steps_of, uneven
from devices.describe.field_types import Bandwidth
from sim.machine.communicators import Call
from sim.machine.machine import Machine
from sim.words.errors import InputError
from sim.words.units import NS_PER_S, round_half_up

__all__ = ["Formula"]

_Times = list[tuple[int, list[tuple[int, Fraction]]]]
"""Of each step: how often it is repeated, and (latency, ns per byte of the call) of what may be slowest."""

_ALL: Final = "auto"

_FEW: Final = 32
"""More ranks do not send to one another all at once unless they are told to: messages would be too many."""


@dataclass(frozen=True)
class Formula:
    """Collectives by latency and bandwidth (alpha-beta), of an algorithm or of the best one.

    Parameters
    ----------
    algorithm : str
        ``ring``, ``tree`` (binomial), ``halving-doubling``, ``direct`` or ``hierarchical``; a collective for
        which it has no form runs as a ring, or directly. ``auto``: the fastest for each call (directly among
        32 ranks at most).
    group : int
        Of ``hierarchical``: how many neighbouring ranks form a group, such as the GPUs of a node.
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
    _known: dict[Hashable, tuple[Machine, list[_Times]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Refuse a group that has no effect, and groups of unknown size."""
        if self.algorithm == "hierarchical" and self.group is None:
            raise InputError("the algorithm hierarchical needs the option group: how many ranks form one")
        if self.group is not None and self.algorithm not in ("hierarchical", _ALL):
            raise InputError(f"it has no effect with algorithm: {self.algorithm}", path=("group",))

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
        key = (id(machine), call.kind, call.ranks, call.root, call.sends)
        if key not in self._known:
            self._known[key] = machine, [self._times(steps, call, machine) for _, steps in self.ways(call)]
        return self._known[key][1]

    def ways(self, call: Call) -> list[tuple[str, Steps]]:
        """Return the algorithms that may run a call, and the steps of each."""
        if call.sends:
            return [("direct", uneven(call.sends, call.nbytes))]
        root = call.ranks.index(call.root) if call.root in call.ranks else 0
        names: tuple[str, ...] = (self.algorithm,)
        if self.algorithm == _ALL:
            names = tuple(name for name in ALGORITHMS if name != "direct" or len(call.ranks) <= _FEW)
        for some in (names, ("ring", "direct")):
            found = [
                (name, steps)
                for name in some
                if (steps := steps_of(name, call.kind, len(call.ranks), root, self.group or 0)) is not None
            ]
            if found:
                return found if names is some else found[:1]
        raise InputError(f"nothing is known of how ranks carry out a {call.kind}; give it a duration")

    def _times(self, steps: Steps, call: Call, machine: Machine) -> _Times:
        return [(step.times, self._slowest(step, call.ranks, machine)) for step in steps]

    def _slowest(self, step: Step, ranks: tuple[int, ...], machine: Machine) -> list[tuple[int, Fraction]]:
        """Return (latency, ns per byte of the call) of each message of a step, and of each link it crowds."""
        found: set[tuple[int, Fraction]] = set()
        users: dict[Hashable, list[tuple[int, Fraction, Fraction]]] = {}
        for a, b, share in zip(step.source.tolist(), step.destination.tolist(), step.shares, strict=True):
            route = machine.route(ranks[a], ranks[b])
            rates: dict[Hashable, int | None] = {
                machine.channels[k]: machine.links[k].bandwidth_bytes_per_s for k in route
            }
            rates |= {("out", a): self.bandwidth, ("in", b): self.bandwidth}
            slowest = min((rate for rate in rates.values() if rate is not None), default=None)
            latency_ns = self.latency_ns + machine.latency_ns(route)
            alone = latency_ns, Fraction(0) if slowest is None else share * NS_PER_S / slowest
            found.add(alone)
            for what, rate in rates.items():
                if rate is not None:
                    users.setdefault(what, []).append((*alone, share))
        for what, messages in users.items():
            sharing = machine.links[what].sharing if isinstance(what, int) else "shared"
            if len(messages) > 1 and sharing == "serial":  # one after the other, latencies included
                latency_ns = sum(ns for ns, _, _ in messages)
                found.add((latency_ns, sum((ns for _, ns, _ in messages), Fraction(0))))
            elif len(messages) > 1 and sharing == "shared":
                rate = machine.links[what].bandwidth_bytes_per_s if isinstance(what, int) else self.bandwidth
                shares = sum((share for _, _, share in messages), Fraction(0))
                found.add((max(ns for ns, _, _ in messages), shares * NS_PER_S / Fraction(rate or 1)))
        return sorted(found)


def _total(times: _Times, nbytes: int) -> Fraction:
    """Return the ns of all steps."""
    return sum(
        (
            n * max((ns + per_byte * nbytes for ns, per_byte in slowest), default=Fraction(0))
            for n, slowest in times
        ),
        Fraction(0),
    )
