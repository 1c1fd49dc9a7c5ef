"""Policies and solvers on a set of instances: gaps to the best known, proofs and times.

::

    sets/job_shop/ft06, la01 ...      instances: files that say what they run on, and scenarios
                  bounds.csv          instance,lower,upper  of those whose best is known (or instances.json)
         │
         ├─► each policy              as the scenario runs under it
         ├─► heft, random             the list schedule; the best of some orders drawn, what is ready first
         └─► optimum                  `sim optimum` within a limit
                  │
                  └─► makespan, gap, lower bound, proven, seconds      a row an instance and method

A gap is to the best known upper bound, or where none is known, to the best of this run. Seconds, and what a
search has found when its time is up, depend on the machine; all else does not. Each row is remembered as it
is done, as those of a sweep are.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from policies.issue.program_order import OutOfOrder
from scenarios.file.document import Document
from scenarios.importers.scheduling_instances import is_instance
from scenarios.run.execute import Result, run_case
from scenarios.run.prepare_job import job_of
from scenarios.run.scenario import Case, scenario_of
from scenarios.variants.executors import run_on
from scenarios.variants.optimum import find_optimum, list_schedules
from scenarios.variants.schedules import ListedOrder
from scenarios.variants.sweep import KeptRows, program, stamps, sweeping, write_rows
from scenarios.variants.variant import Row, Variant, VariantRun, attempt
from sim.base.errors import InputError, SimError, hint, in_file, listed
from sim.base.files import read_bytes, read_text
from sim.base.plugins import NOTHING, Allowed
from sim.base.units import parse_duration
from sim.graph.walks import least_first
from sim.job.job import Job

HEFT: Final = "heft"
RANDOM: Final = "random"
OPTIMUM: Final = "optimum"
"""Methods beside policies."""

SHIPPED: Final = Path(__file__).parents[1] / "examples" / "instances"
"""Where the sets are that ship, each a folder."""

_BOUNDS: Final = ("bounds.csv", "instances.json")
"""Files of best known values, beside the instances or above them."""


class Point(NamedTuple):
    """An instance and a method.

    Attributes
    ----------
    path : str
    method : str
        `HEFT`, `RANDOM`, `OPTIMUM`, or a policy.
    sets : tuple of str
        ``KEY=VALUE``.
    effort : int
        How long to search, in ns; of `RANDOM` how many orders.
    devices : bool
        Whether ops may go to any device.
    allowed : Allowed
    """

    path: str
    method: str
    sets: tuple[str, ...] = ()
    effort: int = 0
    devices: bool = False
    allowed: Allowed = NOTHING

    @property
    def key(self) -> str:
        """What tells it from others, for what is remembered."""
        return json.dumps([self.path, self.method, self.sets, self.effort, self.devices])


class Known(NamedTuple):
    """What is known of the optimum of an instance, in ns; None: nothing."""

    lower_ns: int | None = None
    upper_ns: int | None = None


def instances_in(paths: Sequence[str]) -> list[str]:
    """Return the instances that are files, or lie in folders, however deep, in order of their names.

    A set that ships goes by its name: ``job_shop``, ``projects``.

    Raises
    ------
    InputError
        A folder has none, or a file is none.
    """
    found: list[str] = []
    sets = {folder.name: str(folder) for folder in sorted(SHIPPED.iterdir()) if folder.is_dir()}
    for given in paths:
        path = given if os.path.exists(given) else sets.get(given, given)
        if not os.path.exists(path):
            raise InputError(
                f"{given}: no such file or folder{hint(given, sets)}; sets that ship: {listed([*sets])}"
            )
        if not os.path.isdir(path):
            found.append(path)
            continue
        files = sorted(str(file) for file in Path(path).rglob("*") if file.is_file())
        inside = [file for file in files if file.endswith((".yaml", ".yml", ".stg")) or is_instance(file)]
        if not inside:
            kinds = "job shops, flexible job shops, projects (.sm), task graphs (.stg), scenarios (.yaml)"
            raise InputError(f"{path}: no instance in this folder; known: {kinds}")
        found += inside
    return list(dict.fromkeys(found))


def known_of(path: str) -> Known:
    """Return what a table beside an instance, or above it, says of its optimum.

    Raises
    ------
    InputError
        The table is not one.
    """
    file = Path(path).resolve()
    names = {file.name, file.name.removesuffix(".gz"), file.stem}
    for folder in list(file.parents)[:3]:
        for table in (folder / name for name in _BOUNDS):
            if table.is_file() and (row := _table(table).keys() & names):
                return _table(table)[min(row)]
    return Known()


def _table(path: Path) -> dict[str, Known]:
    """Return what a table says of each instance."""
    found: dict[str, Known] = {}
    with in_file(path):
        if path.suffix == ".json":
            try:
                for row in json.loads(read_text(path)):
                    limits = row.get("bounds") or {}
                    both = (row.get("optimum") or limits.get(key) for key in ("lower", "upper"))
                    found[row["name"]] = _known(*both)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InputError(f"should be a list of name, optimum, bounds: {error!r}") from None
            return found
        reader = csv.DictReader(io.StringIO(read_text(path)))
        if reader.fieldnames != ["instance", "lower", "upper"]:
            raise InputError(f"line 1: should be instance,lower,upper, found {reader.fieldnames}")
        for row in reader:
            try:
                found[row["instance"]] = _known(row["lower"], row["upper"])
            except InputError as error:
                raise InputError(f"line {reader.line_num}: {error.message}") from None
    return found


def _known(lower: Any, upper: Any) -> Known:
    found = Known(_ns(lower), _ns(upper))
    if found.lower_ns is not None and found.upper_ns is not None and found.lower_ns > found.upper_ns:
        raise InputError(f"the lower bound {lower} is above the upper one, {upper}")
    return found


def _ns(value: Any) -> int | None:
    """Return a bound in ns: a number is one of the unit of files, a us."""
    if value in (None, ""):
        return None
    text = str(value)
    return parse_duration(f"{text}us" if text.replace(".", "", 1).isdigit() else text, what="")


# ----------------------------------------------------------------------------------------------------------


def run_point(point: Point) -> Row:
    """Run a method on an instance; return what came of it."""
    began = time.perf_counter()
    row: Row = {"set": os.path.basename(os.path.dirname(os.path.abspath(point.path)))}
    row |= {"instance": os.path.basename(point.path), "method": point.method, "makespan_ns": None}
    row |= {"lower_bound_ns": None, "proven": False, "error": None}
    try:
        scenario = scenario_of(document_of(point))
        case = scenario.case(None if point.method in (HEFT, RANDOM, OPTIMUM) else point.method)
        placed = not (point.devices or _may_move(job_of(case)))
        if point.method == OPTIMUM:
            found = find_optimum([run_case(case)], limit_ns=point.effort, placed=placed)
            row |= {"makespan_ns": found.best.trace.makespan_ns, "lower_bound_ns": found.lower_bound}
            row |= {"proven": found.proven}
        else:
            ran = [_run(one) for one in _cases(case, point, placed)]
            best = min((one.result for one in ran if one.result), key=_makespan, default=None)
            if best is None:
                row["error"] = ran[0].line
            else:
                row["makespan_ns"] = best.trace.makespan_ns
    except SimError as error:
        row["error"] = str(error)
    return row | {"seconds": round(time.perf_counter() - began, 2)}


def _refuse_unknown(points: Sequence[Point]) -> None:
    for point in points:
        with suppress(SimError):  # its row says what is wrong with an instance
            scenario = scenario_of(document_of(point))
            break
    else:
        return
    for method in dict.fromkeys(point.method for point in points):
        if method not in (HEFT, RANDOM, OPTIMUM):
            scenario.case(method)


def document_of(point: Point) -> Document:
    """Return the scenario of a point; around a graph that does not say what it runs on, the settings do."""
    if point.path.endswith((".yaml", ".yml")) or is_instance(point.path):
        document = Document.read(point.path, point.allowed)
    else:
        told = {"workload": {"graph": os.path.basename(point.path)}, "policy": {"name": "ready-queue"}}
        folder = os.path.dirname(os.path.abspath(point.path))
        document = Document.written(json.dumps(told), folder, point.allowed)
    return document.with_settings(point.sets)


def _may_move(job: Job) -> bool:
    """Whether ops take a time of their own on each device: which one takes it is what is asked."""
    return any(name in job.machine.positions for name in job.graph.duration_by_kind)


def _run(case: Case) -> VariantRun:
    found = attempt(case)
    return found if found.error is None else found._replace(result=None)


def _makespan(result: Result) -> int:
    return result.trace.makespan_ns


def _cases(case: Case, point: Point, placed: bool) -> Iterator[Case]:
    """Yield what a method runs."""
    if point.method not in (HEFT, RANDOM):
        yield case
        return
    job = job_of(case)
    first = next(list_schedules(case, job, placed))
    if point.method == HEFT:
        yield first
        return
    rng, dag, how = random.Random(0), job.graph.dag(), case.decisions.policy.synchronisation
    for _ in range(point.effort):
        order = list(least_first(dag, [rng.random() for _ in range(len(job.graph))]))
        yield (case if placed else first).deciding(
            policy=OutOfOrder(synchronisation=how), linearize=ListedOrder(order)
        )


# ----------------------------------------------------------------------------------------------------------


def bench(
    points: Sequence[Point],
    *,
    executor: Executor | None = None,
    out: str | Path | None = None,
    done: Callable[[int, int], None] = lambda k, n: None,
) -> list[Row]:
    """Run all points; return their rows in order, with the gaps.

    Parameters
    ----------
    points : sequence of Point
    executor : concurrent.futures.Executor, optional
        Where they run; by default here, one after another.
    out : path, optional
        Write the table there; what is done is remembered beside it, and not run again.
    done : callable
        Told (how many are done, of how many).

    Raises
    ------
    InputError
        A table of bounds is none, or another bench writes the same table now; a policy that the first
        instance does not know.
    RunError
        A process ended by itself.
    KeyboardInterrupt
        By Ctrl-C; it says what is done.
    """
    _refuse_unknown(points)
    known = {point.path: known_of(point.path) for point in points}
    if out is None:
        return with_gaps(points, _rows(points, executor, None, done), known)
    with sweeping(out) as kept:
        rows = with_gaps(points, _rows(points, executor, kept, done), known)
        write_rows(rows, out)
    return rows


def _rows(
    points: Sequence[Point], executor: Executor | None, kept: Path | None, done: Callable[[int, int], None]
) -> list[Row]:
    now = {} if kept is None else {point.key: f"{_stamp(point)} {program()}" for point in points}
    rows = KeptRows(kept, now)

    def run(left: Sequence[Point]) -> Iterator[tuple[Point, Row]]:
        return (
            ((each, run_point(each)) for each in left)
            if executor is None
            else run_on(executor, run_point, left)
        )

    try:
        return rows.complete(points, run, done)
    except KeyboardInterrupt:
        told = f"{len(rows.rows)} of {len(points)} points are done"
        if kept is not None and rows.rows:
            told += f"; {kept} keeps them, and the same command goes on there"
        raise KeyboardInterrupt(told) from None


def _stamp(point: Point) -> str:
    """Return a hash of the instance, of what it is laid over, and of all files that it names."""
    own = hashlib.sha256(read_bytes(point.path, unpack=False)).hexdigest()
    with suppress(SimError):  # its row says what is wrong with it
        variant = Variant(policy=point.method)
        return own + stamps(document_of(point), [variant])[1][variant.key]
    return own


def with_gaps(points: Sequence[Point], rows: Sequence[Row], known: Mapping[str, Known]) -> list[Row]:
    """Return rows with what is known of their instance, and by which part they are above the best."""
    best: dict[str, int] = {}
    for point, row in zip(points, rows, strict=True):
        ns = row["makespan_ns"]
        if ns is not None:
            best[point.path] = min(best.get(point.path, ns), ns)
    told = []
    for point, row in zip(points, rows, strict=True):
        lower, upper = known[point.path]
        least = upper if upper is not None else best.get(point.path)
        gap = row["makespan_ns"] / least - 1 if row["makespan_ns"] is not None and least else None
        own = {key: value for key, value in row.items() if key not in ("seconds", "error")}
        last = {"seconds": row["seconds"], "error": row["error"]}
        told.append({**own, "known_lower_ns": lower, "known_upper_ns": upper, "gap": gap, **last})
    return told


def contradictions(rows: Sequence[Row]) -> list[str]:
    """Return what cannot be: a run below a known lower bound, or a bound above a run that is known."""
    found = []
    for row in rows:
        name, ns, bound = f"{row['instance']}, {row['method']}", row["makespan_ns"], row["lower_bound_ns"]
        lower, upper = row["known_lower_ns"], row["known_upper_ns"]
        if ns is not None and lower is not None and ns < lower:
            found.append(f"{name}: takes {ns} ns, and nothing should take less than {lower} ns")
        if bound is not None and upper is not None and bound > upper:
            found.append(f"{name}: nothing should take less than {bound} ns, and {upper} ns is known")
    return found


class Standing(NamedTuple):
    """How a method did on a set.

    Attributes
    ----------
    instances : int
        On which it came to an end.
    gap : float, optional
        Mean over these; None if there are none.
    best, proven : int
        How often it is as good as the best known, and how often it says for sure that nothing is better.
    seconds : float
        Mean.
    """

    set: str
    method: str
    instances: int
    gap: float | None
    best: int
    proven: int
    seconds: float


def standings(rows: Sequence[Row]) -> list[Standing]:
    """Return how each method did on each set, in order of the rows."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["set"], row["method"]), []).append(row)
    found = []
    for (name, method), own in groups.items():
        ran = [row for row in own if row["gap"] is not None]
        gaps = [row["gap"] for row in ran]
        proven = sum(row["proven"] for row in ran)
        seconds = fmean(row["seconds"] for row in own)
        mean = fmean(gaps) if gaps else None
        found.append(Standing(name, method, len(ran), mean, sum(gap <= 0 for gap in gaps), proven, seconds))
    return found


def profile(rows: Sequence[Row]) -> dict[str, list[tuple[Fraction, Fraction]]]:
    """Return the performance profile of each method: (ratio, share of the instances that are within it).

    A ratio is that of a makespan to the best of all methods (Dolan and Moré, "Benchmarking optimization
    software with performance profiles", Math. Program. 91, 2002).

    Examples
    --------
    >>> rows = [
    ...     {"set": "", "instance": name, "method": method, "makespan_ns": ns}
    ...     for name, method, ns in (("a", "x", 10), ("a", "y", 12), ("b", "x", 8), ("b", "y", 4))
    ... ]
    >>> {method: [(float(r), float(s)) for r, s in steps] for method, steps in profile(rows).items()}
    {'x': [(1.0, 0.5), (2.0, 1.0)], 'y': [(1.0, 0.5), (1.2, 1.0)]}
    """
    of: dict[tuple[str, str], dict[str, int]] = {}
    for row in rows:
        if row["makespan_ns"]:
            of.setdefault((row["set"], row["instance"]), {})[row["method"]] = row["makespan_ns"]
    found: dict[str, list[tuple[Fraction, Fraction]]] = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        ratios = sorted(Fraction(own[method], min(own.values())) for own in of.values() if method in own)
        steps = {ratio: Fraction(k, len(of)) for k, ratio in enumerate(ratios, 1)}
        found[method] = list(steps.items())
    return found
