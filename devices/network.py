"""The network of a run: the course of every transfer from its start to its last byte.

::

    ready ──► turnstile: serial links of the route and copy engines, each for one transfer at a time
          ──► latency: the sum over the route
          ──► bytes:   alone      at the least bandwidth of the route, when all its links are serial
                       shared     max-min fairly with the others (`flows`), when one of them is shared
                       in chunks  from queue to queue (`chunks`), when its links are fifo
                       (an independent link gives each transfer its full bandwidth, whatever else runs;
                       messages of one connection share its limit max-min fairly there, too)
          ──► arrived: everything held is released

A serial link is held whole, from the first moment of the latency to the last byte, and so is every other
serial link of the route: one message at a time from end to end. A shared link is only used while bytes
flow; the latency comes first (as in SimGrid's flow models, Velho et al., *On the validity of flow-level TCP
network models*, ACM TOMACS 23(4), 2013). A lone transfer takes equally long on either:
``latency + nbytes / bandwidth``, rounded up to the first whole ns at which its bytes have arrived.

A host's copies from or to pageable memory (`sim.job.transfers`) pass through the driver's buffers: never
faster than ``staging_bandwidth``, which all such copies from one device to another share.

Copy engines (``copy_engines``; for an NPU its DMA engines): with 2, a device takes part in one transfer in
each direction at a time, with 1 in only one altogether, first come, first served (the property
`asyncEngineCount` of CUDA devices).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from fractions import Fraction
from functools import cached_property
from math import gcd, lcm
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

import numpy as np

from devices.fair_sharing import Alarm, Route, SharedLink, fill
from devices.routes import ChunkQueues, Way, find_ways, way_of_message
from sim.base.arrays import UNSET, Codes, Csr
from sim.base.errors import InputError, StuckError
from sim.base.units import NS_PER_S
from sim.faults import FOREVER, MOST_FAILURES
from sim.job.context import Context
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.kernel.columns import LARGEST, RouteColumns
from sim.machine.links import Message
from sim.machine.machine import Machine
from sim.machine.task import Task

# ----------------------------------------------------------------------------------------------------------
# Exclusive resources that must be free together: serial links, copy engines.
#
# A transfer over two serial links holds both. It waits in the queue of each, and begins when it is at the
# front of all its queues:
#
#     link a   [1][3]        1 holds a, 2 holds b;
#     link b   [2][3]        3 needs both and begins when 1 and 2 have left
#
# A transfer enters all its queues at once, so none is ever delayed by a later one: each queue is first come,
# first served, and there is no deadlock.

T = TypeVar("T")


class Turnstile(Generic[T]):
    """Queues for exclusive use, one per key.

    Examples
    --------
    >>> gate = Turnstile()
    >>> gate.enter("first", ["a"]), gate.enter("second", ["a", "b"]), gate.enter("third", ["b"])
    (True, False, False)
    >>> gate.leave(["a"]), gate.leave(["a", "b"])
    (['second'], ['third'])
    """

    def __init__(self) -> None:
        self._queues: dict[Hashable, deque[T]] = {}
        self._behind: dict[T, int] = {}  # number of queues in which others are ahead

    def enter(self, who: T, keys: Sequence[Hashable]) -> bool:
        """Enter the queues of all `keys` (distinct); return whether `who` may begin at once."""
        queues = [self._queues.setdefault(key, deque()) for key in keys]
        self._behind[who] = behind = sum(map(bool, queues))
        for queue in queues:
            queue.append(who)
        return not behind

    def leave(self, keys: Sequence[Hashable]) -> list[T]:
        """Release `keys` for their holder; return the waiters that may begin now, in key order."""
        begin = []
        for key in keys:
            queue = self._queues[key]
            self._behind.pop(queue.popleft(), None)  # at the first key
            if queue:
                self._behind[queue[0]] -= 1
                if not self._behind[queue[0]]:
                    begin.append(queue[0])
        return begin


# ----------------------------------------------------------------------------------------------------------
# Flows that share links max-min fairly, advanced from change to change.
#
#     a flow comes or goes ──► the links it uses are marked
#                              at the end of the instant, once: each connected component of marked links
#                              (routes that use them, links those use, ...) gets new rates; where a rate is
#                              another one, virtual time is brought up to date and the next end predicted anew
#
# All flows of one route have the same rate, so a route is a queue in virtual time
# (`devices.fair_sharing`). A change costs one computation of rates over the *routes* of the component,
# however many flows they have, and O(log k) for the flow itself, which is the whole cost on a single link
# with k flows. Other routes are not touched. Predicted ends, one per route, are in one heap, in which an
# outdated entry is dropped when it reaches the top.
#
# Work is counted in 1e-9 bytes, so that a rate in bytes/s is also a rate in this unit per ns: a whole number
# or an exact fraction. A flow ends at the first whole ns at which its bytes have arrived, and keeps its rate
# until then.


class FairFlows:
    """All flows over a set of links that share their bandwidth max-min fairly.

    Parameters
    ----------
    context : Context
    capacity : mapping of int to int
        Bandwidth of each link in bytes/s.
    arrived : callable
        Called with a flow's item at the instant at which its last byte arrives; for simultaneous
        arrivals, in the order in which the flows began.
    parts : int
        Number of parts of 1e-9 bytes, chosen so that changed bandwidths (`change`) are whole numbers.
    """

    def __init__(
        self, context: Context, capacity: Mapping[int, int], arrived: Callable[[Any], None], parts: int = 1
    ) -> None:
        self._context, self._arrived = context, arrived
        self._parts, self._per_byte = parts, NS_PER_S * parts
        self._alarm = Alarm(context, self._ring)
        self._links = {link: SharedLink(bandwidth * parts) for link, bandwidth in capacity.items()}
        self._routes: dict[tuple[int, ...], Route] = {}
        self._marked: list[SharedLink] = []
        self._stamp = 0
        self._ends: list[tuple[int, int, Route]] = []
        self._number = 0

    def add_link(self, link: int, bandwidth: int, per_flow: int | None = None) -> None:
        """Add a link with a bandwidth in bytes/s, and the most that one flow may get (`per_flow`)."""
        limit = None if per_flow is None else per_flow * self._parts
        self._links[link] = SharedLink(bandwidth * self._parts, limit)

    def add(self, item: Any, nbytes: int, links: tuple[int, ...]) -> None:
        """Begin a flow of `nbytes` (at least one) over `links` (at least one, each once)."""
        route = self._routes.get(links)
        if route is None:
            used = tuple([self._links[link] for link in links])
            route = self._routes[links] = Route(used, index=len(self._routes))
        self._number += 1
        route.queue.advance(self._context.now_ns)
        route.queue.add((self._number, item), nbytes * self._per_byte)
        self._count(route, 1)

    def change(self, link: int, bandwidth: Fraction) -> None:
        """Change a link's bandwidth, in bytes/s, from now on; at 0 its flows stand still."""
        self._links[link].capacity = int(bandwidth * self._parts)
        self._mark((self._links[link],))

    def uses(self, link: int) -> bool:
        """Return whether a flow is under way over a link."""
        return self._links[link].flows > 0

    def _mark(self, links: tuple[SharedLink, ...]) -> None:
        """Schedule new rates for traffic over links, once all of this instant is known."""
        if not self._marked:
            self._context.when_settled(self._settle)
        self._marked += links

    def _count(self, route: Route, more: int) -> None:
        """Change the number of a route's flows by `more`, and mark its links for new rates."""
        route.flows += more
        route.stale = True
        for link in route.links:
            link.flows += more
            if route.flows:
                link.routes[route.index] = route
            else:
                del link.routes[route.index]
        self._mark(route.links)

    def _settle(self) -> None:
        """Set new rates for all routes connected, even indirectly, with the marked links."""
        marked, self._marked = self._marked, []
        self._stamp += 2
        now = self._context.now_ns
        for link in marked:
            links, routes = self._component(link, self._stamp - 1)
            fill(links, self._stamp)
            for route in routes:
                if route.stale or route.share != route.rate:
                    queue = route.queue
                    queue.advance(now)
                    queue.set_speed(*route.share)
                    route.rate, route.stale = route.share, False
                    route.end_ns = -1
                    if route.share[0]:  # otherwise it stands still
                        route.end_ns = queue.next_end_ns()
                        heapq.heappush(self._ends, (route.end_ns, route.index, route))
        self._predict()

    def _component(self, marked: SharedLink, stamp: int) -> tuple[list[SharedLink], list[Route]]:
        """Return the links with flows and the routes connected with a link; none if `stamp` has seen it."""
        links: list[SharedLink] = []
        routes: list[Route] = []
        todo = [marked]
        while todo:
            link = todo.pop()
            if link.seen == stamp or not link.flows:
                continue
            link.seen = stamp
            links.append(link)
            for route in link.routes.values():
                if route.seen != stamp:
                    route.seen = stamp
                    routes.append(route)
                    todo += route.links
        return links, routes

    def _predict(self) -> None:
        while self._ends and self._ends[0][0] != self._ends[0][2].end_ns:
            heapq.heappop(self._ends)
        if self._ends:
            self._alarm.by(self._ends[0][0])

    def _ring(self) -> None:
        now = self._context.now_ns
        ended: list[tuple[int, Any]] = []
        while self._ends and self._ends[0][0] <= now:
            end_ns, _, route = heapq.heappop(self._ends)
            if end_ns != route.end_ns:
                continue  # predicted again since
            route.queue.advance(now)
            items = route.queue.take_out_ended()
            ended += items
            route.end_ns = -1
            self._count(route, -len(items))
        for _, item in sorted(ended, key=itemgetter(0)):
            self._arrived(item)
        if not ended:
            self._predict()


# ----------------------------------------------------------------------------------------------------------


class _Message:
    """A message that is not a transfer of a tensor."""

    __slots__ = ("arrived", "ends", "nbytes", "ready_ns", "start_ns", "way")

    def __init__(
        self, way: Way, ends: tuple[int, int], nbytes: int, arrived: Callable[[], None], ready_ns: int
    ) -> None:
        self.way, self.ends, self.nbytes, self.arrived = way, ends, nbytes, arrived
        self.ready_ns = self.start_ns = ready_ns


class Carrier:
    """A `sim.machine.links.Network` in which every link has its own kind of sharing.

    The kernel runs the same network over columns (`sim.kernel.columns.InColumns`).

    Parameters
    ----------
    machine : Machine
    context : Context
        The run; its ``flow`` has the source and destination of each transfer.

    Raises
    ------
    InputError
        If a link's `sharing` or a number of copy engines is not valid.

    Examples
    --------
    Two transfers of 10 bytes over one link of 1 byte/ns, which share it, arrive after 20 ns:

    >>> from policies.issue.ready_queue import ReadyQueue
    >>> from sim import Device, GraphBuilder, Link, Machine, simulate
    >>> b = GraphBuilder("two transfers")
    >>> for name in "ab":
    ...     _ = b.op(name, outputs=10, duration_ns=0, device="gpu0")
    ...     _ = b.op(name + "'", inputs=[name], duration_ns=0, device="gpu1")
    >>> link = Link("link", "gpu0", "gpu1", 0, 10**9, "shared")
    >>> machine = Machine((Device("gpu0"), Device("gpu1")), (link,), network=make_network)
    >>> simulate(b.build(), machine, ReadyQueue()).makespan_ns
    20
    """

    def __init__(self, machine: Machine, context: Context) -> None:
        self._context = context
        flow = context.flow
        self._n_ops = flow.n_ops
        self._nbytes: list[int] = flow.nbytes.tolist()
        ways, way_index, self._bandwidth = find_ways(context.job, flow)
        self._ways: list[Way] = [ways[k] for k in way_index.tolist()]
        self._ways_of_messages: dict[tuple[int, int], Way] = {}
        self._turnstile: Turnstile[Task | _Message] = Turnstile()
        paces = {} if context.conditions is None else context.conditions.link_paces
        self._paces = {link: pace for link, pace in paces.items() if link in self._bandwidth}
        self._flows = FairFlows(context, self._bandwidth, self._on_arrival, self._parts())
        for way in ways:
            if way.per_flow is not None:
                self._add_connection(way, way.shared[0], self._bandwidth[way.shared[0]])
        self._watched: set[int] = set()  # links whose next change is awaited
        self._changes_in_vain = 0

    @classmethod
    def columns(cls, job: Job, flow: Flow) -> RouteColumns | str:
        """Return the routes of a job's transfers, or a text why the kernel cannot simulate them.

        Parameters
        ----------
        job : Job
        flow : Flow

        Raises
        ------
        InputError
            If a link's `sharing` or a number of copy engines is not valid.
        """
        if cls is not Carrier:
            return f"{cls.__name__} is a network of its own"
        ways, way_index, bandwidth = find_ways(job, flow)
        if any(way.hops for way in ways):
            return "links that are fifo send chunks one after another"
        if any(way.per_flow is not None and way.per_flow < bandwidth[way.shared[0]] for way in ways):
            return "a connection carries more than an independent link gives to one of its messages"
        used = sorted({link for way in ways for link in way.shared})
        number = {link: k for k, link in enumerate(used)}
        unit = gcd(NS_PER_S, *(bandwidth[link] for link in used))
        keys = Codes[Hashable]()
        holds = _in_columns([[keys[key] for key in way.held] for way in ways])
        routes = Codes[tuple[int, ...]]()
        route = [routes[way.shared] if way.shared else UNSET for way in ways]
        links = _in_columns([[number[link] for link in shared] for shared in routes])
        capacity = [bandwidth[link] // unit for link in used]
        latency_ns = [way.latency_ns for way in ways]
        flows = (np.array(route, np.int64)[way_index] >= 0) & (flow.nbytes > 0)
        per_byte = NS_PER_S // unit
        largest = max(int(flow.nbytes.max(initial=0)) * per_byte * bool(used), *capacity, *latency_ns, 0)
        if largest >= LARGEST:
            return f"its transfers need numbers of {largest.bit_length()} bits"
        unshared = np.where(flows, 0, flow.nbytes)
        alone_ns = [ways[k].alone_ns(n) for k, n in zip(way_index.tolist(), unshared.tolist(), strict=True)]
        if max(alone_ns, default=0) >= LARGEST:
            return "a transfer takes longer than 60 bits can count"
        work = np.where(flows, flow.nbytes * per_byte, 0)
        return RouteColumns(
            way_index, work, np.array(alone_ns, np.int64), latency_ns, *holds, route, *links, capacity
        )

    def _add_connection(self, way: Way, connection: int, limit: int) -> None:
        """Let messages of a way share a connection, each limited to the bandwidth of independent links."""
        self._flows.add_link(connection, limit, way.per_flow)
        if way.per_flow is not None and (paced := [link for link, _ in way.over if link in self._paces]):
            name = self._context.job.machine.links[paced[0]].name
            raise InputError(
                f"link {name!r} is independent, and a connection over it shares its bandwidth: it cannot "
                "fail or slow down; make it shared",
                path=("machine",),
            )

    @cached_property
    def _queues(self) -> ChunkQueues:
        """The carrier of chunks, created when a link first needs it."""
        links, devices = self._context.job.machine.links, self._context.job.machine.devices
        rates = {link.bandwidth_bytes_per_s for link in links}
        rates |= {link.connection_bytes_per_s for link in links}
        rates |= {device.staging_bytes_per_s for device in devices}
        return ChunkQueues(self._context, {rate for rate in rates if rate is not None}, self._on_arrival)

    def start(self, task: Task) -> None:
        """Start a transfer that is ready."""
        keys = self._way(task).held
        if not keys or self._turnstile.enter(task, keys):
            self._begin(task)

    def send(self, source: int, destination: int, nbytes: int, arrived: Callable[[], None]) -> None:
        """Send a message that is not a transfer of a tensor, and so uses no copy engine."""
        pair = source, destination
        if pair not in self._ways_of_messages:
            machine = self._context.job.machine
            connection = len(machine.links) + len(self._ways) + len(self._ways_of_messages)
            way, limit = way_of_message(machine, source, destination, connection)
            if limit is not None:
                self._add_connection(way, connection, limit)
            self._ways_of_messages[pair] = way
        message = _Message(self._ways_of_messages[pair], pair, nbytes, arrived, self._context.now_ns)
        if not message.way.held or self._turnstile.enter(message, message.way.held):
            self._begin(message)

    def _way(self, item: Task | _Message) -> Way:
        return item.way if isinstance(item, _Message) else self._ways[item.op - self._n_ops]

    def _size(self, item: Task | _Message) -> int:
        return item.nbytes if isinstance(item, _Message) else self._nbytes[item.op - self._n_ops]

    def _begin(self, item: Task | _Message) -> None:
        now = self._context.now_ns
        if isinstance(item, _Message):
            item.start_ns = now
        else:
            self._context.started(item)
        way, nbytes = self._way(item), self._size(item)
        if way.hops:
            on_links = sum(hop.latency_ns for hop in way.hops)
            self._queues.add(item, nbytes, way.hops, way.chunk, way.latency_ns - on_links)
            return
        first_byte_ns = now + way.latency_ns
        if way.shared and nbytes:
            if way.latency_ns:
                self._context.call_at(first_byte_ns, self._flow, item)
            else:
                self._flow(item)
            return
        if self._context.conditions is None:
            self._context.call_at(now + way.alone_ns(nbytes), self._on_arrival, item)
            return
        links = [*way.over, (UNSET, way.bandwidth_bytes_per_s)]
        there_ns = self._context.conditions.arrival_ns(links, first_byte_ns, nbytes)
        if there_ns is not None:
            self._context.call_at(there_ns, self._on_arrival, item)

    # -- links that are sometimes slow or down -----------------------------------------------------

    def _parts(self) -> int:
        """Return the number of parts per byte for which all bandwidths over time are whole numbers."""
        conditions = self._context.conditions
        causes = () if conditions is None else conditions.faults.causes
        return lcm(*(cause.factor.numerator for cause in causes if cause.factor is not None))

    def _changes(self, link: int) -> None:
        """Set a link's present bandwidth, and schedule its next change."""
        if link not in self._paces:
            return  # cut
        rate, until_ns = self._paces[link].rate(self._context.now_ns)
        self._flows.change(link, Fraction(rate * self._bandwidth[link]))
        self._changes_in_vain += 1
        if self._changes_in_vain > MOST_FAILURES:
            name = self._context.job.machine.links[link].name
            raise StuckError(f"link {name} has changed {MOST_FAILURES:,} times, and nothing arrives anywhere")
        if until_ns < FOREVER:
            self._watched.add(link)
            self._context.call_at(until_ns, self._on_change, link)

    def _on_change(self, link: int) -> None:
        self._watched.discard(link)
        if self._flows.uses(link):
            self._changes(link)

    def cut_links(self, links: Set[int]) -> None:
        """Stop links from carrying anything from now on."""
        channels = self._context.job.machine.channels
        lost = {channels[k] for k in links}
        ways = [*self._ways, *self._ways_of_messages.values()]
        cut = {way.shared[0] for way in ways if way.per_flow is not None and lost & {k for k, _ in way.over}}
        for link in sorted(lost & self._bandwidth.keys() | cut):
            self._paces.pop(link, None)
            self._flows.change(link, Fraction(0))

    def _flow(self, item: Task | _Message) -> None:
        if self._paces:
            for link in self._way(item).shared:
                if link not in self._watched:
                    self._changes(link)
        self._flows.add(item, self._size(item), self._way(item).shared)

    def _on_arrival(self, item: Task | _Message) -> None:
        self._changes_in_vain = 0
        if isinstance(item, _Message):
            now = self._context.now_ns
            self._context.carried(Message(*item.ends, item.nbytes, item.ready_ns, item.start_ns, now))
            item.arrived()
        else:
            self._context.finish(item)
        keys = self._way(item).held
        if keys:
            for following in self._turnstile.leave(keys):
                self._begin(following)


def _in_columns(rows: list[list[int]]) -> tuple[list[int], list[int]]:
    indptr, indices = Csr.of_rows(rows)
    return indptr.tolist(), indices.tolist()


make_network: Final = Carrier
