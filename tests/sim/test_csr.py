"""Rows of unequal length: what is there, and what is not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.base.arrays import Csr


def test_a_row_that_is_not_there_is_an_error() -> None:
    """A code of -1 means "not given"; taken for a row it would silently be an empty one."""
    rows = Csr(np.array([0, 2, 3, 3]), np.array([4, 5, 6]))
    assert [rows.row(i).tolist() for i in range(3)] == [[4, 5], [6], []]
    for missing in (-1, -3, 3, 9):
        with pytest.raises(IndexError):
            rows.row(missing)


@given(st.lists(st.integers(0, 5), max_size=30))
def test_grouping_keeps_order_within_a_row(keys: list[int]) -> None:
    grouped = Csr.group(np.array(keys, dtype=np.int64), np.arange(len(keys)), 6)
    assert grouped.lists() == [[j for j, key in enumerate(keys) if key == row] for row in range(6)]
    assert [grouped.row(i).tolist() for i in range(6)] == grouped.lists()
    assert grouped.counts().tolist() == [keys.count(row) for row in range(6)]


def test_an_index_is_a_row() -> None:
    rows = Csr(np.array([0, 2, 3]), np.array([4, 5, 6]))
    assert rows[1].tolist() == [6]
    indptr, indices = rows
    assert (indptr.tolist(), indices.tolist()) == ([0, 2, 3], [4, 5, 6])
    with pytest.raises(IndexError):
        rows[-1]
