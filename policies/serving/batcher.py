"""A batcher decides what the next step of a serving engine computes: it is told, asked, and never waits.

::

    arrive(request)                    a request is there
    schedule(now_ns) ──► Step          which requests take part, with how many tokens each
    ended(step)                        the step is over: tokens are sampled, requests end

    Request   prompt + outputs = known tokens; computed: those whose keys and values are in the cache.
              A step computes some of known - computed; one that computes the last samples the next token.

First come, first served, a whole batch at a time, is in `policies.serving.classic.Static`.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import islice

from policies.serving.kv_blocks import KvBlocks
from sim.base.errors import InputError

Segment = tuple[str, int]
"""A name and a number of tokens: segments of one name have equal tokens from their beginning."""


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """A request, and how far it is.

    Attributes
    ----------
    id : str
    arrival_ns, priority : int
        Lower priorities go first, where a batcher has any.
    prompt, output : int
        Tokens.
    segments : sequence of (str, int)
        What the prompt is made of, for prefix caching; empty: like no other.
    accepted : sequence of int
        Of speculative decoding: how many drafts each step accepts, in turn.
    remote : bool
        The keys and values of its prompt lie elsewhere and are pulled.
    after : Request or None
        It comes `delay_ns` after that has ended: the turn before.
    outputs, computed : int
        Tokens that were sampled, and those whose keys and values are in the cache.
    sampled : int
        Tokens that were sampled since it was admitted last.
    blocks : list of int
        Its block table.
    hits : int
        Tokens that its first admission found in the cache.
    lost : int
        Tokens that it would have found beside them, had their blocks not been taken.
    token_ns : array of int64
        When each output was known.
    """

    id: str
    arrival_ns: int
    prompt: int
    output: int
    _: KW_ONLY
    priority: int = 0
    segments: Sequence[Segment] = ()
    accepted: Sequence[int] = ()
    remote: bool = False
    kept: bool = False
    replica: int = 0
    after: Request | None = None
    delay_ns: int = 0
    outputs: int = 0
    computed: int = 0
    in_flight: int = 0
    drafts: int = 0
    drafted: int = 0
    blocks: list[int] = field(default_factory=list)
    chain: list[int] = field(default_factory=list)
    published: int = 0
    sampled: int = 0
    preemptions: int = 0
    hits: int | None = None
    lost: int = 0
    scheduled_ns: int | None = None
    pulled_ns: int | None = None
    finished: bool = False
    token_ns: array[int] = field(default_factory=lambda: array("q"))

    def __repr__(self) -> str:
        """Return its id and how far it is."""
        return f"<Request {self.id}: {self.computed} of {self.known} computed, {self.outputs}/{self.output}>"

    def prompt_alone(self, replica: int) -> Request:
        """Return a request of the same prompt for one token, whose blocks stay until they are freed."""
        twin = Request(
            self.id, self.arrival_ns, self.prompt, 1, priority=self.priority, segments=self.segments
        )
        twin.replica, twin.kept = replica, True
        return twin

    @property
    def known(self) -> int:
        """Tokens of the prompt, and those that were sampled."""
        return self.prompt + self.outputs

    @property
    def left(self) -> int:
        """Tokens that are known and not computed."""
        return self.known - self.computed


@dataclass(slots=True)
class Step:
    """What one forward pass computes, and what came of it.

    Attributes
    ----------
    tokens : dict of Request to int
        In the order in which they were scheduled.
    hits : dict of Request to int
        Of requests that were admitted: tokens found in the cache.
    preempted : list of Request
    drafts : dict of Request to int
        Of speculative decoding: drafts among the tokens.
    pulls : dict of Request to int
        Tokens whose keys and values begin to be pulled from elsewhere.
    contexts : list of int
        For each of `tokens`: the tokens before them, to which they attend, too.
    samples : list of Request
        Those that know all of their tokens when it has ended, and sample the next one.
    why : str or None
        What kept the first waiting request from being admitted: ``"blocks"``, ``"budget"``, ``"seats"``.
    head : Request or None
        That request.
    waiting : int
        Requests that wait, after scheduling.
    used : int
        Blocks in use, after scheduling.
    out : dict of Request to int
        Tokens that each yields, known when it has ended.
    finished : list of Request
    """

    tokens: dict[Request, int] = field(default_factory=dict)
    hits: dict[Request, int] = field(default_factory=dict)
    preempted: list[Request] = field(default_factory=list)
    drafts: dict[Request, int] = field(default_factory=dict)
    pulls: dict[Request, int] = field(default_factory=dict)
    contexts: list[int] = field(default_factory=list)
    samples: list[Request] = field(default_factory=list)
    why: str | None = None
    head: Request | None = None
    waiting: int = 0
    used: int = 0
    out: dict[Request, int] = field(default_factory=dict)
    finished: list[Request] = field(default_factory=list)


class Batcher:
    """Decides who takes part in the next step; override `fill`, or `arrive`, `schedule` and `ended`.

    Attributes
    ----------
    ahead : int
        Steps that are scheduled while another runs.
    reserved_blocks : int
        Blocks that the engine keeps for itself.
    by_rank : bool
        Whether requests wait by priority, and of one priority by arrival; else first come, first served.
    cache : KvBlocks
        Keys and values of its replica.
    max_model_len : int
        Most tokens of a request, prompt and outputs together.
    running : list of Request
    waiting : deque of Request
    """

    ahead = 0
    reserved_blocks = 0
    by_rank = False
    cache: KvBlocks
    max_model_len: int
    running: list[Request]
    waiting: deque[Request]

    def begin(self, cache: KvBlocks, max_model_len: int) -> None:
        """Serve from a cache that is empty."""
        self.cache, self.max_model_len, self.running, self.waiting = cache, max_model_len, [], deque()

    def refuse(self, request: Request) -> str | None:
        """Return why a request can never be served; None: it can."""
        tokens = request.prompt + request.output
        if tokens > self.max_model_len:
            return f"{tokens:,} tokens are more than max_model_len, {self.max_model_len:,}"
        if self.cache.needed(tokens - 1) > self.cache.usable:
            return f"{tokens:,} tokens need more blocks than the {self.cache.usable:,} there are"
        return None

    def arrive(self, request: Request) -> None:
        """A request is there: it waits."""
        self.wait(request, self.waiting)

    def unfinished(self) -> int:
        """Return how many requests arrived and have not finished."""
        return len(self.running) + len(self.waiting)

    def wait(self, request: Request, queue: deque[Request], *, first: bool = False) -> None:
        """Let a request wait: at the end, or first of all; by rank in its place."""
        if self.by_rank:
            insort(queue, request, key=rank)
        elif first:
            queue.appendleft(request)
        else:
            queue.append(request)

    # -- scheduling -------------------------------------------------------------------------------------

    def schedule(self, now_ns: int) -> Step:
        """Return the next step; one without tokens where nothing can run."""
        step = Step()
        self.fill(step)
        for request in step.preempted:
            request.computed = request.drafts = request.sampled = 0
        contexts, samples = step.contexts, step.samples
        for request in step.hits:
            if request.scheduled_ns is None:
                request.scheduled_ns = now_ns
        for request, count in step.tokens.items():
            contexts.append(request.computed)
            request.computed += count
            if request.computed >= request.prompt + request.outputs + request.in_flight:
                samples.append(request)
                request.in_flight += self.ahead
        step.used, step.waiting = self.cache.used, len(self.waiting)
        return step

    def fill(self, step: Step) -> None:
        """Say who takes part in a step, with how many tokens (`tokens`), and who was admitted (`hits`)."""
        raise InputError(f"{type(self).__name__} must define fill(step)")

    def preempt(self, step: Step, victim: Request) -> None:
        """Let a running request wait before all others; what is computed is lost."""
        self.free(victim)
        victim.preemptions += 1
        step.preempted.append(victim)
        self.wait(victim, self.waiting, first=True)

    # -- the end of a step ------------------------------------------------------------------------------

    def ended(self, step: Step) -> None:
        """Sample a token for each of `Step.samples`; finish requests that have all, and free their blocks."""
        for request in step.samples:
            if not request.finished:
                self.sample(step, request, 1)

    def sample(self, step: Step, request: Request, count: int) -> None:
        """Let a request know so many more tokens; when it has all, take it out and free its blocks."""
        request.outputs += count
        request.sampled += count
        step.out[request] = count
        if self.has_all(request):
            request.finished = True
            step.finished.append(request)
            (self.running if request in self.running else self.waiting).remove(request)
            if not request.kept:
                self.free(request)

    def has_all(self, request: Request) -> bool:
        """Return whether a request has all its tokens."""
        return request.outputs >= request.output or request.known >= self.max_model_len

    def free(self, request: Request) -> None:
        """Free the blocks of a request."""
        self.cache.release(request.blocks)
        request.blocks, request.published = [], 0


def rank(request: Request) -> tuple[int, int, str]:
    """Return who waits first and is preempted last, where priorities count."""
    return request.priority, request.arrival_ns, request.id


class PrefixKeys:
    """Names of blocks by their content: the tokens in them, and all that is before.

    A key is a number; two blocks have the same number exactly if they end equal prefixes.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._numbers: dict[tuple[object, ...], int] = {}

    def of(self, request: Request, blocks: int) -> list[int]:
        """Return the keys of the first so many full blocks of a request, outputs included."""
        self._extend(request.chain, request, blocks)
        return request.chain[:blocks]

    def prompt_of(self, request: Request) -> list[int]:
        """Return the keys of the full blocks of its prompt, and keep nothing of it."""
        keys: list[int] = []
        self._extend(keys, request, request.prompt // self.block_size)
        return keys

    def _extend(self, chain: list[int], request: Request, blocks: int) -> None:
        numbers = self._numbers
        new = _blocks(request, len(chain) * self.block_size, self.block_size)
        for content in islice(new, max(0, blocks - len(chain))):
            key = (chain[-1] if chain else -1, *content)
            chain.append(numbers.setdefault(key, len(numbers)))


def _blocks(request: Request, begin: int, size: int) -> Iterator[tuple[object, ...]]:
    """Yield the content of the blocks from a token on: (name, first token, tokens) of each part."""
    prompt = request.segments or ((f"prompt of {request.id}", request.prompt),)
    content: list[object] = []
    room, at = size, 0
    for name, tokens in (*prompt, (f"out:{request.id}", request.output)):
        first = max(0, begin - at)
        at += tokens
        while first < tokens:
            part = min(room, tokens - first)
            content += (name, first, part)
            first, room = first + part, room - part
            if not room:
                yield tuple(content)
                content, room = [], size
