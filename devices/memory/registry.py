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
from dataclasses import dataclass, field
from typing import Any, Final

from devices.memory.allocator import Allocator
from devices.memory.device_memory import DeviceMemory, Groups
from devices.memory.pool import VirtualDevices
from devices.memory.trace_readers import MemoryEvent
from sim.base import plugins
from sim.base.errors import InputError, UnknownOptionError
from sim.base.options import arguments, parameters, require_call

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
    options = _parameters(kind, _maker(kind)).values()
    return {p.name: p for p in options if p.kind is p.KEYWORD_ONLY and p.name != "name"}


def needs_capacity(kind: str) -> bool:
    """Return whether an allocator is of no use without a capacity, as a scratchpad (`allocator_options`)."""
    return _parameters(kind, _maker(kind))["capacity"].default is inspect.Parameter.empty


def _maker(kind: str | Maker) -> Maker:
    make: Maker = plugins.lookup(_GROUP, kind) if isinstance(kind, str) else kind
    return make


@functools.cache
def _parameters(kind: str | Maker, make: Maker) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of what makes an allocator, once they are what the module's picture says."""
    params = parameters(make) if callable(make) else {}
    first = [p.name for p in params.values() if p.kind is not p.KEYWORD_ONLY]
    if first not in (["capacity"], ["events", "capacity"]) or "name" not in params:
        raise InputError(
            f"the allocator {getattr(kind, '__name__', kind)!r} is none: it should be a class or function "
            "make(capacity, *, name) or make(events, capacity, *, name), its options after the name"
        )
    return params


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
    sim.base.errors.UnknownNameError: unknown allocator 'bcf'; did you mean 'bfc'? Known: bfc, caching, ...
    """
    make = _maker(kind)
    planned = "events" in _parameters(kind, make)
    known, called = allocator_options(kind), getattr(kind, "__name__", kind)
    for option in options:
        if option not in known:
            raise UnknownOptionError(f"the {called} allocator", option, known)
    if virtual_devices:
        if planned or isinstance(capacity, DeviceMemory):
            raise InputError(f"{name}: a plan is for a whole device, and has no virtual devices")
        return VirtualDevices(
            capacity, virtual_devices, lambda memory, part: make(memory, name=part, **options), name=name
        )
    if planned and events is None:
        raise InputError(f"{name}: the {called} allocator needs to know what will be asked for")
    if lacks := sorted(getattr(make, "__abstractmethods__", ())):
        raise InputError(f"the allocator {make.__name__} should have a method {lacks[0]}; it has none")
    allocator: Any = make(*([events] if planned else []), capacity, name=name, **options)
    if not isinstance(allocator, Allocator):
        raise InputError(f"{make.__name__} returned {allocator!r:.60}, should be a devices.memory.Allocator")
    title = f"the allocator {type(allocator).__name__}"
    require_call(title, allocator, "nbytes", "stream", "owner", method="try_alloc")
    require_call(title, allocator, "block", method="free")
    return allocator


# ----------------------------------------------------------------------------------------------------------
# How the memory of one device is managed, as a description says it.
#
#     allocator: caching
#     allocator: {name: pool, limits: {train: 50GB, serve: 20GB}}
#     allocator: {name: caching, max_split_size: 20MB, malloc: 150us, free: 100us, synchronisation: 10us}
#                       │              └ an option of it                 └ what calls to the device cost
#                       └ a name of `devices.memory.allocators()`


@dataclass(frozen=True)
class MemorySpec:
    """How the memory of one device is managed.

    Attributes
    ----------
    allocator : str or callable
        A name of `devices.memory.allocators()`, or what such a name stands for.
    malloc_ns, free_ns, synchronisation_ns : int
        What a device malloc, a device free and a synchronisation cost who makes them.
    options : mapping
        Options of the allocator.
    """

    allocator: str | Maker = "pool"
    malloc_ns: int = 0
    free_ns: int = 0
    synchronisation_ns: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def costs(self) -> bool:
        """Whether calls to the device cost anything."""
        return bool(self.malloc_ns or self.free_ns or self.synchronisation_ns)


def read_allocator(value: object, origin: plugins.Origin = plugins.NOWHERE) -> MemorySpec:
    """Read a description: the name of an allocator, or a mapping with its name, costs and options.

    Parameters
    ----------
    value : str or mapping
    origin : Origin
        What code the name may be (``module:attribute``).

    Raises
    ------
    UnknownNameError
        There is no such allocator.
    InputError
        An option that it does not have, a cost without its unit, or something that is neither a word nor a
        mapping.

    Examples
    --------
    >>> read_allocator({"name": "caching", "max_split_size": "20MiB", "malloc": "150us"})
    MemorySpec(allocator='caching', malloc_ns=150000, free_ns=0, synchronisation_ns=0, \
options={'max_split_size': 20971520})
    >>> read_allocator("cacheing")
    Traceback (most recent call last):
        ...
    sim.base.errors.UnknownNameError: unknown allocator 'cacheing'; did you mean 'caching'? Known: bfc,
    caching, \
counted, planned, pool, scratchpad
    """
    spec = {"name": value} if isinstance(value, str) else value
    if not isinstance(spec, Mapping) or not isinstance(spec.get("name"), str):
        raise InputError(
            f"{value!r} is no allocator; accepted: its name, as in caching, "
            "or a mapping, as in {name: caching, malloc: 150us}"
        )
    name: str = spec["name"]
    kind = origin.lookup("sim.allocators", name) if ":" in name else name
    calls = {key: parameter for key, parameter in parameters(MemorySpec).items() if key.endswith("_ns")}
    accepted = {key: parameter for key, parameter in allocator_options(kind).items() if key != "group_of"}
    options = {key: value for key, value in spec.items() if key != "name"}
    chosen = arguments(f"the {name} allocator", {**accepted, **calls}, options)
    if "limits" in chosen:
        chosen["group_of"] = Groups(chosen["limits"])
    return MemorySpec(kind, **{key: chosen.pop(key) for key in calls if key in chosen}, options=chosen)
