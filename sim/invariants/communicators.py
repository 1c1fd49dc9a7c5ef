"""Ranks meet: collectives of a communicator run in order, one at a time, and all members end together."""

from __future__ import annotations

import numpy as np

from sim.invariants.checked_columns import Columns, refuse
from sim.words.arrays import UNSET

__all__ = ["COMMUNICATORS"]


def one_at_a_time_in_line(c: Columns) -> None:
    """On a rank, calls of a communicator start in the order of their issue, one after the other."""
    met = c.trace.meetings
    if met is None:
        return
    following = met.row[met.ahead != UNSET]
    one = met.ahead[met.ahead != UNSET]
    refuse(
        (c.issue[following] < c.issue[one]) | (c.start[following] < c.end[one]),
        lambda k: (
            f"{c.started(int(following[k]))}, issued at {c.issue[following[k]]} ns; {c.task(int(one[k]))}, "
            f"before it on its communicator, was issued at {c.issue[one[k]]} and ended at {c.end[one[k]]} ns"
        ),
    )


def members_fit(c: Columns) -> None:
    """Who meets is complete, of one kind and size, and of distinct ranks."""
    met, of = c.trace.meetings, c.job.collectives
    if met is None or of is None:
        return
    due = np.array([len(members) for members in of.members])[met.party]
    who = met.last
    refuse(met.size != due, lambda k: f"{c.task(int(who[k]))} met {met.size[k]} ranks, not {due[k]}")
    first = np.unique(met.meeting, return_index=True)[1]
    other = of.signature[met.entry] != of.signature[met.entry[first]][met.meeting]
    refuse(
        other,
        lambda k: (
            f"{c.task(int(met.row[k]))} met {c.task(int(met.row[first[met.meeting[k]]]))}, of another kind"
        ),
    )


def members_end_together(c: Columns) -> None:
    """A collective lasts from the latest start of its members as long as the longest of them takes."""
    met = c.trace.meetings
    if met is None:
        return
    took = np.zeros(len(met.party), np.int64)
    np.maximum.at(took, met.meeting, c.trace.alone_ns[met.row])
    end = (met.met_ns + took)[met.meeting]
    known = np.zeros(len(met.party), dtype=bool)  # else the network decides when they are over
    known[met.meeting[~c.job.carried[met.entry]]] = True
    shared = np.zeros(len(met.party), np.int64)
    np.maximum.at(shared, met.meeting, c.end[met.row])
    end = np.where(known[met.meeting], end, shared[met.meeting])
    refuse(
        c.end[met.row] != end,
        lambda k: (
            f"{c.ended(int(met.row[k]))}; its ranks met at {met.met_ns[met.meeting[k]]} ns, and it takes "
            f"{took[met.meeting[k]]} ns"
        ),
    )


COMMUNICATORS = (one_at_a_time_in_line, members_fit, members_end_together)
