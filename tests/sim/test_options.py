"""What an option may be: by the annotation of its parameter, for classes, functions and schedules alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from scenario_texts import changed, write

from policies.pipeline.registry import generate, options
from policies.pipeline.straight_schedules import gpipe
from policies.pipeline.zb_auto import zb_auto
from scenarios.file.document import Document
from scenarios.file.yaml_read import read_yaml_text
from scenarios.run.load import load_scenario
from scenarios.run.scenario import scenario_of
from sim.base import plugins
from sim.base.errors import InfeasibleError, InputError, ScenarioError
from sim.base.options import check_value, parameters

PLAIN: list[Any] = ["x", "", -1, 0, 1.5, True, None, [], {}, [1, "x"], {"a": 1}, 10**30, float("nan"), "5us"]
"""Whatever a hurried hand may write."""


@pytest.mark.parametrize(
    ("annotation", "fits", "misfits", "words"),
    [
        (int, [0, -3], [True, 1.5, "1", None, []], "a whole number"),
        (float, [0.5, 2], [True, "x", float("nan"), float("inf"), None], "a number"),
        (bool, [True, False], [0, "yes", None], "true or false"),
        (str, ["", "a"], [1, None, ["a"]], "text"),
        (int | None, [None, 3], ["3", 0.5], "a whole number"),
        (Path | None, [None, "a.csv", Path("a")], [1, ["a"]], "text"),
        (Sequence[str], [[], ["a"], ("a", "b")], ["ab", {}, None], "a list"),
        (tuple[int, ...], [[], [1]], ["ab", {}, None], "a list"),
        (Sequence[str], [], [[1], ["a", None]], "text"),
        (Iterable[int], [[1]], ["1", 1], "a list"),
        (Mapping[str, int], [{}, {"a": 1}], [[], 1], "a mapping"),
        (Mapping[str, int], [], [{"a": "b"}], "a: should be a whole number"),
        (int | Sequence[int], [1, [1, 2]], ["x"], "a whole number or a list"),
        (int | Sequence[int], [], [[1.5]], "[0]: should be a whole number"),
        (Literal["lifo", "fifo"], ["lifo"], ["filo", 1, None], "'lifo' or 'fifo'"),
        (Callable[[int], int], [len], ["len", 1, []], "only Python code can give"),
        (ScenarioError, [ScenarioError("")], ["x", {}], "only Python code can give"),
        (Any, PLAIN, [], ""),
        (object, PLAIN, [], ""),
        ("a name that is not there", PLAIN, [], ""),
        (list["NotThere"], PLAIN, [], ""),  # type: ignore[name-defined]  # noqa: F821
    ],
)
def test_a_value_is_held_to_the_annotation(
    annotation: Any, fits: list[Any], misfits: list[Any], words: str
) -> None:
    for value in fits:
        check_value(annotation, value)
    for value in misfits:
        with pytest.raises(InputError) as error:
            check_value(annotation, value)
        assert words in str(error.value)


def test_annotations_are_read_where_they_can_be() -> None:
    def known(a: int, *rest: str, b: bool = True, **more: str) -> None: ...

    def unknown(a: NotThere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    assert {name: each.annotation for name, each in parameters(known).items()} == {"a": int, "b": bool}
    assert parameters(unknown)["a"].annotation == "NotThere"


def written(group: str, name: str, option: str, value: Any) -> str:
    """Return the value of `policy` that gives one option to one decision."""
    import json

    text = json.dumps({"name": name, option: value}).replace("NaN", ".nan")
    key = {"sim.placements": "placement", "sim.linearizers": "linearize", "sim.streams": "streams"}
    if group == "sim.rewrites":
        return f"{{name: ready-queue, compile: [{text}]}}"
    return text if group == "sim.policies" else f"{{name: ready-queue, {key[group]}: {text}}}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "group", ["sim.policies", "sim.placements", "sim.linearizers", "sim.streams", "sim.rewrites"]
)
def test_no_option_of_a_built_in_decision_ends_in_a_traceback(group: str, tmp_path: Path) -> None:
    tried, without_place = 0, []
    for name in plugins.names(group):
        thing = plugins.lookup(group, name)
        for parameter in parameters(thing) if callable(thing) else ():
            option = parameter.removesuffix("_ns").removesuffix("_bytes")
            for value in PLAIN:
                text = written(group, name, option, value)
                tried += 1
                root = read_yaml_text(
                    f"workload: {{ops: {{a: {{duration: 10us}}}}}}\npolicy: {text}", "s.yaml"
                )
                try:
                    scenario_of(Document(root, tmp_path / "s.yaml")).case()
                except ScenarioError as error:
                    without_place += [] if ".yaml:" in str(error) else [text]
    assert tried > 30
    assert not without_place


def test_a_word_is_not_taken_for_true_nor_for_a_list_of_letters(tmp_path: Path) -> None:
    def load(policy: str) -> None:
        load_scenario(write(tmp_path, changed("policy: {name: ready-queue}", f"policy: {policy}"))).case()

    with pytest.raises(ScenarioError, match=r"soft: should be true or false, not 'maybe'"):
        load("{name: ready-queue, placement: {name: device-kind, soft: maybe}}")
    with pytest.raises(ScenarioError, match=r"kinds: should be a list, not 'matmul'"):
        load("{name: ready-queue, linearize: {name: priority, kinds: matmul}}")


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("custom", {"file": {"a": 1}}, "file: should be text"),
        ("pipedream", {"replicas": 3}, "replicas: should be a list"),
        ("gpipe", {"order": ["lifo"]}, "order: should be 'lifo' or 'fifo'"),
        ("gpipe", {"order": "fif"}, "did you mean 'fifo'"),
        ("zb-auto", {"forward": "x"}, "forward: should be a whole number or a list"),
        ("zb-auto", {"time_limit": 5}, "time_limit: 5 has no unit"),
        ("zb-auto", {"time_limit": "0s"}, "time_limit must be a whole number of at least 1"),
        ("zb-auto", {"time_limit_s": 5}, "zb-auto has no option 'time_limit_s'; did you mean 'time_limit'"),
    ],
)
def test_options_of_schedules_are_held_to_theirs(name: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        generate(name, ranks=2, micro_batches=2, **given)


def test_words_are_checked_in_a_direct_call_too() -> None:
    wrong: Any = "fif"
    times = {"forward": 1, "input_grad": 1, "weight_grad": 1}
    with pytest.raises(InputError, match="order must be one of lifo, fifo; found 'fif', did you mean 'fifo'"):
        gpipe(2, 2, order=wrong)
    with pytest.raises(InputError, match="solver must be one of best, greedy, cp-sat"):
        zb_auto(2, 2, 1, **times, solver=wrong)
    with pytest.raises(InputError, match="objective must be one of span, makespan"):
        zb_auto(2, 2, 1, **times, objective=wrong)


def test_quantities_of_schedules_carry_their_units_as_everywhere() -> None:
    assert options("zb-auto")["time_limit"] == 60_000_000_000
    quick = generate("zb-auto", ranks=2, micro_batches=2, time_limit="5s")
    assert quick.programs == generate("zb-auto", ranks=2, micro_batches=2).programs


def test_the_search_ends_at_its_time_limit() -> None:
    pytest.importorskip("ortools", reason="needs the extra opt")
    sizes: dict[str, Any] = {"ranks": 4, "micro_batches": 8, "forward": 5, "input_grad": 6, "weight_grad": 4}
    with pytest.raises(InfeasibleError, match="no order found in 1 us; raise time_limit"):
        generate("zb-auto", **sizes, transfer=1, chunks=2, limit=3, solver="cp-sat", time_limit="1us")


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("{name: 1f1b, ranks: 3}", "the workload says it"),
        ("{name: 1f1b, micro_batches: 3}", "the workload says it"),
        ("{name: zb-v, chunks: x}", "chunks must be a whole number"),
        ("{name: looped-bfs, chunks: 1000000000000000000000}", "more than the 10,000,000 slots"),
        (
            "{name: zb-auto, limit: 4}",
            "limit should be a size, not 4; a number of micro-batches is in_flight",
        ),
        ("{name: pipedream, replicas: x}", "replicas: should be a list"),
        ("{name: custom, file: 3}", "file: should be text"),
    ],
)
def test_options_of_a_pipeline_are_refused_in_words(policy: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "workload: {pipeline: {ranks: 2, micro_batches: 2, forward: 1ms, "
        "input_grad: 1ms, weight_grad: 1ms}}\n"
        f"policy: {policy}\n"
    )
    with pytest.raises(ScenarioError, match=said):
        load_scenario(file).case().work  # noqa: B018


def test_a_speed_up_by_cores_of_mixed_keys_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "curve.yaml"
    file.write_text(
        "machine: {devices: {cpu0: {kind: cpu, cores: 4, speedup: {1: 1, x: 2}}}}\n"
        "workload: {ops: {a: {duration: 1us}}}\npolicy: in-order\n"
    )
    with pytest.raises(ScenarioError, match=r"curve\.yaml:1:\d+: .*speedup"):
        load_scenario(file)
