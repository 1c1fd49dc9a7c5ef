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
from sim.base.units import format_duration, parse_duration, round_half_up
from sim.explain.memory_use import memory_use
from sim.trace import Trace

# ----------------------------------------------------------------------------------------------------------
# Values of a condition that are known only after the runs: ``1.05 x gpipe``, and a tolerance of ``1%``.
#
#     makespan: {at_most: 1.05 x gpipe}            of the result of another run of the scenario
#     makespan: {equals: 45us, tolerance: 1%}      of the expected value

_MULTIPLE: Final = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*x\s+(\S.*?)\s*")


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
    match = _MULTIPLE.fullmatch(text) if isinstance(text, str) else None
    return None if match is None else Relative(Fraction(match[1]), match[2])


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
    resolved: dict[str, results.Value] = {}
    for key, value in condition.items():
        if isinstance(value, Relative):
            base: Any = references[value.run] if value.run else resolved["equals"]
            exact = value.times * Fraction(base)
            resolved[key] = _ROUND[key](exact) if isinstance(base, int) else float(exact)
        else:
            resolved[key] = value
    return resolved


_ROUND: Final[Mapping[str, Callable[[Fraction], int]]] = {
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
    delay = None if row is None else held_at(schedule_of(trace, "", policy=policy), row, at_ns)
    return f"\n  at {format_duration(at_ns)} {delay.sentence}" if delay else ""


def held_at_the_peak(trace: Trace, device: str, nbytes: int) -> str:
    """Return a line on the time of a device's memory peak, and its largest tensors.

    Empty if tensors do not add up to `nbytes`, because an allocator rounded up or delayed them.
    """
    use = memory_use(trace, holders=3)[device]
    if use.peak_bytes != nbytes or not use.holders:
        return ""
    largest = ", ".join(f"{tensor.name!r} ({results.exact_bytes(tensor.nbytes)})" for tensor in use.holders)
    others_nbytes = nbytes - sum(tensor.nbytes for tensor in use.holders)
    more = f" and others ({results.exact_bytes(others_nbytes)})" if others_nbytes else ""
    return f"\n  at {format_duration(use.peak_ns)}, at the peak, {device} holds {largest}{more}"


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
    text : str
        Expected and actual result: a sentence, and further lines with details.
    references : dict of str to int or float
        Results of the runs that the condition names.
    """

    expectation: Expectation
    condition: Mapping[str, results.Value]
    actual: results.Value
    passed: bool
    text: str
    references: Mapping[str, int | float] = MappingProxyType({})

    @property
    def result(self) -> str:
        """Name of the result."""
        return self.expectation.result

    @property
    def message(self) -> str:
        """Place of the expectation, and `text`."""
        return f"{self.expectation.place}: {self.text}"

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"what": self.result, **self.condition, "actual": self.actual, "passed": self.passed}


class Expectation(NamedTuple):
    """A condition on a result.

    Attributes
    ----------
    result : str
        ``"makespan"``, ``"utilisation.gpu0"``.
    condition : dict
        Values in base units, or relative to other runs.
    document, loc
        Place in the scenario.
    """

    result: str
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
        if results.result_named(self.result).unit is not results.FILE:
            return None
        with self.document.placing(*self.loc):
            return self.document.file(str(self.condition["equals"]))

    def check_name(self, names: Mapping[str, Set[str]], *, with_table: bool = True) -> None:
        """Raise before the run if it will not have a name.

        Parameters
        ----------
        names : mapping of str to set of str
            Names of ``device``, ``link``, ``op`` and ``recovery``.
        with_table : bool
            Whether the table of a schedule must exist.

        Raises
        ------
        ScenarioError
            A name is unknown; the message has the nearest known one.
        """
        kind, name = self._split()
        part = results.RESULTS[kind].part
        if part and name and name not in names[part]:
            raise self._unknown(self.loc, part, name, names[part])
        if results.RESULTS[kind].unit is results.ORDER:
            listed: set[str] = set()
            for i, op in enumerate(self.condition["equals"]):
                if op not in names["op"]:
                    raise self._unknown((*self.loc, i), "op", op, names["op"])
                if op in listed:
                    raise self.document.error((*self.loc, i), f"names the op {op!r} twice")
                listed.add(op)
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
        full_name = f"{kind}.{seen_as(name)}" if name else kind
        return self._replace(result=full_name, condition=condition)

    def _unknown(self, loc: Loc, part: str, name: str, names: Set[str]) -> ScenarioError:
        return self.document.error(loc, f"unknown {part} {name!r}{hint(name, names)}", key=True)

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
        result = results.result_named(self.result)
        if (table := self.table) is not None:
            return self._hold_schedule(run, table, new_tables)
        actual = self._result_of(run)
        beside = {
            key: value for key, value in self.condition.items() if isinstance(value, Relative) and value.run
        }
        references = {
            value.run: self._result_of(other(value.run), f"the run {value.run!r}")
            for value in beside.values()
        }
        condition = resolve(self.condition, references)
        if isinstance(actual, list):
            listed = set(condition["equals"])
            actual = [op for op in actual if op in listed]
        expected = ", ".join(
            results.WORDS[key] + result.unit.show(value) + (f" ({beside[key]})" if key in beside else "")
            for key, value in condition.items()
        )
        passed = results.holds(actual, condition)
        text = f"{self.result} is {result.unit.show(actual)}, expected {expected}"
        if not passed:
            text += self._why(actual, condition, run)
            if self.result == "makespan" and unrecorded and not references:
                record = f"`sim run {unrecorded} --ops golden.csv` where this still holds"
                text += f"\n  what moved is unknown, as no schedule is recorded: {record}, then "
                text += f"`sim diff golden.csv {unrecorded}`"
        return Outcome(self, condition, actual, passed, text, references)

    def of_failure(self, error: SimError) -> Outcome | None:
        """Return the outcome for a run that did not start or continue; None if it is about another result."""
        if self.result != "outcome":
            return None
        actual, expected = results.outcome_of(error), str(self.condition["equals"])
        text = f"outcome is {actual!r}, expected {expected!r}: {error}"
        return Outcome(self, {"equals": expected}, actual, actual == expected, text)

    def _why(self, actual: Any, condition: Mapping[str, Any], run: FinishedRun) -> str:
        """Return further lines on what delayed an op, or was in memory."""
        kind, name = self._split()
        if kind == "peak_memory":
            return held_at_the_peak(run.trace, name, actual)
        if kind == "start":
            due_ns = min(condition.get("equals", actual), condition.get("at_most", actual))
            return why_not_at(run.trace, run.policy, name, due_ns) if due_ns < actual else ""
        if not isinstance(actual, list):
            return ""
        executed = set(actual)
        for op in condition["equals"]:
            if op not in executed:
                return f"\n  {op!r} does not run{f' on {name}' if name else ''}"
        early, late = next((a, b) for a, b in zip(actual, condition["equals"], strict=True) if a != b)
        start = results.RESULTS["start"]
        early_ns, late_ns = (int(start.get(run.summary, run.trace, op) or 0) for op in (early, late))
        if early_ns == late_ns:
            return f"\n  {early!r} comes before {late!r}, and both start at {start.unit.show(early_ns)}"
        text = f"{early!r} starts at {start.unit.show(early_ns)}, before {late!r}, which starts at"
        return f"\n  {text} {start.unit.show(late_ns)}" + why_not_at(run.trace, run.policy, late, early_ns)

    def _result_of(self, run: FinishedRun, owner: str = "this run") -> Any:
        kind, name = self._split()
        if (folding := run.trace.job.machine.folding) is not None:  # the other run may be folded
            name = folding.seen_as(name)
        try:
            actual = results.RESULTS[kind].get(run.summary, run.trace, name)
        except KeyError:  # the other run has no such device or link
            actual = None
        if actual is None:
            raise self.document.error(self.loc, results.no_such_result(self.result, owner), key=True)
        return actual

    def _hold_schedule(self, run: FinishedRun, table: Path, new_tables: bool) -> Outcome:
        from sim.diff.propagated_delays import against_table, has_run

        golden = str(self.condition["equals"])
        within_ns: Any = self.condition.get("tolerance", 0)
        with self.document.placing(*self.loc):
            if new_tables and not has_run(table, run.policy):
                return Outcome(self, {"equals": golden}, "", False, f"{self.result} is not in {golden} yet")
            differs = against_table(run.trace, table, run.policy, over_ns=within_ns)
        text = "\n  ".join([f"{self.result} is not that of {golden}", *differs])
        actual = "; ".join(line.strip() for line in differs) or golden
        return Outcome(self, {"equals": golden}, actual, not differs, text)

    def _split(self) -> tuple[str, str]:
        kind, _, name = self.result.partition(".")
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
    for key, condition in expect.items():
        of_a_run, is_result = isinstance(condition, dict), key.partition(".")[0] in results.RESULTS
        if of_a_run and key not in runs:
            message = f"unknown run or result {key!r}{hint(key, [*results.RESULTS, *runs])}"
            if is_result:
                first = next(iter(condition))
                message = f"is a result; give equals, at_most, at_least or tolerance, not {first!r}"
        elif not of_a_run and key in runs and not is_result:
            message = "is a run; say which of its results, as in {makespan: 45us}"
        else:
            continue
        raise document.error(("expect", key), message, key=True)


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
    expectations = tuple(
        Expectation(name, _read(name, condition, document, (*loc, name), runs), document, (*loc, name))
        for name, condition in expect.items()
    )
    for name, condition, _, place in expectations if len(expectations) > 1 else ():
        if name == "outcome" and condition["equals"] != results.DONE:
            raise document.error(place, "such a run has no other results; expect nothing else of it")
    return expectations


def _read(
    name: str, condition: Condition, document: Document, loc: Loc, runs: Sequence[str]
) -> dict[str, Given]:
    """Return the values of a condition in base units, in a fixed order."""
    try:
        results.check_named(name)
    except InputError as error:
        raise document.error(loc, str(error), key=True) from None
    unit = results.result_named(name).unit
    values: dict[str, Given] = {}
    for key in ("equals", "tolerance", "at_most", "at_least"):
        if key in condition.model_fields_set:
            with document.placing(*loc, key):
                values[key] = _value(key, getattr(condition, key), name, runs)
    with document.placing(*loc):
        _check_consistent(values, unit)
    return values


def _value(key: str, value: Any, name: str, runs: Sequence[str]) -> Given:
    result = results.result_named(name)
    if key == "tolerance" and result.unit is results.FILE:
        return parse_duration(value, what="")
    if key == "tolerance" and isinstance(value, str) and value.strip().endswith("%"):
        return Relative(Fraction(str(results.SHARE.read(value))))
    relative = read_relative(value) if result.is_amount and key != "tolerance" else None
    if relative is None:
        if result.is_amount and value in runs:
            raise InputError(f"{value!r} is a run; write how many times what it has, as in 1 x {value}")
        return result.unit.read(value)
    if relative.run not in runs:
        known_runs = hint(relative.run, runs) or "; no other run is named"
        raise InputError(f"there is no other run {relative.run!r}{known_runs}")
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
    lower, upper = values.get("at_least", 0), values.get("at_most", float("inf"))
    if not isinstance(lower, Relative) and not isinstance(upper, Relative) and lower > upper:
        raise InputError("can never hold: at_least is more than at_most")
