"""The executed critical path of a loop goes through the iterations that held the next ones back."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from policies.issue.ready_queue import ReadyQueue
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim import Device, GraphBuilder, Machine, simulate
from sim.explain.path import executed_path


@pytest.mark.parametrize("parallel_iterations", [1, 2, 3, 6])
def test_full_windows_are_causes(parallel_iterations: int) -> None:
    scenario = load_scenario(
        Path(__file__).parents[2] / "scenarios" / "examples" / "loop.yaml",
        sets=[f"workload.ops.loop.attributes.parallel_iterations={parallel_iterations}"],
    )
    trace = run_scenario(scenario).trace
    path = executed_path(trace)
    assert path[0].start_ns == 0
    assert path[-1].end_ns == trace.makespan_ns
    assert all(a.end_ns == b.start_ns for a, b in pairwise(path))
    assert not [step for step in path if step.kind == "wait" and step.reason == "dependency"]
    slow = [
        s for s in path if s.kind == "task" and "slow" in trace.job.graph.op_names[trace.tasks["op"][s.row]]
    ]
    assert len(slow) == -(-8 // parallel_iterations)


def test_a_merge_is_no_consequence_of_a_token_that_came_after_it_in_the_same_instant() -> None:
    """On the stream s1, the merge and s0 stand behind busy and take no time: the path went in circles."""
    b = GraphBuilder("late token")
    b.op("busy", duration_ns=50, device="gpu0")
    b.op("p", duration_ns=5, outputs=1, device="cpu0", attributes={"outcome": True})
    for name in ("s0", "s1"):
        b.op(name, kind="switch", inputs=["p", "p"], outputs=(1, 1), device="gpu0")
    b.op("merge", kind="merge", inputs=["s0:0", "s1:1"], outputs=1, device="gpu0")
    b.op("last", inputs=["merge"], after=["s0"], duration_ns=5, device="gpu0")
    machine = Machine((Device("gpu0"), Device("cpu0", "cpu", workers=1)))
    trace = simulate(b.build(), machine, ReadyQueue("lifo", synchronisation="issue"))
    names = [trace.name_of(row) for row in range(len(trace))]
    assert names.index("s1") < names.index("merge") < names.index("s0")
    assert [trace.name_of(step.row) for step in executed_path(trace)] == ["busy", "last"]
