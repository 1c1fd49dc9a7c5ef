"""The software-managed SRAM of an NPU core, and the tiles that are moved through it.

A scratchpad caches nothing: a compiler decides what lies in it, DMA engines move tiles in and out, and with
two buffers for each operand the next tile arrives while the present one is computed on::

    buffer 0   │ load 0 │ compute 0 │ load 2    │ compute 2 │ ...
    buffer 1            │ load 1    │ compute 1 │ load 3    │ ...

The finer the tiles, the less SRAM; but there is a smallest tile (a granule: one row, one block of the
matrix unit), and what does not fit even so is refused, with the size that would do.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass

from devices.describe.field_types import Bytes
from devices.memory.device_memory import Block, DeviceMemory, Owner, round_up
from devices.memory.pool import PoolAllocator
from sim.base.errors import InfeasibleError, InputError, InvariantError
from sim.base.units import format_bytes

ALIGNMENT_BYTES = 64
"""Default alignment of tiles: a burst of most DMA engines."""


class ScratchpadAllocator(PoolAllocator):
    """A small arena: tiles go where they fit best, or exactly where the program says.

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
    >>> sram.place(512, 100, owner="weights").nbytes, sram.alloc(500).address
    (128, 0)
    """

    kind = "scratchpad"

    def __init__(
        self,
        capacity: int | DeviceMemory | None,
        *,
        alignment: Bytes = ALIGNMENT_BYTES,
        name: str = "scratchpad",
    ) -> None:
        super().__init__(capacity, alignment=alignment, name=name)
        if self.limit is None:
            raise InputError(f"{name}: a scratchpad is small; give its capacity")

    def place(self, address: int, nbytes: int, *, stream: int = 0, owner: Owner = None) -> Block:
        """Allocate `nbytes` at `address`.

        Raises
        ------
        InputError
            The address is not aligned, or no bytes are asked for.
        InvariantError
            Something lies there, or the range leaves the scratchpad.
        """
        if address % self._alignment or nbytes <= 0:
            raise InputError(
                f"{self.name}: {owner!r} is placed at {address} with {nbytes} bytes; give at least one byte, "
                f"and an address that is a multiple of {self._alignment}"
            )
        need = self.rounded(nbytes)
        for free in self._free.blocks():
            if free.address <= address and address + need <= free.address + free.nbytes:
                break
        else:
            raise InvariantError(
                f"{self.name}: {owner!r} is placed at {address}, where there are no {need} free bytes"
            )
        self._free.remove(free)
        gap = address - free.address
        if gap:
            below, free = self._free.carve(free, gap, 1, 0, stream, None), free.next
            self._free.remove(free)  # what carving had put back: the part from `address` on
        block = self._free.carve(free, need, 1, nbytes, stream, owner)
        if gap:
            self._free.give(below)
        self._took(block)
        self._reserve(max(0, address + need - self._base - self.reserved))
        return block


@dataclass(frozen=True)
class Operand:
    """What an op reads or writes through the scratchpad.

    Attributes
    ----------
    nbytes : int
        All of it.
    granule : int
        The smallest tile, in bytes.
    resident : bool
        Stays in the scratchpad whole (a bias, an accumulator) instead of passing through in tiles.
    """

    nbytes: int
    granule: int = 1
    resident: bool = False


@dataclass(frozen=True)
class Tiling:
    """How an op's operands pass through the scratchpad.

    Attributes
    ----------
    tiles : int
        How many tiles each streamed operand is cut into (the last ones may be smaller, or empty).
    buffers : int
        Buffers for each streamed operand; 1 when everything fits at once.
    tile_nbytes : dict
        Operand → bytes of one tile, or of all of a resident one.
    nbytes : int
        Scratchpad taken, alignment included.
    """

    tiles: int
    buffers: int
    tile_nbytes: dict[str, int]
    nbytes: int


def tile(
    operands: Mapping[str, Operand],
    capacity: int,
    *,
    buffers: int = 2,
    at_least: int = 1,
    alignment: int = ALIGNMENT_BYTES,
    what: str = "an op",
) -> Tiling:
    """Cut operands into the fewest tiles that fit a scratchpad.

    Parameters
    ----------
    operands : mapping
        Name → operand. All streamed ones are cut into the same number of tiles.
    capacity : int
        Bytes of the scratchpad.
    buffers : int
        Buffers for each streamed operand: 2 lets the next tile load while this one is computed on.
    at_least : int
        As many tiles at least, as far as the smallest tiles allow.
    alignment : int
        Of every buffer, in bytes.
    what : str
        Which op, in error messages.

    Raises
    ------
    InfeasibleError
        Even the smallest tiles do not fit; the message names the least capacity that would do.
    InputError
        No buffer, or an operand with a size below zero or a granule below one byte.

    Examples
    --------
    >>> tile({"x": Operand(4096, granule=256), "bias": Operand(64, resident=True)}, capacity=1100)
    Tiling(tiles=8, buffers=2, tile_nbytes={'x': 512, 'bias': 64}, nbytes=1088)
    """
    if buffers < 1:
        raise InputError(f"{what}: {buffers} buffers for a tile; give 1 or more")
    for name, operand in operands.items():
        if operand.nbytes < 0 or operand.granule < 1:
            raise InputError(
                f"{what}: operand {name!r} of {operand.nbytes} bytes in granules of {operand.granule}"
            )
    finest = max([1, *(_granules(operand) for operand in operands.values() if not operand.resident)])

    def cut(tiles: int) -> Tiling:
        return cut_into(tiles, operands, buffers=buffers, alignment=alignment)

    # One tile needs no second buffer; from two tiles on, more tiles never take more room.
    whole = cut(1)
    first = min(max(2, at_least), finest)
    if whole.nbytes <= capacity and (at_least <= 1 or finest == 1):
        return whole
    if finest > 1 and cut(finest).nbytes <= capacity:
        fewest = bisect_left(range(first, finest + 1), True, key=lambda tiles: cut(tiles).nbytes <= capacity)
        return cut(first + fewest)
    least = min(whole.nbytes, cut(finest).nbytes)
    have, need = (format_bytes(nbytes, iec=True) for nbytes in (capacity, least))
    raise InfeasibleError(
        f"{what} does not fit a scratchpad of {have}, not even in the smallest tiles; "
        f"{need} ({least} bytes) would do"
    )


def cut_into(
    tiles: int, operands: Mapping[str, Operand], *, buffers: int = 2, alignment: int = ALIGNMENT_BYTES
) -> Tiling:
    """Cut operands into so many tiles, whatever room they take; see `tile`.

    Examples
    --------
    >>> cut_into(4, {"x": Operand(4096, granule=256)}).nbytes
    2048
    """
    depth = buffers if tiles > 1 else 1
    sizes, total = {}, 0
    for name, operand in operands.items():
        sizes[name] = operand.nbytes
        if not operand.resident:
            part = -(-_granules(operand) // tiles) * operand.granule
            sizes[name] = min(operand.nbytes, part)
        total += round_up(sizes[name], alignment) * (1 if operand.resident else depth)
    return Tiling(tiles, depth, sizes, total)


def _granules(operand: Operand) -> int:
    return -(-operand.nbytes // operand.granule)
