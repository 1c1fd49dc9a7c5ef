"""Files of a sweep: the table, and what is remembered of its points.

::

    FILE.points   one line of JSON for each point that is done, with a stamp of what its results depend on
    FILE          all points in order

The same sweep takes from the first what it has, whether it was interrupted or ended. A table that is
there is not replaced by another one unless it is forced. Two sweeps cannot write one table at once.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from scenarios.file.document import Document
from scenarios.file.yaml_read import read_yaml_text
from scenarios.importers.files import files_in
from sim.base.arrays import MOST_RUNS, at_most
from sim.base.errors import InputError, extra
from sim.base.files import read_bytes, write_bytes
from sim.base.plugins import Allowed

# ----------------------------------------------------------------------------------------------------------
# Points of a sweep: every combination of the values of some keys.
#
#     --vary workload.batch=1,8,32 --vary machine.devices.gpu0.streams=1,4     6 points, the last key fastest

Row = dict[str, Any]

_RESULTS: Final = ("policy", "makespan_ns", "lower_bound_ns", "gap", "no_gap", "error")


def column_of(key: str) -> str:
    """Return the name of the column that holds the values of a varied key.

    Examples
    --------
    >>> column_of("workload.batch"), column_of("policy")
    ('workload.batch', 'varied policy')
    """
    return f"varied {key}" if key in _RESULTS else key


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes
    ----------
    settings : tuple of (str, str)
        Key and value, as for ``--set``.
    policy : str or None
        See `scenarios.run.scenario.Scenario.case`.
    """

    settings: tuple[tuple[str, str], ...]
    policy: str | None = None

    @property
    def key(self) -> str:
        """What tells this point from the others."""
        return json.dumps([list(map(list, self.settings)), self.policy])

    def __str__(self) -> str:
        """Return ``workload.batch=8, ready-queue``."""
        parts = [f"{key}={value}" for key, value in self.settings]
        return ", ".join([*parts, *([self.policy] if self.policy else [])])


def points_of(vary: Sequence[str], policies: Sequence[str | None] = (None,)) -> list[Point]:
    """Return every combination of values and policies, the last key varying fastest.

    Parameters
    ----------
    vary : sequence of str
        ``KEY=V1,V2,...``; commas inside brackets, braces or quotes belong to a value. ``1..8`` is all whole
        numbers from 1 to 8, ``1..64 x2`` 1, 2, 4 and so on, each twice the one before.
    policies : sequence of str

    Raises
    ------
    InputError
        No ``=``, no value, or a key given twice.

    Examples
    --------
    >>> [str(point) for point in points_of(["a=1,2", "b=[3,4],5"])]
    ['a=1, b=[3,4]', 'a=1, b=5', 'a=2, b=[3,4]', 'a=2, b=5']
    >>> [str(point) for point in points_of(["a=1..3,8..64 x4"])]
    ['a=1', 'a=2', 'a=3', 'a=8', 'a=32']
    """
    axes = axes_of(vary)
    at_most(MOST_RUNS, math.prod(map(len, axes.values())) * len(policies), "points")
    combinations = itertools.product(*([(key, value) for value in values] for key, values in axes.items()))
    return [Point(tuple(settings), policy) for settings in combinations for policy in policies]


def axes_of(vary: Sequence[str], option: str = "--vary") -> dict[str, list[str]]:
    """Return the values of each key of ``KEY=V1,V2,...``; see `points_of`."""
    axes: dict[str, list[str]] = {}
    for text in vary:
        key, equals, values = text.partition("=")
        if not equals or not key or not values:
            raise InputError(f"{option} {text!r}: give KEY=V1,V2,... as in workload.batch=1,8,32")
        if key in axes:
            raise InputError(f"{option} {key} is given twice; put all its values behind one")
        axes[key] = [value for part in _split(values) for value in _range(part)]
        if "" in axes[key]:
            raise InputError(f"{option} {text!r}: a value is empty")
    return axes


def _range(value: str) -> Sequence[str]:
    """Return the whole numbers of ``1..8`` or ``1..64 x2``; any other value is itself."""
    if (found := re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})(?: ?x(\d{1,18}))?", value)) is None:
        return (value,)
    first, last, factor = (int(part or 0) for part in found.groups())
    if last < first or (found[3] and (factor < 2 or not first)):
        raise InputError(f"{value!r}: give FIRST..LAST, or FIRST..LAST x2 from 1 on, with FIRST the least")
    if not factor:
        at_most(MOST_RUNS, last - first + 1, "values")
        return [str(n) for n in range(first, last + 1)]
    return [str(first * factor**i) for i in range(64) if first * factor**i <= last]


def _split(text: str) -> Iterator[str]:
    """Split at commas outside brackets and quotes."""
    depth, quote, start = 0, "", 0
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c in "[{(":
            depth += 1
        elif c in "]})":
            depth -= 1
        elif c == "," and not depth:
            yield text[start:i].strip()
            start = i + 1
    yield text[start:].strip()


# ----------------------------------------------------------------------------------------------------------

_ROOT: Final = Path(__file__).parents[2]


def stamps(
    path: str, points: Sequence[Point], sets: Sequence[str], allowed: Allowed
) -> tuple[str, dict[str, str]]:
    """Return a hash of what all results together depend on, and of what those of each point do, by its key.

    These are the scenario (with what it extends and what is set), this program, and the files that the
    scenario and the values of the point name; of code of one's own, ``module:Class``, the modules of its
    folder.
    """
    document = Document.read(path, allowed).with_settings(sets)
    plain = document.root.plain()

    @cache
    def content(name: str) -> bytes:
        with suppress(InputError, OSError):  # most texts name no file, and some are too long for a name
            code = re.fullmatch(r"(\w+)(\.\w+)*:[\w.]+", name)
            path = document.file(name) if code is None else document.directory
            if code is not None:
                files = sorted([*path.glob("*.py"), *(path / code[1]).rglob("*.py")])
            else:
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
        own.update(content(point.policy) if point.policy else b"")
        for _, value in point.settings:
            with suppress(InputError):  # the run of the point says where it is wrong
                for text in _texts(read_yaml_text(value, "--vary", places=False).plain()):
                    own.update(content(text))
        found[point.key] = own.hexdigest()
    return hashlib.sha256(json.dumps([base.hexdigest(), found]).encode()).hexdigest(), found


@cache
def program() -> str:
    """Return a hash of this program's files, for what is kept: between two versions they change, too."""
    found = hashlib.sha256()
    for package in ("sim", "devices", "policies", "scenarios"):
        for path in sorted(_ROOT.joinpath(package).rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".so", ".pyd"):
                found.update(path.read_bytes())
    return found.hexdigest()


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a tree that may name a file."""
    if isinstance(value, dict | list):
        for inside in value.values() if isinstance(value, dict) else value:
            yield from _texts(inside)
    elif isinstance(value, str) and 0 < len(value) < 1000:
        yield value


def remember(points: Path, entry: Row) -> None:
    """Add a line to the file of points."""
    try:
        with points.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(points)) from None


def keep(points: Path, entries: Iterable[Row]) -> None:
    """Write the file of points anew: without points of other sweeps, and lines that were cut off."""
    write_bytes(points, "".join(json.dumps(entry) + "\n" for entry in entries).encode())


def finished(points: Path, now: Mapping[str, str], columns: Sequence[str]) -> tuple[dict[str, Row], int]:
    """Return the rows that are remembered of these points as they are now, by the key of the point.

    They have these columns, or failed. Of other points, what their results depend on has changed since: how
    many these are is returned, too.
    """
    found: dict[str, Row] = {}
    changed = set()
    for line in points.read_text(encoding="utf-8").splitlines() if points.is_file() else ():
        with suppress(ValueError, TypeError, KeyError):  # cut off when the sweep died, or of another point
            entry = json.loads(line)
            whole = "makespan_ns" not in entry["row"] or all(name in entry["row"] for name in columns)
            if entry["scenario"] != now[entry["point"]]:
                changed.add(entry["point"])
            elif whole:
                found[entry["point"]] = entry["row"]
    return found, len(changed - found.keys())


@contextmanager
def sweeping(out: str | Path) -> Iterator[Path]:
    """Give the file of points of a table, which nobody else writes meanwhile.

    Raises
    ------
    InputError
        Another sweep writes the same table now.
    """
    points = Path(f"{out}.points")
    try:
        file = points.open("a", encoding="utf-8")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(points)) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it ends with the process, however that ends
        except OSError:
            raise InputError(f"{out}: another sweep is writing it; name another file, or wait") from None
        try:
            yield points
        finally:
            if points.exists() and not points.stat().st_size:
                points.unlink()


def check_same_table(out: str | Path, points: Sequence[Point]) -> None:
    """Refuse to write over a file that is not the table of the same points."""
    path = Path(out)
    if not path.exists() or not points:
        return
    keys = [column_of(key) for key, _ in points[0].settings]
    found: list[Row] = []
    with suppress(ValueError, TypeError, KeyError, csv.Error):  # no table at all is refused below
        found = _read_rows(path)
        there = [[row.get(key) for key in keys] for row in found if "policy" in row]
        if there == [[value for _, value in point.settings] for point in points]:
            return
    first: Any = found[0] if isinstance(found, list) and found else {}
    columns = list(first) if isinstance(first, dict) else []
    of = "something else"
    if "policy" in columns:
        varied = columns[: columns.index("policy")]
        of = "other values of the same keys" if varied == keys else f"a table of {', '.join(varied)}"
    raise InputError(
        f"{out}: is there already, and holds {of}; name another file, or replace it with --force"
    )


def _read_rows(path: Path) -> list[Row]:
    if path.suffix == ".parquet":
        with extra("parquet", f"reading {path}"):
            import pyarrow.parquet as parquet
        read: list[Row] = parquet.read_table(io.BytesIO(read_bytes(path, unpack=False))).to_pylist()
        return read
    text = read_bytes(path, unpack=False).decode()
    if path.suffix == ".csv":
        return list(csv.DictReader(io.StringIO(text)))
    rows: list[Row] = json.loads(text)
    return rows


def same_as(rows: Sequence[Row], path: str | Path) -> bool:
    """Whether a file is the table of these rows already."""
    return read_bytes(Path(path), unpack=False) == _content(rows, path)


def write_rows(rows: Sequence[Row], path: str | Path) -> None:
    """Write rows as a table: ``.json``, ``.parquet``, else CSV."""
    write_bytes(path, _content(rows, path))


def _content(rows: Sequence[Row], path: str | Path) -> bytes:
    ending = Path(path).suffix
    if ending == ".json":
        return (json.dumps(list(rows), indent=1) + "\n").encode()
    columns = list(dict.fromkeys(column for row in rows for column in row if column != "error"))
    columns += ["error"] * any("error" in row for row in rows)
    if ending == ".parquet":
        with extra("parquet", f"writing {path}"):
            import pyarrow
            import pyarrow.parquet as parquet
        binary = io.BytesIO()
        whole = [{column: row.get(column) for column in columns} for row in rows]
        parquet.write_table(pyarrow.Table.from_pylist(whole), binary)
        return binary.getvalue()
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()
