"""Say so when a run takes plain rooflines of real hardware for the durations of its ops.

A roofline is a lower bound: it knows no launch and no share of the peak that kernels reach
(`devices.cost.unreliable` has the criterion). A preset's numbers pretend to be those of a real GPU, so ops
that take them without any loss are counted, once for all devices of a preset::

    machine: 8 x h100-sxm      60 ops on each, 50 of them by plain rooflines      one warning: 400 of 480 ops

An efficiency, or another loss, that was measured in 16 bits says little of 8: ops of other data types than
the preset's ``measured_dtypes`` are counted too. Nothing is said of ops that have a duration, of kinds for
which a loss in their data type is given, of what a table or a fit answered, of ``ideal: true``, and of
devices described without a preset: what a description leaves out is the ideal, and there the ideal is what
was asked for. But of any device it is said that ops in ``int4`` compute at the rate of ``fp32`` because
``peak`` has no other.
"""

from __future__ import annotations

import warnings
from collections import Counter

import numpy as np

from devices.cost.cost_models import FirstCost, RooflineCost
from devices.describe.field_types import DEFAULT
from sim.job.job import Job
from sim.machine.device import CostModel, Device
from sim.words.arrays import UNSET

__all__ = ["warn_of_plain_rooflines"]

_KINDS_SHOWN = 3


def warn_of_plain_rooflines(job: Job) -> None:
    """Warn, once for each preset, of ops whose plain roofline real kernels exceeded more than twofold.

    Parameters
    ----------
    job : Job
        With every op placed and timed.

    Warns
    -----
    PlainRooflineWarning
        Ops of GPUs described by a preset take its plain roofline, at sizes where kernels took more than twice
        as long on an H200, or have a loss that was measured in other data types.
    BorrowedRateWarning
        Ops compute in a data type for which their device gives no rate.

    Examples
    --------
    >>> from devices.machine import make_machine
    >>> from sim import GraphBuilder
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("one product")
    >>> _ = b.op("a", kind="matmul", flops=2 * 1024**3, bytes_read=2**22, bytes_written=2**21, dtype="bf16")
    >>> h100 = make_machine({"devices": {"gpu0": {"preset": "h100-sxm"}}})
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     warn_of_plain_rooflines(make_job(b.build(), h100))
    >>> str(caught[0].message).partition(" (")[0]
    'h100-sxm: 1 of 1 op has no measured cost'
    """
    graph = job.graph
    given = graph.duration_ns != UNSET
    counted: dict[str, Counter[str]] = {}
    total: Counter[str] = Counter()
    borrowed: Counter[tuple[str, str, str]] = Counter()
    alike: list[tuple[Device, RooflineCost, list[int]]] = []  # devices that a model knows no difference of
    for index, device in enumerate(job.machine.devices):
        if (model := _roofline(device.cost)) is None:
            continue
        same = (found for one, other, found in alike if one.kind == device.kind and other == model)
        if (indices := next(same, None)) is None:
            alike.append((device, model, indices := []))
        indices.append(index)
    for device, model, indices in alike:
        here = np.isin(job.device_of, indices) & ~job.meets
        by_kind = graph.duration_by_kind.get(device.kind)
        free = here & ~given if by_kind is None else here & ~given & (by_kind == UNSET)
        total[model.hardware] += int(here.sum())
        exceeded = free & model.may_take_twice(graph) if model.hardware else np.zeros_like(free)
        lent = model.borrowed(graph)
        if exceeded.any() or lent:  # an op that another model timed has another duration
            timed = free & (model.durations_ns(graph, device) == job.duration_ns)
            found = counted.setdefault(model.hardware, Counter())
            found.update(model.called(graph, np.flatnonzero(exceeded & timed)))
            for dtype, ops in lent.items():
                lender = DEFAULT if DEFAULT in model.peak_flop_per_s else "fp32"
                borrowed[model.hardware or device.kind, dtype, lender] += int(timed[ops].sum())
    for hardware, found in counted.items():
        if found:
            from devices.cost.unreliable import PlainRooflineWarning

            message = _message(hardware, found, total[hardware])
            warnings.warn(PlainRooflineWarning(message, hardware), stacklevel=2)
    for (where, dtype, lender), count in borrowed.items():
        if count:
            from devices.cost.unreliable import BorrowedRateWarning

            lent_ops = f"{count} op{'s' * (count != 1)} in {dtype} compute{'s' * (count == 1)}"
            message = f"{where}: {lent_ops} at the rate of {lender}, as peak has none for {dtype}."
            warnings.warn(BorrowedRateWarning(message, f"{where} {dtype}"), stacklevel=2)


def _roofline(model: CostModel | None) -> RooflineCost | None:
    """Return the first roofline in a model, if there is one; a second is never asked."""
    models = model.models if isinstance(model, FirstCost) else (model,)
    return next((one for one in models if isinstance(one, RooflineCost)), None)


def _message(hardware: str, found: Counter[str], total: int) -> str:
    # "1 more kind" is as long as its name.
    shown = len(found) if len(found) == _KINDS_SHOWN + 1 else _KINDS_SHOWN
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.most_common(shown))
    if len(found) > shown:
        kinds += f" and {len(found) - shown} more kinds"
    ops, have = "op" + "s" * (total != 1), "has" if found.total() == 1 else "have"
    return (
        f"{hardware}: {found.total()} of {total} {ops} {have} no measured cost ({kinds}); data-sheet "
        "rooflines were used, often more than 2x too fast. See docs/costs.md."
    )
