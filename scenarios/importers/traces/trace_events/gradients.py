"""Which threads only run gradients, and for whom.

::

    main thread   forward 1  forward 2  [ backward: waits             ]  step
    autograd's                            gradient of 2  gradient of 1

Autograd runs the backward on a thread of its own, while the one that called ``backward`` waits. An operator
and its gradient have one ``Sequence number``, which tells whose forward a thread runs backward. Recordings of
2020 have no such numbers: there it is the only other thread that calls the GPU, if it is quiet meanwhile.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from scenarios.importers.traces.trace_events.kineto_rows import Calls, Thread
from scenarios.importers.traces.trace_events.operators import Spans
from sim.words.arrays import Codes, IntArray, by_first_use

__all__ = ["FORWARD_THREAD", "NODE", "SEQUENCE", "Numbered", "callers", "is_gradient", "turns"]

SEQUENCE: Final = "Sequence number"
_GRADIENT: Final = "autograd::engine::evaluate_function"
FORWARD_THREAD: Final = "Fwd thread id"
"""0, unless the operator is a gradient. Older traces have no `_GRADIENT` around it."""

NODE: Final = re.compile(r"torch::autograd::|\w+Backward\d*$")
"""Operators that are gradients by their names."""


_TURNS: Final = 3
"""So often at least a thread goes on right after another one, where they take turns."""

_RIGHT_AFTER: Final = 0.1
"""Part of the other one's burst of calls that may pass before it goes on."""


class Numbered(NamedTuple):
    """Operators with a sequence number, of forward or of its gradient: a column each."""

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
    """Return who waits for the threads that only run gradients, and of which that is not known.

    A process with several such threads, one a GPU, runs them at once; then nobody waits for one alone.

    Parameters
    ----------
    threads : sequence of Thread
        What their numbers stand for.
    numbered : Numbered
    nodes : Spans
        Begin and end of operators that are gradients by their names, of each thread.
    calls : Calls
    """
    waits_for = _by_number(threads, numbered) if len(numbered.number) else _by_name(threads, nodes, calls)
    known = {own[0]: whose for whose, own in waits_for.items() if whose is not None and len(own) == 1}
    return known, [thread for own in waits_for.values() for thread in own if thread not in known]


def _by_number(threads: Sequence[Thread], numbered: Numbered) -> dict[int | None, list[int]]:
    """Return thread of forward operators → threads that run their gradients."""
    order = np.argsort(numbered.start_ns, kind="stable")
    thread, _, number, gradient = (column[order] for column in numbered)
    process = Codes[int]().of(process for process, _ in threads)[thread]
    operator, _, first = by_first_use(by_first_use(number)[0] * len(threads) + process)
    whose = thread[first][operator]  # an operator's thread is that of the first of its number
    pair, pairs, _ = by_first_use((whose * len(threads) + thread)[gradient == 1])
    owners: dict[int, tuple[int, int]] = {}  # thread of gradients → how many are of one thread, and which
    for (owner, own), n in zip(
        (divmod(each, len(threads)) for each in pairs.tolist()), np.bincount(pair).tolist(), strict=True
    ):
        if n > owners.get(own, (0, 0))[0]:
            owners[own] = n, owner
    waits_for: dict[int | None, list[int]] = defaultdict(list)
    for own, (_, owner) in owners.items():
        if owner != own:
            waits_for[owner].append(own)
    return waits_for


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
    """Whether an instant is inside one of several spans, which do not overlap but for nested ones."""
    starts, ends = np.array(sorted(spans), np.int64).T
    last = np.searchsorted(starts, instants, side="left") - 1  # the last that began before
    return bool((np.maximum.accumulate(ends)[last] > instants)[last >= 0].any())


def turns(threads: Sequence[Thread], calls: Calls) -> dict[int, tuple[int, int]]:
    """Return threads that run while another one of their process waits → that one, and how often it waited.

    So it looks, where the recording has no operators, if the two alone call the GPU, never at once, and each
    time the first goes on right after the last call of the other one's burst::

        main       [call][call]                      [call][call]
        another                 [call] [call] [call]              [call] [call]
    """
    of_process: dict[object, list[int]] = defaultdict(list)
    for thread in by_first_use(calls.thread)[1].tolist():
        of_process[threads[thread][0]].append(thread)
    found = {}
    for first, *others in of_process.values():
        if len(others) != 1:
            continue
        own = calls.only(np.isin(calls.thread, [first, *others]))
        if (own.start_ns[1:] < own.end_ns[:-1]).any():
            continue
        begins = np.flatnonzero(np.diff(own.thread, prepend=-1))  # of bursts, in turn of one and the other
        back = begins[2::2]
        burst_ns = own.end_ns[back - 1] - own.start_ns[begins[1:-1:2]]
        lag_ns = own.start_ns[back] - own.end_ns[back - 1]
        if len(back) >= _TURNS and (lag_ns <= _RIGHT_AFTER * burst_ns).all():
            found[others[0]] = first, len(back)
    return found
