"""Experts in the training predictor: the routing of `expert-parallel`, and what its fullest rank does."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim

from devices.collectives.groups import Fabric, NodeFabrics
from policies.parallel.expert_routing import route_tokens
from scenarios.builders.train.architecture import Architecture
from scenarios.builders.train.calibration import TrainingCalibration
from scenarios.builders.train.kernels import Collective, Product
from scenarios.builders.train.layout import ParallelLayout
from scenarios.builders.train.training import Training
from sim.base.errors import InputError

MOE = Architecture(layers=2, hidden=256, heads=4, vocabulary=1000, experts=8, top_k=2, expert_middle=512)
FREE = Fabric(1e30)
WIRES = Fabric(1e9)
PLAIN = TrainingCalibration("plain", peak=1e12, memory_bandwidth=1e30, collectives=NodeFabrics(WIRES, WIRES))


def training(ep: int = 4, **changes: object) -> Training:
    """Return a training of 512 tokens a rank, which choose two of eight experts each."""
    sizes = {"sequence": 512, "micro_batch": 1, "batch": 4, **changes}
    return Training(MOE, ParallelLayout(ep=ep, dp=4), PLAIN, **sizes)  # type: ignore[arg-type]


def kernels(of: Training) -> tuple[list[Product], list[Collective]]:
    """Return the grouped products and exchanges of a forward."""
    every = [kernel for piece in of.work.experts() for kernel in piece.forward]
    products = [kernel for kernel in every if isinstance(kernel, Product) and kernel.groups > 1]
    return products, [kernel for kernel in every if isinstance(kernel, Collective)]


def test_balanced_is_as_without_routing() -> None:
    assert kernels(training(routes=partial(route_tokens, "balanced"))) == kernels(training())


def test_the_fullest_rank_by_hand() -> None:
    """One-hot: of four ranks the first has all 2 x 4 x 512 tokens, four times the mean of 1,024.

    Three ranks send it 1,024 tokens each: as an even exchange in which each sends 4,096 and keeps a quarter.
    """
    products, exchanges = kernels(training(routes=partial(route_tokens, "one-hot")))
    assert [(p.m, p.groups) for p in products] == [(2048, 2)] * 2
    assert {(c.kind, c.nbytes) for c in exchanges} == {("all_to_all", 4096 * 256 * 2)}
    assert training(routes=partial(route_tokens, "one-hot")).work.load.imbalance == 4.0


def test_a_factor_says_the_same_as_a_routing() -> None:
    one, other = training(routes=partial(route_tokens, "one-hot")), training(imbalance=4.0)
    assert kernels(one) == kernels(other)
    assert [stage.forward for stage in one.each_stage] == [stage.forward for stage in other.each_stage]


def test_capacity_limits_the_fullest_rank_and_padding_fills_all() -> None:
    """An expert takes 1.25 times 128 of each rank's tokens: 160 x 4 ranks; two of eight are asked for."""
    load = training(routes=partial(route_tokens, "one-hot", capacity_factor=1.25)).work.load
    assert (load.rows, load.copies, load.dropped) == (640, 320, 704 / 1024)
    padded = training(routes=partial(route_tokens, "one-hot", capacity_factor=1.25, pad=True)).work.load
    assert (padded.rows, padded.copies, padded.imbalance, padded.dropped) == (640, 1280, 1.0, 704 / 1024)


def test_both_or_neither_are_refused() -> None:
    with pytest.raises(InputError, match="imbalance: has no effect beside routing"):
        _ = training(routes=partial(route_tokens, "one-hot"), imbalance=2.0).work.load
    dense = Architecture(layers=2, hidden=256, heads=4, vocabulary=1000)
    for changes, key in (
        ({"imbalance": 2.0}, "imbalance"),
        ({"routes": partial(route_tokens, "balanced")}, "routing"),
    ):
        more: dict[str, Any] = {"sequence": 512, "micro_batch": 1, "batch": 4, **changes}
        with pytest.raises(InputError, match=f"{key}: has no effect: the model has no experts"):
            _ = Training(dense, ParallelLayout(dp=4), PLAIN, **more).work


SCENARIO = """
workload:
  train:
    model: {name: mixtral-8x7b, layers: 2}
    calibration: h100-sxm
    parallel: {ep: 8, dp: 8}
    sequence: 1024
    batch: 8
    routing: one-hot
"""


def test_a_scenario_says_who_is_fullest(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    shown = sim("run", str(path))
    assert (
        "the fullest rank's experts have 4.00 times the mean; 0.0% of the choices are dropped" in shown.output
    )
    path.write_text(SCENARIO.replace("one-hot", "{trace: no.csv}"), encoding="utf-8")
    assert "s.yaml:9:14: workload.train.routing: " in sim("run", str(path)).output
    path.write_text(SCENARIO.replace("routing: one-hot", "pad_to_capacity: true"), encoding="utf-8")
    assert "pad_to_capacity: has no effect without routing" in sim("run", str(path)).output


def test_experts_that_a_pipeline_puts_on_other_nodes_are_told(tmp_path: Path) -> None:
    """A pipeline of eight ranks fills a node, so that each rank of the experts is on another."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "workload: {train: {model: mixtral-8x7b, calibration: h100-sxm, gpus: 64, sequence: 512, batch: 64, "
        "recompute: full, parallel: {pp: 8, ep: 8, sharding: zero-1}}}\n"
    )
    told = "experts on 8 ranks span 8 nodes, as a pipeline's ranks stand side by side; with parallel.order: "
    assert told + "[tp, cp, dp, pp], which Megatron-LM has, they span 1" in sim("run", path).stderr
    for order in ("[tp, cp, pp, dp]", "[tp, cp, dp, pp]"):
        assert "experts on" not in sim("run", path, "--set", f"workload.train.parallel.order={order}").stderr
