"""Say so when runs stand side by side whose ops are costed in different ways.

::

    h100-sxm      matmul  fitted       1.42 ms     what such products took
    a100-sxm-80   matmul  data sheet   3.53 ms     what none can beat: a real one takes longer

Beside a fitted GPU, one that takes its data sheet looks faster than it is, and nothing in a table of results
tells so. This compares kinds of op: one is *known* on a device if a table, a fit, a fixed duration, or a
roofline with a loss answers for it, and *bounded* if a plain roofline does. Only devices of a preset count,
as in `devices.cost.told.plain_rooflines`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from devices.cost.cost_models import FirstCost, RooflineCost
from devices.cost.formulas.roofline import IDEAL
from devices.cost.tiled_cost import TiledCost
from devices.describe.field_types import DEFAULT
from sim.graph.graph import Graph
from sim.machine.device import CostModel, Device
from sim.words.arrays import UNSET, BoolArray

__all__ = ["Costing", "costing_of", "unlike_costs"]


class Costing(NamedTuple):
    """How a preset times the ops of a graph.

    Attributes
    ----------
    preset : str
    known, bounded : frozenset of str
        Kinds of op.
    """

    preset: str
    known: frozenset[str]
    bounded: frozenset[str]


def costing_of(graph: Graph, device: Device, ops: BoolArray | None = None) -> Costing | None:
    """Return how a device times the ops of a graph, or some of them; None: it claims to be no real device.

    Ops that have a duration, or do nothing, do not count.
    """
    preset = device.details.preset
    if not preset or device.cost is None:
        return None
    free = (graph.duration_ns == UNSET) & ((graph.flops > 0) | (graph.bytes_read + graph.bytes_written > 0))
    if (by_kind := graph.duration_by_kind.get(device.kind)) is not None:
        free &= by_kind == UNSET
    if ops is not None:
        free &= ops
    bounded = _bounded(device.cost, graph, device)

    def kinds(among: BoolArray) -> frozenset[str]:
        return frozenset(graph.kinds[code] for code in np.unique(graph.kind_code[among]).tolist())

    return Costing(preset, kinds(free & ~bounded), kinds(free & bounded))


def _bounded(model: CostModel, graph: Graph, device: Device) -> BoolArray:
    """Return for which ops the answer is a plain roofline, or plain tiles."""
    if isinstance(model, FirstCost):
        found, missing = np.zeros(len(graph), np.bool_), np.ones(len(graph), np.bool_)
        for one in model.models:
            answered = missing & (one.durations_ns(graph, device) != UNSET)
            found |= answered & _bounded(one, graph, device)
            missing &= ~answered
        return found
    if isinstance(model, RooflineCost):
        return model.plain(graph)[0]
    if isinstance(model, TiledCost):
        lossy = {kind for kind, loss in model.by_kind.items() if loss != IDEAL}
        every = np.full(len(graph), DEFAULT not in lossy)
        return every & ~graph.is_kind(*lossy)
    return np.zeros(len(graph), np.bool_)


def unlike_costs(costings: Iterable[Costing]) -> str | None:
    """Return one line that says which presets do not compare, and what to do; None: all do.

    Examples
    --------
    >>> h100 = Costing("h100-sxm", frozenset({"matmul"}), frozenset({"relu"}))
    >>> print(unlike_costs([h100, Costing("p40", frozenset(), frozenset({"matmul", "relu"}))]))
    costs of matmul do not compare: fitted or measured on h100-sxm, but lower bounds ... p40, which looks ...
    >>> unlike_costs([h100, h100]) is None
    True
    """
    known: dict[str, set[str]] = {}
    bounded: dict[str, set[str]] = {}
    for one in costings:
        known.setdefault(one.preset, set()).update(one.known)
        bounded.setdefault(one.preset, set()).update(one.bounded)
    mine = {preset: kinds - bounded[preset] for preset, kinds in known.items()}  # in every data type and run
    kinds = {
        kind
        for preset, found in mine.items()
        for other, lower in bounded.items()
        for kind in found & lower
        if other != preset
    }
    if not kinds:
        return None
    sound = sorted(preset for preset, found in mine.items() if found & kinds)
    fast = sorted(preset for preset, lower in bounded.items() if lower & kinds)
    look, too = ("looks", "it") if len(fast) == 1 else ("look", "them")
    return (
        f"costs of {', '.join(sorted(kinds))} do not compare: fitted or measured on {', '.join(sound)}, but "
        f"lower bounds of the data sheet on {', '.join(fast)}, which {look} too fast. Give {too} an "
        "efficiency or a table, or set ideal: true on all. See docs/costs.md."
    )
