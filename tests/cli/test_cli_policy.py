"""``--policy NAME``: what of the scenario's own policy stays."""

from __future__ import annotations

import json
from pathlib import Path

from cli_runner import sim
from scenario_texts import GOOD, write

from scenarios.run.load import load_scenario

STREAMS = """\
machine: {devices: {gpu0: {kind: gpu, streams: 2}}}
workload: {ops: {a: {duration: 10us}, b: {duration: 10us}}}
policy: {name: ready-queue, streams: per-branch, synchronisation: issue}
"""


def _makespan(path: Path, *arguments: str) -> int:
    result = sim("run", path, "--json", *arguments)
    assert result.exit_code == 0, result.stderr
    makespan: int = json.loads(result.stdout)["makespan_ns"]
    return makespan


def test_a_named_policy_keeps_the_other_decisions_as_an_entry_of_compare_does(tmp_path: Path) -> None:
    path = write(tmp_path, STREAMS + "compare: [in-order]\n")
    assert _makespan(path) == _makespan(path, "--policy", "ready-queue") == 10_000
    entry, named = load_scenario(path).case("in-order"), load_scenario(path).case("critical-path")
    assert type(named.decisions.streams) is type(entry.decisions.streams)
    assert named.decisions.policy.synchronisation == entry.decisions.policy.synchronisation == "issue"


def test_a_policy_that_takes_no_synchronisation_keeps_its_own(tmp_path: Path) -> None:
    path = write(tmp_path, STREAMS.replace("issue", "completion"))
    assert load_scenario(path).case("sequential").decisions.policy.synchronisation == "issue"


def test_a_runtime_replaces_all_decisions(tmp_path: Path) -> None:
    case = load_scenario(write(tmp_path, STREAMS)).case("pytorch-eager")
    assert type(case.decisions.streams).__name__ != "PerBranch"


def test_a_name_of_the_wrong_kind_says_so(tmp_path: Path) -> None:
    result = sim("run", write(tmp_path), "--policy", "1f1b")
    assert result.exit_code == 2
    assert "'1f1b' is a pipeline schedule, and the workload is a graph; known: " in result.stderr
    pipeline = (
        "workload: {pipeline: {ranks: 2, micro_batches: 2, forward: 1ms, backward: 1ms}}\npolicy: 1f1b\n"
    )
    result = sim("run", write(tmp_path, pipeline, "p.yaml"), "--policy", "in-order")
    assert "'in-order' is a policy for graphs, and a pipeline's policy is its schedule" in result.stderr


def test_known_names_are_listed_once(tmp_path: Path) -> None:
    known = sim("run", write(tmp_path, GOOD), "--policy", "nope").stderr.partition("known: ")[2].split(", ")
    assert len(known) > 1
    assert len(known) == len(set(known))
