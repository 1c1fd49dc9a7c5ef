"""What steps that are written layer by layer have in common: ops of one rank on two streams."""

from __future__ import annotations

from collections.abc import Sequence

from scenarios.build.pipeline.pipeline_graph import rank_name
from scenarios.build.train.training import Training
from sim import GraphBuilder
from sim.words.units import round_half_up

__all__ = ["StepWriter"]


class StepWriter:
    """Writes the ops of a step.

    Attributes
    ----------
    of : Training
    builder : GraphBuilder
    after : list of int
        What the optimizer waits for.
    """

    def __init__(self, of: Training, name: str) -> None:
        self.of, self.builder = of, GraphBuilder(name)
        self.stage = of.each_stage[0]
        self.device = rank_name(0)
        self.after: list[int] = []

    def op(self, name: str, kind: str, ns: float, after: Sequence[int], k: int, phase: str) -> int:
        """Write an op of micro-batch `k`; those of phase `BESIDE` run on the second stream."""
        return self.builder.append(
            f"{name}.{k}",
            kind=kind,
            inputs=(),
            outputs=(0,),
            after=after,
            duration_ns=round_half_up(ns),
            device=self.device,
            micro_batch=k,
            phase=phase,
        )

    def beside(self, ns: float, *messages: float) -> float:
        """Return the time of a kernel beside which messages pass: what is not hidden of them slows it."""
        return ns + (1 - self.of.calibration.hiding) * min(ns, sum(messages))

    def optimizer(self) -> int:
        """Write the optimizer's step."""
        return self.op("optimizer", "optimizer", self.of.optimizer_ns(self.stage), self.after, -1, "O")
