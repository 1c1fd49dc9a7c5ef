"""Cost models: the durations of a graph's ops on a device, in the engine's form.

Columns of a graph go in, and one duration per op comes out, -1 if a model does not know the op.
`devices.cost.cost_description` parses their descriptions::

    {fixed: 10us}                          FixedCost      one duration for all, or per kind of op
    roofline (from peak, bandwidth, ...)   RooflineCost   the larger of arithmetic and traffic
    {table: gemm.json.gz}                  TableCost      measured; ops need their shape as attributes
    fitted                                 FittedCost     a GPU's kernels (`devices.cost.kernel_costs`)
    [a, b, ...]                            FirstCost      the first model that knows the op
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from devices.describe.field_types import DEFAULT, INDICES, dtype_name, no_peak
from sim.base.arrays import UNSET, BoolArray, FloatArray, IntArray
from sim.base.errors import InputError
from sim.base.units import NS_PER_S
from sim.graph.graph import Graph
from sim.machine.device import CostModel, Device, Roofs

if TYPE_CHECKING:
    from devices.cost.cost_table import CostTable

_INT64_MAX: Final = int(np.iinfo(np.int64).max)


# ----------------------------------------------------------------------------------------------------------
# Which unit of an NPU's core an op runs on: products of matrices on one, everything else on the other.
#
#     core   scratchpad ──► matrix unit   (cube, systolic array)   matmul, conv, attention, ...
#                       ──► vector unit                            what is elementwise, reductions, moves
#
# A core of such a chip (DaVinci: Liao et al., HPCA 2021; TPU: Jouppi et al., *In-Datacenter Performance
# Analysis of a Tensor Processing Unit*, ISCA 2017) has both, with peak rates an order of magnitude apart.

_PRODUCTS: Final = (
    *("matmul", "gemm", "linear", "bmm", "batch_matmul", "grouped_matmul", "einsum", "attention", "moe"),
    *("lstm", "gru", "rnn", "conv", "conv1d", "conv2d", "conv3d", "conv_transpose"),
)
MATRIX_KINDS: Final = frozenset(
    (*_PRODUCTS, *(f"{kind}_grad" for kind in _PRODUCTS), "conv_input_grad", "conv_weight_grad")
)
"""Kinds of op that are products of matrices at heart. A depthwise convolution is not: it sums within
channels, and runs on vector units."""

MATRIX, VECTOR = 0, 1


class Units(NamedTuple):
    """Which ops run on the matrix unit.

    Attributes
    ----------
    kinds : frozenset of str
        Of ops that are products of matrices.
    dtypes : frozenset of str or None
        That the matrix unit has; others are computed on the vector unit. None: all.
    vector : frozenset of str or None
        That the vector unit has; None: all. What neither has is computed in fp32, if possible on the matrix
        unit.
    """

    kinds: frozenset[str] = MATRIX_KINDS
    dtypes: frozenset[str] | None = None
    vector: frozenset[str] | None = None

    def multiplies(self, dtype: str) -> bool:
        """Return whether products in a data type run on the matrix unit."""
        if self.dtypes is None or dtype in self.dtypes:
            return True
        return "fp32" in self.dtypes and self.vector is not None and dtype not in self.vector


def units_of(graph: Graph, units: Units, default_dtype: str = "fp32") -> IntArray:
    """Return 0 for each op of the matrix unit and 1 for each of the vector unit.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("three")
    >>> for name, kind, dtype in [("a", "matmul", "fp16"), ("b", "matmul", "fp32"), ("c", "relu", "fp16")]:
    ...     _ = b.op(name, kind=kind, dtype=dtype)
    >>> units_of(b.build(), Units(dtypes=frozenset({"fp16"}))).tolist()
    [0, 1, 1]
    """
    names = [dtype_name(name) for name in (*graph.dtypes, default_dtype)]  # the code of none is -1: the last
    kinds = np.array([kind in units.kinds for kind in graph.kinds], dtype=bool)
    dtypes = np.array([units.multiplies(name) for name in names], dtype=bool)
    matrix = kinds[graph.kind_code] & dtypes[graph.dtype_code]
    return np.where(matrix, MATRIX, VECTOR)


# ----------------------------------------------------------------------------------------------------------
# The roofline: the duration of an op from peak rates, with efficiencies that keep real ops below it.
#
# ::
#
#     flop/s                  ________________ peak_flop_per_s * efficiency
#        |                 . '
#        |              . '
#        |           /
#        |        /  bandwidth_bytes_per_s * memory_efficiency
#        |_____/____________________________ flop/byte
#
#     duration = max(flops / flop rate, nbytes / byte rate) + overhead
#
# The roofline is that of Williams, Waterman and Patterson (*Roofline: An Insightful Visual Performance
# Model*, CACM 52(4), 2009).
#
# All arithmetic is on integers. Efficiencies are read as written decimals (0.7 is 7/10), rates become one
# fraction of nanoseconds per flop, and the quotient is rounded half up. Rounding is monotone, so rounding the
# two sides and taking the larger equals rounding the larger: a duration is rounded once. Each parameter
# defaults to the ideal: no limit, no loss, no overhead.


@dataclass(frozen=True)
class KindEfficiency:
    """Efficiencies of one kind of op relative to the peaks; the defaults are the ideal.

    Attributes
    ----------
    efficiency, memory_efficiency : float
        Fraction of the peak flop rate and of the peak bandwidth that large ops reach.
    overhead_ns : int
        Additional time of every op.
    """

    efficiency: float = 1.0
    memory_efficiency: float = 1.0
    overhead_ns: int = 0


IDEAL = KindEfficiency()


def roofline_ns(
    flops: npt.ArrayLike,
    nbytes: npt.ArrayLike,
    *,
    peak_flop_per_s: int | None = None,
    bandwidth_bytes_per_s: int | None = None,
    efficiency: float = 1.0,
    memory_efficiency: float = 1.0,
    overhead_ns: int = 0,
) -> IntArray:
    """Return the time of ops that do `flops` and move `nbytes`, whichever bounds them.

    Parameters
    ----------
    flops, nbytes : array_like of int, broadcast together
        Work and traffic of each op; not negative.
    peak_flop_per_s, bandwidth_bytes_per_s : int or None
        The device's peak rates; None is "no limit" and costs no time.
    efficiency, memory_efficiency : float
        Fraction of each peak that a large op reaches, in (0, 1].
    overhead_ns : int
        Added to every op.

    Returns
    -------
    numpy.ndarray of int64
        Nanoseconds, in the broadcast shape, rounded half up.

    Raises
    ------
    InputError
        If a size is negative or not whole, a rate is not positive, an efficiency is outside (0, 1], or
        the result exceeds 64 bits.

    Examples
    --------
    A product of 4096 x 4096 x 4096 in bf16 on an H200 (989.4 TFLOP/s, 4.8 TB/s) is bound by arithmetic, one
    of 1 x 4096 x 4096 by memory.

    >>> peaks = {"peak_flop_per_s": 989_400_000_000_000, "bandwidth_bytes_per_s": 4_800_000_000_000}
    >>> roofline_ns([2 * 4096**3, 2 * 4096**2], [6 * 4096**2, 2 * 4096**2 + 4 * 4096], **peaks)
    array([138911,   6994])
    """
    compute = _side_ns("flops", flops, peak_flop_per_s, efficiency)
    memory = _side_ns("nbytes", nbytes, bandwidth_bytes_per_s, memory_efficiency)
    if overhead_ns < 0:
        raise InputError(f"overhead_ns is {overhead_ns}; an overhead is not negative")
    longest: IntArray = np.maximum(compute, memory)
    if longest.size and int(longest.max()) > _INT64_MAX - overhead_ns:
        raise InputError(f"with overhead_ns={overhead_ns} a duration exceeds 64 bits of nanoseconds")
    return longest + np.int64(overhead_ns)


def _side_ns(name: str, sizes: npt.ArrayLike, rate: int | None, efficiency: float) -> IntArray:
    """Return ``size / (rate * efficiency)`` in nanoseconds, rounded half up."""
    given = np.asarray(sizes)
    if given.size and given.dtype.kind not in "iu":
        raise InputError(f"{name} must be whole numbers, not {given.dtype}: a fraction is nobody's cost")
    array = given.astype(np.int64)
    if array.size and int(array.min()) < 0:
        raise InputError(f"{name} has {int(array.min())}; a size is not negative")
    if not 0 < efficiency <= 1:
        raise InputError(f"the efficiency for {name} is {efficiency}; it is a share of the peak, in (0, 1]")
    if rate is None:
        return np.zeros(array.shape, np.int64)
    if rate <= 0:
        raise InputError(f"the rate for {name} is {rate} per second; it must be positive (None: no limit)")
    ns_per_unit = Fraction(NS_PER_S) / (Fraction(rate) * Fraction(repr(float(efficiency))))
    return _scaled_half_up(array, ns_per_unit)


def _scaled_half_up(sizes: IntArray, factor: Fraction) -> IntArray:
    """Return ``sizes * factor`` rounded half up, exactly.

    With factor = p/q and size = a*q + r, the product is a*p + r*p/q: the second term is small, so int64
    suffices for usual rates; otherwise Python's integers do the same.
    """
    p, q = factor.numerator, factor.denominator
    largest = int(sizes.max(initial=0))
    if 2 * q * p + q <= _INT64_MAX and (largest // q + 1) * p <= _INT64_MAX:
        whole, rest = np.divmod(sizes, np.int64(q))
        return np.asarray(whole * np.int64(p) + (2 * rest * np.int64(p) + np.int64(q)) // np.int64(2 * q))
    if (2 * largest * p + q) // (2 * q) > _INT64_MAX:
        raise InputError("a duration exceeds 64 bits of nanoseconds (292 years); check the rates' units")
    exact = [(2 * size * p + q) // (2 * q) for size in sizes.ravel().tolist()]
    return np.array(exact, dtype=np.int64).reshape(sizes.shape)


# ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FixedCost(CostModel):
    """Every op takes the same time, or every op of a kind does.

    Attributes
    ----------
    default_ns : int or None
        Duration of kinds not named; None: unknown.
    by_kind_ns : mapping of str to int

    Examples
    --------
    >>> from sim import Device, GraphBuilder
    >>> b = GraphBuilder("two")
    >>> _ = b.op("a", kind="matmul"); _ = b.op("b", kind="add")
    >>> FixedCost(by_kind_ns={"matmul": 5000}).durations_ns(b.build(), Device("gpu0")).tolist()
    [5000, -1]
    """

    by_name = False

    default_ns: int | None = None
    by_kind_ns: Mapping[str, int] = field(default_factory=dict)

    def durations_ns(self, graph: Graph, device: Device) -> IntArray:
        """Return one duration per op in ns; -1 for an unknown kind."""
        default = UNSET if self.default_ns is None else self.default_ns
        table = np.array([self.by_kind_ns.get(kind, default) for kind in graph.kinds], dtype=np.int64)
        return table[graph.kind_code]


@dataclass(frozen=True)
class RooflineCost(CostModel):
    """The roofline (`roofline_ns`), with a roof per data type.

    An op takes the longer of its arithmetic (``flops``) and its traffic (``bytes_read`` +
    ``bytes_written``), plus an overhead. A data type that the device has no rate for runs at the rate of
    `DEFAULT`, else of fp32: integers and booleans are mostly index arithmetic, and a narrow float that the
    hardware lacks is computed in fp32. Without any of these the op is unknown to the model.

    Attributes
    ----------
    peak_flop_per_s : mapping of str to (int or None)
        Peak rate by short name of a data type; None is no limit. An empty mapping sets no limit at all.
    bandwidth_bytes_per_s : int or None
        Memory bandwidth; None is no limit.
    by_kind : mapping of str to KindEfficiency
        Efficiency of each kind of op; `DEFAULT` for other kinds, otherwise the ideal.
    default_dtype : str
        Data type of ops that name none.
    hardware : str
        Preset whose peaks these are, if they stand for a real GPU; else empty.
    least_ns : int
        Least duration of an op with any work, if its kind has no overhead, which is such a least.

    Examples
    --------
    >>> from sim import Device, GraphBuilder
    >>> b = GraphBuilder("two")
    >>> _ = b.op("a", flops=10**9, dtype="fp32"); _ = b.op("b", flops=10**9, dtype="bf16")
    >>> model = RooflineCost({"fp32": 10**13, "bf16": 10**14})
    >>> model.durations_ns(b.build(), Device("gpu0")).tolist()
    [100000, 10000]
    """

    by_name = False

    peak_flop_per_s: Mapping[str, int | None] = field(default_factory=dict)
    bandwidth_bytes_per_s: int | None = None
    by_kind: Mapping[str, KindEfficiency] = field(default_factory=dict)
    default_dtype: str = "fp32"
    hardware: str = ""
    least_ns: int = 0

    def durations_ns(self, graph: Graph, device: Device) -> IntArray:
        """Return one duration per op in ns, rounded half up; -1 for a data type without a rate."""
        nbytes = graph.bytes_read + graph.bytes_written
        duration_ns = np.full(len(graph), UNSET)
        for rows, kind, _, peak in self._roofs(graph):
            known = self.by_kind.get(kind) or self.by_kind.get(DEFAULT) or IDEAL
            found = roofline_ns(
                graph.flops[rows],
                nbytes[rows],
                peak_flop_per_s=peak,
                bandwidth_bytes_per_s=self.bandwidth_bytes_per_s,
                **vars(known),
            )
            if self.least_ns and not known.overhead_ns:
                does = (graph.flops[rows] > 0) | (nbytes[rows] > 0)
                found = np.where(does, np.maximum(found, self.least_ns), found)
            duration_ns[rows] = found
        return duration_ns

    def roofs(self, graph: Graph, device: Device) -> Roofs:
        """Return the peak of each op's data type, and the bandwidth."""
        flop_per_s = np.full(len(graph), np.nan)
        for rows, _, _, peak in self._roofs(graph):
            flop_per_s[rows] = np.nan if peak is None else float(peak)
        bandwidth = self.bandwidth_bytes_per_s
        return Roofs(flop_per_s, np.nan if bandwidth is None else float(bandwidth))

    def borrowed_rates(self, graph: Graph) -> dict[tuple[str, str], list[int]]:
        """Return the ops that compute in no time or at another data type's rate, by data type and substitute.

        Integers of at least 16 bits and booleans are not included, except products: they are mostly index
        arithmetic.
        """
        rates = self.peak_flop_per_s.keys()
        found: dict[tuple[str, str], list[int]] = {}
        for rows, kind, dtype, _ in self._roofs(graph):
            if not {dtype, DEFAULT} & rates and (dtype not in INDICES or kind in MATRIX_KINDS):
                lent = f"at the rate of fp32, as peak has none for {dtype}"
                substitute = lent if rates else "in no time, as peak is not given"
                found.setdefault((dtype, substitute), []).extend(rows[graph.flops[rows] > 0].tolist())
        return found

    def why_not(self, graph: Graph, op: int, device: Device) -> str | None:
        """Return why an op cannot run on `device`, if its data type has no rate; else None."""
        if not any(op in rows for rows, *_ in self._roofs(graph)):
            code = graph.dtype_code[op]
            return no_peak(
                dtype_name(graph.dtypes[code] if code >= 0 else self.default_dtype), self.peak_flop_per_s
            )
        return None

    def _roofs(self, graph: Graph) -> Iterator[tuple[npt.NDArray[np.intp], str, str, int | None]]:
        """Return the ops of each data type and kind, both, and the peak rate, except those without a rate."""
        peaks = self.peak_flop_per_s
        for rows, kind, name in alike(graph, self.default_dtype):
            roof = next((d for d in (name, DEFAULT, "fp32") if d in peaks), None)
            if roof is None and peaks:
                rows = rows[graph.flops[rows] == 0]  # traffic alone needs no arithmetic rate
            yield rows, kind, name, None if roof is None else peaks[roof]


def alike(graph: Graph, default_dtype: str) -> Iterator[tuple[npt.NDArray[np.intp], str, str]]:
    """Yield the ops of each kind and data type, with both: a few dozen in the largest graph."""
    if not len(graph):
        return
    pair = (graph.dtype_code + 1) * len(graph.kinds) + graph.kind_code
    order = np.argsort(pair, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(pair[order])) + 1):
        dtype, kind = divmod(int(pair[rows[0]]), len(graph.kinds))
        yield rows, graph.kinds[kind], dtype_name(graph.dtypes[dtype - 1] if dtype else default_dtype)


@dataclass(frozen=True)
class TableCost(CostModel):
    """Measured durations of the kinds of op that have a table; other ops are unknown to it.

    An op is looked up if its attributes have a whole number for every axis of the table: ``m``, ``n`` and
    ``k`` for a matrix product. An op without them, or with a data type not measured, is unknown. Overhead
    that a table includes but the device also adds is subtracted (`devices.cost.cost_table`).

    Attributes
    ----------
    tables : tuple of CostTable
        Tables of different kinds of op or data types.

    Examples
    --------
    >>> from devices.cost.cost_table import Axis, CostTable
    >>> from sim import Device, GraphBuilder
    >>> table = CostTable.from_rows("toy", "copy", [Axis("nbytes")], [(1024, 1000), (4096, 2000)])
    >>> b = GraphBuilder("two")
    >>> _ = b.op("a", kind="copy", attributes={"nbytes": 4096}); _ = b.op("b", kind="add")
    >>> TableCost((table,)).durations_ns(b.build(), Device("gpu0")).tolist()
    [2000, -1]
    """

    tables: tuple[CostTable, ...]

    def durations_ns(self, graph: Graph, device: Device) -> IntArray:
        """Return one duration per op in ns; -1 for an op without a table or without the table's axes."""
        duration_ns = np.full(len(graph), UNSET)
        for table in self.tables:
            axes = [axis.name for axis in table.axes]
            covered = table.measured.covers(graph) & graph.is_kind(table.kind)
            sizes = {
                op: [given[axis] for axis in axes]
                for op, given in sorted(graph.attributes.items())
                if covered[op] and _is_measured(given, axes)
            }
            if sizes:
                shapes = dict(zip(axes, np.array([*sizes.values()], np.int64).T, strict=True))
                duration_ns[[*sizes]] = table.measured.alone_ns(np.asarray(table.lookup(**shapes)), device)
        return duration_ns


def _is_measured(attributes: Mapping[str, Any], axes: Sequence[str]) -> bool:
    """Whether an op has all axes, and differs in nothing else from those measured (batch, a foreign past)."""
    if not all(isinstance(attributes.get(axis), int) for axis in axes):
        return False
    if "seq_len" in axes:
        seq_len = attributes["seq_len"]
        whole = "kv_len" in axes or attributes.get("kv_len", seq_len) == seq_len
        return whole and ("causal" in axes or attributes.get("causal", True) is not False)
    return "m" not in axes or "batch" in axes or "batch" not in attributes


def models_of(cost: CostModel | None) -> tuple[CostModel, ...]:
    """Return the models that a device asks, in order."""
    if cost is None:
        return ()
    return cost.models if isinstance(cost, FirstCost) else (cost,)


def first_to_know(
    cost: CostModel | None, graph: Graph, device: Device
) -> Iterator[tuple[CostModel, BoolArray]]:
    """Yield the models that a device asks, each with the ops whose durations it determines."""
    missing = np.ones(len(graph), np.bool_)
    for model in models_of(cost):
        known = missing & (model.durations_ns(graph, device) != UNSET)
        yield model, known
        missing &= ~known


@dataclass(frozen=True)
class FirstCost(CostModel):
    """Several models in order: the first that knows an op determines its cost."""

    models: tuple[CostModel, ...]

    @property
    def by_name(self) -> bool:  # type: ignore[override]
        """Whether any of the models depends on names."""
        return any(model.by_name for model in self.models)

    @property
    def knows_blocks(self) -> bool:
        """Whether any of the models knows thread blocks."""
        return any(model.knows_blocks for model in self.models)

    def durations_ns(self, graph: Graph, device: Device) -> IntArray:
        """Return one duration per op in ns; -1 where no model knows the op."""
        return self._first(graph, lambda model: model.durations_ns(graph, device))

    def blocks(self, graph: Graph, device: Device) -> IntArray:
        """Return the thread blocks of each op by the first model that knows them; -1 if none does."""
        return self._first(graph, lambda model: model.blocks(graph, device))

    def _first(self, graph: Graph, ask: Callable[[CostModel], IntArray]) -> IntArray:
        found = np.full(len(graph), UNSET)
        for model in self.models:
            missing = found == UNSET
            if not missing.any():
                break
            found = np.where(missing, ask(model), found)
        return found

    def spread(self, graph: Graph, device: Device) -> FloatArray:
        """Return the uncertainty of each duration, from the model that gives it."""
        found = np.full(len(graph), np.nan)
        for model, known in first_to_know(self, graph, device):
            if type(model).spread is not CostModel.spread:
                found = np.where(known, model.spread(graph, device), found)
        return found

    def roofs(self, graph: Graph, device: Device) -> Roofs:
        """Return each op's peak from the first model that has one, and the first bandwidth."""
        flop_per_s, bytes_per_s = CostModel().roofs(graph, device)
        for model in self.models:
            found = model.roofs(graph, device)
            flop_per_s = np.where(np.isnan(flop_per_s), found.flop_per_s, flop_per_s)
            bytes_per_s = found.bytes_per_s if np.isnan(bytes_per_s) else bytes_per_s
        return Roofs(flop_per_s, bytes_per_s)

    def why_not(self, graph: Graph, op: int, device: Device) -> str | None:
        """Return the reason of the first model that refuses an op with one."""
        reasons = (model.why_not(graph, op, device) for model in self.models)
        return next((reason for reason in reasons if reason is not None), None)
