"""What a user's own classes hand over: a wrong answer is an error that says so, never a crash."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Machine, Policy, simulate
from sim.job.build_job import make_job
from sim.job.job import Placement
from sim.kernel.run import compiled
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
        Order("place"),
        Order("place", programs=[np.array([0, 1])]),
        Order("place", programs=[np.array([0]), np.array([])]),
        Order("place", programs=[np.array([0, 0]), np.array([1])]),
        Order("place", programs=[np.array([0]), np.array([1])]),
        Order("place", programs=[np.array([0]), np.array([1])], per="issuer"),
        Order("place", programs=[np.array([0, 1]), np.array([])], window=0),
        Order("fifo", in_flight=0.5),  # type: ignore[arg-type]
        Order("fifo", per="issuer"),
        Order("keep", pool=np.array([0, 0])),
        Order("keep", pool=np.array([1, 0]), pool_of_issuer=np.array([1, 1])),
        Order("steal", pool=np.array([0, 0]), pool_of_issuer=np.array([0, 1])),
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


class _Queue(Policy):
    """A queue of its own, so that it is asked task by task."""

    def prepare(self, job: Any) -> None:
        self.tasks: list[Any] = []

    def ready(self, task: Any) -> None:
        self.tasks.append(task)

    def next(self, issuer: Any) -> Any:
        return self.tasks.pop(0) if self.tasks else None


@pytest.mark.parametrize("op", [9, -1, 1, None, "a"])
def test_a_task_that_a_policy_changes_is_named(op: Any) -> None:
    class Mine(_Queue):
        def ready(self, task: Any) -> None:
            task.op = op
            super().ready(task)

    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=10)
    with pytest.raises(InputError, match=rf"Mine gave gpu0/host <Task op={op} iteration=0> with id 0, which"):
        simulate(b.build(), Machine((Device("gpu0"),)), Mine())


@pytest.mark.parametrize(
    ("attribute", "value", "told"),
    [
        ("synchronisation", "isue", "synchronisation 'isue'; did you mean 'issue'"),
        ("synchronisation", None, "synchronisation None"),
        ("scope", "grup", "scope 'grup'; did you mean 'group'"),
        ("on_failure", "skp", "on_failure 'skp'; did you mean 'skip'"),
        ("asks_in_turn", "yes", "asks_in_turn 'yes'"),
        ("next", None, "next None, which should be a method"),
    ],
)
def test_a_wrong_attribute_of_a_policy_is_named(attribute: str, value: Any, told: str) -> None:
    mine = type("Mine", (_Queue,), {attribute: value})
    b = GraphBuilder("one")
    b.op("a", duration_ns=10)
    with pytest.raises(InputError, match=f"policy Mine has {told}"):
        simulate(b.build(), Machine((Device("gpu0"),)), mine())


@pytest.mark.parametrize("answer", [None, 5, {9}, {-1}, {0.5}, [0]], ids=repr)
def test_wrong_asynchronous_ops_are_named(answer: Any) -> None:
    class Mine(_Queue):
        def asynchronous_ops(self, job: Any) -> Any:
            return answer

    b = GraphBuilder("one")
    b.op("a", duration_ns=10)
    with pytest.raises(InputError, match=r"Mine\.asynchronous_ops returned .*should be"):
        simulate(b.build(), Machine((Device("cpu0", "cpu", workers=1),)), Mine())


def test_an_issuer_of_no_pool_takes_nothing() -> None:
    class Mine(ReadyQueue):
        scope = "machine"

        def as_data(self, job: Any) -> Any:
            return Order("keep", pool=job.group_of, pool_of_issuer=np.array([-1, 0]))

    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=10)
    trace = simulate(b.build(), Machine((Device("cpu0", "cpu", workers=2),)), Mine(), engine="kernel")
    assert (trace.makespan_ns, trace.engine) == (20, "kernel" if compiled() else "kernel (pure Python)")
