"""The walk over programs that wait for one another: what it promises, compiled and as Python."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from sim.base import edge_passes as programs
from sim.base.arrays import Csr
from sim.base.compiled import load

Rows = list[list[int]]


class Programs(NamedTuple):
    """For each step what it needs and makes, and the number of steps of each program."""

    needs: Rows
    makes: Rows
    steps: list[int]
    n_keys: int


@st.composite
def several_programs(draw: st.DrawFn) -> Programs:
    """Draw programs of which many get stuck: what is needed may be made late, by nobody, or twice."""
    steps = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    n_keys = draw(st.integers(1, 8))
    few = st.lists(st.integers(0, n_keys - 1), max_size=2)
    rows = st.lists(few, min_size=sum(steps), max_size=sum(steps))
    return Programs(draw(rows), draw(rows), steps, n_keys)


def first_steps(given_: Programs) -> list[int]:
    return np.cumsum([0, *given_.steps]).tolist()


def walked(module: object, given_: Programs) -> tuple[list[int], list[int]]:
    """Return the order, and where each program stops."""
    first = np.array(first_steps(given_), np.int64)
    needs, makes = Csr.of_rows(given_.needs), Csr.of_rows(given_.makes)
    order, done = module.steps_in_order(first, given_.n_keys, [*needs, *makes])  # type: ignore[attr-defined]
    return order.tolist(), done.tolist()


def by_definition(given_: Programs) -> tuple[list[int], list[int]]:
    """Let each program go on in turn, and who sleeps wake in the order of falling asleep on what is made."""
    first = first_steps(given_)
    order: list[int] = []
    at, made = first[:-1], set[int]()
    asleep: dict[int, list[int]] = {}
    awake = list(range(len(given_.steps)))
    while awake:
        rank = awake.pop(0)
        while at[rank] < first[rank + 1]:
            step = at[rank]
            lacks = [key for key in given_.needs[step] if key not in made]
            if lacks:
                asleep.setdefault(lacks[0], []).append(rank)
                break
            for key in given_.makes[step]:
                made.add(key)
                awake += asleep.pop(key, [])
            order.append(step)
            at[rank] += 1
    return order, at


@examples(300)
@given(given_=several_programs())
def test_the_walk_is_the_same_compiled_and_not(given_: Programs) -> None:
    compiled = load("edge_passes", "base")
    assert walked(compiled, given_) == walked(programs, given_) == by_definition(given_)


def test_the_compiled_walk_is_tested_where_there_is_one() -> None:
    compiled = pytest.importorskip("sim.base._edge_passes")
    assert compiled.COMPILED
    assert not programs.COMPILED
