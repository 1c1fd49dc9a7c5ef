"""Columns: the one type of array that facts are stored in, and what stands for none."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

__all__ = ["UNSET", "BoolArray", "Codes", "FloatArray", "IntArray", "by_first_use", "distinct_rows"]

T = TypeVar("T")


IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
FloatArray = npt.NDArray[np.float64]


UNSET = -1
"""In a column of sizes, times or codes: nothing was given."""


class Codes(dict[T, int]):
    """Small numbers for what a column repeats (names, threads), in order of first use.

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
        """Return a column of their numbers."""
        return np.fromiter(map(self.__getitem__, things), np.int64)


def by_first_use(values: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Number values in the order of first use: the number of each, the values, where each is first.

    Examples
    --------
    >>> number, different, first = by_first_use(np.array([7, 3, 7, 5]))
    >>> number.tolist(), different.tolist(), first.tolist()
    ([0, 1, 0, 2], [7, 3, 5], [0, 1, 3])
    """
    different, first, which = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order))
    return number[which], different[order], first[order]


def distinct_rows(*columns: IntArray) -> tuple[list[tuple[int, ...]], IntArray]:
    """Return the different rows of some columns of numbers from 0 on, sorted, and which of them each row is.

    Examples
    --------
    >>> rows, which = distinct_rows(np.array([1, 0, 1]), np.array([0, 1, 0]), np.array([8, 4, 8]))
    >>> rows, which.tolist()
    ([(0, 1, 4), (1, 0, 8)], [1, 0, 1])
    """
    code, most = columns[0], int(columns[0].max(initial=0))
    for column in columns[1:]:
        digit, base = column, int(column.max(initial=0)) + 1
        if (most + 1) * base >= 1 << 63:  # too long for 64 bits: number what there is
            (seen, code), (digits, digit) = (np.unique(each, return_inverse=True) for each in (code, column))
            most, base = len(seen) - 1, len(digits)
        code, most = code * base + digit, most * base + base - 1
    _, first, which = np.unique(code, return_index=True, return_inverse=True)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    return list(rows), which
