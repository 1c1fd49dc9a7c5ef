"""Sharding over fewer ranks (HSDP): which of them share one copy, and when all of them are too many.

::

    fsdp over 6,400 ranks    a ring of 6,399 hops a gather, however few bytes each has
    shard: 64                rings of 63, and sums of a 64th of the gradients over 100 copies

A gather is dominated by latency where twice the bytes do not take one and a half times as long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from scenarios.build.train.step import peaks_of, step_ns
from scenarios.build.train.training import Training
from sim.words.errors import InputError
from sim.words.units import format_bytes, format_duration, round_half_up

__all__ = ["fastest_shard", "latency_note", "shards"]

_WORTH_IT = 0.02
"""Part of a step that a change has to save."""


def shards(training: Training) -> Iterator[Training]:
    """Yield the training with FSDP over fewer ranks: whole nodes, one and twice as many again and again."""
    layout = training.layout
    ranks, n = layout.dp * layout.cp, layout.node
    while n < ranks:
        try:
            yield replace(training, layout=replace(layout, sharding="fsdp", shard=n))
        except InputError:  # no divisor of the ranks
            return
        n *= 2


def fastest_shard(training: Training) -> Training | None:
    """Return the training with FSDP over as many ranks as fit and communicate least; None: none fits."""
    found = [each for each in shards(training) if each.parameters_apart and _fits(each)]
    return min(found, key=_communication_ns, default=None)


def latency_note(training: Training, step: int, exposed: int) -> str | None:
    """Return a line where FSDP takes long for its messages, not for its bytes, and what is faster.

    Parameters
    ----------
    training : Training
    step : int
        How long it takes, in ns.
    exposed : int
        How much of that are collectives that nothing hides.
    """
    if training.layout.sharding != "fsdp" or not training.parameters_apart or exposed < _WORTH_IT * step:
        return None
    parameters, group = _largest(training), training.groups["shard"]
    once = training.gather_ns(parameters)
    latency = 2 * once - training.gather_ns(2 * parameters)  # what does not grow with the bytes
    if latency < once / 2:
        return None
    note = (
        f"a layer is gathered in {_duration(once)}, of which {_duration(latency)} are latencies of a ring of "
        f"{group.size:,} ranks on {group.nodes:,} nodes"
    )
    fewer = fastest_shard(training)
    if fewer is None or (took := step_ns(fewer)) > (1 - _WORTH_IT) * step:
        return note
    peak = max(each.nbytes for each in peaks_of(fewer, fewer.schedule))
    return (
        f"{note}; parallel.shard: {fewer.layout.shard} (HSDP) takes {_duration(took)} a step "
        f"({100 * (took / step - 1):+.1f}%) and {format_bytes(peak, iec=True)}"
    )


def _fits(training: Training) -> bool:
    limit = training.memory
    return limit is None or max(each.nbytes for each in peaks_of(training, training.schedule)) <= limit


def _communication_ns(training: Training) -> float:
    """Return what the collectives of a layer take: it is gathered twice, and its gradients are summed."""
    parameters = _largest(training)
    return 2 * training.gather_ns(parameters) + sum(training.scatter_ns(parameters))


def _largest(training: Training) -> int:
    units = (unit for unit in training.each_stage[0].units if unit.boundary)
    return max(training.timed(unit).parameters for unit in units)


def _duration(ns: float) -> str:
    return format_duration(round_half_up(ns))
