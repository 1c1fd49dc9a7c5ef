"""Copies as pieces of alpha + beta n: a latency and a rate for small ones, others for large ones.

One line (Hockney 1994, "The communication challenge for MPP", Parallel Computing 20) cannot serve five
decades: small copies are made by another engine or by the host. The measured table stays the better answer at
measured sizes; pieces are what a person reads, and what extrapolates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sim.base.errors import InputError


class Piece(NamedTuple):
    """One line.

    Attributes
    ----------
    from_nbytes, to_nbytes : int
        The measured sizes that it was fitted to, both included.
    alpha_ns : int
    bandwidth_bytes_per_s : int
        1 / beta; 0 where time does not grow with size.
    max_error : float
        The largest error at a measured size, as a share of what was measured.
    """

    from_nbytes: int
    to_nbytes: int
    alpha_ns: int
    bandwidth_bytes_per_s: int
    max_error: float


def fit_pieces(nbytes: Sequence[int], ns: Sequence[int], pieces: int = 2) -> list[Piece]:
    """Fit at most two lines with the least sum of squared relative errors.

    Parameters
    ----------
    nbytes : sequence of int
        Sizes, rising.
    ns : sequence of int
        What each took; positive.
    pieces : {1, 2}
        At most; each has three sizes or more, for two determine a line without any error.

    Raises
    ------
    InputError
        Fewer than two sizes, sizes that do not rise, times that are not positive.

    Examples
    --------
    >>> [piece[:4] for piece in fit_pieces([1000, 2000, 4000], [1500, 2000, 3000])]
    [(1000, 4000, 1000, 2000000000)]
    """
    x, y = np.asarray(nbytes, np.float64), np.asarray(ns, np.float64)
    if len(x) < 2 or len(x) != len(y) or (np.diff(x) <= 0).any() or (y <= 0).any():
        raise InputError("fitting needs two rising sizes or more, and a positive time for each")
    splits = [len(x), *(range(3, len(x) - 2) if pieces > 1 else ())]
    found = [
        [_line(x[part], y[part]) for part in (slice(0, k), slice(k, None)) if len(x[part])] for k in splits
    ]
    best = min(found, key=lambda lines: sum(line[1] for line in lines))
    return [line[0] for line in best]


def _line(x: npt.NDArray[np.float64], y: npt.NDArray[np.float64]) -> tuple[Piece, float]:
    """Return a line with neither a negative latency nor a negative rate, and its squared relative error."""
    candidates = []
    columns = np.stack([1 / y, x / y], axis=1)
    for used in ([0, 1], [0], [1]):
        solved = np.linalg.lstsq(columns[:, used], np.ones(len(x)), rcond=None)[0]
        if (solved >= 0).all():
            line = np.zeros(2)
            line[used] = solved
            candidates.append(line)
    alpha, beta = min(candidates, key=lambda line: float(((columns @ line - 1) ** 2).sum()))
    error = columns @ np.array([alpha, beta]) - 1
    rate = int(np.floor(1e9 / beta + 0.5)) if beta > 0 else 0
    piece = Piece(int(x[0]), int(x[-1]), int(np.floor(alpha + 0.5)), rate, float(np.abs(error).max()))
    return piece, float((error**2).sum())
