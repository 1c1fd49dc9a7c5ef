"""Ops of more streams than an NPU's cores make queues: they take turns on the cores.

::

    1 queue of all cores     stream 0  [matmul]        [matmul]
                             stream 1          [norm]              waits for the cores: first come ...
                             stream 2     [all_reduce]             takes none

A program makes the streams that it wants, up to some 2,000 (CANN 8.5, ``aclrtCreateStream``); what computes
needs ``cores_per_op`` cores whichever stream it is on. A collective of a communicator needs none: it runs on
the vector cores only where ``HCCL_OP_EXPANSION_MODE`` is ``AIV``, and it is not by default (CANN, Atlas A2).
"""

from __future__ import annotations

from sim.job.context import Context
from sim.machine.device import Device
from sim.machine.processor import WAIT
from sim.machine.task import Task

__all__ = ["CoreTurns"]


class CoreTurns:
    """A `sim.machine.processor.Processor` that runs so many ops at once that compute.

    Parameters
    ----------
    queues : int
        How many ops the cores can run at once.
    device : Device
    context : Context
        The run.
    """

    def __init__(self, queues: int, device: Device, context: Context) -> None:
        self._free = queues
        self._meets = context.job.meets
        self._duration_of = context.duration_of
        self._waiting: dict[int, None] = {}  # ids of tasks, in order of arrival

    def start(self, task: Task) -> int:
        """Take cores and return the task's duration, or `WAIT` behind those who came before."""
        if not self._meets[task.op]:
            self._waiting[task.id] = None  # one that waits already keeps its place
            if next(iter(self._waiting)) != task.id or not self._free:
                return WAIT
            del self._waiting[task.id]
            self._free -= 1
        return self._duration_of(task)

    def end(self, task: Task) -> None:
        """Give the task's cores back."""
        if not self._meets[task.op]:
            self._free += 1
