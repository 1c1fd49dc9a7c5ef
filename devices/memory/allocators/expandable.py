"""PyTorch's expandable segments: ranges of addresses, one a stream and pool, backed page by page.

::

    ┌ live 3 ─ free 17 ┐┌ unmapped 40 ┐┌ live 20 ┐┌ unmapped ...            (MiB; pages of 20 MiB)
    └──── one page ────┘└── no page ──┘└─ a page ┘
             └──── a request of 50 fits here, with two more pages

The rules, as in `c10/cuda/CUDACachingAllocator.cpp` of the PyTorch repository (``expandable_segments:True``):

1. Pages have 2 MiB in the small pool and 20 MiB in the large one. A segment has addresses for 9/8 of the
   device's memory, and at first no page.
2. Of the free blocks that are large enough the first in order of (size, address) is looked at. As long as the
   next one, with the unmapped range behind it, is smaller than this one with its own, that is taken instead.
3. Without such a block, the unmapped ranges are tried in order of address. Each counts together with the free
   block before it and all free or unmapped ranges behind it. In the first that is large enough so many pages
   are mapped as are missing. Without one, another segment begins.
4. When the device has too few pages, all cached pages are unmapped, and 3 is tried once more. The pages of
   one unmapped range come together or not at all; what was mapped for the request before stays cached.
5. Cached pages are those that lie in a free block as a whole. They are unmapped; what is left before and
   after them stays free. A segment without any page is given back.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from operator import attrgetter
from typing import Final

from devices.memory.best_fit import ANY_SIZE, FreeList, Segment
from devices.memory.device_memory import FREE, UNMAPPED, Block, DeviceMemory, round_up

_ADDRESS: Final = attrgetter("address")
_UNLIMITED_BYTES: Final = 1 << 48
"""Addresses of a segment on a device without limit: the 256 TiB that a GPU has."""


class ExpandableList(FreeList):
    """The free blocks of one pool and stream, in expandable segments.

    Parameters
    ----------
    memory : DeviceMemory
        Where pages come from.
    page_bytes : int
    stream : int
    segments : dict of int to Segment
        The allocator's segments by address: those of this list are put there.
    mapped : callable
        Told how many bytes were mapped (more than 0) or unmapped at once.
    """

    __slots__ = ("_mapped", "_memory", "_page", "_segments", "_stream", "_unmapped")

    def __init__(
        self,
        memory: DeviceMemory,
        page_bytes: int,
        stream: int,
        segments: dict[int, Segment],
        mapped: Callable[[int], None],
    ) -> None:
        super().__init__()
        self._memory, self._page, self._stream = memory, page_bytes, stream
        self._segments, self._mapped = segments, mapped
        self._unmapped: list[Block] = []  # in order of address

    def take(self, nbytes: int, below: int = ANY_SIZE) -> Block | None:
        """Take the block that rule 2 gives out of the list, or return None."""
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
        """Map pages until a block of `need` bytes is free, and take it out of the list (rule 3)."""
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

    def trim(self) -> None:
        """Unmap every cached page, and give segments back that have none left (rule 5)."""
        for block in self.blocks():
            self._unmap(block)

    def _unmap(self, block: Block) -> None:
        """Unmap the pages that lie in a free block as a whole."""
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
        self._memory.release(end - begin)
        self._mapped(begin - end)
        if middle.prev is middle.next:  # all of its segment
            self._unmapped.remove(middle)
            del self._segments[middle.address]

    def _join_unmapped(self, block: Block, behind: Block) -> Block:
        """Make one unmapped range of two neighbours, of which one at most is listed."""
        if behind in self._unmapped:
            self._unmapped.remove(behind)
        block.nbytes += behind.nbytes
        block.next = behind.next
        behind.next.prev = block
        return block

    def _candidate(self, need: int) -> Block:
        """Return where a run of free and unmapped blocks begins that `need` bytes fit into."""
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
        capacity = self._memory.capacity
        whole = _UNLIMITED_BYTES if capacity is None else capacity + capacity // 8
        nbytes = round_up(whole, self._page)
        address = round_up(self._memory.reserve(nbytes + self._page), self._page)
        segment = Segment(address, nbytes, self._stream, self)
        segment.next.state = UNMAPPED
        self._segments[address] = segment
        insort(self._unmapped, segment.next, key=_ADDRESS)
        return segment.next

    def _map(self, block: Block, nbytes: int) -> Block | None:
        """Map the first pages of an unmapped range; return the free block they become part of."""
        size = round_up(nbytes, self._page)
        if not self._memory.commit(size):
            return None
        self._unmapped.remove(block)
        if size < block.nbytes:
            rest = Block(block.address + size, block.nbytes - size, 0, self._stream, None, UNMAPPED, self)
            insort(self._unmapped, _insert_behind(block, rest), key=_ADDRESS)
            block.nbytes = size
        before = block.prev
        merges = before.state == FREE
        self.give(block)
        self._mapped(size)
        return before if merges else before.next


def _room(block: Block) -> int:
    """Return the bytes of a free block and of the unmapped range behind it, which it may grow into."""
    return block.nbytes + (block.next.nbytes if block.next.state == UNMAPPED else 0)


def _insert_behind(block: Block, new: Block) -> Block:
    """Put a block into the ring, and return it."""
    new.prev, new.next = block, block.next
    block.next.prev = block.next = new
    return new
