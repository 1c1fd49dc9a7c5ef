"""Best fit with coalescing: the core that `pool`, `bfc`, `caching` and `scratchpad` share.

A segment is a contiguous range from the device, covered without gaps by blocks that form a ring in
address order. The segment itself closes the ring, and as it is never free, no block ever looks past an
end of it::

      ┌───────────────────────────────────────────────────────────────┐
      └─► Segment ◄─► live 256 ◄─► free 768 ◄─► live 512 ◄─► free 1024 ◄┘
                                      │                        │
                           FreeList: (768, address)  <  (1024, address)

Free blocks are kept in order of (size, address). `FreeList.take` gives the first that fits, which is the
smallest and among equals the lowest, and splits it when what would be left over is worth keeping.
`FreeList.give` merges with the next and the previous neighbour if they are free. The variants differ in
how they round, in when a remainder is worth keeping, and in where segments come from; those are numbers
that they pass in.

An order of the free blocks as a whole finds the same block as TensorFlow's 21 bins of powers of two: each
bin is in order of (size, address) itself, and every block of a bin is smaller than every one of the next.

One sorted list of integers, ``size << 64 | address``, serves as the order, with the blocks in a second list
beside it: comparing whole integers and shifting a list of pointers are so fast in CPython that a balanced
tree pays only above some 100,000 free blocks. A block that shrinks or grows and keeps its place is not moved.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

from devices.memory.blocks import FREE, LIVE, Block, Owner

__all__ = ["ANY_SIZE", "NEVER_SPLIT", "FreeList", "Segment"]

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
        whole = Block(address, size, 0, stream, None, FREE, home)
        self.prev = self.next = whole
        whole.prev = whole.next = self

    def blocks(self) -> Iterator[Block]:
        """Yield the blocks in address order."""
        block = self.next
        while block is not self:
            yield block
            block = block.next

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
    >>> a = free.take(300, min_remainder=1)
    >>> b = free.take(300, min_remainder=1)
    >>> free.give(a)
    >>> free.sizes()
    [300, 400]
    >>> free.give(b)  # merges with both neighbours
    >>> free.sizes()
    [1000]
    """

    __slots__ = ("_blocks", "_keys")

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._blocks: list[Block] = []  # parallel to the keys

    def __len__(self) -> int:
        return len(self._keys)

    def sizes(self) -> list[int]:
        """Return the sizes of the free blocks in ascending order, in bytes."""
        return [block.nbytes for block in self._blocks]

    def largest(self) -> Block | None:
        """Return the last block of the order, or None when there is none."""
        return self._blocks[-1] if self._blocks else None

    def first_fit(self, nbytes: int) -> Block | None:
        """Return the first block of at least `nbytes`, or None; it stays in the list."""
        index = bisect_left(self._keys, nbytes << _ADDRESS_BITS)
        return self._blocks[index] if index < len(self._keys) else None

    def blocks(self) -> list[Block]:
        """Return the free blocks in order."""
        return self._blocks[:]

    def put(self, block: Block) -> None:
        """Add a free block as it is."""
        block.key = key = block.nbytes << _ADDRESS_BITS | block.address
        index = bisect_left(self._keys, key)
        self._keys.insert(index, key)
        self._blocks.insert(index, block)

    def remove(self, block: Block) -> None:
        """Take `block` out of the list."""
        index = bisect_left(self._keys, block.key)
        del self._keys[index]
        del self._blocks[index]

    def take(
        self,
        nbytes: int,
        min_remainder: int,
        below: int = ANY_SIZE,
        requested: int = 0,
        stream: int = 0,
        owner: Owner = None,
    ) -> Block | None:
        """Return a live block of at least `nbytes` from the low end of the best fitting free one, or None.

        The live block is never one that lived before, so that handles of earlier owners of its range stay
        dead: it is a new object, or the one that stood for the range while it was free.

        Parameters
        ----------
        nbytes : int
            Bytes needed, rounded.
        min_remainder : int
            Split when at least so many bytes are left over; otherwise they go along.
        below : int
            Refuse when the best fit is of this size or more.
        requested, stream, owner
            Facts of the block to be returned.
        """
        keys = self._keys
        index = bisect_left(keys, nbytes << _ADDRESS_BITS)
        if index == len(keys):
            return None
        blocks = self._blocks
        free = blocks[index]
        left = free.nbytes - nbytes
        if left + nbytes >= below:
            return None
        if left < min_remainder:
            del keys[index]
            del blocks[index]
            free.requested = requested
            free.stream = stream
            free.owner = owner
            free.state = LIVE
            return free
        block = Block(free.address, nbytes, requested, stream, owner, LIVE, self)
        free.address = address = free.address + nbytes
        free.nbytes = left
        free.key = key = left << _ADDRESS_BITS | address
        if not index or keys[index - 1] < key:  # it keeps its place
            keys[index] = key
        else:
            place = bisect_left(keys, key, 0, index)
            del keys[index]
            del blocks[index]
            keys.insert(place, key)
            blocks.insert(place, free)
        block.prev = before = free.prev
        before.next = free.prev = block
        block.next = free
        return block

    def carve(
        self, free: Block, nbytes: int, min_remainder: int, requested: int, stream: int, owner: Owner
    ) -> Block:
        """Return a live block from the low end of `free`, a free block that is in no list, best fit or not.

        What is left over goes to this list.
        """
        alone = FreeList()
        alone.put(free)
        block = alone.take(nbytes, min_remainder, ANY_SIZE, requested, stream, owner)
        assert block is not None
        block.home = self
        for rest in alone.blocks():
            self.put(rest)
        return block

    def give(self, block: Block) -> None:
        """Add the range of `block`, which dies, merged with its free neighbours.

        The handle is left as it is: a neighbour that is free already stands for the merged range, the lower
        one of two, and only without one is a new block made.
        """
        keys = self._keys
        blocks = self._blocks
        block.state = FREE
        before = block.prev
        after = block.next
        if before.state:
            if after.state:  # nothing to merge with
                free = Block(block.address, block.nbytes, 0, block.stream, None, FREE, self)
                free.prev = before
                free.next = after
                before.next = after.prev = free
                free.key = key = free.nbytes << _ADDRESS_BITS | free.address
                index = bisect_left(keys, key)
                keys.insert(index, key)
                blocks.insert(index, free)
                return
            index = bisect_left(keys, after.key)
            free = after
            free.address = block.address
            free.nbytes += block.nbytes
            free.prev = before
            before.next = free
        else:
            if not after.state:
                index = bisect_left(keys, after.key)
                del keys[index]
                del blocks[index]
                before.nbytes += after.nbytes
                after = after.next
            index = bisect_left(keys, before.key)
            free = before
            free.nbytes += block.nbytes
            free.next = after
            after.prev = free
        # It has grown: its new place is the old one, or further back.
        free.key = key = free.nbytes << _ADDRESS_BITS | free.address
        if index + 1 == len(keys) or keys[index + 1] > key:
            keys[index] = key
        else:
            place = bisect_left(keys, key, index + 1) - 1
            del keys[index]
            del blocks[index]
            keys.insert(place, key)
            blocks.insert(place, free)
