"""Report on a training step: time, rate, MFU, where the time goes, memory of each rank, and whether it fits.

::

    rank 0  ├ products ─ attention ─ passes ─ exposed collectives ┤ × micro-batches + optimizer + waits = step
            hidden collectives run beside them

One rank per pipeline stage is simulated; the report says how many others do the same at the same time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from policies.pipeline.pipeline_schedule import PHASES, Schedule
from scenarios.builders.train.kernels import Collective, Spent
from scenarios.builders.train.layout import SHARDINGS
from scenarios.builders.train.memory import PARTS, StagePart
from scenarios.builders.train.step import step_trace
from scenarios.builders.train.training import FULL_ITERATION, Training
from scenarios.workloads.pipeline_report import memory_peaks, owners
from scenarios.workloads.step_report import covered_ns
from sim.base.errors import InputError, OutOfMemoryError
from sim.base.units import NS_PER_S, format_count, format_duration, round_half_up
from sim.explain.communication import computes_until_ns, exposed_communication
from sim.explain.derived import DerivedColumns
from sim.explain.time_use import OnPath, interval_of
from sim.export.tables import size
from sim.graph.graph import Graph
from sim.trace import Trace

_NOTEWORTHY: Final = 0.02
"""Least share of a step that is worth a note."""


def peaks_of(training: Training, trace: Trace) -> list[dict[str, Any]]:
    """Return the peak memory of each pipeline rank in the run of a step, by purpose, and when it is."""
    graph, tasks = trace.job.graph, trace.tasks
    peaks = []
    for rank, (peak_ns, bands) in enumerate(memory_peaks(trace, range(len(trace.job.machine.devices)))):
        running = (trace.device == rank) & (tasks["start_ns"] <= peak_ns) & (tasks["end_ns"] > peak_ns)
        when = _when(training, graph, tasks["op"][running].tolist())
        parts = {**dict.fromkeys(PARTS, 0), **bands}
        peaks.append({"peak_bytes": sum(bands.values()), "memory_bytes": parts, "when": when})
    return peaks


def _when(training: Training, graph: Graph, running: Sequence[int]) -> str:
    """Return what runs and which piece of it needs the most memory; slots take precedence over messages."""
    message = ""
    for op in running:
        stage, k, kind = int(graph.stage[op]), int(graph.micro_batch[op]), graph.kind(op)
        if kind in _MESSAGES:
            message = message or graph.op_names[op]
        elif k < 0 or stage < 0:
            name = graph.op_names[op].partition(".")[0]
            if name[1:].isdigit():
                name = f"{'forward' if name[0] == 'F' else 'backward'} of layer {name[1:]}"
            return f"{name} in micro-batch {k}" if k >= 0 else name
        else:
            memory, forward = training.memory_of_stages[stage], kind[0] == "F"
            piece = f", in {memory.forward_at if forward else memory.backward_at}" if kind in PHASES else ""
            return f"{'forward' if forward else 'backward'} of micro-batch {k} on stage {stage}{piece}"
    return message


def fullest(training: Training, trace: Trace) -> int:
    """Return the most bytes that any rank holds in the run of a step."""
    return max(int(peak["peak_bytes"]) for peak in peaks_of(training, trace))


_MESSAGES = ("all_reduce", "reduce_scatter", "all_gather", "concat", "copy", "synchronise")


def train_report(
    trace: Trace, training: Training, schedule: Schedule, interval: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the key ``train`` of the summary of a run whose `step_interval` is `interval`."""
    peaks = peaks_of(training, trace)
    done, layout = trace.steps_done, training.layout
    n = max(1, done)
    step = trace.makespan_ns // n
    seconds = step / NS_PER_S if done else math.inf
    capacity, highest = training.memory, max(peak["peak_bytes"] for peak in peaks)
    times = _times(trace, training, schedule)
    messages = exposed_communication(DerivedColumns(trace)).values()
    exposed = max((sum(parts.values()) for parts in messages), default=0) // n
    load = training.work.load if training.model.experts else None
    return {
        "step_ns": step,
        **{key: None if interval is None else interval[key] // n for key in ("low_ns", "high_ns")},
        "tokens_per_s": training.tokens / seconds,
        "tokens_per_s_per_gpu": training.tokens / seconds / layout.ranks,
        "samples_per_s": training.batch / seconds,
        "model_flops": training.flops,
        "mfu": training.flops / (layout.ranks * training.calibration.peak * seconds),
        "gpus": layout.ranks,
        "parameters": training.model.parameters,
        **({"trained_parameters": training.adapter_parameters} if training.lora else {}),
        "micro_batches": training.micro_batches,
        "schedule": schedule.name,
        "calibration": training.calibration.name,
        "folded": {"simulated": len(peaks), "each_stands_for": layout.ranks // len(peaks)},
        "groups": {
            name: {"ranks": group.size, "nodes": group.nodes}
            for name, group in training.groups.items()
            if group.size > 1
        },
        "ranks": [{"time_ns": of_rank, **peak} for of_rank, peak in zip(times, peaks, strict=True)],
        **({} if load is None else {"imbalance": load.imbalance, "dropped": load.dropped}),
        "capacity_bytes": capacity,
        "peak_bytes": highest,
        "exposed_ns": exposed,
        "bubble": sum(rank_times["waits"] for rank_times in times) / (len(times) * step),
        "fits": capacity is None or highest <= capacity,
        "notes": _notes(training, step, exposed),
    }


def step_interval(training: Training, schedule: Schedule, step: int) -> dict[str, Any] | None:
    """Return the uncertainty interval of a step (`sim.explain.time_use.uncertainty`), or None if unknown.

    It is that of the rank that computes longest: ranks that wait, wait for the same kernels. All time other
    than computing counts as certain, as in any run.
    """

    def kernels(rank: int) -> tuple[float, dict[str, tuple[float, float]]]:
        kinds_ns: dict[str, tuple[float, float]] = {}
        stages = [training.each_stage[s] for s in schedule.stages_of(rank)]
        for stage in stages:
            _add_kinds(training, stage, kinds_ns)
        return sum(stage.forward.plus(stage.backward).ns for stage in stages), kinds_ns

    if training.calibration.alone is None or not training.calibration.is_unfitted:
        return None
    busy, kinds = max((kernels(rank) for rank in range(schedule.ranks)), key=lambda one: one[0])
    if not any(wide for _, wide in kinds.values()):
        return None
    share = step / max(busy, sum(ns for ns, _ in kinds.values()))
    on_path = {kind: OnPath(round(share * ns), wide / ns) for kind, (ns, wide) in kinds.items() if wide}
    return interval_of(step, dict(sorted(on_path.items(), key=lambda k: -k[1].ns * k[1].spread)))


def _add_kinds(training: Training, stage: StagePart, kinds: dict[str, tuple[float, float]]) -> None:
    """Add the time of a stage's kernels, and that time weighted by its spread, to their op kinds."""
    prices = training.calibration.alone
    assert prices is not None
    for pieces, units in Counter(unit.pieces for unit in stage.units).items():
        run = [kernel for piece in pieces for kernel in (*piece.forward, *piece.backward, *piece.again)]
        timed = [kernel for kernel in run if not isinstance(kernel, Collective)]
        times = training.calibration.kernels_ns(timed)
        for ns, (kind, spread) in zip(times, prices.spread(timed), strict=True):
            total, off = kinds.get(kind, (0.0, 0.0))
            kinds[kind] = total + units * ns, off + units * ns * spread


def launch_note(training: Training) -> str | None:
    """Return a note if launches are left out but would bound an eager step."""
    host = training.calibration.host
    if training.cuda_graph != FULL_ITERATION or not (host.issue_cost or host.experts):
        return None
    slots = [
        sum((stage.forward.plus(stage.backward).ns for stage in variant.each_stage), 0.0)
        for variant in (training, replace(training, cuda_graph=()))
    ]
    if slots[1] < (1 + _NOTEWORTHY) * slots[0]:
        return None
    return (
        "launches take no time (cuda_graph: full-iteration); with cuda_graph: none a micro-batch takes "
        f"{100 * (slots[1] / slots[0] - 1):.0f}% longer, as the GPU waits for the host"
    )


def latency_note(training: Training, step: int, exposed: int) -> str | None:
    """Return a note if latency dominates FSDP's collectives: twice the bytes hardly take longer.

    Parameters
    ----------
    training : Training
    step : int
        Duration of the step in ns.
    exposed : int
        Part of it spent in exposed collectives.
    """
    if training.layout.sharding != "fsdp" or not training.parameters_apart or exposed < _NOTEWORTHY * step:
        return None
    layers = (training.timed_part(unit) for unit in training.each_stage[0].units if unit.boundary)
    parameters = max(part.parameters - part.expert_parameters for part in layers)
    group, once = training.groups["shard"], training.gather_ns(parameters)
    latency = 2 * once - training.gather_ns(2 * parameters)  # what does not grow with the bytes
    if latency <= once / 2:
        return None
    return (
        f"a layer is gathered in {format_duration(round_half_up(once))}, of which "
        f"{format_duration(round_half_up(latency))} are latencies of a ring of {group.size:,} ranks on "
        f"{group.nodes:,} nodes; with parallel.shard (HSDP) rings are shorter"
    )


def _notes(training: Training, step: int, exposed: int) -> list[str]:
    """Return notes on what the prediction does not cover for this layout."""
    layout, notes = training.layout, [*precision_notes(training), *dispatcher_notes(training)]
    if training.calibration.is_unfitted:
        notes.insert(0, _UNFITTED_NOTE)
    if len(set(training.layers_per_stage)) > 1 and not training.partition:
        notes.append(f"layers do not divide evenly: taken as partition: {[*training.layers_per_stage]}")
    if training.recompute == "selective" and training.work.batch.attention == "flash":
        notes.append("recompute: selective frees little here, as attention: flash keeps no scores")
    if training.tensor_overlap and not layout.splits_sequence:
        notes.append("overlap: tp has no effect here, as no product waits for parts of a sequence")
    if training.overlap and training.parameters_apart:
        notes.append(
            "overlap: dp has no effect here: sharded parameters and gradients pass beside layers anyway"
        )
    bound = (launch_note(training), latency_note(training, step, exposed))
    notes += [note for note in bound if note is not None]
    if layout.pp > 1 and layout.sharding == "fsdp":
        notes.append(
            "fsdp in a pipeline keeps parameters and gradients whole within a step, as torchtitan does: it "
            "takes the time and the memory of zero-1; zero-2 holds less, and sends more"
        )
    return notes


def dispatcher_notes(training: Training) -> list[str]:
    """Return a note if no dispatcher kernel was measured on this number of ranks."""
    dispatcher, group, prices = training.dispatcher, training.groups["ep"], training.calibration.alone
    measured = dispatcher == "deepep" and prices is not None and prices.sends(group)
    if dispatcher == "all-to-all" or group.size == 1 or measured:
        return []
    one = "node" if group.nodes > 1 else "rank"
    return [
        f"no kernel of {dispatcher} was measured on {group.per_node} ranks a node here: it takes what an "
        f"all-to-all does with a copy of a token for each {one} that has some of its experts"
    ]


def precision_notes(training: Training) -> list[str]:
    """Return notes if the kernels of a precision are priced as products of another."""
    calibration = training.calibration
    if calibration.alone is None:
        return []
    notes, dtype, own_gpu = [], calibration.alone.products, calibration.alone.device.details.preset
    needed, lent, gpu = calibration.alone.what_was_measured()
    if needed == "mxfp8" != dtype:
        notes.append(f"products in {dtype} run as mxfp8, as Transformer Engine has it where a GPU has mxfp8")
    if (needed, own_gpu) != (lent, gpu):
        where = "" if gpu == own_gpu else f" on {gpu}, by the data sheets of both"
        notes.append(
            f"no product in {needed} was measured on {own_gpu}: they take what those in {lent} do{where}"
        )
    if not calibration.is_unfitted and dtype != calibration.alone.dtype:
        notes.append(
            f"{calibration.name} has fitted rates, and no time for quantizing: recipes of {lent} that differ "
            "in it alone take the same"
        )
    return notes


_UNFITTED_NOTE: Final = (
    "kernels take as long as they do alone, which NVIDIA's tuned programs come close to; other programs take "
    "longer (calibrations and their errors: docs/training.md#calibrations)"
)


def _times(trace: Trace, training: Training, schedule: Schedule) -> list[dict[str, int]]:
    """Return the time of each rank's step by part: its slots' parts, exposed messages, and waits.

    `hidden` overlaps the others; the rest add up to the step.
    """
    graph, tasks, n = trace.job.graph, trace.tasks, max(1, trace.steps_done)
    kind = [graph.kinds[code] for code in graph.kind_code[tasks["op"]].tolist()]
    message = np.isin(kind, _MESSAGES)
    optimizer = np.array(kind) == "optimizer"
    ends_ns = computes_until_ns(trace)
    every = (covered_ns(trace, rows) for rows in (np.ones_like(message), ~message, optimizer))
    computes_ns = covered_ns(trace, ~message, ends_ns)
    rank_times = []
    for rank, (busy, computes, steps) in enumerate(np.stack(list(every), axis=1).tolist()):
        own_rows = trace.device == rank
        slots = Spent()
        for stage in schedule.stages_of(rank):
            slots = slots.plus(training.each_stage[stage].forward).plus(training.each_stage[stage].backward)
        m = n * training.micro_batches
        launched = () if training.cuda_graph == FULL_ITERATION else ("host",)
        quantizing = ("quantizing",) if slots.quantizing else ()
        parts = ("products", "attention", "passes", *quantizing, *launched)
        planned = {part: m * getattr(slots, part) for part in parts}
        exposed = computes - int(computes_ns[rank])
        ran = computes - steps - exposed  # longer than planned under noise, or beside messages
        longer = ran / (sum(planned.values()) or 1)
        kernels = {part: round(ns * longer) for part, ns in planned.items()}
        kernels["products"] += ran - sum(kernels.values())
        sent = int((tasks["end_ns"] - tasks["start_ns"])[own_rows & message].sum())
        others = {"exposed_in_layers": exposed, "exposed_around": busy - computes, "optimizer": steps}
        part_ns = {part: ns // n for part, ns in (kernels | others).items()}
        part_ns["waits"] = trace.makespan_ns // n - sum(part_ns.values())
        part_ns["hidden"] = (round(m * slots.hidden) + max(0, sent - (busy - computes))) // n
        rank_times.append(part_ns)
    return rank_times


# ----------------------------------------------------------------------------------------------------------
# Whether a training step fits, and if not: which rank, when, what owns the memory, and what would help.
#
#     one setting at a time, its smallest change that fits: policy, micro_batch /2 .., recompute, sharding,
#     shard, ep, tp, cp, pp ×2 .., and pp with tp on all of a node
#     of those that fit: the one with the fastest step
#
# A change of tp, cp or pp takes its ranks from dp, so that the size of the cluster and the global batch
# stay the same.

_LEAN_SCHEDULES: Final = ("1f1b", "interleaved-1f1b", "v-half", "v-min")
"""Schedules that start backwards early, each with fewer activations in flight than the one before."""


class FittingChange(NamedTuple):
    """A change of a setting that makes a training fit, with its peak memory and its step."""

    setting: str
    peak: int
    step_ns: int


def _change_ladders(training: Training) -> Iterator[list[tuple[str, Callable[[], Training]]]]:
    """Yield, for each setting, its changes from the least to the greatest."""
    layout, micro_batch = training.layout, training.micro_batch

    def laid_out(**changes: Any) -> Training:
        return replace(training, layout=replace(layout, **changes))

    if layout.pp > 1:
        others = [name for name in _LEAN_SCHEDULES if name != training.policy]
        yield [(f"policy: {name}", partial(replace, training, policy=name, options={})) for name in others]
    powers = [2**k for k in range(1, 10)]
    halves = [micro_batch >> k for k in range(1, micro_batch.bit_length()) if not micro_batch % 2**k]
    yield [(f"micro_batch: {size}", partial(replace, training, micro_batch=size)) for size in halves]
    levels = ("none", "selective", "full")
    steps = levels[levels.index(training.recompute) + 1 :] if training.recompute in levels else ("full",)
    yield [(f"recompute: {level}", partial(replace, training, recompute=level)) for level in steps]
    others = [name for name in SHARDINGS[1:-1] if name != layout.sharding]  # zero-3 is not proposed
    yield [(f"parallel.sharding: {name}", partial(laid_out, sharding=name)) for name in others]
    nodes = [layout.node * 2**k for k in range(20)]  # HSDP: a copy on a node, on twice as many, ...
    wider = [n for n in nodes if layout.shard < n < layout.dp * layout.cp]
    if layout.shard:
        yield [(f"parallel.shard: {n or 'all'}", partial(laid_out, shard=n)) for n in (*wider, 0)]
    elif training.stages == 1:
        prefix = "parallel: sharding: fsdp, shard"
        yield [(f"{prefix}: {n}", partial(laid_out, sharding="fsdp", shard=n)) for n in wider]
    parts = [layout.ep * n for n in powers] if training.model.experts else []
    yield [(f"parallel.ep: {ep}", partial(laid_out, ep=ep)) for ep in parts]
    filled = max(1, layout.node // layout.tp)  # tp on all GPUs of a node, and pp over nodes
    for dimension, more_tp in dict.fromkeys((("tp", 1), ("cp", 1), ("pp", 1), ("pp", filled))):
        ladder = list[tuple[str, Callable[[], Training]]]()
        for n in (n for n in powers[:6] if not layout.dp % (n * more_tp)):
            times = {"tp": more_tp, dimension: n}
            sizes = {key: getattr(layout, key) * more for key, more in times.items() if more > 1}
            sizes["dp"] = layout.dp // (n * more_tp)
            label = ", ".join(f"{key}: {size}" for key, size in sizes.items())
            ladder.append((f"parallel: {label}", partial(laid_out, **sizes)))
        yield ladder


def changes_that_fit(training: Training) -> list[FittingChange]:
    """Return, for each setting (pp also with tp), the least change that fits, the fastest step first."""
    limit, changes = training.memory, []
    assert limit is not None
    for ladder in _change_ladders(training):
        for setting, change in ladder:
            try:
                trace = step_trace(changed := change())
                if (peak := fullest(changed, trace)) > limit:
                    continue
                changes.append(FittingChange(setting, peak, trace.makespan_ns))
            except InputError:  # sizes that do not fit each other do not help
                continue
            break
    return sorted(changes, key=lambda change: (change.step_ns, change.setting))


def check_fits(training: Training, peaks: Sequence[Mapping[str, Any]], step: int | None) -> None:
    """Raise if a training needs more memory than a GPU has.

    Parameters
    ----------
    training : Training
    peaks : sequence of mapping
        Peak of each pipeline rank (`peaks_of`).
    step : int or None
        Duration of its step, with which other settings are compared; None: try no others.

    Raises
    ------
    OutOfMemoryError
        With rank, moment and owners, and the change that fits at the least cost in time.
    """
    limit = training.memory
    rank = max(range(len(peaks)), key=lambda k: peaks[k]["peak_bytes"])
    worst = peaks[rank]
    if limit is None or worst["peak_bytes"] <= limit:
        return
    copies = training.layout.ranks // len(peaks)
    message = (
        f"pipeline rank {rank} ({format_count(copies, 'GPU')}) needs {size(worst['peak_bytes'])} of "
        f"{size(limit)} on each, at the {worst['when']}: {owners(worst['memory_bytes'])}"
    )
    if step is None:
        raise OutOfMemoryError(message)
    message += "\n  "
    changes = changes_that_fit(training)
    if not changes:
        none = "no single change of policy, micro_batch, recompute, sharding, ep, tp, cp or pp makes it fit"
        raise OutOfMemoryError(f"{message}{none}: it takes more GPUs, or several changes")
    best, *others = changes
    message += f"it fits with {_describe(best, step)}"
    if others:
        message += "; or " + ", ".join(_describe(change, step) for change in others)
    raise OutOfMemoryError(message)


def _describe(change: FittingChange, step: int) -> str:
    slower = 100 * (change.step_ns / step - 1)
    return f"{change.setting} ({size(change.peak)}, step {format_duration(change.step_ns)}, {slower:+.1f}%)"
