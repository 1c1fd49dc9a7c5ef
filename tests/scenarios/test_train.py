"""Training steps: parameters, flop and memory by the papers' formulas, times that add up, what fits."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_runner import sim
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from devices.collectives.groups import Fabric, NodeFabrics, RankGroup
from devices.machine import make_device
from policies.issue.program_order import InOrder
from policies.pipeline.pipeline_schedule import Schedule
from scenarios.builders.train.architecture import MODELS, Architecture
from scenarios.builders.train.calibration import TrainingCalibration, kernels_graph
from scenarios.builders.train.kernels import Attention, Collective, Pass, Product, Timed
from scenarios.builders.train.layers import RankWork
from scenarios.builders.train.layout import ParallelLayout, ReplicaBatch
from scenarios.builders.train.step import step_ns, step_trace
from scenarios.builders.train.training import Training
from scenarios.recorded.changes import WhatIf, apply_changes
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from scenarios.variants.machine_what_ifs import machine_trials
from scenarios.workloads.calibrations import (
    CalibrationFields,
    named_calibration,
    to_calibration,
)
from scenarios.workloads.train_report import changes_that_fit, check_fits, peaks_of
from sim import Device, GraphBuilder, Machine, simulate
from sim.base.arrays import group_pairs
from sim.base.errors import InputError, OutOfMemoryError
from sim.explain.communication import exposed_communication
from sim.explain.derived import DerivedColumns
from sim.job.costs import costs_ns
from sim.trace import Trace

GPT = Architecture(layers=8, hidden=1024, heads=16, vocabulary=51200)
FREE = Fabric(1e30)
PLAIN = TrainingCalibration("plain", peak=1e12, memory_bandwidth=1e30, collectives=NodeFabrics(FREE, FREE))
"""Products take flop / (1 TFLOP/s); nothing else takes time."""


def training(layout: ParallelLayout | None = None, **changes: object) -> Training:
    """Return a small training on plain GPUs."""
    sizes = {"sequence": 512, "micro_batch": 1, "batch": 8 * (layout or ParallelLayout()).dp}
    return Training(GPT, layout or ParallelLayout(), PLAIN, **{**sizes, **changes})  # type: ignore[arg-type]


def peaks(of: Training, schedule: Schedule | None = None) -> list[dict[str, Any]]:
    """Return the most that each pipeline rank holds, when the step runs."""
    return peaks_of(of, step_trace(of, schedule))


def test_gradients_and_parameters_pass_beside_the_computation_in_buckets() -> None:
    """Of 154 million parameters there are three buckets: the last scatter shows, and the first gather."""
    layout = ParallelLayout(dp=2, sharding="zero-1")
    slow = replace(PLAIN, collectives=NodeFabrics(Fabric(100e9), FREE), communication_sms=0.0)
    behind = replace(training(layout), calibration=slow)
    (stage,) = behind.each_stage
    scatter, gather = behind.reduce_ns(stage)
    assert layout.buckets(stage.parameters, len(stage.units)) == 3
    assert layout.buckets(stage.parameters, 2) == 2
    assert ParallelLayout(dp=64).buckets(stage.parameters, 10) == 2
    assert gather < stage.forward.ns
    assert scatter < stage.backward.ns
    beside = replace(behind, overlap=True)
    assert step_ns(behind) - step_ns(beside) == pytest.approx((scatter + gather) * 2 / 3, abs=5)
    shared = replace(beside, calibration=replace(slow, communication_sms=0.25))
    assert step_ns(shared) - step_ns(beside) == pytest.approx((scatter + gather) * 2 / 3 / 4, abs=5)
    assert together(step_trace(shared)) == pytest.approx((scatter + gather) * 2 / 3, abs=5)


def test_gradients_that_stay_sharded_are_reduced_after_each_micro_batch() -> None:
    """zero-2 keeps a part of them: of eight micro-batches each is reduced, with zero-1 the sum; or hidden."""
    slow = replace(PLAIN, collectives=NodeFabrics(Fabric(100e9), FREE), communication_sms=0.0)
    one, two = (
        replace(training(ParallelLayout(dp=2, sharding=name)), calibration=slow)
        for name in ("zero-1", "zero-2")
    )
    scatter, _ = one.reduce_ns(one.each_stage[0])
    assert step_ns(two) - step_ns(one) == pytest.approx(7 * scatter, abs=8)
    assert step_ns(replace(two, overlap=True)) < step_ns(one) - scatter
    assert step_ns(replace(two, batch=2)) == step_ns(replace(one, batch=2))


def together(trace: Trace) -> int:
    """Return for how long ranks compute beside messages, over all of them."""
    graph = trace.job.graph
    sent = np.array([name == "C" for name in graph.phases] + [False])[graph.phase_code]
    columns = (trace.device, trace.tasks["start_ns"], trace.tasks["end_ns"], sent[trace.tasks["op"]])
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    return sum(
        max(0, min(a[2], b[2]) - max(a[1], b[1]))
        for a in rows
        for b in rows
        if a[0] == b[0] and a[3] and not b[3]
    )


@pytest.mark.parametrize(("pp", "chunks"), [(1, 1), (4, 1), (4, 2)])
def test_a_rank_is_slowed_where_it_computes_beside_messages(pp: int, chunks: int) -> None:
    """As far as a run without that says; with chunks other micro-batches pass beside, too."""
    layout = ParallelLayout(dp=2, pp=pp, chunks=chunks, sharding="zero-1")
    slow = replace(PLAIN, collectives=NodeFabrics(Fabric(5e9), FREE), communication_sms=0.25)
    of = replace(training(layout), calibration=slow, overlap=True)
    free = replace(of, calibration=replace(slow, communication_sms=0.0))
    traces = [step_trace(each) for each in (of, free)]
    spent = [int((trace.tasks["end_ns"] - trace.tasks["start_ns"]).sum()) for trace in traces]
    assert spent[0] - spent[1] == pytest.approx(0.25 * together(traces[1]), abs=50)


# -- parameters and flop --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt3-175b", 174.6),
        ("llama2-7b", 6.738),
        ("llama3-8b", 8.030),
        ("llama3-70b", 70.55),
        ("llama3-405b", 405.9),
        ("megatron-18b", 18.45),
        ("megatron-145b", 145.6),
        ("megatron-530b", 529.6),
        ("megatron-1t", 1008.0),
        ("mixtral-8x7b", 46.70),
        ("deepseek-v2", 235.7),
        ("deepseek-v3", 671.0),
        ("qwen3-235b-a22b", 235.1),
        ("mpt-7b", 6.659),
    ],
)
def test_published_models_have_as_many_parameters_as_published(name: str, billions: float) -> None:
    """Sums of what the papers and model cards print, to their last digit."""
    assert Architecture(**MODELS[name]).parameters / 1e9 == pytest.approx(billions, rel=5e-4)


@examples(40)
@given(st.integers(1, 12), st.integers(1, 20), st.integers(1, 4), st.integers(1, 64), st.integers(1, 50_000))
def test_flop_of_equation_3(layers: int, h: int, samples: int, s: int, words: int) -> None:
    """Narayanan et al., arXiv 2104.04473: F = 96 B s l h² (1 + s/6h + V/16lh) with full recomputation."""
    h *= 16
    gpt = Architecture(layers=layers, hidden=h, heads=16, vocabulary=words)
    dense, scores, head = 96 * layers * h * h, 16 * s * layers * h, 6 * words * h
    assert gpt.flops(samples, s, recompute=True) == samples * s * (dense + scores + head)
    assert gpt.flops(samples, s) == samples * s * (dense * 3 // 4 + scores * 3 // 4 + head)


@examples(40)
@given(st.sampled_from([1, 2, 4, 8]), st.booleans(), st.integers(1, 3))
def test_kernels_of_all_ranks_do_the_flop_of_the_model(t: int, recompute: bool, chunks: int) -> None:
    """Products and attention of a step, over all ranks and micro-batches, are what the formula says."""
    layout = ParallelLayout(tp=t, pp=2, chunks=chunks)
    model = replace(GPT, layers=12)
    of = Training(model, layout, PLAIN, 512, 2, 8, "full" if recompute else "none")
    spent = sum(stage.forward.products + stage.backward.products for stage in of.each_stage)
    scores = (
        model.layers * 4 * 2 * 512 * 512 * model.hidden
    )  # forward; flash attention's backward is 2.5 of it
    flops = model.flops(2, 512, recompute=recompute) - (3 + recompute) * scores
    assert spent * t / 1e9 * 1e12 == pytest.approx(flops, rel=1e-12)
    attention = sum(stage.forward.attention + stage.backward.attention for stage in of.each_stage)
    assert attention * t / 1e9 * 1e12 == pytest.approx((3.5 + recompute) * scores, rel=1e-12)


@pytest.mark.parametrize("context", ["all-to-all", "ring", "all-gather"])
def test_ranks_of_a_context_share_its_scores(context: str) -> None:
    whole, shared = training(), training(ParallelLayout(cp=4), context=context)
    for of in ("products", "attention"):
        one, four = (getattr(each.each_stage[0].forward, of) for each in (whole, shared))
        assert four == pytest.approx(one / 4)


# -- memory -----------------------------------------------------------------------------------------------


def kept(layout: ParallelLayout, batch: ReplicaBatch, *, statistics: int = 8) -> int:
    """Return what a layer of the paper's GPT keeps, the two numbers a token of its two norms left out."""
    work = RankWork(GPT, layout, batch)
    return sum(piece.saved for piece in work.layer("*-")) - statistics * work.few


@examples(30)
@given(st.sampled_from([1, 2, 4, 8]), st.integers(1, 4), st.sampled_from([64, 512, 2048]))
def test_activations_of_korthikanti(t: int, b: int, s: int) -> None:
    """arXiv 2205.05198: sbh(34 + 5as/h); sbh(10 + 24/t + 5as/ht) with tensor parallelism; /t with both."""
    paper = ReplicaBatch(b, s, attention="eager", dropout=True)
    sbh, scores = s * b * GPT.hidden, 5 * GPT.heads * s * s * b
    assert kept(ParallelLayout(), paper) == 34 * sbh + scores
    assert kept(ParallelLayout(tp=t), paper) == (34 * sbh + scores) // t
    apart = ParallelLayout(tp=t, sequence_parallel=False)
    assert kept(apart, paper) == 10 * sbh + (24 * sbh + scores) // t
    dropped = sum(piece.dropped for piece in RankWork(GPT, ParallelLayout(tp=t), paper).layer("*-"))
    assert dropped == scores // t  # selective recomputation leaves 34 sbh / t


@pytest.mark.parametrize("t", [1, 4])
def test_ends_of_the_model_of_korthikanti(t: int) -> None:
    """arXiv 2205.05198, section 4.3: the embedding keeps a mask of sbh / t bytes, the loss 4sbv / t.

    In this project the tokens' numbers, of 8 bytes, and 4 bytes of a token for the loss come on top.
    """
    b, s = 2, 512
    v = GPT.vocabulary // t
    found = {
        loss: RankWork(GPT, ParallelLayout(tp=t), ReplicaBatch(b, s, dropout=True, loss=loss))
        for loss in ("fp32", "fused")
    }
    (embedding,) = found["fp32"].embedding()
    assert embedding.saved == 8 * s * b + s * b * GPT.hidden // t
    assert found["fp32"].head()[-1].saved == (4 * v + 4) * s * b
    assert found["fused"].head()[-1].saved == (2 * v + 4) * s * b


def test_fsdp_keeps_sixteen_bytes_a_parameter() -> None:
    """fp32 copy, gradient and two moments: FSDP2 gathers in 16 bits and keeps no shard of them."""
    for sharding, nbytes in (("fsdp", 16), ("zero-3", 18)):
        of = training(ParallelLayout(dp=4, sharding=sharding))  # type: ignore[arg-type]
        (stage,) = of.each_stage
        assert sum(of.resident(stage).values()) == nbytes * of.share(stage)


def test_sums_over_replicas_of_shards_do_not_hold_up_the_host() -> None:
    """With HSDP a layer's backward follows the one before it; the sum waits on the messages' stream."""
    slow = NodeFabrics(Fabric(100e9), FREE)
    of = training(ParallelLayout(dp=4, shard=2, sharding="fsdp"))
    trace = step_trace(replace(of, calibration=replace(PLAIN, collectives=slow, communication_sms=0.0)))
    names = [trace.job.graph.op_names[op] for op in trace.tasks["op"]]
    start, end = (dict(zip(names, trace.tasks[at].tolist(), strict=True)) for at in ("start_ns", "end_ns"))
    assert start["B4.0"] == end["B5.0"] == start["scatter 5.0"]
    assert start["sum 5.0"] == end["scatter 5.0"] < end["B4.0"]


def test_gpt3_needs_what_the_paper_prints() -> None:
    """arXiv 2205.05198, figure 1: 66.8 GiB of activations as they are, 12.4 with both ways to save."""
    gpt3 = Architecture(**MODELS["gpt3-175b"])
    layout = ParallelLayout(tp=8, pp=8, chunks=3)
    sizes = {"sequence": 2048, "micro_batch": 1, "batch": 64, "attention": "eager", "dropout": True}

    def activations(**changes: object) -> float:
        of = Training(gpt3, changes.pop("layout", layout), PLAIN, **{**sizes, **changes})  # type: ignore[arg-type]
        stage = of.memory_of_stages[1].saved - 8 * (2 * 2048 // 8) * 4
        in_flight = 8 * 3 + 8 - 1 - 0  # (p·v + p − 1) chunks: the paper's 1 + (p−1)/(pv) of p stages
        return stage * in_flight / 2**30

    plain = activations(layout=replace(layout, sequence_parallel=False))
    assert plain == pytest.approx(66.84, rel=2e-3)
    assert activations(recompute="selective") == pytest.approx(12.35, rel=2e-3)


def test_memory_of_mixed_precision() -> None:
    """2 + 4 + 12 bytes a parameter, the 12 shared by the data-parallel ranks (arXiv 1910.02054)."""
    for sharding, shared in (("none", 1), ("zero-1", 4)):
        of = training(ParallelLayout(dp=4, sharding=sharding))  # type: ignore[arg-type]
        (peak,) = peaks(of)
        p = GPT.parameters
        assert of.each_stage[0].parameters == p
        assert peak["memory_bytes"]["parameters"] == 2 * p
        assert peak["memory_bytes"]["gradients"] == 4 * p
        assert peak["memory_bytes"]["optimizer state"] == 12 * -(-p // shared)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_activations_in_flight_are_those_of_the_schedule(schedule: str) -> None:
    of = training(ParallelLayout(pp=4))
    found = peaks(of, of.schedule_of(schedule))
    saved = [stage.saved for stage in of.memory_of_stages]
    alive = [8, 8, 8, 8] if schedule == "gpipe" else [4, 3, 2, 1]
    assert [peak["memory_bytes"]["activations"] for peak in found] == [
        n * s for n, s in zip(alive, saved, strict=True)
    ]


def test_full_recomputation_keeps_the_inputs_of_layers() -> None:
    of = training(recompute="full")
    ends = sum(piece.saved for piece in (*of.work.embedding(), *of.work.head()))
    assert of.memory_of_stages[0].saved == GPT.layers * 2 * 512 * GPT.hidden + ends


# -- times ------------------------------------------------------------------------------------------------


def test_a_step_on_one_gpu_is_the_sum_of_its_kernels() -> None:
    of = training()
    (stage,) = of.each_stage
    assert step_ns(of) == 8 * (
        round(stage.forward.ns) + round(stage.input_grad.ns) + round(stage.weight_grad.ns)
    )


@examples(15)
@given(st.sampled_from([2, 4]), st.integers(4, 9))
def test_a_pipeline_of_equal_stages_takes_its_closed_form(p: int, m: int) -> None:
    """(m + p − 1)(F + B), where the ends of the model take no time: one word, no vocabulary to speak of."""
    model = replace(GPT, vocabulary=1)
    of = Training(model, ParallelLayout(pp=p), PLAIN, 512, 1, m)
    first, last = of.pipeline_stages[0].times, of.pipeline_stages[-1].times
    assert (
        0
        <= step_ns(of) - (m + p - 1) * (first.of("F") + first.of("B"))
        <= (m + p) * (last.of("F") + last.of("B") - first.of("F") - first.of("B"))
    )


def test_collectives_by_formula() -> None:
    """A ring: 2(n−1)/n · S/B + 2(n−1)·α for an all-reduce, half of it for its two halves."""
    node = Fabric(100e9, latency_ns={"default": 1000.0}, fixed_ns={"all_to_all/4": 7.0})
    of = replace(PLAIN, collectives=NodeFabrics(node, Fabric(10e9)))
    one = RankGroup(4, 1)
    assert of.collective_ns("all_reduce", 400_000, one) == pytest.approx(6_000 + 6_000)
    assert of.collective_ns("all_gather", 400_000, one) == pytest.approx(3_000 + 3_000)
    assert of.collective_ns("reduce_scatter", 400_000, one) == pytest.approx(3_000 + 3_000)
    assert of.collective_ns("all_to_all", 400_000, one) == pytest.approx(3_000 + 3_000 + 7)
    assert of.collective_ns("all_reduce", 400_000, RankGroup(1, 1)) == 0
    # two nodes of four: the ring crosses the network with the bandwidth of four ranks; six hops stay in nodes
    assert of.collective_ns("all_gather", 800_000, RankGroup(8, 2)) == pytest.approx(6_000 + 17_500)


def test_a_collective_beside_a_kernel_costs_what_is_left() -> None:
    kernel = Product(1000, 1000, 1000)  # 2 ms at 1 TFLOP/s
    of = replace(PLAIN, collectives=NodeFabrics(Fabric(1e9)))
    hidden = Collective("all_gather", 2_000_000, "tp", kernel)
    assert of.exposed_ns(hidden, RankGroup(2, 1)) == (pytest.approx(1e6), 0.0)
    assert replace(of, hiding=0.25).exposed_ns(hidden, RankGroup(2, 1)) == (
        pytest.approx(1e6),
        pytest.approx(7.5e5),
    )
    assert replace(of, contention=3.0).exposed_ns(hidden, RankGroup(2, 1)) == (
        pytest.approx(3e6),
        pytest.approx(1e6),
    )


def test_kernels_take_the_longer_of_arithmetic_and_bytes_or_what_was_measured() -> None:
    product, attention = Product(100, 100, 100), Attention(1, 64, 2, 1, 16, 16)
    of = TrainingCalibration(
        "c", 1e12, 1e9, FREE, FREE, product=0.5, gap_ns=10.0, sustained=0.8, pass_efficiency={"x": 0.1}
    )
    assert of.kernel_ns(product) == pytest.approx(60_000 + 10)  # its bytes; its flop take 5 us
    assert replace(of, memory_bandwidth=1e12).kernel_ns(product) == pytest.approx(2e6 / 0.4e12 * 1e9 + 10)
    assert replace(of, measured={product: 0.25}).kernel_ns(product) == pytest.approx(2e6 / 0.2e12 * 1e9 + 10)
    assert attention._replace(backward=True).flops == 5 * attention.flops // 2
    assert replace(of, sustained=1.25).kernel_ns(product) == pytest.approx(60_000 + 10)
    assert of.kernel_ns(Pass(1000)) == pytest.approx(1010)
    assert of.kernel_ns(Pass(1000, "x")) == pytest.approx(10_010)


@pytest.mark.parametrize(
    "kernel", [Product(8192, 4096, 12288), Pass(2**28), Attention(1, 4096, 32, 8, 128, 128)]
)
def test_a_kernel_takes_what_the_cost_model_says_and_a_step_only_slows_it(kernel: Timed) -> None:
    """A calibration of a device takes the times of its preset; its numbers are what a step leaves."""
    plain = CalibrationFields(
        device="h100-sxm",
        node={"bandwidth": "1GB/s", "latency": {"default": "0us"}},
        network={"bandwidth": "1GB/s"},
    )  # type: ignore[arg-type]
    of, device = to_calibration(plain, "c"), make_device("gpu0", {"preset": "h100-sxm"})
    (alone,) = costs_ns(kernels_graph([kernel], "bf16"), device).tolist()
    assert of.kernel_ns(kernel) == pytest.approx(alone, rel=0.002)
    slow = replace(of, product=0.1, attention_forward=0.1, pass_efficiency={"elementwise": 0.1})
    if isinstance(kernel, Pass):
        assert slow.kernel_ns(kernel) == pytest.approx(kernel.nbytes / 335, rel=0.001)
    else:
        assert slow.kernel_ns(kernel) == pytest.approx(kernel.flops / 98.94e3, rel=0.001)
    fast = replace(of, product=2.0, pass_efficiency={"elementwise": 2.0})
    assert fast.kernel_ns(kernel) == pytest.approx(alone, rel=0.002)


def test_products_in_fp8_leave_attention_as_it_was() -> None:
    attention, product = Attention(1, 4096, 32, 32, 128, 128), Product(8192, 8192, 8192)
    wide, narrow = (named_calibration("h100-sxm", precision) for precision in ("bf16", "fp8"))
    assert narrow.kernel_ns(attention) == wide.kernel_ns(attention)
    assert narrow.kernel_ns(product) < 0.7 * wide.kernel_ns(product)


def test_an_odd_number_of_tokens_does_not_slow_gradients_of_weights() -> None:
    """Rows of both operands are 4,096 long in memory, whatever the number of tokens."""
    of = named_calibration("h100-sxm")
    even, odd = (of.kernel_ns(Product(4096, tokens, 4096, "W")) for tokens in (16384, 16385))
    assert odd == pytest.approx(even, rel=0.01)


def test_attention_that_writes_its_scores_runs_products() -> None:
    """One head at a time: two products forward and four backward; a kernel that keeps none has five."""
    sizes = {"samples": 1, "sequence": 512}
    fused, apart = (
        RankWork(GPT, ParallelLayout(), ReplicaBatch(**sizes, attention=attention)).layer("*-")
        for attention in ("flash", "eager")
    )
    work = {}
    for pieces in (fused, apart):
        (piece,) = (piece for piece in pieces if piece.name == "attention")
        for way in ("forward", "backward"):
            kernels = [k for k in getattr(piece, way) if isinstance(k, Product | Attention)]
            work.setdefault(way, []).append(sum(kernel.flops for kernel in kernels))
    assert work["forward"][0] == work["forward"][1]
    assert 4 * work["backward"][0] == 5 * work["backward"][1]


# -- groups -----------------------------------------------------------------------------------------------


@examples(60)
@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 4, 8]),
    st.permutations(["tp", "cp", "pp", "dp"]),
    st.sampled_from([1, 4, 8]),
)
def test_groups_are_where_the_order_puts_them(
    t: int, c: int, p: int, d: int, order: list[str], node: int
) -> None:
    """Against ranks written out: those of a group differ in its dimension alone; all wait for the widest."""
    layout = ParallelLayout(tp=t, cp=c, pp=p, dp=d, order=tuple(order), node=node)
    sizes = {"tp": t, "cp": c, "pp": p, "dp": d}
    where = {}
    for rank in range(layout.ranks):
        at, rest = {}, rank
        for name in order:
            rest, at[name] = divmod(rest, sizes[name])
        where[rank] = at
    for names in (("tp",), ("cp",), ("pp",), ("dp",), ("cp", "dp")):
        groups = group_pairs((tuple(at[name] for name in order if name not in names), r)
                             for r, at in where.items()).values()  # fmt: skip
        nodes = max(len({rank // node for rank in group}) for group in groups)
        expected = RankGroup(layout.ranks // len(groups), nodes)
        assert layout.group("_".join(reversed(names)) if len(names) > 1 else names[0]) == expected


def test_a_group_that_crosses_nodes_makes_all_wait() -> None:
    """On nodes of 8, ranks 0 to 5 are on one node, 6 to 11 on two; only rank 0's group had counted."""
    assert ParallelLayout(tp=6, dp=4).group("tp") == RankGroup(6, 2)


def test_experts_lie_within_tp_cp_and_dp_and_shards_within_cp_and_dp() -> None:
    layout = ParallelLayout(tp=2, dp=16, ep=4, shard=4)
    assert layout.group("ep") == RankGroup(4, 1)
    assert layout.group("edp") == RankGroup(8, 4)
    assert layout.group("shard") == RankGroup(4, 1)
    assert layout.group("replicas") == RankGroup(4, 4)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"order": ("tp", "cp", "pp", "pp")}, "name each of tp, cp, pp, dp once"),
        ({"dp": 4, "ep": 3}, "experts over 3 ranks need tp·cp·dp = 4"),
        ({"dp": 4, "shard": 3}, "no divisor of dp·cp = 4"),
    ],
)
def test_layouts_that_do_not_fit_are_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(InputError, match=says):
        ParallelLayout(**wrong)  # type: ignore[arg-type]


# -- the workload -----------------------------------------------------------------------------------------

SCENARIO = """
workload:
  train:
    model: {name: llama3-8b, layers: 8}
    calibration: h100-sxm
    parallel: {tp: 2, pp: 2, dp: 4}
    sequence: 4096
    batch: 32
"""


def run(tmp_path: Path, *arguments: str, text: str = SCENARIO) -> tuple[int, str]:
    """Run a scenario; return exit status and output."""
    path = tmp_path / "train.yaml"
    path.write_text(text)
    result = sim("run", path, *arguments)
    return result.exit_code, result.output


SMALL = """
workload:
  train:
    model: {layers: 4, hidden: 768, heads: 8, vocabulary: 1024}
    calibration: h100-sxm
    parallel: {pp: 2, dp: 1}
    sequence: 512
    micro_batch: 1
    batch: 32
"""


def test_no_part_of_the_step_is_negative_where_kernels_are_rounded(tmp_path: Path) -> None:
    told = json.loads(run(tmp_path, "--json", text=SMALL)[1])["train"]
    for rank in told["ranks"]:
        parts = {name: ns for name, ns in rank["time_ns"].items() if name != "hidden"}
        assert sum(parts.values()) == told["step_ns"]
        assert min(parts.values()) >= 0


def test_parts_of_the_step_add_up(tmp_path: Path) -> None:
    for more in ((), ("--set", "workload.train.parallel={dp: 16, sharding: fsdp}")):
        code, out = run(tmp_path, "--json", *more)
        assert code == 0, out
        told = json.loads(out)["train"]
        for rank in told["ranks"]:
            parts = {name: ns for name, ns in rank["time_ns"].items() if name != "hidden"}
            assert sum(parts.values()) == told["step_ns"]
            assert min(parts.values()) >= 0
            assert sum(rank["memory_bytes"].values()) == rank["peak_bytes"]
        assert told["gpus"] == 16
        assert told["folded"]["simulated"] * told["folded"]["each_stands_for"] == 16
        assert told["tokens_per_s"] == pytest.approx(32 * 4096 / told["step_ns"] * 1e9)
        assert 0.1 < told["mfu"] < 0.8
        assert told["fits"]


@pytest.mark.parametrize(
    "model", ["{name: llama3-8b, layers: 8}", "{layers: 4, hidden: 96, heads: 3, vocabulary: 129}"]
)
@pytest.mark.parametrize("sharding", ["zero-1", "zero-3", "fsdp"])
def test_two_steps_are_twice_one_and_told_as_one(sharding: str, model: str, tmp_path: Path) -> None:
    """The second step gathers parameters when the first has updated them; small ones, zero-3 at its end."""
    sets = [f"workload.train.parallel={{dp: 16, sharding: {sharding}}}", "workload.train.overlap=true"]
    sets += [f"workload.train.model={model}"]
    one, two = (
        json.loads(run(tmp_path, "--json", *(f"--set={each}" for each in (*sets, f"iterations={n}")))[1])
        for n in (1, 2)
    )
    assert two["makespan_ns"] == 2 * one["makespan_ns"]
    assert [two["train"][key] for key in ("step_ns", "mfu")] == [
        one["train"][key] for key in ("step_ns", "mfu")
    ]
    parts = two["train"]["ranks"][0]["time_ns"]
    assert parts == pytest.approx(one["train"]["ranks"][0]["time_ns"], abs=9)


def test_a_slow_rank_is_slow_in_all_its_parts(tmp_path: Path) -> None:
    parts = ("products", "attention", "passes", "exposed_in_layers", "optimizer")
    usual, slow = (
        json.loads(run(tmp_path, "--json", *noise)[1])["train"]["ranks"][1]["time_ns"]
        for noise in ((), ("--set", "noise={devices: {rank1: 1.1}}"))
    )
    assert [slow[part] / usual[part] for part in parts] == pytest.approx([1.1] * 5, rel=1e-4)


@pytest.mark.parametrize("parallel", ["{tp: 2, pp: 2, dp: 4}", "{tp: 2, dp: 8, sharding: fsdp}"])
def test_what_is_exposed_and_idle_is_the_same_whoever_tells_it(parallel: str, tmp_path: Path) -> None:
    sets = (f"workload.train.parallel={parallel}", "workload.train.model.layers=2")
    path = tmp_path / "train.yaml"
    path.write_text(SCENARIO)
    result = run_scenario(load_scenario(str(path), sets=sets))
    told, exposed = result.summary, exposed_communication(DerivedColumns(result.trace))
    assert told["train"]["exposed_ns"] == max(sum(parts.values()) for parts in exposed.values())
    for rank, (name, parts) in zip(told["train"]["ranks"], exposed.items(), strict=True):
        inside = rank["time_ns"]["exposed_in_layers"]
        assert 0 < inside == parts["inside ops"]
        use = told["devices"][name]["time_ns"]
        assert use["communicate"] == sum(parts.values())
        assert use["compute"] == sum(
            rank["time_ns"][part] for part in ("products", "attention", "passes", "optimizer")
        )
    if told["pipeline"] is not None:
        assert told["pipeline"]["bubble"] == pytest.approx(told["train"]["bubble"], rel=1e-12)


def test_kernels_and_communication_are_changed_apart() -> None:
    """A layer of 10 us communicates for 4 us itself, and a sum takes 6 us."""
    b = GraphBuilder("step")
    b.op("F", kind="F", duration_ns=10_000, attributes={"communicates_ns": 4000})
    b.op("sum", kind="all_reduce", duration_ns=6000, inputs=["F"])

    def what_if(**change: object) -> list[int]:
        return apply_changes(b.build(), [WhatIf.model_validate(change)]).duration_ns.tolist()

    assert what_if(scale={"kernels": "x0.5"}) == [7000, 6000]
    assert what_if(scale={"collectives": "x0"}) == [6000, 0]
    assert what_if(bandwidth={"collectives": "x2"}) == [8000, 3000]
    assert what_if(scale={"F": "x0.5"}) == [5000, 6000]
    trace = simulate(b.build(), Machine((Device("gpu0"),)), InOrder())
    takes = {
        trial.label: trial.job(trace.job).duration_ns.tolist()
        for trial in machine_trials(trace)
        if trial.job is not None
    }
    assert takes["all kernels twice as fast"] == takes["gpu0 twice as fast"] == [7000, 6000]
    assert takes["communication takes no time"] == [6000, 0]
    assert takes["communication twice as fast"] == [8000, 3000]


def test_the_schedule_may_be_left_out_or_chosen(tmp_path: Path) -> None:
    assert "train: 1f1b" in run(tmp_path)[1]
    assert "interleaved-1f1b" in run(tmp_path, "--set", "workload.train.parallel.chunks=2")[1]
    assert json.loads(run(tmp_path, "--json", "--policy", "gpipe")[1])["train"]["schedule"] == "gpipe"
    assert json.loads(run(tmp_path, "--json", "--policy", "zb-h1")[1])["train"]["schedule"] == "zb-h1"


def test_an_order_is_read_beside_the_scenario_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "order.csv").write_text("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n")
    text = SMALL.replace("32", "2") + "policy: {name: custom, file: order.csv}\n"
    found = [json.loads(run(tmp_path, "--json", *more, text=text)[1]) for more in ([], ["--policy", "1f1b"])]
    assert found[0]["makespan_ns"] == found[1]["makespan_ns"]
    assert "outside the scenario's folder" in run(tmp_path, text=text.replace("order", "../order"))[1]


def test_what_some_ranks_alone_hold_has_a_column_of_its_own(tmp_path: Path) -> None:
    """Rank 0 keeps two versions of its weights, rank 1 one."""
    done, told = run(tmp_path, "--policy", "pipedream", text=SMALL)
    assert done == 0
    rows = [re.split("  +", line) for line in told.splitlines()]
    held = {row[0]: row[-1] for row in rows if len(row) == 9}
    assert held["rank"] == "stashed weights"
    assert held["0"] != held["1"] == "0 B"


def test_zb_auto_searches_with_the_times_and_sizes_of_the_step(tmp_path: Path) -> None:
    """Its span is in ns, and at least what the longest rank computes; its limit is a size."""
    of = training(ParallelLayout(pp=4), policy="zb-auto", options={"limit": "1.6GB"})
    longest = max(sum(stage.times.of(phase) for phase in "FIW") for stage in of.pipeline_stages)
    assert of.schedule.meta["objective"] >= of.schedule.meta["bound"] >= 8 * longest
    assert (
        max(p["peak_bytes"] - p["memory_bytes"]["working"] - p["memory_bytes"]["buffers"] for p in peaks(of))
        <= 1.6e9
    )
    code, out = run(tmp_path, "--set", "policy={name: zb-auto, limit: 40}")
    assert code == 2
    assert "limit should be a size, not 40; a number of micro-batches is in_flight" in out


def test_what_does_not_fit_says_who_when_what_and_the_way_out(tmp_path: Path) -> None:
    code, out = run(tmp_path, "--set", "workload.train.memory=15GB", "--set", "workload.train.micro_batch=4")
    assert code == 1
    assert "pipeline rank 0 (8 GPUs) needs" in out
    assert "backward of micro-batch 0 on stage 0" in out or "forward of micro-batch" in out
    assert "activations" in out
    assert "it fits with" in out
    model = "model={name: llama3-8b, layers: 8, vocabulary: 512}"
    sets = "memory=6GB", model, "parallel={dp: 16, sharding: fsdp}"
    code, out = run(tmp_path, *(word for key in sets for word in ("--set", f"workload.train.{key}")))
    assert "at the backward of layer 7 in micro-batch 0: " in out


def test_the_change_that_is_offered_fits_and_the_notch_before_it_does_not() -> None:
    of = training(ParallelLayout(dp=4), micro_batch=8, memory=1)
    full = peaks(of)[0]["peak_bytes"]
    of = replace(of, memory=peaks(replace(of, micro_batch=2))[0]["peak_bytes"])
    with pytest.raises(OutOfMemoryError, match="it fits with"):
        check_fits(of, peaks(of), 1)
    changes = {change.setting: change for change in changes_that_fit(of)}
    by_batch = next(change for what, change in changes.items() if what.startswith("micro_batch"))
    smaller = int(by_batch.setting.split()[-1])
    assert smaller == 2
    assert by_batch.peak <= of.memory  # type: ignore[operator]
    before = replace(of, micro_batch=2 * smaller)
    assert peaks(before)[0]["peak_bytes"] > of.memory  # type: ignore[operator]
    check_fits(replace(of, memory=full), peaks(of), 1)


def test_what_is_offered_fits_under_the_policy_that_stays() -> None:
    """GPipe holds all 32 micro-batches: what 1F1B needs with other settings is no way out of it."""
    gpipe = replace(training(ParallelLayout(pp=4, dp=2), batch=64), policy="gpipe")
    lean = replace(gpipe, policy="1f1b")
    most = {of.policy: max(each["peak_bytes"] for each in peaks(of)) for of in (gpipe, lean)}
    assert most["1f1b"] < most["gpipe"]
    of = replace(gpipe, memory=most["1f1b"])
    changes = {change.setting: change for change in changes_that_fit(of)}
    assert changes["policy: 1f1b"] == ("policy: 1f1b", most["1f1b"], step_ns(lean))
    assert not any("sharding" in what for what in changes)  # it shards no activations
    batch = next((what for what in changes if what.startswith("micro_batch")), None)
    assert batch is None  # as many samples are held in smaller ones


def test_experts_may_go_to_more_ranks() -> None:
    """Each of eight ranks has all experts; with two or more a rank what is left is too much, too."""
    of = Training(Architecture(**MODELS["mixtral-8x7b"]), ParallelLayout(dp=8), PLAIN, 512, 1, 8)
    spread = replace(of, layout=replace(of.layout, ep=4))
    of = replace(of, memory=max(each["peak_bytes"] for each in peaks(spread)))
    changes = {change.setting: change.peak for change in changes_that_fit(of)}
    assert changes["parallel.ep: 4"] == of.memory
    with pytest.raises(OutOfMemoryError, match=r"parallel\.ep: 4"):
        check_fits(of, peaks(of), 1)


def test_tensor_parallelism_may_fill_a_node_beside_a_pipeline_over_nodes() -> None:
    """Alone, tp would go over both nodes: it fits, too, and takes longer."""
    shipped = named_calibration("h100-sxm")
    of = Training(Architecture(**MODELS["llama3-8b"]), ParallelLayout(dp=16), shipped, 4096, 1, 64)
    both = replace(of, layout=replace(of.layout, tp=8, pp=2, dp=1))
    of = replace(of, memory=max(each["peak_bytes"] for each in peaks(both)))
    changes = [change.setting for change in changes_that_fit(of)]
    assert changes[0] == "parallel: tp: 8, pp: 2, dp: 1"
    assert "parallel: tp: 16, dp: 1" in changes


def test_zero_3_may_give_way_to_sharding_with_smaller_buffers() -> None:
    of = training(ParallelLayout(dp=4, sharding="zero-3"))
    sharded = replace(of, layout=replace(of.layout, sharding="fsdp"))
    of = replace(of, memory=peaks(sharded)[0]["peak_bytes"])
    with pytest.raises(OutOfMemoryError, match=r"parallel\.sharding: (zero-1|zero-2|fsdp) "):
        check_fits(of, peaks(of), 1)


def test_nothing_fits_on_a_gpu_without_memory() -> None:
    of = training(memory=1000)
    with pytest.raises(OutOfMemoryError, match="no single change"):
        check_fits(of, peaks(of), 1)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("model=llama3-80b", "did you mean 'llama3-8b'"),
        ("model={layers: 3}", "has no hidden"),
        ("calibration=h100", "did you mean 'h100-sxm'"),
        ("calibration=l40s", "l40s is a device preset: give {device: l40s, node: ..."),
        ("calibration=none.json", "no such file"),
        ("calibration={node: {bandwidth: 1GB/s}, network: {bandwidth: 1GB/s}}", "peak (of bf16) is missing"),
        ("parallel.tp=3", "3 ranks cannot share 32 heads"),
        ("batch=33", "cannot be shared by 4 replicas"),
        ("partition=[1, 2]", "2 stages of 3 layers, and there are 2 of 8"),
        ("parallel.dpp=3", "no such key; did you mean 'pp'"),
        ("parallel.pp=16", "8 layers cannot be shared by 16 stages"),
        ("recompute=ful", "'none', 'selective'"),
    ],
)
def test_wrong_trainings_are_refused_in_words(tmp_path: Path, setting: str, says: str) -> None:
    code, out = run(tmp_path, "--set", f"workload.train.{setting}")
    assert code == 2, out
    assert says in out
    assert "Traceback" not in out


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{network: {bandwith: 1GB/s}}", ".network.bandwith: no such key; did you mean 'bandwidth'?"),
        (
            "{network: {bandwidth: 1GB/s, fixed: 3us}}",
            ".network.fixed: should be a mapping (KEY: VALUE), not",
        ),
        ("{network: {bandwidth: 1GB/s, latency: ncl}}", ".network.latency: should be 'nccl', not 'ncl'"),
        ("{nccl: h10}", ".nccl: should be 'a100', 'h100', 'h200' or 'b200', not 'h10'"),
    ],
)
def test_a_fault_in_a_calibration_of_the_scenario_is_one_line(tmp_path: Path, given: str, says: str) -> None:
    code, out = run(tmp_path, "--set", f"workload.train.calibration={given}")
    assert code == 2
    [line] = out.splitlines()
    assert f"workload.train.calibration{says}" in line


def test_a_machine_beside_the_calibration_is_refused(tmp_path: Path) -> None:
    code, out = run(tmp_path, "--set", "machine={devices: {a: {kind: gpu}}}")
    assert code == 2
    assert "takes no machine" in out
