"""The longest common subsequence of two sequences: which events of two recordings are the same ones.

Each column of the textbook's table grows by 0 or 1 from row to row, so that a column is a row of bits, and
one addition of long integers makes the next (Hyyrö, "Bit-parallel LCS-length computation revisited", 2004)::

        a b c a b      bits of a column: 0 where it grows
    c   0 0 1 1 1      1 1 0 1 1
    a   1 1 1 2 2      0 1 1 0 1

Long sequences are aligned in windows, of which the first half counts: time is linear in their length, and no
event is paired with one that stands further away than a window.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sim.words.arrays import IntArray

__all__ = ["common_subsequence"]

_WINDOW: Final = 8_192


def common_subsequence(a: IntArray, b: IntArray, window: int = _WINDOW) -> tuple[IntArray, IntArray]:
    """Return positions in `a` and in `b` of equal entries, both ascending, as many as can be.

    Parameters
    ----------
    a, b : array of int64
        Codes.
    window : int
        Sequences that are longer are aligned piece by piece.

    Examples
    --------
    >>> common_subsequence(np.array([1, 2, 3, 1, 2]), np.array([3, 1, 2, 2]))
    (array([2, 3, 4]), array([0, 1, 2]))
    """
    if (len(b), b.tolist()) < (len(a), a.tolist()):  # of several answers the same one either way round
        other, mine = common_subsequence(b, a, window)
        return mine, other
    found: list[tuple[IntArray, IntArray]] = []
    i = j = 0
    while i < len(a) and j < len(b):
        same = _equal_at_once(a[i:], b[j:])
        if same:
            found.append((np.arange(i, i + same), np.arange(j, j + same)))
            i, j = i + same, j + same
            continue
        last = len(a) - i <= window and len(b) - j <= window
        mine, other = _aligned(a[i : i + window], b[j : j + window])
        if not last:
            kept = int(np.searchsorted(np.maximum(mine, other), max(window // 2, 1)))
            mine, other = mine[:kept], other[:kept]
        found.append((i + mine, j + other))
        if last:
            break
        steps = (int(mine[-1]) + 1, int(other[-1]) + 1) if len(mine) else (max(window // 2, 1),) * 2
        i, j = i + steps[0], j + steps[1]
    if not found:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate([pair[0] for pair in found]), np.concatenate([pair[1] for pair in found])


def _equal_at_once(a: IntArray, b: IntArray) -> int:
    """Return how many entries are equal from the beginning on."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n


def _aligned(a: IntArray, b: IntArray) -> tuple[IntArray, IntArray]:
    """Return a longest common subsequence of two sequences of at most a window."""
    where: dict[int, int] = {}
    for position, code in enumerate(a.tolist()):
        where[code] = where.get(code, 0) | 1 << position
    full = (1 << len(a)) - 1
    column, columns = full, []
    for code in b.tolist():
        grows = column & where.get(code, 0)
        column = ((column + grows) | (column - grows)) & full
        columns.append(column)
    pairs = []
    i, j = len(a), len(b)
    while i and j:
        if columns[j - 1] >> i - 1 & 1:
            i -= 1
        else:
            j -= 1
            if not j or columns[j - 1] >> i - 1 & 1:
                i -= 1
                pairs.append((i, j))
    pairs.reverse()
    mine, other = np.array(pairs, np.int64).reshape(-1, 2).T
    return mine, other
