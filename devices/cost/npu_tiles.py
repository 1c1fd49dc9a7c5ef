"""Ops on the cores of an NPU: a matrix and a vector unit, fed through a scratchpad by DMA.

::

    memory ──DMA in──► scratchpad ──► matrix unit   kinds in MATRIX_KINDS, data types that it has
              each     of a core  ──► vector unit   everything else
       ◄─────way────── DMA out

`TiledCost` takes the time of an op from its tiles (`devices.cost.npu_tiles`):

* A product of matrices with the attributes ``m``, ``n`` and ``k`` is cut into blocks; of those that fit, the
  ones with which it is over first are taken. The cores divide the result among them.
* Of any other op all operands pass through in equally many tiles, the number with which it is over first, or
  that its attribute ``tiles`` gives. Inputs named in ``resident`` are loaded before, and stay. ``granule`` is
  the smallest tile of an operand (a row that a softmax needs whole), by default the device's.

What an op must move never exceeds the memory's bandwidth, both ways together. An op whose smallest tiles do
not fit, or for whose data type there is no rate, is unknown to the model; `TiledCost.why_not` says why.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import count, islice, product, takewhile
from math import prod
from typing import Final, NamedTuple

import numpy as np

from devices.cost.cost_models import MATRIX, VECTOR, KindEfficiency, Units, units_of
from devices.describe.field_types import BITS, DEFAULT, INDICES, dtype_name, no_peak
from devices.memory.device_memory import round_up
from devices.memory.pool import TILE_ALIGNMENT_BYTES
from sim.base.arrays import UNSET, IntArray, group_pairs
from sim.base.errors import InfeasibleError, UnknownNameError
from sim.base.units import NS_PER_S, format_bytes, round_half_up
from sim.graph.graph import Graph
from sim.machine.device import CostModel, Device, Roofs

# ----------------------------------------------------------------------------------------------------------
# How long an op takes when its operands pass through a scratchpad in tiles.
#
# A core has three things that work at once: DMA that loads, a unit that computes, DMA that stores. With two
# buffers for every operand the next tile is loaded, and the last one stored, while one is computed on; with
# one buffer each tile is loaded, computed and stored before the next is loaded:
#
#     two buffers     load     │ 0 │ 1 │ 2 │ 3 │              l + c + s + (N - 1) max(l, c, s)
#                     compute      │ 0   │ 1   │ 2   │ 3   │
#                     store              │0│   │1│   │2│   │3│
#
#     one buffer      │ load 0 │ compute 0 │ store 0 │ load 1 │ ...        N (l + c + s)
#
# for N equal tiles that take l, c and s each. That is the makespan of a permutation flow shop of equal jobs
# (Johnson, *Optimal two- and three-stage production schedules with setup times included*, Naval Research
# Logistics Quarterly 1, 1954), and two buffers are enough to reach it. Tiles of one op are taken to be equal.
#
# A product of matrices reuses what it has loaded: a block of the result stays in the scratchpad while blocks
# of both operands stream past it, so an operand is loaded once for every block of the other one's columns or
# rows (Lam, Rothberg and Wolf, *The cache performance and optimizations of blocked algorithms*, ASPLOS 1991).
#
# Everything is exact: whole numbers and fractions, rounded once by whoever asks.


class TileStages(NamedTuple):
    """What one core does for an op, all tiles together.

    Attributes
    ----------
    load_ns, compute_ns, store_ns : Fraction
        Time that each of the three takes for all tiles.
    load_setup_ns, store_setup_ns : int
        What starting a DMA costs, for each tile.
    resident_ns : Fraction
        Loading what stays in the scratchpad, before the first tile.
    """

    load_ns: Fraction
    compute_ns: Fraction
    store_ns: Fraction
    load_setup_ns: int = 0
    store_setup_ns: int = 0
    resident_ns: Fraction = Fraction(0)


def tiled_ns(stages: TileStages, tiles: int, *, double_buffered: bool = True) -> Fraction:
    """Return how long an op takes in so many equal tiles, in ns.

    Parameters
    ----------
    stages : TileStages
    tiles : int
        At least 1.
    double_buffered : bool
        Whether loading, computing and storing overlap.

    Examples
    --------
    Four tiles of 10 ns to load, 20 to compute and 5 to store: 10 + 20 + 5 + 3 x 20, or 4 x 35.

    >>> stages = TileStages(Fraction(40), Fraction(80), Fraction(20))
    >>> int(tiled_ns(stages, 4)), int(tiled_ns(stages, 4, double_buffered=False))
    (95, 140)
    """
    load = stages.load_ns / tiles + stages.load_setup_ns
    store = stages.store_ns / tiles + stages.store_setup_ns
    compute = stages.compute_ns / tiles
    one = load + compute + store
    if double_buffered:
        return stages.resident_ns + one + (tiles - 1) * max(load, compute, store)
    return stages.resident_ns + tiles * one


def best_tiles(stages: TileStages, fewest: int, most: int) -> int:
    """Return in how many tiles, from `fewest` to `most`, with two buffers an op is over first; the least of
    equals.

    Finer tiles overlap more and start more DMAs. The time is convex in their number, so bisection finds it.

    Examples
    --------
    Loading 900 ns, computing 100, and 9 ns for each DMA that is started: 900 + 9 N + 100 / N.

    >>> best_tiles(TileStages(Fraction(900), Fraction(100), Fraction(0), load_setup_ns=9), 1, 1000)
    3
    """
    return fewest + bisect_left(
        range(fewest, most), True, key=lambda n: tiled_ns(stages, n) <= tiled_ns(stages, n + 1)
    )


class Blocking(NamedTuple):
    """How a product of matrices, m x k by k x n, passes through a scratchpad.

    Attributes
    ----------
    block : tuple of int
        Rows and columns of the block of the result, and how much of k is loaded at a time.
    tiles : int
        How often a block of each operand is loaded and computed on.
    load_bytes, store_bytes : int
        What is moved in and out, for all tiles together.
    nbytes : int
        Scratchpad taken.
    """

    block: tuple[int, int, int]
    tiles: int
    load_bytes: int
    store_bytes: int
    nbytes: int


def blockings(
    shape: tuple[int, int, int],
    element_bytes: int,
    capacity: int,
    *,
    unit: int = 1,
    double_buffered: bool = True,
) -> list[Blocking]:
    """Return the ways to cut a product that fit a scratchpad.

    Blocks are `unit`, 2 `unit`, 4 `unit`, ... in each of the three directions, up to the whole.

    Parameters
    ----------
    shape : tuple of int
        m, n and k.
    element_bytes : int
        Of both operands and the result.
    capacity : int
        Bytes of the scratchpad.
    unit : int
        Edge of the cube that the matrix unit multiplies at once: blocks are multiples of it.
    double_buffered : bool
        Two buffers for each operand and the result, where there is more than one tile.

    Raises
    ------
    InfeasibleError
        Not even the smallest blocks fit; the message names the least capacity that would do.

    Examples
    --------
    >>> [one.block for one in blockings((32, 16, 16), 2, 3072, unit=16)]
    [(16, 16, 16), (32, 16, 16)]
    """
    m, n, k = shape
    found: list[Blocking] = []
    needs: list[int] = []
    for rows, columns, depth in product(*(_edges(size, unit) for size in shape)):
        across, down = -(-n // columns), -(-m // rows)
        tiles = across * down * -(-k // depth)
        buffers = 2 if double_buffered and tiles > 1 else 1
        sizes = (rows * depth, depth * columns, rows * columns)
        nbytes = buffers * sum(round_up(size * element_bytes, TILE_ALIGNMENT_BYTES) for size in sizes)
        needs.append(nbytes)
        if nbytes <= capacity:
            load = element_bytes * (m * k * across + k * n * down)
            found.append(Blocking((rows, columns, depth), tiles, load, element_bytes * m * n, nbytes))
    if not found:
        product_text = f"a product of {m} x {k} by {k} x {n}"
        raise _too_small(product_text, capacity, min(needs), "not even in the smallest blocks")
    return found


def _edges(size: int, unit: int) -> list[int]:
    """Return doubling edges of blocks, the largest as large as the product."""
    whole = round_up(size, unit)
    return [*takewhile(lambda edge: edge < whole, (unit << i for i in count())), whole]


# ----------------------------------------------------------------------------------------------------------
# Operands of any other op pass in equally many tiles. Finer ones need less SRAM; but there is a smallest tile
# (a granule: one row, one block of the matrix unit), and operands that do not fit even so are refused, with
# the size that would suffice.


class Operand(NamedTuple):
    """A tensor that an op reads or writes through the scratchpad.

    Attributes
    ----------
    nbytes : int
        Total size in bytes.
    granule : int
        The smallest tile, in bytes.
    resident : bool
        Whether it stays in the scratchpad whole (a bias, an accumulator) instead of passing in tiles.
    """

    nbytes: int
    granule: int = 1
    resident: bool = False

    @property
    def most_tiles(self) -> int:
        """Into how many tiles it can be cut."""
        return 1 if self.resident else -(-self.nbytes // self.granule)


def taken_bytes(operands: Sequence[Operand], tiles: int, buffers: int = 2) -> int:
    """Return the bytes of a scratchpad that operands take in so many tiles, which may be smaller at the end.

    What passes in more than one has as many buffers: with 2 the next tile is loaded while this one is
    computed on.

    Examples
    --------
    >>> taken_bytes([Operand(4096, granule=256), Operand(64, resident=True)], 4)
    2112
    """
    total = 0
    for one in operands:
        size = one.nbytes if one.resident else min(one.nbytes, -(-one.most_tiles // tiles) * one.granule)
        depth = 1 if one.resident or tiles == 1 else buffers
        total += depth * round_up(size, TILE_ALIGNMENT_BYTES)
    return total


def fewest_tiles(operands: Sequence[Operand], capacity: int, buffers: int = 2) -> list[int]:
    """Return the fewest tiles in which operands fit a scratchpad: 1 if they do whole, and of more the fewest.

    Parameters
    ----------
    operands : sequence of Operand
    capacity : int
        Bytes of the scratchpad.
    buffers : int
        As for `taken_bytes`.

    Raises
    ------
    InfeasibleError
        Even the smallest tiles do not fit; the message names the least capacity that would do.

    Examples
    --------
    >>> fewest_tiles([Operand(4096, granule=256), Operand(64, resident=True)], capacity=1100)
    [8]
    """
    # One tile needs no second buffer; from two tiles on, more tiles never take more room.
    finest = max([1, *(one.most_tiles for one in operands)])
    whole, least = taken_bytes(operands, 1, buffers), taken_bytes(operands, finest, buffers)
    found = [1] if whole <= capacity else []
    if finest > 1 and least <= capacity:
        several = range(2, finest)
        fits = bisect_left(several, True, key=lambda tiles: taken_bytes(operands, tiles, buffers) <= capacity)
        found.append(several.start + fits)
    if not found:
        raise _too_small("it", capacity, min(whole, least), "not even in the smallest tiles")
    return found


def _too_small(subject: str, capacity: int, need: int, reason: str) -> InfeasibleError:
    """Return an error that says how large a scratchpad would do."""
    have, least = (format_bytes(nbytes, iec=True) for nbytes in (capacity, need))
    return InfeasibleError(
        f"{subject} does not fit a scratchpad of {have}, {reason}; {least} ({need} bytes) would do"
    )


# ----------------------------------------------------------------------------------------------------------

_UNITS: Final = ("matrix", "vector")


class _Work(NamedTuple):
    """What decides how long an op takes: ops that are equal in this take equally long."""

    unit: int
    kind: str
    dtype: str
    flops: int
    bytes_read: int
    bytes_written: int
    shape: tuple[int, int, int] | None
    operands: tuple[Operand, ...]
    tiles: int | None


class _Speeds(NamedTuple):
    """What one core reaches for one kind of op; None is no limit."""

    flop_per_s: Fraction | None
    dma_bytes_per_s: Fraction | None
    bandwidth_bytes_per_s: Fraction | None  # for what must be moved: a cache may have what is loaded again


@dataclass(frozen=True)
class TiledCost(CostModel):
    """Durations of ops whose operands pass through scratchpads; rates and sizes are those of one core.

    Attributes
    ----------
    units : Units
    peak_flop_per_s : tuple of two mappings of str to (Fraction or None)
        Of the matrix and of the vector unit, by data type; None is no limit, an empty mapping neither.
    scratchpad_bytes : tuple of two (int or None)
        Of each unit; None: unlimited, and nothing is cut into tiles (a roofline).
    dma_bytes_per_s, bandwidth_bytes_per_s : Fraction or None
        Of the DMA each way, and of the core's share of the memory both ways together; None is no limit.
    cores : int
        How many cores work on one op.
    double_buffered : bool
    granule_bytes, latency_ns, matrix_block : int
        Smallest tile, what starting a DMA costs, edge of what the matrix unit multiplies at once.
    by_kind : mapping of str to KindEfficiency
    default_dtype : str
    hardware : str
        As that of a `devices.cost.cost_models.RooflineCost`.

    Examples
    --------
    1,000 bytes each way in four tiles at 1 byte/ns, 2 flop/ns: 250 + 500 + 250 + 3 x 500 ns.

    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("one")
    >>> _ = b.input("x", 1000)
    >>> _ = b.op("a", inputs=["x"], outputs=1000, flops=4000, attributes={"tiles": 4})
    >>> peak = {"fp32": Fraction(2 * 10**9)}
    >>> model = TiledCost(
    ...     peak_flop_per_s=(peak, peak), scratchpad_bytes=(2048, 2048), dma_bytes_per_s=Fraction(10**9)
    ... )
    >>> model.durations_ns(b.build(), Device("npu0", "npu")).tolist()
    [2500]
    """

    units: Units = field(default_factory=Units)
    peak_flop_per_s: tuple[Mapping[str, Fraction | None], Mapping[str, Fraction | None]] = ({}, {})
    scratchpad_bytes: tuple[int | None, int | None] = (None, None)
    dma_bytes_per_s: Fraction | None = None
    bandwidth_bytes_per_s: Fraction | None = None
    cores: int = 1
    double_buffered: bool = True
    granule_bytes: int = 64
    latency_ns: int = 0
    matrix_block: int = 1
    by_kind: Mapping[str, KindEfficiency] = field(default_factory=dict)
    default_dtype: str = "fp32"
    hardware: str = ""

    def durations_ns(self, graph: Graph, device: Device) -> IntArray:
        """Return one duration per op in ns; -1 where the smallest tiles do not fit, or without a rate."""
        known: dict[_Work, int] = {}
        out = []
        for work in self._works(graph):
            if work not in known:
                try:
                    known[work] = self._ns(work)
                except InfeasibleError:
                    known[work] = UNSET
            out.append(known[work])
        return np.array(out, dtype=np.int64)

    def why_not(self, graph: Graph, op: int, device: Device) -> str | None:
        """Say why an op cannot run on `device`: its tiles do not fit, or no unit has a rate; else None."""
        try:
            self._ns(next(islice(self._works(graph), op, None)))
        except InfeasibleError as error:
            return str(error)
        return None

    def roofs(self, graph: Graph, device: Device) -> Roofs:
        """Return the peak of each op's unit and data type, and the bandwidth, of all cores together."""
        flop_per_s = np.full(len(graph), np.nan)
        for op, _, rate, _ in self._ops_with_rates(graph):
            flop_per_s[op] = np.nan if rate is None else float(rate * self.cores)
        bandwidth = self.bandwidth_bytes_per_s
        return Roofs(flop_per_s, np.nan if bandwidth is None else float(bandwidth * self.cores))

    def borrowed_rates(self, graph: Graph) -> dict[tuple[str, str], list[int]]:
        """Return the ops that compute in no time or at another data type's rate, by their own and how."""
        rated = self._ops_with_rates(graph)
        return group_pairs(((work.dtype, lent), op) for op, work, _, lent in rated if lent)

    def _ops_with_rates(self, graph: Graph) -> Iterator[tuple[int, _Work, Fraction | None, str]]:
        """Yield the ops that have a rate, each with it and whose it is."""
        for op, work in enumerate(self._works(graph)):
            try:
                rate, substitute = self._rate(work)
            except InfeasibleError:
                continue
            yield op, work, rate, substitute

    def _works(self, graph: Graph) -> Iterator[_Work]:
        """Yield what each op asks for."""
        kinds = [graph.kinds[code] for code in graph.kind_code.tolist()]
        names = [dtype_name(name) for name in (*graph.dtypes, self.default_dtype)]  # the last: of none, -1
        dtypes = [names[code] for code in graph.dtype_code.tolist()]
        flops, read, written = (c.tolist() for c in (graph.flops, graph.bytes_read, graph.bytes_written))
        units = units_of(graph, self.units, self.default_dtype).tolist()
        inputs, outputs = graph.inputs.lists(), graph.outputs.lists()
        nbytes = graph.tensor_nbytes.tolist()
        for op, (unit, kind, dtype) in enumerate(zip(units, kinds, dtypes, strict=True)):
            name, given = graph.op_names[op], graph.attributes.get(op, {})
            sizes = [size for axis in "mnk" if type(size := given.get(axis)) is int and size > 0]
            product = len(sizes) == 3 and "batch" not in given and kind in self.units.kinds
            granule = given.get("granule", self.granule_bytes)
            tiles = given.get("tiles")
            stays = [False] * len(inputs[op])
            if resident := given.get("resident", ()):
                known = [graph.tensor_name(t) for t in inputs[op]]
                for wrong in [one for one in resident if one not in known]:
                    raise UnknownNameError(f"input of op {name!r} in resident", wrong, known).about(
                        name, "resident"
                    )
                stays = [one in resident for one in known]
            moved = [*zip(inputs[op], stays, strict=True), *((t, False) for t in outputs[op])]
            operands = tuple(Operand(nbytes[t], granule, stay) for t, stay in moved if nbytes[t])
            shape = (sizes[0], sizes[1], sizes[2]) if product else None
            yield _Work(unit, kind, dtype, flops[op], read[op], written[op], shape, operands, tiles)

    def _ns(self, work: _Work) -> int:
        """Return the duration of an op.

        Raises
        ------
        InfeasibleError
            Its smallest tiles do not fit, or there is no rate for it.
        """
        rate, _ = self._rate(work)
        known = self.by_kind.get(work.kind) or self.by_kind.get(DEFAULT) or KindEfficiency()
        reached = (
            (rate, known.efficiency),
            (self.dma_bytes_per_s, known.memory_efficiency),
            (self.bandwidth_bytes_per_s, known.memory_efficiency),
        )
        speeds = _Speeds(*(None if peak is None else peak * _exact(share) for peak, share in reached))
        ns = self._product(work, work.shape, speeds) if work.shape else self._stream_ns(work, speeds)
        return round_half_up(ns) + known.overhead_ns

    def _rate(self, work: _Work) -> tuple[Fraction | None, str]:
        """Return the rate at which an op computes, and in words whose it is, if not that of its data type.

        Where a unit has no rates at all, it is ideal; but beside one that has, this is told.

        Raises
        ------
        InfeasibleError
            It computes in a data type for which there is no rate, nor one of fp32.
        """
        rates, others = self.peak_flop_per_s[work.unit], self.peak_flop_per_s[1 - work.unit]
        if not (work.flops or work.shape):
            return None, ""
        product, unit = work.kind in self.units.kinds, _UNITS[work.unit]
        for name in (work.dtype, DEFAULT, "fp32"):
            if name in rates:
                if name != "fp32" or work.dtype == "fp32" or (work.dtype in INDICES and not product):
                    return rates[name], ""
                return rates[name], f"at the rate of fp32 ({unit} unit), as no peak is given for {work.dtype}"
        if rates or (product and work.unit == VECTOR):
            raise InfeasibleError(no_peak(work.dtype, {**others, **rates} if product else rates))
        return None, f"in no time, as {unit}.peak is not given" if others else ""

    def _product(self, work: _Work, shape: tuple[int, int, int], speeds: _Speeds) -> Fraction:
        """Return the time of a product of matrices with the best blocks, in ns.

        The result is divided among the cores as a grid of any shape: 2 x 4 of 8, say.
        """
        m, n, k = shape
        found: list[Fraction] = []
        for rows in range(1, self.cores + 1):
            if self.cores % rows == 0:
                share = (-(-m // rows), -(-n * rows // self.cores), k)
                try:
                    found.append(self._block_of_product(work, shape, share, speeds))
                except InfeasibleError:
                    if rows == self.cores and not found:
                        raise
        return min(found)

    def _block_of_product(
        self, work: _Work, shape: tuple[int, int, int], share: tuple[int, int, int], speeds: _Speeds
    ) -> Fraction:
        """Return the time of one core's part of a product, in ns."""
        m, n, k = share
        unit = self.matrix_block if work.unit == MATRIX else 1
        part = Fraction(prod(round_up(size, unit) for size in share), prod(shape))
        flops = (work.flops or 2 * prod(shape)) * part
        compute_ns = _ns(flops, speeds.flop_per_s)
        element = -(-BITS.get(work.dtype, 32) // 8)  # in whole bytes
        capacity, double = self.scratchpad_bytes[work.unit], self.double_buffered
        if capacity is None:  # without tiles, whatever takes longest, as in a roofline
            load, store = element * (m * k + k * n), element * m * n
            traffic_ns = _ns(load + store, speeds.bandwidth_bytes_per_s)
            return max(*self._stages(load, compute_ns, store, speeds)[:3], traffic_ns)
        times = []
        for way in blockings(share, element, capacity, unit=unit, double_buffered=double):
            stages = self._stages(way.load_bytes, compute_ns, way.store_bytes, speeds)
            times.append(tiled_ns(stages, way.tiles, double_buffered=double))
        whole = element * (shape[0] * k + k * shape[1] + shape[0] * shape[1])
        return max(min(times), _ns(Fraction(whole, self.cores), speeds.bandwidth_bytes_per_s))

    def _stream_ns(self, work: _Work, speeds: _Speeds) -> Fraction:
        """Return the time of an op all of whose operands pass through in equally many tiles, in ns."""
        cores = self.cores
        moved = (work.bytes_read, work.bytes_written)  # of an op without tensors that have a size
        given = work.operands or [Operand(nbytes, self.granule_bytes) for nbytes in moved if nbytes]
        operands = [one if one.resident else one._replace(nbytes=-(-one.nbytes // cores)) for one in given]
        resident = sum(one.nbytes for one in operands if one.resident)
        load = Fraction(max(0, work.bytes_read - resident), cores)
        store = Fraction(work.bytes_written, cores)
        flops = Fraction(work.flops, cores)
        stages = self._stages(load, _ns(flops, speeds.flop_per_s), store, speeds)
        traffic_ns = _ns(load + store + resident, speeds.bandwidth_bytes_per_s)
        if self.scratchpad_bytes[work.unit] is None:
            return max(*stages[:3], traffic_ns)
        stages = stages._replace(resident_ns=_ns(Fraction(resident), speeds.dma_bytes_per_s))
        tiles = self._tiles(work, operands, stages)
        return max(tiled_ns(stages, tiles, double_buffered=self.double_buffered), traffic_ns)

    def _tiles(self, work: _Work, operands: Sequence[Operand], stages: TileStages) -> int:
        """Return the number of tiles in which an op is over first, of those that fit."""
        room = self.scratchpad_bytes[work.unit]
        assert room is not None
        buffers = 2 if self.double_buffered else 1
        if work.tiles is not None:
            need = taken_bytes(operands, work.tiles, buffers)
            if need > room:
                raise _too_small("it", room, need, f"in {work.tiles} tiles (more take less)")
            return work.tiles
        fewest = fewest_tiles(operands, room, buffers)
        if not self.double_buffered:
            return fewest[0]
        finest = max(one.most_tiles for one in operands) if fewest[-1] > 1 else 1
        best = [tiles if tiles == 1 else best_tiles(stages, tiles, finest) for tiles in fewest]
        return min(best, key=lambda tiles: tiled_ns(stages, tiles))

    def _stages(
        self, load: Fraction | int, compute_ns: Fraction, store: Fraction | int, speeds: _Speeds
    ) -> TileStages:
        load_ns, store_ns = (_ns(nbytes, speeds.dma_bytes_per_s) for nbytes in (load, store))
        load_setup_ns, store_setup_ns = (self.latency_ns if nbytes else 0 for nbytes in (load, store))
        return TileStages(load_ns, compute_ns, store_ns, load_setup_ns, store_setup_ns)


def _ns(amount: Fraction | int, per_s: Fraction | None) -> Fraction:
    return Fraction(0) if per_s is None else Fraction(amount) * NS_PER_S / per_s


def _exact(share: float) -> Fraction:
    return Fraction(repr(share))
