"""TensorFlow's allocator: best fit with coalescing, in regions that double.

The rules, as in `third_party/xla/xla/tsl/framework/bfc_allocator.cc` of the TensorFlow repository (2.21):

1. A request is rounded up to 256 bytes.
2. Of the free chunks that are large enough the first in order of (size, address) is taken. (TensorFlow
   searches 21 bins of powers of two upward, which finds the same; see `devices.memory.best_fit`.)
3. It is split when it is at least twice the need, or when 128 MiB or more would be wasted; the low part
   is used. With a `fragmentation_fraction` it is that part of the limit in place of the 128 MiB
   (``internal_fragmentation_fraction`` of TensorFlow's GPU options).
4. A freed chunk merges with its next, then with its previous neighbour, within its region only.
5. Without a chunk that fits, a region is added. Its size begins at 2 MiB with `allow_growth`, else at all
   there is, and doubles until the need fits; after a region that did not have to double, the next is
   twice as large. A region never exceeds what is left below the limit.
6. A region that the device refuses is asked for again at 0.9 of its size, down to the need.
7. Where `garbage_collection` is on (TensorFlow on GPUs), regions without a live chunk are given back, and
   5 is tried once more.
8. With `expandable_segments`, regions come from one range of addresses of the limit's size, in whole pages of
   2 MiB: each right behind the last one, which it extends. So chunks merge across what were two regions. Only
   the addresses of regions at the end are used again (`tensorflow/core/common_runtime/gpu/
   gpu_virtual_mem_allocator.cc`, and ``SupportsCoalescing``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import numpy as np
from annotated_types import Gt, Lt

from devices.describe.field_types import Bytes
from devices.memory.best_fit import ANY_SIZE, FreeList, Segment, SegmentedAllocator
from devices.memory.device_memory import Block, DeviceMemory, Owner, round_up
from sim.base.errors import InputError
from sim.base.units import format_bytes

ROUNDING_BYTES = 256
FIRST_REGION_BYTES = 2 << 20
MAX_WASTE_BYTES = 128 << 20
BACKOFF = np.float32(0.9)
PAGE_BYTES = 2 << 20
"""Granularity of the driver's virtual memory (`cuMemGetAllocationGranularity`) on today's GPUs."""
_UNLIMITED_BYTES = 1 << 48


class BfcAllocator(SegmentedAllocator):
    """TensorFlow's best fit with coalescing.

    Parameters
    ----------
    capacity : int, DeviceMemory or None
        Bytes of the device; None: unlimited.
    allow_growth : bool, optional
        Begin with a small region and double, instead of taking all memory at the first request. By
        default on a device without limit only, where there is no "all memory" to take.
    limit : int, optional
        Most bytes that this allocator may hold; by default all of the device's.
    garbage_collection : bool
        Give wholly free regions back before giving up.
    expandable_segments : bool
        Whether a region extends the one before it.
    fragmentation_fraction : float, optional
        Part of the limit, below 1, that a chunk may waste at most; by default 128 MiB.
    name : str
        The device, in error messages.

    Examples
    --------
    >>> bfc = BfcAllocator(16 << 20, allow_growth=True)
    >>> a, b = bfc.alloc(1000), bfc.alloc(100)
    >>> (a.address, a.nbytes), (b.address, b.nbytes), bfc.reserved
    ((0, 1024), (1024, 256), 2097152)
    """

    kind = "bfc"
    alignment = ROUNDING_BYTES

    def __init__(
        self,
        capacity: int | DeviceMemory | None = None,
        *,
        allow_growth: bool | None = None,
        limit: Bytes | None = None,
        garbage_collection: bool = False,
        expandable_segments: bool = False,
        fragmentation_fraction: Annotated[float, Gt(0), Lt(1)] | None = None,
        name: str = "device",
    ) -> None:
        super().__init__(capacity, name, limit)
        bound = self.limit
        self.may_synchronise = self._garbage_collection = garbage_collection
        growth = bound is None if allow_growth is None else allow_growth
        if growth:
            first = FIRST_REGION_BYTES if bound is None else min(bound, FIRST_REGION_BYTES)
        elif bound is None:
            raise InputError(
                f"{name}: bfc without allow_growth takes all memory, and there is no end of it; give a limit"
            )
        else:
            first = bound
        self._region_bytes = round_up(first, ROUNDING_BYTES)
        self._most_waste = MAX_WASTE_BYTES  # of a chunk, before it is split (rule 3)
        if fragmentation_fraction is not None:
            if bound is None:
                raise InputError(f"{name}: a fragmentation_fraction is of the limit, and there is none")
            self._most_waste = int(fragmentation_fraction * bound)
        self._arena = self._arena_bytes = self._arena_used = 0
        self._contiguous = expandable_segments
        if expandable_segments:
            self._arena_bytes = round_up(_UNLIMITED_BYTES if bound is None else bound, PAGE_BYTES)
            self._arena = self.memory.reserve(self._arena_bytes)
        self._free = FreeList()

    def _free_lists(self) -> Iterable[FreeList]:
        return (self._free,)

    def _rule(self, need: int, stream: int) -> tuple[FreeList, int, int]:
        return self._free, min(need, self._most_waste), ANY_SIZE

    def _grow(self, need: int, stream: int, free: FreeList) -> Block | None:
        region = self._extend(need)
        return self._extend(need) if region is None and self._collect(need) else region

    def oom_hints(self, nbytes: int, stream: int, owner: Owner) -> list[str]:
        """Tell when regions that lie apart are what stands in the way."""
        free = self.reserved - self.in_use
        regions = len(self.segments)
        if regions < 2 or free < nbytes:
            return []
        scattered = f"{format_bytes(free, iec=True)} are free, in {regions} regions"
        hints = [f"one region (allow_growth off): {scattered}"]
        if not self._garbage_collection:
            hints.append("garbage_collection on: wholly free regions are then given back")
        return hints

    def _bytes_left(self, reserved: int) -> int:
        """Return how many bytes the limit leaves, when so many are held."""
        return ANY_SIZE if self.limit is None else (self.limit - reserved) // ROUNDING_BYTES * ROUNDING_BYTES

    def _extend(self, need: int) -> Block | None:
        """Add a region of at least `need` bytes, and return its block (rules 5 and 6)."""
        available = self._bytes_left(self.reserved)
        if need > available:
            return None
        doubled = False
        while need > self._region_bytes:
            self._region_bytes *= 2
            doubled = True
        nbytes = min(self._region_bytes, available)
        region = self._region(nbytes)
        while region is None:
            # In single precision, as TensorFlow computes it: at 80 GiB that decides about kilobytes.
            nbytes = round_up(int(np.float32(nbytes) * BACKOFF), ROUNDING_BYTES)
            if nbytes < need:
                return None
            region = self._region(nbytes)
        if not doubled:
            self._region_bytes *= 2
        return region

    def _region(self, nbytes: int) -> Block | None:
        """Return the free block, in no list, of a region of `nbytes` from the device, or None."""
        if self._contiguous:
            return self._extension(round_up(nbytes, PAGE_BYTES))
        return self._new_segment(nbytes, 0, self._free)

    def _extension(self, nbytes: int) -> Block | None:
        """Return the free block that ends with `nbytes` more of the range of addresses (rule 8)."""
        if self._arena_used + nbytes > self._arena_bytes or not self.memory.commit(nbytes):
            return None
        address = self._arena + self._arena_used
        self._arena_used += nbytes
        self.device_mallocs += 1
        self._reserve(nbytes)
        last = next(reversed(self.segments.values()), None)
        if last is None or last.address + last.size != address:
            segment = self.segments[address] = Segment(address, nbytes, 0, self._free)
            return segment.next
        self._free.give(last.extend(nbytes))
        block = last.prev
        self._free.remove(block)
        return block

    def _give_back(self, segment: Segment) -> None:
        if not self._contiguous:
            super()._give_back(segment)
            return
        self.memory.release(segment.size)
        if segment.address + segment.size == self._arena + self._arena_used:
            self._arena_used = segment.address - self._arena

    def _collect(self, need: int) -> bool:
        """Give wholly free regions back, if that can leave `need` bytes below the limit (rule 7)."""
        if not self._garbage_collection:
            return False
        idle = [block for segment in self.segments.values() if (block := segment.whole())]
        freed = sum(block.nbytes for block in idle)
        if not idle or need > self._bytes_left(self.reserved - freed):
            return False
        for block in idle:
            self._drop_segment(block)
        self.synchronisations += 1
        return True
