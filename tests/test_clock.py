"""The engine's clock goes through SimPy's events as SimPy does, but an instant at a time."""

from __future__ import annotations

from typing import Any

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from sim.engine.clock import NEVER, Clock


def story(env: simpy.Environment, waits: list[list[int]]) -> list[tuple[int, float]]:
    """Start processes that wait; each notes when it goes on."""
    told: list[tuple[int, float]] = []

    def process(i: int, ns: list[int]) -> Any:
        for delay in ns:
            yield env.timeout(delay)
            told.append((i, env.now))

    for i, ns in enumerate(waits):
        env.process(process(i, ns))
    return told


@given(st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=6))
def test_it_tells_the_story_that_simpy_tells(waits: list[list[int]]) -> None:
    env, clock = simpy.Environment(), Clock()
    expected, told = story(env, waits), story(clock, waits)
    env.run()
    instants = []
    while (now := clock.next_instant()) != NEVER:
        assert clock.peek() > now  # nothing of this instant is left
        instants.append(now)
    assert told == expected
    assert instants == sorted({now for _, now in expected} | ({0} if waits else set()))


def test_an_instant_may_come_twice() -> None:
    clock = Clock()
    clock.timeout(5)
    assert (clock.next_instant(), clock.before) == (5, 0)
    clock.timeout(0)  # somebody wants more of the same instant
    assert (clock.next_instant(), clock.before) == (5, 5)


def test_what_fails_and_nobody_defuses_is_raised() -> None:
    clock = Clock()

    def fails() -> Any:
        yield clock.timeout(1)
        raise ValueError("no more")

    clock.process(fails())
    assert (clock.next_instant(), clock.now) == (0, 0)
    with pytest.raises(ValueError, match="no more"):
        clock.next_instant()
