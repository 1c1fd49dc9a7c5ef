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
        now = [0] * len(self.nbytes)
        later: list[tuple[int, int]] = []
        for reads in self.reads:
            for buffer, distance in reads:
                if distance:
                    later.append((buffer, distance))
                else:
                    now[buffer] += 1
        rows = [now.copy() for _ in range(iterations)]
        for buffer, distance in later:
            for row in rows[: max(0, iterations - distance)]:
                row[buffer] += 1
        return rows

    def names(self, job: Job, flow: Flow) -> list[str]:
        """Return what every buffer is called; see `name`."""
        graph = job.graph
        names = list(graph.external_names)
        for op, row in zip(graph.op_names, graph.outputs.lists(), strict=True):
            names.append(op)
            if len(row) > 1:
                names += [f"{op}:{k}" for k in range(1, len(row))]
        n = graph.n_tensors
        return names + [self.name(n + t, job, flow) for t in range(len(flow.tensor))]

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
        (tensor, device): n_tensors + t
        for t, (tensor, device) in enumerate(
            zip(flow.tensor.tolist(), flow.destination.tolist(), strict=True)
        )
    }
    size = nbytes.tolist()
    device_of = job.device_of.tolist()
    external = [*(producer < 0).tolist(), *([False] * len(flow.tensor))]
    own = _own_storage(job, copy_of, size)
    elsewhere = (
        bool(copy_of) or own is not None
    )  # whether what is read may be another buffer than the tensor's
    resident: dict[tuple[int, int], tuple[int, int, int]] = {}
    reads: list[list[tuple[int, int]]] = []
    distance, at = graph.input_distance.tolist(), 0
    rows = graph.inputs.lists()
    simple = not (elsewhere or graph.has_distances or (producer[graph.inputs.indices] < 0).any())
    if simple and graph.tensor_nbytes.all():  # the usual case: everybody reads what others have made there
        pairs = [(tensor, 0) for tensor in range(n_tensors)]
        reads = [[pairs[tensor] for tensor in dict.fromkeys(row)] for row in rows]
        rows = []
    for here, row in zip(device_of, rows, strict=False):
        seen: list[tuple[int, int]] = []
        for tensor in row:
            buffer = tensor
            if elsewhere:
                buffer = copy_of.get((tensor, here), tensor)
                if own is not None:
                    buffer = own[buffer]
            if external[buffer]:
                resident.setdefault((buffer, here), (here, size[buffer], buffer))
            elif size[buffer] and (buffer, distance[at]) not in seen:
                seen.append((buffer, distance[at]))
            at += 1
        reads.append(seen)
    writes = graph.outputs.lists()
    if own is not None or not graph.tensor_nbytes.all():
        writes = [[t for t in row if size[t] and (own is None or own[t] == t)] for row in writes]
    for t, tensor in enumerate(flow.tensor.tolist()):
        buffer, source = n_tensors + t, tensor if own is None else own[tensor]
        writes.append([buffer] if size[buffer] else [])
        reads.append([(source, 0)] if size[source] and not external[source] else [])
        if external[tensor] and graph.tensor_role[tensor] == Role.INPUT:
            home_device = int(flow.source[t])
            resident.setdefault((tensor, home_device), (home_device, size[tensor], tensor))
    device = [*home.tolist(), *flow.destination.tolist()]
    return Buffers(size, device, writes, reads, [r for r in resident.values() if r[1]])


def _own_storage(job: Job, copy_of: dict[tuple[int, int], int], size: list[int]) -> list[int] | None:
    """Return, per buffer, the buffer whose bytes it really is (a view: another); None: there are no views."""
    graph = job.graph
    shared = storage_of(graph)
    if (shared < 0).all():
        return None
    own = list(range(len(size)))
    made = graph.outputs.indices[graph.outputs.indptr[:-1]].tolist()  # output 0 of each op
    for op in graph.topological_order.tolist():
        base = int(shared[made[op]])
        if base >= 0:
            own[made[op]] = own[copy_of.get((base, int(job.device_of[op])), base)]
    return own
