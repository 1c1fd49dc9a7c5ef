"""Best fit with coalescing: the core that `pool`, `bfc`, `caching` and `scratchpad` share.

A segment is a contiguous range from the device, covered without gaps by blocks that form a ring in
address order. The segment itself closes the ring, and as it is never free, no block ever looks past an
end of it::

      ┌───────────────────────────────────────────────────────────────┐
      └─► Segment ◄─► live 256 ◄─► free 768 ◄─► live 512 ◄─► free 1024 ◄┘
                                      │                        │
                           FreeList: (768, address)  <  (1024, address)

Free blocks are kept in order of (size, address). `FreeList.take` gives the first that fits, which is the
smallest and among equals the lowest; `FreeList.carve` splits it when what would be left over is worth
keeping. `FreeList.give` merges with the next and the previous neighbour if they are free. The variants differ
in how they round, in when a remainder is worth keeping, and in where segments come from; those are numbers
that they pass in.

An order of the free blocks as a whole finds the same block as TensorFlow's 21 bins of powers of two: each
bin is in order of (size, address) itself, and every block of a bin is smaller than every one of the next.

A sorted list of integers, ``size << 64 | address``, serves as the order: comparing whole integers and
shifting a list of pointers are so fast in CPython that a balanced tree pays only above some 100,000 free
blocks.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator

from devices.memory.allocator import Allocator
from devices.memory.device_memory import FREE, LIVE, UNMAPPED, Block, DeviceMemory, Owner, Span

ANY_SIZE = 1 << 62
"""As `below` of `FreeList.take`: any block that is large enough will do."""

NEVER_SPLIT = 1 << 62
"""As `min_remainder` of `FreeList.take`: hand out the block whole."""

_ADDRESS_BITS = 64


class Segment(Block):
    """A range from the device, and the ring of blocks that cover it.

    Parameters
    ----------
    address, size : int
        First byte, and bytes.
    stream : int
        Stream whose requests it serves.
    home : FreeList
        Where its blocks go when they are free.
    """

    __slots__ = ("size",)

    def __init__(self, address: int, size: int, stream: int, home: FreeList) -> None:
        # Of no size of its own and never free: a neighbour that asks finds nothing to merge with.
        super().__init__(address, 0, 0, stream, None, LIVE, home)
        self.size = size
        block = Block(address, size, 0, stream, None, FREE, home)
        self.prev = self.next = block
        block.prev = block.next = self

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in address order."""
        block = self.next
        while block is not self:
            yield block
            block = block.next

    def extend(self, nbytes: int) -> Block:
        """Make it longer by `nbytes`; return the block there, which is not free yet."""
        block = Block(self.address + self.size, nbytes, 0, self.stream, None, LIVE, self.home)
        block.prev, block.next = self.prev, self
        self.prev.next = self.prev = block
        self.size += nbytes
        return block

    def whole(self) -> Block | None:
        """Return the one free block that covers all of it, or None when anything of it is in use."""
        block = self.next
        return block if block.next is self and not block.state else None


class FreeList:
    """Free blocks in order of (size, address).

    Examples
    --------
    >>> free = FreeList()
    >>> segment = Segment(0, 1000, 0, free)
    >>> free.put(segment.next)
    >>> a, b = [free.carve(free.take(300), 300, min_remainder=1) for _ in range(2)]
    >>> free.give(a)
    >>> [block.nbytes for block in free.blocks()]
    [300, 400]
    >>> free.give(b)  # merges with both neighbours
    >>> [block.nbytes for block in free.blocks()]
    [1000]
    """

    __slots__ = ("_blocks", "_keys")

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._blocks: dict[int, Block] = {}

    def largest(self) -> Block | None:
        """Return the last block, or None."""
        return self._blocks[self._keys[-1]] if self._keys else None

    def first_fit(self, nbytes: int) -> Block | None:
        """Return the first block of at least `nbytes`, or None; it stays in the list."""
        index = bisect_left(self._keys, nbytes << _ADDRESS_BITS)
        return self._blocks[self._keys[index]] if index < len(self._keys) else None

    def blocks(self) -> list[Block]:
        """Return the free blocks in order."""
        return [self._blocks[key] for key in self._keys]

    def from_size(self, nbytes: int) -> Iterator[Block]:
        """Yield the blocks of at least `nbytes`, in order; the list may not change meanwhile."""
        for key in self._keys[bisect_left(self._keys, nbytes << _ADDRESS_BITS) :]:
            yield self._blocks[key]

    def put(self, block: Block) -> None:
        """Add a free block as it is."""
        key = block.nbytes << _ADDRESS_BITS | block.address
        insort(self._keys, key)
        self._blocks[key] = block

    def remove(self, block: Block) -> None:
        """Take `block` out of the list."""
        key = block.nbytes << _ADDRESS_BITS | block.address
        del self._keys[bisect_left(self._keys, key)]
        del self._blocks[key]

    def take(self, nbytes: int, below: int = ANY_SIZE) -> Block | None:
        """Take the first block of at least `nbytes` out of the list; None if that is of `below` or more."""
        keys = self._keys
        index = bisect_left(keys, nbytes << _ADDRESS_BITS)
        if index == len(keys) or keys[index] >= below << _ADDRESS_BITS:
            return None
        return self._blocks.pop(keys.pop(index))

    def carve(
        self,
        free: Block,
        nbytes: int,
        min_remainder: int,
        requested: int = 0,
        stream: int = 0,
        owner: Owner = None,
    ) -> Block:
        """Return the low end of `free`, which is in no list, as a live block; the rest goes to this one.

        Parameters
        ----------
        free : Block
        nbytes : int
            Bytes needed, rounded.
        min_remainder : int
            Split when at least so many bytes are left over; otherwise they go along.
        requested, stream, owner
            Facts of the block to be returned.

        Notes
        -----
        No block lived before: it stood for its range while that was free. So handles of earlier owners stay
        dead.
        """
        remaining = free.nbytes - nbytes
        if remaining >= min_remainder:
            remainder = Block(free.address + nbytes, remaining, 0, free.stream, None, FREE, self)
            remainder.prev, remainder.next = free, free.next
            free.next.prev = free.next = remainder
            free.nbytes = nbytes
            self.put(remainder)
        free.requested, free.stream, free.owner, free.state = requested, stream, owner, LIVE
        return free

    def give(self, block: Block) -> None:
        """Add the range of `block`, which dies, merged with its free neighbours."""
        block.state = FREE
        before, after = block.prev, block.next
        if before.state:
            free = Block(block.address, block.nbytes, 0, block.stream, None, FREE, self)
            free.prev, before.next = before, free
        else:
            free = before
            self.remove(free)
            free.nbytes, free.stream = free.nbytes + block.nbytes, block.stream
        if not after.state:
            self.remove(after)
            free.nbytes += after.nbytes
            after = after.next
        free.next, after.prev = after, free
        self.put(free)


# ----------------------------------------------------------------------------------------------------------
# What `pool`, `bfc` and `caching` share beyond the free list: segments taken from the device.
#
# `pool` has one of them, and the others take another when no free block fits; a subclass says by which rule.


class SegmentedAllocator(Allocator):
    """An allocator that takes segments from the device and deals out blocks of them.

    Attributes
    ----------
    segments : dict of int to Segment
        By address.
    """

    def __init__(
        self, capacity: int | DeviceMemory | None, name: str = "device", limit: int | None = None
    ) -> None:
        super().__init__(capacity, name, limit)
        self.segments: dict[int, Segment] = {}

    @abstractmethod
    def _free_lists(self) -> Iterable[FreeList]:
        """Return every free list, in a fixed order."""

    def largest_free(self) -> int:
        """Return the size of the largest free block, in bytes."""
        return max((block.nbytes for free in self._free_lists() if (block := free.largest())), default=0)

    def spans(self) -> Iterator[Span]:
        """Yield every block of every segment, in address order."""
        for address in sorted(self.segments):
            for block in self.segments[address].blocks():
                if block.state != UNMAPPED:
                    yield block.span(address)

    def _new_segment(self, nbytes: int, stream: int, home: FreeList) -> Block | None:
        """Take `nbytes` from the device as a segment, and return its one block, in no list yet."""
        address = self.memory.malloc(nbytes)
        if address is None:
            return None
        segment = self.segments[address] = Segment(address, nbytes, stream, home)
        self.device_mallocs += 1
        self._reserve(nbytes)
        return segment.next

    def _drop_segment(self, block: Block) -> None:
        """Give the segment that the free `block` covers back to the device."""
        segment = self.segments.pop(block.address)
        assert segment.whole() is block
        block.home.remove(block)
        self._give_back(segment)
        self.device_frees += 1
        self._reserve(-segment.size)

    def _give_back(self, segment: Segment) -> None:
        """Give the addresses of a segment back to the device."""
        self.memory.free(segment.address, segment.size)

    @abstractmethod
    def _rule(self, need: int, stream: int) -> tuple[FreeList, int, int]:
        """Return which list serves a request, and `min_remainder` and `below` (see `FreeList`)."""

    def _grow(self, need: int, stream: int, free: FreeList) -> Block | None:
        """Take a segment from the device for a request, and return its one block; None: there is none."""
        return None

    def try_alloc(self, nbytes: int, stream: int = 0, owner: Owner = None) -> Block | None:
        """Allocate by the rule, or return None; see `Allocator.alloc`."""
        if nbytes <= 0:
            return self._empty(nbytes, stream, owner)
        need = self.rounded_size(nbytes)
        free, min_remainder, below = self._rule(need, stream)
        fit = free.take(need, below) or self._grow(need, stream, free)
        if fit is None:
            return None
        block = free.carve(fit, need, min_remainder, nbytes, stream, owner)
        self._took(block)
        return block

    def free(self, block: Block) -> tuple[int, ...]:
        """Free `block` at once; see `Allocator.free`."""
        self._gave(block)
        if block.home is not None:
            block.home.give(block)
        return ()
