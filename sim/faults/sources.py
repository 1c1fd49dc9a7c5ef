"""When machines fail or become slow: every component meets its own luck, whatever the run does meanwhile.

::

    gpu: {of: device, mtbf: 50000h}      component 0 ───x────────────────x────►   a stream each, of
                                         component 1 ────────────x────────────►   exponential gaps, from
    psu: {at: [3h], worker: 7}                         x                          seed, name and number

Time goes on for a machine that is in repair or spare, so another recovery policy meets the same failures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappop, heappush, merge
from typing import Final, NamedTuple

import numpy as np

from sim.words.limits import LATEST_NS

__all__ = ["Event", "Source", "arrivals", "times_of"]


@dataclass(frozen=True)
class Source:
    """What happens to machines now and then.

    Attributes
    ----------
    name : str
    mtbf_ns : Fraction or None
        Mean time between two events of one component; None: they happen at given times.
    per_machine : int
        Components of a machine.
    at : tuple of (int, int)
        Times in ns, each with its machine.
    """

    name: str
    mtbf_ns: Fraction | None = None
    per_machine: int = 1
    at: tuple[tuple[int, int], ...] = ()

    def rate(self, machines: int) -> Fraction:
        """Return the events of so many machines in a nanosecond, but those at given times."""
        return Fraction(0) if self.mtbf_ns is None else machines * self.per_machine / self.mtbf_ns


class Event(NamedTuple):
    """It happens to a machine, by one of several sources."""

    time_ns: int
    source: int
    machine: int


def arrivals(sources: Sequence[Source], machines: int, seed: int) -> Iterator[Event]:
    """Yield what happens to machines, by time, source and component; for ever where there is a rate."""
    yield from merge(*(_of_one(source, n, machines, seed) for n, source in enumerate(sources)))


def times_of(source: Source, component: int, seed: int) -> Iterator[int]:
    """Yield when something happens to one component, each of which is a machine by itself.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from itertools import islice
    >>> source = Source("heat", Fraction(1000))
    >>> of_all = [event.time_ns for event in islice(arrivals((source,), 3, 7), 30) if event.machine == 1]
    >>> of_all == list(islice(times_of(source, 1, 7), len(of_all)))
    True
    """
    if source.mtbf_ns is None:
        yield from (time_ns for time_ns, machine in sorted(source.at) if machine == component)
        return
    mean, key = float(source.mtbf_ns), [seed, *b"failures", *source.name.encode()]
    time_ns = _whole(np.random.default_rng(key).exponential(mean, component + 1)[component])
    stream = np.random.default_rng([*key, 0, component])
    while True:
        yield time_ns
        time_ns += _whole(stream.exponential(mean))


def _of_one(source: Source, number: int, machines: int, seed: int) -> Iterator[Event]:
    if source.mtbf_ns is None:
        yield from (Event(time_ns, number, machine) for time_ns, machine in sorted(source.at))
        return
    mean, key = float(source.mtbf_ns), [seed, *b"failures", *source.name.encode()]
    # The first gap of component i is draw i of one stream. Few need more: these are of a stream of its own.
    first = np.random.default_rng(key).exponential(mean, machines * source.per_machine)
    order = np.argsort(first, kind="stable")
    later: list[tuple[int, int]] = []
    streams: dict[int, np.random.Generator] = {}
    for component in order.tolist():
        time_ns = _whole(first[component])
        while later and later[0] < (time_ns, component):
            yield _next(later, streams, mean, source.per_machine, number)
        yield Event(time_ns, number, component // source.per_machine)
        streams[component] = np.random.default_rng([*key, 0, component])
        heappush(later, (time_ns + _whole(streams[component].exponential(mean)), component))
    while True:
        yield _next(later, streams, mean, source.per_machine, number)


def _next(
    later: list[tuple[int, int]],
    streams: dict[int, np.random.Generator],
    mean: float,
    per_machine: int,
    number: int,
) -> Event:
    """Take the next of the components that have had an event before, and draw when it has another."""
    time_ns, component = heappop(later)
    heappush(later, (time_ns + _whole(streams[component].exponential(mean)), component))
    return Event(time_ns, number, component // per_machine)


_LATEST: Final = float(LATEST_NS)


def _whole(gap: float) -> int:
    """Return a gap in whole ns, rounded half up."""
    return int(min(gap, _LATEST) + 0.5)
