"""The incremental max-min solver against a full solve, and the kernel's network against the devices' one."""

from __future__ import annotations

import heapq
import itertools
import random
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from examples import drawn
from network_helpers import GB, Transfer, machine_of

from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from sim import Device, Graph, GraphBuilder, Link, Machine, simulate
from sim.base.compiled import load
from sim.job.build_job import make_job
from sim.kernel import maxmin
from sim.kernel import network as network_source
from sim.kernel.columns import NEVER, RouteColumns
from sim.kernel.maxmin import MaxMin
from sim.kernel.network import Net
from sim.kernel.run import run
from sim.machine.device import Details
from sim.machine.task import Task
from tests.kernel_helpers import KERNELS

SEQUENCES = drawn(500)
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
    rates = zip(solver.rate_n, solver.rate_d, solver.rate_long, solver.flows, strict=True)
    return {r: Fraction(*maxmin.whole(n, d, long)) for r, (n, d, long, flows) in enumerate(rates) if flows}


def assert_everybody_has_a_bottleneck(capacity: list[int], routes: list[list[int]], solver: MaxMin) -> None:
    rate, flows = rates_of(solver), list(solver.flows)
    users = [[r for r in rate if link in routes[r]] for link in range(len(capacity))]
    for link, c in enumerate(capacity):
        assert sum(rate[r] * flows[r] for r in users[link]) <= c
    for r in rate:
        link = solver.bottleneck[r]
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


@pytest.mark.parametrize("limit", [maxmin.LIMIT, 12])  # the other: nearly all numbers are long
@pytest.mark.parametrize("part", range(10))
def test_after_each_change_the_rates_are_those_of_a_full_solve(
    part: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maxmin, "LIMIT", limit)
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
            solver.solve()
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
        self.job, self.flow, self.now_ns, self.conditions = job, flow, 0, None
        self.calls: list[tuple[int, int, Any, Any]] = []
        self.settling: list[Any] = []
        self.ends: dict[int, int] = {}

    def call_at(self, time_ns: int, callback: Any, value: Any = None) -> None:
        heapq.heappush(self.calls, (time_ns, next(_NUMBERS), callback, value))

    def when_settled(self, callback: Any) -> None:
        self.settling.append(callback)

    def started(self, task: Any) -> None:
        task.start_ns = self.now_ns

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
        tensor=np.arange(len(transfers)),
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


def on_columns(
    machine: Machine, transfers: list[Transfer], network: Any = network_source
) -> list[tuple[int, int]] | None:
    """(start, end) of each transfer, from the network of the kernel; None: it gives up over a tie."""
    job: Any = SimpleNamespace(machine=machine)
    routes = make_network.columns(job, flow_of(machine, transfers))
    if isinstance(routes, str) and "a connection carries more" in routes:  # the definition alone can do this
        return defined(machine, transfers)
    assert not isinstance(routes, str), routes
    net = network.Net(routes, len(transfers))
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
        if net.status == network_source.TIE:
            return None
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


def test_transfers_with_long_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maxmin, "LIMIT", 12)
    given_up = 0
    for seed in range(SEQUENCES):
        draw = random.Random(seed)
        machine = random_machine(draw)
        transfers = random_transfers(draw, machine)
        found = on_columns(machine, transfers)
        given_up += found is None  # the engine on SimPy runs it then
        assert found is None or found == defined(machine, transfers), seed
    assert given_up <= SEQUENCES / 200


@pytest.mark.slow
@pytest.mark.parametrize("network", [network_source, load("network")])
def test_a_saturated_star_needs_rates_beyond_64_bits(network: Any) -> None:
    draw = random.Random(1)
    hosts = [f"h{i}" for i in range(32)]
    links = [
        Link(f"{a}>{b}", a, b, 0, 25 * GB, "shared")
        for host in hosts
        for a, b in ((host, "switch"), ("switch", host))
    ]
    devices = tuple(Device(name, "cpu", workers=1) for name in [*hosts, "switch"])
    machine = Machine(devices, tuple(links), network=make_network)
    transfers = [
        Transfer(draw.randint(0, 50), *draw.sample(hosts, 2), draw.randint(1, 900)) for _ in range(500)
    ]
    assert on_columns(machine, transfers, network) == defined(machine, transfers)


# -- runs -------------------------------------------------------------------------------------------


def layered(draw: random.Random, hosts: list[str], n: int) -> Graph:
    """Layers of ops on any host, with some predecessors in the layer before, and tensors of all sizes."""
    builder = GraphBuilder("layered")
    for i in range(n):
        before = [f"op{k}" for k in range(i - 2 * len(hosts), i - len(hosts)) if k >= 0]
        builder.op(
            f"op{i}",
            inputs=draw.sample(before, min(len(before), draw.randint(0, 3))),
            outputs=draw.choice([draw.randint(0, 400), 100]),
            duration_ns=draw.randint(0, 30),
            device=draw.choice(hosts),
        )
    return builder.build()


def links_of(shape: str, hosts: list[str], sharing: str) -> list[Link]:
    rate = 5 * GB
    if shape == "star":
        pairs = [pair for host in hosts for pair in ((host, "switch"), ("switch", host))]
        return [Link(f"{a}-{b}", a, b, 1, rate, sharing) for a, b in pairs]
    if shape == "chain":
        pairs = [pair for a, b in itertools.pairwise(hosts) for pair in ((a, b), (b, a))]
        return [Link(f"{a}-{b}", a, b, 0, rate, sharing) for a, b in pairs]
    ends = [Link(f"{host}+", host, "in") for host in hosts] + [
        Link(f"{host}-", "out", host) for host in hosts
    ]
    return [*ends, Link("bus", "in", "out", 2, rate, sharing)]


@pytest.mark.parametrize("sharing", ["shared", "serial"])
@pytest.mark.parametrize(("shape", "n_hosts"), [("star", 8), ("star", 32), ("chain", 5), ("bus", 6)])
def test_every_column_of_a_run_is_that_of_the_engine(shape: str, n_hosts: int, sharing: str) -> None:
    hosts = [f"h{i}" for i in range(n_hosts)]
    links = links_of(shape, hosts, sharing)
    names = sorted({end for link in links for end in (link.source, link.destination)})
    machine = Machine(
        tuple(Device(name, "cpu", workers=1) for name in names), tuple(links), network=make_network
    )
    for seed in range(max(3, SEQUENCES // 100)):
        draw = random.Random(seed)
        graph = layered(draw, hosts, 4 * n_hosts + 20)
        iterations = draw.choice([1, 2])
        expected = simulate(graph, machine, ReadyQueue(), iterations=iterations, engine="simpy")
        assert len(expected.transfers["id"]) > n_hosts
        for pure in KERNELS:
            found = run(make_job(graph, machine, iterations=iterations), ReadyQueue(), pure=pure)
            assert not isinstance(found, str), found
            for mine, defined in ((found.tasks, expected.tasks), (found.transfers, expected.transfers)):
                assert list(mine) == list(defined)
                for name, column in defined.items():
                    np.testing.assert_array_equal(mine[name], column, err_msg=name)


# -- limits -----------------------------------------------------------------------------------------


def net_of(capacity: list[int], routes: list[list[int]], work: list[int]) -> Net:
    """A network in which move i takes route i, without latency."""
    n = len(routes)
    first = [0, *itertools.accumulate(len(route) for route in routes)]
    links = [link for route in routes for link in route]
    ways = list(range(n))
    return Net(RouteColumns(ways, work, [0] * n, [0] * n, [0] * (n + 1), [], ways, first, links, capacity), n)


def test_a_share_that_needs_more_than_64_bits() -> None:
    # Each link has other flows, and one that the last holds back: the denominators multiply.
    n = 20
    capacity = [10**6 + 7 * k for k in range(n + 1)]
    routes = [[k, k + 1] for k in range(n)] + [[k] for k in range(n)]
    flows = [1] * n + [97 + 2 * k for k in range(n)]
    solver = solver_of(capacity, routes)
    for route, more in enumerate(flows):
        solver.count(route, more)
    solver.solve()
    assert rates_of(solver) == progressive_filling(capacity, routes, flows)
    assert 0 in solver.rate_d


def test_virtual_time_goes_on_when_it_gets_long() -> None:
    # A link that is never idle: virtual time passes 2**60 units several times.
    size, n = (1 << 59) + 7, 12
    net = net_of([1 << 20, 1 << 20], [[0]] * 2 * n, [size] * 2 * n)
    expected, ends = [], []
    net.start(0, 0, 0)
    net.settle(0)
    for move in range(1, n):
        now = net.next_ns - 5  # the next begins just before the last ends
        net.start(move, move, now)
        net.settle(now)
        ends.append(net.next_ns)
        net.advance(net.next_ns)
        net.settle(ends[-1])
    rate, left, at = 1 << 20, Fraction(size), 0
    for _ in range(1, n):
        begin = at + -(-left // rate) - 5
        left -= rate * (begin - at)  # of the first, when the second begins
        end = begin + -(-left // Fraction(rate, 2))
        expected.append(end)
        left = size - Fraction(rate, 2) * (end - begin)
        at = end
    assert ends == expected
    assert net.status == 0


@pytest.mark.parametrize("limit", [maxmin.LIMIT, 1])  # the other: all rates are long
@pytest.mark.parametrize(
    ("rate", "works", "instants"),
    [
        (1, [1 << 59, 1 << 59], [0]),  # together they take 2**60 ns
        ((1 << 59) + 1, [(1 << 60) - 1], [0, 2]),  # in two ns more than 2**60 units could be moved
    ],
)
def test_what_60_bits_cannot_count_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, limit: int, rate: int, works: list[int], instants: list[int]
) -> None:
    monkeypatch.setattr(maxmin, "LIMIT", limit)
    net = net_of([rate], [[0]] * len(works), works)
    for move in range(len(works)):
        net.start(move, move, 0)
    for now in instants:
        assert net.status == 0
        net.advance(now)
        net.settle(now)
    assert net.status == network_source.TOO_LARGE


@pytest.mark.parametrize("pure", KERNELS)
def test_a_run_that_60_bits_cannot_count_is_left_to_simpy(pure: bool) -> None:
    machine = machine_of([Link("wire", "a", "b", 0, GB, "shared")])
    b = GraphBuilder("two of half the limit")
    for k in range(2):
        b.op(f"make{k}", outputs=1 << 59, duration_ns=0, device="a")
        b.op(f"use{k}", inputs=[f"make{k}"], duration_ns=0, device="b")
    job = make_job(b.build(), machine)
    assert run(job, ReadyQueue(), pure=pure) == "the work of transfers needs more than 60 bits"
    assert simulate(b.build(), machine, ReadyQueue()).makespan_ns == 1 << 60


def test_a_tie_after_roundings_is_still_one() -> None:
    # One unit a ns for flows of 2, 3 and 3; a fourth of 1 comes at 1, with virtual time at 1/3, for 4 ns.
    # Then virtual time is 4/3, and at 7 it is 2: the first ends then, and not a ns later.
    net = net_of([1], [[0], [0], [0], [0]], [2, 3, 3, 1])
    for move in range(3):
        net.start(move, move, 0)
    net.settle(0)
    net.start(3, 3, 1)
    net.settle(1)
    spans: dict[int, int] = {}
    while net.next_ns < NEVER:
        now = net.next_ns
        net.advance(now)
        net.settle(now)
        spans |= dict.fromkeys(list(net.ended[: net.n_ended]), now)
        net.n_ended = 0
    assert (net.status, spans) == (0, {3: 5, 0: 7, 1: 9, 2: 9})
