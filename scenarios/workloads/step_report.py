"""Report on a training step that rewrites derived from a graph, with the keys that `train` has for its own.

::

    model ─► policy.compile: [training, tensor-parallel, ...] ─► run ─► step, rate, MFU; for each device,
                                                                        time and memory by purpose

    time     products ─ attention ─ passes ─ optimizer, then collectives that none of these hides, then waits
    memory   parameters       what forwards read          gradients    what updates read, and its parts
             optimizer state  what only updates read      activations  what a forward leaves for a backward
             buffers          gathered or copied data     working      all else

A collective within a layer belongs to tensor, context or expert parallelism; others are around the layers.
MFU is the time that products, convolutions and attention would need on the devices at their peaks,
each in its data type, over the time that they took.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from devices.cost.kernel_costs import CONVS, PRODUCTS
from policies.parallel.rank_grid import REPLICAS
from policies.parallel.training_step import LINEAR
from policies.rewrite.backward import OPTIMIZERS
from scenarios.builders.train.memory import PARTS
from scenarios.workloads.pipeline_report import BANDS, memory_peaks, read_by
from sim.base.arrays import UNSET, BoolArray, IntArray
from sim.base.intervals import union
from sim.base.units import NS_PER_S, round_half_up
from sim.explain.communication import exposed_communication, moving_ops
from sim.explain.derived import DerivedColumns
from sim.explain.time_use import uncertainty
from sim.explain.training import UPDATES
from sim.graph.graph import Graph, Role
from sim.trace import Trace

_OUTSIDE_LAYERS: Final = frozenset({"dp", REPLICAS, "cp-dp", "pp"})
"""Dimensions whose collectives are not within a layer."""
_COPIES: Final = ("copy_in", "copy_out", "concat")


def is_training_step(graph: Graph) -> bool:
    """Whether a graph has ops marked as forward, and optimizer updates."""
    return "F" in graph.phases and any(kind in OPTIMIZERS for kind in graph.kinds)


def step_report(trace: Trace, batch: int | None, tokens: int | None) -> dict[str, Any]:
    """Return the key ``train`` of the summary of a run.

    Parameters
    ----------
    trace : Trace
        Trace of a graph for which `is_training_step` holds.
    batch : int or None
        Samples of the graph; each replica has this many in each of its micro-batches.
    tokens : int or None
        Tokens per sample.
    """
    graph, machine, done = trace.job.graph, trace.job.machine, trace.steps_done
    n = max(1, done)
    updates, forward = graph.is_kind(*OPTIMIZERS), graph.phase_code == graph.phases.index("F")
    train = forward if graph.attribute(UPDATES) else updates  # parameter servers update for the workers
    devices = [k for k in np.unique(trace.job.device_of[train]).tolist() if k != UNSET]
    stands_for = {k: 1 if machine.folding is None else int(machine.stands_for[k]) for k in devices}
    gpus, step = sum(stands_for.values()), trace.makespan_ns // n
    times = _times(trace, devices, updates)
    peaks = memory_peaks(trace, devices, use_of_tensors(trace))
    flops, ideal = _work(trace, stands_for)
    exposed = exposed_communication(DerivedColumns(trace)).values()
    limits = [machine.devices[k].memory_bytes for k in devices]
    micro_batches = 1 + max(0, int(graph.micro_batch.max(initial=0)))
    replicas = len(devices) if graph.attribute(UPDATES) else count_replicas(graph)
    samples = None if batch is None else batch * micro_batches * replicas
    peak = max(sum(bands.values()) for _, bands in peaks)
    sure = uncertainty(trace)
    distinct: dict[str, dict[str, Any]] = {}
    for k, time_ns, (peak_ns, bands) in zip(devices, times, peaks, strict=True):
        usage = {
            "time_ns": time_ns,
            "peak_bytes": sum(bands.values()),
            "memory_bytes": {**dict.fromkeys(PARTS, 0), **bands},
        }
        names = {"device": machine.devices[k].name, "stands_for": 0, "when": _when(trace, k, peak_ns)}
        distinct.setdefault(repr(usage), {**names, **usage})["stands_for"] += stands_for[k]
    waits = sum(parts["waits"] * stands_for[k] for k, parts in zip(devices, times, strict=True))
    return {
        "step_ns": step,
        **{key: None if sure is None else sure[key] // n for key in ("low_ns", "high_ns")},
        **_rates(step if done else 0, gpus, samples, tokens),
        "model_flops": flops,
        "mfu": ideal / (gpus * step) if ideal and step and done else None,
        "gpus": gpus,
        "micro_batches": micro_batches,
        "ranks": list(distinct.values()),
        "capacity_bytes": None if None in limits else min(limits),
        "peak_bytes": peak,
        "exposed_ns": max((sum(parts.values()) for parts in exposed), default=0) // n,
        "bubble": waits / (gpus * step) if step else 0.0,
        "fits": all(
            limit is None or sum(bands.values()) <= limit
            for limit, (_, bands) in zip(limits, peaks, strict=True)
        ),
        "notes": [],
    }


def _rates(step: int, gpus: int, samples: int | None, tokens: int | None) -> dict[str, float]:
    """Return samples and tokens per second, as far as they are known."""
    if samples is None or not step:
        return {}
    per_s = samples * NS_PER_S / step
    rates = {"samples_per_s": per_s}
    if tokens is None:
        return rates
    return {**rates, "tokens_per_s": per_s * tokens, "tokens_per_s_per_gpu": per_s * tokens / gpus}


def count_replicas(graph: Graph) -> int:
    """Return how many replicas have samples of their own."""
    replicas = 1
    for op in graph.in_communicators:
        rank: Mapping[str, tuple[int, int]] = graph.attributes[op].get("rank", {})
        sizes = [rank[name][1] for name in ("dp", "ep", REPLICAS) if name in rank]
        replicas = max(replicas, math.prod(sizes))
    return replicas


def _work(trace: Trace, stands_for: Mapping[int, int]) -> tuple[int, int | None]:
    """Return the flop of products, convolutions and attention, and the device time in ns they need at peak.

    Attention recomputes its scores in the backward, which is not work of the model: four of its five products
    count (arXiv 2307.08691, section 2.3), and what several ranks repeat counts once. The time is None if a
    peak is unknown.
    """
    graph, machine = trace.job.graph, trace.job.machine
    counts = _is_product(graph) | _is_attention(graph)
    work = np.where(graph.is_kind("attention_grad"), graph.flops * 4 // 5, graph.flops)
    for op, ranks in graph.attribute("repeated").items():
        work[op] //= ranks
    flops, ideal, complete = 0, 0, True
    for index, copies in stands_for.items():
        device = machine.devices[index]
        own_ops = counts & (trace.job.device_of == index)
        flops += copies * int(work[own_ops].sum())
        roof = np.nan if device.cost is None else device.cost.roofs(graph, device).flop_per_s
        seconds = float((work / roof)[own_ops].sum())
        ideal += copies * (0 if math.isnan(seconds) else round_half_up(seconds * NS_PER_S))
        complete &= not math.isnan(seconds)
    return flops, ideal if complete else None


def _is_product(graph: Graph) -> BoolArray:
    kinds = [kind for kind in graph.kinds if kind in CONVS or kind.removesuffix("_grad") in PRODUCTS]
    return graph.is_kind(*kinds)


def _is_attention(graph: Graph) -> BoolArray:
    return graph.is_kind(*(kind for kind in graph.kinds if kind.startswith("attention")))


def _times(trace: Trace, devices: Sequence[int], updates: BoolArray) -> list[dict[str, int]]:
    """Return each device's step time by part; `hidden` overlaps the others, which add up to the step."""
    graph, n = trace.job.graph, max(1, trace.steps_done)
    op, ns = trace.tasks["op"], trace.tasks["end_ns"] - trace.tasks["start_ns"]
    moves = moving_ops(trace.job)[op]
    within = np.zeros(len(graph), bool)
    dimensions = {k: str(graph.attributes[k].get("dimension", "dp")) for k in graph.in_communicators}
    within[[k for k, dimension in dimensions.items() if dimension not in _OUTSIDE_LAYERS]] = True
    parts = {
        "products": _is_product(graph)[op],
        "attention": _is_attention(graph)[op],
        "passes": ~moves & ~updates[op],
        "optimizer": updates[op] & ~moves,
        "exposed_in_layers": moves & within[op],
        "exposed_around": moves,
    }
    rows, before = np.zeros(len(op), bool), np.zeros(len(trace.job.machine.devices), np.int64)
    spent: dict[str, IntArray] = {}
    for name, chosen in parts.items():  # time that overlaps an earlier part is not counted again
        rows |= chosen
        covered = covered_ns(trace, rows)
        spent[name], before = (covered - before) // n, covered
    sent = np.bincount(trace.device[moves], ns[moves], len(before)).astype(np.int64) // n
    device_times = []
    for device in devices:
        times = {name: int(part_ns[device]) for name, part_ns in spent.items()}
        times["waits"] = trace.makespan_ns // n - sum(times.values())
        times["hidden"] = max(0, int(sent[device]) - times["exposed_in_layers"] - times["exposed_around"])
        device_times.append(times)
    return device_times


def covered_ns(trace: Trace, rows: BoolArray, ends: IntArray | None = None) -> IntArray:
    """Return how long at least one of these tasks runs on each device, until `ends` or its end."""
    start, end = trace.begins_ns[rows], (trace.tasks["end_ns"] if ends is None else ends)[rows]
    return union(start, end, trace.device[rows]).lengths(len(trace.job.machine.devices))


def _when(trace: Trace, device: int, at_ns: int) -> str:
    tasks = trace.tasks
    running = (trace.device == device) & (tasks["start_ns"] <= at_ns) & (tasks["end_ns"] > at_ns)
    op = tasks["op"][running]
    computing = op[~moving_ops(trace.job)[op]]
    return trace.job.graph.op_names[int((computing if len(computing) else op)[0])] if len(op) else ""


def use_of_tensors(trace: Trace) -> IntArray:
    """Return the purpose of each tensor, as an index into `scenarios.workloads.pipeline_report.BANDS`."""
    graph = trace.job.graph
    use = {name: BANDS.index(name) for name in BANDS}
    purpose = np.full(graph.n_tensors, use["working"])
    producer = graph.tensor_producer
    updates, passes_on = graph.is_kind(*OPTIMIZERS), moving_ops(trace.job) | graph.is_kind(*_COPIES)
    forward = graph.phase_code == graph.phases.index("F")
    produced = producer != UNSET
    later, of_update, others = (read_by(graph, ops) for ops in (~forward, updates, ~updates))

    made_by_forward, moved = produced & forward[producer], produced & passes_on[producer]
    purpose[moved] = use["buffers"]
    purpose[made_by_forward & later] = use["activations"]
    purpose[~produced] = use["activations"]
    purpose[graph.tensor_role == Role.PARAMETER] = use["parameters"]
    purpose[(graph.tensor_role == Role.PARAMETER) & of_update & ~others] = use["optimizer state"]
    gradients = of_update & produced
    carry = passes_on | graph.is_kind(*LINEAR)
    for op in np.flatnonzero(carry)[::-1].tolist():
        if gradients[graph.outputs.row(op)].any():
            read = graph.inputs.row(op)
            gradients[read[produced[read] & ~made_by_forward[read]]] = True
    purpose[gradients & ~moved | of_update & produced] = use["gradients"]
    return purpose
