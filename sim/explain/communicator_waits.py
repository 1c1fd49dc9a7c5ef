"""What collectives wait for on each communicator: for the one before them in line, and for late ranks.

::

    dp    4 ranks, 12 meetings   late ranks 35 us   in line 14 us, most 'gpu0/AG1', 14 us behind 'gpu0/RS3'
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.explain.facts.derived_columns import Facts
from sim.explain.idle import held_up

__all__ = ["CommunicatorWait", "communicator_waits"]


class CommunicatorWait(NamedTuple):
    """What the collectives of one communicator waited for, over all ranks.

    Attributes
    ----------
    name : str
    ranks, meetings : int
        How many there are.
    late_ns, in_line_ns : int
        How long they waited for late ranks, and in line, in all.
    latest, longest : int
        The rows that waited longest for a late rank, and in line; -1: none did.
    latest_ns, longest_ns : int
        How long these did.
    """

    name: str
    ranks: int
    meetings: int
    late_ns: int
    in_line_ns: int
    latest: int
    latest_ns: int
    longest: int
    longest_ns: int


def communicator_waits(f: Facts) -> list[CommunicatorWait]:
    """Return what collectives waited for, by communicator, in the order of their first ops."""
    met, of = f.meetings, f.job.collectives
    if met is None or of is None:
        return []
    waited = {"late rank": np.zeros(len(met.row), np.int64), "communicator": np.zeros(len(met.row), np.int64)}
    for reason, _, ns in held_up(f, met.row, f.data[met.row], f.begins[met.row]):
        if reason in waited:
            waited[reason] += ns
    communicator = of.communicator[met.entry]
    machine = f.job.machine
    times = machine.stands_for[of.device[met.entry]]
    ranks = {} if machine.folding is None else machine.folding.ranks
    found = []
    for k, name in enumerate(of.names):
        here = np.flatnonzero(communicator == k)
        if not len(here):
            continue  # none of them had started when a part of the machine failed
        most: list[int] = []
        for ns in waited.values():
            at = here[ns[here].argmax()]
            most += [int(met.row[at]) if ns[at] else -1, int(ns[at])]
        totals = [int((ns[here] * times[here]).sum()) for ns in waited.values()]
        size, meetings = ranks.get(name, len(of.ranks[k])), len(np.unique(met.meeting[here]))
        found.append(CommunicatorWait(name, size, meetings, *totals, *most))
    return found
