"""Pageable memory of a host: transfers hold a thread of it, at the pace of the driver's buffers.

Links carry 1 byte/ns and latency is 0, unless a test says otherwise; times by hand.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from drawn_runs import draw_graph, draw_machine
from examples import examples
from hypothesis import given
from hypothesis import strategies as st
from runs import checked

from devices.machine import make_device, make_machine
from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from policies.placement.problem import Problem
from scenarios.run.execute import run_scenario
from scenarios.run.load import load_scenario
from sim import Device, Graph, GraphBuilder, Link, Machine, Policy, Trace
from sim.base.errors import InputError, InvariantError
from sim.explain.derived import DerivedColumns
from sim.explain.idle import final_waits
from sim.explain.path import executed_path
from sim.record.record import Wait

pytestmark = pytest.mark.usefixtures("both_engines")

SCENARIO = Path(__file__).resolve().parents[2] / "scenarios" / "examples" / "pageable.yaml"


def machine(host: dict[str, Any], **gpu: Any) -> Any:
    return make_machine(
        {
            "devices": {
                "cpu0": {"kind": "cpu", "cores": 1, **host},
                "gpu0": {"kind": "gpu", "streams": 2, **gpu},
            },
            "links": [{"from": "cpu0", "to": "gpu0", "bandwidth": "1GB/s"}],
        }
    )


def there_and_back() -> Graph:
    """10 bytes to the GPU, 5 ns there, 10 bytes back, 1 ns; beside it an op of 3 ns that nobody waits for."""
    b = GraphBuilder("there and back")
    b.input("x", 10, device="cpu0")
    b.op("step", inputs=["x"], outputs=10, duration_ns=5, device="gpu0")
    b.op("beside", duration_ns=3, device="gpu0")
    b.op("end", inputs=["step"], duration_ns=1, device="cpu0")
    return b.build()


def run(graph: Graph, machine: Any, policy: Policy) -> Trace:
    trace = checked(graph, machine, policy)
    path = executed_path(trace)
    assert (path[-1].end_ns if path else 0) == trace.makespan_ns
    return trace


def times(trace: Trace) -> dict[str, tuple[int, int]]:
    table = trace.to_pandas()
    return {op: (a, b) for op, a, b in zip(table.op, table.issue_ns, table.end_ns, strict=True)}


PINNED: dict[str, Any] = {}
PAGEABLE: dict[str, Any] = {"pin_memory": False}
STAGED: dict[str, Any] = {"pin_memory": False, "staging_bandwidth": "500MB/s"}  # 0.5 bytes/ns


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        # x 0-10, step 10-15, back 15-25, end 25-26; beside is launched at 0.
        (PINNED, {"step": (10, 15), "beside": (0, 3), "end": (25, 26)}),
        # The host copies until 10, then launches what was ready first: beside 10-13, step 13-18, back 18-28.
        (PAGEABLE, {"beside": (10, 13), "step": (10, 18), "end": (28, 29)}),
        # x 0-20, beside 20-23, step 23-28, back 28-48.
        (STAGED, {"beside": (20, 23), "step": (20, 28), "end": (48, 49)}),
    ],
    ids=["pinned", "pageable", "staged"],
)
def test_a_host_that_waits_for_completion(host: dict[str, Any], expected: dict[str, tuple[int, int]]) -> None:
    assert times(run(there_and_back(), machine(host), ReadyQueue())) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        # All is launched at 0: step waits for x on its stream, beside for step.
        (PINNED, {"step": (0, 15), "beside": (0, 18), "end": (25, 26)}),
        # At 10 the host has copied x; it launches step and calls for its result, which returns at 25.
        (PAGEABLE, {"step": (10, 15), "beside": (25, 28), "end": (25, 26)}),
        (STAGED, {"step": (20, 25), "beside": (45, 48), "end": (45, 46)}),
    ],
    ids=["pinned", "pageable", "staged"],
)
def test_a_host_that_launches_ahead(host: dict[str, Any], expected: dict[str, tuple[int, int]]) -> None:
    assert times(run(there_and_back(), machine(host), InOrder(synchronisation="issue"))) == expected


def test_the_cost_of_a_launch_comes_before_its_copy() -> None:
    """x 0-10; step issued at 12, runs 12-17; the host copies the result until 27 and issues beside at 29."""
    trace = run(there_and_back(), machine(PAGEABLE, issue_cost="2ns"), InOrder(synchronisation="issue"))
    assert times(trace) == {"step": (12, 17), "beside": (29, 32), "end": (27, 28)}
    waits = dict(zip(trace.tasks["op"].tolist(), final_waits(trace).tolist(), strict=True))
    assert waits[1] == Wait.ISSUER  # beside: its host was busy with the copy, not idle by policy


def test_a_policy_that_is_asked_for_the_whole_machine() -> None:
    """As above, by the other way through the engine."""
    policy = InOrder(synchronisation="issue")
    policy.scope = "machine"
    assert times(run(there_and_back(), machine(PAGEABLE), policy))["beside"] == (25, 28)


def test_copies_of_one_host_follow_one_another() -> None:
    """Three tensors of 10 bytes to three GPUs that one thread serves, over links of their own: 10, 20, 30.

    With two threads: 10, 10, 20. Pinned: all at 10.
    """
    b = GraphBuilder("three")
    for i in range(3):
        b.input(f"x{i}", 10, device="cpu0")
        b.op(f"a{i}", inputs=[f"x{i}"], duration_ns=1, device=f"gpu{i}")

    def arrivals(host: dict[str, Any], threads: int) -> list[int]:
        spec = {
            "devices": {"cpu0": {"kind": "cpu", **host}, "gpu": {"kind": "gpu", "count": 3}},
            "links": [{"from": "cpu0", "to": f"gpu{i}", "bandwidth": "1GB/s"} for i in range(3)],
            "hosts": {"process": {"devices": ["gpu*"], "threads": threads}},
        }
        ends: list[int] = run(b.build(), make_machine(spec), ReadyQueue()).transfers["end_ns"].tolist()
        return ends

    assert arrivals(PAGEABLE, 1) == [10, 20, 30]
    assert arrivals(PAGEABLE, 2) == [10, 10, 20]
    assert arrivals(PINNED, 1) == [10, 10, 10]


def test_workers_that_launch_make_the_copies_too() -> None:
    """Two workers run the CPU's ops and launch: one copies from 0 to 10, the other runs 0-4 and 4-8."""
    b = GraphBuilder("pool")
    b.input("x", 10, device="cpu0")
    b.op("step", inputs=["x"], duration_ns=5, device="gpu0")
    b.op("one", duration_ns=4, device="cpu0")
    b.op("two", duration_ns=4, device="cpu0")
    spec = {
        "devices": {"cpu0": {"kind": "cpu", "cores": 2, **PAGEABLE}, "gpu0": {"kind": "gpu"}},
        "links": [{"from": "cpu0", "to": "gpu0", "bandwidth": "1GB/s"}],
        "hosts": {"process": {"devices": ["cpu0", "gpu0"]}},
    }
    assert times(run(b.build(), make_machine(spec), ReadyQueue())) == {
        "one": (0, 4), "two": (4, 8), "step": (10, 15)
    }  # fmt: skip


def test_a_shared_link_and_the_drivers_buffers() -> None:
    """Two GPUs with a host each behind one switch: 30 bytes each over 1 byte/ns from the CPU to the switch.

    Pinned: half of it each, 60 ns. Staged at 0.4 bytes/ns each, 0.8 together: 75 ns.
    """
    b = GraphBuilder("shared")
    for i in range(2):
        b.input(f"x{i}", 30, device="cpu0")
        b.op(f"a{i}", inputs=[f"x{i}"], duration_ns=1, device=f"gpu{i}")

    def arrivals(host: dict[str, Any]) -> list[int]:
        spec = {
            "devices": {
                "cpu0": {"kind": "cpu", **host},
                "switch": {"preset": "nvswitch"},
                "gpu": {"kind": "gpu", "count": 2},
            },
            "links": [
                {"from": "cpu0", "to": "switch", "bandwidth": "1GB/s", "sharing": "shared"},
                {"from": "switch", "to": "gpu*", "bandwidth": "5GB/s", "sharing": "shared"},
            ],
        }
        ends: list[int] = run(b.build(), make_machine(spec), ReadyQueue()).transfers["end_ns"].tolist()
        return ends

    assert arrivals(PINNED) == [60, 60]
    assert arrivals({**PAGEABLE, "staging_bandwidth": "400MB/s"}) == [75, 75]


def test_between_hosts_and_between_gpus_nobody_is_held() -> None:
    b = GraphBuilder("others")
    b.input("x", 10, device="cpu0")
    b.input("y", 10, device="gpu0")
    b.op("a", inputs=["x"], duration_ns=1, device="cpu1")
    b.op("b", inputs=["y"], duration_ns=1, device="gpu1")
    b.op("c", duration_ns=1, device="gpu0")
    spec = {
        "devices": {"cpu": {"kind": "cpu", "count": 2, **STAGED}, "gpu": {"kind": "gpu", "count": 2}},
        "links": [
            {"from": "cpu0", "to": "cpu1", "bandwidth": "1GB/s"},
            {"from": "gpu0", "to": "gpu1", "bandwidth": "1GB/s"},
        ],
    }
    trace = run(b.build(), make_machine(spec), ReadyQueue())
    assert times(trace) == {"a": (10, 11), "b": (10, 11), "c": (0, 1)}
    assert (DerivedColumns(trace).copied_by == -1).all()


def test_an_op_that_holds_the_host_and_a_copy_of_its_result() -> None:
    """The host waits for step until 5, then copies its result: 5-15; beside is launched at 15."""
    b = GraphBuilder("both")
    b.op("step", outputs=10, duration_ns=5, device="gpu0", attributes={"host_waits": True})
    b.op("end", inputs=["step"], duration_ns=1, device="cpu0")
    b.op("beside", duration_ns=3, device="gpu0")
    trace = run(b.build(), machine(PAGEABLE), InOrder(synchronisation="issue"))
    assert times(trace) == {"step": (0, 5), "end": (15, 16), "beside": (15, 18)}


def test_keys_that_mean_nothing_are_refused() -> None:
    with pytest.raises(InputError, match="it takes effect only with pin_memory: false"):
        make_device("cpu0", {"kind": "cpu", "staging_bandwidth": "6GB/s"})
    with pytest.raises(InputError, match="'pageable' is neither true nor false"):
        make_device("cpu0", {"kind": "cpu", "pin_memory": "pageable"})
    with pytest.raises(InputError, match="only cpu devices have it"):
        make_device("gpu0", {"kind": "gpu", "pin_memory": False})


def test_the_invariant_sees_a_host_that_does_two_things() -> None:
    trace = run(there_and_back(), machine(PAGEABLE, issue_cost="2ns"), ReadyQueue())
    rows = trace.tasks["op"] == 1
    tasks = {name: column.copy() for name, column in trace.tasks.items()}
    for column, ns in (("issue_ns", 4), ("start_ns", 4), ("end_ns", 7)):
        tasks[column][rows] = ns
    order = np.argsort(tasks["start_ns"], kind="stable")
    wrong = replace(trace, tasks={name: column[order] for name, column in tasks.items()})
    with pytest.raises(InvariantError, match="its host does 2 things at once, copies of pageable memory"):
        wrong.check()


@examples(60)
@given(st.integers(0, 10**6), st.booleans(), st.sampled_from(["group", "machine"]))
def test_random_runs_keep_the_invariants(seed: int, ahead: bool, scope: str) -> None:
    rng = np.random.default_rng(seed)
    graph, drawn = draw_graph(rng, int(rng.integers(1, 25)), distances=False), draw_machine(rng)
    pageable = tuple(
        replace(d, pageable=True, staging_bytes_per_s=int(rng.integers(1, 30)) * 10**9) if d.workers else d
        for d in drawn.devices
    )
    here = replace(drawn, devices=pageable)
    for policy in (
        InOrder(synchronisation="issue" if ahead else "completion"),
        ReadyQueue(synchronisation="issue" if ahead else "completion"),
    ):
        policy.scope = scope
        run(graph, here, policy)


def test_the_scenario_explains_itself() -> None:
    """The whole makespan is on the executed path: copies and tasks, and no waiting that nobody explains."""
    result = run_scenario(load_scenario(SCENARIO), "pageable", check=True)
    steps = executed_path(result.trace)
    assert sum(step.end_ns - step.start_ns for step in steps) == 145_000
    assert {step.kind for step in steps} == {"transfer", "task"}


def test_a_placement_counts_the_hosts_copying() -> None:
    cpu = Device("cpu0", "cpu", workers=1, pageable=True, staging_bytes_per_s=10**9)
    links = tuple(
        Link(f"{a}{b}", a, b, latency_ns=5, bandwidth_bytes_per_s=10**10)
        for a, b in (("cpu0", "gpu0"), ("gpu0", "cpu0"))
    )
    b = GraphBuilder("one")
    b.op("a", duration_ns=1)
    one = [np.ones(1, np.int64)] * 2
    for pageable, expected in ((True, 5 + 100), (False, 5 + 10)):
        machine = Machine((replace(cpu, pageable=pageable), Device("gpu0")), links)
        assert Problem(b.build(), machine, one).travel_ns(0, 1, 100) == expected
