"""How long kernels take in a training step on one kind of GPU.

::

    alone       the GPU's cost model; without one, bytes / (memory · part)
    Product     the longer of alone / sustained and flop / (peak · part · sustained)       in a long run
                flop / (peak · measured · sustained)                         if its shape was measured
    Attention   alone / sustained; for a kernel other than the measured one, flop / (peak · part · sustained)
    Pass        the longer of alone and bytes / (memory · part)
    Collective  contention · its time alone (`devices.collectives.groups`)

    each kernel also takes the gap to the next

A calibration is a YAML or JSON file in these fields, a preset, or the system file of SimuMax
(`scenarios.workloads.calibrations`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
from pydantic import Field

from devices.collectives.groups import CollectiveKind, Fabric, GroupCollectives, NodeFabrics, RankGroup
from devices.cost.kernel_costs import FittedCost
from devices.describe.field_types import Bandwidth, Duration
from devices.describe.quantities import Strict
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
# Kernels alone, as the cost model of a device times them; `workload: {build: ...}` asks it, too.
#
#     Product     a matmul with its shape          Attention   attention, or attention_grad, with its shape
#     Pass        an op that reads and writes         Scan        gated_delta_rule, with its shape
#     CausalConvolution   causal_conv1d, with its shape
#
# The facts of an op are those of `scenarios.builders.gpt`, so that a layer costs the same whether its ops run
# one by one or are part of a stage's time.


RECIPES: Final[Mapping[str, str]] = {"fp8-delayed": "fp8", "fp8-block": "fp8_block"}
"""Product type of recipes not named after it: Transformer Engine's ``DelayedScaling``
(scales from earlier steps), ``Float8BlockScaling`` (blocks of 128 activations, of 128 x 128 weights)."""


WITH_MXFP8: Final = {**RECIPES, "fp8-block": "mxfp8"}
"""The same for GPUs with MXFP8: there Transformer Engine writes block scales in MXFP8's format and runs MXFP8
products (NVIDIA/TransformerEngine, pull request 2157)."""


class Recipe(NamedTuple):
    """What a recipe of low precision moves and keeps in training, in bytes.

    Sources: Transformer Engine 2.x, common/recipe, common/cast, pytorch/csrc/quantizer.cpp; Megatron Bridge,
    training/mixed_precision.py.

    Attributes
    ----------
    quantized : float
        Per number, to quantize inputs of products, beyond quantizing for inference: with one scale for all
        (fp8 with current scaling, nvfp4 above its blocks), a read to find the largest; with blocks along
        rows, a second copy by columns for the backward, with its scales; nvfp4 needs one more read for that
        copy, which is of Hadamard transforms. The measured products of low precision
        (ai-dynamo/aiconfigurator) include quantizing their input by rows.
    kept : float
        Per quantized number, including its scales: the form in which inputs are kept for the backward.
    gathered : float or None
        Per parameter that Megatron-LM gathers in the type of the products; None: it gathers in 16 bits, in
        the buffer of gradients.
    weights : float
        Per weight to quantize it, once per step or gather, on the rank that multiplies with it. Weights
        gathered in 16 bits are written by rows and by columns, those in 4 bits copied by columns; fp8
        weights are gathered in the type of the products.
    """

    quantized: float
    kept: float
    gathered: float | None = None
    weights: float = 0.0


_FP8_BYTES: Final = 1 + 1 / 32  # bytes of a number in fp8 with its part of a scale
_FP4_BYTES: Final = 0.5 + 1 / 16  # ... in fp4
LOW_PRECISION: Final[Mapping[str, Recipe]] = {
    "fp8": Recipe(2.0, 1.0, 1.0),
    "fp8-delayed": Recipe(0.0, 1.0, 1.0),
    **dict.fromkeys(("fp8-block", "mxfp8"), Recipe(_FP8_BYTES, _FP8_BYTES, weights=2 + 2 * _FP8_BYTES)),
    "nvfp4": Recipe(4 + _FP4_BYTES, _FP4_BYTES, _FP4_BYTES, 2 * _FP4_BYTES),
}


class KernelPrices:
    """Kernel times from a device's cost model, without gaps between kernels; each is computed once.

    Parameters
    ----------
    device : Device
    dtype : str
        Type of weights and activations.
    products : str, optional
        Type of the products; default: `dtype`.

    Raises
    ------
    InputError
        The device has no cost model, or (when a kernel is timed) its cost model does not know it.
    """

    def __init__(self, device: Device, dtype: str, products: str | None = None) -> None:
        if device.cost is None:
            give = "give the model a rate (150TFLOP/s) or a calibration, or a machine with a cost model"
            raise InputError(f"nothing tells how long its products take: {give}")
        self.device, self.dtype, self.products = device, dtype, products or dtype
        check_dtype(dtype)
        models = getattr(device.cost, "models", (device.cost,))
        self.fits = next((model.fits for model in models if isinstance(model, FittedCost)), None)
        self.recipes = WITH_MXFP8 if self.fits is not None and "mxfp8" in self.fits.sheet.peak else RECIPES
        self.times: dict[Timed, float] = {}
        self.spreads: dict[Timed, tuple[str, float]] = {}

    def what_was_measured(self) -> tuple[str, str, str]:
        """Return the type of products, the type measured in its place, and the GPU of the measurement."""
        dtype = self.recipes.get(self.products, self.products)
        gpu, lent = (
            (self.device.details.preset, dtype) if self.fits is None else self.fits.lender("products", dtype)
        )
        return dtype, lent, gpu

    def sends(self, group: RankGroup) -> bool:
        """Whether DeepEP was measured on such nodes of 8 GPUs: up to eight of Hopper, one of Blackwell."""
        if self.fits is None or (group.size, group.per_node) != (8 * group.nodes, 8) or group.nodes > 8:
            return False
        generation = str(self.fits.sheet.generation)
        return generation == "hopper" or (generation.startswith("blackwell") and group.nodes == 1)

    def spread(self, kernels: Iterable[Timed]) -> list[tuple[str, float]]:
        """Return the op kind of each kernel and the spread of its time (`CostModel.spread`)."""
        kernels = list(kernels)
        if new := list(dict.fromkeys(kernel for kernel in kernels if kernel not in self.spreads)):
            assert self.device.cost is not None
            graph = kernels_graph(new, self.dtype, self.products, self.recipes)
            kinds = [graph.kinds[code].removesuffix("_grad") for code in graph.kind_code.tolist()]
            spread = np.nan_to_num(self.device.cost.spread(graph, self.device)).tolist()
            self.spreads |= dict(zip(new, zip(kinds, spread, strict=True), strict=True))
        return [self.spreads[kernel] for kernel in kernels]

    def casts(self, kernels: Iterable[Timed]) -> int:
        """Return the bytes that quantizing reads and writes besides the products (`Recipe.quantized`).

        The input of a product and the gradient of its output are quantized each time.
        """
        total = 0.0
        for kernel in kernels:
            if isinstance(kernel, Product) and kernel.part in "FI":
                dtype = _type_of(kernel, self.dtype, self.products)
                if dtype != self.dtype:
                    total += kernel.groups * kernel.m * kernel.k * LOW_PRECISION[dtype].quantized
        return round(total)

    def ns(self, kernels: Iterable[Timed]) -> list[float]:
        """Return the time of each kernel; new ones are timed together."""
        kernels = list(kernels)
        new = list(dict.fromkeys(kernel for kernel in kernels if kernel not in self.times))
        if new:
            graph = kernels_graph(new, self.dtype, self.products, self.recipes)
            for kernel, op, ns in zip(new, graph.kind_code, costs_ns(graph, self.device), strict=True):
                if ns < 0:
                    unknown = f"the cost model of {self.device.name} does not know {graph.kinds[op]}"
                    raise InputError(f"{unknown}; give the model a rate")
                self.times[kernel] = float(ns) / getattr(kernel, "parts", 1)
        return [self.times[kernel] for kernel in kernels]


def _type_of(kernel: Timed, dtype: str, products: str) -> str:
    if not isinstance(kernel, Product) or kernel.in_16_bits:
        return dtype
    return kernel.dtype or products


def kernels_graph(
    kernels: Iterable[Timed], dtype: str, products: str | None = None, recipes: Mapping[str, str] = RECIPES
) -> Graph:
    """Return a graph with one op per kernel, for a cost model to time.

    Attention split over several ranks appears whole.
    """
    builder, products = GraphBuilder("kernels"), products or dtype
    for number, kernel in enumerate(kernels):
        name, op_dtype = f"{type(kernel).__name__.lower()} {number}", _type_of(kernel, dtype, products)
        if isinstance(kernel, Product | Attention):
            op_dtype = recipes.get(op_dtype, op_dtype)
            facts = _op_facts(kernel, op_dtype)
            builder.op(name, **op_arguments(facts, name, facts.attributes), dtype=op_dtype)
        else:
            op_dtype = RECIPES.get(products, products) if isinstance(kernel, Experts) else dtype
            builder.op(name, **_op_arguments(kernel), dtype=op_dtype)
    return builder.build()


def _op_arguments(kernel: Scan | CausalConvolution | Experts | DeepEp | Pass) -> dict[str, Any]:
    """Return the cost facts of a kernel that is neither a product nor attention."""
    flops, written, sizes = 0, 0, dict[str, int]()
    if isinstance(kernel, Scan):
        kind, flops = "gated_delta_rule", round(kernel.flops * kernel.parts)
        written = 2 * kernel.batch * kernel.sequence * kernel.heads * 128
        read, sizes = 3 * written, dict(zip(("batch", "seq_len", "heads"), kernel, strict=False))
    elif isinstance(kernel, CausalConvolution):
        kind, read = "causal_conv1d", kernel.nbytes // kernel.tensors
        written, sizes = read, dict(zip(("batch", "seq_len", "channels"), kernel, strict=False))
    elif isinstance(kernel, Experts):
        names = ("tokens", "hidden", "intermediate", "topk", "experts", "tp", "ep")
        kind, flops, read = "moe", kernel.flops, 4 * kernel.tokens * kernel.hidden
        sizes = dict(zip(names, kernel, strict=True))
    elif isinstance(kernel, DeepEp):
        kind, read = f"moe_{kernel.way}", 2 * kernel.tokens * kernel.hidden
        sizes = {key: getattr(kernel, key) for key in ("tokens", "hidden", "experts", "nodes", "sms")}
        sizes["topk"] = kernel.top_k
    else:
        kind, read = "add", kernel.nbytes // 2
        written = kernel.nbytes - read
    facts = {"flops": flops, "bytes_read": read, "bytes_written": written, "attributes": sizes}
    return {"kind": kind, **facts}


def _op_facts(kernel: Product | Attention, dtype: str) -> OpFacts:
    def tensor(*shape: int) -> TensorFacts:
        return TensorFacts(shape, nbytes(shape, dtype))

    if isinstance(kernel, Product):
        groups = (kernel.groups,) if kernel.groups > 1 else ()
        # For gradients of weights, rows in memory are m and n long: k, the tokens, need not be aligned.
        inner = -(-kernel.k // 8) * 8 if kernel.part == "W" else kernel.k
        left, right = tensor(*groups, kernel.m, inner), tensor(*groups, inner, kernel.n)
        return OpFacts("matmul", (left, right), (tensor(*groups, kernel.m, kernel.n),), {})
    q = tensor(kernel.batch, kernel.heads, kernel.sequence, kernel.query_head)
    keys = kernel.sequence + kernel.cached
    k = tensor(kernel.batch, kernel.kv_heads, keys, kernel.query_head)
    v = tensor(kernel.batch, kernel.kv_heads, keys, kernel.value_head)
    o = tensor(kernel.batch, kernel.heads, kernel.sequence, kernel.value_head)
    causal = {"is_causal": True, **({"window": kernel.window} if kernel.window else {})}
    if not kernel.backward:
        return OpFacts("attention", (q, k, v), (o,), causal)
    # reads queries, keys, values, the output's gradient and the output; writes three gradients
    gradients = tensor(kernel.batch, kernel.sequence, 3 * kernel.heads * kernel.query_head)
    return OpFacts("attention_grad", (q, k, v, o, o), (gradients,), causal)


# ----------------------------------------------------------------------------------------------------------


Factor = Annotated[float, Field(ge=0.01, le=100)]


# Products and casts of experts are launched one by one, after a wait for the token counts. Launches by graphs
# take none.
class HostFields(Strict):
    """Host time to launch a layer's kernels, forward and backward together.

    Attributes
    ----------
    issue_cost
        of attention, a middle, Mamba-2, or the routing of experts
    experts
        of each expert of a rank
    factor
        times as long where two micro-batches are launched in turns
    bandwidth
        of a GPU to its host, each way
    """

    issue_cost: Duration = 0
    experts: Duration = 0
    factor: Factor = 1.0
    bandwidth: Bandwidth | None = None


@dataclass(frozen=True)
class TrainingCalibration:
    """What one kind of GPU achieves.

    Attributes
    ----------
    name : str
    peak : float
        In flop/s, at the precision of the products.
    memory_bandwidth : float
        In bytes/s.
    memory : int or None
        Bytes that a rank may use.
    alone : KernelPrices or None
        Times of kernels alone; None: only rates are known.
    product : float
        Largest part of the peak that products reach in a step.
    attention_forward, attention_backward : float or None
        Part of the peak that attention reaches, if its kernel is not the one that `alone` knows.
    attention_peak : float or None
        Peak to which attention's part refers; None: that of products.
    pass_efficiency : mapping
        Largest part of the memory bandwidth, by purpose of a pass; ``elementwise`` for the others.
    gap_ns : float
        Time between two kernels, including the time for the first one to fill the GPU.
    sustained : float
        Rate of products and attention under a long load / that of the measurements; above 1 (a GPU with more
        power than the measured one) it applies to products only, because only they are bound by power.
    contention : float
        Time of a collective among the kernels of a step / time of the collective alone.
    hiding : float
        The part of a collective that is free while a kernel runs beside it; the rest slows both.
    collectives : GroupCollectives
        Times of collectives alone.
    measured : mapping
        Efficiency of single shapes.
    node : int
        GPUs per node.
    host : HostFields
        Host time to launch kernels.
    communication_sms : float
        Part of the SMs that a collective takes from kernels beside it.
    bias_gradients : float
        Time of an expert product that also computes bias gradients, as Transformer Engine does
        in 16 bits / of the product alone; fitted rates include it. Chosen on published steps of
        gpt-oss (studies/training/results.md). No such kernel was measured; when all products of a dense model
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
    host: HostFields = field(default_factory=HostFields)
    communication_sms: float = 0.2
    bias_gradients: float = 5.0

    @property
    def is_unfitted(self) -> bool:
        """Whether kernels take as long in a step as alone."""
        slower = self.product * self.sustained < 1 or self.gap_ns or self.pass_efficiency
        return self.alone is not None and not slower and self.attention_forward is None

    def kept_width(self, dtype: str = "") -> float | None:
        """Return the bytes per number of the saved inputs of weight gradients, if products quantize them.

        `dtype` is the type of the products if it is not the step's.
        """
        recipe = self._recipe(dtype)
        return None if recipe is None else recipe.kept

    def _recipe(self, dtype: str = "") -> Recipe | None:
        return None if self.alone is None else LOW_PRECISION.get(dtype or self.alone.products)

    def gathered_bytes(self, parameters: int, wide: int, width: int) -> int:
        """Return the bytes of parameters that Megatron-LM gathers; `wide` of them have `width` bytes each."""
        recipe = self._recipe()
        narrow = width if recipe is None or recipe.gathered is None else recipe.gathered
        return round((parameters - wide) * narrow) + wide * width

    def weight_casts(self, parameters: int) -> int:
        """Return the bytes that quantizing weights moves (`Recipe.weights`); fitted rates include them."""
        recipe = self._recipe()
        return round(parameters * recipe.weights) if recipe is not None and self.is_unfitted else 0

    def casts(self, kernels: Iterable[Timed]) -> int:
        """Return the bytes that quantizing reads and writes; fitted rates include them."""
        return self.alone.casts(kernels) if self.alone is not None and self.is_unfitted else 0

    def kernel_ns(self, kernel: Timed) -> float:
        """Return the time of a kernel."""
        return self.kernels_ns([kernel])[0]

    def kernels_ns(self, kernels: Sequence[Timed]) -> list[float]:
        """Return the times of kernels."""
        times = [0.0] * len(kernels) if self.alone is None else self.alone.ns(kernels)
        return [self._ns_in_step(kernel, ns) + self.gap_ns for kernel, ns in zip(kernels, times, strict=True)]

    def _ns_in_step(self, kernel: Timed, alone_ns: float) -> float:
        """Return the time of a kernel at the rates of a step, given its time alone."""
        if isinstance(kernel, Pass | CausalConvolution):
            purpose = kernel.purpose if isinstance(kernel, Pass) else "elementwise"
            return _smooth_max(alone_ns, self._traffic_ns(kernel.nbytes, purpose))
        if isinstance(kernel, DeepEp):
            return alone_ns
        if isinstance(kernel, Scan | Experts):
            slowed = alone_ns / min(1.0, self.sustained)
            return _smooth_max(slowed, self._arithmetic_ns(kernel, self.peak * self.product))
        shape = kernel._replace(dtype="", bias=False) if isinstance(kernel, Product) else kernel
        efficiency = self.measured.get(shape) if self.measured else None
        if efficiency is not None:
            return self._arithmetic_ns(kernel, self.peak * efficiency)
        if isinstance(kernel, Product):
            passing = self._traffic_ns(2 * kernel.elements)
            ns = passing if self.alone is None else max(alone_ns / self.sustained, min(alone_ns, passing))
            if kernel.bias and self.is_unfitted:
                ns *= self.bias_gradients
            return _smooth_max(ns, self._arithmetic_ns(kernel, self.peak * self.product))
        part = self.attention_backward if kernel.backward else self.attention_forward
        if part is None and self.alone is not None:
            return alone_ns / min(1.0, self.sustained)
        rows = kernel.batch * kernel.sequence // kernel.parts
        nbytes = 4 * rows * (kernel.heads + kernel.kv_heads) * kernel.query_head * (1 + kernel.backward)
        rate = (self.attention_peak or self.peak) * (1.0 if part is None else part)
        return _smooth_max(self._arithmetic_ns(kernel, rate), self._traffic_ns(nbytes))

    def _arithmetic_ns(self, kernel: Product | Attention | Scan | Experts, rate: float) -> float:
        return kernel.flops / (rate * self.sustained) * NS_PER_S

    def _traffic_ns(self, nbytes: int, purpose: str = "elementwise") -> float:
        reached = self.pass_efficiency.get(purpose, self.pass_efficiency.get("elementwise", 1.0))
        return nbytes / (self.memory_bandwidth * reached) * NS_PER_S

    def pass_ns(self, nbytes: int) -> float:
        """Return the time to read and write `nbytes` in total."""
        return self.kernel_ns(Pass(nbytes))

    def copy_ns(self, nbytes: int) -> float:
        """Return the time of a copy to the host, or back.

        Raises
        ------
        InputError
            The calibration has no bandwidth for it.
        """
        if not self.host.bandwidth:
            raise InputError("offload: the calibration has no host.bandwidth, which copies take")
        return nbytes / self.host.bandwidth * NS_PER_S

    def collective_ns(self, kind: CollectiveKind, nbytes: int, group: RankGroup) -> float:
        """Return the time of a collective in a group."""
        if group.size == 1 or not nbytes:
            return 0.0
        return self.contention * self.collectives.time_ns(kind, nbytes, group)

    def exposed_ns(self, kernel: Collective, group: RankGroup) -> tuple[float, float]:
        """Return the time of a collective, and how much of it no kernel hides."""
        total_ns, sms = self.collective_ns(kernel.kind, kernel.nbytes, group), self.communication_sms
        if kernel.deepep is not None and self.alone is not None and self.alone.sends(group):
            assert self.alone.fits is not None
            total_ns = self.contention * self.kernel_ns(kernel.deepep._replace(nodes=group.nodes))
            sms = kernel.deepep.sms / self.alone.fits.sheet.sms
        if kernel.hidden_by is None:
            return total_ns, total_ns
        if isinstance(kernel.hidden_by, str):
            return total_ns, total_ns * sms
        hiding = 1.0 if kernel.copied else self.hiding
        return total_ns, total_ns - hiding * min(total_ns, self.kernel_ns(kernel.hidden_by))


_MAX_EXPONENT: Final = 24
"""Exponent of the smooth maximum: high enough to give the longer time, low enough that a fit sees both."""


def _smooth_max(a: float, b: float) -> float:
    """Return the longer time, or slightly more if both are nearly equal.

    Examples
    --------
    >>> _smooth_max(10.0, 0.0), round(_smooth_max(10.0, 9.0), 3), round(_smooth_max(10.0, 10.0), 3)
    (10.0, 10.032, 10.293)
    """
    longest = max(a, b)
    if not longest:
        return 0.0
    total: float = (a / longest) ** _MAX_EXPONENT + (b / longest) ** _MAX_EXPONENT
    return longest * float(total ** (1 / _MAX_EXPONENT))


# ----------------------------------------------------------------------------------------------------------
# Calibrations of a device alone, without the effects of a step; messages use a ring at one bandwidth.


def at_rate(rate: int, bandwidth: int | None = None) -> TrainingCalibration:
    """Return a calibration that does the model's own flop at `rate` and all else in no time.

    Attention's backward counts as twice its forward, as in MFU (`scenarios.builders.train.architecture`):
    the rate includes what a kernel recomputes.

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
        attention_backward=5 / 4,  # counts its five products (kernels.Attention.flops) as four
        hiding=0.0,
    )


def on_device(device: Device, dtype: str, bandwidth: int | None = None) -> TrainingCalibration:
    """Return a calibration with the kernel times of a device's cost model, each as if alone.

    Parameters
    ----------
    device : Device
    dtype : str
        Type of weights and activations.
    bandwidth : int, optional
        As in `at_rate`.

    Raises
    ------
    InputError
        The device has no cost model, or (when a kernel is timed) its cost model does not know it.
    """
    prices, fabric = KernelPrices(device, dtype), _one_fabric(bandwidth)
    return TrainingCalibration(
        device.name, math.inf, math.inf, fabric, alone=prices, gap_ns=float(device.gap_ns), hiding=0.0
    )


def _one_fabric(bandwidth: int | None) -> NodeFabrics:
    fabric = Fabric(bandwidth or math.inf)
    return NodeFabrics(fabric, fabric)
