"""What calls of the CUDA, HIP and SYCL runtimes and drivers do, by their names."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

__all__ = [
    "ALL",
    "APART_NS",
    "COPY_FROM_PAGEABLE",
    "EVENT",
    "FREE",
    "ON_DEVICE",
    "STREAM",
    "STREAM_WAIT",
    "waits_for_copy",
]

APART_NS: Final = 10_000
"""What the clocks of host and device may be apart; on an MI300X, tasks ended 8.5 us after calls that wait."""
ALL: Final = re.compile(r"(cuda|hip)DeviceSynchronize|cuCtxSynchronize")
FREE: Final = re.compile(r"(cuda|hip)(Host)?Free(?!Async)|cuMemFree(?!Async)")
STREAM: Final = re.compile(r"(cuda|hip|cu)StreamSynchronize|ur(QueueFinish|EventWait)$")
EVENT: Final = re.compile(r"(cuda|hip|cu)EventSynchronize")
STREAM_WAIT: Final = re.compile(r"(cuda|hip|cu)StreamWaitEvent")
ON_DEVICE: Final = re.compile(r"DtoD|DeviceToDevice|PtoP")
COPY_FROM_PAGEABLE: Final = re.compile(r"Pageable -> Device")
_COPY: Final = re.compile(r"(cuda|hip|cu)Memcpy(?!.*(Async|Peer))")
_WITH_STREAM: Final = re.compile(r"hipMemcpyWithStream")
_TO_PAGEABLE: Final = re.compile(r"Device -> Pageable")


@lru_cache(maxsize=4096)
def waits_for_copy(call: str, task: str) -> bool:
    """Whether a call of this name, which launches a task of that name, returns only when it has ended."""
    waits = _COPY.match(call) and not ON_DEVICE.search(task)
    return bool(waits or _WITH_STREAM.match(call) or _TO_PAGEABLE.search(task))
