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
from typing import Any

from devices.memory.by_name import Maker, allocator_options
from devices.memory.groups import Groups
from sim.words import plugins
from sim.words.errors import InputError
from sim.words.options import arguments, parameters

__all__ = ["MemorySpec", "read_allocator"]


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
        There is no such allocator.
    InputError
        An option that it does not have, a cost without its unit, or something that is neither a word nor a
        mapping.

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
    calls = {key: parameter for key, parameter in parameters(MemorySpec).items() if key.endswith("_ns")}
    own = {key: parameter for key, parameter in allocator_options(kind).items() if key != "group_of"}
    options = {key: value for key, value in given.items() if key != "name"}
    chosen = arguments(f"the {name} allocator", {**own, **calls}, options)
    if "limits" in chosen:
        chosen["group_of"] = Groups(chosen["limits"])
    return MemorySpec(kind, **{key: chosen.pop(key) for key in calls if key in chosen}, options=chosen)
