"""Steps of whole models, segment by segment, at some batch sizes; experiment h predicts others."""

from __future__ import annotations

from functools import partial
from typing import Final

from validation.calibrate.blocks.chains import spans_ns
from validation.calibrate.blocks.gpu_costs import REPEATS, frame_ns
from validation.calibrate.session import Samples, Session
from validation.cases.case import Case
from validation.cases.training_cases import step_case
from validation.gpu.torch_models import step_kinds
from validation.real.work import Observation

__all__ = ["BATCHES", "model_steps"]

BATCHES: Final = {"gpt": [4, 16, 64], "resnet": [32, 128, 512]}
"""model → batch sizes; those of the experiment lie between."""


def model_steps(session: Session, model: str) -> None:
    """Measure how long every segment of a step takes: a table each, over batch sizes."""
    batches = BATCHES[model]
    cases = [step_case(model, batch, "calibration", "calibration") for batch in batches]
    found = session.block(f"steps of {model}", cases, partial(segments, session), REPEATS)
    for kind in step_kinds(model):
        session.table(kind, ("batch",), "warm", {(batch,): found[f"{kind} {batch}"] for batch in batches})


def segments(session: Session, case: Case, seen: Observation) -> Samples:
    """Return how long a step and every op of it took, such that the ops take as long as without a look."""
    lasted = spans_ns(seen)
    scale = (seen.makespan_ns - frame_ns(session, 1)) / max(1, int(lasted.sum()))
    ns = dict(zip(seen.trace.tasks["op"].tolist(), (lasted * scale).tolist(), strict=True))
    of_ops = {f"{op.kind} {op.facts['batch']}": [ns[k]] for k, op in enumerate(case.ops)}
    return {case.name: [float(seen.makespan_ns)], **of_ops}
