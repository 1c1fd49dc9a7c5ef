"""Scenarios as regression tests: runs whatever has an ``expect:``, and reports what does not hold."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from scenarios.expectations import Expectation, FinishedRun, Outcome, Relative, read_relative, resolve
from scenarios.fields.results import ORDER, Value, holds, result_named
from scenarios.file.document import Document, Loc
from scenarios.file.yaml_read import LOADER, Node, Place, read_yaml, read_yaml_text
from scenarios.run.execute import Result, run_case
from scenarios.run.scenario import Case, scenario_of
from sim.base.errors import InputError, InvariantError, RunError, SimError, nearest
from sim.base.files import write_bytes
from sim.base.plugins import NOTHING, Allowed
from sim.explain.failed_ops import failure_text
from sim.explain.time_use import unused_devices

# ----------------------------------------------------------------------------------------------------------
# Failures as annotations, which GitHub shows beside the lines of a pull request.
#
#     ::error file=s.yaml,line=12,col=13,title=sim check: 1f1b::makespan is 80 us, expected 50 us
#
# The format is in "Workflow commands for GitHub Actions",
# https://docs.github.com/en/actions/reference/workflow-commands; the escaping is in
# ``packages/core/src/command.ts`` of https://github.com/actions/toolkit.


def annotation(level: str, place: Place, title: str, message: str) -> str:
    r"""Return the line of an annotation.

    Parameters
    ----------
    level : str
        ``error``, ``warning`` or ``notice``.
    place : Place
    title, message : str

    Examples
    --------
    >>> print(annotation("error", Place("s.yaml", 3, 7), "sim check: a, b", "50% more\nthan before"))
    ::error file=s.yaml,line=3,col=7,title=sim check%3A a%2C b::50%25 more%0Athan before
    """
    values = {"file": place.source, "line": place.line, "col": place.column, "title": title}
    properties = ",".join(f"{key}={_escape(str(value), ':,')}" for key, value in values.items() if value)
    return f"::{level} {properties}::{_escape(message)}"


def _escape(text: str, also: str = "") -> str:
    for character in ("%", "\r", "\n", *also):
        text = text.replace(character, f"%{ord(character):02X}")
    return text


# ----------------------------------------------------------------------------------------------------------
# New values for an expectation that failed, as the text that one would write.
#
# An expected value becomes the exact result. So does a bound that is whole; shares and multiples of another
# run get four digits, rounded to the side on which the bound holds.

_DIGITS: Final = 4
_ROUNDING: Final = {"equals": ROUND_HALF_EVEN, "at_most": ROUND_CEILING, "at_least": ROUND_FLOOR}


def new_values(outcome: Outcome, *, percent: Collection[str] = ()) -> dict[str, str]:
    """Return new texts for the keys of a condition that do not hold.

    Parameters
    ----------
    outcome : Outcome
        Outcome of a value, not of an order or a schedule.
    percent : collection of str
        Keys whose share is written in per cent.

    Raises
    ------
    InputError
        No short text is exact enough: the result is not a multiple of that of the other run.
    """
    return {
        key: _text(key, outcome, value, percent=key in percent)
        for key, value in outcome.condition.items()
        if key in _ROUNDING and not _holds(key, outcome.actual, outcome.condition)
    }


def _holds(key: str, actual: Value, condition: Mapping[str, Value]) -> bool:
    """Whether one key of a condition holds, with the tolerance if it applies to this key."""
    keys = (key, "tolerance") if key == "equals" else (key,)
    return holds(actual, {name: condition[name] for name in keys if name in condition})


def _text(key: str, outcome: Outcome, value: Value, *, percent: bool) -> str:
    condition, actual = outcome.expectation.condition, outcome.actual
    result = result_named(outcome.result)
    relative = condition[key]
    if isinstance(relative, Relative):
        other = outcome.references[relative.run]
        text = f"{_times(key, actual, other)} x {relative.run}" if other else ""
        again = resolve({**condition, key: read_relative(text) or relative}, outcome.references)
        if not _holds(key, actual, again):
            raise InputError(f"it is no multiple of what {relative.run} has, with {_DIGITS} digits")
        return text
    if isinstance(value, float):
        exact = Decimal(repr(actual)) if key == "equals" else _rounding(key).create_decimal(Decimal(actual))
        texts = [f"{(exact * 100).normalize():f}%"] * percent + [f"{exact.normalize():f}"]
        return next(
            text for text in texts if _holds(key, actual, {**outcome.condition, key: result.read_text(text)})
        )
    text = result.unit.show(actual)
    return text if isinstance(value, str) else text.replace(" ", "")


def _times(key: str, actual: int | float, other: int | float) -> str:
    exact = Fraction(actual) / Fraction(other)
    return f"{_rounding(key).divide(Decimal(exact.numerator), Decimal(exact.denominator)).normalize():f}"


def _rounding(key: str) -> Context:
    return Context(prec=_DIGITS, rounding=_ROUNDING[key])


# ----------------------------------------------------------------------------------------------------------
# A table of ops to which the schedules of later runs are compared, rewritten for one run.
#
#     op,start_ns,...              policy,op,start_ns,...
#     a,0,...                      gpipe,a,0,...             as `sim run --ops` writes one run, or several
#                                  1f1b,a,0,...


Rewritten = dict[tuple[Path, str], str]
"""Tables that were rewritten in one go, each with the run of the rows (none: all rows) -> whose schedule."""


def write_golden(path: Path, run: FinishedRun, rewritten: Rewritten, holders: Sequence[str] = ()) -> None:
    """Write the schedule of a run into a table, and keep the rows of other runs.

    Parameters
    ----------
    path : path
    run : FinishedRun
    rewritten : dict
        Grows by this table.
    holders : sequence of str
        All runs that are compared to the table. If there are others, a column names the run of each row.

    Raises
    ------
    InputError
        The file exists and is no table of ops, cannot be written, or was just written for another run.
    """
    import pandas as pd

    from sim.diff.propagated_delays import against_table
    from sim.diff.schedule import read_ops_table, runs_in
    from sim.export.tables import write_table

    others = [label for label in holders if label != run.policy]
    tables: dict[str, pd.DataFrame] = {}
    if path.exists():
        old = read_ops_table(path)
        runs = runs_in(old)
        tables = dict.fromkeys(others, old)  # until now all runs were compared to the table of one
        if runs:
            tables = {label: old[old["policy"].astype(str) == label] for label in runs}
    rows = run.trace.to_pandas(transfers=True)
    tables[run.policy] = rows
    named = others or len(tables) > 1
    key, whole = (path.resolve(), run.policy if named else ""), (path.resolve(), "")
    if (key in rewritten or whole in rewritten) and against_table(run.trace, path, run.policy):
        raise InputError(f"{path.name} was just written for another run; give each its own table")
    rewritten[key] = run.policy
    if named:
        for label, table in tables.items():
            tables[label] = table.drop(columns="policy", errors="ignore").copy()
            tables[label].insert(0, "policy", label)
        rows = pd.concat(tables.values(), ignore_index=True)
    write_table(rows, path)


# ----------------------------------------------------------------------------------------------------------
# Scalars of a YAML file are replaced in place: comments, layout and order stay as they were written.
#
#     makespan: {at_most: 45us}   # with both cores        65us at line 3, column 21
#                         └──► 65us

_PROPERTIES: Final = re.compile(r"\A([&!]\S*\s+)*")
"""Anchors and tags at the beginning of a scalar."""


def rewrite_file(path: str | Path, new: Mapping[tuple[int, int], str]) -> None:
    """Replace scalars in a file, either all or none.

    Parameters
    ----------
    path : path
        A symbolic link is followed.
    new : mapping of (int, int) to str
        As for `replace_scalars`.
    """
    content = Path(path).read_bytes()
    text = content.decode("utf-8-sig")
    bom = content[: len(content) - len(text.encode())]
    write_bytes(os.path.realpath(path), bom + replace_scalars(text, new).encode())


def replace_scalars(text: str, new: Mapping[tuple[int, int], str]) -> str:
    """Return a YAML text with some scalars replaced.

    Parameters
    ----------
    text : str
    new : mapping of (int, int) to str
        Line and column of a scalar, counted from 1, to its new text. Quotes stay.

    Examples
    --------
    >>> print(replace_scalars("a: {b: 1us, c: '2us'}  # both", {(1, 8): "3us", (1, 16): "4us"}))
    a: {b: 3us, c: '4us'}  # both
    """
    parts, done = [], 0
    for begin, end, position in _scalars(text):
        if position in new:
            parts += [text[done:begin], _like(text[begin:end], new[position])]
            done = end
    return "".join([*parts, text[done:]])


def _scalars(text: str) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yield the begin and end of each scalar, and its line and column."""
    for event in yaml.parse(text, Loader=LOADER):
        if isinstance(event, yaml.ScalarEvent):
            start: Any = event.start_mark
            end: Any = event.end_mark
            written = text[start.index : end.index]
            value = _PROPERTIES.sub("", written, count=1)
            yield end.index - len(value), end.index, (start.line + 1, start.column + 1)


def _like(old: str, new: str) -> str:
    """Return a new scalar in the quotes of the old one."""
    if old.startswith("'"):
        return "'" + new.replace("'", "''") + "'"
    plain = re.fullmatch(r"[\w.]([\w./%+ -]*[\w./%+-])?", new) and (_is_text(new) or not _is_text(old))
    return new if plain and not old.startswith('"') else json.dumps(new, ensure_ascii=False)


def _is_text(plain: str) -> bool:
    """Whether a scalar without quotes is text, not a number or another word of YAML."""
    return isinstance(read_yaml_text(plain, "").value, str)


# ----------------------------------------------------------------------------------------------------------
# What did not hold is rewritten in scenarios and tables of ops (``sim check --update``).
#
#     makespan: {at_most: 45us}   # both cores    ──►    makespan: {at_most: 65us}   # both cores
#     schedule: golden.csv                        ──►    golden.csv: with new rows for this run
#
# Only what failed changes. Values in another file (``extends``) stay, since other scenarios use them, too.


class Updated(NamedTuple):
    """What was done about a failed outcome.

    Attributes
    ----------
    outcome : Outcome
    text : str
        What was written, or why nothing was.
    done : bool
        Whether the expectation holds now.
    """

    outcome: Outcome
    text: str
    done: bool


def update(result: Result, rewritten: Rewritten) -> list[Updated]:
    """Replace expectations that failed by the actual results; `rewritten` grows by their tables.

    Raises
    ------
    OSError
        A file cannot be written.
    """
    updates, read = [], cache(read_yaml)
    new: dict[tuple[int, int], str] = {}
    for outcome in result.outcomes:
        if not outcome.passed:
            try:
                values, change = _changes(outcome, result, read, rewritten)
                texts = {(node.place.line, node.place.column): text for node, text in values}
                if any(new.get(place, text) != text for place, text in texts.items()):
                    raise InputError("another condition needs another value at the same place (an alias)")
                new |= texts
                updates.append(Updated(outcome, f"written: {change}", True))
            except InputError as error:
                updates.append(Updated(outcome, f"not written: {error}", False))
    if new:
        rewrite_file(result.case.scenario.document.path, new)
    return updates


def _changes(
    outcome: Outcome, result: Result, read: Callable[[Path], Node], rewritten: Rewritten
) -> tuple[list[tuple[Node, str]], str]:
    """Return scalars and their new text, and what is said of them; a table is written at once."""
    expectation = outcome.expectation
    if (table := expectation.table) is not None:
        if table.exists():
            _node(expectation, expectation.loc, read(expectation.document.path))
        expected = result.case.base.expected_cases()
        holders = [case.label for case in expected if any(one.table == table for one in case.expectations)]
        write_golden(table, result, rewritten, holders)
        return [], str(outcome.condition["equals"])
    current = _node(expectation, expectation.loc, read(expectation.document.path))
    if result_named(outcome.result).unit is ORDER:
        return _find_reordered(outcome, current), f"[{', '.join(outcome.actual)}]"
    is_plain = not isinstance(current.value, dict)
    nodes = {"equals": current} if is_plain else current.value
    percent = {key for key, node in nodes.items() if str(node.value).endswith("%")}
    values = [(nodes[key], text) for key, text in new_values(outcome, percent=percent).items()]
    return values, ", ".join(f"{text} in place of {node.value}" for node, text in values)


def _node(expectation: Expectation, loc: Loc, root: Node) -> Node:
    """Return the current value of an expectation in its file."""
    node: Node | None = root
    for part in loc:
        node = node and node.child(part)
    place = expectation.place
    if node is None or (node.place.source, node.place.line) != (place.source, place.line):
        raise InputError(f"it stands in {place}, and holds for more than this scenario")
    return node


def _find_reordered(outcome: Outcome, order: Node) -> list[tuple[Node, str]]:
    """Return the nodes in a list of ops that get another name."""
    listed: Any = order.value["equals"].value if isinstance(order.value, dict) else order.value
    executed = set(outcome.actual)
    missing = [str(node.value) for node in listed if str(node.value) not in executed]
    if missing:  # it never ran, or was folded into another rank
        raise InputError(f"{missing[0]!r} is not among them")
    pairs = zip(listed, outcome.actual, strict=True)
    return [(node, name) for node, name in pairs if str(node.value) != name]


# ----------------------------------------------------------------------------------------------------------

SUFFIXES: Final = (".yaml", ".yml")
"""Suffixes of files that may be scenarios."""


@dataclass(frozen=True)
class Checked:
    """The outcome of one run of a scenario.

    Attributes
    ----------
    path : str
        File of the scenario.
    label : str
        Label of the run; empty if the file itself is wrong.
    outcomes : tuple of Outcome
        One for each expectation.
    error : SimError or None
        Why there are no outcomes.
    unused : tuple of str
        Devices of the machine that the run did not use.
    updated : tuple of Updated, optional
        What was done about each failed outcome, if updates were requested.
    failed : str
        Which op failed, if one did and there is no expectation of `failed`: all others may hold nevertheless.
    """

    path: str
    label: str
    outcomes: tuple[Outcome, ...] = ()
    error: SimError | None = None
    unused: tuple[str, ...] = ()
    updated: tuple[Updated, ...] | None = None
    failed: str = ""

    @property
    def exit_status(self) -> int:
        """0 if everything holds (now), 1 if something does not, 2 if the scenario is wrong."""
        if self.error is not None:
            return self.error.exit_status
        if self.updated is not None:
            return 0 if all(update.done for update in self.updated) else 1
        return 0 if all(outcome.passed for outcome in self.outcomes) else 1

    @property
    def complaints(self) -> list[tuple[Place, str]]:
        """What did not hold, and its place in the scenario; line 0: somewhere in the file."""
        if self.error is not None:
            return [*self.error.placed] or [(Place(self.path), str(self.error))]
        if self.updated is not None:
            return [
                (update.outcome.expectation.place, f"{update.outcome.text}\n  {update.text}")
                for update in self.updated
            ]
        return [(outcome.expectation.place, outcome.text) for outcome in self.outcomes if not outcome.passed]

    @property
    def messages(self) -> list[str]:
        """Lines on what did not hold, and on which op failed."""
        if self.error is not None:
            return str(self.error).splitlines()
        lines = [f"{place}: {lines}" for place, lines in self.complaints]
        return [line for text in [*lines, self.failed] for line in text.splitlines()]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "scenario": self.path,
            "policy": self.label or None,
            "passed": self.exit_status == 0,
            "expect": [outcome.to_json() for outcome in self.outcomes],
            "messages": self.messages,
            "unused_devices": list(self.unused),
        }


def check_file(
    path: str | Path, allowed: Allowed = NOTHING, *, rewritten: Rewritten | None = None
) -> Iterator[Checked]:
    """Run every case of a scenario that has expectations, and check the invariants of its trace.

    Parameters
    ----------
    path : path
    allowed : Allowed
        Whether the scenario may name ``module:Class``, and files outside its own folder.
    rewritten : dict, optional
        Values that do not hold are replaced by the actual results, and this grows by the tables of ops. None:
        nothing is replaced.

    Yields
    ------
    Checked
        One for each case, or one with the error if the file is wrong. A scenario without expectations
        yields one without outcomes: it was read, but not run.
    """
    try:
        cases = scenario_of(Document.read(path, allowed)).expected_cases()
    except InputError as error:
        yield Checked(str(path), "", error=error)
        return
    if not cases:
        yield Checked(str(path), "")
    for case in cases:
        yield check_case(case, rewritten=rewritten)


def check_case(case: Case, *, rewritten: Rewritten | None = None) -> Checked:
    """Run one case, and check the invariants of its trace and its expectations; see `check_file`."""
    path = str(case.scenario.document.path)
    try:
        result = run_case(case, check=True, new_tables=rewritten is not None)
        result.share()
        updated = None if rewritten is None else tuple(update(result, rewritten))
        unused, outcomes = tuple(unused_devices(result.trace)), result.outcomes
        expected = any(outcome.expectation.result == "failed" for outcome in outcomes)
        failed = "" if expected else failure_text(result.trace)
        return Checked(path, case.label, outcomes, None, unused, updated, failed)
    except InvariantError as error:
        return Checked(path, case.label, error=error)
    except (InputError, RunError) as error:
        outcomes = tuple(filter(None, (expectation.of_failure(error) for expectation in case.expectations)))
        return Checked(path, case.label, outcomes, None if outcomes else error)


def scenario_files(paths: Iterable[str | Path]) -> list[Path]:
    """Return the given files, and the scenario files in the given folders.

    In a folder and those below it, except hidden ones, a scenario is a YAML mapping with a ``workload``, even
    if slightly misspelt; other YAML files are ignored.

    Raises
    ------
    InputError
        A folder has no scenario.
    """
    paths_found: dict[Path, None] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            paths_found[path] = None
            continue
        scenarios: list[Path] = []
        for where, folders, files in os.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            named = (Path(where, name) for name in sorted(files) if name.endswith(SUFFIXES))
            scenarios += filter(is_scenario, named)
        if not scenarios:
            raise InputError(f"{path}: no scenario in this folder: no YAML file that has a workload")
        paths_found.update(dict.fromkeys(scenarios))
    return list(paths_found)


def is_scenario(path: Path) -> bool:
    """Whether a file has a workload; unreadable files and misspelt keys count, so that none is overlooked."""
    try:
        root = Document.read(path).root
    except InputError:
        return True
    return any(nearest("workload", [key], likeness=0.8) for key in root.keys)
