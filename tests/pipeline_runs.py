"""Pipelines for tests, as text, and running them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runs import run_text

from scenarios.run.execute import Result

FOLDER = Path(__file__).resolve().parents[1] / "scenarios" / "examples"

GOOD = """\
name: a pipeline
workload:
  pipeline: {stages: 4, micro_batches: 8, forward: 1ms, input_grad: 1ms, weight_grad: 1ms}
policy: {name: 1f1b}
"""

SIZED = """\
machine:
  devices: {gpu: {kind: gpu, count: 2, memory: 1GiB}}
  links: [{from: gpu0, to: gpu1, bandwidth: 100GB/s}]
workload:
  pipeline:
    stages: 2
    micro_batches: 8
    forward: 1ms
    backward: 2ms
    activation: 1MiB
    kept: 100MiB
    parameters: 100MiB
    gradients: 100MiB
    optimizer_state: 200MiB
policy: gpipe
"""


def run(folder: Path, *sets: str, policy: str | None = None, text: str = GOOD) -> Result:
    """Run a scenario with settings, and check the invariants of its trace."""
    return run_text(text, folder, *sets, policy=policy)


def block(result: Result) -> dict[str, Any]:
    """Return what is told of the pipeline."""
    found: dict[str, Any] = result.to_json()["pipeline"]
    return found


def in_pipeline(**values: object) -> list[str]:
    """Return settings of the workload."""
    return [f"workload.pipeline.{key}={value}" for key, value in values.items()]
