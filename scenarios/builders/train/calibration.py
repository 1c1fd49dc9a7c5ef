"""How long kernels take in a training step on one kind of GPU.

::

    alone       what the cost model of the GPU says; without one, bytes / (memory · part)
    Product     the longer of alone / sustained and flop / (peak · part · sustained)       in a long run
                flop / (peak · measured · sustained)                         where its shape was measured
    Attention   alone / sustained; of another kernel than the measured, flop / (peak · part · sustained)
    Pass        the longer of alone and bytes / (memory · part)
    Collective  contention · what `devices.collectives.groups` says of it alone

    each kernel takes the gap to the next besides

A calibration is a YAML or JSON file in these fields, a preset, or the system file of SimuMax
(`scenarios.workloads.calibrations`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from devices.collectives.groups import CollectiveKind, Fabric, GroupCollectives, NodeFabrics, RankGroup
from devices.cost.kernel_costs import FittedCost
from scenarios.builders.train.kernels import (
    Attention,
    CausalConvolution,
    Collective,
    DeepEp,
    Experts,
    Pass,
    Product,
    Scan,
    Timed,
)
from scenarios.ops.attributes import check_dtype, nbytes
from scenarios.ops.op_costs import op_arguments
from scenarios.ops.op_formulas import OpFacts, TensorFacts
from sim import Device, GraphBuilder
from sim.base.errors import InputError
from sim.base.units import NS_PER_S
from sim.graph.graph import Graph
from sim.job.costs import costs_ns

# ----------------------------------------------------------------------------------------------------------
# Kernels alone, as the cost model of a device times them: what `workload: {build: ...}` asks, too.
#
#     Product     a matmul with its shape          Attention   attention, or attention_grad, with its shape
#     Pass        an op that reads and writes         Scan        gated_delta_rule, with its shape
#     CausalConvolution   causal_conv1d, with its shape
#
# The facts of an op are those of `scenarios.builders.gpt`, so that a layer costs the same whether its ops run
# one by one or stand behind the time of a stage.


RECIPES: Final[Mapping[str, str]] = {"fp8-delayed": "fp8", "fp8-block": "fp8_block"}
"""The type of the products of recipes that are not named after it: as Transformer Engine's ``DelayedScaling``
(scales from the steps before), ``Float8BlockScaling`` (128 numbers of activations, 128 x 128 of weights)."""


WITH_MXFP8: Final = {**RECIPES, "fp8-block": "mxfp8"}
"""The same of GPUs with MXFP8: Transformer Engine writes the scales of blocks as MXFP8 has them, and runs its
products (NVIDIA/TransformerEngine, pull request 2157)."""


QUANTIZED: Final[Mapping[str, float]] = {
    "fp8": 2.0,
    "fp8-delayed": 0.0,
    "fp8-block": 1 + 1 / 32,
    "mxfp8": 1 + 1 / 32,
    "nvfp4": 4.5 + 1 / 16,
}
"""Bytes a number that quantizing the inputs of products takes in training, beside quantizing for inference.

Where one scale is for all (fp8 with current scaling, nvfp4 above its blocks), reading for the largest; where
blocks lie along rows, a second copy by columns for the backward, with its scales; nvfp4 reads once more for
it, as it is of Hadamard transforms. Sources: Transformer Engine 2.x, common/recipe, common/cast,
pytorch/csrc/quantizer.cpp. The measured products of low precision (ai-dynamo/aiconfigurator) have their
input quantized by rows in them.
"""


KEPT: Final[Mapping[str, float]] = {
    "fp8": 1.0,
    "fp8-delayed": 1.0,
    "fp8-block": 1 + 1 / 32,
    "mxfp8": 1 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}
"""Bytes a number that is quantized takes with its scales: so the backward finds the inputs of products."""


GATHERED: Final[Mapping[str, float]] = {"fp8": 1.0, "fp8-delayed": 1.0, "nvfp4": 0.5 + 1 / 16}
"""Bytes a number of the parameters that Megatron-LM gathers as products have them, where not in 16 bits.

MXFP8's are gathered in 16 bits, in the buffer of gradients, as are those of fp8 by blocks. Source: Megatron
Bridge, training/mixed_precision.py.
"""


WEIGHTS: Final[Mapping[str, float]] = {
    "fp8-block": 2 + 2 * (1 + 1 / 32),
    "mxfp8": 2 + 2 * (1 + 1 / 32),
    "nvfp4": 2 * (0.5 + 1 / 16),
}
"""Bytes a weight that quantizing takes once a step, or a gather, on the rank that multiplies with it.

Those gathered in 16 bits are written by rows and by columns, those in 4 bits copied by columns; fp8's are
gathered as products have them.
"""


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
        models = getattr(device.cost, "models", (device.cost,))
        self.fits = next((each.fits for each in models if isinstance(each, FittedCost)), None)
        self.recipes = WITH_MXFP8 if self.fits is not None and "mxfp8" in self.fits.sheet.peak else RECIPES
        self.known: dict[Timed, float] = {}
        self.sure: dict[Timed, tuple[str, float]] = {}

    def measured(self) -> tuple[str, str, str]:
        """Return the type of products, and of those that stand for them, on which GPU they were measured."""
        of = self.recipes.get(self.products, self.products)
        gpu, lent = (
            (self.device.details.preset, of) if self.fits is None else self.fits.lender("products", of)
        )
        return of, lent, gpu

    def sends(self, group: RankGroup) -> bool:
        """Whether DeepEP was measured among these: eight ranks, of Hopper on up to eight nodes."""
        if self.fits is None or (group.size, group.per_node) != (8 * group.nodes, 8) or group.nodes > 8:
            return False
        generation = str(self.fits.sheet.generation)
        return generation == "hopper" or (generation.startswith("blackwell") and group.nodes == 1)

    def spread(self, kernels: Iterable[Timed]) -> list[tuple[str, float]]:
        """Return of each kernel the kind of op that it is, and how sure its time is (`CostModel.spread`)."""
        kernels = list(kernels)
        if new := list(dict.fromkeys(kernel for kernel in kernels if kernel not in self.sure)):
            assert self.device.cost is not None
            graph = kernels_graph(new, self.dtype, self.products, self.recipes)
            kinds = [graph.kinds[code].removesuffix("_grad") for code in graph.kind_code.tolist()]
            spread = np.nan_to_num(self.device.cost.spread(graph, self.device)).tolist()
            self.sure |= dict(zip(new, zip(kinds, spread, strict=True), strict=True))
        return [self.sure[kernel] for kernel in kernels]

    def casts(self, kernels: Iterable[Timed]) -> int:
        """Return the bytes that quantizing reads and writes beside the products (`QUANTIZED`).

        The input of a product and the gradient of its output are quantized each time.
        """
        total = 0.0
        for each in kernels:
            if isinstance(each, Product) and each.part in "FI":
                of = _type_of(each, self.dtype, self.products)
                total += each.groups * each.m * each.k * (0.0 if of == self.dtype else QUANTIZED[of])
        return round(total)

    def ns(self, kernels: Iterable[Timed]) -> list[float]:
        """Return how long each kernel takes; those that are new are priced together."""
        kernels = list(kernels)
        new = list(dict.fromkeys(kernel for kernel in kernels if kernel not in self.known))
        if new:
            graph = kernels_graph(new, self.dtype, self.products, self.recipes)
            for kernel, op, ns in zip(new, graph.kind_code, costs_ns(graph, self.device), strict=True):
                if ns < 0:
                    raise InputError(
                        f"the cost model of {self.device.name} does not know {graph.kinds[op]}; give the "
                        "model a rate"
                    )
                self.known[kernel] = float(ns) / getattr(kernel, "parts", 1)
        return [self.known[kernel] for kernel in kernels]


def _type_of(kernel: Timed, dtype: str, products: str) -> str:
    if not isinstance(kernel, Product) or kernel.in_16_bits:
        return dtype
    return kernel.dtype or products


def kernels_graph(
    kernels: Iterable[Timed], dtype: str, products: str | None = None, recipes: Mapping[str, str] = RECIPES
) -> Graph:
    """Return a graph with an op for each kernel, which a cost model can be asked about.

    Attention of which several ranks have a part stands there whole.
    """
    builder = GraphBuilder("kernels")
    for number, kernel in enumerate(kernels):
        name = f"{type(kernel).__name__.lower()} {number}"
        if isinstance(kernel, Scan):
            tensor = 2 * kernel.batch * kernel.sequence * kernel.heads * 128
            builder.op(
                name,
                kind="gated_delta_rule",
                flops=round(kernel.flops * kernel.parts),
                bytes_read=3 * tensor,
                bytes_written=tensor,
                dtype=dtype,
                attributes={"batch": kernel.batch, "seq_len": kernel.sequence, "heads": kernel.heads},
            )
        elif isinstance(kernel, CausalConvolution):
            tensor = kernel.nbytes // kernel.tensors
            builder.op(
                name,
                kind="causal_conv1d",
                bytes_read=tensor,
                bytes_written=tensor,
                dtype=dtype,
                attributes={
                    "batch": kernel.batch,
                    "seq_len": kernel.sequence,
                    "channels": kernel.channels,
                },
            )
        elif isinstance(kernel, Experts):
            names = ("tokens", "hidden", "intermediate", "topk", "experts", "tp", "ep")
            builder.op(
                name,
                kind="moe",
                flops=kernel.flops,
                bytes_read=4 * kernel.tokens * kernel.hidden,
                dtype=RECIPES.get(products or dtype, products or dtype),
                attributes=dict(zip(names, kernel, strict=True)),
            )
        elif isinstance(kernel, DeepEp):
            sizes = {name: getattr(kernel, name) for name in ("tokens", "hidden", "experts", "nodes", "sms")}
            attributes = {**sizes, "topk": kernel.top_k}
            sent = 2 * kernel.tokens * kernel.hidden
            builder.op(name, kind=f"moe_{kernel.way}", bytes_read=sent, dtype=dtype, attributes=attributes)
        elif isinstance(kernel, Pass):
            read = kernel.nbytes // 2
            builder.op(name, kind="add", bytes_read=read, bytes_written=kernel.nbytes - read, dtype=dtype)
        else:
            of = _type_of(kernel, dtype, products or dtype)
            of = recipes.get(of, of)
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
    keys = kernel.sequence + kernel.cached
    k = tensor(kernel.batch, kernel.kv_heads, keys, kernel.query_head)
    v = tensor(kernel.batch, kernel.kv_heads, keys, kernel.value_head)
    o = tensor(kernel.batch, kernel.heads, kernel.sequence, kernel.value_head)
    causal = {"is_causal": True, **({"window": kernel.window} if kernel.window else {})}
    if not kernel.backward:
        return OpFacts("attention", (q, k, v), (o,), causal)
    # of queries, keys, values, the output's gradient and the output; it writes three gradients
    made = tensor(kernel.batch, kernel.sequence, 3 * kernel.heads * kernel.query_head)
    return OpFacts("attention_grad", (q, k, v, o, o), (made,), causal)


# ----------------------------------------------------------------------------------------------------------


class HostLaunches(NamedTuple):
    """What launching a layer's kernels takes of the host, forward and backward together, in ns.

    `issue_cost` is for attention, a middle, Mamba-2, or the routing of experts; `experts` for each one of a
    rank, whose products and casts are launched one by one behind a wait for how many tokens came; `factor`
    counts where two micro-batches are launched in turns. What graphs launch takes nothing. `bandwidth` is
    that of copies to the host and back, in bytes/s; 0: not known.
    """

    issue_cost: float = 0.0
    experts: float = 0.0
    factor: float = 1.0
    bandwidth: float = 0.0


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
        Rate of products and attention under a long load / that of the measurements; above 1 (a GPU of more
        power than the measured one) that of products, as they alone are bound by power.
    contention : float
        Time of a collective among the kernels of a step / time of the collective alone.
    hiding : float
        The part of a collective that passes unnoticed while a kernel runs beside it; the rest slows both.
    collectives : GroupCollectives
        How long a collective alone takes.
    measured : mapping
        Efficiency of single shapes.
    node : int
        GPUs a node.
    host : HostLaunches
        What launching kernels takes of the host.
    communication_sms : float
        Part of the SMs that a collective takes from what runs beside it.
    bias_gradients : float
        Time of a product of experts that finds the gradients of their biases, too, as Transformer Engine has
        it in 16 bits / of the product alone; fitted rates have it in them. Chosen on published steps of
        gpt-oss (docs/clusters_training.md). No kernel of it was measured; where all products of a dense model
        had them, its backward took 1.6 times as long (NVIDIA/CUDALibrarySamples, issue 90).
    """

    name: str
    peak: float
    memory_bandwidth: float
    collectives: GroupCollectives = field(default_factory=NodeFabrics)
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
    node: int = 8
    host: HostLaunches = field(default_factory=HostLaunches)
    communication_sms: float = 0.2
    bias_gradients: float = 5.0

    @property
    def is_unfitted(self) -> bool:
        """Whether kernels take in a step what they take alone."""
        slower = self.product * self.sustained < 1 or self.gap_ns or self.pass_efficiency
        return self.alone is not None and not slower and self.attention_forward is None

    def kept(self, dtype: str = "") -> float | None:
        """Return the bytes a number of what the gradients of weights read, where products quantize it.

        `dtype` is that of the products, where it is not the step's.
        """
        return None if self.alone is None else KEPT.get(dtype or self.alone.products)

    def gathered(self, parameters: int, wide: int, width: int) -> int:
        """Return the bytes of parameters that Megatron-LM gathers, `wide` of them `width` bytes each."""
        narrow = GATHERED.get(self.alone.products, width) if self.alone is not None else width
        return round((parameters - wide) * narrow) + wide * width

    def weight_casts(self, parameters: int) -> int:
        """Return the bytes that quantizing weights takes (`WEIGHTS`); fitted rates have it in them."""
        if self.alone is None or not self.is_unfitted:
            return 0
        return round(parameters * WEIGHTS.get(self.alone.products, 0.0))

    def casts(self, kernels: Iterable[Timed]) -> int:
        """Return the bytes that quantizing reads and writes; fitted rates have it in them."""
        return self.alone.casts(kernels) if self.alone is not None and self.is_unfitted else 0

    def kernel_ns(self, kernel: Timed) -> float:
        """Return the time of a kernel."""
        return self.kernels_ns([kernel])[0]

    def kernels_ns(self, kernels: Sequence[Timed]) -> list[float]:
        """Return the times of kernels."""
        alone = [0.0] * len(kernels) if self.alone is None else self.alone.ns(kernels)
        return [self._in_a_step(kernel, ns) + self.gap_ns for kernel, ns in zip(kernels, alone, strict=True)]

    def _in_a_step(self, kernel: Timed, alone: float) -> float:
        """Return what a kernel that takes so long alone takes at the rates that a step leaves."""
        if isinstance(kernel, Pass | CausalConvolution):
            of = kernel.of if isinstance(kernel, Pass) else "elementwise"
            return _longer(alone, self._traffic_ns(kernel.nbytes, of))
        if isinstance(kernel, DeepEp):
            return alone
        if isinstance(kernel, Scan | Experts):
            slowed = alone / min(1.0, self.sustained)
            return _longer(slowed, self._arithmetic_ns(kernel, self.peak * self.product))
        shape = kernel._replace(dtype="", bias=False) if isinstance(kernel, Product) else kernel
        found = self.measured.get(shape) if self.measured else None
        if found is not None:
            return self._arithmetic_ns(kernel, self.peak * found)
        if isinstance(kernel, Product):
            passing = self._traffic_ns(2 * kernel.elements)
            known = passing if self.alone is None else max(alone / self.sustained, min(alone, passing))
            if kernel.bias and self.is_unfitted:
                known *= self.bias_gradients
            return _longer(known, self._arithmetic_ns(kernel, self.peak * self.product))
        part = self.attention_backward if kernel.backward else self.attention_forward
        if part is None and self.alone is not None:
            return alone / min(1.0, self.sustained)
        rows = kernel.batch * kernel.sequence // kernel.parts
        nbytes = 4 * rows * (kernel.heads + kernel.kv_heads) * kernel.query_head * (1 + kernel.backward)
        rate = (self.attention_peak or self.peak) * (1.0 if part is None else part)
        return _longer(self._arithmetic_ns(kernel, rate), self._traffic_ns(nbytes))

    def _arithmetic_ns(self, kernel: Product | Attention | Scan | Experts, rate: float) -> float:
        return kernel.flops / (rate * self.sustained) * NS_PER_S

    def _traffic_ns(self, nbytes: int, of: str = "elementwise") -> float:
        reached = self.pass_efficiency.get(of, self.pass_efficiency.get("elementwise", 1.0))
        return nbytes / (self.memory_bandwidth * reached) * NS_PER_S

    def pass_ns(self, nbytes: int) -> float:
        """Return the time of reading and writing so many bytes."""
        return self.kernel_ns(Pass(nbytes))

    def copy_ns(self, nbytes: int) -> float:
        """Return the time of a copy to the host, or back.

        Raises
        ------
        InputError
            The calibration does not say.
        """
        if not self.host.bandwidth:
            raise InputError("offload: the calibration has no host.bandwidth, which copies take")
        return nbytes / self.host.bandwidth * NS_PER_S

    def collective_ns(self, kind: CollectiveKind, nbytes: int, group: RankGroup) -> float:
        """Return the time of a collective of a group."""
        if group.size == 1 or not nbytes:
            return 0.0
        return self.contention * self.collectives.time_ns(kind, nbytes, group)

    def exposed_ns(self, kernel: Collective, group: RankGroup) -> tuple[float, float]:
        """Return the time of a collective, and how much of it no kernel hides."""
        whole, sms = self.collective_ns(kernel.kind, kernel.nbytes, group), self.communication_sms
        if kernel.deepep is not None and self.alone is not None and self.alone.sends(group):
            assert self.alone.fits is not None
            whole = self.contention * self.kernel_ns(kernel.deepep._replace(nodes=group.nodes))
            sms = kernel.deepep.sms / self.alone.fits.sheet.sms
        if kernel.hidden_by is None:
            return whole, whole
        if isinstance(kernel.hidden_by, str):
            return whole, whole * sms
        hiding = 1.0 if kernel.copied else self.hiding
        return whole, whole - hiding * min(whole, self.kernel_ns(kernel.hidden_by))


_SHARP: Final = 24
"""Exponent of the longer of two times: high enough to be the longer one, low enough that a fit sees both."""


def _longer(one: float, other: float) -> float:
    """Return the longer time; of nearly equal ones a little more.

    Examples
    --------
    >>> _longer(10.0, 0.0), round(_longer(10.0, 9.0), 3), round(_longer(10.0, 10.0), 3)
    (10.0, 10.032, 10.293)
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
    return TrainingCalibration(
        name="rate",
        peak=float(rate),
        memory_bandwidth=math.inf,
        collectives=_one_fabric(bandwidth),
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
    return TrainingCalibration(
        device.name,
        math.inf,
        math.inf,
        collectives=_one_fabric(bandwidth),
        alone=KernelPrices(device, dtype),
        gap_ns=float(device.gap_ns),
        hiding=0.0,
    )


def _one_fabric(bandwidth: int | None) -> NodeFabrics:
    fabric = Fabric(bandwidth or math.inf)
    return NodeFabrics(fabric, fabric)
