"""Rooflines: the textbook's numbers, exactly, and rational arithmetic as the judge of everything else."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from devices.cost.cost_models import roofline_ns
from devices.machine import make_device
from sim import GraphBuilder
from sim.base.errors import InputError
from sim.job.costs import costs_ns

SIZES = st.integers(0, 10**15)
RATES = st.integers(10**9, 10**16)  # at worst 10^15 / 10^9 s / 0.001 = 10^18 ns
EFFICIENCIES = st.integers(1, 1000).map(lambda thousandths: thousandths / 1000)


def half_up(value: Fraction) -> int:
    return (2 * value.numerator + value.denominator) // (2 * value.denominator)


def test_the_ridge_separates_arithmetic_from_memory() -> None:
    # 1 TFLOP/s and 100 GB/s meet at 10 flop/byte. 1e9 flop take 1 ms; 1e8 bytes take 1 ms as well.
    device = {"peak_flop_per_s": 10**12, "bandwidth_bytes_per_s": 10**11}
    flops = np.array([10**9, 10**9, 10**9])
    nbytes = np.array([10**7, 10**8, 10**9])
    assert roofline_ns(flops, nbytes, **device).tolist() == [10**6, 10**6, 10**7]


def test_without_parameters_everything_is_free() -> None:
    assert roofline_ns([10**18, 0], [10**18, 5]).tolist() == [0, 0]


def test_halves_round_up_once() -> None:
    # 2 flop/ns: 1 flop is 0.5 ns, 2 are 1 ns, 3 are 1.5 ns. The overhead comes after, whole.
    assert roofline_ns([0, 1, 2, 3], 0, peak_flop_per_s=2 * 10**9, overhead_ns=7).tolist() == [7, 8, 8, 9]


def test_efficiency_is_the_decimal_that_was_written() -> None:
    # At 70 % of 1 flop/ns, 7 flop take exactly 10 ns and 0.35 flop-halves never appear.
    assert roofline_ns(7 * 10**14, 0, peak_flop_per_s=10**9, efficiency=0.7) == 10**15
    assert roofline_ns(0, 3, bandwidth_bytes_per_s=10**9, memory_efficiency=0.3) == 10


@given(SIZES, SIZES, RATES, RATES, EFFICIENCIES, EFFICIENCIES, st.integers(0, 10**9))
def test_agrees_with_rational_arithmetic(
    flops: int,
    nbytes: int,
    peak: int,
    bandwidth: int,
    efficiency: float,
    memory: float,
    overhead: int,
) -> None:
    found = roofline_ns(
        flops,
        nbytes,
        peak_flop_per_s=peak,
        bandwidth_bytes_per_s=bandwidth,
        efficiency=efficiency,
        memory_efficiency=memory,
        overhead_ns=overhead,
    )
    compute = Fraction(flops * 10**9) / (peak * Fraction(str(efficiency)))
    move = Fraction(nbytes * 10**9) / (bandwidth * Fraction(str(memory)))
    assert int(found) == half_up(max(compute, move)) + overhead


@given(st.lists(SIZES, min_size=1, max_size=20), RATES)
def test_an_array_is_its_elements(flops: list[int], peak: int) -> None:
    together = roofline_ns(flops, 0, peak_flop_per_s=peak)
    assert together.dtype == np.int64
    assert together.tolist() == [int(roofline_ns(one, 0, peak_flop_per_s=peak)) for one in flops]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"flops": -1, "nbytes": 0}, "not negative"),
        ({"flops": 1.5, "nbytes": 0}, "whole"),
        ({"flops": 1, "nbytes": 0, "peak_flop_per_s": 0}, "positive"),
        ({"flops": 1, "nbytes": 0, "efficiency": 0.0}, "efficiency"),
        ({"flops": 1, "nbytes": 0, "memory_efficiency": 1.5}, "efficiency"),
        ({"flops": 1, "nbytes": 0, "overhead_ns": -1}, "overhead"),
        ({"flops": 2**62, "nbytes": 0, "peak_flop_per_s": 1}, "292 years"),
        ({"flops": 2**62, "nbytes": 0, "peak_flop_per_s": 10**9, "overhead_ns": 2**62}, "64 bits"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: dict[str, float], said: str) -> None:
    with pytest.raises(InputError, match=said):
        roofline_ns(**arguments)  # type: ignore[arg-type]


# -- in a description -------------------------------------------------------------------------------


PAIR = ("h100-sxm", "h200-sxm")


def duration_ns(device: dict[str, Any], **op: Any) -> int:
    b = GraphBuilder("one")
    b.op("a", **{"kind": "relu", "dtype": "bf16", **op})
    return int(costs_ns(b.build(), make_device("gpu0", device))[0])


def test_no_kernel_that_takes_its_roofline_is_shorter_than_the_floor() -> None:
    h100 = {"preset": "h100-sxm", "cost": "roofline"}
    assert duration_ns(h100, bytes_read=3_350) == 1_500  # 1 ns of traffic
    assert duration_ns(h100, bytes_read=33_500_000) == 10_000  # no sum: the longer of the two
    assert duration_ns({**h100, "kernel_floor": 0}, bytes_read=3_350) == 1
    assert duration_ns({**h100, "ideal": True}, bytes_read=3_350) == 1
    assert duration_ns({**h100, "cost": {"roofline": {"kernel_floor": "2us"}}}, bytes_read=3_350) == 2_000


def test_what_does_nothing_has_a_duration_or_an_overhead_has_no_floor() -> None:
    h100 = {"preset": "h100-sxm", "cost": "roofline"}
    assert duration_ns(h100, kind="reshape") == 0
    assert duration_ns(h100, duration_ns=7) == 7
    assert duration_ns({**h100, "op_overhead": "300ns"}, bytes_read=3_350) == 301


def test_memory_bound_kernels_of_the_same_chip_take_in_proportion_to_the_bandwidth() -> None:
    shape = {"kind": "matmul", "flops": 2 * 8192**2, "bytes_read": 2**27}
    one, many = (
        [
            duration_ns({"preset": preset}, **shape, attributes={"m": m, "n": 8192, "k": 8192})
            for preset in PAIR
        ]
        for m in (1, 8192)
    )
    assert one[0] / one[1] == pytest.approx(4.8 / 3.35, rel=0.12)
    assert many[0] == pytest.approx(many[1], rel=0.06)
    slow = {"preset": "h100-sxm", "bandwidth": "1TB/s"}
    slower = duration_ns(slow, **shape, attributes={"m": 1, "n": 8192, "k": 8192})
    assert slower / one[0] == pytest.approx(3.35, rel=0.15)
