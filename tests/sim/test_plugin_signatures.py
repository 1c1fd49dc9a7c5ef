"""A plugin with another signature than its group's is told so in a line, before it is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_runner import sim
from scenario_texts import GOOD

from devices.cost.registered_kernels import kernel
from policies.issue.ready_queue import ReadyQueue
from scenarios.importers import load_graph
from sim import Task
from sim.base import plugins
from sim.base.errors import InputError
from sim.base.options import require_call
from sim.job.places import PinnedPlacement

Put = Callable[[str, object], None]


@pytest.fixture
def put() -> Iterator[Put]:
    """Return a function that registers a plugin called `mine` in a group, for one test."""
    groups = []

    def register(group: str, thing: object) -> None:
        plugins.register(group, "mine", thing)
        groups.append(group)

    yield register
    for group in groups:
        plugins.unregister(group, "mine")


def refused(path: Path, *arguments: str) -> str:
    """Return the one line with which a scenario is refused."""
    path.write_text(GOOD)
    result = sim("run", path, *arguments)
    assert result.exit_code == 2, result.output
    line = result.stderr.rstrip("\n")
    assert "\n" not in line
    return line


NO_DURATIONS = "should have a method durations_ns(graph, device)"


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda parameters: None, "the cost model 'mine' should take (parameters, device): too many"),
        (7, "the cost model 'mine' should be callable with (parameters, device); found int 7"),
        (lambda p, d: None, f"what the cost model 'mine' makes {NO_DURATIONS}; NoneType has none"),
        (
            lambda p, d: SimpleNamespace(durations_ns=lambda graph: None),
            f"what the cost model 'mine' makes {NO_DURATIONS}: too many positional arguments",
        ),
        (
            lambda p, d: SimpleNamespace(durations_ns=lambda graph, device: None),
            "what the cost model 'mine' makes, a SimpleNamespace, should extend sim.machine.device.CostModel",
        ),
    ],
)
def test_a_cost_model_of_another_form(put: Put, tmp_path: Path, make: Any, says: str) -> None:
    put("sim.costs", make)
    assert f"cost: {says}" in refused(tmp_path / "s.yaml", "--set", "cost=mine")


def test_a_kernel_of_another_form(put: Put, tmp_path: Path) -> None:
    put("sim.kernels", kernel("conv", "gpu")(lambda op: 1))  # type: ignore[arg-type, misc]
    assert "kernel 'mine' should take (op, device)" in refused(tmp_path / "s.yaml", "--set", "cost=kernels")


@pytest.mark.parametrize(
    ("group", "key", "method"),
    [
        ("sim.placements", "placement", "place(graph, machine, cost_ns)"),
        ("sim.streams", "streams", "assign(job)"),
        ("sim.linearizers", "linearize", "order(job)"),
    ],
)
def test_a_decision_of_another_form(put: Put, tmp_path: Path, group: str, key: str, method: str) -> None:
    put(group, SimpleNamespace)
    line = refused(tmp_path / "s.yaml", "--set", f"policy.{key}=mine")
    assert f"policy.{key}: the {plugins.GROUPS[group]} 'mine' should have a method {method}" in line


def test_what_a_placement_tried_is_a_sequence(put: Put, tmp_path: Path) -> None:
    class Mine(PinnedPlacement):
        tried: Any = 5

    put("sim.placements", Mine)
    line = refused(tmp_path / "s.yaml", "--set", "policy.placement=mine")
    assert line == "Mine.tried should be a sequence of Tried, not 5"


def test_a_policy_does_not_wait(put: Put, tmp_path: Path) -> None:
    class Mine(ReadyQueue):
        def ready(self, task: Task) -> Any:
            yield task

    put("sim.policies", Mine)
    line = refused(tmp_path / "s.yaml", "--set", "policy=mine")
    assert "the policy 'mine' should have a method ready that returns; found one that waits" in line


def test_a_decision_that_no_option_can_make(put: Put, tmp_path: Path) -> None:
    put("sim.streams", lambda spread, /: SimpleNamespace(assign=lambda job: [spread]))
    line = refused(tmp_path / "s.yaml", "--set", "policy.streams=mine")
    assert "policy.streams: mine should be callable with options by name: missing a required" in line


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda ranks: None, "should take (ranks, micro_batches): too many"),
        (lambda ranks, micro_batches: None, "should return a Schedule, not None"),
    ],
)
def test_a_pipeline_schedule_of_another_form(put: Put, tmp_path: Path, make: Any, says: str) -> None:
    put("sim.pipelines", make)
    path = tmp_path / "p.yaml"
    path.write_text(
        "workload: {pipeline: {stages: 2, micro_batches: 2, forward: 1ms, backward: 2ms}}\npolicy: mine\n"
    )
    result = sim("run", path)
    assert result.exit_code == 2
    assert f"the pipeline schedule 'mine' {says}" in result.stderr
    put("sim.importers", SimpleNamespace(load=lambda path, batch=None: None))
    with pytest.raises(
        InputError, match=r"the importer 'mine' should have a method recognises\(name, head\);"
    ):
        load_graph(path, format="mine")


def test_what_can_be_called_passes() -> None:
    require_call("x", int, "value")
    require_call("x", "text", "separator", method="split")
    with pytest.raises(InputError, match=r"^x should take \(a\): missing a required argument: 'b'$"):
        require_call("x", lambda a, b: None, "a")
