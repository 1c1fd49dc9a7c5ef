"""The durations of one recording in the graph of another one of the same program.

::

    A    launch ─► mm.0  12 us         B    launch ─► mm.0  7 us, splitK.1  2 us
         launch ─► add.1  4 us              launch ─► add.2  3 us

    B's kernels in A's graph           launch ─► mm.0  9 us, launch ─► add.1  3 us

What the graph of A makes of B's kernels is the prediction that a recording gives, if somebody knew the new
durations. Held against the recording of B, it judges the graph alone: its launches, its order, its waits.

Another library runs other kernels, and more or fewer of them, for the same operator. So kernels are counted
by runs: those that one operator launched one after another. Runs of both recordings are matched in the order
of launches (`difflib.SequenceMatcher`), and a run of A takes what its match took in B, each kernel its share;
runs with as many kernels match one by one. The total is that of B, to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from fractions import Fraction
from itertools import accumulate, groupby, pairwise

import numpy as np

from scenarios.recorded import select as roles
from scenarios.recorded.durations import faster_host
from sim import Graph
from sim.base.errors import InputError


def tasks_of(graph: Graph) -> list[int]:
    """Return the tasks of the GPU in the order in which they were launched."""
    is_launch, before = roles.launches(graph), graph.predecessors.lists()
    launch_of = {
        op: [p for p in before[op] if is_launch[p]] for op in np.flatnonzero(roles.tasks(graph)).tolist()
    }
    return sorted(launch_of, key=lambda op: (max(launch_of[op], default=-1), op))


def with_kernels(a: Graph, b: Graph) -> Graph:
    """Return the graph of `a` with the tasks of the GPU as long as those of `b`.

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
    """Return how long the thread of the host that works longest works."""
    work: dict[object, int] = {}
    for op in np.flatnonzero(roles.host_ops(graph)).tolist():
        thread = graph.attributes[op]["thread"]
        work[thread] = work.get(thread, 0) + int(graph.duration_ns[op])
    return max(work.values(), default=0)


def with_host(a: Graph, b: Graph) -> Graph:
    """Return the graph of `a` with a host that works as much longer as `b`'s does in total.

    Raises
    ------
    InputError
        The host of `a` does nothing.
    """
    if not host_work_ns(a):
        raise InputError(f"{a.name} has no work of the host")
    return faster_host(a, Fraction(host_work_ns(b), host_work_ns(a)))


def _runs(graph: Graph) -> list[tuple[str, list[int]]]:
    """Return operators, and the tasks that each launched; without operators the kinds of tasks."""
    named = [(str(graph.attributes[op].get("operator", graph.kind(op))), op) for op in tasks_of(graph)]
    return [(name, [op for _, op in some]) for name, some in groupby(named, key=lambda each: each[0])]


def _matches(opcodes: Sequence[tuple[str, int, int, int, int]]) -> Iterator[tuple[slice, slice]]:
    """Yield runs of both that match; what is in one only belongs to its neighbour."""
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
    """Return the shares of a total, whole and of the same sum."""
    if not sum(weights):
        weights = [1] * len(weights)
    ends = [total * weight // sum(weights) for weight in accumulate(weights, initial=0)]
    return [end - start for start, end in pairwise(ends)]
