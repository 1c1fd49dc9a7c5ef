"""Kernels that share a GPU: leftover dispatch of SMs, max-min fair DRAM bandwidth.

::

    streams' heads ──► pending, by (priority, arrival)          resident: at most 128
                         │
                         └─ the first takes the SMs that it can fill, the next what is left over, ...
                            nothing that runs is interrupted

* The first pending kernel with loads left is *served*: every SM that becomes free is its own, until all its
  loads are dispatched. Then the next one is served. So two kernels that each fill the GPU run one after the
  other and overlap in the tail only, two small ones run side by side, and a kernel of a higher priority gets
  the next SMs that become free, but none that are busy. (Amert et al., *GPU Scheduling on the NVIDIA TX2:
  Hidden Details Revealed*, RTSS 2017, and Olmedo et al., *Dissecting the CUDA scheduling hierarchy*, RTAS
  2020, found these rules by experiment; the limit of 128 is in the CUDA C++ Programming Guide.)
* With ``sm+dram`` the resident kernels share the DRAM bandwidth max-min fairly. A kernel runs at the least of
  its shares: its loads in flight draw ``load_bytes_per_s`` each, and slow down together when they get less.
* Partitions (green contexts) split the SMs: each has its own pending kernels. DRAM stays shared.

A task *starts* when its first load is dispatched; until then its stream waits with it (``resources``).
An SM changes hands at whole nanoseconds, the first at or after the end of a block.

Without priorities and with ``sharing: sm`` the simpler `devices.processor.leftover` does the same.
"""

from __future__ import annotations

from bisect import insort
from operator import attrgetter
from typing import Any

from devices.events import Alarm
from devices.network.maxmin import quotient
from devices.processor.dram import fair_shares
from devices.processor.kernels import Kernel, demands
from sim.model import MANAGED, Context, Device, Task
from sim.trace import Wait

__all__ = ["MAX_RESIDENT", "SharedSMs"]

MAX_RESIDENT = 128
"""Kernels resident at once (CUDA C++ Programming Guide, compute capabilities 7.0 to 9.0)."""

_by_rank = attrgetter("rank")


class SharedSMs:
    """A `sim.model.Processor` for the kernels of one GPU.

    Parameters
    ----------
    device : Device
        In its details: ``sms_in_use``, ``sharing`` (``sm`` or ``sm+dram``), ``bandwidth``,
        ``blocks_per_sm``, ``max_resident``, ``partition_sms`` (SMs of each partition), ``partition_of``
        (partition of each stream) and ``stream_priorities``; what is left out is the ideal.
    context : Context
        The run.

    Raises
    ------
    InputError
        An op with an attribute that means nothing (see `devices.processor.kernels.demand`).
    """

    def __init__(self, device: Device, context: Context) -> None:
        details = device.details
        self._context = context
        machine = context.job.machine
        here = machine.device_index(device.name)
        self._first_stream = machine.first_stream[here]
        self._free: list[int] = list(details.get("partition_sms") or [details["sms_in_use"]])
        self._partition_of: list[int] = list(details.get("partition_of") or [0] * device.lanes)
        priorities = list(details.get("stream_priorities", ()))
        self._priority: list[int] = priorities + [0] * (device.lanes - len(priorities))
        self._max_resident: int = details.get("max_resident", MAX_RESIDENT)
        self._bandwidth: int | None = (
            details.get("bandwidth") if details.get("sharing") == "sm+dram" else None
        )
        self._duration_ns: list[int] = context.job.duration_ns.tolist()
        self._demands = demands(device, context, self._bandwidth)
        self._pending: list[list[Kernel]] = [[] for _ in self._free]  # with loads left, by rank
        self._resident: dict[Kernel, None] = {}
        self._arrivals = 0
        self._contended = False
        self._called = False
        self._alarm = Alarm(context, self._update)

    def start(self, task: Task) -> int:
        """Queue a kernel; it begins when the first of its loads finds an SM."""
        duration_ns = self._duration_ns[task.op]
        if not duration_ns:
            return 0
        stream = task.stream - self._first_stream
        self._arrivals += 1
        rank = (self._priority[stream], self._arrivals)
        partition = self._partition_of[stream]
        kernel = Kernel(task, self._demands[task.op], duration_ns, rank, partition, self._context.now_ns)
        insort(self._pending[partition], kernel, key=_by_rank)
        self._soon()
        return MANAGED

    def end(self, task: Task) -> None:
        """Note that SMs are free, also for whoever arrives at this instant."""
        if self._contended or any(self._pending):
            self._soon()

    def _soon(self) -> None:
        """Dispatch when all that begins and ends at this instant is known."""
        if not self._called:
            self._called = True
            self._context.call_at(self._context.now_ns, self._call)

    def _call(self, _: Any) -> None:
        self._called = False
        self._update()

    def _update(self) -> None:
        """Account for what has happened since the last time, and dispatch."""
        over = self._advance()
        if not (over and (self._contended or any(self._pending))):
            self._settle()  # else `end` sees to it, once it is known who follows on the streams
        for kernel in over:
            self._context.finish(kernel.task)

    def _advance(self) -> list[Kernel]:
        """Bring all kernels up to now; return those that are over."""
        now = self._context.now_ns
        over = []
        for kernel in self._resident:
            self._free[kernel.partition] += kernel.advance(now)
            if not kernel.left and not kernel.running:
                over.append(kernel)
        for kernel in over:
            del self._resident[kernel]
        return over

    def _settle(self) -> None:
        for partition, pending in enumerate(self._pending):
            if pending:
                self._dispatch(partition, pending)
        for pending in self._pending:
            self._serve_first(pending)  # once it is known who is resident
        if self._bandwidth is not None:
            self._share(self._bandwidth)
        self._predict()

    def _may_run(self, kernel: Kernel) -> bool:
        return kernel.resident or len(self._resident) < self._max_resident

    def _dispatch(self, partition: int, pending: list[Kernel]) -> None:
        """Give free SMs to pending kernels in their order."""
        now = self._context.now_ns
        free = self._free[partition]
        for kernel in pending:
            loads = min(free, kernel.left)
            if loads and self._may_run(kernel):
                free -= loads
                if not kernel.resident:
                    self._begin(kernel, now)
                kernel.take(loads)
        self._free[partition] = free
        pending[:] = [kernel for kernel in pending if kernel.left]

    def _serve_first(self, pending: list[Kernel]) -> None:
        """Let the first pending kernel have all SMs that become free, and no other."""
        served = next(filter(self._may_run, pending), None)
        for kernel in pending:
            kernel.served = kernel is served

    def _begin(self, kernel: Kernel, now_ns: int) -> None:
        kernel.resident = True
        kernel.advance(now_ns)
        self._resident[kernel] = None
        if now_ns > kernel.task.start_ns:
            kernel.task.start_ns = now_ns
            kernel.task.wait = Wait.RESOURCES

    def _share(self, bandwidth_bytes_per_s: int) -> None:
        """Set the speed of every resident kernel by what it gets of the bandwidth."""
        kernels = list(self._resident)
        demands = [kernel.running * kernel.load_bytes_per_s for kernel in kernels]
        contended = sum(demands) > bandwidth_bytes_per_s
        if contended:
            for kernel, wanted, got in zip(
                kernels, demands, fair_shares(demands, bandwidth_bytes_per_s), strict=True
            ):
                kernel.speed = kernel.waves if got == wanted else quotient(kernel.waves * got, wanted)
        elif self._contended:
            for kernel in kernels:
                kernel.speed = kernel.waves
        self._contended = contended

    def _predict(self) -> None:
        """Ring at the next instant at which SMs or bandwidth become free for somebody else."""
        now = self._context.now_ns
        next_ns: int | None = None
        for kernel in self._resident:
            pending = self._pending[kernel.partition]
            alone = not pending or (len(pending) == 1 and pending[0] is kernel)
            at = kernel.next_ns(now, only_end=alone and not self._contended)
            if at is not None and (next_ns is None or at < next_ns):
                next_ns = at
        if next_ns is not None:
            self._alarm.by(next_ns)
