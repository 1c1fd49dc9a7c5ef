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
from typing import Literal

from policies.option_checks import whole
from policies.serving.batcher import Batcher, PrefixKeys, Request, Step, rank
from policies.serving.kv_blocks import KvBlocks
from sim.base.errors import InputError


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

    reserved_blocks = 1

    def __init__(
        self,
        *,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 8192,
        enable_chunked_prefill: bool = True,
        enable_prefix_caching: bool = True,
        scheduling_policy: Literal["fcfs", "priority"] = "fcfs",
        long_prefill_token_threshold: int = 0,
        scheduler_reserve_full_isl: bool = True,
        num_speculative_tokens: int = 0,
        draft_model: bool | Literal["eagle"] = False,
        async_scheduling: bool | None = None,
    ) -> None:
        if async_scheduling and num_speculative_tokens:
            raise InputError("speculative decoding is known here without it", path=("async_scheduling",))
        if draft_model and not num_speculative_tokens:
            raise InputError("has no effect without num_speculative_tokens", path=("draft_model",))
        self.max_num_seqs = whole("vllm-0.19", "max_num_seqs", max_num_seqs)
        self.budget = whole("vllm-0.19", "max_num_batched_tokens", max_num_batched_tokens)
        self.chunked, self.caching = enable_chunked_prefill, enable_prefix_caching
        self.by_rank = scheduling_policy == "priority"
        self.threshold = long_prefill_token_threshold
        self.reserve_all = scheduler_reserve_full_isl
        self.drafts, self.look_ahead = num_speculative_tokens, num_speculative_tokens * bool(draft_model)
        self.eagle = draft_model == "eagle"
        self.ahead = int(not num_speculative_tokens if async_scheduling is None else async_scheduling)

    def begin(self, cache: KvBlocks, max_model_len: int) -> None:
        """Serve from a cache that is empty."""
        super().begin(cache, max_model_len)
        if not self.chunked and self.budget < max_model_len:
            raise InputError(
                f"without enable_chunked_prefill {self.budget:,} tokens of a step have to be at least "
                f"max_model_len, {max_model_len:,}: a longer prompt would wait for ever",
                path=("max_num_batched_tokens",),
            )
        self.aside: deque[Request] = deque()
        self.keys = PrefixKeys(cache.block_size)

    def unfinished(self) -> int:
        """Return the number of requests that run, wait or are set aside."""
        return super().unfinished() + len(self.aside)

    # -- scheduling -------------------------------------------------------------------------------------

    def fill(self, step: Step) -> None:
        """Schedule running requests, then admit waiting ones if none was preempted."""
        budget = self._run(step)
        if not step.preempted:
            self._admit(step, budget)
        else:
            step.why, step.head = "blocks", self._head()[1]

    def _run(self, step: Step) -> int:
        """Schedule running requests; return the remaining budget."""
        budget, longest = self.budget, self.max_model_len - 1
        running, tokens, size = self.running, step.tokens, self.cache.block_size
        look_ahead, caching = self.look_ahead, self.caching
        index = 0
        while index < len(running) and budget > 0:
            request = running[index]
            computed, in_flight = request.computed, request.in_flight
            index += 1
            if in_flight and computed + 2 - in_flight >= request.prompt + request.output:
                continue  # the step in flight is its last
            known = request.prompt + request.outputs
            count = known + request.drafts + in_flight - computed
            if count != 1:
                if 0 < self.threshold < count:
                    count = self.threshold
                count = min(count, budget)
            if computed + count > longest:
                count = longest - computed
            if count <= 0:
                continue
            until = computed + count
            if until + look_ahead > len(request.blocks) * size:
                while not self._reserve(request, count, look_ahead):
                    victim = max(running, key=_victim) if self.by_rank else running[-1]
                    place = running.index(victim)
                    index -= place < index
                    budget += tokens.pop(victim, 0)
                    step.drafts.pop(victim, None)
                    running.remove(victim)
                    self.preempt(step, victim)
                    if victim is request:
                        return budget
            if caching and until // size > request.published:
                self._publish(request, min(until, known))
            if request.drafts:
                drafted = computed + count - known
                if drafted > 0:
                    step.drafts[request] = drafted
                request.drafts = 0
            tokens[request] = count
            budget -= count
        return budget

    def _admit(self, step: Step, budget: int) -> None:
        """Admit waiting requests in order, until one cannot run."""
        passed: list[Request] = []  # requests whose prompts are being pulled
        while self.waiting or self.aside:
            if budget <= 0 or len(self.running) >= self.max_num_seqs:
                step.why, step.head = "budget" if budget <= 0 else "seats", self._head()[1]
                break
            queue, request = self._head()
            if request.pulled_ns is not None and queue is self.aside:
                if request.pulled_ns < 0:
                    passed.append(queue.popleft())
                    continue
                self._pulled(request)
            hits: list[int] = []
            fresh = not request.computed
            if fresh and self.caching:
                keys = self.keys.of(request, (request.known - 1) // self.cache.block_size)
                hits = self.cache.find(keys)
                if request.hits is None and len(hits) < len(keys):
                    request.lost = self.cache.lost(keys[len(hits) :]) * self.cache.block_size
                if self.eagle:
                    hits = hits[:-1]
            found = request.computed or len(hits) * self.cache.block_size
            remote = request.remote and request.pulled_ns is None
            count = request.known - found
            if not remote:
                if 0 < self.threshold < count:
                    count = self.threshold
                if not self.chunked and count > budget:
                    step.why, step.head = "budget", request
                    break
                count = min(count, budget)
            look_ahead = 0 if fresh else self.look_ahead
            if not (self._all_fit(request, hits) and self._reserve(request, count, look_ahead, hits)):
                step.why, step.head = "blocks", request
                break
            queue.popleft()
            if request.hits is None:
                request.hits = found
            if remote:
                request.pulled_ns = -1
                step.pulls[request] = count
                passed.append(request)
                continue
            request.computed = found
            if self.caching:
                self._publish(request, min(found + count, request.known))
            step.hits[request] = found
            self.running.append(request)
            step.tokens[request] = count
            budget -= count
        for request in reversed(passed):
            self.wait(request, self.aside, first=True)

    def _head(self) -> tuple[deque[Request], Request]:
        """Return the next waiting request, and its queue."""
        queue = self.aside or self.waiting
        if self.by_rank and self.aside and self.waiting and rank(self.waiting[0]) < rank(self.aside[0]):
            queue = self.waiting
        return queue, queue[0]

    def _all_fit(self, request: Request, hits: list[int]) -> bool:
        """Return whether all its known tokens would fit now."""
        if not self.reserve_all:
            return True
        want = self.cache.needed(min(request.known, self.max_model_len)) - len(request.blocks) - len(hits)
        return max(want, 0) + self.cache.unreferenced(hits) <= self.cache.free

    def _reserve(self, request: Request, count: int, look_ahead: int, hits: list[int] | None = None) -> bool:
        """Take blocks for `count` more tokens; return whether there were enough."""
        cache, hits = self.cache, hits or []
        slots = request.computed + len(hits) * cache.block_size + count + look_ahead
        want = cache.needed(min(slots, self.max_model_len)) - len(request.blocks) - len(hits)
        want = max(want, 0)
        if want + (cache.unreferenced(hits) if hits else 0) > cache.free:
            return False
        if hits:
            cache.share(hits)
            request.blocks += hits
            request.published = len(hits)
        request.blocks += cache.take(want)
        return True

    def _publish(self, request: Request, tokens: int) -> None:
        """Publish the full blocks of the first `tokens` tokens of a request."""
        full = tokens // self.cache.block_size
        if full > request.published:
            keys = self.keys.of(request, full)
            for place in range(request.published, full):
                self.cache.publish(request.blocks[place], keys[place])
            request.published = full

    def _pulled(self, request: Request) -> None:
        """Resume a request whose prompt has arrived; its last token is recomputed, to sample from."""
        if self.caching:
            self._publish(request, request.prompt)
        request.computed = request.prompt - (request.prompt == request.known)
        request.hits = request.computed

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
                request.drafts = self.drafts
                if ahead and self.caching:
                    known = request.computed - request.in_flight
                    if known // size > request.published:
                        self._publish(request, known)


def _victim(request: Request) -> tuple[int, int]:
    return request.priority, request.arrival_ns
