"""Idle time has the reason that one would give by hand, and the executed path explains every nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from drawn_runs import draw_graph, draw_run
from examples import seeds

from devices.cores import CorePool
from devices.memory.registry import MemorySpec
from devices.memory.run_memory import tensor_memory
from devices.network import make_network
from policies.issue.program_order import InOrder, OutOfOrder
from policies.issue.ready_queue import ReadyQueue
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.placement.simple import DeviceKind
from scenarios.ops.control_flow import cond, while_loop
from sim import Device, GraphBuilder, Job, Link, Machine, Policy, Trace, simulate
from sim.explain.derived import DerivedColumns
from sim.explain.idle import final_waits, idle_pieces, idle_reasons
from sim.explain.makespan_breakdown import breakdown
from sim.explain.narration import explain_text, largest_gaps
from sim.explain.path import PathStep, executed_path
from sim.faults import Cause, Faults, HealthCheck
from sim.metrics import device_use
from sim.record.record import Wait

ISSUE = ReadyQueue(synchronisation="issue")


class Lanes:
    """Puts ops on the given lanes."""

    def __init__(self, *lanes: int) -> None:
        self.lanes = lanes

    def assign(self, job: Job) -> Sequence[int]:
        return self.lanes


def chain(*durations: int, policy: Policy | None = None, **device: int) -> Trace:
    """Return a chain of ops a, b, c, ... on one device."""
    b = GraphBuilder("chain")
    for k, ns in enumerate(durations):
        b.op("abcdef"[k], inputs=["abcdef"[k - 1]] if k else [], duration_ns=ns)
    return simulate(b.build(), Machine((Device("gpu0", **device),)), policy or ReadyQueue())


def steps(trace: Trace) -> list[tuple[int, int, str]]:
    """Return (start, end, what) of the executed path."""
    names = trace.job.graph.op_names

    def what(step: PathStep) -> str:
        if step.row >= len(trace):
            name = trace.job.graph.tensor_name(int(trace.transfers["tensor"][step.row - len(trace)]))
        else:
            name = names[int(trace.tasks["op"][step.row])]
        return " ".join(filter(None, (step.kind, step.reason, name)))

    return [(step.start_ns, step.end_ns, what(step)) for step in executed_path(trace)]


# -- reasons, one by one ------------------------------------------------------------------------


def test_dependency_and_finished() -> None:
    b = GraphBuilder("ping pong")
    b.op("a", duration_ns=10, device="gpu0")
    b.op("b", duration_ns=20, device="gpu1", inputs=["a"])
    trace = simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue())
    assert idle_reasons(trace) == {"gpu0": {"finished": 20}, "gpu1": {"dependency": 10}}
    assert steps(trace) == [(0, 10, "task a"), (10, 30, "task b")]
    assert [gap.blame for gap in largest_gaps(trace)] == ["'b' needs 'a', which runs on gpu0/0"]


def test_transfer() -> None:
    b = GraphBuilder("send")
    b.op("a", duration_ns=10, device="gpu0", outputs=40)
    b.op("b", duration_ns=20, device="gpu1", inputs=["a"])
    b.op("c", duration_ns=0, device="gpu0", outputs=30)
    b.op("d", duration_ns=20, device="gpu1", inputs=["c", "b"])
    link = Link("wire", "gpu0", "gpu1", 5, 10**9)
    machine = Machine((Device("gpu0", streams=2), Device("gpu1")), (link,), network=make_network)
    trace = simulate(b.build(), machine, ReadyQueue(), streams=Lanes(0, 0, 1, 0))
    # c's transfer holds the wire from 0 to 35, a's waits for it from 10 to 35 and takes until 80.
    assert idle_reasons(trace)["gpu1"] == {"dependency": 10, "transfer": 70}
    assert steps(trace) == [
        (0, 35, "transfer c"),
        (35, 80, "transfer a"),
        (80, 100, "task b"),
        (100, 120, "task d"),
    ]
    assert (
        largest_gaps(trace)[0].blame
        == "'b' needs the transfer of 'a' from gpu0 to gpu1, which waits for a link"
    )


def test_issue_and_launch() -> None:
    trace = chain(10, 10, issue_ns=3, launch_latency_ns=4)
    assert idle_reasons(trace) == {"gpu0": {"issue": 6, "launch": 8}}
    assert steps(trace) == [
        (0, 3, "issue a"),
        (3, 7, "wait launch a"),
        (7, 17, "task a"),
        (17, 20, "issue b"),
        (20, 24, "wait launch b"),
        (24, 34, "task b"),
    ]


def test_the_gap_between_kernels_is_launch() -> None:
    trace = chain(10, 10, policy=ISSUE, gap_ns=2)
    assert idle_reasons(trace) == {"gpu0": {"launch": 2}}
    assert steps(trace) == [(0, 10, "task a"), (10, 12, "wait launch b"), (12, 22, "task b")]


def test_who_stands_behind_a_launch_waits_for_the_stream() -> None:
    """c was ready first, and third on its stream: on one of its own it would run in the gap before b."""
    b = GraphBuilder("queue")
    for name, inputs in (("a", []), ("b", ["a"]), ("c", [])):
        b.op(name, duration_ns=10, inputs=inputs)
    trace = simulate(b.build(), Machine((Device("gpu0", gap_ns=2),)), InOrder(synchronisation="issue"))
    assert idle_reasons(trace) == {"gpu0": {"stream": 2, "launch": 2}}
    assert [gap.blame for gap in largest_gaps(trace)] == [
        "'c' is issued and queued behind 'b' on gpu0/0, which is being launched",
        "'c' is being launched on gpu0/0",
    ]


def test_what_a_lane_does_instead_is_told() -> None:
    """c needs a, or what a needs; x, which is in nobody's way but theirs, runs first."""
    b = GraphBuilder("first")
    b.op("x", duration_ns=30, device="gpu0")
    b.op("a", duration_ns=5, device="gpu0")
    b.op("b", duration_ns=5, device="gpu1", inputs=["a"])
    b.op("c", duration_ns=5, device="gpu2", inputs=["b"])
    machine = Machine(tuple(Device(f"gpu{k}") for k in range(3)))
    told = {gap.device: gap.blame for gap in largest_gaps(simulate(b.build(), machine, InOrder()))}
    runs = "gpu0/0 runs 'x' for 30 ns more"
    assert told["gpu1"] == f"'b' needs 'a', which has not started yet on gpu0/0; {runs}"
    assert told["gpu2"] == f"'c' needs 'b', which has not started yet on gpu1/0; {runs}"


def test_a_host_that_cannot_keep_up() -> None:
    """Kernels of 1 ns that cost 5 ns to issue: the path runs through the host."""
    trace = chain(1, 1, 1, policy=ISSUE, issue_ns=5)
    assert idle_reasons(trace) == {"gpu0": {"issue": 13}}
    assert steps(trace) == [(0, 5, "issue a"), (5, 10, "issue b"), (10, 15, "issue c"), (15, 16, "task c")]


def test_what_a_worker_pays_is_issue() -> None:
    trace = chain(10, 10, workers=1, issue_ns=3)
    assert idle_reasons(trace) == {"gpu0": {"issue": 6}}
    assert final_waits(trace).tolist() == [Wait.ISSUER, Wait.ISSUER]


def head_of_line(policy: Policy) -> Trace:
    """Return a run in which b waits for a (elsewhere) and c, behind it in the program, waits for nothing."""
    b = GraphBuilder("head of line")
    b.op("a", duration_ns=50, device="gpu0")
    b.op("b", duration_ns=10, device="gpu1", inputs=["a"])
    b.op("c", duration_ns=10, device="gpu1")
    return simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), policy)


def test_policy() -> None:
    trace = head_of_line(InOrder())
    assert idle_reasons(trace)["gpu1"] == {"policy": 50}
    gap = largest_gaps(trace)[0]
    assert (gap.device, gap.start_ns, gap.length_ns, gap.reason) == ("gpu1", 0, 50, "policy")
    assert gap.blame == "'c' is ready and an issuer is free, but InOrder runs 'b' first"
    assert largest_gaps(DerivedColumns(trace, "in-order"))[0].blame.endswith("but in-order runs 'b' first")
    assert final_waits(trace).tolist() == [0, 0, Wait.POLICY]
    for other in (ReadyQueue(), OutOfOrder(window=2)):
        trace = head_of_line(other)
        assert idle_reasons(trace)["gpu1"] == {"dependency": 40}
        assert not final_waits(trace).any()


def test_stream() -> None:
    """Both are issued to one stream: c could run, and b before it waits for a's event."""
    trace = head_of_line(InOrder(synchronisation="issue"))
    assert trace.tasks["op"].tolist() == [0, 1, 2]
    assert idle_reasons(trace)["gpu1"] == {"stream": 50}
    assert largest_gaps(trace)[0].blame == "'c' is issued and queued behind 'b' on gpu1/0"
    assert final_waits(trace).tolist() == [0, Wait.EVENT, Wait.STREAM]
    assert steps(trace) == [(0, 50, "task a"), (50, 60, "task b"), (60, 70, "task c")]


def test_event() -> None:
    b = GraphBuilder("hop")
    b.op("a", duration_ns=10)
    b.op("b", duration_ns=10, inputs=["a"])
    machine = Machine((Device("gpu0", streams=2, event_ns=3),))
    trace = simulate(b.build(), machine, ISSUE, streams=Lanes(0, 1))
    assert idle_reasons(trace) == {"gpu0": {"event": 3}}
    assert steps(trace) == [(0, 10, "task a"), (10, 13, "wait event b"), (13, 23, "task b")]
    assert largest_gaps(trace)[0].blame == "'b' waits on gpu0/1 for an event to arrive"


def test_memory() -> None:
    """b's output does not fit beside a's, which c keeps alive on the other device."""
    b = GraphBuilder("memory")
    b.op("a", duration_ns=10, outputs=80, device="gpu0")
    b.op("b", duration_ns=10, outputs=80, device="gpu0")
    b.op("c", duration_ns=50, inputs=["a"], device="gpu1")
    machine = Machine((Device("gpu0", memory_bytes=100), Device("gpu1")))
    trace = simulate(b.build(), machine, ReadyQueue(), memory=tensor_memory(when_full="wait"))
    assert idle_reasons(trace)["gpu0"] == {"memory": 50}
    assert largest_gaps(trace)[0].blame == "'b' waits for memory"
    assert steps(trace)[-1] == (60, 70, "task b")


def test_calls_of_an_allocator_are_no_decision_of_the_policy() -> None:
    """The host spends 5 on a malloc and 2 on issuing; for b it does so while a runs.

    host   0 malloc 5 issue 7 malloc 12 issue 14
    gpu0                    7 a               17 b 27
    """
    b = GraphBuilder("calls")
    b.op("a", duration_ns=10, outputs=8)
    b.op("b", duration_ns=10, outputs=8, inputs=["a"])
    memory = tensor_memory({"gpu0": MemorySpec("counted", malloc_ns=5)}, lifetime="issue")
    trace = simulate(b.build(), Machine((Device("gpu0", issue_ns=2),)), ISSUE, memory=memory)
    assert trace.tasks["calls_ns"].tolist() == [5, 5]
    assert idle_reasons(trace)["gpu0"] == {"memory": 5, "issue": 2}
    assert [gap.blame for gap in largest_gaps(trace)] == [
        "gpu0/host calls the driver for memory before it issues 'a'",
        "'a' is ready, and gpu0/host issues it",
    ]
    assert steps(trace) == [
        (0, 5, "wait memory a"),
        (5, 7, "issue a"),
        (7, 17, "task a"),
        (17, 27, "task b"),
    ]
    assert breakdown(DerivedColumns(trace)).parts == {"compute": 20, "memory": 5, "issue": 2}


def test_calls_of_an_allocator_before_a_worker_executes() -> None:
    """A worker spends 5 on a malloc and 2 on issuing, and then executes for 10."""
    b = GraphBuilder("calls")
    b.op("a", duration_ns=10, outputs=8)
    memory = tensor_memory({"cpu0": MemorySpec("counted", malloc_ns=5)}, lifetime="issue")
    machine = Machine((Device("cpu0", "cpu", workers=1, issue_ns=2),))
    trace = simulate(b.build(), machine, ReadyQueue(), memory=memory)
    assert idle_reasons(trace)["cpu0"] == {"memory": 5, "issue": 2}
    assert steps(trace) == [(0, 5, "wait memory a"), (5, 7, "issue a"), (7, 17, "task a")]
    assert breakdown(DerivedColumns(trace)).parts == {"compute": 10, "memory": 5, "issue": 2}


def test_no_column_of_calls_where_they_cost_nothing() -> None:
    trace = chain(10, 20)
    assert "calls_ns" not in trace.tasks


def test_resources() -> None:
    b = GraphBuilder("cores")
    for name in "ab":
        b.op(name, duration_ns=10)
    device = Device("cpu0", "cpu", workers=2, cores=3, cores_per_op=2, processor=CorePool)
    trace = simulate(b.build(), Machine((device,)), ReadyQueue())
    assert final_waits(trace).tolist() == [Wait.NONE, Wait.RESOURCES]
    assert idle_reasons(trace) == {"cpu0": {}}
    assert steps(trace) == [(0, 10, "task a"), (10, 20, "task b")]


def test_the_path_goes_on_to_what_a_policy_waited_for() -> None:
    """c could run at once, but b comes first in the program, and waits for what a sends."""
    b = GraphBuilder("in order")
    b.op("a", duration_ns=10, outputs=200, device="gpu0")
    b.op("b", duration_ns=10, inputs=["a"], device="cpu0")
    b.op("c", duration_ns=50, device="cpu0")
    devices = Device("gpu0"), Device("cpu0", "cpu", workers=2)
    machine = Machine(devices, (Link("wire", "gpu0", "cpu0", 0, 10**9),), network=make_network)
    trace = simulate(b.build(), machine, InOrder())
    assert steps(trace) == [(0, 10, "task a"), (10, 210, "transfer a"), (210, 260, "task c")]


@pytest.mark.parametrize("seed", seeds(40))
def test_one_after_another_all_that_shortens_the_run_is_on_the_path(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, machine = draw_graph(rng, 8, False), Machine((Device("d0"), Device("d1", "cpu", workers=2)))
    one = InOrder(in_flight=1, per="machine")
    trace = simulate(graph, machine, one)
    path = {int(trace.tasks["op"][step.row]) for step in executed_path(trace)}
    for op in set(range(len(graph))) - path:
        ns = graph.duration_ns.copy()
        ns[op] //= 2
        assert simulate(replace(graph, duration_ns=ns), machine, one).makespan_ns == trace.makespan_ns


def test_a_run_that_waits_for_the_one_before_it_goes_on_with_what_ended_that_one() -> None:
    """A session of TensorFlow returns when all has ended; it was one wait from 0 to the last run."""
    b = GraphBuilder("chain beside an op")
    for name, inputs, ns in (("a", [], 5), ("b", ["a"], 8), ("c", [], 2)):
        b.op(name, inputs=inputs, duration_ns=ns)
    machine = Machine((Device("cpu0", "cpu", workers=2),))
    trace = simulate(b.build(), machine, TensorFlowExecutor(), iterations=2)
    assert steps(trace) == [(0, 5, "task a"), (5, 13, "task b"), (13, 18, "task a"), (18, 26, "task b")]


# -- for every run ------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(120))
def test_every_idle_nanosecond_has_one_reason(seed: int) -> None:
    trace = draw_run(seed)
    reasons = idle_reasons(trace)
    for name, use in device_use(trace).items():
        assert sum(reasons[name].values()) == use.idle_ns
        assert all(ns > 0 for ns in reasons[name].values())
    pieces = idle_pieces(DerivedColumns(trace))
    assert (pieces.length_ns > 0).all()
    assert (pieces.start_ns + pieces.length_ns <= trace.makespan_ns).all()
    if trace.policy == "ReadyQueue":  # never holds anything back
        assert not any("policy" in idle for idle in reasons.values())


@pytest.mark.parametrize("seed", seeds(120))
def test_the_path_covers_the_makespan(seed: int) -> None:
    trace = draw_run(seed)
    path = executed_path(trace)
    bounds = [0, *(step.end_ns for step in path)]
    assert [step.start_ns for step in path] == bounds[:-1]
    assert bounds[-1] == trace.makespan_ns
    for step in path:
        if step.kind == "task":
            assert trace.tasks["start_ns"][step.row] == step.start_ns
            assert trace.tasks["end_ns"][step.row] == step.end_ns
        elif step.kind == "transfer":
            assert trace.transfers["end_ns"][step.row - len(trace)] == step.end_ns
        if trace.policy == "ReadyQueue":
            assert step.reason != "policy"


def test_kinds_on_the_path() -> None:
    """Off the path a kind does not count, and a path that is shown whole tells its kinds itself."""
    b = GraphBuilder("some")
    for name, kind, ns, inputs in (
        ("a", "conv", 5_000, []),
        ("b", "relu", 2_000, ["a"]),
        ("c", "conv", 4_000, ["b"]),
        ("d", "pool", 100, []),
    ):
        b.op(name, kind=kind, duration_ns=ns, inputs=inputs)
    trace = simulate(b.build(), Machine((Device("cpu0", "cpu", workers=2),)), ReadyQueue())
    assert "\n  by kind: conv 9 us, relu 2 us\n" in explain_text(trace, longest=1)
    assert "by kind" not in explain_text(trace, longest=3)


@pytest.mark.parametrize("seed", seeds(40))
def test_every_run_can_be_told(seed: int) -> None:
    trace = draw_run(seed)
    text = explain_text(trace)
    assert trace.policy in text
    assert "Executed critical path" in text
    for gap in largest_gaps(trace, 100):
        assert gap.blame
        assert gap.length_ns > 0


@pytest.mark.parametrize("trips", [0, 1, 4])
@pytest.mark.parametrize("outcome", [True, False])
def test_branches_and_loops_are_explained(trips: int, outcome: bool) -> None:
    b = GraphBuilder("control flow")
    b.op("p", duration_ns=5, attributes={"outcome": outcome})
    b.op("x", duration_ns=7)
    merged = cond(
        b,
        "if",
        "p",
        ["x"],
        lambda b, v: [b.op("yes", inputs=[v["x"]], duration_ns=30)],
        lambda b, v: [b.op("no", inputs=[v["x"]], duration_ns=11)],
    )
    while_loop(
        b,
        "loop",
        {"i": merged[0]},
        lambda b, v: {"i": b.op("body", inputs=[v["i"]], duration_ns=10, device="gpu0")},
        trips=trips,
    )
    machine = Machine((Device("cpu0", "cpu", workers=1), Device("gpu0", issue_ns=2)))
    trace = simulate(b.build(), machine, ReadyQueue(), placement=DeviceKind(order=["cpu"]))
    reasons = idle_reasons(trace)
    for name, use in device_use(trace).items():
        assert sum(reasons[name].values()) == use.idle_ns
    assert reasons["gpu0"].get("issue", 0) == 2 * trips
    path = executed_path(trace)
    assert sum(step.end_ns - step.start_ns for step in path) == trace.makespan_ns
    assert "control flow under ReadyQueue" in explain_text(trace)


@pytest.mark.parametrize(
    ("kind", "title"), [("all_reduce", "communication"), ("copy", "communication and copies")]
)
def test_what_is_exposed_has_its_name(kind: str, title: str) -> None:
    b = GraphBuilder("moves")
    b.op("a", kind=kind, duration_ns=100, attributes={"stream": 0})
    text = explain_text(simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue()))
    assert f"\nExposed {title}\n  gpu0" in text
    assert "recorded" not in text, "written by hand, it has no other ranks"


def test_nothing_takes_no_time_to_explain() -> None:
    b = GraphBuilder("nothing")
    b.op("a", duration_ns=0)
    trace = simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue())
    assert executed_path(trace) == []
    assert idle_reasons(trace) == {"gpu0": {}}
    assert "Idle time" not in explain_text(trace)


def test_a_run_that_ended_before_anything_ran_is_explained() -> None:
    b = GraphBuilder("late")
    b.op("a", duration_ns=100)
    faults = Faults((Cause("gpu", at=((5, 0),), parts=(0,)),), health_check=HealthCheck(10))
    trace = simulate(b.build(), Machine((Device("gpu0", issue_ns=30),)), ReadyQueue(), faults=faults)
    assert (len(trace), idle_reasons(trace)) == (0, {"gpu0": {"unused": 10}})
    assert breakdown(DerivedColumns(trace)).parts == {"unused": 10}
    assert "unused: gpu0" in explain_text(trace)
