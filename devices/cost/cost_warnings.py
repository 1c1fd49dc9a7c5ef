"""Say so when a run takes plain rooflines of real hardware for the durations of its ops.

A roofline is a lower bound: it knows no share of the peak that kernels reach, and of launches no more than
the shortest kernel. A preset's numbers pretend to be those of a real GPU, so ops that take them without any
loss are counted, once for all devices of a preset::

    machine: 8 x a100-sxm-80   60 ops on each, 50 of them by plain rooflines      one warning: 400 of 480 ops

Nothing is said of ops that have a duration, of kinds for which a loss is given, of what a table or a fit
answered, of ``ideal: true``, and of devices described without a preset: what a description leaves out is the
ideal, and there the ideal is what was asked for. But of any device it is said that ops in ``int4`` compute at
the rate of ``fp32`` (a fit: of the nearest data type) because ``peak`` has no other, of an NPU that ops of
one unit compute in no time because only the other has a peak, and of a preset that all ops do because it
gives none.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from devices.cost.cost_models import FirstCost, RooflineCost, first_to_know, models_of
from devices.cost.npu_tiles import TiledCost
from devices.cost.roofline import IDEAL
from devices.describe.field_types import DEFAULT
from sim.base.arrays import UNSET, BoolArray, IntArray
from sim.graph.graph import Graph
from sim.job.costs import costs_ns
from sim.job.job import Job
from sim.machine.device import CostModel, Device

_KINDS_SHOWN = 3


def warn_of_plain_rooflines(job: Job) -> None:
    """Warn, once for each preset, of ops that take nothing but its plain roofline.

    Parameters
    ----------
    job : Job
        With every op placed and timed.

    Warns
    -----
    PlainRooflineWarning
        Ops of GPUs described by a preset take its plain roofline, or have a loss that was measured in other
        data types.
    BorrowedRateWarning
        Ops compute in a data type, or on a unit, for which their device gives no rate.

    Examples
    --------
    >>> from devices.machine import make_machine
    >>> from sim import GraphBuilder
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("one product")
    >>> _ = b.op("a", kind="matmul", flops=2 * 1024**3, bytes_read=2**22, bytes_written=2**21, dtype="bf16")
    >>> a100 = make_machine({"devices": {"gpu0": {"preset": "a100-sxm-80", "cost": "roofline"}}})
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_of_plain_rooflines(make_job(b.build(), a100))
    >>> str(caught[0].message).partition(" (")[0]
    'a100-sxm-80: 1 of 1 op has no measured cost'
    """
    counts = _Counts(job.graph)
    alike: list[tuple[Device, _Rated, list[int]]] = []  # devices that a model knows no difference of
    for index, device in enumerate(job.machine.devices):
        for model in _rated(device.cost):
            same = (found for one, other, found in alike if one.kind == device.kind and other == model)
            if (indices := next(same, None)) is None:
                alike.append((device, model, indices := []))
            indices.append(index)
    for device, model, indices in alike:
        counts.add(device, model, np.isin(job.device_of, indices) & ~job.meets, job.duration_ns)
    counts.tell("op")


def warn_of_plain_ops(graph: Graph, devices: Sequence[Device]) -> None:
    """Warn of the same in a graph that devices time, each all of it, before the graph of a run is made of it.

    Parameters
    ----------
    graph : Graph
        What stages are made of, say.
    devices : sequence of Device
        Of equal ones the first counts.

    Warns
    -----
    PlainRooflineWarning, BorrowedRateWarning
        As `warn_of_plain_rooflines`.
    """
    counts = _Counts(graph)
    seen: list[_Rated] = []
    for device in devices:
        for model in _rated(device.cost):
            if model not in seen:
                seen.append(model)
                counts.add(device, model, np.ones(len(graph), np.bool_), costs_ns(graph, device))
    counts.tell("op of the model")


class _Counts:
    """Ops of a graph by what is to be said of them, over the devices that run them."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.plain: dict[str, Counter[str]] = {}
        self.total: Counter[str] = Counter()
        self.borrowed: Counter[tuple[str, str, str]] = Counter()

    def add(self, device: Device, model: _Rated, here: BoolArray, duration_ns: IntArray) -> None:
        """Count the ops that are `here`, on devices like this one, which take `duration_ns`."""
        graph = self.graph
        free = here & _modelled(graph, device)
        roofline = model if isinstance(model, RooflineCost) and model.hardware else None
        if roofline:
            self.total[roofline.hardware] += int(here.sum())
        plain = roofline.plain(graph) if roofline else np.zeros_like(free)
        ideal = isinstance(model, RooflineCost | TiledCost) and not model.peak_flop_per_s
        lent = {} if ideal and not device.details.preset else model.borrowed(graph)
        if not ((free & plain).any() or lent):
            return
        known = next(known for one, known in first_to_know(device.cost, graph, device) if one is model)
        timed = free & known & (model.durations_ns(graph, device) == duration_ns)
        if roofline:
            found = self.plain.setdefault(roofline.hardware, Counter())
            codes, counts = np.unique(graph.kind_code[plain & timed], return_counts=True)
            found.update({graph.kinds[c]: n for c, n in zip(codes.tolist(), counts.tolist(), strict=True)})
        for (dtype, how), ops in lent.items():
            self.borrowed[device.details.preset or device.kind, dtype, how] += int(timed[ops].sum())

    def tell(self, op: str) -> None:
        """Warn of what was counted."""
        from devices.cost.unreliable import BorrowedRateWarning, PlainRooflineWarning

        for hardware, found in self.plain.items():
            if found:
                message = _message(hardware, found, self.total[hardware], op)
                warnings.warn(PlainRooflineWarning(message, hardware), stacklevel=3)
        for (where, dtype, how), count in self.borrowed.items():
            if count:
                lent_ops = f"{count} op{'s' * (count != 1)} in {dtype} compute{'s' * (count == 1)}"
                message = f"{where}: {lent_ops} {how}."
                warnings.warn(BorrowedRateWarning(message, f"{where} {dtype}"), stacklevel=3)


def _modelled(graph: Graph, device: Device) -> BoolArray:
    """Return the ops that have no duration there, so that a cost model times them."""
    found: BoolArray = graph.given_ns(device.kind, device.name) == UNSET
    return found


_Rated = Any
"""A cost model that knows peaks, and so has a method `borrowed`: a roofline, tiles, a fit."""


def _rated(model: CostModel | None) -> Iterator[_Rated]:
    """Yield what knows peaks in a model, down to its first roofline, or tiles: a second is never asked."""
    for one in models_of(model):
        if hasattr(one, "borrowed"):
            yield one
        if isinstance(one, RooflineCost | TiledCost):
            return


def _message(hardware: str, found: Counter[str], total: int, op: str) -> str:
    # "1 more kind" is as long as its name.
    shown = len(found) if len(found) == _KINDS_SHOWN + 1 else _KINDS_SHOWN
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.most_common(shown))
    if len(found) > shown:
        kinds += f" and {len(found) - shown} more kinds"
    ops = op if total == 1 else op.replace("op", "ops", 1)
    have = "has" if found.total() == 1 else "have"
    return (
        f"{hardware}: {found.total()} of {total} {ops} {have} no measured cost ({kinds}); data-sheet "
        "rooflines were used, which are lower bounds. See docs/costs.md."
    )


# ----------------------------------------------------------------------------------------------------------
# Say so when runs stand side by side whose ops are costed in different ways.
#
#     h100-sxm      matmul  fitted       1.42 ms     what such products took
#     a100-sxm-80   matmul  data sheet   3.53 ms     what none can beat: a real one takes longer
#
# Beside a fitted GPU, one that takes its data sheet looks faster than it is, and nothing in a table of
# results tells so. This compares kinds of op: one is *known* on a device if a table, a fit, a fixed duration,
# or a roofline with a loss answers for it, and *bounded* if a plain roofline does. Only devices of a preset
# count, as in `devices.cost.cost_warnings`.


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
    free = _modelled(graph, device) & ((graph.flops > 0) | (graph.bytes_read + graph.bytes_written > 0))
    if ops is not None:
        free &= ops
    bounded = _bounded(device.cost, graph, device)

    def kinds(among: BoolArray) -> frozenset[str]:
        return frozenset(graph.kinds[code] for code in np.unique(graph.kind_code[among]).tolist())

    return Costing(preset, kinds(free & ~bounded), kinds(free & bounded))


def _bounded(model: CostModel, graph: Graph, device: Device) -> BoolArray:
    """Return for which ops the answer is a plain roofline, or plain tiles."""
    if isinstance(model, FirstCost):
        found = np.zeros(len(graph), np.bool_)
        for one, known in first_to_know(model, graph, device):
            found |= known & _bounded(one, graph, device)
        return found
    if isinstance(model, RooflineCost):
        return model.plain(graph)
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
