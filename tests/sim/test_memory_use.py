"""Memory in use: by hand, by the definition instant by instant, and against an exact allocator."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drawn_runs import DrawnPlacement, DrawnStreams, draw_graph, draw_machine, draw_policy, draw_run
from examples import seeds
from runs import checked

from devices.memory.registry import MemorySpec
from devices.memory.run_memory import tensor_memory
from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from scenarios.ops.control_flow import while_loop
from sim import Device, GraphBuilder, Link, Machine, Trace, simulate
from sim.base.errors import GraphError
from sim.explain.memory_use import lifetimes, memory_use, peak_bytes


def steps(trace: Trace, device: str) -> list[tuple[int, int]]:
    """Return (time, bytes in use) pairs."""
    use = memory_use(trace)[device]
    return list(zip(use.times_ns.tolist(), use.in_use_bytes.tolist(), strict=True))


def test_outputs_live_until_the_last_reader_has_ended() -> None:
    b = GraphBuilder("fork")
    b.op("a", duration_ns=10, outputs=[100, 7])
    b.op("b", duration_ns=10, inputs=["a"], outputs=20)
    b.op("c", duration_ns=10, inputs=["a", "b"], outputs=30)
    trace = simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue())
    assert steps(trace, "gpu0") == [(0, 107), (10, 120), (20, 150), (30, 0)]
    use = memory_use(trace)["gpu0"]
    assert (use.peak_bytes, use.peak_ns, use.resident_bytes) == (150, 20, 0)
    assert [(h.name, h.nbytes, h.start_ns, h.end_ns) for h in use.holders] == [
        ("a", 100, 0, 30),
        ("c", 30, 20, 30),
        ("b", 20, 10, 30),
    ]


def test_transfers_hold_both_ends() -> None:
    b = GraphBuilder("send")
    b.input("x", 1000, device="gpu0")
    b.parameter("w", 5)
    b.op("a", duration_ns=10, inputs=["x", "w"], outputs=100, device="gpu0")
    b.op("b", duration_ns=10, inputs=["a", "w", "x"], device="gpu1")
    machine = Machine(
        (Device("gpu0"), Device("gpu1")), (Link("l", "gpu0", "gpu1", 0, 10**9),), network=make_network
    )
    trace = simulate(b.build(), machine, ReadyQueue())
    assert steps(trace, "gpu0") == [(0, 1105), (1100, 1005), (1110, 0)]
    # a's copy has its memory while it waits for the link.
    assert steps(trace, "gpu1") == [(0, 1005), (10, 1105), (1110, 0)]


def test_what_is_there_from_the_beginning_counts_once_per_device() -> None:
    b = GraphBuilder("resident")
    b.input("x", 10)
    b.parameter("w", 5)
    b.parameter("unread", 50)
    for i, device in enumerate(("gpu0", "gpu1", "gpu1")):
        b.op(f"op{i}", duration_ns=10, inputs=["x", "w"], device=device)
    machine = Machine((Device("gpu0"), Device("gpu1"), Device("gpu2")))
    trace = simulate(b.build(), machine, ReadyQueue(), iterations=3)
    assert peak_bytes(trace) == {"gpu0": 15, "gpu1": 15, "gpu2": 0}


def test_distances_keep_a_tensor_for_a_later_iteration() -> None:
    b = GraphBuilder("loop")
    b.op("a", duration_ns=10, outputs=100)
    b.op("b", duration_ns=10, inputs=[("a", 2)], after=["a"])
    trace = simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue(), iterations=4)
    lives = lifetimes(trace)
    end = {
        (int(o), int(i)): int(e)
        for o, i, e in zip(*(trace.tasks[c] for c in ("op", "iteration", "end_ns")), strict=True)
    }
    for iteration, dies in zip(lives.iteration.tolist(), lives.end_ns.tolist(), strict=True):
        assert dies == (end[1, iteration + 2] if iteration + 2 < 4 else end[0, iteration])


def test_an_empty_device_and_a_graph_without_bytes() -> None:
    b = GraphBuilder("nothing")
    b.op("a", duration_ns=10)
    use = memory_use(simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue()))["gpu0"]
    assert (use.peak_bytes, use.peak_ns, use.holders, len(use.times_ns)) == (0, 0, (), 0)


@pytest.mark.parametrize("seed", seeds(60))
def test_it_is_what_an_exact_allocator_gives_out(seed: int) -> None:
    """At the end of every instant; the allocator's log has the states in between, too.

    No transfer waits for its link here: with that allocator it would have its memory already.
    """
    rng = np.random.default_rng(seed)
    iterations = int(rng.integers(1, 4))
    graph, machine = draw_graph(rng, int(rng.integers(1, 30)), iterations > 1), draw_machine(rng)
    machine = replace(machine, links=tuple(replace(link, sharing="shared") for link in machine.links))
    trace = simulate(
        graph,
        machine,
        draw_policy(rng),
        placement=DrawnPlacement(seed),
        streams=DrawnStreams(),
        iterations=iterations,
        memory=tensor_memory(),
    )
    assert trace.memory is not None
    trace.check()
    for d, (name, use) in enumerate(memory_use(trace).items()):
        mine = trace.memory["device"] == d
        log = zip(trace.memory["time_ns"][mine].tolist(), trace.memory["in_use"][mine].tolist(), strict=True)
        given_out = dict(log)  # the last entry of an instant stays
        needed = dict(steps(trace, name))
        if trace.makespan_ns in needed:
            needed[trace.makespan_ns] = use.resident_bytes  # which it never gives back
        assert {time: given_out[time] for time in needed if time in given_out} == {
            time: nbytes for time, nbytes in needed.items() if time in given_out
        }
        if trace.makespan_ns:  # in a run of no length nothing is held for any time
            assert use.peak_bytes == max(given_out.values(), default=0)


@pytest.mark.parametrize("seed", seeds(30))
def test_no_tensor_dies_before_its_readers(seed: int) -> None:
    trace = draw_run(seed)
    lives = lifetimes(trace)
    assert (lives.start_ns < lives.end_ns).all()
    assert (lives.end_ns <= trace.makespan_ns).all()
    for use in memory_use(trace).values():
        assert (use.in_use_bytes >= 0).all()
        assert use.peak_bytes == use.in_use_bytes.max(initial=0)
        if len(use.in_use_bytes):
            assert use.in_use_bytes[-1] == 0


def test_loops_reuse_what_their_iterations_free() -> None:
    """Each body (100 B) reads the one before, which comes to it through next_iteration, merge and switch."""
    b = GraphBuilder("while")
    b.op("zero", duration_ns=0)
    while_loop(
        b,
        "loop",
        {"i": "zero"},
        lambda b, v: {"i": b.op("body", inputs=[v["i"]], outputs=100, duration_ns=10)},
        trips=5,
    )
    trace = simulate(b.build(), Machine((Device("cpu0", "cpu", workers=1),)), ReadyQueue())
    assert trace.makespan_ns == 50
    assert peak_bytes(trace) == {"cpu0": 200}


def views() -> GraphBuilder:
    """a (100 bytes), a view of it, a view of that, and a reader of the second view."""
    b = GraphBuilder("views")
    b.op("a", duration_ns=10, outputs=100)
    b.op("flat", duration_ns=0, inputs=["a"], outputs=100, attributes={"view_of": 0})
    b.op("flatter", duration_ns=10, inputs=["flat"], outputs=100, attributes={"view_of": 0})
    b.op("b", duration_ns=10, inputs=["flatter"], outputs=7)
    return b


def test_a_view_has_no_bytes_and_keeps_what_it_views() -> None:
    trace = simulate(
        views().build(),
        Machine((Device("gpu0"),)),
        ReadyQueue(),
        memory=tensor_memory({"gpu0": MemorySpec()}),
    )
    assert steps(trace, "gpu0") == [(0, 100), (20, 107), (30, 0)]
    assert trace.memory is not None
    assert trace.memory["change"].tolist() == [100, 7, -100, -7]
    assert trace.memory["tensor"].tolist() == [0, 3, 0, 3]


def test_a_view_of_a_parameter_is_there_already() -> None:
    b = GraphBuilder("transposed")
    b.parameter("w", 50)
    b.op("t", duration_ns=10, inputs=["w"], outputs=50, attributes={"view_of": 0})
    b.op("c", duration_ns=10, inputs=["t"], outputs=3)
    trace = simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue(), memory=tensor_memory())
    assert peak_bytes(trace) == {"gpu0": 53}
    assert trace.memory is not None
    assert trace.memory["in_use"].tolist() == [50, 53, 50]


def test_a_view_of_something_that_is_no_input_is_refused() -> None:
    b = GraphBuilder("wrong")
    b.op("a", outputs=100, duration_ns=0)
    b.op("flat", inputs=["a"], outputs=100, attributes={"view_of": 1}, duration_ns=0)
    trace = simulate(b.build(), Machine((Device("gpu0"),)), ReadyQueue())
    with pytest.raises(GraphError, match="op 'flat' has view_of 1, which should be the number of one of its"):
        memory_use(trace)


@pytest.mark.parametrize("seed", seeds(30))
def test_views_agree_with_an_exact_allocator(seed: int) -> None:
    """Random graphs in which every third op is a view of its first input, over two devices."""
    rng = np.random.default_rng([seed, 7])
    b = GraphBuilder("random views")
    b.parameter("w", 11)
    for i in range(25):
        inputs = [f"op{rng.integers(i)}" for _ in range(int(rng.integers(1, 3)))] if i else ["w"]
        attributes = {"view_of": 0} if rng.random() < 0.35 else None
        ns, size = int(rng.integers(0, 4)) * 10, int(rng.integers(0, 50))
        device = f"gpu{rng.integers(2)}"
        b.op(f"op{i}", inputs=inputs, outputs=size, duration_ns=ns, device=device, attributes=attributes)
    link = Link("l", "gpu0", "gpu1", 3, 10**10, "shared"), Link("k", "gpu1", "gpu0", 3, 10**10, "shared")
    machine = Machine((Device("gpu0"), Device("gpu1", streams=2)), link, network=make_network)
    trace = checked(b.build(), machine, ReadyQueue(), memory=tensor_memory(), iterations=2)
    assert trace.memory is not None
    for d, use in enumerate(memory_use(trace).values()):
        mine = trace.memory["device"] == d
        last = dict(
            zip(trace.memory["time_ns"][mine].tolist(), trace.memory["in_use"][mine].tolist(), strict=True)
        )
        last.pop(trace.makespan_ns, None)
        needed = dict(zip(use.times_ns.tolist(), use.in_use_bytes.tolist(), strict=True))
        assert {t: n for t, n in last.items() if t in needed} == {
            t: n for t, n in needed.items() if t in last
        }
