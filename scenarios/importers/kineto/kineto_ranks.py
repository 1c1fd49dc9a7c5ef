"""The ranks of a job, each recorded separately: their identity, their meetings, and a common clock.

A kernel of NCCL starts when its stream allows it, waits for the ranks that are late, and transfers; all end
together. So the recorded time of a collective has two parts, which the last rank to arrive separates::

    rank 0   [ waits . . . . . . . . ##### ]     as recorded: 9 us
    rank 1            [ waits  . . . ##### ]                  6 us
    rank 2                          [##### ]                  2 us: the transfer

A rank's ops get the transfer as their duration; the waiting arises in the simulation, or does not. Because
clocks drift apart in a long recording, the last rank is not the one that seems to start last, but the one
with the shortest kernel; only for kernels that do not end together the clock decides.

* **Identity**: ``distributedInfo`` of each trace. All ranks of a job have to be present, once.
* **Meetings**, and clock differences, come from `rank_groups`: newer traces name the process group
  (``Process Group Name``, ``Process Group Ranks``), older ones have a stream for each.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Final, NamedTuple

from scenarios.importers.kineto.kernel_names import kind_of
from scenarios.importers.kineto.kineto_rows import GpuTask, RecordedTrace
from sim.base.arrays import UNSET
from sim.base.errors import InputError
from sim.base.files import StrPath

# ----------------------------------------------------------------------------------------------------------
# Which collectives of several ranks met, and the differences of their clocks: for recordings of any format.
#
# * **Communicators**: name and ranks of the process group, if every recorded call has them. Otherwise each
#   stream with collectives is one, because each process group of PyTorch has its own stream; the
#   streams of all ranks are matched in the order of first calls. The n-th call of a rank on a
#   communicator met the n-th of the others.
# * **Sends and recvs**: the n-th send from one rank to another on a process group met the n-th recv there, if
#   each names its peer.
# * **Clocks**: a rank's clock is shifted by the median difference between the ends of its collectives and
#   those of ranks whose clocks are known, beginning with the lowest rank. Sends, receives, broadcasts and
#   reductions to one rank do not end together, and do not count. Processes of one recording share a clock.

_ALONE: Final = "keep their recorded times, and do not wait for each other"
END_TOGETHER: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
"""Collectives that end on all ranks together, because each needs data from every other rank."""
_P2P: Final = frozenset({"send", "recv"})
"""What passes between two ranks."""


class RecordedCall(NamedTuple):
    """A recorded call of a communicator.

    Attributes
    ----------
    task : int
        Its number among the tasks of its rank.
    kind : str
    stream : hashable
    end_ns : int
        By the clock of its rank.
    group : tuple of str or None
        Name and ranks of the process group, if recorded.
    peer : int
        The peer rank; -1: not recorded.
    """

    task: int
    kind: str
    stream: Hashable
    end_ns: int
    group: tuple[str, str] | None = None
    peer: int = UNSET


_Key = int | tuple[str, str]
"""A communicator: the number of its stream, or name and ranks of its process group."""

Groups = dict[str, dict[int, list[int]]]
"""Communicator → rank → its tasks, in order."""


def communicators(calls: Mapping[int, Sequence[RecordedCall]], paths: Mapping[int, StrPath]) -> Groups:
    """Return the collectives of all ranks by communicator, checked.

    Parameters
    ----------
    calls : mapping
        By rank, in order.
    paths : mapping
        The file of each rank, for messages.

    Raises
    ------
    InputError
        Ranks do not have the same collectives, or share none although each has its own recording.

    Warns
    -----
    UserWarning
        Sends and recvs whose peer is ambiguous; ranks of one recording that share nothing.
    """
    calls_of: dict[_Key, dict[int, list[RecordedCall]]] = {}
    named = all(call.group is not None for rank_calls in calls.values() for call in rank_calls)
    for rank, rank_calls in calls.items():
        streams: dict[Hashable, int] = {}
        for call in rank_calls:
            if call.kind in _P2P:
                continue
            key: _Key = streams.setdefault(call.stream, len(streams))
            if named and call.group is not None:
                key = call.group
            calls_of.setdefault(key, {}).setdefault(rank, []).append(call)
    groups = _pairs(calls)
    for key, members in calls_of.items():
        name = f"nccl{key}" if isinstance(key, int) else _unused_name(key[0], groups)
        _check_members(name, members, _parse_ranks(key[1]) if isinstance(key, tuple) else [*calls], paths)
        if len(members) > 1:
            groups[name] = {rank: [call.task for call in rank_calls] for rank, rank_calls in members.items()}
    first, *others = dict.fromkeys(paths.values())
    if not groups and others:
        raise InputError(f"{first}: has no collective of NCCL that it shares with another rank")
    if not groups and len(calls) > 1:
        message = f"{first}: {len(calls)} ranks share no collective of NCCL"
        warnings.warn(f"{message}: they run beside one another, with MPI's calls as recorded", stacklevel=6)
    return groups


def files_of_ranks(ranks: Sequence[int], paths: Sequence[StrPath], size: int | None = None) -> dict[int, int]:
    """Return the number of each rank's file, in order of ranks; all ranks have to be there, once."""
    file_of: dict[int, int] = {}
    for file, rank in enumerate(ranks):
        if rank in file_of:
            raise InputError(f"{paths[file]}: is rank {rank}, as {paths[file_of[rank]]} is")
        file_of[rank] = file
    n_ranks = size or max(file_of) + 1
    missing = [*islice((rank for rank in count() if rank not in file_of), min(9, n_ranks - len(file_of)))]
    if missing:
        listed = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        more = "" if size else " or more"
        raise InputError(f"{paths[0]}: is of a job of {n_ranks} ranks{more}; missing: {listed}")
    return dict(sorted(file_of.items()))


def _pairs(calls: Mapping[int, Sequence[RecordedCall]]) -> Groups:
    """Return the sends and recvs that met; each direction between two ranks is a communicator."""
    sides: dict[tuple[str, int, int], dict[int, list[int]]] = {}
    for rank, rank_calls in calls.items():
        for call in rank_calls:
            if call.kind in _P2P:
                ends = (rank, call.peer) if call.kind == "send" else (call.peer, rank)
                name = "nccl" if call.group is None else call.group[0]
                sides.setdefault((name, *ends), {}).setdefault(rank, []).append(call.task)
    pairs = {k: pair for k, pair in sides.items() if len({*map(len, pair.values())}) + 1 == len(pair) == 2}
    single = sum(len(tasks) for k, pair in sides.items() if k not in pairs for tasks in pair.values())
    if single:
        message = f"{single} kernels send or receive between two ranks, and it is not clear whom they met"
        warnings.warn(f"{message}; they {_ALONE}", stacklevel=6)
    return {f"{name}.{source}-{target}": pair for (name, source, target), pair in pairs.items()}


def _parse_ranks(ranks: str) -> list[int]:
    """Return the ranks of a process group; a list that the profiler truncated counts as none."""
    return [] if "..." in ranks else [int(number[:9]) for number in re.findall(r"\d+", ranks)]


def process_group(name: str, ranks: str, size: int = 0) -> dict[str, Any]:
    """Return the known properties of a collective's process group, as attributes of its op.

    Examples
    --------
    >>> process_group("dp", "[0, 2]")
    {'process_group': 'dp', 'process_group_ranks': [0, 2], 'process_group_size': 2}
    """
    listed = _parse_ranks(ranks)
    size = size or len(listed)
    properties: dict[str, Any] = {"process_group": name}
    properties |= {"process_group_ranks": listed} if listed else {}
    return properties | ({"process_group_size": size} if size else {})


def _unused_name(name: str, groups: Groups) -> str:
    """Return an unused name for a communicator: the second group of the same name is ``name.1``."""
    n = sum(other == name or other.startswith(f"{name}.") for other in groups)
    return f"{name}.{n}" if n else name


def _check_members(
    name: str, members: Mapping[int, list[RecordedCall]], ranks: Sequence[int], paths: Mapping[int, StrPath]
) -> None:
    """Raise if the ranks of a communicator do not have the same collectives."""
    first, first_calls = next(iter(members.items()))
    for rank in ranks or members:
        rank_calls = members.get(rank, [])
        difference = f"rank {rank} has {len(rank_calls)} collectives and rank {first} has {len(first_calls)}"
        for n, (a, b) in enumerate(zip(first_calls, rank_calls, strict=False)):
            if a.kind != b.kind:
                difference = f"number {n} is {b.kind} on rank {rank} and {a.kind} on rank {first}"
                break
        if [call.kind for call in first_calls] != [call.kind for call in rank_calls]:
            where = f"{paths.get(rank, paths[first])}: communicator {name!r}"
            raise InputError(f"{where}: {difference}; they are of different jobs, or not of the same steps")


def clock_offsets(
    calls: Mapping[int, Sequence[RecordedCall]], groups: Groups, paths: Mapping[int, StrPath]
) -> dict[int, int]:
    """Return the shift of each rank's clock.

    Parameters
    ----------
    calls, groups : mapping
        As for `communicators`, and what it returns.
    paths : mapping
        By rank: the file in which it was recorded.

    Raises
    ------
    InputError
        A rank has its own recording, but no collective that ended together with one of another rank.
    """
    ends: dict[int, dict[tuple[str, int], int]] = {rank: {} for rank in calls}
    for name, members in groups.items():
        for rank, tasks in members.items():
            by_task = {call.task: call for call in calls[rank]}
            for n, task in enumerate(tasks):
                if by_task[task].kind in END_TOGETHER:
                    ends[rank][name, n] = by_task[task].end_ns
    first, *others = ends
    offsets, common, by_file = {first: 0}, dict(ends[first]), {paths[first]: 0}
    while others:
        rank = next(
            (r for r in others if paths[r] in by_file or not common.keys().isdisjoint(ends[r])),
            others[0],
        )
        if paths[rank] not in by_file:
            shifts = [common[key] - end for key, end in ends[rank].items() if key in common]
            if not shifts:
                problem = f"rank {rank} has no collective that ends together with one of rank {first}"
                raise InputError(f"{paths[rank]}: {problem}, so their clocks cannot be compared")
            by_file[paths[rank]] = sorted(shifts)[len(shifts) // 2]
        offsets[rank] = by_file[paths[rank]]
        common = {key: end + offsets[rank] for key, end in ends[rank].items()} | common
        others.remove(rank)
    return offsets


# ----------------------------------------------------------------------------------------------------------

_SPREAD_NS: Final = 100_000
"""Maximum difference of the ends of one collective, plus a ten-thousandth of the recording: clocks drift."""


class Meeting(NamedTuple):
    """A collective on one rank.

    Attributes
    ----------
    communicator : str
    transfer_ns : int
        From the start of the last rank to the end.
    message : tuple of int
        Bytes that it takes and gives on this rank; 0: not recorded, or ranks disagree.
    peer : int
        The other rank of a send or recv; -1: it is of all ranks.
    """

    communicator: str
    transfer_ns: int
    message: tuple[int, int] = (0, 0)
    peer: int = UNSET


@dataclass(frozen=True)
class Rank:
    """A rank, on the clock of the lowest one.

    Attributes
    ----------
    number : int or None
        None: one process, whose rank does not matter.
    file : int
        Number of its file.
    trace : RecordedTrace
    meetings : mapping
        By task.
    """

    number: int | None
    file: int
    trace: RecordedTrace
    meetings: Mapping[int, Meeting] = field(default_factory=dict)


def align_ranks(paths: Sequence[StrPath], traces: Sequence[RecordedTrace]) -> list[Rank]:
    """Return the ranks of a job, in order.

    Raises
    ------
    InputError
        A trace does not name its rank, has two GPUs, or is of another job; a rank is there twice, or missing;
        or collectives cannot have met.

    Warns
    -----
    UserWarning
        Sends and recvs that did not meet, or whose peer is ambiguous; ranks that meet nowhere.
    """
    file_of = _files_of_ranks(paths, traces)
    path_of = {rank: paths[file] for rank, file in file_of.items()}
    calls = {rank: _calls(traces[file]) for rank, file in file_of.items()}
    groups = communicators(calls, path_of)
    offsets = clock_offsets(calls, groups, path_of)
    shifted = {rank: traces[file].later(offsets[rank]) for rank, file in file_of.items()}
    meetings = _meetings(shifted, groups, path_of)
    return [Rank(rank, file, shifted[rank], meetings[rank]) for rank, file in file_of.items()]


def _files_of_ranks(paths: Sequence[StrPath], traces: Sequence[RecordedTrace]) -> dict[int, int]:
    """Return the number of each rank's file, in order of ranks."""
    ranks, size = list[int](), traces[0].world_size
    for path, trace in zip(paths, traces, strict=True):
        if trace.rank is None:
            raise InputError(f"{path}: does not say which rank of how many it is (distributedInfo)")
        if trace.world_size != size:
            raise InputError(
                f"{path}: is rank {trace.rank} of {trace.world_size}, and {paths[0]} is rank "
                f"{traces[0].rank} of {size}: they are of different jobs"
            )
        if len({task.device for task in trace.tasks}) > 1:
            raise InputError(f"{path}: has tasks of several GPUs; a rank of a job has one")
        ranks.append(trace.rank)
    return files_of_ranks(ranks, paths, size)


# -- who meets whom -------------------------------------------------------------------------------


def _calls(trace: RecordedTrace) -> list[RecordedCall]:
    """Return the kernels of NCCL."""
    return [
        RecordedCall(i, _kind(task), task.stream, task.end_ns, task.group, task.peer)
        for i, task in enumerate(trace.tasks)
        if task.communicates
    ]


def _meetings(
    traces: Mapping[int, RecordedTrace], groups: Groups, paths: Mapping[int, StrPath]
) -> dict[int, dict[int, Meeting]]:
    """Return the meeting of each task of a collective, by rank."""
    meetings: dict[int, dict[int, Meeting]] = {rank: {} for rank in traces}
    buffered = 0
    for name, members in groups.items():
        for group in zip(*members.values(), strict=True):
            indices = dict(zip(members, group, strict=True))
            tasks: dict[int, GpuTask] = {rank: traces[rank].tasks[i] for rank, i in indices.items()}
            last = max(tasks, key=lambda rank: (tasks[rank].start_ns, -rank))
            first = min(tasks, key=lambda rank: (tasks[rank].end_ns, rank))
            lag_ns = tasks[last].start_ns - tasks[first].end_ns
            recorded = traces[last].tasks[-1].end_ns - traces[last].begin_ns
            end_together = _kind(tasks[last]) in END_TOGETHER
            if lag_ns >= 0 and _kind(tasks[first]) == "send":
                buffered += 1
                continue
            if lag_ns > _SPREAD_NS + recorded // 10_000 and (end_together or _kind(tasks[first]) in _P2P):
                raise InputError(
                    f"{paths[first]}: a collective of communicator {name!r} ended on rank {first} "
                    f"{lag_ns / 1e6:.3f} ms before it began on rank {last}: of different steps or jobs"
                )
            shortest = min(task.duration_ns for task in tasks.values())
            transfer_ns = shortest if end_together else tasks[last].duration_ns
            sizes = {max(task.message) for task in tasks.values()}
            agree = len(sizes) == 1 or (_kind(tasks[last]) == "all_to_all" and 0 not in sizes)
            for rank, i in indices.items():
                message = tasks[rank].message if agree else (0, 0)
                meetings[rank][i] = Meeting(name, transfer_ns, message, tasks[rank].peer)
    if buffered:
        note = f"{buffered} sends ended before their recvs began, as what they sent was buffered"
        warnings.warn(f"{note}; they {_ALONE}", stacklevel=5)
    return meetings


def _kind(task: GpuTask) -> str:
    return kind_of(task.name, task.collective)
