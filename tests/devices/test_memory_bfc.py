"""TensorFlow's allocator, op by op, against traces worked by hand.

Sizes in the comments are bytes unless they say KiB or MiB; ``[a, b)`` is a range of addresses.
"""

from __future__ import annotations

import bisect
import random
from typing import NamedTuple

import pytest
from allocator_helpers import free_ranges, place, verify_segments

from devices.memory import BfcAllocator, Block, DeviceMemory, read_allocator
from sim.base.errors import InputError, OutOfMemoryError

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def test_rounding_splitting_and_coalescing() -> None:
    # allow_growth: nothing is held before the first request; then a region of 2 MiB = 2097152 at 0.
    bfc = BfcAllocator(16 * MIB, allow_growth=True)
    assert (bfc.reserved, bfc.device_mallocs) == (0, 0)

    # 1000 → 1024. The chunk of 2097152 is more than 2 × 1024: split, low part used.
    a = bfc.alloc(1000)
    assert place(a) == (0, 1024)
    assert bfc.reserved == 2097152
    # 100 → 256, after it; then 512 KiB at 1280. Left: [525568, 2097152), 1571584.
    b = bfc.alloc(100)
    c = bfc.alloc(512 * KIB)
    assert place(b) == (1024, 256)
    assert place(c) == (1280, 524288)
    assert free_ranges(bfc) == [(525568, 1571584)]
    assert (bfc.in_use, bfc.requested) == (1024 + 256 + 524288, 1000 + 100 + 524288)

    # Freed: a hole of 1024 at 0, as b lives.
    bfc.free(a)
    assert free_ranges(bfc) == [(0, 1024), (525568, 1571584)]
    # 600 → 768. The tightest is the hole; 1024 < 2 × 768, so it is not split: 1024 are in use for 600.
    d = bfc.alloc(600)
    assert place(d) == (0, 1024)
    bfc.free(d)
    # 512: 1024 ≥ 2 × 512, split.
    e = bfc.alloc(512)
    assert place(e) == (0, 512)
    assert free_ranges(bfc) == [(512, 512), (525568, 1571584)]

    # b = [1024, 1280) merges with the hole before it: [512, 1280). Then e with the one after it: [0, 1280).
    bfc.free(b)
    assert free_ranges(bfc) == [(512, 768), (525568, 1571584)]
    bfc.free(e)
    assert free_ranges(bfc) == [(0, 1280), (525568, 1571584)]
    # c merges with both: the region is whole.
    bfc.free(c)
    assert free_ranges(bfc) == [(0, 2097152)]
    assert (bfc.in_use, bfc.requested, bfc.reserved) == (0, 0, 2097152)
    verify_segments(bfc)


def test_regions_double_and_never_merge_with_each_other() -> None:
    bfc = BfcAllocator(16 * MIB, allow_growth=True)
    # 1.5 MiB in the first region of 2 MiB: 2 < 2 × 1.5, whole. The next region is 4 MiB.
    a = bfc.alloc(3 * MIB // 2)
    assert place(a) == (0, 2 * MIB)
    # 2 MiB: 4 ≥ 2 × 2, split. Region [2, 6) MiB; the next is 8 MiB.
    b = bfc.alloc(2 * MIB)
    assert place(b) == (2 * MIB, 2 * MIB)
    assert bfc.reserved == 6 * MIB

    # Everything free: [0, 2) and [2, 6) touch, and stay apart.
    bfc.free(a)
    bfc.free(b)
    assert free_ranges(bfc) == [(0, 2 * MIB), (2 * MIB, 4 * MIB)]
    # So 5 MiB need a region: 8 MiB at 6, not split as 8 < 2 × 5 and 3 MiB are no 128. The next is 16 MiB.
    c = bfc.alloc(5 * MIB)
    assert place(c) == (6 * MIB, 8 * MIB)
    # 3 MiB: the tightest is [2, 6), whole as 4 < 2 × 3.
    d = bfc.alloc(3 * MIB)
    assert place(d) == (2 * MIB, 4 * MIB)
    # 16 − 14 = 2 MiB are left below the limit: no room for 3, but for 2, in a region of what is left.
    assert bfc.try_alloc(3 * MIB) is None
    e = bfc.alloc(2 * MIB)
    assert place(e) == (0, 2 * MIB)  # the free region comes first
    f = bfc.alloc(2 * MIB)
    assert place(f) == (14 * MIB, 2 * MIB)
    assert (bfc.reserved, bfc.device_mallocs) == (16 * MIB, 4)
    verify_segments(bfc)


def test_region_doubles_until_the_need_fits() -> None:
    bfc = BfcAllocator(64 * MIB, allow_growth=True)
    # 9 MiB: 2 → 4 → 8 → 16. As it had to double, the next is not doubled beforehand: 16 → 32 for 20 MiB.
    assert place(bfc.alloc(9 * MIB)) == (0, 16 * MIB)
    assert bfc.reserved == 16 * MIB
    assert place(bfc.alloc(20 * MIB)) == (16 * MIB, 32 * MIB)
    # The next is 32 again, of which the limit leaves 16.
    bfc.alloc(MIB)
    assert bfc.reserved == 64 * MIB


def test_ties_go_to_the_lowest_address() -> None:
    bfc = BfcAllocator(MIB)
    blocks = [bfc.alloc(256) for _ in range(7)]
    for i in (5, 1, 3):
        bfc.free(blocks[i])
    assert [bfc.alloc(256).address for _ in range(3)] == [256, 768, 1280]


def test_waste_of_128_mib_or_more_is_split_off() -> None:
    # Without growth, the one region is all there is, taken at the first request.
    bfc = BfcAllocator(GIB)
    assert bfc.reserved == 0
    # 600 MiB: 1024 < 2 × 600, but 424 MiB ≥ 128 MiB would be wasted: split.
    assert place(bfc.alloc(600 * MIB)) == (0, 600 * MIB)
    assert bfc.reserved == GIB
    # 300 MiB of the 424: 424 < 600, and 124 MiB < 128 MiB: whole.
    assert place(bfc.alloc(300 * MIB)) == (600 * MIB, 424 * MIB)
    # Exactly 128 MiB to spare is split off: 1024 MiB for 896.
    exact = BfcAllocator(GIB)
    assert exact.alloc(896 * MIB).nbytes == 896 * MIB


def test_refused_region_backs_off_by_a_tenth() -> None:
    # A device of 100 MiB of which another process holds 40: 100 MiB are refused, and so are
    #   0.9 × 104857600 = 94371840 (a multiple of 256), 84934656,
    #   76441190.4 → 76441344, 68797209.6 → 68797440;
    #   0.9 × 68797440 = 61917696 ≤ 60 MiB = 62914560.
    memory = DeviceMemory(100 * MIB)
    memory.malloc(40 * MIB)
    bfc = BfcAllocator(memory)
    bfc.alloc(MIB)
    assert bfc.reserved == 61917696
    assert bfc.device_mallocs == 1


def test_backing_off_is_computed_in_single_precision() -> None:
    # TensorFlow's 0.9f is 0.89999997615814: 4 GiB become 3865470464, a multiple of 256, where 0.9 in double
    # precision gives 3865470566.4, rounded up to 3865470720. The device has room for the former.
    bfc = BfcAllocator(DeviceMemory(3865470464), limit=4 * GIB)
    bfc.alloc(MIB)
    assert bfc.reserved == 3865470464


def test_backing_off_ends_at_the_need() -> None:
    memory = DeviceMemory(100 * MIB)
    memory.malloc(40 * MIB)
    bfc = BfcAllocator(memory)
    # 61917696 would be granted, and is less than 59.5 MiB = 62390272.
    assert bfc.try_alloc(59 * MIB + MIB // 2) is None
    assert bfc.alloc(59 * MIB).nbytes == 61917696  # whole: not twice as large, no 128 MiB to spare


def test_garbage_collection_gives_whole_regions_back() -> None:
    def fill(bfc: BfcAllocator) -> BfcAllocator:
        # Regions of 2 and 4 MiB, both free again; 2 of 8 MiB are left, and the next region is 8 MiB.
        for block in [bfc.alloc(2 * MIB), bfc.alloc(4 * MIB)]:
            bfc.free(block)
        assert bfc.reserved == 6 * MIB
        return bfc

    assert fill(BfcAllocator(8 * MIB, allow_growth=True)).try_alloc(6 * MIB) is None
    bfc = fill(BfcAllocator(8 * MIB, allow_growth=True, garbage_collection=True))
    assert bfc.alloc(6 * MIB).nbytes == 8 * MIB
    assert (bfc.device_mallocs, bfc.device_frees, bfc.synchronisations, bfc.reserved) == (3, 2, 1, 8 * MIB)

    # What cannot help is not done: 9 MiB exceed the limit anyway.
    bfc = fill(BfcAllocator(8 * MIB, allow_growth=True, garbage_collection=True))
    assert bfc.try_alloc(9 * MIB) is None
    assert bfc.device_frees == 0


def test_limit_below_capacity_and_rounding_of_it() -> None:
    # 1000 bytes of limit hold three times 256.
    bfc = BfcAllocator(4096, limit=1000)
    assert bfc.fits_empty(768)
    assert not bfc.fits_empty(769)
    assert bfc.alloc(700).nbytes == 768
    with pytest.raises(OutOfMemoryError, match=r"limit +1000 B"):
        bfc.alloc(1)


def test_without_a_limit_it_grows() -> None:
    bfc = BfcAllocator(None)
    bfc.alloc(1)
    assert bfc.reserved == 2 * MIB
    with pytest.raises(InputError, match="takes all memory"):
        BfcAllocator(None, allow_growth=False)


def test_contiguous_regions_are_one() -> None:
    """Regions of 2 and 4 MiB: apart, 5 MiB fit into neither; behind one another they do."""
    apart = BfcAllocator(16 * MIB, allow_growth=True)
    joined = BfcAllocator(16 * MIB, allow_growth=True, expandable_segments=True)
    for bfc in (apart, joined):
        first = bfc.alloc(MIB)
        second = bfc.alloc(2 * MIB)  # the region is 4 MiB; joined, it begins with the free MiB of the first
        assert bfc.reserved == 6 * MIB
        assert second.address - first.address == (2 if bfc is apart else 1) * MIB
        bfc.free(first)
        bfc.free(second)
    assert free_ranges(apart) == [(0, 2 * MIB), (2 * MIB, 4 * MIB)]
    assert free_ranges(joined) == [(0, 6 * MIB)]
    assert place(joined.alloc(5 * MIB)) == (0, 6 * MIB)  # less than twice the need: not split
    assert (joined.reserved, joined.device_mallocs) == (6 * MIB, 2)
    apart.alloc(5 * MIB)
    assert (apart.reserved, apart.device_mallocs) == (14 * MIB, 3)
    verify_segments(joined)


def test_contiguous_regions_come_in_pages_and_end_with_their_addresses() -> None:
    """With a limit of 5 MB: a page of 2 MiB, then the 2.768 MiB that are left, which take two pages."""
    bfc = BfcAllocator(16 * MIB, limit=5_000_000, allow_growth=True, expandable_segments=True)
    a = bfc.alloc(2 * MIB)
    b = bfc.alloc(2 * MIB)
    assert (bfc.reserved, place(a), place(b)) == (6 * MIB, (0, 2 * MIB), (2 * MIB, 2 * MIB))
    bfc.alloc(2 * MIB)
    assert bfc.try_alloc(256) is None
    verify_segments(bfc)


def test_collected_contiguous_regions_give_their_addresses_back() -> None:
    """One region of 2 MiB, free; 7 of 8 MiB are then asked for, and 6 more would be needed behind it."""
    bfc = BfcAllocator(8 * MIB, allow_growth=True, expandable_segments=True, garbage_collection=True)
    bfc.free(bfc.alloc(MIB))
    assert place(bfc.alloc(7 * MIB)) == (0, 8 * MIB)
    assert (bfc.device_frees, bfc.memory.used, bfc.reserved) == (1, 8 * MIB, 8 * MIB)
    verify_segments(bfc)


def test_fragmentation_fraction_decides_what_may_be_wasted() -> None:
    """A tenth of 1000 MiB: a chunk with 100 MiB more than the need is split, one with 99 is not."""
    for need, fraction, taken in ((700, 0.1, 700), (701, 0.1, 800), (701, None, 800), (671, None, 671)):
        bfc = BfcAllocator(1000 * MIB, fragmentation_fraction=fraction)
        big, wall = bfc.alloc(800 * MIB), bfc.alloc(200 * MIB)
        bfc.free(big)
        assert (bfc.alloc(need * MIB).nbytes, wall.nbytes) == (taken * MIB, 200 * MIB)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, float("nan")])
def test_fragmentation_fraction_is_a_part(fraction: float) -> None:
    with pytest.raises(InputError, match=r"fragmentation_fraction: should be "):
        read_allocator({"name": "bfc", "fragmentation_fraction": fraction})
    with pytest.raises(InputError, match="a fragmentation_fraction is of the limit, and there is none"):
        BfcAllocator(fragmentation_fraction=0.5)


class Chunk(NamedTuple):
    """A range of the reference below: (region, address, size, live)."""

    region: int
    address: int
    nbytes: int
    live: bool


class BinnedReference:
    """The same rules in the most literal way: lists, 21 bins searched upward, no cleverness."""

    def __init__(self, limit: int, growth: bool) -> None:
        self.limit, self.next_region = limit, min(limit, 2 * MIB) if growth else limit
        self.chunks: list[Chunk] = []
        self.held = self.regions = 0

    @staticmethod
    def bin_of(nbytes: int) -> int:
        return min(20, (nbytes // 256).bit_length() - 1)

    def find(self, need: int) -> Chunk | None:
        free = [chunk for chunk in self.chunks if not chunk.live]
        for number in range(self.bin_of(need), 21):
            in_bin = [chunk for chunk in free if self.bin_of(chunk.nbytes) == number]
            for chunk in sorted(in_bin, key=lambda chunk: (chunk.nbytes, chunk.address)):
                if chunk.nbytes >= need:
                    return chunk
        return None

    def alloc(self, nbytes: int) -> Chunk | None:
        need = (nbytes + 255) // 256 * 256
        chunk = self.find(need)
        if chunk is None:
            if need > self.limit - self.held:
                return None
            doubled = need > self.next_region
            while need > self.next_region:
                self.next_region *= 2
            size = min(self.next_region, self.limit - self.held)
            self.next_region *= 1 if doubled else 2
            chunk = Chunk(self.regions, self.held, size, False)
            self.chunks.append(chunk)
            self.held += size
            self.regions += 1
        self.chunks.remove(chunk)
        region, address, size, _ = chunk
        if size >= 2 * need or size - need >= 128 * MIB:
            bisect.insort(self.chunks, Chunk(region, address + need, size - need, False))
            size = need
        taken = Chunk(region, address, size, True)
        bisect.insort(self.chunks, taken)
        return taken

    def free(self, chunk: Chunk) -> None:
        i = self.chunks.index(chunk)
        self.chunks[i] = merged = chunk._replace(live=False)
        for j in (i + 1, i - 1):  # the next neighbour, then the previous one
            if 0 <= j < len(self.chunks):
                other = self.chunks[j]
                if not other.live and other.region == merged.region:
                    del self.chunks[j]
                    where = min(i, j)
                    joined = (min(merged.address, other.address), merged.nbytes + other.nbytes)
                    self.chunks[where] = merged = Chunk(merged.region, *joined, False)


@pytest.mark.parametrize("growth", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_same_addresses_as_a_literal_reading_with_bins(growth: bool, seed: int) -> None:
    rng = random.Random(seed)
    bfc, reference = BfcAllocator(256 * MIB, allow_growth=growth), BinnedReference(256 * MIB, growth)
    live: list[tuple[Block, Chunk]] = []
    failed = 0
    for _ in range(1500):
        if live and rng.random() < 0.47:
            block, chunk = live.pop(rng.randrange(len(live)))
            bfc.free(block)
            reference.free(chunk)
        else:
            nbytes = int(2 ** rng.uniform(4, 26))
            got, expected = bfc.try_alloc(nbytes), reference.alloc(nbytes)
            assert (got is None) == (expected is None)
            if got is not None and expected is not None:
                assert place(got) == (expected.address, expected.nbytes)
                live.append((got, expected))
            else:
                failed += 1
        assert bfc.reserved == reference.held
    verify_segments(bfc)
    assert failed > 5  # it ran full, too
