"""The pytest plugin in projects of other people, whose folders may have the names of our packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from scenario_texts import GOOD, write

pytest_plugins = ["pytester"]


def run_pytest(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run ``python -m pytest`` there, which puts the folder first on sys.path."""
    return subprocess.run(
        [sys.executable, *options],
        cwd=folder,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project with packages `scenarios` and `devices`, and a test that imports them."""
    for package in ("scenarios", "devices"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("OURS = True\n")
    (tmp_path / "test_it.py").write_text("from scenarios import OURS\n\n\ndef test_it():\n    assert OURS\n")
    write(tmp_path, GOOD, "good.yaml")
    return tmp_path


@pytest.mark.slow
def test_folders_may_have_the_names_of_our_packages_and_nothing_of_ours_is_imported_unasked(
    project: Path,
) -> None:
    code = (
        "import sys, pytest; assert pytest.main(['-q', '-p', 'no:cacheprovider']) == 0;"
        "print('simpy' in sys.modules, 'yaml' in sys.modules, 'graph_schedule_sim_pytest' in sys.modules)"
    )
    done = run_pytest(project, "-c", code)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == "False False True", done.stdout + done.stderr


@pytest.mark.slow
def test_what_shadows_a_package_is_said_in_one_line(project: Path) -> None:
    done = run_pytest(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--sim-check")
    assert done.returncode == pytest.ExitCode.INTERRUPTED
    assert [line for line in done.stdout.splitlines() if "shadows" in line] == [
        f"--sim-check: {project / 'devices' / '__init__.py'} shadows the package 'devices' of "
        "graph-schedule-sim; rename it or keep it off sys.path (`python -m pytest` puts the current folder "
        "there, `pytest` does not)"
    ]
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_folders_without_code_shadow_nothing(project: Path) -> None:
    for package in ("scenarios", "devices"):
        (project / package / "__init__.py").unlink()
    done = run_pytest(project, "-m", "pytest", "-v", "-p", "no:cacheprovider", "--sim-check", "good.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "good.yaml::ready-queue PASSED" in done.stdout


@pytest.mark.parametrize("text", ["extends: ../good.yaml\n", "workload: {graph: ../g.json}\n"])
def test_scenarios_may_name_files_outside_their_folder_if_that_is_allowed(
    pytester: pytest.Pytester, text: str
) -> None:
    tmp_path = pytester.path
    write(tmp_path, GOOD, "good.yaml")
    graph = {"schema": "sim.graph/1", "name": "g", "ops": [{"name": "a", "duration_ns": 45_000}]}
    (tmp_path / "g.json").write_text(json.dumps(graph))
    (tmp_path / "below").mkdir()
    head, _, tail = GOOD.partition("workload:")
    rest = "" if "extends" in text else head + tail[tail.index("policy:") :]
    write(tmp_path / "below", rest + text, "s.yaml")
    options = ("-v", "-p", "no:cacheprovider", "--sim-check", "below")
    refused = pytester.runpytest_inprocess(*options)
    assert refused.ret in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.TESTS_FAILED)
    assert (
        "is outside the scenario's folder; allow it with --allow-outside (pytest: --sim-allow-outside)"
        in str(refused.stdout)
    )
    assert "Traceback" not in f"{refused.stdout}{refused.stderr}"
    allowed = pytester.runpytest_inprocess(*options, "--sim-allow-outside")
    assert allowed.ret == 0
    assert "s.yaml::ready-queue PASSED" in str(allowed.stdout)
