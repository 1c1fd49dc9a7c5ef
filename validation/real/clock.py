"""Time on a real machine: a clock, sleeping without spinning, and disturbance of a thread by others.

A Python thread that spins keeps the interpreter's lock and delays every other thread by up to its switch
interval, so nothing spins here. A sleep ends late by the timer slack of the kernel (50 us by default) and by
the time to wake up; the slack is set to the minimum, and the rest is calibrated.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_PR_SET_TIMERSLACK: Final = 29  # linux/prctl.h
_SCHEDSTAT: Final = "/proc/thread-self/schedstat"

now_ns = time.perf_counter_ns


def sleep_until(deadline_ns: int) -> None:
    """Sleep until `now_ns` reaches `deadline_ns`; return at once if it has."""
    left = deadline_ns - now_ns()
    if left > 0:
        time.sleep(left * 1e-9)


def prefer_this_thread(core: int | None = None) -> str:
    """Ask for exact timers and real-time priority for the calling thread, and pin it if asked.

    Parameters
    ----------
    core : int, optional
        Position among the cores that this process may use.

    Returns
    -------
    str
        The granted priority, for the provenance of a measurement: ``"fifo"`` or ``"normal"``.
    """
    try:
        ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    except (AttributeError, OSError):  # not Linux: the accuracy of sleeps cannot be changed
        return "normal"
    if core is not None:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[core % len(cores)]})
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        return "normal"
    return "fifo"


def run_queue_ns() -> int | None:
    """Return how long the calling thread has been runnable without running; None if not counted.

    This is the second number of ``/proc/thread-self/schedstat`` (Linux, Documentation/scheduler/sched-stats).
    """
    try:
        with open(_SCHEDSTAT) as file:
            return int(file.read().split()[1])
    except (OSError, IndexError, ValueError):
        return None


def stolen_ns() -> int:
    """Return how long a hypervisor has run others on our cores, summed over them; 0 if not counted.

    Field ``steal`` of the first line of ``/proc/stat`` (proc(5)), in ticks of the clock.
    """
    try:
        with open("/proc/stat") as file:
            return int(file.readline().split()[8]) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0


def others_ns() -> int | None:
    """Return how long other processes have run on the cores of this one; None if not counted.

    The lines ``cpuN`` of ``/proc/stat`` (proc(5): user, nice, system, and what interrupts took), in ticks of
    the clock, less this process's own time. Only differences of a second or more are meaningful.
    """
    try:
        with open("/proc/stat") as file:
            lines = [line.split() for line in file if line.startswith("cpu")]
        mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        ticks = sum(int(words[k]) for words in lines if words[0] in mine for k in (1, 2, 3, 6, 7))
        busy_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except (AttributeError, OSError, IndexError, ValueError):
        return None
    return busy_ns - time.process_time_ns()


class Heart:
    """Beats beside a run, and notes its latest beat: a delay of the machine or of the interpreter.

    A thread that sleeps cannot distinguish a late timer from a stolen core or from an interpreter held by
    another thread; a second thread that only sleeps has the same troubles, and no part in the result.
    """

    _BEAT_NS: Final = 2_000_000

    def __init__(self) -> None:
        self.latest_ns = 0
        self._stop = False
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Heart:
        """Begin to beat."""
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Stop."""
        self._stop = True
        self._thread.join()

    def _beat(self) -> None:
        prefer_this_thread()
        while not self._stop:
            due_ns = now_ns() + self._BEAT_NS
            sleep_until(due_ns)
            self.latest_ns = max(self.latest_ns, now_ns() - due_ns)


@contextmanager
def quiet_interpreter() -> Iterator[None]:
    """Keep the garbage collector out of a measurement, and let threads hand over the interpreter quickly."""
    was_on, interval = gc.isenabled(), sys.getswitchinterval()
    gc.disable()
    sys.setswitchinterval(2e-4)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if was_on:
            gc.enable()
