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
from typing import Any, NamedTuple

import numpy as np

from sim.base.arrays import Codes, IntArray
from sim.graph.graph import Graph
from sim.trace import Trace

Lane = tuple[str, object]
"""A device, by the op's pin, and the stream or thread on it."""


@dataclass(frozen=True)
class RecordedTimes:
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


def as_recorded(graph: Graph) -> RecordedTimes:
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
    return RecordedTimes(op, lane, start, start + took[op], (*lanes,))


# ----------------------------------------------------------------------------------------------------------
# How much of a makespan nothing explains: the delays of a recording on the executed path.
#
#     stream 7    [a][ delay.1 ][b]                          a delay is what kept b, and nothing in the trace
#     stream 20   [c                ][ delay.2 ][d]          says what; the path goes back from d: delay.2, c
#
# A *delay* is idle time of a stream that no launch, no task and no event explains, beyond what the GPU itself
# takes (`scenarios.importers.kineto.kineto`). The executed path (`sim.explain.path`) leads from time 0 to
# the end of the run without a hole: delays on it are part of the makespan, those beside it held nothing up.


class Residue(NamedTuple):
    """What nothing explains.

    Attributes
    ----------
    ns : int
        On the executed path.
    share : float
        That part of the makespan, from 0 to 1.
    delays : int
        How many there are in all.
    delays_ns : int
        How long they are together, on all streams.
    """

    ns: int
    share: float
    delays: int
    delays_ns: int

    def to_json(self) -> dict[str, Any]:
        """Return it as ``sim run --json`` prints it."""
        return self._asdict()


def residue(trace: Trace) -> Residue | None:
    """Return what part of a recording's run nothing explains; None: it is no recording."""
    if not trace.is_delay.any():
        return Residue(0, 0.0, 0, 0) if trace.job.graph.device_facts else None
    from sim.explain.path import executed_path

    lengths = trace.tasks["end_ns"] - trace.tasks["start_ns"]
    path = executed_path(trace)
    on_path = sum(step.end_ns - step.start_ns for step in path if step.reason == "unexplained")
    share = on_path / trace.makespan_ns if trace.makespan_ns else 0.0
    return Residue(on_path, share, int(trace.is_delay.sum()), int(lengths[trace.is_delay].sum()))
