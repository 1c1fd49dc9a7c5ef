"""Allocators by name, as scenarios and the command line choose them.

A name is an entry point of the group ``sim.allocators``, the project's own as everybody else's; behind it
stands a class or function::

    make(capacity, *, name, OPTIONS)              bfc, caching, counted, pool, scratchpad
    make(events, capacity, *, name, OPTIONS)      planned: the first parameter is called `events`, and it is
                                                  given what will be asked for
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from devices.memory.allocator import Allocator
from devices.memory.allocators.virtual import VirtualDevices
from devices.memory.device_memory import DeviceMemory
from devices.memory.memory_event import MemoryEvent
from sim.words import plugins
from sim.words.errors import InputError, UnknownOptionError
from sim.words.options import parameters

__all__ = ["allocator_options", "allocators", "make_allocator", "needs_capacity"]

_GROUP: Final = "sim.allocators"


Maker = Callable[..., Allocator]
"""What makes an allocator: see above."""


def allocators() -> list[str]:
    """Return the names of all allocators, sorted.

    Examples
    --------
    >>> allocators()
    ['bfc', 'caching', 'counted', 'planned', 'pool', 'scratchpad']
    """
    return plugins.names(_GROUP)


def allocator_options(kind: str | Maker) -> dict[str, inspect.Parameter]:
    """Return the options of an allocator: its keyword-only parameters but ``name``.

    Raises
    ------
    UnknownNameError
        There is no such allocator.
    InputError
        What is registered under the name makes no allocator.

    Examples
    --------
    >>> list(allocator_options("caching"))
    ['limit', 'max_split_size', 'expandable_segments', 'roundup_power2_divisions']
    """
    known = _parameters(kind, _maker(kind)).values()
    return {p.name: p for p in known if p.kind is p.KEYWORD_ONLY and p.name != "name"}


def needs_capacity(kind: str) -> bool:
    """Return whether an allocator is of no use without a capacity, as a scratchpad (`allocator_options`)."""
    return _parameters(kind, _maker(kind))["capacity"].default is inspect.Parameter.empty


def _maker(kind: str | Maker) -> Maker:
    make: Maker = plugins.lookup(_GROUP, kind) if isinstance(kind, str) else kind
    return make


@functools.cache
def _parameters(kind: str | Maker, make: Maker) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of what makes an allocator, once they are what the module's picture says."""
    known = parameters(make) if callable(make) else {}
    first = [p.name for p in known.values() if p.kind is not p.KEYWORD_ONLY]
    if first not in (["capacity"], ["events", "capacity"]) or "name" not in known:
        raise InputError(
            f"the allocator {kind!r} is none: it should be a class or function make(capacity, *, name) "
            "or make(events, capacity, *, name), its options after the name"
        )
    return known


def make_allocator(
    kind: str | Maker,
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
    kind : str or callable
        A name in `allocators`, or what such a name stands for.
    capacity : int, DeviceMemory or None
        Bytes of the device; None: unlimited (not where `needs_capacity`).
    name : str
        The device, in error messages.
    events : iterable of MemoryEvent, optional
        What will be asked for: what ``planned`` plans (and any other whose first parameter is `events`).
    virtual_devices : mapping of str to int, optional
        Cut the memory into named parts with an allocator of this kind each (not ``planned``).
    **options
        What this kind of allocator takes: ``allow_growth``, ``max_split_size``, ``planner``, ...

    Raises
    ------
    UnknownNameError
        There is no such allocator.
    InputError
        It has no such option, a value makes no sense, something needed is not given, or what is registered
        under the name makes no allocator.

    Examples
    --------
    >>> make_allocator("bfc", 1 << 30, allow_growth=True).alloc(1000).nbytes
    1024
    >>> make_allocator("bcf")
    Traceback (most recent call last):
    sim.words.errors.UnknownNameError: unknown allocator 'bcf'; did you mean 'bfc'? Known: bfc, caching, ...
    """
    make = _maker(kind)
    planned = "events" in _parameters(kind, make)
    known = allocator_options(kind)
    for option in options:
        if option not in known:
            raise UnknownOptionError(f"the {kind} allocator", option, known)
    if virtual_devices:
        if planned or isinstance(capacity, DeviceMemory):
            raise InputError(f"{name}: a plan is for a whole device, and has no virtual devices")
        return VirtualDevices(
            capacity, virtual_devices, lambda memory, part: make(memory, name=part, **options), name=name
        )
    if not planned:
        return make(capacity, name=name, **options)
    if events is None:
        raise InputError(f"{name}: the {kind} allocator needs to know what will be asked for")
    return make(events, capacity, name=name, **options)
