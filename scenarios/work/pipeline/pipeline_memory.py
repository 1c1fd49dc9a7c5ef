"""The memory of a pipeline, each byte under what it is for, and why it does not fit.

::

    80 GiB ┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄
            ▁▂▃▄▅▆▇▇▇▇▇▆▅▄▃▂▁     activations (per micro-batch, freed by its backward)
            ▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁▁     send and receive buffers
            ▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇     weights, gradients, optimizer state, stashed weights
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from policies.pipeline import Schedule
from scenarios.build.pipeline.pipeline_end import RESIDENT
from scenarios.build.pipeline.pipeline_stage import PipelineStage
from sim.analysis.memory_use import Lifetimes, lifetimes
from sim.trace import Trace
from sim.words.arrays import UNSET, IntArray
from sim.words.errors import OutOfMemoryError
from sim.words.intervals import most_in_use
from sim.words.units import format_bytes

__all__ = [
    "BANDS",
    "Others",
    "band_of_tensors",
    "bands_over_time",
    "memory_bands",
    "reserved_bytes",
    "too_much",
]

BANDS: Final = (*RESIDENT, "activations", "stage inputs", "recomputed", "skips", "buffers", "working")
"""What memory is for. Stage inputs are what a recomputed micro-batch keeps; buffers are what is sent and
received: boundary activations, their gradients, and copies under way; working is what a backward needs
besides while it runs."""

_ACTIVATIONS, _INPUTS, _RECOMPUTED, _SKIPS, _BUFFERS, _WORKING = range(len(RESIDENT), len(BANDS))


def band_of_tensors(trace: Trace) -> IntArray:
    """Return the band (an index into `BANDS`) of every tensor of a pipeline's graph."""
    graph = trace.job.graph
    band = np.full(graph.n_tensors, _BUFFERS)
    for tensor, name in enumerate(graph.external_names):
        band[tensor] = RESIDENT.index(name.partition(" of stage ")[0])
    producer = graph.tensor_producer
    made = np.flatnonzero(producer != UNSET)
    op = producer[made]
    k = made - graph.first_output[op]
    again = np.zeros(len(graph), dtype=bool)
    unread = np.ones(graph.n_tensors, dtype=bool)
    unread[graph.inputs.indices] = False
    for phase, name in enumerate(graph.phases):
        here = graph.phase_code[op] == phase
        if name == "F" or "+" in name:  # of an overlapped pair the forward comes first
            band[made[here & (k == 1)]] = _INPUTS
            band[made[here & (k == 2)]] = _ACTIVATIONS
            band[made[here & (k > 2)]] = _SKIPS
        elif name == "R":
            band[made[here & (k > 0)]] = _RECOMPUTED
            again[op[here]] = True
        if "B" in name or "I" in name:  # what else these make, gradients of skips, is read
            band[made[here & (k > 0) & unread[made]]] = _WORKING
    return _without_recompute(trace, band, made[k == 1], again)


def _without_recompute(trace: Trace, band: IntArray, second: IntArray, again: IntArray) -> IntArray:
    """A forward that is not recomputed keeps in its second output what I frees: activations."""
    graph = trace.job.graph
    reader = graph.inputs.rows()
    by_recompute = np.zeros(graph.n_tensors, dtype=bool)
    by_recompute[graph.inputs.indices[again[reader]]] = True
    plain = second[(band[second] == _INPUTS) & ~by_recompute[second]]
    band[plain] = _ACTIVATIONS
    return band


def memory_bands(trace: Trace, devices: Sequence[str]) -> list[dict[str, int]]:
    """Return, for each rank, what is in memory when it holds most, by band; empty bands are left out."""
    lives, band = lifetimes(trace), band_of_tensors(trace)
    return [_at_peak(lives, band, trace.job.machine.device_index(name))[1] for name in devices]


def bands_over_time(trace: Trace, device: str) -> tuple[IntArray, dict[str, IntArray]]:
    """Return instants, and what a device holds of each band from then on; empty bands are left out."""
    lives, band = lifetimes(trace), band_of_tensors(trace)
    mine = lives.of(lives.device == trace.job.machine.device_index(device))
    of = band[mine.tensor]
    times, _ = mine.levels()
    found = {
        name: mine._replace(nbytes=np.where(of == k, mine.nbytes, 0)).levels()[1]
        for k, name in enumerate(BANDS)
        if (of == k).any()
    }
    return times, found


def reserved_bytes(trace: Trace, devices: Sequence[str]) -> list[int]:
    """Return, for each rank, what an allocator with a pool for each stream has to reserve.

    A caching allocator does not give memory that one stream has freed to another. With a copy stream for
    each micro-batch, what is received for it, and kept of that to be recomputed from, has a pool of its
    own, and the pools' peaks add up although they are not reached together. (PyTorch's
    ``CUDACachingAllocator``; the copy streams are torchgpipe's.)
    """
    lives, band, graph = lifetimes(trace), band_of_tensors(trace), trace.job.graph
    producer = graph.tensor_producer[lives.tensor]
    made = producer != UNSET
    op = np.where(made, producer, 0)
    elsewhere = made & (trace.job.device_of[op] != lives.device)
    received = np.zeros(len(graph), dtype=bool)  # forwards that have received anything
    reader = graph.inputs.rows()
    source = graph.tensor_producer[graph.inputs.indices]
    crossing = (source != UNSET) & (trace.job.device_of[source] != trace.job.device_of[reader])
    received[reader[crossing]] = bool(trace.job.machine.links)
    apart = elsewhere | (made & (band[lives.tensor] == _INPUTS) & received[op])
    pool = np.where(apart, graph.micro_batch[op], UNSET)
    pools, which = np.unique(np.stack((lives.device, pool)), axis=1, return_inverse=True)
    most = most_in_use(lives.start_ns, lives.end_ns, lives.nbytes, which.reshape(-1), pools.shape[1])
    total = np.zeros(len(trace.job.machine.devices), np.int64)
    np.add.at(total, pools[0], most)
    return [int(total[trace.job.machine.device_index(name)]) for name in devices]


def _at_peak(lives: Lifetimes, band: IntArray, device: int) -> tuple[int, dict[str, int]]:
    """Return the instant at which a device holds most, and how much of each band then."""
    mine = lives.of(lives.device == device)
    times, held = mine.levels()
    if not len(times):
        return 0, {}
    at = int(times[int(held.argmax())])
    alive = mine.of((mine.start_ns <= at) & (mine.end_ns > at))
    total = np.zeros(len(BANDS), np.int64)
    np.add.at(total, band[alive.tensor], alive.nbytes)
    return at, {name: size for name, size in zip(BANDS, total.tolist(), strict=True) if size}


Others = Callable[[], Sequence[tuple[str, Sequence[PipelineStage]]]]
"""Makes the stages of other settings, each with the setting in words, the cheapest first."""


def too_much(
    trace: Trace,
    schedule: Schedule,
    stages: Sequence[PipelineStage],
    devices: Sequence[str],
    others: Others = tuple,
) -> OutOfMemoryError | None:
    """Return why a run does not fit the memory of a device, if it does not; of several, the worst."""
    machine = trace.job.machine
    numbers = [machine.device_index(name) for name in devices]
    if all(machine.devices[d].memory_bytes is None for d in numbers):
        return None
    lives, band = lifetimes(trace), band_of_tensors(trace)
    worst: tuple[int, int, int, dict[str, int]] | None = None
    for rank, d in enumerate(numbers):
        limit = machine.devices[d].memory_bytes
        at, bands = _at_peak(lives, band, d)
        over = 0 if limit is None else sum(bands.values()) - limit
        if over > 0 and (worst is None or over > worst[0]):
            worst = over, rank, at, bands
    if worst is None:
        return None
    over, rank, at, bands = worst
    limit = machine.devices[numbers[rank]].memory_bytes
    assert limit is not None
    shown = ", ".join(
        f"{name} {_size(size)}" for name, size in sorted(bands.items(), key=lambda item: -item[1])
    )
    return OutOfMemoryError(
        f"{schedule.name}: rank {rank} ({devices[rank]}) needs {_size(limit + over)} of {_size(limit)} "
        f"at micro-batch {_micro_batch(trace, numbers[rank], at)}: {shown}\n"
        f"  {_help(over, limit, bands, schedule, stages, rank, others)}"
    )


def _size(nbytes: int) -> str:
    return format_bytes(nbytes, iec=True)


def _micro_batch(trace: Trace, device: int, at_ns: int) -> int:
    """Return the micro-batch of the last op that began on a device by then."""
    graph, tasks = trace.job.graph, trace.tasks
    rows = (trace.device == device) & (tasks["start_ns"] <= at_ns) & (graph.micro_batch[tasks["op"]] != UNSET)
    return int(graph.micro_batch[tasks["op"][rows]][-1])


def _help(
    over: int,
    limit: int,
    bands: dict[str, int],
    schedule: Schedule,
    stages: Sequence[PipelineStage],
    rank: int,
    others: Others,
) -> str:
    """Say what would make it fit, recomputation of a part before that of all."""
    resident = sum(bands.get(name, 0) for name in RESIDENT)
    if resident > limit:
        return (
            f"what stays the whole time is too much by {_size(resident - limit)}; it would take more stages, "
            "sharded optimizer state, or larger memory"
        )
    mine = schedule.stages_of(rank)
    one = max(stages[s].activation_nbytes for s in mine)
    advice = []
    held = bands.get("activations", 0)
    if one and held:
        for what, changed in others():
            saved = max(
                held // one * (stages[s].activation_nbytes - changed[s].activation_nbytes)
                + stages[s].working_nbytes
                - max(changed[s].working_nbytes, stages[s].working_nbytes)
                for s in mine
            )
            if saved >= over:
                advice.append(what)
                break
        fewer = math.ceil(over / one)
        if held // one > fewer:
            advice.append(f"{fewer} fewer micro-batch{'es' if fewer > 1 else ''} in flight")
        inputs = max(stages[s].input_nbytes for s in mine)
        checkpointed = held // one * inputs + one
        if held - checkpointed >= over:
            advice.append("checkpoint: always (recomputation)")
    advice.append(f"{_size(over)} more memory")
    return f"it would fit with {', or '.join(advice)}"
