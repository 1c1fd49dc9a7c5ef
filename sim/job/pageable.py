"""Copies of pageable memory: a host thread makes them, and does nothing else meanwhile.

::

    pinned      host  [launch a][launch b]          the copy engine reads the host's memory by itself
                copy       ▇▇▇▇▇▇▇▇▇▇▇

    pageable    host  [launch a]╌╌╌╌╌╌╌╌╌╌╌╌[launch b]     the host copies piece by piece to a buffer of
                copy            ▇▇▇▇▇▇▇▇▇▇▇▇               the driver, and returns when the last has left

A transfer between a CPU whose memory is pageable and a device that is launched on takes a thread of that
device's host when it is issued, and keeps it until its bytes have arrived; without a free one it waits, first
come first served, before any op. (CUDA Runtime API, "API synchronization behavior"; CUDA C++ Best Practices
Guide, "Pinned Memory".)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sim.graph.graph import Graph
from sim.job.job import Job
from sim.machine.machine import Machine
from sim.words.arrays import UNSET, IntArray

__all__ = ["awaited_ops", "connection_bytes_per_s", "holding_ops", "host_groups", "staging_bytes_per_s"]


def host_groups(job: Job, tensor: IntArray, source: IntArray, destination: IntArray) -> IntArray:
    """Return, for each transfer, the group of issuers one of which has to make it; -1: nobody has to.

    Parameters
    ----------
    job : Job
    tensor, source, destination : arrays of int64
        What is moved, and between which devices; one entry a transfer.
    """
    machine = job.machine
    who = np.full(len(source), UNSET)  # the device that is launched on
    over = np.array([link.host_copies for link in machine.links], bool)
    if over.any():
        routes, way = machine.distinct_routes(source, destination, tensor)
        copied = np.array([over[list(route)].any() for _, _, route in routes], bool)[way]
        who[copied] = source[copied]
    pageable = np.array([device.pageable for device in machine.devices])
    if pageable.any():
        by_workers = np.array([device.workers > 0 for device in machine.devices])
        there = np.where(by_workers[source], destination, source)
        needed = (by_workers[source] != by_workers[destination]) & (pageable[source] | pageable[destination])
        who[needed] = there[needed]
    if (who == UNSET).all():
        return who
    process = None if job.process_of_tensor is None else job.process_of_tensor[tensor]
    return np.where(who == UNSET, UNSET, job.groups_that_serve(np.maximum(who, 0), process))


def connection_bytes_per_s(
    machine: Machine, source: int, destination: int, route: Sequence[int]
) -> int | None:
    """Return what all transfers from one device to another get together at most; None: no limit.

    That is what the host copies of pageable memory, and what one connection carries over a route.
    """
    rates = [machine.links[k].connection_bytes_per_s for k in route]
    rates.append(staging_bytes_per_s(machine, source, destination))
    return min((rate for rate in rates if rate is not None), default=None)


def staging_bytes_per_s(machine: Machine, source: int, destination: int) -> int | None:
    """Return how fast a host copies what it has to copy from one device to the other; None: no limit."""
    devices = [machine.devices[d] for d in (source, destination)]
    if all(device.workers for device in devices):
        return None  # from host to host: no driver in between
    rates = [d.staging_bytes_per_s for d in devices if d.pageable and d.staging_bytes_per_s is not None]
    return min(rates, default=None)


def holding_ops(job: Job) -> frozenset[int]:
    """Return the launched ops that keep their host thread until they end, as pageable copies do."""
    return frozenset(op for op in awaited_ops(job.graph) if job.launched[op])


def awaited_ops(graph: Graph) -> list[int]:
    """Return the ops that say that whoever issues them waits until they end."""
    said = (graph.attribute(name).items() for name in ("host_waits", "pageable"))
    return [op for each in said for op, waits in each if waits]
