"""Partition: what it inserts, what it keeps, and that it takes as long as the transfers of the simulator."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from program_helpers import programs
from rendezvous_helpers import rendezvous_keys
from rewrite_helpers import ancestors
from runs import checked

from devices.machine import make_machine
from policies.issue.ready_queue import ReadyQueue
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.issue.virtual_machine import Sequential
from policies.rewrite.partition import Partition
from scenarios.ops.control_flow import cond, while_loop
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from scenarios.run.rewriting import pin_ops
from sim import Graph, GraphBuilder, Machine, Trace, simulate
from sim.base.errors import InputError

DEVICES = ("cpu0", "cpu1", "cpu2")


def machine(cores: int = 32, *, links: bool = True, sharing: str = "serial") -> Machine:
    """CPUs with threads enough, a link between every two."""
    pairs = [(a, b) for i, a in enumerate(DEVICES) for b in DEVICES[i + 1 :]]
    spec: dict[str, Any] = {"devices": {name: {"kind": "cpu", "cores": cores} for name in DEVICES}}
    if links:
        link = {"latency": "5ns", "bandwidth": "1GB/s", "sharing": sharing}
        spec["links"] = [{"from": a, "to": b, **link} for a, b in pairs]
    return make_machine(spec)


def edges(g: Graph) -> set[tuple[str, str]]:
    columns = (g.edges.producer.tolist(), g.edges.consumer.tolist())
    return {(g.op_names[p], g.op_names[c]) for p, c in zip(*columns, strict=True)}


def device(g: Graph, op: int) -> str:
    return g.pins[int(g.pin_code[op])]


def starts(trace: Trace, names: list[str]) -> dict[tuple[str, int], int]:
    """Return when each live run of the ops `names` started, the runs of an op counted."""
    seen: Counter[str] = Counter()
    out = {}
    columns = (trace.tasks[c].tolist() for c in ("op", "start_ns", "dead"))
    for op, start, dead in zip(*columns, strict=True):
        name = trace.job.graph.op_names[op]
        if name in names and not dead:
            out[name, seen[name]] = start
            seen[name] += 1
    return out


def test_users_on_a_device_share_one_recv() -> None:
    b = GraphBuilder("shared")
    b.op("a", outputs=(8, 16), device="cpu0")
    for name, inputs in {"b": ["a"], "c": ["a", "a:1"], "d": ["a:1"]}.items():
        b.op(name, inputs=inputs, device="cpu1" if name != "d" else "cpu2")
    g = Partition().apply(b.build())
    assert edges(g) == {
        ("a", "a/to_cpu1/send"), ("a/to_cpu1/send", "a/to_cpu1/recv"), ("a/to_cpu1/recv", "b"),
        ("a/to_cpu1/recv", "c"), ("a", "a:1/to_cpu1/send"), ("a:1/to_cpu1/send", "a:1/to_cpu1/recv"),
        ("a:1/to_cpu1/recv", "c"), ("a", "a:1/to_cpu2/send"), ("a:1/to_cpu2/send", "a:1/to_cpu2/recv"),
        ("a:1/to_cpu2/recv", "d"),
    }  # fmt: skip
    recv = g.index("a:1/to_cpu1/recv")
    assert g.attributes[recv] == {"key": "cpu0;cpu1;a:1"}
    assert g.tensor_nbytes[g.outputs.row(recv)].tolist() == [16]


def test_a_control_edge_carries_a_dummy_constant() -> None:
    b = GraphBuilder("control")
    b.op("a", device="cpu0")
    b.op("b", after=["a"], device="cpu1")
    b.op("c", after=["a"], device="cpu1")
    g = Partition().apply(b.build())
    chain = ["a", "a/to_cpu1/control", "a/to_cpu1/control/to_cpu1/send", "a/to_cpu1/control/to_cpu1/recv",
             "a/to_cpu1/done"]  # fmt: skip
    assert edges(g) == {*pairwise(chain), (chain[-1], "b"), (chain[-1], "c")}
    kinds = ["const", "send", "recv", "identity"]
    assert [g.kind(g.index(name)) for name in chain[1:]] == kinds
    assert [device(g, g.index(name)) for name in chain[1:]] == ["cpu0", "cpu0", "cpu1", "cpu1"]


def test_only_a_placed_graph_can_be_cut() -> None:
    b = GraphBuilder("free")
    b.op("a")
    with pytest.raises(InputError, match="op 'a' is pinned to no device"):
        Partition().apply(b.build())


@st.composite
def graphs(draw: st.DrawFn, control: bool = True) -> Graph:
    b = GraphBuilder("random")
    names: list[str] = []
    for i in range(draw(st.integers(2, 14))):
        some = st.lists(st.sampled_from(names), max_size=3, unique=True) if names else st.just([])
        b.op(
            f"op{i}",
            inputs=draw(some),
            after=draw(some) if control else [],
            outputs=draw(st.integers(0, 40)),
            duration_ns=draw(st.integers(1, 50)),
            device=draw(st.sampled_from(DEVICES)),
        )
        names.append(f"op{i}")
    return b.build()


@given(g=graphs())
def test_no_dependency_is_lost_and_no_tensor_is_sent_twice(g: Graph) -> None:
    cut = Partition().apply(g)
    assert set(g.op_names) <= set(cut.op_names)
    for name in g.op_names:
        assert ancestors(cut, name) & set(g.op_names) == ancestors(g, name)
    sent: Counter[tuple[int, str]] = Counter()
    for p, c, tensor in zip(cut.edges.producer, cut.edges.consumer, cut.edges.tensor, strict=True):
        if device(cut, p) != device(cut, c):
            assert (cut.kind(p), cut.kind(c)) == ("send", "recv")
            sent[int(cut.inputs.row(int(p))[0]), device(cut, int(c))] += 1
            assert tensor >= 0
    assert all(count == 1 for count in sent.values())


@given(g=graphs(control=False))
def test_data_takes_the_same_times_either_way(g: Graph) -> None:
    implicit, explicit = (simulate(x, machine(), ReadyQueue()) for x in (g, Partition().apply(g)))
    explicit.check()
    assert starts(explicit, g.op_names) == starts(implicit, g.op_names)
    for name in ("tensor", "source", "destination", "nbytes", "start_ns", "end_ns"):
        if name != "tensor":
            assert sorted(explicit.transfers[name].tolist()) == sorted(implicit.transfers[name].tolist())


@given(g=graphs())
def test_with_ideal_links_control_edges_cost_nothing_either(g: Graph) -> None:
    ideal = machine(links=False)
    implicit, explicit = (simulate(x, ideal, ReadyQueue()) for x in (g, Partition().apply(g)))
    assert starts(explicit, g.op_names) == starts(implicit, g.op_names)


def loop(trips: int, parallel: int) -> Graph:
    """A counter on cpu0 with its condition; a body op on cpu1 that the counter reads."""

    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("remote", inputs=[v["i"]], outputs=10, duration_ns=20, device="cpu1")
        return {"i": b.op("count", inputs=["remote"], outputs=10, duration_ns=5, device="cpu0")}

    b = GraphBuilder("loop")
    b.op("zero", outputs=10, duration_ns=1, device="cpu0")
    out = while_loop(b, "loop", {"i": "zero"}, body, trips=trips, parallel_iterations=parallel, device="cpu0")
    b.op("after", inputs=[out["i"]], duration_ns=1, device="cpu2")
    return b.build()


@pytest.mark.parametrize("policy", [ReadyQueue(), TensorFlowExecutor()])
@pytest.mark.parametrize(("trips", "parallel"), [(0, 1), (1, 1), (4, 1), (4, 10)])
def test_a_loop_over_two_devices_is_told_each_time_whether_it_goes_on(
    trips: int, parallel: int, policy: Any
) -> None:
    g = loop(trips, parallel)
    cut = Partition().apply(g)
    control = [name for name in cut.op_names if name.startswith("loop/on_cpu1/")]
    assert control == [f"loop/on_cpu1/{x}" for x in ("const", "enter", "merge", "switch", "next")]
    assert ("loop/on_cpu1/merge", "loop/cond/to_cpu1/recv") in edges(cut)
    names = ["remote", "count", "after"]
    for sharing, extra_ns in (("shared", 0), ("serial", 5)):
        there = machine(sharing=sharing)
        implicit, explicit = simulate(g, there, policy), simulate(cut, there, policy)
        explicit.check()
        if not extra_ns:
            assert starts(explicit, names) == starts(implicit, names)
        # Where transfers queue, the counter queues behind the condition: one latency in each iteration.
        assert explicit.makespan_ns == implicit.makespan_ns + extra_ns * trips
    keys = rendezvous_keys(explicit)
    assert {key for key in keys if ";loop/cond;" in key} == {
        f"cpu0;cpu1;loop/cond;loop:{i}" for i in range(trips + 1)
    }
    for sends, recvs in keys.values():
        assert len(sends) == len(recvs) == 1
        assert sends[0] <= recvs[0]


def test_nested_loops_and_conditions_over_three_devices() -> None:
    def inner(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        return {"j": b.op("work", inputs=[v["j"]], duration_ns=10, device="cpu2")}

    def outer(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("p", inputs=[v["i"]], duration_ns=1, device="cpu1", attributes={"outcome": [True, False, False]})
        out = while_loop(b, "inner", {"j": v["i"]}, inner, trips=[2, 0, 1], device="cpu1")
        (y,) = cond(b, "if", "p", [out["j"]],
                    lambda b, w: [b.op("f", inputs=[w[out["j"]]], duration_ns=100, device="cpu0")],
                    lambda b, w: [b.op("g", inputs=[w[out["j"]]], duration_ns=10, device="cpu2")],
                    device="cpu0")  # fmt: skip
        return {"i": y}

    b = GraphBuilder("nested")
    b.op("zero", duration_ns=0, device="cpu0")
    while_loop(b, "outer", {"i": "zero"}, outer, trips=3, device="cpu0")
    g = b.build()
    cut = Partition().apply(g)
    implicit, explicit = (simulate(x, machine(), ReadyQueue()) for x in (g, cut))
    explicit.check()
    names = ["work", "f", "g"]
    counts = [Counter(name for name, _ in starts(t, names)) for t in (implicit, explicit)]
    assert counts[0] == counts[1] == {"work": 3, "f": 1, "g": 2}
    assert explicit.makespan_ns >= implicit.makespan_ns
    assert all(len(sends) == len(recvs) == 1 for sends, recvs in rendezvous_keys(explicit).values())


@examples(60)
@given(g=programs(logs=True), where=st.lists(st.integers(0, 2), min_size=1, max_size=7))
def test_any_program_cut_anyhow_runs_the_same_ops(g: Graph, where: list[int]) -> None:
    """Loops and conditions over three devices: the same live runs, and every key met once by each side."""
    there = machine()
    device_of = np.array([where[op % len(where)] for op in range(len(g))])
    placed = pin_ops(g, there, device_of)
    cut = Partition().apply(placed)
    for p, c in zip(cut.edges.producer.tolist(), cut.edges.consumer.tolist(), strict=True):
        assert device(cut, p) == device(cut, c) or (cut.kind(p), cut.kind(c)) == ("send", "recv")
    implicit, explicit = (simulate(x, there, ReadyQueue()) for x in (placed, cut))
    linear = simulate(cut, there, Sequential())
    explicit.check(), linear.check()
    ops = [name for op, name in enumerate(g.op_names) if g.kind(op) == "op"]
    runs = [Counter(name for name, _ in starts(trace, ops)) for trace in (implicit, explicit, linear)]
    assert runs[0] == runs[1] == runs[2]
    assert all(len(sends) == len(recvs) == 1 for sends, recvs in rendezvous_keys(explicit).values())


@examples(30)
@given(g=programs(logs=True), where=st.lists(st.integers(0, 2), min_size=1, max_size=7))
def test_programs_over_a_cpu_and_two_gpus_under_threads_and_a_linear_runtime(
    g: Graph, where: list[int]
) -> None:
    mixed = make_machine(
        {
            "devices": {
                "cpu0": {"kind": "cpu", "cores": 2},
                "gpu0": {"kind": "gpu", "issue_cost": "2ns"},
                "gpu1": {"kind": "gpu"},
            },
            "links": [
                {"from": a, "to": b, "latency": "5ns", "bandwidth": "1GB/s"}
                for a, b in (("cpu0", "gpu0"), ("cpu0", "gpu1"), ("gpu0", "gpu1"))
            ],
        }
    )
    placed = pin_ops(g, mixed, np.array([where[op % len(where)] for op in range(len(g))]))
    runs = []
    for policy in (Sequential(), TensorFlowExecutor(), ReadyQueue()):
        trace = checked(placed, mixed, policy)
        runs.append(Counter(trace.tasks["op"][trace.tasks["dead"] == 0].tolist()))
    assert runs[0] == runs[1] == runs[2]
    simulate(Partition().apply(placed), mixed, TensorFlowExecutor()).check()


def test_one_thread_makes_the_explicit_form_later() -> None:
    """The send takes its turn on the only thread behind an op that was ready before it."""
    b = GraphBuilder("turn")
    b.op("a", outputs=10, duration_ns=1, device="cpu0")
    b.op("b", inputs=["a"], duration_ns=100, device="cpu0")
    b.op("c", inputs=["a"], duration_ns=1, device="cpu1")
    g = b.build()
    implicit, explicit = (
        simulate(x, machine(cores=1), ReadyQueue()) for x in (g, Partition().apply(g))
    )  # fmt: skip
    assert starts(implicit, ["c"]) == {("c", 0): 1 + 5 + 10}
    assert starts(explicit, ["c"]) == {("c", 0): 1 + 100 + 5 + 10}


@pytest.mark.parametrize(("policy", "keys"), [("ready-queue", 0), ("tensorflow-executor", 1)])
def test_a_scenario_cuts_by_key_where_recvs_ask_in_turn(tmp_path: Path, policy: str, keys: int) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {devices: {cpu0: {kind: cpu}, cpu1: {kind: cpu}}}\n"
        "workload: {ops: {a: {duration: 1us, output: 8B, device: cpu0}, "
        "b: {duration: 1us, inputs: [a], device: cpu1}}}\n"
        f"policy: {{name: {policy}, compile: [partition]}}\n"
    )
    assert len(run_scenario(load_scenario(path), check=True).trace.met) == keys
