"""A transformer as pipeline stages, against published numbers, and beside `build` and `train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runs import run_text

from scenarios.builders.pipeline_stage import PipelineStage
from scenarios.builders.train.architecture import Architecture
from scenarios.file.document import Document
from scenarios.file.yaml_read import read_yaml_text
from scenarios.run.execute import Result, run_scenario
from scenarios.run.load import read_scenario
from scenarios.workloads.pipeline_fields import PipelineFields
from scenarios.workloads.pipeline_stages import StageMaker
from sim.base.errors import OutOfMemoryError, ScenarioError, SimError
from sim.machine.device import Device

pytestmark = pytest.mark.filterwarnings("ignore::devices.cost.unreliable.UnreliableCostWarning")

GPT3 = {"layers": 96, "hidden": 12288, "heads": 96, "sequence": 2048}


def stages_of(stages: int = 8, **model: Any) -> list[PipelineStage]:
    """Return the stages of GPT-3 (175B) as in Korthikanti et al., table 3: b = 1, s = 2048, a = 96."""
    fields = {"stages": stages, "micro_batches": 1, "model": {**GPT3, "rate": "1PFLOP/s", **model}}
    document = Document(read_yaml_text("{}", "x.yaml"), Path("x.yaml"))
    return StageMaker(PipelineFields.model_validate(fields), document).of_model([Device("rank")] * stages)[0]


def test_activations_of_a_layer() -> None:
    """arXiv 2205.05198, table 2: sbh(10 + 24/t + 5as/(ht)), sbh(10 + 24/t), 2sbh; 8s bytes of two norms."""

    def kept(**model: Any) -> int:
        return stages_of(96, **{"attention": "eager", "dropout": True, **model})[1].activation_nbytes

    sbh, scores, norms = 2048 * 12288, 5 * 96 * 2048 * 2048, 8 * 2048
    assert kept(tp=8) == sbh * 13 + scores // 8 + norms
    assert kept(tp=8, recompute="selective") == sbh * 13 + norms
    assert kept(tp=8, recompute="full") == 2 * sbh
    assert kept() == sbh * 34 + scores + norms
    # one kernel of attention keeps a number of each row of the scores, and no mask where nothing is dropped
    assert kept(attention="flash", dropout=False) == sbh * 32 + norms + 4 * 96 * 2048


def test_what_is_left_for_the_weight_gradient() -> None:
    """Scores are for the gradient of the input alone (arXiv 2401.10241, table 1)."""
    stage = stages_of(96, attention="eager")[1]
    assert stage.activation_nbytes - stage.kept_nbytes == 4 * 96 * 2048 * 2048


@pytest.mark.parametrize(("recompute", "again"), [("none", 0), ("selective", 0), ("full", 1)])
def test_times_at_a_rate_are_the_models_own_flop(recompute: str, again: int) -> None:
    """72·b·l·s·h²(1 + s/(6h) + V/(12hl)) (arXiv 2205.05198, appendix A), and what is recomputed."""
    stages = stages_of(vocabulary=51200, recompute=recompute)
    model = Architecture(layers=96, hidden=12288, heads=96, vocabulary=51200, positions=2048)
    forward = model.flops(1, 2048) / 3 / 1e6
    layers = sum(model.layer_flops(1, 2048, i) for i in range(96)) / 1e6
    attention = 96 * 4 * 2048**2 * 12288 / 1e6
    assert sum(stage.times.of("F") for stage in stages) == pytest.approx(forward, rel=1e-6)
    more = {"none": 0, "selective": attention, "full": layers}[recompute]
    assert sum(stage.times.of("B") for stage in stages) == pytest.approx(2 * forward + more, rel=1e-6)
    assert len({stage.times for stage in stages}) == 2  # the last one has the output layer
    words_twice = 51200 * 12288  # on the first stage for the embedding, on the last one for the head
    assert sum(stage.parameter_nbytes for stage in stages) == 2 * (model.parameters + words_twice)
    layer = stages_of(96)[1].activation_nbytes
    assert stages[1].working_nbytes >= again * layer  # a layer that is recomputed is there while it is


@pytest.mark.filterwarnings("ignore::devices.cost.unreliable.PlainRooflineWarning")  # of the A100
def test_a_model_as_workload(tmp_path: Path) -> None:
    """By a rate, and by the cost model of a device; a rate tells nothing of the optimizer."""
    text = """\
workload:
  pipeline:
    stages: 4
    micro_batches: 8
    model: {layers: 8, hidden: 2048, heads: 16, sequence: 1024, vocabulary: 50304, rate: 150TFLOP/s}
policy: 1f1b
"""
    by_rate = run_text(text, tmp_path)
    machine = "machine: {devices: {gpu: {preset: a100-sxm-80, count: 4}}}\n"
    text = machine + text.replace(", rate: 150TFLOP/s", "")
    by_device = run_text(text, tmp_path)
    assert 0.3 < by_device.trace.makespan_ns / by_rate.trace.makespan_ns < 3
    bands = by_device.summary["pipeline"]["memory_bytes"]
    assert bands[0]["optimizer state"] == 6 * bands[0]["parameters"] == 3 * bands[0]["gradients"]
    assert "optimizer" in by_device.trace.job.graph.kinds
    assert "optimizer" not in by_rate.trace.job.graph.kinds
    assert by_rate.summary["note"] is None


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ({"layers": 6}, "6 layers cannot form 4 equal stages"),
        ({"heads": 7}, "no multiple of 7 heads"),
        ({"tp": 5}, "tp: 5 ranks cannot share 96 heads"),
        ({"rate": None}, "nothing tells how long its products take"),
        ({"calibration": "h100-sxm"}, "has rate and calibration"),
        ({"rate": None, "calibration": "h100"}, "there is no calibration 'h100'"),
    ],
)
def test_sizes_that_do_not_fit(sets: dict[str, Any], said: str) -> None:
    with pytest.raises((SimError, ValueError), match=said):
        stages_of(4, **sets)


def test_devices_that_share_a_layer_send_each_other_its_output() -> None:
    """Two sums forward, two backward; a ring of t sends 2(t-1)/t of 2sbh bytes for each."""
    silent = stages_of(tp=8)[1].times
    heard = stages_of(tp=8, bandwidth="300GB/s")[1].times
    one = 2 * 7 / 8 * 2 * 2048 * 12288 / 300
    assert heard.of("F") - silent.of("F") == pytest.approx(12 * 2 * one, rel=1e-5)
    assert heard.of("B") - silent.of("B") == pytest.approx(12 * 2 * one, rel=1e-5)


SIZES = "layers: 16, hidden: 2048, heads: 16, vocabulary: 50304"


def ran(text: str) -> Result:
    """Run a scenario; its memory is no matter."""
    return run_scenario(read_scenario(text))


def by_pipeline(ranks: int, micro_batches: int, more: str = "") -> Result:
    return ran(
        f"machine: {{preset: dgx-h100}}\npolicy: 1f1b\nworkload: {{pipeline: {{ranks: {ranks}, "
        f"micro_batches: {micro_batches}, model: {{{SIZES}, sequence: 2048, micro_batch: 4{more}}}}}}}"
    )


def by_train(ranks: int, micro_batches: int) -> Result:
    return ran(
        f"policy: 1f1b\nworkload: {{train: {{model: {{{SIZES}, positions: 2048}}, calibration: h100-sxm, "
        f"sequence: 2048, micro_batch: 4, batch: {4 * micro_batches}, parallel: {{pp: {ranks}}}}}}}"
    )


def peaks(result: Result) -> list[int]:
    return [
        use["peak_memory_bytes"] for use in result.summary["devices"].values() if use["peak_memory_bytes"]
    ]


@pytest.mark.parametrize(("ranks", "micro_batches"), [(1, 1), (8, 16)])
def test_a_pipeline_is_the_step_of_train(ranks: int, micro_batches: int) -> None:
    """The same model, calibration and schedule: times within 0.5 %, memory within 4 % (`train`'s buffers)."""
    pipeline, train = (
        by_pipeline(ranks, micro_batches, ", calibration: h100-sxm"),
        by_train(ranks, micro_batches),
    )
    assert pipeline.trace.makespan_ns == pytest.approx(train.trace.makespan_ns, rel=0.005)
    assert peaks(pipeline) == pytest.approx(peaks(train), rel=0.04)
    assert peaks(train) == [sum(bands.values()) for bands in train.summary["pipeline"]["memory_bytes"]]
    assert pipeline.summary["note"] is None


def test_a_pipeline_of_one_is_the_step_of_build() -> None:
    """By one cost model: all but the optimizer within 5 %: norms are plain passes over memory in a pipeline.

    Memory within 8 %: gradients are always there.
    """
    pipeline = by_pipeline(1, 1, ", gradients: bf16")
    build = ran(
        "machine: {devices: {gpu0: {preset: h100-sxm}}}\npolicy: {runtime: pytorch-eager}\nworkload: {build: "
        f"{{model: gpt, {SIZES}, sequence: 2048, batch: 4, optimizer: adam}}}}"
    )

    def without_optimizer(result: Result) -> int:
        tasks, graph = result.trace.tasks, result.trace.job.graph
        steps = graph.is_kind("adam", "optimizer")[tasks["op"]]
        return int(result.trace.makespan_ns - (tasks["end_ns"] - tasks["start_ns"])[steps].sum())

    assert without_optimizer(pipeline) == pytest.approx(without_optimizer(build), rel=0.05)
    assert pipeline.trace.makespan_ns == pytest.approx(build.trace.makespan_ns, rel=0.06)  # it clips, too
    assert max(peaks(pipeline)) == pytest.approx(max(peaks(build)), rel=0.08)
    assert pipeline.summary["note"].startswith(build.summary["note"] + "; a stage takes 1.")
    assert "as if alone" in build.summary["note"]


def test_the_calibration_of_another_gpu_is_refused() -> None:
    with pytest.raises(
        ScenarioError, match=r"h100-sxm is of a GPU of .* 3.35 TB/s, and gpu0 has .* 4.8 TB/s"
    ):
        ran(
            "machine: {preset: dgx-h200}\npolicy: 1f1b\nworkload: {pipeline: {ranks: 2, micro_batches: 2, "
            f"model: {{{SIZES}, sequence: 2048, calibration: h100-sxm}}}}}}"
        )


@pytest.mark.parametrize(
    ("micro_batch", "said"),
    [
        (16, "it would fit with model.attention: flash, or"),
        (40, "it would fit with model.recompute: full, or"),
    ],
)
def test_what_would_make_it_fit(micro_batch: int, said: str) -> None:
    """What costs least comes first; nobody is told to have no micro-batch at all."""
    text = (
        "machine: {preset: dgx-h100}\npolicy: 1f1b\nworkload: {pipeline: {ranks: 1, micro_batches: 1, model: "
        f"{{{SIZES}, sequence: 2048, micro_batch: {micro_batch}, attention: eager}}}}}}"
    )
    with pytest.raises(OutOfMemoryError) as error:
        ran(text)
    assert said in str(error.value)
    assert "fewer micro-batch" not in str(error.value)
