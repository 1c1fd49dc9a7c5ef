"""What the calibrations of the published training steps came out as, so that tests need not fit them again.

``python -m tests.training_fits DATA`` fits them all, in minutes, and writes the file. Belongs to
``studies/training/results.md``: who writes that page writes this file, too.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from studies.training import calibrate
from studies.training.judge import SOURCES, Judge
from studies.training.published import Published

FILE = Path(__file__).parent / "data" / "training_fits.json"


class Fits:
    """Stands for `calibrate.fitted`: looks a fit up; `make` makes those that are not known."""

    def __init__(self, known: dict[str, list[float]], make: Any = None) -> None:
        self.known, self.make = known, make

    def __call__(self, rows: Sequence[Published], base: Any, free: Sequence[str], *how: Any) -> list[float]:
        key = _key(rows, free)
        if key not in self.known:
            assert self.make, f"{FILE.name} lacks a fit: python -m tests.training_fits DATA writes it"
            self.known[key] = self.make(rows, base, free, *how)
        return self.known[key]


def read() -> dict[str, list[float]]:
    """Return what was fitted, by what it was fitted to."""
    found: dict[str, list[float]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def _key(rows: Sequence[Published], free: Sequence[str]) -> str:
    """Return a name of a fit: which rows, in which order of groups, and what is free."""
    said = [f"{row.id} {row.training.layout.order if row.training else ()}" for row in rows]
    return hashlib.sha256("\n".join([*free, *said]).encode()).hexdigest()[:16]


def main(data: Path) -> None:
    """Fit all, and write them."""
    fits = Fits({}, calibrate.fitted)
    with patch.object(calibrate, "fitted", fits):
        judge = Judge(data)
        for judged in SOURCES.values():
            judged(judge)
    lines = [f'"{key}": {json.dumps(logs)}' for key, logs in sorted(fits.known.items())]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
