"""PyTorch's execution graphs beside a profiler's trace."""

from __future__ import annotations

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim

from scenarios.importers import load_graph
from scenarios.importers.execution_graph import known_cost, read_operators
from scenarios.importers.kineto.kineto import load as load_kineto
from scenarios.recorded.setup import run_recorded
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim.base.errors import InputError
from sim.graph.graph import Graph

# -- small execution graphs -----------------------------------------------------------------------


def tensor(storage: int, *shape: int, dtype: str = "float", size: int = 4, device: str = "cuda:0") -> Any:
    """Value, shape and type of a tensor."""
    elements = 1
    for n in shape:
        elements *= n
    return [100 + storage, storage, 0, elements, size, device], [*shape], f"Tensor({dtype})"


def listed(*tensors: Any) -> Any:
    values, shapes, kinds = zip(*tensors, strict=True)
    return [*values], [*shapes], f"GenericList[{','.join(kinds)}]"


def plain(value: Any, kind: str = "Int") -> Any:
    return value, [], kind


def call(id: int, name: str, parent: int = 2, inputs: Any = (), outputs: Any = (), schema: str = "s", tid: int = 1) -> Any:  # fmt: skip  # noqa: E501
    return {"id": id, "name": name, "parent": parent, "rf": id * 10, "schema": schema, "tid": tid} | {
        "inputs": [[*part] for part in zip(*inputs, strict=True)] or [[], [], []],
        "outputs": [[*part] for part in zip(*outputs, strict=True)] or [[], [], []],
    }


def new(node: Any) -> Any:
    """As PyTorch writes a node since 2.3."""
    attributes = {"rf_id": node["rf"], "tid": node["tid"], "op_schema": node["schema"]}
    sides = {
        side: dict(zip(("values", "shapes", "types"), node[side], strict=True))
        for side in ("inputs", "outputs")
    }
    attrs = [{"name": k, "type": "", "value": v} for k, v in attributes.items()]
    return {"id": node["id"], "name": node["name"], "ctrl_deps": node["parent"], **sides, "attrs": attrs}


def old(node: Any) -> Any:
    """As PyTorch wrote it before."""
    sides = {}
    for side in ("input", "output"):
        sides |= dict(zip((f"{side}s", f"{side}_shapes", f"{side}_types"), node[f"{side}s"], strict=True))
    own = {"rf_id": node["rf"], "tid": node["tid"], "op_schema": node["schema"]}
    return {"id": node["id"], "name": node["name"], "parent": node["parent"], **own, **sides}


def write(folder: Path, *nodes: Any, layout: Any = new, name: str = "et.json") -> Path:
    root = [call(1, "process", 1, schema=""), call(2, "thread", 1, schema="")]
    path = folder / name
    schema = "1.0.1" if layout is old else "1.1.0-chakra.0.0.4"
    path.write_text(
        json.dumps({"schema": schema, "pid": 1, "nodes": [layout(each) for each in [*root, *nodes]]})
    )
    return path


X, W, Y, Z = tensor(1, 8, 16), tensor(2, 16, 32), tensor(3, 8, 32), tensor(4, 8, 32)
PROGRAM = [
    call(3, "aten::linear", inputs=[X, W, plain("<None>", "None")], outputs=[Y]),
    call(4, "aten::mm", 3, inputs=[X, W], outputs=[Y]),
    call(5, "aten::add_", inputs=[Y, Z, plain(1)], outputs=[Y], schema="aten::add_(Tensor(a!) a, Tensor b)"),
    call(6, "aten::my_op", inputs=[listed(Y, Z)], schema="my::op(Tensor(a!)[] self) -> ()"),
    call(7, "aten::relu", inputs=[Y], outputs=[Z]),
]  # fmt: skip
"""y = x w; y += z; my_op(y, z) in place; z = relu(y)."""


def trace(folder: Path, *launches: tuple[str, int, int], by: str = "Record function id", **more: Any) -> Path:
    """A profiler's trace: each operator (name, number) launches so many kernels, of 10 us, 20 us, ..."""
    events: list[Any] = []
    at, free, correlation = 0, 0, 0
    for name, number, kernels in launches:
        args = {by: number}
        outer = {"ph": "X", "pid": 1, "tid": 1, "ts": at, "cat": "cpu_op", "name": name, "args": args}
        events.append(outer)
        for k in range(kernels):
            correlation += 1
            of = {"ph": "X", "args": {"correlation": correlation, "device": 0, "stream": 7}}
            launch = {"cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 1}
            events.append(of | launch | {"ts": at + 1, "dur": 2})
            free = max(free, at + 3)
            events.append(of | {"cat": "kernel", "name": f"k{correlation}", "ts": free, "dur": 10 * (k + 1)})
            free += 10 * (k + 1)
            at += 4
        at += 5
        outer["dur"] = at - 1 - outer["ts"]
    path = folder / "trace.json"
    path.write_text(json.dumps({"traceEvents": events, **more}))
    return path


LAUNCHES = [("aten::mm", 40, 2), ("aten::add_", 50, 1), ("aten::my_op", 60, 1), ("aten::relu", 70, 1)]


def kernels(graph: Graph) -> list[int]:
    return [op for op in range(len(graph)) if "stream" in graph.attributes.get(op, {})]


# -- beside a trace -------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [new, old])
@pytest.mark.parametrize("by", ["Record function id", "External id"])
def test_kernels_get_tensors_shapes_and_costs(tmp_path: Path, layout: Any, by: str) -> None:
    et, file = write(tmp_path, *PROGRAM, layout=layout), trace(tmp_path, *LAUNCHES, by=by)
    graph, alone = load_kineto(file, execution_graph=et), load_kineto(file)
    found = kernels(graph)
    flops = 2 * 8 * 16 * 32
    assert graph.flops[found].tolist() == [flops // 3, flops - flops // 3, 256, 0, 256]
    assert int(graph.bytes_read[found[:2]].sum()) == 4 * (8 * 16 + 16 * 32)
    names = [graph.op_names[op] for op in found]
    reads = [[graph.tensor_names()[t] for t in graph.inputs.lists()[op]] for op in found]
    assert reads == [
        [],
        [names[0]],  # the kernels of an operator are one after another
        [names[1]],
        [names[2]],
        [names[3]],  # my_op wrote y in place
    ]
    own = graph.attributes[found[0]]
    assert (own["operator"], own["input_shapes"], own["output_shapes"]) == (
        "aten::mm",
        [[8, 16], [16, 32]],
        [[8, 32]],
    )
    sizes = [[graph.attributes[op].get(key) for key in "mnk"] for op in found[:2]]
    assert (sizes, graph.dtypes) == ([[None] * 3, [8, 32, 16]], ("fp32",))  # the longest is the product
    assert run_recorded(graph).makespan_ns == run_recorded(alone).makespan_ns
    assert graph.duration_ns.tolist() == alone.duration_ns.tolist()


@pytest.mark.parametrize(
    "other", [{}, {"pid": "Spans", "tid": "PyTorch Profiler"}, {"pid": 1, "tid": 1, "dur": -5}]
)
def test_operators_that_call_nothing_or_never_end_do_no_harm(tmp_path: Path, other: Any) -> None:
    et, file = write(tmp_path, *PROGRAM), trace(tmp_path, *LAUNCHES)
    expected = load_kineto(file, execution_graph=et)
    data = json.loads(file.read_text())
    named = {"ph": "X", "cat": "user_annotation", "name": "PyTorch Profiler (0)", "ts": 0, "dur": 1}
    data["traceEvents"].append(named | other)
    file.write_text(json.dumps(data))
    assert load_kineto(file, execution_graph=et).flops.tolist() == expected.flops.tolist()


def test_operators_of_another_recording_are_told_by_name(tmp_path: Path) -> None:
    """Two steps in the trace, one in the graph: each step is a call of its own."""
    et, file = (
        write(tmp_path, *PROGRAM),
        trace(tmp_path, *((n, 7 + 10 * k, c) for k, (n, _, c) in enumerate(2 * LAUNCHES))),
    )
    with pytest.warns(UserWarning, match="operators are told by thread, name and order"):
        graph = load_kineto(file, execution_graph=et)
    found = kernels(graph)
    assert graph.flops[found].tolist() == 2 * [2 * 8 * 16 * 32 // 3, 5462, 256, 0, 256]
    read = graph.inputs.lists()[found[6]]
    assert [graph.tensor_names()[t] for t in read] == [graph.op_names[found[5]]]


def test_a_graph_of_another_program_is_refused(tmp_path: Path) -> None:
    et = write(tmp_path, *PROGRAM)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(
            InputError, match=r"is of another program than .*: it has the operators of 0 of 1"
        ):
            load_kineto(trace(tmp_path, ("aten::sort", 1, 1)), execution_graph=et)
    with pytest.raises(InputError, match=r"1 trace\(s\) and 2 execution graph\(s\)"):
        load_kineto(trace(tmp_path, *LAUNCHES), execution_graph=[et, et])


def test_what_is_not_in_the_graph_is_counted(tmp_path: Path) -> None:
    et, file = write(tmp_path, *PROGRAM), trace(tmp_path, *LAUNCHES, ("aten::sort", 900, 1))
    with pytest.warns(UserWarning, match="has the operators of 5 of 6 GPU tasks; others get no tensors"):
        load_kineto(file, execution_graph=et)


def test_a_scenario_names_both(tmp_path: Path) -> None:
    write(tmp_path, *PROGRAM)
    trace(tmp_path, *LAUNCHES)
    scenario = tmp_path / "s.yaml"
    scenario.write_text(
        "name: both\nmachine: {devices: {gpu: {kind: gpu, streams: 1}, cpu: {kind: cpu, cores: 1}}}\n"
        "workload: {kineto: trace.json, execution_graph: et.json}\n"
        "policy: {name: ready-queue, synchronisation: issue, streams: recorded}\n"
    )
    graph = run_scenario(load_scenario(scenario)).trace.job.graph
    assert int(graph.flops.sum()) == 2 * 8 * 16 * 32 + 512
    scenario.write_text(scenario.read_text().replace("et.json", "no.json"))
    done = sim("run", scenario)
    assert (done.exit_code, "no.json: no such file" in done.stderr) == (2, True)


def test_a_collective_works_in_place(tmp_path: Path) -> None:
    """What it reads it writes; so the kernel that reads it next waits, and its size is known."""
    et = write(
        tmp_path,
        call(3, "aten::mm", inputs=[X, W], outputs=[Y]),
        call(4, "c10d::allreduce_", inputs=[listed(Y)]),
        call(5, "aten::relu", inputs=[Y], outputs=[Z]),
    )
    file = trace(tmp_path, ("aten::mm", 30, 1), ("c10d::allreduce_", 40, 1), ("aten::relu", 50, 1))
    file.write_text(file.read_text().replace('"k2"', '"ncclDevKernel_AllReduce"'))
    graph = load_kineto(file, execution_graph=et)
    found = kernels(graph)
    assert graph.bytes_read[found[1]] == graph.bytes_written[found[1]] == 4 * 8 * 32
    assert [graph.tensor_names()[t] for t in graph.inputs.lists()[found[2]]] == [graph.op_names[found[1]]]


# -- what operators cost --------------------------------------------------------------------------


def test_convolutions_backward_are_two_products(tmp_path: Path) -> None:
    grad, image, kernel = tensor(1, 2, 4, 8, 8), tensor(2, 2, 3, 8, 8), tensor(3, 4, 3, 3, 3)
    rest = [plain(value) for value in ([4], [1, 1], [1, 1], [1, 1], False, [0, 0], 1)]
    for mask, flops in (([True, True, False], 2), ([False, True, False], 1)):
        inputs = [grad, image, kernel, *rest, (mask, [[], [], []], "GenericList[Bool,Bool,Bool]")]
        path = write(tmp_path, call(3, "aten::convolution_backward", inputs=inputs, outputs=[image]))
        costed = known_cost(read_operators(path)[-1])
        assert costed is not None
        assert costed.cost.flops == flops * 2 * (2 * 4 * 8 * 8) * (3 * 3 * 3)


def test_a_convolution_has_its_sizes(tmp_path: Path) -> None:
    image, kernel, made = tensor(1, 2, 3, 8, 8), tensor(2, 4, 3, 3, 3), tensor(3, 2, 4, 8, 8)
    rest = [plain(value) for value in ([4], [1, 1], [1, 1], [1, 1], 1)]
    path = write(tmp_path, call(3, "aten::conv2d", inputs=[image, kernel, *rest], outputs=[made]))
    costed = known_cost(read_operators(path)[-1])
    assert costed is not None
    assert (costed.attributes["in_channels"], costed.attributes["out_channels"]) == (3, 4)


def test_by_itself_it_is_no_graph(tmp_path: Path) -> None:
    """It has no times; the message says what takes it."""
    path = write(tmp_path, *PROGRAM)
    with pytest.raises(InputError, match=r"no times; give it beside the trace: .*: et\.json"):
        load_graph(path)
    done = sim("import", path, "--out", tmp_path / "g.json", "--format", "execution-graph")
    assert done.exit_code == 2
    assert "execution-graph is gone: give it beside its trace" in done.stderr


# -- wrong files ----------------------------------------------------------------------------------


def broken(change: Any) -> str:
    data = copy.deepcopy({"schema": "1.1.0-chakra.0.0.4", "nodes": [new(each) for each in PROGRAM]})
    change(data)
    return json.dumps(data)


def first(data: Any, **values: Any) -> None:
    data["nodes"][0].update(values)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "not an execution graph"),
        ("[1, 2", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"schema": "1.0.1", "nodes": []}', "not an execution graph"),
        ('{"schema": "1.0.1", "nodes": [7]}', r"nodes\[0\] \(None\)"),
        (broken(lambda d: first(d, cat="kernel")), "was linked with a trace; give the trace"),
        (broken(lambda d: first(d, id=-3)), r"nodes\[0\] \(aten::linear\): '-3' is no number"),
        (broken(lambda d: first(d, ctrl_deps=99)), r"nodes\[0\].*: is called by node 99, which began later"),
        (broken(lambda d: first(d, inputs={"values": 1, "shapes": [], "types": []})), "'1' is no list"),
        (broken(lambda d: first(d, inputs={})), r"nodes\[0\].*: no 'values'"),
        (broken(lambda d: d["nodes"].append(d["nodes"][0])), "two nodes have one id"),
        (broken(lambda d: d["nodes"][0]["inputs"]["values"][0].insert(3, 2**60)), "too many values"),
        (broken(lambda d: d["nodes"][0]["inputs"]["values"].insert(0, [1, 2, 0, 2**60, 4, "x"])), "is no nu"),
        (broken(lambda d: d["nodes"][0]["inputs"]["shapes"].pop()), "argument"),
    ],
)  # fmt: skip
def test_wrong_files_get_one_line(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "et.json"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        read_operators(path)
