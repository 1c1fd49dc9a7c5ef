"""Compressed sparse rows: rows of unequal length in two arrays."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sim.words.arrays import IntArray

__all__ = ["Csr"]


class Csr(NamedTuple):
    """Rows of unequal length: row i is ``indices[indptr[i]:indptr[i + 1]]``.

    Examples
    --------
    >>> rows = Csr(np.array([0, 2, 3]), np.array([4, 5, 6]))
    >>> rows.row(0).tolist(), len(rows.row(1))
    ([4, 5], 1)
    """

    indptr: IntArray
    indices: IntArray

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
        """Return the row in which each entry is.

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
        """Return those rows, in that order.

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
        """Cut entries into rows of these lengths."""
        return cls(_indptr(counts), indices)

    @classmethod
    def of_rows(cls, rows: Sequence[Sequence[int]]) -> Csr:
        """Make one of Python sequences."""
        flat = np.fromiter(itertools.chain.from_iterable(rows), dtype=np.int64)
        return cls.of_counts(np.fromiter(map(len, rows), dtype=np.int64, count=len(rows)), flat)

    @classmethod
    def group(cls, keys: IntArray, values: IntArray, n_rows: int) -> Csr:
        """Collect ``values[j]`` in row ``keys[j]``, keeping the order of j within a row."""
        order = np.argsort(keys, kind="stable")
        return cls.of_counts(np.bincount(keys, minlength=n_rows), values[order])


def _indptr(counts: IntArray) -> IntArray:
    indptr = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=indptr[1:])
    return indptr
