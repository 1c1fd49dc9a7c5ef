"""Two ops at once on one core of an NPU: one on its matrix unit, one on its vector unit.

::

    core 0, two queues     queue 0  [matmul][matmul]     [matmul]
                           queue 1  [softmax]     [matmul]          waits: the matrix unit is in use

Every queue starts its ops in order. Two queues of a core run at once if their heads need different units;
an op that needs a unit in use waits until it is free, first come, first served. Scratchpad and DMA are
divided evenly among the queues of a core, so that concurrent ops never use more than there is.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from devices.cost.npu_units import Units, units_of
from devices.processor.cpu_cores import FirstComeFirstServed
from sim.job.context import Context
from sim.machine.device import Device
from sim.machine.task import Task


class CoreUnits:
    """A `sim.machine.device.Processor` in which ops of one core share its two units.

    Parameters
    ----------
    device : Device
        In its details: ``units`` and ``queues_per_core`` (streams that belong to one core).
    context : Context
        The run.
    """

    def __init__(self, device: Device, context: Context) -> None:
        job = context.job
        units: Units = device.details.units
        self._per_core: int = device.details.queues_per_core
        self._first = job.machine.first_stream[job.machine.device_index(device.name)]
        self._unit_of: list[int] = units_of(job.graph, units, device.details.default_dtype).tolist()
        self._units: dict[tuple[int, int], FirstComeFirstServed] = defaultdict(
            lambda: FirstComeFirstServed(context, 1, {})
        )  # per core

    def _unit(self, task: Task) -> FirstComeFirstServed:
        return self._units[(task.stream - self._first) // self._per_core, self._unit_of[task.op]]

    def start(self, task: Task) -> int:
        """Take the task's unit and return its duration, or `WAIT` behind earlier tasks."""
        return self._unit(task).start(task)

    def end(self, task: Task) -> None:
        """Release the task's unit."""
        self._unit(task).end(task)


# ----------------------------------------------------------------------------------------------------------
# Ops on more streams than an NPU has queues: they take turns on the cores.
#
#     1 queue of all cores     stream 0  [matmul]        [matmul]
#                              stream 1          [norm]              waits for the cores: first come ...
#                              stream 2     [all_reduce]             takes none
#
# A program creates any number of streams, up to about 2,000 (CANN 8.5, ``aclrtCreateStream``); a computing op
# needs ``cores_per_op`` cores whatever its stream. A collective of a communicator needs none: it runs on the
# vector cores only if ``HCCL_OP_EXPANSION_MODE`` is ``AIV``, which is not the default (CANN, Atlas A2).


class CoreTurns(FirstComeFirstServed):
    """A `sim.machine.device.Processor` that runs up to `queues` computing ops at once.

    Parameters
    ----------
    queues : int
        Number of ops that the cores can run at once.
    device : Device
    context : Context
        The run.
    """

    def __init__(self, queues: int, device: Device, context: Context) -> None:
        super().__init__(context, queues, dict.fromkeys(np.flatnonzero(context.job.meets).tolist(), 0))
