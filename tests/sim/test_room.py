"""What needs more memory than is free is refused before anything is built; `--force` goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_runner import sim
from scenario_texts import GOOD, write

from scenarios.builders.random_dag import RandomDag
from sim.base import room
from sim.base.errors import InputError

TOO_LARGE = "8,000,000 tasks with 8,000,000 edges take about 3.6 GB of memory, and 2.0 GB are free"


@pytest.fixture
def two_gb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda: 2 * 10**9)


@pytest.mark.usefixtures("two_gb")
@pytest.mark.parametrize("verb", ["run", "explain", "compare"])
def test_a_run_that_does_not_fit(tmp_path: Path, verb: str) -> None:
    path = write(tmp_path, GOOD.split("expect:")[0] + "iterations: 2000000\n")
    policies = ["--policy", "ready-queue", "--policy", "in-order"] if verb == "compare" else []
    result = sim(verb, path, *policies)
    assert (result.exit_code, TOO_LARGE in result.stderr) == (2, True)
    assert "--force" in result.stderr


def test_force_goes_on() -> None:
    with room.any_size(True):
        room.check_room(10**12, "all", free=1)
    with pytest.raises(InputError, match=r"all take about 1,000.0 GB"):
        room.check_room(10**12, "all", free=1)


@pytest.mark.usefixtures("two_gb")
def test_the_verb_forces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "_UNCHECKED", 0)
    monkeypatch.setattr(room, "free_bytes", lambda: 100)
    path = write(tmp_path, GOOD)
    assert sim("run", path).exit_code == 2
    assert sim("run", path, "--force").exit_code == 0


@pytest.mark.usefixtures("two_gb")
def test_edges_of_a_random_graph_are_counted_before_they_are_made() -> None:
    build = RandomDag(model="random-dag", layers=1000, width=100, probability=0.02)
    with pytest.raises(
        InputError, match=r"99,999,000 edges take about 9.0 GB of memory, and 2.0 GB are free"
    ):
        build.graph()


def test_what_is_free(tmp_path: Path) -> None:
    assert room.free_bytes(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable: 7 kB\n")
    assert room.free_bytes(tmp_path) == 7 * 1024
    group = tmp_path / "sys" / "fs" / "cgroup"
    group.mkdir(parents=True)
    for name, text in {"max": "6000", "current": "5000", "stat": "anon 1\ninactive_file 500\n"}.items():
        (group / f"memory.{name}").write_text(text)
    assert room.free_bytes(tmp_path) == 1500
    (group / "memory.max").write_text("max\n")
    assert room.free_bytes(tmp_path) == 7 * 1024
