"""`sim bench`: gaps, proofs, what is remembered, and what cannot be."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from cli_runner import sim

from benchmarks.bench_instances import direct
from scenarios.run.prepare_job import job_of
from scenarios.run.scenario import scenario_of
from scenarios.variants import bench
from scenarios.variants.bench import HEFT, OPTIMUM, RANDOM, Known, Point, document_of, instances_in, known_of
from sim.base.errors import InputError

LIMIT = 20 * 10**9
SHOP = "2 2\n0 3 1 2\n1 4 0 1\n"


def a_set(folder: Path, bounds: str = "instance,lower,upper\na,6,6\n") -> Path:
    (folder / "shop").mkdir()
    (folder / "shop" / "a.jsp").write_text(SHOP)
    (folder / "shop" / "b.jsp").write_text(SHOP.replace("3", "8"))
    (folder / "shop" / "notes.txt").write_text("none\n")
    if bounds:
        (folder / "shop" / "bounds.csv").write_text(bounds)
    return folder / "shop"


@pytest.mark.parametrize("name", ["job_shop", "projects"])
def test_the_sets_that_ship_are_proven(name: str) -> None:
    """Two solvers agree with what is known of each, and no other method is better."""
    paths = instances_in([name])
    assert len(paths) == 6
    points = [
        Point(path, method, effort=effort)
        for path in paths[::3]
        for method, effort in (("ready-queue", 0), (HEFT, 0), (RANDOM, 5), (OPTIMUM, LIMIT))
    ]
    rows = bench.bench(points)
    assert bench.contradictions(rows) == []
    for point, row in zip(points, rows, strict=True):
        known = known_of(point.path)
        assert known.lower_ns == known.upper_ns
        assert row["error"] is None
        assert row["gap"] >= 0
        if point.method == OPTIMUM:
            assert (row["makespan_ns"], row["lower_bound_ns"], row["proven"]) == (*known, True)
            assert direct(job_of(scenario_of(document_of(point)).case()), LIMIT) == (known.upper_ns,) * 2


def test_a_row_an_instance_and_method(tmp_path: Path) -> None:
    folder, out = a_set(tmp_path), tmp_path / "t.csv"
    ran = sim("bench", folder, "--random", 3, "--limit", 10, "--out", out, "--plot", tmp_path / "p.png")
    assert ran.exit_code == 0, ran.output
    assert "no best known: b.jsp; their gaps are to the best of these methods" in ran.output
    rows = list(csv.DictReader(io.StringIO(out.read_text())))
    assert [(row["instance"], row["method"]) for row in rows] == [
        (name, method)
        for name in ("a.jsp", "b.jsp")
        for method in ("ready-queue", "critical-path", "heft", "random", "optimum")
    ]
    assert [row["known_upper_ns"] for row in rows] == ["6000"] * 5 + [""] * 5
    assert {row["makespan_ns"] for row in rows[:5]} == {"6000"}
    bounds = [row["lower_bound_ns"] for row in rows[:5]]
    assert bounds[:4] == bounds[:1] * 4, "without a solver: work of a machine, or the longest job"
    assert 0 < int(bounds[0]) <= int(bounds[4]) == 6000
    assert (tmp_path / "p.png").stat().st_size > 1000


def test_what_is_done_is_not_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, out = a_set(tmp_path), tmp_path / "t.csv"
    points = [Point(path, HEFT) for path in instances_in([str(folder)])]
    ran: list[str] = []
    run_point = bench.run_point

    def noted(point: Point) -> dict[str, object]:
        if len(ran) == 1 and point.path.endswith("b.jsp"):
            raise KeyboardInterrupt
        ran.append(point.path)
        return run_point(point)

    monkeypatch.setattr(bench, "run_point", noted)
    with pytest.raises(KeyboardInterrupt, match=r"1 of 2 points are done; .*csv\.points keeps them"):
        bench.bench(points, out=out)
    assert not out.exists()
    assert len(ran) == 1
    ran.append("so that the second one runs")
    assert [row["instance"] for row in bench.bench(points, out=out)] == ["a.jsp", "b.jsp"]
    assert len(ran) == 3
    (folder / "a.jsp").write_text(SHOP.replace("4", "5"))
    assert bench.bench(points, out=out)[0]["makespan_ns"] == 7000
    assert len(ran) == 4


def test_what_a_scenario_names_is_looked_at_again(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(
        "machine: {devices: {cpu0: {kind: cpu}}}\nworkload: {ops: {a: {duration: 10us}}}\npolicy: in-order\n"
    )
    (tmp_path / "s.yaml").write_text("extends: base.yaml\n")
    points, out = [Point(str(tmp_path / "s.yaml"), "in-order")], tmp_path / "t.csv"
    assert bench.bench(points, out=out)[0]["makespan_ns"] == 10_000
    (tmp_path / "base.yaml").write_text((tmp_path / "base.yaml").read_text().replace("10us", "20us"))
    assert bench.bench(points, out=out)[0]["makespan_ns"] == 20_000


def test_bounds_of_both_kinds(tmp_path: Path) -> None:
    folder = a_set(tmp_path, "")
    assert known_of(str(folder / "a.jsp")) == Known()
    listed = [
        {"name": "a", "optimum": 6},
        {"name": "b", "optimum": None, "bounds": {"upper": 11, "lower": 10}},
    ]
    (tmp_path / "instances.json").write_text(json.dumps(listed))
    assert known_of(str(folder / "b.jsp")) == Known(10_000, 11_000)
    (folder / "bounds.csv").write_text("instance,lower,upper\nb,,1ms\n")
    assert known_of(str(folder / "b.jsp")) == Known(None, 1_000_000)


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ("name,lower,upper\n", "bounds.csv:1: should be instance,lower,upper"),
        ("instance,lower,upper\na,x,6\n", "bounds.csv:2: 'x' is not a number and a unit"),
        ("instance,lower,upper\na,7,6\n", "bounds.csv:2: the lower bound 7 is above the upper one, 6"),
    ],
)
def test_wrong_bounds_are_told(tmp_path: Path, bounds: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        known_of(str(a_set(tmp_path, bounds) / "a.jsp"))
    assert message in str(error.value)


def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    ran = sim("bench", a_set(tmp_path, "instance,lower,upper\na,7,\nb,1,2\n"), "--limit", 5, "--random", 0)
    assert ran.exit_code == 1
    assert "cannot be: a.jsp, optimum: takes 6000 ns, and nothing should take less than 7000 ns" in ran.output
    assert (
        "cannot be: b.jsp, optimum: nothing should take less than 10000 ns, and 2000 ns is known"
        in ran.output
    )


def test_a_graph_runs_on_the_machine_that_is_set(tmp_path: Path) -> None:
    (tmp_path / "g.stg").write_text("2\n0 0 0\n1 3 1 0\n2 4 1 0\n3 0 2 1 2\n")
    machine = ("--set", "machine.devices.cpu0.kind=cpu", "--set", "machine.devices.cpu0.cores=2")
    ran = sim("bench", tmp_path, *machine, "--json")
    assert {row["makespan_ns"] for row in json.loads(ran.stdout)} == {4000}
    alone = sim("bench", tmp_path / "g.stg", "--limit", 0, "--random", 0)
    assert alone.exit_code == 1
    assert alone.stderr == "g.stg: scenario:1:1: machine: is missing\n"  # once, not for each method
    assert [line.split()[1:4] for line in alone.stdout.splitlines()[1:]] == [  # neither a gap nor a best
        [method, "0", "0"] for method in ("ready-queue", "critical-path", "heft")
    ]


def test_a_broken_instance_is_told_once_beside_the_others(tmp_path: Path) -> None:
    (tmp_path / "good.jsp").write_text("2 2\n0 3 1 2\n1 4 0 1\n")
    (tmp_path / "bad.jsp").write_text("2 2\n0 3 1 2\n1 4 0 x\n")
    ran = sim("bench", tmp_path, "--limit", 0, "--random", 0)
    assert ran.exit_code == 1
    assert "no best known: good.jsp; " in ran.stdout
    bad = tmp_path / "bad.jsp"
    assert ran.stderr.startswith(f"bad.jsp: {bad}: line 3: should be MACHINE TIME for each of 2 ops")
    assert ran.stderr.count("\n") == 1


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="jobshop: no such file or folder; did you mean 'job_shop'"):
        instances_in(["jobshop"])
    with pytest.raises(InputError, match="no instance in this folder; known: job shops"):
        instances_in([str(tmp_path)])


def test_a_policy_that_does_not_exist_is_told_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "shop.jsp").write_text(SHOP)
    (tmp_path / "broken.jsp").write_text("2 2\n0 3 1\n")
    found = sim("bench", str(tmp_path), "--policy", "redy-queue", "--out", str(tmp_path / "t.csv"))
    assert found.exit_code == 2
    assert "--policy: unknown policy 'redy-queue'; did you mean 'ready-queue'?" in found.stderr
    assert not found.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.jsp", "shop.jsp"]
    for method in ("random", "optimum"):  # of the command, and no policies
        found = sim("bench", str(tmp_path), "--policy", method)
        assert (found.exit_code, found.stdout) == (2, "")
        assert f"--policy: unknown policy '{method}'" in found.stderr
