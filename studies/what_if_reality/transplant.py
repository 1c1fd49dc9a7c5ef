"""Put the durations of one recording into the graph of another one of the same program.

::

    A    launch ─► mm.0  12 us         B    launch ─► mm.0  7 us, splitK.1  2 us
         launch ─► add.1  4 us              launch ─► add.2  3 us

    B's kernels in A's graph           launch ─► mm.0  9 us, launch ─► add.1  3 us

The graph of A with B's kernels is the prediction that a recording would give if the new durations were
known. Compared with the recording of B, it judges only the graph: its launches, its order, its waits.

Another library runs other kernels, and more or fewer of them, for the same operator. So kernels are compared
by runs: kernels that one operator launched one after another. Runs of both recordings are matched in order
of launches (`difflib.SequenceMatcher`), and a run of A takes the time of its match in B, each kernel its
share; runs with equally many kernels match one by one. The total is that of B, to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from fractions import Fraction
from itertools import accumulate, groupby, pairwise
from typing import Final, NamedTuple

import numpy as np

from scenarios.importers.files import items
from scenarios.importers.kineto.kineto_events import read_events
from scenarios.recorded import select as roles
from scenarios.recorded.durations import faster_host
from scenarios.recorded.setup import as_recorded
from sim import Graph
from sim.base.arrays import IntArray
from sim.base.errors import InputError
from sim.base.files import StrPath
from sim.base.intervals import union
from sim.base.units import round_half_up
from sim.trace import Trace

# --------------------------------------------------------------------------------------------------------
# Quantities in which a recording and a simulated run are compared: span, busy time, idle time, step.


class Measures(NamedTuple):
    """Times of a run, in ns.

    Attributes
    ----------
    span : int
        From the first op to the end of the last, of host and GPU.
    busy : int
        Time in which the GPU ran something; for several GPUs, any of them.
    step : int
        As requested: the whole span, or the median time from one kernel of a name to the next.
    """

    span: int
    busy: int
    step: int

    @property
    def idle(self) -> int:
        """Time in which the GPU ran nothing."""
        return self.span - self.busy


def recorded(graph: Graph, step: str | None = None) -> Measures:
    """Return the recorded times."""
    was = as_recorded(graph)
    return _measures(graph, was.op, was.start_ns, was.end_ns, step)


def simulated(trace: Trace, step: str | None = None) -> Measures:
    """Return the times of a simulated run."""
    tasks = trace.tasks
    return _measures(trace.job.graph, tasks["op"], tasks["start_ns"], tasks["end_ns"], step)


def _measures(graph: Graph, op: IntArray, start: IntArray, end: IntArray, step: str | None) -> Measures:
    kernels = [str(graph.attributes.get(each, {}).get("kernel", "")) for each in op.tolist()]
    on_gpu = np.array([name != "" for name in kernels])
    busy = int(union(start[on_gpu], end[on_gpu], graph.pin_code[op][on_gpu]).lengths(len(graph.pins)).sum())
    span = int(end.max() - start.min())
    if step is None:
        return Measures(span, busy, span)
    marks = np.sort(start[[step in name for name in kernels]])
    if len(marks) < 2:
        raise InputError(f"{graph.name}: {len(marks)} kernels are called *{step}*, so there is no step")
    return Measures(span, busy, int(np.median(np.diff(marks))))


# --------------------------------------------------------------------------------------------------------
# The host's work inside named ranges of a trace, such as the data loader's: a what-if without it.
#
# ::
#
#     thread   ──[enumerate(DataLoader)#...__next__   ]──[launch]──[launch]
#     host op   [ host.7, from the last call to this one ]
#
#     without   [      ]──[launch]──[launch]
#
# Profilers note ranges as operators or annotations of a thread. A host op begins at the end of the previous
# call, so a range is a part of it.

_NOTES: Final = frozenset({"operator", "cpu_op", "user_annotation"})


def ranges_of(path: StrPath, name: str) -> tuple[IntArray, IntArray]:
    """Return begin and end of the ranges whose names contain a text, in ns from the first call, in order.

    Raises
    ------
    InputError
        There is none.
    """
    found = [
        (event["ts"], Fraction(event["ts"]) + Fraction(event["dur"]))
        for event in items(path, "a trace", "traceEvents", {})
        if event.get("ph") == "X"
        and str(event.get("cat", "")).lower() in _NOTES
        and name in str(event.get("name"))
    ]
    if not found:
        raise InputError(f"{path}: no range of the host is called *{name}*")
    begin_ns = read_events(path)[0].begin_ns
    ns = np.array([[round_half_up(1000 * Fraction(us)) - begin_ns for us in each] for each in found])
    alone = union(ns[:, 0], ns[:, 1], np.zeros(len(ns), np.int64))
    return alone.start, alone.end


def without_ranges(graph: Graph, start: IntArray, end: IntArray) -> Graph:
    """Return the graph of a recording whose host does nothing in the given disjoint, ordered ranges."""
    ns = graph.duration_ns.copy()
    for op, own in graph.attributes.items():
        if "thread" in own and "recorded_start_ns" in own:
            begin = int(own["recorded_start_ns"])
            inside = np.minimum(end, begin + int(ns[op])) - np.maximum(start, begin)
            ns[op] -= int(np.maximum(inside, 0).sum())
    return replace(graph, duration_ns=ns)


def tasks_of(graph: Graph) -> list[int]:
    """Return the tasks of the GPU in order of launch."""
    is_launch, before = roles.launches(graph), graph.predecessors.lists()
    launch_of = {
        op: [p for p in before[op] if is_launch[p]] for op in np.flatnonzero(roles.tasks(graph)).tolist()
    }
    return sorted(launch_of, key=lambda op: (max(launch_of[op], default=-1), op))


def with_kernels(a: Graph, b: Graph) -> Graph:
    """Return the graph of `a` with the durations of `b`'s GPU tasks.

    Raises
    ------
    InputError
        The recordings have hardly an operator in common.
    """
    runs_a, runs_b = _runs(a), _runs(b)
    names_a, names_b = [name for name, _ in runs_a], [name for name, _ in runs_b]
    matcher = SequenceMatcher(None, names_a, names_b, autojunk=False)
    if matcher.ratio() < 0.5:
        raise InputError(
            f"{a.name} and {b.name} are hardly of one program: {matcher.ratio():.0%} of their runs match"
        )
    ns = a.duration_ns.copy()
    for some, others in _matches(matcher.get_opcodes()):
        ops = [op for run in runs_a[some] for op in run[1]]
        took = [int(b.duration_ns[op]) for run in runs_b[others] for op in run[1]]
        ns[ops] = took if len(took) == len(ops) else _shared(sum(took), a.duration_ns[ops].tolist())
    return replace(a, duration_ns=ns)


def host_work_ns(graph: Graph) -> int:
    """Return the working time of the host thread that works longest."""
    work: dict[object, int] = {}
    for op in np.flatnonzero(roles.host_ops(graph)).tolist():
        thread = graph.attributes[op]["thread"]
        work[thread] = work.get(thread, 0) + int(graph.duration_ns[op])
    return max(work.values(), default=0)


def with_host(a: Graph, b: Graph) -> Graph:
    """Return the graph of `a` with its host's work scaled to the total of `b`'s.

    Raises
    ------
    InputError
        The host of `a` does nothing.
    """
    if not host_work_ns(a):
        raise InputError(f"{a.name} has no work of the host")
    return faster_host(a, Fraction(host_work_ns(b), host_work_ns(a)))


def _runs(graph: Graph) -> list[tuple[str, list[int]]]:
    """Return runs: operators with the tasks that each launched; without operators, kinds of tasks."""
    named = [(str(graph.attributes[op].get("operator", graph.kind(op))), op) for op in tasks_of(graph)]
    return [(name, [op for _, op in some]) for name, some in groupby(named, key=lambda each: each[0])]


def _matches(opcodes: Sequence[tuple[str, int, int, int, int]]) -> Iterator[tuple[slice, slice]]:
    """Yield matching runs of both; what is only in one is added to its neighbour."""
    whole = [(i1, i2, j1, j2) for tag, i1, i2, j1, j2 in opcodes if tag != "equal"]
    equal = [
        (i1 + n, i1 + n + 1, j1 + n, j1 + n + 1)
        for tag, i1, i2, j1, _ in opcodes
        if tag == "equal"
        for n in range(i2 - i1)
    ]
    merged: list[tuple[int, int, int, int]] = []
    for i1, i2, j1, j2 in sorted([*whole, *equal]):
        if merged and i1 == i2:
            i1, _, j1, _ = merged.pop()
        merged.append((i1, i2, j1, j2))
    if len(merged) > 1 and merged[0][0] == merged[0][1]:
        (i1, _, j1, _), (_, i2, _, j2), *rest = merged
        merged = [(i1, i2, j1, j2), *rest]
    for i1, i2, j1, j2 in merged:
        yield slice(i1, i2), slice(j1, j2)


def _shared(total: int, weights: Sequence[int]) -> list[int]:
    """Return whole shares of a total that add up to it."""
    if not sum(weights):
        weights = [1] * len(weights)
    ends = [total * weight // sum(weights) for weight in accumulate(weights, initial=0)]
    return [end - start for start, end in pairwise(ends)]
