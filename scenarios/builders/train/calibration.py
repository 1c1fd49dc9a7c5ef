"""How long kernels take in a training step on one kind of GPU.

::

    alone       what the cost model of the GPU says; without one, bytes / (memory · part)
    Product     the longer of alone and flop / (peak · part · sustained)     at the clock of a long run
                flop / (peak · measured · sustained)                         where its shape was measured
    Attention   alone / sustained; of another kernel than the measured, flop / (peak · part · sustained)
    Pass        the longer of alone and bytes / (memory · part)
    Collective  by formula, or what `collective_ns` is replaced by

    each kernel takes the gap to the next besides

A collective of n ranks, S bytes as nccl-tests count them, takes steps · latency + S · share / bandwidth: a
ring passes 2(n−1) messages of S/n for an all-reduce, n−1 for an all-gather and a reduce-scatter; an
all-to-all sends (n−1)/n of S. Over several nodes the ring's bytes wait for the slower of NVLink and a node's
network, which the groups that run side by side share: each of p ranks of a group on a node has p of the
node's g shares of it; of its hops only those between nodes take the network's latency
(`scenarios.builders.train.calibration`).

A calibration is a YAML or JSON file in these fields, a preset, or the system file of SimuMax
(`scenarios.workloads.calibrations`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from devices.collectives.nccl_constants import BASE_US, HARDWARE_US, NETWORK_LL, PROTOCOLS
from scenarios.builders.train.kernels import Attention, Collective, CollectiveKind, Pass, Product, Timed
from scenarios.builders.train.layout import RankGroup
from scenarios.ops.attributes import check_dtype, nbytes
from scenarios.ops.op_costs import op_arguments
from scenarios.ops.op_formulas import OpFacts, TensorFacts
from sim import Device, GraphBuilder
from sim.base.errors import InputError
from sim.base.units import NS_PER_S
from sim.graph.graph import Graph
from sim.job.costs import costs_ns

# ----------------------------------------------------------------------------------------------------------
# Collectives over several nodes: most hops of a ring stay in a node, and one a node crosses the network.
#
#     ring of 4 nodes of 8    all-gather    28 hops in nodes + 3 between them; (n-1)/n S over what is slower
#     tree of the nodes       all-reduce    2 (7 in the node + log2 4 between); 2 S / 0.92
#     directly                all-to-all    7 messages in the node, 24 to others
#
# What a hop takes is given, or NCCL's own: then each of its protocols has latencies and a part of the
# bandwidth, and of ways and protocols the fastest is taken, as NCCL does. Source: NVIDIA/nccl 2.30,
# ``src/graph/tuning.cc`` (``ncclTopoTuneModel``); without latencies, the ring is that of
# `scenarios.builders.train.calibration`.


class Hops(NamedTuple):
    """What is waited for: before the first message, for a hop in a node and for one between nodes, in ns."""

    start_ns: float
    inside_ns: float
    between_ns: float


class CollectiveWay(NamedTuple):
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
def ways(kind: CollectiveKind, group: RankGroup, hops: Hops) -> tuple[CollectiveWay, ...]:
    """Return the ways of a group over several nodes, each hop of which takes as long.

    Examples
    --------
    >>> ways("all_reduce", RankGroup(32, 4), Hops(0.0, 1000.0, 10_000.0))
    (CollectiveWay(latency_ns=116000.0, part=1.0, most=inf), CollectiveWay(latency_ns=54000.0, part=0.92,
    most=inf))
    """
    ring = CollectiveWay(latency_of("ring", kind, group, hops), 1.0)
    if kind != "all_reduce":
        return (ring,)
    return ring, CollectiveWay(latency_of("tree", kind, group, hops), _TREE)


@lru_cache(maxsize=4096)
def nccl_ways(kind: CollectiveKind, group: RankGroup) -> tuple[CollectiveWay, ...]:
    """Return NCCL's ways of a group over several nodes, by its own latencies.

    Examples
    --------
    >>> [round(way.latency_ns) for way in nccl_ways("all_gather", RankGroup(6400, 800))]
    [7763900, 13850000, 30234400]
    """
    if kind in ("all_to_all", "send"):  # directly, to all at once
        return (CollectiveWay(1000 * (BASE_US["ring"][-1] + HARDWARE_US["net"]["ring"][-1]), 1.0),)
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
            found.append(CollectiveWay(latency_of(way, kind, group, hops), _PARTS[way][protocol], most))
    return tuple(found)


def latency_of(way: str, kind: CollectiveKind, group: RankGroup, hops: Hops) -> float:
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


# ----------------------------------------------------------------------------------------------------------
# Kernels alone, as the cost model of a device times them: what `workload: {build: ...}` asks, too.
#
#     Product     a matmul with its shape          Attention   attention, or attention_grad, with its shape
#     Pass        an op that reads and writes
#
# The facts of an op are those of `scenarios.builders.gpt`, so that a layer costs the same whether its ops run
# one by one or stand behind the time of a stage.


class KernelPrices:
    """What the cost model of a device says of kernels, gaps between them left out; each is asked once.

    Parameters
    ----------
    device : Device
    dtype : str
        Of weights and activations.
    products : str, optional
        In which products are computed; default: `dtype`.

    Raises
    ------
    InputError
        The device has no cost model, or (when a kernel is timed) one that does not know it.
    """

    def __init__(self, device: Device, dtype: str, products: str | None = None) -> None:
        if device.cost is None:
            raise InputError(
                "nothing tells how long its products take: give the model a rate (150TFLOP/s) or a "
                "calibration, or the scenario a machine whose devices have a cost model"
            )
        self.device, self.dtype, self.products = device, dtype, products or dtype
        check_dtype(dtype)
        self.known: dict[Timed, float] = {}

    def ns(self, kernels: Iterable[Timed]) -> list[float]:
        """Return how long each kernel takes; those that are new are priced together."""
        kernels = list(kernels)
        new = list(dict.fromkeys(kernel for kernel in kernels if kernel not in self.known))
        if new:
            graph = kernels_graph(new, self.dtype, self.products)
            for kernel, op, ns in zip(new, graph.kind_code, costs_ns(graph, self.device), strict=True):
                if ns < 0:
                    raise InputError(
                        f"the cost model of {self.device.name} does not know {graph.kinds[op]}; give the "
                        "model a rate"
                    )
                self.known[kernel] = float(ns) / getattr(kernel, "parts", 1)
        return [self.known[kernel] for kernel in kernels]


def kernels_graph(kernels: Iterable[Timed], dtype: str, products: str | None = None) -> Graph:
    """Return a graph with an op for each kernel, which a cost model can be asked about.

    Attention of which several ranks have a part stands there whole.
    """
    builder = GraphBuilder("kernels")
    for number, kernel in enumerate(kernels):
        name = f"{type(kernel).__name__.lower()} {number}"
        if isinstance(kernel, Pass):
            read = kernel.nbytes // 2
            builder.op(name, kind="add", bytes_read=read, bytes_written=kernel.nbytes - read, dtype=dtype)
        else:
            of = products or dtype if isinstance(kernel, Product) else dtype
            facts = _facts(kernel, of)
            builder.op(name, **op_arguments(facts, name, facts.attributes), dtype=of)
    return builder.build()


def _facts(kernel: Product | Attention, dtype: str) -> OpFacts:
    def tensor(*shape: int) -> TensorFacts:
        return TensorFacts(shape, nbytes(shape, dtype))

    if isinstance(kernel, Product):
        groups = (kernel.groups,) if kernel.groups > 1 else ()
        left, right = tensor(*groups, kernel.m, kernel.k), tensor(*groups, kernel.k, kernel.n)
        return OpFacts("matmul", (left, right), (tensor(*groups, kernel.m, kernel.n),), {})
    q = tensor(kernel.batch, kernel.heads, kernel.sequence, kernel.query_head)
    k = tensor(kernel.batch, kernel.kv_heads, kernel.sequence, kernel.query_head)
    v = tensor(kernel.batch, kernel.kv_heads, kernel.sequence, kernel.value_head)
    o = tensor(kernel.batch, kernel.heads, kernel.sequence, kernel.value_head)
    if not kernel.backward:
        return OpFacts("attention", (q, k, v), (o,), {"is_causal": True})
    # of queries, keys, values, the output's gradient and the output; it writes three gradients
    made = tensor(kernel.batch, kernel.sequence, 3 * kernel.heads * kernel.query_head)
    return OpFacts("attention_grad", (q, k, v, o, o), (made,), {"is_causal": True})


# ----------------------------------------------------------------------------------------------------------

CollectiveTime = Callable[[CollectiveKind, int, int, int, str], float]
"""``time(kind, nbytes, ranks_per_node, nodes, dtype)`` in ns: what a model of collectives offers."""

STEPS: Final[Mapping[str, Callable[[int], int]]] = {
    "all_reduce": lambda n: 2 * (n - 1),
    "all_gather": lambda n: n - 1,
    "reduce_scatter": lambda n: n - 1,
    "all_to_all": lambda n: n - 1,
    "send": lambda n: 1,
}
"""Messages that a rank sends one after the other."""

SHARE: Final[Mapping[str, Callable[[int], float]]] = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "send": lambda n: 1.0,
}
"""Part of the buffer that passes a rank's link."""


@dataclass(frozen=True)
class Reach:
    """Bandwidth and latency of collectives inside a node, or between nodes.

    Attributes
    ----------
    bandwidth : float
        Of a rank, in bytes/s each way.
    efficiency : mapping
        Part of it that is reached, by kind; ``default`` for the others.
    latency_ns : mapping
        Of a message, by kind.
    fixed_ns : mapping
        Of a call, by kind, or by kind and ranks (``all_to_all/4``).
    nccl : bool
        Of collectives over several nodes: latencies are NCCL's, by protocol, and not `latency_ns`.
    """

    bandwidth: float
    efficiency: Mapping[str, float] = field(default_factory=dict)
    latency_ns: Mapping[str, float] = field(default_factory=dict)
    fixed_ns: Mapping[str, float] = field(default_factory=dict)
    nccl: bool = False

    def hop_ns(self, kind: CollectiveKind) -> float:
        """Return the latency of a message."""
        return self.latency_ns.get(kind, self.latency_ns.get("default", 0.0))

    def call_ns(self, kind: CollectiveKind, ranks: int) -> float:
        """Return what a call takes besides its messages."""
        by_kind = self.fixed_ns.get(kind, self.fixed_ns.get("default", 0.0))
        return self.fixed_ns.get(f"{kind}/{ranks}", by_kind)

    def rate(self, kind: CollectiveKind) -> float:
        """Return how many bytes/s of a rank pass."""
        return self.bandwidth * self.efficiency.get(kind, self.efficiency.get("default", 1.0))

    def time_ns(self, kind: CollectiveKind, nbytes: int, ranks: int) -> float:
        """Return the time of a collective."""
        latency = STEPS[kind](ranks) * self.hop_ns(kind) + self.call_ns(kind, ranks)
        return latency + nbytes * SHARE[kind](ranks) / self.rate(kind) * NS_PER_S


@dataclass(frozen=True)
class TrainingCalibration:
    """What one kind of GPU reaches.

    Attributes
    ----------
    name : str
    peak : float
        In flop/s, of the precision of the products.
    memory_bandwidth : float
        In bytes/s.
    memory : int or None
        Bytes that a rank may use.
    alone : KernelPrices or None
        What kernels take alone; None: they are not known but by rates.
    product : float
        Part of the peak that a step leaves products at most.
    attention_forward, attention_backward : float or None
        Part of the peak that attention reaches, where its kernel is not the one that `alone` knows.
    attention_peak : float or None
        That of which attention reaches its part; None: as products.
    pass_efficiency : mapping
        Part of the memory's bandwidth, at most, by what a pass is for; ``elementwise`` for the others.
    gap_ns : float
        Between two kernels, and for the first one to fill the GPU.
    sustained : float
        Rate of products and attention under a long load / that of the measurements.
    contention : float
        Time of a collective among the kernels of a step / time of the collective alone.
    hiding : float
        The part of a collective that passes unnoticed while a kernel runs beside it; the rest slows both.
    node, between : Reach
        Inside a node, and between nodes (a rank's part of the node's network).
    measured : mapping
        Efficiency of single shapes.
    collective : callable, optional
        Replaces the formula: see `CollectiveTime`.
    """

    name: str
    peak: float
    memory_bandwidth: float
    node: Reach
    between: Reach
    memory: int | None = None
    alone: KernelPrices | None = None
    product: float = 1.0
    attention_forward: float | None = None
    attention_backward: float | None = None
    attention_peak: float | None = None
    pass_efficiency: Mapping[str, float] = field(default_factory=dict)
    gap_ns: float = 0.0
    sustained: float = 1.0
    contention: float = 1.0
    hiding: float = 1.0
    measured: Mapping[Product | Attention, float] = field(default_factory=dict)
    collective: CollectiveTime | None = None

    def kernel_ns(self, kernel: Timed) -> float:
        """Return the time of a kernel."""
        return self.kernels_ns([kernel])[0]

    def kernels_ns(self, kernels: Sequence[Timed]) -> list[float]:
        """Return the times of kernels."""
        alone = [0.0] * len(kernels) if self.alone is None else self.alone.ns(kernels)
        return [self._in_a_step(kernel, ns) + self.gap_ns for kernel, ns in zip(kernels, alone, strict=True)]

    def _in_a_step(self, kernel: Timed, alone: float) -> float:
        """Return what a kernel that takes so long alone takes at the rates that a step leaves."""
        if isinstance(kernel, Pass):
            return _longer(alone, self._traffic_ns(kernel.nbytes, kernel.of))
        found = self.measured.get(kernel)
        if found is not None:
            return self._arithmetic_ns(kernel, self.peak * found)
        if isinstance(kernel, Product):
            known = alone if self.alone is not None else self._traffic_ns(2 * kernel.elements)
            return _longer(known, self._arithmetic_ns(kernel, self.peak * self.product))
        part = self.attention_backward if kernel.backward else self.attention_forward
        if part is None and self.alone is not None:
            return alone / self.sustained
        rows = kernel.batch * kernel.sequence // kernel.parts
        nbytes = 4 * rows * (kernel.heads + kernel.kv_heads) * kernel.query_head * (1 + kernel.backward)
        rate = (self.attention_peak or self.peak) * (1.0 if part is None else part)
        return _longer(self._arithmetic_ns(kernel, rate), self._traffic_ns(nbytes))

    def _arithmetic_ns(self, kernel: Product | Attention, rate: float) -> float:
        return kernel.flops / (rate * self.sustained) * NS_PER_S

    def _traffic_ns(self, nbytes: int, of: str = "elementwise") -> float:
        return nbytes / (self.memory_bandwidth * self._pass_efficiency(of)) * NS_PER_S

    def _pass_efficiency(self, of: str) -> float:
        return self.pass_efficiency.get(of, self.pass_efficiency.get("elementwise", 1.0))

    def pass_ns(self, nbytes: int, of: str = "elementwise") -> float:
        """Return the time of reading and writing so many bytes."""
        return self.kernel_ns(Pass(nbytes, of))

    def collective_ns(
        self, kind: CollectiveKind, nbytes: int, group: RankGroup, dtype: str = "bf16"
    ) -> float:
        """Return the time of a collective of a group: the one place that knows how long one takes."""
        if group.size == 1 or not nbytes:
            return 0.0
        if self.collective is not None:
            return self.contention * self.collective(kind, nbytes, group.per_node, group.nodes, dtype)
        return self.contention * self._by_formula(kind, nbytes, group)

    def _by_formula(self, kind: CollectiveKind, nbytes: int, group: RankGroup) -> float:
        if group.nodes == 1:
            return self.node.time_ns(kind, nbytes, group.size)
        n, between = group.size, self.between
        carried, rate = nbytes * SHARE[kind](n), between.rate(kind)
        if kind == "all_to_all":  # what stays in the node does not cross the network
            carried *= (n - group.per_node) / (n - 1)
        elif kind != "send":
            rate *= group.per_node
        if kind != "all_to_all":
            rate = min(rate, self.node.rate(kind))
        if between.nccl:
            found = nccl_ways(kind, group)
        else:
            found = ways(
                kind, group, Hops(between.call_ns(kind, n), self.node.hop_ns(kind), between.hop_ns(kind))
            )
        return min(way.time_ns(carried, rate) for way in found)

    def exposed_ns(self, kernel: Collective, group: RankGroup) -> tuple[float, float]:
        """Return the time of a collective, and how much of it no kernel hides."""
        whole = self.collective_ns(kernel.kind, kernel.nbytes, group)
        if kernel.hidden_by is None:
            return whole, whole
        return whole, whole - self.hiding * min(whole, self.kernel_ns(kernel.hidden_by))


_SHARP: Final = 24
"""Exponent of the longer of two times: high enough to be the longer one, low enough that a fit sees both."""


def _longer(one: float, other: float) -> float:
    """Return the longer time; of nearly equal ones a little more.

    Examples
    --------
    >>> _longer(10.0, 0.0), round(_longer(10.0, 9.0), 3), round(_longer(10.0, 10.0), 3)
    (10.0, 10.033, 10.293)
    """
    most = max(one, other)
    if not most:
        return 0.0
    total: float = (one / most) ** _SHARP + (other / most) ** _SHARP
    return most * float(total ** (1 / _SHARP))


# ----------------------------------------------------------------------------------------------------------
# Calibrations of a device alone, which adds nothing that a step does; messages take a ring at one bandwidth.


def at_rate(rate: int, bandwidth: int | None = None) -> TrainingCalibration:
    """Return what a device reaches that does the model's own flop at `rate`, and all else in no time.

    Attention's backward counts twice its forward, as in MFU (`scenarios.builders.train.architecture`): what a
    kernel computes again is in the rate.

    Parameters
    ----------
    rate : int
        In flop/s.
    bandwidth : int, optional
        Between the devices that share a layer, in bytes/s; None: messages take no time.
    """
    reach = Reach(float(bandwidth or math.inf))
    return TrainingCalibration(
        name="rate",
        peak=float(rate),
        memory_bandwidth=math.inf,
        node=reach,
        between=reach,
        attention_backward=5 / 4,  # its five products (kernels.Attention.flops) as four
        hiding=0.0,
    )


def on_device(device: Device, dtype: str, bandwidth: int | None = None) -> TrainingCalibration:
    """Return what the cost model of a device says of kernels, each as if alone.

    Parameters
    ----------
    device : Device
    dtype : str
        Of weights and activations.
    bandwidth : int, optional
        As in `at_rate`.

    Raises
    ------
    InputError
        The device has no cost model, or (when a kernel is timed) one that does not know it.
    """
    reach = Reach(float(bandwidth or math.inf))
    return TrainingCalibration(
        device.name,
        math.inf,
        math.inf,
        node=reach,
        between=reach,
        alone=KernelPrices(device, dtype),
        gap_ns=float(device.gap_ns),
        hiding=0.0,
    )
