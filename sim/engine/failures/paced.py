"""A device that is slow at times: what it shares among its tasks runs by a clock of its own.

::

    time of the run       0    10   20   30   40   50         factor 2 from 10 to 30
    time of the device    0    10   15   20   30   40

A processor that predicts when its tasks end is asked, and answers, in the device's time. So it knows nothing
of slow-downs, and whatever it shares out slows down at once. Its time is whole ns, rounded down. A device
without one has exact times.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from sim.faults.pace import Pace
from sim.job.context import Context
from sim.job.job import Job
from sim.job.transfers import Flow
from sim.machine.device import Device
from sim.machine.link import Message
from sim.machine.processor import MANAGED, WAIT, Processor
from sim.machine.task import Task

__all__ = ["Paced"]


class Paced:
    """The processor of a device of which the pace may change.

    Parameters
    ----------
    device : Device
    context : Context
        The run.
    pace : Pace
    """

    def __init__(self, device: Device, context: Context, pace: Pace) -> None:
        self._context, self._pace = context, pace
        self._own = _OwnTime(context, pace)
        self._inner: Processor | None = None
        if device.processor is not None:
            self._inner = device.processor(device, self._own)

    def start(self, task: Task) -> int:
        """Begin a task; see `sim.machine.processor.Processor.start`."""
        now_ns = self._context.now_ns
        if self._inner is None:
            end_ns = self._pace.end_ns(now_ns, self._context.duration_of(task))
            return MANAGED if end_ns is None else end_ns - now_ns
        task.start_ns = own_ns = self._own.now_ns
        ns = self._inner.start(task)
        if task.start_ns == own_ns:
            task.start_ns = now_ns
        elif task.start_ns >= 0:
            task.start_ns = self._own.at(task.start_ns) or -1
        if ns in (WAIT, MANAGED):
            return ns
        end_ns = self._own.at(own_ns + ns)
        return MANAGED if end_ns is None else end_ns - now_ns

    @property
    def end(self) -> Callable[[Task], None] | None:
        """See `sim.machine.processor.Processor.end`."""
        return None if self._inner is None else self._inner.end


class _OwnTime:
    """A run as it looks from a device that is slow at times; a `sim.job.context.Context`."""

    def __init__(self, context: Context, pace: Pace) -> None:
        self._context, self._pace = context, pace
        self.job: Job = context.job
        self.flow: Flow = context.flow
        self.conditions = context.conditions

    @property
    def now_ns(self) -> int:
        return int(self._pace.done(self._context.now_ns))

    @now_ns.setter
    def now_ns(self, time_ns: int) -> None:
        raise AttributeError("time passes by itself")

    def at(self, own_ns: int) -> int | None:
        """Return when it is so late on the device, now at the earliest; None: never."""
        if own_ns <= self.now_ns:
            return self._context.now_ns
        return self._pace.when(Fraction(own_ns))

    def call_at(self, time_ns: int, callback: Callable[[Any], None], value: Any = None) -> None:
        at_ns = self.at(time_ns)
        if at_ns is not None:
            self._context.call_at(at_ns, callback, value)

    def when_settled(self, callback: Callable[[], None]) -> None:
        self._context.when_settled(callback)

    def started(self, task: Task) -> None:
        self._context.started(task)

    def duration_of(self, task: Task) -> int:
        return self._context.duration_of(task)

    def carried(self, message: Message) -> None:
        self._context.carried(message)

    def finish(self, task: Task) -> None:
        self._context.finish(task)
