"""What a machine is like from some time on: the failures that come, and how fast its parts work.

Everything follows from the causes and the seed, and is asked for as time goes on: nobody knows how long a run
is before it is over. Times are counted from the beginning of an *attempt*, which is the run of some steps up
to their end, or to the failure that aborts one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from heapq import merge
from operator import attrgetter
from typing import Final

from sim.faults.faults import Cause, Failed, Faults, PartKind
from sim.faults.pace import FOREVER, Pace, Window
from sim.faults.sources import arrivals, times_of
from sim.machine.machine import Machine
from sim.words.units import NS_PER_S

__all__ = ["Conditions", "failures_of", "part_name"]

_STEADY: Final = (Fraction(1), FOREVER)


def failures_of(faults: Faults, machine: Machine, seed: int) -> Iterator[Failed]:
    """Yield the failures of parts from time 0 on, by time, cause and part; for ever where there is a rate."""
    causes = [cause for cause in faults.causes if cause.factor is None]
    yield from merge(*(_failures(cause, machine, seed) for cause in causes), key=attrgetter("time_ns"))


def _failures(cause: Cause, machine: Machine, seed: int) -> Iterator[Failed]:
    silent = cause.silent or cause.kind == "link"
    for time_ns, _, place in arrivals((cause,), len(cause.parts), seed):
        back_ns = None if cause.lasts_ns is None else time_ns + cause.lasts_ns
        part = cause.parts[place]
        name = part_name(machine, cause.kind, part)
        yield Failed(time_ns, back_ns, cause.name, cause.kind, name, part, silent)


def part_name(machine: Machine, kind: str, part: int) -> str:
    """Return what a device, worker or link is called."""
    if kind == "worker":
        return machine.hosts_in_order[part].name
    return machine.devices[part].name if kind == "device" else machine.links[part].name


class Conditions:
    """The conditions of one attempt.

    Parameters
    ----------
    faults : Faults
    machine : Machine
    seed : int
    from_ns : int
        When the attempt begins; times here are counted from then.
    """

    def __init__(self, faults: Faults, machine: Machine, seed: int, from_ns: int = 0) -> None:
        self.faults, self.from_ns = faults, from_ns
        self._machine, self._seed = machine, seed

    def failures(self) -> Iterator[Failed]:
        """Yield what fails, by time; for ever where there is a rate."""
        return self._failures(self.faults)

    def failures_of_devices(self) -> Iterator[Failed]:
        """Yield how each device and worker fails first; one that failed is not back in the same attempt."""
        of = [cause for cause in self.faults.causes if cause.factor is None and cause.kind != "link"]
        left: set[tuple[PartKind, int]] = set()
        for cause in of:
            at = [place for time_ns, place in cause.at if time_ns > self.from_ns or not self.from_ns]
            places = at if cause.mtbf_ns is None else range(len(cause.parts))
            left |= {(cause.kind, cause.parts[place]) for place in places}
        failures = self._failures(replace(self.faults, causes=tuple(of)))
        while left:
            failed = next(failures)
            if (failed.kind, failed.part) in left:
                left.remove((failed.kind, failed.part))
                yield failed

    def _failures(self, faults: Faults) -> Iterator[Failed]:
        for failed in failures_of(faults, self._machine, self._seed):
            if failed.time_ns > self.from_ns or not self.from_ns:  # all starts anew when that is over
                back_ns = None if failed.back_ns is None else failed.back_ns - self.from_ns
                yield failed._replace(time_ns=failed.time_ns - self.from_ns, back_ns=back_ns)

    def next_standstill_ns(self, link: int, from_ns: int) -> int | None:
        """Return from when a link is down, at `from_ns` or later; None: it never is."""
        pace = self._outages.get(link)
        while pace is not None and from_ns < FOREVER:
            rate, until_ns = pace.rate(from_ns)
            if not rate:
                return from_ns
            from_ns = until_ns
        return None

    @cached_property
    def paces(self) -> dict[int, Pace]:
        """How fast devices work, those of which it may change."""
        machine = self._machine
        workers = [[machine.device_index(name) for name in host.serves] for host in machine.hosts_in_order]
        return self._paces(
            (device, cause, place)
            for cause in self.faults.causes
            if cause.factor is not None and cause.kind != "link"
            for place, part in enumerate(cause.parts)
            for device in (workers[part] if cause.kind == "worker" else [part])
        )

    @cached_property
    def link_paces(self) -> dict[int, Pace]:
        """How fast links carry bytes, those of which it may change; of links of one medium the first."""
        return self._paces(
            (self._machine.channels[part], cause, place)
            for cause in self.faults.causes
            if cause.kind == "link"
            for place, part in enumerate(cause.parts)
        )

    @cached_property
    def _outages(self) -> dict[int, Pace]:
        """When links are down, and nothing else of them."""
        return self._paces(
            (self._machine.channels[part], cause, place)
            for cause in self.faults.causes
            if cause.kind == "link" and cause.factor is None
            for place, part in enumerate(cause.parts)
        )

    def _paces(self, met: Iterable[tuple[int, Cause, int]]) -> dict[int, Pace]:
        windows: dict[int, list[Iterator[Window]]] = {}
        for part, cause, place in met:
            if cause.lasts_ns == 0:
                continue
            windows.setdefault(part, []).append(self._windows(cause, place))
        return {part: Pace(merge(*of, key=attrgetter("start_ns"))) for part, of in windows.items()}

    def _windows(self, cause: Cause, place: int) -> Iterator[Window]:
        """Yield when a cause meets the part at a place of its list."""
        for time_ns in times_of(cause, place, self._seed):
            start_ns = time_ns - self.from_ns
            end_ns = FOREVER if cause.lasts_ns is None else start_ns + cause.lasts_ns
            if end_ns > 0:
                yield Window(max(start_ns, 0), end_ns, cause.factor)

    def arrival_ns(self, links: Sequence[tuple[int, int | None]], start_ns: int, nbytes: int) -> int | None:
        """Return when bytes are there that begin to flow at `start_ns` over links that they do not share.

        None: never.

        Parameters
        ----------
        links : sequence of (int, int or None)
            Each with its bandwidth in bytes/s, None: unlimited. A number without a pace never changes.
        start_ns, nbytes : int
        """
        left, time_ns = Fraction(nbytes * NS_PER_S), start_ns
        while True:
            now = [
                (*(self.link_paces[link].rate(time_ns) if link in self.link_paces else _STEADY), bandwidth)
                for link, bandwidth in links
            ]
            if down := [until_ns for rate, until_ns, _ in now if not rate]:
                time_ns = max(down)
                if time_ns == FOREVER:
                    return None
                continue
            rates = [rate * bandwidth for rate, _, bandwidth in now if bandwidth is not None]
            if not rates or not left:
                return time_ns
            until_ns, there_ns = min(until for _, until, _ in now), time_ns + int(-(-left // min(rates)))
            if there_ns <= until_ns:
                return there_ns
            left -= min(rates) * (until_ns - time_ns)
            time_ns = until_ns
