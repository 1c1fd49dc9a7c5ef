"""A scenario at many settings: every combination, on as many workers as there are, resumable.

::

    --vary workload.batch=1,8,32 --vary machine.devices.gpu0.streams=1,4     6 points, the last key fastest
           │
           └► FILE.partial   one line of JSON for each point that is done, as it is done
           └► FILE           all points in order, when all are done

A sweep that was interrupted goes on where it was: points in the partial file are not run again, unless
the scenario, or a file that it names, has changed since. A point that fails (out of memory, say) is a row
that says so. A table that is there is not replaced by another one unless it is forced.
"""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import math
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from scenarios.file.document import Document
from scenarios.file.yaml_read import read_yaml_text
from scenarios.importers.traces.kineto import files_in
from sim.files.atomic_files import write_text
from sim.files.reading import read_bytes
from sim.words.errors import InputError, RunError, SimError, extra
from sim.words.limits import MOST_RUNS, at_most

__all__ = [
    "Interrupted",
    "Point",
    "column_of",
    "dask_executor",
    "points_of",
    "process_executor",
    "run_point",
    "sweep",
]

Row = dict[str, Any]

_RESULTS: Final = ("policy", "makespan_ns", "lower_bound_ns", "error")


class Interrupted(KeyboardInterrupt):
    """A sweep was interrupted; `rows` are those of the points that were done."""

    def __init__(self, rows: list[Row], told: str) -> None:
        super().__init__(told)
        self.rows = rows


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
        See `scenarios.run.load.Scenario.case`.
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
        ``KEY=V1,V2,...``; commas inside brackets, braces or quotes belong to a value.
    policies : sequence of str

    Raises
    ------
    InputError
        No ``=``, no value, or a key given twice.

    Examples
    --------
    >>> [str(point) for point in points_of(["a=1,2", "b=[3,4],5"])]
    ['a=1, b=[3,4]', 'a=1, b=5', 'a=2, b=[3,4]', 'a=2, b=5']
    """
    axes: dict[str, list[str]] = {}
    for text in vary:
        key, equals, values = text.partition("=")
        if not equals or not key or not values:
            raise InputError(f"--vary {text!r}: give KEY=V1,V2,... as in workload.batch=1,8,32")
        if key in axes:
            raise InputError(f"--vary {key} is given twice; put all its values behind one")
        axes[key] = list(_split(values))
        if "" in axes[key]:
            raise InputError(f"--vary {text!r}: a value is empty")
    at_most(MOST_RUNS, math.prod(map(len, axes.values())) * len(policies), "points")
    combinations = itertools.product(*([(key, value) for value in values] for key, values in axes.items()))
    return [Point(tuple(settings), policy) for settings in combinations for policy in policies]


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


def run_point(
    path: str,
    point: Point,
    sets: Sequence[str] = (),
    allow_code: bool = False,
    allow_outside: bool = False,
) -> Row:
    """Run one point; return its settings and its numbers, or what went wrong.

    Raises
    ------
    InputError
        The settings make no scenario: that is not this point's fault alone, and stops the sweep.
    """
    from scenarios.run.execute import run_case
    from scenarios.run.load import load_scenario
    from sim.analysis.failed_ops import failure_text

    row: Row = {column_of(key): value for key, value in point.settings}
    vary = [f"{key}={value}" for key, value in point.settings]
    scenario = load_scenario(path, sets=sets, vary=vary, allow_code=allow_code, allow_outside=allow_outside)
    case = scenario.case(point.policy)
    try:
        result = run_case(case)
    except InputError:
        raise
    except SimError as error:
        return row | {"policy": case.label, "error": str(error).partition("\n")[0]}
    summary = result.summary
    row |= {
        "policy": result.policy,
        "makespan_ns": summary["makespan_ns"],
        "lower_bound_ns": summary["lower_bound_ns"],
    }
    for name, device in summary["devices"].items():
        for number in ("utilisation", "bubble", "peak_memory_bytes"):
            row[f"{name}.{number}"] = device[number]
    for name, link in summary["links"].items():
        row[f"{name}.utilisation"] = link["utilisation"]
    for name, life in summary.get("training_run", {}).get("recovery", {}).items():
        row[f"{name}.goodput"] = life["goodput"]
    unused = ", ".join(summary["unused_devices"])
    return row | {"unused_devices": unused, "error": failure_text(result.trace) or None}


def sweep(
    path: str,
    points: Sequence[Point],
    *,
    sets: Sequence[str] = (),
    allow_code: bool = False,
    allow_outside: bool = False,
    executor: Executor | None = None,
    out: str | Path | None = None,
    force: bool = False,
    done: Callable[[int, int], None] = lambda k, n: None,
) -> list[Row]:
    """Run all points; return their rows in order.

    Parameters
    ----------
    path : str
        The scenario.
    points : sequence of Point
    sets : sequence of str
        ``KEY=VALUE`` for all points.
    allow_code, allow_outside : bool
        As for `scenarios.run.load.load_scenario`.
    executor : concurrent.futures.Executor, optional
        Where they run (processes, a Dask cluster); by default here, one after another.
    out : path, optional
        Write the table there. Until then finished points are remembered beside it, and those of an
        interrupted sweep are not run again.
    force : bool
        Whether another table there is replaced.
    done : callable
        Told (how many are done, of how many).

    Raises
    ------
    InputError
        A point's settings make no scenario, or another table is there already.
    Interrupted
        By Ctrl-C.
    """
    if out is not None and not force:
        _check_same_table(out, points)
    partial = None if out is None else Path(f"{out}.partial")
    stamps = {} if partial is None else _stamps(path, points, sets, allow_outside)
    rows = {} if partial is None else _finished(partial, stamps)
    left = [point for point in points if point.key not in rows]
    try:
        done(len(rows), len(points))
        for point, row in _run(path, left, (tuple(sets), allow_code, allow_outside), executor):
            rows[point.key] = row
            if partial is not None:
                _remember(partial, {"scenario": stamps[point.key], "point": point.key, "row": row})
            done(len(rows), len(points))
    except KeyboardInterrupt:
        told = f"{len(rows)} of {len(points)} points are done"
        if partial is not None and rows:
            told += f"; {partial} keeps them, and the same command goes on there"
        raise Interrupted([rows[point.key] for point in points if point.key in rows], told) from None
    ordered = [rows[point.key] for point in points]
    if out is not None and partial is not None:
        table = _table(ordered, out)
        if not force and Path(out).exists() and Path(out).read_bytes() != table.encode():
            raise InputError(f"{out}: is there already, and its results differ; replace it with --force")
        write_text(out, table)
        partial.unlink(missing_ok=True)  # it has served
    return ordered


def _stamps(path: str, points: Sequence[Point], sets: Sequence[str], allow_outside: bool) -> dict[str, str]:
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
    stamps = {}
    for point in points:
        own = base.copy()
        for _, value in point.settings:
            with suppress(InputError):  # the run of the point says where it is wrong
                for text in _texts(read_yaml_text(value, "--vary", places=False).plain()):
                    own.update(content(text))
        stamps[point.key] = own.hexdigest()
    return stamps


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a tree that may name a file."""
    if isinstance(value, dict | list):
        for inside in value.values() if isinstance(value, dict) else value:
            yield from _texts(inside)
    elif isinstance(value, str) and 0 < len(value) < 1000:
        yield value


def _remember(partial: Path, entry: Row) -> None:
    try:
        with partial.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(partial)) from None


def _run(
    path: str, points: Sequence[Point], how: tuple[Any, ...], executor: Executor | None
) -> Iterator[tuple[Point, Row]]:
    if executor is None:
        for point in points:
            yield point, run_point(path, point, *how)
        return
    with _without_interrupts():  # which processes that start now inherit: Ctrl-C is for this one alone
        futures: dict[Future[Row], Point] = {
            executor.submit(run_point, path, point, *how): point for point in points
        }
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BrokenExecutor:
        raise RunError(
            "a process of the sweep ended by itself; the machine may have run out of memory"
        ) from None
    finally:
        for future in futures:
            future.cancel()


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Hold Ctrl-C back while the block runs, where the system can."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def process_executor(jobs: int, begin: Callable[[], None]) -> Iterator[Executor]:
    """Give an executor on so many processes, which are ended at once if something goes wrong here.

    Parameters
    ----------
    jobs : int
    begin : callable
        What each process does first.
    """
    with ProcessPoolExecutor(jobs, get_context("spawn"), begin) as executor:
        try:
            yield executor
        except BaseException:
            for process in list((executor._processes or {}).values()):
                process.terminate()
            raise


def _finished(partial: Path, stamps: Mapping[str, str]) -> dict[str, Row]:
    """Return the rows in a partial file that are of these points as they are now, by the key of the point."""
    found = {}
    for line in partial.read_text(encoding="utf-8").splitlines() if partial.is_file() else ():
        with suppress(ValueError, TypeError, KeyError):  # cut off when the sweep died, or of another point
            entry = json.loads(line)
            if entry["scenario"] == stamps[entry["point"]]:
                found[entry["point"]] = entry["row"]
    return found


def _check_same_table(out: str | Path, points: Sequence[Point]) -> None:
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


def _table(rows: Sequence[Row], path: str | Path) -> str:
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


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """Give an executor on the Dask cluster at `address`, and leave the cluster afterwards.

    Raises
    ------
    MissingExtraError
        The extra ``dask`` is not installed.
    InputError
        `address` is none.
    """
    with extra("dask", "a sweep on a Dask cluster"):
        from distributed import Client
    try:
        client = Client(address)
    except ValueError as error:
        raise InputError(
            f"{address!r} is no address of a Dask scheduler (tcp://HOST:PORT): {error}"
        ) from None
    with client:
        yield client.get_executor()
