"""How long an op takes when its operands pass through a scratchpad in tiles.

A core has three things that work at once: DMA that loads, a unit that computes, DMA that stores. With two
buffers for every operand the next tile is loaded, and the last one stored, while one is computed on; with one
buffer each tile is loaded, computed and stored before the next is loaded::

    two buffers     load     │ 0 │ 1 │ 2 │ 3 │              l + c + s + (N - 1) max(l, c, s)
                    compute      │ 0   │ 1   │ 2   │ 3   │
                    store              │0│   │1│   │2│   │3│

    one buffer      │ load 0 │ compute 0 │ store 0 │ load 1 │ ...        N (l + c + s)

for N equal tiles that take l, c and s each. That is the makespan of a permutation flow shop of equal jobs
(Johnson, *Optimal two- and three-stage production schedules with setup times included*, Naval Research
Logistics Quarterly 1, 1954), and two buffers are enough to reach it. Tiles of one op are taken to be equal.

A product of matrices reuses what it has loaded: a block of the result stays in the scratchpad while blocks of
both operands stream past it, so an operand is loaded once for every block of the other one's columns or rows
(Lam, Rothberg and Wolf, *The cache performance and optimizations of blocked algorithms*, ASPLOS 1991).

Everything is exact: whole numbers and fractions, rounded once by whoever asks.
"""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction
from itertools import count, product, takewhile
from typing import NamedTuple

from devices.memory.allocators.scratchpad import ALIGNMENT_BYTES
from devices.memory.blocks import round_up
from sim.words.errors import InfeasibleError
from sim.words.units import format_bytes

__all__ = ["Blocking", "Stages", "best_tiles", "blockings", "tiled_ns"]


class Stages(NamedTuple):
    """What one core does for an op, all tiles together.

    Attributes
    ----------
    load_ns, compute_ns, store_ns : Fraction
        Time that each of the three takes for all tiles.
    setup_ns : int
        What starting a DMA costs, for each tile and each way that it is moved.
    resident_ns : Fraction
        Loading what stays in the scratchpad, before the first tile.
    """

    load_ns: Fraction
    compute_ns: Fraction
    store_ns: Fraction
    setup_ns: int = 0
    resident_ns: Fraction = Fraction(0)


def tiled_ns(stages: Stages, tiles: int, *, double_buffered: bool = True) -> Fraction:
    """Return how long an op takes in so many equal tiles, in ns.

    Parameters
    ----------
    stages : Stages
    tiles : int
        At least 1.
    double_buffered : bool
        Whether loading, computing and storing overlap.

    Examples
    --------
    Four tiles of 10 ns to load, 20 to compute and 5 to store: 10 + 20 + 5 + 3 x 20, or 4 x 35.

    >>> stages = Stages(Fraction(40), Fraction(80), Fraction(20))
    >>> int(tiled_ns(stages, 4)), int(tiled_ns(stages, 4, double_buffered=False))
    (95, 140)
    """
    load = stages.load_ns / tiles + (stages.setup_ns if stages.load_ns else 0)
    store = stages.store_ns / tiles + (stages.setup_ns if stages.store_ns else 0)
    compute = stages.compute_ns / tiles
    one = load + compute + store
    if double_buffered:
        return stages.resident_ns + one + (tiles - 1) * max(load, compute, store)
    return stages.resident_ns + tiles * one


def best_tiles(stages: Stages, fewest: int, most: int, *, double_buffered: bool = True) -> int:
    """Return the number of tiles, from `fewest` to `most`, in which an op is over first; the least of equals.

    Finer tiles overlap more and start more DMAs. The time is convex in their number, so bisection finds it.

    Examples
    --------
    Loading 900 ns, computing 100, and 9 ns for each DMA that is started: 900 + 9 N + 100 / N.

    >>> best_tiles(Stages(Fraction(900), Fraction(100), Fraction(0), setup_ns=9), 1, 1000)
    3
    """
    if not double_buffered:
        return fewest  # every further tile only starts more DMAs

    def time(tiles: int) -> Fraction:
        return tiled_ns(stages, tiles)

    return fewest + bisect_left(range(fewest, most), True, key=lambda n: time(n) <= time(n + 1))


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
    capacity: int | None,
    *,
    unit: int = 1,
    double_buffered: bool = True,
    alignment: int = ALIGNMENT_BYTES,
) -> list[Blocking]:
    """Return the ways to cut a product that fit a scratchpad.

    Blocks are `unit`, 2 `unit`, 4 `unit`, ... in each of the three directions, up to the whole.

    Parameters
    ----------
    shape : tuple of int
        m, n and k.
    element_bytes : int
        Of both operands and the result.
    capacity : int or None
        Bytes of the scratchpad; None: unlimited.
    unit : int
        Edge of the cube that the matrix unit multiplies at once: blocks are multiples of it.
    double_buffered : bool
        Two buffers for each operand and the result, where there is more than one tile.
    alignment : int
        Of every buffer, in bytes.

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
    least: int | None = None
    for rows, columns, depth in product(*(_edges(size, unit) for size in shape)):
        across, down = -(-n // columns), -(-m // rows)
        tiles = across * down * -(-k // depth)
        buffers = 2 if double_buffered and tiles > 1 else 1
        sizes = (rows * depth, depth * columns, rows * columns)
        nbytes = buffers * sum(round_up(size * element_bytes, alignment) for size in sizes)
        least = nbytes if least is None else min(least, nbytes)
        if capacity is None or nbytes <= capacity:
            load = element_bytes * (m * k * across + k * n * down)
            found.append(Blocking((rows, columns, depth), tiles, load, element_bytes * m * n, nbytes))
    if not found:
        have, need = (format_bytes(size, iec=True) for size in (capacity, least))
        raise InfeasibleError(
            f"a product of {m} x {k} by {k} x {n} does not fit a scratchpad of {have}, not even in the "
            f"smallest blocks; {need} ({least} bytes) would do"
        )
    return found


def _edges(size: int, unit: int) -> list[int]:
    """Return doubling edges of blocks, the largest as large as the product."""
    whole = round_up(size, unit)
    return [*takewhile(lambda edge: edge < whole, (unit << i for i in count())), whole]
