"""What `pool`, `bfc` and `caching` share beyond the free list: segments taken from the device."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator

from devices.memory.allocator import Allocator
from devices.memory.best_fit import FreeList, Segment
from devices.memory.blocks import FREE, Block, Span
from devices.memory.device_memory import DeviceMemory

__all__ = ["SegmentedAllocator"]


class SegmentedAllocator(Allocator):
    """An allocator that takes segments from the device and deals out blocks of them.

    A subclass implements `try_alloc`, `fits_empty` and `_free_lists`.
    """

    def __init__(
        self, capacity: int | DeviceMemory | None, name: str = "device", limit: int | None = None
    ) -> None:
        super().__init__(capacity, name, limit)
        self._segments: dict[int, Segment] = {}

    @abstractmethod
    def _free_lists(self) -> Iterable[FreeList]:
        """Return every free list, in a fixed order."""

    def free(self, block: Block) -> tuple[int, ...]:
        """Free `block` at once; see `Allocator.free`."""
        self._gave(block)
        if block.home is None:
            block.state = FREE
        else:
            block.home.give(block)
        return ()

    def largest_free(self) -> int:
        """Return the size of the largest free block, in bytes."""
        return max((block.nbytes for free in self._free_lists() if (block := free.largest())), default=0)

    def spans(self) -> Iterator[Span]:
        """Yield every block of every segment, in address order."""
        for address in sorted(self._segments):
            for block in self._segments[address].blocks():
                yield block.span(address)

    def _new_segment(self, nbytes: int, stream: int, home: FreeList) -> Segment | None:
        """Take `nbytes` from the device as a segment whose one block is in no list yet."""
        address = self.memory.malloc(nbytes)
        if address is None:
            return None
        segment = Segment(address, nbytes, stream, home)
        self._segments[address] = segment
        self.device_mallocs += 1
        return segment

    def _drop_segment(self, whole: Block) -> None:
        """Give a segment back to the device: the one that the free block `whole` covers."""
        segment = self._segments.pop(whole.address)
        assert whole.home is not None
        assert segment.whole() is whole
        whole.home.remove(whole)
        self.memory.free(segment.address, segment.size)
        self.device_frees += 1
        self._reserve(-segment.size)
