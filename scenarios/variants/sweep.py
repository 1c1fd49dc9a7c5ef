"""Runs a scenario at many settings: all combinations, on several workers if wanted, resumable.

::

    --vary workload.batch=1,8,32 --vary machine.devices.gpu0.streams=1,4     6 points, the last key fastest
           │
           └► FILE.points   one line of JSON per finished point, written at once, with a stamp of everything
           │                its results depend on
           └► FILE          all points in order, when all are finished

Points whose sizes do not fit together (3 ranks for 8 heads) are left out before anything runs, and counted by
reason (`Variants.fitting`). An interrupted sweep continues where it stopped, and a finished one returns at
once: points in the first file are not run again, unless the scenario, a file that it names, or this program
has changed since, which a warning says. A point that fails (out of memory, say) is a row with its error. A
table of other points is not overwritten unless that is forced. Two sweeps cannot write the same table at the
same time.
"""

from __future__ import annotations

import csv
import fcntl
import hashlib
import io
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Final, Protocol, TypeVar

from scenarios.fields.results import column_of_result
from scenarios.file.document import Document
from scenarios.file.yaml_read import read_yaml_text, texts_in
from scenarios.importers.files import files_in
from scenarios.variants.variant import Row, Variant, Variants, is_invalid, refuse_all_invalid
from sim.base.errors import InputError, extra
from sim.base.files import read_bytes, write_bytes
from sim.export.tables import csv_text, json_rows


class Interrupted(KeyboardInterrupt):
    """Raised when a sweep is interrupted; `rows` are those of the finished points."""

    def __init__(self, rows: list[Row], message: str) -> None:
        super().__init__(message)
        self.rows = rows


def sweep(
    variants: Variants,
    points: Sequence[Variant],
    *,
    executor: Executor | None = None,
    out: str | Path | None = None,
    force: bool = False,
    done: Callable[[int, int], None] = lambda k, n: None,
) -> list[Row]:
    """Run all points and return their rows in order.

    Parameters
    ----------
    variants : Variants
        Variants of the scenario.
    points : sequence of Variant
    executor : concurrent.futures.Executor, optional
        Executor of the runs (processes, a Dask cluster); by default they run here, one after another.
    out : path, optional
        File for the table. Finished points are kept beside it, in ``FILE.points``, and not run again.
    force : bool
        Whether to replace another table in that file.
    done : callable
        Called with the number of finished points and the number of all points.

    Raises
    ------
    InputError
        No point has valid settings, or the file holds another table already.
    Interrupted
        By Ctrl-C.
    """
    stamp, now = stamps(variants.document, points)
    with nullcontext() if out is None else sweeping(out) as path:
        if path is not None:
            now = {key: f"{digest} {program()}" for key, digest in now.items()}
        store = KeptRows(path, now, [column_of_result(name) for name in variants.results])
        is_new = out is None or force or not Path(out).exists()
        if not is_new and store.found != now.keys():
            problem = "is there already, and is no table of these points"
            raise InputError(f"{out}: {problem}; name another file, or replace it with --force")
        if store.changed:
            problem = "the scenario, a file that it names, or this program has changed since"
            text = f"{path}: {problem}: {len(store.changed):,} of {len(points):,} points run again"
            warnings.warn(text, stacklevel=2)
        rows = store.complete(points, lambda missing: variants.rows(missing, executor, stamp=stamp), done)
        if out is not None:
            if not is_new and read_bytes(out, unpack=False) != _content(rows, out):
                raise InputError(f"{out}: is there already, and its results differ; replace it with --force")
            write_rows(rows, out)
    return rows


# ----------------------------------------------------------------------------------------------------------
# Files of a sweep: the table, and the finished points.

_ROOT: Final = Path(__file__).parents[2]


def stamps(document: Document, points: Sequence[Variant]) -> tuple[str, dict[str, str]]:
    """Return a hash of everything that the results depend on, and one for each point, by its key.

    They depend on the scenario (with what it extends and what is set), this program, and the files that the
    scenario and the values of the point name. For the user's own code, ``module:Class``, these files are the
    modules in its folder.
    """
    plain = document.root.plain()

    @cache
    def content(name: str) -> bytes:
        with suppress(InputError, OSError):  # most texts name no file, and some are too long for a name
            code = re.fullmatch(r"(\w+)(\.\w+)*:[\w.]+", name)
            path = document.file(name) if code is None else document.directory
            if code is not None:
                files = sorted([*path.glob("*.py"), *(path / code[1]).rglob("*.py")])
            else:
                files = [path / file for file in files_in(path)] if path.is_dir() else [path]
            read = (read_bytes(file, unpack=False) for file in files)
            return b"".join(hashlib.sha256(file).digest() for file in read)
        return b""

    base = hashlib.sha256(json.dumps([plain, version("graph-schedule-sim")]).encode())
    for text in texts_in(plain):
        base.update(content(text))
    digests = {}
    for point in points:
        digest = base.copy()
        digest.update(content(point.policy) if point.policy else b"")
        for _, value in point.settings:
            with suppress(InputError):  # the run of the point reports the error
                for text in texts_in(read_yaml_text(value, "--vary", places=False).plain()):
                    digest.update(content(text))
        digests[point.key] = digest.hexdigest()
    return hashlib.sha256(json.dumps([base.hexdigest(), digests]).encode()).hexdigest(), digests


@cache
def program() -> str:
    """Return a hash of this program's files, which change between two releases as well."""
    digest = hashlib.sha256()
    for package in ("sim", "devices", "policies", "scenarios"):
        for path in sorted(_ROOT.joinpath(package).rglob("*")):
            if path.is_file() and path.suffix not in (".pyc", ".so", ".pyd"):
                digest.update(path.read_bytes())
    return digest.hexdigest()


class _Point(Protocol):
    @property
    def key(self) -> str:
        """Key that identifies the point."""


_P = TypeVar("_P", bound=_Point)


class KeptRows:
    """Rows of runs by the key of their point, in a file from which an interrupted command continues.

    Parameters
    ----------
    path : path, optional
        File of the rows; without it nothing is kept.
    now : mapping of str to str
        Stamp of what the row of each point depends on; rows with another stamp are ignored.
    columns : sequence of str
        Columns that every row of a successful run has.

    Attributes
    ----------
    rows : dict of str to dict
    found, changed : set of str
        The points that the file has, and those whose rows are ignored because of another stamp.
    """

    def __init__(self, path: Path | None, now: Mapping[str, str], columns: Sequence[str] = ()) -> None:
        self.path, self.now = path, now
        self.rows: dict[str, Row] = {}
        self.found, self.changed = set[str](), set[str]()
        content = path.read_bytes() if path is not None and path.is_file() else b""
        self._cut_off = content[-1:] not in (b"", b"\n")
        for line in content.splitlines():
            # The line may have been cut off when the sweep was killed, or be that of another point.
            with suppress(ValueError, TypeError, KeyError):
                entry = json.loads(line)
                self.found.add(entry["point"])
                complete = "makespan_ns" not in entry["row"] or all(name in entry["row"] for name in columns)
                if entry["scenario"] != now[entry["point"]]:
                    self.changed.add(entry["point"])
                elif complete:
                    self.rows[entry["point"]] = entry["row"]
        self.changed -= self.rows.keys()

    def put(self, key: str, row: Row) -> None:
        """Add a row, and append it to the file, unless nothing could run."""
        self.rows[key] = row
        if self.path is not None and not is_invalid(row):
            try:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(("\n" if self._cut_off else "") + self._line(key))
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(self.path)) from None
            self._cut_off = False

    def _line(self, key: str) -> str:
        return json.dumps({"scenario": self.now[key], "point": key, "row": self.rows[key]}) + "\n"

    def complete(
        self,
        points: Sequence[_P],
        run: Callable[[Sequence[_P]], Iterable[tuple[_P, Row]]],
        done: Callable[[int, int], None],
    ) -> list[Row]:
        """Run the points without a row; return the rows of all points in order.

        The file is rewritten without rows of other points and without incomplete lines.

        Raises
        ------
        InputError
            No point has valid settings.
        Interrupted
            By Ctrl-C.
        """
        try:
            done(len(self.rows), len(points))
            for point, row in run([point for point in points if point.key not in self.rows]):
                self.put(point.key, row)
                done(len(self.rows), len(points))
        except KeyboardInterrupt:
            message = f"{len(self.rows)} of {len(points)} points are done"
            if self.path is not None and not all(map(is_invalid, self.rows.values())):
                message += f"; {self.path} keeps them, and the same command goes on there"
            rows = [self.rows[point.key] for point in points if point.key in self.rows]
            raise Interrupted(rows, message) from None
        refuse_all_invalid([*self.rows.values()])
        if self.path is not None:
            write_bytes(self.path, "".join(self._line(point.key) for point in points).encode())
        return [self.rows[point.key] for point in points]


@contextmanager
def sweeping(out: str | Path) -> Iterator[Path]:
    """Yield the file of points of a table, and keep other sweeps from writing it meanwhile.

    Raises
    ------
    InputError
        Another sweep is writing the same table.
    """
    points = Path(f"{out}.points")
    with points.open("a", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # released when the process ends, in any way
        except OSError:
            raise InputError(f"{out}: another sweep is writing it; name another file, or wait") from None
        try:
            yield points
        finally:
            if points.exists() and not points.stat().st_size:
                points.unlink()


def write_rows(rows: Sequence[Row], path: str | Path) -> None:
    """Write rows as a table in the format of the suffix: ``.json``, ``.parquet``, else CSV."""
    write_bytes(path, _content(rows, path))


def _content(rows: Sequence[Row], path: str | Path) -> bytes:
    ending = Path(path).suffix
    if ending == ".json":
        return json_rows(rows)
    columns = list(dict.fromkeys(column for row in rows for column in row if column != "error"))
    if any("error" in row for row in rows):
        columns.append("error")
    if ending == ".parquet":
        with extra("parquet", f"writing {path}"):
            import pyarrow
            import pyarrow.parquet as parquet
        binary = io.BytesIO()
        full_rows = [{column: row.get(column) for column in columns} for row in rows]
        parquet.write_table(pyarrow.Table.from_pylist(full_rows), binary)
        return binary.getvalue()
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({column: csv_text(cell) for column, cell in row.items()} for row in rows)
    return text.getvalue().encode()
