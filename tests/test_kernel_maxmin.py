"""The incremental max-min solver against a full solve, and the kernel's network against the devices' one."""

from __future__ import annotations

import os
import random
from fractions import Fraction

import pytest

from sim.kernel.maxmin import MaxMin

SEQUENCES = 10_000 if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else 300
"""How many random sequences of changes are drawn."""


# -- rates ------------------------------------------------------------------------------------------


def progressive_filling(
    capacity: list[int], routes: list[list[int]], flows: list[int]
) -> dict[int, Fraction]:
    """Rate of a flow of each route that has any: all rates rise together until a link is full, and so on."""
    left = [Fraction(c) for c in capacity]
    waiting = {r for r, n in enumerate(flows) if n}
    rate: dict[int, Fraction] = {}
    while waiting:
        users = {
            link: sum(flows[r] for r in waiting if link in routes[r]) for link in range(len(capacity))
        }
        level = min(left[link] / n for link, n in users.items() if n)
        full = {link for link, n in users.items() if n and left[link] / n == level}
        for r in sorted(waiting):
            if full & set(routes[r]):
                rate[r] = level
                waiting.remove(r)
                for link in routes[r]:
                    left[link] -= level * flows[r]
    return rate


def rates_of(solver: MaxMin) -> dict[int, Fraction]:
    return {r: Fraction(solver.rate_n[r], solver.rate_d[r]) for r, n in enumerate(solver.flows) if n}


def assert_everybody_has_a_bottleneck(
    capacity: list[int], routes: list[list[int]], solver: MaxMin
) -> None:
    rate, flows = rates_of(solver), list(solver.flows)
    users = [[r for r in rate if link in routes[r]] for link in range(len(capacity))]
    for link, c in enumerate(capacity):
        assert sum(rate[r] * flows[r] for r in users[link]) <= c
    for r in rate:
        link = solver.at[r]
        assert link in routes[r]
        assert sum(rate[other] * flows[other] for other in users[link]) == capacity[link]
        assert rate[r] == max(rate[other] for other in users[link])


def random_network(draw: random.Random) -> tuple[list[int], list[list[int]]]:
    """A handful of links and routes: at random, a star of hosts, or a chain."""
    kind = draw.choice(["any", "any", "star", "chain", "one"])
    if kind == "one":
        return [draw.randint(1, 20)], [[0]]
    if kind == "star":
        hosts = draw.randint(2, 6)
        routes = [[i, hosts + j] for i in range(hosts) for j in range(hosts) if i != j]
        return [draw.randint(1, draw.choice([1, 12]))] * (2 * hosts), routes
    n = draw.randint(1, 8)
    capacity = [draw.randint(1, draw.choice([4, 100])) for _ in range(n)]
    if kind == "chain":
        return capacity, [list(range(a, b)) for a in range(n) for b in range(a + 1, n + 1)]
    return capacity, [draw.sample(range(n), draw.randint(1, n)) for _ in range(draw.randint(1, 12))]


def solver_of(capacity: list[int], routes: list[list[int]]) -> MaxMin:
    first = [0]
    for route in routes:
        first.append(first[-1] + len(route))
    return MaxMin(capacity, first, [link for route in routes for link in route])


@pytest.mark.parametrize("part", range(10))
def test_after_each_change_the_rates_are_those_of_a_full_solve(part: int) -> None:
    for seed in range(part, SEQUENCES, 10):
        draw = random.Random(seed)
        capacity, routes = random_network(draw)
        solver = solver_of(capacity, routes)
        flows = [0] * len(routes)
        before: dict[int, Fraction] = {}
        for _ in range(draw.randint(1, 25)):
            counted: set[int] = set()
            for _ in range(draw.choice([1, 1, 1, 2, 5])):  # changes of one instant
                r = draw.randrange(len(routes))
                more = draw.choice([-1, 1]) * draw.choice([1, 1, 3]) if flows[r] else draw.randint(1, 3)
                more = max(more, -flows[r])
                flows[r] += more
                solver.count(r, more)
                counted.add(r)
            assert solver.solve() == 0
            rate = rates_of(solver)
            assert rate == progressive_filling(capacity, routes, flows)
            assert_everybody_has_a_bottleneck(capacity, routes, solver)
            changed = set(list(solver.changed)[: solver.n_changed])
            assert changed >= {r for r in rate if rate[r] != before.get(r) or r in counted}
            before = rate
