"""How long a tensor travels from device to device when it meets no other."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import numpy as np

from sim.job.pageable import connection_bytes_per_s
from sim.machine.machine import Machine
from sim.words.arrays import IntArray, distinct_rows
from sim.words.units import NS_PER_S

__all__ = ["Travel", "travel_ns"]


class Travel(NamedTuple):
    """The way from one device to another, which a tensor has for itself.

    Attributes
    ----------
    latency_ns : int
        That of all its links together.
    bytes_per_s : int or None
        The bandwidth of its slowest link, of a connection, or of the host that copies pageable memory; None:
        no limit.
    queues : tuple of int
        Where links send chunks one after another: the bandwidth of each (and of a connection) that has one.
    chunk : int, optional
        The largest chunk; None: all in one.

    Examples
    --------
    >>> Travel(latency_ns=10, bytes_per_s=10**9).ns(5)
    15
    >>> Travel(10, 10**9, (10**9, 10**9)).ns(5), Travel(10, 10**9, (10**9, 10**9), 1).ns(5)
    (20, 16)
    """

    latency_ns: int
    bytes_per_s: int | None
    queues: tuple[int, ...] = ()
    chunk: int | None = None

    @classmethod
    def between(cls, machine: Machine, source: int, destination: int) -> Travel:
        """Return the way that a tensor takes, whichever it is.

        Raises
        ------
        InfeasibleError
            There are links, but none leads there.
        """
        return cls.along(machine, source, destination, machine.route(source, destination))

    @classmethod
    def along(cls, machine: Machine, source: int, destination: int, route: Sequence[int]) -> Travel:
        """Return the way over the links of a route."""
        limits = [machine.links[k].bandwidth_bytes_per_s for k in route]
        limits.append(connection_bytes_per_s(machine, source, destination, route))
        rates = [rate for rate in limits if rate is not None]
        least, latency_ns = min(rates, default=None), machine.latency_ns(route)
        if not route or machine.links[route[0]].sharing != "fifo":
            return cls(latency_ns, least)
        chunks = [machine.links[k].chunk_bytes for k in route]
        most = min((chunk for chunk in chunks if chunk is not None), default=None)
        return cls(latency_ns, least, (*rates[-1:], *rates[:-1]) if limits[-1] else tuple(rates), most)

    def ns(self, nbytes: int) -> int:
        """Return the first whole ns at which `nbytes` are all there."""
        if self.queues:
            return self.latency_ns + ceil(self._through_queues(nbytes) * NS_PER_S)
        sent = 0 if self.bytes_per_s is None else -(-nbytes * NS_PER_S // self.bytes_per_s)
        return self.latency_ns + sent

    def _through_queues(self, nbytes: int) -> Fraction:
        """Return the seconds from queue to queue: the longest way through chunks and links.

        All chunks but the last are alike, so that they wait for one another at the slowest link only; where
        the last one follows, it may be another one that holds it up.
        """
        chunk = self.chunk or max(nbytes, 1)
        whole, last = divmod(nbytes, chunk)
        if whole and not last:
            whole, last = whole - 1, chunk
        each = [Fraction(1, rate) for rate in self.queues]
        if not whole:
            return last * sum(each, Fraction(0))
        return max(
            chunk * (sum(each[: q + 1], Fraction(0)) + (whole - 1) * max(each[: q + 1]))
            + last * sum(each[q:], Fraction(0))
            for q in range(len(each))
        )


def travel_ns(
    machine: Machine, source: IntArray, destination: IntArray, tensor: IntArray, nbytes: IntArray
) -> IntArray:
    """Return how long each transfer travels at least."""
    routes, way = machine.distinct_routes(source, destination, tensor)
    ways = [Travel.along(machine, *each) for each in routes]
    different, which = distinct_rows(way, nbytes)
    return np.array([ways[k].ns(size) for k, size in different], np.int64)[which]
