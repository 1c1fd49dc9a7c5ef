"""CUDA graphs, the legacy default stream, and copies that hold the host: worked by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runs import run_text
from scenario_texts import write

from devices.launches import add_launches, as_cuda_graphs, with_legacy_streams
from devices.machine import make_device
from policies.issue.program_order import InOrder
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim import Device, GraphBuilder, Job, Machine, Trace
from sim.base.errors import InputError
from sim.engine.engine import Engine
from sim.job.build_job import make_job

pytestmark = pytest.mark.usefixtures("both_engines")


class Lanes:
    """Each op on the lane that its name ends with."""

    def assign(self, job: Job) -> list[int]:
        return [int(name[-1]) for name in job.graph.op_names]


def gpu(**numbers: Any) -> Device:
    return make_device("gpu0", {"kind": "gpu", **numbers})


def run(job: Job) -> Trace:
    trace = Engine(job, InOrder(synchronisation="issue")).run()
    trace.check()
    return trace


def starts(trace: Trace) -> dict[str, int]:
    """Return start times by name, with the iteration if there are several."""
    names, ops = trace.job.graph.op_names, trace.tasks["op"].tolist()
    many = trace.job.iterations > 1
    keys = [
        f"{names[op]}[{i}]" if many else names[op]
        for op, i in zip(ops, trace.tasks["iteration"].tolist(), strict=True)
    ]
    return dict(zip(keys, trace.tasks["start_ns"].tolist(), strict=True))


def chain_job(n: int, kernel_ns: int, iterations: int = 1, **numbers: Any) -> Job:
    b = GraphBuilder("chain")
    for i in range(n):
        b.op(f"k{i}", inputs=[f"k{i - 1}"] if i else [], duration_ns=kernel_ns)
    return make_job(b.build(), Machine((gpu(**numbers),)), iterations=iterations)


# -- CUDA graphs ------------------------------------------------------------------------------------


def eager_ns(n: int, kernel: int, cost: int, latency: int, gap: int) -> int:
    """The last kernel starts n costs and a latency after 0, or as soon as those before it let it."""
    ends = 0
    for i in range(n):
        ends = max((i + 1) * cost + latency, ends + gap if i else 0) + kernel
    return ends


def test_a_launch_bound_chain() -> None:
    """Five kernels of 2 us, launched at 5 us each: the host decides, 5 x 5 + 1 + 2 = 28 us.

    As one graph: 5 + 1, then 5 x 2 and 4 gaps of 0.5 us: 18 us.
    """
    numbers: dict[str, Any] = {"issue_cost": "5us", "launch_latency": "1us", "gap": "500ns"}
    job = chain_job(5, 2000, **numbers)
    assert run(job).makespan_ns == 28_000
    graph = run(as_cuda_graphs(job))
    assert graph.makespan_ns == 18_000
    assert graph.tasks["issue_ns"].tolist() == [5000] * 5


@given(
    n=st.integers(1, 8),
    kernel=st.integers(0, 30),
    cost=st.integers(0, 20),
    latency=st.integers(0, 10),
    gap=st.integers(0, 5),
)
def test_the_knee_is_where_a_launch_takes_as_long_as_a_kernel_and_its_gap(
    n: int, kernel: int, cost: int, latency: int, gap: int
) -> None:
    numbers: dict[str, Any] = {"issue_cost": f"{cost}ns", "launch_latency": f"{latency}ns", "gap": f"{gap}ns"}
    job = chain_job(n, kernel, **numbers)
    eager, graph = run(job).makespan_ns, run(as_cuda_graphs(job)).makespan_ns
    assert eager == eager_ns(n, kernel, cost, latency, gap)
    assert graph == cost + latency + n * kernel + (n - 1) * gap
    if cost <= kernel + gap:
        assert eager == graph  # the device is the bottleneck, and who launches does not matter
    else:
        assert eager - graph == (n - 1) * (cost - kernel - gap)


def test_launch_and_gaps_have_parameters_of_their_own() -> None:
    numbers: dict[str, Any] = {
        "issue_cost": "5us",
        "gap": "500ns",
        "cuda_graph": {"issue_cost": "9us", "gap": "100ns"},
    }
    assert run(as_cuda_graphs(chain_job(3, 1000, **numbers))).makespan_ns == 9000 + 3 * 1000 + 2 * 100


def test_a_launch_queue_holds_graphs_and_not_kernels() -> None:
    job = chain_job(5, 1000, issue_cost="1us", queue_depth=2)
    assert run(job).tasks["issue_ns"].tolist() == [1000, 2000, 3000, 4000, 5000]
    slow = chain_job(5, 9000, issue_cost="1us", queue_depth=2)
    assert run(slow).tasks["issue_ns"].tolist() == [1000, 2000, 10_000, 19_000, 28_000]
    assert run(as_cuda_graphs(slow)).tasks["issue_ns"].tolist() == [1000] * 5


def test_iterations_are_launches() -> None:
    """Two iterations of two kernels of 1 us, 5 us a launch: 5 + 2, and 10 + 2."""
    trace = run(as_cuda_graphs(chain_job(2, 1000, iterations=2, issue_cost="5us")))
    assert starts(trace) == {"k0[0]": 5000, "k1[0]": 6000, "k0[1]": 10_000, "k1[1]": 11_000}


def test_a_graph_ends_before_its_next_launch_begins() -> None:
    """a and b side by side, 10 and 30 ns: eagerly a runs ahead on its own stream, as a graph it does not."""
    b = GraphBuilder("fork")
    b.op("a0", duration_ns=10)
    b.op("b1", duration_ns=30)
    job = make_job(b.build(), Machine((gpu(streams=2),)), streams=Lanes(), iterations=2)
    assert starts(run(job)) == {"a0[0]": 0, "b1[0]": 0, "a0[1]": 10, "b1[1]": 30}
    assert starts(run(as_cuda_graphs(job))) == {"a0[0]": 0, "b1[0]": 0, "a0[1]": 30, "b1[1]": 30}


def test_what_goes_through_the_host_cannot_be_captured() -> None:
    b = GraphBuilder("item")
    b.op("loss", duration_ns=10, device="gpu0")
    b.op("decide", duration_ns=10, inputs=["loss"], device="cpu0")
    b.op("step", duration_ns=10, inputs=["decide"], device="gpu0")
    cpu = Device("cpu0", "cpu", workers=1)
    job = make_job(b.build(), Machine((gpu(), cpu)))
    with pytest.raises(InputError, match="'step' cannot be part of a CUDA graph: it waits for 'decide'"):
        as_cuda_graphs(job)


def test_a_graph_needs_a_policy_that_does_not_wait() -> None:
    with pytest.raises(InputError, match="needs synchronisation: issue"):
        add_launches(chain_job(2, 10), "completion", as_graph=True)


SCENARIO = """\
machine: {devices: {gpu0: {kind: gpu, issue_cost: 5us, launch_latency: 1us, gap: 0.5us}}}
workload:
  ops:
    a: {duration: 2us}
    b: {duration: 2us, inputs: [a]}
    c: {duration: 2us, inputs: [b]}
policy: {name: in-order, synchronisation: issue}
expect: {makespan: 18us}
compare:
  - {runtime: cuda-graph, expect: {makespan: 13us}}
  - {label: launched as one, cuda_graph: true, expect: {makespan: 13us, issue.c: 5us}}
"""


def test_a_scenario_says_so(tmp_path: Path) -> None:
    """Three launches of 5 us, then 1 + 2; or one launch, 1, three kernels of 2 us and two gaps of 0.5 us."""
    scenario = load_scenario(write(tmp_path, SCENARIO))
    for label in (None, "cuda-graph", "launched as one"):
        assert run_scenario(scenario, label, check=True).passed


# -- the legacy default stream ----------------------------------------------------------------------


def streams_job(legacy: bool, iterations: int = 1, **numbers: Any) -> Job:
    """Independent kernels in program order: a on stream 1, b on 2, z on 0, c on 1, d on 2."""
    b = GraphBuilder("streams")
    for name, ns in {"a1": 10, "b2": 30, "z0": 5, "c1": 10, "d2": 20}.items():
        b.op(name, duration_ns=ns)
    machine = Machine((gpu(streams=3, legacy_stream=legacy, **numbers),))
    return make_job(b.build(), machine, streams=Lanes(), iterations=iterations)


def test_the_legacy_stream_waits_for_all_and_all_wait_for_it() -> None:
    """z waits for a (10) and b (30); c and d, launched after it, wait for z (35)."""
    assert starts(run(streams_job(False))) == {"a1": 0, "b2": 0, "z0": 0, "c1": 10, "d2": 30}
    job = with_legacy_streams(streams_job(True))
    assert starts(run(job)) == {"a1": 0, "b2": 0, "z0": 30, "c1": 35, "d2": 35}


def test_the_legacy_stream_over_iterations() -> None:
    """c ends at 45, d at 55. a and b of the next iteration wait for z, which is over; z for c, d, a and b.

    a 45-55 behind c, b 55-85 behind d, z at 85, c and d at 90.
    """
    trace = starts(run(with_legacy_streams(streams_job(True, iterations=2))))
    second = {name: ns for name, ns in trace.items() if name.endswith("[1]")}
    assert second == {"a1[1]": 45, "b2[1]": 55, "z0[1]": 85, "c1[1]": 90, "d2[1]": 90}


def test_a_device_without_it_is_left_alone() -> None:
    job = streams_job(False)
    assert with_legacy_streams(job) is job
    assert add_launches(job, "issue") is job


def test_a_scenario_may_have_a_legacy_stream(tmp_path: Path) -> None:
    text = """\
machine: {devices: {gpu0: {kind: gpu, streams: 2, legacy_stream: true}}}
workload:
  ops: {z: {duration: 10us}, a: {duration: 10us}, y: {duration: 10us}, b: {duration: 10us}}
policy: {name: in-order, synchronisation: issue, streams: round-robin}
"""
    path = write(tmp_path, text)
    assert run_scenario(load_scenario(path), check=True).trace.makespan_ns == 40_000
    other = load_scenario(path, sets=["machine.devices.gpu0.legacy_stream=false"])
    assert run_scenario(other, check=True).trace.makespan_ns == 20_000


# -- copies that hold the host ----------------------------------------------------------------------


def copies(pageable: bool) -> Job:
    """Two chunks, each copied (10 ns, stream 1) and then computed on (10 ns, stream 0); 1 ns a launch."""
    b = GraphBuilder("chunks")
    for i in range(2):
        b.op(f"copy{i}_1", kind="copy", duration_ns=10, attributes={"pageable": pageable})
        b.op(f"host{i}_0", kind="kernel", duration_ns=10)
        b.op(f"work{i}_0", inputs=[f"copy{i}_1"], duration_ns=10)
    machine = Machine((gpu(streams=2, issue_cost="1ns"),))
    return make_job(b.build(), machine, streams=Lanes())


def test_a_pinned_copy_lets_the_host_go_on() -> None:
    """Launched at 1, 2, 3 | 4, 5, 6. Stream 1: copies 1-11 and 11-21.

    Stream 0: host0 2-12, work0 12-22, host1 22-32, work1 32-42.
    """
    assert starts(run(copies(pageable=False))) == {
        "copy0_1": 1, "host0_0": 2, "work0_0": 12, "copy1_1": 11, "host1_0": 22, "work1_0": 32
    }  # fmt: skip


def test_a_pageable_copy_holds_the_host() -> None:
    """copy0 1-11 holds the host: host0 is launched at 12 and runs to 22, work0 (launched at 13) to 32.

    copy1, launched at 14, runs to 24 and holds the host; host1 is launched at 25 and runs 32-42, work1 42-52.
    """
    trace = run(copies(pageable=True))
    assert starts(trace) == {
        "copy0_1": 1, "host0_0": 12, "work0_0": 22, "copy1_1": 14, "host1_0": 32, "work1_0": 42
    }  # fmt: skip
    names = [trace.job.graph.op_names[op] for op in trace.tasks["op"].tolist()]
    issued = dict(zip(names, trace.tasks["issue_ns"].tolist(), strict=True))
    assert issued["host1_0"] == 25


def test_a_host_that_waits_costs_nothing_else(tmp_path: Path) -> None:
    """An op that the host waits for, such as reading back a loss, and no launch cost: 10, then 10."""
    text = """\
machine: {devices: {gpu0: {kind: gpu, streams: 2}}}
workload:
  ops: {item: {duration: 10us, attributes: {host_waits: true}}, next: {duration: 10us}}
policy: {name: in-order, synchronisation: issue, streams: round-robin}
expect: {start.next: 10us, issue.next: 10us}
"""
    assert run_text(text, tmp_path).passed


def test_events_cost_the_host_their_calls(tmp_path: Path) -> None:
    """a (stream 0) feeds b and c (stream 1), which feed d (stream 0). Issue 5, record 1, wait 2.

    a: 5, then 1.   b, c: 2 + 5, then 1, as both wait for a and d reads both.   d: 2 + 5, one wait for
    stream 1. The record follows the launch: a starts at 5.
    """
    text = """
name: events
machine: {devices: {gpu0: {kind: gpu, streams: 2, issue_cost: 5ns, event_record: 1ns, event_wait: 2ns}}}
workload:
  kinds: [even, odd]
  ops:
    a: {duration: 100ns}
    b: {duration: 100ns, inputs: [a]}
    c: {duration: 100ns, inputs: [a]}
    d: {duration: 100ns, inputs: [b, c]}
policy: {name: in-order, synchronisation: issue, streams: {name: per-kind}}
"""
    kinds = {"a": "even", "b": "odd", "c": "odd", "d": "even"}
    for op, kind in kinds.items():
        text = text.replace(f"    {op}: {{", f"    {op}: {{kind: {kind}, ")
    path = tmp_path / "events.yaml"
    path.write_text(text)
    trace = run_scenario(load_scenario(path)).trace
    assert trace.tasks["issue_ns"].tolist() == [5, 6 + 7, 6 + 8 + 7, 6 + 8 + 8 + 7]
    assert trace.tasks["start_ns"][0] == 5
    trace.check()
    ideal = run_scenario(load_scenario(path, sets=["machine.devices.gpu0.event_wait=0ns"])).trace
    assert ideal.tasks["issue_ns"].tolist() == [5, 11, 17, 23]
