"""What a task costs on the kernel, in raw SimPy timeouts.

*Loop* is the run alone, from columns to columns: what grows with the tasks and is compiled. *Run* is all that
`sim.kernel.run` does for a job: its layout in columns, the loop, and the trace.

Graphs and paths are those of `bench_engine.py`; *ready* has 100,000 ops that are ready at once.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from bench_engine import TwoStreams, chain, layered, machine
from measure import cost, needs_compiler, seconds

from policies.issue.ready_queue import ReadyQueue
from sim import Graph, Job
from sim.base.compiled import load
from sim.job.build_job import make_job
from sim.job.transfers import make_flow
from sim.kernel import columns as layout
from sim.kernel.run import is_compiled, run, to_the_end
from sim.policy import order_of

BUDGET = {"plain": 0.15, "gpu": 0.4}
"""Raw timeouts that a task may cost in the compiled loop, of large graphs."""

GROWTH = 1.3
"""Times as much as a task of 1,000 it may cost at any size, and with 100,000 ready at once."""

BYTES = 200
"""What a run takes beside its job at its peak, a task; 88 of it are the trace."""

CASES: dict[str, tuple[Callable[[int], Graph], int]] = {
    "chain": (chain, 1),
    "layered": (layered, 8),
    "ready": (lambda n: chain(n, min(n, 100_000)), 1),
}
SIZES = [("chain", 100_000), *(("layered", 10**k) for k in (3, 4, 5, 6)), ("ready", 1_000_000)]


def job_of(graph: Graph, path: str, devices: int) -> tuple[Job, ReadyQueue]:
    """Return the job and the policy of a path."""
    policy = ReadyQueue(synchronisation="completion" if path == "plain" else "issue")
    streams = None if path == "plain" else TwoStreams()
    return make_job(graph, machine(path, devices), streams=streams), policy


def laid_out(job: Job, policy: ReadyQueue) -> Any:
    """Return the kernel with the columns of a job, ready to run."""
    order = order_of(policy, job)
    shared = layout.shared_of(job)
    assert order is not None
    assert not isinstance(shared, str)
    kernel = load("loop").Run()
    for name, value in layout.columns(job, make_flow(job), policy, order, shared).items():
        plain = not is_compiled() and isinstance(value, np.ndarray)
        setattr(kernel, name, value.tolist() if plain else value)
    return kernel


def loop_seconds(job: Job, policy: ReadyQueue) -> float:
    """Return how long the loop takes once."""
    kernel = laid_out(job, policy)
    took = seconds(lambda: to_the_end(kernel))
    assert kernel.n_done == kernel.n_tasks
    return took


def bytes_a_task(job: Job, policy: ReadyQueue) -> float:
    """Return the memory that a run takes beside its job at its peak, a task."""
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = run(job, policy)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    del kept
    return (peak - before) / len(job.graph)


@needs_compiler
@pytest.mark.parametrize(("name", "n"), SIZES)
@pytest.mark.parametrize("path", BUDGET)
def test_a_task_costs_at_most_its_budget(path: str, name: str, n: int) -> None:
    make, devices = CASES[name]
    job, policy = job_of(make(n), path, devices)
    rounds = max(3, min(30, 300_000 // n))
    loop = cost(partial(loop_seconds, job, policy), n, rounds=rounds, devices=devices)
    whole = 1000 * cost(partial(seconds, lambda: run(job, policy)), n, rounds=3).us
    nbytes = bytes_a_task(job, policy)
    print(
        f"| {path} | {name} | {n:,} | {1000 * loop.us:.0f} ns in the loop | {1 / loop.us:.1f} M tasks/s | "
        f"{loop.timeouts:.3f} raw timeouts | {whole:.0f} ns in the run | {nbytes:.0f} bytes a task |"
    )
    if n >= 100_000:
        assert loop.timeouts <= BUDGET[path]
        assert nbytes <= BYTES


@needs_compiler
@pytest.mark.parametrize("path", BUDGET)
def test_the_cost_a_task_does_not_grow(path: str) -> None:
    small = min(loop_seconds(*job_of(layered(1_000), path, 8)) for _ in range(50)) / 1_000
    large = min(loop_seconds(*job_of(layered(300_000), path, 8)) for _ in range(5)) / 300_000
    assert large <= GROWTH * small
