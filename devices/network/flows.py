"""Flows over links that they share max-min fairly, advanced from change to change.

::

    a flow comes or goes ──► the links it uses are marked
                             at the end of the instant, once: the connected component of marked links
                             (routes that use them, links those use, ...) gets new rates; where a rate is
                             another one, virtual time is brought up to date and the next end predicted anew

All flows of one route have the same rate, so a route is a queue in virtual time (`devices.events`). A change
costs one computation of rates over the *routes* of the component, however many flows they have, and O(log k)
for the flow itself; on a single link with k flows that is all there is. Routes elsewhere are not looked at.
Predicted ends, one a route, are in one heap, in which an entry that is no longer true is dropped when it
comes to the top.

Work is counted in 1e-9 bytes, so that a rate in bytes/s is also a rate in this unit per ns: whole numbers,
or exact fractions where a share is one. A flow ends at the first whole ns at which its bytes have arrived,
and keeps its rate until then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Any

from devices.events import Alarm, VirtualQueue
from devices.network.maxmin import Rate, max_min
from sim.model import Context
from sim.units import NS_PER_S

__all__ = ["FairFlows"]


class _Route(VirtualQueue):
    """The flows that use the same links."""

    __slots__ = ("end_ns", "index", "links", "rate", "stale")

    def __init__(self, index: int, links: tuple[int, ...]) -> None:
        super().__init__()
        self.index, self.links = index, links
        self.rate: Rate = 0
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
    """

    def __init__(self, context: Context, capacity: Mapping[int, int], arrived: Callable[[Any], None]) -> None:
        self._context, self._capacity, self._arrived = context, capacity, arrived
        self._alarm = Alarm(context, self._ring)
        self._routes: dict[tuple[int, ...], _Route] = {}
        self._users: dict[int, dict[int, _Route]] = {link: {} for link in capacity}  # routes with flows
        self._marked: dict[int, None] = {}
        self._ends: list[tuple[int, int, _Route]] = []
        self._number = 0

    def add(self, item: Any, nbytes: int, links: tuple[int, ...]) -> None:
        """Begin a flow of `nbytes` (at least one) over `links` (at least one, each once)."""
        route = self._routes.get(links)
        if route is None:
            route = self._routes[links] = _Route(len(self._routes), links)
        if not len(route):
            for link in links:
                self._users[link][route.index] = route
        self._number += 1
        route.advance(self._context.now_ns)
        route.add((self._number, item), nbytes * NS_PER_S)
        route.stale = True
        self._mark(links)

    def _mark(self, links: tuple[int, ...]) -> None:
        if not self._marked:  # flows that come and go at one instant are settled together
            self._context.call_at(self._context.now_ns, self._settle)
        for link in links:
            self._marked[link] = None

    def _settle(self, _: object) -> None:
        """Give new rates to the routes that the marked links touch, however indirectly."""
        marked, self._marked = self._marked, {}
        routes = self._component(marked)
        now = self._context.now_ns
        rates = max_min([r.links for r in routes], self._capacity, [len(r) for r in routes])
        for route, rate in zip(routes, rates, strict=True):
            if route.stale or rate != route.rate:
                route.advance(now)
                route.set_speed(rate)
                route.rate, route.stale = rate, False
                route.end_ns = route.next_end_ns()
                heapq.heappush(self._ends, (route.end_ns, route.index, route))
        self._predict()

    def _component(self, links: Mapping[int, None]) -> list[_Route]:
        seen = dict(links)
        todo = list(links)
        routes: dict[int, _Route] = {}
        while todo:
            for index, route in self._users[todo.pop()].items():
                if index not in routes:
                    routes[index] = route
                    fresh = [link for link in route.links if link not in seen]
                    seen.update(dict.fromkeys(fresh))
                    todo += fresh
        return [routes[index] for index in sorted(routes)]

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
            route.advance(now)
            ended += route.take_out_ended()
            route.end_ns, route.stale = -1, True
            if not len(route):
                for link in route.links:
                    del self._users[link][route.index]
            self._mark(route.links)
        for _, item in sorted(ended, key=_by_number):
            self._arrived(item)
        self._predict()


def _by_number(ended: tuple[int, Any]) -> int:
    return ended[0]
