"""Jobs of which not even a lower bound can be said by constraints."""

from __future__ import annotations

from typing import Final

from sim import Job
from sim.graph.frames import has_control_flow
from sim.readiness.strictness import non_strict_ops
from sim.words.errors import InputError

__all__ = ["refuse_unmodelled"]

_MOST_TASKS: Final = 20_000
"""A larger problem takes minutes to write down, and is not solved."""


def refuse_unmodelled(job: Job, placed: bool = True) -> None:
    """Refuse a job of which not even a lower bound can be said by `policies.optimum.job_model`.

    Raises
    ------
    InputError
        Saying what stands in the way.
    """
    graph = job.graph
    tasks = len(graph) * job.iterations
    reasons = {
        "it has control flow, and what runs is decided during the run": has_control_flow(graph),
        "some of its ops may fail": job.failures is not None,
        "parts of its machine may fail or become slow": job.faults is not None,
        "its ranks are folded, and all of a kind have one schedule: set fold: false": (
            job.machine.folding is not None
        ),
        "some of its ops start with the first of their inputs (strict: false)": bool(
            non_strict_ops(graph).any()
        ),
        "its ranks meet in collectives, and so stay on their devices": not placed and bool(job.meets.any()),
        f"it has {tasks:,} tasks, and more than {_MOST_TASKS:,} are hopeless": tasks > _MOST_TASKS,
    }
    for reason, holds in reasons.items():
        if holds:
            raise InputError(f"the optimum of {graph.name!r} cannot be searched for: {reason}")
