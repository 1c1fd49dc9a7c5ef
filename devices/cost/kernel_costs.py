"""How long the ops of a graph take as kernels of a GPU, and how sure that is: from kinds, sizes and bytes to
families.

::

    matmul  {m, n, k, batch}                 ─► products (16, 8, 4 bits), linear or bmm (fp32)
    attention {batch, seq_len, kv_len, ...}  ─► prefill, decode (one query), encoder (causal: false)
    conv    {in_channels, kernel_shape, ...} ─► conv_forward, conv_backward_data, conv_backward_weights
    softmax, norms {rows, columns}           ─► softmax, layer_norm, rms_norm
    any other, or without its sizes          ─► elementwise, by the bytes that the op reads and writes; a
                                                product, attention or convolution by flops and bytes

An op that does nothing is unknown to it, and so is one that computes longer than the bytes take by which it
goes, or is of a kind whose loss the description gives (``efficiency: {matmul: 75%}``): that counts before.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from devices.cost.cost_models import alike
from devices.cost.general_kernels import (
    KINDS,
    NATIVE_NCHW,
    by_bytes,
    depthwise_kernel,
    has_bias,
    implicit_product,
    is_eager,
    layout_conversions,
    library_kernels,
)
from devices.cost.kernel_fits import KernelFits, MeasuredKernel
from devices.cost.kernel_model import ELEMENT_BYTES, ON_VECTOR_UNITS, Sheet, product_of, take
from devices.cost.language_kernels import LANGUAGE_DEMANDS, has_short_code, seen_pairs, sooner_ns
from devices.describe.field_types import DEFAULT, INDICES
from devices.describe.fields import DEVICE_FIELDS, read_fields
from devices.presets import device_preset
from sim.base.arrays import UNSET, BoolArray, FloatArray, IntArray
from sim.base.errors import InputError
from sim.base.units import format_duration, round_half_up
from sim.graph.graph import Graph
from sim.graph.views import reads_from
from sim.job.costs import ask_once
from sim.machine.device import CostModel, Device

PRODUCTS: Final = frozenset(kind for kind, row in KINDS.items() if row.get("product"))
CONVS: Final[Mapping[str, str]] = {kind: row["conv"] for kind, row in KINDS.items() if "conv" in row}
"""Kinds -> what is computed of input, weights and output."""
_GATES: Final = {"lstm": 4, "gru": 3, "rnn": 1}  # columns of the product for each number of the state
_TILE: Final = 128 * 128  # elements of the output that a thread block of a batched product has
_GUESSED_WIDTH: Final = 0.3  # half width (log) that a guessed shape adds: assumed
_BACKWARD_QUERIES, _BACKWARD_LEAST, _BACKWARD_WIDTH = 150.0, 256.0, 0.1
"""Attention's gradients take (2.35 + head_dim / 256) (1 + 150 / queries) times forward: five products in
place of two, smaller tiles, passes before and after. From FlashAttention-2, -3 and cuDNN
on an H100 (arXiv:2407.08608, figures 5 and 6), 512 queries and more; 24 rows of an A5000, a B200, and others
(flash-attention's issues 416, 1589, 2270, 2280, 2688) are 6 % off, 16 with the 2.5 that the products say."""
EAGER_START_NS: Final = 2700.0
"""What a product takes more in an eager program than among copies of itself: its code and weights are cold.
Median of eleven products of three programs on an H100 (2.4 us in three others; 1.3 to 2 us on a B200). In
fp32 it halves the error of a V100's small products, which nothing was chosen on. Short code loses 0.3 us."""
START_COLD: Final = frozenset(("products", "bmm", "linear"))
_AMPERE, _AMPERE_SHARE = "a100-sxm-80", 0.62
"""Of Hopper's peak that instructions of Ampere reach (arXiv:2402.13499), as FlashAttention-2 has them:
PyTorch's attention."""
_IN_PROGRAM: Final = 0.1
"""Half width (log) that a program adds to a kernel's: neighbours, clock and caches are not those of one that
runs again and again. Beyond what tables are off, kinds of op of BERT in fp32 on four GPUs were off by 0.06
(four of five, by time) and 0.15 (by kind)."""
_PLANAR: Final = 1.4
"""How many times as long a convolution of 1 x 1 takes on NCHW as on NHWC: it is a product of rows of pixels,
and no tensor is converted."""
_OF_NHWC: Final = (1, 4, 8, 16, 32)  # channels of a group; others gain nothing (RegNets, unlike ResNeXts)


class KernelAsk(NamedTuple):
    """Kernels of some ops: which ops, whose table, and with what sizes."""

    ops: BoolArray
    table: str
    sizes: Mapping[str, Any]
    width: float = 0.0
    times: Any = 1.0
    saved_ns: Any = 0.0


@dataclass(frozen=True)
class Ops:
    """Ops of one kind and data type: columns of what they say and move."""

    kind: str
    dtype: str
    attributes: Sequence[Mapping[str, Any]]
    flops: FloatArray
    nbytes_read: FloatArray
    nbytes_written: FloatArray

    def column(self, name: str, default: float | FloatArray = np.nan) -> FloatArray:
        """Return an attribute as numbers; `default` where it is not given, or is no number > 0."""
        given = (op.get(name, 0) for op in self.attributes)
        values = np.array([x if isinstance(x, int | float) else 0 for x in given], float)
        return np.where(values > 0, values, default)

    def columns(self, names: str, **defaults: float) -> dict[str, FloatArray]:
        """Return several."""
        return {name: self.column(name, defaults.get(name, np.nan)) for name in names.split()}

    def axes(self, name: str, default: float = 1.0) -> FloatArray:
        """Return an attribute that has a number for each axis of an image: of three axes, led by the default.

        Padding has two for each, of which the middle counts.
        """
        found = np.full((len(self.attributes), 3), default)
        for row, op in enumerate(self.attributes):
            given = op.get(name)
            if isinstance(given, int):
                found[row] = given
            elif isinstance(given, list | tuple) and given:
                half = len(given) // 2
                pairs = zip(given[:half], given[half:], strict=False)
                numbers = [(a + b) / 2 for a, b in pairs] if name == "pads" else given
                found[row, max(0, 3 - len(numbers)) :] = numbers[-3:]
        return found


def _are_known(sizes: Mapping[str, FloatArray]) -> BoolArray:
    return np.asarray(np.isfinite(sum(sizes.values())))


def _product(ops: Ops, sheet: Sheet) -> list[KernelAsk]:
    """Return products of sizes m, n, k, or of the flops and bytes that ops have."""
    sizes = ops.columns("m n k batch", batch=1)
    known, asks = _are_known(sizes), _by_flops(ops, sheet, ~_are_known(sizes))
    m, n, k, batch = sizes.values()
    times, width, again = np.ones_like(k), 0.0, k
    if gates := _GATES.get(ops.kind.removesuffix("_grad")):  # inputs do not wait for steps
        times, width, again = ops.column("seq_len", 1.0), _GUESSED_WIDTH, np.minimum(k, n / gates)
        n, batch = n * batch, np.ones_like(k)  # directions run side by side
    ways = [(known, (m, n, again), times), (known & (k > again), (m * times, n, k - again), 1.0)]
    if ops.kind.endswith("_grad"):  # by the input and by the weights, which sum over all steps at once
        ways = [(rows, (first, shared, columns), steps) for rows, (first, columns, shared), steps in ways]
        ways.append((known & (ops.flops > 3 * m * n * k * batch * times), (k, n, m * times), 1.0))
    for rows, new, repeated in (way for way in ways if way[0].any()):
        product_sizes = {**dict(zip("mnk", new, strict=True)), "batch": batch}
        asks += [ask._replace(times=repeated) for ask in _as_product(ops, sheet, rows, product_sizes, width)]
    return asks


def _as_product(
    ops: Ops, sheet: Sheet, rows: BoolArray, sizes: Mapping[str, Any], width: float = 0
) -> list[KernelAsk]:
    """Return a product on tensor cores, or on vector units where there are none for its data type.

    On these a right matrix that is stored as (n, k), as torch's linear layers have it, takes other kernels,
    and a vector times it those that memory bounds, as an outer product and one by a vector do everywhere.
    """
    m, n, k, batch = (sizes[name] for name in ("m", "n", "k", "batch"))
    tensor = ops.dtype not in ON_VECTOR_UNITS and sheet.generation != "pascal"
    by_memory = (k == 1) | (n == 1) | (~np.bool_(tensor) & (m == 1))
    element = ELEMENT_BYTES[ops.dtype]
    nbytes = batch * (m + n) * k * element, batch * m * n * element
    [moved] = by_bytes("gemv", *nbytes, ops.dtype, ops.attributes)
    moved["indexed"] = (k == 1) * 1.0  # each element of an outer product has another pair of operands
    asks = [KernelAsk(rows & by_memory, "elementwise", moved, width)]
    if tensor:
        return [*asks, KernelAsk(rows & ~by_memory, "products", sizes, width)]
    stored, longer = library_kernels(ops.kind, ops.attributes, sheet.generation)
    few = m * n < _TILE * sheet.sms  # these cut k as linear layers do, or leave SMs idle
    linear = (batch == 1) & (stored | few | (width > 0))
    asks.append(KernelAsk(rows & ~by_memory & ~linear, "bmm", {**sizes, "times": longer}, width))
    return [*asks, KernelAsk(rows & ~by_memory & linear, "linear", sizes, width)]


def _by_flops(ops: Ops, sheet: Sheet, rows: BoolArray) -> list[KernelAsk]:
    """Return products with the flops and bytes that ops have."""
    rows = rows & (ops.flops > 0)
    if not rows.any():
        return []
    numbers = (ops.nbytes_read + ops.nbytes_written) / ELEMENT_BYTES[ops.dtype]
    m, n, k = product_of(ops.flops, numbers)
    asks = _as_product(ops, sheet, rows, {"m": m, "n": n, "k": k, "batch": 1.0}, _GUESSED_WIDTH)
    return [ask._replace(times=np.maximum(ops.flops, 2) / (2 * m * n * k)) for ask in asks]


def _attention(ops: Ops, sheet: Sheet) -> list[KernelAsk]:
    """Return whole sequences, one query against a cache, or attention without a mask."""
    sizes = ops.columns("batch seq_len heads head_dim", batch=1)
    sizes["kv_heads"] = np.minimum(ops.column("kv_heads", sizes["heads"]), sizes["heads"])
    known = _are_known(sizes)
    if not known.all():  # scores of a row are as many as its flops over its bytes
        numbers = np.maximum((ops.nbytes_read + ops.nbytes_written) / ELEMENT_BYTES[ops.dtype], 4)
        numbers = np.maximum(numbers, 16 * ops.flops**0.5)  # one head of 64 reads and writes as much
        length = np.maximum(np.rint(np.maximum(ops.flops, 1) / numbers), 1)
        heads = np.maximum(np.rint(numbers / (4 * length * 64)), 1)
        guess = {"batch": 1, "seq_len": length, "heads": heads, "head_dim": 64, "kv_heads": heads}
        sizes = {name: np.where(known, column, guess[name]) for name, column in sizes.items()}
    queries, keys = sizes["seq_len"], ops.column("kv_len", sizes["seq_len"])
    window = ops.column("window", 0.0)
    sizes["window"] = np.where(window < keys, window, 0.0)
    masked = np.array([bool(op.get("causal", True)) for op in ops.attributes])
    alone = masked & (queries == 1) & (keys > 1)
    all_seen = ~masked & (sizes["window"] == 0)
    square = np.where(masked, np.maximum(queries * (2 * keys - queries), 1), queries * keys) ** 0.5
    sizes["seq_len"] = np.where(alone, keys, np.maximum(square, 1))
    grad = ops.kind.endswith("_grad")
    fewer = 1 + _BACKWARD_QUERIES / np.maximum(queries, _BACKWARD_LEAST)
    back = (2.35 + sizes["head_dim"] / 256) * fewer if grad else 1.0
    does = known | (ops.flops > 0)
    seen = np.where(all_seen, sizes["seq_len"] ** 2, seen_pairs(sizes["seq_len"], sizes["window"]))
    saved = np.where(alone, 0.0, sooner_ns(sizes["batch"] * sizes["heads"] * seen, sheet))
    asks = []
    for table, rows in (("decode", alone), ("encoder", all_seen), ("prefill", ~alone & ~all_seen)):
        for sure, width in ((known, 0.0), (~known, _GUESSED_WIDTH)):
            more = float(np.hypot(width, _BACKWARD_WIDTH * grad))
            asks.append(KernelAsk(rows & sure & does, table, sizes, more, back, saved))
    return asks


def _conv(ops: Ops, sheet: Sheet) -> list[KernelAsk]:
    """Return a convolution and its gradients; one without sizes as a product of the same flops and bytes."""
    direction = CONVS[ops.kind]
    s = ops.columns("batch in_channels out_channels group", batch=1, group=1)
    if "depthwise" in ops.kind:
        s["group"] = np.maximum(s["group"], s["in_channels"])
    known = _are_known(s) & [{"input_shape", "kernel_shape"} <= op.keys() for op in ops.attributes]
    image, kernel, strides = ops.axes("input_shape"), ops.axes("kernel_shape"), ops.axes("strides")
    pads, dilations = ops.axes("pads", 0.0), ops.axes("dilations")
    s["batch"] *= np.maximum(image[:, 0] / strides[:, 0], 1)  # each image of a volume,
    s["in_channels"] *= kernel[:, 0]  # of as many channels more
    if direction == "transposed":  # the gradient of a convolution from its output to its input
        s["in_channels"], s["out_channels"] = s["out_channels"], s["in_channels"]
        spread = (image - 1) * strides - 2 * pads
        image = np.maximum(spread + dilations[:, 2:] * (kernel - 1) + 1, 1)
        direction = "backward_data"
    for i, (side, edge) in enumerate((("height", "h"), ("width", "w")), 1):
        s |= {side: image[:, i], f"kernel_{edge}": kernel[:, i], f"stride_{edge}": strides[:, i]}
        s[f"pad_{edge}"] = pads[:, i]
    s["dilation"] = dilations[:, 2]
    ways = ["backward_data", "backward_weights"] if direction == "both" else [direction]
    square = (s["kernel_h"] == 3) & (s["kernel_w"] == 3) & (ops.dtype == "fp32") & (direction == "forward")
    s = {name: np.where(known, column, 1.0) for name, column in s.items()}
    depthwise = known & (s["in_channels"] == s["group"]) & (s["group"] > 1)  # each number is a sum of few
    many, pixel = known & ~depthwise, s["kernel_h"] * s["kernel_w"] == 1
    # A recorded one is the kernel alone; a compiler that fuses adds a bias elsewhere.
    fused, recorded = (np.array([w in x for x in ops.attributes], bool) for w in ("fused", "kernel"))
    fast = (s["group"] == 1) | np.isin(s["in_channels"] / s["group"], _OF_NHWC)
    nhwc = fast & [x.get("data_format") == "NHWC" for x in ops.attributes]
    launched, halves = many & ~recorded, ELEMENT_BYTES[ops.dtype] == 2
    planar = launched & ~nhwc & ((halves or ops.dtype == "tf32") and sheet.generation not in NATIVE_NCHW)
    asks = [KernelAsk(many & square, "conv_3x3", {**s, "direction": "forward"})]
    slower = np.where(planar & pixel, _PLANAR, 1.0)
    biases = [has_bias(x) and not ops.kind.endswith("_grad") for x in ops.attributes]
    if (biased := launched & ~fused & biases).any():  # PyTorch adds it separately
        written = implicit_product(s)[1][2 if direction == "forward" else 0]  # transposed: the input
        asks.append(KernelAsk(biased, "elementwise", {"elements": written, "operands": 1}))
    for way in ways:
        asks.append(KernelAsk(many & ~square, f"conv_{way}", {**s, "direction": way}, times=slower))
        if depthwise.any():
            moved, times = depthwise_kernel(s, way, ops.dtype, nhwc & halves)
            asks.append(KernelAsk(depthwise, "elementwise", moved, _GUESSED_WIDTH, times))
        if planar.any():
            asks += [KernelAsk(planar & ~pixel, "elementwise", copy) for copy in layout_conversions(s)]
    return [*asks, *_by_flops(ops, sheet, ~known)]


def _rows(ops: Ops, sheet: Sheet) -> list[KernelAsk]:
    """Return kernels by rows and columns; those whose rows are not known, or that were measured in 16 bits
    only and are not, by their bytes.
    """
    of_kind = KINDS[ops.kind]
    table, tensors = of_kind["table"], of_kind["tensors"]
    sizes = ops.columns("rows columns")
    known, halves = _are_known(sizes), ELEMENT_BYTES[ops.dtype] == 2
    forward = ops.kind.removesuffix("_grad")
    flops = KINDS[forward].get("flops", 20.0)
    if of_kind.get("in") == "16 bits":
        known, flops = known & halves, 10.0
    elif halves and forward in ("rms_norm", "layer_norm"):
        table, tensors = "rms_norm", 2.0 * tensors / KINDS[forward]["tensors"]
    sizes |= {"tensors": tensors, "element_flops": flops, "eager": is_eager(ops.attributes).astype(float)}
    ask = KernelAsk(known, table, sizes)
    return [ask, *_any(ops, sheet, ~known)]


def _kernels_by_size(ops: Ops, sheet: Sheet) -> list[KernelAsk]:
    """Return kernels of ops that need nothing but their sizes."""
    row = KINDS[ops.kind]
    sizes = ops.columns(row["sizes"], **row.get("usual", {}))
    known = _are_known(sizes)
    one = known & (ops.column("seq_len", 1.0) == 1)
    tables = ((one, row.get("one_token", row["table"])), (known & ~one, row["table"]))
    asks = [KernelAsk(rows, table, sizes) for rows, table in tables]
    otherwise = _by_flops if ops.kind == "moe" else _any
    return [*asks, *otherwise(ops, sheet, ~known)]


def _any(ops: Ops, sheet: Sheet, rows: BoolArray | None = None) -> list[KernelAsk]:
    """Return kernels that memory bounds, by the bytes of their ops."""
    does = (ops.nbytes_read + ops.nbytes_written > 0) | (ops.flops > 0)
    rows = does if rows is None else rows & does
    asks = by_bytes(ops.kind, ops.nbytes_read, ops.nbytes_written, ops.dtype, ops.attributes)
    return [KernelAsk(rows, "elementwise", sizes) for sizes in asks]


def _way(kind: str) -> Callable[[Ops, Sheet], list[KernelAsk]]:
    """Return what turns ops of a kind into kernels."""
    forward, row = kind.removesuffix("_grad"), KINDS.get(kind, {})
    for key, way in (("sizes", _kernels_by_size), ("conv", _conv), ("tensors", _rows)):
        if key in row:
            return way
    return {"attention": _attention}.get(forward, _product if forward in PRODUCTS else _any)


_BY_BYTES: Final = (_any, _rows)
_OF_AMPERE: Final = frozenset(("prefill", "encoder", *(f"conv_{way}" for way in CONVS.values())))
_BACK_TO_BACK: Final = LANGUAGE_DEMANDS.keys() - {"deepep"}


@dataclass(frozen=True)
class FittedCost(CostModel):
    """Ops as kernels of a GPU: `devices.cost.kernel_model` fitted to measured ones.

    Attributes
    ----------
    fits : KernelFits
    default_dtype : str
        Of ops that name none.
    by_others : frozenset of str
        Kinds that it leaves to the next model; `DEFAULT`: all.
    least_ns : int
        The shortest kernel among those that were timed alone.

    Examples
    --------
    >>> from sim import Device, GraphBuilder
    >>> b = GraphBuilder("three")
    >>> _ = b.op("a", kind="matmul", dtype="bf16", attributes={"m": 4096, "n": 4096, "k": 4096})
    >>> _ = b.op("b", kind="relu", dtype="bf16", bytes_read=2**30, bytes_written=2**30)
    >>> _ = b.op("c", kind="reshape")
    >>> model = FittedCost(load_fits("h200-sxm"))
    >>> a, b_ns, c = model.durations_ns(b.build(), Device("gpu0")).tolist()
    >>> 150_000 < a < 250_000, 440_000 < b_ns < 700_000, c
    (True, True, -1)
    """

    by_name = False

    fits: KernelFits
    default_dtype: str = "fp32"
    by_others: frozenset[str] = field(default_factory=frozenset)
    least_ns: int = 1

    def durations_ns(self, graph: Graph, device: Device) -> IntArray:
        """Return one duration per op in ns; -1 for an op that does nothing, or is left to others."""
        ns, _ = self._price_once(graph, device)
        return np.where(np.isnan(ns), UNSET, np.floor(np.nan_to_num(ns) + 0.5)).astype(np.int64)

    def spread(self, graph: Graph, device: Device) -> FloatArray:
        """Return the log half width of each op's 10-90 % interval; NaN where the duration is -1.

        An op takes between ``ns * exp(-w)`` and ``ns * exp(w)`` in four of five cases.
        """
        return self._price_once(graph, device)[1]

    def blocks(self, graph: Graph, device: Device) -> IntArray:
        """Return in how many thread blocks, one an SM, each product is computed; -1 for other ops."""
        found = np.full(len(graph), -1)
        products = (group for group in self._groups(graph) if group[1].kind in PRODUCTS)
        for rows, ops, _ in products:
            for ask in _product(ops, self.fits.sheet):
                sized = np.flatnonzero(ask.ops & (ask.width == 0))
                if len(sized):
                    model = self.fits.model(ask.table, ops.dtype)
                    waves = model.base(take(ask.sizes, sized), self.fits.sheet)[1]["waves"]
                    found[rows[sized]] = np.maximum(1, np.rint(2**waves * self.fits.sheet.sms))
        return found

    def borrowed_rates(self, graph: Graph) -> dict[tuple[str, str], list[int]]:
        """Return the ops that compute at another data type's rate, by their own and how.

        As of a roofline, indices are not among them; nor is fp8 with a scale for each block.
        """
        found: dict[tuple[str, str], list[int]] = {}
        for rows, ops, dtype in self._groups(graph):
            lent, product = self.fits.sheet.rate_dtype(ops.dtype), ops.kind in PRODUCTS or ops.kind in CONVS
            computes_itself = lent in (dtype, DEFAULT) or (dtype, lent) == ("fp8_block", "fp8")
            if not computes_itself and (product or dtype not in INDICES):
                substitute = f"at the rate of {lent}, as peak has none for {dtype}"
                found.setdefault((dtype, substitute), []).extend(rows[product | (ops.flops > 0)].tolist())
        return found

    def _price_once(self, graph: Graph, device: Device) -> tuple[FloatArray, FloatArray]:
        """Return what was priced of a graph before, as who asks for durations asks for spreads, too."""
        known: dict[Any, tuple[FloatArray, FloatArray]] = ask_once(graph, device, "kernels", dict)
        if (key := (self, device.gap_ns)) not in known:
            known[key] = self._price(graph, device.gap_ns)
        return known[key]

    def _price(self, graph: Graph, gap_ns: int) -> tuple[FloatArray, FloatArray]:
        """Return nanoseconds and log half widths; NaN where unknown.

        Kernels of language models were timed back to back in CUDA graphs, the gap between two included,
        which the device adds to each op; those in fp32, and the rows of norms, alone. Products that PyTorch
        launches one by one start cold.
        """
        total, spread = np.full(len(graph), np.nan), np.full(len(graph), np.nan)
        quantized = reads_from(graph, "quantize")
        for rows, ops, _ in self._groups(graph):
            ns, weighted, eager = np.zeros(len(rows)), np.zeros(len(rows)), is_eager(ops.attributes)
            for way in (_way(ops.kind), _any):  # what has neither sizes nor flops moves bytes all the same
                if (ns > 0).all():
                    break
                asks = [a._replace(ops=a.ops & (ns == 0)) for a in way(ops, self.fits.sheet)]
                for ask, one_by_one in product(asks, (False, True)):
                    chosen = np.flatnonzero(ask.ops & (eager == one_by_one))
                    if len(chosen):
                        alone = quantized[rows[chosen]]
                        found, width = self._price_kernels(ask, ops, chosen, alone, one_by_one, gap_ns)
                        ns[chosen] += found
                        weighted[chosen] += found * width
            does = ns > 0
            if _way(ops.kind) in _BY_BYTES:  # no more arithmetic
                does &= ns >= ops.flops / self.fits.sheet.peak_of(ops.dtype) * 1e9
            total[rows[does]], spread[rows[does]] = ns[does], weighted[does] / ns[does]
        return total, spread

    def _price_kernels(
        self, ask: KernelAsk, ops: Ops, chosen: IntArray, quantized: BoolArray, one_by_one: bool, gap_ns: int
    ) -> tuple[FloatArray, FloatArray]:
        """Return nanoseconds and log half widths of some of the kernels that are asked for.

        Of `quantized` products, an op of its own makes the left matrix.
        """
        fitted = self._older if one_by_one and ask.table in _OF_AMPERE else self.fits
        sizes = take(ask.sizes, chosen)
        found, width = fitted.predict(ask.table, ops.dtype, **sizes)
        if ask.table == "products" and quantized.any():
            found = found - quantized * fitted.quantizing_ns(ops.dtype, **sizes)
        if one_by_one and ask.table in START_COLD:
            short = ask.table == "products" and has_short_code(sizes, self.fits.sheet, ops.dtype)
            found = found + np.where(short, 0, EAGER_START_NS)
        elif self.back_to_back(ask.table, ops.dtype):
            found = np.maximum(found - gap_ns, 1)
        else:
            found = np.maximum(found, self.least_ns)
        times, saved = (np.broadcast_to(column, len(ask.ops))[chosen] for column in (ask.times, ask.saved_ns))
        found = np.maximum(found * times - saved, found * times / 2)
        return found, np.hypot(np.hypot(width, ask.width), _IN_PROGRAM)

    @cached_property
    def _older(self) -> KernelFits:
        """What attention takes whose instructions are those of the generation before Hopper."""
        sheet = self.fits.sheet
        if sheet.generation != "hopper":
            return self.fits
        peak = {dtype: _AMPERE_SHARE * rate for dtype, rate in sheet.peak.items()}
        return KernelFits(replace(sheet, name=_AMPERE, peak=peak), _AMPERE, self.fits.measured)

    def kernels(self, graph: Graph) -> Iterator[tuple[int, MeasuredKernel | str]]:
        """Yield each op with the kernel of a table that it is, of no time yet, or else with what it is."""
        for rows, ops, _ in self._groups(graph):
            asks = [ask for ask in _way(ops.kind)(ops, self.fits.sheet) if ask.ops.any()]
            for i, row in enumerate(rows.tolist()):
                of_op = [ask for ask in asks if ask.ops[i]]
                if len(of_op) != 1 or of_op[0].width or np.any(of_op[0].times != 1):
                    yield row, "several kernels" if len(of_op) > 1 else "not one kernel whose sizes are given"
                else:
                    columns = take(of_op[0].sizes, i).items()
                    sizes = tuple((n, x if isinstance(x, str) else float(x)) for n, x in columns)
                    yield row, MeasuredKernel(of_op[0].table, ops.dtype, sizes, np.nan)

    def back_to_back(self, table: str, dtype: str) -> bool:
        """Return whether a table has the time of one run of many, the gap between two included."""
        return self.fits.model(table, dtype).family.name in _BACK_TO_BACK

    def as_measured(self, graph: Graph, ns: Sequence[float], gap_ns: int) -> Iterator[MeasuredKernel]:
        """Return ops that took `ns`, the gap included, as kernels of their tables, each of which must be one.

        Raises
        ------
        InputError
            An op that is no kernel, or several, or whose sizes are missing.

        Warns
        -----
        UserWarning
            Some took ten times what the fits say, or less than a quarter: another unit, GPU, or a slip.
        """
        doubts = []
        for row, kernel in self.kernels(graph):
            if isinstance(kernel, str):
                given = ", ".join(f"{k}={x}" for k, x in graph.attributes.get(row, {}).items()) or "no size"
                raise InputError(f"{graph.op_names[row]}: a {graph.kind(row)} of {given} is {kernel}")
            alone = not self.back_to_back(kernel.table, kernel.dtype)
            yield kernel._replace(ns=max(ns[row] - gap_ns * alone, 1.0))
            expected = float(self.fits.predict(kernel.table, kernel.dtype, **dict(kernel.sizes))[0][0])
            if not expected / 4 < ns[row] < 10 * expected:  # fits of GPUs reach most of their peaks
                doubts.append((row, expected))
        if doubts:
            row, expected = min(doubts)
            took, says = (format_duration(round_half_up(x)) for x in (ns[row], expected))
            warnings.warn(
                f"{graph.op_names[row]}: took {took} where the fits say {says}; {len(doubts)} of "
                f"{len(graph)} took under x0.25 or over x10: is each time of one run, in us, on this GPU?",
                stacklevel=2,
            )

    def _groups(self, graph: Graph) -> Iterator[tuple[NDArray[np.intp], Ops, str]]:
        """Yield the ops of each kind and data type, and the latter, in whose stead fp32 may be taken."""
        sheet = self.fits.sheet
        absent = {"tf32", "bf16"} - sheet.peak.keys()
        none: Mapping[str, Any] = {}
        for rows, kind, name in alike(graph, self.default_dtype):
            if self.by_others.isdisjoint((kind, DEFAULT)):
                attributes = [graph.attributes.get(op, none) for op in rows.tolist()]
                moved = (c[rows].astype(float) for c in (graph.flops, graph.bytes_read, graph.bytes_written))
                computes = sheet.rate_dtype(name) == "fp32" and _way(kind) not in _BY_BYTES
                wide = name not in ELEMENT_BYTES or (name in absent and (name == "tf32" or computes))
                yield rows, Ops(kind, "fp32" if wide else name, attributes, *moved), name


# ---- what a description gives ------------------------------------------------------------------------------

_NEEDS: Final = ("sms", "clock", "l2", "bandwidth", "peak")


def sheet_of(values: Mapping[str, Any], peak_share: float = 1.0) -> Sheet:
    """Return the data sheet in a device's keys.

    Parameters
    ----------
    values : mapping
        As `devices.describe.fields.read_fields` returns them.
    peak_share : float
        Part of the SMs in use.

    Raises
    ------
    InputError
        A number is missing.
    """
    missing = [name for name in _NEEDS if not values.get(name)]
    if missing:
        raise InputError(f"needs {', '.join(missing)} of the device, or a preset that has them")
    peak = {
        dtype: (1e30 if rate is None else float(rate)) * peak_share for dtype, rate in values["peak"].items()
    }
    held = values.get("sustained") or {}
    if "fp32" not in peak:
        peak["fp32"] = peak.get(DEFAULT, next(iter(peak.values())))
    return Sheet(
        values.get("preset", ""),
        values.get("generation", ""),
        max(1.0, round_half_up(values["sms"] * peak_share)),
        float(values["clock"]),
        float(values["bandwidth"]),
        float(values["l2"]),
        peak,
        {dtype: float(held.get(dtype, held.get(DEFAULT, 1))) for dtype in peak},
    )


def load_fits(preset: str) -> KernelFits:
    """Return the fitted kernels of a preset.

    Raises
    ------
    UnknownNameError
        There is no such preset.
    """
    values = read_fields({**device_preset(preset), "preset": preset}, DEVICE_FIELDS, preset)
    return KernelFits(sheet_of(values), preset)
