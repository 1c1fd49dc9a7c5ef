"""Allocations in host order through torch's caching allocator, with its counters after every step.

No kernel runs, so nothing depends on time: the result is a pure function of the steps. The streams used
hold no segment yet, and the cache is emptied first, so that the allocator begins empty as far
as these streams are concerned, whatever else the process has allocated.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from typing import Any

from sim.base.errors import InfeasibleError

MemoryStep = Sequence[Any]
"""``["alloc", id, nbytes, stream]``, ``["free", id]`` or ``["empty_cache"]``."""


def idle_streams(torch: Any, n: int) -> list[Any]:
    """Return streams for which the allocator holds no segment.

    Torch takes streams in turn from a pool of 32, so one may have been used before.

    Raises
    ------
    InfeasibleError
        All of them hold something, or the allocator's rules were changed otherwise than by name.
    """
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    segments = torch.cuda.memory_snapshot()
    if any(segment.get("is_expandable") for segment in segments):
        raise InfeasibleError("the allocator has expandable segments: other rules than the ones compared")
    held = {segment["stream"] for segment in segments}
    found: dict[int, Any] = {}
    for _ in range(64):
        stream = torch.cuda.Stream()
        if stream.cuda_stream not in held:
            found.setdefault(stream.cuda_stream, stream)
        if len(found) == n:
            return list(found.values())
    raise InfeasibleError(f"only {len(found)} of torch's streams hold no memory; {n} are needed")


def run_steps(torch: Any, steps: Sequence[MemoryStep]) -> tuple[list[int], list[int]]:
    """Run steps; return the bytes allocated and the bytes reserved after each.

    Raises
    ------
    InfeasibleError
        The allocator does not have default settings, or no stream without memory is left.
    """
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING"):
        if os.environ.get(name):
            raise InfeasibleError(f"{name} is set: the allocator has other rules than the ones compared")
    count = 1 + max((step[3] for step in steps if step[0] == "alloc"), default=0)
    streams = idle_streams(torch, count)
    live: dict[int, Any] = {}
    allocated, reserved = [], []
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    for step in steps:
        if step[0] == "alloc":
            with torch.cuda.stream(streams[step[3]]):
                live[step[1]] = torch.empty(step[2], dtype=torch.uint8, device="cuda")
        elif step[0] == "free":
            del live[step[1]]
        else:
            torch.cuda.empty_cache()
        allocated.append(torch.cuda.memory_allocated() - before[0])
        reserved.append(torch.cuda.memory_reserved() - before[1])
    live.clear()
    torch.cuda.empty_cache()
    return allocated, reserved
