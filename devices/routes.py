"""Routes of transfers between two devices: resources held, latency, and bandwidth shared."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from math import gcd, lcm
from typing import Any, NamedTuple

from devices.fair_sharing import Alarm
from sim.base.arrays import IntArray
from sim.base.errors import InputError
from sim.base.units import NS_PER_S
from sim.job.context import Context
from sim.job.job import Job
from sim.job.transfers import Flow, connection_bytes_per_s
from sim.machine.machine import Machine

# ----------------------------------------------------------------------------------------------------------
# Messages in chunks, each link a queue: store and forward.
#
# ::
#
#     message of 3 chunks over two links    link 1   [0][1][2]            a link sends one chunk at a time,
#                                           link 2      [0][1][2]         first come, first served, and hands
#                                                                         it on when it has all of it
#
# A message gives all its chunks to its first link when it is ready, and has arrived when its last chunk has.
# A link is busy with a chunk for bytes / bandwidth; the latency follows, and the next chunk does not wait for
# it. Of chunks that reach a link simultaneously, that of the message that began first goes first. A
# connection's bandwidth limit is one more queue, before the first link. This is the congestion-aware model of
# ASTRA-sim's analytical network (astra-sim/astra-network-analytical,
# ``congestion_aware/network/Link.cpp``), where each message is one chunk.
#
# Times are whole numbers of ticks, with enough ticks per ns that every link sends a byte in whole ticks: only
# the arrival of a message is rounded, up to a whole ns. There is no event per chunk, only one when a message
# may have arrived: when its last chunk would arrive without further queueing.


class Hop(NamedTuple):
    """A link on the route of a message: its queue, its rate, and the latency after it."""

    link: int
    bytes_per_s: int | None
    latency_ns: int


class _Message:
    """A message under way, with the start at its first link and the earliest arrival, in ticks."""

    __slots__ = ("begin", "chunk", "due", "hops", "item", "last", "nbytes")

    def __init__(self, item: Any, nbytes: int, hops: tuple[Hop, ...], chunk: int | None) -> None:
        self.item, self.nbytes, self.hops = item, nbytes, hops
        self.chunk = chunk or max(nbytes, 1)
        self.last = max(0, -(-nbytes // self.chunk) - 1)
        self.begin = self.due = 0

    def up_to(self, chunk: int) -> int:
        """Return the bytes of all chunks up to `chunk`."""
        return min(self.nbytes, (chunk + 1) * self.chunk)

    def size(self, chunk: int) -> int:
        """Return the bytes of one chunk."""
        return self.up_to(chunk) - chunk * self.chunk


class ChunkQueues:
    """All links that send chunks in queue order.

    Parameters
    ----------
    context : Context
    rates : iterable of int
        All bandwidths that hops may have, in bytes/s.
    arrived : callable
        Called with a message's item at the first whole ns at which it has fully arrived; at one instant, in
        the order of exact times, then in the order in which messages began.
    """

    def __init__(self, context: Context, rates: Iterable[int], arrived: Callable[[Any], None]) -> None:
        self._context, self._arrived = context, arrived
        self._alarm = Alarm(context, self._ring)
        self._per_ns = lcm(*(rate // gcd(rate, NS_PER_S) for rate in rates))
        self._free: dict[int, int] = {}  # when a link will have sent everything queued
        self._messages: dict[int, _Message] = {}
        self._number = 0
        # Time, message, chunk, and the hop that it reaches
        self._events: list[tuple[int, int, int, int]] = []
        self._due: list[tuple[int, int]] = []  # arrivals of messages; outdated if the message has another one
        self._there: list[Any] = []

    def add(self, item: Any, nbytes: int, hops: tuple[Hop, ...], chunk: int | None, after_ns: int) -> None:
        """Send a message, which reaches its first link `after_ns` from now."""
        now = self._context.now_ns
        self._advance(now)  # messages under way come first
        self._number += 1
        message = self._messages[self._number] = _Message(item, nbytes, hops, chunk)
        time = (now + after_ns) * self._per_ns
        heapq.heappush(self._events, (time, self._number, 0, 0))
        self._expect(self._number, message, time, 0)
        self._advance(now)
        self._predict()

    def _ticks(self, nbytes: int, hop: Hop) -> int:
        return 0 if hop.bytes_per_s is None else nbytes * NS_PER_S * self._per_ns // hop.bytes_per_s

    def _advance(self, now_ns: int) -> None:
        now_ticks = now_ns * self._per_ns
        while self._events and self._events[0][0] <= now_ticks:
            self._reach(*heapq.heappop(self._events))

    def _reach(self, time: int, number: int, chunk: int, index: int) -> None:
        """Handle a chunk's arrival at hop `index`, or at the end; all chunks reach the first hop at once."""
        message = self._messages[number]
        if index == len(message.hops):
            if chunk == message.last:
                del self._messages[number]
                self._there.append(message.item)
        else:
            hop = message.hops[index]
            begin = max(time, self._free.get(hop.link, 0))
            nbytes = message.size(chunk) if index else message.nbytes
            self._free[hop.link] = sent = begin + self._ticks(nbytes, hop)
            arrival = sent + hop.latency_ns * self._per_ns
            if index:
                heapq.heappush(self._events, (arrival, number, chunk, index + 1))
            else:
                message.begin = begin
                self._leave_first(number, message.last if len(message.hops) == 1 else 0)
            if not index or chunk == message.last:
                self._expect(number, message, arrival, index + 1)
        if index == 1 and chunk < message.last:
            self._leave_first(number, chunk + 1)

    def _leave_first(self, number: int, chunk: int) -> None:
        """Schedule a chunk's arrival at the second hop; one at a time, since there may be very many."""
        message = self._messages[number]
        hop = message.hops[0]
        arrival = message.begin + self._ticks(message.up_to(chunk), hop) + hop.latency_ns * self._per_ns
        heapq.heappush(self._events, (arrival, number, chunk, 1))

    def _expect(self, number: int, message: _Message, time: int, index: int) -> None:
        """Schedule the earliest arrival of a message whose last chunk reaches a hop at `time` or later."""
        size = message.size(message.last)
        for hop in message.hops[index:]:
            time += self._ticks(size, hop) + hop.latency_ns * self._per_ns
        message.due = time
        heapq.heappush(self._due, (time, number))

    def _predict(self) -> None:
        due = self._due
        while due and (due[0][1] not in self._messages or self._messages[due[0][1]].due != due[0][0]):
            heapq.heappop(due)
        if self._there:
            self._alarm.by(self._context.now_ns)
        elif due:
            self._alarm.by(-(-due[0][0] // self._per_ns))

    def _ring(self) -> None:
        self._advance(self._context.now_ns)
        arrived, self._there = self._there, []
        for item in arrived:
            self._arrived(item)
        self._predict()


# ----------------------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """The route of a transfer from one device to another, with its resources and limits."""

    held: tuple[Hashable, ...]
    """Serial links (for a medium its first) and copy engines, which take one transfer at a time."""
    latency_ns: int
    bandwidth_bytes_per_s: int | None
    """Least bandwidth on the route."""
    shared: tuple[int, ...]
    """Links with a bandwidth (and the connection), when a link is shared; the connection, when nothing else
    keeps its messages from going at once; else empty."""
    hops: tuple[Hop, ...] = ()
    """All links in order (the connection first), when they are queues of chunks; else empty."""
    chunk: int | None = None
    """Size of the largest chunk; None: whole messages."""
    over: tuple[tuple[int, int | None], ...] = ()
    """All links (for a medium its first) with their bandwidths."""
    per_flow: int | None = None
    """Most that one message gets over independent links, if it shares only a connection."""

    def alone_ns(self, nbytes: int) -> int:
        """Return the duration of a transfer that has the bandwidth to itself."""
        if self.bandwidth_bytes_per_s is None:
            return self.latency_ns
        return self.latency_ns - (-nbytes * NS_PER_S // self.bandwidth_bytes_per_s)


def find_ways(job: Job, flow: Flow) -> tuple[list[Way], IntArray, dict[int, int]]:
    """Return the ways of a job's transfers.

    Parameters
    ----------
    job : Job
    flow : Flow

    Returns
    -------
    list of Way
        One entry per route in use.
    array
        Index of each transfer's way.
    dict of int to int
        Bandwidth of each entry of `Way.shared`, in bytes/s: links that have one, and limited connections
        (`sim.job.transfers.connection_bytes_per_s`).

    Raises
    ------
    InputError
        If a link's `sharing` or a number of copy engines is not valid.
    """
    machine, bandwidth = job.machine, {}
    for k, link in enumerate(machine.links):
        if link.sharing not in ("serial", "shared", "fifo", "independent"):
            raise InputError(
                f"link {link.name!r}: sharing must be serial, shared, fifo or independent, found "
                f"{link.sharing!r}"
            )
        if link.bandwidth_bytes_per_s is not None:
            bandwidth[k] = link.bandwidth_bytes_per_s
    routes, way_index = machine.distinct_routes(flow.source, flow.destination, flow.tensor)
    ways: list[Way] = []
    for source, destination, route in routes:
        connection = len(machine.links) + len(ways)
        limit = connection_bytes_per_s(machine, source, destination, route)
        if limit is not None:
            bandwidth[connection] = limit
        ways.append(_way(machine, source, destination, route, limit, connection))
    return ways, way_index, bandwidth


def way_of_message(
    machine: Machine, source: int, destination: int, connection: int
) -> tuple[Way, int | None]:
    """Return the way of a message sent by kernels, without copy engines or hosts, and its limit in bytes/s.

    All messages between two devices are one flow, and `connection` stands for it among the links.
    """
    route = machine.route(source, destination)
    rates = [machine.links[k].connection_bytes_per_s for k in route]
    limit = min((rate for rate in rates if rate is not None), default=None)
    way = _way(machine, source, destination, route, limit, connection)
    return way._replace(held=tuple(key for key in way.held if isinstance(key, int))), limit


def _way(
    machine: Machine, source: int, destination: int, route: tuple[int, ...], cap: int | None, connection: int
) -> Way:
    """Return the way over a route; `connection`, with limit `cap`, is listed among the links."""
    crossed = [(machine.channels[k], machine.links[k]) for k in route]
    for channel, count in Counter(channel for channel, _ in crossed).items():
        if count > 1:
            raise InputError(
                f"the route {_ends(machine, source, destination)} crosses the medium "
                f"{machine.links[channel].medium!r} more than once; give them a link of their own",
                path=("machine",),
            )
    holds: list[Hashable] = [channel for channel, link in crossed if link.sharing == "serial"]
    rates = {channel: rate for channel, link in crossed if (rate := link.bandwidth_bytes_per_s) is not None}
    lowest = min(rates.values(), default=None)
    bounded = [link for channel, link in crossed if channel in rates]
    shared = any(link.sharing == "shared" for link in bounded)
    independent = next((link for link in bounded if link.sharing == "independent"), None)
    if shared and independent is not None:
        raise InputError(
            f"the route {_ends(machine, source, destination)} leads over {independent.name!r}, which is "
            "independent, and a shared link; make both the same",
            path=("machine",),
        )
    queues = [link for _, link in crossed if link.sharing == "fifo"]
    other = next((link for _, link in crossed if link.sharing != "fifo"), None)
    if queues and other is not None:
        raise InputError(
            f"the route {_ends(machine, source, destination)} leads over {queues[0].name!r}, which is fifo, "
            f"and {other.name!r}, which is {other.sharing}; make both the same",
            path=("machine",),
        )
    hops = [Hop(channel, link.bandwidth_bytes_per_s, link.latency_ns) for channel, link in crossed if queues]
    if queues and cap is not None:
        hops.insert(0, Hop(connection, cap, 0))
    unshared = cap is not None and not (shared or holds or queues)
    users = (*rates,) if shared else ()
    return Way(
        (*holds, *_engine(machine, source, "out"), *_engine(machine, destination, "in")),
        machine.latency_ns(route),
        min((rate for rate in (cap, lowest) if rate is not None), default=None),
        (*users, connection) if cap is not None and (shared or unshared) else users,
        tuple(hops),
        min((link.chunk_bytes for link in queues if link.chunk_bytes is not None), default=None),
        tuple((channel, link.bandwidth_bytes_per_s) for channel, link in crossed),
        lowest if unshared else None,
    )


def _ends(machine: Machine, source: int, destination: int) -> str:
    return f"from {machine.devices[source].name} to {machine.devices[destination].name}"


def _engine(machine: Machine, device: int, direction: str) -> tuple[Hashable, ...]:
    """Return the copy engine that a transfer holds at one of its ends, if any."""
    engines = machine.devices[device].details.copy_engines
    if engines is None:
        return ()
    if engines not in (1, 2):
        raise InputError(
            f"{machine.devices[device].name}.copy_engines: found {engines!r}; accepted: 1 (one transfer at a "
            "time) or 2 (one in each direction)"
        )
    return ((device, direction if engines == 2 else "both"),)
