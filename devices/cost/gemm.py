"""How long a matrix product takes on a GPU: tiles over SMs, waves, split k, and the memory beside them.

::

          n                     one thread block computes one tile, k being walked in full or in `split` parts
      +---+---+---+
    m | 0 | 1 | 2 |  tiles --> SMs:  wave 1: 0 1 2 ... 131      time = waves * (k/split * t_k + epilogue)
      +---+---+---+                  wave 2: 132 ...                   (+ adding up the parts)
      | 3 | 4 | 5 |
      +---+---+---+

    t_k, per element of k, is the longest of   the tensor cores     2 * tile_m * tile_n / SM flop rate
                                               loading operands     2 B * (tile_m + tile_n) / SM load rate
                                               the pipeline's latency

The library is taken to choose the best of a few tile shapes and splits. Beside the SMs the matrices come
from DRAM, but the left one (the activations) is still in the L2 cache where it fits: its producer has just
written it. Both go on at once, imperfectly. Long products lose clock to the power limit.

Sources: NVIDIA, *Matrix Multiplication Background User's Guide* (DA-08690) for tile and wave quantisation;
Osama et al., *Stream-K* (PPoPP 2023) for splitting k. That activations are found in the L2 cache is an
observation on the measured table: an 8192 x k by k x 32 product falls from 6 to
4 TB/s as its left matrix passes 45 MB.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from devices.cost.parameters import parameter
from sim.base.errors import InputError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

TILES = (
    *((64, n) for n in (8, 16, 32, 64, 128, 256)),
    *((128, n) for n in (32, 64, 128, 192, 256)),
    *((256, n) for n in (64, 128)),
)
"""Tile shapes (rows, columns) that the model chooses from: those of Hopper's wgmma kernels."""
SPLITS = (1, 2, 4, 8, 16, 32)
"""Into how many parts k may be split."""
_CANDIDATES = np.array([(m, n, split) for m, n in TILES for split in SPLITS], dtype=float).T
_CHUNK = 2048  # shapes at a time: bounds each temporary to about a megabyte
_ELEMENT = 2  # bytes of a bf16 number
_PARTIAL = 8  # bytes to write and read back one fp32 partial sum


@dataclass(frozen=True)
class GemmParameters:
    """What is particular to a GPU and its library; :mod:`studies.h200.fit` finds the values."""

    launch_ns: float = parameter(
        2300, 500, 10000, "what the smallest product takes: launch, prologue and drain of an empty kernel"
    )
    k_latency_ns: float = parameter(
        0.9, 0.05, 5, "least time for a thread block to advance by one element of k, however small its tile"
    )
    sm_flop_per_s: float = parameter(
        6.5e12, 3e12, 7.495e12, "rate of one SM's tensor cores on a full tile, at full clock"
    )
    sm_load_bytes_per_s: float = parameter(
        9e10, 2e10, 4e11, "rate at which one SM is fed with operands from L2, multicast included"
    )
    epilogue_ns: float = parameter(500, 0, 5000, "filling the pipeline and writing a tile of 128 x 128")
    split_ns: float = parameter(1500, 100, 10000, "what splitting k costs: one more kernel or a barrier")
    quantisation: float = parameter(
        0.5, 0, 1, "share of the last wave's idle SMs that is really lost (1: the wave model, 0: fluid)"
    )
    bandwidth_bytes_per_s: float = parameter(4.2e12, 2e12, 4.8e12, "DRAM bandwidth of large products")
    bandwidth_half_bytes: float = parameter(
        4e6, 1e4, 5e7, "traffic at which DRAM reaches half its ramp-up cost, this over the bandwidth"
    )
    l2_bytes: float = parameter(4e7, 5e6, 1e8, "activations up to this size are found in the L2 cache")
    l2_bytes_per_s: float = parameter(7e12, 3e12, 3e13, "L2 bandwidth for activations and partial sums")
    overlap: float = parameter(
        3, 1, 10, "how well computing and memory overlap: exponent p of (a^p + b^p)^(1/p); 1 is not at all"
    )
    throttle: float = parameter(0.2, 0, 0.5, "share of the rate that long products lose to the power limit")
    throttle_half_flops: float = parameter(1e12, 1e10, 1e13, "work at which half of that is lost")


def gemm_ns(
    m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, parameters: GemmParameters, *, sm_count: int = 132
) -> IntArray:
    """Return the duration of products of an m x k by a k x n matrix in bf16.

    Parameters
    ----------
    m, n, k : array_like of int, broadcast together
        Rows (tokens), columns (outputs) and the summed dimension (inputs); positive.
    parameters : GemmParameters
        Of the device; ``devices.cost.fitted.load_fit().gemm`` for the H200.
    sm_count : int
        How many SMs the kernel may use. 132 is a whole H100 or H200; a partition has fewer.

    Returns
    -------
    ndarray of int64
        Nanoseconds, rounded half up, in the broadcast shape.

    Raises
    ------
    InputError
        A size is not a positive whole number, or there is no SM.
    """
    duration = _in_chunks(_gemm, (m, n, k), parameters, sm_count)
    rounded: IntArray = np.floor(duration + 0.5).astype(np.int64)
    return rounded


def gemm_blocks(
    m: npt.ArrayLike, n: npt.ArrayLike, k: npt.ArrayLike, parameters: GemmParameters, *, sm_count: int = 132
) -> IntArray:
    """Return in how many thread blocks, one an SM, the model computes a product: its grid.

    Tiles of the shape and split with which the SMs are done first; those of a product that waits for the
    memory are not told from others that would do as well.

    Parameters
    ----------
    m, n, k, parameters, sm_count
        As for `gemm_ns`.

    Raises
    ------
    InputError
        A size is not a positive whole number, or there is no SM.

    Examples
    --------
    >>> from devices.cost.fitted import load_fit
    >>> h200 = load_fit("h200").gemm
    >>> int(gemm_blocks(8192, 8192, 8192, h200)), int(gemm_blocks(64, 64, 64, h200)) < 132
    (8192, True)
    """
    return _in_chunks(_blocks, (m, n, k), parameters, sm_count).astype(np.int64)


def _in_chunks(
    model: Callable[..., FloatArray],
    sizes: tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike],
    parameters: GemmParameters,
    sm_count: int,
) -> FloatArray:
    """Return what a model says of shapes, some at a time, in their broadcast shape."""
    if sm_count < 1:
        raise InputError(f"a kernel on {sm_count} SMs never ends; sm_count is at least 1")
    given = [np.asarray(size) for size in sizes]
    for name, size in zip("mnk", given, strict=True):
        if size.size and (size.dtype.kind not in "iu" or int(size.min()) < 1):
            raise InputError(f"{name} of a matrix product must be positive whole numbers, not {size}")
    rows, columns, depth = np.broadcast_arrays(*given)
    flat = [array.astype(float).ravel() for array in (rows, columns, depth)]
    out = np.empty(flat[0].size)
    for begin in range(0, out.size, _CHUNK):
        part = slice(begin, begin + _CHUNK)
        out[part] = model(flat[0][part], flat[1][part], flat[2][part], parameters, sm_count)
    return out.reshape(rows.shape)


def _gemm(m: FloatArray, n: FloatArray, k: FloatArray, p: GemmParameters, sm_count: int) -> FloatArray:
    on_sms = _each_ns(m, n, k, p, sm_count).min(axis=1)
    in_memory = _memory_ns(m, n, k, p)
    together: FloatArray = p.launch_ns + (on_sms**p.overlap + in_memory**p.overlap) ** (1 / p.overlap)
    return together


def _blocks(m: FloatArray, n: FloatArray, k: FloatArray, p: GemmParameters, sm_count: int) -> FloatArray:
    """Return the thread blocks of the best tile and split, shape (shapes,)."""
    tile_m, tile_n, split = _CANDIDATES[:, _each_ns(m, n, k, p, sm_count).argmin(axis=1)]
    blocks: FloatArray = np.ceil(m / tile_m) * np.ceil(n / tile_n) * split
    return blocks


def _each_ns(m: FloatArray, n: FloatArray, k: FloatArray, p: GemmParameters, sm_count: int) -> FloatArray:
    """Return the time on the SMs with each tile and split, shape (shapes, candidates)."""
    tile_m, tile_n, split = _CANDIDATES
    flops = 2 * m * n * k
    sm_flop_per_ns = p.sm_flop_per_s / 1e9 * (1 - p.throttle * flops / (flops + p.throttle_half_flops))
    load_ns = _ELEMENT * (tile_m + tile_n) / (p.sm_load_bytes_per_s / 1e9)
    k_ns = np.maximum(2 * tile_m * tile_n / sm_flop_per_ns[:, None], np.maximum(load_ns, p.k_latency_ns))
    blocks = np.ceil(m[:, None] / tile_m) * np.ceil(n[:, None] / tile_n) * split / sm_count
    waves = np.maximum(1, p.quantisation * np.ceil(blocks) + (1 - p.quantisation) * blocks)
    tile_ns = np.ceil(k[:, None] / split) * k_ns + p.epilogue_ns * tile_m * tile_n / 128**2
    partials_ns = _PARTIAL * split * (m * n)[:, None] / (p.l2_bytes_per_s / 1e9)
    joining_ns = np.where(split > 1, p.split_ns + partials_ns, 0)
    every: FloatArray = waves * tile_ns + joining_ns
    return every


def _memory_ns(m: FloatArray, n: FloatArray, k: FloatArray, p: GemmParameters) -> FloatArray:
    """Return the time that the three matrices take to move, shape (shapes,)."""
    activations, weights, results = _ELEMENT * m * k, _ELEMENT * n * k, _ELEMENT * m * n
    cached = activations / (1 + (activations / p.l2_bytes) ** 8)  # a cliff, softened by what else is in L2
    from_dram = activations - cached + weights + results
    ramp = p.bandwidth_half_bytes * from_dram / (from_dram + p.bandwidth_half_bytes)
    dram_ns: FloatArray = (from_dram + ramp) / (p.bandwidth_bytes_per_s / 1e9)
    return dram_ns + cached / (p.l2_bytes_per_s / 1e9)
