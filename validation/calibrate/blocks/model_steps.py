"""Steps of whole models, segment by segment, at some batch sizes; experiment h predicts others."""

from __future__ import annotations

from typing import Final

from sim.words.errors import RunError
from validation.calibrate.blocks.gpu_costs import REPEATS, frame_ns
from validation.calibrate.blocks.grid import spans
from validation.calibrate.session import Samples, Session
from validation.cases.case import Case
from validation.cases.training_cases import step_case
from validation.gpu.torch_models import step_kinds
from validation.host.statistics import summary
from validation.real.work import Observation

__all__ = ["BATCHES", "models"]

BATCHES: Final = {"gpt": [4, 16, 64], "resnet": [32, 128, 512]}
"""model → batch sizes; those of the experiment lie between."""


def models(session: Session) -> None:
    """Measure how long every segment of a step takes: a table each, over batch sizes."""
    for model, batches in BATCHES.items():

        def read(case: Case, seen: Observation) -> Samples:
            return {case.name: [float(seen.makespan_ns)], **segments(session, case, seen)}

        cases = [step_case(model, batch, "calibration", "calibration") for batch in batches]
        try:
            session.in_time()
            found = session.block(f"steps of {model}", cases, read, 2 if session.quick else REPEATS)
        except RunError as error:  # the rest of the calibration is good without
            session.sentinels.append({"block": f"steps of {model}", "accepted": False, "why": str(error)})
            continue
        for kind in step_kinds(model):
            stats = [summary(found[f"{kind} {batch}"]) for batch in batches]
            session.tables.append(
                {
                    "kind": kind, "axes": ["batch"], "context": "warm",
                    "rows": [[batch, s.median] for batch, s in zip(batches, stats, strict=True)],
                    "statistics": [s.to_json() for s in stats],
                }
            )  # fmt: skip


def segments(session: Session, case: Case, seen: Observation) -> Samples:
    """Return how long every op of a step took, such that together they take as long as without a look."""
    lasted = spans(seen)
    scale = (seen.makespan_ns - frame_ns(session, 1)) / max(1, int(lasted.sum()))
    ns = dict(zip(seen.trace.tasks["op"].tolist(), (lasted * scale).tolist(), strict=True))
    return {f"{op.kind} {op.facts['batch']}": [ns[k]] for k, op in enumerate(case.ops)}
