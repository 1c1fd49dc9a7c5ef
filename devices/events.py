"""Two tools for whatever predicts when something ends: an alarm, and equal sharing in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from fractions import Fraction
from math import gcd
from typing import Any

from sim.model import Context

__all__ = ["Alarm", "EqualShare"]


class Alarm:
    """Rings once, at the earliest time that was asked for.

    A prediction that moves is asked for again. Calls of a `Context` cannot be cancelled, so a prediction
    that moves back leaves a ring that finds nothing to do, and whoever is rung predicts anew.

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
        if time_ns == self._time_ns:  # else an earlier one has taken its place
            self._time_ns = None
            self._ring()


class EqualShare:
    """Work that advances equally for all who are there: n items, each at ``speed(n)`` per ns.

    This is egalitarian processor sharing, in the virtual time of Parekh and Gallager (*A generalized
    processor sharing approach to flow control*, IEEE/ACM ToN 1(3), 1993). Virtual time is the work
    that an item present from the beginning would have had done. An item is over when virtual time has
    advanced by its work since it came; when others come or go, its tag does not change::

        tag = virtual time on arrival + work        the least tag ends first: a heap, O(log n) an event

    Exactness: virtual time is a whole number of ``1 / scale`` units of work, and `scale` grows by what
    is missing whenever the speed is a fraction that it does not divide. No rounding, no epsilon. An item
    ends at the first whole ns at which its work is done and is there until then.

    Parameters
    ----------
    context : Context
    speed : callable
        ``speed(n)``: work per ns of each of n items.
    done : callable
        Called with the item, at the instant when it is over.
    """

    __slots__ = (
        "_alarm",
        "_context",
        "_done",
        "_heap",
        "_number",
        "_scale",
        "_since_ns",
        "_speed",
        "_step",
        "_virtual",
    )

    def __init__(
        self, context: Context, speed: Callable[[int], Fraction], done: Callable[[Any], None]
    ) -> None:
        self._context, self._speed, self._done = context, speed, done
        self._alarm = Alarm(context, self._ring)
        self._heap: list[list[Any]] = []  # [tag, number, item]
        self._number = 0
        self._virtual, self._scale = 0, 1
        self._step = 0  # virtual time per ns, in 1 / scale
        self._since_ns = 0

    def __len__(self) -> int:
        """Return how many items are there."""
        return len(self._heap)

    def add(self, item: Any, work: int) -> None:
        """Begin an item that needs so much work (a whole number, at least 0)."""
        self._advance()
        self._number += 1
        heapq.heappush(self._heap, [self._virtual + work * self._scale, self._number, item])
        self._retime()

    def _advance(self) -> None:
        now = self._context.now_ns
        self._virtual += self._step * (now - self._since_ns)
        self._since_ns = now

    def _retime(self) -> None:
        """The number of items has changed: set the speed, and predict the next end."""
        if not self._heap:
            self._virtual, self._scale, self._step = 0, 1, 0
            return
        speed = self._speed(len(self._heap))
        factor = speed.denominator // gcd(self._scale, speed.denominator)
        if factor > 1:
            self._scale *= factor
            self._virtual *= factor
            for entry in self._heap:
                entry[0] *= factor  # the same factor for all: the heap stays one
        self._step = speed.numerator * (self._scale // speed.denominator)
        self._predict()

    def _predict(self) -> None:
        left = max(0, self._heap[0][0] - self._virtual)  # below 0 for one that ends at this very instant
        self._alarm.by(self._context.now_ns + -(-left // self._step))

    def _ring(self) -> None:
        self._advance()
        heap = self._heap
        over = []
        while heap and heap[0][0] <= self._virtual:
            over.append(heapq.heappop(heap)[2])
        if over:
            self._retime()
            for item in over:
                self._done(item)
        elif heap:
            self._predict()
