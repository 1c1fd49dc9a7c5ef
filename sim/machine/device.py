"""One device, as the engine sees it, and what a cost model has to offer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from sim.base.arrays import FloatArray, IntArray
from sim.base.errors import InputError
from sim.base.options import need_whole
from sim.graph.graph import Graph

if TYPE_CHECKING:
    from sim.machine.task import Task


# ----------------------------------------------------------------------------------------------------------
# What parts of a device read that the engine does not: processors, launches, networks, cost models.


class Power(NamedTuple):
    """What a device draws while an op executes, and else, in mW."""

    busy: int = 0
    idle: int = 0


@dataclass(frozen=True)
class Details:
    """Numbers of a device that one of its parts reads; left out is the ideal.

    `devices.describe.fields` says what each is called in a description, and presets where their numbers come
    from.

    Attributes
    ----------
    preset : str
        The real device that it claims to be; empty: none, or its ideal.
    sms : int or None
        Streaming multiprocessors in use; None: not given.
    dram_bytes_per_s : int or None
        Memory bandwidth that concurrent kernels share; None: they do not.
    partition_sms, partition_of : tuple of int
        SMs of each partition, and the partition of each stream (CUDA's green contexts); empty: one of all.
    stream_priorities : tuple of int
        Of each stream, lower first, 0 for those that are not there.
    max_resident : int
        Kernels resident at once (CUDA C++ Programming Guide, concurrent kernels: 128 from 7.0 on).
    blocks_per_sm : int
        Blocks of a kernel that fit on one SM.
    legacy_stream : bool
        Whether the first stream is CUDA's legacy default stream.
    graph_launch_ns, graph_gap_ns : int or None
        What launching a CUDA graph costs, and the gap between two of its kernels; None: as without one.
    event_record_ns, event_wait_ns : int
        What recording an event, and making a stream wait for one, cost the host.
    copy_engines : int or None
        1: one transfer at a time; 2: one in each direction; None: no limit.
    virtual_devices : mapping of str to int
        Parts of the memory by name, in bytes.
    units : devices.cost.npu_units.Units or None
        Which ops run on which unit of an NPU's core.
    queues_per_core : int
        Streams of one core of an NPU.
    default_dtype : str
        Data type of ops that name none.
    oversubscription_cost : Fraction
        What each thread per core beyond the first adds to the time of all ops.
    intra_op_pool : int or None
        Threads that all ops of a CPU that run at once share; None: each op has its own.
    corun_slowdown, corun_exempt_slowdown : tuple of number
        Factors by which 1, 2, ... ops at once slow one another down, and those of a kind in `corun_exempt`.
    corun_exempt : frozenset of str
        Kinds of op that do not compete with others.
    wake_ns : int
        What it takes to wake a worker that sleeps.
    power : Power or None
        What the device draws; None: it is not known, and counts as nothing.
    """

    preset: str = ""
    sms: int | None = None
    dram_bytes_per_s: int | None = None
    partition_sms: tuple[int, ...] = ()
    partition_of: tuple[int, ...] = ()
    stream_priorities: tuple[int, ...] = ()
    max_resident: int = 128
    blocks_per_sm: int = 1
    legacy_stream: bool = False
    graph_launch_ns: int | None = None
    graph_gap_ns: int | None = None
    event_record_ns: int = 0
    event_wait_ns: int = 0
    copy_engines: int | None = None
    virtual_devices: Mapping[str, int] = field(default_factory=dict)
    units: Any = None
    queues_per_core: int = 1
    default_dtype: str = "fp32"
    oversubscription_cost: Fraction = Fraction(0)
    intra_op_pool: int | None = None
    corun_slowdown: tuple[float, ...] = (1,)
    corun_exempt_slowdown: tuple[float, ...] = (1,)
    corun_exempt: frozenset[str] = frozenset()
    wake_ns: int = 0
    power: Power | None = None


# ----------------------------------------------------------------------------------------------------------
# What the tasks of one device share.

WAIT: Final = -1
"""`Processor.start`: not now; the engine asks again when a task of the device ends."""

MANAGED: Final = -2
"""`Processor.start`: begun; the processor itself calls `Context.finish` when it is over."""


class Processor(Protocol):
    """What the tasks of one device share: cores, SMs, memory bandwidth.

    A collective of a communicator takes no time by itself (`Context.duration_of`), and may hold what it needs
    until `end`: its communicator ends it. For one that is `MANAGED`, say `Context.started`, not `finish`.
    """

    def start(self, task: Task) -> int:
        """Begin `task` and return how many ns it takes, or `WAIT`, or `MANAGED`.

        ``task.start_ns`` is now. A processor that takes a task but begins it later puts down when; where it
        does not know yet, it says `Context.started` at that instant.
        """

    @property
    def end(self) -> Callable[[Task], None] | None:
        """``end(task)``: `task` is over, release what it held. None: they hold nothing, and none waits."""


# ----------------------------------------------------------------------------------------------------------


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
        disturb one another, in this run or in none. If it says ``counts_cores``, ops occupy as many as they
        ask for, and take their durations once they have them.
    pageable : bool
        Of a CPU: its memory may be paged out, so that a host thread makes every copy to and from a device
        that is launched on (`sim.job.transfers`).
    staging_bytes_per_s : int or None
        How fast such a copy passes through the driver's buffers; None is no limit.
    kinds : frozenset of str or None
        Kinds of op it can run; None is all.
    least_ns : callable or None
        ``least_ns(device, job, duration_ns, runs)`` returns a lower bound, in ns, of the time in which any
        schedule gets through the work of the device, where op k takes ``duration_ns[k]`` alone and runs
        ``runs[k]`` times, from what its `processor` shares (`sim.explain.bounds`). None: no bound of its
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
    processor: Callable[[Device, Any], Processor | None] | None = None
    pageable: bool = False
    staging_bytes_per_s: int | None = None
    kinds: frozenset[str] | None = None
    least_ns: Callable[..., int] | None = None
    for_streams: Callable[[Device, int], Device] | None = None
    with_streams: Callable[[Device, int], Device] | None = None
    for_processes: Callable[[Device, int], Device] | None = None
    details: Details = field(default_factory=Details)

    @property
    def counts_cores(self) -> bool:
        """Whether ops occupy as many cores as they ask for."""
        return getattr(self.processor, "counts_cores", False)

    @property
    def keeps_durations(self) -> bool:
        """Whether an op, once it runs, takes as long as by itself, whatever runs beside it."""
        return self.processor is None or self.counts_cores

    def __post_init__(self) -> None:
        """Refuse numbers that mean nothing."""
        if self.workers < 0 or self.streams < 1 or (self.queue_depth is not None and self.queue_depth < 1):
            raise InputError(
                f"device {self.name!r}: workers must be >= 0, streams and queue_depth >= 1; found "
                f"workers={self.workers}, streams={self.streams}, queue_depth={self.queue_depth}"
            )
        need_whole(
            f"device {self.name!r}",
            issue_ns=self.issue_ns,
            launch_latency_ns=self.launch_latency_ns,
            gap_ns=self.gap_ns,
            event_ns=self.event_ns,
            cores=self.cores,
            workers=self.workers,
            streams=self.streams,
            memory_bytes=self.memory_bytes or 0,
        )
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

    def spread(self, graph: Graph, device: Device) -> FloatArray:
        """Return how sure each duration is: half its 10-90 % interval, as a logarithm; NaN: it is not said.

        In eight of ten cases an op takes between ``exp(-spread)`` and ``exp(spread)`` times what
        `durations_ns` says.
        """
        return np.full(len(graph), np.nan)

    def roofs(self, graph: Graph, device: Device) -> Roofs:
        """Return the peaks of the hardware, where the model has them: what a roofline is drawn with."""
        return Roofs(np.full(len(graph), np.nan), math.nan)
