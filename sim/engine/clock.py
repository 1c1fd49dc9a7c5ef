"""SimPy's queue of events, taken an instant at a time."""

from __future__ import annotations

from heapq import heappop
from typing import Final

import simpy

__all__ = ["NEVER", "Clock"]

NEVER: Final = float("inf")
"""Later than any instant."""


class Clock(simpy.Environment):
    """A SimPy environment that goes from instant to instant instead of from event to event.

    Examples
    --------
    >>> clock = Clock()
    >>> def wait(name, ns):
    ...     yield clock.timeout(ns)
    ...     print(name, clock.now)
    >>> _ = clock.process(wait("a", 5)), clock.process(wait("b", 7)), clock.process(wait("c", 5))
    >>> [clock.next_instant() for _ in range(3)]
    a 5
    c 5
    b 7
    [0, 5, 7]
    >>> clock.next_instant()
    inf
    """

    before: float = -1
    """The instant before the present one; they are equal when a round at it caused another one."""

    def next_instant(self) -> float:
        """Process all events of the earliest instant, and return it; `NEVER` when there is none.

        The same as ``step()`` for as long as ``peek()`` is that instant, which for an event as cheap as ours
        would cost more than the event.
        """
        queue = self._queue
        if not queue:
            return NEVER
        self.before, self._now = self._now, queue[0][0]
        now = self._now
        while queue and queue[0][0] == now:
            event = heappop(queue)[3]
            callbacks, event.callbacks = event.callbacks, None  # type: ignore[assignment]
            for callback in callbacks:
                callback(event)
            if not event._ok and not hasattr(event, "_defused"):
                raise event._value
        return now
