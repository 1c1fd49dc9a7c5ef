"""Links between devices, and the networks that carry bytes over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence, Set
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Final, NamedTuple, Protocol

from sim.base.errors import InfeasibleError, InputError, UnknownNameError
from sim.base.options import need_names, need_types, need_whole
from sim.machine.task import Task


@dataclass(frozen=True)
class Link:
    """A one-way connection that carries bytes between two devices.

    Attributes
    ----------
    name, source, destination : str
        Names of the link and of the devices at its ends.
    latency_ns : int
        Time before the first byte arrives.
    bandwidth_bytes_per_s : int or None
        None is unlimited: a transfer takes the latency.
    sharing : str
        ``"serial"``: transfers go one after another, in the order in which they became ready, and hold their
        whole route.
        ``"fifo"``: each link sends chunks one after another, first come, first served, and forwards each
        once it has all of it (store and forward).
        ``"shared"``: concurrent transfers share the bandwidth max-min fairly.
        ``"independent"``: each has the full bandwidth, as in the literature on list scheduling.
    rendezvous : bool
        Whether a tensor that a Recv finds by key (`sim.readiness.rendezvous`) travels only once its request
        has arrived, which takes the latency of the route, as between processes. Otherwise none is needed.
    medium : str
        Links with the same medium form one: the two directions of a half-duplex link, or all links of a bus.
        They share its bandwidth, or are held together. They must be equal in latency, bandwidth and
        `sharing`.
    connection_bytes_per_s : int or None
        Maximum total rate of all transfers from one device to another, as over one TCP connection.
    overhead_ns : int
        Extra cost of each message: on a route, the maximum of its links, once.
    host_copies : bool
        Whether a thread of the sender's host copies the bytes, and does nothing else meanwhile
        (`sim.job.transfers`).
    chunk_bytes : int or None
        For a link with ``sharing="fifo"``: the largest chunk; a message is cut into chunks of the smallest
        size on its route. None: messages stay whole.
    """

    name: str
    source: str
    destination: str
    latency_ns: int = 0
    bandwidth_bytes_per_s: int | None = None
    sharing: str = "serial"
    rendezvous: bool = False
    medium: str = ""
    connection_bytes_per_s: int | None = None
    overhead_ns: int = 0
    host_copies: bool = False
    chunk_bytes: int | None = None

    def __post_init__(self) -> None:
        """Raise on invalid numbers and types."""
        owner = f"link {self.name!r}"
        words = {"name": str, "source": str, "destination": str, "sharing": str, "medium": str}
        need_types(self, owner, **words, rendezvous=bool, host_copies=bool)
        need_whole(self, owner, "latency_ns overhead_ns")
        rates = "bandwidth_bytes_per_s connection_bytes_per_s chunk_bytes"
        need_whole(self, owner, "", optional=rates, least=1)

    @property
    def is_contended(self) -> bool:
        """Whether transfers that are under way at one time compete for it."""
        limits = {"serial": True, "independent": None}.get(self.sharing, self.bandwidth_bytes_per_s)
        return bool(limits or self.connection_bytes_per_s)


class Message(NamedTuple):
    """Carried data that is not a transfer of a tensor, but part of a collective.

    Attributes
    ----------
    source, destination : int
        Positions of devices.
    nbytes : int
    ready_ns, start_ns, end_ns : int
        When it was given to the network, when it began, and when it arrived.
    """

    source: int
    destination: int
    nbytes: int
    ready_ns: int
    start_ns: int
    end_ns: int


class Network(Protocol):
    """Carries transfers over links."""

    def start(self, task: Task) -> None:
        """Take a ready transfer; call `started` when it begins and `finish` when it has arrived."""

    def send(self, source: int, destination: int, nbytes: int, arrived: Callable[[], None]) -> None:
        """Carry a message that is not a transfer of a tensor; call ``arrived()`` when it has arrived."""

    def cut_links(self, links: Set[int]) -> None:
        """Stop links (indices) from carrying anything from now on: a device at their end has failed."""


# ----------------------------------------------------------------------------------------------------------
# Which links lead from one device to another: a shortest path, one of several equally short, or a given one.
#
#     shortest    fewest hops, then least latency, then the links that come first in the machine
#     ecmp        every device forwards a flow over one of its links on such a path, chosen by a hash: flows
#                 between two devices spread over all paths of least hops and latency
#     given       the devices that a route passes are listed
#
# Equal-cost multi-path (ECMP): Hopps, "Analysis of an Equal-Cost Multi-Path Algorithm", RFC 2992, 2000. Every
# switch hashes what identifies a flow, so that all of its packets take one path; here a flow is identified by
# its source, destination and flow number (for a transfer, that of its tensor). The name of the switch goes
# into the hash, because switches with identical hashes would use only part of the paths.
#
# Paths are searched for only when a route is requested: from both ends at once, so that in a cluster hardly
# anything is examined but the switches between them. What was found from a destination is kept, and the next
# search goes on from there, the farther the more the searches from sources have cost. Among several links to
# forward over, the hash of a flow chooses.

_MAX_CACHED: Final = 1 << 22
"""Maximum number of devices in all that was found from destinations and is kept."""


@dataclass(frozen=True)
class Routing:
    """How routes are chosen.

    Attributes
    ----------
    kind : str
        ``shortest`` or ``ecmp``.
    seed : int
        The seed of the hashes of ``ecmp``.
    given : mapping of (str, str) to tuple of str
        Source and destination of a route → the devices that it passes in between.
    """

    kind: str = "shortest"
    seed: int = 0
    given: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise on an unknown kind and on wrong types."""
        need_whole(self, "routing", "seed")
        need_types(self, "routing", given=Mapping)
        for ends, via in self.given.items():
            if not isinstance(ends, tuple) or len(ends) != 2 or not isinstance(via, tuple | list):
                raise InputError(f"routing: given: {ends!r}: {via!r} should be a pair and a tuple of names")
            need_names((*ends, *via), "routing: given")
        if self.kind not in ("shortest", "ecmp"):
            raise UnknownNameError("routing", self.kind, ("shortest", "ecmp"))


SHORTEST: Final = Routing()
"""The default routing."""


def ecmp_hash(seed: int, source: str, destination: str, flow: int, switch: str) -> int:
    """Return the 64-bit hash by which the device `switch` chooses one of its links for a flow.

    Examples
    --------
    >>> ecmp_hash(0, "gpu0", "gpu1", 0, "leaf0") % 4, ecmp_hash(0, "gpu0", "gpu1", 1, "leaf0") % 4
    (0, 1)
    """
    text = "\0".join((str(seed), source, destination, str(flow), switch))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


class Router:
    """The routes of a machine, found on demand.

    Parameters
    ----------
    names : sequence of str
        The names of the devices.
    links : sequence of Link
    routing : Routing
    """

    def __init__(self, names: Sequence[str], links: Sequence[Link], routing: Routing) -> None:
        self._names, self._links, self._routing = names, links, routing
        position = {name: i for i, name in enumerate(names)}
        self._latency_ns = [link.latency_ns for link in links]
        self._ends = [position[link.source] for link in links], [position[link.destination] for link in links]
        # Links out of each device, links into it
        self._links_at: tuple[list[list[int]], ...] = ([[] for _ in names], [[] for _ in names])
        for links_at, ends in zip(self._links_at, self._ends, strict=True):
            for k, device in enumerate(ends):
                links_at[device].append(k)
        # destination → device near it → the links to forward over; and the farthest
        self._near: dict[int, tuple[dict[int, list[int]], list[int]]] = {}
        self._examined = Counter[int]()  # destination → number of links examined from sources
        # destination → device → latency from there, and the links to take (several: a flow chooses)
        self._next_hops: dict[int, dict[int, tuple[int, list[int]]]] = {}
        self._routes: dict[tuple[int, int, int], tuple[int, ...]] = {}
        self._given = {
            (position[a], position[b]): self._links_through([position[name] for name in (a, *via, b)])
            for (a, b), via in routing.given.items()
        }
        self.by_flow: Final = routing.kind == "ecmp"

    def route(self, source: int, destination: int, flow: int = 0) -> tuple[int, ...]:
        """Return the links that lead from one device to another.

        Raises
        ------
        InfeasibleError
            No links lead there.
        """
        key = (source, destination, flow if self.by_flow else 0)
        route = self._routes.get(key)
        if route is None:
            route = self._given.get((source, destination)) or self._find_route(source, destination, key[2])
            self._routes[key] = route
        return route

    def _links_through(self, devices: Sequence[int]) -> tuple[int, ...]:
        """Return the links from each device to the next: among parallel ones, the first of least latency."""
        links = []
        for a, b in pairwise(devices):
            parallel = [k for k in self._links_at[0][a] if self._ends[1][k] == b]
            if not parallel:
                raise InfeasibleError(f"no link leads from {self._names[a]} to {self._names[b]}")
            links.append(min(parallel, key=lambda k: self._links[k].latency_ns))
        return tuple(links)

    def _find_route(self, source: int, destination: int, flow: int) -> tuple[int, ...]:
        targets = self._ends[1]
        next_hops = self._next_hops.setdefault(destination, {})
        next_hops[destination] = 0, []
        for device, links in reversed(self._forwarding(source, destination, next_hops).items()):
            latency_ns = [self._latency_ns[k] + next_hops[targets[k]][0] for k in links]
            least_ns = min(latency_ns)
            equal_cost = sorted(k for k, ns in zip(links, latency_ns, strict=True) if ns == least_ns)
            next_hops[device] = least_ns, equal_cost if self.by_flow else equal_cost[:1]
        device, path = source, []
        while device != destination:
            equal_cost, chosen = next_hops[device][1], 0
            if len(equal_cost) > 1:
                ends = self._names[source], self._names[destination]
                chosen = ecmp_hash(self._routing.seed, *ends, flow, self._names[device]) % len(equal_cost)
            path.append(equal_cost[chosen])
            device = targets[path[-1]]
        return tuple(path)

    def _forwarding(self, source: int, destination: int, settled: Container[int]) -> dict[int, list[int]]:
        """Return, for devices on shortest paths (fewest hops), the links to forward over; nearest first.

        Devices that are `settled` may be left out.

        Raises
        ------
        InfeasibleError
            No links lead there.
        """
        if source in settled:
            return {}
        out, into = self._links_at
        if len(self._near) * len(self._names) > _MAX_CACHED:
            self._near.clear()
        near, rim = self._near.setdefault(destination, ({destination: []}, [destination]))
        reached, level = {source: list[int]()}, [source]  # device → links on shortest paths from the source
        while not (middle := [device for device in level if device in near]):
            ahead, behind = sum(len(out[d]) for d in level), sum(len(into[d]) for d in rim)
            if not ahead or not behind:
                raise InfeasibleError(self._no_route(source, destination))
            if behind < ahead + self._examined[destination]:
                rim[:] = _step([k for device in rim for k in into[device]], self._ends[0], near)
            else:
                level = _step([k for device in level for k in out[device]], self._ends[1], reached)
                self._examined[destination] += ahead
        before: list[dict[int, list[int]]] = []  # by hops, from the middle to the source
        level = middle
        while level != [source]:
            before.append({})
            for device in level:
                for k in reached[device]:
                    before[-1].setdefault(self._ends[0][k], []).append(k)
            level = list(before[-1])
        forwarding = {device: links for hop in reversed(before) for device, links in hop.items()}
        level = middle
        while level := [device for device in level if device not in settled]:
            forwarding.update((device, near[device]) for device in level)
            level = list(dict.fromkeys(self._ends[1][k] for device in level for k in near[device]))
        return forwarding

    def _no_route(self, source: int, destination: int) -> str:
        limit = 20
        pairs = [f"{link.source}->{link.destination}" for link in self._links]
        more = f", ... ({len(pairs)} in all)" if len(pairs) > limit else ""
        return (
            f"no route of links leads from {self._names[source]} to {self._names[destination]}; the machine "
            f"has {', '.join(pairs[:limit])}{more}"
        )


def _step(links: Sequence[int], end: Sequence[int], visited: dict[int, list[int]]) -> list[int]:
    """Note in a search over which links it comes to devices that it has not seen, and return these."""
    reached: dict[int, list[int]] = {}
    for k in links:
        if end[k] not in visited:
            reached.setdefault(end[k], []).append(k)
    visited |= reached
    return list(reached)
