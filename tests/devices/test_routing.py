"""Routes: the shortest as an independent search finds them, ECMP by its hash, and those that are given."""

from __future__ import annotations

import heapq
from collections import Counter
from hashlib import blake2b
from itertools import product

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from network_helpers import GB, Transfer, moved, run

from devices.machine import make_machine
from sim import Device, Link, Machine
from sim.base.arrays import distinct_rows
from sim.base.errors import InfeasibleError, InputError, SimError
from sim.machine.links import Router, Routing, ecmp_hash
from sim.metrics import link_use


def dijkstra(machine: Machine, source: int, destination: int) -> tuple[int, ...] | None:
    """Return the route by fewest hops, least latency and first links: a search from the source."""
    names = [device.name for device in machine.devices]
    found = [(0, 0, (), source)]
    passed = set()
    while found:
        hops, latency_ns, path, at = heapq.heappop(found)
        if at == destination:
            return path
        if at not in passed:
            passed.add(at)
            for k, link in enumerate(machine.links):
                if link.source == names[at]:
                    there = names.index(link.destination)
                    heapq.heappush(found, (hops + 1, latency_ns + link.latency_ns, (*path, k), there))
    return None


def shortest_ways(machine: Machine, source: int, destination: int) -> set[tuple[int, ...]]:
    """Return all routes of the fewest hops and least latency, by trying all walks."""
    names = [device.name for device in machine.devices]
    walks: list[tuple[tuple[int, ...], int]] = [((), source)]
    for _ in names:
        arrived = [path for path, at in walks if at == destination]
        if arrived:
            latency = {path: sum(machine.links[k].latency_ns for k in path) for path in arrived}
            return {path for path in arrived if latency[path] == min(latency.values())}
        walks = [
            ((*path, k), names.index(link.destination))
            for path, at in walks
            for k, link in enumerate(machine.links)
            if link.source == names[at]
        ]
    return set()


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    n = draw(st.integers(2, 6))
    ends = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.integers(0, 2))
    links = [
        Link(f"l{k}", f"d{a}", f"d{b}", latency)
        for k, (a, b, latency) in enumerate(draw(st.lists(ends, min_size=1, max_size=12)))
        if a != b
    ]
    routing = Routing("ecmp", draw(st.integers(0, 9)))
    return Machine(tuple(Device(f"d{k}") for k in range(n)), tuple(links), routing=routing)


@given(machines())
@examples(100)
def test_routes_are_the_shortest(machine: Machine) -> None:
    plain = Machine(machine.devices, machine.links)
    for a in range(len(machine.devices)):
        for b in range(len(machine.devices)):
            if a == b or not machine.links:
                continue
            expected = dijkstra(machine, a, b)
            if expected is None:
                with pytest.raises(InfeasibleError, match="no route of links leads"):
                    plain.route(a, b)
            else:
                assert plain.route(a, b) == expected
                flows = {machine.route(a, b, flow) for flow in range(8)}
                assert flows <= shortest_ways(machine, a, b)


@examples(30)
@given(machines(), st.sampled_from(["shortest", "ecmp"]))
def test_a_router_that_knows_ways_answers_as_a_new_one(machine: Machine, kind: str) -> None:
    names = [device.name for device in machine.devices]
    knowing = Router(names, machine.links, Routing(kind, 3))
    for flow, a, b in product(range(3), range(len(names)), range(len(names))):
        if a != b:
            new = Router(names, machine.links, Routing(kind, 3))
            assert reached(knowing, a, b, flow) == reached(new, a, b, flow)


@pytest.mark.parametrize("kind", ["shortest", "ecmp"])
def test_ways_are_looked_for_once_for_all_flows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = leaf_spine(0)
    router = Router([device.name for device in machine.devices], machine.links, Routing(kind, 3))
    router.route(0, 15)
    monkeypatch.setattr("sim.machine.links._step", lambda *ends: pytest.fail("looked again"))
    routes = {router.route(0, 15, flow) for flow in range(50)}
    assert len(routes) == (4 if kind == "ecmp" else 1)


def reached(router: Router, a: int, b: int, flow: int = 0) -> tuple[int, ...] | None:
    """Return a route, None where there is none."""
    try:
        return router.route(a, b, flow)
    except InfeasibleError:
        return None


def leaf_spine(seed: int, spines: int = 4) -> Machine:
    return make_machine(
        {
            "devices": {"gpu": {"kind": "cpu", "cores": 64, "count": 16}},
            "topology": {
                "kind": "rail-optimised",
                "ends": "gpu*",
                "nodes_per_leaf": 8,
                "spines": spines,
                "link": {"bandwidth": "1GB/s"},
                "uplink": {"bandwidth": "1GB/s"},
            },
            "routing": {"name": "ecmp", "seed": seed},
        }
    )


def spine_of(seed: int, a: int, b: int, flow: int, spines: int = 4) -> int:
    """Return the spine over which a flow goes, from the words of the documentation alone."""
    text = f"{seed}\0gpu{a}\0gpu{b}\0{flow}\0leaf{a // 8}.0"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") % spines


@pytest.mark.parametrize("seed", [0, 1, 7])
def test_ecmp_collisions_are_those_of_the_hash(seed: int) -> None:
    # Eight flows from leaf 0 to leaf 1, each on ports of its own: who shares an uplink shares its bandwidth.
    machine = leaf_spine(seed)
    transfers = [Transfer(0, f"gpu{k}", f"gpu{8 + k}", 1000) for k in range(8)]
    trace = run(machine, transfers)
    moves = trace.transfers
    spine = {
        int(a): spine_of(seed, int(a), int(b), int(tensor))
        for a, b, tensor in zip(moves["source"], moves["destination"], moves["tensor"], strict=True)
    }
    load = Counter(spine.values())
    expected = [(0, 1000 * load[spine[k]]) for k in range(8)]
    assert moved(machine, transfers) == expected
    links = link_use(trace)
    for k in range(4):
        assert links[f"leaf0.0->spine{k}"].transfers == load[k]


def test_seeds_spread_flows_differently_and_evenly() -> None:
    spread = Counter(ecmp_hash(3, "a", "b", flow, "leaf") % 4 for flow in range(4000))
    assert all(900 < n < 1100 for n in spread.values())
    assert [leaf_spine(1).route(0, 8, f) for f in range(20)] != [
        leaf_spine(2).route(0, 8, f) for f in range(20)
    ]
    assert [leaf_spine(1).route(0, 8, f) for f in range(20)] == [
        leaf_spine(1).route(0, 8, f) for f in range(20)
    ]


def test_a_given_route_is_taken() -> None:
    spec = {
        "devices": {"gpu": {"kind": "gpu", "count": 3}},
        "topology": {"kind": "mesh", "link": {"bandwidth": "1GB/s"}},
        "routes": [{"from": "gpu0", "to": "gpu2", "via": ["gpu1"]}],
    }
    machine = make_machine(spec)
    assert [machine.links[k].name for k in machine.route(0, 2)] == ["gpu0->gpu1", "gpu1->gpu2"]
    assert [machine.links[k].name for k in machine.route(2, 0)] == ["gpu2->gpu0"]


@pytest.mark.parametrize(
    ("route", "says"),
    [
        (
            {"from": "gpu0", "to": "gpu9", "via": []},
            r"machine.routes\[0\].to: .*no device 'gpu9'|unknown device 'gpu9'",
        ),
        (
            {"from": "gpu0", "to": "gpu2", "via": ["gpu1"]},
            r"routes\[0\].via: no link leads from gpu0 to gpu1",
        ),
        ({"from": "gpu0", "to": "gpu2"}, "a route needs from, to, via"),
        ({"from": "gpu0", "to": "gpu2", "via": ["sw", "sw"]}, "passes 'sw' twice"),
        ({"from": "gpu0", "to": "gpu2", "via": ["swi"]}, "did you mean 'sw'"),
        ({"from": "gpu0", "to": "gpu2", "by": ["sw"]}, "unknown key 'by'"),
    ],
)
def test_a_wrong_route_is_told(route: dict[str, object], says: str) -> None:
    spec = {
        "devices": {"gpu": {"kind": "gpu", "count": 3}},
        "topology": {"kind": "switch", "name": "sw"},
        "routes": [route],
    }
    with pytest.raises(SimError, match=says):
        make_machine(spec)


def test_a_wrong_routing_is_told() -> None:
    spec = {"devices": {"gpu": {"kind": "gpu", "count": 2}}, "topology": {"kind": "mesh"}}
    for routing, says in [
        ("ecpm", "did you mean 'ecmp'"),
        ({"name": "ecmp", "sed": 1}, r"unknown key 'sed'; did you mean 'seed'"),
        ({"name": "ecmp", "seed": "x"}, "is no whole number"),
    ]:
        with pytest.raises(InputError, match=says):
            make_machine({**spec, "routing": routing})


def test_links_that_are_as_good_share_what_goes_over_them() -> None:
    # Two cables between the same two devices: the shortest way takes the first, ECMP spreads over both.
    links = tuple(Link(f"cable{k}", "a", "b", 0, GB, "shared") for k in range(2))
    devices = Device("a"), Device("b")
    assert {Machine(devices, links).route(0, 1, flow) for flow in range(20)} == {(0,)}
    spread = {Machine(devices, links, routing=Routing("ecmp")).route(0, 1, flow) for flow in range(20)}
    assert spread == {(0,), (1,)}


@given(st.lists(st.tuples(*[st.integers(0, 2**k) for k in (3, 62, 40)]), min_size=1, max_size=20))
@examples(40)
def test_distinct_rows_of_long_numbers(rows: list[tuple[int, int, int]]) -> None:
    different, which = distinct_rows(*np.array(rows, np.int64).T)
    assert different == sorted(set(rows))
    assert [different[k] for k in which.tolist()] == rows
