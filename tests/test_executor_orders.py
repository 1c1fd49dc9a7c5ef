"""TensorFlow's executor on one thread: orders that follow from its rules, by hand and by a second model."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from program_helpers import programs

from policies.issue.executors.tensorflow_executor import TensorFlowExecutor
from policies.issue.executors.work_queues import KeepFirst, StreamStacks
from policies.issue.ready_queue import ReadyQueue
from policies.issue.sequential import Sequential
from scenarios.ops.control_flow import cond, while_loop
from sim import Device, Graph, GraphBuilder, Machine, Trace, simulate

CPU = Machine((Device("cpu0", "cpu", workers=1),))


def graph(edges: dict[str, str], cheap: str = "") -> Graph:
    b = GraphBuilder("test")
    for name, inputs in edges.items():
        kind = "identity" if name in cheap.split() else "matmul"
        b.op(name, kind=kind, inputs=inputs.split(), duration_ns=1)
    return b.build()


def order(g: Graph, threads: str = "pool") -> list[str]:
    trace = simulate(g, CPU, TensorFlowExecutor(threads))
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
    trace = simulate(g, CPU, TensorFlowExecutor(threads))
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
        b.op("p", inputs=[v["j"]], duration_ns=1, attributes={"outcome": [True, False]})
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
        trace = simulate(b.build(), machine, TensorFlowExecutor(threads), seed=3)
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
    trace = simulate(g, CPU, TensorFlowExecutor(cycles_per_us=3000), iterations=100)
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
            trace = simulate(g, machine, policy)
            trace.check()
            runs.append(Counter(trace.tasks["op"][trace.tasks["dead"] == 0].tolist()))
    assert all(ran == runs[0] for ran in runs)
