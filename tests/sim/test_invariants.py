"""The checks find every planted fault, name the offender, and pass what the engine makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count

import numpy as np
import pytest
from drawn_runs import draw_policy, draw_run
from examples import seeds
from runs import checked

from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from scenarios.ops.control_flow import cond, while_loop
from sim import Device, Graph, GraphBuilder, Link, Machine, Trace, simulate
from sim.base.arrays import IntArray
from sim.base.errors import InvariantError


def two_gpus() -> Trace:
    """Return a run that has every feature: transfers, an input elsewhere, issue costs, two streams."""
    b = GraphBuilder("faults")
    b.input("x", 100, device="gpu1")
    b.op("a", inputs=["x"], outputs=1000, duration_ns=50, device="gpu0")
    b.op("b", inputs=["a"], outputs=10, duration_ns=20, device="gpu1")
    b.op("c", inputs=["a"], outputs=2000, duration_ns=30, device="gpu0")
    b.op("d", inputs=["b", "c"], after=["a"], duration_ns=10, device="gpu1")
    b.op("e", inputs=["d"], duration_ns=5, device="cpu0")
    b.op("f", inputs=["d"], duration_ns=5, device="cpu0")
    gpu = {"streams": 1, "issue_ns": 3, "launch_latency_ns": 4, "gap_ns": 2, "event_ns": 1, "queue_depth": 2}
    machine = Machine(
        (Device("gpu0", **gpu), Device("gpu1", **gpu), Device("cpu0", "cpu", workers=2, cores=4, issue_ns=6)),
        tuple(
            Link(f"{x}-{y}", x, y, 7, 10**9)
            for x, y in (("gpu0", "gpu1"), ("gpu1", "gpu0"), ("gpu1", "cpu0"))
        ),
        network=make_network,
    )
    return simulate(b.build(), machine, ReadyQueue(synchronisation="issue"))


def row(trace: Trace, op: str, iteration: int = 0) -> int:
    """Return the row of a task."""
    index = trace.job.graph.index(op)
    return int(np.flatnonzero((trace.tasks["op"] == index) & (trace.tasks["iteration"] == iteration))[0])


def without(trace: Trace, what: str, dropped: int) -> Trace:
    """Return the trace without one row of its tasks or transfers."""
    columns = {name: np.delete(column, dropped) for name, column in getattr(trace, what).items()}
    return replace(trace, **{what: columns})


def doubled(trace: Trace, what: str) -> Trace:
    """Return the trace with the last row twice."""
    columns = {name: np.append(column, column[-1]) for name, column in getattr(trace, what).items()}
    return replace(trace, **{what: columns})


def shift(trace: Trace, op: str, ns: int, *columns: str) -> Trace:
    """Move some times of a task, and put the rows in start order again."""
    r = row(trace, op)
    for column in columns or ("start_ns", "end_ns"):
        trace.tasks[column][r] += ns
    order = np.argsort(trace.tasks["start_ns"], kind="stable")
    return replace(trace, tasks={name: column[order] for name, column in trace.tasks.items()})


def set_task(trace: Trace, name: str, **values: int) -> Trace:
    """Overwrite entries of a task's row."""
    for column, value in values.items():
        trace.tasks[column][row(trace, name)] = value
    return trace


def set_transfer(trace: Trace, r: int, **values: int) -> Trace:
    """Overwrite entries of a transfer's row."""
    for column, value in values.items():
        trace.transfers[column][r] = value
    return trace


FAULTS: dict[str, tuple[Callable[[Trace], Trace], str]] = {
    "a task is missing": (lambda t: without(t, "tasks", row(t, "c")), "'c' of iteration 0 ran 0 times"),
    "a task ran twice": (lambda t: doubled(t, "tasks"), "ran 2 times"),
    "no such op": (lambda t: set_task(t, "a", op=99), "no such task"),
    "ready before 0": (lambda t: set_task(t, "a", ready_ns=-1), "'a'.* before time 0"),
    "issued before ready": (lambda t: set_task(t, "b", issue_ns=0), "'b'.* before it was ready"),
    "started before issued": (lambda t: shift(t, "b", -1165), "'b'.* before it was issued"),
    "ended before started": (lambda t: set_task(t, "b", end_ns=0), "'b'.* before it started"),
    "rows out of order": (
        lambda t: replace(t, tasks={name: column[::-1].copy() for name, column in t.tasks.items()}),
        "stands after a later one",
    ),
    "a foreign stream": (lambda t: set_task(t, "b", stream=0), "'b'.* gpu1 does not have"),
    "a foreign issuer": (lambda t: set_task(t, "b", issuer=0), "gpu0/host, who does not serve gpu1"),
    "another worker's lane": (lambda t: set_task(t, "e", issuer=3), "cpu0/w1 took .*'e'"),
    "longer than it takes": (
        lambda t: shift(t, "f", 1, "end_ns"),
        "'f'.* took 6 ns on cpu0, where it takes 5",
    ),
    "a transfer is missing": (lambda t: without(t, "transfers", 1), "never sent to gpu1"),
    "a transfer came twice": (lambda t: doubled(t, "transfers"), "happened more than once"),
    "a needless transfer": (lambda t: set_transfer(t, 0, tensor=5), "nobody needs it"),
    "a wrong size": (lambda t: set_transfer(t, 0, nbytes=1), "wrong size"),
    "too fast": (lambda t: set_transfer(t, 0, end_ns=50), "took 50 ns.* no less than 107"),
    "sent before it was ready": (lambda t: set_transfer(t, 0, ready_ns=5), "before it was ready"),
    "sent before it was made": (
        lambda t: set_transfer(t, 1, start_ns=157),
        "the transfer of 'a'.* before op 'a'.* ended",
    ),
    "started before its data had come": (lambda t: shift(t, "b", -20), "'b'.* before the transfer of 'a'"),
    "started before its producer had ended": (lambda t: shift(t, "c", -20), "'c'.* before op 'a'"),
    "a worker that hurries": (lambda t: shift(t, "e", -1), "'e'.* launching it takes 6 ns"),
    "a launch that hurries": (
        lambda t: set_task(t, "c", issue_ns=int(t.tasks["start_ns"][row(t, "c")]) - 1),
        "'c'.* launching it takes 4 ns",
    ),
    "a host that does two things at once": (
        lambda t: set_task(t, "c", issue_ns=int(t.tasks["issue_ns"][row(t, "a")]) + 1, ready_ns=0),
        "gpu0/host was busy with op 'a' until 3 ns, and began with op 'c' at 1 ns",
    ),
    "a host that works for nothing": (
        lambda t: set_task(t, "a", issue_ns=2),
        "'a'.* ready at 0 ns and issued at 2 ns; issuing it takes 3 ns",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_finds(fault: str) -> None:
    plant, message = FAULTS[fault]
    with pytest.raises(InvariantError, match=message):
        plant(two_gpus()).check()


def test_passes_without_fault() -> None:
    trace = two_gpus()
    trace.check()
    assert len(trace.transfers["id"]) == 4


def parallel(n: int, **device: int) -> Trace:
    """Return n independent ops of 10 ns on one device."""
    b = GraphBuilder("parallel")
    for i in range(n):
        b.op(f"op{i}", duration_ns=10)
    return simulate(b.build(), Machine((Device("d", **device),)), ReadyQueue())


def test_overlap_on_a_stream() -> None:
    trace = parallel(2)
    trace.tasks["start_ns"][1] -= 1
    trace.tasks["end_ns"][1] -= 1
    with pytest.raises(InvariantError, match=r"'op1' started at 9 ns on d/0, where op 'op0' ended at 10 ns"):
        trace.check()


def test_a_gap_is_kept() -> None:
    trace = parallel(2, gap_ns=5)
    trace.tasks["start_ns"][1] -= 1
    trace.tasks["end_ns"][1] -= 1
    with pytest.raises(InvariantError, match="a gap of 5 ns is due"):
        trace.check()


def test_a_stream_starts_in_issue_order() -> None:
    trace = parallel(2, issue_ns=1)
    trace.tasks["issue_ns"][:] = [2, 1]
    trace.tasks["start_ns"] += 1
    trace.tasks["end_ns"] += 1
    with pytest.raises(InvariantError, match=r"'op1' .* after op 'op0', and was issued before it, at 1 ns"):
        trace.check()


def test_a_worker_does_one_thing_at_a_time() -> None:
    trace = parallel(2, workers=1)
    trace.tasks["issue_ns"][1] = 9
    with pytest.raises(
        InvariantError, match=r"d/w0 was busy with op 'op0' until 10 ns, and began with op 'op1' at 9"
    ):
        trace.check()


def test_a_launch_queue_is_not_overfull() -> None:
    trace = parallel(3, queue_depth=2)
    assert trace.tasks["issue_ns"].tolist() == [0, 0, 10]
    trace.tasks["issue_ns"][2] = 9
    with pytest.raises(InvariantError, match="3 launches were outstanding when op 'op2'"):
        trace.check()


def test_cores_are_not_used_twice() -> None:
    with pytest.raises(InvariantError, match="then 6 of 4 cores of d are in use"):
        parallel(3, workers=3, cores=4, cores_per_op=2).check()


def test_events_take_time() -> None:
    b = GraphBuilder("hop")
    b.op("a", duration_ns=10)
    b.op("b", inputs=["a"], duration_ns=10)

    class Two:
        def assign(self, job: object) -> list[int]:
            return [0, 1]

    machine = Machine((Device("d", streams=2, event_ns=3),))
    trace = simulate(b.build(), machine, ReadyQueue(synchronisation="issue"), streams=Two())
    assert trace.tasks["start_ns"].tolist() == [0, 13]
    trace.check()
    trace.tasks["start_ns"][1] -= 1
    trace.tasks["end_ns"][1] -= 1
    with pytest.raises(InvariantError, match="'b' started at 12 ns; op 'a' ended at 10 ns on another stream"):
        trace.check()


def test_serial_links_carry_one_transfer_at_a_time() -> None:
    b = GraphBuilder("link")
    for name in "ab":
        b.op(name, outputs=10, duration_ns=0, device="gpu0")
        b.op(name + "'", inputs=[name], duration_ns=0, device="gpu1")
    link = Link("wire", "gpu0", "gpu1", 0, 10**9)
    trace = simulate(
        b.build(), Machine((Device("gpu0"), Device("gpu1")), (link,), network=make_network), ReadyQueue()
    )
    assert trace.transfers["start_ns"].tolist() == [0, 10]
    trace.transfers["start_ns"][1] -= 1
    with pytest.raises(
        InvariantError, match=r"'b' to gpu1 started at 9 ns on link wire, which .* until 10 ns"
    ):
        trace.check()


@pytest.mark.parametrize("seed", seeds(150))
def test_drawn_runs_keep_every_invariant(seed: int) -> None:
    draw_run(seed).check()


def branches_and_loops(rng: np.random.Generator) -> Graph:
    """Return a graph with a condition and a loop, on two devices."""
    b = GraphBuilder("control flow")
    b.op("p", duration_ns=5, attributes={"outcome": bool(rng.integers(0, 2))})
    b.op("x", duration_ns=7, outputs=100, device="d0")

    def work(name: str) -> Callable[[GraphBuilder, Mapping[str, str]], list[str]]:
        return lambda b, v: [b.op(name, inputs=[v["x"]], duration_ns=int(rng.integers(0, 30)), outputs=50)]

    merged = cond(b, "if", "p", ["x"], work("yes"), work("no"))
    while_loop(
        b,
        "loop",
        {"i": merged[0]},
        lambda b, v: {"i": b.op("body", inputs=[v["i"]], outputs=10, duration_ns=9, device="d1")},
        trips=int(rng.integers(0, 5)),
        condition_ns=3,
    )
    return b.build()


@pytest.mark.parametrize("seed", seeds(60))
def test_control_flow_keeps_the_invariants(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, links = branches_and_loops(rng), bool(rng.integers(0, 2))
    wires = tuple(Link(f"{x}{y}", x, y, 2, 10**9) for x, y in (("d0", "d1"), ("d1", "d0")))
    devices = (
        Device("d0", "cpu", workers=2, issue_ns=int(rng.integers(0, 3))),
        Device("d1", streams=1, issue_ns=int(rng.integers(0, 3)), launch_latency_ns=int(rng.integers(0, 4))),
    )
    machine = Machine(devices, wires if links else (), network=make_network if links else None)
    trace = checked(graph, machine, draw_policy(rng, ordered=False), iterations=int(rng.integers(1, 3)))
    body = trace.tasks["op"] == graph.index("body")
    trace.tasks["start_ns"][body] = 0  # before there is anything to work on
    with pytest.raises(InvariantError):
        trace.check()


def run_with_edges(seed: int) -> tuple[Trace, IntArray]:
    """Return a run and the edges of its graph that lead to an op of the last iteration."""
    trace = draw_run(seed, 12)
    return trace, np.flatnonzero(trace.job.graph.edges.distance < trace.job.iterations)


@pytest.mark.parametrize("seed", seeds(40))
def test_no_task_can_be_moved_to_its_inputs_past(seed: int) -> None:
    """Moving any task to start before one of its producers' ends is found, whatever the graph."""
    trace, reached = next(drawn for more in count() if len((drawn := run_with_edges(seed + 100 * more))[1]))
    edges = trace.job.graph.edges
    k = int(np.random.default_rng(seed).choice(reached))
    names = trace.job.graph.op_names
    last = trace.job.iterations - 1
    producer = row(trace, names[int(edges.producer[k])], last - int(edges.distance[k]))
    consumer = row(trace, names[int(edges.consumer[k])], last)
    ns = trace.tasks["end_ns"][producer] - 1 - trace.tasks["start_ns"][consumer]
    for column in ("start_ns", "end_ns"):
        trace.tasks[column][consumer] += ns
    with pytest.raises(InvariantError):
        trace.check()
