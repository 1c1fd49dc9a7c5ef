"""Tasks become columns, a few thousand at a time, while the run goes on.

A run of a million tasks that kept them all would hold a million objects until its end, and touching that
much memory for the first time costs more than the numbers in it. So what has ended is written down while
it is still in the processor's cache, and its tasks are let go.

Rows come out in the order of starts: by ``start_ns``, then the round of that instant, the lane (transfers
have none) and the id. Tasks that end at one instant end in this order, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, Final

import numpy as np

from sim.base.arrays import IntArray
from sim.base.errors import InputError
from sim.graph.frames import has_control_flow
from sim.graph.graph import Graph
from sim.machine.task import Task
from sim.record.record import TASK_COLUMNS, TRANSFER_COLUMNS

AT_ONCE: Final = 4096
"""Tasks written at a time: enough that numpy's calls cost nothing, few enough to stay in the cache."""


class ColumnWriter:
    """Writes the tasks that ended into columns.

    Parameters
    ----------
    of : mapping of str to callable
        Column → what it takes from a task.
    expected : int
        How many tasks to make room for; more find room too.
    """

    def __init__(self, of: Mapping[str, Callable[[Task], int]], expected: int) -> None:
        self._of = of
        self._columns = {name: np.empty(expected, np.int64) for name in of}
        self._tasks: list[Task] = []  # not written yet
        self._n = 0

    def __len__(self) -> int:
        """Return the number of tasks that ended."""
        return self._n + len(self._tasks)

    def add(self, task: Task) -> None:
        """Put down a task, which has ended."""
        self._tasks.append(task)
        if len(self._tasks) == AT_ONCE:
            self._write()

    def columns(self) -> dict[str, IntArray]:
        """Return the columns, by start, round, lane and id; ``round`` itself is left out."""
        self._write()
        columns = {name: column[: self._n] for name, column in self._columns.items()}
        lane = columns.get("stream", columns["id"])
        order = np.lexsort((columns["id"], lane, columns.pop("round"), columns["start_ns"]))
        return {name: column[order] for name, column in columns.items()}

    def _write(self) -> None:
        n, after = self._n, self._n + len(self._tasks)
        for name, value_of in self._of.items():
            column = self._columns[name]
            if after > len(column):
                self._columns[name] = column = np.resize(column, max(after, 2 * len(column)))
            try:
                column[n:after] = np.fromiter(map(value_of, self._tasks), np.int64, len(self._tasks))
            except OverflowError:
                raise InputError(f"a task's {name} does not fit 64 bits: the run takes too long") from None
        self._tasks.clear()
        self._n = after


def _attributes(*names: str) -> dict[str, Callable[[Task], Any]]:
    return {name: attrgetter(name) for name in names}


def task_columns(
    graph: Graph, expected: int, frames: dict[str, int], *, may_fail: bool = False
) -> ColumnWriter:
    """Return what writes the columns of a run's tasks.

    Parameters
    ----------
    graph : Graph
    expected : int
        How many tasks there will be, if that is known.
    frames : dict of str to int
        Filled with the loop iterations in which tasks run, and their numbers in the column ``frame``
        (with control flow only).
    may_fail : bool
        Whether there is a column ``status``.
    """
    of = _attributes("id", "round", "calls_ns", *TASK_COLUMNS)
    of["issuer"] = attrgetter("issuer.index")
    if has_control_flow(graph):  # ids are tags there
        of |= _attributes("op", "iteration", "dead") | _in_frames(frames)
    if may_fail:
        of |= _attributes("status")
    return ColumnWriter(of, expected)


def transfer_columns(expected: int, frames: dict[str, int] | None = None) -> ColumnWriter:
    """Return what writes the columns of transfers; `frames`, with control flow: see `task_columns`."""
    of = _attributes("id", "round", *TRANSFER_COLUMNS)
    if frames is not None:
        of |= _attributes("op", "iteration") | _in_frames(frames)
    return ColumnWriter(of, expected)


def _in_frames(frames: dict[str, int]) -> dict[str, Callable[[Task], int]]:
    return {"frame": lambda task: frames.setdefault(str(task.frame or ""), len(frames))}
