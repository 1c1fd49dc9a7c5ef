"""Kinds of workload from other packages: their keys are checked, and they run, as the built-in ones do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_runner import sim as sim_here

from scenarios.workloads.workload import every_kind
from sim.base import plugins

MODULE = '''
"""A package of somebody else's."""

from sim import GraphBuilder
from scenarios.workloads.workload import Workload


class Chain(Workload):
    """Ops one after another."""

    chain: int

    def build(self, document, machine):
        b = GraphBuilder("chain")
        for i in range(self.chain):
            b.op(f"op{i}", inputs=[f"op{i - 1}"] if i else [], duration_ns=1000)
        return b.build()


def no_kind():
    """A function is no kind of workload."""
'''
SCENARIO = "machine: {devices: {cpu0: {kind: cpu, cores: 2}}}\nworkload: {%s}\n"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with an installed package that offers a kind of workload, and what is none."""
    info = tmp_path / "chains-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chains\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[sim.workloads]\nchain = chains:Chain\nbad = chains:no_kind\nlost = chains_lost:Lost\n"
    )
    (tmp_path / "chains.py").write_text(MODULE)
    return tmp_path


def sim(site: Path, root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, which sees the package."""
    return subprocess.run(
        [sys.executable, "-c", "from scenarios.cli import app; app()", *words],
        cwd=root,
        env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{root}"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder, which this process sees, too."""
    monkeypatch.syspath_prepend(site)
    yield site
    sys.modules.pop("chains", None)


def scenario(site: Path, workload: str) -> Path:
    """Write a scenario with that workload."""
    path = site / "s.yaml"
    path.write_text(SCENARIO % workload)
    return path


def test_a_kind_of_another_package_runs(installed: Path) -> None:
    done = sim_here("run", scenario(installed, "chain: 3"), "--json")
    assert done.exit_code == 0, done.stderr
    assert '"makespan_ns": 3000' in done.stdout
    assert not done.stderr  # what nobody names is not even loaded: a warning would be an error


def test_what_is_no_kind_is_left_out_with_a_warning(site: Path, root: Path) -> None:
    done = sim(site, root, "run", str(scenario(site, "lost: 3")))
    assert done.returncode == 2
    assert "the kind of workload 'bad' is left out: <function no_kind" in done.stderr
    assert "the kind of workload 'lost' of chains (chains_lost:Lost) cannot be loaded" in done.stderr
    assert "s.yaml:2:11: workload: names no kind of workload; 'lost' is none; known: build" in done.stderr


def test_its_keys_are_checked(installed: Path) -> None:
    done = sim_here("run", scenario(installed, "chain: many"))
    assert done.exit_code == 2
    assert "s.yaml:2:19: workload.chain: " in done.stderr


def test_every_kind_is_an_entry_point() -> None:
    assert list(every_kind()) == plugins.names("sim.workloads")
    assert "ops" in every_kind()
