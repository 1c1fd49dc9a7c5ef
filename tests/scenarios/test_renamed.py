"""Keys of older versions: each is refused where it stands, and the message says what to write instead."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from scenario_texts import write

from scenarios.file.faults import RENAMED
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim.base.errors import ScenarioError

DEVICE = "machine: {devices: {d: {%s}}}\n%s\nworkload: {ops: {a: {duration: 10us, output: 1MB}}}\n"
RUN = DEVICE % (
    "kind: gpu",
    "training_run: {steps: 2, workers: 1, recovery: [restart-job], checkpoint: {every: 1, %s}}",
)

CASES = {
    "policy.allocator": (
        DEVICE % ("kind: gpu", "policy: {name: in-order, allocator: bfc}"),
        DEVICE % ("kind: gpu, memory: 1GB", "memory: {allocator: bfc}"),
    ),
    "compare.*.allocator": (
        DEVICE % ("kind: gpu", "compare: [{name: in-order, allocator: bfc}]"),
        DEVICE % ("kind: gpu, memory: 1GB", "compare: [{name: in-order, set: {memory.allocator: bfc}}]"),
    ),
    "machine.devices.*.allocator": (
        DEVICE % ("kind: gpu, allocator: pool", ""),
        DEVICE % ("kind: gpu", "memory: {devices: {d: pool}}"),
    ),
    "memory.limits": (
        DEVICE % ("kind: gpu", "memory: {limits: {a: 2MB}}"),
        DEVICE % ("kind: gpu", "memory: {allocator: {name: pool, limits: {a: 2MB}}}"),
    ),
    "memory.allocator.lifetime": (
        DEVICE % ("kind: gpu", "memory: {allocator: {name: pool, lifetime: issue}}"),
        DEVICE % ("kind: gpu", "memory: {allocator: pool, lifetime: issue}"),
    ),
    "memory.allocator.when_full": (
        DEVICE % ("kind: gpu, memory: 1GB", "memory: {allocator: {name: pool, when_full: wait}}"),
        DEVICE % ("kind: gpu, memory: 1GB", "memory: {allocator: pool, when_full: wait}"),
    ),
    "machine.devices.*.dma_engines": (
        DEVICE.replace("}}}", "}, e: {kind: cpu}}, links: [{from: d, to: e}]}", 1)
        % ("kind: npu, dma_engines: 1", ""),
        DEVICE.replace("}}}", "}, e: {kind: cpu}}, links: [{from: d, to: e}]}", 1)
        % ("kind: npu, copy_engines: 1", ""),
    ),
    "machine.devices.*.sm_fraction": (
        DEVICE % ("kind: gpu, sms: 8, sharing: sm, streams: 2, sm_fraction: 0.5", ""),
        "machine: {devices: {d: {kind: gpu, sms: 8, sharing: sm, streams: 2, peak: 1TFLOP/s, "
        "use_sms: 50%}}}\n"
        "workload: {ops: {a: {kind: matmul, flops: 1GFLOP, dtype: fp32}}}\n",
    ),
    "training_run.checkpoint.restore_bandwidth": (
        RUN % "size: 1GB, bandwidth: 1GB/s, restore_bandwidth: 2GB/s",
        RUN % "size: 1GB, bandwidth: 1GB/s",
    ),
    "machine.devices.*.memory_fraction": (
        DEVICE % ("kind: gpu, memory: 1GB, memory_fraction: 50%", ""),
        DEVICE % ("kind: gpu, memory: 500MB", ""),
    ),
    "machine.links.*.source": (
        DEVICE.replace("}}}", "}, e: {kind: cpu}}, links: [{from: d, to: e, source: x}]}", 1)
        % ("kind: gpu", ""),
        DEVICE.replace("}}}", "}, e: {kind: cpu}}, links: [{from: d, to: e, sources: x}]}", 1)
        % ("kind: gpu", ""),
    ),
}
"""Key that is gone -> a scenario with it, and the one to write instead."""


def test_every_row_is_tried() -> None:
    assert sorted(CASES) == sorted(RENAMED)


@pytest.mark.parametrize("key", CASES)
def test_an_old_key_is_answered_with_the_new_one(tmp_path: Path, key: str) -> None:
    old, new = CASES[key]
    with pytest.raises(ScenarioError) as caught:
        load_scenario(write(tmp_path, old))
    place = re.escape(key).replace(r"\*", r"[^.]+")
    assert re.search(rf"s\.yaml:\d+:\d+: {place}: {re.escape(RENAMED[key])}$", str(caught.value))
    scenario = load_scenario(write(tmp_path, new))
    for case in scenario.cases():
        run_scenario(scenario, None if case.label in ("ready-queue", "policy") else case.label)


def test_several_old_keys_are_told_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = DEVICE % ("kind: gpu, dma_engines: 1, sm_fraction: 0.5", "memory: {limits: {a: 2MB}}")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(write(tmp_path, text))
    keys = [line.split(": ")[1].rpartition(".")[2] for line in str(caught.value).splitlines()]
    assert keys == ["dma_engines", "sm_fraction", "limits"]
