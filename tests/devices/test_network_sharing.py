"""Shared links: exact hand-worked cases, and every arrival against an independent water-filling."""

from __future__ import annotations

import heapq
from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from network_helpers import GB, Transfer, arrivals, machine_of, max_min

from devices import network as flows
from devices.fair_sharing import EqualShare, fill
from sim import Link


def shared(name: str, source: str, destination: str, rate: int, latency_ns: int = 0) -> Link:
    return Link(name, source, destination, latency_ns, rate, "shared")


def test_two_equal_flows_get_half_each() -> None:
    machine = machine_of([shared("l", "a", "b", GB)])
    assert arrivals(machine, [Transfer(0, "a", "b", 100)]) == [100]
    assert arrivals(machine, [Transfer(0, "a", "b", 100)] * 2) == [200, 200]


def test_a_later_flow_takes_its_half_from_then_on() -> None:
    # At 1 B/ns: the first is alone until 50 (50 of 100 sent), then each has half. The first ends at
    # 50 + 50 * 2 = 150, when the second has 50 of 100; alone again, that ends at 150 + 50 = 200.
    machine = machine_of([shared("l", "a", "b", GB)])
    assert arrivals(machine, [Transfer(0, "a", "b", 100), Transfer(50, "a", "b", 100)]) == [150, 200]


def test_three_flows_on_two_links() -> None:
    # a-b has 10 B/ns, b-c has 4. Flow 1 goes over both; b-c gives 2 to each of its flows, flow 0 the rest: 8.
    # 800 B for flow 0 take 100 ns; flows 1 and 2 send 200 B in that time, and 100 more in 50 ns.
    machine = machine_of([shared("ab", "a", "b", 10 * GB), shared("bc", "b", "c", 4 * GB)])
    transfers = [Transfer(0, "a", "b", 800), Transfer(0, "a", "c", 300), Transfer(0, "b", "c", 300)]
    assert max_min([[0], [0, 1], [1]], {0: 10, 1: 4}) == [8, 2, 2]
    assert arrivals(machine, transfers) == [100, 150, 150]


def test_who_cannot_use_his_share_leaves_it_to_the_others() -> None:
    # Link 1 lets flow 0 have only 1; the other two share what is left of link 0.
    assert max_min([[0, 1], [0], [0]], {0: 10, 1: 1}) == [1, Fraction(9, 2), Fraction(9, 2)]


def test_latency_comes_before_the_bytes_and_takes_no_bandwidth() -> None:
    # Both start at 0; the bytes of the second flow begin at 30 and share from then on.
    # First: 30 alone, 70 left at half rate: 30 + 140 = 170. Second: 70 of 100 by then, 30 alone: 200.
    links = [shared("ab", "a", "b", GB), shared("cb", "c", "a", 1000 * GB, 30)]
    machine = machine_of(links)
    assert arrivals(machine, [Transfer(0, "a", "b", 100)]) == [100]
    assert arrivals(machine, [Transfer(0, "a", "b", 100), Transfer(0, "c", "b", 100)]) == [170, 200]


def test_a_part_of_a_nanosecond_counts_as_a_whole_one() -> None:
    machine = machine_of([shared("l", "a", "b", 3 * GB)])
    assert arrivals(machine, [Transfer(0, "a", "b", 10)]) == [4]  # 3.33 ns
    assert arrivals(machine, [Transfer(0, "a", "b", 10)] * 3) == [10, 10, 10]


def test_nothing_to_send_takes_the_latency_and_no_share() -> None:
    machine = machine_of([shared("l", "a", "b", GB, 5)])
    assert arrivals(machine, [Transfer(0, "a", "b", 0), Transfer(0, "a", "b", 100)]) == [5, 105]


def test_without_bandwidth_there_is_only_latency() -> None:
    machine = machine_of([Link("l", "a", "b", 7, None, "shared")])
    assert arrivals(machine, [Transfer(0, "a", "b", 10**9)] * 2) == [7, 7]


def test_a_serial_link_behind_a_shared_one_limits_the_rate() -> None:
    # a-b is shared at 10, b-c is serial at 4. The transfers to c go one after another, at 4 at most; the one
    # to b has the other 6: 600 B in 100 ns. To c: 400 B in 100 ns, then the second in another 100.
    machine = machine_of([shared("ab", "a", "b", 10 * GB), Link("bc", "b", "c", 0, 4 * GB, "serial")])
    transfers = [Transfer(0, "a", "c", 400), Transfer(0, "a", "c", 400), Transfer(0, "a", "b", 600)]
    assert arrivals(machine, transfers) == [100, 200, 100]


# -- against an independent computation -------------------------------------------------------------

NAMES = "abcd"
LINKS = [("a", "b"), ("b", "c"), ("c", "d"), ("a", "d"), ("b", "a"), ("d", "c")]


def raise_together(routes: list[tuple[int, ...]], capacity: dict[int, int]) -> list[Fraction]:
    """Max-min by raising all rates in small exact steps: the definition, without cleverness."""
    rate = [Fraction(0)] * len(routes)
    free = set(range(len(routes)))
    while free:
        slack = {k: capacity[k] - sum(rate[f] for f, r in enumerate(routes) if k in r) for k in capacity}
        step = min(
            slack[k] / Fraction(sum(k in routes[f] for f in free))
            for k in capacity
            if any(k in routes[f] for f in free)
        )
        for f in free:
            rate[f] += step
        full = {k for k in capacity if sum(rate[f] for f, r in enumerate(routes) if k in r) == capacity[k]}
        free = {f for f in free if not full & set(routes[f])}
    return rate


def water_filling(machine: Any, transfers: list[Transfer]) -> list[int]:
    """Arrival of each transfer when all links are shared: everything is recomputed at every instant."""
    routes = [
        machine.route(machine.device_index(t.source), machine.device_index(t.destination)) for t in transfers
    ]
    capacity = {k: link.bandwidth_bytes_per_s for k, link in enumerate(machine.links)}
    begin = [
        t.ready_ns + sum(machine.links[k].latency_ns for k in r)
        for t, r in zip(transfers, routes, strict=True)
    ]
    left = {i: Fraction(t.nbytes * 10**9) for i, t in enumerate(transfers) if t.nbytes}
    end = {i: begin[i] for i, t in enumerate(transfers) if not t.nbytes}
    now = 0
    while left:
        active = sorted(i for i in left if begin[i] <= now)
        rate = dict(zip(active, raise_together([routes[i] for i in active], capacity), strict=True))
        instants = [begin[i] for i in left if begin[i] > now]
        instants += [now + ceil(left[i] / rate[i]) for i in active]
        then = min(instants)
        for i in active:
            left[i] -= rate[i] * (then - now)
            if left[i] <= 0:
                del left[i]
                end[i] = then
        now = then
    return [end[i] for i in range(len(transfers))]


def connected(source: str, destination: str) -> bool:
    reached, frontier = {source}, {source}
    while frontier:
        frontier = {b for a, b in LINKS if a in frontier} - reached
        reached |= frontier
    return destination in reached and source != destination


PAIRS = [(a, b) for a in NAMES for b in NAMES if connected(a, b)]


@examples(150)
@given(
    rates=st.lists(st.integers(1, 7), min_size=len(LINKS), max_size=len(LINKS)),
    latencies=st.lists(st.integers(0, 9), min_size=len(LINKS), max_size=len(LINKS)),
    transfers=st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from(PAIRS), st.integers(0, 300)), min_size=1, max_size=12
    ),
)
def test_every_arrival_agrees_with_water_filling(
    rates: list[int], latencies: list[int], transfers: list[tuple[int, tuple[str, str], int]]
) -> None:
    links = [
        shared(f"{a}{b}", a, b, rate * GB, latency)
        for (a, b), rate, latency in zip(LINKS, rates, latencies, strict=True)
    ]
    machine = machine_of(links)
    moves = [Transfer(ready, a, b, nbytes) for ready, (a, b), nbytes in transfers]
    assert arrivals(machine, moves) == water_filling(machine, moves)


@examples(100)
@given(
    st.integers(1, 7),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 300)), min_size=1, max_size=25),
)
def test_a_single_link_in_virtual_time_agrees_too(rate: int, transfers: list[tuple[int, int]]) -> None:
    machine = machine_of([shared("ab", "a", "b", rate * GB)])
    moves = [Transfer(ready, "a", "b", nbytes) for ready, nbytes in transfers]
    assert arrivals(machine, moves) == water_filling(machine, moves)


@given(
    st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4, unique=True), min_size=1, max_size=12),
    st.lists(st.integers(1, 1000), min_size=6, max_size=6),
)
def test_max_min_is_the_definition(routes: list[list[int]], capacities: list[int]) -> None:
    capacity = dict(enumerate(capacities))
    rates = max_min(routes, capacity)
    assert rates == raise_together([tuple(route) for route in routes], capacity)
    for flow, route in enumerate(routes):  # each flow has a full link on which nobody has more
        assert any(
            sum(rates[f] for f, r in enumerate(routes) if k in r) == capacity[k]
            and rates[flow] == max(rates[f] for f, r in enumerate(routes) if k in r)
            for k in route
        )


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 4), min_size=1, max_size=3, unique=True), st.integers(1, 5)),
        min_size=1,
        max_size=6,
    ),
    st.lists(st.integers(10**15, 10**15 + 3), min_size=5, max_size=5),
)
def test_flows_of_one_route_count_one_by_one(
    routes: list[tuple[list[int], int]], capacities: list[int]
) -> None:
    """Also where capacities differ by less than floating point tells apart."""
    capacity = dict(enumerate(capacities))
    one_by_one = max_min([route for route, n in routes for _ in range(n)], capacity)
    together = max_min([route for route, _ in routes], capacity, [n for _, n in routes])
    assert [rate for rate, (_, n) in zip(together, routes, strict=True) for _ in range(n)] == one_by_one
    assert one_by_one == raise_together([tuple(route) for route, n in routes for _ in range(n)], capacity)


class Clock:
    """A context that only calls back; `run` returns how often."""

    def __init__(self) -> None:
        self.now_ns = self.number = 0
        self.calls: list[tuple[int, int, Any, Any]] = []

    def call_at(self, time_ns: int, callback: Any, value: Any = None) -> None:
        self.number += 1
        heapq.heappush(self.calls, (time_ns, self.number, callback, value))

    def when_settled(self, callback: Any) -> None:
        self.call_at(self.now_ns, lambda _: callback())

    def run(self) -> int:
        fired = 0
        while self.calls:
            self.now_ns, _, callback, value = heapq.heappop(self.calls)
            callback(value)
            fired += 1
        return fired


def test_a_change_elsewhere_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are computed for the connected component of a change, and for routes, not for flows."""
    clock: Any = Clock()
    sizes: list[int] = []

    def counting(links: Any, stamp: int) -> None:
        sizes.append(len({id(route) for link in links for route in link.routes.values()}))
        fill(links, stamp)

    monkeypatch.setattr(flows, "fill", counting)
    arrived: list[int] = []
    fair = flows.FairFlows(clock, {0: GB, 1: GB, 2: GB}, arrived.append)
    for i in range(500):
        fair.add(i, 100 + i, (0,))
        fair.add(1000 + i, 100 + i, (1, 2))
    clock.run()
    assert sorted(arrived) == [*range(500), *range(1000, 1500)]
    assert max(sizes) == 1  # not even when all begin together
    assert sum(sizes) <= 2 + 2 * 500


def test_a_thousand_flows_cost_little_each() -> None:
    """No flow looks at the others: calls grow with the number of flows, not with its square."""
    clock: Any = Clock()
    asked = []
    done: list[int] = []

    def speed(n: int) -> Fraction:
        asked.append(n)
        return Fraction(1, n)

    share = EqualShare(clock, speed, done.append)
    for i in range(1000):
        share.add(i, 10 + i)
    fired = clock.run()
    assert done == list(range(1000))
    assert len(asked) <= 2000
    assert fired <= 2001


@pytest.mark.parametrize("sharing", ["serial", "shared"])
def test_a_lone_transfer_takes_as_long_on_either(sharing: str) -> None:
    links = [Link("ab", "a", "b", 3, 3 * GB, sharing), Link("bc", "b", "c", 4, 7 * GB, sharing)]
    assert arrivals(machine_of(links), [Transfer(2, "a", "c", 100)]) == [2 + 3 + 4 + 34]  # 100 / 3 is 33.3
