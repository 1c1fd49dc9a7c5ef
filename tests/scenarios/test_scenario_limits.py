"""A scenario can use less than there is: cores, threads, a part of the memory, a part of the SMs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from runs import run_text

from sim.base.errors import OutOfMemoryError, ScenarioError

CPU = "machine: {devices: {cpu0: {kind: cpu, cores: 4}}}\nworkload:\n  ops:\n" + "".join(
    f"    op{i}: {{duration: 10us}}\n" for i in range(8)
)
"""Eight independent ops of 10 us on four cores: 20 us."""

GPU = """\
machine:
  devices:
    gpu0: {kind: gpu, sms: 100, peak: 1TFLOP/s, memory: 100MB, streams: 2, sharing: sm}
workload:
  ops:
    a: {flops: 10MFLOP, output: 60MB, attributes: {grid: 100}}
    b: {flops: 10MFLOP, output: 30MB, attributes: {grid: 100}}
policy: {name: in-order, synchronisation: issue, streams: round-robin}
"""
"""Two products of 10 us, each filling the GPU: one after the other, 20 us."""


def makespan(folder: Path, text: str, *sets: str) -> int:
    return run_text(text, folder, *sets).trace.makespan_ns


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("cores=4", 20_000),
        ("cores=2", 40_000),  # two workers on two cores
        ("workers=1", 80_000),  # one thread, whatever the cores
        ("workers=3", 30_000),  # three at a time: 3 + 3 + 2
        ("workers=8", 20_000),  # eight threads on four cores: all at half speed
        ("cores_per_op=2", 40_000),  # two ops at a time; explicit durations are what they are
    ],
)
def test_cores_and_threads(tmp_path: Path, setting: str, expected: int) -> None:
    assert makespan(tmp_path, CPU, f"machine.devices.cpu0.{setting}") == expected


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("use_sms=100%", 20_000),
        ("use_sms=50%", 40_000),  # 50 SMs: half the rate, and still one after the other
        ("use_sms=25%", 80_000),
        ("use_sms=20", 100_000),
    ],
)
def test_a_part_of_the_sms(tmp_path: Path, setting: str, expected: int) -> None:
    assert makespan(tmp_path, GPU, f"machine.devices.gpu0.{setting}") == expected


def test_a_part_of_the_memory(tmp_path: Path) -> None:
    """One after the other each is freed when it ends (nobody reads it): 60 MB at the peak."""
    assert makespan(tmp_path, GPU, "machine.devices.gpu0.memory=95MB") == 20_000
    with pytest.raises(
        OutOfMemoryError, match=r"'a' asks for 57.22 MiB.*before time 0\n  limit            47.68 MiB"
    ):
        makespan(tmp_path, GPU, "machine.devices.gpu0.memory=50MB")


@pytest.mark.parametrize(
    ("text", "setting", "says"),
    [
        (CPU, "machine.devices.cpu0.cores_per_op=8", "an op cannot use 8 cores of 4"),
        (GPU, "machine.devices.gpu0.use_sms=200", "there are only 100 SMs, not 200"),
        (GPU, "machine.devices.gpu0.use_sms=150%", "use_sms"),
    ],
)
def test_more_than_there_is(tmp_path: Path, text: str, setting: str, says: Any) -> None:
    with pytest.raises(ScenarioError, match=says):
        makespan(tmp_path, text, setting)


LOADING = """\
workload:
  build: {model: MODEL, load: 2us, train: 3us, workers: 2, MORE}
"""


@pytest.mark.parametrize(
    ("model", "more", "most"),
    [
        ("data-loading", "preprocess: 1us", 32768),
        ("data-loader", "steps: 4", 65536),
        ("tf-data", "steps: 4", 65536),
    ],
)
def test_more_workers_than_cpus_have_cores(tmp_path: Path, model: str, more: str, most: int) -> None:
    """They load on a default machine; the message names the key that somebody wrote."""
    text = LOADING.replace("MODEL", model).replace("MORE", more)
    says = rf"workload\.build\.workers: should be less than or equal to {most}, not 100000"
    with pytest.raises(ScenarioError, match=says):
        makespan(tmp_path, text, "workload.build.workers=100000")


def test_a_default_machine_that_is_too_large(tmp_path: Path) -> None:
    text = LOADING.replace("MODEL", "data-loader").replace("MORE", "steps: 4")
    says = r":1:1: workload: its default machine cannot be: machine\.devices: 6,553,900 cores and"
    with pytest.raises(ScenarioError, match=says):
        makespan(tmp_path, text, "workload.build.workers=65536", "workload.build.replicas=100")
