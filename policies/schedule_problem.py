"""The words of a schedule as a constraint problem, as data: who wrote it down need not know who solves it.

::

    time     s ─────────── begins when?                       after     s(b) >= s(a) + 10
    taken    [s, s + 10) of a resource                        capacity  at most so many at once

`policies.cp_sat` says how they are written down, and searches.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Time:
    """An unknown time, or one that is so long after it.

    Examples
    --------
    >>> Time(3) + 10 - 2
    Time(index=3, offset=8)
    """

    index: int
    offset: int = 0

    def __add__(self, ns: int) -> Time:
        """Return what is later by some ns."""
        return Time(self.index, self.offset + ns) if ns else self

    def __sub__(self, ns: int) -> Time:
        """Return what is earlier by some ns."""
        return self + -ns


@dataclass(frozen=True, slots=True)
class Literal:
    """Something that holds or does not."""

    index: int


class After(NamedTuple):
    """`later` is not before `earlier`, if all that is `given` holds."""

    later: Time | int
    earlier: Time | int
    given: tuple[Literal, ...]


class Last(NamedTuple):
    """`end` is so long after `begin`, if what is `given` holds."""

    begin: Time | int
    ns: int
    end: Time
    given: Literal | None


class Taken(NamedTuple):
    """A part of a resource is taken from `begin` on, if what is `given` holds; `gap_ns` follows."""

    begin: Time
    ns: int
    given: Literal | None
    amount: int
    gap_ns: int


class LevelChange(NamedTuple):
    """From a time on more of a resource is taken, or less."""

    at: Time
    amount: int


class CoveringSpan(NamedTuple):
    """From one time to another, so long, if what is `given` holds."""

    begin: Time
    end: Time
    ns: int
    given: Literal | None


class Covered(NamedTuple):
    """`time` is no less than what spans cover, where several are at once only once; at most `lanes` are."""

    time: Time
    lanes: int
    spans: Sequence[CoveringSpan]


NEVER = 1 << 62
"""A time that is never reached, such as that of a way where no route leads."""

LONGEST = Time(0)
"""The end of all."""


@dataclass
class ScheduleProblem:
    """What was said.

    Attributes
    ----------
    horizon_ns : int
        All is over by then.
    times, literals : list of str
        Their names; the first time is the end of all.
    unknowns : list of Time or Literal
        Both, in the order in which they were made.
    after, last : list of After, of Last
    taken, changes : dict of resource to list of Taken, of LevelChange
    capacity : dict of resource to int
        What is limited.
    covered : list of Covered
    one_of : list of list of Literal
        Exactly one of each holds.
    any_of : list of list of (Literal, bool)
        At least one of each is as it says.
    time_hints, literal_hints : dict
        Values of times and of literals, by index, to begin with.
    charged : dict of Time or Literal to int
        What is minimised: the sum of these times their numbers, which of literals are in ns.
    most : int or None
        It is no more than that.
    """

    horizon_ns: int
    times: list[str] = field(default_factory=lambda: ["longest"])
    literals: list[str] = field(default_factory=list)
    unknowns: list[Time | Literal] = field(default_factory=lambda: [LONGEST])
    after: list[After] = field(default_factory=list)
    last: list[Last] = field(default_factory=list)
    taken: dict[Hashable, list[Taken]] = field(default_factory=dict)
    changes: dict[Hashable, list[LevelChange]] = field(default_factory=dict)
    capacity: dict[Hashable, int] = field(default_factory=dict)
    covered: list[Covered] = field(default_factory=list)
    one_of: list[list[Literal]] = field(default_factory=list)
    any_of: list[list[tuple[Literal, bool]]] = field(default_factory=list)
    time_hints: dict[int, int] = field(default_factory=dict)
    literal_hints: dict[int, bool] = field(default_factory=dict)
    charged: dict[Time | Literal, int] = field(default_factory=dict)
    most: int | None = None
