"""What the tasks of a device share, in columns: what a processor tells the kernel of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from sim.words.arrays import IntArray

if TYPE_CHECKING:
    from sim.job.job import Job
    from sim.machine.device import Device

__all__ = ["ProcessorInColumns", "SharedCores", "SharedSms"]


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
