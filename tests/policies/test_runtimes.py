"""Runtimes: the orders that the real ones would run, on graphs small enough to see."""

from __future__ import annotations

from pathlib import Path

import pytest
from policy_helpers import FRAMEWORKS, cpu
from runs import checked

from policies.issue.virtual_machine import Sequential
from policies.issue.work_queues import KeepFirst, StreamStacks
from policies.linearize import DepthFirst, ReverseDepthFirst
from scenarios.run.execute import run_scenario
from scenarios.run.load import read_scenario
from sim import Device, Graph, GraphBuilder, Machine, Policy, Trace, simulate
from sim.base import plugins
from sim.base.errors import InputError


def graph(edges: dict[str, list[str]], **stream_id: int) -> Graph:
    builder = GraphBuilder("test")
    for name, inputs in edges.items():
        attributes = {"stream_id": stream_id[name]} if name in stream_id else None
        builder.op(name, inputs=inputs, duration_ns=10, attributes=attributes)
    return builder.build()


def order(trace: Trace) -> list[str]:
    return [trace.job.graph.op_names[op] for op in trace.tasks["op"].tolist()]


TREE = {"root": [], "a": ["root"], "b": ["root"], "c": ["root"], "aa": ["a"], "bb": ["b"]}


def test_sequential_ignores_idle_workers() -> None:
    trace = simulate(graph(TREE), cpu(4), Sequential(), linearize=DepthFirst())
    assert trace.makespan_ns == 60
    assert (trace.tasks["start_ns"][1:] == trace.tasks["end_ns"][:-1]).all()


def test_sequential_only_enqueues_on_a_gpu() -> None:
    """Issue 1, kernels 10: the host is through at 6, the stream works 1..61 without a gap."""
    trace = simulate(graph(TREE), Machine((Device("gpu0", issue_ns=1),)), Sequential())
    assert trace.tasks["issue_ns"].tolist() == [1, 2, 3, 4, 5, 6]
    assert trace.makespan_ns == 61


def test_sequential_walks_over_several_devices_and_iterations() -> None:
    builder = GraphBuilder("two")
    builder.op("a", duration_ns=10, device="cpu0")
    builder.op("b", inputs=["a"], duration_ns=10, device="gpu0")
    builder.op("c", duration_ns=10, device="cpu0")
    machine = Machine((Device("cpu0", "cpu", workers=2), Device("gpu0")))
    trace = simulate(builder.build(), machine, Sequential(), iterations=2)
    # a 0..10; b is enqueued at 10 and runs until 20, c runs 10..20 beside it; then again.
    assert trace.tasks["start_ns"].tolist() == [0, 10, 10, 20, 30, 30]


def test_onnxruntime_keeps_the_first_consumer_and_queues_the_others() -> None:
    """Two threads: one keeps a, aa, the other takes b from the queue and keeps bb; then c."""
    trace = simulate(graph(TREE), cpu(2), KeepFirst())
    by_thread: dict[int, list[str]] = {}
    for name, stream in zip(order(trace), trace.tasks["stream"].tolist(), strict=True):
        by_thread.setdefault(stream, []).append(name)
    assert by_thread == {0: ["root", "a", "aa", "c"], 1: ["b", "bb"]}


def test_onnxruntime_with_one_worker_walks_its_default_order() -> None:
    """The parallel mode is for two threads at least; with one, the sequential executor runs."""
    trace = simulate(graph(TREE), cpu(1), KeepFirst(), linearize=ReverseDepthFirst())
    assert order(trace) == order(simulate(graph(TREE), cpu(1), Sequential(), linearize=ReverseDepthFirst()))
    assert order(trace) == ["root", "b", "bb", "a", "aa", "c"]


def test_tfrt_goes_on_with_its_own_stream_last_in_first_out() -> None:
    """a and b belong to root's stream 0: stack a, b, so b first; c (stream 1) waits in the queue."""
    trace = simulate(graph(TREE, **{**dict.fromkeys(TREE, 0), "c": 1}), cpu(1), StreamStacks())
    assert order(trace) == ["root", "b", "bb", "a", "aa", "c"]


@pytest.mark.parametrize("name", sorted(FRAMEWORKS))
@pytest.mark.parametrize("machine", [cpu(2), Machine((Device("gpu0", streams=2, issue_ns=1, event_ns=1),))])
def test_every_runtime_is_made_of_registered_parts_and_runs(name: str, machine: Machine) -> None:
    choices = dict(FRAMEWORKS[name])
    policy: Policy = plugins.lookup("sim.policies", choices.pop("name"))(
        **{k: v for k, v in choices.items() if k not in ("streams", "linearize", "cuda_graph", "allocator")}
    )
    streams = plugins.lookup("sim.streams", choices["streams"])()
    linearize = plugins.lookup("sim.linearizers", choices["linearize"])() if "linearize" in choices else None
    trace = checked(graph(TREE), machine, policy, streams=streams, linearize=linearize)
    assert sorted(order(trace)) == sorted(TREE)


def test_runtimes_are_listed_with_a_line_each() -> None:
    listed = {entry.name: entry.summary for entry in plugins.describe("sim.runtimes")}
    assert set(FRAMEWORKS) <= set(listed)
    assert listed["tvm-vm"].startswith("TVM's and Relax's virtual machine")


def test_tfrt_keeps_threads_for_what_blocks() -> None:
    """Three reads of 10 on one blocking thread, three sums on the other: neither waits for the other sort."""
    builder = GraphBuilder("files")
    for k in range(3):
        builder.op(f"read{k}", duration_ns=10, attributes={"blocking": True})
        builder.op(f"sum{k}", duration_ns=10)
    trace = simulate(builder.build(), cpu(2), StreamStacks(blocking_threads=1))
    by_thread: dict[int, list[str]] = {}
    for name, stream in zip(order(trace), trace.tasks["stream"].tolist(), strict=True):
        by_thread.setdefault(stream, []).append(name)
    assert by_thread == {0: ["sum0", "sum1", "sum2"], 1: ["read0", "read1", "read2"]}
    with pytest.raises(InputError, match="blocking_threads is 2, and the CPU has 2 workers"):
        simulate(builder.build(), cpu(2), StreamStacks(blocking_threads=2))


def test_the_page_on_runtimes_has_all_of_them(root: Path) -> None:
    text = (root / "docs" / "runtimes.md").read_text(encoding="utf-8")
    assert [name for name in FRAMEWORKS if f"`{name}`" not in text] == []


@pytest.mark.usefixtures("both_engines")
@pytest.mark.parametrize("runtime", ["tensorflow", "tfrt", "onnxruntime-parallel"])
def test_what_a_kernel_makes_ready_does_not_wait_for_the_thread_that_launched_it(runtime: str) -> None:
    # One of three threads launches `g` and goes on with a long op; another is idle when `g` ends at 11 us.
    text = """
machine:
  devices: {cpu0: {kind: cpu, cores: 3}, gpu0: {kind: gpu}}
  hosts: {process: {devices: [cpu0, gpu0]}}
workload:
  ops:
    start: {duration: 1us, device: cpu0}
    g: {duration: 10us, device: gpu0, inputs: [start]}
    short: {duration: 2us, device: cpu0, inputs: [start]}
    long1: {duration: 100us, device: cpu0, inputs: [start]}
    long2: {duration: 100us, device: cpu0, inputs: [start]}
    after: {kind: identity, duration: 5us, device: cpu0, inputs: [g]}
"""
    trace = run_scenario(read_scenario(f"{text}policy: {{runtime: {runtime}}}"), check=True).trace
    row = trace.tasks["op"].tolist().index(trace.job.graph.op_names.index("after"))
    assert trace.tasks["start_ns"][row] == 11_000
