"""How a what-if changes a duration: by a factor (``x0.5``), or to a new value (``2us``)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Annotated, Any, Final, NamedTuple

from pydantic import PlainValidator, WithJsonSchema

from devices.describe.field_types import quantity_schema
from devices.describe.quantities import reader
from sim.words.dimensions import DURATION
from sim.words.errors import InputError, UnitError
from sim.words.units import parse_duration, round_half_up

__all__ = ["AnyChange", "AnyFactor", "Change", "read_change", "read_factor"]

_FACTOR: Final = re.compile(r"\s*[x×]\s*([0-9][0-9_]*\.?[0-9]*|\.[0-9]+)\s*")
_MOST: Final = 1_000_000


class Change(NamedTuple):
    """A factor, or a new value.

    Examples
    --------
    >>> Change(Fraction(1, 2)).of([3, 10]), Change(value_ns=2000).of([3, 10])
    ([2, 5], [2000, 2000])
    """

    factor: Fraction = Fraction(1)
    value_ns: int | None = None

    def of(self, durations_ns: Iterable[int]) -> list[int]:
        """Return durations after the change, each rounded half up."""
        if self.value_ns is not None:
            return [self.value_ns for _ in durations_ns]
        above, below = 2 * self.factor.numerator, 2 * self.factor.denominator
        return [(above * ns + self.factor.denominator) // below for ns in durations_ns]

    def of_part(self, part_ns: int, whole_ns: int) -> int:
        """Return a part of a duration, which keeps its share of the whole."""
        if self.value_ns is None:
            return self.of([part_ns])[0]
        return round_half_up(Fraction(self.value_ns * part_ns, whole_ns)) if whole_ns else self.value_ns


def read_factor(value: object) -> Fraction:
    """Read a factor.

    Raises
    ------
    InputError
        It is none.

    Examples
    --------
    >>> read_factor("x0.1")
    Fraction(1, 10)
    """
    if isinstance(value, Fraction):
        return value
    found = _FACTOR.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise InputError(f"{value!r} is no factor such as x0.5")
    factor = Fraction(found[1])
    if factor > _MOST:
        raise InputError(f"{value!r} is more than the x{_MOST:,} that there may be")
    return factor


def read_change(value: object) -> Change:
    """Read a factor, or a new value.

    Raises
    ------
    InputError
        It is neither.

    Examples
    --------
    >>> read_change("2us").value_ns
    2000
    """
    if isinstance(value, str) and _FACTOR.fullmatch(value):
        return Change(read_factor(value))
    try:
        return Change(value_ns=parse_duration(value, what=""))
    except UnitError as error:
        message = f"{value!r} is neither a factor such as x0.5 nor a duration such as 2us ({error.message})"
        raise InputError(message) from None


_FACTOR_SCHEMA: Final[dict[str, Any]] = {
    "type": "string",
    "pattern": rf"^{_FACTOR.pattern}$",
    "description": "a factor, such as x0.5",
}

AnyFactor = Annotated[Fraction, PlainValidator(reader(read_factor)), WithJsonSchema(_FACTOR_SCHEMA)]
"""A factor in a file."""

AnyChange = Annotated[
    Change,
    PlainValidator(reader(read_change)),
    WithJsonSchema({"anyOf": [_FACTOR_SCHEMA, quantity_schema(DURATION)]}),
]
"""A factor or a new duration in a file."""
