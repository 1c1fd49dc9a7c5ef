"""Why a request was late: its time divided into parts that add up to the nanosecond.

::

    arrival                first step                                                     last token
      │ queue: next step │ blocks, budget, seats │ prefill │ decode │ shared │ preempted │ recompute │

    next step    until the engine looked at it, because a step was under way
    blocks       the first waiting request did not fit into the cache; budget, seats: or into the step
    prefill      steps with a part of its prompt; lost: the part of them that a prefix would have saved if its
                 blocks had not been taken
    decode       steps that sampled one token; shared: together with prompts of others
    budget       between two of its steps it was running, but others took the whole step (`turn`)
    preempted    it had lost its blocks; recompute: steps that compute lost tokens again
    pull         keys and values of its prompt were being transferred
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from policies.serving.batcher import Request, Step
from scenarios.serving.engine import EnginePass
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
    """The time of a request to its first and to its last token, in ns by part."""

    at_ns: int
    state: str = "new"
    first_ns: dict[str, int] = field(default_factory=dict)
    all_ns: dict[str, int] = field(default_factory=dict)
    again: int = 0  # tokens still to be recomputed

    def add(self, part: str, ns: int) -> None:
        """Add time to a part."""
        if ns > 0:
            self.all_ns[part] = self.all_ns.get(part, 0) + ns


@dataclass
class _Engine:
    """A replica so far; requests that decode in every step are settled at their end, others at each step."""

    passes: list[EnginePass] = field(default_factory=list)
    queued_ns: list[tuple[int, ...]] = field(default_factory=list)  # queue time by `QUEUE`, up to each pass
    end_ns: int = 0
    decode_ns: int = 0  # of all steps without prompts; shared_ns: with prompts
    shared_ns: int = 0
    steady: dict[Request, tuple[int, int]] = field(default_factory=dict)
    others: dict[Request, None] = field(default_factory=dict)

    def add(self, over: EnginePass) -> None:
        """Record the next pass."""
        self.queued_ns.append(self.queued(over.scheduled_ns))
        self.passes.append(over)

    def queued(self, until_ns: int) -> tuple[int, ...]:
        """Return the queue time up to a moment, by its causes."""
        i = bisect_right(self.passes, until_ns, key=lambda each: each.scheduled_ns) - 1
        begun = self.passes[i].scheduled_ns if i >= 0 else 0
        why = QUEUE.index((self.passes[i].why or QUEUE[0]) if i >= 0 else QUEUE[0])
        known = self.queued_ns[i] if i >= 0 else (0,) * len(QUEUE)
        return (*known[:why], known[why] + until_ns - begun, *known[why + 1 :])


class LatenessObserver:
    """Divides the time of requests into parts, pass by pass (`scenarios.serving.engine.Observer`).

    The parts of a request add up to the time from its arrival to its last token.

    Attributes
    ----------
    of : dict of str to Lateness
        Times by the id of the request.
    """

    def __init__(self) -> None:
        self.of: dict[str, Lateness] = {}
        self._engines: dict[int, _Engine] = {}

    def __call__(self, over: EnginePass, step: Step) -> None:
        """Record a pass that has ended."""
        engine = self._engines.setdefault(over.replica, _Engine())
        engine.add(over)
        for request in step.preempted:
            self._settle(engine, request, "preempted")
            self.of[request.id].again = request.known
        for request in step.pulls:
            late = self._late(request)
            self._wait(late, over.scheduled_ns, engine)
            late.state = "pull"
            engine.others[request] = None
        engine.others |= dict.fromkeys(step.hits)
        if step.tokens:
            self._take(engine, over, step)
        for request in step.finished:
            self._settle(engine, request, "turn")
            del engine.others[request]

    def _take(self, engine: _Engine, over: EnginePass, step: Step) -> None:
        """Record a step."""
        here = [request for request in engine.others if request in step.tokens]
        if over.requests - len(here) < len(engine.steady):
            for request in [request for request in engine.steady if request not in step.tokens]:
                self._settle(engine, request, "turn")
        prompts = sum(step.tokens[request] > 1 for request in here)
        if prompts:
            engine.shared_ns += over.end_ns - over.start_ns
        else:
            engine.decode_ns += over.end_ns - over.start_ns
        engine.end_ns = over.end_ns
        for request in here:
            late, count = self._late(request), step.tokens[request]
            if late.state == "new":
                self._wait(late, over.start_ns, engine)
            late.add(late.state, over.start_ns - late.at_ns)
            self._spend(late, request, count, over, step, others=prompts > (count > 1))
            late.at_ns, late.state = over.end_ns, "turn"
            if request in step.out:
                late.first_ns = late.first_ns or ({} if request.kept else dict(late.all_ns))
                if late.again <= 0:
                    del engine.others[request]
                    engine.steady[request] = engine.decode_ns, engine.shared_ns

    def _spend(
        self, late: Lateness, request: Request, count: int, over: EnginePass, step: Step, *, others: bool
    ) -> None:
        """Add the time of a step to the part that it served for a request."""
        ns = over.end_ns - max(over.start_ns, late.at_ns)
        if late.again > 0:
            late.add("recompute", ns)
            late.again -= count
        elif count > 1 or request not in step.out:
            missing = max(1, request.prompt - (request.hits or 0))
            lost = round_half_up(ns * min(1.0, request.lost / missing)) if request.lost else 0
            late.add("lost", lost)
            late.add("prefill", ns - lost)
        else:
            late.add("shared" if others else "decode", ns)

    def _settle(self, engine: _Engine, request: Request, state: str) -> None:
        """Add the steps of a request that decoded in all of them so far, and set its new state."""
        late = self._late(request)
        if (begun := engine.steady.pop(request, None)) is not None:
            decode, shared = engine.decode_ns - begun[0], engine.shared_ns - begun[1]
            late.add("decode", decode)
            late.add("shared", shared)
            late.add("turn", engine.end_ns - late.at_ns - decode - shared)
            late.at_ns = engine.end_ns
        late.state = state
        engine.others[request] = None

    def _late(self, request: Request) -> Lateness:
        """Return the times of a request; one that computes its prompt has the same id."""
        if request.id not in self.of:
            self.of[request.id] = Lateness(request.arrival_ns)
        return self.of[request.id]

    def _wait(self, late: Lateness, until_ns: int, engine: _Engine) -> None:
        """Divide the time in the queue by its causes."""
        if until_ns > late.at_ns:
            for part, *ns in zip(QUEUE, engine.queued(late.at_ns), engine.queued(until_ns), strict=True):
                late.add(part, ns[1] - ns[0])
            late.at_ns = until_ns

    def behind(self, request: Request) -> Mapping[str, int]:
        """Return the requests at the head of the queue while a request waited, and how long each was."""
        until = request.arrival_ns if request.scheduled_ns is None else request.scheduled_ns
        passes, found = self._engines[request.replica].passes, dict[str, int]()
        for each, after in pairwise([*passes, None]):
            assert each is not None
            start = max(each.scheduled_ns, request.arrival_ns)
            ns = (until if after is None else min(after.scheduled_ns, until)) - start
            if ns > 0 and each.head is not None and each.head != request.id:
                found[each.head] = found.get(each.head, 0) + ns
        return found
