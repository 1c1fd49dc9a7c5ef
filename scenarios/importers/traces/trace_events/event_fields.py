"""Fields of trace events, checked one by one: what is wrong is told with the key and what was found."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

from sim.words.limits import LATEST_NS

__all__ = ["arguments", "ns", "span", "text", "thread_of", "whole"]


def arguments(event: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what is noted about an event."""
    args = event["args"]
    if not isinstance(args, dict):
        raise ValueError(f"args is no object but {args!r:.40}")
    return args


def text(event: Mapping[str, Any], key: str) -> str:
    """Return a name; there are few, so that each is kept once."""
    found = event[key]
    if not isinstance(found, str):
        raise ValueError(f"{key} is no text but {found!r:.40}")
    return sys.intern(found)


def thread_of(event: Mapping[str, Any]) -> tuple[int, int]:
    """Return process and thread."""
    return whole(event, "pid"), whole(event, "tid")


def span(event: Mapping[str, Any]) -> tuple[int, int]:
    """Return begin and duration in ns."""
    start, duration = ns(event, "ts"), ns(event, "dur")
    if start + duration > LATEST_NS:
        raise ValueError(f"ends after {LATEST_NS // 1000} us")
    return start, duration


def whole(of: Mapping[str, Any], key: str) -> int:
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


def ns(of: Mapping[str, Any], key: str) -> int:
    """Return a time in microseconds as whole ns, rounded half up, exactly."""
    value = of[key]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{key}: {value!r:.40} is no time in microseconds")
    above, below = value.as_integer_ratio()
    return (2000 * above + below) // (2 * below)
