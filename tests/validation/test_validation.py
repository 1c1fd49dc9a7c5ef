"""Validation as a program: its steps, its gates, and the recorded data as a ratchet."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread
from typer.testing import CliRunner

from devices.cost.calibration import Calibration, load_calibration, load_tables
from devices.machine import make_device, make_machine
from scenarios.cli import app
from sim import GraphBuilder
from sim.base.errors import InputError, RunError, UnknownNameError
from sim.base.plugins import Origin
from sim.job.costs import costs_ns
from sim.policy import Policy
from tools.pages.validation import page
from validation import calibrate as calibrating
from validation import steps
from validation.calibrate import grid, session
from validation.cases import step_files
from validation.cases.calibrated import lookup, quantity, save_calibration
from validation.cases.case import Case, CaseOp
from validation.cases.draws import EXPERIMENTS, draw
from validation.command import main
from validation.experiments.measure import measure
from validation.experiments.predict import draw_plans, predict, predict_case
from validation.experiments.prediction_errors import inversions, rebuild, spread
from validation.real.gate import Sentinel, verdict
from validation.real.statistics import kendall_tau, summary
from validation.real.timer import Timer
from validation.real.work import Observation
from validation.report.experiment_report import experiment_report, report

MS = 1_000_000
VALIDATION = Path(__file__).resolve().parents[2] / "validation"
RECORDED = sorted(path.parent for path in VALIDATION.glob("data/*/report.json"))
TIMER = [path for path in RECORDED if "timer" in path.name]


def calibration(**changes: Any) -> Calibration:
    def fixed(ns: int) -> dict[str, int]:
        return {"median": ns}

    quantities = {"issue_ns": 2000, "launch_latency_ns": 30_000, "gap_ns": 5000, "event_ns": 40_000}
    return Calibration(
        "timer",
        "made up",
        {"date": "2026-01-01"},
        {name: fixed(ns) for name, ns in {**quantities, "decision_ns": 30_000, **changes}.items()},
        [
            {
                "kind": "sleep",
                "axes": ["sleep_ns"],
                "context": "warm",
                "rows": [[MS, MS + 50_000], [20 * MS, 20 * MS + 80_000]],
                "statistics": [],
            }
        ],
    )


# -- drawing and cases --------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["timer", "threads", "cuda"])
@pytest.mark.parametrize("experiment", list(EXPERIMENTS))
def test_cases_are_drawn_alike_every_time_and_apart_by_split(experiment: str, backend: str) -> None:
    first, again = draw(experiment, backend), draw(experiment, backend)
    assert [case.digest for case in first] == [case.digest for case in again]
    names = [case.name for case in first]
    assert len(set(names)) == len(names)
    others = {case.digest for case in draw(experiment, backend, "development")}
    assert others.isdisjoint(case.digest for case in first)
    assert [Case.from_json(case.to_json()).digest for case in first] == [case.digest for case in first]
    for case in first[:3]:
        assert (case.plan() is None) == (case.policy is not None)


def test_a_changed_case_is_noticed(tmp_path: Path) -> None:
    draw_plans("b-fork-join", "timer", tmp_path)
    path = step_files.step_path(tmp_path, "plans", "b-fork-join")
    content = json.loads(path.read_text())
    content["cases"][0]["case"]["ops"][0]["facts"]["sleep_ns"] += 1
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="was changed after it was drawn"):
        predict("b-fork-join", tmp_path, calibration())


# -- gates ----------------------------------------------------------------------------------------


def observed(delayed_ns: int = 0) -> Observation:
    case = draw("b-fork-join", "timer")[0]
    ns = case.durations_ns(calibration())
    from validation.experiments.predict import simulate_case

    return Observation(simulate_case(case, ns, None), [], delayed_ns)


def test_gates_look_at_the_machine_only() -> None:
    quiet = Sentinel(1000, 1010)
    assert verdict("timer", [observed()], [quiet]) == ""
    assert "stood in the way" in verdict("timer", [observed(delayed_ns=10 * MS)], [quiet])
    assert "moved by 5.0%" in verdict("timer", [observed()], [Sentinel(1000, 1050)])
    assert verdict("threads", [observed()], [Sentinel(1000, 1050)]) == ""
    assert "off what it was" in verdict("threads", [observed()], [Sentinel(1000, 1050)], calibrated_ns=1500)


def test_a_disturbed_machine_gets_no_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Disturbed(Timer):
        def execute(self, *given: Any, **options: Any) -> Observation:
            seen = super().execute(*given, **options)
            return dataclasses.replace(seen, delayed_ns=seen.makespan_ns)

    monkeypatch.setattr(grid, "GRID", {"timer": {"sleep": [(MS,)]}})
    monkeypatch.setattr("validation.cases.backends.BACKENDS", {"timer": Disturbed})
    out = tmp_path / "timer.json"
    result = CliRunner().invoke(app, ["calibrate", "--backend", "timer", "--out", str(out)])
    assert result.exit_code == 1
    assert "nothing is written" in result.output
    assert not out.exists()


def test_calibrating_the_timer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(grid, "GRID", {"timer": {"sleep": [(MS,), (2 * MS,)]}})
    monkeypatch.setattr("validation.real.gate.MAX_DELAY", 1e9)  # this test is about what is written
    monkeypatch.setattr("validation.real.gate.MAX_DRIFT", {"timer": 1e9})
    monkeypatch.setattr(session, "_MAX_MOVED", {"timer": 1e9})
    found = calibrating.calibrate("timer")
    assert {"decision_ns", "event_ns", "gap_ns", "issue_ns", "launch_latency_ns"} <= set(found.quantities)
    assert lookup(found, "sleep", sleep_ns=2 * MS) >= 2 * MS
    save_calibration(found, tmp_path / "c.json")
    again = load_calibration(tmp_path / "c.json")
    assert again.quantities == found.quantities
    assert again.provenance == found.provenance


# -- calibrations as files ------------------------------------------------------------------------


def test_a_scenario_takes_a_calibration_as_cost_table(tmp_path: Path) -> None:
    save_calibration(calibration(), tmp_path / "timer.json")
    assert [table.kind for table in load_tables(tmp_path / "timer.json")] == ["sleep"]
    machine = make_machine(
        {"devices": {"gpu0": {"kind": "gpu", "cost": {"table": "timer.json"}}}}, origin=Origin(tmp_path)
    )
    b = GraphBuilder("one")
    b.op("a", kind="sleep", attributes={"sleep_ns": MS})
    assert costs_ns(b.build(), machine.devices[0]).tolist() == [MS + 50_000]


def test_a_calibration_of_a_gpu_has_the_gap_in_it_and_a_table_for_each_data_type(tmp_path: Path) -> None:
    rows = [[256, 1, 5000], [512, 1, 9000]]
    table = {"kind": "matmul", "axes": ["size", "repeat"], "context": "warm", "rows": rows, "statistics": []}
    single = {**table, "context": "warm, fp32", "rows": [[256, 1, 50_000], [512, 1, 90_000]]}
    gpu_made = dataclasses.replace(calibration(), backend="cuda", tables=[table, single])
    save_calibration(gpu_made, tmp_path / "c.json")
    cost = {"table": str(tmp_path / "c.json")}
    b = GraphBuilder("products")
    for dtype in ("bf16", "fp32", "fp8"):
        b.op(dtype, kind="matmul", dtype=dtype, attributes={"size": 256, "repeat": 1})
    gpu = make_device("gpu0", {"kind": "gpu", "gap": "1us", "cost": cost})
    assert costs_ns(b.build(), gpu).tolist() == [4000, 49_000, -1]


def test_what_is_no_calibration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    with pytest.raises(InputError, match="'schema' must be"):
        load_calibration(path)
    path.write_text('{"schema": "sim.calibration/1", "extra": 1}')
    with pytest.raises(InputError, match="has the keys"):
        load_calibration(path)
    made = dataclasses.asdict(calibration())
    for key, value, said in (
        ("quantities", {"issue_ns": {"median": -5}}, "the median of 'issue_ns' is -5"),
        ("quantities", {"issue_ns": {}}, "the key 'median' is missing"),
        ("quantities", None, "'quantities' is None"),
        ("sentinels", [{"block": 1, "accepted": True}], "a block of 'sentinels' is"),
        ("tables", [{"kind": "sleep", "axes": [3], "context": "warm", "rows": [[1, 2]]}], "axes of a table"),
    ):
        path.write_text(json.dumps({"schema": "sim.calibration/1", **made, key: value}))
        with pytest.raises(InputError, match=said):
            load_calibration(path)
    with pytest.raises(InputError, match="knows no 'conv'"):
        lookup(calibration(), "conv", size=3)
    with pytest.raises(InputError, match="has no malloc_ns"):
        quantity(calibration(), "malloc_ns")


# -- numbers --------------------------------------------------------------------------------------


def test_summary_and_tau() -> None:
    found = summary([5, 1, 3, 2, 4])
    assert (found.median, found.mad, found.n) == (3, 1, 5)
    assert found.low <= found.median <= found.high
    assert summary([7]) == (7, 0, 7, 7, 7, 7, 1)
    assert kendall_tau([0, 1, 2, 3], [0, 1, 3, 2]) == pytest.approx(4 / 6)
    assert spread([0.1, -0.3]) == {
        "mean": pytest.approx(0.2),
        "max": 0.3,
        "bias": pytest.approx(-0.1),
        "n": 2,
    }
    assert inversions([0, 10, 100], [0, 100, 10], gap_ns=20) == 1
    assert inversions([0, 10, 100], [10, 0, 100], gap_ns=20) == 0


# -- the whole way, with kernels long enough for any machine ---------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """One experiment of two short cases, and gates that let everything pass."""

    def cases(backend: str, split: str) -> list[Case]:
        ops = [
            CaseOp(f"o{i}", "sleep", [f"o{i - 1}"] if i else [], {"sleep_ns": 2 * MS}, "dev0", i % 2)
            for i in range(5)
        ]
        live = [dataclasses.replace(op, device="cpu0", lane=0) for op in ops]
        return [
            Case("plan", "e-random", split, ops, {"dev0": {"streams": 2}}),
            Case("live", "e-random", split, live, {"cpu0": {"workers": 2}}, policy={"name": "ready-queue"}),
        ]

    monkeypatch.setattr("validation.cases.draws.EXPERIMENTS", {"e-random": cases})
    monkeypatch.setattr("validation.experiments.measure.verdict", lambda *given: "")


@pytest.fixture
def without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let reports have no pictures, which take longer than all else."""
    monkeypatch.setattr("validation.steps._draw", lambda *given: [])


@pytest.mark.usefixtures("small")
@pytest.mark.slow
def test_steps_are_joined_by_files_and_resumed(tmp_path: Path) -> None:
    save_calibration(calibration(), tmp_path / "calibration.json")
    said: list[str] = []
    result = steps.run("timer", tmp_path, ["e-random"], runs=3, say=said.append)
    [experiment] = result["experiments"]
    assert experiment["predicted_before_measuring"]
    assert experiment["metrics"]["prediction.n"] == 6
    assert experiment["metrics"]["tau.min"] == 1
    assert not experiment["wrong"]
    for name in ("report.json", "report.md", "scatter.png", "worst.png"):
        assert (tmp_path / name).stat().st_size > 0
    steps.run("timer", tmp_path, ["e-random"], runs=3, say=said.append)
    assert said[-1] == "e-random: measured before"
    for found, before in ((calibration(), True), (calibration(event_ns=50_000), False)):  # one made since
        anew = experiment_report("e-random", tmp_path, "timer", found, recompute=True)
        assert anew["predicted_before_measuring"] == before
    shutil.rmtree(tmp_path / "predictions")
    later = experiment_report("e-random", tmp_path, "timer", calibration(), recompute=True)
    assert not later["predicted_before_measuring"]


@pytest.mark.usefixtures("small")
def test_without_the_simulator_what_is_measured_is_kept_and_reported_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("validation.cases.backends.BACKENDS", {"timer": Timer})
    out = tmp_path / "there"
    out.mkdir()
    save_calibration(calibration(), out / "calibration.json")
    (tmp_path / "empty" / "simpy").mkdir(parents=True)  # a folder of that name is no simpy
    with monkeypatch.context() as without:
        without.setattr(sys, "path", [str(tmp_path / "empty"), *(p for p in sys.path if "packages" not in p)])
        for name in [name for name in sys.modules if name.partition(".")[0] == "simpy"]:
            without.delitem(sys.modules, name)
        result, text = steps.validate(
            "timer", out, "e", None, dry_run=False, report=None, runs=3, say=lambda text: None
        )
        with pytest.raises(RunError, match="simpy is missing here"):
            steps.validate(None, None, "e", None, dry_run=False, report=out)
    assert result is None
    assert "sim validate --report there" in text
    assert not (out / "predictions").exists()
    themed = ["--theme", "dark"]
    told = CliRunner().invoke(app, ["validate", "--report", str(out), "--experiments", "e", *themed])
    assert "| e-random | 2 | 6 |" in told.output  # whether a goal is missed is this machine's affair
    assert "predicted after measuring" in (out / "report.md").read_text()
    assert imread(out / "scatter.png")[-1, -1, :3].max() < 0.2


@pytest.mark.usefixtures("small")
def test_a_prediction_that_fails_does_not_lose_the_measurement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*given: Any) -> None:
        raise ZeroDivisionError("a bug")

    save_calibration(calibration(), tmp_path / "calibration.json")
    monkeypatch.setattr("validation.experiments.predict.predict", broken)
    said: list[str] = []
    steps.run("timer", tmp_path, ["e-random"], runs=3, say=said.append)
    assert any("measured without a prediction" in text and "a bug" in text for text in said)
    measured = step_files.read(tmp_path, "measurements", "e-random")
    assert measured is not None
    assert [len(entry["runs"]) >= 3 for entry in measured["cases"]] == [True, True]


@pytest.mark.slow
def test_pictures_may_be_missing_from_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(TIMER[0], tmp_path / "there")
    for picture in (tmp_path / "there").glob("*.png"):
        picture.unlink()
    lacks = steps._lack
    monkeypatch.setattr(steps, "_lack", lambda name: " (not here)" if name == "pandas" else lacks(name))
    result, _ = steps.validate(None, None, None, None, dry_run=False, report=tmp_path / "there")
    assert result is not None
    assert not list((tmp_path / "there").glob("*.png"))
    assert ".png" not in (tmp_path / "there" / "report.md").read_text()
    recorded = json.loads((TIMER[0] / "report.json").read_text())["experiments"]
    names = [entry["experiment"] for entry in recorded]
    assert [entry["experiment"] for entry in result["experiments"]] == names  # and none that it does not have


def test_what_was_left_out_is_told() -> None:
    told = CliRunner().invoke(app, ["validate", "--out", "x"])
    assert (told.exit_code, "--backend timer, threads or cuda; or --report DIR" in told.output) == (2, True)
    told = CliRunner().invoke(app, ["validate", "--backend", "timer"])
    assert (told.exit_code, "--out DIR" in told.output) == (2, True)


@pytest.mark.usefixtures("small", "without_figures")
def test_a_lost_case_does_not_lose_the_others(tmp_path: Path) -> None:
    class Lame(Timer):
        def drive(self, *given: Any) -> Observation:
            raise InputError("cannot drive today")

    save_calibration(calibration(), tmp_path / "calibration.json")
    result = steps.run("timer", tmp_path, ["e-random"], runs=3, executor=Lame())
    [experiment] = result["experiments"]
    assert experiment["inconclusive"] == [{"case": "live", "why": "cannot drive today"}]
    assert experiment["metrics"]["prediction.n"] == 3


_EDITS: dict[str, tuple[str, Any, str]] = {
    "a negative makespan": ("runs.0.makespan_ns", -5, "'makespan_ns' has -5; it should be a whole number"),
    "no makespan": ("runs.0.makespan_ns", 0, "case '.*', run 0: 'makespan_ns' is 0"),
    "a run that is text": ("runs.1", "fast", "run 1: malformed"),
    "an end before its start": ("runs.0.end_ns.0", 0, "op 0 starts at .* and ends at 0 ns"),
    "a start that is a word": ("runs.0.start_ns.1", "soon", "'start_ns' has 'soon'"),
    "a column too short": ("runs.0.stream", [0], "need one number an op"),
    "clean or not": ("runs.0.clean", "yes", "run 0: 'clean' is 'yes'"),
    "no runs": ("runs", None, "'runs' is None"),
}


@pytest.mark.parametrize("edit", _EDITS)
def test_an_edited_measurement_is_refused(edit: str, tmp_path: Path) -> None:
    where, value, said = _EDITS[edit]
    there = tmp_path / "there"
    shutil.copytree(TIMER[0], there)
    path = there / "measurements" / "b-fork-join.json"
    content = json.loads(path.read_text())
    at: Any = content["cases"][0]
    *steps_to, last = (int(part) if part.isdigit() else part for part in where.split("."))
    for part in steps_to:
        at = at[part]
    at[last] = value
    path.write_text(json.dumps(content))
    told = CliRunner().invoke(app, ["validate", "--report", str(there), "--experiments", "b"])
    assert told.exit_code == 2
    assert re.search(f"b-fork-join.json: .*{said}", told.output.replace("\n", " "))


def test_a_measurement_of_another_machine_is_told(tmp_path: Path) -> None:
    """Streams that there are not, and other numbers of ops, lose an experiment and not the report."""
    for column, value, said in (
        ("stream", 99, "2 streams, and a measured run used 99"),
        (None, None, "and a measured run has not"),
    ):
        there = tmp_path / str(column)
        shutil.copytree(TIMER[0], there)
        path = there / "measurements" / "b-fork-join.json"
        content = json.loads(path.read_text())
        for run in content["cases"][0]["runs"]:
            for name in ("issue_ns", "start_ns", "end_ns", "stream"):
                if column is None:
                    run[name].pop()
                elif name == column:
                    run[name][0] = value
        path.write_text(json.dumps(content))
        result, _ = steps.validate(None, None, "b", None, dry_run=False, report=there)
        assert result is not None
        assert said in result["experiments"][0]["why"]


@pytest.mark.usefixtures("small", "without_figures")
def test_wrong_results_fail_the_report(tmp_path: Path) -> None:
    class Broken(Timer):
        def execute(self, *given: Any, **options: Any) -> Observation:
            return dataclasses.replace(super().execute(*given, **options), wrong=["o3"])

    save_calibration(calibration(), tmp_path / "calibration.json")
    result = steps.run("timer", tmp_path, ["e-random"], runs=3, executor=Broken())
    assert result["failed"]
    assert "wrong results" in result["experiments"][0]["why"]


@pytest.mark.usefixtures("small")
def test_time_that_is_up_skips_and_says_so(tmp_path: Path) -> None:
    draw_plans("e-random", "timer", tmp_path)
    measure("e-random", tmp_path, "timer", Timer(), runs=1, deadline=0.0)
    measured = step_files.read(tmp_path, "measurements", "e-random")
    assert measured is not None
    assert [entry["skipped"] for entry in measured["cases"]] == ["the time was up"] * 2


_WITHOUT = """
import importlib.abc, runpy, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"simpy", "pydantic", "pandas", "typer", "rich", "yaml", "matplotlib"}:
            raise ImportError(f"{name} is not to be imported here", name=name)
sys.meta_path.insert(0, Blocked())
"""


@pytest.mark.usefixtures("small")
@pytest.mark.slow
def test_measuring_needs_numpy_alone(tmp_path: Path) -> None:
    draw_plans("e-random", "timer", tmp_path)
    code = _WITHOUT + (
        "from pathlib import Path\n"
        "from validation.experiments.measure import measure\n"
        "from validation.real.timer import Timer\n"
        f"measure('e-random', Path({str(tmp_path)!r}), 'timer', Timer(), runs=1, attempts=2)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=VALIDATION.parent, timeout=60
    )
    assert done.returncode == 0, done.stderr
    measured = step_files.read(tmp_path, "measurements", "e-random")
    assert measured is not None
    assert all(entry["runs"] for entry in measured["cases"])


@pytest.mark.slow
def test_the_command_for_gpus_needs_numpy_and_torch_alone() -> None:
    code = _WITHOUT + (
        "import validation.gpu.cuda\n"
        "from validation.__main__ import main\n"
        "raise SystemExit(main(['--backend', 'cuda', '--dry-run']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=VALIDATION.parent, timeout=60,
        env={**os.environ, "PYTHONPATH": "."},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "measurements/f-pipeline.json" in done.stdout
    _, _, missing = done.stdout.partition("Missing:")
    assert "simpy (not here): what is measured is predicted and reported later" in missing
    assert "libcuda (not here): no partitions of SMs" in missing
    total = int(done.stdout.split("in all, at most")[1].split()[0])
    assert total <= 540


@pytest.mark.parametrize(
    ("lies", "said"),
    [
        (
            "import typing\ndel typing.Self\nsys.version_info = (3, 10, 12, 'final', 0)\n",
            r"3\.11 or newer; .* is 3\.10\.12",
        ),
        ("sys.path = [p for p in sys.path if 'packages' not in p]\n", "numpy, and .* has none"),
    ],
)
def test_an_interpreter_that_will_not_do_is_told_in_a_line(lies: str, said: str) -> None:
    code = f"import sys, runpy\n{lies}runpy.run_module('validation', run_name='__main__')\n"
    done = subprocess.run(
        [sys.executable, "-c", code, "--backend", "cuda", "--dry-run"], capture_output=True, text=True,
        cwd=VALIDATION.parent, timeout=60, env={**os.environ, "PYTHONPATH": "."},
    )  # fmt: skip
    assert done.returncode == 2
    assert re.fullmatch(f"validation needs .*{said}", done.stderr.strip()), done.stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--backend timer --runs 0", "--runs 0: give 3 or more"),
        ("--backend timer --limit -5", "--limit -5: give the seconds, more than 0"),
        ("--backend timer --limit nan", "--limit nan: give the seconds"),
        ("--backend timer --experiments ,", "experiments ',' names none"),
        ("--backend timer --experiments c", "c-overlap: no case of it is measured on timer"),
        ("--backend nobody", "unknown backend 'nobody'"),
        ("--report THERE --experiments g", "g-memory: no case of it is measured on timer"),
        ("--report THERE --backend threads", "was measured on timer, not on threads"),
        ("--report THERE --dry-run --again", "leave out --dry-run and --again"),
    ],
)
def test_options_that_mean_nothing(options: str, said: str, tmp_path: Path) -> None:
    given = options.replace("THERE", str(TIMER[0])).split()
    out = [] if "--report" in given else ["--out", str(tmp_path / "out")]
    told = CliRunner().invoke(app, ["validate", *given, *out])
    assert told.exit_code == 2
    if "--runs" not in given:  # which the command line refuses itself
        assert said in told.output
    assert not (tmp_path / "out").exists() or "--experiments" in given
    if "nobody" not in given:
        assert main([*given, *out]) == 2


def test_a_folder_that_cannot_be_made_is_told_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["--backend", "timer", "--out", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'file'}: File exists\n"


def test_dry_run_lists_every_step() -> None:
    listed = steps.steps("cuda", list(EXPERIMENTS), calibrated=False)
    assert listed[0].writes == "calibration.json"
    assert {step.writes for step in listed} >= {f"measurements/{name}.json" for name in EXPERIMENTS}
    assert all(step.budget_s > 0 for step in listed)
    result = CliRunner().invoke(app, ["validate", "--backend", "timer", "--out", "x", "--dry-run"])
    assert result.exit_code == 0
    assert "writes x/report.json" in result.output
    assert not Path("x").exists()
    with pytest.raises(UnknownNameError, match="experiment 'z'"):
        steps.choose("z")
    with pytest.raises(InputError, match=r"nowhere\.json: no such file"):
        steps.validate("timer", None, None, Path("nowhere.json"), dry_run=True, report=None)


# -- what is recorded -----------------------------------------------------------------------------

RATCHET = {
    *("prediction.mean", "prediction.max", "replay.mean", "replay.max", "ratio.max"),
    *("allocated.mismatches", "allocated.max", "reserved.mismatches", "reserved.max"),
}


@pytest.mark.slow
@pytest.mark.parametrize("folder", RECORDED, ids=lambda folder: folder.name)
def test_no_recorded_error_grows(folder: Path) -> None:
    """Predict every recorded case anew: the simulator may come nearer to the measurements, never go away."""
    recorded = json.loads((folder / "report.json").read_text())
    names = [entry["experiment"] for entry in recorded["experiments"]]
    now = report(
        folder, recorded["backend"], load_calibration(folder / "calibration.json"), names, recompute=True
    )
    for before, after in zip(recorded["experiments"], now["experiments"], strict=True):
        assert not after.get("wrong")
        assert after["status"] == before["status"] or after["status"] == "met"
        for name, error in before.get("metrics", {}).items():
            if name in RATCHET:
                assert after["metrics"][name] <= error + 1e-9, f"{before['experiment']}: {name}"


@pytest.mark.parametrize("folder", TIMER, ids=lambda folder: folder.name)
def test_recorded_timer_runs_meet_the_goals(folder: Path) -> None:
    recorded = json.loads((folder / "report.json").read_text())
    assert not recorded["failed"]
    metrics = {entry["experiment"]: entry.get("metrics", {}) for entry in recorded["experiments"]}
    assert max(m["replay.max"] for m in metrics.values()) <= 0.02
    assert metrics["e-random"]["prediction.max"] <= 0.05
    assert metrics["f-pipeline"]["prediction.max"] <= 0.03
    assert metrics["f-pipeline"]["ratio.max"] <= 0.02
    assert metrics["d-head-of-line"]["ratio.max"] <= 0.03
    for name in ("a-chain", "b-fork-join", "d-head-of-line", "e-random", "f-pipeline"):
        assert metrics[name]["inversions"] == 0


@pytest.mark.parametrize("folder", TIMER, ids=lambda folder: folder.name)
def test_a_planted_model_fault_fails_the_report(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = Case._costs

    def twice(self: Case, *given: Any) -> dict[str, Any]:
        costs = right(self, *given)
        return costs | {"issue_ns": 2 * costs["issue_ns"]}

    found = load_calibration(folder / "calibration.json")
    assert experiment_report("a-chain", folder, "timer", found, recompute=True)["status"] == "met"
    monkeypatch.setattr(Case, "_costs", twice)
    faulty = report(folder, "timer", found, ["a-chain"], recompute=True)
    assert faulty["failed"]
    assert "prediction.mean" in faulty["experiments"][0]["why"]


def test_the_page_is_generated_from_what_is_recorded() -> None:
    assert (VALIDATION / "README.md").read_text() == page(VALIDATION)


@pytest.mark.parametrize("folder", TIMER, ids=lambda folder: folder.name)
def test_recorded_runs_kept_every_dependency(folder: Path) -> None:
    plans, measured = (step_files.read(folder, step, "e-random") for step in ("plans", "measurements"))
    assert plans is not None
    assert measured is not None
    for planned, entry in zip(plans["cases"], measured["cases"], strict=True):
        case, _ = step_files.read_case(planned)
        edges = case.job().graph.edges
        for run in entry["runs"]:
            start, end = np.array(run["start_ns"]), np.array(run["end_ns"])
            assert (end[edges.producer] <= start[edges.consumer]).all()
            assert isinstance(rebuild(case, run).makespan_ns, int)


def test_naive_predictors_are_bounds(tmp_path: Path) -> None:
    case = draw("e-random", "timer")[0]
    predicted = predict_case(case, calibration())
    naive = predicted["naive"]
    assert naive["critical path"] <= naive["no overheads"] <= predicted["makespan_ns"]
    assert naive["no overheads"] <= naive["sum of durations"]
    assert isinstance(case.make_policy(), Policy)
