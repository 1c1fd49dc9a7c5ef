"""Leftover dispatch of SMs when nothing can change a kernel's future: all is known when it arrives.

Without priorities and without competition for bandwidth, kernels get SMs strictly in the order of their
arrival, and what is given is never taken back. So nothing that comes later can touch a kernel, and its whole
course follows, at its arrival, from when the SMs come free::

    4 SMs, 6 loads of 10 ns            SMs come free before    at 0: 2,  at 15: 2
                                       loads are dispatched    at 0: 2,  at 10: 2,  at 15: 2
    SM 0  [ load 0 ][ load 2 ]         SMs come free after     at 20: 2,  at 25: 2
    SM 1  [ load 1 ][ load 3 ]
    SM 2  ...............[ load 4 ]
    SM 3  ...............[ load 5 ]

No event is needed but the kernel's end, and most kernels, which fill the device, take a handful of
operations. `devices.processor.shared_sms.SharedSMs` is the general case, event by event; where both apply
they agree to the nanosecond (a test compares them).

Backlogged streams of odd kernels would in time splinter the SMs into groups of one, each with its own
instant. At most `GROUPS` instants are kept: the two nearest are merged, at their mean weighted by SMs (up to
the next whole ns), so that no SM time is won or lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from devices.processor.kernel_demand import GROUPS, Demand, demands, sms_in_use
from sim.job.context import Context
from sim.job.job import Job
from sim.kernel.layout import SharedSms
from sim.machine.device import Device
from sim.machine.task import Task
from sim.record.record import Wait

Instants = list[tuple[int, int]]
"""(time in ns, number of SMs that come free then), earliest first."""


def course(free: Instants, asked: Demand, duration_ns: int, now_ns: int) -> tuple[int, int, Instants]:
    """Return start and end of a kernel that arrives now, and when the SMs come free after it.

    Parameters
    ----------
    free : list of (int, int)
        When how many SMs come free, in ns; earliest first.
    asked : Demand
    duration_ns : int
        Positive: what the kernel takes alone.
    now_ns : int

    Examples
    --------
    Two kernels of 6 loads on 4 SMs, 2 waves of 10 ns each: the second begins in the tail of the first.

    >>> from devices.processor.kernel_demand import Demand
    >>> course([(0, 4)], Demand(6, 2, 0), 20, 0)
    (0, 20, [(10, 2), (20, 2)])
    >>> course([(10, 2), (20, 2)], Demand(6, 2, 0), 20, 0)
    (10, 30, [(30, 4)])
    """
    start_ns, sms = free[0]
    if len(free) > 1:
        if free[-1][0] > now_ns:
            return _staggered(free, asked, duration_ns, now_ns)
        sms = sum([count for _, count in free])
    # All SMs come free at one instant.
    if start_ns < now_ns:
        start_ns = now_ns
    loads, waves, length = asked.lasting(duration_ns)
    if loads == sms:  # it fills the device, as most kernels do
        end_ns = start_ns - (-length // waves)
        return start_ns, end_ns, [(end_ns, sms)]
    rounds, rest = divmod(loads, sms)
    last_ns = start_ns + -(-rounds * length // waves)  # the end of the last full round
    if not rest:
        return start_ns, last_ns, [(last_ns, sms)]
    end_ns = start_ns + -(-(rounds + 1) * length // waves)
    if end_ns == last_ns:
        return start_ns, end_ns, [(end_ns, sms)]
    return start_ns, end_ns, [(last_ns, sms - rest), (end_ns, rest)]


def _staggered(free: Instants, asked: Demand, duration_ns: int, now_ns: int) -> tuple[int, int, Instants]:
    """Return the course of a kernel that gets its SMs at different instants.

    SMs that come free before others take one load after the other; from the last instant on at which SMs
    come free before all is dispatched, all of them dispatch in turns.
    """
    loads, waves, length = asked.lasting(duration_ns)  # in units of 1 / waves ns
    begins = [((time if time > now_ns else now_ns) * waves, sms) for time, sms in free]
    for last in range(len(begins) - 1, -1, -1):
        at = begins[last][0]
        left = loads
        turns = []  # when SMs dispatch, from `at` on, for the first time
        total = 0
        for begin, sms in begins[: last + 1]:
            rounds = (at - begin + length - 1) // length
            left -= rounds * sms
            total += sms
            turns.append((begin + rounds * length, sms))
        if left > 0:
            break  # else all is dispatched before the last of these come free
    turns.sort()
    full, rest = divmod(left, total)
    after = free[last + 1 :]
    end = 0
    for turn, sms in turns:
        end_of_full = turn + full * length
        if rest < sms:
            after.append((-(-end_of_full // waves), sms - rest))
            if not rest:
                end = max(end, end_of_full)
                continue
            sms = rest
        rest -= sms  # these take one more
        end = end_of_full + length
        after.append((-(-end // waves), sms))
    after.sort()
    return begins[0][0] // waves, -(-end // waves), _few(after)


def _few(instants: Instants) -> Instants:
    """Add up what comes free at the same instant, and merge the nearest when there are too many."""
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


def sms_in_columns(device: Device, asked: Mapping[int, Demand]) -> SharedSms:
    """Return the SMs of a device, and what each op asks for, as columns."""
    details = device.details
    numbers = np.array([demand[:2] for demand in asked.values()], np.int64).reshape(-1, 2)
    return SharedSms(
        details.partition_sms or [sms_in_use(device)],
        details.partition_of or [0] * device.lanes,
        np.array(list(asked), np.int64),
        numbers[:, 0],
        numbers[:, 1],
    )


class LeftoverSMs:
    """A `sim.machine.device.Processor` for GPUs whose kernels share SMs, all at one priority.

    Parameters
    ----------
    device : Device
        In its `details`: ``sms``, ``blocks_per_sm``, ``partition_sms`` and ``partition_of`` (see
        `devices.processor.shared_sms.SharedSMs`). It has no more streams than kernels may be resident.
    context : Context
        The run.
    asked : mapping of int to Demand, optional
        Op → what it asks for, if that is known already.

    Raises
    ------
    InputError
        An op with an attribute that means nothing (see `devices.processor.kernel_demand.demand`).
    """

    end = None  # it was known at its start when its SMs would be free

    def __init__(self, device: Device, context: Context, asked: Mapping[int, Demand] | None = None) -> None:
        details = device.details
        machine = context.job.machine
        self._context = context
        self._first_stream = machine.first_stream[machine.device_index(device.name)]
        self._partition_of: list[int] = list(details.partition_of or [0] * device.lanes)
        self._free: list[Instants] = [[(0, sms)] for sms in details.partition_sms or [sms_in_use(device)]]
        self._demands = demands(device, context.job, None) if asked is None else asked

    @classmethod
    def columns(cls, device: Device, job: Job) -> SharedSms | str:
        """Return what the kernels share, for the kernel's own way to do the same."""
        if cls is not LeftoverSMs:
            return f"{cls.__name__} is a processor of its own"
        return sms_in_columns(device, demands(device, job, None))

    def start(self, task: Task) -> int:
        """Return when the kernel will be over, counted from now; its loads may have to wait."""
        duration_ns = self._context.duration_of(task)
        if not duration_ns:
            return 0
        now_ns = self._context.now_ns
        partition = self._partition_of[task.stream - self._first_stream]
        start_ns, end_ns, self._free[partition] = course(
            self._free[partition], self._demands[task.op], duration_ns, now_ns
        )
        if start_ns > now_ns:
            task.start_ns = start_ns
            task.wait = Wait.RESOURCES
        return end_ns - now_ns
