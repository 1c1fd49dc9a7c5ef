"""A recorded process as plain rows: host calls, GPU tasks, and waits."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from sim.base.arrays import UNSET, BoolArray, Codes, IntArray

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
        Bytes of a copy or fill.
    facts : dict
        ``grid``, ``block``, ``registers``, ``shared_memory``, if recorded; and the sizes of its operator.
    group : tuple of str, optional
        Name and ranks of the process group of a collective, if recorded.
    collective : str
        PyTorch's name of it, if recorded: ``send``, ``allreduce``, ``_allgather_base``.
    message : tuple of int
        Bytes that a collective takes and gives on this rank, if recorded.
    group_size : int
        Number of ranks of its process group; 0: not recorded.
    peer : int
        The rank to which it sends, or from which it receives; -1: not recorded.
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
    collective: str = ""
    message: tuple[int, int] = (0, 0)
    group_size: int = 0
    peer: int = UNSET

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.duration_ns

    @property
    def communicates(self) -> bool:
        """Whether it is a kernel of NCCL (or RCCL, whose kernels have the same names)."""
        return self.name.startswith("nccl")


class HostCall(NamedTuple):
    """A call of the CUDA runtime or driver; its number is its position in order of time."""

    number: int
    name: str
    thread: Thread
    correlation: int
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls as columns, in order of time: there are hundreds of thousands, and few are needed as rows.

    Attributes
    ----------
    names : sequence of str
        The names to which the numbers in `name` refer.
    name, thread, correlation, start_ns, end_ns : array
        Threads are also given by number.
    """

    names: Sequence[str]
    name: IntArray
    thread: IntArray
    correlation: IntArray
    start_ns: IntArray
    end_ns: IntArray

    def match_names(self, pattern: re.Pattern[str]) -> BoolArray:
        """Whether the name of each matches from its beginning."""
        fits: BoolArray = np.array([pattern.match(name) is not None for name in self.names], bool)[self.name]
        return fits

    def only(self, chosen: BoolArray) -> Calls:
        """Return the chosen calls."""
        columns = self.name, self.thread, self.correlation, self.start_ns, self.end_ns
        return Calls(self.names, *(column[chosen] for column in columns))

    def rows(self, threads: Sequence[Thread], chosen: BoolArray) -> list[HostCall]:
        """Return the chosen calls as rows."""
        calls = self.only(chosen)
        names = map(self.names.__getitem__, calls.name.tolist())
        call_threads = map(threads.__getitem__, calls.thread.tolist())
        numbers = (calls.correlation.tolist(), calls.start_ns.tolist(), calls.end_ns.tolist())
        return [*map(HostCall, np.flatnonzero(chosen).tolist(), names, call_threads, *numbers)]


class EventWait(NamedTuple):
    """A wait of a stream for an event of another one.

    Attributes
    ----------
    key : tuple
        Which wait of the process it is, and for which stream: the same on all ranks of one program.
    call : int
        Correlation of the call: tasks launched on the stream after it wait.
    device, stream, on_stream : int
    recorded : int
        Correlation of the call that recorded the event, which covers tasks launched on `on_stream` before it.
    fits : bool
        Whether the next task of the stream was recorded to start after what it waits for had ended; for a
        wait as noted, whether that call recorded the event, and not possibly an earlier one.
    """

    key: tuple[int, int]
    call: int
    device: int
    stream: int
    on_stream: int
    recorded: int
    fits: bool = True


@dataclass(frozen=True, slots=True)
class HostWait:
    """What a recorded call of the host waits for."""

    device: int
    stream: int
    """-1: all streams."""
    recorded: int
    """It waits for what was launched before this correlation."""


@dataclass(frozen=True)
class RecordedTrace:
    """The relevant content of a trace, in order of time.

    Attributes
    ----------
    tasks, waits
    calls : list of HostCall
        The first call, and those that launch, wait or record an event.
    operators : list of str or None
        The operator that launched each task (``"aten::addmm"``), if recorded.
    host_waits : dict
        By correlation of the call.
    around : dict
        ``operator`` and ``module`` (with its enclosing ones) of calls, by correlation.
    callers : dict
        Thread that only runs gradients → the thread that waits for it meanwhile.
    uncalled : list
        Threads that run gradients of another one, which is not known to wait for them alone.
    inside : dict
        By thread: begin and end of every operator in which a process group launches its kernels.
    rank, world_size : int or None
        Of a distributed job.
    gpus : dict of int to str
        The driver's name of each GPU, by number.
    in_turn : int
        Number of inferred waits of a thread for another one with which it takes turns.
    kind : {"gpu", "tpu", "cpu"}
        Kind of its devices; on a CPU, tasks are on threads.
    """

    tasks: list[GpuTask] = field(default_factory=list)
    calls: list[HostCall] = field(default_factory=list)
    waits: list[EventWait] = field(default_factory=list)
    operators: list[str | None] = field(default_factory=list)
    host_waits: dict[int, HostWait] = field(default_factory=dict)
    around: dict[int, dict[str, str]] = field(default_factory=dict)
    callers: dict[Thread, Thread] = field(default_factory=dict)
    uncalled: list[Thread] = field(default_factory=list)
    inside: dict[Thread, list[tuple[int, int]]] = field(default_factory=dict)
    rank: int | None = None
    world_size: int | None = None
    gpus: dict[int, str] = field(default_factory=dict)
    in_turn: int = 0
    kind: str = "gpu"

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
    def lane(self) -> IntArray:
        """Number of the device and stream of each task."""
        return Codes[tuple[int, int]]().of((task.device, task.stream) for task in self.tasks)

    @property
    def begin_ns(self) -> int:
        """When the first task or call began."""
        starts = [task.start_ns for task in self.tasks[:1]] + [call.start_ns for call in self.calls[:1]]
        return min(starts)

    def later(self, ns: int) -> RecordedTrace:
        """Return the trace on a clock that shows `ns` more."""
        return replace(
            self,
            tasks=[task._replace(start_ns=task.start_ns + ns) for task in self.tasks],
            calls=[c._replace(start_ns=c.start_ns + ns, end_ns=c.end_ns + ns) for c in self.calls],
        )


# ----------------------------------------------------------------------------------------------------------
# Waits for events as the profiler noted them, and what the numbers of events add where notes are missing.
#
#     "args" of a wait           wait_on_stream   wait_on_cuda_event_record_corr_id   wait_on_cuda_event_id
#     as it should be                         7                                  12                       5
#     before September 2023                   7                              (none)                       5
#     unknown to the profiler                -1                                  -1                       5
#
# A wait is for what was launched before the last recording of its event. So two waits for event 5 are for the
# same recording if nobody called ``cudaEventRecord`` between them, and a wait is for what a later one
# names if that had been recorded by then. A trace without these calls comes from an older profiler;
# there each wait stands for itself: for its stream as it was then.
#
# Sources: pytorch/kineto, pull requests 808 (the correlation and the calls), 1318 and 1552 (what was lost).


class Noted(NamedTuple):
    """A wait as noted by the profiler.

    Attributes
    ----------
    call : int
        Correlation of the call.
    device, stream : int
        The waiting stream; -1 is the host.
    on_stream : int
        Stream of the event; -1: unknown.
    recorded : int
        Correlation of the call that recorded the event; -1: unknown, so `on_stream` as it was at `asked`.
    event : int or None
    asked : int
        This call, or the first one that waited for the same recording.
    """

    call: int
    device: int
    stream: int
    on_stream: int
    recorded: int
    event: int | None
    asked: int


def resolve_waits(noted: Iterable[Noted], records: Sequence[int]) -> Iterator[Noted]:
    """Yield, in order of calls, the waits whose target is known.

    Parameters
    ----------
    noted : iterable of Noted
    records : sequence of int
        Correlations of the calls that recorded events, in order.
    """
    waits = sorted(noted, key=lambda wait: wait.call)
    later: dict[tuple[int, int | None], Noted] = {}
    for n, wait in reversed([*enumerate(waits)]):
        key = wait.device, wait.event
        if wait.recorded >= 0:
            later[key] = wait
        elif key in later and wait.event is not None and later[key].recorded <= wait.call:
            waits[n] = wait._replace(on_stream=later[key].on_stream, recorded=later[key].recorded)
    before: dict[tuple[int, int | None], Noted] = {}
    for wait in waits:
        prior = before.get((wait.device, wait.event)) if records and wait.event is not None else None
        same = prior is not None and bisect.bisect(records, prior.call) == bisect.bisect(records, wait.call)
        if wait.recorded < 0 and prior is not None and same:  # nobody recorded an event between them
            wait = wait._replace(on_stream=prior.on_stream, recorded=prior.recorded, asked=prior.asked)
        if wait.on_stream >= 0:
            before[wait.device, wait.event] = wait
            yield wait
