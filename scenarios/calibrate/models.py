"""Steps of whole models, segment by segment, at some batch sizes; experiment h predicts others."""

from __future__ import annotations

from typing import Final

from devices.real.statistics import summary
from devices.real.torch_models import step_kinds
from devices.real.work import Observation
from scenarios.calibrate.grid import spans
from scenarios.calibrate.session import Samples, Session
from scenarios.validate.case import Case
from scenarios.validate.models import step_case
from sim.errors import RunError

__all__ = ["BATCHES", "models"]

BATCHES: Final = {"gpt": [4, 16, 64], "resnet": [32, 128, 512]}
"""model → batch sizes; those of the experiment lie between."""


def models(session: Session) -> None:
    """Measure how long every segment of a step takes: a table each, over batch sizes."""
    n = 2 if session.quick else 4
    for model, batches in BATCHES.items():

        def read(case: Case, seen: Observation) -> Samples:
            ns = dict(zip(seen.trace.tasks["op"].tolist(), spans(seen).tolist(), strict=True))
            found = {f"{op.kind} {op.facts['batch']}": [ns[k]] for k, op in enumerate(case.ops)}
            return {case.name: [float(seen.makespan_ns)], **found}

        cases = [
            case for batch in batches for case in [step_case(model, batch, "calibration", "calibration")] * n
        ]
        try:
            found = session.block(f"steps of {model}", cases, read)
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
