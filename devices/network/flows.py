"""Flows over links that they share max-min fairly, advanced from change to change.

::

    a flow comes or goes ──► the links it uses are marked
                             at the end of the instant, once: the connected component of marked links
                             (routes that use them, links those use, ...) gets new rates; where a rate is
                             another one, virtual time is brought up to date and the next end predicted anew

All flows of one route have the same rate, so a route is a queue in virtual time
(`devices.sharing.virtual_time`). A change costs one computation of rates over the *routes* of the component,
however many flows they have, and O(log k) for the flow itself; on a single link with k flows that is all
there is. Routes elsewhere are not looked at. Predicted ends, one a route, are in one heap, in which an entry
that is no longer true is dropped when it comes to the top.

Work is counted in 1e-9 bytes, so that a rate in bytes/s is also a rate in this unit per ns: whole numbers,
or exact fractions where a share is one. A flow ends at the first whole ns at which its bytes have arrived,
and keeps its rate until then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from fractions import Fraction
from operator import itemgetter
from typing import Any

from devices.sharing.maxmin import Link, Route, fill
from devices.sharing.virtual_time import Alarm, VirtualQueue
from sim.job.context import Context
from sim.words.units import NS_PER_S

__all__ = ["FairFlows"]


class _Flows(Route):
    """The flows that use the same links."""

    __slots__ = ("end_ns", "index", "queue", "rate", "stale")

    def __init__(self, index: int, links: tuple[Link, ...]) -> None:
        super().__init__(links)
        self.index = index
        self.queue = VirtualQueue()
        self.rate = (0, 1)
        self.end_ns = -1
        self.stale = False  # whether `end_ns` has to be predicted anew


class FairFlows:
    """All flows over a set of links that share their bandwidth max-min fairly.

    Parameters
    ----------
    context : Context
    capacity : mapping of int to int
        Bandwidth of each link in bytes/s.
    arrived : callable
        Called with a flow's item at the instant at which its last byte is there; of those that arrive at
        one instant, in the order in which they began.
    parts : int
        Of each 1e-9 bytes, so that bandwidths which change (`change`) are whole numbers of them.
    """

    def __init__(
        self,
        context: Context,
        capacity: Mapping[int, int],
        arrived: Callable[[Any], None],
        parts: int = 1,
    ) -> None:
        self._context, self._arrived = context, arrived
        self._parts, self._per_byte = parts, NS_PER_S * parts
        self._alarm = Alarm(context, self._ring)
        self._links = {link: Link(bandwidth * parts) for link, bandwidth in capacity.items()}
        self._routes: dict[tuple[int, ...], _Flows] = {}
        self._marked: list[Link] = []
        self._stamp = 0
        self._ends: list[tuple[int, int, _Flows]] = []
        self._number = 0

    def add_link(self, link: int, bandwidth: int) -> None:
        """Have one more link, with a bandwidth in bytes/s."""
        self._links[link] = Link(bandwidth * self._parts)

    def add(self, item: Any, nbytes: int, links: tuple[int, ...]) -> None:
        """Begin a flow of `nbytes` (at least one) over `links` (at least one, each once)."""
        route = self._routes.get(links)
        if route is None:
            used = tuple([self._links[link] for link in links])
            route = self._routes[links] = _Flows(len(self._routes), used)
        self._number += 1
        route.queue.advance(self._context.now_ns)
        route.queue.add((self._number, item), nbytes * self._per_byte)
        self._count(route, 1)

    def change(self, link: int, bandwidth: Fraction) -> None:
        """Give a link another bandwidth in bytes/s, from now on; with none its flows stand still."""
        self._links[link].capacity = int(bandwidth * self._parts)
        self._mark((self._links[link],))

    def uses(self, link: int) -> bool:
        """Whether a flow is under way over a link."""
        return self._links[link].flows > 0

    def _mark(self, links: tuple[Link, ...]) -> None:
        """Let what goes over links have new rates once all of this instant is known."""
        if not self._marked:
            self._context.when_settled(self._settle)
        self._marked += links

    def _count(self, route: _Flows, more: int) -> None:
        """Put down that a route has more flows, or fewer, and that its links need new rates."""
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
        """Give new rates to the routes that the marked links touch, however indirectly."""
        marked, self._marked = self._marked, []
        self._stamp += 2
        links, routes = self._component(marked, self._stamp - 1)
        fill(links, self._stamp)
        now = self._context.now_ns
        for route in routes:
            if route.stale or route.share != route.rate:
                queue = route.queue
                queue.advance(now)
                queue.set_speed(*route.share)
                route.rate, route.stale = route.share, False
                route.end_ns = -1
                if route.share[0]:  # else it stands still
                    route.end_ns = queue.next_end_ns()
                    heapq.heappush(self._ends, (route.end_ns, route.index, route))
        self._predict()

    def _component(self, marked: list[Link], stamp: int) -> tuple[list[Link], list[_Flows]]:
        """Return the links with flows, and the routes, that are connected with the marked ones."""
        links: list[Link] = []
        routes: list[_Flows] = []
        todo = marked
        while todo:
            link = todo.pop()
            if link.seen == stamp or not link.flows:
                continue
            link.seen = stamp
            links.append(link)
            for route in link.routes.values():
                if route.seen != stamp:
                    route.seen = stamp
                    routes.append(route)  # type: ignore[arg-type]
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
                continue  # it was predicted anew since
            route.queue.advance(now)
            over = route.queue.take_out_ended()
            ended += over
            route.end_ns = -1
            self._count(route, -len(over))
        for _, item in sorted(ended, key=itemgetter(0)):
            self._arrived(item)
        if not ended:
            self._predict()
