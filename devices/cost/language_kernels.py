"""What kernels of large language models ask of a GPU: products on tensor cores, attention, experts,
state-space layers.

Each family is what `devices.cost.kernel_model` needs: work and features as functions of sizes, and the knots
of the grids that correct it. Grids are in logarithms of sizes where a GPU was measured (every library has its
own steps in m, n, k), and in waves and balance, which other GPUs share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from devices.cost.kernel_model import (
    ELEMENT_BYTES,
    Family,
    KernelWork,
    Parameters,
    Sheet,
    Sizes,
    grids,
    knots,
)
from sim.base.arrays import FloatArray


def log2(x: Any) -> FloatArray:
    """Return the logarithm to base 2 of any numbers."""
    found: FloatArray = np.log2(np.asarray(x, float))
    return found


def logs(names: str) -> Callable[[Sizes, Sheet, str], dict[str, FloatArray]]:
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
_OUT_BYTES: Final = 2.0
_ALIGNED_BYTES: Final = 16  # what a thread loads or stores at a time
_UNALIGNED: Final = 2.5
"""How many times as long a product takes whose rows do not begin at a multiple of 16 bytes: elements are
loaded one by one. From BERT's vocabulary of 30,522 on an H100; 2.5 to 3.5 in two other programs. Elements of
4 bytes need half as many loads for their bytes."""

_SINGLE: Final = 1.2
"""... and how much longer writing takes where neighbours cannot go together (TimeSformer's 3,137 columns)."""


def product_work(s: Sizes, sheet: Sheet, dtype: str) -> KernelWork:
    """Return a product's work with each tile, once with k whole and once in as many parts as fill the SMs."""
    element = ELEMENT_BYTES[dtype]
    m, n, k, count = (column[:, None] for column in columns(s, "m n k batch", batch=1))
    tile_m, tile_n = TILES
    packed = np.ceil(m * count / tile_m)  # several small products share an SM as one tile's rows do
    tiles = np.where(m < tile_m, packed, np.ceil(m / tile_m) * count) * np.ceil(n / tile_n)
    row = 1.0 if dtype == "mxfp8" else element  # whose scales lie in a tensor of their own
    odd = ((n * row) % _ALIGNED_BYTES > 0) | ((k * row) % _ALIGNED_BYTES > 0)
    slower = np.where(odd, _UNALIGNED, 1.0)
    one_by_one = np.where(odd, _UNALIGNED * min(1.0, _OUT_BYTES / element), 1.0)
    out_bytes = max(_OUT_BYTES, element) * np.where(odd & ((n * row) % 4 > 0), _SINGLE, 1.0)[:, 0]
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


def product_features(s: Sizes, sheet: Sheet, dtype: str) -> dict[str, FloatArray]:
    """Return sizes, and where m is odd enough for a library to pad, or to take a slower kernel."""
    odd = (np.asarray(s["m"]) % 4 != 0) * 1.0
    return {"m": log2(s["m"]), "n": log2(s["n"]), "k": log2(s["k"]), "odd": odd}


_M = knots("1 2 4 8 16 32 48 64 96 128 192 256 384 512 768 1024 1536 2048 3072 4096 8192 32768")
_M13 = knots("1 4 16 32 64 128 256 512 1024 2048 4096 8192 32768")
_M8, _N6 = knots("1 8 32 128 512 2048 8192 32768"), knots("32 256 1024 4096 16384 65536")
_N = knots("32 128 512 1024 2048 4096 8192 16384 65536")
_N22 = knots(
    "32 64 128 256 512 768 1024 1536 2048 2560 3072 3584 4096 5120 6144 7168 8192 10240 12288 16384 51200 "
    "65536"
)
_YES: Final = (0.0, 1.0)
_ODD: Final = ("odd waves", (_YES, (-1, 0, 1, 2, 3, 5, 7)))
_FEW_WAVES: Final = ("waves balance", ((-1, 0, 0.5, 1, 1.5, 2, 3, 5, 7), (-4, -1, 0, 1, 2, 5)))
_HALVES: Final = (-1, 0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 5, 7)
_MORE_WAVES: Final = ("waves balance", (_HALVES, (-4, -2, -1, 0, 1, 2, 4, 6)))
_COARSE: Final = ("m n k", (_M8, _N6, _N6))
_BY_M: Final = (("m n", (_M, _N)), ("m k", (_M, _N)))
_BY_NK: Final = (("n", (_N22,)), ("k", (_N22,)))
PRODUCTS: Final = Family(
    "products",
    product_work,
    product_features,
    grids(_COARSE, _ODD, _FEW_WAVES, *_BY_M, *_BY_NK),
    Parameters(fixed_ns=2000),
)
PRODUCTS_COARSE: Final = replace(
    PRODUCTS, name="products_coarse", grids=grids(_COARSE, _ODD, _FEW_WAVES, ("m", (_M,)), *_BY_NK)
)
PRODUCTS_FINE: Final = replace(
    PRODUCTS,
    name="products_fine",
    grids=grids(("m n k", (_M13, _N, _N)), _ODD, _MORE_WAVES, *_BY_M, ("n k", (_N22, _N22))),
)
"""With twice the numbers: for GPUs whose library is less smooth, and of which few families were measured."""

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
    own = _EXPONENTIALS.get(sheet.generation, _EXPONENTIALS["blackwell"])
    cycles = _NOT_HIDDEN * pairs * (1 / _EXPONENTIALS["blackwell"] - 1 / own)
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


def attention_features(s: Sizes, sheet: Sheet, dtype: str) -> dict[str, FloatArray]:
    """Return sizes, what a window leaves to be seen, and heads a key-value head."""
    batch, length, heads, kv, dim, window, seen = _attention_sizes(s)
    return {
        "seq_len": log2(length),
        "seen": log2(seen),
        "cut": log2(length / seen),
        "batch": log2(batch),
        "rows": log2(batch * heads),
        "group": log2(heads / kv),
        "head_dim": log2(dim),
        "kv_rows": log2(batch * kv),
        "kv_heads": log2(kv),
        "heads": log2(heads),
        "windowed": np.where(window > 0, 1.0, 0.0),  # another kernel, in some libraries
    }


_S = knots("1 16 64 128 256 512 1024 2048 4096 16384")
_R = knots("1 4 16 32 64 128 256 1024 4096 16384")
_DIMS = knots("64 128 192 256 512")
_GROUPS: Final = (0, 1, 2, 3, 4, 6)
_KV = knots("1 2 4 8 16 32 96")
_WAVES: Final = ("waves balance", ((-3, -1, 0, 0.5, 1, 1.5, 2, 3, 5, 8), (-4, -2, -1, 0, 1, 2, 5)))
PREFILL: Final = Family(
    "attention_prefill",
    attention_work,
    attention_features,
    grids(
        ("seq_len rows group", (_S, _R, (0, 1, 3, 6))),
        ("head_dim seq_len cut", (_DIMS, _S, (0, 1, 3, 6))),
        _WAVES,
        ("batch kv_heads", (knots("1 4 16 64 256"), _KV)),
        ("head_dim group", (_DIMS, _GROUPS)),
        ("seq_len rows windowed", (_S, _R, _YES)),
    ),
    Parameters(fixed_ns=9000, step_ns=2, block_ns=1500),
    smooth=0.3,
)


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


_SD = knots("2 16 64 128 256 512 1024 2048 4096 16384 65536")
_S8, _R7 = knots("2 64 128 256 1024 4096 16384 65536"), knots("1 8 32 128 512 2048 16384")
DECODE: Final = replace(
    PREFILL,
    name="attention_decode",
    work=decode_work,
    grids=grids(
        ("seen kv_rows group windowed", (_S8, _R7, (0, 1, 3, 6), _YES)),
        ("head_dim seen cut", (_DIMS, _SD, _YES)),
        _WAVES,
        ("batch kv_heads", (knots("1 4 16 64 256 2048"), _KV)),
        ("head_dim group", (_DIMS, _GROUPS)),
        ("windowed heads batch", (_YES, knots("1 4 16 32 96"), knots("1 8 32 128 512 2048"))),
        ("group seen kv_rows", (_YES, _SD, _R)),  # with one query head a key-value head some never split
    ),
)


def encoder_work(s: Sizes, sheet: Sheet, dtype: str) -> KernelWork:
    """Return the work of attention without a mask: every query sees every key."""
    return attention_work({**s, "kv_heads": s["heads"]}, sheet, dtype, causal=False)


def _encoder_features(s: Sizes, sheet: Sheet, dtype: str) -> dict[str, FloatArray]:
    return attention_features({**s, "kv_heads": s["heads"]}, sheet, dtype)


ENCODER: Final = Family(
    "attention_encoder",
    encoder_work,
    _encoder_features,
    grids(
        ("seq_len rows head_dim", (_S, knots("1 4 16 32 64 128 256 1024 4096"), knots("64 72 80"))),
        ("batch heads", (knots("1 4 16 64"), knots("1 4 16 32"))),
        _WAVES,
    ),
    Parameters(fixed_ns=5000, step_ns=2, block_ns=1500),
    smooth=0.3,
)

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
    blocks = tiles * across
    return KernelWork(
        flops=2 * (active * 3 * hidden * inter)[:, None] * tiles * tile,
        dram_bytes=3 * active * hidden * inter * element,
        warm_bytes=2 * tokens * hidden * 2 + pairs * (2 * hidden + 3 * inter) * 2,
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


_HIDDEN = knots("1024 2048 3072 4096 5120 6144 7168")
_INTER = knots("32 64 128 256 512 768 1024 2048 4096 16384")
_LOCAL, _INTER4 = knots("1 4 16 64 256"), knots("32 256 2048 16384")
MOE: Final = Family(
    "moe",
    moe_work,
    moe_features,
    grids(
        ("tokens local inter", (knots("1 8 64 512 2048 32768"), _LOCAL, _INTER4)),
        ("rows width", ((-8, -4, -2, 0, 2, 4, 5, 6, 7, 8, 10), (15, 18, 21, 23, 26))),
        ("hidden topk", (_HIDDEN, knots("1 2 4 8 22"))),
        ("hidden inter", (_HIDDEN, _INTER)),
        ("ep experts tokens", (knots("1 2 4 16 256"), knots("8 128 256 512"), knots("1 64 1024 32768"))),
        ("waves balance", ((-3, 0, 1, 2, 3, 5, 8), (-4, -1, 0, 1, 2, 5))),
    ),
    Parameters(fixed_ns=20000, step_ns=1, block_ns=1500),
    smooth=0.3,
)

# ---- state-space layers ------------------------------------------------------------------------------------


def scan_work(s: Sizes, sheet: Sheet, dtype: str) -> KernelWork:
    """Return the work of a short convolution along the sequence: each channel of each sequence read and
    written once.
    """
    batch, length, channels = columns(s, "batch seq_len channels")
    whole = batch * length * channels
    return KernelWork(
        flops=8 * whole,
        dram_bytes=0 * whole,
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


_CHANNELS = knots("1536 2048 6144 10240 20480")
_BATCH4, _BATCH8 = knots("1 4 16 64"), knots("1 8 32 64 128 256 512 1024")
CONV1D: Final = Family(
    "causal_conv1d",
    scan_work,
    scan_features,
    grids(
        ("seq_len batch channels", (knots("1 4 8 32 128 512 1024 2048 8192 32768"), _BATCH4, _CHANNELS)),
        ("tokens channels", (knots("1 16 64 256 1024 4096 16384 65536 1048576"), _CHANNELS)),
    ),
    Parameters(fixed_ns=8000, step_ns=5, block_ns=1000),
    smooth=0.1,
)
CONV1D_UPDATE: Final = replace(
    CONV1D, name="causal_conv1d_update", grids=grids(("batch channels", (_BATCH8, _CHANNELS)))
)


def delta_work(s: Sizes, sheet: Sheet, dtype: str) -> KernelWork:
    """Return the work of the gated delta rule: a state of 128 x 128 a head, walked in chunks of tokens (or
    one by one).
    """
    batch, length, heads = columns(s, "batch seq_len heads")
    whole = batch * length * heads
    return KernelWork(
        flops=whole * 128 * 128 * 8,
        dram_bytes=batch * heads * 128 * 128 * 8,
        warm_bytes=whole * 128 * 2 * 8,
        load_bytes=whole * 128 * 2 * 16,
        blocks=batch * heads * 2,
        steps=length,
        dtype=dtype,
    )


_HEADS = knots("16 32 48 64")
DELTA_CHUNK: Final = Family(
    "gated_delta_chunk",
    delta_work,
    scan_features,
    grids(
        ("seq_len batch heads", (knots("1 16 64 128 256 512 1024 2048 8192 32768"), _BATCH4, _HEADS)),
        ("tokens heads", (knots("1 64 256 1024 4096 16384 1048576"), _HEADS)),
    ),
    Parameters(fixed_ns=15000, step_ns=20, block_ns=2000),
    smooth=0.1,
)
DELTA_STEP: Final = replace(
    DELTA_CHUNK, name="gated_delta_step", grids=grids(("batch heads", (_BATCH8, _HEADS)))
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


_QUANTIZED_M = knots("1 16 64 128 256 512 1024 1536 2048 3072 4096 8192 32768")
QUANTIZE: Final = Family(
    "quantize",
    quantize_work,
    quantize_features,
    grids(
        ("m k", (_QUANTIZED_M, knots("32 512 1024 2048 4096 8192 16384 65536"))),
        ("mk", (tuple(np.arange(18, 31, 0.5).tolist()),)),
    ),
    Parameters(fixed_ns=1500),
    smooth=0.1,
)

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


_T5 = knots("1 32 256 2048 131072")
EXCHANGE: Final = Family(
    "deepep",
    exchange_work,
    logs("tokens hidden topk nodes sms experts"),
    grids(
        ("tokens sms nodes", (knots("1 8 64 512 4096 131072"), knots("4 8 16 24"), (0, 1, 2, 3))),
        ("hidden tokens", (knots("2048 4096 7168"), _T5)),
        ("topk tokens", (knots("1 2 4 8 22"), _T5)),
        ("experts tokens", (knots("8 64 256 512"), _T5)),
    ),
    Parameters(fixed_ns=20000, block_ns=500, ramp_ns=5000),
    smooth=0.1,
)

LANGUAGE_FAMILIES: Final = (
    *(PRODUCTS, PRODUCTS_FINE, PRODUCTS_COARSE, PREFILL, DECODE, ENCODER, MOE),
    *(CONV1D, CONV1D_UPDATE, DELTA_CHUNK, DELTA_STEP, QUANTIZE, EXCHANGE),
)
