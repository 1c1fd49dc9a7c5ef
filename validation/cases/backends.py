"""The backends by name, each with its sentinel and its provenance."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

import numpy as np

from sim.base.errors import SimError, UnknownNameError
from sim.job.job import Job
from sim.policy import Policy
from sim.record.plan import Plan
from validation.cases.case import Case
from validation.real.threads import Threads
from validation.real.timer import Timer
from validation.real.work import Observation


class Executor(Protocol):
    """Runs jobs on real hardware."""

    name: str

    def execute(self, job: Job, plan: Plan, *, gated: bool = True) -> Observation:
        """Execute a plan; with `gated`, fill the queues of a GPU before the clock starts."""

    def drive(self, job: Job, policy: Policy) -> Observation:
        """Let a policy drive."""

    def sentinel_ns(self) -> int | None:
        """Return the current time of a fixed piece of work; None if every run times its threads' pulse."""

    def provenance(self) -> dict[str, Any]:
        """Return what the numbers depend on besides the machine."""


def _cuda() -> Executor:
    from validation.gpu.cuda import Cuda

    return Cuda()


BACKENDS: Final[dict[str, Callable[[], Executor]]] = {"timer": Timer, "threads": Threads, "cuda": _cuda}
"""Name → constructor."""


def make_backend(name: str) -> Executor:
    """Return a backend.

    Raises
    ------
    UnknownNameError
        There is no backend of that name.
    InputError, RunError
        It cannot run here: there is no torch, or no CUDA.
    """
    if name not in BACKENDS:
        raise UnknownNameError("backend", name, BACKENDS)
    return BACKENDS[name]()


def run_case(executor: Executor, case: Case, job: Job, plan: Plan | None) -> Observation:
    """Execute a case's plan, or let its policy drive if there is none."""
    if plan is None:
        return executor.drive(job, case.make_policy())
    return executor.execute(job, plan, gated=case.gated)


def reason(error: Exception) -> str:
    """Return the text of an error for a report; errors of libraries include their type."""
    return str(error) if isinstance(error, SimError) else f"{type(error).__name__}: {error}"


def provenance(executor: Executor) -> dict[str, Any]:
    """Return what a measurement depends on but numbers do not show: device, versions, protocol, date."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "modules": sorted(m for m in ("torch", "simpy") if m in sys.modules),
        "protocol": "medians; sentinels before and after; run-queue delay at most 1 % of a makespan",
        **executor.provenance(),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
