"""Kernels that share a GPU: every start and end against a simulation of blocks."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from examples import examples
from gpu_blocks import block_by_block
from gpu_kernels import Launch, kernels, run, spans
from hypothesis import example, given
from hypothesis import strategies as st

from devices.kernel_demand import GROUPS, Demand
from devices.shared_sms import SharedSMs
from devices.sm_processor import SimplestSms, course


@examples(300)
@given(
    launches=st.lists(kernels, min_size=1, max_size=7),
    priorities=st.lists(st.integers(-1, 0), min_size=4, max_size=4),
    dram=st.booleans(),
    gap_ns=st.sampled_from([0, 0, 3]),
    split=st.sampled_from([None, (2, 4), (1, 5)]),
    max_resident=st.sampled_from([1, 2, 128]),
)
@example(  # a cohort that ends between two whole ns and is replaced by its own kernel
    launches=[
        Launch(0, 7, {"grid": 15, "dram_bytes": 100}, 0),
        Launch(1, 5, {"grid": 9, "dram_bytes": 70}, 1),
    ],
    priorities=[0, -1, 0, 0],
    dram=True,
    gap_ns=0,
    split=None,
    max_resident=128,
)
def test_every_kernel_agrees_with_a_simulation_of_every_block(
    launches: list[Launch],
    priorities: list[int],
    dram: bool,
    gap_ns: int,
    split: tuple[int, int] | None,
    max_resident: int,
) -> None:
    launches = sorted(launches, key=lambda launch: launch.ready_ns)
    streams = 1 + max(launch.stream for launch in launches)
    spec: dict[str, Any] = {
        "sms": 6,
        "streams": [{"priority": n} for n in priorities[:streams]],
        "max_resident": max_resident,
    }
    spec |= {"gap": f"{gap_ns}ns"}
    if dram:
        spec |= {"sharing": "sm+dram", "bandwidth": "20GB/s"}
    if split:
        spec |= {"partitions": {"a": split[0], "b": split[1]}}
    expected = block_by_block(
        launches,
        sms=6,
        priorities=priorities,
        capacities=list(split or (6,)),
        partition_of=[s % 2 if split else 0 for s in range(4)],
        bandwidth=20 * 10**9 if dram else None,
        gap_ns=gap_ns,
        max_resident=max_resident,
    )
    assert spans(run(launches, **spec)) == expected


@examples(120)
@given(st.lists(kernels, min_size=1, max_size=8), st.sampled_from([None, (3, 5)]))
def test_what_is_known_at_arrival_is_what_happens(
    launches: list[Launch], split: tuple[int, int] | None
) -> None:
    """The two ways to compute leftover dispatch agree: at arrival, and event by event."""
    launches = sorted(launches, key=lambda launch: launch.ready_ns)
    spec: dict[str, Any] = {"sms": 8, "partitions": {"a": split[0], "b": split[1]}} if split else {"sms": 8}
    at_arrival = run(launches, **spec)
    by_events = run(launches, processor=SharedSMs, **spec)
    device = at_arrival.job.machine.devices[0]
    alone = device.streams == 1 and not split  # one kernel at a time shares nothing
    assert device.processor == (None if alone else SimplestSms(dram=False))
    assert by_events.job.machine.devices[0].processor is SharedSMs
    assert spans(at_arrival) == spans(by_events)
    for name in ("start_ns", "end_ns", "wait"):
        assert sorted(at_arrival.tasks[name].tolist()) == sorted(by_events.tasks[name].tolist())


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(1, 10**6), st.integers(0, 10**5)), max_size=30),
)
def test_merging_instants_conserves_sms_and_time(rows: list[tuple[int, int, int]]) -> None:
    """However many kernels overlap, few instants are kept, and all SMs, and no SM time is won."""
    free: list[tuple[int, int]] = [(0, 132)]
    now = 0
    for loads, duration_ns, later in rows:
        now += later
        asked = Demand(loads, -(-loads // 132), 0)
        idle = sum(count * max(0, now - time) for time, count in free)
        before = sum(count * time for time, count in free) + idle
        start, end, free = course(free, asked, duration_ns, now)
        assert now <= start < end
        assert sum(count for _, count in free) == 132
        assert free == sorted(free)
        assert len(free) <= GROUPS
        busy = Fraction(loads * duration_ns, asked.waves)
        after = sum(count * time for time, count in free)
        assert 0 <= after - before - busy <= 132 * 9 + loads  # rounding to whole ns, up


def test_many_streams_of_odd_kernels_keep_few_cohorts() -> None:
    """The same event by event: splinters are merged, and the SMs are as busy as before."""
    launches = [Launch(i % 8, 1000 + 7 * i, {"grid": 100 + 13 * i}) for i in range(64)]
    by_events = run(launches, processor=SharedSMs, sms=132).makespan_ns
    at_arrival = run(launches, sms=132).makespan_ns
    work = sum(x.duration_ns * x.attributes["grid"] / -(-x.attributes["grid"] // 132) for x in launches) / 132
    for makespan in (by_events, at_arrival):
        assert work <= makespan <= 1.05 * work
