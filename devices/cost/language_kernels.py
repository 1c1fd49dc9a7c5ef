"""What kernels of large language models ask of a GPU: products on tensor cores, attention, experts,
state-space layers.

Of each family here is what `devices.cost.kernel_model` needs: work and features as functions of sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from devices.cost.kernel_model import ELEMENT_BYTES, Demand, Features, KernelWork, Sheet, Sizes
from devices.describe.dtypes import DTYPES
from sim.base.arrays import BoolArray, FloatArray


def log2(x: Any) -> FloatArray:
    """Return the logarithm to base 2 of any numbers."""
    found: FloatArray = np.log2(np.asarray(x, float))
    return found


def logs(names: str) -> Features:
    """Return features that are sizes, and nothing else."""
    return lambda s, sheet, dtype: {name: log2(s[name]) for name in names.split()}


def columns(sizes: Sizes, names: str, **defaults: float) -> list[FloatArray]:
    """Return some columns as floats, of one length; those that are not given have their default."""
    given = (sizes[name] if name in sizes else defaults[name] for name in names.split())
    return [*np.broadcast_arrays(*(np.asarray(column, float) for column in given))]


# ---- products ----------------------------------------------------------------------------------------------

TILES: Final = np.array(
    [(64, 16), (64, 32), (64, 64), (64, 128), (64, 256), (128, 64), (128, 128), (128, 256), (256, 128)], float
).T
"""Rows and columns of the output that a thread block computes, of which the library takes the best (CUTLASS,
github.com/NVIDIA/cutlass, media/docs/efficient_gemm.md, has these among its tiles)."""
_LEAST, _NARROW, _AT_ONCE = 16, 64, 16
"""Rows and columns of the least tile, columns of the results that take it, and how many of these tiles an SM
computes at once: from 37,632 products of 8 x 64 x 8 and of 8 x 8 x 64 on an H100 (TimeSformer)."""
_OUT_BYTES: Final = 2.0
_ALIGNED_BITS: Final = 128  # what a thread loads or stores at a time
_UNALIGNED: Final = 2.5
"""How many times as long a product takes whose rows do not begin at a multiple of 16 bytes: elements are
loaded one by one. From BERT's vocabulary of 30,522 on an H100; 2.5 to 3.5 in two other programs. Elements of
4 bytes need half as many loads for their bytes."""

_SINGLE: Final = 1.2
"""... and how much longer writing takes where neighbours cannot go together (TimeSformer's 3,137 columns)."""


def _is_unaligned(n: FloatArray, k: FloatArray, dtype: str) -> BoolArray:
    bits = DTYPES[dtype].get("bits", 32)  # scales of blocks lie in a tensor of their own
    return np.asarray(((n * bits) % _ALIGNED_BITS > 0) | ((k * bits) % _ALIGNED_BITS > 0))


def has_short_code(s: Sizes, sheet: Sheet, dtype: str) -> BoolArray:
    """Return which products take kernels of one stage: those of one row (`gemvx`), and of rows that are not
    aligned (`align1`). On AMD's GPUs they take the same kernels as others.
    """
    m, n, k = columns(s, "m n k")
    return np.asarray((m == 1) | _is_unaligned(n, k, dtype)) & (not sheet.generation.startswith("cdna"))


def product_work(s: Sizes, sheet: Sheet, dtype: str) -> KernelWork:
    """Return a product's work with each tile, once with k whole and once in as many parts as fill the SMs."""
    element = ELEMENT_BYTES[dtype]
    m, n, k, count = (column[:, None] for column in columns(s, "m n k batch", batch=1))
    tile_m, tile_n = TILES
    packed = np.ceil(m * count / tile_m)  # several small products share an SM as one tile's rows do
    tiles = np.where(m < tile_m, packed, np.ceil(m / tile_m) * count) * np.ceil(n / tile_n)
    tiny = (m <= _LEAST) & (n <= _NARROW) & (count > 1)
    least = np.where(tiny, count * np.ceil(n / _LEAST), 0.0)
    tiles = np.maximum(tiles, least / _AT_ONCE)
    odd = _is_unaligned(n, k, dtype)
    slower = np.where(odd, _UNALIGNED, 1.0)
    one_by_one = np.where(odd, _UNALIGNED * min(1.0, _OUT_BYTES / element), 1.0)
    out = max(_OUT_BYTES, element)
    out_bytes = out * np.where(odd & ((n * out) % 4 > 0), _SINGLE, 1.0)[:, 0]
    parts = np.clip(np.floor(sheet.sms / tiles), 1, np.maximum(1, np.floor(k / 256)))
    blocks = np.concatenate([tiles, tiles * parts], 1)
    split = np.concatenate([np.ones_like(tiles), parts], 1)
    edges = np.concatenate([tile_m + tile_n] * 2)
    join_bytes, joins = np.where(split > 1, 8 * split * m * n * count, 0.0), (split > 1) * 1.0
    if element < _OUT_BYTES:  # a kernel of its own quantizes the left matrix
        join_bytes, joins = join_bytes + (_OUT_BYTES + element) * m * k, joins + 1
    return KernelWork(
        flops=2 * np.concatenate([tiles * tile_m * tile_n] * 2, 1) * k * slower,
        dram_bytes=(count * m * n * one_by_one)[:, 0] * out_bytes,
        cycled_bytes=(count * n * k * one_by_one)[:, 0] * element,
        warm_bytes=(count * m * k * one_by_one)[:, 0] * element,
        load_bytes=blocks * edges * k / split * element,
        blocks=blocks,
        steps=k / split * (element / 2),
        join_bytes=join_bytes,
        joins=joins,
        dtype=dtype,
    )


def beyond_l2_ns(s: Sizes, sheet: Sheet, dtype: str) -> FloatArray:
    """Return how long memory takes for what L2 has no room for: grids were fitted to rows that it has."""
    m, n, k, count = columns(s, "m n k batch", batch=1)
    moved = count * (m * k + k * n + m * n) * ELEMENT_BYTES[dtype]
    return np.asarray((moved - sheet.l2_bytes) / sheet.dram_bytes_per_s * 1e9)


def product_features(s: Sizes, sheet: Sheet, dtype: str) -> dict[str, FloatArray]:
    """Return sizes, and where m is odd enough for a library to pad, or to take a slower kernel."""
    odd = (np.asarray(s["m"]) % 4 != 0) * 1.0
    return {"m": log2(s["m"]), "n": log2(s["n"]), "k": log2(s["k"]), "odd": odd}


# ---- attention ---------------------------------------------------------------------------------------------

_TILE_ROWS: Final = np.array([16.0, 64.0, 128.0, 256.0])  # of queries
_KEYS: Final = 128.0  # that a thread block takes at a time
_EXPONENTIALS: Final = {"blackwell": 16, "blackwell_ultra": 32}
"""An SM and cycle, of the Blackwells whose attention was measured, and of Ultra (NVIDIA's blog, "Making
Softmax More Efficient with NVIDIA Blackwell Ultra")."""
_NOT_HIDDEN: Final = 0.5
"""Of the exponentials' time that attention takes beside its products. Ultra reaches 1,215 and 1,749 TFLOP/s
without a mask, heads of 64 and 128 (flash-attention, pull request 2605), and 1,250 with 80 (cudnn-frontend,
598): of a GB300 the models say 1,211, 1,060 and 1,122, without this 980, 961 and 955."""


def seen_pairs(seq_len: FloatArray, window: FloatArray, causal: bool = True) -> FloatArray:
    """Return how many (query, key) pairs the mask leaves; a window of 0 is none.

    Examples
    --------
    >>> seen_pairs(np.array([4.0, 4.0]), np.array([0.0, 2.0])).tolist()
    [10.0, 7.0]
    """
    if not causal:
        return seq_len * seq_len
    seen = _seen_keys(seq_len, window)
    return seen * (seen + 1) / 2 + (seq_len - seen) * seen


def _seen_keys(seq_len: FloatArray, window: FloatArray) -> FloatArray:
    return np.where(window > 0, np.minimum(window, seq_len), seq_len)


def _attention_sizes(s: Sizes) -> list[FloatArray]:
    """Return sequences, their length, heads, those of keys, their width, the window, and what it leaves."""
    sizes = columns(s, "batch seq_len heads kv_heads head_dim window", window=0)
    return [*sizes, _seen_keys(sizes[1], sizes[-1])]


def sooner_ns(pairs: FloatArray, sheet: Sheet) -> FloatArray:
    """Return by how much attention to so many pairs ends sooner than with a Blackwell's exponentials."""
    rate = _EXPONENTIALS.get(sheet.generation, _EXPONENTIALS["blackwell"])
    cycles = _NOT_HIDDEN * pairs * (1 / _EXPONENTIALS["blackwell"] - 1 / rate)
    return cycles / (sheet.sms * sheet.clock_hz / 1e9)


def attention_work(s: Sizes, sheet: Sheet, dtype: str, causal: bool = True) -> KernelWork:
    """Return whole sequences' work: tiles of queries, packed with the heads that share keys or not, walk
    what they see.
    """
    batch, length, heads, kv, dim, window, seen = _attention_sizes(s)
    element = ELEMENT_BYTES[dtype]
    group = np.concatenate([np.repeat((heads / kv)[:, None], 4, 1), np.ones((len(length), 4))], 1)
    rows = np.concatenate([_TILE_ROWS, _TILE_ROWS])
    tiles = np.ceil(length[:, None] * group / rows)
    blocks = tiles * (batch * heads)[:, None] / group
    span = seen_pairs(length, window, causal) / length  # keys of a query, on average
    ragged = (0.5 if causal else 0.0) * np.minimum(rows / group, length[:, None])
    walked = np.ceil((span[:, None] + ragged) / _KEYS) * _KEYS
    walked = np.maximum(np.minimum(walked, np.ceil(seen[:, None] / _KEYS) * _KEYS), 1)
    dim_ = dim[:, None]
    moved = element * batch * length * dim * 2 * (heads + kv)
    return KernelWork(
        flops=4 * blocks * rows * walked * dim_,
        dram_bytes=moved,
        warm_bytes=moved,
        load_bytes=blocks * element * dim_ * (2 * walked + 2 * rows),
        blocks=blocks,
        steps=walked * np.maximum(dim_, 64) / 64,
        dtype=dtype,
    )


_LONGEST: Final = 16384
"""Tokens of the longest prefill that was measured, and so the last knot of its grids."""
_FILL: Final = 16
"""Heads x batch of the longest prefill whose rate no more of them change much. With the grids cut at 2,048 to
8,192 tokens, longer prefills of few heads are predicted nearer by this, and those of many are not."""


def attention_features(s: Sizes, sheet: Sheet, dtype: str) -> dict[str, FloatArray]:
    """Return sizes, what a window leaves to be seen, and heads a key-value head.

    A sequence longer than any that was measured counts as several of that length, which have as many thread
    blocks, until these fill a GPU.
    """
    batch, length, heads, kv, dim, window, seen = _attention_sizes(s)
    measured, rows = np.minimum(length, _LONGEST), batch * heads
    return {
        "seq_len": log2(measured),
        "seen": log2(seen),
        "cut": log2(length / seen),
        "batch": log2(batch),
        "rows": log2(np.maximum(rows, np.minimum(rows * (length / measured), _FILL))),
        "group": log2(heads / kv),
        "head_dim": log2(dim),
        "kv_rows": log2(batch * kv),
        "kv_heads": log2(kv),
        "heads": log2(heads),
        "windowed": np.where(window > 0, 1.0, 0.0),  # another kernel, in some libraries
    }


_ALONE_IN_WINDOW: Final = frozenset(("ampere", "ada"))
"""Whose decoding with a window walks the cache once for each query head: FlashAttention-2 packs those that
share keys without a window only (`seqlenq_ngroups_swapped`, Dao-AILab/flash-attention, flash_api.cpp)."""


def decode_work(s: Sizes, sheet: Sheet, dtype: str) -> KernelWork:
    """Return the work of one token a sequence against its cache: a thread block a key-value head, or parts
    that fill the SMs.

    ``seq_len`` counts the tokens in the cache.
    """
    batch, _, heads, kv, dim, window, seen = _attention_sizes(s)
    element = ELEMENT_BYTES[dtype]
    together = np.where((window > 0) & (sheet.generation in _ALONE_IN_WINDOW), heads, kv)
    whole = np.stack([batch * together, batch * heads], 1)
    rows = np.maximum(16, np.stack([heads / together, 1 + 0 * heads], 1))
    parts = np.clip(np.floor(sheet.sms / whole), 1, np.maximum(1, np.ceil(seen[:, None] / _KEYS)))
    split = np.concatenate([np.ones_like(whole), parts], 1)
    blocks = np.concatenate([whole, whole], 1) * split
    rows = np.concatenate([rows, rows], 1)
    walked = np.ceil(seen[:, None] / split / 16) * 16
    dim_ = dim[:, None]
    return KernelWork(
        flops=4 * blocks * rows * walked * dim_,
        dram_bytes=element * batch * dim * (2 * heads + 2 * kv),
        warm_bytes=element * 2 * batch * kv * seen * dim,
        load_bytes=blocks * element * dim_ * 2 * walked,
        blocks=blocks,
        steps=walked * np.maximum(dim_, 64) / 64,
        joins=(split > 1) * 1.0,
        join_bytes=np.where(split > 1, 8 * split * (batch * heads * dim)[:, None], 0.0),
        dtype=dtype,
    )


def encoder_work(s: Sizes, sheet: Sheet, dtype: str) -> KernelWork:
    """Return the work of attention without a mask: every query sees every key."""
    return attention_work({**s, "kv_heads": s["heads"]}, sheet, dtype, causal=False)


def encoder_features(s: Sizes, sheet: Sheet, dtype: str) -> dict[str, FloatArray]:
    """Return those of attention in which each query head has keys of its own."""
    return attention_features({**s, "kv_heads": s["heads"]}, sheet, dtype)


# ---- experts -----------------------------------------------------------------------------------------------

MOE_SIZES: Final = "tokens hidden intermediate topk experts tp ep"


def moe_work(s: Sizes, sheet: Sheet, dtype: str) -> KernelWork:
    """Return the work of a rank's experts, each with its share of the tokens: two grouped products (gate and
    up, then down).
    """
    tokens, hidden, inter, topk, experts, tp, ep = columns(s, MOE_SIZES)
    inter, local = np.ceil(inter / tp), np.maximum(1, experts / ep)
    pairs = tokens * topk / ep
    active = np.maximum(1, np.minimum(local, pairs))
    rows = np.maximum(1, pairs / active)
    element = ELEMENT_BYTES[dtype]
    tile = np.array([16.0, 32.0, 64.0, 128.0])
    tiles = np.ceil(rows[:, None] / tile)
    across = ((np.ceil(2 * inter / 128) + np.ceil(hidden / 128)) * active)[:, None]
    depth = 3 * hidden * inter / (2 * inter + hidden)  # k of the two products, weighted by their columns
    blocks, weights = tiles * across, 3 * active * hidden * inter  # weights of the last run are in L2, too
    return KernelWork(
        flops=2 * weights[:, None] * tiles * tile,
        warm_bytes=element * weights + 2 * (2 * tokens * hidden + pairs * (2 * hidden + 3 * inter)),
        load_bytes=blocks * (tile + 128) * depth[:, None] * element,
        blocks=blocks,
        steps=depth[:, None] * (element / 2) + 0 * blocks,
        dtype=dtype,
    )


def moe_features(s: Sizes, sheet: Sheet, dtype: str) -> dict[str, FloatArray]:
    """Return sizes of a rank, and tokens of an expert."""
    tokens, hidden, inter, topk, experts, tp, ep = columns(s, MOE_SIZES)
    return {
        "tokens": log2(tokens),
        "rows": log2(tokens * topk / experts),
        "hidden": log2(hidden),
        "inter": log2(inter / tp),
        "local": log2(np.maximum(1, experts / ep)),
        "topk": log2(topk),
        "ep": log2(ep),
        "width": log2(hidden * inter / tp),
        "experts": log2(experts),
    }


def low_bits_moe_features(s: Sizes, sheet: Sheet, dtype: str) -> dict[str, FloatArray]:
    """Return those of experts, and whether hidden states are no multiple of 512.

    On a B200 experts in fp8 take twice as long with 2816 (the only such size there) as with 2048 or 3072.
    """
    found = moe_features(s, sheet, dtype)
    return found | {"uneven": (np.asarray(s["hidden"]) % 512 != 0) + 0 * found["tokens"]}


# ---- state-space layers ------------------------------------------------------------------------------------


def scan_work(s: Sizes, sheet: Sheet, dtype: str) -> KernelWork:
    """Return the work of a short convolution along the sequence: each channel of each sequence read and
    written once.
    """
    batch, length, channels = columns(s, "batch seq_len channels")
    whole = batch * length * channels
    return KernelWork(
        flops=8 * whole,
        warm_bytes=4 * whole,
        load_bytes=4 * whole,
        blocks=batch * np.ceil(channels / 64) * np.ceil(length / 256),
        steps=np.minimum(length, 256),
        dtype=dtype,
    )


def scan_features(s: Sizes, sheet: Sheet, dtype: str) -> dict[str, FloatArray]:
    """Return sizes, and tokens of the whole batch."""
    wide = "channels" if "channels" in s else "heads"
    batch, length, width = columns(s, f"batch seq_len {wide}")
    tokens = log2(batch * length)
    return {"batch": log2(batch), "seq_len": log2(length), "tokens": tokens, wide: log2(width)}


def delta_work(s: Sizes, sheet: Sheet, dtype: str) -> KernelWork:
    """Return the work of the gated delta rule: a state of 128 x 128 a head, walked in chunks of tokens (or
    one by one).
    """
    batch, length, heads = columns(s, "batch seq_len heads")
    whole = batch * length * heads
    return KernelWork(
        flops=whole * 128 * 128 * 8,
        warm_bytes=batch * heads * 128 * 128 * 8 + whole * 128 * 2 * 8,
        load_bytes=whole * 128 * 2 * 16,
        blocks=batch * heads * 2,
        steps=length,
        dtype=dtype,
    )


# ---- quantizing --------------------------------------------------------------------------------------------


def quantize_work(s: Sizes, sheet: Sheet, dtype: str) -> KernelWork:
    """Return the work of a pass over a matrix in 16 bits, and its 8-bit copy."""
    m, k = columns(s, "m k")
    whole = m * k
    return KernelWork(warm_bytes=3 * whole, load_bytes=2 * whole, blocks=m, steps=k / 1024, dtype=dtype)


def quantize_features(s: Sizes, sheet: Sheet, dtype: str) -> dict[str, FloatArray]:
    """Return the sizes of the matrix."""
    m, k = columns(s, "m k")
    return {"m": log2(m), "k": log2(k), "mk": log2(m * k)}


# ---- tokens sent to the ranks of their experts -------------------------------------------------------------

LINK_BYTES_PER_S: Final = {"ampere": 300e9, "hopper": 450e9, "blackwell": 900e9, "blackwell_ultra": 900e9}
"""NVLink of a GPU in one direction: data sheets of the A100 (third generation), H100 (fourth), B200, B300."""


def exchange_work(s: Sizes, sheet: Sheet, dtype: str) -> KernelWork:
    """Return the work of DeepEP: tokens sent to the ranks of their experts (or back), by the SMs that it is
    given. They go at the rate of the GPU's link, and count as what DRAM moves in that time.
    """
    tokens, hidden, topk, nodes, given = columns(s, "tokens hidden topk nodes sms")
    ranks = 8 * nodes
    sent = tokens * hidden * 2 * ranks * (1 - (1 - 1 / ranks) ** topk)
    as_dram = sent * sheet.dram_bytes_per_s / LINK_BYTES_PER_S.get(sheet.generation, 300e9)
    return KernelWork(dram_bytes=as_dram, load_bytes=sent, blocks=given, dtype=dtype)


LANGUAGE_DEMANDS: Final[Mapping[str, Demand]] = {
    **dict.fromkeys(
        ("products", "products_few", "products_coarse", "products_fine"), (product_work, product_features)
    ),
    "attention_prefill": (attention_work, attention_features),
    "attention_decode": (decode_work, attention_features),
    "attention_encoder": (encoder_work, encoder_features),
    "moe": (moe_work, moe_features),
    "moe_low_bits": (moe_work, low_bits_moe_features),
    **dict.fromkeys(("causal_conv1d", "causal_conv1d_update"), (scan_work, scan_features)),
    **dict.fromkeys(("gated_delta_chunk", "gated_delta_step"), (delta_work, scan_features)),
    "quantize": (quantize_work, quantize_features),
    "deepep": (exchange_work, logs("tokens hidden topk nodes sms experts")),
}
"""Family -> its work and features."""
