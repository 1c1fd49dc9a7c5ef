"""Half-duplex links and buses, transports, patterns with words in braces; on both engines alike."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from network_helpers import GB, Transfer, arrivals, machine_of, max_min, moved, run
from runs import checked, run_text

from devices.describe.links import make_links, match_names, pairs
from devices.machine import make_machine
from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from sim import GraphBuilder, Link, Machine, simulate
from sim.base.errors import InputError, ScenarioError, SimError
from sim.export.chrome import Timeline
from sim.metrics import link_use

HOSTS = {"kind": "cpu", "cores": 64}


def joined(*links: dict[str, Any], **devices: dict[str, Any]) -> Machine:
    named = devices or dict.fromkeys("abc", HOSTS)
    return make_machine({"devices": named, "links": [{"bandwidth": "1GB/s", **link} for link in links]})


# -- textbook allocations ------------------------------------------------------------------------------


def test_bertsekas_and_gallager() -> None:
    # Data Networks, section 6.5.2: links of capacity 1; sessions 2, 3 and 5 meet on one link and get 1/3,
    # session 1 shares another one with session 3 and gets 2/3, session 4 is alone and gets 1.
    third = Fraction(1, 3)
    routes = [[0], [1], [1, 0], [2], [1]]
    assert max_min(routes, {0: 1, 1: 1, 2: 1}) == [2 * third, third, third, 1, third]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_parking_lot(n: int) -> None:
    # One flow crosses all n links, and each link has a flow of its own: all get half.
    links = [Link(f"l{k}", f"h{k}", f"h{k + 1}", 0, GB, "shared") for k in range(n)]
    transfers = [
        Transfer(0, "h0", f"h{n}", 1000),
        *(Transfer(0, f"h{k}", f"h{k + 1}", 1000) for k in range(n)),
    ]
    assert arrivals(machine_of(links), transfers) == [2000] * (n + 1)


@pytest.mark.parametrize("n", [2, 3, 7])
def test_incast(n: int) -> None:
    machine = make_machine(
        {
            "devices": {"h": {**HOSTS, "count": n + 1}},
            "topology": {"kind": "switch", "link": {"bandwidth": "1GB/s"}},
        }
    )
    assert arrivals(machine, [Transfer(0, f"h{k}", f"h{n}", 700) for k in range(n)]) == [700 * n] * n


def test_star() -> None:
    # To h2 from h0 and h1, and from h0 to h3: the port of h0 and that of h2 give half each; from h1 to h3 the
    # rest: h1's port has 1 - 1/2 left, h3's as much. Everybody has 1/2.
    machine = make_machine(
        {
            "devices": {"h": {**HOSTS, "count": 4}},
            "topology": {"kind": "switch", "link": {"bandwidth": "1GB/s"}},
        }
    )
    ways = [("h0", "h2"), ("h1", "h2"), ("h0", "h3"), ("h1", "h3")]
    assert arrivals(machine, [Transfer(0, a, b, 1000) for a, b in ways]) == [2000] * 4


# -- one capacity for several links -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("duplex", "sharing", "expected", "contended_ns"),
    [
        (True, "shared", [(0, 1000), (0, 1000)], 0),
        ("half", "shared", [(0, 2000), (0, 2000)], 2000),
        (True, "serial", [(0, 1000), (0, 1000)], 0),
        ("half", "serial", [(0, 1000), (1000, 2000)], 1000),
    ],
)
def test_duplex(duplex: bool | str, sharing: str, expected: list[tuple[int, int]], contended_ns: int) -> None:
    """Both directions of a half-duplex link compete for it, and the table of links says so of each."""
    machine = joined({"from": "a", "to": "b", "duplex": duplex, "sharing": sharing})
    both = [Transfer(0, "a", "b", 1000), Transfer(0, "b", "a", 1000)]
    assert moved(machine, both) == expected
    use = [each for each in link_use(run(machine, both)).values() if each.transfers]
    assert [each.contended_ns for each in use] == [contended_ns] * 2


@pytest.mark.parametrize(("sharing", "ends"), [("shared", [3000] * 3), ("serial", [1000, 2000, 3000])])
def test_a_bus_carries_one_thing_at_a_time_or_parts(sharing: str, ends: list[int]) -> None:
    machine = joined({"from": "*", "to": "*", "bus": "bus", "sharing": sharing})
    transfers = [Transfer(0, *ways, 1000) for ways in ("ab", "bc", "ca")]
    assert arrivals(machine, transfers) == ends


def test_a_bus_of_each_node() -> None:
    machine = make_machine(
        {
            "devices": {"h": {**HOSTS, "count": 2}},
            "nodes": 2,
            "links": [{"from": "h0", "to": "h1", "bus": "pci", "bandwidth": "1GB/s", "sharing": "shared"}],
        }
    )
    assert {link.medium for link in machine.links} == {"node0/pci", "node1/pci"}
    there = [Transfer(0, f"node{k}/h0", f"node{k}/h1", 1000) for k in range(2)]
    assert arrivals(machine, there) == [1000, 1000]
    assert arrivals(machine, [*there, Transfer(0, "node0/h1", "node0/h0", 1000)]) == [2000, 1000, 2000]


@pytest.mark.parametrize(
    ("links", "says"),
    [
        (
            [{"from": "a", "to": "b", "duplex": "hal"}],
            r"links\[0\].duplex: 'hal' is none of true, false and half",
        ),
        ([{"from": "a", "to": "b", "duplex": "half", "bus": "x"}], "all links of the bus 'x' are one"),
        (
            [
                {"from": "a", "to": "b", "bus": "x"},
                {"from": "b", "to": "c", "bus": "x", "bandwidth": "2GB/s"},
            ],
            "'a->b' and 'b->c' are one medium, 'x', and differ in bandwidth",
        ),
        ([{"from": "{n}", "to": "x{n}"}], "from.*|to.*"),
        ([{"from": "a", "to": "b", "transport": "udp"}], "transport: unknown word 'udp'"),
        ([{"from": "a", "to": "b", "transport": 5}], "transport: unknown word '5'. Known: local, rdma, tcp"),
    ],
)
def test_what_is_wrong_with_links(links: list[dict[str, Any]], says: str) -> None:
    with pytest.raises(SimError, match=says):
        joined(*links)


def test_a_route_crosses_a_bus_once() -> None:
    links = [{"from": "a", "to": "b", "bus": "x"}, {"from": "b", "to": "c", "bus": "x"}]
    with pytest.raises(InputError, match="from a to c crosses the medium 'x' more than once"):
        arrivals(joined(*links), [Transfer(0, "a", "c", 1000)])


def test_what_is_wrong_with_a_route_is_told_at_the_machine(tmp_path: Path) -> None:
    text = """\
machine:
  devices: {a: {kind: cpu}, b: {kind: cpu}, c: {kind: cpu}}
  links: [{from: a, to: b, bus: x}, {from: b, to: c, bus: x}]
workload: {ops: {o: {duration: 1us, output: 1kB, device: a}, r: {inputs: [o], duration: 0, device: c}}}
policy: ready-queue
"""
    with pytest.raises(ScenarioError, match=r"s.yaml:2:3: machine: the route from a to c crosses the medium"):
        run_text(text, tmp_path)


# -- patterns ------------------------------------------------------------------------------------------


def test_words_in_braces_are_the_same_at_both_ends() -> None:
    names = [f"node{k}/{what}" for k in range(2) for what in ("gpu0", "gpu1", "sw")] + ["leaf0", "leaf1"]
    assert [pair[:2] for pair in pairs("{n}/gpu*", "{n}/sw", names)] == [
        (f"node{k}/gpu{g}", f"node{k}/sw") for k in range(2) for g in range(2)
    ]
    assert [pair[:2] for pair in pairs("node*/gpu{r}", "leaf{r}", names)] == [
        (f"node{k}/gpu{g}", f"leaf{g}") for k in range(2) for g in range(2)
    ]
    assert match_names("{x}/{x}", ["a/a", "a/b"]) == [("a/a", (("x", "a"),))]
    made = make_links([], [{"from": "node*/gpu{r}", "to": "leaf{r}", "duplex": False}], names)
    assert [link.name for link in made] == [
        "node0/gpu0->leaf0",
        "node0/gpu1->leaf1",
        "node1/gpu0->leaf0",
        "node1/gpu1->leaf1",
    ]


# -- transports ------------------------------------------------------------------------------------------


def test_a_message_costs_its_overhead_once() -> None:
    nic = {"latency": "100ns", "transport": "rdma", "sharing": "shared"}
    machine = joined({"from": "a", "to": "b", **nic}, {"from": "b", "to": "c", **nic})
    assert arrivals(machine, [Transfer(0, "a", "b", 1000)]) == [100 + 1000 + 1000]
    assert arrivals(machine, [Transfer(0, "a", "c", 1000)]) == [200 + 1000 + 1000]


@pytest.mark.parametrize("sharing", ["shared", "serial"])
def test_a_connection_carries_no_more_than_it_can(sharing: str) -> None:
    # Two messages of one connection share its 0.25 B/ns or take turns; the other pair of devices has its own.
    links = [
        {"from": "a", "to": "b", "transport": {"bandwidth": "250MB/s"}, "sharing": sharing},
        {"from": "c", "to": "b", "transport": {"bandwidth": "250MB/s"}, "sharing": sharing},
    ]
    two = [Transfer(0, "a", "b", 1000)] * 2
    assert arrivals(joined(*links), two) == ([8000, 8000] if sharing == "shared" else [4000, 8000])
    assert arrivals(joined(*links), [*two[:1], Transfer(0, "c", "b", 1000)]) == [4000, 4000]


@pytest.mark.parametrize(
    ("most", "engine", "expected"),
    [
        ("1GB/s", "simpy", [200_000] * 2),
        ("1GB/s", "kernel", [200_000] * 2),
        ("15GB/s", "auto", [13_334] * 2),  # 7.5 GB/s each
        ("30GB/s", "auto", [10_000] * 2),  # no message gets more than the link gives to one
    ],
)
def test_messages_of_one_connection_share_it_on_independent_links(
    most: str, engine: str, expected: list[int]
) -> None:
    link = {"from": "a", "to": "b", "sharing": "independent", "bandwidth": "10GB/s"}
    machine = joined({**link, "transport": {"bandwidth": most}})
    b = GraphBuilder("two")
    for k in range(2):
        b.op(f"make{k}", outputs=100_000, duration_ns=0, device="a")
        b.op(f"use{k}", inputs=[f"make{k}"], duration_ns=0, device="b")
    trace = checked(b.build(), machine, ReadyQueue(), engine=engine)
    assert trace.transfers["end_ns"].tolist() == expected


@pytest.mark.parametrize("engine", ["simpy", "kernel"])
@pytest.mark.parametrize(("transport", "expected"), [("rdma", 100), ("tcp", 24_000 + 190_477 + 100)])
def test_the_host_copies_what_tcp_sends(engine: str, transport: str, expected: int) -> None:
    # gpu0 makes 1 MB, which travels to gpu1. Over TCP the host of gpu0 copies it for 24 us + 1 MB / 5.25 GB/s
    # (rounded up: 190,477 ns), and only then can it launch the next op, of 100 ns.
    machine = make_machine(
        {
            "devices": {"gpu": {"kind": "gpu", "count": 2}},
            "links": [{"from": "gpu0", "to": "gpu1", "bandwidth": "50GB/s", "transport": transport}],
        }
    )
    b = GraphBuilder("send")
    b.op("make", outputs=10**6, duration_ns=0, device="gpu0")
    b.op("use", inputs=["make"], duration_ns=0, device="gpu1")
    b.op("next", inputs=["make"], duration_ns=100, device="gpu0")
    trace = checked(b.build(), machine, InOrder(), engine=engine)
    assert trace.tasks["end_ns"][trace.tasks["op"] == 2].tolist() == [expected]


def test_messages_of_a_collective_are_connections_too() -> None:
    # Two ranks exchange halves twice: 500 B at 0.25 B/ns each time, both ways at once.
    ring = {
        "collectives": {"model": "flows", "algorithm": "ring"},
        "devices": {"gpu": {"kind": "gpu", "count": 2}},
    }
    link = {"from": "gpu0", "to": "gpu1", "bandwidth": "1GB/s", "sharing": "shared"}
    of = {"communicator": "dp", "nbytes": 1000}
    b = GraphBuilder("sum")
    for k in range(2):
        b.op(f"sum{k}", kind="all_reduce", device=f"gpu{k}", attributes=of)
    graph = b.build()
    for more, expected in [
        ({}, 1000),
        ({"transport": {"bandwidth": "250MB/s"}}, 4000),
        ({"duplex": "half"}, 2000),
    ]:
        machine = make_machine({**ring, "links": [{**link, **more}]})
        assert simulate(graph, machine, InOrder()).makespan_ns == expected


# -- what traces show ------------------------------------------------------------------------------------


def test_counters_of_links() -> None:
    # The second message comes at 500, when the first has 500 B left: both at half rate to 1500.
    machine = joined({"from": "a", "to": "b", "sharing": "shared"})
    trace = run(machine, [Transfer(0, "a", "b", 1000), Transfer(500, "a", "b", 1000)])
    counters = {each.title: each for each in Timeline(trace).counters() if "->" in each.title}
    assert list(counters) == ["a->b rate", "a->b at once"]
    rate, at_once = counters.values()
    assert rate.times_ns.tolist() == at_once.times_ns.tolist() == [0, 500, 1500, 2000]
    assert at_once.values.tolist() == [1, 2, 1, 0]
    mean = GB * 1000 // 1500  # of each message
    assert rate.values.tolist() == [mean, 2 * mean, mean, 0]


# -- both engines --------------------------------------------------------------------------------------


@given(st.data())
@examples(40)
def test_engines_agree(data: st.DataObject) -> None:
    link = {
        "bandwidth": f"{data.draw(st.integers(1, 5))}GB/s",
        "latency": f"{data.draw(st.integers(0, 3))}ns",
        "sharing": data.draw(st.sampled_from(["serial", "shared"])),
        "duplex": data.draw(st.sampled_from([True, "half"])),
        "transport": data.draw(st.sampled_from(["local", "rdma", "tcp"])),
    }
    kind = data.draw(
        st.sampled_from([{"kind": "mesh"}, {"kind": "fat-tree"}, {"kind": "torus", "shape": [3, 2]}])
    )
    machine = make_machine(
        {
            "devices": {"d": {"kind": data.draw(st.sampled_from(["cpu", "gpu"])), "count": 6}},
            "topology": {**kind, "link": link, "ends": "d*"},
            "routing": {"name": "ecmp", "seed": data.draw(st.integers(0, 3))},
        }
    )
    b = GraphBuilder("drawn")
    for k in range(data.draw(st.integers(2, 12))):
        inputs = data.draw(st.sets(st.integers(0, k - 1), max_size=3)) if k else set()
        b.op(
            f"op{k}",
            inputs=[f"op{i}" for i in sorted(inputs)],
            outputs=data.draw(st.integers(0, 5000)),
            duration_ns=data.draw(st.integers(0, 50)),
            device=f"d{data.draw(st.integers(0, 5))}",
        )
    graph = b.build()
    traces = [simulate(graph, machine, ReadyQueue(), engine=engine) for engine in ("simpy", "kernel")]
    for trace in traces:
        trace.check()
    for columns in ("tasks", "transfers"):
        one, other = (getattr(trace, columns) for trace in traces)
        assert list(one) == list(other)
        assert all(np.array_equal(one[name], other[name]) for name in one)
