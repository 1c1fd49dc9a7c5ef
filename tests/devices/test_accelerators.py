"""Which devices ranks and replicas are on that nobody names: accelerators of the machine, in its order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from scenarios.run.execute import Result, run_scenario
from scenarios.run.load import load_scenario
from sim.base.errors import InputError, ScenarioError

NODES = {
    "devices": {
        "cpu0": {"kind": "cpu"},
        "gpu": {"kind": "gpu", "count": 2, "streams": 5, "bandwidth": "1GB/s"},
    },
    "nodes": 3,
    "collectives": {"bandwidth": "1GB/s"},
}
STEP = {
    "inputs": {"x": "40B"},
    "parameters": {"w": "400B", "v": "400B"},
    "ops": {
        "up": {"kind": "matmul", "inputs": ["x", "w"], "output": "80B", "duration": "100ns"},
        "down": {"kind": "matmul", "inputs": ["up", "v"], "output": "40B", "duration": "100ns"},
    },
}
ALL = [f"node{n}/gpu{g}" for n in range(3) for g in range(2)]


def ran(
    path: Path, compile_: list[Any], machine: dict[str, Any] = NODES, workload: dict[str, Any] = STEP
) -> Result:
    """Run a scenario on three nodes of two GPUs."""
    policy = {"runtime": "pytorch-distributed", "compile": compile_}
    path.write_text(yaml.safe_dump({"machine": machine, "workload": workload, "policy": policy}))
    return run_scenario(load_scenario(path), check=True)


def used(result: Result) -> list[str]:
    """Return the devices that run something."""
    job = result.trace.job
    return [job.machine.devices[d].name for d in sorted({*job.device_of.tolist()})]


@pytest.mark.parametrize(
    ("compile_", "devices"),
    [
        (["training", {"name": "ddp", "ranks": 3}], ALL[:3]),
        (["training", {"name": "ddp"}], ALL),
        (["training", {"name": "tensor-parallel", "ranks": 2}, {"name": "fsdp2", "shard": 3}], ALL),
        (["training", {"name": "tensor-parallel", "ranks": 2}, {"name": "zero-1", "ranks": 2}], ALL[:4]),
        (["training", {"name": "ddp", "ranks": ["node2/gpu1", "node0/gpu0"]}], [ALL[0], ALL[5]]),
        (
            ["training", {"name": "parameter-server", "workers": 4, "servers": ["node0/gpu1", "node2/gpu1"]}],
            ALL,
        ),
    ],
    ids=str,
)
def test_ranks_are_the_accelerators_in_machine_order(
    compile_: list[Any], devices: list[str], tmp_path: Path
) -> None:
    assert used(ran(tmp_path / "a.yaml", compile_)) == devices


@pytest.mark.parametrize(
    ("compile_", "message"),
    [
        (
            ["training", {"name": "ddp", "ranks": 7}],
            "compile.1.ranks: ddp: there are 7 ranks, and the machine has 6",
        ),
        (
            ["training", {"name": "tensor-parallel", "ranks": 2}, {"name": "ddp", "ranks": 6}],
            r"compile.2.ranks: ddp: there are 12 ranks \(tp 2 x dp 6\), and the machine has 6",
        ),
        (
            ["training", {"name": "tensor-parallel", "ranks": 4}, {"name": "ddp"}],
            "compile.2.*: ddp: the machine has 6 accelerators, which 4 ranks each cannot share evenly",
        ),
        (
            ["training", {"name": "parameter-server", "workers": 6, "servers": ["node0/gpu1"]}],
            "compile.1.workers: parameter-server: the machine has 5 accelerators for 6 workers",
        ),
        (
            ["training", {"name": "tensor-parallel", "ranks": ALL[:2]}, {"name": "ddp", "ranks": 2}],
            "compile.2.ranks: ddp: there are 2 ranks already, so give the number of parts",
        ),
        (["training", {"name": "fsdp2", "shard": 4}], "compile.1.shard: fsdp2: .*6 ranks cannot be divided"),
    ],
    ids=str,
)
def test_who_does_not_fit_is_told_both_numbers(compile_: list[Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=message) as error:
        ran(tmp_path / "a.yaml", compile_)
    name = compile_[-1]["name"]
    assert str(error.value).count(f"{name}: ") == 1


def test_without_a_machine_somebody_has_to_say_how_many() -> None:
    from parallel_helpers import layers

    from policies.parallel.ddp import DistributedDataParallel

    with pytest.raises(InputError, match="ddp: give ranks"):
        DistributedDataParallel().apply(layers([40]))


def test_replicas_of_a_builder_are_accelerators_whatever_they_are_called(tmp_path: Path) -> None:
    build = {"model": "data-loading", "load": "2ns", "train": "4ns"}
    machine = {"devices": {"cpu": {"kind": "cpu"}, "tpu": {"kind": "tpu", "count": 4, "streams": 2}}}
    found = ran(tmp_path / "a.yaml", [], machine, {"build": {**build, "replicas": 3}})
    assert [name for name in used(found) if name != "cpu"] == ["tpu0", "tpu1", "tpu2"]
    with pytest.raises(
        ScenarioError, match=r"build\.replicas: needs an accelerator for each replica, 5; the machine has 4"
    ):
        ran(tmp_path / "a.yaml", [], machine, {"build": {**build, "replicas": 5}})
