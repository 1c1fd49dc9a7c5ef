"""A recording as a trace: what `sim.explain` and all the rest can say of a run, they can say of a recording.

The trace has the ops, lanes and edges of the recording's simulation, and the times that were recorded. What a
recording does not tell follows: a task is issued when the call that launches it has ended, and no later than
it starts; an op of the host when it starts.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from policies.issue.ready_queue import ReadyQueue
from scenarios.recorded.as_recorded import as_recorded
from scenarios.recorded.setup import run_recorded
from sim.graph.graph import Graph
from sim.record.record import TRANSFER_COLUMNS
from sim.trace import Trace
from sim.words.arrays import UNSET, IntArray
from sim.words.errors import InputError

__all__ = ["recorded_trace"]


def recorded_trace(graph: Graph, path: object, run: Callable[[], Trace] | None = None) -> Trace:
    """Return what was recorded, as a trace.

    Parameters
    ----------
    graph : Graph
        What an importer made of a recording.
    path : object
        Its file, for messages.
    run : callable, optional
        Returns its simulation, if there is one.

    Raises
    ------
    InputError
        No op says when it was recorded.
    """
    recorded = as_recorded(graph)
    if not len(recorded.op):
        raise InputError(
            f"{path}: no op says when it was recorded (recorded_start_ns), so it is no recording"
        )
    simulated = run_recorded(graph) if run is None else run()
    start, end = (np.full(len(graph), UNSET) for _ in range(2))
    start[recorded.op], end[recorded.op] = recorded.start_ns, recorded.end_ns
    launched = simulated.job.launched
    ready = _ready(graph, start, end, launched.tolist())
    row = np.empty(len(graph), np.int64)
    row[simulated.tasks["op"]] = np.arange(len(simulated))
    stream, issuer = simulated.tasks["stream"][row], simulated.tasks["issuer"][row]
    op = np.flatnonzero(start != UNSET)
    op = op[np.lexsort((op, stream[op], start[op]))]
    columns = {
        "id": op,
        "stream": stream[op],
        "ready_ns": ready[op],
        "issue_ns": np.where(launched, ready, start)[op],
        "start_ns": start[op],
        "end_ns": end[op],
        "wait": np.zeros(len(op), np.int64),
        "issuer": issuer[op],
    }
    none = {name: np.zeros(0, np.int64) for name in ("id", *TRANSFER_COLUMNS)}
    return Trace.from_columns(
        simulated.job, simulated.flow, ReadyQueue(synchronisation="issue"), columns, none
    )


def _ready(graph: Graph, start: IntArray, end: IntArray, launched: list[bool]) -> IntArray:
    """Return when each op could be issued: its calls had ended, and what it follows on the GPU was issued."""
    ready = np.zeros(len(graph), np.int64)
    starts, ends = start.tolist(), end.tolist()
    for op in graph.topological_order.tolist():
        at = 0
        for before in graph.predecessors.row(op).tolist():
            ahead = launched[op] and launched[before]
            at = max(at, int(ready[before]) if ahead else ends[before])
        ready[op] = min(at, starts[op]) if starts[op] != UNSET else at
    return ready
