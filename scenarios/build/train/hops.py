"""Collectives over several nodes: most hops of a ring stay in a node, and one a node crosses the network.

::

    ring of 4 nodes of 8    all-gather    28 hops in nodes + 3 between them; (n-1)/n S over what is slower
    tree of the nodes       all-reduce    2 (7 in the node + log2 4 between); 2 S / 0.92
    directly                all-to-all    7 messages in the node, 24 to others

What a hop takes is given, or NCCL's own: then each of its protocols has latencies and a part of the
bandwidth, and of ways and protocols the fastest is taken, as NCCL does. Source: NVIDIA/nccl 2.30,
``src/graph/tuning.cc`` (``ncclTopoTuneModel``); without latencies, the ring is that of
`scenarios.build.train.calibration`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from devices.collectives.nccl.constants import BASE_US, HARDWARE_US, NETWORK_LL, PROTOCOLS
from scenarios.build.train.kernels import CollectiveKind
from scenarios.build.train.layout import Group
from sim.words.units import NS_PER_S

__all__ = ["Hops", "Way", "latency_of", "nccl_ways", "ways"]


class Hops(NamedTuple):
    """What is waited for: before the first message, for a hop in a node and for one between nodes, in ns."""

    start_ns: float
    inside_ns: float
    between_ns: float


class Way(NamedTuple):
    """A way to carry out a collective: its latency, and the bandwidth that it reaches.

    Attributes
    ----------
    latency_ns : float
    part : float
        Of the bandwidth that there is.
    most : float
        Bytes/s that it carries at most.
    """

    latency_ns: float
    part: float
    most: float = math.inf

    def time_ns(self, nbytes: float, rate: float) -> float:
        """Return what it takes where `rate` bytes/s pass."""
        return self.latency_ns + nbytes / min(self.part * rate, self.most) * NS_PER_S


_TREE: Final = 0.92
"""What a tree reaches of the bandwidth of a ring."""

_PARTS: Final[Mapping[str, Mapping[str, float]]] = {
    "ring": {"ll": 0.5, "ll128": 0.92, "simple": 1.0},
    "tree": {"ll": _TREE / 3.8, "ll128": _TREE * 120 / 128, "simple": _TREE},
}


@lru_cache(maxsize=4096)
def ways(kind: CollectiveKind, group: Group, hops: Hops) -> tuple[Way, ...]:
    """Return the ways of a group over several nodes, each hop of which takes as long.

    Examples
    --------
    >>> ways("all_reduce", Group(32, 4), Hops(0.0, 1000.0, 10_000.0))
    (Way(latency_ns=116000.0, part=1.0, most=inf), Way(latency_ns=54000.0, part=0.92, most=inf))
    """
    ring = Way(latency_of("ring", kind, group, hops), 1.0)
    if kind != "all_reduce":
        return (ring,)
    return ring, Way(latency_of("tree", kind, group, hops), _TREE)


@lru_cache(maxsize=4096)
def nccl_ways(kind: CollectiveKind, group: Group) -> tuple[Way, ...]:
    """Return NCCL's ways of a group over several nodes, by its own latencies.

    Examples
    --------
    >>> [round(way.latency_ns) for way in nccl_ways("all_gather", Group(6400, 800))]
    [7763900, 13850000, 30234400]
    """
    if kind in ("all_to_all", "send"):  # directly, to all at once
        return (Way(1000 * (BASE_US["ring"][-1] + HARDWARE_US["net"]["ring"][-1]), 1.0),)
    found = []
    for way in ("ring", "tree") if kind == "all_reduce" else ("ring",):
        for p, protocol in enumerate(PROTOCOLS):
            # With one rank on each node, messages of a ring are as exposed as those of a tree.
            net = HARDWARE_US["net"]["tree" if group.per_node == 1 else way][p]
            inside = HARDWARE_US["nvlink"][way][p]
            if way == "ring":  # a message to the network is posted meanwhile
                inside = max(inside, 3.0 if protocol == "simple" else 1.0)
            hops = Hops(1000 * BASE_US[way][p], 1000 * inside, 1000 * net)
            most = 1e9 * NETWORK_LL[False][min(group.nodes, 3) - 2] if protocol == "ll" else math.inf
            found.append(Way(latency_of(way, kind, group, hops), _PARTS[way][protocol], most))
    return tuple(found)


def latency_of(way: str, kind: CollectiveKind, group: Group, hops: Hops) -> float:
    """Return what a way takes without any bytes: its hops, one after another."""
    n, nodes, here = group.size, group.nodes, group.per_node
    if kind == "send":
        inside, between = 0, 1
    elif kind == "all_to_all":
        inside, between = here - 1, n - here
    elif way == "tree":
        inside, between = 2 * (here - 1), 2 * (nodes.bit_length() - 1)
    else:
        rounds = 2 if kind == "all_reduce" else 1
        inside, between = rounds * (n - nodes), rounds * (nodes - 1)
    return hops.start_ns + inside * hops.inside_ns + between * hops.between_ns
