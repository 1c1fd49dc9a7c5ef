"""Fields of trace events, of one or of many: what is wrong is told with the key and what was found.

Of many events it takes a twentieth of the time to ask whether all are as usual; where one is not, each is
looked at.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from sim.words.arrays import IntArray
from sim.words.limits import LATEST_NS

__all__ = ["arguments", "ns", "span", "spans", "text", "texts", "thread_of", "whole", "wholes"]

Fields = Mapping[str, Any]

_EXACT_US: Final = 2.0**52
"""Below it a number of microseconds is exact without its fraction, and the fraction is."""
_NEARLY_HALF: Final = 0.499


def arguments(event: Fields) -> Fields:
    """Return what is noted about an event."""
    args = event["args"]
    if not isinstance(args, dict):
        raise ValueError(f"args is no object but {args!r:.40}")
    return args


def text(event: Fields, key: str) -> str:
    """Return a name; there are few, so that each is kept once."""
    found = event[key]
    if not isinstance(found, str):
        raise ValueError(f"{key} is no text but {found!r:.40}")
    return sys.intern(found)


def thread_of(event: Fields) -> tuple[int, int]:
    """Return process and thread."""
    return whole(event, "pid"), whole(event, "tid")


def span(event: Fields) -> tuple[int, int]:
    """Return begin and end in ns."""
    start = ns(event, "ts")
    end = start + ns(event, "dur")
    if end > LATEST_NS:
        raise ValueError(f"ends after {LATEST_NS // 1000} us")
    return start, end


def whole(of: Fields, key: str) -> int:
    """Return a whole number of 64 bits; text with one is one."""
    value = of[key]
    number: int = value
    if type(value) is not int:
        is_text = isinstance(value, str) and value.removeprefix("-").isdecimal()
        is_whole = is_text or (isinstance(value, float) and value.is_integer())
        number = int(value) if is_whole else 2**63
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{key}: {value!r:.40} is no whole number of 64 bits")
    return number


def ns(of: Fields, key: str) -> int:
    """Return a time in microseconds as whole ns, rounded half up, exactly."""
    value = of[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{key}: {value!r:.40} is no time in microseconds")
    above, below = value.as_integer_ratio()
    return (2000 * above + below) // (2 * below)


# -- of many --------------------------------------------------------------------------------------


def texts(events: Sequence[Fields], key: str) -> list[str]:
    """Return names, as `text`."""
    found = [event[key] for event in events]
    return [*map(sys.intern, found)] if {*map(type, found)} <= {str} else [text(e, key) for e in events]


def wholes(of: Sequence[Fields], key: str, missing: int | None = None) -> list[int]:
    """Return whole numbers, as `whole`; `missing` where there is none, if given."""
    found: list[int] = [fields[key] if missing is None else fields.get(key, missing) for fields in of]
    usual = {*map(type, found)} == {int} and min(found) >= -(2**63) and max(found) < 2**63
    if usual:
        return found
    return [whole(fields, key) if missing is None or key in fields else missing for fields in of]


def spans(events: Sequence[Fields]) -> tuple[list[int], list[int]]:
    """Return begins and ends, as `span`."""
    start, took = _all_ns(events, "ts"), _all_ns(events, "dur")
    if start is None or took is None or (start + took > LATEST_NS).any():
        found = [span(event) for event in events]
        return [begin for begin, _ in found], [end for _, end in found]
    return start.tolist(), (start + took).tolist()


def _all_ns(events: Sequence[Fields], key: str) -> IntArray | None:
    """Return times as `ns`; None if one of them has to be looked at."""
    found = [event[key] for event in events]
    if not {*map(type, found)} <= {int, float}:
        return None
    us = np.array(found, np.float64)
    if not ((us >= 0) & (us < _EXACT_US)).all():
        return None
    whole_us = np.floor(us)
    part = 1000 * (us - whole_us)  # rounded, but by far less than what is left to the next half
    rounded = np.floor(part + 0.5)
    in_ns: IntArray = 1000 * whole_us.astype(np.int64) + rounded.astype(np.int64)
    for n in np.flatnonzero(np.abs(part - rounded) >= _NEARLY_HALF).tolist():
        in_ns[n] = ns(events[n], key)
    return in_ns
