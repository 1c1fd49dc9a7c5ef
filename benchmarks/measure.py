"""What something costs in raw SimPy timeouts, measured in turns with it; the memory of a command.

A *raw timeout* is the cheapest thing SimPy can do for a running device: as many processes as the machine has
devices, each of them ``yield env.timeout(...)`` in a loop. The ratio to it says what the simulator adds, on
any computer, however busy. Times are CPU time.
"""

from __future__ import annotations

import gc
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import pytest
import simpy

from sim.kernel.run import is_compiled

ROOT = Path(__file__).parents[1]

needs_compiler = pytest.mark.skipif(not is_compiled(), reason="the kernel is not compiled")


class Cost(NamedTuple):
    """What one of many costs: the best of the rounds in µs, and raw timeouts, the median of their ratios."""

    us: float
    timeouts: float


def raw_timeouts(n: int, processes: int) -> None:
    """Let `processes` processes wait for n timeouts between them."""
    env = simpy.Environment()

    def wait() -> simpy.events.ProcessGenerator:
        for _ in range(n // processes):
            yield env.timeout(10)

    for _ in range(processes):
        env.process(wait())
    env.run()


def seconds(work: Callable[[], object]) -> float:
    """Return the CPU time of `work`; to throw away what it returns is not part of it."""
    gc.collect()
    gc.disable()
    try:
        start = time.process_time()
        kept = work()
        took = time.process_time() - start
        del kept
    finally:
        gc.enable()
    return took


def cost(took_s: Callable[[], float], n: int, *, rounds: int, devices: int = 8) -> Cost:
    """Return what each of `n` costs; `took_s` works, and says how long it took."""
    raw, pairs = 20_000, []
    for _ in range(rounds):  # in turns, so that a busy moment hits both
        pairs.append((took_s() / n, seconds(lambda: raw_timeouts(raw, devices)) / raw))
    return Cost(1e6 * min(pairs)[0], statistics.median(each / timeout for each, timeout in pairs))


def cpu_s(command: list[str]) -> float:
    """Return the CPU time of a process, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, cwd=ROOT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def peak_gib(command: list[str]) -> float:
    """Return the memory that a process takes at its peak.

    The peak counts what its parent holds, so that its parent is a new process.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as parent:
        return parent.submit(_peak_gib, command).result()


def _peak_gib(command: list[str]) -> float:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_maxrss / 2**20
