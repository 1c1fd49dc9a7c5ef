"""What parts of a device read that the engine does not: processors, launches, networks, cost models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

__all__ = ["Details"]


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
    fitted_grids : bool
        Whether a matrix product that gives no grid has the one of the fitted cost model.
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
    """

    preset: str = ""
    sms: int | None = None
    dram_bytes_per_s: int | None = None
    partition_sms: tuple[int, ...] = ()
    partition_of: tuple[int, ...] = ()
    stream_priorities: tuple[int, ...] = ()
    max_resident: int = 128
    blocks_per_sm: int = 1
    fitted_grids: bool = True
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
