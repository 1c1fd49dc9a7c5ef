"""The routes of a job's transfers, as the columns that the kernel's network runs over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable

from sim.base.arrays import IntArray

if TYPE_CHECKING:
    from sim.job.job import Job
    from sim.job.transfers import Flow
    from sim.machine.device import Device


NEVER: Final = (1 << 62) - 1
"""A time later than any instant."""

LARGEST: Final = 1 << 60
"""Upper limit, exclusive, of work, bandwidths and spans of time."""


class RouteColumns(NamedTuple):
    """Routes of transfers, in columns. A *way* is what transfers between the same two devices have in common.

    Attributes
    ----------
    way : sequence of int
        The way of each move (a transfer of the graph).
    work : sequence of int
        Demand of each move on shared links, in units of work; 0 if it is alone or has nothing to send.
    alone_ns : sequence of int
        Duration of each move if it does not use shared links, including the latency.
    latency_ns : sequence of int
        Latency of each way.
    held_first, held : sequences of int
        Way w holds the keys ``held[held_first[w]:held_first[w + 1]]`` (serial links, copy engines).
    route : sequence of int
        The route over shared links of each way, -1 if it is alone.
    first, links : sequences of int
        Route r uses the shared links ``links[first[r]:first[r + 1]]``.
    capacity : sequence of int
        Units of work per ns of each shared link.
    """

    way: Sequence[int] | IntArray
    work: Sequence[int] | IntArray
    alone_ns: Sequence[int] | IntArray
    latency_ns: Sequence[int]
    held_first: Sequence[int]
    held: Sequence[int]
    route: Sequence[int]
    first: Sequence[int]
    links: Sequence[int]
    capacity: Sequence[int]


@runtime_checkable
class InColumns(Protocol):
    """A factory for the network of a run (`sim.Machine.network`) that the kernel can run too."""

    def columns(self, job: Job, flow: Flow) -> RouteColumns | str:
        """Return the routes of a job's transfers, or in words why the kernel cannot simulate them."""


# ----------------------------------------------------------------------------------------------------------
# Shared resources of a device's tasks, in columns: the description that a processor gives to the kernel.


class SharedSms(NamedTuple):
    """Kernels get SMs in the order of their arrival, and nothing changes that afterwards.

    Attributes
    ----------
    sms : sequence of int
        Number of SMs of each partition.
    partition_of : sequence of int
        Partition of each of the device's streams.
    op, loads, waves : arrays of int64
        Ops of the device; the number of SMs that each fills, at once or in sequence, and its waves on all
        SMs; with 0 waves, loads of 1 ns fill that many SMs for the duration of the op.
    """

    sms: Sequence[int]
    partition_of: Sequence[int]
    op: IntArray
    loads: IntArray
    waves: IntArray


class SharedCores(NamedTuple):
    """Workers take cores from the start to the end of an op, first come, first served.

    Attributes
    ----------
    cores : int
        Number of cores.
    op, need : arrays of int64
        Ops of the device, and the number of cores that each takes.
    """

    cores: int
    op: IntArray
    need: IntArray


@runtime_checkable
class ProcessorInColumns(Protocol):
    """A factory for the processor of a device (`sim.Device.processor`) that the kernel can do without."""

    def columns(self, device: Device, job: Job) -> SharedSms | SharedCores | str:
        """Return the shared resource of the device's tasks, or in words why the kernel cannot simulate it."""
