"""The critical path of a job: the longest chain of ops and of the transfers between them.

::

    gpu0:  a ──►──┐ transfer            iteration 0    a ─► b ─┐ distance 1
    gpu1:         └──► b ──► c          iteration 1            └─► a ─► b

Nothing but inputs holds an op back here: every device has all the lanes it wants, deciding and
launching cost nothing, and every transfer has its links for itself. Edges that reach into later
iterations chain the iterations to one another. A non-strict op waits for the earliest of its inputs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from sim.graph.frames import has_control_flow
from sim.graph.graph import Graph
from sim.job.job import Job
from sim.job.tensor_places import tensor_devices
from sim.job.travel import Travel
from sim.readiness.strictness import non_strict_ops
from sim.words.arrays import UNSET, IntArray

__all__ = ["crossing_reads", "distinct_moves", "longest_chain_ns"]


def crossing_reads(job: Job) -> tuple[IntArray, IntArray]:
    """Return which entries of ``graph.inputs`` cross links, and the device where each tensor comes to be.

    The second array has one entry per tensor, -1 for what is there wherever it is read: parameters,
    and graph inputs that are not pinned. A machine without links crosses none.
    """
    graph, home = job.graph, tensor_devices(job)
    there = np.repeat(job.device_of, graph.inputs.counts())
    tensor = graph.inputs.indices
    away = (home[tensor] != UNSET) & (home[tensor] != there) & bool(job.machine.links)
    return away, home


def distinct_moves(
    source: IntArray, destination: IntArray, nbytes: IntArray
) -> tuple[list[tuple[int, int, int]], IntArray]:
    """Return the different (source, destination, bytes), sorted, and which of them each row is.

    Examples
    --------
    >>> moves, which = distinct_moves(np.array([1, 0, 1]), np.array([0, 1, 0]), np.array([8, 4, 8]))
    >>> moves, which.tolist()
    ([(0, 1, 4), (1, 0, 8)], [1, 0, 1])
    """
    sizes, size = np.unique(nbytes, return_inverse=True)
    n = int(max(source.max(initial=0), destination.max(initial=0))) + 1
    _, first, which = np.unique(
        (source * n + destination) * max(1, len(sizes)) + size, return_index=True, return_inverse=True
    )
    columns = (source[first].tolist(), destination[first].tolist(), nbytes[first].tolist())
    return list(zip(*columns, strict=True)), which


def _delays(job: Job) -> IntArray:
    """Return for each entry of ``graph.inputs`` how long the tensor travels, at least."""
    graph = job.graph
    crossing, home = crossing_reads(job)
    delay = np.zeros(len(graph.inputs.indices), np.int64)
    if crossing.any():
        tensor = graph.inputs.indices[crossing]
        there = np.repeat(job.device_of, graph.inputs.counts())[crossing]
        moves, which = distinct_moves(home[tensor], there, graph.tensor_nbytes[tensor])
        times = [Travel.between(job.machine, a, b).ns(nbytes) for a, b, nbytes in moves]
        delay[crossing] = np.array(times, np.int64)[which]
    return delay


def longest_chain_ns(job: Job, ns: IntArray) -> int:
    """Return the end of the last op when nothing but inputs and transfers holds any op back."""
    graph = job.graph
    n = len(graph)
    reader = graph.inputs.rows()
    produced = graph.tensor_producer[graph.inputs.indices]
    data = produced != UNSET
    travel = _delays(job)
    non_strict = non_strict_ops(graph)
    inputs = {
        op: _inputs(graph, op, travel)
        for op in np.flatnonzero(non_strict).tolist()
        if len(graph.inputs.row(op))
    }
    release = np.zeros(n, np.int64)  # graph inputs that lie on another device
    outside = ~data & ~non_strict[reader]
    np.maximum.at(release, reader[outside], travel[outside])
    producer, consumer, distance, tensor = graph.edges  # data edges, then control edges
    delay = np.concatenate((travel[data], np.zeros(len(producer) - int(data.sum()), np.int64)))
    if inputs:
        all_of = ~non_strict[consumer] | (tensor == UNSET)
        producer, consumer, distance, delay = (c[all_of] for c in (producer, consumer, distance, delay))
    if has_control_flow(graph):  # a merge waits for one of its inputs, and nobody knows for which
        waits = np.array([kind != "merge" for kind in graph.kinds])[graph.kind_code[consumer]]
        inputs = {}  # those of non-strict ops are gone already, and may be dead
        producer, consumer, distance, delay = (c[waits] for c in (producer, consumer, distance, delay))
        delay = np.zeros_like(delay)  # and what is dead travels in no time

    now = distance == 0
    sweep = _Sweep(graph.topological_order, producer[now], consumer[now], delay[now])
    later = [
        (d, producer[distance == d], consumer[distance == d], delay[distance == d])
        for d in np.unique(distance[~now]).tolist()
    ]
    ends: list[IntArray] = []
    chained = bool(later) or any(way.distance for ways in inputs.values() for way in ways)
    for iteration in range(job.iterations if chained else 1):
        floor = release.copy()
        for d, p, c, delay_ns in later:
            if d <= iteration:
                np.maximum.at(floor, c, ends[iteration - d][p] + delay_ns)
        first = {op: _first(ways, iteration, ends) for op, ways in inputs.items()}
        ends.append(sweep.ends(floor, ns, first))
    return int(max(end.max(initial=0) for end in ends))


class _Way(NamedTuple):
    """One input of a non-strict op: its producer (-1: from outside), iterations between, travel time."""

    producer: int
    distance: int
    delay_ns: int


class _First(NamedTuple):
    """When the first input of a non-strict op is there: then, or when one of these has ended."""

    known_ns: float
    ways: list[_Way]


def _inputs(graph: Graph, op: int, travel: IntArray) -> list[_Way]:
    here = slice(int(graph.inputs.indptr[op]), int(graph.inputs.indptr[op + 1]))
    producer = graph.tensor_producer[graph.inputs.indices[here]]
    columns = (producer, graph.input_distance[here], travel[here])
    return [_Way(*way) for way in zip(*(column.tolist() for column in columns), strict=True)]


def _first(ways: list[_Way], iteration: int, ends: list[IntArray]) -> _First:
    """Divide the inputs into what is known before this iteration, and what is made in it."""
    known_ns, now = math.inf, []
    for way in ways:
        if way.distance > iteration:  # from before the first iteration
            known_ns = 0
        elif way.producer == UNSET:
            known_ns = min(known_ns, way.delay_ns)
        elif way.distance:
            known_ns = min(known_ns, int(ends[iteration - way.distance][way.producer]) + way.delay_ns)
        else:
            now.append(way)
    return _First(known_ns, now)


class _Sweep:
    """Earliest ends within one iteration, in one pass over the ops in topological order."""

    def __init__(self, order: IntArray, producer: IntArray, consumer: IntArray, delay: IntArray) -> None:
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        by = np.argsort(rank[producer], kind="stable")  # pushing along edges needs no lists per op
        self._order = order.tolist()
        self._consumer, self._delay = consumer[by].tolist(), delay[by].tolist()
        self._count = np.bincount(producer, minlength=len(order))[order].tolist()

    def ends(self, floor_ns: IntArray, duration_ns: IntArray, first: dict[int, _First]) -> IntArray:
        """Return the earliest end of every op that may not start before `floor_ns`, nor its first input."""
        end, own = floor_ns.tolist(), duration_ns.tolist()
        consumer, delay = self._consumer, self._delay
        k = 0
        for op, count in zip(self._order, self._count, strict=True):
            if first and op in first:
                known_ns, ways = first[op]
                end[op] = max(end[op], min(known_ns, *(end[w.producer] + w.delay_ns for w in ways), math.inf))
            at = end[op] = end[op] + own[op]
            for j in range(k, k + count):
                c = consumer[j]
                if at + delay[j] > end[c]:
                    end[c] = at + delay[j]
            k += count
        return np.array(end, np.int64)
