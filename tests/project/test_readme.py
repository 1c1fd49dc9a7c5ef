"""The README's examples do what it says: its files are written, its commands run, its Python executed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_runner import sim


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def commands(text: str) -> list[str]:
    """Return the indented lines that call `sim` on the README's own files, without their comments."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines() if line.startswith("    sim "))
    return [line for line in lines if "branches.yaml" in line]


@pytest.fixture
def folder(root: Path, tmp_path: Path) -> Path:
    text = (root / "README.md").read_text(encoding="utf-8")
    scenario, policy = blocks(text, "yaml")[0], blocks(text, "python")[0]
    (tmp_path / "branches.yaml").write_text(scenario, encoding="utf-8")
    (tmp_path / "shortest.py").write_text(policy, encoding="utf-8")
    return tmp_path


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    code = "from scenarios.cli import app; app()"
    environment = {**os.environ, "COLUMNS": "120"}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True, env=environment
    )


@pytest.mark.slow
def test_every_command_of_the_readme_runs(root: Path, folder: Path) -> None:
    lines = commands((root / "README.md").read_text(encoding="utf-8"))
    assert len(lines) >= 6
    for line in lines:
        done = run(line.split()[1:], folder)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    assert (folder / "branches.png").stat().st_size > 1000
    assert (folder / "branches.json").stat().st_size > 1000


def test_code_needs_leave(folder: Path) -> None:
    done = sim("run", folder / "branches.yaml", "--policy", "shortest:ShortestFirst")
    assert done.exit_code == 2
    assert "--allow-code" in done.stderr


def test_the_python_example_runs(root: Path, folder: Path) -> None:
    example = blocks((root / "README.md").read_text(encoding="utf-8"), "python")[1]
    done = subprocess.run([sys.executable, "-c", example], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("40000\n")
