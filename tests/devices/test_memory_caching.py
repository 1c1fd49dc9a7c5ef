"""PyTorch's caching allocator, op by op, against traces worked by hand."""

from __future__ import annotations

import random

import pytest
from allocator_helpers import free_ranges, place, verify_segments

from devices.memory import Block, CachingAllocator, DeviceMemory
from sim.base.errors import InputError, InvariantError, OutOfMemoryError

KIB, MIB = 1 << 10, 1 << 20


def test_small_pool() -> None:
    caching = CachingAllocator(64 * MIB)
    # 1 byte → 512, in a segment of 2 MiB = 2097152 at 0.
    a = caching.alloc(1)
    assert place(a) == (0, 512)
    assert (caching.reserved, caching.device_mallocs) == (2 * MIB, 1)
    # 512 KiB and 1 MiB (the largest small request) behind it.
    b = caching.alloc(512 * KIB)
    c = caching.alloc(MIB)
    assert place(b) == (512, 524288)
    assert place(c) == (524800, 1048576)
    # Left: [1573376, 2097152) = 523776 bytes, too few for 600 KiB = 614400: the next segment.
    d = caching.alloc(600 * KIB)
    assert place(d) == (2 * MIB, 614400)
    # 523264 leave 512 of the 523776: split. 523265 → 523776 fit exactly.
    e = caching.alloc(523264)
    assert place(e) == (1573376, 523264)
    assert free_ranges(caching)[0] == (2096640, 512)
    caching.free(e)
    assert place(caching.alloc(523265)) == (1573376, 523776)
    verify_segments(caching)


def test_large_pool() -> None:
    caching = CachingAllocator(256 * MIB)
    # 1 MiB + 1 → 1049088: large, below 10 MiB: a segment of 20 MiB = 20971520. 19922432 are left: split.
    a = caching.alloc(MIB + 1)
    assert place(a) == (0, 1049088)
    # 18 MiB + 512 = 18874880 leave 1047552, not more than 1 MiB: whole.
    b = caching.alloc(18 * MIB + 512)
    assert place(b) == (1049088, 19922432)
    # 10 MiB: a segment of its own, rounded up to 2 MiB: [20, 30) MiB.
    c = caching.alloc(10 * MIB)
    assert place(c) == (20 * MIB, 10 * MIB)
    # 11 MiB: a segment of 12; 1 MiB would be left, not more than that: whole.
    d = caching.alloc(11 * MIB)
    assert place(d) == (30 * MIB, 12 * MIB)
    # 10 MiB − 512 is below 10 MiB: 20 MiB, split. 10 MiB − 1 rounds to 10 MiB and is not.
    e = caching.alloc(10 * MIB - 512)
    assert place(e) == (42 * MIB, 10 * MIB - 512)
    assert caching.reserved == 62 * MIB
    f = caching.alloc(10 * MIB - 1)
    assert place(f) == (52 * MIB - 512, 10 * MIB + 512)  # best fit: what e left, whole
    assert caching.reserved == 62 * MIB
    assert caching.requested == sum(block.requested for block in (a, b, c, d, e, f))
    verify_segments(caching)


def test_best_fit_among_own_blocks_then_merge() -> None:
    caching = CachingAllocator(64 * MIB)
    blocks = [caching.alloc(n * KIB) for n in (4, 1, 2, 1, 2, 1)]  # at 0, 4, 5, 7, 8, 10 KiB
    for i in (0, 2, 4):
        caching.free(blocks[i])
    # Free: 4 KiB at 0, 2 KiB at 5 and at 8, and the rest. 2 KiB: the smallest, and the lowest of two.
    x = caching.alloc(2 * KIB)
    assert x.address == 5 * KIB
    # 1 KiB: the tightest is [8, 10), split.
    y = caching.alloc(KIB)
    assert y.address == 8 * KIB
    assert free_ranges(caching)[:2] == [(0, 4 * KIB), (9 * KIB, KIB)]
    # y merges with the KiB after it, then blocks[3] = [7, 8) with [8, 10).
    caching.free(y)
    caching.free(blocks[3])
    assert free_ranges(caching)[:2] == [(0, 4 * KIB), (7 * KIB, 3 * KIB)]
    for block in (x, blocks[1], blocks[5]):
        caching.free(block)
    assert free_ranges(caching) == [(0, 2 * MIB)]
    assert (caching.in_use, caching.reserved) == (0, 2 * MIB)  # cached, not given back


def test_pools_are_apart_for_each_stream_and_size() -> None:
    caching = CachingAllocator(64 * MIB)
    a = caching.alloc(4096, stream=0)
    caching.free(a)
    b = caching.alloc(4096, stream=1)
    assert (b.address, caching.reserved) == (2 * MIB, 4 * MIB)
    assert caching.alloc(4096, stream=0).address == 0
    # A large request does not take a small segment, though it is free and large enough.
    caching.free(b)
    assert caching.alloc(MIB + 512, stream=1).address == 4 * MIB


def test_miss_releases_whole_segments_then_fails() -> None:
    caching = CachingAllocator(64 * MIB)
    keep = caching.alloc(1)  # 2 MiB
    a, b = caching.alloc(20 * MIB), caching.alloc(20 * MIB)
    half = caching.alloc(2 * MIB)  # of 20 MiB, so 62 are reserved
    assert caching.reserved == 62 * MIB
    caching.free(a)
    caching.free(b)
    # 30 MiB: nothing cached is large enough, and 62 + 30 > 64. Synchronise, give both back: 22 + 30 ≤ 64.
    c = caching.alloc(30 * MIB)
    assert (caching.device_frees, caching.synchronisations, caching.reserved) == (2, 1, 52 * MIB)
    assert caching.device_mallocs == 5
    # 18 MiB are free, and cannot go back, as `half` holds their segment; 12 more are to be had, not 20.
    with pytest.raises(OutOfMemoryError) as caught:
        caching.alloc(20 * MIB, owner="logits")
    assert "'logits' asks for 20 MiB" in str(caught.value)
    assert caching.synchronisations == 2
    assert caching.alloc(12 * MIB).address == half.address + half.nbytes  # of the 18
    assert caching.reserved == 52 * MIB
    for block in (keep, half, c):
        caching.free(block)
    verify_segments(caching)


def test_limit_below_the_capacity() -> None:
    memory = DeviceMemory(64 * MIB)
    caching = CachingAllocator(memory, limit=32 * MIB)
    caching.alloc(20 * MIB)
    assert caching.try_alloc(14 * MIB) is None
    assert caching.alloc(12 * MIB).nbytes == 12 * MIB
    assert memory.used == 32 * MIB


def test_another_process_on_the_device() -> None:
    memory = DeviceMemory(64 * MIB)
    one, two = CachingAllocator(memory), CachingAllocator(memory)
    block = one.alloc(40 * MIB)
    one.free(block)
    # What one process caches is not there for the other; only its own cache can be given back.
    assert two.try_alloc(30 * MIB) is None
    one.empty_cache()
    assert two.alloc(30 * MIB).nbytes == 30 * MIB


def test_use_on_other_streams_defers_reuse() -> None:
    caching = CachingAllocator(64 * MIB)
    a = caching.alloc(4096)
    b = caching.alloc(4096)
    caching.record_use(a, 1)
    caching.record_use(a, 2)
    caching.record_use(a, 1)  # once is enough
    caching.record_use(a, 0)  # its own stream needs no event
    assert caching.free(a) == (1, 2)
    assert (caching.in_use, caching.waiting) == (4096, 4096)

    # Not free yet, neither for reuse nor for merging: [0, 4096) waits, the next request goes behind b.
    c = caching.alloc(4096)
    assert c.address == 8192
    assert caching.free(b) == ()
    assert [(span.address, span.state) for span in caching.spans()][:3] == [
        (0, "waiting"),
        (4096, "free"),
        (8192, "live"),
    ]
    verify_segments(caching)
    caching.event_done(a)
    assert caching.waiting == 4096
    caching.event_done(a)
    # Both reached: free, and merged with b's place.
    assert caching.waiting == 0
    assert free_ranges(caching)[0] == (0, 8192)
    assert caching.alloc(8192).address == 0
    verify_segments(caching)


def test_empty_block_is_not_mistaken_for_the_one_at_its_address() -> None:
    caching = CachingAllocator()
    empty, first = caching.alloc(0), caching.alloc(1)
    assert empty.address == first.address == 0
    caching.record_use(first, 1)
    caching.record_use(empty, 1)
    assert caching.free(empty) == ()
    assert caching.free(first) == (1,)


def test_synchronising_ends_every_wait_and_late_events_are_ignored() -> None:
    caching = CachingAllocator(32 * MIB)
    a = caching.alloc(20 * MIB)
    caching.record_use(a, 1)
    caching.record_use(a, 2)
    assert caching.free(a) == (1, 2)
    caching.event_done(a)
    # 20 + 14 > 32: the device is synchronised, which ends the wait; the segment goes back.
    b = caching.alloc(14 * MIB)
    assert (caching.waiting, caching.synchronisations, caching.device_frees) == (0, 1, 1)
    # The engine may still deliver the second event: it means nothing now, nor does it free b.
    caching.event_done(a)
    assert (caching.in_use, caching.reserved) == (b.nbytes, 14 * MIB)
    verify_segments(caching)


def test_oversize_blocks_are_neither_split_nor_lent_to_small_requests() -> None:
    caching = CachingAllocator(256 * MIB, max_split_size=32 * MIB)
    a = caching.alloc(64 * MIB)
    caching.free(a)
    # 20 MiB < 32: the oversize block does not serve it. 45 MiB: 64 < 45 + 20, whole.
    assert caching.alloc(20 * MIB).address == 64 * MIB
    b = caching.alloc(45 * MIB)
    assert place(b) == (0, 64 * MIB)
    caching.free(b)
    # 44 MiB: 64 ≥ 44 + 20, too much to spare: a segment of its own.
    assert place(caching.alloc(44 * MIB)) == (84 * MIB, 44 * MIB)
    # Below the limit a block is split as ever, when more than 1 MiB is left: 31 MiB take 32, whole.
    assert caching.alloc(31 * MIB).nbytes == 32 * MIB


def test_miss_releases_just_enough_oversize_blocks() -> None:
    caching = CachingAllocator(128 * MIB, max_split_size=32 * MIB)
    blocks = [caching.alloc(n * MIB) for n in (34, 40, 48)]
    for block in blocks:
        caching.free(block)
    # 64 MiB: 122 + 64 > 128. None of the cached is as large: the largest go until 64 are released, 48 and 40.
    c = caching.alloc(64 * MIB)
    assert (caching.device_frees, caching.synchronisations, caching.reserved) == (2, 1, 98 * MIB)
    caching.free(c)
    # 35 MiB of one that is too large for it (64 ≥ 35 + 20): 98 + 36 > 128. The tightest that is large enough
    # goes: 64; the 34 stay.
    caching.alloc(35 * MIB)
    assert (caching.device_frees, caching.synchronisations, caching.reserved) == (3, 2, 70 * MIB)


def test_new_segment_is_used_though_another_block_of_its_size_is_free() -> None:
    # An oversize block of 32 MiB is free at 0, and a request of 31 MiB must not take it: its segment, of the
    # same 32 MiB, is the one to be used.
    caching = CachingAllocator(128 * MIB, max_split_size=32 * MIB)
    a = caching.alloc(32 * MIB)
    caching.free(a)
    assert place(caching.alloc(31 * MIB)) == (32 * MIB, 32 * MIB)


def test_wrong_max_split_size_is_refused() -> None:
    for nbytes in (20 * MIB, 21 * MIB + 1, 1):
        with pytest.raises(InputError, match="max_split_size"):
            CachingAllocator(64 * MIB, max_split_size=nbytes)


def test_use_of_a_dead_block_is_a_bug() -> None:
    caching = CachingAllocator(64 * MIB)
    a = caching.alloc(512)
    caching.free(a)
    with pytest.raises(InvariantError, match="stream 1 uses"):
        caching.record_use(a, 1)
    b = caching.alloc(512)
    assert b.address == a.address
    with pytest.raises(InvariantError, match="freed again"):
        caching.free(a)  # though the range lives again, as b


class Literal:
    """The rules once more, in lists, for a device that never runs out."""

    def __init__(self) -> None:
        self.blocks: list[list[int]] = []  # [segment, address, size, stream, small, live]
        self.end = self.segments = 0

    def alloc(self, nbytes: int, stream: int) -> list[int]:
        need = max(512, (nbytes + 511) // 512 * 512)
        small = int(need <= MIB)
        pool = [b for b in self.blocks if b[3:] == [stream, small, 0] and b[2] >= need]
        if pool:
            block = min(pool, key=lambda b: (b[2], b[1]))
        else:
            large = 20 * MIB if need < 10 * MIB else -(-need // (2 * MIB)) * 2 * MIB
            size = 2 * MIB if small else large
            block = [self.segments, self.end, size, stream, small, 0]
            self.blocks.append(block)
            self.segments += 1
            self.end += size
        left = block[2] - need
        if left >= 512 if small else left > MIB:
            rest = [block[0], block[1] + need, left, stream, small, 0]
            self.blocks.insert(self.blocks.index(block) + 1, rest)
            block[2] = need
        block[5] = 1
        return block

    def free(self, block: list[int]) -> None:
        block[5] = 0
        i = next(i for i, other in enumerate(self.blocks) if other is block)
        for low in (i, i - 1):
            if low >= 0 and low + 1 < len(self.blocks):
                one, two = self.blocks[low : low + 2]
                if one[0] == two[0] and not one[5] and not two[5]:
                    one[2] += two[2]
                    del self.blocks[low + 1]


@pytest.mark.parametrize("seed", range(4))
def test_same_addresses_as_a_literal_reading(seed: int) -> None:
    rng = random.Random(seed)
    caching, literal = CachingAllocator(), Literal()
    live: list[tuple[Block, list[int]]] = []
    for _ in range(1500):
        if live and rng.random() < 0.48:
            block, other = live.pop(rng.randrange(len(live)))
            caching.free(block)
            literal.free(other)
        else:
            nbytes, stream = int(2 ** rng.uniform(4, 25)), rng.randrange(3)
            block, other = caching.alloc(nbytes, stream), literal.alloc(nbytes, stream)
            assert [block.address, block.nbytes] == other[1:3]
            live.append((block, other))
        assert caching.reserved == literal.end
    verify_segments(caching)
    assert free_ranges(caching) == [
        (b[1], b[2]) for b in sorted(literal.blocks, key=lambda b: b[1]) if not b[5]
    ]
