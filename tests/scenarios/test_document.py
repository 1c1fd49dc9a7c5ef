"""Scenario documents: what ``--set`` and ``set:`` change, and what they refuse."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenario_texts import GOOD, changed, write

from scenarios.file.document import Document
from scenarios.file.yaml_read import read_yaml_text
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario, read_scenario
from sim.base.errors import GraphError, InfeasibleError, InputError, ScenarioError, SimError


def document(text: str) -> Document:
    return Document(read_yaml_text(text, "s.yaml"), Path("s.yaml"))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["a.b=2"], {"a": {"b": 2, "l": [1, {"x": 2}], "c.d": {"e": 3}}}),
        (["a.l.1.x=[3, 4]"], {"a": {"b": 1, "l": [1, {"x": [3, 4]}], "c.d": {"e": 3}}}),
        (["a.l.0=10us"], {"a": {"b": 1, "l": ["10us", {"x": 2}], "c.d": {"e": 3}}}),
        (["a.l={y: 1}", "a.l.y=2"], {"a": {"b": 1, "l": {"y": 2}, "c.d": {"e": 3}}}),
        (["a.c.d.e=4"], {"a": {"b": 1, "l": [1, {"x": 2}], "c.d": {"e": 4}}}),
        (["new=1e3"], {"a": {"b": 1, "l": [1, {"x": 2}], "c.d": {"e": 3}}, "new": 1000.0}),
        (["m.d.k=4"], {"a": {"b": 1, "l": [1, {"x": 2}], "c.d": {"e": 3}}, "m": {"d": {"k": 4}}}),
        (
            ["calibration=h100", "calibration.network.b=4"],
            {
                "a": {"b": 1, "l": [1, {"x": 2}], "c.d": {"e": 3}},
                "calibration": {"from": "h100", "network": {"b": 4}},
            },
        ),
        (
            ["new.train={model: m}", "new.train.model.layers=4"],
            {
                "a": {"b": 1, "l": [1, {"x": 2}], "c.d": {"e": 3}},
                "new": {"train": {"model": {"name": "m", "layers": 4}}},
            },
        ),
        (["a.b="], {"a": {"b": None, "l": [1, {"x": 2}], "c.d": {"e": 3}}}),
        (["a.b= a=b "], {"a": {"b": "a=b", "l": [1, {"x": 2}], "c.d": {"e": 3}}}),
    ],
)
def test_settings(settings: list[str], expected: object) -> None:
    start = document("a: {b: 1, l: [1, {x: 2}], c.d: {e: 3}}")
    before = start.root.plain()
    assert start.with_settings(settings).root.plain() == expected
    assert start.root.plain() == before


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("a.b", "--set a.b: should be KEY=VALUE, as in --set workload.batch=32"),
        ("=3", "--set =3: should be KEY=VALUE, as in --set workload.batch=32"),
        ("a.=3", "--set a.=3: should be KEY=VALUE, as in --set workload.batch=32"),
        ("list.1.aa.x=3", "--set list.1.aa.x=3: there is no key 'aa' under 'list.1'; did you mean 'a'?"),
        ("list.1.b.x=3", "--set list.1.b.x=3: there is no key 'b' under 'list.1'; known: a (a new one is "
         "given whole: list.1.b={...})"),
        ("policy.name.x=3", "--set policy.name.x=3: policy.name is 'in-order' and has no key 'x'"),
        ("list.7=3", "--set list.7=3: list is a list of 2; '7' should be an index from 0"),
        ("list.x.y=3", "--set list.x.y=3: list is a list of 2; 'x' should be an index from 0"),
        ("list=[1", "--set list=[1: not YAML: while parsing a flow sequence, did not find expected "
         "',' or ']'"),
        ("list=!!py/x 1", "--set list=!!py/x 1: the tag '!!py/x' is not accepted: a scenario is plain data"),
    ],
)  # fmt: skip
def test_settings_that_lead_nowhere(setting: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        document("policy: {name: in-order}\nlist: [1, {a: 2}]\n").with_settings([setting])
    assert str(caught.value) == message


def test_a_wrong_value_names_the_setting_it_came_from(tmp_path: Path) -> None:
    path = write(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, sets=["machine.devices.cpu0.cors=3"])
    assert str(caught.value) == (
        "--set machine.devices.cpu0.cors=3: machine.devices.cpu0.cors: no such key; did you mean 'cores'?"
    )
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, sets=["polcy.x=3"])
    assert str(caught.value) == "--set polcy.x=3: polcy: no such key; did you mean 'policy'?"
    with pytest.raises(ScenarioError) as caught:
        load_scenario(path, sets=["workload.ops.a.duration=3"])
    assert str(caught.value).startswith(
        "--set workload.ops.a.duration=3: workload.ops.a.duration: 3 has no unit"
    )


def test_what_the_file_expects_holds_for_what_the_file_says(tmp_path: Path) -> None:
    path = write(tmp_path, changed("makespan: 45us", "makespan: 45us\n  start.d: 40us"))
    sets = ["workload.ops={a: {duration: 5us}}"]
    changed_run = run_scenario(load_scenario(path, sets=sets))
    assert changed_run.outcomes == ()
    told = "expect: is not checked, as it is about the file without settings"
    assert changed_run.sections[-1].lines == [told]
    own = run_scenario(load_scenario(path, sets=[*sets, "expect.makespan=5us"]))
    assert [(outcome.result, outcome.passed) for outcome in own.outcomes] == [("makespan", True)]
    assert own.sections[-1].lines == ["all as expected"]


def test_an_alias_is_changed_in_one_place_only() -> None:
    start = document("a: &x {k: 1}\nb: *x\n")
    assert start.with_settings(["b.k=2"]).root.plain() == {"a": {"k": 1}, "b": {"k": 2}}


def test_settings_of_an_entry_have_the_places_of_the_file(tmp_path: Path) -> None:
    text = GOOD + "compare:\n  - {label: x, set: {machine.devices.cpu0.cores: many}}\n"
    with pytest.raises(ScenarioError) as caught:
        load_scenario(write(tmp_path, text)).case("x")
    assert str(caught.value) == (
        f"{tmp_path}/s.yaml:15:50: machine.devices.cpu0.cores: 'many' is not a count; "
        "accepted: a whole number without a unit"
    )


@given(
    st.dictionaries(st.text("abc", min_size=1), st.dictionaries(st.text("xyz", min_size=1), st.integers()))
)
def test_what_is_set_is_found_there_and_nothing_else_changes(tree: dict[str, dict[str, int]]) -> None:
    tree = {"a": {"x": 0}, **tree}
    start = document(str(tree))
    for outer, inner in tree.items():
        for key in inner:
            expected = {**tree, outer: {**inner, key: -7}}
            assert start.with_settings([f"{outer}.{key}=-7"]).root.plain() == expected


def test_a_scenario_is_a_mapping(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"s.yaml:1:1: a scenario is a mapping: 'name: "):
        load_scenario(write(tmp_path, "- a\n- b\n"))


def test_two_entries_of_one_name(tmp_path: Path) -> None:
    text = changed("expect:", "compare: [in-order, {name: in-order}]\nexpect:")
    with pytest.raises(ScenarioError) as caught:
        load_scenario(write(tmp_path, text))
    assert str(caught.value) == (
        f"{tmp_path}/s.yaml:12:21: compare.1: two entries are called 'in-order'; give one of them a label"
    )


def test_a_graph_file_is_no_scenario(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="is a graph file, no scenario; a scenario names it: workload: "):
        load_scenario(write(tmp_path, '{"schema": "sim.graph/1", "ops": []}'))


@pytest.mark.parametrize(
    "error",
    [
        GraphError("has none").under("a").about("x", "trips").under("b"),
        InfeasibleError("none").about("x", "trips"),
    ],
)
def test_errors_keep_what_they_are_about(error: SimError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (again.op, again.attribute, str(again)) == ("x", "trips", str(error))


def test_a_text_is_a_scenario_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "name: base\nworkload: {ops: {a: {duration: 10us}}}\n", encoding="utf-8"
    )
    scenario = read_scenario("extends: base.yaml\nmachine: {devices: {d: {kind: gpu}}}\n", folder=tmp_path)
    assert (scenario.name, len(scenario.graph)) == ("base", 1)
    with pytest.raises(ScenarioError, match=r"scenario:2:9: policy.name: unknown policy 'fifoo'"):
        read_scenario("extends: base.yaml\npolicy: fifoo\n", folder=tmp_path).case()


def test_a_scenario_may_be_json(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text(
        json.dumps(
            {"machine": {"devices": {"d": {"kind": "gpu"}}}, "workload": {"ops": {"a": {"duration": "10us"}}}}
        ),
        encoding="utf-8",
    )
    assert run_scenario(load_scenario(path)).trace.makespan_ns == 10_000


def test_what_is_no_scenario_is_told_what_is() -> None:
    with pytest.raises(InputError, match=r"a scenario should be a text of YAML, not \{\}"):
        read_scenario({})  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match=r"scenario should be what load_scenario\(path\) returns, not 's.yaml'"
    ):
        run_scenario("s.yaml")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="policy should be a name, not 7"):
        run_scenario(read_scenario(GOOD), 7)  # type: ignore[arg-type]
