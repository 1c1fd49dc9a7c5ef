"""Which threads only run gradients, and for whom.

::

    main thread   forward 1  forward 2  [ backward: waits             ]  step
    autograd's                            gradient of 2  gradient of 1

Autograd runs the backward on a thread of its own, while the one that called ``backward`` waits. An operator
and its gradient have one ``Sequence number``, which tells whose forward a thread runs backward.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from scenarios.importers.traces.trace_events.kineto_rows import Thread

__all__ = ["SEQUENCE", "Numbered", "callers", "is_gradient"]

SEQUENCE: Final = "Sequence number"
_GRADIENT: Final = "autograd::engine::evaluate_function"
_FORWARD_THREAD: Final = "Fwd thread id"
"""0, unless the operator is a gradient. Older traces have no `_GRADIENT` around it."""


class Numbered(NamedTuple):
    """An operator with a sequence number: one of forward, or its gradient."""

    start_ns: int
    thread: Thread
    number: int
    is_gradient: bool


def is_gradient(name: str, args: Mapping[str, Any]) -> bool:
    """Whether an operator with a sequence number is a gradient."""
    return name.startswith(_GRADIENT) or bool(args.get(_FORWARD_THREAD))


def callers(numbered: Iterable[Numbered]) -> dict[Thread, Thread]:
    """Return the threads that only run gradients, and for whom: the thread of the forward operators.

    A process with several such threads, one a GPU, runs them at once; then nobody waits for one alone.
    """
    forward: dict[tuple[int, int], Thread] = {}
    gradients: dict[Thread, Counter[Thread]] = defaultdict(Counter)
    for each in sorted(numbered, key=lambda each: each.start_ns):
        process, _ = each.thread
        whose = forward.setdefault((process, each.number), each.thread)
        if each.is_gradient:
            gradients[each.thread][whose] += 1
    waits_for: dict[Thread, list[Thread]] = defaultdict(list)
    for thread, owners in gradients.items():
        (whose, _), *_ = owners.most_common(1)
        if whose != thread:
            waits_for[whose].append(thread)
    return {threads[0]: whose for whose, threads in waits_for.items() if len(threads) == 1}
