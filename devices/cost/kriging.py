"""Interpolate measured values between scattered points: local kriging.

In one dimension the method below *is* piecewise linear interpolation. In more it is what takes its place
when the points are no full grid (real tables have holes):

* the value is a plane plus a deviation from it (universal kriging);
* the deviations of two points differ, on average, in proportion to the distance (the linear variogram);
* the estimate is the linear combination of the nearest measured values that is unbiased for every plane
  and has the least expected squared error;
* a share of the deviation may be the point's own (the nugget, here `noise`): a kernel that happens to be
  slow at one shape. Neighbours are then averaged over a little; with no noise, values are met exactly.

::

    [ g - D  F ] [w]   [ -d ]   D: distances between neighbours   F: [1, p - q], the plane around query q
    [  F'   -e ] [u] = [  f ]   d: distances to the query         f: [1, 0, ...]    estimate = w . values
                                g: the noise on the diagonal

(Matheron, *Principles of geostatistics*, Economic Geology 58, 1963; Cressie, *Statistics for Spatial
Data*, 1993, section 3.4.) The small ``e`` on the slopes makes the slope along an axis zero where the
neighbours do not vary along it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["interpolate", "nearest_rows"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]
_RIDGE = 1e-8
_CHUNK = 128  # queries at a time: bounds the distance table to a few tens of MB for 30,000 points


def nearest_rows(points: FloatArray, queries: FloatArray, count: int) -> IntArray:
    """Return the rows of the `count` points nearest to each query, in row order.

    Points at equal distance are taken in row order, so that a regular grid, full of ties, gives the same
    neighbours on every machine. Distances are compared to nine decimals for the same reason.

    Parameters
    ----------
    points : ndarray, shape (n, d)
    queries : ndarray, shape (q, d)
    count : int
        At most n.

    Returns
    -------
    ndarray of intp, shape (q, count)

    Examples
    --------
    >>> nearest_rows(np.array([[0.0], [1.0], [2.0], [5.0]]), np.array([[1.0]]), 2)
    array([[0, 1]])
    """
    squared = np.zeros((len(queries), len(points)))
    for axis in range(points.shape[1]):
        squared += (queries[:, None, axis] - points[None, :, axis]) ** 2
    squared = np.round(squared, 9)
    limit = np.partition(squared, count - 1, axis=1)[:, count - 1 : count]
    nearer, tied = squared < limit, squared == limit
    wanted = count - nearer.sum(axis=1, keepdims=True)
    chosen = nearer | (tied & (np.cumsum(tied, axis=1) <= wanted))
    return np.nonzero(chosen)[1].reshape(len(queries), count)


def interpolate(
    points: FloatArray,
    values: FloatArray,
    queries: FloatArray,
    *,
    neighbours: int = 24,
    noise: float = 0.0,
) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Estimate the value at each query from the points around it.

    Parameters
    ----------
    points : ndarray, shape (n, d)
        Where was measured, n >= 1.
    values : ndarray, shape (n,)
        What was measured there.
    queries : ndarray, shape (q, d)
        Where to estimate.
    neighbours : int
        How many points each estimate uses (all, when there are fewer).
    noise : float
        The deviation of a point of its own, as the distance at which the shared one is as large.

    Returns
    -------
    estimates : ndarray, shape (q,)
        Equal to the measured value (up to rounding) where the query is a point and there is no noise.
    outside : ndarray of bool, shape (q,)
        True where the query lies outside the box of its neighbours along some axis: an extrapolation, even
        when it falls into a hole inside the range of the whole table.

    Examples
    --------
    On a line it is linear interpolation; beyond the end the mean slope of the neighbours goes on.

    >>> estimates, outside = interpolate(
    ...     np.array([[0.0], [1.0], [3.0]]), np.array([0.0, 10.0, 20.0]), np.array([[0.25], [2.0], [4.0]])
    ... )
    >>> estimates.round(6).tolist(), outside.tolist()
    ([2.5, 15.0, 26.666667], [False, False, True])
    """
    count = min(neighbours, len(points))
    estimates, outside = np.empty(len(queries)), np.empty(len(queries), np.bool_)
    for begin in range(0, len(queries), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        estimates[part], outside[part] = _chunk(points, values, queries[part], count, noise)
    return estimates, outside


def _chunk(
    points: FloatArray, values: FloatArray, queries: FloatArray, count: int, noise: float
) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    rows = nearest_rows(points, queries, count)
    near, measured = points[rows], values[rows]  # (q, count, d), (q, count)
    offset = near - queries[:, None, :]
    to_query = np.sqrt((offset**2).sum(axis=2))
    between = np.sqrt(((near[:, :, None, :] - near[:, None, :, :]) ** 2).sum(axis=3))

    size, terms = len(queries), 1 + points.shape[1]
    matrix = np.zeros((size, count + terms, count + terms))
    matrix[:, :count, :count] = max(noise, _RIDGE) * np.eye(count) - between
    matrix[:, :count, count] = matrix[:, count, :count] = 1.0
    matrix[:, :count, count + 1 :] = offset
    matrix[:, count + 1 :, :count] = offset.transpose(0, 2, 1)
    slopes = np.arange(count + 1, count + terms)
    matrix[:, slopes, slopes] = -_RIDGE
    right = np.zeros((size, count + terms, 1))
    right[:, :count, 0] = -to_query
    right[:, count, 0] = 1.0
    weights = np.linalg.solve(matrix, right)[:, :count, 0]

    # The weights add up to 1; taking the mean aside makes that so beyond the solver's last digits.
    mean = measured.mean(axis=1)
    estimates = mean + (weights * (measured - mean[:, None])).sum(axis=1)
    outside = ((offset.min(axis=1) > 0) | (offset.max(axis=1) < 0)).sum(axis=1) > 0
    return estimates, outside
