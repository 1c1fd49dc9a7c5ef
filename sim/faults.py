"""Faults of a machine: parts fail, slow down and are repaired; how this is detected, and what follows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from heapq import heapify, heappop, heappush, heapreplace, merge
from operator import attrgetter
from typing import Final, Literal, NamedTuple

import numpy as np

from sim.base.arrays import LATEST_NS
from sim.base.errors import StuckError
from sim.base.units import NS_PER_S, format_bytes, format_duration
from sim.machine.machine import Machine

# ----------------------------------------------------------------------------------------------------------
# The speed of a part of the machine over time: full, reduced or zero.
#
#     factor 2 from 10 to 30 ns        rate  1 ─────┐          ┌─────      20 ns of work begun at 0
#                                                   └──────────┘           are done at 30: 10, and 20 / 2
#                                           0      10         30
#
# Rates are exact fractions, constant between two changes. So the end of work that spans a change is exact,
# and running work need not be updated at a change. Of several slow-downs at one time the slowest counts.

FOREVER: Final = 1 << 62
"""Stands for "never": later than any time of a run."""


class Window(NamedTuple):
    """From `start_ns` to `end_ns` work takes `factor` times as long; None: the part stands still."""

    start_ns: int
    end_ns: int
    factor: Fraction | None


class SpeedProfile:
    """The rate of one part over time, in work per ns.

    Parameters
    ----------
    windows : iterable of Window
        Sorted by start; read only as far as needed.

    Examples
    --------
    >>> pace = SpeedProfile([Window(10, 30, Fraction(2))])
    >>> pace.end_ns(0, 20), pace.end_ns(12, 3), pace.end_ns(30, 5)
    (30, 18, 35)
    >>> print(SpeedProfile([Window(10, FOREVER, None)]).end_ns(0, 11))
    None
    """

    def __init__(self, windows: Iterable[Window]) -> None:
        self._windows = iter(windows)
        self._next = next(self._windows, None)
        self._under_way: list[tuple[int, int, Fraction | None]] = []  # (end, number, factor)
        self._number = 0
        self._from_ns: list[int] = []
        self._rates: list[Fraction | int] = []  # integers where possible: much faster
        self._done: list[Fraction | int] = []  # work done from time 0 to `_from_ns`
        self._until_ns = 0  # rates are known up to this time
        self._extend()

    def rate(self, time_ns: int) -> tuple[Fraction | int, int]:
        """Return the rate at a time, and a time until which it does not change."""
        k = self._segment(time_ns)
        return self._rates[k], self._from_ns[k + 1] if k + 1 < len(self._from_ns) else self._until_ns

    def work_done(self, time_ns: int) -> Fraction | int:
        """Return the work done from time 0 on."""
        k = self._segment(time_ns)
        return self._done[k] + self._rates[k] * (time_ns - self._from_ns[k])

    def completion_ns(self, work: Fraction | int) -> int | None:
        """Return the first whole ns at which `work` has been done since time 0; None: never."""
        while self._until_ns < FOREVER and self.work_done(self._until_ns - 1) < work:
            self._extend()
        k = max(bisect_right(self._done, work) - 1, 0)
        while k and self._done[k] == work and self._done[k - 1] == work:
            k -= 1  # all was done when the standstill began
        remaining = work - self._done[k]
        if not remaining:
            return self._from_ns[k]
        return self._from_ns[k] + -(-remaining // self._rates[k]) if self._rates[k] else None

    def end_ns(self, start_ns: int, work: int) -> int | None:
        """Return the first whole ns at which work that begins at `start_ns` is done; None: never."""
        return start_ns if not work else self.completion_ns(self.work_done(start_ns) + work)

    def _segment(self, time_ns: int) -> int:
        while self._until_ns <= time_ns:
            self._extend()
        return bisect_right(self._from_ns, time_ns) - 1

    def _extend(self) -> None:
        """Compute the rate from `_until_ns` to the next change."""
        now_ns = self._until_ns
        while self._next is not None and self._next.start_ns <= now_ns:
            if self._next.end_ns > now_ns:
                self._number += 1
                heappush(self._under_way, (self._next.end_ns, self._number, self._next.factor))
            self._next = next(self._windows, None)
        while self._under_way and self._under_way[0][0] <= now_ns:
            heappop(self._under_way)
        factors = [factor for _, _, factor in self._under_way]
        slowest = max((factor for factor in factors if factor is not None), default=None)
        if self._from_ns:
            self._done.append(self._done[-1] + self._rates[-1] * (now_ns - self._from_ns[-1]))
        else:
            self._done.append(0)
        self._from_ns.append(now_ns)
        self._rates.append(0 if None in factors else 1 if slowest is None else 1 / slowest)
        if any(end_ns == FOREVER and factor is None for end_ns, _, factor in self._under_way):
            self._until_ns = FOREVER  # it stands still for ever
            return
        begins = FOREVER if self._next is None else self._next.start_ns
        self._until_ns = min([begins, *(end for end, _, _ in self._under_way[:1])])


# ----------------------------------------------------------------------------------------------------------
# When machines fail or become slow: each component has its own random stream, independent of the run.
#
#     gpu: {of: device, mtbf: 50000h}      component 0 ───x────────────────x────►   a stream each, of
#                                          component 1 ────────────x────────────►   exponential gaps, from
#     psu: {at: [3h], worker: 7}                         x                          seed, name and number
#
# A machine in repair, or a spare one, has events too, so all recovery policies meet the same failures.


@dataclass(frozen=True)
class Source:
    """A source of events that happen to machines.

    Attributes
    ----------
    name : str
    mtbf_ns : Fraction or None
        Mean time between two events of one component; None: events happen only at the times `at`.
    per_machine : int
        Number of components per machine.
    at : tuple of (int, int)
        Times in ns, each with the number of a machine.
    """

    name: str
    mtbf_ns: Fraction | None = None
    per_machine: int = 1
    at: tuple[tuple[int, int], ...] = ()

    def rate(self, machines: int) -> Fraction:
        """Return the number of random events per ns on so many machines."""
        return Fraction(0) if self.mtbf_ns is None else machines * self.per_machine / self.mtbf_ns


class FaultEvent(NamedTuple):
    """An event of one of several sources on a machine."""

    time_ns: int
    source: int
    machine: int


def arrivals(sources: Sequence[Source], machines: int, seed: int) -> Iterator[FaultEvent]:
    """Yield the events on machines, by time, source and component; endless if a source has an MTBF."""
    yield from merge(*(_arrivals_of_source(source, n, machines, seed) for n, source in enumerate(sources)))


def times_of(source: Source, component: int, seed: int) -> Iterator[int]:
    """Yield the times of events on one component, where each machine has one component.

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
    time_ns = _whole_ns(np.random.default_rng(key).exponential(mean, component + 1)[component])
    stream = np.random.default_rng([*key, 0, component])
    while True:
        yield time_ns
        time_ns += _whole_ns(stream.exponential(mean))


def _arrivals_of_source(source: Source, number: int, machines: int, seed: int) -> Iterator[FaultEvent]:
    if source.mtbf_ns is None:
        yield from (FaultEvent(time_ns, number, machine) for time_ns, machine in sorted(source.at))
        return
    mean, key = float(source.mtbf_ns), [seed, *b"failures", *source.name.encode()]
    # The first gap of component i is draw i of one stream. Further gaps come from a stream per component.
    first = np.random.default_rng(key).exponential(mean, machines * source.per_machine).tolist()
    coming = [(_whole_ns(gap), component) for component, gap in enumerate(first)]
    heapify(coming)
    streams: dict[int, np.random.Generator] = {}
    while True:
        time_ns, component = coming[0]
        yield FaultEvent(time_ns, number, component // source.per_machine)
        if component not in streams:
            streams[component] = np.random.default_rng([*key, 0, component])
        heapreplace(coming, (time_ns + _whole_ns(streams[component].exponential(mean)), component))


_LATEST: Final = float(LATEST_NS)


def _whole_ns(gap: float) -> int:
    """Return a gap in whole ns, rounded half up."""
    return int(min(gap, _LATEST) + 0.5)


# ----------------------------------------------------------------------------------------------------------

NCCL_TIMEOUT_NS: Final = 600 * NS_PER_S
"""PyTorch's default timeout of a collective over NCCL: 10 minutes, counted from the host's call
(pytorch, torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp: ``kProcessGroupNCCLDefaultTimeout``;
ProcessGroupNCCL.cpp: ``workStartTime_``, set when a ``WorkNCCL`` is made, and ``checkTimeout``). Its
watchdog polls every 100 ms; here the timeout takes effect at once."""

PartKind = Literal["device", "worker", "link"]


@dataclass(frozen=True)
class Cause(Source):
    """A cause of failures or slow-downs of parts of a machine. The numbers in `at` are indices into `parts`.

    Attributes
    ----------
    kind : str
        The kind of the parts.
    parts : tuple of int
        Positions of devices or links in the machine, or of workers in `Machine.hosts_in_order`.
    factor : Fraction or None
        Factor by which work takes longer; None: the part fails.
    lasts_ns : int or None
        Time until the part is repaired, or as fast as before; None: for ever.
    silent : bool
        For a failure: whether connections stay open, as when a machine loses power. Then senders to it, and
        receivers from it, notice only after the connection's timeout. Links always fail silently.
    """

    kind: PartKind = "device"
    parts: tuple[int, ...] = ()
    factor: Fraction | None = None
    lasts_ns: int | None = None
    silent: bool = False


class HealthCheck(NamedTuple):
    """The master polls all workers every `interval_ns`, from time 0, and waits `timeout_ns` for an answer."""

    interval_ns: int
    timeout_ns: int = 0


@dataclass(frozen=True)
class Faults:
    """All faults of a run, and the reaction to them.

    Attributes
    ----------
    causes : tuple of Cause
    connection_timeout_ns : int or None
        Time after which a Send or Recv that cannot go on fails; None: it waits for ever.
    collective_timeout_ns : int or None
        The same for a collective, from its launch on a rank.
    health_check : HealthCheck or None
    restart_ns : int or None
        Time to restart all processes; None: the run ends when a step is aborted.
    every_steps : int or None
        Number of steps between checkpoints; None: there are none, and a restart begins with the first step.
    restore_ns : int
        Time to load a checkpoint.
    """

    causes: tuple[Cause, ...] = ()
    connection_timeout_ns: int | None = None
    collective_timeout_ns: int | None = NCCL_TIMEOUT_NS
    health_check: HealthCheck | None = None
    restart_ns: int | None = None
    every_steps: int | None = None
    restore_ns: int = 0


class Failed(NamedTuple):
    """A part that failed.

    Attributes
    ----------
    time_ns : int
    back_ns : int or None
        When it is repaired; None: never.
    cause, kind, name : str
        Name of the failure's cause; kind of the part; name of the part.
    part : int
        Its number, as in `Cause.parts`.
    silent : bool
    """

    time_ns: int
    back_ns: int | None
    cause: str
    kind: PartKind
    name: str
    part: int
    silent: bool


class Detection(NamedTuple):
    """The detection that a step cannot go on.

    Attributes
    ----------
    how : str
        ``send-recv``, ``health-check`` or ``timeout`` (of a collective).
    by : str
        Device that detected it, or ``master``.
    time_ns : int
    what : str
        The transfer, collective or worker by which it was detected.
    """

    how: str
    by: str
    time_ns: int
    what: str


# ----------------------------------------------------------------------------------------------------------
# The conditions of a machine from some time on: its failures, and the speed of its parts.
#
# Everything follows from the causes and the seed, and is computed on demand, because the length of a run is
# not known in advance. Times are counted from the beginning of an *attempt*: a run of some steps up to their
# end, or to the failure that aborts one.

_FULL_SPEED: Final = (1, FOREVER)

MOST_FAILURES: Final = 1_000_000
"""Maximum number of failures of a run, and of changes of a link during one transfer."""


def failures_of(faults: Faults, machine: Machine, seed: int) -> Iterator[Failed]:
    """Yield the failures of parts from time 0 on, by time, cause and part; endless if a cause has an MTBF."""
    causes = [cause for cause in faults.causes if cause.factor is None]
    yield from merge(*(_failures(cause, machine, seed) for cause in causes), key=attrgetter("time_ns"))


def _failures(cause: Cause, machine: Machine, seed: int) -> Iterator[Failed]:
    silent = cause.silent or cause.kind == "link"
    for time_ns, _, position in arrivals((cause,), len(cause.parts), seed):
        back_ns = None if cause.lasts_ns is None else time_ns + cause.lasts_ns
        part = cause.parts[position]
        name = part_name(machine, cause.kind, part)
        yield Failed(time_ns, back_ns, cause.name, cause.kind, name, part, silent)


def part_name(machine: Machine, kind: str, part: int) -> str:
    """Return the name of a device, worker or link."""
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
        Begin of the attempt; the times here are relative to it.
    """

    def __init__(self, faults: Faults, machine: Machine, seed: int, from_ns: int = 0) -> None:
        self.faults, self.from_ns = faults, from_ns
        self._machine, self._seed = machine, seed

    def failures(self) -> Iterator[Failed]:
        """Yield the failures, by time; endless if a cause has an MTBF."""
        return self._failures(self.faults)

    def failures_of_devices(self) -> Iterator[Failed]:
        """Yield the first failure of each device and worker; within an attempt, none is repaired."""
        causes = [cause for cause in self.faults.causes if cause.factor is None and cause.kind != "link"]
        pending: set[tuple[PartKind, int]] = set()
        for cause in causes:
            due = [position for time_ns, position in cause.at if time_ns > self.from_ns or not self.from_ns]
            places = due if cause.mtbf_ns is None else range(len(cause.parts))
            pending |= {(cause.kind, cause.parts[position]) for position in places}
        failures = self._failures(replace(self.faults, causes=tuple(causes)))
        while pending:
            failed = next(failures)
            if (failed.kind, failed.part) in pending:
                pending.remove((failed.kind, failed.part))
                yield failed

    def _failures(self, faults: Faults) -> Iterator[Failed]:
        for failed in failures_of(faults, self._machine, self._seed):
            if failed.time_ns > self.from_ns or not self.from_ns:  # repairs before a restart do not count
                back_ns = None if failed.back_ns is None else failed.back_ns - self.from_ns
                yield failed._replace(time_ns=failed.time_ns - self.from_ns, back_ns=back_ns)

    def next_standstill_ns(self, link: int, from_ns: int) -> int | None:
        """Return the first time from `from_ns` on at which a link is down; None: never."""
        pace = self._outages.get(link)
        while pace is not None and from_ns < FOREVER:
            rate, until_ns = pace.rate(from_ns)
            if not rate:
                return from_ns
            from_ns = until_ns
        return None

    @cached_property
    def paces(self) -> dict[int, SpeedProfile]:
        """The speed of the devices whose speed may change."""
        machine = self._machine
        workers = [[machine.device_index(name) for name in host.serves] for host in machine.hosts_in_order]
        return self._paces(
            (device, cause, position)
            for cause in self.faults.causes
            if cause.factor is not None and cause.kind != "link"
            for position, part in enumerate(cause.parts)
            for device in (workers[part] if cause.kind == "worker" else [part])
        )

    def end_ns(self, device: int, start_ns: int, duration_ns: int) -> int:
        """Return when work that a device begins at `start_ns` ends."""
        pace = self.paces.get(device)
        end_ns = start_ns + duration_ns if pace is None else pace.end_ns(start_ns, duration_ns)
        assert end_ns is not None  # a slow device does not stand still
        return end_ns

    @cached_property
    def link_paces(self) -> dict[int, SpeedProfile]:
        """The speed of the links whose speed may change; for links of one medium, of the first."""
        return self._paces_of_links(self.faults.causes)

    @cached_property
    def _outages(self) -> dict[int, SpeedProfile]:
        """The speed of links by failures alone, without slow-downs."""
        return self._paces_of_links(cause for cause in self.faults.causes if cause.factor is None)

    def _paces_of_links(self, causes: Iterable[Cause]) -> dict[int, SpeedProfile]:
        return self._paces(
            (self._machine.channels[part], cause, position)
            for cause in causes
            if cause.kind == "link"
            for position, part in enumerate(cause.parts)
        )

    def _paces(self, affected: Iterable[tuple[int, Cause, int]]) -> dict[int, SpeedProfile]:
        spans: dict[int, list[Iterator[Window]]] = {}
        for part, cause, position in affected:
            if cause.lasts_ns == 0:
                continue
            spans.setdefault(part, []).append(self._windows(cause, position))
        return {part: SpeedProfile(merge(*seqs, key=attrgetter("start_ns"))) for part, seqs in spans.items()}

    def _windows(self, cause: Cause, position: int) -> Iterator[Window]:
        """Yield the windows in which a cause affects one of its parts."""
        for time_ns in times_of(cause, position, self._seed):
            start_ns = time_ns - self.from_ns
            end_ns = FOREVER if cause.lasts_ns is None else start_ns + cause.lasts_ns
            if end_ns > 0:
                yield Window(max(start_ns, 0), end_ns, cause.factor)

    def _rate_of_link(self, link: int, time_ns: int) -> tuple[Fraction | int, int]:
        """Return the rate of a link at a time, and a time until which it does not change."""
        pace = self.link_paces.get(link)
        return _FULL_SPEED if pace is None else pace.rate(time_ns)

    def arrival_ns(self, links: Sequence[tuple[int, int | None]], start_ns: int, nbytes: int) -> int | None:
        """Return when bytes that start at `start_ns` over links that they do not share arrive; None: never.

        Parameters
        ----------
        links : sequence of (int, int or None)
            Each with its bandwidth in bytes/s; None: unlimited.
        start_ns, nbytes : int

        Raises
        ------
        StuckError
            The links change too often during the transfer.
        """
        remaining: Fraction | int = nbytes * NS_PER_S
        time_ns = start_ns
        for _ in range(MOST_FAILURES):
            now = [(*self._rate_of_link(link, time_ns), bandwidth) for link, bandwidth in links]
            if down := [until_ns for rate, until_ns, _ in now if not rate]:
                time_ns = max(down)
                if time_ns == FOREVER:
                    return None
                continue
            rates = [rate * bandwidth for rate, _, bandwidth in now if bandwidth is not None]
            if not rates or not remaining:
                return time_ns
            until_ns, there_ns = min(end for _, end, _ in now), time_ns + int(-(-remaining // min(rates)))
            if there_ns <= until_ns:
                return there_ns
            remaining -= min(rates) * (until_ns - time_ns)
            time_ns = until_ns
        names = " and ".join(self._machine.links[link].name for link, _ in links if link in self.link_paces)
        raise StuckError(
            f"a transfer of {format_bytes(nbytes)} met {MOST_FAILURES:,} changes of {names} by "
            f"{format_duration(time_ns)}, and {format_bytes(int(remaining // NS_PER_S))} are left"
        )
