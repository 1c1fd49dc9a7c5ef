"""Machines from descriptions: what each key does, what is left out, and what is refused."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import pytest

from devices.cores import CorePoolIfShort
from devices.describe.field_types import TYPES
from devices.describe.fields import (
    DEVICE_FIELDS,
    HOST_FIELDS,
    LINK_FIELDS,
    MACHINE_FIELDS,
    merge,
    read_fields,
)
from devices.kinds import speedup
from devices.machine import described_devices, make_device, make_machine
from policies.issue.ready_queue import ReadyQueue
from policies.streams import PerKind
from sim import Device, GraphBuilder, Host, Link, Machine, simulate
from sim.base.errors import InputError, UnitError, UnknownNameError
from sim.machine.device import Details
from sim.machine.links import Routing


def test_a_bare_cpu_is_ideal() -> None:
    device = make_device("cpu0", {"kind": "cpu", "cores": 4})
    assert (device.workers, device.cores_per_op, device.issue_ns) == (4, 1, 0)
    assert device.processor == CorePoolIfShort()  # nothing is shared unless an op asks for several cores
    assert device.memory_bytes is None
    assert device.cost is None


def test_a_bare_gpu_is_ideal() -> None:
    device = make_device("gpu0", {"kind": "gpu", "streams": 2})
    overheads = (device.issue_ns, device.launch_latency_ns, device.gap_ns, device.event_ns)
    assert overheads == (0, 0, 0, 0)
    assert (device.workers, device.streams, device.queue_depth) == (0, 2, None)


def test_npu_cores_become_queues() -> None:
    spec = {"kind": "npu", "cores": 8, "peak": "8TFLOP/s"}
    assert make_device("npu0", spec).streams == 8
    assert make_device("npu0", {**spec, "cores_per_op": 4}).streams == 2
    # One op on 2 of 8 cores has a quarter of 8 TFLOP/s: 2 GFLOP take 1 ms.
    b = GraphBuilder("one")
    b.op("a", flops=2 * 10**9)
    machine = Machine((make_device("npu0", {**spec, "cores_per_op": 2}),))
    assert simulate(b.build(), machine, ReadyQueue()).makespan_ns == 1_000_000
    with pytest.raises(InputError, match="8 cores do not divide into queues of 3"):
        make_device("npu0", {**spec, "cores_per_op": 3})


def test_any_other_kind_has_streams() -> None:
    device = make_device("dsp0", {"kind": "dsp", "streams": 3, "gap": "2us"})
    assert (device.kind, device.streams, device.gap_ns) == ("dsp", 3, 2000)


@pytest.mark.parametrize(
    ("key", "value", "attribute", "read"),
    [
        ("issue_cost", "5us", "issue_ns", 5000),
        ("launch_latency", "1.5us", "launch_latency_ns", 1500),
        ("gap", "1us", "gap_ns", 1000),
        ("event_hop", "2us", "event_ns", 2000),
        ("queue_depth", 1024, "queue_depth", 1024),
        ("memory", "80GiB", "memory_bytes", 80 * 2**30),
        ("memory", "unlimited", "memory_bytes", None),
        ("kinds", ["matmul"], "kinds", frozenset({"matmul"})),
    ],
)
def test_keys_reach_the_device(key: str, value: Any, attribute: str, read: Any) -> None:
    assert getattr(make_device("gpu0", {"kind": "gpu", key: value}), attribute) == read


def test_issue_cost_by_kind() -> None:
    device = make_device("gpu0", {"kind": "gpu", "issue_cost": {"matmul": "6us", "default": "4us"}})
    assert (device.issue_ns, device.issue_ns_by_kind) == (4000, {"matmul": 6000})


OF_PRESETS = [
    name
    for name, field in DEVICE_FIELDS.items()
    if field.type == "duration"
    and not name.startswith("graph_")  # CUDA graphs: by default as other launches
    and name not in ("event_record", "event_wait")  # of no preset: no figure is published
    and name != "kernel_floor"  # of its cost model: test_cost_roofline.py
    and "gpu" in field.kinds
]


@pytest.mark.parametrize("key", OF_PRESETS)
def test_every_overhead_of_a_preset_can_be_zeroed_alone(key: str) -> None:
    attribute = {"launch_latency": "launch_latency_ns", "gap": "gap_ns", "event_hop": "event_ns"}[key]
    real = make_device("gpu0", {"preset": "h100-sxm"})
    without = make_device("gpu0", {"preset": "h100-sxm", key: 0})
    assert getattr(real, attribute) > 0
    assert getattr(without, attribute) == 0
    others = {"launch_latency_ns", "gap_ns", "event_ns", "issue_ns", "queue_depth"} - {attribute}
    assert all(getattr(real, other) == getattr(without, other) for other in others)


def test_ideal_drops_overheads_and_losses_and_keeps_what_is_given() -> None:
    device = make_device("gpu0", {"preset": "h200-sxm", "ideal": True, "gap": "1us"})
    assert (device.issue_ns, device.launch_latency_ns, device.event_ns) == (0, 0, 0)
    assert device.queue_depth is None
    assert device.gap_ns == 1000
    assert device.memory_bytes == 143156 * 2**20
    spec = {"preset": "h200-sxm", "ideal": True}
    assert "efficiency" not in described_devices({"devices": {"gpu0": spec}})["gpu0"]


def test_a_mapping_over_a_scalar_keeps_the_scalar_for_the_others() -> None:
    device = make_device("gpu0", {"preset": "v100-sxm", "issue_cost": {"copy": "9us"}})
    assert (device.issue_ns, device.issue_ns_by_kind) == (5000, {"copy": 9000})


def test_fewer_sms_are_slower() -> None:
    b = GraphBuilder("one")
    b.op("a", flops=10**9)
    spec = {"kind": "gpu", "sms": 100, "peak": "1TFLOP/s"}

    def makespan(**limit: Any) -> int:
        return simulate(
            b.build(), Machine((make_device("gpu0", {**spec, **limit}),)), ReadyQueue()
        ).makespan_ns

    assert makespan() == 1_000_000
    assert makespan(use_sms=25) == 4_000_000
    assert makespan(use_sms="50%") == 2_000_000
    for wrong in ({"use_sms": 101}, {"use_sms": 0.001}, {"use_sms": 0}, {"use_sms": 1.5}):
        with pytest.raises(InputError, match="gpu0"):
            makespan(**wrong)


def test_speed_up_curves() -> None:
    assert speedup(8) == 8
    assert speedup(1, Fraction(1, 3)) == 1
    # Amdahl: a quarter serial on 3 cores: 1 / (1/4 + 1/4).
    assert speedup(3, Fraction(1, 4)) == 2
    curve = {2: Fraction(18, 10), 8: Fraction(4)}
    assert speedup(2, curve=curve) == Fraction(9, 5)
    assert speedup(5, curve=curve) == Fraction(29, 10)  # half way between 1.8 and 4
    assert speedup(64, curve=curve) == 4


def test_intra_op_cores_speed_up_what_the_cost_model_says() -> None:
    b = GraphBuilder("one")
    b.op("a", kind="x")
    b.op("b", kind="x", duration_ns=500)

    def durations(**more: Any) -> list[int]:
        spec = {"kind": "cpu", "cores": 8, "cost": {"fixed": "1200ns"}, **more}
        trace = simulate(b.build(), Machine((make_device("cpu0", spec),)), ReadyQueue())
        return trace.job.duration_ns.tolist()

    assert durations() == [1200, 500]
    assert durations(cores_per_op=4) == [300, 500]
    assert durations(cores_per_op=3, serial_fraction=0.25) == [600, 500]
    assert durations(cores_per_op=2, speedup={2: 1.6}) == [750, 500]
    with pytest.raises(InputError, match="not both"):
        durations(speedup={2: 1.6}, serial_fraction=0.1)
    with pytest.raises(InputError, match="cannot use 9 cores of 8"):
        durations(cores_per_op=9)
    with pytest.raises(InputError, match="0 must be more than 0"):
        durations(speedup={1: 1, 8: 0})


def test_one_device_of_a_node_differs_where_all_have_the_name_of_a_preset() -> None:
    spec = {"nodes": 2, "devices": {"gpu": "h100-sxm", "node1/gpu": {"gap": "9us"}}}
    assert [each["gap"] for each in described_devices(spec).values()] == [1600, 9000]


def test_one_core_has_its_share_of_the_peaks() -> None:
    b = GraphBuilder("two")
    b.op("compute", flops=10**6)
    b.op("memory", bytes_read=10**6)
    spec = {"kind": "cpu", "cores": 10, "peak": "10GFLOP/s", "bandwidth": "10GB/s"}

    def durations(**more: Any) -> list[int]:
        trace = simulate(b.build(), Machine((make_device("cpu0", {**spec, **more}),)), ReadyQueue())
        return trace.job.duration_ns.tolist()

    assert durations() == [1_000_000, 1_000_000]
    assert durations(cores_per_op=10) == [100_000, 100_000]
    assert durations(core_bandwidth="4GB/s") == [1_000_000, 250_000]
    assert durations(core_bandwidth="4GB/s", cores_per_op=5) == [
        200_000,
        100_000,
    ]  # 20 GB/s, but there are 10


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "gpu", "stream": 2}, "x: unknown key 'stream'; did you mean 'streams'"),
        ({"kind": "gpu", "gap": 5}, "x.gap: 5 has no unit"),
        ({"kind": "gpu", "gap": "-5us"}, "x.gap: '-5us' is negative"),
        ({"kind": "gpu", "streams": 0}, "x.streams: must be at least 1"),
        ({"kind": "gpu", "streams": True}, "x.streams: True is not a count"),
        ({"kind": "tpu", "streams": [{}]}, "x.streams: those of a tpu are alike; say how many"),
        ({"kind": "gpu", "streams": "2"}, "x.streams: '2' is not a count"),
        ({"kind": "gpu", "memory": "80"}, "x.memory: '80' has no unit"),
        ({"kind": "gpu", "bandwidth": "0B/s"}, "nothing would ever finish"),
        ({"kind": "gpu", "sharing": "cores"}, "a GPU shares none, sm or sm.dram"),
        ({"kind": "cpu", "sharing": "sm"}, "a CPU shares none, cores or time"),
        ({"kind": "gpu", "sharing": "sms"}, "x.sharing: unknown word 'sms'; did you mean 'sm'"),
        ({"kind": "gpu", "cores": 4}, "x.cores: only cpu and npu devices have it, and x is a gpu"),
        ({"kind": "gpu", "peak": {"fp32": 5}}, "x.peak.fp32: 5 has no unit"),
        ({"kind": "gpu", "cost": 5}, "x.cost: 5 is no cost model"),
        ({"kind": "gpu", "cost": "tabel"}, "unknown cost model 'tabel'; did you mean 'table'"),
        ({"kind": "gpu", "kinds": "matmul"}, "x.kinds: 'matmul' is not a list"),
        ({"preset": "h200"}, "unknown device preset 'h200'; did you mean 'h200-sxm'"),
        ({"preset": "h200-sxm", "kind": "cpu"}, "is a gpu, not a cpu"),
        ({"streams": 2}, "needs a kind"),
        ({"kind": "gpu", "count": 2}, "only a machine has several"),
        (["h200-sxm"], "is not a description of a device"),
    ],
)
def test_wrong_descriptions_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_device("x", spec)


def test_a_count_may_be_written_with_an_exponent() -> None:
    assert make_device("x", {"kind": "cpu", "cores": 1e3}).workers == 1000


def test_links_come_in_pairs_and_by_pattern() -> None:
    devices = {"gpu": {"kind": "gpu", "count": 2}, "sw": {"kind": "switch", "kinds": []}}
    machine = make_machine(
        {
            "devices": devices,
            "links": [{"from": "gpu*", "to": "sw", "bandwidth": "10GB/s", "efficiency": 0.9}],
        }
    )
    assert [link.name for link in machine.links] == ["gpu0->sw", "sw->gpu0", "gpu1->sw", "sw->gpu1"]
    assert {link.bandwidth_bytes_per_s for link in machine.links} == {9 * 10**9}
    assert len(machine.route(0, 1)) == 2
    spec = {"name": "bridge", "from": "gpu0", "to": "gpu1", "duplex": False}
    one_way = make_machine({"devices": devices, "links": [spec]})
    (link,) = one_way.links
    assert (link.name, link.source, link.destination) == ("bridge", "gpu0", "gpu1")
    both = make_machine({"devices": devices, "links": [spec | {"duplex": True}]})
    assert [link.name for link in both.links] == ["bridge gpu0->gpu1", "bridge gpu1->gpu0"]
    mesh = make_machine({"devices": devices, "links": [{"from": "gpu*", "to": "gpu*"}]})
    assert [link.name for link in mesh.links] == ["gpu0->gpu1", "gpu1->gpu0"]


def test_hosts_serve_patterns() -> None:
    machine = make_machine(
        {
            "devices": {"gpu": {"kind": "gpu", "count": 4}},
            "hosts": {"a": {"devices": ["gpu[0-1]"]}, "b": {"devices": ["gpu2", "gpu3"], "threads": 2}},
        }
    )
    assert [issuer.name for issuer in machine.issuers()] == ["a", "b0", "b1"]
    assert [issuer.devices for issuer in machine.issuers()] == [(0, 1), (2, 3), (2, 3)]


def test_a_machine_preset_can_be_cut_and_changed() -> None:
    machine = make_machine(
        {
            "preset": "dgx-h100",
            "devices": {"gpu": {"count": 2, "streams": 4}, "gpu1": {"gap": "9us"}, "npu0": {"kind": "npu"}},
            "links": [
                {"name": "nvlink", "latency": "7us"},
                {"from": "npu0", "to": "cpu0", "bandwidth": "1GB/s"},
            ],
        }
    )
    names = [device.name for device in machine.devices]
    assert names == ["cpu0", "cpu1", "gpu0", "gpu1", "nvswitch", "npu0"]
    gpu0, gpu1 = machine.devices[2:4]
    assert (gpu0.streams, gpu0.gap_ns, gpu1.streams, gpu1.gap_ns) == (4, 1600, 4, 9000)
    assert {link.latency_ns for link in machine.links if "nvlink" in link.name} == {7000}
    assert machine.links[-2].name == "npu0->cpu0"


def test_one_of_a_count_can_differ() -> None:
    machine = make_machine({"devices": {"gpu": {"kind": "gpu", "count": 3}, "gpu1": {"issue_cost": "9us"}}})
    assert [device.issue_ns for device in machine.devices] == [0, 9000, 0]


def test_an_ideal_link_keeps_what_it_is_and_what_is_given() -> None:
    link = {"from": "a", "to": "b", "bandwidth": "1GB/s"}
    costs = {"latency": "1us", "efficiency": 0.8, "transport": {"name": "tcp", "fixed": "1us"}}
    more: dict[str, Any] = {}
    assert merge({**link, **costs, **more}, {}, LINK_FIELDS, ideal=True) == link
    again = merge({**link, **costs, **more}, {"latency": "2us"}, LINK_FIELDS, ideal=True)
    assert again == {**link, "latency": "2us"}


def test_an_ideal_machine_has_no_latency_and_no_loss() -> None:
    machine = make_machine({"preset": "dgx-h100", "ideal": True})
    assert {link.latency_ns for link in machine.links} == {0}
    assert max(link.bandwidth_bytes_per_s or 0 for link in machine.links) == 450 * 10**9
    assert {device.launch_latency_ns for device in machine.devices} == {0}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({}, "at least one device"),
        ({"device": {}}, "machine: unknown key 'device'; did you mean 'devices'"),
        (
            {"devices": {"a": {"kind": "gpu"}}, "links": [{"from": "a"}]},
            r"links\[0\].to: a link needs two ends",
        ),
        (
            {"devices": {"a": {"kind": "gpu"}}, "links": [{"from": "a", "to": "b"}]},
            r"links\[0\].to: unknown device 'b'",
        ),
        (
            {"devices": {"a": {"kind": "gpu"}}, "links": [{"from": "a", "to": "a"}]},
            "nothing has to be carried",
        ),
        ({"devices": {"a": {"kind": "gpu"}}, "links": {"from": "a"}}, "is not a list of links"),
        ({"devices": {"a": {"kind": "gpu"}}, "hosts": {"h": {}}}, "name the devices"),
        ({"devices": {"a0": {"kind": "gpu"}, "a": {"kind": "gpu", "count": 2}}}, "'a0' is described twice"),
        ({"preset": "dgx-h10"}, "unknown machine preset 'dgx-h10'; did you mean 'dgx-h100'"),
        (
            {
                "devices": {"a": {"kind": "gpu"}, "b": {"kind": "gpu"}},
                "links": [{"from": "a", "to": "b"}, {"from": "a", "to": "b"}],
            },
            "two links are called 'a->b'",
        ),
    ],
)
def test_wrong_machines_are_refused(spec: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_machine(spec)


def test_every_field_can_be_read() -> None:
    for table in (DEVICE_FIELDS, LINK_FIELDS, HOST_FIELDS, MACHINE_FIELDS):
        for name, field in table.items():
            assert field.name == name
            assert field.type in TYPES
            assert field.doc


def test_zero_needs_no_unit_and_nothing_else_is_bare() -> None:
    assert read_fields({"gap": 0}, DEVICE_FIELDS, "x") == {"gap": 0}
    with pytest.raises(UnitError):
        read_fields({"memory": 50}, DEVICE_FIELDS, "x")


def test_merge_leaves_its_arguments_alone() -> None:
    base, over = {"peak": {"fp32": "1TFLOP/s"}}, {"peak": {"bf16": "2TFLOP/s"}}
    assert merge(base, over, DEVICE_FIELDS) == {"peak": {"fp32": "1TFLOP/s", "bf16": "2TFLOP/s"}}
    assert base == {"peak": {"fp32": "1TFLOP/s"}}
    with pytest.raises(UnknownNameError):
        read_fields({"pak": 1}, DEVICE_FIELDS, "x")


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        (
            Device,
            {"details": {"copy_engines": 2}},
            "device 'd': details should be of type Details, not {'cop",
        ),
        (Device, {"kinds": "matmul"}, "device 'd': kinds should be of type Set, not 'matmul'"),
        (Details, {"copy_engines": "2"}, "details: copy_engines should be a whole number from 0 on, not '2'"),
        (Link, {"destination": Device("b")}, "link 'l': destination should be of type str, not Device"),
        (Link, {"rendezvous": "no"}, "link 'l': rendezvous should be of type bool, not 'no'"),
        (Routing, {"kind": "ecpm"}, "unknown routing 'ecpm'; did you mean 'ecmp'"),
        (Routing, {"given": {("a", 1): ()}}, "routing: given: a name should be a text, not 1"),
        (Routing, {"given": {("a", "b"): (2,)}}, "routing: given: a name should be a text, not 2"),
        (Routing, {"given": {"ab": ("c",)}}, "'ab': ('c',) should be a pair and a tuple of names"),
        (Routing, {"given": {("a", "b"): "c"}}, "('a', 'b'): 'c' should be a pair and a tuple of names"),
        (Machine, {"routing": "ecmp"}, "machine: routing should be of type Routing, not 'ecmp'"),
        (Machine, {"collectives": "nccl"}, "should have a method time_ns(call, machine); str has none"),
        (Machine, {"network": "shared"}, "the network should be callable with (machine, context); found str"),
        (Machine, {"resources": ["crane"]}, "machine: resources should be of type Mapping, not ['crane']"),
        (
            Machine,
            {"resources": {"crane": 1.5}},
            "resources: crane should be a whole number from 0 on, not 1",
        ),
        (Machine, {"resources": {1: 1}}, "machine: resources: a name should be a text, not 1"),
        (Host, {"serves": (1,)}, "host 'h': serves: a name should be a text, not 1"),
        (Device, {"issue_ns_by_kind": {1: 1}}, "device 'd': issue_ns_by_kind: a name should be a text"),
        (Device, {"kinds": {1}}, "device 'd': kinds: a name should be a text, not 1"),
        (Details, {"virtual_devices": {1: 1}}, "details: virtual_devices: a name should be a text, not 1"),
        (PerKind, {"streams": {1: 1}}, "per-kind: streams: a name should be a text, not 1"),
    ],
)
def test_wrong_types_in_python_are_refused(kind: Any, wrong: dict[str, Any], message: str) -> None:
    one = {"name": "l", "source": "a", "destination": "b"}
    right = {
        Device: {"name": "d"},
        Host: {"name": "h", "serves": ("d",)},
        Link: one,
        Machine: {"devices": (Device("d"),)},
    }.get(kind, {})
    with pytest.raises(InputError, match=re.escape(message)):
        kind(**{**right, **wrong})
