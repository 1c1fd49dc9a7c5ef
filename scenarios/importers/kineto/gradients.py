"""Find the threads that only run gradients, and the threads for which they run them.

::

    main thread   forward 1  forward 2  [ backward: waits             ]  step
    autograd's                            gradient of 2  gradient of 1

Autograd runs the backward on a thread of its own, while the one that called ``backward`` waits. An operator
and its gradient share a ``Sequence number``, which shows whose backward a thread runs. Recordings of
2020 lack these numbers: there it is the only other thread that calls the GPU, if it is quiet meanwhile.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from scenarios.importers.kineto.kineto_rows import Calls, Thread
from sim.base.arrays import UNSET, BoolArray, Codes, IntArray, by_first_use, group_pairs

# ----------------------------------------------------------------------------------------------------------
# Which operator launched a task: the innermost one around the launch call.
#
#     thread    [aten::linear                          ]
#                  [aten::t ]   [aten::addmm          ]
#                                  [cudaLaunchKernel]             its kernel is aten::addmm's
#
# Profilers also number operators, and note the number with a task (``External id``). In recordings up to 2023
# that is the number of the launch instead, which may coincide with that of any operator; in newer ones it
# agrees with the times. So it counts only if the call is not in the trace.

UNNUMBERED: Final = -1
"""The number of an operator without one."""

Spans = dict[int, list[tuple[int, int]]]
"""Begins and ends, by thread."""


class Operators:
    """The operators of a trace, as columns: there may be a million.

    Attributes
    ----------
    words : Codes of str
        Their names.
    """

    def __init__(self) -> None:
        self.words: Codes[str] = Codes()
        self._pieces = [np.zeros((5, 0), np.int64)]

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
        """Return begins and ends of the operators whose names fit."""
        fits: BoolArray = np.array([bool(fits_name(word)) for word in self.words], bool)
        thread, start_ns, end_ns, word, _ = self.columns()
        selected = fits[word]
        spans = zip(start_ns[selected].tolist(), end_ns[selected].tolist(), strict=True)
        return group_pairs(zip(thread[selected].tolist(), spans, strict=True))

    def around(self, calls: Calls, rows: IntArray, minimum: int = UNNUMBERED) -> dict[int, tuple[str, int]]:
        """Return name and number, `minimum` or more, of the operators around calls, by correlation."""
        thread, start_ns, end_ns, word, number = self.columns()
        names = [*self.words]
        result: dict[int, tuple[str, int]] = {}
        for code in sorted({*calls.thread[rows].tolist()}):
            candidates = np.flatnonzero((thread == code) & (number >= minimum))
            chosen = rows[calls.thread[rows] == code]
            order = candidates[np.lexsort((-end_ns[candidates], start_ns[candidates]))]
            last = np.searchsorted(start_ns[order], calls.start_ns[chosen], side="right") - 1
            # A call that begins where an operator ends is outside.
            inside_ns = np.minimum(calls.start_ns[chosen] + 1, calls.end_ns[chosen])
            last = _last_reaching(end_ns[order], last, inside_ns)
            hits, chosen = order[last[last != UNSET]], chosen[last != UNSET]
            pairs = zip(word[hits].tolist(), number[hits].tolist(), strict=True)
            named = ((names[w], n) for w, n in pairs)
            result.update(zip(calls.correlation[chosen].tolist(), named, strict=True))
        return result

    def nest_names(self) -> Operators:
        """Return them named by their enclosing ones, the outermost first: ``ViT_0/Layer_3/Linear_5``."""
        thread, start_ns, end_ns, word, number = self.columns()
        order = np.lexsort((-end_ns, start_ns, thread))
        names, paths = [*self.words], []
        enclosing: list[tuple[int, int, str]] = []
        for code, start, end, name_code in zip(
            *(column[order].tolist() for column in (thread, start_ns, end_ns, word)), strict=True
        ):
            while enclosing and (enclosing[-1][0] != code or enclosing[-1][1] <= start):
                enclosing.pop()
            paths.append(f"{enclosing[-1][2]}/{names[name_code]}" if enclosing else names[name_code])
            enclosing.append((code, end, paths[-1]))
        nested = Operators()
        nested.add(thread[order], start_ns[order], end_ns[order], paths, number[order])
        return nested

    def names_by_number(self) -> dict[int, str]:
        """Return the names of all operators that have a number."""
        _, _, _, word, number = self.columns()
        names, numbered = [*self.words], number != UNNUMBERED
        return {n: names[w] for n, w in zip(number[numbered].tolist(), word[numbered].tolist(), strict=True)}


def _last_reaching(ends: IntArray, last: IntArray, minimum: IntArray) -> IntArray:
    """Return, for each query, the last entry at or before `last` that is at least `minimum`; `UNSET`: none.

    Examples
    --------
    >>> _last_reaching(np.array([9, 3, 5]), np.array([2, 2, 1, -1]), np.array([5, 6, 10, 0])).tolist()
    [2, 0, -1, -1]
    """
    largest = [ends]  # maximum of an entry and the 1, 3, 7, ... before it
    while (width := 1 << len(largest) - 1) < len(ends):
        wider = largest[-1].copy()
        np.maximum(wider[width:], largest[-1][:-width], out=wider[width:])
        largest.append(wider)
    last = last.copy()
    for k in reversed(range(len(largest))):
        none = np.flatnonzero(last >= 0)
        none = none[largest[k][last[none]] < minimum[none]]
        last[none] -= 1 << k
    return np.maximum(last, UNSET)


# ----------------------------------------------------------------------------------------------------------

SEQUENCE: Final = "Sequence number"
_GRADIENT: Final = "autograd::engine::evaluate_function"
FORWARD_THREAD: Final = "Fwd thread id"
"""0, unless the operator is a gradient. Older traces have no `_GRADIENT` around it."""

NODE: Final = re.compile(r"torch::autograd::|\w+Backward\d*$")
"""Names of operators that are gradients."""


_MIN_TURNS: Final = 3
"""Minimum number of times that a thread continues right after another one, if they take turns."""

_RIGHT_AFTER: Final = 0.1
"""Share of the other thread's burst of calls that may pass before it continues."""


class Numbered(NamedTuple):
    """Operators with a sequence number, of forward or of its gradient, as columns."""

    thread: IntArray
    start_ns: IntArray
    number: IntArray
    is_gradient: IntArray


def is_gradient(name: str, forward_thread: object) -> bool:
    """Whether an operator with a sequence number is a gradient."""
    return bool(forward_thread) or name.startswith(_GRADIENT)


def callers(
    threads: Sequence[Thread], numbered: Numbered, nodes: Spans, calls: Calls
) -> tuple[dict[int, int], list[int]]:
    """Return who waits for each thread that only runs gradients, and the threads for which this is unknown.

    A process with several such threads, one per GPU, runs them at once; then nobody waits for one alone.

    Parameters
    ----------
    threads : sequence of Thread
        Threads by number.
    numbered : Numbered
    nodes : Spans
        Begin and end, by thread, of operators whose names are those of gradients.
    calls : Calls
    """
    waits_for = _by_number(threads, numbered) if len(numbered.number) else _by_name(threads, nodes, calls)
    known = {group[0]: owner for owner, group in waits_for.items() if owner is not None and len(group) == 1}
    return known, [thread for group in waits_for.values() for thread in group if thread not in known]


def _by_number(threads: Sequence[Thread], numbered: Numbered) -> dict[int | None, list[int]]:
    """Return thread of forward operators → threads that run their gradients."""
    order = np.argsort(numbered.start_ns, kind="stable")
    thread, _, number, gradient = (column[order] for column in numbered)
    process = Codes[int]().of(process for process, _ in threads)[thread]
    operator, _, first = by_first_use(by_first_use(number)[0] * len(threads) + process)
    forward_thread = thread[first][operator]  # the thread of the first operator with that number
    pair, pairs, _ = by_first_use((forward_thread * len(threads) + thread)[gradient == 1])
    owners: dict[int, tuple[int, int]] = {}  # thread of gradients → number for one thread, and that thread
    for (owner, runner), n in zip(
        (divmod(code, len(threads)) for code in pairs.tolist()), np.bincount(pair).tolist(), strict=True
    ):
        if n > owners.get(runner, (0, 0))[0]:
            owners[runner] = n, owner
    return group_pairs((owner, runner) for runner, (_, owner) in owners.items() if owner != runner)


def _by_name(threads: Sequence[Thread], nodes: Spans, calls: Calls) -> dict[int | None, list[int]]:
    """Return the same by names: the only other thread, if it is quiet while gradients run, else None."""
    of_thread = {code: calls.start_ns[calls.thread == code] for code in np.unique(calls.thread).tolist()}
    waits_for: dict[int | None, list[int]] = defaultdict(list)
    for thread in (thread for thread in nodes if thread in of_thread):
        process, _ = threads[thread]
        others = [other for other in of_thread if other not in nodes and threads[other][0] == process]
        quiet = [other for other in others if not _any_inside(of_thread[other], nodes[thread])]
        waits_for[quiet[0] if len(others) == len(quiet) == 1 else None].append(thread)
    return waits_for


def _any_inside(instants: IntArray, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether an instant is inside one of several spans, which may nest but not otherwise overlap."""
    starts, ends = np.array(sorted(spans), np.int64).T
    last = np.searchsorted(starts, instants, side="left") - 1  # the last span that began before
    return bool((np.maximum.accumulate(ends)[last] > instants)[last >= 0].any())


def turns(threads: Sequence[Thread], calls: Calls) -> dict[int, tuple[int, int]]:
    """Return threads that run while another of their process waits → that thread, and its number of waits.

    If the recording has no operators, this is inferred when only the two call the GPU, never at once, and
    each time the first continues right after the last call of the other's burst::

        main       [call][call]                      [call][call]
        another                 [call] [call] [call]              [call] [call]
    """
    of_process = group_pairs((threads[n][0], n) for n in by_first_use(calls.thread)[1].tolist())
    result = {}
    for first, *others in of_process.values():
        if len(others) != 1:
            continue
        merged = calls.only(np.isin(calls.thread, [first, *others]))
        if (merged.start_ns[1:] < merged.end_ns[:-1]).any():
            continue
        begins = np.flatnonzero(np.diff(merged.thread, prepend=-1))  # of bursts, in turn of one and the other
        returns = begins[2::2]
        burst_ns = merged.end_ns[returns - 1] - merged.start_ns[begins[1:-1:2]]
        lag_ns = merged.start_ns[returns] - merged.end_ns[returns - 1]
        if len(returns) >= _MIN_TURNS and (lag_ns <= _RIGHT_AFTER * burst_ns).all():
            result[others[0]] = first, len(returns)
    return result
