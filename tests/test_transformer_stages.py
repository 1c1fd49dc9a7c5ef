"""The transformer builder against published numbers, and against itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenario_texts import write

from scenarios.build.transformer import Transformer, transformer_stages
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim.words.errors import InputError


def weight_flops(model: Transformer) -> int:
    """Flop of a layer's products with weights, forward, for a micro-batch: 24·b·s·h²."""
    return 24 * model.micro_batch * model.sequence * model.hidden**2


def output_flops(model: Transformer) -> int:
    """Flop of the output layer, forward: 2·b·s·h·V."""
    return 2 * model.micro_batch * model.sequence * model.hidden * model.vocabulary


def gpt(**changes: object) -> Transformer:
    """GPT-3 (175B) as in Korthikanti et al., table 3: b = 1, s = 2048, t = 8, a = 96."""
    sizes = {"layers": 96, "hidden": 12288, "heads": 96, "sequence": 2048, "vocabulary": 51200}
    return Transformer(**{**sizes, "tensor_parallel": 8, **changes})  # type: ignore[arg-type]


def test_activations_of_a_layer() -> None:
    """arXiv 2205.05198, table 2: sbh(10 + 24/t + 5as/(ht)), sbh(10 + 24/t), 2sbh."""
    sbh = 2048 * 12288
    assert gpt().activation_nbytes == sbh * (10 + 3) + 5 * 96 * 2048 * 2048 // 8
    assert gpt(recompute="selective").activation_nbytes == sbh * 13
    assert gpt(recompute="full").activation_nbytes == 2 * sbh
    assert gpt(tensor_parallel=1).activation_nbytes == sbh * 34 + 5 * 96 * 2048 * 2048


def test_what_is_left_for_the_weight_gradient() -> None:
    """arXiv 2401.10241, table 1: 32sbh of sbh(34 + 5as/h)."""
    assert gpt(tensor_parallel=1).weight_grad_nbytes == 32 * 2048 * 12288


def test_flop_of_a_step() -> None:
    """arXiv 2205.05198, appendix A: 72·b·l·s·h²(1 + s/(6h) + V/(12hl)), without recomputation."""
    model = gpt(tensor_parallel=1)
    h, s, layers, words = model.hidden, model.sequence, model.layers, model.vocabulary
    forward = layers * (weight_flops(model) + model.attention_flops) + output_flops(model)
    exact = 72 * layers * s * h**2 * (1 + s / (6 * h) + words / (12 * h * layers))
    assert 3 * forward == pytest.approx(exact, rel=1e-12)


def test_parameters() -> None:
    assert gpt().parameters == 96 * (12 * 12288**2 + 13 * 12288) + (51200 + 2048) * 12288
    assert gpt().parameters == pytest.approx(175e9, rel=0.01)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_stages_add_up_to_the_model(recompute: str) -> None:
    model = gpt(tensor_parallel=1, recompute=recompute)
    rate = 10**15
    stages = transformer_stages(model, 8, rate=rate)
    forward = model.layers * (weight_flops(model) + model.attention_flops) + output_flops(model)
    assert sum(stage.times.of("F") for stage in stages) == pytest.approx(forward / rate * 1e9, rel=1e-6)
    again = {
        "none": 0,
        "selective": model.attention_flops,
        "full": weight_flops(model) + model.attention_flops,
    }
    backward = 2 * forward + model.layers * again[recompute]
    assert sum(stage.times.of("B") for stage in stages) == pytest.approx(backward / rate * 1e9, rel=1e-6)
    assert len({stage.times for stage in stages}) == 2  # the last one has the output layer
    assert sum(stage.parameter_nbytes for stage in stages) == 2 * (
        model.parameters + model.embedding_parameters
    )


@pytest.mark.filterwarnings("ignore::devices.cost.PlainRooflineWarning")  # of the A100
def test_a_model_as_workload(tmp_path: Path) -> None:
    """By a rate, and by the cost model of a device; a model that does not fit says what would help."""
    text = """\
workload:
  pipeline:
    stages: 4
    micro_batches: 8
    model: {layers: 8, hidden: 2048, heads: 16, sequence: 1024, vocabulary: 50304, rate: 150TFLOP/s}
policy: 1f1b
"""
    by_rate = run_scenario(load_scenario(write(tmp_path, text)), check=True)
    machine = "machine: {devices: {gpu: {preset: a100-sxm-80, count: 4}}}\n"
    text = machine + text.replace(", rate: 150TFLOP/s", "")
    by_device = run_scenario(load_scenario(write(tmp_path, text)), check=True)
    assert 0.3 < by_device.trace.makespan_ns / by_rate.trace.makespan_ns < 3
    bands = by_device.summary["pipeline"]["memory_bytes"]
    assert bands[0]["optimizer state"] == 6 * bands[0]["weights"]


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ({"layers": 6}, "6 layers cannot be shared evenly by 4 stages"),
        ({"heads": 7}, "no multiple of 7 heads"),
        ({"tensor_parallel": 5}, "16 heads cannot be shared by 5 devices"),
    ],
)
def test_sizes_that_do_not_fit(sets: dict[str, int], said: str) -> None:
    sizes = {"layers": 8, "hidden": 1024, "heads": 16, "sequence": 512, **sets}
    with pytest.raises(InputError, match=said):
        transformer_stages(Transformer(**sizes), 4, rate=10**12)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="nothing tells how long its products take"):
        transformer_stages(Transformer(8, 1024, 16, 512), 4)


def test_devices_that_share_a_layer_send_each_other_its_output() -> None:
    """Two sums forward, two backward; a ring of t sends 2(t-1)/t of 2sbh bytes for each."""
    model = gpt()
    silent = transformer_stages(model, 8, rate=10**15)[1].times
    heard = transformer_stages(model, 8, rate=10**15, tensor_bandwidth=300 * 10**9)[1].times
    one = 2 * 7 / 8 * 2 * 2048 * 12288 / 300
    assert heard.of("F") - silent.of("F") == pytest.approx(12 * 2 * one, rel=1e-5)
    assert heard.of("B") - silent.of("B") == pytest.approx(12 * 2 * one, rel=1e-5)
