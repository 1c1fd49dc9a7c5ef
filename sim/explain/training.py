"""Staleness: how many updates of others a parameter got between a worker's read and the worker's update.

::

    worker a   read ─────────────────── update        1: b's update came in between
    worker b          read ──── update

As defined by Ho et al., "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server",
NIPS 2013, counted for each update.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from sim.base.arrays import group_pairs
from sim.record.record import Record

UPDATES: Final = "updates"
"""Attribute of an op: the parameter that it updates."""
PUSHED_BY: Final = "pushed_by"
"""Attribute of an op: the worker whose gradient it uses."""


def staleness(trace: Record) -> dict[str, list[int]]:
    """Return for each worker the staleness of its updates, in the order in which they began.

    A worker reads a parameter when its own previous update has ended, the first time at time 0.

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
    tasks, graph = trace.tasks, trace.job.graph
    parameter, worker = graph.attribute(UPDATES), graph.attribute(PUSHED_BY)
    if not worker:
        return {}
    updates = ((str(parameter[op]), row) for row, op in enumerate(tasks["op"].tolist()) if op in worker)
    by_worker: dict[str, list[tuple[int, int]]] = {}
    for rows in group_pairs(updates).values():
        ends = np.sort(tasks["end_ns"][rows])
        read: dict[str, int] = {}
        for row in rows:
            name = str(worker[int(tasks["op"][row])])
            start, end = int(tasks["start_ns"][row]), int(tasks["end_ns"][row])
            lag = int(np.searchsorted(ends, start, "right")) - read.get(name, 0)
            by_worker.setdefault(name, []).append((start, lag))
            read[name] = int(np.searchsorted(ends, end, "right"))
    return {name: [lag for _, lag in sorted(pairs)] for name, pairs in sorted(by_worker.items())}


def staleness_report(trace: Record) -> dict[str, Any]:
    """Return statistics of the staleness of a run's updates.

    Returns
    -------
    dict
        ``updates``, ``mean``, ``max``, ``counts`` (how many had a staleness of 0, 1, ...), and ``workers``:
        the mean and maximum of each. Empty if no worker pushes updates of its own.
    """
    by_worker = staleness(trace)
    if not by_worker:
        return {}
    every = [lag for row in by_worker.values() for lag in row]
    return {
        "updates": len(every),
        **_spread(every),
        "counts": np.bincount(every).tolist(),
        "workers": {worker: _spread(row) for worker, row in by_worker.items()},
    }


def _spread(row: list[int]) -> dict[str, float]:
    return {"mean": sum(row) / len(row), "max": max(row)}


# ----------------------------------------------------------------------------------------------------------
# How tokens are distributed over the ranks that share a layer's experts, and the worst imbalance.
#
#     layer0.ffn    gpu0 ████████   gpu1 ██   gpu2 ██   gpu3 ████       imbalance 8 / 4 = 2, on gpu0

LAYER: Final = "expert_layer"
"""Attribute of an op that brings tokens to experts: their layer."""
TOKENS: Final = "expert_tokens"
"""Attribute of such an op: the number of tokens that come to its rank."""
DROPPED: Final = "expert_dropped"
"""Attribute of such an op: the number of its rank's choices that no expert takes."""


def expert_load(trace: Record) -> dict[str, Any]:
    """Return the imbalance of the layers of experts.

    Returns
    -------
    dict
        ``imbalance`` (tokens of the fullest rank / mean), ``fullest`` (that rank, the first of equals) and
        ``dropped`` (choices that no expert takes): the first two of the worst layer, the last in total;
        ``layers``: the same for each, with the ``tokens`` of each rank. Empty if there is no such layer.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("one layer")
    >>> for gpu, tokens in (("gpu0", 3), ("gpu1", 1)):
    ...     given = {LAYER: "ffn", TOKENS: tokens, DROPPED: 0}
    ...     _ = b.op(f"{gpu}/dispatch", duration_ns=1, device=gpu, attributes=given)
    >>> expert_load(simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue()))["layers"]
    {'ffn': {'imbalance': 1.5, 'fullest': 'gpu0', 'dropped': 0, 'tokens': {'gpu0': 3, 'gpu1': 1}}}
    """
    graph, machine, folding = trace.job.graph, trace.job.machine, trace.job.machine.folding
    members = {} if folding is None else folding.members
    ranks = [device.name for device in machine.devices] if folding is None else folding.order
    order = {name: k for k, name in enumerate(ranks)}
    tokens: dict[str, dict[str, int]] = {}
    dropped: dict[str, int] = {}
    for op, layer in graph.attribute(LAYER).items():
        name, device = str(layer), machine.devices[int(trace.job.device_of[op])].name
        folded = members.get(device, (device,))
        tokens.setdefault(name, {}).update(dict.fromkeys(folded, graph.attribute(TOKENS)[op]))
        dropped[name] = dropped.get(name, 0) + graph.attribute(DROPPED)[op] * len(folded)
    tokens = {name: dict(sorted(row.items(), key=lambda kv: order[kv[0]])) for name, row in tokens.items()}
    if not tokens:
        return {}
    layers = {name: {**_load(row), "dropped": dropped[name], "tokens": row} for name, row in tokens.items()}
    worst = max(layers.values(), key=lambda layer: layer["imbalance"])
    return {
        "imbalance": worst["imbalance"],
        "fullest": worst["fullest"],
        "dropped": sum(dropped.values()),
        "layers": layers,
    }


def _load(tokens: dict[str, int]) -> dict[str, Any]:
    fullest, total = max(tokens, key=lambda name: tokens[name]), sum(tokens.values())
    return {"imbalance": tokens[fullest] * len(tokens) / total if total else 1.0, "fullest": fullest}
