"""A small deterministic optimiser, so that fitting needs no more than numpy.

Nelder and Mead's simplex (*A simplex method for function minimization*, The Computer Journal 7, 1965), with
the coefficients that Gao and Han adapt to the number of variables (*Implementing the Nelder-Mead simplex
algorithm with adaptive parameters*, Computational Optimization and Applications 51, 2012). It needs no
derivative, which the models here do not have: they round up to tiles and take the best of several kernels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["minimise_in_box", "nelder_mead"]

FloatArray = npt.NDArray[np.float64]


def nelder_mead(
    loss: Callable[[FloatArray], float], start: FloatArray, *, step: float, iterations: int
) -> tuple[FloatArray, float]:
    """Return the best point found, and its loss.

    Parameters
    ----------
    loss : callable
        From a vector to the number to be made small.
    start : ndarray
        First corner of the simplex; the others are `step` away along each axis.
    step : float
        Size of the first simplex.
    iterations : int
        How many times the worst corner is replaced.

    Examples
    --------
    >>> def loss(x):
    ...     return float((x[0] - 1) ** 2 + (x[1] - 2) ** 2)
    >>> best, _ = nelder_mead(loss, np.zeros(2), step=1, iterations=100)
    >>> best.round(4).tolist()
    [1.0, 2.0]
    """
    size = len(start)
    expand, contract, shrink = 1 + 2 / size, 0.75 - 1 / (2 * size), 1 - 1 / size
    corners = np.vstack([start, start + step * np.eye(size)])
    losses = np.array([loss(corner) for corner in corners])
    for _ in range(iterations):
        order = np.argsort(losses, kind="stable")
        corners, losses = corners[order], losses[order]
        centre = corners[:-1].mean(axis=0)
        outward = centre - corners[-1]
        reflected = centre + outward
        found = loss(reflected)
        if found < losses[0]:
            further = centre + expand * outward
            found_further = loss(further)
            better = found_further < found
            corners[-1], losses[-1] = (further, found_further) if better else (reflected, found)
        elif found < losses[-2]:
            corners[-1], losses[-1] = reflected, found
        else:
            towards = reflected if found < losses[-1] else corners[-1]
            nearer = centre + contract * (towards - centre)
            found_nearer = loss(nearer)
            if found_nearer < min(found, losses[-1]):
                corners[-1], losses[-1] = nearer, found_nearer
            else:
                corners[1:] = corners[0] + shrink * (corners[1:] - corners[0])
                losses[1:] = [loss(corner) for corner in corners[1:]]
    best = int(losses.argmin())
    return corners[best], float(losses[best])


def minimise_in_box(
    loss: Callable[[FloatArray], float],
    start: FloatArray,
    low: FloatArray,
    high: FloatArray,
    *,
    restarts: int,
    iterations: int,
) -> tuple[FloatArray, float]:
    """Minimise `loss` with every variable strictly between `low` and `high`.

    The variables are mapped to the line by the logistic function; the simplex is restarted at the best point
    found, with its full size, as it tends to collapse before it is done.

    Examples
    --------
    The minimum at 5 is out of bounds, so the bound is approached.

    >>> best, _ = minimise_in_box(
    ...     lambda x: float((x[0] - 5) ** 2), np.array([1.0]), np.array([0.0]), np.array([4.0]),
    ...     restarts=2, iterations=50,
    ... )
    >>> best.round(2).tolist()
    [4.0]
    """

    def inside(line: FloatArray) -> FloatArray:
        bent: FloatArray = low + (high - low) / (1 + np.exp(-np.clip(line, -30, 30)))
        return bent

    share = (start - low) / (high - low)
    point = np.log(share / (1 - share))
    value = np.inf
    for _ in range(restarts):
        point, value = nelder_mead(lambda line: loss(inside(line)), point, step=0.5, iterations=iterations)
    return inside(point), value
