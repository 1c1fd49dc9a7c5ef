"""One device, as the engine sees it, and what a cost model has to offer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sim.graph.graph import Graph
from sim.machine.device_details import Details
from sim.machine.processor import Processor
from sim.words.arrays import FloatArray, IntArray
from sim.words.errors import InputError

__all__ = ["CostModel", "Device", "Roofs"]


@dataclass(frozen=True)
class Device:
    """A CPU, GPU or NPU as the engine sees it. What is left out is the ideal.

    Attributes
    ----------
    name, kind : str
        ``"gpu0"``; ``"cpu"``, ``"gpu"`` or ``"npu"`` (any word will do: placement compares it).
    workers : int
        Threads that issue and execute (a CPU). 0: ops are launched on streams by a host.
    streams : int
        Queues whose tasks start in order; one task of a stream runs at a time.
    issue_ns, issue_ns_by_kind : int, mapping of str to int
        What issuing one op costs the issuer; per kind of op where it differs.
    launch_latency_ns : int
        From being put on a stream to the earliest start.
    gap_ns : int
        Least time between the end of a task and the start of the next one of the stream.
    event_ns : int
        From the end of a task to the earliest start of one on another stream that waits for it.
    queue_depth : int or None
        Launches outstanding on the device before the issuer blocks.
    cores, cores_per_op : int
        CPU cores, and how many of them one op occupies (0 cores: not limited).
    memory_bytes : int or None
        Capacity; None is unlimited.
    cost : CostModel or None
        Asked for ops without explicit duration.
    processor : callable or None
        ``processor(device, context)`` returns the `Processor` of a run, which has a
        `sim.job.context.Context`, when tasks of the device share something; None when its streams do not
        disturb one another.
    pageable : bool
        Of a CPU: its memory may be paged out, so that a host thread makes every copy to and from a device
        that is launched on (`sim.job.pageable`).
    staging_bytes_per_s : int or None
        How fast such a copy passes through the driver's buffers; None is no limit.
    supports : frozenset of str or None
        Kinds of op it can run; None is all.
    least_ns : callable or None
        ``least_ns(device, job, duration_ns, runs)`` returns a lower bound, in ns, of the time in which any
        schedule gets through the work of the device, where op k takes ``duration_ns[k]`` alone and runs
        ``runs[k]`` times, from what its `processor` shares (`sim.analysis.bounds`). None: no bound of its
        own.
    for_streams : callable or None
        ``for_streams(device, n)`` returns the device with n streams, where its description does not say how
        many it has: then it has as many as are assigned, as a GPU has as many as a program makes. None: it
        has `streams`.
    with_streams : callable or None
        ``with_streams(device, n)`` returns the device with n streams whatever its description says, as
        what-ifs ask. None: nothing else of it depends on how many there are.
    for_processes : callable or None
        ``for_processes(device, n)`` returns the device as n processes have it that do not know of one
        another, with the streams of all of them, one process after another. None: they have its streams
        together.
    details : Details
        Everything else that a processor, network or cost model reads (SMs, copy engines, ...).
    """

    name: str
    kind: str = "gpu"
    workers: int = 0
    streams: int = 1
    issue_ns: int = 0
    issue_ns_by_kind: Mapping[str, int] = field(default_factory=dict)
    launch_latency_ns: int = 0
    gap_ns: int = 0
    event_ns: int = 0
    queue_depth: int | None = None
    cores: int = 0
    cores_per_op: int = 1
    memory_bytes: int | None = None
    cost: CostModel | None = None
    processor: Callable[[Device, Any], Processor] | None = None
    pageable: bool = False
    staging_bytes_per_s: int | None = None
    supports: frozenset[str] | None = None
    least_ns: Callable[..., int] | None = None
    for_streams: Callable[[Device, int], Device] | None = None
    with_streams: Callable[[Device, int], Device] | None = None
    for_processes: Callable[[Device, int], Device] | None = None
    details: Details = field(default_factory=Details)

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if self.workers < 0 or self.streams < 1 or (self.queue_depth is not None and self.queue_depth < 1):
            raise InputError(
                f"device {self.name!r}: workers must be >= 0, streams and queue_depth >= 1; found "
                f"workers={self.workers}, streams={self.streams}, queue_depth={self.queue_depth}"
            )
        if min(self.issue_ns, self.launch_latency_ns, self.gap_ns, self.event_ns, self.cores) < 0:
            raise InputError(f"device {self.name!r}: a time or count is negative")
        if self.cost is not None and not isinstance(self.cost, CostModel):
            raise InputError(
                f"device {self.name!r}: its cost model, a {type(self.cost).__name__}, should extend "
                "sim.machine.device.CostModel"
            )
        if self.cores and self.cores_per_op > self.cores:
            raise InputError(
                f"device {self.name!r}: an op takes {self.cores_per_op} cores but there are {self.cores}"
            )

    @property
    def lanes(self) -> int:
        """Number of lanes in the trace: workers of a CPU, streams of anything else."""
        return self.workers or self.streams


class Roofs(NamedTuple):
    """What no op of a graph can exceed on a device.

    Attributes
    ----------
    flop_per_s : array of float, one entry per op
        The peak of its data type; NaN: none is known.
    bytes_per_s : float
        Of the memory; NaN: none is known.
    """

    flop_per_s: FloatArray
    bytes_per_s: float


class CostModel:
    """How long ops take on a device: extend it and override `durations_ns`.

    Attributes
    ----------
    by_name : bool
        Whether devices that differ in nothing but their names may cost differently. One that says no is asked
        once for all of them.
    """

    by_name: bool = True

    @property
    def knows_blocks(self) -> bool:
        """Whether it ever says in how many thread blocks an op is computed."""
        return type(self).blocks is not CostModel.blocks

    def durations_ns(self, graph: Graph, device: Device) -> IntArray:
        """Return one duration per op in ns; -1 where the model does not know the op."""
        raise InputError(f"{type(self).__name__} must define durations_ns(graph, device)")

    def why_not(self, graph: Graph, op: int, device: Device) -> str | None:
        """Return in words why an op that the model does not know cannot run there; None: nothing to add."""
        return None

    def blocks(self, graph: Graph, device: Device) -> IntArray:
        """Return in how many thread blocks each op is computed; -1 where the model does not say."""
        return np.full(len(graph), -1)

    def roofs(self, graph: Graph, device: Device) -> Roofs:
        """Return the peaks of the hardware, where the model has them: what a roofline is drawn with."""
        return Roofs(np.full(len(graph), np.nan), math.nan)
