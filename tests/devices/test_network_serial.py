"""Serial links and copy engines: one after another, in the order of readiness."""

from __future__ import annotations

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from network_helpers import GB, Transfer, arrivals, machine_of, moved

from devices.network import Turnstile, make_network
from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Link, Machine, simulate
from sim.base.errors import InputError

pytestmark = pytest.mark.usefixtures("both_engines")


def serial(source: str, destination: str, rate: int = 1, latency_ns: int = 0) -> Link:
    return Link(source + destination, source, destination, latency_ns, rate * GB)


def test_one_after_another() -> None:
    machine = machine_of([serial("a", "b")])
    assert moved(machine, [Transfer(0, "a", "b", 100)] * 3) == [(0, 100), (100, 200), (200, 300)]


@pytest.mark.parametrize(("first_ns", "order"), [(0, ["reads0", "reads1"]), (50, ["reads1", "reads0"])])
def test_of_transfers_that_end_together_the_first_to_begin_is_first(first_ns: int, order: list[str]) -> None:
    """Both are there at 100, over links of their own; one worker takes their readers in that order."""
    b = GraphBuilder("two")
    for k, begins in enumerate((first_ns, 0)):
        b.op(f"makes{k}", duration_ns=begins, outputs=100 - begins, device=f"d{k}")
    for k in range(2):
        b.op(f"reads{k}", inputs=[f"makes{k}"], duration_ns=1, device="c")
    links = tuple(serial(f"d{k}", "c") for k in range(2))
    devices = (Device("d0"), Device("d1"), Device("c", "cpu", workers=1))
    trace = simulate(b.build(), Machine(devices, links, network=make_network), ReadyQueue())
    assert trace.transfers["end_ns"].tolist() == [100, 100]
    begun = [trace.job.graph.op_names[op] for op in trace.tasks["op"].tolist()]
    assert [name for name in begun if name.startswith("reads")] == order


def test_on_an_independent_link_nobody_waits() -> None:
    machine = machine_of([Link("ab", "a", "b", 5, GB, "independent")])
    assert moved(machine, [Transfer(0, "a", "b", 100), Transfer(20, "a", "b", 10)]) == [(0, 105), (20, 35)]


def test_an_independent_link_does_not_lead_on_to_a_shared_one() -> None:
    links = [Link("ab", "a", "b", 0, GB, "independent"), Link("bc", "b", "c", 0, GB, "shared")]
    with pytest.raises(InputError, match="leads over 'ab', which is independent, and a shared link"):
        moved(machine_of(links), [Transfer(0, "a", "c", 100)])


def test_in_the_order_of_readiness() -> None:
    machine = machine_of([serial("a", "b")])
    transfers = [Transfer(30, "a", "b", 10), Transfer(0, "a", "b", 100), Transfer(20, "a", "b", 10)]
    assert moved(machine, transfers) == [(110, 120), (0, 100), (100, 110)]


def test_the_two_directions_are_two_links() -> None:
    machine = machine_of([serial("a", "b"), serial("b", "a")])
    assert arrivals(machine, [Transfer(0, "a", "b", 100), Transfer(0, "b", "a", 100)]) == [100, 100]


def test_a_route_is_held_whole() -> None:
    # a-b-c: latency 2 + 3, then 100 B at min(4, 1) B/ns: 105. The transfer on b-c alone waits for it although
    # b-c is idle at first, and so does the one on a-b, which goes on at the same time as that.
    machine = machine_of([serial("a", "b", 4, 2), serial("b", "c", 1, 3)])
    transfers = [Transfer(0, "a", "c", 100), Transfer(1, "b", "c", 10), Transfer(1, "a", "b", 40)]
    assert moved(machine, transfers) == [(0, 105), (105, 118), (105, 117)]


def test_nobody_overtakes_on_a_link_that_somebody_waits_for() -> None:
    # The second needs both links and waits for a-b; the third needs only b-c, which is free, but came later.
    machine = machine_of([serial("a", "b"), serial("b", "c")])
    transfers = [Transfer(0, "a", "b", 100), Transfer(1, "a", "c", 10), Transfer(2, "b", "c", 10)]
    assert moved(machine, transfers) == [(0, 100), (100, 110), (110, 120)]


def test_latency_alone_where_there_is_no_bandwidth() -> None:
    machine = machine_of([Link("ab", "a", "b", 7, None)])
    assert moved(machine, [Transfer(0, "a", "b", 10**12)] * 2) == [(0, 7), (7, 14)]


STAR = [Link(a + b, a, b, 0, GB, "shared") for a, b in [("h", "g"), ("g", "h"), ("h", "i"), ("i", "h")]]
BOTH_WAYS = [Transfer(0, "h", "g", 100), Transfer(0, "h", "g", 100), Transfer(1, "g", "h", 100)]


def test_two_copy_engines_serve_a_direction_each() -> None:
    # Shared link, but g does one copy at a time in each direction: H2D 0-100, 100-200; D2H 1-101.
    assert moved(machine_of(STAR, g={"copy_engines": 2}), BOTH_WAYS) == [(0, 100), (100, 200), (1, 101)]


def test_one_copy_engine_serves_both_directions_in_turn() -> None:
    assert moved(machine_of(STAR, g={"copy_engines": 1}), BOTH_WAYS) == [(0, 100), (100, 200), (200, 300)]


def test_without_copy_engines_the_link_is_shared() -> None:
    assert moved(machine_of(STAR), BOTH_WAYS) == [(0, 200), (0, 200), (1, 101)]


def test_copy_engines_of_different_devices_are_independent() -> None:
    transfers = [Transfer(0, "h", "g", 100), Transfer(0, "h", "i", 100)]
    assert arrivals(machine_of(STAR, g={"copy_engines": 1}, i={"copy_engines": 1}), transfers) == [100, 100]


@pytest.mark.parametrize(
    ("links", "details", "message"),
    [
        (
            [Link("ab", "a", "b", 0, GB, "fair")],
            {},
            "sharing must be serial, shared, fifo or independent, found 'fair'",
        ),
        ([serial("a", "b")], {"a": {"copy_engines": 3}}, "a.copy_engines: found 3"),
    ],
)
def test_wrong_words_are_refused(links: list[Link], details: dict[str, dict[str, int]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        arrivals(machine_of(links, **details), [Transfer(0, "a", "b", 1)])


def first_come(machine: Machine, transfers: list[Transfer]) -> list[tuple[int, int]]:
    """List scheduling: each transfer, in order of readiness, as soon as all its links have been left."""
    free = dict.fromkeys(range(len(machine.links)), 0)
    spans: dict[int, tuple[int, int]] = {}
    # Producers that end at one instant are settled in the order in which they began: by device, then by op.
    order = [(t.ready_ns, machine.device_index(t.source), i) for i, t in enumerate(transfers)]
    for _, _, i in sorted(order):
        move = transfers[i]
        route = machine.route(machine.device_index(move.source), machine.device_index(move.destination))
        rate = min(machine.links[k].bandwidth_bytes_per_s or 0 for k in route)
        start = max([move.ready_ns, *(free[k] for k in route)])
        end = start + sum(machine.links[k].latency_ns for k in route) - (-move.nbytes * GB // rate)
        free.update(dict.fromkeys(route, end))
        spans[i] = (start, end)
    return [spans[i] for i in range(len(transfers))]


@examples(100)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 60), st.sampled_from(["ab", "bc", "ac", "cd", "bd", "ad"]), st.integers(0, 90)
        ),
        min_size=1,
        max_size=12,
    )
)
def test_every_transfer_is_where_first_come_first_served_puts_it(rows: list[tuple[int, str, int]]) -> None:
    machine = machine_of([serial("a", "b", 2, 1), serial("b", "c", 3, 2), serial("c", "d", 1, 0)])
    transfers = [Transfer(ready, way[0], way[1], nbytes) for ready, way, nbytes in rows]
    assert moved(machine, transfers) == first_come(machine, transfers)


def test_turnstile_lets_several_in_at_once() -> None:
    gate: Turnstile[str] = Turnstile()
    assert gate.enter("x", ["a", "b"])
    assert not gate.enter("y", ["a"])
    assert not gate.enter("z", ["b"])
    assert gate.leave(["a", "b"]) == ["y", "z"]


def test_links_need_a_network_only_when_something_moves() -> None:
    machine = machine_of([serial("a", "b")])
    assert machine.network is make_network
