"""Run a training step: which graph stands for it, on which devices, and how long it takes.

::

    pp > 1, or no FSDP   one device a pipeline rank, its program from the schedule  (scenarios.build.pipeline)
    FSDP, ZeRO-3         one device with two streams                        (scenarios.build.train.layered)
"""

from __future__ import annotations

from typing import Final

from policies.issue.in_order import InOrder
from policies.pipeline import Schedule
from scenarios.build.pipeline.pipeline_graph import (
    AsWritten,
    CommunicationStream,
    crossings,
    pipeline_graph,
    plain_machine,
)
from scenarios.build.train.layered.fsdp import fsdp_graph, fsdp_peak
from scenarios.build.train.layered.zero_three import zero_three_graph, zero_three_peak
from scenarios.build.train.memory import Peak
from scenarios.build.train.training import Training
from sim import Graph, Machine, simulate

__all__ = ["is_layered", "peaks_of", "step_graph", "step_ns"]


_LAYERED: Final = {"fsdp": (fsdp_graph, fsdp_peak), "zero-3": (zero_three_graph, zero_three_peak)}
"""Steps that gather parameters layer by layer: their graph, and the most that a rank holds."""


def is_layered(training: Training) -> bool:
    """Whether a step is written layer by layer: parameters are gathered for each of them."""
    return training.parameters_apart


def peaks_of(training: Training, schedule: Schedule) -> list[Peak]:
    """Return the most that each pipeline rank holds."""
    if not is_layered(training):
        return training.peaks(schedule)
    return [_LAYERED[training.layout.sharding][1](training)]


def step_graph(training: Training, schedule: Schedule) -> tuple[Graph, Machine]:
    """Return the ops of a step, and the devices that they run on."""
    if is_layered(training):
        return _LAYERED[training.layout.sharding][0](training), plain_machine(1, streams=2)
    around = training.around
    machine = plain_machine(
        schedule.ranks,
        training.send_ns,
        pairs=crossings(schedule, around),
        streams=1 + around.own_stream,
    )
    names = [device.name for device in machine.devices]
    return pipeline_graph(schedule, training.pipeline_stages, names, around=around), machine


def step_ns(training: Training, schedule: Schedule | None = None) -> int:
    """Return how long a step takes.

    Parameters
    ----------
    training : Training
    schedule : Schedule, optional
        By default the training's own.
    """
    graph, machine = step_graph(training, schedule or training.schedule)
    trace = simulate(graph, machine, InOrder(), streams=CommunicationStream(), linearize=AsWritten())
    return trace.makespan_ns
