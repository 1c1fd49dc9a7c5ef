"""The schedule that was recorded: when each op of a recording ran, and where.

::

    graph, every op with ``recorded_start_ns``       as_recorded(graph)
      launch.1   cpu   thread0     0   5             op  lane            start_ns  end_ns
      gemm.0     gpu   stream 7    9  30      ──►     0  (cpu, thread0)         0    5000
      ...                                             1  (gpu, 7)            9000   39000

An op ends ``recorded_ns`` after it starts, or else its duration. A collective of ranks has both: its duration
is the transfer alone, and what was recorded holds its waiting, too. So has a kernel that began before the one
before it ended.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sim.graph.graph import Graph
from sim.words.arrays import Codes, IntArray

__all__ = ["Lane", "Recorded", "as_recorded", "recorded_lanes"]

Lane = tuple[str, object]
"""A device, by the op's pin, and the stream or thread on it."""


@dataclass(frozen=True)
class Recorded:
    """A recorded schedule: one entry an op that was recorded, in order of ops.

    Attributes
    ----------
    op : array
        Indices of ops.
    lane : array
        Of each: an index into `lanes`.
    start_ns, end_ns : array
    lanes : tuple of Lane
        In order of first use.
    """

    op: IntArray
    lane: IntArray
    start_ns: IntArray
    end_ns: IntArray
    lanes: tuple[Lane, ...]


def recorded_lanes(graph: Graph) -> list[Lane]:
    """Return where each op was recorded; the device alone where neither stream nor thread is known."""
    lane = {**graph.attribute("thread"), **graph.attribute("stream")}
    pins = [*graph.pins, ""]  # the last, -1, is of ops that have none
    return [(pins[code], lane.get(op)) for op, code in enumerate(graph.pin_code.tolist())]


def as_recorded(graph: Graph) -> Recorded:
    """Return the schedule that was recorded, of the ops with an attribute ``recorded_start_ns``.

    Examples
    --------
    >>> from sim import GraphBuilder
    >>> b = GraphBuilder("recorded")
    >>> _ = b.op("a", duration_ns=5, device="gpu", attributes={"stream": 7, "recorded_start_ns": 9})
    >>> found = as_recorded(b.build())
    >>> found.lanes, found.start_ns.tolist(), found.end_ns.tolist()
    ((('gpu', 7),), [9], [14])
    """
    started = graph.attribute("recorded_start_ns")
    op, start = np.array([*started], np.int64), np.array([*started.values()], np.int64)
    lanes, of_ops = Codes[Lane](), recorded_lanes(graph)
    lane = lanes.of(of_ops[each] for each in started)
    took = graph.duration_ns.copy()
    for each, ns in graph.attribute("recorded_ns").items():
        took[each] = ns
    return Recorded(op, lane, start, start + took[op], (*lanes,))
