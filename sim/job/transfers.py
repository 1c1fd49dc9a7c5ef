"""Transfers between devices: one per (tensor, destination device), shared by its readers there.

::

    gpu0: a ──tensor──► transfer a→gpu1 ──► c          instead of  a ──► c and a ──► d
                              │
    gpu1:                     └──────────► d

The result is a `Flow`: the nodes that the engine counts down (ops first, transfers after them) and
the edges between them, each with its distance in iterations.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import numpy as np

from sim.base.arrays import UNSET, BoolArray, IntArray, by_first_use, distinct_rows
from sim.base.errors import InfeasibleError
from sim.base.units import NS_PER_S
from sim.graph.graph import Graph
from sim.job.job import Job
from sim.job.places import crossing_reads
from sim.machine.machine import Machine


class Flow(NamedTuple):
    """Nodes and edges as the engine runs them.

    Attributes
    ----------
    n_ops, n_nodes : int
        Ops have the indices below `n_ops`, transfers those from `n_ops` up to `n_nodes`.
    producer, consumer, distance : arrays
        Edges in activation order: a producer's data edges, then its control edges.
    carries : array, one entry per edge
        The tensor that the edge carries, -1 for a control edge.
    tensor, source, destination, nbytes : arrays, one entry per transfer
        The tensor moved, from which device, to which, and its size.
    """

    n_ops: int
    n_nodes: int
    producer: IntArray
    consumer: IntArray
    distance: IntArray
    carries: IntArray
    tensor: IntArray
    source: IntArray
    destination: IntArray
    nbytes: IntArray

    def counts(self, mask: BoolArray, iterations: int) -> IntArray:
        """Return how many of the edges in `mask` hold back each node, one row per iteration.

        An edge of distance d does not hold back the first d iterations.
        """
        consumer, distance = self.consumer[mask], self.distance[mask]
        rows = [
            np.bincount(consumer[distance <= iteration], minlength=self.n_nodes)
            for iteration in range(min(iterations, int(distance.max(initial=0)) + 1))
        ]
        return np.stack(rows + [rows[-1]] * (iterations - len(rows)))


def check_routes(job: Job, flow: Flow) -> None:
    """Raise, before time 0, if a transfer can never arrive.

    Raises
    ------
    InfeasibleError
        No links lead from one device to another; the error names an op that waits for the transfer.
    """
    for source, destination in sorted(set(zip(flow.source.tolist(), flow.destination.tolist(), strict=True))):
        try:
            job.machine.route(source, destination)
        except InfeasibleError as error:
            transfer = np.flatnonzero((flow.source == source) & (flow.destination == destination))[0]
            readers = flow.consumer[flow.producer == flow.n_ops + transfer]
            tensor = job.graph.tensor_name(int(flow.tensor[transfer]))
            if not len(readers):  # its reader meets it by key (`sim.readiness.rendezvous`)
                raise InfeasibleError(f"{tensor!r} sends to another device: {error}") from None
            name = job.graph.op_names[int(readers[0])]
            message = f"op {name!r} reads {tensor!r} from another device: {error}"
            raise InfeasibleError(message).about(name) from None


def make_flow(job: Job) -> Flow:
    """Return the flow of a job, with the transfers that its placement makes necessary.

    A machine without links needs none. Control edges between devices carry nothing and take no
    time; graph inputs on another device are transferred once per iteration; parameters are
    resident wherever they are used.
    """
    graph = job.graph
    n = len(graph)
    if not job.machine.links:  # the ideal: data is everywhere at once, so no transfer is simulated
        none = np.zeros(0, np.int64)
        return Flow(n, n, *graph.edges, none, none, none, none)
    consumer = graph.inputs.rows()
    tensor, distance = graph.inputs.indices, graph.input_distance
    producer = graph.tensor_producer[tensor]
    crossing, reader, home = crossing_reads(job)

    # One transfer per (tensor, destination), numbered by first use.
    n_devices = len(job.machine.devices)
    number, keys, first_use = by_first_use(tensor[crossing] * n_devices + reader[crossing])
    moved, destination = np.divmod(keys, n_devices)
    transfer = np.full(len(tensor), UNSET)
    transfer[crossing] = n + number

    # Data edges keep the order in which consumers were added; a transfer takes the place of its first user.
    begins = ~crossing
    begins[np.flatnonzero(crossing)[first_use]] = True
    edge = np.flatnonzero(begins & (producer != UNSET))
    head, lag = np.where(crossing, transfer, consumer), np.where(crossing, 0, distance)
    follower = graph.after.rows()
    return Flow(
        n_ops=n,
        n_nodes=n + len(keys),
        producer=np.concatenate((producer[edge], transfer[crossing], graph.after.indices)),
        consumer=np.concatenate((head[edge], consumer[crossing], follower)),
        carries=np.concatenate((tensor[edge], tensor[crossing], np.full(len(follower), UNSET))),
        distance=np.concatenate((lag[edge], distance[crossing], graph.after_distance)),
        tensor=moved,
        source=home[moved],
        destination=destination,
        nbytes=graph.tensor_nbytes[moved],
    )


def node_name(job: Job, flow: Flow, node: int) -> str:
    """Return the name of an op, or a description of a transfer."""
    if node < flow.n_ops:
        return job.graph.op_names[node]
    k = node - flow.n_ops
    destination = job.machine.devices[int(flow.destination[k])].name
    return f"transfer of {job.graph.tensor_name(int(flow.tensor[k]))} to {destination}"


# ----------------------------------------------------------------------------------------------------------
# Copies of pageable memory: a host thread makes them, and does nothing else meanwhile.
#
#     pinned      host  [launch a][launch b]          the copy engine reads the host's memory by itself
#                 copy       ▇▇▇▇▇▇▇▇▇▇▇
#
#     pageable    host  [launch a]╌╌╌╌╌╌╌╌╌╌╌╌[launch b]     the host copies piece by piece to a buffer of
#                 copy            ▇▇▇▇▇▇▇▇▇▇▇▇               the driver, and returns when the last has left
#
# A transfer between a CPU with pageable memory and a device with launched ops takes a thread of that device's
# host when it is issued, and keeps it until its bytes have arrived; without a free thread it waits, first
# come, first served, ahead of any op. (CUDA Runtime API, "API synchronization behavior"; CUDA C++ Best
# Practices Guide, "Pinned Memory".)


def host_groups(job: Job, tensor: IntArray, source: IntArray, destination: IntArray) -> IntArray:
    """Return, for each transfer, the group of issuers of which one has to make it; -1: none has to.

    Parameters
    ----------
    job : Job
    tensor, source, destination : arrays of int64
        The tensors moved, and between which devices; one entry per transfer.
    """
    machine = job.machine
    served = np.full(len(source), UNSET)  # the device with launched ops
    hosted = np.array([link.host_copies for link in machine.links], bool)
    if hosted.any():
        routes, route_of = machine.distinct_routes(source, destination, tensor)
        copied = np.array([hosted[list(route)].any() for _, _, route in routes], bool)[route_of]
        served[copied] = source[copied]
    pageable = np.array([device.pageable for device in machine.devices])
    if pageable.any():
        by_workers = np.array([device.workers > 0 for device in machine.devices])
        accelerator = np.where(by_workers[source], destination, source)
        needed = (by_workers[source] != by_workers[destination]) & (pageable[source] | pageable[destination])
        served[needed] = accelerator[needed]
    if (served == UNSET).all():
        return served
    process = None if job.process_of_tensor is None else job.process_of_tensor[tensor]
    return np.where(served == UNSET, UNSET, job.groups_that_serve(np.maximum(served, 0), process))


def connection_bytes_per_s(
    machine: Machine, source: int, destination: int, route: Sequence[int]
) -> int | None:
    """Return the maximum total rate of all transfers from one device to another; None: no limit.

    It is the minimum of the rate of the host's copies and of one connection over the route.
    """
    rates = [machine.links[k].connection_bytes_per_s for k in route]
    rates.append(staging_bytes_per_s(machine, source, destination))
    return min((rate for rate in rates if rate is not None), default=None)


def staging_bytes_per_s(machine: Machine, source: int, destination: int) -> int | None:
    """Return the rate at which a host copies pageable memory from one device to the other; None: no limit."""
    devices = [machine.devices[d] for d in (source, destination)]
    if all(device.workers for device in devices):
        return None  # from host to host: no driver in between
    rates = [d.staging_bytes_per_s for d in devices if d.pageable and d.staging_bytes_per_s is not None]
    return min(rates, default=None)


def holding_ops(job: Job) -> frozenset[int]:
    """Return the launched ops that hold their host thread until they end, as pageable copies do."""
    return frozenset(op for op in awaited_ops(job.graph) if job.launched[op])


def awaited_ops(graph: Graph) -> list[int]:
    """Return the ops whose attributes make their issuer wait until they end."""
    columns = (graph.attribute(name).items() for name in ("host_waits", "pageable"))
    return [op for items in columns for op, waits in items if waits]


# ----------------------------------------------------------------------------------------------------------
# The travel time of a tensor from device to device without contention.


class Travel(NamedTuple):
    """An uncontended path from one device to another.

    Attributes
    ----------
    latency_ns : int
        Total latency of its links.
    bytes_per_s : int or None
        Minimum bandwidth of its links, of a connection, and of the host that copies pageable memory; None:
        no limit.
    queues : tuple of int
        If links send chunks one after another: each limited bandwidth, that of a connection first.
    chunk : int, optional
        The largest chunk; None: messages stay whole.

    Examples
    --------
    >>> Travel(latency_ns=10, bytes_per_s=10**9).ns(5)
    15
    >>> Travel(10, 10**9, (10**9, 10**9)).ns(5), Travel(10, 10**9, (10**9, 10**9), 1).ns(5)
    (20, 16)
    """

    latency_ns: int
    bytes_per_s: int | None
    queues: tuple[int, ...] = ()
    chunk: int | None = None

    @classmethod
    def between(cls, machine: Machine, source: int, destination: int) -> Travel:
        """Return the path between two devices, that of any tensor (flow number 0).

        Raises
        ------
        InfeasibleError
            There are links, but none leads there.
        """
        return cls.along(machine, source, destination, machine.route(source, destination))

    @classmethod
    def along(cls, machine: Machine, source: int, destination: int, route: Sequence[int]) -> Travel:
        """Return the path over the links of a route."""
        limits = [connection_bytes_per_s(machine, source, destination, route)]
        limits += [machine.links[k].bandwidth_bytes_per_s for k in route]
        rates = tuple([rate for rate in limits if rate is not None])
        slowest, latency_ns = min(rates, default=None), machine.latency_ns(route)
        if not route or machine.links[route[0]].sharing != "fifo":
            return cls(latency_ns, slowest)
        chunks = [machine.links[k].chunk_bytes for k in route]
        largest = min((chunk for chunk in chunks if chunk is not None), default=None)
        return cls(latency_ns, slowest, rates, largest)

    def ns(self, nbytes: int) -> int:
        """Return the first whole ns at which all of `nbytes` have arrived."""
        if self.queues:
            return self.latency_ns + ceil(self._through_queues(nbytes) * NS_PER_S)
        sent = 0 if self.bytes_per_s is None else -(-nbytes * NS_PER_S // self.bytes_per_s)
        return self.latency_ns + sent

    def _through_queues(self, nbytes: int) -> Fraction:
        """Return the seconds from queue to queue: the longest path through chunks and links.

        All chunks but the last are equal, so they wait for one another only at the slowest link; the last
        chunk may be held up at a different link.
        """
        chunk = self.chunk or max(nbytes, 1)
        full, last = divmod(nbytes, chunk)
        if full and not last:
            full, last = full - 1, chunk
        seconds = [Fraction(1, rate) for rate in self.queues]
        if not full:
            return last * sum(seconds, Fraction(0))
        return max(
            chunk * (sum(seconds[: q + 1], Fraction(0)) + (full - 1) * max(seconds[: q + 1]))
            + last * sum(seconds[q:], Fraction(0))
            for q in range(len(seconds))
        )


def travel_ns(
    machine: Machine, source: IntArray, destination: IntArray, tensor: IntArray, nbytes: IntArray
) -> IntArray:
    """Return the minimum travel time of each transfer."""
    routes, route_of = machine.distinct_routes(source, destination, tensor)
    travels = [Travel.along(machine, *route) for route in routes]
    different, row = distinct_rows(route_of, nbytes)
    return np.array([travels[k].ns(size) for k, size in different], np.int64)[row]
