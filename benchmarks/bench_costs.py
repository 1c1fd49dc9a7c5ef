"""What it costs to say how long ops take, in raw SimPy timeouts."""

from __future__ import annotations

import numpy as np
import pytest
from measure import cost, seconds

from devices.cost import FittedCost, load_fits
from sim import Device, GraphBuilder
from sim.graph.graph import Graph

OPS = 100_000
BUDGET = 5
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


@pytest.mark.parametrize("kind", SIZES)
def test_an_op_costs_less_than_a_few_timeouts(kind: str) -> None:
    model = FittedCost(load_fits("h100-sxm"))

    def took_s() -> float:
        graph = graph_of(kind)  # a new one: answers are kept
        return seconds(lambda: model.durations_ns(graph, Device("gpu0")))

    found = cost(took_s, OPS, rounds=3)
    print(f"{kind}: {found.us:.2f} us an op, {found.timeouts:.2f} raw timeouts")
    assert found.timeouts < BUDGET
