"""What the report on a pipeline adds to that of any run: bubble, activations, memory by purpose.

::

    makespan  ├──────────────────────────────────────────────┤   first start to last end of all ranks
    rank 0    F F F F · · · B F B F B F B · B · B · B             span of rank 0, with its idle time ·
    rank 1    ← F F F · · B F B F B F B F B · B · B →             span of rank 1: fill and drain are outside

``span_ns`` and ``idle_ns`` are per rank: from its first start to its last end, and the part of that in which
it computes nothing. The bubble is the idle share of all ranks over the makespan, under every schedule: it
includes fill and drain and waiting for slower stages. A rank is idle while nothing executes on it, neither a
slot nor an optimizer step, a collective or a copy; so the bubble of a training step (``train.bubble``) is the
same number. ``span_bubble`` is the idle share of the longest span of a rank, which some schedules promise to
keep small. The formula's bubble is one of these two (``formula_of`` says which), with equal stages and free
transfers; None if there is no closed form.
Under ``forward-only`` there are ``micro_batches_per_s``, and ``latency_ns``: from the first start of a
micro-batch to its last end, the median and the maximum.
``waits_for`` says for each rank what it was idle for (`scenarios.workloads.pipeline_report`),
``bottleneck`` what all of them waited for most, ``exposed_ns`` how long each waited for transfers that
no computation hid.

Both are published as (cost - work) / cost: Qi et al., arXiv 2401.10241, section 5.2, take the makespan as the
cost of 1F1B and ZB-H1, and the longest span as that of ZB-H2, ZB-1p, ZB-2p and ZB-V.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from operator import itemgetter
from typing import Any, Final

import numpy as np

from policies.pipeline.custom import from_programs
from policies.pipeline.evaluate import closed_form, peak_activations
from policies.pipeline.pipeline_schedule import PHASES, Overlap, Schedule, Slot, parse_action
from scenarios.builders.pipeline_stage import RESIDENT, PipelineStage, PlacedPipeline
from sim.base.arrays import UNSET, BoolArray, IntArray, distinct_rows
from sim.base.errors import OutOfMemoryError
from sim.base.intervals import Cover, most_in_use, union
from sim.base.units import NS_PER_S
from sim.explain.communication import COMMUNICATION
from sim.explain.derived import DerivedColumns
from sim.explain.makespan_breakdown import WaitWalk
from sim.explain.memory_use import Lifetimes, lifetimes
from sim.export.tables import size
from sim.graph.graph import Graph
from sim.trace import Trace


# ----------------------------------------------------------------------------------------------------------
def waits_for(trace: Trace, devices: Sequence[int]) -> list[dict[str, int]]:
    """Return, for each of some devices, its idle ns inside its span by what ran meanwhile, most first.

    Causes are ``stage 2``, ``transfer rank0<->rank1`` (either way), the kind of an op that is not a slot, and
    ``launch`` where nothing ran: launch latency, or the cost of issuing. An optimizer step is no idle time.
    """
    facts = DerivedColumns(trace)
    graph, ops = facts.job.graph, trace.tasks["op"]
    slots = np.array([is_compute(kind) for kind in graph.kinds])[graph.kind_code[ops]]
    stages = [f"stage {stage}" for stage in range(int(graph.stage.max(initial=-1)) + 1)]
    label = np.where(slots, graph.stage[ops], len(stages) + graph.kind_code[ops])
    walk = WaitWalk(facts, [*stages, *graph.kinds], label)
    rows = np.lexsort((facts.start, facts.device))
    rows = rows[(slots | graph.is_kind("optimizer")[ops])[rows]]
    device, start, end = facts.device[rows], facts.start[rows], facts.end[rows]
    causes: list[dict[str, int]] = []
    for number in devices:
        own_rows = np.flatnonzero(device == number)
        own_rows = own_rows[: 1 + np.flatnonzero(slots[rows[own_rows]]).max(initial=-1)]  # to the last slot
        ends_so_far = np.maximum.accumulate(end[own_rows])
        gaps = np.flatnonzero(start[own_rows][1:] > ends_so_far[:-1]) + 1
        blamed: Counter[str] = Counter()
        for k in gaps.tolist():
            walk.back(int(rows[own_rows[k]]), int(ends_so_far[k - 1]), int(start[own_rows[k]]), blamed)
        some = (item for item in blamed.items() if item[1])
        causes.append(dict(sorted(some, key=lambda item: (-item[1], item[0]))))
    return causes


def order_of_slots(trace: Trace, devices: Sequence[str]) -> Schedule:
    """Return the slots that devices ran, one rank each, in the order of their starts, as a schedule."""
    graph, tasks = trace.job.graph, trace.tasks
    programs: dict[str, dict[Slot, None]] = {name: {} for name in devices}
    for row in np.lexsort((tasks["end_ns"], tasks["start_ns"])).tolist():
        op, device = int(tasks["op"][row]), trace.job.machine.devices[trace.device[row]].name
        if is_compute(graph.kinds[graph.kind_code[op]]):
            parts = tuple(map(parse_action, graph.op_names[op].partition("/")[0].split("+")))
            programs[device][parts[0] if len(parts) == 1 else Overlap(parts)] = None
    return from_programs(tuple(map(tuple, programs.values())), replicas=True)


def is_compute(kind: str) -> bool:
    """Whether an op of this kind is a slot of a program, and not a message, an update or a wait."""
    return all(phase in PHASES for phase in kind.split("+"))


# ----------------------------------------------------------------------------------------------------------
# The memory of a pipeline, each byte attributed to a purpose, and why it does not fit.
#
#     80 GiB ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
#             ▁▂▃▄▅▆▇▇▇▇▇▆▅▄▃▂▁     activations (per micro-batch, freed by its backward)
#             ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁     send and receive buffers
#             ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇     parameters, gradients, optimizer state, stashed weights, workspaces

BANDS: Final = (*RESIDENT, "activations", "stage inputs", "recomputed", "skips", "working")
"""The purposes of memory. Stage inputs are what a recomputed micro-batch keeps; buffers are workspaces, and
what is sent and received: boundary activations, their gradients, gathered parameters, and copies in flight;
working is what else an op needs while it runs."""

_BUFFERS, _ACTIVATIONS, _INPUTS, _RECOMPUTED, _SKIPS, _WORKING = range(len(RESIDENT) - 1, len(BANDS))


def read_by(graph: Graph, ops: BoolArray) -> BoolArray:
    """Return, for each tensor, whether one of these ops reads it."""
    is_read = np.zeros(graph.n_tensors, bool)
    is_read[graph.inputs.indices[ops[graph.inputs.rows()]]] = True
    return is_read


def band_of_tensors(trace: Trace) -> IntArray:
    """Return the band (an index into `BANDS`) of every tensor of a pipeline's graph."""
    graph = trace.job.graph
    band = np.full(graph.n_tensors, _BUFFERS)
    for tensor, name in enumerate(graph.external_names):
        band[tensor] = RESIDENT.index(name.partition(" of stage ")[0])
    producer = graph.tensor_producer
    produced = np.flatnonzero(producer != UNSET)
    op = producer[produced]
    k = produced - graph.first_output[op]
    recomputes = np.array([*(name == "R" for name in graph.phases), False])[graph.phase_code]
    unread, checkpoint = ~read_by(graph, np.ones(len(graph), bool)), read_by(graph, recomputes)
    for phase, name in enumerate(graph.phases):
        in_phase = graph.phase_code[op] == phase
        if name == "F" or "+" in name:  # in an overlapped pair the forward comes first
            second, more = produced[in_phase & (k == 1)], produced[in_phase & (k > 2)]
            band[second] = np.where(checkpoint[second], _INPUTS, _ACTIVATIONS)  # I frees the others
            band[produced[in_phase & (k == 2)]] = _ACTIVATIONS
            band[more] = np.where(unread[more], _WORKING, _SKIPS)
        elif name == "R":
            more = produced[in_phase & (k > 0)]
            band[more] = np.where(unread[more], _WORKING, _RECOMPUTED)
        if "B" in name or "I" in name:  # their other outputs, gradients of skips, are read
            band[produced[in_phase & (k > 0) & unread[produced]]] = _WORKING
    return band


def memory_peaks(
    trace: Trace, devices: Sequence[int], band: IntArray | None = None
) -> list[tuple[int, dict[str, int]]]:
    """Return, for each of some devices, when it holds the most memory, and how much then, by non-empty band.

    `band` is the band of each tensor; by default, as in a pipeline's graph.
    """
    lives, band = lifetimes(trace), band_of_tensors(trace) if band is None else band
    return [_at_peak(lives, band, number) for number in devices]


def reserved_bytes(trace: Trace, devices: Sequence[int]) -> list[int]:
    """Return, for each of some devices, the bytes that an allocator with one pool per stream has to reserve.

    A caching allocator does not give memory that one stream has freed to another. With a copy stream for
    each micro-batch, its received data, and the part of them kept for recomputation, have a pool of their
    own, and the pools' peaks add up although they are not reached together. (PyTorch's
    ``CUDACachingAllocator``; the copy streams are torchgpipe's.)
    """
    lives, band, graph = lifetimes(trace), band_of_tensors(trace), trace.job.graph
    producer = graph.tensor_producer[lives.tensor]
    produced = producer != UNSET
    op = np.where(produced, producer, 0)
    elsewhere = produced & (trace.job.device_of[op] != lives.device)
    received = np.zeros(len(graph), dtype=bool)  # forwards that have received anything
    reader = graph.inputs.rows()
    source = graph.tensor_producer[graph.inputs.indices]
    crossing = (source != UNSET) & (trace.job.device_of[source] != trace.job.device_of[reader])
    received[reader[crossing]] = bool(trace.job.machine.links)
    own_pool = elsewhere | (produced & (band[lives.tensor] == _INPUTS) & received[op])
    pool = np.where(own_pool, graph.micro_batch[op], UNSET)
    pools, pool_of = np.unique(np.stack((lives.device, pool)), axis=1, return_inverse=True)
    peaks = most_in_use(lives.start_ns, lives.end_ns, lives.nbytes, pool_of.reshape(-1), pools.shape[1])
    total = np.zeros(len(trace.job.machine.devices), np.int64)
    np.add.at(total, pools[0], peaks)
    return [int(total[number]) for number in devices]


def _at_peak(lives: Lifetimes, band: IntArray, device: int) -> tuple[int, dict[str, int]]:
    """Return the instant at which a device holds the most, and how much of each band it holds then."""
    own_lives = lives.of(lives.device == device)
    times, nbytes = own_lives.levels()
    if not len(times):
        return 0, {}
    peak_ns = int(times[int(nbytes.argmax())])
    alive = own_lives.of((own_lives.start_ns <= peak_ns) & (own_lives.end_ns > peak_ns))
    total = np.zeros(len(BANDS), np.int64)
    np.add.at(total, band[alive.tensor], alive.nbytes)
    return peak_ns, {name: size for name, size in zip(BANDS, total.tolist(), strict=True) if size}


# ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PipelineOnDevices(PlacedPipeline):
    """A pipeline that says what its runs were like, and whether they fit.

    Attributes
    ----------
    others : callable
        Makes the stages under other settings, each with the setting in words, the cheapest first.
    """

    others: Callable[[], Sequence[tuple[str, Sequence[PipelineStage]]]] = tuple

    def _numbers(self, trace: Trace) -> list[int]:
        return [trace.job.machine.device_index(name) for name in self.devices]

    def check_memory(self, trace: Trace, advise: bool = True) -> None:
        """Raise if a run needs more memory than a device has; of several devices, report the worst.

        The error says what would help whatever `advise` is: a formula finds it.

        Raises
        ------
        OutOfMemoryError
            With what takes the memory, and what would help.
        """
        numbers = self._numbers(trace)
        limits = [trace.job.machine.devices[number].memory_bytes for number in numbers]
        if not any(limit is not None for limit in limits):
            return
        misfits = []
        for rank, (limit, (ns, bands)) in enumerate(zip(limits, memory_peaks(trace, numbers), strict=True)):
            if limit is not None and (excess := sum(bands.values()) - limit) > 0:
                misfits.append((excess, rank, limit, ns, bands))
        if not misfits:
            return
        excess, rank, limit, ns, bands = max(misfits, key=itemgetter(0))
        raise OutOfMemoryError(
            f"{self.schedule.name}: rank {rank} ({self.devices[rank]}) needs {size(limit + excess)} of "
            f"{size(limit)} at micro-batch {_micro_batch(trace, numbers[rank], ns)}: {owners(bands)}\n"
            f"  {self._help(excess, limit, bands, rank)}"
        )

    def _help(self, excess: int, limit: int, bands: Mapping[str, int], rank: int) -> str:
        """Say what would make it fit; partial recomputation comes before full recomputation."""
        resident = sum(bands.get(name, 0) for name in RESIDENT)
        if resident > limit:
            return (
                f"what stays the whole time is too much by {size(resident - limit)}; it would take more "
                "stages, sharded optimizer state, or larger memory"
            )
        own_stages, stages = self.schedule.stages_of(rank), self.stages
        one = max(stages[s].activation_nbytes for s in own_stages)
        advice = []
        if one and (activations := bands.get("activations", 0)):
            for setting, changed in self.others():
                saved = max(
                    activations // one * (stages[s].activation_nbytes - changed[s].activation_nbytes)
                    + min(0, stages[s].working_nbytes - changed[s].working_nbytes)
                    for s in own_stages
                )
                if saved >= excess:
                    advice.append(setting)
                    break
            fewer = math.ceil(excess / one)
            if activations // one > fewer:
                advice.append(f"{fewer} fewer micro-batch{'es' if fewer > 1 else ''} in flight")
            checkpointed = activations // one * max(stages[s].input_nbytes for s in own_stages) + one
            if activations - checkpointed >= excess:
                advice.append("checkpoint: always (recomputation)")
        advice.append(f"{size(excess)} more memory")
        return f"it would fit with {', or '.join(advice)}"

    def report(self, trace: Trace) -> dict[str, Any]:
        """Return what a pipeline adds to the summary of a run: the key ``pipeline``."""
        schedule, numbers = self.schedule, self._numbers(trace)
        graph, makespan = trace.job.graph, trace.makespan_ns
        begin, end, device, op = trace.begins_ns, trace.tasks["end_ns"], trace.device, trace.tasks["op"]
        slot = graph.is_kind(*filter(is_compute, graph.kinds))[op]
        computes = slot | graph.is_kind("optimizer")[op]
        n = len(trace.job.machine.devices)
        first, last = np.full(n, makespan), np.zeros(n, np.int64)
        np.minimum.at(first, device[slot], begin[slot])
        np.maximum.at(last, device[slot], end[slot])
        executing, computing = (union(begin[k], end[k], device[k]) for k in (slice(None), computes))
        span, every = np.maximum(last - first, 0), np.arange(n)
        busy, in_spans = (
            Cover(cover, makespan).between(first, last, every) for cover in (computing, executing)
        )
        longest = max(numbers, key=lambda number: (int(span[number]), int(busy[number])))
        makespan_bubble = _excess(len(numbers) * makespan, int(executing.lengths(n)[numbers].sum()))
        causes = waits_for(trace, numbers)
        meta = {key: schedule.meta.get(key) for key in ("weight_versions", "staleness")}
        return {
            "pipeline": {
                "schedule": schedule.name,
                "ranks": schedule.ranks,
                "stages": schedule.stages,
                "chunks": schedule.chunks,
                "micro_batches": schedule.micro_batches,
                "makespan_ns": makespan,
                "span_ns": span[numbers].tolist(),
                "idle_ns": (span - busy)[numbers].tolist(),
                "busy_ns": busy[numbers].tolist(),
                "bubble": makespan_bubble,
                "makespan_bubble": makespan_bubble,
                "span_bubble": _excess(int(span[longest]), int(in_spans[longest])),
                **self._formula(graph.kinds),
                **(_inference_report(trace) if schedule.forward_only else {}),
                "peak_activations": list(peak_activations(schedule)),
                "waits_for": causes,
                "bottleneck": _bottleneck(causes),
                "exposed_ns": [
                    sum(ns for cause, ns in of_rank.items() if cause.split()[0] in COMMUNICATION)
                    for of_rank in causes
                ],
                "devices": list(self.devices),
                "memory_bytes": [bands for _, bands in memory_peaks(trace, numbers)],
                "reserved_bytes": reserved_bytes(trace, numbers),
                **{key: list(row) for key, row in meta.items() if row is not None},
            }
        }

    def _formula(self, kinds: Sequence[str]) -> dict[str, Any]:
        """Return the bubble of the closed form, if there is one, and equal stages only have its phases."""
        plan, form = self.schedule, None
        other = plan.in_flight < plan.micro_batches or not {"R", "collective"}.isdisjoint(kinds)
        if len({stage.times for stage in self.stages}) == 1 and not other:
            sizes = {"ranks": plan.ranks, "micro_batches": plan.micro_batches, "chunks": plan.chunks}
            form = closed_form(plan.name, **sizes, times=self.stages[0].times)
        if form is None:
            return {"bubble_formula": None, "formula": None, "formula_of": None}
        return {
            "bubble_formula": float(form.bubble),
            "formula": f"{form.quantity} = work + {form.formula}",
            "formula_of": form.quantity,
        }


def owners(bands: Mapping[str, int]) -> str:
    """Return what takes memory, the most first."""
    most_first = sorted(bands.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {size(nbytes)}" for name, nbytes in most_first if nbytes)


def _micro_batch(trace: Trace, device: int, at_ns: int) -> int:
    """Return the micro-batch of the last op that began on a device by that time."""
    graph, tasks = trace.job.graph, trace.tasks
    rows = (trace.device == device) & (tasks["start_ns"] <= at_ns) & (graph.micro_batch[tasks["op"]] != UNSET)
    return int(graph.micro_batch[tasks["op"][rows]][-1])


def _inference_report(trace: Trace) -> dict[str, Any]:
    """Return the throughput of a pipeline in micro-batches per second, and their latency."""
    graph, ops = trace.job.graph, trace.tasks["op"]
    rows = (graph.micro_batch[ops] != UNSET) & trace.counts[trace.tasks["iteration"]]
    _, k = distinct_rows(trace.tasks["iteration"][rows], graph.micro_batch[ops[rows]])
    count = int(k.max(initial=-1)) + 1
    enters, leaves = np.full(count, trace.makespan_ns), np.zeros(count, np.int64)
    np.minimum.at(enters, k, trace.tasks["start_ns"][rows])
    np.maximum.at(leaves, k, trace.tasks["end_ns"][rows])
    latency = np.sort(leaves - enters)
    return {
        "micro_batches_per_s": count * NS_PER_S / trace.makespan_ns if trace.makespan_ns else None,
        "latency_ns": {"median": int(latency[count // 2]), "max": int(latency[-1])} if count else None,
    }


def _excess(cost: int, work: int) -> float:
    return float(Fraction(cost - work, cost)) if cost else 0.0


def _bottleneck(causes: Sequence[Mapping[str, int]]) -> str | None:
    """Return what all ranks together waited for longest; ties go to the first by name."""
    total: Counter[str] = Counter()
    for of_rank in causes:
        total.update(of_rank)
    return min(total, key=lambda cause: (-total[cause], cause), default=None)
