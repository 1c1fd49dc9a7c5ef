"""TensorFlow's control flow and executor: orders and times that the rules give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from policy_helpers import cpu
from runs import checked

from devices.machine import make_machine
from policies.issue.ready_queue import ReadyQueue
from policies.issue.tensorflow_executor import TensorFlowExecutor
from scenarios.ops.control_flow import cond, while_loop
from sim import Device, Graph, GraphBuilder, Machine, Trace, simulate
from sim.base.errors import GraphError, RunError
from sim.graph.frames import CONTROL_FLOW_KINDS


def order(trace: Trace, dead: bool = False) -> list[str]:
    names = trace.job.graph.op_names
    rows = zip(trace.tasks["op"].tolist(), trace.tasks["dead"].tolist(), strict=True)
    return [names[op] for op, is_dead in rows if bool(is_dead) == dead]


def built(make: Callable[[GraphBuilder], object]) -> Graph:
    builder = GraphBuilder("test")
    make(builder)
    return builder.build()


def fan_out(kinds: str) -> Graph:
    """A root and one successor for each letter: e expensive, c cheap."""

    def make(b: GraphBuilder) -> None:
        b.op("root", duration_ns=1)
        for i, kind in enumerate(kinds):
            b.op(f"{kind}{i}", kind="identity" if kind == "c" else "matmul", inputs=["root"], duration_ns=1)

    return built(make)


def test_one_pool_thread_runs_a_fan_out_backwards() -> None:
    trace = simulate(fan_out("eeeeee"), cpu(), TensorFlowExecutor())
    assert order(trace) == ["root", "e5", "e4", "e3", "e2", "e1", "e0"]


def test_the_calling_thread_runs_it_forwards() -> None:
    trace = simulate(fan_out("eeeeee"), cpu(), TensorFlowExecutor(-1))
    assert order(trace) == ["root", "e0", "e1", "e2", "e3", "e4", "e5"]


def test_cheap_ops_run_inline_first() -> None:
    """c1 and c3 go inline; e0 and e2 to the pool (the inline queue is not empty): front is e2."""
    trace = simulate(fan_out("ecec"), cpu(), TensorFlowExecutor())
    assert order(trace) == ["root", "c1", "c3", "e2", "e0"]


def test_an_idle_thread_steals_from_the_back() -> None:
    """Thread 0 runs root, keeps e3 and pushes e0, e1, e2 (front: e2); thread 1 steals the back, e0."""
    trace = simulate(fan_out("eeee"), cpu(2), TensorFlowExecutor())
    first = {trace.job.graph.op_names[op]: (start, stream) for op, start, stream in zip(
        *(trace.tasks[c].tolist() for c in ("op", "start_ns", "stream")), strict=True)}  # fmt: skip
    assert first["e3"] == (1, 0)
    assert first["e0"] == (1, 1)
    assert first["e2"] == (2, 0)
    assert first["e1"] == (2, 1)


def branches(outcome: Any) -> Graph:
    """x, p → then: t1 → t2, else: e1 → e2 → join → out."""

    def make(b: GraphBuilder) -> None:
        b.op("x", duration_ns=1)
        b.op("p", duration_ns=1, attributes={"outcome": outcome})

        def chain(b: GraphBuilder, x: str, first: str, second: str) -> list[str]:
            b.op(first, inputs=[x], duration_ns=10)
            return [b.op(second, inputs=[first], duration_ns=10)]

        (join,) = cond(
            b,
            "if",
            "p",
            ["x"],
            lambda b, v: chain(b, v["x"], "t1", "t2"),
            lambda b, v: chain(b, v["x"], "e1", "e2"),
        )
        b.op("out", inputs=[join], duration_ns=1)

    return built(make)


@pytest.mark.parametrize("policy", [ReadyQueue(), ReadyQueue("lifo"), TensorFlowExecutor()])
@pytest.mark.parametrize(
    ("outcome", "live", "dead"), [(True, {"t1", "t2"}, {"e1", "e2"}), (False, {"e1", "e2"}, {"t1", "t2"})]
)
def test_the_branch_not_taken_is_dead(policy: Any, outcome: bool, live: set[str], dead: set[str]) -> None:
    trace = simulate(branches(outcome), cpu(), policy)
    assert set(order(trace, dead=True)) == dead
    assert set(order(trace)) == {"x", "p", "if/switch0", "if/merge0", "out"} | live
    assert trace.makespan_ns == 1 + 1 + 20 + 1


def test_merge_goes_on_with_the_first_live_input_and_does_not_wait_for_the_dead() -> None:
    trace = simulate(branches(True), cpu(4), ReadyQueue())
    rows = {
        trace.job.graph.op_names[op]: start
        for op, start in zip(trace.tasks["op"], trace.tasks["start_ns"], strict=True)
    }
    assert rows["if/merge0"] == 1 + 20


def test_outcomes_may_be_a_list_over_repetitions() -> None:
    trace = simulate(branches([True, False, True]), cpu(), ReadyQueue(), iterations=3)
    dead = sorted(
        zip(trace.tasks["iteration"][trace.tasks["dead"] == 1].tolist(), order(trace, dead=True), strict=True)
    )
    assert dead == [(0, "e1"), (0, "e2"), (1, "t1"), (1, "t2"), (2, "e1"), (2, "e2")]


def test_a_drawn_outcome_depends_on_the_seed_alone() -> None:
    graph = branches({"probability": 0.5})
    drawn = [
        order(simulate(graph, cpu(), ReadyQueue(), iterations=20, seed=seed), dead=True) for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def loop(trips: Any, parallel: int, slow_ns: int = 6_000_000, chain_ns: int = 500_000) -> Graph:
    """A counter (0.5 ms) and, beside it, a slow op (6 ms) that does not feed it."""

    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("slow", inputs=[v["i"]], duration_ns=slow_ns)
        return {"i": b.op("count", inputs=[v["i"]], duration_ns=chain_ns)}

    def make(b: GraphBuilder) -> None:
        b.op("zero", duration_ns=0)
        out = while_loop(b, "loop", {"i": "zero"}, body, trips=trips, parallel_iterations=parallel)
        b.op("after", inputs=[out["i"]], duration_ns=0)

    return built(make)


@pytest.mark.parametrize(
    ("parallel", "measured_ms"), [(1, 53.9), (2, 27.6), (4, 15.4), (8, 11.1), (10, 11.1)]
)
@pytest.mark.parametrize("policy", [ReadyQueue(), TensorFlowExecutor()])
def test_parallel_iterations_as_measured(parallel: int, measured_ms: float, policy: Any) -> None:
    """Eight iterations of a 6 ms and a 0.5 ms sleep, threads enough, as TensorFlow 2.21 took them.

    Bare kernels give 48.0, 24.5, 13.5 and 9.5 ms (the next test). Two overheads, the same for all five
    rows, explain the rest: the sleeps overshoot by 12 %, and dispatching an op to a thread costs 30 us
    (control-flow ops run inline and cost nothing).
    """
    machine = Machine(
        (
            Device(
                "cpu0",
                "cpu",
                workers=16,
                issue_ns=30_000,
                issue_ns_by_kind=dict.fromkeys(CONTROL_FLOW_KINDS, 0),
            ),
        )
    )
    trace = simulate(loop(8, parallel, 6_720_000, 560_000), machine, policy)
    assert trace.makespan_ns / 1e6 == pytest.approx(measured_ms, rel=0.03)


def test_loops_without_overhead_are_exact() -> None:
    """parallel 1: 8 × 6 ms; 2: pairs overlap; 8: the counter's chain of 7 × 0.5, then the last slow op."""
    makespans = [simulate(loop(8, p), cpu(16), ReadyQueue()).makespan_ns for p in (1, 2, 4, 8, 10)]
    assert makespans[0] == 8 * 6_000_000
    assert makespans[3] == makespans[4] == 7 * 500_000 + 6_000_000
    # 2: iterations 2k and 2k + 1 start 0.5 apart; 2k + 2 starts when 2k is over.
    assert makespans[1] == 4 * 6_000_000 + 500_000
    assert makespans[2] == 2 * 6_000_000 + 3 * 500_000


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_a_loop_runs_its_body_as_often_as_it_should(trips: int) -> None:
    trace = simulate(loop(trips, 3), cpu(4), TensorFlowExecutor())
    assert order(trace).count("count") == trips
    assert order(trace).count("after") == 1
    assert order(trace, dead=True).count("slow") == 1  # in the iteration that is not taken


@pytest.mark.parametrize("parallel", [1, 2, 10])
def test_nested_loops_with_trip_counts_by_entry(parallel: int) -> None:
    """The inner loop makes 2, 3 and 1 iterations when it is entered for the first, second, third time."""

    def inner(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        return {"j": b.op("work", inputs=[v["j"]], duration_ns=10)}

    def outer(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        out = while_loop(b, "inner", {"j": v["i"]}, inner, trips=[2, 3, 1], parallel_iterations=parallel)
        return {"i": b.op("step", inputs=[out["j"]], duration_ns=1)}

    def make(b: GraphBuilder) -> None:
        b.op("zero", duration_ns=0)
        while_loop(b, "outer", {"i": "zero"}, outer, trips=3, parallel_iterations=parallel)

    trace = simulate(built(make), cpu(2), TensorFlowExecutor())
    assert order(trace).count("work") == 6
    assert order(trace).count("step") == 3
    assert trace.makespan_ns == 6 * 10 + 3


def test_a_condition_in_a_loop_and_a_loop_in_a_condition() -> None:
    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("p", inputs=[v["i"]], duration_ns=0, attributes={"outcome": [True, False, True, True]})
        (out,) = cond(
            b,
            "if",
            "p",
            [v["i"]],
            lambda b, w: [b.op("yes", inputs=[w[v["i"]]], duration_ns=10)],
            lambda b, w: [b.op("no", inputs=[w[v["i"]]], duration_ns=100)],
        )
        return {"i": out}

    def make(b: GraphBuilder) -> None:
        b.op("zero", duration_ns=0)
        b.op("q", duration_ns=0, attributes={"outcome": True})

        def then(b: GraphBuilder, v: dict[str, str]) -> list[str]:
            return [while_loop(b, "loop", {"i": v["zero"]}, body, trips=4)["i"]]

        cond(b, "outer", "q", ["zero"], then, lambda b, v: [b.op("skip", inputs=[v["zero"]], duration_ns=1)])

    trace = simulate(built(make), cpu(), ReadyQueue())
    assert order(trace).count("yes") == 3
    assert order(trace).count("no") == 1
    assert order(trace).count("skip") == 0
    assert trace.makespan_ns == 3 * 10 + 100


def test_a_loop_in_the_branch_not_taken_dies_at_once() -> None:
    def make(b: GraphBuilder) -> None:
        b.op("zero", duration_ns=0)
        b.op("q", duration_ns=0, attributes={"outcome": False})

        def then(b: GraphBuilder, v: dict[str, str]) -> list[str]:
            step = lambda b, w: {"i": b.op("step", inputs=[w["i"]], duration_ns=10)}  # noqa: E731
            return [while_loop(b, "loop", {"i": v["zero"]}, step, trips=4)["i"]]

        cond(b, "outer", "q", ["zero"], then, lambda b, v: [b.op("skip", inputs=[v["zero"]], duration_ns=1)])

    trace = simulate(built(make), cpu(), ReadyQueue())
    assert trace.makespan_ns == 1
    assert order(trace).count("step") == 0
    assert order(trace)[-1] == "outer/merge0"


def test_an_invariant_reaches_every_iteration() -> None:
    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        return {"i": b.op("use", inputs=[v["i"], v["w"]], duration_ns=1)}

    def make(b: GraphBuilder) -> None:
        b.op("zero", duration_ns=0)
        b.op("w", duration_ns=7)
        while_loop(b, "loop", {"i": "zero"}, body, trips=5, invariants=["w"])

    trace = simulate(built(make), cpu(4), ReadyQueue())
    assert order(trace).count("use") == 5
    assert trace.makespan_ns == 7 + 5


def test_a_gpu_loop_issues_ahead() -> None:
    """Kernels complete, for the executor, when they are enqueued: the host runs ahead of the stream."""
    machine = Machine((Device("gpu0", issue_ns=1),))
    ahead = simulate(loop(8, 10, 20, 10), machine, TensorFlowExecutor())
    waiting = simulate(loop(8, 10, 20, 10), machine, ReadyQueue())
    assert ahead.makespan_ns < waiting.makespan_ns
    assert order(ahead).count("slow") == order(waiting).count("slow") == 8


def wrong(make: Callable[[GraphBuilder], object], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        simulate(built(make), cpu(), ReadyQueue())


def test_bad_control_flow_is_explained() -> None:
    def lonely_merge(b: GraphBuilder) -> None:
        b.op("a", duration_ns=1)
        b.op("b", duration_ns=1)
        b.op("m", kind="merge", inputs=["a", "b"], duration_ns=0)

    def exit_without_enter(b: GraphBuilder) -> None:
        b.op("a", duration_ns=1)
        b.op("x", kind="exit", inputs=["a"], duration_ns=0)

    def enter_without_exit(b: GraphBuilder) -> None:
        b.op("a", duration_ns=1)
        b.op("e", kind="enter", inputs=["a"], duration_ns=0, attributes={"frame": "loop"})
        b.op("c", kind="loop_cond", inputs=["e"], duration_ns=0)

    def two_frames(b: GraphBuilder) -> None:
        b.op("a", duration_ns=1)
        b.op("e", kind="enter", inputs=["a"], duration_ns=0, attributes={"frame": "loop"})
        b.op("mix", inputs=["a", "e"], duration_ns=1)

    def undecided(b: GraphBuilder) -> None:
        b.op("x", duration_ns=1)
        b.op("p", duration_ns=1)
        cond(b, "if", "p", ["x"], lambda b, v: [v["x"]], lambda b, v: [v["x"]])

    def decided_by_nothing(kind: str) -> Callable[[GraphBuilder], None]:
        def build(b: GraphBuilder) -> None:
            b.op("x", duration_ns=1)
            b.op("p", kind=kind)
            b.op("s", kind="switch", inputs=["x", "p"], outputs=(0, 0))

        return build

    wrong(lonely_merge, "merge 'm' has no switch before it")
    wrong(exit_without_enter, "exit 'x' is in no loop: no enter leads to it")
    wrong(enter_without_exit, "loop 'loop' is entered and has no exit")
    wrong(two_frames, r"op 'mix' reads from two frames: .*outside all loops")
    wrong(undecided, "op 'p' decides a branch and carries no outcome")
    for kind in ("recv", "identity"):  # which pass on what they are given, and are given nothing
        wrong(decided_by_nothing(kind), f"{kind} 'p' decides a branch and carries no outcome")


def test_a_loop_that_never_ends_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    from sim.readiness.tokens import TaggedTokenReadiness

    monkeypatch.setattr(TaggedTokenReadiness, "MAX_ITERATIONS", 50)
    with pytest.raises(
        RunError, match="loop 'loop' is to make 60 iterations, and no loop may make more than 50"
    ):
        simulate(loop(60, 10), cpu(), ReadyQueue())
    with pytest.raises(RunError, match="loop 'loop' has made 50 iterations and does not end"):
        simulate(loop([60], 10), cpu(), ReadyQueue())


# -- what is passed on weighs what it is -------------------------------------------------------------


def sizes(graph: Graph, *tensors: str) -> list[int]:
    """Return the bytes of first outputs, or of those with a number behind the name."""
    found = (name.partition(":")[::2] for name in tensors)
    outputs = ((graph.outputs.row(graph.index(op)), int(k or 0)) for op, k in found)
    return [int(graph.tensor_nbytes[row[k]]) for row, k in outputs]


def test_a_loop_carries_the_bytes_of_its_variables() -> None:
    """The body makes x larger: merge and switch hold either value, and the exit what the switch holds."""

    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("reads", inputs=[v["x"], v["weights"]], duration_ns=1)
        return {"x": b.op("grow", inputs=[v["x"]], outputs=300, duration_ns=1), "same": v["same"]}

    b = GraphBuilder("loop")
    b.op("first", outputs=100), b.op("kept", outputs=7), b.op("weights", outputs=50)
    out = while_loop(
        b, "loop", {"x": "first", "same": "kept"}, body, trips=2, invariants=["weights"], condition_ns=1
    )
    graph = b.build()
    assert sizes(graph, "loop/x/enter", "loop/x/merge", "loop/x/switch", "loop/x/switch:1") == [
        100,
        300,
        300,
        300,
    ]
    assert sizes(graph, "loop/x/next", out["x"], out["same"], "loop/weights/enter") == [300, 300, 7, 50]
    assert graph.bytes_read[graph.index("reads")] == 350


def test_a_branch_on_another_device_gets_the_bytes() -> None:
    """x (1000 B at 1 B/ns) goes to cpu1 for the branch, and what the branch makes of it (10 B) comes back."""
    b = GraphBuilder("if")
    b.op("x", outputs=1000, duration_ns=1, device="cpu0")
    b.op("p", duration_ns=0, device="cpu0", attributes={"outcome": True})

    def side(name: str) -> Callable[[GraphBuilder, dict[str, str]], list[str]]:
        return lambda b, v: [b.op(name, inputs=[v["x"]], outputs=10, duration_ns=1, device="cpu1")]

    (out,) = cond(b, "if", "p", ["x"], side("yes"), side("no"), device="cpu0")
    b.op("end", inputs=[out], duration_ns=1, device="cpu0")
    cpu = {"kind": "cpu", "cores": 1}
    linked = make_machine(
        {
            "devices": {"cpu0": cpu, "cpu1": cpu},
            "links": [{"from": "cpu0", "to": "cpu1", "bandwidth": "1GB/s"}],
        }
    )
    trace = checked(b.build(), linked, ReadyQueue())
    live = trace.transfers["end_ns"] > trace.transfers["start_ns"]
    assert trace.transfers["nbytes"][live].tolist() == [1000, 10]
    assert trace.makespan_ns == 1 + 1000 + 1 + 10 + 1


def test_a_size_that_is_given_stays() -> None:
    b = GraphBuilder("given")
    b.op("x", outputs=100), b.op("p", attributes={"outcome": True})
    b.op("switch", kind="switch", inputs=["x", "p"], outputs=(30, 0))
    assert sizes(b.build(), "switch", "switch:1") == [30, 100]
