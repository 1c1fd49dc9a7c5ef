"""A schedule as a constraint problem in plain data: times, what they wait for, and what each has for itself.

::

    time     s ─────────── begins when?                       after     s(b) >= s(a) + 10
    occupy   [s, s + 10) on a resource                        limit     at most so many at once

A model of something (a job, a placement, a pipeline) need not know the solver: OR-tools' CP-SAT searches the
whole problem (`policies.cp_sat`) or, from a known solution, one part of it after another
(`policies.optimum_windows`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


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
    purpose : str
        What the solver is needed for, if it is missing.
    horizon_ns : int
        Time by which everything has ended.
    times, literals : list of str
        Names; the first time is the end of the whole schedule.
    unknowns : list of Time or Literal
        Times and literals, in order of creation.
    orders, durations : list of After, of Last
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

    purpose: str
    horizon_ns: int
    times: list[str] = field(default_factory=lambda: ["longest"])
    literals: list[str] = field(default_factory=list)
    unknowns: list[Time | Literal] = field(default_factory=lambda: [LONGEST])
    orders: list[After] = field(default_factory=list)
    durations: list[Last] = field(default_factory=list)
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

    def time(self, name: str) -> Time:
        """Return an unknown time."""
        self.times.append(name)
        time = Time(len(self.times) - 1)
        self.unknowns.append(time)
        return time

    def literal(self, name: str) -> Literal:
        """Return something that holds or does not."""
        self.literals.append(name)
        literal = Literal(len(self.literals) - 1)
        self.unknowns.append(literal)
        return literal

    def require(self, literal: Literal, *given: Literal | None) -> None:
        """Let a literal hold if all that is `given` does."""
        unless = [(condition, False) for condition in given if condition is not None]
        self.any_of.append([*unless, (literal, True)])

    def choice(self, names: Sequence[str]) -> list[Any]:
        """Return a literal for each name, of which exactly one holds; for a single name, None."""
        if len(names) == 1:
            return [None]
        literals = [self.literal(name) for name in names]
        self.one_of.append(literals)
        return literals

    def after(self, later: Time | int, earlier: Time | int, *given: Literal | None) -> None:
        """Let `later` not be before `earlier`, if all that is `given` holds."""
        literals = tuple(literal for literal in given if literal is not None)
        self.orders.append(After(later, earlier, literals))

    def add_delay(self, later: Time, earlier: Time | int, delay_ns: int, *given: Literal | None) -> None:
        """Let `later` be at least `delay_ns` after `earlier`, if all that is `given` holds.

        With a delay of `NEVER`, what is `given` cannot hold.
        """
        if delay_ns >= NEVER:
            self.any_of.append([(literal, False) for literal in given if literal is not None])
        else:
            self.after(later, earlier + delay_ns, *given)

    def places(
        self, devices_of: Sequence[Sequence[int]], group_of: Sequence[int] = ()
    ) -> list[dict[int, Any]]:
        """Return for each op: device → literal that says that it is there; None: it can be nowhere else.

        Ops of one group are together; a group has the number of its first op.
        """
        literals = [
            dict(zip(devices, self.choice([f"{op} on {d}" for d in devices]), strict=True))
            for op, devices in enumerate(devices_of)
        ]
        for op, leader in enumerate(group_of):
            for d, chosen in literals[op].items():
                if leader != op and chosen is not None:
                    self.require(literals[leader][d], chosen)
                    self.require(chosen, literals[leader][d])
        return literals

    def last(self, begin: Time | int, ns: int, end: Time, given: Literal | None = None) -> None:
        """Let `end` be `ns` after `begin`, if what is `given` holds."""
        self.durations.append(Last(begin, ns, end, given))

    def charge(self, unknown: Time | Literal, n: int) -> None:
        """Add a time, or `n` ns if a literal holds, to the objective; `n` is the weight of a time."""
        self.charged[unknown] = self.charged.get(unknown, 0) + n

    def suppose(self, unknown: Time | Literal | None, value: int) -> None:
        """Let the search begin with a value of a time or literal."""
        if isinstance(unknown, Time):
            self.time_hints[unknown.index] = value - unknown.offset
        elif unknown is not None:
            self.literal_hints[unknown.index] = bool(value)

    def within(self, ns: int) -> None:
        """Let everything end by `ns`; the search begins with a schedule that does."""
        self.horizon_ns = ns
        self.suppose(LONGEST, ns)

    def occupy(
        self,
        resource: Hashable,
        begin: Time,
        ns: int,
        given: Literal | None = None,
        *,
        amount: int = 1,
        gap_ns: int = 0,
    ) -> None:
        """Take `amount` of a resource for `ns` from `begin` on, and for a gap before what follows."""
        self.taken.setdefault(resource, []).append(Taken(begin, ns, given, amount, gap_ns))

    def change(self, resource: Hashable, time: Time, amount: int) -> None:
        """Take `amount` more of a resource from a time on; less if it is negative."""
        self.changes.setdefault(resource, []).append(LevelChange(time, amount))
