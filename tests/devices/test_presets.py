"""Presets: every file can be used, every number is what its source says, everything is offered by name."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from devices import presets as module
from devices.machine import described_devices, make_device, make_machine
from devices.presets import device_preset, machine_preset, presets
from sim.base import plugins
from sim.base.errors import InputError

FOLDER = Path(module.__file__).parent
DEVICES = sorted(file.stem for file in FOLDER.glob("*.yaml"))
MACHINES = sorted(file.stem for file in (FOLDER / "machines").glob("*.yaml"))


def test_every_file_is_offered_under_its_name(root: Path) -> None:
    declared = tomllib.loads((root / "pyproject.toml").read_text())["project"]["entry-points"]
    assert declared["sim.devices"] == {n: f"devices.presets:{n.replace('-', '_')}" for n in DEVICES}
    assert declared["sim.machines"] == {n: f"devices.presets:{n.replace('-', '_')}" for n in MACHINES}


def test_listing_has_a_line_for_each() -> None:
    listed = {preset.name: preset.summary for preset in presets()}
    assert set(DEVICES) <= set(listed)
    assert all(listed[name] for name in DEVICES)
    assert set(MACHINES) <= {preset.name for preset in presets("sim.machines")}


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_can_be_made_real_and_ideal(name: str) -> None:
    real = make_device("x", {"preset": name})
    ideal = make_device("x", {"preset": name, "ideal": True})
    assert real.kind == ideal.kind
    assert (ideal.issue_ns, ideal.launch_latency_ns, ideal.gap_ns, ideal.event_ns) == (0, 0, 0, 0)
    assert device_preset(name)["sources"]


NVSWITCH = ("dgx-a100", "dgx-b200", "dgx-h100", "dgx-h200")


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("nodes", [None, 2])
def test_every_machine_can_be_made_and_is_connected(name: str, nodes: int | None) -> None:
    spec: dict[str, Any] = {"preset": name} if nodes is None else {"preset": name, "nodes": nodes}
    if nodes and "tpu" in name:  # a torus of twice as many
        spec["topology"] = {"shape": [2, *machine_preset(name)["topology"]["shape"]]}
    machine = make_machine(spec)
    assert all(machine.route(0, k) for k in range(1, len(machine.devices)))
    assert machine_preset(name)["sources"]


@pytest.mark.parametrize("name", NVSWITCH)
def test_gpus_of_a_dgx_reach_one_another_over_nvlink(name: str) -> None:
    machine = make_machine({"preset": name})
    gpus = [i for i, device in enumerate(machine.devices) if device.kind == "gpu"]
    assert len(gpus) == 8
    for a in gpus:
        for b in gpus:
            if a != b:  # GPU to GPU over NVLink, not over PCIe and the host
                assert {machine.links[k].name.split()[0] for k in machine.route(a, b)} == {"nvlink"}


def rates(name: str, kind: str, prefix: str) -> dict[tuple[int, int], int | None]:
    """Bandwidth of each direct link of a name, by the places of its ends among the devices of a kind."""
    machine = make_machine({"preset": name})
    place = {d.name: k for k, d in enumerate(each for each in machine.devices if each.kind == kind)}
    return {
        (place[link.source], place[link.destination]): link.bandwidth_bytes_per_s
        for link in machine.links
        if link.name.startswith(prefix)
    }


def test_a_gpu_of_dgx_1_has_six_nvlinks() -> None:
    found = rates("dgx-1v", "gpu", "nvlink")
    assert all(found[b, a] == rate for (a, b), rate in found.items())
    for gpu in range(8):
        links = [(rate or 0) // (25 * 10**9) for (a, _), rate in found.items() if a == gpu]
        assert sorted(links) == [1, 1, 2, 2]
    # A cube: two faces are full meshes, and each GPU has its partner in the other one.
    faces = {frozenset(pair) for pair in found}
    assert all(frozenset((a, b)) in faces for f in (range(4), range(4, 8)) for a in f for b in f if a != b)
    assert {pair for pair in faces if min(pair) < 4 <= max(pair)} == {
        frozenset((g, p)) for g, p in ((0, 4), (1, 5), (2, 6), (3, 7))
    }


def test_two_hccs_rings_of_an_atlas_meet_over_pcie() -> None:
    groups = (range(4), range(4, 8))
    assert rates("atlas-800", "npu", "hccs") == {
        (a, b): 30 * 10**9 for group in groups for a in group for b in group if a != b
    }
    assert passed("npu0", "npu7", {"preset": "atlas-800"}) == ["cpu0", "cpu3", "npu7"]


def test_each_npu_of_an_atlas_a2_reaches_every_other_one() -> None:
    found = rates("atlas-800t-a2", "npu", "hccs")
    assert found == {(a, b): 28 * 10**9 for a in range(8) for b in range(8) if a != b}
    assert sum(2 * rate for (a, _), rate in found.items() if not a) == 392 * 10**9
    npu = described_devices({"devices": {"x": {"preset": "ascend-910b2"}}})["x"]
    clock = 1_800_000_000
    assert npu["matrix"]["peak"]["bf16"] == pytest.approx(24 * 16**3 * 2 * clock, rel=0.001)
    assert npu["vector"]["peak"]["fp16"] == pytest.approx(48 * 128 * 2 * clock, rel=0.001)


def passed(a: str, b: str, spec: dict[str, Any]) -> list[str]:
    """Which devices a transfer comes to."""
    machine = make_machine(spec)
    on = {device.name: k for k, device in enumerate(machine.devices)}
    return [machine.links[k].destination for k in machine.route(on[a], on[b])]


def test_sockets_and_fat_tree_of_fire_flyer() -> None:
    spec = {"preset": "fire-flyer-2", "nodes": 21}
    assert passed("node0/gpu0", "node0/gpu7", spec) == ["node0/cpu0", "node0/cpu1", "node0/gpu7"]
    near, far = (
        [name for name in passed("node0/gpu4", f"node{k}/gpu4", spec) if "/" not in name] for k in (19, 20)
    )
    assert (near, far) == (["edge0.0"], ["edge0.0", "agg0.0", "edge0.1"])


def test_what_a_preset_says_of_its_network_can_be_changed_key_by_key() -> None:
    spec = {"preset": "dgx-h100", "nodes": 2, "topology": {"link": {"bandwidth": "200Gb/s"}}}
    link = make_machine(spec).links[-1]
    assert (link.bandwidth_bytes_per_s, link.latency_ns, link.overhead_ns) == (25 * 10**9, 65, 1000)
    link = make_machine({**spec, "ideal": True}).links[-1]
    assert (link.bandwidth_bytes_per_s, link.latency_ns, link.overhead_ns) == (25 * 10**9, 0, 0)
    cube = {"preset": "tpu-v5p-cube", "devices": {"tpu": {"count": 4}}}
    assert len(make_machine({**cube, "topology": {"shape": [2, 2, 1], "wrap": False}}).links) == 8
    assert len(make_machine({**cube, "topology": {"kind": "ring"}}).links) == 8


@pytest.mark.parametrize(
    "file", sorted([*FOLDER.glob("*.yaml"), *FOLDER.glob("machines/*.yaml")]), ids=lambda f: f.stem
)
def test_every_number_has_its_source_beside_it(file: Path) -> None:
    """A line with a quantity has a comment, or stands in a block whose first such line has one."""
    quantity = re.compile(r"[0-9](B|[KMGT]i?B|GB/s|TB/s|us|ns|[MG]Hz|[TGM]FLOP(/s)?)\b")
    lines = file.read_text(encoding="utf-8").split("sources:")[0].splitlines()
    commented = 0
    for number, line in enumerate(lines):
        body, _, comment = line.partition("#")
        if quantity.search(body):
            near = any("#" in lines[n] for n in range(max(0, number - 12), number))
            assert comment or near, line
            commented += bool(comment)
    assert commented or not any(quantity.search(line.partition("#")[0]) for line in lines)


def test_rates_agree_with_the_arithmetic_of_the_chips() -> None:
    """Peak = units * 2 flop * clock, with the clocks that stand in the comments of the presets."""
    v100 = described_devices({"devices": {"x": {"preset": "v100-sxm"}}})["x"]
    assert v100["peak"]["fp32"] == pytest.approx(80 * 64 * 2 * 1_530_000_000, rel=0.01)
    a100 = described_devices({"devices": {"x": {"preset": "a100-sxm-40"}}})["x"]
    assert a100["peak"]["fp16"] == pytest.approx(108 * 1024 * 2 * 1_410_000_000, rel=0.01)
    h100 = described_devices({"devices": {"x": {"preset": "h100-sxm"}}})["x"]
    assert h100["peak"]["bf16"] == pytest.approx(132 * 4096 * 1_830_000_000, rel=0.001)
    for name in ("rtx-3090", "rtx-4090", "rtx-5090"):
        geforce = described_devices({"devices": {"x": {"preset": name}}})["x"]
        assert geforce["peak"]["fp16"] == pytest.approx(geforce["sms"] * 512 * geforce["clock"], rel=0.001)
    for name, per_cycle, clock in (("xeon-8480c", 64, 2_000_000_000), ("epyc-7742", 32, 2_250_000_000)):
        cpu = described_devices({"devices": {"x": {"preset": name}}})["x"]
        assert cpu["peak"]["fp32"] == cpu["cores"] * per_cycle * clock


def test_a_third_party_preset_is_found() -> None:
    plugins.register("sim.devices", "mine", {"kind": "gpu", "streams": 3})
    try:
        assert make_device("gpu0", {"preset": "mine"}).streams == 3
        assert make_device("gpu0", {"preset": "mine", "streams": 1}).streams == 1
    finally:
        plugins.unregister("sim.devices", "mine")


def test_an_h200_takes_its_measured_kernels() -> None:
    peak_ns = 2 * 4096**3 / 989.4e3
    assert 1.1 * peak_ns < _product_ns() < 1.7 * peak_ns
    assert 1.1 * peak_ns < _product_ns(sized=False) < 1.7 * peak_ns  # by its flops and bytes alone


def test_no_product_or_convolution_of_an_h200_runs_at_the_peak() -> None:
    from sim import GraphBuilder

    b = GraphBuilder("large")
    for kind in ("matmul", "gemm", "conv", "conv2d"):
        b.op(kind, kind=kind, dtype="bf16", flops=10**13)
    device = make_device("gpu0", {"preset": "h200-sxm"})
    assert device.cost is not None
    for ns in device.cost.durations_ns(b.build(), device).tolist():
        assert ns > 1.2 * 10**13 / 989.4e3


def _product_ns(sized: bool = True, **keys: Any) -> int:
    """Return what a product of 4096 cubed takes on an H200 with these keys."""
    from sim import GraphBuilder

    b = GraphBuilder("product")
    sizes = {"m": 4096, "n": 4096, "k": 4096} if sized else {}
    nbytes = {"bytes_read": 4 * 4096**2, "bytes_written": 2 * 4096**2}
    b.op("product", kind="matmul", dtype="bf16", flops=2 * 4096**3, attributes=sizes, **nbytes)
    device = make_device("gpu0", {"preset": "h200-sxm", **keys})
    assert device.cost is not None
    return int(device.cost.durations_ns(b.build(), device)[0])


def test_an_ideal_h200_runs_a_product_at_its_peak() -> None:
    # Without overheads and losses: 2 x 4096^3 flop at 989.4 TFLOP/s. The fitted model is nothing but losses.
    assert _product_ns(ideal=True) == round(2 * 4096**3 / 989.4e3)
    fitted = {"ideal": True, "cost": ["fitted", "roofline"]}
    assert _product_ns(**fitted, gap="1.6us") == _product_ns(sustained=1)
    assert _product_ns(**fitted) == _product_ns() + 1600  # nothing else is a gap then


def test_a_loss_that_is_given_counts_before_the_fit() -> None:
    assert _product_ns(efficiency={"matmul": 0.5}) == round(2 * 4096**3 / 989.4e3 / 0.5)
    assert _product_ns(efficiency={"conv": 0.5}) == _product_ns()


def test_kernels_of_part_of_the_sms_take_longer() -> None:
    assert 1.7 < _product_ns(use_sms=66) / _product_ns() < 2.4


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"cost": {"fitted": "h200"}}, "unknown fitted device 'h200'; did you mean 'h200-sxm'"),
        ({"cost": {"fitted": {"device": "h200"}}}, r"gpu0\.cost\.fitted: takes the name of a GPU"),
        ({"cost": {"fitted": 7}}, "7 is no word"),
        ({"clock": "1GB"}, "gpu0.clock: '1GB' is an amount of data, not a frequency"),
        ({"generation": "hoper"}, "gpu0.generation: unknown word 'hoper'; did you mean 'hopper'"),
    ],
    ids=str,
)
def test_wrong_words_of_fitted_costs_are_named(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        _product_ns(**keys)


def test_fitted_costs_say_which_numbers_they_need() -> None:
    spec = {"kind": "gpu", "sms": 10, "peak": "1TFLOP/s", "cost": "fitted"}
    with pytest.raises(InputError, match=r"gpu0\.cost\.fitted: needs clock, l2, bandwidth of the device"):
        make_device("gpu0", spec)
    spec |= {"clock": "1GHz", "l2": "1MiB", "bandwidth": "100GB/s"}
    assert make_device("gpu0", spec).cost is not None
    with pytest.raises(InputError, match=r"gpu0\.cost\.fitted: needs peak of the device"):
        make_device("gpu0", {**spec, "peak": {}})
    with pytest.raises(InputError, match="it is for GPUs"):
        make_device("cpu0", {"kind": "cpu", "cost": "fitted"})


def test_limits_of_a_preset_can_be_lifted() -> None:
    device = make_device(
        "gpu0", {"preset": "h200-sxm", "queue_depth": "unlimited", "copy_engines": "unlimited"}
    )
    assert device.queue_depth is None
    assert device.details.copy_engines is None
    with pytest.raises(InputError, match=r"gpu0\.queue_depth: must be at least 1"):
        make_device("gpu0", {"preset": "h200-sxm", "queue_depth": 0})


# -- what the tables of a preset contain ------------------------------------------------------------


def test_every_gpu_takes_measured_kernels() -> None:
    for name in DEVICES:
        spec = device_preset(name)
        if spec["kind"] == "gpu":
            assert spec["cost"] == ["fitted", "roofline"]
            assert not {"efficiency", "op_overhead"} & spec.keys()


MEASURED_CHAINS = {"h200-sxm": ({"m": 1, "n": 32, "k": 32}, 200, 506_000)}
"""Preset -> shape of a product, how many in a chain in a CUDA graph, and what they took in ns."""


@pytest.mark.parametrize("name", MEASURED_CHAINS)
def test_a_chain_takes_what_was_measured_of_it(name: str) -> None:
    from policies.issue.program_order import InOrder
    from sim import GraphBuilder, simulate

    shape, length, measured_ns = MEASURED_CHAINS[name]
    flops, last = 2 * shape["m"] * shape["n"] * shape["k"], None
    b = GraphBuilder("chain")
    for i in range(length):
        read = [] if last is None else [last]
        last = b.op(
            f"{i}", kind="matmul", dtype="bf16", inputs=read, outputs=64, flops=flops, attributes=shape
        )
    machine = make_machine({"devices": {"gpu0": {"preset": name, "issue_cost": 0, "launch_latency": 0}}})
    assert simulate(b.build(), machine, InOrder()).makespan_ns == pytest.approx(measured_ns, rel=0.02)
