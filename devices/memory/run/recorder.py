"""An allocator that writes down what is asked of it, as events that a replay does again.

A block that other streams use is free once events of them have been reached; the engine knows when, so the
trace has that as ``reached``, and not as waits of the program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from devices.memory.allocator import Allocator
from devices.memory.blocks import Block, Owner, Span
from devices.memory.memory_event import MemoryEvent

__all__ = ["Recorder"]


class Recorder(Allocator):
    """Passes everything on to another allocator, and writes down what succeeded.

    Parameters
    ----------
    inner : Allocator
    events : list of MemoryEvent
        What is written down is appended. An owner's second allocation is called ``owner#2``, and so on.

    Examples
    --------
    >>> from devices.memory import PoolAllocator
    >>> events = []
    >>> recorder = Recorder(PoolAllocator(100), events)
    >>> recorder.free(recorder.alloc(30, owner="x")), recorder.try_alloc(200, owner="y"), recorder.in_use
    ((), None, 0)
    >>> [(event.op, event.id, event.nbytes) for event in events]
    [('alloc', 'x', 30), ('free', 'x', 0)]
    """

    kind = "recorded"
    by_stream = True

    def __init__(self, inner: Allocator, events: list[MemoryEvent]) -> None:
        super().__init__(inner.memory, inner.name, inner.limit)
        self.inner, self.events = inner, events
        self.may_synchronise, self.by_owner = inner.may_synchronise, inner.by_owner
        self._ids: dict[Block, str] = {}
        self._count: Counter[str] = Counter(str(event.id) for event in events if event.op == "alloc")
        self._tally()

    @property
    def held(self) -> int:
        """Bytes taken from the device's memory."""
        return self.inner.held

    def serving(self, owner: Owner) -> Allocator:
        """Return the allocator that serves `owner`."""
        return self.inner.serving(owner)

    def rounded(self, nbytes: int) -> int:
        """Return how many bytes a request of `nbytes` takes at least."""
        return self.inner.rounded(nbytes)

    def try_alloc(self, nbytes: int, stream: int = 0, owner: Owner = None) -> Block | None:
        """Allocate, or return None; see `Allocator.alloc`."""
        block = self.inner.try_alloc(nbytes, stream, owner)
        self._tally()  # a failure may have given segments back
        if block is not None:
            name = str(owner)
            self._count[name] += 1
            self._ids[block] = name if self._count[name] == 1 else f"{name}#{self._count[name]}"
            self.events.append(MemoryEvent("alloc", self._ids[block], nbytes, stream))
        return block

    def free(self, block: Block) -> tuple[int, ...]:
        """Free `block`; see `Allocator.free`."""
        streams = self.inner.free(block)
        self._tally()
        self.events.append(MemoryEvent("free", self._ids[block] if streams else self._ids.pop(block)))
        return streams

    def record_use(self, block: Block, stream: int) -> None:
        """Note that another stream uses `block`."""
        if self.inner.by_stream:
            self.inner.record_use(block, stream)
            self.events.append(MemoryEvent("record_stream", self._ids[block], stream=stream))

    def event_done(self, block: Block) -> None:
        """Note that one event of those that the free of `block` asked for was reached."""
        self.inner.event_done(block)
        self._tally()
        self.events.append(MemoryEvent("reached", self._ids[block]))

    def empty_cache(self) -> None:
        """Give back what is held and not in use."""
        self.inner.empty_cache()
        self._tally()
        self.events.append(MemoryEvent("empty_cache"))

    def largest_free(self) -> int:
        """Return the largest free block."""
        return self.inner.largest_free()

    def fits_empty(self, nbytes: int, stream: int = 0, owner: Owner = None) -> bool:
        """Return whether this request could be met with nothing else allocated."""
        return self.inner.fits_empty(nbytes, stream, owner)

    def spans(self) -> Iterator[Span]:
        """Yield what is where."""
        return self.inner.spans()

    def _tally(self) -> None:
        """Bring the counters up to date."""
        inner = self.inner
        self.in_use, self.requested, self.waiting = inner.in_use, inner.requested, inner.waiting
        self.reserved, self.retries = inner.reserved, inner.retries
        self.device_mallocs, self.device_frees = inner.device_mallocs, inner.device_frees
        self.synchronisations = inner.synchronisations
        self.peak_in_use, self.peak_reserved = inner.peak_in_use, inner.peak_reserved
