"""What a task costs on the kernel, in raw SimPy timeouts measured in the same run.

    python benchmarks/bench_kernel.py              the table: 1k to 1M tasks
    python benchmarks/bench_kernel.py --most       ... and ten million (some minutes, 8 GB)
    make bench                                     the ratios, held to their budgets

*Loop* is the run alone, from columns to columns: what grows with the tasks and is compiled. *Run* is all that
`sim.kernel.run` does for a job: its layout in columns, the loop, and the trace.

Graphs and paths are those of `bench_engine.py`; *ready* has 100,000 ops that are ready at once.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from bench_engine import TwoStreams, chain, layered, machine, raw_timeouts, seconds, wide

from policies.issue.ready_queue import ReadyQueue
from sim import Graph, Job, Trace
from sim.base.compiled import load
from sim.job.build_job import make_job
from sim.job.transfers import make_flow
from sim.kernel import columns as layout
from sim.kernel import loop as loop_source
from sim.kernel.run import compiled, run, to_the_end
from sim.policy import order_of

BUDGET = {"plain": 0.15, "gpu": 0.4}
"""Raw timeouts that a task may cost in the compiled loop, layered on eight devices."""

GROWTH = 1.3
"""Times as much as a task of 1,000 it may cost at any size, and with 100,000 ready at once."""

BYTES = 200
"""What a run takes beside its job at its peak, a task; 88 of it are the trace."""

CASES: dict[str, tuple[Callable[[int], Graph], int]] = {
    "chain": (chain, 1),
    "layered": (layered, 8),
    "ready": (lambda n: wide(n, min(n, 100_000)), 1),
}


def job_of(graph: Graph, path: str, devices: int) -> tuple[Job, ReadyQueue]:
    """Return the job and the policy of a path."""
    policy = ReadyQueue(synchronisation="completion" if path == "plain" else "issue")
    streams = None if path == "plain" else TwoStreams()
    return make_job(graph, machine(path, devices), streams=streams), policy


def laid_out(job: Job, policy: ReadyQueue, *, pure: bool = False) -> Any:
    """Return the kernel, or the one in Python, with the columns of a job, ready to run."""
    order = order_of(policy, job)
    shared = layout.shared_of(job)
    assert order is not None
    assert not isinstance(shared, str)
    kernel = (loop_source if pure else load("loop")).Run()
    for name, value in layout.columns(job, make_flow(job), policy, order, shared).items():
        plain = (pure or not compiled()) and isinstance(value, np.ndarray)
        setattr(kernel, name, value.tolist() if plain else value)
    return kernel


def loop_seconds(job: Job, policy: ReadyQueue) -> float:
    """Return how long the loop takes once."""
    kernel = laid_out(job, policy)
    gc.collect()
    start = time.perf_counter()
    to_the_end(kernel)
    took = time.perf_counter() - start
    assert kernel.n_done == kernel.n_tasks
    return took


def measure(graph: Graph, path: str, devices: int, rounds: int) -> dict[str, float]:
    """Return what a task costs: ns in the loop, raw timeouts in it, ns in all.

    The ns are the best of the rounds; the ratio is the median of theirs, each of which compares neighbours.
    """
    n, raw = len(graph), 20_000
    job, policy = job_of(graph, path, devices)
    pairs, whole = [], float("inf")
    for _ in range(rounds):
        loop = loop_seconds(job, policy) / n
        pairs.append((loop, seconds(lambda: raw_timeouts(raw, devices), 1) / raw))
        whole = min(whole, seconds(lambda: run(job, policy), 1) / n)
    return {
        "loop_ns": min(pairs)[0] * 1e9,
        "raw": statistics.median(loop / timeout for loop, timeout in pairs),
        "run_ns": whole * 1e9,
    }


def bytes_a_task(graph: Graph, path: str, devices: int) -> float:
    """Return the memory that a run takes beside its job at its peak, a task."""
    job, policy = job_of(graph, path, devices)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    trace = run(job, policy)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(trace, Trace)
    return (peak - before) / len(graph)


needs_compiler = pytest.mark.skipif(not compiled(), reason="the kernel is not compiled")


@needs_compiler
@pytest.mark.parametrize("n", [100_000, 1_000_000])
@pytest.mark.parametrize("path", BUDGET)
def test_a_task_costs_at_most_its_budget_in_the_loop(path: str, n: int) -> None:
    assert measure(layered(n), path, 8, rounds=5 if n < 1_000_000 else 3)["raw"] <= BUDGET[path]


@needs_compiler
@pytest.mark.parametrize("path", BUDGET)
def test_the_cost_a_task_does_not_grow(path: str) -> None:
    small = min(loop_seconds(*job_of(layered(1_000), path, 8)) for _ in range(50)) / 1_000
    large = min(loop_seconds(*job_of(layered(300_000), path, 8)) for _ in range(5)) / 300_000
    assert large <= GROWTH * small


@needs_compiler
@pytest.mark.parametrize("path", BUDGET)
def test_the_memory_a_task_takes(path: str) -> None:
    assert bytes_a_task(layered(100_000), path, 8) <= BYTES


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--most", action="store_true", help="up to ten million tasks")
    sizes = [1_000, 10_000, 100_000, 1_000_000] + ([10_000_000] if parser.parse_args().most else [])
    print(f"the kernel is {'compiled' if compiled() else 'pure Python'}")
    print("path   graph    tasks      loop ns   M tasks/s   raw timeouts   run ns   bytes a task")
    for path in BUDGET:
        for name, (make, devices) in CASES.items():
            for n in sizes:
                graph = make(n)
                found = measure(graph, path, devices, rounds=max(3, min(30, 300_000 // n)))
                memory = bytes_a_task(graph, path, devices)
                print(
                    f"{path:6} {name:8} {n:<10,} {found['loop_ns']:7.0f} {1e3 / found['loop_ns']:11.1f} "
                    f"{found['raw']:14.3f} {found['run_ns']:8.0f} {memory:14.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
