"""How the values in a device's description are read: one reader a type, with an example of each.

``devices.fields`` names a type for every key; here is what a value of that type may be::

    TYPES["duration"].read("10us", "gpu0.gap")  ->  10000
    TYPES["flag"].read("yes", "gpu0.ideal")     ->  InputError: gpu0.ideal: 'yes' is neither true nor false
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from sim import units
from sim.errors import InputError

__all__ = ["TYPES", "Type", "read_mapping"]


def _read_allocator(value: object, what: str) -> Any:
    from devices.memory.spec import read_allocator  # brings all allocators along, and few machines name one

    return read_allocator(value, what)


def _read_sizes(value: object, what: str) -> Any:
    from devices.memory.spec import read_sizes

    return read_sizes(value, what)


@dataclass(frozen=True)
class Type:
    """How values of some type are read.

    Attributes
    ----------
    read : callable
        ``read(value, what)`` returns the value in base units or raises `InputError`.
    shown : str
        What one looks like, for help and messages.
    by_key : bool
        Whether a mapping of keys (kinds of op, dtypes) to such values is accepted too.
    """

    read: Callable[[object, str], Any]
    shown: str
    by_key: bool = False


def _count(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{what}: {value!r} is not a count; accepted: a whole number without a unit")
    if value < 0:
        raise InputError(f"{what}: {value} is negative")
    return value


def _positive(value: object, what: str) -> int:
    count = _count(value, what)
    if count == 0:
        raise InputError(f"{what}: it must be at least 1")
    return count


def _flag(value: object, what: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{what}: {value!r} is neither true nor false")
    return value


def _word(value: object, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"{what}: {value!r} is not a word")
    return value


def _share(value: object, what: str) -> Fraction:
    """Read a fraction exactly: 0.1 is one tenth, not the binary number next to it."""
    share = Fraction(repr(units.parse_fraction(value, what=what)))
    if share == 0:
        raise InputError(f"{what}: it must be more than 0")
    return share


def _part(value: object, what: str) -> Fraction:
    return Fraction(repr(units.parse_fraction(value, what=what)))


def _factor(value: object, what: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise InputError(f"{what}: {value!r} is not a number of at least 0")
    return Fraction(repr(value))


def _integer(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"{what}: {value!r} is not a whole number")
    return value


def _list_of(read: Callable[[object, str], Any]) -> Callable[[object, str], tuple[Any, ...]]:
    def read_list(value: object, what: str) -> tuple[Any, ...]:
        if isinstance(value, (str, Mapping)) or not isinstance(value, Sequence):
            raise InputError(f"{what}: {value!r} is not a list")
        return tuple(read(item, f"{what}[{i}]") for i, item in enumerate(value))

    return read_list


def read_mapping(value: object, what: str) -> dict[str, Any]:
    """Read a mapping whose keys are words."""
    if not isinstance(value, Mapping):
        raise InputError(f"{what}: {value!r} is not a mapping")
    return {_word(key, f"{what}: key"): item for key, item in value.items()}


def _curve(value: object, what: str) -> dict[int, Fraction]:
    if not isinstance(value, Mapping) or not value:
        raise InputError(f"{what}: {value!r} is not a mapping of cores to speed-up, as in {{1: 1, 4: 3.4}}")
    read = {_positive(k, f"{what}: cores"): _factor(v, f"{what}.{k}") for k, v in value.items()}
    return dict(sorted(read.items()))


def _counts(value: object, what: str) -> dict[str, int]:
    return {key: _positive(item, f"{what}.{key}") for key, item in read_mapping(value, what).items()}


def _anything(value: object, what: str) -> object:
    return value


def _limit(parse: Callable[..., int]) -> Callable[[object, str], int | None]:
    return lambda value, what: units.parse_limit(value, parse, what=what)


def _at_least_one(value: object, *, what: str) -> int:
    return _positive(value, what)


TYPES: Final[Mapping[str, Type]] = {
    "duration": Type(lambda v, what: units.parse_duration(v, what=what), "10us"),
    "duration by kind": Type(lambda v, what: units.parse_duration(v, what=what), "10us", by_key=True),
    "bytes": Type(_limit(units.parse_bytes), "80GiB"),
    "bytes by kind": Type(lambda v, what: units.parse_bytes(v, what=what), "1MB", by_key=True),
    "bandwidth": Type(_limit(units.parse_bandwidth), "1.5TB/s"),
    "flops by kind": Type(lambda v, what: units.parse_flops(v, what=what), "1GFLOP", by_key=True),
    "flop rate by dtype": Type(_limit(units.parse_flop_rate), "989TFLOP/s", by_key=True),
    "frequency": Type(lambda v, what: units.parse_frequency(v, what=what), "1.98GHz"),
    "fraction": Type(_share, "0.8 or 80%"),
    "fraction by kind": Type(_share, "0.8 or 80%", by_key=True),
    "part": Type(_part, "0.1 or 10%"),
    "factor": Type(_factor, "0.2"),
    "count": Type(_count, "4"),
    "positive count": Type(_positive, "4"),
    "count or unlimited": Type(_limit(_at_least_one), "4 or unlimited"),
    "flag": Type(_flag, "true"),
    "word": Type(_word, "a word"),
    "words": Type(_list_of(_word), "[matmul, conv]"),
    "integers": Type(_list_of(_integer), "[0, -1]"),
    "curve": Type(_curve, "{1: 1, 2: 1.9, 4: 3.4}"),
    "counts by name": Type(_counts, "{a: 64, b: 68}"),
    "sizes": Type(_read_sizes, "{train: 50GB, serve: 20GB}"),
    "allocator": Type(_read_allocator, "caching, or {name: caching, malloc: 150us}"),
    "mapping": Type(read_mapping, "{...}"),
    "anything": Type(_anything, "..."),
}
"""How the types of `Field.type` are read. Those "by" something also take a mapping with `DEFAULT`."""
