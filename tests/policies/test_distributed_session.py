"""A step of a distributed session: who is asked by whom, and when executors start."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.rewrite.partition import DistributedSession
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim import GraphBuilder, Machine, Trace
from sim.base.errors import InputError, ScenarioError
from sim.machine.device import Device

TEXT = """
machine:
  devices: {{chief: {{kind: cpu, cores: 2}}, cpu: {{kind: cpu, cores: 1, count: 2}}, gpu0: {{kind: gpu}}}}
  hosts: {{"worker:0": {{devices: [cpu0, gpu0]}}, "worker:1": {{devices: [cpu1]}}}}
  {links}
workload:
  ops:
    a: {{duration: 50us, output: 100kB, device: cpu0}}
    kernel: {{duration: 10us, inputs: [a], device: gpu0}}
    own: {{duration: 20us, device: cpu1}}
    b: {{duration: 30us, inputs: [a], device: cpu1}}
iterations: 2
policy:
  runtime: tensorflow
  compile: [partition, {{name: distributed-session, {options}}}]
"""
STAR = "links: [{from: chief, to: cpu*, latency: 10us, bandwidth: 1GB/s, duplex: true, sharing: shared}]"


def run(folder: Path, options: str, links: str = "") -> Trace:
    path = folder / "session.yaml"
    path.write_text(TEXT.format(options=options, links=links), encoding="utf-8")
    return run_scenario(load_scenario(path), check=True).trace


def times(trace: Trace, step: int = 0) -> dict[str, tuple[int, int]]:
    """Return start and end of the ops of a step, in us."""
    tasks = trace.tasks
    rows = zip(*(tasks[k].tolist() for k in ("iteration", "op", "start_ns", "end_ns")), strict=True)
    names = trace.job.graph.op_names
    return {names[op]: (start // 1000, end // 1000) for i, op, start, end in rows if i == step}


def test_a_request_for_each_worker_and_step(tmp_path: Path) -> None:
    """Without links a message takes 5 us: client, master, worker and back."""
    trace = run(tmp_path, "master: chief, latency: 5us")
    found = times(trace)
    assert {name: found[name] for name in found if name.startswith("step/")} == {
        "step/call": (0, 0),
        "step/run": (0, 5),
        "step/run/worker:0": (5, 10),
        "step/run/worker:1": (5, 10),
        "step/reply/worker:0": (70, 70),  # a, and the kernel, which the same worker launches
        "step/reply/worker:1": (90, 90),
        "step/done": (90, 95),  # with the last reply
        "step/return": (95, 100),
    }
    assert (found["a"], found["own"], found["b"]) == ((10, 60), (10, 30), (60, 90))
    assert found["a/to_cpu1/recv"] == (60, 60)  # Send and Recv meet without the master
    assert {name: (start + 100, end + 100) for name, (start, end) in found.items()} == times(trace, 1)


def test_requests_travel_over_links(tmp_path: Path) -> None:
    """10 us of latency and 1 us for 1 kB at 1 GB/s, to each worker over a link of its own."""
    links = STAR.replace("}]", "}, {from: cpu0, to: cpu1, latency: 10us}, {from: cpu0, to: gpu0}]")
    trace = run(tmp_path, "master: chief, size: 1kB", links)
    found = times(trace)
    assert (found["step/run/worker:0"], found["step/run/worker:1"]) == ((11, 11), (11, 11))
    assert found["b"] == (71, 101)
    assert found["step/return"] == (112, 112)


def test_only_workers_with_a_part_are_asked() -> None:
    b = GraphBuilder("one")
    b.op("a", duration_ns=1, device="cpu1", outputs=4)
    machine = Machine(tuple(Device(f"cpu{k}", "cpu", workers=1) for k in range(3)))
    graph = DistributedSession("cpu0").apply(b.build(), machine)
    begin, end = ["step/call", "step/run", "step/run/cpu1/host"], ["step/reply/cpu1/host", "step/done"]
    assert graph.op_names == [*begin, "a", *end, "step/return"]


def test_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(
        ScenarioError, match="master: distributed-session: unknown device 'chef'; did you mean 'chief'"
    ):
        run(tmp_path, "master: chef")
    with pytest.raises(ScenarioError, match="latency: 5 has no unit"):
        run(tmp_path, "master: chief, latency: 5")
    with pytest.raises(ScenarioError, match="no route of links leads from cpu0 to gpu0"):
        run(tmp_path, "master: chief, size: 1kB", STAR.replace("cpu*", "cpu0"))
    b = GraphBuilder("nowhere")
    b.op("a", duration_ns=1)
    with pytest.raises(InputError, match="op 'a' is pinned to no device"):
        DistributedSession("cpu0").apply(b.build())
