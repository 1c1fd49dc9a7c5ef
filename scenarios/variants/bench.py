"""Runs policies and solvers on a set of instances: gaps to the best known values, proofs and times.

::

    sets/job_shop/ft06, la01 ...      instances: files that describe their machine, and scenarios
                  bounds.csv          instance,lower,upper: best known values of instances (or instances.json)
         │
         ├─► each policy              the scenario's run under it
         ├─► heft, random             the list schedule; the best of several orders drawn at random
         └─► optimum                  `sim optimum` within a time limit
                  │
                  └─► makespan, gap, lower bound, proven, seconds      one row per instance and method

A gap is measured to the best known upper bound or, if none is known, to the best makespan of this bench.
Seconds, and the best solution found within a time limit, depend on the machine; nothing else does. Each row
is kept as soon as it is finished, as in a sweep.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext, suppress
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

from policies.issue.program_order import OutOfOrder
from scenarios.file.document import Document
from scenarios.importers.scheduling_instances import is_instance
from scenarios.run.execute import run_case
from scenarios.run.prepare_job import job_of
from scenarios.run.scenario import Case, scenario_of
from scenarios.variants.executors import run_on
from scenarios.variants.optimum import bound_of_placed, find_optimum, list_schedules
from scenarios.variants.schedules import ListedOrder
from scenarios.variants.sweep import KeptRows, program, stamps, sweeping, write_rows
from scenarios.variants.variant import Row, Variant, attempt
from sim.base.arrays import group_pairs
from sim.base.errors import InputError, SimError, hint, in_file, list_names
from sim.base.files import read_bytes, read_table, read_text
from sim.base.plugins import NOTHING, Allowed
from sim.base.units import parse_duration
from sim.graph.walks import least_first

HEFT: Final = "heft"
RANDOM: Final = "random"
OPTIMUM: Final = "optimum"
"""Methods that are not policies."""

SHIPPED: Final = Path(__file__).parents[1] / "examples" / "instances"
"""Folder of the sets of instances that ship, each a folder."""

_BOUNDS_FILES: Final = ("bounds.csv", "instances.json")
"""Names of the files of best known values, in the folder of the instances or above."""


class Point(NamedTuple):
    """An instance and a method.

    Attributes
    ----------
    path : str
    method : str
        `HEFT`, `RANDOM`, `OPTIMUM`, or a policy.
    sets : tuple of str
        ``KEY=VALUE`` settings.
    effort : int
        Time limit of a search in ns; for `RANDOM`, the number of orders.
    devices : bool
        Whether the method may choose the device of each op.
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
        """Key that identifies the point among the kept rows."""
        return json.dumps([self.path, self.method, self.sets, self.effort, self.devices])


class Known(NamedTuple):
    """Known bounds of the optimum of an instance, in ns; None if unknown."""

    lower_ns: int | None = None
    upper_ns: int | None = None


def instances_in(paths: Sequence[str]) -> list[str]:
    """Return the given files, and the instances in the given folders at any depth, sorted by name.

    A set that ships can be given by its name: ``job_shop``, ``projects``.

    Raises
    ------
    InputError
        A folder has no instance, or a path does not exist.
    """
    chosen: list[str] = []
    sets = {folder.name: str(folder) for folder in sorted(SHIPPED.iterdir()) if folder.is_dir()}
    for name in paths:
        path = name if os.path.exists(name) else sets.get(name, name)
        if not os.path.exists(path):
            raise InputError(
                f"{name}: no such file or folder{hint(name, sets)}; sets that ship: {list_names([*sets])}"
            )
        if not os.path.isdir(path):
            chosen.append(path)
            continue
        files = sorted(str(file) for file in Path(path).rglob("*") if file.is_file())
        instances = [file for file in files if file.endswith((".yaml", ".yml", ".stg")) or is_instance(file)]
        if not instances:
            kinds = "job shops, flexible job shops, projects (.sm), task graphs (.stg), scenarios (.yaml)"
            raise InputError(f"{path}: no instance in this folder; known: {kinds}")
        chosen += instances
    return list(dict.fromkeys(chosen))


def known_of(path: str) -> Known:
    """Return the known bounds of an instance from a table in its folder or above.

    Raises
    ------
    InputError
        The table cannot be read.
    """
    file = Path(path).resolve()
    names = {file.name, file.name.removesuffix(".gz"), file.stem}
    for folder in list(file.parents)[:3]:
        for table in (folder / name for name in _BOUNDS_FILES):
            bounds = _table(table) if table.is_file() else {}
            if matching := bounds.keys() & names:
                return bounds[min(matching)]
    return Known()


def _table(path: Path) -> dict[str, Known]:
    """Return the known bounds of each instance in a table."""
    table = list[tuple[str, list[Any]]]()
    if path.suffix == ".json":
        try:
            for row in json.loads(read_text(path)):
                stated, optimum = row.get("bounds") or {}, row.get("optimum")
                bounds = [optimum or stated.get(side) for side in ("lower", "upper")]
                table.append((f"{path}: {row['name']}", [row["name"], *bounds]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path}: should be a list of name, optimum, bounds: {error!r}") from None
    else:
        columns, rows = read_table(path)
        if columns != ["instance", "lower", "upper"]:
            raise InputError(f"{path}:1: should be instance,lower,upper, found {columns}")
        table = [(where, [*row.values()]) for where, row in rows]
    table_bounds: dict[str, Known] = {}
    for where, (name, low, high) in table:
        with in_file(where):
            lower, upper = _ns(low), _ns(high)
            if lower is not None and upper is not None and lower > upper:
                raise InputError(f"the lower bound {low} is above the upper one, {high}")
        table_bounds[name] = Known(lower, upper)
    return table_bounds


def _ns(value: Any) -> int | None:
    """Return a bound in ns; a number without a unit is in the time unit of instance files, read as us."""
    if value in (None, ""):
        return None
    text = str(value)
    return parse_duration(f"{text}us" if text.replace(".", "", 1).isdigit() else text, what="")


# ----------------------------------------------------------------------------------------------------------


def run_point(point: Point) -> Row:
    """Run a method on an instance; return the row of its result."""
    began = time.perf_counter()
    row: Row = {"set": os.path.basename(os.path.dirname(os.path.abspath(point.path)))}
    row |= {"instance": os.path.basename(point.path), "method": point.method, "makespan_ns": None}
    row |= {"lower_bound_ns": None, "proven": False, "known_lower_ns": None, "known_upper_ns": None}
    row |= {"gap": None, "seconds": 0.0, "error": None}
    try:
        scenario = scenario_of(document_of(point))
        case = scenario.case(None if point.method in (HEFT, RANDOM, OPTIMUM) else point.method)
        job = job_of(case)  # with a duration for each single device, choosing devices is part of the problem
        placed = not (point.devices or job.machine.positions.keys() & job.graph.duration_by_kind.keys())
        if point.method == OPTIMUM:
            optimum = find_optimum([run_case(case)], limit_ns=point.effort, placed=placed)
            row |= {"makespan_ns": optimum.best.trace.makespan_ns, "lower_bound_ns": optimum.lower_bound}
            row |= {"proven": optimum.proven}
        else:
            ran = [attempt(one) for one in _cases(case, point, placed)]
            done = [one.result for one in ran if one.error is None and one.result]
            if not done:
                row["error"] = ran[0].line
            else:
                best = min(done, key=lambda result: result.trace.makespan_ns)
                row["makespan_ns"] = best.trace.makespan_ns
                row["lower_bound_ns"] = bound_of_placed(best) if placed else None
    except SimError as error:
        row["error"] = str(error)
    return row | {"seconds": round(time.perf_counter() - began, 2)}


def _refuse_unknown(points: Sequence[Point]) -> None:
    for point in points:
        with suppress(SimError):  # the row of a wrong instance shows its error
            scenario = scenario_of(document_of(point))
            break
    else:
        return
    policies = (point.method for point in points if not point.effort)  # `RANDOM` and `OPTIMUM` have one
    for method in dict.fromkeys(policies):
        if method != HEFT:
            scenario.case(method)


def document_of(point: Point) -> Document:
    """Return the scenario of a point; for a plain graph, the settings describe the machine."""
    if point.path.endswith((".yaml", ".yml")) or is_instance(point.path):
        document = Document.read(point.path, point.allowed)
    else:
        content = {"workload": {"graph": os.path.basename(point.path)}, "policy": {"name": "ready-queue"}}
        folder = os.path.dirname(os.path.abspath(point.path))
        document = Document.from_text(json.dumps(content), folder, point.allowed)
    return document.with_settings(point.sets)


def _cases(case: Case, point: Point, placed: bool) -> Iterator[Case]:
    """Yield the cases that a method runs."""
    if point.method not in (HEFT, RANDOM):
        yield case
        return
    job = job_of(case)
    first = next(list_schedules(case, job, placed))
    if point.method == HEFT:
        yield first
        return
    rng, dag, sync = random.Random(0), job.graph.dag(), case.decisions.policy.synchronisation
    for _ in range(point.effort):
        order = list(least_first(dag, [rng.random() for _ in range(len(job.graph))]))
        yield (case if placed else first).deciding(
            policy=OutOfOrder(synchronisation=sync), linearize=ListedOrder(order)
        )


# ----------------------------------------------------------------------------------------------------------


def bench(
    points: Sequence[Point],
    *,
    executor: Executor | None = None,
    out: str | Path | None = None,
    done: Callable[[int, int], None] = lambda k, n: None,
) -> list[Row]:
    """Run all points; return their rows in order, with their gaps.

    Parameters
    ----------
    points : sequence of Point
    executor : concurrent.futures.Executor, optional
        Executor of the runs; by default they run here, one after another.
    out : path, optional
        File for the table; finished points are kept beside it, and not run again.
    done : callable
        Called with the number of finished points and the number of all points.

    Raises
    ------
    InputError
        A table of bounds cannot be read, another bench is writing the same table, or the first instance does
        not know a policy.
    RunError
        A process ended unexpectedly.
    Interrupted
        By Ctrl-C.
    """
    _refuse_unknown(points)
    bounds = {point.path: known_of(point.path) for point in points}
    with nullcontext() if out is None else sweeping(out) as file:
        now = {} if file is None else {point.key: f"{_stamp(point)} {program()}" for point in points}
        rows = KeptRows(file, now).complete(points, lambda rest: run_on(executor, run_point, rest), done)
        rows = with_gaps(points, rows, bounds)
        if out is not None:
            write_rows(rows, out)
    return rows


def _stamp(point: Point) -> str:
    """Return a hash of the instance, the settings over it, and all files that it names."""
    digest = hashlib.sha256(read_bytes(point.path, unpack=False)).hexdigest()
    with suppress(SimError):  # its row shows the error
        variant = Variant(policy=point.method)
        return digest + stamps(document_of(point), [variant])[1][variant.key]
    return digest


def with_gaps(points: Sequence[Point], rows: Sequence[Row], bounds: Mapping[str, Known]) -> list[Row]:
    """Return the rows with the known bounds of their instance, and with their relative gap to the best."""
    times = ((point.path, row["makespan_ns"]) for point, row in zip(points, rows, strict=True))
    best = {path: min(ns) for path, ns in group_pairs(time for time in times if time[1] is not None).items()}
    result = []
    for point, row in zip(points, rows, strict=True):
        lower, upper = bounds[point.path]
        best_ns, ns = best.get(point.path) if upper is None else upper, row["makespan_ns"]
        gap = ns / best_ns - 1 if ns is not None and best_ns else None
        result.append({**row, "known_lower_ns": lower, "known_upper_ns": upper, "gap": gap})
    return result


def contradictions(rows: Sequence[Row]) -> list[str]:
    """Return contradictions: runs below a known lower bound, and bounds above a known makespan."""
    messages = []
    for row in rows:
        name, ns, bound = f"{row['instance']}, {row['method']}", row["makespan_ns"], row["lower_bound_ns"]
        lower, upper = row["known_lower_ns"], row["known_upper_ns"]
        if ns is not None and lower is not None and ns < lower:
            messages.append(f"{name}: takes {ns} ns, and nothing should take less than {lower} ns")
        if bound is not None and upper is not None and bound > upper:
            messages.append(f"{name}: nothing should take less than {bound} ns, and {upper} ns is known")
    return messages


def standings(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the results of each method on each set, in the order of the rows.

    These are the number of instances on which it finished, its mean gap over them, the numbers of those on
    which it equals the best known value, and on which it proves optimality, and its mean time.
    """
    table = []
    by_method = group_pairs(((row["set"], row["method"]), row) for row in rows)
    for (name, method), method_rows in by_method.items():
        gaps = [row["gap"] for row in method_rows if row["gap"] is not None]
        proven = sum(row["proven"] for row in method_rows if row["gap"] is not None)
        table.append(
            {
                "set": name,
                "method": method,
                "instances": len(gaps),
                "gap": fmean(gaps) if gaps else None,
                "best": sum(gap <= 0 for gap in gaps),
                "proven": proven if method == OPTIMUM else None,
                "mean time": f"{fmean(row['seconds'] for row in method_rows):.2f} s",
            }
        )
    return table


def profile(rows: Sequence[Row]) -> dict[str, list[tuple[Fraction, Fraction]]]:
    """Return the performance profile of each method: (ratio, share of the instances within that ratio).

    A ratio is a makespan over the best of all methods (Dolan and Moré, "Benchmarking optimization
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
    makespans: dict[tuple[str, str], dict[str, int]] = {}
    for row in rows:
        if row["makespan_ns"]:
            makespans.setdefault((row["set"], row["instance"]), {})[row["method"]] = row["makespan_ns"]
    steps_by_method: dict[str, list[tuple[Fraction, Fraction]]] = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        of_all = [by_method for by_method in makespans.values() if method in by_method]
        ratios = sorted(Fraction(by_method[method], min(by_method.values())) for by_method in of_all)
        steps = {ratio: Fraction(k, len(makespans)) for k, ratio in enumerate(ratios, 1)}
        steps_by_method[method] = list(steps.items())
    return steps_by_method
