"""Conditions on the results of a run, and their outcomes.

::

    expect:
      makespan: 45us                                  a plain value: equals
      utilisation.gpu0: {at_least: 80%}               of a device
      start.conv: {equals: 10us, tolerance: 1us}      of an op; conv[2] in the third iteration
      order: [a, b, c]                                these ops start in this order
      order.gpu0: [a, c]                              ... on this device
      schedule: golden.csv                            as in a table written by `sim run --ops`
      outcome: out of memory                          that the run cannot start or continue
      1f1b: {makespan: {at_most: 1.0 x gpipe}}        of an entry of compare, relative to another one

`scenarios.fields.results.RESULTS` lists the results. Values have the unit of the result, a tolerance in per
cent is relative to the expected value, and no comparison has a hidden epsilon.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence, Set
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol

from scenarios.fields import results
from scenarios.fields.policy_fields import Condition
from scenarios.file.document import Document, Loc
from scenarios.file.yaml_read import Place
from sim.base.errors import InputError, ScenarioError, SimError, hint
from sim.base.files import read_bytes
from sim.base.units import format_bytes, format_duration, parse_duration, round_half_up
from sim.explain.memory_use import memory_use
from sim.trace import Trace

# ----------------------------------------------------------------------------------------------------------
# Values of a condition that are known only after the runs: ``1.05 x gpipe``, and a tolerance of ``1%``.
#
#     makespan: {at_most: 1.05 x gpipe}            of the result of another run of the scenario
#     makespan: {equals: 45us, tolerance: 1%}      of the expected value

_TIMES: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*x\s+(\S.*?)\s*")


class Relative(NamedTuple):
    """A multiple of a result of another run.

    Attributes
    ----------
    times : Fraction
    run : str
        Label of that run; empty: a multiple of the expected value.
    """

    times: Fraction
    run: str = ""

    def __str__(self) -> str:
        """Return the text for a scenario, without trailing zeros."""
        return f"{float(self.times):.10g} x {self.run}"


Given = results.Value | Relative
"""The value of a key of a condition."""


def read_relative(text: Any) -> Relative | None:
    """Return the multiple in a text such as ``1.05 x gpipe``, or None if it is something else.

    Examples
    --------
    >>> print(read_relative("1.05 x gpipe"), read_relative("45us"))
    1.05 x gpipe None
    """
    found = _TIMES.fullmatch(text) if isinstance(text, str) else None
    return None if found is None else Relative(Fraction(found[1]), found[2])


def resolve(
    condition: Mapping[str, Given], references: Mapping[str, int | float]
) -> dict[str, results.Value]:
    """Return a condition in base units.

    Whole numbers stay whole, and no bound becomes wider: at most 10.5 ns becomes at most 10, at least 10.5
    becomes at least 11.

    Parameters
    ----------
    condition : mapping
    references : mapping of str to int or float
        Result of the run of each label.

    Examples
    --------
    >>> resolve({"at_most": Relative(Fraction("1.05"), "gpipe")}, {"gpipe": 10})
    {'at_most': 10}
    >>> resolve({"equals": 90, "tolerance": Relative(Fraction(1, 10))}, {})
    {'equals': 90, 'tolerance': 9}
    """
    found: dict[str, results.Value] = {}
    for key, value in condition.items():
        if isinstance(value, Relative):
            whole: Any = references[value.run] if value.run else found["equals"]
            exact = value.times * Fraction(whole)
            found[key] = _ROUNDED[key](exact) if isinstance(whole, int) else float(exact)
        else:
            found[key] = value
    return found


_ROUNDED: Final[Mapping[str, Callable[[Fraction], int]]] = {
    "equals": round_half_up,
    "tolerance": math.floor,
    "at_most": math.floor,
    "at_least": math.ceil,
}


# ----------------------------------------------------------------------------------------------------------
# Why a result is not as expected: what delayed an op, or what was in memory.


def why_not_at(trace: Trace, policy: str, op: str, at_ns: int) -> str:
    """Return a line on what delayed an op at a time; empty if it had started, or the reason is unknown.

    Parameters
    ----------
    trace : Trace
    policy : str
        Label of the run.
    op : str
        Name as in expectations.
    at_ns : int
    """
    from sim.diff.propagated_delays import held_at
    from sim.diff.schedule import schedule_of

    row = results.row_of(trace, op)
    held = None if row is None else held_at(schedule_of(trace, "", policy=policy), row, at_ns)
    return f"\n  at {format_duration(at_ns)} {held.sentence}" if held else ""


def held_at_the_peak(trace: Trace, device: str, nbytes: int) -> str:
    """Return a line on the time of a device's memory peak, and its largest tensors.

    Empty if tensors do not add up to `nbytes`, because an allocator rounded up or delayed them.
    """
    use = memory_use(trace, holders=3)[device]
    if use.peak_bytes != nbytes or not use.holders:
        return ""
    told = ", ".join(f"{each.name!r} ({format_bytes(each.nbytes)})" for each in use.holders)
    rest = nbytes - sum(each.nbytes for each in use.holders)
    more = f" and others ({format_bytes(rest)})" if rest else ""
    return f"\n  at {format_duration(use.peak_ns)}, at the peak, {device} holds {told}{more}"


# ----------------------------------------------------------------------------------------------------------


class FinishedRun(Protocol):
    """A finished run; `scenarios.run.execute.Result` is one."""

    @property
    def summary(self) -> results.Summary:
        """Numbers of the run."""

    @property
    def trace(self) -> Trace:
        """All tasks."""

    @property
    def policy(self) -> str:
        """Label of the run."""


class Outcome(NamedTuple):
    """An expectation, and the actual result.

    Attributes
    ----------
    expectation : Expectation
    condition : dict
        ``equals``, ``at_most``, ``at_least``, ``tolerance`` in base units (ns, bytes, shares).
    actual : int, float, str or list of str
    passed : bool
    told : str
        Expected and actual result: a sentence, and further lines with details.
    references : dict of str to int or float
        Results of the runs that the condition names.
    """

    expectation: Expectation
    condition: Mapping[str, results.Value]
    actual: results.Value
    passed: bool
    told: str
    references: Mapping[str, int | float] = MappingProxyType({})

    @property
    def what(self) -> str:
        """Name of the result."""
        return self.expectation.what

    @property
    def message(self) -> str:
        """Place of the expectation, and `told`."""
        return f"{self.expectation.place}: {self.told}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"what": self.what, **self.condition, "actual": self.actual, "passed": self.passed}


class Expectation(NamedTuple):
    """A condition on a result.

    Attributes
    ----------
    what : str
        ``"makespan"``, ``"utilisation.gpu0"``.
    condition : dict
        Values in base units, or relative to other runs.
    document, loc
        Place in the scenario.
    """

    what: str
    condition: Mapping[str, Given]
    document: Document
    loc: Loc

    @property
    def place(self) -> Place:
        """Place in the scenario."""
        return self.document.place(self.loc)

    @property
    def in_file(self) -> bool:
        """Whether the expectation is in the file, not in a setting of the command line."""
        return self.place.line > 0

    @property
    def table(self) -> Path | None:
        """The table of ops to which a schedule is compared, or None."""
        if results.result_named(self.what).unit is not results.FILE:
            return None
        with self.document.placing(*self.loc):
            return self.document.file(str(self.condition["equals"]))

    def check_name(self, known: Mapping[str, Set[str]], *, with_table: bool = True) -> None:
        """Raise before the run if it will not have a name.

        Parameters
        ----------
        known : mapping of str to set of str
            Names of ``device``, ``link``, ``op`` and ``recovery``.
        with_table : bool
            Whether the table of a schedule must exist.

        Raises
        ------
        ScenarioError
            A name is unknown; the message has the nearest known one.
        """
        kind, name = self._split()
        of = results.RESULTS[kind].of
        if of and name and name not in known[of]:
            raise self._unknown(self.loc, of, name, known[of])
        if results.RESULTS[kind].unit is results.ORDER:
            seen: set[str] = set()
            for i, op in enumerate(self.condition["equals"]):
                if op not in known["op"]:
                    raise self._unknown((*self.loc, i), "op", op, known["op"])
                if op in seen:
                    raise self.document.error((*self.loc, i), f"names the op {op!r} twice")
                seen.add(op)
        if with_table and (table := self.table) is not None:
            with self.document.placing(*self.loc):
                if not table.exists():
                    write = "write it with `sim check --update` (pytest: --sim-update)"
                    raise InputError(f"{self.condition['equals']}: no such file; {write}")
                read_bytes(table, head=1)

    def on(self, seen_as: Callable[[str], str]) -> Expectation:
        """Return the expectation with names of devices and ops as in a folded run (`sim.machine.machine`)."""
        kind, name = self._split()
        condition = self.condition
        if results.RESULTS[kind].unit is results.ORDER:
            condition = {key: [*map(seen_as, ops)] for key, ops in condition.items() if isinstance(ops, list)}
        what = f"{kind}.{seen_as(name)}" if name else kind
        return self._replace(what=what, condition=condition)

    def _unknown(self, loc: Loc, of: str, name: str, known: Set[str]) -> ScenarioError:
        return self.document.error(loc, f"unknown {of} {name!r}{hint(name, known)}", key=True)

    def hold(
        self,
        run: FinishedRun,
        other: Callable[[str], FinishedRun],
        *,
        new_tables: bool = False,
        unrecorded: str = "",
    ) -> Outcome:
        """Return the outcome of comparing the expectation with a run.

        Parameters
        ----------
        run : FinishedRun
        other : callable
            Returns the run of a label, for conditions relative to it.
        new_tables : bool
            Whether a table of ops may lack the run, or be missing; then the expectation fails.
        unrecorded : str
            Name of the run in commands if its schedule has no table, for advice on how to find what moved.

        Raises
        ------
        ScenarioError
            The run has no such result (the bubble without a pipeline, the end of an op that never ran).
        """
        result = results.result_named(self.what)
        if (table := self.table) is not None:
            return self._hold_schedule(run, table, new_tables)
        actual = self._result_of(run)
        beside = {
            key: given for key, given in self.condition.items() if isinstance(given, Relative) and given.run
        }
        references = {
            given.run: self._result_of(other(given.run), f"the run {given.run!r}")
            for given in beside.values()
        }
        condition = resolve(self.condition, references)
        if isinstance(actual, list):
            listed = set(condition["equals"])
            actual = [op for op in actual if op in listed]
        wanted = ", ".join(
            results.WORDS[key] + result.unit.show(value) + (f" ({beside[key]})" if key in beside else "")
            for key, value in condition.items()
        )
        passed = results.holds(actual, condition)
        told = f"{self.what} is {result.unit.show(actual)}, expected {wanted}"
        if not passed:
            told += self._why(actual, condition, run)
            if self.what == "makespan" and unrecorded and not references:
                record = f"`sim run {unrecorded} --ops golden.csv` where this still holds"
                told += f"\n  what moved is unknown, as no schedule is recorded: {record}, then "
                told += f"`sim diff golden.csv {unrecorded}`"
        return Outcome(self, condition, actual, passed, told, references)

    def of_failure(self, error: SimError) -> Outcome | None:
        """Return the outcome for a run that did not start or continue; None if it is about another result."""
        if self.what != "outcome":
            return None
        actual, wanted = results.outcome_of(error), str(self.condition["equals"])
        told = f"outcome is {actual!r}, expected {wanted!r}: {error}"
        return Outcome(self, {"equals": wanted}, actual, actual == wanted, told)

    def _why(self, actual: Any, condition: Mapping[str, Any], run: FinishedRun) -> str:
        """Return further lines on what delayed an op, or was in memory."""
        kind, name = self._split()
        if kind == "peak_memory":
            return held_at_the_peak(run.trace, name, actual)
        if kind == "start":
            meant = min(condition.get("equals", actual), condition.get("at_most", actual))
            return why_not_at(run.trace, run.policy, name, meant) if meant < actual else ""
        if not isinstance(actual, list):
            return ""
        run_here = set(actual)
        for op in condition["equals"]:
            if op not in run_here:
                return f"\n  {op!r} does not run{f' on {name}' if name else ''}"
        early, late = next((a, b) for a, b in zip(actual, condition["equals"], strict=True) if a != b)
        start = results.RESULTS["start"]
        at, then = (int(start.get(run.summary, run.trace, op) or 0) for op in (early, late))
        if at == then:
            return f"\n  {early!r} comes before {late!r}, and both start at {start.unit.show(at)}"
        told = f"{early!r} starts at {start.unit.show(at)}, before {late!r}, which starts at"
        return f"\n  {told} {start.unit.show(then)}" + why_not_at(run.trace, run.policy, late, at)

    def _result_of(self, run: FinishedRun, whose: str = "this run") -> Any:
        kind, name = self._split()
        if (folding := run.trace.job.machine.folding) is not None:  # the other run may be folded
            name = folding.seen_as(name)
        try:
            actual = results.RESULTS[kind].get(run.summary, run.trace, name)
        except KeyError:  # the other run has no such device or link
            actual = None
        if actual is None:
            raise self.document.error(self.loc, results.no_such_result(self.what, whose), key=True)
        return actual

    def _hold_schedule(self, run: FinishedRun, table: Path, new_tables: bool) -> Outcome:
        from sim.diff.propagated_delays import against_table, has_run

        golden = str(self.condition["equals"])
        within_ns: Any = self.condition.get("tolerance", 0)
        with self.document.placing(*self.loc):
            if new_tables and not has_run(table, run.policy):
                return Outcome(self, {"equals": golden}, "", False, f"{self.what} is not in {golden} yet")
            differs = against_table(run.trace, table, run.policy, over_ns=within_ns)
        told = "\n  ".join([f"{self.what} is not that of {golden}", *differs])
        actual = "; ".join(line.strip() for line in differs) or golden
        return Outcome(self, {"equals": golden}, actual, not differs, told)

    def _split(self) -> tuple[str, str]:
        kind, _, name = self.what.partition(".")
        return kind, name


# ----------------------------------------------------------------------------------------------------------
# Reading ``expect:`` into expectations: values in base units, checked names of results and runs.


def check_runs(
    expect: Mapping[str, Condition | dict[str, Condition]], runs: Sequence[str], document: Document
) -> None:
    """Raise if a key of a scenario's ``expect`` is neither a result nor a run with results under it.

    Raises
    ------
    ScenarioError
        The message has the nearest run or result.
    """
    for what, each in expect.items():
        of_a_run, is_result = isinstance(each, dict), what.partition(".")[0] in results.RESULTS
        if of_a_run and what not in runs:
            message = f"unknown run or result {what!r}{hint(what, [*results.RESULTS, *runs])}"
            if is_result:
                first = next(iter(each))
                message = f"is a result; give equals, at_most, at_least or tolerance, not {first!r}"
        elif not of_a_run and what in runs and not is_result:
            message = "is a run; say which of its results, as in {makespan: 45us}"
        else:
            continue
        raise document.error(("expect", what), message, key=True)


def read_expectations(
    expect: Mapping[str, Condition], document: Document, loc: Loc, runs: Sequence[str] = ()
) -> tuple[Expectation, ...]:
    """Return expectations from conditions on results.

    Parameters
    ----------
    expect : mapping of str to Condition
        Conditions by result.
    document, loc
        Their place.
    runs : sequence of str
        Labels of other runs that they may name.

    Raises
    ------
    ScenarioError
        An unknown result or run, a value without its unit, no condition, or a contradiction between two.
    """
    found = tuple(
        Expectation(what, _read(what, condition, document, (*loc, what), runs), document, (*loc, what))
        for what, condition in expect.items()
    )
    for each in found:
        if each.what == "outcome" and each.condition["equals"] != results.DONE and len(found) > 1:
            raise document.error(each.loc, "such a run has no other results; expect nothing else of it")
    return found


def _read(
    what: str, condition: Condition, document: Document, loc: Loc, runs: Sequence[str]
) -> dict[str, Given]:
    """Return the values of a condition in base units, in a fixed order."""
    try:
        results.check_named(what)
    except InputError as error:
        raise document.error(loc, str(error), key=True) from None
    unit = results.result_named(what).unit
    values: dict[str, Given] = {}
    for key in ("equals", "tolerance", "at_most", "at_least"):
        if key in condition.model_fields_set:
            with document.placing(*loc, key):
                values[key] = _value(key, getattr(condition, key), what, runs)
    with document.placing(*loc):
        _check_consistent(values, unit)
    return values


def _value(key: str, given: Any, what: str, runs: Sequence[str]) -> Given:
    result = results.result_named(what)
    if key == "tolerance" and result.unit is results.FILE:
        return parse_duration(given, what="")
    if key == "tolerance" and isinstance(given, str) and given.strip().endswith("%"):
        return Relative(Fraction(str(results.SHARE.read(given))))
    relative = read_relative(given) if result.is_amount and key != "tolerance" else None
    if relative is None:
        if result.is_amount and given in runs:
            raise InputError(f"{given!r} is a run; write how many times what it has, as in 1 x {given}")
        return result.unit.read(given)
    if relative.run not in runs:
        known = hint(relative.run, runs) or "; no other run is named"
        raise InputError(f"there is no other run {relative.run!r}{known}")
    return relative


_ONLY_EQUALS: Final = {
    results.ORDER: "is a list of ops and nothing else",
    **dict.fromkeys((results.WORD, results.OUTCOME), "is a name; it equals one or does not"),
    results.FLAG: "is true or false, and equals one of them",
}


def _check_consistent(values: Mapping[str, Any], unit: results.Unit) -> None:
    if not values:
        raise InputError("says nothing; give equals, at_most or at_least")
    if "tolerance" in values and "equals" not in values:
        raise InputError("needs equals", path=("tolerance",))
    if unit in _ONLY_EQUALS and set(values) != {"equals"}:
        raise InputError(_ONLY_EQUALS[unit])
    if unit is results.FILE and not {"equals"} <= set(values) <= {"equals", "tolerance"}:
        raise InputError("is a file, and equals it or does not; a tolerance is a duration")
    least, most = values.get("at_least", 0), values.get("at_most", float("inf"))
    if not isinstance(least, Relative) and not isinstance(most, Relative) and least > most:
        raise InputError("can never hold: at_least is more than at_most")
