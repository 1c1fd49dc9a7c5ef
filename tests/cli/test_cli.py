"""The verbs of the command line: what each prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
from cli_runner import COMPARE, sim
from scenario_texts import GOOD, changed, write

from sim.base import plugins


def test_run_prints_a_table_and_nothing_on_stderr(tmp_path: Path) -> None:
    result = sim("run", write(tmp_path))
    assert result.exit_code == 0
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        "good: ready-queue",
        "makespan 45 us, at the lower bound of 45 us",
        "critical path 45 us; 4 tasks ran",
    ]
    assert re.search(r"^cpu0 +45 us +0 ns +0 ns +0 ns +72.2% of 2 +45 us +0.0%", result.stdout, re.MULTILINE)
    assert lines[-1] == "all as expected"


def test_run_as_json_is_the_object_of_the_design(tmp_path: Path) -> None:
    result = sim("run", write(tmp_path), "--json")
    assert result.exit_code == 0
    found = json.loads(result.stdout)
    assert " ".join(found) == (
        "schema scenario policy makespan_ns makespan_interval lower_bound_ns bound_by gap no_gap "
        "critical_path_ns loops_counted_once tasks devices links unused_devices pipeline expect engine"
    )
    assert found["schema"] == "sim.result/1"
    assert (found["scenario"], found["policy"], found["makespan_ns"]) == ("good", "ready-queue", 45_000)
    assert " ".join(found["devices"]["cpu0"]) == (
        "busy_ns span_ns idle_ns utilisation cores core_ns bubble peak_memory_bytes peak_reserved_bytes "
        "idle_reasons time_ns"
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


def test_run_says_what_is_not_as_expected_with_exit_status_1(tmp_path: Path) -> None:
    path = write(tmp_path, changed("cores: 2", "cores: 1"))
    result = sim("run", path)
    assert result.exit_code == 1
    assert sim("run", path, "--set", "seed=1").exit_code == 0  # no longer what the file says
    assert sim("compare", path).exit_code == sim("run", path, "--json").exit_code == 1
    assert result.stdout.splitlines()[-2:] == [
        f"not as expected: {path}:13:13: makespan is 65 us, expected 45 us",
        f"  what moved is unknown, as no schedule is recorded: `sim run {path} --ops golden.csv` where this "
        f"still holds, then `sim diff golden.csv {path}`",
    ]
    assert f"`sim diff golden.csv {path} --allow-code`" in sim("run", path, "--allow-code").stdout


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
        "Lower bound of all runs: 45 us.",
    ]
    *why, bound = result.stdout.splitlines()[-4:]
    assert bound == "Lower bound of all runs: 45 us."
    assert why[0] == "in-order     at the lower bound (critical path): 45 us computing"
    assert why[1] == "ready-queue  the same"
    assert why[2] == "one core     20 us slower because cpu0 executes less at once"


TWO_GPUS = """\
name: one of three is used
machine: {devices: {gpu: {kind: gpu, count: 3, streams: 2}, cpu0: {kind: cpu, cores: 8}}}
workload:
  ops:
    a: {duration: 10us, device: gpu0}
    b: {duration: 10us, device: gpu0}
    c: {duration: 9us, device: cpu0}
compare:
  - {name: ready-queue}
  - {name: ready-queue, label: two streams, streams: round-robin}
"""


def test_compare_has_one_bound_for_all_rows(tmp_path: Path) -> None:
    """One stream cannot do better than 20 us, but the work can be done in 10."""
    found = json.loads(sim("compare", write(tmp_path, TWO_GPUS), "--json").stdout)
    assert found["lower_bound_ns"] == 10_000
    assert [result["lower_bound_ns"] for result in found["results"]] == [10_000, 20_000]
    rows = [line.split() for line in sim("compare", write(tmp_path, TWO_GPUS)).stdout.splitlines()]
    assert [row[-5] for row in rows[2:4]] == ["0.0%", "100.0%"]


def test_unused_devices_are_one_line(tmp_path: Path) -> None:
    for verb in ("run", "explain"):
        out = sim(verb, write(tmp_path, TWO_GPUS), "--policy", "ready-queue").stdout
        assert "unused: gpu1, gpu2" in out
        assert "finished" not in "".join(line for line in out.splitlines() if "gpu1" in line)
    assert "(its 8 cores: 5.6 %)" in out


LOOP = """\
name: a loop
machine: {devices: {cpu0: {kind: cpu, cores: 2}}}
workload:
  functions: {body: {inputs: [v], ops: {s: {duration: 10us, inputs: [v], output: 1MB}}, outputs: [s]}}
  ops:
    a: {duration: 10us, output: 1MB}
    w: {kind: while, inputs: [a], attributes: {body: body, trips: 4}}
policy: ready-queue
compare: [{name: ready-queue}]
"""


def test_no_share_above_a_bound_that_has_loops_once(tmp_path: Path) -> None:
    where = write(tmp_path, LOOP)
    assert "(chains through loops counted once)" in sim("run", where).stdout
    assert "chains through loops count once" in sim("explain", where).stdout
    compared = sim("compare", where).stdout
    assert "above the lower bound" not in compared
    assert "Lower bound of all runs: 25 us (chains through loops counted once)" in compared
    found = json.loads(sim("compare", where, "--json").stdout)
    assert found["loops_counted_once"]
    assert (
        found["lower_bound_ns"] == json.loads(sim("run", where, "--json").stdout)["lower_bound_ns"] == 25_000
    )


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
    assert result.stdout.startswith("good: ready-queue: 45 us\n")
    assert "Executed critical path, 3 steps" in result.stdout
    found = json.loads(sim("explain", path, "--json").stdout)
    assert [(step["kind"], step["op"], step["start_ns"]) for step in found["path"]] == [
        ("task", "a", 0),
        ("task", "c", 10_000),
        ("task", "d", 40_000),
    ]
    assert found["parts_ns"] == {"compute": 45_000}


def test_check_ends_with_the_worst(tmp_path: Path) -> None:
    good = write(tmp_path, name="good.yaml")
    failing = write(tmp_path, changed("makespan: 45us", "makespan: 44us"), "failing.yaml")
    wrong = write(tmp_path, changed("cores", "cors"), "wrong.yaml")
    assert sim("check", good).exit_code == 0
    assert sim("check", good).stdout == f"passed {good}: ready-queue (1 expected)\n1 run, all as expected\n"
    silent = write(tmp_path, GOOD.partition("expect:")[0], "silent.yaml")
    nothing = sim("check", silent)
    assert nothing.stdout.endswith("\nno scenario has an `expect:`, so nothing was run\n")
    assert nothing.exit_code == 2
    said = sim("check", good, silent).stdout
    assert said.endswith("\n1 run, all as expected; 1 scenario has no `expect:`\n")
    said = sim("check", good, failing, silent).stdout
    assert said.endswith("\n1 of 2 runs failed; 1 scenario has no `expect:`\n")
    silent.unlink()
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
    """Renew it with: sim schema > scenarios/scenario.schema.json."""
    assert sim("schema").stdout == (root / "scenarios" / "scenario.schema.json").read_text(encoding="utf-8")


def test_import_writes_a_graph_that_scenarios_can_name(root: Path, tmp_path: Path) -> None:
    result = sim(
        "import",
        root / "scenarios" / "examples" / "graphs" / "inception_v1.json.gz",
        "--out",
        tmp_path / "g.json.gz",
        "--batch",
        4,
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
    assert f"{path}: no known format" in result.stderr  # maybe behind a sign of life
    assert sim("import", path, "--out", tmp_path / "g.json", "--set", "x").exit_code == 2
    assert not (tmp_path / "g.json").exists()
    wrong = sim("import", path, "--out", tmp_path / "g.txt")
    assert (wrong.exit_code, wrong.stderr) == (
        2,
        f"--out {tmp_path}/g.txt: should end in .json, .json.gz\n",
    )


def test_version_and_help_are_wrapped_to_the_terminal() -> None:
    assert re.fullmatch(r"sim \d+\.\d+\.\d+\S*\nkernel: .+\n", sim("--version").stdout)
    helped = sim("run", "--help").stdout
    assert re.search(r"with --set none +\n is checked\. An op", helped)


def add_verbs(app: typer.Typer) -> None:
    """Offer three verbs, of which two have names that are taken."""
    for name in ("run", "validate", "greet"):
        app.command(name, help=f"Somebody else's {name}.")(lambda: typer.echo("hello"))


@pytest.mark.filterwarnings("always::sim.base.plugins.PluginWarning")
@pytest.mark.parametrize("arguments", [["--help"], ["greet"], ["gret"]])
def test_a_verb_of_a_plugin_whose_name_is_taken_is_left_out(arguments: list[str]) -> None:
    plugins.register("sim.commands", "a-plugin", add_verbs)
    try:
        result = sim(*arguments)
        assert "Somebody" not in sim("run", "--help").stdout
    finally:
        plugins.unregister("sim.commands", "a-plugin")
    assert [line for line in result.stderr.splitlines() if line.startswith("warning")] == [
        "warning: a-plugin and sim both offer the verb 'run'; the one of sim is used",
        "warning: a-plugin and validation both offer the verb 'validate'; the one of validation is used",
    ]
    if arguments == ["--help"]:
        assert result.stdout.count("Somebody else's") == result.stdout.count("Somebody else's greet.") == 1
    if arguments == ["greet"]:
        assert result.stdout == "hello\n"
