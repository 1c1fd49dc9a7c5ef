"""Points of a sweep: every combination of the values of some keys.

::

    --vary workload.batch=1,8,32 --vary machine.devices.gpu0.streams=1,4     6 points, the last key fastest
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sim.words.errors import InputError
from sim.words.limits import MOST_RUNS, at_most

__all__ = ["Point", "Row", "axes_of", "column_of", "points_of"]

Row = dict[str, Any]

_RESULTS: Final = ("policy", "makespan_ns", "lower_bound_ns", "gap", "no_gap", "error")


def column_of(key: str) -> str:
    """Return the name of the column that holds the values of a varied key.

    Examples
    --------
    >>> column_of("workload.batch"), column_of("policy")
    ('workload.batch', 'varied policy')
    """
    return f"varied {key}" if key in _RESULTS else key


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes
    ----------
    settings : tuple of (str, str)
        Key and value, as for ``--set``.
    policy : str or None
        See `scenarios.run.scenario.Scenario.case`.
    """

    settings: tuple[tuple[str, str], ...]
    policy: str | None = None

    @property
    def key(self) -> str:
        """What tells this point from the others."""
        return json.dumps([list(map(list, self.settings)), self.policy])

    def __str__(self) -> str:
        """Return ``workload.batch=8, ready-queue``."""
        parts = [f"{key}={value}" for key, value in self.settings]
        return ", ".join([*parts, *([self.policy] if self.policy else [])])


def points_of(vary: Sequence[str], policies: Sequence[str | None] = (None,)) -> list[Point]:
    """Return every combination of values and policies, the last key varying fastest.

    Parameters
    ----------
    vary : sequence of str
        ``KEY=V1,V2,...``; commas inside brackets, braces or quotes belong to a value.
    policies : sequence of str

    Raises
    ------
    InputError
        No ``=``, no value, or a key given twice.

    Examples
    --------
    >>> [str(point) for point in points_of(["a=1,2", "b=[3,4],5"])]
    ['a=1, b=[3,4]', 'a=1, b=5', 'a=2, b=[3,4]', 'a=2, b=5']
    """
    axes = axes_of(vary)
    at_most(MOST_RUNS, math.prod(map(len, axes.values())) * len(policies), "points")
    combinations = itertools.product(*([(key, value) for value in values] for key, values in axes.items()))
    return [Point(tuple(settings), policy) for settings in combinations for policy in policies]


def axes_of(vary: Sequence[str], option: str = "--vary") -> dict[str, list[str]]:
    """Return the values of each key of ``KEY=V1,V2,...``; see `points_of`."""
    axes: dict[str, list[str]] = {}
    for text in vary:
        key, equals, values = text.partition("=")
        if not equals or not key or not values:
            raise InputError(f"{option} {text!r}: give KEY=V1,V2,... as in workload.batch=1,8,32")
        if key in axes:
            raise InputError(f"{option} {key} is given twice; put all its values behind one")
        axes[key] = list(_split(values))
        if "" in axes[key]:
            raise InputError(f"{option} {text!r}: a value is empty")
    return axes


def _split(text: str) -> Iterator[str]:
    """Split at commas outside brackets and quotes."""
    depth, quote, start = 0, "", 0
    for i, c in enumerate(text):
        if quote:
            quote = "" if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c in "[{(":
            depth += 1
        elif c in "]})":
            depth -= 1
        elif c == "," and not depth:
            yield text[start:i].strip()
            start = i + 1
    yield text[start:].strip()
