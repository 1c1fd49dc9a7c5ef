"""Device malloc and free for every tensor, and a counter against a limit.

Nothing is cached and nothing fragments, as the device pages its memory; each allocation costs a call to the
driver, and each free waits until the device is idle (`cudaFree` synchronises implicitly: CUDA C++
Programming Guide, "Implicit Synchronization"). The engine charges both from the counters.
"""

from __future__ import annotations

from collections.abc import Iterator

from devices.describe.field_types import Alignment
from devices.memory.allocator import Allocator
from devices.memory.device_memory import LIVE, Block, DeviceMemory, Owner, Span


class CountedAllocator(Allocator):
    """A counter against a limit.

    Parameters
    ----------
    capacity : int, DeviceMemory or None
        Bytes of the device; None: unlimited.
    alignment : int
        Every allocation takes a multiple of so many bytes.
    asynchronous : bool
        Whether a free does not wait (``cudaFreeAsync``); otherwise it waits until the device is idle.
    name : str
        The device, in error messages.

    Examples
    --------
    >>> counted = CountedAllocator(1000)
    >>> block = counted.alloc(600)
    >>> counted.in_use, counted.try_alloc(600), counted.free(block), counted.synchronisations
    (600, None, (), 1)
    """

    kind = "counted"

    def __init__(
        self,
        capacity: int | DeviceMemory | None = None,
        *,
        alignment: Alignment = 1,
        asynchronous: bool = False,
        name: str = "device",
    ) -> None:
        super().__init__(capacity, name)
        self.alignment = alignment
        self.may_synchronise = not asynchronous
        self._live: dict[int, Block] = {}

    def try_alloc(self, nbytes: int, stream: int = 0, owner: Owner = None) -> Block | None:
        """Ask the device, or return None; see `Allocator.alloc`."""
        if nbytes <= 0:
            return self._empty(nbytes, stream, owner)
        need = self.rounded_size(nbytes)
        address = self.memory.malloc(need)
        if address is None:
            return None
        block = self._live[address] = Block(address, need, nbytes, stream, owner, LIVE, None)
        self.device_mallocs += 1
        self._reserve(need)
        self._took(block)
        return block

    def free(self, block: Block) -> tuple[int, ...]:
        """Give `block` back to the device; see `Allocator.free`."""
        self._gave(block)
        if block.nbytes:
            del self._live[block.address]
            self.memory.free(block.address, block.nbytes)
            self.device_frees += 1
            self.synchronisations += self.may_synchronise
            self._reserve(-block.nbytes)
        return ()

    def spans(self) -> Iterator[Span]:
        """Yield the live blocks in address order, each a segment of its own."""
        for address in sorted(self._live):
            yield self._live[address].span(address)
