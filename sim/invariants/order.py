"""Ties go by what happened, never by how it was computed: rows are by start, round, lane and id.

Tasks that start, and tasks that end, at one instant go in the order of rows. An instant has a second round
only where something took no time: what it made possible comes after all that began in the first::

    instant 10      round 0   lane 0  a (5 ns)      lane 2  b (0 ns)
                    round 1   lane 1  c, which reads b
"""

from __future__ import annotations

import numpy as np

from sim.invariants.checked_columns import Columns, refuse

__all__ = ["ORDER"]


def rows_are_in_order(c: Columns) -> None:
    """Rows go by start, and within a round of an instant by lane, then id."""
    moved = c.moved
    at_once = np.concatenate(
        (c.start[c.start == c.end], moved["start_ns"][moved["start_ns"] == moved["end_ns"]])
    )
    ids = c.trace.tasks["id"]
    refuse(
        np.diff(c.start) < 0,
        lambda k: f"{c.started(k + 1)}, and its row comes after that of {c.started(k)}",
    )
    back = (c.start[1:] == c.start[:-1]) & (
        (c.stream[1:] < c.stream[:-1]) | ((c.stream[1:] == c.stream[:-1]) & (ids[1:] < ids[:-1]))
    )
    refuse(
        back & ~np.isin(c.start[1:], at_once),
        lambda k: (
            f"{c.started(k + 1)} on {c.lane(k + 1)}, after {c.task(k)} on {c.lane(k)}; "
            "at one instant tasks start in the order of lanes, unless something took no time"
        ),
    )


def transfers_are_in_order(c: Columns) -> None:
    """Transfers go by start, and within a round of an instant by id."""
    start = c.moved["start_ns"]
    refuse(
        np.diff(start) < 0,
        lambda k: f"{c.transfer(k + 1)} began at {start[k + 1]} ns; its row comes after one of {start[k]} ns",
    )


ORDER = (rows_are_in_order, transfers_are_in_order)
