"""On which devices of a machine ranks are, and which of them times a stage."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from cli_runner import sim
from pipeline_runs import block
from runs import run_text
from scenario_texts import write

from scenarios.run.execute import Result
from sim.base.errors import ScenarioError

MODEL = "model: {layers: 8, hidden: 1024, heads: 16, sequence: 512}"

PLAIN = f"""\
name: a model
machine: {{preset: dgx-h200}}
workload:
  pipeline: {{{MODEL}, stages: 8, micro_batches: 16}}
policy: 1f1b
"""

TWO_SPEEDS = f"""\
name: a fast and a slow device
machine:
  devices:
    slow: {{kind: gpu, peak: 100TFLOP/s, bandwidth: 1000TB/s}}
    fast: {{kind: gpu, peak: 400TFLOP/s, bandwidth: 4000TB/s}}
workload:
  pipeline: {{{MODEL}, stages: 2, micro_batches: 4}}
policy: 1f1b
"""


def run(folder: Path, text: str, *sets: str) -> Result:
    return run_text(text, folder, *sets)


def forwards(result: Result) -> dict[str, int]:
    """Return the duration of the forward of each device's first micro-batch."""
    job = result.trace.job
    return {
        job.machine.devices[int(job.device_of[op])].name: int(job.duration_ns[op])
        for op, name in reversed(list(enumerate(job.graph.op_names)))
        if name.endswith("F0")
    }


def test_a_machine_with_cpus_times_the_model_on_its_gpus(tmp_path: Path) -> None:
    whole = forwards(run(tmp_path, PLAIN))
    assert sorted(whole) == [f"gpu{i}" for i in range(8)]
    bare = PLAIN.replace("{preset: dgx-h200}", "{devices: {gpu: {preset: h200-sxm, count: 8}}}")
    assert whole == forwards(run(tmp_path, bare))


def test_every_stage_takes_the_time_of_its_own_device(tmp_path: Path) -> None:
    found = forwards(run(tmp_path, TWO_SPEEDS))
    assert found["slow"] == pytest.approx(4 * found["fast"], rel=1e-3)


def test_a_placement_in_a_v_times_stages_where_they_are(tmp_path: Path) -> None:
    text = TWO_SPEEDS.replace("stages: 2", "stages: 4").replace("policy: 1f1b", "policy: zb-v")
    job = run(tmp_path, text).trace.job
    ns = {name: int(job.duration_ns[op]) for op, name in enumerate(job.graph.op_names)}
    homes = {
        name: job.machine.devices[int(job.device_of[op])].name for op, name in enumerate(job.graph.op_names)
    }
    first = {stage: next(n for n in ns if n.startswith(f"{stage}F0")) for stage in range(4)}
    assert [homes[first[s]] for s in range(4)] == ["slow", "fast", "fast", "slow"]
    assert ns[first[0]] == ns[first[3]] > ns[first[1]] == ns[first[2]]


def test_a_stage_with_two_homes_of_different_speed_is_refused(tmp_path: Path) -> None:
    text = TWO_SPEEDS.replace("policy: 1f1b", "policy: chimera")
    with pytest.raises(ScenarioError, match="stage 0 lives on slow and fast, which take different times"):
        run(tmp_path, text)


def test_a_switch_is_no_rank(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"9 ranks, 8 GPUs \(gpu0, .*gpu7\); make fewer stages"):
        run(tmp_path, PLAIN, "workload.pipeline.stages=9", "workload.pipeline.model.layers=9")
    with pytest.raises(ScenarioError, match="nvswitch can run no op"):
        run(tmp_path, PLAIN, "workload.pipeline.stages=1", "workload.pipeline.devices=[nvswitch]")


def test_layers_of_a_graph_are_timed_where_they_run(tmp_path: Path) -> None:
    graph = Path(__file__).resolve().parents[2] / "scenarios" / "examples" / "graphs" / "inception_v1.json.gz"
    shutil.copy(graph, tmp_path)
    text = TWO_SPEEDS.replace(MODEL, f"graph: {graph.name}, partition: [60, 83]")
    slow_first = forwards(run(tmp_path, text))
    swapped = forwards(run(tmp_path, text, "workload.pipeline.devices=[fast, slow]"))
    assert slow_first["slow"] > 2 * swapped["fast"]
    assert swapped["slow"] > 2 * slow_first["fast"]


def test_collectives_run_beside_the_computation_of_a_preset(tmp_path: Path) -> None:
    """Kernels compete for SMs; an op of a phase stands for many of them, so a collective finds room."""
    text = PLAIN.replace(
        "machine: {preset: dgx-h200}", "machine: {devices: {gpu: {preset: h200-sxm, count: 2, streams: 2}}}"
    )
    text = text.replace("stages: 8", "stages: 2, dp: {all_reduce: 100us}")
    shared = run(tmp_path, text).trace
    assert shared.makespan_ns == run(tmp_path, text, "machine.devices.gpu.sharing=none").trace.makespan_ns


@pytest.mark.parametrize(
    ("policy", "stages"), [("1f1b", 8), ("{name: interleaved-1f1b, chunks: 2}", 16), ("zb-v", 16)]
)
@pytest.mark.parametrize("timed", ["machine", "rate", "layers"])
def test_ranks_use_every_device_whatever_the_chunks(
    tmp_path: Path, policy: str, stages: int, timed: str
) -> None:
    text = PLAIN.replace("layers: 8", "layers: 16").replace("stages: 8", "ranks: 8")
    if timed == "rate":
        text = text.replace("sequence: 512", "sequence: 512, rate: 100TFLOP/s")
        text = text.replace("machine: {preset: dgx-h200}\n", "")
    elif timed == "layers":
        layer = "{forward: 1ms, input_grad: 1ms, weight_grad: 1ms}"
        text = text.replace(MODEL.replace("layers: 8", "layers: 16"), f"layers: [{', '.join([layer] * 16)}]")
    found = block(run(tmp_path, text.replace("policy: 1f1b", f"policy: {policy}")))
    assert (found["ranks"], found["stages"], len(set(found["devices"]))) == (8, stages, 8)
    assert len(set(found["busy_ns"])) == 1  # no output layer: the same work everywhere


def test_a_partition_has_the_stages_that_ranks_and_chunks_make(tmp_path: Path) -> None:
    layers = ", ".join(["{forward: 1ms, backward: 1ms}"] * 4)
    text = f"""\
workload:
  pipeline: {{layers: [{layers}], ranks: 2, partition: [1, 3], micro_batches: 2}}
policy: 1f1b
"""
    assert block(run(tmp_path, text))["busy_ns"] == [4_000_000, 12_000_000]
    with pytest.raises(
        ScenarioError, match=r"partition has 3 stages, and there are 2 \(ranks: 2, chunks: 1\)"
    ):
        run(tmp_path, text.replace("[1, 3]", "[1, 1, 2]"))
    with pytest.raises(ScenarioError, match=r"partition has 3 stages, and there are 2$"):
        run(tmp_path, text.replace("[1, 3]", "[1, 1, 2]").replace("ranks: 2", "stages: 2"))


def test_a_comparison_says_first_who_uses_how_many_devices(tmp_path: Path) -> None:
    compared = PLAIN.replace("layers: 8", "layers: 16") + "compare: [1f1b, zb-v]\n"
    out = sim("compare", write(tmp_path, compared)).stdout.splitlines()
    assert out[0] == "a model: the runs use different numbers of devices (1f1b on 8; zb-v on 4)"
    equal = write(tmp_path, compared.replace("stages: 8", "ranks: 8"))
    assert sim("compare", equal).stdout.splitlines()[0] == "a model"
    told = json.loads(sim("compare", equal, "--json").stdout)
    assert [result["devices_used"] for result in told["results"]] == [8, 8]
