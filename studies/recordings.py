"""Replay recordings: is the recorded run reproduced, and does a faster GPU remove the waiting?

    python -m studies.recordings TRACE.json.gz FOLDER ...

::

                       ┌─► as recorded ───────────► span, idle time of each stream, order of starts, residue
    trace ──► graph ───┤
                       └─► the GPU 100 times faster ───► what remains of the host's waits, and of its work

In a folder every trace has a row, and if they are the ranks of a job there is one for all together.

*Span* is from the first call to the end of the last task of a GPU. *Idle* is a stream between its tasks.
*Tau* compares the starts of all GPU tasks (`kendall_tau`): 1 if they start in the same order. *Unexplained*
is the part of the makespan filled only by delays (`scenarios.recorded.setup`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from scenarios.importers.files import files_in
from scenarios.recorded.select import has_key
from scenarios.recorded.setup import Residue, as_recorded, residue, run_recorded
from sim.base.arrays import IntArray
from sim.base.errors import InputError
from sim.base.intervals import union
from sim.graph.graph import Graph
from sim.trace import Trace
from studies.program import markdown_table, run
from studies.recorded_ranks import by_op, load_ranks, ms, scaled, waiting_ns

FASTER: Final = 0.01
"""Factor of task times on a GPU that is 100 times faster."""


class Replay(NamedTuple):
    """A recording and its simulation.

    Attributes
    ----------
    tasks, streams : int
        Numbers of the GPUs' tasks and streams.
    recorded_ns, simulated_ns : int
        The span.
    idle_off : float
        Idle time of a stream, simulated over recorded, less 1, for the worst stream.
    tau : float
        Of the order of starts.
    residue : Residue
    """

    tasks: int
    streams: int
    recorded_ns: int
    simulated_ns: int
    idle_off: float
    tau: float
    residue: Residue

    @property
    def off(self) -> float:
        """The span, simulated over recorded, less 1."""
        return self.simulated_ns / self.recorded_ns - 1


class Faster(NamedTuple):
    """Effect of a GPU that is 100 times faster on a recording, in ns.

    Attributes
    ----------
    recorded_ns, simulated_ns, left_ns : int
        Time that the host waits in its calls: recorded, simulated as it was, and with the faster GPU.
    work_ns, same_ns : int
        Time that it works, before and after.
    makespan_ns : int
        With the faster GPU.
    """

    recorded_ns: int
    simulated_ns: int
    left_ns: int
    work_ns: int
    same_ns: int
    makespan_ns: int


def replay(graph: Graph, trace: Trace) -> Replay:
    """Return the comparison of a recording with its simulation."""
    was = as_recorded(graph)
    tasks = has_key(graph, "kernel")[was.op]
    op, lane = was.op[tasks], was.lane[tasks]
    start, end = by_op(trace)
    before = _idle_ns(was.start_ns[tasks], was.end_ns[tasks], lane)
    after = _idle_ns(start[op], end[op], lane)
    off = np.where(before, after / np.maximum(before, 1) - 1, after > 0)
    return Replay(
        len(op),
        len(np.unique(lane)),
        int(was.end_ns[tasks].max()),
        int(end[op].max()),
        float(off[np.argmax(np.abs(off))]),
        kendall_tau(was.start_ns[tasks], start[op]),
        residue(trace) or Residue(0, 0.0, 0, 0),
    )


def _idle_ns(start: IntArray, end: IntArray, lane: IntArray) -> IntArray:
    """Return how long each lane is idle from its first task to its last."""
    lanes = int(lane.max()) + 1
    first, last = np.full(lanes, np.iinfo(np.int64).max), np.zeros(lanes, np.int64)
    np.minimum.at(first, lane, start)
    np.maximum.at(last, lane, end)
    used = np.unique(lane)
    idle: IntArray = last - first - union(start, end, lane).lengths(lanes)
    return idle[used]


def faster(graph: Graph, trace: Trace) -> Faster:
    """Return the effect of a faster GPU on the host's waits; `trace` is the simulation as recorded."""
    fast = run_recorded(scaled(graph, "gpu", FASTER))
    (recorded, simulated, work), (_, left, same) = waiting_ns(trace), waiting_ns(fast)
    return Faster(recorded, simulated, left, work, same, fast.makespan_ns)


def kendall_tau(x: IntArray, y: IntArray) -> float:
    """Return Kendall's rank correlation of two rows of numbers, ties taken into account (tau-b).

    Pairs are counted in n log(n)^2 steps: those in the wrong order one bit of their ranks after another, from
    the highest. Kendall, "The treatment of ties in ranking problems", Biometrika 33 (1945).

    Examples
    --------
    >>> kendall_tau(np.array([1, 2, 3]), np.array([4, 6, 5]))
    0.3333333333333333
    >>> kendall_tau(np.array([1, 1, 2, 3]), np.array([5, 4, 6, 6]))
    0.8
    """
    n = len(x)
    order = np.lexsort((y, x))
    rank = np.empty(n, np.int64)
    rank[np.argsort(y[order], kind="stable")] = np.arange(n)
    discordant = 0
    for bit in range(n.bit_length()):
        above = rank >> (bit + 1)
        row = np.argsort(above, kind="stable")
        group, one = above[row], rank[row] >> bit & 1
        before = np.cumsum(one) - one
        first = np.searchsorted(group, group)
        discordant += int((before - before[first])[one == 0].sum())
    pairs = n * (n - 1) // 2
    tied_x, tied_y = _ties(x), _ties(y)
    tied_both = _ties(np.unique(np.stack([x, y]), axis=1, return_inverse=True)[1].ravel())
    concordant = pairs - discordant - tied_x - tied_y + tied_both
    return (concordant - discordant) / math.sqrt((pairs - tied_x) * (pairs - tied_y))


def _ties(values: IntArray) -> int:
    """Return the number of equal pairs."""
    counts = np.unique(values, return_counts=True)[1]
    return int((counts * (counts - 1) // 2).sum())


# -- tables ---------------------------------------------------------------------------------------


def recordings(paths: Sequence[Path]) -> Iterator[tuple[str, Graph]]:
    """Yield the recordings in files and folders, with their names."""
    for path in paths:
        if not path.is_dir():
            yield path.name.removesuffix(".gz").removesuffix(".json"), load_ranks(path)
            continue
        names = files_in(path)
        for name in names:
            yield f"{path.name}/{name.removesuffix('.gz').removesuffix('.json')}", load_ranks(path / name)
        try:
            yield f"{path.name}, all {len(names)} together", load_ranks(path)
        except InputError as error:
            print(f"not together: {error}", file=sys.stderr)


def main(paths: list[Path]) -> None:
    """Print the tables of traces, and of folders with the traces of all ranks."""
    again, fast = [], []
    for name, graph in recordings(paths):
        trace = run_recorded(graph)
        one, other = replay(graph, trace), faster(graph, trace)
        why = f"{ms(one.residue.ns)}, {100 * one.residue.share:.1f} %" if one.residue.ns else "0"
        spans = [ms(one.recorded_ns), ms(one.simulated_ns), f"{100 * one.off:+.3f} %"]
        row = [name, f"{one.tasks:,}", str(one.streams), *spans]
        again.append([*row, f"{100 * one.idle_off:+.2f} %", f"{one.tau:.5f}", why])
        gone = f"{100 * (1 - other.left_ns / other.recorded_ns):.0f} %" if other.recorded_ns else "–"
        waits = [ms(other.recorded_ns), ms(other.simulated_ns), ms(other.left_ns), gone]
        fast.append([name, *waits, ms(other.work_ns), ms(other.same_ns), ms(other.makespan_ns)])
    print("As recorded (ms):\n")
    head = ["recording", "GPU tasks", "streams", "span recorded", "simulated", "off by"]
    print(markdown_table([*head, "idle of a stream, at most off by", "tau", "unexplained"], again))
    print("The GPU 100 times faster (ms):\n")
    head = ["recording", "host waits recorded", "simulated", "at 100 x", "gone"]
    print(markdown_table([*head, "host works", "at 100 x", "makespan at 100 x"], fast))


if __name__ == "__main__":
    run(main)
