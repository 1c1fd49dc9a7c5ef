"""Staleness: how many updates of others a parameter has seen since a worker read it, when its own comes.

::

    worker a   read ─────────────────── update        1: b's update came in between
    worker b          read ──── update

As defined by Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server",
NIPS 2013, counted for each update.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sim.record.record import Record

__all__ = ["PUSHED_BY", "UPDATES", "staleness", "staleness_report"]

UPDATES: Final = "updates"
"""Attribute of an op: which parameter it updates."""
PUSHED_BY: Final = "pushed_by"
"""Attribute of an op: whose gradient it uses."""


def staleness(trace: Record) -> dict[str, list[int]]:
    """Return for each worker the staleness of its updates, in the order in which they began.

    A worker reads a parameter when its own update before has ended, at first at time 0.

    Parameters
    ----------
    trace : Trace

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("no servers")
    >>> _ = b.op("a", duration_ns=1)
    >>> staleness(simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue()))
    {}
    """
    tasks, attributes = trace.tasks, trace.job.graph.attributes
    if not trace.job.graph.attribute(PUSHED_BY):
        return {}
    rows: dict[str, list[int]] = {}
    for row, op in enumerate(tasks["op"].tolist()):
        given = attributes.get(op, {})
        if PUSHED_BY in given:
            rows.setdefault(str(given[UPDATES]), []).append(row)
    found: dict[str, list[tuple[int, int]]] = {}
    for here in rows.values():
        ends = np.sort(tasks["end_ns"][here])
        read: dict[str, int] = {}
        for row in here:
            worker = str(attributes[int(tasks["op"][row])][PUSHED_BY])
            start, end = int(tasks["start_ns"][row]), int(tasks["end_ns"][row])
            seen = int(np.searchsorted(ends, start, "right")) - read.get(worker, 0)
            found.setdefault(worker, []).append((start, seen))
            read[worker] = int(np.searchsorted(ends, end, "right"))
    return {worker: [seen for _, seen in sorted(pairs)] for worker, pairs in sorted(found.items())}


def staleness_report(trace: Record) -> dict[str, Any]:
    """Return how stale the updates of a run were.

    Returns
    -------
    dict
        ``updates``, ``mean``, ``max``, ``counts`` (how many had a staleness of 0, 1, ...), and ``workers``:
        of each its mean and most. Empty: nobody pushes updates of its own.
    """
    found = staleness(trace)
    if not found:
        return {}
    every = [seen for row in found.values() for seen in row]
    return {
        "updates": len(every),
        **_spread(every),
        "counts": np.bincount(every).tolist(),
        "workers": {worker: _spread(row) for worker, row in found.items()},
    }


def _spread(row: list[int]) -> dict[str, float]:
    return {"mean": sum(row) / len(row), "max": max(row)}
