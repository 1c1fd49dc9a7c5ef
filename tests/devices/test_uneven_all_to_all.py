"""All-to-all of which every rank says what it sends to whom, by hand, as a formula and as flows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from runs import checked

from devices.collectives.formulas import Flows, Formula
from devices.collectives.schedules import uneven
from devices.machine import make_machine
from policies.issue.program_order import InOrder
from sim import Graph, GraphBuilder, Machine, Trace, simulate
from sim.base.errors import GraphError, InputError
from sim.machine.communicators import Call

Sends = list[list[int]]


def exchange(sends: Sends, order: tuple[int, ...] = (0, 1, 2)) -> Graph:
    b = GraphBuilder("exchange")
    for r in order[: len(sends)]:
        given_: Mapping[str, Any] = {
            "communicator": "c",
            "sends": {f"gpu{k}": nbytes for k, nbytes in enumerate(sends[r])},
        }
        b.op(f"a{r}", kind="all_to_all", device=f"gpu{r}", attributes=given_)
    return b.build()


def star(n: int, model: Any) -> Machine:
    """Return devices that send, and receive, a byte a ns."""
    link = {"from": "gpu*", "to": "switch", "latency": "5ns", "bandwidth": "1GB/s", "sharing": "shared"}
    devices = {"gpu": {"kind": "gpu", "count": n}, "switch": {"kind": "switch"}}
    return replace(make_machine({"devices": devices, "links": [link]}), collectives=model)


def run(sends: Sends, model: Any, engine: str = "auto", order: tuple[int, ...] = (0, 1, 2)) -> Trace:
    graph = exchange(sends, order)
    return checked(graph, star(len(sends), model), InOrder(synchronisation="issue"), engine=engine)


@pytest.mark.parametrize("model", [Formula(), Flows()])
@pytest.mark.parametrize(
    ("sends", "ns"),
    [
        ([[0, 100], [100, 0]], 110),
        ([[900, 100], [30, 900]], 110),  # what stays does not travel
        ([[0, 0, 0], [100, 0, 0], [60, 0, 0]], 170),  # both come in through one port
        ([[0, 50, 70], [0, 0, 0], [0, 0, 0]], 130),  # and leave through one
        ([[0, 0], [0, 0]], 0),
        ([[7, 0], [0, 7]], 0),
    ],
)
def test_the_busiest_port_counts(model: Any, sends: Sends, ns: int) -> None:
    assert run(sends, model).makespan_ns == ns


@examples(20)
@given(
    st.integers(2, 4).flatmap(
        lambda n: st.lists(st.lists(st.integers(0, 99), min_size=n, max_size=n), min_size=n, max_size=n)
    )
)
def test_the_formula_is_the_largest_sum(sends: Sends) -> None:
    """Of rows and columns without the diagonal, beside two latencies; both engines say the same."""
    matrix = np.array(sends)
    np.fill_diagonal(matrix, 0)
    most = int(max(matrix.sum(axis=0).max(), matrix.sum(axis=1).max()))
    graph, machine = exchange(sends, (0, 1, 2, 3)), star(len(sends), Formula())
    for engine in ("simpy", "kernel"):
        trace = simulate(graph, machine, InOrder(synchronisation="issue"), engine=engine)
        assert trace.makespan_ns == (most + 10 if most else 0)


def test_an_even_one_is_what_it_is_without_sends() -> None:
    even = run([[30] * 3] * 3, Formula()).makespan_ns
    assert even == Formula().time_ns(Call("all_to_all", 90, (0, 1, 2)), star(3, None)) == 70


def test_ranks_are_named_not_counted() -> None:
    """Ranks are in machine order, whatever the order of the ops."""
    sends = [[0, 0, 0], [100, 0, 0], [60, 0, 0]]
    assert run(sends, Formula(), order=(2, 0, 1)).makespan_ns == 170


def test_other_models_are_told_the_even_size_of_the_busiest_rank() -> None:
    """Rank 0 gets 160 bytes: an even one of three has each send 240, two thirds of it to others."""
    told: list[Call] = []

    class Spy:
        def time_ns(self, call: Call, machine: Machine) -> int:
            told.append(call)
            return call.nbytes

    assert run([[0, 0, 0], [100, 0, 0], [60, 0, 0]], Spy()).makespan_ns == 240
    assert {call.nbytes for call in told} == {240}


def test_messages_of_nothing_are_not_sent() -> None:
    [step] = uneven([[0, 0, 4], [0, 9, 0], [0, 0, 0]], 8)
    assert (step.source.tolist(), step.destination.tolist(), step.shares) == ([0], [2], (Fraction(1, 2),))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"sends": {"gpu7": 4}}, "sends to 'gpu7', which is no rank of communicator 'c'"),
        ({"sends": {"gpu0": 4}, "nbytes": 4}, "leave out nbytes"),
        ({"sends": {"gpu0": -1}}, "is no whole number"),
        ({"sends": [1, 2]}, "how many bytes go to which device"),
        ({}, "which do not fit"),
    ],
)
def test_wrong_sends(attributes: Mapping[str, Any], message: str) -> None:
    b = GraphBuilder("wrong")
    facts: dict[str, Any] = {"kind": "all_to_all", "duration_ns": 1, "bytes_read": 4}
    b.op("a", device="gpu0", attributes={"communicator": "c", "sends": {"gpu1": 4}}, **facts)
    b.op("b", device="gpu1", attributes={"communicator": "c", **attributes}, **facts)
    with pytest.raises(InputError, match=message):
        simulate(b.build(), star(2, Formula()), InOrder())


def test_only_all_to_all_sends() -> None:
    b = GraphBuilder("wrong")
    b.op("a", kind="barrier", device="gpu0", attributes={"communicator": "c", "sends": {}})
    with pytest.raises(GraphError, match="only all_to_all does"):
        simulate(b.build(), star(1, Formula()), InOrder())
