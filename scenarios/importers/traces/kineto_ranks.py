"""The ranks of a job, each recorded by itself: who is who, whose kernels met, and one clock for all.

A kernel of NCCL starts when its stream lets it, waits for the ranks that are late, and transfers; all end
together. So the recorded time of a collective is two things, which the last rank to come tells apart::

    rank 0   [ waits . . . . . . . . ##### ]     as recorded: 9 us
    rank 1            [ waits  . . . ##### ]                  6 us
    rank 2                          [##### ]                  2 us: the transfer

A rank's ops get the transfer as their duration; the waiting comes about in the simulation, or does not.

* **Who is who**: ``distributedInfo`` of each trace. All ranks of a job have to be there, once.
* **Communicators**: name and ranks of the process group, which newer traces have (``Process Group Name``,
  ``Process Group Ranks``). An older one does not say it; then every stream on which NCCL's kernels run is
  one, as each process group of PyTorch has a stream of its own, and streams of all ranks belong together in
  the order of their first kernel. The n-th kernel of a rank on a communicator met the n-th of the others.
* **Clocks**: a rank's clock is shifted by the median of what its collectives ended earlier or later than
  those of ranks whose clocks are known, beginning with the lowest rank. Sends, receives, broadcasts and
  reductions to one rank do not end together, and are not asked.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Final, NamedTuple

from scenarios.importers.files import StrPath
from scenarios.importers.traces.kernel_names import kind_of
from scenarios.importers.traces.kineto_rows import GpuTask, Trace
from sim.words.errors import InputError

__all__ = ["Meeting", "Rank", "together"]

_APART_NS: Final = 100_000
"""What the ends of one collective may be apart, plus a ten-thousandth of the recorded time: clocks drift."""

_TOGETHER: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
"""Collectives that end on all ranks together, as each needs something of every other."""


class Meeting(NamedTuple):
    """What a collective is on one rank.

    Attributes
    ----------
    communicator : str
    transfer_ns : int
        From the start of the last rank to the end.
    """

    communicator: str
    transfer_ns: int


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


_Key = int | tuple[str, str]
"""A communicator: the number of its stream, or name and ranks of its process group."""

_Groups = dict[str, dict[int, list[int]]]
"""Communicator → rank → its tasks, in order."""


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
        Kernels that communicate in pairs; they do not meet.
    """
    file_of = _files_of_ranks(paths, traces)
    path_of = {rank: paths[file] for rank, file in file_of.items()}
    groups = _communicators({rank: traces[file] for rank, file in file_of.items()}, path_of)
    offsets = _offsets({rank: traces[file] for rank, file in file_of.items()}, groups, path_of)
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


def _communicators(traces: Mapping[int, Trace], paths: Mapping[int, StrPath]) -> _Groups:
    """Return the collectives of all ranks by communicator, checked."""
    found: dict[_Key, dict[int, list[int]]] = {}
    pairs = 0
    collectives = {
        rank: [(i, task) for i, task in enumerate(trace.tasks) if task.communicates]
        for rank, trace in traces.items()
    }
    named = all(task.group is not None for tasks in collectives.values() for _, task in tasks)
    for rank, tasks in collectives.items():
        streams: dict[int, int] = {}
        for i, task in tasks:
            key: _Key = streams.setdefault(task.stream, len(streams))
            if named and task.group is not None:
                key = task.group
            pairs += task.pair
            if not task.pair:
                found.setdefault(key, {}).setdefault(rank, []).append(i)
    if pairs:
        warnings.warn(
            f"{pairs} kernels send or receive between two ranks; they keep their recorded times, and do not "
            "wait for each other",
            stacklevel=4,
        )
    groups: _Groups = {}
    for key, members in found.items():
        wanted = _ranks_of(key, traces)
        name = f"nccl{key}" if isinstance(key, int) else _unused(key[0], groups)
        _check_members(name, members, wanted, traces, paths)
        if len(members) > 1:
            groups[name] = members
    if not groups:
        raise InputError(
            f"{next(iter(paths.values()))}: has no collective of NCCL that it shares with another rank"
        )
    return groups


def _ranks_of(key: _Key, traces: Mapping[int, Trace]) -> list[int]:
    """Return the ranks of a communicator, as far as it is known."""
    if not isinstance(key, tuple):
        return [*traces]
    listed = key[1]
    if "..." in listed:  # the profiler names the first ones only
        return []
    return [int(number) for number in re.findall(r"\d+", listed)]


def _unused(name: str, groups: _Groups) -> str:
    """Return a name for a communicator: of two groups of one name, the second is ``name.1``."""
    same = sum(known == name or known.startswith(f"{name}.") for known in groups)
    return f"{name}.{same}" if same else name


def _check_members(
    name: str,
    members: Mapping[int, list[int]],
    wanted: Sequence[int],
    traces: Mapping[int, Trace],
    paths: Mapping[int, StrPath],
) -> None:
    """Refuse a communicator whose ranks do not have the same collectives."""
    first, mine = next(iter(members.items()))
    for rank in wanted or members:
        theirs = members.get(rank, [])
        where = f"{paths.get(rank, paths[first])}: communicator {name!r}"
        both = f"{where}: rank {rank} has {len(theirs)} collectives and rank {first} has {len(mine)}"
        for n, (a, b) in enumerate(zip(mine, theirs, strict=False)):
            kinds = [kind_of(traces[r].tasks[i].name) for r, i in ((first, a), (rank, b))]
            if kinds[0] != kinds[1]:
                raise InputError(
                    f"{where}: number {n} is {kinds[1]} on rank {rank} and {kinds[0]} on rank {first}; they "
                    "are of different jobs or steps"
                )
        if len(mine) != len(theirs):
            raise InputError(f"{both}; they are of different jobs, or not recorded over the same steps")


# -- one clock ------------------------------------------------------------------------------------


def _offsets(traces: Mapping[int, Trace], groups: _Groups, paths: Mapping[int, StrPath]) -> dict[int, int]:
    """Return what each rank's clock is to be shifted by."""
    ends: dict[int, dict[tuple[str, int], int]] = {rank: {} for rank in traces}
    for name, members in groups.items():
        for rank, tasks in members.items():
            for n, i in enumerate(tasks):
                if kind_of(traces[rank].tasks[i].name) in _TOGETHER:
                    ends[rank][name, n] = traces[rank].tasks[i].end_ns
    first, *others = traces
    offsets, known = {first: 0}, ends[first]
    while others:
        rank = next((each for each in others if not known.keys().isdisjoint(ends[each])), others[0])
        if known.keys().isdisjoint(ends[rank]):
            raise InputError(
                f"{paths[rank]}: rank {rank} has no collective that ends together with one of rank {first}, "
                "so their clocks cannot be compared"
            )
        offsets[rank] = _median([known[key] - end for key, end in ends[rank].items() if key in known])
        known = {key: end + offsets[rank] for key, end in ends[rank].items()} | known
        others.remove(rank)
    return offsets


def _median(values: Sequence[int]) -> int:
    return sorted(values)[len(values) // 2]


def _meetings(
    traces: Mapping[int, Trace], groups: _Groups, paths: Mapping[int, StrPath]
) -> dict[int, dict[int, Meeting]]:
    """Return what each task of a collective is, by rank."""
    found: dict[int, dict[int, Meeting]] = {rank: {} for rank in traces}
    for name, members in groups.items():
        for together_ in zip(*members.values(), strict=True):
            met = dict(zip(members, together_, strict=True))
            tasks: dict[int, GpuTask] = {rank: traces[rank].tasks[i] for rank, i in met.items()}
            last = max(tasks, key=lambda rank: (tasks[rank].start_ns, -rank))
            gone = min(tasks, key=lambda rank: (tasks[rank].end_ns, rank))
            apart = tasks[last].start_ns - tasks[gone].end_ns
            recorded = tasks[last].end_ns - traces[last].begin_ns
            if apart > _APART_NS + recorded // 10_000 and kind_of(tasks[last].name) in _TOGETHER:
                raise InputError(
                    f"{paths[gone]}: a collective of communicator {name!r} ended on rank {gone} "
                    f"{apart / 1e6:.3f} ms before it began on rank {last}: of different steps or jobs"
                )
            for rank, i in met.items():
                found[rank][i] = Meeting(name, tasks[last].duration_ns)
    return found
