"""Routers, which choose a request's replica once, at its arrival.

::

    loads         unfinished requests of each replica; of equal replicas the first is chosen
    prefix-aware  uses the router's own record of what it sent where, not the contents of the caches
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import cycle, takewhile

from policies.serving.batcher import PrefixKeys, Request
from sim.base.errors import InputError


class RequestRouter:
    """Decides which replica serves a request; override `route`."""

    def begin(self, replicas: int, seed: int) -> None:
        """Start routing to `replicas` empty replicas."""

    def route(self, request: Request, loads: Sequence[int]) -> int:
        """Return the number of a replica; `loads` counts the unfinished requests of each."""
        raise InputError(f"{type(self).__name__} must define route(request, loads)")


class RoundRobin(RequestRouter):
    """The replicas in turn."""

    def begin(self, replicas: int, seed: int) -> None:
        """Start with the first replica."""
        self.turns = cycle(range(replicas))

    def route(self, request: Request, loads: Sequence[int]) -> int:
        """Return the next replica."""
        return next(self.turns)


class LeastOutstanding(RequestRouter):
    """The replica with the fewest unfinished requests.

    Source: microsoft/vidur 7d47513, ``global_scheduler/lor_global_scheduler.py``.
    """

    def route(self, request: Request, loads: Sequence[int]) -> int:
        """Return the least loaded replica."""
        return loads.index(min(loads))


class PowerOfTwo(RequestRouter):
    """The less loaded of two replicas drawn at random."""

    def begin(self, replicas: int, seed: int) -> None:
        """Start drawing by `seed`."""
        self.drawn = random.Random(seed)

    def route(self, request: Request, loads: Sequence[int]) -> int:
        """Return the less loaded of two."""
        two = self.drawn.sample(range(len(loads)), min(2, len(loads)))
        return min(sorted(two), key=loads.__getitem__)


class PrefixAware(RequestRouter):
    """The replica that was sent the longest prefix of a prompt, while loads are balanced.

    Prefixes are compared in blocks of tokens, where sglang compares characters of the text.

    Parameters
    ----------
    threshold : float
        Fraction of the prompt that must be known; otherwise the replica that was sent least is chosen.
    imbalance : (float, float)
        Difference and ratio of the greatest to the least load; if both are exceeded, the least loaded
        replica is chosen. sglang's command line has 64 and 1.5, and a threshold of 0.3.
    block_size : int
        Tokens per block compared.

    Source: sgl-project/sglang 026f853, ``sgl-router/src/policies/cache_aware.rs``.
    """

    def __init__(
        self, *, threshold: float = 0.5, imbalance: tuple[float, float] = (32, 1.1), block_size: int = 16
    ) -> None:
        self.threshold, self.imbalance, self.block_size = threshold, imbalance, block_size

    def begin(self, replicas: int, seed: int) -> None:
        """Start routing to `replicas` replicas, none of which was sent anything."""
        self.keys = PrefixKeys(self.block_size)
        self.sent: list[set[int]] = [set() for _ in range(replicas)]

    def route(self, request: Request, loads: Sequence[int]) -> int:
        """Return the replica that knows most of the prompt, or else the least used or least loaded one."""
        keys = self.keys.of(request)[: request.prompt // self.block_size]
        lowest, highest = min(loads), max(loads)
        if highest - lowest > self.imbalance[0] and highest > self.imbalance[1] * lowest:
            chosen = loads.index(lowest)
        else:
            matches = [sum(1 for _ in takewhile(sent.__contains__, keys)) for sent in self.sent]
            chosen = matches.index(max(matches))
            if matches[chosen] * self.block_size <= self.threshold * request.prompt:
                sizes = [len(sent) for sent in self.sent]
                chosen = sizes.index(min(sizes))
        self.sent[chosen].update(keys)
        return chosen
