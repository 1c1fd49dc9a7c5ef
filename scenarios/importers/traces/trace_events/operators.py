"""Which operator launched a task: the innermost one around the call that did.

::

    thread    [aten::linear                          ]
                 [aten::t ]   [aten::addmm          ]
                                 [cudaLaunchKernel]             its kernel is aten::addmm's

Profilers also number operators, and note of a task whose it is (``External id``). In recordings up to 2023
that is the number of the launch instead, which may be the one of any operator; in newer ones it says the same
as the time does. So it counts only where the call is not in the trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np

from scenarios.importers.traces.trace_events.kineto_rows import Calls
from sim.words.arrays import UNSET, BoolArray, Codes, IntArray

__all__ = ["UNNUMBERED", "Operators", "Spans"]

UNNUMBERED: Final = -1
"""The number of an operator that has none."""

Spans = dict[int, list[tuple[int, int]]]
"""By thread, begins and ends."""


class Operators:
    """The operators of a trace, in columns: there may be a million.

    Attributes
    ----------
    words : Codes of str
        Their names.
    """

    def __init__(self) -> None:
        self.words: Codes[str] = Codes()
        self._pieces = [np.zeros((5, 0), np.int64)]

    def __len__(self) -> int:
        """Return how many there are."""
        return sum(piece.shape[1] for piece in self._pieces)

    def add(
        self, thread: IntArray, start_ns: IntArray, end_ns: IntArray, names: Iterable[str], numbers: IntArray
    ) -> None:
        """Add operators in any order."""
        self._pieces.append(np.stack((thread, start_ns, end_ns, self.words.of(names), numbers)))

    def columns(self) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
        """Return thread, begin, end, name (one of `words`), and number of each."""
        self._pieces = [np.concatenate(self._pieces, axis=1)]
        thread, start_ns, end_ns, word, number = self._pieces[0]
        return thread, start_ns, end_ns, word, number

    def spans(self, fits_name: Callable[[str], object]) -> Spans:
        """Return begins and ends of those whose names fit."""
        fits: BoolArray = np.array([bool(fits_name(word)) for word in self.words], bool)
        thread, start_ns, end_ns, word, _ = self.columns()
        found: Spans = {}
        for n in np.flatnonzero(fits[word]).tolist():
            found.setdefault(int(thread[n]), []).append((int(start_ns[n]), int(end_ns[n])))
        return found

    def around(self, calls: Calls, which: IntArray) -> dict[int, tuple[str, int]]:
        """Return name and number of the operators around some of the calls, by correlation."""
        thread, start_ns, end_ns, word, number = self.columns()
        names = [*self.words]
        found: dict[int, tuple[str, int]] = {}
        for code in sorted({*calls.thread[which].tolist()}):
            of_thread, own = np.flatnonzero(thread == code), which[calls.thread[which] == code]
            order = of_thread[np.lexsort((-end_ns[of_thread], start_ns[of_thread]))]
            last = np.searchsorted(start_ns[order], calls.start_ns[own], side="right") - 1
            # One that begins where an operator ends is outside.
            inside_ns = np.minimum(calls.start_ns[own] + 1, calls.end_ns[own])
            last = _last_reaching(end_ns[order], last, inside_ns)
            at, own = order[last[last != UNSET]], own[last != UNSET]
            what = zip(word[at].tolist(), number[at].tolist(), strict=True)
            found.update(zip(calls.correlation[own].tolist(), ((names[w], n) for w, n in what), strict=True))
        return found

    def numbered(self) -> dict[int, str]:
        """Return the names of all operators that have a number."""
        _, _, _, word, number = self.columns()
        names, has = [*self.words], number != UNNUMBERED
        return {n: names[w] for n, w in zip(number[has].tolist(), word[has].tolist(), strict=True)}


def _last_reaching(ends: IntArray, last: IntArray, least: IntArray) -> IntArray:
    """Return the last entry, from `last` backwards, that is at least `least`, of each; `UNSET`: none.

    Examples
    --------
    >>> _last_reaching(np.array([9, 3, 5]), np.array([2, 2, 1, -1]), np.array([5, 6, 10, 0])).tolist()
    [2, 0, -1, -1]
    """
    largest = [ends]  # of an entry and the 1, 3, 7, ... before it
    while (width := 1 << len(largest) - 1) < len(ends):
        wider = largest[-1].copy()
        np.maximum(wider[width:], largest[-1][:-width], out=wider[width:])
        largest.append(wider)
    last = last.copy()
    for k in reversed(range(len(largest))):
        none = np.flatnonzero(last >= 0)
        none = none[largest[k][last[none]] < least[none]]
        last[none] -= 1 << k
    return np.maximum(last, UNSET)
