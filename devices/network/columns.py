"""The network of a job in columns, for the kernel."""

from __future__ import annotations

from collections.abc import Hashable
from math import gcd

import numpy as np

from devices.network.routes import find_ways
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.kernel.layout.routes import LARGEST, Routes
from sim.words.units import NS_PER_S

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
    ways, of, bandwidth = find_ways(job, flow)
    if any(way.hops for way in ways):
        return "links that are fifo send chunks one after another"
    used = sorted({link for way in ways for link in way.shared})
    number = {link: k for k, link in enumerate(used)}
    unit = gcd(NS_PER_S, *(bandwidth[link] for link in used))
    keys: dict[Hashable, int] = {}
    routes: dict[tuple[int, ...], int] = {}
    route, held, held_first, links, first = [], [], [0], [], [0]
    for way in ways:
        held += [keys.setdefault(key, len(keys)) for key in way.held]
        held_first.append(len(held))
        if way.shared and way.shared not in routes:
            routes[way.shared] = len(routes)
            links += [number[link] for link in way.shared]
            first.append(len(links))
        route.append(routes.get(way.shared, -1))
    capacity = [bandwidth[link] // unit for link in used]
    latency_ns = [way.latency_ns for way in ways]
    flows = (np.array(route, np.int64)[of] >= 0) & (flow.nbytes > 0)
    per_byte = NS_PER_S // unit
    largest = max(int(flow.nbytes.max(initial=0)) * per_byte * bool(used), *capacity, *latency_ns, 0)
    if largest >= LARGEST:
        return f"its transfers need numbers of {largest.bit_length()} bits"
    alone = np.where(flows, 0, flow.nbytes)
    alone_ns = [ways[k].alone_ns(n) for k, n in zip(of.tolist(), alone.tolist(), strict=True)]
    if max(alone_ns, default=0) >= LARGEST:
        return "a transfer takes longer than 60 bits can count"
    work = np.where(flows, flow.nbytes * per_byte, 0)
    return Routes(
        of, work, np.array(alone_ns, np.int64), latency_ns, held_first, held, route, first, links, capacity
    )
