"""Fine-tuning: adapters beside frozen weights, and samples packed of several sequences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim

from devices.collectives.groups import Fabric, NodeFabrics
from scenarios.builders.train.architecture import Architecture
from scenarios.builders.train.calibration import TrainingCalibration
from scenarios.builders.train.kernels import WIDE, Attention, Collective, Product
from scenarios.builders.train.layout import ParallelLayout
from scenarios.builders.train.step import step_ns, step_trace
from scenarios.builders.train.training import Training
from scenarios.workloads.train_report import peaks_of
from sim.base.errors import MisfitError

FREE = Fabric(1e30)
PLAIN = TrainingCalibration("plain", peak=1e12, memory_bandwidth=1e30, collectives=NodeFabrics(FREE, FREE))
GPT = Architecture(layers=2, hidden=256, heads=4, vocabulary=1000, tied=False, biases=False)
QKV = {"qkv": 8}


def training(**changes: Any) -> Training:
    """Return two layers on one GPU whose products alone take time."""
    layout = changes.pop("layout", ParallelLayout())
    return Training(GPT, layout, PLAIN, 1024, 1, 2, **changes)


def kernels(of: Training, part: str) -> Iterator[Product]:
    """Yield the products of a part that a micro-batch runs, forward and backward."""
    for unit in of.each_stage[0].units:
        for piece in unit.pieces:
            for kernel in (*piece.forward, *piece.backward):
                if isinstance(kernel, Product) and kernel.part == part:
                    yield kernel


def test_only_adapters_have_gradients_and_optimizer_state() -> None:
    """A layer: 256 x 8 and 8 x 768 beside 256 x 768; no product of a frozen weight's gradient is left."""
    plain, lora = training(), training(lora=QKV)
    adapters = 2 * (256 * 8 + 8 * 768)
    assert lora.adapter_parameters == adapters
    assert {(k.m, k.n) for k in kernels(lora, "W")} == {(8, 256), (768, 8)}
    assert {k.dtype for k in kernels(lora, "W")} == {WIDE}
    (before,), (after,) = plain.each_stage, lora.each_stage
    assert after.parameters == before.parameters + adapters == GPT.parameters + adapters
    held = lora.resident(after)
    assert held == {
        "parameters": 2 * (GPT.parameters + adapters),
        "gradients": 4 * adapters,
        "optimizer state": 12 * adapters,
    }
    sharded = replace(lora, layout=ParallelLayout(dp=2, sharding="zero-1"))
    assert sharded.resident(sharded.each_stage[0])["optimizer state"] == 12 * adapters // 2


def test_the_work_is_forward_gradients_of_inputs_and_adapters() -> None:
    """Products take two of three parts of what they do in full training; attention is as it was."""
    plain, lora = training(), training(lora=QKV)
    tokens, weights = 2 * 1024, 2 * 12 * 256**2 + 1000 * 256
    adapters = 2 * (256 * 8 + 8 * 768)
    assert plain.flops - lora.flops == 2 * tokens * weights - 6 * tokens * adapters
    ran = [sum(k.flops for part in "FIW" for k in kernels(of, part)) * 2 for of in (plain, lora)]
    assert ran[0] - ran[1] == plain.flops - lora.flops
    saved = plain.each_stage[0].backward.products - lora.each_stage[0].backward.products
    backward = 2 * 1024 * (weights - 2 * adapters)  # of an adapter: its own gradient and its input's
    assert saved == pytest.approx(backward / 1e12 * 1e9, rel=1e-9)
    assert step_ns(lora) < 0.85 * step_ns(plain)


def test_what_only_gradients_of_weights_read_is_not_kept() -> None:
    """Of a layer: what both norms wrote, and the middle; the adapter keeps what the first norm wrote."""
    plain, lora = (of.each_stage[0].units[1] for of in (training(), training(lora=QKV)))
    kept = [sum(piece.saved for piece in unit.pieces) for unit in (plain, lora)]
    token = 2 * (256 + 256 + 1024) - 2 * 256 - 2 * 8
    assert kept[0] - kept[1] == 1024 * token
    full, frozen = (
        max(peaks_of(of, step_trace(of)), key=lambda p: p["peak_bytes"])
        for of in (training(), training(lora=QKV))
    )
    assert frozen["memory_bytes"]["activations"] < full["memory_bytes"]["activations"]


@pytest.mark.parametrize(
    ("module", "names", "sizes", "sent"),
    [
        # qkv has 384 of its 768 columns; the first product shares its 8, and gathers them
        ("qkv", {"qkv"}, (256 * 4, 8 * 384), {"all_gather"}),
        # proj has 128 of its 256 rows; what is between is summed, and columns go for tokens
        ("proj", {"proj"}, (128 * 8, 8 * 128), {"all_reduce", "all_to_all"}),
    ],
)
def test_adapters_share_what_their_product_shares(
    module: str, names: set[str], sizes: tuple[int, int], sent: set[str]
) -> None:
    layout = ParallelLayout(tp=2)
    lora = training(layout=layout, lora={module: 8})
    pieces = [piece for piece in lora.each_stage[0].units[1].pieces if piece.adapts]
    assert {piece.name for piece in pieces} == {f"{name} adapter" for name in names}
    assert tuple(k.k * k.n for k in pieces[0].forward if isinstance(k, Product)) == sizes
    assert {k.kind for k in pieces[0].forward if isinstance(k, Collective)} == sent
    assert lora.adapter_parameters == 2 * 2 * sum(sizes)
    frozen = next(p for p in lora.each_stage[0].units[1].pieces if p.name == "qkv")
    scattered = [k for k in frozen.backward if isinstance(k, Collective)]
    assert [(k.kind, k.hidden_by) for k in scattered] == [("reduce_scatter", None)]  # nothing to gather for


@pytest.mark.parametrize("packed", [(1024,), (512, 512), (256, 256, 512), (1, 1023)])
def test_packed_sequences_attend_within_themselves(packed: tuple[int, ...]) -> None:
    whole, parts = training(), training(packed=packed)
    run = [
        [k for p in of.each_stage[0].units[1].pieces for k in p.forward if isinstance(k, Attention)]
        for of in (whole, parts)
    ]
    scores = sum(n**2 for n in packed)
    assert sum(k.flops for k in run[1]) * 1024**2 == run[0][0].flops * scores
    assert len(run[1]) == len(set(packed))
    # 2 layers, 2 samples, 4 heads, width 64: queries with keys, and with values, forward and twice backward
    assert whole.flops - parts.flops == 3 * 2 * 2 * 4 * 2 * 2 * 64 * (1024**2 - scores)
    assert step_ns(parts) <= step_ns(whole)
    written = [replace(of, attention="eager").each_stage[0].units[1].pieces for of in (whole, parts)]
    saved = [sum(piece.saved for piece in pieces) for pieces in written]
    assert saved[0] - saved[1] == 4 * (2 + 2) * (1024**2 - scores)  # scores, and their softmax


def test_what_does_not_go_together_is_refused() -> None:
    for changes, said in (
        ({"packed": (512, 256)}, "packed: 2 sequences have 768 tokens, and a sample has 1024"),
        ({"lora": QKV, "layout": ParallelLayout(dp=2, sharding="fsdp")}, "lora: frozen weights"),
    ):
        with pytest.raises(MisfitError, match=said):
            training(**changes)
    ring = training(packed=(512, 512), layout=ParallelLayout(cp=2), context="ring")
    with pytest.raises(MisfitError, match="sequences are not known to go round a ring"):
        ring.each_stage  # noqa: B018


SCENARIO = """\
workload:
  train:
    model: llama3-8b
    calibration: h100-sxm
    parallel: {{tp: 2, dp: 4}}
    sequence: [1024, 1024, 2048]
    batch: 8
    lora: {lora}
expect:
  mfu: {{at_least: 20%}}
  step_memory: {{at_most: 30GiB}}
"""


def test_a_scenario_says_it_and_the_report_tells_what_is_trained(tmp_path: Path) -> None:
    path = tmp_path / "lora.yaml"
    path.write_text(SCENARIO.format(lora="{qkv: 16, mlp: 8}"))
    assert sim("check", str(path)).exit_code == 0
    said = json.loads(sim("run", str(path), "--json").stdout)["train"]
    qkv, up, down = 16 * (4096 + 6144), 8 * (4096 + 2 * 14336), 8 * (14336 + 4096)
    assert said["trained_parameters"] == 32 * (qkv + up + down)
    assert "beside 18.35 million of adapters, which are trained" in sim("run", str(path)).stdout
    path.write_text(SCENARIO.format(lora="{mamba_in: 16}"))
    done = sim("run", str(path))
    assert done.exit_code == 2
    assert "lora.mamba_in" in done.stderr
    assert "no such module" in done.stderr
