"""Estimate whether a run fits into this computer's memory before building it, and refuse it if not.

A run has its rows in columns, and explanations have an entry for each edge between rows. Bytes of each are
measured: ``sim run`` on graphs of 4 to 10,000 ops takes 260 to 470 a task, 45 for an edge of each iteration,
and 90 for an edge of a graph that a builder makes. Without the estimate, the system would end the process,
without a message, once its memory is full.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Final

from sim.base.errors import InputError

TASK_BYTES: Final = 400
EDGE_BYTES: Final = 45
BUILT_EDGE_BYTES: Final = 90

_UNCHECKED: Final = 2**30
"""Below this, free memory need not be checked."""

_forced: ContextVar[bool] = ContextVar("forced", default=False)


@contextmanager
def any_size(forced: bool) -> Iterator[None]:
    """Ignore the estimate in this block if `forced`."""
    token = _forced.set(forced)
    try:
        yield
    finally:
        _forced.reset(token)


def check_room(nbytes: int, load: str, free: int | None = None) -> None:
    """Raise if something needs more memory than is free.

    Parameters
    ----------
    nbytes : int
        Estimate of the memory needed.
    load : str
        Description of what needs it, with its numbers.
    free : int, optional
        Free bytes; by default as the system reports, if it does.

    Raises
    ------
    InputError
        It does not fit.

    Examples
    --------
    >>> check_room(10**8 * TASK_BYTES, "100,000,000 tasks", free=16 * 10**9)
    Traceback (most recent call last):
    sim.base.errors.InputError: 100,000,000 tasks take about 40.0 GB of memory, and 16.0 GB ...
    >>> check_room(10**8 * TASK_BYTES, "100,000,000 tasks", free=64 * 10**9)
    """
    if nbytes < _UNCHECKED or _forced.get():
        return
    free = free_bytes() if free is None else free
    if free is not None and nbytes > free:
        need, spare = (f"{size / 10**9:,.1f} GB" for size in (nbytes, free))
        raise InputError(f"{load} take about {need} of memory, and {spare} are free; sim run --force goes on")


def free_bytes(system: Path = Path("/")) -> int | None:
    """Return the free memory of the machine and of the group of processes; None: unknown.

    Parameters
    ----------
    system : path
        Where ``/proc`` and ``/sys`` are.
    """
    free = []
    try:
        lines = (system / "proc/meminfo").read_text().splitlines()
        free += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except OSError:
        return None
    group = system / "sys/fs/cgroup"
    try:  # control groups of version 2; files in the cache are released when memory is needed
        limit, used = ((group / f"memory.{name}").read_text().strip() for name in ("max", "current"))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        if limit != "max":
            free.append(max(0, int(limit) - int(used) + int(stat.get("inactive_file", 0))))
    except (OSError, ValueError):
        pass
    return min(free, default=None)
