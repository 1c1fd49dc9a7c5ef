"""Names in a scenario to objects: options by parameter, units by suffix, variants laid over one another."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scenario_texts import GOOD, changed, write

from policies.issue.program_order import InOrder, OutOfOrder
from policies.issue.ready_queue import ReadyQueue
from policies.linearize import DepthFirst
from policies.streams import PerBranch, SingleStream
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from scenarios.run.scenario import Case, Scenario
from sim import Policy
from sim.base import plugins
from sim.base.errors import ScenarioError


def load(folder: Path, policy: str, more: str = "") -> Scenario:
    return load_scenario(write(folder, changed("policy: {name: ready-queue}", f"policy: {policy}\n{more}")))


def case(folder: Path, policy: str, more: str = "", name: str | None = None) -> Case:
    return load(folder, policy, more).case(name)


class Odd(Policy):
    """A policy with parameters of every sort."""

    def __init__(
        self, needed: str, timeout_ns: int = 7, limit_bytes: int | None = None, plan: Path | None = None
    ) -> None:
        self.given = (needed, timeout_ns, limit_bytes, plan)


@pytest.fixture
def odd() -> Iterator[None]:
    plugins.register("sim.policies", "odd", Odd)
    yield
    plugins.unregister("sim.policies", "odd")


@pytest.fixture
def runtime() -> Iterator[None]:
    choices: dict[str, Any] = {
        "name": "in-order",
        "in_flight": 1,
        "linearize": "depth-first",
        "streams": "single",
    }
    plugins.register("sim.runtimes", "one-by-one", choices)
    yield
    plugins.unregister("sim.runtimes", "one-by-one")


def test_every_decision_is_made(tmp_path: Path) -> None:
    made = case(
        tmp_path,
        "{name: out-of-order, window: 3, linearize: depth-first, streams: {name: per-branch, spread: next}, "
        "placement: pinned, synchronisation: issue, knowledge: mean}",
    ).decisions
    assert isinstance(made.policy, OutOfOrder)
    assert (made.policy.window, made.policy.synchronisation) == (3, "issue")
    assert isinstance(made.linearize, DepthFirst)
    assert isinstance(made.streams, PerBranch)
    assert made.streams.spread == "next"
    assert type(made.placement).__name__ == "PinnedPlacement"
    assert (made.label, made.knowledge) == ("out-of-order", "mean")


def test_what_is_not_said_is_left_to_the_default(tmp_path: Path) -> None:
    made = load_scenario(write(tmp_path, changed("policy: {name: ready-queue}\n", ""))).case().decisions
    assert isinstance(made.policy, ReadyQueue)
    assert (made.placement, made.streams, made.linearize, made.knowledge) == (None, None, None, "exact")


def test_units_are_read_where_a_parameter_has_one(tmp_path: Path, odd: None) -> None:
    made = case(tmp_path, "{name: odd, needed: x, timeout: 3us, limit: 4MB, plan: p.json}").decisions.policy
    assert made.given == ("x", 3000, 4_000_000, tmp_path / "p.json")  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("", "policy: odd needs the option 'needed'"),
        (
            ", needed: x, timeout: 3",
            "policy.timeout: 3 has no unit; accepted: ns, us, ms, s, min, h, d, as in '10us'",
        ),
        (
            ", needed: x, timeout_ns: 3",
            "policy.timeout_ns: odd has no option 'timeout_ns'; did you mean 'timeout'?",
        ),
        (
            ", needed: x, limit: 3us",
            "policy.limit: '3us' is a duration, not an amount of data; accepted: B, kB",
        ),
    ],
)
def test_options_that_do_not_fit(tmp_path: Path, odd: None, options: str, says: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        case(tmp_path, f"{{name: odd{options}}}")
    assert says in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/s.yaml:11:")


def test_a_runtime_is_a_set_of_decisions_that_the_scenario_may_change(tmp_path: Path, runtime: None) -> None:
    made = case(tmp_path, "{runtime: one-by-one, streams: per-branch}").decisions
    assert isinstance(made.policy, InOrder)
    assert made.policy.in_flight == 1
    assert isinstance(made.linearize, DepthFirst)
    assert isinstance(made.streams, PerBranch)
    assert made.label == "one-by-one"
    compared = load(tmp_path, "{name: in-order, streams: per-branch}", "compare: [{runtime: one-by-one}]\n")
    assert isinstance(compared.cases()[0].decisions.streams, SingleStream)
    assert isinstance(case(tmp_path, "in-order", name="one-by-one").decisions.streams, SingleStream)
    with pytest.raises(ScenarioError, match="unknown runtime 'one-by-on'; did you mean 'one-by-one'"):
        case(tmp_path, "{runtime: one-by-on}")
    with pytest.raises(ScenarioError, match="has both a name and a runtime"):
        case(tmp_path, "{runtime: one-by-one, name: in-order}")


COMPARE = """\
compare:
  - in-order
  - {label: narrow, window: 1}
  - {label: depth first, linearize: depth-first}
  - {label: other, name: ready-queue}
  - {label: more cores, set: {machine.devices.cpu0.cores: 8}, expect: {makespan: 45us}}
"""
WINDOW = "{name: out-of-order, window: 4, streams: per-branch}"


def test_entries_are_laid_over_the_policy_of_the_scenario(tmp_path: Path) -> None:
    scenario = load(tmp_path, WINDOW, COMPARE)
    cases = {one.label: one for one in scenario.cases()}
    assert list(cases) == ["in-order", "narrow", "depth first", "other", "more cores"]
    assert isinstance(cases["in-order"].decisions.policy, InOrder)
    narrow, deep, other = (cases[label].decisions for label in ("narrow", "depth first", "other"))
    assert isinstance(narrow.policy, OutOfOrder)
    assert narrow.policy.window == 1
    assert isinstance(deep.policy, OutOfOrder)
    assert deep.policy.window == 4
    assert isinstance(deep.linearize, DepthFirst)
    assert isinstance(other.policy, ReadyQueue)  # the window is no option of it, and no longer there
    assert all(isinstance(one.decisions.streams, PerBranch) for one in cases.values())


def test_settings_of_an_entry_make_another_scenario(tmp_path: Path) -> None:
    scenario = load(tmp_path, WINDOW, COMPARE)
    more = scenario.case("more cores")
    assert more.scenario.machine.devices[0].workers == 8
    assert scenario.machine.devices[0].workers == 2
    assert [one.result for one in more.expectations] == ["makespan"]
    assert scenario.case("narrow").scenario is scenario


def test_names_on_the_command_line(tmp_path: Path) -> None:
    scenario = load(tmp_path, WINDOW, COMPARE)
    assert scenario.case("narrow").label == "narrow"
    plain = scenario.case("out-of-order").decisions  # no entry: its own defaults, and the scenario's streams
    assert isinstance(plain.policy, OutOfOrder)
    assert plain.policy.window is None
    assert isinstance(plain.streams, PerBranch)
    assert scenario.case("out-of-order").expectations == ()
    assert [one.result for one in scenario.case().expectations] == ["makespan"]
    with pytest.raises(ScenarioError) as caught:
        scenario.case("narow")
    assert str(caught.value) == "--policy: unknown policy 'narow'; did you mean 'narrow'?"
    with pytest.raises(ScenarioError) as caught:
        scenario.case("some_module:Policy")
    assert str(caught.value) == (
        "--policy some_module:Policy: the policy 'some_module:Policy' is code, which a scenario may not "
        "load; allow it with --allow-code (pytest: --sim-allow-code, Python: allow_code=True)"
    )


def test_without_compare_the_scenario_compares_itself(tmp_path: Path) -> None:
    assert [one.label for one in load_scenario(write(tmp_path, GOOD)).cases()] == ["ready-queue"]


@pytest.mark.parametrize(
    ("ops", "place", "says"),
    [
        ("[a, c]", "3:62: policy.linearize.ops.1", "unknown op 'c'; known: a, b"),
        ("[a]", "3:58: policy.linearize.ops", "program: op 'b' is nowhere in the list, not once"),
        ("[a, b, a]", "3:65: policy.linearize.ops.2", "program: op 'a' is 2 times in the list, not once"),
    ],
)
def test_a_wrong_program_is_told_where_the_policy_has_it(
    tmp_path: Path, ops: str, place: str, says: str
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        "machine: {devices: {gpu0: {kind: gpu}}}\n"
        "workload: {ops: {a: {duration: 1us}, b: {duration: 1us}}}\n"
        f"policy: {{name: in-order, linearize: {{name: program, ops: {ops}}}}}\n"
    )
    with pytest.raises(ScenarioError) as caught:
        run_scenario(load_scenario(path))
    assert str(caught.value) == f"{path}:{place}: {says}"
