"""Kernels that share a GPU: cases worked by hand, demands, refusals and bounds.

In the pictures a row is an SM, a letter a load of kernel A, B, ... for one block time.
"""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from typing import Any

import pytest
from examples import examples
from gpu_blocks import raise_together
from gpu_kernels import Launch, kernels, run, spans
from hypothesis import given
from hypothesis import strategies as st
from runs import checked

from devices.kernel_demand import Demand, demand, demands
from devices.machine import described_devices, make_device
from devices.shared_sms import SharedSMs, fair_level
from devices.sm_processor import LeftoverSMs
from policies.issue.ready_queue import ReadyQueue
from policies.streams import RoundRobinStreams
from sim import GraphBuilder, Job, Machine, simulate
from sim.base.errors import InputError
from sim.explain.bounds import bounds
from sim.job.build_job import make_job
from sim.job.noise import Noise
from sim.machine.task import Task
from sim.record.record import WAITS

pytestmark = pytest.mark.usefixtures("both_engines")


def test_a_kernel_alone_takes_its_duration() -> None:
    for loads in (1, 3, 4, 5, 8, 1001):
        for duration_ns in (1, 7, 20, 10**9 + 7):
            assert spans(run([Launch(0, duration_ns, {"grid": loads})], sms=4)) == [(0, duration_ns)]


def test_two_full_grid_kernels_overlap_in_the_tail() -> None:
    # 6 loads each on 4 SMs: 2 waves, block time 10.      0   10   20   30
    #   A runs 4, then its last 2; B gets the other 2     A    A    B
    #   of the second wave, and its last 4 in the third.  A    A    B
    #                                                     A    B    B
    #                                                     A    B    B
    kernel = {"grid": 6}
    assert spans(run([Launch(0, 20, kernel), Launch(1, 20, kernel)], sms=4)) == [(0, 20), (10, 30)]
    # On one stream: 40.
    assert spans(run([Launch(0, 20, kernel), Launch(0, 20, kernel)], sms=4)) == [(0, 20), (20, 40)]


def test_two_kernels_that_fill_whole_waves_run_one_after_the_other() -> None:
    # 8 loads on 4 SMs: no tail, so nothing is left over for B before 20. Sharing equally would have
    # ended both at 40; this way A is not slowed down at all.
    kernel = {"grid": 8}
    assert spans(run([Launch(0, 20, kernel), Launch(1, 20, kernel)], sms=4)) == [(0, 20), (20, 40)]


def test_two_half_grid_kernels_run_side_by_side() -> None:
    kernel = {"grid": 2}
    assert spans(run([Launch(0, 10, kernel), Launch(1, 10, kernel)], sms=4)) == [(0, 10), (0, 10)]


def test_leftover_is_what_the_next_begins_with() -> None:
    # A takes 3 of 4 SMs for 30. B (4 loads, alone one wave of 10) has the one that is left: its loads run one
    # after the other at 0, 10, 20; at 30 three more SMs are free, but only one load is left: 30 to 40.
    launches = [Launch(0, 30, {"sms": 3}), Launch(1, 10, {"sms": 4})]
    assert spans(run(launches, sms=4)) == [(0, 30), (0, 40)]


def test_the_third_gets_nothing_before_the_second_is_dispatched() -> None:
    # A: 3 SMs for 30. B: 4 loads of 10 on the SM that is left, dispatched by 30; then C comes (1 load, 5).
    launches = [Launch(0, 30, {"sms": 3}), Launch(1, 10, {"sms": 4}), Launch(2, 5, {"sms": 1})]
    assert spans(run(launches, sms=4)) == [(0, 30), (0, 40), (30, 35)]


def test_occupancy_divides_the_grid() -> None:
    # 16 blocks, 2 on an SM: 8 loads, 2 waves of 10 on 4 SMs. With 4 on an SM: 4 loads, 1 wave of 20.
    for per_sm in (2, 4):
        launches = [Launch(0, 20, {"grid": [4, 4], "blocks_per_sm": per_sm}), Launch(1, 5, {"sms": 1})]
        assert spans(run(launches, sms=4)) == [(0, 20), (20, 25)]
    # With 5 on an SM: 4 loads; with 8: 2 loads, and the other kernel finds room at once.
    launches = [Launch(0, 20, {"grid": [4, 4], "blocks_per_sm": 8}), Launch(1, 5, {"sms": 1})]
    assert spans(run(launches, sms=4)) == [(0, 20), (0, 5)]


def test_priority_chooses_among_pending_only() -> None:
    # A (low) has 12 loads on 4 SMs, 3 waves of 10. B (high) comes at 5: nothing that runs is interrupted, but
    # at 10 the four SMs go to B's 4 loads (10 to 20); then A has 8 loads left: 20 to 40.
    launches = [Launch(0, 30, {"grid": 12}), Launch(1, 10, {"grid": 4}, ready_ns=5)]
    assert spans(run(launches, sms=4, streams=[{"priority": 0}, {"priority": -1}])) == [(0, 40), (10, 20)]
    # Without priority B waits until A has dispatched all, at 20, and nothing is left over until 30.
    assert spans(run(launches, sms=4)) == [(0, 30), (30, 40)]
    # The lower of two that arrive together waits, whatever their streams' numbers.
    both = [Launch(0, 10), Launch(1, 10)]
    assert spans(run(both, sms=4, streams=[{"priority": 0}, {"priority": -1}])) == [(10, 20), (0, 10)]


@pytest.mark.parametrize("arrives_ns", [9, 10])
def test_what_becomes_free_is_offered_to_all_who_are_there_by_then(arrives_ns: int) -> None:
    # A has 6 loads on 4 SMs, 2 waves of 10; B (low) has waited for SMs since 3. At 10 two SMs come free. C
    # (high), which arrives at that very instant, gets them all the same: ends first, then what they free is
    # shared among those who want it. B begins at 20, when A and C are over.
    launches = [
        Launch(0, 20, {"grid": 6}),
        Launch(1, 10, {"grid": 4}, ready_ns=3),
        Launch(2, 10, {"grid": 2}, ready_ns=arrives_ns),
    ]
    assert spans(run(launches, sms=4, streams=[{"priority": 0}, {"priority": 0}, {"priority": -1}])) == [
        (0, 20),
        (20, 30),
        (10, 20),
    ]


@pytest.mark.parametrize("processor", [LeftoverSMs, SharedSMs])
def test_observers_are_told_when_the_first_block_runs(processor: Any) -> None:
    class Seen:
        def __init__(self) -> None:
            self.events: list[tuple[str, int, int]] = []

        def started(self, task: Task) -> None:
            self.events.append(("start", task.op, task.start_ns))

        def ended(self, task: Task) -> None:
            self.events.append(("end", task.op, task.end_ns))

    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=20, attributes={"grid": 6})
    gpu = make_device("gpu0", {"kind": "gpu", "sharing": "sm", "streams": 2, "sms": 4})
    machine = Machine((dataclasses.replace(gpu, processor=processor),))
    seen = Seen()
    simulate(b.build(), machine, ReadyQueue(), streams=RoundRobinStreams(), observers=[seen])
    assert seen.events == [("start", 0, 0), ("start", 1, 10), ("end", 0, 20), ("end", 1, 30)]


def test_noise_reaches_kernels_that_share() -> None:
    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=10_000)
    for sharing in ("sm", "sm+dram"):
        gpu = make_device("gpu0", {"kind": "gpu", "sharing": sharing, "sms": 4, "bandwidth": "1GB/s"})
        trace = checked(b.build(), Machine((gpu,)), ReadyQueue(), noise=Noise(0.3), seed=1)
        assert trace.job.noisy_ns is not None
        lasted = trace.tasks["end_ns"] - trace.tasks["start_ns"]
        assert lasted.tolist() == trace.job.noisy_ns[0][trace.tasks["op"]].tolist()
        assert lasted.tolist() != [10_000, 10_000]


def test_a_kernel_without_demand_fills_the_device() -> None:
    trace = run([Launch(0, 10), Launch(1, 10)], sms=4)
    assert spans(trace) == [(0, 10), (10, 20)]
    assert [WAITS[code] for code in trace.tasks["wait"]] == ["", "resources"]


def test_partitions_are_devices_of_their_own() -> None:
    # 8 SMs in two partitions of 4. A kernel that fills 8 SMs for 10 takes 20 on 4 SMs, each beside
    # the other; on the whole device they would have run 0-10 and 10-20.
    launches = [Launch(0, 10), Launch(1, 10)]
    assert spans(run(launches, sms=8, partitions={"a": 4, "b": 4})) == [(0, 20), (0, 20)]
    assert spans(run(launches, sms=8)) == [(0, 10), (10, 20)]
    # Small kernels are not slowed down by a partition.
    small = [Launch(0, 10, {"sms": 2}), Launch(1, 10, {"sms": 4})]
    assert spans(run(small, sms=8, partitions={"a": 4, "b": 4})) == [(0, 10), (0, 10)]
    # Streams 0 and 2 share a; stream 1 has b. 6 and 2 SMs: 8 loads take 2 rounds on 6 and 4 on 2; in a the
    # second kernel finds 4 SMs left over in the second round, then 4 loads are left for the third.
    # Of kernels whose blocks are not known the 80 ns of SMs are 13 1/3 ns on 6, and 160 of two are 26 2/3.
    each = [{"partition": name} for name in "aba"]
    apart: dict[str, Any] = {"sms": 8, "partitions": {"a": 6, "b": 2}, "streams": each}
    three = [Launch(stream, 10, {"grid": 8}) for stream in range(3)]
    assert spans(run(three, **apart)) == [(0, 20), (0, 40), (10, 30)]
    assert spans(run([Launch(stream, 10) for stream in range(3)], **apart)) == [(0, 14), (0, 40), (13, 27)]


def test_a_kernel_of_unknown_blocks_has_no_tail() -> None:
    """Beside k of S held SMs it takes S / (S - k) times as long; known blocks take whole waves."""

    def beside(held: int, attributes: dict[str, Any]) -> tuple[int, int]:
        return spans(run([Launch(0, 10**6, {"sms": held}), Launch(1, 132_000, attributes)], sms=132))[1]

    assert beside(1, {}) == (0, 133_008)  # 132 000 x 132 / 131 = 133 007.6
    assert beside(16, {}) == (0, 150_207)  # 150 206.9
    assert beside(66, {}) == (0, 264_000)
    assert beside(1, {"sms": 132}) == beside(1, {"grid": 132}) == (0, 264_000)
    assert beside(1, {"grid": 132 * 40}) == (0, 135_300)  # 41 waves of 3300
    # It yields to one that comes with a higher priority within 1 ns: none of its loads takes longer.
    launches = [Launch(0, 100), Launch(1, 10, ready_ns=50)]
    assert spans(run(launches, sms=4, streams=[{"priority": 0}, {"priority": -1}])) == [(0, 110), (51, 61)]


def test_two_bandwidth_bound_kernels_get_half_each() -> None:
    # 100 B/ns; each takes 10 ns alone for 1000 B, that is the whole bandwidth, on half of the SMs.
    gpu: dict[str, Any] = {"sms": 4, "bandwidth": "100GB/s", "sharing": "sm+dram"}
    bound = {"sms": 2, "dram_bytes": 1000}
    assert spans(run([Launch(0, 10, bound)], **gpu)) == [(0, 10)]
    assert spans(run([Launch(0, 10, bound), Launch(1, 10, bound)], **gpu)) == [(0, 20), (0, 20)]
    # One that needs no memory is not disturbed.
    assert spans(run([Launch(0, 10, bound), Launch(1, 10, {"sms": 2})], **gpu)) == [(0, 10), (0, 10)]
    # Without sharing of the bandwidth they do not notice each other.
    assert (
        spans(run([Launch(0, 10, bound), Launch(1, 10, bound)], **{**gpu, "sharing": "sm"})) == [(0, 10)] * 2
    )


def test_small_demands_are_met_and_large_ones_share_the_rest() -> None:
    # 100 B/ns for demands of 20, 90, 90 B/ns: the first has its 20, the others 40 each, 4/9 of their speed.
    # At 10 the first is over: 50 each, 5/9. Done by then 40/9 of 10; 50/9 left at 5/9 a ns: 10 more.
    gpu: dict[str, Any] = {"sms": 6, "bandwidth": "100GB/s", "sharing": "sm+dram"}
    launches = [Launch(i, 10, {"sms": 2, "dram_bytes": nbytes}) for i, nbytes in enumerate((200, 900, 900))]
    assert spans(run(launches, **gpu)) == [(0, 10), (0, 20), (0, 20)]


def test_a_later_kernel_slows_an_earlier_one_down_from_then_on() -> None:
    # A alone until 4 (4 of 10 done), then both at half: A ends at 4 + 12 = 16; B has 6 of 10 done by then,
    # and is alone again: 20.
    gpu: dict[str, Any] = {"sms": 4, "bandwidth": "100GB/s", "sharing": "sm+dram"}
    bound = {"sms": 2, "dram_bytes": 1000}
    assert spans(run([Launch(0, 10, bound), Launch(1, 10, bound, ready_ns=4)], **gpu)) == [(0, 16), (4, 20)]


def test_what_exceeds_the_bandwidth_came_from_a_cache() -> None:
    # 5000 B in 10 ns at 100 B/ns cannot have come from DRAM alone: the kernel still takes 10.
    gpu: dict[str, Any] = {"sms": 4, "bandwidth": "100GB/s", "sharing": "sm+dram"}
    for attributes in ({"dram_bytes": 5000}, {"grid": 7, "dram_bytes": 5000}, {"grid": 7, "dram_bytes": 900}):
        assert spans(run([Launch(0, 10, attributes)], **gpu)) == [(0, 10)]


def test_bytes_of_the_graph_count_where_dram_bytes_are_not_given() -> None:
    b = GraphBuilder("two")
    for name in "ab":
        b.op(name, duration_ns=10, bytes_read=600, bytes_written=400, attributes={"sms": 1})
    spec = {"kind": "gpu", "sms": 4, "bandwidth": "100GB/s", "sharing": "sm+dram", "streams": 2}

    class Apart:
        def assign(self, job: Job) -> list[int]:
            return [0, 1]

    trace = simulate(b.build(), Machine((make_device("g", spec),)), ReadyQueue(), streams=Apart())
    assert trace.makespan_ns == 20


def test_at_most_so_many_are_resident() -> None:
    small = [Launch(i, 10, {"sms": 1}) for i in range(5)]
    assert spans(run(small, sms=100, max_resident=2)) == [(0, 10), (0, 10), (10, 20), (10, 20), (20, 30)]
    many = [Launch(i, 10, {"sms": 1}) for i in range(130)]
    assert spans(run(many, sms=1000)) == [(0, 10)] * 128 + [(10, 20)] * 2


def test_a_kernel_of_no_length_needs_no_sm() -> None:
    assert spans(run([Launch(0, 10), Launch(1, 0)], sms=4)) == [(0, 10), (0, 0)]


# -- demands and refusals ---------------------------------------------------------------------------


def test_demands() -> None:
    assert demand({}, 10, sms=4) == Demand(4, 0, 0)
    assert demand({}, 10, sms=4, dram_bytes=80, bandwidth_bytes_per_s=10**12) == Demand(4, 0, 2 * 10**9)
    assert demand({"grid": 9}, 10, sms=4) == Demand(9, 3, 0)
    assert demand({"sms": 9}, 10, sms=4) == Demand(4, 1, 0)
    assert demand({"sm_fraction": 0.3}, 10, sms=10) == Demand(3, 1, 0)  # not 4: 0.3 is three tenths
    # 8 loads, 2 waves of 5 ns: 800 B are 100 B a load in 5 ns, 20 B/ns.
    assert (
        demand({"grid": 8}, 10, sms=4, dram_bytes=800, bandwidth_bytes_per_s=10**12).load_bytes_per_s
        == 20 * 10**9
    )


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"grid": 0}, "op 'k0': grid: 0 is no whole number of at least 1"),
        ({"grid": [4, 1.5]}, "op 'k0': grid: 1.5 is no"),
        ({"grid": "4"}, "op 'k0': grid: '4' is no"),
        ({"sms": True}, "op 'k0': sms: True is no"),
        ({"grid": 4, "blocks_per_sm": 0}, "op 'k0': blocks_per_sm: 0 is no"),
        ({"sm_fraction": 1.5}, "op 'k0': sm_fraction: 1.5 is no number in"),
        ({"dram_bytes": -1}, "op 'k0': dram_bytes: -1 is no whole number"),
        ({"dram_bytes": 10**30}, "op 'k0': dram_bytes: 10{30} is more than 2.*63 - 1"),
        ({"grid": [4, 10**30]}, "op 'k0': grid: 10{30} is more than 2.*63 - 1"),
    ],
)
def test_wrong_attributes_are_refused_before_time_0(attributes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        run([Launch(0, 10, attributes)], sms=4, streams=2, sharing="sm+dram", bandwidth="1GB/s")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"sharing": "sm"}, "sms does not say how many there are"),
        ({"sharing": "sm+dram", "sms": 4}, "bandwidth, which is not given"),
        ({"sms": 4, "partitions": {"a": 4}}, "takes effect only with sharing"),
        ({"sms": 4, "sharing": "sm", "partitions": {"a": 3, "b": 2}}, "5 SMs are asked for and there are 4"),
        (
            {"sms": 20, "sharing": "sm", "partitions": {"a": 7, "b": 8}, "generation": "hopper"},
            "no multiple of 8",
        ),
        (
            {"sms": 4, "sharing": "sm", "partitions": {"a": 4}, "streams": [{"partition": "b"}]},
            "unknown partition",
        ),
        (
            {"sms": 4, "sharing": "sm", "partitions": {"a": 4}, "streams": [{"partition": "a"}, {}]},
            "some say their partition, and some do not",
        ),
        ({"sms": 4, "sharing": "sm", "streams": [{"partition": "a"}]}, "there are no partitions"),
        ({"streams": [{"priority": 1}]}, "takes effect only with sharing"),
        ({"streams": []}, "streams: must be at least 1"),
        ({"streams": [{"priorty": 1}]}, "did you mean 'priority'"),
    ],
)
def test_wrong_devices_are_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_device("gpu0", {"kind": "gpu", **spec})


def test_the_last_partition_may_take_what_is_left() -> None:
    spec = {"preset": "h200-sxm", "sharing": "sm", "streams": 2, "partitions": {"a": 64, "b": 68}}
    assert make_device("gpu0", spec).details.partition_sms == (64, 68)


def fair_shares(demands: list[int], capacity: int) -> list[Fraction]:
    level = Fraction(*fair_level(demands, capacity))
    return [min(Fraction(demand), level) for demand in demands]


def test_shares_of_bandwidth() -> None:
    assert fair_shares([1, 2, 3], 6) == [1, 2, 3]
    assert fair_shares([9, 9, 9], 6) == [2, 2, 2]
    assert fair_shares([1, 9, 9], 6) == [1, Fraction(5, 2), Fraction(5, 2)]
    assert fair_shares([], 6) == []
    for wanted in ([3, 0, 7, 7], [5, 5], [1, 100, 3]):
        assert fair_shares(wanted, 8) == raise_together(wanted, 8)


# -- how much a GPU can do at once ------------------------------------------------------------------


def test_work_bounds_a_shared_gpu() -> None:
    """Two kernels that fill the GPU need the sum of their times, and two of half its SMs the half of it."""
    full = bounds(run([Launch(0, 20), Launch(1, 30)], sms=4))
    assert (full.lower_bound_ns, full.binding) == (50, "device gpu0")
    half = bounds(run([Launch(s, 20, {"sms": 2}) for s in (0, 1, 2)], sms=4))
    assert (half.lower_bound_ns, half.binding) == (30, "device gpu0")


def test_each_iteration_counts_for_the_bound_of_a_shared_gpu() -> None:
    job = run([Launch(0, 20), Launch(1, 30)], sms=4).job
    assert bounds(dataclasses.replace(job, iterations=3)).by_source["device gpu0"] == 3 * 50


def test_traffic_bounds_a_shared_gpu() -> None:
    """One SM each, but 15 ns of the memory's time."""
    kernel = {"sms": 1, "dram_bytes": 1500}
    trace = run([Launch(0, 20, kernel), Launch(1, 20, kernel)], sms=4, sharing="sm+dram", bandwidth="100GB/s")
    assert bounds(trace).by_source["device gpu0"] == trace.makespan_ns == 30


@examples(100)
@given(st.lists(kernels, min_size=1, max_size=12), st.sampled_from(["sm", "sm+dram"]))
def test_no_run_beats_the_bound(launches: list[Launch], sharing: str) -> None:
    trace = run(sorted(launches, key=lambda k: k.ready_ns), sms=8, sharing=sharing, bandwidth="1GB/s")
    assert bounds(trace).lower_bound_ns <= trace.makespan_ns


@pytest.mark.parametrize("preset", ["a100-sxm-40", "a100-sxm-80", "h100-sxm", "h200-sxm", "p40", "v100-sxm"])
def test_streams_of_a_preset_do_not_exceed_its_peak(preset: str) -> None:
    def makespan_ns(**more: Any) -> int:
        b = GraphBuilder("four products")
        for i in range(4):
            b.op(f"k{i}", kind="matmul", flops=10**12, bytes_read=10**6, dtype="fp32")
        device = make_device("gpu0", {"preset": preset, "streams": 4, "issue_cost": 0, **more})
        return simulate(b.build(), Machine((device,)), ReadyQueue(), streams=RoundRobinStreams()).makespan_ns

    peak = described_devices({"devices": {"gpu0": {"preset": preset}}})["gpu0"]["peak"]["fp32"]
    least_ns = 4 * 10**12 * 10**9 / peak
    assert makespan_ns() >= least_ns
    assert makespan_ns(sharing="none") < least_ns
    assert makespan_ns(ideal=True) < least_ns


def test_products_without_a_grid_have_that_of_the_fitted_model() -> None:
    """On an H200 a product of 64 x 64 x 64 has 4 blocks of 64 x 16, so that 33 of them run side by side.

    One of 8192 x 8192 x 8192 has 2048 of 128 x 256: two of them run one after the other.
    """
    b = GraphBuilder("products")
    for size in (64, 8192):
        for i in range(2):
            shape = {"m": size, "n": size, "k": size}
            b.op(f"{size}_{i}", kind="matmul", dtype="bf16", flops=2 * size**3, attributes=shape)
    b.op("own", kind="matmul", dtype="bf16", attributes={"m": 64, "n": 64, "k": 64, "sm_fraction": 0.5})
    b.op("fp32", kind="matmul", dtype="fp32", attributes={"m": 64, "n": 64, "k": 64})

    h200 = {"preset": "h200-sxm", "sharing": "sm", "streams": 2, "ideal": True}
    h200["cost"] = ["fitted", "roofline"]

    def asked(**more: Any) -> list[tuple[int, int]]:
        spec = {**h200, **more}
        machine = Machine((make_device("gpu0", spec),))
        job = make_job(b.build(), machine)
        return [(one.loads, one.waves) for _, one in sorted(demands(machine.devices[0], job, None).items())]

    assert asked() == [(4, 1), (4, 1), (2048, 16), (2048, 16), (66, 1), (4, 1)]
    assert asked(cost="roofline") == [(132, 0)] * 4 + [(66, 1), (132, 0)]

    ends = []
    for own in ({}, {"grid": 132}):
        small = GraphBuilder("small")
        for i in range(2):
            small.op(f"{i}", kind="matmul", dtype="bf16", attributes={"m": 64, "n": 64, "k": 64, **own})
        machine = Machine((make_device("gpu0", h200),))
        trace = checked(small.build(), machine, ReadyQueue(), streams=RoundRobinStreams())
        ends.append(trace.makespan_ns)
    assert ends[1] == 2 * ends[0]
