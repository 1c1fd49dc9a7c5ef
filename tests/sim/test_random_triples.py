"""Whatever is drawn, the run ends and keeps every invariant, however ties break, and can be repeated."""

from __future__ import annotations

from typing import Any

import numpy as np
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from triple_helpers import Run, runs


@given(runs())
@examples(150)
def test_every_run_keeps_every_invariant(run: Run) -> None:
    trace = run.trace()
    assert len(trace) == len(run.ops) * run.iterations
    trace.check()


@given(runs(), st.randoms(use_true_random=False))
@examples(60)
def test_ties_may_break_either_way(run: Run, random: Any) -> None:
    numbering = list(range(len(run.ops)))
    random.shuffle(numbering)
    trace = run.trace(numbering)
    assert len(trace) == len(run.ops) * run.iterations
    trace.check()


@given(runs())
@examples(40)
def test_the_same_run_twice_is_the_same(run: Run) -> None:
    first, again = run.trace(), run.trace()
    for mine, other in ((first.tasks, again.tasks), (first.transfers, again.transfers)):
        assert all(np.array_equal(mine[name], other[name]) for name in mine)
