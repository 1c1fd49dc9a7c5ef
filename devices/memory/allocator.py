"""What every allocator is: a pure state machine that hands out ranges of addresses.

An allocator holds no clock and waits for nothing. It is told what happened and answers what follows::

    try_alloc(nbytes, stream, owner) ──► Block         placed
                                     └─► None          not now: ask again after something was freed
    alloc(...)                       ──► Block, or OutOfMemoryError with the whole story
    free(block)                      ──► streams on which the caller has to record an event, usually none
    record_use(block, stream)            another stream reads it: a free must wait for that stream
    event_done(block)                    one of those events was reached
    empty_cache()                        give back to the device what is held and not in use

What an operation costs in time is the engine's business. The allocator only counts what took place
(`device_mallocs`, `device_frees`, `synchronisations`); the engine charges the differences.

"Not now" and "never" differ: `fits_empty` tells before time 0 whether a request could be met by this
allocator with nothing else in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Final

from devices.memory.device_memory import FREE, LIVE, Block, DeviceMemory, Owner, Span
from devices.memory.out_of_memory import largest_holders, more_memory, out_of_memory, shown
from sim.base.errors import InputError, InvariantError, OutOfMemoryError

_MOST: Final = 1 << 62


class Allocator(ABC):
    """An allocator of one device's memory.

    To write one, implement `try_alloc`, `free` and `spans`, and keep the counters right; `_took` and `_gave`
    do so for what is in use. If it caches free blocks, implement `largest_free`; if a request may be refused
    for another reason than the limit, `fits_empty`.

    Parameters
    ----------
    capacity : int, DeviceMemory or None
        Bytes of the device, or the device's memory when several allocators share it; None: unlimited.
    name : str
        The device, in error messages.
    limit : int, optional
        Most bytes that this allocator may hold; by default all of the device's.

    Attributes
    ----------
    in_use : int
        Bytes of live blocks, as rounded.
    requested : int
        Bytes of live blocks, as asked for.
    waiting : int
        Bytes freed that still wait for events of other streams.
    reserved : int
        Bytes held from the device; always at least ``in_use + waiting``.
    peak_in_use, peak_reserved : int
        The largest values so far.
    device_mallocs, device_frees : int
        Calls to the device's own allocator so far.
    synchronisations : int
        How often the caller had to wait until the device was idle so far.
    retries : int
        How often a request was tried once more after all cached memory had been given back.
    by_owner : bool
        Whether it depends on who asks how much there is.
    limit : int or None
        Most bytes this allocator may ever hold; None: unlimited.
    """

    kind: ClassVar[str]
    """The name by which a scenario chooses the allocator."""

    by_stream: ClassVar[bool] = False
    """Whether `record_use` is of consequence: whether a free may have to wait for other streams."""

    first_stream: int = 0
    """The device's first stream, where streams are numbered over a machine: messages count from it."""

    may_synchronise: bool = True
    """Whether a caller may ever have to wait until the device is idle."""

    def __init__(
        self, capacity: int | DeviceMemory | None, name: str = "device", limit: int | None = None
    ) -> None:
        self.memory = capacity if isinstance(capacity, DeviceMemory) else DeviceMemory(capacity)
        self.limit = self.memory.capacity if limit is None else limit
        self.name = name
        self.in_use = 0
        self.requested = 0
        self.waiting = 0
        self.reserved = 0
        self.peak_in_use = 0
        self.peak_reserved = 0
        self.device_mallocs = 0
        self.device_frees = 0
        self.synchronisations = 0
        self.retries = 0
        self.by_owner = False

    @property
    def held(self) -> int:
        """Bytes taken from the device's memory; more than `reserved` where an arena is taken at once."""
        return self.reserved

    def serving(self, owner: Owner) -> Allocator:
        """Return the allocator that serves `owner`: this one, or a part of it."""
        return self

    def rounded(self, nbytes: int) -> int:
        """Return how many bytes a request of `nbytes` takes at least."""
        return nbytes

    def take(self, nbytes: int, stream: int = 0, owner: Owner = None) -> Block | None:
        """Allocate as `try_alloc` does, and believe no answer that cannot be.

        Raises
        ------
        InputError
            It returned something else than a live block of that size, or its counters do not add up.
        """
        block = self.try_alloc(nbytes, stream, owner)
        if block is not None:
            self._check_block(block, nbytes, owner)
        self._check_counters()
        return block

    def let_go(self, block: Block) -> tuple[int, ...]:
        """Free as `free` does, and believe no answer that cannot be.

        Raises
        ------
        InputError
            It returned something else than streams, or its counters do not add up.
        """
        streams = self.free(block)
        if streams != () and not (isinstance(streams, tuple) and {*map(type, streams)} == {int}):
            whose = f"{type(self).__name__}.free"
            raise InputError(f"{whose} returned {streams!r:.60}, should be a tuple of streams, or ()")
        self._check_counters()
        return streams

    def _check_block(self, block: Any, nbytes: int, owner: Owner) -> None:
        if isinstance(block, Block):
            if (
                isinstance(block.nbytes, int)
                and isinstance(block.address, int)
                and nbytes <= block.nbytes < _MOST
                and 0 <= block.address < _MOST
                and block.state == LIVE
            ):
                return
            found = f"a block of {block.nbytes!r} bytes at {block.address!r} in state {block.state!r}"
        else:
            found = f"{block!r:.60}"
        raise InputError(
            f"{type(self).__name__}.try_alloc returned {found} for {owner!r}, should be a live block of "
            f"{nbytes} bytes or more, or None"
        )

    def _check_counters(self) -> None:
        calls = self.device_mallocs, self.device_frees, self.synchronisations
        counted = (self.in_use, self.waiting, self.reserved, self.requested, *calls)
        if (
            {*map(type, counted)} != {int}
            or not 0 <= min(counted) <= max(counted) < _MOST
            or self.in_use + self.waiting > self.reserved
        ):
            names = "in_use, waiting, reserved, requested, device_mallocs, device_frees, synchronisations"
            raise InputError(
                f"{type(self).__name__} counts {counted} ({names}); should be whole numbers from 0 on, and "
                "reserved at least in_use + waiting (see _reserve)"
            )

    @abstractmethod
    def try_alloc(self, nbytes: int, stream: int = 0, owner: Owner = None) -> Block | None:
        """Allocate, or return None when there is no room now."""

    @abstractmethod
    def free(self, block: Block) -> tuple[int, ...]:
        """Free `block`; return the streams whose work so far must be done before its bytes are used again.

        The caller records an event on each of them, and calls ``event_done(block)`` as each is reached.

        Raises
        ------
        InvariantError
            `block` is not live (it was freed before).
        """

    def largest_free(self) -> int:
        """Return the size of the largest block that could be had without asking the device, in bytes."""
        return 0

    def fits_empty(self, nbytes: int, stream: int = 0, owner: Owner = None) -> bool:
        """Return whether this request could be met with nothing else allocated."""
        need = self.rounded(nbytes)
        return all(most is None or need <= most for most in (self.limit, self.memory.capacity))

    @abstractmethod
    def spans(self) -> Iterator[Span]:
        """Yield what is where, in address order; only live and waiting ranges where nothing is cached."""

    def alloc(self, nbytes: int, stream: int = 0, owner: Owner = None) -> Block:
        """Allocate `nbytes`.

        Parameters
        ----------
        nbytes : int
            How many bytes; 0 gives an empty block at address 0 that takes no room.
        stream : int
            The stream that will use it first.
        owner : str, int or None
            Who asks: named among the holders when memory runs out.

        Raises
        ------
        InputError
            `nbytes` is negative.
        OutOfMemoryError
            There is no room; the message tells what was in use, by whom, and what would help.
        """
        block = self.take(nbytes, stream, owner)
        if block is None:
            raise self.out_of_memory(nbytes, stream=stream, owner=owner)
        return block

    def out_of_memory(
        self, nbytes: int, *, stream: int = 0, owner: Owner = None, where: str = ""
    ) -> OutOfMemoryError:
        """Return the error that says why a request was refused, and what would help.

        Parameters
        ----------
        nbytes, stream, owner
            The request, which failed just now.
        where : str
            When it happened: an instant, a line of a trace.

        Examples
        --------
        >>> from devices.memory import PoolAllocator
        >>> pool = PoolAllocator(4096, name="npu0")
        >>> block = pool.alloc(3072, owner="weights")
        >>> print(pool.out_of_memory(2048, owner="scores"))
        out of memory on npu0 (pool allocator): 'scores' asks for 2 KiB on stream 0
          limit            4 KiB
          in use           3 KiB in 1 block
          reserved         3 KiB, of which free 0 B
          largest free     1 KiB in one block
          largest holders  'weights' 3 KiB
          what would help  at least 1 KiB more memory, or as much less in use: a smaller batch, recomputation
        """
        part = self.serving(owner)
        live = [span for span in part.spans() if span.state == "live"]
        cached = part.reserved - part.in_use - part.waiting
        lines = [
            ("limit", shown(part.limit)),
            ("in use", f"{shown(part.in_use)} in {len(live)} block{'s' * (len(live) != 1)}"),
            ("reserved", f"{shown(part.reserved)}, of which free {shown(cached)}"),
            ("largest free", f"{shown(part.largest_free())} in one block"),
        ]
        if (untaken := (part.limit or 0) - part.held) > 0:
            lines.insert(1, ("not reserved", shown(untaken)))
        if part.requested != part.in_use:
            lost = shown(part.in_use - part.requested)
            lines.append(("lost inside", f"{lost} of what is in use: rounded up, or not worth splitting"))
        if others := part.memory.used - part.held:
            lines.append(("other users", f"{shown(others)} of the device's {shown(part.memory.capacity)}"))
        if live:
            lines.append(("largest holders", "; ".join(largest_holders(live))))
        lines.extend(("what would help", hint) for hint in part._hints(nbytes, stream, owner))
        who, own = "a tensor" if owner is None else repr(owner), stream - self.first_stream
        asks = f"{who} asks for {shown(nbytes)} on stream {own}"
        return out_of_memory(part.name, part.kind, f"{asks}{f', {where}' if where else ''}", lines)

    def _hints(self, nbytes: int, stream: int, owner: Owner) -> list[str]:
        """Return what would help, the most specific first."""
        hints = self.oom_hints(nbytes, stream, owner)
        if not self.fits_empty(nbytes, stream, owner):
            return hints or ["a larger device, or a smaller tensor: by itself it is more than the limit"]
        if self.limit is None and hints:  # more memory than enough does not help
            return hints
        room = (self.limit or 0) - self.in_use - self.waiting
        if self.rounded(nbytes) > room:
            return [*hints, more_memory(self.rounded(nbytes) - room)]
        return hints or [
            f"less fragmentation: {shown(room)} are left, and not in one piece; a planned layout may fit, "
            "or `counted`, whose pages may lie anywhere"
        ]

    def record_use(self, block: Block, stream: int) -> None:  # noqa: B027 (most know no streams)
        """Note that another stream uses `block`; of no consequence unless the allocator knows streams."""

    def event_done(self, block: Block) -> None:  # noqa: B027 (and ask for no events)
        """Note that one event of those that the free of `block` asked for was reached."""

    def empty_cache(self) -> None:  # noqa: B027 (most have no call for it)
        """Give back to the device what is held and not in use, where a program may ask for that."""

    def give_back(self, nbytes: int, stream: int) -> bool:
        """Give back a cached segment of a stream as a recorded caching allocator did.

        Parameters
        ----------
        nbytes : int
            Size of the segment.
        stream : int

        Returns
        -------
        bool
            Whether that was possible; true for an allocator that caches in another way, and has nothing to
            follow.
        """
        return True

    def snapshot(self) -> tuple[Span, ...]:
        """Return all spans at once.

        Examples
        --------
        >>> from devices.memory import PoolAllocator
        >>> pool = PoolAllocator(100)
        >>> block = pool.alloc(30, owner="x")
        >>> [(span.address, span.nbytes, span.state, span.owner) for span in pool.snapshot()]
        [(0, 30, 'live', 'x'), (30, 70, 'free', None)]
        """
        return tuple(self.spans())

    def oom_hints(self, nbytes: int, stream: int, owner: Owner) -> list[str]:
        """Return what this kind of allocator knows that would have let the request succeed."""
        return []

    def _took(self, block: Block) -> None:
        """Account for a block that became live."""
        self._check_block(block, 0, getattr(block, "owner", None))
        self.requested += block.requested
        self.in_use += block.nbytes
        if self.in_use > self.peak_in_use:
            self.peak_in_use = self.in_use

    def _gave(self, block: Block) -> None:
        """Account for a block that ends being live; refuse one that is not."""
        if block.state != LIVE:
            raise InvariantError(f"{self.name}: {block!r} was freed already, and is freed again")
        block.state = FREE
        self.requested -= block.requested
        self.in_use -= block.nbytes

    def _reserve(self, nbytes: int) -> None:
        """Account for `nbytes` more (or fewer) held from the device."""
        self.reserved += nbytes
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _empty(self, nbytes: int, stream: int, owner: Owner) -> Block:
        """Return the block of a tensor without elements; refuse a negative size."""
        if nbytes < 0:
            raise InputError(f"{self.name}: {owner!r} asks for {nbytes} bytes; a size is never negative")
        return Block(0, 0, 0, stream, owner, LIVE, None)
