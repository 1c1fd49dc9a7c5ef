"""Causes of failures as somebody counted them: a CSV file with the columns ``component`` and ``count``."""

from __future__ import annotations

import csv
from pathlib import Path

from sim.files.reading import read_bytes
from sim.words.errors import InputError

__all__ = ["read_causes"]


def read_causes(path: Path) -> dict[str, int]:
    """Return component → count; other columns are left alone, and causes that never occurred left out.

    Raises
    ------
    InputError
        A column that is missing, a row that is none, a component that is counted twice, or nothing counted.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")  # spreadsheets begin with a mark
    except UnicodeDecodeError:
        raise InputError(f"{path}: is no text in UTF-8") from None
    rows = csv.DictReader(text.splitlines())
    missing = [name for name in ("component", "count") if name not in (rows.fieldnames or ())]
    if missing:
        raise InputError(
            f"{path}: has no column {missing[0]!r}; found {', '.join(rows.fieldnames or ()) or 'none'}"
        )
    found: dict[str, int] = {}
    for row in rows:
        component, count = row["component"], row["count"]
        where = f"{path}:{rows.line_num}"
        if not component or not (count or "").isdecimal():
            raise InputError(
                f"{where}: should have a component and a whole count, not {component!r}, {count!r}"
            )
        if component in found:
            raise InputError(f"{where}: {component!r} is counted twice")
        found[component] = int(count)
    if not any(found.values()):
        raise InputError(f"{path}: counts no failure")
    return {component: count for component, count in found.items() if count}
