"""Which collectives of several ranks met, and by how much their clocks differ: for recordings of any format.

* **Communicators**: name and ranks of the process group, where every recorded call has them. Otherwise each
  stream on which collectives run is one, as each process group of PyTorch has a stream of its own; the
  streams of all ranks belong together in the order of first calls. The n-th call of a rank on a communicator
  met the n-th of the others.
* **Sends and recvs**: the n-th from one rank to another on a process group met the n-th recv there, where
  each says who is on the other side.
* **Clocks**: a rank's clock is shifted by the median of what its collectives ended earlier or later than
  those of ranks whose clocks are known, beginning with the lowest rank. Sends, receives, broadcasts and
  reductions to one rank do not end together, and are not asked.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from scenarios.importers.files import StrPath
from sim.words.arrays import UNSET
from sim.words.errors import InputError

__all__ = ["END_TOGETHER", "Call", "Groups", "clock_offsets", "communicators", "process_group"]

END_TOGETHER: Final = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all"})
"""Collectives that end on all ranks together, as each needs something of every other."""


class Call(NamedTuple):
    """A recorded call of a communicator.

    Attributes
    ----------
    task : int
        Its number among the tasks of its rank.
    kind : str
    stream : hashable
    group : tuple of str or None
        Name and ranks of the process group, where recorded.
    pair : bool
        Whether it sends or receives between two ranks.
    peer : int
        The other one; -1: not recorded.
    """

    task: int
    kind: str
    stream: Hashable
    group: tuple[str, str] | None = None
    pair: bool = False
    peer: int = UNSET


_Key = int | tuple[str, str]
"""A communicator: the number of its stream, or name and ranks of its process group."""

Groups = dict[str, dict[int, list[int]]]
"""Communicator → rank → its tasks, in order."""


def communicators(calls: Mapping[int, Sequence[Call]], paths: Mapping[int, StrPath]) -> Groups:
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
        Ranks do not have the same collectives, or have none together.

    Warns
    -----
    UserWarning
        Sends and recvs of which it is not clear whom they met.
    """
    found: dict[_Key, dict[int, list[Call]]] = {}
    named = all(call.group is not None for own in calls.values() for call in own)
    for rank, own in calls.items():
        streams: dict[Hashable, int] = {}
        for call in own:
            if call.pair:
                continue
            key: _Key = streams.setdefault(call.stream, len(streams))
            if named and call.group is not None:
                key = call.group
            found.setdefault(key, {}).setdefault(rank, []).append(call)
    groups = _pairs(calls)
    for key, members in found.items():
        name = f"nccl{key}" if isinstance(key, int) else _unused(key[0], groups)
        _check_members(name, members, _ranks_of(key, calls), paths)
        if len(members) > 1:
            groups[name] = {rank: [call.task for call in own] for rank, own in members.items()}
    if not groups:
        raise InputError(
            f"{next(iter(paths.values()))}: has no collective of NCCL that it shares with another rank"
        )
    return groups


def _pairs(calls: Mapping[int, Sequence[Call]]) -> Groups:
    """Return the sends and recvs that met: of each direction between two ranks they are a communicator."""
    found: dict[tuple[str, int, int], dict[int, list[int]]] = {}
    for rank, own in calls.items():
        for call in own:
            if call.pair:
                ends = (rank, call.peer) if call.kind == "send" else (call.peer, rank)
                name = "nccl" if call.group is None else call.group[0]
                found.setdefault((name, *ends), {}).setdefault(rank, []).append(call.task)
    met = {key: both for key, both in found.items() if len({*map(len, both.values())}) + 1 == len(both) == 2}
    alone = sum(len(tasks) for key, both in found.items() if key not in met for tasks in both.values())
    if alone:
        warnings.warn(
            f"{alone} kernels send or receive between two ranks, and it is not clear whom they met; they "
            "keep their recorded times, and do not wait for each other",
            stacklevel=6,
        )
    return {f"{name}.{source}-{target}": both for (name, source, target), both in met.items()}


def _ranks_of(key: _Key, calls: Mapping[int, Sequence[Call]]) -> list[int]:
    """Return the ranks of a communicator, as far as it is known."""
    if not isinstance(key, tuple):
        return [*calls]
    return _listed(key[1])


def _listed(ranks: str) -> list[int]:
    """Return the ranks of a process group; the profiler may name the first ones only, which is none."""
    return [] if "..." in ranks else [int(number[:9]) for number in re.findall(r"\d+", ranks)]


def process_group(name: str, ranks: str, size: int = 0) -> dict[str, Any]:
    """Return what is known of the process group of a collective, as attributes of its op.

    Examples
    --------
    >>> process_group("dp", "[0, 2]")
    {'process_group': 'dp', 'process_group_ranks': [0, 2], 'process_group_size': 2}
    """
    listed = _listed(ranks)
    size = size or len(listed)
    found: dict[str, Any] = {"process_group": name}
    found |= {"process_group_ranks": listed} if listed else {}
    return found | ({"process_group_size": size} if size else {})


def _unused(name: str, groups: Groups) -> str:
    """Return a name for a communicator: of two groups of one name, the second is ``name.1``."""
    same = sum(known == name or known.startswith(f"{name}.") for known in groups)
    return f"{name}.{same}" if same else name


def _check_members(
    name: str, members: Mapping[int, list[Call]], wanted: Sequence[int], paths: Mapping[int, StrPath]
) -> None:
    """Refuse a communicator whose ranks do not have the same collectives."""
    first, mine = next(iter(members.items()))
    for rank in wanted or members:
        theirs = members.get(rank, [])
        where = f"{paths.get(rank, paths[first])}: communicator {name!r}"
        both = f"{where}: rank {rank} has {len(theirs)} collectives and rank {first} has {len(mine)}"
        for n, (a, b) in enumerate(zip(mine, theirs, strict=False)):
            if a.kind != b.kind:
                raise InputError(
                    f"{where}: number {n} is {b.kind} on rank {rank} and {a.kind} on rank {first}; they "
                    "are of different jobs or steps"
                )
        if len(mine) != len(theirs):
            raise InputError(f"{both}; they are of different jobs, or not recorded over the same steps")


def clock_offsets(
    ends: Mapping[int, Mapping[tuple[str, int], int]], paths: Mapping[int, StrPath]
) -> dict[int, int]:
    """Return what each rank's clock is to be shifted by.

    Parameters
    ----------
    ends : mapping
        By rank: when its collectives ended, by communicator and number.
    paths : mapping

    Raises
    ------
    InputError
        A rank has none that ended together with one of another rank.
    """
    first, *others = ends
    offsets, known = {first: 0}, dict(ends[first])
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
