"""The model of matrix products, one effect at a time, by hand; then what must hold for any parameters."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from devices.cost.fitted import load_fit
from devices.cost.gemm import GemmParameters, gemm_ns
from devices.cost.unreliable import UnreliableCostWarning
from sim.base.errors import InputError

# Nothing costs anything but the tensor cores: a 64 x 8 tile (the smallest) takes 1 ns per element of k, as
# 2 * 64 * 8 flop = 1024 flop and an SM does 1024 flop/ns. Splitting k is made too dear to happen.
BARE = GemmParameters(
    launch_ns=0,
    k_latency_ns=0,
    sm_flop_per_s=1.024e12,
    sm_load_bytes_per_s=1e30,
    epilogue_ns=0,
    split_ns=1e12,
    quantisation=1,
    bandwidth_bytes_per_s=1e30,
    bandwidth_half_bytes=0,
    l2_bytes=1e-3,
    l2_bytes_per_s=1e30,
    overlap=1,
    throttle=0,
    throttle_half_flops=1,
)


def took(m: int, n: int, k: int, sm_count: int = 1, **changed: float) -> int:
    return int(gemm_ns(m, n, k, dataclasses.replace(BARE, **changed), sm_count=sm_count))


def test_one_tile() -> None:
    assert took(64, 8, 100) == 100
    assert took(1, 1, 100) == 100  # a tile is computed in full, however little of it is wanted


def test_tiles_take_turns_on_the_sms() -> None:
    assert took(64, 16, 100, sm_count=2) == 100
    assert took(64, 16, 100, sm_count=1) == 200


def test_the_last_wave_is_quantised() -> None:
    # Three tiles of 64 x 8 on two SMs: two waves of 100 ns. Or two of 64 x 16: one wave of 200 ns. If idle
    # SMs in the last wave cost nothing, 1.5 waves of 100 ns.
    assert took(64, 24, 100, sm_count=2) == 200
    assert took(64, 24, 100, sm_count=2, quantisation=0) == 150
    assert took(64, 24, 100, sm_count=2, quantisation=0.5) == 175


def test_a_full_wave_reaches_the_peak() -> None:
    # 12 x 11 tiles of 128 x 256 are one wave on 132 SMs, and
    # 2 * 1536 * 2816 * 64 flop / (132 * 1024 flop/ns) = 4096 ns.
    assert took(12 * 128, 11 * 256, 64, sm_count=132) == 4096


def test_k_is_split_when_it_pays() -> None:
    # One tile, k = 400, four SMs: 100 ns for each of four parts, 50 ns to join, and 4 x 512 partial sums of
    # 8 B (written and read) at 1638.4 B/ns: 10 ns. In two parts 200 + 50 + 5, in eight 2 x 50 + 50 + 20.
    assert took(64, 8, 400, sm_count=4, split_ns=50, l2_bytes_per_s=1.6384e12) == 160
    assert took(64, 8, 400, sm_count=4, split_ns=400) == 400


def test_the_slowest_of_cores_loads_and_latency_sets_the_pace() -> None:
    # A 64 x 8 tile loads 2 * (64 + 8) = 144 B per element of k: 2 ns at 72 B/ns.
    assert took(64, 8, 100, sm_load_bytes_per_s=72e9) == 200
    assert took(64, 8, 100, k_latency_ns=3) == 300


def test_each_tile_has_an_epilogue() -> None:
    # 320 ns for 128 x 128, so 10 ns for 64 x 8; two waves have two.
    assert took(64, 8, 100, epilogue_ns=320) == 110
    assert took(64, 16, 100, epilogue_ns=320) == 220


def test_launch_is_a_floor() -> None:
    assert took(1, 1, 1, launch_ns=2500) == 2501


def test_memory_moves_three_matrices_after_a_ramp() -> None:
    # 3 matrices of 2 MB at 1000 B/ns; a ramp of 2e6 * 6e6 / (2e6 + 6e6) = 1.5e6 B more.
    free = {"sm_flop_per_s": 1e40, "bandwidth_bytes_per_s": 1e12}
    assert took(1000, 1000, 1000, **free) == 6000
    assert took(1000, 1000, 1000, **free, bandwidth_half_bytes=2e6) == 7500


def test_activations_that_fit_are_found_in_the_l2_cache() -> None:
    # 4 MB from DRAM at 1000 B/ns, 2 MB from L2 at 2000 B/ns.
    free = {"sm_flop_per_s": 1e40, "bandwidth_bytes_per_s": 1e12, "l2_bytes_per_s": 2e12}
    assert took(1000, 1000, 1000, **free, l2_bytes=1e9) == 5000


def test_computing_and_memory_overlap_imperfectly() -> None:
    # 3000 ns of arithmetic; 2 * (64 * 3000 + 8 * 3000 + 64 * 8) = 433,024 B are 4000 ns at 108.256 B/ns.
    both = {"bandwidth_bytes_per_s": 108.256e9}
    assert took(64, 8, 3000, **both) == 7000
    assert took(64, 8, 3000, **both, overlap=2) == 5000
    assert took(64, 8, 3000, **both, overlap=30) == 4000


def test_long_products_lose_clock() -> None:
    # At the half size, half of 50 % is lost: 300 ns / 0.75.
    assert took(64, 8, 300, throttle=0.5, throttle_half_flops=2 * 64 * 8 * 300) == 400


SIZES = st.integers(1, 40_000)


@given(SIZES, SIZES, SIZES, st.sampled_from(["m", "n", "k"]), st.integers(1, 5000))
@examples(60)
def test_a_larger_product_takes_no_less(m: int, n: int, k: int, grown: str, more: int) -> None:
    h200 = load_fit().gemm
    small = {"m": m, "n": n, "k": k}
    large = {**small, grown: small[grown] + more}
    assert gemm_ns(**small, parameters=h200) <= gemm_ns(**large, parameters=h200)


@given(SIZES, SIZES, SIZES, st.integers(1, 131))
@examples(60)
def test_fewer_sms_take_no_less(m: int, n: int, k: int, sm_count: int) -> None:
    h200 = load_fit().gemm
    assert gemm_ns(m, n, k, h200, sm_count=sm_count) >= gemm_ns(m, n, k, h200)


def test_arrays_broadcast_and_are_their_elements() -> None:
    h200 = load_fit().gemm
    m, n = np.array([[1], [300], [4096]]), np.array([512, 7168])
    together = gemm_ns(m, n, 2048, h200)
    assert together.shape == (3, 2)
    assert together.dtype == np.int64
    alone = [[int(gemm_ns(a, b, 2048, h200)) for b in n.tolist()] for a in m.ravel().tolist()]
    assert together.tolist() == alone


def test_many_shapes_are_taken_in_parts() -> None:
    m = np.arange(1, 5000)
    assert gemm_ns(m, 64, 64, load_fit().gemm)[[0, 2047, 2048, 4998]].tolist() == [
        int(gemm_ns(int(m[i]), 64, 64, load_fit().gemm)) for i in (0, 2047, 2048, 4998)
    ]


@pytest.mark.parametrize("shape", [(0, 1, 1), (1, -1, 1), (1, 1, 1.5)])
def test_sizes_are_positive_and_whole(shape: tuple[int, int, int]) -> None:
    with pytest.raises(InputError, match="positive whole"):
        gemm_ns(*shape, BARE)


def test_there_is_an_sm() -> None:
    with pytest.raises(InputError, match="sm_count is at least 1"):
        gemm_ns(1, 1, 1, BARE, sm_count=0)


def test_it_says_so_where_it_is_wrong_by_more_than_twofold() -> None:
    h200 = load_fit()
    with pytest.warns(
        UnreliableCostWarning, match=r"m 1 to 7, n 1024, k 1536 to 2560.*measured table"
    ) as caught:
        doubtful = h200.gemm_ns([1, 4096], 1024, 2560)
    assert caught[0].filename == __file__
    assert doubtful.tolist() == gemm_ns([1, 4096], 1024, 2560, h200.gemm).tolist()
