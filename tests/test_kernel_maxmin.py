"""The incremental max-min solver against a full solve, and the kernel's network against the devices' one."""

from __future__ import annotations

import heapq
import itertools
import os
import random
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from network_helpers import GB, Transfer

from devices.network import make_network
from devices.network.columns import network_columns
from sim import Device, Link, Machine
from sim.details import Details
from sim.kernel.maxmin import MaxMin
from sim.kernel.network import Net
from sim.kernel.routes import NEVER
from sim.task import Task

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
        users = {link: sum(flows[r] for r in waiting if link in routes[r]) for link in range(len(capacity))}
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


def assert_everybody_has_a_bottleneck(capacity: list[int], routes: list[list[int]], solver: MaxMin) -> None:
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


# -- transfers --------------------------------------------------------------------------------------


class Clock:
    """A context for a network that only calls back: all calls of an instant, then whoever settles it."""

    def __init__(self, job: Any, flow: Any) -> None:
        self.job, self.flow, self.now_ns = job, flow, 0
        self.calls: list[tuple[int, int, Any, Any]] = []
        self.settling: list[Any] = []
        self.ends: dict[int, int] = {}

    def call_at(self, time_ns: int, callback: Any, value: Any = None) -> None:
        heapq.heappush(self.calls, (time_ns, next(_NUMBERS), callback, value))

    def when_settled(self, callback: Any) -> None:
        self.settling.append(callback)

    def finish(self, task: Any) -> None:
        self.ends[task.id] = self.now_ns

    def run(self) -> None:
        while self.calls:
            self.now_ns = self.calls[0][0]
            while self.calls and self.calls[0][0] == self.now_ns:
                _, _, callback, value = heapq.heappop(self.calls)
                callback(value)
            while self.settling:
                self.settling.pop()()


_NUMBERS = itertools.count()


def flow_of(machine: Machine, transfers: list[Transfer]) -> Any:
    return SimpleNamespace(
        n_ops=0,
        source=np.array([machine.device_index(t.source) for t in transfers], np.int64),
        destination=np.array([machine.device_index(t.destination) for t in transfers], np.int64),
        nbytes=np.array([t.nbytes for t in transfers], np.int64),
    )


def defined(machine: Machine, transfers: list[Transfer]) -> list[tuple[int, int]]:
    """(start, end) of each transfer, from the network of the devices."""
    clock: Any = Clock(SimpleNamespace(machine=machine), flow_of(machine, transfers))
    carrier = make_network(machine, clock)
    tasks = [Task(i, i, 0, -1) for i in range(len(transfers))]
    for task, move in zip(tasks, transfers, strict=True):
        clock.call_at(move.ready_ns, carrier.start, task)
    clock.run()
    return [(task.start_ns, clock.ends[task.id]) for task in tasks]


def on_columns(machine: Machine, transfers: list[Transfer]) -> list[tuple[int, int]]:
    """(start, end) of each transfer, from the network of the kernel."""
    job: Any = SimpleNamespace(machine=machine)
    routes = network_columns(job, flow_of(machine, transfers))
    assert not isinstance(routes, str), routes
    net = Net(routes, len(transfers))
    order = sorted(range(len(transfers)), key=lambda i: transfers[i].ready_ns)
    spans = [[-1, -1] for _ in transfers]
    following = now = 0
    while True:
        if following < len(order):
            now = min(net.next_ns, transfers[order[following]].ready_ns)
        elif net.next_ns < NEVER:
            now = net.next_ns
        else:
            break
        if net.next_ns == now:
            net.advance(now)
        while following < len(order) and transfers[order[following]].ready_ns == now:
            net.start(order[following], order[following], now)
            following += 1
        net.settle(now)
        assert net.status == 0
        for i in list(net.begun[: net.n_begun]):
            spans[i][0] = now
        for i in list(net.ended[: net.n_ended]):
            spans[i][1] = now
        net.n_begun = net.n_ended = 0
    return [(start, end) for start, end in spans]


def random_machine(draw: random.Random) -> Machine:
    """Hosts in a star, a chain, on one bus, or linked at random, with everything that a link may be."""
    hosts = [f"h{i}" for i in range(draw.choice([2, 3, 4, 8]))]
    kind = draw.choice(["star", "chain", "bus", "any"])
    exact = draw.random() < 0.5  # whole bytes a ns; ends then often fall together
    latency = draw.choice([0, 0, 3])

    def link(source: str, destination: str, sharing: str) -> Link:
        rate = draw.randint(1, 8) * GB if exact else draw.randint(GB, 30 * GB)
        return Link(
            f"{source}-{destination}",
            source,
            destination,
            draw.randint(0, latency),
            None if draw.random() < 0.1 else rate,
            sharing,
        )

    sharing = draw.choice(["serial", "shared", "shared", "shared", "mixed", "independent"])

    def word() -> str:
        return draw.choice(["serial", "shared"]) if sharing == "mixed" else sharing

    links = []
    if kind == "star":
        for host in hosts:
            links += [link(host, "switch", word()), link("switch", host, word())]
    elif kind == "chain":
        for a, b in itertools.pairwise(hosts):
            links += [link(a, b, word()), link(b, a, word())]
    elif kind == "bus":
        links += [link("switch", "bus", word())]
        for host in hosts:
            links += [Link(f"{host}+", host, "switch", 0, None, word()), Link(f"{host}-", "bus", host)]
    else:
        for a in hosts:
            for b in hosts:
                if a != b:
                    links += [link(a, b, word())]
    names = sorted({end for each in links for end in (each.source, each.destination)})
    details = Details(copy_engines=draw.choice([1, 2])) if draw.random() < 0.2 else Details()
    devices = [Device(name, "cpu", workers=1, details=details) for name in names]
    if draw.random() < 0.2:
        rate = draw.randint(1, 6) * GB
        devices = [
            replace(d, workers=k % 2, pageable=k % 2 == 1, staging_bytes_per_s=rate if k % 2 else None)
            for k, d in enumerate(devices)
        ]
    return Machine(tuple(devices), tuple(links), network=make_network)


def random_transfers(draw: random.Random, machine: Machine) -> list[Transfer]:
    hosts = [d.name for d in machine.devices if d.name.startswith("h")]
    pairs = [(a, b) for a in hosts for b in hosts if a != b]
    sizes = draw.choice([(0, 300), (0, 3), (100, 100), (10**6, 10**8)])
    times = draw.choice([0, 20, 300, 10**6])
    return [
        Transfer(draw.randint(0, times), *draw.choice(pairs), draw.randint(*sizes))
        for _ in range(draw.randint(1, draw.choice([5, 40])))
    ]


@pytest.mark.parametrize("part", range(10))
def test_transfers_start_and_end_as_the_network_of_the_devices_has_it(part: int) -> None:
    for seed in range(part, SEQUENCES, 10):
        draw = random.Random(seed)
        machine = random_machine(draw)
        transfers = random_transfers(draw, machine)
        assert on_columns(machine, transfers) == defined(machine, transfers), seed
