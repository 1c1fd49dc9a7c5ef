"""What must hold of an allocator of segments between any two operations."""

from __future__ import annotations

from devices.memory import Allocator, Block
from devices.memory.best_fit import SegmentedAllocator
from devices.memory.device_memory import FREE, LIVE, UNMAPPED, WAITING


def verify_segments(allocator: SegmentedAllocator) -> None:
    """Assert that blocks cover their segments, merged, and that free lists and counters agree with them."""
    listed = {id(block) for free in allocator._free_lists() for block in free.blocks()}
    sums = {FREE: 0, LIVE: 0, WAITING: 0, UNMAPPED: 0}
    requested = found = held = 0
    for segment in allocator.segments.values():
        end = segment.address
        held += segment.size
        before: Block = segment
        for block in segment.blocks():
            assert block.address == end, f"{block!r} does not begin where its neighbour ends, {end:#x}"
            assert block.nbytes > 0
            assert block.prev is before, f"{block!r} and {before!r} disagree on being neighbours"
            assert block.state or before.state, f"{before!r} and {block!r} are free neighbours, unmerged"
            assert (id(block) in listed) == (not block.state), f"{block!r}: is it free?"
            found += id(block) in listed
            sums[block.state] += block.nbytes
            requested += block.requested if block.state == LIVE else 0
            end += block.nbytes
            before = block
        assert end == segment.address + segment.size, f"{segment!r} is not covered to its end"
    assert found == len(listed), "a free list holds a block of no segment"
    counted = (allocator.in_use, allocator.waiting, allocator.requested)
    assert counted == (sums[LIVE], sums[WAITING], requested)
    held -= sums[UNMAPPED]
    assert allocator.in_use + allocator.waiting <= allocator.reserved <= held


def place(block: Block) -> tuple[int, int]:
    """Return where a block is, and its size."""
    return block.address, block.nbytes


def free_ranges(allocator: Allocator) -> list[tuple[int, int]]:
    """Return (address, size) of what is free, in address order."""
    return [(span.address, span.nbytes) for span in allocator.spans() if span.state == "free"]
