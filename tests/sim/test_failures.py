"""Ops that fail: who does is decided before time 0, and what follows is what each runtime does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from runs import checked

from devices.memory.run_memory import tensor_memory
from devices.network import make_network
from policies.issue.program_order import InOrder, OutOfOrder
from policies.issue.ready_queue import CriticalPath, ReadyQueue
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.issue.virtual_machine import Sequential
from policies.issue.work_queues import KeepFirst, StreamStacks
from scenarios.ops.control_flow import while_loop
from scenarios.workloads.sessions import Session, side_by_side
from sim import Device, Graph, GraphBuilder, Link, Machine, Policy, Trace, simulate
from sim.base.errors import GraphError, InputError, InvariantError, StuckError
from sim.explain.failed_ops import failed_tasks, failure_report, failure_text, never_ran
from sim.explain.memory_use import memory_use
from sim.explain.narration import explain_text
from sim.export.tables import task_table
from sim.graph.failures import STATUSES, Failures, in_step, read_fails
from sim.kernel.run import NotOnKernelError
from sim.metrics import summary
from sim.plot import gantt

Spans = dict[str, tuple[int, int, str]]


def cpu(name: str = "cpu0", workers: int = 1) -> Device:
    return Device(name, "cpu", workers=workers)


def graph_of(ops: Mapping[str, Mapping[str, Any]]) -> Graph:
    """Return a graph of ops that take `ns`; `fails` and `key` are attributes."""
    b = GraphBuilder("drawn by hand")
    for name, op in ops.items():
        facts = dict(op)
        attributes = {key: facts.pop(key) for key in ("fails", "key", "session") if key in facts}
        b.op(name, duration_ns=facts.pop("ns", 0), attributes=attributes, **facts)
    return b.build()


def spans(trace: Trace) -> Spans:
    """Return start, end and status of each task, after a check: ``f`` or, of several steps, ``f[1]``."""
    trace.check()
    names, tasks = trace.job.graph.op_names, trace.tasks
    columns = (tasks[key].tolist() for key in ("op", "iteration", "start_ns", "end_ns"))
    return {
        names[op] + (f"[{step}]" if trace.job.iterations > 1 else ""): (start, end, STATUSES[status])
        for op, step, start, end, status in zip(*columns, trace.status.tolist(), strict=True)
    }


def missing(trace: Trace) -> list[str]:
    names, several = trace.job.graph.op_names, trace.job.iterations > 1
    return [names[op] + (f"[{step}]" if several else "") for step, op in never_ran(trace).tolist()]


#         ┌─► f ✗ ─┐
#     a ──┤        ├─► z          w, independent of all
#         └─► g ──►h
DIAMOND: Mapping[str, Mapping[str, Any]] = {
    "a": {"ns": 10},
    "f": {"ns": 10, "inputs": ["a"], "fails": True},
    "g": {"ns": 30, "inputs": ["a"]},
    "h": {"ns": 5, "inputs": ["g"]},
    "z": {"ns": 5, "inputs": ["f", "h"]},
    "w": {"ns": 7},
}


# -- one executor --------------------------------------------------------------------------------


def test_tensorflow_runs_what_is_queued_and_independent_and_no_consumer() -> None:
    """On one thread: w is expensive and last among the roots, so first; then a, its last consumer g, h, f."""
    trace = simulate(graph_of(DIAMOND), Machine((cpu(),)), TensorFlowExecutor())
    assert spans(trace) == {
        "w": (0, 7, "done"),
        "a": (7, 17, "done"),
        "g": (17, 47, "done"),
        "h": (47, 52, "done"),
        "f": (52, 62, "failed"),
    }
    assert missing(trace) == ["z"]
    ax = gantt(trace, title="run")
    assert [line.get_xdata().tolist() for line in ax.lines] == [[62.0]]  # type: ignore[union-attr]
    assert ax.get_title(loc="left") == "run; × failed or aborted"
    assert trace.engine == "simpy: some of the ops may fail"
    assert failure_text(trace) == "op 'f' failed on cpu0 in step 0 at 62 ns; 1 never ran"
    assert failure_report(trace) == {
        "failed": 1,
        "aborted": 0,
        "never_ran": 1,
        "tasks": [{"op": "f", "device": "cpu0", "step": 0, "frame": "", "time_ns": 62}],
    }


@pytest.mark.parametrize("make", [TensorFlowExecutor, StreamStacks])
def test_calls_in_turn_end_with_the_one_that_fails(make: Callable[..., Policy]) -> None:
    """The caller gets the error, and calls no more; what that call had queued runs to its end."""
    ops = {"a": {"ns": 10, "fails": {"at": [1]}}, "b": {"ns": 30}, "c": {"ns": 5, "inputs": ["b"]}}
    machine = Machine((cpu(workers=2),))
    trace = simulate(graph_of(ops), machine, make(), iterations=3)
    found = spans(trace)
    assert found["a[1]"] == (35, 45, "failed")
    assert found["c[1]"] == (65, 70, "done")
    assert missing(trace) == ["a[2]", "b[2]", "c[2]"]
    beside = simulate(graph_of(ops), machine, make(runs="side-by-side"), iterations=3)
    spans(beside)
    assert missing(beside) == []
    assert failure_text(beside).endswith("0 never ran")
    with pytest.raises(InvariantError, match="was ready at 0 ns, before the call before its own was over"):
        replace(beside, in_turn=True).check()
    with pytest.raises(InvariantError, match="'a' of iteration 2 never ran, and nothing kept it"):
        replace(trace, in_turn=False).check()


def test_a_program_that_calls_in_turn_ends_with_what_was_launched() -> None:
    """The launch of b fails behind that of a, which runs on; of the next run nothing is launched."""
    ops = {"a": {"ns": 20}, "b": {"ns": 20, "fails": {"at": [1]}}, "c": {"ns": 20}}
    machine = Machine((Device("gpu0", issue_ns=2),))
    for runs, start in (("in-turn", 64), ("enqueued", 62)):
        trace = simulate(graph_of(ops), machine, Sequential(runs=runs), iterations=3)
        assert spans(trace)["a[1]"] == (start, start + 20, "done")
        assert missing(trace) == ["c[1]", "a[2]", "b[2]", "c[2]"]


@pytest.mark.parametrize("make", [TensorFlowExecutor, StreamStacks])
def test_the_other_session_goes_on_calling(make: Callable[[], Policy]) -> None:
    """Session a, which reads x over a link, calls no more after its first run; b calls three times."""
    b = GraphBuilder("two sessions")
    b.input("x", 100, device="cpu1")
    for name in "ab":
        facts = {"session": name, "fails": {"at": [0]} if name == "a" else False}
        b.op(name, inputs=["x"], duration_ns=10, device=f"cpu{'ab'.index(name)}", attributes=facts)
    trace = simulate(b.build(), two_cpus(latency_ns=5), make(), iterations=3)
    spans(trace)
    assert missing(trace) == ["a[1]", "a[2]"]


@pytest.mark.parametrize("policy", [ReadyQueue(), StreamStacks()])
def test_an_error_skips_what_is_downstream_and_nothing_else(policy: Policy) -> None:
    trace = simulate(graph_of(DIAMOND), Machine((cpu(workers=3),)), policy)
    assert missing(trace) == ["z"]
    assert spans(trace)["h"] == (40, 45, "done")


@pytest.mark.parametrize("policy", [Sequential(), InOrder(in_flight=1)])
def test_an_exception_ends_a_program(policy: Policy) -> None:
    """a, f in order; nothing of what follows is taken."""
    trace = simulate(graph_of(DIAMOND), Machine((cpu(workers=4),)), policy)
    assert spans(trace) == {"a": (0, 10, "done"), "f": (10, 20, "failed")}
    assert missing(trace) == ["g", "h", "z", "w"]


def test_what_another_worker_of_the_program_executes_runs_to_its_end() -> None:
    trace = simulate(graph_of(DIAMOND), Machine((cpu(workers=2),)), InOrder())
    assert spans(trace) == {"a": (0, 10, "done"), "f": (10, 20, "failed"), "g": (10, 40, "done")}
    assert missing(trace) == ["h", "z", "w"]


# -- launches ------------------------------------------------------------------------------------


def test_what_was_launched_runs_on() -> None:
    """A launch takes 2 ns to issue; that of c returns the error at 6. Its inputs are not there yet."""
    ops = {"a": {"ns": 50}, "b": {"ns": 50}, "c": {"ns": 50, "inputs": ["b"], "fails": True}, "d": {"ns": 50}}
    machine = Machine((Device("gpu0", issue_ns=2, launch_latency_ns=3),))
    trace = simulate(graph_of(ops), machine, Sequential())
    assert spans(trace) == {"a": (5, 55, "done"), "b": (55, 105, "done"), "c": (6, 6, "failed")}
    assert missing(trace) == ["d"]
    assert [task.time_ns for task in failed_tasks(trace)] == [6]
    row = trace.tasks["op"].tolist().index(2)
    assert trace.lane_name(row) == "gpu0/async"
    assert trace.makespan_ns == 105


def test_a_ready_queue_goes_on_launching() -> None:
    ops = {"a": {"ns": 9, "fails": True}, "b": {"ns": 9}, "c": {"ns": 9, "inputs": ["a"]}}
    machine = Machine((Device("gpu0", issue_ns=2),))
    for synchronisation in ("issue", "completion"):
        trace = simulate(graph_of(ops), machine, ReadyQueue(synchronisation=synchronisation))
        assert spans(trace) == {"a": (2, 2, "failed"), "b": (4, 13, "done")}
        assert missing(trace) == ["c"]


def test_a_program_of_another_device_waits_in_vain() -> None:
    """gpu0's program ends with f at 10. gpu1's launches e, and stands before r, which reads f, for ever."""
    ops = {
        "a": {"ns": 30, "device": "gpu0"},
        "f": {"ns": 10, "device": "gpu0", "fails": True},
        "b": {"ns": 10, "device": "gpu0"},
        "e": {"ns": 20, "device": "gpu1"},
        "r": {"ns": 20, "device": "gpu1", "inputs": ["f"]},
        "s": {"ns": 20, "device": "gpu1"},
    }
    machine = Machine((Device("gpu0", issue_ns=5), Device("gpu1", issue_ns=5)))
    trace = simulate(graph_of(ops), machine, InOrder())
    assert spans(trace) == {"f": (10, 10, "failed"), "a": (5, 35, "done"), "e": (5, 25, "done")}
    assert missing(trace) == ["b", "r", "s"]
    one_thread = simulate(graph_of(ops), machine, InOrder(per="machine"))
    assert missing(one_thread) == ["b", "e", "r", "s"]
    one_thread.check()


# -- several executors, one rendezvous -----------------------------------------------------------


def two_cpus(**link: Any) -> Machine:
    links = (Link("there", "cpu0", "cpu1", **link), Link("back", "cpu1", "cpu0", **link))
    return Machine((cpu("cpu0", 3), cpu("cpu1", 3)), links, network=make_network)


def sending(ns: int, fails: Any = True) -> Graph:
    """Return two parts: on cpu0 `f` fails at 10 and `p` is sent after `ns`; on cpu1 `y` reads what comes."""
    return graph_of(
        {
            "f": {"ns": 10, "device": "cpu0", "fails": fails},
            "p": {"ns": ns, "device": "cpu0", "outputs": 1000},
            "s": {"kind": "send", "inputs": ["p"], "outputs": 1000, "device": "cpu0", "key": "k"},
            "after": {"ns": 1, "after": ["s"], "device": "cpu0"},
            "r": {"kind": "recv", "outputs": 1000, "device": "cpu1", "key": "k"},
            "y": {"ns": 5, "inputs": ["r"], "device": "cpu1"},
            "w": {"ns": 60, "device": "cpu1"},
        }
    )


def test_recvs_of_other_executors_abort_and_so_does_what_is_sent_later() -> None:
    trace = simulate(sending(40), two_cpus(latency_ns=100), TensorFlowExecutor())
    assert spans(trace) == {
        "f": (0, 10, "failed"),
        "r": (10, 10, "aborted"),
        "p": (0, 40, "done"),
        "s": (40, 40, "aborted"),
        "w": (0, 60, "done"),
    }
    assert missing(trace) == ["after", "y"]
    assert failure_text(trace) == "op 'f' failed on cpu0 in step 0 at 10 ns; 2 aborted, 2 never ran"
    assert len(trace.transfers["id"]) == 0


def test_what_had_met_before_arrives() -> None:
    trace = simulate(sending(5), two_cpus(latency_ns=100), TensorFlowExecutor())
    found = spans(trace)
    assert (found["r"], found["y"], found["s"]) == (
        (105, 105, "done"),
        (105, 110, "done"),
        (5, 5, "done"),
    )
    assert missing(trace) == []


def test_a_recv_that_asks_later_aborts_when_it_is_taken() -> None:
    """One thread on cpu1 runs `w` first: the Recv, whose Send came before the failure, asks at 60."""
    machine = two_cpus(latency_ns=100)
    machine = replace(machine, devices=(cpu("cpu0", 3), cpu("cpu1", 1)))
    trace = simulate(sending(5), machine, TensorFlowExecutor())
    found = spans(trace)
    assert found["w"] == (0, 60, "done")
    assert (found["s"], found["r"]) == ((5, 5, "done"), (60, 60, "aborted"))
    assert missing(trace) == ["y"]


@pytest.mark.parametrize(("ns", "arrives"), [(5, True), (40, False)])
def test_a_transfer_is_send_and_recv(ns: int, arrives: bool) -> None:
    ops = {
        "f": {"ns": 10, "device": "cpu0", "fails": True},
        "p": {"ns": ns, "device": "cpu0", "outputs": 1000},
        "y": {"ns": 5, "inputs": ["p"], "device": "cpu1"},
        "here": {"ns": 5, "inputs": ["p"], "device": "cpu0"},
    }
    trace = simulate(graph_of(ops), two_cpus(latency_ns=100), TensorFlowExecutor())
    found = spans(trace)
    assert found["here"] == (ns, ns + 5, "done")
    assert found.get("y") == ((105, 110, "done") if arrives else None)
    assert len(trace.transfers["id"]) == arrives


def test_only_the_step_that_fails_aborts() -> None:
    """Two steps side by side: what step 0 sends at 40 arrives, and what step 1 sends does not."""
    policy = TensorFlowExecutor(runs="side-by-side")
    trace = simulate(sending(40, {"at": [1]}), two_cpus(latency_ns=100), policy, iterations=2)
    found = spans(trace)
    assert found["r[0]"][2] == "done"
    assert found["y[0]"][2] == "done"
    assert found["r[1]"][2] == "aborted"
    assert missing(trace) == ["after[1]", "y[1]"]


def test_a_recv_that_fails_by_itself_aborts_the_others() -> None:
    graph = sending(5, fails=False)
    attributes = {**graph.attributes, graph.index("r"): {"key": "k", "fails": True}}
    trace = simulate(replace(graph, attributes=attributes), two_cpus(latency_ns=100), TensorFlowExecutor())
    assert spans(trace)["r"] == (105, 105, "failed")
    assert missing(trace) == ["y"]


def test_elsewhere_a_recv_waits_in_vain_and_never_runs() -> None:
    graph = graph_of(
        {
            "f": {"ns": 10, "device": "cpu0", "fails": True, "outputs": 8},
            "s": {"kind": "send", "inputs": ["f"], "outputs": 8, "device": "cpu0", "key": "k"},
            "r": {"kind": "recv", "outputs": 8, "device": "cpu1", "key": "k"},
            "y": {"ns": 5, "inputs": ["r"], "device": "cpu1"},
        }
    )
    trace = simulate(graph, two_cpus(latency_ns=100), ReadyQueue())
    assert missing(trace) == ["s", "r", "y"]
    trace.check()


def test_a_run_that_is_stuck_for_another_reason_is_stuck() -> None:
    """Nobody sends to the second Recv of step 0; that step 1 fails explains nothing of it."""
    graph = graph_of(
        {
            "f": {"ns": 1, "fails": {"at": [1]}},
            "s": {"kind": "send", "key": "k"},
            "r": {"kind": "recv", "key": "k"},
            "r2": {"kind": "recv", "key": "k"},
        }
    )
    policy = TensorFlowExecutor(runs="side-by-side")
    with pytest.raises(StuckError, match=r"waits for a send with key 'k;0:0'"):
        simulate(graph, Machine((cpu(),)), policy, iterations=2)


def test_a_step_of_a_session_is_a_batch() -> None:
    """A batch that fails ends its session, and another session goes on."""
    bad = graph_of({"x": {"ns": 10, "fails": {"at": [1]}}, "y": {"ns": 10, "inputs": ["x"]}})
    good = graph_of({"u": {"ns": 10}})
    graph = side_by_side("two", {"bad": Session(bad, iterations=3), "good": Session(good, iterations=5)})
    trace = simulate(graph, Machine((cpu(workers=2),)), TensorFlowExecutor())
    found = spans(trace)
    assert found["bad/1/x"][2] == "failed"
    assert failure_text(trace).startswith("op 'bad/1/x' failed on cpu0 in step 1 at ")
    assert [name for name in found if name.startswith("good") and name.endswith("u")] == [
        f"good/{k}/u" for k in range(5)
    ]
    assert missing(trace) == ["bad/1/y", "bad/2/begin", "bad/2/x", "bad/2/y"]
    with pytest.raises(InputError, match="there is no step 3: there are 3 steps, 0 to 2"):
        side_by_side("one", {"bad": Session(graph_of({"x": {"fails": {"at": [3]}}}), iterations=3)})


# -- control flow --------------------------------------------------------------------------------


def test_an_iteration_in_which_an_op_fails_never_ends() -> None:
    """The counter goes on to the end; what is carried stops, and so does what reads the loop's result."""
    b = GraphBuilder("loop")
    b.op("i", duration_ns=0), b.op("v", duration_ns=0)

    def body(b: GraphBuilder, inside: dict[str, str]) -> dict[str, str]:
        b.op("count", inputs=[inside["i"]], duration_ns=1)
        b.op("step", inputs=[inside["v"]], duration_ns=5, attributes={"fails": {"probability": 0.4}})
        return {"i": "count", "v": "step"}

    results = while_loop(b, "loop", {"i": "i", "v": "v"}, body, trips=6)
    b.op("counted", inputs=[results["i"]], duration_ns=0)
    b.op("result", inputs=[results["v"]], duration_ns=0)
    machine = Machine((cpu(workers=4),))
    for policy in (TensorFlowExecutor(), ReadyQueue(), StreamStacks()):
        trace = checked(b.build(), machine, policy, seed=7)
        (failed,) = failed_tasks(trace)
        assert (failed.op, failed.frame) == ("step", "loop:3")  # everybody meets the same luck
        assert "result" in missing(trace)
        frames = [trace.frames[code] for code in trace.tasks["frame"].tolist()]
        names = [trace.job.graph.op_names[op] for op in trace.tasks["op"].tolist()]
        ran = list(zip(names, frames, strict=True))
        assert ("step", "loop:4") not in ran
        assert ("count", "loop:5") in ran


def test_a_dead_op_does_not_fail() -> None:
    from scenarios.ops.control_flow import cond

    b = GraphBuilder("branch")
    b.op("x", duration_ns=0), b.op("p", inputs=["x"], attributes={"outcome": True}, duration_ns=0)

    def side(name: str, fails: bool) -> Callable[[GraphBuilder, dict[str, str]], list[str]]:
        def write(b: GraphBuilder, inside: dict[str, str]) -> list[str]:
            return [b.op(name, inputs=[inside["x"]], duration_ns=3, attributes={"fails": fails})]

        return write

    cond(b, "if", "p", ["x"], side("taken", False), side("not_taken", True))
    trace = checked(b.build(), Machine((cpu(),)), TensorFlowExecutor())
    assert not trace.failed
    assert failure_text(trace) == ""


# -- decided before time 0 -----------------------------------------------------------------------


def test_failures_follow_from_the_seed_the_name_and_the_step() -> None:
    def drawn(names: str, steps: int, seed: int = 0) -> dict[str, list[bool]]:
        b = GraphBuilder("drawn")
        for name in names:
            b.op(name, attributes={"fails": {"probability": 0.5}})
        failures = Failures(b.build(), steps, seed)
        return {name: [failures.fails(op, step) for step in range(steps)] for op, name in enumerate(names)}

    assert drawn("ab", 50) == drawn("ab", 50)
    assert drawn("ab", 50)["b"][:20] == drawn("b", 20)["b"]
    assert drawn("ab", 50) != drawn("ab", 50, seed=1)
    assert drawn("ab", 50)["a"] != drawn("ab", 50)["b"]
    assert 380 < sum(drawn("a", 1000)["a"]) + sum(drawn("b", 1000)["b"]) - 500 < 620


@pytest.mark.parametrize(
    ("value", "steps"),
    [
        ({"probability": 0}, []),
        ({"probability": 1}, [0, 1, 2]),
        (True, [0, 1, 2]),
        (False, []),
        ({"at": [0, 2]}, [0, 2]),
    ],
)
def test_each_form_says_in_which_steps(value: Any, steps: Sequence[int]) -> None:
    ops = {"a": {"ns": 1, "fails": value}, "b": {"ns": 1}}
    trace = checked(graph_of(ops), Machine((cpu(),)), ReadyQueue(), iterations=3)
    assert [task.step for task in failed_tasks(trace)] == steps
    assert (trace.on_failure is None) == (value is False)
    assert (summary(trace).get("failures", {"failed": 0})["failed"], "status" in task_table(trace)) == (
        len(steps),
        value is not False,
    )


@pytest.mark.parametrize("value", ["yes", 1, None, {}, {"at": []}, {"at": 1}, {"at": [-1]}, {"at": [True]},
                                   {"probability": 1.1}, {"probability": True},
                                   {"at": [0], "probability": 1}])  # fmt: skip
def test_other_forms_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match="does not say when an op fails; give true"):
        read_fails(value)
    with pytest.raises(GraphError, match=r"op 'a': fails: .* does not say"):
        simulate(graph_of({"a": {"fails": value}}), Machine((cpu(),)), ReadyQueue())


def test_a_step_that_there_is_not_is_refused() -> None:
    with pytest.raises(GraphError, match="op 'a': fails: there is no step 1: there is one step, step 0"):
        simulate(graph_of({"a": {"fails": {"at": [1]}}}), Machine((cpu(),)), ReadyQueue())
    assert in_step({"probability": 0.5}, 0, 3) == {"probability": 0.5}


@pytest.mark.parametrize("policy", [OutOfOrder(), CriticalPath(), KeepFirst()])
def test_a_policy_of_which_nobody_knows_is_refused(policy: Policy) -> None:
    message = f"nobody knows what {type(policy).__name__} does then; choose tensorflow-executor"
    with pytest.raises(InputError, match=message):
        simulate(graph_of(DIAMOND), Machine((cpu(),)), policy)


def test_a_policy_of_ones_own_says_what_it_does_in_words_that_there_are() -> None:
    class Mine(ReadyQueue):
        on_failure = "skp"  # type: ignore[assignment]

    with pytest.raises(InputError, match="Mine has on_failure 'skp'; did you mean 'skip'"):
        simulate(graph_of(DIAMOND), Machine((cpu(),)), Mine())


def test_of_several_processes_one_ends() -> None:
    """Each has its own host thread and goes on when the other's has ended; a CPU's workers are shared."""
    b = GraphBuilder("two processes")
    for process in "ab":
        for k in range(3):
            attributes = {"process": process, "fails": process == "a" and k == 1}
            b.op(f"{process}{k}", duration_ns=10, device="d0", attributes=attributes)
    trace = simulate(b.build(), Machine((Device("d0", streams=1, issue_ns=2),)), Sequential())
    assert spans(trace)["a1"] == (4, 4, "failed")
    assert missing(trace) == ["a2"]
    with pytest.raises(
        InputError, match="Sequential then ends their process; but threads of a CPU are shared"
    ):
        simulate(b.build(), Machine((cpu("d0", 2),)), Sequential())


def test_collectives_whose_ranks_may_never_come_are_refused() -> None:
    b = GraphBuilder("ranks")
    for d in range(2):
        b.op(f"f{d}", duration_ns=5, device=f"gpu{d}", attributes={"fails": d == 0})
        attributes = {"communicator": "data"}
        b.op(
            f"r{d}",
            kind="all_reduce",
            inputs=[f"f{d}"],
            duration_ns=5,
            device=f"gpu{d}",
            attributes=attributes,
        )
    machine = Machine((Device("gpu0"), Device("gpu1")))
    with pytest.raises(InputError, match="nobody knows how long the other ranks of a collective then wait"):
        simulate(b.build(), machine, Sequential())


def test_the_kernel_says_why_it_does_not_run_it_and_memory_is_refused() -> None:
    machine = Machine((cpu(),))
    with pytest.raises(NotOnKernelError, match="some of the ops may fail"):
        simulate(graph_of(DIAMOND), machine, ReadyQueue(), engine="kernel")
    with pytest.raises(InputError, match="an allocator cannot follow a step in which an op fails"):
        simulate(graph_of(DIAMOND), machine, ReadyQueue(), memory=tensor_memory())


# -- what is told of it --------------------------------------------------------------------------


def test_what_nobody_reads_any_more_stays_in_memory() -> None:
    """100 B of `a` are for z, which never runs; the 50 B of f are gone when it has failed."""
    b = GraphBuilder("bytes")
    b.op("a", duration_ns=10, outputs=100)
    b.op("f", duration_ns=10, inputs=["a"], outputs=50, attributes={"fails": True})
    b.op("z", duration_ns=10, inputs=["a", "f"], outputs=1)
    b.op("w", duration_ns=40)
    trace = simulate(b.build(), Machine((cpu(workers=2),)), ReadyQueue())
    use = memory_use(trace)["cpu0"]
    assert list(zip(use.times_ns.tolist(), use.in_use_bytes.tolist(), strict=True)) == [
        (0, 100),
        (10, 150),
        (20, 100),
        (40, 0),
    ]


def test_there_is_no_bound_and_no_plan_of_a_run_that_failed() -> None:
    trace = simulate(graph_of(DIAMOND), Machine((cpu(),)), TensorFlowExecutor())
    assert (summary(trace)["lower_bound_ns"], summary(trace)["critical_path_ns"]) == (0, 0)
    with pytest.raises(InputError, match="an op failed, so that others never ran"):
        trace.plan()
    assert "op 'f' failed on cpu0 in step 0 at 62 ns; 1 never ran; no bound." in explain_text(trace)


class Watches:
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, int]] = []

    def started(self, task: Any) -> None:
        self.told.append(("started", task.op, task.start_ns))

    def ended(self, task: Any) -> None:
        self.told.append(("ended", task.op, task.end_ns))


def test_observers_hear_of_a_launch_that_failed() -> None:
    watches = Watches()
    ops = {"a": {"ns": 50, "fails": True}}
    simulate(graph_of(ops), Machine((Device("gpu0", issue_ns=2),)), Sequential(), observers=[watches])
    assert watches.told == [("started", 0, 2), ("ended", 0, 2)]
