"""Flows over links that they share max-min fairly, advanced from change to change.

::

    a flow comes or goes ──► the links it uses are marked
                             at the end of the instant, once: the connected component of marked links
                             (flows that use them, links those use, ...) gets new rates; whose rate is
                             another one is brought up to date and gets a new predicted end

Flows elsewhere are not looked at. Only rates that change cost anything, and predicted ends are in one heap,
in which an entry that is no longer true is dropped when it comes to the top.

Work is counted in 1e-9 bytes, so that a rate in bytes/s is also a rate in this unit per ns: whole numbers,
or exact fractions where a share is one. A flow ends at the first whole ns at which its bytes have arrived,
and keeps its rate until then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from devices.events import Alarm
from devices.network.maxmin import Rate, max_min
from sim.model import Context
from sim.units import NS_PER_S

__all__ = ["FairFlows"]


class _Flow:
    """One flow: what is left of it at `since_ns`, and how fast it goes from there on."""

    __slots__ = ("end_ns", "item", "left", "links", "number", "rate", "since_ns")

    def __init__(self, item: Any, number: int, links: Sequence[int], left: int, now_ns: int) -> None:
        self.item, self.number, self.links = item, number, links
        self.left: Rate = left
        self.rate: Rate = 0
        self.since_ns = now_ns
        self.end_ns = -1

    def set_rate(self, rate: Rate, now_ns: int) -> None:
        self.left -= self.rate * (now_ns - self.since_ns)
        self.since_ns, self.rate = now_ns, rate
        # Whatever ends at this very instant may be past its end by a part of a ns.
        self.end_ns = now_ns + max(0, int(-(-self.left // rate)))


class FairFlows:
    """All flows over a set of links that share their bandwidth max-min fairly.

    Parameters
    ----------
    context : Context
    capacity : mapping of int to int
        Bandwidth of each link in bytes/s.
    arrived : callable
        Called with a flow's item at the instant at which its last byte is there.
    """

    def __init__(self, context: Context, capacity: Mapping[int, int], arrived: Callable[[Any], None]) -> None:
        self._context, self._capacity, self._arrived = context, capacity, arrived
        self._alarm = Alarm(context, self._ring)
        self._users: dict[int, dict[int, _Flow]] = {link: {} for link in capacity}
        self._marked: dict[int, None] = {}
        self._ends: list[tuple[int, int, _Flow]] = []
        self._number = 0

    def add(self, item: Any, nbytes: int, links: Sequence[int]) -> None:
        """Begin a flow of `nbytes` (at least one) over `links` (at least one, each once)."""
        self._number += 1
        flow = _Flow(item, self._number, links, nbytes * NS_PER_S, self._context.now_ns)
        for link in links:
            self._users[link][flow.number] = flow
        self._mark(links)

    def _mark(self, links: Sequence[int]) -> None:
        if not self._marked:  # flows that come and go at one instant are settled together
            self._context.call_at(self._context.now_ns, self._settle)
        for link in links:
            self._marked[link] = None

    def _settle(self, _: object) -> None:
        """Give new rates to the flows that the marked links touch, however indirectly."""
        marked, self._marked = self._marked, {}
        flows = self._component(marked)
        now = self._context.now_ns
        for flow, rate in zip(flows, max_min([flow.links for flow in flows], self._capacity), strict=True):
            if rate != flow.rate:
                flow.set_rate(rate, now)
                heapq.heappush(self._ends, (flow.end_ns, flow.number, flow))
        self._predict()

    def _component(self, links: Mapping[int, None]) -> list[_Flow]:
        seen = dict(links)
        todo = list(links)
        flows: dict[int, _Flow] = {}
        while todo:
            for number, flow in self._users[todo.pop()].items():
                if number not in flows:
                    flows[number] = flow
                    fresh = [link for link in flow.links if link not in seen]
                    seen.update(dict.fromkeys(fresh))
                    todo += fresh
        return [flows[number] for number in sorted(flows)]

    def _predict(self) -> None:
        while self._ends and self._ends[0][0] != self._ends[0][2].end_ns:
            heapq.heappop(self._ends)
        if self._ends:
            self._alarm.by(self._ends[0][0])

    def _ring(self) -> None:
        now = self._context.now_ns
        while self._ends and self._ends[0][0] <= now:
            end_ns, _, flow = heapq.heappop(self._ends)
            if end_ns != flow.end_ns:
                continue  # it was predicted anew since
            flow.end_ns = -1
            for link in flow.links:
                del self._users[link][flow.number]
            self._mark(flow.links)
            self._arrived(flow.item)
        self._predict()
