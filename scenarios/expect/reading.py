"""Reading ``expect:`` into expectations: values in base units, names of results and runs that there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from scenarios.expect.expectation import Expectation
from scenarios.expect.relative import Given, Relative, read_relative
from scenarios.fields.policy_fields import Condition
from scenarios.fields.results import FILE, FLAG, ORDER, RESULTS, SHARE, WORD, Unit, check_named
from scenarios.file.document import Document, Loc
from sim.words.errors import InputError, hint

__all__ = ["check_runs", "read_expectations"]


def check_runs(
    expect: Mapping[str, Condition | dict[str, Condition]], runs: Sequence[str], document: Document
) -> None:
    """Refuse keys of a scenario's ``expect`` under which results of a run follow, and that are none.

    Raises
    ------
    ScenarioError
        Naming the nearest run or result.
    """
    for what, each in expect.items():
        of_a_run, is_result = isinstance(each, dict), what.partition(".")[0] in RESULTS
        if of_a_run and what not in runs:
            if is_result:
                message = (
                    f"is a result; give equals, at_most, at_least or tolerance, not {next(iter(each))!r}"
                )
            else:
                message = f"unknown run or result {what!r}{hint(what, [*RESULTS, *runs])}"
            raise document.error(("expect", what), message, key=True)
        if not of_a_run and what in runs and not is_result:
            message = "is a run; say which of its results, as in {makespan: 45us}"
            raise document.error(("expect", what), message, key=True)


def read_expectations(
    expect: Mapping[str, Condition], document: Document, loc: Loc, runs: Sequence[str] = ()
) -> tuple[Expectation, ...]:
    """Read conditions on results.

    Parameters
    ----------
    expect : mapping of str to Condition
        By result.
    document, loc
        Where they stand.
    runs : sequence of str
        The labels of other runs that they may speak of.

    Raises
    ------
    ScenarioError
        An unknown result or run, a value without its unit, no condition, or two that contradict each other.
    """
    return tuple(
        Expectation(what, _read(what, condition, document, (*loc, what), runs), document, (*loc, what))
        for what, condition in expect.items()
    )


def _read(
    what: str, condition: Condition, document: Document, loc: Loc, runs: Sequence[str]
) -> dict[str, Given]:
    """Return the values in a fixed order and in base units."""
    try:
        check_named(what)
    except InputError as error:
        raise document.error(loc, str(error), key=True) from None
    unit = RESULTS[what.partition(".")[0]].unit
    values: dict[str, Given] = {}
    for key in ("equals", "tolerance", "at_most", "at_least"):
        if key in condition.model_fields_set:
            with document.placing(*loc, key):
                values[key] = _value(key, getattr(condition, key), what, runs)
    with document.placing(*loc):
        _check_consistent(values, unit)
    return values


def _value(key: str, given: Any, what: str, runs: Sequence[str]) -> Given:
    result = RESULTS[what.partition(".")[0]]
    if key == "tolerance" and isinstance(given, str) and given.strip().endswith("%"):
        share = SHARE.read(given)
        assert isinstance(share, float)
        return Relative(Fraction(str(share)))
    relative = read_relative(given) if result.is_amount and key != "tolerance" else None
    if relative is None:
        if result.is_amount and given in runs:
            raise InputError(f"{given!r} is a run; write how many times what it has, as in 1 x {given}")
        return result.unit.read(given)
    if relative.run not in runs:
        known = hint(relative.run, runs) or "; no other run is named"
        raise InputError(f"there is no other run {relative.run!r}{known}")
    return relative


def _check_consistent(values: Mapping[str, Any], unit: Unit) -> None:
    if not values:
        raise InputError("says nothing; give equals, at_most or at_least")
    if "tolerance" in values and "equals" not in values:
        raise InputError("needs equals", path=("tolerance",))
    if unit is ORDER and set(values) != {"equals"}:
        raise InputError("is a list of ops and nothing else")
    if unit is WORD and set(values) != {"equals"}:
        raise InputError("is a name; it equals one or does not")
    if unit is FILE and set(values) != {"equals"}:
        raise InputError("is a file, and equals it or does not")
    if unit is FLAG and set(values) != {"equals"}:
        raise InputError("is true or false, and equals one of them")
    least, most = values.get("at_least", 0), values.get("at_most", float("inf"))
    if not isinstance(least, Relative) and not isinstance(most, Relative) and least > most:
        raise InputError("can never hold: at_least is more than at_most")
