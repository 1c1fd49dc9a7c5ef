"""Recomputation op by op, and losses, as torchtitan has them."""

from __future__ import annotations

import pytest

from scenarios.builders.train.architecture import MODELS, Architecture
from scenarios.builders.train.calibration import at_rate
from scenarios.builders.train.kernels import Attention, Collective, Pass, Product
from scenarios.builders.train.layout import ParallelLayout
from scenarios.builders.train.step import step_trace
from scenarios.builders.train.training import Training
from scenarios.workloads.train_report import peaks_of

LLAMA = Architecture(**MODELS["llama3-8b"])


def titan(layout: ParallelLayout, sequence: int, micro_batch: int = 1, **changes: object) -> Training:
    """Return a step of Llama 3 8B on GPUs whose times do not matter, with one micro-batch a replica."""
    batch = layout.dp * micro_batch
    sizes = {"recompute": "selective-op", "loss": "eager", "transformer_engine": False, **changes}
    return Training(LLAMA, layout, at_rate(10**15), sequence, micro_batch, batch, **sizes)  # type: ignore[arg-type]


def test_a_layer_keeps_attention_and_every_second_product() -> None:
    """Of q, k, v, proj, w1, w3, w2 the odd ones; and its input, attention's output and its log-sum."""
    tokens, hidden, kv, middle = 8192, 4096, 1024, 14336
    unit = titan(ParallelLayout(dp=8, sharding="fsdp"), tokens).each_stage[0].units[1]
    assert unit.boundary == tokens * (2 * (hidden + (hidden + kv) + hidden + middle + hidden) + 4 * 32)
    unfused = titan(ParallelLayout(dp=8, sharding="fsdp"), tokens, attention="eager").each_stage[0].units[1]
    assert unfused.boundary == unit.boundary - tokens * (2 * hidden + 4 * 32)  # it runs again as a whole
    again = [kernel for piece in unit.pieces for kernel in piece.again]
    assert [(k.k, k.n) for k in again if isinstance(k, Product)] == [
        (hidden, kv),
        (hidden, hidden),
        (hidden, middle),
    ]
    assert {type(k) for k in again} == {Product, Pass}
    assert sum(isinstance(k, Pass) for k in again) == sum(
        isinstance(k, Pass) for piece in unit.pieces for k in piece.forward
    )


def test_what_runs_again_lengthens_the_backward_and_nothing_else() -> None:
    layout = ParallelLayout(dp=8, sharding="fsdp")
    unit, plain = (
        of.timed_part(of.each_stage[0].units[1])
        for of in (titan(layout, 8192), titan(layout, 8192, recompute="none"))
    )
    again = 2 * 8192 * 4096 * (1024 + 4096 + 14336) / 1e6  # at 10^15 flop a second
    assert unit.input_grad.products - plain.input_grad.products == pytest.approx(again, rel=1e-6)
    assert (unit.forward, unit.weight_grad) == (plain.forward, plain.weight_grad)


def test_sums_over_ranks_and_exchanges_do_not_run_again() -> None:
    layout = ParallelLayout(tp=4, dp=2)
    (stage,) = titan(layout, 8192, recompute="selective-op").each_stage
    pieces = stage.units[1].pieces
    again = [k.kind for piece in pieces for k in piece.again if isinstance(k, Collective)]
    assert again == ["all_gather", "all_gather"]
    assert not any(isinstance(k, Attention) for piece in pieces for k in piece.again)
    # q, v, w1 on a quarter of their columns, w2 on all; the input and two sums on a quarter of the tokens
    kept = 8192 * (2 * (4096 + 4096 + 1024 + 14336) // 4 + 2 * 4096 + 3 * 2 * 4096 // 4 + 4 * 32 // 4)
    assert stage.units[1].boundary == kept


@pytest.mark.parametrize(
    ("layout", "sequence", "micro_batch", "changes", "reserved"),
    [
        ({"dp": 8}, 8192, 2, {}, 77.0),
        ({"dp": 128}, 8192, 2, {}, 62.0),
        ({"dp": 8}, 32768, 1, {"recompute": "full"}, 83.9),
        ({"dp": 2, "cp": 4}, 131072, 1, {"recompute": "full", "context": "ring"}, 84.0),
        ({"dp": 32}, 8192, 2, {"loss": "compiled"}, 47.96),
        ({"dp": 64}, 8192, 2, {"loss": "compiled"}, 46.97),
    ],
)
def test_memory_that_torchtitan_prints(
    layout: dict[str, int], sequence: int, micro_batch: int, changes: dict[str, str], reserved: float
) -> None:
    """benchmarks/llama3_h100_202412 and llama3-8b_h200_202506: what PyTorch's allocator reserves, in GiB.

    That is more than is in use: logits in 16 bits leave a block that nothing else of the loss fits into.
    """
    of = titan(ParallelLayout(**layout, sharding="fsdp"), sequence, micro_batch, **changes)  # type: ignore[arg-type]
    (peak,) = peaks_of(of, step_trace(of))
    assert 0.87 * reserved < peak["peak_bytes"] / 2**30 < reserved


def test_what_a_forward_keeps_is_part_of_what_it_needs() -> None:
    """Layers of many tokens keep more than any of their pieces has while it runs."""
    for layout in (ParallelLayout(tp=8, dp=2, sharding="fsdp"), ParallelLayout(tp=2, pp=4)):
        for stage in titan(layout, 8192).memory_of_stages:
            assert stage.forward >= stage.saved
            assert stage.backward >= stage.saved
