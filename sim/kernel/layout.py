"""Where the transfers of a job go, as the columns that the kernel's network runs over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, runtime_checkable

from sim.base.arrays import IntArray

if TYPE_CHECKING:
    from sim.job.job import Job
    from sim.job.transfers import Flow
    from sim.machine.device import Device


NEVER: Final = (1 << 62) - 1
"""Later than any instant."""

LARGEST: Final = 1 << 60
"""Work, bandwidths and spans of time stay below it."""


class RouteColumns(NamedTuple):
    """Where transfers go, in columns. A *way* is what transfers between the same two devices have in common.

    Attributes
    ----------
    way : sequence of int
        Of each move (a transfer of the graph): which way it takes.
    work : sequence of int
        What each move asks of shared links, in units of work; 0 if it is alone or has nothing to send.
    alone_ns : sequence of int
        How long each move takes if it does not use shared links, the latency included.
    latency_ns : sequence of int
        Of each way.
    held_first, held : sequences of int
        Way w holds the keys ``held[held_first[w]:held_first[w + 1]]`` (serial links, copy engines).
    route : sequence of int
        The route over shared links of each way, -1 if it is alone.
    first, links : sequences of int
        Route r uses the shared links ``links[first[r]:first[r + 1]]``.
    capacity : sequence of int
        Units of work a ns of each shared link.
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
    """What makes the network of a run (`sim.Machine.network`), where the kernel can run that network too."""

    def columns(self, job: Job, flow: Flow) -> RouteColumns | str:
        """Return where the transfers of a job go, or in words why the kernel cannot count what they carry."""


# ----------------------------------------------------------------------------------------------------------
# What the tasks of a device share, in columns: what a processor tells the kernel of itself.


class SharedSms(NamedTuple):
    """Kernels get SMs in the order of their arrival, and nothing changes that afterwards.

    Attributes
    ----------
    sms : sequence of int
        How many each partition has.
    partition_of : sequence of int
        Partition of each of the device's streams.
    op, loads, waves : arrays of int64
        Ops of the device; the SMs that each fills, at once or one after another, and its waves on all SMs; 0
        waves: loads of 1 ns fill so many SMs for as long as the op takes.
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
        How many there are.
    op, need : arrays of int64
        Ops of the device, and how many each takes.
    """

    cores: int
    op: IntArray
    need: IntArray


@runtime_checkable
class ProcessorInColumns(Protocol):
    """What makes the processor of a device (`sim.Device.processor`), where the kernel can do without it."""

    def columns(self, device: Device, job: Job) -> SharedSms | SharedCores | str:
        """Return what the device's tasks share, or in words why the kernel cannot do that."""
