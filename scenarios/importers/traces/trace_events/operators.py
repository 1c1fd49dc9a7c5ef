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

from array import array
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

import numpy as np

from scenarios.importers.traces.trace_events.kineto_rows import HostCall, Thread

__all__ = ["UNNUMBERED", "Operators"]

UNNUMBERED: Final = -1
"""The number of an operator that has none."""


class Operators:
    """The operators of a trace, in a few bytes each: there may be a million."""

    def __init__(self) -> None:
        self._rows: dict[Thread, array[int]] = defaultdict(lambda: array("q"))  # four numbers each
        self._words: dict[str, int] = {}

    def add(self, threads: Iterable[Thread], rows: Iterable[tuple[int, int, str, int]]) -> None:
        """Add operators in any order: threads; and begin, end, name, and number."""
        words = self._words
        for thread, (start_ns, end_ns, name, number) in zip(threads, rows, strict=True):
            word = words.setdefault(name, len(words))
            self._rows[thread].extend((start_ns, end_ns, word, number))

    def around(self, calls: Iterable[HostCall]) -> dict[int, tuple[str, int]]:
        """Return name and number of the operators around calls, by correlation; some calls have none."""
        of_thread: dict[Thread, list[HostCall]] = defaultdict(list)
        for call in calls:
            if call.thread in self._rows:
                of_thread[call.thread].append(call)
        names, found = [*self._words], {}
        for thread, own in of_thread.items():
            own.sort(key=lambda call: call.start_ns)
            for call, word, number in _innermost(self._rows[thread], own):
                found[call.correlation] = names[word], number
        return found

    def numbered(self) -> dict[int, str]:
        """Return the names of all operators that have a number."""
        names = [*self._words]
        rows = (row for own in self._rows.values() for row in zip(own[3::4], own[2::4], strict=True))
        return {number: names[word] for number, word in rows if number != UNNUMBERED}


def _innermost(rows: array[int], calls: Iterable[HostCall]) -> Iterable[tuple[HostCall, int, int]]:
    """Yield calls, in order, that are inside an operator, with word and number of the innermost."""
    table = np.frombuffer(rows, np.int64).reshape(-1, 4)
    order = np.lexsort((-table[:, 1], table[:, 0]))
    starts, ends, words, numbers = (table[order, column].tolist() for column in range(4))
    begun: list[tuple[int, int, int]] = []  # those that may not have ended, outermost first
    n, of = 0, len(starts)
    for call in calls:
        while n < of and starts[n] <= call.start_ns:
            while begun and begun[-1][0] <= starts[n]:
                begun.pop()
            begun.append((ends[n], words[n], numbers[n]))
            n += 1
        inside_ns = min(call.start_ns + 1, call.end_ns)  # one that begins where an operator ends is outside
        while begun and begun[-1][0] < inside_ns:
            begun.pop()
        if begun:
            yield call, *begun[-1][1:]
