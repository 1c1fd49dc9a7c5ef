"""Calibrations of a training step: files, names, and what each number does."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from math import exp
from pathlib import Path

import pytest
from cli_runner import sim
from pydantic import ValidationError
from test_train import PLAIN, training

from devices.collectives.groups import NodeFabrics, RankGroup
from scenarios.builders.train.architecture import MODELS, Architecture
from scenarios.builders.train.kernels import Attention, Product
from scenarios.builders.train.layout import ParallelLayout
from scenarios.builders.train.step import step_ns
from scenarios.builders.train.training import Training
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from scenarios.workloads.calibrations import (
    CalibrationFields,
    calibration_names,
    from_simumax,
    named_calibration,
    read_calibration,
    to_calibration,
)
from scenarios.workloads.train_report import step_interval
from sim.base.errors import InputError


def test_calibrations_of_the_project_can_be_read() -> None:
    assert {"a100-sxm-80", "h100-sxm"} <= set(calibration_names())
    for name in calibration_names():
        of = named_calibration(name)
        assert of.memory
        assert of.peak > 1e14


def _fabrics(given: dict[str, object]) -> NodeFabrics:
    found = to_calibration(CalibrationFields.model_validate(given), "c").collectives
    assert isinstance(found, NodeFabrics)
    return found


def test_messages_between_nodes_take_nccls_latencies_unless_told() -> None:
    def fabrics(**more: object) -> NodeFabrics:
        between = {"bandwidth": "50GB/s", "efficiency": {"default": 0.744}, **more}
        node = {"bandwidth": "1GB/s", "latency": {"default": "1us"}}
        given = {"device": "h100-sxm", "node": node, "network": between}
        return _fabrics(given)

    fixed = {"default": "3us"}
    assert fabrics() == fabrics(latency="nccl")
    assert fabrics().between == named_calibration("h100-sxm-mosaicml").collectives.between  # type: ignore[attr-defined]
    assert fabrics().nccl
    none = fabrics(latency={"default": "0us"}, fixed=fixed)
    assert (none.nccl, none.between.hop_ns("send"), none.between.call_ns("send", 2)) == (False, 0.0, 3000.0)
    with pytest.raises(ValidationError, match="give fixed together with latency"):
        fabrics(fixed=fixed)
    with pytest.raises(ValidationError, match="give fixed together with latency"):
        fabrics(latency="nccl", fixed=fixed)
    with pytest.raises(ValidationError, match="unknown kind of collective 'defalt'; did you mean 'default'"):
        fabrics(latency={"defalt": "4us"})
    with pytest.raises(ValidationError, match="unknown kind of collective 'sent'; did you mean 'send'"):
        fabrics(latency={"default": "4us"}, fixed={"sent/4": "1us"})


def test_efficiencies_of_so_many_ranks() -> None:
    """Seven links connect a MI300X with the seven others: of two GPUs one connects both, of four three."""
    node = _fabrics({"from": "mi300x"}).node
    rates = [node.rate("all_gather", ranks) / 448e9 for ranks in (2, 4, 8)]
    assert rates == [0.1, 0.3, 0.7]
    assert node.rate("send", 8) == 448e9 * 0.1
    both = replace(node, efficiency={"all_gather/2": 0.5, **node.efficiency})
    assert both.time_ns("all_gather", 448_000_000, 2) == 5000 + 0.5 * 448e6 / 224
    with pytest.raises(ValidationError, match="unknown kind of collective 'defalt'"):
        _fabrics({"from": "mi300x", "node": {"efficiency": {"defalt/2": 0.1}}})


def test_a_node_without_latency_says_so() -> None:
    given = {"device": "h100-sxm", "node": {"bandwidth": "1GB/s"}, "network": {"bandwidth": "1GB/s"}}
    with pytest.warns(
        UserWarning, match="c: node has no latency, so that messages inside a node are counted"
    ):
        assert _fabrics(given).node.hop_ns("send") == 0
    given["node"]["latency"] = {"default": "0us"}  # type: ignore[index]
    assert _fabrics(given).node.hop_ns("send") == 0


@pytest.mark.parametrize(("gpus", "told"), [(1, ["node", "network"]), (8, ["network"]), (16, [])])
def test_a_network_that_no_message_crosses_is_told(gpus: int, told: list[str], tmp_path: Path) -> None:
    path, fabric = tmp_path / "t.yaml", "bandwidth: 1GB/s, latency: {default: 1us}"
    path.write_text(
        f"workload: {{train: {{model: {{layers: 4, hidden: 256, heads: 4, vocabulary: 1000}}, gpus: {gpus}, "
        f"batch: {gpus}, sequence: 128, calibration: {{from: h100-sxm-mosaicml, node: {{{fabric}}}, "
        f"network: {{{fabric}}}}}}}}}\n"
    )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_scenario(load_scenario(path))
    assert [str(w.message).partition(" has no effect: ")[0] for w in caught] == [
        f"calibration.{name}" for name in told
    ]


def test_a_calibration_file_says_where_it_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(
        "device: h100-sxm\nproducts: 0.5\nnode: {bandwidth: 1GB/s}\nnetwork: {bandwidth: 1GB/s}\n"
    )
    with pytest.raises(InputError, match=r"c\.yaml:2:1: products: no such key; did you mean 'product'"):
        read_calibration(path)
    path.write_text(
        path.read_text().replace("products", "product") + "measured: [{product: [1, 2], efficiency: 1}]\n"
    )
    with pytest.raises(InputError, match=r"m, k, n, and perhaps groups"):
        read_calibration(path)
    path.write_text('{"measured": [], "device": "h100-sxm", "device": "b200"}')
    with pytest.raises(InputError, match=r"c\.yaml: not JSON: the key 'device' stands twice"):
        read_calibration(path)
    path.write_text('{"accelerator": {}, "networks": {}}')
    with pytest.raises(InputError, match="is no system file of SimuMax: KeyError at 'op'"):
        read_calibration(path)


def test_a_system_file_of_simumax(data_dir: Path) -> None:
    """Its own numbers come back: a product at 64.5 % of 2250 TFLOP/s, all-gather at 0.6735 of 900 GiB/s."""
    of = read_calibration(data_dir / "cluster" / "simumax_b200_system.json.gz")
    product = Product(4096, 8192, 10240)
    assert of.kernel_ns(product) == pytest.approx(product.flops / (2250e12 * 0.6451614102335537) * 1e9)
    ns = 8 * 9182.8 - 9182.8 + 23104.9 + (7 / 8 * 2**30) / (900 * 2**30 * 0.6735) * 1e9
    assert of.collective_ns("all_gather", 2**30, RankGroup(8, 1)) == pytest.approx(ns)
    attention = Attention(1, 4096, 128, 128, 192, 128, backward=True)
    theirs = 5 * 128 * 4096**2 * (192 + 128) / (2250e12 * 0.6440)
    assert of.kernel_ns(attention) == pytest.approx(theirs * 1e9, rel=1e-3)
    with pytest.raises(InputError, match="no system file"):
        from_simumax({"accelerator": {"op": {}}, "networks": {}})


def test_gradients_that_a_rank_does_not_hold_take_no_time() -> None:
    """A stage of p parameters over n replicas: with zero-1 every pass counts p, with zero-2 p / n of them."""
    times = {}
    for sharding in ("zero-1", "zero-2"):
        slow = replace(PLAIN, memory_bandwidth=1e9)  # a byte in a ns
        step = replace(training(ParallelLayout(dp=4, sharding=sharding)), calibration=slow)
        (stage,) = step.each_stage
        times[sharding] = step.optimizer_ns(stage)
        p, s, g = stage.parameters, step.share(stage), step.gradient_bytes
        held = p if sharding == "zero-1" else s
        assert step.gradients_held(stage) == held
        passes = (g * held, g * held, 2 * g * held, g * s, 2 * g * s, (g + 24) * s, 6 * s)
        assert times[sharding] == sum(slow.pass_ns(nbytes) for nbytes in passes)
    assert times["zero-2"] < times["zero-1"]


def test_fsdp_in_a_pipeline_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "step.yaml"
    path.write_text(
        "workload: {train: {model: llama2-7b, calibration: h100-sxm-mosaicml, sequence: 4096, "
        "micro_batch: 1, batch: 64, parallel: {tp: 2, pp: 2, dp: 16, sharding: fsdp}}}\n"
    )
    told = json.loads(sim("run", path, "--json").stdout)["train"]
    zero_1 = ["--set", "workload.train.parallel.sharding=zero-1"]
    other = json.loads(sim("run", path, *zero_1, "--json").stdout)["train"]
    assert (told["step_ns"], told["peak_bytes"]) == (other["step_ns"], other["peak_bytes"])
    assert [note.partition(":")[0] for note in told["notes"]] == [
        "fsdp in a pipeline keeps parameters and gradients whole within a step, as torchtitan does"
    ]
    assert other["notes"] == []


def test_layers_that_do_not_divide_evenly_are_told(tmp_path: Path) -> None:
    path = tmp_path / "step.yaml"
    path.write_text(
        "workload: {train: {model: llama2-7b, calibration: h100-sxm-mosaicml, sequence: 4096, "
        "micro_batch: 1, batch: 12, parallel: {pp: 3, dp: 1}}}\n"
    )
    given = ["--set", "workload.train.partition=[11, 11, 10]"]
    told, same = (json.loads(sim("run", path, *more, "--json").stdout)["train"] for more in ([], given))
    assert told["notes"] == ["layers do not divide evenly: taken as partition: [11, 11, 10]"]
    assert (same["notes"], same["step_ns"]) == ([], told["step_ns"])
    given += ["--set", "workload.train.recompute=selective"]
    notes = [
        json.loads(sim("run", path, *given, *more, "--json").stdout)["train"]["notes"]
        for more in ([], ["--set", "workload.train.attention=eager"])
    ]
    assert notes == [["recompute: selective frees little here, as attention: flash keeps no scores"], []]


def test_fsdp_overlaps_whatever_is_asked_for(tmp_path: Path) -> None:
    """And says so where it was asked for."""
    path = tmp_path / "step.yaml"
    path.write_text(
        "workload: {train: {model: llama2-7b, calibration: h100-sxm-mosaicml, sequence: 4096, "
        "micro_batch: 1, batch: 64, parallel: {dp: 64, sharding: fsdp}}}\n"
    )
    plain, asked = (
        json.loads(sim("run", path, "--set", f"workload.train.overlap={overlap}", "--json").stdout)["train"]
        for overlap in ("false", "true")
    )
    assert plain["step_ns"] == asked["step_ns"]
    said = [note.partition(":")[0] for note in asked["notes"] if note not in plain["notes"]]
    assert said == ["overlap"]


def test_a_shipped_calibration_with_other_numbers() -> None:
    fields = {"from": "h100-sxm", "network": {"bandwidth": "100GB/s"}, "gap": "3us"}
    of = to_calibration(CalibrationFields.model_validate(fields), "mine")
    shipped = named_calibration("h100-sxm")
    assert isinstance(shipped.collectives, NodeFabrics)
    faster = replace(shipped.collectives.between, bandwidth=100e9)
    collectives = replace(shipped.collectives, between=faster)
    assert of == replace(shipped, name="mine", collectives=collectives, gap_ns=of.gap_ns)
    assert of.gap_ns == 3_000
    with pytest.raises(
        ValueError, match="no calibration 'h100'; did you mean 'h100-sxm' or 'h100-sxm-mosaic"
    ):
        CalibrationFields.model_validate({"from": "h100"})


def test_nccl_takes_the_place_of_shipped_collectives() -> None:
    of = CalibrationFields.model_validate({"from": "h100-sxm", "nccl": "h100"})
    assert of.node is None
    assert of.network is None


@pytest.mark.parametrize("name", ["a100-sxm-40", "h200-sxm", "b300-sxm", "gb200", "gb300"])
def test_a_gpu_by_its_name_adds_nothing_to_kernels_alone_and_says_so(name: str) -> None:
    """A product takes what the cost model of the preset says; the domain of NVLink is the GPU's."""
    of = named_calibration(name)
    assert of.is_unfitted
    assert of.alone is not None
    kernel = Product(4096, 4096, 4096)
    alone = of.alone.ns([kernel])[0] / of.sustained  # more where it was measured on a GPU of less power
    assert of.kernel_ns(kernel) == pytest.approx(alone, rel=0.001)  # far from the peak
    assert of.sustained == {"b300-sxm": 1.1, "gb300": 1.167}.get(name, 1.0)
    assert of.node == (72 if name.startswith("gb") else 8)
    assert not named_calibration("h100-sxm-mosaicml").is_unfitted


def test_what_a_precision_is_worth_can_be_asked(tmp_path: Path) -> None:
    """Products in fp8 take less than in bf16 and more than in nvfp4; a GPU without it refuses."""
    path = tmp_path / "step.yaml"
    path.write_text(
        "workload: {train: {model: llama3-8b, calibration: gb200, sequence: 8192, batch: 16, gpus: 8}}\n"
    )
    step = {}
    for dtype in ("bf16", "fp8", "nvfp4"):
        told = json.loads(sim("run", path, "--set", f"workload.train.dtype={dtype}", "--json").stdout)[
            "train"
        ]
        step[dtype] = told["step_ns"]
        assert told["notes"][0].startswith("kernels take as long as they do alone")
    assert step["nvfp4"] < step["fp8"] < step["bf16"]
    path.write_text(path.read_text().replace("gb200", "h100-sxm"))
    refused = sim("run", path, "--set", "workload.train.dtype=nvfp4")
    assert refused.exit_code == 2
    assert "peak (of nvfp4) is missing" in refused.stderr


def test_a_step_says_how_sure_it_is(tmp_path: Path) -> None:
    """Kinds err by themselves, kernels of one kind together; what was fitted to steps says nothing."""
    path = tmp_path / "step.yaml"
    path.write_text(
        "workload: {train: {model: {name: llama3-8b, layers: 8}, calibration: h100-sxm, sequence: 8192, "
        "batch: 8, gpus: 8}}\n"
    )
    told = json.loads(sim("run", path, "--json").stdout)
    step, sure = told["train"]["step_ns"], told["makespan_interval"]
    assert next(iter(sure["by_kind"])) == "matmul"
    assert {"matmul", "attention", "add"} == {*sure["by_kind"]}
    assert sum(one["path_ns"] for one in sure["by_kind"].values()) <= step
    below = sum((one["path_ns"] * (1 - exp(-one["spread"]))) ** 2 for one in sure["by_kind"].values()) ** 0.5
    assert step - sure["low_ns"] == pytest.approx(below, rel=0.001)
    assert (told["train"]["low_ns"], told["train"]["high_ns"]) == (sure["low_ns"], sure["high_ns"])
    assert sure["low_ns"] < step < sure["high_ns"] < 1.5 * step
    found = sim("sweep", path, "--vary", "workload.train.dtype=bf16,fp8", "--minimise", "step_time").stdout
    assert "  80 % interval " in found
    fitted = json.loads(
        sim("run", path, "--set", "workload.train.calibration=h100-sxm-mosaicml", "--json").stdout
    )
    assert fitted["train"]["low_ns"] is None
    assert fitted["makespan_interval"] is None


def test_what_runs_again_is_as_unsure_as_at_first() -> None:
    """Full recomputation: the forward's kernels of each kind count twice, all else once."""
    sizes = Architecture(layers=2, hidden=1024, heads=16, kv_heads=4, vocabulary=0, biases=False)
    plain = Training(sizes, ParallelLayout(), named_calibration("h100-sxm"), 1024, 1, 1)
    (stage,) = plain.each_stage
    told = []
    for of in (plain, replace(plain, recompute="full")):
        spent = of.each_stage[0].forward.plus(of.each_stage[0].backward)
        sure = step_interval(of, of.schedule, round(spent.ns))
        assert sure is not None
        told.append({kind: one["path_ns"] for kind, one in sure["by_kind"].items()})
    once, twice = told
    assert once["matmul"] == pytest.approx(stage.forward.products + stage.backward.products, abs=2)
    assert once["attention"] == pytest.approx(stage.forward.attention + stage.backward.attention, abs=2)
    assert twice["matmul"] - once["matmul"] == pytest.approx(stage.forward.products, abs=3)
    assert twice["add"] - once["add"] == pytest.approx(stage.forward.passes, abs=3)


def test_schedules_gain_on_an_mi300x_what_was_measured() -> None:
    """Speed of Llama 2 with 16 layers on eight stages, relative to 1F1B; nothing was fitted to it.

    Primus, docs_deprecated/tech_blogs/primus_pipeline: 16 layers, from 235.7 TFLOP/s at 10,057 tokens/s, and
    32 micro-batches as in its pp_simulation.yaml.
    """
    measured = {
        "interleaved-1f1b": 1.09,
        "zb-h1": 1.13,
        "zb-v": 1.12,
        "v-half": 1.08,
        "v-min": 0.88,
    }
    model = Architecture(**{**MODELS["llama2-7b"], "layers": 16})
    calibration = named_calibration("mi300x", "bf16")

    def step(policy: str, chunks: int) -> int:
        layout = ParallelLayout(pp=8, chunks=chunks)
        return step_ns(Training(model, layout, calibration, 4096, 1, 32, policy=policy))

    base = step("1f1b", 1)
    found = {name: base / step(name, 1 if name == "zb-h1" else 2) for name in measured}
    assert found == pytest.approx(measured, rel=0.08)
    assert sorted(found, key=found.__getitem__)[:3] == ["v-min", "v-half", "interleaved-1f1b"]
