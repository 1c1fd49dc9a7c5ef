"""Out of memory, told so that a stranger knows what to do.

::

    out of memory on gpu0 (caching allocator): 'layer4/conv' asks for 512 MiB on stream 0
      limit            1 GiB
      in use           700 MiB in 12 blocks (690 MiB as requested)
      reserved         900 MiB, of which free 200 MiB
      largest free     100 MiB in one block
      largest holders  'embedding' 256 MiB; 'layer1/out' 128 MiB in 2 blocks; ...
      what would help  at least 188 MiB more memory, or as much less in use: ...
"""

from __future__ import annotations

from typing import NamedTuple

from devices.memory.blocks import Owner, Span
from sim.words.errors import OutOfMemoryError
from sim.words.units import format_bytes

__all__ = ["Shortage", "largest_holders", "out_of_memory"]

HOLDERS_SHOWN = 5


class Shortage(NamedTuple):
    """What an allocator has when it cannot serve a request; sizes in bytes, None: unlimited."""

    name: str
    """The device."""
    kind: str
    """The kind of allocator."""
    capacity: int | None
    """The device's memory."""
    limit: int | None
    """Most that this allocator may ever hold."""
    held: int
    """Taken from the device's memory, by this allocator."""
    others: int
    """Taken from it by others."""
    reserved: int
    in_use: int
    requested: int
    """Of what is in use, as asked for."""
    waiting: int
    """Freed, and waiting for events of other streams."""
    largest_free: int
    live: list[Span]
    """What is in use."""
    rounded: int
    """What the request takes at least."""
    fits_empty: bool
    """Whether the request could be met with nothing else allocated."""
    hints: list[str]
    """What the kind of allocator knows that would have let the request succeed."""


def out_of_memory(
    has: Shortage, nbytes: int, *, stream: int = 0, owner: Owner = None, where: str = ""
) -> OutOfMemoryError:
    """Return the error that says why a request was refused, and what would help.

    Parameters
    ----------
    has : Shortage
        After the failed attempt.
    nbytes, stream, owner
        The request.
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
    cached = has.reserved - has.in_use - has.waiting
    lines = [
        ("limit", _bytes(has.limit)),
        ("in use", f"{_bytes(has.in_use)} in {len(has.live)} block{'s' * (len(has.live) != 1)}"),
        ("reserved", f"{_bytes(has.reserved)}, of which free {_bytes(cached)}"),
        ("largest free", f"{_bytes(has.largest_free)} in one block"),
    ]
    if (untaken := (has.limit or 0) - has.held) > 0:
        lines.insert(1, ("not reserved", _bytes(untaken)))
    if has.requested != has.in_use:
        lost = _bytes(has.in_use - has.requested)
        lines.append(("lost inside", f"{lost} of what is in use: rounded up, or not worth splitting"))
    if has.others:
        lines.append(("other users", f"{_bytes(has.others)} of the device's {_bytes(has.capacity)}"))
    if has.live:
        lines.append(("largest holders", "; ".join(largest_holders(has.live))))
    lines.extend(("what would help", hint) for hint in _hints(has))
    asker = "a tensor" if owner is None else repr(owner)
    head = f"out of memory on {has.name} ({has.kind} allocator): {asker} asks for {_bytes(nbytes)}"
    body = "".join(f"\n  {key:<15}  {value}" for key, value in lines)
    return OutOfMemoryError(f"{head} on stream {stream}{f', {where}' if where else ''}{body}")


def _hints(has: Shortage) -> list[str]:
    """Return what would help, the most specific first."""
    hints = list(has.hints)
    if not has.fits_empty:
        return hints or ["a larger device, or a smaller tensor: by itself it is more than the limit"]
    if has.limit is None and hints:  # more memory than enough does not help
        return hints
    room = (has.limit or 0) - has.in_use - has.waiting
    if has.rounded > room:
        short = _bytes(has.rounded - room)
        hints.append(f"at least {short} more memory, or as much less in use: a smaller batch, recomputation")
    elif not hints:
        hints.append(
            f"less fragmentation: {_bytes(room)} are left, and not in one piece; a planned layout may fit, "
            "or `counted`, whose pages may lie anywhere"
        )
    return hints


def _bytes(nbytes: int | None) -> str:
    return format_bytes(nbytes, iec=True)


def largest_holders(spans: list[Span], count: int = HOLDERS_SHOWN) -> list[str]:
    """Name the owners that hold most, summed up by owner, the largest first.

    Examples
    --------
    >>> from devices.memory import PoolAllocator
    >>> pool = PoolAllocator()
    >>> blocks = [pool.alloc(1024, owner="a"), pool.alloc(512), pool.alloc(1024, owner="a")]
    >>> largest_holders(list(pool.spans()))
    ["'a' 2 KiB in 2 blocks", 'unnamed 512 B']
    """
    held: dict[Owner, list[int]] = {}
    for span in spans:
        if span.state == "live":
            held.setdefault(span.owner, []).append(span.nbytes)
    ranked = sorted(held.items(), key=lambda item: -sum(item[1]))[:count]
    shown = []
    for owner, sizes in ranked:
        blocks = f" in {len(sizes)} blocks" if len(sizes) > 1 else ""
        shown.append(f"{'unnamed' if owner is None else repr(owner)} {_bytes(sum(sizes))}{blocks}")
    return shown
