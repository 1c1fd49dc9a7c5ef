"""``module:attribute`` in a scenario: refused at its place; with --allow-code loaded from beside the file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from scenario_texts import write

from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario, read_scenario
from sim.base.errors import ScenarioError

CODE = """
import numpy as np
from devices.memory.pool import PoolAllocator
from sim.machine.device import CostModel

DEVICE = {"kind": "gpu", "launch_latency": "3us"}
MACHINE = {"devices": {"d": {"kind": "gpu", "launch_latency": "5us"}}}

class Cost(CostModel):
    def __init__(self, parameters, device):
        self.ns = (parameters or {"ns": 1000})["ns"]
    def durations_ns(self, graph, device):
        return np.full(len(graph), self.ns)

class Pool(PoolAllocator):
    def __init__(self, capacity=None, *, name="device", extra=0):
        super().__init__(None if capacity is None else capacity + extra, name=name)
"""

TIMED = "workload: {ops: {a: {kind: matmul, output: 1MB}}}\n"
GIVEN = "workload: {ops: {a: {duration: 10us, output: 1MB}}}\n"
PLAIN = "machine: {devices: {d: {kind: gpu}}}\n"


@pytest.mark.parametrize(
    ("text", "place", "makespan_ns"),
    [
        (
            f"machine: {{devices: {{d: {{preset: their_code:DEVICE}}}}}}\n{GIVEN}",
            "1:33: machine.devices.d.preset",
            13_000,
        ),
        (f"machine: {{preset: their_code:MACHINE}}\n{GIVEN}", "1:19: machine.preset", 15_000),
        (f"machine: their_code:MACHINE\n{GIVEN}", "1:10: machine.preset", 15_000),
        (
            f"machine: {{devices: {{d: {{kind: gpu, cost: their_code:Cost}}}}}}\n{TIMED}",
            "1:42: machine.devices.d.cost",
            1_000,
        ),
        (
            f'machine: {{devices: {{d: {{kind: gpu, cost: [{{"their_code:Cost": {{ns: 7}}}}]}}}}}}\n{TIMED}',
            "1:43: machine.devices.d.cost.0",
            7,
        ),
        (f"{PLAIN}cost: their_code:Cost\n{TIMED}", "2:7: cost", 1_000),
        (
            f"{PLAIN}memory: {{allocator: {{name: their_code:Pool, extra: 3}}}}\n{GIVEN}",
            "2:21: memory.allocator",
            10_000,
        ),
    ],
)
def test_code_is_named_and_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, place: str, makespan_ns: int
) -> None:
    monkeypatch.delitem(sys.modules, "their_code", raising=False)
    (tmp_path / "their_code.py").write_text(CODE, encoding="utf-8")
    path = write(tmp_path, text)
    with pytest.raises(ScenarioError, match=rf"s\.yaml:{place}: .*--allow-code"):
        run_scenario(load_scenario(path))
    assert run_scenario(load_scenario(path, allow_code=True)).trace.makespan_ns == makespan_ns


def test_code_that_has_changed_is_loaded_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook one edits a policy and runs it again; a mistake in between is said, and can be mended."""
    monkeypatch.delitem(sys.modules, "edited_code", raising=False)
    path = write(tmp_path, f"machine: edited_code:MACHINE\n{GIVEN}")

    def run(code: str) -> int:
        (tmp_path / "edited_code.py").write_text(code, encoding="utf-8")
        return run_scenario(load_scenario(path, allow_code=True)).trace.makespan_ns

    code = CODE.partition("DEVICE")[0] + CODE[CODE.index("MACHINE") :]
    assert run(code) == run(code) == 15_000
    assert run(code.replace("5us", "70us")) == 80_000
    with pytest.raises(ScenarioError, match="cannot be imported: SyntaxError"):
        run(code + "class:")
    assert run(code) == 15_000


def test_a_class_of_the_notebook_or_script_can_be_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "MINE", {"devices": {"d": {"kind": "gpu"}}}, raising=False)
    scenario = read_scenario(f"machine: __main__:MINE\n{GIVEN}", folder=tmp_path, allow_code=True)
    assert run_scenario(scenario).trace.makespan_ns == 10_000
