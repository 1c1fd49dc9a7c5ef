"""Ops of which nothing is said: no duration, no flops, no bytes.

A cost model would give them no time, and a forgotten number would look like a fast op. So they are refused,
but for kinds that do no work by their nature (`FREE`), and where a model times them by something else.
"""

from __future__ import annotations

from typing import Final

from scenarios.ops.functions import FUNCTIONAL_KINDS
from scenarios.ops.op_costs import VIEWS, WITHOUT_DATA
from sim.job.job import Job
from sim.machine.device import Device
from sim.words.arrays import UNSET
from sim.words.errors import GraphError

__all__ = ["FREE", "refuse_costless"]

FREE: Final = (
    *sorted(VIEWS),
    *WITHOUT_DATA.split(),
    *FUNCTIONAL_KINDS,
    *("source", "sink", "barrier", "synchronise"),
)
"""Kinds that do no work by their nature."""


def refuse_costless(job: Job) -> None:
    """Refuse an op that takes no time because nothing is said of it.

    Raises
    ------
    GraphError
        About the first of them.
    """
    from devices.cost.cost_models import FirstCost

    graph = job.graph
    unsaid = (graph.duration_ns == UNSET) & (graph.flops == 0)
    unsaid &= (graph.bytes_read == 0) & (graph.bytes_written == 0) & ~graph.is_kind(*FREE)
    for by_kind in graph.duration_by_kind.values():
        unsaid &= by_kind == UNSET
    if job.machine.collectives is not None:  # whose model has been asked
        unsaid &= ~job.meets
    if not unsaid.any():
        return
    nothing = unsaid & (job.duration_ns == 0)
    for d, device in enumerate(job.machine.devices):
        here = job.device_of == d
        if not _by_rates(device):
            nothing &= ~here
        elif device.details.preset and device.cost is not None and (unsaid & here).any():
            # The overhead of a preset's kind is no time that somebody meant the op to take.
            models = device.cost.models if isinstance(device.cost, FirstCost) else (device.cost,)
            nothing |= unsaid & here & (models[-1].durations_ns(graph, device) == job.duration_ns)
    if nothing.any():
        name, count = graph.op_names[int(nothing.argmax())], int(nothing.sum()) - 1
        more = f" (and {count} other op{'s' * (count > 1)})" if count else ""
        raise GraphError(
            f"op {name!r}{more} has no duration, no flops and no bytes, so it would take no time; "
            "give one of them, or duration: 0ns where that is meant"
        ).about(name)


def _by_rates(device: Device) -> bool:
    """Whether what the device times is reckoned from flops and bytes, or not at all."""
    from devices.cost.cost_models import FirstCost, RooflineCost
    from devices.cost.tiled_cost import TiledCost

    models = device.cost.models if isinstance(device.cost, FirstCost) else (device.cost,)
    return all(model is None or isinstance(model, RooflineCost | TiledCost) for model in models[-1:])
