"""A training step that rewrites made: the same report as `train`, by hand and beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim

from scenarios.report.compare import Comparison
from scenarios.run.execute import Result, run_case, run_scenario
from scenarios.run.load import load_scenario
from sim.base.units import format_duration

SIZES = "layers: 4, hidden: 2048, heads: 16, vocabulary: 50304"
EXPERTS = 'name: expert-parallel, wrap: "layer[0-9]+(?=[.](?:up|gelu|down))", experts: 8, tokens: 4096'


def ran(tmp_path: Path, text: str) -> Result:
    path = tmp_path / "step.yaml"
    path.write_text(f"name: step\n{text}\n", encoding="utf-8")
    return run_scenario(load_scenario(path))


def built(tmp_path: Path, *steps: str, training: str = "{name: training, optimizer: adam}") -> Result:
    return ran(
        tmp_path,
        "machine: {preset: dgx-h100}\n"
        f"workload: {{build: {{model: gpt, {SIZES}, sequence: 2048, batch: 2}}}}\n"
        f"policy: {{runtime: pytorch-distributed, compile: [{', '.join((training, *steps))}]}}",
    )


def trained(tmp_path: Path, parallel: str) -> dict[str, Any]:
    """Return what `train` tells of the same model, whose kernels run as if alone."""
    told: dict[str, Any] = ran(
        tmp_path,
        f"workload: {{train: {{model: {{{SIZES}, positions: 2048, tied: true, biases: true}}, "
        f"calibration: {{device: h100-sxm, nccl: h100}}, parallel: {parallel}, sequence: 2048, "
        f"micro_batch: 2, batch: {16 if '8' in parallel else 2}}}}}",
    ).summary["train"]
    return told


def test_a_step_counted_by_hand(tmp_path: Path) -> None:
    """Two ops of 1 TFLOP on a device of 100 TFLOP/s, and their gradients: 6 TFLOP in 60 ms of 61."""
    result = ran(
        tmp_path,
        "machine: {devices: {gpu: {kind: gpu, peak: {fp32: 100TFLOP/s}, bandwidth: 1TB/s, cost: roofline}}}\n"
        "workload:\n"
        "  inputs: {x: 8MB}\n"
        "  parameters: {w: 100MB, v: 100MB}\n"
        "  ops:\n"
        "    a: {kind: matmul, inputs: [x, w], output: 8MB, flops: 1TFLOP, dtype: fp32, phase: F}\n"
        "    b: {kind: matmul, inputs: [a, v], output: 8MB, flops: 1TFLOP, dtype: fp32, phase: F}\n"
        "policy: {name: in-order, compile: [{name: training, optimizer: sgd}]}",
    )
    told = result.summary["train"]
    (rank,) = told["ranks"]
    assert told["step_ns"] == result.trace.makespan_ns
    assert told["model_flops"] == 5 * 10**12  # the input needs no gradient
    assert told["mfu"] == pytest.approx(0.05 * 1e9 / told["step_ns"])
    parts = rank["time_ns"]
    assert sum(ns for name, ns in parts.items() if name != "hidden") == told["step_ns"]
    assert parts["products"] == pytest.approx(50e6, rel=0.01)
    assert parts["optimizer"] > 0
    memory = rank["memory_bytes"]
    assert memory["parameters"] == 200_000_000
    assert memory["optimizer state"] == 0
    assert memory["gradients"] > 0
    assert rank["peak_bytes"] == sum(memory.values()) == result.summary["devices"]["gpu"]["peak_memory_bytes"]
    assert "tokens_per_s" not in told


@pytest.mark.filterwarnings("ignore:tensor-parallel. 16 of 17 products stay whole")
def test_what_ranks_repeat_is_work_of_the_model_once(tmp_path: Path) -> None:
    """The flop of a step do not depend on how many ranks compute the head, or a layer that none can share."""
    one = built(tmp_path).summary["train"]["model_flops"]
    for step in ("ranks: 2, vocabulary: false", "ranks: 3"):
        told = built(tmp_path, f"{{name: tensor-parallel, {step}}}").summary["train"]
        assert told["model_flops"] == pytest.approx(one, rel=1e-4), step
        assert told["mfu"] == pytest.approx(one / (told["gpus"] * 989.4e12 * told["step_ns"] / 1e9), rel=1e-3)


@pytest.mark.parametrize(
    ("steps", "samples", "ranks"),
    [
        (("{name: ddp, ranks: 4}",), 8, 4),
        (("{name: gradient-accumulation, micro_batches: 3}", "{name: fsdp2, ranks: 4, shard: 2}"), 24, 4),
        (("{name: tensor-parallel, ranks: 2}", "{name: zero-1, ranks: 2}"), 4, 4),
        ((f"{{{EXPERTS}, ranks: 4}}",), 8, 4),
        ((f"{{{EXPERTS}, ranks: 4, shard: 2}}",), 8, 4),
    ],
)
def test_samples_are_those_of_all_replicas(
    tmp_path: Path, steps: tuple[str, ...], samples: int, ranks: int
) -> None:
    summary = built(tmp_path, *steps).summary
    told = summary["train"]
    seconds = told["step_ns"] / 1e9
    assert told["gpus"] == ranks
    assert told["samples_per_s"] == summary["samples_per_s"] == pytest.approx(samples / seconds)
    assert told["tokens_per_s"] == pytest.approx(2048 * samples / seconds)
    assert sum(of["stands_for"] for of in told["ranks"]) == ranks
    for of in told["ranks"]:
        assert sum(ns for name, ns in of["time_ns"].items() if name != "hidden") == told["step_ns"]
        assert of["peak_bytes"] == summary["devices"][of["device"]]["peak_memory_bytes"]


def test_experts_on_other_ranks_are_given_tokens_of_each_rank(tmp_path: Path) -> None:
    """Each of four ranks has two samples of its own, also in a forward alone."""
    result = built(tmp_path, training=f"{{{EXPERTS}, ranks: 4}}")
    assert result.summary["samples_per_s"] == pytest.approx(8e9 / result.trace.makespan_ns)


def test_workers_train_and_parameter_servers_do_not(tmp_path: Path) -> None:
    """Two workers with a batch each, whose work is that of two devices; the server is no GPU."""
    text = (
        "machine: {devices: {gpu: {kind: gpu, count: 2, peak: {bf16: 1PFLOP/s}, bandwidth: 1TB/s}, ps: "
        "{kind: cpu, bandwidth: 1TB/s, peak: {bf16: 1TFLOP/s, fp32: 1TFLOP/s}}}, links: [{from: gpu0, "
        "to: ps, bandwidth: 9GB/s}, {from: gpu1, to: ps, bandwidth: 9GB/s}]}\n"
        f"workload: {{build: {{model: gpt, {SIZES}, sequence: 2048, batch: 2}}}}\n"
        "policy: {name: ready-queue, compile: [training, "
        "{name: parameter-server, workers: 2, servers: [ps], asynchronous: ASYNCHRONOUS}]}"
    )
    one = built(tmp_path).summary["train"]
    for asynchronous in ("false", "true"):
        told = ran(tmp_path, text.replace("ASYNCHRONOUS", asynchronous)).summary["train"]
        assert told["gpus"] == 2
        assert told["samples_per_s"] == pytest.approx(4e9 / told["step_ns"])
        assert told["model_flops"] == 2 * one["model_flops"]
        assert told["mfu"] == pytest.approx(one["model_flops"] / (1e6 * told["step_ns"]))


def test_a_comparison_says_first_who_trains_on_how_many_samples(tmp_path: Path) -> None:
    path, train = tmp_path / "step.yaml", "runtime: pytorch-distributed, compile: [training, {ranks: 4, name:"
    path.write_text(
        "name: step\nmachine: {preset: dgx-h100}\n"
        f"workload: {{build: {{model: gpt, {SIZES}, sequence: 2048, batch: 2}}}}\n"
        f"compare: [{{label: ddp, {train} ddp}}]}}, {{label: tp, {train} tensor-parallel}}]}}]\n"
    )
    wide, cut = (run_case(case) for case in load_scenario(path).cases())
    compared = Comparison([wide, cut])
    assert compared.title == "step: the runs use different numbers of samples (ddp on 8; tp on 2)"
    rates = [float(row["samples/s"].replace(",", "")) for row in compared.rows]
    assert rates == [pytest.approx(each.summary["samples_per_s"], rel=1e-3) for each in (cut, wide)]
    assert "samples/s" not in Comparison([wide, wide]).rows[0]


@pytest.mark.parametrize(
    ("step", "parallel", "slower"),
    [
        ("{name: ddp, ranks: 1}", "{dp: 1, sharding: none}", 0.005),
        ("{name: ddp, ranks: 8}", "{dp: 8, sharding: none}", 0.12),
        ("{name: zero-1, ranks: 8}", "{dp: 8, sharding: zero-1}", 0.12),
        ('{name: fsdp2, ranks: 8, wrap: "layer\\\\d+"}', "{dp: 8, sharding: fsdp}", 0.12),
    ],
)
def test_both_ways_to_describe_a_step_agree(tmp_path: Path, step: str, parallel: str, slower: float) -> None:
    """One GPT on H100s, its kernels priced alike: by rewrites, and by `train`.

    Products and attention take the same time, but for the SMs that collectives beside them hold, which
    `train` leaves to its calibration; the work is the same. They are programs of two libraries: passes and
    optimizers differ (fused biases; Megatron-LM's clips and has an fp32 copy), and so does the loss, whose
    gradient replaces the logits in `train`.
    """
    by_rewrites, by_train = built(tmp_path, step).summary["train"], trained(tmp_path, parallel)
    assert by_rewrites["gpus"] == by_train["gpus"]
    assert by_rewrites["model_flops"] == pytest.approx(by_train["model_flops"], rel=0.005)
    (mine, *others), (theirs,) = by_rewrites["ranks"], by_train["ranks"]
    assert not others
    assert mine["time_ns"].keys() == theirs["time_ns"].keys()
    assert mine["memory_bytes"].keys() == theirs["memory_bytes"].keys()
    times, expected = (
        sum(of["time_ns"][part] for part in ("products", "attention")) for of in (mine, theirs)
    )
    assert (1 - 0.005) * expected <= times <= (1 + slower) * expected
    held, expected = (
        sum(of["memory_bytes"][part] for part in ("activations", "working")) for of in (mine, theirs)
    )
    assert held == pytest.approx(expected, rel=0.15)
    if "fsdp" not in step:  # there `train` gathers from the fp32 copy
        assert mine["memory_bytes"]["parameters"] == pytest.approx(
            theirs["memory_bytes"]["parameters"], rel=1e-3
        )


def test_a_sweep_of_steps_says_how_sure_each_is(tmp_path: Path) -> None:
    """As `sim run` does; the table leaves it out where it shows the time of several steps."""
    interval = built(tmp_path).summary["makespan_interval"]
    low, high = (format_duration(interval[key]) for key in ("low_ns", "high_ns"))
    path = tmp_path / "step.yaml"
    one, two = sim("sweep", path, "--vary", "iterations=1,2").stdout.splitlines()[1:3]
    assert f"  {low} to {high}  " in one
    assert " to " not in two
    answer = sim("sweep", path, "--vary", "seed=1,2", "--minimise", "step_time").stdout
    assert f"\n  80 % interval {low} to {high}; memory " in answer
