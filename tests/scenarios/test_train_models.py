"""Hybrids, windows, latent experts, further tokens; low precision; who brings tokens, who launches."""

from __future__ import annotations

import warnings
from dataclasses import replace
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import pytest
from cli_runner import sim

from devices.collectives.groups import RankGroup
from devices.machine import make_device
from scenarios.builders.train.architecture import MODELS, Architecture
from scenarios.builders.train.calibration import LOW_PRECISION, HostFields, TrainingCalibration
from scenarios.builders.train.kernels import (
    OTHER_MICRO_BATCH,
    WIDE,
    Attention,
    CausalConvolution,
    Collective,
    DeepEp,
    Kernel,
    Pass,
    Product,
    Scan,
)
from scenarios.builders.train.layers import RankWork
from scenarios.builders.train.layout import ParallelLayout, ReplicaBatch
from scenarios.builders.train.step import step_graph, step_ns
from scenarios.builders.train.training import FULL_ITERATION, Training
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from scenarios.workloads.calibrations import named_calibration
from scenarios.workloads.train_report import dispatcher_notes, precision_notes
from sim import GraphBuilder
from sim.base.errors import InputError
from sim.job.costs import costs_ns

HYBRID = Architecture(
    layers=4,
    hidden=256,
    heads=4,
    kv_heads=2,
    vocabulary=1000,
    pattern="ME*-",
    biases=False,
    mamba_heads=8,
    mamba_head=64,
    mamba_state=16,
    mamba_groups=2,
    experts=8,
    top_k=2,
    expert_middle=512,
    shared_middle=384,
    expert_latent=64,
)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        # OpenAI, arXiv 2508.10925, table 1; Moonshot AI, arXiv 2507.20534; NVIDIA's model cards
        ("gpt-oss-120b", 116.8),
        ("kimi-k2", 1026),
        ("nemotron-3-nano", 31.6),
        ("nemotron-3-super", 120.7),
        ("nemotron-3-ultra", 549),
        ("deepseek-v3", 671),
        ("deepseek-v4-flash", 284),  # DeepSeek-AI's model card
    ],
)
def test_models_have_the_published_parameters(name: str, billions: float) -> None:
    assert Architecture(**MODELS[name]).parameters / 1e9 == pytest.approx(billions, rel=0.002)


def training(model: Architecture = HYBRID, **changes: object) -> Training:
    """Return a training on one GPU that is measured."""
    sizes = {"sequence": 1024, "micro_batch": 1, "batch": 2, **changes}
    layout = sizes.pop("layout", ParallelLayout())
    calibration = sizes.pop("calibration", named_calibration("h100-sxm", "bf16"))
    return Training(model, layout, calibration, **sizes)  # type: ignore[arg-type]


def test_the_ranks_of_a_hybrid_hold_its_parameters() -> None:
    """What a rank holds is counted from its kernels, what a model has from its sizes."""
    (stage,) = training().each_stage
    biased = replace(HYBRID, biases=True)
    (with_biases,) = training(biased).each_stage
    assert with_biases.parameters == biased.parameters
    assert with_biases.expert_parameters == 8 * (2 * 64 * 512 + 512 + 64)
    extra = HYBRID.norm_parameters("M") - HYBRID.hidden  # of Mamba-2 beside its products
    router = HYBRID.hidden * HYBRID.experts
    assert stage.parameters == HYBRID.parameters
    assert HYBRID.layer_parameters(0)[0] == 256 * (512 + 576 + 8) + 512 * 256 + 256 + extra
    assert HYBRID.layer_parameters(1) == (2 * 256 * 384 + 2 * 256 * 64 + router + 256, 8 * 2 * 64 * 512)


def test_the_scan_of_mamba_by_hand() -> None:
    """1,024 tokens are eight chunks of 128: four products of each.

    Backward what a group's tokens see is found again and has two gradients; of a head's (q, q, d) there are
    three, of its (q, s, d) five: the states again, their gradient, and those of x, B and C.
    """
    scan = RankWork(HYBRID, ParallelLayout(), ReplicaBatch(1, 1024)).mamba()[1]
    (forward,) = (kernel for kernel in scan.forward if isinstance(kernel, Scan))
    (backward,) = (kernel for kernel in scan.backward if isinstance(kernel, Scan))
    products = [(128, 16, 128, 8 * 2), (128, 128, 64, 8 * 8), (16, 128, 64, 8 * 8), (128, 16, 64, 8 * 8)]
    assert forward.flops == sum(2 * m * k * n * groups for m, k, n, groups in products)
    backwards = [(128, 16, 128, 3 * 8 * 2), (128, 128, 64, 3 * 8 * 8), (128, 16, 64, 5 * 8 * 8)]
    assert backward.flops == sum(2 * m * k * n * groups for m, k, n, groups in backwards)
    assert forward[:3] == (1, 1024, 8)


def test_mamba_convolves_again_backward_and_keeps_what_its_products_wrote() -> None:
    scan, both = (RankWork(HYBRID, ParallelLayout(), ReplicaBatch(n, 1024)).mamba()[1] for n in (1, 2))
    channels = 512 + 2 * 2 * 16
    forward = [kernel for kernel in scan.forward if isinstance(kernel, CausalConvolution)]
    backward = [kernel for kernel in scan.backward if isinstance(kernel, CausalConvolution)]
    assert forward == [(1, 1024, channels, 2)]
    assert [(kernel.channels, kernel.tensors) for kernel in backward] == [(channels, 2), (channels, 3)]
    width = 512 + channels + 8
    # z, x, B, C, dt; the scan's output, and it with its gate
    assert scan.saved == 2 * 1024 * (width + 2 * 512)
    # samples beside one another are copied apart, and back
    passes = [[k.nbytes for k in of.forward if isinstance(k, Pass)] for of in (scan, both)]
    assert passes[1] == [2 * 2 * 2048 * (width + 512), *(2 * nbytes for nbytes in passes[0])]
    prices = named_calibration("b200-sxm").alone
    assert prices is not None
    once, twice = prices.ns(backward)
    assert twice == once * 3 / 2


@pytest.mark.parametrize(
    ("sizes", "shared", "others"),
    [
        # eight ranks hold four parts of the experts: two each part, all of one copy
        ({"dp": 8, "ep": 4}, (2, 1), (1, 1)),
        # copies of four ranks: each rank of a copy has experts of its own, as one of the other copy has
        ({"dp": 8, "ep": 4, "shard": 4}, (1, 1), (2, 1)),
        ({"dp": 16, "ep": 4, "shard": 8, "node": 8}, (2, 1), (2, 2)),
        ({"dp": 8, "tp": 2, "ep": 4, "shard": 4, "node": 4}, (2, 2), (2, 2)),
    ],
)
def test_experts_are_gathered_over_the_ranks_of_a_copy_that_share_them(
    sizes: dict[str, int], shared: tuple[int, int], others: tuple[int, int]
) -> None:
    layout = ParallelLayout(sharding="fsdp", **sizes)  # type: ignore[arg-type]
    assert (layout.group("eshard"), layout.group("ereplicas")) == (shared, others)
    assert layout.group("edp").size == shared[0] * others[0]


def test_experts_that_no_rank_shares_stay_whole_under_fsdp() -> None:
    """Of a copy on four ranks each has two of eight experts; the rest of a layer is gathered."""
    layout = ParallelLayout(dp=8, ep=4, shard=4, sharding="fsdp")
    of = training(layout=layout, batch=8)
    (stage,) = of.each_stage
    mine = stage.expert_parameters
    assert mine == 2 * 2 * 64 * 512
    dense = stage.parameters - mine
    assert of.resident(stage) == {
        "parameters": 2 * mine,
        "gradients": 4 * (-(-dense // 4) + mine // 2 + mine),
        "optimizer state": 12 * (-(-dense // 4) + mine // 2),
    }
    wide = of.gather_ns(0, mine), of.scatter_ns(0, mine)
    assert wide[0] == 0
    assert wide[1] == (0, of.calibration.collective_ns("all_reduce", 4 * mine, of.groups["ereplicas"]))


def test_every_second_layer_looks_back_a_window() -> None:
    model = Architecture(layers=3, hidden=64, heads=2, vocabulary=100, window=128)
    assert [model.kind(i) for i in range(3)] == ["w-", "*-", "w-"]
    units = training(model).each_stage[0].units
    every = [k for unit in units for piece in unit.pieces for k in piece.forward if isinstance(k, Attention)]
    assert [kernel.window for kernel in every] == [128, 0, 128]
    assert every[0].flops * 8 == every[1].flops
    flops = [model.layer_flops(1, 1024, i) for i in range(2)]
    assert flops[1] - flops[0] == 4 * 64 * 1024 * (1024 - 128)


def test_a_further_token_costs_a_layer_and_the_head_once_more() -> None:
    """Its head has no weights of its own, so that those of a rank are the model's."""
    plain = Architecture(layers=2, hidden=256, heads=4, vocabulary=1000, tied=False, biases=False)
    more = replace(plain, predicted=1)
    assert more.parameters - plain.parameters == plain.layer_parameters()[0] + 2 * 256 + 2 * 256**2
    assert training(more).each_stage[0].parameters == more.parameters - 2 * 256
    head = 2 * 1024 * 1000 * 256
    assert more.flops(1, 1024) - plain.flops(1, 1024) == 3 * (
        plain.layer_flops(1, 1024) + 2 * 1024 * 2 * 256**2 + head
    )


def test_zero_3_runs_a_head_again_for_a_further_token_with_the_same_weights() -> None:
    model = Architecture(layers=2, hidden=256, heads=4, vocabulary=1000, tied=False, predicted=1)
    of = replace(training(model), layout=ParallelLayout(dp=2, sharding="zero-3"), batch=2)
    graph, _ = step_graph(of, of.schedule)
    assert {"head head.0", "head head 4.0", "head head 4 back.0", "head head back.0"} <= {*graph.op_names}
    scattered = graph.duration_ns[graph.is_kind("reduce_scatter")]
    assert scattered.tolist() == [round(of.scatter_ns(of.each_stage[0].parameters)[0])]


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_dispatcher_sends_a_copy_to_each_rank_or_node(nodes: int) -> None:
    """Of all ways to draw two of eight experts, so many ranks (nodes) have one or two of them."""
    layout = ParallelLayout(ep=4, dp=4, node=4 // nodes)
    held = 8 // (4 if nodes == 1 else nodes)
    ways = [len({expert // held for expert in chosen}) for chosen in combinations(range(8), 2)]
    mean = Fraction(sum(ways), len(ways))
    sent = {}
    for dispatcher in ("all-to-all", "deepep", "hybridep"):
        batch = ReplicaBatch(1, 1024, dispatcher=dispatcher)
        pieces = RankWork(replace(HYBRID, pattern="EEEE"), layout, batch).experts()
        (sent[dispatcher],) = {k.nbytes for p in pieces for k in p.forward if isinstance(k, Collective)}
    assert sent["all-to-all"] == 2 * 1024 * 64 * 2
    assert sent["deepep"] == sent["hybridep"] == round(mean * 1024 * 64 * 2)


def test_queries_and_keys_may_have_norms() -> None:
    """Qwen3: a kernel for each, forward and backward, that keeps what it reads; a weight a column."""
    plain, normed = (training(replace(HYBRID, pattern="*-*-", head_norm=of)) for of in (False, True))
    assert normed.model.parameters - plain.model.parameters == 2 * 2 * 64
    assert normed.each_stage[0].parameters == normed.model.parameters
    pieces = {piece.name: piece for piece in normed.work.layer("*")}
    queries, keys = 1024 * 4 * 64 * 2, 1024 * 2 * 64 * 2
    norms = pieces["head norms"]
    assert norms.forward == (Pass(2 * queries), Pass(2 * keys))
    assert norms.backward == (Pass(3 * queries), Pass(3 * keys))
    assert norms.saved == queries + keys
    with pytest.raises(InputError, match="head: norm is for attention whose keys are not compressed"):
        replace(HYBRID, head_norm=True, kv_rank=16, rotary_head=8)


def test_an_exchange_beside_another_micro_batch_takes_its_sms() -> None:
    layout = ParallelLayout(ep=4, dp=4)
    alone = training(layout=layout, batch=4)
    beside = replace(alone, expert_overlap=True)
    shown, less = (each.each_stage[0].forward for each in (alone, beside))
    assert shown.hidden == 0
    assert less.exposed == pytest.approx(32 / 132 * shown.exposed)
    assert less.exposed + less.hidden == pytest.approx(shown.exposed)
    assert layout.group("ep").size == 4


def test_deepep_takes_what_its_kernels_were_measured_to_take() -> None:
    """Eight ranks of a node, and of Hopper of several; the fullest has twice the tokens of the mean."""
    shared = training(layout=ParallelLayout(dp=16, ep=8), batch=32, imbalance=2.0)
    of = {dispatcher: replace(shared, dispatcher=dispatcher) for dispatcher in ("deepep", "hybridep")}
    dispatch, combine = (
        next(piece for piece in of["deepep"].work.layer("E") if piece.name == name)
        for name in ("dispatch", "combine")
    )
    cost, group = of["deepep"].calibration, RankGroup(8, 1)
    ways = [
        [k.deepep for k in run if isinstance(k, Collective)] for run in (dispatch.forward, dispatch.backward)
    ]
    assert ways == [[DeepEp(way, 1024, 64, 2, 8, 0.5)] for way in ("dispatch", "combine")]
    assert [
        [k.deepep for k in run if isinstance(k, Collective)] for run in (combine.backward, combine.forward)
    ] == ways
    (sent,) = (kernel for kernel in dispatch.forward if isinstance(kernel, Collective))
    op = {"tokens": 1024, "hidden": 64, "topk": 2, "experts": 8, "sms": 20, "nodes": 1}
    builder = GraphBuilder("one")
    builder.op("sent", kind="moe_dispatch", dtype="bf16", attributes=op)
    (alone,) = costs_ns(builder.build(), make_device("h100-sxm", {"preset": "h100-sxm"})).tolist()
    whole, exposed = cost.exposed_ns(sent, group)
    assert whole == exposed == 2 * alone
    assert cost.exposed_ns(sent._replace(hidden_by=OTHER_MICRO_BATCH), group) == (whole, whole * 20 / 132)
    plain = sent._replace(deepep=None)
    for ranks in (RankGroup(4, 1), RankGroup(16, 1), RankGroup(8, 2)):  # which were not measured
        assert cost.exposed_ns(sent, ranks) == cost.exposed_ns(plain, ranks)
    assert cost.exposed_ns(sent, RankGroup(64, 8)) != cost.exposed_ns(plain, RankGroup(64, 8))
    assert dispatcher_notes(of["deepep"]) == []
    assert "no kernel of hybridep was measured on 8 ranks a node" in dispatcher_notes(of["hybridep"])[0]


def test_rows_of_experts_are_padded_as_their_products_want_them() -> None:
    rows = {}
    for dtype in ("bf16", "fp8", "mxfp8"):
        of = training(calibration=named_calibration("b200-sxm", dtype), imbalance=1.03)
        (up,) = (piece for piece in of.work.layer("E") if piece.name == "experts up")
        rows[dtype] = [kernel.m for kernel in up.forward if isinstance(kernel, Product)]
    assert rows == {"bf16": [264], "fp8": [272], "mxfp8": [288]}


def test_weights_are_quantized_once_a_step_and_at_each_gather() -> None:
    plain = replace(HYBRID, pattern="*-*-", experts=0, top_k=0)
    for dtype, each in (("bf16", 0.0), ("fp8", 0.0), ("mxfp8", 2 + 2 * 33 / 32), ("nvfp4", 2 * 9 / 16)):
        cost = named_calibration("b200-sxm", dtype)
        assert cost.weight_casts(320) == round(320 * each)
        assert replace(cost, gap_ns=1.0).weight_casts(320) == 0  # fitted rates
        for sharding, times in (("zero-1", 1), ("fsdp", 2)):
            layout = ParallelLayout(dp=2, sharding=sharding)
            of = training(plain, calibration=cost, layout=layout, batch=4)
            (stage,) = of.each_stage
            added = of.optimizer_ns(stage) - replace(of, calibration=_casting_nothing(cost)).optimizer_ns(
                stage
            )
            cast = times * cost.weight_casts(stage.parameters - 1000 * 256)
            assert added == pytest.approx(cost.pass_ns(cast) if cast else 0.0)


def _casting_nothing(cost: TrainingCalibration) -> TrainingCalibration:
    found = replace(cost)
    object.__setattr__(found, "weight_casts", lambda parameters: 0)
    return found


def test_recipes_of_fp8_differ_in_what_they_read_besides() -> None:
    """Current scaling reads for the largest, delayed does not; blocks are copied by columns."""
    of = {dtype: named_calibration("h100-sxm", dtype) for dtype in ("fp8", "fp8-delayed", "fp8-block")}
    product = Product(4096, 4096, 4096)
    numbers = 4096 * 4096
    assert {dtype: c.casts([product]) / numbers for dtype, c in of.items()} == {
        "fp8": 2.0,
        "fp8-delayed": 0.0,
        "fp8-block": 1 + 1 / 32,
    }
    assert of["fp8"].kernel_ns(product) == of["fp8-delayed"].kernel_ns(product)
    blocks, mx, tensor = (named_calibration("gb200", dtype) for dtype in ("fp8-block", "mxfp8", "fp8"))
    assert blocks.kernel_ns(product) == mx.kernel_ns(product) != tensor.kernel_ns(product)
    assert {c.peak for c in of.values()} == {1978.9e12}
    mixed = training(calibration=of["fp8-delayed"], dtypes={"mamba_in": "fp8-block"})
    whole = training(calibration=of["fp8-delayed"])
    assert mixed.each_stage[0].forward.quantizing > whole.each_stage[0].forward.quantizing == 0


@pytest.mark.parametrize(
    ("calibration", "dtype", "told"),
    [
        ("h100-sxm", "bf16", []),
        ("h100-sxm", "fp8", []),
        ("h100-sxm", "fp8-block", ["in fp8_block was measured on h100-sxm: they take what those in fp8 do"]),
        ("gb200", "nvfp4", []),
        ("gb200", "mxfp8", ["no product in mxfp8 was measured on gb200"]),
        ("gb200", "fp8-block", ["products in fp8-block run as mxfp8", "no product in mxfp8"]),
        ("gb300", "bf16", ["measured on gb300: they take what those in bf16 do on blackwell, by the data"]),
        ("mi300x", "fp8", ["in fp8 was measured on mi300x: they take what those in bf16 do"]),
        ("h100-sxm-mosaicml", "bf16", []),
        ("h100-sxm-mosaicml", "fp8-delayed", ["has fitted rates, and no time for quantizing"]),
    ],
)
def test_precisions_that_a_calibration_does_not_tell_apart_are_told(
    calibration: str, dtype: str, told: list[str]
) -> None:
    notes = precision_notes(training(calibration=named_calibration(calibration, dtype)))
    assert len(notes) == len(told)
    assert all(part in note for part, note in zip(told, notes, strict=True))


def test_messages_of_tensor_parallelism_pass_beside_blocks_of_products() -> None:
    """Four ranks: four blocks, three messages of a rank's part, and the sum of what came, or four splits."""
    layout, whole = ParallelLayout(tp=4), 1024 * 256 * 2
    work = RankWork(
        replace(HYBRID, layers=1, pattern="*"), layout, ReplicaBatch(1, 1024, tensor_overlap=True)
    )
    block = Product(256, 256, 64)
    into = work.column("up", 256, 64)
    assert into.forward[1:] == (Collective("send", whole // 4, "tp", block, copied=True), block) * 3 + (
        block,
    )
    assert into.backward == RankWork(work.model, layout, ReplicaBatch(1, 1024)).column("up", 256, 64).backward
    block = Product(256, 64, 256)
    out = work.row("down", 64, 256)
    part = Collective("reduce_scatter", whole // 4, "tp")  # by SMs; nothing hides the last one
    beside = (part._replace(hidden_by=block), block)
    assert out.forward[:8] == (block, *beside * 3, part)
    ring = replace(work.batch, kept=1.0)  # in 8 bits by copy engines, and the sum of what came
    out_8 = RankWork(work.model, layout, ring).row("down", 64, 256)
    sent = (Collective("send", whole // 4, "tp", block, copied=True), block) * 3 + (block,)
    assert out_8.forward[:8] == (*sent, Pass(5 * whole // 4))
    block = Product(256, 256, 64, "I")
    assert out.backward[:7] == (Collective("send", whole // 4, "tp", block, copied=True), block) * 3 + (
        block,
    )
    plain = training(Architecture(**MODELS["llama3-70b"] | {"layers": 2}), layout=layout, sequence=8192)
    blocks = replace(plain, tensor_overlap=True)  # of so little as above the latencies would show
    shown, hidden = (each.each_stage[0].forward for each in (plain, blocks))
    assert hidden.exposed < shown.exposed
    assert hidden.hidden > 0 == shown.hidden
    # copy engines take nothing from a product, NCCL's kernels some SMs
    send = Collective("send", 10**8, "tp", Product(8192, 8192, 8192), copied=True)
    group, cost = layout.group("tp"), plain.calibration
    assert cost.exposed_ns(send, group)[1] == 0
    sent_ns, shown_ns = cost.exposed_ns(send._replace(copied=False), group)
    assert shown_ns == pytest.approx(sent_ns * 32 / 132)


@pytest.mark.parametrize(("kept", "copies"), [(None, 1), (1.0, 1), (1.03125, 2), (0.5625, 2)])
def test_ranks_gather_what_is_quantized(kept: float | None, copies: int) -> None:
    """The gradient that has scales along rows is sent once more along columns; sums stay in 16 bits."""
    work = RankWork(HYBRID, ParallelLayout(tp=2), ReplicaBatch(1, 1024, kept=kept))
    wide, each = 1024 * 256 * 2, 1024 * 256 * (kept or 2)

    def sent(kernels: tuple[Kernel, ...]) -> list[float]:
        return [kernel.nbytes for kernel in kernels if isinstance(kernel, Collective)]

    column, row = work.column("up", 256, 128), work.row("down", 128, 256)
    assert (sent(column.forward), sent(column.backward)) == ([each], [each, wide])
    assert (sent(row.forward), sent(row.backward)) == ([wide], [copies * each])
    gathered = [kernel for piece in work.head() for kernel in piece.forward if isinstance(kernel, Collective)]
    assert gathered[0].nbytes == wide


def test_gpt_oss_clamps_and_adds_biases_by_themselves() -> None:
    """1,024 tokens, two copies each: 2,048 rows of 1,024 into the gate, of 64 out of the experts."""
    of = replace(HYBRID, gated=True, biases=True, clamped=True)
    plain = replace(of, biases=False, clamped=False)
    for dispatcher, there, back in (("all-to-all", 6, 8), ("deepep", 14, 20)):
        batch = ReplicaBatch(1, 1024, dispatcher=dispatcher)
        with_both, without = (
            {piece.name: piece for piece in RankWork(model, ParallelLayout(), batch).experts()}
            for model in (of, plain)
        )
        rows, gate, down = 2048, "experts gate", "experts down"
        assert with_both[gate].forward == (Pass(4 * rows * 1024 * 2), *without[gate].forward)
        assert with_both[gate].backward == (*without[gate].backward, Pass(5 * rows * 1024 * 2))
        assert with_both[gate].saved == 2 * without[gate].saved
        assert with_both[down].forward == (*without[down].forward, Pass(there * rows * 64 * 2))
        *before, of_weight = without[down].backward
        assert isinstance(of_weight, Product)
        of_both = of_weight._replace(bias=True)
        assert with_both[down].backward == (Pass(back * rows * 64 * 2), *before, of_both)
    rotated = [
        RankWork(replace(of, rotary=r), ParallelLayout(), batch).attention()[1] for r in (True, "yarn")
    ]
    once, scaled = (sum(k.nbytes for k in piece.forward if isinstance(k, Pass)) for piece in rotated)
    assert scaled - once == 10 * 1024 * (4 + 2) * 64 * 2


def test_a_product_that_finds_gradients_of_biases_too_takes_longer_in_16_bits_alone() -> None:
    plain, both = Product(2880, 8192, 2880, "W", 8), Product(2880, 8192, 2880, "W", 8, bias=True)
    of = named_calibration("b300-sxm", "bf16")
    assert of.kernel_ns(both) == pytest.approx(5 * of.kernel_ns(plain), rel=0.01)
    fitted = replace(of, attention_forward=0.5)
    assert fitted.kernel_ns(both) == fitted.kernel_ns(plain)
    for kept, has in ((None, True), (1.0, False)):
        work = RankWork(replace(HYBRID, biases=True), ParallelLayout(), ReplicaBatch(1, 1024, kept=kept))
        found = [k.bias for p in work.experts() for k in p.backward if isinstance(k, Product)]
        assert any(found) is has


def test_parameters_are_gathered_as_products_have_them() -> None:
    """Per tensor in 8 bits, of nvfp4 in 4 and its scales; words, MXFP8 and DeepSpeed's in 16."""
    llama = Architecture(**MODELS["llama3-8b"] | {"layers": 2})
    words = 128256 * 4096
    for dtype, width in (("bf16", 2), ("fp8", 1), ("fp8-delayed", 1), ("mxfp8", 2), ("nvfp4", 0.5625)):
        calibration = named_calibration("gb200", dtype)
        of = training(llama, layout=ParallelLayout(dp=4, sharding="zero-1"), calibration=calibration, batch=4)
        (stage,) = of.each_stage
        assert stage.words == 2 * words
        assert of.gathered_bytes(1600) == 1600 * width
        dense = of.gathered_bytes(stage.parameters, stage.words)
        assert dense == 4 * words + round((stage.parameters - 2 * words) * width)
        assert of.reduce_ns(stage)[1] == calibration.collective_ns("all_gather", dense, of.groups["shard"])
        three = replace(of, layout=ParallelLayout(dp=4, sharding="zero-3"))
        assert three.gathered_bytes(1600) == 3200


def test_norms_that_run_again_keep_nothing_of_what_they_wrote() -> None:
    """Before experts, and before latent attention; shared experts read what the norm wrote, too."""
    thin = 2 * 1024 * 256
    latent = {"q_rank": 64, "kv_rank": 32, "rotary_head": 16}
    for model, norms in (
        (replace(HYBRID, shared_middle=0), 1),
        (HYBRID, 1),  # shared experts keep it
        (replace(HYBRID, **latent, shared_middle=0), 2),
    ):
        kept, again = training(model), training(model, recompute=("layernorm",))
        one, other = (of.memory_of_stages[0].saved for of in (kept, again))
        assert one - other == norms * thin
        took = again.each_stage[0].backward.ns - kept.each_stage[0].backward.ns
        assert took == pytest.approx((1 + (norms == 2)) * kept.calibration.pass_ns(2 * thin))


def test_biases_of_experts_are_launched_too() -> None:
    slow = replace(named_calibration("h100-sxm", "bf16"), host=HostFields.model_validate({"experts": "1ms"}))
    waits = []
    for biases in (False, True):
        (stage,) = training(replace(HYBRID, biases=biases), calibration=slow, cuda_graph=()).each_stage
        waits.append(stage.forward.host + stage.backward.host)
    assert waits == pytest.approx([8e6, 8e6 * 21 / 13])


def test_what_no_graph_launches_the_host_does() -> None:
    """4 ms for each of four parts, and 1 ms for each of eight experts: those always show.

    Of routing experts, half are launches of what comes before an exchange.
    """
    slow = replace(
        named_calibration("h100-sxm", "bf16"),
        host=HostFields.model_validate({"issue_cost": "4ms", "experts": "1ms", "factor": 2.0}),
    )
    none = training(calibration=slow, cuda_graph=())
    routing = ("moe_router", "moe_preprocess")
    graphs = [FULL_ITERATION, ("attn", "mamba", "mlp", *routing), ("attn", "mlp"), ()]
    waits = []
    for graph in graphs:
        (stage,) = replace(none, cuda_graph=graph).each_stage
        waits.append(round(stage.forward.host + stage.backward.host))
    kernels = training(calibration=slow).each_stage[0]
    busy = round(kernels.forward.ns + kernels.backward.ns)
    assert waits == [0, 8_000_000, 16_000_000 - busy, 24_000_000 - busy]
    (stage,) = replace(none, cuda_graph=("attn", "moe_router")).each_stage
    assert round(stage.forward.host + stage.backward.host) == 18_000_000 - busy
    (stage,) = replace(none, expert_overlap=True).each_stage
    assert round(stage.forward.host + stage.backward.host) == 48_000_000 - busy
    assert step_ns(none) - step_ns(training(calibration=slow)) == 2 * waits[-1]


@pytest.mark.parametrize("sharding", ["fsdp", "zero-3"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_launches_show_in_steps_written_layer_by_layer(sharding: str, recompute: str) -> None:
    layout = ParallelLayout(dp=2, sharding=sharding)
    plain = replace(HYBRID, pattern="*-*-", experts=0, top_k=0)
    slow = replace(
        named_calibration("h100-sxm", "bf16"),
        host=HostFields.model_validate({"issue_cost": "4ms"}),
        hiding=1.0,
    )
    with_graphs = training(plain, calibration=slow, layout=layout, recompute=recompute, batch=2)
    eager = replace(with_graphs, cuda_graph=())
    (stage,) = eager.each_stage
    waits = stage.forward.host + stage.backward.host
    assert waits > 10e6
    assert step_ns(eager) - step_ns(with_graphs) == pytest.approx(waits, rel=0.02)  # messages hide there


def test_a_recipe_of_low_precision_quantizes_and_leaves_some_products_wide() -> None:
    model = Architecture(layers=2, hidden=256, heads=4, vocabulary=1000, biases=False)
    prices = named_calibration("b200-sxm", "mxfp8").alone
    assert prices is not None
    low, wide = Product(64, 256, 1024), Product(64, 256, 1024, dtype=WIDE)
    assert prices.casts([low, low._replace(part="W"), wide, Pass(100)]) == round(
        64 * 256 * LOW_PRECISION["mxfp8"].quantized
    )
    assert named_calibration("b200-sxm", "bf16").alone.casts([low]) == 0  # type: ignore[union-attr]
    assert prices.ns([low]) != prices.ns([wide])
    units = training(model, wide_layers=(1, 0)).each_stage[0].units
    kept = [
        {k.dtype for piece in unit.pieces for k in piece.forward if isinstance(k, Product)} for unit in units
    ]
    assert kept == [set(), {WIDE}, {""}, {WIDE}]  # embedding, layers, head


def test_modules_have_types_of_their_own() -> None:
    """NVIDIA's NVFP4 recipe of Nemotron 3 Super; what is kept for the backward is as wide."""
    own = {"qkv": "bf16", "mamba_out": "mxfp8", "predicted": "bf16"}
    model = replace(HYBRID, predicted=1)
    plain = training(model, calibration=named_calibration("b200-sxm", "nvfp4"))
    mixed = replace(plain, dtypes=own)
    pieces = {piece.name: piece for unit in mixed.each_stage[0].units for piece in unit.pieces}
    found = {
        name: {k.dtype for k in (*piece.forward, *piece.backward) if isinstance(k, Product)}
        for name, piece in pieces.items()
    }
    assert (found["mamba in"], found["mamba out"], found["router"]) == ({""}, {"mxfp8"}, {WIDE})
    assert found["predicting"] == {"bf16"}
    first = {piece.name: piece for unit in mixed.each_stage[0].units[:5] for piece in unit.pieces}
    assert {k.dtype for k in first["qkv"].forward if isinstance(k, Product)} == {"bf16"}
    was = {piece.name: piece for unit in plain.each_stage[0].units for piece in unit.pieces}
    out = pieces["mamba out"].saved - was["mamba out"].saved
    assert out == round(1024 * HYBRID.mamba_inner * (1 + 1 / 32)) - round(1024 * HYBRID.mamba_inner * 0.5625)
    low, other = (named_calibration("b200-sxm", dtype).alone for dtype in ("nvfp4", "mxfp8"))
    assert low is not None
    assert other is not None
    product = Product(64, 256, 1024)
    assert low.ns([product._replace(dtype="mxfp8")]) == other.ns([product])


@pytest.mark.parametrize(
    ("dtype", "said"),
    [
        ("{all: fp16, qkv: bf16}", "dtype.qkv: has no effect: all products are in fp16"),
        ("{all: fp8, qkv: fp8}", "dtype.qkv: has no effect: all products are in fp8"),
        ("{all: fp8, mlp: nvfp4}", "dtype.mlp: h100-sxm: peak (of nvfp4) is missing"),
        ("{all: fp8, latent: bf16}", "dtype.latent: has no effect: the model has no such module"),
        ("{all: fp8, mlp: fp16}", None),
    ],
)
def test_types_of_modules_that_change_nothing_or_that_a_gpu_has_not_are_refused(
    tmp_path: Path, dtype: str, said: str | None
) -> None:
    sizes = "model: llama3-8b, calibration: h100-sxm, parallel: {dp: 8}, sequence: 1024, batch: 8"
    (tmp_path / "s.yaml").write_text(f"workload: {{train: {{{sizes}, dtype: {dtype}}}}}")
    done = sim("run", str(tmp_path / "s.yaml"), "--force")
    assert (done.exit_code == 2) == (said is not None), done.output
    assert said is None or said in done.stderr


def test_a_scan_takes_longer_a_flop_than_the_measured_delta_rule() -> None:
    prices = named_calibration("h100-sxm", "bf16").alone
    assert prices is not None
    whole = Scan(4, 8192, 64, 4 * 8192 * 64 * 8 * 128 * 128)
    half = whole._replace(flops=whole.flops // 2)
    assert prices.ns([half]) == [prices.ns([whole])[0] / 2]
    assert 50e12 < 1.4 * whole.flops / prices.ns([whole])[0] * 1e9 < 110e12  # measured; the peak is 989e12


def test_the_backward_keeps_what_was_quantized() -> None:
    """Of a plain layer that are the inputs of its four products, of which the norms' inputs stay beside."""
    model = Architecture(layers=1, hidden=256, heads=4, vocabulary=1000, biases=False)
    saved = {}
    for dtype in ("bf16", "fp8", "nvfp4"):
        of = training(model, calibration=named_calibration("b200-sxm", dtype))
        saved[dtype] = sum(piece.saved for piece in of.each_stage[0].units[1].pieces)
    numbers = 1024 * (256 + 256 + 1024)  # of qkv, up and down; attention keeps what proj reads
    assert saved["bf16"] - saved["fp8"] == numbers
    assert saved["bf16"] - saved["nvfp4"] == numbers * (2 - 0.5625)
    wide = training(model, calibration=named_calibration("b200-sxm", "fp8"), wide_layers=(1, 0))
    assert sum(piece.saved for piece in wide.each_stage[0].units[1].pieces) == saved["bf16"]


def test_modules_that_are_recomputed_run_again_and_keep_less() -> None:
    """Where products of compressed inputs run again, no query, key or value is kept."""
    latent = {"q_rank": 128, "kv_rank": 64, "head": 64, "rotary_head": 32, "value_head": 64}
    experts = {"experts": 8, "top_k": 2, "expert_middle": 512, "shared_middle": 512}
    model = Architecture(layers=1, hidden=256, heads=4, vocabulary=1000, biases=False, **latent, **experts)
    plain = training(model)
    queries, keys, values = (1024 * 4 * width * 2 for width in (96, 96, 64))
    rows = 2 * 1024
    saves = {
        ("core_attn",): 4 * 1024 * 4,
        ("mla_up_proj",): queries + keys + values,
        ("moe_act",): rows * 512 * 2,
        ("moe",): rows * (256 + 512 + 512) * 2,
        ("mlp",): 0,
    }
    for modules, less in saves.items():
        of = training(model, recompute=modules)
        (before,), (after,) = plain.memory_of_stages, of.memory_of_stages
        assert before.saved - after.saved == less
        longer = of.each_stage[0].input_grad.ns - plain.each_stage[0].input_grad.ns
        assert (longer > 0) == (less > 0)
    whole, more = (training(model, recompute=how) for how in (("moe",), ("moe", "moe_act")))
    assert more.memory_of_stages == whole.memory_of_stages  # which has the activation in it
    selective, named = (training(model, recompute=how) for how in ("selective", ("core_attn",)))
    assert step_ns(selective) == step_ns(named)
    assert selective.memory_of_stages == named.memory_of_stages


SCENARIO = """\
workload:
  train:
    model: {model}
    calibration: gb200
    sequence: 4096
    batch: 64
    {more}
"""


@pytest.mark.parametrize(
    ("model", "more", "said"),
    [
        ("{name: nemotron-3-nano, layers: ME?}", "", "layers: '?' is no layer; a layer is one of '*'"),
        ("{name: llama3-8b, layers: M-}", "", "'M' in layers: give mamba.heads"),
        ("{name: llama3-8b, layers: ['*-', C-]}", "", "'C' in layers: give the name of a model that has it"),
        ("{name: nemotron-3-nano, layers: 60}", "", "layers: there are 60, and letters of 52"),
        ("{name: qwen3-30b-a3b, layers: ['*-', '*E']}", "", None),
        ("deepseek-v4-flash", "parallel: {tp: 2, ep: 8, dp: 8}", "tp: attention with pooled keys is whole"),
        ("deepseek-v4-flash", "attention: eager", "attention with pooled keys is one kernel"),
        ("llama3-8b", "dispatcher: deepep", "has no effect: the model has no experts"),
        (
            "{name: llama3-8b, heads: 24, kv_heads: 6, head: 128}",
            "parallel: {cp: 4}",
            "cp: 4 ranks cannot share 6 heads of keys and values",
        ),
        ("{name: llama3-8b, kv_heads: 2}", "parallel: {tp: 8}", None),
        ("llama3-8b", "recompute: [moe_act]", "recompute: has no effect: the model has no moe_act"),
        ("llama3-8b", "recompute: [layernorm]", "has no layernorm of its own: products have their norms"),
        ("llama3-8b", "overlap: [ep]", "has no effect: the model has no experts"),
        ("qwen3-30b-a3b", "wide_layers: [1, 1]", "has no effect: all products are in bf16"),
        (
            "qwen3-30b-a3b",
            "dtype: mxfp8\n    wide_layers: [20, 28]",
            "leave some of the model's 48 layers in",
        ),
        ("qwen3-30b-a3b", "imbalance: 0.9", "imbalance: should be greater than or equal to 1"),
        ("qwen3-30b-a3b", "cuda_graph: [atn]", "cuda_graph"),
        ("qwen3-30b-a3b", "cuda_graph: [mamba]", "cuda_graph: has no effect: the model has no mamba"),
        ("qwen3-30b-a3b", "cuda_graph: [moe_preprocess]", "moe_preprocess needs moe_router"),
        ("qwen3-30b-a3b", "overlap: [dp, pp]", "overlap.1: should be 'dp', 'tp' or 'ep', not 'pp'"),
        ("nemotron-3-nano", "cuda_graph: none", None),
    ],
)
def test_scenarios_say_what_is_wrong(tmp_path: Path, model: str, more: str, said: str | None) -> None:
    layout = "" if "parallel" in more else "parallel: {ep: 8, dp: 8}\n    "
    (tmp_path / "s.yaml").write_text(SCENARIO.format(model=model, more=layout + more))
    shown = sim("run", str(tmp_path / "s.yaml"))
    if said is None:
        assert shown.exit_code == 0, shown.output
    else:
        assert shown.exit_code == 2
        assert said in " ".join(shown.output.split())


def test_what_concerns_an_exchange_that_is_none_is_told(tmp_path: Path) -> None:
    more = "memory: 1TB\n    dispatcher: hybridep\n    overlap: [ep]\n    parallel: {ep: %d, dp: 8}"
    for ep, told in ((8, []), (1, ["dispatcher", "overlap: ep"])):
        (tmp_path / "s.yaml").write_text(SCENARIO.format(model="qwen3-30b-a3b", more=more % ep))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            run_scenario(load_scenario(tmp_path / "s.yaml"))
        assert [str(w.message).partition(" has no effect: with parallel.ep: 1")[0] for w in caught] == told


def test_a_run_says_when_launches_would_bind_it(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO.format(model="qwen3-30b-a3b", more="parallel: {ep: 8, dp: 8}"))
    shown = " ".join(sim("run", str(tmp_path / "s.yaml")).output.split())
    assert (
        "launches take no time (cuda_graph: full-iteration); with cuda_graph: none a micro-batch takes"
        in shown
    )
