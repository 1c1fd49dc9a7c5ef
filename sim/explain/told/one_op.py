"""The life of one task: what it waited for until it started, what led to it, and who waited for it.

::

    'reduce' on gpu0/1
      at   50 us        20 us  issue       'reduce' is ready, and gpu0/host issues it
      at   70 us        30 us  runs
      what led to its start: ...
      what it held up: ...
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sim.explain.facts.derived_columns import Facts
from sim.explain.facts.where import EVERYWHERE, Where
from sim.explain.idle import held_up
from sim.explain.path import Step, executed_path
from sim.explain.told.sentences import blame
from sim.words.arrays import IntArray
from sim.words.errors import InputError

__all__ = ["Life", "Piece", "lives"]


class Piece(NamedTuple):
    """A stretch of a task's life: why it did not run, or that it ``runs``."""

    reason: str
    start_ns: int
    length_ns: int
    blame: str


class Life(NamedTuple):
    """One task from the moment its data was there to its end.

    Attributes
    ----------
    row : int
        The task.
    pieces : list of Piece
        They follow one another.
    path : list of Step
        What led to its end, from time 0.
    held_up : list of int
        Tasks whose last input came from it, directly or by a transfer; first started, first told.
    """

    row: int
    pieces: list[Piece]
    path: list[Step]
    held_up: list[int]


def lives(facts: Facts, op: str, where: Where = EVERYWHERE) -> list[Life]:
    """Return the executions of an op, in the order of their starts.

    Parameters
    ----------
    facts : Facts
    op : str
    where : Where
        Only executions there, which overlap that time from data to end.

    Raises
    ------
    UnknownNameError
        The graph has no such op.
    InputError
        It has, but the op did not execute there.
    """
    f = facts
    index = f.job.graph.index(op)
    here = where.tasks(f) & (f.trace.tasks["op"] == index)
    here &= (f.data[: f.n] < where.end_ns(f)) & (f.end >= where.from_ns)
    rows = np.flatnonzero(here)
    if not len(rows):
        told = where.text(f)
        raise InputError(f"op {op!r} did not execute{f' {told}' if told else ''}")
    return [_life(f, row) for row in rows.tolist()]


def _life(f: Facts, row: int) -> Life:
    one = np.array([row])
    pieces = [
        Piece(reason, begin, ns, blame(f, reason, row, begin))
        for reason, start, length in held_up(f, one, f.data[one], f.begins[one])
        for begin, ns in [(_only(start), _only(length))]
        if ns > 0
    ]
    begins, ends = int(f.begins[row]), int(f.end[row])
    pieces.append(Piece("runs", begins, ends - begins, ""))
    held = np.flatnonzero(f.last_producer[: f.n] == row).tolist()
    moved = np.flatnonzero(f.last_producer[f.n :] == row) + f.n
    held += np.flatnonzero(np.isin(f.last_producer[: f.n], moved)).tolist()
    return Life(row, pieces, executed_path(f.trace, f, row), sorted(held))


def _only(values: IntArray) -> int:
    return int(np.broadcast_to(values, (1,))[0])
