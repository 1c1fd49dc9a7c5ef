"""Columns: the array type in which facts are stored, and the value that means "none"."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from sim.base.errors import InputError

K = TypeVar("K")
T = TypeVar("T")


IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]


def freeze(*columns: Any) -> None:
    """Make columns, also those in tuples, read-only, because they are shared; leave other objects alone.

    Examples
    --------
    >>> column = np.arange(3)
    >>> freeze(column, "a name")
    >>> column += 1
    Traceback (most recent call last):
    ValueError: output array is read-only
    """
    for column in columns:
        if isinstance(column, np.ndarray):
            column.flags.writeable = False
        elif isinstance(column, tuple):
            freeze(*column)


class frozen_property(cached_property[T]):
    """A column that is computed once and is read-only."""

    def __get__(self, instance: object, owner: type | None = None) -> T:  # type: ignore[override]
        """Return the column."""
        column: T = super().__get__(instance, owner)
        freeze(column)
        return column


UNSET = -1
"""Value in a column of sizes, times or codes that means "not given"."""


class Codes(dict[T, int]):
    """Small numbers for repeated values of a column (names, threads), in order of first use.

    Examples
    --------
    >>> codes = Codes[str]()
    >>> codes.of(["gemm", "copy", "gemm"]).tolist(), [*codes]
    ([0, 1, 0], ['gemm', 'copy'])
    """

    def __missing__(self, thing: T) -> int:
        """Return the next number."""
        number = self[thing] = len(self)
        return number

    def of(self, things: Iterable[T]) -> IntArray:
        """Return a column with the numbers of the given values."""
        return np.fromiter(map(self.__getitem__, things), np.int64)


def group_pairs(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return the values of each key, both in order of first use.

    Examples
    --------
    >>> group_pairs([("gemm", 3), ("copy", 1), ("gemm", 2)])
    {'gemm': [3, 2], 'copy': [1]}
    """
    groups: dict[K, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def sums_by(key: IntArray, values: IntArray, n: int) -> IntArray:
    """Return the exact sum of the values of each key from 0 to `n - 1` (`np.bincount` adds floats).

    Examples
    --------
    >>> sums_by(np.array([0, 2, 0]), np.array([1, 2, 3]), 3).tolist()
    [4, 0, 2]
    """
    sums = np.zeros(n, np.int64)
    np.add.at(sums, key, values)
    return sums


def most_by(key: IntArray, values: IntArray, n: int) -> IntArray:
    """Return the largest of the values of each key from 0 to `n - 1`, or 0 if none is above it."""
    largest = np.zeros(n, np.int64)
    np.maximum.at(largest, key, values)
    return largest


def least_by(key: IntArray, values: IntArray, n: int, limit: int) -> IntArray:
    """Return the smallest of the values of each key from 0 to `n - 1`, or `limit` if none is below it.

    Examples
    --------
    >>> least_by(np.array([0, 2, 0]), np.array([5, 12, 3]), 3, 9).tolist()
    [3, 9, 9]
    """
    smallest = np.full(n, limit)
    np.minimum.at(smallest, key, values)
    return smallest


def by_first_use(values: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Number values in order of first use: the number of each, the distinct values, their first positions.

    Examples
    --------
    >>> number, different, first = by_first_use(np.array([7, 3, 7, 5]))
    >>> number.tolist(), different.tolist(), first.tolist()
    ([0, 1, 0, 2], [7, 3, 5], [0, 1, 3])
    """
    different, first, index = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number[index], different[order], first[order]


def distinct_rows(*columns: IntArray) -> tuple[list[tuple[int, ...]], IntArray]:
    """Return the distinct rows of columns of numbers from 0 on, sorted, and the index of each row's.

    Examples
    --------
    >>> rows, which = distinct_rows(np.array([1, 0, 1]), np.array([0, 1, 0]), np.array([8, 4, 8]))
    >>> rows, which.tolist()
    ([(0, 1, 4), (1, 0, 8)], [1, 0, 1])
    """
    code, largest = columns[0], int(columns[0].max(initial=0))
    for column in columns[1:]:
        digit, base = column, int(column.max(initial=0)) + 1
        if (largest + 1) * base >= 1 << 63:  # too long for 64 bits: number the values that occur
            (values, code), (digits, digit) = (np.unique(col, return_inverse=True) for col in (code, column))
            largest, base = len(values) - 1, len(digits)
        code, largest = code * base + digit, largest * base + base - 1
    _, first, index = np.unique(code, return_index=True, return_inverse=True)
    return list(zip(*(column[first].tolist() for column in columns), strict=True)), index


# ----------------------------------------------------------------------------------------------------------
# Limits on sizes, checked before anything is built: a typing error should not fill the memory.
#
#     random-dag: layers: 100000, width: 100000    ──► 10,000,000,000 ops are more than the 10,000,000 ...
#     forty functions, each calling the next twice ──► the same, counted without writing them out

MOST_BUILT: Final = 10_000_000
"""Maximum number of ops, schedule slots or other objects that one file or command creates one by one."""

MOST_TASKS: Final = 100_000_000
"""Maximum number of tasks of a run, and of edges of a built graph: those are columns, not objects."""

MOST_RUNS: Final = 1_000_000
"""Maximum number of runs of one command: seeds, or points of a sweep."""

LATEST_NS: Final = 2**62
"""Times of a run stay below this, 146 years, so that sums of two of them fit 64 bits."""


def at_most(limit: int, count: int, things: str) -> int:
    """Return `count` if it is no more than `limit`.

    Raises
    ------
    InputError
        It is more.

    Examples
    --------
    >>> at_most(MOST_BUILT, 10**10, "ops")
    Traceback (most recent call last):
    sim.base.errors.InputError: 10,000,000,000 ops are more than the 10,000,000 that there may be
    """
    if count > limit:
        number = f"{count:,}" if count < 10**30 else f"about 2**{count.bit_length() - 1}"
        raise InputError(f"{number} {things} are more than the {limit:,} that there may be")
    return count


# ----------------------------------------------------------------------------------------------------------
# Compressed sparse rows: rows of unequal length in two arrays.


class Csr(NamedTuple):
    """Rows of unequal length: row i is ``indices[indptr[i]:indptr[i + 1]]``.

    Examples
    --------
    >>> rows = Csr(np.array([0, 2, 3]), np.array([4, 5, 6]))
    >>> rows[0].tolist(), len(rows[1])
    ([4, 5], 1)
    """

    indptr: IntArray
    indices: IntArray

    def __getitem__(self, i: int) -> IntArray:  # type: ignore[override]
        """Return row `i`, like `row`, and not the i-th field."""
        return self.row(i)

    def row(self, i: int) -> IntArray:
        """Return row `i` as a view.

        Raises
        ------
        IndexError
            There is no such row; rows are not counted from the end.
        """
        if i < 0:
            raise IndexError(f"row {i} of {len(self.indptr) - 1}: rows count from 0")
        return self.indices[self.indptr[i] : self.indptr[i + 1]]

    def counts(self) -> IntArray:
        """Return the length of every row."""
        return np.diff(self.indptr)

    def rows(self) -> IntArray:
        """Return the row of each entry.

        Examples
        --------
        >>> Csr(np.array([0, 2, 2, 3]), np.array([4, 5, 6])).rows().tolist()
        [0, 0, 2]
        """
        return np.repeat(np.arange(len(self.indptr) - 1), self.counts())

    def lists(self) -> list[list[int]]:
        """Return the rows as Python lists, which a hot loop reads faster than arrays."""
        flat, ptr = self.indices.tolist(), self.indptr.tolist()
        return [flat[a:b] for a, b in itertools.pairwise(ptr)]

    def sums(self, values: IntArray) -> IntArray:
        """Return for each row the sum of the values at its indices.

        Examples
        --------
        >>> Csr.of_rows([[0, 2], []]).sums(np.array([1, 10, 100])).tolist()
        [101, 0]
        """
        return np.diff(_indptr(values[self.indices])[self.indptr])

    def take(self, rows: IntArray) -> Csr:
        """Return the given rows, in the given order.

        Examples
        --------
        >>> Csr(np.array([0, 2, 3]), np.array([4, 5, 6])).take(np.array([1, 0, 1])).lists()
        [[6], [4, 5], [6]]
        """
        counts = self.counts()[rows]
        indptr = _indptr(counts)
        start = np.repeat(self.indptr[rows] - indptr[:-1], counts)
        return Csr(indptr, self.indices[start + np.arange(indptr[-1])])

    @classmethod
    def of_counts(cls, counts: IntArray, indices: IntArray) -> Csr:
        """Return entries divided into rows of these lengths."""
        return cls(_indptr(counts), indices)

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[int]]) -> Csr:
        """Return rows made from Python sequences."""
        flat = np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int64)
        return cls.of_counts(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)), flat)

    @classmethod
    def group(cls, keys: IntArray, values: IntArray, n_rows: int) -> Csr:
        """Return ``values[j]`` in row ``keys[j]``, keeping the order of j within a row."""
        return cls.of_counts(np.bincount(keys, minlength=n_rows), values[np.argsort(keys, kind="stable")])


def _indptr(counts: IntArray) -> IntArray:
    indptr = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    return indptr
