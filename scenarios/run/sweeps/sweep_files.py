"""Files of a sweep: the table, and what is remembered of the points until all are done.

::

    FILE.partial   one line of JSON for each point that is done, with a stamp of what its results depend on
    FILE           all points in order

A table that is there is not replaced by another one unless it is forced.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scenarios.file.document import Document
from scenarios.file.yaml_read import read_yaml_text
from scenarios.importers.files import files_in
from scenarios.run.sweeps.sweep_points import Point, Row, column_of
from sim.files.reading import read_bytes
from sim.words.errors import InputError

__all__ = ["check_same_table", "finished", "remember", "stamps", "table"]


def stamps(path: str, points: Sequence[Point], sets: Sequence[str], allow_outside: bool) -> dict[str, str]:
    """Return a hash of what each point's results depend on, by its key.

    These are the scenario (with what it extends and what is set), this program, and the files that the
    scenario and the values of the point name.
    """
    document = Document.read(path, allow_outside=allow_outside).with_settings(sets)
    plain = document.root.plain()

    @cache
    def content(name: str) -> bytes:
        with suppress(InputError):  # most texts name no file
            path = document.file(name)
            files = [path / each for each in files_in(path)] if path.is_dir() else [path]
            read = (read_bytes(file, unpack=False) for file in files)
            return b"".join(hashlib.sha256(each).digest() for each in read)
        return b""

    base = hashlib.sha256(json.dumps([plain, version("graph-schedule-sim")]).encode())
    for text in _texts(plain):
        base.update(content(text))
    found = {}
    for point in points:
        own = base.copy()
        for _, value in point.settings:
            with suppress(InputError):  # the run of the point says where it is wrong
                for text in _texts(read_yaml_text(value, "--vary", places=False).plain()):
                    own.update(content(text))
        found[point.key] = own.hexdigest()
    return found


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a tree that may name a file."""
    if isinstance(value, dict | list):
        for inside in value.values() if isinstance(value, dict) else value:
            yield from _texts(inside)
    elif isinstance(value, str) and 0 < len(value) < 1000:
        yield value


def remember(partial: Path, entry: Row) -> None:
    """Add a line to the partial file."""
    try:
        with partial.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(partial)) from None


def finished(partial: Path, now: Mapping[str, str], columns: Sequence[str]) -> dict[str, Row]:
    """Return the rows in a partial file that are of these points as they are now, by the key of the point.

    They have these columns, or failed.
    """
    found = {}
    for line in partial.read_text(encoding="utf-8").splitlines() if partial.is_file() else ():
        with suppress(ValueError, TypeError, KeyError):  # cut off when the sweep died, or of another point
            entry = json.loads(line)
            whole = "makespan_ns" not in entry["row"] or all(name in entry["row"] for name in columns)
            if entry["scenario"] == now[entry["point"]] and whole:
                found[entry["point"]] = entry["row"]
    return found


def check_same_table(out: str | Path, points: Sequence[Point]) -> None:
    """Refuse to write over a file that is not the table of the same points."""
    path = Path(out)
    if not path.exists() or not points:
        return
    keys = [column_of(key) for key, _ in points[0].settings]
    found: list[Row] = []
    with suppress(ValueError, TypeError, csv.Error):  # no table at all is refused below
        text = read_bytes(path, unpack=False).decode()
        found = list(csv.DictReader(io.StringIO(text))) if path.suffix == ".csv" else json.loads(text)
        there = [[row.get(key) for key in keys] for row in found if "policy" in row]
        if there == [[value for _, value in point.settings] for point in points]:
            return
    first: Any = found[0] if isinstance(found, list) and found else {}
    columns = list(first) if isinstance(first, dict) else []
    of = "something else"
    if "policy" in columns:
        varied = columns[: columns.index("policy")]
        of = "other values of the same keys" if varied == keys else f"a table of {', '.join(varied)}"
    raise InputError(f"{out}: is there already and is {of}; name another file, or replace it with --force")


def table(rows: Sequence[Row], path: str | Path) -> str:
    """Return rows as ``.json``, else as CSV."""
    if Path(path).suffix == ".json":
        return json.dumps(list(rows), indent=1) + "\n"
    columns = list(dict.fromkeys(column for row in rows for column in row if column != "error"))
    columns += ["error"] * any("error" in row for row in rows)
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
