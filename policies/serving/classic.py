"""Batchers from before chunked prefill became universal, as implemented side by side in Sarathi-Serve.

::

    static      a batch is admitted when nothing runs, and runs until its last request has ended
    orca        every step: all running requests decode, waiting ones join with their whole prompt
    vllm-v0     a step is either as many prompts as fit, or a decode of all running requests
    sarathi     a step has a token budget: decodes first, then chunks of prompts

    static, orca     each request owns the blocks of max_model_len from the start
    others           ... of its prompt, and takes more as needed; the last to arrive is preempted

A preempted request is recomputed, including its outputs, as if they were part of its prompt.

Sources: microsoft/sarathi-serve 96f9911, ``sarathi/core/scheduler``, ``sarathi/core/block_space_manager``;
Yu et al., Orca, OSDI 2022; Kwon et al., arXiv 2309.06180; Agrawal et al., arXiv 2403.02310.
"""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass

from policies.serving.batcher import Batcher, Request, Step
from policies.serving.kv_blocks import KvBlocks


class Static(Batcher):
    """A batch is admitted when nothing runs, and runs until its last request has ended: FasterTransformer."""

    joins = False
    """Whether waiting requests join those that run."""
    whole = True
    """Whether a request owns the blocks of the longest sequence from the beginning."""

    def begin(self, cache: KvBlocks, max_model_len: int) -> None:
        """Serve from a cache that is empty."""
        super().begin(cache, max_model_len)
        self.watermark = 0 if self.whole else cache.usable // 100

    def fill(self, step: Step) -> None:
        """Say who takes part in a step."""
        before = list(self.running)
        if self.joins or not before:
            self.admit(step)
        step.tokens |= {request: request.left for request in before}

    def admit(self, step: Step, budget: int = sys.maxsize, *, whole: bool = True) -> None:
        """Admit waiting requests in order, each with its prompt (not `whole`: as much as fits)."""
        while self.waiting:
            request = self.waiting[0]
            blocks = self.cache.blocks_for(self.max_model_len if self.whole else request.known)
            count = 0 if request.sampled else request.left  # a request just preempted has nothing left
            if blocks > self.cache.free - self.watermark:
                reason = "blocks"
            elif len(self.running) >= self.max_num_seqs:
                reason = "seats"
            elif min(budget, count) <= 0 or (whole and count > budget):
                reason = "budget"
            else:
                count = min(count, budget)
                budget -= count
                request.blocks = self.cache.take(blocks)
                self.running.append(self.waiting.popleft())
                step.tokens[request], step.hits[request] = count, 0
                continue
            step.why, step.head = reason, request
            return


class Orca(Static):
    """In every step all running requests decode, and waiting ones join with their whole prompt."""

    joins = True


@dataclass(kw_only=True, eq=False, repr=False)
class VllmV0(Static):
    """A step is either as many prompts as fit, or a decode of all running requests.

    Parameters
    ----------
    max_num_batched_tokens : int
        Most prompt tokens of a step.
    """

    max_num_batched_tokens: int = 8192

    whole = False

    def has_all(self, request: Request) -> bool:
        """Return whether a request has all its tokens since its last admission."""
        return request.sampled >= request.output

    def fill(self, step: Step) -> None:
        """Say who takes part in a step."""
        self.admit(step, self.max_num_batched_tokens)
        if not step.tokens:
            step.tokens |= {request: request.left for request in self.decoding(step)}

    def decoding(self, step: Step) -> list[Request]:
        """Return the requests that decode, in order of arrival; the last to arrive make room."""
        pending = deque(sorted(self.running, key=lambda request: request.arrival_ns))
        running, decoding = [], []
        while pending:
            request = pending.popleft()
            if not request.sampled:  # its prompt is not computed yet
                running.append(request)
                continue
            while not self.cache.free:
                victim = pending.pop() if pending else request
                self.preempt(step, victim)
                if victim is request:
                    break
            else:
                if self.cache.blocks_for(request.known) > len(request.blocks):
                    request.blocks += self.cache.take(1)
                decoding.append(request)
                running.append(request)
        self.running = running
        return decoding


@dataclass(kw_only=True, eq=False, repr=False)
class Sarathi(VllmV0):
    """A step has a token budget: decodes first, then chunks of prompts.

    Parameters
    ----------
    max_num_batched_tokens : int
        Token budget of a step.
    """

    max_num_batched_tokens: int = 512

    def fill(self, step: Step) -> None:
        """Say who takes part in a step."""
        decoding = self.decoding(step)
        budget = self.max_num_batched_tokens - len(decoding)
        prompts = [request for request in self.running if request not in decoding]
        self.running = [*decoding, *prompts]
        for request in prompts:
            count = min(request.left, budget)
            if count > 0:
                step.tokens[request] = count
                budget -= count
        self.admit(step, budget, whole=False)
        step.tokens |= dict.fromkeys(decoding, 1)
