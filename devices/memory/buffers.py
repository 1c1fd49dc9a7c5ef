"""Which buffers a job needs, who writes them, and how often each is read.

A *buffer* is a tensor on a device: the producer's own, or the copy that a transfer makes. The table
is made once, before time 0; `devices.memory.tensors` lets it live.

::

    gpu0: a ──► [a on gpu0] ──► b                 buffers:  0..n_tensors-1   tensors where they are made
                     │                                      n_tensors + t    the copy transfer t makes
    gpu1:            └─transfer─► [a on gpu1] ──► c

A view (`sim.storage`) has no buffer: who reads it reads the buffer that it is a view of.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.graph import IntArray, Role
from sim.job import Job
from sim.storage import storage_of
from sim.transfers import Flow

__all__ = ["Buffers", "make_buffers"]


class Buffers(NamedTuple):
    """Buffers of one iteration, and the nodes (ops, then transfers) that write and read them.

    Attributes
    ----------
    nbytes, device : list of int, one entry per buffer
        Size, and index of the device where it lies (-1: an external tensor that lies everywhere).
    writes, reads : list of lists, one per node
        Buffers it makes; (buffer, distance) pairs it reads, a tensor read twice once.
    resident : list of (device, nbytes, tensor)
        Parameters and graph inputs, once for each device that reads them.
    """

    nbytes: list[int]
    device: list[int]
    writes: list[list[int]]
    reads: list[list[tuple[int, int]]]
    resident: list[tuple[int, int, int]]

    def uses(self, iterations: int) -> list[list[int]]:
        """Return, per iteration and buffer, how many tasks read it."""
        n = len(self.nbytes)
        counts = np.zeros((iterations, n), dtype=np.int64)
        for reads in self.reads:
            for buffer, distance in reads:
                counts[: max(0, iterations - distance), buffer] += 1
        rows: list[list[int]] = counts.tolist()
        return rows

    def name(self, buffer: int, job: Job, flow: Flow) -> str:
        """Return what a buffer is called: its tensor, and for a copy where it lies."""
        n = job.graph.n_tensors
        if buffer < n:
            return job.graph.tensor_name(buffer)
        t = buffer - n
        there = job.machine.devices[int(flow.destination[t])].name
        return f"{job.graph.tensor_name(int(flow.tensor[t]))} on {there}"


def make_buffers(job: Job, flow: Flow) -> Buffers:
    """Return the buffers of `job`; tensors of 0 bytes need none and are left out of every list."""
    graph = job.graph
    n_tensors = graph.n_tensors
    producer = graph.tensor_producer
    home = np.where(producer >= 0, job.device_of[producer], -1)
    nbytes: IntArray = np.concatenate((graph.tensor_nbytes, flow.nbytes))
    copy_of = {
        (int(tensor), int(device)): n_tensors + t
        for t, (tensor, device) in enumerate(zip(flow.tensor, flow.destination, strict=True))
    }
    size = nbytes.tolist()
    device_of = job.device_of.tolist()
    external = [*(producer < 0).tolist(), *([False] * len(flow.tensor))]
    own = _own_storage(job, copy_of, size)
    resident: dict[tuple[int, int], tuple[int, int, int]] = {}
    reads: list[list[tuple[int, int]]] = []
    rows, ptr = graph.inputs.lists(), graph.inputs.indptr.tolist()
    distance = graph.input_distance.tolist()
    for op, row in enumerate(rows):
        seen: dict[tuple[int, int], None] = {}
        for k, tensor in enumerate(row):
            buffer = own[copy_of.get((tensor, device_of[op]), tensor)]
            if external[buffer]:
                key = (buffer, device_of[op])
                resident.setdefault(key, (device_of[op], size[buffer], buffer))
            elif size[buffer]:
                seen[buffer, distance[ptr[op] + k]] = None
        reads.append(list(seen))
    writes = [[t for t in row if size[t] and own[t] == t] for row in graph.outputs.lists()]
    for t, tensor in enumerate(flow.tensor.tolist()):
        buffer, source = n_tensors + t, own[tensor]
        writes.append([buffer] if size[buffer] else [])
        reads.append([(source, 0)] if size[source] and not external[source] else [])
        if external[tensor] and graph.tensor_role[tensor] == Role.INPUT:
            home_device = int(flow.source[t])
            resident.setdefault((tensor, home_device), (home_device, size[tensor], tensor))
    device = [*home.tolist(), *flow.destination.tolist()]
    return Buffers(size, device, writes, reads, [r for r in resident.values() if r[1]])


def _own_storage(job: Job, copy_of: dict[tuple[int, int], int], size: list[int]) -> list[int]:
    """Return, per buffer, the buffer whose bytes it really is: itself, unless it is a view."""
    graph = job.graph
    own = list(range(len(size)))
    shared = storage_of(graph)
    if (shared < 0).all():
        return own
    made = graph.outputs.indices[graph.outputs.indptr[:-1]].tolist()  # output 0 of each op
    for op in graph.topological_order.tolist():
        base = int(shared[made[op]])
        if base >= 0:
            own[made[op]] = own[copy_of.get((base, int(job.device_of[op])), base)]
    return own
