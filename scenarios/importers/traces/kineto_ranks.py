"""The ranks of a job, each recorded by itself: who is who, whose kernels met, and one clock for all.

A kernel of NCCL starts when its stream lets it, waits for the ranks that are late, and transfers; all end
together. So the recorded time of a collective is two things, which the last rank to come tells apart::

    rank 0   [ waits . . . . . . . . ##### ]     as recorded: 9 us
    rank 1            [ waits  . . . ##### ]                  6 us
    rank 2                          [##### ]                  2 us: the transfer

A rank's ops get the transfer as their duration; the waiting comes about in the simulation, or does not. As
clocks drift apart in a long recording, the last rank is not the one that seems to start last, but the one
whose kernel was the shortest; only of kernels that do not end together it is by the clock.

* **Who is who**: ``distributedInfo`` of each trace. All ranks of a job have to be there, once.
* **Who met whom**, and by how much clocks differ, says `rank_groups`: newer traces name the process group
  (``Process Group Name``, ``Process Group Ranks``), older ones have a stream for each.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Final, NamedTuple

from scenarios.importers.files import StrPath
from scenarios.importers.traces.kernel_names import kind_of
from scenarios.importers.traces.rank_groups import END_TOGETHER, Call, Groups, clock_offsets, communicators
from scenarios.importers.traces.trace_events.kineto_rows import GpuTask, Trace
from sim.words.arrays import UNSET
from sim.words.errors import InputError

__all__ = ["Meeting", "Rank", "together"]

_APART_NS: Final = 100_000
"""What the ends of one collective may be apart, plus a ten-thousandth of the recording: clocks drift."""


class Meeting(NamedTuple):
    """What a collective is on one rank.

    Attributes
    ----------
    communicator : str
    transfer_ns : int
        From the start of the last rank to the end.
    message : tuple of int
        Bytes that it takes and gives on this rank; 0: not recorded, or ranks disagree.
    peer : int
        Of a send or recv, the other rank; -1: it is of all ranks.
    """

    communicator: str
    transfer_ns: int
    message: tuple[int, int] = (0, 0)
    peer: int = UNSET


@dataclass(frozen=True)
class Rank:
    """A rank, by the clock of the lowest one.

    Attributes
    ----------
    number : int or None
        None: one process, whose rank does not matter.
    file : int
        Which of the files it is.
    trace : Trace
    meetings : mapping
        By task.
    """

    number: int | None
    file: int
    trace: Trace
    meetings: Mapping[int, Meeting] = field(default_factory=dict)


def together(paths: Sequence[StrPath], traces: Sequence[Trace]) -> list[Rank]:
    """Return the ranks of a job, in order.

    Raises
    ------
    InputError
        A trace does not say its rank, has two GPUs, or is of another job; a rank is there twice, or not at
        all; or collectives cannot have met.

    Warns
    -----
    UserWarning
        Sends and recvs that did not meet, or of which it is not clear whom.
    """
    file_of = _files_of_ranks(paths, traces)
    path_of = {rank: paths[file] for rank, file in file_of.items()}
    by_rank = {rank: traces[file] for rank, file in file_of.items()}
    groups = communicators({rank: _calls(trace) for rank, trace in by_rank.items()}, path_of)
    offsets = clock_offsets(_ends(by_rank, groups), path_of)
    shifted = {rank: traces[file].later(offsets[rank]) for rank, file in file_of.items()}
    meetings = _meetings(shifted, groups, path_of)
    return [Rank(rank, file, shifted[rank], meetings[rank]) for rank, file in file_of.items()]


def _files_of_ranks(paths: Sequence[StrPath], traces: Sequence[Trace]) -> dict[int, int]:
    """Return which file is which rank, in order of ranks."""
    found: dict[int, int] = {}
    size = traces[0].world_size
    for file, (path, trace) in enumerate(zip(paths, traces, strict=True)):
        if trace.rank is None:
            raise InputError(f"{path}: does not say which rank of how many it is (distributedInfo)")
        if trace.world_size != size:
            raise InputError(
                f"{path}: is rank {trace.rank} of {trace.world_size}, and {paths[0]} is rank "
                f"{traces[0].rank} of {size}: they are of different jobs"
            )
        if trace.rank in found:
            raise InputError(f"{path}: is rank {trace.rank}, as {paths[found[trace.rank]]} is")
        if len({task.device for task in trace.tasks}) > 1:
            raise InputError(f"{path}: has tasks of several GPUs; a rank of a job has one")
        found[trace.rank] = file
    missing = [*islice((rank for rank in count() if rank not in found), min(9, (size or 0) - len(found)))]
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        raise InputError(f"{paths[0]}: is of a job of {size} ranks; missing: {shown}")
    return dict(sorted(found.items()))


# -- who meets whom -------------------------------------------------------------------------------


def _calls(trace: Trace) -> list[Call]:
    """Return the kernels of NCCL."""
    return [
        Call(i, _kind(task), task.stream, task.group, task.pair, task.peer)
        for i, task in enumerate(trace.tasks)
        if task.communicates
    ]


def _ends(traces: Mapping[int, Trace], groups: Groups) -> dict[int, dict[tuple[str, int], int]]:
    """Return when the collectives ended that end together."""
    ends: dict[int, dict[tuple[str, int], int]] = {rank: {} for rank in traces}
    for name, members in groups.items():
        for rank, tasks in members.items():
            for n, i in enumerate(tasks):
                if _kind(traces[rank].tasks[i]) in END_TOGETHER:
                    ends[rank][name, n] = traces[rank].tasks[i].end_ns
    return ends


def _meetings(
    traces: Mapping[int, Trace], groups: Groups, paths: Mapping[int, StrPath]
) -> dict[int, dict[int, Meeting]]:
    """Return what each task of a collective is, by rank."""
    found: dict[int, dict[int, Meeting]] = {rank: {} for rank in traces}
    buffered = 0
    for name, members in groups.items():
        for together_ in zip(*members.values(), strict=True):
            met = dict(zip(members, together_, strict=True))
            tasks: dict[int, GpuTask] = {rank: traces[rank].tasks[i] for rank, i in met.items()}
            last = max(tasks, key=lambda rank: (tasks[rank].start_ns, -rank))
            gone = min(tasks, key=lambda rank: (tasks[rank].end_ns, rank))
            apart = tasks[last].start_ns - tasks[gone].end_ns
            recorded = traces[last].tasks[-1].end_ns - traces[last].begin_ns
            end_together = _kind(tasks[last]) in END_TOGETHER
            if apart >= 0 and _kind(tasks[gone]) == "send":
                buffered += 1
                continue
            if apart > _APART_NS + recorded // 10_000 and (end_together or tasks[gone].pair):
                raise InputError(
                    f"{paths[gone]}: a collective of communicator {name!r} ended on rank {gone} "
                    f"{apart / 1e6:.3f} ms before it began on rank {last}: of different steps or jobs"
                )
            shortest = min(task.duration_ns for task in tasks.values())
            transfer_ns = shortest if end_together else tasks[last].duration_ns
            sizes = {max(task.message) for task in tasks.values()}
            agree = len(sizes) == 1 or (_kind(tasks[last]) == "all_to_all" and 0 not in sizes)
            for rank, i in met.items():
                message = tasks[rank].message if agree else (0, 0)
                found[rank][i] = Meeting(name, transfer_ns, message, tasks[rank].peer)
    if buffered:
        warnings.warn(
            f"{buffered} sends ended before their recvs began, as what they sent was buffered; they keep "
            "their recorded times, and do not wait for each other",
            stacklevel=5,
        )
    return found


def _kind(task: GpuTask) -> str:
    return kind_of(task.name, task.collective)
