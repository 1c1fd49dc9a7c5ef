"""Allocators by name, as scenarios and the command line choose them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from devices.memory.base import Allocator
from devices.memory.bfc import BfcAllocator
from devices.memory.caching import CachingAllocator
from devices.memory.counted import CountedAllocator
from devices.memory.device import DeviceMemory
from devices.memory.events import MemoryEvent
from devices.memory.planned import PlannedAllocator
from devices.memory.pool import PoolAllocator
from devices.memory.scratchpad import ScratchpadAllocator
from devices.memory.virtual import VirtualDevices
from sim.errors import InputError, UnknownNameError

__all__ = ["ALLOCATORS", "make_allocator"]

ALLOCATORS: dict[str, Callable[..., Allocator]] = {
    "pool": PoolAllocator,
    "bfc": BfcAllocator,
    "caching": CachingAllocator,
    "counted": CountedAllocator,
    "planned": PlannedAllocator.from_events,
    "scratchpad": ScratchpadAllocator,
}
"""Name → what makes it: called with the capacity (``planned``: with the events first) and options."""


def make_allocator(
    kind: str,
    capacity: int | DeviceMemory | None = None,
    *,
    name: str = "device",
    events: Iterable[MemoryEvent] | None = None,
    virtual_devices: Mapping[str, int] | None = None,
    **options: Any,
) -> Allocator:
    """Make an allocator by its name.

    Parameters
    ----------
    kind : str
        A name in `ALLOCATORS`.
    capacity : int, DeviceMemory or None
        Bytes of the device; None: unlimited (not for ``scratchpad``).
    name : str
        The device, in error messages.
    events : iterable of MemoryEvent, optional
        What will be asked for: what ``planned`` plans.
    virtual_devices : mapping of str to int, optional
        Cut the memory into named parts with an allocator of this kind each (not ``planned``).
    **options
        What this kind of allocator takes: ``allow_growth``, ``max_split_size``, ``planner``, ...

    Raises
    ------
    UnknownNameError
        There is no such allocator, or it has no such option.
    InputError
        An option's value makes no sense, or something needed is not given.

    Examples
    --------
    >>> make_allocator("bfc", 1 << 30, allow_growth=True).alloc(1000).nbytes
    1024
    >>> make_allocator("bcf")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    sim.errors.UnknownNameError: unknown allocator 'bcf'; did you mean 'bfc'? Known: bfc, caching, ...
    """
    make = ALLOCATORS.get(kind)
    if make is None:
        raise UnknownNameError("allocator", kind, ALLOCATORS)
    known = [p.name for p in inspect.signature(make).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in options:
        if option not in known:
            raise UnknownNameError(f"option of the {kind} allocator", option, set(known) - {"name"})
    if virtual_devices:
        if kind == "planned" or isinstance(capacity, DeviceMemory):
            raise InputError(f"{name}: a plan is for a whole device, and has no virtual devices")
        return VirtualDevices(
            capacity, virtual_devices, lambda memory, part: make(memory, name=part, **options), name=name
        )
    if kind != "planned":
        return make(capacity, name=name, **options)
    if events is None:
        raise InputError(f"{name}: the planned allocator needs to know what will be asked for")
    return make(events, capacity, name=name, **options)
