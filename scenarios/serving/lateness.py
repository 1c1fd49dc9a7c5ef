"""Why a request was late: its time divided, to the nanosecond.

::

    arrival                first step                                                     last token
      │ queue: next step │ blocks, budget, seats │ prefill │ decode │ shared │ preempted │ recompute │

    next step    until the engine looked at it, a step being under way
    blocks       the first of those that waited did not fit into the cache; budget, seats: nor into the step
    prefill      steps with a part of its prompt; lost: the part of them that a prefix would have saved whose
                 blocks had been taken
    decode       steps that sampled one token; shared: with others' prompts in them
    budget       between two of its steps it ran, and others took the whole step (`turn`)
    preempted    it had lost its blocks; recompute: steps that compute again what it had known
    pull         keys and values of its prompt were on the way
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from policies.serving.batcher import Request
from scenarios.serving.engine import Pass
from sim.base.units import round_half_up

QUEUE: Final = ("next step", "blocks", "budget", "seats")
PARTS: Final = (
    *QUEUE,
    "pull",
    "prefill",
    "lost",
    "decode",
    "shared",
    "turn",
    "preempted",
    "recompute",
)


@dataclass
class Lateness:
    """Where the time of a request went: to its first token, and to its last, in ns by part."""

    first_ns: dict[str, int] = field(default_factory=dict)
    all_ns: dict[str, int] = field(default_factory=dict)


class _Queues:
    """What kept waiting requests of a replica, over time."""

    def __init__(self, passes: Sequence[Pass]) -> None:
        self.at = [each.scheduled_ns for each in passes]
        self.passes = passes

    def between(self, start_ns: int, end_ns: int) -> Iterable[tuple[Pass | None, int]]:
        """Yield the passes that held in a time, and how long; None: before the first."""
        i = bisect_right(self.at, start_ns) - 1
        while start_ns < end_ns:
            until = self.at[i + 1] if i + 1 < len(self.at) else end_ns
            until = min(max(until, start_ns), end_ns)
            if until > start_ns:
                yield (self.passes[i] if i >= 0 else None), until - start_ns
            start_ns, i = until, i + 1


def lateness_of(passes: Sequence[Pass], requests: Sequence[Request]) -> dict[str, Lateness]:
    """Return where the time of each finished request went, by its id.

    The parts of a request add up to the time from its arrival to its last token.
    """
    by_replica: dict[int, list[Pass]] = {}
    for each in passes:
        by_replica.setdefault(each.replica, []).append(each)
    queues = {replica: _Queues(of) for replica, of in by_replica.items()}
    known = {request.id: request for request in requests}
    found = {request.id: Lateness() for request in requests}
    at = {request.id: request.arrival_ns for request in requests}
    state = dict.fromkeys(at, "new")
    again: dict[str, int] = {}  # tokens that are computed once more
    sampled = dict.fromkeys(at, 0)
    for each in sorted(passes, key=lambda each: (each.start_ns, each.replica, each.end_ns)):
        step = each.step
        prompts = [request for request, count in step.tokens.items() if count > 1]
        for request in step.pulls:
            _wait(found[request.id], at, request.id, each.scheduled_ns, queues[each.replica])
            state[request.id] = "pull"
        for request, count in step.tokens.items():
            name, late = request.id, found[request.id]
            if state[name] == "new":
                _wait(late, at, name, each.start_ns, queues[each.replica])
            else:
                _add(late, state[name], each.start_ns - at[name])
            ns = each.end_ns - max(each.start_ns, at[name])
            if again.get(name, 0) > 0:
                _add(late, "recompute", ns)
                again[name] -= count
            elif count > 1 or request not in step.out:
                lost = 0
                if known[name].lost:
                    share = min(1.0, known[name].lost / max(1, known[name].prompt - (known[name].hits or 0)))
                    lost = round_half_up(ns * share)
                _add(late, "lost", lost)
                _add(late, "prefill", ns - lost)
            else:
                others = len(prompts) - (request in prompts)
                _add(late, "shared" if others else "decode", ns)
            at[name], state[name] = each.end_ns, "turn"
            times = known[name].token_ns
            if len(times) and not late.first_ns and at[name] >= times[0]:
                late.first_ns = dict(late.all_ns)
        for request in step.preempted:
            state[request.id] = "preempted"
            again[request.id] = request.prompt + sampled[request.id]
        for request, count in step.out.items():
            sampled[request.id] += count
    return found


def _wait(late: Lateness, at: dict[str, int], name: str, until_ns: int, queue: _Queues) -> None:
    """Divide the time in a queue by what kept it."""
    for each, ns in queue.between(at[name], until_ns):
        why = None if each is None else each.step.why
        _add(late, why or "next step", ns)
    at[name] = max(at[name], until_ns)


def _add(late: Lateness, part: str, ns: int) -> None:
    if ns > 0:
        late.all_ns[part] = late.all_ns.get(part, 0) + ns


def behind(request: Request, passes: Sequence[Pass]) -> Mapping[str, int]:
    """Return the requests that were first in the queue while a request waited, and for how long, in ns."""
    of = [each for each in passes if each.replica == request.replica]
    until = request.scheduled_ns if request.scheduled_ns is not None else request.arrival_ns
    found: dict[str, int] = {}
    for each, ns in _Queues(of).between(request.arrival_ns, until):
        if each is not None and each.step.head is not None and each.step.head is not request:
            found[each.step.head.id] = found.get(each.step.head.id, 0) + ns
    return found
