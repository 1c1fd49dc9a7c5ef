"""Layouts of a training step in a sweep: which fit the GPUs, what each takes, which is best, and the next."""

from __future__ import annotations

import csv
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cli_runner import sim

from scenarios.fields.goals import Goal, read_goal
from scenarios.run.load import load_scenario
from scenarios.variants.sweep import Interrupted, sweep
from scenarios.variants.variant import Variants, points_of
from sim.base.units import format_bytes

SCENARIO = """\
name: eight GPUs
workload:
  train:
    model: {layers: 4, hidden: 256, heads: 4, vocabulary: 1000}
    calibration: h100-sxm
    gpus: 8
    parallel: {sharding: zero-1}
    sequence: 256
    batch: 16
"""
OF = "workload.train"
VARY = [
    f"{OF}.parallel.tp=1,2,8",
    f"{OF}.parallel.pp=1,2,3",
    f"{OF}.parallel.chunks=1,2",
    f"{OF}.micro_batch=1,4",
]


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "eight.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return str(path)


def varied(*vary: str) -> list[str]:
    """Return arguments that vary keys."""
    return [text for each in vary for text in ("--vary", each)]


def test_what_does_not_fit_is_counted_by_hand(scenario: str) -> None:
    """Worked by hand, in the order in which sizes are looked at; each of the 36 points is counted once."""
    expected: Counter[str] = Counter()
    kept = []
    for tp, pp, chunks, micro in itertools.product((1, 2, 8), (1, 2, 3), (1, 2), (1, 4)):
        if 8 % (tp * pp):
            expected["tp·cp·pp does not fill the GPUs"] += 1
        elif chunks > 1 and pp == 1:
            expected["chunks without a pipeline"] += 1
        elif 16 % (8 // (tp * pp) * micro):
            expected["dp·micro_batch does not divide the global batch"] += 1
        elif 4 % tp:
            expected["tp does not divide the heads"] += 1
        elif chunks == 1 and 16 // (8 // (tp * pp) * micro) < pp:
            expected["1f1b has fewer micro-batches than stages"] += 1
        else:
            kept.append((str(tp), str(pp), str(chunks), str(micro)))
    points, left_out = Variants(scenario).fitting(points_of(VARY))
    assert left_out == expected
    assert len(expected) == 5
    assert [tuple(value for _, value in point.settings) for point in points] == kept


def test_what_is_left_out_is_refused_by_itself_and_the_rest_runs(scenario: str) -> None:
    everything = points_of(VARY)
    points, _ = Variants(scenario).fitting(everything)
    for point in everything:
        if point in points:
            row = Variants(scenario).row(point)
            assert row["error"] is None
            assert row["train.step_ns"] == row["makespan_ns"]
            assert row["train.peak_bytes"] == max(
                row[key] for key in row if key.endswith("peak_memory_bytes")
            )
        else:
            assert Variants(scenario).row(point)["error"].startswith("left out: ")


def test_dp_is_what_is_left_of_the_gpus(scenario: str) -> None:
    def groups(*sets: str) -> Any:
        told = json.loads(
            sim("run", scenario, "--json", *(x for each in sets for x in ("--set", each))).stdout
        )
        return told["train"]["gpus"], told["train"]["groups"].get("dp", {}).get("ranks", 1)

    assert groups() == (8, 8)
    assert groups(f"{OF}.parallel.tp=4") == (8, 2)
    assert groups(f"{OF}.parallel={{tp: 4, dp: 2}}") == (8, 2)
    assert groups(f"{OF}.parallel={{tp: 2, dp: 8}}", f"{OF}.gpus=null") == (16, 8)
    wrong = sim("run", scenario, "--set", f"{OF}.parallel={{tp: 2, dp: 8}}")
    assert wrong.exit_code == 2
    assert "workload.train.parallel: tp·cp·pp·dp = 16 ranks do not fill 8 GPUs" in wrong.stderr


def test_best_and_runner_up_are_those_of_the_table(scenario: str, tmp_path: Path) -> None:
    """Against an independent look at the table; of equal rows the first is meant."""
    out = tmp_path / "t.csv"
    done = sim(
        "sweep", scenario, *varied(*VARY), "--minimise", "step_time", "--subject-to", "fits", "--out", out
    )
    assert done.exit_code == 0, done.output
    rows = [*csv.DictReader(out.read_text(encoding="utf-8").splitlines())]
    order = sorted(range(len(rows)), key=lambda i: (int(rows[i]["train.step_ns"]), i))
    told = json.loads(sim("sweep", scenario, *varied(*VARY), "--minimise", "step_time", "--json").stdout)
    best, second = (
        {key: str(value) for key, value in told[which].items()} for which in ("best", "runner_up")
    )
    for got, i in ((best, order[0]), (second, order[1])):
        assert all(
            got[key] == value for key, value in rows[i].items() if key.startswith(("workload", "train"))
        )
    assert told["answers"] == len(told["rows"]) == len(rows)
    assert sum(told["left_out"].values()) + len(rows) == 36
    lines = done.stdout.splitlines()
    names = {
        "tp": "parallel.tp",
        "pp": "parallel.pp",
        "chunks": "parallel.chunks",
        "micro_batch": "micro_batch",
    }
    for word, row in (("best", rows[order[0]]), ("runner-up", rows[order[1]])):
        called = ", ".join(f"{name}={row[f'{OF}.{key}']}" for name, key in names.items())
        (line,) = (line for line in lines if line.startswith(f"{word}: "))
        assert line.startswith(f"{word}: {called}, {row['policy']}: step_time ")
    assert sum("exposed communication" in line and "GiB free" in line for line in lines) == 2
    assert f"{len(rows)} points ran: {len(rows)} done" in lines


def test_limits_and_memory_that_is_short(scenario: str) -> None:
    arguments = ["sweep", scenario, *varied(f"{OF}.micro_batch=1,2"), "--json", "--maximise", "tokens_per_s"]
    rows = json.loads(sim(*arguments).stdout)["rows"]
    small, large = (row["train.peak_bytes"] for row in rows)
    assert small < large
    limited = json.loads(sim(*arguments, "--subject-to", f"step_memory<={small}B").stdout)
    assert (limited["answers"], limited["best"], limited["runner_up"]) == (1, rows[0], None)
    between = f"{OF}.memory={(small + large) // 2}B"
    short = sim(*arguments, "--set", between)
    told = json.loads(short.stdout)
    assert (short.exit_code, told["answers"]) == (0, 1)
    assert told["rows"][1]["error"].startswith("pipeline rank 0 (8 GPUs) needs ")
    assert told["rows"][1]["train.peak_bytes"] == large  # what it needs is told all the same
    limits = ("--subject-to", "mfu>=0.1%", "--subject-to", f"step_memory<={small - 1}B")
    shown = sim(*arguments[:-3], "--minimise", "step_time", "--set", between, *limits).stdout
    assert "2 points ran: 1 done (0 within the limits), 1 out of memory" in shown
    assert f"\n  step_memory at most {small - 1}B: the nearest is {format_bytes(small, iec=True)}\n" in shown
    nothing = sim(*arguments[:-3], "--minimise", "step_time", "--set", f"{OF}.memory=1MB")
    assert nothing.exit_code == 1
    assert "no point is an answer" in nothing.stdout
    assert "2 points ran: 0 done, 2 out of memory" in nothing.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--minimise", "steptime"],
            "--minimise steptime: unknown result 'steptime'; did you mean 'step_time'?",
        ),
        (["--minimise", "order"], "--minimise order: has no least and no most"),
        (["--minimise", "fits"], "--minimise fits: has no least and no most"),
        (["--minimise", "busy"], "--minimise busy: is of a device: write busy.NAME"),
        (["--minimise", "mfu", "--maximise", "mfu"], "give --minimise or --maximise, not both"),
        (
            ["--subject-to", "fits"],
            "--subject-to is a limit on an answer: say what to --minimise or --maximise",
        ),
        (["--minimise", "mfu", "--subject-to", "mfu"], "give its limit, too, as in 'mfu<=...'"),
        (
            ["--minimise", "mfu", "--subject-to", "mfu<4"],
            "'mfu<4': give a result and its limit, as in 'mfu>=40%'",
        ),
        (["--minimise", "mfu", "--subject-to", "step_memory<=80"], "80 has no unit"),
        (["--minimise", "goodput.x"], "goodput.x: this run has no such result"),
        (["--minimise", "peak_memory.gpu9"], "peak_memory.gpu9: this run has no such result"),
    ],
)
def test_what_cannot_be_sought_is_refused(scenario: str, arguments: list[str], says: str) -> None:
    done = sim("sweep", scenario, *varied("seed=1,2"), *arguments)
    assert done.exit_code == 2
    assert says in done.stderr
    assert "Traceback" not in done.output


def test_only_wrong_values_are_no_sweep(scenario: str, tmp_path: Path) -> None:
    out = tmp_path / "t.csv"
    done = sim("sweep", scenario, *varied(f"{OF}.micro_batch=-2,-1"), "--out", out)
    assert done.exit_code == 2
    assert f"--vary {OF}.micro_batch=-2" in done.stderr
    assert not out.exists()
    none = sim("sweep", scenario, *varied(f"{OF}.parallel.tp=3,5"))
    assert none.exit_code == 2
    assert none.stderr == "none of the 2 points fits: 2 tp·cp·pp does not fill the GPUs\n"


def test_another_goal_does_not_run_points_again_that_have_its_results(scenario: str, tmp_path: Path) -> None:
    points, _ = Variants(scenario).fitting(points_of(VARY))
    out = tmp_path / "t.csv"

    def begun(results: tuple[str, ...], last: int) -> list[int]:
        told: list[int] = []

        def stop(k: int, n: int) -> None:
            told.append(k)
            if k == last:
                raise KeyboardInterrupt

        with pytest.raises(Interrupted):
            sweep(Variants(scenario, results=results), points, out=out, done=stop)
        return told

    assert begun(("step_time",), 2) == [0, 1, 2]
    assert begun(("mfu",), 3) == [2, 3]
    assert begun(("busy.rank0",), 1) == [0, 1]  # of which rows have no column yet


@pytest.mark.slow
def test_processes_and_a_cluster_give_the_same_table_and_answer(scenario: str, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="needs the extra dask")
    common = ["sweep", scenario, *varied(*VARY[:2]), "--minimise", "step_time", "--subject-to", "mfu>=0.01%"]
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        ways = {"one": [], "two": ["--dask", cluster.scheduler_address]}
        done = {name: sim(*common, *how, "--out", tmp_path / f"{name}.csv") for name, how in ways.items()}
    assert done["one"].exit_code == done["two"].exit_code == 0
    assert done["one"].stdout == done["two"].stdout
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()


@pytest.mark.slow
def test_a_killed_sweep_goes_on_and_has_each_point_once(scenario: str, tmp_path: Path) -> None:
    sim_command = str(Path(sys.executable).with_name("sim"))
    arguments = [sim_command, "sweep", scenario, *varied(*VARY, "seed=1,2,3,4")]
    arguments += ["--minimise", "step_time"]
    whole, killed = tmp_path / "whole.csv", tmp_path / "killed.csv"
    expected = subprocess.run([*arguments, "--out", whole], capture_output=True, text=True, check=True)
    points = Path(f"{killed}.points")
    with subprocess.Popen([*arguments, "--jobs", "2", "--out", killed], start_new_session=True) as process:
        while not (points.exists() and points.read_bytes().count(b"\n") >= 10) and process.poll() is None:
            time.sleep(0.01)
        process.kill()
    for _ in range(200):  # its processes end, too
        time.sleep(0.05)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, 0)
            continue
        break
    else:
        pytest.fail("a process of the killed sweep still runs")
    kept = points.read_text(encoding="utf-8").splitlines()
    assert 10 <= len(kept) < len(whole.read_text(encoding="utf-8").splitlines()) - 1
    again = subprocess.run(
        [*arguments, "--jobs", "2", "--out", killed], capture_output=True, text=True, check=True
    )
    assert killed.read_bytes() == whole.read_bytes()
    assert again.stdout == expected.stdout
    assert points.read_bytes() == Path(f"{whole}.points").read_bytes()


def test_the_first_of_equal_rows_is_the_best() -> None:
    rows = [{"makespan_ns": ns, "error": error} for ns, error in ((5, None), (1, "no"), (3, None), (3, None))]
    goal = read_goal("makespan", None)
    assert goal == Goal("makespan")
    assert goal.rank_answers(rows) == [2, 3, 0]
    assert Goal("makespan", most=True).rank_answers(rows) == [0, 2, 3]
    assert Goal("makespan").answer(rows[:2]) == {"answers": 1, "best": rows[0], "runner_up": None}
    assert Goal("makespan").answer([]) == {"answers": 0, "best": None, "runner_up": None}


def test_points_that_are_the_same_in_every_number_are_one_answer(scenario: str) -> None:
    """FSDP in a pipeline is ZeRO-1; a limit is told in the user's unit, and memory that is nearly full."""
    vary = varied(f"{OF}.parallel.sharding=zero-1,fsdp", f"{OF}.parallel.pp=2", f"{OF}.micro_batch=1,2")
    found = ("--minimise", "step_time", "--subject-to", "step_memory<=20GiB")
    told = json.loads(sim("sweep", scenario, *vary, *found, "--json").stdout)
    assert told["answers"] == 4
    assert told["best"]["train.step_ns"] < told["runner_up"]["train.step_ns"]
    lines = sim("sweep", scenario, *vary, *found).stdout.splitlines()
    assert "(2 best of 4; 2 of these have the same numbers as another one)" in lines
    at = next(i for i, line in enumerate(lines) if line.startswith("best: sharding=zero-1"))
    assert "(step_memory at most 20GiB)" in lines[at + 1]
    assert "too little to rely on" not in lines[at + 1]
    assert lines[at + 2].startswith("  the same in every number: sharding=fsdp")
    assert "+0.00%" not in lines[at + 3]
    full = ("--set", f"{OF}.memory={told['best']['train.peak_bytes'] + 1000}B")
    assert "free (0.0%), too little to rely on:" in sim("sweep", scenario, *vary, *found, *full).stdout
    best = ("--set", f"{OF}.parallel.pp=2", "--set", f"{OF}.micro_batch={told['best'][f'{OF}.micro_batch']}")
    shown = sim("run", scenario, *best, *full).stdout
    assert "1000 B (0.0%) free, too little to rely on:" in shown
    assert "stands for 4 GPUs" in shown


EXPECTED = """\
expect:
  step_time: {at_most: 100ms}
  tokens_per_s: {at_least: 1000}
  mfu: {at_least: 0.01%, at_most: 60%}
  step_memory: {at_most: 80GB}
  step_bubble: 0%
  exposed: {at_least: 0ns}
  fits: true
"""


def test_results_of_a_training_step_can_be_expected(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO + EXPECTED, encoding="utf-8")
    assert sim("check", path).exit_code == 0
    told = json.loads(sim("run", path, "--json").stdout)
    values = {each["what"]: each["actual"] for each in told["expect"]}
    train = told["train"]
    assert values == {
        "step_time": told["makespan_ns"],
        "tokens_per_s": train["tokens_per_s"],
        "mfu": train["mfu"],
        "step_memory": max(rank["peak_bytes"] for rank in train["ranks"]),
        "step_bubble": 0.0,
        "exposed": train["exposed_ns"],
        "fits": True,
    }
    assert told["devices"]["rank0"]["peak_memory_bytes"] == values["step_memory"]
    short = SCENARIO.replace("    gpus: 8", "    gpus: 8\n    memory: 1MB")
    path.write_text(short + "expect: {fits: true}\n", encoding="utf-8")
    wrong = sim("check", path)
    assert wrong.exit_code == 1
    assert "fits is false, expected true" in wrong.output
    path.write_text(short + "expect: {fits: false}\n", encoding="utf-8")
    assert sim("check", path).exit_code == 0  # that it does not is what was expected
    path.write_text(short, encoding="utf-8")
    assert sim("run", path).exit_code == 1
    assert load_scenario(path).case().misfit() is None
