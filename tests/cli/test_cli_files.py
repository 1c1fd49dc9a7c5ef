"""Files of `sim run` and `sim compare`: arrows, plans, what auto-tuning tried, transfers among the ops."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from cli_runner import sim
from scenario_texts import GOOD, write
from typer import Context
from typer.main import get_group

from policies.issue.replay import read_plan
from scenarios.cli import app
from scenarios.cli.command import _OUTPUT_METAVARS, _VERBS

TUNED = """\
machine:
  devices: {gpu: {kind: gpu, count: 2}}
  links: [{from: gpu0, to: gpu1, bandwidth: 1GB/s}]
workload:
  ops:
    a: {duration: 10us, output: 4kB}
    b: {duration: 20us, inputs: [a], output: 4kB}
    c: {duration: 20us, inputs: [a], output: 4kB}
    d: {duration: 10us, inputs: [b, c]}
policy: {name: ready-queue, placement: {name: auto-tune, start: [single, heft], budget: 6}}
"""


def test_a_written_plan_can_be_followed(tmp_path: Path) -> None:
    path, plan = write(tmp_path, TUNED), tmp_path / "plan.json"
    result = sim("run", path, "--plan", plan)
    assert (result.exit_code, result.stderr) == (0, f"wrote {plan}\n")
    assert {task.op for task in read_plan(None, plan)} == set("abcd")
    follow = "{name: replay, file: plan.json, placement: {name: replay, file: plan.json}}"
    again = write(tmp_path, TUNED.partition("policy:")[0] + f"policy: {follow}\n", "again.yaml")
    makespans = [json.loads(sim("run", each, "--json").stdout)["makespan_ns"] for each in (path, again)]
    assert makespans[0] == makespans[1]


def test_a_plan_of_another_graph_is_refused_at_its_key(tmp_path: Path) -> None:
    path, plan = write(tmp_path, GOOD), tmp_path / "plan.json"
    assert sim("run", path, "--plan", plan).exit_code == 0
    ops, replay = "workload={ops: {z: {duration: 1us}}}", "{name: replay, file: plan.json}"
    refused = sim("run", path, "--set", ops, "--set", f"policy={replay}")
    assert (refused.exit_code, "policy.plan: unknown op" in refused.stderr) == (2, True)
    refused = sim("run", path, "--set", ops, "--set", f"policy.placement={replay}")
    assert (refused.exit_code, "policy.placement: unknown op" in refused.stderr) == (2, True)


def test_a_plan_is_of_one_run(tmp_path: Path) -> None:
    options = "--policy", "ready-queue", "--policy", "in-order", "--plan", tmp_path / "plan.json"
    result = sim("run", write(tmp_path, TUNED), *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "holds the plan of one run; name one --policy" in result.stderr


LOOP = """
machine: {devices: {cpu0: {kind: cpu}}}
workload:
  ops: {zero: {duration: 1us}, loop: {kind: while, inputs: [zero], attributes: {body: step, trips: 2}}}
  functions: {step: {inputs: [i], ops: {add: {inputs: [i], duration: 1us}}, outputs: [add]}}
policy: {runtime: tensorflow}
"""


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--plan plan.json", "has control flow"),
        ("--trace ranks/", "a file for each GPU, and the machine has none"),
    ],
)
def test_what_no_run_could_fill_is_refused_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = sim("run", write(tmp_path, LOOP), *option.split())
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{option}: ")
    assert message in result.stderr


def test_the_trajectory_of_auto_tuning(tmp_path: Path) -> None:
    path, file = write(tmp_path, TUNED), tmp_path / "tuning.csv"
    result = sim("run", path, "--tuning", file)
    assert result.exit_code == 0
    table = pd.read_csv(file)
    assert list(table.columns) == ["policy", "step", "what", "makespan_ns", "best_ns"]
    assert table["what"].tolist()[:2] == ["single", "heft"]
    assert table["best_ns"].tolist() == table["makespan_ns"].cummin().tolist()
    found = json.loads(sim("run", path, "--json").stdout)
    assert [step["makespan_ns"] for step in found["tuning"]] == table["makespan_ns"].tolist()
    assert table["best_ns"].iloc[-1] == found["makespan_ns"]
    assert f"placement: {len(table)} tried, from 60 us (single) to " in result.stdout
    assert "tuning" not in json.loads(sim("run", path, "--set", "policy.placement=heft", "--json").stdout)


def test_no_trajectory_without_a_search(tmp_path: Path) -> None:
    file = tmp_path / "tuning.csv"
    result = sim("run", write(tmp_path, TUNED), "--set", "policy.placement=heft", "--tuning", file)
    assert result.exit_code == 2
    assert "no placement searched (placement: auto-tune does)" in result.stderr
    assert not file.exists()


def test_transfers_are_rows_among_the_ops(tmp_path: Path) -> None:
    file = tmp_path / "ops.csv"
    assert (
        sim("run", write(tmp_path, TUNED), "--set", "policy.placement=round-robin", "--ops", file).exit_code
        == 0
    )
    table = pd.read_csv(file)
    assert table["start_ns"].is_monotonic_increasing
    moved = table[table["kind"] == "transfer"]
    assert sorted(zip(moved["op"], moved["source"], moved["destination"], strict=True)) == [
        ("a", "gpu0", "gpu1"),
        ("c", "gpu0", "gpu1"),
    ]
    assert (moved["end_ns"] - moved["start_ns"]).tolist() == [4_000, 4_000]
    assert moved["nbytes"].tolist() == [4_000, 4_000]
    assert moved["device"].isna().all()
    ops = table[table["kind"] != "transfer"]
    assert sorted(ops["op"]) == list("abcd")
    assert ops["source"].isna().all()
    assert ops["device"].notna().all()


@pytest.mark.parametrize("ending", ["svg", "html"])
def test_arrows(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path, TUNED)
    with_arrows, without = tmp_path / f"with.{ending}", tmp_path / f"without.{ending}"
    assert sim("run", path, "--set", "policy.placement=heft", "--gantt", without).exit_code == 0
    for verb in ("run", "compare"):
        options = ("--policy", "ready-queue") if verb == "compare" else ()
        options += ("--set", "policy.placement=round-robin", "--gantt", with_arrows, "--arrows")
        assert sim(verb, path, *options).exit_code == 0
        text = with_arrows.read_text(encoding="utf-8")
        if ending == "html":
            assert '"arrows":[[' in text
            assert '"arrows":[]' in without.read_text(encoding="utf-8")
        else:
            assert "LineCollection" in text
            assert "LineCollection" not in without.read_text(encoding="utf-8")


def test_arrows_without_a_chart_are_refused(tmp_path: Path) -> None:
    result = sim("run", write(tmp_path, TUNED), "--arrows")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "name its file with --gantt" in result.stderr


OPTIONS = [
    *(("run", option, ending) for option, ending in (
        ("--gantt", ".png"), ("--gantt", ".html"), ("--trace", ".json.gz"),
        ("--ops", ".csv"), ("--ops", ".parquet"), ("--memory", ".png"), ("--plan", ".json"),
        ("--tuning", ".csv"), ("--memory-trace", ".jsonl"),
    )),
    *(("compare", option, ending) for option, ending in (
        ("--gantt", ".png"), ("--trace", ".json"), ("--ops", ".json"), ("--tuning", ".json"),
        ("--pareto", ".svg"),
    )),
    ("sweep", "--out", ".csv"),
    ("sweep", "--out", ".json"),
    ("memory", "--ops", ".csv"),
    ("import", "--out", ".json.gz"),
]  # fmt: skip
"""Every option that names a file."""


@pytest.mark.parametrize(("verb", "option", "ending"), OPTIONS)
def test_a_place_that_cannot_be_written_is_refused_before_any_work(
    tmp_path: Path, verb: str, option: str, ending: str
) -> None:
    more = ["--vary", "seed=1,2"] if verb == "sweep" else []
    missing = tmp_path / "none.yaml"  # what would be read first
    too_long, pipe = tmp_path / ("x" * 300 + ending), tmp_path / f"pipe{ending}"
    os.mkfifo(pipe)
    folder = tmp_path / "no" / f"x{ending}"
    for target, why in (
        (too_long, f"{too_long}: cannot be written ("),
        (pipe, f"{pipe}: is not a regular file"),
        (folder, f"{folder}: the directory {folder.parent} does not exist"),
    ):
        done = sim(verb, missing, *more, option, target)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith(f"{option} {why}")
        assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == [pipe.name]  # nothing is left behind


def test_both_graphs_that_are_shown_are_checked_first(tmp_path: Path) -> None:
    good, bad = tmp_path / "a.json", tmp_path / "no" / "b.json"
    for pair in ((good, bad), (bad, good)):
        done = sim("run", tmp_path / "none.yaml", "--show-graph", *pair)
        assert done.exit_code == 2
        assert done.stderr == f"--show-graph {bad}: the directory {bad.parent} does not exist\n"
    done = sim("run", tmp_path / "none.yaml", "--show-graph", good, good)
    assert done.stderr == f"--show-graph {good}: is what --show-graph writes\n"


def test_one_file_is_not_for_two_things(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    done = sim("compare", tmp_path / "none.yaml", "--gantt", picture, "--pareto", picture)
    assert (done.exit_code, done.stderr) == (2, f"--pareto {picture}: is what --gantt writes\n")


def test_a_folder_that_takes_no_files(tmp_path: Path) -> None:
    if not Path("/proc/self").exists():
        pytest.skip("there is no /proc here")
    done = sim("sweep", write(tmp_path), "--vary", "seed=1,2", "--out", "/proc/x.csv")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "--out /proc/x.csv: cannot be written (No such file or directory)\n"


@pytest.mark.parametrize("verb", _VERBS)
def test_help_lists_the_endings_of_every_file_that_is_written(tmp_path: Path, verb: str) -> None:
    group, path = get_group(app), write(tmp_path)
    command: Any = group.get_command(Context(group), verb)
    for param in command.params:
        if param.param_type_name == "option" and param.metavar in _OUTPUT_METAVARS:
            endings = ", ".join(re.findall(r"\((\.[^)]*)\)", param.help))
            names = [f"x{i}.wrong" for i in range(param.nargs)]
            told = sim(verb, path, param.opts[0], *names).stderr
            assert told == f"{param.opts[0]} {names[0]}: should end in {endings}\n"
