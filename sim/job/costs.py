"""What each op costs: how long it takes on a device, and its issuer to issue it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.graph.graph import Graph
from sim.job.job import Job
from sim.machine.device import Device
from sim.words.arrays import UNSET, BoolArray, IntArray

__all__ = ["costs_ns", "issue_costs_ns"]


def costs_ns(graph: Graph, device: Device) -> IntArray:
    """Return how long each op takes on `device`, -1 where it cannot run there.

    An explicit duration for the device's kind wins over an explicit duration, which wins over
    the device's cost model. An op without any of them, on a device without a cost model, takes
    no time when it has no cost facts; otherwise the device cannot time it and -1 is returned.

    Parameters
    ----------
    graph : Graph
    device : Device

    Returns
    -------
    array of int64
        One duration per op in ns.
    """
    ns = graph.duration_ns.copy()
    by_kind = graph.duration_by_kind.get(device.kind)
    if by_kind is not None:
        ns = np.where(by_kind == UNSET, ns, by_kind)
    missing = ns == UNSET
    if missing.any():
        if device.cost is not None:
            ns = np.where(missing, device.cost.durations_ns(graph, device), ns)
        else:
            only_here = np.zeros(len(graph), dtype=bool)  # durations for other kinds of device only
            for other in graph.duration_by_kind.values():
                only_here |= other != UNSET
            free = missing & ~only_here & (graph.flops == 0)
            ns = np.where(free, 0, ns)
    if device.supports is not None:
        ns = np.where(graph.is_kind(*device.supports), ns, UNSET)
    return ns


def _by_identity(columns: Sequence[IntArray]) -> list[tuple[IntArray, list[int]]]:
    """Return the different arrays among `columns`, each with the positions where it stands."""
    found: dict[int, tuple[IntArray, list[int]]] = {}
    for i, column in enumerate(columns):
        found.setdefault(id(column), (column, []))[1].append(i)
    return list(found.values())


def _timed(cost_ns: Sequence[IntArray]) -> BoolArray:
    """Return, per device and op, whether the device can time the op."""
    able = np.empty((len(cost_ns), len(cost_ns[0])), dtype=bool)
    for column, devices in _by_identity(cost_ns):
        able[devices] = column != UNSET
    return able


def issue_costs_ns(job: Job) -> IntArray:
    """Return what issuing each op costs its issuer, in ns.

    Parameters
    ----------
    job : Job

    Returns
    -------
    array of int64
        What the job says (`Job.issue_ns`); else `Device.issue_ns_by_kind` of the op's kind where it is given,
        and `Device.issue_ns` for the rest.
    """
    if job.issue_ns is not None:
        return job.issue_ns.copy()
    table = np.array(
        [[d.issue_ns_by_kind.get(kind, d.issue_ns) for kind in job.graph.kinds] for d in job.machine.devices]
    )
    return table.reshape(len(job.machine.devices), -1)[job.device_of, job.graph.kind_code]
