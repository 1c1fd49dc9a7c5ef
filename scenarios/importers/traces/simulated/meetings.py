"""Collectives that met: how long they transferred, and in which order a rank had them.

::

    gpu0   [ waits . . . [ sum ]            from the start of the last one to the end of all: the duration;
    gpu1                 [ sum ]            waiting comes about when it runs
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from scenarios.importers.traces.simulated.slices import Slice
from sim.job.collectives.members import COLLECTIVE_KINDS

__all__ = ["meet"]


def meet(slices: Sequence[Slice]) -> list[str]:
    """Give collectives that met their transfer as duration, and their place in line.

    Returns
    -------
    list of str
        Communicators whose collectives did not end together on all ranks: they belong to none any more.
    """
    members: dict[str, list[Slice]] = defaultdict(list)
    for each in slices:
        if "communicator" in each.attributes:
            members[each.attributes["communicator"]].append(each)
    lost = []
    for name, found in members.items():
        if (durations := _transfers(found)) is None:
            lost.append(name)
            for each in found:
                for key in ("communicator", "peer", "group", "pair"):
                    each.attributes.pop(key, None)
            continue
        for each, duration_ns in zip(found, durations, strict=True):
            each.duration_ns = duration_ns
        _line_up(found)
    return lost


def _transfers(members: Sequence[Slice]) -> list[int] | None:
    """Return how long each collective of a communicator transferred; None: some did not end together.

    The n-th of a seat in its party met the n-th of every other (`sim.job.collectives.members`).
    """
    counted: Counter[tuple[Any, str, str]] = Counter()
    seats: dict[Any, set[tuple[str, str]]] = defaultdict(set)
    meetings: dict[tuple[Any, int], list[int]] = defaultdict(list)
    for k, each in enumerate(members):
        party: Any = ()
        if (peer := each.attributes.get("peer")) is not None:
            sent = each.kind == "send"
            pair = (each.device, peer) if sent else (peer, each.device)
            party = (*pair, each.attributes.get("pair"))
        seat = each.device, each.kind if party else ""
        meetings[party, counted[party, *seat]].append(k)
        counted[party, *seat] += 1
        seats[party].add(seat)
    found = [0] * len(members)
    for (party, _), met in meetings.items():
        ends = {members[k].end_ns for k in met}
        kinds = {members[k].kind for k in met}
        since = max(members[k].start_ns for k in met)
        alike = len(kinds) == (2 if party else 1) and kinds <= COLLECTIVE_KINDS
        if not alike or len(ends) > 1 or len(met) != len(seats[party]) or since > min(ends):
            return None
        for k in met:
            found[k] = members[k].end_ns - since
    return found


def _line_up(members: Sequence[Slice]) -> None:
    """Let every collective come after the one before it in its line; those of a group call after the same."""
    lines: dict[str, list[list[Slice]]] = defaultdict(list)
    for each in members:
        calls, group = lines[each.device], each.attributes.get("group")
        if calls and group is not None and calls[-1][0].attributes.get("group") == group:
            calls[-1].append(each)
        else:
            calls.append([each])
        each.attributes["recorded_ns"] = each.end_ns - each.start_ns
        if len(calls) > 1:
            each.before += calls[-2]
