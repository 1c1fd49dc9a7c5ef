"""PyTorch's expandable segments and its rounding by divisions, by hand and by a literal reading."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from allocator_helpers import verify_segments
from examples import seeds

from devices.memory import Block, CachingAllocator
from sim.base.errors import InputError

KIB, MIB = 1 << 10, 1 << 20


def expandable(capacity: int | None = 200 * MIB, limit: int | None = None) -> CachingAllocator:
    return CachingAllocator(capacity, limit=limit, expandable_segments=True)


def test_a_segment_grows_by_pages_where_otherwise_each_tensor_has_its_own() -> None:
    """12, 14 and 16 MiB: three segments of 42 MiB in all, or three pages of 20 MiB with 18 MiB left over."""
    apart, together = CachingAllocator(200 * MIB), expandable()
    for allocator in (apart, together):
        blocks = [allocator.alloc(size * MIB) for size in (12, 14, 16)]
        sizes = [block.nbytes // MIB for block in blocks]
        assert sizes == [12, 14, 16]
    assert (apart.reserved, apart.device_mallocs) == (42 * MIB, 3)
    assert (together.reserved, together.device_mallocs) == (60 * MIB, 3)
    first = blocks[0].address
    assert first % (20 * MIB) == 0
    assert [block.address - first for block in blocks] == [0, 12 * MIB, 26 * MIB]
    # Freed, all of it is one block: a tensor of 40 MiB needs nothing more, and 18 MiB are there beside it.
    for block in blocks:
        together.free(block)
    assert together.alloc(40 * MIB).address == first
    assert together.largest_free() == 20 * MIB
    assert together.reserved == 60 * MIB
    verify_segments(together)


def test_pages_of_the_small_pool_have_two_mib_and_large_blocks_are_split_to_512_bytes() -> None:
    caching = expandable()
    small = [caching.alloc(MIB) for _ in range(3)]
    assert (caching.reserved, caching.device_mallocs) == (4 * MIB, 2)
    assert small[2].address - small[0].address == 2 * MIB
    large = caching.alloc(20 * MIB - 512)
    assert large.nbytes == 20 * MIB - 512
    assert caching.largest_free() == MIB  # of the small pool; 512 B are left of the large page
    verify_segments(caching)


def test_cached_pages_go_back_one_by_one_and_gaps_are_filled_first() -> None:
    """Four pages, a tensor from 30 to 50 MiB: of the pages before and behind it, one each goes back."""
    caching = expandable()
    a, b, c = (caching.alloc(size * MIB) for size in (30, 20, 30))
    base = a.address
    caching.free(a)
    caching.free(c)
    caching.empty_cache()
    assert (caching.reserved, caching.device_frees) == (40 * MIB, 2)
    free = [(span.address - base, span.nbytes) for span in caching.spans() if span.state == "free"]
    assert free == [(20 * MIB, 10 * MIB), (50 * MIB, 10 * MIB)]
    # 40 MiB: before b lie 20 MiB unmapped and 10 free, too few; behind it 10 free and all the rest.
    d = caching.alloc(40 * MIB)
    assert (d.address - base, caching.reserved) == (50 * MIB, 80 * MIB)
    # 25 MiB fit before it, with the first page mapped again.
    e = caching.alloc(25 * MIB)
    assert (e.address - base, caching.reserved) == (0, 100 * MIB)
    verify_segments(caching)
    for block in (b, d, e):
        caching.free(block)
    caching.empty_cache()
    assert (caching.reserved, caching.memory.used, list(caching.spans())) == (0, 0, [])


def test_running_out_unmaps_what_is_cached_on_other_streams_and_tries_again() -> None:
    caching = expandable(100 * MIB)
    caching.free(caching.alloc(60 * MIB, stream=1))
    assert caching.try_alloc(50 * MIB) is not None
    assert (caching.reserved, caching.retries, caching.synchronisations) == (60 * MIB, 1, 1)
    assert caching.try_alloc(60 * MIB) is None
    assert caching.retries == 2
    assert expandable(50 * MIB).fits_empty(40 * MIB)
    assert not expandable(50 * MIB).fits_empty(41 * MIB)  # three pages are more than the device has
    # A limit of one's own counts what a segment would take, as PyTorch does with a memory fraction.
    assert expandable(200 * MIB, limit=30 * MIB).try_alloc(12 * MIB) is not None
    assert expandable(200 * MIB, limit=10 * MIB).try_alloc(2 * MIB) is None


def test_not_together_with_a_max_split_size() -> None:
    with pytest.raises(InputError, match="expandable_segments and a max_split_size do not go together"):
        CachingAllocator(expandable_segments=True, max_split_size=40 * MIB)


def test_a_block_that_can_grow_counts_with_what_it_can_grow_by() -> None:
    """The last free block has all unmapped addresses behind it, so a hole that is larger itself is taken."""
    caching = expandable()
    hole, wall = caching.alloc(18 * MIB), caching.alloc(12 * MIB)
    assert caching.largest_free() == 10 * MIB
    caching.free(hole)
    small = caching.alloc(9 * MIB)
    assert small.address == hole.address
    assert wall.address == hole.address + 18 * MIB


# A literal reading


@dataclass(eq=False)
class Range:
    address: int
    size: int
    state: str  # "unmapped", "free", "live"
    segment: list[Range] = field(repr=False)


@dataclass
class Literal:
    """One stream of the large pool, every block in plain lists, every search from the beginning."""

    capacity: int
    page: int = 20 * MIB
    used: int = 0
    segments: list[list[Range]] = field(default_factory=list)
    reserved_addresses: int = 0

    def alloc(self, nbytes: int) -> Range | None:
        size = -(-nbytes // 512) * 512
        found = self.cached(size) or self.mapped(size)
        if found is None:
            self.trim()
            found = self.mapped(size)
        if found is None:
            return None
        if found.size - size >= 512:
            rest = Range(found.address + size, found.size - size, "free", found.segment)
            found.segment.insert(found.segment.index(found) + 1, rest)
            found.size = size
        found.state = "live"
        return found

    def after(self, block: Range) -> Range | None:
        i = block.segment.index(block) + 1
        return block.segment[i] if i < len(block.segment) else None

    def cached(self, size: int) -> Range | None:
        def reach(block: Range) -> int:
            behind = self.after(block)
            return block.size + (behind.size if behind and behind.state == "unmapped" else 0)

        fits = [b for s in self.segments for b in s if b.state == "free" and b.size >= size]
        fits.sort(key=lambda block: (block.size, block.address))
        if not fits:
            return None
        i = 0
        while i + 1 < len(fits) and reach(fits[i + 1]) < reach(fits[i]):
            i += 1
        return fits[i]

    def mapped(self, size: int) -> Range | None:
        block = self.candidate(size)
        while block.state == "unmapped" or block.size < size:
            target = block if block.state == "unmapped" else self.after(block)
            assert target is not None
            have = 0 if block.state == "unmapped" else block.size
            pages = -(-min(target.size, size - have) // self.page) * self.page
            if self.used + pages > self.capacity:
                return None
            self.used += pages
            if pages < target.size:
                rest = Range(target.address + pages, target.size - pages, "unmapped", target.segment)
                target.segment.insert(target.segment.index(target) + 1, rest)
                target.size = pages
            target.state = "free"
            block = self.merge(target)
        return block

    def candidate(self, size: int) -> Range:
        for segment in self.segments:
            for i, block in enumerate(segment):
                if block.state != "unmapped":
                    continue
                first = i - 1 if i and segment[i - 1].state == "free" else i
                room = 0
                for other in segment[first:]:
                    if other.state == "live":
                        break
                    room += other.size
                if room >= size:
                    return segment[first]
        whole = -(-(self.capacity + self.capacity // 8) // self.page) * self.page
        segment = []
        segment.append(Range(self.reserved_addresses, whole, "unmapped", segment))
        self.reserved_addresses += whole + self.page
        self.segments.append(segment)
        return segment[0]

    def merge(self, block: Range) -> Range:
        segment, i = block.segment, block.segment.index(block)
        if i + 1 < len(segment) and segment[i + 1].state == block.state:
            block.size += segment.pop(i + 1).size
        if i and segment[i - 1].state == block.state:
            segment[i - 1].size += block.size
            segment.pop(i)
            return segment[i - 1]
        return block

    def free(self, block: Range) -> None:
        block.state = "free"
        self.merge(block)

    def trim(self) -> None:
        for block in [b for s in self.segments for b in s if b.state == "free"]:
            start, end = block.address, block.address + block.size
            low, high = -(-start // self.page) * self.page, end // self.page * self.page
            if low >= high:
                continue
            parts = [(start, low, "free"), (low, high, "unmapped"), (high, end, "free")]
            new = [Range(a, b - a, state, block.segment) for a, b, state in parts if a < b]
            i = block.segment.index(block)
            block.segment[i : i + 1] = new
            self.used -= high - low
            self.merge(next(part for part in new if part.state == "unmapped"))
        self.segments = [s for s in self.segments if not (len(s) == 1 and s[0].state == "unmapped")]


@pytest.mark.parametrize("seed", seeds(30))
def test_same_places_as_a_literal_reading(seed: int) -> None:
    """Relative to the first address of each segment, as only addresses of new segments may differ."""
    draw = random.Random(seed)
    capacity = draw.choice([160, 230, 400]) * MIB
    caching, literal = expandable(capacity), Literal(capacity)
    live: list[tuple[Block, Range]] = []
    for _ in range(300):
        if live and draw.random() < 0.45:
            block, range_ = live.pop(draw.randrange(len(live)))
            caching.free(block)
            literal.free(range_)
        elif draw.random() < 0.02:
            caching.empty_cache()
            literal.trim()
        else:
            nbytes = draw.choice([draw.randint(MIB + 1, 8 * MIB), draw.randint(8 * MIB, 70 * MIB)])
            got, expected = caching.try_alloc(nbytes), literal.alloc(nbytes)
            assert (got is None) == (expected is None)
            if got is not None and expected is not None:
                assert got.nbytes == expected.size
                home = next(a for a, s in caching.segments.items() if a <= got.address < a + s.size)
                assert got.address - home == expected.address - expected.segment[0].address
                live.append((got, expected))
        assert caching.reserved == caching.memory.used == literal.used
        verify_segments(caching)


# Rounding


@pytest.mark.parametrize(
    ("divisions", "sizes"),
    [
        # Up to 512 B for each division, only to 512.
        (4, {1: 512, 1200: 1536, 2048: 2048, 2049: 2560, 3000: 3072, 5 * MIB: 5 * MIB, 5 * MIB + 1: 6 * MIB}),
        (1, {5 * MIB + 1: 5 * MIB + 512}),
        (2, {5 * MIB: 6 * MIB, 4 * MIB: 4 * MIB, 7 * MIB: 8 * MIB}),
        # The first named serves all below, `>` all above the last named; 8 MiB is not named: 512.
        (
            {"4MiB": 2, "16MiB": 4, ">": 8},
            {3 * KIB: 3 * KIB, 5 * MIB: 6 * MIB, 9 * MIB: 9 * MIB, 17 * MIB: 20 * MIB, 33 * MIB: 36 * MIB},
        ),
        ({"64GiB": 2}, {33 << 30: 48 << 30}),
        (None, {5 * MIB + 1: 5 * MIB + 512}),
    ],
)
def test_rounding_by_divisions(divisions: int | dict[str, int] | None, sizes: dict[int, int]) -> None:
    caching = CachingAllocator(roundup_power2_divisions=divisions)
    assert {nbytes: caching.rounded_size(nbytes) for nbytes in sizes} == sizes


@pytest.mark.parametrize(
    ("divisions", "says"),
    [
        (3, "3 divisions; should be a power of two"),
        (0, "0 divisions; should be a power of two"),
        (-4, "-4 divisions"),
        ({"3MiB": 2}, "3MiB: should be a power of two from 1MiB on"),
        ({"512KiB": 2}, "512KiB: should be a power of two from 1MiB on"),
        ({"8MiB": 2, "4MiB": 4}, "4MiB: should come before the larger sizes"),
        ({">": 2, "4MiB": 4}, "'>' stands for all larger sizes, and comes last"),
        ({"4": 2}, "'4' has no unit"),
    ],
)
def test_divisions_that_mean_nothing(divisions: int | dict[str, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        CachingAllocator(roundup_power2_divisions=divisions)
