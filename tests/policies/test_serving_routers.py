"""Routers, by hand: which replica serves a request."""

from __future__ import annotations

import tracemalloc
from collections import Counter

from serving_runs import linear_step

from policies.serving.batcher import PrefixKeys, Request
from policies.serving.kv_blocks import KvBlocks
from policies.serving.routers import LeastOutstanding, PowerOfTwo, PrefixAware, RequestRouter, RoundRobin
from policies.serving.vllm import Vllm019
from scenarios.serving.engine import Serve

PLAIN = Request("r", 0, 10, 1)


def begun(router: RequestRouter, replicas: int = 3, seed: int = 0) -> RequestRouter:
    """Return a router with so many replicas before it."""
    router.begin(replicas, seed)
    return router


def asked(name: str, *segments: tuple[str, int]) -> Request:
    """Return a request with a prompt of these parts."""
    return Request(name, 0, sum(tokens for _, tokens in segments), 1, segments=segments)


def test_a_key_ends_equal_prefixes_and_costs_nothing_to_remember() -> None:
    keys = PrefixKeys(4)
    one = keys.of(asked("one", ("system", 6), ("question", 6)))
    assert keys.of(asked("two", ("system", 6), ("question", 9)))[:3] == one
    other = keys.of(asked("three", ("system", 7), ("question", 6)))
    assert other[0] == one[0]
    assert not {*other[1:]} & {*one[1:]}
    tracemalloc.start()
    for i in range(100):
        keys.of(asked(f"r{i}", (f"prompt {i}", 4_000)))
    assert tracemalloc.get_traced_memory()[0] < 100_000
    tracemalloc.stop()


def test_round_robin() -> None:
    """One after the other, whatever their loads."""
    router = begun(RoundRobin())
    assert [router.route(PLAIN, [9, 0, 0]) for _ in range(5)] == [0, 1, 2, 0, 1]


def test_least_outstanding() -> None:
    """Of equals the first."""
    router = begun(LeastOutstanding())
    assert [router.route(PLAIN, loads) for loads in ([2, 1, 1], [0, 0, 0], [3, 2, 1])] == [1, 0, 2]


def test_power_of_two() -> None:
    """The most loaded is never chosen, and the others by chance of the seed; one replica is no choice."""
    routes = [begun(PowerOfTwo(), seed=7).route(PLAIN, [1, 5, 2]) for _ in range(2)]
    assert routes[0] == routes[1]
    router = begun(PowerOfTwo())
    found = Counter(router.route(PLAIN, [1, 5, 2]) for _ in range(3000))
    assert found.keys() == {0, 2}
    assert abs(found[2] - 1000) < 100  # drawn beside the one that has more
    assert begun(PowerOfTwo(), replicas=1).route(PLAIN, [4]) == 0


def test_prefix_aware_sends_where_the_prefix_was_sent() -> None:
    """Where more than the threshold of the prompt was sent before; else where least was sent."""
    router, even = begun(PrefixAware(block_size=4)), [0, 0, 0]
    assert router.route(asked("a", ("one", 8), ("a", 8)), even) == 0
    assert router.route(asked("b", ("two", 4)), even) == 1  # nothing known: replicas 1 and 2 have least
    assert router.route(asked("c", ("one", 8), ("c", 4)), even) == 0  # 8 of 12 tokens are known
    assert router.route(asked("d", ("one", 8), ("d", 8)), even) == 2  # 8 of 16: not more than half
    assert router.route(asked("e", ("one", 8), ("e", 1)), even) == 0  # both know them: the first
    assert router.route(asked("f", ("f", 40)), even) == 1  # sent 1, where the others were sent 5 and 4 blocks


def test_prefix_aware_keeps_the_balance() -> None:
    """Out of balance by both measures the least loaded is meant, and what it is sent is remembered."""
    router = begun(PrefixAware(imbalance=(2, 1.5), block_size=4))
    shared = ("one", 40)
    assert router.route(asked("a", shared), [0, 0, 0]) == 0
    assert router.route(asked("b", shared), [2, 0, 0]) == 0  # 2 more is not more than 2
    assert router.route(asked("c", shared), [9, 6, 6]) == 0  # 1.5 times is not more than 1.5 times
    assert router.route(asked("d", shared), [10, 7, 6]) == 2
    assert router.route(asked("e", ("one", 36)), [10, 10, 9]) == 0  # both know it: the first


def test_an_engine_asks_once_a_request() -> None:
    """At its arrival, with the loads of that moment; a replica serves what it was sent."""
    seen: list[list[int]] = []

    class Noted(LeastOutstanding):
        """Notes the loads that it is told."""

        def route(self, request: Request, loads: list[int]) -> int:  # type: ignore[override]
            """Return the least loaded replica."""
            seen.append(list(loads))
            return super().route(request, loads)

    batchers = [Vllm019(), Vllm019()]
    for batcher in batchers:
        batcher.begin(KvBlocks(50, 16, 1), 64)
    requests = [Request(f"r{i}", at, 16, 2) for i, at in enumerate([0, 0, 1, 10_000_000])]
    serve = Serve(linear_step(1_000_000), batchers, router=begun(Noted(), 2))
    serve.run(requests)
    assert seen == [[0, 0], [1, 0], [1, 1], [0, 0]]
    assert [request.replica for request in requests] == [0, 1, 0, 0]
    assert {*serve.passes.replica} == {0, 1}
