"""Measured durations of one kind of op, with interpolation between measured shapes.

A table is rows of (shape, latency). Latencies span five decades and shapes go up by factors, so everything
happens in logarithms: between two neighbours the table follows a power law, at a measured shape it says
exactly what was measured, and outside the neighbours it warns (:class:`ExtrapolationWarning`). It warns too
where the neighbours contradict one another, so that what lies between them may be off by more than a factor
of 2 (:class:`devices.cost.unreliable.UnreliableCostWarning`)::

    log latency        o measured
      |            ?.o          inside: between the neighbours
      |        o'
      |  ? - o                  outside: the neighbours' slope goes on, and a warning says so
      +-------------- log size

Interpolation (`Kriging`) treats full grids, grids with holes and scattered shapes alike.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from devices.cost.unreliable import UnreliableCostWarning
from devices.describe.field_types import TYPES, dtype_name, keys_of, read_part
from sim.base.arrays import BoolArray, FloatArray, IntArray, group_pairs
from sim.base.errors import InputError, UnknownNameError
from sim.graph.graph import Graph
from sim.machine.device import Device

# ----------------------------------------------------------------------------------------------------------
# What measured durations are of: the data types of the ops, and what is in a duration besides the kernel.
#
# A kernel that is measured in a chain, back to back with others, has in its time the pause before the next. A
# device has that pause as its ``gap``, and counted twice, short kernels take half as long again::
#
#     measured, a chain of 200            |kernel|gap|kernel|gap| ...      506 us: 2.5 us each
#     simulated with 2.5 us + gap 1.6 us  |kernel    |gap|kernel    |gap|  827 us
#     simulated with 2.5 us - gap         |kernel|gap|kernel|gap| ...      506 us
#
# So a table, and a fit to one, says what it contains, and the cost model takes off what the device adds.


class Measured(NamedTuple):
    """What a table, or a fit to one, rests on.

    Attributes
    ----------
    dtypes : tuple of str
        Data types of the measured ops; empty: it does not say.
    contains : tuple of str
        What is in a duration besides the kernel: ``gap``, or nothing.
    """

    dtypes: tuple[str, ...] = ()
    contains: tuple[str, ...] = ()

    @classmethod
    def read(cls, spec: object) -> Measured:
        """Read ``{dtypes: [bf16], contains: [gap]}``.

        Raises
        ------
        InputError
            Another key, or something else that a duration is said to contain.

        Examples
        --------
        >>> Measured.read({"dtypes": ["bfloat16"], "contains": ["gap"]})
        Measured(dtypes=('bf16',), contains=('gap',))
        """
        return cls(**read_part("measured", _MEASURED.read, spec))

    def to_json(self) -> dict[str, list[str]]:
        """Return what `read` reads."""
        return {key: list(words) for key, words in self._asdict().items() if words}

    def covers(self, graph: Graph) -> BoolArray:
        """Return which ops have a measured data type, or name none."""
        if not self.dtypes:
            return np.ones(len(graph), np.bool_)
        known = np.array([dtype_name(name) in self.dtypes for name in graph.dtypes] + [True])
        return np.asarray(known[graph.dtype_code])  # the code of no data type is -1, which is the last

    def alone_ns(self, measured_ns: IntArray, device: Device) -> IntArray:
        """Return durations without what the device adds to each op."""
        return np.maximum(measured_ns - device.gap_ns, 0) if "gap" in self.contains else measured_ns


NOTHING_SAID: Final = Measured()
"""Of a table that does not say: any data type, and kernels alone."""


_MEASURED: Final = keys_of(
    {"dtypes": TYPES["dtypes"], "contains": TYPES["contents"]}, "{dtypes: [bf16], contains: [gap]}"
)


# ----------------------------------------------------------------------------------------------------------
# Interpolate measured values between scattered points: local kriging.
#
# In one dimension the method below *is* piecewise linear interpolation. In more it is what takes its place
# when the points are no full grid (real tables have holes):
#
# * the value is a plane plus a deviation from it (universal kriging);
# * the deviations of two points differ, on average, in proportion to the distance (the linear variogram);
# * the estimate is the linear combination of the neighbouring values that is unbiased for every plane and has
#   the least expected squared error. Measured values are met exactly.
#
# ::
#
#     [ g - D  F ] [w]   [ -d ]   D: distances between neighbours   F: [1, p - q], the plane around query q
#     [  F'   -e ] [u] = [  f ]   d: distances to the query         f: [1, 0, ...]    estimate = w . values
#                                 g: next to nothing, on the diagonal
#
# (Matheron, *Principles of geostatistics*, Economic Geology 58, 1963; Cressie, *Statistics for Spatial
# Data*, 1993, section 3.4.) The small ``e`` on the slopes makes the slope along an axis zero where the
# neighbours do not vary along it.
#
# Neighbours are the nearest in *steps*: how many measured values of an axis lie between. By distance alone, a
# query in a wide gap would see only the crowded side of it and be extrapolated across::
#
#     o o o o o   ?         o     nearest by distance: all on the left; by steps: from both sides
#
# How far an estimate may be off is told by the neighbours themselves: each is predicted from the others,
# which takes no more than the inverse of the matrix above (Dubrule, *Cross validation of kriging in a unique
# neighborhood*, Mathematical Geology 15, 1983)::
#
#     o     o           o
#       o . ? . o                the two next to the query are met by what the others say: a small error
#     o     o           o
#       o       .  ?  .          the one on the right lies far from it: a large error, whatever the estimate
#                        o

_NEIGHBOURS = 32  # points that an estimate uses (all, when there are fewer)
_RIDGE = 1e-8
_DETERMINED = 1e-6  # far above what the ridge leaves of an exact zero, far below one over a distance
_LEAST_TO_JUDGE = 8  # neighbours beyond those that fix a plane: an error from fewer is off by over a quarter
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
    n_ties = count - nearer.sum(axis=1, keepdims=True)
    chosen = nearer | (tied & (np.cumsum(tied, axis=1) <= n_ties))
    return np.nonzero(chosen)[1].reshape(len(queries), count)


class Estimates(NamedTuple):
    """What neighbours say of each query.

    Attributes
    ----------
    values : ndarray, shape (q,)
        The estimates.
    outside : ndarray of bool, shape (q,)
        True where the query lies outside the box of its neighbours along some axis: an extrapolation, even
        when it falls into a corner without points inside the range of them all.
    errors : ndarray, shape (q,)
        The standard error of each estimate, in the unit of the values: kriging's own, scaled by how far the
        neighbours are from what the others say of them. Each counts as much as its weight in the estimate.
        0 where fewer than eight are left when a plane is fixed: too few to judge by.
    """

    values: FloatArray
    outside: BoolArray
    errors: FloatArray


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
    >>> found = line.at(np.array([[0.25], [2.0], [4.0]]))
    >>> found.values.round(5).tolist(), found.outside.tolist()
    ([2.5, 15.0, 26.66667], [False, False, True])
    """

    points: FloatArray
    values: FloatArray

    def at(self, queries: FloatArray) -> Estimates:
        """Estimate the value at each query from the points around it.

        Parameters
        ----------
        queries : ndarray, shape (q, d)
            Where to estimate. At a point the estimate is the measured value up to rounding.
        """
        parts = (queries[begin : begin + _CHUNK] for begin in range(0, max(len(queries), 1), _CHUNK))
        return Estimates(*map(np.concatenate, zip(*map(self._chunk, parts), strict=True)))

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

    def _chunk(self, queries: FloatArray) -> Estimates:
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
        right = np.zeros((size, count + terms, 1 + count))
        right[:, :count, 0] = -to_query
        right[:, count, 0] = 1.0
        right[:, np.arange(count), 1 + np.arange(count)] = 1.0
        solved = np.linalg.solve(matrix, right)[:, :count]
        weights, inverse = solved[:, :, 0], solved[:, :, 1:]

        # The weights add up to 1; taking the mean aside makes that so beyond the solver's last digits.
        mean = measured.mean(axis=1)
        deviation = measured - mean[:, None]
        estimates = mean + (weights * deviation).sum(axis=1)
        outside = ((offset.min(axis=1) > 0) | (offset.max(axis=1) < 0)).sum(axis=1) > 0
        if count < terms + _LEAST_TO_JUDGE:
            return Estimates(estimates, outside, np.zeros(size))
        variance = _variance(weights, to_query, between) * _contradiction(weights, inverse, deviation)
        return Estimates(estimates, outside, np.sqrt(variance))


def _variance(weights: FloatArray, to_query: FloatArray, between: FloatArray) -> FloatArray:
    """Return kriging's variance of the estimates: by geometry alone, per unit of the variogram."""
    alone = _RIDGE * (1 + (weights**2).sum(axis=1))  # of the query and of the neighbours
    among = (weights[:, None, :] @ between @ weights[:, :, None])[:, 0, 0]
    return np.asarray(np.maximum(alone + 2 * (weights * to_query).sum(axis=1) - among, 0))


def _contradiction(weights: FloatArray, inverse: FloatArray, deviation: FloatArray) -> FloatArray:
    """Return by how much the variance of neighbours exceeds the variogram's, as the others predict them.

    With K the matrix above, leaving point i out gives it the error (K^-1 z)_i / (K^-1)_ii
    and the variance 1 / (K^-1)_ii. A point that the others do not determine has a 0 there, and says nothing.
    """
    pull = (inverse @ deviation[:, :, None])[:, :, 0]
    certainty = np.diagonal(inverse, axis1=1, axis2=2)
    known = certainty > _DETERMINED
    ratio = np.where(known, pull**2 / np.where(known, certainty, 1), 0)
    share = np.abs(weights)
    return np.asarray((share * ratio).sum(axis=1) / share.sum(axis=1))  # weights add up to 1: never 0


# ----------------------------------------------------------------------------------------------------------

_LOG_LIMIT = float(np.log(2.0**63)) - 1e-6
_ROUGH: Final = float(np.log(2)) / 4
"""Standard error of a logarithm at which a table is rough: a factor of 2 is four of them away."""


class ExtrapolationWarning(UserWarning):
    """A table was asked beyond what was measured around the shape."""


class Estimate(NamedTuple):
    """What a table says of many shapes.

    Attributes
    ----------
    latency_ns : ndarray of int64, shape (n,)
    outside : ndarray of bool, shape (n,)
        True where the shape is extrapolated.
    error : ndarray of float, shape (n,)
        Standard error of the latency's logarithm (0.1 is about 10 %), judged by how well the neighbours
        predict one another; 0 at measured shapes, and where too few are near to judge by.
    """

    latency_ns: IntArray
    outside: BoolArray
    error: FloatArray

    @property
    def rough(self) -> BoolArray:
        """Which shapes have neighbours that contradict one another: a factor of 2 is within four errors."""
        return self.error > _ROUGH


@dataclass(frozen=True)
class Axis:
    """One number of a shape.

    Attributes
    ----------
    name : str
        As `lookup` takes it: ``m``, ``seq_len``.
    scale : {"log", "exact"}
        ``log``: positive, and values between are interpolated. ``exact``: a variant such as the head
        dimension; there is nothing between two variants.
    """

    name: str
    scale: Literal["log", "exact"] = "log"

    def __post_init__(self) -> None:
        """Refuse what no lookup could use."""
        if self.scale not in ("log", "exact"):
            raise InputError(f"axis {self.name!r} has scale {self.scale!r}; it is 'log' or 'exact'")


@dataclass(frozen=True, eq=False)
class CostTable:
    """Measured latencies of one kind of op on one device.

    Build one with :meth:`from_rows`, which sorts the rows and merges repeated shapes, or read one with
    :func:`devices.cost.calibration.load_table`.

    Attributes
    ----------
    device, kind : str
        What was measured where: ``"NVIDIA H200"``, ``"matmul"``.
    axes : tuple of Axis
        What a shape consists of, in the order of the columns.
    shapes : ndarray of int64, shape (n, axes)
        The measured shapes, distinct, in lexicographic order.
    latency_ns : ndarray of int64, shape (n,)
        What each took; positive.
    provenance : mapping
        Where the numbers come from: source, licence, library versions, clocks, protocol, sample counts.
    measured : Measured
        In which data types, and what a latency contains besides the kernel.

    Examples
    --------
    >>> table = CostTable.from_rows(
    ...     "toy", "copy", [Axis("nbytes")], [(1024, 1000), (4096, 2000)], {"source": "made up"}
    ... )
    >>> table.lookup(nbytes=4096), table.lookup(nbytes=2048)
    (2000, 1414)
    """

    device: str
    kind: str
    axes: tuple[Axis, ...]
    shapes: IntArray
    latency_ns: IntArray
    provenance: Mapping[str, Any] = field(default_factory=dict)
    measured: Measured = NOTHING_SAID

    @classmethod
    def from_rows(
        cls,
        device: str,
        kind: str,
        axes: Sequence[Axis],
        rows: Iterable[Sequence[int]] | IntArray,
        provenance: Mapping[str, Any] | None = None,
        *,
        measured: Measured = NOTHING_SAID,
    ) -> CostTable:
        """Build a table of rows (shape..., latency_ns); a shape that occurs repeatedly gets its median.

        Raises
        ------
        InputError
            No rows, rows of a wrong length, a number that is not whole, a latency or a size on a log axis
            that is not positive, an axis named twice.
        """
        names = [axis.name for axis in axes]
        if not names or len(set(names)) != len(names):
            raise InputError(f"a table needs axes with distinct names, not {names}")
        where, columns = f"the table of {kind!r} on {device!r}", (*names, "latency_ns")
        try:
            given = np.array(rows if isinstance(rows, np.ndarray) else [list(row) for row in rows])
        except ValueError as error:
            raise InputError(f"{where} has rows of different lengths; each is {columns}") from error
        if given.ndim != 2 or given.shape[1] != len(names) + 1:
            raise InputError(f"{where} needs rows of {columns}; got an array of shape {given.shape}")
        if given.dtype.kind not in "iu":
            raise InputError(f"{where} needs whole numbers (sizes, and latencies in ns), not {given.dtype}")
        whole = given.astype(np.int64)
        positive = np.array([axis.scale == "log" for axis in axes] + [True])
        bad = np.argwhere((whole <= 0) & positive)
        if len(bad):
            row, column = bad[0].tolist()
            raise InputError(
                f"{where}: row {row} has {columns[column]} = {whole[row, column]}; "
                "it must be positive, as there is no logarithm of it"
            )
        shapes, group, count = np.unique(whole[:, :-1], axis=0, return_inverse=True, return_counts=True)
        ordered = whole[np.lexsort((whole[:, -1], group.ravel())), -1]
        begin = np.cumsum(count) - count
        latency = (ordered[begin + (count - 1) // 2] + ordered[begin + count // 2] + 1) // 2  # half up
        return cls(device, kind, tuple(axes), shapes, latency, dict(provenance or {}), measured)

    @cached_property
    def _measured(self) -> dict[tuple[int, ...], int]:
        return dict(zip(map(tuple, self.shapes.tolist()), self.latency_ns.tolist(), strict=True))

    @cached_property
    def _variants(self) -> dict[tuple[int, ...], Kriging]:
        """Per combination of the exact axes: what interpolates log latencies between positions."""
        keys = enumerate(self.shapes[:, self._exact].tolist())
        variants = group_pairs((tuple(key), row) for row, key in keys)
        return {
            key: Kriging(self._position(self.shapes[rows]), np.log(self.latency_ns[rows]))
            for key, rows in variants.items()
        }

    @cached_property
    def _exact(self) -> list[int]:
        return [column for column, axis in enumerate(self.axes) if axis.scale == "exact"]

    def _position(self, shapes: IntArray) -> FloatArray:
        """Where shapes lie for the purpose of distances, one column per log axis."""
        return np.asarray(np.log(np.delete(shapes, self._exact, axis=1)))

    def lookup(self, **sizes: npt.ArrayLike) -> int | IntArray:
        """Return the latency of a shape, or of many.

        Parameters
        ----------
        **sizes : int or array of int
            One value, or arrays that broadcast together, for each axis by name.

        Returns
        -------
        int or ndarray of int64
            Nanoseconds, rounded half up; an int when every argument is a single number.

        Raises
        ------
        UnknownNameError
            There is no such axis.
        InputError
            An axis is missing, a size is not whole or not positive, or a variant (the value of an ``exact``
            axis) was never measured.

        Warns
        -----
        ExtrapolationWarning
            A shape lies outside the box of the measured shapes nearest to it.
        UnreliableCostWarning
            The measured shapes around one contradict one another: it may be off by more than a factor of 2.
        """
        names = [axis.name for axis in self.axes]
        for name in sizes:
            if name not in names:
                raise UnknownNameError(f"axis of the table of {self.kind!r}", name, names)
        if missing := [name for name in names if name not in sizes]:
            raise InputError(
                f"the table of {self.kind!r} needs {', '.join(names)}; missing: {', '.join(missing)}"
            )
        columns = np.broadcast_arrays(*(np.asarray(sizes[name]) for name in names))
        for name, column in zip(names, columns, strict=True):
            if column.size and column.dtype.kind not in "iu":
                raise InputError(f"{name} must be whole, not {column.dtype}")
        shapes = np.stack([column.astype(np.int64).ravel() for column in columns], axis=1)
        distinct, back = np.unique(shapes, axis=0, return_inverse=True)
        estimate = self.estimate(distinct)
        where, rough = f"the table of {self.kind!r} on {self.device!r}", estimate.rough & ~estimate.outside
        if estimate.outside.any():
            ends = zip(self.axes, self.shapes.min(axis=0), self.shapes.max(axis=0), strict=True)
            ranges = ", ".join(f"{axis.name} {low} to {high}" for axis, low, high in ends)
            warnings.warn(
                f"{where} was asked for {self._in_words(distinct[estimate.outside])}, outside the measured "
                f"shapes around it (whole table: {ranges}); the result is extrapolated with their slope",
                ExtrapolationWarning,
                stacklevel=2,
            )
        if rough.any():
            error = np.expm1(float(estimate.error[rough].max()))
            warnings.warn(
                f"{where} is unreliable around {self._in_words(distinct[rough])}: the measured shapes "
                f"contradict one another, so expect errors of {error:.0%}, and some of more than a factor "
                "of 2. Measure the shape itself",
                UnreliableCostWarning,
                stacklevel=2,
            )
        found = estimate.latency_ns[back.ravel()].reshape(columns[0].shape)
        return int(found) if found.ndim == 0 else found

    def estimate(self, shapes: IntArray) -> Estimate:
        """Return the latencies of shapes, and how sure they are, without a warning.

        Parameters
        ----------
        shapes : ndarray of int64, shape (n, axes)
            Shapes, in the order of the axes.

        Raises
        ------
        InputError
            A size is not positive, or a variant was never measured.
        """
        for column, axis in enumerate(self.axes):
            if axis.scale == "log" and len(shapes) and int(shapes[:, column].min()) <= 0:
                raise InputError(f"{axis.name} is {int(shapes[:, column].min())}; it must be positive")
        measured, known = self._measured, list(map(tuple, shapes.tolist()))
        latency = np.array([measured.get(shape, 0) for shape in known], dtype=np.int64)
        log_ns, error, outside = np.zeros(len(shapes)), np.zeros(len(shapes)), np.zeros(len(shapes), np.bool_)
        missing = np.flatnonzero(latency == 0).tolist()
        rows_of = group_pairs((tuple(shapes[row, self._exact].tolist()), row) for row in missing)
        for key, rows in rows_of.items():
            if key not in self._variants:
                names = [self.axes[column].name for column in self._exact]
                shown = [
                    ", ".join(f"{n}={v}" for n, v in zip(names, k, strict=True))
                    for k in (key, *self._variants)
                ]
                raise InputError(
                    f"the table of {self.kind!r} on {self.device!r} has no measurement with {shown[0]}, and "
                    f"nothing can be said between variants. Measured: {'; '.join(shown[1:])}"
                )
            log_ns[rows], outside[rows], error[rows] = self._variants[key].at(self._position(shapes[rows]))
        if log_ns.max(initial=0) > _LOG_LIMIT:
            worst = shapes[int(log_ns.argmax())].tolist()
            raise InputError(f"the table of {self.kind!r} extrapolates to over 292 years at {worst}")
        estimated = np.floor(np.exp(log_ns) + 0.5).astype(np.int64)
        return Estimate(np.where(latency > 0, latency, estimated), outside, error)

    def _in_words(self, shapes: IntArray) -> str:
        """Return the first of some shapes in words, and how many more there are."""
        sizes = zip(self.axes, shapes[0].tolist(), strict=True)
        first = ", ".join(f"{axis.name}={size}" for axis, size in sizes)
        others = len(shapes) - 1
        return first + (f" and {others} other shape{'' if others == 1 else 's'}" if others else "")
