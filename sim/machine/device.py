"""One device, as the engine sees it, and the interface of cost models."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import numpy as np

from sim.base.arrays import FloatArray, IntArray
from sim.base.errors import InputError
from sim.base.options import need_names, need_types, need_whole
from sim.graph.graph import Graph

if TYPE_CHECKING:
    from sim.machine.task import Task


# ----------------------------------------------------------------------------------------------------------
# Settings that the engine does not read, only parts of a device: processors, launches, networks, cost models.


class Power(NamedTuple):
    """The power draw of a device, in mW, while an op executes and otherwise."""

    busy: int = 0
    idle: int = 0


@dataclass(frozen=True)
class Details:
    """Numbers of a device that one of its parts reads; the defaults describe an ideal device.

    `devices.describe.fields` gives the name of each in a description, and presets the sources of their
    numbers.

    Attributes
    ----------
    preset : str
        The real device that this one models; empty: none, or an idealised one.
    sms : int or None
        Streaming multiprocessors in use; None: not given.
    dram_bytes_per_s : int or None
        Memory bandwidth shared by concurrent kernels; None: it is not shared.
    partition_sms, partition_of : tuple of int
        SMs of each partition, and the partition of each stream (CUDA's green contexts); empty: no partitions.
    stream_priorities : tuple of int
        Priority of each stream, lower first; 0 for streams that are not listed.
    max_resident : int
        Kernels resident at once (CUDA C++ Programming Guide, concurrent kernels: 128 from 7.0 on).
    blocks_per_sm : int
        Blocks of a kernel that fit on one SM.
    legacy_stream : bool
        Whether the first stream is CUDA's legacy default stream.
    graph_launch_ns, graph_gap_ns : int or None
        The cost of launching a CUDA graph, and the gap between two of its kernels; None: as without a graph.
    event_record_ns, event_wait_ns : int
        The host's cost of recording an event, and of making a stream wait for one.
    copy_engines : int or None
        1: one transfer at a time; 2: one in each direction; None: no limit.
    virtual_devices : mapping of str to int
        Parts of the memory by name, in bytes.
    units : devices.cost.cost_models.Units or None
        The assignment of ops to units of an NPU's core.
    queues_per_core : int
        Number of streams per NPU core.
    default_dtype : str
        Data type of ops that name none.
    oversubscription_cost : Fraction
        Increase in the time of all ops for each thread per core beyond the first.
    intra_op_pool : int or None
        Number of threads shared by all ops that run at once on a CPU; None: each op has its own.
    corun_slowdown, corun_exempt_slowdown : tuple of number
        Factors by which 1, 2, ... concurrent ops slow one another down; the second, for `corun_exempt` kinds.
    corun_exempt : frozenset of str
        Kinds of op that do not compete with others.
    wake_ns : int
        Time to wake a sleeping worker.
    power : Power or None
        The power draw of the device; None: unknown, and counted as 0.
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

    def __post_init__(self) -> None:
        """Raise on invalid numbers."""
        needed = "event_record_ns event_wait_ns wake_ns max_resident blocks_per_sm queues_per_core"
        optional = "sms dram_bytes_per_s copy_engines graph_launch_ns graph_gap_ns intra_op_pool"
        need_whole(self, "details", needed, optional)
        need_types(self, "details", virtual_devices=Mapping)
        need_names(self.virtual_devices, "details: virtual_devices")


# ----------------------------------------------------------------------------------------------------------
# What the tasks of a device share.

WAIT: Final = -1
"""Result of `Processor.start`: not now; the engine asks again when a task of the device ends."""

MANAGED: Final = -2
"""Result of `Processor.start`: begun; the processor itself calls `Context.finish` at the end."""


class Processor(Protocol):
    """A resource shared by the tasks of one device: cores, SMs, memory bandwidth.

    A collective of a communicator takes no time by itself (`Context.duration_of`), but may hold resources
    until `end`: its communicator ends it. For a `MANAGED` one, call `Context.started`, not `finish`.
    """

    def start(self, task: Task) -> int:
        """Begin `task` and return its duration in ns, or `WAIT`, or `MANAGED`.

        ``task.start_ns`` is now. A processor that accepts a task but begins it later sets the time; if the
        time is not known yet, it calls `Context.started` at that instant.
        """

    @property
    def end(self) -> Callable[[Task], None] | None:
        """``end(task)``: `task` is over, release what it held. None: tasks hold nothing, and none waits."""


# ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Device:
    """A CPU, GPU or NPU as the engine sees it. The defaults describe an ideal device.

    Attributes
    ----------
    name, kind : str
        ``"gpu0"``; ``"cpu"``, ``"gpu"`` or ``"npu"`` (any word will do: placement compares it).
    workers : int
        Threads that issue and execute (a CPU). 0: ops are launched on streams by a host.
    streams : int
        Queues whose tasks start in order; one task of a stream runs at a time.
    issue_ns, issue_ns_by_kind : int, mapping of str to int
        Cost of issuing one op to the issuer; per kind of op where it differs. Switches, merges and other
        control flow cost a host that launches ops nothing, unless their kind is named.
    launch_latency_ns : int
        Time from being put on a stream to the earliest start.
    gap_ns : int
        Minimum time between the end of a task and the start of the next one on the stream; none behind a
        task that launches no kernel (`sim.graph.views.launches_nothing`).
    event_ns : int
        Time from the end of a task to the earliest start of a task on another stream that waits for it.
    queue_depth : int or None
        Maximum number of outstanding launches on the device before the issuer blocks.
    cores, cores_per_op : int
        CPU cores, and how many of them one op occupies (0 cores: not limited).
    memory_bytes : int or None
        Capacity; None is unlimited.
    cost : CostModel or None
        Gives the durations of ops without an explicit one.
    processor : callable or None
        ``processor(device, context)``, with a `sim.job.context.Context`, returns the `Processor` of a run if
        tasks of the device share something; None if its streams do not disturb one another, in this run or
        in any. If it has ``counts_cores``, ops occupy as many cores as they ask for, and take their usual
        durations once they have them.
    pageable : bool
        For a CPU: whether its memory may be paged out, so that a host thread makes every copy to and from a
        device with launched ops (`sim.job.transfers`).
    staging_bytes_per_s : int or None
        Bandwidth of such a copy through the driver's buffers; None is no limit.
    kinds : frozenset of str or None
        Kinds of op it can run; None is all.
    least_ns : callable or None
        ``least_ns(device, job, duration_ns, runs)`` returns a lower bound, in ns, on the time in which any
        schedule completes the work of the device, from what its `processor` shares (`sim.explain.bounds`).
        Op k takes ``duration_ns[k]`` alone and runs ``runs[k]`` times. None: the device has no bound of its
        own.
    for_streams : callable or None
        ``for_streams(device, n)`` returns the device with n streams, if its description does not give their
        number: it then has as many as are assigned, as a GPU has as many as a program creates. None: it has
        `streams`.
    with_streams : callable or None
        ``with_streams(device, n)`` returns the device with n streams whatever its description says, for
        what-ifs. None: nothing else about it depends on their number.
    for_processes : callable or None
        ``for_processes(device, n)`` returns the device as seen by n mutually unaware processes, with the
        streams of all of them, one process after another. None: the processes share its streams.
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
        """Whether a running op takes as long as it would alone, whatever runs beside it."""
        return self.processor is None or self.counts_cores

    def __post_init__(self) -> None:
        """Raise on invalid numbers and types."""
        owner, numbers = f"device {self.name!r}", "issue_ns launch_latency_ns gap_ns event_ns cores workers"
        need_whole(self, owner, numbers, optional="memory_bytes")
        need_whole(self, owner, "streams cores_per_op", optional="queue_depth staging_bytes_per_s", least=1)
        need_types(self, owner, name=str, kind=str, details=Details, kinds=(Set, type(None)), pageable=bool)
        by_kind = self.issue_ns_by_kind
        costs = by_kind.values() if isinstance(by_kind, Mapping) else [None]
        if not all(isinstance(ns, int | float | np.integer) and ns >= 0 and ns % 1 == 0 for ns in costs):
            raise InputError(f"{owner}: issue_ns_by_kind should be a mapping to whole ns, not {by_kind!r}")
        need_names(by_kind, f"{owner}: issue_ns_by_kind")
        need_names(self.kinds or (), f"{owner}: kinds")
        if self.cost is not None and not isinstance(self.cost, CostModel):
            raise InputError(
                f"{owner}: its cost model, a {type(self.cost).__name__}, should extend "
                "sim.machine.device.CostModel"
            )
        if self.cores and self.cores_per_op > self.cores:
            raise InputError(f"{owner}: an op takes {self.cores_per_op} cores of {self.cores}")

    @property
    def lanes(self) -> int:
        """Number of lanes in the trace: workers of a CPU, streams of anything else."""
        return self.workers or self.streams


class Roofs(NamedTuple):
    """Limits that no op of a graph can exceed on a device.

    Attributes
    ----------
    flop_per_s : array of float, one entry per op
        Peak for the op's data type; NaN: unknown.
    bytes_per_s : float
        Memory bandwidth; NaN: unknown.
    """

    flop_per_s: FloatArray
    bytes_per_s: float


class CostModel:
    """How long ops take on a device: subclass it and override `durations_ns`.

    Attributes
    ----------
    by_name : bool
        Whether costs may differ between devices that differ only in name. A model that says no is evaluated
        once for all such devices.
    """

    by_name: bool = True

    @property
    def knows_blocks(self) -> bool:
        """Whether the model ever gives the number of thread blocks of an op."""
        return type(self).blocks is not CostModel.blocks

    def durations_ns(self, graph: Graph, device: Device) -> IntArray:
        """Return one duration per op in ns; -1 where the model does not know the op."""
        raise InputError(f"{type(self).__name__} must define durations_ns(graph, device)")

    def why_not(self, graph: Graph, op: int, device: Device) -> str | None:
        """Return why an op that the model does not know cannot run there, in words; None: nothing to add."""
        return None

    def blocks(self, graph: Graph, device: Device) -> IntArray:
        """Return the number of thread blocks of each op; -1 where the model does not say."""
        return np.full(len(graph), -1)

    def spread(self, graph: Graph, device: Device) -> FloatArray:
        """Return the uncertainty of each duration: half its 10-90 % interval, as a logarithm; NaN: unknown.

        In eight of ten cases an op takes between ``exp(-spread)`` and ``exp(spread)`` times its
        `durations_ns`.
        """
        return np.full(len(graph), np.nan)

    def roofs(self, graph: Graph, device: Device) -> Roofs:
        """Return the peaks of the hardware for a roofline, as far as the model has them."""
        return Roofs(np.full(len(graph), np.nan), math.nan)
