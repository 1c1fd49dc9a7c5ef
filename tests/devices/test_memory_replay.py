"""Replaying allocation traces, and reading them."""

from __future__ import annotations

import random
from typing import Any

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from devices.memory import (
    BfcAllocator,
    CachingAllocator,
    MemoryEvent,
    PlannedAllocator,
    PoolAllocator,
    make_allocator,
    replay,
)
from devices.memory.memory_replay import NO_ADDRESS, replay_until_full
from devices.memory.planned import lifetimes_of_events
from devices.memory.trace_readers import EVERY_STREAM
from sim.base.errors import OutOfMemoryError, UnknownNameError

KIB, MIB = 1 << 10, 1 << 20


def alloc(identity: str | int, nbytes: int, stream: int = 0) -> MemoryEvent:
    return MemoryEvent("alloc", identity, nbytes, stream)


def free(identity: str | int) -> MemoryEvent:
    return MemoryEvent("free", identity)


TRACE = [
    alloc("a", 1000),
    alloc("b", 600),
    free("a"),
    alloc("c", 500),
    alloc("a", 2000),
    free("b"),
    free("c"),
]


def test_report_of_a_small_trace() -> None:
    # bfc, one region of 64 KiB = 65536:
    #   a: [0, 1024)  b: [1024, 1792)  free a  c: [0, 512), as 1024 ≥ 2 × 512  a again: 2048 at 1792
    #   free b: [512, 1792) is free    free c: [0, 1792) is free
    result = replay(TRACE, BfcAllocator(64 * KIB))
    assert result.address.tolist() == [0, 1024, 0, 0, 1792, 1024, 0]
    assert result.in_use.tolist() == [1024, 1792, 768, 1280, 3328, 2560, 2048]
    assert result.requested.tolist() == [1000, 1600, 600, 1100, 3100, 2500, 2000]
    assert result.reserved.tolist() == [65536] * 7
    # Behind a: 64512; b: 63744; from then on what is left behind the last block.
    assert result.largest_free.tolist() == [64512, 63744, 63744, 63744, 61696, 61696, 61696]
    assert result.fragmentation.tolist() == [64512, 63744, 64768, 64256, 62208, 62976, 63488]
    assert (result.peak_in_use, result.peak_reserved, result.peak_event) == (3328, 65536, 4)
    assert result.holders_at_peak() == [("a", 2000), ("b", 600), ("c", 500)]
    assert result.holders_at_peak(1) == [("a", 2000)]
    assert result.never_freed() == [("a", 2000)]
    assert (result.device_mallocs, result.device_frees, result.synchronisations) == (1, 0, 0)


def test_empty_trace() -> None:
    result = replay([], PoolAllocator(100))
    assert (result.peak_in_use, result.peak_event, result.holders_at_peak()) == (0, -1, [])


def test_out_of_memory_names_the_event() -> None:
    with pytest.raises(
        OutOfMemoryError, match=r"'a' asks for 1.953 KiB on stream 0, at event 5 of 7\n"
    ) as caught:
        replay(TRACE, PoolAllocator(3000))
    assert "largest holders  'b' 600 B; 'c' 500 B" in str(caught.value)


def test_streams_matter_to_the_caching_allocator() -> None:
    trace = [alloc(0, 3 * MIB, 7), free(0), alloc(1, 3 * MIB, 8)]
    assert replay(trace, CachingAllocator()).peak_reserved == 40 * MIB
    assert replay([event._replace(stream=0) for event in trace], CachingAllocator()).peak_reserved == 20 * MIB


events_strategy = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5000)), max_size=40)


def toggle(rows: list[tuple[int, int]]) -> list[MemoryEvent]:
    """Return a trace in which each id is allocated when it does not live, and freed when it does."""
    trace: list[MemoryEvent] = []
    live: set[int] = set()
    for identity, nbytes in rows:
        trace.append(free(identity) if identity in live else alloc(identity, nbytes))
        live ^= {identity}
    return trace


@examples(250)
@given(events_strategy, st.sampled_from(["pool", "bfc", "caching", "counted", "planned", "scratchpad"]))
def test_replay_agrees_with_plain_sums(rows: list[tuple[int, int]], kind: str) -> None:
    trace = toggle(rows)
    result = replay(trace, make_allocator(kind, 64 * MIB, events=trace))
    live: dict[str | int, int] = {}
    for i, event in enumerate(trace):
        if event.op == "alloc":
            live[event.id] = event.nbytes
        else:
            del live[event.id]
        assert result.requested[i] == sum(live.values())
    assert dict(result.never_freed()) == live
    peak = result.peak_event
    assert sum(nbytes for _, nbytes in result.holders_at_peak()) == (
        result.requested[peak] if peak >= 0 else 0
    )


@examples(250)
@given(events_strategy, st.sampled_from(["relay", "relax", "greedy"]))
def test_planned_replay_never_waits_and_stays_in_its_arena(rows: list[tuple[int, int]], planner: str) -> None:
    trace = toggle(rows)
    planned = PlannedAllocator(trace, planner=planner, alignment=64)
    result = replay(trace, planned)
    assert result.peak_reserved <= planned.reserved
    assert (result.address % 64 == 0).all()
    assert result.peak_in_use <= planned.reserved


def test_lifetimes_of_a_trace_and_unknown_planner() -> None:
    owners, lifetimes = lifetimes_of_events(TRACE)
    assert owners == ["a", "b", "c", "a"]
    assert [row[:3] for row in lifetimes] == [(1000, 0, 1), (600, 1, 4), (500, 3, 5), (2000, 4, 6)]
    with pytest.raises(UnknownNameError, match="unknown memory planner 'greedi'; did you mean 'greedy'"):
        make_allocator("planned", events=TRACE, planner="greedi")


def event(op: str, **fields: Any) -> MemoryEvent:
    return MemoryEvent(op, **fields)


def test_empty_cache_gives_segments_back() -> None:
    """30 MiB freed stay cached, and 40 more are 70; given back before, the 40 are all."""
    trace = [alloc("a", 30 * MIB), free("a"), event("empty_cache"), alloc("b", 40 * MIB)]
    done = replay(trace, CachingAllocator())
    assert (done.peak_reserved // MIB, done.device_frees, done.synchronisations) == (40, 1, 1)
    assert done.address[2] == NO_ADDRESS
    assert replay([trace[0], trace[1], trace[3]], CachingAllocator()).peak_reserved == 70 * MIB
    assert dict(done.never_freed()) == {"b": 40 * MIB}


def test_a_block_that_another_stream_uses_is_reused_after_that_stream_was_waited_for() -> None:
    used = [alloc("a", 12 * MIB), event("record_stream", id="a", stream=3), free("a")]
    again = alloc("b", 12 * MIB)
    for waits, reserved in (
        ([], 24),
        ([event("synchronise", stream=2)], 24),
        ([event("synchronise", stream=3)], 12),
        ([event("synchronise", stream=EVERY_STREAM)], 12),
    ):
        assert replay([*used, *waits, again], CachingAllocator()).peak_reserved == reserved * MIB
    # Two uses wait for both; the allocation's own stream is no other one.
    both = [used[0], *(event("record_stream", id="a", stream=s) for s in (0, 3, 4)), used[2]]
    waits = [event("synchronise", stream=s) for s in (3, 4)]
    assert replay([*both, waits[0], again], CachingAllocator()).peak_reserved == 24 * MIB
    assert replay([*both, *waits, again], CachingAllocator()).peak_reserved == 12 * MIB
    # Others know no streams: what is freed is free.
    assert replay([*used, again], PoolAllocator()).peak_reserved == 12 * MIB


def test_out_of_memory_retries() -> None:
    """With 50 MiB, 30 cached ones go back for 40; a failure that the program survived leaves no cache."""
    trace = [alloc("a", 30 * MIB), free("a"), alloc("b", 40 * MIB)]
    done = replay(trace, CachingAllocator(50 * MIB))
    assert (done.retries, done.peak_reserved) == (1, 40 * MIB)
    failed = [trace[0], trace[1], event("oom", nbytes=1 << 40), trace[2]]
    assert replay(failed, CachingAllocator()).peak_reserved == 40 * MIB


def test_what_the_recorded_allocator_gave_back_is_given_back() -> None:
    """Of the free segments of a stream one of that size; what is not there is counted."""
    trace = [
        alloc("a", 30 * MIB),
        alloc("b", 30 * MIB, 1),
        alloc("c", 12 * MIB),
        free("a"),
        free("b"),
        free("c"),
    ]
    back = event("segment_free", nbytes=30 * MIB, stream=1)
    done = replay([*trace, back, alloc("d", 30 * MIB, 0)], CachingAllocator())
    assert (done.reserved[-2:].tolist(), done.not_followed) == ([42 * MIB] * 2, 0)
    done = replay([*trace, back, back], CachingAllocator())
    assert (done.reserved[-1], done.not_followed) == (42 * MIB, 1)
    # Pages of an expandable segment: 60 MiB of which the last 20 stay in use. All cached ones go at once.
    pages = [alloc("a", 40 * MIB), alloc("b", 15 * MIB), free("a")]
    done = replay(
        [*pages, event("segment_unmap", nbytes=40 * MIB)], CachingAllocator(expandable_segments=True)
    )
    assert (done.reserved.tolist()[-2:], done.not_followed) == ([60 * MIB, 20 * MIB], 0)
    # Another kind of allocator has nothing to follow.
    assert replay([*trace, back, back], PoolAllocator()).not_followed == 0


class Recording(CachingAllocator):
    """Writes down what it takes from the device and gives back, as a snapshot does."""

    def __init__(self, *, expandable_segments: bool) -> None:
        super().__init__(None if expandable_segments else 200 * MIB, expandable_segments=expandable_segments)
        self.events: list[MemoryEvent] = []

    def _reserve(self, nbytes: int) -> None:
        super()._reserve(nbytes)
        taken, given = ("map", "unmap") if self._expandable else ("alloc", "free")
        self.events.append(event(f"segment_{taken if nbytes > 0 else given}", nbytes=abs(nbytes)))


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_a_recording_is_followed_on_a_device_without_end(expandable: bool, seed: int) -> None:
    """Emptied caches, and segments that ran short: what was reserved is the same after every event.

    Not so where expandable segments run short, as the device's size is in their addresses.
    """
    draw = random.Random(seed)
    recording = Recording(expandable_segments=expandable)
    live: list[tuple[int, Any]] = []
    for i in range(300):
        if live and draw.random() < 0.5:
            identity, block = live.pop(draw.randrange(len(live)))
            recording.events.append(free(identity))
            recording.free(block)
        elif draw.random() < 0.02:
            recording.empty_cache()
        else:
            nbytes = draw.choice(
                [draw.randint(1, MIB), draw.randint(MIB, 8 * MIB), draw.randint(MIB, 60 * MIB)]
            )
            if (block := recording.try_alloc(nbytes)) is not None:
                recording.events.append(alloc(i, nbytes))
                live.append((i, block))
    assert recording.retries or expandable
    done = replay(recording.events, CachingAllocator(expandable_segments=expandable))
    assert done.recorded is not None
    asked = [k for k, one in enumerate(done.events) if one.op in ("alloc", "free")]
    assert done.reserved[asked].tolist() == done.recorded[asked].tolist()
    assert (done.not_followed, done.peak_reserved) == (0, done.recorded.max())


def test_what_was_recorded_as_reserved() -> None:
    trace = [
        event("segment_alloc", nbytes=20),
        alloc("a", 5),
        event("segment_map", nbytes=7),
        event("segment_free", nbytes=20),
        event("segment_unmap", nbytes=2),
    ]
    recorded = replay(trace, PoolAllocator()).recorded
    assert recorded is not None
    assert recorded.tolist() == [20, 20, 27, 7, 5]
    assert replay(TRACE, PoolAllocator()).recorded is None


def test_a_replay_keeps_what_it_has_when_memory_ends() -> None:
    done = replay_until_full(TRACE, PoolAllocator(3000))
    assert "at event 5 of 7" in str(done.failure)
    assert (len(done.events), done.in_use.tolist()) == (4, [1000, 1600, 600, 1100])


# Reading: JSON lines
