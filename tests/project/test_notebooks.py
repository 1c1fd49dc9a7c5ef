"""The notebooks run, without a word on stderr, and are committed without outputs.

Their cells run in a shell of IPython in this process, not in a kernel: ``nbclient`` sends what a slider
shows on the socket on which it waits for the reply to a cell, and misses that reply now and then.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a notebook, the source of each in one piece."""
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [{**cell, "source": "".join(cell["source"])} for cell in found]


def test_they_are_numbered() -> None:
    assert [int(path.stem[:2]) for path in NOTEBOOKS] == list(range(1, 12))


@pytest.mark.slow
def test_all_are_notebooks() -> None:
    nbformat = pytest.importorskip("nbformat")  # imports for seconds, so only here
    for path in NOTEBOOKS:
        nbformat.validate(nbformat.read(path, as_version=4))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a slider draws is drawn once, errors included; nobody moves it here."""
    pytest.importorskip("ipywidgets")
    shells = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    no_history = pytest.importorskip("traitlets.config").Config(HistoryManager={"enabled": False})
    monkeypatch.chdir(path.parent)
    shell = shells.instance(ipython_dir=str(tmp_path), config=no_history)
    try:
        for cell in cells(path):
            if cell["cell_type"] == "code":
                shell.run_cell(cell["source"]).raise_error()
    finally:
        shell.restore_sys_module_state()
        shells.clear_instance()
    said = capsys.readouterr()
    assert said.err == ""
    assert "Traceback" not in said.out, "a slider shows its errors"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_asks_and_answers_and_shows_nothing_stale(path: Path) -> None:
    of = cells(path)
    assert of[0]["source"].startswith(f"# {path.stem[:2]} · ")
    assert "**Question.**" in of[0]["source"]
    assert "**Answer.**" in of[-1]["source"]
    code = [cell for cell in of if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] is None and cell["outputs"] == [] for cell in code)
    assert any("assert " in cell["source"] for cell in code), (
        "numbers in the text are held to what cells compute"
    )
    for cell in of:
        if cell["cell_type"] == "markdown":
            for link in re.findall(r"\]\((?!https?:)([^)#]+)", cell["source"]):
                assert (path.parent / link).exists(), f"{path.name}: {link}"
