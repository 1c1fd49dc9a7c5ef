"""Out of memory, read by a stranger."""

from __future__ import annotations

import pytest

from devices.memory import BfcAllocator, CachingAllocator, CountedAllocator, DeviceMemory, PoolAllocator
from sim.base.errors import OutOfMemoryError

MIB = 1 << 20


def message(
    allocator: PoolAllocator | BfcAllocator | CachingAllocator | CountedAllocator, nbytes: int
) -> str:
    with pytest.raises(OutOfMemoryError) as caught:
        allocator.alloc(nbytes, stream=3, owner="layer4/conv")
    assert caught.value.exit_status == 1
    return str(caught.value)


def test_whole_story() -> None:
    caching = CachingAllocator(64 * MIB, name="gpu0")
    caching.alloc(1000, owner="bias")  # a segment of 2 MiB
    freed = caching.alloc(20 * MIB, owner="embedding")
    for _ in range(2):
        caching.alloc(3 * MIB, owner="layer1")  # both in one segment of 20 MiB
    caching.free(freed)
    assert message(caching, 50 * MIB) == (
        "out of memory on gpu0 (caching allocator): 'layer4/conv' asks for 50 MiB on stream 3\n"
        "  limit            64 MiB\n"
        "  not reserved     42 MiB\n"
        "  in use           6.001 MiB in 3 blocks\n"
        "  reserved         22 MiB, of which free 16 MiB\n"
        "  largest free     14 MiB in one block\n"
        "  lost inside      24 B of what is in use: rounded up, or not worth splitting\n"
        "  largest holders  'layer1' 6 MiB in 2 blocks; 'bias' 1 KiB\n"
        "  what would help  less fragmentation: a new segment takes 50 MiB, and 16 MiB are cached in "
        "segments that a live block keeps from going back"
    )


def test_cached_for_another_stream() -> None:
    caching = CachingAllocator(20 * MIB)
    blocks = [caching.alloc(8 * MIB, stream=0) for _ in range(2)]  # of one segment
    caching.free(blocks[0])
    text = message(caching, 7 * MIB)
    assert "allocating on the stream that freed: a block that fits is cached for another stream" in text
    assert caching.alloc(7 * MIB, stream=0).address == 0


def test_too_little_memory() -> None:
    pool = PoolAllocator(100, name="npu0")
    for i, nbytes in enumerate((30, 10, 20, 15, 5, 1)):
        pool.alloc(nbytes, owner=f"t{i}")
    text = message(pool, 40)
    assert "what would help  at least 21 B more memory, or as much less in use" in text
    assert "'t0' 30 B; 't2' 20 B; 't3' 15 B; 't1' 10 B; 't4' 5 B\n" in text  # five, the largest first


def test_fragmentation() -> None:
    pool = PoolAllocator(100)
    blocks = [pool.alloc(10) for _ in range(10)]
    for block in blocks[::2]:
        pool.free(block)
    text = message(pool, 20)
    assert "less fragmentation: 50 B are left, and not in one piece" in text
    assert "largest free     10 B in one block" in text


def test_never() -> None:
    assert "by itself it is more than the limit" in message(PoolAllocator(100), 101)
    assert "by itself it is more than the limit" in message(BfcAllocator(MIB), MIB + 1)


def test_regions_apart() -> None:
    # Regions of 2, 4 and 8 MiB, of which the second is in use: 10 MiB are free, and 9 fit nowhere.
    bfc = BfcAllocator(16 * MIB, allow_growth=True)
    first, _, third = [bfc.alloc(n * MIB) for n in (2, 4, 8)]
    bfc.free(first)
    bfc.free(third)
    text = message(bfc, 9 * MIB)
    assert "one region (allow_growth off): 10 MiB are free, in 3 regions" in text
    assert "garbage_collection on" in text


def test_others_on_the_device_are_named() -> None:
    memory = DeviceMemory(10 * MIB)
    memory.malloc(7 * MIB)
    counted = CountedAllocator(memory)
    assert "other users      7 MiB of the device's 10 MiB" in message(counted, 4 * MIB)
