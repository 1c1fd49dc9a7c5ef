"""What transfers between two devices meet: what they hold, how long the first byte takes, what they share."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from devices.network.chunks import Hop
from sim.base.arrays import IntArray
from sim.base.errors import InputError
from sim.base.units import NS_PER_S
from sim.job.job import Job
from sim.job.transfers import Flow, connection_bytes_per_s
from sim.machine.machine import Machine


class Way(NamedTuple):
    """What a transfer from one device to another meets."""

    held: tuple[Hashable, ...]
    """Serial links (of a medium its first) and copy engines, for one transfer at a time."""
    latency_ns: int
    bandwidth_bytes_per_s: int | None
    """The least of the route."""
    shared: tuple[int, ...]
    """Links with a bandwidth (and the connection), when a link is shared; the connection, when nothing else
    keeps its messages from going at once; else empty."""
    hops: tuple[Hop, ...] = ()
    """All links in order (the connection first), when they are queues of chunks; else empty."""
    chunk: int | None = None
    """The largest chunk; None: whole messages."""
    over: tuple[tuple[int, int | None], ...] = ()
    """All links (of a medium its first), each with its bandwidth."""
    each: int | None = None
    """What one message gets at most over independent links, where a connection is all that it shares."""

    def alone_ns(self, nbytes: int) -> int:
        """Return how long a transfer takes that has the bandwidth for itself."""
        if self.bandwidth_bytes_per_s is None:
            return self.latency_ns
        return self.latency_ns - (-nbytes * NS_PER_S // self.bandwidth_bytes_per_s)


class Ways(NamedTuple):
    """The ways of a job's transfers.

    Attributes
    ----------
    each : list of Way
        One entry for each route over which something moves.
    of : array
        Index of each transfer's way.
    bandwidth_bytes_per_s : dict of int to int
        By what `Way.shared` names: links that have one, and connections that carry no more
        (`sim.job.transfers.connection_bytes_per_s`).
    """

    each: list[Way]
    of: IntArray
    bandwidth_bytes_per_s: dict[int, int]


def find_ways(job: Job, flow: Flow) -> Ways:
    """Return the ways of a job's transfers.

    Parameters
    ----------
    job : Job
    flow : Flow

    Raises
    ------
    InputError
        A link with a word of `sharing` or a number of copy engines that means nothing.
    """
    machine = job.machine
    bandwidth = _bandwidths(machine)
    routes, of = machine.distinct_routes(flow.source, flow.destination, flow.tensor)
    each: list[Way] = []
    for source, destination, route in routes:
        connection = len(machine.links) + len(each)
        most = connection_bytes_per_s(machine, source, destination, route)
        if most is not None:
            bandwidth[connection] = most
        each.append(_way(machine, source, destination, route, most, connection))
    return Ways(each, of, bandwidth)


def way_of_message(
    machine: Machine, source: int, destination: int, connection: int
) -> tuple[Way, int | None]:
    """Return the way of a message that kernels send, without copy engines or hosts, and its most bytes/s.

    All messages between two devices are one flow, and `connection` stands for it among the links.
    """
    route = machine.route(source, destination)
    rates = [machine.links[k].connection_bytes_per_s for k in route]
    most = min((rate for rate in rates if rate is not None), default=None)
    way = _way(machine, source, destination, route, most, connection)
    return way._replace(held=tuple(key for key in way.held if isinstance(key, int))), most


def _way(
    machine: Machine,
    source: int,
    destination: int,
    route: tuple[int, ...],
    most: int | None,
    connection: int,
) -> Way:
    """Return the way over a route; `connection`, which carries at most so much, stands among the links."""
    links = [machine.links[k] for k in route]
    channels = [machine.channels[k] for k in route]
    _refuse_crossed_twice(machine, source, destination, channels)
    held: list[Hashable] = [
        channel for channel, link in zip(channels, links, strict=True) if link.sharing == "serial"
    ]
    bounded = [k for k, link in enumerate(links) if link.bandwidth_bytes_per_s is not None]
    bandwidths = [most, *(links[k].bandwidth_bytes_per_s for k in bounded)]
    shared = any(links[k].sharing == "shared" for k in bounded)
    independent = next((links[k] for k in bounded if links[k].sharing == "independent"), None)
    if shared and independent is not None:
        raise InputError(
            f"the route {_ends(machine, source, destination)} leads over {independent.name!r}, which is "
            "independent, and a shared link; make both the same"
        )
    queues = [link for link in links if link.sharing == "fifo"]
    other = next((link for link in links if link.sharing != "fifo"), None)
    if queues and other is not None:
        raise InputError(
            f"the route {_ends(machine, source, destination)} leads over {queues[0].name!r}, which is fifo, "
            f"and {other.name!r}, which is {other.sharing}; make both the same"
        )
    hops = [
        Hop(channel, link.bandwidth_bytes_per_s, link.latency_ns)
        for channel, link in zip(channels, queues, strict=False)
    ]
    if queues and most is not None:
        hops.insert(0, Hop(connection, most, 0))
    alone = most is not None and not (shared or held or queues)
    users = (*(channels[k] for k in bounded),) if shared else ()
    return Way(
        (*held, *_engine(machine, source, "out"), *_engine(machine, destination, "in")),
        machine.latency_ns(route),
        min((bandwidth for bandwidth in bandwidths if bandwidth is not None), default=None),
        (*users, connection) if most is not None and (shared or alone) else users,
        tuple(hops),
        min((link.chunk_bytes for link in queues if link.chunk_bytes is not None), default=None),
        tuple((channel, link.bandwidth_bytes_per_s) for channel, link in zip(channels, links, strict=True)),
        min((rate for rate in bandwidths[1:] if rate is not None), default=None) if alone else None,
    )


def _refuse_crossed_twice(machine: Machine, source: int, destination: int, channels: list[int]) -> None:
    for channel in channels:
        if channels.count(channel) > 1:
            raise InputError(
                f"the route {_ends(machine, source, destination)} crosses the medium "
                f"{machine.links[channel].medium!r} more than once; give them a link of their own"
            )


def _ends(machine: Machine, source: int, destination: int) -> str:
    return f"from {machine.devices[source].name} to {machine.devices[destination].name}"


def _engine(machine: Machine, device: int, direction: str) -> tuple[Hashable, ...]:
    """Return the copy engine that a transfer holds at one of its ends, if there is one."""
    engines = machine.devices[device].details.copy_engines
    if engines is None:
        return ()
    if engines not in (1, 2):
        raise InputError(
            f"{machine.devices[device].name}.copy_engines: found {engines!r}; accepted: 1 (one transfer at a "
            "time) or 2 (one in each direction)"
        )
    return ((device, direction if engines == 2 else "both"),)


def _bandwidths(machine: Machine) -> dict[int, int]:
    bandwidth = {}
    for k, link in enumerate(machine.links):
        if link.sharing not in ("serial", "shared", "fifo", "independent"):
            raise InputError(
                f"link {link.name!r}: sharing must be serial, shared, fifo or independent, found "
                f"{link.sharing!r}"
            )
        if link.bandwidth_bytes_per_s is not None:
            bandwidth[k] = link.bandwidth_bytes_per_s
    return bandwidth
