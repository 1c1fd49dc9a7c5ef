"""The scheduler of vLLM 0.19: prefill and decode are unified; computed tokens catch up with known ones.

::

    schedule    1  running requests, in order: their known but not computed tokens, within the budget;
                   if no block is free, the last running request (by rank) is preempted and waits first
                2  waiting requests, if none was preempted, while budget and seats last: the head's
                   prefix is looked up in the cache; its blocks are reserved, or all requests wait
    ahead       step k+1 is scheduled while step k runs: tokens in flight count as known

    pull        a prompt cached elsewhere: its blocks are reserved, and it is set aside until it arrives

Source: vLLM 0.19.0, ``vllm/v1/core/sched/scheduler.py`` and ``async_scheduler.py``, which it matches step by
step and block by block (``tests/policies/test_serving_steps.py``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from policies.option_checks import whole
from policies.serving.batcher import Batcher, PrefixKeys, Request, Step, rank
from policies.serving.kv_blocks import KvBlocks
from sim.base.errors import InputError


@dataclass(kw_only=True, eq=False, repr=False)
class Vllm019(Batcher):
    """The scheduler of vLLM 0.19.

    Parameters
    ----------
    max_num_seqs : int
        Most requests that run at a time.
    max_num_batched_tokens : int
        Most tokens of a step.
    enable_chunked_prefill : bool
        Whether a prompt may be computed in parts.
    enable_prefix_caching : bool
        Whether later requests that begin with the same tokens find full blocks.
    scheduling_policy : {"fcfs", "priority"}
        Which request waits first and is preempted last: first to arrive, or lowest priority number.
    long_prefill_token_threshold : int
        Most tokens of one request in a step; 0: no limit.
    scheduler_reserve_full_isl : bool
        Whether a request is admitted only if all its known tokens would fit now.
    num_speculative_tokens : int
        Number of drafts after each sampled token.
    draft_model : bool or "eagle"
        Whether drafts come from a model, whose tokens also need blocks, rather than from n-grams. EAGLE
        does not reuse the last block of a prefix, because it needs the hidden states of its tokens.
    async_scheduling : bool
        Whether a step is scheduled while another runs; by default unless there are drafts.
    """

    max_num_batched_tokens: int = 8192
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    long_prefill_token_threshold: int = 0
    scheduler_reserve_full_isl: bool = True
    num_speculative_tokens: int = 0
    draft_model: bool | Literal["eagle"] = False
    async_scheduling: bool | None = None

    reserved_blocks = 1

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        for option in ("long_prefill_token_threshold", "num_speculative_tokens"):
            whole("vllm-0.19", option, getattr(self, option), least=0)
        if self.async_scheduling and self.num_speculative_tokens:
            raise InputError("speculative decoding is known here without it", path=("async_scheduling",))
        if self.draft_model and not self.num_speculative_tokens:
            raise InputError("has no effect without num_speculative_tokens", path=("draft_model",))
        self.by_rank = self.scheduling_policy == "priority"
        self.look_ahead = self.num_speculative_tokens if self.draft_model else 0
        overlap = self.async_scheduling
        self.ahead = int(not self.num_speculative_tokens if overlap is None else overlap)

    def begin(self, cache: KvBlocks, max_model_len: int) -> None:
        """Serve from a cache that is empty."""
        super().begin(cache, max_model_len)
        if not self.enable_chunked_prefill and self.max_num_batched_tokens < max_model_len:
            raise InputError(
                f"without enable_chunked_prefill {self.max_num_batched_tokens:,} tokens of a step have to be "
                f"at least max_model_len, {max_model_len:,}: a longer prompt would wait for ever",
                path=("max_num_batched_tokens",),
            )
        self.aside: deque[Request] = deque()
        self.keys = PrefixKeys(cache.block_size)

    def arrive(self, request: Request) -> None:
        """Put an arriving request in the waiting queue."""
        if self.enable_prefix_caching:
            request.keys = self.keys.of(request)
        super().arrive(request)

    def count_unfinished(self) -> int:
        """Return the number of requests that run, wait or are set aside."""
        return super().count_unfinished() + len(self.aside)

    # -- scheduling -------------------------------------------------------------------------------------

    def fill(self, step: Step) -> None:
        """Schedule running requests, then admit waiting ones if none was preempted."""
        passed: list[Request] = []  # requests whose prompts are being pulled
        budget = self._run(step)
        step.why = "blocks" if step.preempted else self._admit(step, budget, passed)
        step.head = self._queue()[0] if step.why else None
        for request in reversed(passed):
            self.wait(request, self.aside, first=True)

    def _run(self, step: Step) -> int:
        """Schedule running requests; return the remaining budget."""
        budget, longest = self.max_num_batched_tokens, self.max_model_len - 1
        running, tokens, size = self.running, step.tokens, self.cache.block_size
        threshold, look_ahead = self.long_prefill_token_threshold, self.look_ahead
        index = 0
        while index < len(running) and budget > 0:
            request = running[index]
            computed, in_flight = request.computed, request.in_flight
            index += 1
            if in_flight and computed + 2 - in_flight >= request.prompt + request.output:
                continue  # the step in flight is its last
            total = request.prompt + request.outputs
            count = total + request.drafts + in_flight - computed
            if count > 1:
                count = min(count, threshold or count, budget)
            if computed + count > longest:
                count = longest - computed
            if count <= 0:
                continue
            end = computed + count
            if end + look_ahead > len(request.blocks) * size:
                while not self._reserve(request, end + look_ahead):
                    victim = max(running, key=_victim) if self.by_rank else running[-1]
                    index -= running.index(victim) < index
                    budget += tokens.pop(victim, 0)
                    step.drafts.pop(victim, None)
                    running.remove(victim)
                    self.preempt(step, victim)
                    if victim is request:
                        return budget
            if end // size > request.published:
                self._publish(request, min(end, total))
            if request.drafts:
                if end > total:
                    step.drafts[request] = end - total
                request.drafts = 0
            tokens[request] = count
            budget -= count
        return budget

    def _admit(self, step: Step, budget: int, passed: list[Request]) -> str | None:
        """Admit waiting requests in order, until one cannot run; return why it cannot."""
        size = self.cache.block_size
        while self.waiting or self.aside:
            if budget <= 0:
                return "budget"
            if len(self.running) >= self.max_num_seqs:
                return "seats"
            queue = self._queue()
            request = queue[0]
            if queue is self.aside:
                if request.pulled_ns == -1:
                    passed.append(queue.popleft())
                    continue
                self._publish(request, request.prompt)
                # its last token is recomputed, to sample from, as in a decode
                request.hits = request.computed = request.prompt - (request.prompt == request.known)
                request.whole = request.computed
            hits: list[int] = []
            fresh = not request.computed
            if fresh and self.enable_prefix_caching:
                keys = request.keys[: (request.known - 1) // size]
                hits = self.cache.find(keys)
                if request.hits is None and len(hits) < len(keys):
                    request.lost = self.cache.count_lost(keys[len(hits) :]) * size
                if self.draft_model == "eagle":
                    hits = hits[:-1]
            cached = request.computed or len(hits) * size
            remote = request.remote and request.pulled_ns is None
            count = request.known - cached
            if not remote:
                count = min(count, self.long_prefill_token_threshold or count)
                if not self.enable_chunked_prefill and count > budget:
                    return "budget"
                count = min(count, budget)
            if self.scheduler_reserve_full_isl and self._missing(request, request.known, hits) is None:
                return "blocks"
            if not self._reserve(request, cached + count + (0 if fresh else self.look_ahead), hits):
                return "blocks"
            queue.popleft()
            if request.hits is None:
                request.hits = cached
            if remote:
                request.pulled_ns = -1
                step.pulls[request] = count
                passed.append(request)
                continue
            request.computed = cached
            self._publish(request, min(cached + count, request.known))
            step.hits[request] = cached
            self.running.append(request)
            step.tokens[request] = count
            budget -= count
        return None

    def _queue(self) -> deque[Request]:
        """Return the queue of the next waiting request."""
        if self.by_rank and self.aside and self.waiting and rank(self.waiting[0]) < rank(self.aside[0]):
            return self.waiting
        return self.aside or self.waiting

    def _missing(self, request: Request, tokens: int, hits: Sequence[int]) -> int | None:
        """Return how many blocks a request lacks for its first `tokens` tokens; None: there are too few."""
        want = self.cache.blocks_for(min(tokens, self.max_model_len)) - len(request.blocks) - len(hits)
        want = max(want, 0)
        return want if want + self.cache.count_unreferenced(hits) <= self.cache.free else None

    def _reserve(self, request: Request, tokens: int, hits: Sequence[int] = ()) -> bool:
        """Take the blocks for the first `tokens` tokens of a request; return whether there were enough."""
        want = self._missing(request, tokens, hits)
        if want is None:
            return False
        self.cache.share(hits)
        request.blocks += [*hits, *self.cache.take(want)]
        request.published += len(hits)
        return True

    def _publish(self, request: Request, tokens: int) -> None:
        """Publish the full blocks of the first `tokens` tokens of a request, if prefixes are cached."""
        full = tokens // self.cache.block_size if self.enable_prefix_caching else 0
        for index in range(request.published, full):
            self.cache.publish(request.blocks[index], request.keys[index])
        request.published = max(request.published, full)

    # -- the end of a step ------------------------------------------------------------------------------

    def ended(self, step: Step) -> None:
        """Sample tokens, including accepted drafts."""
        ahead, size = self.ahead, self.cache.block_size
        for request in step.samples:
            if request.finished:
                continue
            accepted = 0
            if drafted := step.drafts.get(request, 0):
                if request.accepted:
                    accepted = min(request.accepted[request.drafted % len(request.accepted)], drafted)
                request.drafted += 1
                request.computed -= drafted - accepted
            request.in_flight -= ahead
            self.sample(step, request, min(accepted + 1, request.output - request.outputs) if accepted else 1)
            if not request.finished:
                request.drafts = self.num_speculative_tokens
                if ahead and (request.computed - request.in_flight) // size > request.published:
                    self._publish(request, request.computed - request.in_flight)


def _victim(request: Request) -> tuple[int, int]:
    return request.priority, request.arrival_ns
