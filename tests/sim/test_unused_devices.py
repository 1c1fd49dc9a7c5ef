"""Free ops go to accelerators first, and every command that prints a result names what it did not use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import sim
from scenario_texts import write

from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Machine, simulate

MIXED = """\
machine:
  devices:
    cpu0: {kind: cpu, cores: 4}
    fabric: {kind: switch}
    gpu: {kind: gpu, count: 2}
workload:
  ops:
    a: {duration: 10us}
    b: {duration: 10us, inputs: [a]}
policy: {name: ready-queue}
expect: {makespan: 20us}
"""


def test_free_ops_go_to_the_first_accelerator_and_host_ops_to_the_cpu() -> None:
    b = GraphBuilder("mixed")
    b.op("free", duration_ns=10)
    b.op("host", duration_by_kind={"cpu": 10})
    b.op("pinned", duration_ns=10, device="cpu")
    devices = Device("fabric", "switch"), Device("cpu0", "cpu", workers=1), Device("npu0", "npu"), Device("g")
    job = simulate(b.build(), Machine(devices), ReadyQueue()).job
    assert [devices[d].name for d in job.device_of] == ["npu0", "cpu0", "cpu0"]


def test_a_pin_that_is_a_name_and_a_kind_is_the_name() -> None:
    b = GraphBuilder("pinned")
    b.op("a", duration_ns=10, device="gpu")
    devices = Device("other", "gpu"), Device("gpu", "gpu"), Device("cpu0", "cpu", workers=1)
    assert simulate(b.build(), Machine(devices), ReadyQueue()).job.device_of.tolist() == [1]


def test_without_an_accelerator_they_go_to_the_first_cpu() -> None:
    b = GraphBuilder("host only")
    b.op("free", duration_ns=10)
    devices = Device("fabric", "switch"), Device("cpu0", "cpu", workers=1), Device("cpu1", "cpu", workers=1)
    assert simulate(b.build(), Machine(devices), ReadyQueue()).job.device_of.tolist() == [1]


@pytest.mark.parametrize(
    "command",
    [
        ("run",),
        ("explain",),
        ("compare", "--policy", "ready-queue", "--policy", "in-order"),
        ("check",),
        ("sweep", "--vary", "seed=0,1"),
    ],
)
def test_every_command_names_unused_devices(tmp_path: Path, command: tuple[str, ...]) -> None:
    verb, *options = command
    path = write(tmp_path, MIXED)
    out = sim(verb, path, *options).stdout
    assert "unused: cpu0, gpu1" in out
    assert "fabric" not in out
    assert '"unused_devices"' in sim(verb, path, *options, "--json").stdout
    out = sim(verb, path, *options, "--set", "machine.devices.gpu.count=40").stdout
    assert verb == "check" or "unused: cpu0, gpu1, gpu2, gpu3, gpu4, gpu5, gpu6, gpu7 and 32 more" in out


def test_a_comparison_says_which_run_left_what_unused(tmp_path: Path) -> None:
    text = (
        MIXED + "compare:\n  - ready-queue\n  - {name: ready-queue, label: spread, placement: round-robin}\n"
    )
    out = sim("compare", write(tmp_path, text)).stdout
    assert "unused under ready-queue: cpu0, gpu1" in out


def test_a_device_that_data_passes_is_used(tmp_path: Path) -> None:
    text = MIXED.replace("a: {duration: 10us}", "a: {duration: 10us, device: cpu0, output: 1MB}").replace(
        "workload:",
        "  links:\n    - {from: cpu0, to: fabric, bandwidth: 1GB/s}\n"
        "    - {from: fabric, to: gpu*, bandwidth: 1GB/s}\nworkload:",
    )
    found = json.loads(sim("run", write(tmp_path, text.partition("expect")[0]), "--json").stdout)
    assert found["unused_devices"] == ["gpu1"]
