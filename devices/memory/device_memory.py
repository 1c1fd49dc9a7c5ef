"""The memory of a device as its driver deals it out: what `cudaMalloc` and `cudaFree` see.

Physical memory is paged, so a driver succeeds whenever enough bytes are left, wherever they are: a
counter decides. Addresses are virtual and there are plenty. A range that was given back is given out
again for a request of the same size (the lowest first); otherwise addresses only grow.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

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
        """Return the address of `nbytes` of memory, or None when fewer are left."""
        if not self.commit(nbytes):
            return None
        holes = self._holes.get(nbytes)
        address = heapq.heappop(holes) if holes else self.reserve(nbytes)
        self._live[address] = nbytes
        return address

    def free(self, address: int, nbytes: int) -> None:
        """Give back what `malloc` gave.

        Raises
        ------
        InvariantError
            There is no such allocation.
        """
        if self._live.pop(address, None) != nbytes:
            raise InvariantError(f"the device never gave out {nbytes} bytes at address {address:#x}")
        self.used -= nbytes
        heapq.heappush(self._holes.setdefault(nbytes, []), address)

    def reserve(self, nbytes: int) -> int:
        """Return the first of `nbytes` addresses that nothing else uses, and that no memory backs yet.

        So does `cuMemAddressReserve` (CUDA Driver API, virtual memory management); `commit` and `release`
        account for the pages that are then mapped there.
        """
        address = self._next
        self._next += round_up(nbytes, ALIGNMENT_BYTES)
        return address

    def commit(self, nbytes: int) -> bool:
        """Take `nbytes` for reserved addresses, or none and return False when fewer are left."""
        if self.capacity is not None and self.used + nbytes > self.capacity:
            return False
        self.used += nbytes
        return True

    def release(self, nbytes: int) -> None:
        """Give back what `commit` took."""
        self.used -= nbytes


# ----------------------------------------------------------------------------------------------------------
# Blocks: ranges of addresses, who holds them, and what state they are in.

Owner = str | int | None
"""Who asks for memory: a tensor's name, an index, or nobody in particular."""

FREE = 0
"""State of a block: in a free list (false, so that ``if not block.state`` reads "is free")."""
LIVE = 1
"""State of a block: allocated."""
WAITING = 2
"""State of a block: freed, and not to be reused before events of other streams were reached."""

UNMAPPED = 3
"""State of a block: addresses without memory behind them."""

_STATE_NAMES = ("free", "live", "waiting", "unmapped")


class Home(Protocol):
    """Where a block goes when it is free: a list of free blocks."""

    def give(self, block: Block) -> None:
        """Add the range of `block`, which dies, merged with its free neighbours."""

    def remove(self, block: Block) -> None:
        """Take a free block out of the list."""


@dataclass(slots=True, eq=False, repr=False)
class Block:
    """A range of addresses, and the handle by which its owner frees it.

    A handle dies with `Allocator.free`: it never becomes live again, even when its range is handed out
    anew, so that a second free is always noticed. Its address and size stay what they were.

    Attributes
    ----------
    address : int
        First byte.
    nbytes : int
        Size as allocated, that is after rounding.
    requested : int
        Size as asked for, in bytes.
    stream : int
        Stream it was allocated for.
    owner : str, int or None
        Who asked.
    state : int
        `FREE`, `LIVE`, `WAITING` or `UNMAPPED`.
    home : Home or None
        Where it goes when it is free; None for an allocator without free lists.
    prev, next : Block
        Neighbours in address order within the segment; unset for an allocator without segments.
    """

    address: int
    nbytes: int
    requested: int
    stream: int
    owner: Owner
    state: int
    home: Home | None
    prev: Block = field(init=False)
    next: Block = field(init=False)

    def __repr__(self) -> str:
        end = self.address + self.nbytes
        return f"<Block [{self.address:#x}, {end:#x}) {_STATE_NAMES[self.state]}, owner {self.owner!r}>"

    def span(self, segment: int) -> Span:
        """Return what lies here, in the segment that begins at that address."""
        state = _STATE_NAMES[self.state]
        return Span(segment, self.address, self.nbytes, state, self.requested, self.stream, self.owner)


class Span(NamedTuple):
    """One row of a snapshot: a range of addresses and what it holds (sizes in bytes)."""

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
# Whose tensor it is: the model, or session, that a tensor's name begins with.
#
#     train/0/grad      ──► train         sessions name their ops so; any graph may
#     serve/2/head:1    ──► serve
#     serve on gpu1     ──► serve         the copy of it on another device
#     server/x          ──► server/x      nobody's: a group of its own

_ENDINGS = ("/", ":", " ")


class Groups:
    """Owner → the group that its name begins with, or the owner itself.

    Parameters
    ----------
    names : iterable of str
        The groups. Of two that fit the longer counts.

    Examples
    --------
    >>> group_of = Groups(["train", "train/b"])
    >>> [group_of(name) for name in ("train/a/x", "train/b/x", "train", "trainer")]
    ['train', 'train/b', 'train', 'trainer']
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(sorted(names, key=len, reverse=True))
        self._known: dict[Owner, Owner] = {}

    def __call__(self, owner: Owner) -> Owner:
        """Return the group of `owner`."""
        if owner not in self._known:
            self._known[owner] = self._find(owner)
        return self._known[owner]

    def _find(self, owner: Owner) -> Owner:
        if isinstance(owner, str):
            for name in self.names:
                if owner == name or (owner.startswith(name) and owner[len(name)] in _ENDINGS):
                    return name
        return owner
