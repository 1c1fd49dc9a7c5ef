"""Control flow from a scenario file to every kind of output; what is wrong with it, and where."""

from __future__ import annotations

import csv
import json
import warnings
from pathlib import Path

import pytest
from cli_runner import sim

from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario, read_scenario
from sim.base.errors import ScenarioError

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios" / "examples"


def test_a_loop_in_every_kind_of_output(tmp_path: Path) -> None:
    ops, trace, gantt = (tmp_path / name for name in ("ops.csv", "trace.json", "gantt.png"))
    done = sim(
        "run", SCENARIOS / "condition.yaml", "--json", "--ops", ops, "--trace", trace, "--gantt", gantt
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["makespan_ns"] == 73_000
    rows = list(csv.DictReader(ops.read_text().splitlines()))
    runs = [
        (row["op"], row["frame"])
        for row in rows
        if row["op"] in ("light", "heavy") and row["dead"] == "False"
    ]
    assert runs == [("light", "counting:0"), ("heavy", "counting:1"), ("light", "counting:2")]
    assert {row["frame"] for row in rows if row["op"] in ("zero", "after")} == {""}
    events = json.loads(trace.read_text())["traceEvents"]
    assert [e["dur"] for e in events if e.get("name") == "heavy" and e["ph"] == "X"] == [50]
    assert gantt.stat().st_size > 5000


def test_a_graph_without_control_flow_has_no_such_columns(tmp_path: Path) -> None:
    sim("run", SCENARIOS / "branches.yaml", "--ops", tmp_path / "ops.csv")
    assert not {"frame", "dead"} & set(next(csv.reader((tmp_path / "ops.csv").read_text().splitlines())))


@pytest.mark.parametrize("name", ["loop", "condition"])
@pytest.mark.parametrize("verb", ["check", "explain", "compare"])
def test_scenarios_with_control_flow_under_every_verb(name: str, verb: str) -> None:
    done = sim(verb, SCENARIOS / f"{name}.yaml")
    assert done.exit_code == 0, done.output


NOT_TAKEN = """\
machine: {devices: {cpu0: {kind: cpu, cores: 1}}}
workload:
  functions:
    slow: {inputs: [v], ops: {op: {duration: 50us, inputs: [v], output: 1MB}}, outputs: [op]}
    fast: {inputs: [v], ops: {op: {duration: 2us, inputs: [v], output: 1MB}}, outputs: [op]}
  ops:
    test: {duration: 1us, output: 1B, attributes: {outcome: false}}
    choice: {kind: if, inputs: [test, test], attributes: {then: slow, else: fast}}
policy: ready-queue
expect: {start.choice/else/op: 1us, order: [test, choice/else/op], tasks: 4}
"""
"""What ran: the test, a switch, the op of one branch, a merge."""


def test_nothing_holds_of_a_branch_that_was_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    for text, status, told in (
        (NOT_TAKEN, 0, "3 expected"),
        (NOT_TAKEN.replace("else/op: 1us", "then/op: {at_least: 0us}"), 2, "this run has no such result"),
        (NOT_TAKEN.replace("test, choice/else", "test, choice/then"), 1, "'choice/then/op' does not run"),
    ):
        path.write_text(text)
        done = sim("check", path)
        assert (done.exit_code, told in done.stdout) == (status, True), done.stdout


HEAD = "machine: {devices: {cpu0: {kind: cpu, cores: 1, cost: {fixed: 0ns}}}}\nworkload:\n  ops:\n"


@pytest.mark.parametrize(
    ("ops", "message"),
    [
        (
            "a: {}, b: {}, m: {kind: merge, inputs: [a, b]}",
            "workload.ops.m: merge 'm' has no switch before it",
        ),
        ("a: {}, x: {kind: exit, inputs: [a]}", "ops.x: exit 'x' is in no loop: no enter leads to it"),
        (
            "a: {}, e: {kind: enter, inputs: [a], attributes: {frame: f}}, c: {kind: loop_cond, inputs: [e]}",
            "workload.ops.e: loop 'f' is entered and has no exit",
        ),
        ("a: {}, e: {kind: enter, inputs: [a]}", "workload.ops.e: enter 'e' names no frame"),
        (
            "a: {}, e: {kind: enter, inputs: [a], attributes: {frame: f}}, "
            "m: {kind: merge, inputs: [e, {from: n, distance: 1}]}, n: {kind: next_iteration, inputs: [m]}, "
            "x: {kind: exit, inputs: [m]}",
            "workload.ops.e: loop 'f' has no loop_cond: it would never end",
        ),
        (
            "a: {}, p: {}, s: {kind: switch, inputs: [a, p], outputs: [0B, 0B]}, b: {inputs: [s]}",
            "workload.ops.p: op 'p' decides a branch and carries no outcome",
        ),
        (
            "a: {}, b: {inputs: [{from: b, distance: 1}]}, p: {attributes: {outcome: true}}, "
            "s: {kind: switch, inputs: [a, p], outputs: [0B, 0B]}",
            "workload.ops.b: the edge 'b' -> 'b' has distance 1; in a graph with control flow only",
        ),
    ],
)  # fmt: skip
def test_bad_control_flow_is_the_users_mistake(tmp_path: Path, ops: str, message: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(f"{HEAD}    {{{ops}}}\n")
    done = sim("run", path)
    assert done.exit_code == 2, done.output
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_a_loop_that_never_ends_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sim.readiness.tokens import TaggedTokenReadiness

    monkeypatch.setattr(TaggedTokenReadiness, "MAX_ITERATIONS", 50)
    path = tmp_path / "s.yaml"
    path.write_text(
        f"{HEAD}    zero: {{}}\n"
        "    loop: {kind: while, inputs: [zero], attributes: {body: f, trips: 60}}\n"
        "  functions: {f: {inputs: [i], ops: {g: {inputs: [i]}}, outputs: [g]}}\n"
    )
    done = sim("run", path)
    assert done.exit_code == 1
    assert (
        "loop 'loop' is to make 60 iterations, and no loop may make more than 50 iterations; " in done.stderr
    )


def test_messages_name_the_ops_of_the_file(tmp_path: Path) -> None:
    """The exit that a call with a frame of its own ends with is called as the call."""
    path = tmp_path / "s.yaml"
    path.write_text(
        f"{HEAD}    x: {{}}\n"
        "    inner: {kind: call, inputs: [x], attributes: {body: f, own_frame: true}}\n"
        "    c: {kind: if, inputs: [inner, x], attributes: {then: f, else: f}}\n"
        "  functions: {f: {inputs: [a], ops: {g: {inputs: [a]}}, outputs: [g]}}\n"
    )
    done = sim("run", path)
    assert done.exit_code == 2, done.output
    assert "workload.ops.inner: exit 'inner' decides a branch and carries no outcome; give" in done.stderr


@pytest.mark.parametrize("policy", ["in-order", "out-of-order"])
def test_a_loop_has_no_fixed_order(policy: str) -> None:
    done = sim("run", SCENARIOS / "loop.yaml", "--policy", policy)
    assert done.exit_code == 2
    assert (
        "has conditions or loops, so its ops have no fixed order; the policy sequential runs it"
        in done.stderr
    )


FUNCTIONS = """\
machine: {devices: {cpu0: {kind: cpu, cores: 1}}}
workload:
  functions:
    step: {inputs: [v], ops: {s: {duration: 1us, inputs: [v], output: 1B}}, outputs: [s]}
  ops:
    a: {duration: 1us, output: 1B, attributes: {outcome: true}}
    f: {FUNCTIONAL}
"""

MISNAMED = {
    "while": ("kind: while, inputs: [a]", "workload.ops.f: an op of kind while", "of body; give"),
    "if": (
        "kind: if, inputs: [a, a], attributes: {then: step}",
        "workload.ops.f: ",
        "then and else; give",
    ),
    "call": ("kind: call, inputs: [a], attributes: {}", "workload.ops.f: ", "of body; give"),
    "unknown": (
        "kind: call, inputs: [a], attributes: {body: stp}",
        "workload.ops.f.attributes.body: ",
        "did you mean 'step'",
    ),
    "list": (
        "kind: call, inputs: [a], attributes: {body: [step]}",
        "workload.ops.f.attributes.body: ",
        "needs attributes: {body: FUNCTION}",
    ),
    "inputs": (
        "kind: call, inputs: [a, a], attributes: {body: step}",
        "workload.ops.f.attributes.body: ",
        "gives 2 input(s)",
    ),
    "trips": (
        "kind: while, inputs: [a], attributes: {body: step, trips: 1.5}",
        "workload.ops.f.attributes.trips: ",
        "trips: 1.5 is no whole number",
    ),
    "cycle": ("inputs: [g]}\n    g: {inputs: [f]", "workload.ops.f: ", "has a cycle: f -> g -> f"),
}


@pytest.mark.filterwarnings("ignore:.*no op uses the function")
@pytest.mark.parametrize(("op", "place", "says"), MISNAMED.values(), ids=MISNAMED)
def test_what_is_wrong_with_functions_is_told_at_the_op(
    tmp_path: Path, op: str, place: str, says: str
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(FUNCTIONS.replace("FUNCTIONAL", op), encoding="utf-8")
    result = sim("run", path)
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("warning: ")]
    assert line.startswith(f"{path}:7:"), line
    assert f": {place}" in line
    assert says in line


@pytest.mark.parametrize(("called", "says"), [("again", "calls itself"), ("stp", "unknown function 'stp'")])
def test_what_is_wrong_inside_a_function_is_told_at_its_op(tmp_path: Path, called: str, says: str) -> None:
    path = tmp_path / "s.yaml"
    call = f"{{kind: call, inputs: [v], attributes: {{body: {called}}}}}"
    again = f"    again: {{inputs: [v], ops: {{g: {call}}}, outputs: [g]}}\n"
    text = FUNCTIONS.replace("  ops:\n", f"{again}  ops:\n")
    op = "kind: if, inputs: [a, a], attributes: {then: step, else: again}"
    path.write_text(text.replace("FUNCTIONAL", op), encoding="utf-8")
    (line,) = sim("run", path).stderr.splitlines()
    assert ":5:80: workload.functions.again.ops.g.attributes.body: op 'f/else/g': " in line
    assert says in line


INSIDE = [
    (
        "kind: while, inputs: [v], attributes: {body: step, trips: -1}",
        ".attributes.trips: ",
        "-1 is no whole number of at least 0",
    ),
    ("kind: while, inputs: [v], attributes: {body: step}", ": ", "needs attributes: {trips: N}"),
]


@pytest.mark.parametrize(("op", "place", "says"), INSIDE)
@pytest.mark.parametrize(
    "outer", ["while, inputs: [a], attributes: {trips: 2, body: ", "call, inputs: [a], attributes: {body: "]
)
def test_what_is_wrong_with_an_op_of_a_loops_body_is_told_there(
    tmp_path: Path, outer: str, op: str, place: str, says: str
) -> None:
    path = tmp_path / "s.yaml"
    middle = f"    middle: {{inputs: [v], ops: {{call: {{{op}}}}}, outputs: [call]}}\n"
    text = FUNCTIONS.replace("  ops:\n", f"{middle}  ops:\n")
    path.write_text(text.replace("FUNCTIONAL", f"kind: {outer}middle}}"), encoding="utf-8")
    line = sim("run", path).stderr.splitlines()[-1]
    assert line.startswith(f"{path}:5:"), line
    assert f": workload.functions.middle.ops.call{place}" in line
    assert says in line


def test_a_function_that_nobody_names_is_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(FUNCTIONS.replace("FUNCTIONAL", "duration: 1us, inputs: [a]"), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = sim("run", path)
    assert result.exit_code == 0
    assert result.stderr == f"warning: {path}:4:5: no op uses the function 'step'\n"


def test_an_unknown_device_in_a_function_that_nobody_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    text = FUNCTIONS.replace("FUNCTIONAL", "duration: 1us").replace("{s: {", "{s: {device: gpu7, ")
    path.write_text(text, encoding="utf-8")
    with (
        pytest.warns(UserWarning, match="no op uses the function 'step'"),
        pytest.raises(ScenarioError, match=r"s.yaml:4:43: .*\.step\.ops\.s\.device: unknown device 'gpu7'"),
    ):
        run_scenario(load_scenario(path))


@pytest.mark.parametrize(
    "kind",
    ["while, inputs: [a], attributes: {trips: 3, body: step}", "call, inputs: [a], attributes: {body: step}"],
)
def test_what_an_op_with_functions_becomes_is_on_its_device(tmp_path: Path, kind: str) -> None:
    """Without a device the control flow, and what names none, is on the GPU."""
    path = tmp_path / "s.yaml"
    path.write_text(
        f"""
        machine: {{devices: {{cpu0: {{kind: cpu, cores: 1}}, gpu0: {{kind: gpu}}}}}}
        workload:
          functions: {{step: {{inputs: [v], ops: {{s: {{duration: 1us, inputs: [v]}}}}, outputs: [s]}}}}
          ops:
            a: {{duration: 1us, device: cpu0}}
            f: {{kind: {kind}, device: cpu0}}
        policy: ready-queue
        """,
        encoding="utf-8",
    )
    trace = run_scenario(load_scenario(path), check=True).trace
    assert set(trace.job.device_of.tolist()) == {0}


def test_an_op_of_a_function_is_not_split(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(FUNCTIONS.replace("{s: {", "{s: {split: 2, "), encoding="utf-8")
    with pytest.raises(
        ScenarioError, match=r"s\.yaml:4:42: workload\.functions\.step\.ops\.s\.split: an op of"
    ):
        load_scenario(path)


def test_an_outcome_that_is_none_is_told_at_the_op(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    text = FUNCTIONS.replace("FUNCTIONAL", "kind: if, inputs: [a, a], attributes: {then: step, else: step}")
    path.write_text(text.replace("outcome: true", "outcome: maybe"), encoding="utf-8")
    assert sim("run", path).stderr.startswith(
        f"{path}:6:58: workload.ops.a.attributes.outcome: op 'a': outcome: 'maybe' is no outcome"
    )


def test_a_recorded_loop_is_told_by_the_scenario_how_often_it_runs(tmp_path: Path) -> None:
    """Nodes as TensorFlow writes them: i = 0; while i < n: i = i + 1. What predicates say is not recorded."""
    nodes = [
        ("zero", "Const", [], {}),
        (
            "enter",
            "Enter",
            ["zero:0"],
            {"frame_name": "while", "is_constant": False, "parallel_iterations": 10},
        ),
        ("merge", "Merge", ["enter:0", "next:0"], {}),
        ("less", "Less", ["merge:0", "merge:0"], {}),
        ("cond", "LoopCond", ["less:0"], {}),
        ("switch", "Switch", ["merge:0", "cond:0"], {}),
        ("add", "AddV2", ["switch:1", "switch:1"], {}),
        ("next", "NextIteration", ["add:0"], {}),
        ("exit", "Exit", ["switch:0"], {}),
    ]
    two = {"Switch", "Merge"}
    file = {
        "name": "recorded",
        "nodes": [
            {
                "name": name,
                "op": op,
                "inputs": inputs,
                "control": [],
                "shapes": [[]] * (2 if op in two else 1),
                "dtypes": ["float32"] * (2 if op in two else 1),
                "device": "/device:CPU:0",
                "attributes": attributes,
            }
            for name, op, inputs, attributes in nodes
        ],
    }
    (tmp_path / "graph.json").write_text(json.dumps(file))
    head = "machine: {devices: {cpu0: {kind: cpu, cost: {fixed: {add: 1us, default: 0us}}}}}\n"
    path = tmp_path / "s.yaml"
    path.write_text(f"{head}workload: {{graph: graph.json}}\n")
    untold = sim("run", path)
    assert untold.exit_code == 2
    assert "loop_cond 'cond' decides a branch and carries no outcome" in untold.stderr
    path.write_text(f"{head}workload: {{graph: graph.json, attributes: {{cond: {{trips: 7}}}}}}\n")
    told = sim("run", path, "--json")
    assert told.exit_code == 0, told.output
    assert json.loads(told.stdout)["makespan_ns"] == 7000
    path.write_text(f"{head}workload: {{graph: graph.json, attributes: {{con: {{trips: 7}}}}}}\n")
    wrong = sim("run", path)
    assert wrong.exit_code == 2
    assert "unknown op 'con'; did you mean 'cond'?" in wrong.stderr


def test_a_transfer_without_a_route_is_told_at_the_op_that_reads(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {devices: {gpu: {kind: gpu, count: 3}}, links: [{from: gpu0, to: gpu1}]}\n"
        "workload:\n  ops:\n    a: {duration: 1us, device: gpu0, output: 1MB}\n"
        "    b: {duration: 1us, device: gpu2, inputs: [a]}\n",
        encoding="utf-8",
    )
    result = sim("run", path)
    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"{path}:5:8: workload.ops.b: op 'b' reads 'a' from another device: no route of links leads from "
        "gpu0 to gpu2"
    )


@pytest.mark.parametrize("runtime", ["tensorflow", "tvm-vm"])
@pytest.mark.parametrize(
    ("attribute", "iterations", "says"),
    [
        ("outcome: [true, false]", 2, None),
        ("outcome: [true, false]", 3, "'p' has outcome with 2 entries, and runs for time 3"),
        ("outcome: [true]", 2, "'p' has outcome with 1 entry, and runs for time 2"),
    ],
)
def test_a_list_of_outcomes_that_is_too_short_is_refused(
    tmp_path: Path, runtime: str, attribute: str, iterations: int, says: str | None
) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(f"""\
machine: {{devices: {{cpu0: {{kind: cpu, cores: 1}}}}}}
workload:
  ops:
    p: {{duration: 1us, attributes: {{{attribute}}}}}
    f: {{kind: if, inputs: [p, p], attributes: {{then: yes, else: yes}}}}
  functions: {{"yes": {{inputs: [x], ops: {{a: {{inputs: [x], duration: 1us}}}}, outputs: [a]}}}}
policy: {{runtime: {runtime}}}
iterations: {iterations}
""")
    if says is None:
        run_scenario(load_scenario(file))
    else:
        with pytest.raises(ScenarioError, match=rf"s.yaml:4:\d+: .*{says}"):
            run_scenario(load_scenario(file))


@pytest.mark.parametrize(
    "policy", ["ready-queue", "{runtime: tensorflow}", "sequential", "{runtime: tvm-vm}"]
)
def test_a_variable_that_becomes_what_the_loop_does_not_change_waits_for_the_condition(
    tmp_path: Path, policy: str
) -> None:
    # Nothing but the condition keeps it from going on for ever: every iteration has `b` from its beginning.
    (tmp_path / "s.yaml").write_text(
        "machine: {devices: {cpu0: {kind: cpu, cores: 2}}}\n"
        "workload:\n"
        "  functions:\n"
        "    test: {inputs: [a, b], ops: {less: {duration: 3us, inputs: [a]}}, outputs: [less]}\n"
        "    same: {inputs: [v], ops: {look: {duration: 0us, inputs: [v]}}, outputs: [v]}\n"
        "    step:\n"
        "      {inputs: [a, b], ops: {work: {duration: 5us, inputs: [a]}, get: {kind: call, inputs: [b], "
        "attributes: {body: same}}}, outputs: [get, b]}\n"
        "  ops:\n"
        "    zero: {duration: 1us}\n"
        "    one: {duration: 1us}\n"
        "    loop: {kind: while, inputs: [zero, one], attributes: {cond: test, body: step, trips: 3, "
        "parallel_iterations: 1}}\n"
        f"policy: {policy}\n"
    )
    one_at_a_time = 2 if policy in ("sequential", "{runtime: tvm-vm}") else 1
    expected_us = one_at_a_time + 3 * (3 + 5) + 3
    assert run_scenario(load_scenario(tmp_path / "s.yaml")).trace.makespan_ns == 1000 * expected_us


NESTED = """
machine: {devices: {cpu0: {kind: cpu, cores: 1}}}
workload:
  functions:
    one: {inputs: [v], ops: {a: {duration: 1us, inputs: [v]}}, outputs: [a]}
    slow: {inputs: [v], ops: {a: {duration: 100us, inputs: [v]}}, outputs: [a]}
    loops:
      inputs: [v]
      ops: {l: {kind: while, inputs: [v], attributes: {body: one, trips: [4, 2]}}}
      outputs: [l]
    inner:
      inputs: [p, v]
      ops: {i: {kind: if, inputs: [p, v], attributes: {then: slow, else: loops}}}
      outputs: [i]
    skip: {inputs: [p, v], ops: {s: {duration: 10us, inputs: [v]}}, outputs: [s]}
    body:
      inputs: [v]
      ops:
        q: {duration: 0us, inputs: [v], attributes: {outcome: [false, true, false, true]}}
        p: {duration: 0us, inputs: [v], attributes: {outcome: [true, false, true, false]}}
        choice: {kind: if, inputs: [q, p, v], attributes: {then: inner, else: skip}}
      outputs: [choice]
  ops:
    start: {duration: 0us}
    outer: {kind: while, inputs: [start], attributes: {body: body, trips: 4}}
"""


@pytest.mark.parametrize("runtime", ["tensorflow", "tvm-vm"])
def test_a_list_has_an_entry_for_each_run_of_its_op_or_entry_of_its_loop_and_no_other(runtime: str) -> None:
    # `p` runs four times, and only the second and the fourth decide anything; the loop is entered twice.
    trace = run_scenario(read_scenario(f"{NESTED}policy: {{runtime: {runtime}}}")).trace
    assert trace.makespan_ns == 10_000 + 4_000 + 10_000 + 2_000
