"""What the tests of policies, linearizers and stream assignments share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import strategies as st

from sim import Device, Graph, GraphBuilder, Job, Machine, Trace
from sim.job.build_job import make_job
from studies.runtimes_study import frameworks

FRAMEWORKS = frameworks()
"""The registered runtimes that run any graph; the others are of pipelines."""

FIVE = {"a": [], "b": [], "c": ["b"], "d": ["a", "c"], "e": ["d"]}
"""The five-node example: a→d, b→c, c→d, d→e."""


def graph_of(inputs: Mapping[str, Sequence[str]], ns: Mapping[str, int] | int = 10) -> Graph:
    """Return the graph with these inputs per op, and durations per op or one for all."""
    b = GraphBuilder("test")
    for name, before in inputs.items():
        b.op(name, inputs=before, outputs=1, duration_ns=ns if isinstance(ns, int) else ns[name])
    return b.build()


def cpu(workers: int = 1) -> Machine:
    """Return a machine with one CPU."""
    return Machine((Device("cpu0", "cpu", workers=workers),))


def gpu(streams: int = 1, **numbers: int) -> Machine:
    """Return a machine with one GPU."""
    return Machine((Device("gpu0", "gpu", streams=streams, **numbers),))


def spans(trace: Trace) -> dict[str, tuple[int, int]]:
    """Return (start, end) of every op of a run of one iteration, by name."""
    t, names = trace.tasks, trace.job.graph.op_names
    return {
        names[op]: (start, end)
        for op, start, end in zip(t["op"].tolist(), t["start_ns"].tolist(), t["end_ns"].tolist(), strict=True)
    }


def same_times(a: Trace, b: Trace) -> bool:
    """Whether two runs did the same at the same times."""
    return all(np.array_equal(a.tasks[name], b.tasks[name]) for name in a.tasks)


def job_of(graph: Graph, machine: Machine | None = None, **decisions: object) -> Job:
    """Return a job, by default on a GPU with one stream."""
    return make_job(graph, machine or gpu(), **decisions)  # type: ignore[arg-type]


def names(graph: Graph, order: Sequence[int]) -> str:
    """Return the names of some ops, which are single letters, as one word."""
    return "".join(graph.op_names[op] for op in order)


@st.composite
def dags(draw: st.DrawFn, max_ops: int = 10, max_ns: int = 12, distances: bool = False) -> Graph:
    """Draw a graph with data and control edges, several outputs, and edges across iterations on request."""
    n = draw(st.integers(1, max_ops))
    b = GraphBuilder("drawn")
    outputs: list[int] = []
    for i in range(n):
        before = draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True)) if i else []
        control = draw(st.lists(st.booleans(), min_size=len(before), max_size=len(before)))
        which = draw(st.integers(0, 1))
        inputs: list[str | tuple[str, int]] = [
            f"o{j}:{which}" if which < outputs[j] else f"o{j}"
            for j, c in zip(before, control, strict=True)
            if not c
        ]
        if distances and draw(st.integers(0, 4)) == 0:
            inputs.append((f"o{draw(st.integers(0, n - 1))}", draw(st.integers(1, 2))))
        sizes = draw(st.lists(st.integers(0, 40), min_size=1, max_size=2))
        outputs.append(len(sizes))
        b.op(
            f"o{i}",
            kind=draw(st.sampled_from(("matmul", "copy"))),
            inputs=inputs,
            after=[f"o{j}" for j, c in zip(before, control, strict=True) if c],
            outputs=sizes,
            duration_ns=draw(st.integers(0, max_ns)),
        )
    return b.build()
