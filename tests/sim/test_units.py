"""Quantities: what is read, what is refused and with which words, and that writing and reading agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.base.errors import UnitError
from sim.base.units import (
    format_bytes,
    format_duration,
    parse_bandwidth,
    parse_bytes,
    parse_duration,
    parse_flop_rate,
    parse_flops,
    parse_fraction,
    parse_limit,
    round_half_up,
)

Parser = Callable[..., int]

whole = st.integers(0, 2**63 - 1)


@pytest.mark.parametrize(
    ("parse", "text", "expected"),
    [
        (parse_duration, "10us", 10_000),
        (parse_duration, "10µs", 10_000),
        (parse_duration, "10μs", 10_000),
        (parse_duration, " 1.5 ms ", 1_500_000),
        (parse_duration, "2min", 120_000_000_000),
        (parse_duration, "1h", 3_600_000_000_000),
        (parse_duration, "1.5d", 129_600_000_000_000),
        (parse_duration, "3ns", 3),
        (parse_duration, "1e-3s", 1_000_000),
        (parse_duration, ".5us", 500),
        (parse_duration, "5.us", 5_000),
        (parse_duration, "+1_000ns", 1_000),
        (parse_duration, "0.1us", 100),
        (parse_duration, "1499ps", 1),
        (parse_duration, "1.5ns", 2),
        (parse_duration, "2.5ns", 3),
        (parse_duration, "2.4999999999999999999999ns", 2),
        (parse_duration, "0", 0),
        (parse_duration, 0, 0),
        (parse_duration, 0.0, 0),
        (parse_duration, "9223372036854775807ns", 2**63 - 1),
        (parse_bytes, "4MB", 4_000_000),
        (parse_bytes, "4MiB", 4 * 2**20),
        (parse_bytes, "4Mb", 500_000),
        (parse_bytes, "4Mibit", 2**19),
        (parse_bytes, "4 kB", 4_000),
        (parse_bytes, "4KB", 4_000),
        (parse_bytes, "4KiB", 4_096),
        (parse_bytes, "12bytes", 12),
        (parse_bytes, "8bits", 1),
        (parse_bytes, "0.001kB", 1),
        (parse_bytes, "1EB", 10**18),
        (parse_bytes, "1E3B", 1_000),
        (parse_bytes, 0, 0),
        (parse_bandwidth, "1.5TB/s", 1_500_000_000_000),
        (parse_bandwidth, "900GB/s", 900_000_000_000),
        (parse_bandwidth, "100Gb/s", 12_500_000_000),
        (parse_bandwidth, "100Gbit/s", 12_500_000_000),
        (parse_bandwidth, "100Gbps", 12_500_000_000),
        (parse_bandwidth, "16GiB/s", 16 * 2**30),
        (parse_flops, "2GFLOP", 2_000_000_000),
        (parse_flops, "2GFLOPs", 2_000_000_000),
        (parse_flops, "7flop", 7),
        (parse_flop_rate, "989TFLOP/s", 989 * 10**12),
        (parse_flop_rate, "989TFLOPS", 989 * 10**12),
        (parse_flop_rate, "320 TOPS", 320 * 10**12),
    ],
)
def test_reads(parse: Parser, text: object, expected: int) -> None:
    value = parse(text)
    assert (value, type(value)) == (expected, int)


@pytest.mark.parametrize(
    ("parse", "value", "message"),
    [
        (parse_duration, "10", "what: '10' has no unit; accepted: ns, us, ms"),
        (parse_duration, 10, "what: 10 has no unit; accepted: ns, us, ms"),
        (parse_duration, 0.5, "0.5 has no unit"),
        (parse_duration, "-3us", "'-3us' is negative"),
        (parse_duration, "3MB", "'3MB' is an amount of data, not a duration; accepted: ns"),
        (parse_duration, "3 MS", "unknown unit 'MS' (did you mean 'ms'?)"),
        (parse_duration, "3 mss", "did you mean 'ms'?"),
        (parse_duration, "1,5ms", "unknown unit ',5ms'"),
        (parse_duration, "1.2.3ms", "unknown unit '.3ms'"),
        (parse_duration, "1__0ms", "is not a number and a unit"),
        (parse_duration, "१ns", "is not a number and a unit"),
        (parse_duration, "fast", "'fast' is not a number and a unit"),
        (parse_duration, "", "'' is not a number and a unit"),
        (parse_duration, "inf", "'inf' is not a number and a unit"),
        (parse_duration, math.inf, "inf is not a finite number"),
        (parse_duration, math.nan, "nan is not a finite number"),
        (parse_duration, Decimal("NaN"), "NaN is not a finite number"),
        (parse_duration, True, "True is not a quantity"),
        (parse_duration, None, "None is not a quantity"),
        (parse_duration, ["1ms"], "is not a quantity"),
        (parse_duration, "0.4ns", "'0.4ns' would round to 0 nanoseconds; write 0, or at least 1ns"),
        (parse_duration, "1e999999999s", "has too many digits"),
        (parse_duration, "1" * 90 + "s", "has too many digits"),
        (parse_duration, "9223372036854775808ns", "is more than 2**63 - 1 nanoseconds"),
        (parse_bytes, "4", "'4' has no unit; accepted: B, kB, MB"),
        (parse_bytes, "1b", "'1b' is not a whole number of bytes"),
        (parse_bytes, "0.5B", "not a whole number of bytes"),
        (parse_bytes, "4gb", "(did you mean 'GB' or 'Gb'?)"),
        (parse_bytes, "4GB/s", "'4GB/s' is a bandwidth, not an amount of data"),
        (parse_bytes, "4mB", "did you mean 'MB' or 'Mb'?"),
        (parse_bytes, "1k", "did you mean 'kB' or 'KB' or 'KiB'?"),
        (parse_duration, "2m", "did you mean 'ms' or 'min'?"),
        (parse_bandwidth, "4GB", "'4GB' is an amount of data, not a bandwidth"),
        (parse_bandwidth, "0GB/s", "is zero, and nothing would ever finish"),
        (parse_bandwidth, 0, "is zero"),
        (parse_flops, "2GFLOPS", "'2GFLOPS' is a computation rate, not an amount of computation"),
        (parse_flop_rate, "2GFLOP", "'2GFLOP' is an amount of computation, not a computation rate"),
        (parse_fraction, "120%", "'120%' is not between 0 and 1"),
        (parse_fraction, 80, "80 is not between 0 and 1; did you mean '80%'?"),
        (parse_fraction, "-0.1", "is not between 0 and 1"),
        (parse_fraction, "0.8ms", "has the unit 'ms'"),
        (parse_fraction, "most", "is not a number and a unit; accepted: a number from 0 to 1"),
    ],
)
def test_refuses_and_says_what_is_accepted(parse: Parser, value: object, message: str) -> None:
    with pytest.raises(UnitError) as caught:
        parse(value, what="what")
    assert message in str(caught.value)
    assert str(caught.value).startswith("what: ")
    assert caught.value.exit_status == 2


def test_a_message_stays_short_whatever_the_input() -> None:
    with pytest.raises(UnitError) as caught:
        parse_duration("1" + "x" * 100_000)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(("value", "expected"), [("80%", 0.8), (0.8, 0.8), ("0.8", 0.8), ("12.5 %", 0.125)])
def test_reads_fractions(value: object, expected: float) -> None:
    assert parse_fraction(value) == expected


@pytest.mark.parametrize("value", ["unlimited", " Unlimited ", "inf", ".inf", math.inf])
def test_no_limit_is_none(value: object) -> None:
    assert parse_limit(value, parse_bytes) is None
    assert parse_limit(value, parse_bandwidth) is None


def test_a_limit_is_otherwise_an_ordinary_quantity() -> None:
    assert parse_limit("80GiB", parse_bytes) == 80 * 2**30
    with pytest.raises(UnitError, match=r"memory: '80' has no unit"):
        parse_limit("80", parse_bytes, what="memory")
    with pytest.raises(UnitError, match="not a finite number"):
        parse_limit(-math.inf, parse_bytes)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_duration(0), "0 ns"),
        (format_duration(999), "999 ns"),
        (format_duration(1_000), "1 us"),
        (format_duration(3_210_000), "3.21 ms"),
        (format_duration(999_996), "1 ms"),
        (format_duration(999_940), "999.9 us"),
        (format_duration(12_345_678_900_000), "12346 s"),
        (format_duration(-1_500), "-1.5 us"),
        (format_duration(1_234_567, digits=2), "1.2 ms"),
        (format_duration(1_234_567, digits=None), "1.234567 ms"),
        (format_duration(0.25), "0.25 ns"),
        (format_duration(Fraction(10, 3)), "3.333 ns"),
        (format_duration(Fraction(1, 3), digits=None), "0." + "3" * 20 + " ns"),
        (format_bytes(4_000_000), "4 MB"),
        (format_bytes(80 * 2**30, iec=True), "80 GiB"),
        (format_bytes(1023, iec=True), "1023 B"),
        (format_bytes(None), "unlimited"),
    ],
)
def test_writes(text: str, expected: str) -> None:
    assert text == expected


@given(whole)
def test_writing_then_reading_gives_the_same_number(number: int) -> None:
    assert parse_duration(format_duration(number, digits=None)) == number
    assert parse_bytes(format_bytes(number, digits=None)) == number


@given(whole)
def test_binary_sizes_round_trip(nbytes: int) -> None:
    assert parse_bytes(format_bytes(nbytes, iec=True, digits=None)) == nbytes


@given(st.integers(0, 2**62), st.integers(2, 12))
def test_a_short_text_is_within_its_digits(number: int, digits: int) -> None:
    read = parse_duration(format_duration(number, digits=digits))
    assert abs(read - number) * 2 <= max(2, Fraction(number, 10 ** (digits - 1)))


@given(st.fractions(min_value=-(10**12), max_value=10**12))
def test_round_half_up_is_the_nearest_and_the_upper_of_two(x: Fraction) -> None:
    n = round_half_up(x)
    assert Fraction(-1, 2) < n - x <= Fraction(1, 2)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e18, max_value=1e18))
def test_a_float_rounds_as_the_fraction_it_stands_for(x: float) -> None:
    assert round_half_up(x) == round_half_up(Fraction(x))


@given(st.decimals(allow_nan=False, allow_infinity=False, places=30, min_value=-(10**20), max_value=10**20))
def test_a_decimal_rounds_exactly(x: Decimal) -> None:
    assert round_half_up(x) == round_half_up(Fraction(x))


@pytest.mark.parametrize("x", [math.nan, math.inf])
def test_what_is_no_number_cannot_be_rounded(x: float) -> None:
    with pytest.raises((ValueError, OverflowError)):
        round_half_up(x)


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    for parse in (
        parse_duration,
        parse_bytes,
        parse_bandwidth,
        parse_flops,
        parse_flop_rate,
    ):
        try:
            assert parse(text) >= 0
        except UnitError as error:
            assert "accepted" in str(error) or repr(text)[:20] in str(error)  # noqa: PT017
