"""How the values in a device's description are read: one reader a type, with an example of each.

``devices.describe.fields`` names a type for every key; here is what a value of that type may be::

    TYPES["duration"].read("10us")  ->  10000
    TYPES["flag"].read("yes")       ->  InputError: 'yes' is neither true nor false
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, Final

from sim.words import units
from sim.words.errors import InputError, located

__all__ = ["TYPES", "Type", "read_mapping"]


def _read_sizes(value: object) -> Any:
    from devices.memory.memory_description import (
        read_sizes,  # brings all allocators along, and few machines cut memory
    )

    return read_sizes(value)


@dataclass(frozen=True)
class Type:
    """How values of some type are read.

    Attributes
    ----------
    read : callable
        ``read(value)`` returns the value in base units or raises `InputError`.
    shown : str
        What one looks like, for help and messages.
    by_key : bool
        Whether a mapping of keys (kinds of op, dtypes) to such values is accepted too.
    """

    read: Callable[[object], Any]
    shown: str
    by_key: bool = False


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{value!r} is not a count; accepted: a whole number without a unit")
    if value < 0:
        raise InputError(f"{value} is negative")
    return value


def _positive(value: object) -> int:
    count = _count(value)
    if count == 0:
        raise InputError("must be at least 1")
    return count


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{value!r} is neither true nor false")
    return value


def _word(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"{value!r} is not a word")
    return value


def _share(value: object) -> Fraction:
    """Read a fraction exactly: 0.1 is one tenth, not the binary number next to it."""
    share = Fraction(repr(units.parse_fraction(value, what="")))
    if share == 0:
        raise InputError("must be more than 0")
    return share


def _part(value: object) -> Fraction:
    return Fraction(repr(units.parse_fraction(value, what="")))


def _factor(value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise InputError(f"{value!r} is not a number of at least 0")
    return Fraction(repr(value))


def _count_or_share(value: object) -> int | Fraction:
    """Read a count (a whole number) or a share (a percentage, or a number up to 1 with a point)."""
    return _positive(value) if isinstance(value, int) else _share(value)


def _integer(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{value!r} is not a whole number")
    return value


def _list_of(read: Callable[[object], Any]) -> Callable[[object], tuple[Any, ...]]:
    def read_list(value: object) -> tuple[Any, ...]:
        if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
            raise InputError(f"{value!r} is not a list")
        return tuple(_inside(i, read, item) for i, item in enumerate(value))

    return read_list


def read_mapping(value: object) -> dict[str, Any]:
    """Read a mapping whose keys are words."""
    if not isinstance(value, Mapping):
        raise InputError(f"{value!r} is not a mapping")
    return {_word(key): item for key, item in value.items()}


def _inside(part: str | int, read: Callable[[object], Any], value: object) -> Any:
    """Read a part of a value; a mistake in it has its key, or index."""
    with located(part):
        return read(value)


def _curve(value: object) -> dict[int, Fraction]:
    if not isinstance(value, Mapping) or not value:
        raise InputError(f"{value!r} is not a mapping of cores to speed-up, as in {{1: 1, 4: 3.4}}")
    read = {_positive(k): _inside(str(k), _factor, v) for k, v in value.items()}
    return dict(sorted(read.items()))


def _counts(value: object) -> dict[str, int]:
    return {key: _inside(key, _positive, item) for key, item in read_mapping(value).items()}


def _anything(value: object) -> object:
    return value


def _limit(parse: Callable[..., int]) -> Callable[[object], int | None]:
    return lambda value: units.parse_limit(value, parse, what="")


def _at_least_one(value: object, *, what: str) -> int:
    return _positive(value)


TYPES: Final[Mapping[str, Type]] = {
    "duration": Type(partial(units.parse_duration, what=""), "10us"),
    "duration by kind": Type(partial(units.parse_duration, what=""), "10us", by_key=True),
    "bytes": Type(_limit(units.parse_bytes), "80GiB"),
    "bytes by kind": Type(partial(units.parse_bytes, what=""), "1MB", by_key=True),
    "bandwidth": Type(_limit(units.parse_bandwidth), "1.5TB/s"),
    "flops by kind": Type(partial(units.parse_flops, what=""), "1GFLOP", by_key=True),
    "flop rate by dtype": Type(_limit(units.parse_flop_rate), "989TFLOP/s", by_key=True),
    "fraction": Type(_share, "0.8 or 80%"),
    "fraction by kind": Type(_share, "0.8 or 80%", by_key=True),
    "part": Type(_part, "0.1 or 10%"),
    "factor": Type(_factor, "0.2"),
    "count": Type(_count, "4"),
    "positive count": Type(_positive, "4"),
    "count or unlimited": Type(_limit(_at_least_one), "4 or unlimited"),
    "count or share": Type(_count_or_share, "66 or 50%"),
    "flag": Type(_flag, "true"),
    "word": Type(_word, "a word"),
    "words": Type(_list_of(_word), "[matmul, conv]"),
    "integers": Type(_list_of(_integer), "[0, -1]"),
    "curve": Type(_curve, "{1: 1, 2: 1.9, 4: 3.4}"),
    "counts by name": Type(_counts, "{a: 64, b: 68}"),
    "sizes": Type(_read_sizes, "{train: 50GB, serve: 20GB}"),
    "mapping": Type(read_mapping, "{...}"),
    "anything": Type(_anything, "..."),
}
"""How the types of `Field.type` are read. Those "by" something also take a mapping with `DEFAULT`."""
