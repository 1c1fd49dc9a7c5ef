"""What is told of a training step: time, rate, MFU, where the time goes, memory of each rank, and if it fits.

::

    rank 0  ├ products ─ attention ─ passes ─ exposed collectives ┤ × micro-batches + optimizer + waits = step
            hidden collectives run beside them

One rank a pipeline stage is simulated; the others do the same at the same time, and the report says how many.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from policies.pipeline import Schedule
from scenarios.build.train.memory import Peak
from scenarios.build.train.training import Spent, Training
from scenarios.work.train.hybrid import latency_note
from sim.explain.exposed import exposed_communication
from sim.explain.facts.communication import computes_until_ns
from sim.explain.facts.derived_columns import Facts
from sim.trace import Trace
from sim.words.arrays import IntArray
from sim.words.intervals import union
from sim.words.units import NS_PER_S

__all__ = ["train_report"]

_MESSAGES = ("all_reduce", "reduce_scatter", "all_gather", "concat", "synchronise")


def train_report(
    trace: Trace, training: Training, schedule: Schedule, peaks: Sequence[Peak]
) -> dict[str, Any]:
    """Return the key ``train`` of the summary of a run."""
    step, layout = trace.makespan_ns, training.layout
    seconds = step / NS_PER_S
    capacity, most = training.memory, max(peak.nbytes for peak in peaks)
    times = _times(trace, training, schedule)
    exposed = max(
        sum(parts.values()) for parts in [{"none": 0}, *exposed_communication(Facts(trace)).values()]
    )
    return {
        "step_ns": step,
        "tokens_per_s": training.tokens / seconds,
        "tokens_per_s_per_gpu": training.tokens / seconds / layout.ranks,
        "samples_per_s": training.global_batch / seconds,
        "model_flops": training.flops,
        "mfu": training.flops / (layout.ranks * training.calibration.peak * seconds),
        "gpus": layout.ranks,
        "parameters": training.model.parameters,
        "micro_batches": training.micro_batches,
        "schedule": schedule.name,
        "calibration": training.calibration.name,
        "folded": {"simulated": len(peaks), "each_stands_for": layout.ranks // len(peaks)},
        "groups": {
            name: {"ranks": group.size, "nodes": group.nodes}
            for name, group in training.groups.items()
            if group.size > 1
        },
        "ranks": [
            {"time_ns": of_rank, "peak_bytes": peak.nbytes, "memory_bytes": peak.parts, "when": peak.when}
            for of_rank, peak in zip(times, peaks, strict=True)
        ],
        **_experts(training),
        "memory_limit_bytes": capacity,
        "peak_bytes": most,
        "exposed_ns": exposed,
        "bubble": sum(of["waits"] for of in times) / (len(times) * step),
        "fits": capacity is None or most <= capacity,
        "notes": _notes(training, step, exposed),
    }


def _notes(training: Training, step: int, exposed: int) -> list[str]:
    """Return what a reader may not expect of the layout."""
    if (note := latency_note(training, step, exposed)) is not None:
        return [note]
    if training.layout.sharding == "zero-2" and training.layout.pp > 1:
        return ["zero-2 in a pipeline: DeepSpeed's pipeline engine refuses it, other systems may not"]
    if training.layout.sharding == "fsdp" and training.layout.pp > 1:
        return [
            "fsdp in a pipeline keeps parameters and gradients whole within a step, as torchtitan does: it "
            "takes the time and the memory of zero-1; zero-2 holds less"
        ]
    return []


def _experts(training: Training) -> dict[str, Any]:
    """Return how unequal the ranks of experts are, and what is dropped, where there are experts."""
    if not training.model.experts:
        return {}
    load = training.work.load
    return {"imbalance": load.imbalance, "dropped": load.dropped}


def _times(trace: Trace, training: Training, schedule: Schedule) -> list[dict[str, int]]:
    """Return, for each rank, where its step goes: parts of its slots, messages that nothing hides, and waits.

    `hidden` runs beside the others; the rest adds up to the step.
    """
    graph, tasks = trace.job.graph, trace.tasks
    kind = [graph.kinds[code] for code in graph.kind_code[tasks["op"]].tolist()]
    message = np.isin(kind, _MESSAGES)
    optimizer = np.array(kind) == "optimizer"
    until = computes_until_ns(trace)
    found = []
    for rank in range(len(trace.job.machine.devices)):
        mine = trace.device == rank
        busy = _covered(trace, mine)
        computes = _covered(trace, mine & ~message)
        steps = _covered(trace, mine & optimizer)
        slots = Spent()
        for stage in schedule.stages_of(rank):
            slots = slots.plus(training.each_stage[stage].forward).plus(training.each_stage[stage].backward)
        m = training.micro_batches
        kernels = {
            "products": round(m * slots.products),
            "attention": round(m * slots.attention),
            "passes": round(m * slots.passes),
        }
        exposed = computes - _covered(trace, mine & ~message, until)
        # each slot lasts whole ns; here all slots are rounded at once
        kernels["products"] += computes - steps - exposed - sum(kernels.values())
        sent = int((tasks["end_ns"] - tasks["start_ns"])[mine & message].sum())
        found.append(
            {
                **kernels,
                "exposed_in_layers": exposed,
                "exposed_around": busy - computes,
                "optimizer": steps,
                "waits": trace.makespan_ns - busy,
                "hidden": round(m * slots.hidden) + max(0, sent - (busy - computes)),
            }
        )
    return found


def _covered(trace: Trace, rows: Sequence[bool] | Any, until: IntArray | None = None) -> int:
    """Return how long at least one of these tasks runs, by default to its end."""
    where = np.flatnonzero(rows)
    start, end = trace.tasks["start_ns"][where], (trace.tasks["end_ns"] if until is None else until)[where]
    return int(union(start, end, np.zeros(len(where), np.int64)).lengths(1)[0])
