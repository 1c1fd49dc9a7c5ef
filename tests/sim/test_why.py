"""Where the makespan went: parts that add up, and one line on why two runs differ."""

from __future__ import annotations

import re
from time import process_time
from typing import Any

from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from runs import checked
from triple_helpers import Run, runs

from devices.machine import make_machine
from devices.network import make_network
from policies.issue.program_order import InOrder, OutOfOrder
from policies.issue.ready_queue import ReadyQueue
from policies.streams import PerBranch, Recorded, RoundRobinStreams
from scenarios.run.execute import run_case
from scenarios.run.load import load_scenario
from sim import Device, GraphBuilder, Link, Machine, Policy, Trace, simulate
from sim.base.units import parse_duration
from sim.explain.derived import DerivedColumns
from sim.explain.idle import REASONS, idle_reasons
from sim.explain.makespan_breakdown import (
    BUBBLE,
    PARTS,
    breakdown,
    breakdown_line,
    breakdown_text,
    change,
    change_text,
)
from sim.explain.time_use import time_use

CPU = Device("cpu0", "cpu", workers=2)


def run(ops: dict[str, tuple[int, list[str]]], machine: Machine, policy: Policy, **decisions: Any) -> Trace:
    builder = GraphBuilder("g")
    for name, (ns, inputs) in ops.items():
        builder.op(name, duration_ns=ns, inputs=inputs, outputs=1000)
    return checked(builder.build(), machine, policy, **decisions)


def makespan_parts(trace: Trace) -> dict[str, int]:
    return breakdown(DerivedColumns(trace)).parts


def difference(trace: Trace, other: Trace) -> str:
    return change_text(DerivedColumns(trace), DerivedColumns(other))


def why_fast(trace: Trace) -> str:
    return breakdown_text(DerivedColumns(trace))


HEAD_OF_LINE: dict[str, tuple[int, list[str]]] = {
    "a": (40, []),
    "b": (10, ["a"]),
    "c": (10, []),
    "d": (30, []),
}
CHAIN: dict[str, tuple[int, list[str]]] = {"a": (10, []), "b": (10, ["a"]), "c": (10, ["b"])}


def test_held_back_by_the_policy() -> None:
    """c and d are ready at 0, and one of two workers is idle until 40."""
    in_order = run(HEAD_OF_LINE, Machine((CPU,)), InOrder())
    wide = run(HEAD_OF_LINE, Machine((CPU,)), OutOfOrder(window=4))
    assert makespan_parts(in_order) == {"compute": 60, "policy": 20}
    assert makespan_parts(wide) == {"compute": 50}
    assert difference(in_order, wide) == (
        "30 ns slower, mainly because InOrder holds ready ops back (+20 ns); +10 ns computing"
    )
    assert difference(wide, wide) == "the same"
    assert why_fast(wide) == "at the lower bound (critical path): 50 ns computing"


def test_launch_costs_and_queues() -> None:
    """a is issued at 4, starts at 6; b and c were issued long before their turn."""
    gpu = Device("gpu0", issue_ns=4, launch_latency_ns=2, gap_ns=1)
    trace = run(CHAIN, Machine((gpu,)), InOrder(synchronisation="issue"))
    assert makespan_parts(trace) == {"compute": 30, "issue": 4, "launch": 2 + 1 + 1}
    eager = run(CHAIN, Machine((gpu,)), InOrder())
    assert makespan_parts(eager) == {"compute": 30, "issue": 12, "launch": 6}
    assert difference(eager, trace) == (
        "10 ns slower, mainly because the host waits for each kernel (+8 ns); +2 ns launching"
    )
    assert difference(trace, eager) == "10 ns faster: -8 ns waiting for the host, -2 ns launching"
    slow = run(CHAIN, Machine((Device("gpu0", issue_ns=9, launch_latency_ns=2, gap_ns=1),)), InOrder())
    assert difference(slow, eager) == (
        "15 ns slower because the host launches too slowly for gpu0: it is launch-bound"
    )


def test_a_queue_and_sms_keep_a_device_busy_either_way() -> None:
    """Kernels that fill the GPU queue on one stream and wait for SMs on two: it computes for 70 ns."""

    def gpu(streams: int, issue_cost: str) -> Machine:
        given = {"kind": "gpu", "sms": 2, "sharing": "sm", "streams": streams, "issue_cost": issue_cost}
        return make_machine({"devices": {"gpu0": given}})

    ops: dict[str, tuple[int, list[str]]] = {"a": (10, []), "b": (10, ["a"]), "c": (30, []), "d": (20, ["b"])}
    one = run(ops, gpu(1, "0ns"), InOrder(synchronisation="issue"))
    two = run(ops, gpu(2, "2ns"), InOrder(synchronisation="issue"), streams=RoundRobinStreams())
    assert makespan_parts(one) == {"compute": 70}
    assert makespan_parts(two) == {"compute": 70, "issue": 2}
    assert difference(two, one) == (
        "2 ns slower because the host launches too slowly for gpu0: it is launch-bound"
    )


def test_one_stream_after_another_and_events() -> None:
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
    assert makespan_parts(serial) == {"compute": 65}
    assert makespan_parts(branches) == {"compute": 48, "event": 3}
    assert difference(serial, branches) == (
        "14 ns slower, mainly because gpu0 executes less at once (+17 ns); -3 ns waiting for an event"
    )


def test_longer_kernels_are_the_cause_not_the_policy() -> None:
    """d is last in the program: on one stream it waits for a, b and c, whatever the policy says of it."""
    machine = Machine((Device("gpu0"),))
    fast = run(HEAD_OF_LINE, machine, InOrder())
    slow = run({op: (2 * ns, inputs) for op, (ns, inputs) in HEAD_OF_LINE.items()}, machine, InOrder())
    assert makespan_parts(fast) == {"compute": 90}
    assert difference(slow, fast) == "90 ns slower because its ops take longer to execute"
    assert difference(fast, slow) == "90 ns faster: -90 ns computing"


def two_gpus(policy: Policy) -> Trace:
    """b waits for a on another GPU, and is before c in the program."""
    b = GraphBuilder("in order")
    b.op("a", duration_ns=40, device="gpu0")
    b.op("b", duration_ns=10, device="gpu1", inputs=["a"])
    b.op("c", duration_ns=30, device="gpu1")
    return simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), policy)


def test_a_policy_that_holds_back_counts_for_all_that_it_holds_back() -> None:
    """c is ready at 0 and comes after b: gpu1, which ends last, is idle for 40."""
    in_order, ready_queue = two_gpus(InOrder()), two_gpus(ReadyQueue())
    assert breakdown(DerivedColumns(in_order)) == ("gpu1", {"compute": 40, "policy": 40}, {}, {})
    assert breakdown(DerivedColumns(ready_queue)) == (
        ("gpu1", {"compute": 40, "dependency": 10}, {"gpu0": 10}, {})
    )
    assert difference(in_order, ready_queue) == (
        "30 ns slower, mainly because InOrder holds ready ops back (+40 ns); -10 ns waiting for gpu0"
    )


def test_what_is_not_released_yet_is_not_held_back_by_the_policy() -> None:
    """A worker is free from the beginning, and b may start at 30."""
    b = GraphBuilder("released")
    b.op("a", duration_ns=20)
    b.op("b", duration_ns=10, attributes={"release": 30})
    trace = simulate(b.build(), Machine((CPU,)), ReadyQueue())
    assert makespan_parts(trace) == {"compute": 30, "release": 10}


def test_idle_time_is_put_down_to_what_ran_elsewhere() -> None:
    """gpu0 waits for b on gpu1 and the way there and back; the device of the question may be named."""
    b = GraphBuilder("there and back")
    b.op("a", duration_ns=40, device="gpu0", outputs=1000)
    b.op("b", duration_ns=10, device="gpu1", inputs=["a"], outputs=1000)
    b.op("c", duration_ns=30, device="gpu0", inputs=["b"])
    machine = Machine(
        (Device("gpu0"), Device("gpu1")),
        (Link("there", "gpu0", "gpu1", 5, 10**12), Link("back", "gpu1", "gpu0", 7, 10**12)),
        network=make_network,
    )
    f = DerivedColumns(simulate(b.build(), machine, ReadyQueue()))
    parts, waits_for = (
        {"compute": 70, "dependency": 16, "transfer": 8},
        {"gpu1": 10, "transfer gpu0<->gpu1": 6},
    )
    assert breakdown(f) == ("gpu0", parts, waits_for, {})
    assert breakdown(f, "gpu1").parts == {"compute": 10, "dependency": 40, "transfer": 6, "finished": 38}
    assert breakdown(f, "gpu1").waits_for == {"gpu0": 70, "transfer gpu0<->gpu1": 8}
    assert breakdown_line(f) == "gpu0: 70 ns computing, 14 ns waiting for transfers, 10 ns waiting for gpu1"


def test_a_transfer_that_waits_for_its_link_is_the_link_s() -> None:
    """gpu0 stands still from 20: its second message waits for the first until 40, and is there at 70."""
    b = GraphBuilder("two messages")
    for name in ("a", "b"):
        b.op(name, duration_ns=10, device="gpu0", outputs=30)
        b.op(f"read {name}", duration_ns=10, device="gpu1", inputs=[name])
    b.op("c", duration_ns=5, device="gpu0", after=["read b"])
    link = Link("there", "gpu0", "gpu1", 0, 10**9)
    machine = Machine((Device("gpu0"), Device("gpu1")), (link,), network=make_network)
    f = DerivedColumns(simulate(b.build(), machine, ReadyQueue()))
    assert breakdown(f, "gpu0").waits_for == {"transfer gpu0<->gpu1": 50, "gpu1": 10}


def test_a_pipeline_has_a_bubble_of_three_phases() -> None:
    """The textbook: all idle for 3 of 11 parts of 33 ms; with two chunks a rank, for 4.5 ms.

    GPipe turns round after the last forward, 1F1B after the p - s first: rank s waits for p - 1 - s others
    to go forward and back, or only back. It makes up for it in the drain.
    """
    most = "most of it waiting for stage"
    cases = load_scenario("scenarios/examples/gpipe.yaml").cases()
    gpipe, one_f_one_b, chunks = (DerivedColumns(run_case(case).trace, case.label) for case in cases)
    for f in (gpipe, one_f_one_b):
        assert breakdown_line(f).startswith("rank0: 24 ms computing, 9 ms bubble (warm-up ")
        assert sum(breakdown(f).waits_for.values()) == 9_000_000
        for s in range(4):  # F is 1 ms, B 2 ms
            after = 3 - s
            warm_up, drain = (s + 3 * after, 2 * s) if f is gpipe else (s + 2 * after, after + 2 * s)
            told = {"warm-up": 1_000_000 * warm_up, "drain": 1_000_000 * drain}
            assert breakdown(f, f"rank{s}").bubble == {phase: ns for phase, ns in told.items() if ns}
    assert breakdown_line(gpipe).endswith(f"bubble (warm-up 9 ms; {most} 1)")
    assert change_text(one_f_one_b, chunks).startswith(
        "4.5 ms slower because its bubble is larger (warm-up +4.5 ms, steady state -500 us, drain +500 us), "
        + most
    )
    assert change_text(gpipe, one_f_one_b) in ("equally fast", "the same")


def test_five_thousand_devices_are_checked_and_explained_in_some_seconds() -> None:
    b = GraphBuilder("one op on each")
    for d in range(5_000):
        b.op(f"op{d}", duration_ns=1 + d, device=f"gpu{d}")
    trace = simulate(b.build(), Machine(tuple(Device(f"gpu{d}") for d in range(5_000))), InOrder())
    begun = process_time()
    trace.check()
    assert breakdown_line(DerivedColumns(trace)) == "gpu4999: 5 us computing"
    assert process_time() - begun < 4


def test_phases_of_a_bubble_add_up_to_it_under_every_schedule_and_over_steps() -> None:
    cases = load_scenario("scenarios/examples/schedules.yaml", sets=["iterations=2"]).cases()
    cases = [case for case in cases if case.label != "zb-auto"]  # which searches for a while
    for f in (DerivedColumns(run_case(case).trace, case.label) for case in cases):
        for device in f.devices:
            own = breakdown(f, device.name)
            idle = f.trace.makespan_ns - own.parts["compute"] - own.parts.get("communicate", 0)
            assert sum(own.bubble.values()) == idle
            assert set(own.bubble) <= set(BUBBLE)


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
    assert makespan_parts(beside) == {"compute": 45}
    assert makespan_parts(before) == {"compute": 45, "communicate": 20}
    assert difference(before, beside) == "20 ns slower because more communication of gpu0 is exposed"


@given(runs())
@examples(60)
def test_the_parts_add_up_to_the_makespan(drawn: Run) -> None:
    """And are what `time_use` and `idle_reasons` say, but for workers held back beside others."""
    f = DerivedColumns(drawn.trace())
    for device in [None, *(device.name for device in f.devices)]:
        own = breakdown(f, device)
        assert sum(own.parts.values()) == f.trace.makespan_ns
        assert set(own.parts) <= set(PARTS)
        assert min(own.parts.values(), default=1) > 0
        waits = sum(own.parts.get(reason, 0) for reason in ("dependency", "host", "finished"))
        assert sum(own.waits_for.values()) == waits
        if own.device and not f.devices[f.machine.device_index(own.device)].workers:
            idle = {part: ns for part, ns in own.parts.items() if part in REASONS}
            assert idle == idle_reasons(f.trace)[own.device]
            assert own.parts.get("compute", 0) == time_use(f.trace)[own.device]["compute"]


@given(runs(), runs())
@examples(50)
def test_a_difference_is_one_line_and_adds_up(mine: Run, other: Run) -> None:
    a, b = DerivedColumns(mine.trace()), DerivedColumns(other.trace())
    assert sum(change(a, b).parts.values()) == a.trace.makespan_ns - b.trace.makespan_ns
    line = change_text(a, b)
    assert "\n" not in line
    assert re.fullmatch(r"the same|equally fast|\S+ \S+ (slower(,| because) .+|faster: .+)", line), line


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3)), min_size=1, max_size=9), st.integers(0, 40))
@examples(50)
def test_the_same_work_computes_for_as_long(ops: list[tuple[int, int]], issue_ns: int) -> None:
    """On one GPU with one stream two policies differ in waits alone: nothing that computes cancels."""
    graph = {f"o{i}": (ns, [f"o{i - back}"] if i >= back else []) for i, (ns, back) in enumerate(ops)}
    gpu = Machine((Device("gpu0", issue_ns=issue_ns, launch_latency_ns=2),))
    one, other = (DerivedColumns(run(graph, gpu, each)) for each in (InOrder(), OutOfOrder(window=2)))
    found = change(one, other).parts
    assert "compute" not in found
    assert sum(found.values()) == one.trace.makespan_ns - other.trace.makespan_ns


def test_an_empty_run_has_no_parts() -> None:
    trace = run({"a": (0, [])}, Machine((CPU,)), ReadyQueue())
    assert makespan_parts(trace) == {}
    assert why_fast(trace) == "takes no time"


def test_every_reason_to_be_idle_is_a_part() -> None:
    assert ("compute", "communicate", *REASONS) == PARTS


@given(runs())
@examples(50)
def test_the_parts_that_are_told_add_up(drawn: Run) -> None:
    trace = drawn.trace()
    parts = breakdown_line(DerivedColumns(trace)).rpartition(": ")[2]
    told = [parse_duration(" ".join(part.split()[:2])) for part in parts.split(", ") if part[0].isdecimal()]
    # Each is rounded to four digits: half a thousandth of itself, at most.
    assert abs(sum(told) - trace.makespan_ns) <= trace.makespan_ns / 1000


def test_what_a_policy_holds_back_is_no_launch() -> None:
    """A core is free and ``log`` is ready from 20 us on; in order it waits until ``loss`` is taken at 320."""
    ops = {"a": ("20us", []), "g": ("100us", ["a"]), "loss": ("10us", ["g"]), "log": ("30us", ["a"])}
    builder = GraphBuilder("g")
    for name, (time, inputs) in ops.items():
        device, outputs = ("gpu", 10**6) if name == "g" else ("cpu", 10**6)
        builder.op(name, duration_ns=parse_duration(time), inputs=inputs, outputs=outputs, device=device)
    devices = {"cpu": {"kind": "cpu", "cores": 2}, "gpu": {"kind": "gpu"}}
    link = {"from": "cpu", "to": "gpu", "bandwidth": "10GB/s"}
    trace = checked(builder.build(), make_machine({"devices": devices, "links": [link]}), InOrder())
    found = breakdown(DerivedColumns(trace))
    assert (found.device, trace.makespan_ns) == ("gpu", 350_000)
    assert found.waits_for == {"policy": 100_000, "cpu": 50_000}
