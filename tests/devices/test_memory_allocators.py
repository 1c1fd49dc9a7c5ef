"""What holds for every allocator, and the plain ones: pool, counted, planned, the device's own memory."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from allocator_helpers import verify_segments
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from devices.memory import (
    Allocator,
    BfcAllocator,
    Block,
    CachingAllocator,
    CountedAllocator,
    DeviceMemory,
    MemoryEvent,
    Owner,
    PlannedAllocator,
    PoolAllocator,
    ScratchpadAllocator,
    allocators,
    make_allocator,
    read_allocator,
)
from devices.memory.best_fit import SegmentedAllocator
from sim.base import plugins
from sim.base.errors import InfeasibleError, InputError, InvariantError, OutOfMemoryError, UnknownNameError

MIB = 1 << 20

# Name → (maker, alignment of every address and size).
MAKERS: dict[str, tuple[Callable[[], Allocator], int]] = {
    "pool": (lambda: PoolAllocator(64 * MIB), 1),
    "pool, aligned": (lambda: PoolAllocator(64 * MIB, alignment=256), 256),
    "pool, unlimited": (PoolAllocator, 1),
    "bfc": (lambda: BfcAllocator(64 * MIB), 256),
    "bfc, growth": (lambda: BfcAllocator(64 * MIB, allow_growth=True), 256),
    "bfc, collected": (lambda: BfcAllocator(64 * MIB, allow_growth=True, garbage_collection=True), 256),
    "caching": (lambda: CachingAllocator(64 * MIB), 512),
    "caching, oversize": (lambda: CachingAllocator(64 * MIB, max_split_size=21 * MIB), 512),
    "counted": (lambda: CountedAllocator(64 * MIB), 1),
    "scratchpad": (lambda: ScratchpadAllocator(64 * MIB), 64),
}

# A run: positive numbers allocate so many bytes (on the stream given), negative ones free a live block.
sizes = st.one_of(
    st.integers(1, 4096), st.integers(1, 24).map(lambda n: n * MIB), st.integers(1, 30 * MIB), st.just(0)
)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), sizes, st.integers(0, 2)),
        st.tuples(st.just("free"), st.integers(0, 1 << 16), st.just(0)),
        st.tuples(st.just("use"), st.integers(0, 1 << 16), st.integers(0, 2)),
        st.tuples(st.just("event"), st.integers(0, 1 << 16), st.just(0)),
    ),
    max_size=100,
)


@pytest.mark.parametrize("kind", MAKERS)
@examples(100)
@given(run=operations)
def test_invariants(kind: str, run: list[tuple[str, int, int]]) -> None:
    make, alignment = MAKERS[kind]
    allocator = make()
    live: list[Block] = []
    awaited: list[Block] = []
    for what, number, stream in run:
        if what == "alloc":
            block = allocator.try_alloc(number, stream, owner=len(live))
            if block is not None:
                assert block.nbytes >= block.requested == number
                assert block.address % alignment == block.nbytes % alignment == 0
                live.append(block)
            else:
                # "Not now": never refused while there is plenty of room for any rounding and any splitting.
                assert allocator.limit is not None
                assert 4 * number + 4 * allocator.in_use > allocator.limit - allocator.waiting
        elif what == "free" and live:
            block = live.pop(number % len(live))
            awaited.extend(block for _ in allocator.free(block))
        elif what == "use" and live:
            allocator.record_use(live[number % len(live)], stream)
        elif what == "event" and awaited:
            allocator.event_done(awaited.pop(number % len(awaited)))
        verify(allocator, live)
    for block in live:
        awaited.extend(block for _ in allocator.free(block))
    for block in awaited:
        allocator.event_done(block)
    verify(allocator, [])
    verify_nothing_leaked(allocator)


@pytest.mark.parametrize("kind", MAKERS)
def test_invariants_of_a_long_run(kind: str) -> None:
    make, _ = MAKERS[kind]
    allocator, rng = make(), random.Random(kind)
    live: list[Block] = []
    awaited: list[Block] = []
    refused = 0
    for step in range(4000):
        # Phases that fill the device up, and phases that drain it.
        if live and rng.random() < (0.35 if step // 500 % 2 else 0.6):
            block = live.pop(rng.randrange(len(live)))
            if rng.random() < 0.2:
                allocator.record_use(block, 1)
            awaited.extend(block for _ in allocator.free(block))
        else:
            taken = allocator.try_alloc(int(2 ** rng.uniform(0, 24)), rng.randrange(2))
            refused += taken is None
            live.extend([taken] if taken else [])
        while len(awaited) > 5:
            allocator.event_done(awaited.pop(0))
        if step % 100 == 0:
            verify(allocator, live)
    assert refused > 20 or allocator.limit is None
    for block in live:
        awaited.extend(block for _ in allocator.free(block))
    for block in awaited:
        allocator.event_done(block)
    verify_nothing_leaked(allocator)


def verify(allocator: Allocator, live: list[Block]) -> None:
    """Assert that the live blocks are where they should be, and that the counters say so."""
    ranges = sorted((block.address, block.address + block.nbytes) for block in live if block.nbytes)
    for (_, end), (begin, _) in itertools.pairwise(ranges):
        assert end <= begin, "two live blocks share a byte"
    assert allocator.in_use == sum(block.nbytes for block in live)
    assert allocator.requested == sum(block.requested for block in live)
    assert allocator.requested <= allocator.in_use
    assert allocator.in_use + allocator.waiting <= allocator.reserved
    assert allocator.held <= allocator.memory.used
    if allocator.limit is not None:
        assert allocator.reserved <= allocator.limit
    spans = tuple(allocator.spans())
    assert [(s.address, s.address + s.nbytes) for s in spans if s.state == "live"] == ranges
    assert list(spans) == sorted(spans)
    largest = max((span.nbytes for span in spans if span.state == "free"), default=0)
    assert allocator.largest_free() == largest
    if isinstance(allocator, SegmentedAllocator):
        verify_segments(allocator)


def verify_nothing_leaked(allocator: Allocator) -> None:
    """Assert that, with everything freed, every segment is in one piece and goes back whole."""
    assert allocator.in_use == allocator.requested == allocator.waiting == 0
    spans = tuple(allocator.spans())
    assert all(span.state == "free" and span.address == span.segment for span in spans)
    assert len({span.segment for span in spans}) == len(spans)
    if isinstance(allocator, CachingAllocator):
        allocator.empty_cache()
        assert allocator.reserved == allocator.memory.used == 0
        assert allocator.device_mallocs == allocator.device_frees
    if isinstance(allocator, CountedAllocator):
        assert allocator.reserved == allocator.memory.used == 0


@pytest.mark.parametrize("kind", MAKERS)
def test_empty_blocks_take_no_room_and_negative_sizes_are_refused(kind: str) -> None:
    allocator = MAKERS[kind][0]()
    block = allocator.alloc(0)
    assert (block.nbytes, allocator.in_use) == (0, 0)
    assert allocator.free(block) == ()
    with pytest.raises(InputError, match="-1 bytes"):
        allocator.alloc(-1)


@pytest.mark.parametrize("kind", MAKERS)
def test_second_free_is_a_bug(kind: str) -> None:
    allocator = MAKERS[kind][0]()
    for nbytes in (0, 1000):
        block = allocator.alloc(nbytes, owner="twice")
        before = (block.address, block.nbytes)
        allocator.free(block)
        assert (block.address, block.nbytes) == before  # merged or not, the handle still tells what it was
        again = allocator.alloc(nbytes)  # the same range lives again, under another handle
        with pytest.raises(InvariantError, match="freed again"):
            allocator.free(block)
        assert allocator.in_use == again.nbytes
        allocator.free(again)


@pytest.mark.parametrize("kind", [kind for kind in MAKERS if kind != "pool, unlimited"])
def test_never_is_known_beforehand(kind: str) -> None:
    fits = MAKERS[kind][0]()
    assert fits.fits_empty(64 * MIB)
    assert fits.alloc(64 * MIB).nbytes == 64 * MIB
    never = MAKERS[kind][0]()
    assert not never.fits_empty(64 * MIB + 1)
    with pytest.raises(OutOfMemoryError):
        never.alloc(64 * MIB + 1)


def test_pool_is_exact() -> None:
    pool = PoolAllocator(100)
    a, b, c = pool.alloc(10), pool.alloc(20), pool.alloc(30)
    assert [block.address for block in (a, b, c)] == [0, 10, 30]
    pool.free(a)
    pool.free(b)
    # A hole of 30 at 0, and 40 at 60: the tighter one, and the rest of it stays.
    assert pool.alloc(25).address == 0
    assert pool.alloc(5).address == 25
    assert pool.alloc(40).address == 60
    assert (pool.in_use, pool.reserved) == (100, 100)
    assert pool.try_alloc(1) is None


def test_pool_limits_are_for_each_group() -> None:
    pool = PoolAllocator(
        1000, limits={"bert": 300, "resnet": 900}, group_of=lambda owner: str(owner).partition("/")[0]
    )
    a = pool.alloc(200, owner="bert/q")
    assert pool.try_alloc(101, owner="bert/k") is None
    assert pool.alloc(100, owner="bert/k").address == 200
    pool.alloc(600, owner="resnet/conv1")
    # Overcommitted: resnet may hold 900, and only 100 are left.
    assert pool.try_alloc(200, owner="resnet/conv2") is None
    pool.free(a)
    assert pool.alloc(200, owner="resnet/conv2").address == 0
    assert pool.alloc(100, owner="other").address == 900  # no limit of its own
    assert not pool.fits_empty(301, owner="bert/v")
    with pytest.raises(
        OutOfMemoryError, match="a higher limit for 'bert': it holds 100 B of the 300 B it may"
    ):
        pool.alloc(250, owner="bert/v")


def test_virtual_devices_are_apart() -> None:
    both = make_allocator("bfc", 8 * MIB, name="gpu0", virtual_devices={"a": 2 * MIB, "b": 6 * MIB})
    assert both.alloc(2 * MIB, owner="a/x").address == 0
    assert both.alloc(6 * MIB, owner="b/x").address == 2 * MIB
    with pytest.raises(OutOfMemoryError, match="gpu0/a"):
        both.alloc(1, owner="a/y")
    with pytest.raises(InfeasibleError, match=r"gpu0 has 8 MiB; its virtual devices a, b need 9 MiB"):
        make_allocator("pool", 8 * MIB, name="gpu0", virtual_devices={"a": 4 * MIB, "b": 5 * MIB})


def test_counted_counts_what_the_engine_charges() -> None:
    counted = CountedAllocator(1100, alignment=256)
    blocks = [counted.alloc(n) for n in (1, 256, 257)]
    assert [block.nbytes for block in blocks] == [256, 256, 512]
    with pytest.raises(OutOfMemoryError, match="180 B more memory"):  # 76 B are left, and 1 B takes 256
        counted.alloc(1)
    counted.free(blocks[1])
    assert (counted.device_mallocs, counted.device_frees, counted.synchronisations) == (3, 1, 1)
    # A counter decides, not where the bytes are: there is no fragmentation.
    assert counted.reserved == counted.in_use == 768


def test_device_memory_gives_ranges_of_the_same_size_again() -> None:
    memory = DeviceMemory(10_000)
    addresses = [memory.malloc(1000) for _ in range(3)]
    assert addresses == [0, 1024, 2048]
    memory.free(2048, 1000)
    memory.free(0, 1000)
    assert memory.malloc(500) == 3072  # another size: addresses grow
    assert [memory.malloc(1000) for _ in range(3)] == [0, 2048, 3584]
    with pytest.raises(InvariantError, match="never gave out 500 bytes"):
        memory.free(0, 500)
    with pytest.raises(InputError, match="-1 bytes"):
        DeviceMemory(-1)


def alloc(owner: str, nbytes: int) -> MemoryEvent:
    return MemoryEvent("alloc", owner, nbytes)


def test_planned_waits_for_its_place() -> None:
    #  6 ┌───┐┌───┐        a lives at steps 0–1, b at 1–3, c at 3–4: c goes where a was.
    #    │ a ││ c │
    #  0 └┌──┴┴─┐─┘
    #     │  b  │
    events = [alloc("a", 4), alloc("b", 6), MemoryEvent("free", "a"), alloc("c", 5), MemoryEvent("free", "b")]
    planned = PlannedAllocator(events, 1000)
    assert (planned.reserved, planned.device_mallocs) == (11, 1)
    for _ in range(2):  # and once more, in the next iteration
        assert planned.try_alloc(5, owner="c") is None  # it is not its turn
        a, b = planned.alloc(4, owner="a"), planned.alloc(6, owner="b")
        assert planned.try_alloc(5, owner="c") is None
        with pytest.raises(OutOfMemoryError, match="it puts 'c' where 'a' lies before it"):
            planned.alloc(5, owner="c")
        planned.free(a)
        c = planned.alloc(5, owner="c")
        assert (a.address, b.address, c.address) == (6, 0, 6)
        planned.free(b)
        assert [(s.address, s.nbytes, s.owner) for s in planned.spans()] == [(0, 6, None), (6, 5, "c")]
        planned.free(c)
    assert planned.in_use == 0
    with pytest.raises(InputError, match=r"no place for 'bb'; did you mean 'b'\?"):
        planned.alloc(1, owner="bb")
    with pytest.raises(InputError, match="asks for 7 bytes, and 6 were planned"):
        planned.alloc(7, owner="b")
    with pytest.raises(OutOfMemoryError, match="takes 11 B of 10 B left, before time 0"):
        PlannedAllocator(events, 10)


def test_planned_gives_an_owner_its_tensors_in_turn() -> None:
    planned = PlannedAllocator([alloc("x", 8), alloc("x", 4)])
    assert [planned.alloc(n, owner="x").address for n in (8, 4)] == [0, 8]
    # One without elements takes no turn.
    planned = PlannedAllocator([alloc("x", 0), MemoryEvent("free", "x"), alloc("x", 8)])
    assert [planned.alloc(n, owner="x").nbytes for n in (0, 8)] == [0, 8]


@pytest.mark.parametrize("kind", [kind for kind in allocators() if kind != "planned"])
def test_every_allocator_is_made_by_its_name(kind: str) -> None:
    allocator = make_allocator(kind, MIB, name="gpu7")
    assert (allocator.kind, allocator.name, allocator.limit) == (kind, "gpu7", MIB)
    with pytest.raises(OutOfMemoryError, match=f"out of memory on gpu7 \\({kind} allocator\\)"):
        allocator.alloc(2 * MIB)


class Doubling(PoolAllocator):
    """Twice of what is asked for: what somebody else's package may hold."""

    kind = "doubling"

    def __init__(self, capacity: int | None = None, *, factor: int = 2, name: str = "device") -> None:
        super().__init__(capacity, name=name)
        self.factor = factor

    def try_alloc(self, nbytes: int, stream: int = 0, owner: Owner = None) -> Block | None:
        return super().try_alloc(self.factor * nbytes, stream, owner)


def test_an_allocator_that_does_not_say_its_kind_is_called_by_its_class() -> None:
    class Stingy(Allocator):
        def try_alloc(self, nbytes: int, stream: int = 0, owner: Owner = None) -> None:
            return None

        def free(self, block: Block) -> tuple[int, ...]:
            return ()

        def spans(self) -> Iterator[Any]:
            yield from ()

    with pytest.raises(OutOfMemoryError, match=r"out of memory on gpu7 \(Stingy allocator\)"):
        Stingy(100, "gpu7").alloc(1)


@pytest.fixture
def doubling() -> Iterator[None]:
    plugins.register("sim.allocators", "doubling", Doubling)
    yield
    plugins.unregister("sim.allocators", "doubling")


@pytest.mark.usefixtures("doubling")
def test_an_allocator_of_another_package_is_chosen_by_name_with_its_options() -> None:
    assert "doubling" in allocators()
    assert make_allocator("doubling", 100).alloc(10).nbytes == 20
    spec = read_allocator({"name": "doubling", "factor": 3})
    assert make_allocator(spec.allocator, 100, **spec.options).alloc(10).nbytes == 30
    with pytest.raises(InputError, match=r"factor: should be a whole number, not 'x'"):
        read_allocator({"name": "doubling", "factor": "x"})


@pytest.mark.parametrize("wrong", [lambda: None, 5, lambda size, *, name: None, lambda capacity: None])
def test_what_makes_no_allocator_is_told_so(wrong: object) -> None:
    plugins.register("sim.allocators", "wrong", wrong)
    try:
        with pytest.raises(InputError, match=r"the allocator 'wrong' is none: it should be"):
            make_allocator("wrong", 100)
    finally:
        plugins.unregister("sim.allocators", "wrong")


def test_options_of_allocators_are_checked() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'caching'"):
        make_allocator("cachin")
    with pytest.raises(
        InputError, match=r"the bfc allocator has no option 'growth'; did you mean 'allow_growth'"
    ):
        make_allocator("bfc", growth=True)
    with pytest.raises(InputError, match="a scratchpad is small; give its capacity"):
        make_allocator("scratchpad")
    with pytest.raises(InputError, match="needs to know what will be asked for"):
        make_allocator("planned")
    for name in ("pool", "counted", "planned", "scratchpad"):
        with pytest.raises(InputError, match="alignment: should be greater than or equal to 1, not '0B'"):
            read_allocator({"name": name, "alignment": "0B"})


@pytest.mark.parametrize("seed", range(3))
def test_pool_gives_the_addresses_of_a_literal_best_fit(seed: int) -> None:
    """The rule once more, on a plain list: of the free ranges that fit the smallest, then the lowest."""
    rng = random.Random(seed)
    pool, free = PoolAllocator(1 << 18), [(0, 1 << 18)]  # address, size; neighbours are never both free
    live: list[Block] = []
    refused = 0
    for _ in range(1500):
        if live and rng.random() < 0.48:
            block = live.pop(rng.randrange(len(live)))
            pool.free(block)
            free = sorted([*free, (block.address, block.nbytes)])
            merged = free[:1]
            for address, size in free[1:]:
                last, length = merged[-1]
                if last + length == address:
                    merged[-1] = (last, length + size)
                else:
                    merged.append((address, size))
            free = merged
        else:
            nbytes = rng.choice([1000, 5000, int(2 ** rng.uniform(0, 17))])
            taken = pool.try_alloc(nbytes)
            fitting = [(size, address) for address, size in free if size >= nbytes]
            refused += taken is None
            assert (taken is None) == (not fitting)
            if taken is not None:
                size, address = min(fitting)
                assert (taken.address, taken.nbytes) == (address, nbytes)
                free.remove((address, size))
                free = sorted([*free, *([(address + nbytes, size - nbytes)] if size > nbytes else [])])
                live.append(taken)
    assert refused
    assert [(s.address, s.nbytes) for s in pool.spans() if s.state == "free"] == free
