"""How the memory of one device is managed, as a description says it.

::

    allocator: caching
    allocator: {name: pool, limits: {train: 50GB, serve: 20GB}}
    allocator: {name: caching, max_split_size: 20MB, malloc: 150us, free: 100us, synchronise: 10us}
                      │              └ an option of it                 └ what calls to the device cost
                      └ a name in `devices.memory.allocators`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from devices.memory.by_name import Maker, allocator_options
from devices.memory.groups import Groups
from sim.words import plugins
from sim.words.errors import InputError, UnknownNameError, located
from sim.words.options import misfit
from sim.words.units import parse_bytes, parse_duration

__all__ = ["MemorySpec", "read_allocator", "read_sizes"]

_COSTS: Final = {"malloc": "malloc_ns", "free": "free_ns", "synchronise": "synchronise_ns"}
_BYTES: Final = frozenset({"limit", "max_split_size", "alignment", "rounding"})
"""Options of allocators that are sizes; a bare number of them is bytes nowhere: they have units."""


@dataclass(frozen=True)
class MemorySpec:
    """How the memory of one device is managed.

    Attributes
    ----------
    allocator : str or callable
        A name in `devices.memory.allocators`, or what such a name stands for.
    malloc_ns, free_ns, synchronise_ns : int
        What a device malloc, a device free and a synchronisation cost who makes them.
    options : mapping
        Options of the allocator.
    """

    allocator: str | Maker = "pool"
    malloc_ns: int = 0
    free_ns: int = 0
    synchronise_ns: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def costs(self) -> bool:
        """Whether calls to the device cost anything."""
        return bool(self.malloc_ns or self.free_ns or self.synchronise_ns)


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
        There is no such allocator, or it has no such option.
    InputError
        A cost without its unit, or something that is neither a word nor a mapping.

    Examples
    --------
    >>> read_allocator({"name": "caching", "max_split_size": "20MiB", "malloc": "150us"})
    MemorySpec(allocator='caching', malloc_ns=150000, free_ns=0, synchronise_ns=0, \
options={'max_split_size': 20971520})
    >>> read_allocator("cacheing")
    Traceback (most recent call last):
        ...
    sim.words.errors.UnknownNameError: unknown allocator 'cacheing'; did you mean 'caching'? Known: bfc,
    caching, \
counted, planned, pool, scratchpad
    """
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not isinstance(given.get("name"), str):
        raise InputError(
            f"{value!r} is no allocator; accepted: its name, as in caching, "
            "or a mapping, as in {name: caching, malloc: 150us}"
        )
    name: str = given["name"]
    kind = origin.lookup("sim.allocators", name) if ":" in name else name
    options = {key: wanted for key, wanted in allocator_options(kind).items() if key != "group_of"}
    costs: dict[str, int] = {}
    chosen: dict[str, Any] = {}
    for key, item in given.items():
        if key == "name":
            continue
        if key in _COSTS:
            costs[_COSTS[key]] = parse_duration(item, what=key)
        elif key not in options:
            raise UnknownNameError(
                f"option of the {name} allocator", str(key), {*options, *_COSTS}, path=(key,)
            )
        elif key == "limits":
            with located(key):
                limits = read_sizes(item)
            chosen |= {"limits": limits, "group_of": Groups(limits)}
        elif key in _BYTES:
            chosen[key] = parse_bytes(item, what=key)
        elif wanted := misfit(options[key], item):
            raise InputError(f"should be {wanted}, not {item!r}", path=(key,))
        else:
            chosen[key] = item
    return MemorySpec(kind, **costs, options=chosen)


def read_sizes(value: object) -> dict[str, int]:
    """Read sizes by name: of models that share a pool, of virtual devices.

    Raises
    ------
    InputError
        It is no mapping of names to sizes, or it is empty.

    Examples
    --------
    >>> read_sizes({"train": "50GB", "serve": "20GB"})
    {'train': 50000000000, 'serve': 20000000000}
    """
    if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) for name in value):
        raise InputError(f"{value!r} is no mapping of names to sizes, as in {{train: 50GB}}")
    return {name: parse_bytes(size, what=name) for name, size in value.items()}
