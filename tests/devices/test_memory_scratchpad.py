"""The scratchpad of an NPU, and the tiles that pass through it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.cost.npu_tiles import Operand, fewest_tiles, taken_bytes
from sim.base.errors import InfeasibleError

KIB = 1 << 10


def test_everything_at_once_needs_one_buffer() -> None:
    operands = [Operand(512), Operand(256), Operand(64, resident=True)]
    assert fewest_tiles(operands, 832)[0] == 1
    assert taken_bytes(operands, 1) == 832


def test_fewest_tiles_double_buffered() -> None:
    # x: 16 rows of 64, y: 16 rows of 128; w stays (512). In n tiles, 2 × ceil(16 / n) × 192 + 512:
    #   n = 2: 3584, 3: 2816 (6 rows), 4: 2048, 5: 2048, 6: 1664, 8: 1280, 16: 896.
    operands = [Operand(KIB, 64), Operand(2 * KIB, 128), Operand(512, resident=True)]
    for capacity, tiles, used in ((3583, 3, 2816), (2048, 4, 2048), (2047, 6, 1664), (896, 16, 896)):
        assert (fewest_tiles(operands, capacity)[0], taken_bytes(operands, tiles)) == (tiles, used)
    # One buffer halves the streamed part, and lets nothing overlap.
    assert taken_bytes(operands, fewest_tiles(operands, 704, buffers=1)[0], buffers=1) == 704


def test_too_small_is_refused_with_the_size_that_would_do() -> None:
    operands = [Operand(KIB, 64), Operand(2 * KIB, 128), Operand(512, resident=True)]
    with pytest.raises(
        InfeasibleError, match=r"it does not fit a scratchpad of 895 B, .* 896 B \(896 bytes\) would do"
    ):
        fewest_tiles(operands, 895)
    # A single granule cannot be cut: all at once is the least.
    with pytest.raises(InfeasibleError, match=r"\(128 bytes\) would do"):
        fewest_tiles([Operand(100, 100)], 127)


def test_empty_operand_is_not_cut() -> None:
    operands = [Operand(0), Operand(64, resident=True)]
    assert fewest_tiles(operands, 64)[0] == 1
    with pytest.raises(InfeasibleError, match=r"\(64 bytes\) would do"):
        fewest_tiles(operands, 63)


some_operands = st.lists(
    st.builds(Operand, st.integers(0, 5000), st.sampled_from([1, 7, 64, 500]), st.booleans()), max_size=3
)


@given(some_operands, st.integers(0, 12_000), st.integers(1, 3))
def test_tiling_fits_and_the_least_size_is_the_least(
    operands: list[Operand], capacity: int, buffers: int
) -> None:
    try:
        tiles = fewest_tiles(operands, capacity, buffers)[0]
    except InfeasibleError as error:
        least = int(str(error).rpartition("(")[2].split(" ")[0])
        assert least > capacity
        assert taken_bytes(operands, fewest_tiles(operands, least, buffers)[0], buffers) == least
        with pytest.raises(InfeasibleError):
            fewest_tiles(operands, least - 1, buffers)
        return
    assert taken_bytes(operands, tiles, buffers) == room(operands, tiles, buffers) <= capacity
    # And no fewer tiles would have done.
    assert all(room(operands, fewer, buffers) > capacity for fewer in range(1, tiles))


def room(operands: list[Operand], tiles: int, buffers: int) -> int:
    """Return the bytes that so many tiles take, written down plainly."""
    total = 0
    for operand in operands:
        granules = math.ceil(operand.nbytes / operand.granule)
        part = operand.nbytes if operand.resident else math.ceil(granules / tiles) * operand.granule
        depth = buffers if tiles > 1 and not operand.resident else 1
        total += depth * math.ceil(min(part, operand.nbytes) / 64) * 64
    return total
