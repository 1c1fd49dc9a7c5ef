"""Tools for predicting ends: an alarm, and fair sharing in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from fractions import Fraction
from math import gcd
from typing import Any

from sim.job.context import Context


class Alarm:
    """Rings once, at the earliest time requested.

    A changed prediction is requested again. Calls of a `Context` cannot be cancelled, so a prediction that
    moves to later leaves a ring with nothing to do, and its callback predicts again.

    Parameters
    ----------
    context : Context
    ring : callable
        Called without arguments at that time.
    """

    __slots__ = ("_context", "_ring", "_time_ns")

    def __init__(self, context: Context, ring: Callable[[], None]) -> None:
        self._context, self._ring = context, ring
        self._time_ns: int | None = None

    def by(self, time_ns: int) -> None:
        """Ring at `time_ns`, unless it rings earlier anyway."""
        if self._time_ns is None or time_ns < self._time_ns:
            self._time_ns = time_ns
            self._context.call_at(time_ns, self._call, time_ns)

    def _call(self, time_ns: int) -> None:
        if time_ns == self._time_ns:  # otherwise an earlier one has replaced it
            self._time_ns = None
            self._ring()


class VirtualQueue:
    """Items that all advance at the same speed, in virtual time.

    Virtual time is the work done for an item present from the beginning (Parekh and Gallager, *A
    generalized processor sharing approach to flow control*, IEEE/ACM ToN 1(3), 1993). An item ends when
    virtual time has advanced by its work since its arrival. When the speed changes because others arrive or
    leave, its tag does not::

        tag = virtual time on arrival + work        the least tag ends first: a heap, O(log n) per event

    Exactness: virtual time is a whole number of ``1 / scale`` units of work, and `scale` grows by the missing
    factor whenever the speed is a fraction that it cannot express. All arithmetic is on integers, without
    rounding or epsilon. An item ends at the first whole ns at which its work is done, and takes part until
    then.
    """

    __slots__ = ("_heap", "_number", "_scale", "_since_ns", "_step", "_virtual")

    def __init__(self) -> None:
        self._heap: list[list[Any]] = []  # [tag, number, item]
        self._number = 0
        self._virtual, self._scale = 0, 1
        self._step = 0  # virtual time per ns, in 1 / scale
        self._since_ns = 0

    def __len__(self) -> int:
        """Return how many items are there."""
        return len(self._heap)

    def advance(self, now_ns: int) -> None:
        """Advance time to `now_ns`."""
        self._virtual += self._step * (now_ns - self._since_ns)
        self._since_ns = now_ns

    def add(self, item: Any, work: int) -> None:
        """Add an item with `work` (a whole number, at least 0); time must be up to date."""
        self._number += 1
        heapq.heappush(self._heap, [self._virtual + work * self._scale, self._number, item])

    def set_speed(self, numerator: int, denominator: int) -> None:
        """Set the work per ns of each item, a reduced fraction, from now on; time must be up to date."""
        factor = denominator // gcd(self._scale, denominator)
        if factor > 1:
            self._scale *= factor
            self._virtual *= factor
            for entry in self._heap:
                entry[0] *= factor  # the same factor for all keeps the heap valid
        self._step = numerator * (self._scale // denominator)

    def next_end_ns(self) -> int:
        """Return when the first item ends if the speed (not 0) stays; time must be up to date."""
        remaining = self._heap[0][0] - self._virtual
        # An item that ends at this instant may be past its end by a fraction of a ns.
        return self._since_ns + (-(-remaining // self._step) if remaining > 0 else 0)

    def take_out_ended(self) -> list[Any]:
        """Remove and return the ended items, first to end first; time must be up to date."""
        heap = self._heap
        ended = []
        while heap and heap[0][0] <= self._virtual:
            ended.append(heapq.heappop(heap)[2])
        if not heap:  # restart with small numbers
            self._virtual, self._scale, self._step = 0, 1, 0
        return ended


class EqualShare:
    """Egalitarian processor sharing: n items, each at ``speed(n)`` work per ns.

    Parameters
    ----------
    context : Context
    speed : callable
        ``speed(n)``, positive.
    done : callable
        Called with the item at the instant at which it ends.
    on_leave : callable
        Called with the item just before the speed of the remaining ones is requested.
    """

    __slots__ = ("_alarm", "_context", "_done", "_left", "_queue", "_speed")

    def __init__(
        self,
        context: Context,
        speed: Callable[[int], Fraction],
        done: Callable[[Any], None],
        on_leave: Callable[[Any], None] = lambda item: None,
    ) -> None:
        self._context, self._speed, self._done, self._left = context, speed, done, on_leave
        self._alarm = Alarm(context, self._ring)
        self._queue = VirtualQueue()

    def add(self, item: Any, work: int) -> None:
        """Add an item that needs `work` (a whole number, at least 0)."""
        self._queue.advance(self._context.now_ns)
        self._queue.add(item, work)
        self._predict()

    def _predict(self) -> None:
        if len(self._queue):
            self._queue.set_speed(*self._speed(len(self._queue)).as_integer_ratio())
            self._alarm.by(self._queue.next_end_ns())

    def _ring(self) -> None:
        self._queue.advance(self._context.now_ns)
        ended = self._queue.take_out_ended()
        for item in ended:
            self._left(item)
        self._predict()
        for item in ended:
            self._done(item)


# ----------------------------------------------------------------------------------------------------------
# Exact max-min fair rates of flows that share links.
#
# *Progressive filling*: raise the rates of all flows together; when a link is full, its flows stop there and
# the others go on (Bertsekas and Gallager, *Data Networks*, 2nd edition 1992, section 6.5.2). The result is
# the only allocation in which no flow can get more without another that has no more getting less:
#
#     link a, 10 B/ns:  flow 0, flow 1        b is full first: 4 / 2 = 2 for flows 1 and 2
#     link b,  4 B/ns:  flow 1, flow 2        then a: 10 - 2 = 8 for flow 0
#
# Rates are exact, whole numbers or fractions, so that nothing depends on the order of operations.


class SharedLink:
    """A link with a capacity, and the routes with flows over it.

    Attributes
    ----------
    capacity : int
    routes : dict of int to Route
        Routes by any distinguishing number.
    flows : int
        Number of flows on these routes.
    per_flow : int or None
        Most that one flow may get.
    """

    __slots__ = ("capacity", "flows", "left", "open_flows", "per_flow", "routes", "seen")

    def __init__(self, capacity: int, per_flow: int | None = None) -> None:
        self.capacity, self.per_flow = capacity, per_flow
        self.routes: dict[int, Route] = {}
        self.flows = 0
        self.left = self.open_flows = 0  # capacity not allocated yet; flows whose rate is not set yet
        self.seen = 0


class Route:
    """The links used by some flows, and how far these are.

    Attributes
    ----------
    links : tuple of SharedLink
    flows : int
        Number of flows, which all have the same rate.
    index : int
        Number that distinguishes it.
    share, rate : tuple of int
        Rate of each flow, as set by `fill`, and at which they go: a reduced fraction.
    queue : VirtualQueue
        The flows.
    end_ns : int
        When the first of them ends; -1: not known.
    stale : bool
        Whether `end_ns` must be predicted again.
    """

    __slots__ = ("end_ns", "flows", "index", "links", "queue", "rate", "seen", "share", "stale")

    def __init__(self, links: tuple[SharedLink, ...], flows: int = 0, index: int = 0) -> None:
        self.links, self.flows, self.index = links, flows, index
        self.share = self.rate = (0, 1)
        self.queue = VirtualQueue()
        self.end_ns, self.stale = -1, False
        self.seen = 0


def fill(links: Sequence[SharedLink], stamp: int) -> None:
    """Set the share of every route that uses one of `links`.

    Parameters
    ----------
    links : sequence of SharedLink
        Links with at least one flow each; all links of their routes must be included.
    stamp : int
        A number not used in an earlier call with these routes.
    """
    # Remaining capacities are whole numbers of 1 / scale, so that all arithmetic is on integers.
    scale = 1
    for link in links:
        link.left, link.open_flows = link.capacity, link.flows
        if link.per_flow is not None:
            link.left = min(link.left, link.per_flow * link.flows)
    while (first := _least(links)) is not None:
        n = first.open_flows
        factor = n // gcd(first.left, n)
        if factor > 1:
            scale *= factor
            for link in links:
                link.left *= factor
        share = first.left // n
        common = gcd(share, scale)
        reduced = (share // common, scale // common)
        for route in first.routes.values():
            if route.seen != stamp:
                route.seen = stamp
                route.share = reduced
                used = share * route.flows
                for link in route.links:
                    link.left -= used
                    link.open_flows -= route.flows


def _least(links: Sequence[SharedLink]) -> SharedLink | None:
    """Return the link that leaves the least to each flow whose rate is not set yet."""
    best: SharedLink | None = None
    for link in links:
        if link.open_flows and (best is None or link.left * best.open_flows < best.left * link.open_flows):
            best = link
    return best
