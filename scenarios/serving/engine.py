"""The loop of serving engines: requests arrive, are routed to a replica, and run step by step.

::

    synchronous      schedule 1 ─► [ step 1 ] ─► ended 1, schedule 2 ─► [ step 2 ] ─► ...
    ahead            schedule 1, 2 ─► [ step 1 ][ step 2 ]
                                               └► ended 1, schedule 3 ...

An engine takes all requests that have arrived before it schedules. Idle, it sleeps until one comes; where it
can schedule nothing although some are unfinished it looks again after a millisecond.

Source: vLLM 0.19.0, ``vllm/v1/engine/core.py`` (``step``, ``step_with_batch_queue``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import simpy

from policies.serving.batcher import Batcher, Request, Step
from sim.base.errors import StuckError

PASS_NS: Final = 1_000_000
"""What a pass takes that scheduled nothing although requests are unfinished."""


class Router(Protocol):
    """Decides which replica serves a request."""

    def route(self, request: Request, loads: Sequence[int]) -> int:
        """Return a replica; `loads` counts the requests of each that have not finished."""
        ...


@dataclass(slots=True)
class Pass:
    """A pass of the scheduler: the step that it scheduled, on a replica, and when that ran."""

    replica: int
    scheduled_ns: int
    start_ns: int
    end_ns: int
    step: Step


class Arrivals:
    """When requests come: at their times, or (`closed`) when another has finished, so many at a time."""

    def __init__(self, requests: Iterable[Request], closed: int | None = None) -> None:
        self._coming = deque(requests)
        self._closed = closed

    def __bool__(self) -> bool:
        """Whether any is still to come."""
        return bool(self._coming)

    def next_ns(self) -> int | None:
        """Return when the next one comes; None: not before another has finished, or never."""
        return None if self._closed is not None or not self._coming else self._coming[0].arrival_ns

    def take(self, now_ns: int, unfinished: int) -> Generator[Request, None, None]:
        """Yield those that have come by now, while so many have not finished."""
        while self._coming:
            if self._closed is None:
                if self._coming[0].arrival_ns > now_ns:
                    return
            elif unfinished >= self._closed:
                return
            else:
                self._coming[0].arrival_ns = now_ns
            unfinished += 1
            yield self._coming.popleft()


def serve(
    batchers: Sequence[Batcher],
    arrivals: Arrivals,
    step_ns: Callable[[Step], int],
    *,
    router: Router | None = None,
    pull_ns: Callable[[Request, int], int] | None = None,
    host_ns: int = 0,
) -> list[Pass]:
    """Serve requests until all are finished; return what was scheduled, in order.

    Parameters
    ----------
    batchers : sequence of Batcher
        One a replica, ready to begin.
    arrivals : Arrivals
    step_ns : callable
        ``step_ns(step)`` returns what a step takes.
    router : Router, optional
        Default: all go to the first replica.
    pull_ns : callable, optional
        ``pull_ns(request, tokens)`` returns what pulling their keys and values takes.
    host_ns : int
        From scheduling a step to its earliest start.

    Raises
    ------
    StuckError
        Requests are unfinished, and nothing will ever run again.
    """
    env = simpy.Environment(initial_time=0)
    run = _Serving(env, batchers, arrivals, step_ns, router, pull_ns, host_ns)
    env.process(run.arriving())
    for replica in range(len(batchers)):
        env.process(run.serving(replica))
    env.run()
    return run.passes


class _Serving:
    """Replicas under way."""

    def __init__(
        self,
        env: simpy.Environment,
        batchers: Sequence[Batcher],
        arrivals: Arrivals,
        step_ns: Callable[[Step], int],
        router: Router | None,
        pull_ns: Callable[[Request, int], int] | None,
        host_ns: int,
    ) -> None:
        self.env, self.batchers, self.arrivals = env, batchers, arrivals
        self.step_ns, self.router, self.pull_ns, self.host_ns = step_ns, router, pull_ns, host_ns
        self.loads = [0] * len(batchers)
        self.inbox: list[list[Request]] = [[] for _ in batchers]
        self.idle: list[simpy.Event | None] = [None] * len(batchers)
        self.passes: list[Pass] = []

    def arriving(self) -> Generator[simpy.Event, Any, None]:
        """Route requests at the time that they come."""
        self.route()
        while (next_ns := self.arrivals.next_ns()) is not None:
            yield self.env.timeout(next_ns - self.env.now)
            self.route()

    def route(self) -> None:
        """Give each request that has come to a replica, and wake that if it sleeps."""
        for request in self.arrivals.take(int(self.env.now), sum(self.loads)):
            replica = 0 if self.router is None else self.router.route(request, self.loads)
            request.replica = replica
            self.loads[replica] += 1
            self.inbox[replica].append(request)
            if (idle := self.idle[replica]) is not None:
                self.idle[replica] = None
                idle.succeed()

    def serving(self, replica: int) -> Generator[simpy.Event, Any, None]:
        """Schedule and run steps of one replica."""
        env, batcher = self.env, self.batchers[replica]
        running: deque[Pass] = deque()
        on_the_way: dict[Request, int] = {}
        free_ns = 0
        while True:
            self.route()
            for request in self.inbox[replica]:
                batcher.arrive(request)
            self.inbox[replica].clear()
            now, step = int(env.now), None
            if batcher.unfinished():
                step = batcher.schedule(now)
                for request, tokens in step.pulls.items():
                    assert self.pull_ns is not None
                    on_the_way[request] = now + self.pull_ns(request, tokens)
                start = end = now
                if step.tokens:
                    start = max(now + self.host_ns, free_ns)
                    free_ns = end = start + self.step_ns(step)
                self.passes.append(Pass(replica, now, start, end, step))
                if step.tokens:
                    running.append(self.passes[-1])
                    if len(running) <= batcher.ahead and running[0].end_ns > now:
                        continue
            elif not running:
                self.idle[replica] = asleep = env.event()
                yield asleep
                continue
            if running:
                over = running.popleft()
                yield env.timeout(over.end_ns - now)
                self.end(replica, over.step)
            elif step is not None and not (
                on_the_way or self.arrivals or self.inbox[replica] or step.preempted
            ):
                raise StuckError(_why_stuck(replica, batcher))
            for request in [each for each, end_ns in on_the_way.items() if end_ns <= env.now]:
                request.pulled_ns = on_the_way.pop(request)
            if step is not None and not step.tokens and batcher.unfinished():
                yield env.timeout(PASS_NS)

    def end(self, replica: int, step: Step) -> None:
        """Let requests know their tokens."""
        self.batchers[replica].ended(step)
        now = int(self.env.now)
        for request, count in step.out.items():
            for _ in range(count):
                request.token_ns.append(now)
        self.loads[replica] -= len(step.finished)


def _why_stuck(replica: int, batcher: Batcher) -> str:
    cache = batcher.cache
    return (
        f"replica {replica} is stuck: {batcher.unfinished():,} requests are unfinished, none runs, and the "
        f"next in rank does not fit: {cache.used:,} of {cache.usable:,} blocks are held by requests whose "
        "prompts were pulled, and which come after it"
    )
