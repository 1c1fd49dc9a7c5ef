"""Ops that slow one another down by a measured factor, computed by hand."""

from __future__ import annotations

import pytest
from runs import checked

from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Machine
from sim.machine.device import Details
from validation.cases.slowed_workers import CorunSlowdown


def makespan(kinds: list[str], workers: int, factors: list[float]) -> int:
    b = GraphBuilder("side by side")
    for i, kind in enumerate(kinds):
        b.op(f"o{i}", kind=kind, duration_ns=100)
    details = Details(corun_slowdown=factors, corun_exempt=frozenset({"copy"}))
    cpu = Device("cpu0", "cpu", workers=workers, processor=CorunSlowdown, details=details)
    trace = checked(b.build(), Machine((cpu,)), ReadyQueue())
    return trace.makespan_ns


@pytest.mark.parametrize(
    ("kinds", "workers", "factors", "expected"),
    [
        (["op"], 2, [1, 1.5], 100),
        (["op", "op"], 2, [1, 1.5], 150),
        (["op", "op", "op"], 3, [1, 1.5], 150),  # the last factor holds for more
        (["op", "op", "op"], 3, [1, 1.5, 2], 200),
        (["op", "op", "op"], 2, [1, 1.5], 250),  # two at once, then one alone
        (["op", "copy"], 2, [1, 1.5], 100),  # a copy costs nobody anything
    ],
)
def test_company(kinds: list[str], workers: int, factors: list[float], expected: int) -> None:
    assert makespan(kinds, workers, factors) == expected
