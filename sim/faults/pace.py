"""How fast a part of the machine works as time goes on: at full speed, slower, or not at all.

::

    factor 2 from 10 to 30 ns        rate  1 ─────┐          ┌─────      20 ns of work begun at 0
                                                  └──────────┘           are done at 30: 10, and 20 / 2
                                          0      10         30

Rates are exact fractions, constant between two changes. So what began before a change and ends after it has
had exactly its share, and nobody has to look at running work when a change comes. Of several slow-downs at
one time the slowest counts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from fractions import Fraction
from heapq import heappop, heappush
from typing import Final, NamedTuple

__all__ = ["FOREVER", "Pace", "Window"]

FOREVER: Final = 1 << 62
"""In place of an end: there is none. Later than any time of a run."""


class Window(NamedTuple):
    """From `start_ns` to `end_ns` work takes `factor` times as long; None: nothing is done at all."""

    start_ns: int
    end_ns: int
    factor: Fraction | None


class Pace:
    """The rate of one part: work done a ns.

    Parameters
    ----------
    windows : iterable of Window
        By start; read only as far as somebody asks.

    Examples
    --------
    >>> pace = Pace([Window(10, 30, Fraction(2))])
    >>> pace.end_ns(0, 20), pace.end_ns(12, 3), pace.end_ns(30, 5)
    (30, 18, 35)
    >>> print(Pace([Window(10, FOREVER, None)]).end_ns(0, 11))
    None
    """

    def __init__(self, windows: Iterable[Window]) -> None:
        self._windows = iter(windows)
        self._next = next(self._windows, None)
        self._under_way: list[tuple[int, int, Fraction | None]] = []  # (end, number, factor)
        self._number = 0
        self._from_ns: list[int] = []
        self._rates: list[Fraction] = []
        self._done: list[Fraction] = []  # work done from time 0 to `_from_ns`
        self._until_ns = 0  # the rates are known up to there
        self._read_on()

    def rate(self, time_ns: int) -> tuple[Fraction, int]:
        """Return the rate at a time, and until when it holds at least."""
        k = self._segment(time_ns)
        return self._rates[k], self._from_ns[k + 1] if k + 1 < len(self._from_ns) else self._until_ns

    def done(self, time_ns: int) -> Fraction:
        """Return the work done from time 0 on."""
        k = self._segment(time_ns)
        return self._done[k] + self._rates[k] * (time_ns - self._from_ns[k])

    def when(self, work: Fraction) -> int | None:
        """Return the first whole ns at which so much work has been done since time 0; None: never."""
        while self._until_ns < FOREVER and self.done(self._until_ns - 1) < work:
            self._read_on()
        k = max(bisect_right(self._done, work) - 1, 0)
        while k and self._done[k] == work and self._done[k - 1] == work:
            k -= 1  # all was done when the standstill began
        left = work - self._done[k]
        if not left:
            return self._from_ns[k]
        return self._from_ns[k] + -(-left // self._rates[k]) if self._rates[k] else None

    def end_ns(self, start_ns: int, work: int) -> int | None:
        """Return the first whole ns at which work that begins at `start_ns` is done; None: never."""
        return start_ns if not work else self.when(self.done(start_ns) + work)

    def _segment(self, time_ns: int) -> int:
        while self._until_ns <= time_ns:
            self._read_on()
        return bisect_right(self._from_ns, time_ns) - 1

    def _read_on(self) -> None:
        """Learn the rate from `_until_ns` to the next change."""
        now = self._until_ns
        while self._next is not None and self._next.start_ns <= now:
            if self._next.end_ns > now:
                self._number += 1
                heappush(self._under_way, (self._next.end_ns, self._number, self._next.factor))
            self._next = next(self._windows, None)
        while self._under_way and self._under_way[0][0] <= now:
            heappop(self._under_way)
        factors = [factor for _, _, factor in self._under_way]
        slowest = max((factor for factor in factors if factor is not None), default=Fraction(1))
        if self._from_ns:
            self._done.append(self._done[-1] + self._rates[-1] * (now - self._from_ns[-1]))
        else:
            self._done.append(Fraction(0))
        self._from_ns.append(now)
        self._rates.append(Fraction(0) if None in factors else 1 / slowest)
        if any(end_ns == FOREVER and factor is None for end_ns, _, factor in self._under_way):
            self._until_ns = FOREVER  # it stands still for good
            return
        begins = FOREVER if self._next is None else self._next.start_ns
        self._until_ns = min([begins, *(end for end, _, _ in self._under_way[:1])])
