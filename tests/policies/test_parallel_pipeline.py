"""Pipelines of a training step: orders of schedules, messages, and what ranks and replicas have of it."""

from __future__ import annotations

from collections import Counter

import pytest
from parallel_helpers import by_stream
from runs import checked

from devices.cost.cost_models import FixedCost
from policies.issue.program_order import InOrder
from policies.parallel.ddp import DistributedDataParallel, MegatronDDP
from policies.parallel.pipeline_parallel import PipelineParallel, StageCut
from policies.parallel.rank_grid import all_ranks
from policies.parallel.tensor_parallel import TensorParallel
from policies.pipeline.evaluate import StageTimes, evaluate
from policies.pipeline.registry import generate
from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.records import read, write
from policies.streams import Recorded
from scenarios.builders.gpt import Gpt
from sim import Device, Graph, GraphBuilder, Machine, Trace
from sim.base.errors import GraphError, InputError
from sim.machine.communicators import Call


class Messages:
    """Messages take a fixed time, all other collectives none."""

    def __init__(self, ns: int = 0) -> None:
        self.ns = ns

    def time_ns(self, call: Call, machine: Machine) -> int:
        return self.ns if call.kind == "send" else 0


def run(graph: Graph, ranks: int, ns: int = 0) -> Trace:
    devices = tuple(Device(f"gpu{r}", streams=12, cost=FixedCost(0)) for r in range(ranks))
    machine = Machine(devices, collectives=Messages(ns))
    return checked(graph, machine, InOrder(synchronisation="issue"), streams=Recorded(), engine="simpy")


def chain(n: int) -> Graph:
    """Return a training step of n products, a stage each: 100 ns forward, for each gradient 100 ns."""
    b = GraphBuilder("chain")
    b.input("x", 40), b.parameter("p", 40)
    before = b.op("first", kind="add", inputs=["x", "p"], outputs=40, duration_ns=0, stage=0)
    for k in range(n):
        b.parameter(f"w{k}", 40)
        before = b.op(f"l{k}", kind="matmul", inputs=[before, f"w{k}"], outputs=40, duration_ns=100, stage=k)
    b.op("last", kind="relu", inputs=[before], outputs=40, duration_ns=0, stage=n - 1)
    return TrainingRewrite().apply(b.build())


@pytest.mark.parametrize(
    ("name", "ranks", "m", "chunks"),
    [("1f1b", 4, 6, None), ("gpipe", 3, 4, None), ("interleaved-1f1b", 2, 4, 2), ("zb-h1", 3, 5, None)],
)
def test_schedules_take_what_their_evaluation_says(name: str, ranks: int, m: int, chunks: int | None) -> None:
    """Another formulation: `policies.pipeline.evaluate` knows slots only, no ops and no streams."""
    schedule = generate(name, ranks=ranks, micro_batches=m, chunks=chunks)
    times = StageTimes(forward=100, input_grad=100, weight_grad=100)
    expected = evaluate(schedule, [times] * schedule.stages)
    trace = run(PipelineParallel(ranks, m, name, chunks).apply(chain(schedule.stages)), ranks)
    assert trace.makespan_ns == expected.makespan
    if name == "1f1b":
        assert trace.makespan_ns == (m + ranks - 1) * 300


def test_two_stages_worked_by_hand() -> None:
    """A message takes 30 ns, from when both sides are through with what was issued before."""
    found = run(PipelineParallel(2, 2).apply(chain(2)), 2, 30)
    timed = [each for each in by_stream(found)["compute"] if each[1] > each[0]]
    assert timed == [
        (0, 100, "micro0/l0"),
        (100, 200, "micro1/l0"),
        (460, 560, "micro0/l0/input_grad"),
        (560, 660, "micro0/l0/weight_grad"),
        (790, 890, "micro1/l0/input_grad"),
        (890, 990, "micro1/l0/weight_grad"),
    ]
    other = [each for each in by_stream(found, "gpu1")["compute"] if each[1] > each[0]]
    assert other == [
        (130, 230, "micro0/l1"),
        (230, 330, "micro0/l1/input_grad"),
        (330, 430, "micro0/l1/weight_grad"),
        (460, 560, "micro1/l1"),
        (560, 660, "micro1/l1/input_grad"),
        (660, 760, "micro1/l1/weight_grad"),
    ]


_FIRST = {DistributedDataParallel: "gpu0/all_reduce0", MegatronDDP: "gpu0/reduce_scatter0"}

GPT = Gpt(model="gpt", layers=4, hidden=64, heads=4, sequence=32, vocabulary=128, batch=2)
STEP = TrainingRewrite().apply(StageCut(["layer1", "layer2", "layer3"]).apply(GPT.graph()))


def test_a_decoder_sends_a_tensor_each_way_and_sums_shared_words() -> None:
    graph = PipelineParallel(4, 4).apply(STEP)
    records = read(graph)
    sends = Counter(
        (each.device, each.attributes["nbytes"]) for each in records.ops.values() if each.kind == "send"
    )
    bsh = 2 * 2 * 32 * 64
    assert sends == {("gpu0", bsh): 4, ("gpu1", bsh): 8, ("gpu2", bsh): 8, ("gpu3", bsh): 4}
    sums = {each.name: each.attributes for each in records.ops.values() if each.kind == "all_reduce"}
    assert set(sums) == {"gpu0/embed.words/all_reduce", "gpu3/embed.words/all_reduce"}
    assert len({each["communicator"] for each in sums.values()}) == 1
    work = sum(each.flops for each in records.ops.values() if each.kind not in ("sgd", "add", "add_n"))
    once = sum(each.flops for each in read(STEP).ops.values() if each.kind not in ("sgd", "add", "add_n"))
    adds = sum(each.flops for each in read(STEP).ops.values() if each.kind == "add")
    assert work == 4 * once
    assert (
        sum(e.flops for e in records.ops.values() if e.kind == "add" and "accumulate" not in e.name)
        == 4 * adds
    )
    updated = Counter(name.partition("/")[2] for name in graph.op_names if name.endswith("/update"))
    assert updated == {
        name: 1 + (name == "embed.words/update") for name in STEP.op_names if name.endswith("update")
    }
    run(graph, 4)


def test_with_sequence_parallelism_a_rank_sends_its_tokens() -> None:
    step = TrainingRewrite().apply(StageCut(["layer2"]).apply(GPT.graph()))
    graph = all_ranks(step, TensorParallel(2, sequence_parallel=True), PipelineParallel(2, 2))
    sends = Counter((r.device, r.attributes["nbytes"]) for r in read(graph).ops.values() if r.kind == "send")
    assert sends == {(f"gpu{rank}", 2 * 32 * 64): 2 for rank in range(4)}


def test_tensor_data_and_pipeline_parallelism_in_megatrons_order() -> None:
    """tp-dp-pp, 2 of each: stage 0 is on GPUs 0 to 3; norms are summed over tp once, words over pp last."""
    step = TrainingRewrite().apply(StageCut(["layer2"]).apply(GPT.graph()))
    split = TensorParallel(2, sequence_parallel=True), PipelineParallel(2, 2)
    for rewrite in (DistributedDataParallel(2), MegatronDDP(2, sharding="zero-1")):
        graph = all_ranks(step, *split, rewrite)
        members: dict[str, set[str]] = {}
        for op in graph.in_communicators:
            name = graph.attributes[op]["communicator"]
            members.setdefault(name, set()).add(graph.pins[graph.pin_code[op]][3:])
        assert members == {
            **{f"tensor parallel {k}": {str(2 * k), str(2 * k + 1)} for k in range(4)},
            **{f"data parallel {k}": {str(n), str(n + 2)} for k, n in enumerate((0, 1, 4, 5))},
            **{f"pipeline {a} to {1 - a} {k}": {str(k), str(k + 4)} for a in (0, 1) for k in range(4)},
            **{f"shared embed.words {k}": {str(k), str(k + 4)} for k in range(4)},
        }
        ops = [name for name in graph.op_names if name.startswith("gpu0/")]
        order = [
            next(k for k, name in enumerate(ops) if what in name)
            for what in (
                _FIRST[type(rewrite)],
                "gradients/all_reduce",
                "embed.words/all_reduce",
                "words/update",
            )
        ]
        assert order == sorted(order)
        records = read(graph)
        for record in records.ops.values():
            if "communicator" not in record.attributes:
                record.duration_ns = record.flops // 1000
        run(write(records), 8)


def test_only_the_first_stage_has_megatrons_buckets() -> None:
    graph = all_ranks(chain(2), PipelineParallel(2, 2), MegatronDDP(2, bucket_size=1))
    sums = Counter(name[:4] for name in graph.op_names if "/all_reduce" in name)
    assert sums == {"gpu0": 2, "gpu1": 2, "gpu2": 1, "gpu3": 1}
    # Embedding and head share a parameter: its sum over the pipeline is of no stage.
    graph = all_ranks(STEP, PipelineParallel(4, 4), MegatronDDP(2, bucket_size=1))
    buckets = Counter(name[:4] for name in graph.op_names if name[4:].startswith("/all_reduce"))
    assert buckets["gpu0"] > 2
    assert {buckets[f"gpu{k}"] for k in range(2, 8)} == {1}


def test_what_cannot_be_is_refused() -> None:
    b = GraphBuilder("none")
    b.input("x", 40), b.parameter("w", 40)
    b.op("l0", kind="matmul", inputs=["x", "w"], outputs=40)
    step = TrainingRewrite().apply(b.build())
    with pytest.raises(GraphError, match="op 'l0' says no stage, and the schedule has stages 0 to 1"):
        PipelineParallel(2, 2).apply(step)
    with pytest.raises(GraphError, match=r"is of stage 2, and the schedule has stages 0 to 1"):
        PipelineParallel(2, 2).apply(chain(3))
    with pytest.raises(GraphError, match="has 2 stages, the schedule has 3"):
        PipelineParallel(3, 3).apply(chain(2))
    with pytest.raises(InputError, match="dualpipe has slots that overlap"):
        PipelineParallel(2, 4, "dualpipe")
    with pytest.raises(InputError, match="no op that could begin stage 1 has 'layer9' in it"):
        StageCut(["layer9"]).apply(GPT.graph())
    with pytest.raises(GraphError, match="comes before the rewrite for replicas"):
        all_ranks(chain(2), DistributedDataParallel(2), PipelineParallel(2, 2))


def test_an_update_of_parameters_of_two_stages_is_shared_by_their_bytes() -> None:
    """One op of 100 ns for two weights of 40 bytes, a stage each: 50 ns on each rank."""
    records = read(chain(2))
    gone, update = records.ops.pop("w1/update"), records.ops["w0/update"]
    update.inputs, update.duration_ns = [*update.inputs, *gone.inputs], 100
    for record in records.ops.values():
        record.after = [(name.replace("w1/", "w0/"), distance) for name, distance in record.after]
    found = read(PipelineParallel(2, 2).apply(write(records))).ops
    assert [found[f"gpu{rank}/w0/update"].duration_ns for rank in (0, 1)] == [50, 50]
