"""CUDA graphs of what a function launches; a capture that fails leaves nothing behind.

Torch tells its allocator of a capture before the driver begins it, and takes that back only when the driver
has ended it well (`capture_begin` and `capture_end` in PyTorch's aten/src/ATen/cuda/CUDAGraph.cpp). After a
failure the allocator would believe in a capture for ever, and `torch.cuda.empty_cache` would fail for good.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from sim.base.errors import RunError

_FAILED: Final[list[Any]] = []
"""Graphs whose capture failed: torch's allocator of page-locked memory goes on asking them."""


def captured(torch: Any, launch: Callable[[], Any], pool: Any) -> Any:
    """Return a CUDA graph of what `launch` puts on the current stream.

    Parameters
    ----------
    torch : module
    launch : callable
    pool : tuple of int
        From `torch.cuda.graph_pool_handle`. After a failure it is of no use to a further capture.

    Raises
    ------
    RunError
        It cannot be captured; what went wrong first is said.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        graph.capture_begin(pool=pool)
        try:
            launch()
        finally:
            graph.capture_end()
    except RuntimeError as error:
        _FAILED.append(graph)
        _end(torch, pool)
        first = error.__context__ or error  # that of `capture_end` only says that there was one
        raise RunError(str(first).partition("\n")[0] or type(first).__name__) from error
    return graph


def _end(torch: Any, pool: Any) -> None:
    """Let the allocator end the capture, if it believes in one, and give back the memory of its pool."""
    end = getattr(torch._C, "_cuda_endAllocateToPool", None)
    if end is None:  # before torch 2.8
        end = torch._C._cuda_endAllocateCurrentStreamToPool
    with suppress(RuntimeError):  # it was told
        device = torch.cuda.current_device()
        end(device, pool)
        torch._C._cuda_releasePool(device, pool)
