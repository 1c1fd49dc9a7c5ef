"""How sure a makespan is, from how sure the durations of its ops are.

A cost model that was fitted to measured kernels knows how far it is off
(`sim.machine.device.CostModel.spread`). What counts is the executed path::

    path       matmul 2.0 ms ± 8 %    softmax 0.3 ms ± 20 %    waits 0.1 ms        2.4 ms
    interval   sqrt((2.0 x 8 %)² + (0.3 x 20 %)²) = 0.17 ms                        2.2 to 2.6 ms

This is an approximation, with two assumptions: kernels of one kind err together (a library is quicker or
slower than the model as a whole), those of two kinds independently; and the path stays the path. Durations
that the graph gives itself count as exact. Two runs of the same work err together, too, so their difference
is surer than either of them (`difference_ns`): what both spend on a kind cancels.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, FloatArray
from sim.base.errors import InputError
from sim.explain.path import executed_path
from sim.graph.graph import Graph
from sim.job.costs import answered, cost_the_same
from sim.machine.device import CostModel, Device
from sim.record.record import Record

MOST_TASKS: Final = 200_000
"""Of longer runs the path is not walked for this alone: it would take longer than the run."""


class OnPath(NamedTuple):
    """Ops of one kind on the executed path.

    Attributes
    ----------
    ns : int
        Time on the path.
    spread : float
        Half the 10-90 % interval of their sum, as a logarithm.
    """

    ns: int
    spread: float


def spread_on_path(trace: Record) -> dict[str, OnPath]:
    """Return what each kind of op takes on the executed path, and how sure that is, the least sure first.

    Kinds whose durations are given or of which no cost model says how sure it is are left out; so is
    everything in runs of more than `MOST_TASKS` tasks.
    """
    job, graph = trace.job, trace.job.graph
    models = {d: one.cost for d, one in enumerate(job.machine.devices) if one.cost is not None}
    if not models or len(trace) > MOST_TASKS or all(map(_silent, models.values())):
        return {}
    op, device = trace.tasks["op"], trace.device
    steps = [(step.row, step.end_ns - step.start_ns) for step in executed_path(trace) if step.kind == "task"]
    given = graph.duration_ns != UNSET
    spread: dict[int, FloatArray] = {}
    found: dict[str, list[tuple[int, float]]] = {}
    for row, ns in steps:
        d, o = int(device[row]), int(op[row])
        by_kind = graph.duration_by_kind.get(job.machine.devices[d].kind)
        if d not in models or given[o] or (by_kind is not None and by_kind[o] != UNSET):
            continue
        if d not in spread:
            here = job.machine.devices[d]
            alike = next((each for each in spread if cost_the_same(here, job.machine.devices[each])), None)
            spread[d] = _asked(models[d], graph, here) if alike is None else spread[alike]
        if not np.isnan(spread[d][o]):
            found.setdefault(graph.kind(o), []).append((ns, float(spread[d][o])))
    sums = {
        kind: OnPath(total, sum(ns * each for ns, each in parts) / total)
        for kind, parts in found.items()
        if (total := sum(ns for ns, _ in parts))
    }
    return dict(sorted(sums.items(), key=lambda one: -one[1].ns * one[1].spread))


def interval_ns(makespan_ns: int, on_path: Mapping[str, OnPath]) -> tuple[int, int]:
    """Return the 10-90 % interval of a makespan.

    Examples
    --------
    >>> interval_ns(2_400, {"matmul": OnPath(2_000, 0.08), "softmax": OnPath(300, 0.2)})
    (2237, 2579)
    """
    below = sum((one.ns * -np.expm1(-one.spread)) ** 2 for one in on_path.values()) ** 0.5
    above = sum((one.ns * np.expm1(one.spread)) ** 2 for one in on_path.values()) ** 0.5
    return round(makespan_ns - below), round(makespan_ns + above)


def difference_ns(one: Mapping[str, OnPath], other: Mapping[str, OnPath]) -> int:
    """Return half the 10-90 % interval of the difference between two runs of the same work.

    Examples
    --------
    >>> difference_ns({"matmul": OnPath(2_000, 0.1)}, {"matmul": OnPath(1_900, 0.1)})
    10
    """
    nothing = OnPath(0, 0.0)
    parts = (
        (one.get(kind, nothing).ns - other.get(kind, nothing).ns)
        * max(one.get(kind, nothing).spread, other.get(kind, nothing).spread)
        for kind in {**one, **other}
    )
    return round(float(np.sqrt(sum(part**2 for part in parts))))


def uncertainty(trace: Record) -> dict[str, Any] | None:
    """Return what a summary says of it; None where nothing is known."""
    on_path = spread_on_path(trace)
    if not on_path:
        return None
    low_ns, high_ns = interval_ns(trace.makespan_ns, on_path)
    by_kind = {kind: {"path_ns": one.ns, "spread": round(one.spread, 4)} for kind, one in on_path.items()}
    return {"low_ns": low_ns, "high_ns": high_ns, "by_kind": by_kind}


def _asked(model: CostModel, graph: Graph, device: Device) -> FloatArray:
    answer = answered(graph, device, "spread", lambda: np.asarray(model.spread(graph, device), float))
    if answer.shape != (len(graph),):
        whose = f"{type(model).__name__}.spread"
        raise InputError(f"{whose} should return {len(graph)} number(s), one an op; found {answer.size}")
    return answer


def _silent(model: CostModel) -> bool:
    """Whether a cost model never says how sure it is."""
    return type(model).spread is CostModel.spread
