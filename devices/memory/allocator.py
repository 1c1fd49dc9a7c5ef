"""The base of every allocator: a pure state machine that hands out ranges of addresses.

An allocator holds no clock and never waits. The caller reports events; it answers with their consequences::

    try_alloc(nbytes, stream, owner) ──► Block         placed
                                     └─► None          not now: ask again after something is freed
    alloc(...)                       ──► Block, or OutOfMemoryError with all details
    free(block)                      ──► streams on which the caller must record an event, usually none
    record_use(block, stream)            another stream reads it: a free must wait for that stream
    event_done(block)                    one of those events was reached
    empty_cache()                        return unused memory to the device

The engine accounts for the time of operations. The allocator only counts them (`device_mallocs`,
`device_frees`, `synchronisations`); the engine charges the differences.

"Not now" and "never" differ: `fits_empty` says before time 0 whether an otherwise empty allocator could
meet a request.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, ClassVar, Final

from devices.memory.allocation_log import Recording
from devices.memory.device_memory import FREE, LIVE, Block, DeviceMemory, Owner, Span, round_up
from sim.base.arrays import group_pairs
from sim.base.errors import InputError, InvariantError, OutOfMemoryError
from sim.base.units import format_bytes

# ----------------------------------------------------------------------------------------------------------
# Out-of-memory messages, which say what to do to a reader without context.
#
# ::
#
#     out of memory on gpu0 (caching allocator): 'layer4/conv' asks for 512 MiB on stream 0
#       limit            1 GiB
#       in use           700 MiB in 12 blocks (690 MiB as requested)
#       reserved         900 MiB, of which free 200 MiB
#       largest free     100 MiB in one block
#       largest holders  'embedding' 256 MiB; 'layer1/out' 128 MiB in 2 blocks; ...
#       what would help  at least 188 MiB more memory, or as much less in use: ...


def out_of_memory(name: str, kind: str, request: str, lines: list[tuple[str, str]]) -> OutOfMemoryError:
    """Return an error that says why there was no room, and what would help.

    Parameters
    ----------
    name, kind : str
        Device, and kind of its allocator.
    request : str
        Request that did not fit.
    lines : list of (str, str)
        State of the memory, and what would help.
    """
    body = "".join(f"\n  {key:<15}  {value}" for key, value in lines)
    return OutOfMemoryError(f"out of memory on {name} ({kind} allocator): {request}{body}")


def more_memory(short: int) -> str:
    """Return the advice if `short` bytes are missing."""
    return f"at least {size_text(short)} more memory, or as much less in use: a smaller batch, recomputation"


def size_text(nbytes: int | None) -> str:
    """Return a size as shown in these messages."""
    return format_bytes(nbytes, iec=True)


def largest_holders(live: Iterable[tuple[Owner, int]]) -> list[str]:
    """Return the five owners that hold most in total, with their sizes, largest first.

    Examples
    --------
    >>> largest_holders([("a", 1024), (None, 512), ("a", 1024)])
    ["'a' 2 KiB in 2 blocks", 'unnamed 512 B']
    """
    ranked = sorted(group_pairs(live).items(), key=lambda item: -sum(item[1]))[:5]
    names = []
    for owner, sizes in ranked:
        blocks = f" in {len(sizes)} blocks" if len(sizes) > 1 else ""
        names.append(f"{'unnamed' if owner is None else repr(owner)} {size_text(sum(sizes))}{blocks}")
    return names


_MOST_BYTES: Final = 1 << 62

COUNTERS: Final = (
    *("in_use", "waiting", "reserved", "requested"),
    *("device_mallocs", "device_frees", "synchronisations"),
)
"""Counters of an allocator, besides its retries."""

_counted: Final = attrgetter(*COUNTERS)


class Allocator(ABC):
    """An allocator of one device's memory.

    To write one, implement `try_alloc`, `free` and `spans`, and keep the counters right; `_took` and `_gave`
    do so for memory in use. If it caches free blocks, implement `largest_free`; if it may refuse a request
    for a reason other than the limit, `fits_empty`.

    Parameters
    ----------
    capacity : int, DeviceMemory or None
        Bytes of the device, or the device's memory when several allocators share it; None: unlimited.
    name : str
        Name of the device in error messages.
    limit : int, optional
        Most bytes that this allocator may hold; by default all of the device's memory.

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
    device_mallocs, device_frees : int
        Calls to the device's own allocator so far.
    synchronisations : int
        Number of times the caller had to wait until the device was idle.
    retries : int
        Number of requests tried again after all cached memory had been returned.
    by_owner : bool
        Whether the memory available depends on who asks.
    limit : int or None
        Most bytes this allocator may ever hold; None: unlimited.
    """

    kind: ClassVar[str]
    """Name in messages: the one by which a scenario chooses it, or that of the class."""

    by_stream: ClassVar[bool] = False
    """Whether `record_use` has an effect: whether a free may have to wait for other streams."""

    first_stream: int = 0
    """The device's first stream if streams are numbered over a machine: messages count from it."""

    may_synchronise: bool = True
    """Whether a caller may ever have to wait until the device is idle."""

    alignment: int = 1
    """Alignment: the size of every block is a multiple of this."""

    recording: Recording | None = None
    """Where a run records its requests, if they are wanted."""

    def __init_subclass__(cls) -> None:
        """Set a missing kind to the class name; raise if `alloc` is overridden, which no run calls."""
        super().__init_subclass__()
        if cls.alloc is not Allocator.alloc:
            raise InputError(f"{cls.__name__} defines alloc(), which a run does not ask; define try_alloc()")
        if not hasattr(cls, "kind"):
            cls.kind = cls.__name__

    def __init__(
        self, capacity: int | DeviceMemory | None, name: str = "device", limit: int | None = None
    ) -> None:
        self.memory = capacity if isinstance(capacity, DeviceMemory) else DeviceMemory(capacity)
        self.limit = self.memory.capacity if limit is None else limit
        self.name = name
        self.in_use = self.requested = self.waiting = self.reserved = 0
        self.device_mallocs = self.device_frees = self.synchronisations = self.retries = 0
        self.by_owner = False

    @property
    def held(self) -> int:
        """Bytes taken from the device's memory; more than `reserved` if an arena is taken at once."""
        return self.reserved

    def serving(self, owner: Owner) -> Allocator:
        """Return the allocator that serves `owner`: this one, or a part of it."""
        return self

    def rounded_size(self, nbytes: int) -> int:
        """Return the least bytes for a request of `nbytes`: the size rounded up to the alignment."""
        return round_up(nbytes, self.alignment)

    def take(self, nbytes: int, stream: int = 0, owner: Owner = None) -> Block | None:
        """Allocate as `try_alloc` does, and check the answer.

        Raises
        ------
        InputError
            If it returned anything but a live block of that size, or its counters do not add up.
        """
        block = self.try_alloc(nbytes, stream, owner)
        if block is not None:
            self._check_block(block, nbytes, owner)
            if self.recording is not None:
                self.recording.alloc(block, nbytes, stream, owner)
        self._check_counters()
        return block

    def let_go(self, block: Block) -> tuple[int, ...]:
        """Free as `free` does, and check the answer.

        Raises
        ------
        InputError
            If it returned anything but streams, or its counters do not add up.
        """
        streams = self.free(block)
        if streams != () and not (isinstance(streams, tuple) and {*map(type, streams)} == {int}):
            method = f"{type(self).__name__}.free"
            raise InputError(f"{method} returned {streams!r:.60}, should be a tuple of streams, or ()")
        self._check_counters()
        if self.recording is not None:
            self.recording.free(block, streams)
        return streams

    def note_use(self, block: Block, stream: int) -> None:
        """Note that another stream uses `block`, as `record_use` does, and write it down."""
        self.record_use(block, stream)
        if self.recording is not None and self.by_stream:
            self.recording.put("record_stream", block, stream)

    def reach(self, block: Block) -> None:
        """Note that an event of a freed block was reached, as `event_done` does, and write it down."""
        self.event_done(block)
        if self.recording is not None:
            self.recording.put("reached", block)

    def _check_block(self, block: Any, nbytes: int, owner: Owner) -> None:
        if isinstance(block, Block):
            if (
                isinstance(block.nbytes, int)
                and isinstance(block.address, int)
                and nbytes <= block.nbytes < _MOST_BYTES
                and 0 <= block.address < _MOST_BYTES
                and block.state == LIVE
            ):
                return
            answer = f"a block of {block.nbytes!r} bytes at {block.address!r} in state {block.state!r}"
        else:
            answer = f"{block!r:.60}"
        raise InputError(
            f"{type(self).__name__}.try_alloc returned {answer} for {owner!r}, should be a live block of "
            f"{nbytes} bytes or more, or None"
        )

    def _check_counters(self) -> None:
        counted = _counted(self)
        if (
            {*map(type, counted)} != {int}
            or not 0 <= min(counted) <= max(counted) < _MOST_BYTES
            or self.in_use + self.waiting > self.reserved
        ):
            raise InputError(
                f"{type(self).__name__} counts {counted} ({', '.join(COUNTERS)}); should be whole numbers "
                "from 0 on, and reserved at least in_use + waiting (see _reserve)"
            )

    @abstractmethod
    def try_alloc(self, nbytes: int, stream: int = 0, owner: Owner = None) -> Block | None:
        """Allocate, or return None if there is no room now."""

    @abstractmethod
    def free(self, block: Block) -> tuple[int, ...]:
        """Free `block`; return the streams whose work so far must end before its bytes are reused.

        The caller records an event on each of them, and calls ``event_done(block)`` as each is reached.

        Raises
        ------
        InvariantError
            If `block` is not live (it was freed before).
        """

    def largest_free(self) -> int:
        """Return the size in bytes of the largest block available without asking the device."""
        return 0

    def fits_empty(self, nbytes: int, stream: int = 0, owner: Owner = None) -> bool:
        """Return whether this request could be met with nothing else allocated."""
        need = self.rounded_size(nbytes)
        return all(bound is None or need <= bound for bound in (self.limit, self.memory.capacity))

    @abstractmethod
    def spans(self) -> Iterator[Span]:
        """Yield all spans in address order; without a cache, only live and waiting ones."""

    def holders(self) -> list[tuple[Owner, int]]:
        """Return owner and bytes of each live block."""
        return [(span.owner, span.nbytes) for span in self.spans() if span.state == "live"]

    def alloc(self, nbytes: int, stream: int = 0, owner: Owner = None) -> Block:
        """Allocate `nbytes`.

        Parameters
        ----------
        nbytes : int
            Number of bytes; 0 gives an empty block at address 0 that takes no room.
        stream : int
            Stream that will use it first.
        owner : str, int or None
            Requester, named among the holders when memory runs out.

        Raises
        ------
        InputError
            If `nbytes` is negative.
        OutOfMemoryError
            If there is no room; the message says what was in use, by whom, and what would help.
        """
        block = self.take(nbytes, stream, owner)
        if block is None:
            raise self.out_of_memory(nbytes, stream=stream, owner=owner)
        return block

    def out_of_memory(
        self, nbytes: int, *, stream: int = 0, owner: Owner = None, where: str = ""
    ) -> OutOfMemoryError:
        """Return an error that says why a request was refused, and what would help.

        Parameters
        ----------
        nbytes, stream, owner
            Request that has just failed.
        where : str
            Time or place of the failure: an instant, a line of a trace.

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
        live = part.holders()
        cached = part.reserved - part.in_use - part.waiting
        lines = [
            ("limit", size_text(part.limit)),
            ("in use", f"{size_text(part.in_use)} in {len(live)} block{'' if len(live) == 1 else 's'}"),
            ("reserved", f"{size_text(part.reserved)}, of which free {size_text(cached)}"),
            ("largest free", f"{size_text(part.largest_free())} in one block"),
        ]
        if (untaken := (part.limit or 0) - part.held) > 0:
            lines.insert(1, ("not reserved", size_text(untaken)))
        if part.requested != part.in_use:
            lost = size_text(part.in_use - part.requested)
            lines.append(("lost inside", f"{lost} of what is in use: rounded up, or not worth splitting"))
        if others := part.memory.used - part.held:
            capacity = size_text(part.memory.capacity)
            lines.append(("other users", f"{size_text(others)} of the device's {capacity}"))
        if live:
            lines.append(("largest holders", "; ".join(largest_holders(live))))
        lines.extend(("what would help", hint) for hint in part._hints(nbytes, stream, owner))
        who, number = "a tensor" if owner is None else repr(owner), stream - self.first_stream
        asks = f"{who} asks for {size_text(nbytes)} on stream {number}"
        return out_of_memory(part.name, part.kind, f"{asks}{f', {where}' if where else ''}", lines)

    def _hints(self, nbytes: int, stream: int, owner: Owner) -> list[str]:
        """Return advice, the most specific first."""
        hints = self.oom_hints(nbytes, stream, owner)
        if not self.fits_empty(nbytes, stream, owner):
            return hints or ["a larger device, or a smaller tensor: by itself it is more than the limit"]
        if self.limit is None and hints:  # memory is unlimited: more would not help
            return hints
        room = (self.limit or 0) - self.in_use - self.waiting
        if self.rounded_size(nbytes) > room:
            return [*hints, more_memory(self.rounded_size(nbytes) - room)]
        return hints or [
            f"less fragmentation: {size_text(room)} are left, and not in one piece; a planned layout may "
            "fit, or `counted`, whose pages may lie anywhere"
        ]

    def record_use(self, block: Block, stream: int) -> None:  # noqa: B027 (most know no streams)
        """Note that another stream uses `block`; has no effect unless the allocator knows streams."""

    def event_done(self, block: Block) -> None:  # noqa: B027 (and ask for no events)
        """Note that one event of those that the free of `block` asked for was reached."""

    def forget_last(self, owner: Owner) -> None:  # noqa: B027 (most keep no turns)
        """Note that the last block taken by `owner` was freed at once, unused."""

    def empty_cache(self) -> None:  # noqa: B027 (most have no call for it)
        """Return unused memory to the device, if a program may request it."""

    def give_back(self, nbytes: int, stream: int) -> bool:
        """Return a cached segment of a stream to the device, as a recorded caching allocator did.

        Parameters
        ----------
        nbytes : int
            Size of the segment.
        stream : int

        Returns
        -------
        bool
            Whether this was possible; true for an allocator that caches differently and has nothing to do.
        """
        return True

    def oom_hints(self, nbytes: int, stream: int, owner: Owner) -> list[str]:
        """Return advice specific to this kind of allocator that would have let the request succeed."""
        return []

    def _took(self, block: Block) -> None:
        """Account for a block that became live."""
        self._check_block(block, 0, getattr(block, "owner", None))
        self.requested += block.requested
        self.in_use += block.nbytes

    def _gave(self, block: Block) -> None:
        """Account for a block that stops being live; raise if it is not."""
        if block.state != LIVE:
            raise InvariantError(f"{self.name}: {block!r} was freed already, and is freed again")
        block.state = FREE
        self.requested -= block.requested
        self.in_use -= block.nbytes

    def _reserve(self, nbytes: int) -> None:
        """Account for `nbytes` more (or fewer) held from the device."""
        self.reserved += nbytes

    def _empty(self, nbytes: int, stream: int, owner: Owner) -> Block:
        """Return the block of a tensor without elements; raise if the size is negative."""
        if nbytes < 0:
            raise InputError(f"{self.name}: {owner!r} asks for {nbytes} bytes; a size is never negative")
        return Block(0, 0, 0, stream, owner, LIVE, None)
