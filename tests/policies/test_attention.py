"""Attention as exporters write it, a product, a softmax and a product, made one op."""

from __future__ import annotations

from typing import Any

import pytest
from parallel_helpers import run

from policies.parallel.context_parallel import ContextParallel
from policies.parallel.ddp import DistributedDataParallel
from policies.parallel.rank_grid import all_ranks
from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.fusion import FuseAttention
from policies.rewrite.records import read
from sim import Graph, GraphBuilder
from sim.base.errors import GraphError


def layer(chain: bool, *, again: bool = False) -> Graph:
    """Return a layer of attention: as one op, or written out with a scale and a mask."""
    b = GraphBuilder("a layer")
    b.input("x", 800), b.input("mask", 3200)
    for name in "qkvo":
        b.parameter(f"w{name}", 400)
    facts: dict[str, Any] = {"flops": 100, "duration_ns": 100, "dtype": "fp32"}
    for name in "qkv":
        b.op(name, kind="matmul", inputs=["x", f"w{name}"], outputs=800, phase="F", **facts)
    one: dict[str, Any] = {"phase": "F", "dtype": "fp32"}
    if chain:
        b.op("scores", kind="matmul", inputs=["q", "k"], outputs=3200, flops=4000, duration_ns=400, **one)
        b.op("scaled", kind="div", inputs=["scores"], outputs=3200, flops=800, duration_ns=80, **one)
        b.op("masked", kind="add", inputs=["mask", "scaled"], outputs=3200, flops=800, duration_ns=80, **one)
        b.op("softmax", kind="softmax", inputs=["masked"], outputs=3200, flops=400, duration_ns=40, **one)
        b.op("y", kind="matmul", inputs=["softmax", "v"], outputs=800, flops=4000, duration_ns=400, **one)
        if again:
            b.op("seen", kind="copy", inputs=["softmax"], outputs=3200, **one)
    else:
        b.op(
            "y",
            kind="attention",
            inputs=["q", "k", "v", "mask"],
            outputs=800,
            flops=10_000,
            duration_ns=1000,
            **one,
        )
    b.op("out", kind="matmul", inputs=["y", "wo"], outputs=800, phase="F", **facts)
    return b.build()


def test_the_chain_is_the_op() -> None:
    made, meant = read(FuseAttention().apply(layer(True))), read(layer(False))
    assert list(made.ops) == list(meant.ops)
    y = made.ops["y"]
    assert (y.kind, y.inputs, y.outputs) == ("attention", meant.ops["y"].inputs, (800,))
    assert (y.flops, y.duration_ns, y.bytes_read, y.bytes_written) == (10_000, 1000, 5600, 800)
    assert read(FuseAttention(causal=True).apply(layer(True))).ops["y"].attributes == {"is_causal": True}


@pytest.mark.parametrize("method", ["ring", "all-gather", "all-to-all"])
def test_context_parallel_takes_what_was_written_out(method: str) -> None:
    ends = []
    for graph in (FuseAttention().apply(layer(True)), layer(False)):
        step = TrainingRewrite().apply(graph)
        both = all_ranks(step, ContextParallel(2, method), DistributedDataParallel(1))
        ends.append(run(both, 2).makespan_ns)
    assert ends[0] == ends[1]


def test_what_is_not_attention_stays_and_is_told() -> None:
    with pytest.raises(GraphError, match="let the rewrite attention, which makes one op of it, come before"):
        ContextParallel(2).apply(TrainingRewrite().apply(layer(True)))
    for graph in (layer(False), layer(True, again=True), TrainingRewrite().apply(layer(True))):
        with pytest.raises(GraphError, match="has no softmax between two products of data"):
            FuseAttention().apply(graph)
