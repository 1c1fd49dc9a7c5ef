"""Kernels that a user registers; the page that tells how is run as it stands."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from devices.cost.registered_kernels import Kernel, KernelCost, KernelFacts, kernel, kernels
from devices.machine import make_device
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim import Device, Graph, GraphBuilder
from sim.base import plugins
from sim.base.errors import InputError, UnknownNameError


def blocks(root: Path) -> dict[str, str]:
    """Return the code of the page's section by language; each occurs once."""
    page = (root / "docs" / "extending.md").read_text(encoding="utf-8")
    text = page.partition("\n## A device and its kernels")[2].partition("\n## ")[0]
    found = re.findall(r"^```(\w+)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    assert len({language for language, _ in found}) == len(found)
    return dict(found)


@pytest.fixture
def accelerator(root: Path) -> Iterator[ModuleType]:
    """Install the page's package: its module, and its entry points."""
    code = blocks(root)
    module = ModuleType("my_accelerator")
    exec(code["python"], module.__dict__)
    sys.modules["my_accelerator"] = module
    points = tomllib.loads(code["toml"])["project"]["entry-points"]
    for group, entries in points.items():
        for name, target in entries.items():
            plugins.register(group, name, getattr(module, target.partition(":")[2]))
    yield module
    for group, entries in points.items():
        for name in entries:
            plugins.unregister(group, name)
    del sys.modules["my_accelerator"]


def test_the_page_has_twenty_lines(root: Path) -> None:
    assert len(blocks(root)["python"].splitlines()) <= 20


def test_the_example_of_the_page_runs_as_it_says(root: Path, tmp_path: Path, accelerator: ModuleType) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(blocks(root)["yaml"])
    table = run_scenario(load_scenario(path), check=True).trace.to_pandas().set_index("op")
    assert table["device"].to_dict() == {"conv1": "npu0", "relu1": "npu0", "conv2": "cpu0"}
    duration = (table["end_ns"] - table["start_ns"]).to_dict()
    assert duration == {"conv1": 110_000, "relu1": 2000, "conv2": 1_000_000}
    assert table["start_ns"].tolist() == [2000, 114_000, 116_000]


def graph() -> Graph:
    b = GraphBuilder("three")
    b.op("a", kind="conv", dtype="torch.int8", flops=100)
    b.op("b", kind="conv", dtype="fp32", flops=100)
    b.op("c", kind="conv", flops=100)
    return b.build()


INT8 = kernel("conv", "npu", ["int8"])(lambda op, device: op.flops)
ANY = kernel("conv", "npu")(lambda op, device: 2 * op.flops)


def test_a_kernel_for_the_data_type_comes_before_one_for_any() -> None:
    npu = Device("npu0", "npu")
    assert KernelCost((INT8,)).durations_ns(graph(), npu).tolist() == [100, -1, -1]
    assert KernelCost((ANY, INT8)).durations_ns(graph(), npu).tolist() == [100, 200, 200]
    assert KernelCost((ANY, INT8)).durations_ns(graph(), Device("gpu0")).tolist() == [-1, -1, -1]


def test_what_no_kernel_covers_the_next_model_does(accelerator: ModuleType) -> None:
    device = make_device("npu0", {"kind": "npu", "cost": ["kernels", {"fixed": "7ns"}]})
    assert device.cost is not None
    assert device.cost.durations_ns(graph(), device).tolist() == [10_000, 7, 7]
    one = make_device("npu0", {"kind": "npu", "cost": {"kernels": ["my-relu"]}})
    assert one.cost is not None
    assert one.cost.durations_ns(graph(), one).tolist() == [-1, -1, -1]


def test_wrong_kernels_are_refused(accelerator: ModuleType) -> None:
    with pytest.raises(InputError, match="two kernels for conv on npu in int8"):
        KernelCost((INT8, INT8))
    with pytest.raises(UnknownNameError, match="unknown kernel 'my-rleu'; did you mean 'my-relu'"):
        kernels(["my-rleu"])
    with pytest.raises(InputError, match="kernels takes a list of names, found 'my-relu'"):
        kernels("my-relu")

    def broken(op: KernelFacts, device: Device) -> int:
        return -op.flops

    with pytest.raises(InputError, match="the kernel for conv on npu returned -100 for op 'a'"):
        KernelCost((Kernel("conv", "npu", (), broken),)).durations_ns(graph(), Device("npu0", "npu"))
    plugins.register("sim.kernels", "bare", broken)
    try:
        with pytest.raises(InputError, match=r"kernel 'bare' is a function; make one with"):
            kernels(["bare"])
    finally:
        plugins.unregister("sim.kernels", "bare")
