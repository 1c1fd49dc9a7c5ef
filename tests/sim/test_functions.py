"""Functions written out: call, if, while; what they become and what they cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from runs import checked

from policies.issue.ready_queue import ReadyQueue
from policies.issue.virtual_machine import Sequential
from scenarios.importers import read_graph
from scenarios.ops.inlining import Function, add_ops
from sim import Device, Graph, GraphBuilder, Machine, Policy, Trace, simulate
from sim.base.errors import GraphError, InputError

CPU = Machine((Device("cpu0", "cpu", workers=4),))


def function(name: str, inputs: str, ops: Mapping[str, dict[str, Any]], *results: str) -> Function:
    records = tuple({"name": op, "duration_ns": 10, **facts} for op, facts in ops.items())
    return Function(name, tuple(inputs.split()), records, results)


def graph(ops: Mapping[str, dict[str, Any]], *functions: Function) -> Graph:
    builder = GraphBuilder("test")
    add_ops(
        builder,
        [{"name": op, "duration_ns": 10, **facts} for op, facts in ops.items()],
        {f.name: f for f in functions},
    )
    return builder.build()


def use(kind: str, inputs: str, after: str = "", **attributes: Any) -> dict[str, Any]:
    """An op that stands for a function's."""
    return {"kind": kind, "inputs": inputs.split(), "after": after.split(), "attributes": attributes}


def edges(g: Graph) -> set[tuple[str, str]]:
    return {
        (g.op_names[p], g.op_names[c])
        for p, c in zip(g.edges.producer.tolist(), g.edges.consumer.tolist(), strict=True)
    }


def live(trace: Trace) -> list[str]:
    names, tasks = trace.job.graph.op_names, trace.tasks
    return [
        names[op] for op, dead in zip(tasks["op"].tolist(), tasks["dead"].tolist(), strict=True) if not dead
    ]


TWO = function("two", "a b", {"f": {"inputs": ["a"]}, "g": {"inputs": ["f", "b"]}}, "g", "a")


def test_a_call_is_its_body_and_passes_through_what_the_body_returns() -> None:
    call = use("call", "x y", body="two")
    g = graph({"x": {}, "y": {}, "c": call, "first": {"inputs": ["c"]}, "second": {"inputs": ["c:1"]}}, TWO)
    assert edges(g) == {
        ("x", "c/f"), ("c/f", "c/g"), ("y", "c/g"), ("c/g", "first"), ("x", "second"),
    }  # fmt: skip


def test_control_edges_of_a_call_hold_all_that_it_begins_with_and_wait_for_all_that_it_ends_with() -> None:
    side = function("side", "a", {"f": {"inputs": ["a"]}, "log": {}}, "f")
    call = use("call", "x", "go", body="side")
    g = graph({"x": {}, "go": {}, "c": call, "next": {"after": ["c"]}}, side)
    assert edges(g) == {
        ("x", "c/f"), ("go", "c/f"), ("go", "c/log"), ("c/f", "next"), ("c/log", "next"),
    }  # fmt: skip


def test_calls_nest_and_use_one_function_twice() -> None:
    inc = function("inc", "a", {"add": {"inputs": ["a"]}}, "add")
    twice = function(
        "twice",
        "a",
        {
            k: {"kind": "call", "inputs": [i], "attributes": {"body": "inc"}}
            for k, i in (("p", "a"), ("q", "p"))
        },
        "q",
    )
    call = use("call", "x", body="twice")
    assert [*graph({"x": {}, "c": call}, inc, twice).op_names] == ["x", "c/p/add", "c/q/add"]


def test_a_call_in_a_frame_of_its_own() -> None:
    call = use("call", "x y", body="two", own_frame=True)
    trace = checked(graph({"x": {}, "y": {}, "c": call, "out": {"inputs": ["c"]}}, TWO), CPU, ReadyQueue())
    assert trace.makespan_ns == 40
    names = trace.job.graph.op_names
    frames = dict(
        zip((names[op] for op in trace.tasks["op"].tolist()), trace.tasks["op"].tolist(), strict=True)
    )
    assert {"c/a/enter", "c/b/enter", "c/f", "c/g", "c/exit0", "c/exit1"} <= set(frames)
    assert simulate(trace.job.graph, CPU, Sequential()).makespan_ns == 50  # x, y, f, g, out in turn


YES = function("yes", "a", {"f": {"inputs": ["a"]}, "constant": {}}, "f")
NO = function("no", "a", {"g": {"inputs": ["a"], "duration_ns": 100}}, "g")


@pytest.mark.parametrize(("outcome", "makespan"), [(True, 10 + 10 + 10), (False, 10 + 100 + 10)])
def test_a_functional_if(outcome: bool, makespan: int) -> None:
    ops = {
        "x": {},
        "p": {"attributes": {"outcome": outcome}},
        "c": use("if", "p x", **{"then": "yes", "else": "no"}),
        "out": {"inputs": ["c"]},
    }
    trace = simulate(graph(ops, YES, NO), CPU, ReadyQueue())
    assert trace.makespan_ns == makespan
    taken = {"c/then/f", "c/then/constant"} if outcome else {"c/else/g"}
    assert {n for n in live(trace) if n in ("c/then/f", "c/then/constant", "c/else/g")} == taken


@pytest.mark.parametrize("policy", [ReadyQueue, Sequential])
@pytest.mark.parametrize("outer", [True, False])
@pytest.mark.parametrize("inner", [True, False])
@pytest.mark.parametrize("first", ["p", "q"])
def test_a_condition_in_a_branch_is_decided_by_an_argument_of_it(
    outer: bool, inner: bool, first: str, policy: type[ReadyQueue | Sequential]
) -> None:
    """What decides inside comes through the switch of the condition around, and through one more.

    A program asks for it only inside, even if it was computed first.
    """
    nested = function("nested", "q a", {"n": use("if", "q q a", **{"then": "again", "else": "keep"})}, "n")
    again = function("again", "q a", {"m": use("if", "q a", **{"then": "yes", "else": "no"})}, "m")
    keep = function("keep", "q a", {"k": {"inputs": ["a"]}}, "k")
    says = {"p": {"attributes": {"outcome": outer}}, "q": {"attributes": {"outcome": inner}}}
    ops = {
        "x": {},
        first: says[first],
        **says,
        "c": use("if", "p q x", **{"then": "nested", "else": "keep"}),
    }
    trace = simulate(graph(ops, nested, again, keep, YES, NO), CPU, policy())
    leaf = ("c/then/n/then/m/then/f" if inner else "c/then/n/else/k") if outer else "c/else/k"
    made = {n for n in live(trace) if n.rpartition("/")[2] in ("f", "g", "k")}
    assert made == {leaf}
    trace.check()


def test_what_a_loop_passes_on_decides_nothing_by_itself() -> None:
    one = function("one", "a", {"f": {"inputs": ["a"]}}, "f")
    ops = {"x": {}, "w": use("call", "x", body="one", own_frame=True)}
    c = {"c": use("if", "w x", **{"then": "yes", "else": "no"})}
    with pytest.raises(GraphError, match="exit 'w/exit0' decides a branch and carries no outcome"):
        simulate(graph({**ops, **c}, one, YES, NO), CPU, ReadyQueue())
    told = {"p": {"kind": "identity", "inputs": ["w"], "attributes": {"outcome": False}}}
    c = {"c": use("if", "p x", **{"then": "yes", "else": "no"})}
    assert "c/else/g" in live(simulate(graph({**ops, **told, **c}, one, YES, NO), CPU, ReadyQueue()))


def test_an_if_waits_for_what_it_follows() -> None:
    ops = {
        "x": {}, "slow": {"duration_ns": 500}, "p": {"attributes": {"outcome": False}},
        "c": use("if", "p x", "slow", **{"then": "yes", "else": "no"}),
    }  # fmt: skip
    assert simulate(graph(ops, YES, NO), CPU, ReadyQueue()).makespan_ns == 600


STEP = function("step", "i w", {"add": {"inputs": ["i", "w"]}}, "add", "w")
TEST = function("test", "i w", {"less": {"inputs": ["i"], "duration_ns": 1}}, "less")


def test_what_follows_an_if_waits_for_all_of_its_branch_and_what_reads_a_result_does_not() -> None:
    """As for calls: nothing reads `log`, which ends at 60 ns; the results are there at 30 ns."""
    yes = function(
        "yes", "a", {"f": {"inputs": ["a"]}, "log": {"inputs": ["a"], "duration_ns": 40}}, "f", "a"
    )
    no = function("no", "a", {"f": {"inputs": ["a"]}}, "f", "a")
    ops = {"x": {}, "p": {"inputs": ["x"], "attributes": {"outcome": True}}}
    choice = {"c": use("if", "p x", **{"then": "yes", "else": "no"})}
    after = {"reads": {"inputs": ["c"]}, "other": {"inputs": ["c:1"]}, "follows": {"after": ["c"]}}
    trace = checked(graph({**ops, **choice, **after}, yes, no), CPU, ReadyQueue())
    starts = trace.to_pandas().set_index("op")["start_ns"]
    assert [starts[name] for name in after] == [30, 20, 60]


@pytest.mark.parametrize("outer", ["call", "if", "while"])
@pytest.mark.parametrize("inner", ["call", "if", "while"])
def test_what_follows_waits_for_ops_of_a_function_inside_whose_result_is_read(inner: str, outer: str) -> None:
    """Nothing reads `log`, which lasts for 50 ns; without a follower no op stands for the end."""

    def op(kind: str, body: str) -> dict[str, Any]:
        if kind == "if":
            return use("if", "p x", **{"then": body, "else": body})
        return use(kind, "x", body=body, **({"trips": 2} if kind == "while" else {}))

    p = {"inputs": ["x"], "attributes": {"outcome": True}}
    log = function("log", "x", {"y": {"inputs": ["x"]}, "log": {"inputs": ["x"], "duration_ns": 50}}, "y")
    both = function("both", "x", {"p": p, "in": op(inner, "log"), "z": {"inputs": ["in", "p"]}}, "z")
    plain = {"x": {}, "p": p, "out": op(outer, "both"), "reads": {"inputs": ["out"]}}
    machine = Machine((Device("cpu0", "cpu", workers=8),))
    trace = checked(graph({**plain, "next": {"after": ["out"]}}, log, both), machine, ReadyQueue())
    tasks = trace.to_pandas()
    starts = tasks.set_index("op")["start_ns"]
    logged = tasks[tasks["op"].str.endswith("/log")]["end_ns"].max()
    assert starts["reads"] < logged == starts["next"]
    assert not [name for name in graph(plain, log, both).op_names if "end" in name]


@pytest.mark.parametrize(("trips", "reads", "follows"), [(0, 11, 17), (1, 22, 61), (3, 44, 83)])
def test_what_follows_a_while_waits_for_all_of_its_iterations_and_what_reads_a_result_does_not(
    trips: int, reads: int, follows: int
) -> None:
    """Nothing reads `log`, in a branch of the body, nor `count` of the test."""
    yes = function("yes", "i", {"f": {"inputs": ["i"]}, "log": {"inputs": ["i"], "duration_ns": 50}}, "f")
    no = function("no", "i", {"g": {"inputs": ["i"]}}, "g")
    body = {"p": {"inputs": ["i"], "duration_ns": 0, "attributes": {"outcome": True}}}
    step = function("step", "i", body | {"c": use("if", "p i", **{"then": "yes", "else": "no"})}, "c")
    calls = {"less": {"inputs": ["i"], "duration_ns": 1}, "count": {"inputs": ["i"], "duration_ns": 7}}
    test = function("test", "i", calls, "less")
    loop = use("while", "x", body="step", cond="test", trips=trips)
    ops = {"x": {}, "c": loop, "reads": {"inputs": ["c"]}, "follows": {"after": ["c"]}}
    machine = Machine((Device("cpu0", "cpu", workers=8),))
    trace = checked(graph(ops, step, test, yes, no), machine, ReadyQueue())
    starts = trace.to_pandas().set_index("op")["start_ns"]
    assert (starts["reads"], starts["follows"]) == (reads, follows)


@pytest.mark.parametrize("trips", [0, 1, 5])
def test_a_functional_while_with_an_invariant_and_a_condition(trips: int) -> None:
    attributes = {"body": "step", "cond": "test", "trips": trips}
    loop = {"kind": "while", "inputs": ["x", "y"], "attributes": attributes}
    g = graph(
        {"x": {}, "y": {}, "c": loop, "out": {"inputs": ["c"]}, "same": {"inputs": ["c:1"]}}, STEP, TEST
    )
    for policy, ns in ((ReadyQueue(), 0), (Sequential(), 20)):
        trace = simulate(g, CPU, policy)
        assert trace.makespan_ns == 10 + (10 + 1) * trips + 1 + 10 + ns
        assert live(trace).count("c/body/add") == trips
    assert ("y", "same") in edges(g)
    assert g.attributes[g.index("c/y/enter")]["constant"] is True


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        ({"c": use("call", "x", body="tow")}, "unknown function 'tow'; did you mean"),
        ({"c": use("call", "x", body="two")}, "gives 1 input.* which has 2"),
        ({"c": use("if", "x x", then="yes")}, "needs attributes: {else: FUNCTION}"),
        ({"c": use("while", "x", body="yes", trips=None)}, "how often it runs"),
        ({"c": use("while", "x x", body="step")}, r"{trips: N}"),
        ({"c": use("call", "x", body="again")}, r"calls itself \(again -> again\)"),
        ({"c": use("if", "x x", then="ping", **{"else": "yes"})}, r"calls itself \(ping -> pong -> ping\)"),
        ({"c": use("call", "x", body="lost")}, "'z' is neither an input nor an op"),
        ({"c": use("while", "x", body="same", trips=1)}, "changes none"),
        (
            {"c": use("call", "x", body="no"), "d": {"inputs": ["c:3"]}},
            r"c has 1 result\(s\), counted from 0, not 3",
        ),
        ({"c": use("call", "", body="no") | {"inputs": [("c", 1)]}}, "'c' stands for other ops, which"),
        ({"c": use("call", "x", body="no") | {"after": [("c", 1)]}}, "'c' stands for other ops, which"),
    ],
)  # fmt: skip
def test_wrong_functions_are_explained(ops: dict[str, dict[str, Any]], message: str) -> None:
    again = function("again", "a", {"c": use("call", "a", body="again")}, "c")
    ping = function("ping", "a", {"c": use("call", "a", body="pong")}, "c")
    pong = function("pong", "a", {"c": use("call", "a", body="ping")}, "c")
    lost = function("lost", "a", {"f": {"inputs": ["a", "z"]}}, "f")
    same = function("same", "a", {"f": {"inputs": ["a"]}}, "a")
    with pytest.raises(GraphError, match=message):
        graph({"x": {}, **ops}, TWO, YES, NO, STEP, again, ping, pong, lost, same)


def test_a_graph_file_may_have_functions(tmp_path: Path) -> None:
    file = {
        "schema": "sim.graph/1",
        "name": "calls",
        "ops": [
            {"name": "x", "outputs": [8], "duration_ns": 0},
            {"name": "c", "kind": "while", "inputs": ["x"], "attributes": {"body": "f", "trips": 3}},
        ],
        "functions": [
            {
                "name": "f",
                "inputs": ["a"],
                "ops": [{"name": "h", "inputs": ["a"], "duration_ns": 7}],
                "results": ["h"],
            }
        ],
    }
    path = tmp_path / "calls.json"
    path.write_text(json.dumps(file))
    g = read_graph(path)
    assert "c/body/h" in g.op_names
    assert simulate(g, CPU, ReadyQueue()).makespan_ns == 21
    with pytest.raises(InputError, match="its functions have no 'per_sample'"):
        read_graph(path, batch=2)


def test_an_op_of_a_loop_that_reads_only_invariants_runs_once_an_iteration() -> None:
    """Also where a call hands the invariant on; without a control edge it would begin iterations for ever."""
    inc = function("inc", "a", {"add": {"inputs": ["a"]}}, "add")
    step = function("step", "row w", {"call": use("call", "w", body="inc")}, "call", "w")
    loop = use("while", "zero weight", body="step", trips=3, parallel_iterations=1)
    g = graph({"zero": {}, "weight": {}, "loop": loop, "end": {"inputs": ["loop"]}}, inc, step)
    trace = simulate(g, CPU, ReadyQueue())
    assert live(trace).count("loop/body/call/add") == 3
    assert trace.makespan_ns == 10 + 3 * 10 + 10


@pytest.mark.parametrize("policy", [ReadyQueue, Sequential])
def test_an_invariant_that_a_call_hands_on_or_a_loop_inside_takes_is_read_once_an_iteration(
    policy: type[Policy],
) -> None:
    """Each ran once more than the loop has iterations, after the last of them."""
    hand_on = function("hand_on", "a", {"f": {"inputs": ["a"]}}, "a")
    inc = function("inc", "a b", {"add": {"inputs": ["a"]}}, "add", "b")
    test = function("test", "a b", {"less": {"inputs": ["a"]}, "also": {"inputs": ["b"]}}, "less")
    own = function("own", "a b", {"h": {"inputs": ["b"]}}, "h")
    calls = {
        "step": {"inputs": ["x"]},
        "call": use("call", "w", body="hand_on"),
        "reads": {"inputs": ["call"]},
        "inner": use("while", "w x", body="inc", cond="test", trips=1),
        "frame": use("call", "x w", body="own", own_frame=True),
    }
    body = function("body", "x w", calls, "step", "w")
    loop = use("while", "zero weight", body="body", trips=2)
    g = graph({"zero": {}, "weight": {}, "loop": loop}, hand_on, inc, test, own, body)
    ran = Counter(live(simulate(g, CPU, policy())))
    once = ("step", "reads", "call/f", "inner/body/add", "frame/h")
    assert {name: ran[f"loop/body/{name}"] for name in once} == dict.fromkeys(once, 2)
    assert ran["loop/body/inner/test/less"] == ran["loop/body/inner/test/also"] == 2 * 2


def test_a_functional_op_hands_its_stream_to_the_ops_it_stands_for() -> None:
    """As with its device, ops of the function that name their own stream keep it."""
    own = {"kind": "op", "attributes": {"stream": 7}}
    step = function("step", "v", {"f": {"inputs": ["v"]}, "g": {"inputs": ["f"], **own}}, "g")
    ops = {"a": {}, "l": use("while", "a", body="step", trips=2, stream=20), "z": {"inputs": ["l"]}}
    g = graph(ops, step)
    streams = {g.op_names[op]: stream for op, stream in g.attribute("stream").items()}
    assert streams == {n: 7 if n == "l/body/g" else 20 for n in g.op_names if n.startswith("l/")}


def test_only_the_test_of_a_loop_is_launched_on_a_gpu() -> None:
    """Three tests and two bodies cost 5 us each, as a and z do; no other control flow does."""
    ops = {"a": {}, "l": use("while", "a", body="step", trips=2), "z": {"inputs": ["l"]}}
    g = graph(ops, function("step", "v", {"f": {"inputs": ["v"]}}, "f"))
    trace = checked(g, Machine((Device("gpu0", issue_ns=5000),)), ReadyQueue())
    assert trace.makespan_ns == 7 * 5000 + 4 * 10
