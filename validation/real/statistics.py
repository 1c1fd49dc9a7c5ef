"""Statistics of samples: median, spread, and the uncertainty of the median.

Times on a real machine have a long upper tail, which dominates means and standard deviations. So the median
is used; its bootstrap interval (Efron 1979, "Bootstrap methods: another look at the jackknife",
Annals of Statistics 7(1)) says how far another calibration may be from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

_ROUNDS: Final = 200
"""Number of bootstrap samples."""


class Summary(NamedTuple):
    """Median of some samples, with its uncertainty.

    Attributes
    ----------
    median, mad : int
        Median, and median of the absolute deviations from it.
    p05, p95 : int
        Percentiles.
    low, high : int
        95 % bootstrap interval of the median.
    n : int
        Number of samples.
    """

    median: int
    mad: int
    p05: int
    p95: int
    low: int
    high: int
    n: int


def summary(samples: Sequence[int | float]) -> Summary:
    """Summarise samples; whole numbers, rounded half up.

    Parameters
    ----------
    samples : sequence of numbers
        At least one.

    Examples
    --------
    >>> summary([10, 12, 11, 10, 90])[:2]
    (11, 1)
    """
    values = np.asarray(samples, dtype=np.float64)
    median = float(np.median(values))
    drawn = np.random.default_rng(0).choice(values, size=(_ROUNDS, len(values)))
    p05, p95 = np.percentile(values, (5, 95))
    low, high = np.percentile(np.median(drawn, axis=1), (2.5, 97.5))
    mad = float(np.median(np.abs(values - median)))
    rounded = [int(np.floor(x + 0.5)) for x in (median, mad, p05, p95, low, high)]
    return Summary._make([*rounded, len(values)])


def kendall_tau(a: Sequence[int], b: Sequence[int]) -> float:
    """Return the agreement of two orders of the same things: 1 for equal, -1 for reversed.

    Parameters
    ----------
    a, b : sequence of int
        The same distinct numbers in two orders. Kendall 1938, "A new measure of rank correlation",
        Biometrika 30.

    Examples
    --------
    >>> kendall_tau([3, 1, 2], [3, 1, 2]), kendall_tau([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    """
    if len(a) < 2:
        return 1.0
    place = {value: k for k, value in enumerate(b)}
    ranks = np.array([place[value] for value in a])
    upper = np.triu_indices(len(ranks), 1)
    return float(np.sign(ranks[upper[1]] - ranks[upper[0]]).mean())
