"""Splits by shape, and what is said of predictions: mean, maximum, bias, how many are off by a factor.

Every prediction that is reported was made by something that had not seen the shape. Three splits:

* **shape**: shapes are dealt to the folds at random. What a user gets who measured most of a grid.
* **layer**: all shapes of one layer (a weight matrix n x k; a head configuration) go to one fold. What a user
  gets for a model whose layers were never measured.
* **size**: all shapes with one value of an axis (k; sequence length; bytes) go to one fold. What a user gets
  between the lines of a grid, and, for the fold of its first or last line, beyond it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sim.base.errors import InputError

__all__ = ["BoolArray", "Errors", "IntArray", "Predict", "Train", "cross_validate", "errors", "folds_by"]

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Predict = Callable[[IntArray], tuple[IntArray, BoolArray]]
Train = Callable[[IntArray, IntArray], Predict]


@dataclass(frozen=True)
class Errors:
    """How far predictions are from measurements; the error of one is ``predicted / measured - 1``.

    Attributes
    ----------
    count : int
        Number of shapes.
    mean, max : float
        Of the absolute errors; every shape counts, none is dropped.
    bias : float
        Mean of the signed errors.
    median : float
        Of the absolute errors.
    beyond_2x : int
        How many are off by more than a factor of 2, up or down.
    """

    count: int
    mean: float
    median: float
    max: float
    bias: float
    beyond_2x: int

    def to_mapping(self) -> dict[str, Any]:
        """Return the numbers with four decimals, as they are recorded."""
        return {key: round(number, 4) for key, number in asdict(self).items()}


def errors(predicted_ns: npt.ArrayLike, measured_ns: npt.ArrayLike) -> Errors:
    """Compare predictions with measurements.

    Examples
    --------
    >>> errors([110, 100, 30], [100, 100, 100]).to_mapping()
    {'count': 3, 'mean': 0.2667, 'median': 0.1, 'max': 0.7, 'bias': -0.2, 'beyond_2x': 1}
    """
    measured = np.asarray(measured_ns, dtype=float)
    error = (np.asarray(predicted_ns, dtype=float) - measured) / measured
    return Errors(
        count=int(error.size),
        mean=float(np.abs(error).mean()),
        median=float(np.median(np.abs(error))),
        max=float(np.abs(error).max()),
        bias=float(error.mean()),
        beyond_2x=int(((error > 1) | (error < -0.5)).sum()),
    )


def folds_by(groups: IntArray, count: int, seed: int) -> npt.NDArray[np.intp]:
    """Deal rows to folds so that equal rows of `groups` stay together.

    Parameters
    ----------
    groups : ndarray, shape (n, any)
        What must not be torn apart: the whole shape, or the part that is the layer.
    count : int
        Number of folds.
    seed : int
        Of the shuffle.

    Returns
    -------
    ndarray of int, shape (n,)
        The fold of each row. The folds differ by at most one group.

    Raises
    ------
    InputError
        There are fewer groups than folds, or fewer than two folds.

    Examples
    --------
    >>> folds_by(np.array([[1], [2], [1], [3]]), 3, seed=0).tolist()
    [2, 0, 2, 1]
    """
    distinct, group = np.unique(groups, axis=0, return_inverse=True)
    if not 2 <= count <= len(distinct):
        raise InputError(
            f"{len(distinct)} groups cannot be dealt to {count} folds; take 2 to {len(distinct)}"
        )
    dealt = np.random.default_rng(seed).permutation(len(distinct)) % count
    return dealt[group.ravel()]


def cross_validate(
    train: Train, shapes: IntArray, latency_ns: IntArray, fold: npt.NDArray[np.intp]
) -> Iterator[tuple[npt.NDArray[np.intp], IntArray, BoolArray]]:
    """Train without each fold in turn, and predict it.

    Yields
    ------
    rows : ndarray of int
        The rows of the fold.
    predicted_ns : ndarray of int64
        What was predicted for them.
    doubtful : ndarray of bool
        Where the predictor itself warned.
    """
    for number in range(int(fold.max()) + 1):
        held, kept = np.flatnonzero(fold == number), np.flatnonzero(fold != number)
        yield held, *train(shapes[kept], latency_ns[kept])(shapes[held])
