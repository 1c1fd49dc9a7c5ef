"""Layers whose activations go to the host: what stays, what hides, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cli_runner import sim

from devices.collectives.groups import Fabric, NodeFabrics
from scenarios.builders.train.architecture import Architecture
from scenarios.builders.train.calibration import HostFields, TrainingCalibration
from scenarios.builders.train.layout import ParallelLayout
from scenarios.builders.train.memory import stage_memory
from scenarios.builders.train.step import step_ns, step_trace
from scenarios.builders.train.training import Training
from scenarios.workloads.train_report import peaks_of
from sim.base.errors import InputError, MisfitError

FREE = Fabric(1e30)
PLAIN = TrainingCalibration("plain", peak=1e12, memory_bandwidth=1e30, collectives=NodeFabrics(FREE, FREE))
GPT = Architecture(layers=8, hidden=1024, heads=16, vocabulary=51200)


def training(layers: int, bandwidth: float = 1e30) -> Training:
    """Return eight layers under FSDP, two micro-batches, so many layers offloaded at so many bytes/s."""
    calibration = replace(PLAIN, host=HostFields.model_construct(bandwidth=bandwidth))
    layout = ParallelLayout(dp=2, sharding="fsdp")
    return Training(GPT, layout, calibration, 512, 1, 4, offload_layers=layers)


def saved(of: Training) -> int:
    """Return what a layer keeps."""
    return sum(piece.saved for piece in of.each_stage[0].units[1].pieces)


@pytest.mark.parametrize("layers", [1, 2, 3, 4, 7])
def test_a_host_without_delay_takes_layers_away_and_no_time(layers: int) -> None:
    """The head runs while the layers that stay, and the embedding, are kept."""
    none, some = training(0), training(layers)
    before, after = (peaks_of(of, step_trace(of))[0]["memory_bytes"]["activations"] for of in (none, some))
    assert before - after == layers * saved(none)
    assert step_ns(none) == step_ns(some)


EXPERTS = Architecture(
    layers=3,
    hidden=256,
    heads=4,
    vocabulary=1000,
    tied=False,
    biases=False,
    gated=True,
    experts=4,
    top_k=2,
    expert_middle=512,
)
READ = 2 * 512 * 2 * (2 * 512)  # two experts a token; gate and its partner, of two bytes


def offloaded(bandwidth: float) -> Training:
    """Return three layers with experts whose activations' inputs go to the host."""
    calibration = replace(PLAIN, host=HostFields.model_construct(bandwidth=bandwidth))
    return Training(EXPERTS, ParallelLayout(), calibration, 512, 1, 1, offload=("moe_act",))


def test_what_a_module_reads_is_on_the_host_but_for_what_is_on_its_way() -> None:
    """A layer has its own while it runs back, and that of the next to run back."""
    there = offloaded(1e30)
    none = replace(there, offload=())
    (away,), (here,) = there.memory_of_stages, none.memory_of_stages
    assert here.saved - away.saved == 3 * READ
    layers = there.each_stage[0].units[1:4]
    one = stage_memory(layers[:1])
    assert stage_memory(layers[:2]).backward == one.backward + one.saved + READ
    assert step_ns(there) == step_ns(none)
    peaks = [max(peak["peak_bytes"] for peak in peaks_of(of, step_trace(of))) for of in (there, none)]
    assert READ <= peaks[1] - peaks[0] <= 3 * READ


def test_copies_that_a_layer_does_not_hide_show() -> None:
    """Forward and backward, by what they take longer than the layer."""
    fast = offloaded(1e30)
    layer = fast.timed_part(fast.each_stage[0].units[1])
    forward, backward = layer.forward.ns, layer.backward.ns
    for copy, late in ((1.5 * forward, 0.5 * forward), (2 * backward, 3 * backward - forward)):
        slow = offloaded(READ / copy * 1e9)
        assert step_ns(slow) - step_ns(fast) == pytest.approx(3 * late, abs=16)
        assert slow.each_stage[0].forward.exposed == pytest.approx(3 * (copy - forward))
        assert slow.each_stage[0].forward.hidden == pytest.approx(3 * forward)


@pytest.mark.parametrize("recompute", ["full", "selective-op", ("moe",), ("core_attn", "moe")])
def test_what_recomputation_does_not_keep_cannot_be_offloaded(recompute: str | tuple[str, ...]) -> None:
    with pytest.raises(MisfitError, match="offload: moe_act has no effect: recompute keeps nothing that"):
        replace(offloaded(1e30), recompute=recompute)
    replace(offloaded(1e30), recompute=("moe_act",))  # makes again what the product after it reads


def test_clamped_inputs_are_made_again_with_their_activation() -> None:
    """Experts' activation keeps what it read, not what was clamped of it, nor what it made."""
    plain, again = (
        Training(replace(EXPERTS, clamped=True), ParallelLayout(), PLAIN, 512, 1, 1, recompute=of)
        for of in ("none", ("moe_act",))
    )
    kept = [of.memory_of_stages[0].saved for of in (plain, again)]
    assert kept[0] - kept[1] == 3 * (READ + READ // 2)


def test_a_scenario_offloads_modules_that_its_model_has(tmp_path: Path) -> None:
    text = (
        "workload: {train: {model: MODEL, calibration: h100-sxm, parallel: {dp: 8}, sequence: 1024, "
        "batch: 8, memory: 1TB, offload: [moe_act]}}\n"
    )
    path = tmp_path / "step.yaml"
    path.write_text(text.replace("MODEL", "{name: qwen3-30b-a3b, layers: 2}"))
    assert sim("run", str(path)).exit_code == 0
    path.write_text(text.replace("MODEL", "llama3-8b"))
    done = sim("run", str(path))
    assert done.exit_code == 2
    assert "offload: has no effect: the model has no moe_act" in done.stderr
    path.write_text(
        text.replace("MODEL, calibration: h100-sxm", "qwen3-30b-a3b, calibration: h100-sxm-mosaicml")
    )
    assert "no host.bandwidth" in sim("run", str(path)).stderr


def test_copies_that_a_window_does_not_hide_are_waited_for() -> None:
    """Four of eight layers: a copy c in each window of two layers F, from the first layer on: F + 4c.

    Backward, which takes twice as long, hides them, but for that of the first layer.
    """
    (unit, *_) = (unit for unit in training(0).each_stage[0].units if unit.boundary)
    layer = training(0).timed_part(unit)
    forward, backward = round(layer.forward.ns), round(layer.backward.ns)
    copy = 3 * forward
    assert 2 * forward < copy < 2 * backward
    slow = training(4, saved(training(0)) / copy * 1e9)
    waited = step_ns(slow) - step_ns(training(0))
    assert waited == pytest.approx(2 * (forward + 4 * copy - 8 * forward + copy - backward), abs=16)
    trace = step_trace(slow)
    graph, tasks = trace.job.graph, trace.tasks
    begins = {graph.op_names[op]: at for op, at in zip(tasks["op"], tasks["start_ns"], strict=True)}
    assert begins["copy 1 out.0"] == begins["F2.0"] == begins["copy 0 out.0"] + copy
    assert begins["copy 3 in.0"] == begins["B7.0"]
    assert begins["copy 2 in.0"] == begins["B5.0"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"layout": ParallelLayout(dp=2)}, "needs sharding: fsdp and no pipeline"),
        ({"layout": ParallelLayout(pp=2, sharding="fsdp")}, "needs sharding: fsdp and no pipeline"),
        ({"recompute": "full"}, "needs recompute: none"),
        ({"offload_layers": 8}, "should be fewer than the model's 8 layers"),
    ],
)
def test_what_excludes_it_is_refused(changes: dict[str, object], why: str) -> None:
    with pytest.raises(MisfitError, match=why):
        replace(training(4), **changes)  # type: ignore[arg-type]


def test_a_calibration_without_a_link_to_the_host_is_refused() -> None:
    with pytest.raises(InputError, match=r"the calibration has no host\.bandwidth"):
        step_ns(training(4, 0.0))


def test_a_scenario_says_so(tmp_path: Path) -> None:
    """Llama 3 70B as Megatron Bridge runs it on GB200 does not fit without it."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "workload: {train: {model: llama3-70b, calibration: gb200, dtype: fp8, gpus: 64, micro_batch: 2, "
        "sequence: 8192, batch: 256, gradients: bf16, parallel: {sharding: fsdp}, offload: 40}}\n"
    )
    assert sim("run", path).exit_code == 0
    assert sim("run", path, "--set", "workload.train.offload=10").exit_code == 1
    refused = sim("run", path, "--set", "workload.train.recompute=full")
    assert refused.exit_code == 2
    assert "offload: needs recompute: none" in refused.stderr
