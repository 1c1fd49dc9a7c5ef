"""What it costs to say how long ops take, as a ratio to a raw SimPy timeout in the same run."""

from __future__ import annotations

import time

import numpy as np
import pytest
import simpy

from devices.cost import FittedCost, load_fits
from sim import Device, GraphBuilder
from sim.graph.graph import Graph

OPS = 100_000
BUDGET = 2
"""Timeouts an op: 0.3 s for all where a timeout among as many takes 1.5 us."""
SIZES = {
    "matmul": ("m", "n", "k"),
    "attention": ("batch", "seq_len", "heads", "kv_heads", "head_dim"),
    "softmax": ("rows", "columns"),
    "relu": (),
}


def graph_of(kind: str) -> Graph:
    """Return so many ops of a kind, all of different sizes."""
    draw = np.random.default_rng(0)
    b = GraphBuilder(kind)
    for i in range(OPS):
        sizes = {name: int(draw.integers(1, 4096)) for name in SIZES[kind]}
        if kind == "attention":
            sizes |= {"batch": 1 + i % 64, "heads": 32, "kv_heads": 8, "head_dim": 128}
        b.op(f"{i}", kind=kind, dtype="bf16", attributes=sizes, bytes_read=i + 1, bytes_written=i + 1)
    return b.build()


def timeouts_s() -> float:
    """Return what as many timeouts take."""
    env = simpy.Environment()
    begin = time.process_time()
    for i in range(OPS):
        env.timeout(i)
    env.run()
    return time.process_time() - begin


@pytest.mark.parametrize("kind", SIZES)
def test_an_op_costs_less_than_a_few_timeouts(kind: str) -> None:
    model, seconds = FittedCost(load_fits("h100-sxm")), []
    for _ in range(3):
        graph = graph_of(kind)  # a new one: answers are kept
        begin = time.process_time()
        model.durations_ns(graph, Device("gpu0"))
        seconds.append(time.process_time() - begin)
    ratio = min(seconds) / min(timeouts_s() for _ in range(3))
    assert ratio < BUDGET, f"{kind}: {ratio:.2f} timeouts an op"
    print(f"{kind}: {min(seconds):.3f} s for {OPS:,} ops, {ratio:.2f} timeouts an op")
