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
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from scenarios.importers.traces.trace_events.kineto_rows import HostCall, Thread

__all__ = ["NODE", "SEQUENCE", "Callers", "Numbered", "callers", "is_gradient"]

SEQUENCE: Final = "Sequence number"
_GRADIENT: Final = "autograd::engine::evaluate_function"
_FORWARD_THREAD: Final = "Fwd thread id"
"""0, unless the operator is a gradient. Older traces have no `_GRADIENT` around it."""


NODE: Final = re.compile(r"torch::autograd::|\w+Backward\d*$")
"""Operators that are gradients by their names."""


class Callers(NamedTuple):
    """Who waits for threads that only run gradients.

    Attributes
    ----------
    waits : dict
        Thread that runs gradients → the thread that waits for it meanwhile.
    unknown : list
        Threads that run gradients of another one, which is not known to wait for them alone.
    """

    waits: dict[Thread, Thread]
    unknown: list[Thread]


class Numbered(NamedTuple):
    """An operator with a sequence number: one of forward, or its gradient."""

    start_ns: int
    thread: Thread
    number: int
    is_gradient: bool


def is_gradient(name: str, args: Mapping[str, Any]) -> bool:
    """Whether an operator with a sequence number is a gradient."""
    return name.startswith(_GRADIENT) or bool(args.get(_FORWARD_THREAD))


def callers(
    numbered: Sequence[Numbered], nodes: Mapping[Thread, Sequence[tuple[int, int]]], calls: Iterable[HostCall]
) -> Callers:
    """Return who waits for the threads that only run gradients.

    A process with several such threads, one a GPU, runs them at once; then nobody waits for one alone.

    Parameters
    ----------
    numbered : sequence of Numbered
    nodes : mapping
        Begin and end of operators that are gradients by their names, of each thread.
    calls : iterable of HostCall
    """
    waits_for = _by_number(numbered) if numbered else _by_name(nodes, calls)
    found = Callers({}, [])
    for whose, threads in waits_for.items():
        if whose is not None and len(threads) == 1:
            found.waits[threads[0]] = whose
        else:
            found.unknown.extend(threads)
    return found


def _by_number(numbered: Iterable[Numbered]) -> dict[Thread | None, list[Thread]]:
    """Return thread of forward operators → threads that run their gradients."""
    forward: dict[tuple[int, int], Thread] = {}
    gradients: dict[Thread, Counter[Thread]] = defaultdict(Counter)
    for each in sorted(numbered, key=lambda each: each.start_ns):
        process, _ = each.thread
        whose = forward.setdefault((process, each.number), each.thread)
        if each.is_gradient:
            gradients[each.thread][whose] += 1
    waits_for: dict[Thread | None, list[Thread]] = defaultdict(list)
    for thread, owners in gradients.items():
        (whose, _), *_ = owners.most_common(1)
        if whose != thread:
            waits_for[whose].append(thread)
    return waits_for


def _by_name(
    nodes: Mapping[Thread, Sequence[tuple[int, int]]], calls: Iterable[HostCall]
) -> dict[Thread | None, list[Thread]]:
    """Return the same by names: the only other thread, if it is quiet while gradients run, else None."""
    of_thread: dict[Thread, list[int]] = defaultdict(list)
    for call in calls:
        of_thread[call.thread].append(call.start_ns)
    waits_for: dict[Thread | None, list[Thread]] = defaultdict(list)
    for thread in (thread for thread in nodes if thread in of_thread):
        others = [other for other in of_thread if other not in nodes and other[0] == thread[0]]
        quiet = [other for other in others if not _any_inside(of_thread[other], nodes[thread])]
        waits_for[quiet[0] if len(others) == len(quiet) == 1 else None].append(thread)
    return waits_for


def _any_inside(instants: Sequence[int], spans: Sequence[tuple[int, int]]) -> bool:
    """Whether an instant is inside one of several spans, which do not overlap but for nested ones."""
    starts, ends = np.array(sorted(spans), np.int64).T
    last = np.searchsorted(starts, np.array(instants), side="left") - 1  # the last that began before
    return bool((np.maximum.accumulate(ends)[last] > instants)[last >= 0].any())
