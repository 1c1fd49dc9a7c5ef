"""Who met whom: the meetings on communicators, as they are seen in a trace.

::

    rows of a seat (a rank of a party), in the order in which they started:   a0  b0  c0
    meeting                                                                    0   1   2

On a line one collective is under way at a time, so the n-th that starts is the n-th that was issued
(`sim.job.collectives.members`). The sends and recvs of a group call are one place in line; on a seat they,
too, go one after another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sim.words.arrays import UNSET, IntArray

if TYPE_CHECKING:
    from sim.job.job import Job

__all__ = ["Meetings", "meetings_of"]


class Meetings(NamedTuple):
    """The collectives that met.

    Attributes
    ----------
    row, entry, meeting, ahead : arrays of int64
        Of each collective that ran, in the order of rows: its row, its entry in `Job.collectives`, the
        meeting that it takes part in, and the row of the one before it in its line, -1 for the first; of a
        group call before it, that of the one that ended last.
    party, met_ns, last, size : arrays of int64
        Of each meeting: who meets, when the last of them started, the row of that one (of several, the
        first), and how many they are.
    """

    row: IntArray
    entry: IntArray
    meeting: IntArray
    ahead: IntArray
    party: IntArray
    met_ns: IntArray
    last: IntArray
    size: IntArray


def meetings_of(job: Job, tasks: Mapping[str, IntArray]) -> Meetings | None:
    """Return the meetings of a run, None where no op belongs to a communicator.

    Parameters
    ----------
    job : Job
    tasks : mapping of str to array
        Columns of the trace.
    """
    c = job.collectives
    if c is None:
        return None
    entry_of = np.full(len(job.graph), UNSET)
    entry_of[c.op] = np.arange(len(c.op))
    entry = entry_of[tasks["op"]]
    row = np.flatnonzero(entry != UNSET)
    entry, start = entry[row], tasks["start_ns"][row]
    number, _ = _numbered(c.seat[entry])
    key, meeting = np.unique(c.party[entry] * (len(row) + 1) + number, return_inverse=True)
    party = key // (len(row) + 1)
    met, last = np.zeros(len(party), np.int64), np.full(len(party), UNSET)
    np.maximum.at(met, meeting, start)
    latest = np.flatnonzero(start == met[meeting])[::-1]
    last[meeting[latest]] = row[latest]  # the last assignment stays, which is of the first row
    _, ahead = _numbered(c.line[entry])
    if (c.group != UNSET).any():
        ahead = _before_groups(c.group[entry], tasks["iteration"][row], ahead, tasks["end_ns"][row])
    ahead = np.where(ahead == UNSET, UNSET, row[ahead])
    return Meetings(row, entry, meeting, ahead, party, met, last, np.bincount(meeting, minlength=len(party)))


def _numbered(key: IntArray) -> tuple[IntArray, IntArray]:
    """Return of each entry how many before it have the same key, and which was the last of them, or -1.

    Examples
    --------
    >>> number, before = _numbered(np.array([5, 3, 5, 5]))
    >>> number.tolist(), before.tolist()
    ([0, 0, 1, 2], [-1, -1, 0, 2])
    """
    order = np.argsort(key, kind="stable")
    first = np.ones(len(key), bool)
    first[1:] = np.diff(key[order]) != 0
    begin = np.maximum.accumulate(np.where(first, np.arange(len(key)), 0))
    number, before = np.empty(len(key), np.int64), np.full(len(key), UNSET)
    number[order] = np.arange(len(key)) - begin
    before[order[1:]] = np.where(first[1:], UNSET, order[:-1])
    return number, before


def _before_groups(group: IntArray, iteration: IntArray, ahead: IntArray, end_ns: IntArray) -> IntArray:
    """Return of each entry the one before its group call (that ended last, of several), or -1.

    Examples
    --------
    >>> group, ahead = np.array([0, 0, 1, -1]), np.array([-1, 0, 1, 2])
    >>> _before_groups(group, np.zeros(4, int), ahead, np.array([9, 7, 20, 30])).tolist()
    [-1, -1, 0, 2]
    """
    found, last = ahead.copy(), np.arange(len(ahead))  # last: of its call so far, the one that ends last
    for k, one in enumerate(ahead.tolist()):
        if one == UNSET:
            continue
        if group[k] != UNSET and group[k] == group[one] and iteration[k] == iteration[one]:
            found[k] = found[one]
            last[k] = last[one] if end_ns[last[one]] >= end_ns[k] else k
        else:
            found[k] = last[one]
    return found
