"""Edges between the rows of a trace: which run of an op produced data for which run of another.

::

    graph     a ──► b      a ──distance 1──► a
    rows      a0 ──► b0    a1 ──► b1    a0 ──► a1    ...

Tasks and transfers are numbered together here: row r of the tasks is r, row r of the transfers is
``len(trace) + r``.

On a static graph, iteration and distance determine the producer and consumer exactly; if control flow runs an
op many times, frames do too (`sim.record.dependencies`).

A token that arrives too late for an op that did not wait for it (`sim.readiness.eligibility`, or a failed
launch) is not an edge. Pairs that met by key (`sim.readiness.rendezvous`) are in the trace and are edges.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from sim.base.arrays import UNSET, BoolArray, Csr, IntArray
from sim.graph.failures import DONE
from sim.graph.frames import frame_structure, has_control_flow
from sim.readiness.eligibility import inputs_from_the_start, non_strict_ops, parts
from sim.record.record import Record

# ----------------------------------------------------------------------------------------------------------
# Edges between runs of ops under control flow, found by the iterations in which they ran.
#
# A row of the trace has a frame and an iteration, and the kind of its op determines where its tokens go:
#
#     enter             outer:2          →  outer:2/inner:0      (constant: every iteration of that loop)
#     next_iteration    outer:2/inner:0  →  outer:2/inner:1
#     exit              outer:2/inner:3  →  outer:2              (of several iterations, the one that is live)
#     all others        outer:2          →  outer:2
#
# The reader of a token ran there. If Sends and Recvs meet by key, each part of the graph has its own frames
# with the same names (`sim.readiness.eligibility`), but an op is in one part, and no edge leads to another
# part. A token that arrives too late for an op that did not wait for it is not an edge.


def token_edges(trace: Record) -> tuple[IntArray, IntArray, IntArray]:
    """Return producer, consumer (rows) and tensor (-1: control) of all edges of a run with control flow."""
    flow, graph = trace.flow, trace.job.graph
    node, repetition, frame = (trace.of_rows(name) for name in ("op", "iteration", "frame"))
    frames = _Frames(trace)
    target = frames.target_frames(node, frame)
    n_frames = max(1, len(trace.frames))
    live = np.concatenate((trace.tasks["dead"] == 0, np.ones(len(node) - len(trace), bool)))

    # Key of every run: op, and frame of its tokens; a live run sorts after dead ones and so wins.
    rows = np.flatnonzero(target != UNSET)
    key = ((repetition * flow.n_nodes + node) * n_frames + target)[rows]
    order = np.lexsort((rows, live[rows], key))
    rows, key = rows[order], key[order]

    runs = Csr.group(node, np.arange(len(node)), flow.n_nodes).take(flow.consumer)
    edge, consumer = runs.rows(), runs.indices
    constant = np.zeros(flow.n_nodes, bool)
    constant[: len(graph)] = graph.column("constant")
    where = frame[consumer]
    where = np.where(constant[flow.producer[edge]], frames.first[where], where)
    query = (repetition[consumer] * flow.n_nodes + flow.producer[edge]) * n_frames + where
    slot = np.searchsorted(key, query, side="right") - 1
    producer = rows[np.maximum(slot, 0)] if len(rows) else np.full(len(query), UNSET)
    fed = (slot >= 0) & (key[np.maximum(slot, 0)] == query) if len(rows) else np.zeros(len(query), bool)
    end, start = trace.of_rows("end_ns"), trace.of_rows("start_ns")
    fed &= end[producer] <= start[consumer]
    # At one instant rows are in the order in which they began, but those of dead tasks.
    fed &= (producer < consumer) | (producer >= len(trace)) | ~live[consumer]
    return producer[fed], consumer[fed], flow.carries[edge[fed]]


class _Frames:
    """The frames and iterations of a run, by number in ``trace.frames``; -1: nothing ran there.

    Attributes
    ----------
    structure : FrameStructure
    loop : list of str
        For each, its text without the number of the iteration.
    outside, following, first : arrays of int64
        For each, the iteration that its loop was entered from, the next iteration, and the first.
    """

    def __init__(self, trace: Record) -> None:
        self.trace, self.structure = trace, frame_structure(trace.job.graph)
        frames = self.trace.frames
        static = np.zeros(len(frames), np.int64)
        static[trace.tasks["frame"]] = np.array(self.structure.frame_of)[trace.tasks["op"]]
        self.number = {text: k for k, text in enumerate(frames)}
        self.loop = [text.rpartition(":")[0] for text in frames]
        self.outside, self.following, self.first = np.full((3, max(1, len(frames))), UNSET)
        for k, text in enumerate(frames):
            if static[k] == 0:
                self.first[k] = k
                continue
            loop, iteration = self.loop[k], int(text.rpartition(":")[2])
            name = self.structure.name[int(static[k])]  # it may contain any character
            self.outside[k] = self.number.get(loop[: -len(name)].removesuffix("/"), UNSET)
            self.following[k] = self.number.get(f"{loop}:{iteration + 1}", UNSET)
            self.first[k] = self.number.get(f"{loop}:0", UNSET)

    def loop_of(self, enter: int, frame: int) -> str:
        """Return the loop that an enter opens, alone or together with others."""
        outer, name = self.trace.frames[frame], self.structure.name[self.structure.child_of[enter]]
        return f"{outer}/{name}" if outer else name

    def target_frames(self, node: IntArray, frame: IntArray) -> IntArray:
        """Return the frame and iteration that the tokens of each row go to."""
        graph, flow = self.trace.job.graph, self.trace.flow
        target = frame.copy()
        kind = np.append(graph.kind_code, np.full(flow.n_nodes - flow.n_ops, UNSET))[node]
        for name, frame_after in (("exit", self.outside), ("next_iteration", self.following)):
            if name in graph.kinds:
                rows = kind == graph.kinds.index(name)
                target[rows] = frame_after[frame[rows]]
        for row in np.flatnonzero(np.isin(node, list(self.structure.child_of))).tolist():
            target[row] = self.number.get(f"{self.loop_of(int(node[row]), int(frame[row]))}:0", UNSET)
        return target


def loop_ends_ns(trace: Record) -> dict[int, int]:
    """Return, for each constant enter (row), when its loop is over: it holds its tensor until then.

    The loop is over when the last task of its part has ended, without waiting for tensors sent by key. (A
    host that launches ahead may be done with it sooner.)
    """
    frames, graph = _Frames(trace), trace.job.graph
    tasks, transfers = trace.tasks, trace.transfers
    part = np.array(parts(trace.job))
    counts = np.append(np.ones(len(trace), bool), ~np.isin(transfers["id"], trace.met[:, 0]))
    of_row = part[np.append(tasks["op"], graph.tensor_producer[transfers["tensor"]])]
    columns = (of_row, *(trace.of_rows(name) for name in ("iteration", "frame", "end_ns")))
    latest: dict[tuple[int, int, int], int] = defaultdict(int)
    for *where, end in zip(*(column[counts].tolist() for column in columns), strict=True):
        key = where[0], where[1], where[2]
        latest[key] = max(latest[key], end)
    loop_end: dict[tuple[int, int, str], int] = defaultdict(int)
    for (part_id, repetition, frame), end in latest.items():
        while frame != UNSET and frames.outside[frame] != UNSET:
            loop = part_id, repetition, frames.loop[frame]
            loop_end[loop] = max(loop_end[loop], end)
            frame = int(frames.outside[frame])
    constant: dict[int, tuple[int, int, str]] = {}
    for row in np.flatnonzero(np.isin(tasks["op"], list(frames.structure.child_of))).tolist():
        op = int(tasks["op"][row])
        loop = int(part[op]), int(tasks["iteration"][row]), frames.loop_of(op, int(tasks["frame"][row]))
        loop_end[loop] = max(loop_end[loop], int(tasks["end_ns"][row]))
        if graph.attributes[op].get("constant", False):
            constant[row] = loop
    return {row: loop_end[loop] for row, loop in constant.items()}


def kept_tokens(trace: Record, producer: IntArray, consumer: IntArray, tensor: IntArray) -> BoolArray:
    """Return a mask of the edges with a live token that its reader keeps; a merge keeps only the first.

    Parameters
    ----------
    trace : Trace
        A trace with control flow.
    producer, consumer, tensor : arrays of int64
        Its edges, by row.
    """
    graph, n = trace.job.graph, len(trace)
    total = n + len(trace.transfers["id"])
    side = np.full(total, UNSET)
    ids = trace.tasks["id"]
    by_id = np.argsort(ids)
    switch, output = trace.taken.T
    side[by_id[np.searchsorted(ids[by_id], switch)]] = output
    first = np.zeros(total, np.int64)
    first[:n] = graph.first_output[trace.tasks["op"]]
    live = np.ones(total, bool)
    live[:n] = trace.tasks["dead"] == 0
    other_side = (side[producer] != UNSET) & (tensor - first[producer] != side[producer])
    kept: BoolArray = (tensor != UNSET) & ~other_side
    kept &= live[producer]
    sent = consumer >= n
    live[consumer[sent & ~kept]] = False  # a transfer of a dead token delivers a dead token
    kept &= live[producer]
    if "merge" in graph.kinds:
        to_merges = np.flatnonzero(kept & ~sent)
        to_merges = to_merges[graph.is_kind("merge")[trace.tasks["op"][consumer[to_merges]]]]
        end = trace.of_rows("end_ns")[producer[to_merges]]
        order = to_merges[np.lexsort((producer[to_merges], end, consumer[to_merges]))]
        kept[order[np.diff(consumer[order], prepend=UNSET) == 0]] = False
    return kept


# ----------------------------------------------------------------------------------------------------------


class TaskEdges(NamedTuple):
    """Edges between tasks and transfers, as parallel arrays.

    Attributes
    ----------
    producer, consumer : arrays of int64
        Rows of the trace.
    tensor : array of int64
        The tensor on the edge; -1 for a control edge.
    """

    producer: IntArray
    consumer: IntArray
    tensor: IntArray


def unroll(distance: IntArray, iterations: int) -> tuple[IntArray, IntArray]:
    """Return (edge, iteration of its consumer) for every edge, in every iteration where it exists.

    Parameters
    ----------
    distance : array of int64
        How many iterations earlier each edge's producer ran.
    iterations : int

    Examples
    --------
    >>> edge, iteration = unroll(np.array([0, 1]), 2)
    >>> list(zip(edge.tolist(), iteration.tolist()))
    [(0, 0), (0, 1), (1, 1)]
    """
    edge = np.tile(np.arange(len(distance)), iterations)
    iteration = np.repeat(np.arange(iterations), len(distance))
    if distance.any():
        exists = iteration >= distance[edge]
        return edge[exists], iteration[exists]
    return edge, iteration


def dependencies(trace: Record) -> TaskEdges:
    """Return the edges of a run, including transfers.

    Parameters
    ----------
    trace : Trace

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> b = GraphBuilder("v")
    >>> for name, inputs in {"a": [], "b": ["a"], "c": ["a"]}.items():
    ...     _ = b.op(name, inputs=inputs, duration_ns=1)
    >>> edges = dependencies(simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue()))
    >>> list(zip(edges.producer.tolist(), edges.consumer.tolist()))
    [(0, 1), (0, 2)]
    """
    cached: TaskEdges | None = trace.__dict__.get("_dependencies")
    if cached is None:  # memory, bounds, idle reasons and blame all use them
        cached = trace.__dict__["_dependencies"] = _dependencies(trace)
    return cached


def edges_among(trace: Record, visible: BoolArray) -> tuple[IntArray, IntArray]:
    """Return (producer, consumer) of the edges between rows in a mask.

    Where a transfer is not in the mask, its consumers follow the producer of its tensor.
    """
    producer, consumer, _ = dependencies(trace)
    maker = np.arange(len(visible))
    is_transfer = consumer >= len(trace)
    maker[consumer[is_transfer]] = producer[is_transfer]
    producer = np.where(visible[producer], producer, maker[producer])
    internal = visible[producer] & visible[consumer]
    return producer[internal], consumer[internal]


def unread(trace: Record) -> TaskEdges:
    """Return the data edges to tasks that never ran because an op had failed; consumers are all -1.

    With control flow there are none: a trace does not say which task would have been next.
    """
    if not trace.failed or has_control_flow(trace.job.graph):
        return TaskEdges(*np.zeros((3, 0), np.int64))
    producer, consumer, tensor = _all_edges(trace)
    waits = (producer != UNSET) & (consumer == UNSET) & (tensor != UNSET)
    produced = np.append(trace.status == DONE, np.ones(len(trace.transfers["id"]), bool))
    waits[waits] = produced[producer[waits]]
    return TaskEdges(producer[waits], consumer[waits], tensor[waits])


def _all_edges(trace: Record) -> TaskEdges:
    """Return the edges of a static graph in all iterations; a task that never ran has the row -1."""
    flow, ids = trace.flow, trace.of_rows("id")
    rows = np.full(flow.n_nodes * trace.job.iterations, UNSET)
    rows[ids] = np.arange(len(ids))
    edge, step = unroll(flow.distance, trace.job.iterations)
    if len(trace.attempts) > 1:  # data from before a restart come from a checkpoint
        begins = np.array([attempt.run for attempt in trace.attempts])
        valid = step - flow.distance[edge] >= begins[np.searchsorted(begins, step, side="right") - 1]
        edge, step = edge[valid], step[valid]
    producer = rows[(step - flow.distance[edge]) * flow.n_nodes + flow.producer[edge]]
    return TaskEdges(producer, rows[step * flow.n_nodes + flow.consumer[edge]], flow.carries[edge])


def _dependencies(trace: Record) -> TaskEdges:
    if has_control_flow(trace.job.graph):
        return _with_pairs(trace, TaskEdges(*token_edges(trace)))
    producer, consumer, tensor = _all_edges(trace)
    exists = (producer != UNSET) & (consumer != UNSET)
    edges = TaskEdges(producer[exists], consumer[exists], tensor[exists])
    data = _into_non_strict(trace, edges)
    if trace.failed:
        tasks = edges.consumer < len(trace)
        data[tasks] |= (trace.at_once & (trace.status != DONE))[edges.consumer[tasks]]
    if data.any():
        end = trace.of_rows("end_ns")
        late = data.copy()
        late[data] = end[edges.producer[data]] > trace.tasks["start_ns"][edges.consumer[data]]
        edges = TaskEdges(*(column[~late] for column in edges))
    return _with_pairs(trace, edges)


def _with_pairs(trace: Record, edges: TaskEdges) -> TaskEdges:
    """Add an edge for each pair that met by key, from the Send, or the transfer it caused, to the Recv."""
    if not len(trace.met):
        return edges
    source, recv = trace.met_rows.T
    graph, n = trace.job.graph, len(trace)
    sent = graph.first_output[trace.tasks["op"][np.minimum(source, n - 1)]]
    tensor = np.concatenate((np.zeros(n, np.int64), trace.transfers["tensor"]))
    new = (source, recv, np.where(source < n, sent, tensor[source]))
    return TaskEdges(*(np.concatenate(pair) for pair in zip(edges, new, strict=True)))


def waited_for(trace: Record, edges: TaskEdges) -> TaskEdges:
    """Return the edges that held their consumer back; for a non-strict op, only that of its first input.

    If an input was there from the start, no data edge remains. With control flow all edges that had arrived
    remain, as for a merge: a trace does not say which producer was first in its iteration.

    Parameters
    ----------
    trace : Trace
    edges : TaskEdges
        The result of `dependencies`.
    """
    data = np.flatnonzero(_into_non_strict(trace, edges))
    if not len(data) or has_control_flow(trace.job.graph):
        return edges
    flow, iterations = trace.flow, trace.job.iterations
    rows = min(iterations, int(flow.distance.max(initial=0)) + 1)
    available = np.array([inputs_from_the_start(trace.job.graph, flow, i) for i in range(rows)])
    end = trace.of_rows("end_ns")
    consumer = edges.consumer[data]
    by_arrival = np.lexsort((data, end[edges.producer[data]], consumer))
    _, first = np.unique(consumer[by_arrival], return_index=True)
    first = by_arrival[first]
    task = consumer[first]
    iteration = np.minimum(trace.tasks["iteration"][task], rows - 1)
    keep = np.ones(len(edges.producer), dtype=bool)
    keep[data] = False
    keep[data[first[~available[iteration, trace.tasks["op"][task]]]]] = True
    return TaskEdges(*(column[keep] for column in edges))


def _into_non_strict(trace: Record, edges: TaskEdges) -> BoolArray:
    """Return a mask of the edges that carry data to a non-strict op."""
    non_strict = non_strict_ops(trace.job.graph)
    if not non_strict.any():
        return np.zeros(len(edges.producer), dtype=bool)
    mask: BoolArray = (edges.consumer < len(trace)) & (edges.tensor != UNSET)
    mask[mask] = non_strict[trace.tasks["op"][edges.consumer[mask]]]
    return mask
