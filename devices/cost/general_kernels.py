"""What kernels in fp32, and those that memory bounds, ask of a GPU: products on vector units, elementwise,
rows, convolutions.

The families are those of `devices.cost.kernel_model`; `by_bytes` prices the kinds that no table measures
(copies, poolings, optimizers, ...).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from devices.cost.kernel_model import ELEMENT_BYTES, Demand, KernelWork, Sheet, Sizes, Work
from devices.cost.language_kernels import columns, log2, logs
from devices.presets import yaml_beside
from sim.base.arrays import BoolArray, FloatArray

# ---- products in fp32 on vector units ----------------------------------------------------------------------

# The library's tiles, columns (n) by rows (m) of the output. A step over k loads tile_n + tile_m operands
# from shared memory for tile_n * tile_m multiply-adds, which costs OPERANDS * (1 / tile_n + 1 / tile_m) of
# the arithmetic: measured efficiencies of six tiles on an A100 lie on that line.
OPERANDS: Final = 10.0
_BATCHED_TILES: Final = {
    "pascal": [(128, 64)],
    "volta": [(64, 64), (32, 128)],
    "turing": [(64, 64), (128, 64), (128, 32)],
    "newer": [(128, 128)],
}
_LINEAR_TILES: Final = {
    "pascal": [(32, 128), (64, 64), (128, 32)],
    "newer": [(128, 128), (128, 64), (128, 32), (32, 128), (64, 32), (32, 32)],
}
_ON_AN_SM: Final = 128 * 128  # elements of the output that the blocks have which an SM runs at once
_PASCAL_CHOICE: Final = np.array([(4, 0.8, 0.95), (8, 0.2, 1.0), (4, 0.2, 1.5)]).T
"""Of each tile of Pascal's linear layers: blocks that an SM runs at once, the part of the last wave's idle
ones that counts, and the time of an element beside the others. By these alone the library chooses, whatever k
is and L2 loses: 87 and 72 % of 12,846 kernels on P100 and P4 (the quickest would be 45 and 49 %)."""
_DRIFT: Final = 100.0
"""How many times L2 the strips of a wave of blocks are, of which half of the reuse is lost as blocks fall out
of step: from P100 and P4, each at the other's rate. What is lost moves at 0.3 of DRAM's rate on all."""
_WIDE_SM = 1.2
"""An SM with 128 lanes issues less than it computes: 47.3 of 60.3 TFLOP/s in fp32 on an H200
(github.com/xzwgit/gpu-flops-bench). An A100, with 64, reaches 0.93: its schedulers issue to 16 lanes and have
every other cycle for what is no arithmetic. Pascal's issue to 32 where an SM has 64, too; its products are
written by hand to pair instructions, its convolutions take as much longer (3x3 of P100 beside V100)."""


def _load_inflation(tile_n: Any, tile_m: Any) -> Any:
    """Return what a multiply-add costs with the loads of its operands, as a multiple of that with tiles of
    128 x 128.
    """
    return (1 + OPERANDS * (1 / tile_n + 1 / tile_m)) / (1 + OPERANDS / 64)


def _filling(tiles: FloatArray, k: FloatArray, sms: Any) -> FloatArray:
    """Return into how many parts k is cut for the tiles to fill the SMs."""
    return np.asarray(np.clip(np.floor(2 * sms / tiles), 1, np.maximum(1, np.floor(k / 64))))


def _issue_factor(sheet: Sheet) -> float:
    """Return the time of fp32 arithmetic as a multiple of what the peak says."""
    return _WIDE_SM if sheet.peak_of("fp32") / (2 * sheet.clock_hz * sheet.sms) > 96 else 1.0


def _missed_bytes(
    m: Any, n: Any, k_bytes: Any, tile_m: Any, tile_n: Any, at_once: Any, l2: Any
) -> FloatArray:
    """Return the bytes of operands that L2 does not have when another thread block wants them.

    Blocks run along the columns of the output, `at_once` of them. Those read strips of both operands, each
    once as far as they keep step; the columns' operand is read again for the next rows if L2 cannot hold it.
    """
    across, down = np.ceil(n / tile_n), np.ceil(m / tile_m)
    wide, high = np.minimum(across, at_once), np.clip(at_once / across, 1, down)
    held = (n * k_bytes / l2) ** 2
    in_step = n * k_bytes * (down / high - 1) * held / (1 + held)
    strips = (wide * tile_n + high * tile_m) * k_bytes
    alone = across * down * (tile_m + tile_n) * k_bytes - (m + n) * k_bytes
    return np.asarray(in_step + np.maximum(alone - in_step, 0) * strips / (strips + _DRIFT * l2))


def _product(
    s: Sizes, sheet: Sheet, dtype: str, shapes: Mapping[str, list[tuple[int, int]]], linear: bool
) -> KernelWork:
    """Return what out[batch, m, n] = sum over k of a * b asks: a column a tile. With weights stored as (n, k)
    again with k cut, and operands are loaded in pieces of 32 bytes. It computes for `times` as long.
    """
    batch, m, n, k, times = (column[:, None] for column in columns(s, "batch m n k times", times=1))
    width = ELEMENT_BYTES[dtype]
    tile_n, tile_m = np.array(shapes.get(sheet.generation, shapes["newer"]), float).T[:, None, :]
    tiles = batch * np.ceil(n / tile_n) * np.ceil(m / tile_m)
    parts: FloatArray = np.ones_like(tiles)
    missed: FloatArray = 0 * tiles
    if linear:
        on_an_sm = _ON_AN_SM / (tile_n * tile_m)
        if sheet.generation == "pascal":
            on_an_sm, lost, slower = _PASCAL_CHOICE[:, None, :]
            waves = tiles / (on_an_sm * sheet.sms)
            quickest = np.argmin(slower * on_an_sm * (waves + lost * (np.ceil(waves) - waves)), 1)[:, None]
            tiles, tile_n, tile_m, on_an_sm = (
                np.take_along_axis(x + 0 * tiles, quickest, 1) for x in (tiles, tile_n, tile_m, on_an_sm)
            )
            parts = _filling(tiles, k, sheet.sms * on_an_sm / 2)
        else:
            parts = np.concatenate([parts, _filling(tiles, k, sheet.sms)], 1)
            tiles, tile_n, tile_m, on_an_sm = (
                np.concatenate([x + 0 * tiles] * 2, 1) for x in (tiles, tile_n, tile_m, on_an_sm)
            )
        at_once = np.maximum(1, sheet.sms * on_an_sm / parts)
        missed = _missed_bytes(m, n, k * width, tile_m, tile_n, at_once, sheet.l2_bytes)
    part_k = np.ceil(k / parts / 8) * 8
    out, deep = batch * m * n * width, tiles * parts * part_k
    return KernelWork(
        flops=2 * tile_n * tile_m * _load_inflation(tile_n, tile_m) * _issue_factor(sheet) * deep * times,
        dram_bytes=(batch * (m + n) * k * width + out)[:, 0],
        load_bytes=(tile_n + tile_m) * width * deep,
        missed_bytes=missed,
        blocks=tiles * parts,
        steps=part_k / 8,
        join_bytes=np.where(parts > 1, 2 * parts * out, 0.0),
        joins=(parts > 1) * 1.0,
        dtype=dtype,
    )


batched_work: Final[Work] = partial(_product, shapes=_BATCHED_TILES, linear=False)
"""Of a batched product, or of one whose weights are stored as (k, n): the library's other kernels."""
linear_work: Final[Work] = partial(_product, shapes=_LINEAR_TILES, linear=True)
"""Of a linear layer, its weights stored as (n, k)."""


def library_kernels(
    kind: str, given: Sequence[Mapping[str, Any]], generation: str
) -> tuple[BoolArray, FloatArray]:
    """Return which products take the kernels of linear layers, and how many times as long others compute.

    Of one matrix Volta's and Turing's do, however its weights are stored: they have larger tiles than those
    of batches. The few in the tables are 9 % off so on a V100 and 39 % on a T4, with the others 43 and 83 %.

    On Pascal the first are cublasLt's, which PyTorch calls for the sake of a bias: GPT-2's vocabulary, which
    has none, is 1 % (P100) and 6 % off (P4) as cuBLAS's product. With weights stored as (k, n) and a bias,
    cublasLt's tile beside cuBLAS's says 1.13 times: GPT-2's take 1.14 (P100) and 1.15 times (P4).
    """
    stored = np.array([kind == "linear" or bool(op.get("transposed")) for op in given], bool)
    if generation != "pascal":
        return stored | (generation in ("volta", "turing")), np.ones(len(given))
    bias = [not kind.endswith("_grad") and _adds_bias(op) for op in given]
    slower = _load_inflation(*_LINEAR_TILES["pascal"][0]) / _load_inflation(*_BATCHED_TILES["pascal"][0])
    return stored & [adds is not False for adds in bias], np.where([adds is True for adds in bias], slower, 1)


def _adds_bias(op: Mapping[str, Any]) -> bool | None:
    """Return whether PyTorch's operator of a product adds a bias; None where nobody says."""
    name = "".join(re.split(r"::|\.", str(op.get("operator") or op.get("aten") or ""))[1:2])
    if name == "linear" and "arguments" in op:
        return has_bias(op)
    return {"addmm": True, "mm": False}.get(name)


def has_bias(op: Mapping[str, Any]) -> bool:
    """Return whether the third argument of PyTorch's operator is a tensor; another's may be anything."""
    given = op.get("arguments")
    return isinstance(given, list | tuple) and "tensor" in given[2:3]


# ---- what memory bounds: elementwise, softmax, norms -------------------------------------------------------

_ELEMENTS: Final = "elements operands element_flops"
_THREADS, _PER_THREAD, _ON_SM = 128, 4, 16
_ALONE = 4
"""Thread blocks, of the 16 that an SM has at most, from which on it computes at its rate: a block has a warp
on each quarter of an SM, and a warp issues every fourth cycle. In the tables the launch hides this."""
_LOADS, _JOINING = 4, 4
"""Numbers that a thread of a reduction loads at once (PyTorch's `vt0`), and how many such steps its block
takes to join those of its threads. A step is a latency of DRAM. This, the step and `join_ns` (families.yaml)
of blocks that share an output are from 50 reductions of eight recordings; without BERT's or ResNet-50's,
joining would be six steps. Recordings left out are 10 to 38 % off, before 28 to 82 %."""
_INDEX_BYTES: Final = 34.0
"""What working out an element's place in a tensor of other shape or order costs, as bytes from L2: such
kernels pass 300 to 390 elements a ns on an H100, in fp32 and bf16 alike, where DRAM would allow 400 and 800.
"""

_COLUMNWISE: Final = 3.4
"""... as a multiple, where neighbours of the result are none in an operand, so that each brings 32 bytes from
L2: 125 elements a ns where TimeSformer transposes its keys on an H100."""
_TILE_BYTES: Final = 20.0  # ... of one in a tile of a conversion, which passes shared memory


def elementwise_work(s: Sizes, sheet: Sheet, dtype: str) -> KernelWork:
    """Return what an elementwise kernel asks: `elements` written, `operands` tensors read, each element once.

    `indexed` is 1 where operands differ in shape or order; by tiles, threads work on `tiled` places for each
    element. A reduction has `threads`, and `joins` if several blocks share an output. In a program (`eager`)
    L2 does not have the tensor that a kernel writes, as it is another each time, or that a reduction reads.
    """
    more = dict.fromkeys(("indexed", "tiled", "threads", "joins", "eager"), 0)
    names = " ".join((_ELEMENTS, *more))
    n, operands, flops, indexed, tiled, threads, joins, eager = columns(s, names, element_flops=2, **more)
    reduces, places = threads > 0, n * np.maximum(1, tiled)
    blocks = np.where(reduces, threads / _THREADS, np.ceil(places / (_THREADS * _PER_THREAD)))
    shared = np.where(eager > 0, np.clip(blocks / sheet.sms, _ALONE, _ON_SM) / _ON_SM, 1.0)
    return KernelWork(
        load_bytes=(_INDEX_BYTES * indexed + _TILE_BYTES * tiled) * n * shared,
        strided=indexed > 0,
        flops=flops * n * shared,
        warm_bytes=n * (operands + 1) * ELEMENT_BYTES[dtype],
        fresh=eager / (operands + 1),
        blocks=blocks / _ON_SM,
        steps=reduces * (n / np.maximum(threads, 1) / _LOADS + _JOINING),
        joins=joins,
        dtype="fp32",  # narrower numbers are widened
    )


def elementwise_features(s: Sizes, sheet: Sheet, dtype: str) -> dict[str, FloatArray]:
    """Return bytes, also over L2, and operands and flop an element."""
    n, operands, flops = columns(s, _ELEMENTS, element_flops=2)
    nbytes = n * (operands + 1) * ELEMENT_BYTES[dtype]
    return {
        "l2": log2(nbytes / sheet.l2_bytes),
        "bytes": log2(nbytes),
        "operands": operands,
        "flops": log2(np.maximum(flops, 1)),
    }


_ROWS: Final = "rows columns tensors"
_SECTOR, _WARP = 32, 32  # bytes that memory and caches move together, and threads that load them
_IN_REGISTERS, _PAIRED = 1024, 128  # columns of a row that a warp keeps; of two that it takes at once
_ROW_THREADS, _SINGLES = 1024, 2.3
"""Threads that take a longer row in 16 bits, and how many times as long as its bytes a step of theirs takes:
number by number, what is no whole step of 8 each of a row that begins at no multiple of 16 bytes
(`ilpReduce`, PyTorch's SoftMax.cu). From 3,137 columns on an H100 (TimeSformer). In fp32 nothing changes.
"""


def rows_work(s: Sizes, sheet: Sheet, dtype: str) -> KernelWork:
    """Return what a kernel asks that reduces rows and writes them back (softmax, layer norm): in and out
    once each.

    A row is a warp's or a thread block's, so short rows leave threads idle and long ones are read more than
    once, from L2. Rows of less than a warp share it.
    """
    rows, width, tensors, flops, eager = columns(
        s, f"{_ROWS} element_flops eager", tensors=2, element_flops=20, eager=0
    )
    n = rows * width
    nbytes = n * tensors * ELEMENT_BYTES[dtype]
    odd = (width > _IN_REGISTERS) & (width % 8 > 0) & (ELEMENT_BYTES[dtype] < 4)
    rest = width % (8 * _ROW_THREADS)
    steps = np.ceil(rest / _ROW_THREADS) + 1  # one joins what the threads found
    slower = 1 + (_SINGLES * _ROW_THREADS * steps - rest) / width
    return KernelWork(
        flops=flops * n,
        warm_bytes=np.where(odd, slower, 1.0) * nbytes,
        fresh=eager / tensors,
        blocks=rows * np.minimum(1, width / 32) / np.where(width <= _PAIRED, 16, 8),
        steps=np.ceil(width / 256),
        dtype=dtype,
    )


def rows_features(s: Sizes, sheet: Sheet, dtype: str) -> dict[str, FloatArray]:
    """Return rows (also an SM), columns, whether rows are long or begin within a sector; bytes over L2."""
    rows, width, tensors = columns(s, _ROWS, tensors=2)
    nbytes = rows * width * tensors * ELEMENT_BYTES[dtype]
    odd = (width > _WARP) & (width <= _IN_REGISTERS) & (width * ELEMENT_BYTES[dtype] % _SECTOR > 0)
    return {
        "rows": log2(rows),
        "columns": log2(width),
        "long": np.where(width > _IN_REGISTERS, 1.0, 0.0),
        "odd": odd * 1.0,
        "rows_per_sm": log2(rows * np.minimum(1, width / 32) / sheet.sms),
        "l2": log2(nbytes / sheet.l2_bytes),
        "bytes": log2(nbytes),
    }


# ---- convolutions ------------------------------------------------------------------------------------------

# On tensor cores thread blocks have large tiles, channels are padded to fill 16 bytes, and k is cut where SMs
# would idle, but not for the gradient of the input. On vector units only the gradient of weights cuts k.
# Winograd F(2x2, 3x3) multiplies 2.25 times less, fused in one kernel; F(4x4, 3x3) 4 times less, with its
# transforms as kernels of their own that pass (4 + 2)^2 numbers for 16 pixels and for 9 weights through
# memory (Lavin and Gray, arXiv:1509.09308). Of 5x5 and more, a Fourier transform leaves about a tenth of a
# multiplication an element. Columns: tile_n, tile_m, may split k, side of Winograd's cell (5: Fourier).
_LARGE_TILES: Final = ((128, 128), (64, 256))
_VECTOR_TILES: Final = ((128, 128), (128, 256), (64, 256), (32, 256), (8, 256), (1, 256))
_WEIGHT_TILES: Final = ((128, 128), (128, 32), (32, 128), (8, 128), (1, 128))
_TRANSFORMED: Final = ((64, 64, 0, 2), (32, 64, 0, 2), (64, 64, 0, 4), (64, 64, 0, 5))
_FEWEST: Final = 4  # columns of a tile whose operands a vector unit loads anew: it keeps several pixels
_FEW_CHANNELS: Final = 4.0
"""How many times as long operands take that are gathered tap by tap, as channels do not fill 16 bytes: 4 on
a V100 (its vector units do it), 3.4 and 4.9 for two vision transformers' patches on an H100."""
_FIRST_LAYER: Final = 7
"""Up to which size newer libraries have kernels of their own for the first layer: ResNet-18 takes 73 us
an image on an RTX 4090, of which the first layer would take 22 if it were gathered."""
_TENSOR_COLUMNS: Final = 16  # of which an instruction computes several rows
_SIDE_BY_SIDE: Final = 64  # channels whose gradients by weights a tile takes together
_TRANSFORM: Final = 2.0  # bytes from L2 that one of a transform costs: part of them come from DRAM


def _direction(s: Sizes) -> str:
    return str(np.ravel(s.get("direction", "forward"))[0])


def _ways(dtype: str, direction: str, tensor: bool) -> FloatArray:
    """Return the columns that a library may choose from."""
    weights = direction == "backward_weights"
    large = tensor or (ELEMENT_BYTES[dtype] <= 2 and not weights)
    tiles = _LARGE_TILES if large else _WEIGHT_TILES if weights else _VECTOR_TILES
    splits = (0, 1) if weights or (large and direction == "forward") else (0,)
    ways = [(*tile, split, 0) for tile in tiles for split in splits]
    return np.array(ways if large else [*ways, *_TRANSFORMED], float).T


NATIVE_NCHW: Final = frozenset(("pascal", "volta"))
"""Whose convolutions compute in the layout that PyTorch and ONNX have; tensor cores of later ones want
channels last, and the library converts (`cudnn::nchwToNhwcKernel`), but for a recorded kernel."""
_CONV_SIZES: Final = "in_channels out_channels kernel_h kernel_w stride_h stride_w group"
_ONE: Final = dict.fromkeys(("stride_h", "stride_w", "group", "dilation"), 1.0)


def implicit_product(s: Sizes) -> tuple[list[FloatArray], list[FloatArray], list[FloatArray]]:
    """Return groups, m, n, k of the implicit product; elements of input, weights, output; the output's
    height and width.
    """
    names = f"{_CONV_SIZES} batch height width pad_h pad_w dilation"
    cin, cout, kh, kw, sh, sw, groups, batch, h, w, ph, pw, dilation = columns(
        s, names, pad_h=0, pad_w=0, **_ONE
    )
    oh = np.maximum(np.floor((h + 2 * ph - dilation * (kh - 1) - 1) / sh) + 1, 1)
    ow = np.maximum(np.floor((w + 2 * pw - dilation * (kw - 1) - 1) / sw) + 1, 1)
    cin, cout = cin / groups, cout / groups
    direction = _direction(s)
    if direction == "forward":
        m, n, k = batch * oh * ow, cout, cin * kh * kw
    elif direction == "backward_data":  # a product per output pixel, spread over the input
        m, n, k = batch * h * w, cin, cout * kh * kw * (oh * ow) / (h * w)
    else:
        m, n, k = cin * kh * kw, cout, batch * oh * ow
    tensors = [batch * groups * cin * h * w, groups * cin * cout * kh * kw, batch * groups * cout * oh * ow]
    return [groups, m, n, k], tensors, [oh, ow]


def conv_work(s: Sizes, sheet: Sheet, dtype: str) -> KernelWork:
    """Return what a convolution asks as an implicit product, by Winograd or Fourier: one column a way."""
    product, tensors, out = implicit_product(s)
    width, direction = ELEMENT_BYTES[dtype], _direction(s)
    tensor = dtype not in ("fp32", "fp64") and sheet.generation != "pascal"
    g, m, n, k, given, weights, written, oh, ow = (x[:, None] for x in (*product, *tensors, *out))
    cin, cout, kh, kw, sh, sw, _ = (x[:, None] for x in columns(s, _CONV_SIZES, **_ONE))
    cin, cout = cin / g, cout / g
    if width < 4 and direction == "backward_data":  # pixels of one remainder have as many taps
        m, k = m * np.minimum(1, kh / sh) * np.minimum(1, kw / sw), cout * np.ceil(kh / sh) * np.ceil(kw / sw)
    slower, whole = np.ones_like(m), np.zeros_like(m, bool)
    if tensor:
        fill = 16 / width
        odd = (cin < fill) | (cout < fill)  # of more, the library fills up the last ones with zeros
        first = (kh <= _FIRST_LAYER) & (sheet.generation not in NATIVE_NCHW)
        if direction == "backward_weights":
            together = np.where(odd, fill, _SIDE_BY_SIDE)
            m = m * np.ceil(cin / together) * together / cin
        else:
            deep = cin if direction == "forward" else cout
            least = np.where((g == 1) & first & (deep < fill / 2), fill / 2, fill)
            k = k * np.ceil(deep / least) * least / deep
        slower = np.where(odd & (g == 1) & ~first, _FEW_CHANNELS, 1.0)
        whole = odd & (direction == "forward")
    tile_n, tile_m, may_split, cell = _ways(dtype, direction, tensor)
    side, area, plain = np.maximum(cell, 1), kh * kw, (sh == 1) & (g == 1)
    winograd, fourier = (cell > 0) & (cell < 5), cell == 5
    padded = np.where(winograd, np.ceil(oh / side) * np.ceil(ow / side) * side**2 / (oh * ow), 1.0)
    less = np.where(fourier, np.maximum(1, area / 10), np.where(winograd, 9 * side**2 / (side + 2) ** 2, 1.0))
    beside: Any = 1  # groups whose columns share a tile
    if tensor:
        columns_each = np.ceil(n / _TENSOR_COLUMNS) * _TENSOR_COLUMNS
        beside = np.clip(np.floor(tile_n / columns_each), 1, g)
        tile_n = np.where(beside > 1, columns_each * beside, tile_n)
    tiles = np.ceil(g / beside) * np.ceil(n / tile_n) * np.ceil(m * padded / tile_m)
    split = np.where((may_split > 0) & ~whole, _filling(tiles, k, sheet.sms), 1.0)
    part_k = np.ceil(k / split / 8) * 8
    flops = 2 * tiles * split * tile_n * tile_m * part_k / less * slower
    if not tensor:
        flops = flops * _load_inflation(np.maximum(tile_n, _FEWEST), tile_m)
    possible = plain & np.where(winograd, (kh == 3) & (kw == 3), area >= 25)
    flops = np.where((cell > 0) & ~possible, 1e3 * flops, flops)
    if dtype == "fp32":  # heat counts half by logarithm, whatever the size: convolutions pause more
        issued = _WIDE_SM if sheet.generation == "pascal" else _issue_factor(sheet)
        flops = flops * issued / np.sqrt(sheet.sustained.get("fp32", 1.0))
    flops = flops * (
        1 + 1e-9 * np.arange(tiles.shape[1])
    )  # of equal tiles the first, however a sum is rounded
    passes = np.where(cell >= 4, width * padded * (2 * 36 / 16 * (given + written) + 2 * 4 * weights), 0.0)
    partial = np.where(split > 1, 2 * split * g * m * n * 4, 0.0)
    seen = given * np.minimum(1, kh / sh)  # rows between two strides are not read
    return KernelWork(
        flops=flops,
        dram_bytes=width * (seen + weights + written)[:, 0],
        load_bytes=tiles * split * (tile_n + tile_m) * part_k * width / less,
        blocks=tiles * split,
        steps=part_k / 8,
        join_bytes=partial + _TRANSFORM * passes,
        joins=np.where(split > 1, 1.0, 0.0) + np.where(cell >= 4, 1.0, 0.0),
        dtype=dtype,
        heats=dtype != "fp32",
    )


def layout_conversions(s: Sizes) -> list[dict[str, Any]]:
    """Return sizes of the conversions between NCHW and NHWC of input, weights and output: memory has their
    numbers, SMs work on tiles of 32 pixels and 32 channels, filled or not.

    On an H100, 3 channels of 4 x 224 x 224 pixels take as long as 3 x 768 of 16 x 16 (10.4 us), and five
    times as long as 768 of 4 x 14 x 14.
    """
    cin, cout, group = columns(s, "in_channels out_channels group", group=1)
    channels = cin, cin / group, cout
    tensors = zip(implicit_product(s)[1], channels, strict=True)
    return [{"elements": n, "tiled": np.ceil(c / 32) * 32 / c, "operands": 1, "eager": 1} for n, c in tensors]


_NATIVE_TAP, _NATIVE_TAP_HALVES, _NATIVE_GRAD = 36.0, 30.0, 1.47
"""Flop that PyTorch's own depthwise kernels take for each weight of each output, in 32 and in 16 bits; how
many times as much a gradient takes. A V100 does 312 and 372 G a second forward (two EfficientNets in fp32,
DeepLearningExamples), and in three passes 293 (pytorch#40801); ConvMixer infers on RTX 3090 and 4090."""
_LAST_TAP: Final = 8.0
"""The same of cuDNN's with channels last: ConvMixer infers on an RTX 3090 (on a 4090 then 0 % off)."""
_TAP_SUMS: Final = 5.0
"""How many times as long as forward cuDNN's gradient by the few weights takes in fp16: training steps of
MobileNet v2 and MnasNet on an RTX 3090 (pytorch-image-models)."""


def depthwise_kernel(s: Sizes, way: str, dtype: str, nhwc: BoolArray) -> tuple[dict[str, Any], FloatArray]:
    """Return sizes of depthwise convolutions as elementwise kernels, and how many times as long these take.

    In fp16 PyTorch calls cuDNN's for what `use_cudnn_depthwise` lists (aten/src/ATen/native/Convolution.cpp,
    from cuDNN 8.2), at two thirds of memory's rate. Its own kernels compute, the gradient of the input for
    each number of it, also where a stride left most taps out (aten/src/ATen/native/cuda/DepthwiseConv2d.cu).
    """
    _, (read, weights, written), _ = implicit_product(s)
    side, image, many = s["kernel_h"], s["width"], s["in_channels"]
    halved = (s["stride_h"] == 2) & (side > 1) & ((many >= 512) | ((many >= 256) & (image >= 28)))
    listed = (side == s["kernel_w"]) & np.isin(side, (1, 3, 5)) & (s["dilation"] == 1) & (image >= 7)
    listed &= (many >= 32) & ((s["stride_h"] == 1) | halved) & (dtype == "fp16")
    of_cudnn, inputs = nhwc | listed, read / written if way == "backward_data" else 1.0
    native = _NATIVE_TAP_HALVES if ELEMENT_BYTES[dtype] == 2 else _NATIVE_TAP
    native *= 1 if way == "forward" else _NATIVE_GRAD
    last = np.where(nhwc & (way != "backward_weights"), _LAST_TAP, 2)
    flops = side * s["kernel_w"] * np.where(of_cudnn, last, native * inputs)
    operands = (read + weights) / written + np.where(of_cudnn, 1, 0)
    moved = {"elements": written, "operands": operands, "element_flops": flops}
    return moved, np.where(of_cudnn & (way == "backward_weights"), _TAP_SUMS, 1.0)


def conv_features(s: Sizes, sheet: Sheet, dtype: str) -> dict[str, FloatArray]:
    """Return sizes of the implicit product, channels, height, elements of the kernel, and stride."""
    (groups, m, n, k), _, _ = implicit_product(s)
    cin, height, kh, kw, stride = columns(s, "in_channels height kernel_h kernel_w stride_h", stride_h=1)
    return {
        "m": log2(m),
        "n": log2(n),
        "k": log2(k),
        "cin": log2(cin),
        "side": log2(height),
        "flops": log2(2 * groups * m * n * k),
        "kernel": log2(kh * kw),
        "strided": np.minimum(log2(stride), 1),
    }


GENERAL_DEMANDS: Final[Mapping[str, Demand]] = {
    "bmm": (batched_work, logs("m n k")),
    "linear": (linear_work, logs("m n k")),
    "elementwise": (elementwise_work, elementwise_features),
    **dict.fromkeys(("softmax", "layer_norm", "llm_rows"), (rows_work, rows_features)),
    **dict.fromkeys(("conv", "conv_any"), (conv_work, conv_features)),
}
"""Family -> its work and features."""

# ---- kinds that no table measures --------------------------------------------------------------------------

KINDS: Final = yaml_beside(__file__, "kinds.yaml")
"""Kind -> what the file says of it."""
_STRIDED: Final = re.compile(r"\b(unrolled_)?elementwise_kernel(_manual_unroll)?<")
"""Kernels of PyTorch that index each element: of operands with strides, or of several data types; AMD's."""
_OPERATOR: Final = re.compile("aten::((?!pow).*?)(?:_|_backward)?")
"""What PyTorch calls an elementwise kernel; a power is mostly a square, which it multiplies."""


_REDUCTION: Final = re.compile(r"reduce_kernel<\d+, (\d+)")
"""PyTorch's, and how many outputs a thread has at once."""
_OF_A_THREAD, _LARGEST = 32, 512  # numbers of a reduction whose launch is not known; threads of a block


def is_eager(attributes: Sequence[Mapping[str, Any]]) -> BoolArray:
    """Return which ops PyTorch launches one by one: those that name its operator, as ``aten: mm`` of a graph
    or ``operator: aten::mm`` of a recording.
    """
    says = ("aten" in op or str(op.get("operator", ""))[:6] == "aten::" for op in attributes)
    return np.fromiter(says, bool, len(attributes))


def _threads_of(numbers: float, op: Mapping[str, Any]) -> tuple[float, bool]:
    """Return the threads of a reduction, times the outputs of each, and whether blocks share an output."""
    if "kernel" not in op:
        return max(numbers / _OF_A_THREAD, min(numbers, _LARGEST)), False
    found, launch = _REDUCTION.search(str(op["kernel"])), (*op.get("grid", ()), *op.get("block", ()))
    if found is None or len(launch) != 6:
        return 0, False
    return math.prod(launch) * int(found[1]), launch[1] > 1  # along y blocks share an output


def by_bytes(
    kind: str,
    nbytes_read: FloatArray,
    nbytes_written: FloatArray,
    dtype: str,
    attributes: Sequence[Mapping[str, Any]] = (),
) -> list[dict[str, Any]]:
    """Return the sizes of the elementwise kernels that an op of this kind launches, by its own bytes.

    Of recorded kernels ``kernel`` and ``operator`` among `attributes` tell what their kind does not.

    Examples
    --------
    >>> [one] = by_bytes("add", np.array([8.0]), np.array([4.0]), "fp32")
    >>> [float(np.ravel(one[name])[0]) for name in ("elements", "element_flops", "operands")]
    [1.0, 2.0, 2.0]
    """
    width = ELEMENT_BYTES.get(dtype, 4.0)
    reduces = nbytes_read > 4 * nbytes_written
    most = np.maximum(np.where(reduces, nbytes_read, nbytes_written), width)
    forward = kind.removesuffix("_grad")
    itself, of_forward = KINDS.get(kind, {}), KINDS.get(forward, {})
    given = attributes or [{}]  # one for all ops
    operands: Sequence[Any] = of_forward.get("gradient", ()) if forward != kind else ()
    if operands and "nhwc" in of_forward:
        last = (width == 2) & np.array([op.get("data_format") == "NHWC" for op in given])
        operands = [np.where(last, *pair) for pair in zip(of_forward["nhwc"], operands, strict=True)]
    if not operands:
        more = itself.get("reads", 0.0)
        if "trained" in itself:
            trained = [bool(op.get("training_mode")) for op in given]
            more = np.where(trained, itself["trained"], more)
        operands = [np.maximum((nbytes_read + nbytes_written) / most - 1, 0) + more]
    beside = nbytes_read - most  # of the smaller operand, where one is stretched to the other's shape
    stretched = (beside > 8) & (beside < 0.9 * most) & (of_forward.get("indexes") == "stretched")
    strided = np.array([_STRIDED.search(str(op.get("kernel", ""))) is not None for op in given])
    always = of_forward.get("indexes") == "always"
    indexed = np.where(stretched | strided | always, 1.0, 0.0)
    columnwise = np.array([bool(op.get("columnwise")) for op in given])
    indexed = np.where(columnwise, _COLUMNWISE, indexed)
    usual = of_forward.get("flops", 2.0)
    named = [_OPERATOR.fullmatch(str(op.get("operator", ""))) for op in given]
    flops = np.array([KINDS.get(name[1], {}).get("flops", usual) if name else usual for name in named])
    launched = np.zeros((2, *most.shape))
    for i, op in enumerate(attributes if kind.startswith("reduce") else ()):
        launched[:, i] = _threads_of(most[i] / width, op)
    sizes = {"elements": most / width, "element_flops": flops, "indexed": indexed}
    sizes |= {"threads": launched[0], "joins": launched[1], "eager": is_eager(given)}
    return [{**sizes, "operands": reads} for reads in operands]
