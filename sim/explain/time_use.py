"""Where the time of every device went, in four categories that add up to the makespan.

::

    compute      an op executes that is not communication (`sim.explain.communication`)
    communicate  nothing computes, and a collective or copy executes, or the next op's input travels
    wait         neither, and the device has ops left to run: `sim.explain.idle` gives the reason; this
                 includes collectives that have started and wait for a late rank
    idle         no op is left for it, or it never had one

    lanes        ▇▇▇▇▇matmul▇▇▇▇▇            ▇▇▇matmul▇▇▇
                        ▇▇all_reduce▇▇▇▇
                 ├── compute ────┤├ comm. ┤├ wait ┤├ compute ┤├── idle ──┤ makespan

Communication hidden behind computing takes no time of its own, so overlap is visible: the temporal
breakdown of Holistic Trace Analysis (https://hta.readthedocs.io, "Temporal Breakdown") has the same
order of precedence. A device with cores or several streams computes when any of them does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, FloatArray, IntArray
from sim.base.errors import InputError
from sim.base.intervals import in_use, union
from sim.explain.bounds import cores_of_ops
from sim.explain.communication import communicates, computes_until_ns
from sim.explain.derived import DerivedColumns
from sim.explain.idle import idle_reasons
from sim.explain.path import executed_path
from sim.graph.graph import Graph
from sim.job.costs import ask_once
from sim.machine.device import CostModel, Device
from sim.record.record import Record

WORD_OF_REASON: Final = {"transfer": "communicate", "finished": "idle", "unused": "idle"}
"""Category of time without a running op, by its reason (`sim.explain.idle.REASONS`); else ``wait``."""


def time_use(run: Record | DerivedColumns) -> dict[str, dict[str, int]]:
    """Return, for each device, the ns of ``compute``, ``communicate``, ``wait`` and ``idle``.

    Parameters
    ----------
    run : Trace or DerivedColumns
        The latter may be of a part of a run; the categories then add up to its time.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("ping")
    >>> _ = b.op("a", duration_ns=10, device="gpu0")
    >>> _ = b.op("b", duration_ns=7, device="gpu1", inputs=["a"], kind="all_reduce")
    >>> use = time_use(simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue()))
    >>> use["gpu0"]
    {'compute': 10, 'communicate': 0, 'wait': 0, 'idle': 7}
    >>> use["gpu1"]
    {'compute': 0, 'communicate': 7, 'wait': 10, 'idle': 0}
    """
    f = DerivedColumns.of(run)
    trace, counts = f.trace, f.counts
    computes = np.flatnonzero(counts & ~communicates(trace) & ~trace.is_delay)
    ends = computes_until_ns(trace)
    # if all executing ops compute, busy time is computing time
    only_compute = len(computes) == int(counts.sum()) and ends is trace.tasks["end_ns"]
    start, stop = (np.clip(time[computes], f.from_ns, f.to_ns) for time in (trace.tasks["start_ns"], ends))
    by_device = union(start, stop, trace.device[computes])
    compute = [] if only_compute else by_device.lengths(len(f.devices)).tolist()
    use = {}
    for name, by_reason in idle_reasons(f).items():
        busy = f.to_ns - f.from_ns - sum(by_reason.values())
        compute_ns = busy if only_compute else compute[f.machine.device_index(name)]
        use[name] = {"compute": compute_ns, "communicate": busy - compute_ns, "wait": 0, "idle": 0}
        for reason, ns in by_reason.items():
            use[name][WORD_OF_REASON.get(reason, "wait")] += ns
    return use


# ----------------------------------------------------------------------------------------------------------
# How many of a device's cores its tasks use: a CPU's share, as "busy" only means that some worker works.
#
#     8 cores, a chain of ops of one core    ▇▇▇▇▇▇▇▇▇▇    busy 100 % of the time, core-time 1/8


def cores_of(device: Device) -> int:
    """Return the number of cores of a device, or of workers if cores are not counted; 0 with streams."""
    return device.cores or device.workers


def used_core_ns(trace: Record) -> IntArray:
    """Return the core-time that the tasks of each device used, in ns; 0 for devices without cores.

    At any time at most all cores are used: oversubscribed ones are shared, not multiplied. Ops that share a
    pool of threads use no more cores than it has threads.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("two")
    >>> _ = b.op("a", duration_ns=10), b.op("b", duration_ns=30)
    >>> used_core_ns(simulate(b.build(), Machine((Device("cpu0", "cpu", workers=4),)), ReadyQueue())).tolist()
    [40]
    """
    devices = trace.job.machine.devices
    used = np.zeros(len(devices), np.int64)
    cores = cores_of_ops(trace.job)
    for d, device in enumerate(devices):
        if not cores_of(device):
            continue
        rows = np.flatnonzero((trace.device == d) & ~trace.alone)
        occupied = cores[trace.tasks["op"][rows]] if device.cores else np.ones(len(rows), np.int64)
        times, at_once = in_use(trace.tasks["start_ns"][rows], trace.tasks["end_ns"][rows], occupied)
        limit = min(cores_of(device), device.details.intra_op_pool or cores_of(device))
        used[d] = int((np.diff(times) * np.minimum(at_once[:-1], limit)).sum())
    return used


# ----------------------------------------------------------------------------------------------------------
# Devices that were given but not used: the first thing a reader of any result has to know.


def unused_devices(trace: Record) -> list[str]:
    """Return the names of devices that ran no op and that no transfer came from, went to or passed.

    Switches are not listed, as they cannot run ops.

    Parameters
    ----------
    trace : Trace

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("one")
    >>> _ = b.op("a", duration_ns=10)
    >>> unused_devices(simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue()))
    ['gpu1']
    """
    machine, transfers = trace.job.machine, trace.transfers
    ran = np.flatnonzero(np.bincount(trace.device[trace.executed]))
    used = {machine.devices[d].name for d in ran.tolist()}
    pairs = np.flatnonzero(np.bincount(transfers["source"] * len(machine.devices) + transfers["destination"]))
    for source, destination in (divmod(pair, len(machine.devices)) for pair in pairs.tolist()):
        for k in machine.route(source, destination):
            used.update((machine.links[k].source, machine.links[k].destination))
    return [device.name for device in machine.devices if device.name not in used and device.kind != "switch"]


# ----------------------------------------------------------------------------------------------------------
# How certain a makespan is, given how certain the durations of its ops are.
#
# A cost model fitted to measured kernels knows its own error
# (`sim.machine.device.CostModel.spread`). What counts is the executed path::
#
#     path       matmul 2.0 ms ± 8 %    softmax 0.3 ms ± 20 %    waits 0.1 ms        2.4 ms
#     interval   sqrt((2.0 x 8 %)² + (0.3 x 20 %)²) = 0.17 ms                        2.2 to 2.6 ms
#
# This is an approximation, with two assumptions: kernels of one kind and its gradients err together (a
# library is faster or slower than the model as a whole), those of different kinds independently; and the path
# stays the path. Durations that the graph itself gives count as exact. Two runs of the same work also err
# together, so their difference is more certain than either of them (`difference_ns`): time that both spend on
# a kind cancels.

MOST_TASKS: Final = 200_000
"""In longer runs the path is not walked for this alone: it would take longer than the run."""

_GRADIENT: Final = re.compile("(_input|_weight)?_grad$")


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
    """Return the time of each kind of op (with gradients) on the executed path and its uncertainty, the
    least certain first.

    Kinds whose durations are given, or have no spread in the cost model, are left out; so is everything in
    runs of more than `MOST_TASKS` tasks.
    """
    job, graph = trace.job, trace.job.graph
    models = {d: one.cost for d, one in enumerate(job.machine.devices) if one.cost is not None}
    silent = all(type(one).spread is CostModel.spread for one in models.values())  # no model gives a spread
    if silent or len(trace) > MOST_TASKS:
        return {}
    steps = [step for step in executed_path(trace) if step.kind == "task"]
    row = np.array([step.row for step in steps], np.int64)
    ns = np.array([step.end_ns - step.start_ns for step in steps], np.int64)
    op, device = trace.tasks["op"][row], trace.device[row]
    spread = np.full(len(row), np.nan)
    for d in set(device.tolist()) & {*models}:
        target = job.machine.devices[d]
        estimated = graph.given_ns(target.kind, target.name) == UNSET
        mask = device == d
        spread[mask] = np.where(estimated, _ask_model(models[d], graph, target), np.nan)[op[mask]]
    sure = ~np.isnan(spread)
    kinds, kind = np.unique([_GRADIENT.sub("", kind) for kind in graph.kinds], return_inverse=True)
    code, ns = kind[graph.kind_code[op[sure]]], ns[sure]
    total, weighted = (np.bincount(code, values, len(kinds)).tolist() for values in (ns, ns * spread[sure]))
    sums = {
        str(kinds[k]): OnPath(round(total[k]), weighted[k] / total[k]) for k in range(len(kinds)) if total[k]
    }
    return dict(sorted(sums.items(), key=lambda one: -one[1].ns * one[1].spread))


def difference_ns(one: Mapping[str, OnPath], other: Mapping[str, OnPath]) -> int:
    """Return half the 10-90 % interval of the difference between two runs of the same work.

    Examples
    --------
    >>> difference_ns({"matmul": OnPath(2_000, 0.1)}, {"matmul": OnPath(1_900, 0.1)})
    10
    """
    nothing = OnPath(0, 0.0)
    pairs = ((one.get(kind, nothing), other.get(kind, nothing)) for kind in {**one, **other})
    parts = ((a.ns - b.ns) * max(a.spread, b.spread) for a, b in pairs)
    return round(float(sum(part**2 for part in parts) ** 0.5))


def uncertainty(trace: Record) -> dict[str, Any] | None:
    """Return the interval of a makespan for a summary; None if unknown."""
    on_path = spread_on_path(trace)
    return interval_of(trace.makespan_ns, on_path) if on_path else None


def interval_of(makespan_ns: int, on_path: Mapping[str, OnPath]) -> dict[str, Any]:
    """Return the 10-90 % interval of a makespan in the form of a summary.

    Examples
    --------
    >>> interval_of(2_400, {"matmul": OnPath(2_000, 0.08)})
    {'low_ns': 2246, 'high_ns': 2567, 'by_kind': {'matmul': {'path_ns': 2000, 'spread': 0.08}}}
    """
    below = sum((one.ns * -np.expm1(-one.spread)) ** 2 for one in on_path.values()) ** 0.5
    above = sum((one.ns * np.expm1(one.spread)) ** 2 for one in on_path.values()) ** 0.5
    by_kind = {kind: {"path_ns": one.ns, "spread": round(one.spread, 4)} for kind, one in on_path.items()}
    return {"low_ns": round(makespan_ns - below), "high_ns": round(makespan_ns + above), "by_kind": by_kind}


def _ask_model(model: CostModel, graph: Graph, device: Device) -> FloatArray:
    answer = ask_once(graph, device, "spread", lambda: np.asarray(model.spread(graph, device), float))
    if answer.shape != (len(graph),):
        source = f"{type(model).__name__}.spread"
        raise InputError(f"{source} should return {len(graph)} number(s), one an op; found {answer.size}")
    return answer
