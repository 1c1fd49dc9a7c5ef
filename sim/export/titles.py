"""What a slice is called, so that tools for PyTorch's profiles know what it is.

::

    op                            category      title
    of a worker                   cpu_op        its name
    kind copy, of a GPU           gpu_memcpy    Memcpy (op)
    collective, of a GPU          kernel        ncclDevKernel_AllReduce(op)
    recorded (attribute kernel)   by its name   as recorded: Memset (Device), void at::native::...
    delay, of a recording         delay         its name; it is no work of the GPU
    any other                     kernel        its name

Holistic Trace Analysis goes by names alone: what begins with ``nccl`` and has ``Kernel`` in it communicates,
``Memcpy`` and ``Memset`` are memory, all others compute (``get_kernel_type`` in hta/utils/utils.py of
https://github.com/facebookresearch/HolisticTraceAnalysis).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from sim.explain.facts.communication import moving_ops
from sim.job.job import Job
from sim.machine.device import Device
from sim.record.record import recorded_delays

__all__ = ["CATEGORIES", "Titles", "launch_call"]

CATEGORIES: Final = ("cpu_op", "kernel", "gpu_memcpy", "gpu_memset", "delay")

_WORKER, _KERNEL, _COPY, _FILL, _DELAY = range(5)

_LAUNCHES: Final = {"gpu": ("", "cudaLaunchKernel", "cudaMemcpyAsync", "cudaMemsetAsync", "launch")}
"""What launches ops of each category, by kind of device; tools count CUDA's by these names."""


class Titles:
    """The category and the title of every op.

    Parameters
    ----------
    job : Job

    Attributes
    ----------
    category : array of int64
        Index into `CATEGORIES`, by op.
    own : array of bool
        Whether the title of each op is another than its name.
    """

    def __init__(self, job: Job) -> None:
        graph, devices = job.graph, job.machine.devices
        self._names, self._attributes = graph.op_names, graph.attributes
        gpu = np.array([device.kind == "gpu" for device in devices])[job.device_of]
        self._kinds = ["".join(word.capitalize() for word in kind.split("_")) for kind in graph.kinds]
        self._kind = graph.kind_code
        copies = graph.is_kind("copy")
        worker = np.array([device.workers > 0 for device in devices])[job.device_of]
        self.own = gpu & ~worker & (moving_ops(job) | copies)
        self.category = np.where(worker, _WORKER, np.where(copies, _COPY, _KERNEL))
        self.category[recorded_delays(graph) & ~worker] = _DELAY
        for op, kernel in graph.attribute("kernel").items():
            if not worker[op]:
                self.own[op] = kernel != graph.op_names[op]
                begin = str(kernel)[:6]
                self.category[op] = {"Memcpy": _COPY, "Memset": _FILL}.get(begin, _KERNEL)

    def of(self, op: int) -> str:
        """Return the title of an op."""
        name = self._names[op]
        if not self.own[op]:
            return name
        recorded = self._attributes.get(op, {}).get("kernel")
        if recorded is not None:
            return str(recorded)
        if self.category[op] == _COPY:
            return f"Memcpy ({name})"
        return f"ncclDevKernel_{self._kinds[self._kind[op]]}({name})"


def launch_call(device: Device, category: int) -> str:
    """Return the name of the call that launches work of a category on a device.

    Examples
    --------
    >>> launch_call(Device("gpu0"), CATEGORIES.index("gpu_memcpy")), launch_call(Device("npu0", "npu"), 1)
    ('cudaMemcpyAsync', 'launch')
    """
    calls = _LAUNCHES.get(device.kind)
    return calls[category] if calls else "launch"
