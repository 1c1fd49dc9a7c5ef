"""Tasks become rows: columns, filled a few thousand tasks at a time.

A run of a million tasks that kept them all would hold a million objects until its end, and touching that
much memory for the first time costs more than the numbers in it. So what has ended is written down while it
is still in the processor's cache, and its tasks are let go::

    tasks     a b c d e        in the order of starts; b still runs
    collect   a   c d e   ──►  rows of places 0 2 3 4
    tasks       b              its place will be 1
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import compress
from operator import attrgetter
from typing import Any, Final

import numpy as np

from sim.frames import has_control_flow
from sim.graph import Graph, IntArray
from sim.model import Task

__all__ = ["AT_ONCE", "Rows", "task_rows", "transfer_rows"]

AT_ONCE: Final = 4096
"""Tasks written at a time: enough that numpy's calls cost nothing, few enough to stay in the cache."""

_END: Any = attrgetter("end_ns")


class Rows:
    """The columns of the tasks that ended, and the tasks that have not.

    Parameters
    ----------
    of : mapping of str to callable
        Column → what it takes from a task.
    expected : int
        How many rows to make room for; more find room too.

    Attributes
    ----------
    tasks : list of Task
        Started and not yet collected, in the order of starts: who starts a task appends it here.
    """

    def __init__(self, of: Mapping[str, Callable[[Task], int]], expected: int) -> None:
        self.tasks: list[Task] = []
        self._of = of
        self._columns = {name: np.empty(expected, np.int64) for name in of}
        self._places = np.empty(expected, np.int64)  # of the rows, in the order of starts
        self._held = np.empty(0, np.int64)  # places of the first tasks, which were collected in vain
        self._started = 0
        self._n = 0

    def __len__(self) -> int:
        """Return the number of tasks collected."""
        return self._n

    def collect(self) -> None:
        """Write down the tasks that have ended, and let them go."""
        tasks = self.tasks
        if not tasks:
            return
        fresh = self._started + len(tasks) - len(self._held)
        places = np.concatenate((self._held, np.arange(self._started, fresh)))
        self._started = fresh
        over = np.fromiter(map(_END, tasks), np.int64, len(tasks)) >= 0
        self._held = places[~over]
        if len(self._held):
            self._write(list(compress(tasks, over)), places[over])
            tasks[:] = compress(tasks, ~over)
        else:
            self._write(tasks, places)
            tasks.clear()

    def columns(self) -> dict[str, IntArray]:
        """Return the columns of what was collected, in the order of starts."""
        columns = {name: column[: self._n] for name, column in self._columns.items()}
        places = self._places[: self._n]
        if (np.diff(places) < 0).any():
            order = np.argsort(places, kind="stable")
            columns = {name: column[order] for name, column in columns.items()}
        return columns

    def _write(self, tasks: list[Task], places: IntArray) -> None:
        n, after = self._n, self._n + len(tasks)
        if after > len(self._places):
            more = max(after, 2 * len(self._places))
            self._places = np.resize(self._places, more)
            self._columns = {name: np.resize(column, more) for name, column in self._columns.items()}
        self._places[n:after] = places
        for first in range(0, len(tasks), AT_ONCE):
            some = tasks[first : first + AT_ONCE]
            for name, value_of in self._of.items():
                values = np.fromiter(map(value_of, some), np.int64, len(some))
                self._columns[name][n + first : n + first + len(some)] = values
        self._n = after


_TASK: Final = ("id", "stream", "ready_ns", "issue_ns", "start_ns", "end_ns", "wait")


def task_rows(graph: Graph, expected: int, frames: dict[str, int]) -> Rows:
    """Return the rows of a run's tasks.

    Parameters
    ----------
    graph : Graph
    expected : int
        How many tasks there will be, if that is known.
    frames : dict of str to int
        Filled with the loop iterations in which tasks run, and their numbers in the column ``frame``
        (with control flow only).
    """
    of: dict[str, Callable[[Task], int]] = {name: attrgetter(name) for name in _TASK}
    of["issuer"] = attrgetter("issuer.index")
    if has_control_flow(graph):  # ids are tags there
        of |= {name: attrgetter(name) for name in ("op", "iteration", "dead")}
        of["frame"] = lambda task: frames.setdefault(str(task.frame or ""), len(frames))
    return Rows(of, expected)


def transfer_rows(expected: int) -> Rows:
    """Return the rows of a run's transfers."""
    names = ("id", "op", "iteration", "ready_ns", "start_ns", "end_ns")
    return Rows({name: attrgetter(name) for name in names}, expected)
