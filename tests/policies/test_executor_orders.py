"""TensorFlow's executor on one thread: orders that follow from its rules, by hand and by a second model."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from program_helpers import programs
from runs import checked

from devices.machine import make_machine
from policies.issue.ready_queue import ReadyQueue
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.issue.virtual_machine import Sequential
from policies.issue.work_queues import KeepFirst, StreamStacks
from policies.rewrite.partition import Partition
from scenarios.ops.control_flow import cond, while_loop
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim import Device, Graph, GraphBuilder, Host, Machine, Policy, Trace, simulate
from sim.base.errors import InputError
from sim.export.chrome import Timeline, write_chrome
from sim.metrics import summary
from sim.plot.bars import bars_of

CPU = Machine((Device("cpu0", "cpu", workers=1),))


def graph(edges: dict[str, str], cheap: str = "") -> Graph:
    b = GraphBuilder("test")
    for name, inputs in edges.items():
        kind = "identity" if name in cheap.split() else "matmul"
        b.op(name, kind=kind, inputs=inputs.split(), duration_ns=1)
    return b.build()


def order(g: Graph, threads: str = "pool") -> list[str]:
    trace = simulate(g, CPU, TensorFlowExecutor(-(threads == "caller")))
    return [g.op_names[op] for op in trace.tasks["op"].tolist()]


def by_the_rules(g: Graph, cheap: set[int], threads: str) -> list[str]:
    """Rules 1 to 3 and 8 to 11 once more, for one thread and a graph without control flow."""
    pending = [len(g.predecessors.row(op)) for op in range(len(g))]
    inline: deque[int] = deque()
    pool: deque[int] = deque()  # the front is where this thread pushes and takes

    def schedule(ready: list[int]) -> None:
        if threads == "caller":
            inline.extend(ready)
            return
        held = None
        for op in ready:
            if op in cheap:
                inline.append(op)
            else:
                if held is not None:
                    pool.appendleft(held)
                held = op
        if held is not None and inline:
            pool.appendleft(held)
        elif held is not None:
            inline.append(held)

    schedule([op for op in range(len(g)) if not pending[op]])
    ran = []
    while inline or pool:
        op = inline.popleft() if inline else pool.popleft()
        ran.append(g.op_names[op])
        ready = []
        for successor in g.successors.row(op).tolist():  # data edges first, as added
            pending[successor] -= 1
            if not pending[successor]:
                ready.append(successor)
        schedule(ready)
    return ran


TREE = {"r": "", "a": "r", "b": "r", "aa": "a", "ab": "a", "ba": "b", "bb": "b"}
DIAMONDS = {"s": "", "l": "s", "m": "s", "r": "s", "j": "l m r", "l2": "j", "r2": "j", "end": "l2 r2"}


@pytest.mark.parametrize(
    ("edges", "cheap", "pool", "caller"),
    [
        # A tree: the last child runs at once and its subtree first; the pool's front is what was pushed last.
        (TREE, "", "r b bb ba a ab aa", "r a b aa ab ba bb"),
        # With cheap inner nodes both run inline; then b's children: bb is held back as a's ab is not.
        (TREE, "a b", "r a b bb ba ab aa", "r a b aa ab ba bb"),
        # Diamonds: the join becomes ready at the last of its inputs, whichever that is.
        (DIAMONDS, "", "s r m l j r2 l2 end", "s l m r j l2 r2 end"),
        (DIAMONDS, "m", "s m r l j r2 l2 end", "s l m r j l2 r2 end"),
    ],
)
def test_trees_and_diamonds(edges: dict[str, str], cheap: str, pool: str, caller: str) -> None:
    g = graph(edges, cheap)
    kinds = {op for op in range(len(g)) if g.kind(op) == "identity"}
    for threads, expected in (("pool", pool), ("caller", caller)):
        assert by_the_rules(g, kinds, threads) == expected.split()
        assert order(g, threads) == expected.split()


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    b = GraphBuilder("random")
    names: list[str] = []
    for i in range(draw(st.integers(1, 20))):
        some = st.lists(st.sampled_from(names), max_size=3) if names else st.just([])
        kind = draw(st.sampled_from(["matmul", "matmul", "identity", "no_op"]))
        b.op(f"op{i}", kind=kind, inputs=draw(some), after=draw(some), duration_ns=draw(st.integers(0, 3)))
        names.append(f"op{i}")
    return b.build()


@pytest.mark.parametrize("threads", ["pool", "caller"])
@given(g=graphs())
def test_any_graph_runs_in_the_order_of_the_rules(threads: str, g: Graph) -> None:
    cheap = {op for op in range(len(g)) if g.kind(op) != "matmul"}
    trace = simulate(g, CPU, TensorFlowExecutor(-(threads == "caller")))
    by_issue = [g.op_names[op] for op in trace.tasks["op"].tolist()]
    assert by_issue == by_the_rules(g, cheap, threads)


# -- control flow --------------------------------------------------------------------------------------


def lines(trace: Trace) -> str:
    """Return the ops in order, dead ones in brackets."""
    rows = zip(trace.tasks["op"].tolist(), trace.tasks["dead"].tolist(), strict=True)
    names = trace.job.graph.op_names
    return " ".join(f"({names[op]})" if dead else names[op] for op, dead in rows)


@pytest.mark.parametrize(
    ("outcome", "pool"),
    [
        (True, "p x c/switch0 (no) f1 f0 c/merge0 y"),
        (False, "p x c/switch0 (f0) (f1) no c/merge0 y"),
    ],
)
def test_a_condition_with_its_dead_branch_listed(outcome: bool, pool: str) -> None:
    """Dead ops run inline, before the expensive ones that became ready with them."""
    b = GraphBuilder("cond")
    b.op("x", kind="matmul", duration_ns=1)
    b.op("p", kind="matmul", duration_ns=1, attributes={"outcome": outcome})

    def yes(b: GraphBuilder, v: dict[str, str]) -> list[str]:
        for name in ("f0", "f1"):
            b.op(name, kind="matmul", inputs=[v["x"]], duration_ns=1)
        return ["f0"]

    (y,) = cond(b, "c", "p", ["x"], yes, lambda b, v: [b.op("no", inputs=[v["x"]], duration_ns=1)])
    b.op("y", kind="matmul", inputs=[y], duration_ns=1)
    assert lines(simulate(b.build(), CPU, TensorFlowExecutor())) == pool


@pytest.mark.parametrize(
    ("parallel", "expected"),
    [
        # One at a time: an iteration ends before the next begins.
        (1, "count slow count slow count slow count slow"),
        # The counter runs ahead until the window is full; then the pool's front: the latest slow op first.
        (2, "count count slow slow count count slow slow"),
        (4, "count count count count slow slow slow slow"),
        (10, "count count count count slow slow slow slow"),
    ],
)
def test_parallel_iterations_on_one_thread(parallel: int, expected: str) -> None:
    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("slow", kind="matmul", inputs=[v["i"]], duration_ns=6)
        return {"i": b.op("count", kind="matmul", inputs=[v["i"]], duration_ns=1)}

    b = GraphBuilder("loop")
    b.op("zero", duration_ns=0)
    while_loop(b, "loop", {"i": "zero"}, body, trips=4, parallel_iterations=parallel)
    trace = simulate(b.build(), CPU, TensorFlowExecutor())
    ran = [word for word in lines(trace).split() if word in ("slow", "count")]
    assert " ".join(ran) == expected


@pytest.mark.parametrize("parallel", [1, 2, 4, 10])
def test_a_condition_in_a_nested_loop_takes_its_outcomes_in_order(parallel: int) -> None:
    """Tags, not time, decide: the inner loop makes 2, 1, 3 trips whatever the window is."""

    def inner(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("p", inputs=[v["j"]], duration_ns=1, attributes={"outcome": [True] + [False] * 5})
        (y,) = cond(b, "c", "p", [v["j"]], lambda b, w: [b.op("f", inputs=[w[v["j"]]], duration_ns=2)],
                    lambda b, w: [b.op("g", inputs=[w[v["j"]]], duration_ns=3)])  # fmt: skip
        return {"j": y}

    def outer(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        out = while_loop(b, "inner", {"j": v["i"]}, inner, trips=[2, 1, 3], parallel_iterations=parallel)
        return {"i": b.op("step", inputs=[out["j"]], duration_ns=1)}

    b = GraphBuilder("nested")
    b.op("zero", duration_ns=0)
    while_loop(b, "outer", {"i": "zero"}, outer, trips=3, parallel_iterations=parallel)
    trace = simulate(b.build(), CPU, TensorFlowExecutor())
    ran = [word for word in lines(trace).split() if word in ("f", "g", "step")]
    assert ran == ["f", "g", "step", "g", "step", "g", "g", "g", "step"]


@pytest.mark.parametrize("outcome", [[True, False, True, True, False], {"probability": 0.5}])
def test_a_list_of_outcomes_has_one_an_iteration_whoever_comes_first(outcome: object) -> None:
    """The predicate does not feed the counter, so with a window it is asked in iteration 1 before 0."""

    def inner(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("p", inputs=[v["j"]], duration_ns=1, attributes={"outcome": outcome})
        cond(b, "c", "p", [v["j"]], lambda b, w: [b.op("f", inputs=[w[v["j"]]], duration_ns=2)],
             lambda b, w: [b.op("g", inputs=[w[v["j"]]], duration_ns=3)])  # fmt: skip
        return {"j": b.op("count", inputs=[v["j"]], duration_ns=1)}

    def ran(parallel: int, threads: str = "pool", machine: Machine = CPU) -> dict[str, str]:
        def outer(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
            while_loop(b, "inner", {"j": v["i"]}, inner, trips=[2, 3], parallel_iterations=parallel)
            return {"i": b.op("step", inputs=[v["i"]], duration_ns=1)}

        b = GraphBuilder("nested")
        b.op("zero", duration_ns=0)
        while_loop(b, "outer", {"i": "zero"}, outer, trips=2, parallel_iterations=parallel)
        trace = simulate(b.build(), machine, TensorFlowExecutor(-(threads == "caller")), seed=3)
        table = trace.to_pandas()
        live = table[table["op"].isin(["f", "g"]) & ~table["dead"].astype(bool)]
        return dict(zip(live["frame"], live["op"], strict=True))

    alone = ran(1)
    tags = [f"outer:{i}/inner:{j}" for i, trips in enumerate([2, 3]) for j in range(trips)]
    assert sorted(alone) == tags
    if isinstance(outcome, list):
        assert [alone[tag] for tag in tags] == ["f" if x else "g" for x in outcome]
    for parallel in (1, 2, 4, 10):
        assert ran(parallel) == alone
        assert ran(parallel, "caller") == alone
        assert ran(parallel, machine=Machine((Device("cpu0", "cpu", workers=3),))) == alone


def test_cheap_by_experience() -> None:
    """An op of 1 us at 3000 cycles a us counts as cheap, 8000 cycles or less, once it has run 94 times.

    1e8 · 0.9^n + 3000 · (1 - 0.9^n) <= 8000 for the first time with n = 94, as 1e8 · 0.9^94 is 4990.
    """
    b = GraphBuilder("fan")
    b.op("root", kind="matmul", duration_ns=1000)
    for name in ("a", "b", "c"):
        b.op(name, kind="matmul", inputs=["root"], duration_ns=1000)
    g = b.build()
    trace = simulate(g, CPU, TensorFlowExecutor(clock_hz=3_000_000_000), iterations=100)
    orders: dict[int, list[str]] = {}  # in the order in which the iterations began
    for op, iteration in zip(trace.tasks["op"].tolist(), trace.tasks["iteration"].tolist(), strict=True):
        orders.setdefault(iteration, []).append(g.op_names[op])
    backwards, forwards = ["root", "c", "b", "a"], ["root", "a", "b", "c"]
    assert list(orders.values()) == [backwards] * 94 + [forwards] * 6


GPU = Machine((Device("gpu0", issue_ns=1, launch_latency_ns=2, streams=2),))
CPUS = Machine((Device("cpu0", "cpu", workers=3),))


@examples(25)
@given(g=programs())
def test_what_runs_does_not_depend_on_who_decides(g: Graph) -> None:
    """The same ops run, dead ones apart, on threads or a GPU, whatever comes first."""
    runs = []
    for machine in (CPU, CPUS, GPU):
        for policy in (TensorFlowExecutor(), ReadyQueue("lifo"), Sequential(), KeepFirst(), StreamStacks()):
            trace = checked(g, machine, policy)
            runs.append(Counter(trace.tasks["op"][trace.tasks["dead"] == 0].tolist()))
    assert all(ran == runs[0] for ran in runs)


# -- asynchronous kernels ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [{"kind": "queue_dequeue"}, {"attributes": {"async": True}}])
def test_an_asynchronous_kernel_holds_no_thread(how: dict[str, object]) -> None:
    """One thread: next is taken last in, first out, so it starts, and b1 and b0 run while it waits.

    What it makes ready goes to the pool from outside, behind b0; so u1, u0 in the order in which they came.
    """
    b = GraphBuilder("queue")
    b.op("b0", duration_ns=10)
    b.op("b1", duration_ns=10)
    b.op("next", duration_ns=15, **how)  # type: ignore[arg-type]
    for name in ("u0", "u1"):
        b.op(name, inputs=["next"], duration_ns=1)
    trace = checked(b.build(), CPU, TensorFlowExecutor())
    table = trace.to_pandas()
    assert list(zip(table["op"], table["start_ns"], table["end_ns"], table["stream"], strict=True)) == [
        ("next", 0, 15, "cpu0/async"),
        ("b1", 0, 10, "cpu0/w0"),
        ("b0", 10, 20, "cpu0/w0"),
        ("u0", 20, 21, "cpu0/w0"),
        ("u1", 21, 22, "cpu0/w0"),
    ]
    assert summary(trace)["devices"]["cpu0"]["core_ns"] == 22


def test_an_asynchronous_kernel_that_takes_no_time_is_done_on_the_spot() -> None:
    """What it makes ready goes to the front of the pool, none inline: u1, then u0, before b1."""
    b = GraphBuilder("queue")
    b.op("b1", duration_ns=10)
    b.op("next", kind="iterator_get_next", duration_ns=0)
    for name in ("u0", "u1"):
        b.op(name, kind="identity", inputs=["next"], duration_ns=1)
    assert order(b.build()) == ["next", "u1", "u0", "b1"]
    quick = b.build()
    plain = simulate(quick, CPU, ReadyQueue())
    assert [quick.op_names[op] for op in plain.tasks["op"].tolist()] == ["b1", "next", "u0", "u1"]


def test_pictures_and_tables_of_what_runs_on_no_thread(tmp_path: Path) -> None:
    """Two that overlap have a lane each in timelines; a plan, which has a stream for each op, is refused."""
    b = GraphBuilder("two")
    for name in ("q0", "q1"):
        b.op(name, kind="queue_dequeue", duration_ns=15)
    b.op("work", inputs=["q0"], duration_ns=5)
    trace = checked(b.build(), CPU, TensorFlowExecutor())
    assert {lane.tid for lane in Timeline(trace).lanes} == {1, 2, 3}
    write_chrome(trace, tmp_path / "t.json")
    assert b"async 1" in (tmp_path / "t.json").read_bytes()
    assert bars_of(trace).lanes == ["cpu0/w0", "cpu0/async"]
    reasons = summary(trace)["devices"]["cpu0"]
    assert (reasons["busy_ns"], reasons["idle_ns"], reasons["idle_reasons"]) == (5, 15, {"dependency": 15})
    with pytest.raises(InputError, match="op 'q0' ran asynchronously"):
        trace.plan()


def condition_across_devices(send_ns: int = 0, recv_ns: int = 0) -> Graph:
    """A Send in a branch that is not taken, and its Recv."""
    b = GraphBuilder("dead")
    b.op("p", kind="matmul", duration_ns=1, attributes={"outcome": True})
    b.op("x", kind="matmul", duration_ns=1)
    b.op("s", kind="switch", inputs=["x", "p"], outputs=(8, 8), duration_ns=0)
    b.op("live", kind="matmul", inputs=["s:1"], duration_ns=1)
    b.op("send", kind="send", inputs=["s"], duration_ns=send_ns, attributes={"key": "k"})
    b.op("f", kind="matmul", inputs=["s"], duration_ns=1)
    b.op("recv", kind="recv", outputs=8, duration_ns=recv_ns, attributes={"key": "k"})
    b.op("g", kind="matmul", inputs=["recv"], duration_ns=1)
    return b.build()


def test_a_dead_send_goes_inline_as_all_that_is_dead() -> None:
    """First, before dead f, which became ready later; what its Recv makes ready goes to the pool's front."""
    trace = checked(condition_across_devices(), CPU, TensorFlowExecutor())
    assert lines(trace) == "x p s (send) (recv) (f) (g) live"


def test_a_dead_send_and_a_dead_recv_take_their_time() -> None:
    """Their kernels run, to transmit that they are dead; one core, so live waits for both but the Recv's."""
    trace = checked(condition_across_devices(30, 500), CPU, TensorFlowExecutor())
    table = trace.to_pandas().set_index("op")
    times = {
        op: (int(table.start_ns[op]), int(table.end_ns[op])) for op in ("send", "f", "live", "recv", "g")
    }
    assert times == {"send": (2, 32), "f": (32, 32), "live": (32, 33), "recv": (32, 532), "g": (532, 532)}
    assert summary(trace)["devices"]["cpu0"]["busy_ns"] == 33
    linear = checked(condition_across_devices(30, 500), CPU, ReadyQueue())
    assert linear.makespan_ns == 3


def test_a_dead_send_needs_a_core() -> None:
    """Two threads, one core: the dead Send and what lives share it."""
    machine = make_machine({"devices": {"cpu0": {"kind": "cpu", "cores": 1, "workers": 2}}})
    trace = checked(condition_across_devices(30), machine, TensorFlowExecutor())
    assert trace.makespan_ns == 33  # 3 of live ops and 30 of the Send's, on one core


# -- several CPUs of one process -----------------------------------------------------------------------


def process(workers: int) -> Machine:
    cpus = tuple(Device(name, "cpu", workers=workers) for name in ("cpu0", "cpu1"))
    return Machine(cpus, hosts=(Host("process", ("cpu0", "cpu1")),))


@pytest.mark.parametrize(("workers", "makespan"), [(1, 40), (2, 20), (3, 20), (4, 10)])
def test_devices_of_a_process_do_not_serialise_its_pool_does(workers: int, makespan: int) -> None:
    """Four ops of 10, three of them on cpu1: as many at a time as the pool has threads, wherever they are."""
    b = GraphBuilder("four")
    for k, device in enumerate(("cpu0", "cpu1", "cpu1", "cpu1")):
        b.op(f"op{k}", duration_ns=10, device=device)
    for policy in (TensorFlowExecutor(), ReadyQueue(), KeepFirst()):
        trace = checked(b.build(), process(workers), policy)
        assert trace.makespan_ns == makespan
        assert set(trace.to_pandas()["issuer"]) <= {f"process/w{w}" for w in range(workers)}
    with pytest.raises(InputError, match="threads of a host run the ops of several CPUs"):
        simulate(b.build(), process(workers), ReadyQueue(), engine="kernel")


def test_each_part_of_a_graph_starts_from_a_source_of_its_own() -> None:
    """One thread: the source of cpu0 makes a0, a1 ready: a1 (the last) inline, a0 to the front of the pool,
    where the source of cpu1 is. So that comes last; were all roots of one source, b1 would be first.
    """
    b = GraphBuilder("two")
    for name in ("a0", "b0", "a1", "b1"):
        b.op(name, kind="matmul", duration_ns=1, device="cpu0" if name[0] == "a" else "cpu1")
    trace = simulate(b.build(), process(1), TensorFlowExecutor())
    names = [trace.job.graph.op_names[op] for op in trace.tasks["op"].tolist()]
    assert names == ["a1", "a0", "b1", "b0"]


def test_a_send_between_devices_of_a_process() -> None:
    """cpu0's part first: a, then send, whose Recv has not had its turn; then cpu1's: c (last), recv, b."""
    b = GraphBuilder("pair")
    b.op("a", outputs=8, duration_ns=1, device="cpu0")
    b.op("log", inputs=["a"], duration_ns=1, device="cpu0")
    b.op("b", inputs=["a"], duration_ns=1, device="cpu1")
    b.op("c", duration_ns=1, device="cpu1")
    cut = Partition(rendezvous=True).apply(b.build())
    trace = checked(cut, process(1), TensorFlowExecutor())
    names = [cut.op_names[op] for op in trace.tasks["op"].tolist()]
    assert names == ["a", "a/to_cpu1/send", "log", "c", "a/to_cpu1/recv", "b"]


# -- several runs --------------------------------------------------------------------------------------


def fan() -> Graph:
    """Two roots and an op that reads both."""
    return graph({"a": "", "b": "", "c": "a b"})


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("threads", ["pool", "caller"])
def test_runs_of_a_session_follow_one_another(workers: int, threads: str) -> None:
    machine = Machine((Device("cpu0", "cpu", workers=workers),))
    trace = checked(fan(), machine, TensorFlowExecutor(-(threads == "caller")), iterations=3)
    started, ended = trace.tasks["start_ns"].reshape(3, 3), trace.tasks["end_ns"].reshape(3, 3)
    assert trace.tasks["iteration"].tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert (started[1:].min(axis=1) == ended[:-1].max(axis=1)).all()
    first, *others = (trace.tasks["op"].reshape(3, 3)).tolist()
    assert all(ran == first for ran in others)
    together = TensorFlowExecutor(runs="side-by-side")  # three threads have work for three runs at once
    assert simulate(fan(), CPUS, together, iterations=3).makespan_ns < 3 * 2
    with pytest.raises(InputError, match="runs"):
        TensorFlowExecutor(runs="sideways")


CALLS = {
    "side-by-side": [TensorFlowExecutor, KeepFirst, StreamStacks],
    "enqueued": [Sequential],
}


@pytest.mark.parametrize(
    ("policy", "otherwise"), [(policy, word) for word, policies in CALLS.items() for policy in policies]
)
def test_a_run_on_a_gpu_is_over_when_the_gpu_is(policy: Callable[..., Policy], otherwise: str) -> None:
    """One rule for all that run a graph by one call."""
    b = GraphBuilder("gpu")
    for name in ("a", "b"):
        b.op(name, duration_ns=100)
    trace = checked(b.build(), GPU, policy(runs="in-turn"), iterations=2)
    assert trace.tasks["start_ns"][2] >= trace.tasks["end_ns"][:2].max()
    assert (trace.tasks["ready_ns"][2:] == 203).all()  # 1 to issue, 2 to launch, 100 each
    assert trace.engine == "simpy: runs follow one another (runs: in-turn)"
    overlapping = simulate(b.build(), GPU, policy(runs=otherwise), iterations=2)
    assert overlapping.tasks["issue_ns"].max() < 10
    with pytest.raises(InputError, match="runs"):
        policy(runs="sideways")


@pytest.mark.parametrize("runtime", ["onnxruntime", "onnxruntime-priority", "onnxruntime-parallel", "tfrt"])
def test_calls_of_a_session_come_one_after_another_in_scenarios(runtime: str, tmp_path: Path) -> None:
    text = f"""
        machine: {{devices: {{cpu0: {{kind: cpu, cores: 3}}}}}}
        workload: {{ops: {{long: {{duration: 9us}}, short: {{duration: 1us}}}}}}
        iterations: 3
        policy: {{runtime: {runtime}}}
    """
    path = tmp_path / "s.yaml"
    path.write_text(dedent(text))
    trace = run_scenario(load_scenario(path)).trace
    starts, ends = (trace.tasks[f"{what}_ns"].reshape(3, 2) for what in ("start", "end"))
    assert (starts[1:].min(axis=1) >= ends[:-1].max(axis=1)).all()


def test_runs_with_loops_and_recvs_follow_one_another() -> None:
    """Tokens and keys: the tensor that nobody receives holds up no run."""

    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        return {"i": b.op("step", inputs=[v["i"]], duration_ns=5, device="cpu1")}

    b = GraphBuilder("loop")
    b.op("zero", duration_ns=1, outputs=8, device="cpu0")
    while_loop(b, "loop", {"i": "zero"}, body, trips=2, device="cpu0")
    b.op("alone", kind="send", duration_ns=0, outputs=8, device="cpu0", attributes={"key": "k"})
    for k in range(2):
        b.op(f"more{k}", kind="send", duration_ns=0, outputs=8, device="cpu0", attributes={"key": "k"})
    b.op("one", kind="recv", duration_ns=0, device="cpu1", attributes={"key": "k"})
    linked = make_machine(
        {
            "devices": {"cpu0": {"kind": "cpu", "cores": 2}, "cpu1": {"kind": "cpu", "cores": 2}},
            "links": [{"from": "cpu0", "to": "cpu1", "latency": "3ns"}],
        }
    )
    cut = Partition(rendezvous=True).apply(b.build())
    trace = checked(cut, linked, TensorFlowExecutor(), iterations=3)
    run = trace.tasks["iteration"]
    ends = [trace.tasks["end_ns"][run == k].max() for k in range(3)]
    assert all(trace.tasks["start_ns"][run == k + 1].min() >= ends[k] for k in range(2))


def test_runs_of_different_sessions_do_not_wait_for_each_other() -> None:
    b = GraphBuilder("two sessions")
    b.op("short", duration_ns=1, attributes={"session": "a"})
    b.op("long", duration_ns=10, attributes={"session": "b"})
    trace = simulate(b.build(), CPUS, TensorFlowExecutor(), iterations=2)
    starts = zip(trace.tasks["op"].tolist(), trace.tasks["start_ns"].tolist(), strict=True)
    assert list(starts) == [(0, 0), (1, 0), (0, 1), (1, 10)]


def test_the_caller_runs_a_session_only_on_one_device() -> None:
    """One thread; two children of cheap r: first in first out by the caller, the last first from the pool."""
    b = GraphBuilder("fan")
    b.op("r", kind="identity", duration_ns=1, device="cpu0")
    for name in ("f0", "f1", "f2"):
        b.op(name, kind="matmul", inputs=["r"], duration_ns=1, device="cpu0")
    alone = simulate(b.build(), process(1), TensorFlowExecutor(-1))
    b.op("elsewhere", kind="matmul", inputs=["f0"], duration_ns=1, device="cpu1")
    both = simulate(b.build(), process(1), TensorFlowExecutor(-1))
    assert lines(alone) == "r f0 f1 f2"
    assert lines(both) == "r f2 f1 f0 elsewhere"


@pytest.mark.parametrize("engine", ["simpy", "kernel"])
def test_what_waits_for_another_session_runs_as_its_own_session_does(engine: str) -> None:
    """m0 goes to the pool, as its session has two devices; s0 and s1 go through the caller's queue."""
    machine = Machine((Device("gpu0", "gpu", issue_ns=1), Device("gpu1", "gpu", issue_ns=1)))
    b = GraphBuilder("two sessions")
    for name, inputs, device, session in (
        ("r", [], "gpu0", "many"),
        ("m0", ["r"], "gpu0", "many"),
        ("s0", ["r"], "gpu0", "one"),
        ("s1", ["r"], "gpu0", "one"),
        ("elsewhere", ["m0"], "gpu1", "many"),
    ):
        attributes = {"session": session, "expensive": True}
        b.op(name, kind="matmul", inputs=inputs, duration_ns=1, device=device, attributes=attributes)
    trace = simulate(b.build(), machine, TensorFlowExecutor(-1), engine=engine)
    assert lines(trace) == "r s0 s1 m0 elsewhere"


def test_each_device_has_its_own_window_of_iterations() -> None:
    """One iteration at a time: cpu0 begins the next when its part is over, whatever cpu1 and the link do.

    On cpu1 log takes 50; then its Recv asks, and 30 later has what it asked for. (At first the link has two
    tensors to carry, for the loop's condition goes over it, too.)
    """

    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        step = b.op("step", inputs=[v["i"]], outputs=8, duration_ns=5, device="cpu0")
        b.op("log", inputs=[step], duration_ns=50, device="cpu1")
        return {"i": step}

    b = GraphBuilder("loop")
    b.op("zero", duration_ns=0, outputs=8, device="cpu0")
    while_loop(b, "loop", {"i": "zero"}, body, trips=3, parallel_iterations=1, device="cpu0")
    machine = make_machine(
        {
            "devices": {"cpu0": {"kind": "cpu", "cores": 2}, "cpu1": {"kind": "cpu", "cores": 2}},
            "links": [{"from": "cpu0", "to": "cpu1", "latency": "30ns"}],
        }
    )
    trace = checked(Partition(rendezvous=True).apply(b.build()), machine, TensorFlowExecutor())
    table = trace.to_pandas()
    live = table[table["dead"] == 0]
    assert live[live["op"] == "step"]["end_ns"].tolist() == [5, 10, 15]
    assert live[live["op"] == "log"]["start_ns"].tolist() == [60, 140, 220]
