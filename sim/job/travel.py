"""How long a tensor travels from device to device when it meets no other."""

from __future__ import annotations

from typing import NamedTuple

from sim.job.pageable import staging_bytes_per_s
from sim.machine.machine import Machine
from sim.words.units import NS_PER_S

__all__ = ["Travel"]


class Travel(NamedTuple):
    """The way from one device to another, which a tensor has for itself.

    Attributes
    ----------
    latency_ns : int
        That of all its links together.
    bytes_per_s : int or None
        The bandwidth of its slowest link, or of the host that copies pageable memory; None: no limit.

    Examples
    --------
    >>> Travel(latency_ns=10, bytes_per_s=10**9).ns(5)
    15
    """

    latency_ns: int
    bytes_per_s: int | None

    @classmethod
    def between(cls, machine: Machine, source: int, destination: int) -> Travel:
        """Return the way that a tensor takes.

        Raises
        ------
        InfeasibleError
            There are links, but none leads there.
        """
        route = [machine.links[k] for k in machine.route(source, destination)]
        limits = [link.bandwidth_bytes_per_s for link in route]
        limits.append(staging_bytes_per_s(machine, source, destination))
        rates = [rate for rate in limits if rate is not None]
        return cls(sum(link.latency_ns for link in route), min(rates, default=None))

    def ns(self, nbytes: int) -> int:
        """Return the first whole ns at which `nbytes` are all there."""
        sent = 0 if self.bytes_per_s is None else -(-nbytes * NS_PER_S // self.bytes_per_s)
        return self.latency_ns + sent
