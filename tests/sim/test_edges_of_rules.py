"""Values at the edge of a rule: what random changes of the code showed that no test looked at."""

from __future__ import annotations

from typing import Any

import pytest
from chrome_helpers import chrome_events

from devices.collectives.nccl_tuner import LATENCY_US
from devices.describe.links import make_routing
from devices.memory import BfcAllocator
from devices.memory.counted import CountedAllocator
from devices.memory.pool import PoolAllocator
from devices.memory.run_memory import tensor_memory
from devices.network import make_network
from policies.issue.ready_queue import ReadyQueue
from policies.issue.tensorflow_executor import TensorFlowExecutor
from policies.parallel.rank_grid import add_ranks
from policies.parallel.zero import Coordinator, Limits
from policies.rewrite.prune import SINK, Prune
from scenarios.ops.control_flow import cond, while_loop
from sim import Device, GraphBuilder, Link, Machine, Trace, simulate
from sim.base.errors import InputError
from sim.explain.derived import DerivedColumns
from sim.explain.memory_use import allocator_statistics
from sim.export.tables import task_table
from sim.plot.html import describe_run


def test_durations_by_kind_are_those_of_every_rank() -> None:
    b = GraphBuilder("one")
    b.op("a", duration_by_kind={"gpu": 5})
    b.op("b", inputs=["a"], duration_by_kind={"gpu": 0, "cpu": 7})
    out = GraphBuilder("two")
    add_ranks(out, b.build(), ["gpu0", "gpu1"], lambda own, rank: own)
    graph = out.build()
    assert [*graph.op_names] == ["gpu0/a", "gpu0/b", "gpu1/a", "gpu1/b"]
    assert {kind: column.tolist() for kind, column in graph.duration_by_kind.items()} == {
        "gpu": [5, 0, 5, 0],
        "cpu": [-1, 7, -1, 7],
    }


def test_loose_ends_in_a_loop_are_not_tied_to_the_sink() -> None:
    """... which is outside, and would wait for one token of all iterations."""

    def body(b: GraphBuilder, values: dict[str, str]) -> dict[str, str]:
        b.op("loose", inputs=[values["i"]], duration_ns=1)
        return {"i": b.op("next", inputs=[values["i"]], duration_ns=1, outputs=8)}

    b = GraphBuilder("loop")
    b.op("zero", duration_ns=1, outputs=8)
    while_loop(b, "loop", {"i": "zero"}, body, trips=2)
    b.op("loose_outside", inputs=["zero"], duration_ns=1)
    graph = Prune(explicit=True).apply(b.build())
    ends = {graph.op_names[op] for op in graph.dag().predecessors[graph.index(SINK)]}
    assert ("loose_outside" in ends, {name for name in ends if "loose" in name}) == (True, {"loose_outside"})


def test_a_device_without_allocations_has_none() -> None:
    b = GraphBuilder("one")
    b.op("a", duration_ns=10, outputs=100, device="gpu0")
    machine = Machine((Device("gpu0"), Device("gpu1")))
    trace = simulate(b.build(), machine, ReadyQueue(), memory=tensor_memory())
    assert allocator_statistics(trace)["gpu1"] == (0, 0, 0, 0, 0, 0, 0, [])


def test_two_regions_that_together_are_just_large_enough_are_told_of() -> None:
    mib = 2**20
    bfc = BfcAllocator(6 * mib, allow_growth=True)
    held = [bfc.alloc(2 * mib) for _ in range(2)]
    for each in held:
        bfc.free(each)
    regions = len({block.address // (2 * mib) for block in held})
    assert (regions, bfc.reserved - bfc.in_use) == (2, bfc.reserved)
    assert "in 2 regions" in bfc.oom_hints(bfc.reserved, 0, None)[0]
    assert bfc.oom_hints(bfc.reserved + 1, 0, None) == []


def test_defaults_of_allocators() -> None:
    pool = PoolAllocator(1000)
    assert [pool.alloc(1).address for _ in range(3)] == [0, 1, 2]  # aligned to one byte
    for allocator in (pool, BfcAllocator(1 << 20), CountedAllocator(1000)):
        block = allocator.try_alloc(256)
        assert block is not None
        assert block.stream == 0


@pytest.mark.parametrize(("reuse", "stays"), [(0, False), (1, True)])
def test_within_a_distance_of_one_element_the_next_module_keeps_what_it_reads(
    reuse: int, stays: bool
) -> None:
    limits = Limits(prefetch=0, persistence=0, reuse=reuse)
    of = Coordinator([["a"], ["a"]], {"a": 30}, limits)
    of.fetch()
    of.release(["a"])
    assert (("a" in of.available), of.live) == (stays, 30 * stays)


@pytest.mark.parametrize("routes", ["a", {"from": "a"}, 7, None])
def test_routes_that_are_no_list(routes: Any) -> None:
    with pytest.raises(InputError, match="is not a list of routes"):
        make_routing({}, routes, ["a", "b"], [Link("ab", "a", "b")])


def sent() -> Trace:
    b = GraphBuilder("sent")
    b.op("a", duration_ns=10, outputs=10, flops=5, device="gpu0")
    b.op("b", duration_ns=10, inputs=["a"], device="gpu1")
    machine = Machine(
        (Device("gpu0"), Device("gpu1")), (Link("l", "gpu0", "gpu1", 0, 10**9),), network=make_network
    )
    return simulate(b.build(), machine, ReadyQueue())


def test_a_transfer_computes_nothing() -> None:
    table = task_table(sent(), transfers=True)
    assert sorted(zip(table["kind"], table["flops"], strict=True)) == [("op", 0), ("op", 5), ("transfer", 0)]


def test_processes_are_named_on_a_lane_that_is_no_thread() -> None:
    named = [e for e in chrome_events(sent()) if e["ph"] == "M" and e["name"] == "process_name"]
    assert named
    assert {e["tid"] for e in named} == {0}


def test_latencies_of_the_hardware_are_those_of_the_tuner() -> None:
    """NCCL, src/graph/tuning.cc: of LL, LL128 and simple; NVLS and PAT have the last alone."""
    assert {name: of["nvlink"] for name, of in LATENCY_US.items()} == {
        "tree": (0.6, 1.25, 4.0),
        "ring": (0.6, 1.9, 3.4),
        "nvls": (0, 0, 25),
        "nvls-tree": (0, 0, 25),
        "pat": (0, 0, 4.0),
    }


def test_two_devices_that_are_used_alike_share_a_line_of_the_page() -> None:
    b = GraphBuilder("alike")
    for k in range(2):
        b.op(f"a{k}", duration_ns=10, device=f"gpu{k}")
    b.op("c", duration_ns=5, device="gpu2")
    trace = simulate(b.build(), Machine(tuple(Device(f"gpu{k}") for k in range(3))), ReadyQueue())
    assert [name for name, _ in describe_run(DerivedColumns(trace), "page")["use"]] == [
        "gpu0 and 1 more",
        "gpu2",
    ]


def test_under_control_flow_a_launched_op_may_end_at_time_0() -> None:
    b = GraphBuilder("at once")
    b.op("a", duration_ns=0, outputs=1, device="gpu0")
    b.op("reads", inputs=["a"], duration_ns=10, device="gpu1")
    b.op("p", duration_ns=0, outputs=1, device="cpu0", attributes={"outcome": True})
    b.op("value", duration_ns=0, outputs=1, device="cpu0")

    def side(b: GraphBuilder, values: dict[str, str]) -> list[str]:
        return [b.op(f"side{len(b)}", inputs=[values["value"]], duration_ns=1, device="cpu0")]

    cond(b, "if", "p", ["value"], side, side, device="cpu0")
    machine = Machine((Device("gpu0"), Device("gpu1"), Device("cpu0", "cpu", workers=4)))
    trace = simulate(b.build(), machine, ReadyQueue(synchronisation="issue"))
    assert trace.makespan_ns == 10


def test_a_kernel_that_ends_at_time_0_is_judged() -> None:
    b = GraphBuilder("at once")
    b.op("a", duration_ns=0)
    executor = TensorFlowExecutor(clock_hz=1_000_000_000)
    simulate(b.build(), Machine((Device("cpu0", "cpu", workers=1),)), executor)
    first = TensorFlowExecutor(clock_hz=0)
    simulate(b.build(), Machine((Device("cpu0", "cpu", workers=1),)), first, engine="simpy")
    assert executor._estimate[0] == first._estimate[0] * 9 // 10
