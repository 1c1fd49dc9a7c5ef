"""The ``allocator:`` of a policy: how tensors get their memory, and what that costs.

::

    allocator: bfc                                              a name, with its defaults
    allocator: {name: caching, lifetime: issue, malloc: 10us}   with options

A device may name its own (`devices.memory.spec`), which wins. Without any, memory is what the tensors alone
take, and a run that would need more than a device has ends with the error of an exact allocator; with
one, its rounding, fragments, limits and costs are simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from devices.memory.spec import MemorySpec, read_allocator
from devices.memory.tensors import tensor_memory
from scenarios.document import Document, Loc, hint
from scenarios.schema import Choice
from sim.errors import InputError, UnknownNameError
from sim.memory_use import peak_bytes
from sim.model import Machine
from sim.trace import Trace

__all__ = ["exact_memory", "exceeds_memory", "memory_of"]

_LIFETIME = ("lifetime", "when_full")
"""When memory is taken and given back, and what happens when there is none; see `tensor_memory`."""


def memory_of(
    choice: Choice | None, machine: Machine, document: Document, loc: Loc
) -> Callable[..., Any] | None:
    """Return what an engine takes as `memory`; None when neither policy nor device names an allocator.

    Raises
    ------
    ScenarioError
        An unknown allocator or option, or a wrong value of one.
    """
    specs: dict[str, MemorySpec] = {}
    lifetime: dict[str, Any] = {}
    if choice is not None:
        lifetime = {key: value for key, value in choice.options.items() if key in _LIFETIME}
        given = {key: value for key, value in choice.options.items() if key not in _LIFETIME}
        specs = dict.fromkeys(
            (device.name for device in machine.devices), _read(choice.name, given, document, loc)
        )
    specs |= {d.name: d.details["allocator"] for d in machine.devices if "allocator" in d.details}
    if not specs:
        return None
    try:
        return tensor_memory(specs, **lifetime)
    except InputError as error:
        raise document.error(loc, str(error)) from None


def _read(name: str, options: dict[str, Any], document: Document, loc: Loc) -> MemorySpec:
    try:
        return read_allocator({"name": name, **options}, "")
    except UnknownNameError as error:
        message = f"unknown {error.what} {error.name!r}{hint(error.name, [*error.known, *_LIFETIME])}"
        raise document.error((*loc, error.name), message, key=True) from None
    except InputError as error:
        key, _, message = str(error).removeprefix(".").partition(": ")
        raise document.error((*loc, key), message) from None


def exact_memory() -> Callable[..., Any]:
    """Return a memory that counts bytes and nothing else."""
    return tensor_memory()


def exceeds_memory(trace: Trace) -> bool:
    """Whether the tensors of a run, which did not ask for memory, take more than some device has."""
    job = trace.job
    capacity = {d.name: d.memory_bytes for d in job.machine.devices if d.memory_bytes is not None}
    everything = int(job.graph.tensor_nbytes.sum()) * job.iterations
    if all(everything <= nbytes for nbytes in capacity.values()):
        return False  # no device ever holds more than all tensors of all iterations
    peak = peak_bytes(trace)
    return any(peak[name] > nbytes for name, nbytes in capacity.items())
