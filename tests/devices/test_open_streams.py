"""Devices whose description does not say how many streams they have: they have as many as ops name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from policy_helpers import same_times, spans
from runs import checked, run_text

from devices.machine import make_machine
from policies.issue.program_order import InOrder
from policies.issue.replay import Planned, ReplayPlan
from policies.streams import PerBranch, PerKind, Recorded
from sim import Graph, GraphBuilder, Trace, simulate
from sim.base.errors import InputError, ScenarioError

pytestmark = pytest.mark.usefixtures("both_engines")


def graph(ops: dict[str, tuple[str, int]], device: str = "gpu0") -> Graph:
    """Return independent ops with a stream and a duration each; of those called sum... ranks meet."""
    b = GraphBuilder("streams")
    for name, (stream, ns) in ops.items():
        meets = {"communicator": "dp"} if name.startswith("sum") else {}
        kind = "all_reduce" if meets else "matmul"
        b.op(name, kind=kind, duration_ns=ns, device=device, attributes={"stream": stream, **meets})
    return b.build()


def run(spec: dict[str, Any], of: Graph, streams: Any = None) -> Trace:
    machine = make_machine({"devices": {"gpu0" if spec["kind"] != "npu" else "npu0": spec}})
    return checked(of, machine, InOrder(synchronisation="issue"), streams=streams or Recorded())


OPS = {"a": ("main", 100), "b": (7, 100), "c": ("main", 50), "sum": ("comm", 400)}


@pytest.mark.parametrize("sharing", ["none", "sm"])
def test_a_gpu_has_as_many_streams_as_ops_name(sharing: str) -> None:
    spec = {"kind": "gpu", "sms": 8, "sharing": sharing, "issue_cost": "3ns"}
    trace, said = run(spec, graph(OPS)), run({**spec, "streams": 3}, graph(OPS))
    assert trace.job.machine.devices[0].streams == 3
    assert same_times(trace, said)
    assert spans(trace)["sum"][1] == 412
    # What uses the streams that there are finds one; what says by number which it wants has that.
    assert run(spec, graph(OPS), PerBranch()).job.machine.devices[0].streams == 1
    assert run(spec, graph(OPS), PerKind({"all_reduce": 4})).job.machine.devices[0].streams == 5
    # A plan of the run has them, too.
    plan = trace.plan()
    again = simulate(
        graph(OPS), make_machine({"devices": {"gpu0": spec}}), ReplayPlan(plan, synchronisation="issue"),
        placement=Planned(plan), streams=Planned(plan),
    )  # fmt: skip
    assert same_times(trace, again)


def test_what_was_changed_of_a_device_stays() -> None:
    """As by a what-if that launches in no time."""
    machine = make_machine({"devices": {"gpu0": {"kind": "gpu", "issue_cost": "3ns"}}})
    free = replace(machine, devices=(replace(machine.devices[0], issue_ns=0),))
    trace = simulate(graph(OPS), free, InOrder(synchronisation="issue"), streams=Recorded())
    assert spans(trace)["sum"] == (0, 400)


def test_a_device_that_says_its_number_keeps_it() -> None:
    message = r"gpu0 name 3 streams \(main, 7, comm\), and it has 2; leave out its streams, .* say streams: 3"
    with pytest.raises(InputError, match=message):
        run({"kind": "gpu", "streams": 2}, graph(OPS))
    npu = {"kind": "npu", "cores": 1, "queues_per_core": 2}
    with pytest.raises(InputError, match="leave out its queues_per_core, and it has as many as they name"):
        run(npu, graph(OPS, "npu0"))


def test_more_streams_than_an_npu_has_queues_take_turns_on_its_cores() -> None:
    ops = {"a": ("main", 100), "b": (7, 100), "c": ("main", 50), "sum": ("comm", 400), "d": (7, 10)}
    trace = run({"kind": "npu", "cores": 8, "cores_per_op": 8}, graph(ops, "npu0"))
    # b has waited longer than c when a ends; then c, then d. The collective needs no core.
    expected = {"a": (0, 100), "b": (100, 200), "c": (200, 250), "sum": (0, 400), "d": (250, 260)}
    assert spans(trace) == expected
    two = run({"kind": "npu", "cores": 8, "cores_per_op": 4}, graph(ops, "npu0"))
    assert spans(two) == {**expected, "b": (0, 100), "c": (100, 150), "d": (100, 110)}
    # Two queues for two streams: nobody takes turns.
    del ops["sum"]
    assert spans(run({"kind": "npu", "cores": 8, "cores_per_op": 4}, graph(ops, "npu0")))["d"] == (100, 110)


DDP = """\
machine: {preset: dgx-h100%s}
workload:
  inputs: {x: 4kB}
  parameters: {w0: 40MB, w1: 40MB}
  ops:
    l0: {kind: matmul, inputs: [x, w0], output: 4kB, duration: 50us}
    l1: {kind: matmul, inputs: [l0, w1], output: 4kB, duration: 50us}
policy:
  runtime: pytorch-distributed
  compile: [training, ddp]
"""


@pytest.mark.filterwarnings("ignore:.*ops have no measured cost")
def test_a_rewrite_on_a_preset_needs_no_streams(tmp_path: Path) -> None:
    plain = run_text(DDP % "", tmp_path).trace
    said = run_text(DDP % ", devices: {gpu: {streams: 2}}", tmp_path).trace
    assert all(np.array_equal(plain.tasks[name], said.tasks[name]) for name in plain.tasks)
    assert plain.job.machine == replace(said.job.machine, devices=plain.job.machine.devices)
    with pytest.raises(ScenarioError, match=r"s\.yaml:9:3: policy\.streams: the ops of gpu0 name 2 streams"):
        run_text(DDP % ", devices: {gpu: {streams: 1}}", tmp_path)
    # A key that counts for several streams only has its effect; where there is one, it is refused.
    shares = DDP % ", devices: {gpu: {max_resident: 3}}"
    run_text(shares, tmp_path)
    with pytest.raises(ScenarioError, match="max_resident: has no effect"):
        run_text(shares + "  streams: per-branch\n", tmp_path)


@pytest.mark.parametrize(
    ("rewrites", "says"),
    [
        (
            "{name: ddp, ranks: [gpu0, gpu8]}",
            r"compile\.1\.ranks: ddp: unknown device 'gpu8'\. Known: gpu0 to gpu7",
        ),
        (
            "ddp, {name: rank-order, devices: [gpu0, gpu1, gpu2, gpu3, gpu4, gpu5, gpu6, gpuu]}",
            r"compile\.2\.devices: rank-order: unknown device 'gpuu'; did you mean",
        ),
    ],
)
def test_ranks_on_devices_that_there_are_not(tmp_path: Path, rewrites: str, says: str) -> None:
    text = (DDP % "").replace("[training, ddp]", f"[training, {rewrites}]")
    with pytest.raises(ScenarioError, match=says):
        run_text(text, tmp_path)
