"""The vocabulary of :mod:`sim.words.units`: every unit that may be written, and its size.

Data only. A unit that people miss is one entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

__all__ = [
    "BANDWIDTH",
    "BYTES",
    "DIMENSIONS",
    "DURATION",
    "FLOPS",
    "FLOP_RATE",
    "FREQUENCY",
    "IEC_PREFIXES",
    "SI_PREFIXES",
    "Dimension",
]

SI_PREFIXES = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
IEC_PREFIXES = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def _prefixed(units: Mapping[str, Fraction], *, iec: bool = False) -> dict[str, Fraction]:
    """Give every unit its decimal (and, on request, binary) prefixes."""
    scales = {prefix: 1000**power for prefix, power in SI_PREFIXES.items()}
    if iec:
        scales |= {prefix: 1024**power for prefix, power in IEC_PREFIXES.items()}
    return {prefix + unit: size * scale for unit, size in units.items() for prefix, scale in scales.items()}


class Dimension(NamedTuple):
    """What one parser accepts: its units, each with its size in the base unit."""

    name: str
    base: str
    units: Mapping[str, Fraction]
    shown: str
    zero_allowed: bool = True
    rounds: bool = False


_BYTE, _BIT = Fraction(1), Fraction(1, 8)
_NANOSECONDS: dict[str, int | Fraction] = {
    "ps": Fraction(1, 1000),
    "ns": 1,
    "us": 1000,
    "µs": 1000,  # U+00B5, the micro sign of keyboards
    "μs": 1000,  # U+03BC, the Greek letter, which Unicode prefers
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "min": 60_000_000_000,
    "h": 3_600_000_000_000,
}

DURATION = Dimension(
    "a duration",
    "nanoseconds",
    {unit: Fraction(size) for unit, size in _NANOSECONDS.items()},
    "ns, us, ms, s, min, h, as in '10us'",
    rounds=True,
)
BYTES = Dimension(
    "an amount of data",
    "bytes",
    _prefixed({"B": _BYTE, "b": _BIT, "bit": _BIT}, iec=True) | {"byte": _BYTE, "bytes": _BYTE, "bits": _BIT},
    "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB (bits: b, kb, Mb, Gb), as in '4MiB'",
)
BANDWIDTH = Dimension(
    "a bandwidth",
    "bytes/s",
    {unit + "/s": size for unit, size in BYTES.units.items()}
    | _prefixed({"bps": _BIT, "Bps": _BYTE}, iec=True),
    "B/s, MB/s, GB/s, TB/s, GiB/s (bits: Mb/s, Gb/s, Gbit/s), as in '900GB/s'",
    zero_allowed=False,
)
FLOPS = Dimension(
    "an amount of computation",
    "flop",
    _prefixed(dict.fromkeys(("FLOP", "FLOPs", "flop"), Fraction(1))),
    "FLOP, MFLOP, GFLOP, TFLOP, as in '2GFLOP'",
)
FLOP_RATE = Dimension(
    "a computation rate",
    "flop/s",
    _prefixed(dict.fromkeys(("FLOP/s", "FLOPS", "FLOPs/s", "flop/s", "OP/s", "OPS"), Fraction(1))),
    "FLOP/s, GFLOP/s, TFLOP/s, TFLOPS, TOPS, as in '989TFLOP/s'",
    zero_allowed=False,
)
FREQUENCY = Dimension(
    "a frequency",
    "Hz",
    _prefixed({"Hz": Fraction(1)}),
    "Hz, kHz, MHz, GHz, as in '1.98GHz'",
    zero_allowed=False,
)
DIMENSIONS = (DURATION, BYTES, BANDWIDTH, FLOPS, FLOP_RATE, FREQUENCY)
