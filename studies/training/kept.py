"""What a study has judged so far, so that one that was interrupted goes on there.

::

    PAGE.partial    {"source": "vtrain", "stamp": ..., "judged": {row: [predicted, constant, formula]}}

The stamp is that of the data and of the code that predicts: another one is judged again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import devices
import policies
import scenarios
import sim
import studies
from studies.training.judge import SIMUMAX_FILE, STEPS_FILE, Judged, Judgement
from studies.training.published import Published


class Kept:
    """The judgements of a page that is not yet written.

    Parameters
    ----------
    page : Path or None
        None: nothing is kept.
    data : Path
        The folder of what was measured.
    rows : sequence of Published
    """

    def __init__(self, page: Path | None, data: Path, rows: Sequence[Published]) -> None:
        self.path = None if page is None else page.with_name(f"{page.name}.partial")
        self.rows = {row.id: row for row in rows}
        self.stamp = "" if page is None else _stamp(data)

    def get(self, source: str) -> Judgement | None:
        """Return what was judged of a source, if it was."""
        for line in _lines(self.path):
            with suppress(ValueError, KeyError, TypeError):  # cut off as the study died
                entry = json.loads(line)
                if (entry["source"], entry["stamp"]) == (source, self.stamp):
                    judged = [Judged(self.rows[row], *numbers) for row, numbers in entry["judged"].items()]
                    return Judgement(entry["title"], entry["how"], tuple(judged), entry["beside"])
        return None

    def put(self, source: str, found: Judgement) -> None:
        """Remember what was judged of a source."""
        if self.path is None:
            return
        judged: Any = {one.row.id: [one.predicted, one.constant, one.formula] for one in found.judged}
        entry = {"source": source, "stamp": self.stamp, "judged": judged}
        entry |= {"title": found.title, "how": found.how, "beside": found.beside}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")

    def clear(self) -> None:
        """Forget all: the page is written."""
        if self.path is not None:
            self.path.unlink(missing_ok=True)


def _lines(path: Path | None) -> Iterator[str]:
    if path is not None and path.is_file():
        yield from path.read_text(encoding="utf-8").splitlines()


def _stamp(data: Path) -> str:
    """Return a hash of data and code."""
    found = hashlib.sha256()
    folders = [Path(str(package.__file__)).parent for package in (sim, devices, policies, scenarios, studies)]
    files = [file for folder in folders for file in sorted(folder.rglob("*"))]
    only_write = ("page.py", "__main__.py")
    code = [file for file in files if file.suffix in (".py", ".yaml") and file.name not in only_write]
    for file in (*code, data / STEPS_FILE, data / SIMUMAX_FILE):
        found.update(file.read_bytes())
    return found.hexdigest()
