"""Experts on several ranks: one layer worked by hand, forward and backward, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import sim
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from parallel_helpers import run

from devices.machine import make_machine
from policies.issue.program_order import InOrder
from policies.parallel.accumulation import GradientAccumulation
from policies.parallel.expert_parallel import ExpertParallel
from policies.parallel.expert_routing import route_tokens
from policies.parallel.rank_grid import Ranked
from policies.parallel.tensor_parallel import TensorParallel
from policies.rewrite.backward import TrainingRewrite
from policies.rewrite.records import Records, read
from policies.streams import Recorded
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim import Graph, GraphBuilder, Trace, simulate
from sim.base.errors import GraphError, InputError
from sim.explain.training import expert_load

ZIPF = [6720, 3360, 2240, 1680, 1344, 1120, 960, 840]
"""Of each rank's 18,264 tokens; 1 : 1/2 : 1/3 ..."""


def layer(b: GraphBuilder, before: str, name: str, *, gated: bool = False, m: bool = False) -> str:
    """Add 8 tokens of 10 bytes through a middle of 40 bytes; a product takes 80 ns."""
    b.parameter(f"{name}.wu", 100), b.parameter(f"{name}.wd", 100)
    facts: dict[str, Any] = {"kind": "matmul", "duration_ns": 80, "flops": 800}
    if m:
        facts["attributes"] = {"m": 8, "n": 40, "k": 10}
    middle = b.op(f"{name}.up", inputs=[before, f"{name}.wu"], outputs=320, **facts)
    if gated:
        b.parameter(f"{name}.wg", 100)
        gate = b.op(f"{name}.gate", inputs=[before, f"{name}.wg"], outputs=320, **facts)
        middle = b.op(f"{name}.mul", kind="mul", inputs=[middle, gate], outputs=320, duration_ns=8)
    return b.op(f"{name}.down", inputs=[middle, f"{name}.wd"], outputs=80, **facts)


def forward(layers: int = 1, **more: bool) -> Graph:
    """Return layers of a router, experts and an addition of 8 ns each."""
    b = GraphBuilder("experts")
    before = b.input("x", 80)
    for k in range(layers):
        b.parameter(f"r{k}", 4)
        facts: dict[str, Any] = {"outputs": 80, "duration_ns": 8}
        router = b.op(f"router{k}", kind="matmul", inputs=[before, f"r{k}"], **facts)
        before = b.op(f"add{k}", kind="add", inputs=[layer(b, router, f"ffn{k}", **more), router], **facts)
    return b.build()


def parallel(graph: Graph, ranks: int = 2, **more: Any) -> Graph:
    options = {"wrap": r"ffn\d", "experts": 4, "tokens": 8, **more}
    return ExpertParallel(ranks, **options).apply(graph)


def times(trace: Trace, rank: str) -> dict[str, tuple[int, int]]:
    graph = trace.job.graph
    rows = zip(*(trace.tasks[k].tolist() for k in ("op", "start_ns", "end_ns")), strict=True)
    names = {graph.op_names[op]: (start, end) for op, start, end in rows}
    return {name.partition("/")[2]: at for name, at in names.items() if name.startswith(f"{rank}/")}


# -- forward ------------------------------------------------------------------------------------------


def test_a_layer_by_hand() -> None:
    """gpu0's experts get 12 of 16 tokens, gpu1's 4: products of 120 and 40 ns.

    Rank 1 sends 6 tokens of 10 bytes to rank 0, which sends it 2: at 1 ns a byte and two ranks (half of what
    an even exchange has goes to the other) dispatch counts as 120 bytes, and combine the same.
    """
    graph = parallel(forward(), routing={"tokens": [[3, 3, 1, 1], [3, 3, 1, 1]]})
    trace = run(graph, 2)
    assert times(trace, "gpu0") == {
        "router0": (0, 8),
        "ffn0/dispatch": (8, 128),
        "ffn0.up": (128, 248),
        "ffn0.down": (248, 368),
        "ffn0/combine": (368, 488),
        "add0": (488, 496),
    }
    assert times(trace, "gpu1")["ffn0.down"] == (168, 208)
    assert times(trace, "gpu1")["ffn0/combine"] == (208, 488)
    assert expert_load(trace)["layers"]["ffn0"]["tokens"] == {"gpu0": 12, "gpu1": 4}
    assert expert_load(trace)["imbalance"] == 1.5


def test_what_experts_read_make_and_hold() -> None:
    """Two experts a rank: twice the weights; of 12 tokens instead of 8 half as much again of all else."""
    records = read(parallel(forward(), routing={"tokens": [[3, 3, 1, 1], [3, 3, 1, 1]]}))
    up = records.ops["gpu0/ffn0.up"]
    assert (up.outputs, up.flops, up.bytes_read, up.bytes_written) == ((480,), 1200, 120 + 200, 480)
    assert records.externals["gpu0/ffn0.wu"].nbytes == 200
    assert records.externals["gpu0/r0"].nbytes == 4
    assert records.ops["gpu0/ffn0/dispatch"].attributes["sends"] == {"gpu0": 60, "gpu1": 20}
    assert records.ops["gpu0/ffn0/combine"].attributes["sends"] == {"gpu0": 60, "gpu1": 60}
    assert records.ops["gpu0/ffn0/dispatch"].outputs == (120,)
    assert records.ops["gpu0/ffn0/combine"].outputs == (80,)


def test_weights_of_experts_without_tokens_are_not_read() -> None:
    records = read(parallel(forward(), routing="one-hot"))
    assert records.ops["gpu0/ffn0.up"].bytes_read == 160 + 100
    idle = records.ops["gpu1/ffn0.up"]
    assert (idle.duration_ns, idle.bytes_read, idle.flops, idle.outputs) == (0, 0, 0, (0,))


@examples(20)
@given(data=st.data(), ranks=st.sampled_from([2, 4, 8]))
def test_the_layer_takes_as_long_as_the_fullest_rank(data: st.DataObject, ranks: int) -> None:
    """Exactly, for any table: the same formula on matrices, without ops, streams or communicators."""
    cells = st.lists(st.integers(0, 9), min_size=ranks, max_size=ranks)
    table = np.array(data.draw(st.lists(cells, min_size=ranks, max_size=ranks)))
    table[:, 0] += table.sum(axis=1).max() - table.sum(axis=1)
    tokens = int(table[0].sum())
    if not tokens:
        return
    b = GraphBuilder("one layer")
    b.input("x", 10 * tokens), b.parameter("w", 4)
    router = b.op("router", inputs=["x"], outputs=10 * tokens, duration_ns=1)
    b.op("ffn", kind="matmul", inputs=[router, "w"], outputs=10 * tokens, duration_ns=7 * tokens)
    more: dict[str, Any] = {"wrap": "ffn", "experts": ranks, "routing": {"tokens": table.tolist()}}
    trace = run(parallel(b.build(), ranks, **more, tokens=None), ranks)
    out = 10 * (table.sum(axis=1) - np.diag(table))
    back = 10 * (table.sum(axis=0) - np.diag(table))
    exchange = -(-int(max(out.max(), back.max())) * ranks // (ranks - 1))
    assert trace.makespan_ns == 1 + 2 * exchange + 7 * int(table.sum(axis=0).max())


def test_layers_apart_and_layers_that_are_none() -> None:
    names = parallel(forward(2)).op_names
    assert [name[5:] for name in names if name.startswith("gpu0/") and "/d" in name[5:]] == [
        "ffn0/dispatch",
        "ffn1/dispatch",
    ]
    with pytest.raises(GraphError, match="'ffn' are left and entered again"):
        parallel(forward(2), wrap="ffn")


def test_experts_keep_the_dispatched_input_that_sequence_parallel_ranks_gather_again() -> None:
    b = GraphBuilder("two products before the experts")
    b.input("x", 80), b.parameter("r", 160), b.parameter("s", 160)
    facts: dict[str, Any] = {"kind": "matmul", "duration_ns": 8}
    b.op("wide", inputs=["x", "r"], outputs=320, **facts)
    b.op("y", inputs=["wide", "s"], outputs=80, **facts)
    b.parameter("wu", 160), b.parameter("wd", 160)
    b.op("ffn.up", inputs=["y", "wu"], outputs=320, **facts)
    b.op("ffn.silu", kind="silu", inputs=["ffn.up"], outputs=320, duration_ns=8)
    b.op("ffn.down", inputs=["ffn.silu", "wd"], outputs=80, **facts)
    one = Ranked.of(TrainingRewrite().apply(b.build()), ("gpu0", "gpu1", "gpu2", "gpu3"))
    split = TensorParallel(2, sequence_parallel=True).rewrite_ranks(one)
    assert "y/all_gather_again" in split.programs[0].op_names
    program = ExpertParallel(2, "ffn", experts=4, tokens=8).rewrite_ranks(split).programs[0]
    assert "y/all_gather_again" not in program.op_names
    reads = [program.tensor_name(t) for t in program.inputs.row(program.index("ffn.up/weight_grad"))]
    assert "ffn/dispatch" in reads
    came = program.index("ffn/combine/grad")
    assert [program.tensor_name(t) for t in program.inputs.row(came)] == ["ffn.down/loss_grad"]


def test_shared_experts_overlap_only_on_another_stream() -> None:
    b = GraphBuilder("shared")
    b.input("x", 80), b.parameter("r", 4), b.parameter("s", 4)
    router = b.op("router", kind="matmul", inputs=["x", "r"], outputs=80, duration_ns=8)
    last = layer(b, router, "ffn0")
    shared = b.op("shared", kind="matmul", inputs=[router, "s"], outputs=80, duration_ns=50)
    b.op("add", kind="add", inputs=[last, shared], outputs=80, duration_ns=8)
    one = times(run(parallel(b.build()), 2), "gpu0")
    assert one["shared"][0] == one["ffn0/combine"][1]
    two = times(run(parallel(b.build(), overlap=True), 2), "gpu0")
    assert two["shared"][0] == two["ffn0.down"][1] == two["ffn0/combine"][0]


# -- experts one by one -------------------------------------------------------------------------------


def one_by_one(experts: int = 4) -> Graph:
    """Each expert has 2 of 8 tokens of 10 bytes, a product of 20 ns."""
    b = GraphBuilder("one by one")
    b.input("x", 80)
    parts = [b.op(f"permute{x}", inputs=["x"], outputs=20, duration_ns=1) for x in range(experts)]
    made = []
    for x, part in enumerate(parts):
        b.parameter(f"w{x}", 100)
        up = b.op(f"moe.experts.{x}.up", kind="matmul", inputs=[part, f"w{x}"], outputs=40, duration_ns=20)
        made.append(b.op(f"moe.experts.{x}.act", kind="relu", inputs=[up], outputs=20, duration_ns=2))
    b.op("unpermute", kind="concat", inputs=made, outputs=80, duration_ns=1)
    return b.build()


def test_numbered_experts_run_where_they_are() -> None:
    """Expert 2 gets 6 of the 16 tokens, three times its part of the graph; it lives on gpu1."""
    graph = parallel(
        one_by_one(), wrap=r"moe\.experts\.(\d+)", routing={"tokens": [[1, 3, 3, 1], [1, 3, 3, 1]]}
    )
    records = read(graph)
    here = [name for name in records.ops if name.startswith("gpu1/moe")]
    assert here == [
        *("gpu1/moe.experts/dispatch", "gpu1/moe.experts.2.up", "gpu1/moe.experts.2.act"),
        *("gpu1/moe.experts.3.up", "gpu1/moe.experts.3.act", "gpu1/moe.experts/combine"),
    ]
    assert records.ops["gpu1/moe.experts.2.up"].duration_ns == 60
    assert records.ops["gpu1/moe.experts.3.up"].duration_ns == 20
    dispatch = records.ops["gpu1/moe.experts/dispatch"]
    assert (dispatch.outputs, dispatch.attributes["sends"]) == ((60, 20), {"gpu0": 40, "gpu1": 40})
    assert "gpu1/w0" not in records.externals
    assert run(graph, 2).makespan_ns


def test_all_parameters_are_somewhere_once() -> None:
    graph = parallel(one_by_one(), wrap=r"moe\.experts\.(\d+)")
    weights = [name.partition("/")[2] for name in graph.external_names if "/w" in name]
    assert weights == ["w0", "w1", "w2", "w3"]


# -- training -----------------------------------------------------------------------------------------


def trained(**more: Any) -> Records:
    b = GraphBuilder("training")
    b.input("x", 80), b.parameter("r", 4), b.parameter("h", 4)
    router = b.op("router", kind="matmul", inputs=["x", "r"], outputs=80, duration_ns=8)
    last = layer(b, router, "ffn0", gated=True)
    add = b.op("add", kind="add", inputs=[last, router], outputs=80, duration_ns=8)
    b.op("head", kind="matmul", inputs=[add, "h"], outputs=80, duration_ns=8)
    return read(parallel(TrainingRewrite(optimizer="momentum").apply(b.build()), **more))


def test_the_backward_travels_the_other_way() -> None:
    """Gradients of what came back go to the experts, those of what was sent come from them."""
    ops = trained(routing={"tokens": [[3, 3, 1, 1], [3, 3, 1, 1]]}).ops
    there, back = {"gpu0": 60, "gpu1": 20}, {"gpu0": 60, "gpu1": 60}
    sends = {
        name: r.attributes["sends"]
        for name, r in ops.items()
        if name.startswith("gpu0") and "sends" in r.attributes
    }
    assert sends == {
        "gpu0/ffn0/dispatch": there,
        "gpu0/ffn0/combine": back,
        "gpu0/ffn0/combine/grad": there,
        "gpu0/ffn0/dispatch/grad": back,
    }
    order = [name[5:] for name in ops if name.startswith("gpu0/")]
    assert order.index("ffn0/combine/grad") < order.index("ffn0.down/input_grad")
    assert (
        order.index("ffn0.up/input_grad") < order.index("ffn0/dispatch/grad") < order.index("router/grad_sum")
    )
    assert ops["gpu0/ffn0.up/weight_grad"].inputs[1] == ("gpu0/ffn0/dispatch", 0)
    assert ops["gpu0/ffn0.down/input_grad"].duration_ns == 120


def test_gradients_of_both_products_are_summed_before_they_leave() -> None:
    """Of three parts two are the experts': one addition of two is theirs, of 12 tokens instead of 8."""
    ops = trained(routing={"tokens": [[3, 3, 1, 1], [3, 3, 1, 1]]}).ops
    here, there = ops["gpu0/router/grad_sum/ffn0"], ops["gpu0/router/grad_sum"]
    assert {tensor for tensor, _ in here.inputs} == {"gpu0/ffn0.up/input_grad", "gpu0/ffn0.gate/input_grad"}
    assert (here.duration_ns, here.outputs, there.duration_ns, there.outputs) == (6, (120,), 4, (80,))
    assert ("gpu0/ffn0/dispatch/grad", 0) in there.inputs


def test_gradients_are_summed_over_who_has_the_same_parameters() -> None:
    one = trained().ops
    sums = {name: r.attributes["communicator"] for name, r in one.items() if r.kind == "all_reduce"}
    assert sums == {"gpu0/all_reduce0": "data parallel", "gpu1/all_reduce0": "data parallel"}
    assert one["gpu0/ffn0.wu/update"].inputs[0] == ("gpu0/ffn0.up/weight_grad", 0)
    two = trained(ranks=4, shard=2)
    groups = {name: r.attributes["communicator"] for name, r in two.ops.items() if r.kind == "all_reduce"}
    assert groups["gpu1/all_reduce1"] == groups["gpu3/all_reduce1"] == "expert data parallel 1"
    assert groups["gpu0/all_reduce1"] == "expert data parallel 0"
    assert {groups[f"gpu{r}/all_reduce0"] for r in range(4)} == {"data parallel"}
    assert two.ops["gpu3/ffn0/dispatch"].attributes["communicator"] == "experts 1"
    assert two.ops["gpu3/ffn0/dispatch"].attributes["sends"] == {"gpu2": 40, "gpu3": 40}
    assert two.externals["gpu0/ffn0.wu/velocity"].nbytes == 200
    assert two.ops["gpu0/ffn0.wu/update"].bytes_read == 3 * 200


def test_a_step_runs_on_both_engines() -> None:
    b = GraphBuilder("training")
    b.input("x", 80), b.parameter("r", 4), b.parameter("h", 4)
    router = b.op("router", kind="matmul", inputs=["x", "r"], outputs=80, duration_ns=8)
    last = layer(b, router, "ffn0", gated=True)
    b.op("head", kind="matmul", inputs=[last, "h"], outputs=80, duration_ns=8)
    graph = parallel(TrainingRewrite().apply(b.build()), 4, shard=2, routing={"random": 1})
    slow, fast = run(graph, 4), run(graph, 4, engine="kernel")
    assert {k: v.tolist() for k, v in slow.tasks.items()} == {k: v.tolist() for k, v in fast.tasks.items()}


# -- what is refused ------------------------------------------------------------------------------------


def test_sizes_of_measured_shapes_follow_the_tokens() -> None:
    records = read(parallel(forward(m=True), routing={"tokens": [[3, 3, 1, 1], [3, 3, 1, 1]]}))
    assert records.ops["gpu0/ffn0.up"].attributes["m"] == 12
    with pytest.raises(GraphError, match="none of them is the 16 tokens"):
        parallel(forward(m=True), tokens=16)


def with_weight(*reads: str) -> Graph:
    b = GraphBuilder("weights")
    b.input("x", 80), b.parameter("w", 8)
    b.op("cast", kind="cast", inputs=["w"], outputs=8, duration_ns=1)
    b.op("other", kind="matmul", inputs=["x", "w"], outputs=80, duration_ns=1)
    b.op("ffn0", kind="matmul", inputs=[*reads], outputs=80, duration_ns=1)
    return b.build()


@pytest.mark.parametrize(
    ("make", "more", "message"),
    [
        (forward, {"wrap": "mlp"}, "no op of the forward has a name that matches mlp"),
        (forward, {"wrap": "("}, "must be a regular expression"),
        (forward, {"shard": 3}, "2 ranks cannot be divided into groups of 3"),
        (one_by_one, {"wrap": r"moe\.experts\.(\d+)", "experts": 2}, "is of expert '2'"),
        (one_by_one, {"wrap": r"moe\.(\w+)"}, "is of expert 'experts'; experts are numbered from 0 to 3"),
        (lambda: with_weight("x", "w"), {"tokens": 8}, "is read by experts, and by others"),
        (lambda: with_weight("other", "cast"), {"tokens": 8}, "'cast' makes a weight"),
        (lambda: with_weight("cast"), {"tokens": 8}, "'cast' makes a weight"),
    ],
)
def test_refusals(make: Callable[[], Graph], more: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parallel(make(), **more)


# -- the example ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "gets", "out"),
    [
        ("balanced", 18264, 7 * 2283),
        ("Zipf", 8 * ZIPF[0], 7 * ZIPF[0]),
        ("Zipf, capacity 1.25", 8 * 2854, 7 * 2854),
        ("one-hot", 8 * 18264, 7 * 18264),
    ],
)
def test_the_example_is_the_fullest_rank(root: Path, label: str, gets: int, out: int) -> None:
    """100 us beside the layer, 0.1 us for each token that moves or is computed, 10 us an exchange."""
    found = run_scenario(load_scenario(root / "scenarios/examples/experts.yaml"), label, check=True)
    us = 100 + 2 * (Fraction(out, 10) + 10) + Fraction(gets, 10)
    assert found.trace.makespan_ns == 1000 * us
    assert found.outcomes
    assert found.passed


def test_zipf_of_the_example() -> None:
    sent = route_tokens({"zipf": 1}, ranks=8, experts=8, tokens=18264).sent
    assert sent.tolist() == [ZIPF] * 8
    assert sum(ZIPF) == 18264


def test_commands_name_the_rank_that_all_wait_for(root: Path) -> None:
    example = str(root / "scenarios/examples/experts.yaml")
    shown = sim("run", example, "--policy", "Zipf")
    assert ["ffn", "2.94", "gpu0", "53,760", "0"] in [line.split() for line in shown.output.splitlines()]
    told = sim("explain", example, "--policy", "Zipf").output
    assert "'gpu7/ffn/combine', 4.704 ms for 'gpu0/ffn/combine'" in told


def test_a_trace_lies_beside_the_scenario_and_mistakes_are_placed(tmp_path: Path) -> None:
    text = """
machine: {devices: {gpu: {kind: gpu, count: 2}}, collectives: {bandwidth: 1GB/s}}
workload:
  inputs: {x: 40B}
  parameters: {w: 40B}
  ops: {ffn: {kind: matmul, inputs: [x, w], output: 40B, duration: 4us}}
policy:
  runtime: pytorch-distributed
  compile: [{name: expert-parallel, ranks: 2, wrap: ffn, experts: 2, routing: {trace: routed.csv}}]
expect: {imbalance: 1.5, makespan: {at_least: 6us}}
"""
    (tmp_path / "s.yaml").write_text(text, encoding="utf-8")
    shown = sim("run", str(tmp_path / "s.yaml"))
    assert (shown.exit_code, "routed.csv" in shown.output) == (2, True)
    (tmp_path / "routed.csv").write_text("expert\n0\n1\n0\n0\n", encoding="utf-8")
    assert sim("run", str(tmp_path / "s.yaml")).exit_code == 0
    (tmp_path / "routed.csv").write_text("expert\n0\n1\n0\n2\n", encoding="utf-8")
    shown = sim("run", str(tmp_path / "s.yaml"))
    assert "s.yaml:9" in shown.output
    assert "routed.csv:5: the token has expert 2; there are 0 to 1" in shown.output


def test_sums_of_several_experts_are_made_where_each_is() -> None:
    """Five parts of a gradient, two of each expert, one of the router: 1 + 1 + 2 additions, not 4."""
    b = GraphBuilder("two experts")
    b.input("x", 80), b.parameter("r", 4), b.parameter("p", 4)
    x = b.op("norm", kind="matmul", inputs=["x", "p"], outputs=80, duration_ns=8)
    made = [b.op("router", kind="matmul", inputs=[x, "r"], outputs=80, duration_ns=8)]
    for e in range(2):
        for what in ("up", "gate"):
            b.parameter(f"w{e}.{what}", 4)
            made.append(
                b.op(f"e.{e}.{what}", kind="matmul", inputs=[x, f"w{e}.{what}"], outputs=80, duration_ns=8)
            )
    b.op("loss", kind="add_n", inputs=made, outputs=80, duration_ns=8)
    step = TrainingRewrite().apply(b.build())
    options = {"wrap": r"^e\.(\d)", "experts": 2, "token_bytes": 10, "routing": {"tokens": [[4, 4], [4, 4]]}}
    records = read(parallel(step, 2, **options, tokens=None))
    here, there = records.ops["gpu1/norm/grad_sum/e.1"], records.ops["gpu1/norm/grad_sum"]
    assert len(here.inputs) == 2
    assert len(there.inputs) == 3
    whole = step.duration_ns[step.index("norm/grad_sum")]
    assert (here.duration_ns, there.duration_ns) == (2 * whole // 4, whole // 2)
    assert "gpu1/norm/grad_sum/e.0" not in records.ops


def test_without_durations_a_cost_model_says_how_long_the_tokens_take() -> None:
    """Of 8 TFLOP for 8,000 tokens 12 are on gpu0: at 1 TFLOP/s 12 s, and 4 s on gpu1."""
    b = GraphBuilder("no durations")
    b.input("x", 8000), b.parameter("w", 8)
    b.op("ffn", kind="matmul", inputs=["x", "w"], outputs=8000, flops=8 * 10**12)
    graph = parallel(b.build(), wrap="ffn", tokens=8000, routing={"tokens": [6000, 6000, 2000, 2000]})
    gpu = {"kind": "gpu", "count": 2, "peak": "1TFLOP/s", "bandwidth": "1TB/s", "streams": 2}
    machine = make_machine({"devices": {"gpu": gpu}, "collectives": {"bandwidth": "1TB/s"}})
    trace = simulate(graph, machine, InOrder(synchronisation="issue"), streams=Recorded())
    lasted = {name: times(trace, name)["ffn"] for name in ("gpu0", "gpu1")}
    assert [end - start for start, end in lasted.values()] == [12 * 10**9, 4 * 10**9]


def test_micro_batches_exchange_each_and_sum_once() -> None:
    b = GraphBuilder("training")
    b.input("x", 80), b.parameter("r", 4), b.parameter("h", 4)
    router = b.op("router", kind="matmul", inputs=["x", "r"], outputs=80, duration_ns=8)
    last = layer(b, router, "ffn0", gated=True)
    b.op("head", kind="matmul", inputs=[last, "h"], outputs=80, duration_ns=8)
    step = GradientAccumulation(2).apply(TrainingRewrite().apply(b.build()))
    graph = parallel(step, 4, shard=2, routing={"tokens": [[3, 3, 1, 1], [3, 3, 1, 1]]})
    records = read(graph)
    mine = [
        name[5:] for name, r in records.ops.items() if name.startswith("gpu0/") and r.kind == "all_to_all"
    ]
    ends = ("dispatch", "combine", "combine/grad", "dispatch/grad")
    assert mine == [f"micro{k}/ffn0/{end}" for k in range(2) for end in ends]
    added = records.ops["gpu0/micro1/ffn0.wu/accumulate"]
    assert (added.outputs, added.bytes_read) == ((200,), 400)
    assert records.externals["gpu0/ffn0.wu"].nbytes == 200
    sums = [
        name[5:] for name, r in records.ops.items() if name.startswith("gpu0/") and r.kind == "all_reduce"
    ]
    assert sorted(sums) == ["all_reduce0", "all_reduce1"]
    assert run(graph, 4).tasks["end_ns"].tolist() == run(graph, 4, engine="kernel").tasks["end_ns"].tolist()


def test_experts_are_a_dimension_of_the_grid() -> None:
    rewrite = ExpertParallel(4, r"ffn\d", 4, tokens=8, shard=2, routing={"tokens": [6, 6, 2, 2]})
    there = rewrite.rewrite_ranks(Ranked.of(forward()))
    assert there.grid.sizes == {"ep": 2, "dp": 2}
    assert [program is there.programs[0] for program in there.programs] == [True, False, True, False]
    with pytest.raises(GraphError, match="is divided into ep already"):
        rewrite.rewrite_ranks(there)
