"""Collectives as messages over the links: what the formula says when alone, more when links are crowded."""

from __future__ import annotations

from dataclasses import replace
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from runs import checked, run_text

from devices.collectives.formulas import Flows, Formula, ring_order
from devices.machine import make_machine
from policies.issue.program_order import InOrder
from sim import GraphBuilder, Machine, Trace, simulate
from sim.base.errors import InputError, InvariantError
from sim.export.chrome import Timeline
from sim.kernel.run import NotOnKernelError
from sim.machine.communicators import Call
from sim.machine.links import Message
from sim.metrics import link_use


def machine(
    n: int,
    model: dict[str, object],
    sharing: str = "shared",
    links: list[object] | None = None,
    chunk: str | None = None,
) -> Machine:
    link = {"latency": "350ns", "bandwidth": "1GB/s", "sharing": sharing}
    link |= {} if chunk is None else {"sharing": {"name": "fifo", "chunk": chunk}}
    return make_machine(
        {
            "devices": {"gpu": {"kind": "gpu", "count": n, "streams": 2}, "switch": {"kind": "switch"}},
            "links": links or [{"from": "gpu*", "to": "switch", **link}],
            "collectives": model,
        }
    )


def call(kind: str, nbytes: int, n: int, on: Machine, **more: object) -> Trace:
    b = GraphBuilder("one call")
    for r in range(n):
        attributes = {"communicator": "c", "nbytes": nbytes, **more}
        b.op(f"a{r}", kind=kind, device=f"gpu{r}", attributes=attributes)
    return checked(b.build(), on, InOrder())


KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "barrier")


@given(
    st.sampled_from(KINDS),
    st.sampled_from(("ring", "tree", "halving-doubling", "direct", "auto")),
    st.integers(1, 9),
    st.integers(0, 10**6),
    st.sampled_from(("shared", "serial", "fifo")),
)
@examples(60)
def test_alone_flows_take_what_the_formula_says(
    kind: str, algorithm: str, n: int, nbytes: int, sharing: str
) -> None:
    """But for the rounding of each step up to a ns, and of each message up to a byte (1 ns at 1 GB/s)."""
    model: dict[str, Any] = {"algorithm": algorithm}
    on = machine(n, {"model": "flows", **model}, sharing)
    flows_ns = call(kind, nbytes, n, on).makespan_ns
    formula_ns = Formula(**model).time_ns(Call(kind, nbytes, tuple(range(n))), on)
    steps = 2 * n + 20
    messages = n + 1  # that one port carries, and the last of them once more
    assert formula_ns - 1 <= flows_ns <= formula_ns + steps * (1 + messages)


@pytest.mark.parametrize("sharing", ["shared", "serial", "independent", "fifo"])
def test_a_connection_limits_both(sharing: str) -> None:
    """Six steps of 21 MB at a connection's 5.25 GB/s, over links of 10.5 GB/s, and 24 us for each message."""
    links: list[object] = [
        {"from": "gpu*", "to": "switch", "bandwidth": "10.5GB/s", "transport": "tcp", "sharing": sharing}
    ]
    step_ns = 24_000 + (8_000_000 if sharing == "fifo" else 4_000_000)  # that of whole messages at each link
    for name in ("flows", "formula"):
        on = machine(4, {"model": name, "algorithm": "ring"}, links=links)
        assert call("all_reduce", 84_000_000, 4, on).makespan_ns == 6 * step_ns


@pytest.mark.parametrize("kind", ["all_reduce", "all_to_all", "broadcast"])
@pytest.mark.parametrize("algorithm", ["ring", "direct"])
def test_chunks_bring_store_and_forward_near_to_sharing(kind: str, algorithm: str) -> None:
    """Cut in 100, a message comes as if its links were one; whole, it takes as long on each of two links."""
    fluid, chunks, whole = (
        call(kind, 4_000_000, 4, machine(4, {"model": "flows", "algorithm": algorithm}, sharing, chunk=chunk))
        for sharing, chunk in (("shared", None), ("fifo", "10kB"), ("fifo", None))
    )
    assert fluid.makespan_ns <= chunks.makespan_ns <= 1.02 * fluid.makespan_ns
    assert whole.makespan_ns > 1.2 * fluid.makespan_ns
    formula = machine(4, {"algorithm": algorithm}, "fifo", chunk="10kB")
    assert call(kind, 4_000_000, 4, formula).makespan_ns == pytest.approx(chunks.makespan_ns, rel=0.01)


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("algorithm", ["ring", "halving-doubling", "hierarchical"])
def test_on_sizes_that_divide_they_are_equal(kind: str, algorithm: str) -> None:
    model = {"algorithm": algorithm} | ({"group": 4} if algorithm == "hierarchical" else {})
    both = [
        call(kind, 8_000_000, 8, machine(8, {"model": name, **model})).makespan_ns
        for name in ("flows", "formula")
    ]
    assert both[0] == both[1]


def two_communicators(model: str) -> Trace:
    """Two pairs of ranks whose only way leads over one link."""
    links = [
        {"from": "gpu0", "to": "switch"},
        {"from": "gpu1", "to": "switch"},
        {"from": "switch", "to": "far", "bandwidth": "1GB/s", "sharing": "shared"},
        {"from": "far", "to": "gpu2"},
        {"from": "far", "to": "gpu3"},
    ]
    on = make_machine(
        {
            "devices": {
                "gpu": {"kind": "gpu", "count": 4},
                "switch": {"kind": "switch"},
                "far": {"kind": "switch"},
            },
            "links": links,
            "collectives": {"model": model, "algorithm": "ring"},
        }
    )
    b = GraphBuilder("two communicators over one link")
    for name, ranks in (("a", (0, 2)), ("b", (1, 3))):
        for r in ranks:
            attributes = {"communicator": name, "nbytes": 2_000_000}
            b.op(f"{name}{r}", kind="all_gather", device=f"gpu{r}", attributes=attributes)
    return checked(b.build(), on, InOrder())


def test_two_communicators_over_one_link_slow_one_another_down() -> None:
    """Each has to move 1 MB each way: 1 ms alone, 2 ms on a link that two share."""
    assert two_communicators("formula").makespan_ns == 1_000_000
    assert two_communicators("flows").makespan_ns == 2_000_000


def test_transfers_slow_collectives_down() -> None:
    on = machine(2, {"model": "flows", "algorithm": "ring"})
    b = GraphBuilder("beside a transfer")
    b.op("x", device="gpu0", outputs=1_000_000, duration_ns=0)
    for r in range(2):
        b.op(
            f"a{r}",
            kind="all_gather",
            device=f"gpu{r}",
            attributes={"communicator": "c", "nbytes": 2_000_000},
        )
    b.op("y", device="gpu1", inputs=["x"], duration_ns=0)
    trace = checked(b.build(), on, InOrder(synchronisation="issue"))
    assert trace.tasks["end_ns"].max() == 2_000_700


def test_a_late_rank_holds_flows_too() -> None:
    on = machine(2, {"model": "flows", "algorithm": "ring"})
    b = GraphBuilder("late")
    b.op("f", device="gpu1", duration_ns=5000)
    for r in range(2):
        b.op(f"a{r}", kind="barrier", device=f"gpu{r}", attributes={"communicator": "c"})
    assert simulate(b.build(), on, InOrder()).makespan_ns == 5000 + 2 * 700


def test_serial_links_carry_messages_one_by_one() -> None:
    on = machine(3, {"model": "flows", "algorithm": "ring"}, "serial")
    assert call("all_gather", 3_000_000, 3, on).makespan_ns == 2 * (1_000_000 + 700)


def test_what_has_a_duration_keeps_it() -> None:
    on = machine(2, {"model": "flows"})
    b = GraphBuilder("given")
    for r in range(2):
        attributes = {"communicator": "c", "nbytes": 8}
        b.op(f"a{r}", kind="barrier", device=f"gpu{r}", duration_ns=70, attributes=attributes)
    trace = simulate(b.build(), on, InOrder())
    assert trace.makespan_ns == 70
    assert trace.engine.startswith("kernel")


def test_the_kernel_refuses_flows_by_name() -> None:
    on = machine(2, {"model": "flows"})
    assert call("barrier", 0, 2, on).engine == "simpy: collectives go over the links message by message"
    b = GraphBuilder("kernel")
    for r in range(2):
        b.op(f"a{r}", kind="barrier", device=f"gpu{r}", attributes={"communicator": "c"})
    with pytest.raises(NotOnKernelError, match="collectives go over the links"):
        simulate(b.build(), on, InOrder(), engine="kernel")


def test_flows_need_links() -> None:
    with pytest.raises(InputError, match="flows need links"):
        call(
            "barrier",
            0,
            2,
            make_machine(
                {"devices": {"gpu": {"kind": "gpu", "count": 2}}, "collectives": {"model": "flows"}}
            ),
        )


def test_a_scenario_names_the_model(tmp_path: Path) -> None:
    text = """
machine:
  devices: {gpu: {kind: gpu, count: 4, streams: 2}, switch: {kind: switch}}
  links: [{from: gpu*, to: switch, bandwidth: 1GB/s, sharing: shared}]
  collectives: {model: flows, algorithm: ring}
workload:
  parameters: {w: 4MB}
  ops:
    forward: {duration: 1ms, inputs: [w]}
    backward: {duration: 2ms, inputs: [forward, w], output: 4MB}
    update: {kind: sgd, duration: 0, inputs: [backward, w]}
policy: {name: ready-queue, streams: recorded, compile: [{name: ddp, ranks: 4}]}
"""
    assert run_text(text, tmp_path).trace.makespan_ns == 9_000_000


def test_flows_are_plain_data() -> None:
    assert Flows("ring") == Flows("ring") != Flows("tree")
    assert np.isclose(Flows(latency_ns=5).latency_ns, 5)


def test_links_count_the_messages_of_a_ring() -> None:
    """6 steps of 1 MB on each port, each of 1 ms + 2 x 350 ns."""
    trace = call("all_reduce", 4_000_000, 4, machine(4, {"model": "flows", "algorithm": "ring"}))
    assert trace.makespan_ns == 6 * 1_000_700
    share = 6_000_000 / trace.makespan_ns
    for use in link_use(trace).values():
        expected = (6_000_000, trace.makespan_ns, 6, 0, share)
        assert (
            use.nbytes,
            use.busy_ns,
            use.transfers,
            use.contended_ns,
            use.bandwidth_utilisation,
        ) == expected
    counters = {each.title: each for each in Timeline(trace).counters() if "rate" in each.title}
    assert len(counters) == 8
    assert max(counters["gpu0->switch rate"].values) == 10**9
    assert not len(trace.transfers["id"])


def test_contention_of_messages_is_counted() -> None:
    """Both communicators send 1 MB each way over the one link with a bandwidth, for 2 ms."""
    for name, use in link_use(two_communicators("flows")).items():
        both = "gpu" not in name
        assert (use.nbytes, use.contended_ns) == ((2_000_000, 2_000_000) if both else (1_000_000, 0))
        assert use.bandwidth_utilisation == (1.0 if both else None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("algorithm", ["ring", "tree", "direct"])
def test_bytes_on_links_are_those_of_the_schedule(kind: str, algorithm: str) -> None:
    trace = call(kind, 1_000_001, 5, machine(5, {"model": "flows", "algorithm": algorithm}))
    steps = Formula(algorithm).best(Call(kind, 1_000_001, tuple(range(5)), 0), trace.job.machine).steps
    sent = np.zeros(5, np.int64)
    for step in steps:
        np.add.at(sent, step.source, step.times * ceil(step.share * 1_000_001))
    assert [link_use(trace)[f"gpu{r}->switch"].nbytes for r in range(5)] == sent.tolist()


def test_messages_hold_serial_links_one_at_a_time() -> None:
    trace = call("all_gather", 3_000_000, 3, machine(3, {"model": "flows", "algorithm": "direct"}, "serial"))
    early = trace.messages.copy()
    early[-1, Message._fields.index("start_ns")] -= 1
    with pytest.raises(InvariantError, match="a message of a collective started at 1000699 ns on link"):
        replace(trace, messages=early).check()


# -- rings on a torus or grid: from neighbour to neighbour ----------------------------------------------


def grid(shape: tuple[int, ...], model: dict[str, object], *, wrap: bool = True) -> Machine:
    link = {"latency": "1us", "bandwidth": "1GB/s"}
    return make_machine(
        {
            "devices": {"gpu": {"kind": "gpu", "count": prod(shape), "streams": 2}},
            "topology": {"kind": "torus", "shape": list(shape), "wrap": wrap, "link": link},
            "collectives": model,
        }
    )


@pytest.mark.parametrize(
    ("shape", "wrap", "farthest"),
    [
        ((2, 2), True, 1),
        ((4, 4), True, 1),
        ((2, 2, 2), True, 1),
        ((4, 3), False, 1),
        ((3, 3), True, 1),
        ((3, 3), False, 2),  # nine places of a chessboard, of which five are black: one hop takes two links
    ],
)
def test_a_ring_on_a_torus_has_each_link_for_itself(
    shape: tuple[int, ...], wrap: bool, farthest: int
) -> None:
    """2 (n - 1) steps, each 1 MB at 1 GB/s after 1 us; in the order of ranks 2 x 2 would take 12 ms."""
    n = prod(shape)
    ring = {"algorithm": "ring"}
    by_formula = grid(shape, {"model": "formula", **ring}, wrap=wrap)
    took = call("all_reduce", n * 10**6, n, by_formula).makespan_ns
    assert took == 2 * (n - 1) * (10**6 + farthest * 1000)
    on = grid(shape, {"model": "flows", **ring}, wrap=wrap)
    trace = call("all_reduce", n * 10**6, n, on)
    used = link_use(trace)
    assert all(use.transfers in (0, 2 * (n - 1)) and not use.contended_ns for use in used.values())
    assert sum(use.transfers > 0 for use in used.values()) == n + farthest - 1
    if farthest == 1:  # ... and otherwise only the last messages wait for the long hop
        assert trace.makespan_ns == took


def test_a_chain_on_a_torus_begins_at_its_root() -> None:
    """A broadcast from rank 5 in 16 pieces of 1 MB: the last one arrives after 2 x 15 hops."""
    on = grid((4, 4), {"model": "flows", "algorithm": "ring"})
    trace = call("broadcast", 16 * 10**6, 16, on, root="gpu5")
    assert trace.makespan_ns == 30 * (10**6 + 1000)


@examples(40)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=3), st.booleans(), st.integers(0, 124))
def test_a_ring_on_any_grid_is_as_short_as_can_be(shape: list[int], wrap: bool, root: int) -> None:
    n = prod(shape)
    sides = [size for size in shape if size > 1]
    if len(sides) < 2:
        return
    on = grid(tuple(shape), {}, wrap=wrap)
    order = ring_order(Call("broadcast", n, tuple(range(n)), root % n), on).tolist()
    assert sorted(order) == list(range(n))
    assert order[root % n] == root % n
    hops = sorted(len(on.route(a, b)) for a, b in zip(order, [*order[1:], order[0]], strict=True))
    bipartite_and_odd = n % 2 == 1 and not wrap
    assert hops == [1] * (n - 1) + [2 if bipartite_and_odd else 1]
