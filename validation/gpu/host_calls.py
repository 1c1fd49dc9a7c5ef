"""What the calls of a host cost it: a kernel, a copy, a CUDA graph, recording an event, waiting for one.

::

    stream   [ spin .................................... ]      nothing behind it starts before all is issued
    host       launch, launch, launch, ...  ÷ how many          so the device does not hold the host up

Needs torch; `torch` is an argument, because tests pass another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from validation.gpu.gpu_probes import GATE_CYCLES, buffers
from validation.host.clock import now_ns, quiet_interpreter

__all__ = ["CALLS", "issue_costs_ns"]

CALLS: Final = 64
"""In a row, between two looks at the clock: few against the depth of a launch queue, some 1,000."""

_COPY_BYTES: Final = 4096


def issue_costs_ns(torch: Any, n: int) -> dict[str, list[float]]:
    """Return samples of what one call of each kind costs the host; two more come first and are left out.

    Parameters
    ----------
    torch : module
    n : int
        Samples of each kind.

    Returns
    -------
    dict of str to list of float
        ns by kind: ``kernel``, ``copy`` (pinned, to the device), ``graph`` (of one kernel), ``record`` and
        ``wait``.
    """
    source, target = buffers(torch, "h2d", _COPY_BYTES, pinned=True)
    stream, event, graph = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        try:
            torch.cuda._sleep(1)
        finally:
            graph.capture_end()
        event.record(stream)
        kinds: dict[str, Callable[[], Any]] = {
            "kernel": lambda: torch.cuda._sleep(1),
            "copy": lambda: target.copy_(source, non_blocking=True),
            "graph": graph.replay,
            "record": lambda: event.record(stream),
            "wait": lambda: stream.wait_event(event),
        }
        return {kind: [_cost_ns(torch, call) for _ in range(n + 2)][2:] for kind, call in kinds.items()}


def _cost_ns(torch: Any, call: Callable[[], Any]) -> float:
    """Return what one call takes, of `CALLS` behind a spin."""
    torch.cuda.synchronize()
    torch.cuda._sleep(10 * GATE_CYCLES)
    with quiet_interpreter():
        begin = now_ns()
        for _ in range(CALLS):
            call()
        took_ns = now_ns() - begin
    torch.cuda.synchronize()
    return took_ns / CALLS
