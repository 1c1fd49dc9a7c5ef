"""Ops on the workers of one CPU slow one another down by a measured factor.

The simplest model of interference: with n ops running at once, each advances at the rate 1 / slowdown(n),
whatever their kinds. It suits similar kernels that compete for one resource (memory bandwidth, the clock of
the chip); different kernels need a model of the resources they compete for, such as
`devices.shared_sms`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from devices.fair_sharing import EqualShare
from sim.job.context import Context
from sim.machine.device import MANAGED, Device
from sim.machine.task import Task


class CorunSlowdown:
    """A `sim.machine.device.Processor` on which all running ops slow down alike.

    Parameters
    ----------
    device : Device
        Its `details` have ``corun_slowdown``: the factors for 1, 2, ... ops at once; the last one holds
        for any greater number. Ops of a kind in ``corun_exempt``, such as copies with their own engines, do
        not compete with those; they slow one another down by ``corun_exempt_slowdown``, if given.
    context : Context
        The run.
    """

    end: Callable[[Task], None] | None = None  # a task that is over has left already

    def __init__(self, device: Device, context: Context) -> None:
        self._duration_of = context.duration_of
        exempt = device.details.corun_exempt
        graph = context.job.graph
        self._exempt = [graph.kinds[code] in exempt for code in graph.kind_code.tolist()]

        def shared(slowdown: Sequence[float]) -> EqualShare:
            factors = [Fraction(str(factor)) for factor in slowdown]
            return EqualShare(context, lambda n: 1 / factors[min(n, len(factors)) - 1], context.finish)

        apart = device.details.corun_exempt_slowdown
        self._running = shared(device.details.corun_slowdown)
        self._copying = shared(apart) if any(factor != 1 for factor in apart) else None

    def start(self, task: Task) -> int:
        """Begin a task; it ends when its work is done."""
        among = self._copying if self._exempt[task.op] else self._running
        work_ns = self._duration_of(task)
        if among is None or not work_ns:
            return work_ns
        among.add(task, work_ns)
        return MANAGED


# ----------------------------------------------------------------------------------------------------------
# Workers that have slept take time to wake.
#
# A worker that ends an op and finds another goes on at once; an idle worker sleeps in the operating system's
# kernel and is woken when another worker ends the op that it waits for:
#
#     worker 0   [ a ][ c ]                 [ c ] begins `issue_ns` after [ a ]
#     worker 1         .... [ b ]           [ b ], which reads a, begins `wake_ns` later than that
#
# On threads of a virtual machine the two are about 20 and 100 us, so a median of both would fit neither.


class Waking(CorunSlowdown):
    """A `sim.machine.device.Processor` of workers that sleep when idle and slow one another down.

    Parameters
    ----------
    device : Device
        With ``wake_ns`` in its details, and the keys of `CorunSlowdown`.
    context : Context
        The run.
    """

    def __init__(self, device: Device, context: Context) -> None:
        super().__init__(device, context)
        self._context, self._issue_ns = context, device.issue_ns
        self._meets = context.job.meets
        self._wake_ns = device.details.wake_ns
        self._ended_ns: dict[int, int] = {}  # by worker

    def start(self, task: Task) -> int:
        """Start a task or, if its worker has slept, delay it until the worker is awake."""
        now_ns = self._context.now_ns
        if self._ended_ns.get(task.stream) == now_ns - self._issue_ns:
            return super().start(task)
        task.start_ns = now_ns + self._wake_ns
        if self._meets[task.op]:  # its communicator ends it
            return MANAGED
        self._context.call_at(task.start_ns, self._begin, task)
        return MANAGED

    def _begin(self, task: Task) -> None:
        taken_ns = super().start(task)
        if taken_ns != MANAGED:
            self._context.call_at(self._context.now_ns + taken_ns, self._context.finish, task)

    def end(self, task: Task) -> None:
        """Note when its worker was last awake."""
        self._ended_ns[task.stream] = self._context.now_ns
