"""Cores that an op occupies from start to end, or whose time ops share: those of a CPU, and of an NPU.

::

    4 cores, 3 workers, 2 cores per op       w0 [aaaa]
                                             w1 [bbbbbbb]
                                             w2     [cccc]     c waits until a's cores are free

First come, first served: an op that does not fit waits, and all ops behind it wait too, however little they
need.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from typing import Final

import numpy as np

from devices.cost.cost_models import Units, units_of
from devices.fair_sharing import EqualShare
from sim.base.arrays import IntArray
from sim.base.errors import InfeasibleError
from sim.job.context import Context
from sim.job.job import Job
from sim.kernel.columns import SharedCores
from sim.machine.device import MANAGED, WAIT, Device
from sim.machine.task import Task


class FirstComeFirstServed:
    """A `sim.machine.device.Processor` of which each running task takes an amount, in order of arrival.

    Parameters
    ----------
    context : Context
        The run.
    free : int
        Amount available.
    needs : mapping of int to int
        Op → amount it takes; an op that takes nothing never waits.
    default : int
        Amount taken by other ops.
    """

    def __init__(self, context: Context, free: int, needs: Mapping[int, int], default: int = 1) -> None:
        self._duration_of = context.duration_of
        self._free, self._needs, self._default = free, needs, default
        self._waiting: dict[int, None] = {}  # ids of tasks, in order of arrival

    def start(self, task: Task) -> int:
        """Take the task's amount and return its duration, or `WAIT` behind earlier tasks."""
        need = self._needs.get(task.op, self._default)
        if need:
            waiting = self._waiting
            waiting[task.id] = None  # a task that waits already keeps its place
            if next(iter(waiting)) != task.id or need > self._free:
                return WAIT
            del waiting[task.id]
            self._free -= need
        return self._duration_of(task)

    def end(self, task: Task) -> None:
        """Release the task's amount."""
        self._free += self._needs.get(task.op, self._default)


class CorePool(FirstComeFirstServed):
    """A `sim.machine.device.Processor` that counts free cores.

    An op takes ``device.cores_per_op`` cores, or the number in its attribute ``cores``.

    Parameters
    ----------
    device : Device
        With `cores` and `cores_per_op`.
    context : Context
        The run.

    Raises
    ------
    InfeasibleError
        If an op of the device asks for more cores than there are.
    """

    counts_cores: Final = True
    """That an op occupies the cores that it asks for, and takes its duration once it has them."""

    def __init__(self, device: Device, context: Context) -> None:
        super().__init__(context, device.cores, _needs(device, context.job), device.cores_per_op)

    @classmethod
    def columns(cls, device: Device, job: Job) -> SharedCores | str:
        """Return the cores and the number that each op takes."""
        if cls is not CorePool or not device.workers:
            return f"{device.name} counts its cores in a way of its own"
        op = np.flatnonzero(job.device_of == job.machine.device_index(device.name))
        needs = _needs(device, job)
        need = np.array([needs.get(o, device.cores_per_op) for o in op.tolist()], np.int64)
        return SharedCores(device.cores, op, need)


@dataclass(frozen=True)
class CorePoolIfShort:
    """A `CorePool` in runs with an op that asks for more cores than its worker has; else nothing is shared.

    There are only as many workers as cores allow, so no op waits if each uses only its worker's cores.
    """

    counts_cores: bool = True

    def __call__(self, device: Device, context: Context) -> CorePool | None:
        """Return the processor of a run, if it needs one."""
        return CorePool(device, context) if _is_short(device, context.job) else None

    def columns(self, device: Device, job: Job) -> SharedCores | str | None:
        """Return the cores and the number that each op takes; None: no op ever waits for them."""
        return CorePool.columns(device, job) if _is_short(device, job) else None


def _is_short(device: Device, job: Job) -> bool:
    return any(cores > device.cores_per_op for cores in _needs(device, job).values())


def _needs(device: Device, job: Job) -> dict[int, int]:
    """Return op → number of cores, for ops that specify it."""
    index = job.machine.device_index(device.name)
    needs = {op: cores for op, cores in job.graph.attribute("cores").items() if job.device_of[op] == index}
    for op, cores in needs.items():
        if cores > device.cores:
            name = job.graph.op_names[op]
            message = f"op {name!r} needs {cores} cores and {device.name} has {device.cores}"
            raise InfeasibleError(message).about(name, "cores")
    return needs


# ----------------------------------------------------------------------------------------------------------
# More runnable threads than cores: the operating system slices time, and all ops slow down.
#
#     rate of every op = min(1, cores / threads) / (1 + cost * max(0, threads / cores - 1))
#                             fair time slices       switches, cold caches, threads that wait at a barrier
#                                                    for one that does not run
#
# `threads` counts the running threads: ``cores_per_op`` for every op. With `oversubscription_cost` 0 no work
# is lost and all ops advance at equal rates (the aim of fair schedulers); each thread per core beyond the
# first adds `cost` to the time of all. The linear form is a choice: the simplest curve with one measurable
# parameter. The harm of too many threads, and the trade-off between the two pools, is shown by Wang et al.,
# *Exploiting Parallelism Opportunities with Deep Learning Frameworks*, ACM TACO 18(1), 2020
# (arXiv:1908.04705).
#
# All ops advance at the same rate, so the exact virtual time of `devices.fair_sharing.EqualShare`
# applies.


class TimeShare:
    """A `sim.machine.device.Processor` of cores whose time is sliced among all running ops.

    Parameters
    ----------
    device : Device
        With `cores`, `cores_per_op`, and `oversubscription_cost` in its details (default 0).
    context : Context
        The run.
    """

    end: Callable[[Task], None] | None = None  # a task that is over has left already

    def __init__(self, device: Device, context: Context) -> None:
        self._duration_of = context.duration_of
        self._running = EqualShare(
            context, lambda n: sliced_rate(n * device.cores_per_op, device), context.finish
        )

    def start(self, task: Task) -> int:
        """Start a task, which ends when its share of the cores, or of the pool, has done its work."""
        work_ns = self._duration_of(task)
        if not work_ns:
            return 0
        self._running.add(task, work_ns)
        return MANAGED


def sliced_rate(threads: int, device: Device) -> Fraction:
    """Return the rate of each of `threads` threads on a device's cores, relative to one alone."""
    load = Fraction(threads, device.cores)
    if load <= 1:
        return Fraction(1)
    return 1 / load / (1 + device.details.oversubscription_cost * (load - 1))


# ----------------------------------------------------------------------------------------------------------
# One pool of threads shared by all running ops: TensorFlow's intra-op threads.
#
#     inter-op workers   w0 ── op ──┐        ┌ t0     an op alone is split over all of them;
#                        w1 ── op ──┼─ pool ─┤ t1     of n ops each has the n-th part of the pool, and
#                        w2 ── op ──┘        └ t2     their workers wait meanwhile
#
# An op takes its duration if it has the ``cores_per_op`` threads that it can use. With fewer, t of them
# (possibly less than one), it advances at the rate speedup(t) / speedup(cores_per_op). If the pool has more
# threads than the CPU has cores, time is sliced as well, as in `TimeShare`.
#
# Sources: tensorflow/core/common_runtime/local_device.cc (one pool per process, with the size of its first
# session) and Eigen's ``ThreadPoolDevice::parallelFor``, which runs the root of an op that has more blocks
# than threads in the pool, so that no more than ``numThreads()`` threads work, and an op in a pool of one
# thread on its own worker. An op with fewer blocks than threads also runs one of them on its worker, which is
# not modelled.


class IntraOpPool(TimeShare):
    """A `sim.machine.device.Processor` of ops that are split over one pool of threads.

    Parameters
    ----------
    speedup : callable
        ``speedup(threads)`` returns the speed-up of an op over one thread.
    device : Device
        With `cores`, `cores_per_op`, and the number of threads, ``intra_op_pool``, in its details.
    context : Context
        The run.
    """

    def __init__(self, speedup: Callable[[Fraction], Fraction], device: Device, context: Context) -> None:
        threads, threads_per_op = device.details.intra_op_pool, device.cores_per_op
        assert threads is not None
        base = speedup(Fraction(threads_per_op))

        def rate(n: int) -> Fraction:
            share = min(Fraction(threads_per_op), Fraction(threads, n))
            slower = min(Fraction(1), speedup(max(share, Fraction(1))) / base) * min(share, Fraction(1))
            return slower * sliced_rate(min(n * threads_per_op, threads), device)

        self._duration_of = context.duration_of
        self._running = EqualShare(context, rate, context.finish)


def least_ns(
    speedup: Callable[[Fraction], Fraction], device: Device, job: Job, duration_ns: IntArray, runs: IntArray
) -> int:
    """Return a lower bound of the makespan in ns: the ops' least total thread time / the threads.

    Parameters
    ----------
    speedup, device
        As for `IntraOpPool`.
    job : Job
    duration_ns : array of int64
        Duration of each op alone in the pool.
    runs : array of int64
        Number of runs of each op.
    """
    pool, threads_per_op = device.details.intra_op_pool, device.cores_per_op
    assert pool is not None
    base = speedup(Fraction(threads_per_op))
    # On t threads an op uses t * base / speedup(t) times its duration of thread time.
    best = min(t * base / speedup(Fraction(t)) for t in range(1, threads_per_op + 1))
    on_device = (job.device_of == job.machine.device_index(device.name)) & ~job.meets
    work = int(np.sum(duration_ns[on_device] * runs[on_device]))
    return ceil(work * best / min(pool, device.cores))


# ----------------------------------------------------------------------------------------------------------
# Two ops at once on one core of an NPU: one on its matrix unit, one on its vector unit.
#
#     core 0, two queues     queue 0  [matmul][matmul]     [matmul]
#                            queue 1  [softmax]     [matmul]          waits: the matrix unit is in use
#
# Every queue starts its ops in order. Two queues of a core run at once if their heads need different units;
# an op that needs a unit in use waits until it is free, first come, first served. Scratchpad and DMA are
# divided evenly among the queues of a core, so that concurrent ops never use more than there is.


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
