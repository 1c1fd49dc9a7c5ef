"""What a user's own classes hand over: a wrong answer is an error that says so, never a crash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Machine, simulate
from sim.job.build_job import make_job
from sim.job.job import Placement
from sim.policy.as_data import order_of
from sim.policy.order import Order
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


@pytest.mark.parametrize(
    "order",
    [
        "fifo",
        Order("fifp"),  # type: ignore[arg-type]
        Order("place", programs=[np.array([0, -1])]),
        Order("place", programs=[np.array([0, 2])]),
        Order("place", programs=[np.array([0.5, 1])]),
        Order("steal", cheap=np.zeros(2, np.int64), pool=np.array([0, 9]), pool_of_issuer=np.array([0, 1])),
    ],
    ids=repr,
)
def test_a_wrong_order_is_named(order: Any) -> None:
    class Mine(ReadyQueue):
        def as_data(self, job: Any) -> Any:
            return order

    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=10)
    job = make_job(b.build(), Machine((Device("gpu0"), Device("gpu1"))))
    with pytest.raises(InputError, match=r"Mine\.as_data"):
        order_of(Mine(), job)


def test_the_error_names_the_op() -> None:
    class Mine(Placement):
        def place(self, graph: Any, machine: Any, cost_ns: Any) -> Any:
            return [0, -1]

    with pytest.raises(InputError, match="returned -1 for op 'b', should be a whole number from 0 to 1"):
        _run(placement=Mine())
