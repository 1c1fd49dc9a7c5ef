"""A scenario laid over another: mappings key by key, lists as a whole, and each mistake in its own file."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenario_texts import write

from devices.machine import make_device, make_machine
from scenarios.file.document import Document
from scenarios.regression import is_scenario
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim import Machine
from sim.base.errors import ScenarioError

BASE = """\
machine: {devices: {cpu0: {kind: cpu, cores: 1}}}
workload:
  ops:
    a: {duration: 10us}
    b: {duration: 20us, inputs: [a]}
    c: {duration: 30us, inputs: [a]}
compare: [in-order, ready-queue]
expect: {makespan: 60us}
"""

OPS = BASE.partition("\n")[2].partition("compare")[0]


def laid(folder: Path, over: str, base: str = BASE) -> Path:
    """Write a file over another one."""
    write(folder, base, "base.yaml")
    return write(folder, f"extends: base.yaml\n{over}")


def test_mappings_are_merged_and_the_rest_is_replaced(tmp_path: Path) -> None:
    over = "machine: {devices: {cpu0: {cores: 2}}}\nworkload: {ops: {b: {inputs: []}}}\ncompare: [in-order]\n"
    scenario = load_scenario(laid(tmp_path, over + "expect: {makespan: 40us}"))
    assert scenario.name == "s"
    assert scenario.variants == ["in-order"]
    assert [*scenario.graph.op_names] == ["a", "b", "c"]
    result = run_scenario(scenario)
    assert (result.trace.makespan_ns, result.passed) == (40_000, True)


def test_the_name_of_a_preset_stands_for_a_device_or_a_machine(tmp_path: Path) -> None:
    """Both ways round a name is laid over and under what it stands for."""

    def devices(machine: Machine) -> list[tuple[str, int | None, int]]:
        return [(device.name, device.memory_bytes, device.gap_ns) for device in machine.devices]

    for base, over, spec in (
        ("h100-sxm", "{count: 2, gap: 9us}", {"preset": "h100-sxm", "count": 2, "gap": "9us"}),
        ("{preset: h100-sxm, count: 2, gap: 9us}", "h200-sxm", {"preset": "h200-sxm", "count": 2}),
        ("{preset: h200-sxm, gap: 9us}", "h200-sxm", {"preset": "h200-sxm", "gap": "9us"}),
        ("{kind: gpu, gap: 9us}", "h200-sxm", "h200-sxm"),
    ):
        of = f"machine: {{devices: {{gpu: {base}}}}}\n{OPS}"
        found = load_scenario(laid(tmp_path, f"machine: {{devices: {{gpu: {over}}}}}", of)).machine
        assert devices(found) == devices(make_machine({"devices": {"gpu": spec}}))
    of = f"machine: {{preset: dgx-h100, nodes: 2}}\n{OPS}"
    found = load_scenario(laid(tmp_path, "machine: dgx-a100", of)).machine
    assert devices(found) == devices(make_machine({"preset": "dgx-a100", "nodes": 2}))
    with pytest.raises(
        ScenarioError, match=r"'h100-sxm' is a device; a machine has devices: \{NAME: h100-sxm"
    ):
        load_scenario(write(tmp_path, f"machine: h100-sxm\n{OPS}")).machine  # noqa: B018


def test_another_preset_keeps_no_number_of_the_one_before(tmp_path: Path) -> None:
    base = f"machine: {{devices: {{gpu: {{preset: h100-sxm, count: 2, memory: 7GB, gap: 9us}}}}}}\n{OPS}"
    plain = make_device("x", {"preset": "a100-sxm-80"})
    for preset, numbers in (
        ("a100-sxm-80", (plain.memory_bytes, plain.gap_ns)),
        ("h100-sxm", (7 * 10**9, 9000)),  # the same one
    ):
        over = f"machine: {{devices: {{gpu: {{preset: {preset}}}}}}}"
        devices = load_scenario(laid(tmp_path, over, base)).machine.devices
        assert [device.name for device in devices] == ["gpu0", "gpu1"]
        assert (devices[0].memory_bytes, devices[0].gap_ns) == numbers
    base = f"machine: {{preset: dgx-h100, nodes: 2, devices: {{gpu: {{memory: 7GB}}}}}}\n{OPS}"
    machine = load_scenario(laid(tmp_path, "machine: {preset: dgx-a100}", base)).machine
    gpus = [device for device in machine.devices if device.kind == "gpu"]
    assert len(gpus) == 16
    assert gpus[0].memory_bytes != 7 * 10**9


def test_what_is_expected_of_the_base_is_expected_of_all_that_say_nothing_else(tmp_path: Path) -> None:
    assert run_scenario(load_scenario(laid(tmp_path, "name: other"))).passed
    assert not run_scenario(load_scenario(laid(tmp_path, "machine: {devices: {cpu0: {cores: 2}}}"))).passed


def test_a_chain_in_several_folders(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    write(tmp_path, BASE, "base.yaml")
    write(tmp_path, "extends: base.yaml\nname: middle\nseed: 3", "middle.yaml")
    path = write(tmp_path / "below", "extends: ../middle.yaml\nseed: 4")
    with pytest.raises(
        ScenarioError, match=r"s.yaml:1:10: extends: ../middle.yaml: is outside the scenario's"
    ):
        load_scenario(path)
    scenario = load_scenario(path, allow_outside=True)
    assert (scenario.name, scenario.content.seed) == ("middle", 4)


@pytest.mark.parametrize(
    ("over", "base", "says"),
    [
        ("seed: x", BASE, "s.yaml:2:7: seed: "),
        ("seed: 1", f"{BASE}iterations: x", "base.yaml:9:13: iterations: "),
        (
            "workload: {ops: {b: {inputs: [d]}}}",
            BASE,
            "s.yaml:2:31: workload.ops.b.inputs.0: graph 's': op 'b' has an unknown input 'd'",
        ),
        ("seed: 1", BASE.replace("cores", "core"), "base.yaml:1:39: machine.devices.cpu0.core: no such key"),
        ("policy: {name: tfrt, runs: in-turn}", BASE, "s.yaml:2:28: policy.runs: has no effect"),
        (
            "seed: 1",
            f"{BASE}extends: s.yaml",
            "base.yaml:9:10: extends: a scenario cannot extend itself: s.yaml",
        ),
        ("seed: 1", f"{BASE}extends: none.yaml", "base.yaml:9:10: extends: "),
        (
            "seed: 1",
            f"{BASE}version: 2",
            "base.yaml:9:10: version: should be 1, not 2",
        ),
        ("seed: 1", "[1]", "base.yaml:1:1: a scenario is a mapping"),
        ("seed: 1", "a: [", "base.yaml:2:1: not YAML"),
    ],
)
def test_a_mistake_has_the_place_in_its_own_file(tmp_path: Path, over: str, base: str, says: str) -> None:
    path = laid(tmp_path, over, base)
    with pytest.raises(ScenarioError) as caught:
        run_scenario(load_scenario(path))
    assert str(caught.value).replace(f"{tmp_path}/", "").startswith(says)


def test_a_file_that_is_not_there_and_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"s\.yaml:1:10: extends: .*none\.yaml: no such file"):
        load_scenario(write(tmp_path, "extends: none.yaml"))
    with pytest.raises(ScenarioError, match=r"s\.yaml:1:10: extends: should be a file, not \['a'\]"):
        load_scenario(write(tmp_path, "extends: [a]"))
    with pytest.raises(ScenarioError, match=r"extends: .*is an absolute path"):
        load_scenario(write(tmp_path, f"extends: {laid(tmp_path, 'seed: 1').with_name('base.yaml')}"))
    with pytest.raises(ScenarioError, match=r"--set extends=x: extends: is read before anything is set"):
        load_scenario(write(tmp_path, BASE), sets=["extends=x"])


@pytest.mark.parametrize("version", ["2", "true", "'1'", "[1]", "0"])
def test_unknown_versions(tmp_path: Path, version: str) -> None:
    load_scenario(write(tmp_path, f"{BASE}version: 1"))
    with pytest.raises(ScenarioError, match=r"s\.yaml:9:10: version: should be 1, not "):
        load_scenario(write(tmp_path, f"{BASE}version: {version}"))


def test_a_base_without_a_workload_is_no_scenario_and_what_extends_it_may_be_one(tmp_path: Path) -> None:
    base, _, rest = BASE.partition("workload:")
    path = laid(tmp_path, f"workload:{rest}", base)
    assert not is_scenario(path.with_name("base.yaml"))
    assert is_scenario(path)
    assert Document.read(path).root.child("machine") is not None
