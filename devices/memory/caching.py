"""PyTorch's allocator for CUDA: segments are kept when their tensors die, separately for each stream.

The rules, as in `c10/cuda/CUDACachingAllocator.cpp` of the PyTorch repository (2.x):

1. A request is rounded up to 512 bytes, or by `devices.memory.caching`. Up to 1 MiB it is served
   by the small pool, else by the large one; each stream has its own pools.
2. Of the stream's free blocks that are large enough the first in order of (size, address) is taken.
3. It is split when at least 512 bytes (small pool) or more than 1 MiB (large pool) would be left over; the
   low part is used.
4. Without a block that fits, a segment comes from the device: 2 MiB for the small pool, 20 MiB for less than
   10 MiB, else the need rounded up to 2 MiB.
5. If the device refuses: just enough free blocks of `max_split_size` or more of that stream are returned, and
   the device is asked again; then the device is synchronised, every wholly free segment is returned, and it
   is asked a last time.
6. A freed block merges with its free neighbours, within its segment only.
7. A block that other streams used (`record_use`) is not free until an event of each of them, recorded when
   it was freed, has been reached.
8. With a `max_split_size`, blocks of that size or more are not split: they serve no smaller requests, and
   requests of that size or more only with less than 20 MiB to spare.
9. With expandable segments, 2, 4 and the memory returned by 5 are as described at `ExpandableList`, and
   blocks of the large pool are also split when at least 512 bytes would be left over.

Operations that take time are only counted. After a synchronisation every outstanding event counts as reached,
and the engine must let the issuer wait until the device is idle; a late `event_done` of those is ignored.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Final

from devices.describe.field_types import Bytes
from devices.memory.best_fit import ANY_SIZE, NEVER_SPLIT, FreeList, Segment, SegmentedAllocator
from devices.memory.device_memory import FREE, LIVE, UNMAPPED, WAITING, Block, DeviceMemory, Owner, round_up
from sim.base.errors import InputError, InvariantError
from sim.base.units import format_bytes, parse_bytes

ROUNDING_BYTES: Final = 512
_INTERVALS: Final = 16
_FIRST_POWER: Final = 20  # 1 MiB


def divisions_by_interval(spec: int | Mapping[str, int] | None, name: str) -> tuple[int, ...]:
    """Return the number of divisions of each of the sixteen intervals.

    Parameters
    ----------
    spec : int or mapping of str to int, optional
        For all sizes, or by size: a power of two from 1 MiB on, and ``>`` for all larger sizes.
    name : str
        Name of the device in error messages.

    Raises
    ------
    InputError
        If a number of divisions or a size is not a power of two, or a size is below 1 MiB.

    Examples
    --------
    >>> divisions_by_interval({"4MiB": 2, "16MiB": 4, ">": 8}, "gpu0")
    (2, 2, 2, 0, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8)
    """
    key = f"{name}: roundup_power2_divisions"
    if spec is None or isinstance(spec, int):
        return (_divisions(spec, key),) * _INTERVALS if spec is not None else (0,) * _INTERVALS
    counts: list[int] = []
    for i, (size, divisions) in enumerate(spec.items()):
        count = _divisions(divisions, f"{key}: {size}", none=True)
        if size == ">":
            if i != len(spec) - 1:
                raise InputError(f"{key}: '>' stands for all larger sizes, and comes last")
            counts.extend([count] * (_INTERVALS - len(counts)))
            break
        nbytes = parse_bytes(size, what=key)
        power = nbytes.bit_length() - 1 - _FIRST_POWER
        if nbytes.bit_count() != 1 or power < 0:
            raise InputError(f"{key}: {size}: should be a power of two from 1MiB on, such as 256MiB, or '>'")
        power = min(power, _INTERVALS - 1)
        if i and power < len(counts):
            raise InputError(f"{key}: {size}: should come before the larger sizes, once")
        counts.extend([0 if i else count] * (power - len(counts)))
        counts.append(count)
    return (*counts, *[0] * (_INTERVALS - len(counts)))


def _divisions(count: int, key: str, *, none: bool = False) -> int:
    if count < 0 or count.bit_count() > 1 or (count == 0 and not none):
        or_none = ", or 0 for none" if none else ""
        raise InputError(f"{key}: {count} divisions; should be a power of two{or_none}")
    return count


def round_size(nbytes: int, divisions: tuple[int, ...]) -> int:
    """Return `nbytes` as the allocator rounds it.

    Examples
    --------
    >>> [round_size(n, (4,) * 16) for n in (100, 2000, 2049, 5000, 8192)]
    [512, 2048, 2560, 5120, 8192]
    """
    interval = min(max(nbytes.bit_length() - 1 - _FIRST_POWER, 0), _INTERVALS - 1)
    count = divisions[interval]
    if count <= 1 or nbytes <= ROUNDING_BYTES * count:
        return round_up(nbytes, ROUNDING_BYTES)
    return round_up(nbytes, (1 << nbytes.bit_length() - 1) // count)


SMALL_REQUEST_BYTES = 1 << 20
SMALL_SEGMENT_BYTES = 2 << 20
LARGE_SEGMENT_BYTES = 20 << 20
MEDIUM_REQUEST_BYTES = 10 << 20
LARGE_ROUNDING_BYTES = 2 << 20
OVERSIZE_SLACK_BYTES = 20 << 20


class CachingAllocator(SegmentedAllocator):
    """PyTorch's caching allocator.

    Parameters
    ----------
    capacity : int, DeviceMemory or None
        Bytes of the device; None: unlimited.
    limit : int, optional
        Most bytes that this allocator may hold (PyTorch's memory fraction); by default all of the device's.
    max_split_size : int, optional
        Size from which blocks are never split; by default every block may be. Whole MiB, more than 20 of
        them (with less, a block could be both unsplittable and part of a segment in use).
    expandable_segments : bool
        Whether to take memory page by page, into one range of addresses per stream and pool. Not with a
        `max_split_size`: PyTorch stops with an internal error when it has to return such a block.
    roundup_power2_divisions : int or mapping of str to int, optional
        Steps between two powers of two to which requests are rounded up: for all sizes, or by size, as in
        ``{256MiB: 1, 512MiB: 2, ">": 4}``.
    name : str
        The device, in error messages.

    Examples
    --------
    >>> caching = CachingAllocator(64 << 20)
    >>> a, b = caching.alloc(1000, stream=0), caching.alloc(1000, stream=1)
    >>> a.nbytes, b.address, caching.reserved, caching.free(a)  # a segment for each stream
    (1024, 2097152, 4194304, ())
    """

    kind = "caching"
    by_stream = True

    def __init__(
        self,
        capacity: int | DeviceMemory | None = None,
        *,
        limit: Bytes | None = None,
        max_split_size: Bytes | None = None,
        expandable_segments: bool = False,
        roundup_power2_divisions: int | Mapping[str, int] | None = None,
        name: str = "device",
    ) -> None:
        super().__init__(capacity, name, limit)
        if max_split_size is not None and (max_split_size <= LARGE_SEGMENT_BYTES or max_split_size % 2**20):
            raise InputError(
                f"{name}: a max_split_size of {max_split_size} bytes; give whole MiB, and more than the "
                "20 MiB of the segments that smaller tensors share"
            )
        if expandable_segments and max_split_size is not None:
            raise InputError(
                f"{name}: expandable_segments and a max_split_size do not go together: PyTorch stops with an "
                "internal error when it gives back a block of that size"
            )
        self._expandable = expandable_segments
        self._divisions = divisions_by_interval(roundup_power2_divisions, name)
        self._fraction = limit  # what PyTorch's memory fraction allows; None: the device itself decides
        self.may_synchronise = self.limit is not None or self.memory.capacity is not None
        self._max_split = max_split_size if max_split_size is not None else ANY_SIZE
        self._pools: dict[tuple[bool, int], FreeList] = {}  # by (small, stream)
        self._used_on: dict[Block, tuple[int, ...]] = {}  # live block → other streams that use it
        self._awaits: dict[Block, int] = {}  # waiting block → number of events not reached yet

    def rounded_size(self, nbytes: int) -> int:
        """Return `nbytes` rounded up to 512, or to the next division."""
        return round_size(nbytes, self._divisions)

    def _free_lists(self) -> Iterable[FreeList]:
        return self._pools.values()

    def _pool(self, small: bool, stream: int) -> FreeList:
        """Return the free blocks of a pool and stream."""
        pool = self._pools.get((small, stream))
        if pool is None:
            page = SMALL_SEGMENT_BYTES if small else LARGE_SEGMENT_BYTES
            pool = ExpandableList(self, page, stream) if self._expandable else FreeList()
            self._pools[small, stream] = pool
        return pool

    def _rule(self, need: int, stream: int) -> tuple[FreeList, int, int]:
        if need <= SMALL_REQUEST_BYTES:
            return self._pool(True, stream), ROUNDING_BYTES, ANY_SIZE
        if self._expandable:
            return self._pool(False, stream), ROUNDING_BYTES, ANY_SIZE
        if need < self._max_split:
            return self._pool(False, stream), SMALL_REQUEST_BYTES + 1, self._max_split
        return self._pool(False, stream), NEVER_SPLIT, need + OVERSIZE_SLACK_BYTES

    def free(self, block: Block) -> tuple[int, ...]:
        """Free `block`: at once, or when events of these streams have been reached; see `Allocator.free`."""
        streams = self._used_on.pop(block, ())
        if not streams:
            return super().free(block)
        self._gave(block)
        self.waiting += block.nbytes
        block.state = WAITING
        self._awaits[block] = len(streams)
        return streams

    def record_use(self, block: Block, stream: int) -> None:
        """Note that `stream`, not the one it was allocated for, uses `block`.

        Raises
        ------
        InvariantError
            `block` is not live.
        """
        if block.state != LIVE:
            raise InvariantError(f"{self.name}: stream {stream} uses {block!r}, which is not live")
        if stream != block.stream and block.nbytes:  # an empty block takes no room
            others = self._used_on.get(block, ())
            if stream not in others:
                self._used_on[block] = (*others, stream)

    def event_done(self, block: Block) -> None:
        """Note that an event of a stream that used `block` was reached; ignored after a synchronisation."""
        if block not in self._awaits:
            return
        self._awaits[block] -= 1
        if not self._awaits[block]:
            del self._awaits[block]
            self.waiting -= block.nbytes
            block.home.give(block)

    def empty_cache(self) -> None:
        """Wait until the device is idle, and return every wholly free segment or page to it."""
        self.synchronisations += 1  # every outstanding event is reached
        self._awaits, waiting = {}, self._awaits
        self.waiting = 0
        for block in waiting:
            block.home.give(block)
        for free in self._free_lists():
            for block in free.blocks():
                if isinstance(free, ExpandableList):
                    free.unmap(block)
                elif block.prev is block.next:
                    self._drop_segment(block)

    def give_back(self, nbytes: int, stream: int) -> bool:
        """Return the stream's first free segment of this size to the device."""
        for free in [pool for (_, other), pool in self._pools.items() if other == stream]:
            fit = next((block for block in free.from_size(nbytes) if block.prev is block.next), None)
            if fit is not None and fit.nbytes == nbytes:
                self._drop_segment(fit)
                return True
        return False

    def fits_empty(self, nbytes: int, stream: int = 0, owner: Owner = None) -> bool:
        """Return whether a segment for it is within the limit and the device's capacity."""
        need = self.rounded_size(nbytes)
        segment = _segment_bytes(need)
        page = SMALL_SEGMENT_BYTES if need <= SMALL_REQUEST_BYTES else LARGE_SEGMENT_BYTES
        mapped = round_up(need, page) if self._expandable else segment
        bounds = ((segment, self._fraction), (mapped, self.memory.capacity))
        return all(bound is None or size <= bound for size, bound in bounds)

    def oom_hints(self, nbytes: int, stream: int, owner: Owner) -> list[str]:
        """Return advice on memory free for other streams, or in segments held by a live block."""
        need = self.rounded_size(nbytes)
        small = need <= SMALL_REQUEST_BYTES
        others = [free for (kind, other), free in self._pools.items() if kind == small and other != stream]
        hints = []
        if any(free.first_fit(need) for free in others):
            hints.append(
                "allocating on the stream that freed: a block that fits is cached for another stream"
            )
        stuck = sum(block.nbytes for free in self._free_lists() for block in free.blocks())
        if need <= (self.limit or 0) - self.in_use - self.waiting and stuck:
            size, segment = (format_bytes(n, iec=True) for n in (stuck, _segment_bytes(need)))
            unit = "pages" if self._expandable else "segments"
            takes = "" if self._expandable else f"a new segment takes {segment}, and "
            hints.append(
                f"less fragmentation: {takes}{size} are cached in {unit} that a live block keeps from going "
                "back"
            )
        return hints

    def _grow(self, need: int, stream: int, free: FreeList) -> Block | None:
        """Return a free block for `need` from the device, releasing cached ones if necessary (4 and 5)."""
        block = self._from_device(need, stream, free)
        if block is None and self._release_oversize(need, free):
            block = self._from_device(need, stream, free)
        if block is None:
            self.empty_cache()
            self.retries += 1
            block = self._from_device(need, stream, free)
        return block

    def _from_device(self, need: int, stream: int, free: FreeList) -> Block | None:
        """Return the block of a new segment or of newly mapped pages; None if there is no room."""
        nbytes = _segment_bytes(need)
        if self._fraction is not None and self.reserved + nbytes > self._fraction:
            return None
        if isinstance(free, ExpandableList):
            return free.expand(need)
        return self._new_segment(nbytes, stream, free)

    def account_for_pages(self, nbytes: int) -> None:
        """Account for pages mapped or, if `nbytes` is negative, unmapped at once."""
        self.device_mallocs += nbytes > 0
        self.device_frees += nbytes < 0
        self._reserve(nbytes)

    def _release_oversize(self, need: int, free: FreeList) -> bool:
        """Return the best-fitting unsplittable block to the device, else the largest until enough is free.

        A block that fits is one of `max_split_size` or more: a smaller one would have been handed out.
        """
        if self._max_split == ANY_SIZE:
            return False
        fit = free.first_fit(need)
        released = 0
        if fit is not None:
            self._drop_segment(fit)
            released = need
        while released < need and (block := free.largest()) and block.nbytes >= self._max_split:
            released += block.nbytes
            self._drop_segment(block)
        if released:
            self.synchronisations += 1  # cudaFree waits for the device
        return released >= need


def _segment_bytes(need: int) -> int:
    if need <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if need < MEDIUM_REQUEST_BYTES:
        return LARGE_SEGMENT_BYTES
    return round_up(need, LARGE_ROUNDING_BYTES)


# ----------------------------------------------------------------------------------------------------------
# PyTorch's expandable segments: ranges of addresses, one per stream and pool, backed page by page.
#
# ::
#
#     ┌ live 3 ─ free 17 ┐┌ unmapped 40 ┐┌ live 20 ┐┌ unmapped ...            (MiB; pages of 20 MiB)
#     └──── one page ────┘└── no page ──┘└─ a page ┘
#              └──── a request of 50 fits here, with two more pages
#
# The rules, as in `c10/cuda/CUDACachingAllocator.cpp` of the PyTorch repository
# (``expandable_segments:True``):
#
# 1. Pages have 2 MiB in the small pool and 20 MiB in the large one. A segment has addresses for 9/8 of the
#    device's memory, and at first no page.
# 2. The first free block that is large enough, in order of (size, address), is the candidate. While the next
#    one, with the unmapped range after it, is smaller than the candidate with its own, it becomes the
#    candidate.
# 3. Without such a block, the unmapped ranges are tried in order of address. Each counts together with the
#    free block before it and all free or unmapped ranges behind it. In the first that is large enough so many
#    pages are mapped as are missing. Without one, another segment begins.
# 4. When the device has too few pages, all cached pages are unmapped, and 3 is tried once more. The pages of
#    one unmapped range come together or not at all; what was mapped for the request before stays cached.
# 5. Cached pages are those entirely inside a free block. They are unmapped; the rest of the block before and
#    after them stays free. A segment without any page is released.

_ADDRESS: Final = attrgetter("address")
_UNLIMITED_BYTES: Final = 1 << 48
"""Addresses of a segment on an unlimited device: the 256 TiB of a GPU."""


class ExpandableList(FreeList):
    """The free blocks of one pool and stream, in expandable segments.

    Parameters
    ----------
    allocator : CachingAllocator
        Owner of the segments, whose device supplies the pages.
    page_bytes : int
    stream : int
    """

    __slots__ = ("_allocator", "_page", "_stream", "_unmapped")

    def __init__(self, allocator: CachingAllocator, page_bytes: int, stream: int) -> None:
        super().__init__()
        self._allocator, self._page, self._stream = allocator, page_bytes, stream
        self._unmapped: list[Block] = []  # in order of address

    def take(self, nbytes: int, below: int = ANY_SIZE) -> Block | None:
        """Remove and return the block of rule 2; None if there is none."""
        best = None
        for block in self.from_size(nbytes):
            if best is not None and _room(block) >= _room(best):
                break
            best = block
        if best is None or best.nbytes >= below:
            return None
        self.remove(best)
        return best

    def expand(self, need: int) -> Block | None:
        """Map pages until a block of `need` bytes is free, then remove and return it (rule 3)."""
        block = self._candidate(need)
        if block.state == UNMAPPED:
            first = self._map(block, min(block.nbytes, need))
            if first is None:
                return None
            block = first
        while block.nbytes < need:
            behind = self._map(block.next, min(need - block.nbytes, block.next.nbytes))
            if behind is None:
                return None
            block = behind
        self.remove(block)
        return block

    def unmap(self, block: Block) -> None:
        """Unmap the pages entirely inside a free block, and release its segment if it has none (rule 5)."""
        page = self._page
        begin, end = round_up(block.address, page), (block.address + block.nbytes) // page * page
        if begin >= end:
            return
        self.remove(block)
        before, after = begin - block.address, block.address + block.nbytes - end
        middle = block
        if before:
            block.nbytes = before
            self.put(block)
            middle = _insert_behind(block, Block(begin, end - begin, 0, self._stream, None, UNMAPPED, self))
        if after:
            self.put(_insert_behind(middle, Block(end, after, 0, self._stream, None, FREE, self)))
        middle.nbytes, middle.state = end - begin, UNMAPPED
        if middle.next.state == UNMAPPED:
            self._join_unmapped(middle, middle.next)
        if middle.prev.state == UNMAPPED:
            middle = self._join_unmapped(middle.prev, middle)
        else:
            insort(self._unmapped, middle, key=_ADDRESS)
        self._allocator.memory.release(end - begin)
        self._allocator.account_for_pages(begin - end)
        if middle.prev is middle.next:  # all of its segment
            self._unmapped.remove(middle)
            del self._allocator.segments[middle.address]

    def _join_unmapped(self, block: Block, behind: Block) -> Block:
        """Merge two neighbouring unmapped ranges, of which at most one is listed."""
        if behind in self._unmapped:
            self._unmapped.remove(behind)
        block.nbytes += behind.nbytes
        block.next = behind.next
        behind.next.prev = block
        return block

    def _candidate(self, need: int) -> Block:
        """Return the first block of a run of free and unmapped blocks with room for `need` bytes."""
        for unmapped in self._unmapped:
            first = unmapped.prev if unmapped.prev.state == FREE else unmapped
            room, block = 0, first
            while room < need and block.state in (FREE, UNMAPPED):
                room += block.nbytes
                block = block.next
            if room >= need:
                return first
        return self._new_segment()

    def _new_segment(self) -> Block:
        capacity = self._allocator.memory.capacity
        extent = _UNLIMITED_BYTES if capacity is None else capacity + capacity // 8
        nbytes = round_up(extent, self._page)
        address = round_up(self._allocator.memory.reserve(nbytes + self._page), self._page)
        segment = Segment(address, nbytes, self._stream, self)
        segment.next.state = UNMAPPED
        self._allocator.segments[address] = segment
        insort(self._unmapped, segment.next, key=_ADDRESS)
        return segment.next

    def _map(self, block: Block, nbytes: int) -> Block | None:
        """Map the first pages of an unmapped range; return the free block they become part of."""
        size = round_up(nbytes, self._page)
        if not self._allocator.memory.commit(size):
            return None
        self._unmapped.remove(block)
        if size < block.nbytes:
            tail = Block(block.address + size, block.nbytes - size, 0, self._stream, None, UNMAPPED, self)
            insort(self._unmapped, _insert_behind(block, tail), key=_ADDRESS)
            block.nbytes = size
        before = block.prev
        merges = before.state == FREE
        self.give(block)
        self._allocator.account_for_pages(size)
        return before if merges else before.next


def _room(block: Block) -> int:
    """Return the bytes of a free block and of the unmapped range after it, into which it may grow."""
    return block.nbytes + (block.next.nbytes if block.next.state == UNMAPPED else 0)


def _insert_behind(block: Block, new: Block) -> Block:
    """Insert a block into the ring after another, and return it."""
    new.prev, new.next = block, block.next
    block.next.prev = block.next = new
    return new
