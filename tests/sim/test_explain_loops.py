"""The executed critical path of a loop goes through the iterations that held the next ones back."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
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
