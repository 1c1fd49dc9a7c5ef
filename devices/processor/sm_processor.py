"""Which of the two processors the kernels of a GPU need: the simplest that does what is asked for.

::

    sharing: none                            none: kernels do not disturb one another
    stream priorities, too many streams,
    collectives that hold SMs                `SharedSMs`: followed from event to event
    sharing: sm                              `LeftoverSMs`: all is known when a kernel arrives
    sharing: sm+dram                         that too, where the bandwidth suffices for whatever runs together

Whether it suffices is known before time 0 if no kernel draws more than its part: if SMs times the most that
a load of any of them draws is no more than the bandwidth. So it is where all fill the device, as kernels do
that give no grid: alone, none can have drawn more than there is
(`devices.processor.kernel_demand.demand`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Any

import numpy as np

from devices.fair_sharing import Alarm, VirtualQueue
from devices.processor.kernel_demand import Demand, demands, held_sms, sms_in_use
from devices.processor.leftover import LeftoverSMs, sms_in_columns
from devices.processor.shared_sms import SharedSMs
from sim.base.arrays import IntArray
from sim.job.context import Context
from sim.job.job import Job
from sim.kernel.layout import SharedSms
from sim.machine.device import MANAGED, Details, Device, Processor
from sim.machine.task import Task


def processor_of(values: Mapping[str, Any], streams: int) -> Callable[[Device, Context], Processor] | None:
    """Return what makes the processor of a GPU, or None if its kernels share nothing.

    Parameters
    ----------
    values : mapping
        Its description: ``sharing``, ``stream_priorities`` and ``max_resident`` count.
    streams : int

    Examples
    --------
    >>> processor_of({"sharing": "sm"}, 2)
    SimplestSms(dram=False)
    >>> processor_of({"sharing": "sm", "stream_priorities": [0, -1]}, 2).__name__
    'SharedSMs'
    """
    sharing = values.get("sharing", "none")
    if sharing == "none":
        return None
    one_priority = len({*values.get("stream_priorities", ()), 0}) == 1
    if not one_priority or streams > values.get("max_resident", Details.max_resident):
        return SharedSMs
    return SimplestSms(dram=sharing == "sm+dram")


@dataclass(frozen=True)
class SimplestSms:
    """Makes the processor of a GPU whose kernels share SMs at one priority, and perhaps DRAM bandwidth."""

    dram: bool

    def __call__(self, device: Device, context: Context) -> LeftoverSMs | SharedSMs:
        """Return a `LeftoverSMs` where it can do all that the run asks for."""
        asked, more = self._asked(device, context.job)
        return (SharedSMs if more else LeftoverSMs)(device, context, asked)

    def columns(self, device: Device, job: Job) -> SharedSms | str:
        """Return the SMs that kernels share, if nothing else is shared."""
        asked, more = self._asked(device, job)
        return f"{more} of {device.name}" if more else sms_in_columns(device, asked)

    def _asked(self, device: Device, job: Job) -> tuple[Mapping[int, Demand], str]:
        """Return what each op asks for, and what only `SharedSMs` can do."""
        if not self.dram:
            asked, suffices = demands(device, job, None), True
        else:
            asked, suffices = _with_dram(device, job)
        if held_sms(device, job):
            return asked, "collectives hold SMs"
        return asked, "" if suffices else "kernels share DRAM bandwidth"


def _with_dram(device: Device, job: Job) -> tuple[dict[int, Demand], bool]:
    """Return what each op asks for, and whether the bandwidth suffices for whatever runs together."""
    sms, bandwidth = sms_in_use(device), device.details.dram_bytes_per_s
    assert bandwidth is not None
    asked = demands(device, job, None)
    if all(kernel.loads >= sms for kernel in asked.values()):  # none can draw more than its part
        return asked, True
    asked = demands(device, job, bandwidth)
    return asked, max(kernel.load_bytes_per_s for kernel in asked.values()) * sms <= bandwidth


# ----------------------------------------------------------------------------------------------------------
# The least time that a GPU needs for all its kernels, whatever their order and streams.
#
#     SMs    ▇▇▇▇▇▇▇▇▇▇▇▇   sum of loads x block time / number of SMs
#     DRAM   ▇▇▇▇▇▇▇▇       sum of bytes / bandwidth
#
# A kernel that fills the device counts with its whole duration, which is never less than flops / peak or
# bytes / bandwidth of its op; one of a few blocks counts with the part of the SMs that it takes.


def least_ns(device: Device, job: Job, duration_ns: IntArray, runs: IntArray) -> int:
    """Return a lower bound of the makespan, in ns: the work of `device` over what it can do at once.

    Parameters
    ----------
    device : Device
        Whose kernels share SMs.
    job : Job
    duration_ns : array of int64
        Of each op, alone on the device.
    runs : array of int64
        How often each op runs.
    """
    sms = sms_in_use(device)
    bandwidth = device.details.dram_bytes_per_s
    sm_ns, drawn = Fraction(0), Fraction(0)  # drawn: bytes * 10**9
    work: dict[int, int] = {}  # by waves: loads * ns, so that fractions are few
    traffic: dict[int, int] = {}
    for op, asked in demands(device, job, bandwidth).items():
        loads, waves, length = asked.lasting(int(duration_ns[op]))
        busy = loads * length * int(runs[op])
        work[waves] = work.get(waves, 0) + busy
        traffic[waves] = traffic.get(waves, 0) + busy * asked.load_bytes_per_s
    for waves in work:
        sm_ns += Fraction(work[waves], waves)
        drawn += Fraction(traffic[waves], waves)
    return max(ceil(sm_ns / sms), ceil(drawn / bandwidth) if bandwidth else 0)


# ----------------------------------------------------------------------------------------------------------
# Processes that do not know of one another take turns on a GPU: kernels of two never run at the same time.
#
#     process a    [ kernel of 30 us ═══════════ ]                     a GPU's time while both have kernels:
#     process b    [ kernel of 10 us ══ ]                              a b a b a b ... in slices
#                                       20                 40
#
# As long as n processes have kernels running, each has the GPU for the n-th part of the time, however many
# kernels and streams it has. Slices are taken to be short beside kernels, so that all advance at once and
# slowly; what switching costs is left out, and so is that long slices keep short kernels waiting.
#
# Source: NVIDIA, *Multi-Process Service*, "Volta MPS" and "Background": without MPS, kernels of different
# processes cannot run concurrently, and the GPU's time is sliced among the processes.


class TimeSlices:
    """A `sim.machine.device.Processor` whose time is divided among the processes that run something.

    Parameters
    ----------
    device : Device
    context : Context
        The run, of a job with processes.
    """

    def __init__(self, device: Device, context: Context) -> None:
        process_of = context.job.process_of
        assert process_of is not None
        self._context = context
        self._process_of: list[int] = process_of.tolist()
        self._running: Counter[int] = Counter()  # process → its kernels
        self._queue = VirtualQueue()
        self._alarm = Alarm(context, self._ring)

    def start(self, task: Task) -> int:
        """Begin a task; it ends when its process has had the time that it takes."""
        work_ns = self._context.duration_of(task)
        if not work_ns:
            return 0
        self._queue.advance(self._context.now_ns)
        self._queue.add(task, work_ns)
        self._running[self._process_of[task.op]] += 1
        self._predict()
        return MANAGED

    def end(self, task: Task) -> None:
        """Do nothing: a task that is over has left already."""

    def _predict(self) -> None:
        active = sum(count > 0 for count in self._running.values())
        if active:
            self._queue.set_speed(1, active)
            self._alarm.by(self._queue.next_end_ns())

    def _ring(self) -> None:
        self._queue.advance(self._context.now_ns)
        ended: list[Task] = self._queue.take_out_ended()
        for task in ended:
            self._running[self._process_of[task.op]] -= 1
        self._predict()
        for task in ended:
            self._context.finish(task)


def time_sliced_least_ns(
    streams: int, device: Device, job: Job, duration_ns: IntArray, runs: IntArray
) -> int:
    """Return a lower bound of the makespan, in ns: all work, over the `streams` of one process.

    The other parameters are as in `sim.machine.device.Device`.
    """
    here = (job.device_of == job.machine.device_index(device.name)) & ~job.meets
    return -(-int(np.sum(duration_ns[here] * runs[here])) // streams)
