"""CPU cores that an op occupies from start to end: first come, first served.

::

    4 cores, 3 workers, 2 cores an op        w0 [aaaa]
                                             w1 [bbbbbbb]
                                             w2     [cccc]     c waits until a's cores are free

An op that does not fit waits, and everybody behind it waits too, however little they need.
"""

from __future__ import annotations

import numpy as np

from sim.job.context import Context
from sim.job.job import Job
from sim.kernel.layout.shared import SharedCores
from sim.machine.device import Device
from sim.machine.processor import WAIT
from sim.machine.task import Task
from sim.words.errors import InfeasibleError

__all__ = ["CorePool"]


class CorePool:
    """A `sim.machine.processor.Processor` that counts free cores.

    An op takes ``device.cores_per_op`` cores, or as many as its attribute ``cores`` says.

    Parameters
    ----------
    device : Device
        With `cores` and `cores_per_op`.
    context : Context
        The run.

    Raises
    ------
    InfeasibleError
        An op of the device asks for more cores than there are.
    """

    def __init__(self, device: Device, context: Context) -> None:
        self._duration_of = context.duration_of
        self._free = device.cores
        self._default = device.cores_per_op
        self._needs = _needs(device, context.job)
        self._waiting: dict[int, None] = {}  # ids of tasks, in order of arrival

    @classmethod
    def columns(cls, device: Device, job: Job) -> SharedCores | str:
        """Return the cores, and what each op takes of them."""
        if cls is not CorePool or not device.workers:
            return f"{device.name} counts its cores in a way of its own"
        op = np.flatnonzero(job.device_of == job.machine.device_index(device.name))
        needs = _needs(device, job)
        return SharedCores(
            device.cores, op, np.array([needs.get(o, device.cores_per_op) for o in op.tolist()], np.int64)
        )

    def start(self, task: Task) -> int:
        """Take the task's cores and return its duration, or `WAIT` behind those who came before."""
        need = self._needs.get(task.op, self._default)
        waiting = self._waiting
        waiting[task.id] = None  # one that waits already keeps its place
        if next(iter(waiting)) != task.id or need > self._free:
            return WAIT
        del waiting[task.id]
        self._free -= need
        return self._duration_of(task)

    def end(self, task: Task) -> None:
        """Give the task's cores back."""
        self._free += self._needs.get(task.op, self._default)


def _needs(device: Device, job: Job) -> dict[int, int]:
    """Return the cores of the ops that say how many they need."""
    here = job.machine.device_index(device.name)
    return {
        op: _checked(cores, device, job.graph.op_names[op])
        for op, cores in job.graph.attribute("cores").items()
        if job.device_of[op] == here
    }


def _checked(cores: int, device: Device, op: str) -> int:
    if cores > device.cores:
        message = f"op {op!r} needs {cores} cores and {device.name} has {device.cores}"
        raise InfeasibleError(message).about(op, "cores")
    return cores
