"""The model of prefill attention, one effect at a time, by hand; then what must hold for the fitted one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from devices.cost.attention import AttentionParameters, attention_ns, visible_pairs
from devices.cost.fitted import load_fit
from devices.cost.unreliable import UnreliableCostWarning
from sim.base.errors import InputError

# Only the tensor cores cost anything, and with heads of 128 elements one row against one key takes 1 ns:
# 4 * 128 flop at 512 flop/ns. Keys come in blocks of 128, rows in tiles of 64 or 128 at the same rate.
BARE = AttentionParameters(
    launch_ns=0,
    doubling_ns=0,
    token_ns=0,
    append_ns=0,
    append_half_elements=1,
    bandwidth_bytes_per_s=1e30,
    sm_flop_per_s=512e9,
    score_ns=0,
    tile_ns=0,
    tail=0,
    small_tile=1,
    wide_head=0,
    throttle=0,
    throttle_half_flops=1,
)


def took(
    batch: int,
    seq_len: int,
    heads: int = 1,
    kv_heads: int = 1,
    head_dim: int = 128,
    *,
    window: int = 0,
    sm_count: int = 1,
    **changed: float,
) -> int:
    parameters = dataclasses.replace(BARE, **changed)
    return int(
        attention_ns(batch, seq_len, heads, kv_heads, head_dim, parameters, window=window, sm_count=sm_count)
    )


def test_one_block_of_keys() -> None:
    assert took(1, 128) == 128 * 128
    assert took(1, 1) == 64 * 128  # a tile of 64 rows by a block of 128 keys, however little is wanted


def test_tiles_share_the_sms_and_small_ones_fill_them() -> None:
    assert took(1, 128, sm_count=2) == 64 * 128
    assert took(1, 128, sm_count=2, small_tile=0.25) == 128 * 128
    assert took(6, 128, sm_count=3) == 2 * 128 * 128


def test_heads_of_a_group_are_packed_into_a_tile() -> None:
    assert took(1, 1, heads=64, kv_heads=1) == 64 * 128
    assert took(1, 1, heads=64, kv_heads=64) == 64 * 64 * 128


def test_the_mask_halves_the_work_of_a_long_sequence() -> None:
    # Tiles of 64 rows: 64 of them; on average 4097/2 keys are seen, half a tile is masked away within the
    # tile and half a block is rounding: 2048.5 + 32 + 64.
    assert took(1, 4096) == 64 * 64 * 2144.5


def test_a_window_makes_the_work_linear() -> None:
    # 128 keys are seen by all but the first 127 rows: (128 * 129/2 + 3968 * 128)/4096 = 126.015625.
    assert took(1, 4096, window=128) == 64 * 64 * (126.015625 + 32 + 64)


def test_the_longest_tile_is_a_lower_bound_and_a_tail() -> None:
    # With as many SMs as tiles, the last tile has 4096 keys: 64 * 4096 ns. On one SM, half of it comes
    # on top.
    assert took(1, 4096, sm_count=64) == 64 * 4096
    assert took(1, 4096, tail=0.5) == 64 * 64 * 2144.5 + 32 * 4096


def test_exponentials_tiles_and_wide_heads_cost_more() -> None:
    assert took(1, 128, score_ns=0.5) == 1.5 * 128 * 128
    assert took(1, 128, tile_ns=1000) == 1000 + 128 * 128
    assert took(1, 128, head_dim=512, wide_head=0.5) == 1.5 * 4 * 128 * 128


def test_long_kernels_lose_clock() -> None:
    flops = 4 * 128 * (128 * 129 // 2)
    assert took(1, 128, throttle=0.5, throttle_half_flops=flops) == pytest.approx(128 * 128 / 0.75, abs=0.5)


def test_appending_costs_time_per_token_and_more_for_long_rows() -> None:
    free = {"sm_flop_per_s": 1e40}
    assert took(2, 10, **free, token_ns=3) == 60
    # A row of 2 x 128 elements is at the half size: half of 4 ns a token.
    assert took(2, 10, 2, 2, **free, append_ns=4, append_half_elements=256) == 40


def test_memory_traffic_of_both_kernels() -> None:
    # Queries 2 * 128 * 64 = 16,384 B, keys and values twice that. Append reads and writes the three
    # (98,304 B); attention reads them and writes results as large as the queries (65,536 B). At 1 B/ns:
    assert took(1, 128, head_dim=64, sm_flop_per_s=1e40, bandwidth_bytes_per_s=1e9) == 98_304 + 65_536
    # One token: 128 + 256 B are read and written; attention reads the whole block of 128 keys and values.
    assert took(1, 1, head_dim=64, sm_flop_per_s=1e40, bandwidth_bytes_per_s=1e9) == 768 + 256 + 32_768


def test_launches_and_doublings() -> None:
    assert took(1, 8, sm_flop_per_s=1e40, launch_ns=9000, doubling_ns=100) == 9300


@given(st.integers(1, 60), st.integers(0, 70))
def test_visible_pairs_are_those_of_the_mask(seq_len: int, window: int) -> None:
    query, key = np.mgrid[:seq_len, :seq_len]
    mask = (key <= query) & ((window == 0) | (query - key < window))
    assert visible_pairs(seq_len, window) == mask.sum()


SHAPES = st.tuples(
    st.integers(1, 64),
    st.integers(1, 8192),
    st.integers(1, 8),
    st.integers(1, 8),
    st.sampled_from([64, 128, 256]),
)


@given(SHAPES, st.integers(0, 2))
@examples(60)
def test_more_work_takes_no_less(shape: tuple[int, int, int, int, int], grown: int) -> None:
    """Twice the heads may save 3 %: a tile of several heads has fewer tokens, and the mask hides more."""
    h200 = load_fit().attention
    batch, seq_len, group, kv_heads, head_dim = shape
    small = (batch, seq_len, group * kv_heads, kv_heads, head_dim)
    large = [
        (batch + 1, seq_len, group * kv_heads, kv_heads, head_dim),
        (batch, 2 * seq_len, group * kv_heads, kv_heads, head_dim),
        (batch, seq_len, 2 * group * kv_heads, kv_heads, head_dim),
    ][grown]
    assert attention_ns(*small, h200) * (0.97 if grown == 2 else 1) <= attention_ns(*large, h200)


@given(SHAPES, st.integers(1, 10_000))
@examples(60)
def test_a_window_never_costs_more(shape: tuple[int, int, int, int, int], window: int) -> None:
    h200 = load_fit().attention
    batch, seq_len, group, kv_heads, head_dim = shape
    full = attention_ns(batch, seq_len, group * kv_heads, kv_heads, head_dim, h200)
    within = attention_ns(batch, seq_len, group * kv_heads, kv_heads, head_dim, h200, window=window)
    assert within <= full
    if window >= seq_len:
        assert within == full


def test_without_a_window_all_keys_are_seen() -> None:
    fit = load_fit()
    assert fit.attention_ns(1, 4096, 32, 8, 128) == attention_ns(1, 4096, 32, 8, 128, fit.attention, window=0)
    assert fit.attention_ns(1, 4096, 32, 8, 128) > fit.attention_ns(1, 4096, 32, 8, 128, window=1)


def test_arrays_broadcast() -> None:
    h200 = load_fit().attention
    together = attention_ns([[1], [8]], [128, 4096], 32, 8, 128, h200, window=[0, 1024])
    assert together.shape == (2, 2)
    assert together[1, 1] == attention_ns(8, 4096, 32, 8, 128, h200, window=1024)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="multiple of the key-value heads"):
        attention_ns(1, 1, 10, 4, 64, BARE)
    with pytest.raises(InputError, match="seq_len of attention"):
        attention_ns(1, 0, 8, 8, 64, BARE)
    with pytest.raises(InputError, match="window of attention"):
        attention_ns(1, 1, 8, 8, 64, BARE, window=-1)
    with pytest.raises(InputError, match="batch of attention"):
        attention_ns(1.5, 1, 8, 8, 64, BARE)
    with pytest.raises(InputError, match="sm_count"):
        attention_ns(1, 1, 8, 8, 64, BARE, sm_count=0)


def test_it_says_so_where_it_is_wrong_by_more_than_twofold() -> None:
    with pytest.warns(UnreliableCostWarning, match="one token of 512 elements"):
        load_fit().attention_ns(128, 1, 16, 2, 512)
    with pytest.warns(UnreliableCostWarning, match="one or two heads of 512"):
        load_fit().attention_ns(1, 2048, 1, 1, 512)
    assert load_fit().attention_ns(128, 1, 16, 2, 128) > 0  # warnings are errors here: none comes
