"""Sweeps: every combination, in order, resumable, failures kept as rows."""

from __future__ import annotations

import csv
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from devices.cost import cost_warnings
from devices.cost.unreliable import PlainRooflineWarning
from scenarios.cli import app
from scenarios.run.execute import run_case
from scenarios.run.load import load_scenario
from scenarios.variants.sweep import Interrupted, sweep
from scenarios.variants.variant import Variant, Variants, points_of
from scenarios.workloads.inline_ops import InlineOps
from sim.base.errors import InputError

SCENARIO = """\
name: chain
machine: {devices: {cpu0: {kind: cpu, cores: 2}}}
workload:
  ops:
    a: {duration: 10us}
    b: {duration: 20us}
    c: {duration: 30us, inputs: [a]}
policy: ready-queue
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "chain.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    return path


VARY = ["machine.devices.cpu0.cores=1,2", "workload.ops.b.duration=20us,50us"]


def test_every_combination_in_order(scenario: Path) -> None:
    rows = sweep(Variants(str(scenario)), points_of(VARY))
    got = [(*(str(row[k.partition("=")[0]]) for k in VARY), row["makespan_ns"]) for row in rows]
    assert got == [("1", "20us", 60_000), ("1", "50us", 90_000), ("2", "20us", 40_000), ("2", "50us", 50_000)]


def test_a_row_says_how_sure_its_makespan_is(tmp_path: Path) -> None:
    """As `sim run` does; nothing, where nobody knows."""
    path = tmp_path / "product.yaml"
    path.write_text(
        "machine: {devices: {gpu0: {preset: t4}}}\n"
        "workload: {ops: {a: {kind: matmul, dtype: fp16, attributes: {m: 512, n: 512, k: 512}}}}\n",
        encoding="utf-8",
    )
    variants = Variants(str(path))
    sheet, fitted = (
        variants.row(point) for point in points_of(["machine.devices.gpu0.cost=roofline,fitted"])
    )
    assert "low_ns" not in sheet
    [case] = load_scenario(path).cases()
    sure = run_case(case).summary["makespan_interval"]
    assert (fitted["low_ns"], fitted["high_ns"]) == (sure["low_ns"], sure["high_ns"])
    assert fitted["low_ns"] < fitted["makespan_ns"] < fitted["high_ns"]


def test_what_points_share_is_made_once_and_changes_nothing(
    scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In this process and in threads, as any `concurrent.futures.Executor` may have them."""
    scenario.write_text(SCENARIO + f"description: {'no file has so long a name ' * 20}\n", encoding="utf-8")
    points = points_of([VARY[1], "policy=in-order,ready-queue", "name=one,two"])
    points += points_of(
        ["noise=null,{jitter: 0.2}", "iterations=1,3", "policy=in-order,ready-queue", "seed=1,2"]
    )
    points += points_of(["knowledge=exact,estimate,none", "policy.synchronisation=issue,completion"])
    fresh = [Variants(str(scenario)).row(point) for point in points]
    made: list[InlineOps] = []
    make = InlineOps._make
    monkeypatch.setattr(InlineOps, "_make", lambda ops, *given: made.append(ops) or make(ops, *given))
    assert sweep(Variants(str(scenario)), points_of([VARY[0], "policy=in-order,ready-queue"]))
    assert len(made) == 1
    assert sweep(Variants(str(scenario)), points) == fresh
    with ThreadPoolExecutor(4) as executor:
        assert sweep(Variants(str(scenario)), points, executor=executor) == fresh


def test_costs_are_looked_at_again_where_they_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With another preset, and not with another cost of issuing."""
    path = tmp_path / "product.yaml"
    path.write_text(
        "machine: {devices: {gpu0: {preset: t4, cost: roofline}}}\n"
        "workload: {ops: {a: {kind: matmul, dtype: fp16, flops: 1MFLOP, bytes_read: 4B}}}\n",
        encoding="utf-8",
    )
    looked: list[str | None] = []
    look = cost_warnings.warn_of_plain_rooflines
    monkeypatch.setattr(
        cost_warnings,
        "warn_of_plain_rooflines",
        lambda job: looked.append(job.machine.devices[0].details.preset) or look(job),
    )
    key = "machine.devices.gpu0"
    points = points_of([f"{key}.preset=t4,l4", f"{key}.issue_cost=1us,2us,3us"])
    with pytest.warns(PlainRooflineWarning) as told:
        rows = sweep(Variants(str(path)), points)
    assert [row["outcome"] for row in rows] == ["done"] * 6
    assert looked == ["t4", "l4"]
    assert [str(one.message).partition(":")[0] for one in told] == looked


def test_a_changed_file_is_another_one_to_the_same_process(scenario: Path) -> None:
    point = points_of(["machine.devices.cpu0.cores=1"])
    assert sweep(Variants(str(scenario)), point)[0]["makespan_ns"] == 60_000
    scenario.write_text(SCENARIO.replace("30us", "31us"))
    assert sweep(Variants(str(scenario)), point)[0]["makespan_ns"] == 61_000


def test_processes_give_the_same_table(scenario: Path, tmp_path: Path) -> None:
    out = [tmp_path / "one.csv", tmp_path / "two.csv"]
    for jobs, path in (("1", out[0]), ("2", out[1])):
        arguments = [
            "sweep",
            str(scenario),
            *(x for v in VARY for x in ("--vary", v)),
            "--jobs",
            jobs,
            "--out",
            str(path),
        ]
        assert CliRunner().invoke(app, arguments).exit_code == 0
    assert out[0].read_bytes() == out[1].read_bytes()
    assert [row["makespan_ns"] for row in csv.DictReader(out[0].read_text().splitlines())] == [
        "60000",
        "90000",
        "40000",
        "50000",
    ]
    assert Path(f"{out[0]}.points").read_bytes() == Path(f"{out[1]}.points").read_bytes()


def test_a_dask_cluster_gives_the_same_table(scenario: Path, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="needs the extra dask")
    out = [tmp_path / "here.csv", tmp_path / "there.csv"]
    arguments = ["sweep", str(scenario), *(x for v in VARY for x in ("--vary", v))]
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None
    ) as cluster:
        for path, where in ((out[0], []), (out[1], ["--dask", cluster.scheduler_address])):
            done = CliRunner().invoke(app, [*arguments, *where, "--out", str(path)])
            assert done.exit_code == 0, done.output
        assert cluster.scheduler.task_prefixes["run_variant"].state_counts["memory"] == 4  # ran there
        assert set(cluster.scheduler.clients) == {"fire-and-forget"}  # Dask's own: ours is closed
    assert out[0].read_bytes() == out[1].read_bytes()


def test_what_is_no_address_is_refused(scenario: Path) -> None:
    pytest.importorskip("distributed", reason="needs the extra dask")
    done = CliRunner().invoke(app, ["sweep", str(scenario), "--vary", VARY[0], "--dask", "nonsense"])
    assert done.exit_code == 2
    assert done.stderr.startswith("'nonsense' is no address of a Dask scheduler (tcp://HOST:PORT): ")


def test_dask_or_processes_not_both(scenario: Path) -> None:
    both = ["--vary", VARY[0], "--dask", "tcp://127.0.0.1:1", "--jobs", "2"]
    done = CliRunner().invoke(app, ["sweep", str(scenario), *both])
    assert (done.exit_code, done.stderr) == (2, "give --jobs or --dask, not both\n")


def test_an_interrupted_sweep_goes_on_where_it_was(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "table.csv"
    points = points_of(VARY)

    def stop(k: int, n: int) -> None:
        if k == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(Variants(str(scenario)), points, out=out, done=stop)
    partial = Path(f"{out}.points")
    assert len(partial.read_text().splitlines()) == 2
    partial.write_text(partial.read_text().replace("60000", "61000") + '{"cut off', encoding="utf-8")
    told: list[int] = []
    rows = sweep(Variants(str(scenario)), points, out=out, done=lambda k, n: told.append(k))
    assert told == [2, 3, 4]
    assert [row["makespan_ns"] for row in rows] == [
        61_000,
        90_000,
        40_000,
        50_000,
    ]  # the first was not run again
    assert len(partial.read_text().splitlines()) == 4


@pytest.mark.filterwarnings("always:.* has changed since")
def test_a_sweep_that_is_done_is_not_run_again_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, out, code = tmp_path / "s.yaml", tmp_path / "t.csv", tmp_path / "repeated.py"
    path.write_text(SCENARIO, encoding="utf-8")
    code.write_text("from policies.issue.ready_queue import ReadyQueue\n\n\nclass Mine(ReadyQueue): ...\n")
    vary = ["--vary", VARY[0], "--policy", "repeated:Mine", "--policy", "in-order", "--allow-code"]

    def again(*more: str) -> Any:
        return CliRunner().invoke(app, ["sweep", str(path), *vary, "--out", str(out), *more])

    first, told = again(), f"4 of 4 points were done before ({out}.points)"
    assert "done before" not in first.stderr
    second = again()
    assert told in second.stderr
    assert second.stdout == first.stdout
    code.write_text(code.read_text() + "# changed\n", encoding="utf-8")
    third = again()
    assert f"warning: {out}.points: the scenario, a file that it names, or this program has" in third.stderr
    assert "2 of 4 points run again" in third.stderr
    path.write_text(SCENARIO.replace("30us", "31us"), encoding="utf-8")
    assert "its results differ; replace it with --force" in again().stderr
    assert told in again("--force").stderr  # they are remembered all the same
    monkeypatch.setattr("scenarios.variants.sweep.program", lambda: "another version")
    assert "4 of 4 points run again" in again().stderr


PIPELINE = """\
name: pipe
workload: {pipeline: {stages: 4, micro_batches: 8, forward: 1ms, input_grad: 1ms, weight_grad: 1ms}}
policy: 1f1b
compare: [gpipe, {name: zb-h1, label: zero bubble}]
"""


@pytest.mark.parametrize(
    ("text", "points"),
    [
        (SCENARIO, points_of(["policy=ready-queue,in-order,{name: out-of-order, window: 2}"])),
        (SCENARIO, points_of([VARY[0]], ["ready-queue", "in-order"])),
        (PIPELINE, points_of(["policy=gpipe,1f1b,zb-h1"])),
        (PIPELINE, points_of(["workload.pipeline.micro_batches=4,8"], ["gpipe", "zero bubble"])),
    ],
    ids=["policy", "policies", "schedule", "schedules"],
)
@pytest.mark.parametrize("ending", ["csv", "json"])
def test_what_a_sweep_is_over_does_not_matter_to_resuming_and_repeating_it(
    tmp_path: Path, text: str, points: list[Variant], ending: str
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text, encoding="utf-8")
    whole = tmp_path / f"whole.{ending}"
    sweep(Variants(str(path)), points, out=whole)
    sweep(Variants(str(path)), points, out=whole)  # the same table again
    for done_before in range(1, len(points)):
        out = tmp_path / f"{done_before}.{ending}"

        def stop(k: int, n: int, at: int = done_before) -> None:
            if k == at:
                raise KeyboardInterrupt

        with pytest.raises(Interrupted, match=f"{done_before} of {len(points)} points are done"):
            sweep(Variants(str(path)), points, out=out, done=stop)
        told: list[int] = []
        sweep(Variants(str(path)), points, out=out, done=lambda k, n: told.append(k))  # noqa: B023
        assert told == list(range(done_before, len(points) + 1))
        assert out.read_bytes() == whole.read_bytes()


GRAPH = {"schema": "sim.graph/1", "name": "g", "ops": [{"name": "a", "duration_ns": 7}]}


@pytest.mark.filterwarnings("ignore:.* has changed since")
@pytest.mark.parametrize(
    ("text", "sets", "vary", "file"),
    [
        ("extends: base.yaml\n", [], VARY[0], "base.yaml"),
        (SCENARIO.partition("workload")[0] + "workload: {graph: g.json}\n", [], "seed=1,2", "g.json"),
        (SCENARIO, ["workload={graph: g.json}"], "seed=1,2", "g.json"),
        (SCENARIO, [], "workload={graph: g.json},{graph: other.json}", "g.json"),
    ],
    ids=["extends", "graph", "set", "varied"],
)
def test_a_file_that_has_changed_is_not_resumed(
    tmp_path: Path, text: str, sets: list[str], vary: str, file: str
) -> None:
    def written(duration_ns: int) -> None:
        op = {"name": "a", "duration_ns": duration_ns}
        (tmp_path / "g.json").write_text(json.dumps(GRAPH | {"ops": [op]}), encoding="utf-8")
        base = SCENARIO.replace("30us", f"{duration_ns}ns")
        (tmp_path / "base.yaml").write_text(base, encoding="utf-8")

    (tmp_path / "other.json").write_text(json.dumps(GRAPH), encoding="utf-8")
    path = tmp_path / "s.yaml"
    path.write_text(text, encoding="utf-8")
    points = points_of([vary])
    begun: list[int] = []

    def stop(k: int, n: int) -> None:
        begun.append(k)
        if k == 1:
            raise KeyboardInterrupt

    def results() -> list[Any]:
        begun.clear()
        return [row["makespan_ns"] for row in sweep(Variants(str(path), sets), points, out=out, done=stop)]

    out = tmp_path / "t.csv"
    written(40_000)
    with pytest.raises(Interrupted):
        results()
    with pytest.raises(Interrupted):  # nothing has changed: the first point is there
        results()
    assert begun == [1]
    assert (tmp_path / file).exists()
    written(90_000)
    with pytest.raises(Interrupted):
        results()
    assert begun == [0, 1]
    rows = [json.loads(line)["row"]["makespan_ns"] for line in Path(f"{out}.points").read_text().splitlines()]
    assert rows[0] < rows[1]


@pytest.mark.filterwarnings("ignore:.* has changed since")
def test_another_point_is_not_run_again_because_of_a_file_of_its_own(tmp_path: Path) -> None:
    for name in ("g.json", "other.json"):
        (tmp_path / name).write_text(json.dumps(GRAPH), encoding="utf-8")
    path, out = tmp_path / "s.yaml", tmp_path / "t.csv"
    path.write_text(SCENARIO, encoding="utf-8")
    points = points_of(["workload={graph: g.json},{graph: other.json}"])

    def stop(k: int, n: int) -> None:
        if k == 1:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted):
        sweep(Variants(str(path)), points, out=out, done=stop)
    changed = json.dumps(GRAPH | {"ops": [{"name": "a", "duration_ns": 9}]})
    (tmp_path / "other.json").write_text(changed, encoding="utf-8")
    told: list[int] = []
    rows = sweep(Variants(str(path)), points, out=out, done=lambda k, n: told.append(k))
    assert told == [1, 2]
    assert [row["makespan_ns"] for row in rows] == [7, 9]


@pytest.mark.filterwarnings("ignore:.* has changed since")
def test_a_changed_scenario_is_not_resumed(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "table.csv"
    Path(f"{out}.points").write_text(
        json.dumps({"scenario": "another", "point": points_of(VARY)[0].key, "row": {}}) + "\n",
        encoding="utf-8",
    )
    assert sweep(Variants(str(scenario)), points_of(VARY), out=out)[0]["makespan_ns"] == 60_000


def test_the_table_on_a_terminal(scenario: Path) -> None:
    done = CliRunner().invoke(
        app, ["sweep", str(scenario), "--vary", VARY[0], "--policy", "ready-queue", "--policy", "in-order"]
    )
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0].split()[:4] == ["cores", "policy", "makespan", "above"]
    assert len(done.stdout.splitlines()) == 6  # the last says what the star means


@pytest.mark.parametrize(
    ("vary", "message"),
    [
        ("cores", "give KEY=V1,V2"),
        ("cores=", "give KEY=V1,V2"),
        ("cores=1,,2", "a value is empty"),
        ("cores=1,2,1", "1 is given twice"),
        ("cores=1..3,2", "2 is given twice"),
        ("cores=8..1", "^--vary 'cores=8..1': give FIRST..LAST"),
        ("cores=0..8 x2", "x2 from 1 on"),
        ("cores=1..8 x1", "x2 from 1 on"),
        ("cores=1..100000000", "values"),
    ],
)
def test_wrong_grids_are_refused(vary: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        points_of([vary])


def test_a_policy_is_given_once() -> None:
    with pytest.raises(InputError, match="--policy in-order is given twice"):
        points_of(["cores=1"], ["in-order", "in-order"])


def test_a_wrong_key_stops_the_sweep_with_its_place(scenario: Path, tmp_path: Path) -> None:
    words, out = ["--vary", "machine.devices.cpu0.corse=1,2"], tmp_path / "rows.csv"
    done = CliRunner().invoke(app, ["sweep", str(scenario), *words, "--out", str(out)])
    assert not Path(f"{out}.points").exists()
    assert done.exit_code == 2
    assert "cores" in done.stderr
    assert "--vary machine.devices.cpu0.corse=1: " in done.stderr
    assert "--set" not in done.stderr


def test_a_wrong_value_is_a_row_and_the_others_run(scenario: Path, tmp_path: Path) -> None:
    vary, out = "machine.devices.cpu0.cores=1,-2,2", tmp_path / "rows.json"
    done = CliRunner().invoke(app, ["sweep", str(scenario), "--vary", vary, "--out", str(out)])
    assert done.exit_code == 1
    rows = json.loads(out.read_text())
    assert [row["error"] is None for row in rows] == [True, False, True]
    assert rows[1]["error"].startswith("invalid: --vary machine.devices.cpu0.cores=-2: ")
    assert rows[0]["makespan_ns"] > rows[2]["makespan_ns"]


def test_ranges() -> None:
    assert [dict(point.settings)["a"] for point in points_of(["a=1..4"])] == ["1", "2", "3", "4"]
    assert [dict(point.settings)["a"] for point in points_of(["a=1..64 x4,100"])] == [
        "1",
        "4",
        "16",
        "64",
        "100",
    ]
    assert [dict(point.settings)["a"] for point in points_of(["a=x..y,[1..2]"])] == ["x..y", "[1..2]"]


def test_each_setting_is_told_as_what_it_was_given_by(scenario: Path) -> None:
    vary = ["--vary", "machine.devices.cpu0.cores=1,2"]
    done = CliRunner().invoke(app, ["sweep", str(scenario), *vary, "--set", "machine.devices.cpu0.corse=1"])
    assert "--set machine.devices.cpu0.corse=1: " in done.stderr
    done = CliRunner().invoke(app, ["sweep", str(scenario), "--vary", ".cores=1,2"])
    assert "--vary .cores=1: should be KEY=VALUE, as in --vary workload.batch=32" in done.stderr


def test_a_point_that_is_short_of_memory_is_a_row_and_no_failure_unless_all_are(
    scenario: Path, tmp_path: Path
) -> None:
    text = SCENARIO.replace("cores: 2", "cores: 2, memory: 100MB").replace("10us}", "10us, output: 1MB}")
    scenario.write_text(text, encoding="utf-8")
    out = tmp_path / "table.csv"
    key = "workload.ops.a.output"
    done = CliRunner().invoke(app, ["sweep", str(scenario), "--vary", f"{key}=200MB,2MB", "--out", str(out)])
    assert done.exit_code == 0
    header, first, second = csv.reader(out.read_text().splitlines())
    assert (header[:3], header[-1]) == ([key, "policy", "outcome"], "error")
    assert (first[2], second[2]) == ("out of memory", "done")
    assert (first[1], second[1]) == ("ready-queue", "ready-queue")
    assert first[-1]
    assert second[-1] == ""
    lines = done.stdout.splitlines()
    assert lines[0].split()[:5] == ["output", "policy", "makespan", "above", "bound"]
    assert lines[1].split() == ["200MB", "ready-queue", "out", "of", "memory"]
    assert lines[-1] == f"output=200MB, ready-queue: {first[-1]}"  # whole, and below the table
    done = CliRunner().invoke(app, ["sweep", str(scenario), "--vary", f"{key}=200MB,300MB"])
    assert done.exit_code == 1


def test_a_pipeline_whose_sizes_do_not_fit_is_a_row_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "workload: {pipeline: {ranks: 4, micro_batches: 8, forward: 1ms, backward: 2ms}}\npolicy: 1f1b\n"
    )
    done = CliRunner().invoke(app, ["sweep", str(path), "--vary", "workload.pipeline.micro_batches=2,8"])
    assert done.exit_code == 1
    lines = done.stdout.splitlines()
    assert lines[1].split() == ["2", "1f1b", "cannot", "be", "built"]
    assert lines[2].split()[:3] == ["8", "1f1b", "33"]
    assert lines[-1] == "micro_batches=2, 1f1b: left out: 1f1b has fewer micro-batches than stages"


@pytest.mark.parametrize("name", ["table.csv", "table.json"])
def test_a_table_of_something_else_is_not_written_over(scenario: Path, tmp_path: Path, name: str) -> None:
    out = str(tmp_path / name)
    one = ["sweep", str(scenario), "--out", out, "--vary", VARY[0]]
    assert CliRunner().invoke(app, one).exit_code == 0
    assert CliRunner().invoke(app, one).exit_code == 0  # the same table again
    before = Path(out).read_bytes()
    other = CliRunner().invoke(app, ["sweep", str(scenario), "--out", out, "--vary", VARY[1]])
    assert other.exit_code == 2
    assert other.stderr == (
        f"{out}: is there already, and is no table of these points; name another file, or replace it with "
        "--force\n"
    )
    assert Path(out).read_bytes() == before
    part = CliRunner().invoke(app, [*one[:-1], VARY[0].rpartition(",")[0]])
    assert "is there already, and is no table of these points" in part.stderr
    assert CliRunner().invoke(app, one).exit_code == 0  # nothing of what was kept is lost
    Path(out).write_text("my notes", encoding="utf-8")
    assert "is there already, and its results differ" in CliRunner().invoke(app, one).stderr


def test_a_mistake_in_a_policy_of_ones_own_is_placed_wherever_it_runs(tmp_path: Path) -> None:
    (tmp_path / "wrong_on_purpose.py").write_text(
        "from sim import Policy\n\n\n"
        "class Wrong(Policy):\n"
        "    def ready(self, task):\n"
        "        raise KeyError('mine')\n\n"
        "    def next(self, issuer):\n"
        "        return None\n"
    )
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO.replace("ready-queue", '{name: "wrong_on_purpose:Wrong"}'))
    for jobs in ("1", "2"):
        words = ["sweep", str(path), "--vary", VARY[0], "--jobs", jobs, "--allow-code"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2
        assert f"{path.parent / 'wrong_on_purpose.py'}:6: KeyError: 'mine'" in done.stderr
