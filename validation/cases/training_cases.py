"""h. Whole training steps: calibrated at some batch sizes, predicted at others."""

from __future__ import annotations

from collections.abc import Iterator

from validation.cases.case import Case, CaseOp
from validation.gpu.torch_models import step_kinds

__all__ = ["step_case", "steps_of_models"]

BATCHES = {"gpt": (8, 32), "resnet": (64, 256)}


def step_case(model: str, batch: int, experiment: str, split: str) -> Case:
    """Return a step of a model as a chain on one stream."""
    kinds = step_kinds(model)
    ops = [
        CaseOp(kind, kind, [kinds[k - 1]] if k else [], {"batch": batch}, "dev0")
        for k, kind in enumerate(kinds)
    ]
    return Case(f"{model}-{batch}", experiment, split, ops, {"dev0": {"streams": 1}})


def steps_of_models(backend: str, split: str) -> Iterator[Case]:
    """h. A step of a GPT and of a residual network, at batch sizes that no calibration saw."""
    if backend == "cuda":
        for model, batches in BATCHES.items():
            for batch in batches:
                yield step_case(model, batch, "h-models", split)
