"""Closed lists of words: kinds of op and device, data types, attributes. A near miss names the nearest."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from devices.describe.field_types import dtype_name
from devices.describe.fields import KINDS, WITH_FORMULA
from devices.machine import make_device, make_machine
from scenarios.importers import load_graph
from scenarios.ops.attributes import ATTRIBUTES, check_attributes
from scenarios.ops.inlining import FUNCTIONAL_KINDS
from scenarios.ops.op_costs import COSTS
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from scenarios.run.prepare_job import job_of
from sim import Device, GraphBuilder, Machine
from sim.base import plugins
from sim.base.errors import GraphError, InputError, ScenarioError, UnknownNameError
from sim.graph.views import FREE

GPU = "gpu0: {kind: gpu, peak: {fp32: 1TFLOP/s, bf16: 2TFLOP/s}, bandwidth: 1TB/s%s}"
OP = "a: {%s, flops: 1GFLOP, bytes_read: 1MB}"


def scenario(
    folder: Path, op: str = "kind: matmul", device: str = "", more: str = "", work: str = ""
) -> Path:
    file = folder / "s.yaml"
    machine = f"machine: {{devices: {{{GPU % device}}}}}"
    file.write_text(f"{machine}\nworkload: {{{work}ops: {{{OP % op}}}}}\npolicy: in-order\n{more}\n")
    return file


BY_KIND = "unknown kind of op "
WRONG: list[tuple[dict[str, str], str]] = [
    ({"op": "kind: matmull"}, f"s.yaml:2:28: .*a.kind: {BY_KIND}'matmull'; did you mean 'matmul'"),
    ({"op": "dtype: bf61"}, "workload.ops.a.dtype: unknown dtype 'bf61'; did you mean 'bf16'"),
    ({"device": ", dtype: fp23"}, "dtype: unknown dtype 'fp23'; did you mean 'fp32'"),
    ({"device": ", efficiency: {matmull: 50%}"}, f"efficiency.matmull: {BY_KIND}'matmull'; did you mean"),
    ({"device": ", issue_cost: {convv: 1us}"}, f"issue_cost.convv: {BY_KIND}'convv'; did you mean 'conv'"),
    ({"device": ", op_overhead: {matmul: 1us, relo: 1us}"}, f"op_overhead.relo: {BY_KIND}'relo'"),
    ({"device": ", kinds: [matmul, rellu]"}, f"kinds.1: {BY_KIND}'rellu'; did you mean 'relu'"),
    ({"device": ", cost: {fixed: {matmull: 1us}}"}, f"cost.fixed.matmull: {BY_KIND}'matmull'"),
    ({"more": "cost: {fixed: {default: 1us, matmull: 1us}}"}, f"cost.fixed.matmull: {BY_KIND}'matmull'"),
    ({"op": "duration: {gpuu: 1us}"}, "gpuu: unknown device or kind of device 'gpuu'; did you mean 'gpu'"),
    ({"op": "attributes: {strct: false}"}, "unknown attribute 'strct'; did you mean 'strict'"),
    ({"op": "attributes: {colour: red}"}, "attributes.colour: unknown attribute 'colour'"),
    ({"op": "attributes: {strict: 'no'}"}, "attributes.strict: .*'no' is neither true nor false"),
    ({"op": "attributes: {expensive: 'no'}"}, "attributes.expensive: .*'no' is neither true nor false"),
    ({"op": "attributes: {stream_id: '1'}"}, "attributes.stream_id: .*'1' is no whole number"),
    ({"op": "attributes: {outcome: maybe}"}, "attributes.outcome: .*'maybe' is no outcome"),
    ({"op": "attributes: {m: 3.5}"}, "attributes.m: 3.5 is no whole number"),
]


@pytest.mark.parametrize(("keys", "says"), WRONG, ids=[str(keys) for keys, _ in WRONG])
def test_a_word_that_nobody_knows_is_refused_where_it_stands(
    tmp_path: Path, keys: dict[str, str], says: str
) -> None:
    with pytest.raises(ScenarioError, match=says):
        job_of(load_scenario(scenario(tmp_path, **keys)).case())


def test_a_workload_names_kinds_of_its_own(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"op": "kind: tokenize", "device": ", efficiency: {tokenize: 50%}"}
    with pytest.raises(ScenarioError, match="unknown kind of op 'tokenize'"):
        job_of(load_scenario(scenario(tmp_path, **keys)).case())
    trace = run_scenario(load_scenario(scenario(tmp_path, **keys, work="kinds: [tokenize], "))).trace
    assert trace.makespan_ns == 2_000_000


def test_a_kind_and_a_data_type_can_be_registered(tmp_path: Path) -> None:
    plugins.register("sim.kinds", "tokenize", None)
    plugins.register("sim.dtypes", "posit8", 8)
    try:
        file = scenario(tmp_path, "kind: tokenize, dtype: posit8")
        with pytest.warns(UserWarning, match="1 op in posit8 computes at the rate of fp32"):
            job_of(load_scenario(file).case())
    finally:
        plugins.unregister("sim.kinds", "tokenize")
        plugins.unregister("sim.dtypes", "posit8")


def test_a_graph_file_is_held_to_the_same_words(tmp_path: Path) -> None:
    graph = tmp_path / "g.json"
    file = tmp_path / "s.yaml"
    file.write_text("machine: {devices: {gpu0: {kind: gpu}}}\nworkload: {graph: g.json}\npolicy: in-order\n")
    for fact, says in (
        ('"dtype": "bf61"', ": workload: op 'a': unknown dtype 'bf61'; did you mean 'bf16'"),
        ('"attributes": {"strict": "no"}', "op 'a': strict: 'no' is neither true nor false"),
        (
            '"duration_by_kind_ns": {"gpuu": 5}',
            "op 'a': unknown device or kind of device 'gpuu'; did you mean",
        ),
    ):
        graph.write_text(
            f'{{"schema": "sim.graph/1", "name": "g", "ops": [{{"name": "b", "duration_ns": 5}}, '
            f'{{"name": "a", "duration_ns": 5, {fact}}}]}}'
        )
        with pytest.raises(InputError, match=says):
            job_of(load_scenario(file).case())


def test_axes_of_a_table_are_attributes(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(
        '{"schema": "sim.cost_table/1", "device": "toy", "unit": "ns", "kind": "copy", "provenance": {}, '
        '"axes": [{"name": "pages"}], "rows": [[1, 100], [2, 200]]}'
    )
    file = scenario(tmp_path, "kind: copy, attributes: {pages: 2}", ", cost: {table: t.json}")
    text = file.read_text().replace("peak: {fp32: 1TFLOP/s, bf16: 2TFLOP/s}, bandwidth: 1TB/s, ", "")
    file.write_text(text)
    assert run_scenario(load_scenario(file)).trace.makespan_ns == 200
    file.write_text(text.replace("pages: 2", "pagez: 2"))
    with pytest.raises(ScenarioError, match="unknown attribute 'pagez'; did you mean 'pages'"):
        job_of(load_scenario(file).case())


@pytest.mark.parametrize("op", ["a: {}", "a: {kind: matmul}", "a: {dtype: fp32, attributes: {m: 8}}"])
@pytest.mark.parametrize("device", ["kind: gpu", "kind: gpu, peak: 1TFLOP/s", "preset: h100-sxm"])
def test_an_op_of_which_nothing_is_said_is_refused(tmp_path: Path, op: str, device: str) -> None:
    file = tmp_path / "s.yaml"
    text = f"machine: {{devices: {{g: {{{device}}}}}}}\nworkload: {{ops: {{OPS}}}}\npolicy: in-order\n"
    file.write_text(text.replace("OPS", op))
    with pytest.raises(ScenarioError, match=r"s.yaml:2:21: .*op 'a' .*no duration"):
        job_of(load_scenario(file).case())


@pytest.mark.parametrize("said", ["duration: 0ns", "kind: reshape", "output: 1kB", "flops: 1FLOP"])
def test_an_op_of_which_something_is_said_is_not(tmp_path: Path, said: str) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(
        f"machine: {{preset: dgx-h100}}\nworkload: {{ops: {{a: {{{said}}}}}}}\npolicy: in-order\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of plain rooflines
        job_of(load_scenario(file).case())


def test_spellings_of_frameworks_are_known() -> None:
    assert [dtype_name(name) for name in ("torch.float8_e4m3fn", "FLOAT", "qint8")] == ["fp8", "fp32", "int8"]
    with pytest.raises(UnknownNameError, match="did you mean 'bf16'"):
        dtype_name("bf61")
    assert {"matmul", "while", "all_reduce", "op"} < KINDS
    assert set(COSTS) == WITH_FORMULA
    assert {*FUNCTIONAL_KINDS, "all_gather", "all_reduce", "reduce_scatter", "alltoall", *FREE} < KINDS
    assert {"strict", "outcome", "m"} < set(ATTRIBUTES)


@pytest.mark.parametrize(
    ("description", "says"),
    [
        (
            {"efficiency": {"matmull": 0.5}},
            "efficiency.matmull: unknown kind of op 'matmull'; did you mean 'matmul'",
        ),
        ({"issue_cost": {"default": "1us", "convv": "2us"}}, "issue_cost.convv: .*did you mean 'conv'"),
        ({"op_overhead": {"relo": "1us"}}, "op_overhead.relo: .*did you mean 'relu'"),
        ({"kinds": ["matmul", "rellu"]}, r"kinds\[1\]: .*did you mean 'relu'"),
        ({"cost": {"fixed": {"matmull": "1us"}}}, "cost.fixed.matmull: .*did you mean 'matmul'"),
        ({"cost": ["roofline", {"fixed": {"matmull": "1us"}}]}, r"cost\[1\].fixed.matmull: "),
        ({"cost": {"roofline": {"efficiency": {"matmull": 1}}}}, "cost.roofline.efficiency.matmull: "),
    ],
    ids=str,
)
def test_a_device_made_in_python_is_held_to_the_same_kinds(description: dict[str, Any], says: str) -> None:
    spec = {"kind": "gpu", "peak": "1TFLOP/s", **description}
    with pytest.raises(UnknownNameError, match=f"gpu0.{says}"):
        make_device("gpu0", spec)
    with pytest.raises(UnknownNameError, match=f"machine.devices.gpu0.{says}"):
        make_machine({"devices": {"gpu0": spec}})


def test_a_device_made_in_python_may_have_kinds_of_its_own() -> None:
    spec = {"kind": "gpu", "issue_cost": {"tokenize": "1us"}}
    with pytest.raises(UnknownNameError, match="unknown kind of op 'tokenize'"):
        make_device("gpu0", spec)
    assert make_device("gpu0", spec, kinds=["tokenize"]).issue_ns_by_kind == {"tokenize": 1000}
    assert make_machine({"devices": {"gpu0": spec}}, kinds=["tokenize"]).devices[0].issue_ns_by_kind
    plugins.register("sim.kinds", "tokenize", None)
    try:
        assert make_device("gpu0", spec).issue_ns_by_kind == {"tokenize": 1000}
    finally:
        plugins.unregister("sim.kinds", "tokenize")


def test_ops_of_sessions_are_held_to_the_same_words(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    text = (
        "machine: {devices: {cpu0: {kind: cpu}}}\nworkload:\n  sessions:\n"
        "    a: {workload: {WORK}}\n    b: {workload: {ops: {f: {duration: 1us}}}}\n"
    )
    for work, says in (
        (
            "ops: {f: {kind: matmull, duration: 1us}}",
            "s.yaml:4:36: .*a.workload.ops.f.kind: .*did you mean 'matmul'",
        ),
        ("ops: {f: {kind: tokenize, duration: 1us}}", "unknown kind of op 'tokenize'"),
        (
            "functions: {g: {ops: {f: {kind: matmull, duration: 1us}}, outputs: [f]}}, "
            "ops: {c: {kind: call, attributes: {body: g}}}",
            "a.workload.functions.g.ops.f.kind: .*did you mean 'matmul'",
        ),
    ):
        file.write_text(text.replace("WORK", work))
        with pytest.raises(ScenarioError, match=says):
            job_of(load_scenario(file).case())
    file.write_text(text.replace("WORK", "kinds: [tokenize], ops: {f: {kind: tokenize, duration: 1us}}"))
    assert run_scenario(load_scenario(file)).trace.makespan_ns == 2000
    graph = '{"schema": "sim.graph/1", "name": "g", "ops": [{"name": "f", "duration_ns": 5}]}'
    (tmp_path / "g.json").write_text(graph)
    file.write_text(text.replace("WORK", "graph: g.json, attributes: {f: {strct: false}}"))
    with pytest.raises(ScenarioError, match="unknown attribute 'strct'; did you mean 'strict'"):
        job_of(load_scenario(file).case())


GRAPH = (
    "machine: {devices: {cpu0: {kind: cpu, cores: 2MORE}}}\nworkload: {graph: g.json}\npolicy: ready-queue\n"
)


def of_graph(folder: Path, attributes: str, more: str = "", time: str = '"duration_ns": 5, ') -> Path:
    """Write a scenario and the graph file that it names, whose second op has attributes."""
    (folder / "g.json").write_text(
        '{"schema": "sim.graph/1", "name": "g", "ops": [{"name": "a", "duration_ns": 5}, '
        f'{{"name": "b", "kind": "copy", {time}"attributes": {{{attributes}}}}}]}}'
    )
    file = folder / "s.yaml"
    file.write_text(GRAPH.replace("MORE", more))
    return file


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("strct", "strict"),
        ("corse", "cores"),
        ("trip", "trips"),
        ("outcomes", "outcome"),
        ("Strict", "strict"),
    ],
)
def test_a_slip_of_the_pen_in_a_graph_file_is_told(tmp_path: Path, name: str, meant: str) -> None:
    file = of_graph(tmp_path, f'"{name}": 1')
    with pytest.warns(UserWarning, match=f"^op 'b' has an attribute '{name}', .*; did you mean '{meant}'"):
        job_of(load_scenario(file).case())


@pytest.mark.parametrize(
    "name", ["kernel_shape", "repeats", "stride", "strides", "axis", "full_name", "operator"]
)
def test_attributes_of_operators_pass(tmp_path: Path, name: str) -> None:
    job_of(load_scenario(of_graph(tmp_path, f'"{name}": 1')).case())  # warnings are errors here


def test_an_axis_of_a_cost_table_passes(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(
        '{"schema": "sim.cost_table/1", "device": "toy", "unit": "ns", "kind": "copy", "provenance": {}, '
        '"axes": [{"name": "granules"}], "rows": [[1, 100], [2, 200]]}'
    )
    table = of_graph(tmp_path, '"granules": 1', ", cost: {table: t.json}", time="")
    job_of(load_scenario(table).case())
    with pytest.warns(UserWarning, match="did you mean 'granule'"):
        job_of(load_scenario(of_graph(tmp_path, '"granules": 1')).case())


def test_operators_of_onnx_are_not_taken_for_ours() -> None:
    onnx = pytest.importorskip("onnx", reason="needs the extra onnx")
    schemas = onnx.defs.get_all_schemas_with_history()
    names = {
        name for schema in schemas for name in (*schema.attributes, *(each.name for each in schema.inputs))
    }
    b = GraphBuilder("every")
    b.op("a", attributes=dict.fromkeys(sorted(names - set(ATTRIBUTES)), 1))
    check_attributes(b.build(), Machine((Device("gpu0"),)))


def test_attributes_are_read_where_a_graph_is_made(tmp_path: Path) -> None:
    b = GraphBuilder("typed")
    b.op("a", attributes={"granule": "4kB", "colocate": ("x", "y"), "priority": 0.5, "mine": "4kB"})
    typed = {"granule": 4000, "colocate": ["x", "y"], "priority": 0.5, "mine": "4kB"}
    assert b.build().attributes == {0: typed}
    for name, wrong in {
        "strict": "no",
        "cores": True,
        "trips": [],
        "sm_fraction": 0,
        "resident": [""],
    }.items():
        b = GraphBuilder("wrong")
        b.op("a", attributes={name: wrong})
        with pytest.raises(GraphError, match=f"^op 'a': {name}: ") as caught:
            b.build()
        assert (caught.value.op, caught.value.attribute) == ("a", name)
        of_graph(tmp_path, "")
        with pytest.raises(GraphError, match=f"op 'b': {name}: "):
            load_graph(tmp_path / "g.json", attributes={"b": {name: wrong}})
