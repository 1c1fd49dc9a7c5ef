"""Rendezvous: Sends and Recvs without an edge meet by key at run time, first come, first served."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from program_helpers import programs
from rendezvous_helpers import rendezvous_keys
from runs import checked

from devices.machine import make_machine
from devices.memory.registry import MemorySpec
from devices.memory.run_memory import tensor_memory
from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.issue.virtual_machine import Sequential
from policies.rewrite.partition import Partition
from policies.rewrite.prune import Prune
from scenarios.ops.control_flow import cond, while_loop
from scenarios.run.rewriting import pin_ops
from sim import Graph, GraphBuilder, Machine, Trace, simulate
from sim.base.errors import GraphError, InvariantError, StuckError
from sim.explain.memory_use import memory_use
from sim.explain.path import executed_path
from sim.job.build_job import make_job
from sim.job.transfers import Travel
from sim.readiness.rendezvous import Rendezvous
from sim.record.dependencies import dependencies

DEVICES = ("cpu0", "cpu1", "cpu2")


def machine(*, links: bool = True, cores: int = 32, kind: str = "cpu", **link: Any) -> Machine:
    """CPUs (or GPUs) with a link of 5 ns and 1 byte/ns between every two."""
    device = {"kind": kind, "cores": cores} if kind == "cpu" else {"kind": kind}
    spec: dict[str, Any] = {"devices": dict.fromkeys(DEVICES, device)}
    if links:
        link = {"latency": "5ns", "bandwidth": "1GB/s", **link}
        spec["links"] = [{"from": a, "to": b, **link} for a, b in pairwise(DEVICES)]
    return make_machine(spec)


def pair(b: GraphBuilder, key: str, n: int, made_ns: list[int], asked_ns: list[int]) -> None:
    """Add `n` Sends on cpu0 and Recvs on cpu1 of one key; Recvs ask after ops of some ns."""
    for i in range(n):
        b.op(f"{key}.a{i}", outputs=10 * (i + 1), duration_ns=made_ns[i], device="cpu0")
        b.op(f"{key}.send{i}", kind="send", inputs=[f"{key}.a{i}"], duration_ns=0, device="cpu0",
             attributes={"key": key})  # fmt: skip
        b.op(f"{key}.wait{i}", duration_ns=asked_ns[i], device="cpu1")
        b.op(f"{key}.recv{i}", kind="recv", after=[f"{key}.wait{i}"], duration_ns=0, device="cpu1",
             attributes={"key": key})  # fmt: skip


def met(trace: Trace) -> list[tuple[str, str]]:
    """Return the ops that met, in the order in which they did (static graphs)."""
    graph, n = trace.job.graph, trace.flow.n_nodes
    out = []
    for source, recv in (trace.met % n).tolist():
        send = source
        if source >= len(graph):
            send = int(graph.tensor_producer[trace.flow.tensor[source - len(graph)]])
        out.append((graph.op_names[send], graph.op_names[recv]))
    return out


def time(trace: Trace, name: str, column: str = "start_ns") -> int:
    op = trace.job.graph.index(name)
    return int(trace.tasks[column][trace.tasks["op"] == op][0])


# -- who meets whom -----------------------------------------------------------------------------------


@pytest.mark.parametrize("links", [True, False])
def test_the_first_send_meets_the_first_recv(links: bool) -> None:
    """Sends end at 30, 10, 20 and Recvs ask at 1, 50, 5: (10, 1), (20, 5), (30, 50)."""
    b = GraphBuilder("fifo")
    pair(b, "k", 3, [30, 10, 20], [1, 50, 5])
    trace = checked(b.build(), machine(links=links, sharing="shared"), ReadyQueue())
    assert met(trace) == [("k.send1", "k.recv0"), ("k.send2", "k.recv2"), ("k.send0", "k.recv1")]
    if not links:  # at once, when both are there
        assert [time(trace, f"k.recv{i}") for i in range(3)] == [10, 50, 20]


def test_without_company_the_bytes_go_when_both_are_there() -> None:
    b = GraphBuilder("one")
    pair(b, "late recv", 1, [10], [50])
    trace = simulate(b.build(), machine(), ReadyQueue())
    assert time(trace, "late recv.recv0") == 50 + 5 + 10
    b = GraphBuilder("one")
    pair(b, "late send", 1, [70], [50])
    trace = simulate(b.build(), machine(), ReadyQueue())
    assert time(trace, "late send.recv0") == 70 + 5 + 10


@pytest.mark.parametrize(("made_ns", "asked_ns", "due_ns"), [(10, 50, 55), (53, 50, 55), (70, 50, 70)])
def test_between_processes_the_request_travels_first(made_ns: int, asked_ns: int, due_ns: int) -> None:
    """The bytes leave when the tensor is there and the request, which takes the latency, has arrived."""
    b = GraphBuilder("one")
    pair(b, "k", 1, [made_ns], [asked_ns])
    trace = checked(b.build(), machine(rendezvous=True), ReadyQueue())
    assert trace.transfers["start_ns"].tolist() == [due_ns]
    assert time(trace, "k.recv0") == due_ns + 5 + 10


def test_a_send_never_blocks() -> None:
    """Three Sends, one Recv: the Sends end when they are made, and one tensor travels."""
    b = GraphBuilder("more sends")
    pair(b, "k", 1, [10], [1])
    for i in range(2):
        b.op(f"more{i}", kind="send", duration_ns=3 + i, outputs=7, device="cpu0", attributes={"key": "k"})
    b.op("alone", kind="send", device="cpu0", duration_ns=1, attributes={"key": "nobody asks"})
    trace = checked(b.build(), machine(), ReadyQueue())
    assert met(trace) == [("more0", "k.recv0")]
    assert trace.transfers["nbytes"].tolist() == [7]
    assert time(trace, "k.send0", "end_ns") == 10


@given(
    made=st.lists(st.integers(0, 30), min_size=4, max_size=4),
    asked=st.lists(st.integers(0, 30), min_size=4, max_size=4),
    links=st.booleans(),
    request=st.booleans(),
    repetitions=st.integers(1, 3),
)
def test_the_nth_meets_the_nth(
    made: list[int], asked: list[int], links: bool, request: bool, repetitions: int
) -> None:
    """Two keys at once; in each repetition the queues are its own."""
    b = GraphBuilder("two keys")
    pair(b, "k", 2, made[:2], asked[:2])
    pair(b, "m", 2, made[2:], asked[2:])
    there = machine(links=links, rendezvous=request, sharing="shared")
    trace = checked(b.build(), there, ReadyQueue(), iterations=repetitions)
    graph, n = trace.job.graph, trace.flow.n_nodes
    ends = {
        (int(i), graph.op_names[op]): int(e)
        for i, op, e in zip(*(trace.tasks[c] for c in ("iteration", "op", "end_ns")), strict=True)
    }
    queues = defaultdict(list)
    for iteration, (send, recv) in zip((trace.met[:, 1] // n).tolist(), met(trace), strict=True):
        assert send.partition(".")[0] == recv.partition(".")[0]
        offered, wanted = ends[iteration, send], ends[iteration, recv.replace("recv", "wait")]
        queues[iteration, send[0]].append((offered, wanted))
    assert len(queues) == 2 * repetitions
    for pairs in queues.values():
        assert pairs == sorted(pairs)
        assert [asked for _, asked in pairs] == sorted(asked for _, asked in pairs)


# -- what a graph may not say -------------------------------------------------------------------------


def test_a_recv_whose_send_never_comes_is_told_with_its_key() -> None:
    b = GraphBuilder("one send")
    pair(b, "cpu0;cpu1;a", 1, [10], [1])
    b.op("second", kind="recv", device="cpu1", attributes={"key": "cpu0;cpu1;a"})
    with pytest.raises(StuckError, match="recv0 waits for a send with key 'cpu0;cpu1;a;0:0'"):
        simulate(b.build(), machine(), ReadyQueue())


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ({"s": ("send", "kay", []), "r": ("recv", "key", [])}, "no send has it; did you mean 'kay'"),
        ({"r": ("recv", "key", [])}, "recv 'r' has the key 'key', and no send has it$"),
        ({"r": ("recv", 3, [])}, "op 'r': key: 3 is no word"),
        (
            {"s": ("send", "k", []), "r": ("recv", "k", []), "x": ("op", None, ["s"])},
            "op 'x' reads send 's', which gives what it sends to the recv with key 'k'",
        ),
    ],
)
def test_keys_that_cannot_be(ops: dict[str, tuple[str, Any, list[str]]], message: str) -> None:
    b = GraphBuilder("wrong")
    for name, (kind, key, inputs) in ops.items():
        b.op(name, kind=kind, inputs=inputs, attributes={} if key is None else {"key": key}, duration_ns=0)
    with pytest.raises(GraphError, match=message):
        simulate(b.build(), machine(), ReadyQueue())


def test_a_key_is_received_on_one_device() -> None:
    b = GraphBuilder("two places")
    pair(b, "k", 1, [1], [1])
    b.op("elsewhere", kind="recv", device="cpu2", attributes={"key": "k"})
    with pytest.raises(GraphError, match="key 'k' is received on cpu1 and cpu2"):
        simulate(b.build(), machine(), ReadyQueue())


def test_what_reads_its_send_has_no_need_of_a_key() -> None:
    b = GraphBuilder("edge")
    b.op("s", kind="send", attributes={"key": "k"}, device="cpu0")
    b.op("r", kind="recv", inputs=["s"], attributes={"key": "k"}, device="cpu1")
    trace = simulate(b.build(), machine(), ReadyQueue())
    assert len(trace.met) == 0
    assert len(trace.transfers["id"]) == 1


def test_prune_keeps_the_sends_that_a_recv_needs() -> None:
    b = GraphBuilder("prune")
    pair(b, "k", 2, [1, 1], [1, 1])
    pair(b, "other", 1, [1], [1])
    g = Prune(fetches=["k.recv0"]).apply(b.build())
    assert [*g.op_names] == ["k.a0", "k.send0", "k.wait0", "k.recv0", "k.a1", "k.send1"]


# -- invariants, explanations, plans, memory ----------------------------------------------------------


def test_a_trace_in_which_a_recv_came_first_is_refused() -> None:
    b = GraphBuilder("one")
    pair(b, "k", 1, [10], [1])
    trace = simulate(b.build(), machine(), ReadyQueue())
    trace.transfers["end_ns"][:] += 1
    with pytest.raises(InvariantError, match=r"'k.recv0' started at 25 ns, before the transfer of 'k.send0'"):
        trace.check()
    trace = simulate(b.build(), machine(), ReadyQueue())
    trace.met[0, 1] = trace.met[0, 0]
    with pytest.raises(InvariantError, match=r"'k.recv0' started at 25 ns and met no send"):
        trace.check()


def test_pairs_of_send_and_recv_are_dependencies_and_stand_in_the_plan() -> None:
    b = GraphBuilder("one")
    pair(b, "k", 1, [10], [1])
    for links in (True, False):
        trace = simulate(b.build(), machine(links=links), ReadyQueue(), iterations=2)
        edges = dependencies(trace)
        recv = trace.job.graph.index("k.recv0")
        rows = np.flatnonzero(trace.tasks["op"] == recv)
        before = [edges.producer[edges.consumer == row].tolist() for row in rows.tolist()]
        assert [len(b) for b in before] == [2, 2]  # wait0, and what was sent
        plan = trace.plan()
        for task in np.flatnonzero(plan.op == list(plan.ops).index("k.recv0")).tolist():
            waits = {plan.ops[plan.op[w]] for w in plan.waits.row(task).tolist()}
            waits |= {plan.ops[plan.op[t]] for t in range(task) if plan.stream[t] == plan.stream[task]}
            assert "k.send0" in waits


def test_an_allocator_gives_back_what_was_received() -> None:
    b = GraphBuilder("memory")
    pair(b, "k", 2, [10, 20], [1, 2])
    trace = checked(b.build(), machine(), ReadyQueue(), memory=tensor_memory())
    assert trace.memory is not None
    assert trace.memory["change"].sum() == 0


# -- devices with streams -----------------------------------------------------------------------------


def on_gpus(g: Graph) -> tuple[Graph, Machine]:
    """Return `g` over a CPU and two GPUs, cut anyhow."""
    mixed = make_machine(
        {
            "devices": {
                "cpu0": {"kind": "cpu", "cores": 2},
                "gpu0": {"kind": "gpu", "issue_cost": "2ns", "launch_latency": "3ns", "streams": 2},
                "gpu1": {"kind": "gpu", "event_hop": "1ns"},
            },
            "links": [
                {"from": a, "to": b, "latency": "5ns", "bandwidth": "1GB/s", "sharing": "shared"}
                for a, b in (("cpu0", "gpu0"), ("cpu0", "gpu1"), ("gpu0", "gpu1"))
            ],
        }
    )
    return pin_ops(g, mixed, np.arange(len(g)) * 7 // 3 % 3), mixed


@st.composite
def dags(draw: st.DrawFn) -> Graph:
    b = GraphBuilder("dag")
    names: list[str] = []
    for i in range(draw(st.integers(2, 12))):
        some = st.lists(st.sampled_from(names), max_size=3, unique=True) if names else st.just([])
        names.append(b.op(f"op{i}", inputs=draw(some), after=draw(some), outputs=draw(st.integers(0, 40)),
                          duration_ns=draw(st.integers(1, 50))))  # fmt: skip
    return b.build()


@given(g=dags(), synchronisation=st.sampled_from(["completion", "issue"]))
def test_by_key_takes_as_long_as_by_edge_where_requests_come_first(g: Graph, synchronisation: str) -> None:
    """Recvs are roots there, and ask at time 0; so the same tasks run at the same times."""
    placed, mixed = on_gpus(g)
    policy = ReadyQueue()
    policy.synchronisation = synchronisation
    by_edge, by_key = (simulate(Partition(key).apply(placed), mixed, policy) for key in (False, True))
    by_key.check()
    columns = ("op", "ready_ns", "issue_ns", "start_ns", "end_ns")
    rows = [sorted(zip(*(t.tasks[c].tolist() for c in columns), strict=True)) for t in (by_edge, by_key)]
    assert rows[0] == rows[1]
    assert by_edge.transfers["end_ns"].sum() == by_key.transfers["end_ns"].sum()


# -- control flow -------------------------------------------------------------------------------------


def runs(trace: Trace, ops: list[str]) -> Counter[str]:
    """Count the live runs of ops."""
    graph = trace.job.graph
    names = [graph.op_names[op] for op in trace.tasks["op"][trace.tasks["dead"] == 0].tolist()]
    return Counter(name for name in names if name in ops)


@examples(60)
@given(g=programs(logs=True), where=st.lists(st.integers(0, 2), min_size=1, max_size=7), links=st.booleans())
def test_any_program_cut_anyhow_runs_the_same_ops(g: Graph, where: list[int], links: bool) -> None:
    there = machine(links=links)
    placed = pin_ops(g, there, np.array([where[op % len(where)] for op in range(len(g))]))
    cut = Partition(rendezvous=True).apply(placed)
    device = [cut.pins[code] for code in cut.pin_code.tolist()]
    for p, c in zip(cut.edges.producer.tolist(), cut.edges.consumer.tolist(), strict=True):
        assert device[p] == device[c]  # graphs of their own
    ops = [name for op, name in enumerate(g.op_names) if g.kind(op) == "op"]
    for policy in (ReadyQueue(), TensorFlowExecutor(), Sequential()):
        trace = checked(cut, there, policy)
        assert runs(trace, ops) == runs(simulate(placed, there, policy), ops)
        for sends, recvs in rendezvous_keys(trace).values():
            assert (len(sends), len(recvs)) == (1, 1)
            assert sends[0] <= recvs[0]


@examples(30)
@given(g=programs(logs=True))
def test_programs_over_a_cpu_and_two_gpus(g: Graph) -> None:
    placed, mixed = on_gpus(g)
    cut = Partition(rendezvous=True).apply(placed)
    ops = [name for op, name in enumerate(g.op_names) if g.kind(op) == "op"]
    for policy in (ReadyQueue(), TensorFlowExecutor(), Sequential()):
        trace = checked(cut, mixed, policy)
        assert runs(trace, ops) == runs(simulate(placed, mixed, policy), ops)


def test_dead_tokens_are_carried() -> None:
    """What the branch not taken sends is received dead, in no time, and a merge takes the other."""
    b = GraphBuilder("dead")
    b.op("p", duration_ns=1, device="cpu0", attributes={"outcome": True})
    b.op("x", duration_ns=1, outputs=100, device="cpu0")
    cond(b, "if", "p", ["x"],
         lambda b, w: [b.op("f", inputs=[w["x"]], duration_ns=10, outputs=100, device="cpu0")],
         lambda b, w: [b.op("g", inputs=[w["x"]], duration_ns=10, outputs=100, device="cpu1")],
         device="cpu2")  # fmt: skip
    trace = checked(Partition(rendezvous=True).apply(b.build()), machine(), TensorFlowExecutor())
    dead = {trace.job.graph.op_names[op] for op in trace.tasks["op"][trace.tasks["dead"] != 0].tolist()}
    assert {"g", "g/to_cpu2/send", "g/to_cpu2/recv"} <= dead
    assert not {"f", "f/to_cpu2/recv"} & dead


@pytest.mark.parametrize("repetitions", [1, 2])
def test_iterations_do_not_mix(repetitions: int) -> None:
    """A loop's body sends in each of 4 iterations; every key is met once, in its frame and iteration."""

    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("remote", inputs=[v["i"]], outputs=10, duration_ns=20, device="cpu1")
        return {"i": b.op("count", inputs=["remote"], outputs=10, duration_ns=5, device="cpu0")}

    b = GraphBuilder("loop")
    b.op("zero", outputs=10, duration_ns=1, device="cpu0")
    while_loop(b, "loop", {"i": "zero"}, body, trips=4, device="cpu0")
    cut = Partition(rendezvous=True).apply(b.build())
    trace = checked(cut, machine(), TensorFlowExecutor(), iterations=repetitions)
    assert runs(trace, ["count"])["count"] == 4 * repetitions
    keys = rendezvous_keys(trace)
    if repetitions == 1:
        assert {k for k in keys if ";loop/cond;" in k} == {f"cpu0;cpu1;loop/cond;loop:{i}" for i in range(5)}


def test_a_linear_runtime_meets_in_program_order() -> None:
    """One issuer a device: the program of cpu1 waits at its Recv, which nothing in program order precedes."""
    b = GraphBuilder("linear")
    pair(b, "k", 2, [30, 10], [1, 2])
    for policy in (InOrder(), Sequential()):
        trace = checked(b.build(), machine(cores=1), policy)
        assert met(trace) == [("k.send0", "k.recv0"), ("k.send1", "k.recv1")]


def test_one_program_sends_before_it_asks() -> None:
    """In the one program of all devices a Recv, which no edge leads to, stands behind its Send."""

    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("remote", inputs=[v["i"]], outputs=10, duration_ns=20, device="gpu0")
        return {"i": b.op("count", inputs=["remote"], outputs=10, duration_ns=5, device="cpu0")}

    b = GraphBuilder("loop")
    b.op("zero", outputs=10, duration_ns=1, device="cpu0")
    while_loop(b, "loop", {"i": "zero"}, body, trips=4, device="cpu0")
    there = make_machine({"devices": {"cpu0": {"kind": "cpu", "cores": 2}, "gpu0": {"kind": "gpu"}}})
    trace = checked(Partition(rendezvous=True).apply(b.build()), there, Sequential())
    assert (trace.makespan_ns, runs(trace, ["count"])["count"]) == (1 + 4 * (20 + 5), 4)


def test_a_graph_without_keys_has_no_rendezvous() -> None:
    from sim.engine.engine import Engine

    b = GraphBuilder("plain")
    b.op("a", duration_ns=1, device="cpu0")
    engine = Engine(make_job(b.build(), machine()), ReadyQueue())
    assert engine.rendezvous is None
    assert not isinstance(engine.readiness, Rendezvous)


def test_a_request_takes_the_latency_of_the_whole_route() -> None:
    """From cpu0 to cpu2 over cpu1: 10 ns there, and the bytes take what they always do."""
    b = GraphBuilder("route")
    b.op("s", kind="send", duration_ns=0, outputs=10, device="cpu0", attributes={"key": "k"})
    b.op("r", kind="recv", duration_ns=0, device="cpu2", attributes={"key": "k"})
    there = machine(rendezvous=True)
    trace = simulate(b.build(), there, ReadyQueue())
    assert time(trace, "r") == 10 + Travel.between(trace.job.machine, 0, 2).ns(10) == 10 + 10 + 10


@pytest.mark.parametrize(
    ("first", "threads", "expected"),
    [
        # The Recv, a root, is the last of them, so that it runs first: it asks, and waits. a ends: e1 (the
        # last) runs inline, e0 and send come from the pool. The Recv completes inside its Send, before the
        # Send's own successor log, which runs inline; what the Recv made ready went to the pool, b1 to its
        # front.
        ("a", "pool", "a e1 e0 send recv log b1 b0"),
        # The same in one queue. Without a pool, what the Recv makes ready runs at once, inside the Send.
        ("a", "caller", "a send recv b0 b1 e0 e1 log"),
        # Now a is the last root and the Recv waits for its turn, which the ops in front of it in the deque
        # have first. The Send has come before it, and the Recv is done when it is popped.
        ("recv", "pool", "a e1 e0 send log recv b1 b0"),
        ("recv", "caller", "a send recv b0 b1 e0 e1 log"),
    ],
)
def test_a_recv_takes_its_turn(first: str, threads: str, expected: str) -> None:
    """It asks when a thread runs it; only one that has asked, and waits, completes inside the Send."""

    def recv() -> None:
        b.op("recv", kind="recv", outputs=8, duration_ns=0, device="cpu0", attributes={"key": "k"})

    b = GraphBuilder("recv")
    if first == "recv":
        recv()
    b.op("a", outputs=8, duration_ns=1, device="cpu0")
    b.op("send", kind="send", inputs=["a"], duration_ns=0, device="cpu0", attributes={"key": "k"})
    b.op("log", after=["send"], duration_ns=1, device="cpu0")
    if first != "recv":
        recv()
    for name in ("e0", "e1"):
        b.op(name, inputs=["a"], duration_ns=1, device="cpu0")
    for name in ("b0", "b1"):
        b.op(name, inputs=["recv"], duration_ns=1, device="cpu0")
    process = make_machine({"devices": {"cpu0": {"kind": "cpu", "cores": 1}}})
    trace = checked(b.build(), process, TensorFlowExecutor(-(threads == "caller")))
    names = [trace.job.graph.op_names[op] for op in trace.tasks["op"].tolist()]
    assert " ".join(names) == expected


def test_a_recv_that_waits_on_a_gpu_takes_no_place_and_is_not_its_own_cause() -> None:
    """The host of gpu1 asks for r at 1, then launches x, of which what r receives is made."""
    b = GraphBuilder("there and back")
    b.op("r", kind="recv", outputs=8, duration_ns=0, device="gpu1", attributes={"key": "k"})
    b.op("x", duration_ns=10, outputs=8, device="gpu1")
    b.op("p", inputs=["x"], duration_ns=50, outputs=8, device="gpu0")
    b.op("s", kind="send", inputs=["p"], outputs=8, duration_ns=0, device="gpu0", attributes={"key": "k"})
    b.op("y", inputs=["r"], duration_ns=10, device="gpu1")
    gpu = {"kind": "gpu", "issue_cost": "1ns", "queue_depth": 1}
    machine = make_machine(
        {
            "devices": {"gpu0": gpu, "gpu1": gpu},
            "links": [{"from": "gpu0", "to": "gpu1", "latency": "5ns", "duplex": True}],
        }
    )
    trace = checked(b.build(), machine, TensorFlowExecutor())
    by_name = dict(
        zip(
            (trace.job.graph.op_names[op] for op in trace.tasks["op"]),
            trace.tasks["start_ns"].tolist(),
            strict=True,
        )
    )
    assert by_name == {"x": 2, "p": 17, "s": 67, "r": 72, "y": 73}
    path = [(step.kind, step.start_ns, step.end_ns) for step in executed_path(trace)]
    assert path[1:3] == [("issue", 1, 2), ("task", 2, 12)]
    assert path[-1] == ("task", 73, 83)


@pytest.mark.parametrize(("hop_ns", "duration_ns"), [(0, 0), (0, 4), (2, 0), (2, 4)])
def test_a_recv_on_a_gpu_starts_when_what_it_follows_there_has_ended(hop_ns: int, duration_ns: int) -> None:
    """What was sent is there at 0, `long` runs until 10, and its event travels to the copy."""
    b = GraphBuilder("after")
    b.op("s", kind="send", outputs=8, duration_ns=0, device="cpu0", attributes={"key": "k"})
    b.op("long", duration_ns=10, device="gpu0")
    b.op("r", kind="recv", after=["long"], outputs=8, duration_ns=duration_ns, device="gpu0",
         attributes={"key": "k"})  # fmt: skip
    b.op("y", inputs=["r"], duration_ns=1, device="gpu0")
    gpu = {"kind": "gpu", "event_hop": f"{hop_ns}ns"}
    both = make_machine({"devices": {"cpu0": {"kind": "cpu", "cores": 1}, "gpu0": gpu}})
    trace = checked(b.build(), both, TensorFlowExecutor())
    assert time(trace, "r") == 10 + hop_ns
    assert time(trace, "y") == 10 + hop_ns + duration_ns


@st.composite
def sends_and_recvs(draw: st.DrawFn) -> Graph:
    """Sends, Recvs and other ops that follow earlier ones, on two GPUs and a CPU."""
    b, names, tensors, unmet = GraphBuilder("drawn"), list[str](), list[str](), list[str]()
    kinds = draw(st.lists(st.sampled_from(("send", "recv", "op")), min_size=3, max_size=9))
    devices = ("gpu0", "gpu1", "cpu0")
    for i, kind in enumerate(["op", *kinds]):
        if kind == "recv" and not unmet:
            continue
        device = draw(st.sampled_from(devices)) if kind != "recv" else unmet[0]
        key = {"send": draw(st.sampled_from(devices)), "recv": device}.get(kind)  # where it is received
        some = [
            draw(st.lists(st.sampled_from(of or [""]), max_size=2, unique=True)) for of in (names, tensors)
        ]
        after, inputs = ([name for name in of if name] for of in some)
        b.op(f"{kind}{i}", kind=kind, after=after, inputs=inputs if kind != "recv" else (), device=device,
             outputs=draw(st.sampled_from((0, 8))), duration_ns=draw(st.sampled_from((0, 0, 3))),
             attributes={"key": key} if key else {})  # fmt: skip
        names.append(f"{kind}{i}")
        if kind == "send":
            unmet.append(str(key))
            continue
        tensors.append(f"{kind}{i}")
        if kind == "recv":
            unmet.pop(0)
    return b.build()


@given(
    sends_and_recvs(),
    st.sampled_from((0, 2)),
    st.sampled_from((1, 2)),
    st.booleans(),
    st.sampled_from((1, 2)),
)
@examples(60)
def test_recvs_on_gpus_keep_the_invariants(g: Graph, hop: int, streams: int, links: bool, runs: int) -> None:
    """And what a Send offers is in memory until a Recv of its key has ended, with an allocator as without."""
    gpu = {"kind": "gpu", "streams": streams, "event_hop": f"{hop}ns", "issue_cost": f"{hop}ns"}
    spec: dict[str, Any] = {"devices": {"gpu0": gpu, "gpu1": gpu, "cpu0": {"kind": "cpu", "cores": 2}}}
    if links:
        ends = [("gpu0", "cpu0"), ("cpu0", "gpu1"), ("gpu0", "gpu1")]
        spec["links"] = [{"from": a, "to": b, "latency": "5ns"} for a, b in ends]
    devices = make_machine(spec)
    memory = tensor_memory({device.name: MemorySpec("counted") for device in devices.devices})
    with suppress(StuckError):  # Sends may follow, by way of other ops, the Recvs that they are for
        trace = checked(g, devices, TensorFlowExecutor(), iterations=runs, memory=memory)
        for d, use in enumerate(memory_use(trace).values() if not links else ()):  # a copy is taken early
            log, at = trace.log_of(d), np.arange(trace.makespan_ns + 1)
            levels = [(log["time_ns"], log["in_use"]), (use.times_ns, use.in_use_bytes)]
            taken, needed = (
                np.append(0, level)[np.searchsorted(time_ns, at, side="right")] for time_ns, level in levels
            )
            assert taken.tolist() == needed.tolist()
