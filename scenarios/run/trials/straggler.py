"""Which rank the others wait for, and how much more it has to do than they.

::

    rank 0   ──── [all-reduce.......]        blame of rank 2: from the arrival of rank 1, the last but one,
    rank 1   ──────── [all-reduce...]        until its own
    rank 2   ─────────────── [all-re]
                      └blame┘
"""

from __future__ import annotations

from statistics import median

import numpy as np

from scenarios.recorded.program import roles
from sim.graph.graph import Graph

__all__ = ["straggler"]


def straggler(graph: Graph) -> tuple[int, dict[str, float]] | None:
    """Return the rank that keeps the others waiting longest, and the factors that would make it their equal.

    Parameters
    ----------
    graph : Graph
        Of the ranks of a job: rank 3 is ``gpu3`` and ``cpu3``.

    Returns
    -------
    (int, dict of str to float) or None
        For its host and for its GPU, the median of the others' own work over its own, where that is less than
        one. None: there are no ranks, or nobody waits.
    """
    blame: dict[int, int] = {}
    for arrivals in _arrivals(graph).values():
        for starts in zip(*arrivals.values(), strict=False):
            ranked = sorted(zip(starts, arrivals, strict=True))
            if len(ranked) > 1:
                (before, _), (last, rank) = ranked[-2:]
                blame[rank] = blame.get(rank, 0) + last - before
    if not any(blame.values()):
        return None
    latest = max(sorted(blame), key=lambda rank: blame[rank])
    kernels = roles.tasks(graph) & ~roles.collectives(graph)
    factors = {}
    for kind, which in (("cpu", roles.host_ops(graph)), ("gpu", kernels)):
        work_ns = np.bincount(graph.pin_code[which], graph.duration_ns[which], len(graph.pins))
        others = [ns for pin, ns in zip(graph.pins, work_ns.tolist(), strict=True) if pin.startswith(kind)]
        if (mine := f"{kind}{latest}") in graph.pins:
            own_ns = float(work_ns[graph.pins.index(mine)])
            others.remove(own_ns)
            if others and own_ns > median(others):
                factors[mine] = median(others) / own_ns
    return latest, factors


def _arrivals(graph: Graph) -> dict[str, dict[int, list[int]]]:
    """Return by communicator and rank when its collectives were recorded to start."""
    found: dict[str, dict[int, list[int]]] = {}
    for op in graph.in_communicators:
        own, pin = graph.attributes[op], graph.pins[int(graph.pin_code[op])]
        rank = pin.removeprefix("gpu")
        if "recorded_start_ns" in own and rank.isdigit():
            of = found.setdefault(str(own["communicator"]), {})
            of.setdefault(int(rank), []).append(int(own["recorded_start_ns"]))
    return found
