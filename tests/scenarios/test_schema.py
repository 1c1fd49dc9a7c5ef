"""What a scenario may say: every mistake is one line with its place, its path and the way out."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from scenario_texts import GOOD, changed, write

from devices.describe.field_types import TYPES, quantity_schema
from scenarios.file.yaml_read import read_yaml
from scenarios.run.load import load_scenario
from scenarios.run.prepare_job import job_of
from scenarios.shipped import shipped_scenarios
from sim.base.errors import InputError, ScenarioError
from sim.base.units import BYTES, DIMENSIONS, DURATION


def failure(folder: Path, text: str) -> str:
    """Load and build everything that stands in `text`, and return what is said of it."""
    path = write(folder, text)
    with pytest.raises(ScenarioError) as caught:
        job_of(load_scenario(path).case())
    return str(caught.value).replace(f"{folder}/", "")


ROOT = Path(__file__).resolve().parents[2]

EDGES = [
    (name, edge, schema[edge])
    for name, schema in ((name, type.schema) for name, type in TYPES.items())
    for edge in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
    if edge in schema
]


@pytest.mark.parametrize(("name", "edge", "number"), EDGES)
def test_a_number_is_read_up_to_the_edge_that_the_schema_shows(name: str, edge: str, number: int) -> None:
    inwards = 1 if "inimum" in edge else -1
    first = number + inwards if "exclusive" in edge else number
    assert TYPES[name].read(first) == first
    with pytest.raises(InputError):
        TYPES[name].read(first - inwards)


def test_a_good_one(tmp_path: Path) -> None:
    scenario = load_scenario(write(tmp_path))
    assert scenario.name == "good"
    assert [*scenario.graph.op_names] == ["a", "b", "c", "d"]
    assert [device.name for device in scenario.machine.devices] == ["cpu0"]
    assert scenario.content.iterations == 1


MISTAKES = read_yaml(Path(__file__).parents[1] / "wrong_scenarios.yaml").plain()


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake["new"] for mistake in MISTAKES])
def test_a_mistake_is_one_line_with_its_place(tmp_path: Path, mistake: dict[str, str]) -> None:
    assert failure(tmp_path, changed(mistake["old"], mistake["new"])) == mistake["says"]


def test_a_cycle_is_named(tmp_path: Path) -> None:
    said = failure(tmp_path, changed("{duration: 10us, output: 4MB}", "{duration: 10us, inputs: [d]}"))
    assert re.fullmatch(r"s\.yaml:7:8: workload\.ops\.a: .*cycle: a -> \w -> d -> a", said)


def test_an_empty_graph(tmp_path: Path) -> None:
    head, _, _ = GOOD.partition("  ops:")
    assert failure(tmp_path, f"{head}  ops: {{}}\n") == "s.yaml:6:8: workload.ops: is empty"


def test_an_op_no_device_can_run(tmp_path: Path) -> None:
    text = changed("{duration: 20us, inputs: [a]}", "{kind: matmul, flops: 1GFLOP, inputs: [a]}")
    says = (
        "op 'b' of kind 'matmul' can run on no device: cpu0 (cpu) has no cost model, and the op no duration"
    )
    assert failure(tmp_path, text) == f"s.yaml:8:8: workload.ops.b: {says}"


def test_several_mistakes_are_told_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = changed("makespan: 45us", "makespan: {at_mst: 45us}", changed("cores: 2", "core: 2"))
    lines = failure(tmp_path, text).splitlines()
    assert [line.partition(": ")[0] for line in lines] == ["s.yaml:4:23", "s.yaml:13:14"]


def test_many_mistakes_are_cut_short(tmp_path: Path) -> None:
    ops = "".join(f"    op{i}: {{duration: {i}}}\n" for i in range(1, 31))
    head, _, _ = GOOD.partition("    a:")
    lines = failure(tmp_path, head + ops).splitlines()
    assert len(lines) == 11
    assert lines[-1] == "(and 20 more)"


def test_a_machine_that_contradicts_itself_has_a_place(tmp_path: Path) -> None:
    text = changed("cores: 2", "cores: 2, streams: 3")
    assert failure(tmp_path, text).startswith(
        "s.yaml:4:42: machine.devices.cpu0.streams: only devices with streams"
    )


@pytest.mark.parametrize(
    ("machine", "says"),
    [
        ("{devices: {g: {kind: gpu, count: 2, sms: 2, use_sms: 3}}}", "1:63: machine.devices.g.use_sms: "),
        ("{devices: {g: {kind: gpu}}, links: [{from: g, to: h}]}", "1:60: machine.links.0.to: unknown"),
        ("{preset: dgx-h100, links: [{name: nvlink}, {from: gpu0, to: x}]}", "1:70: machine.links.1.to: unk"),
        (
            "{preset: dgx-h100, links: [{name: nvlink, efficiency: 7}]}",
            "1:64: machine.links.0.efficiency: 7 ",
        ),
        ("{devices: {g: {preset: h200}}}", "1:33: machine.devices.g.preset: unknown device preset"),
        ("{preset: dgx}", "1:19: machine.preset: unknown machine preset 'dgx'"),
        ("{devices: {g: {kind: gpu}}, hosts: {h: {devices: [x]}}}", "1:59: machine.hosts.h.devices: unknown"),
    ],
)
def test_a_mistake_in_a_machine_has_its_place(tmp_path: Path, machine: str, says: str) -> None:
    text = f"machine: {machine}\nworkload: {{ops: {{a: {{duration: 10us}}}}}}\n"
    assert failure(tmp_path, text).startswith(f"s.yaml:{says}")


def test_a_mistake_in_a_cost_model_stands_where_the_model_stands(tmp_path: Path) -> None:
    said = failure(tmp_path, changed("workload:", "cost: [roofline, {fixed: {matmul: 3}}]\nworkload:"))
    assert said.startswith("s.yaml:5:35: cost.1.fixed.matmul: 3 has no unit")


def test_absolute_paths_are_refused(tmp_path: Path) -> None:
    head, _, _ = GOOD.partition("  ops:")
    for path in ("/etc/passwd", "~/graph.json", "C:\\graph.json"):
        said = failure(tmp_path, f"{head}  graph: '{path}'\n")
        says = f"{path!r} is an absolute path; name it relative to the scenario (elsewhere: --allow-outside)"
        assert said == f"s.yaml:6:10: workload.graph: {says}"


def test_a_graph_file_that_is_not_there(tmp_path: Path) -> None:
    head, _, _ = GOOD.partition("  ops:")
    said = failure(tmp_path, f"{head}  graph: no.json\n")
    assert said == "s.yaml:6:10: workload.graph: no.json: no such file"


def test_code_is_loaded_only_when_allowed(tmp_path: Path) -> None:
    code = "from policies.issue.ready_queue import ReadyQueue\nclass Mine(ReadyQueue):\n    pass\n"
    (tmp_path / "my_policy_of_test_schema.py").write_text(code)
    text = changed("ready-queue", "'my_policy_of_test_schema:Mine'")
    assert failure(tmp_path, text).endswith(
        "is code, which a scenario may not load; allow it with --allow-code "
        "(pytest: --sim-allow-code, Python: allow_code=True)"
    )
    scenario = load_scenario(write(tmp_path, text), allow_code=True)
    assert type(scenario.case().decisions.policy).__name__ == "Mine"


# -- what ops may say -------------------------------------------------------------------------------


def test_everything_an_op_may_say(tmp_path: Path) -> None:
    text = """\
machine: {devices: {cpu0: {kind: cpu}, gpu0: {kind: gpu}}}
workload:
  inputs: {x: 1kB, y: {size: 2kB, device: cpu0}}
  parameters: {w: 3kB}
  ops:
    1: {kind: matmul, duration: {cpu: 90us, default: 30us}, inputs: [x, w], outputs: [1kB, 2kB], device: gpu}
    two:
      {flops: 0, inputs: [1, '1:1', {from: two, distance: 1}, y], after: [1], bytes_read: 5kB,
       bytes_written: 0, dtype: bf16, stage: 1, micro_batch: 2, phase: F,
       attributes: {m: 3, deep: [1, {a: b}]}}
"""
    graph = load_scenario(write(tmp_path, text)).graph
    assert [*graph.op_names] == ["1", "two"]
    assert graph.duration_ns.tolist() == [30_000, -1]
    assert graph.duration_by_kind["cpu"].tolist() == [90_000, -1]
    assert graph.tensor_nbytes.tolist() == [1000, 2000, 3000, 1000, 2000, 0]
    assert graph.inputs.row(1).tolist() == [3, 4, 5, 1]
    assert graph.input_distance.tolist() == [0, 0, 0, 0, 1, 0]
    assert graph.after.row(1).tolist() == [0]
    assert (graph.bytes_read.tolist(), graph.bytes_written.tolist()) == ([4000, 5000], [3000, 0])
    assert (graph.stage.tolist(), graph.micro_batch.tolist()) == ([-1, 1], [-1, 2])
    assert graph.attributes[1] == {"m": 3, "deep": [1, {"a": "b"}]}


def test_the_parts_of_a_split_op_share_its_work_exactly(tmp_path: Path) -> None:
    text = """\
machine: {devices: {cpu0: {kind: cpu, peak: 1GFLOP/s}}}
workload:
  ops:
    a: {duration: 10ns, flops: 7FLOP, outputs: [10B, 5B], split: 3}
    b: {duration: 1us, inputs: ['a:1', a/0], after: [a]}
"""
    graph = load_scenario(write(tmp_path, text)).graph
    assert [*graph.op_names] == ["a/0", "a/1", "a/2", "b"]
    assert graph.duration_ns.tolist() == [3, 3, 4, 1000]
    assert graph.flops.tolist() == [2, 2, 3, 0]
    assert graph.tensor_nbytes.tolist()[:6] == [3, 1, 3, 2, 4, 2]
    assert graph.inputs.row(3).tolist() == [1, 3, 5, 0]
    assert graph.after.row(3).tolist() == [0, 1, 2]


def test_a_cost_model_for_all_devices_also_reaches_those_of_a_preset(tmp_path: Path) -> None:
    text = "machine: dgx-h100\nworkload: {ops: {a: {kind: conv}}}\ncost: {fixed: 7us}\n"
    case = load_scenario(write(tmp_path, text)).case()
    assert job_of(case).duration_ns.tolist() == [7000]


# -- the JSON Schema --------------------------------------------------------------------------------


SCHEMA = json.loads((ROOT / "scenarios" / "scenario.schema.json").read_text(encoding="utf-8"))
"""The committed one; tests/cli/test_cli.py holds it to what `sim schema` prints."""


def test_every_key_in_the_json_schema_is_known_and_references_resolve() -> None:
    schema = SCHEMA
    assert set(schema["properties"]) >= {"machine", "workload", "policy", "expect", "compare", "seed"}
    assert set(schema["$defs"]["Op"]["properties"]) >= {"duration", "inputs", "device", "flops", "split"}
    assert schema["$defs"]["Device"]["additionalProperties"] is False
    for name in re.findall(r'"\$ref": "#/\$defs/([^"]+)"', json.dumps(schema)):
        assert name in schema["$defs"]


@pytest.mark.parametrize("dimension", DIMENSIONS, ids=lambda dimension: dimension.name)
def test_the_pattern_of_a_quantity_accepts_every_unit_and_no_bare_number(dimension: object) -> None:
    pattern = quantity_schema(dimension)["anyOf"][0]["pattern"]  # type: ignore[arg-type]
    for unit in dimension.units:  # type: ignore[attr-defined]
        assert re.search(pattern, f"1.5e3 {unit}")
    for wrong in ("10", "", "us", "10 parsecs"):
        assert not re.search(pattern, wrong)
    assert not re.search(quantity_schema(DURATION)["anyOf"][0]["pattern"], "10MB")
    assert not re.search(quantity_schema(BYTES)["anyOf"][0]["pattern"], "10us")


@pytest.mark.slow
def test_what_ships_keeps_the_schema_that_editors_use() -> None:
    """Names are offered, and nothing that runs is refused."""
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for one in shipped_scenarios():
        faults = [fault.message for fault in validator.iter_errors(read_yaml(one.path).plain())]
        assert faults == [], one.name
    assert not validator.is_valid({"workload": {"ops": {}}, "polcy": "in-order"})


def test_an_editor_knows_the_limits_of_numbers() -> None:
    iterations = SCHEMA["properties"]["iterations"]
    assert (iterations["minimum"], iterations["maximum"], iterations["type"]) == (1, 10**8, "integer")
    assert '"ge"' not in str(SCHEMA).replace("'", '"')


def test_an_editor_is_offered_names_and_the_options_of_each() -> None:
    kinds = SCHEMA["$defs"]
    assert "out-of-order" in kinds["PolicyFields"]["properties"]["name"]["anyOf"][0]["enum"]
    assert "zb-h1" in kinds["VariantFields"]["properties"]["name"]["anyOf"][0]["enum"]
    assert "h200-sxm" in kinds["Device"]["properties"]["preset"]["anyOf"][0]["enum"]
    meanings = {
        each["if"]["properties"]["name"]["const"]: each["then"]["properties"]
        for each in kinds["Placement"]["allOf"]
    }
    assert set(meanings["device-kind"]) == {"order", "soft"}
    assert meanings["device-kind"]["soft"]["description"].endswith("(bool; default false)")


def test_an_editor_tells_what_every_key_means() -> None:
    silent = [
        f"{kind}.{key}"
        for kind, of_kind in SCHEMA["$defs"].items()
        for key, value in of_kind.get("properties", {}).items()
        if not value.get("description") and "$ref" not in value
    ]
    assert silent == []
