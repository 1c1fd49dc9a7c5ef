"""Every way to split a step with every way to sum its gradients: who meets whom, and with how many bytes."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache

import pytest
from parallel_helpers import layers, run

from policies.parallel.accumulation import GradientAccumulation
from policies.parallel.context_parallel import ContextParallel
from policies.parallel.ddp import DistributedDataParallel, MegatronDDP
from policies.parallel.fsdp2 import FullyShard
from policies.parallel.pipeline_parallel import PipelineParallel, StageCut
from policies.parallel.rank_grid import DataParallel, OnRanks, Ranked, all_ranks
from policies.parallel.tensor_parallel import TensorParallel
from policies.parallel.training_step import TrainingStep
from policies.parallel.zero import ZeroOne, ZeroThree, ZeroTwo
from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.records import OpEntry, read, write
from scenarios.builders.gpt import Gpt
from sim import Graph
from sim.base.errors import GraphError

GPT = Gpt(model="gpt", layers=2, hidden=32, heads=4, sequence=16, vocabulary=64, batch=1).graph()

SPLITS: dict[str, list[OnRanks]] = {
    "tp": [TensorParallel(2)],
    "sp": [TensorParallel(2, sequence_parallel=True)],
    "cp": [ContextParallel(2)],
    "cp-all-gather": [ContextParallel(2, "all-gather")],
    "cp-all-to-all": [ContextParallel(2, "all-to-all")],
    "tp-cp": [TensorParallel(2, sequence_parallel=True), ContextParallel(2)],
    "accumulated": [GradientAccumulation(3)],
    "tp-accumulated": [TensorParallel(2, sequence_parallel=True), GradientAccumulation(2)],
    "cp-accumulated": [ContextParallel(2), GradientAccumulation(2)],
    "pp": [PipelineParallel(2, 3)],
    "tp-pp": [TensorParallel(2, sequence_parallel=True), PipelineParallel(2, 3)],
    "tp-cp-pp": [TensorParallel(2), ContextParallel(2), PipelineParallel(2, 2)],
}
REPLICAS: dict[str, DataParallel] = {
    "ddp": DistributedDataParallel(2, bucket_size_bytes=5000),
    "megatron-ddp": MegatronDDP(2, bucket_size=4000),
    "distributed optimizer": MegatronDDP(2, 4000, sharding="zero-1", overlap=["grad_reduce", "param_gather"]),
    "fsdp2": FullyShard(2, r"layer\d+"),
    "fsdp2, synchronised once": FullyShard(2, r"layer\d+", requires_gradient_sync=False),
    "hsdp": FullyShard(4, r"layer\d+", shard=2),
    "zero-1": ZeroOne(2, 4000),
    "zero-2": ZeroTwo(2, 4000, overlap=True),
    "zero-3": ZeroThree(2, param_persistence_threshold=40, bucket_size=4000),
}
EACH = ("fsdp2", "hsdp", "zero-2", "zero-3")
"""Who sums the gradients of every micro-batch."""


@cache
def one_device() -> Ranked:
    """Return one device with a training step of two stages."""
    return Ranked.of(TrainingRewrite().apply(StageCut(["layer1"]).apply(GPT)))


@cache
def made(split: str) -> Ranked:
    """Return the ranks that share one step."""
    there = one_device()
    for rewrite in SPLITS[split]:
        there = rewrite.rewrite_ranks(there)
    return there


def bytes_by_kind(graph: Graph, rank: str, words: tuple[str, ...]) -> Counter[str]:
    """Return what a rank exchanges on communicators of these names, by kind."""
    found: Counter[str] = Counter()
    for op in graph.in_communicators:
        given = graph.attributes[op]
        if graph.pins[graph.pin_code[op]] == rank and str(given["communicator"]).startswith(words):
            size = given.get("nbytes", max(graph.bytes_read[op], graph.bytes_written[op]))
            found[graph.kind(op)] += int(size)
    return found


@pytest.mark.filterwarnings("ignore::policies.parallel.tensor_parallel.WholeWarning")
@pytest.mark.parametrize(
    ("split", "replicas"),
    [
        pytest.param(split, replicas, marks=[] if i % len(REPLICAS) == j else [pytest.mark.slow])
        for i, split in enumerate(SPLITS)
        for j, replicas in enumerate(REPLICAS)
    ],
)
def test_every_pair(split: str, replicas: str) -> None:
    there, rewrite = made(split), REPLICAS[replicas]
    if "pp" in split and replicas in ("zero-2", "zero-3"):
        with pytest.raises(GraphError, match="takes micro-batches one after another"):
            rewrite.rewrite_ranks(there)
        return
    ranked = rewrite.rewrite_ranks(there)
    grid, graph = ranked.grid, ranked.graph()
    members = defaultdict(set)
    for op in graph.in_communicators:
        given = graph.attributes[op]
        rank = int(graph.pins[graph.pin_code[op]].removeprefix("gpu"))
        members[given["communicator"]].add(rank)
        assert members[given["communicator"]] <= {*grid.members(given["dimension"], rank)}
    for name, ranks in members.items():
        if name.startswith(("tensor", "context", "data", "shard", "replicate")):
            dimension = next(
                of["dimension"] for of in graph.attributes.values() if of.get("communicator") == name
            )
            assert sorted(ranks) == sorted(grid.members(dimension, min(ranks)))
    check_bytes(there, ranked, graph, split, replicas)
    assert len(run(graph, grid.ranks, streams=12)) == len(graph)


def check_bytes(there: Ranked, ranked: Ranked, graph: Graph, split: str, replicas: str) -> None:
    """Assert that ranks sum their gradients, and gather their parameters, as often as the system does."""
    for rank in range(ranked.grid.ranks):
        at = ranked.grid.at(rank)
        step = TrainingStep(there.programs[there.grid.rank(at)])
        n = len(ranked.grid.members("cp-dp", rank))
        gradients = [(each.nbytes, each.elements, each.nbytes // each.elements) for each in step.parameters]
        whole = sum(nbytes for nbytes, _, _ in gradients)
        padded = sum(n * -(-count // n) * size for _, count, size in gradients)
        batches = 1 + max((record.micro_batch or 0 for record in step.work), default=0)
        times = batches if replicas in EACH and "pp" not in split else 1
        found = bytes_by_kind(graph, f"gpu{rank}", ("data parallel", "shard", "replicate"))
        if replicas in ("ddp", "megatron-ddp", "zero-1", "zero-2"):
            assert found["all_reduce"] == times * whole
        else:
            assert found["reduce_scatter"] == times * padded
        if replicas == "hsdp":
            assert found["all_reduce"] == times * padded // n


@pytest.mark.parametrize(
    ("split", "replicas"),
    [
        ("sp", FullyShard(2, shard=1)),
        pytest.param("sp", FullyShard(2), marks=pytest.mark.slow),
        pytest.param("tp-cp", FullyShard(1), marks=pytest.mark.slow),
        pytest.param("tp-pp", FullyShard(2), marks=pytest.mark.slow),
        pytest.param("tp-accumulated", FullyShard(4, shard=2), marks=pytest.mark.slow),
    ],
)
def test_collectives_whose_names_others_have(split: str, replicas: DataParallel) -> None:
    """``norm1/all_gather`` is of sequence parallelism and of the module ``norm1``: as if names differed."""
    there = made(split)

    def other_names(one: Graph) -> Graph:
        records = read(one)
        names = {
            name: name.replace("/", "~") for name, r in records.ops.items() if "dimension" in r.attributes
        }
        moved = {
            r.tensor(k): OpEntry.tensor(replace(r, name=names[r.name]), k)
            for r in records.ops.values()
            if r.name in names
            for k in range(len(r.outputs))
        }
        for record in records.ops.values():
            record.name = names.get(record.name, record.name)
            record.inputs = [(moved.get(tensor, tensor), d) for tensor, d in record.inputs]
            record.after = [(names.get(name, name), d) for name, d in record.after]
        return write(records)

    found, expected = (
        replicas.rewrite_ranks(there).graph(),
        replicas.rewrite_ranks(there.each(other_names)).graph(),
    )
    assert len(found) == len(expected)
    assert any(name.endswith(".2") for name in found.op_names)
    assert not any(name.endswith(".2") for name in expected.op_names)
    times = [
        sorted((name.replace("~", "/").removesuffix(".2"), *at) for name, *at in at_times(graph))
        for graph in (found, expected)
    ]
    assert times[0] == times[1]


def at_times(graph: Graph) -> list[tuple[str, int, int]]:
    """Return when each op runs."""
    tasks = run(graph, len(graph.pins), streams=12).tasks
    rows = zip(*(tasks[key].tolist() for key in ("op", "start_ns", "end_ns")), strict=True)
    return [(graph.op_names[op], start, end) for op, start, end in rows]


@pytest.mark.parametrize(
    ("first", "then", "says"),
    [
        (FullyShard(2), ContextParallel(2), "is divided into dp already; context-parallel comes before"),
        (
            PipelineParallel(2, 3),
            ContextParallel(2),
            "is divided into pp already; context-parallel comes",
        ),
        (FullyShard(2), TensorParallel(2), "is divided into dp already; tensor-parallel comes before"),
        (ZeroThree(2), FullyShard(2), "one rewrite for replicas, such as expert-parallel, is enough"),
    ],
)
def test_the_other_order_is_refused(first: OnRanks, then: OnRanks, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        then.rewrite_ranks(first.rewrite_ranks(one_device()))


@pytest.mark.parametrize("replicas", [FullyShard(2), ZeroTwo(2), ZeroThree(2)])
def test_sums_of_parts_are_in_the_type_of_the_gradients(replicas: DataParallel) -> None:
    """So that a device whose peak is of that type alone can run them."""
    graph = all_ranks(layers([40, 40]), GradientAccumulation(2), replicas)
    sums = [op for op, name in enumerate(graph.op_names) if name.endswith(("/accumulate", "/keep_part"))]
    assert {graph.dtypes[graph.dtype_code[op]] for op in sums if graph.flops[op]} == {"fp32"}


def test_accumulation_with_fully_shard() -> None:
    """Two layers of 40 B: gather 2 + 40, copy out 3, products of 100, reduce 2 + 40; a sum of parts takes 1.

    A micro-batch: 42 + 3 + 100 + 3 + 200 + 3 + 200, 2 to copy in, 3 + 100, and 2 + 40 to reduce.
    """
    two = GradientAccumulation(2).apply(layers([40, 40]))
    each = run(FullyShard(2).apply(two), 2)
    one = run(FullyShard(2).apply(layers([40, 40])), 2)
    assert one.makespan_ns == 698 + 2
    assert each.makespan_ns == 2 * 698 + 1 + 2
    once = run(FullyShard(2, requires_gradient_sync=False).apply(two), 2)
    assert once.makespan_ns == (698 - 44) + 698 + 2
    kept = FullyShard(
        2, requires_gradient_sync=False, reshard_after_forward=False, reshard_after_backward=False
    ).apply(two)
    assert run(kept, 2).makespan_ns == 42 + 3 + 100 + 3 + 500 + 500 + 2 + 100 + 2 + 40 + 2
    assert sum("all_gather" in name for name in kept.op_names) == 4


def test_accumulation_with_zero_3() -> None:
    """Two layers of 40 B: gather, put together: 43, products of 100; one bucket of 80 B; parts are added."""
    two = GradientAccumulation(2).apply(layers([40, 40]))
    one = run(ZeroThree(2, param_persistence_threshold=0).apply(layers([40, 40])), 2)
    assert one.makespan_ns == 43 + 600 + 80 + 2
    both = run(ZeroThree(2, param_persistence_threshold=0).apply(two), 2)
    assert both.makespan_ns == 2 * (43 + 600 + 80) + 2 + 2


def test_a_pipeline_with_fully_shard_reduces_after_the_last_backward() -> None:
    graph = FullyShard(2, r"layer\d+").rewrite_ranks(made("pp")).graph()
    order = [name.removeprefix("gpu0/") for name in graph.op_names if name.startswith("gpu0/")]
    first = next(k for k, name in enumerate(order) if "reduce_copy_in" in name)
    assert all("micro2" in name or "/update" in name or "all_reduce" in name for name in order[first:])
    assert [name for name in order if "reduce_scatter" in name] == [
        "micro2/root/reduce_scatter",
        "micro2/layer0/reduce_scatter",
    ]
    assert {k for k in graph.micro_batch.tolist() if k >= 0} == {0, 1, 2}
