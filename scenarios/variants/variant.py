"""A variant of a scenario: what it changes, its run, and its row in a table, or why it has none.

::

    Variant   settings, policy, schedule ──► Case ──► VariantRun: result, error ──► row: settings, policy,
                                             here, or on an executor             results, error

`sim compare`, `sweep`, `tune`, `whatif` and `optimum` run variants as attempts: one that cannot be built,
runs out of memory or gets stuck is a result, too.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import nullcontext, suppress
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple

from policies.issue.program_order import OutOfOrder
from policies.placement.simple import Given
from scenarios.fields.results import DONE, RATES, Value, column_of_result, outcome_of, result_of_run
from scenarios.file.document import Document
from scenarios.run.execute import Result, run_case
from scenarios.run.scenario import Case, Scenario, scenario_of
from scenarios.variants.executors import run_on
from scenarios.variants.schedules import ListedOrder, SearchSchedule
from scenarios.workloads.workload import Workload
from sim.base.arrays import MOST_RUNS, at_most
from sim.base.errors import InputError, MisfitError, RunError, SimError
from sim.base.plugins import NOTHING, Allowed
from sim.explain.failed_ops import failure_text
from sim.explain.time_use import uncertainty
from sim.job.job import Job
from sim.machine.machine import Machine

Row = dict[str, Any]
WhatIfText = Mapping[str, Any] | list[dict[str, Any]]
"""A what-if as in a scenario: changes that apply together, or a list of such changes, applied in turn."""


class Variant(NamedTuple):
    """The changes that make a variant of a scenario.

    Attributes
    ----------
    settings : tuple of (str, str)
        Key and value, as for ``--set``.
    policy : str or None
        See `scenarios.run.scenario.Scenario.case`.
    schedule : SearchSchedule, optional
        Schedule that runs in place of the policy's own.
    label : str
        Name of the variant, unless that is its settings and policy.
    what_if : mapping or list of mapping, optional
        Changes of the graph, as in ``workload: {what_if: ...}`` (`scenarios.variants.what_ifs`).
    machine, job : callable, optional
        ``machine(machine)`` and ``job(job)`` return a changed machine and job, for changes without a key.
    why_not : str
        Why the variant is not run; empty: it is run.
    """

    settings: tuple[tuple[str, str], ...] = ()
    policy: str | None = None
    schedule: SearchSchedule | None = None
    label: str = ""
    what_if: WhatIfText | None = None
    machine: Callable[[Machine], Machine] | None = None
    job: Callable[[Job], Job] | None = None
    why_not: str = ""

    @property
    def key(self) -> str:
        """Key that identifies this point of a sweep, or this run of a search."""
        schedule = hashlib.sha256(repr(self.schedule).encode()).hexdigest() if self.schedule else ""
        return json.dumps([list(map(list, self.settings)), self.policy]) + schedule

    @property
    def texts(self) -> list[str]:
        """The settings as ``KEY=VALUE``."""
        return [f"{key}={value}" for key, value in self.settings]

    def __str__(self) -> str:
        """Return ``workload.batch=8, ready-queue``."""
        return ", ".join([*self.texts, *([self.policy] if self.policy else [])])


class VariantRun(NamedTuple):
    """The outcome of running a case.

    Attributes
    ----------
    label : str
        Label of the run.
    result : Result or None
        Result of the run; None if it could not start or continue.
    error : SimError or None
        Why it could not; or why the result is no valid answer: memory is too small at the end, or an op
        failed, so that the run did not do the same work.
    """

    label: str
    result: Result | None = None
    error: SimError | None = None

    @property
    def outcome(self) -> str:
        """Kind of outcome: one of `scenarios.fields.results.OUTCOMES`."""
        return DONE if self.error is None else outcome_of(self.error)

    @property
    def line(self) -> str:
        """The first line of the error; empty if there is none."""
        return "" if self.error is None else str(self.error).partition("\n")[0]


def attempt(case: Case, *, advise: bool = False, **options: Any) -> VariantRun:
    """Run a case; return an error of the case or of its run as the outcome.

    Parameters
    ----------
    case : Case
    advise : bool
        Whether to say what would help if memory is too small at the end.
    **options
        As for `scenarios.run.execute.run_case`.
    """
    result = None
    try:
        result = run_case(case, fits=advise, **options)
        if not advise:
            case.work.fits(result.trace, False)
        if failed := failure_text(result.trace):
            raise RunError(failed)
    except SimError as error:
        return VariantRun(case.label, result, error)
    return VariantRun(case.label, result)


# ----------------------------------------------------------------------------------------------------------

_RESULT_COLUMNS: Final = ("policy", "makespan_ns", "lower_bound_ns", "gap", "no_gap", "error")

_STEP_KEYS: Final = "step_ns low_ns high_ns tokens_per_s mfu peak_bytes capacity_bytes bubble exposed_ns"

_INVALID: Final = "invalid: "
"""Prefix of errors in the settings of a variant."""


def column_of(key: str) -> str:
    """Return the name of the column that holds the values of a varied key.

    Examples
    --------
    >>> column_of("workload.batch"), column_of("policy")
    ('workload.batch', 'varied policy')
    """
    return f"varied {key}" if key in _RESULT_COLUMNS else key


class Variants:
    """The variants of one scenario: the case of each, and its row.

    What variants have in common is read, checked and built once.

    Parameters
    ----------
    path : str
        File of the scenario.
    sets : sequence of str
        ``KEY=VALUE`` settings of all variants.
    allowed : Allowed
        What the scenario may name.
    results : sequence of str
        Further results in the rows, by their names in ``expect:``.
    all_columns : bool
        Whether rows hold everything that a sweep shows of each run; otherwise `results` alone.
    """

    def __init__(
        self,
        path: str,
        sets: Sequence[str] = (),
        allowed: Allowed = NOTHING,
        results: Sequence[str] = (),
        all_columns: bool = True,
    ) -> None:
        self.made_of = (path, tuple(sets), allowed, tuple(results), all_columns)
        self.document = Document.read(path, allowed).with_settings(sets)
        self.results, self.all_columns = tuple(results), all_columns
        self._last: tuple[Variant, Case] | None = None
        self._read: tuple[list[str], Scenario] | None = None
        with suppress(InputError):  # only the settings of a variant may make it a valid scenario
            self._read = [], scenario_of(self.document)
        self._sound = self._read is not None

    def scenario(self, settings: Sequence[str] = ()) -> Scenario:
        """Return the scenario with ``KEY=VALUE`` texts; what these do not touch is read and checked once.

        Raises
        ------
        InputError
            The settings do not make a valid scenario.
        """
        last = self._read  # threads of an executor may be here at once
        if last is not None and last[0] == [*settings]:
            return last[1]
        document = self.document.with_settings(settings, "--vary")
        scenario = scenario_of(document, None if last is None else last[1])
        if not self._sound:
            scenario.check()
        self._read = [*settings], scenario
        return scenario

    def case(self, variant: Variant) -> Case:
        """Return the run of a variant.

        Raises
        ------
        InputError
            The settings do not make a valid scenario.
        """
        assert not variant.what_if, "scenarios.variants.what_ifs.WhatIfs runs it"
        assert variant.machine is None, "scenarios.variants.what_ifs.WhatIfs runs it"
        schedule, base = variant.schedule, variant._replace(schedule=None)
        last = self._last
        if last is None or last[0] != base:
            self._last = last = base, self.scenario(base.texts).case(base.policy)
        case = last[1]
        if schedule is None:
            return case
        return case.deciding(
            policy=OutOfOrder(synchronisation=case.decisions.policy.synchronisation),
            linearize=ListedOrder(schedule.order),
            streams=schedule,
            placement=Given(schedule.device),
        )

    def row(self, variant: Variant) -> Row:
        """Run a variant; return its settings, its numbers, and the error of its settings or its run.

        Raises
        ------
        InputError
            The run does not have one of the requested results, and did not fail.
        """
        try:
            case = self.case(variant)
        except InputError as error:
            return self.row_of(variant, VariantRun(variant.policy or "", None, error))
        return self.row_of(variant, attempt(case, change=variant.job))

    def row_of(self, variant: Variant, run: VariantRun) -> Row:
        """Return the row of a variant's outcome; it has numbers even if memory is too small at the end."""
        row: Row = {column_of(key): value for key, value in variant.settings}
        row |= {"policy": run.label, "outcome": run.outcome}
        if (result := run.result) is not None:
            row |= _numbers(result) if self.all_columns else {}
            lacking = suppress(InputError) if run.error else nullcontext()
            for name in self.results:
                row[column_of_result(name)] = None
                with lacking:  # a run that failed may not have come so far
                    row[column_of_result(name)] = value_of(name, result)
            if self.all_columns:
                row["unused_devices"] = ", ".join(result.numbers["unused_devices"])
        error = run.line or None
        if isinstance(run.error, InputError):
            cause = run.error.__cause__
            error = f"left out: {cause.reason}" if isinstance(cause, MisfitError) else f"{_INVALID}{error}"
        return row | {"error": error}

    def rows(
        self,
        variants: Sequence[Variant],
        executor: Executor | None = None,
        ahead: int | None = None,
        stamp: str = "",
    ) -> Generator[tuple[Variant, Row], None, None]:
        """Return an iterator of variants with their rows, as they end.

        Parameters
        ----------
        variants : sequence of Variant
        executor : concurrent.futures.Executor, optional
            Executor of the runs (processes, a Dask cluster); by default they run here, one after another.
        ahead : int, optional
            Number of variants that run at once; rows then come in order. By default all run at once.
        stamp : str
            Hash of the files that they need: an executor that has seen it does not read the scenario again.

        Raises
        ------
        InputError
            As for `row`.
        RunError
            A process ended unexpectedly.
        """
        run = self.row if executor is None else partial(run_variant, stamp, self.made_of)
        return run_on(executor, run, variants, ahead)

    def fitting(self, variants: Sequence[Variant]) -> tuple[list[Variant], dict[str, int]]:
        """Return the variants whose sizes fit together, and the number of those that do not, by reason.

        Nothing is run or built. Of a workload that does not check its sizes, only one variant is looked at.

        Raises
        ------
        InputError
            None of them fits.
        """
        fitting: list[Variant] = []
        reasons: Counter[str] = Counter()
        for i, variant in enumerate(variants):
            try:
                case = self.case(variant)
                reason = case.misfit()
            except InputError:  # its row will show the error
                fitting.append(variant)
                continue
            if not i and type(case.scenario.content.workload).misfit is Workload.misfit:
                return list(variants), {}
            if reason is None:
                fitting.append(variant)
            else:
                reasons[reason] += 1
        if variants and not fitting:
            counts = "; ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
            raise InputError(f"none of the {len(variants):,} points fits: {counts}")
        return fitting, reasons


def run_variant(stamp: str, made_of: tuple[Any, ...], variant: Variant) -> Row:
    """Run a variant in another process or thread; return its row."""
    return _cached_variants(stamp, made_of).row(variant)


@lru_cache(maxsize=1)
def _cached_variants(stamp: str, made_of: tuple[Any, ...]) -> Variants:
    """Return the variants that a worker process caches; `stamp` identifies the contents of their files."""
    return Variants(*made_of)


def is_invalid(row: Row) -> bool:
    """Whether the settings of a row made no valid scenario."""
    return str(row.get("error")).startswith(_INVALID)


def refuse_all_invalid(rows: Sequence[Row]) -> None:
    """Raise if no variant makes a valid scenario: then the varied values are not the reason.

    Raises
    ------
    InputError
        With the error of the first variant.
    """
    if rows and all(map(is_invalid, rows)):
        raise InputError(str(rows[0]["error"]).removeprefix(_INVALID))


def _numbers(result: Result) -> Row:
    """Return the numbers that a table shows of every run."""
    summary = result.numbers
    row: Row = {key: summary[key] for key in ("makespan_ns", "lower_bound_ns", "gap")}
    if summary["no_gap"]:
        row["no_gap"] = summary["no_gap"]
    if (sure := uncertainty(result.trace)) is not None:
        row |= {"low_ns": sure["low_ns"], "high_ns": sure["high_ns"]}
    for name, device in summary["devices"].items():
        for number in ("utilisation", "bubble", "peak_memory_bytes"):
            row[f"{name}.{number}"] = device[number]
    for name, link in summary["links"].items():
        row[f"{name}.utilisation"] = link["utilisation"]
    for name, life in summary.get("training_run", {}).get("recovery", {}).items():
        row[f"{name}.goodput"] = life["goodput"]
    if (pipeline := summary.get("pipeline")) is not None:
        row["pipeline.bubble"] = pipeline["bubble"]
    row |= {rate: summary[rate] for rate in RATES if rate in summary}
    if (step := summary.get("train")) is not None:
        row |= {f"train.{number}": step.get(number) for number in _STEP_KEYS.split()}
    if (served := summary.get("serving")) is not None:
        plain = {key: value for key, value in served.items() if not isinstance(value, dict | list)}
        row |= {f"serving.{key}": value for key, value in plain.items()}
    return row


def value_of(name: str, result: Result) -> Value:
    """Return a result of a run by its name in ``expect:``."""
    if name == "makespan":  # avoids computing a whole summary
        return result.trace.makespan_ns
    with suppress(InputError):  # a cause, which only the whole summary has
        return result_of_run(name, result.numbers, result.trace)
    return result_of_run(name, result.summary, result.trace)


# ----------------------------------------------------------------------------------------------------------
# Points of a sweep: every combination of the values of some keys.
#
#     --vary workload.batch=1,8,32 --vary machine.devices.gpu0.streams=1,4     6 points, the last key fastest


def points_of(vary: Sequence[str], policies: Sequence[str | None] = (None,)) -> list[Variant]:
    """Return every combination of values and policies, the last key varying fastest.

    Parameters
    ----------
    vary : sequence of str
        ``KEY=V1,V2,...``; commas inside brackets, braces or quotes belong to a value. ``1..8`` means all
        whole numbers from 1 to 8, ``1..64 x2`` means 1, 2, 4 and so on, each twice the one before.
    policies : sequence of str

    Raises
    ------
    InputError
        No ``=``, no value, or a key, value or policy given twice.

    Examples
    --------
    >>> [str(point) for point in points_of(["a=1,2", "b=[3,4],5"])]
    ['a=1, b=[3,4]', 'a=1, b=5', 'a=2, b=[3,4]', 'a=2, b=5']
    >>> [str(point) for point in points_of(["a=1..3,8..64 x4"])]
    ['a=1', 'a=2', 'a=3', 'a=8', 'a=32']
    """
    axes = axes_of(vary)
    _refuse_twice(policies, "--policy ")
    at_most(MOST_RUNS, math.prod(map(len, axes.values())) * len(policies), "points")
    combinations = itertools.product(*([(key, value) for value in values] for key, values in axes.items()))
    return [Variant(tuple(settings), policy) for settings in combinations for policy in policies]


def axes_of(vary: Sequence[str], option: str = "--vary") -> dict[str, list[str]]:
    """Return the values of each key of ``KEY=V1,V2,...``; see `points_of`."""
    axes: dict[str, list[str]] = {}
    for text in vary:
        key, equals, values = text.partition("=")
        if not equals or not key or not values:
            raise InputError(f"{option} {text!r}: give KEY=V1,V2,... as in workload.batch=1,8,32")
        if key in axes:
            raise InputError(f"{option} {key} is given twice; put all its values behind one")
        axes[key] = [value for part in _split(values) for value in _range(part, f"{option} {text!r}: ")]
        if "" in axes[key]:
            raise InputError(f"{option} {text!r}: a value is empty")
        _refuse_twice(axes[key], f"{option} {text!r}: ")
    return axes


def _refuse_twice(values: Sequence[str | None], where: str) -> None:
    twice = next((value for value, n in Counter(values).items() if n > 1), None)
    if twice is not None:
        raise InputError(f"{where}{twice} is given twice")


def _range(value: str, where: str) -> Sequence[str]:
    """Return the whole numbers of ``1..8`` or ``1..64 x2``; any other value stays as it is."""
    if (match := re.fullmatch(r"(\d{1,18})\.\.(\d{1,18})(?: ?x(\d{1,18}))?", value)) is None:
        return (value,)
    first, last, factor = (int(part or 0) for part in match.groups())
    if last < first or (match[3] and (factor < 2 or not first)):
        raise InputError(f"{where}give FIRST..LAST, or FIRST..LAST x2 from 1 on, with FIRST the least")
    if not factor:
        at_most(MOST_RUNS, last - first + 1, "values")
        return [str(n) for n in range(first, last + 1)]
    return [str(first * factor**i) for i in range(64) if first * factor**i <= last]


def _split(text: str) -> Iterator[str]:
    """Yield the parts between commas that are outside brackets and quotes."""
    from scenarios.importers.files import DEPTH, MARKS

    depth = start = 0
    for mark in MARKS.finditer(text):
        depth += DEPTH.get(mark[0], 0)
        if mark[0] == "," and not depth:
            yield text[start : mark.start()].strip()
            start = mark.end()
    yield text[start:].strip()


def short_names(keys: Sequence[str]) -> dict[str, str]:
    """Return the shortest unique suffix of each dotted key.

    Examples
    --------
    >>> short_names(["workload.train.parallel.tp", "workload.train.parallel.pp", "seed"])
    {'workload.train.parallel.tp': 'tp', 'workload.train.parallel.pp': 'pp', 'seed': 'seed'}
    """
    ends = {}
    for key in keys:
        parts = key.split(".")
        tails = (".".join(parts[-n:]) for n in range(1, len(parts) + 1))
        others = [f".{k}" for k in keys if k != key]
        ends[key] = next((t for t in tails if not any(other.endswith(f".{t}") for other in others)), key)
    return ends
