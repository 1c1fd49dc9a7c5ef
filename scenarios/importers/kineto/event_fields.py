"""Fields of trace events, one or many at a time; errors name the key and the value found.

Checking whether a whole column is as usual takes a twentieth of the time; if it is not, each value is
checked.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import numpy as np

from sim.base.arrays import LATEST_NS, IntArray

Fields = Mapping[str, Any]

ABSENT: Final[Any] = object()
"""A missing value."""
_EXACT_US: Final = 2.0**52
"""Below this number of microseconds both the whole part and the fraction are exact."""
_NEARLY_HALF: Final = 0.499


def arguments(event: Fields) -> Fields:
    """Return the ``args`` of an event."""
    return all_arguments([event["args"]])[0]


def text(event: Fields, key: str) -> str:
    """Return a name; names are interned, because there are few."""
    return _text(event[key], key)


def _text(value: Any, key: str) -> str:
    if not isinstance(_there(value, key), str):
        raise ValueError(f"{key} is no text but {value!r:.40}")
    return sys.intern(value)


def _there(value: Any, key: str) -> Any:
    """Return a value; KeyError if it is missing."""
    if value is ABSENT:
        raise KeyError(key)
    return value


def thread_of(event: Fields) -> tuple[int, int]:
    """Return process and thread."""
    return whole(event, "pid"), whole(event, "tid")


def span(event: Fields) -> tuple[int, int]:
    """Return begin and end in ns."""
    (start,), (end,) = spans([event["ts"]], [event["dur"]])
    return int(start), int(end)


def whole(of: Fields, key: str) -> int:
    """Return a whole number of 64 bits, also if given as text."""
    return _whole(of[key], key)


def _whole(value: Any, key: str) -> int:
    number: int = _there(value, key)
    if type(value) is not int:
        is_text = isinstance(value, str) and value.removeprefix("-").isdecimal()
        is_whole = is_text or (isinstance(value, float) and value.is_integer())
        number = int(value) if is_whole else 2**63
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{key}: {value!r:.40} is no whole number of 64 bits")
    return number


def size(of: Fields, key: str, each: int = 1) -> int:
    """Return a number of bytes, of elements with `each` bytes; 0: not noted."""
    nbytes = each * whole(of, key) if key in of else 0
    if not 0 <= nbytes < 2**63:
        raise ValueError(f"{key}: {of[key]!r:.40} elements of {each} bytes are no size of 64 bits")
    return nbytes


def _ns(value: Any, key: str) -> int:
    """Return a time in microseconds as whole ns, rounded half up, exactly."""
    if type(_there(value, key)) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"{key}: {value!r:.40} is no time in microseconds")
    above, below = map(int, value.as_integer_ratio())
    return min((2000 * above + below) // (2 * below), LATEST_NS + 1)


# -- columns of values ----------------------------------------------------------------------------


def texts(values: Sequence[Any], key: str) -> Sequence[str]:
    """Return names, like `text`."""
    return values if {*map(type, values)} <= {str} else [_text(value, key) for value in values]


def all_arguments(values: Sequence[Any]) -> Sequence[Fields]:
    """Return the ``args`` of events, like `arguments`."""
    for value in values if not {*map(type, values)} <= {dict} else ():
        if not isinstance(_there(value, "args"), dict):
            raise ValueError(f"args is no object but {value!r:.40}")
    return values


def wholes(values: Sequence[Any], key: str) -> IntArray:
    """Return whole numbers, like `whole`."""
    if {*map(type, values)} <= {int}:
        with suppress(OverflowError):
            return np.array(values, np.int64)
    return np.array([_whole(value, key) for value in values], np.int64)


def spans(begins: Sequence[Any], lengths: Sequence[Any]) -> tuple[IntArray, IntArray]:
    """Return begins and ends in ns."""
    start, took = _all_ns(begins, "ts"), _all_ns(lengths, "dur")
    if (start + took > LATEST_NS).any():
        raise ValueError(f"ends after {LATEST_NS // 1000} us")
    return start, start + took


def _all_ns(values: Sequence[Any], key: str) -> IntArray:
    """Return times like `_ns`."""
    us = np.array(values if {*map(type, values)} <= {int, float} else [-1], np.float64)
    if not ((us >= 0) & (us < _EXACT_US)).all():
        return np.array([_ns(value, key) for value in values], np.int64)
    whole_us = np.floor(us)
    part = 1000 * (us - whole_us)  # rounded, but by far less than the distance to the next half
    rounded = np.floor(part + 0.5)
    in_ns: IntArray = 1000 * whole_us.astype(np.int64) + rounded.astype(np.int64)
    for n in np.flatnonzero(np.abs(part - rounded) >= _NEARLY_HALF).tolist():
        in_ns[n] = _ns(values[n], key)
    return in_ns
