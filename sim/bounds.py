"""Lower bounds: no schedule of this job, under any policy, ends earlier.

Four reasons why a job takes time, each a bound of its own::

    critical path   the longest chain of ops and transfers        a ──► b ──► c
    device          its work, spread over all its lanes           ▇▇▇▇ / 2 lanes
    stream, host    what must go one after another                ▇ ▇ ▇ ▇
    link            its bytes at full bandwidth

They hold for the job as it was placed and assigned to streams; another placement has other bounds.
List scheduling is never worse than (2 - 1/m) times the greatest of the first two on m equal lanes
(Graham, "Bounds on multiprocessing timing anomalies", SIAM J. Appl. Math. 17, 1969).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sim.critical_path import critical_path_ns, crossing_reads, longest_chain_ns, transfer_ns
from sim.graph import IntArray
from sim.job import Job
from sim.trace import Trace
from sim.units import NS_PER_S

__all__ = ["Bounds", "bounds", "cores_of_ops", "critical_path_ns", "issue_costs_ns", "lower_bound_ns"]


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of the makespan, in ns.

    Attributes
    ----------
    critical_path_ns : int
        Longest chain of durations and transfers, over all iterations; no overheads.
    device_ns, stream_ns, issuer_ns, link_ns : mapping of str to int
        By name of the device, stream, host thread group and link. Overheads that no policy can
        avoid (issue costs, launch latency, gaps) count here.
    """

    critical_path_ns: int
    device_ns: Mapping[str, int]
    stream_ns: Mapping[str, int]
    issuer_ns: Mapping[str, int]
    link_ns: Mapping[str, int]

    @property
    def _all(self) -> dict[str, int]:
        named = {"critical path": self.critical_path_ns}
        for what in ("device", "stream", "issuer", "link"):
            named.update({f"{what} {name}": ns for name, ns in getattr(self, f"{what}_ns").items()})
        return named

    @property
    def lower_bound_ns(self) -> int:
        """The greatest of them."""
        return max(self._all.values())

    @property
    def binding(self) -> str:
        """What gives the greatest: ``"critical path"``, ``"device gpu0"``, ``"link nvlink"``, ..."""
        named = self._all
        return max(named, key=named.__getitem__)


def lower_bound_ns(what: Job | Trace) -> int:
    """Return the greatest lower bound of the makespan of a job, or of the job that a trace ran.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine
    >>> from sim.job import make_job
    >>> b = GraphBuilder("three")
    >>> for name in "abc":
    ...     _ = b.op(name, duration_ns=10)
    >>> lower_bound_ns(make_job(b.build(), Machine((Device("cpu0", "cpu", workers=2),))))
    15
    """
    return bounds(what.job if isinstance(what, Trace) else what).lower_bound_ns


def bounds(job: Job, duration_ns: IntArray | None = None) -> Bounds:
    """Return all lower bounds of a job.

    Parameters
    ----------
    job : Job
    duration_ns : array of int64, optional
        One duration per op instead of the job's.
    """
    ns = job.duration_ns if duration_ns is None else duration_ns
    machine, cost = job.machine, issue_costs_ns(job)
    launched = np.array([d.workers == 0 for d in machine.devices])[job.device_of]
    return Bounds(
        critical_path_ns=longest_chain_ns(job, ns),
        device_ns=_devices(job, ns, cost),
        stream_ns=_streams(job, ns, cost) if launched.any() else {},
        issuer_ns=_hosts(job, ns, cost) if launched.any() else {},
        link_ns=_links(job),
    )


def issue_costs_ns(job: Job) -> IntArray:
    """Return what issuing each op costs its issuer, in ns.

    Parameters
    ----------
    job : Job

    Returns
    -------
    array of int64
        `Device.issue_ns_by_kind` of the op's kind where it is given, else `Device.issue_ns`.
    """
    table = np.array(
        [[d.issue_ns_by_kind.get(kind, d.issue_ns) for kind in job.graph.kinds] for d in job.machine.devices]
    )
    return table.reshape(len(job.machine.devices), -1)[job.device_of, job.graph.kind_code]


def cores_of_ops(job: Job) -> IntArray:
    """Return how many cores each op occupies: its attribute ``cores``, or its device's default."""
    cores = np.array([device.cores_per_op for device in job.machine.devices])[job.device_of]
    for op, attributes in job.graph.attributes.items():
        if "cores" in attributes:
            cores[op] = attributes["cores"]
    return cores


# -- work ---------------------------------------------------------------------------------------


def _devices(job: Job, ns: IntArray, cost: IntArray) -> dict[str, int]:
    """Bound each device by its work over its lanes, and over its cores.

    A worker pays for issuing with its own time, a stream does not.
    """
    out = {}
    cores = cores_of_ops(job)
    for d, device in enumerate(job.machine.devices):
        here = job.device_of == d
        work = int(ns[here].sum()) * job.iterations
        paid = int(cost[here].sum()) * job.iterations if device.workers else 0
        out[device.name] = -(-(work + paid) // device.lanes)
        if device.cores:
            core_ns = int((ns * cores)[here].sum()) * job.iterations
            out[device.name] = max(out[device.name], -(-core_ns // device.cores))
    return out


def _streams(job: Job, ns: IntArray, cost: IntArray) -> dict[str, int]:
    """Bound each stream by its first launch, its work and the gaps between its tasks."""
    out = {}
    first_lane = job.machine.first_stream
    for d, device in enumerate(job.machine.devices):
        if device.workers:
            continue
        here = job.device_of == d
        for stream in range(first_lane[d], first_lane[d + 1]):
            on = here & (job.stream_of == stream)
            count = int(on.sum()) * job.iterations
            if count:
                begin = int(cost[on].min()) + device.launch_latency_ns
                gaps = (count - 1) * device.gap_ns
                out[job.machine.stream_name(stream)] = begin + gaps + int(ns[on].sum()) * job.iterations
    return out


def _hosts(job: Job, ns: IntArray, cost: IntArray) -> dict[str, int]:
    """Bound each group of host threads by its issue costs and the shortest task after the last of them."""
    out = {}
    threads: dict[int, list[str]] = {}
    for issuer in job.machine.issuers():
        if not issuer.executes:
            threads.setdefault(issuer.group, []).append(issuer.name)
    launch = np.array([d.launch_latency_ns for d in job.machine.devices])[job.device_of]
    for group, names in threads.items():
        mine = job.group_of == group
        if mine.any():
            total = int(cost[mine].sum()) * job.iterations
            out[names[0]] = -(-total // len(names)) + int((launch + ns)[mine].min())
    return out


def _links(job: Job) -> dict[str, int]:
    """Bound each link by what must cross it.

    A serial link is held by one transfer at a time, latency included. On a shared one only the bytes
    add up, and the last of them comes a latency after it was sent.
    """
    machine, graph = job.machine, job.graph
    crossing, home = crossing_reads(job)
    n_devices = len(machine.devices)
    there = np.repeat(job.device_of, graph.inputs.counts())[crossing]
    moved = np.unique(graph.inputs.indices[crossing] * n_devices + there)
    tensor, there = np.divmod(moved, n_devices)
    facts = np.stack((home[tensor], there, graph.tensor_nbytes[tensor]), axis=1)
    held, nbytes = [0] * len(machine.links), [0] * len(machine.links)
    used: set[int] = set()
    unique, counts = np.unique(facts, axis=0, return_counts=True)
    for (source, destination, size), count in zip(unique.tolist(), counts.tolist(), strict=True):
        ns = transfer_ns(job, source, destination, size)
        route = machine.route(source, destination)
        used.update(route)
        for k in route:
            held[k] += ns * count * job.iterations
            nbytes[k] += size * count * job.iterations
    out = {}
    for k in sorted(used):
        link, rate = machine.links[k], machine.links[k].bandwidth_bytes_per_s
        flowing = 0 if rate is None else -(-nbytes[k] * NS_PER_S // rate)
        out[link.name] = held[k] if link.sharing == "serial" else link.latency_ns + flowing
    return out
