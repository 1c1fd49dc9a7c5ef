"""The scratchpad of an NPU, and the tiles that pass through it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.memory import Operand, tile
from sim.base.errors import InfeasibleError, InputError

KIB = 1 << 10


def test_everything_at_once_needs_one_buffer() -> None:
    tiling = tile({"x": Operand(512), "y": Operand(256), "bias": Operand(64, resident=True)}, 832)
    assert (tiling.tiles, tiling.buffers, tiling.nbytes) == (1, 1, 832)
    assert tiling.tile_nbytes == {"x": 512, "y": 256, "bias": 64}


def test_fewest_tiles_double_buffered() -> None:
    # x: 16 rows of 64, y: 16 rows of 128; w stays (512). In n tiles, 2 × ceil(16 / n) × 192 + 512:
    #   n = 2: 3584, 3: 2816 (6 rows), 4: 2048, 5: 2048, 6: 1664, 8: 1280, 16: 896.
    operands = {"x": Operand(KIB, 64), "y": Operand(2 * KIB, 128), "w": Operand(512, resident=True)}
    for capacity, tiles, used in ((3583, 3, 2816), (2048, 4, 2048), (2047, 6, 1664), (896, 16, 896)):
        tiling = tile(operands, capacity)
        assert (tiling.tiles, tiling.buffers, tiling.nbytes) == (tiles, 2, used)
    assert tile(operands, 896).tile_nbytes == {"x": 64, "y": 128, "w": 512}
    # One buffer halves the streamed part, and lets nothing overlap.
    assert tile(operands, 704, buffers=1).nbytes == 704


def test_too_small_is_refused_with_the_size_that_would_do() -> None:
    operands = {"x": Operand(KIB, 64), "y": Operand(2 * KIB, 128), "w": Operand(512, resident=True)}
    with pytest.raises(
        InfeasibleError, match=r"matmul7 does not fit a scratchpad of 895 B, .* 896 B \(896 bytes\) would do"
    ):
        tile(operands, 895, what="matmul7")
    # A single granule cannot be cut: all at once is the least.
    with pytest.raises(InfeasibleError, match=r"\(128 bytes\) would do"):
        tile({"x": Operand(100, 100)}, 127)


def test_wrong_operands_are_refused() -> None:
    with pytest.raises(InputError, match="granules of 0"):
        tile({"x": Operand(10, 0)}, 100)
    with pytest.raises(InputError, match="0 buffers"):
        tile({}, 100, buffers=0)


def test_empty_operand_is_not_cut() -> None:
    assert tile({"x": Operand(0), "w": Operand(64, resident=True)}, 64).tiles == 1
    with pytest.raises(InfeasibleError, match=r"\(64 bytes\) would do"):
        tile({"x": Operand(0), "w": Operand(64, resident=True)}, 63)


operands = st.dictionaries(
    st.sampled_from("abc"),
    st.builds(Operand, st.integers(0, 5000), st.sampled_from([1, 7, 64, 500]), st.booleans()),
)


@given(operands, st.integers(0, 12_000), st.integers(1, 3))
def test_tiling_fits_and_the_least_size_is_the_least(
    given_operands: dict[str, Operand], capacity: int, buffers: int
) -> None:
    try:
        tiling = tile(given_operands, capacity, buffers=buffers)
    except InfeasibleError as error:
        least = int(str(error).rpartition("(")[2].split(" ")[0])
        assert least > capacity
        assert tile(given_operands, least, buffers=buffers).nbytes == least
        with pytest.raises(InfeasibleError):
            tile(given_operands, least - 1, buffers=buffers)
        return
    assert tiling.nbytes <= capacity
    for name, operand in given_operands.items():
        assert tiling.tile_nbytes[name] * (1 if operand.resident else tiling.tiles) >= operand.nbytes
    assert tiling.nbytes == room(given_operands, tiling.tiles, buffers)
    # And no fewer tiles would have done.
    assert all(room(given_operands, fewer, buffers) > capacity for fewer in range(1, tiling.tiles))


def room(given_operands: dict[str, Operand], tiles: int, buffers: int) -> int:
    """Return the bytes that so many tiles take, written down plainly."""
    total = 0
    for operand in given_operands.values():
        granules = math.ceil(operand.nbytes / operand.granule)
        part = operand.nbytes if operand.resident else math.ceil(granules / tiles) * operand.granule
        depth = buffers if tiles > 1 and not operand.resident else 1
        total += depth * math.ceil(min(part, operand.nbytes) / 64) * 64
    return total
