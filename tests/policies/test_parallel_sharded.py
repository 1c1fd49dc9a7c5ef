"""Sharded parameters: when FSDP2 and ZeRO gather, wait and reduce, worked by hand from the rules."""

from __future__ import annotations

import pytest
from parallel_helpers import by_stream, layers, run

from policies.parallel.accumulation import GradientAccumulation
from policies.parallel.fsdp2 import FullyShard
from policies.parallel.zero import ZeroOne, ZeroThree, ZeroTwo
from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.records import read, write
from sim import Graph, GraphBuilder
from sim.base.errors import GraphError, InputError, UnknownNameError
from sim.graph.graph import Role

FOUR = [40, 40, 40, 40]


def picture(found: dict[str, list[tuple[int, int, str]]]) -> dict[str, str]:
    """Return streams as lines: name@start-end ..."""
    return {
        stream: " ".join(f"{name}@{start}-{end}" for start, end, name in sorted(rows))
        for stream, rows in found.items()
    }


# -- FSDP2: copy in 2 ns, copy out 3, a byte of a collective 1, kernels 100 ---------------------------


def test_four_layers_by_hand() -> None:
    """Forward: c(i+1) after o(i-1). Backward: a(i-1) after o(i), and behind r(i+1) on the communicator."""
    found = by_stream(run(FullyShard(2).apply(layers(FOUR)), 2))
    assert picture(found) == {
        "all_gather_copy_in": (
            "l0/copy_in@0-2 l1/copy_in@2-4 l2/copy_in@45-47 l3/copy_in@148-150 l3/backward_copy_in@354-356 "
            "l2/backward_copy_in@557-559 l1/backward_copy_in@762-764 l0/backward_copy_in@967-969"
        ),
        "all_gather": (
            "l0/all_gather@2-42 l1/all_gather@42-82 l2/all_gather@82-122 l3/all_gather@150-190 "
            "l3/backward_all_gather@356-396 l2/backward_all_gather@559-599 l1/backward_all_gather@799-839 "
            "l0/backward_all_gather@1004-1044"
        ),
        "compute": (
            "l0/copy_out@42-45 l0@45-145 l1/copy_out@145-148 l1@148-248 l2/copy_out@248-251 l2@251-351 "
            "l3/copy_out@351-354 l3@354-454 l3/loss_grad@454-554 l3/backward_copy_out@554-557 "
            "l3/input_grad@557-657 l3/weight_grad@657-757 l3/reduce_copy_in@757-759 "
            "l2/backward_copy_out@759-762 l2/input_grad@762-862 l2/weight_grad@862-962 "
            "l2/reduce_copy_in@962-964 l1/backward_copy_out@964-967 l1/input_grad@967-1067 "
            "l1/weight_grad@1067-1167 l1/reduce_copy_in@1167-1169 l0/backward_copy_out@1169-1172 "
            "l0/weight_grad@1172-1272 l0/reduce_copy_in@1272-1274 w0/update@1314-1315 w1/update@1315-1316 "
            "w2/update@1316-1317 w3/update@1317-1318"
        ),
        "reduce_scatter": (
            "l3/reduce_scatter@759-799 l2/reduce_scatter@964-1004 l1/reduce_scatter@1169-1209 "
            "l0/reduce_scatter@1274-1314"
        ),
    }


def test_a_second_communicator_lets_them_run_side_by_side() -> None:
    """The all_gather of layer 1 waited for the reduce_scatter of layer 3 (torchtitan issue 2368)."""
    found = by_stream(run(FullyShard(2, separate_all_gather=True).apply(layers(FOUR)), 2))
    assert (764, 804, "l1/backward_all_gather") in found["all_gather"]
    assert (759, 799, "l3/reduce_scatter") in found["reduce_scatter"]


def test_one_reduce_scatter_is_in_flight() -> None:
    """Communication takes longer than computing: d(i) waits on the compute stream for the end of r(i+1)."""
    graph = FullyShard(2, separate_all_gather=True).apply(layers([400] * 4, ns=10))
    found = by_stream(run(graph, 2))
    ends = {name.split("/")[0]: end for _, end, name in found["reduce_scatter"]}
    starts = {name.split("/")[0]: start for start, _, name in found["compute"] if "reduce_copy_in" in name}
    assert [starts[f"l{i}"] >= ends[f"l{i + 1}"] for i in range(3)] == [True] * 3
    assert (
        starts["l0"] == ends["l1"] > max(end for _, end, name in found["compute"] if name == "l0/weight_grad")
    )


def test_an_explicit_list_is_gathered_before_the_module_computes() -> None:
    two = FullyShard(2, prefetch={"forward": 2}).apply(layers(FOUR))
    names = [name.removeprefix("gpu0/") for name in two.op_names if name.startswith("gpu0/")]
    order = [name for name in names if name.endswith("all_gather") or name in ("l0", "l1", "l2", "l3")]
    gathers = ["l0/all_gather", "l1/all_gather", "l2/all_gather", "l0", "l3/all_gather", "l1", "l2", "l3"]
    assert order[:8] == gathers
    lists = FullyShard(2, prefetch={"backward": {"l3": ["l1", "l2"]}}).apply(layers(FOUR))
    names = [name.removeprefix("gpu0/") for name in lists.op_names if name.startswith("gpu0/")]
    order = [name for name in names if "backward_all_gather" in name or "weight_grad" in name]
    assert order == [
        *("l3/backward_all_gather", "l1/backward_all_gather", "l2/backward_all_gather", "l3/weight_grad"),
        *("l2/weight_grad", "l1/weight_grad", "l0/backward_all_gather", "l0/weight_grad"),
    ]
    with pytest.raises(UnknownNameError, match="l9"):
        FullyShard(2, prefetch={"forward": {"l0": ["l9"]}}).apply(layers(FOUR))


def test_a_late_host_gathers_late() -> None:
    """Implicit prefetch is the host's being ahead: at 60 ns a launch layer 1 is gathered after layer 0."""
    graph = FullyShard(2).apply(layers(FOUR))
    late, ahead = (by_stream(run(graph, 2, issue_ns=ns)) for ns in (60, 1))
    starts = [{name: start for rows in found.values() for start, _, name in rows} for found in (late, ahead)]
    ends = [{name: end for rows in found.values() for _, end, name in rows} for found in (late, ahead)]
    assert starts[0]["l1/all_gather"] == 6 * 60 > ends[0]["l0"] - 1
    assert starts[1]["l1/all_gather"] < ends[1]["l0"]


def test_the_root_keeps_its_parameters_and_is_reduced_last() -> None:
    """Layers 1 and 2 are modules; 0 and 3 are the root, gathered once, before all others."""
    graph = FullyShard(2, wrap="l[12]").apply(layers(FOUR))
    names = [name.removeprefix("gpu0/") for name in graph.op_names if name.startswith("gpu0/")]
    moves = [name for name in names if name.endswith(("all_gather", "reduce_scatter"))]
    assert moves == [
        *("root/all_gather", "l1/all_gather", "l2/all_gather", "l2/backward_all_gather"),
        *("l1/backward_all_gather", "l2/reduce_scatter", "l1/reduce_scatter", "root/reduce_scatter"),
    ]
    assert names.index("l2/backward_all_gather") < names.index("l3/loss_grad")  # the root prefetches it
    run(graph, 2)


def test_hybrid_sharding_sums_over_groups() -> None:
    """Four ranks in groups of two: all_gather of half of the bytes each, and sums of parts between groups."""
    graph = FullyShard(4, shard=2).apply(layers(FOUR))
    of = {
        graph.op_names[op]: given["communicator"]
        for op, given in graph.attributes.items()
        if "communicator" in given
    }
    gathers = [of[f"gpu{r}/l0/all_gather"] for r in range(4)]
    sums = [of[f"gpu{r}/l0/all_reduce"] for r in range(4)]
    assert gathers == ["shard 0", "shard 0", "shard 1", "shard 1"]
    assert sums == ["replicate 0", "replicate 1", "replicate 0", "replicate 1"]
    found = by_stream(run(graph, 4))
    assert found["all_reduce"][0] == (799, 839, "l3/all_reduce")  # 20 bytes, after its reduce_scatter
    assert found["compute"][-1][1] == found["all_reduce"][-1][1] + 4


def test_parts_and_their_updates() -> None:
    """Adam: parameters and both moments in thirds, rounded up to whole elements; updates cost a third."""
    step = layers([44], optimizer="adam")
    graph = FullyShard(3).apply(step)
    sizes = {
        name: int(nbytes)
        for name, nbytes, role in zip(
            graph.external_names, graph.tensor_nbytes, graph.tensor_role, strict=False
        )
        if role == Role.PARAMETER
    }
    parts = {f"gpu{r}/{name}": 15 for r in range(3) for name in ("w0", "w0/first_moment", "w0/second_moment")}
    assert sizes == parts
    assert graph.flops[graph.index("gpu1/w0/update")] == -(-14 * 11 // 3)
    gather = graph.index("gpu0/l0/all_gather")
    assert graph.bytes_written[gather] == 3 * 16  # 11 elements are 4 a rank


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard": 3}, "2 ranks cannot be divided into groups of 3"),
        ({"wrap": "("}, "must be a regular expression"),
        ({"wrap": 3}, "must be a regular expression"),
        ({"wrap": "block"}, "no op that reads a parameter has a name that matches block"),
        ({"prefetch": {"forward": -1}}, "whole number of at least 0"),
    ],
)
def test_wrong_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        FullyShard(2, **options).apply(layers(FOUR))  # type: ignore[arg-type]


@pytest.mark.parametrize("rewrite", [FullyShard, ZeroThree])
def test_a_wrong_expression_is_refused_before_a_graph_is_there(rewrite: type[FullyShard | ZeroThree]) -> None:
    with pytest.raises(InputError, match="wrap: must be a regular expression"):
        rewrite(2, wrap="(")


def tied() -> Graph:
    b = GraphBuilder("tied")
    b.input("x", 40), b.parameter("w", 40)
    b.op("a0", kind="matmul", inputs=["x", "w"], outputs=40, duration_ns=10)
    b.op("a1", kind="matmul", inputs=["a0", "w"], outputs=40, duration_ns=10)
    return TrainingRewrite().apply(b.build())


def test_a_parameter_belongs_to_one_module() -> None:
    with pytest.raises(GraphError, match="parameter 'w' is read in a0 and a1; wrap them together"):
        FullyShard(2, wrap=r"a\d").apply(tied())
    run(FullyShard(2).apply(tied()), 2)


# -- ZeRO: sums 2 ns a byte, what becomes parameters 3 ns, four layers of 10 elements ------------------


def names_on(graph: Graph, rank: str = "gpu0") -> list[str]:
    return [name.removeprefix(f"{rank}/") for name in graph.op_names if name.startswith(f"{rank}/")]


def test_zero_1_sums_after_the_backward_in_the_order_of_registration() -> None:
    graph = ZeroOne(2, bucket_size=20).apply(layers(FOUR))
    found = picture(by_stream(run(graph, 2)))
    assert list(found) == ["compute"]
    assert found["compute"].partition("l0/weight_grad")[2] == (
        "@1100-1200 reduce0@1200-1360 reduce1@1360-1520 w0/update@1520-1521 w1/update@1521-1522 "
        "w2/update@1522-1523 w3/update@1523-1524 all_gather0@1524-1604 all_gather1@1604-1684"
    )
    first = {graph.op_names[op] for op in graph.predecessors.lists()[graph.index("gpu0/reduce0")]}
    assert first == {"gpu0/l0/weight_grad", "gpu0/l1/weight_grad"}


def test_zero_2_sums_within_the_backward() -> None:
    """The bucket of w3 and w2 is full when w1's gradient is there; without a stream of its own it blocks."""
    found = picture(by_stream(run(ZeroTwo(2, bucket_size=20).apply(layers(FOUR)), 2)))
    assert (
        found["compute"]
        .partition("l1/weight_grad")[2]
        .startswith(
            "@1000-1100 reduce0@1100-1260 l0/weight_grad@1260-1360 reduce1@1360-1520 w0/update@1520-1521"
        )
    )
    overlapped = ZeroTwo(2, bucket_size=20, overlap=True).apply(layers(FOUR))
    found = picture(by_stream(run(overlapped, 2)))
    assert found["reduce"] == "reduce0@1100-1260 reduce1@1260-1420"
    assert "l0/weight_grad@1100-1200 w0/update@1420-1421" in found["compute"]


def test_zero_2_computes_on_when_the_sum_before_is_over() -> None:
    """A gradient a bucket: launching r(k) makes what computes next wait for r(k-1)."""
    graph = ZeroTwo(2, bucket_size=10, overlap=True).apply(layers([40] * 4, ns=30))
    found = by_stream(run(graph, 2))
    ends = {name: end for _, end, name in found["reduce"]}
    starts = {name: start for start, _, name in found["compute"]}
    # r0 (w3) is launched after w2's gradient, r1 (w2) after w1's; then comes w0's gradient
    assert starts["l0/weight_grad"] == ends["reduce0"]


def test_zero_1_sums_at_the_last_of_several_micro_batches() -> None:
    """Forward and backward of two layers take 600 ns; gradients are added up as they come."""
    graph = ZeroOne(2, bucket_size=10).apply(accumulated([40] * 2, 2))
    found = [name for _, _, name in by_stream(run(graph, 2))["compute"]]
    assert found[5:7] == ["micro0/l0/weight_grad", "micro1/l0"]
    assert found[11:15] == [
        "micro1/w1/accumulate",
        "micro1/l0/weight_grad",
        "micro1/w0/accumulate",
        "reduce0",
    ]
    hooked = ZeroOne(2, bucket_size=10, overlap=True).apply(accumulated([40] * 2, 2))
    assert [name for _, _, name in by_stream(run(hooked, 2))["reduce"]] == ["reduce0", "reduce1"]


def test_zero_2_sums_in_every_micro_batch() -> None:
    """80 ns for each of two sums, and 1 ns for the part that is kept, in both."""
    graph = ZeroTwo(2, bucket_size=10).apply(accumulated([40] * 2, 2))
    found = by_stream(run(graph, 2))["compute"]
    assert found[6:10] == [
        (600, 680, "micro0/reduce0"),
        (680, 760, "micro0/reduce1"),
        (760, 761, "micro0/keep_part"),
        (761, 861, "micro1/l0"),
    ]
    assert found[15:18] == [
        (1361, 1441, "micro1/reduce0"),
        (1441, 1521, "micro1/reduce1"),
        (1521, 1522, "micro1/keep_part"),
    ]
    records = read(graph)
    assert records.ops["gpu0/micro1/keep_part"].outputs == (20, 20)
    assert records.ops["gpu0/w1/update"].inputs[0] == ("gpu0/micro1/keep_part:1", 0)
    assert not [name for name in records.ops if "accumulate" in name]
    overlapped = ZeroTwo(2, bucket_size=10, overlap=True).apply(accumulated([40] * 2, 3))
    assert [name for _, _, name in by_stream(run(overlapped, 2))["reduce"]] == [
        f"micro{k}/reduce{i}" for k in range(3) for i in range(2)
    ]


@pytest.mark.parametrize("stage", [ZeroOne, ZeroTwo])
def test_micro_batches_have_one_update(stage: type[ZeroOne]) -> None:
    """Work comes m times; updates and gathers once; sums of stage 1 once, of stage 2 m times."""
    one, three = (stage(2).apply(accumulated(FOUR, m)) for m in (1, 3))
    kinds = [[g.kind(op) for op in range(len(g)) if g.op_names[op].startswith("gpu0/")] for g in (one, three)]
    sums = 3 if stage.stage == 2 else 1
    for kind, times in (("matmul", 3), ("sgd", 1), ("all_gather", 1), ("all_reduce", sums)):
        assert kinds[1].count(kind) == times * kinds[0].count(kind)
    assert run(three, 2).makespan_ns


def test_zero_2_refuses_a_pipeline() -> None:
    records = read(accumulated([40], 2))
    first = next(iter(records.ops))
    records.ops[first].micro_batch = 1
    with pytest.raises(GraphError, match="zero-2 takes micro-batches one after another"):
        ZeroTwo(2).apply(write(records))


def accumulated(weights: list[int], n: int) -> Graph:
    return GradientAccumulation(n).apply(layers(weights))


def test_updated_parameters_are_gathered_in_whole_buckets() -> None:
    """40 elements in buckets of 15: two pieces, of 10 elements a rank each."""
    graph = ZeroTwo(2, bucket_size=15).apply(layers(FOUR))
    sizes = [
        graph.attributes[graph.index(f"gpu0/all_gather{k}")]["nbytes"]
        for k in range(sum("gpu0/all_gather" in name for name in graph.op_names))
    ]
    assert sizes == [80, 80]


def test_zero_3_with_room_for_one_layer_ahead() -> None:
    """Parameters leave at once (no reuse); one layer is gathered ahead, and compute holds no gather back."""
    options = {"param_persistence_threshold": 0, "prefetch": 10, "max_reuse_distance": 0}
    graph = ZeroThree(2, bucket_size=20, **options).apply(layers(FOUR))
    assert picture(by_stream(run(graph, 2))) == {
        "all_gather": (
            "all_gather0@0-40 all_gather0/concat@40-43 all_gather1@43-83 all_gather1/concat@83-86 "
            "all_gather2@86-126 all_gather2/concat@126-129 all_gather3@129-169 all_gather3/concat@169-172 "
            "all_gather4@172-212 all_gather5@212-252 all_gather5/concat@252-255 all_gather6@255-295 "
            "all_gather4/concat@295-298 all_gather7@298-338 all_gather6/concat@338-341 "
            "all_gather7/concat@341-344"
        ),
        "compute": (
            "l0@43-143 l1@143-243 l2@243-343 l3@343-443 l3/loss_grad@443-543 l3/input_grad@543-643 "
            "l3/weight_grad@643-743 l2/input_grad@743-843 l2/weight_grad@843-943 l1/input_grad@943-1043 "
            "l1/weight_grad@1043-1143 l0/weight_grad@1143-1243 w0/update@1323-1324 w1/update@1324-1325 "
            "w2/update@1325-1326 w3/update@1326-1327"
        ),
        "reduce": "reduce_scatter0@943-1023 reduce_scatter1@1243-1323",
    }
    host = names_on(graph)
    assert host[:9] == [
        *("all_gather0", "all_gather0/concat", "all_gather1", "l0"),
        *("all_gather1/concat", "all_gather2", "l1", "all_gather2/concat", "all_gather3"),
    ]
    assert host.index("reduce_scatter0") == host.index("l1/weight_grad") + 1  # the next one does not fit


def test_zero_3_as_it_comes() -> None:
    """All is ahead at once and nothing leaves; small parameters are gathered after the updates alone."""
    gathers = [name for name in names_on(ZeroThree(2).apply(layers(FOUR))) if "gather" in name]
    assert gathers == ["persistent/all_gather"]
    some = ZeroThree(2, param_persistence_threshold=0).apply(layers(FOUR))
    gathers = [name for name in names_on(some) if "gather" in name]
    assert gathers == ["all_gather0", "all_gather0/concat", "all_gather1", "all_gather1/concat"]
    nbytes = [some.bytes_written[some.index(f"gpu0/all_gather{k}")] for k in range(2)]
    assert nbytes == [40, 120]


def test_zero_3_in_its_first_step_gathers_nothing_ahead() -> None:
    graph = ZeroThree(2, param_persistence_threshold=0, first_step=True).apply(layers(FOUR))
    order = [name for name in names_on(graph) if name.startswith("all_gather") and "concat" not in name]
    assert order == [f"all_gather{k}" for k in range(8)]  # each way, as all leave at once


def test_zero_3_keeps_to_what_may_be_live() -> None:
    """Of 20 elements 10 are in use: 10 more are gathered ahead, though the bucket would hold all."""
    graph = ZeroThree(2, param_persistence_threshold=0, max_live_parameters=20).apply(layers(FOUR))
    host = names_on(graph)
    assert graph.bytes_written[graph.index("gpu0/all_gather1")] == 40
    assert host.index("all_gather1") < host.index("l0")


def test_zero_3_without_streams_of_its_own() -> None:
    graph = ZeroThree(2, param_persistence_threshold=0, overlap=False).apply(layers(FOUR))
    assert list(by_stream(run(graph, 2))) == ["compute"]
