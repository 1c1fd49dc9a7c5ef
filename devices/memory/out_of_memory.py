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

from collections.abc import Sequence

from devices.memory.device_memory import DeviceMemory, Owner, Span
from devices.memory.planners import ArenaPlan, fullest_step
from sim.base.errors import OutOfMemoryError
from sim.base.units import format_bytes

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


# ----------------------------------------------------------------------------------------------------------
# Out of memory before the run: a static plan is larger than what its device has left.
#
# It is told as `devices.memory.out_of_memory` tells of a request that failed, with the tensors of the
# fullest step in the place of those that are in use.


def plan_too_large(
    plan: ArenaPlan, owners: Sequence[Owner], memory: DeviceMemory, name: str
) -> OutOfMemoryError:
    """Return the error that says why a plan does not fit its device, and what would help.

    Parameters
    ----------
    plan : Plan
        As large as it is.
    owners : sequence
        Whose its tensors are, in its order.
    memory : DeviceMemory
        Of the device, with whatever else is there (parameters).
    name : str
        The device.

    Examples
    --------
    >>> from devices.memory.device_memory import DeviceMemory
    >>> from devices.memory.planners import plan_greedy
    >>> from devices.memory.planners import Lifetime
    >>> plan = plan_greedy([Lifetime(6144, 0, 1), Lifetime(4096, 1, 2), Lifetime(2048, 2, 2)])
    >>> print(plan_too_large(plan, ["a", "b", "c"], DeviceMemory(8192), "npu"))
    out of memory on npu (planned allocator): the plan (greedy) takes 10 KiB of 8 KiB left, before time 0
      limit            8 KiB
      least plan       10 KiB: no plan for this order is known to take less
      largest holders  'a' 6 KiB; 'b' 4 KiB, at step 1 of the plan, its fullest
      what would help  at least 2 KiB more memory, or as much less in use: a smaller batch, recomputation
    """
    left = (memory.capacity or 0) - memory.used
    lines = [("limit", shown(memory.capacity))]
    if memory.used:
        lines.append(("other users", f"{shown(memory.used)} that are not planned, such as parameters"))
    lines.append(("least plan", f"{shown(plan.bound)}: no plan for this order is known to take less"))
    step = fullest_step(plan.lifetimes)
    live = [
        Span(0, 0, one.nbytes, "live", one.nbytes, 0, owner)
        for owner, one in zip(owners, plan.lifetimes, strict=True)
        if one.nbytes and one.first <= step <= one.last
    ]
    holders = "; ".join(largest_holders(live))
    lines.append(("largest holders", f"{holders}, at step {step} of the plan, its fullest"))
    if plan.bound <= left:
        lines.append(("what would help", "another planner, or the order of another linearizer"))
    lines.append(("what would help", more_memory(plan.nbytes - left)))
    what = f"the plan ({plan.planner}) takes {shown(plan.nbytes)} of {shown(left)} left, before time 0"
    return out_of_memory(name, "planned", what, lines)
