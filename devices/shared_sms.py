"""Kernels that share a GPU: leftover dispatch of SMs, max-min fair DRAM bandwidth.

::

    streams' heads ──► pending, by (priority, arrival)          resident: at most 128
                         │
                         └─ the first takes the SMs that it can fill, the next what is left over, ...
                            running loads are never interrupted

* The first pending kernel with loads left is *served*: it gets every SM that becomes free, until all its
  loads are dispatched. Then the next one is served. So two kernels that each fill the GPU run one after the
  other and overlap only in the tail, two small ones run side by side, and a kernel of a higher priority gets
  the next SMs that become free, but no busy ones. (Amert et al., *GPU Scheduling on the NVIDIA TX2:
  Hidden Details Revealed*, RTSS 2017, and Olmedo et al., *Dissecting the CUDA scheduling hierarchy*, RTAS
  2020, found these rules by experiment; the limit of 128 is in the CUDA C++ Programming Guide.)
* With ``sm+dram`` the resident kernels share the DRAM bandwidth max-min fairly. A kernel's loads in flight
  draw ``load_bytes_per_s`` each, and slow down together if they get less.
* Partitions (green contexts) split the SMs: each has its own pending kernels. DRAM stays shared.

* A collective of a communicator starts once it has all the SMs that it asks for, at most those of its
  partition, and holds them until its end.

A task *starts* when its first load is dispatched; until then its stream waits with it (``resources``).
An SM is reassigned at the first whole nanosecond at or after the end of a block, once all ends and arrivals
of that instant are known: a kernel of higher priority that arrives just then gets it.

Nothing unobservable is simulated. A kernel's course is computed on demand (see
`devices.kernel_demand`); a change triggers new predictions only for what it affects; and while no
kernel waits and the bandwidth suffices, the only event of a kernel is its end.

Without priorities, and if the bandwidth is certain to suffice, the simpler `LeftoverSMs` of
`devices.sm_processor` does the same.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter

from devices.fair_sharing import Alarm
from devices.kernel_demand import NEVER, Demand, RunningKernel, demands, held_sms, sms_in_use
from sim.job.context import Context
from sim.machine.device import MANAGED, Device
from sim.machine.task import Task
from sim.record.record import Wait

# ----------------------------------------------------------------------------------------------------------
# Exact max-min fair division of memory bandwidth among unequal demands.
#
#     capacity 10, demands 2, 5, 8:   2 gets 2;  of the other 8, 5 and 8 get 4 each
#
# No demand gets more than it asks for, and what small demands leave over is shared by the large ones:
# progressive filling on one resource (see `devices.fair_sharing`).


def fair_level(demands: Sequence[int], capacity: int) -> tuple[int, int]:
    """Return the most that each demand gets, as a ratio of whole numbers.

    Returns
    -------
    level, among : int
        Each gets the lesser of its demand and ``level / among``.

    Examples
    --------
    >>> fair_level([8, 2, 5], 10)
    (8, 2)
    """
    among = len(demands)
    for demand in sorted(demands):
        if demand * among > capacity:
            return capacity, among
        capacity -= demand
        among -= 1
    return max(demands, default=0), 1


# ----------------------------------------------------------------------------------------------------------

_by_rank = attrgetter("rank")


class SharedSMs:
    """A `sim.machine.device.Processor` for the kernels of one GPU.

    Parameters
    ----------
    device : Device
        Its `details` have ``sms``, and perhaps ``dram_bytes_per_s``, ``blocks_per_sm``, ``max_resident``,
        ``partition_sms``, ``partition_of`` and ``stream_priorities``; missing keys mean the ideal.
    context : Context
        The run.
    by_op : mapping of int to Demand, optional
        Op → its demand, if already known.

    Raises
    ------
    InputError
        If an op has an invalid attribute (see `devices.kernel_demand.demand`).
    """

    def __init__(self, device: Device, context: Context, by_op: Mapping[int, Demand] | None = None) -> None:
        details = device.details
        self._context = context
        machine = context.job.machine
        self._first_stream = machine.first_stream[machine.device_index(device.name)]
        self._sizes: list[int] = list(details.partition_sms or [sms_in_use(device)])
        self._free = list(self._sizes)
        self._partition_of: list[int] = list(details.partition_of or [0] * device.lanes)
        priorities = list(details.stream_priorities)
        self._priority: list[int] = priorities + [0] * (device.lanes - len(priorities))
        self._max_resident: int = details.max_resident
        self._bandwidth: int | None = details.dram_bytes_per_s
        self._demands = demands(device, context.job, self._bandwidth) if by_op is None else by_op
        self._held_sms = held_sms(device, context.job)
        self._holding: dict[int, RunningKernel] = {}  # collectives, by id of the task
        self._pending: list[list[RunningKernel]] = [[] for _ in self._free]  # with loads left, by rank
        self._served: list[RunningKernel | None] = [None for _ in self._free]
        self._resident: dict[RunningKernel, None] = {}
        self._arrivals = 0
        self._drawn = 0  # upper bound of bytes/s drawn by resident kernels at full speed (see _settle)
        self._contended = False
        self._called = False
        self._alarm = Alarm(context, self._ring)

    def start(self, task: Task) -> int:
        """Queue a kernel; it begins when the first of its loads finds an SM."""
        duration_ns, sms = self._context.duration_of(task), self._held_sms.get(task.op)
        if not (duration_ns or sms):
            return 0
        stream = task.stream - self._first_stream
        self._arrivals += 1
        rank = (self._priority[stream], self._arrivals)
        partition = self._partition_of[stream]
        if sms:  # until its end, which is determined elsewhere
            need, duration_ns = Demand(min(sms, self._sizes[partition]), 1, 0), NEVER
        else:
            need = self._demands[task.op]
        kernel = RunningKernel(task, need, duration_ns, rank, partition, self._context.now_ns)
        if sms:
            self._holding[task.id] = kernel
        task.start_ns = -1
        insort(self._pending[partition], kernel, key=_by_rank)
        self._schedule_dispatch()
        return MANAGED

    @property
    def end(self) -> Callable[[Task], None] | None:
        """Callback that takes back the SMs held by a collective; an ended kernel has left already."""
        return self._release if self._held_sms else None

    def _release(self, task: Task) -> None:
        kernel = self._holding.pop(task.id, None)
        if kernel is not None:
            self._take_back(kernel, kernel.running)
            del self._resident[kernel]
            self._schedule_dispatch()

    def _schedule_dispatch(self) -> None:
        """Dispatch once everything that begins and ends at this instant is known."""
        if not self._called:
            self._called = True
            self._context.when_settled(self._settle)

    def _ring(self) -> None:
        """Remove ended kernels."""
        now = self._context.now_ns
        ended = [kernel for kernel in self._resident if kernel.end_ns <= now]
        for kernel in ended:
            self._take_back(kernel, kernel.running)
        for kernel in ended:
            del self._resident[kernel]
            self._context.finish(kernel.task)
        if self._contended or any(self._pending):
            self._schedule_dispatch()
        else:
            self._set_alarm()

    def _catch_up(self, kernel: RunningKernel, now_ns: int) -> None:
        """Update a resident kernel, and take back the SMs that it has left."""
        freed = kernel.advance(now_ns)
        if freed:
            self._take_back(kernel, freed)
        elif kernel.served and not kernel.left:
            self._all_dispatched(kernel)

    def _take_back(self, kernel: RunningKernel, sms: int) -> None:
        self._free[kernel.partition] += sms
        self._drawn -= sms * kernel.load_bytes_per_s
        if kernel.served:
            self._all_dispatched(kernel)

    def _all_dispatched(self, kernel: RunningKernel) -> None:
        kernel.served = False
        self._served[kernel.partition] = None
        self._pending[kernel.partition].remove(kernel)

    def _settle(self) -> None:
        self._called = False
        now = self._context.now_ns
        for kernel in self._resident:
            if kernel.free_ns <= now:  # its SMs were not needed so far
                self._catch_up(kernel, now)
        for partition, pending in enumerate(self._pending):
            if pending:
                self._dispatch(partition, pending, now)
        for partition, pending in enumerate(self._pending):
            if pending or self._served[partition] is not None:
                self._serve_first(partition, pending, now)  # once the resident kernels are known
        if self._bandwidth is not None and (self._contended or self._drawn > self._bandwidth):
            self._share(self._bandwidth, now)
        self._set_alarm()

    def _dispatch(self, partition: int, pending: list[RunningKernel], now_ns: int) -> None:
        """Give free SMs to pending kernels in order."""
        for kernel in pending[:]:
            if not self._free[partition]:
                return
            if kernel.resident:
                self._catch_up(kernel, now_ns)
                if not kernel.left:
                    continue
            elif len(self._resident) < self._max_resident:
                self._begin(kernel, now_ns)
            else:
                continue
            loads = min(self._free[partition], kernel.left)
            self._free[partition] -= loads
            self._drawn += loads * kernel.load_bytes_per_s
            kernel.take(loads)
            if kernel.left:
                return
            if kernel.task.id in self._holding:
                self._on_start(kernel, now_ns)
            if kernel.served:
                self._all_dispatched(kernel)
            else:
                pending.remove(kernel)

    def _serve_first(self, partition: int, pending: list[RunningKernel], now_ns: int) -> None:
        """Give every SM that becomes free to the first pending kernel, and to no other."""
        if len(self._resident) < self._max_resident:
            first = pending[0] if pending else None
        else:
            first = next((kernel for kernel in pending if kernel.resident), None)
        served = self._served[partition]
        if first is not served:
            if served is not None:
                self._catch_up(served, now_ns)
                served.served, served.stale = False, True
            if first is not None:
                first.served, first.stale = True, True
            self._served[partition] = first

    def _begin(self, kernel: RunningKernel, now_ns: int) -> None:
        kernel.begin(now_ns)
        self._resident[kernel] = None
        if kernel.task.id not in self._holding:
            self._on_start(kernel, now_ns)

    def _on_start(self, kernel: RunningKernel, now_ns: int) -> None:
        if now_ns > kernel.arrived_ns:
            kernel.task.wait = Wait.RESOURCES
        self._context.started(kernel.task)

    def _share(self, bandwidth_bytes_per_s: int, now_ns: int) -> None:
        """Set the speed of every resident kernel by its share of the bandwidth."""
        self._contended = self._drawn > bandwidth_bytes_per_s
        kernels = list(self._resident)
        demands = [kernel.running * kernel.load_bytes_per_s for kernel in kernels]
        level, among = fair_level(demands, bandwidth_bytes_per_s)
        for kernel, drawn in zip(kernels, demands, strict=True):
            kernel.advance(now_ns)  # leaves no SM: handled before
            if drawn * among > level:
                kernel.set_pace(level, drawn * among)
            else:
                kernel.set_pace(1, 1)

    def _set_alarm(self) -> None:
        """Ring at the next instant at which SMs or bandwidth become free for other kernels."""
        next_ns = NEVER
        for kernel in self._resident:
            if kernel.stale:
                kernel.predict()
            pending = self._pending[kernel.partition]
            if self._contended or (pending and (len(pending) > 1 or pending[0] is not kernel)):
                time_ns = kernel.free_ns
            else:
                time_ns = kernel.end_ns
            if time_ns < next_ns:
                next_ns = time_ns
        if next_ns < NEVER:
            self._alarm.by(next_ns)
