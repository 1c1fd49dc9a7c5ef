"""What the command line says of streams to which nothing was assigned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import sim
from scenario_texts import TWO_RANKS, changed

SCENARIO = """\
machine: {devices: {gpu0: {kind: gpu, streams: 4}, gpu1: {kind: gpu, streams: 2}}}
workload:
  ops:
    a: {duration: 10us, device: gpu0}
    b: {duration: 20us, device: gpu0}
    c: {duration: 20us, device: gpu1}
compare: [ready-queue, {label: spread, name: ready-queue, streams: round-robin}]
"""
CPU = "machine.devices.cpu0"
NOTE = "gpu0 used 1 of 4 streams{by}; to use more, set policy.streams (per-branch, per-kind, "


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "streams.yaml"
    file.write_text(SCENARIO)
    return file


def test_streams_without_an_assignment_are_told_once_for_each_device(path: Path) -> None:
    shown = sim("run", path).stdout
    assert NOTE.format(by="") in shown
    assert "gpu1 used" not in shown  # one op needs no second stream


@pytest.mark.parametrize("streams", ["round-robin", "single"])
def test_where_streams_are_assigned_nothing_is_told(path: Path, streams: str) -> None:
    assert "to use more, set" not in sim("run", path, "--set", f"policy.streams={streams}").stdout


def test_a_comparison_names_whom_it_holds_for(path: Path) -> None:
    assert NOTE.format(by=" under ready-queue") in sim("compare", path).stdout
    both = sim("compare", path, "--policy", "ready-queue", "--policy", "in-order").stdout
    assert NOTE.format(by="") in both


def test_cores_that_ops_leave_idle_are_told(tmp_path: Path) -> None:
    """Each op gets an eighth of the peak, whatever a stranger means by eight cores and a peak."""
    file = tmp_path / "cpu.yaml"
    op = "{kind: matmul, dtype: fp32, flops: 8GFLOP, output: 1kB"
    file.write_text(
        "machine: {devices: {cpu0: {kind: cpu, cores: 8, peak: {fp32: 80GFLOP/s}, bandwidth: 1TB/s}}}\n"
        f"workload: {{ops: {{a: {op}}}, b: {op}, inputs: [a]}}}}}}\npolicy: sequential\n"
    )
    told = "cpu0 used 1 of 8 cores, and ops take as long as on one core"
    alone, all_cores = sim("run", file).stdout, sim("run", file, "--set", f"{CPU}.cores_per_op=8").stdout
    assert "makespan 1.6 s" in alone
    assert told in " ".join(alone.split())
    assert "makespan 200 ms" in all_cores
    assert "cores_per_op" not in all_cores
    given = sim("run", file, "--set", "workload.ops.a.duration=1s", "--set", "workload.ops.b.duration=1s")
    assert "cores_per_op" not in given.stdout
    slower = "machine.devices.cpu1: {kind: cpu, cores: 4, peak: {fp32: 8GFLOP/s}, bandwidth: 1TB/s}"
    runs = f"[{{label: one}}, {{label: two, set: {{{slower}, policy.placement: round-robin}}}}]"
    file.write_text(f"{file.read_text()}compare: {runs}\n")
    both = " ".join(sim("compare", file).stdout.split())
    assert f"{told}; to give" in both
    assert "cpu1 used 1 of 4 cores" in both


def test_json_stays_as_it_is(path: Path) -> None:
    assert "to use more, set" not in json.dumps(json.loads(sim("run", path, "--json").stdout))


RECORDED = (
    changed("count: 2,", "count: 2, streams: 2,", TWO_RANKS)
    + """\
compare: [{label: one}, {label: as recorded, streams: recorded}]
"""
)


def test_streams_that_ops_name_in_vain_are_told_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "ddp.yaml"
    file.write_text(RECORDED)
    shown = " ".join(sim("run", file).stdout.split())
    told = (
        "ops of gpu0 and 1 other device name 2 streams (compute, all_reduce), which nothing follows; to let"
    )
    assert shown.count(told) == 1
    assert "used 1 of" not in shown
    assert told not in " ".join(sim("run", file, "--set", "policy.streams=recorded").stdout.split())
    compared = " ".join(sim("compare", file).stdout.split())
    assert "which nothing follows under one; to let" in compared
    assert told not in " ".join(sim("run", file, "--set", "policy.streams=single").stdout.split())
    file.write_text(RECORDED.replace("name: in-order", "runtime: pytorch-eager"))
    eager = " ".join(sim("run", file).stdout.split())
    assert f"{told} them overlap as they say, set policy.streams: recorded, or runtime: pytorch-" in eager


def test_a_runtime_with_one_stream_says_that_the_others_are_unused(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(
        """\
machine: {devices: {gpu0: {kind: gpu, streams: 2}}}
workload: {ops: {a: {duration: 1us}, b: {duration: 1us}}}
policy: {runtime: onnxruntime}
"""
    )
    assert "gpu0 used 1 of 2 streams; to use more, set policy.streams" in sim("run", file).stdout
    assert "of 2 streams" not in sim("run", file, "--set", "policy.streams=single").stdout


@pytest.mark.filterwarnings("default:--set", "default:tensorflow")
def test_a_setting_that_a_runtime_replaces_is_reported(tmp_path: Path) -> None:
    file, setting = tmp_path / "two.yaml", ("--set", "policy.streams=per-branch")
    file.write_text(
        "machine: {devices: {gpu0: {kind: gpu, streams: 2}}}\nworkload: {ops: {a: {duration: 1us}}}\n"
    )
    warning = "warning: --set policy.streams=per-branch: has no effect, as a runtime makes all decisions"
    assert warning in sim("run", file, "--policy", "tensorflow", *setting).stderr
    assert not sim("run", file, "--policy", "ready-queue", *setting).stderr
    file.write_text(f"{file.read_text()}policy: {{name: in-order, compile: [prune, constant-folding]}}\n")
    warning = "warning: tensorflow: runs the graph without policy.compile (prune, constant-folding), as a"
    assert warning in sim("run", file, "--policy", "tensorflow").stderr
    assert not sim("run", file, "--policy", "ready-queue").stderr


def test_ops_of_a_branch_not_taken_are_on_no_stream(tmp_path: Path) -> None:
    file = tmp_path / "branch.yaml"
    file.write_text(
        """\
machine: {devices: {gpu0: {kind: gpu, streams: 2}}}
workload:
  ops:
    asks: {duration: 1us, attributes: {outcome: true}}
    data: {duration: 1us}
    branch: {kind: if, inputs: [asks, data], attributes: {then: one, else: other}}
  functions:
    one: {inputs: [x], ops: {a: {inputs: [x], duration: 2us}}, outputs: [a]}
    other: {inputs: [x], ops: {b: {inputs: [x], duration: 3us}}, outputs: [b]}
policy: sequential
"""
    )
    assert NOTE.format(by="").replace("4", "2") in sim("run", file).stdout
