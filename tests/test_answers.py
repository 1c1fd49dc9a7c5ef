"""What a user's own classes hand over: a wrong answer is an error that says so, never a crash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Machine, simulate
from sim.job.job import Placement
from sim.words.errors import InputError

WRONG = [[-1, -1], [2, 0], [0.9, 0], [True, 0], [0], [0, 0, 0], None, "00", [1 << 70, 0], np.zeros((2, 1))]


def _run(**options: Any) -> None:
    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=10)
    simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue(), **options)


@pytest.mark.parametrize("answer", WRONG, ids=repr)
def test_a_wrong_placement_is_named(answer: Any) -> None:
    class Mine(Placement):
        def place(self, graph: Any, machine: Any, cost_ns: Any) -> Any:
            return answer

    with pytest.raises(InputError, match=r"Mine\.place returned .*should be"):
        _run(placement=Mine())


@pytest.mark.parametrize("answer", WRONG[:1] + WRONG[2:], ids=repr)
def test_a_wrong_stream_is_named(answer: Any) -> None:
    class Mine:
        def assign(self, job: Any) -> Any:
            return answer

    with pytest.raises(InputError, match=r"Mine\.assign returned .*should be"):
        _run(streams=Mine())


def test_the_error_names_the_op() -> None:
    class Mine(Placement):
        def place(self, graph: Any, machine: Any, cost_ns: Any) -> Any:
            return [0, -1]

    with pytest.raises(InputError, match="returned -1 for op 'b', should be a whole number from 0 to 1"):
        _run(placement=Mine())
