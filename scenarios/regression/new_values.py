"""What an expectation that failed has to say instead: the text of each value, as one would write it.

What should be equal becomes what came out, exactly. So does a bound that is whole; shares and multiples of
another run get four digits, rounded to the side on which the bound holds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from typing import Final

from scenarios.expect.expectation import Outcome
from scenarios.expect.relative import Relative, read_relative, resolved
from scenarios.fields.results import RESULTS, Value, holds
from sim.words.errors import InputError

__all__ = ["new_values"]

_DIGITS: Final = 4
_ROUNDING: Final = {"equals": ROUND_HALF_EVEN, "at_most": ROUND_CEILING, "at_least": ROUND_FLOOR}


def new_values(outcome: Outcome, *, percent: Collection[str] = ()) -> dict[str, str]:
    """Return the keys of a condition that do not hold, and what they should say.

    Parameters
    ----------
    outcome : Outcome
        Of a value: no order, no schedule.
    percent : collection of str
        Keys whose share is written in per cent.

    Raises
    ------
    InputError
        No short text says it: what came out is no multiple of what another run has.
    """
    return {
        key: _text(key, outcome, value, percent=key in percent)
        for key, value in outcome.condition.items()
        if key in _ROUNDING and not _holds(key, outcome.actual, outcome.condition)
    }


def _holds(key: str, actual: Value, condition: Mapping[str, Value]) -> bool:
    """Whether one key of a condition holds, with the tolerance that is meant for it."""
    keys = (key, "tolerance") if key == "equals" else (key,)
    return holds(actual, {each: condition[each] for each in keys if each in condition})


def _text(key: str, outcome: Outcome, value: Value, *, percent: bool) -> str:
    given, actual = outcome.expectation.condition, outcome.actual
    result = RESULTS[outcome.expectation.what.partition(".")[0]]
    relative = given[key]
    if isinstance(relative, Relative):
        other = outcome.references[relative.run]
        assert isinstance(actual, int | float)
        text = f"{_times(key, actual, other)} x {relative.run}" if other else ""
        again = resolved({**given, key: read_relative(text) or relative}, outcome.references)
        if not _holds(key, actual, again):
            raise InputError(f"it is no multiple of what {relative.run} has, with {_DIGITS} digits")
        return text
    if isinstance(value, float):
        assert isinstance(actual, int | float)
        exact = Decimal(repr(actual)) if key == "equals" else _rounded(key).create_decimal(Decimal(actual))
        texts = [f"{(exact * 100).normalize():f}%"] * percent + [f"{exact.normalize():f}"]
        return next(
            text for text in texts if _holds(key, actual, {**outcome.condition, key: result.read_text(text)})
        )
    text = result.unit.show(actual)
    return text if isinstance(value, str) else text.replace(" ", "")


def _times(key: str, actual: int | float, other: int | float) -> str:
    exact = Fraction(actual) / Fraction(other)
    return f"{_rounded(key).divide(Decimal(exact.numerator), Decimal(exact.denominator)).normalize():f}"


def _rounded(key: str) -> Context:
    return Context(prec=_DIGITS, rounding=_ROUNDING[key])
