"""If and Loop of ONNX models: what they become, what they take to the nanosecond, and what is refused.

On the CPU here a flop takes 1 ns and nothing else takes time, so that every duration is a count by hand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policies.issue.ready_queue import ReadyQueue
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.issue.virtual_machine import Sequential
from scenarios.importers import convert, load_graph
from scenarios.importers.onnx_model import import_onnx
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim import Device, Graph, Machine, simulate
from sim.base.errors import InputError
from sim.machine.device import CostModel

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
MATMUL = 2 * 4 * 4 * 4  # flop of a product of two 4 x 4 matrices
RELU = 4 * 4
POLICIES = [ReadyQueue(), TensorFlowExecutor()]

Info = tuple[str, int, list[Any] | None]


class OneFlopPerNanosecond(CostModel):
    """A cost model for counting by hand."""

    def durations_ns(self, graph: Graph, device: Device) -> Any:
        return graph.flops


CPU = Machine((Device("cpu0", "cpu", workers=2, cost=OneFlopPerNanosecond()),))


def node(op: str, reads: str, writes: str, **attributes: Any) -> Any:
    """A node called after what it writes; ``-`` is an input that is left out."""
    inputs = ["" if name == "-" else name for name in reads.split()]
    return helper.make_node(op, inputs, writes.split(), name=writes.split()[0], **attributes)


def scalar(name: str, value: bool | int) -> Any:
    return onnx.numpy_helper.from_array(np.array(value), name)


def graph(nodes: list[Any], inputs: list[Info], outputs: list[Info], *weights: Any) -> Any:
    return helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*info) for info in inputs],
        [helper.make_tensor_value_info(*info) for info in outputs],
        weights,
    )


def model(nodes: list[Any], inputs: list[Info], outputs: list[Info], *weights: Any) -> Any:
    opsets = [helper.make_opsetid("", 20)]
    return helper.make_model(graph(nodes, inputs, outputs, *weights), opset_imports=opsets)


def matrix(name: str) -> Any:
    return onnx.numpy_helper.from_array(np.zeros((4, 4), np.float32), name)


X: Info = ("x", FLOAT, [4, 4])
C: Info = ("c", BOOL, [])


def out(name: str, *shape: int) -> Info:
    return (name, FLOAT, list(shape or (4, 4)))


def branches(reads: str = "x") -> dict[str, Any]:
    """A branch of two products with a captured weight, and one of a relu."""
    then = [node("MatMul", f"{reads} w", "a"), node("MatMul", "a w", "y")]
    return {
        "then_branch": graph(then, [], [out("y")]),
        "else_branch": graph([node("Relu", reads, "y")], [], [out("y")]),
    }


def conditional(*weights: Any, inputs: tuple[Info, ...] = (C,)) -> Any:
    nodes = [node("If", "c", "z", **branches()), node("Relu", "z", "r")]
    return model(nodes, [X, *inputs], [out("r")], matrix("w"), *weights)


def loop(body: Any, reads: str, *weights: Any, writes: str = "last", inputs: tuple[Info, ...] = ()) -> Any:
    nodes = [node("Loop", reads, writes, body=body), node("Relu", "last", "r")]
    return model(nodes, [X, *inputs], [out("r")], matrix("w"), *weights)


def step(nodes: list[Any], *more: Info, goes_on: str = "go", weights: tuple[Any, ...] = ()) -> Any:
    """A body that carries v, and returns v2."""
    inputs: list[Info] = [("i", INT64, []), ("go", BOOL, []), out("v")]
    return graph(nodes, inputs, [(goes_on, BOOL, []), out("v2"), *more], *weights)


def products() -> list[Any]:
    return [node("MatMul", "v w", "m"), node("Relu", "m", "v2")]


def makespan(made: Graph, policy: Any) -> int:
    return int(simulate(made, CPU, policy).makespan_ns)


# -- If -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=["ready-queue", "tensorflow-executor"])
@pytest.mark.parametrize(("outcome", "branch"), [(True, 2 * MATMUL), (False, RELU)])
def test_a_condition_takes_the_time_of_the_branch_that_is_told(
    policy: Any, outcome: bool, branch: int
) -> None:
    made = import_onnx(conditional(), attributes={"z": {"outcome": outcome}})
    assert {"z/then/a", "z/then/y", "z/else/y", "z/merge0", "r"} <= set(made.op_names)
    assert makespan(made, policy) == branch + RELU


@pytest.mark.parametrize(("constant", "branch"), [(True, 2 * MATMUL), (False, RELU)])
def test_a_constant_condition_leaves_only_its_branch(constant: bool, branch: int) -> None:
    made = import_onnx(conditional(scalar("c", constant), inputs=()))
    assert [*made.op_names] == (["z/a", "z/y", "r"] if constant else ["z/y", "r"])
    assert makespan(made, ReadyQueue()) == branch + RELU
    with pytest.raises(InputError, match="'z': its condition is the constant"):
        import_onnx(
            conditional(scalar("c", constant), inputs=()), attributes={"z": {"outcome": not constant}}
        )


def test_the_outcome_may_stand_at_the_op_that_computes_the_condition() -> None:
    nodes = [
        node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "c"),
        node("If", "c", "z", **branches()),
    ]
    zero = onnx.numpy_helper.from_array(np.float32(0), "zero")
    made = import_onnx(model(nodes, [X], [out("z")], matrix("w"), zero), attributes={"c": {"outcome": False}})
    assert "z/predicate" not in made.op_names
    assert makespan(made, ReadyQueue()) == 16 + 1 + RELU  # sum, comparison, branch


def test_an_outcome_that_is_needed_is_asked_for() -> None:
    with pytest.raises(
        InputError, match=r"node 'z' \(If\) .* attributes: \{z: \{outcome: true\}\}; its outcome may also"
    ):
        import_onnx(conditional())
    drawn = import_onnx(conditional(), attributes={"z": {"outcome": {"probability": 0.5}}})  # as it says
    assert makespan(drawn, ReadyQueue()) in (2 * MATMUL + RELU, 2 * RELU)
    with pytest.raises(InputError, match="a node If has no 'trips' to be told, but outcome"):
        import_onnx(conditional(), attributes={"z": {"trips": 1}})
    with pytest.raises(InputError, match="unknown op 'zz'"):
        import_onnx(conditional(), attributes={"z": {"outcome": True}, "zz": {"outcome": True}})


def test_branches_of_different_shapes_need_one_outcome_for_ever() -> None:
    flat = {
        "then_branch": graph([node("Flatten", "x", "y", axis=0)], [], [out("y", 1, 16)]),
        "else_branch": graph([node("Relu", "x", "y")], [], [out("y")]),
    }
    made = model([node("If", "c", "z", **flat), node("Relu", "z", "r")], [X, C], [("r", FLOAT, None)])
    with pytest.raises(InputError, match=r"returns 'z' as 1x16 from one branch and 4x4 from the other"):
        import_onnx(made, attributes={"z": {"outcome": {"probability": 0.5}}})
    assert makespan(import_onnx(made, attributes={"z": {"outcome": True}}), ReadyQueue()) == RELU


def test_subgraphs_without_the_outputs_of_their_node_are_told() -> None:
    nothing = {**branches(), "else_branch": graph([], [], [])}
    made = model([node("If", "c", "z", **nothing)], [X, C], [out("z")], matrix("w"))
    with pytest.raises(InputError, match=r"'z' \(If\) has 1 output, and its else_branch returns 0"):
        import_onnx(made)
    told = r"its body has 3 inputs and 2 outputs, and should have 3 and 3: those of the node"
    with pytest.raises(InputError, match=told):
        import_onnx(
            loop(step(products()), "trips go x", scalar("trips", 2), scalar("go", True), writes="last y")
        )


# -- Loop -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=["ready-queue", "tensorflow-executor"])
def test_a_loop_runs_as_often_as_its_constant_count_says(policy: Any) -> None:
    made = import_onnx(loop(step(products()), "n go0 x", scalar("n", 5), scalar("go0", True)))
    assert makespan(made, policy) == 5 * (MATMUL + RELU) + RELU
    assert [name for name in made.external_names if name == "w"] == ["w"]  # captured, declared once
    assert int(made.flops[made.index("last/body/m")]) == MATMUL


def test_a_count_from_the_shapes_of_the_model_is_known_too() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s first", "n", axis=0),
        node("Loop", "n - x", "last", body=step(products())),
    ]
    made = import_onnx(model(nodes, [X], [out("last")], matrix("w"), scalar("first", 0)))
    assert makespan(made, ReadyQueue()) == 4 * (MATMUL + RELU)


def test_a_condition_on_the_number_of_axes_or_elements_is_known() -> None:
    ask = [node("Shape", "x", "s"), node("Size", "s", "axes"), node("Equal", "axes two", "flat")]
    ask += [node("Size", "x", "all"), node("Less", "all two", "few")]
    ifs = [node("If", "flat", "y", **branches()), node("If", "few", "z", **branches("y"))]
    found = import_onnx(model([*ask, *ifs], [X], [out("z")], matrix("w"), scalar("two", 2)))
    assert [found.kind(op) for op in range(len(found))] == ["matmul", "matmul", "relu"]


def test_a_body_that_stops_at_once_and_a_loop_that_never_begins() -> None:
    stop = step(products(), goes_on="stop", weights=(scalar("stop", False),))
    assert makespan(import_onnx(loop(stop, "n - x", scalar("n", 5))), ReadyQueue()) == MATMUL + 2 * RELU
    never = import_onnx(loop(step(products()), "n no x", scalar("n", 5), scalar("no", False)))
    assert makespan(never, ReadyQueue()) == RELU


def test_a_computed_condition_needs_trips_and_holds_the_next_iteration_back() -> None:
    test = [*products(), node("ReduceSum", "m", "s", keepdims=0), node("Greater", "s zero", "c2")]
    zero = onnx.numpy_helper.from_array(np.float32(0), "zero")
    made = loop(step(test, goes_on="c2"), "n - x", zero, scalar("n", 9))
    with pytest.raises(InputError, match=r"'last' \(Loop\) goes on as long as .* \{trips: 8\}\}, at most 9"):
        import_onnx(made)
    with pytest.raises(InputError, match="trips 10 is more than the model's own count, 9"):
        import_onnx(made, attributes={"last": {"trips": 10}})
    run = import_onnx(made, attributes={"last": {"trips": 3, "parallel_iterations": 4}})
    # Relu (16) runs beside sum and comparison (17), which decide whether there is another iteration.
    assert makespan(run, ReadyQueue()) == 3 * (MATMUL + 17) + RELU


@pytest.mark.parametrize(("parallel", "expected"), [(1, 4 * MATMUL), (5, 2 * MATMUL)])
def test_iterations_run_one_by_one_unless_told_otherwise(parallel: int, expected: int) -> None:
    """Of independent iterations two workers run two at a time."""
    body = step(
        [node("MatMul", "x w", "y"), node("Identity", "v", "v2")],
        out("y"),
    )
    made = loop(body, "n - x", scalar("n", 4), writes="last rows")
    told = {"last": {"parallel_iterations": parallel}}
    assert makespan(import_onnx(made, attributes=told), ReadyQueue()) == expected + RELU


def test_what_is_collected_is_stacked_after_the_loop() -> None:
    body = step([*products(), node("Relu", "m", "row")], out("row"))
    nodes = [node("Loop", "n - x", "last rows", body=body), node("Relu", "rows", "r")]
    made = import_onnx(model(nodes, [X], [out("r", 3, 4, 4), out("last")], matrix("w"), scalar("n", 3)))
    stack = made.index("last/stack0")
    assert made.kind(stack) == "concat"
    assert int(made.bytes_read[stack]) == int(made.bytes_written[stack]) == 3 * 4 * 4 * 4
    assert int(made.flops[made.index("r")]) == 3 * 4 * 4
    assert makespan(made, ReadyQueue()) == 3 * (MATMUL + RELU) + 3 * RELU  # two relus side by side


def test_what_an_iteration_number_feeds_and_weights_of_the_body() -> None:
    body = step(
        [node("Cast", "i", "f", to=FLOAT), node("MatMul", "v own", "m"), node("Add", "m f", "v2")],
        weights=(matrix("own"),),
    )
    made = import_onnx(loop(body, "n - x", scalar("n", 2)))
    assert "last/body/own" in made.external_names
    assert makespan(made, ReadyQueue()) == 2 * (MATMUL + 16) + RELU


def test_a_count_that_nobody_knows_is_asked_for() -> None:
    n: Info = ("n", INT64, [])
    made = loop(step(products()), "n - x", inputs=(n,))
    with pytest.raises(InputError, match=r"'last' \(Loop\) has a trip count that is computed in the run"):
        import_onnx(made)
    assert makespan(import_onnx(made, attributes={"last": {"trips": 2}}), ReadyQueue()) == 2 * 144 + RELU
    with pytest.raises(InputError, match="trips: -1 is no whole number of at least 0"):
        import_onnx(made, attributes={"last": {"trips": -1}})
    with pytest.raises(InputError, match="has no trip count, and its condition is always true"):
        import_onnx(loop(step(products()), "- - x"))


def test_a_loop_whose_state_grows_is_refused() -> None:
    body = step([node("Concat", "v v", "v2", axis=0)])
    with pytest.raises(InputError, match=r"'v', which is 4x4 in one iteration and 8x4 in the next"):
        import_onnx(loop(body, "n - x", scalar("n", 2)))


def test_scan_is_refused_with_the_way_out() -> None:
    body = graph([node("Relu", "v", "v2")], [("v", FLOAT, [4])], [("v2", FLOAT, [4])])
    made = model([node("Scan", "x", "y", body=body, num_scan_inputs=1)], [X], [out("y")])
    with pytest.raises(InputError, match="node 'y' is a Scan, which is not imported; export it as a Loop"):
        import_onnx(made)


# -- both -----------------------------------------------------------------------------------------


def nested() -> Any:
    """A loop whose body takes one of two branches, on a condition from outside of both."""
    body = step([node("If", "c", "z", **branches("v")), node("Relu", "z", "v2")])
    return loop(body, "n - x", scalar("n", 3), inputs=(C,))


@pytest.mark.parametrize("policy", POLICIES, ids=["ready-queue", "tensorflow-executor"])
def test_an_if_inside_a_loop_goes_its_own_way_in_each_iteration(policy: Any) -> None:
    made = import_onnx(nested(), attributes={"last/body/z": {"outcome": [True, False, True]}})
    assert makespan(made, policy) == 2 * (2 * MATMUL) + RELU + 3 * RELU + RELU
    with pytest.raises(InputError, match=r"attributes: \{last/body/z: \{outcome: true\}\}"):
        import_onnx(nested())


def test_a_linear_runtime_makes_a_program_with_jumps_of_it() -> None:
    made = import_onnx(nested(), attributes={"last/body/z": {"outcome": [True, False, True]}})
    assert makespan(made, Sequential()) == 4 * MATMUL + 5 * RELU


def test_the_batch_reaches_into_subgraphs() -> None:
    told = {"last/body/z": {"outcome": True}}
    eight = import_onnx(nested(), batch=8, attributes=told)
    four = import_onnx(nested(), attributes=told)
    for op in ("last/body/z/then/y", "last/body/z/else/y", "last/body/v2", "r"):
        assert eight.flops[eight.index(op)] == 2 * four.flops[four.index(op)]


def test_what_reads_only_invariants_runs_once_an_iteration_in_nested_loops_too() -> None:
    """Neither the inner loop's start nor its body reads what changes in the outer one."""
    inner = graph(
        [node("MatMul", "x w", "p"), node("Relu", "u", "u2")],
        [("j", INT64, []), ("go_in", BOOL, []), out("u")],
        [("go_in", BOOL, []), out("u2"), out("p")],
    )
    nodes = [node("Loop", "k - x", "q ps", body=inner), node("Identity", "q", "v2")]
    weights = (scalar("n", 3), scalar("k", 2))
    made = import_onnx(loop(step(nodes), "n - x", *weights))
    assert makespan(made, ReadyQueue()) == 3 * 2 * MATMUL + RELU


def test_a_graph_file_of_it_can_be_read_at_any_batch(tmp_path: Path) -> None:
    onnx.save(nested(), tmp_path / "nested.onnx")
    told = "{last/body/z: {outcome: [true, false, false]}}"
    done = convert(tmp_path / "nested.onnx", tmp_path / "nested.json", attributes=told)
    assert done.fixed_because is None
    eight = load_graph(tmp_path / "nested.json", batch=8)
    assert makespan(eight, ReadyQueue()) == 2 * (2 * MATMUL + 2 * RELU + 3 * RELU + RELU)
    for text in ("decode=8", "{a: 1}", "{", "[]", "0"):
        with pytest.raises(InputError, match=r"attributes: should be \{OP: \{KEY: VALUE\}\}"):
            import_onnx(nested(), attributes=text)


def test_names_that_a_loop_and_the_graph_around_share() -> None:
    """A node outside is called like the loop's variable, and one inside like what it reads from outside."""
    before = helper.make_node("Relu", ["x"], ["h"], name="v")
    inner = helper.make_node("MatMul", ["v", "h"], ["v2"], name="h")
    nodes = [before, node("Loop", "n - x", "last", body=step([inner]))]
    made = import_onnx(model(nodes, [X], [out("last")], scalar("n", 2)))
    assert makespan(made, ReadyQueue()) == RELU + 2 * MATMUL


def test_a_scenario_tells_where_control_flow_goes(tmp_path: Path) -> None:
    onnx.save(nested(), tmp_path / "nested.onnx")
    text = """
name: nested
machine: {devices: {cpu0: {kind: cpu, peak: 1GFLOP/s}}}
workload: {onnx: nested.onnx, attributes: {last/body/z: {outcome: false}}}
policy: {name: ready-queue}
"""
    (tmp_path / "s.yaml").write_text(text)
    run = run_scenario(load_scenario(tmp_path / "s.yaml"))
    assert run.trace.makespan_ns == 3 * 2 * RELU + RELU
    (tmp_path / "s.yaml").write_text(text.replace(", attributes: {last/body/z: {outcome: false}}", ""))
    with pytest.raises(InputError, match=r"attributes: \{last/body/z: \{outcome: true\}\}"):
        run_scenario(load_scenario(tmp_path / "s.yaml"))
