"""Durations of collectives of a group of ranks from a few numbers, without the links of a machine.

::

    in a node          steps · latency + S · steps/n / bandwidth   a ring has 2(n-1) steps for an all-reduce,
                                                                   n-1 for its halves
    over 4 nodes of 8
      ring             all-gather    28 hops in nodes + 3 between them; (n-1)/n S over what is slower
      tree of nodes    all-reduce    2 (7 in the node + log2 4 between); 2 S / 0.92
      directly         all-to-all    7 messages in the node, 24 to others

S are the bytes as nccl-tests count them. Over several nodes the ring's bytes wait for the slower of NVLink
and a node's network, which the groups that run side by side share: each of p ranks of a group on a node has p
of the node's g shares of it. What a hop between nodes takes is given, or NCCL's own: then each of its
protocols has latencies and a part of the bandwidth, and of ways and protocols the fastest is taken, as NCCL
does (`devices.collectives.nccl_tuner`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np

from devices.collectives.nccl_model import expected_us
from devices.collectives.nccl_tuner import (
    BANDWIDTH_PARTS,
    LATENCY_US,
    MOST_PER_NODE,
    NETWORK_LL,
    PROTOCOLS,
    TREE_PART,
    latency_us,
)
from devices.collectives.schedules import RING_ROUNDS
from sim.base.units import NS_PER_S

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"]


class RankGroup(NamedTuple):
    """Ranks that communicate: how many, on how many nodes; other groups beside them share the nodes."""

    size: int
    nodes: int

    @property
    def per_node(self) -> int:
        """Ranks on a node, of the fullest one."""
        return -(-self.size // self.nodes)


class GroupCollectives(Protocol):
    """What says how long collectives of a group take."""

    def time_ns(self, kind: CollectiveKind, nbytes: int, group: RankGroup) -> float:
        """Return the ns of a collective once all its ranks are there."""
        ...


@dataclass(frozen=True)
class Fabric:
    """Bandwidth and latency of messages inside a node, or between nodes.

    Attributes
    ----------
    bandwidth : float
        Of a rank, in bytes/s each way.
    efficiency : mapping
        Part of it that is reached, by kind, or by kind and ranks; ``default`` for the others.
    latency_ns : mapping
        Of a message, by kind.
    fixed_ns : mapping
        Of a call, by kind, or by kind and ranks (``all_to_all/4``).

    Examples
    --------
    >>> Fabric(1e9, latency_ns={"default": 1000.0}).time_ns("all_reduce", 4_000_000, 4)
    6006000.0
    """

    bandwidth: float = math.inf
    efficiency: Mapping[str, float] = field(default_factory=dict)
    latency_ns: Mapping[str, float] = field(default_factory=dict)
    fixed_ns: Mapping[str, float] = field(default_factory=dict)

    def hop_ns(self, kind: CollectiveKind) -> float:
        """Return the latency of a message."""
        return _rate_for(self.latency_ns, kind, 0, 0.0)

    def call_ns(self, kind: CollectiveKind, ranks: int) -> float:
        """Return what a call takes besides its messages."""
        return _rate_for(self.fixed_ns, kind, ranks, 0.0)

    def rate(self, kind: CollectiveKind, ranks: int) -> float:
        """Return how many bytes/s of a rank pass."""
        return self.bandwidth * _rate_for(self.efficiency, kind, ranks, 1.0)

    def time_ns(self, kind: CollectiveKind, nbytes: int, ranks: int) -> float:
        """Return the time of a collective whose ranks this connects."""
        steps = 1 if kind == "send" else _ROUNDS[kind] * (ranks - 1)
        sent = steps * nbytes * NS_PER_S / (self.rate(kind, ranks) * (1 if kind == "send" else ranks))
        return steps * self.hop_ns(kind) + self.call_ns(kind, ranks) + sent


def _rate_for(table: Mapping[str, float], kind: CollectiveKind, ranks: int, usual: float) -> float:
    """Return the number of a kind among so many ranks, else of the kind, else of all others."""
    names = (f"{kind}/{ranks}", kind, f"default/{ranks}", "default")
    return next((table[name] for name in names if name in table), usual)


@dataclass(frozen=True)
class NodeFabrics:
    """Collectives by what connects ranks inside a node, and between nodes (a rank's part of its network).

    With `nccl`, latencies over several nodes are NCCL's, by protocol, and not those of `between`. What is
    `measured` holds in a node, among as many ranks as were.

    Examples
    --------
    >>> of = NodeFabrics(Fabric(1e9, latency_ns={"default": 1e3}), Fabric(1e9, latency_ns={"default": 1e4}))
    >>> of.time_ns("all_reduce", 0, RankGroup(32, 4))  # a tree: 2 (7 hops in its node + log2 4 between)
    54000.0
    """

    node: Fabric = Fabric()
    between: Fabric = Fabric()
    nccl: bool = False
    measured: NcclGroups | None = None

    def time_ns(self, kind: CollectiveKind, nbytes: int, group: RankGroup) -> float:
        """Return the ns of a collective once all its ranks are there."""
        n, between = group.size, self.between
        if group.nodes == 1 and n <= MOST_PER_NODE and self.measured is not None:
            return self.measured.time_ns(kind, nbytes, group)
        if group.nodes == 1:
            return self.node.time_ns(kind, nbytes, n)
        carried, rate = float(nbytes), between.rate(kind, n)
        if kind == "all_to_all":  # what stays in the node does not cross the network
            carried *= (n - group.per_node) / n
        elif kind != "send":
            carried *= _ROUNDS[kind] * (n - 1) / n
            rate *= group.per_node
        if kind != "all_to_all":
            rate = min(rate, self.node.rate(kind, group.per_node))
        ways = _nccl_ways(kind, group) if self.nccl else self._ways(kind, group)
        return min(way.latency_ns + carried / min(way.part * rate, way.most) * NS_PER_S for way in ways)

    def _ways(self, kind: CollectiveKind, group: RankGroup) -> Iterator[_Way]:
        n, nodes, per_node = group.size, group.nodes, group.per_node
        fixed, node_ns, between_ns = (
            self.between.call_ns(kind, n), self.node.hop_ns(kind), self.between.hop_ns(kind)
        )  # fmt: skip
        if kind == "send":
            yield _Way(fixed + between_ns)
        elif kind == "all_to_all":
            yield _Way(fixed + (per_node - 1) * node_ns + (n - per_node) * between_ns)
        else:
            yield _Way(fixed + _ROUNDS[kind] * ((n - nodes) * node_ns + (nodes - 1) * between_ns))
        if kind == "all_reduce":
            hops = (per_node - 1) * node_ns + (nodes.bit_length() - 1) * between_ns
            yield _Way(fixed + 2 * hops, TREE_PART * (n - 1) / n)  # it sends all of S twice


class _Way(NamedTuple):
    """A way to carry out a collective: latency, part of the bandwidth that it reaches, most bytes/s."""

    latency_ns: float
    part: float = 1.0
    most: float = math.inf


@lru_cache(maxsize=4096)
def _nccl_ways(kind: CollectiveKind, group: RankGroup) -> tuple[_Way, ...]:
    """Return NCCL's ways of a group over several nodes, by its own latencies.

    Its corrections of trees and long rings serve its choice; with them, published steps are no nearer.
    """
    if kind in ("all_to_all", "send"):  # directly, to all at once
        return (_Way(1000 * (LATENCY_US["ring"]["base"][-1] + LATENCY_US["ring"]["net"][-1])),)
    limits = {"ll": 1e9 * NETWORK_LL[False][min(group.nodes, 3) - 2]}
    traffic = {"ring": 1.0, "tree": (group.size - 1) / group.size}  # a tree sends all of S twice
    return tuple(
        _Way(
            1000 * latency_us(kind, algorithm, protocol, group.size, group.nodes),
            part * (TREE_PART if algorithm == "tree" else 1) * traffic[algorithm],
            limits.get(protocol, math.inf) * traffic[algorithm],
        )
        for algorithm in (("ring", "tree") if kind == "all_reduce" else ("ring",))
        for protocol, part in zip(PROTOCOLS, BANDWIDTH_PARTS[algorithm], strict=True)
    )


_ROUNDS: Final = {**RING_ROUNDS, "all_to_all": 1}
"""How often a rank sends n - 1 messages of 1/n, one after the other."""


# ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NcclGroups:
    """Collectives among GPUs of a generation as NCCL chooses and times them, eight GPUs or fewer a node.

    In one node its choice at rates fitted to measured times, over several nodes what its tuner expects.

    Examples
    --------
    >>> nccl, groups = NcclGroups("h100"), (RankGroup(8, 1), RankGroup(32, 4))
    >>> inside, across = (nccl.time_ns("all_gather", 2**28, group) for group in groups)
    >>> 600_000 < inside < across < 900_000
    True
    """

    gpu: str

    def time_ns(self, kind: CollectiveKind, nbytes: int, group: RankGroup) -> float:
        """Return the ns of a collective once all its ranks are there."""
        where = (group.per_node,) * group.nodes
        if kind == "send":  # two ranks of the group
            where = (1, 1) if group.nodes > 1 else (2,)
        return 1000 * expected_us(self.gpu, kind, where, nbytes)


# ----------------------------------------------------------------------------------------------------------
# All-reduces of serving engines: one kernel reads the others' parts, over NVLink or Infinity Fabric.

_PEER_BYTES: Final = (512, 4096, 32768, 262144, 524288, 1048576)
_PEER_US: Final = {
    2: (9.5, 8.8, 8.7, 12.9, 17.7, 26.6),
    4: (9.1, 8.5, 9.2, 20.6, 26.9, 40.2),
    8: (10.1, 9.3, 11.8, 24.1, 30.4, 45.0),
}
"""Ranks -> us by bytes: vLLM's kernel on H100, launched alone (sgl-project/sglang, pull request 2904)."""


def peer_all_reduce_ns(ranks: int, nbytes: int) -> float:
    """Return what an all-reduce of vLLM's takes among ranks with NVLink; infinity where none was measured.

    Examples
    --------
    >>> peer_all_reduce_ns(8, 65536), peer_all_reduce_ns(16, 65536)
    (13557.142857142859, inf)
    """
    if ranks not in _PEER_US or nbytes > _PEER_BYTES[-1]:
        return math.inf
    return 1000 * float(np.interp(nbytes, _PEER_BYTES, _PEER_US[ranks]))
