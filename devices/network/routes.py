"""What transfers between two devices meet: what they hold, how long the first byte takes, what they share."""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

from sim.errors import InputError
from sim.hosting import staging_bytes_per_s
from sim.job import Job
from sim.model import Machine
from sim.transfers import Flow
from sim.units import NS_PER_S

__all__ = ["Way", "find_ways"]


class Way(NamedTuple):
    """What a transfer from one device to another meets."""

    held: tuple[Hashable, ...]
    """Serial links and copy engines, for one transfer at a time."""
    latency_ns: int
    bandwidth_bytes_per_s: int | None
    """The least of the route."""
    shared: tuple[int, ...]
    """Links with a bandwidth (and the host's copying), when a link is shared; else empty."""

    def alone_ns(self, nbytes: int) -> int:
        """Return how long a transfer takes that has the bandwidth for itself."""
        if self.bandwidth_bytes_per_s is None:
            return self.latency_ns
        return self.latency_ns - (-nbytes * NS_PER_S // self.bandwidth_bytes_per_s)


def find_ways(job: Job, flow: Flow) -> tuple[list[Way], dict[int, int]]:
    """Return the way of each transfer, and the bandwidth in bytes/s of each link that has one.

    Parameters
    ----------
    job : Job
    flow : Flow

    Returns
    -------
    list of Way
        One entry a transfer; those between the same two devices have the same object.
    dict of int to int
        By what `Way.shared` names: links, and the host's copying from one device to another.

    Raises
    ------
    InputError
        A link with a word of `sharing` or a number of copy engines that means nothing.
    """
    machine = job.machine
    pairs = list(zip(flow.source.tolist(), flow.destination.tolist(), strict=True))
    capacity = _capacities(machine)
    ways: dict[tuple[int, int], Way] = {}
    for pair in dict.fromkeys(pairs):
        stage = len(machine.links) + len(ways)
        staging = staging_bytes_per_s(job, *pair)
        if staging is not None:
            capacity[stage] = staging
        ways[pair] = _way(machine, *pair, staging, stage)
    return [ways[pair] for pair in pairs], capacity


def _way(machine: Machine, source: int, destination: int, staging: int | None, stage: int) -> Way:
    """Return the way between two devices; `stage` is the number of the host's copying among the links."""
    links = machine.route(source, destination)
    held: list[Hashable] = [link for link in links if machine.links[link].sharing == "serial"]
    finite = tuple(link for link in links if machine.links[link].bandwidth_bytes_per_s is not None)
    bandwidths = [staging, *(machine.links[link].bandwidth_bytes_per_s for link in finite)]
    shared = any(machine.links[link].sharing == "shared" for link in finite)
    independent = next((link for link in finite if machine.links[link].sharing == "independent"), None)
    if shared and independent is not None:
        ends = f"from {machine.devices[source].name} to {machine.devices[destination].name}"
        raise InputError(
            f"the route {ends} leads over {machine.links[independent].name!r}, which is independent, and a "
            "shared link; make both the same"
        )
    engines = [_engine(machine, source, "out"), _engine(machine, destination, "in")]
    return Way(
        (*held, *(engine for engine in engines if engine is not None)),
        sum(machine.links[link].latency_ns for link in links),
        min((bandwidth for bandwidth in bandwidths if bandwidth is not None), default=None),
        (*finite, *(() if staging is None else (stage,))) if shared else (),
    )


def _engine(machine: Machine, device: int, direction: str) -> Hashable | None:
    """Return what a transfer holds at one of its ends; None: nothing."""
    engines = machine.devices[device].details.copy_engines
    if engines is None:
        return None
    if engines not in (1, 2):
        raise InputError(
            f"{machine.devices[device].name}.copy_engines: found {engines!r}; accepted: 1 (one transfer at a "
            "time) or 2 (one in each direction)"
        )
    return (device, direction if engines == 2 else "both")


def _capacities(machine: Machine) -> dict[int, int]:
    for link in machine.links:
        if link.sharing not in ("serial", "shared", "independent"):
            raise InputError(
                f"link {link.name!r}: sharing must be serial, shared or independent, found {link.sharing!r}"
            )
    return {
        k: link.bandwidth_bytes_per_s
        for k, link in enumerate(machine.links)
        if link.bandwidth_bytes_per_s is not None
    }
