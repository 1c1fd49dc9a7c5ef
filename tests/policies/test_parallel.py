"""Replicas that sum their gradients in buckets: PyTorch's rules, and the ranks that run them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from parallel_helpers import by_stream, layers, run

from policies.parallel.ddp import DistributedDataParallel, fill_buckets, never_overflowing
from policies.parallel.fsdp2 import FullyShard
from policies.parallel.rank_grid import DataParallel, Grid, Ranked
from policies.parallel.training_step import Parameter, TrainingStep
from policies.parallel.zero import ZeroThree, ZeroTwo
from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.records import Records, read, write
from scenarios.importers import load_graph
from sim import Graph, GraphBuilder
from sim.base.errors import GraphError, InputError

MIB = 2**20
RESNET = "scenarios/examples/graphs/resnet50.json.gz"


@pytest.fixture(scope="module")
def resnet(root) -> TrainingStep:  # type: ignore[no-untyped-def]
    return TrainingStep(TrainingRewrite().apply(load_graph(root / RESNET)))


# -- buckets --------------------------------------------------------------------------------------


def torchvision_resnet50() -> list[int]:
    """Return the bytes of torchvision's parameters, in the order of registration."""
    sizes = [64 * 3 * 49, 64, 64]
    before = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            sizes += [before * width, width, width, width * width * 9, width, width]
            sizes += [width * 4 * width, 4 * width, 4 * width]
            if block == 0:
                sizes += [before * 4 * width, 4 * width, 4 * width]
            before = 4 * width
    return [4 * n for n in [*sizes, 2048 * 1000, 1000]]


GOLDEN = {
    (MIB, 25 * MIB): [
        (8_196_000, 2),
        (31_502_336, 15),
        (26_255_360, 12),
        (26_550_272, 51),
        (9_724_160, 81),
    ],
    (25 * MIB,): [(30_257_056, 14), (26_255_360, 12), (28_366_848, 39), (17_348_864, 96)],
}


def closed(sizes: Sequence[int], limits: Sequence[int]) -> list[list[int]]:
    """Return the places of these sizes in buckets."""
    given = [Parameter(f"w{k}", "", "", n, n, None) for k, n in enumerate(sizes)]
    return [[int(each.name[1:]) for each in row] for row in fill_buckets(given, "nbytes", limits)]


@pytest.mark.parametrize("limits", GOLDEN)
def test_buckets_of_resnet50(limits: tuple[int, ...], resnet: TrainingStep) -> None:
    """Of torchvision's parameters backwards, and of the gradients of ONNX's graph as they become ready."""
    sizes = torchvision_resnet50()[::-1]
    assert (len(sizes), sum(sizes)) == (161, 102_228_128)
    found = closed(sizes, limits)
    assert [(sum(sizes[k] for k in row), len(row)) for row in found] == GOLDEN[limits]
    ddp = DistributedDataParallel(8, bucket_size_bytes=None if len(limits) == 2 else limits[0])
    real = [(sum(each.nbytes for each in row), len(row)) for row in ddp.buckets(resnet)]
    assert real == GOLDEN[limits]


def test_buckets_of_the_first_step_and_of_unused_parameters(resnet: TrainingStep) -> None:
    """One in the first step; else limits count from the first parameter, and the last bucket goes first."""
    first = DistributedDataParallel(8, first_step=True).buckets(resnet)
    assert [len(row) for row in first] == [161]
    unused = DistributedDataParallel(8, find_unused_parameters=True).buckets(resnet)
    names = [each.name for row in unused[::-1] for each in row]
    assert names == [each.name for each in resnet.parameters]
    sizes = [sum(each.nbytes for each in row) for row in unused]
    assert sizes == [12_410_784, 31_502_336, 29_669_376, 27_022_336, 1_623_296]


def test_data_types_have_buckets_of_their_own() -> None:
    step = TrainingStep(layers([40] * 4))
    mixed = [replace(each, dtype="bf16") if k % 2 else each for k, each in enumerate(step.parameters)]
    found = fill_buckets(mixed, "nbytes", [80])
    assert [[each.name for each in row] for row in found] == [["w0", "w2"], ["w1", "w3"]]


@given(st.lists(st.integers(0, 30), max_size=30), st.lists(st.integers(1, 60), min_size=1, max_size=3))
@examples(60)
def test_buckets_are_cut_where_sums_say(sizes: list[int], limits: list[int]) -> None:
    """Another formulation: a cut is where the sum since the last cut reaches the limit."""
    expected: list[list[int]] = []
    start = 0
    while start < len(sizes):
        limit = limits[min(len(expected), len(limits) - 1)]
        ends = [k for k in range(start, len(sizes)) if sum(sizes[start : k + 1]) >= limit]
        end = ends[0] + 1 if ends else len(sizes)
        expected.append(list(range(start, end)))
        start = end
    assert closed(sizes, limits) == expected


@given(st.lists(st.integers(1, 30), max_size=30), st.integers(1, 60))
@examples(60)
def test_buckets_that_never_overflow(sizes: list[int], limit: int) -> None:
    given = [Parameter(str(k), "", "", 4 * n, n, None) for k, n in enumerate(sizes)]
    found = [[int(each.name) for each in bucket] for bucket in never_overflowing(given, limit)]
    assert [k for row in found for k in row] == list(range(len(sizes)))
    for row, after in zip(found, [*found[1:], None], strict=False):
        assert sum(sizes[k] for k in row) <= limit or len(row) == 1
        assert after is None or sum(sizes[k] for k in [*row, after[0]]) > limit


# -- when sums are launched -----------------------------------------------------------------------


def test_a_step_worked_by_hand() -> None:
    """Three layers, 100 ns each way and for the loss; a sum takes 2 ns a byte. Buckets: {w2, w1}, {w0}."""
    trace = run(DistributedDataParallel(2, bucket_size_bytes=60).apply(layers([40, 40, 40])), 2)
    found = by_stream(trace)
    assert found["all_reduce"] == [(800, 960, "all_reduce0"), (960, 1040, "all_reduce1")]
    assert [name for _, _, name in found["compute"]] == [
        *("l0", "l1", "l2", "l2/loss_grad", "l2/input_grad", "l2/weight_grad"),
        *("l1/input_grad", "l1/weight_grad", "l0/weight_grad", "w0/update", "w1/update", "w2/update"),
    ]
    assert found["compute"][8:10] == [(800, 900, "l0/weight_grad"), (1040, 1041, "w0/update")]
    assert found == by_stream(trace, "gpu1")


def test_a_bucket_waits_for_the_one_before() -> None:
    """Registered first, its bucket is the last in the order of registration; it is ready first, and waits."""
    b = GraphBuilder("out of order")
    b.input("x", 40), b.parameter("v", 2 * MIB), b.parameter("w", 2 * MIB)
    b.op("a", kind="matmul", inputs=["x", "w"], outputs=40, duration_ns=10)
    b.op("b", kind="matmul", inputs=["a", "v"], outputs=40, duration_ns=10)
    step = TrainingRewrite().apply(b.build())
    orders = [
        [
            name
            for name in graph.op_names
            if name.startswith("gpu0/") and ("reduce" in name or "weight" in name)
        ]
        for graph in (
            DistributedDataParallel(2).apply(step),
            DistributedDataParallel(2, find_unused_parameters=True).apply(step),
        )
    ]
    sums, made = ["gpu0/all_reduce0", "gpu0/all_reduce1"], ["gpu0/b/weight_grad", "gpu0/a/weight_grad"]
    assert orders == [[made[0], sums[0], made[1], sums[1]], [*made, *sums]]


def test_without_overlap_sums_follow_the_backward() -> None:
    graph = DistributedDataParallel(2, bucket_size_bytes=60, overlap=False).apply(layers([40, 40, 40]))
    found = by_stream(run(graph, 2))
    assert found["all_reduce"] == [(900, 1060, "all_reduce0"), (1060, 1140, "all_reduce1")]


def test_an_update_of_several_weights() -> None:
    """An optimizer may update several weights at once; each is in a bucket once, and its state in none."""
    b = GraphBuilder("fused")
    b.input("x", 40), b.parameter("v", 80), b.parameter("w", 80), b.parameter("state", 160)
    b.op("a", kind="matmul", inputs=["x", "v"], outputs=40, phase="F")
    b.op("b", kind="matmul", inputs=["a", "w"], outputs=40, phase="F")
    b.op("dw", inputs=["b", "w"], outputs=[40, 80], phase="B")
    b.op("dv", inputs=["dw", "v"], outputs=[80], phase="B")
    b.op("step", kind="adam", inputs=["dv", "dw:1", "state", "v", "w"])
    step = TrainingStep(b.build())
    assert [(each.name, each.gradient, each.nbytes) for each in step.parameters] == [
        ("v", "dv", 80),
        ("w", "dw:1", 80),
    ]
    assert [update.name for update in step.updates] == ["step"]
    summed = DistributedDataParallel(2).apply(b.build())
    assert summed.is_kind("all_reduce").sum() == 2, "one bucket, on two ranks"


# -- ranks ----------------------------------------------------------------------------------------


def renamed(graph: Graph, rank: str) -> Records:
    """Return the records of `graph` with a prefix, one by one."""
    records = read(graph)

    def own(name: str) -> str:
        return f"{rank}/{name}"

    ops = {}
    for name, record in records.ops.items():
        inputs = [(own(t), d) for t, d in record.inputs]
        after = [(own(t), d) for t, d in record.after]
        ops[own(name)] = replace(record, name=own(name), inputs=inputs, after=after, device=rank)
    return Records(records.name, ops, {own(name): each for name, each in records.externals.items()})


def test_ranks_are_what_renaming_one_by_one_gives(resnet: TrainingStep) -> None:
    graph = write(resnet.records)
    several = [renamed(graph, rank) for rank in ("gpu0", "gpu1", "gpu2")]
    expected = Records(
        graph.name,
        {name: each for records in several for name, each in records.ops.items()},
        {name: each for records in several for name, each in records.externals.items()},
    )
    found = read(Ranked(Grid({"dp": 3}), [graph] * 3).graph())
    assert list(found.ops.items()) == list(expected.ops.items())
    assert list(found.externals.items()) == list(expected.externals.items())


def test_durations_by_kind_of_device_go_along() -> None:
    b = GraphBuilder("kinds")
    b.op("a", duration_by_kind={"gpu": 5})
    b.op("b", duration_by_kind={"cpu": 7}, inputs=["a"])
    both = Ranked(Grid({"dp": 2}), [b.build()] * 2).graph()
    assert {kind: ns.tolist() for kind, ns in both.duration_by_kind.items()} == {
        "gpu": [5, -1, 5, -1],
        "cpu": [-1, 7, -1, 7],
    }


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda b: b.op("a"), "updates no parameter; let the rewrite training come first"),
        (
            lambda b: (b.op("a", device="gpu0"), b.op("b", device="gpu1")),
            r"is on several devices \(gpu0, gpu1\)",
        ),
        (
            lambda b: b.op("a", kind="all_reduce", attributes={"communicator": "dp"}),
            "has communicators already",
        ),
    ],
)
def test_graphs_that_are_no_step_of_one_device(made, message: str) -> None:  # type: ignore[no-untyped-def]
    b = GraphBuilder("wrong")
    made(b)
    with pytest.raises(GraphError, match=message):
        DistributedDataParallel(2).apply(b.build())


@pytest.mark.parametrize(
    ("rewrite", "name"),
    [
        (DistributedDataParallel(2), "all_reduce0"),
        (ZeroTwo(2), "reduce0"),
        (ZeroThree(2, param_persistence_threshold=0), "all_gather0"),
        (FullyShard(2), "a/reduce_scatter"),
    ],
)
def test_an_op_of_the_graph_may_have_the_name_of_a_collective(rewrite: DataParallel, name: str) -> None:
    def step(name: str) -> Graph:
        b = GraphBuilder("g")
        b.input("x", 40), b.parameter("w", 40)
        b.op(name, inputs=["x"], outputs=40, duration_ns=5, phase="F")
        b.op("a", kind="matmul", inputs=[name, "w"], outputs=40, duration_ns=7, phase="F")
        return rewrite.apply(TrainingRewrite().apply(b.build()))

    found, expected = step(name), step("other")
    renamed = [each.replace(name, f"{name}.2").replace("other", name) for each in expected.op_names]
    assert [*found.op_names] == renamed
    assert found.inputs.lists() == expected.inputs.lists()


@pytest.mark.parametrize("ranks", [0, -1, True, "gpu0", [], ["a", "a"], [1, 2], 10**30])
def test_wrong_ranks(ranks: object) -> None:
    with pytest.raises(InputError, match="ranks"):
        DistributedDataParallel(ranks)  # type: ignore[arg-type]


def test_more_ops_than_fit_are_refused() -> None:
    with pytest.raises(InputError, match="ops are more than"):
        DistributedDataParallel(100_000).apply(layers([40] * 40))
