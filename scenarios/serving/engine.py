"""The event loop of serving engines: requests arrive, are routed to a replica, and run step by step.

::

    synchronous      schedule 1 ─► [ step 1 ] ─► ended 1, schedule 2 ─► [ step 2 ] ─► ...
    ahead            schedule 1, 2 ─► [ step 1 ][ step 2 ]
                                               └► ended 1, schedule 3 ...

An engine takes all requests that have arrived before it schedules. Without requests, it sleeps until one
arrives; if it can schedule none of its unfinished requests, it tries again after a millisecond.

Source: vLLM 0.19.0, ``vllm/v1/engine/core.py`` (``step``, ``step_with_batch_queue``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import simpy

from policies.serving.batcher import Batcher, Request, Step
from policies.serving.routers import RequestRouter
from sim.base.errors import StuckError
from sim.base.units import NS_PER_S

PASS_NS: Final = 1_000_000
"""Time of a pass that schedules nothing although requests are unfinished."""


@dataclass(slots=True)
class EnginePass:
    """A pass of the scheduler of a replica: when its step ran, and what is kept of it (see `Step`).

    Attributes
    ----------
    replica : int
    scheduled_ns, start_ns, end_ns : int
    tokens, requests, decodes : int
        Sizes of the step; decodes are requests with one token.
    waiting, used, preempted : int
    why, head : str or None
    """

    replica: int
    scheduled_ns: int
    start_ns: int
    end_ns: int
    tokens: int
    requests: int
    decodes: int
    waiting: int
    used: int
    preempted: int
    why: str | None
    head: str | None

    @classmethod
    def of(cls, step: Step, replica: int, scheduled_ns: int, start_ns: int, end_ns: int) -> EnginePass:
        """Return the pass that ran a step."""
        counts = step.tokens.values()
        decodes = sum(count == 1 for count in counts)
        kept = (sum(counts), len(counts), decodes, step.waiting, step.used, len(step.preempted))
        head = None if step.head is None else step.head.id
        return cls(replica, scheduled_ns, start_ns, end_ns, *kept, step.why, head)


Observer = Callable[[EnginePass, Step], None]
"""Called for each pass: at its end, or at once if it scheduled nothing."""


class Arrivals:
    """Arrivals of requests: at their times, after the previous turn, or `closed`, to keep a number in flight.

    Parameters
    ----------
    requests : iterable of Request
        Requests in order of arrival.
    closed : int, optional
        Number of requests in flight: the next one arrives when fewer are unfinished.
    """

    def __init__(self, requests: Iterable[Request], closed: int | None = None) -> None:
        self._coming: deque[Request] = deque()
        self._turns: dict[Request, list[Request]] = {}
        for request in requests:
            if request.after is None:
                self._coming.append(request)
            else:
                self._turns.setdefault(request.after, []).append(request)
        self._closed = closed

    def __bool__(self) -> bool:
        """Whether any request is still to come."""
        return bool(self._coming or self._turns)

    def ended(self, request: Request, now_ns: int) -> list[Request]:
        """Return the requests that follow one that has ended, with their arrival times set."""
        turns = self._turns.pop(request, [])
        for turn in turns:
            turn.arrival_ns = now_ns + turn.delay_ns
        return turns

    def next_ns(self) -> int | None:
        """Return the next arrival time, or None if it depends on another request or none is left."""
        return None if self._closed is not None or not self._coming else self._coming[0].arrival_ns

    def take(self, now_ns: int, unfinished: int) -> Generator[Request, None, None]:
        """Yield the requests that have arrived by now, given the number of unfinished ones."""
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


StepTime = Callable[[Step], int]
"""``step_ns(step)`` returns the duration of a step."""
PullEnd = Callable[[int, Request, int], int]
"""``pull(now_ns, request, tokens)`` returns when the keys and values of the request's prompt have arrived."""


@dataclass
class Pull:
    """Transfer of keys and values over a link that each replica has to itself, one prompt after another."""

    latency_ns: int
    token_bytes: int
    bytes_per_s: int | None = None
    free_ns: dict[int, int] = field(default_factory=dict)

    def __call__(self, now_ns: int, request: Request, tokens: int) -> int:
        """Return when the keys and values of `tokens` tokens have arrived."""
        ns = self.latency_ns
        if self.bytes_per_s is not None:
            ns += -(-tokens * self.token_bytes * NS_PER_S // self.bytes_per_s)
        self.free_ns[request.replica] = max(now_ns, self.free_ns.get(request.replica, 0)) + ns
        return self.free_ns[request.replica]


@dataclass
class Serve:
    """Engines with a router before them, and the durations of their steps.

    Attributes
    ----------
    step_ns : callable
    router : RequestRouter, optional
        Default: all requests go to the first replica.
    pull : callable, optional
        Given if other replicas compute the prompts.
    host_ns : int
        Time from scheduling a step to its earliest start.
    observers : sequence of callable
    """

    step_ns: StepTime
    router: RequestRouter | None = None
    pull: PullEnd | None = None
    host_ns: int = 0
    observers: Sequence[Observer] = ()

    def run(
        self, batchers: Sequence[Batcher], arrivals: Arrivals, prefill: Sequence[Batcher] = ()
    ) -> list[EnginePass]:
        """Serve requests until all are finished; return the passes in order.

        Parameters
        ----------
        batchers : sequence of Batcher
            One per replica, ready to begin.
        arrivals : Arrivals
        prefill : sequence of Batcher
            Replicas that compute prompts for the others; they are numbered after them.

        Raises
        ------
        StuckError
            Requests are unfinished, and nothing can ever run again.
        """
        self.env, self.arrivals, self.first_prefill = simpy.Environment(0), arrivals, len(batchers)
        self.batchers = [*batchers, *prefill]
        self.loads = [0] * len(batchers)
        self.prompts = [0] * len(prefill)  # unfinished prompts of each
        self.twins: dict[Request, Request] = {}  # request that computes a prompt → the request it is for
        self.twin_of: dict[Request, Request] = {}
        self.inbox: list[list[Request]] = [[] for _ in self.batchers]
        self.idle: list[simpy.Event | None] = [None] * len(self.batchers)
        self.free_ns = [0] * len(self.batchers)  # when the last step of each ends
        self.passes: list[EnginePass] = []
        self.env.process(self.arriving())
        for replica in range(len(self.batchers)):
            self.env.process(self.serving(replica))
        self.env.run()
        return self.passes

    def arriving(self) -> Generator[simpy.Event, Any, None]:
        """Route requests at their arrival times."""
        self.route()
        while (next_ns := self.arrivals.next_ns()) is not None:
            yield self.env.timeout(next_ns - self.env.now)
            self.route()

    def route(self) -> None:
        """Send each arrived request to a replica, and wake that replica if it sleeps."""
        for request in self.arrivals.take(int(self.env.now), sum(self.loads)):
            self.send(request)

    def coming(self, request: Request) -> Generator[simpy.Event, Any, None]:
        """Send a request at its arrival time."""
        yield self.env.timeout(request.arrival_ns - self.env.now)
        self.send(request)

    def send(self, request: Request) -> None:
        """Send a request to a replica, or its prompt to a replica that computes prompts."""
        request.replica = 0 if self.router is None else self.router.route(request, self.loads)
        self.loads[request.replica] += 1
        if not self.prompts:
            self.hand(request, request.replica)
            return
        place = min(range(len(self.prompts)), key=self.prompts.__getitem__)
        self.prompts[place] += 1
        twin = request.prompt_alone(self.first_prefill + place)
        self.twins[twin], self.twin_of[request] = request, twin
        self.hand(twin, twin.replica)

    def hand(self, request: Request, replica: int) -> None:
        """Put a request into the inbox of a replica, and wake the replica if it sleeps."""
        self.inbox[replica].append(request)
        if (idle := self.idle[replica]) is not None:
            self.idle[replica] = None
            idle.succeed()

    def serving(self, replica: int) -> Generator[simpy.Event, Any, None]:
        """Schedule and run steps of one replica."""
        env, batcher = self.env, self.batchers[replica]
        running: deque[tuple[EnginePass, Step]] = deque()
        on_the_way: dict[Request, int] = {}
        while True:
            self.route()
            for request in self.inbox[replica]:
                batcher.arrive(request)
            self.inbox[replica].clear()
            now, step, latest = int(env.now), None, None
            if batcher.unfinished():
                step = batcher.schedule(now)
                self.begin_pulls(step, on_the_way)
                start = end = now
                if step.tokens:
                    start = max(now + self.host_ns, self.free_ns[replica])
                    self.free_ns[replica] = end = start + self.step_ns(step)
                latest = EnginePass.of(step, replica, now, start, end)
                self.passes.append(latest)
                if step.tokens:
                    running.append((latest, step))
                    if len(running) <= batcher.ahead and running[0][0].end_ns > now:
                        continue
            elif not running:
                self.idle[replica] = asleep = env.event()
                yield asleep
                continue
            nothing_runs = not running
            if running:
                over, its = running.popleft()
                yield env.timeout(over.end_ns - now)
                self.end(replica, its)
                self.tell(over, its)
            if step is not None and latest is not None and not step.tokens:
                self.tell(latest, step)
                if nothing_runs and not (on_the_way or step.preempted or self.may_come(replica)):
                    raise StuckError(_why_stuck(replica, batcher, step))
            for request in [each for each, end_ns in on_the_way.items() if end_ns <= env.now]:
                request.pulled_ns = on_the_way.pop(request)
            if step is not None and not step.tokens and batcher.unfinished():
                yield env.timeout(PASS_NS)

    def tell(self, over: EnginePass, step: Step) -> None:
        """Call the observers for a pass."""
        for observe in self.observers:
            observe(over, step)

    def may_come(self, replica: int) -> bool:
        """Return whether a replica may get another request, or may get back the blocks of a prompt."""
        if self.arrivals.next_ns() is not None or self.inbox[replica] or self.twins:
            return True
        return bool(self.arrivals) and max(self.free_ns) >= self.env.now  # when another replica is done

    def begin_pulls(self, step: Step, on_the_way: dict[Request, int]) -> None:
        """Start the transfer of keys and values of prompts; their blocks become free when it ends."""
        for request, tokens in step.pulls.items():
            assert self.pull is not None
            on_the_way[request] = self.pull(int(self.env.now), request, tokens)
            if (twin := self.twin_of.pop(request, None)) is not None:
                self.env.process(self.let_go(twin, on_the_way[request]))

    def let_go(self, twin: Request, until_ns: int) -> Generator[simpy.Event, Any, None]:
        """Free the blocks in which a prompt was computed."""
        yield self.env.timeout(until_ns - self.env.now)
        del self.twins[twin]
        self.batchers[twin.replica].free(twin)

    def end(self, replica: int, step: Step) -> None:
        """Record the tokens of requests; hand on requests whose prompts are computed."""
        self.batchers[replica].ended(step)
        now = int(self.env.now)
        if replica < self.first_prefill:
            for request, count in step.out.items():
                request.token_ns.extend([now] * count)
            self.loads[replica] -= len(step.finished)
            for request in step.finished:
                for turn in self.arrivals.ended(request, now):
                    self.env.process(self.coming(turn))
            return
        for twin in step.finished:
            self.prompts[replica - self.first_prefill] -= 1
            self.twins[twin].remote = True
            self.hand(self.twins[twin], self.twins[twin].replica)


def _why_stuck(replica: int, batcher: Batcher, step: Step) -> str:
    cache, head = batcher.cache, step.head
    stuck = (
        f"replica {replica} is stuck: {batcher.unfinished():,} requests are unfinished, none runs, and the "
    )
    if head is not None and step.why == "budget":
        return f"{stuck}first, {head.id}, has {head.left:,} tokens to compute at once: a step may have fewer"
    if head is not None and not cache.used:
        return stuck + (
            f"first, {head.id}, will never fit: it was preempted, counts its outputs from 0 again, and "
            f"has {head.known:,} tokens by now, for which {cache.usable:,} blocks are too few"
        )
    return stuck + (
        f"next in rank does not fit: {cache.used:,} of {cache.usable:,} blocks are held by requests whose "
        "prompts were pulled, and which come after it"
    )
