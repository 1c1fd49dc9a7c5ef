"""DeepSeek-V4: attention over pooled keys that an indexer chooses, and residual streams that are mixed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scenarios.builders.train.architecture import MODELS, Architecture
from scenarios.builders.train.kernels import Attention, Kernel, LayerPiece, Pass, Product
from scenarios.builders.train.layers import RankWork
from scenarios.builders.train.layout import ParallelLayout, ReplicaBatch
from scenarios.builders.train.training import Training
from scenarios.workloads.calibrations import named_calibration

SMALL = Architecture(
    layers=3,
    hidden=256,
    heads=8,
    kv_heads=1,
    head=64,
    vocabulary=1000,
    biases=False,
    tied=False,
    gated=True,
    pattern=["wE", "CE", "HE"],
    window=32,
    q_rank=128,
    rotary_head=16,
    o_rank=32,
    o_groups=4,
    index_heads=4,
    index_head=32,
    index_top_k=64,
    streams=4,
    experts=8,
    top_k=2,
    expert_middle=128,
)
TOKENS = 512


def pieces(part: str, model: Architecture = SMALL, **batch: object) -> dict[str, LayerPiece]:
    work = RankWork(model, ParallelLayout(), ReplicaBatch(1, TOKENS, **batch))  # type: ignore[arg-type]
    return {piece.name: piece for piece in work.layer(part)}


def products(kernels: tuple[Kernel, ...]) -> list[tuple[int, ...]]:
    return [(k.m, k.k, k.n, k.groups) for k in kernels if isinstance(k, Product)]


def test_each_part_by_hand() -> None:
    """A window sees 32 tokens; C 64 keys of 128 pooled ones beside it; H four keys of 128 tokens each."""
    for part, keys in (("w", 32), ("C", 32 + 64), ("H", 32 + 4)):
        (run,) = pieces(part)["attention"].forward
        assert run == Attention(1, TOKENS, 8, 1, 64, 64, window=keys)
        assert SMALL.reach(part, TOKENS) == keys
    sparse = pieces("C")
    # keys and gates of overlapping windows; a score of each of 128 keys, of which half are masked
    assert products(sparse["pool"].forward) == [(TOKENS, 256, 4 * 64, 1)]
    assert products(sparse["index pool"].forward) == [(TOKENS, 256, 4 * 32, 1)]
    assert products(sparse["index"].forward) == [(TOKENS * 4, 32, 64, 1)]
    # the loss of the indexer: attention's scores of the keys chosen, its own, and two gradients
    assert products(sparse["index"].backward) == [
        (TOKENS * 8, 64, 64, 1),
        (TOKENS * 4, 32, 64, 1),
        (TOKENS * 4, 64, 32, 1),
        (TOKENS * 4, 32, 64, 1),
    ]
    assert products(pieces("H")["pool"].forward) == [(TOKENS, 256, 2 * 64, 1)]
    assert products(sparse["o group"].forward) == [(TOKENS, 8 * 64 // 4, 32, 4)]
    assert products(sparse["proj"].forward) == [(TOKENS, 4 * 32, 256, 1)]
    assert "pool" not in pieces("w")
    assert "index" not in pieces("H")


def test_short_and_packed_sequences_pool_within_themselves() -> None:
    packed = pieces("C", packed=(100, 100, 312))
    runs = [(k.batch, k.sequence, k.window) for k in packed["attention"].forward if isinstance(k, Attention)]
    assert runs == [(2, 100, 32 + 25), (1, 312, 32 + 64)]
    assert products(packed["index"].forward) == [(100 * 4, 32, 13, 2), (312 * 4, 32, 39, 1)]
    assert products(pieces("C", packed=(3,) * 170 + (2,))["index"].forward) == []


def test_streams_are_mixed_around_each_part() -> None:
    """Four streams of 256: a product finds 24 numbers a token; what is read and written counts once."""
    mixed = pieces("w")
    thin = 2 * TOKENS * 256
    assert products(mixed["mix 1"].forward) == [(TOKENS, 1024, 24, 1)]
    assert [k for k in mixed["mix 1"].forward if isinstance(k, Pass)] == [Pass(5 * thin)]
    assert mixed["mix out"].forward == (Pass(6 * thin),)  # reads four and one, writes four; proj has added
    assert (mixed["mix 1"].saved, mixed["mix out"].saved) == (4 * thin, thin)
    assert "mix 1" not in pieces("w", replace(SMALL, streams=1))
    of = training()
    assert of.work.carried == 4 * thin


def training(model: Architecture = SMALL, **changes: object) -> Training:
    calibration = named_calibration("gb200", "bf16")
    return Training(model, ParallelLayout(), calibration, TOKENS, 1, 2, **changes)  # type: ignore[arg-type]


def test_a_rank_holds_what_the_model_has() -> None:
    (stage,) = training().each_stage
    assert stage.parameters == SMALL.parameters
    mix, norms = 1024 * 24 + 24 + 3, 2 * 256 + 128 + 64 + 8  # two norms, of queries and keys, a sink a head
    attention = 256 * 128 + 128 * 512 + 256 * 64 + 512 * 32 + 128 * 256
    router = 256 * 8
    assert SMALL.layer_parameters(0)[0] == attention + router + 2 * mix + norms
    pooled = 256 * 128 + 64 + 128 * 64  # the product, a norm, where each of 128 tokens is
    assert SMALL.layer_parameters(2)[0] == SMALL.layer_parameters(0)[0] + pooled


def test_mixing_that_runs_again_keeps_no_streams() -> None:
    kept, again = training(), training(recompute=("mhc",))
    stages = [of.memory_of_stages[0].saved for of in (kept, again)]
    parts = 6  # an attention and experts in each of three layers
    assert stages[0] - stages[1] == parts * 4 * 2 * TOKENS * 256
    assert kept.each_stage[0].backward.ns < again.each_stage[0].backward.ns


@pytest.mark.parametrize(("keys", "measured_us"), [(512, 1233), (1024, 2155)])
def test_attention_takes_what_was_measured(keys: int, measured_us: float) -> None:
    """The backward of 64 heads, 4,096 tokens on a B200 (NVIDIA/cudnn-frontend, pull request 318)."""
    prices = named_calibration("b200-sxm", "bf16").alone
    assert prices is not None
    (ns,) = prices.ns([Attention(1, 4096, 64, 1, 512, 512, backward=True, window=keys)])
    assert ns / 1e3 == pytest.approx(measured_us, rel=0.04)


def test_flash_counts_thirteen_billion_active_parameters() -> None:
    """DeepSeek-AI's model card: 13 billion active of 284; MFU counts them and attention's reach."""
    model = Architecture(**MODELS["deepseek-v4-flash"])
    used = sum(model.used_parameters(i) for i in range(43)) + model.vocabulary * model.hidden
    assert used / 1e9 == pytest.approx(13.3, abs=0.05)
    scores = {
        "wE": 128,
        "CE": 128 + 512 + 8192 / 2 / 64 / 512 * 1024,  # 1,024 keys ranked by 64 heads of 128
        "HE": 128 + 32,
    }
    for layer, kind in ((0, "wE"), (2, "CE"), (3, "HE")):
        of_a_token = model.layer_flops(1, 4096, layer) / 4096 - 2 * model.used_parameters(layer)
        assert of_a_token == pytest.approx(2 * 64 * 1024 * scores[kind])
