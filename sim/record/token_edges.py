"""Which run of an op fed which, under control flow: by the iterations in which they ran.

A row of the trace knows its frame and iteration, and the kind of its op says into which ones it gives::

    enter             outer:2          →  outer:2/inner:0      (constant: every iteration of that loop)
    next_iteration    outer:2/inner:0  →  outer:2/inner:1
    exit              outer:2/inner:3  →  outer:2              (of several iterations, the one that is live)
    all others        outer:2          →  outer:2

The reader of a token ran there. Where Sends and Recvs meet by key, each part of the graph has frames of its
own that bear the same names (`sim.readiness.parts`), but an op is in one part, and no edge leads to another.
What comes too late for an op that did not wait for it feeds nobody.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from sim.graph.csr import Csr
from sim.graph.frames import frame_structure
from sim.readiness.parts import parts
from sim.record.record import Record
from sim.words.arrays import UNSET, BoolArray, IntArray

__all__ = ["frames_over_ns", "kept_tokens", "token_edges"]


def token_edges(trace: Record, node: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return producer, consumer (rows) and tensor (-1: control) of all edges of a run with control flow.

    Parameters
    ----------
    trace : Trace
    node : array of int64
        Op or transfer of each row, as `Flow` numbers them.
    """
    flow, graph = trace.flow, trace.job.graph
    repetition, frame = trace.of_rows("iteration"), trace.of_rows("frame")
    frames = _Frames(trace)
    given = frames.given_into(node, frame)
    n_frames = max(1, len(trace.frames))
    live = np.concatenate((trace.tasks["dead"] == 0, np.ones(len(node) - len(trace), bool)))

    # Every run by who ran and where it gave its tokens; a live one counts more than those that are dead.
    known = np.flatnonzero(given != UNSET)
    key = ((repetition * flow.n_nodes + node) * n_frames + given)[known]
    order = np.lexsort((known, live[known], key))
    known, key = known[order], key[order]

    runs = Csr.group(node, np.arange(len(node)), flow.n_nodes).take(flow.consumer)
    edge, consumer = runs.rows(), runs.indices
    constant = np.zeros(flow.n_nodes, bool)
    constant[[op for op, constantly in graph.attribute("constant").items() if constantly]] = True
    where = frame[consumer]
    where = np.where(constant[flow.producer[edge]], frames.first[where], where)
    asked = (repetition[consumer] * flow.n_nodes + flow.producer[edge]) * n_frames + where
    at = np.searchsorted(key, asked, side="right") - 1
    producer = known[np.maximum(at, 0)] if len(known) else np.full(len(asked), UNSET)
    fed = (at >= 0) & (key[np.maximum(at, 0)] == asked) if len(known) else np.zeros(len(asked), bool)
    end, start = trace.of_rows("end_ns"), trace.of_rows("start_ns")
    fed &= end[producer] <= start[consumer]
    return producer[fed], consumer[fed], flow.carries[edge[fed]]


class _Frames:
    """The frames and iterations of a run, by number in ``trace.frames``; -1: nothing ran there.

    Attributes
    ----------
    structure : FrameStructure
    loop : list of str
        Of each, its text without the number of the iteration.
    outside, following, first : arrays of int64
        Of each, the iteration that its loop was entered from, the next one, and the first.
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
            name = self.structure.name[int(static[k])]  # in which there may be any character
            self.outside[k] = self.number.get(loop[: -len(name)].removesuffix("/"), UNSET)
            self.following[k] = self.number.get(f"{loop}:{iteration + 1}", UNSET)
            self.first[k] = self.number.get(f"{loop}:0", UNSET)

    def opened(self, enter: int, frame: int) -> str:
        """Return the loop that a run of an enter opens, or is one of those that do."""
        outer, name = self.trace.frames[frame], self.structure.name[self.structure.child_of[enter]]
        return f"{outer}/{name}" if outer else name

    def given_into(self, node: IntArray, frame: IntArray) -> IntArray:
        """Return the frame and iteration into which each row gives its tokens."""
        graph, flow = self.trace.job.graph, self.trace.flow
        given = frame.copy()
        kind = np.append(graph.kind_code, np.full(flow.n_nodes - flow.n_ops, UNSET))[node]
        for name, into in (("exit", self.outside), ("next_iteration", self.following)):
            if name in graph.kinds:
                rows = kind == graph.kinds.index(name)
                given[rows] = into[frame[rows]]
        for row in np.flatnonzero(np.isin(node, list(self.structure.child_of))).tolist():
            given[row] = self.number.get(f"{self.opened(int(node[row]), int(frame[row]))}:0", UNSET)
        return given


def frames_over_ns(trace: Record) -> dict[int, int]:
    """Return when the loop is over that each constant enter (row) gives to: it holds its tensor until then.

    It is over when the last task of its part has ended, and does not wait for what was sent by key. (A host
    that launches ahead may be done with it sooner.)
    """
    frames, graph = _Frames(trace), trace.job.graph
    tasks, moved = trace.tasks, trace.transfers
    part = np.array(parts(trace.job))
    sent = np.isin(moved["id"], trace.met[:, 0])
    counts = np.append(np.ones(len(trace), bool), ~sent)
    of_row = part[np.append(tasks["op"], graph.tensor_producer[moved["tensor"]])]
    columns = (of_row, *(trace.of_rows(name) for name in ("iteration", "frame", "end_ns")))
    latest: dict[tuple[int, int, int], int] = defaultdict(int)
    for *where, end in zip(*(column[counts].tolist() for column in columns), strict=True):
        place = where[0], where[1], where[2]
        latest[place] = max(latest[place], end)
    over: dict[tuple[int, int, str], int] = defaultdict(int)
    for (own, repetition, frame), end in latest.items():
        while frame != UNSET and frames.outside[frame] != UNSET:
            loop = own, repetition, frames.loop[frame]
            over[loop] = max(over[loop], end)
            frame = int(frames.outside[frame])
    constant: dict[int, tuple[int, int, str]] = {}
    for row in np.flatnonzero(np.isin(tasks["op"], list(frames.structure.child_of))).tolist():
        op = int(tasks["op"][row])
        opened = frames.opened(op, int(tasks["frame"][row]))
        loop = int(part[op]), int(tasks["iteration"][row]), opened
        over[loop] = max(over[loop], int(tasks["end_ns"][row]))
        if graph.attributes[op].get("constant", False):
            constant[row] = loop
    return {row: over[loop] for row, loop in constant.items()}


def kept_tokens(trace: Record, producer: IntArray, consumer: IntArray, tensor: IntArray) -> BoolArray:
    """Return which edges carry a live token that its reader keeps; a merge keeps the first that comes.

    Parameters
    ----------
    trace : Trace
        With control flow.
    producer, consumer, tensor : arrays of int64
        Its edges, by row.
    """
    graph, n = trace.job.graph, len(trace)
    total = n + len(trace.transfers["id"])
    side = np.full(total, UNSET)
    ids = trace.tasks["id"]
    by_id = np.argsort(ids)
    switch, taken = trace.taken.T
    side[by_id[np.searchsorted(ids[by_id], switch)]] = taken
    first = np.zeros(total, np.int64)
    first[:n] = graph.first_output[trace.tasks["op"]]
    live = np.ones(total, bool)
    live[:n] = trace.tasks["dead"] == 0
    kept: BoolArray = (tensor != UNSET) & (
        (side[producer] == UNSET) | (tensor - first[producer] == side[producer])
    )
    kept &= live[producer]
    sent = consumer >= n
    live[consumer[sent & ~kept]] = False  # a transfer of what is dead brings a dead token
    kept &= live[producer]
    if "merge" in graph.kinds:
        into = np.flatnonzero(kept & ~sent)
        into = into[graph.is_kind("merge")[trace.tasks["op"][consumer[into]]]]
        end = trace.of_rows("end_ns")[producer[into]]
        order = into[np.lexsort((producer[into], end, consumer[into]))]
        later = np.flatnonzero(np.diff(consumer[order], prepend=UNSET) == 0)
        kept[order[later]] = False
    return kept
