"""What steps that are written layer by layer have in common: ops of one rank on two streams."""

from __future__ import annotations

from collections.abc import Sequence

from scenarios.build.pipeline.pipeline_graph import rank_name
from scenarios.build.train.training import Spent, Training
from sim import GraphBuilder
from sim.explain.facts.communication import INSIDE
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

    def op(
        self, name: str, kind: str, ns: float, after: Sequence[int], k: int, phase: str, inside: float = 0.0
    ) -> int:
        """Write an op of micro-batch `k`; those of phase `BESIDE` run on the second stream.

        `inside` is how much of its time is communication that nothing hides.
        """
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
            attributes={INSIDE: round_half_up(inside)} if inside else None,
        )

    def slot(
        self,
        name: str,
        kind: str,
        spent: Spent,
        messages: Sequence[float],
        after: Sequence[int],
        k: int,
        phase: str,
    ) -> int:
        """Write kernels beside which messages pass: what is not hidden of these slows them."""
        slower = (1 - self.of.calibration.hiding) * min(spent.ns, sum(messages))
        return self.op(name, kind, spent.ns + slower, after, k, phase, spent.exposed + slower)

    def optimizer(self) -> int:
        """Write the optimizer's step."""
        return self.op("optimizer", "optimizer", self.of.optimizer_ns(self.stage), self.after, -1, "O")
