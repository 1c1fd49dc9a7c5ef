"""The memory of a device as managed by its driver: the view of `cudaMalloc` and `cudaFree`.

Physical memory is paged, so a driver succeeds whenever enough bytes are left anywhere: a counter decides.
Addresses are virtual and plentiful. A freed range is reused for a request of the same size (the lowest
first); otherwise addresses only grow.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sim.base.errors import InputError, InvariantError

ALIGNMENT_BYTES = 512
"""Alignment of every address; CUDA promises at least 256 (CUDA C++ Programming Guide, device memory)."""


class DeviceMemory:
    """A counter against a capacity, and addresses that never overlap.

    Parameters
    ----------
    capacity : int or None
        Bytes; None: unlimited.
    base : int
        The first address.

    Examples
    --------
    >>> memory = DeviceMemory(4096)
    >>> memory.malloc(3000), memory.malloc(2000), memory.malloc(1000)
    (0, None, 3072)
    >>> memory.free(0, 3000)
    >>> memory.used, memory.malloc(3000)
    (1000, 0)
    """

    __slots__ = ("_holes", "_live", "_next", "capacity", "used")

    def __init__(self, capacity: int | None = None, base: int = 0) -> None:
        if capacity is not None and capacity < 0:
            raise InputError(
                f"a device cannot have {capacity} bytes of memory; give 0 or more, or none for unlimited"
            )
        self.capacity = capacity
        self.used = 0
        self._next = base
        self._live: dict[int, int] = {}
        self._holes: dict[int, list[int]] = {}

    def malloc(self, nbytes: int) -> int | None:
        """Return the address of `nbytes` of memory, or None if fewer are left."""
        if not self.commit(nbytes):
            return None
        holes = self._holes.get(nbytes)
        address = heapq.heappop(holes) if holes else self.reserve(nbytes)
        self._live[address] = nbytes
        return address

    def free(self, address: int, nbytes: int) -> None:
        """Free an allocation made by `malloc`.

        Raises
        ------
        InvariantError
            If there is no such allocation.
        """
        if self._live.pop(address, None) != nbytes:
            raise InvariantError(f"the device never gave out {nbytes} bytes at address {address:#x}")
        self.used -= nbytes
        heapq.heappush(self._holes.setdefault(nbytes, []), address)

    def reserve(self, nbytes: int) -> int:
        """Return the first of `nbytes` unused addresses, not backed by memory yet.

        This is `cuMemAddressReserve` (CUDA Driver API, virtual memory management); `commit` and `release`
        account for the pages mapped there later.
        """
        address = self._next
        self._next += round_up(nbytes, ALIGNMENT_BYTES)
        return address

    def commit(self, nbytes: int) -> bool:
        """Take `nbytes` for reserved addresses and return True; if fewer are left, return False."""
        if self.capacity is not None and self.used + nbytes > self.capacity:
            return False
        self.used += nbytes
        return True

    def release(self, nbytes: int) -> None:
        """Release bytes taken by `commit`."""
        self.used -= nbytes


# ----------------------------------------------------------------------------------------------------------
# Blocks: ranges of addresses with owner and state.

Owner = str | int | None
"""Requester of memory: a tensor's name, an index, or none."""

FREE = 0
"""State of a block: in a free list (false, so that ``if not block.state`` reads "is free")."""
LIVE = 1
"""State of a block: allocated."""
WAITING = 2
"""State of a block: freed, but not reusable before events of other streams are reached."""

UNMAPPED = 3
"""State of a block: addresses without memory behind them."""

_STATE_NAMES = ("free", "live", "waiting", "unmapped")


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """A range of addresses, and the handle by which its owner frees it.

    `Allocator.free` ends a handle: it never becomes live again, even when its range is reused, so that a
    second free is always detected. Its address and size stay the same.

    Attributes
    ----------
    address : int
        First byte.
    nbytes : int
        Size as allocated, after rounding.
    requested : int
        Size as asked for, in bytes.
    stream : int
        Stream it was allocated for.
    owner : str, int or None
        Requester.
    state : int
        `FREE`, `LIVE`, `WAITING` or `UNMAPPED`.
    home : devices.memory.best_fit.FreeList or None
        Where it goes when freed; None for an allocator without free lists.
    prev, next : Block
        Neighbours in address order within the segment; unset for an allocator without segments.
    """

    address: int
    nbytes: int
    requested: int
    stream: int
    owner: Owner
    state: int
    home: Any
    prev: Block = field(init=False)
    next: Block = field(init=False)

    def __repr__(self) -> str:
        end = self.address + self.nbytes
        return f"<Block [{self.address:#x}, {end:#x}) {_STATE_NAMES[self.state]}, owner {self.owner!r}>"

    def span(self, segment: int) -> Span:
        """Return the block as a span of the segment that begins at address `segment`."""
        state = _STATE_NAMES[self.state]
        return Span(segment, self.address, self.nbytes, state, self.requested, self.stream, self.owner)


class Span(NamedTuple):
    """One row of a snapshot: a range of addresses and its contents (sizes in bytes)."""

    segment: int
    """Address at which its segment begins."""
    address: int
    nbytes: int
    state: str
    """``"live"``, ``"waiting"`` or ``"free"``."""
    requested: int
    stream: int
    owner: Owner


def round_up(nbytes: int, multiple: int) -> int:
    """Return the least multiple of `multiple` that is at least `nbytes`.

    Examples
    --------
    >>> round_up(513, 512), round_up(512, 512), round_up(0, 512)
    (1024, 512, 0)
    """
    return -(-nbytes // multiple) * multiple


# ----------------------------------------------------------------------------------------------------------
# Groups of tensors: the model or session that a tensor's name begins with.
#
#     train/0/grad      ──► train         sessions name their ops this way; any graph may
#     serve/2/head:1    ──► serve
#     serve on gpu1     ──► serve         the copy of it on another device
#     server/x          ──► server/x      no group: the owner itself

_ENDINGS = ("/", ":", " ")


class Groups:
    """Owner → the group that its name begins with, or the owner itself.

    Parameters
    ----------
    names : iterable of str
        The groups; if two match, the longer counts.

    Examples
    --------
    >>> group_of = Groups(["train", "train/b"])
    >>> [group_of(name) for name in ("train/a/x", "train/b/x", "train", "trainer")]
    ['train', 'train/b', 'train', 'trainer']
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(sorted(names, key=len, reverse=True))

    def __call__(self, owner: Owner) -> Owner:
        """Return the group of `owner`."""
        if isinstance(owner, str):
            for name in self.names:
                if owner == name or (owner.startswith(name) and owner[len(name)] in _ENDINGS):
                    return name
        return owner
