"""How long prefill attention takes on a GPU: append to the cache, then tiles of queries by blocks of keys.

::

        keys -->                                      two kernels, one after the other:
      +----------+
      |##        |  one thread block computes a            1. append: rotate q and k, write k and v to
    q |####      |  tile of queries against the               the cache (memory, and a cost per token)
      |  ####    |  blocks of 128 keys that any            2. attention: thread blocks over SMs
      |    ####  |  of them sees ("#")                        (arithmetic or memory, the longer)
      +----------+

The query heads that share a key-value head are packed into one tile (heads / kv_heads rows a token), so that
short sequences with grouped heads fill it. A block of keys takes the time of its two products on the tensor
cores and of the exponentials between them that the products do not hide. The tile is 128 rows, or 64 where
there are too few tiles to fill the SMs. With a causal mask the last tile has the most keys: its time is a
lower bound, and part of it is a tail.

Sources: Dao, *FlashAttention-2* (arXiv 2307.08691) for tiles, masks and work partitioning; Shah et al.,
*FlashAttention-3* (arXiv 2407.08608) for exponentials beside products on Hopper; Ainslie et al., *GQA*
(arXiv 2305.13245). That long rows cost more to append is an observation on the measured table: a step of
4 ns a token between rows of 256 and of 512 elements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from devices.cost.parameters import parameter
from sim.base.errors import InputError

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_KEY_BLOCK = 128
"""Keys that a thread block takes at a time; the cache is read in whole blocks."""
_QUERY_TILES = (64, 128)
"""Rows (tokens x packed heads) of a tile."""
_ELEMENT = 2  # bytes of a bf16 number


@dataclass(frozen=True)
class AttentionParameters:
    """What is particular to a GPU and its library; :mod:`studies.h200.fit` finds the values."""

    launch_ns: float = parameter(10000, 2000, 20000, "one sequence of one token: two launches, empty kernels")
    doubling_ns: float = parameter(
        300, 0, 1500, "added by each doubling of the sequence, before any SM is busy: set-up, first loads"
    )
    token_ns: float = parameter(0.5, 0, 5, "what appending one token to the cache costs, however short a row")
    append_ns: float = parameter(
        3.5, 0, 20, "what it costs more when the token's keys are spread over long rows (kv_heads x head_dim)"
    )
    append_half_elements: float = parameter(300, 50, 2000, "row length at which half of append_ns is reached")
    bandwidth_bytes_per_s: float = parameter(4.2e12, 2e12, 4.8e12, "DRAM bandwidth of both kernels")
    sm_flop_per_s: float = parameter(
        6.5e12, 3e12, 7.495e12, "rate of one SM's tensor cores within a block, at full clock"
    )
    score_ns: float = parameter(
        0.03, 0.001, 0.2, "time for one score's exponential and bookkeeping, not hidden by products"
    )
    tile_ns: float = parameter(1000, 50, 5000, "start and end of a thread block: load queries, write results")
    tail: float = parameter(0.3, 0, 1.5, "share of the longest tile's time in which SMs idle at the end")
    small_tile: float = parameter(0.7, 0.2, 1, "rate of a tile of 64 rows, as a share of that of 128")
    wide_head: float = parameter(
        0.5, 0, 3, "time added, per 256 elements by which the head dimension exceeds 256, as a share"
    )
    throttle: float = parameter(0.2, 0, 0.5, "share of the rate that long kernels lose to the power limit")
    throttle_half_flops: float = parameter(1e12, 1e10, 1e13, "work at which half of that is lost")


def visible_pairs(seq_len: npt.ArrayLike, window: npt.ArrayLike = 0) -> IntArray:
    """Return how many (query, key) pairs a causal mask leaves, a query seeing at most `window` keys.

    Parameters
    ----------
    seq_len : array_like of int
        Tokens of a sequence.
    window : array_like of int
        Most keys that a query sees, its own included; 0 is no limit.

    Examples
    --------
    >>> visible_pairs(4).item(), visible_pairs(4, 2).item()  # 1 + 2 + 3 + 4, 1 + 2 + 2 + 2
    (10, 7)
    """
    length, limit = np.asarray(seq_len, dtype=np.int64), np.asarray(window, dtype=np.int64)
    seen = np.where(limit > 0, np.minimum(limit, length), length)
    pairs: IntArray = seen * (seen + 1) // 2 + (length - seen) * seen
    return pairs


def attention_axes(
    batch: npt.ArrayLike,
    seq_len: npt.ArrayLike,
    heads: npt.ArrayLike,
    kv_heads: npt.ArrayLike,
    head_dim: npt.ArrayLike,
    window: npt.ArrayLike = 0,
) -> dict[str, npt.NDArray[Any]]:
    """Return the sizes for a look-up in :func:`attention_table`: ``table.lookup(**attention_axes(...))``.

    Examples
    --------
    >>> {name: int(size) for name, size in attention_axes(4, 1024, 32, 8, 128).items()}
    {'batch_heads': 128, 'seq_len': 1024, 'group': 4, 'kv_heads': 8, 'head_dim': 128, 'window': 0}
    """
    per_kv = np.asarray(heads) // np.asarray(kv_heads)
    return {
        "batch_heads": np.asarray(batch) * np.asarray(heads),
        "seq_len": np.asarray(seq_len),
        "group": per_kv,
        "kv_heads": np.asarray(kv_heads),
        "head_dim": np.asarray(head_dim),
        "window": np.asarray(window),
    }


def attention_ns(
    batch: npt.ArrayLike,
    seq_len: npt.ArrayLike,
    heads: npt.ArrayLike,
    kv_heads: npt.ArrayLike,
    head_dim: npt.ArrayLike,
    parameters: AttentionParameters,
    *,
    window: npt.ArrayLike = 0,
    sm_count: int = 132,
) -> IntArray:
    """Return the duration of causal attention over whole sequences in bf16, appending to the cache included.

    Parameters
    ----------
    batch, seq_len, heads, kv_heads, head_dim : array_like of int, broadcast together
        Sequences, tokens of each, query heads, key-value heads, elements of a head; positive.
    parameters : AttentionParameters
        Of the device; ``devices.cost.fitted.load_fit().attention`` for the H200.
    window : array_like of int
        Most keys that a query sees; 0 is no limit.
    sm_count : int
        How many SMs the kernels may use.

    Returns
    -------
    ndarray of int64
        Nanoseconds, rounded half up, in the broadcast shape.

    Raises
    ------
    InputError
        A size is not a positive whole number, the heads are no multiple of the key-value heads, or there
        is no SM.
    """
    if sm_count < 1:
        raise InputError(f"a kernel on {sm_count} SMs never ends; sm_count is at least 1")
    sizes = [np.asarray(size) for size in (batch, seq_len, heads, kv_heads, head_dim, window)]
    for name, size in zip(_Sizes._fields, sizes, strict=True):
        least = 0 if name == "window" else 1
        if size.size and (size.dtype.kind not in "iu" or int(size.min()) < least):
            raise InputError(f"{name} of attention must be whole numbers of at least {least}, not {size}")
    whole = np.broadcast_arrays(*sizes)
    if np.any(whole[2] % whole[3]):
        raise InputError("the query heads must be a multiple of the key-value heads: each serves as many")
    duration = _attention(_Sizes(*(array.astype(float) for array in whole)), parameters, sm_count)
    return np.floor(duration + 0.5).astype(np.int64)


class _Sizes(NamedTuple):
    """The arguments of :func:`attention_ns`, as floats of one shape."""

    batch: FloatArray
    seq_len: FloatArray
    heads: FloatArray
    kv_heads: FloatArray
    head_dim: FloatArray
    window: FloatArray


def _attention(z: _Sizes, p: AttentionParameters, sm_count: int) -> FloatArray:
    bytes_per_ns = p.bandwidth_bytes_per_s / 1e9
    queries = _ELEMENT * z.batch * z.heads * z.seq_len * z.head_dim
    cache_row = 2 * _ELEMENT * z.batch * z.kv_heads * z.head_dim
    row = (z.kv_heads * z.head_dim / p.append_half_elements) ** 4  # a step, as measured: module docstring
    append = 2 * (queries + cache_row * z.seq_len) / bytes_per_ns
    append = append + z.batch * z.seq_len * (p.token_ns + p.append_ns * row / (1 + row))
    blocks = np.ceil(z.seq_len / _KEY_BLOCK) * _KEY_BLOCK
    memory = (2 * queries + cache_row * blocks) / bytes_per_ns
    launch = p.launch_ns + p.doubling_ns * np.log2(z.seq_len)
    total: FloatArray = launch + append + np.maximum(_compute_ns(z, p, sm_count), memory)
    return total


def _compute_ns(z: _Sizes, p: AttentionParameters, sm_count: int) -> FloatArray:
    """Return the time of the attention kernel on the SMs, with the better of the two tiles."""
    s = z.seq_len
    seen = np.where(z.window > 0, np.minimum(z.window, s), s)
    pairs = visible_pairs(s, z.window).astype(float)
    flops = 4 * z.batch * z.heads * pairs * z.head_dim
    sm_flop_per_ns = p.sm_flop_per_s / 1e9 * (1 - p.throttle * flops / (flops + p.throttle_half_flops))
    widening = 1 + p.wide_head * np.maximum(0, z.head_dim / 256 - 1)
    row_key_ns = 4 * z.head_dim / sm_flop_per_ns * widening + p.score_ns
    packed = z.heads / z.kv_heads
    best = np.full(np.shape(s), np.inf)
    for tile in _QUERY_TILES:
        rate = 1.0 if tile == max(_QUERY_TILES) else p.small_tile
        tokens = np.minimum(tile / packed, s)
        # Keys of a tile: what its rows see, what the mask cuts off within it, and half a block of rounding.
        longest = np.minimum(np.ceil(s / _KEY_BLOCK) * _KEY_BLOCK, seen + tokens + _KEY_BLOCK / 2)
        longest = np.maximum(_KEY_BLOCK, longest)
        mean = np.minimum(longest, np.maximum(_KEY_BLOCK, pairs / s + tokens / 2 + _KEY_BLOCK / 2))
        mean_ns, longest_ns = (p.tile_ns + keys * tile * row_key_ns / rate for keys in (mean, longest))
        waves = z.batch * z.kv_heads * np.ceil(s * packed / tile) / sm_count
        best = np.minimum(best, np.maximum(longest_ns, waves * mean_ns + p.tail * longest_ns))
    return best
