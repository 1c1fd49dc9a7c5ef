"""A schedule as a constraint problem in plain data, so that its author need not know the solver.

::

    time     s ─────────── begins when?                       after     s(b) >= s(a) + 10
    taken    [s, s + 10) of a resource                        capacity  at most so many at once

`policies.cp_sat` states the problem to the solver and searches.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class Time:
    """An unknown time plus a fixed offset in ns.

    Examples
    --------
    >>> Time(3) + 10 - 2
    Time(index=3, offset=8)
    """

    index: int
    offset: int = 0

    def __add__(self, ns: int) -> Time:
        """Return the time `ns` later."""
        return Time(self.index, self.offset + ns) if ns else self

    def __sub__(self, ns: int) -> Time:
        """Return the time `ns` earlier."""
        return self + -ns


@dataclass(frozen=True, slots=True)
class Literal:
    """A Boolean unknown."""

    index: int


class After(NamedTuple):
    """`later` is not before `earlier`, if all literals in `given` hold."""

    later: Time | int
    earlier: Time | int
    given: tuple[Literal, ...]


class Last(NamedTuple):
    """`end` is `ns` after `begin`, if `given` holds."""

    begin: Time | int
    ns: int
    end: Time
    given: Literal | None


class Taken(NamedTuple):
    """`amount` of a resource is taken for `ns` from `begin` on, if `given` holds; `gap_ns` follows."""

    begin: Time
    ns: int
    given: Literal | None
    amount: int
    gap_ns: int


class LevelChange(NamedTuple):
    """The amount taken of a resource rises or falls by `amount` at a time."""

    at: Time
    amount: int


class CoveringSpan(NamedTuple):
    """A span of `ns` from `begin` to `end`, if `given` holds."""

    begin: Time
    end: Time
    ns: int
    given: Literal | None


class Covered(NamedTuple):
    """`time` is at least the length of the union of `spans`, at most `lanes` of which overlap."""

    time: Time
    lanes: int
    spans: Sequence[CoveringSpan]


NEVER = 1 << 62
"""A time that is never reached, such as that of a transfer without a route."""

LONGEST = Time(0)
"""The end of the whole schedule."""


@dataclass
class ScheduleProblem:
    """All variables, constraints and the objective.

    Attributes
    ----------
    horizon_ns : int
        Time by which everything has ended.
    times, literals : list of str
        Names; the first time is the end of the whole schedule.
    unknowns : list of Time or Literal
        Times and literals, in order of creation.
    after, last : list of After, of Last
    taken, changes : dict of resource to list of Taken, of LevelChange
    capacity : dict of resource to int
        Limit of each limited resource.
    covered : list of Covered
    one_of : list of list of Literal
        Lists of which exactly one literal holds.
    any_of : list of list of (Literal, bool)
        Clauses: at least one literal in each has the value given.
    time_hints, literal_hints : dict
        Starting values of times and literals, by index.
    charged : dict of Time or Literal to int
        Objective to minimise: the weighted sum of these; the weight of a literal is in ns.
    most : int or None
        Upper bound on the objective.
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
