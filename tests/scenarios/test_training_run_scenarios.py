"""``training_run:`` in a scenario: what may be said, what is printed, drawn and expected."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
from cli_runner import sim
from scenario_texts import write

from policies.recovery import RestartJob
from scenarios.training_run.lifecycle import live
from scenarios.training_run.plan import Checkpoints, Failure, Life, SlowDown, TrainingPlan
from scenarios.training_run.timeline import lanes_of, timeline
from sim.base import plugins

RUN = """\
name: a short run
machine: {devices: {gpu0: {kind: gpu}}}
workload: {ops: {step: {duration: 10s}}}
training_run:
  steps: 5
  workers: 2
  spares: 1
  checkpoint: {every: 2, save: 3s}
  restart: {job: 6s, worker: 2s}
  failures:
    psu: {at: [38s], worker: 0, repair: 1h}
  recovery: [restart-job, replace-worker]
"""


def told(folder: Path, text: str = RUN, *sets: str) -> dict[str, object]:
    """Return what ``--json`` tells of the training run."""
    settings = [word for each in sets for word in ("--set", each)]
    result = sim("run", write(folder, text), "--json", *settings)
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["training_run"]  # type: ignore[no-any-return]


def refused(folder: Path, *sets: str) -> str:
    """Return why a run with settings is refused."""
    settings = [word for each in sets for word in ("--set", each)]
    result = sim("run", write(folder, RUN), *settings)
    assert result.exit_code == 2, result.stdout
    return result.stderr


def test_what_is_told(tmp_path: Path) -> None:
    assert told(tmp_path)["recovery"]["restart-job"] == {  # type: ignore[index]
        "goodput": 50 / 77,
        "end_ns": 77 * 10**9,
        "steps": 5,
        "useful_ns": 50 * 10**9,
        "lost_ns": 15 * 10**9,
        "time_ns": {
            "computing": 55 * 10**9,
            "redoing": 10 * 10**9,
            "saving": 6 * 10**9,
            "detecting": 0,
            "restarting": 6 * 10**9,
            "waiting": 0,
        },
        "interruptions": 1,
        "interruptions_by_cause": {"psu": 1},
        "checkpoints": 2,
        "restarts": 1,
        "fewest_workers": 2,
    }


def test_what_is_printed(tmp_path: Path) -> None:
    lines = sim("run", write(tmp_path, RUN)).stdout.splitlines()
    assert "training run: 2 workers, 1 spare" in lines
    (row,) = (line.split() for line in lines if line.startswith("replace-worker"))
    assert row[:5] == ["replace-worker", "68.5%", "5", "73", "s"]
    assert row[-2:] == ["psu", "1"]
    long = sim("run", write(tmp_path, RUN), "--set", "training_run.steps=7200000").stdout
    assert " 23,000 h " in long


def test_the_step_is_the_scenarios(tmp_path: Path) -> None:
    """Two iterations of 10 s, one after the other, are two steps; a chain of two ops is a step of 20 s."""
    chain = RUN.replace("{step: {duration: 10s}}", "{a: {duration: 10s}, b: {duration: 10s, inputs: [a]}}")
    assert told(tmp_path, RUN, "iterations=2") == told(tmp_path)
    assert told(tmp_path, chain)["recovery"]["restart-job"]["useful_ns"] == 100 * 10**9  # type: ignore[index]


def test_sizes_and_counts_stand_for_times(tmp_path: Path) -> None:
    size = "training_run.checkpoint={every: 2, size: 30GB, bandwidth: 10GB/s, restore: 0}"
    assert told(tmp_path, RUN, size) == told(tmp_path)
    (tmp_path / "causes.csv").write_text("component,category,count\ngpu,GPU,30\nnic,Host,10\nfan,Host,0\n")
    base = ["training_run.steps=20000", "training_run.devices=8"]
    by_file = "training_run.failures={c: {file: causes.csv, over: 1000h, devices: 16}}"
    by_count = (
        "training_run.failures={'c: gpu': {count: 30, over: 1000h, devices: 16}, "
        "'c: nic': {kind: device, mtbf: 1600h}}"
    )
    found = told(tmp_path, RUN, *base, by_file)
    assert found == told(tmp_path, RUN, *base, by_count)
    assert found["interval"]["mtbf_ns"] == 25 * 3600 * 10**9  # type: ignore[index]
    assert set(found["recovery"]["restart-job"]["interruptions_by_cause"]) == {"c: gpu", "c: nic"}  # type: ignore[index]


def test_another_seed_other_failures(tmp_path: Path) -> None:
    base = ["training_run.steps=10000", "training_run.failures={gpu: {kind: device, mtbf: 5h}}"]
    found = [json.dumps(told(tmp_path, RUN, *base, f"seed={seed}")) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]


def test_what_is_left_of_a_replica_that_is_not_whole_does_not_compute(tmp_path: Path) -> None:
    """Worker 0 of 4 fails: three go on, or, if two hold a copy of the model together, the other two."""
    base = ["training_run.workers=4", "training_run.recovery=[shrink]"]
    runs = [told(tmp_path, RUN, *base, *more)["recovery"] for more in ([], ["training_run.replicas=2"])]
    assert [each["shrink"]["fewest_workers"] for each in runs] == [3, 2]  # type: ignore[index]


@pytest.mark.parametrize(("layout", "fewest"), [("{tp: 2, pp: 2}", 2), ("{ep: 4}", 2), ("{tp: 2}", 3)])
def test_a_step_of_training_says_how_many_workers_hold_the_model(
    tmp_path: Path, layout: str, fewest: int
) -> None:
    """Four workers with two GPUs each hold two or four copies; one worker fails."""
    model = "{layers: 4, hidden: 64, heads: 4, vocabulary: 128, experts: 4, top_k: 1}"
    sizes = f"model: {model}, calibration: h100-sxm, sequence: 32"
    step = f"{{train: {{{sizes}, batch: 32, gpus: 8, parallel: {layout}}}}}"
    sets = ["workers=4", "spares=0", "recovery=[shrink]", "steps=100000"]
    text = f"workload: {step}\n{RUN[RUN.index('training_run') :]}"
    for more in [], ["devices=2", "failures.gpu={kind: device, mtbf: 1000000h}"]:  # psu is of a worker
        run = told(tmp_path, text, *(f"training_run.{each}" for each in sets + more))
        assert run["recovery"]["shrink"]["fewest_workers"] == fewest  # type: ignore[index]


def test_a_copy_of_the_model_may_take_a_part_of_a_worker(tmp_path: Path) -> None:
    """Three workers with eight GPUs hold two copies on twelve each, two workers hold one: half the pace."""
    model = "{layers: 4, hidden: 96, heads: 3, vocabulary: 129}"
    sizes = f"model: {model}, calibration: h100-sxm, sequence: 33, batch: 32"
    step = f"{{train: {{{sizes}, gpus: 24, parallel: {{tp: 3, pp: 4}}}}}}"
    sets = ["workers=3", "spares=0", "recovery=[shrink]", "failures.psu.at=[0s]", "restart=0s"]
    text = f"workload: {step}\n{RUN[RUN.index('training_run') :]}"
    run = told(tmp_path, text, *(f"training_run.{each}" for each in [*sets, "checkpoint.save=0s"]))
    assert run["recovery"]["shrink"]["goodput"] == 1 / 2  # type: ignore[index]


def test_no_interval_is_best_where_the_formula_does_not_hold(tmp_path: Path) -> None:
    assert told(tmp_path)["interval"] is None
    chance = "training_run.failures={gpu: {kind: device, mtbf: 5h}}"
    later = "training_run.checkpoint={every: 2, save: 3s, asynchronous: true}"
    assert told(tmp_path, RUN, chance)["interval"] is not None
    assert told(tmp_path, RUN, chance, later)["interval"] is None


def test_llama_3_as_it_was_counted(tmp_path: Path, data_dir: Path) -> None:
    """419 interruptions in 54 days are one in 3.093 h; the run takes seconds on 16,384 devices."""
    table = (data_dir / "cluster" / "llama3_interruptions.csv").read_text(encoding="utf-8")
    (tmp_path / "llama3.csv").write_text(table, encoding="utf-8")
    text = """\
machine: {devices: {gpu0: {kind: gpu}}}
workload: {ops: {step: {duration: 10s}}}
training_run:
  duration: 1296h
  workers: 2048
  devices: 8
  checkpoint: {every: 465s, save: 10s}
  restart: 10min
  failures: {all: {file: llama3.csv, over: 1296h, devices: 16384}}
  recovery: [restart-job]
"""
    found = told(tmp_path, text)
    run = found["recovery"]["restart-job"]  # type: ignore[index]
    assert found["interval"]["mtbf_ns"] == round(1296 * 3600e9 / 419)  # type: ignore[index]
    assert abs(run["interruptions"] - 419) < 3 * 419**0.5
    assert run["goodput"] > 0.9
    assert len(run["interruptions_by_cause"]) == 18


# -- expectations and pictures ---------------------------------------------------------------------


def test_goodput_may_be_expected(tmp_path: Path) -> None:
    expected = RUN + "expect: {goodput.replace-worker: {at_least: 68%}, run_end.restart-job: 77s}\n"
    assert sim("check", write(tmp_path, expected)).exit_code == 0
    missed = sim("check", write(tmp_path, RUN + "expect: {goodput.replace-worker: {at_least: 69%}}\n"))
    assert missed.exit_code == 1
    assert "goodput.replace-worker is 0.6849315068, expected at least 0.69" in missed.stdout
    unknown = sim("run", write(tmp_path, RUN + "expect: {goodput.shrink: 1}\n"))
    assert unknown.exit_code == 2
    assert "unknown recovery 'shrink'" in unknown.stderr


def test_a_sweep_has_goodput(tmp_path: Path) -> None:
    out = tmp_path / "sweep.csv"
    vary = "training_run.checkpoint.every=1,2"
    result = sim("sweep", write(tmp_path, RUN), "--vary", vary, "--out", out, "--jobs", 1)
    assert result.exit_code == 0, result.stderr
    assert "restart-job.goodput" in result.stdout
    assert "64.9%" in result.stdout
    assert "replace-worker.goodput" in out.read_text()
    best = sim("sweep", write(tmp_path, RUN), "--vary", vary, "--maximise", "goodput.restart-job")
    assert "goodput.restart-job 64.9%" in best.stdout


@pytest.mark.parametrize(("devices", "told"), [("devices: 4,", True), ("devices: 2,", False), ("", True)])
def test_a_step_on_another_number_of_gpus_is_told(tmp_path: Path, devices: str, told: bool) -> None:
    model = "{layers: 2, hidden: 64, heads: 4, vocabulary: 128}"
    step = (
        f"{{train: {{model: {model}, calibration: h100-sxm, sequence: 32, batch: 4, parallel: {{dp: 4}}}}}}"
    )
    causes = "failures: {gpu: {kind: device, mtbf: 10h}}, recovery: [restart-job]"
    path = write(tmp_path, f"workload: {step}\ntraining_run: {{steps: 5, workers: 2, {devices} {causes}}}\n")
    says = "the step is on 4 GPUs, but devices that may fail are 2 workers' with "
    assert (says in sim("run", path).stderr) == told


def test_a_state_too_short_to_see_is_in_the_legend() -> None:
    states = [("computing", 0, 10**14), ("saving", 10**14, 10**14 + 1), ("computing", 10**14 + 1, 10**15)]
    figure = timeline({"long": Life([], [], {}, states, end_ns=10**15)})
    assert "saving" in [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_the_timeline_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "t.png"
    assert sim("run", write(tmp_path, RUN), "--timeline", path).exit_code == 0
    assert path.stat().st_size > 5_000
    none = sim("run", write(tmp_path, RUN[: RUN.index("training_run")]), "--timeline", path)
    assert none.exit_code == 2
    assert "the scenario has no training_run" in none.stderr


def test_what_is_too_narrow_to_be_seen_is_not_drawn_for_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = TrainingPlan(10, 20_000, None, 2, checkpoints=Checkpoints(every_steps=1, save_ns=3))
    life, cut = live(plan, RestartJob()), []
    monkeypatch.setattr(
        "scenarios.training_run.timeline.lanes_of", lambda found: cut.append(found) or lanes_of(found)
    )
    timeline({"one": life})
    (seen,) = cut
    assert len(life.timeline) > 39_000
    assert len(seen.timeline) < 10_000
    assert seen.time_ns == life.time_ns


def test_lanes_of_the_picture() -> None:
    failed = (Failure("psu", at=((38, 0),), repair_ns=20),)
    slow = (SlowDown("heat", at=((0, 1),), lasts_ns=5),)
    plan = TrainingPlan(
        10,
        4,
        None,
        2,
        spares=1,
        checkpoints=Checkpoints(every_steps=2, save_ns=3),
        failures=failed,
        slow_downs=slow,
        restart_ns=6,
    )
    life = live(plan, RestartJob())
    assert lanes_of(life) == {
        "run": life.timeline,
        "worker 0": [
            *[("computing", 0, 20), ("saving", 20, 23), ("computing", 23, 38)],
            *[("in repair", 38, 58), ("spare", 58, 64)],
        ],
        "worker 1": [("slow", 0, 5), ("computing", 5, 20), *life.timeline[1:]],
        "worker 2": [("spare", 0, 38), ("restarting", 38, 44), ("redoing", 44, 54), ("computing", 54, 64)],
    }
    assert list(lanes_of(life, most=1)) == ["run", "worker 1"]
    many = [("computing", 10 * k, 10 * k + 10) for k in range(40_000)]  # soon done: each is looked at once
    slowed = [(10 * k + 3, 10 * k + 15, 0, Fraction(2)) for k in range(0, 40_000, 2)]
    long = replace(life, timeline=many, end_ns=400_000, changes=[], slow=slowed)
    assert lanes_of(long)["worker 0"][:4] == [
        *[("computing", 0, 3), ("slow", 3, 10), ("slow", 10, 15), ("computing", 15, 20)]
    ]
    (axes,) = timeline({"one": life}).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "run",
        "worker 0",
        "worker 1",
        "worker 2",
    ]


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sets", "why"),
    [
        (["training_run.duration=1h"], "training_run: needs one of steps and duration"),
        (["training_run.recovery=[restart-jobs]"], "unknown recovery policy 'restart-jobs'; did you mean"),
        (["training_run.recovery=[shrink, shrink]"], "recovery: names a policy twice"),
        (["training_run.recovery=[{name: shrink, most: 3}]"], "shrink has no option 'most'"),
        (["training_run.timeout=1min"], "timeout: has no effect: no cause of failure says detect: timeout"),
        (["training_run.failures.psu.detect=health-check"], "health_check: is needed, more than 0"),
        (["training_run.failures.psu.worker=3"], "failures.psu.worker: 3 is none of the 3 machines, 0 to 2"),
        (["training_run.failures.psu.mtbf=3h"], "needs one of at, mtbf, count, file; found at and mtbf"),
        (["training_run.failures={gpu: {mtbf: 3h}}"], "kind goes with mtbf"),
        (["training_run.failures={gpu: {kind: device, mtbf: 0}}"], "mtbf: should be greater than 0"),
        (["training_run.failures={gpu: {count: 3, over: 3h}}"], "over and devices go with count or file"),
        (
            ["training_run.failures={gpu: {file: no.csv, over: 3h, devices: 1}}"],
            "training_run.failures.gpu",
        ),
        (
            ["training_run.checkpoint.every=0"],
            "every: should be a duration, or a number of steps of at least 1, not 0",
        ),
        (
            ["training_run.checkpoint.every=0s"],
            "every: should be more than 0: the run would do nothing but save",
        ),
        (["training_run.checkpoint.size=3GB"], "checkpoint: needs one of save and size"),
        (["training_run.checkpoint.asynchronous=3"], "checkpoint.asynchronous: "),
        (["training_run.restart={jobs: 3s}"], "training_run.restart.jobs: "),
        (["training_run.replicas=3"], "2 workers cannot form 3 equal replicas"),
        (
            ["training_run.workers=1000000", "training_run.devices=10"],
            "training_run.devices: 10 of each of 1,000,001 machines are more than 10,000,000 in all",
        ),
        (["training_run.at_least=3"], "at_least: 3 is more than 2 workers"),
        (
            ["training_run.slow_downs={h: {at: [3s], worker: 0, duration: 1s, factor: 1}}"],
            "factor: should be greater than 1",
        ),
        (
            ["training_run.slow_downs={h: {at: [3s], worker: 0, duration: 0s, factor: 2}}"],
            "duration: should be greater than 0",
        ),
        (
            ["training_run.slow_downs={psu: {at: [3s], worker: 0, duration: 1s, factor: 2}}"],
            "training_run.slow_downs.psu: 'psu' is the name of two causes",
        ),
        (["workload.ops.step.fails=true"], "an op of the step may fail"),
        (["workload.ops.step.duration=0s"], "a step takes no time"),
    ],
)
def test_what_is_refused(tmp_path: Path, sets: list[str], why: str) -> None:
    error = refused(tmp_path, *sets)
    assert why in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("cause,count\na,1\n", "has no column 'component'; found cause, count"),
        ("component,count\na,many\n", "c.csv:2: should have a component and a whole count, not 'a', 'many'"),
        ("component,count\na,1\na,2\n", "c.csv:3: 'a' is counted twice"),
        ("component,count\na,0\n", "counts no failure"),
        ("", "has no column 'component'; found none"),
    ],
)
def test_a_wrong_table_of_causes(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "c.csv").write_text(text)
    error = refused(tmp_path, "training_run.failures={all: {file: c.csv, over: 3h, devices: 1}}")
    assert "training_run.failures.all" in error
    assert why in error


def test_a_recovery_policy_of_another_form(tmp_path: Path) -> None:
    plugins.register("sim.recoveries", "mine", lambda: SimpleNamespace(after_failure=lambda fleet: None))
    try:
        assert "recovery.0: 'mine' should extend" in refused(tmp_path, "training_run.recovery=[mine]")
    finally:
        plugins.unregister("sim.recoveries", "mine")
