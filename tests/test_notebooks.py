"""Every notebook runs from top to bottom, and is committed without outputs that could grow stale."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* data-sheet rooflines")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells share one namespace and the notebook's folder, as in Jupyter."""
    monkeypatch.chdir(path.parent)
    namespace: dict[str, object] = {"__name__": "__main__"}
    for k, source in enumerate(code_cells(path)):
        exec(compile(source, f"{path.name}[{k}]", "exec"), namespace)


def test_there_is_a_tour() -> None:
    assert "tour" in [path.stem for path in NOTEBOOKS]
