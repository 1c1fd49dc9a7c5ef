"""Linear programs with jumps: what they compute, and the times they take."""

from __future__ import annotations

from typing import Any

import pytest
from examples import examples
from hypothesis import given
from program_helpers import programs

from policies.issue.ready_queue import ReadyQueue
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.issue.virtual_machine import Sequential
from scenarios.ops.control_flow import cond, while_loop
from sim import Device, Graph, GraphBuilder, Machine, Policy, Trace, simulate

CPU = Machine((Device("cpu0", "cpu", workers=1),))


def live(trace: Trace) -> list[str]:
    """Return the ops that are instructions, in the order in which they ran."""
    graph, tasks = trace.job.graph, trace.tasks
    rows = zip(tasks["op"].tolist(), tasks["dead"].tolist(), strict=True)
    return [graph.op_names[op] for op, dead in rows if not dead and graph.kind(op) == "op"]


def branches(outcome: Any) -> GraphBuilder:
    b = GraphBuilder("branches")
    b.op("x", duration_ns=1)
    b.op("p", duration_ns=2, attributes={"outcome": outcome})
    (y,) = cond(b, "if", "p", ["x"], lambda b, v: [b.op("f", inputs=[v["x"]], duration_ns=10)],
                lambda b, v: [b.op("g", inputs=[v["x"]], duration_ns=20)])  # fmt: skip
    b.op("out", inputs=[y], duration_ns=4)
    return b


@pytest.mark.parametrize(("outcome", "ran", "makespan"), [(True, "f", 17), (False, "g", 27)])
def test_only_the_branch_taken_runs(outcome: bool, ran: str, makespan: int) -> None:
    trace = simulate(branches(outcome).build(), CPU, Sequential())
    assert live(trace) == ["x", "p", ran, "out"]
    assert trace.makespan_ns == makespan


@pytest.mark.parametrize("policy", [Sequential, TensorFlowExecutor])
@pytest.mark.parametrize(("by_kind", "makespan"), [({}, 404), ({"switch": 7}, 411)])
def test_a_host_launches_ops_and_no_jumps(
    policy: type[Policy], by_kind: dict[str, int], makespan: int
) -> None:
    """Four ops cost 100 ns each: x, p, f, out. A switch and a merge cost what is said of their kind."""
    gpu = Device("gpu0", issue_ns=100, issue_ns_by_kind=by_kind)
    assert simulate(branches(True).build(), Machine((gpu,)), policy()).makespan_ns == makespan
    cpu = Device("cpu0", "cpu", workers=1, issue_ns=100)  # its worker processes them
    assert simulate(branches(True).build(), Machine((cpu,)), policy()).makespan_ns == 17 + 6 * 100


@pytest.mark.parametrize(("outcome", "ran"), [(True, "f"), (False, "g")])
def test_what_a_switch_on_a_gpu_is_told_decides_when_it_is_known(outcome: bool, ran: str) -> None:
    """The host reads what the switch gives, so its side is known at its end, and not when it is launched."""
    machine = Machine((Device("gpu0", launch_latency_ns=5), Device("cpu0", "cpu", workers=1)))
    b = GraphBuilder("two devices")
    b.op("x", duration_ns=1, device="gpu0")
    b.op("p", duration_ns=2, device="cpu0", attributes={"outcome": outcome})
    sides = [
        lambda b, v, name=name: [b.op(name, inputs=[v["x"]], device="cpu0", duration_ns=0)] for name in "fg"
    ]
    (y,) = cond(b, "if", "p", ["x"], *sides, device="gpu0")
    b.op("out", inputs=[y], device="cpu0", duration_ns=0)
    assert live(simulate(b.build(), machine, Sequential())) == ["p", "x", ran, "out"]


def swap(trips: int) -> Graph:
    """(i, j) = (step(j), i), so that both old values are needed."""
    b = GraphBuilder("swap")
    b.op("zero", duration_ns=1), b.op("one", duration_ns=1)
    body = lambda b, v: {"i": b.op("step", inputs=[v["j"]], duration_ns=10), "j": v["i"]}  # noqa: E731
    while_loop(b, "loop", {"i": "zero", "j": "one"}, body, trips=trips, condition_ns=3)
    return b.build()


@pytest.mark.parametrize("trips", [0, 1, 2, 7])
def test_a_loop_takes_its_trips_one_after_another(trips: int) -> None:
    trace = simulate(swap(trips), Machine((Device("cpu0", "cpu", workers=4),)), Sequential())
    assert trace.makespan_ns == 2 + 3 * (trips + 1) + 10 * trips
    assert live(trace).count("step") == trips


def test_loops_in_loops_and_conditions_in_loops() -> None:
    def inner(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        return {"j": b.op("work", inputs=[v["j"]], duration_ns=10)}

    def outer(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("p", inputs=[v["i"]], duration_ns=1, attributes={"outcome": [True, False, True]})
        out = while_loop(b, "inner", {"j": v["i"]}, inner, trips=[2, 0, 1])
        (y,) = cond(b, "if", "p", [out["j"]], lambda b, w: [b.op("f", inputs=[w[out["j"]]], duration_ns=100)],
                    lambda b, w: [b.op("g", inputs=[w[out["j"]]], duration_ns=1000)])  # fmt: skip
        return {"i": y}

    b = GraphBuilder("nested")
    b.op("zero", duration_ns=0)
    while_loop(b, "outer", {"i": "zero"}, outer, trips=3)
    trace = simulate(b.build(), CPU, Sequential())
    assert [name for name in live(trace) if name in ("work", "f", "g")] == [
        "work", "work", "f", "g", "work", "f",
    ]  # fmt: skip
    assert trace.makespan_ns == 3 * 10 + 3 * 1 + 2 * 100 + 1000


def test_a_loop_begins_when_all_that_enters_it_is_there_even_what_it_does_not_read() -> None:
    """Only then is its first iteration over: the thread stood before the second, and waited for ever."""
    b = GraphBuilder("unread")
    b.op("zero", duration_ns=1)
    while_loop(b, "loop", {"i": "zero"}, lambda b, v: {"i": b.op("step", inputs=[v["i"]], duration_ns=10)},
               trips=2, invariants=["late"], parallel_iterations=1)  # fmt: skip
    b.op("late", inputs=["zero"], duration_ns=100)
    assert simulate(b.build(), CPU, Sequential()).makespan_ns == 1 + 100 + 2 * 10


@pytest.mark.parametrize(("outcome", "ran"), [(True, "yes"), (False, "no")])
def test_what_needs_only_one_side_of_a_condition_is_outside_of_it(outcome: bool, ran: str) -> None:
    """A control trigger runs whatever became of the branches that it follows, a non-strict op with either."""
    b = GraphBuilder("either")
    b.op("x", duration_ns=1), b.op("p", duration_ns=2, attributes={"outcome": outcome})
    b.op("s", kind="switch", inputs=["x", "p"], outputs=(0, 0), duration_ns=0)
    b.op("no", inputs=["s"], duration_ns=10), b.op("yes", inputs=["s:1"], duration_ns=10)
    b.op("either", inputs=["no", "yes"], duration_ns=3, attributes={"strict": False})
    b.op("trigger", kind="control_trigger", after=["no", "yes"], duration_ns=0)
    b.op("last", after=["trigger"], duration_ns=4)
    trace = simulate(b.build(), CPU, Sequential())
    assert sorted(live(trace)) == sorted(["x", "p", ran, "either", "last"])
    assert trace.makespan_ns == 1 + 2 + 10 + 3 + 4


def test_what_is_dead_behind_a_merge_of_two_conditions_is_passed_over() -> None:
    """No predicate says that it is: the thread stood before it, and before a condition that it decides."""
    b = GraphBuilder("two conditions")
    b.op("x", duration_ns=1)
    for name in "pq":
        b.op(name, duration_ns=2, attributes={"outcome": False})
        b.op(f"if {name}", kind="switch", inputs=["x", name], outputs=(0, 0), duration_ns=0)
    b.op("merge", kind="merge", inputs=["if p:1", "if q:1"], duration_ns=0)
    b.op("never", inputs=["merge"], duration_ns=5, attributes={"outcome": True})
    b.op("if never", kind="switch", inputs=["x", "never"], outputs=(0, 0), duration_ns=0)
    b.op("nor", inputs=["if never:1"], duration_ns=7)
    trace = simulate(b.build(), CPU, Sequential(), iterations=2)
    assert live(trace) == ["x", "p", "q"] * 2
    assert trace.makespan_ns == 2 * (1 + 2 + 2)


def test_what_runs_whatever_became_of_a_loops_body_runs_when_the_loop_is_over_too() -> None:
    b = GraphBuilder("log")
    b.op("zero", duration_ns=1)

    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        b.op("step", inputs=[v["i"]], duration_ns=20)
        b.op("trigger", kind="control_trigger", after=["step"], duration_ns=1)
        b.op("log", after=["trigger"], duration_ns=3)
        return {"i": "step"}

    while_loop(b, "loop", {"i": "zero"}, body, trips=2)
    trace = simulate(b.build(), CPU, Sequential())
    trace.check()
    assert trace.makespan_ns == 1 + 2 * (20 + 1 + 3) + 1 + 3


def test_repetitions_run_one_after_another() -> None:
    trace = simulate(branches([True, False]).build(), CPU, Sequential(), iterations=2)
    assert live(trace) == ["x", "p", "f", "out", "x", "p", "g", "out"]
    assert trace.makespan_ns == 17 + 27


def test_without_control_flow_the_kernel_does_what_the_thread_does() -> None:
    b = GraphBuilder("tree")
    for name, inputs in {"root": [], "a": ["root"], "b": ["root"], "c": ["a", "b"]}.items():
        b.op(name, inputs=inputs, duration_ns=10)
    machine = Machine((Device("gpu0", issue_ns=3, launch_latency_ns=2),))
    one, other = (simulate(b.build(), machine, Sequential(), engine=engine) for engine in ("auto", "simpy"))
    for column in ("op", "issue_ns", "start_ns", "end_ns"):
        assert one.tasks[column].tolist() == other.tasks[column].tolist()


@examples(60)
@given(graph=programs(logs=True))
def test_the_same_ops_run_as_under_the_executor_and_take_as_long_as_one_thread(graph: Graph) -> None:
    machine, tokens = simulate(graph, CPU, Sequential()), simulate(graph, CPU, ReadyQueue())
    machine.check()
    assert sorted(live(machine)) == sorted(live(tokens))
    assert machine.makespan_ns == tokens.makespan_ns  # one thread never idles, and dead ops take no time
