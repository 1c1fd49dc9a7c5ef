"""Experiment g: the model of torch's allocator against an allocator, through the files of a validation."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_torch import Driver, Torch

from devices.cost.calibration import Calibration
from devices.memory import caching
from sim.base.errors import InfeasibleError, InputError
from validation.cases import step_files
from validation.experiments import memory_experiment
from validation.experiments.measure import measure
from validation.experiments.predict import draw_plans, predict
from validation.gpu.cuda import Cuda
from validation.gpu.torch_memory import run_steps
from validation.report.experiment_report import experiment_report, report
from validation.report.markdown import to_markdown
from validation.steps import ALL, choose, list_steps

CALIBRATION = Calibration("cuda", "fake", {"date": "2026-01-01"}, {}, [])


def judged(out: Path, *, recompute: bool = False) -> dict[str, Any]:
    return experiment_report(memory_experiment.NAME, out, "cuda", CALIBRATION, recompute=recompute)


def measured(out: Path, torch: Torch | None = None) -> None:
    draw_plans(memory_experiment.NAME, "cuda", out)
    predict(memory_experiment.NAME, out, CALIBRATION)
    measure(memory_experiment.NAME, out, "cuda", Cuda(torch or Torch(), Driver()))


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a measurement that all may read."""
    out = tmp_path_factory.mktemp("measured")
    measured(out)
    return out


@pytest.fixture
def copied(once: Path, tmp_path: Path) -> Path:
    """Return a copy of it that a test may change."""
    return shutil.copytree(once, tmp_path / "copied")


def test_model_and_allocator_agree_to_the_byte(once: Path) -> None:
    found = judged(once)
    assert found["status"] == "met"
    assert found["predicted_before_measuring"]
    assert found["metrics"]["steps"] > 5000
    assert {name: value for name, value in found["metrics"].items() if name != "steps"} == {
        "allocated.mismatches": 0, "allocated.max": 0, "reserved.mismatches": 0, "reserved.max": 0,
    }  # fmt: skip
    text = to_markdown(report(once, "cuda", CALIBRATION, [memory_experiment.NAME]))
    assert "allocated bytes differ in 0, reserved bytes differ in 0" in text
    assert "| training-1 |" in text


def test_programs_are_drawn_alike_every_time_and_apart_by_split() -> None:
    first = memory_experiment.draw("cuda")
    assert first == memory_experiment.draw("cuda")
    others = memory_experiment.draw("cuda", "development")
    assert all(first[name] != others[name] for name in first)
    for steps in first.values():
        made = [step[1] for step in steps if step[0] == "alloc"]
        freed = [step[1] for step in steps if step[0] == "free"]
        assert len(set(made)) == len(made)
        assert len(set(freed)) == len(freed)
        assert set(freed) <= set(made)


@pytest.mark.slow
def test_what_else_is_allocated_does_not_matter(tmp_path: Path) -> None:
    torch = Torch()
    held = []
    for stream in (torch.cuda.default, torch.cuda.Stream()):
        with torch.cuda.stream(stream):
            held += [torch.empty(n, dtype=torch.uint8, device="cuda") for n in (3000, 3 << 20, 12 << 20)]
            torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
    measured(tmp_path, torch)
    assert judged(tmp_path)["metrics"]["reserved.mismatches"] == 0
    assert len(held) == 6


@pytest.mark.parametrize(
    ("rule", "value", "what"),
    [
        ("ROUNDING_BYTES", 1024, "allocated"),
        ("LARGE_SEGMENT_BYTES", 32 << 20, "reserved"),
        ("SMALL_REQUEST_BYTES", 2 << 20, "reserved"),
        ("LARGE_ROUNDING_BYTES", 4 << 20, "reserved"),
    ],
)
def test_a_planted_rule_lets_recorded_errors_grow(
    once: Path, monkeypatch: pytest.MonkeyPatch, rule: str, value: int, what: str
) -> None:
    monkeypatch.setattr(caching, rule, value)
    grown = judged(once, recompute=True)["metrics"]
    assert grown[f"{what}.mismatches"] > judged(once)["metrics"][f"{what}.mismatches"]


@pytest.mark.slow
def test_an_allocator_that_rounds_otherwise_misses_the_goal(tmp_path: Path) -> None:
    torch = Torch()
    right = torch.cuda.allocator.alloc
    torch.cuda.allocator.alloc = lambda n, stream: right(n + 512, stream)  # type: ignore[method-assign]
    measured(tmp_path, torch)
    found = report(tmp_path, "cuda", CALIBRATION, [memory_experiment.NAME])
    assert found["failed"]
    [entry] = found["experiments"]
    assert entry["status"] == "missed"
    assert entry["why"].startswith("random-1-0, step 0 (alloc 0 ")


def test_other_settings_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    with pytest.raises(InfeasibleError, match="PYTORCH_CUDA_ALLOC_CONF is set"):
        run_steps(Torch(), [])
    measured(tmp_path)
    found = judged(tmp_path)
    assert found["status"] == "inconclusive"
    assert "has other rules" in found["why"]
    text = to_markdown(report(tmp_path, "cuda", CALIBRATION, [memory_experiment.NAME]))
    assert "inconclusive: PYTORCH_CUDA_ALLOC_CONF is set" in text


def test_changed_plans_are_noticed(copied: Path) -> None:
    path = step_files.step_path(copied, "plans", memory_experiment.NAME)
    content: dict[str, Any] = json.loads(path.read_text())
    content["cases"][0]["steps"][0][2] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="plans were changed"):
        judged(copied)


def test_the_command_knows_it() -> None:
    assert choose("g") == [memory_experiment.NAME]
    assert memory_experiment.NAME in ALL
    assert "measurements/g-memory.json" in list_steps("cuda", Path("x"), ALL, calibrated=False)
    assert "g-memory" not in list_steps("timer", Path("x"), ALL, calibrated=False)
