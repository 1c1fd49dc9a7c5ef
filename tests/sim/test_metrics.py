"""Busy, span, idle, bubble and links: by hand on small runs, by definition on drawn ones."""

from __future__ import annotations

import json

import pytest
from drawn_runs import draw_run
from examples import seeds

from devices.machine import make_device
from devices.memory.run_memory import tensor_memory
from devices.network import make_network
from policies.issue.program_order import InOrder
from policies.issue.ready_queue import ReadyQueue
from sim import Device, GraphBuilder, Link, Machine, Trace, simulate
from sim.metrics import device_use, link_use, summary


def gpipe(stages: int, micro_batches: int, ns: int) -> Trace:
    """Return the forward half of GPipe: stage s of micro-batch m after (s - 1, m)."""
    b = GraphBuilder("gpipe")
    for m in range(micro_batches):
        for s in range(stages):
            b.op(f"F{s}.{m}", inputs=[f"F{s - 1}.{m}"] if s else [], duration_ns=ns, device=f"gpu{s}")
    return simulate(b.build(), Machine(tuple(Device(f"gpu{s}") for s in range(stages))), ReadyQueue())


def test_the_bubble_is_idle_time_inside_the_span() -> None:
    b = GraphBuilder("gap")
    b.op("a", duration_ns=10, device="gpu0")
    b.op("b", inputs=["a"], duration_ns=30, device="gpu1")
    b.op("c", inputs=["b"], duration_ns=20, device="gpu0")
    use = device_use(simulate(b.build(), Machine((Device("gpu0"), Device("gpu1"))), ReadyQueue()))
    one, two = use["gpu0"], use["gpu1"]
    assert (one.busy_ns, one.span_ns, one.idle_ns) == (30, 60, 30)
    assert (one.utilisation, one.bubble) == (0.5, 0.5)
    assert (two.busy_ns, two.span_ns, two.idle_ns, two.bubble) == (30, 30, 30, 0.0)


def test_gpipe_has_no_bubble_inside_its_spans() -> None:
    trace = gpipe(4, 8, 100)
    assert trace.makespan_ns == (8 + 4 - 1) * 100
    for use in device_use(trace).values():
        assert (use.busy_ns, use.idle_ns, use.bubble) == (800, 300, 0.0)


def test_busy_time_is_a_union_over_lanes() -> None:
    b = GraphBuilder("lanes")
    b.op("a", duration_ns=30, device="cpu0")
    b.op("b", duration_ns=20, device="cpu0")
    trace = simulate(b.build(), Machine((Device("cpu0", "cpu", workers=2), Device("gpu0"))), ReadyQueue())
    use = device_use(trace)
    assert (use["cpu0"].busy_ns, use["cpu0"].idle_ns) == (30, 0)
    nothing = use["gpu0"]
    assert (nothing.busy_ns, nothing.span_ns, nothing.idle_ns, nothing.bubble) == (0, 0, 30, 0)


def test_links_count_every_hop() -> None:
    b = GraphBuilder("hops")
    b.op("a", duration_ns=10, outputs=50, device="x")
    b.op("b", inputs=["a"], duration_ns=5, device="z")
    links = (Link("xy", "x", "y", 3, 10**9), Link("yz", "y", "z", 2, 10**9), Link("zx", "z", "x"))
    machine = Machine((Device("x"), Device("y"), Device("z")), links, network=make_network)
    use = link_use(simulate(b.build(), machine, ReadyQueue()))
    assert [(name, u.nbytes, u.busy_ns) for name, u in use.items()] == [
        ("xy", 50, 55),
        ("yz", 50, 55),
        ("zx", 0, 0),
    ]
    assert use["xy"].utilisation == 55 / 70


@pytest.mark.parametrize(
    ("nbytes", "contended", "sharing"), [(50, 0, "serial"), (150, 5, "serial"), (150, 0, "independent")]
)
def test_a_transfer_contends_for_a_link_once_its_tensor_is_there(
    nbytes: int, contended: int, sharing: str
) -> None:
    """Sent from 10 ns and from 20 ns, at 10 bytes a ns; all are issued at 0 ns."""
    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=10, outputs=nbytes, device="gpu0")
        b.op(f"{name} there", inputs=[name], duration_ns=1, device="gpu1")
    link = Link("link", "gpu0", "gpu1", bandwidth_bytes_per_s=10**10, sharing=sharing)
    machine = Machine((Device("gpu0"), Device("gpu1")), (link,), network=make_network)
    use = link_use(simulate(b.build(), machine, InOrder(synchronisation="issue")))
    assert use["link"].contended_ns == contended


@pytest.mark.parametrize("seed", seeds(40))
def test_busy_and_idle_by_definition(seed: int) -> None:
    trace = draw_run(seed)
    for d, use in enumerate(device_use(trace).values()):
        busy = set()
        rows = [r for r in range(len(trace)) if trace.device[r] == d]
        for r in rows:
            busy |= set(range(int(trace.tasks["start_ns"][r]), int(trace.tasks["end_ns"][r])))
        assert use.busy_ns == len(busy)
        assert use.idle_ns == trace.makespan_ns - len(busy)
        if rows:
            first, last = trace.tasks["start_ns"][rows].min(), trace.tasks["end_ns"][rows].max()
            assert use.span_ns == last - first
            assert (
                use.bubble == (1 - len(busy) / use.span_ns if use.span_ns else 0)
                or abs(use.bubble - (1 - len(busy) / use.span_ns)) < 1e-12
            )


def test_the_summary_has_the_keys_of_the_command_line() -> None:
    trace = draw_run(3)
    result = summary(trace)
    assert list(result) == [
        "schema",
        "scenario",
        "policy",
        "makespan_ns",
        "makespan_interval",
        "lower_bound_ns",
        "bound_by",
        "gap",
        "no_gap",
        "critical_path_ns",
        "loops_counted_once",
        "tasks",
        "devices",
        "links",
        "unused_devices",
        "pipeline",
        "expect",
    ]
    assert result["schema"] == "sim.result/1"
    assert result["makespan_ns"] >= result["lower_bound_ns"] >= result["critical_path_ns"]
    assert result["gap"] == result["makespan_ns"] / result["lower_bound_ns"] - 1
    for device in result["devices"].values():
        assert list(device) == [
            "busy_ns",
            "span_ns",
            "idle_ns",
            "utilisation",
            "cores",
            "core_ns",
            "bubble",
            "peak_memory_bytes",
            "peak_reserved_bytes",
            "idle_reasons",
            "time_ns",
        ]
        assert list(device["time_ns"]) == ["compute", "communicate", "wait", "idle"]
        assert sum(device["time_ns"].values()) == result["makespan_ns"]
        assert sum(device["idle_reasons"].values()) == device["idle_ns"]
    assert json.loads(json.dumps(result)) == result


def test_the_allocator_says_what_was_reserved() -> None:
    b = GraphBuilder("memory")
    b.op("a", duration_ns=10, outputs=1000)
    b.op("b", duration_ns=10, outputs=10, inputs=["a"])
    machine = Machine((Device("gpu0"),))
    bare = summary(simulate(b.build(), machine, ReadyQueue()))["devices"]["gpu0"]
    assert (bare["peak_memory_bytes"], bare["peak_reserved_bytes"]) == (1010, None)
    trace = simulate(b.build(), machine, ReadyQueue(), memory=tensor_memory())
    managed = summary(trace)["devices"]["gpu0"]
    assert trace.memory is not None
    assert managed["peak_memory_bytes"] == trace.memory["in_use"].max() == 1010
    assert managed["peak_reserved_bytes"] == trace.memory["reserved"].max()


def use_of(cpu: Device, *cores: int) -> tuple[int, float]:
    """Return core-time and utilisation of a CPU that runs ops of 30 ns, each on so many cores."""
    b = GraphBuilder("cores")
    for i, n in enumerate(cores):
        b.op(f"op{i}", duration_ns=30, attributes={"cores": n})
    use = device_use(simulate(b.build(), Machine((cpu,)), ReadyQueue()))["cpu0"]
    assert use.idle_ns == 0
    return use.core_ns, use.utilisation


def test_one_busy_core_of_eight_is_an_eighth() -> None:
    eight = make_device("cpu0", {"kind": "cpu", "cores": 8})
    assert use_of(eight, 1) == (30, 1 / 8)
    assert use_of(eight, 1, 3) == (120, 1 / 2)
    assert use_of(Device("cpu0", "cpu", workers=4), 1) == (30, 1 / 4)  # cores are not counted: workers are


def test_oversubscribed_cores_are_all_used_and_no_more() -> None:
    assert use_of(Device("cpu0", "cpu", workers=4, cores=2), 1, 1, 1, 1) == (60, 1.0)


@pytest.mark.parametrize("seed", seeds(30))
def test_core_time_is_the_sum_of_what_workers_execute(seed: int) -> None:
    trace = draw_run(seed)
    for d, (device, use) in enumerate(
        zip(trace.job.machine.devices, device_use(trace).values(), strict=True)
    ):
        here = trace.device == d
        total = int((trace.tasks["end_ns"] - trace.tasks["start_ns"])[here].sum())
        assert use.core_ns == (total if device.workers else 0)
        assert 0 <= use.utilisation <= 1
