"""How long a tensor travels from device to device when it meets no other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.job.pageable import staging_bytes_per_s
from sim.machine.machine import Machine
from sim.words.arrays import IntArray
from sim.words.units import NS_PER_S

__all__ = ["Travel", "distinct_moves", "travel_ns"]


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


def distinct_moves(
    source: IntArray, destination: IntArray, nbytes: IntArray
) -> tuple[list[tuple[int, int, int]], IntArray]:
    """Return the different (source, destination, bytes), sorted, and which of them each row is.

    Examples
    --------
    >>> moves, which = distinct_moves(np.array([1, 0, 1]), np.array([0, 1, 0]), np.array([8, 4, 8]))
    >>> moves, which.tolist()
    ([(0, 1, 4), (1, 0, 8)], [1, 0, 1])
    """
    sizes, size = np.unique(nbytes, return_inverse=True)
    n = int(max(source.max(initial=0), destination.max(initial=0))) + 1
    _, first, which = np.unique(
        (source * n + destination) * max(1, len(sizes)) + size, return_index=True, return_inverse=True
    )
    columns = (source[first].tolist(), destination[first].tolist(), nbytes[first].tolist())
    return list(zip(*columns, strict=True)), which


def travel_ns(machine: Machine, source: IntArray, destination: IntArray, nbytes: IntArray) -> IntArray:
    """Return how long each transfer travels at least."""
    moves, which = distinct_moves(source, destination, nbytes)
    times = [Travel.between(machine, a, b).ns(size) for a, b, size in moves]
    return np.array(times, np.int64)[which]
