"""What is told of a pipeline besides what is told of any run: bubble, activations, memory by what it is for.

::

    makespan  ├──────────────────────────────────────────────┤   first start to last end of all ranks
    rank 0    F F F F · · · B F B F B F B · B · B · B             span of rank 0, with its idle time ·
    rank 1    ← F F F · · B F B F B F B F B · B · B →             span of rank 1: fill and drain are outside

``span_ns`` and ``idle_ns`` are per rank: from its first start to its last end, and the part of that in which
it computes nothing. The bubble is the idle share of all ranks over the makespan, under every schedule: fill
and drain and the waiting for slower stages included. A rank is idle while nothing executes on it, neither a
slot nor an optimizer step, a collective or a copy; so the bubble of a training step (``train.bubble``) is the
same number. Beside it (``span_bubble``) is the idle share of the longest span of a rank, which some schedules
promise to keep small. The formula's bubble is of
one of the two, as ``formula_of`` says, with equal stages and free transfers; None where there is no closed
form.
``waits_for`` says for each rank what it stood still for (`scenarios.work.pipeline.pipeline_blame`),
``bottleneck`` what all of them waited for most, ``exposed_ns`` how long each waited for transfers, which
nothing hid.

Both are published as (cost - work) / cost: Qi et al., arXiv 2401.10241, section 5.2, take the makespan as the
cost of 1F1B and ZB-H1, and the longest span as that of ZB-H2, ZB-1p, ZB-2p and ZB-V.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from policies.pipeline import Schedule, closed_form, peak_activations
from scenarios.build.pipeline.pipeline_stage import PipelineStage
from scenarios.work.pipeline.pipeline_blame import is_compute, waits_for
from scenarios.work.pipeline.pipeline_memory import Others, memory_bands, reserved_bytes, too_much
from sim.explain.facts.communication import COMMUNICATION
from sim.trace import Trace
from sim.words.arrays import IntArray
from sim.words.intervals import union

__all__ = ["check_memory", "pipeline_report"]


def pipeline_report(
    trace: Trace,
    *,
    schedule: Schedule,
    stages: Sequence[PipelineStage],
    devices: Sequence[str],
) -> dict[str, Any]:
    """Return what the summary of a run has besides: the key ``pipeline``.

    Parameters
    ----------
    trace : Trace
    schedule : Schedule
    stages : sequence of PipelineStage
    devices : sequence of str
        Device of each rank.
    """
    number = [trace.job.machine.device_index(name) for name in devices]
    graph = trace.job.graph
    computes = np.isin(graph.kind_code, [i for i, kind in enumerate(graph.kinds) if is_compute(kind)])
    rows = np.flatnonzero(computes[trace.tasks["op"]])
    start, end = trace.tasks["start_ns"][rows], trace.tasks["end_ns"][rows]
    device = trace.device[rows]
    n = len(trace.job.machine.devices)
    first, last = np.full(n, trace.makespan_ns), np.zeros(n, np.int64)
    np.minimum.at(first, device, start)
    np.maximum.at(last, device, end)
    busy = union(start, end, device).lengths(n)
    span = np.maximum(last - first, 0)
    longest = max(number, key=lambda d: (int(span[d]), int(busy[d])))
    executes = _executing(trace, np.zeros(n, np.int64), np.full(n, trace.makespan_ns))
    makespan_bubble = _excess(len(number) * trace.makespan_ns, int(executes[number].sum()))
    span_bubble = _excess(int(span[longest]), int(_executing(trace, first, last)[longest]))
    formula = _formula(schedule, stages)
    causes = waits_for(trace, devices)
    return {
        "pipeline": {
            "schedule": schedule.name,
            "ranks": schedule.ranks,
            "stages": schedule.stages,
            "chunks": schedule.chunks,
            "micro_batches": schedule.micro_batches,
            "makespan_ns": trace.makespan_ns,
            "span_ns": span[number].tolist(),
            "idle_ns": (span - busy)[number].tolist(),
            "busy_ns": busy[number].tolist(),
            "bubble": makespan_bubble,
            "makespan_bubble": makespan_bubble,
            "span_bubble": span_bubble,
            **formula,
            "peak_activations": list(peak_activations(schedule)),
            "waits_for": causes,
            "bottleneck": _most(causes),
            "exposed_ns": [
                sum(ns for cause, ns in of_rank.items() if cause.split()[0] in COMMUNICATION)
                for of_rank in causes
            ],
            "devices": list(devices),
            "memory_bytes": memory_bands(trace, devices),
            "reserved_bytes": reserved_bytes(trace, devices),
            **{
                key: list(schedule.meta[key])
                for key in ("weight_versions", "staleness")
                if key in schedule.meta
            },
        }
    }


def _executing(trace: Trace, first: IntArray, last: IntArray) -> IntArray:
    """Return for how long any op executes on each device, between two times of each."""
    device = trace.device
    start, end = (
        np.clip(at, first[device], np.maximum(first, last)[device])
        for at in (trace.begins_ns, trace.tasks["end_ns"])
    )
    return union(start, end, device).lengths(len(first))


def check_memory(
    trace: Trace,
    advise: bool = True,
    *,
    schedule: Schedule,
    stages: Sequence[PipelineStage],
    devices: Sequence[str],
    others: Others = tuple,
) -> None:
    """Refuse a run that needs more memory than a device has.

    The error always says what would help (`advise`): it is found by formula.

    Raises
    ------
    OutOfMemoryError
        Telling what takes it, and what would help.
    """
    error = too_much(trace, schedule, stages, devices, others)
    if error is not None:
        raise error


def _excess(cost: int, work: int) -> float:
    return float(Fraction(cost - work, cost)) if cost else 0.0


def _most(causes: Sequence[Mapping[str, int]]) -> str | None:
    """Return what all ranks together waited for longest; the first of equals by name."""
    total: Counter[str] = Counter()
    for of_rank in causes:
        total.update(of_rank)
    return min(total, key=lambda cause: (-total[cause], cause), default=None)


def _formula(schedule: Schedule, stages: Sequence[PipelineStage]) -> dict[str, Any]:
    """Return the closed form's bubble, where all stages are equal and there is one."""
    form = None
    if len({stage.times for stage in stages}) == 1:
        form = closed_form(
            schedule.name,
            ranks=schedule.ranks,
            micro_batches=schedule.micro_batches,
            chunks=schedule.chunks,
            times=stages[0].times,
        )
    if form is None:
        return {"bubble_formula": None, "formula": None, "formula_of": None}
    return {
        "bubble_formula": float(form.bubble),
        "formula": f"{form.quantity} = work + {form.formula}",
        "formula_of": form.quantity,
    }
