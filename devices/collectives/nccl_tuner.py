"""NCCL's choice for a collective: the fastest algorithm and protocol by its own estimate, and its channels.

::

    time = latency + bytes / bandwidth     of each algorithm (tree, ring, NVLS, NVLS tree, PAT)
                                           and protocol (LL, LL128, Simple); the least wins, then the first

Ring: a base latency and one of each step; its bandwidth is what its channels carry, less what a protocol's
flags take. All that depends on the GPUs is in ``nccl_gpus.yaml``. The network is taken to do no reductions
(no CollNet), its latency is taken as what a card over InfiniBand reports (0), and a call is not fused with
others.

Source: NVIDIA/nccl 2.30, ``src/graph/tuning.cc`` (``ncclTopoTuneModel``, ``ncclTopoGetAlgoTime``) and
``src/enqueue.cc`` (``topoGetAlgoInfo``, ``scheduleCollTasksToPlan``, ``addP2pToPlan``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import Final, NamedTuple

from devices.collectives.schedules import RING_ROUNDS
from devices.presets import yaml_beside
from sim.base.errors import InputError

# ----------------------------------------------------------------------------------------------------------
# Constants of NCCL 2.30 that determine its choice.
#
# Latencies are in us, bandwidths in GB/s, as there. Source: NVIDIA/nccl, tag 2.30: ``src/graph/tuning.cc``
# (``ncclTunerConstantsDefaults``, ``treeCorrectionFactor``, ``nvlsEfficiency``), ``src/graph/topo.h`` (rates
# of NVLink), ``src/graph/search.cc`` (``speedArray...``), ``src/include/device.h`` and ``comm.h`` (threads).

PROTOCOLS: Final = ("ll", "ll128", "simple")

LATENCY_US: Final[Mapping[str, Mapping[str, tuple[float, float, float]]]] = {
    "tree": {"base": (6.8, 14.0, 8.4), "nvlink": (0.6, 1.25, 4.0), "net": (5.0, 8.5, 14)},
    "ring": {"base": (6.6, 14.0, 8.4), "nvlink": (0.6, 1.9, 3.4), "net": (2.7, 4.0, 14.0)},
    "nvls": {"base": (0, 0, 0), "nvlink": (0, 0, 25), "net": (0, 0, 18)},
    "nvls-tree": {"base": (0, 0, 0), "nvlink": (0, 0, 25), "net": (0, 0, 20.9)},
    "pat": {"base": (8.0, 8.0, 8.0), "nvlink": (0, 0, 4.0), "net": (0, 0, 14)},
}
"""Algorithm -> latency before the first step, and of a step by what it goes over, of each protocol.

Of several equally fast algorithms the first one wins. Those that need a network which reduces (CollNet) are
not among them."""

THREADS: Final[Mapping[str, tuple[int, int]]] = {"ll": (512, 8), "ll128": (640, 8), "simple": (512, 64)}
"""Protocol -> most threads of a channel, and the bytes that make one more worth it."""

BANDWIDTH_PARTS: Final[Mapping[str, tuple[float, float, float]]] = {
    "ring": (0.5, 0.92, 1.0),
    "tree": (1 / 3.8, 120 / 128, 1.0),
}
"""Algorithm -> part of its bandwidth that each protocol reaches."""

TREE_PART: Final = 0.92
"""What a tree reaches of the bandwidth of its channels."""

TREE_CORRECTION: Final[Mapping[str, tuple[float, ...]]] = {
    "ll": (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1),
    "ll128": (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1),
    "simple": (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8,
               .9, .9, .9),
}  # fmt: skip
"""Protocol -> what a tree's bandwidth is multiplied by, from 64 B on, for each power of two."""


@dataclass(frozen=True)
class Generation:
    """GPUs of one compute capability in a node: what ``nccl_gpus.yaml`` says of each."""

    capability: int
    sms: Sequence[int]
    links: int
    link: float
    network: float
    speeds: Sequence[float]
    network_speeds: Sequence[float]
    nvls_efficiency: float
    nvls_channels: Sequence[int]
    amd: bool
    ll_most: float
    ring_ll128: Sequence[float]
    tree_ll128: Sequence[float]
    tree: Sequence[float]
    nvls_tree: Sequence[float]

    @property
    def nvlink(self) -> float:
        """GB/s that a GPU sends over all its NVLinks."""
        return self.links * self.link


_GPUS: Final = yaml_beside(__file__, "nccl_gpus.yaml")
GENERATIONS: Final[Mapping[str, Generation]] = {name: Generation(**row) for name, row in _GPUS.items()}

NETWORK_LL: Final = {False: (39.0, 20.4), True: (22.5, 19.0)}
"""Whether the hosts have CPUs of AMD -> most that protocol LL moves among two nodes, and among more."""


# ----------------------------------------------------------------------------------------------------------
# What NCCL's search of the topology finds in nodes with NVSwitches and a network card for each GPU.
#
#     H100, 8 GPUs: 370.8 GB/s over NVLink      ring    6 channels of 60   ──► doubled: 12 of 30
#                                               tree   as many channels as the ring: 12 of 30
#                                               NVLS    8 channels of 40: a GPU sends its part 8 + 1 times
#
# The search there goes through all orders of the GPUs, at falling speeds. Where every GPU reaches every other
# one over a switch, the order does not matter and what counts is whether the channels fit into what a GPU
# sends. Source: NVIDIA/nccl 2.30, ``src/graph/search.cc`` (``ncclTopoCompute``, ``ncclTopoDupChannels``),
# ``src/graph/connect.cc`` (how many channels are made of those that were found); the closed form is derived.

MOST_PER_NODE: Final = 8
"""GPUs of the nodes that are known."""

_MOST_CHANNELS: Final = 64
"""Channels of a communicator (``MAXCHANNELS``)."""


class Channels(NamedTuple):
    """How an algorithm's channels run: how many, and GB/s of each in a node and between nodes."""

    number: int
    inside: float
    between: float


class SearchResult(NamedTuple):
    """What is known of a communicator once it is made.

    Attributes
    ----------
    ring, tree, nvls : Channels
    simple_tree : bool
        Whether the tree of a node is a chain that begins where it leaves the node.
    same_ring : bool
        Whether all channels of the ring have one order.
    channels : int
        Of the communicator, for rings and trees.
    """

    ring: Channels
    tree: Channels
    nvls: Channels
    simple_tree: bool
    same_ring: bool
    channels: int


def search(gpu: Generation, per_node: Sequence[int]) -> SearchResult:
    """Return what is found for ranks on nodes; the weakest node counts.

    Parameters
    ----------
    gpu : Generation
    per_node : sequence of int
        Of each node: how many ranks it has.

    Examples
    --------
    >>> from devices.collectives.nccl_tuner import GENERATIONS
    >>> found = search(GENERATIONS["h100"], [8])
    >>> found.ring, found.nvls, found.channels
    (Channels(number=12, inside=30.0, between=30.0), Channels(number=8, inside=40, between=60), 24)
    """
    several = len(per_node) > 1
    results = [(_among_nodes if several else _in_a_node)(gpu, n) for n in sorted(set(per_node))]
    ring, tree, nvls = (
        Channels(*map(min, zip(*channels, strict=True))) for channels in zip(*results, strict=True)
    )  # the weakest
    count = min(ring.number, tree.number)
    ring, tree = ring._replace(number=count), tree._replace(number=count)
    total = min(_MOST_CHANNELS, 2 * count)
    if gpu.capability >= 90 and several and ring.inside > 45 and total < 16:
        total *= 2  # four channels for each one found
    one_per_node = max(per_node) == 1
    simple_tree = several and (gpu.capability >= 90 or min(per_node) == 1)
    return SearchResult(ring, tree, nvls, simple_tree, not several or one_per_node, total)


def _in_a_node(gpu: Generation, n: int) -> tuple[Channels, Channels, Channels]:
    total = gpu.nvlink
    best = Channels(0, 0, 0)
    for speed in gpu.speeds:
        if best.number and speed / best.inside <= 0.49:
            break
        count = min(_MOST_CHANNELS // 2, round(total * 1000) // round(speed * 1000))
        if count * speed > best.number * best.inside:
            best = Channels(count, speed, speed)
        if best.number * best.between >= total:
            break
    ring = _double_channels(gpu, best)
    # A chain leaves out what its last GPU would send. Of two GPUs, half of the channels go the other way.
    used = ring.number / 2 if n == 2 else ring.number
    speed = next(speed for speed in gpu.speeds if used * speed <= total)
    return ring, Channels(ring.number, speed, speed), _nvls(gpu, n, gpu.speeds, None)


def _among_nodes(gpu: Generation, n: int) -> tuple[Channels, Channels, Channels]:
    ring = _double_channels(gpu, Channels(n, gpu.network, gpu.network))
    speeds = gpu.network_speeds
    k, inside = speeds.index(ring.between), ring.between
    while k > 0 and inside < 2 * ring.between and ring.number * (n - 1) / n * speeds[k - 1] <= gpu.nvlink:
        k -= 1
        inside = speeds[k]
    return ring, Channels(ring.number, inside, ring.between), _nvls(gpu, n, speeds, gpu.network)


def _double_channels(gpu: Generation, channels: Channels) -> Channels:
    """Return twice as many channels of half the speed, where they are few and fast."""
    few = channels.number <= 4 or gpu.capability <= 80
    if channels.inside < 25 or (channels.inside < 50 and not few):
        return channels
    return Channels(2 * channels.number, channels.inside / 2, channels.between / 2)


def _nvls(gpu: Generation, n: int, speeds: Sequence[float], network: float | None) -> Channels:
    """Return a channel for each GPU: all send to each head, the head itself twice."""
    if gpu.capability < 90 or n < 2:
        return Channels(0, 0, 0)
    index = next(
        k
        for k, speed in enumerate(speeds)
        if (n + 1) * speed <= gpu.nvlink and (network is None or speed <= network)
    )
    inside = between = speeds[index]
    while index > 0 and between < 2 * inside and (network is None or speeds[index - 1] <= network):
        index -= 1
        between = speeds[index]
    return Channels(n, inside, between)


# ----------------------------------------------------------------------------------------------------------

TUNED: Final = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Kinds for which NCCL chooses; `all_to_all`, `send` and `recv` have a way of their own."""

_ALGORITHMS: Final = {
    "all_reduce": ("tree", "ring", "nvls", "nvls-tree"),
    "all_gather": ("ring", "nvls", "pat"),
    "reduce_scatter": ("ring", "nvls", "pat"),
    "broadcast": ("ring",),
    "reduce": ("ring",),
}
_LL_MESSAGE: Final = 16384
"""Most bytes that a channel sends to a peer with protocol LL (``NCCL_P2P_LL_THRESHOLD``)."""
_CHANNEL_TRAFFIC: Final = 32768
"""Bytes that make one more channel worth it when it is launched (``MinTrafficPerChannel``)."""


class NcclChoice(NamedTuple):
    """How NCCL runs a collective.

    Attributes
    ----------
    algorithm, protocol : str
    channels, threads : int
        Thread blocks, each on an SM of its own, and the threads of each.
    estimate_us : float
        How long NCCL expects it to take.
    """

    algorithm: str
    protocol: str
    channels: int
    threads: int
    estimate_us: float


@dataclass(frozen=True)
class NcclTuner:
    """What NCCL works out when a communicator is made.

    Parameters
    ----------
    gpu : Generation
    per_node : tuple of int
        Of each node: how many ranks it has.
    nvls : bool
        Whether the switches may reduce, which they cannot do with sums of int8, for one.
    version : (int, int)
        Of NCCL: before 2.29 messages of 512 KiB still go by protocol LL. All else here is as in 2.30.

    Examples
    --------
    >>> from devices.collectives.nccl_tuner import GENERATIONS
    >>> tuner = NcclTuner(GENERATIONS["h100"], (8,))
    >>> choice = tuner.choose("all_reduce", 2**26)
    >>> choice.algorithm, choice.protocol, choice.channels, round(choice.estimate_us, 1)
    ('nvls', 'simple', 16, 271.7)
    """

    gpu: Generation
    per_node: tuple[int, ...]
    nvls: bool = True
    version: tuple[int, int] = (2, 30)

    @cached_property
    def found(self) -> SearchResult:
        """What the search of the topology finds."""
        return search(self.gpu, self.per_node)

    @property
    def ranks(self) -> int:
        """How many there are."""
        return sum(self.per_node)

    def choose(self, kind: str, nbytes: int) -> NcclChoice:
        """Return what is taken for a collective of `nbytes`, as nccl-tests counts them.

        Raises
        ------
        InputError
            A kind that NCCL does not have.
        """
        if kind == "barrier":  # in PyTorch an all-reduce of one number
            kind, nbytes = "all_reduce", 4
        if self.ranks == 1:
            return NcclChoice("none", "none", 0, 0, 0.0)
        if kind in ("all_to_all", "send"):
            return self._exchange(kind, nbytes)
        if kind not in TUNED:
            raise InputError(f"NCCL has no {kind}; it has {', '.join(TUNED)}, all_to_all, send and recv")
        ways = [way for way in product(LATENCY_US, PROTOCOLS) if self.bandwidth(kind, *way) > 0]
        estimates = [self.estimate_us(kind, *way, nbytes) for way in ways]
        fastest = min(estimates)
        algorithm, protocol = ways[estimates.index(fastest)]  # the first of equals
        channels, threads = self._channels(kind, algorithm, protocol, nbytes)
        return NcclChoice(algorithm, protocol, channels, threads, fastest)

    def estimate_us(self, kind: str, algorithm: str, protocol: str, nbytes: int) -> float:
        """Return how long NCCL expects a way to take (``ncclTopoGetAlgoTime``)."""
        bandwidth = self.bandwidth(kind, algorithm, protocol)
        latency = self.latency_us(kind, algorithm, protocol)
        step = (nbytes >> 6).bit_length() - 1
        blackwell = algorithm == "nvls-tree" and self.gpu.capability >= 100
        last = 22 if algorithm == "tree" else 23 if blackwell else -1
        if kind == "all_reduce" and 0 <= step <= last:
            bandwidth *= TREE_CORRECTION[protocol][step]
        several = len(self.per_node) > 1
        plateau = kind == "all_reduce" and algorithm == "ring" and protocol == "simple" and several
        if plateau and nbytes // (self.found.channels * self.ranks) >= 64:
            latency *= 1.4
        return latency + nbytes / (1000 * bandwidth)

    def bandwidth(self, kind: str, algorithm: str, protocol: str) -> float:
        """Return GB/s of the whole call (``ncclTopoTuneModel``); 0: this way is not taken."""
        gpu, found, n, nodes = self.gpu, self.found, self.ranks, len(self.per_node)
        simple, in_switch = protocol == "simple", algorithm in ("nvls", "nvls-tree")
        if algorithm not in _ALGORITHMS[kind] or (not simple and (in_switch or algorithm == "pat")):
            return 0.0
        if {"nvls": nodes > 1, "nvls-tree": nodes == 1, "pat": nodes != n}.get(algorithm, False):
            return 0.0
        k = min(nodes, 3) - 1
        way = {"ring": found.ring, "nvls": found.nvls, "nvls-tree": found.nvls}.get(algorithm, found.tree)
        speed = way.inside if nodes <= 2 else way.between
        if in_switch:
            if way.number < 2 or not self.nvls:
                return 0.0
            per_node = n / nodes
            inside = way.inside * gpu.nvls_efficiency * (way.number - 1) / way.number
            inside *= 2 if kind == "all_reduce" else (per_node - 1) / per_node
            twice = 2 if algorithm == "nvls-tree" and nodes <= 2 else 1
            speed = min(inside, way.between * twice)
            if algorithm == "nvls-tree":
                speed = min(speed, gpu.nvls_tree[k])
        bus = way.number * speed
        if algorithm in BANDWIDTH_PARTS:
            ring = algorithm == "ring"
            part = BANDWIDTH_PARTS[algorithm][PROTOCOLS.index(protocol)]
            limits = {
                "ll": gpu.ll_most if nodes == 1 else NETWORK_LL[gpu.amd][k - 1],
                "ll128": way.number * (gpu.ring_ll128 if ring else gpu.tree_ll128)[k],
            }
            if not ring:
                bus = min(bus * TREE_PART, way.number * gpu.tree[k])
                part = 7 / 9 if nodes == 1 and protocol == "ll128" else part
            bus = min(bus * part, limits.get(protocol, bus))
            bus *= 0.85 if found.simple_tree and not ring else 1
        elif algorithm == "pat":
            bus *= 0.75
        if algorithm in ("nvls", "pat") and kind != "all_reduce":
            return bus
        return bus * 0.5 if algorithm == "tree" else bus * n / self._steps(kind)

    def _steps(self, kind: str) -> int:
        return RING_ROUNDS[kind] * (self.ranks - 1) if kind in RING_ROUNDS else self.ranks

    def latency_us(self, kind: str, algorithm: str, protocol: str) -> float:
        """Return what a way takes without any bytes (``ncclTopoTuneModel``)."""
        n, nodes, p = self.ranks, len(self.per_node), PROTOCOLS.index(protocol)
        if kind in ("broadcast", "reduce"):
            way = algorithm if self.found.same_ring or protocol != "simple" else "tree"
            step = LATENCY_US[way]["nvlink" if nodes == 1 else "net"][p]
            steps = 1 if self.found.same_ring else self._steps(kind)
            return LATENCY_US[algorithm]["base"][p] + step * steps
        return latency_us(kind, algorithm, protocol, n, nodes, self.gpu.amd)

    def _channels(self, kind: str, algorithm: str, protocol: str, nbytes: int) -> tuple[int, int]:
        """Return channels and threads (``topoGetAlgoInfo``), and of these what is launched."""
        threads, worth = THREADS[protocol]
        channels = self.found.channels
        if algorithm == "ring" and protocol == "ll":
            worth *= self.ranks
        in_switch = algorithm in ("nvls", "nvls-tree")
        if in_switch:
            channels, threads = self.gpu.nvls_channels[min(len(self.per_node), 3) - 1], 640
        elif algorithm == "pat":
            threads = 640
        limit = channels
        if not in_switch:
            channels = max(1, min(channels, nbytes // (threads * worth)))
            while nbytes < channels * threads * worth and threads % 128 == 0:
                threads //= 2
            if protocol == "simple":
                threads += {"ring": 32, "tree": 128}.get(algorithm, 0)
            threads = max(threads, 96) if algorithm == "ring" else 640
        return self._channels_launched(kind, protocol, nbytes, channels, limit), threads

    def _channels_launched(self, kind: str, protocol: str, nbytes: int, channels: int, limit: int) -> int:
        """Return over how many channels the bytes are spread, each with enough to do."""
        n = self.ranks
        shared = kind in ("all_gather", "reduce_scatter")
        count = _ceil(nbytes, n) if shared else nbytes
        per_byte = (2 if kind == "all_reduce" else n if shared else 1) * (4 if protocol == "ll" else 1)
        cell = _ceil(_ceil(_CHANNEL_TRAFFIC, per_byte), 16) * 16
        cells = max(1, _ceil(count, cell))
        traffic = _ceil(max(_CHANNEL_TRAFFIC, count * per_byte) // channels, 16) * 16
        return min(limit, _ceil(cells, min(cells, _ceil(traffic, cell * per_byte))))

    def _exchange(self, kind: str, nbytes: int) -> NcclChoice:
        """Return how messages go from rank to rank (``addP2pToPlan``): all peers at once.

        NCCL makes no estimate of them. This one is in its terms: the latency of a step of a ring of the same
        protocol, and the bandwidth of what a GPU sends over NVLink, or a network card.
        """
        n, nodes, available = self.ranks, len(self.per_node), _power_of_two(self.found.channels)
        peers = n if kind == "all_to_all" else 1
        message = _ceil(nbytes, peers)
        if nodes == 1:
            limit, low, high = min(available, _power_of_two(2 * self.gpu.links)), 1 << 16, 1 << 24
        else:
            limit, low, high = _power_of_two(max(2, _ceil(int(self.gpu.network), 14))), 1 << 16, 1 << 17
            while limit * _ceil(n, 8) > available and limit > 1:
                limit //= 2
        fewest = limit
        while fewest * n > available and fewest > 1:
            fewest //= 2
        # Network cards have no buffers for messages by LL. Before 2.29 all channels of a peer count for it.
        by_ll = nodes == 1 and self.version < (2, 29) and message <= limit * _LL_MESSAGE
        if by_ll:
            low, high = low >> 3, high >> 3
        channels = max(1, min(fewest, _ceil(message, low)))
        while max(low, _ceil(message, channels)) > high and channels <= limit // 2:
            channels *= 2
        by_ll |= nodes == 1 and self.version >= (2, 29) and message <= channels * _LL_MESSAGE
        p, of_rate = (0, 0.5) if by_ll else (2, 1.0)
        ring = LATENCY_US["ring"]
        latency = ring["base"][p] + ring["net" if nodes > 1 else "nvlink"][p]
        sent = message * (n - 1 if kind == "all_to_all" else 1)
        us = sent / (1000 * self.gpu.nvlink * of_rate)
        if nodes > 1:
            outside = message * (n - min(self.per_node) if kind == "all_to_all" else 1)
            us = max(us, outside / (1000 * self.gpu.network * of_rate))
        return NcclChoice("direct", PROTOCOLS[p], min(available, channels * peers), 640, latency + us)


def latency_us(kind: str, algorithm: str, protocol: str, ranks: int, nodes: int, amd: bool = False) -> float:
    """Return what an all-reduce or one of its halves takes without any bytes (``ncclTopoTuneModel``)."""
    p = PROTOCOLS.index(protocol)
    base, inside = LATENCY_US[algorithm]["base"][p], LATENCY_US[algorithm]["nvlink"][p]
    # With one rank on each node, messages of all algorithms are as exposed as those of a tree.
    between = LATENCY_US["tree" if ranks == nodes else algorithm]["net"][p]
    doublings = nodes.bit_length() - 1
    if algorithm == "nvls":
        return inside
    if algorithm == "nvls-tree":
        return base + inside + 2 * doublings * between
    if algorithm == "pat":
        return base + doublings * between / 3.5 + ranks * 2.8
    if algorithm == "tree":
        return base + 2 * ((ranks // nodes - 1) * inside + doublings * between)
    if nodes > 1:
        post = 2.0 if amd else 1.0  # what posting a message to the network takes
        inside = max(inside, post * 3 if protocol == "simple" else post)
    return base + RING_ROUNDS[kind] * ((ranks - nodes) * inside + (nodes - 1) * between)


@cache
def tuner_of(gpu: str, per_node: tuple[int, ...], nvls: bool = True) -> NcclTuner:
    """Return what NCCL works out on GPUs of a generation, by its name; `per_node` as of `NcclTuner`.

    Raises
    ------
    InputError
        More ranks on a node than are modelled.
    """
    if (largest := max(per_node)) > MOST_PER_NODE:
        raise InputError(f"NCCL's choice is known of nodes of 8 GPUs, and a group has {largest} on one")
    return NcclTuner(GENERATIONS[gpu], per_node, nvls)


def _ceil(a: int, b: int) -> int:
    return -(-a // b)


def _power_of_two(n: int) -> int:
    """Return the least that is not below n."""
    return 1 << (n - 1).bit_length()
