"""Which ops communicate, and which do so for a part of their time.

An op that computes and communicates in turn (a layer of a tensor-parallel model, as one op) says for how
long it communicates, where whoever built it knows: the attribute ``communicates_ns``. When it does so is not
known, and told as the last part of the op.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from sim.graph.graph import Graph
from sim.words.arrays import BoolArray, IntArray

if TYPE_CHECKING:
    from sim.job.job import Job
    from sim.record.record import Record

__all__ = [
    *("COMMUNICATION", "INSIDE", "communicates", "computes_until_ns", "inside_ns", "moving_kinds"),
    "moving_ops",
]

COMMUNICATION: Final = frozenset(
    {"all_gather", "all_reduce", "all_to_all", "barrier", "broadcast", "collective", "copy", "recv"}
    | {"reduce_scatter", "send", "synchronise", "transfer"}
)
"""Kinds of op that move data and compute nothing; of a recording's see `moving_kinds`."""

INSIDE: Final = "communicates_ns"
"""Attribute of an op that computes: how much of its duration is communication that nothing hides."""


def communicates(trace: Record) -> BoolArray:
    """Return which tasks move data and compute nothing."""
    return np.asarray(moving_ops(trace.job)[trace.tasks["op"]])


def inside_ns(graph: Graph) -> IntArray:
    """Return of each op for how many ns of its duration it communicates, as it says itself (`INSIDE`)."""
    found = np.zeros(len(graph), np.int64)
    for op, ns in graph.attribute(INSIDE).items():
        found[op] = ns
    return found


def computes_until_ns(trace: Record) -> IntArray:
    """Return when each task ends to compute: at its end, less what it communicates inside.

    Of a task that took longer or shorter than its op, the same share is communication.
    """
    inside = inside_ns(trace.job.graph)
    end: IntArray = trace.tasks["end_ns"]
    if not inside.any():
        return end
    op = trace.tasks["op"]
    tasks = np.flatnonzero(inside[op] > 0)
    lasted, planned = end[tasks] - trace.begins_ns[tasks], trace.job.duration_ns[op[tasks]]
    part = inside[op[tasks]]
    other = lasted != planned
    if other.any():
        share = part[other] / np.maximum(planned[other], 1)
        part[other] = np.round(share * lasted[other]).astype(np.int64)
    until = end.copy()
    until[tasks] -= np.clip(part, 0, lasted)
    return until


def moving_ops(job: Job) -> BoolArray:
    """Return which ops of a job move data and compute nothing."""
    return moving_kinds(job.graph) | job.meets


def moving_kinds(graph: Graph) -> BoolArray:
    """Return which ops move data and compute nothing, as far as the graph alone says it.

    A ``copy`` is a memcpy, as in every export. Of recorded kernels the name tells (``Memcpy``, ``Memset``):
    those that cast, concatenate or transpose are copies by kind, and compute.
    """
    moves = graph.is_kind(*COMMUNICATION)
    for op in np.flatnonzero(graph.is_kind("copy", "fill")).tolist():
        kernel = graph.attributes.get(op, {}).get("kernel")
        if kernel is not None:
            moves[op] = str(kernel).startswith(("Memcpy", "Memset"))
    return moves
