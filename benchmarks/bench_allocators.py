"""What an allocation and a free cost, with 10,000 blocks alive.

Each round frees a random block and allocates one of another size, over and over, which is harder on an
allocator than a model is: sizes hardly repeat, and lifetimes nest in no order. The cost of such a pair is
given as a ratio to a raw SimPy timeout of the same run, so that a slow machine does not matter; the budget
is that of 200,000 pairs a second where a timeout takes 1 µs.

    python -m pytest benchmarks/bench_allocators.py -n 0 -o python_files="bench_*.py"
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
import simpy

from devices.memory import Allocator, Block, PlannedAllocator, make_allocator
from devices.memory.plan import Lifetime, plan_greedy

LIVE = 10_000
PAIRS = 50_000
TIMEOUTS_PER_PAIR = 5.0

MODEL_SIZES = [4096, 65_536, 300_000, 1 << 20, 3 << 20, 12_845_056, 25_690_112, 51_380_224]

WORKLOADS: dict[str, Callable[[random.Random], int]] = {
    "sizes of a model": lambda rng: rng.choice(MODEL_SIZES),
    "up to 16 MiB, log-uniform": lambda rng: int(2 ** rng.uniform(8, 24)),
    "up to 1 MiB, uniform": lambda rng: rng.randint(1, 1 << 20),
}


@pytest.fixture
def timeout_s() -> float:
    """Return what a raw SimPy timeout takes at present, the least of five measurements."""

    def once() -> float:
        env = simpy.Environment()
        begin = time.perf_counter()
        for delay in range(20_000):
            env.timeout(delay)
        env.run()
        return (time.perf_counter() - begin) / 20_000

    return min(once() for _ in range(5))


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("kind", ["pool", "bfc", "caching", "counted", "scratchpad"])
def test_pairs_at_10000_live_blocks(benchmark: Any, timeout_s: float, kind: str, workload: str) -> None:
    rng, size = random.Random(0), WORKLOADS[workload]
    allocator = make_allocator(kind, 1 << 40)
    live = [allocator.alloc(size(rng)) for _ in range(LIVE)]
    plan = [(rng.randrange(LIVE), size(rng)) for _ in range(PAIRS)]
    measure(benchmark, timeout_s, lambda: churn(allocator, live, plan))
    assert allocator.in_use == sum(block.nbytes for block in live)


def churn(allocator: Allocator, live: list[Block], plan: list[tuple[int, int]]) -> None:
    free, alloc = allocator.free, allocator.alloc
    for i, nbytes in plan:
        free(live[i])
        live[i] = alloc(nbytes)


def test_planned_pairs_at_10000_live_blocks(benchmark: Any, timeout_s: float) -> None:
    rng = random.Random(0)
    planned = PlannedAllocator(
        plan_greedy([Lifetime(rng.randint(1, 1 << 20), 0, 0) for _ in range(LIVE)]), range(LIVE)
    )
    live = [planned.alloc(1, owner=i) for i in range(LIVE)]
    plan = [rng.randrange(LIVE) for _ in range(PAIRS)]

    def run() -> None:
        for i in plan:
            planned.free(live[i])
            live[i] = planned.alloc(1, owner=i)

    measure(benchmark, timeout_s, run)


def measure(benchmark: Any, timeout_s: float, run: Callable[[], None]) -> None:
    """Time `run`, note pairs a second and the ratio, and hold it to the budget."""
    benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    if benchmark.stats is None:  # --benchmark-disable: it ran once, and was not timed
        return
    pair_s = benchmark.stats.stats.min / PAIRS
    benchmark.extra_info["pairs_per_s"] = round(1 / pair_s)
    benchmark.extra_info["timeouts_per_pair"] = round(pair_s / timeout_s, 2)
    assert pair_s / timeout_s <= TIMEOUTS_PER_PAIR
