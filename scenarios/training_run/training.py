"""A training run of a scenario: its recovery policies, its course under each, and the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import tee
from typing import Any

from policies.recovery import Recovery
from scenarios.file.document import Document
from scenarios.training_run.lifecycle import live
from scenarios.training_run.plan import Life, TrainingPlan, best, daly, young
from sim.base.units import round_half_up
from sim.faults import arrivals
from sim.trace import Trace


@dataclass(frozen=True, eq=False)
class RecoveryRuns:
    """The run of many steps that a scenario describes, under its recovery policies.

    Attributes
    ----------
    document : Document
        Document of the scenario, for messages.
    plan : TrainingPlan
        Plan with steps of zero time: only the trace gives their duration.
    recoveries : mapping of str to Recovery
    """

    document: Document
    plan: TrainingPlan
    recoveries: Mapping[str, Recovery]

    def lives(self, trace: Trace) -> dict[str, Life]:
        """Return the course of the run under each recovery policy, with steps as long as in the trace.

        Raises
        ------
        ScenarioError
            An op of the step fails, or the step takes no time.
        RunError
            See `scenarios.training_run.lifecycle.live`.
        """
        document, job = self.document, trace.job
        if job.failures is not None:
            message = "an op of the step may fail, so nobody knows how long a step takes; leave out `fails`"
            raise document.error(("training_run",), message, key=True)
        step_ns = round_half_up(Fraction(trace.makespan_ns, job.iterations))
        if not step_ns:
            raise document.error(("training_run",), "a step takes no time", key=True)
        plan = replace(self.plan, step_ns=step_ns)
        alike = tee(arrivals(plan.failures, plan.machines, job.seed), len(self.recoveries))
        return {
            name: live(plan, recovery, job.seed, coming)
            for (name, recovery), coming in zip(self.recoveries.items(), alike, strict=True)
        }

    def report(self, lives: Mapping[str, Life]) -> dict[str, Any]:
        """Return the part of the summary about the training run; times in ns."""
        return {
            "interval": intervals(self.plan),
            "recovery": {name: _describe(life) for name, life in lives.items()},
        }


def _describe(life: Life) -> dict[str, Any]:
    spent = ("goodput", "end_ns", "steps", "useful_ns", "lost_ns", "time_ns")
    counts = ("checkpoints", "restarts", "fewest_workers")
    return {
        **{key: getattr(life, key) for key in spent},
        "interruptions": sum(life.interruptions.values()),
        "interruptions_by_cause": life.interruptions,
        **{key: getattr(life, key) for key in counts},
    }


def intervals(plan: TrainingPlan) -> dict[str, int] | None:
    """Return Young's, Daly's and the best interval between checkpoints, and the MTBF behind them.

    None if they do not apply: nothing is saved, nothing fails at random, saving takes no time, or the run
    continues while it saves.
    """
    rate = sum((cause.rate(plan.workers) for cause in plan.failures), Fraction(0))
    checkpoints = plan.checkpoints
    saved = checkpoints.every_ns is not None or checkpoints.every_steps is not None
    if not (rate and saved and checkpoints.save_ns) or checkpoints.asynchronous:
        return None
    mtbf, save = float(1 / rate), float(checkpoints.save_ns)
    return {
        "mtbf_ns": round_half_up(mtbf),
        "save_ns": checkpoints.save_ns,
        "young_ns": round_half_up(young(save, mtbf)),
        "daly_ns": round_half_up(daly(save, mtbf)),
        "best_ns": round_half_up(best(save, mtbf)),
    }
