"""What is known of a recorded process: GPU tasks and waits as rows, host calls as columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np

from sim.words.arrays import UNSET, BoolArray, Codes, IntArray

__all__ = ["NEVER", "Calls", "GpuTask", "HostCall", "HostWait", "StreamWait", "Thread", "Trace"]

NEVER: Final = -(2**61)
"""In a column of times: it did not happen."""

Thread = tuple[int, int]
"""Process and thread, as the system numbers them."""


class GpuTask(NamedTuple):
    """A kernel, copy or fill that ran.

    Attributes
    ----------
    name : str
    device, stream : int
    correlation : int
        Number of the launch.
    start_ns, duration_ns : int
    nbytes : int
        Of a copy or fill.
    facts : dict
        ``grid``, ``block``, ``registers``, ``shared_memory``, where recorded.
    group : tuple of str, optional
        Name and ranks of the process group of a collective, where recorded.
    pair : bool
        Whether it is a ``send`` or ``recv``, by what is recorded.
    message : tuple of int
        Bytes that a collective takes and gives on this rank, where recorded.
    group_size : int
        How many ranks its process group has; 0: not recorded.
    """

    name: str
    device: int
    stream: int
    correlation: int
    start_ns: int
    duration_ns: int
    nbytes: int
    facts: dict[str, Any]
    group: tuple[str, str] | None = None
    pair: bool = False
    message: tuple[int, int] = (0, 0)
    group_size: int = 0

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.duration_ns

    @property
    def communicates(self) -> bool:
        """Whether it is a kernel of NCCL (or RCCL, whose kernels have the same names)."""
        return self.name.startswith("nccl")


class HostCall(NamedTuple):
    """A call of the CUDA runtime or driver."""

    name: str
    thread: int
    correlation: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of the CUDA runtime or driver, in order of time: a row each.

    Attributes
    ----------
    names : sequence of str
        Of which `name` has the numbers.
    name, thread, correlation, start_ns, end_ns : array
        Threads are numbers, too: see `Trace.control`.
    """

    names: Sequence[str]
    name: IntArray
    thread: IntArray
    correlation: IntArray
    start_ns: IntArray
    end_ns: IntArray

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.name)

    def __getitem__(self, n: int) -> HostCall:
        """Return one of them."""
        own = (self.thread, self.correlation, self.start_ns, self.end_ns)
        return HostCall(self.names[self.name[n]], *(int(column[n]) for column in own))

    def named(self, pattern: re.Pattern[str]) -> BoolArray:
        """Whether the name of each begins so."""
        fits: BoolArray = np.array([pattern.match(name) is not None for name in self.names], bool)[self.name]
        return fits

    def later(self, ns: int) -> Calls:
        """Return them by a clock that shows `ns` more."""
        return replace(self, start_ns=self.start_ns + ns, end_ns=self.end_ns + ns)


@dataclass(frozen=True, slots=True)
class StreamWait:
    """A recorded wait of a stream for an event of another one."""

    device: int
    stream: int
    after: int
    """Tasks of the stream launched after this correlation wait,"""
    on_stream: int
    recorded: int
    """for those of the other stream launched before this one."""
    sure: bool
    """Whether the event was recorded by that call; else it may have been earlier."""


@dataclass(frozen=True, slots=True)
class HostWait:
    """What a recorded call of the host waits for."""

    device: int
    stream: int
    """-1: all streams."""
    recorded: int
    """It waits for what was launched before this correlation."""


@dataclass(frozen=True)
class Trace:
    """Everything that matters here, in order of time.

    Attributes
    ----------
    tasks : list of GpuTask
    calls : Calls
    waits : list of StreamWait
    operators : list of str or None
        What launched each task (``"aten::addmm"``), if the trace says.
    host_waits : dict
        By correlation of the call.
    control : array
        Thread → the thread that waits for it meanwhile, if it only runs gradients, or else itself.
    uncalled : int
        Threads that run gradients of another one, which is not known to wait for them alone.
    inside : mapping
        By thread: begin and end of every operator in which a process group launches its kernels.
    rank, world_size : int or None
        Of a distributed job.
    """

    tasks: Sequence[GpuTask]
    calls: Calls
    waits: Sequence[StreamWait]
    operators: Sequence[str | None]
    host_waits: Mapping[int, HostWait]
    control: IntArray
    uncalled: int
    inside: Mapping[int, Sequence[tuple[int, int]]]
    rank: int | None = None
    world_size: int | None = None

    @cached_property
    def start_ns(self) -> IntArray:
        """When each task started."""
        return np.array([task.start_ns for task in self.tasks], np.int64)

    @cached_property
    def end_ns(self) -> IntArray:
        """When each task ended."""
        return self.start_ns + np.array([task.duration_ns for task in self.tasks], np.int64)

    @cached_property
    def correlation(self) -> IntArray:
        """Number of the launch of each task."""
        return np.array([task.correlation for task in self.tasks], np.int64)

    @cached_property
    def launch(self) -> IntArray:
        """The call that launched each task, the innermost of several in one another; `UNSET`: none."""
        order = np.argsort(self.calls.correlation, kind="stable")
        known = self.calls.correlation[order]
        last = np.searchsorted(known, self.correlation, side="right") - 1
        found = (last >= 0) & (known[last] == self.correlation) if len(known) else np.zeros(len(last), bool)
        return np.where(found, order[last] if len(order) else UNSET, UNSET)

    def named(self, pattern: re.Pattern[str]) -> BoolArray:
        """Whether something in the name of each task fits."""
        names = Codes[str]()
        name = names.of(task.name for task in self.tasks)
        fits: BoolArray = np.array([pattern.search(name) is not None for name in names], bool)[name]
        return fits

    @property
    def begin_ns(self) -> int:
        """When the first task or call began."""
        return int(min([*self.start_ns[:1], *self.calls.start_ns[:1]]))

    def later(self, ns: int) -> Trace:
        """Return it by a clock that shows `ns` more."""
        tasks = [task._replace(start_ns=task.start_ns + ns) for task in self.tasks]
        return replace(self, tasks=tasks, calls=self.calls.later(ns))
