"""Out of memory before the run: a static plan is larger than what its device has left.

It is told as `devices.memory.oom` tells of a request that failed, with the tensors of the fullest step in the
place of those that are in use.
"""

from __future__ import annotations

from collections.abc import Sequence

from devices.memory.blocks import Owner, Span
from devices.memory.device_memory import DeviceMemory
from devices.memory.oom import largest_holders, more_memory, out_of_memory, shown
from devices.memory.plan.plan_problem import Plan, fullest_step
from sim.words.errors import OutOfMemoryError

__all__ = ["plan_too_large"]


def plan_too_large(plan: Plan, owners: Sequence[Owner], memory: DeviceMemory, name: str) -> OutOfMemoryError:
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
    >>> from devices.memory.plan.greedy_by_size import plan_greedy
    >>> from devices.memory.plan.plan_problem import Lifetime
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
