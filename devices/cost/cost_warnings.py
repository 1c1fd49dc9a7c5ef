"""Warnings for runs that use plain rooflines of real hardware as the durations of ops.

A roofline is a lower bound: it knows no share of the peak that kernels reach, and of launches no more than
the shortest kernel. A preset's numbers pretend to be those of a real GPU, so ops that take them without any
loss are counted, once for all devices of a preset::

    machine: 8 x a100-sxm-80   60 ops on each, 50 of them by plain rooflines      one warning: 400 of 480 ops

Nothing is said of ops that have a duration, of kinds for which a loss is given, of what a table or a fit
answered, of ``ideal: true``, and of devices described without a preset: what a description leaves out is the
ideal, and there the ideal is what was asked for. But of any device it is said that ops in ``int4`` compute at
the rate of ``fp32`` (a fit: of the nearest data type) because ``peak`` has no other, that no op takes its
duration from a table, of an NPU that ops of one unit compute in no time because only the other has a peak,
and of a preset that all ops do because it gives none.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from devices.cost.cost_models import IDEAL, KindEfficiency, RooflineCost, TableCost, first_to_know, models_of
from devices.cost.kernel_costs import CONVS, PRODUCTS, FittedCost
from devices.cost.kernel_fits import MeasuredKernel
from devices.cost.npu_tiles import TiledCost
from devices.cost.unreliable import (
    BorrowedRateWarning,
    PlainRooflineWarning,
    UnknownWorkWarning,
    UnusedTableWarning,
)
from devices.describe.field_types import DEFAULT
from sim.base.arrays import UNSET, BoolArray, IntArray
from sim.base.errors import list_names
from sim.base.units import format_count
from sim.graph.graph import Graph
from sim.job.costs import costs_ns
from sim.job.job import Job
from sim.machine.device import CostModel, Device

_Rated = Any
"""A cost model that knows peaks, and so has a method `borrowed_rates`: a roofline, tiles, a fit."""


_SIZES: Final = frozenset(("m", "input_size", "seq_len", "input_shape"))
"""Attributes of ops that have sizes: of products, recurrent ops, attention, convolutions."""


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
    timed = (
        (device, model, np.isin(job.device_of, indices) & ~job.meets, job.duration_ns)
        for device, model, indices in _models_with_peaks(job.machine.devices)
    )
    _tell(job.graph, timed, "op")


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
    every = np.ones(len(graph), np.bool_)
    timed = (
        (device, model, every, costs_ns(graph, device)) for device, model, _ in _models_with_peaks(devices)
    )
    _tell(graph, timed, "op of the model")


def warn_of_unknown_work(job: Job) -> None:
    """Warn of products, convolutions and attention that take the time of their bytes alone, for want of flop.

    Parameters
    ----------
    job : Job
        With every op placed and timed.

    Warns
    -----
    UnknownWorkWarning
        Names the first such op. Fits also know the work by sizes.
    """
    graph = job.graph
    unknown = graph.is_kind(*PRODUCTS, *CONVS, "attention", "attention_grad") & (graph.flops == 0)
    unknown &= ~job.meets
    if not unknown.any():
        return
    sized = np.zeros(len(graph), np.bool_)
    sized[[op for op, given in graph.attributes.items() if not _SIZES.isdisjoint(given)]] = True
    bare = np.zeros(len(graph), np.bool_)
    for index in np.unique(job.device_of[unknown]).tolist():
        device = job.machine.devices[index]
        candidates = unknown & (job.device_of == index) & _is_modelled(graph, device)
        for model, known in first_to_know(device.cost, graph, device):
            if isinstance(model, RooflineCost | TiledCost):
                bare |= candidates & known
            elif isinstance(model, FittedCost):
                bare |= candidates & known & ~sized
    if bare.any():
        op, count = int(bare.argmax()), int(bare.sum()) - 1
        more = f" and {format_count(count, 'other op')}" if count else ""
        message = (
            f"op {graph.op_names[op]!r} ({graph.kind(op)}){more}: priced by bytes alone, for want of flops"
        )
        warnings.warn(UnknownWorkWarning(f"{message}.", graph.kind(op)), stacklevel=2)


def warn_of_unused_tables(job: Job) -> None:
    """Warn of measured tables, and of kernels that move fits, that no op's duration follows on any device.

    Parameters
    ----------
    job : Job
        With every op placed.

    Warns
    -----
    UnusedTableWarning
        With the first thing that stands in the way.
    """
    graph, used, obstacles = job.graph, set[tuple[Any, ...]](), dict[tuple[Any, ...], tuple[str, str]]()
    alike: dict[int, list[int]] = {}  # devices of a count have one cost model
    for index, device in enumerate(job.machine.devices):
        if any(isinstance(m, TableCost) or _own_kernels(m) for m in models_of(device.cost)):
            alike.setdefault(id(device.cost), []).append(index)
    for indices in alike.values():
        device, on_device = job.machine.devices[indices[0]], np.isin(job.device_of, indices) & ~job.meets
        if not on_device.any():
            continue
        free = on_device & _is_modelled(graph, device)
        for model, known in first_to_know(device.cost, graph, device):
            if isinstance(model, TableCost):
                same: tuple[Any, ...] = tuple((t.kind, t.device, t.measured) for t in model.tables)
                obstacle = "" if (known & free).any() else _why_unused(graph, model, on_device, free)
            elif isinstance(model, FittedCost) and (same := _own_kernels(model)):
                plain = replace(model, fits=replace(model.fits, measured=(), models={}))
                moved = model.durations_ns(graph, device) != plain.durations_ns(graph, device)
                obstacle = "" if (known & free & moved).any() else "of this kind and data type there are none"
            else:
                continue
            if obstacle:
                obstacles.setdefault(same, (device.name, obstacle))
            else:
                used.add(same)
    for same, (name, reason) in obstacles.items():
        if same not in used:
            kinds = list_names(sorted({str(key[0]) for key in same}), 3)
            message = f"{name}: no op takes its duration from the measured {kinds}: {reason}."
            warnings.warn(UnusedTableWarning(message, f"{name} {kinds}"), stacklevel=2)


def _own_kernels(model: CostModel) -> tuple[MeasuredKernel, ...]:
    """Return the kernels towards which a model's fits are moved."""
    return model.fits.measured if isinstance(model, FittedCost) else ()


def _why_unused(graph: Graph, model: TableCost, on_device: BoolArray, free: BoolArray) -> str:
    alike = on_device & graph.is_kind(*(table.kind for table in model.tables))
    if not alike.any():
        kinds = [graph.kinds[code] for code in np.unique(graph.kind_code[on_device]).tolist()]
        return f"ops are of other kinds ({list_names(kinds, 3)})"
    if not (alike & free).any():
        return "ops of this kind have durations of their own"
    if not any((alike & table.measured.covers(graph)).any() for table in model.tables):
        return "ops of this kind compute in other data types than were measured"
    axes = ", ".join(axis.name for axis in model.tables[0].axes)
    return f"ops of this kind have no whole numbers {axes}, or a cost model that stands before it knows them"


def _tell(graph: Graph, timed: Iterable[tuple[Device, _Rated, BoolArray, IntArray]], op: str) -> None:
    """Count what is to be said of ops over the devices that run them, and warn.

    Parameters
    ----------
    graph : Graph
    timed : iterable of tuple
        A device, a model of it, the ops that devices like this one run, and how long all ops take.
    op : str
        What an op is called.
    """
    plain: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    borrowed: Counter[tuple[str, str, str]] = Counter()
    for device, model, on_device, duration_ns in timed:
        free, bare = on_device & _is_modelled(graph, device), np.zeros_like(on_device)
        if roofline := getattr(model, "hardware", ""):
            total[roofline] += int(on_device.sum())
            bare = _lossless(graph, model.by_kind)
        ideal = isinstance(model, RooflineCost | TiledCost) and not model.peak_flop_per_s
        lent = {} if ideal and not device.details.preset else model.borrowed_rates(graph)
        if not ((free & bare).any() or lent):
            continue
        known = next(known for one, known in first_to_know(device.cost, graph, device) if one is model)
        free &= known & (model.durations_ns(graph, device) == duration_ns)
        if roofline:
            kinds = (graph.kinds[code] for code in np.sort(graph.kind_code[bare & free]).tolist())
            plain.setdefault(roofline, Counter()).update(kinds)
        for (dtype, substitute), ops in lent.items():
            borrowed[device.details.preset or device.kind, dtype, substitute] += int(free[ops].sum())
    for hardware, found in plain.items():
        if found:
            message = _message(hardware, found, total[hardware], op)
            warnings.warn(PlainRooflineWarning(message, hardware), stacklevel=3)
    for (where, dtype, substitute), count in borrowed.items():
        if count:
            noun, verb = ("op", "computes") if count == 1 else ("ops", "compute")
            message = f"{where}: {count} {noun} in {dtype} {verb} {substitute}."
            warnings.warn(BorrowedRateWarning(message, f"{where} {dtype}"), stacklevel=3)


def _lossless(graph: Graph, by_kind: Mapping[str, KindEfficiency]) -> BoolArray:
    """Return the ops that do something and for whose kind no loss is given."""
    if by_kind.get(DEFAULT, IDEAL) != IDEAL:
        return np.zeros(len(graph), np.bool_)
    does: BoolArray = (graph.flops > 0) | (graph.bytes_read + graph.bytes_written > 0)
    return does & ~graph.is_kind(*by_kind)


def _is_modelled(graph: Graph, device: Device) -> BoolArray:
    """Return the ops that have no duration there, so that a cost model times them."""
    return np.asarray(graph.given_ns(device.kind, device.name) == UNSET)


def _models_with_peaks(devices: Sequence[Device]) -> list[tuple[Device, _Rated, list[int]]]:
    """Return the models that know peaks, each with the first of the devices that it knows no difference of,
    and where all of them are.

    Of a device these go down to its first roofline, or tiles: a second is never asked.
    """
    found: list[tuple[Device, _Rated, list[int]]] = []
    for index, device in enumerate(devices):
        for model in models_of(device.cost):
            if hasattr(model, "borrowed_rates"):
                for one, other, indices in found:
                    if one.kind == device.kind and other == model:
                        indices.append(index)
                        break
                else:
                    found.append((device, model, [index]))
            if isinstance(model, RooflineCost | TiledCost):
                break
    return found


def _message(hardware: str, found: Counter[str], total: int, op: str) -> str:
    kinds = list_names([f"{count} {kind}" for kind, count in found.most_common()], 3)
    ops = op if total == 1 else op.replace("op", "ops", 1)
    have = "has" if found.total() == 1 else "have"
    return (
        f"{hardware}: {found.total()} of {total} {ops} {have} no measured cost ({kinds}); data-sheet "
        "rooflines were used, which are lower bounds and look fast beside fitted costs. See docs/costs.md."
    )
