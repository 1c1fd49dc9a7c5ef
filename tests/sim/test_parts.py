"""A graph that is cut by keys: each part has frames of its own, and what is told of a run knows that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pytest
from drawn_programs import draw_program, flowing
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from runs import checked

from devices.memory.run_memory import tensor_memory
from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.issue.work_queues import StreamStacks
from policies.rewrite.partition import Partition
from scenarios.ops.control_flow import while_loop
from sim import Device, Graph, GraphBuilder, Link, Machine, Policy, Trace, simulate
from sim.explain.memory_use import lifetimes
from sim.explain.narration import explain_text
from sim.readiness.eligibility import parts

Changes = dict[tuple[int, str, int], int]
"""Time, tensor, iteration of the graph → of how many runs it begins to lie there, less those that end."""

POLICIES: Sequence[Callable[[], Policy]] = (ReadyQueue, TensorFlowExecutor, StreamStacks)


def two_cpus(workers: Sequence[int] = (1, 1), latency_ns: int | None = None) -> Machine:
    devices = tuple(Device(f"d{k}", "cpu", workers=n) for k, n in enumerate(workers))
    if latency_ns is None:
        return Machine(devices)
    links = tuple(Link(f"{a} to {b}", a, b, latency_ns, 10**9) for a, b in (("d0", "d1"), ("d1", "d0")))
    return Machine(devices, links, network=make_network)


def changes(graph: Graph, found: Iterable[tuple[int, int, int, int]]) -> Changes:
    """Return them, from time, tensor, iteration and ± 1; a Send's own output is left out.

    An allocator frees it when the Send has ended, and the trace alone says when its Recv has.
    """
    of_send = graph.is_kind("send")[graph.tensor_producer]
    net: Counter[tuple[int, str, int]] = Counter()
    for time_ns, tensor, iteration, change in found:
        if not of_send[tensor]:
            net[time_ns, graph.tensor_name(tensor), iteration] += change
    return {what: change for what, change in net.items() if change}


def as_told(trace: Trace) -> Changes:
    """What the trace alone says."""
    of = lifetimes(trace)
    tensor, iteration = of.tensor.tolist(), of.iteration.tolist()
    begin = zip(of.start_ns.tolist(), tensor, iteration, [1] * len(tensor), strict=True)
    end = zip(of.end_ns.tolist(), tensor, iteration, [-1] * len(tensor), strict=True)
    return changes(trace.job.graph, (*begin, *end))


def as_allocated(trace: Trace) -> Changes:
    """What the log of the allocator says."""
    assert trace.memory is not None
    columns = [trace.memory[name] for name in ("time_ns", "tensor", "iteration")]
    columns.append(np.sign(trace.memory["change"]))
    return changes(trace.job.graph, zip(*(column.tolist() for column in columns), strict=True))


#     d0   count 1 ns, reads u         d1   slow 20 ns, reads w          of every trip
def uneven(parallel: int) -> Graph:
    b = GraphBuilder("one loop on two devices")
    b.op("zero", outputs=1, device="d0", duration_ns=0)
    b.op("u", outputs=10, device="d0", duration_ns=0)
    b.op("w", outputs=70, device="d1", duration_ns=0)

    def body(b: GraphBuilder, v: dict[str, str]) -> dict[str, str]:
        frame = {"frame": "loop", "parallel_iterations": parallel, "constant": True}
        for name, device in (("u", "d0"), ("w", "d1")):
            b.op(
                f"keep/{name}",
                kind="enter",
                inputs=[name],
                outputs=(0,),
                device=device,
                attributes=frame,
                duration_ns=0,
            )
        b.op("slow", inputs=[v["i"], "keep/w"], duration_ns=20, device="d1")
        return {"i": b.op("count", inputs=[v["i"], "keep/u"], outputs=1, duration_ns=1, device="d0")}

    while_loop(b, "loop", {"i": "zero"}, body, trips=3, parallel_iterations=parallel, device="d0")
    return Partition(rendezvous=True).apply(b.build())


@pytest.mark.parametrize("parallel", [1, 2, 10])
@pytest.mark.parametrize("make", POLICIES)
@pytest.mark.parametrize("latency_ns", [None, 100])
def test_a_loop_keeps_what_does_not_change_until_it_is_over_on_that_device(
    latency_ns: int | None, parallel: int, make: Callable[[], Policy]
) -> None:
    """The three trips take d0 3 ns, whatever the window: what it sent, and d1, come later."""
    graph, machine = uneven(parallel), two_cpus(latency_ns=latency_ns)
    trace = checked(graph, machine, make(), memory=tensor_memory())
    explain_text(trace)
    assert set(parts(trace.job)) == {0, 1}
    op, live = trace.tasks["op"], trace.tasks["dead"] == 0
    count, slow = (
        trace.tasks["end_ns"][live & (op == graph.index(name))].tolist() for name in ("count", "slow")
    )
    assert count == [1, 2, 3]
    assert slow[0] >= 20
    assert np.diff(slow).min() >= 20
    for found in (as_told(trace), as_allocated(trace)):
        until = {name: time_ns for (time_ns, name, _), change in found.items() if change < 0}
        assert until["u"] == 3
        assert until["w"] == trace.tasks["end_ns"][trace.device == 1].max() >= slow[-1]


def drawn(seed: int) -> tuple[Graph, list[int]]:
    rng = np.random.default_rng(seed)
    workers = [int(rng.integers(1, 4)) for _ in range(2)]
    return Partition(rendezvous=True).apply(flowing(draw_program(rng, devices=2), ["d0", "d1"])), workers


@given(st.integers(0, 2**32 - 1), st.sampled_from(POLICIES), st.integers(1, 2))
@examples(60)
def test_the_trace_alone_says_how_long_tensors_of_each_part_live(
    seed: int, make: Callable[[], Policy], iterations: int
) -> None:
    """Which run of an op fed which follows from frames, though those of both parts bear the same names."""
    graph, workers = drawn(seed)
    bare = checked(graph, two_cpus(workers), make(), iterations=iterations)
    explain_text(bare)
    trace = checked(graph, two_cpus(workers), make(), iterations=iterations, memory=tensor_memory())
    assert all(np.array_equal(bare.tasks[name], trace.tasks[name]) for name in bare.tasks)
    assert as_told(bare) == as_told(trace) == as_allocated(trace)


@given(st.integers(0, 2**32 - 1), st.sampled_from(POLICIES), st.integers(0, 30))
@examples(40)
def test_what_is_sent_over_links_is_given_back(
    seed: int, make: Callable[[], Policy], latency_ns: int
) -> None:
    graph, workers = drawn(seed)
    trace = checked(graph, two_cpus(workers, latency_ns), make(), iterations=2, memory=tensor_memory())
    explain_text(trace), lifetimes(trace)
    for device in range(2):
        log = trace.log_of(device)
        assert log["in_use"].min(initial=0) >= 0
        assert log["in_use"][-1:].sum() == 0


def test_the_window_of_another_part_holds_nothing_back() -> None:
    """Row by row the path of an explanation goes back in time; this program's once came back to itself."""
    graph, workers = drawn(20)
    explain_text(simulate(graph, two_cpus(workers), StreamStacks()))
