"""Batchers, which decide what the next step of a serving engine computes, and never wait.

::

    arrive(request)                    a request has arrived
    fill(step)                         the requests that take part, with the number of tokens of each
    ended(step)                        the step is over: tokens are sampled, requests end

    Request   prompt + outputs = known tokens; computed: those whose keys and values are in the cache.
              A step computes some of known - computed; if it computes the last, it samples the next token.

`policies.serving.classic.Static` is first come, first served, one whole batch at a time.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Final

from policies.option_checks import whole
from policies.serving.kv_blocks import TOKEN_BITS, KvBlocks
from sim.base.errors import InputError

Segment = tuple[str, int]
"""A name and a number of tokens: segments of the same name begin with the same tokens."""

QUEUE: Final = (None, "blocks", "budget", "seats")
"""Why the first waiting request was not admitted; None: a step is under way."""


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """A request and its progress.

    Attributes
    ----------
    id : str
    arrival_ns, priority : int
        Time of arrival, and priority, lowest first, if the batcher uses priorities.
    prompt, output : int
        Number of tokens.
    segments : sequence of (str, int)
        Parts of the prompt, for prefix caching; empty: the prompt shares no prefix.
    accepted : sequence of int
        Number of drafts that each step in turn accepts, in speculative decoding.
    remote : bool
        Whether the keys and values of its prompt are elsewhere and are pulled.
    after : Request or None
        Previous turn: this request arrives `delay_ns` after that one has ended.
    prompt_of : Request or None
        Request whose prompt this one computes on another replica; its blocks stay until freed.
    outputs, computed : int
        Number of sampled tokens, and of tokens whose keys and values are in the cache.
    sampled : int
        Number of tokens sampled since its last admission.
    blocks : list of int
        Its block table.
    hits : int
        Number of tokens that its first admission found in the cache.
    whole : int
        Number of tokens to compute before it decodes: its prompt, after a preemption what was lost, too.
    lost : int
        Number of further tokens that it would have found, had their blocks not been reused.
    token_ns : array of int64
        Time at which each output was known.
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
    prompt_of: Request | None = None
    replica: int = 0
    after: Request | None = None
    delay_ns: int = 0
    outputs: int = 0
    computed: int = 0
    in_flight: int = 0
    drafts: int = 0
    drafted: int = 0
    blocks: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    published: int = 0
    sampled: int = 0
    whole: int = 0
    preemptions: int = 0
    hits: int | None = None
    lost: int = 0
    scheduled_ns: int | None = None
    pulled_ns: int | None = None
    finished: bool = False
    token_ns: array[int] = field(default_factory=lambda: array("q"))

    def prompt_alone(self, replica: int) -> Request:
        """Return a request that computes its prompt on another replica."""
        twin = Request(self.id, self.arrival_ns, self.prompt, 1, prompt_of=self, replica=replica)
        twin.priority, twin.segments = self.priority, self.segments
        return twin

    @property
    def known(self) -> int:
        """Number of prompt and sampled tokens."""
        return self.prompt + self.outputs

    @property
    def left(self) -> int:
        """Number of tokens that are known but not computed."""
        return self.known - self.computed


@dataclass(slots=True)
class Step:
    """One forward pass: its tokens, and its outcome.

    Attributes
    ----------
    tokens : dict of Request to int
        Tokens computed for each request, in scheduling order.
    hits : dict of Request to int
        Tokens found in the cache, for each request admitted.
    preempted : list of Request
    drafts : dict of Request to int
        Drafts among the tokens, in speculative decoding.
    pulls : dict of Request to int
        Tokens whose keys and values start to be pulled from elsewhere.
    contexts : list of int
        For each entry of `tokens`, the number of earlier tokens that they also attend to.
    samples : list of Request
        Requests whose known tokens are all computed by this step, and which sample the next one.
    why : str or None
        Why the first waiting request was not admitted, one of `QUEUE`.
    head : Request or None
        The first waiting request.
    out : dict of Request to int
        Tokens that each request yields, known when the step has ended.
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
    out: dict[Request, int] = field(default_factory=dict)
    finished: list[Request] = field(default_factory=list)


_KINDS: Final[dict[str, Any]] = {
    entry.name: entry.default_factory for entry in fields(Step) if callable(entry.default_factory)
}


def next_step(batcher: Batcher, now_ns: int) -> Step:
    """Return what a batcher fills the next step with; it has no tokens if nothing can run.

    Raises
    ------
    InputError
        It is filled with something else than a step has, or computes tokens that a request does not have.
    """
    step, method = Step(), f"{type(batcher).__name__}.fill"
    batcher.fill(step)
    for name, kind in _KINDS.items():
        if not isinstance(value := getattr(step, name), kind):
            raise InputError(f"{method}: the {name} of a step should be a {kind.__name__}, not {value!r:.60}")
    if step.why not in QUEUE:
        raise InputError(f"{method}: `why` should be one of {', '.join(QUEUE[1:])}, not {step.why!r:.60}")
    for request in step.preempted:
        request.whole = request.known + request.in_flight
        request.computed = request.drafts = request.sampled = 0
    for request in step.hits:
        if request.scheduled_ns is None:
            request.scheduled_ns = now_ns
    running = set(batcher.running)
    for request, count in step.tokens.items():
        drafts = step.drafts.get(request, 0)
        limit = request.left + request.in_flight + drafts if request in running else 0
        if type(count) is not int or not 0 < count <= limit:
            problem = f"{method} gave {getattr(request, 'id', request)} {count!r} tokens"
            raise InputError(f"{problem}, " + (f"of {limit} left" if limit else "and it is not in `running`"))
        step.contexts.append(request.computed)
        request.computed += count
        if request.computed >= request.prompt + request.outputs + request.in_flight:
            step.samples.append(request)
            request.in_flight += batcher.ahead
    return step


@dataclass(kw_only=True, eq=False, repr=False)
class Batcher:
    """Decides which requests run in the next step; override `fill`, and if needed `arrive` and `ended`.

    Parameters
    ----------
    max_num_seqs : int
        Most requests that run at a time.

    Attributes
    ----------
    ahead : int
        Number of steps scheduled while another runs.
    reserved_blocks : int
        Number of blocks that the engine keeps for itself.
    by_rank : bool
        Whether requests wait by priority, then arrival; otherwise first come, first served.
    cache : KvBlocks
        KV cache of its replica.
    max_model_len : int
        Most tokens of a request, prompt and outputs together.
    running : list of Request
    waiting : deque of Request
    """

    max_num_seqs: int = 256

    ahead = 0
    reserved_blocks = 0
    by_rank = False

    def __post_init__(self) -> None:
        """Check the options."""
        for option in ("max_num_seqs", "max_num_batched_tokens"):
            whole("batcher", option, getattr(self, option, 1))

    def begin(self, cache: KvBlocks, max_model_len: int) -> None:
        """Start serving from an empty cache."""
        self.cache, self.max_model_len = cache, max_model_len
        self.running: list[Request] = []
        self.waiting: deque[Request] = deque()

    def refuse(self, request: Request) -> str | None:
        """Return why a request can never be served; None if it can."""
        tokens = request.prompt + request.output
        if tokens > self.max_model_len:
            return f"{tokens:,} tokens are more than max_model_len, {self.max_model_len:,}"
        if self.cache.blocks_for(tokens - 1) > self.cache.usable:
            return f"{tokens:,} tokens need more blocks than the {self.cache.usable:,} there are"
        return None

    def arrive(self, request: Request) -> None:
        """Put an arriving request in the waiting queue."""
        request.whole = request.prompt
        self.wait(request, self.waiting)

    def count_unfinished(self) -> int:
        """Return the number of requests that have arrived and not finished."""
        return len(self.running) + len(self.waiting)

    def wait(self, request: Request, queue: deque[Request], *, first: bool = False) -> None:
        """Queue a request at the end, or first if `first`, or in its place by rank."""
        if self.by_rank:
            insort(queue, request, key=rank)
        elif first:
            queue.appendleft(request)
        else:
            queue.append(request)

    # -- scheduling -------------------------------------------------------------------------------------

    def fill(self, step: Step) -> None:
        """Fill in the step's `tokens` per request, and the `hits` of the requests admitted."""
        raise InputError(f"{type(self).__name__} must define fill(step)")

    def preempt(self, step: Step, victim: Request) -> None:
        """Move a running request to the front of the queue; its computed tokens are lost."""
        self.free(victim)
        victim.preemptions += 1
        step.preempted.append(victim)
        self.wait(victim, self.waiting, first=True)

    # -- the end of a step ------------------------------------------------------------------------------

    def ended(self, step: Step) -> None:
        """Sample a token for each of `Step.samples`; finish complete requests and free their blocks."""
        for request in step.samples:
            if not request.finished:
                self.sample(step, request, 1)

    def sample(self, step: Step, request: Request, count: int) -> None:
        """Add `count` sampled tokens to a request; if it is complete, remove it and free its blocks."""
        request.outputs += count
        request.sampled += count
        step.out[request] = count
        if self.has_all(request):
            request.finished, request.keys = True, []
            step.finished.append(request)
            (self.running if request in self.running else self.waiting).remove(request)
            if request.prompt_of is None:
                self.free(request)

    def has_all(self, request: Request) -> bool:
        """Return whether a request has all its tokens."""
        return request.outputs >= request.output or request.known >= self.max_model_len

    def free(self, request: Request) -> None:
        """Free the blocks of a request."""
        self.cache.release(request.blocks)
        request.blocks, request.published = [], 0


def rank(request: Request) -> tuple[int, int, str]:
    """Return the sort key by which requests wait first and are preempted last, with priorities."""
    return request.priority, request.arrival_ns, request.id


class PrefixKeys:
    """Keys of full blocks by content: their own tokens and all tokens before.

    Two blocks have the same key, a number, if and only if they end equal prefixes: the same segments, and as
    much of the last one.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self._segments: dict[tuple[int, str], int] = {}  # each with the prefix before it

    def of(self, request: Request) -> list[int]:
        """Return the keys of all blocks that the prompt and outputs of a request will fill."""
        segments, size = self._segments, self.block_size
        prompt = request.segments or [(f"prompt of {request.id}", request.prompt)]
        keys: list[int] = []
        begin, before = 0, -1
        for name, tokens in (*prompt, (f"out:{request.id}", request.output)):
            first = segments.setdefault((before, name), len(segments)) << TOKEN_BITS
            keys += range(first + size - begin % size, first + tokens + 1, size)
            before = first + tokens
            begin += tokens
        return keys
