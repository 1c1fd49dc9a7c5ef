"""Training steps whose collectives take what NCCL's model says: the same as a machine's model ``nccl``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from cli_runner import sim

from devices.collectives.groups import CollectiveKind, NcclGroups, NodeFabrics, RankGroup
from devices.collectives.nccl_model import Nccl
from scenarios.run.load import load_scenario
from scenarios.workloads.calibrations import CalibrationFields, named_calibration, to_calibration
from scenarios.workloads.train_workload import Train, training_of
from sim import Device, Machine
from sim.base.errors import InputError
from sim.machine.communicators import Call

MACHINE = Machine(tuple(Device(f"gpu{k}") for k in range(32)))


@pytest.mark.parametrize("gpu", ["a100", "h100", "h200", "b200"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
def test_times_are_those_of_the_model_of_machines(gpu: str, kind: str) -> None:
    assert kind in get_args(CollectiveKind)
    for nbytes in (2**10, 2**20, 2**28):
        for per_node, nodes in ((2, 1), (8, 1), (8, 4), (1, 4)):
            model = Nccl(gpu, times="fitted" if nodes == 1 else "tuner")  # type: ignore[arg-type]
            ranks = tuple(8 * node + rank for node in range(nodes) for rank in range(per_node))
            found = NcclGroups(gpu).time_ns(kind, nbytes, RankGroup(per_node * nodes, nodes))  # type: ignore[arg-type]
            assert found == pytest.approx(model.time_ns(Call(kind, nbytes, ranks), MACHINE), abs=0.51)


def test_a_message_is_of_two_ranks() -> None:
    near = Nccl("h100", times="fitted").time_ns(Call("send", 2**20, (0, 1)), MACHINE)
    far = Nccl("h100").time_ns(Call("send", 2**20, (0, 8)), MACHINE)
    for per_node, nodes, ns in ((8, 1, near), (2, 4, far)):
        assert NcclGroups("h100").time_ns("send", 2**20, RankGroup(per_node * nodes, nodes)) == pytest.approx(
            ns, abs=0.51
        )


def test_more_than_eight_on_a_node_are_refused() -> None:
    with pytest.raises(InputError, match="a group has 16 on one"):
        NcclGroups("h100").time_ns("all_gather", 2**20, RankGroup(16, 1))


SCENARIO = """\
workload:
  train:
    model: {layers: 4, hidden: 1024, heads: 8, vocabulary: 1000}
    calibration: {device: h100-sxm, nccl: h100}
    parallel: {tp: 4, dp: 4}
    sequence: 512
    batch: 16
"""


def test_a_calibration_with_nccl(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace("nccl: h100", "nccl: h100, contention: 2"), encoding="utf-8")
    workload = load_scenario(path).content.workload
    assert isinstance(workload, Train)
    training = training_of(workload.train, load_scenario(path).document)
    assert training.groups["dp"] == RankGroup(4, 2)
    found = training.calibration.collective_ns("all_gather", 2**20, training.groups["dp"])
    assert found == 2 * NcclGroups("h100").time_ns("all_gather", 2**20, RankGroup(4, 2))
    assert sim("run", path).exit_code == 0


def test_what_nccl_measured_holds_among_eight_in_a_node() -> None:
    """More of them, or of other nodes, take what the node and the network say."""
    of, measured = named_calibration("gb200"), NcclGroups("b200")
    plain = replace(of.collectives, measured=None)
    for group in (RankGroup(2, 1), RankGroup(8, 1)):
        assert of.collective_ns("all_gather", 2**27, group) == measured.time_ns("all_gather", 2**27, group)
    for group in (RankGroup(64, 1), RankGroup(16, 2)):
        assert of.collective_ns("all_gather", 2**27, group) == plain.time_ns("all_gather", 2**27, group)


def test_a_node_of_ones_own_stands_in_place_of_what_was_measured() -> None:
    """Twice the NVLink of a shipped calibration; what it says besides stays."""
    shipped = named_calibration("h100-sxm")
    fields = CalibrationFields.model_validate({"from": "h100-sxm", "node": {"bandwidth": "900GB/s"}})
    own, group = to_calibration(fields, "own"), RankGroup(8, 1)
    assert isinstance(own.collectives, NodeFabrics)
    assert own.collectives.measured is None
    assert own.collective_ns("all_gather", 2**30, group) < 0.6 * shipped.collective_ns(
        "all_gather", 2**30, group
    )
    across = RankGroup(16, 16)
    assert own.collective_ns("all_gather", 2**30, across) == shipped.collective_ns(
        "all_gather", 2**30, across
    )


@pytest.mark.parametrize(
    ("calibration", "says"),
    [
        ("{device: h100-sxm}", "node is missing: give it, or nccl"),
        ("{device: h100-sxm, node: {bandwidth: 1GB/s}}", "network is missing: give it, or nccl"),
        (
            "{device: h100-sxm, nccl: h100, node: {bandwidth: 1GB/s}}",
            "network is missing: nccl alone says what collectives take, or what is in nodes",
        ),
        ("{device: h100-sxm, nccl: v100}", "should be 'a100', 'h100', 'h200' or 'b200', not 'v100'"),
    ],
)
def test_one_source_of_times(tmp_path: Path, calibration: str, says: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace("{device: h100-sxm, nccl: h100}", calibration), encoding="utf-8")
    done = sim("run", path)
    assert done.exit_code == 2
    assert says in done.stderr
