"""The notebooks run in a kernel of their own, without a word on stderr, and are committed without outputs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipywidgets")

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))
SECONDS = 120


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_there_are_ten() -> None:
    assert [int(path.stem[:2]) for path in NOTEBOOKS] == list(range(1, 11))


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path) -> None:
    """What a slider draws goes to its widget, errors included; nobody moves it here."""
    notebook = read(path)
    nbclient.NotebookClient(
        notebook, timeout=SECONDS, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    said = [
        output.text
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if output.get("name") == "stderr"
    ]
    assert said == []
    assert "Traceback" not in str(notebook.metadata.get("widgets"))


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
