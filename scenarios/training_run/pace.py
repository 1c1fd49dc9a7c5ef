"""How slow the slowest worker is, and until when."""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction
from heapq import heappop, heappush

from scenarios.training_run.sources import SlowDown
from sim.faults.sources import arrivals
from sim.words.limits import LATEST_NS, MOST_RUNS, at_most

__all__ = ["Pace", "Slow"]

Slow = tuple[int, int, int, Fraction]
"""(start, end, machine, factor)"""


class Pace:
    """The slow-downs of all machines, read as time goes on.

    Parameters
    ----------
    sources : tuple of SlowDown
    machines, seed : int
    """

    def __init__(self, sources: tuple[SlowDown, ...], machines: int, seed: int) -> None:
        self._sources = sources
        self._coming = arrivals(sources, machines, seed)
        self._next = next(self._coming, None)
        self._now: list[tuple[int, int, Fraction]] = []  # (end, machine, factor), the first to end first
        self.seen: list[Slow] = []

    def factor(self, now_ns: int, members: Collection[int]) -> Fraction:
        """Return how many times longer than the nominal step those that begin now take."""
        while self._next is not None and self._next.time_ns <= now_ns:
            start_ns, source, machine = self._next
            cause = self._sources[source]
            heappush(self._now, (start_ns + cause.lasts_ns, machine, cause.factor))
            self.seen.append((start_ns, start_ns + cause.lasts_ns, machine, cause.factor))
            at_most(MOST_RUNS, len(self.seen), "slow-downs of a training run")
            self._next = next(self._coming, None)
        while self._now and self._now[0][0] <= now_ns:
            heappop(self._now)
        return max((factor for _, machine, factor in self._now if machine in members), default=Fraction(1))

    @property
    def changes_ns(self) -> int:
        """When that may change, as of the time that was last asked for."""
        begins = LATEST_NS if self._next is None else self._next.time_ns
        return min([begins, *(end for end, _, _ in self._now[:1])])
