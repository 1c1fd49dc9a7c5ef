"""One arena, split exactly, with limits for its sharers.

The plainest allocator with addresses: best fit, no rounding beyond an alignment, remainders of any size
kept, free neighbours merged. With the default alignment of one byte, bytes in use equal bytes requested: the
ideal for comparison with the others. Two ways to share a device:

* *limits*: models share one arena, and each may hold a limited number of bytes (the limits may add up to
  more than there is);
* `VirtualDevices`: the device's memory is cut into named parts, each with an allocator of its own, as
  TensorFlow's logical devices with a `memory_limit` are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from devices.describe.field_types import Alignment, Sizes
from devices.memory.allocator import COUNTERS, Allocator
from devices.memory.best_fit import ANY_SIZE, FreeList, SegmentedAllocator
from devices.memory.device_memory import ALIGNMENT_BYTES, Block, DeviceMemory, Groups, Owner, Span, round_up
from sim.base.errors import InfeasibleError, InputError
from sim.base.units import format_bytes

UNLIMITED_ARENA_BYTES = 1 << 61
"""Size of an unlimited arena: more than any request."""


class PoolAllocator(SegmentedAllocator):
    """One arena, allocated by best fit.

    Parameters
    ----------
    capacity : int, DeviceMemory or None
        Bytes of the arena (all that the device has left); None: unlimited.
    alignment : int
        Number of bytes of which the address and size of every block are multiples.
    limits : mapping, optional
        Group → most bytes its owners may hold together. A group without a limit may use all there is.
    group_of : callable, optional
        Owner → group; by default every owner is its own group.
    name : str
        The device, in error messages.

    Notes
    -----
    `reserved` is the highest address used so far: as much as the arena would have had to be.

    Examples
    --------
    >>> pool = PoolAllocator(1000, limits={"bert": 400})
    >>> pool.try_alloc(500, owner="bert") is None, pool.alloc(500, owner="resnet").address
    (True, 0)
    """

    kind = "pool"
    may_synchronise = False

    def __init__(
        self,
        capacity: int | DeviceMemory | None = None,
        *,
        alignment: Alignment = 1,
        limits: Sizes | None = None,
        group_of: Callable[[Owner], Owner] = lambda owner: owner,
        name: str = "device",
    ) -> None:
        super().__init__(capacity, name)
        self.alignment = alignment
        self._limits = dict(limits or {})
        self.by_owner = bool(limits)
        self._group_of = group_of
        self._held: Counter[Owner] = Counter()  # by group
        self._free = FreeList()
        available = UNLIMITED_ARENA_BYTES if self.limit is None else self.limit - self.memory.used
        self._arena_bytes = available // alignment * alignment
        self._base = 0
        if self._arena_bytes > 0:
            arena = self._new_segment(self._arena_bytes, 0, self._free)
            assert arena is not None
            self.reserved = 0  # nothing of it is used yet
            self._base = arena.address
            self._free.put(arena)

    @property
    def held(self) -> int:
        """Bytes of the arena."""
        return self._arena_bytes

    def _free_lists(self) -> Iterable[FreeList]:
        return (self._free,)

    def _rule(self, need: int, stream: int) -> tuple[FreeList, int, int]:
        return self._free, 1, ANY_SIZE

    def try_alloc(self, nbytes: int, stream: int = 0, owner: Owner = None) -> Block | None:
        """Allocate from the arena, or return None; see `Allocator.alloc`."""
        if self._limits and not self._within_limit(self.rounded_size(nbytes), owner):
            return None
        block = super().try_alloc(nbytes, stream, owner)
        if block is not None and block.nbytes:
            if self._limits:
                self._held[self._group_of(owner)] += block.nbytes
            more = block.address + block.nbytes - self._base - self.reserved
            if more > 0:
                self._reserve(more)
        return block

    def free(self, block: Block) -> tuple[int, ...]:
        """Free `block` at once; see `Allocator.free`."""
        if self._limits and block.nbytes:
            self._held[self._group_of(block.owner)] -= block.nbytes
        return super().free(block)

    def fits_empty(self, nbytes: int, stream: int = 0, owner: Owner = None) -> bool:
        """Return whether the arena, and the owner's limit, are large enough."""
        need = self.rounded_size(nbytes)
        return need <= min(self._arena_bytes, self._limits.get(self._group_of(owner), ANY_SIZE))

    def oom_hints(self, nbytes: int, stream: int, owner: Owner) -> list[str]:
        """Return advice on the owner's limit, if that is the obstacle."""
        if self._within_limit(self.rounded_size(nbytes), owner):
            return []
        group = self._group_of(owner)
        used, limit = (format_bytes(x, iec=True) for x in (self._held[group], self._limits[group]))
        return [f"a higher limit for {group!r}: it holds {used} of the {limit} it may"]

    def _within_limit(self, need: int, owner: Owner) -> bool:
        """Return whether the owner's group may hold `need` bytes more."""
        group = self._group_of(owner)
        return group not in self._limits or self._held[group] + need <= self._limits[group]


# ----------------------------------------------------------------------------------------------------------
# Virtual devices: one device's memory in named parts, each with an allocator of its own.
#
#     gpu0, 80 GB   ┌ train ─ 50 GB ─ bfc ┐    tensors of the session train: train/...
#                   └ serve ─ 20 GB ─ bfc ┘    tensors of the session serve: serve/...
#
# A part cannot use memory that the other leaves unused: neither can starve the other, and neither gets more.
# These are TensorFlow's logical devices with a `memory_limit` (`tf.config.set_logical_device_configuration`).
# A tensor without a part goes to the first, as TensorFlow's default device is ``/GPU:0``.
# Streams and SMs stay those of the one device.


class VirtualDevices(Allocator):
    """An allocator that forwards each request to its owner's part, and sums the counters of all.

    Parameters
    ----------
    capacity : int or None
        Bytes of the device; None: unlimited.
    limits : mapping of str to int
        Name of each part → its bytes.
    make : callable
        Makes an allocator from a part's memory and its name.
    name : str
        The device, in error messages.

    Raises
    ------
    InfeasibleError
        The parts are larger than the device together.

    Examples
    --------
    >>> from devices.memory import PoolAllocator
    >>> both = VirtualDevices(
    ...     100, {"a": 60, "b": 40}, lambda part, name: PoolAllocator(part, name=name), name="gpu0"
    ... )
    >>> both.try_alloc(50, owner="b/x") is None, both.try_alloc(50, owner="a/x") is None, both.in_use
    (True, False, 50)
    """

    kind = "virtual devices"
    by_stream = True

    def __init__(
        self,
        capacity: int | None,
        limits: Mapping[str, int],
        make: Callable[[DeviceMemory, str], Allocator],
        *,
        name: str = "device",
    ) -> None:
        total = sum(limits.values())
        if capacity is not None and total > capacity:
            need, have = (format_bytes(nbytes, iec=True) for nbytes in (total, capacity))
            raise InfeasibleError(f"{name} has {have}; its virtual devices {', '.join(limits)} need {need}")
        self.parts: dict[Owner, Allocator] = {}
        base = 0
        for part, nbytes in limits.items():
            self.parts[part] = make(DeviceMemory(nbytes, base), f"{name}/{part}")
            base += round_up(nbytes, ALIGNMENT_BYTES)
        super().__init__(capacity, name)
        self._tally()
        self._group_of = Groups(limits)
        self.by_owner = True

    def _part(self, owner: Owner) -> Allocator:
        """Return the part that `owner` belongs to, by default the first."""
        return self.parts.get(self._group_of(owner)) or next(iter(self.parts.values()))

    def _tally(self) -> None:
        """Update the sums over all parts."""
        for name in (*COUNTERS, "retries"):
            setattr(self, name, sum(getattr(part, name) for part in self.parts.values()))

    @property
    def held(self) -> int:
        """Bytes that the parts have taken from the device's memory."""
        return sum(part.held for part in self.parts.values())

    def serving(self, owner: Owner) -> Allocator:
        """Return the allocator that serves `owner`."""
        return self._part(owner).serving(owner)

    def try_alloc(self, nbytes: int, stream: int = 0, owner: Owner = None) -> Block | None:
        """Allocate from the owner's part, or return None; see `Allocator.alloc`."""
        block = self._part(owner).try_alloc(nbytes, stream, owner)
        self._tally()  # a failure may have returned segments
        return block

    def free(self, block: Block) -> tuple[int, ...]:
        """Free `block` in its owner's part; see `Allocator.free`."""
        streams = self._part(block.owner).free(block)
        self._tally()
        return streams

    def record_use(self, block: Block, stream: int) -> None:
        """Note that another stream uses `block`."""
        self._part(block.owner).record_use(block, stream)

    def event_done(self, block: Block) -> None:
        """Note that one event of those that the free of `block` asked for was reached."""
        self._part(block.owner).event_done(block)
        self._tally()

    def empty_cache(self) -> None:
        """Return the unused memory of every part to the device."""
        for part in self.parts.values():
            part.empty_cache()
        self._tally()

    def largest_free(self) -> int:
        """Return the largest free block of any part."""
        return max(part.largest_free() for part in self.parts.values())

    def fits_empty(self, nbytes: int, stream: int = 0, owner: Owner = None) -> bool:
        """Return whether the owner's part is large enough."""
        return self._part(owner).fits_empty(nbytes, stream, owner)

    def spans(self) -> Iterator[Span]:
        """Yield the spans of all parts, part by part."""
        for part in self.parts.values():
            yield from part.spans()


# ----------------------------------------------------------------------------------------------------------
# The software-managed SRAM of an NPU core, and the tiles that are moved through it.
#
# A scratchpad caches nothing: a compiler decides what lies in it, DMA engines move tiles in and out, and with
# two buffers for each operand the next tile arrives while the present one is computed on::
#
#     buffer 0   │ load 0 │ compute 0 │ load 2    │ compute 2 │ ...
#     buffer 1            │ load 1    │ compute 1 │ load 3    │ ...

TILE_ALIGNMENT_BYTES = 64
"""Default alignment of tiles: a burst of most DMA engines."""


class ScratchpadAllocator(PoolAllocator):
    """A small arena: tiles go where they fit best.

    Parameters
    ----------
    capacity : int or DeviceMemory
        Bytes of SRAM.
    alignment : int
        Of every tile, in bytes.
    name : str
        The core, in error messages.

    Raises
    ------
    InputError
        The capacity is unlimited.

    Examples
    --------
    >>> sram = ScratchpadAllocator(1024)
    >>> sram.alloc(100).nbytes, sram.alloc(500).address
    (128, 128)
    """

    kind = "scratchpad"

    def __init__(
        self,
        capacity: int | DeviceMemory | None,
        *,
        alignment: Alignment = TILE_ALIGNMENT_BYTES,
        name: str = "scratchpad",
    ) -> None:
        super().__init__(capacity, alignment=alignment, name=name)
        if self.limit is None:
            raise InputError(f"{name}: a scratchpad is small; give its capacity")
