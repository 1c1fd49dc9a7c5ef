"""The duration of a kernel: physics of a data sheet times a smooth correction fitted to measured kernels.

::

    log(duration) = log(physics(work, data sheet, parameters)) + sum of grids(features)

                             ┌ waves x (longest of: arithmetic, operands from L2, steps; + start) ┐
    physics = fixed time  +  │                          p-norm of both                            │
                             └ bytes from DRAM / rate + bytes found in L2 / rate + ramp           ┘

`KernelWork` says what a kernel asks of a GPU; a `Family` of kernels (products, attention, ...) is one small
function from sizes to it, with the features that its correction depends on. The physics is one formula for
all. Where a library has a choice (tiles, splits of k), work has one column a candidate, and the quickest is
taken. A `KernelGrid` is a multilinear spline over one to four logarithmic features. What a family lacks (no
data type, no blocks) it leaves out. ``docs/costs.md`` says how far it is off, ``studies/kernels`` fits it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from devices.describe.dtypes import DTYPES
from sim.base.arrays import FloatArray, IntArray

Sizes = Mapping[str, Any]
"""Columns by name, of one length; a plain number counts for all rows."""

ELEMENT_BYTES: Final = {name: float(row["bytes"]) for name, row in DTYPES.items() if "bytes" in row}
"""Bytes of a number with its share of the scale of a block."""

_WITHOUT_BF16: Final = frozenset(("pascal", "volta", "turing"))
"""Whose bf16 is widened and computed in fp32 (CUDA C++ Programming Guide, arithmetic instructions)."""

ON_VECTOR_UNITS: Final = frozenset(
    ("fp32", "fp64", "int32", "int64", "uint32", "uint64", "complex64", "default")
)
_HALF_RATE_SHARE: Final = 0.97
"""Of their peak that kernels on tensor cores of half rate reach, whose operands are there in time, and which
power does not hold: chosen by CNNs and transformers on RTX 3090 and 4090 (``studies.kernels.cnns``)."""


@dataclass(frozen=True)
class Sheet:
    """A GPU's data sheet.

    Attributes
    ----------
    name : str
    generation : str
        ``hopper``: decides which tiles its libraries have, and whose fit an unmeasured GPU takes.
    sms, clock_hz, dram_bytes_per_s, l2_bytes : float
    peak : mapping of str to float
        Dense flop/s by data type at the boost clock.
    sustained : mapping of str to float
        Part of it that heat leaves to a kernel that goes on; 1 where not named.
    """

    name: str
    generation: str
    sms: float
    clock_hz: float
    dram_bytes_per_s: float
    l2_bytes: float
    peak: Mapping[str, float]
    sustained: Mapping[str, float] = field(default_factory=dict)

    def peak_of(self, dtype: str) -> float:
        """Return the rate at which a data type computes."""
        return self.peak[self.rate_dtype(dtype)]

    def rate_dtype(self, dtype: str) -> str:
        """Return at whose rate a data type computes: at that of fp16 (or fp32) where the GPU lacks it.

        Before Ampere bf16 is fp32's arithmetic.
        """
        wide = ELEMENT_BYTES.get(dtype, 4.0) >= 4
        like: str = DTYPES.get(dtype, {}).get("peak", "")
        if dtype == "bf16" and str(self.generation) in _WITHOUT_BF16:
            like = "fp32"
        names = (dtype, "default", like, "fp32" if wide else "fp16", "fp32", *self.peak)
        return next(name for name in names if name in self.peak)

    def is_half_rate(self, dtype: str) -> bool:
        """Return whether tensor cores are slow beside the rest of an SM: a GeForce's, which halve their rate
        to sum in fp32, multiply in 16 bits twice as fast as vector units in 32, others at least four times.
        With tensor cores an SM does at least 512 flop a cycle in 16 bits, without at most 256.
        """
        rated = self.rate_dtype(dtype)
        without = rated in ON_VECTOR_UNITS or self.peak_of("fp16") < 384 * self.sms * self.clock_hz
        return not without and self.peak[rated] * ELEMENT_BYTES.get(rated, 4) < 6 * self.peak.get("fp32", 0)


HEATING_NS: Final = 3e5
"""In which a kernel warms a card of 70 W enough to halve what its clock has over the one that it holds; from
batched products on P4 and T4."""

_STRIDED_OVERLAP, _STRIDED_NS = 2.5, 300.0
"""Overlap, and time until sizes and strides are read, of kernels that work out where numbers lie: by 1,400 of
five recordings on an H100, such that whole models in fp32 stay as they were. On five other GPUs in fp32 masks
and copies of heads are 17 % off, were 20 (NeuSight), large ones in recordings of an A100 and a B200 22 and
16 %, were 28 and 25."""


@dataclass(frozen=True)
class KernelWork:
    """What kernels ask of a GPU: arrays of shape (rows,) or (rows, candidates).

    Attributes
    ----------
    flops : array_like
    dram_bytes, warm_bytes, cycled_bytes : array_like
        Bytes that come from or go to DRAM for sure; that were just written or are read again and again,
        found in L2 as far as they fit; and weights, of which a measurement takes a few copies in turn, found
        where all fit.
    fresh : array_like
        Part of the warm bytes that L2 does not have all the same.
    load_bytes, missed_bytes : array_like
        That all thread blocks together load from L2, and operands that L2 lost, which come from DRAM again,
        a piece of a row at a time.
    strided : array_like
        Whether threads work out where numbers lie before they load them: that hides less of a memory's time.
    blocks, steps : array_like
        Thread blocks, as many as SMs at once, and the steps that one takes one after another.
    joins, join_bytes : array_like
        Further kernels or barriers, and partial results, written and added up.
    dtype : str
    heats : bool
        Whether the card has to lower its clock for as much as computes.
    """

    flops: Any = 0.0
    dram_bytes: Any = 0.0
    warm_bytes: Any = 0.0
    cycled_bytes: Any = 0.0
    fresh: Any = 0.0
    load_bytes: Any = 0.0
    missed_bytes: Any = 0.0
    strided: Any = False
    blocks: Any = 1.0
    steps: Any = 0.0
    join_bytes: Any = 0.0
    joins: Any = 0.0
    dtype: str = "fp16"
    heats: bool = True


@dataclass(frozen=True)
class Parameters:
    """What a data sheet does not say; a share is of the sheet's number.

    Attributes
    ----------
    fixed_ns, block_ns, step_ns, join_ns, ramp_ns : float
        Of a kernel, a thread block, one of its steps, a barrier, and of the memory's rise to its rate.
    flop_share, dram_share, missed_share : float
        Of the peak; of DRAM's rate, and of that for pieces of rows.
    load_bytes_per_cycle, l2_bytes_per_cycle : float
        From L2, of an SM and cycle: operands, and bytes that would else come from DRAM.
    rounding : float
        Share of the last wave's idle SMs that is really lost.
    l2_share, cycled_share : float
        Of L2's size that warm and cycled bytes find.
    overlap : float
        Exponent p: 1 is one after the other, infinity the longer of both.
    """

    fixed_ns: float = 2300.0
    flop_share: float = 0.85
    load_bytes_per_cycle: float = 64.0
    step_ns: float = 1.0
    block_ns: float = 500.0
    join_ns: float = 1500.0
    rounding: float = 0.5
    dram_share: float = 0.85
    ramp_ns: float = 800.0
    l2_share: float = 0.7
    cycled_share: float = 0.15
    l2_bytes_per_cycle: float = 40.0
    overlap: float = 3.0
    missed_share: float = 0.3


def physics(work: KernelWork, sheet: Sheet, p: Parameters) -> tuple[FloatArray, dict[str, FloatArray]]:
    """Return nanoseconds of each row, and what they are made of as features (logarithms to base 2).

    ``ns`` is the whole, ``waves`` thread blocks per SM, ``balance`` time on the SMs over time of the memory.

    Examples
    --------
    Without losses: 100 thread blocks of 10 ns on 100 SMs, then on 50; and 1000 bytes at 1 byte a ns.

    >>> lossless = Parameters(0, 1, 64, 1, 0, 0, 1, 1, 1e-9, 0.7, 0.15, 40, 64)
    >>> sheet = Sheet("chip", "", 100, 1e9, 1e9, 1e6, {"fp16": 1e11})
    >>> works = [KernelWork(flops=np.array([1000.0]), blocks=blocks) for blocks in (100, 50)]
    >>> works.append(KernelWork(dram_bytes=np.array([1000.0])))
    >>> [round(float(physics(work, sheet, lossless)[0][0])) for work in works]
    [10, 20, 1000]
    """
    wide = max(np.ndim(getattr(work, f.name)) for f in fields(work) if f.name not in ("dtype", "heats")) > 1

    def tall(x: Any) -> Any:
        return x[:, None] if wide and np.ndim(x) == 1 else x

    sms, cycles_per_ns = sheet.sms, sheet.clock_hz / 1e9
    blocks = np.maximum(tall(work.blocks), 1e-9)
    waves = blocks / sms
    waves = np.maximum(1.0, waves + p.rounding * (np.ceil(waves - 1e-9) - waves))
    share = _HALF_RATE_SHARE if sheet.is_half_rate(work.dtype) else p.flop_share
    flops_ns = tall(work.flops) / (share * sheet.peak_of(work.dtype) / 1e9)  # of all SMs
    load_ns = tall(work.load_bytes) / (p.load_bytes_per_cycle * sms * cycles_per_ns)
    missed_ns = tall(work.missed_bytes) / (p.missed_share * sheet.dram_bytes_per_s / 1e9)
    block_ns = np.maximum(np.maximum(flops_ns, load_ns), missed_ns) * sms / blocks
    block_ns = np.maximum(block_ns, tall(work.steps) * p.step_ns) + p.block_ns
    join_ns = tall(work.join_bytes) / (p.l2_bytes_per_cycle * sms * cycles_per_ns)
    on_sms = waves * block_ns + tall(work.joins) * p.join_ns + join_ns
    sustained = sheet.sustained.get(work.dtype, 1.0) if work.heats else 1.0
    if sustained < 1:  # heat lowers the clock, idle SMs raise it
        hot_ns = flops_ns / sustained
        on_sms = np.maximum(on_sms, hot_ns / (1 + (1 / sustained - 1) / (1 + hot_ns / HEATING_NS)))
    if wide:
        best = np.argmin(on_sms, axis=1)[:, None]
        on_sms, blocks = (
            np.take_along_axis(np.broadcast_to(x, on_sms.shape), best, 1)[:, 0] for x in (on_sms, blocks)
        )
    warm = np.asarray(work.warm_bytes, float)
    found = _bytes_in_l2(warm, p.l2_share * sheet.l2_bytes) * (1 - work.fresh)
    cycled = np.asarray(work.cycled_bytes, float)
    found_too = _bytes_in_l2(cycled, p.cycled_share * sheet.l2_bytes)
    dram = work.dram_bytes + warm - found + cycled - found_too
    dram_ns = dram / (p.dram_share * sheet.dram_bytes_per_s / 1e9)
    ramp_ns = p.ramp_ns * dram_ns / (dram_ns + p.ramp_ns)
    l2_bytes_per_ns = p.l2_bytes_per_cycle * sms * sheet.clock_hz / 1e9
    memory = dram_ns + ramp_ns + (found + found_too) / l2_bytes_per_ns + 1e-3
    longest = np.maximum(on_sms, memory)  # taken out of the powers, which else overflow
    power = np.where(work.strided, _STRIDED_OVERLAP, p.overlap)
    norm = ((on_sms / longest) ** power + (memory / longest) ** power) ** (1 / power)
    together = p.fixed_ns + np.where(work.strided, _STRIDED_NS, 0.0) + longest * norm
    return together, {
        "ns": np.log2(together),
        "waves": np.log2(blocks / sms) + 0 * together,
        "balance": np.log2(np.maximum(on_sms, 1e-3) / memory),
    }


def _bytes_in_l2(nbytes: Any, room: Any) -> FloatArray:
    """Return how many bytes L2 has: a cliff, softened by what else is in it."""
    nbytes = np.asarray(nbytes, float)
    return np.asarray(nbytes / (1 + (nbytes / room) ** 8))


# ---- the correction ----------------------------------------------------------------------------------------


def knots(words: str) -> tuple[float, ...]:
    """Return the logarithms at which a grid bends: of sizes, or as they are after ``log2``.

    Examples
    --------
    >>> knots("1 2 1024"), knots("log2 -1 0.5")
    ((0.0, 1.0, 10.0), (-1.0, 0.5))
    """
    first, *others = words.split()
    if first == "log2":
        return tuple(map(float, others))
    return tuple(float(np.log2(float(size))) for size in (first, *others))


@dataclass(frozen=True)
class KernelGrid:
    """A multilinear spline: `knots` of each axis (in the feature's log2), `values` in their product.

    Examples
    --------
    >>> grid = KernelGrid(("waves",), ((0.0, 1.0, 3.0),), np.array([0.0, 2.0, 4.0]))
    >>> grid.at({"waves": np.array([-9.0, 0.5, 1.0, 2.0, 9.0])}).tolist()
    [0.0, 1.0, 2.0, 3.0, 4.0]
    """

    axes: tuple[str, ...]
    knots: tuple[tuple[float, ...], ...]
    values: FloatArray = field(default_factory=lambda: np.zeros(0))

    @property
    def shape(self) -> tuple[int, ...]:
        """How many knots each axis has."""
        return tuple(map(len, self.knots))

    def corners(self, features: Mapping[str, FloatArray]) -> tuple[IntArray, FloatArray]:
        """Return for each row the 2^d values it lies between and their weights; constant beyond the ends."""
        rows = len(features[self.axes[0]])
        index: Any = np.zeros((rows, 1), np.int64)
        weight: Any = np.ones((rows, 1))
        for name, ends in zip(self.axes, self.knots, strict=True):
            knots = np.asarray(ends)
            x = np.clip(features[name], knots[0], knots[-1])
            low = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
            share = (x - knots[low]) / (knots[low + 1] - knots[low])
            cell = np.stack([low, low + 1], 1)
            index = (index[:, :, None] * len(knots) + cell[:, None, :]).reshape(rows, -1)
            weight = (weight[:, :, None] * np.stack([1 - share, share], 1)[:, None, :]).reshape(rows, -1)
        return index, weight

    def at(self, features: Mapping[str, FloatArray]) -> FloatArray:
        """Return the value at each row."""
        index, weight = self.corners(features)
        return np.asarray((self.values.ravel()[index] * weight).sum(axis=1))


def grid_correction(grids: Sequence[KernelGrid], features: Mapping[str, FloatArray]) -> FloatArray:
    """Return the sum of grids at each row."""
    return sum((grid.at(features) for grid in grids), np.zeros(len(features["ns"])))


# ---- families and models -----------------------------------------------------------------------------------


Work = Callable[[Sizes, Sheet, str], KernelWork]
"""Of sizes, sheet and data type: what kernels ask of a GPU."""
Features = Callable[[Sizes, Sheet, str], dict[str, FloatArray]]
"""... and, in log2, what their correction depends on besides the features of `physics`."""
Demand = tuple[Work, Features]
"""What a family of kernels is made of."""


@dataclass(frozen=True)
class Family:
    """A family of kernels: what its sizes ask of a GPU, and what its correction depends on.

    Attributes
    ----------
    name : str
    work, features : callable
        Of (sizes, sheet, dtype).
    grids : tuple of KernelGrid
        Without values.
    start : Parameters
        Where a fit begins, and to which it is drawn.
    free : tuple of str
        Parameters that are fitted.
    smooth, ridge : float
        How many rows of data a second difference of a grid, and a value far from 0, weigh in a fit.
    """

    name: str
    work: Work
    features: Features
    grids: tuple[KernelGrid, ...]
    start: Parameters = field(default_factory=Parameters)
    free: tuple[str, ...] = tuple(f.name for f in fields(Parameters))
    smooth: float = 1.0
    ridge: float = 0.05

    @classmethod
    def read(cls, name: str, demand: Demand, row: Mapping[str, Any]) -> Family:
        """Return a family of which ``families.yaml`` has the rest."""
        grids = [KernelGrid(tuple(axes), tuple(map(knots, axes.values()))) for axes in row["grids"]]
        start = Parameters(**row.get("start", {}))
        free = tuple(row["free"].split()) if "free" in row else cls.free
        smooth, ridge = row.get("smooth", cls.smooth), row.get("ridge", cls.ridge)
        return cls(name, *demand, tuple(grids), start, free, smooth, ridge)


SHARED, SLOPE, ALIKE, REACH = 0.4, 0.08, 0.6, 2.0
"""Of the log error on a GPU that was not measured, as parts of the model's half width (standard deviations):
what kernels share, its slope by a doubling of a feature, and what like kernels share; then in how many
doublings likeness falls to 1/e. Chosen by search, as the next; each GPU judged with what was best for the
others gives the same. After 20 kernels 26 of 117 tables of GPUs left out are more than 3 points worse than
measured ones, 11 of them after 200, too; of that error's variance 6 % is bias and 24 % slopes, so what tells
of a bias cannot help. Slopes by the physics' parameters (tried) make errors 1 % smaller, but are slow."""
OWN, OWN_OF_MIXTURE = 0.05, 0.1  # log error that a kernel has for itself; and when models are weighed
_SCALES: Final = (0.2, 0.6, 2.0)  # by which a GPU may differ more or less than the half width says
_KERNELS_ALIKE: Final = 3.0  # which say as much as one that has nothing in common with others
_LENDERS, _LEAST_SHARE = 3, 0.02  # as many as weigh most, and at least so much: others only take time


@dataclass(frozen=True)
class Shift:
    """How much longer kernels take than a model says, from a few that were measured.

    Attributes
    ----------
    points, weights : array
        A row a measured kernel: its features, by name; and its weight.
    scale : float
        Half width of the model (log), scaled by how far this GPU differs.
    lenders : tuple of Model
        Models of other GPUs that are mixed with this one.
    shares : array
        Weight of each lender in the mixture; the model has the rest.
    narrower : float
        Factor of the half width.
    """

    points: FloatArray
    weights: FloatArray
    scale: float
    lenders: tuple[Model, ...] = ()
    shares: FloatArray = field(default_factory=lambda: np.zeros(0))
    narrower: float = 1.0

    def likeness(self, rows: FloatArray) -> FloatArray:
        """Return the covariance of each row with each measured kernel."""
        middle = np.median(self.points, axis=0)
        x, y = (points - middle for points in (rows, self.points))
        along = x @ y.T / len(middle)
        away = (x**2).mean(1)[:, None] + (y**2).mean(1) - 2 * along
        alike = np.exp(-np.sqrt(np.maximum(away, 0)) / REACH)
        return np.asarray(self.scale**2 * (SHARED**2 + SLOPE**2 * along + ALIKE**2 * alike))

    def at(self, features: Mapping[str, FloatArray], apart: FloatArray) -> FloatArray:
        """Return the logarithm by which each row takes longer; `apart`: than each lender says."""
        return np.asarray(apart @ self.shares + self.likeness(_point(features)) @ self.weights)

    def mix(self, lenders: Sequence[Model], r: FloatArray, apart: FloatArray) -> tuple[Shift, FloatArray]:
        """Return the shift from a mixture of the model and its lenders, and the errors that it leaves of `r`.

        Each weighs by how well it predicts measured kernels left out of it; before that, the model weighs as
        much as all lenders together.
        """
        values, vectors = np.linalg.eigh(self.likeness(self.points))
        turned = vectors.T @ (r[:, None] - np.column_stack([np.zeros(len(r)), apart]))
        inverse = 1 / (np.multiply.outer(np.square(_SCALES), np.maximum(values, 0)) + OWN_OF_MIXTURE**2)
        left_out = vectors @ (inverse[:, :, None] * turned) / (inverse @ (vectors**2).T)[:, :, None]
        off = np.maximum(np.abs(left_out).mean(axis=1), 1e-9)  # a row a scale, a column a model
        share = (off.min() / off) ** (len(r) / _KERNELS_ALIKE)
        share[:, 0] *= max(1, len(lenders))
        share /= share.sum()
        scale = self.scale * float(np.exp(share.sum(axis=1) @ np.log(_SCALES)))
        first, others = share[:, 0].sum(), share[:, 1:].sum(axis=0)
        most = [i for i in np.argsort(-others, kind="stable")[:_LENDERS] if others[i] > _LEAST_SHARE]
        few, shares = tuple(lenders[i] for i in most), others[most] / (first + others[most].sum())
        return replace(self, scale=scale, lenders=few, shares=shares), r - apart[:, most] @ shares

    def meet_errors(self, r: FloatArray, half_width: float) -> Shift:
        """Return the shift that meets the errors `r` of the measured kernels; odd ones count less."""
        likeness, noise = self.likeness(self.points), np.full(len(r), OWN**2)
        for _ in range(4):
            inverse = np.linalg.inv(likeness + np.diag(noise))
            weights = inverse @ r
            noise = OWN**2 * np.maximum(1, np.abs(r - likeness @ weights) / OWN)
        left_out = np.abs(weights / np.diag(inverse))  # the error on each row had it not been measured
        known = len(r) / (len(r) + 5)
        narrower = float(np.clip((np.quantile(left_out, 0.8) / half_width) ** known, 0.2, 3))
        return replace(self, weights=weights, narrower=narrower)


_CHUNK: Final = 2048  # rows at a time: what they need stays in the processor's caches


@dataclass(frozen=True)
class Model:
    """A fitted family on a GPU (or a generation), for one data type.

    Attributes
    ----------
    family : Family
    dtype : str
    parameters : Parameters
    grids : tuple of KernelGrid
    spread_edges, spread : tuple of float
        Half width of the 10-90 % interval (log) of rows left out, by log2(ns): one more than edges.
    away : float
        What is added to the half width at a doubling from the nearest of `layers`, or more.
    layers : mapping of str to array
        Sizes of the layers that were measured, a column a size; empty where they are many.
    shift : Shift or None
    """

    family: Family
    dtype: str
    parameters: Parameters
    grids: tuple[KernelGrid, ...] = ()
    spread_edges: tuple[float, ...] = ()
    spread: tuple[float, ...] = (0.5,)
    away: float = 0.0
    layers: Sizes = field(default_factory=dict)
    shift: Shift | None = None

    def predict(self, sizes: Sizes, sheet: Sheet) -> tuple[FloatArray, FloatArray]:
        """Return nanoseconds and the log half width of the 10-90 % interval, a row each."""
        rows = max(np.size(v) for v in sizes.values())
        parts = [slice(begin, begin + _CHUNK) for begin in range(0, max(rows, 1), _CHUNK)]
        ns, width = zip(*(self._predict(take(sizes, part), sheet) for part in parts), strict=True)
        return np.concatenate(ns), np.concatenate(width)

    def _predict(self, sizes: Sizes, sheet: Sheet) -> tuple[FloatArray, FloatArray]:
        log, features = self.log_ns(sizes, sheet)
        width = self.near(features["ns"])
        if self.shift is not None:
            log = log + self.shift.at(features, _apart(self.shift.lenders, sizes, sheet, log))
            width = width * self.shift.narrower
        return np.exp(log), np.hypot(width, self.away * doublings(sizes, self.layers))

    def near(self, log2_ns: FloatArray) -> FloatArray:
        """Return the half width in layers that were measured."""
        return np.asarray(self.spread)[np.searchsorted(self.spread_edges, log2_ns)]

    def log_ns(self, sizes: Sizes, sheet: Sheet) -> tuple[FloatArray, dict[str, FloatArray]]:
        """Return the logarithm of each row's ns before any shift, and all features."""
        base, features = self.base(sizes, sheet)
        correction = grid_correction(self.grids, features)
        if sheet.is_half_rate(self.dtype):  # the fits are of full rate, where power slows long products
            correction = np.where(features["balance"] > 0, np.minimum(correction, 0), correction)
        return np.log(base) + correction, features

    def base(self, sizes: Sizes, sheet: Sheet) -> tuple[FloatArray, dict[str, FloatArray]]:
        """Return what physics alone says in ns, and all features."""
        base, features = physics(self.family.work(sizes, sheet, self.dtype), sheet, self.parameters)
        return base, features | self.family.features(sizes, sheet, self.dtype)

    def wider(self, half_width: float) -> Model:
        """Return the model with another source of error beside its own."""
        return replace(self, spread=tuple(float(np.hypot(s, half_width)) for s in self.spread))

    @classmethod
    def from_json(cls, family: Family, record: Mapping[str, Any]) -> Model:
        """Return the model that a line of a file of fits holds; grids are in hundredths of a logarithm."""
        return cls(
            family,
            record["dtype"],
            replace(family.start, **record["parameters"]),
            tuple(
                replace(g, values=np.asarray(v, float).reshape(g.shape) / 100)
                for g, v in zip(family.grids, record["grids"], strict=True)
            ),
            tuple(record["spread_edges"]),
            tuple(record["spread"]),
            record.get("away", 0.0),
        )


def product_of(flops: FloatArray, numbers: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return m, n, k of products with so many flops, and numbers read and written: m x n by n x n.

    Where numbers are too few, a cube; in multiples of 64 (8 where small), as sizes of models are.
    """
    half = np.maximum(flops, 2) / 2
    numbers = np.maximum(numbers, 3 * half ** (2 / 3))  # 2 m n + n^2 = numbers, m n^2 = half
    angle = np.arccos(np.clip(-half * (3 / numbers) ** 1.5, -1, 1)) / 3
    n = np.maximum(2 * np.sqrt(numbers / 3) * np.cos(angle), 1)
    m, n = _even(np.maximum(half / n**2, 1)), _even(n)
    return m, n, _even(half / (m * n))


def _even(size: FloatArray) -> FloatArray:
    unit = np.where(size >= 256, 64, np.where(size >= 16, 8, 1))
    found: FloatArray = np.maximum(np.rint(size / unit) * unit, 1)
    return found


def take(sizes: Sizes, rows: Any) -> dict[str, Any]:
    """Return some rows of columns (what is no column stays)."""
    return {k: v[rows] if np.ndim(v) else v for k, v in sizes.items()}


def doublings(sizes: Sizes, layers: Sizes) -> FloatArray:
    """Return how far each row is from the nearest layer, in doublings of sizes: at most one.

    Examples
    --------
    >>> doublings({"k": np.array([1024.0, 1536.0, 8192.0])}, {"k": [1024, 2048]}).round(3).tolist()
    [0.0, 0.415, 1.0]
    """
    if not layers:
        return np.zeros(1)
    squares = [np.log2(np.divide.outer(sizes[name], layer)) ** 2 for name, layer in layers.items()]
    return np.asarray(np.minimum(1.0, np.sqrt(sum(squares).min(axis=-1))))


def _point(features: Mapping[str, FloatArray]) -> FloatArray:
    """Return a row's features, in the order of their names."""
    return np.stack([features[name] for name in sorted(features)], 1)


def _apart(lenders: Sequence[Model], sizes: Sizes, sheet: Sheet, log: FloatArray) -> FloatArray:
    """Return how much longer each lender says that kernels take than `log`."""
    apart = [lender.log_ns(sizes, sheet)[0] - log for lender in lenders]
    return np.stack(apart, 1) if apart else np.zeros((len(log), 0))


def shift_model(
    model: Model, sizes: Sizes, sheet: Sheet, ns: NDArray[Any], lenders: Sequence[Model] = ()
) -> Model:
    """Return the model moved towards a few measured kernels: the fewer and less like, the less.

    The error on another GPU is taken for a Gaussian process around a mixture of the model with those of other
    GPUs (`lenders`, of the same table): a bias, a slope, and a part that like kernels share (`Shift`): as
    large as the half width near measured layers, to which those of the kernels belong from now on.
    """
    plain = replace(model, shift=None)
    log, features = plain.log_ns(sizes, sheet)
    half_width, r = float(np.mean(model.near(features["ns"]))), np.log(ns) - log
    shift, r = Shift(_point(features), r, half_width).mix(lenders, r, _apart(lenders, sizes, sheet, log))
    layers = {name: np.append(layer, sizes[name]) for name, layer in model.layers.items()}
    return replace(model, layers=layers, shift=shift.meet_errors(r, half_width))
