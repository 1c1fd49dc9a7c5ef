"""Quantities, read once and exactly at the border.

Internally, everything is a whole number of nanoseconds, bytes, flop, bytes/s, flop/s or Hz, and the name of
a variable carries the unit. Externally, people write ``10us``, ``80GiB``, ``1.5TB/s``. This module is the
only place where the two meet::

    "1.5 ms"  --parse_duration-->  1_500_000  --format_duration-->  "1.5 ms"

Rules, so that no unit is ever guessed:

* Numbers are read as exact fractions; binary floating point has no part in it.
* SI and IEC prefixes differ: ``4MB`` is 4,000,000 bytes, ``4MiB`` is 4,194,304.
  ``K`` and ``k`` are both 1000.
* ``B`` is a byte and ``b`` (or ``bit``) is a bit: ``100Gb/s`` is 12.5 GB/s.
* A bare number is refused where a unit is needed. Zero durations, bytes and flop need none; a rate of
  zero is refused, as nothing would ever finish.
* A duration that is not a whole number of nanoseconds rounds half up, here, once; one that would become 0 is
  refused. Every other quantity must be whole: ``1b`` is no whole byte and is refused.
* Nothing is negative, and nothing exceeds a signed 64-bit integer, the type of a graph's columns.
* No number stands for "no limit": :func:`parse_limit` reads ``unlimited`` (or ``inf``) as None.

Prefixes are those of the SI brochure (BIPM, 9th edition, table 7) and of IEC 80000-13.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from sim.base.errors import UnitError, clip_repr, error_path

# ----------------------------------------------------------------------------------------------------------
# The vocabulary of :mod:`sim.base.units`: every unit that may be written, and its size.
#
# This is only data. A missing unit needs one entry here.

SI_PREFIXES = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
IEC_PREFIXES = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def _with_prefixes(units: Mapping[str, Fraction], *, iec: bool = False) -> dict[str, Fraction]:
    """Return every unit with its decimal (and, on request, binary) prefixes."""
    scales = {prefix: 1000**power for prefix, power in SI_PREFIXES.items()}
    if iec:
        scales |= {prefix: 1024**power for prefix, power in IEC_PREFIXES.items()}
    return {prefix + unit: size * scale for unit, size in units.items() for prefix, scale in scales.items()}


class Dimension(NamedTuple):
    """The units that one parser accepts, each with its size in the base unit."""

    name: str
    base: str
    units: Mapping[str, Fraction]
    shown: str
    zero_allowed: bool = True
    rounds: bool = False


_BYTE, _BIT = Fraction(1), Fraction(1, 8)
DURATION = Dimension(
    "a duration",
    "nanoseconds",
    {
        "ps": Fraction(1, 1000),
        "ns": Fraction(1),
        **dict.fromkeys(("us", "µs", "μs"), Fraction(1000)),  # U+00B5 is on keyboards, Unicode prefers U+03BC
        "ms": Fraction(10**6),
        "s": Fraction(10**9),
        "min": Fraction(60 * 10**9),
        "h": Fraction(3600 * 10**9),
        "d": Fraction(24 * 3600 * 10**9),
    },
    "ns, us, ms, s, min, h, d, as in '10us'",
    rounds=True,
)
BYTES = Dimension(
    "an amount of data",
    "bytes",
    _with_prefixes({"B": _BYTE, "b": _BIT, "bit": _BIT}, iec=True)
    | {"byte": _BYTE, "bytes": _BYTE, "bits": _BIT},
    "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB (bits: b, kb, Mb, Gb), as in '4MiB'",
)
BANDWIDTH = Dimension(
    "a bandwidth",
    "bytes/s",
    {unit + "/s": size for unit, size in BYTES.units.items()}
    | _with_prefixes({"bps": _BIT, "Bps": _BYTE}, iec=True),
    "B/s, MB/s, GB/s, TB/s, GiB/s (bits: Mb/s, Gb/s, Gbit/s), as in '900GB/s'",
    zero_allowed=False,
)
FLOPS = Dimension(
    "an amount of computation",
    "flop",
    _with_prefixes(dict.fromkeys(("FLOP", "FLOPs", "flop"), Fraction(1))),
    "FLOP, MFLOP, GFLOP, TFLOP, as in '2GFLOP'",
)
FLOP_RATE = Dimension(
    "a computation rate",
    "flop/s",
    _with_prefixes(dict.fromkeys(("FLOP/s", "FLOPS", "FLOPs/s", "flop/s", "OP/s", "OPS"), Fraction(1))),
    "FLOP/s, GFLOP/s, TFLOP/s, TFLOPS, TOPS, as in '989TFLOP/s'",
    zero_allowed=False,
)
FREQUENCY = Dimension(
    "a frequency",
    "Hz",
    _with_prefixes({"Hz": Fraction(1)}),
    "Hz, kHz, MHz, GHz, as in '1.98GHz'",
    zero_allowed=False,
)
POWER = Dimension(
    "a power",
    "mW",
    {prefix + "W": Fraction(1000**k) for k, prefix in enumerate(("m", "", "k", "M"))},
    "mW, W, kW, MW, as in '300W'",
)
ENERGY = Dimension(
    "an energy",
    "pJ",
    {prefix + "J": Fraction(1000**k) for k, prefix in enumerate(("p", "n", "u", "m", "", "k", "M", "G"))},
    "pJ, nJ, uJ, mJ, J, kJ, MJ, as in '3.2J'",
)
DIMENSIONS = (DURATION, BYTES, BANDWIDTH, FLOPS, FLOP_RATE, FREQUENCY, POWER, ENERGY)


# ----------------------------------------------------------------------------------------------------------

NS_PER_S = 1_000_000_000
NS_PER_MS = 1_000_000
"""Nanoseconds in a second, and in a millisecond."""

LARGEST = 2**63 - 1
_NUMBER = re.compile(r"([+-]?)((?:[0-9][0-9_]*\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(.*)", re.DOTALL)
_UNLIMITED = frozenset({"unlimited", "inf", "infinity", ".inf"})


def round_half_up(x: int | float | Fraction | Decimal) -> int:
    """Return the whole number nearest to `x`, the upper one if two are equally near.

    The one rounding rule of the project: it is monotonic, and shifting `x` by a whole number shifts the
    result by the same (Python's ``round`` goes to the even neighbour and does neither at ties).

    Parameters
    ----------
    x : int, float, Fraction or Decimal
        A finite number; a float counts as the exact fraction that it represents.

    Raises
    ------
    ValueError, OverflowError
        `x` is not a number, or infinite.

    Examples
    --------
    >>> [round_half_up(x) for x in (0.5, 1.5, 2.5, -0.5, 0.49999999999999994)]
    [1, 2, 3, 0, 0]
    """
    if isinstance(x, Decimal):
        x = Fraction(x)  # a Decimal subtraction would round to the context's precision
    whole = math.floor(x)
    return whole + 1 if x - whole >= 0.5 else whole


def parse_duration(value: object, *, what: str = "duration") -> int:
    """Read a duration, in whole nanoseconds (half a nanosecond rounds up).

    Parameters
    ----------
    value : object
        ``"10us"``, ``"1.5 ms"``, ``"2min"``; a zero needs no unit.
    what : str
        The name of the quantity, to begin an error message; empty: the caller adds it (`error_path`).

    Raises
    ------
    UnitError
        No number, no unit, a wrong unit, or a negative or absurdly large quantity.

    Examples
    --------
    >>> parse_duration("1.5 ms"), parse_duration("10µs"), parse_duration(0)
    (1500000, 10000, 0)
    >>> parse_duration(10)
    Traceback (most recent call last):
    sim.base.errors.UnitError: duration: 10 has no unit; accepted: ns, us, ms, s, min, h, d, as in '10us'
    """
    return _parse(value, DURATION, what)


def parse_bytes(value: object, *, what: str = "size") -> int:
    """Read an amount of data, in whole bytes; otherwise like :func:`parse_duration`.

    Examples
    --------
    >>> parse_bytes("4MB"), parse_bytes("4MiB"), parse_bytes("4Mb")
    (4000000, 4194304, 500000)
    """
    return _parse(value, BYTES, what)


def parse_bandwidth(value: object, *, what: str = "bandwidth") -> int:
    """Read a bandwidth, in whole bytes/s and never zero; otherwise like :func:`parse_duration`.

    Examples
    --------
    >>> parse_bandwidth("900GB/s"), parse_bandwidth("100Gb/s"), parse_bandwidth("100Gbit/s")
    (900000000000, 12500000000, 12500000000)
    """
    return _parse(value, BANDWIDTH, what)


def parse_flops(value: object, *, what: str = "flops") -> int:
    """Read an amount of computation, in whole flop; otherwise like :func:`parse_duration`.

    ``FLOPs`` is the plural and accepted; ``FLOPS`` is a rate and refused.

    Examples
    --------
    >>> parse_flops("2GFLOP")
    2000000000
    """
    return _parse(value, FLOPS, what)


def parse_flop_rate(value: object, *, what: str = "rate") -> int:
    """Read a computation rate, in whole flop/s and never zero; otherwise like :func:`parse_duration`.

    Examples
    --------
    >>> parse_flop_rate("989TFLOP/s") == parse_flop_rate("989 TFLOPS")
    True
    """
    return _parse(value, FLOP_RATE, what)


def parse_frequency(value: object, *, what: str = "frequency") -> int:
    """Read a frequency, in whole hertz and never zero; otherwise like :func:`parse_duration`.

    Examples
    --------
    >>> parse_frequency("1.98GHz")
    1980000000
    """
    return _parse(value, FREQUENCY, what)


def parse_power(value: object, *, what: str = "power") -> int:
    """Read a power, in whole milliwatts; otherwise like :func:`parse_duration`.

    Examples
    --------
    >>> parse_power("0.3kW")
    300000
    """
    return _parse(value, POWER, what)


def parse_energy(value: object, *, what: str = "energy") -> int:
    """Read an energy, in whole picojoules (milliwatts times ns); otherwise like :func:`parse_duration`.

    Examples
    --------
    >>> parse_energy("3.2mJ")
    3200000000
    """
    return _parse(value, ENERGY, what)


def parse_rate(value: object, *, what: str = "rate") -> float:
    """Read a frequency of events, such as ``8/s`` or ``"90/min"``; otherwise like :func:`parse_fraction`.

    Examples
    --------
    >>> parse_rate("8/s"), parse_rate("90/min")
    (8.0, 1.5)
    """
    number = r"([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?"
    match = re.fullmatch(rf"\s*(?P<times>{number})\s*/\s*(?P<per>s|min|h)\s*", str(value))
    rate = float(match["times"]) / {"s": 1, "min": 60, "h": 3600}[match["per"]] if match else math.inf
    with error_path(*filter(None, [what])):
        if math.isinf(rate):
            raise UnitError(f"{clip_repr(value)} is not a rate: times a second, minute or hour, as in '8/s'")
        return rate


def parse_fraction(value: object, *, what: str = "fraction") -> float:
    """Read a share between 0 and 1: ``0.8`` or ``"80%"``.

    Raises
    ------
    UnitError
        No number, or one outside 0 to 1.

    Examples
    --------
    >>> parse_fraction("80%"), parse_fraction(0.8), parse_fraction("1")
    (0.8, 0.8, 1.0)
    """
    with error_path(*filter(None, [what])):
        return _share(value)


def _share(value: object) -> float:
    accepted = "accepted: a number from 0 to 1, or a percentage such as '80%'"
    number, unit = _split(value, accepted)
    if unit not in ("", "%"):
        raise UnitError(f"{clip_repr(value)} has the unit {clip_repr(unit)}; {accepted}")
    share = number / 100 if unit else number
    if not 0 <= share <= 1:
        percent = f"; did you mean '{_shown_number(number)}%'?" if not unit and 1 < number <= 100 else ""
        raise UnitError(f"{clip_repr(value)} is not between 0 and 1{percent or '; ' + accepted}")
    return float(share)


def parse_limit(value: object, parse: Callable[..., int], *, what: str = "limit") -> int | None:
    """Read a quantity that may be ``unlimited``, which is returned as None.

    None rather than ``math.inf``: a type checker then makes every user of a limit handle its absence, and no
    floating point enters integer arithmetic.

    Parameters
    ----------
    value : object
        ``"unlimited"``, ``"inf"``, a float infinity (YAML's ``.inf``), or anything that `parse` accepts.
    parse : callable
        One of the parsers of this module, such as :func:`parse_bytes`.
    what : str
        The name of the quantity, to begin an error message.

    Examples
    --------
    >>> parse_limit("80GB", parse_bytes), parse_limit("unlimited", parse_bytes)
    (80000000000, None)
    """
    if isinstance(value, str) and value.strip().lower() in _UNLIMITED:
        return None
    if isinstance(value, float) and value == math.inf:
        return None
    return parse(value, what=what)


def format_duration(duration_ns: int | float | Fraction, *, digits: int | None = 4) -> str:
    """Write a duration in the largest of ns, us, ms, s that keeps it at one or more.

    Parameters
    ----------
    duration_ns : int, float or Fraction
        Nanoseconds; may be negative (a difference).
    digits : int or None
        Significant digits (the whole part is never cut); None writes all of them, and the text then
        parses back to the same number.

    Examples
    --------
    >>> format_duration(3_210_000), format_duration(999), format_duration(0)
    ('3.21 ms', '999 ns', '0 ns')
    >>> format_duration(3_210_001), format_duration(3_210_001, digits=None)
    ('3.21 ms', '3.210001 ms')
    """
    return _format(duration_ns, ("ns", "us", "ms", "s"), 1000, digits)


def format_bytes(nbytes: int | float | Fraction | None, *, iec: bool = False, digits: int | None = 4) -> str:
    """Write an amount of data with SI prefixes (or IEC ones); None is ``unlimited``.

    Examples
    --------
    >>> format_bytes(4_000_000), format_bytes(4 * 2**20), format_bytes(4 * 2**20, iec=True)
    ('4 MB', '4.194 MB', '4 MiB')
    """
    prefixes = ["", *IEC_PREFIXES] if iec else [prefix for prefix in SI_PREFIXES if prefix != "K"]
    return _format(nbytes, [prefix + "B" for prefix in prefixes], 1024 if iec else 1000, digits)


def format_flops(flops: int | float | Fraction, *, digits: int | None = 4) -> str:
    """Write an amount of computation with SI prefixes.

    Examples
    --------
    >>> format_flops(3_210_000_000)
    '3.21 GFLOP'
    """
    return _format(flops, [prefix + "FLOP" for prefix in SI_PREFIXES if prefix != "K"], 1000, digits)


def format_energy(energy_pj: int | float | Fraction, *, digits: int | None = 4) -> str:
    """Write an energy in the largest unit that keeps it at one or more.

    Examples
    --------
    >>> format_energy(3_200_000_000)
    '3.2 mJ'
    """
    return _format(energy_pj, tuple(ENERGY.units), 1000, digits)


def format_count(number: int, noun: str) -> str:
    """Return how many there are of something.

    Examples
    --------
    >>> format_count(1, "op"), format_count(1200, "op"), format_count(2, "batch")
    ('1 op', '1,200 ops', '2 batches')
    """
    return f"{number:,} {noun}{'' if number == 1 else 'es' if noun.endswith('ch') else 's'}"


def _parse(value: object, dimension: Dimension, what: str) -> int:
    """Read `value` as a whole number of the dimension's base unit."""
    with error_path(*filter(None, [what])):
        return _parse_cached(value, dimension.name) if isinstance(value, str) else _whole(value, dimension)


@lru_cache(maxsize=1024)
def _parse_cached(text: str, dimension: str) -> int:
    """Read a quantity; cached, because a long file repeats the same ones."""
    return _whole(text, next(entry for entry in DIMENSIONS if entry.name == dimension))


def _whole(value: object, dimension: Dimension) -> int:
    accepted = f"accepted: {dimension.shown}"
    number, unit = _split(value, accepted)
    if not unit and number:
        raise UnitError(f"{clip_repr(value)} has no unit; {accepted}")
    if unit and unit not in dimension.units:
        raise UnitError(f"{clip_repr(value)} {_wrong_unit(unit, dimension)}; {accepted}")
    if number < 0:
        raise UnitError(f"{clip_repr(value)} is negative")
    if not number and not dimension.zero_allowed:
        raise UnitError(f"{clip_repr(value)} is zero, and nothing would ever finish")
    exact = number * dimension.units[unit] if unit else number
    whole = round_half_up(exact)
    if exact and not whole and dimension.rounds:
        raise UnitError(f"{clip_repr(value)} would round to 0 {dimension.base}; write 0, or at least 1ns")
    if whole != exact and not dimension.rounds:
        raise UnitError(f"{clip_repr(value)} is not a whole number of {dimension.base}")
    if whole > LARGEST:
        raise UnitError(f"{clip_repr(value)} is more than 2**63 - 1 {dimension.base}")
    return whole


def _split(value: object, accepted: str) -> tuple[Fraction, str]:
    """Return the exact number and the text of the unit after it."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float, Decimal, Fraction)):
        raise UnitError(f"{clip_repr(value)} is not a quantity; {accepted}")
    if not isinstance(value, str):
        if not isinstance(value, int) and not math.isfinite(value):
            raise UnitError(f"{value} is not a finite number; {accepted}")
        # A float in a file was a short decimal (0.8), so its shortest spelling is the intended number.
        return Fraction(str(value) if isinstance(value, float) else value), ""
    match = _NUMBER.fullmatch(value.strip())
    if match is None:
        raise UnitError(f"{clip_repr(value)} is not a number and a unit; {accepted}")
    sign, digits, unit = match.groups()
    # 80 digits are enough for 2**63 - 1 bytes in EiB; more would only make a fraction of arbitrary size.
    mantissa, _, exponent = digits.lower().partition("e")
    if len(mantissa) > 80 or len(exponent) > 3:
        raise UnitError(f"{clip_repr(value)} has too many digits")
    try:
        return Fraction(sign + digits), unit
    except ValueError:
        raise UnitError(f"{clip_repr(value)} is not a number and a unit; {accepted}") from None


def _wrong_unit(unit: str, dimension: Dimension) -> str:
    """Return what is wrong with `unit`: it measures something else, or it is a misspelling."""
    for other in DIMENSIONS:
        if unit in other.units:
            return f"is {other.name}, not {dimension.name}"
    # Same letters in another case first: 'gb' may be 'GB' or 'Gb', and 'M' 'MB' or 'Mb'. Only the user knows.
    close = [candidate for candidate in dimension.units if candidate.lower() == unit.lower()]
    if not close and len(unit) == 1:
        close = [candidate for candidate in dimension.units if candidate.lower().startswith(unit.lower())][:3]
    close = close or difflib.get_close_matches(unit, dimension.units, n=1, cutoff=0.5)
    hint = " (did you mean " + " or ".join(map(repr, close)) + "?)" if close else ""
    return f"has the unknown unit {clip_repr(unit)}{hint}"


def _format(
    number: int | float | Fraction | None, units: Sequence[str], step: int, digits: int | None
) -> str:
    """Write `number` of ``units[0]`` in the largest unit that keeps it at one or more."""
    if number is None:
        return "unlimited"
    size, power = abs(Fraction(number)), 0
    while power < len(units) - 1 and _round_digits(size, digits) >= step:
        size, power = size / step, power + 1
    sign = "-" if number < 0 else ""
    return f"{sign}{_shown_number(_round_digits(size, digits))} {units[power]}"


def _round_digits(size: Fraction, digits: int | None) -> Fraction:
    """Return `size` rounded to `digits` significant digits, but with its whole part intact."""
    if digits is None:
        return size
    scale = 10 ** max(0, digits - len(str(math.floor(size))))
    return Fraction(round_half_up(size * scale), scale)


def _shown_number(number: Fraction) -> str:
    """Write a number with all its decimals (the first 20 of one that has no end, such as 1/3)."""
    places, denominator = 0, number.denominator
    while 10**places % denominator and places <= denominator.bit_length():
        places += 1
    places = 20 if 10**places % denominator else places
    digits = str(math.floor(number * 10**places)).rjust(places + 1, "0")
    whole, decimals = digits[: len(digits) - places], digits[len(digits) - places :].rstrip("0")
    return f"{whole}.{decimals}" if decimals else whole
