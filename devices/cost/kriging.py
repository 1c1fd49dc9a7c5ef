"""Interpolate measured values between scattered points: local kriging.

In one dimension the method below *is* piecewise linear interpolation. In more it is what takes its place
when the points are no full grid (real tables have holes):

* the value is a plane plus a deviation from it (universal kriging);
* the deviations of two points differ, on average, in proportion to the distance (the linear variogram);
* the estimate is the linear combination of the neighbouring values that is unbiased for every plane and has
  the least expected squared error. Measured values are met exactly.

::

    [ g - D  F ] [w]   [ -d ]   D: distances between neighbours   F: [1, p - q], the plane around query q
    [  F'   -e ] [u] = [  f ]   d: distances to the query         f: [1, 0, ...]    estimate = w . values
                                g: next to nothing, on the diagonal

(Matheron, *Principles of geostatistics*, Economic Geology 58, 1963; Cressie, *Statistics for Spatial
Data*, 1993, section 3.4.) The small ``e`` on the slopes makes the slope along an axis zero where the
neighbours do not vary along it.

Neighbours are the nearest in *steps*: how many measured values of an axis lie between. By distance alone, a
query in a wide gap would see only the crowded side of it and be extrapolated across::

    o o o o o   ?         o     nearest by distance: all on the left; by steps: from both sides
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sim.base.arrays import BoolArray, FloatArray, IntArray

_NEIGHBOURS = 32  # points that an estimate uses (all, when there are fewer)
_RIDGE = 1e-8
_NEARER = 0.1  # weight of distances among points at equal steps: decides ties, and little else
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


@dataclass(frozen=True, eq=False)
class Kriging:
    """Measured values, ready to be interpolated.

    Attributes
    ----------
    points : ndarray, shape (n, d)
        Where was measured, n >= 1.
    values : ndarray, shape (n,)
        What was measured there.

    Examples
    --------
    On a line it is linear interpolation; beyond the end the mean slope of the neighbours goes on.

    >>> line = Kriging(np.array([[0.0], [1.0], [3.0]]), np.array([0.0, 10.0, 20.0]))
    >>> values, outside = line.at(np.array([[0.25], [2.0], [4.0]]))
    >>> values.round(5).tolist(), outside.tolist()
    ([2.5, 15.0, 26.66667], [False, False, True])
    """

    points: FloatArray
    values: FloatArray

    def at(self, queries: FloatArray) -> tuple[FloatArray, BoolArray]:
        """Estimate the value at each query from the points around it, and say which lie outside.

        A query lies outside the box of its neighbours along some axis: an extrapolation, even when it falls
        into a corner without points inside the range of them all.

        Parameters
        ----------
        queries : ndarray, shape (q, d)
            Where to estimate. At a point the estimate is the measured value up to rounding.
        """
        parts = (queries[begin : begin + _CHUNK] for begin in range(0, max(len(queries), 1), _CHUNK))
        values, outside = zip(*map(self._chunk, parts), strict=True)
        return np.concatenate(values), np.concatenate(outside)

    @cached_property
    def _levels(self) -> list[FloatArray]:
        """The measured values of each axis, ascending (to twelve decimals: logarithms may differ below)."""
        return [np.unique(np.round(column, 12)) for column in self.points.T]

    @cached_property
    def _stepped(self) -> FloatArray:
        return self._steps(self.points)

    def _steps(self, places: FloatArray) -> FloatArray:
        """Coordinates in steps of each axis, and, at a small weight, in distances."""
        steps = np.empty_like(places)
        for axis, levels in enumerate(self._levels):
            column = places[:, axis]
            beyond = column - np.clip(column, levels[0], levels[-1])
            steps[:, axis] = np.interp(column, levels, np.arange(len(levels))) + beyond
        return np.hstack([steps, _NEARER * places])

    def _chunk(self, queries: FloatArray) -> tuple[FloatArray, BoolArray]:
        count = min(_NEIGHBOURS, len(self.points))
        rows = nearest_rows(self._stepped, self._steps(queries), count)
        near, measured = self.points[rows], self.values[rows]  # (q, count, d), (q, count)
        offset = near - queries[:, None, :]
        to_query = np.sqrt((offset**2).sum(axis=2))
        between = np.sqrt(((near[:, :, None, :] - near[:, None, :, :]) ** 2).sum(axis=3))

        size, terms = len(queries), 1 + self.points.shape[1]
        matrix = np.zeros((size, count + terms, count + terms))
        matrix[:, :count, :count] = _RIDGE * np.eye(count) - between
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
        deviation = measured - mean[:, None]
        estimates = mean + (weights * deviation).sum(axis=1)
        outside = ((offset.min(axis=1) > 0) | (offset.max(axis=1) < 0)).sum(axis=1) > 0
        return estimates, outside
