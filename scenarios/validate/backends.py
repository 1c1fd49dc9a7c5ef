"""The backends by name, each with its sentinel and its provenance."""

from __future__ import annotations

import os
import platform
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np

from devices.real.blas import single_threaded_blas
from devices.real.clock import now_ns, prefer_this_thread, sleep_until
from devices.real.threads import Threads
from devices.real.timer import Timer
from devices.real.work import Observation
from sim.errors import UnknownNameError
from sim.job import Job
from sim.model import Policy
from sim.plan import Plan

__all__ = ["BACKENDS", "Executor", "make_backend", "provenance", "sentinel_ns"]


class Executor(Protocol):
    """Runs jobs for real."""

    name: str

    def execute(self, job: Job, plan: Plan, *, gated: bool = True) -> Observation:
        """Execute a plan; `gated`: fill the queues of a GPU before the clock starts."""

    def drive(self, job: Job, policy: Policy) -> Observation:
        """Let a policy drive."""


def _cuda() -> Executor:
    from devices.real.cuda import Cuda

    return Cuda()


BACKENDS: Final[dict[str, Callable[[], Executor]]] = {"timer": Timer, "threads": Threads, "cuda": _cuda}
"""name → how to make it."""


def make_backend(name: str) -> Executor:
    """Return a backend.

    Raises
    ------
    UnknownNameError
        There is none of that name.
    InputError, RunError
        It cannot run here: no torch, no CUDA.
    """
    if name not in BACKENDS:
        raise UnknownNameError("backend", name, BACKENDS)
    return BACKENDS[name]()


def sentinel_ns(backend: str, executor: Executor) -> int:
    """Return how long a fixed piece of work takes now: the median of five.

    A sleep of 2 ms and its waking up on the timer; a product and a copy on every core at once on threads,
    because what company costs changes with where a hypervisor puts the cores; and what the GPU backend has.
    """
    if hasattr(executor, "sentinel_ns"):
        return int(executor.sentinel_ns())
    if backend == "timer":
        return _median_of_five([_sleep])
    with single_threaded_blas():
        return _median_of_five([_Product().run for _ in range(min(2, os.cpu_count() or 1))])


def _median_of_five(works: list[Callable[[], None]]) -> int:
    """Return the median time of works that run side by side, the slowest of them."""
    taken: list[list[int]] = [[] for _ in works]
    together = threading.Barrier(len(works))

    def body(k: int) -> None:
        prefer_this_thread(k)
        works[k]()
        together.wait()
        for _ in range(5):
            begin = now_ns()
            works[k]()
            taken[k].append(now_ns() - begin)

    threads = [threading.Thread(target=body, args=(k,)) for k in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(sorted(times)[2] for times in taken)


def _sleep() -> None:
    sleep_until(now_ns() + 2_000_000)


class _Product:
    """A product and a copy, with matrices of their own."""

    def __init__(self) -> None:
        self.a = np.random.default_rng(1).normal(size=(384, 384))
        self.b, self.c = np.empty_like(self.a), np.empty_like(self.a)

    def run(self) -> None:
        np.matmul(self.a, self.a, out=self.b)
        np.copyto(self.c, self.b)


def provenance(backend: str, executor: Executor) -> dict[str, Any]:
    """Return what a measurement depends on and a number does not tell: device, versions, protocol, date."""
    facts: dict[str, Any] = {
        "date": time.strftime("%Y-%m-%d"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "modules": sorted(m for m in ("torch", "simpy") if m in sys.modules),
        "protocol": "medians; a sentinel before and after; run-queue delay at most 1 % of a makespan",
    }
    extra: Callable[[], dict[str, Any]] | None = getattr(executor, "provenance", None)
    if extra is not None:
        facts |= extra()
    return facts


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
