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

from array import array
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pandas as pd
import simpy

from policies.serving.batcher import QUEUE, Batcher, Request, Step, next_step
from policies.serving.routers import RequestRouter
from sim.base.arrays import group_pairs
from sim.base.errors import StuckError, list_names
from sim.base.options import whole_numbers
from sim.base.units import NS_PER_S

PASS_NS: Final = 1_000_000
"""Time of a pass that schedules nothing although requests are unfinished."""

_PASS_COLUMNS: Final = (
    "replica scheduled_ns start_ns end_ns tokens requests chunks waiting used preempted why head"
)

EngineEvent = tuple[Request, int, str]
"""A request, the index of a pass, and what the pass did with the request, other than a decode:
``preempted``, ``pull``, ``prefill`` or ``recompute``."""
StepTime = Callable[[Step], int]
"""``step_ns(step)`` returns the duration of a step."""
PullEnd = Callable[[int, Request, int], int]
"""``pull(now_ns, request, tokens)`` returns when the keys and values of the request's prompt have arrived."""
Process = Generator[simpy.Event, Any, None]


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
    """Engines with a router before them.

    Parameters
    ----------
    step_ns : callable
        Duration of a step.
    batchers : sequence of Batcher
        One per replica, ready to begin.
    prefill : sequence of Batcher
        Replicas that compute prompts for the others; they are numbered after them.
    router : RequestRouter, optional
        Ready to begin; by default all requests go to the first replica.
    pull : callable, optional
        Given if other replicas compute the prompts.
    host_ns : int
        Time from scheduling a step to its earliest start.

    Attributes
    ----------
    names : list of str
        Of the engines.
    passes : DataFrame
        A row for each pass of a scheduler, in order: ``replica``, ``scheduled_ns``, ``start_ns`` and
        ``end_ns`` of its step, with numbers of ``tokens``, ``requests`` and ``chunks`` of prompts; requests
        ``waiting``, blocks ``used``, requests ``preempted``; ``why``, an index of `QUEUE`; and ``head``, the
        index of the first waiting request, or -1.
    events : list of EngineEvent
        In order.
    """

    step_ns: StepTime
    batchers: Sequence[Batcher]
    prefill: Sequence[Batcher] = ()
    router: RequestRouter | None = None
    pull: PullEnd | None = None
    host_ns: int = 0

    @property
    def now(self) -> int:
        """Time in ns."""
        return int(self.env.now)

    def run(self, requests: Sequence[Request], in_flight: int | None = None) -> None:
        """Serve requests until all are finished.

        Parameters
        ----------
        requests : sequence of Request
            In order of arrival; a turn arrives after the previous one has ended.
        in_flight : int, optional
            Number of requests under way: the next one arrives when fewer are unfinished.

        Raises
        ------
        StuckError
            Requests are unfinished, and nothing can ever run again.
        """
        self.env, self.in_flight = simpy.Environment(0), in_flight
        self.rows, self.count, self.events = array("q"), 0, list[EngineEvent]()
        self.position = {request.id: i for i, request in enumerate(requests)}
        self.engines = [*self.batchers, *self.prefill]
        self.names = [f"replica{i}" for i in range(len(self.batchers))]
        self.names += [f"prefill{i}" for i in range(len(self.prefill))]
        self.turns = group_pairs((turn.after, turn) for turn in requests if turn.after is not None)
        self.loads = [0] * len(self.engines)
        self.twins: dict[Request, Request] = {}  # request → the one that computes its prompt elsewhere
        self.inbox: list[list[Request]] = [[] for _ in self.engines]
        self.idle: dict[int, simpy.Event] = {}  # replicas that sleep
        self.free_ns = [0] * len(self.engines)  # when the last step of each ends
        self.due = 0  # calls that are still to come
        self.coming = deque(request for request in requests if request.after is None)
        if in_flight is None:
            while self.coming:
                self.at(self.coming[0].arrival_ns, self.send, self.coming.popleft())
        self.refill()
        for replica in range(len(self.engines)):
            self.env.process(self.serving(replica))
        self.env.run()
        if unfinished := [request.id for request in requests if not request.finished]:
            raise StuckError(f"unfinished, but by no replica's batcher: {list_names(unfinished, 3)}")
        columns = _PASS_COLUMNS.split()
        self.passes = pd.DataFrame(np.reshape(self.rows, (-1, len(columns))), columns=columns)

    def at(self, ns: int, call: Callable[[Request], None], request: Request) -> None:
        """Call a function with a request at a time."""

        def then(event: simpy.Event) -> None:
            self.due -= 1
            call(request)

        self.due += 1
        simpy.Timeout(self.env, ns - self.now).callbacks.append(then)

    def refill(self) -> None:
        """Send requests that a place in flight is free for."""
        while self.coming and sum(self.loads[: len(self.batchers)]) < (self.in_flight or 0):
            request = self.coming.popleft()
            request.arrival_ns = self.now
            self.send(request)

    def send(self, request: Request) -> None:
        """Send a request to a replica, or its prompt to a replica that computes prompts."""
        if self.router is not None:
            choice, n = self.router.route(request, self.loads[: len(self.batchers)]), len(self.batchers)
            source = f"{type(self.router).__name__}.route"
            request.replica = int(whole_numbers([choice], source, below=n, of=[request.id])[0])
        self.loads[request.replica] += 1
        if self.prefill:
            replica = min(range(len(self.batchers), len(self.engines)), key=self.loads.__getitem__)
            self.loads[replica] += 1
            self.twins[request] = request = request.prompt_alone(replica)
        self.hand(request)

    def hand(self, request: Request) -> None:
        """Put a request into the inbox of its replica, and wake the replica if it sleeps."""
        self.inbox[request.replica].append(request)
        if request.replica in self.idle:
            self.idle.pop(request.replica).succeed()

    def serving(self, replica: int) -> Process:
        """Schedule and run steps of one replica."""
        env, batcher = self.env, self.engines[replica]
        running: deque[tuple[int, Step]] = deque()  # with their ends
        pulled: dict[Request, int] = {}  # when the prompts under way arrive
        while True:
            for request in self.inbox[replica]:
                batcher.arrive(request)
            self.inbox[replica].clear()
            if not (batcher.count_unfinished() or running):
                self.idle[replica] = env.event()
                yield self.idle[replica]
                continue
            stalled: Step | None = None
            if batcher.count_unfinished():
                step = next_step(batcher, self.now)
                end_ns = self.begin(replica, step, pulled)
                if not step.tokens:
                    stalled = step
                else:
                    running.append((end_ns, step))
                    if len(running) <= batcher.ahead and running[0][0] > self.now:
                        continue
            nothing_runs = not running
            if running:
                end_ns, step = running.popleft()
                yield env.timeout(end_ns - self.now)
                self.end(replica, step)
            if stalled and nothing_runs and not (pulled or stalled.preempted or self.may_come(replica)):
                raise StuckError(_why_stuck(replica, batcher, stalled))
            for request in [pulling for pulling, end_ns in pulled.items() if end_ns <= self.now]:
                request.pulled_ns = pulled.pop(request)
            if stalled and batcher.count_unfinished():
                yield env.timeout(PASS_NS)

    def may_come(self, replica: int) -> bool:
        """Return whether a replica may get another request, or may get back the blocks of a prompt."""
        if self.inbox[replica] or self.twins or self.due:
            return True
        return bool(self.coming or self.turns) and max(self.free_ns) >= self.now  # others still run

    def begin(self, replica: int, step: Step, pulled: dict[Request, int]) -> int:
        """Start a step and the pulls that it asks for; return its end."""
        now, number, batcher = self.now, self.count, self.engines[replica]
        start_ns = end_ns = now
        if step.tokens:
            start_ns = max(now + self.host_ns, self.free_ns[replica])
            self.free_ns[replica] = end_ns = start_ns + self.step_ns(step)
        # The step computes a part of the prompts of these, or of the tokens that a preemption has lost.
        contexts = zip(step.tokens, step.contexts, strict=True)
        chunks = [request for request, before in contexts if before < request.whole]
        self.events += [(request, number, "preempted") for request in step.preempted]
        self.events += [(request, number, "pull") for request in step.pulls]
        for request in chunks:
            self.events.append((request, number, "recompute" if request.preemptions else "prefill"))
        for request, tokens in step.pulls.items():
            assert self.pull is not None
            pulled[request] = self.pull(now, request, tokens)
            if request in self.twins:
                self.at(pulled[request], self.let_go, request)
        sizes = sum(step.tokens.values()), len(step.tokens), len(chunks)
        head = -1 if step.head is None else self.position[step.head.id]
        self.rows.extend((replica, now, start_ns, end_ns, *sizes, len(batcher.waiting), batcher.cache.used))
        self.rows.extend((len(step.preempted), QUEUE.index(step.why), head))
        self.count += 1
        return end_ns

    def let_go(self, request: Request) -> None:
        """Free the blocks in which a prompt was computed, when it has been pulled."""
        twin = self.twins.pop(request)
        self.engines[twin.replica].free(twin)

    def end(self, replica: int, step: Step) -> None:
        """Record the tokens of requests; hand on requests whose prompts are computed."""
        self.engines[replica].ended(step)
        now = self.now
        self.loads[replica] -= len(step.finished)
        for request, count in step.out.items():
            request.token_ns.extend([now] * count)
        for request in step.finished:
            if request.prompt_of is not None:
                request.prompt_of.remote = True
                self.hand(request.prompt_of)
            for turn in self.turns.pop(request, []):
                turn.arrival_ns = now + turn.delay_ns
                self.at(turn.arrival_ns, self.send, turn)
        self.refill()


def _why_stuck(replica: int, batcher: Batcher, step: Step) -> str:
    cache, head = batcher.cache, step.head
    n = batcher.count_unfinished()
    stuck = f"replica {replica} is stuck: of {n:,} unfinished requests none runs, and the "
    if head is None:
        return f"{stuck}batcher {type(batcher).__name__} does not say why (`why` and `head` of its step)"
    if step.why == "budget":
        return f"{stuck}first, {head.id}, has {head.left:,} tokens to compute at once: a step may have fewer"
    if not cache.used:
        return stuck + (
            f"first, {head.id}, will never fit: it was preempted, counts its outputs from 0 again, and "
            f"has {head.known:,} tokens by now, for which {cache.usable:,} blocks are too few"
        )
    return stuck + (
        f"next in rank does not fit: {cache.used:,} of {cache.usable:,} blocks are held by requests whose "
        "prompts were pulled, and which come after it"
    )
