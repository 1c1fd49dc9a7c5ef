"""Intervals against sets of integers, which are the definition."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sim.base.intervals import Cover, in_use, most_at_once, most_in_use, union

rows = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(0, 2)), max_size=25)


def arrays(drawn: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return start, end and group of (start, length, group) triples."""
    table = np.array(drawn, np.int64).reshape(-1, 3)
    return table[:, 0], table[:, 0] + table[:, 1], table[:, 2]


def points(drawn: list[tuple[int, int, int]], group: int) -> set[int]:
    """Return the integers that the intervals of a group cover."""
    return {t for start, length, g in drawn if g == group for t in range(start, start + length)}


@given(rows)
def test_union_covers_the_same_points_with_disjoint_intervals(drawn: list[tuple[int, int, int]]) -> None:
    merged = union(*arrays(drawn))
    for g in range(3):
        own = [(s, e) for s, e, group in zip(*merged, strict=True) if group == g]
        assert {t for s, e in own for t in range(s, e)} == points(drawn, g)
        assert all(a[1] < b[0] for a, b in itertools.pairwise(own))
    assert merged.lengths(3).tolist() == [len(points(drawn, g)) for g in range(3)]


@given(rows)
def test_the_most_of_each_group_is_that_of_the_group_alone(drawn: list[tuple[int, int, int]]) -> None:
    start, end, group = arrays(drawn)
    weight = 1 + 7 * start % 5
    alone = [
        in_use(start[group == g], end[group == g], weight[group == g])[1].max(initial=0) for g in range(3)
    ]
    assert most_in_use(start, end, weight, group, 3).tolist() == alone


@given(rows, st.integers(0, 50), st.integers(0, 50), st.integers(0, 2))
def test_cover_counts_points(drawn: list[tuple[int, int, int]], a: int, b: int, group: int) -> None:
    cover = Cover(union(*arrays(drawn)), 50)
    covered = cover.between(np.array([a]), np.array([b]), np.array([group]))
    assert covered.tolist() == [len(points(drawn, group) & set(range(a, b)))]


@given(rows)
def test_most_at_once_counts_points(drawn: list[tuple[int, int, int]]) -> None:
    start, end, weight = arrays(drawn)
    in_use = [int(weight[(start <= t) & (t < end)].sum()) for t in range(50)]
    most, k = most_at_once(start, end, weight)
    assert most == max(in_use)
    if k >= 0:
        assert in_use[int(start[k])] == most
