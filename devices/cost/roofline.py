"""The roofline: the duration of an op from peak rates, with efficiencies that keep real ops below it.

::

    flop/s                  ________________ peak_flop_per_s * efficiency
       |                 . '
       |              . '
       |           /
       |        /  bandwidth_bytes_per_s * memory_efficiency
       |_____/____________________________ flop/byte

    duration = max(flops / flop rate, nbytes / byte rate) + overhead

The roofline is that of Williams, Waterman and Patterson (*Roofline: An Insightful Visual Performance
Model*, CACM 52(4), 2009).

All arithmetic is on integers. Efficiencies are read as written decimals (0.7 is 7/10), rates become one
fraction of nanoseconds per flop, and the quotient is rounded half up. Rounding is monotone, so rounding the
two sides and taking the larger equals rounding the larger: a duration is rounded once. Each parameter
defaults to the ideal: no limit, no loss, no overhead.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from sim.base.arrays import IntArray
from sim.base.errors import InputError

_NS_PER_S = 1_000_000_000
_INT64_MAX = int(np.iinfo(np.int64).max)


def roofline_ns(
    flops: npt.ArrayLike,
    nbytes: npt.ArrayLike,
    *,
    peak_flop_per_s: int | None = None,
    bandwidth_bytes_per_s: int | None = None,
    efficiency: float = 1.0,
    memory_efficiency: float = 1.0,
    overhead_ns: int = 0,
) -> IntArray:
    """Return the time of ops that do `flops` and move `nbytes`, whichever bounds them.

    Parameters
    ----------
    flops, nbytes : array_like of int, broadcast together
        Work and traffic of each op; not negative.
    peak_flop_per_s, bandwidth_bytes_per_s : int or None
        The device's peak rates; None is "no limit" and costs no time.
    efficiency, memory_efficiency : float
        Fraction of each peak that a large op reaches, in (0, 1].
    overhead_ns : int
        Added to every op.

    Returns
    -------
    numpy.ndarray of int64
        Nanoseconds, in the broadcast shape, rounded half up.

    Raises
    ------
    InputError
        If a size is negative or not whole, a rate is not positive, an efficiency is outside (0, 1], or
        the result exceeds 64 bits.

    Examples
    --------
    A product of 4096 x 4096 x 4096 in bf16 on an H200 (989.4 TFLOP/s, 4.8 TB/s) is bound by arithmetic, one
    of 1 x 4096 x 4096 by memory.

    >>> peaks = {"peak_flop_per_s": 989_400_000_000_000, "bandwidth_bytes_per_s": 4_800_000_000_000}
    >>> roofline_ns([2 * 4096**3, 2 * 4096**2], [6 * 4096**2, 2 * 4096**2 + 4 * 4096], **peaks)
    array([138911,   6994])
    """
    compute = _side_ns("flops", flops, peak_flop_per_s, efficiency)
    memory = _side_ns("nbytes", nbytes, bandwidth_bytes_per_s, memory_efficiency)
    if overhead_ns < 0:
        raise InputError(f"overhead_ns is {overhead_ns}; an overhead is not negative")
    longest: IntArray = np.maximum(compute, memory)
    if longest.size and int(longest.max()) > _INT64_MAX - overhead_ns:
        raise InputError(f"with overhead_ns={overhead_ns} a duration exceeds 64 bits of nanoseconds")
    return longest + np.int64(overhead_ns)


def _side_ns(name: str, sizes: npt.ArrayLike, rate: int | None, efficiency: float) -> IntArray:
    """Return ``size / (rate * efficiency)`` in nanoseconds, rounded half up."""
    given = np.asarray(sizes)
    if given.size and given.dtype.kind not in "iu":
        raise InputError(f"{name} must be whole numbers, not {given.dtype}: a fraction is nobody's cost")
    array = given.astype(np.int64)
    if array.size and int(array.min()) < 0:
        raise InputError(f"{name} has {int(array.min())}; a size is not negative")
    if not 0 < efficiency <= 1:
        raise InputError(f"the efficiency for {name} is {efficiency}; it is a share of the peak, in (0, 1]")
    if rate is None:
        return np.zeros(array.shape, np.int64)
    if rate <= 0:
        raise InputError(f"the rate for {name} is {rate} per second; it must be positive (None: no limit)")
    ns_per_unit = Fraction(_NS_PER_S) / (Fraction(rate) * Fraction(repr(float(efficiency))))
    return _scaled_half_up(array, ns_per_unit)


def _scaled_half_up(sizes: IntArray, factor: Fraction) -> IntArray:
    """Return ``sizes * factor`` rounded half up, exactly.

    With factor = p/q and size = a*q + r, the product is a*p + r*p/q: the second term is small, so int64
    suffices for usual rates; otherwise Python's integers do the same.
    """
    p, q = factor.numerator, factor.denominator
    largest = int(sizes.max(initial=0))
    if 2 * q * p + q <= _INT64_MAX and (largest // q + 1) * p <= _INT64_MAX:
        whole, rest = np.divmod(sizes, np.int64(q))
        scaled: IntArray = whole * np.int64(p) + (2 * rest * np.int64(p) + np.int64(q)) // np.int64(2 * q)
        return scaled
    if (2 * largest * p + q) // (2 * q) > _INT64_MAX:
        raise InputError("a duration exceeds 64 bits of nanoseconds (292 years); check the rates' units")
    exact = [(2 * size * p + q) // (2 * q) for size in sizes.ravel().tolist()]
    return np.array(exact, dtype=np.int64).reshape(sizes.shape)


@dataclass(frozen=True)
class KindEfficiency:
    """Efficiencies of one kind of op relative to the peaks; the defaults are the ideal.

    Attributes
    ----------
    efficiency, memory_efficiency : float
        Fraction of the peak flop rate and of the peak bandwidth that large ops reach.
    overhead_ns : int
        Additional time of every op.
    """

    efficiency: float = 1.0
    memory_efficiency: float = 1.0
    overhead_ns: int = 0


IDEAL = KindEfficiency()
