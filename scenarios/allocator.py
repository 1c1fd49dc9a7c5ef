"""Memory of a run: who hands it out, how long tensors keep it, and whether it is simulated at all.

::

    policy: {name: ..., allocator: bfc}                             a name, with its defaults
            allocator: {name: caching, lifetime: issue, malloc: 10us}   with options
    memory: {lifetime: issue, when_full: wait}                      the same without naming an allocator

A device may name its own (`devices.memory.spec`), which wins; a device of which nobody says anything counts
bytes against its capacity, at no cost. Where the policy synchronises by issue (as PyTorch does on a GPU),
tensors live from issue to issue, else from start to end, unless the scenario says otherwise.

Without any of these nothing is simulated: memory is what the tensors alone take. A run that then turns out to
need more than a device has is repeated with memory, so that it ends where memory ends and says who held what.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from scenarios.document import Document, Loc, hint
from scenarios.memory import MemoryFields
from scenarios.schema import Choice
from sim.errors import InputError, OutOfMemoryError, UnknownNameError
from sim.frames import has_control_flow
from sim.memory_use import MemoryUse, memory_use, peak_bytes
from sim.model import Machine, Policy
from sim.trace import Trace
from sim.units import format_bytes, format_duration

if TYPE_CHECKING:
    from devices.memory.spec import MemorySpec

__all__ = ["exact_memory", "exceeds_memory", "memory_of"]

_LIFETIME = ("lifetime", "when_full")
"""When memory is taken and given back, and what happens when there is none; see `tensor_memory`."""


def _ideal() -> MemorySpec:
    """Return what counts bytes against the capacity, without rounding, fragments or costs."""
    from devices.memory.spec import MemorySpec

    return MemorySpec("counted", options={"free_synchronises": False})


def memory_of(
    choice: Choice | None,
    fields: MemoryFields | None,
    machine: Machine,
    policy: Policy,
    document: Document,
    loc: Loc,
) -> Callable[..., Any] | None:
    """Return what an engine takes as `memory`; None when nobody says anything of memory.

    Parameters
    ----------
    choice : Choice or None
        The allocator of the policy.
    fields : MemoryFields or None
        The scenario's ``memory:``.
    machine : Machine
    policy : Policy
        How it synchronises decides on lifetimes that nobody gives.
    document, loc
        Where the choice stands.

    Raises
    ------
    ScenarioError
        An unknown allocator or option, or a wrong value of one.
    """
    own: dict[str, MemorySpec] = {
        d.name: d.details["allocator"] for d in machine.devices if "allocator" in d.details
    }
    cut = {d.name: d.details["virtual_devices"] for d in machine.devices if "virtual_devices" in d.details}
    if choice is None and fields is None and not own and not cut:
        return None
    from devices.memory.tensors import tensor_memory

    lifetime = {"lifetime": "issue" if policy.synchronisation == "issue" else "execution"}
    if fields is not None:
        lifetime |= fields.model_dump(exclude_none=True, exclude={"limits"})
    default = _ideal()
    if choice is not None:
        lifetime |= {key: value for key, value in choice.options.items() if key in _LIFETIME}
        given = {key: value for key, value in choice.options.items() if key not in _LIFETIME}
        default = _read(choice.name, given, document, loc)
    if fields is not None and fields.limits:
        default = _limited(default, fields.limits, choice, document)
    specs = {d.name: own.get(d.name, default) for d in machine.devices}
    for name, parts in cut.items():
        if specs[name].allocator == "planned":
            message = "a plan is for a whole device; choose another allocator"
            raise document.error(("machine", "devices", name, "virtual_devices"), message)
        specs[name] = replace(specs[name], options={**specs[name].options, "virtual_devices": parts})
    try:
        return tensor_memory(specs, **lifetime)
    except InputError as error:
        raise document.error(loc, str(error)) from None


def _limited(
    spec: MemorySpec, limits: dict[str, int], choice: Choice | None, document: Document
) -> MemorySpec:
    """Return a pool in which models have limits."""
    if choice is not None and spec.allocator != "pool":
        message = (
            f"only a pool has limits, and the policy's allocator is {spec.allocator}; leave one of them out"
        )
        raise document.error(("memory", "limits"), message)
    from devices.memory.groups import Groups
    from devices.memory.spec import MemorySpec

    return replace(
        spec if spec.allocator == "pool" else MemorySpec("pool"),
        options={
            **(spec.options if spec.allocator == "pool" else {}),
            "limits": limits,
            "group_of": Groups(limits),
        },
    )


def _read(name: str, options: dict[str, Any], document: Document, loc: Loc) -> MemorySpec:
    from devices.memory.spec import read_allocator

    try:
        return read_allocator({"name": name, **options}, "")
    except UnknownNameError as error:
        message = f"unknown {error.what} {error.name!r}{hint(error.name, [*error.known, *_LIFETIME])}"
        raise document.error((*loc, error.name), message, key=True) from None
    except InputError as error:
        key, _, message = str(error).removeprefix(".").partition(": ")
        raise document.error((*loc, key), message) from None


def exact_memory(machine: Machine) -> Callable[..., Any]:
    """Return a memory that counts bytes and nothing else."""
    from devices.memory.tensors import tensor_memory

    return tensor_memory(dict.fromkeys((device.name for device in machine.devices), _ideal()))


def exceeds_memory(trace: Trace) -> bool:
    """Whether the tensors of a run, which did not ask for memory, take more than some device has.

    Raises
    ------
    OutOfMemoryError
        They do, and as there is control flow no allocator can be asked where that happens.
    """
    job = trace.job
    capacity = {d.name: d.memory_bytes for d in job.machine.devices if d.memory_bytes is not None}
    everything = int(job.graph.tensor_nbytes.sum()) * job.iterations
    if all(everything <= nbytes for nbytes in capacity.values()) and not has_control_flow(job.graph):
        return False  # no device ever holds more than all tensors of all iterations
    peak = peak_bytes(trace)
    full = [name for name, nbytes in capacity.items() if peak[name] > nbytes]
    if full and has_control_flow(job.graph):
        raise OutOfMemoryError(_story(memory_use(trace)[full[0]], capacity[full[0]]))
    return bool(full)


def _story(use: MemoryUse, limit: int) -> str:
    """Say what was in memory when most was, as `devices.memory.oom` says it of an allocator."""
    holders = "; ".join(f"{h.name!r} {format_bytes(h.nbytes, iec=True)}" for h in use.holders[:5])
    short = format_bytes(use.peak_bytes - limit, iec=True)
    return (
        f"out of memory on {use.device}: {format_bytes(use.peak_bytes, iec=True)} are in use "
        f"at {format_duration(use.peak_ns)}\n"
        f"  limit            {format_bytes(limit, iec=True)}\n"
        f"  largest holders  {holders}\n"
        f"  what would help  {short} more memory, or as much less in use: a smaller batch, recomputation"
    )
