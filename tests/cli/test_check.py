"""Checking scenarios: which files, what is said, and with which exit status; also as pytest tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from scenario_texts import GOOD, changed, write

from scenarios.regression import check_file, scenario_files
from sim.base.errors import InputError

pytest_plugins = ["pytester"]

COMPARE = """\
compare:
  - {name: in-order, expect: {makespan: 45us}}
  - {label: one core, set: {machine.devices.cpu0.cores: 1}, expect: {makespan: 1us, tasks: 4}}
  - {label: nothing, window: 1, name: out-of-order}
"""


def test_every_run_that_expects_something_is_checked(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD + COMPARE)
    own, in_order, one_core = check_file(path)
    assert [one.label for one in (own, in_order, one_core)] == ["ready-queue", "in-order", "one core"]
    assert [one.exit_status for one in (own, in_order, one_core)] == [0, 0, 1]
    assert one_core.messages[0] == f"{path}:16:80: makespan is 65 us, expected 1 us"
    assert f"`sim run {path} --policy 'one core' --ops golden.csv`" in one_core.messages[1]
    assert f"`sim diff golden.csv {path} --policy 'one core'`" in one_core.messages[1]


def test_a_run_that_others_are_held_to_is_named_if_it_cannot_go_on(tmp_path: Path) -> None:
    small = "compare: [{label: small, set: {machine.devices.cpu0.memory: 1kB}}]\n"
    text = changed("makespan: 45us", "makespan: {at_most: 2 x small}")
    [one] = check_file(write(tmp_path, text + small))
    assert one.exit_status == 1
    assert one.messages[0].startswith(
        "'small', to which results are held, cannot go on: out of memory on cpu0"
    )


def test_a_file_that_is_wrong_and_one_that_expects_nothing(tmp_path: Path) -> None:
    wrong = write(tmp_path, changed("a: {", "a: {x: 1, "), "wrong.yaml")
    [one] = check_file(wrong)
    assert one.exit_status == 2
    assert len(one.messages) == 1
    assert one.messages[0].startswith(f"{wrong}:7:9: workload.ops.a.x: no such key; known: after, ")
    silent, _, _ = GOOD.partition("expect:")
    [one] = check_file(write(tmp_path, silent))
    assert (one.exit_status, one.outcomes, one.label) == (0, (), "")


def test_a_run_that_cannot_go_on_fails(tmp_path: Path) -> None:
    stuck = changed("{name: ready-queue}", "{name: in-order, linearize: {name: program, ops: [b, a, c, d]}}")
    [one] = check_file(write(tmp_path, stuck))
    assert one.exit_status == 1
    assert one.messages[0].startswith("nothing can happen any more and 4 tasks remain")


def test_folders_are_searched_for_scenarios(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "empty").mkdir()
    first, second = write(tmp_path), write(tmp_path / "deep", GOOD, "t.yml")
    write(tmp_path, "steps: [a, b]\n", "other.yaml")
    write(tmp_path / ".hidden")
    write(tmp_path, "workflow: {}\nwork: {}\n", "ci.yaml")
    misspelt = write(tmp_path, GOOD.replace("workload:", "workloads:"), "misspelt.yaml")
    broken = write(tmp_path, "a: [", "z.yaml")
    assert scenario_files([tmp_path]) == [misspelt, first, broken, second]
    assert scenario_files([second, tmp_path / "no.yaml", second]) == [second, tmp_path / "no.yaml"]
    with pytest.raises(InputError, match="no scenario in this folder"):
        scenario_files([tmp_path / "empty"])


def test_scenarios_are_pytest_tests_on_request(pytester: pytest.Pytester) -> None:
    write(pytester.path, GOOD + COMPARE, "good.yaml")
    write(pytester.path, "steps: [a]\n", "other.yaml")
    options = ["-p", "no:cacheprovider"]
    result = pytester.runpytest_inprocess(*options, "-v", "--sim-check")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["good.yaml::ready-queue PASSED*", "good.yaml::in-order PASSED*", "good.yaml::one core FAILED*"]
    )
    result.stdout.fnmatch_lines(["*good.yaml:16:80: makespan is 65 us, expected 1 us"])
    assert "`sim run good.yaml --policy" in result.stdout.str()
    assert pytester.runpytest_inprocess(*options).ret == pytest.ExitCode.NO_TESTS_COLLECTED


def test_tests_of_one_scenario_have_names_of_their_own(pytester: pytest.Pytester) -> None:
    compare = "compare: [{name: ready-queue, expect: {tasks: 4}}]\n"
    write(pytester.path, GOOD + compare, "good.yaml")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-v", "--sim-check", "good.yaml")
    result.stdout.fnmatch_lines(
        ["good.yaml::ready-queue PASSED*", "good.yaml::ready-queue (compared) PASSED*"]
    )


def test_a_wrong_scenario_fails_the_collection_with_its_place(pytester: pytest.Pytester) -> None:
    write(pytester.path, changed("cores: 2", "core: 2"), "wrong.yaml")
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--sim-check", "wrong.yaml")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*wrong.yaml:4:23: machine.devices.cpu0.core: no such key; did you mean 'cores'?"]
    )
