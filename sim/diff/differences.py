"""Two schedules compared, op by op.

::

    A   ▇a▇▇b▇▇▇▇c▇           moved    d starts later, and c with it
    B   ▇a▇▇▇▇b▇▇▇▇c▇         first    b, the first op whose start moved: `sim.diff.why` says why
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from sim.diff.matching import Pairs, matched
from sim.diff.schedule import Schedule
from sim.words.arrays import BoolArray, IntArray

__all__ = ["Differences", "KindChange", "Move", "differences"]


class Move(NamedTuple):
    """Ops that moved by the same time.

    Attributes
    ----------
    by_ns : int
        How much later they start in B.
    ops : int
        How many.
    first : int
        Position in `Differences.pairs` of the one that starts first.
    """

    by_ns: int
    ops: int
    first: int


class KindChange(NamedTuple):
    """How long ops of one kind last, of those that are in both.

    Attributes
    ----------
    kind : str
    ops : int
        How many last longer or shorter.
    a_ns, b_ns : int
        How long all of the kind last.
    most : int
        Position in `Differences.pairs` of the one that changed most.
    """

    kind: str
    ops: int
    a_ns: int
    b_ns: int
    most: int


@dataclass(frozen=True, eq=False)
class Differences:
    """What differs between two schedules.

    Attributes
    ----------
    a, b : Schedule
    pairs : Pairs
        Rows that are the same op.
    over_ns : int
        Starts and durations that differ by no more count as equal.
    """

    a: Schedule
    b: Schedule
    pairs: Pairs
    over_ns: int = 0

    @cached_property
    def moved_ns(self) -> IntArray:
        """How much later each pair starts in B."""
        return self.b.start_ns[self.pairs.b] - self.a.start_ns[self.pairs.a]

    @cached_property
    def longer_ns(self) -> IntArray:
        """How much longer each pair lasts in B."""
        return self.b.lasted_ns[self.pairs.b] - self.a.lasted_ns[self.pairs.a]

    @cached_property
    def moved(self) -> BoolArray:
        """Which pairs start at another time."""
        moved: BoolArray = np.abs(self.moved_ns) > self.over_ns
        return moved

    @cached_property
    def resized(self) -> BoolArray:
        """Which pairs last longer, or shorter."""
        resized: BoolArray = np.abs(self.longer_ns) > self.over_ns
        return resized

    @cached_property
    def relaned(self) -> BoolArray:
        """Which pairs run on another stream or worker; none if lanes were paired by what they do."""
        if self.pairs.by == "order":
            return np.zeros(len(self.pairs.a), bool)
        codes: dict[str, int] = {}
        of_a, of_b = (
            np.array([codes.setdefault(lane, len(codes)) for lane in each.lanes], np.int64)
            for each in (self.a, self.b)
        )
        relaned: BoolArray = of_a[self.a.lane[self.pairs.a]] != of_b[self.b.lane[self.pairs.b]]
        return relaned

    @cached_property
    def only_a(self) -> IntArray:
        """Rows that are in A alone, in order of time."""
        return _left(self.a, self.pairs.a)

    @cached_property
    def only_b(self) -> IntArray:
        """Rows that are in B alone, in order of time."""
        return _left(self.b, self.pairs.b)

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        changed = (self.moved | self.resized | self.relaned).any()
        lost = len(self.only_a) or len(self.only_b)
        return not changed and not lost and abs(self.b.makespan_ns - self.a.makespan_ns) <= self.over_ns

    @cached_property
    def first(self) -> int | None:
        """Position of the first op whose start moved; of those of one instant, the one that moved least."""
        at = np.flatnonzero(self.moved)
        return self._first_of(at) if len(at) else None

    def _first_of(self, at: IntArray) -> int:
        """Return the pair that starts first; of those at one time in one, the first in the other; by name."""
        earlier, later = self._starts(at)
        some = earlier == earlier.min()
        found: list[int] = at[some][later[some] == later[some].min()].tolist()
        return min(found, key=self._identity)

    def _starts(self, at: IntArray) -> tuple[IntArray, IntArray]:
        """Return the earlier and the later start of pairs."""
        a, b = self.a.start_ns[self.pairs.a[at]], self.b.start_ns[self.pairs.b[at]]
        return np.minimum(a, b), np.maximum(a, b)

    def _identity(self, k: int) -> list[tuple[str, int, str, str]]:
        """Return what orders pairs of one time, whichever of the two schedules is A."""
        sides = ((self.a, int(self.pairs.a[k])), (self.b, int(self.pairs.b[k])))
        return sorted(
            (each.names[row], int(each.iteration[row]), each.frame_of(row), each.lane_of(row))
            for each, row in sides
        )

    def moves(self, top: int) -> list[Move]:
        """Return those that moved most; ops that moved by the same time are one entry.

        Parameters
        ----------
        top : int
            At most so many entries.
        """
        at = np.flatnonzero(self.moved)
        each, which, count = np.unique(self.moved_ns[at], return_inverse=True, return_counts=True)
        first = np.full(len(each), np.iinfo(np.int64).max)
        np.minimum.at(first, which, self._starts(at)[0])
        largest = np.lexsort((first, -np.abs(each)))[: top + 1].tolist()  # +x and -x may be equally early
        found = {k: Move(int(each[k]), int(count[k]), self._first_of(at[which == k])) for k in largest}
        largest.sort(key=lambda k: (-abs(each[k]), first[k], self._identity(found[k].first)))
        return [found[k] for k in largest[:top]]

    def largest(self, ns: IntArray, top: int) -> list[int]:
        """Return the positions of the pairs for which some difference is largest; none where it is 0.

        Parameters
        ----------
        ns : array of int64
            Of each pair.
        top : int
            At most so many.
        """
        at = np.flatnonzero(ns)
        cut = np.sort(np.abs(ns[at]))[::-1][:top]
        if not len(cut):
            return []
        at = at[np.abs(ns[at]) >= cut[-1]]
        earlier, later = self._starts(at)
        order = np.lexsort((later, earlier, -np.abs(ns[at])))[: 10 * top].tolist()
        order.sort(key=lambda k: (-abs(ns[at[k]]), earlier[k], later[k], self._identity(int(at[k]))))
        return [int(at[k]) for k in order[:top]]

    def kinds(self, top: int) -> list[KindChange]:
        """Return the kinds of which ops last longer or shorter, those that changed most in all first.

        Parameters
        ----------
        top : int
            At most so many.
        """
        at = np.flatnonzero(self.resized)
        found: list[KindChange] = []
        kind_of_pair = self.a.kind[self.pairs.a]
        for kind in np.unique(kind_of_pair[at]).tolist():
            of_kind = np.flatnonzero(kind_of_pair == kind)
            changed = at[kind_of_pair[at] == kind]
            by = np.abs(self.longer_ns[changed])
            most = self._first_of(changed[by == by.max()])
            a_ns = int(self.a.lasted_ns[self.pairs.a[of_kind]].sum())
            b_ns = int(self.b.lasted_ns[self.pairs.b[of_kind]].sum())
            found.append(KindChange(self.a.kinds[kind], len(changed), a_ns, b_ns, most))
        found.sort(key=lambda one: (-abs(one.b_ns - one.a_ns), one.kind))
        return found[:top]


def differences(a: Schedule, b: Schedule, *, over_ns: int = 0) -> Differences:
    """Compare two schedules.

    Parameters
    ----------
    a, b : Schedule
    over_ns : int
        Starts and durations that differ by no more count as equal.

    Examples
    --------
    >>> from sim import Device, GraphBuilder, Machine, simulate
    >>> from policies.issue.ready_queue import ReadyQueue
    >>> from sim.diff.schedule import schedule_of
    >>> def run(ns):
    ...     b = GraphBuilder("chain")
    ...     _ = b.op("a", duration_ns=ns)
    ...     _ = b.op("b", duration_ns=10, inputs=["a"])
    ...     return simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue())
    >>> found = differences(schedule_of(run(5), "A"), schedule_of(run(8), "B"))
    >>> found.moved_ns.tolist(), found.longer_ns.tolist(), found.first
    ([0, 3], [3, 0], 1)
    """
    return Differences(a, b, matched(a, b), over_ns)


def _left(schedule: Schedule, paired: IntArray) -> IntArray:
    left = schedule.compared.copy()
    left[paired] = False
    rows = np.flatnonzero(left)
    return rows[np.argsort(schedule.start_ns[rows], kind="stable")]
