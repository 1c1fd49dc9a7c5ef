"""The bars of a run as columns of numbers, from which the page writes every story and its table of ops.

A column of equal numbers is one number, starts are differences to the start before, and names stand once for
all runs: a task takes some 40 bytes of the file besides its name.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sim.plot.chart.bars import Bars, name_of
from sim.plot.colours import LAUNCH, WAITING
from sim.record.record import Record
from sim.words.arrays import UNSET, IntArray

__all__ = ["SEVERAL", "UNNAMED", "Names", "bar_columns", "packed"]

UNNAMED: Final = -1
SEVERAL: Final = -2
"""Names of bars that have none: launches and waits for ranks, and what stands for many."""


class Names:
    """Names of ops and tensors, each once, in the order in which they are met."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}

    def index(self, name: str) -> int:
        """Return the number of a name."""
        return self._index.setdefault(name, len(self._index))

    def listed(self) -> list[str]:
        """Return the names by their numbers."""
        return list(self._index)


def packed(column: IntArray) -> int | list[int]:
    """Return a column as it stands in the file.

    Examples
    --------
    >>> packed(np.array([3, 3])), packed(np.array([3, 4])), packed(np.array([], int))
    (3, [3, 4], 0)
    """
    if not len(column):
        return 0
    return int(column[0]) if (column == column[0]).all() else column.tolist()


def bar_columns(trace: Record, bars: Bars, entry: IntArray, names: Names) -> dict[str, Any]:
    """Return the columns of bars.

    Parameters
    ----------
    trace : Trace
    bars : Bars
    entry : array of int64
        Of each kind its entry of the legend.
    names : Names
        Of all runs of the page; those of this run are added.

    Returns
    -------
    dict
        ``n`` bars; ``start`` (differences), ``lasted``, ``lane``, ``level``, ``levels``, ``entry``; ``name``
        (or `UNNAMED`, `SEVERAL`); how long before its start each was ``ready`` and ``issued``, and started
        to wait for its ranks (``met``); ``nbytes`` of transfers (-1: a task), ``reason``, ``iteration``,
        ``frame`` and ``status``, codes of the trace.
    """
    n, start = len(trace), bars.start
    columns = {name: np.zeros(len(bars), np.int64) for name in _OF_TASKS}
    columns |= {"nbytes": np.full(len(bars), UNSET), "name": np.full(len(bars), SEVERAL)}
    columns["name"][np.isin(bars.kind, [bars.kinds.index(LAUNCH), bars.kinds.index(WAITING)])] = UNNAMED
    named = bars.row != UNSET
    columns["name"][named] = [names.index(name_of(trace, row)) for row in bars.row[named].tolist()]
    task, moves = named & (bars.row < n), bars.row >= n
    row, tasks = bars.row[task], trace.tasks
    columns["ready"][task] = start[task] - tasks["ready_ns"][row]
    columns["issued"][task] = start[task] - tasks["issue_ns"][row]
    columns["met"][task] = start[task] - tasks["start_ns"][row]
    columns["reason"][task] = tasks["wait"][row]
    columns["status"][task] = trace.status[row]
    columns["iteration"][task] = tasks["iteration"][row]
    if "frame" in tasks:
        columns["frame"][task] = tasks["frame"][row]
    row, moved = bars.row[moves] - n, trace.transfers
    columns["ready"][moves] = start[moves] - moved["ready_ns"][row]
    columns["nbytes"][moves] = moved["nbytes"][row]
    columns["iteration"][moves] = moved["iteration"][row]
    columns |= {"start": np.diff(start, prepend=0), "lasted": bars.end - start, "lane": bars.lane}
    columns |= {"level": bars.level, "levels": bars.n_levels, "entry": entry[bars.kind]}
    return {"n": len(bars)} | {name: packed(column) for name, column in columns.items()}


_OF_TASKS: Final = ("ready", "issued", "met", "reason", "status", "iteration", "frame")
