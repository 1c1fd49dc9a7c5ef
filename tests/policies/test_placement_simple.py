"""Placements without a schedule: by kind of device, single, in turn; exact for two devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement_helpers import every_placement, full_mesh, problems

from policies.placement.exact import MinCut
from policies.placement.problem import Problem
from policies.placement.simple import DeviceKind, RoundRobinPlacement, SinglePlacement
from sim import Device, Graph, GraphBuilder, Machine
from sim.base.errors import InfeasibleError, InputError, UnknownNameError
from sim.job.build_job import make_job
from sim.job.costs import costs_ns
from sim.job.job import Placement

CPU, GPU, GPU1, NPU = (
    Device("cpu0", "cpu", workers=2),
    Device("gpu0", "gpu"),
    Device("gpu1", "gpu"),
    Device("npu0", "npu"),
)
HOST = Machine((CPU, GPU, GPU1, NPU))


def placed(graph: Graph, machine: Machine, placement: Placement) -> dict[str, str]:
    """Return the device of each op by name."""
    job = make_job(graph, machine, placement=placement)
    return {
        name: machine.devices[d].name for name, d in zip(graph.op_names, job.device_of.tolist(), strict=True)
    }


# -- by kind of device ---------------------------------------------------------------------------


def kinds() -> Graph:
    """Return ops that run everywhere, or on some kinds of device alone."""
    b = GraphBuilder("kinds")
    b.op("any", duration_ns=1)
    b.op("no_gpu", inputs=["any"], duration_by_kind={"cpu": 1, "npu": 1})
    b.op("cpu_only", inputs=["no_gpu"], duration_by_kind={"cpu": 1})
    b.op("pinned", inputs=["any"], duration_ns=1, device="gpu1")
    return b.build()


def test_the_preferred_kind_that_can() -> None:
    found = placed(kinds(), HOST, DeviceKind())
    assert found == {"any": "gpu0", "no_gpu": "npu0", "cpu_only": "cpu0", "pinned": "gpu1"}
    found = placed(kinds(), HOST, DeviceKind(order=["cpu"]))
    assert found == {"any": "cpu0", "no_gpu": "cpu0", "cpu_only": "cpu0", "pinned": "gpu1"}
    found = placed(kinds(), HOST, DeviceKind(order=["npu", "gpu"]))
    assert found == {"any": "npu0", "no_gpu": "npu0", "cpu_only": "cpu0", "pinned": "gpu1"}


def test_sources_follow_consumers_that_agree() -> None:
    b = GraphBuilder("sources")
    for name in ("agreed", "disputed", "two_outputs"):
        b.op(name, outputs=(1, 1) if name == "two_outputs" else 1, duration_ns=1)
    b.op("on_cpu", inputs=["agreed", "disputed", "two_outputs"], duration_by_kind={"cpu": 1})
    b.op("on_gpu", inputs=["disputed"], duration_ns=1)
    found = placed(b.build(), HOST, DeviceKind())
    assert found == {
        "agreed": "cpu0",
        "disputed": "gpu0",
        "two_outputs": "gpu0",
        "on_cpu": "cpu0",
        "on_gpu": "gpu0",
    }


def test_shapes_are_read_where_the_tensor_is() -> None:
    b = GraphBuilder("shape")
    b.op("tokens", inputs=[], duration_by_kind={"cpu": 1}, outputs=(1, 1))
    b.op("shape", kind="Shape", inputs=["tokens"], duration_ns=1)
    b.op("relu", kind="Relu", inputs=["tokens"], duration_ns=1)
    assert placed(b.build(), HOST, DeviceKind()) == {"tokens": "cpu0", "shape": "cpu0", "relu": "gpu0"}


def test_a_shape_of_a_source_does_not_wait_for_it() -> None:
    """Sources are placed in the second pass: in the first there is nothing yet to follow."""
    b = GraphBuilder("shape of a source")
    b.op("table", duration_by_kind={"cpu": 1})
    b.op("shape", kind="Shape", inputs=["table"], duration_ns=1)
    b.op("lookup", inputs=["table"], duration_by_kind={"cpu": 1})
    assert placed(b.build(), HOST, DeviceKind()) == {"table": "cpu0", "shape": "gpu0", "lookup": "cpu0"}


def test_what_reads_a_graph_input_is_no_source() -> None:
    b = GraphBuilder("fed")
    b.input("x", 4)
    b.op("relu", inputs=["x"], duration_ns=1)
    b.op("first", duration_ns=1)
    b.op("constant", after=["first"], duration_ns=1)
    b.op("on_cpu", inputs=["relu", "constant"], duration_by_kind={"cpu": 1})
    found = placed(b.build(), HOST, DeviceKind())
    assert found == {"relu": "gpu0", "first": "gpu0", "constant": "cpu0", "on_cpu": "cpu0"}


def test_groups_are_together_and_stay() -> None:
    b = GraphBuilder("groups")
    b.op("w", duration_ns=1)
    b.op("save", attributes={"colocate": "w"}, duration_by_kind={"cpu": 1})
    b.op("add", inputs=["w"], duration_ns=1)
    assert placed(b.build(), HOST, DeviceKind()) == {"w": "cpu0", "save": "cpu0", "add": "gpu0"}


def impossible() -> Graph:
    """Return ops with a pin that cannot be met, one that names nothing here, and a group torn apart."""
    b = GraphBuilder("impossible")
    b.op("kernel_missing", device="gpu", duration_by_kind={"cpu": 1})
    b.op("elsewhere", device="tpu", duration_ns=1)
    b.op("a", device="gpu1", attributes={"colocate": "g"}, duration_ns=1)
    b.op("b", attributes={"colocate": "g"}, duration_by_kind={"cpu": 1})
    b.op("c", attributes={"colocate": "h"}, duration_by_kind={"cpu": 1})
    b.op("d", attributes={"colocate": "h"}, duration_by_kind={"npu": 1})
    return b.build()


def test_soft_placement_ignores_what_cannot_be_met() -> None:
    assert placed(impossible(), HOST, DeviceKind(soft=True)) == {
        "kernel_missing": "cpu0",
        "elsewhere": "gpu0",
        "a": "cpu0",
        "b": "cpu0",  # the pin gives way before the colocation does
        "c": "cpu0",
        "d": "npu0",
    }


FOUR = Machine((Device("gpu0", "gpu"), *(Device(f"cpu{k}", "cpu", workers=1) for k in range(4))))


@pytest.mark.parametrize(
    ("pins", "device"),
    [
        (["cpu2", "cpu1"], "cpu0"),  # two devices of one kind leave the kind
        (["cpu2", "cpu1", "cpu3"], "cpu3"),  # ... and the next one counts again
        (["cpu1", "cpu2", "cpu2"], "cpu2"),
        ([None, "cpu1", "cpu3"], "cpu0"),
        (["cpu", "cpu3"], "cpu3"),
        (["cpu2", "gpu0"], "gpu0"),  # two kinds leave nothing: the most preferred device
        (["gpu0", "cpu2", "cpu1"], "cpu1"),
        (["cpu2", "tpu0"], "gpu0"),
    ],
)
def test_pins_of_a_group_that_contradict_one_another(pins: list[str | None], device: str) -> None:
    """The cases of CPUs as TensorFlow 2.21 places them, with allow_soft_placement and four CPU devices."""
    b = GraphBuilder("group")
    for k, pin in enumerate(pins):
        b.op(f"op{k}", device=pin, attributes={"colocate": "g"}, duration_ns=1)
    assert set(placed(b.build(), FOUR, DeviceKind(soft=True)).values()) == {device}


def test_a_source_of_a_group_follows_its_consumers() -> None:
    """As TensorFlow 2.21: pins of the group contradict one another, so x goes to its reader, and y with x."""
    b = GraphBuilder("sources")
    b.op("x", device="cpu1", duration_ns=1)
    b.op("y", device="cpu2", attributes={"colocate": "x"}, duration_ns=1)
    for name, read, device in (("reads_x", "x", "cpu1"), ("reads_y", "y", "cpu2")):
        b.op(name, inputs=[read], device=device, duration_ns=1)
    found = placed(b.build(), FOUR, DeviceKind(soft=True))
    assert found == {"x": "cpu1", "y": "cpu1", "reads_x": "cpu1", "reads_y": "cpu2"}


def test_a_kind_of_device_may_end_in_a_digit() -> None:
    b = GraphBuilder("kinds")
    b.op("a", device="p2", duration_ns=1)
    machine = Machine((Device("first", "p1"), Device("second", "p2")))
    assert placed(b.build(), machine, DeviceKind(soft=True)) == {"a": "second"}


def test_groups_merge_their_pins_when_they_meet() -> None:
    """As TensorFlow 2.21: a wants cpu3, b wants cpu1, and c is with both: any CPU."""
    b = GraphBuilder("groups")
    b.op("a", device="cpu3", attributes={"colocate": "g"}, duration_ns=1)
    b.op("b", device="cpu1", attributes={"colocate": "h"}, duration_ns=1)
    b.op("c", attributes={"colocate": ["h", "g"]}, duration_ns=1)
    assert set(placed(b.build(), FOUR, DeviceKind(soft=True)).values()) == {"cpu0"}


def test_hard_placement_refuses_it() -> None:
    with pytest.raises(InputError, match="op 'elsewhere' is pinned to 'tpu'"):
        placed(impossible(), HOST, DeviceKind())
    b = GraphBuilder("torn apart")
    b.op("c", attributes={"colocate": "h"}, duration_by_kind={"cpu": 1})
    b.op("d", attributes={"colocate": "h"}, duration_by_kind={"npu": 1})
    with pytest.raises(InfeasibleError, match=r"colocated with \(c, d\)"):
        placed(b.build(), HOST, DeviceKind())
    b = GraphBuilder("no kernel anywhere")
    b.op("c", duration_by_kind={"tpu": 1})
    with pytest.raises(InfeasibleError, match="can run on no device"):
        placed(b.build(), HOST, DeviceKind(soft=True))


@given(problem=problems())
def test_by_kind_everything_is_where_it_may_be(problem: Problem) -> None:
    devices = problem.machine.devices
    costs = [costs_ns(problem.graph, device) for device in devices]
    for placement in (DeviceKind(["p2", "p1"]), DeviceKind(["p3"], soft=True), RoundRobinPlacement()):
        device = placement.place(problem.graph, problem.machine, costs)
        assert all(device[op] in problem.devices_of[op] for op in range(problem.n))
        assert all(device[op] == device[group] for op, group in enumerate(problem.group_of))


# -- single, in turn -------------------------------------------------------------------------------


def test_everything_on_one_device() -> None:
    graph = kinds()
    with pytest.raises(InfeasibleError, match="puts op 'no_gpu' on gpu0, which cannot run it"):
        placed(graph, HOST, SinglePlacement("gpu0"))
    assert placed(graph, HOST, SinglePlacement()) == {
        "any": "cpu0",
        "no_gpu": "cpu0",
        "cpu_only": "cpu0",
        "pinned": "gpu1",
    }
    with pytest.raises(UnknownNameError, match="unknown device 'gpu'"):
        placed(graph, HOST, SinglePlacement("gpu"))


def test_devices_in_turn() -> None:
    b = GraphBuilder("seven")
    for k in range(6):
        b.op(f"op{k}", duration_ns=1, attributes={"colocate": "g"} if k in (1, 4) else None)
    found = placed(b.build(), HOST, RoundRobinPlacement())
    assert list(found.values()) == ["cpu0", "gpu0", "gpu1", "npu0", "gpu0", "cpu0"]


# -- exact for two devices --------------------------------------------------------------------


def serial_time(problem: Problem, placed: list[int]) -> int:
    """Return the sum of costs and of the travel time of each tensor to each device that reads it."""
    graph = problem.graph
    total = sum(problem.cost_ns[op][d] for op, d in enumerate(placed))
    for tensor, readers in enumerate(graph.consumers.lists()):
        producer = int(graph.tensor_producer[tensor])
        if producer >= 0:
            home = placed[producer]
        elif graph.tensor_pin[tensor] >= 0:
            home = problem.machine.device_index(graph.pins[int(graph.tensor_pin[tensor])])
        else:
            continue
        for there in {placed[reader] for reader in readers}:
            total += problem.travel_ns(home, there, int(graph.tensor_nbytes[tensor]))
    return total


@given(problem=problems(max_ops=7, kinds=("p1", "p2")), first=st.integers(0, 1))
def test_a_minimum_cut_is_the_best_of_all_placements(problem: Problem, first: int) -> None:
    pytest.importorskip("ortools", reason="a minimum cut needs the extra 'opt'")
    names = [device.name for device in problem.machine.devices]
    pair = [names[first], names[1 - first]]
    costs = [costs_ns(problem.graph, device) for device in problem.machine.devices]
    among = [p for p in every_placement(problem) if {names[d] for d in p} <= set(pair)]
    if not among:
        with pytest.raises(InfeasibleError):
            MinCut(pair).place(problem.graph, problem.machine, costs)
        return
    found = list(MinCut(pair).place(problem.graph, problem.machine, costs))
    assert found in among
    assert serial_time(problem, found) == min(serial_time(problem, p) for p in among)


def test_two_devices_only() -> None:
    pytest.importorskip("ortools", reason="a minimum cut needs the extra 'opt'")
    with pytest.raises(InputError, match="the machine has 4; name two"):
        placed(kinds(), HOST, MinCut())
    with pytest.raises(InputError, match="names of two devices, found 'cpu0'"):
        MinCut("cpu0")
    with pytest.raises(InputError, match="names of two devices"):
        MinCut(["cpu0", "cpu0"])
    with pytest.raises(InfeasibleError, match="not every op can run on gpu0 or npu0"):
        placed(kinds(), HOST, MinCut(["gpu0", "npu0"]))


def test_a_constant_does_not_pay_twice_for_one_way() -> None:
    pytest.importorskip("ortools", reason="a minimum cut needs the extra 'opt'")
    # Three readers on the other device share one transfer.
    b = GraphBuilder("shared transfer")
    b.op("a", device="cpu", outputs=10, duration_ns=0)
    for k in range(3):
        b.op(f"r{k}", inputs=["a"], duration_by_kind={"cpu": 5, "gpu": 1})
    two = full_mesh([Device("cpu0", "cpu", workers=1), Device("gpu0")])
    beside = Machine((*two.devices, Device("switch", "switch")), two.links)  # which runs nothing
    for machine in (two, beside):
        assert set(list(placed(b.build(), machine, MinCut()).values())[1:]) == {"gpu0"}
