"""Choice of the processor for a GPU's kernels: the simplest one that supports what is asked for.

::

    sharing: none                            none: kernels do not slow one another
    stream priorities, too many streams,
    collectives that hold SMs                `SharedSMs`: followed from event to event
    sharing: sm                              `LeftoverSMs`: all is known when a kernel arrives
    sharing: sm+dram                         that too, if the bandwidth suffices for all concurrent kernels

It is known before time 0 to suffice if no kernel draws more than its share: if the number of SMs times the
largest bandwidth of any load is at most the DRAM bandwidth. This holds if all kernels fill the device, as
those without a grid do: alone, none can have drawn more than there is
(`devices.kernel_demand.demand`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np

from devices.cores import TimeShare
from devices.fair_sharing import EqualShare
from devices.kernel_demand import GROUPS, Demand, demands, held_sms, sms_in_use
from devices.shared_sms import SharedSMs
from sim.base.arrays import IntArray
from sim.job.context import Context
from sim.job.job import Job
from sim.kernel.columns import SharedSms
from sim.machine.device import Details, Device, Processor
from sim.machine.task import Task
from sim.record.record import Wait

# ----------------------------------------------------------------------------------------------------------
# Leftover dispatch of SMs if nothing can change a kernel's future: all is known at its arrival.
#
# Without priorities and without competition for bandwidth, kernels get SMs strictly in order of arrival and
# never lose them. So later arrivals cannot affect a kernel, and its whole course follows, at its arrival,
# from the times at which the SMs become free::
#
#     4 SMs, 6 loads of 10 ns            SMs come free before    at 0: 2,  at 15: 2
#                                        loads are dispatched    at 0: 2,  at 10: 2,  at 15: 2
#     SM 0  [ load 0 ][ load 2 ]         SMs come free after     at 20: 2,  at 25: 2
#     SM 1  [ load 1 ][ load 3 ]
#     SM 2  ...............[ load 4 ]
#     SM 3  ...............[ load 5 ]
#
# The only event needed is the kernel's end, and most kernels, which fill the device, take a handful of
# operations. `devices.shared_sms.SharedSMs` is the general case, event by event; where both apply
# they agree to the nanosecond (a test compares them).
#
# Backlogged streams of odd kernels would eventually split the SMs into groups of one, each with its own
# instant. At most `GROUPS` instants are kept: the two nearest are merged, at their mean weighted by SMs
# (rounded up to a whole ns), so that no SM time is gained or lost.

Instants = list[tuple[int, int]]
"""(time in ns, number of SMs that become free then), earliest first."""


def course(free: Instants, need: Demand, duration_ns: int, now_ns: int) -> tuple[int, int, Instants]:
    """Return start and end of a kernel that arrives now, and when the SMs become free after it.

    Parameters
    ----------
    free : list of (int, int)
        Times in ns with the number of SMs that become free, earliest first.
    need : Demand
    duration_ns : int
        Duration of the kernel alone; positive.
    now_ns : int

    Examples
    --------
    Two kernels of 6 loads on 4 SMs, 2 waves of 10 ns each: the second begins in the tail of the first.

    >>> from devices.kernel_demand import Demand
    >>> course([(0, 4)], Demand(6, 2, 0), 20, 0)
    (0, 20, [(10, 2), (20, 2)])
    >>> course([(10, 2), (20, 2)], Demand(6, 2, 0), 20, 0)
    (10, 30, [(30, 4)])
    """
    start_ns, sms = free[0]
    if len(free) > 1:
        if free[-1][0] > now_ns:
            return _stagger(free, need, duration_ns, now_ns)
        sms = sum([count for _, count in free])
    # All SMs become free at one instant.
    if start_ns < now_ns:
        start_ns = now_ns
    loads, waves, length = need.lasting(duration_ns)
    rounds, remainder = divmod(loads, sms)
    last_ns = start_ns + -(-rounds * length // waves)  # the end of the last full round
    if not remainder:
        return start_ns, last_ns, [(last_ns, sms)]
    end_ns = start_ns + -(-(rounds + 1) * length // waves)
    if end_ns == last_ns:
        return start_ns, end_ns, [(end_ns, sms)]
    return start_ns, end_ns, [(last_ns, sms - remainder), (end_ns, remainder)]


def _stagger(free: Instants, need: Demand, duration_ns: int, now_ns: int) -> tuple[int, int, Instants]:
    """Return the course of a kernel that gets its SMs at different instants.

    SMs that become free early take one load after another; after the last instant at which SMs become free
    before all loads are dispatched, all of them dispatch in turns.
    """
    loads, waves, length = need.lasting(duration_ns)  # in units of 1 / waves ns
    begins = [((time if time > now_ns else now_ns) * waves, sms) for time, sms in free]
    for last in range(len(begins) - 1, -1, -1):
        switch_at = begins[last][0]
        remaining = loads
        turns = []  # first dispatches of SMs from `switch_at` on
        total = 0
        for begin, sms in begins[: last + 1]:
            rounds = (switch_at - begin + length - 1) // length
            remaining -= rounds * sms
            total += sms
            turns.append((begin + rounds * length, sms))
        if remaining > 0:
            break  # else all loads are dispatched before the last of these SMs become free
    turns.sort()
    full, remainder = divmod(remaining, total)
    after = free[last + 1 :]
    end = 0
    for turn, sms in turns:
        end_of_full = turn + full * length
        if remainder < sms:
            after.append((-(-end_of_full // waves), sms - remainder))
            if not remainder:
                end = max(end, end_of_full)
                continue
            sms = remainder
        remainder -= sms  # these SMs take one more load
        end = end_of_full + length
        after.append((-(-end // waves), sms))
    after.sort()
    return begins[0][0] // waves, -(-end // waves), _merge_instants(after)


def _merge_instants(instants: Instants) -> Instants:
    """Combine SMs that become free at the same instant, and merge the nearest if there are too many."""
    merged: Instants = []
    latest = -1
    for time, sms in instants:
        if time == latest:
            merged[-1] = (time, merged[-1][1] + sms)
        else:
            merged.append((time, sms))
            latest = time
    while len(merged) > GROUPS:
        gaps = [second[0] - first[0] for first, second in pairwise(merged)]
        i = gaps.index(min(gaps))
        (a, m), (b, n) = merged[i : i + 2]
        merged[i : i + 2] = [(-(-(a * m + b * n) // (m + n)), m + n)]
    return merged


def sms_in_columns(device: Device, by_op: Mapping[int, Demand]) -> SharedSms:
    """Return the SMs of a device and the demand of each op, as columns."""
    details = device.details
    numbers = np.array([demand[:2] for demand in by_op.values()], np.int64).reshape(-1, 2)
    return SharedSms(
        details.partition_sms or [sms_in_use(device)],
        details.partition_of or [0] * device.lanes,
        np.array(list(by_op), np.int64),
        numbers[:, 0],
        numbers[:, 1],
    )


class LeftoverSMs:
    """A `sim.machine.device.Processor` for GPUs whose kernels share SMs, all at one priority.

    Parameters
    ----------
    device : Device
        In its `details`: ``sms``, ``blocks_per_sm``, ``partition_sms`` and ``partition_of`` (see
        `devices.shared_sms.SharedSMs`). It has at most as many streams as resident kernels.
    context : Context
        The run.
    by_op : mapping of int to Demand, optional
        Op → its demand, if already known.

    Raises
    ------
    InputError
        If an op has an invalid attribute (see `devices.kernel_demand.demand`).
    """

    end = None  # known at the start: when its SMs become free

    def __init__(self, device: Device, context: Context, by_op: Mapping[int, Demand] | None = None) -> None:
        details = device.details
        machine = context.job.machine
        self._context = context
        self._first_stream = machine.first_stream[machine.device_index(device.name)]
        self._partition_of: list[int] = list(details.partition_of or [0] * device.lanes)
        self._free: list[Instants] = [[(0, sms)] for sms in details.partition_sms or [sms_in_use(device)]]
        self._demands = demands(device, context.job, None) if by_op is None else by_op

    @classmethod
    def columns(cls, device: Device, job: Job) -> SharedSms | str:
        """Return the shared SMs as columns, for the same rule in `sim.kernel`."""
        if cls is not LeftoverSMs:
            return f"{cls.__name__} is a processor of its own"
        return sms_in_columns(device, demands(device, job, None))

    def start(self, task: Task) -> int:
        """Return the time from now to the kernel's end, including any wait of its loads."""
        duration_ns = self._context.duration_of(task)
        if not duration_ns:
            return 0
        now_ns = self._context.now_ns
        partition = self._partition_of[task.stream - self._first_stream]
        free, need = self._free[partition], self._demands[task.op]
        start_ns, end_ns, self._free[partition] = course(free, need, duration_ns, now_ns)
        if start_ns > now_ns:
            task.start_ns = start_ns
            task.wait = Wait.RESOURCES
        return end_ns - now_ns


def processor_of(values: Mapping[str, Any], streams: int) -> Callable[[Device, Context], Processor]:
    """Return a factory of the processor of a GPU whose kernels share SMs.

    Parameters
    ----------
    values : mapping
        Its description, of which ``sharing``, ``stream_priorities`` and ``max_resident`` are used.
    streams : int

    Examples
    --------
    >>> processor_of({"sharing": "sm"}, 2)
    SimplestSms(dram=False)
    >>> processor_of({"sharing": "sm", "stream_priorities": [0, -1]}, 2).__name__
    'SharedSMs'
    """
    one_priority = len({*values.get("stream_priorities", ()), 0}) == 1
    if not one_priority or streams > values.get("max_resident", Details.max_resident):
        return SharedSMs
    return SimplestSms(dram=values["sharing"] == "sm+dram")


@dataclass(frozen=True)
class SimplestSms:
    """Factory of the processor of a GPU whose kernels share SMs at one priority, and maybe DRAM bandwidth."""

    dram: bool

    def __call__(self, device: Device, context: Context) -> LeftoverSMs | SharedSMs:
        """Return a `LeftoverSMs` if it supports all that the run needs, else a `SharedSMs`."""
        by_op, more = self._demands(device, context.job)
        return (SharedSMs if more else LeftoverSMs)(device, context, by_op)

    def columns(self, device: Device, job: Job) -> SharedSms | str:
        """Return the shared SMs as columns, if nothing else is shared."""
        by_op, more = self._demands(device, job)
        return f"{more} of {device.name}" if more else sms_in_columns(device, by_op)

    def _demands(self, device: Device, job: Job) -> tuple[Mapping[int, Demand], str]:
        """Return the demand of each op, and the feature that needs `SharedSMs`, if any."""
        sms, bandwidth = sms_in_use(device), device.details.dram_bytes_per_s
        by_op, more = demands(device, job, None), ""
        # Kernels that fill the device draw no more than their share, whatever runs together.
        if self.dram and any(kernel.loads < sms for kernel in by_op.values()):
            assert bandwidth is not None
            by_op = demands(device, job, bandwidth)
            if max(kernel.load_bytes_per_s for kernel in by_op.values()) * sms > bandwidth:
                more = "kernels share DRAM bandwidth"
        return by_op, "collectives hold SMs" if held_sms(device, job) else more


# ----------------------------------------------------------------------------------------------------------
# The least time that a GPU needs for all its kernels, whatever their order and streams.
#
#     SMs    ▇▇▇▇▇▇▇▇▇▇▇▇   sum of loads x block time / number of SMs
#     DRAM   ▇▇▇▇▇▇▇▇       sum of bytes / bandwidth
#
# A kernel that fills the device counts with its whole duration, which is never less than flops / peak or
# bytes / bandwidth of its op; one with few blocks counts with the fraction of the SMs that it takes.


def least_ns(device: Device, job: Job, duration_ns: IntArray, runs: IntArray) -> int:
    """Return a lower bound of the makespan in ns: the work of `device` / its capacity.

    Parameters
    ----------
    device : Device
        GPU whose kernels share SMs.
    job : Job
    duration_ns : array of int64
        Duration of each op alone on the device.
    runs : array of int64
        Number of runs of each op.
    """
    sms = sms_in_use(device)
    bandwidth = device.details.dram_bytes_per_s
    sm_ns, drawn = Fraction(0), Fraction(0)  # drawn: bytes * 10**9
    work: dict[int, int] = {}  # by waves: loads * ns, so that fractions are few
    traffic: dict[int, int] = {}
    for op, need in demands(device, job, bandwidth).items():
        loads, waves, length = need.lasting(int(duration_ns[op]))
        busy = loads * length * int(runs[op])
        work[waves] = work.get(waves, 0) + busy
        traffic[waves] = traffic.get(waves, 0) + busy * need.load_bytes_per_s
    for waves in work:
        sm_ns += Fraction(work[waves], waves)
        drawn += Fraction(traffic[waves], waves)
    return max(ceil(sm_ns / sms), ceil(drawn / bandwidth) if bandwidth else 0)


# ----------------------------------------------------------------------------------------------------------
# Independent processes take turns on a GPU: kernels of two processes never run at the same time.
#
#     process a    [ kernel of 30 us ═══════════ ]                     a GPU's time while both have kernels:
#     process b    [ kernel of 10 us ══ ]                              a b a b a b ... in slices
#                                       20                 40
#
# While n processes have kernels running, each has the GPU for 1/n of the time, however many kernels and
# streams it has. Slices are assumed short relative to kernels, so that all advance together, more slowly;
# the cost of switching is not modelled, nor the wait of short kernels for long slices.
#
# Source: NVIDIA, *Multi-Process Service*, "Volta MPS" and "Background": without MPS, kernels of different
# processes cannot run concurrently, and the GPU's time is sliced among the processes.


class TimeSlices(TimeShare):
    """A `sim.machine.device.Processor` whose time is divided equally among processes with running tasks.

    Parameters
    ----------
    device : Device
    context : Context
        The run, of a job with processes.
    """

    def __init__(self, device: Device, context: Context) -> None:
        process_of = context.job.process_of
        assert process_of is not None
        self._duration_of = context.duration_of
        self._process_of: list[int] = process_of.tolist()
        self._kernels: Counter[int] = Counter()  # per process with running kernels
        self._running = EqualShare(
            context, lambda n: Fraction(1, len(self._kernels)), context.finish, self._leave
        )

    def start(self, task: Task) -> int:
        """Start a task, which ends when its process has had its duration of time."""
        if self._duration_of(task):
            self._kernels[self._process_of[task.op]] += 1
        return super().start(task)

    def _leave(self, task: Task) -> None:
        process = self._process_of[task.op]
        self._kernels[process] -= 1
        if not self._kernels[process]:
            del self._kernels[process]


def time_sliced_least_ns(
    streams: int, device: Device, job: Job, duration_ns: IntArray, runs: IntArray
) -> int:
    """Return a lower bound of the makespan in ns: all work / the `streams` of one process.

    The other parameters are as in `sim.machine.device.Device`.
    """
    on_device = (job.device_of == job.machine.device_index(device.name)) & ~job.meets
    return -(-int(np.sum(duration_ns[on_device] * runs[on_device])) // streams)
