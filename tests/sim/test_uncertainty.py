"""How sure a makespan is: by hand, and in what `sim run` and `sim compare` say."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Machine, Trace, simulate
from sim.base.arrays import IntArray
from sim.base.errors import InputError
from sim.explain.time_use import OnPath, difference_ns, interval_of, spread_on_path, uncertainty
from sim.export.tables import summary_lines
from sim.graph.graph import Graph
from sim.machine.device import CostModel
from sim.metrics import summary


@dataclass(frozen=True)
class Fitted(CostModel):
    """Durations and spreads by kind."""

    ns: dict[str, int]
    spreads: dict[str, float] = field(default_factory=dict)

    def durations_ns(self, graph: Graph, device: Device) -> IntArray:
        return np.array([self.ns.get(graph.kind(op), -1) for op in range(len(graph))])

    def spread(self, graph: Graph, device: Device) -> np.ndarray:
        return np.array([self.spreads.get(graph.kind(op), math.nan) for op in range(len(graph))])


def run(cost: CostModel | None, *ops: tuple[str, str, list[str]], workers: int = 1) -> Trace:
    b = GraphBuilder("some")
    for name, kind, inputs in ops:
        b.op(name, kind=kind, inputs=inputs, duration_ns=7 if kind == "given" else None)
    return simulate(b.build(), Machine((Device("cpu0", "cpu", workers=workers, cost=cost),)), ReadyQueue())


def test_by_hand() -> None:
    model = Fitted({"matmul": 1_000, "softmax": 500, "copy": 100}, {"matmul": 0.1, "softmax": 0.2})
    trace = run(
        model, ("a", "matmul", []), ("b", "softmax", ["a"]), ("c", "copy", ["b"]), ("d", "given", ["c"])
    )
    assert spread_on_path(trace) == {"matmul": OnPath(1_000, 0.1), "softmax": OnPath(500, 0.2)}
    below = math.hypot(1_000 * (1 - math.exp(-0.1)), 500 * (1 - math.exp(-0.2)))
    above = math.hypot(1_000 * (math.exp(0.1) - 1), 500 * (math.exp(0.2) - 1))
    told = uncertainty(trace)
    assert told is not None
    assert (told["low_ns"], told["high_ns"]) == (round(1_607 - below), round(1_607 + above))
    assert told["by_kind"]["softmax"] == {"path_ns": 500, "spread": 0.2}


def test_only_the_path_counts() -> None:
    model = Fitted({"matmul": 1_000, "softmax": 10}, {"matmul": 0.1, "softmax": 0.2})
    trace = run(model, ("a", "matmul", []), ("b", "softmax", []), workers=2)
    assert list(spread_on_path(trace)) == ["matmul"]


def test_an_interval_of_nothing_is_not_printed() -> None:
    sure = run(Fitted({"matmul": 1}, {"matmul": 0.1}), ("a", "matmul", []))
    assert summary(sure)["makespan_interval"] is not None
    assert "interval" not in summary_lines(sure, summary(sure))[0]


@pytest.mark.parametrize("cost", [None, Fitted({"matmul": 5})])
def test_who_does_not_say_is_not_asked(cost: CostModel | None) -> None:
    trace = run(cost, ("a", "given" if cost is None else "matmul", []))
    assert uncertainty(trace) is None
    assert summary(trace)["makespan_interval"] is None


def test_kinds_err_together_and_apart() -> None:
    one = {"a": OnPath(300, 0.1)}
    told = interval_of(1_000, one)
    assert told["low_ns"] == round(1_000 + 300 * math.expm1(-0.1))
    assert told["high_ns"] == round(1_000 + 300 * math.expm1(0.1))
    two = {"a": OnPath(300, 0.1), "b": OnPath(400, 0.1)}
    assert interval_of(1_000, two)["high_ns"] - 1_000 == round(500 * math.expm1(0.1))
    assert difference_ns(two, two) == 0
    assert difference_ns(two, one) == 40


@pytest.mark.parametrize("of", ["matmul_grad", "matmul_input_grad", "matmul_weight_grad"])
def test_a_kind_and_its_gradients_err_together(of: str) -> None:
    trace = run(
        Fitted({"matmul": 100, of: 300}, {"matmul": 0.1, of: 0.2}), ("a", "matmul", []), ("b", of, ["a"])
    )
    assert spread_on_path(trace) == {"matmul": OnPath(400, pytest.approx(0.175))}


def test_the_first_line_says_it() -> None:
    trace = run(Fitted({"matmul": 1_000_000}, {"matmul": 0.1}), ("a", "matmul", []))
    line = summary_lines(trace, summary(trace))[0]
    assert line.startswith(
        "makespan 1 ms (80 % interval 904.8 us to 1.105 ms, mostly from matmul), at the lower bound"
    )


def test_a_wrong_answer_is_told() -> None:
    class Short(Fitted):
        def spread(self, graph: Graph, device: Device) -> np.ndarray:
            return np.zeros(0)

    trace = run(Short({"matmul": 1_000}), ("a", "matmul", []))
    with pytest.raises(InputError, match=r"Short\.spread .* 1 number.* found 0"):
        uncertainty(trace)


def test_devices_that_cost_the_same_are_asked_once() -> None:
    asked: list[str] = []

    class Counted(Fitted):
        by_name = False

        def spread(self, graph: Graph, device: Device) -> np.ndarray:
            asked.append(device.name)
            return super().spread(graph, device)

    b = GraphBuilder("chain")
    for i in range(6):
        b.op(f"op{i}", kind="matmul", device=f"gpu{i % 3}", inputs=[f"op{i - 1}"] if i else [])
    fast, slow = Counted({"matmul": 1_000}, {"matmul": 0.1}), Counted({"matmul": 2_000}, {"matmul": 0.2})
    machine = Machine((Device("gpu0", cost=fast), Device("gpu1", cost=slow), Device("gpu2", cost=fast)))
    trace = simulate(b.build(), machine, ReadyQueue())
    assert spread_on_path(trace) == {
        "matmul": OnPath(8_000, pytest.approx((4_000 * 0.1 + 4_000 * 0.2) / 8_000))
    }
    assert sorted(asked) == ["gpu0", "gpu1"]
