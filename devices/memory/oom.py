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

from devices.memory.blocks import Owner, Span
from sim.words.errors import OutOfMemoryError
from sim.words.units import format_bytes

__all__ = ["largest_holders", "more_memory", "out_of_memory", "shown"]

HOLDERS_SHOWN = 5


def out_of_memory(name: str, kind: str, what: str, lines: list[tuple[str, str]]) -> OutOfMemoryError:
    """Return the error that says why there was no room, and what would help.

    Parameters
    ----------
    name, kind : str
        The device, and the kind of its allocator.
    what : str
        What there was no room for.
    lines : list of (str, str)
        What there is, and what would help.
    """
    body = "".join(f"\n  {key:<15}  {value}" for key, value in lines)
    return OutOfMemoryError(f"out of memory on {name} ({kind} allocator): {what}{body}")


def more_memory(short: int) -> str:
    """Return the advice for want of so many bytes."""
    return f"at least {shown(short)} more memory, or as much less in use: a smaller batch, recomputation"


def shown(nbytes: int | None) -> str:
    """Return a size as these messages show it."""
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
    names = []
    for owner, sizes in ranked:
        blocks = f" in {len(sizes)} blocks" if len(sizes) > 1 else ""
        names.append(f"{'unnamed' if owner is None else repr(owner)} {shown(sum(sizes))}{blocks}")
    return names
