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

from typing import TYPE_CHECKING

from sim.errors import OutOfMemoryError
from sim.units import format_bytes

if TYPE_CHECKING:
    from devices.memory.base import Allocator, Owner, Span

__all__ = ["largest_holders", "out_of_memory"]

HOLDERS_SHOWN = 5


def out_of_memory(
    allocator: Allocator, nbytes: int, *, stream: int = 0, owner: Owner = None, where: str = ""
) -> OutOfMemoryError:
    """Return the error that says why `allocator` cannot serve a request, and what would help.

    Parameters
    ----------
    allocator : Allocator
        As it is after the failed attempt.
    nbytes, stream, owner
        The request.
    where : str
        When it happened: an instant, a line of a trace.

    Examples
    --------
    >>> from devices.memory import PoolAllocator
    >>> pool = PoolAllocator(4096, name="npu0")
    >>> block = pool.alloc(3072, owner="weights")
    >>> print(out_of_memory(pool, 2048, owner="scores"))
    out of memory on npu0 (pool allocator): 'scores' asks for 2 KiB on stream 0
      limit            4 KiB
      in use           3 KiB in 1 block
      reserved         3 KiB, of which free 0 B
      largest free     1 KiB in one block
      largest holders  'weights' 3 KiB
      what would help  at least 1 KiB more memory, or as much less in use: a smaller batch, recomputation
    """
    allocator = allocator.serving(owner)
    spans = [span for span in allocator.spans() if span.state == "live"]
    cached = allocator.reserved - allocator.in_use - allocator.waiting
    lines = [
        ("limit", _bytes(allocator.limit)),
        ("in use", f"{_bytes(allocator.in_use)} in {len(spans)} block{'s' * (len(spans) != 1)}"),
        ("reserved", f"{_bytes(allocator.reserved)}, of which free {_bytes(cached)}"),
        ("largest free", f"{_bytes(allocator.largest_free())} in one block"),
    ]
    if (untaken := (allocator.limit or 0) - allocator.held) > 0:
        lines.insert(1, ("not reserved", _bytes(untaken)))
    if allocator.requested != allocator.in_use:
        lost = _bytes(allocator.in_use - allocator.requested)
        lines.append(("lost inside", f"{lost} of what is in use: rounded up, or not worth splitting"))
    others = allocator.memory.used - allocator.held
    if others:
        lines.append(("other users", f"{_bytes(others)} of the device's {_bytes(allocator.memory.capacity)}"))
    if spans:
        lines.append(("largest holders", "; ".join(largest_holders(spans))))
    lines.extend(("what would help", hint) for hint in _hints(allocator, nbytes, stream, owner))
    asker = "a tensor" if owner is None else repr(owner)
    head = (
        f"out of memory on {allocator.name} ({allocator.kind} allocator): {asker} asks for {_bytes(nbytes)}"
    )
    body = "".join(f"\n  {key:<15}  {value}" for key, value in lines)
    return OutOfMemoryError(f"{head} on stream {stream}{f', {where}' if where else ''}{body}")


def _hints(allocator: Allocator, nbytes: int, stream: int, owner: Owner) -> list[str]:
    """Return what would help, the most specific first."""
    hints = allocator.oom_hints(nbytes, stream, owner)
    if not allocator.fits_empty(nbytes, stream, owner):
        return hints or ["a larger device, or a smaller tensor: by itself it is more than the limit"]
    if allocator.limit is None and hints:  # more memory than enough does not help
        return hints
    room = (allocator.limit or 0) - allocator.in_use - allocator.waiting
    need = allocator.rounded(nbytes)
    if need > room:
        short = _bytes(need - room)
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
