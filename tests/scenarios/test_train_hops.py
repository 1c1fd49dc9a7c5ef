"""Collectives of a training step over several nodes, and FSDP over so many that latency is what it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from devices.collectives.groups import Fabric, NodeFabrics, RankGroup
from devices.collectives.nccl_tuner import GENERATIONS, PROTOCOLS, NcclTuner
from scenarios.builders.train.architecture import MODELS, Architecture
from scenarios.builders.train.calibration import TrainingCalibration
from scenarios.builders.train.layout import ParallelLayout
from scenarios.builders.train.step import step_ns, step_trace
from scenarios.builders.train.training import Training
from scenarios.workloads.calibrations import named_calibration
from scenarios.workloads.train_report import (
    changes_that_fit,
    fullest,
    latency_note,
)

HOPS = NodeFabrics(*(Fabric(latency_ns={"default": ns}) for ns in (1e3, 10e3)))
WIRES = TrainingCalibration("wires", peak=1e12, memory_bandwidth=1e12, collectives=HOPS)


def test_a_ring_crosses_the_network_once_a_node() -> None:
    four = RankGroup(32, 4)
    for kind, hops in {
        "all_gather": (28, 3),
        "reduce_scatter": (28, 3),
        "all_reduce": (2 * 7, 2 * 2),  # a tree: in its node, and twice log2 4 between them
        "all_to_all": (7, 24),
        "send": (0, 1),
    }.items():
        expected = hops[0] * 1e3 + hops[1] * 10e3
        assert WIRES.collective_ns(kind, 8, four) == pytest.approx(expected), kind  # type: ignore[arg-type]
    alone = RankGroup(4, 4)  # one rank a node: all hops are between them
    assert WIRES.collective_ns("all_gather", 8, alone) == pytest.approx(30e3)
    assert WIRES.collective_ns("all_gather", 8, RankGroup(8, 1)) == pytest.approx(7e3)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
def test_latencies_are_those_of_nccls_tuner(kind: str) -> None:
    """Without bytes the way with the least latency is taken."""
    of = NodeFabrics(Fabric(450e9), Fabric(48e9), nccl=True)
    for per_node, nodes in ((8, 2), (8, 100), (8, 800), (4, 3), (1, 16)):
        tuner = NcclTuner(GENERATIONS["h100"], (per_node,) * nodes)
        expected = [
            1000 * tuner.latency_us(kind, way, protocol)
            for way in (("ring", "tree") if kind == "all_reduce" else ("ring",))
            for protocol in PROTOCOLS
        ]
        ns = of.time_ns(kind, 0, RankGroup(per_node * nodes, nodes))  # type: ignore[arg-type]
        assert ns == pytest.approx(min(expected))
    choice = NcclTuner(GENERATIONS["h100"], (1, 1)).choose("send", 0)
    assert of.time_ns("send", 0, RankGroup(16, 2)) == pytest.approx(1000 * choice.estimate_us)


def test_a_tree_sends_all_bytes_twice() -> None:
    """Not (n - 1)/n of them, as a ring does: here of four ranks on four nodes, at 0.92 of 1 GB/s."""
    of, four = NodeFabrics(Fabric(), Fabric(1e9, latency_ns={"default": 1e6})), RankGroup(4, 4)
    assert of.time_ns("all_reduce", 92_000, four) == pytest.approx(2 * 2 * 1e6 + 2 * 92_000 / 0.92)
    nccl = NodeFabrics(Fabric(), Fabric(50e9), nccl=True)  # LL128: 14 + 4 x 8.5 us
    assert nccl.time_ns("all_reduce", 2**20, four) == pytest.approx(48e3 + 2 * 2**20 / (0.92 * 0.9375 * 50))


def test_a_gather_over_800_nodes_takes_what_nccl_expects() -> None:
    """At the bandwidth that NCCL counts with: 8 cards of 48 GB/s."""
    of = replace(WIRES, collectives=NodeFabrics(Fabric(450e9), Fabric(48e9), nccl=True))
    nbytes, group = 1_711_308_800, RankGroup(6400, 800)
    expected = NcclTuner(GENERATIONS["h100"], (8,) * 800).choose("all_gather", nbytes)
    assert expected.protocol == "ll128"
    ns = of.collective_ns("all_gather", nbytes, group)
    assert ns / 1000 == pytest.approx(expected.estimate_us, rel=0.06)  # it caps a channel of LL128, too
    assert ns < 6399 * 15_000 / 4


def training(sequence: int = 2048, **layout: object) -> Training:
    """Eight layers of Llama 3 8B on 6,400 H100."""
    calibration = named_calibration("h100-sxm")
    return Training(
        model=Architecture(**{**MODELS["llama3-8b"], "layers": 8}),
        layout=ParallelLayout(dp=6400, **{"sharding": "fsdp", **layout}),  # type: ignore[arg-type]
        calibration=calibration,
        sequence=sequence,
        micro_batch=1,
        batch=6400,
        memory=calibration.memory,
    )


def test_fsdp_that_waits_for_messages_says_so() -> None:
    whole, fewer = training(), training(shard=64)
    step = step_ns(whole)
    note = latency_note(whole, step, step // 2)
    assert note is not None
    assert (
        "latencies of a ring of 6,400 ranks on 800 nodes; with parallel.shard (HSDP) rings are shorter"
        in note
    )
    assert step_ns(fewer) < step
    assert latency_note(whole, step, 0) is None  # hidden
    assert latency_note(fewer, step, step) is None  # bytes take longer
    assert latency_note(training(sharding="zero-1"), step, step) is None
    alone = replace(whole, layout=replace(whole.layout, dp=1), batch=1)
    assert latency_note(alone, step, step) is None  # nothing is gathered


def test_hsdp_is_a_single_change_that_fits() -> None:
    copies = training(sharding="none", sequence=8192)
    found = {change.setting: change for change in changes_that_fit(copies)}
    hybrid = next(change for what, change in found.items() if what.startswith("parallel: sharding: fsdp"))
    assert copies.memory is not None
    assert hybrid.peak <= copies.memory
    of = training(shard=16)
    sixteen = fullest(of, step_trace(of))
    small = replace(training(shard=8), memory=sixteen)  # it needs more
    assert "parallel.shard: 16" in {change.setting for change in changes_that_fit(small)}
