"""Training steps under ZeRO-3: what is gathered, and when, counted by hand from DeepSpeed's rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from runs import checked

from devices.collectives.groups import Fabric, NodeFabrics
from policies.issue.program_order import InOrder
from scenarios.builders.pipeline_graph import AsWritten, CommunicationStream
from scenarios.builders.train.architecture import Architecture
from scenarios.builders.train.calibration import TrainingCalibration
from scenarios.builders.train.layout import ParallelLayout
from scenarios.builders.train.step import step_graph, step_ns, step_trace
from scenarios.builders.train.training import Training
from scenarios.workloads.train_report import peaks_of
from sim.base.errors import MisfitError
from sim.base.intervals import union
from sim.trace import Trace

SLOW = Fabric(100e9, latency_ns={"default": 1000.0})
SIZES = {"sequence": 64, "micro_batch": 1, "batch": 16}
HUGE = Architecture(layers=2, hidden=32768, heads=64, vocabulary=1000)
"""Each product has more than the 10⁹ elements that may be live (3h², h², 4h², 4h²); the words have 3·10⁷."""
SMALL = Architecture(layers=2, hidden=1024, heads=16, vocabulary=1000)
"""All of it is less than the 10⁹ elements within which parameters are kept for their next use."""


def training(
    model: Architecture, *, sharding: str = "zero-3", fabric: Fabric = SLOW, **changes: object
) -> Training:
    """Return a step on two nodes."""
    of = TrainingCalibration("plain", 1e15, 1e30, NodeFabrics(fabric, fabric))
    return Training(model, ParallelLayout(dp=16, sharding=sharding), of, **{**SIZES, **changes})  # type: ignore[arg-type]


def run(of: Training) -> Trace:
    """Run a step, every invariant checked."""
    graph, machine = step_graph(of, of.schedule)
    return checked(graph, machine, InOrder(), streams=CommunicationStream(), linearize=AsWritten())


def kinds(trace: Trace) -> Counter[str]:
    """Return how many ops there are of each kind."""
    graph = trace.job.graph
    return Counter(graph.kinds[code] for code in graph.kind_code.tolist())


@pytest.mark.parametrize(
    ("micro_batches", "recompute", "gathers"), [(1, "none", 18), (2, "none", 36), (1, "full", 25)]
)
def test_what_is_gathered_of_huge_layers_is_counted_by_hand(
    micro_batches: int, recompute: str, gathers: int
) -> None:
    """Forward: the words, four products in two layers, the words again for the head: 10.

    Backward: the words are there for the head, and so is the last product (only the head lies between); the
    other seven and the words for the embedding are gathered: 18. A forward knows of no other one before or
    behind it, so that two micro-batches take 36. If layers are recomputed, each has four products gathered
    once more, and of its backward the first is there: 10 + 2·(4 + 3) + 1 = 25.

    Nine gradients are larger than a bucket, or would not fit behind one that is: 10 with norms and biases.
    """
    of = training(HUGE, recompute=recompute, batch=16 * micro_batches)
    found = kinds(run(of))
    assert found["all_gather"] == gathers + 1  # what stays, behind the updates
    assert found["concat"] == gathers
    assert found["reduce_scatter"] == 10 * micro_batches


def test_nothing_hides_a_gather_of_huge_layers_but_that_of_the_first() -> None:
    """The first product is gathered beside the embedding; then too much is live to gather anything ahead."""
    of = training(HUGE)
    trace = run(replace(of, calibration=replace(of.calibration, memory_bandwidth=1e9)))
    graph, tasks = trace.job.graph, trace.tasks
    names = [graph.op_names[op] for op in tasks["op"].tolist()]
    computes = np.array([graph.kinds[graph.kind_code[op]] == "layer" for op in tasks["op"].tolist()])
    hidden = []
    for row, name in enumerate(names):
        start, end = tasks["start_ns"][row], tasks["end_ns"][row]
        beside = computes & (tasks["start_ns"] < end) & (tasks["end_ns"] > start)
        if name.startswith("gather ") and beside.any():
            hidden.append(name)
    assert hidden == ["gather layer 0/0 at embedding embedding.0"]


def test_a_small_model_is_gathered_once() -> None:
    """What is used again within 10⁹ elements stays; ahead is gathered what a bucket of 5·10⁷ holds."""
    trace = run(training(SMALL))
    graph = trace.job.graph
    first = {name.split()[1] for name in graph.op_names if name.startswith("gather ") and "stays" not in name}
    assert kinds(trace)["all_gather"] == 3  # the words; all that follows, in one piece; what stays
    assert first == {"words", "layer"}
    assert kinds(trace)["reduce_scatter"] == 1


def test_without_messages_it_is_the_step_of_fsdp() -> None:
    free = Fabric(1e30)
    for model in (SMALL, HUGE):
        steps = [step_ns(training(model, sharding=name, fabric=free)) for name in ("zero-3", "fsdp")]
        assert steps[0] == pytest.approx(steps[1], rel=1e-6)


def test_the_host_waits_before_it_gathers() -> None:
    """A gather begins when all computation issued before it is over, and a module starts behind its parts."""
    trace = run(training(replace(SMALL, hidden=4096, heads=32, layers=6)))
    graph, tasks = trace.job.graph, trace.tasks
    end = dict(zip(tasks["op"].tolist(), tasks["end_ns"].tolist(), strict=True))
    start = dict(zip(tasks["op"].tolist(), tasks["start_ns"].tolist(), strict=True))
    last, gathers = None, 0
    for op in range(len(graph)):  # as the host issues them
        kind = graph.kinds[graph.kind_code[op]]
        if kind == "layer":
            last = op
        elif graph.op_names[op].startswith("gather ") and last is not None:
            gathers += 1
            assert start[op] >= end[last]
        if kind == "concat":
            module = next(k for k in range(op, len(graph)) if graph.kinds[graph.kind_code[k]] == "layer")
            assert start[module] >= end[op]
    assert gathers > 3
    lanes = np.array([graph.kinds[graph.kind_code[op]] == "layer" for op in tasks["op"].tolist()])
    for rows in (lanes, ~lanes):  # two streams, each one after the other
        where = np.flatnonzero(rows)
        whole = union(tasks["start_ns"][where], tasks["end_ns"][where], np.zeros(len(where), np.int64))
        spent = (tasks["end_ns"] - tasks["start_ns"])[where].sum()
        assert whole.lengths(1)[0] == spent


def test_ranks_hold_their_part_and_what_is_gathered() -> None:
    """2, 4 and 12 bytes a parameter, of which each of 16 ranks has its part; two buckets of gradients."""
    of = training(SMALL)
    (peak,) = peaks_of(of, step_trace(of))
    share = -(-of.each_stage[0].parameters // 16)
    assert [peak["memory_bytes"][name] for name in ("parameters", "gradients", "optimizer state")] == [
        2 * share,
        4 * share,
        12 * share,
    ]
    gathered = 2 * of.each_stage[0].parameters  # all of it is there at once
    assert peak["memory_bytes"]["buffers"] == of.buffers(of.schedule)[0] + gathered + 2 * 4 * 500_000_000


def test_zero_3_takes_no_pipeline() -> None:
    with pytest.raises(MisfitError, match="zero-3 takes no pipeline"):
        ParallelLayout(pp=2, dp=2, sharding="zero-3")
