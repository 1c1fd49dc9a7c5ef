"""Where the makespan went: parts that add up, and one line on why two runs differ."""

from __future__ import annotations

import re
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from triple_helpers import Run, runs

from devices.machine import make_machine
from policies.issue.out_of_order import OutOfOrder
from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from policies.streams import PerBranch, Recorded, RoundRobinStreams
from scenarios.report.compare import PARTS, difference, makespan_parts, why_fast
from sim import Device, GraphBuilder, Link, Machine, Policy, Trace, simulate
from sim.base.units import parse_duration

CPU = Device("cpu0", "cpu", workers=2)


def run(ops: dict[str, tuple[int, list[str]]], machine: Machine, policy: Policy, **decisions: Any) -> Trace:
    builder = GraphBuilder("g")
    for name, (ns, inputs) in ops.items():
        builder.op(name, duration_ns=ns, inputs=inputs, outputs=1000)
    trace = simulate(builder.build(), machine, policy, **decisions)
    trace.check()
    return trace


HEAD_OF_LINE: dict[str, tuple[int, list[str]]] = {
    "a": (40, []),
    "b": (10, ["a"]),
    "c": (10, []),
    "d": (30, []),
}
CHAIN: dict[str, tuple[int, list[str]]] = {"a": (10, []), "b": (10, ["a"]), "c": (10, ["b"])}


def test_held_back_by_the_policy() -> None:
    """d is ready at 0; a worker is free until 40, then both are busy until 50."""
    in_order = run(HEAD_OF_LINE, Machine((CPU,)), InOrder())
    wide = run(HEAD_OF_LINE, Machine((CPU,)), OutOfOrder(window=4))
    assert makespan_parts(in_order) == {"executing": 30, "issuer": 10, "policy": 40}
    assert makespan_parts(wide) == {"executing": 50}
    assert difference(in_order, wide) == (
        "30 ns slower, mainly because the policy holds ready ops back (+40 ns); "
        "-20 ns executing, +10 ns waiting for the host or a worker"
    )
    assert difference(wide, wide) == "the same"
    assert why_fast(wide) == "at the lower bound (critical path): 50 ns executing"


def test_launch_costs_and_queues() -> None:
    """a is issued at 4, starts at 6; b and c were issued long before their turn."""
    gpu = Device("gpu0", issue_ns=4, launch_latency_ns=2, gap_ns=1)
    trace = run(CHAIN, Machine((gpu,)), InOrder(synchronisation="issue"))
    assert makespan_parts(trace) == {"executing": 30, "issuer": 4, "launch": 2 + 1 + 1}
    eager = run(CHAIN, Machine((gpu,)), InOrder())
    assert makespan_parts(eager) == {"executing": 30, "issuer": 12, "launch": 6}
    assert difference(eager, trace) == (
        "10 ns slower, mainly because the host waits for each kernel (+8 ns); +2 ns launching"
    )
    assert difference(trace, eager) == "10 ns faster: -8 ns waiting for the host or a worker, -2 ns launching"
    slow = run(CHAIN, Machine((Device("gpu0", issue_ns=9, launch_latency_ns=2, gap_ns=1),)), InOrder())
    assert difference(slow, eager) == "15 ns slower because ops wait for the host or a worker"


def test_a_queue_and_resources_are_one_wait_for_the_device() -> None:
    """Kernels that fill the GPU queue on one stream and wait for SMs on two: 30 ns either way."""

    def gpu(streams: int, issue_cost: str) -> Machine:
        given = {"kind": "gpu", "sms": 2, "sharing": "sm", "streams": streams, "issue_cost": issue_cost}
        return make_machine({"devices": {"gpu0": given}})

    ops: dict[str, tuple[int, list[str]]] = {"a": (10, []), "b": (10, ["a"]), "c": (30, []), "d": (20, ["b"])}
    one = run(ops, gpu(1, "0ns"), InOrder(synchronisation="issue"))
    two = run(ops, gpu(2, "2ns"), InOrder(synchronisation="issue"), streams=RoundRobinStreams())
    assert makespan_parts(one) == {"executing": 40, "stream": 30}
    assert makespan_parts(two) == {"executing": 40, "issuer": 2, "resources": 30}
    assert difference(two, one) == "2 ns slower because ops wait for the host or a worker"


def test_queued_on_a_stream_and_events() -> None:
    fork: dict[str, tuple[int, list[str]]] = {
        "a": (10, []),
        "b": (20, ["a"]),
        "c": (30, ["a"]),
        "d": (5, ["b", "c"]),
    }
    one = Machine((Device("gpu0", event_ns=3),))
    two = Machine((Device("gpu0", streams=2, event_ns=3),))
    serial = run(fork, one, ReadyQueue(synchronisation="issue"))
    branches = run(fork, two, ReadyQueue(synchronisation="issue"), streams=PerBranch())
    assert makespan_parts(serial) == {"executing": 45, "stream": 20}
    assert makespan_parts(branches) == {"executing": 45, "event": 6}
    assert difference(serial, branches) == (
        "14 ns slower, mainly because ops queue on their streams (+20 ns); -6 ns waiting for an event"
    )


def test_longer_kernels_are_the_cause_not_the_policy() -> None:
    """d is last in the program: on one stream it waits for a, b and c, whatever the policy says of it."""
    machine = Machine((Device("gpu0"),))
    fast = run(HEAD_OF_LINE, machine, InOrder())
    slow = run({op: (2 * ns, inputs) for op, (ns, inputs) in HEAD_OF_LINE.items()}, machine, InOrder())
    assert makespan_parts(fast) == {"executing": 30, "stream": 60}
    assert difference(slow, fast) == "90 ns slower because its ops take longer to execute"
    assert difference(fast, slow) == "90 ns faster: -90 ns executing"


def test_a_stream_that_is_idle_in_order_for_a_longer_kernel_elsewhere() -> None:
    """c is ready at 0 and comes after b, which waits for a on another GPU: 40 ns, or 80."""
    machine = Machine((Device("gpu0"), Device("gpu1")))

    def step(scale: int) -> Trace:
        b = GraphBuilder("in order")
        b.op("a", duration_ns=40 * scale, device="gpu0")
        b.op("b", duration_ns=10 * scale, device="gpu1", inputs=["a"])
        b.op("c", duration_ns=30 * scale, device="gpu1")
        return simulate(b.build(), machine, InOrder())

    slow, fast = step(2), step(1)
    assert makespan_parts(fast) == {"executing": 30, "policy": 40, "stream": 10}
    assert difference(slow, fast) == "80 ns slower because its ops take longer to execute"
    assert difference(fast, slow) == "80 ns faster: -80 ns executing"


def test_exposed_communication_is_a_cause() -> None:
    """A sum of 20 ns, beside b on a stream of its own or before the update on the same."""

    def step(streams: int) -> Trace:
        b = GraphBuilder("step")
        b.op("a", duration_ns=10, outputs=4, attributes={"stream": 0})
        b.op(
            "sum",
            kind="all_reduce",
            duration_ns=20,
            inputs=["a"],
            outputs=4,
            attributes={"stream": streams - 1},
        )
        b.op("b", duration_ns=30, inputs=["a"], outputs=4, attributes={"stream": 0})
        b.op("update", duration_ns=5, inputs=["b"], attributes={"stream": 0})
        machine = Machine((Device("gpu0", streams=streams),))
        return simulate(b.build(), machine, InOrder(synchronisation="issue"), streams=Recorded())

    beside, before = step(2), step(1)
    assert makespan_parts(beside) == {"executing": 45}
    assert makespan_parts(before) == {"executing": 45, "communication": 20}
    assert difference(before, beside) == "20 ns slower because more of its communication is exposed"


def test_moving_data() -> None:
    """1000 bytes at 1 GB/s take 1000 ns, after 500 ns of latency; the second transfer waits for the first."""
    machine = Machine(
        (Device("gpu0"), Device("gpu1", streams=2)),
        (Link("wire", "gpu0", "gpu1", 500, 10**9),),
        network=_serial(),
    )
    builder = GraphBuilder("two transfers")
    builder.op("a", duration_ns=10, outputs=[1000, 1000], device="gpu0")
    builder.op("b", duration_ns=10, inputs=["a"], device="gpu1")
    builder.op("c", duration_ns=10, inputs=["a:1"], device="gpu1")
    parts = makespan_parts(simulate(builder.build(), machine, ReadyQueue()))
    assert (parts["executing"], parts["transfer"], parts["link"]) == (20, 1500, 1500)


def _serial() -> Any:
    from devices.network import make_network

    return make_network


@given(runs())
@examples(60)
def test_the_parts_add_up_to_the_makespan(drawn: Run) -> None:
    trace = drawn.trace()
    parts = makespan_parts(trace)
    assert sum(parts.values()) == trace.makespan_ns
    assert set(parts) <= set(PARTS)
    assert min(parts.values(), default=1) > 0


@given(runs(), runs())
@examples(50)
def test_a_difference_is_one_line(mine: Run, other: Run) -> None:
    line = difference(mine.trace(), other.trace())
    assert "\n" not in line
    assert re.fullmatch(r"the same|equally fast|\S+ \S+ (slower(,| because) .+|faster: .+)", line), line


def test_an_empty_run_has_no_parts() -> None:
    trace = run({"a": (0, [])}, Machine((CPU,)), ReadyQueue())
    assert makespan_parts(trace) == {}
    assert why_fast(trace) == "takes no time"


@pytest.mark.parametrize("part", PARTS)
def test_every_part_has_words(part: str) -> None:
    assert PARTS[part].strip() == PARTS[part] != ""


@given(runs())
@examples(50)
def test_the_parts_that_are_told_add_up(drawn: Run) -> None:
    trace = drawn.trace()
    parts = why_fast(trace).rpartition("): ")[2]
    told = [parse_duration(" ".join(part.split()[:2])) for part in parts.split(", ") if part[0].isdecimal()]
    # Each is rounded to four digits: half a thousandth of itself, at most.
    assert abs(sum(told) - trace.makespan_ns) <= trace.makespan_ns / 1000
