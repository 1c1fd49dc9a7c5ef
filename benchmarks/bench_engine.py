"""What a task costs on the SimPy engine, in raw SimPy timeouts.

The kernel has a benchmark of its own, `bench_kernel.py`. Graphs: a chain; layers 100 wide with up to three
predecessors each, on eight devices. Paths::

    plain            CPU workers, fixed durations, a ready queue
    gpu              host issue, two streams, events, launch latency, gaps, a launch queue of 1,024
    gpu+sm           ... whose kernels share 132 SMs, each of them filling the device
    gpu+sm odd       ... with 1 to 600 blocks each, so that tails overlap in splinters
    gpu+sm priority  ... and one stream before the other
    gpu+sm+dram      ... and DRAM bandwidth, which the kernels together exceed at times
    gpu+memory       the path gpu, and outputs of up to 4 MiB take memory from a pool of 80 GB, issue to issue
    gpu+sm+memory    ... and kernels that fill the device share its SMs: all that a GPU usually has
    gpu+sm+dram+memory    ... and its DRAM bandwidth, as GPUs of presets do
    gpu+caching      the path gpu, and memory from PyTorch's allocator, with events: most readers are on
                     another stream
    gpu+calls        ... where a call to the device costs time, so that the allocator has to be asked at once
"""

from __future__ import annotations

import dataclasses
import functools
import random
import tracemalloc
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
from measure import Cost, cost, seconds

from devices.machine import make_device
from devices.memory.registry import MemorySpec
from devices.memory.run_memory import tensor_memory
from policies.issue.ready_queue import ReadyQueue
from sim import Device, Graph, GraphBuilder, Job, Machine, Trace, simulate


class Path(NamedTuple):
    """Raw timeouts that a task may cost, on a chain and layered; what its GPUs share, and their memory.

    The SimPy engine's office is clarity.
    """

    timeouts: tuple[int, int] = (30, 30)
    sharing: Mapping[str, Any] = {}
    memory: MemorySpec | None = None


_SM = {"sharing": "sm"}
_DRAM = {"sharing": "sm+dram", "bandwidth": "4.8TB/s"}
_POOL = MemorySpec("pool")
PATHS = {
    "plain": Path((8, 8)),
    "gpu": Path(),
    "gpu+sm": Path(sharing=_SM),
    "gpu+sm odd": Path(sharing=_SM),
    "gpu+memory": Path(memory=_POOL),
    "gpu+sm+memory": Path(sharing=_SM, memory=_POOL),
    "gpu+sm+dram+memory": Path(sharing=_DRAM, memory=_POOL),
    "gpu+sm priority": Path((31, 44), {**_SM, "streams": [{}, {"priority": -1}]}),
    "gpu+sm+dram": Path((46, 52), _DRAM),
    "gpu+caching": Path((38, 31), memory=MemorySpec("caching")),
    "gpu+calls": Path((41, 38), memory=MemorySpec("caching", malloc_ns=1)),
}
"""The last four cost what was measured: it may not become more."""

MARGIN = 1.3
"""Medians of the same code move by as much from one run to another on a shared virtual machine."""


def layered(n: int, width: int = 100, *, devices: int = 8, largest: int = 0) -> Graph:
    """Layers of `width` ops on any of the devices, with one to three predecessors in the layer before."""
    draw = random.Random(0)
    builder = GraphBuilder("layered")
    for i in range(n):
        before = (i // width - 1) * width
        inputs = (
            [f"op{before + draw.randrange(width)}" for _ in range(draw.randint(1, 3))] if before >= 0 else []
        )
        outputs = draw.randint(1, largest) if largest else ()
        ns, device = draw.randint(5, 50), f"d{draw.randrange(devices)}"
        builder.op(f"op{i}", inputs=inputs, outputs=outputs, duration_ns=ns, device=device)
    return builder.build()


def odd(graph: Graph, seed: int = 1) -> Graph:
    """Return the graph with kernels that fill a GPU for some waves and a tail, and read or write DRAM."""
    draw = random.Random(seed)
    return dataclasses.replace(
        graph,
        attributes={
            op: {"grid": draw.randint(1, 600), "dram_bytes": draw.randint(0, 200_000)}
            for op in range(len(graph))
        },
    )


def sized(graph: Graph, seed: int = 2) -> Graph:
    """Return the graph with outputs of 1 byte to 4 MiB."""
    nbytes = np.random.default_rng(seed).integers(1, 1 << 22, graph.n_tensors)
    return dataclasses.replace(graph, tensor_nbytes=nbytes)


def chain(n: int, ready: int = 1) -> Graph:
    """A chain, each op after the one before it, or several: that many ops are ready at once."""
    builder = GraphBuilder("chain")
    for i in range(n):
        builder.op(f"op{i}", inputs=[f"op{i - ready}"] if i >= ready else [], duration_ns=10, device="d0")
    return builder.build()


class TwoStreams:
    """Ops on the two streams of their device in turn."""

    def assign(self, job: Job) -> list[int]:
        """Return 0, 1, 0, 1, ..."""
        return [op % 2 for op in range(len(job.graph))]


@functools.cache
def machine(path: str, devices: int) -> Machine:
    """Return `devices` workers, or as many GPUs with every overhead."""
    if path == "plain":
        return Machine(tuple(Device(f"d{i}", "cpu", workers=1) for i in range(devices)))
    overheads = {"issue_cost": "3ns", "launch_latency": "5ns", "gap": "1ns", "event_hop": "2ns"}
    spec = {
        "kind": "gpu",
        "sms": 132,
        "streams": 2,
        "queue_depth": 1024,
        **overheads,
        **PATHS[path].sharing,
        **({"memory": "80GB"} if PATHS[path].memory else {}),
    }
    return Machine(tuple(make_device(f"d{i}", spec) for i in range(devices)))


def run(graph: Graph, path: str, devices: int) -> Trace:
    """Simulate once."""
    if path == "plain":
        return simulate(graph, machine(path, devices), ReadyQueue(), engine="simpy")
    spec = PATHS[path].memory
    memory = tensor_memory({f"d{i}": spec for i in range(devices)}, lifetime="issue") if spec else None
    policy = ReadyQueue(synchronisation="issue")
    return simulate(
        graph, machine(path, devices), policy, streams=TwoStreams(), memory=memory, engine="simpy"
    )


def task_cost(graph: Graph, path: str, devices: int, rounds: int = 5) -> Cost:
    """Return what a task costs."""
    if PATHS[path].memory:
        graph = sized(graph)
    elif path not in ("plain", "gpu", "gpu+sm"):
        graph = odd(graph)
    took_s = functools.partial(seconds, lambda: run(graph, path, devices))
    return cost(took_s, len(graph), rounds=rounds, devices=devices)


CASES = {"chain": (chain, 1), "layered": (layered, 8)}
SIZES = [(path, 5_000) for path in PATHS]
SIZES += [(path, n) for path in ("plain", "gpu") for n in (1_000, 100_000, 1_000_000)]


@pytest.mark.parametrize(("path", "n"), SIZES)
@pytest.mark.parametrize("name", CASES)
def test_a_task_costs_at_most_its_budget(name: str, path: str, n: int) -> None:
    make, devices = CASES[name]
    us, timeouts = task_cost(make(n), path, devices, rounds=10 if n < 10_000 else 3)
    print(f"| {name} | {path} | {n:,} | {us:.2f} us a task | {timeouts:.1f} raw timeouts |")
    assert timeouts <= MARGIN * PATHS[path].timeouts[name == "layered"]


@pytest.mark.parametrize("path", ["plain", "gpu"])
def test_a_task_costs_the_same_in_a_large_graph(path: str) -> None:
    small, large = task_cost(layered(1_000), path, 8), task_cost(layered(100_000), path, 8, rounds=2)
    assert large.us <= 1.5 * small.us


def test_many_ready_ops_cost_no_more_than_a_few() -> None:
    few, many = (task_cost(chain(20_000, ready), "plain", 1) for ready in (10, 2_000))
    assert many.us <= 1.2 * few.us


def test_memory_a_task() -> None:
    graph = layered(50_000)
    tracemalloc.start()
    run(graph, "gpu", 8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak / len(graph) <= 1000
