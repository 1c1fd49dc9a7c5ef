"""Replay of an allocation trace: what would another allocator have made of it?

Time plays no part: the events are taken in order, and every row of the result is the state after one of
them. Out of memory ends a replay with an error that names the event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from devices.memory.allocator import Allocator
from devices.memory.blocks import Block
from devices.memory.memory_event import MemoryEvent
from sim.words.arrays import IntArray

__all__ = ["Replay", "replay"]


@dataclass(frozen=True)
class Replay:
    """What happened, one row an event.

    Attributes
    ----------
    events : sequence of MemoryEvent
        The n events.
    address : (n,) int64 array
        Where the tensor that the event allocates or frees lies.
    in_use : (n,) int64 array
        Bytes allocated after the event, as rounded.
    requested : (n,) int64 array
        Bytes allocated after the event, as asked for.
    reserved : (n,) int64 array
        Bytes held from the device after the event.
    largest_free : (n,) int64 array
        Bytes of the largest free block held after the event.
    device_mallocs, device_frees, synchronisations : int
        What it cost in calls to the device.
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
        live = self._live_after(self.peak_event)
        return sorted(live.items(), key=lambda item: -item[1])[:count]

    def never_freed(self) -> list[tuple[str | int, int]]:
        """Return (id, bytes asked for) of what still lives at the end, in order of allocation."""
        return list(self._live_after(len(self.events) - 1).items())

    def _live_after(self, index: int) -> dict[str | int, int]:
        live: dict[str | int, int] = {}
        for event in self.events[: index + 1]:
            if event.op == "alloc":
                live[event.id] = event.nbytes
            else:
                del live[event.id]
        return live


def replay(events: Sequence[MemoryEvent], allocator: Allocator) -> Replay:
    """Run a trace through an allocator.

    Parameters
    ----------
    events : sequence of MemoryEvent
        What `devices.memory.trace.readers.read_events` gives, or any trace whose frees follow their
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
    columns = np.zeros((5, len(events)), dtype=np.int64)
    live: dict[str | int, Block] = {}
    for i, event in enumerate(events):
        if event.op == "alloc":
            block = allocator.try_alloc(event.nbytes, event.stream, event.id)
            if block is None:
                where = f"at event {i + 1} of {len(events)}"
                raise allocator.out_of_memory(event.nbytes, stream=event.stream, owner=event.id, where=where)
            live[event.id] = block
        else:
            block = live.pop(event.id)
            allocator.free(block)
        counters = (allocator.in_use, allocator.requested, allocator.reserved)
        columns[:, i] = (block.address, *counters, allocator.largest_free())
    calls = (allocator.device_mallocs, allocator.device_frees, allocator.synchronisations)
    address, in_use, requested, reserved, largest_free = columns
    return Replay(events, address, in_use, requested, reserved, largest_free, *calls)
