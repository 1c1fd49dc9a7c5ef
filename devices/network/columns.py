"""The network of a job in columns, for the kernel."""

from __future__ import annotations

from collections.abc import Hashable
from math import gcd

from devices.network.routes import Way, find_ways
from sim.job import Job
from sim.kernel.routes import LARGEST, Routes
from sim.transfers import Flow
from sim.units import NS_PER_S

__all__ = ["network_columns"]


def network_columns(job: Job, flow: Flow) -> Routes | str:
    """Return where a job's transfers go, or in words why the kernel cannot count what they carry.

    Parameters
    ----------
    job : Job
    flow : Flow

    Raises
    ------
    InputError
        A link with a word of `sharing` or a number of copy engines that means nothing.
    """
    way_of, bandwidth = find_ways(job, flow)
    ways: dict[int, int] = {}
    distinct: list[Way] = []
    for way in way_of:
        if id(way) not in ways:
            ways[id(way)] = len(distinct)
            distinct.append(way)
    links = {link: k for k, link in enumerate(sorted({link for way in distinct for link in way.shared}))}
    unit = gcd(NS_PER_S, *(bandwidth[link] for link in links))
    keys: dict[Hashable, int] = {}
    routes: dict[tuple[int, ...], int] = {}
    out = Routes([], [], [], [], [0], [], [], [0], [], [bandwidth[link] // unit for link in links])
    for way in distinct:
        out.latency_ns.append(way.latency_ns)
        out.held.extend(keys.setdefault(key, len(keys)) for key in way.held)
        out.held_first.append(len(out.held))
        if way.shared and way.shared not in routes:
            routes[way.shared] = len(routes)
            out.links.extend(links[link] for link in way.shared)
            out.first.append(len(out.links))
        out.route.append(routes.get(way.shared, -1))
    for way, nbytes in zip(way_of, flow.nbytes.tolist(), strict=True):
        out.way.append(ways[id(way)])
        out.work.append(nbytes * (NS_PER_S // unit) if way.shared else 0)
        out.alone_ns.append(0 if out.work[-1] else way.alone_ns(nbytes))
    largest = max((*out.work, *out.alone_ns, *out.latency_ns, *out.capacity), default=0)
    if largest >= LARGEST:
        return f"a transfer or a bandwidth needs a number of {largest.bit_length()} bits"
    return out
