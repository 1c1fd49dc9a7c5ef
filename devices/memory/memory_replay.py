"""Replay of an allocation trace with another allocator.

Time is ignored: the events are processed in order, and every row of the result is the state after one of
them. Running out of memory ends a replay with an error that names the event.

What the program did is done again. A block that another stream uses (``record_stream``) is free once the
program has waited for that stream (``synchronise``), or where a simulated run says so (``reached``).
``empty_cache`` and a request that failed (``oom``) give cached memory back. What the recorded allocator did
by itself (``segment_...``) shows what it had reserved (`Replay.recorded`). Where it gave memory back, one of
the same kind does so, too, as nothing else in the trace says when: a segment of that size, or all cached
pages of expandable segments. Where it has no such segment, that is counted (`Replay.not_followed`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from devices.memory.allocator import Allocator
from devices.memory.device_memory import Block
from devices.memory.trace_readers import EVERY_STREAM, HELD, MemoryEvent
from sim.base.arrays import IntArray
from sim.base.errors import OutOfMemoryError

NO_ADDRESS: Final = -1
"""As the address of an event that has none."""


@dataclass(frozen=True)
class Replay:
    """What happened, one row an event.

    Attributes
    ----------
    events : sequence of MemoryEvent
        The n events: of a replay that ran out of memory, those before.
    address : (n,) int64 array
        Where the tensor that the event is about lies; `NO_ADDRESS` where it is about none.
    in_use : (n,) int64 array
        Bytes allocated after the event, as rounded.
    requested : (n,) int64 array
        Bytes allocated after the event, as asked for.
    reserved : (n,) int64 array
        Bytes held from the device after the event.
    largest_free : (n,) int64 array
        Bytes of the largest free block held after the event.
    device_mallocs, device_frees, synchronisations, retries : int
        What it cost in calls to the device (`devices.memory.allocator.Allocator`).
    not_followed : int
        How often the recorded allocator gave memory back that this one, of the same kind, did not have.
    failure : OutOfMemoryError or None
        Why it ended before the trace did.
    """

    events: Sequence[MemoryEvent]
    address: IntArray
    in_use: IntArray
    requested: IntArray
    reserved: IntArray
    largest_free: IntArray
    device_mallocs: int
    device_frees: int
    synchronisations: int
    retries: int = 0
    not_followed: int = 0
    failure: OutOfMemoryError | None = None

    @property
    def recorded(self) -> IntArray | None:
        """Bytes that the recorded allocator had reserved after each event; None if the trace does not say."""
        if not any(event.op in HELD for event in self.events):
            return None
        changes = [HELD.get(event.op, 0) * event.nbytes for event in self.events]
        return np.cumsum(changes, dtype=np.int64)

    @property
    def peak_in_use(self) -> int:
        """Most bytes allocated."""
        return int(self.in_use.max(initial=0))

    @property
    def peak_reserved(self) -> int:
        """Most bytes held from the device."""
        return int(self.reserved.max(initial=0))

    @property
    def peak_event(self) -> int:
        """Index of the first event after which `peak_in_use` bytes were allocated; −1 without events."""
        return int(self.in_use.argmax()) if len(self.in_use) else -1

    @property
    def fragmentation(self) -> IntArray:
        """Bytes held and not in use, after each event."""
        return self.reserved - self.in_use

    def holders_at_peak(self, count: int | None = None) -> list[tuple[str | int, int]]:
        """Return (id, bytes asked for) of what lived at the peak, the largest first.

        Parameters
        ----------
        count : int, optional
            So many of them; by default all.
        """
        return sorted(self._live_after(self.peak_event).items(), key=lambda item: -item[1])[:count]

    def never_freed(self) -> list[tuple[str | int, int]]:
        """Return (id, bytes asked for) of what still lives at the end, in order of allocation."""
        return list(self._live_after(len(self.events) - 1).items())

    def _live_after(self, index: int) -> dict[str | int, int]:
        live: dict[str | int, int] = {}
        for event in self.events[: index + 1]:
            if event.op == "alloc":
                live[event.id] = event.nbytes
            elif event.op == "free":
                del live[event.id]
        return live


def replay(events: Sequence[MemoryEvent], allocator: Allocator) -> Replay:
    """Run a trace through an allocator.

    Parameters
    ----------
    events : sequence of MemoryEvent
        What `devices.memory.trace_readers.read_events` gives, or any trace whose frees follow their
        allocations.
    allocator : Allocator
        A fresh one; it ends in the state after the last event.

    Raises
    ------
    OutOfMemoryError
        An allocation fails; the message names the event, counted from 1.

    Examples
    --------
    >>> from devices.memory import BfcAllocator, MemoryEvent
    >>> trace = [MemoryEvent("alloc", "a", 1000), MemoryEvent("alloc", "b", 10), MemoryEvent("free", "a")]
    >>> result = replay(trace, BfcAllocator(1 << 20))
    >>> result.address.tolist(), result.in_use.tolist(), result.holders_at_peak()
    ([0, 1024, 0], [1024, 1280, 256], [('a', 1000), ('b', 10)])
    """
    done = replay_until_full(events, allocator)
    if done.failure is not None:
        raise done.failure
    return done


def replay_until_full(events: Sequence[MemoryEvent], allocator: Allocator) -> Replay:
    """Run a trace through an allocator until it ends, or memory does (`Replay.failure`); see `replay`."""
    columns = np.zeros((5, len(events)), dtype=np.int64)
    live: dict[str | int, Block] = {}
    waiting: dict[int, list[Block]] = defaultdict(list)  # stream → freed blocks that have to wait for it
    last_freed: dict[str | int, Block] = {}  # of those that have to wait
    failure, not_followed, n = None, 0, len(events)
    for i, event in enumerate(events):
        address = NO_ADDRESS
        if event.op == "alloc":
            block = allocator.take(event.nbytes, event.stream, event.id)
            if block is None:
                failure = allocator.out_of_memory(
                    event.nbytes, stream=event.stream, owner=event.id, where=f"at event {i + 1} of {n}"
                )
                events, columns = events[:i], columns[:, :i]
                break
            live[event.id] = block
            address = block.address
        elif event.op == "free":
            block = live.pop(event.id)
            address = block.address
            for stream in allocator.let_go(block):
                waiting[stream].append(block)
                last_freed[event.id] = block
        elif event.op == "record_stream":
            block = live[event.id]
            address = block.address
            allocator.record_use(block, event.stream)
        elif event.op == "synchronise":
            for stream in tuple(waiting) if event.stream == EVERY_STREAM else (event.stream,):
                for block in waiting.pop(stream, ()):
                    allocator.event_done(block)
        elif event.op == "reached":
            if event.id in last_freed:  # else nothing here had to wait
                allocator.event_done(last_freed[event.id])
        elif event.op in ("empty_cache", "oom"):
            allocator.empty_cache()
        elif event.op == "segment_unmap":
            if not i or events[i - 1].op != "segment_unmap":  # PyTorch unmaps all cached pages in a row
                allocator.empty_cache()
        elif event.op == "segment_free" and not allocator.give_back(event.nbytes, event.stream):
            not_followed += 1
        counters = (allocator.in_use, allocator.requested, allocator.reserved)
        columns[:, i] = (address, *counters, allocator.largest_free())
    calls = (allocator.device_mallocs, allocator.device_frees, allocator.synchronisations, allocator.retries)
    addresses, in_use, requested, reserved, largest_free = columns
    return Replay(events, addresses, in_use, requested, reserved, largest_free, *calls, not_followed, failure)
