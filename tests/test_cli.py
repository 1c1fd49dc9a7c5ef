"""The verbs of the command line: what each prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

from cli_runner import COMPARE, sim
from scenario_texts import GOOD, changed, write


def test_run_prints_a_table_and_nothing_on_stderr(tmp_path: Path) -> None:
    result = sim("run", write(tmp_path))
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        "good: ready-queue",
        "makespan 45 us, at the lower bound of 45 us",
        "critical path 45 us, 4 tasks",
    ]
    assert re.search(r"^cpu0 +45 us +45 us +0 ns +100.0% +0.0%", result.stdout, re.MULTILINE)
    assert lines[-1] == "all as expected"


def test_run_as_json_is_the_object_of_the_design(tmp_path: Path) -> None:
    result = sim("run", write(tmp_path), "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert " ".join(found) == (
        "schema scenario policy makespan_ns lower_bound_ns critical_path_ns tasks devices links pipeline "
        "expect"
    )
    assert found["schema"] == "sim.result/1"
    assert (found["scenario"], found["policy"], found["makespan_ns"]) == ("good", "ready-queue", 45_000)
    assert " ".join(found["devices"]["cpu0"]) == (
        "busy_ns span_ns idle_ns utilisation bubble peak_memory_bytes peak_reserved_bytes idle_reasons"
    )
    assert found["expect"] == [{"what": "makespan", "equals": 45_000, "actual": 45_000, "passed": True}]


def test_run_under_several_policies_is_a_list(tmp_path: Path) -> None:
    result = sim(
        "run", write(tmp_path, GOOD + COMPARE), "--json", "--policy", "one core", "--policy", "out-of-order"
    )
    assert [(one["policy"], one["makespan_ns"]) for one in json.loads(result.stdout)] == [
        ("one core", 65_000),
        ("out-of-order", 45_000),
    ]


def test_run_says_what_is_not_as_expected_and_still_is_done(tmp_path: Path) -> None:
    path = write(tmp_path, changed("cores: 2", "cores: 1"))
    result = sim("run", path)
    assert result.exit_code == 0
    assert (
        result.stdout.splitlines()[-1] == f"not as expected: {path}:13:13: makespan is 65 us, expected 45 us"
    )


def test_compare_ranks_the_policies_and_says_why(tmp_path: Path) -> None:
    result = sim("compare", write(tmp_path, GOOD + COMPARE))
    assert result.exit_code == 0
    words = [line.split("  ")[0] for line in result.stdout.splitlines()]
    assert words == [
        "good",
        "policy",
        "in-order",
        "ready-queue",
        "one core",
        "",
        "in-order",
        "ready-queue",
        "one core",
    ]
    why = result.stdout.splitlines()[-3:]
    assert why[0] == "in-order     at the lower bound (critical path): 45 us executing"
    assert why[1] == "ready-queue  the same"
    assert why[2] == "one core     +20 us: +20 us waiting for the host or a worker"


def test_compare_as_json_adds_up(tmp_path: Path) -> None:
    result = sim("compare", write(tmp_path, GOOD + COMPARE), "--json")
    found = json.loads(result.stdout)
    assert (found["schema"], found["scenario"], found["fastest"]) == ("sim.comparison/1", "good", "in-order")
    assert [one["policy"] for one in found["results"]] == ["in-order", "ready-queue", "one core"]
    for one in found["results"]:
        assert sum(one["parts_ns"].values()) == one["makespan_ns"]


def test_explain(tmp_path: Path) -> None:
    path = write(tmp_path)
    result = sim("explain", path)
    assert result.exit_code == 0
    assert result.stdout.startswith("good: ready-queue\n")
    assert "Executed critical path, 3 steps" in result.stdout
    found = json.loads(sim("explain", path, "--json").stdout)
    assert [(step["kind"], step["op"], step["start_ns"]) for step in found["path"]] == [
        ("task", "a", 0),
        ("task", "c", 10_000),
        ("task", "d", 40_000),
    ]
    assert found["parts_ns"] == {"executing": 45_000}


def test_check_ends_with_the_worst(tmp_path: Path) -> None:
    good = write(tmp_path, name="good.yaml")
    failing = write(tmp_path, changed("makespan: 45us", "makespan: 44us"), "failing.yaml")
    wrong = write(tmp_path, changed("cores", "cors"), "wrong.yaml")
    assert sim("check", good).exit_code == 0
    assert sim("check", good).stdout == f"passed {good}: ready-queue (1 expected)\n1 run, all as expected\n"
    result = sim("check", good, failing)
    assert result.exit_code == 1
    assert f"{failing}:13:13: makespan is 45 us, expected 44 us" in result.stdout
    assert result.stdout.splitlines()[-1] == "1 of 2 runs failed"
    assert sim("check", good, failing, wrong).exit_code == 2
    found = json.loads(sim("check", tmp_path, "--json").stdout)
    assert [check["passed"] for check in found["checks"]] == [False, True, False]
    assert found["failed"] == 2


def test_lists_of_what_is_known() -> None:
    policies = sim("policies")
    assert policies.exit_code == 0
    for name in (
        "ready-queue",
        "in-order",
        "out-of-order",
        "critical-path",
        "per-branch",
        "depth-first",
        "pinned",
        "bfc",
    ):
        assert re.search(rf"^  {name} +\S", policies.stdout, re.MULTILINE), name
    devices = sim("devices").stdout
    for name in ("h200-sxm", "v100-sxm", "ascend-910", "dgx-h100", "launch_latency: 10us"):
        assert re.search(rf"^  {name} +\S", devices, re.MULTILINE), name
    assert re.search(r"^  tensorflow +\S", sim("runtimes").stdout, re.MULTILINE)
    found = json.loads(sim("policies", "--json").stdout)
    assert {"name", "summary", "distribution"} == set(found["policies"][0])
    assert "h200-sxm" in [entry["name"] for entry in json.loads(sim("devices", "--json").stdout)["devices"]]


def test_schema_is_the_committed_one(root: Path) -> None:
    assert sim("schema").stdout == (root / "scenarios" / "scenario.schema.json").read_text(encoding="utf-8")


def test_import_writes_a_graph_that_scenarios_can_name(root: Path, tmp_path: Path) -> None:
    result = sim(
        "import", root / "graphs" / "inception_v1.json.gz", "--out", tmp_path / "g.json.gz", "--batch", 4
    )
    assert result.exit_code == 0
    assert result.stdout == f"{tmp_path}/g.json.gz: 143 ops, at batch 4, readable at any\n"
    head, _, _ = GOOD.partition("workload:")
    text = head.replace("cpu, cores: 2", "gpu, peak: 1TFLOP/s") + "workload: {graph: g.json.gz, batch: 2}\n"
    assert json.loads(sim("run", write(tmp_path, text), "--json").stdout)["tasks"] == 143


def test_import_of_what_is_no_model(tmp_path: Path) -> None:
    path = write(tmp_path, "nothing of the sort\n", "model.bin")
    result = sim("import", path, "--out", tmp_path / "g.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{path}: no known format")
    assert sim("import", path, "--out", tmp_path / "g.json", "--set", "x").exit_code == 2
    assert not (tmp_path / "g.json").exists()
