"""Links that are queues of chunks: store and forward, held against tables by hand and a plain event list."""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from network_helpers import GB, Transfer, arrivals, machine_of, moved, run

from devices.machine import make_machine
from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from sim import GraphBuilder, Link, Machine, simulate
from sim.base.errors import InputError
from sim.job.transfers import Travel
from sim.kernel.run import NotOnKernelError


def fifo(a: str, b: str, rate: int = 1, latency_ns: int = 0, chunk: int | None = None, **more: Any) -> Link:
    return Link(a + b, a, b, latency_ns, rate * GB, "fifo", chunk_bytes=chunk, **more)


def test_a_message_goes_from_link_to_link() -> None:
    # ab: 100 ns and 5; bc: at 2 B/ns 50 ns and 7.
    machine = machine_of([fifo("a", "b", 1, 5), fifo("b", "c", 2, 7)])
    assert moved(machine, [Transfer(0, "a", "c", 100)]) == [(0, 162)]


def test_chunks_follow_one_another() -> None:
    # Four chunks of 25 on two links of 1 B/ns:   ab 0-25 25-50 50-75 75-100
    #                                             bc      25-50 50-75 75-100 100-125
    machine = machine_of([fifo("a", "b", chunk=25), fifo("b", "c", chunk=25)])
    assert arrivals(machine, [Transfer(0, "a", "c", 100)]) == [125]
    # The smallest chunk of the route counts; the last one is what is left: 40 40 20 at 2 B/ns, then 1 B/ns.
    machine = machine_of([fifo("a", "b", 2, chunk=60), fifo("b", "c", 1, chunk=40)])
    assert arrivals(machine, [Transfer(0, "a", "c", 100)]) == [20 + 100]
    # A slow link first: bc has nothing to do before 40, 80, 100, and needs 10 for the last.
    machine = machine_of([fifo("a", "b", 1, chunk=40), fifo("b", "c", 2)])
    assert arrivals(machine, [Transfer(0, "a", "c", 100)]) == [110]


def test_the_next_chunk_does_not_wait_for_the_latency() -> None:
    machine = machine_of([fifo("a", "b", 1, 1000, chunk=10)])
    assert arrivals(machine, [Transfer(0, "a", "b", 20), Transfer(0, "a", "b", 20)]) == [1020, 1040]


def test_first_come_first_served_at_each_link() -> None:
    # ac: chunks of 10 reach bc at 10, 20, 30; bc of 15 came to it at 5 and is busy till 20 with all of it.
    #   bc: [5-20 the other] [20-30] [30-40] [40-50]
    machine = machine_of([fifo("a", "b", chunk=10), fifo("b", "c", chunk=10)])
    assert moved(machine, [Transfer(0, "a", "c", 30), Transfer(5, "b", "c", 15)]) == [(0, 50), (5, 20)]
    # It comes at 12, between two chunks: ac 10-20, the other 20-35, ac 35-45 45-55.
    assert arrivals(machine, [Transfer(0, "a", "c", 30), Transfer(12, "b", "c", 15)]) == [55, 35]


def test_messages_of_three_senders_mix_chunk_by_chunk() -> None:
    # a, b and c send 20 to d over s, in chunks of 10: they reach sd at 10 and 20, and take turns there.
    links = [fifo(x, "s", chunk=10) for x in "abc"] + [fifo("s", "d", 1, chunk=10)]
    assert arrivals(machine_of(links), [Transfer(0, x, "d", 20) for x in "abc"]) == [50, 60, 70]
    whole = [fifo(x, "s") for x in "abc"] + [fifo("s", "d")]
    assert arrivals(machine_of(whole), [Transfer(0, x, "d", 20) for x in "abc"]) == [40, 60, 80]


@pytest.mark.parametrize(
    ("sharing", "expected"),
    [
        ("shared", [2000, 2000]),
        ("serial", [1000, 2000]),
        ("fifo", [2000, 3000]),
        ({"name": "fifo", "chunk": "100B"}, [2000, 2100]),
        ("instant", [0, 0]),
    ],
)
def test_two_messages_into_one_port(sharing: Any, expected: list[int]) -> None:
    # Fluid, whole routes, whole messages, chunks of 100 B in turns: up 1000 ns, down 2 x 1000 ns, 100 apart.
    devices = {f"h{k}": {"kind": "cpu", "workers": 8} for k in range(3)}
    topology = {"kind": "switch", "link": {"bandwidth": "1GB/s"}}
    machine = make_machine({"devices": devices, "topology": topology, "sharing": sharing})
    assert arrivals(machine, [Transfer(0, "h0", "h2", 1000), Transfer(0, "h1", "h2", 1000)]) == expected


def test_nothing_is_rounded_on_the_way() -> None:
    # 3 B/ns: a chunk of 1 B takes a third of a ns, 100 of them 33 1/3.
    machine = machine_of([fifo("a", "b", 3, chunk=1), fifo("b", "c", 3, chunk=1)])
    assert arrivals(machine, [Transfer(0, "a", "c", 100)]) == [34]  # 33 2/3


def test_a_bus_is_one_queue_and_a_connection_another() -> None:
    both = [fifo("a", "b", medium="bus"), fifo("b", "a", medium="bus")]
    assert arrivals(machine_of(both), [Transfer(0, "a", "b", 10), Transfer(1, "b", "a", 10)]) == [10, 20]
    # The connection carries 1 B/ns: chunks of 10 reach the link of 2 B/ns at 10, 20; both messages share it.
    slow = machine_of([fifo("a", "b", 2, chunk=10, connection_bytes_per_s=GB, overhead_ns=3)])
    assert arrivals(slow, [Transfer(0, "a", "b", 20), Transfer(0, "a", "b", 10)]) == [28, 38]
    assert Travel.between(slow, 0, 1).ns(20) == 28


def test_copy_engines_and_bytes_that_are_none() -> None:
    links = [fifo("h", "g"), fifo("g", "h")]
    machine = machine_of(links, g={"copy_engines": 1})
    assert moved(machine, [Transfer(0, "h", "g", 10), Transfer(1, "g", "h", 10)]) == [(0, 10), (10, 20)]
    # A message without bytes stands in line, too.
    assert arrivals(machine_of(links), [Transfer(0, "h", "g", 10), Transfer(1, "h", "g", 0)]) == [10, 10]
    unlimited = Link("ab", "a", "b", 7, None, "fifo", chunk_bytes=1)
    assert arrivals(machine_of([unlimited]), [Transfer(0, "a", "b", 10)]) == [7]


def test_one_way_is_of_one_sort() -> None:
    links = [fifo("a", "b"), Link("bc", "b", "c", 0, GB, "shared")]
    with pytest.raises(InputError, match="leads over 'ab', which is fifo, and 'bc', which is shared"):
        arrivals(machine_of(links), [Transfer(0, "a", "c", 100)])
    links = [fifo("a", "b", medium="m", chunk=1), fifo("b", "a", medium="m")]
    with pytest.raises(InputError, match="are one medium, 'm', and differ in chunk"):
        machine_of(links)


def test_the_kernel_hands_over() -> None:
    b = GraphBuilder("one")
    b.op("make", outputs=10, duration_ns=1, device="a")
    b.op("use", inputs=["make"], duration_ns=1, device="b")
    machine, graph = machine_of([fifo("a", "b")]), b.build()
    with pytest.raises(NotOnKernelError, match="fifo send chunks"):
        simulate(graph, machine, ReadyQueue(), engine="kernel")
    assert simulate(graph, machine, ReadyQueue()).makespan_ns == 12


# -- against a plain list of events ------------------------------------------------------------------


def event_by_event(machine: Machine, transfers: list[Transfer]) -> list[int]:
    """ASTRA-sim's Link.cpp word by word: every chunk by itself, queues as lists, links that become free."""
    order = sorted(
        range(len(transfers)),
        key=lambda i: (transfers[i].ready_ns, machine.device_index(transfers[i].source), i),
    )
    number = {i: n for n, i in enumerate(order)}
    events: list[tuple[Fraction, int, int, int, str]] = []  # arrivals at a hop, and links that become free
    routes, left = {}, {}
    for i, move in enumerate(transfers):
        route = machine.route(machine.device_index(move.source), machine.device_index(move.destination))
        most = min((machine.links[k].chunk_bytes or 10**9 for k in route), default=10**9)
        sizes = [most] * (move.nbytes // most) + [move.nbytes % most] * bool(move.nbytes % most)
        routes[i], left[i] = route, sizes or [0]
        for c in range(len(left[i])):
            events.append((Fraction(move.ready_ns), number[i], c, 0, "arrive"))
    pending: dict[int, list[tuple[int, int, int]]] = {k: [] for k in range(len(machine.links))}
    busy = dict.fromkeys(pending, False)
    arrived: dict[int, Fraction] = {}

    def transmit(now: Fraction, link: int, message: int, c: int, hop: int) -> None:
        busy[link] = True
        size, rate = left[order[message]][c], machine.links[link].bandwidth_bytes_per_s
        takes = Fraction(size * GB, rate) if rate else Fraction(0)
        events.append((now + takes, message, c, link, "free"))
        latency = machine.links[link].latency_ns
        events.append((now + takes + latency, message, c, hop + 1, "arrive"))

    while events:
        # A link that becomes free takes what is in its queue before anything new gets there.
        events.sort(key=lambda e: (e[0], e[4] == "arrive", *e[1:4]))
        now, message, c, where, what = events.pop(0)
        if what == "free":
            busy[where] = False
            if pending[where]:
                transmit(now, where, *pending[where].pop(0))
            continue
        route = routes[order[message]]
        if where == len(route):
            arrived[message] = max(now, arrived.get(message, now))
        elif busy[route[where]]:
            pending[route[where]].append((message, c, where))
        else:
            transmit(now, route[where], message, c, where)
    return [ceil(arrived[number[i]]) for i in range(len(transfers))]


NAMES = "abcd"
LINKS = [("a", "b"), ("b", "c"), ("c", "d"), ("d", "b"), ("a", "c")]


@examples(30)
@given(
    rates=st.lists(st.integers(1, 7), min_size=len(LINKS), max_size=len(LINKS)),
    latencies=st.lists(st.integers(0, 9), min_size=len(LINKS), max_size=len(LINKS)),
    chunks=st.lists(st.sampled_from([None, 10, 17, 50]), min_size=len(LINKS), max_size=len(LINKS)),
    transfers=st.lists(
        st.tuples(
            st.integers(0, 60), st.sampled_from(["ab", "ac", "ad", "bc", "bd", "cd", "cb", "db"]),
            st.integers(0, 120),
        ),
        min_size=1,
        max_size=8,
    ),
)  # fmt: skip
def test_every_arrival_agrees_with_a_plain_list_of_events(
    rates: list[int],
    latencies: list[int],
    chunks: list[int | None],
    transfers: list[tuple[int, str, int]],
) -> None:
    links = [
        fifo(a, b, rate, latency, chunk)
        for (a, b), rate, latency, chunk in zip(LINKS, rates, latencies, chunks, strict=True)
    ]
    machine = machine_of(links)
    moves = [Transfer(ready, ends[0], ends[1], nbytes) for ready, ends, nbytes in transfers]
    assert arrivals(machine, moves) == event_by_event(machine, moves)


@examples(30)
@given(
    rates=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    chunk=st.sampled_from([None, 1, 7, 10]),
    nbytes=st.integers(0, 60),
)
def test_alone_a_message_takes_what_the_closed_form_says(
    rates: list[int], chunk: int | None, nbytes: int
) -> None:
    names = "abcdef"
    links = [fifo(names[k], names[k + 1], rate, k, chunk) for k, rate in enumerate(rates)]
    machine = Machine(machine_of(links).devices, tuple(links), network=make_network)
    last = names[len(rates)]
    alone = Travel.between(machine, 0, len(rates)).ns(nbytes)
    assert arrivals(machine, [Transfer(0, "a", last, nbytes)]) == [alone]
    assert run(machine, [Transfer(0, "a", last, nbytes)]).makespan_ns == alone


# -- what ASTRA-sim's own tests say -------------------------------------------------------------------

MIB, ASTRA_LINK = 1 << 20, {"bandwidth": f"{50 << 30}B/s", "latency": "500ns", "sharing": "fifo"}


@pytest.mark.parametrize(
    ("kind", "expected"), [("ring", 60_093), ("mesh", 20_031), ("switch", 40_062)]
)  # RingTest, FullyConnected and Switch of test/test_congestion_aware.cpp: from 1 to 4, which truncates to ns
def test_a_message_of_astra_sim(kind: str, expected: int) -> None:
    devices = {f"h{k}": {"kind": "cpu", "workers": 4} for k in range(16)}
    machine = make_machine({"devices": devices, "topology": {"kind": kind, "link": ASTRA_LINK}})
    (there,) = arrivals(machine, [Transfer(0, "h1", "h4", MIB)])
    assert expected <= there <= expected + 1


def test_an_all_gather_of_astra_sim() -> None:
    """Its test AllGatherOnRing: each of 16 sends 1 MiB to each other one, the opposite one clockwise."""
    n = 16
    opposite = [
        {"from": f"h{k}", "to": f"h{(k + 8) % n}", "via": [f"h{(k + j) % n}" for j in range(1, 8)]}
        for k in range(n)
    ]
    machine = make_machine(
        {
            "devices": {f"h{k}": {"kind": "cpu", "workers": 64} for k in range(n)},
            "topology": {"kind": "ring", "link": ASTRA_LINK},
            "routes": opposite,
        }
    )
    transfers = [Transfer(0, f"h{a}", f"h{b}", MIB) for a in range(n) for b in range(n) if a != b]
    assert max(arrivals(machine, transfers)) == pytest.approx(704_116, abs=20)
