"""What collectives take on a machine preset where nobody chose a model: as `sim collectives` says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim

from devices.collectives.formulas import Formula
from devices.collectives.nccl_model import OfPreset
from devices.machine import make_machine
from scenarios.report.collective_sizes import ranks_of_nodes, row_of
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim.base.units import round_half_up
from sim.machine.communicators import Call
from sim.machine.machine import Machine

NBYTES = 2**25


def ns(
    machine: Machine, kind: str = "all_reduce", ranks: tuple[int, ...] | None = None, nbytes: int = NBYTES
) -> int:
    ranks = ranks or tuple(map(machine.device_index, machine.accelerators))
    assert machine.collectives is not None
    return machine.collectives.time_ns(Call(kind, nbytes, ranks, ranks[0]), machine)


def told(machine: Machine) -> str:
    assert isinstance(machine.collectives, OfPreset)
    return machine.collectives.told


@pytest.mark.parametrize(
    ("preset", "nodes"),
    [
        *(
            ("dgx-a100", 1),
            ("dgx-a100", 4),
            ("dgx-h100", 1),
            ("dgx-h100", 4),
            ("dgx-h200", 1),
            ("dgx-b200", 2),
        ),
        *(("dgx-1v", 2), ("fire-flyer-2", 2), ("tpu-v5p-cube", 1)),
    ],
)
def test_a_machine_says_what_the_command_says(preset: str, nodes: int) -> None:
    machine = make_machine({"preset": preset, **({} if nodes == 1 else {"nodes": nodes})})
    who = ranks_of_nodes(preset, nodes, None)
    for kind in ("all_reduce", "all_gather"):
        row = row_of(kind, who, NBYTES, None, Formula(group=who.group))
        assert ns(machine, kind) == round_half_up(1000 * row.best_us)


def test_an_all_reduce_over_four_nodes_is_no_longer_four_times_too_slow() -> None:
    four = {"preset": "dgx-h100", "nodes": 4}
    assert ns(make_machine(four)) == 287_204
    assert ns(make_machine({**four, "collectives": {}})) == 317_825  # within nodes, across them, within
    assert ns(make_machine({**four, "collectives": {"algorithm": "ring"}})) > 1_000_000


@pytest.mark.parametrize(
    ("more", "because"),
    [
        ({"topology": {"oversubscription": 2}}, "the preset's network, which machine.topology changes"),
        ({"links": [{"name": "nvlink", "bandwidth": "100GB/s"}]}, "which machine.links changes"),
        ({"ideal": True}, "which machine.ideal changes"),
        ({"devices": {"gpu": {"sms": 100}}}, "the preset's GPUs, and node0/gpu0 is another"),
        ({"devices": {"gpu": {"count": 16}}}, "nodes of 8 GPUs"),
    ],
)
def test_nccls_times_are_those_of_the_preset(more: dict[str, Any], because: str) -> None:
    machine = make_machine({"preset": "dgx-h100", "nodes": 2, **more})
    assert because in told(machine)
    ranks = tuple(map(machine.device_index, machine.accelerators))
    call = Call("all_reduce", NBYTES, ranks)
    assert ns(machine) == Formula().time_ns(call, machine)
    assert machine.collectives.sms(call, machine) == 0  # type: ignore[union-attr]


def test_a_preset_whose_gpus_are_made_cpus_has_no_nccl() -> None:
    """Nodes were counted by their GPUs, and the most of none ended in a mistake of ours."""
    machine = make_machine({"preset": "dgx-h100", "devices": {"gpu": {"preset": "xeon-8480c"}}})
    assert "the preset's GPUs, and this machine has none" in told(machine)
    ranks = (machine.device_index("gpu0"), machine.device_index("gpu1"))
    assert ns(machine, ranks=ranks) == Formula().time_ns(Call("all_reduce", NBYTES, ranks), machine)


def test_cpus_go_over_the_links() -> None:
    machine = make_machine({"preset": "dgx-h100"})
    cpus = (machine.device_index("cpu0"), machine.device_index("cpu1"))
    assert ns(machine, ranks=cpus) == Formula().time_ns(Call("all_reduce", NBYTES, cpus), machine)
    assert machine.collectives.sms(Call("all_reduce", NBYTES, (2, 3)), machine) == 24  # type: ignore[union-attr]
    assert machine.collectives.sms(Call("all_reduce", NBYTES, cpus), machine) == 0  # type: ignore[union-attr]


def test_a_node_of_four_is_a_node() -> None:
    """Nodes are told by name, not by counting to eight."""
    four = make_machine({"preset": "dgx-h100", "nodes": 4, "devices": {"gpu": {"count": 4}}})
    eight = make_machine({"preset": "dgx-h100", "nodes": 2})
    assert ns(four) != ns(eight)


SCENARIO = """\
machine: {preset: dgx-h100, nodes: 2, devices: {gpu: {streams: 2}}}
workload:
  inputs: {x: 4MB}
  parameters: {w: 16MiB}
  ops:
    l: {kind: matmul, inputs: [x, w], output: 4MB, duration: 500us}
policy: {runtime: pytorch-distributed, compile: [training, ddp]}
"""


@pytest.mark.filterwarnings("ignore::devices.cost.unreliable.PlainRooflineWarning")  # of the updates
@pytest.mark.parametrize("fold", ["true", "false"])
def test_a_result_says_which_model_counted(fold: str, tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO + f"fold: {fold}\n", encoding="utf-8")
    line = "collectives take NCCL 2.30's choice and times on h100; machine.collectives chooses another model"
    assert run_scenario(load_scenario(path)).summary["collectives"] == line


@pytest.mark.filterwarnings("ignore::devices.cost.unreliable.PlainRooflineWarning")
def test_gpus_without_a_network_say_so(tmp_path: Path) -> None:
    path, eight = tmp_path / "s.yaml", "devices: {gpu: {preset: h100-sxm, count: 8}}"
    path.write_text(SCENARIO.replace(SCENARIO.partition("\n")[0], f"machine: {{{eight}}}"))
    line = "collectives cross no network: the machine has neither links nor machine.collectives"
    assert run_scenario(load_scenario(path)).summary["collectives"] == line
    path.write_text(path.read_text().replace("count: 8}}", "count: 8}}, collectives: {bandwidth: 1GB/s}"))
    assert "collectives" not in run_scenario(load_scenario(path)).summary


@pytest.mark.filterwarnings("ignore::devices.cost.unreliable.PlainRooflineWarning")
def test_it_is_said_where_it_counts_and_nobody_chose_it(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO + "fold: true\n", encoding="utf-8")
    assert "\ncollectives take NCCL 2.30's choice" in sim("run", path).stdout
    chosen = load_scenario(path, sets=["machine.collectives={model: nccl}"])
    assert "collectives" not in run_scenario(chosen).summary
    path.write_text(
        "machine: {preset: dgx-h100}\nworkload: {ops: {a: {duration: 1us, device: gpu0}}}\npolicy: in-order\n"
    )
    assert "collectives" not in run_scenario(load_scenario(path)).summary


def test_channels_fit_into_the_partition_of_their_stream(tmp_path: Path) -> None:
    """24 channels on 8 SMs: NCCL's thread blocks share them; they used to wait for SMs that never came."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {preset: dgx-h100, devices: {gpu: {partitions: {a: 120, b: 8}, "
        "streams: [{partition: b}, {partition: a}]}}}\n"
        "workload:\n  ops:\n"
        + "".join(
            f"    sum{k}: {{kind: all_reduce, bytes_read: 64MB, device: gpu{k}, "
            "attributes: {communicator: dp, stream: 0}}\n"
            for k in range(2)
        )
        + "policy: {name: in-order, streams: recorded}\n",
        encoding="utf-8",
    )
    result = run_scenario(load_scenario(path))
    alone = ns(result.case.work.machine, nbytes=64_000_000, ranks=(2, 3))
    assert result.trace.tasks["end_ns"].tolist() == (result.trace.tasks["start_ns"] + alone).tolist()
