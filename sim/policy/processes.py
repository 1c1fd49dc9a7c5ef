"""Sessions that are processes of their own: each has its own host threads and its own streams.

::

    one process      gpu0/host         a0 b0 a1 b1  ──►  gpu0/0        one thread launches for both
    two processes    gpu0/host/a       a0 a1        ──►  gpu0/0        each launches for itself; how the
                     gpu0/host/b       b0 b1        ──►  gpu0/1        device serves both is the device's

An op says by its attribute ``process`` which one it is of (`scenarios.build.side_by_side`); one that a
rewrite made is of the process of its neighbours. Workers of a CPU are its cores, which processes share, and
so are the threads of a host whose threads are such workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sim.graph.graph import Graph
from sim.job.job import Job
from sim.machine.machine import Host, Machine
from sim.words.arrays import UNSET, IntArray

__all__ = ["process_names", "with_processes"]


def process_names(graph: Graph) -> list[str]:
    """Return the processes that ops of a graph say they are of."""
    return list(dict.fromkeys(map(str, graph.attribute("process").values())))


def with_processes(job: Job) -> Job:
    """Return `job` with a host for each process, if there are several, and the streams that it has.

    Examples
    --------
    >>> from sim import Device, GraphBuilder
    >>> from sim.job.build_job import make_job
    >>> b = GraphBuilder("two")
    >>> for name in "ab":
    ...     _ = b.op(name, duration_ns=10, attributes={"process": name})
    >>> job = with_processes(make_job(b.build(), Machine((Device("gpu0"),))))
    >>> [issuer.name for issuer in job.machine.issuers()], job.group_of.tolist()
    (['gpu0/host/a', 'gpu0/host/b'], [0, 1])
    """
    names = process_names(job.graph)
    if len(names) < 2:
        return job
    process_of = _process_of(job.graph, names)
    machine = job.machine
    devices, lane = list(machine.devices), job.stream_of - np.array(machine.first_stream)[job.device_of]
    for d, device in enumerate(devices):
        users = np.unique(process_of[job.device_of == d])
        if len(users) > 1 and device.for_processes is not None:
            # Each has streams of its own, assigned as if the others were not there.
            devices[d] = device.for_processes(device, len(users))
            for place, process in enumerate(users.tolist()):
                here = (job.device_of == d) & (process_of == process)
                lane[here] = _lanes_alone(job, process_of == process)[here] + place * device.streams
    hosts = [host for each in _hosts(machine) for host in _of_each(each, machine, names)]
    return replace(
        job,
        machine=replace(machine, devices=tuple(devices), hosts=tuple(hosts)),
        streams=_Assigned(lane.tolist()),
        processes=tuple(names),
        process_of=process_of,
    )


def _process_of(graph: Graph, names: Sequence[str]) -> IntArray:
    """Return the process of each op: as it says, else that of its neighbours."""
    found = np.full(len(graph), UNSET)
    for op, process in graph.attribute("process").items():
        found[op] = names.index(str(process))
    if (found == UNSET).any():
        edges = graph.edges
        pairs = list(zip(edges.producer.tolist(), edges.consumer.tolist(), strict=True))
        of, before = found.tolist(), None
        while of != before:
            before = list(of)
            for a, b in (*pairs, *reversed(pairs)):
                if (of[a] == UNSET) != (of[b] == UNSET):
                    of[a] = of[b] = max(of[a], of[b])
        found = np.maximum(np.array(of, np.int64), 0)
    return found


def _hosts(machine: Machine) -> list[Host]:
    """Return the hosts of all devices, those that nobody named among them."""
    named = {name: host for host in machine.hosts for name in host.serves}
    every = [
        named.get(device.name, Host(f"{device.name}/host", (device.name,))) for device in machine.devices
    ]
    return list({host.name: host for host in every}.values())


def _of_each(host: Host, machine: Machine, names: Sequence[str]) -> list[Host]:
    """Return a host as each process has it; one whose threads are workers of a CPU is that of all."""
    if any(machine.devices[machine.device_index(name)].workers for name in host.serves):
        return [host]
    return [replace(host, name=f"{host.name}/{name}", process=name) for name in names]


def _lanes_alone(job: Job, mine: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> IntArray:
    """Return the stream that each op has within its device when ops of one process are assigned first."""
    if job.streams is None:
        return np.zeros(len(mine), np.int64)
    first = np.concatenate((job.order[mine[job.order]], job.order[~mine[job.order]]))
    return np.asarray(job.streams.assign(replace(job, linearize=_Ordered(first.tolist()))), np.int64)


@dataclass
class _Assigned:
    """Streams that are assigned already."""

    lanes: Sequence[int]

    def assign(self, job: Job) -> Sequence[int]:
        return self.lanes


@dataclass
class _Ordered:
    """A program order that is known."""

    ops: Sequence[int]

    def order(self, job: Job) -> Sequence[int]:
        return self.ops
