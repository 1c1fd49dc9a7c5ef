"""The notebooks run, without a word on stderr, and are committed without outputs.

Their cells run in a shell of IPython in this process, not in a kernel: ``nbclient`` sends what a slider
shows on the socket on which it waits for the reply to a cell, and misses that reply now and then.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
InteractiveShell = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
config = pytest.importorskip("traitlets.config")
pytest.importorskip("ipywidgets")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
NO_HISTORY = config.Config(HistoryManager={"enabled": False})


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_are_ten() -> None:
    assert [int(path.stem[:2]) for path in NOTEBOOKS] == list(range(1, 11))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a slider draws is drawn once, errors included; nobody moves it here."""
    monkeypatch.chdir(path.parent)
    shell = InteractiveShell.instance(ipython_dir=str(tmp_path), config=NO_HISTORY)
    try:
        for cell in read(path).cells:
            if cell.cell_type == "code":
                shell.run_cell(cell.source).raise_error()
    finally:
        shell.restore_sys_module_state()
        InteractiveShell.clear_instance()
    said = capsys.readouterr()
    assert said.err == ""
    assert "Traceback" not in said.out, "a slider shows its errors"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_asks_and_answers_and_shows_nothing_stale(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    first, last = notebook.cells[0].source, notebook.cells[-1].source
    assert first.startswith(f"# {path.stem[:2]} · ")
    assert "**Question.**" in first
    assert "**Answer.**" in last
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count is None and cell.outputs == [] for cell in code)
    assert any("assert " in cell.source for cell in code), (
        "numbers in the text are held to what cells compute"
    )
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for link in re.findall(r"\]\((?!https?:)([^)#]+)", cell.source):
                assert (path.parent / link).exists(), f"{path.name}: {link}"
